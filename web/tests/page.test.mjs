// The page in a real browser, on real runs: npm test. RAILNET names the railnet command.
import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { pathToFileURL } from 'node:url';
import { close, folder, inked, level, LEVELS, open, railnet, serve, settled, SIZES } from './stage.mjs';

const address = {};
const meta = {};

before(async () => {
  for (const [name, scenario] of [
    ['incast', 'scenarios/incast.toml'],
    ['collectives', 'scenarios/allreduce-2-nodes.toml'],
    ['job', 'scenarios/llama-70b.toml'],
    ['large', 'scenarios/llama-405b.toml'],
  ]) {
    address[name] = await serve(scenario);
    meta[name] = await (await fetch(`${address[name]}api/run?run=0`)).json();
  }
});
after(close);

// The same words as the page writes; what is compared is the number from the report.
const thousands = (value) => Math.round(value).toString().replace(/\B(?=(\d{3})+(?!\d))/g, ',');

async function text(page) {
  return (await page.textContent('main')).replace(/\s+/g, ' ');
}

for (const [size, viewport] of Object.entries(SIZES)) {
  for (const run of ['incast', 'collectives', 'job', 'large']) {
    test(`every level of ${run} opens on a ${size}, draws, plays and fits`, async () => {
      const page = await open(address[run], { size: viewport });
      for (const name of LEVELS) {
        await level(page, name);
        const words = await text(page);
        assert.ok(words.length > 60, `${name} says something`);
        assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), `${name} is as wide as the screen`);
        const inner = await page.evaluate(() => [...document.querySelectorAll('main *')].filter((each) => each.scrollHeight > each.clientHeight + 1 && /auto|scroll/.test(getComputedStyle(each).overflowY)).length);
        assert.equal(inner, 0, `${name} has no panel that scrolls`);
        await page.keyboard.press('Space');
        await page.waitForTimeout(120);
        await page.keyboard.press('Space');
      }
      assert.deepEqual(page.troubles, []);
      await page.context().close();
    });
  }
}

test('congestion shows the numbers of the report', async () => {
  const page = await open(`${address.incast}#congestion`);
  await settled(page);
  const words = await text(page);
  const { report } = meta.incast;
  assert.ok(words.includes(`${thousands(report.marks)}ECN marks`), words.slice(0, 400));
  assert.ok(words.includes(`${thousands(report.notifications)} CNPs`));
  assert.ok(words.includes(`${thousands(report.pauses)}pauses`));
  assert.ok(words.includes(`${(report.max_queue_bytes / 1e6).toFixed(1)} MBlongest queue`));
  const stopped = report.links.reduce((most, link) => (link.paused_us > most.paused_us ? link : most));
  assert.ok(words.includes(`${stopped.to}stopped ${stopped.from}`), 'who stopped whom');
  await page.context().close();
});

test('the busiest link of the cluster is that of the report', async () => {
  const page = await open(`${address.incast}#cluster`);
  await page.waitForSelector('main table');
  const { links } = meta.incast.report;
  const busiest = links.reduce((most, link) => (link.utilisation > most.utilisation ? link : most));
  const first = (await page.textContent('main table tr')).trim();
  assert.equal(first, `${busiest.from} → ${busiest.to}${Math.round(busiest.utilisation * 100)} %`);
  assert.ok((await inked(page, 'main figure canvas')) > 0.02, 'the map is drawn');
  await page.context().close();
});

test('the calculator answers as railnet plan does, and says what is wrong', async () => {
  const page = await open(`${address.incast}#problem`);
  const calculator = page.locator('main section', { hasText: 'What would it take?' });
  const shows = (words) => page.waitForFunction((words) => document.querySelector('main').textContent.includes(words), words);
  const ask = (...options) => JSON.parse(railnet('plan', '--params=70B', '--cluster=dgx-h100', '--compute=200ms', ...options, '--json'));
  const step = (plan) => (plan.step_us >= 1e6 ? `${(plan.step_us / 1e6).toFixed(2)} sa step` : `${Math.round(plan.step_us / 1e3)} msa step`);
  await shows(step(ask('--gpus=64')));
  await calculator.getByLabel('GPUs').fill('128');
  await shows(step(ask('--gpus=128')));
  await calculator.getByLabel('GPUs').fill('none');
  await shows('invalid value');
  assert.ok((await calculator.textContent()).includes(step(ask('--gpus=128'))), 'the last answer stays');
  // The answer to a wrong question is an error of the server's, which the browser notes.
  assert.ok(page.troubles.every((trouble) => trouble.includes('400')), page.troubles.join());
  await page.context().close();
});

