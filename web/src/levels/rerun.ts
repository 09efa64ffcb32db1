// The switch that runs the scenario again with something changed, and the two runs in numbers.
import type { App } from '../app';
import { fill, make, words } from '../draw/dom';
import type { Run } from '../model/run';
import { bytes, count, time } from '../words/units';

const CHOICES: { key: string; name: string; values: [string, string][] }[] = [
  { key: 'nic.control', name: 'congestion control', values: [['dcqcn', 'DCQCN'], ['hpcc', 'HPCC'], ['swift', 'Swift'], ['timely', 'TIMELY'], ['none', 'none']] },
  { key: 'fabric.routing', name: 'routing', values: [['ecmp', 'ECMP'], ['flowlet', 'flowlet'], ['adaptive', 'adaptive'], ['spray', 'spray']] },
  { key: 'faults', name: 'faults', values: [['', 'none']] },
];
const POLL_MS = 300;

export class Rerun {
  readonly root = make('div', { class: 'panel' });
  private what = make('select', { 'aria-label': 'What to change' });
  private value = make('select', { 'aria-label': 'To what' });
  private button = make('button', { click: () => void this.start() }, 'Run again');
  private progress = make('progress', { max: '1', value: '0', hidden: true, 'aria-label': 'Progress' });
  private said = make('span', { class: 'quiet', role: 'status' });
  private table = make('div', {});
  private shown: Run | null = null;

  constructor(private app: App) {
    fill(this.what, ...CHOICES.map(({ key, name }) => make('option', { value: key }, name)));
    this.what.addEventListener('change', () => this.values());
    this.values();
    if (app.source.canRerun) {
      fill(
        this.root,
        make('h2', {}, 'What if?'),
        make('div', { class: 'row' }, 'The same scenario with', this.what, this.value, this.button, this.progress, this.said),
        this.table,
      );
    } else {
      fill(this.root, make('h2', {}, 'What if?'), make('p', { class: 'note' }, words('A report cannot run anything. Served by railnet view, this page runs the scenario again with another congestion control, routing or without its faults, and shows both side by side.')), this.table);
    }
  }

  /** Both runs in numbers, once there are two. */
  show(other: Run | null): void {
    if (other === this.shown) return;
    this.shown = other;
    if (!other) return fill(this.table);
    const { was, name } = namesOf(this.app.run, other);
    const [a, b] = [this.app.run.network, other.network];
    if (!a || !b) return;
    const rows: [string, string, string, number, number][] = [
      ['all done', done(this.app.run, a.completion_us), done(other, b.completion_us), a.completion_us, b.completion_us],
      ['longest queue', bytes(a.max_queue_bytes), bytes(b.max_queue_bytes), a.max_queue_bytes, b.max_queue_bytes],
      ['ECN marks', count(a.marks), count(b.marks), a.marks, b.marks],
      ['held back', time(a.paused_us * 1e6), time(b.paused_us * 1e6), a.paused_us, b.paused_us],
      ['dropped', count(a.drops), count(b.drops), a.drops, b.drops],
      ['sent again', count(a.resent), count(b.resent), a.resent, b.resent],
    ];
    fill(
      this.table,
      make(
        'table',
        {},
        make('tr', {}, make('th', {}, 'less is better'), make('th', { class: 'figure' }, `${was}, on the left`), make('th', { class: 'figure' }, `${name}, on the right`), make('th', {}, '')),
        ...rows.map(([name, left, right, was, is]) =>
          make('tr', {}, make('td', {}, name), make('td', { class: 'figure' }, left), make('td', { class: 'figure' }, right), make('td', { class: 'quiet' }, verdict(was, is))),
        ),
      ),
      make('button', { click: () => void this.app.turnTo(this.app.run.index) }, 'Only this run'),
    );
  }

  private values(): void {
    const choice = CHOICES.find(({ key }) => key === this.what.value) ?? CHOICES[0]!;
    const current = choice.key === 'nic.control' ? this.app.run.control : '';
    fill(this.value, ...choice.values.map(([value, name]) => make('option', { value, selected: value !== current && value === (current === 'hpcc' ? 'dcqcn' : 'hpcc') }, name)));
  }

  private async start(): Promise<void> {
    const { app } = this;
    this.button.disabled = true;
    this.progress.hidden = false;
    this.progress.value = 0;
    this.said.textContent = '';
    try {
      const run = await app.source.rerun(this.what.value, this.value.value);
      for (;;) {
        const state = await app.source.progress(run);
        if (state.state === 'failed') throw new Error(state.error);
        if (state.state === 'done') break;
        this.progress.value = state.share;
        await new Promise((wake) => setTimeout(wake, POLL_MS));
      }
      await app.other(run);
      app.go({ beside: run });
    } catch (error) {
      this.said.textContent = error instanceof Error ? error.message : String(error);
    } finally {
      this.button.disabled = false;
      this.progress.hidden = true;
    }
  }
}

/** What two runs are called where one was made from the other. */
export function namesOf(run: Run, other: Run): { was: string; name: string } {
  const { change } = other.meta;
  return { was: change?.was ?? run.meta.change?.name ?? 'this run', name: change?.name ?? 'the other run' };
}

function done(run: Run, at_us: number): string {
  return run.meta.report.error ? `never; given up at ${time(at_us * 1e6)}` : time(at_us * 1e6);
}

function verdict(was: number, is: number): string {
  if (was === is) return 'the same';
  if (was === 0) return 'more';
  const change = (is - was) / was;
  return `${change < 0 ? '−' : '+'}${Math.abs(change * 100).toFixed(Math.abs(change) < 0.1 ? 1 : 0)} %`;
}
