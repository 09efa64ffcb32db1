// The page as one thing: which run, which view of it, what plays. Everything is drawn from here, and only when
// something has changed.
import { forgetPalette } from './draw/palette';
import { hideTip } from './draw/tip';
import { lastMove } from './levels/failure';
import type { Scene } from './levels/level';
import { Run } from './model/run';
import { readView, writeView, type LevelId, type View } from './model/view';
import type { Source } from './source/source';

const NARROWEST = 1000;
const PLAY_SECONDS = 12;
/** With reduced motion time goes in jumps: so many a window, so far apart. */
const JUMPS = 24;
const JUMP_MS = 700;

export class App {
  view: View;
  run: Run;
  playing = false;
  /** Set by the shell: draws what is around the level and the level itself. */
  paint: () => void = () => {};
  scene: Scene | null = null;
  say: (text: string) => void = () => {};
  private runs = new Map<number, Run>();
  private asked = false;
  private before = 0;
  private saving = 0;

  constructor(
    readonly source: Source,
    run: Run,
  ) {
    this.run = run;
    this.runs.set(run.index, run);
    this.view = readView(location.hash, run.duration);
    if (!/^#\w/.test(location.hash)) this.view.level = opening(run);
    // Two runs that somebody asked for are beside each other from the start.
    this.besideAsAsked();
    if (this.view.beside !== null) void this.other(this.view.beside).then(() => this.widen(), () => this.go({ beside: null }));
    // Of steps that are calculated once, the first is there to be seen.
    if (!/[?&]t=/.test(location.hash) && run.recordedUntil < run.duration) {
      this.view.to = run.recordedUntil;
      this.view.at = Math.min(this.view.at, Math.round(this.view.to / 2));
    }
    // Of a run that stood still in the end, first what happened before.
    if (run.meta.report.error && !/[?&]t=/.test(location.hash)) {
      this.view.to = Math.min(run.duration, Math.round(lastMove(run) * 1.1));
      this.view.at = Math.min(this.view.at, this.view.to / 2);
    }
    addEventListener('popstate', () => {
      const { level } = this.view;
      this.view = readView(location.hash, this.duration);
      this.besideAsAsked();
      if (this.view.level !== level) this.playing = false;
      void this.follow();
    });
    matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => this.recolour());
  }

  /** How long the time axis is: as long as the longest of the runs that are shown. */
  get duration(): number {
    const other = this.view.beside === null ? undefined : this.runs.get(this.view.beside);
    return Math.max(this.run.duration, other?.duration ?? 0);
  }

  /** The run beside, where one is shown and is there. */
  get besideRun(): Run | null {
    const { beside } = this.view;
    return beside === null || beside === this.run.index ? null : (this.runs.get(beside) ?? null);
  }

  /** What the address does not say is as it was asked for. */
  private besideAsAsked(): void {
    if (this.besideAtStart !== null && this.view.run === 0 && !/[?&]beside=/.test(location.hash)) this.view.beside = this.besideAtStart;
  }

  /** The run that somebody asked to have beside this one. */
  private get besideAtStart(): number | null {
    const asked = (this.runs.get(0)?.meta.runs ?? []).findIndex(({ asked }) => asked);
    return asked > 0 ? asked : null;
  }

  /** The whole of both runs, where the whole of one was shown. */
  private widen(): void {
    if (this.view.from === 0 && this.view.to === this.run.duration) this.view.to = this.duration;
    this.redraw();
  }

  /** Shows another run on the same level. What is chosen by a row of the one before means nothing in it. */
  async turnTo(index: number, beside: number | null = null): Promise<void> {
    await this.other(index);
    if (beside !== null) await this.other(beside);
    // None beside it is said as itself beside it, where another one would come back.
    this.go({ run: index, beside: beside ?? (this.besideAtStart === null ? null : index), packet: null, message: null });
    this.widen();
  }

