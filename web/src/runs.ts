// The runs that a page has: which of them is shown, and what they are called.
import type { App } from './app';
import { fill, make } from './draw/dom';
import { LEVEL_LIST } from './levels';
import { LEVELS } from './model/view';

interface Named {
  index: number;
  name: string;
}

/** This run and the one that was made from it by changing one thing, by their names; one alone where there is no other. */
export function pairOf(app: App): Named[] {
  const own = app.run.index === 0 || app.run.meta.change ? 0 : null;
  if (own === null) return [];
  const second = app.run.index > 0 ? app.run.index : app.view.beside || besideIndex(app);
  const change = second === null ? undefined : app.known(second)?.meta.change;
  const names = app.known(0)?.meta.runs;
  if (second === null || second === 0 || (!change && names?.[second]?.role !== 'beside')) return [];
  return [
    { index: 0, name: change?.was ?? names?.[0]?.name ?? 'this run' },
    { index: second, name: change?.name ?? names?.[second]?.name ?? `run ${second}` },
  ];
}

function besideIndex(app: App): number | null {
  const found = (app.known(0)?.meta.runs ?? []).findIndex(({ role }) => role === 'beside');
  return found > 0 ? found : null;
}

/** Turns from one run to the other. */
export function otherRun(app: App): void {
  const other = pairOf(app).find(({ index }) => index !== app.run.index);
  if (other) void app.turnTo(other.index);
}

/** The switch between the two, on every level. */
export class RunSwitch {
  readonly root = make('div', { class: 'row runs', role: 'group', 'aria-label': 'Which run', hidden: true });
  private shown = '';

  constructor(private app: App) {}

  show(): void {
    const { app } = this;
    const pair = pairOf(app);
    const both = app.besideRun !== null && app.run.index === 0;
    const hasBoth = LEVEL_LIST[LEVELS.indexOf(app.view.level)]!.both !== undefined;
    const key = JSON.stringify([pair, app.run.index, both, hasBoth]);
    if (key === this.shown) return;
    this.shown = key;
    this.root.hidden = pair.length < 2;
    if (pair.length < 2) return;
    const [first, second] = pair as [Named, Named];
    const button = (text: string, on: boolean, click: () => void) => make('button', { 'aria-pressed': String(on), click }, text);
    fill(
      this.root,
      make('span', { class: 'quiet' }, 'Run'),
      button(first.name, app.run.index === 0 && !(both && hasBoth), () => void app.turnTo(0)),
      button(second.name, app.run.index === second.index, () => void app.turnTo(second.index)),
      hasBoth ? button('both', both, () => void app.turnTo(0, second.index)) : null,
    );
  }
}
