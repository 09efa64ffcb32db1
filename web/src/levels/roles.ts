// Level 10: who did what, with this run's own numbers.
import type { App } from '../app';
import { make, words } from '../draw/dom';
import type { Run } from '../model/run';
import { bytes, count, many, share, time } from '../words/units';
import type { Level, Scene } from './level';

export const roles: Level = {
  id: 'roles',
  title: 'Who did what',
  lead: 'Each layer does one job and knows nothing of the others’: the collective library never sees a packet, the [[NIC]] never hears of [[AllReduce]], a switch never hears of gradients.',
  both: 'stacked',
  make: (app) => new RolesScene(app),
};

class RolesScene implements Scene {
  readonly root: HTMLElement;

  constructor(app: App) {
    const { run } = app;
    const rows: [string, string, string, string[]][] = [
      ['Launcher', 'nodes, ranks, environment, the meeting over TCP', 'any data, any packet', launcher(run)],
      ['Collective library', 'who sends what to whom, in which order; [[work request]]s', 'packets, losses, routes', library(run)],
      ['NIC', 'packets, [[PSN]], [[ACK]], sending again, its rate, [[DMA]]', 'what the bytes mean', nic(run)],
      ['Switch', 'the way of a packet, queues, [[ECN]] marks, [[PFC]] pauses', 'connections, messages, gradients', switches(run)],
      ['GPU', 'arithmetic, its memory', 'how the numbers got there', gpu(run)],
    ];
    this.root = make('div', {});
    const table = make(
      'table',
      { class: 'roles' },
      make('tr', {}, make('th', {}, ''), make('th', {}, 'owns'), make('th', { class: 'wide-only' }, 'does not own'), make('th', {}, 'in this run')),
    );
    for (const [name, owns, not, did] of rows) {
      table.append(
        make(
          'tr',
          {},
          make('td', {}, make('b', {}, name)),
          make('td', {}, words(owns)),
          make('td', { class: 'wide-only quiet' }, not),
          make('td', {}, ...(did.length ? did : ['nothing recorded']).map((line) => make('div', {}, words(line)))),
        ),
      );
    }
    const { meta } = run;
    this.root.append(
      make('div', { class: 'panel' }, table),
      make(
        'div',
        { class: 'panel' },
        make('h2', {}, 'The run'),
        make('p', {}, run.isLive ? `${meta.name}: ${time(run.duration)} of real time, by the clocks of the hosts.` : words(`${meta.name}, seed ${meta.seed}, ${meta.fidelity} fidelity, ${count(meta.events ?? run.network?.events ?? NaN)} events in ${time(run.duration)} of virtual time. [[digest|digest]] ${meta.digest}: the same commit, scenario and seed give it again.`)),
        ...(meta.kept?.notes ?? []).map((line) => make('p', { class: 'note' }, `Kept: ${line}`)),
        meta.scenario ? make('details', {}, make('summary', {}, 'The scenario'), make('pre', { class: 'mono' }, meta.scenario)) : null,
      ),
    );
  }

  show(): void {}
}

const UNKNOWN = 'not known from a live run';

function launcher({ meta, isLive }: Run): string[] {
  if (meta.nodes.length === 0) return ['nothing: plain traffic has no job'];
  const who = `${many(meta.nodes.length, 'node')}, ${many(meta.ranks.length, 'rank')}`;
  if (isLive) return [who, 'all met at rank 0'];
  return [who, `met at ${meta.nodes[0]!.name}:29500`];
}

function library({ meta, job, network, isLive }: Run): string[] {
  const out: string[] = [];
  if (isLive) return [`${many(meta.tables['calls'] ?? 0, 'call')} in ${many(meta.communicators.length, 'communicator')}`];
  if (job) {
    const calls = job.said.reduce((sum, each) => sum + each.count, 0);
    out.push(`${many(calls, 'collective')} in a step, ${many(job.communicators, 'communicator')} across servers`);
    const first = [...job.said].sort((a, b) => b.bytes - a.bytes)[0];
    if (first) out.push(`most: ${first.what}, ${first.algorithm}/${first.protocol} on ${many(first.channels, 'channel')}`);
  }
  for (const call of network?.collectives?.slice(0, 4) ?? []) {
    out.push(`${call.kind} of ${bytes(call.bytes)}: ${call.algorithm}/${call.protocol}, ${many(call.channels, 'channel')}, ${call.busbw.toFixed(1)} GB/s [[bus bandwidth]]`);
  }
  if (meta.tables['slices']) out.push(`${many(meta.tables['slices']!, 'slice')} recorded`);
  if (out.length === 0) out.push('nothing: plain flows');
  return out;
}

function nic({ meta, network, job, isLive }: Run): string[] {
  const out: string[] = [];
  if (isLive && !meta.tables['packets']) return ['none: shared memory or TCP'];
  if (isLive) out.push(`${many(meta.tables['packets']!, 'packet')} recorded`);
  if (job) out.push(`${many(job.queue_pairs, 'queue pair')}`);
  else if (meta.tables['connections']) out.push(`${many(meta.tables['connections']!, 'connection')}`);
  if (meta.tables['messages']) out.push(`${many(meta.tables['messages']!, 'work request')}`);
  if (network) out.push(`${many(network.resent, 'packet')} sent again, ${many(network.timeouts, 'timeout')}`, `${count(network.notifications)} [[CNP|CNP]]s`);
  return out;
}

function switches({ network, meta, isLive }: Run): string[] {
  if (isLive) return [UNKNOWN];
  if (!network) return [`${many(meta.fabric.switches.length, 'switch', 'switches')}; calculated, no packet went through them`];
  return [
    `${many(network.packet_hops, 'packet-hop')} through ${many(meta.fabric.switches.length, 'switch', 'switches')}`,
    `${many(network.marks, 'mark')}, ${many(network.pauses, 'pause')}, ${many(network.drops, 'drop')}`,
    `longest queue ${bytes(network.max_queue_bytes)}`,
  ];
}

function gpu({ job, meta, isLive }: Run): string[] {
  if (isLive) return ['none: memory of the hosts'];
  if (!job) return meta.ranks.length ? [`${many(meta.ranks.length, 'GPU')}, adding up what arrives`] : ['none in this run'];
  return [`${many(job.ranks, 'GPU')} ${job.gpu}, busy ${share(job.busy)}`, `[[MFU]] ${share(job.mfu)}, ${count(job.tokens_per_s)} tokens/s`, `a step of ${time(job.step_us * 1e6)}`];
}
