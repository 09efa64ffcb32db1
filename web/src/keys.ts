// Everything by keyboard.
import type { App } from './app';
import { make } from './draw/dom';
import { hideTip } from './draw/tip';
import { otherRun } from './runs';
import { turnTour } from './tour';
import { LEVELS, startView, type LevelId } from './model/view';

const KEYS: [string, string][] = [
  ['Space', 'play, pause'],
  ['W S', 'zoom in, out around the moment; + and − do the same'],
  ['A D', 'move the window back, on; Shift ← → do the same'],
  ['← →', 'one step back, on'],
  ['0 F', 'the whole run; F first what is chosen, a collective or a message'],
  ['/', 'search: rank, host, QP, PSN'],
  ['Esc', 'one level up'],
  ['1 … 9', 'levels 1 to 9; [ and ] the one before and after'],
  [', .', 'in a chart (Tab reaches it): the mark before, after; Enter opens it'],
  ['B', 'the other run, where there are two'],
  ['T', 'the tour'],
  ['L', 'light, dark'],
  ['?', 'this list'],
  ['drag', 'on a chart: choose a window; double click: the whole run'],
  ['Ctrl wheel', 'on a chart: zoom there; wheel sideways: move'],
];

/** Levels that lead down into each other; Esc goes the other way. */
const UP: Partial<Record<LevelId, LevelId>> = { step: 'cluster', collective: 'step', connection: 'collective', packet: 'connection' };

export class Keys {
  readonly help: HTMLDialogElement;

  constructor(
    private app: App,
    private theme: () => void,
    private search: () => void,
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
    } else if (/^[+=wW]$/.test(key)) app.zoom(2);
    else if (/^[-−sS]$/.test(key)) app.zoom(0.5);
    else if (/^[aAdD]$/.test(key)) app.pan(((/a/i.test(key) ? -1 : 1) * (app.view.to - app.view.from)) / 4);
    else if (key === '0') app.window(0, app.duration);
    else if (key === 'f' || key === 'F') app.scene?.fit?.() || app.window(0, app.duration);
    else if (key === '/') this.search();
    else if (key === 'b' || key === 'B') otherRun(app);
    else if (key === 'Escape') up(app);
    else if (/^[1-9]$/.test(key)) app.open(LEVELS[Number(key) - 1]!);
    else if (key === '[' || key === ']') {
      const at = LEVELS.indexOf(app.view.level) + (key === '[' ? -1 : 1);
      if (LEVELS[at]) app.open(LEVELS[at]!);
    } else if (key === 't' || key === 'T') turnTour(app);
    else if (key === 'l' || key === 'L') this.theme();
    else if (key === '?') this.help.showModal();
    else return false;
    return true;
  }
}

/** One level up: first what is open, then what is chosen, then the level, then the window. */
export function up(app: App): void {
  const { view } = app;
  hideTip();
  if (view.tour) return app.go({ tour: false });
  if (view.level === 'cluster') {
    if (view.leaf !== null || view.link !== null || view.node !== null) return app.go({ leaf: null, link: null, node: null });
    const { duration } = app;
    return app.go({ from: 0, to: duration, at: startView(duration).at });
  }
  app.open(UP[view.level] ?? 'cluster');
}
