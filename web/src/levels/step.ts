// Level 4: ranks × streams over time, with what is exposed, what is critical and who comes last. Windows with more operations than can be told
// apart are drawn as shares of time, pixel by pixel.
import type { App } from '../app';
import { absent, figure, fill, make, words } from '../draw/dom';
import { EXPOSED, KINDS, KIND_NAMES, palette } from '../draw/palette';
import { clipped, SMALL } from '../draw/plane';
import { TimePlane } from '../draw/time-plane';
import { Feed } from '../model/feed';
import { COMPUTE, ShareFeed, WHOLE, type Shares } from '../model/shares';
import { column, type Table } from '../source/block';
import { bytes, count, many, rate, share, time } from '../words/units';
import type { Level, Scene } from './level';
import { COMMUNICATION, rowsOf, type Rows } from './step-rows';

const MOST_ROWS = 20_000;
const PAGE = 16;
/** Narrower pieces of a sample say nothing that the shares below them do not. */
const LEAST_WIDTH = 3;
const MOST_CRITICAL = 400;
const ORDERS = [
  ['rank', 'by number'],
  ['waiting', 'those that wait most first'],
  ['late', 'those waited for most first'],
] as const;

export const step: Level = {
  id: 'step',
  title: 'The step',
  lead: 'What each [[rank]] did and when. Communication that hides behind arithmetic costs nothing; [[exposed communication]] is time in which GPUs wait. Click a piece of communication to see it from inside.',
  both: 'stacked',
  make: (app) => new StepScene(app),
};

/** What a rank did in the window, all together. */
interface Total {
  /** Waiting for late ranks, as a share of the window. */
  waiting: number;
  exposed: number;
  /** How long others waited for it and those like it. */
  late: number;
}

class StepScene implements Scene {
  readonly root: HTMLElement;
  private feed: Feed;
  private calls: Feed;
  private sample: Feed;
  private shares: ShareFeed;
  private totalsFeed: ShareFeed;
  private totalsOf: Shares | null = null;
  private totals = new Map<number, Total>();
  private streams: number[] = [];
  /** Ranks of which something was recorded; those that are alike are recorded once. */
  private recorded: number[] = [];
  private chart: TimePlane;
  private pager = make('div', { class: 'row' });
  private order = make('select', { 'aria-label': 'Order of the ranks' }, ...ORDERS.map(([value, text]) => make('option', { value }, text)));
  private start = 0;
  private found: number | null = null;
  private shown: number[] = [];
  private paged = '';
  private known: { table: Table; rows: Rows } | null = null;

  constructor(private app: App) {
    this.feed = new Feed('operations', () => app.redraw());
    this.calls = new Feed('calls', () => app.redraw());
    this.sample = new Feed('operations', () => app.redraw());
    this.shares = new ShareFeed(() => app.redraw());
    this.totalsFeed = new ShareFeed(() => app.redraw());
    this.chart = new TimePlane(app, {
      title: app.run.meta.kind === 'traffic' ? 'Flows by sender' : 'Ranks over time',
      note: NOTES[app.run.meta.kind],
      height: () => Math.max(2, this.shown.length) * this.rowHeight + 34,
      left: (width) => (width < 500 ? 46 : width < 800 ? 92 : 148),
      draw: (plane) => this.draw(plane),
      version: () => this.version(),
    });
    this.order.addEventListener('change', () => {
      this.start = 0;
      app.redraw();
    });
    const legend = make('div', { class: 'legend' });
    const key = (colour: string, text: string) => {
      const box = make('i', {});
      box.style.background = colour;
      legend.append(make('span', {}, box, words(text)));
    };
    if (app.run.meta.kind === 'job') {
      KIND_NAMES.forEach((name, kind) => (kind === 1 || kind === 4 ? null : key(KINDS[kind]!, name)));
      key(EXPOSED, '[[exposed communication]]');
      key(palette().accent, '[[critical path]]');
    }
    const sorts = app.run.has('operations') && app.run.meta.kind !== 'traffic';
    this.root = make(
      'div',
      {},
      this.numbers(),
      app.run.has('operations') ? null : absent('This run has no record of what its ranks did. Record it again: railnet sim SCENARIO --record FILE'),
      make('div', { class: 'row' }, this.pager, sorts ? this.order : null, legend),
      this.chart.root,
      this.sharesOfStep(),
    );
  }

  private get lanes(): number {
    return Math.max(1, this.streams.length);
  }

