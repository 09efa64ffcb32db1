// Level 1: the same job through the kernel and past it: copies, who works, how long, what the wait costs.
import type { App } from '../app';
import { absent, figure, make, note, words } from '../draw/dom';
import { CATEGORY, EXPOSED } from '../draw/palette';
import type { Report } from '../model/meta';
import { headline, networkOf } from '../model/run';
import { count, share, time } from '../words/units';
import { Calculator } from './calculator';
import type { Level, Scene } from './level';

/** A stop on the way of the data, then how it gets to the next one; a copy is work of a processor. */
type Stop = [name: string, then?: string, copy?: boolean];

const KERNEL: Stop[] = [
  ['GPU memory', 'copied to host memory', true],
  ['Buffer of the program', 'copied into the kernel', true],
  ['Socket buffer, TCP', 'cut into packets, sent'],
  ['Network', 'received, put in order'],
  ['Socket buffer, TCP', 'copied to the program', true],
  ['Buffer of the program', 'copied to the GPU', true],
  ['GPU memory'],
];
const DIRECT: Stop[] = [['GPU memory', 'read by the NIC (DMA)'], ['NIC', 'RoCEv2 packets'], ['Network', 'RoCEv2 packets'], ['NIC', 'written by the NIC (DMA)'], ['GPU memory']];
const BOUNCED: Stop[] = [
  ['GPU memory', 'copied to host memory', true],
  ['Host memory', 'read by the NIC (DMA)'],
  ['NIC', 'RoCEv2 packets'],
  ['Network', 'RoCEv2 packets'],
  ['NIC', 'written by the NIC (DMA)'],
  ['Host memory', 'copied to the GPU', true],
  ['GPU memory'],
];

export const problem: Level = {
  id: 'problem',
  title: 'The problem',
  lead: 'GPUs add up numbers over the network, again and again, and stand still until the sum is there. The same job twice: through the operating system, and with [[RDMA]] past it.',
  both: 'own',
  make: (app) => new ProblemScene(app),
};

class ProblemScene implements Scene {
  readonly root: HTMLElement;

  constructor(private app: App) {
    const { run } = app;
    const { other, report } = run.meta;
    const beside = other && (other.key ?? 'cluster.transport') === 'cluster.transport' ? other.report : null;
    const rdma = run.isTcp ? beside : report;
    const tcp = run.isTcp ? report : beside;
    this.root = make(
      'div',
      {},
      make(
        'div',
        { class: 'columns' },
        this.side('Through the operating system (TCP)', KERNEL, tcp, 'the kernel and the program: each byte goes through a processor four times'),
        this.side(
          run.gpuDirect ? 'RDMA with GPUDirect' : 'RDMA without GPUDirect',
          run.gpuDirect ? DIRECT : BOUNCED,
          rdma,
          run.gpuDirect ? 'nobody: the processors only said what to send' : 'a copy on each side, to and from host memory',
        ),
      ),
      tcp && rdma
        ? this.compare([['TCP', tcp, CATEGORY.orange], ['RDMA', rdma, CATEGORY.blue]])
        : absent(
            `Only the ${run.isTcp ? 'TCP' : 'RDMA'} side of this job is in the recording. This makes both:`,
            `railnet sim ${run.meta.name} --record run.rail --beside cluster.transport=${run.isTcp ? 'rdma' : 'tcp'}`,
          ),
      other && !beside ? this.compare([[other.name, other.report, CATEGORY.orange], [run.meta.runs?.[0]?.name ?? 'this run', report, CATEGORY.blue]]) : null,
      this.latency(),
      new Calculator(app).root,
    );
  }

  show(): void {}

  private side(title: string, stops: Stop[], report: Report | null, processor: string): HTMLElement {
    const list = make('ol', { class: 'path' });
    for (const [name, then, copy] of stops) {
      list.append(make('li', copy ? { class: 'copy' } : {}, name, then ? make('small', copy ? { class: 'copy' } : {}, `↓ ${then}`) : null));
    }
    const copies = stops.filter(([, , copy]) => copy).length;
    const found = report && headline(report);
    return make(
      'section',
      { class: 'panel' },
      make('h2', {}, title),
      list,
      make(
        'div',
        { class: 'numbers' },
        figure(String(copies), copies === 1 ? 'copy' : 'copies', 'by processors or the GPU'),
        figure(found ? time(found.time) : '–', found ? found.name.toLowerCase() : 'not run'),
      ),
      note('Who works: ', processor, '.'),
    );
  }

