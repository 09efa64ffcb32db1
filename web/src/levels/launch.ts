// Level 2: from a job in a queue to ranks that know each other: nodes, ranks, the meeting, queue pairs.
import type { App } from '../app';
import { absent, fill, make, words } from '../draw/dom';
import { LINES, palette } from '../draw/palette';
import { clipped, Plane, SMALL } from '../draw/plane';
import { Feed } from '../model/feed';
import { bytes, count, many } from '../words/units';
import { connectionsOf } from './connection';
import type { Level, Scene } from './level';

const PORT = 29500;
const GPU = 26;
/** A server that is one of very many. */
const SMALL_NODE = 15;

export const launch: Level = {
  id: 'launch',
  title: 'Submit and launch',
  lead: 'A scheduler such as Slurm finds servers and starts one process for each GPU. Each learns its [[rank]] from its environment, and all meet once over TCP. ← and → go through it; click a GPU to see what its process was told.',
  both: 'stacked',
  make: (app) => new LaunchScene(app),
};

class LaunchScene implements Scene {
  readonly root: HTMLElement;
  private phase = 3;
  private map: Plane;
  private list = make('ol', { class: 'steps' });
  private told = make('div', { class: 'panel' });
  private connections: Feed;
  private shown = '';
  private halfHeight = 0;

  constructor(private app: App) {
    this.connections = new Feed('connections', () => app.redraw());
    this.map = new Plane(app, {
      title: 'Servers and ranks',
      note: app.run.meta.nodes.length > 64 ? 'a square is a server' : `a square is a ${app.run.isLive ? 'process' : 'GPU'} with its rank; a line joins servers whose queue pairs know each other`,
      height: (width) => this.place(width).height,
      draw: (plane) => this.draw(plane),
    });
    const has = app.run.meta.nodes.length > 0;
    this.root = make(
      'div',
      {},
      has ? null : absent('This run is plain traffic between hosts: nobody launched a job. One with a job:', 'railnet sim scenarios/life-of-a-job-racks.toml --record run.rail && railnet view run.rail'),
      make('div', { class: 'stack' }, this.map.root, make('div', { class: 'columns' }, make('div', { class: 'panel' }, this.list), this.told)),
    );
    if (!has) this.root.lastElementChild!.setAttribute('hidden', '');
  }

  show(): void {
    this.tell();
    this.map.paint();
  }

  step(direction: number): boolean {
    this.phase = Math.min(3, Math.max(0, this.phase + direction));
    return true;
  }

  play(): boolean {
    this.phase = 0;
    const next = () => {
      if (!this.app.playing || this.app.scene !== this) return;
      this.phase++;
      if (this.phase >= 3) this.app.playing = false;
      else setTimeout(next, 1200);
      this.app.redraw();
    };
    setTimeout(next, 1200);
    return true;
  }

