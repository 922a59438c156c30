// End to end in a real browser: the page over static files with WebAssembly, and the page that the command serves.
//
// CACHEPLAN_COMMAND names the command, whose JSON the page must agree with. What is measured is printed.

import assert from 'node:assert/strict';
import { execFile, spawn } from 'node:child_process';
import { mkdir, mkdtemp, readFile, readdir, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { promisify } from 'node:util';
import { brotliCompressSync } from 'node:zlib';
import { launch } from './chromium.mjs';
import { serve } from './static.mjs';

const run = promisify(execFile);
const TOP = new URL('../../../', import.meta.url);
const DIST = new URL('web/dist/', TOP);
const CONFIGS = new URL('tests/fixtures/configs/', TOP);
const COMMAND = process.env.CACHEPLAN_COMMAND;
if (!COMMAND) throw new Error('CACHEPLAN_COMMAND names no command');

/** The models whose numbers are compared: of every kind of cache, and the largest. */
const MODELS = [
  'Qwen/Qwen3-Next-80B-A3B-Thinking', 'LiquidAI/LFM2-1.2B', 'MiniMaxAI/MiniMax-M1-80k', 'RWKV/rwkv-4-169m-pile',
  'Zyphra/Zamba2-7B', 'ai21labs/Jamba-v0.1', 'deepseek-ai/DeepSeek-V3.2', 'deepseek-ai/DeepSeek-V4-Flash',
  'google/gemma-3-1b-it', 'google/gemma-4-26B-A4B', 'google/recurrentgemma-2b', 'ibm-granite/granite-4.0-h-small',
  'meta-llama/Llama-3.1-8B-Instruct', 'meta-llama/Llama-4-Scout-17B-16E-Instruct', 'microsoft/Phi-4-mini-flash-reasoning',
  'moonshotai/Kimi-K3', 'moonshotai/Kimi-Linear-48B-A3B-Instruct', 'nvidia/Llama-3_3-Nemotron-Super-49B-v1',
  'openai/gpt-oss-120b', 'tiiuae/Falcon-H1-7B-Instruct',
];
/** The config of the zoo whose plan is the longest, on which a slider is moved. */
const LARGEST = 'Zyphra/Zamba2-7B';

const BUDGET = "max_seq_len = 8192\n\n[memory]\nbytes = '40GiB'\n";

const tests = [];
const test = (name, body) => tests.push({ name, body });
const fileOf = (name) => new URL(`${name.replace('/', '__')}.json`, CONFIGS);

const browser = await launch();
const folder = await mkdtemp(`${tmpdir()}/cacheplan-`);

/** A page without errors and without a request to anybody else, which is checked at its end. */
async function open(address, fragment, use, options = {}) {
  const context = await browser.createBrowserContext();
  const page = await context.newPage();
  const wrong = [];
  page.on('console', (message) => message.type() === 'error' && wrong.push(message.text()));
  page.on('pageerror', (error) => wrong.push(error.message));
  page.on('request', (request) => {
    const url = request.url();
    if (!url.startsWith(new URL(address).origin) && !url.startsWith('blob:')) wrong.push(`asked ${url}`);
  });
  await page.setViewport({ width: options.width ?? 1280, height: 900 });
  if (options.dark) await page.emulateMediaFeatures([{ name: 'prefers-color-scheme', value: 'dark' }]);
  try {
    await page.goto(`${address}#${fragment}`);
    await use(page);
    assert.deepEqual(wrong, []);
  } finally {
    await context.close();
  }
}

const fragment = (fields) => new URLSearchParams(fields).toString();
const settled = (page) =>
  page.waitForFunction(() => !document.body.classList.contains('stale') && document.querySelector('#summary b'), { timeout: 30000 });
const refusal = async (page) => {
  await page.waitForSelector('#error:not([hidden]) pre', { timeout: 30000 });
  return page.$eval('#error pre', (pre) => pre.textContent);
};

/** The plan that the page shows, as the command would print it. */
async function shownPlan(page) {
  await settled(page);
  await page.$eval('#flags', (section) => section.scrollIntoView());
  await page.select('#target', 'plan.json');
  return JSON.parse(await page.$eval('#flags .file', (pre) => pre.textContent));
}

async function commandPlan(file, more) {
  const { stdout } = await run(COMMAND, ['plan', file, '--format', 'json', ...more], { maxBuffer: 1 << 26 });
  return JSON.parse(stdout);
}

async function withServer(places, use) {
  const child = spawn(COMMAND, ['web', '--port', '0', ...places], { env: { ...process.env, HF_HUB_CACHE: folder } });
  try {
    const address = await new Promise((resolve, reject) => {
      child.stdout.once('data', (data) => resolve(String(data).trim()));
      child.once('exit', () => reject(new Error('the server ended')));
    });
    const url = new URL(address);
    await use({ origin: `${url.origin}/`, token: url.hash.slice('#token='.length) });
  } finally {
    child.kill();
  }
}

/** References were looked at when they were made; fonts differ from machine to machine, so that they are small. */
async function looksAlike(page, name) {
  await page.evaluate(() => scrollTo(0, 0));
  const taken = await page.screenshot({ encoding: 'base64' });
  const reference = new URL(`reference/${name}.png`, import.meta.url);
  const known = process.env.UPDATE_REFERENCES ? null : await readFile(reference, 'base64');
  const blank = await browser.newPage();
  const [small, difference] = await blank.evaluate(async (taken, known) => {
    const WIDTH = 200;
    const pixels = async (base64) => {
      const image = new Image();
      image.src = `data:image/png;base64,${base64}`;
      await image.decode();
      const canvas = document.createElement('canvas');
      [canvas.width, canvas.height] = [WIDTH, Math.round((image.height * WIDTH) / image.width)];
      const context = canvas.getContext('2d');
      context.imageSmoothingQuality = 'high';
      context.drawImage(image, 0, 0, canvas.width, canvas.height);
      return [canvas.toDataURL('image/png').split(',')[1], context.getImageData(0, 0, canvas.width, canvas.height).data];
    };
    const [small, now] = await pixels(taken);
    if (known === null) return [small, 0];
    const [, then] = await pixels(known);
    if (now.length !== then.length) return [small, 255];
    return [small, now.reduce((sum, value, at) => sum + Math.abs(value - then[at]), 0) / now.length];
  }, taken, known);
  await blank.close();
  if (process.env.UPDATE_REFERENCES) await writeFile(reference, Buffer.from(small, 'base64'));
  assert.ok(difference < 8, `${name} differs from its reference by ${difference.toFixed(1)} of 255 on the mean`);
}

test('numbers equal those of the command, for twenty models', async ({ address }) => {
  const budget = `${folder}/budget.toml`;
  await writeFile(budget, BUDGET);
  await open(address, fragment({ zoo: MODELS[0], device: '', budget: BUDGET }), async (page) => {
    for (const name of MODELS) {
      const text = await readFile(fileOf(name), 'utf8');
      let expected, failed;
      try {
        expected = await commandPlan(fileOf(name).pathname, ['--budget', budget]);
      } catch (error) {
        failed = error;
      }
      await page.evaluate((hash) => { document.querySelector('#summary').replaceChildren(); location.hash = hash; },
        fragment({ zoo: name, device: '', budget: BUDGET }));
      if (failed) {
        // What the command refuses, the page refuses with the same words.
        assert.equal(failed.code, 3, `${name}: ${failed.stderr}`);
        const first = (await refusal(page)).replace('error: ', '').split('\n')[0];
        assert.ok(failed.stderr.includes(first), `${name}: ${first} is not in ${failed.stderr}`);
        continue;
      }
      const shown = await shownPlan(page);
      assert.deepEqual(shown, expected, name);
      assert.ok(text.length > 0);
    }
  });
});

test('a config that is dropped is planned', async ({ address }) => {
  const file = fileOf('ai21labs/Jamba-v0.1').pathname;
  const text = await readFile(file, 'utf8');
  await open(address, fragment({ device: 'h200' }), async (page) => {
    await settled(page);
    await page.evaluate((text) => {
      const dataTransfer = new DataTransfer();
      dataTransfer.items.add(new File([text], 'config.json'));
      document.body.dispatchEvent(new DragEvent('drop', { dataTransfer, bubbles: true, cancelable: true }));
    }, text);
    await page.waitForFunction(() => document.querySelector('.chosen')?.textContent === 'jamba');
    await page.waitForFunction(() => document.querySelectorAll('.strip button').length === 32);
    const expected = await commandPlan(file, ['--device-memory', 'h200', '--max-seq-len', '32768']);
    assert.deepEqual((await shownPlan(page)).pools, expected.pools);
  });
});

test('a config that is pasted is planned, and its link holds everything', async ({ address }) => {
  const file = fileOf('ai21labs/Jamba-v0.1').pathname;
  let link;
  await open(address, fragment({ device: 'h200' }), async (page) => {
    await settled(page);
    const text = await readFile(file, 'utf8');
    await page.$eval('#pasted', (area, text) => {
      area.value = text;
      area.dispatchEvent(new Event('change'));
    }, text);
    await page.waitForFunction(() => document.querySelector('.chosen')?.textContent === 'jamba');
    await page.waitForFunction(() => location.hash.includes('config='));
    link = await page.evaluate(() => location.hash.slice(1));
  });
  await open(address, link, async (page) => {
    const expected = await commandPlan(file, ['--device-memory', 'h200', '--max-seq-len', '32768']);
    const shown = await shownPlan(page);
    assert.deepEqual(shown.capacity, expected.capacity);
    assert.deepEqual(shown.pools, expected.pools);
  });
});

test('files are read by slices: a safetensors header of a file far larger than is read', async ({ address }) => {
  const header = Buffer.from(JSON.stringify({
    'model.embed_tokens.weight': { dtype: 'BF16', shape: [1 << 15, 1 << 10], data_offsets: [0, 1 << 26] },
  }));
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(header.length));
  const file = `${folder}/model.safetensors`;
  await writeFile(file, Buffer.concat([length, header, Buffer.alloc(1 << 26)]));
  await open(address, '', async (page) => {
    await settled(page);
    const input = await page.$('#files');
    await input.uploadFile(file);
    const said = await refusal(page);
    // Without a config beside it the command says what is missing, and so does the page.
    const command = await run(COMMAND, ['plan', file]).catch((error) => error);
    assert.equal(command.code, 1);
    assert.ok(command.stderr.replaceAll(file, 'model.safetensors').includes(said.replace('error: ', '').split(' (exit')[0]), said + command.stderr);
  });
});

