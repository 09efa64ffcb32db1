// What the tests of the page stand on: the real command, a real browser, and eyes on everything they should not do.
import { execFileSync, spawn } from 'node:child_process';
import { existsSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { chromium } from 'playwright-core';

export const root = resolve(dirname(fileURLToPath(import.meta.url)), '../..');
export const LEVELS = ['problem', 'launch', 'cluster', 'step', 'collective', 'connection', 'packet', 'congestion', 'completion', 'roles'];
export const SIZES = { laptop: { width: 1280, height: 800 }, phone: { width: 390, height: 844 } };

const command = process.env.RAILNET ?? join(root, 'target/release/railnet');
const browserPath = process.env.CHROMIUM ?? '/usr/bin/chromium';
for (const file of [command, browserPath]) {
  if (!existsSync(file)) throw new Error(`${file} is missing: set RAILNET to the railnet command and CHROMIUM to the browser`);
}

export const folder = mkdtempSync(join(tmpdir(), 'railnet-page-'));
const servers = [];

/** Runs the railnet command to its end. */
export function railnet(...words) {
  return execFileSync(command, words, { cwd: root, encoding: 'utf8', stdio: ['ignore', 'pipe', 'pipe'], timeout: 300_000 });
}

/** Records a scenario and serves it; the address of the page. */
export async function serve(scenario, ...options) {
  const file = join(folder, `${scenario.replace(/\W+/g, '-')}.rail`);
  if (!existsSync(file)) {
    try {
      railnet('sim', scenario, '--record', file, ...options);
    } catch (error) {
      // A run that fails is recorded all the same.
      if (error.status !== 1 || !existsSync(file)) throw error;
    }
  }
  return show(file);
}

/** Serves a run file; the address of the page. */
export async function show(file) {
  const server = spawn(command, ['view', file, '--port', '0'], { cwd: root, stdio: ['ignore', 'pipe', 'inherit'] });
  servers.push(server);
  return new Promise((found, failed) => {
    let said = '';
    server.stdout.on('data', (words) => {
      said += words;
      const address = /http:\/\/127\.0\.0\.1:\d+\//.exec(said);
      if (address) found(address[0]);
    });
    server.on('exit', (code) => failed(new Error(`railnet view ended with ${code}: ${said}`)));
  });
}

let browser = null;

/** Starts the browser, where what is measured should not have its start in it. */
export async function launch() {
  browser ??= await chromium.launch({ executablePath: browserPath, args: ['--no-sandbox'] });
  return browser;
}

/** A page that remembers errors and every request that leaves the address it was opened at. */
export async function open(address, { size = SIZES.laptop, ...options } = {}) {
  const context = await (await launch()).newContext({ viewport: size, ...options });
  const page = await context.newPage();
  page.troubles = [];
  page.on('console', (message) => message.type() === 'error' && page.troubles.push(`console: ${message.text()}`));
  page.on('pageerror', (error) => page.troubles.push(`error: ${error.stack ?? error}`));
  const origin = address.startsWith('file:') ? null : new URL(address).origin;
  page.on('request', (request) => {
    const url = request.url();
    const own = origin ? url.startsWith(`${origin}/`) : url === address.split('#')[0];
    if (!own && !url.startsWith('data:')) page.troubles.push(`request: ${url}`);
  });
  await page.goto(address);
  await page.waitForSelector('#timebar');
  return page;
}

/** Waits until nothing was asked of the server for a moment and the page has drawn. */
export async function settled(page) {
  await page.waitForLoadState('networkidle');
  await page.evaluate(() => new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn))));
}

export async function level(page, name, more = '') {
  await page.evaluate((hash) => {
    location.hash = hash;
  }, `#${name}${more}`);
  await page.waitForFunction((id) => document.querySelector(`#levels [data-level="${id}"]`)?.getAttribute('aria-current') === 'true', name);
  await settled(page);
}

export async function close() {
  await browser?.close();
  for (const server of servers) {
    server.removeAllListeners('exit');
    server.kill();
  }
  rmSync(folder, { recursive: true, force: true });
}

/** How much of a canvas is not empty, from 0 to 1. */
export function inked(page, selector) {
  return page.evaluate((which) => {
    const canvas = document.querySelector(which);
    const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
    let count = 0;
    for (let at = 3; at < data.length; at += 4) if (data[at] > 0) count++;
    return count / (data.length / 4);
  }, selector);
}
