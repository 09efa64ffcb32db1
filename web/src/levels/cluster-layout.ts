// Where switches and servers are drawn: bands, the highest tier on top. Links between two of them are one bundle.
import type { Run } from '../model/run';

export interface Item {
  /** A switch by its vertex, a server by its number, or a host that belongs to no server. */
  kind: 'switch' | 'node' | 'host';
  id: number;
  name: string;
  band: number;
  x: number;
  y: number;
  w: number;
  h: number;
  hosts: number[];
  /** Servers and the leaves they are plugged into belong together. */
  pod: number;
}

export interface Bundle {
  a: Item;
  b: Item;
  /** Channels from a to b, and from b to a. */
  there: number[];
  back: number[];
  capacity: number;
}

export interface Layout {
  items: Item[];
  bundles: Bundle[];
  bands: { name: string; y: number; h: number; cells: boolean }[];
  capacity: number;
}

const NEAR = 30;
const CELL = 11;
const NODE_CELL = 15;
/** Narrower columns for a pod than this cannot be told apart. */
const POD_COLUMN = 8;

/** Lays out the whole fabric, or one switch with its neighbours, on a surface of this size. */
export function layout(run: Run, centre: number | null, width: number, height: number, left: number): Layout {
  const { items, byVertex } = collect(run, centre);
  const bundles = bundle(run, items, byVertex);
  const tiers = Math.max(1, ...run.meta.fabric.switches.map((each) => each.tier));
  const bands: Layout['bands'] = [];
  const used = [...new Set(items.map((item) => item.band))].sort((a, b) => b - a);
  const heights = used.map((band) => bandHeight(items.filter((item) => item.band === band), width - left, band));
  const free = Math.max(24, (height - heights.reduce((sum, each) => sum + each, 0)) / Math.max(1, used.length - 1));
  let y = 0;
  used.forEach((band, index) => {
    const of = items.filter((item) => item.band === band);
    const cells = place(of, left, width - left, y, heights[index]!, band);
    bands.push({ name: bandName(band, tiers, of), y, h: heights[index]!, cells });
    y += heights[index]! + free;
  });
  return { items, bundles, bands, capacity: Math.max(1, ...bundles.map((each) => each.capacity)) };
}

/** How tall a surface should be for this fabric: cells of large ones need rows. */
export function wantedHeight(run: Run, centre: number | null, width: number, left: number): number {
  const { items } = collect(run, centre);
  const bands = [...new Set(items.map((item) => item.band))];
  const boxes = bands.reduce((sum, band) => sum + bandHeight(items.filter((item) => item.band === band), width - left, band), 0);
  return boxes + (bands.length - 1) * (width < 500 ? 90 : 120);
}

function bandName(band: number, tiers: number, items: Item[]): string {
  if (band === 0) return items[0]?.kind === 'node' ? 'servers' : 'hosts';
  if (band === 1) return tiers === 1 ? 'switches' : 'leaves';
  return band === 2 ? (tiers > 2 ? 'aggregation' : 'spines') : 'core';
}

function collect(run: Run, centre: number | null): { items: Item[]; byVertex: Map<number, Item> } {
  const { meta } = run;
  const near = centre === null ? null : neighbours(run, centre);
  const items: Item[] = [];
  const byVertex = new Map<number, Item>();
  const blank = { x: 0, y: 0, w: 0, h: 0, pod: 0 };
  meta.fabric.switches.forEach(({ name, tier }, index) => {
    const id = run.hosts + index;
    if (near && !near.has(id)) return;
    const item: Item = { kind: 'switch', id, name, band: Math.max(1, tier), hosts: [], ...blank };
    items.push(item);
    byVertex.set(id, item);
  });
  const owned = new Set<number>();
  meta.nodes.forEach(({ name, hosts }, id) => {
    hosts.forEach((host) => owned.add(host));
    if (near && !hosts.some((host) => near.has(host))) return;
    const item: Item = { kind: 'node', id, name, band: 0, hosts: near ? hosts.filter((host) => near.has(host)) : hosts, ...blank };
    items.push(item);
    hosts.forEach((host) => byVertex.set(host, item));
  });
  meta.fabric.hosts.forEach(({ name }, id) => {
    if (owned.has(id) || (near && !near.has(id))) return;
    const item: Item = { kind: 'host', id, name, band: 0, hosts: [id], ...blank };
    items.push(item);
    byVertex.set(id, item);
  });
  findPods(run, byVertex);
  return { items, byVertex };
}

