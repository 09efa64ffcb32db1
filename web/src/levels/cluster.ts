// Level 3: the fabric as bands, width is capacity, colour is load in the window or at the moment.
import type { App } from '../app';
import { fill, make, words } from '../draw/dom';
import { CATEGORY, loadColour, palette } from '../draw/palette';
import { clipped, Plane, SMALL } from '../draw/plane';
import { TimePlane } from '../draw/time-plane';
import { Feed } from '../model/feed';
import { binsPerRow, loadsOf, seriesOf, type Loads } from '../model/load';
import type { Table } from '../source/block';
import { bytes, count, rate, share, time } from '../words/units';
import { layout, wantedHeight, type Bundle, type Item, type Layout } from './cluster-layout';
import type { Level, Scene } from './level';

const LEFT = 78;
/** Room for a letter of a name. */
const LETTER = 7;
const MOST_ROWS = 200_000;
/** More bundles than this are a hairball: those between the same pod and switch, or inside a pod, are drawn as one. */
const MOST_BUNDLES = 600;
const NOTE = 'share of capacity, the busier direction of each bundle. Good: even colours; one line that stands out is a bottleneck';

export const cluster: Level = {
  id: 'cluster',
  title: 'The cluster',
  lead: 'The fabric in bands: [[spine]] switches on top, [[leaf]] switches under them, servers with their GPUs below. A line is a bundle of links: wider is more capacity, stronger colour is more load. Click a switch to come closer, a server to see its step, a line to see it over time.',
  both: 'stacked',
  make: (app) => new ClusterScene(app),
};

class ClusterScene implements Scene {
  readonly root: HTMLElement;
  private load: Feed;
  private map: Plane;
  private chart: TimePlane;
  private list = make('div', { class: 'panel' });
  private byMoment = false;
  private buttons: HTMLButtonElement[];
  /** What is drawn, and how many letters the longest name of each kind has. */
  private laid: { key: string; layout: Layout; longest: Map<Item['kind'], number> } | null = null;
  private listed = '';
  private loads: Loads | null = null;

  constructor(private app: App) {
    this.load = new Feed('load', () => app.redraw());
    this.map = new Plane(app, {
      title: 'Load of the fabric',
      note: NOTE,
      height: (width) => this.height(width),
      draw: (plane) => this.drawMap(plane),
    });
    this.chart = new TimePlane(app, {
      title: 'One link over time',
      note: 'load in % of capacity (area), bytes in its queue (line), [[ECN]] marks and pauses (ticks). Good: a short queue',
      height: 150,
      left: () => 58,
      draw: (plane) => this.drawChart(plane),
      version: () => `${this.load.version} ${this.link}`,
    });
    this.buttons = (['in the window', 'at the moment'] as const).map((text, index) =>
      make(
        'button',
        {
          click: () => {
            this.byMoment = index === 1;
            app.redraw();
          },
        },
        text,
      ),
    );
    const ramp = make('canvas', { class: 'ramp', width: '120', height: '10', 'aria-hidden': 'true' });
    this.paintRamp = () => {
      const context = ramp.getContext('2d')!;
      for (let x = 0; x < 120; x++) {
        context.fillStyle = loadColour(x / 119);
        context.fillRect(x, 0, 1, 10);
      }
    };
    this.root = make(
      'div',
      {},
      make('div', { class: 'row' }, make('span', { class: 'quiet' }, 'Load'), ...this.buttons, make('span', { class: 'quiet' }, '0 %', ramp, '100 %')),
      make('div', { class: 'sided' }, this.map.root, this.list),
      this.chart.root,
    );
    this.chart.root.hidden = !app.run.has('load');
  }

  private paintRamp: () => void;
  private tall: { key: string; height: number } | null = null;

  private height(width: number): number {
    const { run, view } = this.app;
    const key = `${width} ${view.leaf} ${run.index}`;
    if (this.tall?.key !== key) this.tall = { key, height: wantedHeight(run, view.leaf, width, left(width)) + 12 };
    return this.tall.height;
  }

