// Lines over time with one scale, and their names where they end.
import { palette } from './palette';
import { SMALL } from './plane';
import type { TimePlane } from './time-plane';

export interface Line {
  name: string;
  colour: string;
  points: { time: number; value: number }[];
  /** Stays at a value until the next one, rather than going there in a straight line. */
  steps?: boolean;
}

export function drawLines(plane: TimePlane, lines: Line[], most: number, word: (value: number) => string, top = 10, least = 0): void {
  const { context, left, right, bottom, scale } = plane;
  const colours = palette();
  const y = (value: number) => bottom - 2 - ((value - least) / Math.max(1e-9, most - least)) * (bottom - top - 6);
  context.font = SMALL;
  context.textAlign = 'right';
  context.fillStyle = colours.quiet;
  context.fillText(word(most), left - 8, y(most) + 2);
  context.fillText(least === 0 ? '0' : word(least), left - 8, bottom - 6);
  context.textAlign = 'left';
  context.save();
  context.beginPath();
  context.rect(left, 0, right - left, bottom);
  context.clip();
  for (const line of lines) {
    context.strokeStyle = line.colour;
    context.lineWidth = 1.5;
    context.beginPath();
    let before: number | null = null;
    for (const { time, value } of line.points) {
      const x = scale.x(time);
      if (before === null) context.moveTo(x, y(value));
      else {
        if (line.steps) context.lineTo(x, y(before));
        context.lineTo(x, y(value));
      }
      before = value;
    }
    if (before !== null && line.steps) context.lineTo(right, y(before));
    context.stroke();
  }
  context.restore();
}
