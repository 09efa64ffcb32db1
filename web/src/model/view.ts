// What is being looked at. All of it is in the address, so that a view can be sent to someone.

export const LEVELS = [
  'problem',
  'launch',
  'cluster',
  'step',
  'collective',
  'connection',
  'packet',
  'congestion',
  'completion',
  'roles',
] as const;
export type LevelId = (typeof LEVELS)[number];

export interface View {
  level: LevelId;
  /** The window of time, and the moment in it. */
  from: number;
  to: number;
  at: number;
  run: number;
  /** Second run for comparison, on the level of congestion. */
  beside: number | null;
  node: number | null;
  leaf: number | null;
  link: number | null;
  rank: number | null;
  communicator: number | null;
  sequence: number | null;
  channel: number;
  host: number | null;
  queuePair: number | null;
  packet: number | null;
  message: number | null;
  tour: boolean;
}

const NUMBERS: [keyof View & string, string][] = [
  ['run', 'run'],
  ['beside', 'beside'],
  ['node', 'node'],
  ['leaf', 'leaf'],
  ['link', 'link'],
  ['rank', 'rank'],
  ['communicator', 'comm'],
  ['sequence', 'seq'],
  ['channel', 'chan'],
  ['host', 'host'],
  ['queuePair', 'qp'],
  ['packet', 'packet'],
  ['message', 'msg'],
];

export function startView(duration: number): View {
  return {
    level: 'cluster',
    from: 0,
    to: duration,
    at: Math.round(duration / 2),
    run: 0,
    beside: null,
    node: null,
    leaf: null,
    link: null,
    rank: null,
    communicator: null,
    sequence: null,
    channel: 0,
    host: null,
    queuePair: null,
    packet: null,
    message: null,
    tour: false,
  };
}

export function writeView(view: View, duration: number): string {
  const words: string[] = [];
  if (view.from > 0 || view.to < duration) words.push(`t=${Math.round(view.from)}-${Math.round(view.to)}`);
  words.push(`at=${Math.round(view.at)}`);
  const plain = startView(duration);
  for (const [key, name] of NUMBERS) {
    if (view[key] !== null && view[key] !== plain[key]) words.push(`${name}=${view[key]}`);
  }
  if (view.tour) words.push('tour');
  return `#${view.level}?${words.join('&')}`;
}

/** Reads an address; what is wrong or missing in it is as at the start. */
export function readView(hash: string, duration: number): View {
  const view = startView(duration);
  const [level, rest] = hash.replace(/^#/, '').split('?');
  if ((LEVELS as readonly string[]).includes(level ?? '')) view.level = level as LevelId;
  const words = new URLSearchParams(rest ?? '');
  const span = /^(\d+)-(\d+)$/.exec(words.get('t') ?? '');
  if (span) {
    view.from = Math.min(Number(span[1]), duration - 1);
    view.to = Math.min(duration, Math.max(Number(span[2]), view.from + 1));
    view.at = (view.from + view.to) / 2;
  }
  if (/^\d+$/.test(words.get('at') ?? '')) view.at = Math.min(duration, Number(words.get('at')));
  const record = view as unknown as Record<string, number | null>;
  for (const [key, name] of NUMBERS) {
    const word = words.get(name);
    if (word !== null && /^\d{1,15}$/.test(word)) record[key] = Number(word);
  }
  view.tour = words.has('tour');
  return view;
}
