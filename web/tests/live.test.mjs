// The page of real ranks: what they tell is there, and what nobody can know from them is said.
import assert from 'node:assert/strict';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { close, folder, inked, level, LEVELS, open, railnet, settled, show, SIZES } from './stage.mjs';

const address = {};
const meta = {};

before(async () => {
  for (const [name, words] of [
    ['roce', ['broadcast', '-n', '3', '--nodes', '3', '--conduit', 'roce', '-b', '64K', '-e', '256K']],
    ['memory', ['all_reduce', '-n', '2', '-b', '4K', '-e', '64K']],
  ]) {
    const file = join(folder, `${name}.rail`);
    railnet('perf', ...words, '--iterations', '5', '--record', file);
    address[name] = await show(file);
    meta[name] = await (await fetch(`${address[name]}api/run?run=0`)).json();
  }
});
after(close);

for (const [size, viewport] of Object.entries(SIZES)) {
  for (const run of ['roce', 'memory']) {
    test(`every level of ${run} between processes opens on a ${size} and fits`, async () => {
      const page = await open(address[run], { size: viewport });
      for (const name of LEVELS) {
        await level(page, name);
        const words = await page.textContent('main');
        assert.ok(words.length > 60, `${name} says something`);
        assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), `${name} is as wide as the screen`);
        const known = ['launch', 'step', 'roles'].includes(name) || (run === 'roce' && ['connection', 'packet'].includes(name));
        assert.equal(words.includes('Not known from a live run:'), !known, name);
      }
      assert.deepEqual(page.troubles, []);
      await page.context().close();
    });
  }
}

test('the calls of all ranks are drawn under the names of their hosts', async () => {
  const page = await open(`${address.roce}#step`);
  await settled(page);
  assert.ok((await inked(page, 'main figure canvas')) > 0.02);
  assert.deepEqual(meta.roce.nodes.map(({ name }) => name), ['node0', 'node1', 'node2']);
  assert.equal(meta.roce.tables.operations, 3 * meta.roce.tables.calls);
  await page.context().close();
});

test('a packet of a real NIC is shown from its IP header on', async () => {
  const page = await open(`${address.roce}#packet`);
  await page.waitForFunction(() => document.querySelector('main').textContent.includes('BTH'));
  const words = await page.textContent('main');
  assert.ok(words.includes('IPv4') && words.includes('ICRC') && !words.includes('Ethernet'), words.slice(0, 600));
  await page.context().close();
});
