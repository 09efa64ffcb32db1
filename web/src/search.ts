// Search: a rank, a host, server or switch, a queue pair, a sequence number.
import type { App } from './app';
import { fill, make } from './draw/dom';
import type { View } from './model/view';
import { connectionsOf } from './levels/connection';
import { column, NONE } from './source/block';
import { opcodeName } from './words/opcodes';
import { time } from './words/units';

const MOST = 8;
const MOST_CONNECTIONS = 20_000;
const WAIT_MS = 150;

interface Hit {
  text: string;
  open: () => void;
}

/** What somebody asks for: each part may be missing. */
export interface Asked {
  rank?: number;
  queuePair?: number;
  psn?: number;
  name?: string;
}

/** Takes a question apart: "rank 5", "host3 qp 18 psn 482", "5", "leaf1". A number alone may be any of the three. */
export function read(text: string): Asked {
  const asked: Asked = {};
  const rest = text.replace(/\b(rank|qpn?|psn)\s*[:#=]?\s*(0x[\da-f]+|\d+)/gi, (_, word: string, number: string) => {
    const key = /rank/i.test(word) ? 'rank' : /qp/i.test(word) ? 'queuePair' : 'psn';
    asked[key] = Number(number);
    return ' ';
  });
  const name = rest.trim();
  if (/^(0x[\da-f]+|\d+)$/i.test(name) && Object.keys(asked).length === 0) return { rank: Number(name), queuePair: Number(name), psn: Number(name), name };
  if (name) asked.name = name.toLowerCase();
  return asked;
}

export class Search {
  readonly root: HTMLElement;
  private input = make('input', { type: 'search', placeholder: 'rank, host, QP, PSN  ( / )', 'aria-label': 'Search', size: '22', spellcheck: 'false', autocomplete: 'off' });
  private list = make('div', { class: 'results', role: 'listbox', 'aria-label': 'What was found', hidden: true });
  private timer = 0;
  private asked = 0;

  constructor(private app: App) {
    this.root = make('div', { class: 'search' }, this.input, this.list);
    this.input.addEventListener('input', () => {
      clearTimeout(this.timer);
      this.timer = window.setTimeout(() => void this.find(), WAIT_MS);
    });
    this.input.addEventListener('keydown', (event) => {
      if (event.key === 'Escape') this.close();
      if (event.key === 'Enter') void this.find().then(() => this.list.querySelector('button')?.click());
      if (event.key === 'ArrowDown') this.list.querySelector('button')?.focus();
    });
    this.root.addEventListener('focusout', (event) => {
      if (!this.root.contains(event.relatedTarget as Node | null)) this.list.hidden = true;
    });
  }

  focus(): void {
    this.input.focus();
    this.input.select();
  }

  private close(): void {
    this.list.hidden = true;
    this.input.blur();
  }

  private async find(): Promise<void> {
    const number = ++this.asked;
    const text = this.input.value.trim();
    if (!text) {
      this.list.hidden = true;
      return;
    }
    const asked = read(text);
    const found = [...this.ranks(asked), ...this.names(asked), ...(await this.pairs(asked)), ...(await this.packets(asked))];
    if (number !== this.asked) return;
    fill(
      this.list,
      ...found.map(({ text, open }) => make('button', { class: 'plain', role: 'option', click: () => (this.close(), open()) }, text)),
      found.length === 0 ? make('p', { class: 'note' }, `Nothing here is called ${text}. Of packets and queue pairs those are found that were kept.`) : null,
    );
    this.list.hidden = false;
  }

  private ranks({ rank }: Asked): Hit[] {
    const { app } = this;
    if (rank === undefined || !app.run.meta.ranks[rank]) return [];
    const recorded = app.run.meta.alike ?? [];
    // Of ranks that are alike one was recorded; the page has no word on which stands for which, so it says that.
    const missing = recorded.length > 0 && !recorded.some(([one]) => one === rank);
    return [{ text: `${app.run.rankName(rank)}${missing ? ': not recorded, like one of those that were' : ''}`, open: () => app.open('step', { rank, node: null }) }];
  }

  private names({ name, queuePair, psn }: Asked): Hit[] {
    // With a queue pair or sequence number a name says whose it is.
    if (!name || ((queuePair !== undefined || psn !== undefined) && !/^\d/.test(name))) return [];
    const { app } = this;
    const { fabric, nodes } = app.run.meta;
    const hits: (Hit & { name: string })[] = [];
    const take = (each: string, text: string, level: View['level'], change: Partial<View>) => {
      if (each.toLowerCase().includes(name)) hits.push({ name: each.toLowerCase(), text, open: () => app.open(level, change) });
    };
    nodes.forEach((node, id) => take(node.name, `${node.name}: its part of the step`, 'step', { node: id, rank: null }));
    fabric.hosts.forEach((host, id) => take(host.name, `${host.name}${host.ip ? ` · ${host.ip}` : ''}: its connections`, 'connection', { host: id, queuePair: null, rank: null }));
    fabric.hosts.forEach((host, id) => host.ip === name && hits.push({ name, text: `${host.name} · ${host.ip}: its connections`, open: () => app.open('connection', { host: id, queuePair: null, rank: null }) }));
    fabric.switches.forEach((one, id) => take(one.name, `${one.name}: its links`, 'cluster', { leaf: fabric.hosts.length + id }));
    return hits.sort((a, b) => Number(b.name === name) - Number(a.name === name) || a.name.length - b.name.length).slice(0, MOST);
  }

  private hostOf(name: string | undefined): number | undefined {
    const place = name === undefined ? -1 : this.app.run.meta.fabric.hosts.findIndex((host) => host.name.toLowerCase() === name || host.ip === name);
    return place < 0 ? undefined : place;
  }

  private async pairs({ queuePair, psn, name }: Asked): Promise<Hit[]> {
    const { app } = this;
    if (queuePair === undefined || (psn !== undefined && psn !== queuePair) || !app.run.has('connections')) return [];
    const host = this.hostOf(name);
    const all = connectionsOf(await app.run.rows('connections', { most: MOST_CONNECTIONS }));
    const suits = all.filter((each) => each.queuePair === queuePair && (host === undefined || each.host === host));
    return suits.slice(0, MOST).map((each) => ({
      text: `${app.run.vertexName(each.host)} QP ${each.queuePair} → ${each.to === NONE ? '?' : app.run.vertexName(each.to)} QP ${each.target}`,
      open: () => app.open('connection', { host: each.host, queuePair: each.queuePair, rank: null, packet: null }),
    }));
  }

  private async packets({ psn, queuePair, name }: Asked): Promise<Hit[]> {
    const { app } = this;
    if (psn === undefined || !app.run.has('packets')) return [];
    const host = this.hostOf(name);
    const pair = queuePair === undefined || queuePair === psn ? {} : { queue_pair: queuePair };
    const table = await app.run.rows('packets', { psn, most: 200, ...pair, ...(host === undefined ? {} : { host }) });
    const [hosts, pairs, sent, opcodes] = ['host', 'queue_pair', 'sent', 'opcode'].map((each) => column(table, each));
    const rows = table.columns['row'];
    return Array.from({ length: Math.min(MOST, table.rows) }, (_, row) => ({
      text: `PSN ${psn}: ${opcodeName(opcodes![row]!)}, ${app.run.vertexName(hosts![row]!)} QP ${pairs![row]}, ${time(sent![row]!)}`,
      open: () => app.open('packet', { packet: rows ? rows[row]! : row, host: hosts![row]!, queuePair: pairs![row]!, at: sent![row]! }),
    }));
  }
}
