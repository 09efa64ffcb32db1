// The one time axis: above, the whole run with the chosen window; below, the window with the moment.
import type { App } from './app';
import { scale } from './draw/axis';
import { make } from './draw/dom';
import { CATEGORY, palette } from './draw/palette';
import { drawTicks } from './draw/time-plane';
import { Feed } from './model/feed';
import { binsPerRow } from './model/load';
import type { Run } from './model/run';
import { column, type Table } from './source/block';
import { moment } from './words/units';

const OVERVIEW = 26;
const HEIGHT = 64;
const HANDLE = 6;

export class Timebar {
  readonly root: HTMLElement;
  private canvas: HTMLCanvasElement;
  private clock: HTMLElement;
  private button: HTMLButtonElement;
  private load: Feed;
  private profile: { run: Run; table: Table; width: number; duration: number; bytes: Float64Array; trouble: Uint8Array } | null = null;
  private drag: { kind: 'window' | 'moment' | 'left' | 'right'; from: number } | null = null;

  constructor(private app: App) {
    this.load = new Feed('load', () => app.redraw());
    this.canvas = make('canvas', { 'aria-label': 'Time axis: drag to choose a window', role: 'img' });
    this.clock = make('output', { class: 'clock', 'aria-label': 'moment' });
    this.button = make('button', { class: 'play', 'aria-label': 'Play', 'data-tip': 'Play (space)', click: () => app.play() }, '▶');
    const step = (text: string, name: string, direction: number) =>
      make('button', { 'aria-label': name, 'data-tip': `${name} (${direction < 0 ? '←' : '→'})`, click: () => app.step(direction) }, text);
    const zoom = (text: string, name: string, run: () => void) => make('button', { 'aria-label': name, 'data-tip': name, click: run }, text);
    this.root = make(
      'footer',
      { id: 'timebar' },
      make(
        'div',
        { class: 'transport' },
        step('‹', 'Back', -1),
        this.button,
        step('›', 'On', 1),
        zoom('−', 'Zoom out (−)', () => app.zoom(0.5)),
        zoom('+', 'Zoom in (+)', () => app.zoom(2)),
        zoom('↔', 'Whole run (0)', () => app.window(0, app.duration)),
        this.clock,
      ),
      this.canvas,
    );
    new ResizeObserver(() => app.redraw()).observe(this.root);
    this.listen();
  }

  show(): void {
    const { app, canvas } = this;
    const { from, to, at } = app.view;
    this.clock.textContent = moment(at, to - from);
    this.button.textContent = app.playing ? '❚❚' : '▶';
    this.button.setAttribute('aria-label', app.playing ? 'Pause' : 'Play');
    const width = canvas.clientWidth;
    if (width <= 0) return;
    const ratio = Math.min(3, devicePixelRatio || 1);
    if (canvas.width !== Math.round(width * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(HEIGHT * ratio);
    }
    const context = canvas.getContext('2d')!;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, HEIGHT);
    context.textBaseline = 'middle';
    this.drawOverview(context, width);
    this.drawWindow(context, width);
  }

  private drawOverview(context: CanvasRenderingContext2D, width: number): void {
    const { app } = this;
    const colours = palette();
    const { duration } = app;
    context.fillStyle = colours.line;
    context.fillRect(0, OVERVIEW - 1, width, 1);
    const profile = this.sums(width);
    if (profile) {
      const most = profile.bytes.reduce((high, value) => Math.max(high, value), 1);
      context.fillStyle = colours.quiet;
      context.globalAlpha = 0.6;
      for (let x = 0; x < width; x++) {
        const height = (profile.bytes[x]! / most) * (OVERVIEW - 5);
        if (height > 0) context.fillRect(x, OVERVIEW - 1 - height, 1, height);
      }
      context.globalAlpha = 1;
      for (let x = 0; x < width; x++) {
        const trouble = profile.trouble[x]!;
        if (!trouble) continue;
        context.fillStyle = trouble & 4 ? CATEGORY.vermilion : trouble & 2 ? CATEGORY.purple : CATEGORY.orange;
        context.fillRect(x, 0, 1, 3);
      }
    }
    context.fillStyle = colours.quiet;
    for (const { begun } of app.run.meta.steps) if (begun > 0) context.fillRect(Math.round((begun / duration) * width), 3, 1, OVERVIEW - 4);
    const { from, to } = app.view;
    const left = (from / duration) * width;
    const right = Math.max(left + 2, (to / duration) * width);
    context.fillStyle = colours.accent;
    context.globalAlpha = 0.14;
    context.fillRect(left, 0, right - left, OVERVIEW);
    context.globalAlpha = 1;
    context.fillRect(left, 0, 2, OVERVIEW);
    context.fillRect(right - 2, 0, 2, OVERVIEW);
  }