  /** Both in numbers: the time, and the GPU time that waiting takes. */
  private compare(sides: [string, Report, string][]): HTMLElement {
    const times = sides.map(([, report]) => headline(report)?.time ?? 0);
    const most = Math.max(...times, 1);
    const bars = make('div', { class: 'bars' });
    sides.forEach(([name, report, colour], index) => {
      const bar = make('div', { class: 'bar' });
      bar.style.background = colour;
      bar.style.width = `${(times[index]! / most) * 100}%`;
      bars.append(make('span', {}, name), bar, make('span', {}, time(times[index]!)));
      const lost = waiting(report);
      if (lost === null) return;
      const wait = make('div', { class: 'bar' });
      wait.style.background = EXPOSED;
      wait.style.width = `${((lost.share * times[index]!) / most) * 100}%`;
      bars.append(make('span', { class: 'quiet' }, 'of it waiting'), wait, make('span', { class: 'quiet' }, share(lost.share)));
    });
    const costs = sides.map(([, report]) => waiting(report));
    return make(
      'section',
      { class: 'panel' },
      make('h2', {}, `${headline(sides[1]![1])?.name ?? 'The run'}: how long, and what the wait costs`),
      make('p', { class: 'note' }, 'Time of the same job; shorter is better.'),
      bars,
      costs[0] && costs[1]
        ? make(
            'div',
            { class: 'numbers' },
            figure(count(costs[0].hours), words(`[[GPU-hours]] a day lost, ${sides[0]![0]}`), `${share(costs[0].share)} of ${count(costs[0].gpus)} GPUs`),
            figure(count(costs[1].hours), words(`[[GPU-hours]] a day lost, ${sides[1]![0]}`), `${share(costs[1].share)} of ${count(costs[1].gpus)} GPUs`),
            figure(times[1]! > 0 ? `${(times[0]! / times[1]!).toFixed(2)} ×` : '–', `as long, ${sides[0]![0]}`),
          )
        : make('div', { class: 'numbers' }, figure(times[1]! > 0 ? `${(times[0]! / times[1]!).toFixed(2)} ×` : '–', `as long, ${sides[0]![0]}`)),
    );
  }

  /** What one packet takes in this run, from the recorded ones. */
  private latency(): HTMLElement {
    const box = make('section', { class: 'panel' }, make('h2', {}, 'One packet, NIC to NIC, in this run'));
    const { run } = this.app;
    if (!run.has('packets')) {
      box.append(note(`No packets were recorded (${run.meta.fidelity} fidelity); `, 'scenarios with packets: ', make('code', {}, 'railnet sim scenarios/rdma-or-tcp.toml --record run.rail')));
      return box;
    }
    const { latency } = run.meta;
    if (!latency) return box;
    const { packets = 0, packets_sent = 0 } = run.meta.kept ?? {};
    const of = latency.is_sample ? `of a sample: ${count(latency.packets)} with data` : `of all ${count(latency.packets)} with data`;
    box.append(
      make(
        'div',
        { class: 'numbers' },
        figure(time(latency.min), 'the fastest', of),
        figure(time(latency.median), 'half are faster', of),
        figure(time(latency.p99), '99 of 100 are faster', of),
        figure(count(networkOf(run.meta.report)?.packet_hops ?? 0), words('[[packet-hop]]s in the run'), 'one packet over one link'),
      ),
    );
    if (latency.is_sample) box.append(note(`A sample: ${count(packets_sent)} packets were sent, and what was lost, marked or sent again is in it more often than the rest${packets < latency.packets ? `; this report has ${count(packets)} of the packets, the figures are of all that were recorded` : ''}. Percentiles of all packets are likely lower.`));
    return box;
  }
}

/** The part of all GPU time in which GPUs wait for the network, and its price in a day. */
function waiting(report: Report): { share: number; hours: number; gpus: number } | null {
  const job = report.jobs?.[0];
  if (!job) return null;
  const { exposed, waiting } = job.average_us;
  const lost = (Object.values(exposed).reduce((sum, each) => sum + each, 0) + waiting) / job.step_us;
  return { share: lost, hours: lost * job.ranks * 24, gpus: job.ranks };
}
