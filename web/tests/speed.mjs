// How fluid the page is: npm run speed -- FILE.rail …. RAILNET names the railnet command.
// Prints how long the page takes to open, frames a second while it plays and how long the page draws for one, and the same while somebody
// zooms.
import { spawn } from 'node:child_process';
import { close, launch, LEVELS, level, open } from './stage.mjs';

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

/** Zooms in and out for a while; frames a second, and the longest time between two, in milliseconds. */
async function zoom(page) {
  await page.evaluate(() => {
    window.gaps = [];
    let before = performance.now();
    const note = (now) => {
      window.gaps.push(now - before);
      before = now;
      window.noting = requestAnimationFrame(note);
    };
    window.noting = requestAnimationFrame(note);
  });
  const until = performance.now() + SECONDS * 1000;
  for (let press = 0; performance.now() < until; press++) {
    await page.keyboard.press(press % 8 < 4 ? '+' : '-');
    await page.waitForTimeout(60);
  }
  return page.evaluate(() => {
    cancelAnimationFrame(window.noting);
    const { gaps } = window;
    return { frames: (gaps.length / gaps.reduce((sum, gap) => sum + gap, 0)) * 1000, longest: Math.max(...gaps) };
  });
}

await launch();
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
  const silence = 500;
  console.log(`  all data of the first level there after ${Math.round(performance.now() - before) - silence} ms`);
  for (const name of LEVELS) {
    await level(page, name);
    const { frames, half, most } = await play(page);
    const zoomed = await zoom(page);
    const playing = `${frames.toFixed(0).padStart(3)} frames/s, drawing ${half.toFixed(1)} ms, 95 of 100 under ${most.toFixed(1)} ms`;
    console.log(`  ${name.padEnd(11)} ${playing}; zooming ${zoomed.frames.toFixed(0)} frames/s, at most ${zoomed.longest.toFixed(0)} ms between two`);
  }
  await page.context().close();
  server.kill();
}
await close();
