// What each rank holds at each moment of a collective, replayed from the slices that really moved.
import { column, NONE, type Column, type Table } from '../source/block';

export interface Slices {
  count: number;
  chunk: Column;
  step: Column;
  channel: Column;
  via: Column;
  from: Column;
  to: Column;
  sent: Column;
  arrived: Column;
  bytes: Column;
}

export function slicesOf(table: Table): Slices {
  const get = (name: string) => column(table, name);
  return {
    count: table.rows,
    chunk: get('chunk'),
    step: get('step'),
    channel: get('channel'),
    via: get('via'),
    from: get('from'),
    to: get('to'),
    sent: get('sent'),
    arrived: get('arrived'),
    bytes: get('bytes'),
  };
}

export interface Story {
  channel: number;
  ranks: number[];
  chunks: number[];
  /** Rows of the slices of this channel, by time of sending. */
  rows: number[];
  /** Moments at which something arrived, each once. */
  moments: number[];
  /** How many contributions make a cell complete. */
  full: number;
  /** Contributions in a cell at a time. */
  held(rank: number, chunk: number, time: number): number;
  shape: 'ring' | 'tree' | 'other';
  /** Ranks in the order in which a ring passes them. */
  order: number[];
  /** Depth in a tree; the root has none. */
  depth: Map<number, number>;
  parent: Map<number, number>;
  /** Who sends to whom; a switch inside a server has the number that `hub` gives it. */
  edges: Map<string, { from: number; to: number; via: number; bytes: number }>;
  /** Servers whose switch (NVLS) takes part. */
  hubs: number[];
  /** When a slice is at its end; what goes into a switch has no record of that, so it is shown for a short while. */
  arrival(row: number): number;
}

/** The switch inside a server, as if it were a rank. */
export function hub(node: number): number {
  return -1 - node;
}

export function channelsOf(slices: Slices): number[] {
  return [...new Set(slices.channel as Uint16Array)].sort((a, b) => a - b);
}

/** The story of one channel. `reduces`: each rank starts with its own part of every chunk. */
export function storyOf(slices: Slices, channel: number, members: number[], reduces: boolean, nodeOf: (rank: number) => number): Story {
  const rows: number[] = [];
  for (let row = 0; row < slices.count; row++) if (slices.channel[row] === channel) rows.push(row);
  rows.sort((a, b) => slices.sent[a]! - slices.sent[b]!);
  const chunks = [...new Set(rows.map((row) => slices.chunk[row]!))].sort((a, b) => a - b);
  const seen = new Set(rows.flatMap((row) => [slices.from[row]!, slices.to[row]!]));
  const ranks = members.filter((rank) => seen.has(rank));
  const first = rows.length > 0 ? slices.sent[rows[0]!]! : 0;
  const last = rows.reduce((end, row) => Math.max(end, Number.isFinite(slices.arrived[row]!) ? slices.arrived[row]! : slices.sent[row]!), first);
  const glimpse = (last - first) / 50;
  const arrival = (row: number) => (Number.isFinite(slices.arrived[row]!) ? slices.arrived[row]! : slices.to[row] === NONE ? slices.sent[row]! + glimpse : NaN);
  const moments = [...new Set(rows.map((row) => (slices.to[row] === NONE ? slices.sent[row]! : slices.arrived[row]!)))].filter(Number.isFinite).sort((a, b) => a - b);
  const hubs = [...new Set(rows.filter((row) => slices.to[row] === NONE).map((row) => nodeOf(slices.from[row]!)))];
  const edges: Story['edges'] = new Map();
  for (const row of rows) {
    const from = slices.from[row]!;
    const to = slices.to[row] === NONE ? hub(nodeOf(from)) : slices.to[row]!;
    const key = `${from} ${to}`;
    const edge = edges.get(key);
    if (edge) edge.bytes += slices.bytes[row]!;
    else edges.set(key, { from, to, via: slices.via[row]!, bytes: slices.bytes[row]! });
  }
  const { shape, order, depth, parent } = hubs.length > 0 ? { shape: 'other' as const, order: ranks, depth: new Map<number, number>(), parent: new Map<number, number>() } : shapeOf(ranks, edges);
  const history = replay(slices, rows, reduces, ranks, nodeOf);
  return {
    channel,
    ranks,
    chunks,
    rows,
    moments,
    full: reduces ? ranks.length : 1,
    held: (rank, chunk, time) => lookUp(history.get(rank * 65536 + chunk), time, reduces ? 1 : 0),
    shape,
    order,
    depth,
    parent,
    edges,
    hubs,
    arrival,
  };
}

type History = Map<number, { time: number[]; count: number[] }>;

