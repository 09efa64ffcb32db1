// One tooltip for everything: terms by hover or focus, marks on a canvas by pointer or keyboard.
import { make } from './dom';

let box: HTMLElement | null = null;
let owner: Element | null = null;

export function startTips(): void {
  box = make('div', { id: 'tip', role: 'tooltip', hidden: true });
  document.body.append(box);
  const open = (event: Event) => {
    const target = event.target instanceof Element ? event.target.closest('[data-tip]') : null;
    if (!target) return;
    owner = target;
    const place = target.getBoundingClientRect();
    showTip(target.getAttribute('data-tip') ?? '', place.left + place.width / 2, place.bottom + 6);
    target.setAttribute('aria-describedby', 'tip');
  };
  const close = (event: Event) => {
    if (owner && event.target instanceof Element && owner.contains(event.target)) hideTip();
  };
  document.addEventListener('pointerover', open);
  document.addEventListener('focusin', open);
  document.addEventListener('pointerout', close);
  document.addEventListener('focusout', close);
  window.addEventListener('scroll', hideTip, { passive: true });
}

export function showTip(text: string, x: number, y: number): void {
  if (!box || !text) return;
  if (box.textContent !== text) box.textContent = text;
  box.hidden = false;
  const { width, height } = box.getBoundingClientRect();
  const left = Math.max(8, Math.min(x - width / 2, innerWidth - width - 8));
  const top = y + height + 8 > innerHeight ? Math.max(8, y - height - 24) : y;
  box.style.left = `${left}px`;
  box.style.top = `${top}px`;
}

export function hideTip(): void {
  if (box) box.hidden = true;
  owner?.removeAttribute('aria-describedby');
  owner = null;
}