  private get rowHeight(): number {
    const { lanes } = this;
    return lanes === 1 ? 22 : lanes === 2 ? 34 : 14 + lanes * 10;
  }

  show(): void {
    const { app } = this;
    const { meta } = app.run;
    this.findStreams();
    this.sum();
    const all = meta.ranks.length || meta.fabric.hosts.length;
    const chosen = app.view.node === null ? null : meta.nodes[app.view.node];
    const own = this.recorded.filter((rank) => chosen?.ranks.includes(rank));
    const node = own.length > 0 ? chosen : null;
    const ranks = this.ordered(node ? own : this.recorded);
    this.follow(ranks);
    this.start = Math.min(this.start, Math.max(0, ranks.length - 1));
    this.shown = ranks.slice(this.start, this.start + PAGE);
    const key = JSON.stringify([this.shown, app.view.node, ranks.length]);
    if (key !== this.paged) {
      this.paged = key;
      const turn = (text: string, to: number, off: boolean) =>
        make('button', { disabled: off, 'aria-label': text === '‹' ? 'Ranks before' : 'Ranks after', click: () => ((this.start = Math.max(0, to)), app.redraw()) }, text);
      fill(
        this.pager,
        node ? make('button', { click: () => app.go({ node: null }) }, `${node.name} ✕`) : null,
        ranks.length > PAGE ? turn('‹', this.start - PAGE, this.start === 0) : null,
        make('span', { class: 'quiet' }, this.which(all, ranks)),
        ranks.length > PAGE ? turn('›', this.start + PAGE, this.start + PAGE >= ranks.length) : null,
      );
    }
    this.chart.paint();
    this.chart.note = this.told();
  }

  /** Turns to the page with the rank that somebody looks for, once. */
  private follow(ranks: number[]): void {
    const { rank } = this.app.view;
    if (rank === this.found || ranks.length === 0) return;
    this.found = rank;
    const place = rank === null ? -1 : ranks.indexOf(rank);
    if (place >= 0) this.start = Math.floor(place / PAGE) * PAGE;
  }

  private ordered(ranks: number[]): number[] {
    const by = this.order.value;
    if (by === 'rank') return ranks;
    const of = (rank: number) => (by === 'waiting' ? (this.totals.get(rank)?.waiting ?? 0) : this.lateOf(rank));
    return [...ranks].sort((a, b) => of(b) - of(a) || a - b);
  }

  /** How long others waited for one rank of those like it. */
  private lateOf(rank: number): number {
    return (this.totals.get(rank)?.late ?? 0) / this.app.run.alike(rank);
  }

  private which(all: number, ranks: number[]): string {
    const noun = this.app.run.meta.ranks.length ? 'rank' : 'host';
    const [first, last] = [this.shown[0] ?? 0, this.shown[this.shown.length - 1] ?? 0];
    const shown = first === last ? `${noun} ${first}` : this.order.value === 'rank' ? `${noun}s ${first} to ${last}` : `${many(this.shown.length, noun)}`;
    const jobs = this.app.run.meta.kind === 'job';
    const alike = this.recorded.length < all ? `; ${count(this.recorded.length)} ${jobs ? 'recorded, the others are like them' : 'had something to send'}` : '';
    return `${shown} of ${count(all)}${ranks.length > this.shown.length ? `, ${this.shown.length} at a time` : ''}${alike}`;
  }

  /** Streams in which something happens in this run, whatever the window: lanes do not come and go. */
  private findStreams(): void {
    const table = this.sample.want(this.app.run, { most: 4000 });
    if (!table || this.streams.length > 0) return;
    const known = (this.app.run.meta.alike ?? []).map(([rank]) => rank);
    this.streams = [...new Set(column(table, 'stream') as Uint8Array)].sort((a, b) => a - b);
    this.recorded = [...new Set([...(column(table, 'rank') as Uint32Array), ...known])].sort((a, b) => a - b);
  }

  /** What each rank did in the window, all together: by this they are sorted, and it says for whom others wait. */
  private sum(): void {
    const { run, view } = this.app;
    if (!run.has('operations')) return;
    const found = this.totalsFeed.want(run, { from: view.from, to: Math.min(view.to, run.duration), bins: 1 });
    if (!found || found === this.totalsOf) return;
    this.totalsOf = found;
    const [rank, waiting, exposed, late] = ['rank', 'waiting', 'exposed', 'late'].map((name) => column(found.table, name));
    this.totals.clear();
    for (let row = 0; row < found.table.rows; row++) {
      const before = this.totals.get(rank![row]!);
      this.totals.set(rank![row]!, {
        waiting: Math.max(before?.waiting ?? 0, waiting![row]! / WHOLE),
        exposed: Math.max(before?.exposed ?? 0, exposed![row]! / WHOLE),
        late: (before?.late ?? 0) + late![row]!,
      });
    }
  }

