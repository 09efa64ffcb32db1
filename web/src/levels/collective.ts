// Level 5: one collective from inside: slices on their way, and what each rank holds.
import type { App } from '../app';
import { absent, fill, make } from '../draw/dom';
import { CATEGORY, LINES, loadColour, palette } from '../draw/palette';
import { Plane, SMALL } from '../draw/plane';
import { Feed } from '../model/feed';
import { column, NONE, type Table } from '../source/block';
import { bytes, count, time } from '../words/units';
import { channelsOf, hub, slicesOf, storyOf, type Slices, type Story } from './collective-holds';
import type { Level, Scene } from './level';

const MOST_SLICES = 60_000;
const MOST_CALLS = 500;
const MOST_DOTS = 1500;
const MOST_CHUNKS = 64;
const MOST_CELLS = 8192;

export const collective: Level = {
  id: 'collective',
  title: 'The collective',
  lead: 'One [[collective]] [[chunk]] by chunk: pieces travel from rank to rank and what each holds grows. Space plays, ← and → go from arrival to arrival. Click a line between servers to see the connection under it.',
  both: 'stacked',
  make: (app) => new CollectiveScene(app),
};

class CollectiveScene implements Scene {
  readonly root: HTMLElement;
  private calls: Feed;
  private sample: Feed;
  private feed: Feed;
  private choice = make('select', { 'aria-label': 'Collective' });
  private chips = make('div', { class: 'row' });
  private now = make('p', { class: 'note' });
  private map: Plane;
  private cells: Plane;
  private story: { table: Table; slices: Slices; story: Story; reduces: boolean } | null = null;
  private listed = '';
  private panels: HTMLElement;

  constructor(private app: App) {
    this.calls = new Feed('calls', () => app.redraw());
    this.sample = new Feed('slices', () => app.redraw());
    this.feed = new Feed('slices', () => app.redraw());
    this.map = new Plane(app, {
      title: 'On the way',
      note: 'a dot is a slice; orange goes by [[NIC]], blue stays inside the server',
      height: (width) => tall(width),
      draw: (plane) => this.drawMap(plane),
    });
    this.cells = new Plane(app, {
      title: 'What each rank holds',
      note: 'a column is a [[chunk]]; stronger is more of the sum. Good: all complete at the same time',
      height: (width) => tall(width),
      draw: (plane) => this.drawCells(plane),
    });
    this.choice.addEventListener('change', () => this.choose(Number(this.choice.value)));
    this.root = make(
      'div',
      {},
      app.run.has('slices')
        ? null
        : absent(
            app.run.meta.kind === 'traffic'
              ? 'This run has plain flows and no [[collective]]. One that has:'
              : 'No slice of a collective was recorded: this run was calculated, or recorded without them. One with all of them:',
            'railnet sim scenarios/allreduce-2-nodes.toml --record run.rail && railnet view run.rail',
          ),
      make('div', { class: 'row' }, this.choice, this.chips),
      this.now,
      make('div', { class: 'columns' }, this.map.root, this.cells.root),
    );
    this.choice.hidden = !app.run.has('calls');
    this.panels = this.root.lastElementChild as HTMLElement;
    this.panels.hidden = !app.run.has('slices');
  }

  show(): void {
    const { app } = this;
    const calls = this.calls.want(app.run, { most: MOST_CALLS });
    if (calls && calls.rows > 0) this.list(calls);
    const { communicator, sequence } = app.view;
    if (calls && calls.rows > 0 && sequence === null) {
      return this.chooseRecorded(calls);
    }
    const table = communicator === null || sequence === null ? null : this.feed.want(app.run, { communicator, sequence, most: MOST_SLICES });
    if (table && sequence !== null) this.tell(table);
    this.map.paint();
    this.cells.paint();
  }

  step(direction: number): boolean {
    const moments = this.story?.story.moments;
    if (!moments || moments.length === 0) return false;
    const { at } = this.app.view;
    const next = direction > 0 ? moments.find((each) => each > at + 0.5) : moments.findLast((each) => each < at - 0.5);
    this.app.moveTo(next ?? (direction > 0 ? moments[moments.length - 1]! : (this.span()?.[0] ?? 0)));
    return true;
  }

  play(): boolean {
    const span = this.span();
    const { at, from, to } = this.app.view;
    if (!span || (from < span[1] && to > span[0] && at < to - 1)) return false;
    this.app.go({ from: span[0], to: span[1], at: span[0] });
    return false;
  }

