// Level 8: queues, marks, pauses and rates; the same scenario again with another control beside it.
import type { App } from '../app';
import { absent, figure, fill, make, words } from '../draw/dom';
import { drawLines, type Line } from '../draw/lines';
import { CATEGORY, LINES, palette } from '../draw/palette';
import { TimePlane } from '../draw/time-plane';
import { Feed } from '../model/feed';
import { binsPerRow, loadsOf, seriesOf } from '../model/load';
import type { Run } from '../model/run';
import { column, type Table } from '../source/block';
import { bytes, count, rate, time } from '../words/units';
import { ownLensOf } from '../lens';
import { failurePanel } from './failure';
import type { Level, Scene } from './level';
import { drawTrees } from './pause-tree';
import { namesOf, Rerun } from './rerun';

const MOST_ROWS = 200_000;
const LINES_SHOWN = 5;

export const congestion: Level = {
  id: 'congestion',
  title: 'Congestion',
  lead: 'Where more came in than could go out. A switch first marks packets ([[ECN]]), the receiver tells the sender ([[CNP]]), which slows down. If that is too late, the switch stops its neighbour ([[PFC]]), and that one may have to stop its own.',
  both: 'own',
  make: (app) => new CongestionScene(app),
};

class CongestionScene implements Scene {
  readonly root: HTMLElement;
  private first: RunCharts;
  private second: RunCharts | null = null;
  private pair = make('div', { class: 'columns' });
  private rerun: Rerun;
  private example: RunCharts | null = null;
  private exampleBox = make('section', { class: 'stack', hidden: true });
  private asked = false;

  constructor(private app: App) {
    this.first = new RunCharts(app, app.run);
    this.rerun = new Rerun(app);
    this.root = make(
      'div',
      {},
      app.run.has('load')
        ? null
        : absent('This run was calculated without packets: there are no queues in it. One with queues:', 'railnet sim scenarios/incast.toml --record run.rail && railnet view run.rail'),
      this.rerun.root,
      this.pair,
      this.exampleBox,
    );
    fill(this.pair, this.first.root);
    this.pair.classList.remove('columns');
    const has = app.run.has('load');
    this.pair.hidden = this.rerun.root.hidden = !has;
  }

  show(): void {
    const { app } = this;
    const beside = app.view.beside === app.run.index ? null : app.view.beside;
    this.findExample();
    const run = beside === null ? undefined : app.known(beside);
    if (beside !== null && !run) app.other(beside).then(() => app.redraw(), () => app.go({ beside: null }));
    if (run && this.second?.run !== run) {
      this.second = new RunCharts(app, run);
      const { was, name } = namesOf(app.run, run);
      const named = (text: string, part: HTMLElement) => make('div', { class: 'stack' }, make('h2', { class: 'run' }, text), part);
      fill(this.pair, named(was, this.first.root), named(name, this.second.root));
      this.pair.classList.add('columns');
    } else if (!run && this.second) {
      this.second = null;
      fill(this.pair, this.first.root);
      this.pair.classList.remove('columns');
    }
    this.first.prepare();
    this.second?.prepare();
    const most = {
      queue: Math.max(this.first.deepest, this.second?.deepest ?? 0),
      trouble: Math.max(this.first.mostMarks, this.second?.mostMarks ?? 0),
    };
    this.rerun.show(this.second?.run ?? null);
    this.first.show(most);
    this.second?.show(most);
    if (this.example) {
      this.example.prepare();
      this.example.show({ queue: this.example.deepest, trouble: this.example.mostMarks });
    }
  }

  /** A run that met nothing shows another that did, in a time of its own, where the page has one. */
  private findExample(): void {
    const { app } = this;
    if (this.asked || app.run.hasCongestion || app.run.index !== 0) return;
    this.asked = true;
    const index = (app.run.meta.runs ?? []).findIndex(({ role }) => role === 'example');
    if (index < 0) return;
    void app.other(index).then((run) => {
      this.example = new RunCharts(ownLensOf(app, run), run);
      fill(
        this.exampleBox,
        make('h2', { class: 'run' }, `Nothing was marked, paused or dropped here. Beside it, ${run.meta.example ?? run.meta.name}`),
        make('p', { class: 'note' }, `${run.meta.name}: its own ${time(run.duration)}, its own numbers. `, make('button', { class: 'plain', click: () => void app.turnTo(index) }, 'look into it on every level')),
        this.example.root,
      );
      this.exampleBox.hidden = false;
      app.redraw();
    });
  }
}

