// What is around a level: name of the run, the ten levels, where one is, the time axis.
import type { App } from './app';
import { fill, make, words } from './draw/dom';
import { Keys } from './keys';
import { lensOf } from './lens';
import { LEVEL_LIST } from './levels';
import { failureLine } from './levels/failure';
import type { Level, Scene } from './levels/level';
import { unknownLive } from './levels/live';
import { LEVELS, type LevelId, type View } from './model/view';
import { pairOf, RunSwitch } from './runs';
import { Search } from './search';
import { Timebar } from './timebar';
import { Tour, turnTour } from './tour';

const CHAIN: LevelId[] = ['cluster', 'step', 'collective', 'connection', 'packet'];

export function startShell(app: App, page: HTMLElement): void {
  const scenes = new Map<string, Scene>();
  const timebar = new Timebar(app);
  const tour = new Tour(app);
  const search = new Search(app);
  const runs = new RunSwitch(app);
  const keys = new Keys(
    app,
    () => switchTheme(app),
    () => search.focus(),
  );
  const nav = make('ol', {});
  for (const level of LEVEL_LIST) {
    nav.append(make('li', {}, make('button', { 'data-level': level.id, click: () => app.open(level.id) }, make('span', {}, level.title))));
  }
  const crumbs = make('nav', { id: 'crumbs', 'aria-label': 'Where you are' });
  const title = make('h1', {});
  const lead = make('p', { class: 'lead' });
  const failed = make('p', { class: 'failed', role: 'alert', hidden: true });
  const main = make('main', {});
  const spoken = make('div', { class: 'spoken', 'aria-live': 'polite' });
  const about = make('p', { class: 'about' });
  app.say = (text) => {
    spoken.textContent = text;
  };
  fill(
    page,
    make(
      'header',
      {},
      make('div', { class: 'brand' }, make('b', {}, 'Railnet'), about),
      make(
        'div',
        { class: 'row' },
        search.root,
        make('button', { click: () => turnTour(app) }, 'Tour'),
        make('button', { 'aria-label': 'Keys', 'data-tip': 'Keys (?)', click: () => keys.help.showModal() }, '?'),
        make('button', { 'aria-label': 'Light or dark', 'data-tip': 'Light or dark (L)', click: () => switchTheme(app) }, '◐'),
      ),
    ),
    make('nav', { id: 'levels', 'aria-label': 'Levels' }, nav),
    failed,
    make('div', { class: 'row where' }, crumbs, runs.root),
    make('div', { class: 'heading' }, title, lead),
    main,
    tour.root,
    timebar.root,
    keys.help,
    spoken,
  );

  let shownLevel = '';
  let shownCrumbs = '';
  app.paint = () => {
    const { view, run } = app;
    const level = LEVEL_LIST[LEVELS.indexOf(view.level)]!;
    const other = level.both === 'stacked' ? app.besideRun : null;
    const key = `${view.level} ${run.index} ${other?.index ?? ''}`;
    let scene = scenes.get(key);
    if (!scene) {
      const one = unknownLive(app, level) ?? level.make(app);
      scene = other ? stacked(app, level, one) : one;
      scenes.set(key, scene);
    }
    app.scene = scene;
    if (shownLevel !== key) {
      shownLevel = key;
      title.textContent = level.title;
      fill(lead, words(level.lead));
      fill(main, scene.root);
      document.title = `${level.title} · ${run.meta.name} · Railnet`;
      about.textContent = aboutRun(app);
      failed.textContent = failureLine(run);
      failed.hidden = failed.textContent === '';
      for (const button of nav.querySelectorAll('button')) {
        button.setAttribute('aria-current', String(button.dataset['level'] === view.level));
      }
    }
    const path = crumbList(app, view);
    const text = JSON.stringify(path);
    if (text !== shownCrumbs) {
      shownCrumbs = text;
      fill(crumbs, ...path.map(([id, name], index) => crumb(app, id, name, index === path.length - 1)));
    }
    scene.show();
    timebar.show();
    tour.show();
    runs.show();
  };
}

/** A level of two runs, one under the other, each under its name; playing and stepping is that of the first. */
function stacked(app: App, level: Level, first: Scene): Scene {
  const other = app.besideRun!;
  const second = level.make(lensOf(app, other));
  const names = pairOf(app);
  const root = make('div', { class: 'stack' }, make('h2', { class: 'run' }, names[0]?.name ?? 'this run'), first.root, make('h2', { class: 'run' }, names[1]?.name ?? `run ${other.index}`), second.root);
  for (const part of [first.root, second.root]) part.classList.add('part');
  return {
    root,
    show: () => {
      first.show();
      second.show();
    },
    step: (direction) => first.step?.(direction) ?? false,
    play: () => first.play?.() ?? false,
    fit: () => first.fit?.() ?? false,
  };
}

function crumb(app: App, id: LevelId, name: string, last: boolean): HTMLElement {
  return last ? make('b', { 'aria-current': 'page' }, name) : make('button', { class: 'plain', click: () => app.open(id) }, name);
}

function crumbList(app: App, view: View): [LevelId, string][] {
  const names: Record<string, string> = {
    cluster: 'Cluster',
    step: view.node === null ? 'Step' : `Step on ${app.run.nodeName(view.node)}`,
    collective: view.sequence === null ? 'Collective' : `Collective #${view.sequence}`,
    connection: view.queuePair === null ? 'Connection' : `${app.run.vertexName(view.host ?? 0)} QP ${view.queuePair}`,
    packet: view.packet === null ? 'Packet' : `Packet ${view.packet}`,
  };
  const end = CHAIN.indexOf(view.level);
  if (end >= 0) return CHAIN.slice(0, end + 1).map((id) => [id, names[id]!]);
  return [
    ['cluster', 'Cluster'],
    [view.level, LEVEL_LIST[LEVELS.indexOf(view.level)]!.title],
  ];
}

function aboutRun({ run }: App): string {
  const { meta } = run;
  const title = meta.title.split(/[.:] /)[0] ?? '';
  const words = run.isLive ? [title, meta.name] : [title || meta.name, meta.name, `${meta.fidelity} fidelity`, `seed ${meta.seed}`];
  if (meta.change) words.push(meta.change.name);
  if (meta.digest) words.push(`digest ${meta.digest.slice(0, 8)}`);
  return [...new Set(words)].join(' · ');
}

function switchTheme(app: App): void {
  const root = document.documentElement;
  const dark = getComputedStyle(root).getPropertyValue('--dark').trim() === '1';
  root.dataset['theme'] = dark ? 'light' : 'dark';
  app.recolour();
}
