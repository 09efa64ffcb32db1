// Level 6: one connection: how it was made, its sequence numbers over time, its rate.
import type { App } from '../app';
import { absent, fill, make, words } from '../draw/dom';
import { ticks } from '../draw/axis';
import { CATEGORY, palette } from '../draw/palette';
import { SMALL } from '../draw/plane';
import { TimePlane } from '../draw/time-plane';
import { Feed } from '../model/feed';
import { column, NONE, type Table } from '../source/block';
import { ACKNOWLEDGE, isData, opcodeName } from '../words/opcodes';
import { bytes, count, rate, time } from '../words/units';
import { answersOf, drawMessages, tellAnswers } from './connection-credits';
import { setUp } from './connection-setup';
import type { Level, Scene } from './level';

const MOST_PACKETS = 12_000;
const MOST_MESSAGES = 20_000;
const MOST_CONNECTIONS = 2000;
const PSN_WRAP = 1 << 24;

export interface Connection {
  host: number;
  queuePair: number;
  to: number;
  target: number;
  packets: number;
  bytes: number;
  resent: number;
  /** Its first sequence number, and the memory that it writes to first; none where its packets named none. */
  first: number | null;
  region: { address: number; rkey: number } | null;
}

export const connection: Level = {
  id: 'connection',
  title: 'The connection',
  lead: 'Two [[queue pair|queue pair]]s that know each other. Each packet has the next [[PSN]]; the answer says up to where all has arrived. A step back is something sent again. Click a packet to follow it.',
  both: 'stacked',
  make: (app) => new ConnectionScene(app),
};

class ConnectionScene implements Scene {
  readonly root: HTMLElement;
  private connections: Feed;
  private data: Feed;
  private answers: Feed;
  private messages: Feed;
  private rates: Feed;
  private incidents: Feed;
  private choice = make('select', { 'aria-label': 'Connection' });
  private whole = make('button', { click: () => this.follow() }, 'the one that is here whole');
  private facts = make('p', { class: 'note' });
  private psn: TimePlane;
  private credits: TimePlane;
  private said = make('p', { class: 'note' });
  private every: Feed;
  private everyAnswer: Feed;
  private rate: TimePlane;
  private made = make('div', { class: 'panel' });
  private shownSetUp = '';
  private listed = '';
  private current: Connection | null = null;

  constructor(private app: App) {
    const feed = (table: string) => new Feed(table, () => app.redraw());
    this.connections = feed('connections');
    this.data = feed('packets');
    this.answers = feed('packets');
    this.messages = feed('messages');
    this.rates = feed('rates');
    this.incidents = feed('incidents');
    this.psn = new TimePlane(app, {
      title: 'Sequence numbers over time',
      note: '[[PSN]]s; steeper is faster. Good: one straight rise, answers close behind, nothing red',
      height: 320,
      left: () => 96,
      draw: (plane) => this.drawNumbers(plane),
      version: () => this.version(),
    });
    this.rate = new TimePlane(app, {
      title: 'Allowed rate',
      note: 'Gbps, set by congestion control; a tick is a [[CNP]]. Good: high and calm',
      height: 150,
      left: () => 96,
      draw: (plane) => this.drawRate(plane),
      version: () => this.version(),
    });
    this.every = feed('messages');
    this.everyAnswer = feed('packets');
    this.credits = new TimePlane(app, {
      title: 'Messages and credits',
      note: `${app.run.has('messages') ? 'messages handed to the NIC (blue), ' : 'messages '}done as [[ACK]]s say (green, their [[MSN]]), allowed by their [[credits]] (purple). Good: all rise together`,
      height: 150,
      left: () => 96,
      draw: (plane) => this.drawCredits(plane),
      version: () => `${this.version()} ${this.every.version} ${this.everyAnswer.version}`,
    });
    this.choice.addEventListener('change', () => {
      const [host, queuePair] = this.choice.value.split(' ').map(Number);
      app.go({ host: host!, queuePair: queuePair!, packet: null, message: null });
    });
    const legend = make('div', { class: 'legend' });
    for (const [colour, text] of [
      [CATEGORY.blue, 'sent'],
      [CATEGORY.sky, 'received'],
      [CATEGORY.green, 'acknowledged'],
      [CATEGORY.vermilion, 'sent again, NAK'],
      [CATEGORY.orange, 'marked by a switch'],
    ] as const) {
      const box = make('i', {});
      box.style.background = colour;
      legend.append(make('span', {}, box, text));
    }
    const has = app.run.has('connections') || app.run.has('packets');
    this.root = make(
      'div',
      {},
      has ? null : absent('This run was calculated: there were no packets, so no connection to look into. One with packets:', 'railnet sim scenarios/incast.toml --record run.rail && railnet view run.rail'),
      make(
        'div',
        { class: 'row' },
        this.choice,
        ...(app.run.has('messages')
          ? [make('button', { click: () => this.message(-1) }, '‹ message'), make('button', { click: () => this.message(1) }, 'message ›')]
          : []),
        make('button', { click: () => app.window(0, app.run.duration) }, 'whole run'),
        this.whole,
      ),
      this.facts,
      legend,
      this.psn.root,
      this.rate.root,
      this.credits.root,
      this.said,
      this.made,
    );
    // What processes see of their NICs has no rates.
    if (app.run.isLive) this.rate.root.hidden = true;
    if (!has) for (const part of [this.choice, legend, this.psn.root, this.rate.root, this.credits.root, this.said, this.made]) part.hidden = true;
  }