/** The charts of one run; two of them side by side have the same scales. */
class RunCharts {
  readonly root: HTMLElement;
  deepest = 1;
  mostMarks = 1;
  private load: Feed;
  private rates: Feed;
  private pauses: Feed;
  private queues: TimePlane;
  private marks: TimePlane;
  private speed: TimePlane;
  private legend = make('div', { class: 'legend' });
  private tree = make('div', { class: 'panel' });
  private common = { queue: 1, trouble: 1 };
  private joined = 1;
  private ratesOf: Table | null = null;
  private rateLines: Line[] = [];
  private kept = '';
  private treeKept = '';
  private lines: Line[] = [];
  private totals: { time: number; marks: number; paused: number; drops: number }[] = [];

  constructor(
    private app: App,
    readonly run: Run,
  ) {
    this.load = new Feed('load', () => app.redraw());
    this.rates = new Feed('rates', () => app.redraw());
    this.pauses = new Feed('pauses', () => app.redraw());
    this.queues = new TimePlane(app, {
      title: 'Queues',
      note: 'bytes waiting, the longest queues. Good: short',
      height: 190,
      left: () => 64,
      draw: (plane) => drawLines(plane, this.lines, this.common.queue, bytes),
      version: () => `${this.kept} ${this.common.queue}`,
    });
    this.marks = new TimePlane(app, {
      title: 'Marks and pauses',
      note: `[[ECN]] marks by time (bars), links ${run.meta.credits ? 'that wait for [[link credit]]' : 'held back'} (purple), drops (red). Good: few marks, no ${run.meta.credits ? 'wait' : 'pause'}, no drop`,
      height: 110,
      left: () => 64,
      draw: (plane) => this.drawMarks(plane),
      version: () => `${this.kept} ${this.common.trouble}`,
    });
    this.speed = new TimePlane(app, {
      title: 'Rates',
      note: 'Gbps that senders allow themselves. Good: lines that meet, high and calm',
      height: 170,
      left: () => 64,
      draw: (plane) => this.drawRates(plane),
      version: () => `${this.rates.version} ${this.rateLines.length}`,
    });
    // Where nothing happened a line says so, and no empty charts do.
    const calm = !run.hasCongestion && !run.has('rates') && !run.has('pauses');
    for (const part of [this.marks.root, this.speed.root, this.tree]) part.hidden = calm;
    const said = calm && run.has('load') ? make('p', { class: 'note' }, 'No mark, no pause, no drop: no sender was told to slow down, and nobody was stopped.') : null;
    this.root = make('div', { class: 'stack' }, failurePanel(app, run), this.numbers(), this.queues.root, this.legend, said, this.marks.root, this.speed.root, this.tree);
  }

  show(common: { queue: number; trouble: number }): void {
    this.common = common;
    this.queues.paint();
    this.marks.paint();
    this.speed.paint();
  }

  private numbers(): HTMLElement {
    const { network } = this.run;
    const box = make('div', { class: 'numbers' });
    if (network) {
      box.append(
        figure(bytes(network.max_queue_bytes), 'longest queue'),
        figure(count(network.marks), words('[[ECN]] marks'), words(`${count(network.notifications)} [[CNP|CNP]]s`)),
        figure(count(network.pauses), 'pauses', time(network.paused_us * 1e6)),
        figure(count(network.drops), 'dropped', `${count(network.resent)} sent again`),
        figure(time(network.completion_us * 1e6), this.run.meta.report.error ? 'given up' : 'all done', this.run.control),
      );
    }
    return box;
  }

  /** Takes the rows of the window apart, before anything is drawn: both runs have to agree on scales. */
  prepare(): void {
    const { view } = this.app;
    this.showTree();
    const table = this.load.window(this.run, view.from, view.to, { most: MOST_ROWS });
    const { bins } = this.run.meta;
    if (!table || !bins) return;
    const key = `${view.from} ${view.to} ${table.rows} ${this.load.waiting}`;
    if (key === this.kept) return;
    this.kept = key;
    const loads = loadsOf(this.run, table, view.from, view.to);
    const order = [...loads.queue.keys()].sort((a, b) => loads.queue[b]! - loads.queue[a]!).filter((channel) => loads.queue[channel]! > 0);
    const shown = order.slice(0, LINES_SHOWN);
    this.deepest = Math.max(1, loads.queue[shown[0] ?? 0] ?? 1);
    this.lines = shown.map((channel, index) => ({
      name: this.run.channelName(channel),
      colour: LINES[index]!,
      points: gaps(seriesOf(table, channel, 'queue'), bins.width * binsPerRow(table)),
    }));
    fill(
      this.legend,
      ...this.lines.map(({ name, colour }) => {
        const box = make('i', {});
        box.style.background = colour;
        return make('span', {}, box, name);
      }),
    );
    this.joined = binsPerRow(table);
    this.totals = totalsOf(table, bins.width);
    this.mostMarks = this.totals.reduce((most, each) => Math.max(most, each.marks), 1);
  }

