// A plane whose x axis is the window of time that everything shares. Dragging on it chooses another window.
import type { App } from '../app';
import { moment, time } from '../words/units';
import { scale, ticks, type Scale } from './axis';
import { palette } from './palette';
import { Plane, SMALL, type Hit, type PlaneOptions } from './plane';

export interface TimeOptions extends Omit<PlaneOptions, 'draw'> {
  /** Room for names on the left. */
  left: (width: number) => number;
  draw: (plane: TimePlane) => void;
  /** What the picture depends on, other than window, size and colours; as long as it stays, only the moment is drawn anew. */
  version?: () => string;
}

const AXIS_HEIGHT = 22;
const RIGHT = 8;
const DRAG_STARTS = 5;

export class TimePlane extends Plane {
  scale: Scale = scale(0, 1, 0, 1);
  left = 0;
  /** Where drawing ends and the axis begins. */
  bottom = 0;
  private dragFrom: number | null = null;
  private dragTo = 0;
  private timeOptions: TimeOptions;
  private still: { key: string; image: HTMLCanvasElement; hits: Hit[] } | null = null;

  constructor(app: App, options: TimeOptions) {
    super(app, { ...options, draw: () => this.drawAll() });
    this.timeOptions = options;
  }

  get right(): number {
    return this.width - RIGHT;
  }

  protected override listen(): void {
    const { canvas } = this;
    const place = (event: MouseEvent) => event.clientX - canvas.getBoundingClientRect().left;
    canvas.addEventListener('pointerdown', (event) => {
      if (event.button !== 0) return;
      this.dragFrom = this.dragTo = place(event);
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener('pointermove', (event) => {
      if (this.dragFrom === null) return;
      this.dragTo = place(event);
      if (Math.abs(this.dragTo - this.dragFrom) > DRAG_STARTS) this.app.redraw();
    });
    canvas.addEventListener('pointerup', (event) => {
      const from = this.dragFrom;
      this.dragFrom = null;
      if (from === null) return;
      const to = place(event);
      if (Math.abs(to - from) > DRAG_STARTS && Math.max(from, to) > this.left) {
        const [low, high] = [Math.min(from, to), Math.max(from, to)];
        this.app.window(this.scale.value(Math.max(this.left, low)), this.scale.value(Math.min(this.right, high)));
        return;
      }
      const hit = this.hitAt(event);
      if (hit?.open) hit.open();
      else if (to > this.left) this.app.go({ at: this.scale.value(to) });
    });
    canvas.addEventListener('pointercancel', () => {
      this.dragFrom = null;
      this.app.redraw();
    });
    canvas.addEventListener('dblclick', () => this.app.window(0, this.app.duration));
    canvas.addEventListener(
      'wheel',
      (event) => {
        if (event.ctrlKey || event.metaKey) {
          event.preventDefault();
          this.app.zoom(event.deltaY < 0 ? 1.25 : 0.8, this.scale.value(place(event)));
        } else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
          event.preventDefault();
          const { from, to } = this.app.view;
          this.app.pan((event.deltaX / Math.max(1, this.width)) * (to - from));
        }
      },
      { passive: false },
    );
  }

  private drawAll(): void {
    const { from, to, at } = this.app.view;
    const { context } = this;
    const colours = palette();
    this.left = this.timeOptions.left(this.width);
    this.bottom = this.height - AXIS_HEIGHT;
    this.scale = scale(from, to, this.left, this.right - this.left);
    this.drawStill();
    const x = this.scale.x(at);
    if (x >= this.left && x <= this.right) {
      context.fillStyle = colours.accent;
      context.fillRect(Math.round(x) - 0.5, 0, 1, this.bottom + 4);
    }
    if (this.dragFrom !== null && Math.abs(this.dragTo - this.dragFrom) > DRAG_STARTS) {
      context.globalAlpha = 0.18;
      context.fillStyle = colours.accent;
      context.fillRect(Math.min(this.dragFrom, this.dragTo), 0, Math.abs(this.dragTo - this.dragFrom), this.bottom);
      context.globalAlpha = 1;
    }
  }

  /** The picture without the moment, from the last time where nothing has changed since. */
  private drawStill(): void {
    const { context, canvas } = this;
    const { from, to } = this.app.view;
    const version = this.timeOptions.version?.();
    const key = `${from} ${to} ${canvas.width} ${canvas.height} ${palette().dark} ${version}`;
    if (version !== undefined && this.still?.key === key) {
      context.drawImage(this.still.image, 0, 0, this.width, this.height);
      this.hits = this.still.hits;
      return;
    }
    drawTicks(context, this.scale, from, to, this.left, this.right, this.bottom, 0);
    this.timeOptions.draw(this);
    if (version === undefined) return;
    const image = this.still?.image ?? document.createElement('canvas');
    image.width = canvas.width;
    image.height = canvas.height;
    image.getContext('2d')!.drawImage(canvas, 0, 0);
    this.still = { key, image, hits: this.hits };
  }
}

/** Light lines at round times, with their names below. */
export function drawTicks(
  context: CanvasRenderingContext2D,
  { x }: Scale,
  from: number,
  to: number,
  left: number,
  right: number,
  bottom: number,
  top: number,
): void {
  const colours = palette();
  context.font = SMALL;
  context.fillStyle = colours.quiet;
  context.strokeStyle = colours.line;
  context.textAlign = 'center';
  const marks = ticks(from, to, Math.max(2, Math.floor((right - left) / 110)));
  // Far from zero a tick says how far it is from the first one: nobody reads nine figures under every line.
  const base = marks.length > 1 && marks[0]! > 200 * (marks[1]! - marks[0]!) ? marks[0]! : 0;
  context.beginPath();
  marks.forEach((mark, index) => {
    const at = Math.round(x(mark)) + 0.5;
    context.moveTo(at, top);
    context.lineTo(at, bottom);
    const text = base && index > 0 ? `+${time(mark - base)}` : base ? moment(mark, to - from) : time(mark);
    const half = context.measureText(text).width / 2;
    context.fillText(text, Math.min(Math.max(at, left + half), right - half), bottom + 12);
  });
  context.stroke();
  context.textAlign = 'left';
}
