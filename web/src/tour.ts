// The card that walks through the levels.
import type { App } from './app';
import { fill, make, words } from './draw/dom';
import { TOUR } from './words/tour';

/** Begins the tour where it begins, or ends it. */
export function turnTour(app: App): void {
  if (app.view.tour) app.go({ tour: false });
  else app.open(TOUR[0]!.level, { tour: true });
}

export class Tour {
  readonly root: HTMLElement = make('aside', { id: 'tour', hidden: true, 'aria-label': 'Tour' });
  private shown = '';

  constructor(private app: App) {}

  show(): void {
    const { app } = this;
    this.root.hidden = !app.view.tour;
    if (!app.view.tour) {
      this.shown = '';
      return;
    }
    if (this.shown === app.view.level) return;
    this.shown = app.view.level;
    const at = TOUR.findIndex((stop) => stop.level === app.view.level);
    const stop = TOUR[at]!;
    const move = (text: string, to: number) =>
      make('button', { click: () => app.open(TOUR[to]!.level), disabled: TOUR[to] === undefined }, text);
    fill(
      this.root,
      make('p', {}, words(stop.text)),
      make(
        'div',
        { class: 'row' },
        move('Back', at - 1),
        at + 1 < TOUR.length ? move('Next', at + 1) : make('button', { click: () => app.go({ tour: false }) }, 'Done'),
        make('span', { class: 'quiet' }, `${at + 1} of ${TOUR.length}`),
        make('button', { class: 'plain', click: () => app.go({ tour: false }) }, 'End the tour'),
      ),
    );
  }
}
