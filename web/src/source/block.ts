// Tables come as blocks: a JSON header, then one little-endian column after another (docs/page.md).

export type Column = Uint8Array | Uint16Array | Uint32Array | Float64Array;

export interface Table {
  name: string;
  rows: number;
  /** Rows that matched before the server or the report left some out. */
  total: number;
  columns: Record<string, Column>;
}

interface Header {
  table: string;
  rows: number;
  total: number;
  columns: { name: string; type: string }[];
}

const WIDTHS: Record<string, number> = { u8: 1, u16: 2, u32: 4, u64: 8, f64: 8 };
const LAST_WORD = 0xffffffff;

/** Of a u32 column: none. */
export const NONE = 0xffffffff;

export function readBlock(buffer: ArrayBuffer, start = 0): { table: Table; next: number } {
  const view = new DataView(buffer, start);
  const length = view.getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, start + 4, length))) as Header;
  let at = aligned(4 + length);
  const columns: Record<string, Column> = {};
  for (const { name, type } of header.columns) {
    const width = WIDTHS[type];
    if (width === undefined) throw new Error(`column ${name} of ${header.table} has the unknown type ${type}`);
    columns[name] = readColumn(buffer, start + at, type, header.rows);
    at = aligned(at + width * header.rows);
  }
  return { table: { name: header.table, rows: header.rows, total: header.total, columns }, next: start + at };
}

export function readBlocks(buffer: ArrayBuffer): Map<string, Table> {
  const tables = new Map<string, Table>();
  for (let at = 0; at + 4 <= buffer.byteLength; ) {
    const { table, next } = readBlock(buffer, at);
    tables.set(table.name, table);
    at = next;
  }
  return tables;
}

/** A column by name; zeros where this run has no such column. */
export function column(table: Table, name: string): Column {
  return table.columns[name] ?? (table.columns[name] = new Uint8Array(table.rows));
}

export function emptyTable(name: string): Table {
  return { name, rows: 0, total: 0, columns: {} };
}

function readColumn(buffer: ArrayBuffer, at: number, type: string, rows: number): Column {
  switch (type) {
    case 'u8':
      return new Uint8Array(buffer, at, rows);
    case 'u16':
      return new Uint16Array(buffer, at, rows);
    case 'u32':
      return new Uint32Array(buffer, at, rows);
    case 'f64':
      return new Float64Array(buffer, at, rows);
    default:
      return readLongs(new Uint32Array(buffer, at, rows * 2), rows);
  }
}

// Values stay below 2^53, so doubles hold them exactly; the missing one becomes NaN, which no comparison lets through.
function readLongs(words: Uint32Array, rows: number): Float64Array {
  const values = new Float64Array(rows);
  for (let row = 0; row < rows; row++) {
    const low = words[2 * row]!;
    const high = words[2 * row + 1]!;
    values[row] = low === LAST_WORD && high === LAST_WORD ? NaN : high * 4294967296 + low;
  }
  return values;
}

function aligned(bytes: number): number {
  return (bytes + 7) & ~7;
}
