// A canvas with a caption that says what is drawn, in which unit, and what is good. Marks on it are told by pointer and
// keyboard alike: each drawing leaves a list of places that have something to say or to open.
import type { App } from '../app';
import { make, words } from './dom';
import { palette } from './palette';
import { hideTip, showTip } from './tip';

export interface Hit {
  x: number;
  y: number;
  w: number;
  h: number;
  /** Made when somebody asks: thousands of places are drawn, few are pointed at. */
  tip: string | (() => string);
  open?: () => void;
}

export interface PlaneOptions {
  title: string;
  /** Unit and what is good, with [[terms]]. */
  note: string;
  /** Height in pixels for a width; fixed heights keep the page from jumping. */
  height: number | ((width: number) => number);
  draw: (plane: Plane) => void;
  label?: string;
}

export class Plane {
  readonly root: HTMLElement;
  readonly canvas: HTMLCanvasElement;
  readonly context: CanvasRenderingContext2D;
  width = 0;
  height = 0;
  hits: Hit[] = [];
  private chosen = -1;
  private heading: HTMLElement;
  private noted: HTMLElement;

  constructor(
    protected app: App,
    protected options: PlaneOptions,
  ) {
    this.canvas = make('canvas', { tabindex: '0', role: 'img', 'aria-label': options.label ?? options.title });
    this.context = this.canvas.getContext('2d')!;
    this.heading = make('b', {}, options.title);
    this.noted = make('span', {}, words(options.note));
    this.root = make('figure', {}, make('figcaption', {}, this.heading, this.noted), this.canvas);
    new ResizeObserver(() => app.redraw()).observe(this.root);
    this.canvas.addEventListener('pointermove', (event) => this.hover(event));
    this.canvas.addEventListener('pointerleave', () => hideTip());
    this.canvas.addEventListener('keydown', (event) => this.key(event));
    this.canvas.addEventListener('blur', () => {
      if (this.chosen >= 0) app.redraw();
      this.chosen = -1;
    });
    this.listen();
  }

  set title(text: string) {
    if (this.heading.textContent !== text) this.heading.textContent = text;
  }

  /** Unit, what is good, and what is not drawn. */
  set note(text: string) {
    if (this.noted.dataset['text'] === text) return;
    this.noted.dataset['text'] = text;
    this.noted.replaceChildren(words(text));
  }

  /** Sizes the canvas for the screen it is on and draws. */
  paint(): void {
    const width = Math.floor(this.root.clientWidth);
    if (width <= 0) return;
    const height = Math.round(typeof this.options.height === 'number' ? this.options.height : this.options.height(width));
    const ratio = Math.min(3, window.devicePixelRatio || 1);
    if (this.canvas.width !== Math.round(width * ratio) || this.canvas.height !== Math.round(height * ratio)) {
      this.canvas.width = Math.round(width * ratio);
      this.canvas.height = Math.round(height * ratio);
      this.canvas.style.height = `${height}px`;
    }
    this.width = width;
    this.height = height;
    this.hits = [];
    const { context } = this;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    context.font = FONT;
    context.textBaseline = 'middle';
    context.textAlign = 'left';
    context.lineWidth = 1;
    context.globalAlpha = 1;
    this.options.draw(this);
    const hit = this.hits[this.chosen];
    if (hit) {
      context.strokeStyle = palette().accent;
      context.lineWidth = 2;
      context.strokeRect(hit.x - 2, hit.y - 2, hit.w + 4, hit.h + 4);
    }
  }

  hitAt(event: MouseEvent, slack = 3): Hit | undefined {
    const place = this.canvas.getBoundingClientRect();
    const x = event.clientX - place.left;
    const y = event.clientY - place.top;
    for (let at = this.hits.length - 1; at >= 0; at--) {
      const hit = this.hits[at]!;
      if (x >= hit.x - slack && x <= hit.x + hit.w + slack && y >= hit.y - slack && y <= hit.y + hit.h + slack) return hit;
    }
    return undefined;
  }

  protected listen(): void {
    this.canvas.addEventListener('click', (event) => this.hitAt(event)?.open?.());
  }

  protected hover(event: PointerEvent): void {
    const hit = this.hitAt(event);
    this.canvas.classList.toggle('opens', hit?.open !== undefined);
    const tip = hit ? tipOf(hit) : '';
    if (tip) showTip(tip, event.clientX, event.clientY + 18);
    else hideTip();
  }

  private key(event: KeyboardEvent): void {
    if (event.key === 'Enter') {
      const hit = this.hits[this.chosen];
      if (hit?.open) {
        event.preventDefault();
        hit.open();
      }
      return;
    }
    if ((event.key !== '.' && event.key !== ',') || this.hits.length === 0) return;
    event.preventDefault();
    event.stopPropagation();
    const next = this.chosen + (event.key === '.' ? 1 : -1);
    this.chosen = (next + this.hits.length) % this.hits.length;
    const hit = this.hits[this.chosen]!;
    const place = this.canvas.getBoundingClientRect();
    showTip(tipOf(hit), place.left + hit.x + hit.w / 2, place.top + hit.y + hit.h + 8);
    this.app.say(tipOf(hit));
    this.app.redraw();
  }
}

export const FONT = '13px system-ui, "Segoe UI", Roboto, "Noto Sans", sans-serif';
export const SMALL = '12px system-ui, "Segoe UI", Roboto, "Noto Sans", sans-serif';

export function tipOf({ tip }: Hit): string {
  return typeof tip === 'string' ? tip : tip();
}

/** Text that ends in … where the room does. */
export function clipped(context: CanvasRenderingContext2D, text: string, room: number): string {
  if (context.measureText(text).width <= room) return text;
  let low = 0;
  let high = text.length;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (context.measureText(`${text.slice(0, middle)}…`).width <= room) low = middle;
    else high = middle - 1;
  }
  return low > 0 ? `${text.slice(0, low)}…` : '';
}