  show(): void {
    const { app } = this;
    const moment = this.byMoment || app.playing;
    this.buttons.forEach((button, index) => button.setAttribute('aria-pressed', String((index === 1) === moment)));
    this.paintRamp();
    const { from, to, at } = app.view;
    const table = this.load.window(app.run, from, to, { most: MOST_ROWS });
    const width = app.run.meta.bins?.width ?? 1;
    this.loads = table ? (moment ? loadsOf(app.run, table, at, at + width * 0.5) : loadsOf(app.run, table, from, to)) : null;
    this.showList();
    this.map.paint();
    this.chart.title = this.link === null ? 'One link over time' : app.run.channelName(this.link);
    this.chart.paint();
  }

  /** The link that is looked at: the chosen one, else the busiest. */
  private get link(): number | null {
    if (this.app.view.link !== null) return this.app.view.link;
    const shares = this.loads?.share;
    if (!shares || shares.length === 0) return null;
    let best = 0;
    for (let channel = 1; channel < shares.length; channel++) if (shares[channel]! > shares[best]!) best = channel;
    return best;
  }

  private showList(): void {
    const { app, loads } = this;
    const { run } = app;
    if (!run.has('load')) {
      if (this.listed !== 'none') {
        this.listed = 'none';
        const links = run.meta.fabric.links.length;
        fill(
          this.list,
          make('h2', {}, 'No packet ran here'),
          make('p', { class: 'note' }, `This run was calculated (${run.meta.fidelity} fidelity), so its ${count(links)} links have no load. Run it with packets: fidelity = "packet" in the scenario.`),
        );
      }
      return;
    }
    if (!loads) return;
    const top = largest(loads.share, 6).filter((channel) => loads.bytes[channel]! > 0);
    const carrying = loads.bytes.reduce((sum, each) => sum + (each > 0 ? 1 : 0), 0);
    const key = JSON.stringify([top.map((channel) => [channel, share(loads.share[channel]!)]), app.view.link]);
    if (key === this.listed) return;
    this.listed = key;
    const rows = top.map((channel) =>
      make(
        'tr',
        {},
        make('td', {}, make('button', { class: 'plain', click: () => app.go({ link: channel }) }, run.channelName(channel))),
        make('td', { class: 'figure' }, share(loads.share[channel]!)),
      ),
    );
    const chosen = app.view.link;
    fill(
      this.list,
      make('h2', {}, 'Busiest'),
      make('table', {}, ...rows),
      chosen === null ? null : this.about(chosen, loads),
      make('p', { class: 'note' }, words(`${count(carrying)} of ${count(loads.share.length)} directions of links carried something.`)),
    );
  }

  private about(channel: number, loads: Loads): HTMLElement {
    const { run } = this.app;
    const rows: [string, string][] = [
      ['rate', rate(run.channel(channel).rate)],
      ['delay', time(run.channel(channel).delay)],
      ['carried', bytes(loads.bytes[channel]!)],
      ['longest queue', bytes(loads.queue[channel]!)],
      ['ECN marks', count(loads.marks[channel]!)],
      ['held back', time(loads.paused[channel]!)],
      ['dropped', count(loads.drops[channel]!)],
    ];
    return make(
      'div',
      {},
      make('h3', {}, run.channelName(channel)),
      make('table', {}, ...rows.map(([name, value]) => make('tr', {}, make('td', {}, name), make('td', { class: 'figure' }, value)))),
    );
  }

