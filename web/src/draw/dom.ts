// Elements without markup in strings: whatever a run says ends up as text.
import { GLOSSARY } from '../words/glossary';

type Child = Node | string | null | undefined;
type Listener = (event: Event) => void;

export function make<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  attributes: Record<string, string | boolean | Listener> = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === 'function') element.addEventListener(name, value);
    else if (value === true) element.setAttribute(name, '');
    else if (value !== false) element.setAttribute(name, value);
  }
  element.append(...children.filter((child): child is Node | string => child !== null && child !== undefined));
  return element;
}

/** Replaces the children, only where they differ in text: what does not change does not flash. */
export function fill(element: HTMLElement, ...children: Child[]): void {
  element.replaceChildren(...children.filter((child): child is Node | string => child !== null && child !== undefined));
}

/** Our own texts with [[terms]]: each term explains itself on hover and on focus. */
export function words(text: string): DocumentFragment {
  const out = document.createDocumentFragment();
  for (const part of text.split(/(\[\[[^\]]+\]\])/)) {
    const found = /^\[\[([^|\]]+)(?:\|([^\]]+))?\]\]$/.exec(part);
    if (found) out.append(term(found[1]!, found[2]));
    else if (part) out.append(part);
  }
  return out;
}

export function term(shown: string, entry = shown): HTMLElement {
  const text = GLOSSARY[entry];
  if (!text) return make('span', {}, shown);
  return make('span', { class: 'term', tabindex: '0', 'data-tip': text }, shown);
}

/** A number that matters, what it is, and why it is so. */
export function figure(value: string, name: string | Node, reason: string | Node = ''): HTMLElement {
  return make('div', { class: 'number' }, make('b', {}, value), make('span', { class: 'what' }, name), make('span', { class: 'why' }, reason));
}

export function note(...children: Child[]): HTMLElement {
  return make('p', { class: 'note' }, ...children);
}

/** What is said where a run has nothing to show, and what to run instead. */
export function absent(why: string, command?: string): HTMLElement {
  return make('div', { class: 'absent' }, make('p', {}, words(why)), command ? make('code', {}, command) : null);
}