test('a GGUF file is read in the page', async ({ address }) => {
  const files = (await readdir(new URL('tests/fixtures/gguf/', TOP), { recursive: true })).filter((name) => name.endsWith('.gguf'));
  assert.ok(files.length > 0);
  const file = new URL(`tests/fixtures/gguf/${files.sort()[0]}`, TOP).pathname;
  const expected = await commandPlan(file, ['--device-memory', 'h100', '--max-seq-len', '32768']);
  await open(address, '', async (page) => {
    await settled(page);
    await (await page.$('#files')).uploadFile(file);
    await page.waitForFunction((type) => document.querySelector('.chosen')?.textContent === type, {}, expected.model.type);
    const shown = await shownPlan(page);
    assert.deepEqual(shown.pools, expected.pools);
  });
});

test('a slider changes the TOML, the TOML changes the slider', async ({ address }) => {
  await open(address, fragment({ zoo: 'nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16', device: 'b200', budget: '# mine\nmax_seq_len = 32768\n' }), async (page) => {
    await settled(page);
    await page.focus('#input-Context');
    const before = await page.$eval('#summary', (said) => said.textContent);
    await page.keyboard.press('ArrowLeft');
    await page.waitForFunction((before) => document.querySelector('#summary').textContent !== before, {}, before);
    assert.equal(await page.$eval('#toml', (area) => area.value), '# mine\nmax_seq_len = 24576\n');
    await page.$eval('#toml', (area) => {
      area.value = 'max_seq_len = 2048\n[memory]\nfraction = 0.6\nof = "total"\n';
      area.dispatchEvent(new Event('input'));
    });
    await page.focus('#toml');
    await page.waitForFunction(() => document.querySelector('#input-Share-of-the-device').value === '10');
    assert.equal(await page.$eval('#input-Context', (range) => range.getAttribute('aria-valuetext')), '2,048 tokens');
  });
});

