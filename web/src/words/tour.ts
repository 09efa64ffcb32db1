// The tour: a few words for each level, in the order of the life of a job.
import type { LevelId } from '../model/view';

export const TOUR: { level: LevelId; text: string }[] = [
  {
    level: 'problem',
    text: 'Training is many GPUs adding up numbers again and again. Through the operating system each number is copied several times and a processor handles it. [[RDMA]] lets the network card do it alone.',
  },
  {
    level: 'launch',
    text: 'A scheduler finds servers and starts one process for each GPU, a [[rank]]. They meet over TCP once, at the [[rendezvous]], and tell each other where they are.',
  },
  {
    level: 'cluster',
    text: 'Servers below, [[leaf]] switches above them, [[spine]] switches on top. Wider is more capacity, stronger colour is more load. Drag on the time axis below: everything follows.',
  },
  {
    level: 'step',
    text: 'One training step: each row is a rank. Where orange runs below blue, communication hides behind arithmetic. Red is [[exposed communication]]: GPUs that wait.',
  },
  {
    level: 'collective',
    text: 'One [[AllReduce|AllReduce]] from inside: pieces travel from rank to rank and are added on the way, until each rank holds the sum of all. Press space, or step with ← and →.',
  },
  {
    level: 'connection',
    text: 'Two network cards agree on numbers before the first byte moves. Then each packet has the next [[PSN]]; acknowledgements follow, and losses show as steps back.',
  },
  {
    level: 'packet',
    text: 'One packet on its way: how long it waited at each hop, what each switch changed, and every byte of its headers.',
  },
  {
    level: 'congestion',
    text: 'Where queues grew, who had to slow down, who was paused. When this page is served, run the same again with another control and compare.',
  },
  {
    level: 'completion',
    text: 'The last packet is in, the answer is on its way back, the program learns that it is done, and the next piece can move.',
  },
  {
    level: 'roles',
    text: 'Each layer did one job and knows nothing of the others. These are this run’s own numbers for each of them.',
  },
];