  private drawMap(plane: Plane): void {
    const { app } = this;
    const colours = palette();
    const { context, width, height } = plane;
    const key = `${width} ${height} ${app.view.leaf} ${app.run.index}`;
    if (this.laid?.key !== key) {
      const drawn = layout(app.run, app.view.leaf, width, height - 12, left(width));
      const longest = new Map<Item['kind'], number>();
      for (const { kind, name } of drawn.items) longest.set(kind, Math.max(longest.get(kind) ?? 0, name.length));
      this.laid = { key, layout: drawn, longest };
    }
    const { items, bundles, bands, capacity } = this.laid.layout;
    context.fillStyle = colours.quiet;
    if (width >= 500) for (const band of bands) context.fillText(band.name, 0, band.y + band.h / 2);
    const shares = Float64Array.from(bundles, (each) => this.shareOf(each));
    const far = bundles.length > MOST_BUNDLES;
    if (far) this.drawStrands(plane, shares);
    this.map.note = far ? `${NOTE}. ${count(bundles.length)} bundles are drawn as ${count(this.strands!.list.length)}: all between a pod and a switch above it, or inside a pod; colour of the busiest of them` : NOTE;
    // The busiest come last and lie on top.
    const order = far ? [] : largest(shares, bundles.length).reverse();
    const dense = order.length > 200;
    for (const index of order) {
      const each = bundles[index]!;
      const load = shares[index]!;
      context.strokeStyle = loadColour(load);
      const wide = Math.max(dense ? 0.8 : 1.5, Math.min(7, (each.capacity / capacity) * (dense ? 3 : order.length > 60 ? 5 : 7), each.a.w * 0.5, each.b.w * 0.8));
      context.lineWidth = wide;
      context.globalAlpha = dense && load < 0.02 ? 0.35 : 1;
      const middle = draw(context, each);
      context.globalAlpha = 1;
      if (this.isChosen(each)) {
        context.lineWidth = 1.5;
        context.strokeStyle = colours.accent;
        draw(context, each, wide / 2 + 3);
      }
      const size = dense ? 6 : 16;
      plane.hits.push({ x: middle.x - size / 2, y: middle.y - size / 2, w: size, h: size, tip: () => this.bundleTip(each), open: () => app.go({ link: this.busier(each) }) });
    }
    for (const item of items) this.drawItem(plane, item, bands.find((band) => band.y <= item.y && item.y <= band.y + band.h)?.cells ?? false);
  }

  private strands: { layout: Layout; list: Strand[] } | null = null;

  /** Bundles of a large fabric, many as one. */
  private drawStrands(plane: Plane, shares: Float64Array): void {
    const { app } = this;
    const { context } = plane;
    const { layout } = this.laid!;
    if (this.strands?.layout !== layout) this.strands = { layout, list: strandsOf(layout) };
    const loads = this.strands.list.map(({ bundles }) => {
      let [most, sum, busiest] = [0, 0, bundles[0]!];
      for (const index of bundles) {
        sum += shares[index]!;
        if (shares[index]! > most) [most, busiest] = [shares[index]!, index];
      }
      return { most, mean: sum / bundles.length, busiest };
    });
    const order = [...loads.keys()].sort((a, b) => loads[a]!.most - loads[b]!.most);
    for (const index of order) {
      const { upper, lower, bundles, name, inPod } = this.strands.list[index]!;
      const { most, mean, busiest } = loads[index]!;
      const link = () => app.go({ link: this.busier(layout.bundles[busiest]!) });
      const tip = () => `${name}\n${count(bundles.length)} bundles, the busiest ${share(most)}, on average ${share(mean)}\nbusiest: ${layout.bundles[busiest]!.a.name} – ${layout.bundles[busiest]!.b.name}`;
      context.fillStyle = context.strokeStyle = loadColour(most);
      if (inPod) {
        context.globalAlpha = 0.75;
        context.beginPath();
        context.moveTo(upper.x, upper.y + upper.h + 2);
        context.lineTo(upper.x + upper.w, upper.y + upper.h + 2);
        context.lineTo(lower.x + lower.w, lower.y - 2);
        context.lineTo(lower.x, lower.y - 2);
        context.fill();
        context.globalAlpha = 1;
        plane.hits.push({ x: Math.min(upper.x, lower.x), y: upper.y + upper.h, w: Math.max(upper.w, lower.w), h: lower.y - upper.y - upper.h, tip, open: link });
        continue;
      }
      const [x, y, to, end] = [upper.x + upper.w / 2, upper.y + upper.h, lower.x + lower.w / 2, lower.y];
      context.lineWidth = 1.75;
      context.globalAlpha = most > 0 ? 1 : 0.5;
      context.beginPath();
      context.moveTo(x, y);
      context.bezierCurveTo(x, y + (end - y) * 0.45, to, end - (end - y) * 0.45, to, end);
      context.stroke();
      context.globalAlpha = 1;
      plane.hits.push({ x: (x + to) / 2 - 4, y: (y + end) / 2 - 4, w: 8, h: 8, tip, open: link });
    }
  }

