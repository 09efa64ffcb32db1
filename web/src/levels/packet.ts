// Level 7: one packet: its way with the wait at each hop to scale, and its headers byte by byte.
import type { App } from '../app';
import { absent, fill, make } from '../draw/dom';
import { CATEGORY, palette } from '../draw/palette';
import { clipped, Plane, SMALL } from '../draw/plane';
import { TimePlane } from '../draw/time-plane';
import { Feed } from '../model/feed';
import type { Hop, PacketStory } from '../model/meta';
import type { View } from '../model/view';
import { column, NONE, type Table } from '../source/block';
import { isData, opcodeName } from '../words/opcodes';
import { bytes, count, time } from '../words/units';
import type { Level, Scene } from './level';

const MOST = 3000;

export const packet: Level = {
  id: 'packet',
  title: 'The packet',
  lead: 'Its way from [[NIC]] to NIC: how long it waited where, and what changed. Switches rewrite addresses of the next hop, count down the [[TTL]] and may mark [[ECN]]; the [[ICRC]] stays as it was. ← and → go to the packet before and after.',
  make: (app) => new PacketScene(app),
};

class PacketScene implements Scene {
  readonly root: HTMLElement;
  private feed: Feed;
  private strip: TimePlane;
  private way: Plane;
  private headline = make('h2', {});
  private buttons = make('div', { class: 'row' });
  private kept = make('p', { class: 'note' });
  private hops = make('div', { class: 'numbers panel' });
  private headers = make('div', { class: 'columns' });
  private story: PacketStory | null = null;
  private asked = '';

  constructor(private app: App) {
    this.feed = new Feed('packets', () => app.redraw());
    this.strip = new TimePlane(app, {
      title: 'Packets of this connection',
      note: 'from sending to receiving; a click chooses one',
      height: 92,
      left: () => 8,
      draw: (plane) => this.drawStrip(plane),
      version: () => `${this.rows()?.rows} ${this.feed.version} ${app.view.packet} ${app.view.host} ${app.view.queuePair}`,
    });
    this.way = new Plane(app, {
      title: 'Its way, to scale',
      note: app.run.isLive ? 'time from NIC to NIC, the kernel’s included; what is between them is not known from a live run' : 'time; good: no orange, which is waiting in a queue',
      height: 84,
      draw: (plane) => this.drawWay(plane),
    });
    const has = app.run.has('packets');
    this.root = make(
      'div',
      {},
      has ? null : absent('This run was calculated or recorded without packets. One with packets:', 'railnet sim scenarios/incast.toml --record run.rail && railnet view run.rail'),
      make('div', { class: 'row' }, this.headline, this.buttons),
      this.way.root,
      this.hops,
      this.strip.root,
      this.kept,
      this.headers,
    );
    if (!has) for (const part of [this.way.root, this.hops, this.strip.root, this.headers]) part.hidden = true;
  }

  show(): void {
    const { app } = this;
    const { followed } = app.run;
    if (followed && app.view.packet === null && app.view.queuePair === null) return app.go({ host: followed.host, queuePair: followed.queue_pair });
    const table = this.rows();
    if (table && app.view.packet === null && table.rows > 0) return app.go(this.suited(table));
    if (app.view.packet !== null) this.ask(app.view.packet);
    const kept = app.run.keptOf(app.view.host, app.view.queuePair);
    const text = kept && `${kept}.`;
    if (this.kept.textContent !== text) this.kept.textContent = text;
    this.way.paint();
    this.strip.paint();
  }

  step(direction: number): boolean {
    const table = this.rows();
    if (!table || table.rows === 0) return false;
    const names = rowNames(table);
    const { source, view } = this.app;
    let next = names.indexOf(view.packet ?? -1) + direction;
    // A report has the bytes of some packets only: the others are passed over.
    while (next >= 0 && next < table.rows && !source.tells(this.app.run.index, names[next]!)) next += direction;
    if (next < 0 || next >= table.rows) return true;
    this.app.moveTo(column(table, 'sent')[next]!);
    this.app.go({ packet: names[next]! });
    return true;
  }

  private rows(): Table | null {
    const { run, view } = this.app;
    const mine = view.host !== null && view.queuePair !== null ? { host: view.host, queue_pair: view.queuePair } : {};
    return this.feed.window(run, view.from, view.to, { ...mine, most: MOST });
  }

