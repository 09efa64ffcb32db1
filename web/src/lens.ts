// The page as another run sees it: scenes are made for an app, and one that is made for a lens shows another run.
import type { App } from './app';
import type { Run } from './model/run';
import { startView, type View } from './model/view';

/** The same view of another run: window, moment and what is chosen are those of the page. */
export function lensOf(app: App, run: Run): App {
  const shared = (name: 'view' | 'playing' | 'scene') => ({
    get: () => app[name],
    set: (value: never) => {
      app[name] = value;
    },
  });
  return Object.create(app, {
    run: { value: run },
    duration: { get: () => app.duration },
    view: shared('view'),
    playing: shared('playing'),
    scene: shared('scene'),
    redraw: { value: () => app.redraw() },
    go: { value: (change: Partial<View>) => app.go(change) },
  }) as App;
}

/** Another run with a window of its own, for one whose time has nothing to do with that of the page. */
export function ownLensOf(app: App, run: Run): App {
  const lens = Object.create(app, {
    run: { value: run },
    duration: { value: run.duration },
    view: { value: { ...startView(run.duration), run: run.index }, writable: true },
    redraw: { value: () => app.redraw() },
    open: { value: (level: View['level'], change: Partial<View> = {}) => app.open(level, { ...change, run: run.index, beside: null }) },
  }) as App;
  Object.defineProperty(lens, 'go', {
    value: (change: Partial<View>) => {
      lens.view = { ...lens.view, ...change };
      lens.view.from = Math.max(0, lens.view.from);
      lens.view.to = Math.min(run.duration, lens.view.to);
      app.redraw();
    },
  });
  return lens;
}
