// Levels of a live run: real processes tell what they called and, over RoCE, what their NICs sent. What is between them they do not see,
// and the page says so.
import type { App } from '../app';
import { absent, figure, make, words } from '../draw/dom';
import type { LevelId } from '../model/view';
import { column } from '../source/block';
import { count, many } from '../words/units';
import type { Level, Scene } from './level';

interface Unknown {
  /** With rows in this table the level is shown after all. */
  unless?: string;
  why: string;
  command: string;
}

const ROCE = 'railnet perf all_reduce -n 2 --conduit roce -e 1M --record run.rail && railnet view run.rail';
const JOB = 'railnet sim scenarios/life-of-a-job-racks.toml --view';

const UNKNOWN: Partial<Record<LevelId, Unknown>> = {
  problem: { why: 'what the same calls take over another transport. Simulated, the three are beside each other:', command: 'railnet compare transports' },
  cluster: { why: 'switches, links and their load. Processes see the ends of the network only. Simulated, all of it is there:', command: JOB },
  collective: { why: 'where each slice is at each moment. How long the calls took, rank by rank, is on the level of the step. Simulated:', command: JOB },
  connection: { unless: 'packets', why: 'packets. Shared memory has none, and those of TCP are the kernel’s. With Railnet’s own NIC on UDP:', command: ROCE },
  packet: { unless: 'packets', why: 'packets. Shared memory has none, and those of TCP are the kernel’s. With Railnet’s own NIC on UDP:', command: ROCE },
  congestion: { why: 'queues, marks and pauses of the network between the ranks. Simulated:', command: 'railnet sim scenarios/incast.toml --view' },
  completion: { why: 'when each work request was posted and completed. Simulated:', command: JOB },
};

/** What a level says of a live run that it cannot draw; null where it can. */
export function unknownLive(app: App, level: Level): Scene | null {
  const { run } = app;
  const unknown = UNKNOWN[level.id];
  if (!run.isLive || !unknown || (unknown.unless && run.has(unknown.unless))) return null;
  const root = make('div', {}, absent(`Not known from a live run: ${unknown.why}`, unknown.command));
  root.append(ends(app));
  return { root, show: () => {} };
}

/** What is known of the connections: the two ends. */
function ends(app: App): HTMLElement {
  const { run } = app;
  const ways = [...new Set(run.meta.ranks.flatMap((rank) => rank.conduits ?? []))];
  const numbers = make(
    'div',
    { class: 'numbers' },
    figure(count(run.meta.ranks.length), run.meta.ranks.length === 1 ? 'rank' : 'ranks', `on ${many(run.meta.nodes.length, 'host')}`),
    figure(ways.length > 0 ? ways.join(', ') : 'none', words('[[conduit]]s between them'), 'shm is shared memory, roce the NIC on UDP'),
  );
  const box = make('section', { class: 'panel' }, make('h2', {}, 'What is known'), numbers);
  if (run.has('connections')) {
    void run.rows('connections', { most: 20_000 }).then((table) => {
      const sum = (name: string) => Array.from(column(table, name)).reduce((all, each) => all + each, 0);
      const kept = run.meta.kept;
      numbers.append(figure(count(sum('packets')), 'packets that NICs noted', kept?.notes?.length ? 'the first ones of each' : 'all of them'), figure(count(sum('resent')), 'of them sent again'));
    });
  }
  return box;
}