test('100 ms from a slider to the picture, on the largest config', async ({ address, said }) => {
  await open(address, fragment({ zoo: LARGEST, device: '', budget: BUDGET }), async (page) => {
    await settled(page);
    await page.focus('#input-Context');
    for (let at = 0; at < 24; at += 1) {
      await page.keyboard.press(at % 12 < 6 ? 'ArrowLeft' : 'ArrowRight');
      await page.waitForFunction((count) => performance.getEntriesByName('slider-to-picture').length > count, {}, at);
    }
    const times = await page.evaluate(() => performance.getEntriesByName('slider-to-picture').map((entry) => entry.duration));
    times.sort((left, right) => left - right);
    const [median, worst] = [times[Math.floor(times.length / 2)], times.at(-1)];
    said(`slider to picture: ${median.toFixed(1)} ms median, ${worst.toFixed(1)} ms at most, of ${times.length}`);
    assert.ok(median < 100, `${median} ms`);
  });
});

test('what a model calls itself stays text', async ({ address }) => {
  const evil = '<img src=x onerror="document.title=1"><script>document.title=2</script>';
  const config = JSON.stringify({
    model_type: evil, architectures: [evil], num_hidden_layers: 2, hidden_size: 64, num_attention_heads: 4,
    layer_types: [evil, `${evil}\u202e`],
  });
  for (const text of [config, config.replace(JSON.stringify(evil), '"llama"'), `{"${evil.replaceAll('"', "'")}": 1, "${evil.replaceAll('"', "'")}": 2}`, '['.repeat(100000), '{']) {
    await open(address, '', async (page) => {
      await settled(page);
      const title = await page.title();
      await page.$eval('#pasted', (area, text) => {
        area.value = text;
        area.dispatchEvent(new Event('change'));
      }, text);
      const answered = () => !document.querySelector('#error').hidden || document.querySelector('.chosen')?.textContent !== 'nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16';
      await page.waitForFunction(answered, { timeout: 20000 });
      assert.equal(await page.$$eval('main img, main script, main iframe', (found) => found.length), 0);
      assert.ok(['1', '2'].every((bad) => bad !== title));
    });
  }
});

