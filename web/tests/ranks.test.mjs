// What ranks did, at every zoom; runs beside each other; search. In a real browser, on real runs: npm test.
import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { pathToFileURL } from 'node:url';
import { close, folder, level, open, railnet, serve, settled, show } from './stage.mjs';

const address = {};
const meta = {};
const file = (name) => join(folder, name);

before(async () => {
  for (const [name, scenario, ...options] of [
    ['large', 'scenarios/llama-405b.toml', '--beside', 'none'],
    ['slow', 'scenarios/job-slow-gpu.toml', '--beside', 'none'],
    ['steps', 'scenarios/llama-70b.toml', '--beside', 'none'],
    ['calls', 'scenarios/allreduce-2-nodes.toml'],
  ]) {
    address[name] = await serve(scenario, ...options);
    meta[name] = await (await fetch(`${address[name]}api/run?run=0`)).json();
  }
});
after(close);

async function text(page) {
  return (await page.textContent('main')).replace(/\s+/g, ' ');
}

/** A table that the server hands out, as columns of numbers. */
async function table(url) {
  const bytes = Buffer.from(await (await fetch(url)).arrayBuffer());
  const length = bytes.readUInt32LE(0);
  const { rows, columns } = JSON.parse(bytes.toString('utf8', 4, 4 + length));
  const widths = { u8: 1, u16: 2, u32: 4, u64: 8 };
  const found = { rows };
  let at = (4 + length + 7) & ~7;
  for (const { name, type } of columns) {
    found[name] = Array.from({ length: rows }, (_, row) => (type === 'u64' ? Number(bytes.readBigUInt64LE(at + 8 * row)) : bytes.readUIntLE(at + widths[type] * row, widths[type])));
    at = (at + widths[type] * rows + 7) & ~7;
  }
  return found;
}

/** Pixels of a colour on the first chart. */
function pixels(page, [red, green, blue]) {
  return page.evaluate(
    ([red, green, blue]) => {
      const canvas = document.querySelector('main figure canvas');
      const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
      let count = 0;
      for (let at = 0; at < data.length; at += 4) if (data[at] === red && data[at + 1] === green && data[at + 2] === blue) count++;
      return count;
    },
    [red, green, blue],
  );
}
const VERMILION = [0xd5, 0x5e, 0x00];

/** All that the first chart offers to point at. */
async function tips(page) {
  await page.locator('main figure canvas').first().focus();
  const found = [];
  for (;;) {
    await page.keyboard.press('.');
    const words = await page.textContent('#tip');
    if (words === found[0] && found.length > 1) return found;
    found.push(words);
    if (found.length > 400) return found;
  }
}

test('bins have all the exposed time of all operations, whatever the window', async () => {
  const { duration } = meta.large;
  const rank = meta.large.alike[0][0];
  const rows = await table(`${address.large}api/rows?table=operations&rank=${rank}`);
  assert.ok(rows.rows > 5_000, `${rows.rows}`);
  const merge = (spans) => {
    const out = [];
    for (const [from, to] of spans.sort((a, b) => a[0] - b[0])) {
      const end = out.at(-1);
      if (end && from <= end[1]) end[1] = Math.max(end[1], to);
      else out.push([from, to]);
    }
    return out;
  };
  const inWindow = (from, to) => {
    const cut = (spans) => merge(spans.map(([a, b]) => [Math.max(a, from), Math.min(b, to)]).filter(([a, b]) => b > a));
    const length = (spans) => spans.reduce((sum, [a, b]) => sum + b - a, 0);
    const all = Array.from({ length: rows.rows }, (_, row) => row);
    const computed = cut(all.filter((row) => rows.kind[row] !== 5).map((row) => [rows.begun[row], rows.ended[row]]));
    const both = cut([...computed, ...all.filter((row) => rows.kind[row] === 5).map((row) => [rows.entered[row], rows.ended[row]])]);
    return length(both) - length(computed);
  };
  for (const [from, to] of [[0, duration], [Math.round(duration * 0.1), Math.round(duration * 0.12)]]) {
    const shares = await table(`${address.large}api/shares?from=${from}&to=${to}&bins=500&ranks=${rank}`);
    const exposed = shares.exposed.reduce((sum, value) => sum + value, 0) / 65535 / 500;
    const wanted = inWindow(from, to) / (to - from);
    assert.ok(wanted > 0.01 && Math.abs(exposed - wanted) < 0.001, `${exposed} of the bins, ${wanted} of the operations`);
  }
});

