// How fluid the page is: npm run speed -- FILE.rail …. RAILNET names the railnet command.
// Prints how long the page takes to open, and while it plays frames a second and how long the page draws for one.
import { spawn } from 'node:child_process';
import { close, LEVELS, level, open } from './stage.mjs';

const command = process.env.RAILNET ?? 'railnet';
const SECONDS = 2;

/** Plays for a while; frames a second, and milliseconds of drawing: half of the frames, 95 of 100. */
function play(page) {
  return page.evaluate(
    (seconds) =>
      new Promise((done) => {
        const drawing = [];
        const real = window.requestAnimationFrame.bind(window);
        window.requestAnimationFrame = (draw) =>
          real((now) => {
            const start = performance.now();
            draw(now);
            drawing.push(performance.now() - start);
          });
        document.querySelector('.play').click();
        setTimeout(() => {
          window.requestAnimationFrame = real;
          if (document.querySelector('.play').getAttribute('aria-label') === 'Pause') document.querySelector('.play').click();
          const sorted = [...drawing].sort((a, b) => a - b);
          const part = (share) => sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))] ?? 0;
          done({ frames: drawing.length / seconds, half: part(0.5), most: part(0.95) });
        }, seconds * 1000);
      }),
    SECONDS,
  );
}

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
  console.log(`  opened after ${Math.round(performance.now() - before)} ms`);
  await page.waitForLoadState('networkidle');
  console.log(`  all data of the first level there after ${Math.round(performance.now() - before)} ms, of which 500 are waiting for silence`);
  for (const name of LEVELS) {
    await level(page, name);
    const { frames, half, most } = await play(page);
    console.log(`  ${name.padEnd(11)} ${frames.toFixed(0).padStart(3)} frames/s, drawing ${half.toFixed(1)} ms, 95 of 100 under ${most.toFixed(1)} ms`);
  }
  await page.context().close();
  server.kill();
}
await close();
