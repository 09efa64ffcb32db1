// Ticks at round values, and how a stretch of time lies on a stretch of pixels.

export interface Scale {
  /** Pixels of a value. */
  x(value: number): number;
  /** Value of a pixel. */
  value(x: number): number;
}

export function scale(from: number, to: number, left: number, width: number): Scale {
  const span = Math.max(1e-9, to - from);
  return {
    x: (value) => left + ((value - from) / span) * width,
    value: (x) => from + ((x - left) / Math.max(1, width)) * span,
  };
}

export function ticks(from: number, to: number, most: number): number[] {
  const rough = (to - from) / Math.max(1, most);
  if (!(rough > 0)) return [];
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough) ?? 10 * power;
  const made: number[] = [];
  for (let value = Math.ceil(from / step) * step; value <= to; value += step) made.push(value);
  return made;
}