  show(): void {
    const { app } = this;
    const table = this.connections.want(app.run, { most: MOST_CONNECTIONS });
    if (table && table.rows > 0) {
      this.current = this.pick(table);
      if (this.current && app.view.queuePair === null) app.go({ host: this.current.host, queuePair: this.current.queuePair });
      this.list(table);
      this.tell();
    }
    this.psn.paint();
    this.rate.paint();
    this.credits.paint();
    this.showSetUp();
  }

  private version(): string {
    this.ask();
    const feeds = [this.data, this.answers, this.messages, this.rates, this.incidents];
    return `${feeds.map((feed) => feed.version).join(' ')} ${this.current?.host} ${this.current?.queuePair}`;
  }

  /** The rows for both charts. */
  private ask(): { data: Table | null; answers: Table | null; messages: Table | null; rates: Table | null; incidents: Table | null } | null {
    const { current, app } = this;
    if (!current) return null;
    const { run, view } = app;
    const here = { host: current.host, queue_pair: current.queuePair };
    return {
      data: this.data.window(run, view.from, view.to, { ...here, most: MOST_PACKETS }),
      answers: current.to === NONE ? null : this.answers.window(run, view.from, view.to, { host: current.to, queue_pair: current.target, most: MOST_PACKETS }),
      messages: this.messages.window(run, view.from, view.to, { ...here, most: MOST_PACKETS }),
      rates: this.rates.want(run, { ...here, most: 8000 }),
      incidents: this.incidents.window(run, view.from, view.to, { queue_pair: current.queuePair, most: 4000 }),
    };
  }

  private pick(table: Table): Connection | null {
    const { host, queuePair, rank } = this.app.view;
    const all = connectionsOf(table);
    const exact = all.find((each) => each.host === host && each.queuePair === queuePair);
    if (exact) return exact;
    const target = rank === null ? null : this.app.run.meta.ranks[rank]?.host;
    const { followed } = this.app.run;
    const whole = all.filter((each) => each.host === followed?.host && each.queuePair === followed.queue_pair);
    const telling = [...whole, ...byWeight(all)];
    return telling.find((each) => each.host === host && each.to === target) ?? telling.find((each) => each.host === host) ?? telling[0] ?? null;
  }

  /** Goes to the connection that is here whole. */
  private follow(): void {
    const { followed } = this.app.run;
    if (followed) this.app.go({ host: followed.host, queuePair: followed.queue_pair, packet: null, message: null });
  }

  /** Goes to the message before the moment, or after it: all of it is then on screen. */
  private message(direction: number): void {
    const { current, app } = this;
    const table = current && this.every.want(app.run, { host: current.host, queue_pair: current.queuePair, most: MOST_MESSAGES });
    if (!table || table.rows === 0) return;
    const [started, completed, packets] = ['started', 'completed', 'packets'].map((name) => column(table, name));
    const rows = Array.from({ length: table.rows }, (_, row) => row).filter((row) => Number.isFinite(started![row]!));
    // Those that only say that there is room are not what one looks for, unless there is nothing else.
    const large = rows.filter((row) => packets![row]! > 1);
    const all = (large.length > 0 ? large : rows).sort((a, b) => started![a]! - started![b]!);
    const next = direction > 0 ? all.find((row) => started![row]! > app.view.at) : all.findLast((row) => started![row]! < app.view.at);
    const row = next ?? all[direction > 0 ? all.length - 1 : 0]!;
    const end = Number.isFinite(completed![row]!) ? completed![row]! : app.run.duration;
    const margin = (end - started![row]!) / 10;
    app.go({ at: started![row]! });
    app.window(started![row]! - margin, end + margin);
  }

