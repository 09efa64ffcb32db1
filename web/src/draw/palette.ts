// Colours. Categories are Okabe and Ito's set, which all eyes can tell apart; load has one ramp of even steps.

export const CATEGORY = {
  sky: '#56b4e9',
  blue: '#0072b2',
  green: '#009e73',
  orange: '#e69f00',
  vermilion: '#d55e00',
  purple: '#cc79a7',
  yellow: '#f0e442',
};

/** By kind of an operation: forward, recompute, backward, optimiser, checkpoint, communication. */
export const KINDS = [CATEGORY.sky, CATEGORY.yellow, CATEGORY.blue, CATEGORY.green, CATEGORY.purple, CATEGORY.orange];
export const KIND_NAMES = ['forward', 'recompute', 'backward', 'optimiser', 'checkpoint', 'communication'];
export const EXPOSED = CATEGORY.vermilion;

/** For lines of one chart. */
export const LINES = [CATEGORY.blue, CATEGORY.orange, CATEGORY.green, CATEGORY.purple, CATEGORY.sky, CATEGORY.vermilion];

export interface Palette {
  dark: boolean;
  paper: string;
  panel: string;
  ink: string;
  quiet: string;
  faint: string;
  line: string;
  accent: string;
}

let current: Palette | null = null;

export function palette(): Palette {
  if (current) return current;
  const style = getComputedStyle(document.documentElement);
  const read = (name: string) => style.getPropertyValue(`--${name}`).trim();
  current = {
    dark: read('dark') === '1',
    paper: read('paper'),
    panel: read('panel'),
    ink: read('ink'),
    quiet: read('quiet'),
    faint: read('faint'),
    line: read('line'),
    accent: read('accent'),
  };
  return current;
}

export function forgetPalette(): void {
  current = null;
  for (const ramp of [lightRamp, darkRamp]) ramp.length = 0;
}

// Ends of the ramp differ most in lightness, which is what the eye reads as more; on dark paper more is brighter.
const LIGHT = ['#dde4ea', '#a3cdd0', '#5aa7b0', '#2f7c99', '#2c4f86', '#37235f'];
const DARK = ['#303a45', '#2f5a75', '#2a8289', '#4fab77', '#a9c94e', '#fbe23a'];
const STEPS = 64;
const lightRamp: string[] = [];
const darkRamp: string[] = [];

/** The colour of a load between 0 and 1. */
export function loadColour(load: number): string {
  const dark = palette().dark;
  const ramp = dark ? darkRamp : lightRamp;
  if (ramp.length === 0) for (let step = 0; step < STEPS; step++) ramp.push(mix(dark ? DARK : LIGHT, step / (STEPS - 1)));
  const at = Math.round(Math.min(1, Math.max(0, Number.isFinite(load) ? load : 0)) * (STEPS - 1));
  return ramp[at]!;
}

function mix(stops: string[], share: number): string {
  const at = share * (stops.length - 1);
  const low = Math.min(stops.length - 2, Math.floor(at));
  const part = at - low;
  const channel = (colour: string, offset: number) => parseInt(colour.slice(offset, offset + 2), 16);
  const values = [1, 3, 5].map((offset) =>
    Math.round(channel(stops[low]!, offset) * (1 - part) + channel(stops[low + 1]!, offset) * part),
  );
  return `rgb(${values.join(' ')})`;
}
