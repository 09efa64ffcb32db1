// Level 9: how one message ends: checks, DMA, last packet, answer, completion, poll, and what can go on then.
import type { App } from '../app';
import { absent, fill, make, words } from '../draw/dom';
import { CATEGORY, palette } from '../draw/palette';
import { TimePlane } from '../draw/time-plane';
import { Feed } from '../model/feed';
import { column, type Table } from '../source/block';
import type { View } from '../model/view';
import { ACKNOWLEDGE, opcodeName } from '../words/opcodes';
import { bytes, count, many, time } from '../words/units';
import { connectionsOf, type Connection } from './connection';
import type { Level, Scene } from './level';

const MOST = 4000;
const PSN_WRAP = 1 << 24;

export const completion: Level = {
  id: 'completion',
  title: 'Completion',
  lead: 'How one [[work request]] ends. No processor is asked until the last line but one: the [[NIC]]s do all of it, and the program finds a [[CQE]] when it looks.',
  make: (app) => new CompletionScene(app),
};

interface Message {
  posted: number;
  started: number;
  completed: number;
  host: number;
  queuePair: number;
  length: number;
  first: number;
  packets: number;
  sequence: number;
  chunk: number;
  step: number;
  status: number;
}

interface Event {
  name: string;
  who: string;
  text: string;
  time: number | null;
}

class CompletionScene implements Scene {
  readonly root: HTMLElement;
  private feed: Feed;
  private kept: Feed;
  private chart: TimePlane;
  private title = make('h2', {});
  private list = make('ol', { class: 'steps' });
  private message: Message | null = null;
  private asked = '';
  private events: Event[] = [];

  constructor(private app: App) {
    this.feed = new Feed('messages', () => app.redraw());
    this.kept = new Feed('packets', () => app.redraw());
    this.chart = new TimePlane(app, {
      title: 'Work requests of this connection',
      note: 'from post to completion; a click chooses one. Good: short, and never red',
      height: 120,
      left: () => 8,
      draw: (plane) => this.draw(plane),
      version: () => `${this.rows()?.rows} ${this.feed.version} ${this.message?.first} ${this.message?.posted}`,
    });
    const panel = make('div', { class: 'panel' }, make('div', { class: 'row' }, this.title, make('button', { click: () => this.comeCloser() }, 'Zoom to it')), this.list);
    this.chart.root.hidden = panel.hidden = !app.run.has('messages');
    this.root = make(
      'div',
      {},
      app.run.has('messages') ? null : absent('This run has no [[work request]]s: it was calculated, or recorded without packets. One with them:', 'railnet sim scenarios/allreduce-2-nodes.toml --record run.rail && railnet view run.rail'),
      this.chart.root,
      panel,
    );
  }

  show(): void {
    const table = this.rows();
    const kept = this.packets();
    const { view } = this.app;
    const { followed } = this.app.run;
    if (followed && view.queuePair === null) return this.app.go({ host: followed.host, queuePair: followed.queue_pair });
    if (kept && kept.rows > 0 && view.queuePair === null) return this.app.go(suited(kept, view.at));
    // Rows of before stay until others come: a choice is made from those that were asked for.
    if (table && table.rows > 0 && kept && !this.feed.waiting && !this.kept.waiting) {
      this.message = this.pick(table, kept);
      void this.tell(this.message);
    }
    const { at } = this.app.view;
    [...this.list.children].forEach((item, index) => {
      const when = this.events[index]?.time ?? null;
      item.classList.toggle('on', when !== null && when <= at);
    });
    this.chart.paint();
  }

  step(direction: number): boolean {
    const times = this.events.map((event) => event.time).filter((each): each is number => each !== null).sort((a, b) => a - b);
    const { at } = this.app.view;
    const next = direction > 0 ? times.find((each) => each > at + 0.5) : times.findLast((each) => each < at - 0.5);
    if (next === undefined) return false;
    this.app.moveTo(next);
    return true;
  }

  private rows(): Table | null {
    const { run, view } = this.app;
    const mine = view.host !== null && view.queuePair !== null ? { host: view.host, queue_pair: view.queuePair } : {};
    return this.feed.window(run, view.from, view.to, { ...mine, most: MOST });
  }

