// Pictures of the page for the documentation: npm run pictures. RAILNET names the railnet command.
import { spawnSync } from 'node:child_process';
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { close, level, open, root, serve, settled, SIZES } from './stage.mjs';

const folder = join(root, 'docs/pictures');
mkdirSync(folder, { recursive: true });

const PICTURES = [
  ['problem', 'scenarios/life-of-a-job-racks.toml', 'problem'],
  ['cluster', 'scenarios/allreduce-2-nodes.toml', 'cluster'],
  ['step', 'scenarios/llama-405b.toml', 'step'],
  ['collective', 'scenarios/allreduce-2-nodes.toml', 'collective', '?comm=0&seq=0&t=14000000-107000000&at=61000000'],
  ['connection', 'scenarios/incast.toml', 'connection'],
  ['packet', 'scenarios/incast.toml', 'packet'],
  ['congestion', 'scenarios/incast.toml', 'congestion'],
];

const addresses = new Map();
for (const [name, scenario, which, more = ''] of PICTURES) {
  if (!addresses.has(scenario)) addresses.set(scenario, await serve(scenario));
  for (const [size, viewport] of Object.entries(SIZES)) {
    const page = await open(addresses.get(scenario), { size: viewport, reducedMotion: 'reduce' });
    await level(page, which, more);
    await page.waitForTimeout(500);
    await settled(page);
    const file = join(folder, `${name}${size === 'laptop' ? '' : `-${size}`}.png`);
    await page.screenshot({ path: file });
    // Fewer colours, a third of the bytes; without pngquant the picture is just larger.
    spawnSync('pngquant', ['--force', '--speed', '1', '--strip', '--output', file, '96', '--', file]);
    await page.context().close();
    console.log(file);
  }
}
await close();