  private list(table: Table): void {
    const { run } = this.app;
    const { current } = this;
    const key = `${table.rows} ${current?.host} ${current?.queuePair}`;
    if (key === this.listed || !current) return;
    this.listed = key;
    const shown = byWeight(connectionsOf(table)).slice(0, 200);
    if (!shown.some((each) => each.host === current.host && each.queuePair === current.queuePair)) shown.unshift(current);
    fill(
      this.choice,
      ...shown.map((each) =>
        make(
          'option',
          { value: `${each.host} ${each.queuePair}`, selected: each.host === current.host && each.queuePair === current.queuePair },
          `${run.vertexName(each.host)} QP ${each.queuePair} → ${each.to === NONE ? '?' : run.vertexName(each.to)} QP ${each.target} · ${bytes(each.bytes)}${each.resent > 0 ? `, ${count(each.resent)} sent again` : ''}${run.isFollowed(each.host, each.queuePair) ? ' · whole' : ''}`,
        ),
      ),
    );
  }

  private tell(): void {
    const { current } = this;
    if (!current) return;
    const { run } = this.app;
    const kept = run.keptOf(current.host, current.queuePair);
    const text = `${run.vertexName(current.host)} sent ${count(current.packets)} packets, ${bytes(current.bytes)}, ${count(current.resent)} of them again.${run.has('messages') ? ' Messages are the grey bands.' : ''}${kept ? ` ${kept}.` : ''}${run.isLive && (run.meta.kept?.notes?.length ?? 0) > 0 ? ' NICs noted their first packets only: what was sent after the last one here is not known.' : ''}`;
    if (this.facts.textContent !== text) this.facts.textContent = text;
    this.whole.hidden = run.followed === null || run.isFollowed(current.host, current.queuePair);
  }

  private drawNumbers(plane: TimePlane): void {
    const { current } = this;
    const rows = this.ask();
    if (!current || !rows) return;
    const { view } = this.app;
    const { data, answers, messages, incidents } = rows;
    const base = lowest(data, messages);
    if (base === null) {
      plane.context.fillStyle = palette().quiet;
      plane.context.fillText(this.data.waiting ? '' : 'Nothing of this connection in this window.', plane.left + 10, 40);
      return;
    }
    const offset = (psn: number) => (psn - base + PSN_WRAP) % PSN_WRAP;
    const range = extent(data, messages, offset, view.from, view.to);
    const { context, left, right, bottom, scale } = plane;
    const colours = palette();
    const y = (value: number) => bottom - 6 - ((value - range[0]) / Math.max(1, range[1] - range[0])) * (bottom - 18);
    context.font = SMALL;
    context.fillStyle = colours.quiet;
    context.textAlign = 'right';
    for (const mark of ticks(range[0], range[1], 5)) {
      context.fillText(count((base + mark) % PSN_WRAP), left - 8, y(mark));
      context.fillRect(left, Math.round(y(mark)), right - left, 0.5);
    }
    context.textAlign = 'left';
    context.save();
    context.beginPath();
    context.rect(left, 0, right - left, bottom);
    context.clip();
    if (messages) {
      const [started, completed, first, packets] = ['started', 'completed', 'first', 'packets'].map((name) => column(messages, name));
      context.fillStyle = colours.quiet;
      context.globalAlpha = 0.1;
      for (let row = 0; row < messages.rows; row++) {
        const until = Number.isFinite(completed![row]!) ? completed![row]! : view.to;
        const low = offset(first![row]!);
        const top = y(low + packets![row]!);
        context.fillRect(scale.x(started![row]!), top, Math.max(1, scale.x(until) - scale.x(started![row]!)), Math.max(1, y(low) - top));
      }
      context.globalAlpha = 1;
    }
    if (data) this.drawPackets(plane, data, offset, y);
    if (answers) {
      const [sent, psn, opcode] = ['received', 'psn', 'opcode'].map((name) => column(answers, name));
      for (let row = 0; row < answers.rows; row++) {
        if (opcode![row] !== ACKNOWLEDGE) continue;
        context.fillStyle = CATEGORY.green;
        context.fillRect(scale.x(sent![row]!) - 2, y(offset(psn![row]!)) - 2, 4, 4);
      }
    }
    if (incidents) this.drawIncidents(plane, incidents, current, offset, y);
    context.restore();
  }

