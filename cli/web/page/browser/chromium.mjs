// Chromium: the one that CHROMIUM names, or the one of the package, which unpacks itself.
import chromium from '@sparticuz/chromium';
import puppeteer from 'puppeteer-core';

export async function launch() {
  const executablePath = process.env.CHROMIUM ?? (await chromium.executablePath());
  // In a container nobody is root twice over; what is opened here is the page of this repository.
  const args = ['--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage', '--font-render-hinting=none'];
  return puppeteer.launch({ executablePath, args, headless: 'shell' });
}
