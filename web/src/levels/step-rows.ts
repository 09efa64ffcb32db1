// Operations of ranks, as the step's timeline draws them one by one.
import { column, type Column, type Table } from '../source/block';

export const COMMUNICATION = 5;

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
