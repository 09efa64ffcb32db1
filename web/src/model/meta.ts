// What a run says about itself, as docs/page.md has it. Times are picoseconds of virtual time.

export interface Meta {
  format: number;
  railnet: string;
  name: string;
  title: string;
  scenario: string;
  seed: number;
  digest: string;
  kind: 'job' | 'collectives' | 'traffic' | 'live';
  /** Links have credits, not pauses. */
  credits?: boolean;
  fidelity: 'packet' | 'analytic' | 'live';
  /** What was run, whatever the text of the scenario says. */
  control?: string;
  routing?: string;
  transport?: string;
  /** Ranks of which something was recorded, and how many each stands for. */
  alike?: [number, number][];
  /** The end of the last operation that was recorded. */
  recorded_until?: number;
  /** How long packets with data took from NIC to NIC, of those that were kept. */
  latency?: { packets: number; is_sample: boolean; min: number; median: number; p99: number } | null;
  /** Bins of the shares of time that a report has of its ranks. */
  shares?: number;
  /** Of the first run: all that the page has. */
  runs?: { name: string; role: 'own' | 'beside' | 'example'; asked?: boolean }[] | null;
  /** Of a run that was made from another: what is different, and what it was there. */
  change?: { key: string; value: string; name: string; was: string; asked?: boolean };
  /** Of a run that is none of the same scenario: what it is there for. */
  example?: string;
  duration: number;
  events?: number;
  report: Report;
  fabric: Fabric;
  nodes: { name: string; gpu: string | null; ranks: number[]; hosts: number[] }[];
  /** Of a live run also the process, and what leads to other ranks. */
  ranks: { node: number; gpu: number; host: number | null; process?: number; conduits?: string[] }[];
  streams: string[];
  strings: string[];
  communicators: { name: string; ranks: number[] }[];
  bins: { width: number; count: number } | null;
  /** Packets that are here, of those that were sent; what was left out, in words. */
  kept: { packets?: number; packets_sent?: number; notes?: string[]; followed?: Followed | null; call?: WholeCall | null } | null;
  steps: { begun: number; ended: number }[];
  critical: { rank: number; begun: number; ended: number }[];
  /** The same scenario with one key changed, where it was run beside. */
  other: { name: string; key?: string; value?: string; report: Report } | null;
  tables: Record<string, number>;
}

/** The connection of which every packet is here, both ways: up to a moment, or to the end. */
export interface Followed {
  host: number;
  queue_pair: number;
  to: number;
  target: number;
  until: number | null;
  packets: number;
}

/** The channel of a collective of which a report has every slice. */
export interface WholeCall {
  communicator: number;
  sequence: number;
  channel: number;
}

export interface Fabric {
  hosts: { name: string; node: number | null; ip?: string }[];
  switches: { name: string; tier: number; pod?: number | null }[];
  links: { a: number; b: number; rate: number; delay: number }[];
}

/** Why a run failed: `error` of `railnet sim --json -`. */
export interface RunFailure {
  kind: string;
  message: string;
  idle_us?: number;
  hosts?: string[];
  links?: { from: string; to: string }[];
  held_by?: { kind: string; links?: ({ from: string; to: string } | string)[] };
  waiting?: { flow: number; source: number; target: number; queue_pair: number; psn: number }[];
}

/** What `railnet sim --json -` prints; a job has its network apart. */
export interface Report extends Partial<Network> {
  scenario: string;
  partial?: boolean;
  error?: RunFailure;
  fidelity?: string;
  jobs?: Job[];
  network?: Network;
}

export interface Network {
  completion_us: number;
  packet_hops: number;
  events: number;
  bytes: number;
  drops: number;
  losses: number;
  marks: number;
  notifications: number;
  pauses: number;
  paused_us: number;
  resent: number;
  timeouts: number;
  max_queue_bytes: number;
  flow_us_min: number;
  flow_us_median: number;
  flow_us_p99: number;
  flow_us_max: number;
  flows?: { source: number; target: number; bytes: number; start_us: number; finish_us: number | null }[];
  collectives?: Collective[];
  links?: LinkNumbers[];
}

export interface Collective {
  kind: string;
  bytes: number;
  ranks: number;
  algorithm: string;
  protocol: string;
  channels: number;
  start_us: number;
  time_us: number;
  predicted_us: number | null;
  algbw: number;
  busbw: number;
  wrong: number;
}

export interface LinkNumbers {
  from: string;
  to: string;
  rate_bps: number;
  bytes: number;
  packets: number;
  utilisation: number;
  max_queue_bytes: number;
  marks: number;
  drops: number;
  losses: number;
  pauses: number;
  paused_us: number;
}

export interface Job {
  name: string;
  model: string;
  gpu: string;
  nodes: number;
  ranks: number;
  parameters: number;
  queue_pairs: number;
  buffer_bytes: number;
  communicators: number;
  busy: number;
  step_us: number;
  steps_us: number[];
  total_us: number;
  mfu: number;
  tokens_per_s: number;
  average_us: {
    forward: number;
    backward: number;
    recompute: number;
    optimiser: number;
    bubble: number;
    contention: number;
    waiting: number;
    exposed: Record<string, number>;
  };
  critical_path_us: Record<string, number>;
  slowest: { rank: number; alike?: number; others_waited_us: number; computed_longer_us: number } | null;
  said: {
    what: string;
    scope: string;
    algorithm: string;
    protocol: string;
    channels: number;
    count: number;
    bytes: number;
    ranks: number;
    median_us: number;
    p99_us: number;
    max_us: number;
  }[];
}

export interface Hop {
  vertex: number;
  name: string;
  /** None where the packet was made. */
  arrived: number | null;
  left: number;
  waiting: number;
  changes: string[];
}

export interface Field {
  name: string;
  value: string;
  from: number;
  to: number;
  text: string;
}

export interface PacketStory {
  row: number;
  hops: Hop[];
  received: number | null;
  /** None where the run kept no frame of it. */
  bytes: string | null;
  length: number | null;
  layers: { name: string; from: number; to: number; fields: Field[] }[];
  answer: { row: number } | null;
  message: Record<string, number | null> | null;
  words: string;
}
