// One run: what it says about itself, names for its parts, and its tables by window.
import { emptyTable, type Table } from '../source/block';
import type { Query, Source } from '../source/source';
import { count, time } from '../words/units';
import type { ShareQuery, Shares } from './shares';
import type { Followed, Job, Meta, Network, PacketStory, Report } from './meta';

const KEPT_TABLES = 96;
const KEPT_STORIES = 200;

export class Run {
  readonly hosts: number;
  readonly network: Network | null;
  readonly job: Job | null;
  private parallels: Map<number, string> | null = null;
  private standsFor: Map<number, number> | null = null;
  private tables = new Map<string, Promise<Table>>();
  private stories = new Map<number, Promise<PacketStory | null>>();

  constructor(
    readonly index: number,
    readonly meta: Meta,
    private source: Source,
  ) {
    this.hosts = meta.fabric.hosts.length;
    this.network = networkOf(meta.report);
    this.job = meta.report.jobs?.[0] ?? null;
  }

  static async open(source: Source, index: number): Promise<Run> {
    return new Run(index, await source.meta(index), source);
  }

  get duration(): number {
    return Math.max(1, this.meta.duration);
  }

  has(table: string): boolean {
    return (this.meta.tables[table] ?? 0) > 0;
  }

  rows(table: string, query: Query): Promise<Table> {
    if (!this.has(table)) return Promise.resolve(emptyTable(table));
    const key = `${table} ${JSON.stringify(query)}`;
    const known = this.tables.get(key);
    if (known) return known;
    const asked = this.source.rows(this.index, table, query);
    asked.catch(() => this.tables.delete(key));
    this.tables.set(key, asked);
    if (this.tables.size > KEPT_TABLES) this.tables.delete(this.tables.keys().next().value as string);
    return asked;
  }

  /** What ranks did in a window, in bins. */
  shares(query: ShareQuery): Promise<Shares> {
    return this.source.shares(this.index, query);
  }

  packet(row: number): Promise<PacketStory | null> {
    const known = this.stories.get(row);
    if (known) return known;
    const asked = this.source.packet(this.index, row);
    asked.catch(() => this.stories.delete(row));
    this.stories.set(row, asked);
    if (this.stories.size > KEPT_STORIES) this.stories.delete(this.stories.keys().next().value as number);
    return asked;
  }

  vertexName(vertex: number): string {
    const { hosts, switches } = this.meta.fabric;
    return (vertex < this.hosts ? hosts[vertex]?.name : switches[vertex - this.hosts]?.name) ?? `vertex ${vertex}`;
  }

  isSwitch(vertex: number): boolean {
    return vertex >= this.hosts;
  }

  /** Both ends of a channel, and what its link can carry in bits a second. */
  channel(channel: number): { from: number; to: number; rate: number; delay: number } {
    const link = this.meta.fabric.links[channel >> 1];
    if (!link) return { from: 0, to: 0, rate: 1, delay: 0 };
    const [from, to] = channel & 1 ? [link.b, link.a] : [link.a, link.b];
    return { from, to, rate: link.rate, delay: link.delay };
  }

  channelName(channel: number): string {
    const { from, to } = this.channel(channel);
    return `${this.vertexName(from)} → ${this.vertexName(to)}${this.parallel.get(channel >> 1) ?? ''}`;
  }

  /** Links between the same two, by number: which of how many they are. */
  private get parallel(): Map<number, string> {
    if (this.parallels) return this.parallels;
    const bundles = new Map<string, number[]>();
    this.meta.fabric.links.forEach(({ a, b }, link) => {
      const key = `${Math.min(a, b)} ${Math.max(a, b)}`;
      const bundle = bundles.get(key);
      if (bundle) bundle.push(link);
      else bundles.set(key, [link]);
    });
    this.parallels = new Map();
    for (const bundle of bundles.values()) {
      if (bundle.length > 1) bundle.forEach((link, index) => this.parallels!.set(link, `, link ${index + 1} of ${bundle.length}`));
    }
    return this.parallels;
  }