  private version(): string {
    const table = this.rows();
    this.binned();
    return `${table?.rows} ${this.feed.version} ${this.shares.version} ${this.totalsFeed.version} ${this.shown.join(' ')} ${this.streams.length} ${this.app.view.rank}`;
  }

  /** What is drawn, and what of it is not there one by one. */
  private told(): string {
    const { run } = this.app;
    const table = this.rows();
    const parts = [NOTES[run.meta.kind]];
    if (table && table.total > table.rows && this.shown.length > 0) {
      const shares = this.binned();
      const coarse = shares && shares.width > (2 * (this.app.view.to - this.app.view.from)) / Math.max(1, this.chart.width) ? `, in bins of ${time(shares.width)}, the finest that this report has` : '';
      const column = `a column is the share of its time${coarse}, red the part that is exposed. Named pieces are the longest`;
      parts.push(
        run.meta.shares
          ? `this report has the longest of the run’s ${count(run.meta.tables['operations'] ?? 0)} operations one by one, and all of them in columns: ${column}. railnet view shows each`
          : `${count(table.total)} operations are here, too many to draw one by one: ${column}. Zoom in to see each`,
      );
    }
    if (run.recordedUntil < run.duration) parts.push(`step 1 of ${count(run.meta.steps.length)} was recorded, up to ${time(run.recordedUntil)}; the others are calculated from it`);
    return parts.join('. ');
  }

  /** The run's own numbers, as the report has them. */
  private numbers(): HTMLElement {
    const { run } = this.app;
    const { job, network } = run;
    const box = make('div', { class: 'numbers' });
    if (job) {
      const average = job.average_us;
      const exposed = Object.values(average.exposed).reduce((sum, each) => sum + each, 0);
      const compute = average.forward + average.backward + average.recompute + average.optimiser;
      box.append(
        figure(time(job.step_us * 1e6), job.steps_us.length > 0 ? 'a step' : 'of a step that did not end', `${job.model}, ${count(job.ranks)} ranks`),
        figure(time(compute * 1e6), 'arithmetic', 'of each GPU, on average'),
        figure(time(exposed * 1e6), words('[[exposed communication]]'), `${share(exposed / job.step_us)} of the step`),
        figure(share(job.busy), 'GPUs busy', words(`[[MFU]] ${share(job.mfu)}`)),
        job.slowest
          ? figure(`rank ${job.slowest.rank}`, words('[[straggler|straggler]]'), this.straggler(job.slowest))
          : figure('none', words('[[straggler|straggler]]'), 'all ranks are alike'),
      );
    } else if (network?.collectives?.length) {
      for (const call of network.collectives.slice(0, 5)) {
        box.append(figure(time(call.time_us * 1e6), `${call.kind}, ${bytes(call.bytes)}`, `${call.algorithm}/${call.protocol}, ${figures(call.busbw)} GB/s bus`));
      }
    } else if (network) {
      box.append(
        this.app.run.meta.report.error
          ? figure(time(network.completion_us * 1e6), 'given up', `${count(network.flows?.length ?? 0)} flows were all there, ${bytes(network.bytes)}`)
          : figure(time(network.completion_us * 1e6), 'all flows done', bytes(network.bytes)),
        figure(time(network.flow_us_median * 1e6), 'a flow, median', `fastest ${time(network.flow_us_min * 1e6)}`),
        figure(time(network.flow_us_p99 * 1e6), 'a flow, 99 of 100', `slowest ${time(network.flow_us_max * 1e6)}`),
        figure(rate((network.bytes * 8e6) / Math.max(1e-9, network.completion_us)), 'all flows together', 'payload'),
      );
    }
    return box;
  }

  private straggler({ rank, alike = 1, others_waited_us }: NonNullable<NonNullable<typeof this.app.run.job>['slowest']>): HTMLElement {
    const whom = alike > 1 ? `it and ${count(alike - 1)} like it` : 'it';
    return make('span', {}, `others wait ${time(others_waited_us * 1e6)} for ${whom}, all together `, make('button', { class: 'plain', click: () => ((this.found = null), this.app.go({ rank, node: null })) }, 'show'));
  }

