// Runs that fail, in a real browser: what happened until then is there, and why it failed. RAILNET names the railnet command.
import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { pathToFileURL } from 'node:url';
import { close, folder, level, LEVELS, open, railnet, serve, settled, SIZES } from './stage.mjs';

// A storm below three tiers of switches: pauses go up to the core and down again.
const THREE_TIERS = `# A pause storm in a fat-tree
seed = 1
[fabric]
topology = { kind = "fat-tree", k = 4 }
link     = { rate = "100Gbps", delay = "1us" }
switch   = { buffer = "1MB" }
[nic]
control = "none"
[[traffic]]
kind  = "incast"
from  = "0..14"
to    = 15
bytes = "4MB"
[[faults]]
kind = "pause-storm"
host = 15
at   = "20us"
`;

const SCENARIOS = { storm: 'scenarios/pause-storm.toml', deadlock: 'scenarios/deadlock.toml', tiers: join(folder, 'tiers.toml') };
const address = {};
const meta = {};

before(async () => {
  writeFileSync(SCENARIOS.tiers, THREE_TIERS);
  for (const [name, scenario] of Object.entries(SCENARIOS)) {
    address[name] = await serve(scenario);
    meta[name] = await (await fetch(`${address[name]}api/run?run=0`)).json();
  }
});
after(close);

const names = ({ fabric }) => [...fabric.hosts, ...fabric.switches].map(({ name }) => name);

/** The tree as it is on the page: of each link, for how long it was stopped, and the links above it in the tree. */
function tree(page) {
  return page.evaluate(() =>
    [...document.querySelectorAll('.tree li[data-channel]')].map((item) => {
      const above = [];
      for (let each = item.parentElement.closest('li[data-channel]'); each; each = each.parentElement.closest('li[data-channel]')) above.push(Number(each.dataset.channel));
      return { channel: Number(item.dataset.channel), time: Number(item.dataset.time), above, root: item.closest('.tree.first > li').querySelector('b').textContent };
    }),
  );
}

for (const run of ['storm', 'tiers']) {
  test(`the tree of ${run} has every link of the report, for as long as it was held back, below what held it`, async () => {
    const { fabric, report, duration } = meta[run];
    const page = await open(`${address[run]}#congestion?t=0-${duration}`);
    await settled(page);
    const found = await tree(page);
    const all = names(meta[run]);
    const link = (channel) => {
      const { a, b } = fabric.links[channel >> 1];
      return channel & 1 ? [b, a] : [a, b];
    };
    const shown = new Map();
    for (const { channel, time } of found) {
      const name = link(channel).map((vertex) => all[vertex]).join(' → ');
      shown.set(name, (shown.get(name) ?? 0) + time / 1e6);
    }
    const held = report.links.filter(({ paused_us }) => paused_us > 0);
    assert.ok(held.length > 8, `${held.length} links were held back`);
    assert.deepEqual([...shown.keys()].sort(), held.map(({ from, to }) => `${from} → ${to}`).sort());
    for (const { from, to, paused_us } of held) {
      assert.ok(Math.abs(shown.get(`${from} → ${to}`) - paused_us) < 0.001, `${from} → ${to}: ${shown.get(`${from} → ${to}`)} of ${paused_us} us`);
    }
    // Who stops somebody because it was stopped itself is the one that was stopped.
    for (const { channel, above } of found) if (above.length > 0) assert.equal(link(channel)[1], link(above[0])[0]);
    const storm = found.filter(({ root }) => root === 'host15');
    const deepest = Math.max(...storm.map(({ above }) => above.length + 1));
    assert.ok(deepest >= (run === 'tiers' ? 6 : 4), `${deepest} deep`);
    assert.deepEqual(page.troubles, []);
    await page.context().close();
  });
}

for (const [size, viewport] of Object.entries(SIZES)) {
  test(`a failed run says so on every level on a ${size}, with the reason of the report`, async () => {
    for (const run of ['storm', 'deadlock']) {
      const page = await open(address[run], { size: viewport });
      const { error } = meta[run].report;
      for (const name of LEVELS) {
        await level(page, name);
        const line = await page.textContent('.failed');
        assert.ok(line.startsWith('This run failed: '), `${name}: ${line}`);
        assert.ok(line.includes(`${error.waiting.length} flows`), line);
        for (const who of error.hosts ?? error.links.map(({ from }) => from)) assert.ok(line.includes(who), `${who} in ${line}`);
        assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), `${name} is as wide as the screen`);
      }
      await level(page, 'congestion');
      const panel = (await page.locator('.panel', { hasText: 'Why nothing moves any more' }).textContent()).replace(/\s+/g, ' ');
      const first = error.waiting.find(({ target }) => run === 'deadlock' || target !== 15);
      assert.ok(panel.includes(`host${first.source} → host${first.target}QP ${first.queue_pair}PSN ${first.psn}`), panel);
      for (const { from, to } of error.links ?? []) assert.ok(panel.includes(`${from} → ${to}`), `${from} → ${to}`);
      assert.deepEqual(page.troubles, []);
      await page.context().close();
    }
  });
}

test('a run that fails leaves its report, and ends with 1', async () => {
  const file = join(folder, 'storm.html');
  assert.throws(() => railnet('sim', SCENARIOS.storm, '--report', file), { status: 1 });
  const page = await open(pathToFileURL(file).href);
  await level(page, 'congestion');
  assert.ok((await page.textContent('.failed')).includes('host15'));
  assert.ok((await tree(page)).some(({ root, above }) => root === 'host15' && above.length === 3));
  assert.deepEqual(page.troubles, []);
  await page.context().close();
});

test('a failed scenario runs again without its fault, and both are shown', async () => {
  const page = await open(`${address.tiers}#congestion`);
  await settled(page);
  await page.selectOption('select[aria-label="What to change"]', 'faults');
  await page.click('button:has-text("Run again")');
  await page.waitForFunction(() => /beside=\d+/.test(location.hash), null, { timeout: 120_000 });
  const beside = Number(/beside=(\d+)/.exec(await page.evaluate(() => location.hash))[1]);
  const other = await (await fetch(`${address.tiers}api/run?run=${beside}`)).json();
  assert.equal(other.report.error, undefined);
  assert.deepEqual(page.troubles, []);
  await page.context().close();
});