  private span(): [number, number] | null {
    const story = this.story;
    if (!story || story.story.rows.length === 0) return null;
    const first = story.slices.sent[story.story.rows[0]!]!;
    return [first, Math.max(first + 1000, story.story.moments[story.story.moments.length - 1] ?? first)];
  }

  private list(calls: Table): void {
    const { run } = this.app;
    const chosen = indexOf(calls, this.app.view.communicator, this.app.view.sequence);
    const key = `${calls.rows} ${chosen}`;
    if (key === this.listed) return;
    this.listed = key;
    const [communicator, sequence, name, begun, ended] = ['communicator', 'sequence', 'name', 'begun', 'ended'].map((each) => column(calls, each));
    fill(
      this.choice,
      ...Array.from({ length: calls.rows }, (_, row) => {
        const group = run.meta.communicators[communicator![row]!]?.name ?? '';
        const text = `${run.string(name![row]!)} #${sequence![row]} ${group ? `· ${group} ` : ''}· ${time(ended![row]! - begun![row]!)}`;
        return make('option', { value: String(row), selected: row === chosen }, text);
      }),
    );
  }

  /** Goes to a call of which slices were recorded, rather one that is there whole. */
  private chooseRecorded(calls: Table): void {
    const whole = this.app.run.meta.kept?.call;
    if (whole) return this.choose(indexOf(calls, whole.communicator, whole.sequence), whole.channel);
    const sample = this.sample.want(this.app.run, { most: 4000 });
    if (sample) this.choose(richest(calls, sample));
  }

  fit(): boolean {
    const span = this.span();
    if (span) this.app.window(span[0], span[1]);
    return span !== null;
  }

  private choose(row: number, channel = 0): void {
    const calls = this.calls.want(this.app.run, { most: MOST_CALLS });
    if (!calls || row < 0 || row >= calls.rows) return;
    const begun = column(calls, 'begun')[row]!;
    const ended = Math.max(begun + 1000, column(calls, 'ended')[row]!);
    this.app.go({
      communicator: column(calls, 'communicator')[row]!,
      sequence: column(calls, 'sequence')[row]!,
      channel,
      from: begun,
      to: ended,
      at: (begun + ended) / 2,
    });
  }

  private tell(table: Table): void {
    const { app } = this;
    const slices = this.story?.table === table ? this.story.slices : slicesOf(table);
    const channels = channelsOf(slices);
    const channel = channels.includes(app.view.channel) ? app.view.channel : (channels[0] ?? 0);
    if (this.story?.table !== table || this.story.story.channel !== channel) {
      const calls = this.calls.want(app.run, { most: MOST_CALLS });
      const call = calls ? indexOf(calls, app.view.communicator, app.view.sequence) : -1;
      const name = calls && call >= 0 ? app.run.string(column(calls, 'name')[call]!) : '';
      const reduces = !/gather|broadcast|scatter(?<!reduce.?scatter)|all.?to.?all|send|recv/i.test(name);
      const members = app.run.meta.communicators[app.view.communicator ?? 0]?.ranks ?? app.run.meta.ranks.map((_, rank) => rank);
      this.story = { table, slices, reduces, story: storyOf(slices, channel, members, reduces, (rank) => app.run.meta.ranks[rank]?.node ?? 0) };
      fill(
        this.chips,
        channels.length > 1 ? make('span', { class: 'quiet' }, 'channel') : null,
        ...(channels.length > 1
          ? channels.slice(0, 32).map((each) => make('button', { 'aria-pressed': String(each === channel), click: () => app.go({ channel: each }) }, String(each)))
          : []),
      );
    }
    const { story } = this.story;
    this.panels.hidden = story.rows.length === 0;
    if (story.rows.length === 0) {
      const calls = this.calls.want(app.run, { most: MOST_CALLS });
      const text = this.feed.waiting ? '' : `No slice of this collective was recorded${app.run.has('slices') ? ': only those of the first calls of a run are kept.' : '.'} `;
      if (this.now.dataset['text'] === text) return;
      this.now.dataset['text'] = text;
      fill(this.now, text, text && calls && app.run.has('slices') ? make('button', { click: () => this.chooseRecorded(calls) }, 'One that was recorded') : null);
      return;
    }
    delete this.now.dataset['text'];
    const moving = story.rows.filter((row) => slices.sent[row]! <= app.view.at && !(story.arrival(row) <= app.view.at));
    const done = story.rows.filter((row) => story.arrival(row) <= app.view.at).length;
    const first = moving[0];
    const shape = story.hubs.length > 0 ? 'switches inside the servers (NVLS), joined by NICs,' : story.shape === 'other' ? 'links between ranks' : `a ${story.shape}`;
    const parts = [`Channel ${story.channel}, ${shape} over ${count(story.ranks.length)} ranks: ${count(done)} of ${count(story.rows.length)} slices arrived, ${count(moving.length)} on the way`];
    if (first !== undefined) {
      parts.push(`; rank ${slices.from[first]} → ${target(slices.to[first]!)}: chunk ${slices.chunk[first]}, step ${slices.step[first]}, ${bytes(slices.bytes[first]!)}`);
    }
    const whole = this.complete(story);
    if (whole) parts.push(`. ${whole}`);
    const call = app.run.meta.kept?.call;
    const isWhole = call && call.communicator === app.view.communicator && call.sequence === app.view.sequence && call.channel === story.channel;
    if (isWhole) parts.push('. All slices of this channel are here; of other calls and channels this report has some');
    else if (table.total > table.rows) parts.push(call ? '. This report has some of its slices only' : `. ${count(table.rows)} of ${count(table.total)} slices are shown`);
    this.now.textContent = `${parts.join('')}.`;
  }

