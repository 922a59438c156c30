// The picture at the top of the README: the page as it opens, with a model of both kinds of caches. `npm run picture`.
import { fileURLToPath } from 'node:url';
import { launch } from './chromium.mjs';
import { serve } from './static.mjs';

const host = await serve(new URL('../../dist/', import.meta.url));
const browser = await launch();
const page = await browser.newPage();
await page.setViewport({ width: 1200, height: 1000 });
await page.goto(host.address);
await page.waitForSelector('#summary .verdict.yes', { timeout: 60000 });
await page.$eval('.map [aria-label^="kv_paged.0:"]', (part) => part.focus());
await page.evaluate(() => document.activeElement.blur());
await page.screenshot({
  path: fileURLToPath(new URL('../../../../docs/page.png', import.meta.url)),
  clip: { x: 0, y: 0, width: 1200, height: 960 },
});
await browser.close();
host.close();