  string(index: number): string {
    return this.meta.strings[index] ?? '';
  }

  nodeName(node: number | null | undefined): string {
    return node === null || node === undefined ? '' : (this.meta.nodes[node]?.name ?? `node ${node}`);
  }

  /** A rank as people say it: its number, its GPU and where that is. */
  rankName(rank: number): string {
    const place = this.meta.ranks[rank];
    if (!place) return this.meta.fabric.hosts[rank]?.name ?? `rank ${rank}`;
    return this.isLive ? `rank ${rank} · ${this.nodeName(place.node)}` : `rank ${rank} · ${this.nodeName(place.node)} GPU ${place.gpu}`;
  }

  /** How many packets of how many are here, where some are not. */
  get keptPackets(): string {
    const { packets = 0, packets_sent = 0 } = this.meta.kept ?? {};
    return packets < packets_sent ? `${count(packets)} of the run’s ${count(packets_sent)} packets were kept, some of every part of it` : '';
  }

  /** The connection of which every packet is here, where of others some are not. */
  get followed(): Followed | null {
    return this.keptPackets ? (this.meta.kept?.followed ?? null) : null;
  }

  isFollowed(host: number | null, queuePair: number | null): boolean {
    const one = this.followed;
    return one !== null && ((one.host === host && one.queue_pair === queuePair) || (one.to === host && one.target === queuePair));
  }

  /** What is here of the packets of a connection, in words; nothing where all of all are. */
  keptOf(host: number | null, queuePair: number | null): string {
    const { followed } = this;
    if (!followed || !this.isFollowed(host, queuePair)) return this.keptPackets;
    const { packets = 0, packets_sent = 0 } = this.meta.kept ?? {};
    const others = Math.round((packets_sent - followed.packets) / Math.max(1, packets - followed.packets));
    const when = followed.until === null ? 'from the first to the last' : `from the first up to ${time(followed.until)}`;
    return `All packets of this connection are here, both ways, ${when}: ${count(followed.packets)}. Of the others about one in ${count(others)} was kept`;
  }

  /** Real processes, not simulated ones. */
  get isLive(): boolean {
    return this.meta.kind === 'live';
  }

  get isTcp(): boolean {
    return this.meta.transport === undefined ? /^\s*transport\s*=\s*"tcp"/m.test(this.meta.scenario) : this.meta.transport === 'tcp';
  }

  get gpuDirect(): boolean {
    return !/^\s*gpudirect\s*=\s*false/m.test(this.meta.scenario);
  }

  get control(): string {
    return this.meta.control ?? /^\s*control\s*=\s*"([^"]+)"/m.exec(this.meta.scenario)?.[1] ?? 'dcqcn';
  }

  /** Up to when operations were recorded: of steps that are calculated once, only the first has any. */
  get recordedUntil(): number {
    return Math.min(this.duration, this.meta.recorded_until ?? this.duration);
  }

  /** How many ranks one that was recorded stands for. */
  alike(rank: number): number {
    this.standsFor ??= new Map(this.meta.alike ?? []);
    return this.standsFor.get(rank) ?? 1;
  }

  /** Whether anything was marked, paused or dropped. */
  get hasCongestion(): boolean {
    const { marks = 0, pauses = 0, drops = 0 } = this.network ?? {};
    return marks + pauses + drops > 0;
  }
}

export function networkOf(report: Report): Network | null {
  if (report.network) return report.network;
  return report.packet_hops === undefined ? null : (report as Network);
}

/** How long the thing took that a reader cares about: a step of a job, else the whole run; in picoseconds. */
export function headline(report: Report): { name: string; time: number } | null {
  const job = report.jobs?.[0];
  if (job) return { name: 'A step', time: job.step_us * 1e6 };
  const network = networkOf(report);
  if (!network) return null;
  return { name: report.error ? 'Given up' : network.collectives?.length ? 'The collectives' : 'The flows', time: network.completion_us * 1e6 };
}