  private packets(): Table | null {
    const { run, view } = this.app;
    const mine = view.host !== null && view.queuePair !== null ? { host: view.host, queue_pair: view.queuePair } : {};
    return this.kept.window(run, view.from, view.to, { ...mine, most: 5 * MOST });
  }

  private pick(table: Table, kept: Table): Message {
    const { message } = this.app.view;
    // A message is known by the first sequence number that it has on its connection.
    const wanted = message ?? (this.message?.queuePair === this.app.view.queuePair ? this.message?.first : undefined);
    const first = column(table, 'first');
    if (wanted !== undefined) {
      for (let row = 0; row < table.rows; row++) if (first[row] === wanted) return at(table, row);
    }
    // One whose last packet was kept, of these the largest, of these the one closest to the moment.
    const [hosts, pairs, psns] = [column(kept, 'host'), column(kept, 'queue_pair'), column(kept, 'psn')];
    const known = new Set<string>();
    for (let row = 0; row < kept.rows; row++) known.add(`${hosts[row]} ${pairs[row]} ${psns[row]}`);
    const worth = (row: number): [number, number, number] => {
      const each = at(table, row);
      const whole = known.has(`${each.host} ${each.queuePair} ${(each.first + each.packets - 1) % PSN_WRAP}`);
      return [whole ? 1 : 0, each.length, -Math.abs(each.posted - this.app.view.at)];
    };
    let best = 0;
    let most = worth(0);
    for (let row = 1; row < table.rows; row++) {
      const other = worth(row);
      const differs = other.findIndex((each, index) => each !== most[index]);
      if (differs >= 0 && other[differs]! > most[differs]!) [best, most] = [row, other];
    }
    return at(table, best);
  }

  fit(): boolean {
    this.comeCloser();
    return this.message !== null;
  }

  /** Makes the life of this message fill the window, so that it can be played. */
  private comeCloser(): void {
    if (!this.message) return;
    const { posted, completed, first } = this.message;
    const until = Number.isFinite(completed) ? completed : posted + 1e9;
    const margin = (until - posted) * 0.1;
    this.app.go({ message: first, at: posted });
    this.app.window(posted - margin, until + margin);
  }

  private async tell(message: Message): Promise<void> {
    const { app } = this;
    const key = `${app.run.index} ${message.host} ${message.queuePair} ${message.posted} ${message.first}`;
    if (key === this.asked) return;
    this.asked = key;
    const events = await eventsOf(app, message);
    if (key !== this.asked) return;
    this.events = events;
    this.title.textContent = `${bytes(message.length)} from ${app.run.vertexName(message.host)}, QP ${message.queuePair}: ${many(message.packets, 'packet')}, PSN ${message.first}${message.packets > 1 ? ` to ${(message.first + message.packets - 1) % PSN_WRAP}` : ''}`;
    fill(
      this.list,
      ...events.map((event) =>
        make(
          'li',
          {},
          make('div', {}, make('b', {}, event.name), ' ', make('span', { class: 'quiet' }, event.who), make('div', { class: 'quiet' }, words(event.text))),
          make('span', { class: 'when' }, event.time === null ? '' : `+${time(event.time - message.posted)}`),
        ),
      ),
    );
    app.redraw();
  }

  private draw(plane: TimePlane): void {
    const table = this.rows();
    if (!table) return;
    const { context, scale, bottom } = plane;
    const colours = palette();
    const { app } = this;
    const [posted, started, completed, length, status] = ['posted', 'started', 'completed', 'length', 'status'].map((name) => column(table, name));
    const lanes = Math.max(1, Math.floor(bottom / 9));
    const first = column(table, 'first');
    for (let row = 0; row < table.rows; row++) {
      const until = Number.isFinite(completed![row]!) ? completed![row]! : app.view.to;
      const x = scale.x(posted![row]!);
      const wide = Math.max(2, scale.x(until) - x);
      if (x + wide < 0 || x > plane.width) continue;
      const y = (row % lanes) * 9 + 1;
      const chosen = this.message !== null && this.message.posted === posted![row] && this.message.first === first[row];
      context.fillStyle = status![row] ? CATEGORY.vermilion : chosen ? colours.accent : CATEGORY.sky;
      context.globalAlpha = chosen ? 1 : 0.45;
      context.fillRect(x, y, wide, 7);
      context.globalAlpha = 1;
      context.fillRect(scale.x(started![row]!), y, Math.max(1.5, scale.x(until) - scale.x(started![row]!)), 7);
      plane.hits.push({
        x,
        y,
        w: wide,
        h: 7,
        tip: () => `${bytes(length![row]!)}, posted ${time(posted![row]!)}\nstarted after ${time(started![row]! - posted![row]!)}, done after ${time(until - posted![row]!)}`,
        open: () => app.go({ message: first[row]!, at: posted![row]! }),
      });
    }
  }
}