/** Servers and leaves that hang together without the tiers above are a pod. */
function findPods(run: Run, byVertex: Map<number, Item>): void {
  const above = new Map<Item, Item>();
  const root = (item: Item): Item => {
    let at = item;
    for (let next = above.get(at); next; next = above.get(at)) at = next;
    if (at !== item) above.set(item, at);
    return at;
  };
  for (const { a, b } of run.meta.fabric.links) {
    const [one, two] = [byVertex.get(a), byVertex.get(b)];
    if (!one || !two || one.band + two.band !== 1) continue;
    const [first, second] = [root(one), root(two)];
    if (first !== second) above.set(first, second);
  }
  const numbers = new Map<Item, number>();
  for (const item of byVertex.values()) {
    const top = root(item);
    if (!numbers.has(top)) numbers.set(top, numbers.size);
    item.pod = numbers.get(top)!;
  }
}

/** The members of each pod, where there are several and each has room for a column. */
function podsOf(items: Item[], width: number, band: number): Item[][] | null {
  if (band > 1) return null;
  const found = new Map<number, Item[]>();
  for (const item of items) {
    const list = found.get(item.pod);
    if (list) list.push(item);
    else found.set(item.pod, [item]);
  }
  return found.size > 1 && width / found.size >= POD_COLUMN ? [...found.values()] : null;
}

function podGrid(pods: Item[][], width: number, cell: number): { column: number; across: number; rows: number; size: number; room: number } {
  const column = width / pods.length;
  const most = Math.max(...pods.map((pod) => pod.length));
  // Cells shrink so that a pod is about twice as tall as wide.
  const room = column - Math.min(6, column * 0.25);
  const size = Math.min(cell, Math.max(6, room / Math.ceil(Math.sqrt(most / 2))));
  const across = Math.max(1, Math.min(most, Math.floor(room / size)));
  return { column, across, rows: Math.ceil(most / across), size, room };
}

function neighbours(run: Run, centre: number): Set<number> {
  const near = new Set([centre]);
  for (const { a, b } of run.meta.fabric.links) {
    if (a === centre) near.add(b);
    if (b === centre) near.add(a);
  }
  return near;
}

function bundle(run: Run, items: Item[], byVertex: Map<number, Item>): Bundle[] {
  const order = new Map(items.map((item, index) => [item, index]));
  const found = new Map<string, Bundle>();
  run.meta.fabric.links.forEach(({ a, b, rate }, index) => {
    const one = byVertex.get(a);
    const two = byVertex.get(b);
    if (!one || !two || one === two) return;
    const turned = order.get(one)! > order.get(two)!;
    const [low, high] = turned ? [two, one] : [one, two];
    const key = `${order.get(low)} ${order.get(high)}`;
    let made = found.get(key);
    if (!made) found.set(key, (made = { a: low, b: high, there: [], back: [], capacity: 0 }));
    made.there.push(2 * index + (turned ? 1 : 0));
    made.back.push(2 * index + (turned ? 0 : 1));
    made.capacity += rate;
  });
  return [...found.values()];
}

function bandHeight(items: Item[], width: number, band: number): number {
  if (width / items.length >= NEAR) return band === 0 ? 52 : 30;
  const cell = band === 0 ? NODE_CELL : CELL;
  const pods = podsOf(items, width, band);
  if (pods) {
    const { rows, size } = podGrid(pods, width, cell);
    return rows * size + 2;
  }
  return Math.ceil(items.length / Math.max(1, Math.floor(width / cell))) * cell + 2;
}

/** Gives each item of a band its box; many become cells of a heat map. True where they did. */
function place(items: Item[], left: number, width: number, y: number, height: number, band: number): boolean {
  const servers = band === 0;
  const room = width / items.length;
  if (room >= NEAR) {
    const w = Math.min(room - 8, servers ? 150 : 96);
    items.forEach((item, index) => Object.assign(item, { x: left + room * (index + 0.5) - w / 2, y, w, h: height }));
    return false;
  }
  const cell = servers ? NODE_CELL : CELL;
  const pods = podsOf(items, width, band);
  if (pods) {
    const { column, across, size, room: wide } = podGrid(pods, width, cell);
    const w = Math.min(wide / across, cell * 1.6);
    pods.forEach((pod, number) =>
      pod.forEach((item, index) =>
        Object.assign(item, {
          x: left + number * column + (column - w * Math.min(across, pod.length)) / 2 + (index % across) * w + 0.75,
          y: y + Math.floor(index / across) * size + 1,
          w: w - 1.5,
          h: size - 1.5,
        }),
      ),
    );
    return true;
  }
  const columns = Math.max(1, Math.floor(width / cell));
  const rows = Math.ceil(items.length / columns);
  // Even rows look like a map, not like a text that broke off.
  const inRow = Math.ceil(items.length / rows);
  const step = Math.min(width / inRow, cell * 1.6);
  const start = left + (width - step * inRow) / 2;
  items.forEach((item, index) =>
    Object.assign(item, {
      x: start + (index % inRow) * step + 1,
      y: y + Math.floor(index / inRow) * cell + 1,
      w: step - 2,
      h: cell - 2,
    }),
  );
  return true;
}
