// Level 4: ranks × streams over time, with what is exposed, what is critical and who comes last.
import type { App } from '../app';
import { absent, figure, fill, make, words } from '../draw/dom';
import { EXPOSED, KINDS, KIND_NAMES, palette } from '../draw/palette';
import { clipped, SMALL } from '../draw/plane';
import { TimePlane } from '../draw/time-plane';
import { Feed } from '../model/feed';
import { column, type Table } from '../source/block';
import { bytes, count, rate, share, time } from '../words/units';
import type { Level, Scene } from './level';
import { COMMUNICATION, exposedSpans, rowsOf, waitedFor, type Rows, type Span } from './step-rows';

const MOST_ROWS = 30_000;
const PAGE = 16;

export const step: Level = {
  id: 'step',
  title: 'The step',
  lead: 'What each [[rank]] did and when. Communication that hides behind arithmetic costs nothing; [[exposed communication]] is time in which GPUs wait. Click a piece of communication to see it from inside.',
  make: (app) => new StepScene(app),
};

class StepScene implements Scene {
  readonly root: HTMLElement;
  private feed: Feed;
  private calls: Feed;
  private sample: Feed;
  private streams: number[] = [];
  /** Ranks of which something was recorded; those that are alike are recorded once. */
  private recorded: number[] = [];
  private left = make('span', { class: 'quiet' });
  private chart: TimePlane;
  private pager = make('div', { class: 'row' });
  private start = 0;
  private shown: number[] = [];
  private paged = '';
  private known: { table: Table; rows: Rows; exposed: Map<number, Span[]> | null; waits: Map<number, number> } | null = null;