  private drawMarks(plane: TimePlane): void {
    const { context, left, right, bottom, scale } = plane;
    const width = (this.run.meta.bins?.width ?? 1) * this.joined;
    context.save();
    context.beginPath();
    context.rect(left, 0, right - left, bottom);
    context.clip();
    for (const each of this.totals) {
      const x = scale.x(each.time);
      const wide = Math.max(1, scale.x(each.time + width) - x);
      if (each.marks > 0) {
        const tall = (each.marks / this.common.trouble) * (bottom - 24);
        context.fillStyle = CATEGORY.orange;
        context.fillRect(x, bottom - tall, wide, tall);
      }
      context.fillStyle = CATEGORY.purple;
      if (each.paused > 0) context.fillRect(x, 2, wide, 6);
      context.fillStyle = CATEGORY.vermilion;
      if (each.drops > 0) context.fillRect(x, 10, wide, 6);
    }
    context.restore();
    drawLines(plane, [], this.common.trouble, count, 18);
    if (this.totals.length > 0 && !this.totals.some((each) => each.marks + each.paused + each.drops > 0)) {
      context.fillStyle = palette().quiet;
      context.fillText('No mark, no pause, no drop.', left + 10, 40);
    }
  }

  private drawRates(plane: TimePlane): void {
    const table = this.rates.want(this.run, { most: 20_000 });
    if (!table) return;
    const most = this.run.meta.fabric.links.reduce((high, link) => Math.max(high, link.rate), 1);
    if (this.ratesOf !== table) {
      this.ratesOf = table;
      void this.findRates(table, most);
    }
    drawLines(plane, this.rateLines, most, (each) => rate(each).replace(' Gbps', ''));
    if (table.rows === 0 && !this.rates.waiting) plane.context.fillText('No sender was told to slow down.', plane.left + 10, 34);
  }

  /** All rates of the senders that were slowed down most: of a sample of many rows a line would miss most of its corners. */
  private async findRates(table: Table, most: number): Promise<void> {
    const [host, pair, value] = ['host', 'queue_pair', 'rate'].map((name) => column(table, name));
    const lowest = new Map<string, { host: number; queue_pair: number; rate: number }>();
    for (let row = 0; row < table.rows; row++) {
      const key = `${host![row]} ${pair![row]}`;
      const known = lowest.get(key);
      if (!known) lowest.set(key, { host: host![row]!, queue_pair: pair![row]!, rate: value![row]! });
      else known.rate = Math.min(known.rate, value![row]!);
    }
    const chosen = [...lowest.values()].sort((a, b) => a.rate - b.rate).slice(0, lowest.size <= 24 ? 24 : 8);
    const tables = await Promise.all(chosen.map(({ host, queue_pair }) => this.run.rows('rates', { host, queue_pair, most: 4000 })));
    this.rateLines = tables.map((rows, index) => {
      const [when, rates] = [column(rows, 'time'), column(rows, 'rate')];
      const points = [{ time: 0, value: most }];
      for (let row = 0; row < rows.rows; row++) points.push({ time: when[row]!, value: rates[row]! });
      return { name: this.run.vertexName(chosen[index]!.host), colour: LINES[index % LINES.length]!, points, steps: true };
    });
    this.app.redraw();
  }

  /** Who stopped whom, for how long. */
  private showTree(): void {
    const { view } = this.app;
    const table = this.pauses.window(this.run, view.from, view.to, { most: MOST_ROWS });
    if (!table || this.pauses.waiting) return;
    const key = `${view.from} ${view.to} ${table.rows}`;
    if (key === this.treeKept) return;
    this.treeKept = key;
    fill(this.tree, ...drawTrees(this.run, table, view.from, view.to));
  }
}

/** A queue is empty in bins that are not in the table. */
function gaps(series: { bin: number; value: number }[], width: number): { time: number; value: number }[] {
  const out: { time: number; value: number }[] = [];
  let before = -2;
  for (const { bin, value } of series) {
    if (bin > before + 1) {
      if (before >= 0) out.push({ time: (before + 1) * width, value: 0 });
      out.push({ time: bin * width, value: 0 });
    }
    out.push({ time: (bin + 0.5) * width, value });
    before = bin;
  }
  if (before >= 0) out.push({ time: (before + 1) * width, value: 0 });
  return out;
}

function totalsOf(table: Table, width: number): { time: number; marks: number; paused: number; drops: number }[] {
  const [bin, marks, paused, drops] = ['bin', 'marks', 'paused', 'drops'].map((name) => column(table, name));
  const out = new Map<number, { time: number; marks: number; paused: number; drops: number }>();
  for (let row = 0; row < table.rows; row++) {
    if (!marks![row] && !paused![row] && !drops![row]) continue;
    let each = out.get(bin![row]!);
    if (!each) out.set(bin![row]!, (each = { time: bin![row]! * width, marks: 0, paused: 0, drops: 0 }));
    each.marks += marks![row]!;
    each.paused += paused![row]!;
    each.drops += drops![row]!;
  }
  return [...out.values()];
}