  private tell(): void {
    const { run, view } = this.app;
    const { meta, job } = run;
    const table = this.connections.want(run, { most: 20_000 });
    const known = table ? connectionsOf(table) : [];
    const key = `${this.phase} ${view.rank} ${known.length}`;
    if (key === this.shown) return;
    this.shown = key;
    const first = meta.nodes[0];
    const steps: [string, string][] = [
      ['Nodes allocated', run.isLive ? many(meta.nodes.length, 'host') : `${many(meta.nodes.length, 'server')}${first ? `, each with ${first.ranks.length} × ${first.gpu ?? 'GPU'}` : ''}`],
      ['Ranks placed', `${many(meta.ranks.length, 'process', 'processes')}${run.isLive ? '' : ', one for each GPU'}, numbered through`],
      ['Rendezvous', run.isLive ? `all ${count(meta.ranks.length)} met over TCP at rank 0 and exchanged addresses` : `all ${count(meta.ranks.length)} meet over TCP at ${first?.name ?? 'the first'}:${PORT} and exchange addresses`],
      [
        'Queue pairs',
        job
          ? `${count(job.queue_pairs)} in ${many(job.communicators, 'communicator')} across servers, ${bytes(job.buffer_bytes)} of buffers; from here on [[RDMA]], no TCP`
          : run.isLive && known.length === 0
            ? 'none: shared memory or TCP leads from rank to rank'
            : `${count(meta.tables['connections'] ?? known.length)} connections between NICs; from here on [[RDMA]], no TCP`,
      ],
    ];
    fill(
      this.list,
      ...steps.map(([name, text], index) =>
        make('li', { class: index <= this.phase ? 'on' : 'off' }, make('div', {}, make('button', { class: 'plain', click: () => ((this.phase = index), this.app.redraw()) }, name), make('div', { class: 'quiet' }, words(text)))),
      ),
    );
    const rank = Math.min(view.rank ?? 0, Math.max(0, meta.ranks.length - 1));
    const place = meta.ranks[rank];
    if (!place || !first) return;
    const size = meta.nodes[place.node]?.ranks.length ?? 0;
    const told: [string, string][] = [
      ['RANK', String(rank)],
      ['WORLD_SIZE', String(meta.ranks.length)],
      ['LOCAL_RANK', String(place.gpu)],
      ['LOCAL_WORLD_SIZE', String(size)],
      ...(run.isLive ? [] : ([['MASTER_ADDR', first.name], ['MASTER_PORT', String(PORT)]] as [string, string][])),
    ];
    const ways = place.conduits?.join(', ') || 'nothing';
    fill(
      this.told,
      make('h3', {}, `${run.rankName(rank)} was told`),
      make('table', {}, ...told.map(([name, value]) => make('tr', {}, make('td', { class: 'mono' }, name), make('td', { class: 'mono figure' }, value)))),
      run.isLive
        ? make('p', { class: 'note' }, `It was process ${place.process ?? '?'}; ${ways} led from it to the others. Where they met is not known from a live run.`)
        : place.host === null
          ? null
          : make('p', { class: 'note' }, `Its NIC is ${run.vertexName(place.host)}.`),
    );
  }

  /** Where servers are drawn: a grid of boxes, smaller ones when there are many. */
  private place(width: number): { columns: number; w: number; h: number; gpu: number; rows: number; height: number } {
    const nodes = Math.max(1, this.app.run.meta.nodes.length);
    const gpus = Math.max(1, this.app.run.meta.nodes[0]?.ranks.length ?? 1);
    if (nodes > 64) {
      const columns = Math.max(1, Math.floor(width / SMALL_NODE));
      const rows = Math.ceil(nodes / columns);
      return { columns, w: SMALL_NODE - 3, h: SMALL_NODE - 3, gpu: 0, rows, height: rows * SMALL_NODE + 30 };
    }
    const gpu = nodes <= 8 && width > 700 ? 38 : nodes <= 16 ? GPU : 16;
    const across = Math.min(gpus, 4);
    const w = across * gpu + 20;
    const h = Math.ceil(gpus / across) * gpu + 30;
    const columns = Math.max(1, Math.min(nodes, Math.floor((width + 16) / (w + 28))));
    const rows = Math.ceil(nodes / columns);
    return { columns, w, h, gpu, rows, height: rows * (h + 64) + 26 };
  }

  private draw(plane: Plane): void {
    const { app } = this;
    const { meta } = app.run;
    const { context, width } = plane;
    const colours = palette();
    const { columns, w, h, gpu } = this.place(width);
    this.halfHeight = h / 2;
    const few = meta.nodes.length <= 64;
    const stepX = width / columns;
    const stepY = few ? h + 64 : SMALL_NODE;
    const centre = (node: number) => ({ x: (node % columns) * stepX + stepX / 2, y: 26 + Math.floor(node / columns) * stepY + h / 2 });
    if (this.phase >= 3 && few) this.drawPairs(plane, centre);
    if (this.phase === 2 && few) this.drawMeeting(plane, centre);
    meta.nodes.forEach((node, index) => {
      const { x, y } = centre(index);
      if (!few) return this.drawSmall(plane, index, x - w / 2, y - h / 2, w);
      context.fillStyle = colours.panel;
      context.strokeStyle = LINES[index % LINES.length]!;
      context.lineWidth = 1.5;
      context.beginPath();
      context.roundRect(x - w / 2, y - h / 2, w, h, 6);
      context.fill();
      context.stroke();
      context.fillStyle = colours.ink;
      context.font = SMALL;
      context.fillText(clipped(context, node.name, w - 16), x - w / 2 + 10, y - h / 2 + 14);
      const across = Math.max(1, Math.min(node.ranks.length, Math.floor((w - 16) / gpu)));
      node.ranks.forEach((rank, gpuIndex) => {
        const left = x - w / 2 + 10 + (gpuIndex % across) * gpu;
        const top = y - h / 2 + 24 + Math.floor(gpuIndex / across) * gpu;
        const chosen = app.view.rank === rank;
        context.fillStyle = chosen ? colours.accent : this.phase >= 1 ? colours.line : colours.faint;
        context.fillRect(left, top, gpu - 2, gpu - 2);
        if (this.phase >= 1 && gpu >= 16) {
          context.fillStyle = chosen ? colours.paper : colours.ink;
          context.font = gpu >= 20 ? SMALL : '9px system-ui, sans-serif';
          context.textAlign = 'center';
          context.fillText(String(rank), left + gpu / 2 - 1, top + gpu / 2);
          context.textAlign = 'left';
        }
        plane.hits.push({ x: left, y: top, w: gpu - 2, h: gpu - 2, tip: app.run.rankName(rank), open: () => app.go({ rank }) });
      });
    });
  }