  /** A packet with data near the moment, rather one that was marked. */
  private suited(table: Table): Partial<View> {
    const [sent, opcode, marked] = [column(table, 'sent'), column(table, 'opcode'), column(table, 'marked')];
    const names = rowNames(table);
    let best = 0;
    let score = -Infinity;
    for (let row = 0; row < table.rows; row++) {
      const worth = (this.app.source.tells(this.app.run.index, names[row]!) ? 4 : 0) + (isData(opcode[row]!) ? 2 : 0) + (marked[row] ? 1 : 0) - Math.abs(sent[row]! - this.app.view.at) / this.app.run.duration;
      if (worth > score) [score, best] = [worth, row];
    }
    return { packet: names[best]!, host: column(table, 'host')[best]!, queuePair: column(table, 'queue_pair')[best]! };
  }

  private ask(row: number): void {
    const { app } = this;
    const key = `${app.run.index} ${row}`;
    if (key === this.asked) return;
    this.asked = key;
    app.run.packet(row).then(
      (story) => this.take(key, story, ''),
      (error: unknown) => this.take(key, null, String(error)),
    );
  }

  private take(key: string, story: PacketStory | null, error: string): void {
    if (key !== this.asked) return;
    this.story = story;
    const { app } = this;
    if (!story) {
      this.headline.textContent = `Packet ${app.view.packet}`;
      fill(this.headers, absent(error || (app.source.canRerun ? 'There is no such packet in this run.' : 'This report has the headers of some packets only; this one is not among them. railnet view shows all that were recorded.')));
      fill(this.hops);
    } else {
      this.headline.textContent = story.words || `Packet ${story.row}`;
      fill(this.hops, ...story.hops.map((hop, index) => this.hop(story, hop, index)), this.arrivalCard(story));
      const untold = 'This report has the headers and bytes of some packets only, this one’s way but not its bytes. railnet view has them of all that were recorded.';
      if (story.layers.length === 0 && !app.source.canRerun) fill(this.headers, absent(untold));
      else fill(this.headers, layersOf(story), hexOf(story));
    }
    fill(
      this.buttons,
      make('button', { click: () => this.step(-1) }, '‹ before'),
      make('button', { click: () => this.step(1) }, 'after ›'),
      story?.answer ? make('button', { click: () => app.go({ packet: story.answer!.row }) }, 'its answer') : null,
      story?.message ? make('button', { click: () => app.open('completion', ended(story.message!)) }, 'its completion') : null,
    );
    app.redraw();
  }

  private hop(story: PacketStory, hop: Hop, index: number): HTMLElement {
    const start = came(story.hops[0]!);
    const wait = hop.left - came(hop);
    return make(
      'div',
      { class: 'number' },
      make('h3', {}, hop.name),
      make('span', { class: 'what' }, index === 0 ? `sent at ${time(hop.left)}` : `came at +${time(came(hop) - start)}`),
      index === 0 ? null : make('span', { class: 'what' }, wait > 0 ? `waited ${time(wait)}` : 'did not wait'),
      this.app.run.isLive ? null : make('span', { class: 'why' }, `${bytes(hop.waiting)} behind it`),
      ...hop.changes.map((change) => make('span', { class: 'why mono' }, change)),
    );
  }

  /** The name of the NIC that it is for, where that is known. */
  private receiver(): string | null {
    const table = this.rows();
    const row = table ? rowNames(table).indexOf(this.app.view.packet ?? -1) : -1;
    const to = table && row >= 0 ? column(table, 'to')[row]! : NONE;
    return to === NONE ? null : this.app.run.vertexName(to);
  }

  private arrivalCard(story: PacketStory): HTMLElement {
    const name = this.receiver() ?? 'its receiver';
    const start = story.hops[0] ? came(story.hops[0]) : 0;
    const what = story.received === null ? 'it never came' : `all of it there at +${time(story.received - start)}`;
    return make('div', { class: 'number' }, make('h3', {}, name), make('span', { class: 'what' }, what));
  }