  /** How many pieces are where they should be in the end. */
  private complete(story: Story): string {
    if (story.ranks.length * story.chunks.length > MOST_CELLS) return '';
    let done = 0;
    for (const rank of story.ranks) for (const chunk of story.chunks) if (story.held(rank, chunk, this.app.view.at) >= story.full) done++;
    return `${count(done)} of ${count(story.ranks.length * story.chunks.length)} pieces are ${this.story?.reduces ? 'whole sums' : 'there'}`;
  }

  private drawMap(plane: Plane): void {
    if (!this.story || this.story.story.rows.length === 0) return;
    const { app } = this;
    const { context } = plane;
    const { story, slices } = this.story;
    const places = story.shape === 'tree' ? treePlaces(story, plane) : ringPlaces(story, plane);
    this.placeHubs(story, places, plane);
    const size = Math.max(3, Math.min(17, (story.shape === 'tree' ? plane.width : Math.PI * plane.width * 0.8) / story.ranks.length / 2.6));
    const colours = palette();
    for (const edge of story.edges.values()) {
      const [from, to] = [places.get(edge.from), places.get(edge.to)];
      if (!from || !to) continue;
      context.strokeStyle = edge.via === 1 ? CATEGORY.orange : CATEGORY.sky;
      context.globalAlpha = story.edges.size > 200 ? 0.15 : 0.45;
      context.lineWidth = edge.via === 1 ? 2.5 : 1.5;
      context.beginPath();
      context.moveTo(from.x, from.y);
      context.lineTo(to.x, to.y);
      context.stroke();
      context.globalAlpha = 1;
      const open = edge.via === 1 ? { open: () => this.enter(edge.from, edge.to) } : {};
      plane.hits.push({
        x: (from.x + to.x) / 2 - 7,
        y: (from.y + to.y) / 2 - 7,
        w: 14,
        h: 14,
        tip: `${app.run.rankName(edge.from)} → ${edge.to < 0 ? 'NVSwitch' : app.run.rankName(edge.to)}\n${edge.via === 1 ? 'by NIC' : 'inside the server'}, ${bytes(edge.bytes)} in this channel`,
        ...open,
      });
    }
    for (const node of story.hubs) {
      const place = places.get(hub(node))!;
      context.fillStyle = colours.faint;
      context.strokeStyle = LINES[node % LINES.length]!;
      context.lineWidth = 2;
      context.beginPath();
      context.roundRect(place.x - 20, place.y - 12, 40, 24, 5);
      context.fill();
      context.stroke();
      context.fillStyle = colours.ink;
      context.font = SMALL;
      context.textAlign = 'center';
      context.fillText('NVS', place.x, place.y);
      context.textAlign = 'left';
      plane.hits.push({ x: place.x - 20, y: place.y - 12, w: 40, h: 24, tip: `NVSwitch of ${app.run.nodeName(node)}: adds up what its ranks push into it, and gives all of them the result` });
    }
    for (const rank of story.ranks) {
      const place = places.get(rank)!;
      const node = app.run.meta.ranks[rank]?.node ?? 0;
      context.fillStyle = colours.panel;
      context.strokeStyle = LINES[node % LINES.length]!;
      context.lineWidth = 2;
      context.beginPath();
      context.arc(place.x, place.y, size, 0, 7);
      context.fill();
      context.stroke();
      if (size >= 8) {
        context.fillStyle = colours.ink;
        context.font = SMALL;
        context.textAlign = 'center';
        context.fillText(String(rank), place.x, place.y + 0.5);
        context.textAlign = 'left';
      }
      plane.hits.push({ x: place.x - size, y: place.y - size, w: 2 * size, h: 2 * size, tip: app.run.rankName(rank) });
    }
    this.drawMoving(plane, slices, story, places);
  }

