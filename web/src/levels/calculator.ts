// The planner's questions as inputs, and its answers as bars: what a job needs of its network, and what there is.
import type { App } from '../app';
import { figure, fill, make, note, words } from '../draw/dom';
import { CATEGORY, EXPOSED } from '../draw/palette';
import { bytes, share, time } from '../words/units';

/** What `railnet plan --json` says of a dimension, as far as it is drawn. */
interface Dimension {
  dimension: string;
  bytes: number;
  gpu_sends_bytes: number;
  exposed_us: number;
  hidden: boolean;
  nodes: number;
  needed_bytes_per_s: Record<Basis, number>;
}

export interface Plan {
  step_us: number;
  compute_us: number;
  exposed_us: number;
  gpus: number;
  nodes: number;
  gpu: string;
  fits: boolean;
  memory_bytes: { total: number };
  gpu_memory_bytes: number;
  available_bytes_per_s: Record<Basis, number>;
  dimensions: Dimension[];
  layouts: { tp: number; pp: number; dp: number; zero: number; step_us: number }[];
}

type Basis = 'gpu' | 'node' | 'nic';
const BASES: [Basis, string][] = [
  ['gpu', 'each GPU'],
  ['node', 'each server'],
  ['nic', 'each NIC'],
];
/** Less than this is no traffic to plan for. */
const LEAST_BYTES = 1e6;
const WAIT_MS = 250;

const INPUTS: [name: string, label: string, value: string][] = [
  ['params', 'parameters', '70B'],
  ['gpus', 'GPUs', '64'],
  ['cluster', 'server', 'dgx-h100'],
  ['compute', 'computing takes', '200ms'],
  ['tp', 'tensor', ''],
  ['pp', 'pipeline', ''],
  ['zero', 'ZeRO', ''],
];

export class Calculator {
  readonly root = make('section', { class: 'panel' });
  private answer = make('div', { class: 'answer' });
  private said = make('p', { class: 'note', role: 'status' });
  private inputs = new Map<string, HTMLInputElement>();
  private asked = 0;
  private timer = 0;

  constructor(private app: App) {
    fill(this.root, make('h2', {}, 'What would it take?'));
    if (!app.source.canRerun) {
      this.root.append(note(words('A report cannot compute. Served by railnet view, this is a calculator; on the command line it is '), make('code', {}, 'railnet plan --params 70B --gpus 64 --compute 200ms')));
      return;
    }
    const row = make('div', { class: 'row' });
    for (const [name, label, value] of INPUTS) {
      const input = make('input', { value, size: '6', 'aria-label': label, spellcheck: 'false', autocomplete: 'off', input: () => this.later() });
      this.inputs.set(name, input);
      row.append(make('label', {}, `${label} `, input));
    }
    this.root.append(note(words('A model, GPUs and the time in which they compute: the bandwidth that would hide its communication behind that, and what there is. By formulas, as railnet plan has them.')), row, this.answer, this.said);
    void this.ask();
  }

  private later(): void {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => void this.ask(), WAIT_MS);
  }

  private async ask(): Promise<void> {
    const number = ++this.asked;
    const options = Object.fromEntries([...this.inputs].map(([name, input]) => [name, input.value.trim()]));
    try {
      const plan = await this.app.source.plan(options);
      if (number !== this.asked) return;
      this.said.textContent = '';
      this.show(plan);
    } catch (error) {
      // What was answered last stays: a number half typed is no reason to jump.
      if (number === this.asked) this.said.textContent = error instanceof Error ? error.message : String(error);
    }
  }

  private show(plan: Plan): void {
    const bars = make('div', { class: 'bars' });
    const said = plan.dimensions.filter((each) => each.bytes > LEAST_BYTES);
    for (const [basis, name] of BASES) {
      const there = plan.available_bytes_per_s[basis];
      const needed = said.filter((each) => basis === 'gpu' || each.nodes > 1).reduce((sum, each) => sum + each.needed_bytes_per_s[basis], 0);
      if (needed === 0 || there === 0) continue;
      const most = Math.max(needed, there);
      for (const [what, value, colour] of [
        [`${name} needs`, needed, needed > there ? EXPOSED : CATEGORY.green],
        [`${name} has`, there, CATEGORY.blue],
      ] as const) {
        const bar = make('div', { class: 'bar' });
        bar.style.background = colour;
        bar.style.width = `${(value / most) * 100}%`;
        bars.append(make('span', {}, what), bar, make('span', {}, `${bytes(value)}/s`));
      }
    }
    const best = plan.layouts[0];
    fill(
      this.answer,
      make(
        'div',
        { class: 'numbers' },
        figure(time(plan.step_us * 1e6), 'a step', `on ${plan.nodes} servers, ${plan.gpu}`),
        figure(time(plan.exposed_us * 1e6), words('[[exposed communication]]'), `${share(plan.exposed_us / plan.step_us)} of the step`),
        figure(bytes(said.reduce((sum, each) => sum + each.gpu_sends_bytes, 0)), 'through each GPU', 'in a step'),
        figure(bytes(plan.memory_bytes.total), plan.fits ? 'memory of a GPU' : 'does not fit', `of ${bytes(plan.gpu_memory_bytes)}`),
        best ? figure(time(best.step_us * 1e6), 'the best layout that fits', `tp ${best.tp}, pp ${best.pp}, dp ${best.dp}, ZeRO ${best.zero}`) : null,
      ),
      note('Bandwidth to hide the communication behind computing. Good: green, what is needed is there.'),
      bars,
    );
  }
}
