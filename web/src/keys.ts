// Everything by keyboard.
import type { App } from './app';
import { make } from './draw/dom';
import { hideTip, tipIsOpen } from './draw/tip';
import { LEVELS, startView, type LevelId } from './model/view';

const KEYS: [string, string][] = [
  ['Space', 'play, pause'],
  ['← →', 'one step back, on'],
  ['+ −', 'zoom in, out around the moment'],
  ['0', 'the whole run'],
  ['Shift ← →', 'move the window'],
  ['Esc', 'one level up'],
  ['1 … 9', 'levels 1 to 9; [ and ] the one before and after'],
  [', .', 'in a chart (Tab reaches it): the mark before, after; Enter opens it'],
  ['T', 'the tour'],
  ['D', 'light, dark'],
  ['?', 'this list'],
];

/** Levels that lead down into each other; Esc goes the other way. */
const UP: Partial<Record<LevelId, LevelId>> = { step: 'cluster', collective: 'step', connection: 'collective', packet: 'connection' };

export class Keys {
  readonly help: HTMLDialogElement;

  constructor(
    private app: App,
    private theme: () => void,
  ) {
    const list = make('dl', {});
    for (const [key, text] of KEYS) list.append(make('dt', {}, make('kbd', {}, key)), make('dd', {}, text));
    this.help = make(
      'dialog',
      { 'aria-label': 'Keys' },
      make('h2', {}, 'Keys'),
      list,
      make('button', { click: () => this.help.close() }, 'Close'),
    );
    this.help.addEventListener('click', (event) => {
      if (event.target === this.help) this.help.close();
    });
    addEventListener('keydown', (event) => this.press(event));
  }

  private press(event: KeyboardEvent): void {
    if (event.ctrlKey || event.metaKey || event.altKey || this.help.open) return;
    const target = event.target as HTMLElement;
    if (/^(INPUT|SELECT|TEXTAREA)$/.test(target.tagName)) return;
    if ((event.key === ' ' || event.key === 'Enter') && /^(BUTTON|A|SUMMARY)$/.test(target.tagName)) return;
    if (this.act(event)) event.preventDefault();
  }

  private act(event: KeyboardEvent): boolean {
    const { app } = this;
    const { key } = event;
    if (key === ' ') app.play();
    else if (key === 'ArrowLeft' || key === 'ArrowRight') {
      const direction = key === 'ArrowLeft' ? -1 : 1;
      if (event.shiftKey) app.pan((direction * (app.view.to - app.view.from)) / 4);
      else app.step(direction);
    } else if (key === '+' || key === '=') app.zoom(2);
    else if (key === '-' || key === '−') app.zoom(0.5);
    else if (key === '0') app.window(0, app.run.duration);
    else if (key === 'Escape') up(app);
    else if (/^[1-9]$/.test(key)) app.open(LEVELS[Number(key) - 1]!);
    else if (key === '[' || key === ']') {
      const at = LEVELS.indexOf(app.view.level) + (key === '[' ? -1 : 1);
      if (LEVELS[at]) app.open(LEVELS[at]!);
    } else if (key === 't' || key === 'T') app.go({ tour: !app.view.tour });
    else if (key === 'd' || key === 'D') this.theme();
    else if (key === '?') this.help.showModal();
    else return false;
    return true;
  }
}

/** One level up: first what is open, then what is chosen, then the level, then the window. */
export function up(app: App): void {
  const { view } = app;
  if (tipIsOpen()) return hideTip();
  if (view.tour) return app.go({ tour: false });
  if (view.level === 'cluster') {
    if (view.leaf !== null || view.link !== null || view.node !== null) return app.go({ leaf: null, link: null, node: null });
    const { duration } = app.run;
    return app.go({ from: 0, to: duration, at: startView(duration).at });
  }
  app.open(UP[view.level] ?? 'cluster');
}