  /** Switches inside servers are drawn between the middle and their ranks. */
  private placeHubs(story: Story, places: Map<number, { x: number; y: number }>, plane: Plane): void {
    for (const node of story.hubs) {
      const own = story.ranks.filter((rank) => this.app.run.meta.ranks[rank]?.node === node).map((rank) => places.get(rank)!);
      const mean = (pick: (place: { x: number; y: number }) => number, middle: number) => middle + (own.reduce((sum, place) => sum + pick(place) - middle, 0) / Math.max(1, own.length)) * 0.62;
      places.set(hub(node), { x: mean((place) => place.x, plane.width / 2), y: mean((place) => place.y, plane.height / 2) });
    }
  }

  private drawMoving(plane: Plane, slices: Slices, story: Story, places: Map<number, { x: number; y: number }>): void {
    const { context } = plane;
    const { at } = this.app.view;
    const most = story.rows.reduce((high, row) => Math.max(high, slices.bytes[row]!), 1);
    let drawn = 0;
    for (const row of story.rows) {
      if (slices.sent[row]! > at) break;
      const until = story.arrival(row);
      if (until <= at || drawn >= MOST_DOTS) continue;
      const node = this.app.run.meta.ranks[slices.from[row]!]?.node ?? 0;
      const [from, to] = [places.get(slices.from[row]!), places.get(slices.to[row] === NONE ? hub(node) : slices.to[row]!)];
      if (!from || !to) continue;
      const part = (at - slices.sent[row]!) / Math.max(1, until - slices.sent[row]!);
      const x = from.x + (to.x - from.x) * part;
      const y = from.y + (to.y - from.y) * part;
      const radius = 4 + 6 * Math.sqrt(slices.bytes[row]! / most);
      context.fillStyle = slices.via[row] === 1 ? CATEGORY.orange : CATEGORY.sky;
      context.beginPath();
      context.arc(x, y, radius, 0, 7);
      context.fill();
      if (radius > 7 && story.ranks.length <= 40) {
        context.fillStyle = '#14181c';
        context.font = '11px system-ui, sans-serif';
        context.textAlign = 'center';
        context.fillText(String(slices.chunk[row]), x, y + 0.5);
        context.textAlign = 'left';
      }
      plane.hits.push({
        x: x - radius,
        y: y - radius,
        w: 2 * radius,
        h: 2 * radius,
        tip: () => `chunk ${slices.chunk[row]}, step ${slices.step[row]}, ${bytes(slices.bytes[row]!)}\nrank ${slices.from[row]} → ${target(slices.to[row]!)}\nsent ${time(slices.sent[row]!)}${Number.isFinite(slices.arrived[row]!) ? `, takes ${time(slices.arrived[row]! - slices.sent[row]!)}` : ''}`,
        ...(slices.via[row] === 1 ? { open: () => this.enter(slices.from[row]!, slices.to[row]!) } : {}),
      });
      drawn++;
    }
  }

