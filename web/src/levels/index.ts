// The ten levels, in the order of the life of a job.
import { LEVELS } from '../model/view';
import { cluster } from './cluster';
import { collective } from './collective';
import { completion } from './completion';
import { congestion } from './congestion';
import { connection } from './connection';
import { launch } from './launch';
import type { Level } from './level';
import { packet } from './packet';
import { problem } from './problem';
import { roles } from './roles';
import { step } from './step';

const ALL: Record<(typeof LEVELS)[number], Level> = {
  problem,
  launch,
  cluster,
  step,
  collective,
  connection,
  packet,
  congestion,
  completion,
  roles,
};

export const LEVEL_LIST: Level[] = LEVELS.map((id) => ALL[id]);
