// Numbers with their units, three figures each, as the command line writes them.

const TIMES: [number, string][] = [
  [1e12, 's'],
  [1e9, 'ms'],
  [1e6, 'µs'],
  [1e3, 'ns'],
  [1, 'ps'],
];

/** Picoseconds in words. */
export function time(ps: number): string {
  if (!Number.isFinite(ps)) return '–';
  if (ps === 0) return '0 s';
  const size = Math.abs(ps);
  const [unit, name] = TIMES.find(([unit]) => size >= unit * 0.9995) ?? TIMES[TIMES.length - 1]!;
  return `${figures(ps / unit)} ${name}`;
}

/** A moment as fine as a window needs: 1.234567 ms in a window of a microsecond. */
export function moment(ps: number, window: number): string {
  const [unit, name] = TIMES.find(([unit]) => Math.max(Math.abs(ps), window) >= unit) ?? TIMES[TIMES.length - 1]!;
  const places = Math.max(0, Math.min(9, Math.ceil(Math.log10(unit / Math.max(1, window))) + 3));
  return `${(ps / unit).toFixed(places)} ${name}`;
}

export function figures(value: number): string {
  const size = Math.abs(value);
  if (size === 0) return '0';
  if (size >= 1000) return count(value);
  return value.toFixed(size >= 99.95 ? 0 : size >= 9.995 ? 1 : 2);
}

export function count(value: number): string {
  if (!Number.isFinite(value)) return '–';
  return Math.round(value).toString().replace(/\B(?=(\d{3})+(?!\d))/g, ',');
}

export function bytes(value: number): string {
  if (!Number.isFinite(value)) return '–';
  const units: [number, string][] = [
    [1e12, 'TB'],
    [1e9, 'GB'],
    [1e6, 'MB'],
    [1e3, 'KB'],
  ];
  const found = units.find(([unit]) => Math.abs(value) >= unit);
  return found ? `${figures(value / found[0])} ${found[1]}` : `${count(value)} B`;
}

export function rate(bitsPerSecond: number): string {
  if (!Number.isFinite(bitsPerSecond)) return '–';
  if (bitsPerSecond >= 1e12) return `${figures(bitsPerSecond / 1e12)} Tbps`;
  if (bitsPerSecond >= 1e9) return `${figures(bitsPerSecond / 1e9)} Gbps`;
  return `${figures(bitsPerSecond / 1e6)} Mbps`;
}

export function share(value: number): string {
  if (!Number.isFinite(value)) return '–';
  const percent = value * 100;
  return `${percent !== 0 && Math.abs(percent) < 9.95 ? percent.toFixed(1) : Math.round(percent)} %`;
}

/** A number with its noun: "1 packet", "3 packets". */
export function many(value: number, one: string, several = `${one}s`): string {
  return `${count(value)} ${Math.round(value) === 1 ? one : several}`;
}