/** The connection of a packet that ends a message, rather of several packets, near the moment. */
function suited(packets: Table, moment: number): Partial<View> {
  const [sent, opcode, length] = [column(packets, 'sent'), column(packets, 'opcode'), column(packets, 'length')];
  const worth = (row: number) => {
    const name = opcodeName(opcode[row]!);
    const ends = / Last/.test(name) ? 2 : / Only/.test(name) ? 1 : 0;
    return ends * 1e6 + length[row]! - Math.abs(sent[row]! - moment) / 1e12;
  };
  let best = 0;
  for (let row = 1; row < packets.rows; row++) if (worth(row) > worth(best)) best = row;
  return { host: column(packets, 'host')[best]!, queuePair: column(packets, 'queue_pair')[best]! };
}

function at(table: Table, row: number): Message {
  const get = (name: string) => column(table, name)[row]!;
  return {
    posted: get('posted'),
    started: get('started'),
    completed: get('completed'),
    host: get('host'),
    queuePair: get('queue_pair'),
    length: get('length'),
    first: get('first'),
    packets: get('packets'),
    sequence: get('sequence'),
    chunk: get('chunk'),
    step: get('step'),
    status: get('status'),
  };
}

/** Everything the run knows about the end of a message, in order. */
async function eventsOf(app: App, message: Message): Promise<Event[]> {
  const { run } = app;
  const until = Number.isFinite(message.completed) ? message.completed : run.duration;
  const last = (message.first + message.packets - 1) % PSN_WRAP;
  const connections = connectionsOf(await run.rows('connections', { most: 20_000 }));
  const mine = connections.find((each) => each.host === message.host && each.queuePair === message.queuePair) ?? null;
  const sent = await run.rows('packets', { from: message.posted, to: until, host: message.host, queue_pair: message.queuePair, most: MOST });
  const isRequest = (opcode: number) => opcode !== ACKNOWLEDGE;
  const [firstRow, lastRow] = [findPsn(sent, message.first, isRequest), findPsn(sent, last, isRequest)];
  const answer = mine ? await answerOf(app, mine, message.posted, until, last) : null;
  const cell = (row: number | null, name: string) => (row === null || !Number.isFinite(column(sent, name)[row]!) ? null : column(sent, name)[row]!);
  const [came, received] = [cell(firstRow, 'received'), cell(lastRow, 'received')];
  const a = run.vertexName(message.host);
  const b = mine ? run.vertexName(mine.to) : 'the other side';
  const after = await afterwards(app, message, until, mine?.to ?? null, received ?? message.started);
  const sample = 'this packet is not in the sample';
  const isOne = message.packets === 1;
  // A NIC checks a packet before it writes any byte of it: the key and range with the first packet of a message, sequence and length with each.
  const way: Event[] = [
    { name: 'First packet', who: `NIC of ${a}`, text: `leaves with [[PSN]] ${message.first}; the data is read from GPU memory by [[DMA]]`, time: message.started },
    ...(isOne ? [] : [{ name: 'Last packet', who: `NIC of ${a}`, text: lastRow === null ? `PSN ${last}; ${sample}` : `leaves with PSN ${last}`, time: cell(lastRow, 'sent') }]),
    { name: 'Checks', who: `NIC of ${b}`, text: `PSN ${message.first} is there: [[ICRC]], [[queue pair]], sequence, then [[rkey]], permission and range, before any byte is written; a failure would end the connection${came === null ? `; ${sample}` : ''}`, time: came },
    { name: 'Into memory', who: `NIC of ${b}`, text: `${isOne ? 'its bytes are' : 'its bytes, and those of each packet behind it,'} written to GPU memory by [[DMA]]; no processor takes part`, time: came },
  ].sort((one, two) => (one.time ?? Infinity) - (two.time ?? Infinity) || 0);
  return [
    { name: 'Posted', who: `program at ${a}`, text: `a [[work request]]: ${bytes(message.length)} into ${b}’s memory`, time: message.posted },
    ...way,
    { name: 'All there', who: `NIC of ${b}`, text: received === null ? sample : `PSN ${last} is the one expected, passed its checks and is written: ${isOne ? 'the only one' : `all ${count(message.packets)}`}`, time: received },
    { name: 'Answer', who: `NIC of ${b}`, text: `[[ACK]] of PSN ${last}: one answer for everything before it, too`, time: answer },
    { name: 'Completion', who: `NIC of ${a}`, text: message.status ? `with an error, status ${message.status}` : 'a [[CQE]] in the completion queue', time: Number.isFinite(message.completed) ? message.completed : null },
    { name: 'Poll', who: `program at ${a}`, text: 'finds the entry the next time it looks; its buffer is free again', time: Number.isFinite(message.completed) ? message.completed : null },
    ...after,
  ];
}

