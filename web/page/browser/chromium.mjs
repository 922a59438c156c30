// Chromium: the one that CHROMIUM names, or the one of the package, which unpacks itself.
import chromium from '@sparticuz/chromium';
import puppeteer from 'puppeteer-core';

export async function launch() {
  const executablePath = process.env.CHROMIUM ?? (await chromium.executablePath());
  return puppeteer.launch({ executablePath, args: [...chromium.args, '--no-sandbox'], headless: 'shell' });
}
