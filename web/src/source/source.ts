// Where the data of a run comes from: a server on this machine, or the report file itself.
import type { Meta, PacketStory } from '../model/meta';
import type { Plan } from '../levels/calculator';
import type { ShareQuery, Shares } from '../model/shares';
import type { Table } from './block';

export interface Query {
  from?: number;
  to?: number;
  most: number;
  rank?: number;
  host?: number;
  queue_pair?: number;
  communicator?: number;
  sequence?: number;
  packet?: number;
  psn?: number;
  ranks?: number[];
}

export type Progress = { state: 'running'; share: number } | { state: 'done' } | { state: 'failed'; error: string };

export interface Source {
  /** Whether the server can run the scenario again with something changed. */
  canRerun: boolean;
  meta(run: number): Promise<Meta>;
  rows(run: number, table: string, query: Query): Promise<Table>;
  /** What ranks did in a window, in bins. */
  shares(run: number, query: ShareQuery): Promise<Shares>;
  packet(run: number, row: number): Promise<PacketStory | null>;
  /** Whether it can tell this packet of a run byte by byte. */
  tells(run: number, row: number): boolean;
  rerun(key: string, value: string): Promise<number>;
  progress(run: number): Promise<Progress>;
  /** What `railnet plan` answers to options. */
  plan(options: Record<string, string>): Promise<Plan>;
}