test('a chart of too many operations draws what is exposed and says what it leaves out, served and as a report', async () => {
  const report = file('large.html');
  railnet('view', file('scenarios-llama-405b-toml.rail'), '--report', report);
  assert.throws(() => railnet('view', file('scenarios-llama-405b-toml.rail'), '--report', report), /is there already: --force replaces it/);
  railnet('view', file('scenarios-llama-405b-toml.rail'), '--report', report, '--force');
  for (const [how, where] of [['served', address.large], ['report', pathToFileURL(report).href]]) {
    const page = await open(where);
    await page.waitForFunction(() => /a column is the share of its time/.test(document.querySelector('main').textContent));
    const all = meta.large.tables.operations.toString().replace(/\B(?=(\d{3})+(?!\d))/g, ',');
    assert.ok((await text(page)).includes(how === 'served' ? `${all} operations are here, too many` : `has the longest of the run’s ${all} operations`), how);
    await settled(page);
    // Where nothing else is said, a run without packets opens on what its ranks did.
    assert.ok((await page.textContent('h1')).includes('The step'));
    const red = await pixels(page, VERMILION);
    assert.ok(red > 1_000, `${red} red pixels, ${how}`);
    assert.ok(/rank 0 · node01/.test((await tips(page)).join(' ')), 'ranks have their servers');
    assert.deepEqual(page.troubles, []);
    await page.context().close();
  }
});

test('the map of a large fabric says how many bundles a line stands for', async () => {
  const page = await open(`${address.large}#cluster`);
  await settled(page);
  const [, all, drawn] = /([\d,]+) bundles are drawn as ([\d,]+)/.exec(await text(page)).map((word) => Number(word.replaceAll(',', '')));
  assert.ok(all > 600 && drawn < all, `${all} as ${drawn}`);
  const tip = (await tips(page)).find((words) => /bundles, the busiest/.test(words));
  assert.ok(tip, 'what a line stands for');
  await page.context().close();
});

test('headline and mark name the same straggler, with what all ranks waited', async () => {
  const [job] = meta.slow.report.jobs;
  assert.ok(Math.abs(job.slowest.others_waited_us / (job.average_us.waiting * job.ranks) - 1) < 0.02, 'the wait is that of all ranks together');
  const page = await open(`${address.slow}#step`);
  await page.waitForFunction(() => /straggler/.test(document.querySelector('main').textContent));
  await settled(page);
  const said = `${(job.slowest.others_waited_us / 1e6).toFixed(0)} s`;
  assert.ok((await text(page)).includes(`others wait ${said} for it`), await text(page));
  const marks = (await tips(page)).filter((tip) => tip.startsWith('Others waited'));
  assert.deepEqual(marks, [`Others waited ${said} for rank ${job.slowest.rank} in this window, all together`]);
  await page.selectOption('select[aria-label="Order of the ranks"]', 'late');
  await settled(page);
  assert.ok((await tips(page))[0].includes(`rank ${job.slowest.rank}`), 'sorted by who is waited for');
  await page.selectOption('select[aria-label="Order of the ranks"]', 'waiting');
  await settled(page);
  assert.ok(!(await tips(page))[0].includes(`rank ${job.slowest.rank} `), 'the slow one waits least');
  await page.context().close();
});