  private sharesOfStep(): HTMLElement | null {
    const { job } = this.app.run;
    if (!job) return null;
    const { average_us: average } = job;
    const parts: [string, number, string][] = [
      ['forward', average.forward, KINDS[0]!],
      ['recompute', average.recompute, KINDS[1]!],
      ['backward', average.backward, KINDS[2]!],
      ['optimiser', average.optimiser, KINDS[3]!],
      ['sharing the GPU with communication', average.contention, KINDS[5]!],
      ...Object.entries(average.exposed).map(([scope, value]): [string, number, string] => [`waiting for ${scope.replaceAll('_', ' ')} traffic`, value, EXPOSED]),
      ['waiting for ranks that come late', average.waiting, EXPOSED],
      ['pipeline bubble', average.bubble, EXPOSED],
    ];
    const most = Math.max(...parts.map(([, value]) => value), 1e-9);
    const bars = make('div', { class: 'bars' });
    for (const [name, value, colour] of parts.filter(([, value]) => value > 0)) {
      const bar = make('div', { class: 'bar' });
      bar.style.background = colour;
      bar.style.width = `${(value / most) * 100}%`;
      bars.append(make('span', {}, name), bar, make('span', {}, `${time(value * 1e6)} · ${share(value / job.step_us)}`));
    }
    return make('div', { class: 'panel' }, make('h2', {}, 'Where the time of a step goes, average of all GPUs'), bars);
  }

  private rows(): Table | null {
    const { run, view } = this.app;
    if (this.shown.length === 0) return null;
    return this.feed.window(run, view.from, view.to, { most: MOST_ROWS, ranks: this.shown });
  }

  private binned(): Shares | null {
    const { run, view } = this.app;
    if (this.shown.length === 0 || run.meta.kind === 'traffic') return null;
    return this.shares.window(run, view.from, view.to, this.chart.width, this.shown);
  }

  private draw(plane: TimePlane): void {
    const { run } = this.app;
    const table = this.rows();
    const shares = this.binned();
    this.calls.want(run, { most: 20_000 });
    const { context, left, right, bottom, scale } = plane;
    const place = new Map(this.shown.map((rank, index) => [rank, index * this.rowHeight]));
    this.drawNames(plane);
    context.save();
    context.beginPath();
    context.rect(left, 0, right - left, bottom);
    context.clip();
    if (table) {
      const whole = table.total <= table.rows;
      if (!whole && shares) this.drawShares(plane, shares, place);
      if (this.known?.table !== table) this.known = { table, rows: rowsOf(table) };
      this.drawOperations(plane, this.known.rows, place, whole || !shares ? 0 : LEAST_WIDTH);
    }
    if (shares && run.meta.kind === 'job') this.drawExposed(plane, shares, place);
    this.drawCritical(plane, place);
    const end = scale.x(run.recordedUntil);
    if (run.recordedUntil < run.duration && end < right - 60) {
      context.fillStyle = palette().quiet;
      context.font = SMALL;
      context.fillText(clipped(context, 'not recorded: calculated from the first step', right - end - 16), end + 8, this.rowHeight / 2);
    }
    context.restore();
  }