  private drawSmall(plane: Plane, node: number, x: number, y: number, size: number): void {
    const { app } = this;
    const { ranks, name } = app.run.meta.nodes[node]!;
    const colours = palette();
    const chosen = app.view.rank !== null && ranks.includes(app.view.rank);
    plane.context.fillStyle = chosen ? colours.accent : this.phase >= 1 ? colours.quiet : colours.line;
    plane.context.globalAlpha = chosen ? 1 : 0.55;
    plane.context.fillRect(x, y, size, size);
    plane.context.globalAlpha = 1;
    plane.hits.push({ x, y, w: size, h: size, tip: `${name}: ranks ${ranks[0]} to ${ranks[ranks.length - 1]}`, open: () => app.go({ rank: ranks[0] ?? 0 }) });
  }

  private drawMeeting(plane: Plane, centre: (node: number) => { x: number; y: number }): void {
    const { context } = plane;
    const home = centre(0);
    context.strokeStyle = palette().accent;
    context.setLineDash([4, 4]);
    context.lineWidth = 1;
    this.app.run.meta.nodes.forEach((_, node) => {
      const { x, y } = centre(node);
      context.beginPath();
      context.moveTo(home.x, home.y);
      context.lineTo(x, y);
      context.stroke();
    });
    context.setLineDash([]);
    context.fillStyle = palette().accent;
    context.font = SMALL;
    context.fillText(this.app.run.isLive ? (this.app.run.meta.nodes[0]?.name ?? '') : `${this.app.run.meta.nodes[0]?.name}:${PORT}`, Math.max(0, home.x - 40), 8);
  }

  private drawPairs(plane: Plane, centre: (node: number) => { x: number; y: number }): void {
    const table = this.connections.want(this.app.run, { most: 20_000 });
    if (!table) return;
    const { context } = plane;
    const { hosts } = this.app.run.meta.fabric;
    const pairs = new Map<string, { a: number; b: number; count: number }>();
    for (const { host, to } of connectionsOf(table)) {
      const [one, two] = [hosts[host]?.node, hosts[to]?.node];
      if (one === null || one === undefined || two === null || two === undefined || one === two) continue;
      const [a, b] = [Math.min(one, two), Math.max(one, two)];
      const found = pairs.get(`${a} ${b}`);
      if (found) found.count++;
      else pairs.set(`${a} ${b}`, { a, b, count: 1 });
    }
    const most = Math.max(1, ...[...pairs.values()].map((pair) => pair.count));
    context.strokeStyle = palette().quiet;
    for (const { a, b, count: many } of pairs.values()) {
      const [from, to] = [centre(a), centre(b)];
      context.globalAlpha = 0.55;
      context.lineWidth = 1 + 3 * (many / most);
      context.beginPath();
      context.moveTo(from.x, from.y);
      // Below the boxes, deeper the further apart they are.
      const fall = Math.abs(to.x - from.x) > 10 ? this.halfHeight + Math.min(54, 12 + Math.abs(to.x - from.x) / 18) : 0;
      context.bezierCurveTo(from.x, from.y + fall * 1.33, to.x, to.y + fall * 1.33, to.x, to.y);
      context.stroke();
      context.globalAlpha = 1;
    }
  }
}
