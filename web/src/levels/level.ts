// What a level is: a name, a sentence, and a scene that is drawn again whenever something changed.
import type { App } from '../app';
import type { LevelId } from '../model/view';

export interface Scene {
  root: HTMLElement;
  /** Draws the scene for the view and run of the app. */
  show(): void;
  /** One step on or back, where the level has its own; false leaves it to time. */
  step?(direction: number): boolean;
  /** Called when playing starts; true when the level has prepared the window by itself. */
  play?(): boolean;
  /** Makes what is chosen fill the window; false where nothing is. */
  fit?(): boolean;
}

export interface Level {
  id: LevelId;
  title: string;
  /** One or two sentences with [[terms]]. */
  lead: string;
  /** How two runs are shown: one under the other, or by the level itself. */
  both?: 'stacked' | 'own';
  make(app: App): Scene;
}
