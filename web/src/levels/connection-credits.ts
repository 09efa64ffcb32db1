// Messages of a connection over time: handed to the NIC, done at the other end as its acknowledgements say, and allowed by the
// credits in them.
import { drawLines, type Line } from '../draw/lines';
import { CATEGORY, palette } from '../draw/palette';
import type { TimePlane } from '../draw/time-plane';
import { column, type Table } from '../source/block';
import { count, time } from '../words/units';

/** A packet without an acknowledgement header. */
const NO_SYNDROME = 255;
/** The code of a side that does not use credits. */
const NOT_IN_USE = 31;
const NAKS = ['sequence error', 'invalid request', 'remote access error', 'remote operational error', 'invalid RD request'];

/** Receives that a code in an acknowledgement promises (IBTA, table 46); none where it means that credits are not in use. */
export function creditsOf(code: number): number | null {
  if (code >= NOT_IN_USE) return null;
  if (code < 2) return code;
  return code % 2 === 0 ? 2 ** (code / 2) : 3 * 2 ** ((code - 3) / 2);
}

/** What the syndrome of an acknowledgement says. */
export function verdict(syndrome: number): string {
  const rest = syndrome & 31;
  if (syndrome >> 5 === 0) return rest === NOT_IN_USE ? 'ACK, credits not in use' : `ACK, ${count(creditsOf(rest) ?? 0)} credits`;
  if (syndrome >> 5 === 1) return `receiver not ready, timer ${rest}`;
  return syndrome >> 5 === 3 ? `NAK, ${NAKS[rest] ?? `code ${rest}`}` : `reserved syndrome ${syndrome}`;
}

interface Answer {
  time: number;
  messages: number;
  syndrome: number;
  psn: number;
}

/** The answers that arrived, in the order in which they did. */
export function answersOf(table: Table | null): Answer[] {
  if (!table) return [];
  const [received, messages, syndrome, psn] = ['received', 'messages', 'syndrome', 'psn'].map((name) => column(table, name));
  const found: Answer[] = [];
  for (let row = 0; row < table.rows; row++) {
    if (!table.columns['syndrome'] || syndrome![row] === NO_SYNDROME || !Number.isFinite(received![row]!)) continue;
    found.push({ time: received![row]!, messages: messages![row]!, syndrome: syndrome![row]!, psn: psn![row]! });
  }
  return found.sort((a, b) => a.time - b.time);
}

/** In words: how many of which verdict, and what they say about credits. */
export function tellAnswers(answers: Answer[]): string {
  if (answers.length === 0) return 'No acknowledgement of it was kept in this window.';
  const kinds = new Map<string, number>();
  const credits: number[] = [];
  for (const { syndrome } of answers) {
    const promised = syndrome >> 5 === 0 ? creditsOf(syndrome & 31) : null;
    if (promised !== null) credits.push(promised);
    const kind = promised === null ? verdict(syndrome) : 'ACK with credits';
    kinds.set(kind, (kinds.get(kind) ?? 0) + 1);
  }
  const last = answers[answers.length - 1]!;
  const parts = [...kinds].map(([kind, many]) => `${count(many)} × ${kind}`);
  if (credits.length > 0) parts.push(`credits from ${count(Math.min(...credits))} to ${count(Math.max(...credits))}`);
  return `Its acknowledgements that were kept: ${parts.join('; ')}. The last one says that ${last.messages === 1 ? '1 message is' : `${count(last.messages)} messages are`} done.`;
}

/** Draws the lines. `messages` are all of the connection, or none where there are too many of them; `answers` come in the order of time. */
export function drawMessages(plane: TimePlane, messages: Table | null, answers: Answer[]): void {
  const lines: Line[] = [];
  if (messages && messages.rows > 0) {
    const posted = [...column(messages, 'posted')].sort((a, b) => a - b);
    lines.push({ name: 'handed to the NIC', colour: CATEGORY.blue, points: [{ time: 0, value: 0 }, ...posted.map((time, index) => ({ time, value: index + 1 }))], steps: true });
  }
  const limits = answers.flatMap(({ time, messages, syndrome }) => {
    const promised = syndrome >> 5 === 0 ? creditsOf(syndrome & 31) : null;
    return promised === null ? [] : [{ time, value: messages + promised }];
  });
  if (limits.length > 0) lines.push({ name: 'allowed', colour: CATEGORY.purple, points: limits, steps: true });
  lines.push({ name: 'done', colour: CATEGORY.green, points: answers.map(({ time, messages }) => ({ time, value: messages })), steps: true });
  const { scale, left, right } = plane;
  // The range of what is on screen: each line's values there, and the one with which it comes in.
  const seen = lines.flatMap(({ points }) => {
    const inside = points.filter(({ time }) => scale.x(time) >= left && scale.x(time) <= right);
    return [...inside, ...points.filter(({ time }) => scale.x(time) < left).slice(-1)].map(({ value }) => value);
  });
  const most = seen.reduce((high, value) => Math.max(high, value), 1);
  const lowest = seen.reduce((low, value) => Math.min(low, value), most);
  const least = lowest < most / 2 ? 0 : Math.max(0, lowest - 1);
  drawLines(plane, lines, most, count, 10, least);
  const y = (value: number) => plane.bottom - 2 - ((value - least) / Math.max(1, most - least)) * (plane.bottom - 16);
  plane.context.fillStyle = CATEGORY.green;
  for (const answer of answers) {
    const x = plane.scale.x(answer.time);
    if (x < plane.left || x > plane.right) continue;
    plane.context.fillRect(x - 2, y(answer.messages) - 2, 4, 4);
    plane.hits.push({ x: x - 4, y: y(answer.messages) - 4, w: 8, h: 8, tip: () => `${verdict(answer.syndrome)}\nPSN ${answer.psn}, ${count(answer.messages)} messages done\narrived ${time(answer.time)}` });
  }
  if (answers.length === 0) {
    plane.context.fillStyle = palette().quiet;
    plane.context.fillText('No acknowledgement in this window.', plane.left + 10, 34);
  }
}
