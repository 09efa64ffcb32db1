// The page of `railnet view` and of the report: finds its data, then shows it.
import './page.css';
import { App } from './app';
import { absent, fill } from './draw/dom';
import { startTips } from './draw/tip';
import { Run } from './model/run';
import { startShell } from './shell';
import { Report } from './source/report';
import { Served } from './source/served';

async function start(): Promise<void> {
  const page = document.getElementById('page')!;
  try {
    const source = Report.find() ?? new Served();
    const app = new App(source, await Run.open(source, 0));
    startTips();
    startShell(app, page);
    app.redraw();
  } catch (error) {
    fill(page, absent(`This run cannot be shown: ${error instanceof Error ? error.message : String(error)}`));
  }
}

if (document.readyState === 'loading') document.addEventListener('DOMContentLoaded', () => void start());
else void start();