function findPsn(packets: Table, psn: number, suits: (opcode: number) => boolean): number | null {
  const [numbers, opcodes] = [column(packets, 'psn'), column(packets, 'opcode')];
  for (let row = packets.rows - 1; row >= 0; row--) if (numbers[row] === psn && suits(opcodes[row]!)) return row;
  return null;
}

async function answerOf(app: App, mine: Connection, from: number, to: number, psn: number): Promise<number | null> {
  const answers = await app.run.rows('packets', { from, to, host: mine.to, queue_pair: mine.target, most: MOST });
  const row = findPsn(answers, psn, (opcode) => opcode === ACKNOWLEDGE);
  return row === null ? null : column(answers, 'sent')[row]!;
}

/** What could go on because of it: the next piece of the ring, and in the end the optimiser. */
async function afterwards(app: App, message: Message, until: number, receiver: number | null, since: number): Promise<Event[]> {
  const { run } = app;
  const out: Event[] = [];
  const end = Math.min(run.duration, until + Math.max(1e6, (until - message.posted) * 20));
  const slices = await run.rows('slices', { from: message.posted, to: end, sequence: message.sequence, most: 20_000 });
  const [chunk, step, sent, from, to] = ['chunk', 'step', 'sent', 'from', 'to'].map((name) => column(slices, name));
  let next = -1;
  for (let row = 0; row < slices.rows; row++) {
    // The one that received it passes it on; chunks of other channels have the same numbers.
    if (chunk![row] !== message.chunk || step![row] !== message.step + 1 || sent![row]! < since) continue;
    if (receiver !== null && run.meta.ranks[from![row]!]?.host !== receiver) continue;
    if (next < 0 || sent![row]! < sent![next]!) next = row;
  }
  if (next >= 0) {
    out.push({ name: 'Next step', who: `rank ${from![next]}`, text: `sends chunk ${message.chunk} on to rank ${to![next]}, step ${step![next]} of the collective`, time: sent![next]! });
  }
  if (run.meta.kind === 'job') {
    const rank = run.meta.ranks.findIndex((place) => place.host === message.host);
    const operations = await run.rows('operations', { from: until, to: run.duration, rank: Math.max(0, rank), most: 20_000 });
    const [kind, begun] = [column(operations, 'kind'), column(operations, 'begun')];
    for (let row = 0; row < operations.rows; row++) {
      if (kind[row] !== 3 || begun[row]! < until) continue;
      out.push({ name: 'Optimiser', who: `rank ${Math.max(0, rank)}`, text: 'has all gradients and changes the parameters; the next [[step]] can begin', time: begun[row]! });
      break;
    }
  }
  return out;
}
