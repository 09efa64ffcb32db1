// The rows of the step's timeline: which ranks, what each did, and where it had nothing to do but wait.
import { column, type Column, type Table } from '../source/block';

export const COMMUNICATION = 5;
export type Span = [number, number];

export interface Rows {
  rank: Column;
  stream: Column;
  kind: Column;
  name: Column;
  entered: Column;
  begun: Column;
  ended: Column;
  bytes: Column;
  layer: Column;
  microbatch: Column;
  step: Column;
  count: number;
}

export function rowsOf(table: Table): Rows {
  const get = (name: string) => column(table, name);
  return {
    rank: get('rank'),
    stream: get('stream'),
    kind: get('kind'),
    name: get('name'),
    entered: get('entered'),
    begun: get('begun'),
    ended: get('ended'),
    bytes: get('bytes'),
    layer: get('layer'),
    microbatch: get('microbatch'),
    step: get('step'),
    count: table.rows,
  };
}

/** For each rank the stretches in which it communicates and computes nothing. */
export function exposedSpans(rows: Rows): Map<number, Span[]> {
  const compute = new Map<number, Span[]>();
  const talk = new Map<number, Span[]>();
  for (let row = 0; row < rows.count; row++) {
    const into = rows.kind[row] === COMMUNICATION ? talk : compute;
    const rank = rows.rank[row]!;
    const begin = rows.kind[row] === COMMUNICATION ? rows.entered[row]! : rows.begun[row]!;
    const span: Span = [begin, rows.ended[row]!];
    const list = into.get(rank);
    if (list) list.push(span);
    else into.set(rank, [span]);
  }
  const out = new Map<number, Span[]>();
  for (const [rank, spans] of talk) out.set(rank, without(merged(spans), merged(compute.get(rank) ?? [])));
  return out;
}

/** Ranks for which others waited, and for how long in all. */
export function waitedFor(rows: Rows): Map<number, number> {
  const groups = new Map<string, number[]>();
  for (let row = 0; row < rows.count; row++) {
    if (rows.kind[row] !== COMMUNICATION) continue;
    const key = `${rows.name[row]} ${rows.begun[row]}`;
    const list = groups.get(key);
    if (list) list.push(row);
    else groups.set(key, [row]);
  }
  const waits = new Map<number, number>();
  for (const members of groups.values()) {
    if (members.length < 2) continue;
    let last = members[0]!;
    for (const row of members) if (rows.entered[row]! > rows.entered[last]!) last = row;
    const lost = members.reduce((sum, row) => sum + (rows.entered[last]! - rows.entered[row]!), 0);
    waits.set(rows.rank[last]!, (waits.get(rows.rank[last]!) ?? 0) + lost);
  }
  return waits;
}

export function merged(spans: Span[]): Span[] {
  const sorted = [...spans].sort((a, b) => a[0] - b[0]);
  const out: Span[] = [];
  for (const [from, to] of sorted) {
    const end = out[out.length - 1];
    if (end && from <= end[1]) end[1] = Math.max(end[1], to);
    else out.push([from, to]);
  }
  return out;
}

/** What is left of the first list when the second is taken out; both merged. */
export function without(spans: Span[], holes: Span[]): Span[] {
  const out: Span[] = [];
  let at = 0;
  for (const [from, to] of spans) {
    let start = from;
    while (at < holes.length && holes[at]![1] <= start) at++;
    for (let hole = at; hole < holes.length && holes[hole]![0] < to; hole++) {
      if (holes[hole]![0] > start) out.push([start, holes[hole]![0]]);
      start = Math.max(start, holes[hole]![1]);
    }
    if (start < to) out.push([start, to]);
  }
  return out;
}