test('a run of two steps opens on the one that was recorded', async () => {
  const page = await open(address.steps);
  await settled(page);
  const { steps, duration } = meta.steps;
  assert.equal(steps.length, 2);
  await page.keyboard.press('d');
  await page.keyboard.press('a');
  await page.waitForFunction(() => /t=\d+-\d+/.test(location.hash));
  const [from, to] = await page.evaluate(() => /t=(\d+)-(\d+)/.exec(location.hash).slice(1).map(Number));
  assert.deepEqual([from, to], [0, steps[0].ended]);
  assert.ok(to < duration && (await text(page)).includes('step 1 of 2 was recorded'));
  await page.context().close();
});

test('a collective opens in its middle, on one that was recorded', async () => {
  const page = await open(`${address.calls}#collective`);
  await page.waitForFunction(() => /[1-9]\d* of [\d,]+ slices arrived/.test(document.querySelector('main').textContent));
  const words = (await text(page)).replaceAll(',', '');
  const [, arrived, all] = /(\d+) of (\d+) slices arrived/.exec(words).map(Number);
  assert.ok(arrived > 0 && arrived < all, words.slice(-400));
  await level(page, 'collective', '?comm=0&seq=4711');
  await page.waitForFunction(() => /No slice of this collective was recorded/.test(document.querySelector('main').textContent));
  assert.equal(await page.locator('main figure:visible').count(), 0, 'no empty panels');
  await page.click('main button:has-text("One that was recorded")');
  await page.waitForFunction(() => document.querySelectorAll('main figure').length > 0 && /slices arrived/.test(document.querySelector('main').textContent));
  assert.equal(await page.locator('main figure:visible').count(), 2);
  await page.context().close();
});

test('percentiles of a sample say so, and are the same in a report', async () => {
  const rail = file('sampled.rail');
  railnet('sim', 'scenarios/incast.toml', '--record', rail, '--record-packets', '3000', '--beside', 'none');
  const report = file('sampled.html');
  railnet('view', rail, '--report', report);
  const said = [];
  for (const where of [await show(rail), pathToFileURL(report).href]) {
    const page = await open(`${where}#problem`);
    await page.waitForFunction(() => /99 of 100 are faster/.test(document.querySelector('main').textContent));
    said.push(/One packet, NIC to NIC, in this run.*?packet-hop/.exec(await text(page))[0]);
    await page.context().close();
  }
  assert.equal(said[0], said[1]);
  assert.ok(/of a sample: [\d,]+ with data/.test(said[0]), said[0]);
});

test('--beside has both runs on every level, with their names, served and as a report', async () => {
  const rail = file('beside.rail');
  railnet('sim', 'scenarios/incast.toml', '--record', rail, '--beside', 'nic.control=swift');
  const report = file('beside.html');
  railnet('view', rail, '--report', report);
  const other = JSON.parse(readFileSync(report, 'utf8').split('id="railnet-run-1">')[1].split('</script>')[0]);
  assert.equal(other.control, 'swift');
  for (const where of [await show(rail), pathToFileURL(report).href]) {
    const page = await open(`${where}#cluster`);
    await page.waitForFunction(() => document.querySelectorAll('main h2.run').length === 2);
    for (const name of ['cluster', 'step', 'connection', 'congestion', 'roles']) {
      await level(page, name);
      await page.waitForFunction(() => document.querySelectorAll('main h2.run').length === 2);
      assert.deepEqual(await page.locator('main h2.run').allTextContents(), ['nic.control = dcqcn', 'nic.control = swift'], name);
    }
    await level(page, 'congestion');
    const marks = other.report.marks.toString().replace(/\B(?=(\d{3})+(?!\d))/g, ',');
    const right = (await page.locator('main .columns > div').nth(1).textContent()).replace(/\s+/g, ' ');
    assert.ok(right.includes(`${marks}ECN marks`) && right.includes('all doneswift'), right.slice(0, 300));
    await page.keyboard.press('b');
    await page.waitForFunction(() => /run=1/.test(location.hash));
    await level(page, 'packet', '?run=1');
    await page.waitForSelector('.layer');
    assert.ok((await page.textContent('.about')).includes('nic.control = swift'));
    assert.deepEqual(page.troubles, []);
    await page.context().close();
  }
});