  private drawWindow(context: CanvasRenderingContext2D, width: number): void {
    const { from, to, at } = this.app.view;
    const axis = scale(from, to, 0, width);
    drawTicks(context, axis, from, to, 0, width, HEIGHT - 22, OVERVIEW + 6);
    const x = Math.min(width - 1, Math.max(1, axis.x(at)));
    context.fillStyle = palette().accent;
    context.fillRect(x - 0.75, OVERVIEW + 2, 1.5, HEIGHT - OVERVIEW - 22);
    context.beginPath();
    context.arc(x, OVERVIEW + 8, 5, 0, 7);
    context.fill();
  }

  /** Bytes on all links, and where marks, pauses or drops were, by pixel of the overview. */
  private sums(width: number): { bytes: Float64Array; trouble: Uint8Array } | null {
    const { run } = this.app;
    const table = this.load.want(run, { most: 60000 });
    if (!table || !run.meta.bins || table.rows === 0) return null;
    if (this.profile && this.profile.table === table && this.profile.width === width && this.profile.run === run && this.profile.duration === this.app.duration) return this.profile;
    const { width: binWidth, count } = run.meta.bins;
    const byBin = new Float64Array(count + 1);
    const trouble = new Uint8Array(width);
    const [bin, carried, marks, paused, drops] = ['bin', 'bytes', 'marks', 'paused', 'drops'].map((name) => column(table, name));
    const joined = binsPerRow(table);
    const perPixel = this.app.duration / width;
    for (let row = 0; row < table.rows; row++) {
      byBin[Math.min(count, bin![row]!)]! += carried![row]!;
      const kind = (marks![row]! ? 1 : 0) | (paused![row]! ? 2 : 0) | (drops![row]! ? 4 : 0);
      if (kind === 0) continue;
      const first = Math.min(width - 1, Math.floor((bin![row]! * binWidth) / perPixel));
      const end = Math.min(width, Math.max(first + 1, Math.floor(((bin![row]! + joined) * binWidth) / perPixel)));
      for (let x = first; x < end; x++) trouble[x]! |= kind;
    }
    this.profile = { run, table, width, duration: this.app.duration, bytes: byPixel(joined > 1 ? spread(byBin, joined) : byBin, perPixel / binWidth, width), trouble };
    return this.profile;
  }

  private listen(): void {
    const { app, canvas } = this;
    const place = (event: PointerEvent) => {
      const box = canvas.getBoundingClientRect();
      return { x: event.clientX - box.left, y: event.clientY - box.top, width: box.width };
    };
    const whole = (x: number, width: number) => (x / width) * app.duration;
    canvas.addEventListener('pointerdown', (event) => {
      const { x, y, width } = place(event);
      canvas.setPointerCapture(event.pointerId);
      if (y > OVERVIEW) {
        this.drag = { kind: 'moment', from: x };
        app.go({ at: scale(app.view.from, app.view.to, 0, width).value(x) });
        return;
      }
      const left = (app.view.from / app.duration) * width;
      const right = (app.view.to / app.duration) * width;
      const kind = Math.abs(x - left) < HANDLE && left > 1 ? 'left' : Math.abs(x - right) < HANDLE && right < width - 1 ? 'right' : 'window';
      this.drag = { kind, from: x };
    });
    canvas.addEventListener('pointermove', (event) => {
      if (!this.drag) return;
      const { x, width } = place(event);
      const { from, to } = app.view;
      if (this.drag.kind === 'moment') app.go({ at: Math.min(to, Math.max(from, scale(from, to, 0, width).value(x))) });
      else if (this.drag.kind === 'left') app.window(Math.min(whole(x, width), to - 1000), to);
      else if (this.drag.kind === 'right') app.window(from, Math.max(whole(x, width), from + 1000));
      else if (Math.abs(x - this.drag.from) > 4) app.window(whole(Math.min(x, this.drag.from), width), whole(Math.max(x, this.drag.from), width));
    });
    canvas.addEventListener('pointerup', (event) => {
      const { x, width } = place(event);
      if (this.drag?.kind === 'window' && Math.abs(x - this.drag.from) <= 4) app.moveTo(whole(x, width));
      this.drag = null;
    });
    canvas.addEventListener('dblclick', () => app.window(0, app.duration));
  }
}

/** Bins that came joined share what they carried. */
function spread(bins: Float64Array, joined: number): Float64Array {
  return bins.map((_, bin) => bins[bin - (bin % joined)]! / joined);
}

/** The busiest bin under each pixel: neither gaps nor stripes, whichever of the two is wider. */
function byPixel(bins: Float64Array, binsPerPixel: number, width: number): Float64Array {
  const made = new Float64Array(width);
  for (let x = 0; x < width; x++) {
    const first = Math.floor(x * binsPerPixel);
    const end = Math.max(first, Math.ceil((x + 1) * binsPerPixel) - 1);
    for (let bin = first; bin <= end && bin < bins.length; bin++) made[x] = Math.max(made[x]!, bins[bin]!);
  }
  return made;
}
