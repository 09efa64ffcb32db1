// The run behind `railnet view`: rows by time window, thinned out by the server.
import type { Meta, PacketStory } from '../model/meta';
import { readBlock, type Table } from './block';
import type { Plan } from '../levels/calculator';
import type { ShareQuery, Shares } from '../model/shares';
import type { Progress, Query, Source } from './source';

export class Served implements Source {
  canRerun = true;

  meta(run: number): Promise<Meta> {
    return json<Meta>(`api/run?run=${run}`);
  }

  async rows(run: number, table: string, query: Query): Promise<Table> {
    const words = new URLSearchParams({ run: String(run), table });
    for (const [key, value] of Object.entries(query)) {
      if (value !== undefined) words.set(key, Array.isArray(value) ? value.join('.') : String(Math.round(value as number)));
    }
    const answer = await fetch(`api/rows?${words}`);
    if (!answer.ok) throw new Error(await complaint(answer));
    return readBlock(await answer.arrayBuffer()).table;
  }

  async shares(run: number, { from, to, bins, ranks }: ShareQuery): Promise<Shares> {
    const words = new URLSearchParams({ run: String(run), from: String(Math.round(from)), to: String(Math.round(to)), bins: String(bins) });
    if (ranks) words.set('ranks', ranks.join('.'));
    const answer = await fetch(`api/shares?${words}`);
    if (!answer.ok) throw new Error(await complaint(answer));
    return { from, width: Math.max(1, to - from) / bins, table: readBlock(await answer.arrayBuffer()).table };
  }

  async packet(run: number, row: number): Promise<PacketStory | null> {
    const answer = await fetch(`api/packet?run=${run}&packet=${row}`);
    if (answer.status === 404) return null;
    if (!answer.ok) throw new Error(await complaint(answer));
    return (await answer.json()) as PacketStory;
  }

  tells(): boolean {
    return true;
  }

  async rerun(key: string, value: string): Promise<number> {
    return (await post<{ run: number }>('api/rerun', { key, value })).run;
  }

  plan(options: Record<string, string>): Promise<Plan> {
    return post<Plan>('api/plan', options);
  }

  progress(run: number): Promise<Progress> {
    return json<Progress>(`api/rerun?run=${run}`);
  }
}

async function json<T>(address: string): Promise<T> {
  const answer = await fetch(address);
  if (!answer.ok) throw new Error(await complaint(answer));
  return (await answer.json()) as T;
}

async function post<T>(address: string, body: Record<string, string>): Promise<T> {
  const answer = await fetch(address, { method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify(body) });
  if (!answer.ok) throw new Error(await complaint(answer));
  return (await answer.json()) as T;
}

async function complaint(answer: Response): Promise<string> {
  try {
    return ((await answer.json()) as { error: string }).error;
  } catch {
    return `the server answered ${answer.status}`;
  }
}