  /** Looks at something else. Another level is a new entry of the history; the rest replaces the last. */
  go(change: Partial<View>): void {
    const level = this.view.level;
    this.view = { ...this.view, ...change };
    const { view } = this;
    view.from = Math.max(0, view.from);
    view.to = Math.min(this.duration, view.to);
    view.at = Math.min(this.duration, Math.max(0, view.at));
    if (change.level && change.level !== level) {
      hideTip();
      this.playing = false;
      clearTimeout(this.saving);
      this.saving = 0;
      history.pushState(null, '', writeView(view, this.duration));
      scrollTo({ top: 0 });
    } else if (!this.saving) {
      this.saving = window.setTimeout(() => {
        this.saving = 0;
        history.replaceState(null, '', writeView(this.view, this.duration));
      }, 300);
    }
    if (change.run !== undefined) void this.follow();
    this.redraw();
  }

  open(level: LevelId, change: Partial<View> = {}): void {
    this.go({ ...change, level });
  }

  /** Chooses a window of time; the moment comes along. */
  window(from: number, to: number): void {
    const { duration } = this;
    const width = Math.min(duration, Math.max(NARROWEST, to - from));
    const start = Math.min(Math.max(0, from), duration - width);
    const end = start + width;
    const { at } = this.view;
    this.go({ from: start, to: end, at: at < start || at > end ? (start + end) / 2 : at });
  }

  zoom(factor: number, about = this.view.at): void {
    const { from, to } = this.view;
    const middle = about < from || about > to ? (from + to) / 2 : about;
    const width = (to - from) / factor;
    const share = (middle - from) / (to - from);
    this.window(middle - width * share, middle + width * (1 - share));
  }

  pan(by: number): void {
    this.window(this.view.from + by, this.view.to + by);
  }

  /** Moves the moment; the window follows when it would leave it. */
  moveTo(at: number): void {
    const { from, to } = this.view;
    const within = Math.min(this.duration, Math.max(0, at));
    if (within < from || within > to) {
      const width = to - from;
      const start = Math.min(Math.max(0, within - width / 2), this.duration - width);
      this.go({ at: within, from: start, to: start + width });
    } else this.go({ at: within });
  }

  step(direction: number): void {
    this.playing = false;
    if (this.scene?.step?.(direction)) return this.redraw();
    this.moveTo(this.view.at + (direction * (this.view.to - this.view.from)) / 40);
  }

  play(on = !this.playing): void {
    this.playing = on;
    if (on && this.scene?.play?.()) return this.redraw();
    if (on && this.view.at >= this.view.to - 1) this.go({ at: this.view.from });
    this.before = 0;
    this.redraw();
  }

  redraw(): void {
    if (this.asked) return;
    this.asked = true;
    requestAnimationFrame((now) => this.frame(now));
  }

  recolour(): void {
    forgetPalette();
    this.redraw();
  }

  async other(index: number): Promise<Run> {
    const known = this.runs.get(index);
    if (known) return known;
    const run = await Run.open(this.source, index);
    this.runs.set(index, run);
    return run;
  }

  known(index: number): Run | undefined {
    return this.runs.get(index);
  }

  private async follow(): Promise<void> {
    if (this.view.run !== this.run.index) {
      try {
        this.run = await this.other(this.view.run);
      } catch (error) {
        this.say(String(error));
        this.view.run = this.run.index;
      }
      this.view = readView(writeView(this.view, this.duration), this.duration);
    }
    this.redraw();
  }

  private frame(now: number): void {
    this.asked = false;
    if (this.playing) this.advance(now);
    this.paint();
    if (this.playing) {
      if (stillness()) setTimeout(() => this.redraw(), JUMP_MS);
      else this.redraw();
    }
  }

  private advance(now: number): void {
    const passed = this.before ? Math.min(0.1, (now - this.before) / 1000) : 0;
    this.before = now;
    const { from, to, at } = this.view;
    const share = stillness() ? 1 / JUMPS : passed / PLAY_SECONDS;
    const next = Math.min(to, Math.max(from, at) + share * (to - from));
    this.go({ at: next });
    if (next >= to) this.playing = false;
  }
}

/** The level that has something to show: the fabric where packets ran, else what ranks did. */
function opening(run: Run): LevelId {
  return run.has('load') || !run.has('operations') ? 'cluster' : 'step';
}

export function stillness(): boolean {
  return matchMedia('(prefers-reduced-motion: reduce)').matches;
}