  private drawItem(plane: Plane, item: Item, cell: boolean): void {
    const { app } = this;
    const { context } = plane;
    const colours = palette();
    const own = this.ownLoad(item);
    const chosen = item.kind === 'node' ? app.view.node === item.id : item.kind === 'switch' && app.view.leaf === item.id;
    if (cell) {
      context.fillStyle = loadColour(own);
      context.fillRect(item.x, item.y, item.w, item.h);
    } else {
      context.fillStyle = colours.panel;
      context.strokeStyle = chosen ? colours.accent : colours.quiet;
      context.lineWidth = chosen ? 2 : 1;
      context.beginPath();
      context.roundRect(item.x + 0.5, item.y + 0.5, item.w - 1, item.h - 1, 5);
      context.fill();
      context.stroke();
      context.fillStyle = colours.ink;
      context.textAlign = 'center';
      context.font = SMALL;
      const shown = clipped(context, shorter(item.name, item.w, this.laid?.longest.get(item.kind) ?? 0), item.w - 8);
      context.fillText(shown, item.x + item.w / 2, item.kind === 'switch' ? item.y + item.h / 2 : item.y + 18);
      context.textAlign = 'left';
      if (item.kind !== 'switch') this.drawPorts(plane, item);
    }
    const open =
      item.kind === 'switch'
        ? () => app.go({ leaf: app.view.leaf === item.id ? null : item.id })
        : () => app.open('step', item.kind === 'node' ? { node: item.id } : { rank: item.id });
    plane.hits.push({ x: item.x, y: item.y, w: item.w, h: item.h, tip: () => this.itemTip(item, own), open });
  }

  /** Ports of a server on its upper edge, its GPUs below. */
  private drawPorts(plane: Plane, item: Item): void {
    const { context } = plane;
    const { meta } = this.app.run;
    const room = item.w - 12;
    const hosts = item.hosts.length;
    item.hosts.forEach((host, index) => {
      const wide = Math.min(14, room / hosts - 1.5);
      context.fillStyle = loadColour(this.hostLoad(host));
      context.fillRect(item.x + 6 + (room / hosts) * (index + 0.5) - wide / 2, item.y + 2, wide, 5);
    });
    const gpus = item.kind === 'node' ? (meta.nodes[item.id]?.ranks.length ?? 0) : 0;
    for (let gpu = 0; gpu < gpus; gpu++) {
      const wide = Math.min(14, room / gpus - 1.5);
      if (wide < 2) break;
      context.fillStyle = palette().line;
      context.fillRect(item.x + 6 + (room / gpus) * (gpu + 0.5) - wide / 2, item.y + item.h - 20, wide, 14);
    }
  }

  private byVertex: { loads: Loads; most: Float64Array } | null = null;
  /** The load of the busiest port of a host or switch. */
  private hostLoad(host: number): number {
    const { loads } = this;
    if (!loads) return 0;
    if (this.byVertex?.loads !== loads) {
      const { links, hosts, switches } = this.app.run.meta.fabric;
      const most = new Float64Array(hosts.length + switches.length);
      links.forEach(({ a, b }, index) => {
        const busier = Math.max(loads.share[2 * index]!, loads.share[2 * index + 1]!);
        most[a] = Math.max(most[a]!, busier);
        most[b] = Math.max(most[b]!, busier);
      });
      this.byVertex = { loads, most };
    }
    return this.byVertex.most[host] ?? 0;
  }

  private linksByVertex: Map<number, number[]> | null = null;
  private hostLinks(vertex: number): number[] {
    if (!this.linksByVertex) {
      this.linksByVertex = new Map();
      this.app.run.meta.fabric.links.forEach(({ a, b }, index) => {
        for (const end of [a, b]) {
          const list = this.linksByVertex!.get(end);
          if (list) list.push(2 * index, 2 * index + 1);
          else this.linksByVertex!.set(end, [2 * index, 2 * index + 1]);
        }
      });
    }
    return this.linksByVertex.get(vertex) ?? [];
  }

  private ownLoad(item: Item): number {
    if (item.kind === 'switch') return this.hostLoad(item.id);
    return item.hosts.reduce((most, host) => Math.max(most, this.hostLoad(host)), 0);
  }

  private itemTip(item: Item, load: number): string {
    const { run } = this.app;
    if (item.kind === 'switch') return `${item.name}\n${count(this.hostLinks(item.id).length / 2)} ports, the busiest ${share(load)}\nClick to come closer`;
    const gpus = item.kind === 'node' ? run.meta.nodes[item.id]! : null;
    const what = gpus ? `${gpus.ranks.length} × ${gpus.gpu ?? 'GPU'}, ranks ${gpus.ranks[0]} to ${gpus.ranks[gpus.ranks.length - 1]}\n` : '';
    return `${item.name}\n${what}busiest port ${share(load)}\nClick for its part of the step`;
  }

