// Rows for the window on screen. Windows are widened to a grid, so that small moves ask for nothing new, and the
// rows of before stay until the next have come: nothing flickers.
import { emptyTable, type Table } from '../source/block';
import type { Query } from '../source/source';
import type { Run } from './run';

export class Feed {
  private key = '';
  private rows: Table | null = null;
  /** True until the rows that were asked for last have come. */
  waiting = false;
  failed = '';
  /** Counts what has come: a picture of the same version needs not be drawn again. */
  version = 0;

  constructor(
    private table: string,
    private arrived: () => void,
  ) {}

  /** The rows at hand; asks for others when the query differs from the last one. */
  want(run: Run, query: Query): Table | null {
    const key = `${run.index} ${JSON.stringify(query)}`;
    if (key !== this.key) {
      this.key = key;
      this.waiting = true;
      run.rows(this.table, query).then(
        (rows) => this.take(key, rows, ''),
        (error: unknown) => this.take(key, emptyTable(this.table), String(error)),
      );
    }
    return this.rows;
  }

  /** The same for the rows of a window of time. */
  window(run: Run, from: number, to: number, query: Query): Table | null {
    return this.want(run, { ...grid(from, to, run.duration), ...query });
  }

  private take(key: string, rows: Table, failed: string): void {
    if (key !== this.key) return;
    this.rows = rows;
    this.failed = failed;
    this.waiting = false;
    this.version++;
    this.arrived();
  }
}

export function grid(from: number, to: number, duration: number): { from: number; to: number } {
  const width = 2 ** Math.ceil(Math.log2(Math.max(1, to - from)));
  return {
    from: Math.max(0, Math.floor(from / width) * width),
    to: Math.min(duration, Math.ceil(to / width) * width),
  };
}