  private drawWay(plane: Plane): void {
    const { story } = this;
    if (!story || story.hops.length === 0) return;
    const { context, width } = plane;
    const colours = palette();
    const start = came(story.hops[0]!);
    const end = Math.max(start + 1, story.received ?? story.hops[story.hops.length - 1]!.left);
    const x = (at: number) => 4 + ((at - start) / (end - start)) * (width - 8);
    const top = 44;
    story.hops.forEach((hop, index) => {
      const next = story.hops[index + 1] ? came(story.hops[index + 1]!) : story.received;
      const wait: [number, number] = [x(came(hop)), x(hop.left)];
      context.fillStyle = CATEGORY.orange;
      if (hop.left > came(hop)) context.fillRect(wait[0], top, Math.max(1, wait[1] - wait[0]), 26);
      plane.hits.push({ x: wait[0] - 2, y: top, w: Math.max(4, wait[1] - wait[0]), h: 26, tip: `${hop.name}: waited ${time(hop.left - came(hop))}, ${bytes(hop.waiting)} behind it` });
      if (next !== null) {
        context.fillStyle = CATEGORY.sky;
        context.fillRect(wait[1], top + 9, Math.max(1, x(next) - wait[1] - 1), 8);
        plane.hits.push({ x: wait[1], y: top, w: x(next) - wait[1], h: 26, tip: `on the wire to ${story.hops[index + 1]?.name ?? 'its receiver'}: ${time(next - hop.left)}` });
      }
      context.strokeStyle = colours.ink;
      context.lineWidth = 1.5;
      context.beginPath();
      context.arc(wait[0], top + 13, 4, 0, 7);
      context.fillStyle = colours.panel;
      context.fill();
      context.stroke();
    });
    if (story.received !== null) {
      context.beginPath();
      context.arc(x(story.received), top + 13, 4, 0, 7);
      context.fillStyle = colours.ink;
      context.fill();
    }
    this.nameHops(plane, story, x, top);
    const waited = story.hops.reduce((sum, hop) => sum + hop.left - came(hop), 0);
    const took = this.app.run.isLive ? time(end - start) : `${time(end - start)}, ${time(waited)} of it waiting`;
    plane.title = story.received === null ? 'Its way, to scale: it never arrived' : `Its way, to scale: ${took}`;
  }

  private nameHops(plane: Plane, story: PacketStory, x: (at: number) => number, top: number): void {
    const { context, width } = plane;
    context.font = SMALL;
    context.fillStyle = palette().quiet;
    const free = [0, 0];
    const names: [string, number][] = story.hops.map((hop) => [hop.name, x(came(hop))]);
    if (story.received !== null) names.push([this.receiver() ?? 'received', x(story.received)]);
    names.forEach(([name, place]) => {
      const text = clipped(context, name, 160);
      const wide = context.measureText(text).width;
      const at = Math.min(Math.max(0, place - 4), width - wide);
      // Names that would lie on each other take the second line, then none.
      const line = at >= free[0]! ? 0 : at >= free[1]! ? 1 : -1;
      if (line < 0) return;
      context.fillText(text, at, top - 12 - line * 17);
      free[line] = at + wide + 10;
    });
  }

  private drawStrip(plane: TimePlane): void {
    const table = this.rows();
    if (!table) return;
    const { context, scale, bottom } = plane;
    const { app } = this;
    const [sent, received, opcode, psn, marked] = ['sent', 'received', 'opcode', 'psn', 'marked'].map((name) => column(table, name));
    const names = rowNames(table);
    const colours = palette();
    const lanes = Math.max(1, Math.floor(bottom / 6));
    for (let row = 0; row < table.rows; row++) {
      const x = scale.x(sent![row]!);
      const lost = !Number.isFinite(received![row]!);
      const wide = lost ? 3 : Math.max(2, scale.x(received![row]!) - x);
      const y = (row % lanes) * 6 + 1;
      const chosen = names[row] === app.view.packet;
      context.fillStyle = chosen ? colours.accent : lost ? CATEGORY.vermilion : marked![row] ? CATEGORY.orange : isData(opcode![row]!) ? CATEGORY.blue : CATEGORY.green;
      context.fillRect(x, chosen ? y - 1 : y, wide, chosen ? 6 : 4);
      if (x + wide < 0 || x > plane.width) continue;
      plane.hits.push({
        x,
        y,
        w: wide,
        h: 4,
        tip: () => `${opcodeName(opcode![row]!)} · PSN ${psn![row]}${lost ? ' · lost' : ` · ${time(received![row]! - sent![row]!)}`}`,
        open: () => app.go({ packet: names[row]!, at: sent![row]! }),
      });
    }
    if (table.rows === 0) {
      context.fillStyle = colours.quiet;
      context.fillText('No packet of this connection was kept in this window.', 10, 30);
    }
  }
}