  private bundleTip(each: Bundle): string {
    const links = each.there.length;
    const mean = (channels: number[]) => channels.reduce((sum, channel) => sum + (this.loads?.share[channel] ?? 0), 0) / channels.length;
    return `${each.a.name} – ${each.b.name}\n${links === 1 ? 'one link' : `${links} links`} of ${rate(each.capacity / links)}\n${each.a.name} → ${each.b.name} ${share(mean(each.there))}\n${each.b.name} → ${each.a.name} ${share(mean(each.back))}`;
  }

  private shareOf(each: Bundle): number {
    const { loads } = this;
    if (!loads) return 0;
    let there = 0;
    let back = 0;
    for (const channel of each.there) there += loads.share[channel]!;
    for (const channel of each.back) back += loads.share[channel]!;
    return Math.max(there, back) / each.there.length;
  }

  private busier(each: Bundle): number {
    const of = (channel: number) => this.loads?.share[channel] ?? 0;
    return [...each.there, ...each.back].reduce((best, channel) => (of(channel) > of(best) ? channel : best));
  }

  private isChosen(each: Bundle): boolean {
    const { link } = this.app.view;
    return link !== null && (each.there.includes(link) || each.back.includes(link));
  }

  private drawChart(plane: TimePlane): void {
    const { link } = this;
    const { run, view } = this.app;
    const table = this.load.window(run, view.from, view.to, { most: MOST_ROWS });
    if (link === null || !table || !run.meta.bins) return;
    drawLink(plane, table, link, run.meta.bins.width * binsPerRow(table), run.channel(link).rate);
  }
}

/** Places of the largest values, largest first. Of very many only those in reach are sorted: this runs in every frame. */
function largest(values: Float64Array, most: number): number[] {
  let floor = -Infinity;
  if (values.length > 4 * most) {
    const top = values.reduce((high, each) => Math.max(high, each), 0);
    const counts = new Uint32Array(257);
    for (const each of values) counts[Math.floor((each / Math.max(top, 1e-12)) * 256)]!++;
    let seen = 0;
    let bucket = 256;
    while (bucket > 0 && (seen += counts[bucket]!) < most) bucket--;
    floor = (bucket / 256) * top;
  }
  const places: number[] = [];
  for (let place = 0; place < values.length; place++) if (values[place]! >= floor) places.push(place);
  return places.sort((a, b) => values[b]! - values[a]!).slice(0, most);
}

function drawLink(plane: TimePlane, table: Table, link: number, width: number, capacity: number): void {
  const { context, left, right, bottom } = plane;
  const { x } = plane.scale;
  const colours = palette();
  const top = 12;
  const room = bottom - top;
  context.save();
  context.beginPath();
  context.rect(left, 0, right - left, bottom + 1);
  context.clip();
  const full = (capacity / 8) * (width / 1e12);
  for (const { bin, value } of seriesOf(table, link, 'bytes')) {
    const from = x(bin * width);
    const load = Math.min(1, value / full);
    context.fillStyle = loadColour(load);
    context.globalAlpha = 0.55;
    context.fillRect(from, bottom - load * room, Math.max(1, x((bin + 1) * width) - from), load * room);
  }
  context.globalAlpha = 1;
  const queue = seriesOf(table, link, 'queue');
  const deepest = queue.reduce((most, { value }) => Math.max(most, value), 0);
  if (deepest > 0) {
    context.strokeStyle = colours.ink;
    context.lineWidth = 1.25;
    context.beginPath();
    let before = -2;
    for (const { bin, value } of queue) {
      const y = bottom - (value / deepest) * room * 0.96;
      if (bin !== before + 1) context.moveTo(x(bin * width), bottom);
      context.lineTo(x((bin + 0.5) * width), y);
      before = bin;
    }
    context.stroke();
  }
  ticksOf(plane, seriesOf(table, link, 'marks'), width, CATEGORY.orange, 0);
  ticksOf(plane, seriesOf(table, link, 'paused'), width, CATEGORY.purple, 5);
  context.restore();
  context.fillStyle = colours.quiet;
  context.font = SMALL;
  context.textAlign = 'right';
  context.fillText('100 %', left - 8, top + 4);
  context.fillText('0', left - 8, bottom - 4);
  if (deepest > 0) {
    const queue = `longest queue ${bytes(deepest)}`;
    const wide = context.measureText(queue).width;
    context.globalAlpha = 0.8;
    context.fillStyle = colours.panel;
    context.fillRect(right - wide - 3, top - 5, wide + 6, 18);
    context.globalAlpha = 1;
    context.fillStyle = colours.ink;
    context.fillText(queue, right, top + 4);
  }
  context.textAlign = 'left';
}