  private drawOperations(plane: TimePlane, rows: Rows, place: Map<number, number>, least: number): void {
    const { run, view } = this.app;
    const { context, left, right, scale } = plane;
    const colours = palette();
    const traffic = run.meta.kind === 'traffic';
    // Over shares of time there are two lanes: computing, and communicating.
    const lanes = least > 0 ? Math.min(2, this.lanes) : this.lanes;
    const lane = (this.rowHeight - 6) / lanes;
    for (let row = 0; row < rows.count; row++) {
      const top = place.get(rows.rank[row]!);
      if (top === undefined || rows.entered[row]! > view.to || rows.ended[row]! < view.from) continue;
      const kind = rows.kind[row]!;
      const stream = least > 0 ? (kind === COMMUNICATION ? lanes - 1 : 0) : Math.max(0, this.streams.indexOf(rows.stream[row]!));
      const y = top + 2 + stream * lane;
      const from = scale.x(rows.begun[row]!);
      const wide = Math.max(0.75, scale.x(rows.ended[row]!) - from);
      if (wide < least) continue;
      if (least === 0 && rows.entered[row]! < rows.begun[row]!) {
        context.globalAlpha = 0.25;
        context.fillStyle = KINDS[kind] ?? colours.quiet;
        context.fillRect(scale.x(rows.entered[row]!), y, from - scale.x(rows.entered[row]!), lane - 1);
        context.globalAlpha = 1;
      }
      context.fillStyle = traffic ? KINDS[0]! : (KINDS[kind] ?? colours.quiet);
      context.fillRect(from, y, wide, lane - 1);
      if (wide > 44 && lane >= 10) {
        context.fillStyle = kind === 2 || kind === 3 ? '#ffffff' : '#14181c';
        context.font = SMALL;
        const start = Math.max(from, left);
        context.fillText(clipped(context, run.string(rows.name[row]!), Math.min(from + wide, right) - start - 8), start + 4, y + lane / 2);
      }
      if (wide >= 3) plane.hits.push({ x: from, y, w: wide, h: lane - 1, tip: () => this.tip(rows, row), ...(kind === COMMUNICATION ? { open: () => this.enter(rows, row) } : {}) });
    }
  }

  /** Each pixel's share of computing above, of communicating and of waiting for late ranks below. */
  private drawShares(plane: TimePlane, { from, width, table }: Shares, place: Map<number, number>): void {
    const { context, scale } = plane;
    const [rank, bin, communication, waiting] = ['rank', 'bin', 'communication', 'waiting'].map((name) => column(table, name));
    const kinds = COMPUTE.map((name) => column(table, name));
    const computes = kinds.some((each) => each.some((value) => value > 0));
    const lane = (this.rowHeight - 6) / (computes ? 2 : 1);
    for (let row = 0; row < table.rows; row++) {
      const top = place.get(rank![row]!);
      if (top === undefined) continue;
      const x = scale.x(from + bin![row]! * width);
      const wide = Math.max(0.75, scale.x(from + (bin![row]! + 1) * width) - x);
      if (x + wide < plane.left || x > plane.right) continue;
      let y = top + 2 + lane - 1;
      const stack = (value: number, colour: string, alpha: number) => {
        if (value === 0) return;
        const tall = (value / WHOLE) * (lane - 1);
        context.globalAlpha = alpha;
        context.fillStyle = colour;
        context.fillRect(x, y - tall, wide, tall);
        y -= tall;
      };
      kinds.forEach((each, kind) => stack(each[row]!, KINDS[kind]!, 1));
      if (computes) y = top + 2 + 2 * lane - 1;
      stack(communication![row]!, KINDS[COMMUNICATION]!, 1);
      stack(waiting![row]!, KINDS[COMMUNICATION]!, 0.35);
    }
    context.globalAlpha = 1;
  }

  private drawNames(plane: TimePlane): void {
    const { context, left } = plane;
    const colours = palette();
    const { run } = this.app;
    const worst = Math.max(0, ...this.recorded.map((rank) => this.lateOf(rank)));
    this.shown.forEach((rank, index) => {
      const y = index * this.rowHeight;
      context.fillStyle = colours.line;
      context.fillRect(0, y + this.rowHeight - 2, plane.width, 1);
      if (this.app.view.rank === rank) {
        context.globalAlpha = 0.14;
        context.fillStyle = colours.accent;
        context.fillRect(0, y, left - 4, this.rowHeight - 2);
        context.globalAlpha = 1;
      }
      context.fillStyle = colours.ink;
      context.font = SMALL;
      const node = run.meta.ranks[rank] ? run.nodeName(run.meta.ranks[rank]!.node) : '';
      const name = run.meta.ranks.length ? (left > 60 ? `rank ${rank}${left > 120 && node ? ` · ${node}` : ''}` : String(rank)) : run.vertexName(rank);
      context.fillText(clipped(context, name, left - 20), 0, y + this.rowHeight / 2 - 1);
      const lost = this.totals.get(rank)?.late ?? 0;
      if (lost > 0 && this.lateOf(rank) >= worst * 0.5) {
        context.fillStyle = EXPOSED;
        context.fillText('▲', left - 16, y + this.rowHeight / 2 - 1);
        const like = run.alike(rank) > 1 ? ` and ${count(run.alike(rank) - 1)} like it` : '';
        plane.hits.push({ x: left - 18, y, w: 14, h: this.rowHeight, tip: `Others waited ${time(lost)} for rank ${rank}${like} in this window, all together` });
      }
      const total = this.totals.get(rank);
      const alike = run.alike(rank) > 1 ? `\nstands for ${count(run.alike(rank))} ranks` : '';
      const did = total && run.meta.kind === 'job' ? `\nexposed ${share(total.exposed)} of this window, waiting for late ranks ${share(total.waiting)}` : '';
      plane.hits.push({ x: 0, y, w: left - 20, h: this.rowHeight - 2, tip: `${run.rankName(rank)}${alike}${did}` });
    });
  }

