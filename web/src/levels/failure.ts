// A run that failed: a line on every level that says so, and on that of congestion who holds whom, and who waits.
import type { App } from '../app';
import { make } from '../draw/dom';
import type { RunFailure } from '../model/meta';
import type { Run } from '../model/run';
import { count, time } from '../words/units';

const MOST_NAMED = 5;

/** The moment up to which anything moved. */
export function lastMove(run: Run): number {
  const idle = run.meta.report.error?.idle_us ?? 0;
  return Math.max(1, run.duration - idle * 1e6);
}

/** In one line: what went wrong, and when it was given up. */
export function failureLine(run: Run): string {
  const { error } = run.meta.report;
  return error ? `This run failed: ${headline(error)}. It was given up at ${time(run.duration)}; all here is what happened until then.` : '';
}

function headline(error: RunFailure): string {
  const links = (error.links ?? []).map(({ from }) => from);
  switch (error.kind) {
    case 'deadlock':
      return `${[...links, links[0]].join(' → ')} wait for each other in a circle, and ${count(error.waiting?.length ?? 0)} flows with them`;
    case 'pause-storm':
      return `${(error.hosts ?? []).join(', ')} told the switch to stop and does not let go; ${count(error.waiting?.length ?? 0)} flows wait`;
    default:
      return error.message.split('\n')[0]!.replace(/\.$/, '');
  }
}

/** Who holds whom, and who waits. */
export function failurePanel(app: App, run: Run): HTMLElement | null {
  const { error } = run.meta.report;
  if (!error) return null;
  const waiting = error.waiting ?? [];
  const { hosts } = run.meta.fabric;
  const isDirect = (target: number) => (error.hosts ?? []).includes(hosts[target]?.name ?? '');
  const groups: [string, typeof waiting][] =
    error.kind === 'pause-storm'
      ? [
          [`flows to ${(error.hosts ?? []).join(', ')}`, waiting.filter((each) => isDirect(each.target))],
          ['flows to others, behind those: the victims', waiting.filter((each) => !isDirect(each.target))],
        ]
      : [['flows that wait', waiting]];
  const held = error.held_by;
  return make(
    'div',
    { class: 'panel' },
    make('h2', {}, error.idle_us === undefined ? 'Why it failed' : 'Why nothing moves any more'),
    make('p', {}, error.kind === 'deadlock' || error.kind === 'pause-storm' ? `${headline(error)}.` : error.message),
    error.links && error.links.length > 0 ? chain(error.links) : null,
    held?.links && held.links.length > 0 && typeof held.links[0] !== 'string' ? chain(held.links as { from: string; to: string }[]) : null,
    make('div', { class: 'columns' }, ...groups.filter(([, list]) => list.length > 0).map(([name, list]) => victims(app, run, name, list))),
  );
}

/** Links, each of which waits for the next one. */
function chain(links: { from: string; to: string }[]): HTMLElement {
  return make('ol', { class: 'chain' }, ...links.map(({ from, to }) => make('li', {}, `${from} → ${to}`)));
}

function victims(app: App, run: Run, name: string, list: NonNullable<RunFailure['waiting']>): HTMLElement {
  const host = (number: number) => run.meta.fabric.hosts[number]?.name ?? `host ${number}`;
  const rows = list.slice(0, MOST_NAMED).map((each) =>
    make(
      'tr',
      {},
      make('td', {}, `${host(each.source)} → ${host(each.target)}`),
      make('td', {}, make('button', { class: 'plain', click: () => app.open('connection', { host: each.source, queuePair: each.queue_pair }) }, `QP ${each.queue_pair}`)),
      make('td', { class: 'figure' }, `PSN ${each.psn}`),
    ),
  );
  const more = list.length > MOST_NAMED ? make('p', { class: 'note' }, `and ${count(list.length - MOST_NAMED)} more`) : null;
  return make(
    'div',
    {},
    make('h3', {}, `${count(list.length)} ${name}`),
    make('table', {}, make('tr', {}, make('th', {}, 'from and to'), make('th', {}, 'sender’s queue pair'), make('th', { class: 'figure' }, 'waits for')), ...rows),
    more,
  );
}