  constructor(private app: App) {
    this.feed = new Feed('operations', () => app.redraw());
    this.calls = new Feed('calls', () => app.redraw());
    this.sample = new Feed('operations', () => app.redraw());
    this.chart = new TimePlane(app, {
      title: app.run.meta.kind === 'traffic' ? 'Flows by sender' : 'Ranks over time',
      note: { traffic: 'a bar is a flow; good: all end together', collectives: 'a bar is a collective; good: all begin and end together', job: 'good: no red, and rows that end together', live: 'a bar is a call of a process, from its clock; good: all begin and end together' }[app.run.meta.kind],
      height: () => Math.max(2, this.shown.length) * this.rowHeight + 34,
      left: (width) => (width < 500 ? 46 : 92),
      draw: (plane) => this.draw(plane),
      version: () => `${this.rows()?.rows} ${this.feed.version} ${this.shown.join(' ')} ${this.streams.length}`,
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
    this.root = make(
      'div',
      {},
      this.numbers(),
      app.run.has('operations') ? null : absent('This run has no record of what its ranks did. Record it again: railnet sim SCENARIO --record FILE'),
      make('div', { class: 'row' }, this.pager, this.left, legend),
      this.chart.root,
      this.shares(),
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
    const all = meta.ranks.length || meta.fabric.hosts.length;
    const chosen = app.view.node === null ? null : meta.nodes[app.view.node];
    const own = this.recorded.filter((rank) => chosen?.ranks.includes(rank));
    const node = own.length > 0 ? chosen : null;
    const ranks = node ? own : this.recorded;
    this.start = Math.min(this.start, Math.max(0, ranks.length - 1));
    this.shown = ranks.slice(this.start, this.start + PAGE);
    const key = JSON.stringify([this.shown, app.view.node, ranks.length]);
    if (key !== this.paged) {
      this.paged = key;
      const turn = (text: string, to: number, off: boolean) =>
        make('button', { disabled: off, click: () => ((this.start = Math.max(0, to)), app.redraw()) }, text);
      fill(
        this.pager,
        node ? make('button', { click: () => app.go({ node: null }) }, `${node.name} ✕`) : null,
        ranks.length > PAGE ? turn('‹', this.start - PAGE, this.start === 0) : null,
        make('span', { class: 'quiet' }, this.which(all, ranks)),
        ranks.length > PAGE ? turn('›', this.start + PAGE, this.start + PAGE >= ranks.length) : null,
      );
    }
    this.chart.paint();
  }

  private which(all: number, ranks: number[]): string {
    const noun = this.app.run.meta.ranks.length ? 'rank' : 'host';
    const [first, last] = [this.shown[0] ?? 0, this.shown[this.shown.length - 1] ?? 0];
    const shown = first === last ? `${noun} ${first}` : `${noun}s ${first} to ${last}`;
    const jobs = this.app.run.meta.kind === 'job';
    const alike = this.recorded.length < all ? `; ${count(this.recorded.length)} ${jobs ? 'recorded, the others are like them' : 'had something to send'}` : '';
    return `${shown} of ${count(all)}${ranks.length > this.shown.length ? `, ${this.shown.length} at a time` : ''}${alike}`;
  }

  /** Streams in which something happens in this run, whatever the window: lanes do not come and go. */
  private findStreams(): void {
    const table = this.sample.want(this.app.run, { most: 4000 });
    if (!table || this.streams.length > 0) return;
    this.streams = [...new Set(column(table, 'stream') as Uint8Array)].sort((a, b) => a - b);
    this.recorded = [...new Set(column(table, 'rank') as Uint32Array)].sort((a, b) => a - b);
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
          ? figure(`rank ${job.slowest.rank}`, words('[[straggler|straggler]]'), `others wait ${time(job.slowest.others_waited_us * 1e6)} for it, all together`)
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

  private shares(): HTMLElement | null {
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

  private take(table: Table): NonNullable<typeof this.known> {
    if (this.known?.table !== table) {
      const rows = rowsOf(table);
      // With rows left out there are gaps that mean nothing.
      const whole = table.total <= table.rows && this.app.run.meta.kind === 'job';
      this.known = { table, rows, exposed: whole ? exposedSpans(rows) : null, waits: waitedFor(rows) };
    }
    return this.known;
  }

  private rows(): Table | null {
    const { run, view } = this.app;
    return this.feed.window(run, view.from, view.to, { most: MOST_ROWS });
  }

  private draw(plane: TimePlane): void {
    const { app } = this;
    const { run, view } = app;
    const table = this.rows();
    this.calls.want(run, { most: 20_000 });
    const { context, left, right, bottom, scale } = plane;
    const colours = palette();
    const height = this.rowHeight;
    const place = new Map(this.shown.map((rank, index) => [rank, index * height]));
    const known = table ? this.take(table) : null;
    this.drawNames(plane, known?.waits ?? new Map());
    if (!known) return;
    const { rows, exposed } = known;
    context.save();
    context.beginPath();
    context.rect(left, 0, right - left, bottom);
    context.clip();
    const traffic = run.meta.kind === 'traffic';
    const lane = (height - 6) / this.lanes;
    for (let row = 0; row < rows.count; row++) {
      const top = place.get(rows.rank[row]!);
      if (top === undefined || rows.entered[row]! > view.to || rows.ended[row]! < view.from) continue;
      const kind = rows.kind[row]!;
      const y = top + 2 + Math.max(0, this.streams.indexOf(rows.stream[row]!)) * lane;
      const from = scale.x(rows.begun[row]!);
      const wide = Math.max(0.75, scale.x(rows.ended[row]!) - from);
      if (rows.entered[row]! < rows.begun[row]!) {
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
    if (exposed) this.drawExposed(plane, exposed, place);
    this.drawCritical(plane, place);
    context.restore();
    const missing = table && table.total > table.rows ? `${count(table.rows)} of ${count(table.total)} pieces drawn; zoom in for all` : '';
    if (this.left.textContent !== missing) this.left.textContent = missing;
  }

  private drawNames(plane: TimePlane, waits: Map<number, number>): void {
    const { context, left } = plane;
    const colours = palette();
    const { run } = this.app;
    const worst = Math.max(0, ...waits.values());
    this.shown.forEach((rank, index) => {
      const y = index * this.rowHeight;
      context.fillStyle = colours.line;
      context.fillRect(0, y + this.rowHeight - 2, plane.width, 1);
      context.fillStyle = colours.ink;
      context.font = SMALL;
      const name = run.meta.ranks.length ? (left > 60 ? `rank ${rank}` : String(rank)) : run.vertexName(rank);
      context.fillText(clipped(context, name, left - 20), 0, y + this.rowHeight / 2 - 1);
      const lost = waits.get(rank) ?? 0;
      if (lost > 0 && lost >= worst * 0.5) {
        context.fillStyle = EXPOSED;
        context.fillText('▲', left - 16, y + this.rowHeight / 2 - 1);
        plane.hits.push({ x: left - 18, y, w: 14, h: this.rowHeight, tip: `Others waited ${time(lost)} for rank ${rank} in this window, all together` });
      }
      plane.hits.push({ x: 0, y, w: left - 20, h: this.rowHeight - 2, tip: run.rankName(rank) });
    });
  }

  private drawExposed(plane: TimePlane, exposed: Map<number, Span[]>, place: Map<number, number>): void {
    const { context, scale } = plane;
    context.fillStyle = EXPOSED;
    for (const [rank, top] of place) {
      for (const [from, to] of exposed.get(rank) ?? []) {
        context.fillRect(scale.x(from), top + this.rowHeight - 6, Math.max(0.75, scale.x(to) - scale.x(from)), 3);
      }
    }
  }

  private drawCritical(plane: TimePlane, place: Map<number, number>): void {
    const { context, scale } = plane;
    context.strokeStyle = palette().accent;
    context.lineWidth = 2;
    context.beginPath();
    let joined = false;
    for (const { rank, begun, ended } of this.app.run.meta.critical) {
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
          at: begun![best]!,
        });
      }
    }
    app.open('collective');
  }
}

function figures(value: number): string {
  return value.toFixed(value >= 100 ? 0 : 1);
}
