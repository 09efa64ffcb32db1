// What ranks did in bins of time: the share of each bin in which a rank computed, communicated, waited for late ranks or had its communication
// exposed. Nothing is left out of a bin, however many operations are in it.
import type { Run } from './run';
import { column, NONE, type Column, type Table } from '../source/block';
import { grid } from './feed';

/** A bin that is full. */
export const WHOLE = 65535;
export const COMPUTE = ['forward', 'recompute', 'backward', 'optimiser', 'checkpoint'];
const CLASSES = [...COMPUTE, 'communication', 'waiting', 'exposed'];
const COMMUNICATION = 5;
const WAITING = 6;
const EXPOSED = 7;
const MOST_BINS = 8192;

/** Rows of rank and bin; bin 0 begins at `from`, and each is so wide. */
export interface Shares {
  from: number;
  width: number;
  table: Table;
}

export interface ShareQuery {
  from: number;
  to: number;
  bins: number;
  ranks?: number[];
}

/** The shares of the window on screen, as a `Feed` has rows. */
export class ShareFeed {
  private key = '';
  private found: Shares | null = null;
  version = 0;

  constructor(private arrived: () => void) {}

  /** Bins that are at most a pixel wide on a chart of so many pixels. */
  window(run: Run, from: number, to: number, pixels: number, ranks: number[]): Shares | null {
    const wide = grid(from, to, run.duration);
    const bins = (pixels * (wide.to - wide.from)) / Math.max(1, to - from);
    return this.want(run, { ...wide, bins: Math.max(1, Math.min(MOST_BINS, Math.ceil(bins / 256) * 256)), ranks });
  }

  want(run: Run, query: ShareQuery): Shares | null {
    const key = `${run.index} ${JSON.stringify(query)}`;
    if (key !== this.key) {
      this.key = key;
      run.shares(query).then(
        (shares) => this.take(key, shares),
        () => this.take(key, null),
      );
    }
    return this.found;
  }

  private take(key: string, shares: Shares | null): void {
    if (key !== this.key) return;
    this.found = shares;
    this.version++;
    this.arrived();
  }
}

type Span = [number, number];

/** Stretches that do not overlap, in order, and how long those before each are together. */
class Stretches {
  private before: number[] = [];

  private constructor(readonly list: Span[]) {
    let sum = 0;
    for (const [from, to] of list) {
      this.before.push(sum);
      sum += to - from;
    }
  }

  static of(spans: Span[]): Stretches {
    const sorted = spans.filter(([from, to]) => to > from).sort((a, b) => a[0] - b[0]);
    const out: Span[] = [];
    for (const [from, to] of sorted) {
      const end = out[out.length - 1];
      if (end && from <= end[1]) end[1] = Math.max(end[1], to);
      else out.push([from, to]);
    }
    return new Stretches(out);
  }

  /** What is left of them when others are taken out. */
  without(holes: Stretches): Stretches {
    const out: Span[] = [];
    let at = 0;
    for (const [from, to] of this.list) {
      let start = from;
      while (at < holes.list.length && holes.list[at]![1] <= start) at++;
      for (let hole = at; hole < holes.list.length && holes.list[hole]![0] < to; hole++) {
        if (holes.list[hole]![0] > start) out.push([start, holes.list[hole]![0]]);
        start = Math.max(start, holes.list[hole]![1]);
      }
      if (start < to) out.push([start, to]);
    }
    return new Stretches(out);
  }

  /** How much of the time up to a moment they take. */
  until(time: number): number {
    let low = 0;
    let high = this.list.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.list[middle]![0] < time) low = middle + 1;
      else high = middle;
    }
    if (low === 0) return 0;
    const [from, to] = this.list[low - 1]!;
    return this.before[low - 1]! + Math.min(time, to) - from;
  }
}

/** The same from operations, where all of them are at hand. */
export class RankIndex {
  private ranks = new Map<number, { classes: Stretches[]; late: Span[] }>();