/** The message that a packet was part of, in a window of its own. */
function ended(message: Record<string, number | null>): Partial<View> {
  const posted = message['posted'] ?? 0;
  const until = message['completed'] ?? posted + 1e9;
  const margin = (until - posted) * 0.1;
  return {
    host: message['host'] ?? 0,
    queuePair: message['queue_pair'] ?? 0,
    message: message['first'] ?? 0,
    from: Math.max(0, posted - margin),
    to: until + margin,
    at: posted,
  };
}

/** When it was at a hop: the first one made it when it sent it. */
function came(hop: Hop): number {
  return hop.arrived ?? hop.left;
}

function rowNames(table: Table): number[] {
  const rows = table.columns['row'];
  return rows ? Array.from(rows) : Array.from({ length: table.rows }, (_, row) => row);
}

/** Headers as boxes inside each other, as they are inside each other on the wire. */
function layersOf(story: PacketStory): HTMLElement {
  const outer = make('div', {});
  let into: HTMLElement = outer;
  for (const layer of story.layers) {
    const box = make('div', { class: 'layer' }, make('h3', {}, layer.name, make('span', {}, `${layer.to - layer.from} B`)));
    for (const field of layer.fields) {
      box.append(
        make(
          'div',
          { class: 'field', tabindex: '0', 'data-from': String(field.from), 'data-to': String(field.to) },
          make('span', {}, field.name),
          make('span', { class: 'mono' }, field.value),
          make('span', { class: 'place' }, `${field.to - field.from} B`),
          field.text ? make('span', { class: 'text' }, field.text) : null,
        ),
      );
    }
    into.append(box);
    into = box;
  }
  const light = (event: Event, on: boolean) => {
    const row = event.target instanceof Element ? event.target.closest<HTMLElement>('.field') : null;
    if (!row) return;
    row.classList.toggle('lit', on);
    const [from, to] = [Number(row.dataset['from']), Number(row.dataset['to'])];
    document.querySelectorAll<HTMLElement>('.hex span').forEach((byte, index) => byte.classList.toggle('lit', on && index >= from && index < to));
  };
  for (const [kind, on] of [['pointerover', true], ['focusin', true], ['pointerout', false], ['focusout', false]] as const) {
    outer.addEventListener(kind, (event) => light(event, on));
  }
  return make('div', {}, make('h2', {}, 'Headers, layer by layer'), outer);
}

function hexOf(story: PacketStory): HTMLElement {
  const grid = make('div', { class: 'hex', 'aria-label': 'Bytes' });
  const hex = story.bytes ?? '';
  const total = hex.length / 2;
  const fields = story.layers.flatMap((layer) => layer.fields.map((field) => ({ layer: layer.name, ...field })));
  for (let at = 0; at < total; at++) {
    if (at % 16 === 0) grid.append(make('i', {}, at.toString(16).padStart(4, '0')));
    const owner = fields.find((field) => at >= field.from && at < field.to);
    const byte = make('span', owner ? { 'data-tip': `${owner.layer}, ${owner.name}: ${owner.value}` } : {}, hex.slice(2 * at, 2 * at + 2));
    if (owner) {
      const mark = (on: boolean) => () => {
        document.querySelectorAll<HTMLElement>('.field').forEach((row) => {
          if (Number(row.dataset['from']) === owner.from && Number(row.dataset['to']) === owner.to) row.classList.toggle('lit', on);
        });
      };
      byte.addEventListener('pointerenter', mark(true));
      byte.addEventListener('pointerleave', mark(false));
    }
    grid.append(byte);
  }
  return make('div', { class: 'beside' }, make('h2', {}, 'Bytes'), make('div', { class: 'panel' }, grid, make('p', { class: 'note' }, `The first ${count(total)} of ${count(story.length ?? total)} bytes, as they left the sender.`)));
}