test('every part answers: capacity, devices, prefix cache, flags, reasons', async ({ address, screenshots }) => {
  await open(address, fragment({ 'fit.prices': 'h100=2.5 h200=3.5' }), async (page) => {
    await settled(page);
    for (const [id, wanted] of [['capacity', 'svg.chart'], ['fit', '.heat button'], ['prefix', 'svg.chart'], ['flags', '.file']]) {
      await page.$eval(`#${id}`, (section) => section.scrollIntoView());
      await page.waitForSelector(`#${id} ${wanted}`, { timeout: 60000 });
    }
    assert.match(await page.$eval('#flags .file', (pre) => pre.textContent), /max-num-seqs|max_num_seqs/);
    await page.$eval('#map', (section) => section.scrollIntoView());
    // By keyboard: into the pools' layers, with the reason for one.
    const into = async (name) => {
      await page.$eval(`.treemap [aria-label^="${name},"]`, (cell) => cell.focus());
      await page.keyboard.press('Enter');
    };
    await into('kv_paged.0');
    await page.waitForSelector('.treemap [aria-label^="layer 5,"]');
    await into('layer 5');
    await page.waitForFunction(() => document.querySelector('.why')?.textContent.includes('head_dim'));
    await screenshots(page, 'layers-of-a-pool');
  });
});

test('it is drawn dark, on a phone, and without sideways scrolling', async ({ address, screenshots }) => {
  for (const [name, options] of [['light', {}], ['dark', { dark: true }], ['phone', { width: 390 }]]) {
    await open(address, '', async (page) => {
      await settled(page);
      await page.$eval('#capacity', (section) => section.scrollIntoView());
      await page.waitForSelector('#capacity svg.chart', { timeout: 60000 });
      const wide = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
      assert.ok(wide <= 0, `${name}: ${wide} pixels too wide`);
      await screenshots(page, name);
      await looksAlike(page, name);
    }, options);
  }
});

test('everything that can be used has a name, and can be reached by keyboard', async ({ address }) => {
  await open(address, '', async (page) => {
    await settled(page);
    const nameless = await page.$$eval('button, input, select, textarea, summary', (elements) =>
      elements
        .filter((element) => !element.closest('[hidden]'))
        .filter((element) => !(element.getAttribute('aria-label') || element.textContent.trim() || element.labels?.length))
        .map((element) => element.outerHTML));
    assert.deepEqual(nameless, []);
    const skipped = await page.$$eval('button, input, select, textarea', (elements) => elements.filter((element) => element.tabIndex < 0).length);
    assert.equal(skipped, 0);
    const twice = await page.$$eval('[id]', (elements) => elements.map(({ id }) => id).filter((id, at, all) => all.indexOf(id) !== at));
    assert.deepEqual(twice, []);
  });
});