  constructor(operations: Table, alike: [number, number][]) {
    const get = (name: string) => column(operations, name);
    const [rank, kind, entered, begun, ended, late, waited] = ['rank', 'kind', 'entered', 'begun', 'ended', 'late', 'waited'].map(get);
    const weights = new Map(alike);
    const spans = new Map<number, Span[][]>();
    const lates = new Map<number, Span[]>();
    for (let row = 0; row < operations.rows; row++) {
      const own = spans.get(rank![row]!) ?? spans.set(rank![row]!, CLASSES.map(() => [])).get(rank![row]!)!;
      const what = Math.min(COMMUNICATION, kind![row]!);
      own[what]!.push([begun![row]!, Number.isFinite(ended![row]!) ? ended![row]! : begun![row]!]);
      if (what === COMMUNICATION) own[WAITING]!.push([entered![row]!, begun![row]!]);
      if (late![row] !== NONE && waited![row]! > 0) {
        const list = lates.get(late![row]!) ?? lates.set(late![row]!, []).get(late![row]!)!;
        list.push([begun![row]!, (weights.get(rank![row]!) ?? 1) * waited![row]!]);
      }
    }
    for (const [which, own] of spans) {
      const computed = Stretches.of(own.slice(0, COMMUNICATION).flat());
      const classes = own.map((each) => Stretches.of(each));
      classes[EXPOSED] = Stretches.of([...own[COMMUNICATION]!, ...own[WAITING]!]).without(computed);
      const late = (lates.get(which) ?? []).sort((a, b) => a[0] - b[0]);
      this.ranks.set(which, { classes, late });
    }
  }

  bins({ from, to, bins, ranks }: ShareQuery): Shares {
    const width = Math.max(1, to - from) / bins;
    const rows: number[][] = [];
    for (const [rank, { classes, late }] of [...this.ranks].sort((a, b) => a[0] - b[0])) {
      if (ranks && !ranks.includes(rank)) continue;
      const before = classes.map((each) => each.until(from));
      const blamed = new Float64Array(bins);
      for (const [at, wait] of late) if (at >= from && at <= to) blamed[Math.min(bins - 1, Math.floor((at - from) / width))]! += wait;
      for (let bin = 0; bin < bins; bin++) {
        const row = [rank, bin];
        for (let place = 0; place < classes.length; place++) {
          const until = classes[place]!.until(from + (bin + 1) * width);
          const busy = until - before[place]!;
          before[place] = until;
          row.push(busy > 0 ? Math.max(1, Math.min(WHOLE, Math.floor((busy / width) * WHOLE))) : 0);
        }
        row.push(blamed[bin]!);
        if (row.slice(2).some((value) => value > 0)) rows.push(row);
      }
    }
    return { from, width, table: tableOf(rows) };
  }
}

/** Shares in bins of one width as shares of a window in at most so many bins; no finer than those at hand. */
export function rebin(all: Table, count: number, duration: number, { from, to, bins, ranks }: ShareQuery): Shares {
  const finest = duration / count;
  const joined = Math.max(1, Math.floor((to - from) / bins / finest));
  const first = Math.floor(from / finest);
  const wanted = ranks && new Set(ranks);
  const [rank, bin, ...values] = ['rank', 'bin', ...CLASSES, 'late'].map((name) => column(all, name));
  const sums = new Map<number, number[]>();
  for (let row = 0; row < all.rows; row++) {
    if ((wanted && !wanted.has(rank![row]!)) || bin![row]! < first || bin![row]! * finest > to) continue;
    const place = Math.floor((bin![row]! - first) / joined);
    const key = rank![row]! * 65536 + place;
    let sum = sums.get(key);
    if (!sum) sums.set(key, (sum = [rank![row]!, place, ...values.map(() => 0)]));
    values.forEach((each, index) => {
      sum[2 + index]! += index < CLASSES.length ? each[row]! / joined : each[row]!;
    });
  }
  const rows = [...sums.values()].sort((a, b) => a[0]! - b[0]! || a[1]! - b[1]!);
  return { from: first * finest, width: joined * finest, table: tableOf(rows) };
}

function tableOf(rows: number[][]): Table {
  const columns: Record<string, Column> = {};
  ['rank', 'bin', ...CLASSES, 'late'].forEach((name, index) => {
    columns[name] = Float64Array.from(rows, (row) => row[index]!);
  });
  return { name: 'shares', rows: rows.length, total: rows.length, columns };
}