test('steps, roles and collectives show the numbers of the report', async () => {
  const page = await open(`${address.job}#step`);
  await settled(page);
  const [job] = meta.job.report.jobs;
  assert.ok((await text(page)).includes(`${(job.step_us / 1e6).toFixed(1)} sa step`));
  assert.ok((await text(page)).includes(`${Math.round(job.busy * 100)} %GPUs busy`));
  await level(page, 'roles');
  assert.ok((await text(page)).includes(`${thousands(job.queue_pairs)} queue pairs`));
  await page.context().close();
  const other = await open(`${address.collectives}#step`);
  await settled(other);
  for (const call of meta.collectives.report.collectives) {
    assert.ok((await text(other)).includes(`${Math.round(call.time_us)} µs${call.kind}`), `${call.algorithm} took ${call.time_us} µs`);
  }
  await level(other, 'roles');
  assert.ok((await text(other)).includes(`${thousands(meta.collectives.report.packet_hops)} packet-hops`));
  await other.context().close();
});

for (const [sequence, shape] of [[0, 'ring'], [1, 'NVLS']]) {
  test(`slices of a collective arrive step by step, and in the end every piece is a whole sum: ${shape}`, async () => {
    const page = await open(`${address.collectives}#collective?comm=0&seq=${sequence}`);
    await page.waitForFunction(() => /of \d+ slices arrived/.test(document.querySelector('main').textContent.replaceAll(',', '')));
    assert.ok((await text(page)).includes(shape), await text(page));
    const now = async () => {
      await settled(page);
      const words = (await text(page)).replaceAll(',', '');
      const [, arrived, all] = /(\d+) of (\d+) slices arrived/.exec(words).map(Number);
      const [, whole, pieces] = /(\d+) of (\d+) pieces are whole/.exec(words).map(Number);
      return { arrived, all, whole, pieces };
    };
    const canvas = page.locator('#timebar canvas');
    const { width } = await canvas.boundingBox();
    await page.keyboard.press('0');
    await canvas.click({ position: { x: 1, y: 50 } });
    const start = await now();
    if (sequence === 0) {
      assert.deepEqual([start.arrived, start.whole], [0, 0]);
      await page.keyboard.press('ArrowRight');
      const one = await now();
      assert.ok(one.arrived > 0, 'a step goes to the first arrival');
      await page.keyboard.press('ArrowRight');
      assert.ok((await now()).arrived > one.arrived);
      await page.keyboard.press('ArrowLeft');
      assert.equal((await now()).arrived, one.arrived, 'and back');
    }
    await canvas.click({ position: { x: width - 1, y: 50 } });
    const end = await now();
    assert.equal(end.arrived, end.all);
    assert.equal(end.whole, end.pieces);
    await page.context().close();
  });
}

test('clicks lead down from the cluster to a packet, and Esc leads up again', async () => {
  const page = await open(`${address.collectives}#cluster`);
  await settled(page);
  // Rows come after the first drawing: what a key chooses before that may lead nowhere.
  const down = async (to) => {
    const deadline = Date.now() + 30_000;
    while (!(await page.evaluate((hash) => new RegExp(hash).test(location.hash), to))) {
      assert.ok(Date.now() < deadline, `${to} was not reached from ${await page.evaluate(() => location.hash)}`);
      await page.locator('main figure canvas').first().focus();
      await page.keyboard.press(',');
      await page.keyboard.press('Enter');
      await settled(page);
    }
  };
  await down('^#step');
  await settled(page);
  await down('^#collective');
  await level(page, 'connection');
  await page.waitForFunction(() => /QP \d+/.test(document.querySelector('#crumbs').textContent));
  await settled(page);
  await down('^#packet.*packet=\\d+');
  await page.waitForSelector('.layer');
  for (const above of ['connection', 'collective', 'step', 'cluster']) {
    // One press is enough, also where a term explains itself.
    await page.locator('.term').first().hover();
    await page.waitForSelector('#tip:not([hidden])');
    await page.keyboard.press('Escape');
    await page.waitForFunction((hash) => location.hash.startsWith(hash), `#${above}`);
  }
  assert.deepEqual(page.troubles, []);
  await page.context().close();
});