test('search finds ranks, hosts, queue pairs and packets', async () => {
  const page = await open(`${address.calls}#cluster`);
  await settled(page);
  const packets = await table(`${address.calls}api/rows?table=packets&most=10`);
  const host = meta.calls.fabric.hosts[packets.host[0]].name;
  const ask = async (words) => {
    await page.keyboard.press('/');
    await page.keyboard.type(words);
    await page.keyboard.press('Enter');
  };
  await ask('rank 5');
  await page.waitForFunction(() => /^#step.*rank=5/.test(location.hash));
  await ask(host);
  await page.waitForFunction((id) => location.hash.startsWith('#connection') && location.hash.includes(`host=${id}`) || id === 0, packets.host[0]);
  await ask(`${host} qp ${packets.queue_pair[0]}`);
  await page.waitForFunction((pair) => /^#connection/.test(location.hash) && location.hash.includes(`qp=${pair}`), packets.queue_pair[0]);
  await ask(`${host} qp ${packets.queue_pair[0]} psn ${packets.psn[0]}`);
  await page.waitForFunction(() => /^#packet.*packet=\d+/.test(location.hash));
  await page.waitForSelector('.layer');
  assert.ok((await text(page)).includes(`PSN ${packets.psn[0]}`));
  await page.keyboard.press('/');
  await page.keyboard.type('nobody of this name');
  await page.waitForFunction(() => /Nothing here is called/.test(document.querySelector('.results').textContent));
  assert.deepEqual(page.troubles, []);
  await page.context().close();
});

test('sequence numbers have room for all of their figures', async () => {
  const scenario = file('psn.toml');
  const plain = readFileSync(new URL('../../scenarios/life-of-a-job.toml', import.meta.url), 'utf8');
  writeFileSync(scenario, plain.replace('768MiB', '4MiB').replace('24MiB', '128KiB').replace('[5000, 0]', '[16776000, 0]'));
  const page = await open(`${await serve(scenario)}#connection?host=7&qp=42`);
  await page.waitForFunction(() => /QP 42/.test(document.querySelector('#crumbs').textContent));
  await settled(page);
  const chart = page.locator('main figure', { hasText: 'Sequence numbers over time' }).locator('canvas');
  const inked = await chart.evaluate((canvas) => {
    const { data } = canvas.getContext('2d').getImageData(0, 0, 2, canvas.height);
    return data.some((value, at) => at % 4 === 3 && value > 0);
  });
  assert.equal(inked, false, 'nothing is cut off at the left edge');
  await page.context().close();
});

test('the built-in job has addresses and keys on any connection, and congestion to look at', async () => {
  const path = /Report\s+(\S+\.html)/.exec(railnet())[1];
  const page = await open(`${pathToFileURL(path)}#congestion`);
  await page.waitForFunction(() => /Nothing was marked, paused or dropped here/.test(document.querySelector('main').textContent));
  await settled(page);
  const marks = JSON.parse(readFileSync(path, 'utf8').split('id="railnet-run-2">')[1].split('</script>')[0]).report.marks;
  assert.ok(marks > 0 && (await text(page)).includes(`${marks.toString().replace(/\B(?=(\d{3})+(?!\d))/g, ',')}ECN marks`));
  for (const where of ['?host=0&qp=19', '?host=3&qp=19']) {
    await level(page, 'connection', where);
    await page.waitForFunction(() => /What each side knows/.test(document.querySelector('main').textContent));
    const words = await text(page);
    assert.ok(/the other’s IP10\.0\.0\.\d+10\.0\.0\.\d+first PSN it sends \/ expects00address it writes to first \/ offers0x[\da-f]+0x[\da-f]+rkey it uses \/ gave away0x[\da-f]+/.test(words), words.slice(-900));
  }
  assert.deepEqual(page.troubles, []);
  await page.context().close();
});
