// Who stopped whom: the pauses of a window as trees. The record says of each pause which link was held back at the one who sent it.
import type { Run } from '../model/run';
import { make, words } from '../draw/dom';
import { column, NONE, type Table } from '../source/block';
import { count, time } from '../words/units';

const MOST_ROOTS = 6;
const MOST_ROOTS_FOLDED = 200;
const MOST_BELOW = 12;

/** A link that was stopped: for how long together, how often, and what was stopped because of it. */
export interface Stopped {
  channel: number;
  time: number;
  times: number;
  /** It is below itself: what it stopped stopped it. */
  circle: boolean;
  below: Stopped[];
}

interface Sum {
  time: number;
  times: number;
  until: number;
}

/**
 * The trees of a window: links that stopped while nothing held back the one who stopped them are the roots. A link that was stopped for
 * several reasons is in several places, and what it caused is below it where it was stopped for longest.
 */
export function pauseTrees(table: Table, from: number, to: number): Stopped[] {
  const sums = sumsOf(table, from, to);
  const main = new Map<number, number>();
  for (const [cause, stopped] of sums) {
    for (const [channel, { time }] of stopped) {
      const before = main.get(channel);
      if (before === undefined || time > sums.get(before)!.get(channel)!.time) main.set(channel, cause);
    }
  }
  const circles = breakCircles(sums, main);
  const branches = (cause: number): Stopped[] =>
    [...(sums.get(cause) ?? [])]
      .map(([channel, { time, times }]) => ({
        channel,
        time,
        times,
        circle: cause === NONE && circles.has(channel),
        below: main.get(channel) === cause ? branches(channel) : [],
      }))
      .filter(({ time, below }) => time > 0 || below.length > 0)
      .sort((a, b) => b.time - a.time);
  return branches(NONE);
}

/** By reason and link: for how long it was stopped, and how often. */
function sumsOf(table: Table, from: number, to: number): Map<number, Map<number, Sum>> {
  const [begun, ended, channels, causes] = ['begun', 'ended', 'channel', 'cause'].map((name) => column(table, name));
  const sums = new Map<number, Map<number, Sum>>();
  for (let row = 0; row < table.rows; row++) {
    const [cause, channel] = [causes![row]!, channels![row]!];
    let stopped = sums.get(cause);
    if (!stopped) sums.set(cause, (stopped = new Map()));
    let sum = stopped.get(channel);
    if (!sum) stopped.set(channel, (sum = { time: 0, times: 0, until: from }));
    // Several priorities of a link may be held at once: that time counts once.
    const starts = Math.max(begun![row]!, sum.until);
    const ends = Math.min(ended![row]!, to);
    if (begun![row]! > sum.until || sum.times === 0) sum.times++;
    sum.time += Math.max(0, ends - starts);
    sum.until = Math.max(sum.until, ends);
  }
  return sums;
}

/** Links that wait for each other in a circle have no root: one of them becomes it. */
function breakCircles(sums: Map<number, Map<number, Sum>>, main: Map<number, number>): Set<number> {
  const broken = new Set<number>();
  const fine = new Set<number>();
  for (const start of main.keys()) {
    const path: number[] = [];
    let at = start;
    while (at !== NONE && !fine.has(at) && !path.includes(at)) {
      path.push(at);
      at = main.get(at) ?? NONE;
    }
    if (at !== NONE && path.includes(at)) {
      const reason = main.get(at)!;
      const [own, roots] = [sums.get(reason)!.get(at)!, sums.get(NONE) ?? new Map<number, Sum>()];
      sums.get(reason)!.delete(at);
      const before = roots.get(at);
      roots.set(at, { time: own.time + (before?.time ?? 0), times: Math.max(own.times, before?.times ?? 0), until: own.until });
      sums.set(NONE, roots);
      main.set(at, NONE);
      broken.add(at);
    }
    for (const each of path) fine.add(each);
  }
  return broken;
}

/** The trees as lists, with bars as long as the time. */
export function drawTrees(run: Run, table: Table, from: number, to: number): (HTMLElement | null)[] {
  const trees = pauseTrees(table, from, to);
  const { credits } = run.meta;
  const title = make('h2', {}, credits ? 'Who waits for whom' : 'Who stopped whom');
  if (trees.length === 0)
    return [title, make('p', { class: 'note' }, words(credits ? 'Nobody waited for [[link credit]] in this window.' : 'Nobody was stopped in this window: no [[PFC|pause]] was sent.'))];
  const whole = Math.max(1, to - from);
  const list = (stopped: Stopped[]): HTMLElement | null => {
    if (stopped.length === 0) return null;
    const items = stopped.slice(0, MOST_BELOW).map((each) => {
      const bar = make('i', {});
      bar.style.width = `${Math.max(1, Math.round((each.time / whole) * 100))}px`;
      const text = `${credits ? 'kept waiting' : 'stopped'} ${run.vertexName(run.channel(each.channel).from)} for ${time(each.time)}${each.times > 1 ? `, ${count(each.times)} times` : ''}${each.circle ? ': a circle, this one is also below itself' : ''}`;
      return make('li', { 'data-channel': String(each.channel), 'data-time': String(each.time) }, bar, text, list(each.below));
    });
    if (stopped.length > MOST_BELOW) items.push(make('li', { class: 'quiet' }, `and ${stopped.length - MOST_BELOW} more`));
    return make('ul', { class: 'tree' }, ...items);
  };
  const roots = new Map<number, Stopped[]>();
  for (const each of trees) {
    const by = run.channel(each.channel).to;
    roots.set(by, [...(roots.get(by) ?? []), each]);
  }
  const sum = (all: Stopped[]): number => all.reduce((time, each) => time + each.time + sum(each.below), 0);
  const ordered = [...roots].sort((a, b) => sum(b[1]) - sum(a[1]));
  const tree = ([by, stopped]: [number, Stopped[]]) => make('li', {}, make('b', {}, run.vertexName(by)), list(stopped));
  return [
    title,
    credits ? make('p', { class: 'note' }, words('A link without [[link credit]] waits until the other end has room; one that gets it packet by packet counts as waiting throughout.')) : null,
    make('p', { class: 'note' }, 'Nobody held back the first of each tree: more came in than could go out, or it is a host that cannot take more. Below each, those that were made to stop while it was stopped. Which packets filled a switch is not recorded: where several of its links were held, the one held for longest is taken for the reason.'),
    make('ul', { class: 'tree first' }, ...ordered.slice(0, MOST_ROOTS).map(tree)),
    ordered.length > MOST_ROOTS
      ? make('details', {}, make('summary', {}, `${count(ordered.length - MOST_ROOTS)} more that began by themselves`), make('ul', { class: 'tree first' }, ...ordered.slice(MOST_ROOTS, MOST_ROOTS_FOLDED).map(tree)))
      : null,
    table.total > table.rows ? make('p', { class: 'note' }, `${count(table.rows)} of ${count(table.total)} ${credits ? 'waits' : 'pauses'}, the longest.`) : null,
  ];
}
