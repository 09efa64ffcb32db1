// What a packet is, from BTH's opcode (InfiniBand specification, table of opcodes; RoCEv2 annex for CNP).

const RELIABLE: string[] = [
  'SEND First',
  'SEND Middle',
  'SEND Last',
  'SEND Last with immediate',
  'SEND Only',
  'SEND Only with immediate',
  'WRITE First',
  'WRITE Middle',
  'WRITE Last',
  'WRITE Last with immediate',
  'WRITE Only',
  'WRITE Only with immediate',
  'READ request',
  'READ response First',
  'READ response Middle',
  'READ response Last',
  'READ response Only',
  'Acknowledge',
  'Atomic acknowledge',
  'Compare and swap',
  'Fetch and add',
];

export const ACKNOWLEDGE = 0x11;
export const NOTIFICATION = 0x81;

export function opcodeName(opcode: number): string {
  if (opcode === NOTIFICATION) return 'CNP';
  if (opcode >= 0xc0) return 'Railnet extension';
  const kinds = ['', 'UC ', 'RD ', 'UD '];
  const kind = kinds[opcode >> 5];
  const name = RELIABLE[opcode & 0x1f];
  return kind === undefined || name === undefined ? `opcode 0x${opcode.toString(16)}` : kind + name;
}

/** Whether it carries data, rather than an answer about data. */
export function isData(opcode: number): boolean {
  return opcode !== ACKNOWLEDGE && opcode !== NOTIFICATION && opcode !== 0x12;
}
