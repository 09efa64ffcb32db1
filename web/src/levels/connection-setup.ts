// The calls that make a connection, and what each side knows after each of them, with this connection's numbers.
import type { App } from '../app';
import { make, words } from '../draw/dom';
import type { PacketStory } from '../model/meta';
import { column, emptyTable, type Table } from '../source/block';
import { isData } from '../words/opcodes';
import { time } from '../words/units';
import type { Connection } from './connection';

const STATES = ['RESET', 'INIT', 'RTR', 'RTS', 'SQD', 'SQE', 'ERR'];

export async function setUp(app: App, each: Connection): Promise<(HTMLElement | null)[]> {
  const { run } = app;
  const hex = (value: number | undefined) => (value === undefined ? null : `0x${value.toString(16)}`);
  const { hosts } = run.meta.fabric;
  const recorded = { rkey: hex(each.region?.rkey), address: hex(each.region?.address), from: hosts[each.host]?.ip ?? null, to: hosts[each.to]?.ip ?? null };
  // What a recording does not say of its connections, their packets may.
  const packets = each.first === null ? await firstPackets(app, each) : emptyTable('packets');
  const firstPsn = each.first ?? (packets.rows > 0 ? column(packets, 'psn')[0]! : null);
  const known = each.first === null ? await fromPackets(app, packets) : recorded;
  const a = run.vertexName(each.host);
  const b = run.vertexName(each.to);
  const calls: [string, string, string][] = [
    ['ibv_alloc_pd, ibv_create_cq', 'a protection domain and a completion queue, on both sides', ''],
    ['ibv_reg_mr', 'memory is made known to the NIC', known.rkey ? `${b} has rkey ${known.rkey} for address ${known.address ?? '?'}` : `${a} writes nothing to ${b} that was kept: no rkey is known`],
    ['ibv_create_qp', 'a queue pair in state RESET', `${a} has QPN ${each.queuePair}, ${b} has QPN ${each.target}`],
    ['ibv_modify_qp → INIT', 'port and access rights', 'still nothing about the other side'],
    ['over TCP', 'the two tell each other what they have', `QPN, first PSN${firstPsn === null ? '' : ` ${firstPsn}`}, address, rkey`],
    ['ibv_modify_qp → RTR', 'ready to receive', `${b} knows: packets come from QPN ${each.queuePair}, the first has PSN ${firstPsn ?? '?'}`],
    ['ibv_modify_qp → RTS', 'ready to send', `${a} knows: to QPN ${each.target}, starting at PSN ${firstPsn ?? '?'}`],
  ];
  const list = make('ol', { class: 'steps' });
  for (const [call, what, then] of calls) {
    list.append(
      make('li', {}, make('div', {}, make('code', {}, call), ` ${what}`, then ? make('div', { class: 'quiet' }, then) : null)),
    );
  }
  return [make('h2', {}, 'How it was made'), make('div', { class: 'calls' }, list, await sides(app, each, known, firstPsn))];
}

interface Known {
  rkey: string | null;
  address: string | null;
  from: string | null;
  to: string | null;
}

async function fromPackets({ run }: App, packets: Table): Promise<Known> {
  const [opcode, row] = [column(packets, 'opcode'), packets.columns['row']];
  let story: PacketStory | null = null;
  for (let at = 0; at < packets.rows && !story; at++) {
    if (isData(opcode[at]!)) story = await run.packet(row ? row[at]! : at).catch(() => null);
    if (story && !field(story, /rkey|remote key|r_key/i) && at < 8) story = null;
  }
  return {
    rkey: story && field(story, /rkey|remote key|r_key/i),
    address: story && field(story, /virtual address|^address$|^va$/i),
    from: story && field(story, /^source( address| IP)?$|source address/i, /ip/i),
    to: story && field(story, /^destination( address| IP)?$|destination address/i, /ip/i),
  };
}

/** Its first packets: of many, a window that begins with the run has them all. */
async function firstPackets({ run }: App, each: Connection): Promise<Table> {
  let found = emptyTable('packets');
  for (let part = 1000; part >= 1 && found.rows === 0; part /= 10) {
    found = await run.rows('packets', { host: each.host, queue_pair: each.queuePair, from: 0, to: Math.ceil(run.duration / part), most: 5000 });
  }
  return found;
}

async function sides(
  app: App,
  each: Connection,
  known: Known,
  firstPsn: number | null,
): Promise<HTMLElement> {
  const { run } = app;
  const cell = (text: string | null) => make('td', {}, text ?? '–');
  const rows: [string, string | null, string | null][] = [
    ['its own QPN', String(each.queuePair), String(each.target)],
    ['the other’s QPN', String(each.target), String(each.queuePair)],
    ['the other’s IP', known.to, known.from],
    ['first PSN it sends / expects', firstPsn === null ? null : String(firstPsn), firstPsn === null ? null : String(firstPsn)],
    ['address it writes to first / offers', known.address, known.address],
    ['rkey it uses / gave away', known.rkey, known.rkey],
  ];
  const table = make(
    'table',
    {},
    make('tr', {}, make('th', {}, 'Knows'), make('th', {}, run.vertexName(each.host)), make('th', {}, run.vertexName(each.to))),
    ...rows.map(([name, left, right]) => make('tr', {}, make('td', {}, name), cell(left), cell(right))),
  );
  return make('div', {}, make('h3', {}, 'What each side knows in the end'), table, make('h3', {}, words('States of the [[queue pair]]')), await states(app, each));
}

async function states(app: App, each: Connection): Promise<HTMLElement> {
  const table = await app.run.rows('states', { host: each.host, queue_pair: each.queuePair, most: 50 });
  if (table.rows === 0) return make('p', { class: 'note' }, 'RESET → INIT → RTR → RTS before the run began; no change since.');
  const [when, from, to] = [column(table, 'time'), column(table, 'from'), column(table, 'to')];
  const parts = Array.from({ length: table.rows }, (_, row) => `${STATES[from[row]!] ?? '?'} → ${STATES[to[row]!] ?? '?'} at ${time(when[row]!)}`);
  return make('p', { class: 'note' }, parts.join(', '));
}

/** A field's value by the name of the field, in a layer by its name. */
export function field(story: PacketStory, name: RegExp, layer = /./): string | null {
  for (const each of story.layers) {
    if (!layer.test(each.name)) continue;
    const found = each.fields.find((one) => name.test(one.name));
    if (found) return found.value;
  }
  return null;
}
