// How much each channel of the fabric carried in a stretch of time, from the table of loads by bins.
import { column, type Table } from '../source/block';
import type { Run } from './run';

export interface Loads {
  /** Share of its capacity that each channel carried. */
  share: Float64Array;
  bytes: Float64Array;
  queue: Float64Array;
  marks: Float64Array;
  paused: Float64Array;
  drops: Float64Array;
  span: number;
}

let last: { table: Table; first: number; end: number; loads: Loads } | null = null;

export function loadsOf(run: Run, table: Table, from: number, to: number): Loads {
  const width = Math.max(1, run.meta.bins?.width ?? 1);
  const joined = binsPerRow(table);
  const first = Math.floor(from / width);
  const end = Math.max(first, Math.ceil(to / width) - 1);
  if (last && last.table === table && last.first === first && last.end === end) return last.loads;
  const channels = run.meta.fabric.links.length * 2;
  const made = () => new Float64Array(channels);
  const loads: Loads = { share: made(), bytes: made(), queue: made(), marks: made(), paused: made(), drops: made(), span: (end - first + 1) * width };
  const [bin, channel, bytes, queue, marks, paused, drops] = ['bin', 'channel', 'bytes', 'queue', 'marks', 'paused', 'drops'].map((name) => column(table, name));
  for (let row = firstRow(bin!, first - joined + 1); row < table.rows && bin![row]! <= end; row++) {
    const at = channel![row]!;
    // Of bins that were joined only the part inside the window counts.
    const part = (Math.min(end + 1, bin![row]! + joined) - Math.max(first, bin![row]!)) / joined;
    loads.bytes[at]! += bytes![row]! * part;
    loads.queue[at] = Math.max(loads.queue[at]!, queue![row]!);
    loads.marks[at]! += marks![row]! * part;
    loads.paused[at]! += paused![row]! * part;
    loads.drops[at]! += drops![row]! * part;
  }
  // The last bin may reach beyond the end of the run, where nothing can be carried.
  const span = Math.max(1, Math.min(loads.span, run.duration - first * width));
  run.meta.fabric.links.forEach((link, index) => {
    const capacity = (link.rate / 8) * (span / 1e12);
    loads.share[2 * index] = loads.bytes[2 * index]! / capacity;
    loads.share[2 * index + 1] = loads.bytes[2 * index + 1]! / capacity;
  });
  last = { table, first, end, loads };
  return loads;
}

/** How many bins a row stands for: wide windows come with neighbours joined. */
export function binsPerRow(table: Table): number {
  return table.columns['bins']?.[0] ?? 1;
}

/** Rows come in order of time: the first whose bin is not before the one asked for. */
function firstRow(bins: ArrayLike<number>, first: number): number {
  let low = 0;
  let high = bins.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (bins[middle]! < first) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** One channel over time: a value for each bin in which something happened, counted in rows of the table's width. */
export function seriesOf(table: Table, channel: number, name: string): { bin: number; value: number }[] {
  const [bins, channels, values] = ['bin', 'channel', name].map((each) => column(table, each));
  const joined = binsPerRow(table);
  const out: { bin: number; value: number }[] = [];
  for (let row = 0; row < table.rows; row++) if (channels![row] === channel) out.push({ bin: bins![row]! / joined, value: values![row]! });
  return out;
}