test('the problem shows the same flow over TCP and RDMA, each with its own time', async () => {
  const where = await serve('scenarios/rdma-or-tcp.toml', '--beside', 'cluster.transport=tcp');
  const run = await (await fetch(`${where}api/run?run=0`)).json();
  const page = await open(`${where}#problem`);
  await settled(page);
  const [rdma, tcp] = [run.report.completion_us, run.other.report.completion_us];
  assert.ok(tcp > rdma, `${tcp} and ${rdma}`);
  assert.ok((await text(page)).includes(`${(tcp / rdma).toFixed(2)} ×as long, TCP`), await text(page));
  assert.deepEqual(page.troubles, []);
  await page.context().close();
});

test('a packet has the bytes that its headers say', async () => {
  const page = await open(`${address.incast}#packet`);
  await page.waitForSelector('.layer');
  await page.waitForFunction(() => /packet=\d+/.test(location.hash));
  const row = Number(/packet=(\d+)/.exec(await page.evaluate(() => location.hash))[1]);
  const story = await (await fetch(`${address.incast}api/packet?run=0&packet=${row}`)).json();
  const shown = await page.evaluate(() => [...document.querySelectorAll('.hex span')].map((byte) => byte.textContent).join(''));
  assert.equal(shown, story.bytes);
  const fields = story.layers.flatMap((layer) => layer.fields);
  const psn = fields.find((field) => /psn/i.test(field.name));
  const bytes = story.bytes.slice(2 * psn.from, 2 * psn.to);
  assert.ok((await text(page)).includes(psn.value));
  assert.equal(parseInt(bytes, 16) & 0xffffff, Number(psn.value.replace(/\D/g, '')), 'the bytes are those of the sequence number');
  await page.locator('.field').first().hover();
  assert.ok((await page.locator('.hex span.lit').count()) > 0, 'a field lights its bytes');
  for (const hop of story.hops) assert.ok((await text(page)).includes(hop.name));
  assert.deepEqual(page.troubles, []);
  await page.context().close();
});

test('a completion goes from the post to the next step of the ring, in order of time', async () => {
  const page = await open(`${address.collectives}#completion?at=40000000`);
  await page.waitForFunction(() => /Next step/.test(document.querySelector('main').textContent));
  const names = await page.locator('.steps li b').allTextContents();
  assert.deepEqual([...names].sort(), ['All there', 'Answer', 'Checks', 'Completion', 'First packet', 'Into memory', 'Last packet', 'Next step', 'Poll', 'Posted']);
  const place = (name) => names.indexOf(name);
  assert.ok(place('Checks') < place('Into memory') && place('Into memory') < place('All there'), `the key is checked before any byte is written: ${names}`);
  assert.ok(/rkey.*before any byte is written/.test((await text(page)).split('Checks')[1].split('Into memory')[0]));
  const factor = { s: 1e12, ms: 1e9, µs: 1e6, ns: 1e3, ps: 1 };
  const times = (await page.locator('.steps .when').allTextContents()).map((word) => parseFloat(word.slice(1)) * factor[word.split(' ')[1]]);
  assert.deepEqual(times, [...times].sort((a, b) => a - b));
  await page.context().close();
});

/** A column of a table that the server hands out, as numbers. */
async function cells(url, ...names) {
  const bytes = Buffer.from(await (await fetch(url)).arrayBuffer());
  const length = bytes.readUInt32LE(0);
  const { rows, columns } = JSON.parse(bytes.toString('utf8', 4, 4 + length));
  const widths = { u8: 1, u16: 2, u32: 4, u64: 8 };
  const found = {};
  let at = (4 + length + 7) & ~7;
  for (const { name, type } of columns) {
    found[name] = Array.from({ length: rows }, (_, row) => (type === 'u64' ? Number(bytes.readBigUInt64LE(at + 8 * row)) : bytes.readUIntLE(at + widths[type] * row, widths[type])));
    at = (at + widths[type] * rows + 7) & ~7;
  }
  return names.map((name) => found[name]);
}