test('a model that does not fit is refused with what would do, which a click takes', async ({ address }) => {
  await open(address, fragment({ zoo: 'meta-llama/Llama-3.1-8B-Instruct', device: '', budget: "max_seq_len = 131072\n[memory]\nbytes = '2GiB'\n" }), async (page) => {
    assert.match(await refusal(page), /does not fit: .*\(exit code 3\)/s);
    await page.click('#error .knob');
    await settled(page);
    assert.equal(await page.$eval('#error', (error) => error.hidden), true);
  });
});

test('the command serves the same page, which asks it', async () => {
  await withServer([fileOf('Qwen/Qwen3-8B').pathname], async ({ origin, token }) => {
    await open(origin, `token=${token}&device=h100`, async (page) => {
      await settled(page);
      assert.ok(!(await page.evaluate(() => location.href)).includes(token));
      assert.equal(await page.$$eval('#places option', (options) => options.length), 1);
      await page.type('#path', fileOf('Qwen/Qwen3-8B').pathname);
      await page.keyboard.press('Enter');
      await page.waitForFunction(() => document.querySelector('.chosen')?.textContent === 'qwen3');
      const expected = await commandPlan(fileOf('Qwen/Qwen3-8B').pathname, ['--device-memory', 'h100', '--max-seq-len', '32768']);
      assert.deepEqual((await shownPlan(page)).capacity, expected.capacity);
    });
  });
});

test('other sites, other names and other users get no answer', async () => {
  await withServer([], async ({ origin, token }) => {
    const { port } = new URL(origin);
    const { request } = await import('node:http');
    const ask = (headers) => new Promise((resolve, reject) => {
      const body = Buffer.from('\x16\x00\x00\x00{"ask":"choices"}     ');
      const sent = request({ host: '127.0.0.1', port, path: '/ask', method: 'POST', headers: { 'Content-Length': body.length, ...headers } }, (response) => {
        response.resume();
        resolve(response.statusCode);
      });
      sent.on('error', reject);
      sent.end(body);
    });
    const right = { 'X-Cacheplan-Token': token };
    assert.equal(await ask(right), 200);
    assert.equal(await ask({ ...right, Origin: `http://127.0.0.1:${port}` }), 200);
    assert.equal(await ask({ ...right, Origin: 'http://evil.example' }), 403);
    assert.equal(await ask({ ...right, Origin: 'null' }), 403);
    assert.equal(await ask({ ...right, Host: 'evil.example' }), 403);
    assert.equal(await ask({ ...right, Host: `evil.example:${port}` }), 403);
    assert.equal(await ask({}), 403);
    assert.equal(await ask({ 'X-Cacheplan-Token': `${token.slice(0, -1)}x` }), 403);
  });
});

test('the page is small', async ({ said }) => {
  let [whole, compressed] = [0, 0];
  for (const name of await readdir(DIST)) {
    const bytes = await readFile(new URL(name, DIST));
    whole += bytes.length;
    compressed += brotliCompressSync(bytes).length;
  }
  said(`the page: ${whole} bytes, ${compressed} with brotli`);
  assert.ok(compressed < 1_500_000);
  assert.ok((await stat(new URL('planner.wasm', DIST))).size > 0);
});

const shots = process.env.SCREENSHOTS;
if (shots) await mkdir(shots, { recursive: true });
const host = await serve(DIST);
const lines = [];
let failed = 0;
for (const { name, body } of tests) {
  if (process.argv[2] && !name.includes(process.argv[2])) continue;
  const screenshots = async (page, shot) => shots && page.screenshot({ path: `${shots}/${shot}.png`, fullPage: true });
  try {
    await body({ address: host.address, said: (line) => lines.push(line), screenshots });
    console.log(`ok      ${name}`);
  } catch (error) {
    failed += 1;
    console.log(`FAILED  ${name}\n${error.stack}`);
  }
}
console.log(lines.join('\n'));
await browser.close();
host.close();
process.exit(failed > 0 ? 1 : 0);
