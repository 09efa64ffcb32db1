// The run inside a report: everything is in the file, so windows and filters are applied here.
import type { Hop, Meta, PacketStory } from '../model/meta';
import { RankIndex, rebin, type ShareQuery, type Shares } from '../model/shares';
import { opcodeName } from '../words/opcodes';
import { column, emptyTable, NONE, readBlocks, type Column, type Table } from './block';
import type { Progress, Query, Source } from './source';

/** The columns that say when a row begins and ends; without the second it is a moment. */
const TIMES: Record<string, [string, string?]> = {
  operations: ['entered', 'ended'],
  calls: ['begun', 'ended'],
  slices: ['sent', 'arrived'],
  packets: ['sent', 'received'],
  hops: ['time'],
  messages: ['posted', 'completed'],
  states: ['time'],
  rates: ['time'],
  incidents: ['time'],
  pauses: ['begun', 'ended'],
};

type Layers = PacketStory['layers'];

/** Stories of some packets by row, with the values of their fields; what fields are called and mean is in shapes. */
interface Stories {
  shapes: Layers[];
  stories: Record<string, Omit<PacketStory, 'layers'> & { layers: { shape: number; values: string[] } }>;
}

/** One run of a report. */
class Part {
  private tables: Map<string, Table>;
  private packets: Stories;
  private index: RankIndex | null = null;

  constructor(
    readonly own: Meta,
    suffix: string,
  ) {
    this.tables = readBlocks(decode(document.getElementById(`railnet-tables${suffix}`)?.textContent ?? ''));
    this.packets = JSON.parse(document.getElementById(`railnet-packets${suffix}`)?.textContent || '{"shapes":[],"stories":{}}') as Stories;
  }

  rows(name: string, query: Query): Table {
    const table = this.tables.get(name);
    if (!table) return emptyTable(name);
    return select(table, query, this.own.bins?.width ?? 1);
  }

  shares(query: ShareQuery): Shares {
    const binned = this.tables.get('shares');
    if (binned && this.own.shares) return rebin(binned, this.own.shares, Math.max(1, this.own.duration), query);
    this.index ??= new RankIndex(this.tables.get('operations') ?? emptyTable('operations'), this.own.alike ?? []);
    return this.index.bins(query);
  }

  packet(row: number): PacketStory | null {
    const story = this.packets.stories[String(row)];
    return story ? { ...story, layers: this.filled(story.layers) } : this.way(row);
  }

  tells(row: number): boolean {
    return String(row) in this.packets.stories;
  }

  /** Of a packet whose bytes are not here: where it was when. */
  private way(row: number): PacketStory | null {
    const [packets, hops] = [this.tables.get('packets'), this.tables.get('hops')];
    if (!packets || !hops || row >= packets.rows) return null;
    const { fabric } = this.own;
    const name = (vertex: number) => [...fabric.hosts, ...fabric.switches][vertex]?.name ?? `vertex ${vertex}`;
    const [when, of, vertex, channel, waiting] = ['time', 'packet', 'vertex', 'channel', 'waiting'].map((each) => column(hops, each));
    const found: Hop[] = [];
    let arrived: number | null = null;
    for (let hop = 0; hop < hops.rows; hop++) {
      if (of![hop] !== row) continue;
      found.push({ vertex: vertex![hop]!, name: name(vertex![hop]!), arrived, left: when![hop]!, waiting: waiting![hop]!, changes: [] });
      arrived = when![hop]! + (fabric.links[channel![hop]! >> 1]?.delay ?? 0);
    }
    const cell = (each: string) => column(packets, each)[row]!;
    const received = Number.isFinite(cell('received')) ? cell('received') : null;
    const to = cell('to') === NONE ? '?' : name(cell('to'));
    return { row, hops: found, received, bytes: null, length: null, layers: [], answer: null, message: null, words: `${opcodeName(cell('opcode'))}, PSN ${cell('psn')}, ${name(cell('host'))} → ${to}` };
  }

  /** Headers of a packet: names and texts of fields are there once for all that have the same. */
  private filled({ shape, values }: { shape: number; values: string[] }): Layers {
    let next = 0;
    return (this.packets.shapes[shape] ?? []).map((layer) => ({ ...layer, fields: layer.fields.map((field) => ({ ...field, value: values[next++] ?? '' })) }));
  }

}

export class Report implements Source {
  canRerun = false;

  private constructor(private parts: Part[]) {}