test('the connection tells what its acknowledgements say, and what both sides know', async () => {
  const scenario = join(folder, 'credits.toml');
  const traffic = '[[traffic]]\nkind = "incast"\nfrom = "0..2"\nto = 3\nbytes = "100KB"\n'.repeat(5);
  writeFileSync(scenario, `# Five messages from each of three\n[fabric]\ntopology = { kind = "single-switch", hosts = 4 }\n[nic]\ncredits = true\n${traffic}`);
  for (const [where, sender] of [[await serve(scenario), 1], [address.incast, 0]]) {
    const [targets, tos, pairs, hosts] = await cells(`${where}api/rows?table=connections`, 'target', 'to', 'queue_pair', 'host');
    const own = hosts.indexOf(sender);
    const [syndromes, done, opcodes] = await cells(`${where}api/rows?table=packets&host=${tos[own]}&queue_pair=${targets[own]}`, 'syndrome', 'messages', 'opcode');
    const acks = opcodes.flatMap((opcode, row) => (opcode === 0x11 ? [row] : []));
    const page = await open(`${where}#connection?host=${sender}&qp=${pairs[own]}`);
    await page.waitForFunction(() => document.querySelector('main').textContent.includes('rkey 0x'));
    await settled(page);
    const words = await text(page);
    const uses = acks.some((row) => syndromes[row] < 31);
    const messages = Math.max(...acks.map((row) => done[row]));
    assert.ok(words.includes(`${thousands(acks.length)} × ACK${uses ? ' with credits' : ', credits not in use'}`), words);
    assert.ok(words.includes(messages === 1 ? '1 message is done' : `${messages} messages are done`), words);
    assert.equal(uses, sender === 1);
    assert.deepEqual(page.troubles, []);
    await page.context().close();
  }
});

test('keys zoom, move, play and list themselves; the address holds the view', async () => {
  const page = await open(`${address.incast}#cluster`);
  await settled(page);
  const span = () => page.evaluate(() => (/t=(\d+)-(\d+)/.exec(location.hash) ?? [0, 0, 0]).slice(1).map(Number));
  await page.keyboard.press('+');
  await page.waitForFunction(() => /t=\d+-\d+/.test(location.hash));
  const [from, to] = await span();
  assert.ok(Math.abs(to - from - meta.incast.duration / 2) < 2, 'half of the run');
  const clock = () => page.textContent('.clock');
  const then = await clock();
  await page.keyboard.press('Space');
  await page.waitForFunction((before) => document.querySelector('.clock').textContent !== before, then);
  await page.keyboard.press('Space');
  for (const [key, change] of [['w', 0.5], ['s', 2], ['a', 1], ['d', 1]]) {
    const before = await span();
    await page.keyboard.press(key);
    await page.waitForFunction(([from, to]) => location.hash.includes('t=') && !location.hash.includes(`t=${from}-${to}`), before);
    const after = await span();
    assert.ok(Math.abs((after[1] - after[0]) / (before[1] - before[0]) - change) < 0.01, `${key}: ${before} became ${after}`);
    if (change === 1) assert.equal(Math.sign(after[0] - before[0]), key === 'a' ? -1 : 1, key);
  }
  await page.keyboard.press('?');
  assert.ok(await page.locator('dialog').isVisible());
  for (const key of ['W S', 'A D', '/', 'F', 'B', 'L', 'T']) assert.ok((await page.textContent('dialog')).includes(key), `${key} is in the list`);
  await page.keyboard.press('Escape');
  await page.waitForTimeout(400);
  const hash = await page.evaluate(() => location.hash);
  const moment = await clock();
  await page.reload();
  await page.waitForSelector('#timebar');
  await settled(page);
  assert.equal(await page.evaluate(() => location.hash), hash);
  assert.equal(await clock(), moment);
  await page.context().close();
});

test('dragging on a chart chooses the window that everything then shows', async () => {
  const page = await open(`${address.incast}#congestion`);
  await settled(page);
  const box = await page.locator('main figure canvas').first().boundingBox();
  await page.mouse.move(box.x + box.width * 0.3, box.y + 60);
  await page.mouse.down();
  await page.mouse.move(box.x + box.width * 0.5, box.y + 60, { steps: 4 });
  await page.mouse.up();
  await page.waitForFunction(() => /t=\d+-\d+/.test(location.hash));
  const [from, to] = await page.evaluate(() => /t=(\d+)-(\d+)/.exec(location.hash).slice(1).map(Number));
  const share = (to - from) / meta.incast.duration;
  assert.ok(share > 0.15 && share < 0.27, `a fifth of the run, not ${share}`);
  await page.context().close();
});