  private drawPackets(plane: TimePlane, data: Table, offset: (psn: number) => number, y: (value: number) => number): void {
    const { context, scale } = plane;
    const { app } = this;
    const [sent, received, psn, opcode, transmission, marked, length] = ['sent', 'received', 'psn', 'opcode', 'transmission', 'marked', 'length'].map((name) => column(data, name));
    const names = data.columns['row'];
    const size = data.rows > 2000 ? 2 : 4;
    for (let row = 0; row < data.rows; row++) {
      if (!isData(opcode![row]!)) continue;
      const x = scale.x(sent![row]!);
      const at = y(offset(psn![row]!));
      const again = transmission![row]! > 0;
      if (Number.isFinite(received![row]!)) {
        context.fillStyle = marked![row] ? CATEGORY.orange : CATEGORY.sky;
        context.fillRect(scale.x(received![row]!) - size / 2, at - size / 2, size, size);
      }
      context.fillStyle = again ? CATEGORY.vermilion : CATEGORY.blue;
      context.fillRect(x - size / 2, at - size / 2, size, size);
      const packet = names ? names[row]! : row;
      if (x < plane.left || x > plane.right) continue;
      plane.hits.push({
        x: x - 3,
        y: at - 3,
        w: 6,
        h: 6,
        tip: () => `${opcodeName(opcode![row]!)} · PSN ${psn![row]} · ${count(length![row]!)} B\nsent ${time(sent![row]!)}${again ? `, try ${transmission![row]! + 1}` : ''}\n${Number.isFinite(received![row]!) ? `received after ${time(received![row]! - sent![row]!)}` : 'never received'}${marked![row] ? ', marked on the way' : ''}`,
        open: () => app.open('packet', { packet, at: sent![row]! }),
      });
    }
  }

  private drawIncidents(plane: TimePlane, incidents: Table, current: Connection, offset: (psn: number) => number, y: (value: number) => number): void {
    const { context, scale } = plane;
    const [when, kind, vertex, psn] = ['time', 'kind', 'vertex', 'psn'].map((name) => column(incidents, name));
    context.strokeStyle = CATEGORY.vermilion;
    context.lineWidth = 1.5;
    for (let row = 0; row < incidents.rows; row++) {
      if (kind![row] !== 12 && kind![row] !== 6) continue;
      if (vertex![row] !== current.host && vertex![row] !== current.to) continue;
      const x = scale.x(when![row]!);
      const at = y(offset(psn![row]!));
      context.beginPath();
      context.moveTo(x - 5, at - 5);
      context.lineTo(x + 5, at + 5);
      context.moveTo(x - 5, at + 5);
      context.lineTo(x + 5, at - 5);
      context.stroke();
      plane.hits.push({ x: x - 5, y: at - 5, w: 10, h: 10, tip: `${kind![row] === 12 ? 'NAK' : 'Sending again'} from PSN ${psn![row]}, ${time(when![row]!)}` });
    }
  }

  private drawRate(plane: TimePlane): void {
    const { current } = this;
    const rows = this.ask();
    if (!current || !rows) return;
    const { run } = this.app;
    const { rates: table, incidents } = rows;
    const { context, left, right, bottom, scale } = plane;
    const colours = palette();
    const line = Math.max(...run.meta.fabric.links.filter(({ a, b }) => a === current.host || b === current.host).map((each) => each.rate), 1);
    const y = (value: number) => bottom - 4 - (Math.min(value, line) / line) * (bottom - 18);
    context.font = SMALL;
    context.fillStyle = colours.quiet;
    context.textAlign = 'right';
    context.fillText(rate(line).replace(' Gbps', ''), left - 8, y(line));
    context.fillText('0', left - 8, y(0) - 4);
    context.textAlign = 'left';
    context.fillRect(left, Math.round(y(line)), right - left, 0.5);
    context.save();
    context.beginPath();
    context.rect(left, 0, right - left, bottom);
    context.clip();
    context.strokeStyle = CATEGORY.blue;
    context.lineWidth = 1.75;
    context.beginPath();
    let before = line;
    context.moveTo(scale.x(0), y(line));
    if (table) {
      const [when, value] = [column(table, 'time'), column(table, 'rate')];
      for (let row = 0; row < table.rows; row++) {
        const x = scale.x(when[row]!);
        context.lineTo(x, y(before));
        context.lineTo(x, y(value[row]!));
        before = value[row]!;
      }
    }
    context.lineTo(scale.x(run.duration), y(before));
    context.stroke();
    if (incidents) {
      const [when, kind] = [column(incidents, 'time'), column(incidents, 'kind')];
      context.fillStyle = CATEGORY.orange;
      for (let row = 0; row < incidents.rows; row++) if (kind[row] === 11) context.fillRect(scale.x(when[row]!) - 0.5, 0, 1, 6);
    }
    context.restore();
    if (table && table.rows === 0) {
      context.fillStyle = colours.quiet;
      context.fillText(right - left > 420 ? 'Its rate was never cut: nothing on its way was congested.' : 'Its rate was never cut.', left + 10, y(line) + 18);
    }
  }