  private drawExposed(plane: TimePlane, { from, width, table }: Shares, place: Map<number, number>): void {
    const { context, scale } = plane;
    const [rank, bin, exposed] = ['rank', 'bin', 'exposed'].map((name) => column(table, name));
    context.fillStyle = EXPOSED;
    for (let row = 0; row < table.rows; row++) {
      const top = place.get(rank![row]!);
      if (top === undefined || exposed![row] === 0) continue;
      const x = scale.x(from + bin![row]! * width);
      const tall = 1 + 3 * (exposed![row]! / WHOLE);
      context.fillRect(x, top + this.rowHeight - 2 - tall, Math.max(0.75, scale.x(from + (bin![row]! + 1) * width) - x), tall);
    }
  }

  private drawCritical(plane: TimePlane, place: Map<number, number>): void {
    const { context, scale } = plane;
    const { critical } = this.app.run.meta;
    context.strokeStyle = palette().accent;
    // A path that goes to and fro between ranks would cover what they did.
    context.lineWidth = critical.length > MOST_CRITICAL ? 1 : 2;
    context.globalAlpha = critical.length > MOST_CRITICAL ? 0.6 : 1;
    context.beginPath();
    let joined = false;
    for (const { rank, begun, ended } of critical) {
      const top = place.get(rank);
      if (top === undefined) {
        joined = false;
        continue;
      }
      const y = top + 1;
      if (joined) context.lineTo(scale.x(begun), y);
      else context.moveTo(scale.x(begun), y);
      context.lineTo(scale.x(ended), y);
      joined = true;
    }
    context.stroke();
    context.globalAlpha = 1;
  }

  private tip(rows: Rows, row: number): string {
    const { run } = this.app;
    const lines = [run.string(rows.name[row]!) || (KIND_NAMES[rows.kind[row]!] ?? ''), run.rankName(rows.rank[row]!), time(rows.ended[row]! - rows.begun[row]!)];
    if (rows.begun[row]! > rows.entered[row]!) lines.push(`waited ${time(rows.begun[row]! - rows.entered[row]!)} for the others first`);
    if (rows.bytes[row]! > 0) lines.push(bytes(rows.bytes[row]!));
    return lines.join('\n');
  }

  /** Down into the collective that this piece was part of. */
  private enter(rows: Rows, row: number): void {
    const { app } = this;
    const rank = rows.rank[row]!;
    if (app.run.meta.kind === 'traffic') return app.open('connection', { host: rank, queuePair: null, from: rows.entered[row]!, to: rows.ended[row]!, at: rows.begun[row]! });
    const calls = this.calls.want(app.run, { most: 20_000 });
    let best = -1;
    if (calls) {
      const [communicator, begun, ended] = ['communicator', 'begun', 'ended'].map((name) => column(calls, name));
      let closest = Infinity;
      for (let call = 0; call < calls.rows; call++) {
        const members = app.run.meta.communicators[communicator![call]!]?.ranks;
        if (members && !members.includes(rank)) continue;
        const away = Math.abs(begun![call]! - rows.begun[row]!) + Math.abs(ended![call]! - rows.ended[row]!);
        if (away < closest) [closest, best] = [away, call];
      }
      if (best >= 0) {
        return app.open('collective', {
          communicator: communicator![best]!,
          sequence: column(calls, 'sequence')[best]!,
          from: begun![best]!,
          to: Math.max(ended![best]!, begun![best]! + 1000),
          at: (begun![best]! + ended![best]!) / 2,
        });
      }
    }
    app.open('collective');
  }
}

const NOTES = {
  traffic: 'a bar is a flow; good: all end together',
  collectives: 'a bar is a collective; good: all begin and end together',
  job: 'good: no red, and rows that end together',
  live: 'a bar is a call of a process, from its clock; good: all begin and end together',
};

function figures(value: number): string {
  return value.toFixed(value >= 100 ? 0 : 1);
}