test('terms explain themselves on hover and on focus', async () => {
  const page = await open(`${address.incast}#congestion`);
  const term = page.locator('.term').first();
  await term.hover();
  await page.waitForSelector('#tip:not([hidden])');
  const words = await page.textContent('#tip');
  await page.mouse.move(2, 2);
  await page.waitForSelector('#tip', { state: 'hidden' });
  await term.focus();
  await page.waitForSelector('#tip:not([hidden])');
  assert.equal(await page.textContent('#tip'), words);
  await page.context().close();
});

test('the tour goes through all levels', async () => {
  const page = await open(address.collectives);
  // Wherever one is, it begins at the beginning.
  await page.keyboard.press('6');
  await page.keyboard.press('t');
  for (const [index, name] of LEVELS.entries()) {
    await page.waitForFunction((id) => location.hash.startsWith(`#${id}`), name);
    await page.waitForFunction((place) => document.querySelector('#tour').textContent.includes(place), `${index + 1} of 10`);
    if (index < 9) await page.click('#tour button:has-text("Next")');
  }
  await page.click('#tour button:has-text("Done")');
  await page.waitForSelector('#tour', { state: 'hidden' });
  assert.deepEqual(page.troubles, []);
  await page.context().close();
});

test('the scenario runs again with another control, and both runs are shown', async () => {
  const page = await open(`${address.incast}#congestion`);
  await settled(page);
  await page.selectOption('select[aria-label="To what"]', 'hpcc');
  await page.click('button:has-text("Run again")');
  await page.waitForFunction(() => /beside=\d+/.test(location.hash), null, { timeout: 120_000 });
  const beside = Number(/beside=(\d+)/.exec(await page.evaluate(() => location.hash))[1]);
  const other = await (await fetch(`${address.incast}api/run?run=${beside}`)).json();
  await settled(page);
  assert.notEqual(other.digest, meta.incast.digest);
  const words = await text(page);
  assert.ok(words.includes('nic.control = dcqcn, on the left') && words.includes('nic.control = hpcc, on the right'), words.slice(0, 900));
  assert.deepEqual(await page.locator('main .columns h2.run').allTextContents(), ['nic.control = dcqcn', 'nic.control = hpcc']);
  assert.ok(/all donehpcc/.test(words), 'the numbers of the right column are under the name of what was run');
  assert.ok((await text(page)).includes(`${thousands(other.report.marks)}ECN marks`));
  assert.deepEqual(page.troubles, []);
  await page.context().close();
});

test('the page is dark where the system is, and the other way on request', async () => {
  const page = await open(address.incast, { colorScheme: 'dark' });
  const paper = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  const dark = await paper();
  assert.ok(!/dark line/.test(await text(page)), 'more load is brighter on dark paper');
  await page.keyboard.press('l');
  const light = await paper();
  const brightness = (colour) => colour.match(/\d+/g).slice(0, 3).reduce((sum, each) => sum + Number(each), 0);
  assert.ok(brightness(dark) < 150 && brightness(light) > 600, `${dark} and ${light}`);
  await page.context().close();
});

test('a report opens from disk, asks nobody, and shows the same numbers', async () => {
  const file = join(folder, 'incast.html');
  railnet('sim', 'scenarios/incast.toml', '--report', file);
  const page = await open(pathToFileURL(file).href);
  for (const name of LEVELS) {
    await level(page, name);
    assert.ok((await text(page)).length > 60, name);
  }
  await level(page, 'congestion');
  assert.ok((await text(page)).includes(`${thousands(meta.incast.report.marks)}ECN marks`));
  assert.ok((await text(page)).includes('A report cannot run anything'));
  await level(page, 'packet');
  await page.waitForSelector('.layer');
  assert.deepEqual(page.troubles, []);
  await page.context().close();
});

test('the report of the built-in job has both transports, and packets of its whole length', async () => {
  const path = /Report\s+(\S+\.html)/.exec(railnet())[1];
  const html = readFileSync(path, 'utf8');
  const found = JSON.parse(html.split('id="railnet-run">')[1].split('</script>')[0]);
  const [rdma, tcp] = [found.report, found.other.report].map(({ jobs }) => jobs[0].step_us);
  const page = await open(`${pathToFileURL(path)}#problem`);
  await settled(page);
  const words = await text(page);
  assert.ok(words.includes(`${(tcp / rdma).toFixed(2)} ×as long, TCP`), words.slice(0, 900));
  assert.ok(!words.includes('not run'), 'both sides have their times');
  assert.ok(found.kept.packets < found.kept.packets_sent);
  await level(page, 'connection', '?host=0&qp=22');
  assert.ok((await text(page)).includes(`${thousands(found.kept.packets)} of the run’s ${thousands(found.kept.packets_sent)} packets were kept`));
  assert.deepEqual(page.troubles, []);
  await page.context().close();
});