  private drawCredits(plane: TimePlane): void {
    const { current, app } = this;
    const rows = this.ask();
    if (!current || !rows) return;
    const every = this.every.want(app.run, { host: current.host, queue_pair: current.queuePair, most: MOST_MESSAGES });
    const all = current.to === NONE ? null : this.everyAnswer.want(app.run, { host: current.to, queue_pair: current.target, most: MOST_PACKETS });
    // What is followed is whole, also in a report that leaves out others.
    const isWhole = (table: Table | null) => table !== null && (table.total === table.rows || app.run.isFollowed(current.host, current.queuePair));
    drawMessages(plane, isWhole(every) ? every : null, answersOf(isWhole(all) ? all : rows.answers));
    const { from, to } = app.view;
    // The last ones come after all is done.
    const seen = answersOf(rows.answers).filter(({ time }) => time >= from && (time <= to || to >= app.run.duration));
    const text = rows.answers && !this.answers.waiting ? tellAnswers(seen) : '';
    if (this.said.textContent !== text) this.said.textContent = text;
  }

  private showSetUp(): void {
    const { current, app } = this;
    if (!current) return;
    const key = `${current.host} ${current.queuePair} ${app.run.index}`;
    if (key === this.shownSetUp) return;
    this.shownSetUp = key;
    fill(this.made, make('h2', {}, 'How it was made'), make('p', { class: 'note' }, words('A moment: reading the first packet …')));
    void setUp(app, current).then((content) => {
      if (this.shownSetUp === key) fill(this.made, ...content);
    });
  }
}

export function connectionsOf(table: Table): Connection[] {
  const knows = table.columns['address'] !== undefined;
  const get = ['host', 'queue_pair', 'to', 'target', 'packets', 'bytes', 'resent', ...(knows ? ['first', 'address', 'rkey'] : [])].map((name) => column(table, name));
  return Array.from({ length: table.rows }, (_, row) => {
    const [host, queuePair, to, target, packets, size, resent, first, address, rkey] = get.map((values) => values[row]!);
    const region = knows && rkey !== NONE && Number.isFinite(address!) ? { address: address!, rkey: rkey! } : null;
    return { host: host!, queuePair: queuePair!, to: to!, target: target!, packets: packets!, bytes: size!, resent: resent!, first: knows && first !== NONE ? first! : null, region };
  });
}

/** First those on which something was sent again, then those that carry most. */
function byWeight(all: Connection[]): Connection[] {
  return [...all].sort((a, b) => Number(b.resent > 0) - Number(a.resent > 0) || b.bytes - a.bytes);
}

function lowest(data: Table | null, messages: Table | null): number | null {
  const firsts = messages && messages.rows > 0 ? column(messages, 'first') : null;
  if (firsts) return firsts[0]!;
  if (!data || data.rows === 0) return null;
  const [psns, opcodes] = [column(data, 'psn'), column(data, 'opcode')];
  // Numbers begin anywhere, and go round: what lies less than half of the circle before the first is lower. Answers have others.
  let first: number | null = null;
  let below = 0;
  for (let row = 0; row < data.rows; row++) {
    if (!isData(opcodes[row]!)) continue;
    first ??= psns[row]!;
    const ahead = (psns[row]! - first + PSN_WRAP) % PSN_WRAP;
    if (ahead > PSN_WRAP / 2) below = Math.max(below, PSN_WRAP - ahead);
  }
  return first === null ? null : (first - below + PSN_WRAP) % PSN_WRAP;
}

function extent(data: Table | null, messages: Table | null, offset: (psn: number) => number, from: number, to: number): [number, number] {
  let low = Infinity;
  let high = -Infinity;
  if (data) {
    const [psn, sent, opcode] = [column(data, 'psn'), column(data, 'sent'), column(data, 'opcode')];
    for (let row = 0; row < data.rows; row++) {
      if (!isData(opcode[row]!) || sent[row]! < from || sent[row]! > to) continue;
      low = Math.min(low, offset(psn[row]!));
      high = Math.max(high, offset(psn[row]!));
    }
  }
  if (messages) {
    const [first, packets, started] = [column(messages, 'first'), column(messages, 'packets'), column(messages, 'started')];
    for (let row = 0; row < messages.rows; row++) {
      if (!Number.isFinite(started[row]!) || started[row]! < from || started[row]! > to) continue;
      low = Math.min(low, offset(first[row]!));
      high = Math.max(high, offset(first[row]!) + packets[row]!);
    }
  }
  return high >= low ? [low, Math.max(high, low + 8)] : [0, 8];
}