// A slice carries what its sender held when it left. Arriving, it joins what the receiver holds: in the first half that
// is adding up, in the second the whole sum takes the place of a part of it, and joining gives the same.
//
// A switch inside a server (NVLS) adds up what its ranks push into it. Whoever then sends on by NIC has read that sum; who
// pushes the same chunk a second time has the result, and the switch gives it to all of them.
function replay(slices: Slices, rows: number[], reduces: boolean, ranks: number[], nodeOf: (rank: number) => number): History {
  const events: { time: number; row: number; arrives: boolean }[] = [];
  for (const row of rows) {
    events.push({ time: slices.sent[row]!, row, arrives: false });
    if (Number.isFinite(slices.arrived[row]!)) events.push({ time: slices.arrived[row]!, row, arrives: true });
  }
  events.sort((a, b) => a.time - b.time || Number(b.arrives) - Number(a.arrives));
  const held = new Map<number, bigint>();
  const carried = new Map<number, bigint>();
  const history: History = new Map();
  const note = (cell: number, time: number, set: bigint) => {
    held.set(cell, set);
    let log = history.get(cell);
    if (!log) history.set(cell, (log = { time: [], count: [] }));
    log.time.push(time);
    log.count.push(reduces ? ones(set) : 1);
  };
  const inSwitch = new Map<string, bigint>();
  const pushed = new Set<number>();
  const cellOf = (rank: number, chunk: number) => rank * 65536 + chunk;
  const heldBy = (rank: number, chunk: number) => held.get(cellOf(rank, chunk)) ?? (reduces ? 1n << BigInt(rank) : 0n);
  for (const { time, row, arrives } of events) {
    const chunk = slices.chunk[row]!;
    const from = slices.from[row]!;
    const place = `${nodeOf(from)} ${chunk}`;
    if (slices.to[row] === NONE) {
      const sum = (inSwitch.get(place) ?? 0n) | heldBy(from, chunk) | (reduces ? 0n : 1n << BigInt(from));
      inSwitch.set(place, sum);
      if (pushed.has(cellOf(from, chunk)) || !reduces) {
        for (const rank of ranks) if (nodeOf(rank) === nodeOf(from) && heldBy(rank, chunk) !== sum) note(cellOf(rank, chunk), time, sum);
      }
      pushed.add(cellOf(from, chunk));
      continue;
    }
    if (!arrives && reduces && inSwitch.has(place)) {
      const sum = heldBy(from, chunk) | inSwitch.get(place)!;
      if (sum !== heldBy(from, chunk)) note(cellOf(from, chunk), time, sum);
    }
    const rank = arrives ? slices.to[row]! : slices.from[row]!;
    const cell = cellOf(rank, chunk);
    let own = heldBy(rank, chunk);
    if (!arrives) {
      // Whoever sends what it never received had it from the start.
      if (own === 0n) note(cell, 0, (own = 1n << BigInt(rank)));
      carried.set(row, own);
    } else {
      const sum = own | (carried.get(row) ?? 0n);
      carried.delete(row);
      if (sum !== own) note(cell, time, sum);
    }
  }
  return history;
}

function ones(set: bigint): number {
  let count = 0;
  for (let rest = set; rest > 0n; rest &= rest - 1n) count++;
  return count;
}

function lookUp(log: { time: number[]; count: number[] } | undefined, time: number, start: number): number {
  if (!log) return start;
  let low = 0;
  let high = log.time.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (log.time[middle]! <= time) low = middle + 1;
    else high = middle;
  }
  return low === 0 ? start : log.count[low - 1]!;
}

function shapeOf(ranks: number[], edges: Story['edges']): Pick<Story, 'shape' | 'order' | 'depth' | 'parent'> {
  const next = new Map<number, number[]>();
  for (const { from, to } of edges.values()) next.set(from, [...(next.get(from) ?? []), to]);
  const none = { depth: new Map<number, number>(), parent: new Map<number, number>() };
  if (ranks.length > 2 && ranks.every((rank) => next.get(rank)?.length === 1)) {
    const order = [ranks[0]!];
    for (let at = next.get(order[0]!)![0]!; at !== order[0] && order.length <= ranks.length; at = next.get(at)?.[0] ?? order[0]!) order.push(at);
    if (order.length === ranks.length) return { shape: 'ring', order, ...none };
  }
  const beside = new Map<number, Set<number>>();
  for (const { from, to } of edges.values()) {
    (beside.get(from) ?? beside.set(from, new Set()).get(from)!).add(to);
    (beside.get(to) ?? beside.set(to, new Set()).get(to)!).add(from);
  }
  const links = [...beside.values()].reduce((sum, each) => sum + each.size, 0) / 2;
  if (ranks.length > 2 && links === ranks.length - 1) {
    const tree = shallowest(ranks, beside);
    if (tree.depth.size === ranks.length) return { shape: 'tree', order: ranks, ...tree };
  }
  return { shape: 'other', order: ranks, ...none };
}

/** The root from which all are reached in the fewest steps. */
function shallowest(ranks: number[], beside: Map<number, Set<number>>): { depth: Map<number, number>; parent: Map<number, number> } {
  let best = walk(ranks[0]!, beside);
  for (const rank of ranks) {
    const other = walk(rank, beside);
    if (Math.max(...other.depth.values()) < Math.max(...best.depth.values())) best = other;
  }
  return best;
}

function walk(root: number, beside: Map<number, Set<number>>): { depth: Map<number, number>; parent: Map<number, number> } {
  const depth = new Map([[root, 0]]);
  const parent = new Map<number, number>();
  const queue = [root];
  for (const rank of queue) {
    for (const near of beside.get(rank) ?? []) {
      if (depth.has(near)) continue;
      depth.set(near, depth.get(rank)! + 1);
      parent.set(near, rank);
      queue.push(near);
    }
  }
  return { depth, parent };
}