/** Sequence numbers of packets with data in what a chart offers to click on, in order of time. */
async function psnsOf(page) {
  const chart = page.locator('main figure', { hasText: 'Sequence numbers over time' }).locator('canvas');
  await chart.focus();
  const found = new Set();
  for (let before = -1; found.size !== before; ) {
    before = found.size;
    await page.keyboard.press('.');
    const [, psn] = /PSN (\d+)/.exec(await page.textContent('#tip')) ?? [];
    if (psn !== undefined) found.add(Number(psn));
  }
  return [...found].sort((a, b) => a - b);
}

test('the first connection of the built-in job is whole: a message has all of its packets, and its answer', async () => {
  const path = /Report\s+(\S+\.html)/.exec(railnet())[1];
  const html = readFileSync(path, 'utf8');
  const { followed } = JSON.parse(html.split('id="railnet-run">')[1].split('</script>')[0]).kept;
  const page = await open(`${pathToFileURL(path)}#connection`);
  await settled(page);
  await page.waitForFunction((end) => location.hash.includes(end), `qp=${followed.queue_pair}`);
  assert.ok((await text(page)).includes(`All packets of this connection are here, both ways, from the first to the last: ${thousands(followed.packets)}`));
  await page.click('main button:has-text("message ›")');
  await page.waitForFunction(() => /t=\d+-\d+/.test(location.hash));
  await settled(page);
  const psns = await psnsOf(page);
  assert.ok(psns.length >= 16, psns.join());
  assert.deepEqual(psns, Array.from(psns, (_, index) => psns[0] + index), 'no gap');
  assert.ok(/Its acknowledgements that were kept: [1-9]/.test(await text(page)));
  await level(page, 'packet');
  await page.waitForSelector('main h2:has-text("PSN")');
  assert.equal(await page.locator('.numbers .number h3').count(), 5, 'the way of a packet: NIC, leaf, spine, leaf, NIC');
  await level(page, 'collective');
  await page.waitForFunction(() => /All slices of this channel are here/.test(document.querySelector('main').textContent));
  await page.locator('#timebar canvas').click({ position: { x: (await page.locator('#timebar canvas').boundingBox()).width - 1, y: 50 } });
  await settled(page);
  const [, whole, pieces] = /(\d+) of (\d+) pieces are whole/.exec((await text(page)).replaceAll(',', '')).map(Number);
  assert.equal(whole, pieces, 'in the end every piece is a whole sum');
  assert.deepEqual(page.troubles, []);
  await page.context().close();
});

test('links without credit wait for each other, as a tree', async () => {
  const page = await open(`${await serve('scenarios/incast-credits.toml')}#congestion`);
  await settled(page);
  const words = await text(page);
  assert.ok(words.includes('Who waits for whom') && /switch\d*kept waiting host\d+ for/.test(words), words.slice(-900));
  assert.deepEqual(page.troubles, []);
  await page.context().close();
});

test('texts of a run are never run', async () => {
  const scenario = join(folder, 'hostile.toml');
  const evil = '<img src=x onerror="document.title=\'owned\'"></script><script>document.title="owned"</script>';
  writeFileSync(scenario, `# ${evil}\n${readFileSync(new URL('../../scenarios/incast.toml', import.meta.url), 'utf8').split('\n').slice(1).join('\n')}`);
  const file = join(folder, 'hostile.html');
  railnet('sim', scenario, '--report', file);
  for (const where of [pathToFileURL(file).href, await serve(scenario)]) {
    const page = await open(where);
    await level(page, 'roles');
    assert.ok((await page.textContent('body')).includes('onerror'), 'it is shown as text');
    assert.ok(!(await page.title()).includes('owned'));
    assert.equal(await page.locator('main img, header img').count(), 0);
    assert.deepEqual(page.troubles, []);
    await page.context().close();
  }
});