function ticksOf(plane: TimePlane, rows: { bin: number; value: number }[], width: number, colour: string, y: number): void {
  plane.context.fillStyle = colour;
  for (const { bin, value } of rows) {
    if (value > 0) plane.context.fillRect(plane.scale.x(bin * width), y, Math.max(1, plane.scale.x((bin + 1) * width) - plane.scale.x(bin * width)), 4);
  }
}

/** Bundles that are drawn as one, between two boxes. */
interface Strand {
  name: string;
  /** Between servers and leaves: drawn as wide as the two are. */
  inPod: boolean;
  upper: Box;
  lower: Box;
  bundles: number[];
}

interface Box {
  x: number;
  y: number;
  w: number;
  h: number;
}

/** Inside a pod all bundles between servers and leaves are one; above it all between the pod's leaves and one switch. */
function strandsOf({ items, bundles }: Layout): Strand[] {
  const pods = new Map<string, Box>();
  const podOf = (item: Item) => `${item.band} ${item.pod}`;
  for (const item of items) {
    const box = pods.get(podOf(item));
    if (!box) pods.set(podOf(item), { x: item.x, y: item.y, w: item.w, h: item.h });
    else {
      const [right, low] = [Math.max(box.x + box.w, item.x + item.w), Math.max(box.y + box.h, item.y + item.h)];
      box.x = Math.min(box.x, item.x);
      box.y = Math.min(box.y, item.y);
      box.w = right - box.x;
      box.h = low - box.y;
    }
  }
  const found = new Map<string, Strand>();
  bundles.forEach(({ a, b }, index) => {
    const [upper, lower] = a.y <= b.y ? [a, b] : [b, a];
    const inPod = upper.band <= 1;
    const key = `${inPod ? podOf(upper) : upper.id} ${podOf(lower)}`;
    let strand = found.get(key);
    if (!strand) {
      const name = inPod ? `pod ${lower.pod}: servers – leaves` : `${upper.name} – pod ${lower.pod}`;
      found.set(key, (strand = { name, inPod, upper: inPod ? pods.get(podOf(upper))! : upper, lower: pods.get(podOf(lower))!, bundles: [] }));
    }
    strand.bundles.push(index);
  });
  return [...found.values()];
}

/** Draws a bundle as a line that leaves and arrives upright; returns its middle. */
function draw(context: CanvasRenderingContext2D, { a, b }: Bundle, aside = 0): { x: number; y: number } {
  const [upper, lower] = a.y <= b.y ? [a, b] : [b, a];
  const from = { x: upper.x + upper.w / 2 + aside, y: upper.y + upper.h };
  const to = { x: lower.x + lower.w / 2 + aside, y: lower.y };
  context.beginPath();
  if (upper.y === lower.y) {
    const low = from.y + Math.min(60, 12 + Math.abs(from.x - to.x) / 8);
    context.moveTo(from.x, from.y);
    context.quadraticCurveTo((from.x + to.x) / 2, low * 2 - from.y, to.x, from.y);
    context.stroke();
    return { x: (from.x + to.x) / 2, y: low };
  }
  const bend = (to.y - from.y) * 0.45;
  context.moveTo(from.x, from.y);
  context.bezierCurveTo(from.x, from.y + bend, to.x, to.y - bend, to.x, to.y);
  context.stroke();
  return { x: (from.x + to.x) / 2, y: (from.y + to.y) / 2 };
}

function left(width: number): number {
  return width >= 500 ? LEFT : 0;
}

/** A name, or its number where names of its kind do not fit: all of a band alike. */
function shorter(name: string, room: number, longest: number): string {
  return room < longest * LETTER + 8 ? (/(\d[\d.]*)$/.exec(name)?.[1] ?? name) : name;
}
