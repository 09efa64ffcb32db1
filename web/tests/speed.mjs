// How fluid the page is: npm run speed -- FILE.rail …. RAILNET names the railnet command.
// Prints how long the page takes to open, and frames a second and the slowest frame while it plays.
import { spawn } from 'node:child_process';
import { close, LEVELS, level, open } from './stage.mjs';

const command = process.env.RAILNET ?? 'railnet';

for (const file of process.argv.slice(2)) {
  const server = spawn(command, ['view', file, '--port', '0'], { stdio: ['ignore', 'pipe', 'inherit'] });
  const started = performance.now();
  const address = await new Promise((found) => {
    let said = '';
    server.stdout.on('data', (words) => {
      said += words;
      const match = /http:\/\/127\.0\.0\.1:\d+\//.exec(said);
      if (match) found(match[0]);
    });
  });
  console.log(`${file}: served after ${Math.round(performance.now() - started)} ms`);
  const before = performance.now();
  const page = await open(`${address}#cluster`);
  await page.waitForSelector('main figure canvas');
  await page.waitForLoadState('networkidle');
  console.log(`  opened, all data there, after ${Math.round(performance.now() - before)} ms`);
  for (const name of LEVELS) {
    await level(page, name);
    await page.keyboard.press('Space');
    const { frames, slowest } = await page.evaluate(
      () =>
        new Promise((done) => {
          const times = [];
          const start = performance.now();
          const tick = (now) => {
            times.push(now);
            if (now - start < 2000) requestAnimationFrame(tick);
            else {
              const steps = times.slice(1).map((time, index) => time - times[index]);
              done({ frames: (1000 * steps.length) / (times.at(-1) - times[0]), slowest: Math.max(...steps) });
            }
          };
          requestAnimationFrame(tick);
        }),
    );
    await page.keyboard.press('Space');
    console.log(`  ${name.padEnd(11)} ${frames.toFixed(0).padStart(3)} frames/s, slowest ${slowest.toFixed(0)} ms`);
  }
  await page.context().close();
  server.kill();
}
await close();