  /** The report that this page is in, or null where it is served. */
  static find(): Report | null {
    const parts: Part[] = [];
    for (let number = 0; ; number++) {
      const suffix = number ? `-${number}` : '';
      const meta = document.getElementById(`railnet-run${suffix}`);
      if (!meta?.textContent) break;
      parts.push(new Part(JSON.parse(meta.textContent) as Meta, suffix));
    }
    return parts.length > 0 ? new Report(parts) : null;
  }

  private part(run: number): Part {
    const part = this.parts[run];
    if (!part) throw new Error(`there is no run ${run} in this report`);
    return part;
  }

  async meta(run: number): Promise<Meta> {
    return this.part(run).own;
  }

  async rows(run: number, name: string, query: Query): Promise<Table> {
    return this.part(run).rows(name, query);
  }

  async shares(run: number, query: ShareQuery): Promise<Shares> {
    return this.part(run).shares(query);
  }

  async packet(run: number, row: number): Promise<PacketStory | null> {
    return this.part(run).packet(row);
  }

  tells(run: number, row: number): boolean {
    return this.parts[run]?.tells(row) ?? false;
  }

  rerun(): Promise<number> {
    return Promise.reject(new Error('a report cannot run the scenario again'));
  }

  progress(): Promise<Progress> {
    return Promise.reject(new Error('a report cannot run the scenario again'));
  }

  plan(): Promise<never> {
    return Promise.reject(new Error('a report cannot compute'));
  }
}

function decode(text: string): ArrayBuffer {
  const raw = atob(text.trim());
  const bytes = new Uint8Array(raw.length);
  for (let at = 0; at < raw.length; at++) bytes[at] = raw.charCodeAt(at);
  return bytes.buffer;
}

function select(table: Table, query: Query, binWidth: number): Table {
  const [first, last] = TIMES[table.name] ?? [];
  const from = query.from ?? 0;
  const to = query.to ?? Infinity;
  const begins = first ? table.columns[first] : table.columns['bin'];
  const ends = last ? table.columns[last] : undefined;
  const scale = first ? 1 : binWidth;
  const wide = scale * (table.columns['bins']?.[0] ?? 1);
  const filters: [Column, number][] = [];
  for (const key of ['rank', 'host', 'queue_pair', 'communicator', 'sequence', 'packet', 'psn'] as const) {
    const values = table.columns[key];
    if (query[key] !== undefined && values) filters.push([values, query[key]]);
  }
  const ranks = query.ranks && table.columns['rank'] ? new Set(query.ranks) : null;
  const kept: number[] = [];
  rows: for (let row = 0; row < table.rows; row++) {
    for (const [values, wanted] of filters) if (values[row] !== wanted) continue rows;
    if (ranks && !ranks.has(table.columns['rank']![row]!)) continue;
    if (begins) {
      const begin = begins[row]! * scale;
      const until = ends ? ends[row]! : begin + (first ? 0 : wide);
      // A row that never ends (NaN) counts as the moment it began.
      if (begin > to || (Number.isNaN(until) ? begin : until) < from) continue;
    }
    kept.push(row);
  }
  const { rows, total } = thin(kept, begins, ends, query.most);
  // What the report itself left out counts as left out.
  return take(table, { rows, total: total + table.total - table.rows });
}

// Of rows that fall together the longest stays, so that nothing large disappears from a picture.
function thin(rows: number[], begins: Column | undefined, ends: Column | undefined, most: number): { rows: number[]; total: number } {
  const total = rows.length;
  if (total <= most) return { rows, total };
  const stride = total / most;
  const kept: number[] = [];
  for (let bucket = 0; bucket < most; bucket++) {
    let best = rows[Math.floor(bucket * stride)]!;
    const end = Math.min(total, Math.floor((bucket + 1) * stride));
    if (begins && ends) {
      for (let at = Math.floor(bucket * stride) + 1; at < end; at++) {
        const row = rows[at]!;
        if (ends[row]! - begins[row]! > ends[best]! - begins[best]!) best = row;
      }
    }
    kept.push(best);
  }
  return { rows: kept, total };
}

function take(table: Table, { rows, total }: { rows: number[]; total: number }): Table {
  const columns: Record<string, Column> = {};
  for (const [name, values] of Object.entries(table.columns)) {
    const made = new (values.constructor as new (length: number) => Column)(rows.length);
    for (let at = 0; at < rows.length; at++) made[at] = values[rows[at]!]!;
    columns[name] = made;
  }
  // Where rows were left out, a packet is still known by its row in the whole table.
  if (!columns['row']) columns['row'] = Uint32Array.from(rows);
  return { name: table.name, rows: rows.length, total, columns };
}