  private drawCells(plane: Plane): void {
    if (!this.story || this.story.story.rows.length === 0) return;
    const { story, reduces } = this.story;
    const { context, width, height } = plane;
    const colours = palette();
    const left = 34;
    const top = 18;
    const chunks = story.chunks.slice(0, MOST_CHUNKS);
    const w = Math.min(46, (width - left) / Math.max(1, chunks.length));
    const h = Math.min(30, (height - top - 4) / Math.max(1, story.order.length));
    context.font = SMALL;
    context.fillStyle = colours.quiet;
    context.textAlign = 'center';
    const every = Math.max(1, Math.ceil(26 / w));
    chunks.forEach((chunk, index) => index % every === 0 && context.fillText(String(chunk), left + w * (index + 0.5), 8));
    const tall = Math.max(1, Math.ceil(14 / h));
    story.order.forEach((rank, row) => {
      const y = top + row * h;
      context.textAlign = 'right';
      context.fillStyle = colours.quiet;
      if (row % tall === 0) context.fillText(String(rank), left - 6, y + h / 2);
      chunks.forEach((chunk, index) => {
        const held = story.held(rank, chunk, this.app.view.at);
        const x = left + index * w;
        context.fillStyle = loadColour(held / story.full);
        context.fillRect(x, y, w - (w > 4 ? 1 : 0), h - (h > 4 ? 1 : 0));
        if (w >= 26 && h >= 15 && reduces) {
          context.fillStyle = held / story.full > 0.5 === colours.dark ? '#14181c' : colours.dark ? '#e6e9eb' : held / story.full > 0.5 ? '#ffffff' : '#1c2126';
          context.textAlign = 'center';
          context.fillText(held === story.full ? '✓' : String(held), x + w / 2, y + h / 2 + 0.5);
        }
        if (story.order.length * chunks.length <= 2048) {
          const what = reduces ? `${held} of ${story.full} parts of the sum` : held ? 'has it' : 'does not have it yet';
          plane.hits.push({ x, y, w: w - 1, h: h - 1, tip: `rank ${rank}, chunk ${chunk}: ${what}` });
        }
      });
    });
    context.textAlign = 'left';
  }

  /** Down to the connection between the NICs of two ranks. */
  private enter(from: number, to: number): void {
    const { ranks } = this.app.run.meta;
    const host = ranks[from]?.host ?? null;
    this.app.open('connection', { host, queuePair: null, rank: to });
  }
}

/** As tall as wide, but not so tall that one has to scroll. */
function tall(width: number): number {
  return Math.max(300, Math.min(560, width * 0.86, innerHeight - 460));
}

function target(rank: number): string {
  return rank === NONE ? 'NVSwitch' : `rank ${rank}`;
}

function ringPlaces(story: Story, { width, height }: Plane): Map<number, { x: number; y: number }> {
  const radius = Math.min(width, height) / 2 - 22;
  return new Map(
    story.order.map((rank, index) => {
      const angle = (index / story.order.length) * 2 * Math.PI - Math.PI / 2;
      return [rank, { x: width / 2 + radius * Math.cos(angle), y: height / 2 + radius * Math.sin(angle) }];
    }),
  );
}

/** Leaves of the tree side by side, every other rank above the middle of those below it. */
function treePlaces(story: Story, { width, height }: Plane): Map<number, { x: number; y: number }> {
  const children = new Map<number, number[]>();
  for (const [rank, parent] of story.parent) children.set(parent, [...(children.get(parent) ?? []), rank]);
  const root = story.ranks.find((rank) => story.depth.get(rank) === 0)!;
  const deepest = Math.max(1, ...story.depth.values());
  const column = new Map<number, number>();
  let next = 0;
  const visit = (rank: number): number => {
    const below = (children.get(rank) ?? []).map(visit);
    const at = below.length ? below.reduce((sum, each) => sum + each, 0) / below.length : next++;
    column.set(rank, at);
    return at;
  };
  visit(root);
  return new Map(
    story.ranks.map((rank) => [
      rank,
      { x: 20 + ((column.get(rank)! + 0.5) / Math.max(1, next)) * (width - 40), y: 24 + (story.depth.get(rank)! / deepest) * (height - 48) },
    ]),
  );
}

/** The call of which most slices were recorded; without any the one with most bytes. */
function richest(calls: Table, sample: Table): number {
  const seen = new Map<string, number>();
  const [groups, numbers] = [column(sample, 'communicator'), column(sample, 'sequence')];
  for (let row = 0; row < sample.rows; row++) {
    const key = `${groups[row]} ${numbers[row]}`;
    seen.set(key, (seen.get(key) ?? 0) + 1);
  }
  const [communicator, sequence, size] = [column(calls, 'communicator'), column(calls, 'sequence'), column(calls, 'bytes')];
  const worth = (row: number) => (seen.get(`${communicator[row]} ${sequence[row]}`) ?? 0) + size[row]! / 1e18;
  let best = 0;
  for (let row = 1; row < calls.rows; row++) if (worth(row) > worth(best)) best = row;
  return best;
}

function indexOf(calls: Table, communicator: number | null, sequence: number | null): number {
  const [communicators, sequences] = [column(calls, 'communicator'), column(calls, 'sequence')];
  for (let row = 0; row < calls.rows; row++) if (communicators[row] === communicator && sequences[row] === sequence) return row;
  return -1;
}

