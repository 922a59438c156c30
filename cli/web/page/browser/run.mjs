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
const TOP = new URL('../../../../', import.meta.url);
const DIST = new URL('cli/web/dist/', TOP);
const CONFIGS = new URL('tests/fixtures/configs/', TOP);
const COMMAND = process.env.CACHEPLAN_COMMAND;
if (!COMMAND) throw new Error('CACHEPLAN_COMMAND names no command');

/** Every config of the zoo, by the names that models have. */
const MODELS = (await readdir(CONFIGS)).filter((name) => name.endsWith('.json')).sort()
  .map((name) => name.slice(0, -'.json'.length).replace('__', '/'));
/** The config of the zoo whose plan is the longest, on which a slider is moved. */
const LARGEST = 'Zyphra/Zamba2-7B';

/** A model that fits one GPU, and one whose layers are known by number. */
const SMALL = 'Qwen/Qwen3-8B';
const NANO = 'nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16';

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

/** The plan that the page shows, as the command would print it; of a type that was just chosen once it is there. */
async function shownPlan(page, type) {
  await settled(page);
  await page.$eval('#flags', (section) => section.scrollIntoView());
  await page.select('#target', 'plan.json');
  const isOfType = (type) => JSON.parse(document.querySelector('#flags .file').textContent).model.type === type;
  if (type) await page.waitForFunction(isOfType, { timeout: 30000 }, type);
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

/** Labels of the pictures that are shown, measured as they are drawn, that meet or leave their picture. */
async function crowded(page) {
  return page.evaluate(() => {
    const wrong = [];
    for (const picture of document.querySelectorAll('svg.picture')) {
      const frame = picture.getBoundingClientRect();
      if (frame.width === 0) continue;
      const labels = [...picture.querySelectorAll('text')].map((text) => [text.textContent, text.getBoundingClientRect()]);
      for (const [at, [name, box]] of labels.entries()) {
        if (box.left < frame.left - 1 || box.right > frame.right + 1 || box.top < frame.top - 1 || box.bottom > frame.bottom + 1) wrong.push(`${name} leaves`);
        for (const [other, its] of labels.slice(at + 1)) {
          const [wide, high] = [Math.min(box.right, its.right) - Math.max(box.left, its.left), Math.min(box.bottom, its.bottom) - Math.max(box.top, its.top)];
          // Boxes of letters reach a little further than letters.
          if (wide > 0.5 && high > 3) wrong.push(`${name} / ${other}`);
        }
      }
    }
    return wrong;
  });
}

test('numbers equal those of the command, and labels are apart, for the whole zoo', async ({ address, said }) => {
  const budget = `${folder}/budget.toml`;
  await writeFile(budget, BUDGET);
  let [planned, refused] = [0, 0];
  await open(address, fragment({ zoo: MODELS[0], device: '', budget: BUDGET }), async (page) => {
    for (const name of MODELS) {
      let expected, failed;
      try {
        expected = await commandPlan(fileOf(name).pathname, ['--budget', budget]);
      } catch (error) {
        failed = error;
      }
      await page.evaluate((hash) => {
        document.querySelector('#summary').replaceChildren();
        document.querySelector('#error').hidden = true;
        location.hash = hash;
      }, fragment({ zoo: name, device: '', budget: BUDGET }));
      if (failed) {
        // What the command refuses, the page refuses with the same words, but for the command's flags and files.
        assert.ok([1, 3, 4].includes(failed.code), `${name}: ${failed.stderr}`);
        assert.ok((await refusal(page)).endsWith(`(exit code ${failed.code})`), name);
        refused += 1;
        continue;
      }
      // A plan of the model before may still be on its way.
      let shown = await shownPlan(page);
      for (let tries = 0; tries < 250 && shown.fingerprint.model !== expected.fingerprint.model; tries += 1) {
        await new Promise((resolve) => setTimeout(resolve, 100));
        shown = await shownPlan(page);
      }
      // The files of the zoo have their owners' names in theirs.
      expected.model.name = name.split('/').pop();
      assert.deepEqual(shown, expected, name);
      assert.deepEqual(await crowded(page), [], name);
      planned += 1;
    }
  });
  said(`${planned} plans of the page are the command's, and ${refused} refusals`);
  assert.ok(planned >= 60, `${planned} planned, ${refused} refused`);
});

test('files of the command are those of the page, and offline', async ({ address, screenshots }) => {
  const file = fileOf('Zyphra/Zamba2-7B').pathname;
  const budget = `${folder}/files.toml`;
  await writeFile(budget, BUDGET);
  const printed = {};
  for (const format of ['svg', 'html']) {
    const { stdout } = await run(COMMAND, ['plan', file, '--format', format, '--budget', budget], { maxBuffer: 1 << 26 });
    // The files of the zoo have their owners' names in theirs.
    printed[format] = stdout.replaceAll('Zyphra__Zamba2-7B', 'Zamba2-7B');
    await writeFile(`${folder}/plan.${format}`, stdout);
  }
  await open(address, fragment({ zoo: 'Zyphra/Zamba2-7B', device: '', budget: BUDGET }), async (page) => {
    await settled(page);
    // What would be downloaded is kept instead.
    await page.evaluate(() => {
      window.kept = [];
      const make = URL.createObjectURL;
      URL.createObjectURL = (blob) => (window.kept.push(blob.text()), make(blob));
      HTMLAnchorElement.prototype.click = () => {};
    });
    for (const [at, format] of ['svg', 'html'].entries()) {
      await page.$$eval('#downloads > button', (buttons, at) => buttons[at].click(), at);
      await page.waitForFunction((at) => window.kept.length > at, {}, at);
      assert.equal(await page.evaluate((at) => window.kept[at], at), printed[format], format);
    }
  });
  for (const [name, options] of [['html', {}], ['html-dark', { dark: true }], ['html-phone', { width: 390 }], ['html-print', { print: true }]]) {
    const context = await browser.createBrowserContext();
    const page = await context.newPage();
    const asked = [];
    page.on('request', (request) => asked.push(request.url()));
    await page.setViewport({ width: options.width ?? 1100, height: 900 });
    if (options.dark) await page.emulateMediaFeatures([{ name: 'prefers-color-scheme', value: 'dark' }]);
    if (options.print) await page.emulateMediaType('print');
    await page.goto(`file://${folder}/plan.html`);
    assert.deepEqual(asked, [`file://${folder}/plan.html`]);
    assert.deepEqual(await crowded(page), [], name);
    const wide = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
    assert.ok(wide <= 0, `${name}: ${wide} pixels too wide`);
    await screenshots(page, name);
    await context.close();
  }
});

test('a config that is dropped is planned', async ({ address }) => {
  const file = fileOf('ai21labs/Jamba-v0.1').pathname;
  const text = await readFile(file, 'utf8');
  await open(address, fragment({ zoo: SMALL, device: 'h200' }), async (page) => {
    await settled(page);
    await page.evaluate((text) => {
      const dataTransfer = new DataTransfer();
      dataTransfer.items.add(new File([text], 'config.json'));
      document.body.dispatchEvent(new DragEvent('drop', { dataTransfer, bubbles: true, cancelable: true }));
    }, text);
    await page.waitForFunction(() => document.querySelector('.chosen')?.textContent === 'jamba');
    await page.waitForFunction(() => document.querySelectorAll('.strip .part').length === 32);
    const expected = await commandPlan(file, ['--device-memory', 'h200', '--max-seq-len', '32768']);
    assert.deepEqual((await shownPlan(page)).pools, expected.pools);
  });
});

test('a config that is pasted is planned, and its link holds everything', async ({ address }) => {
  const file = fileOf('ai21labs/Jamba-v0.1').pathname;
  let link;
  await open(address, fragment({ zoo: SMALL, device: 'h200' }), async (page) => {
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

/** A tiny Llama in two files, which their index names. */
const LLAMA = new URL('tests/fixtures/models/llama/', TOP);
async function sharded() {
  const whole = await readFile(new URL('model.safetensors', LLAMA));
  const length = Number(whole.readBigUInt64LE());
  const header = JSON.parse(whole.subarray(8, 8 + length));
  delete header.__metadata__;
  const names = Object.keys(header);
  const files = new Map([['config.json', await readFile(new URL('config.json', LLAMA))]]);
  const weight_map = {};
  for (const [at, part] of [names.slice(0, 5), names.slice(5)].entries()) {
    const file = `model-0000${at + 1}-of-00002.safetensors`;
    let offset = 0;
    const data = [];
    const own = Object.fromEntries(part.map((name) => {
      const [from, to] = header[name].data_offsets;
      data.push(whole.subarray(8 + length + from, 8 + length + to));
      offset += to - from;
      weight_map[name] = file;
      return [name, { ...header[name], data_offsets: [offset - (to - from), offset] }];
    }));
    const text = Buffer.from(JSON.stringify(own));
    const size = Buffer.alloc(8);
    size.writeBigUInt64LE(BigInt(text.length));
    files.set(file, Buffer.concat([size, text, ...data]));
  }
  files.set('model.safetensors.index.json', Buffer.from(JSON.stringify({ metadata: { total_size: 1 }, weight_map })));
  return files;
}

test('weights in several files are read with their index', async ({ address }) => {
  const files = await sharded();
  const paths = [];
  for (const [name, bytes] of files) {
    await mkdir(`${folder}/shards`, { recursive: true });
    await writeFile(`${folder}/shards/${name}`, bytes);
    paths.push(`${folder}/shards/${name}`);
  }
  const expected = await commandPlan(`${folder}/shards`, ['--device-memory', 'h100', '--max-seq-len', '512']);
  await open(address, fragment({ zoo: SMALL, device: 'h100', budget: 'max_seq_len = 512\n' }), async (page) => {
    await settled(page);
    await (await page.$('#files')).uploadFile(...paths);
    await page.waitForFunction(() => document.querySelector('.chosen')?.textContent === 'llama');
    const shown = await shownPlan(page, 'llama');
    assert.deepEqual([shown.pools, shown.ledger], [expected.pools, expected.ledger]);
    assert.equal(shown.ledger.find(({ name }) => name === 'weights').source, 'exact');
    // Without the index nobody knows what belongs together.
    await (await page.$('#files')).uploadFile(...paths.filter((path) => !path.endsWith('index.json')));
    assert.match(await refusal(page), /drop model.safetensors.index.json/);
  });
});

test('the hub is asked only where somebody says so, and for headers alone', async ({ address }) => {
  const files = await sharded();
  const context = await browser.createBrowserContext();
  const page = await context.newPage();
  const asked = [];
  // In the page's own place of asking: a worker whose script a browser holds back for a test may never begin.
  await page.exposeFunction('hubAnswers', (path, range) => {
    asked.push(`${path} ${range}`.trim());
    const answer = (status, bytes) => ({ status, body: Buffer.from(bytes).toString('base64') });
    if (path.startsWith('/api/models/org/tiny/')) {
      const siblings = [...files].map(([rfilename, { length }]) => ({ rfilename, size: length }));
      return answer(200, JSON.stringify({ siblings }));
    }
    const bytes = files.get(path.split('/').at(-1));
    if (!bytes || !path.startsWith('/org/tiny/resolve/main/')) return answer(401, '');
    const [from, to] = range.slice('bytes='.length).split('-').map(Number);
    return answer(206, bytes.subarray(from, to + 1));
  });
  await page.evaluateOnNewDocument(() => {
    const plain = window.fetch;
    window.fetch = async (input, init) => {
      const url = new URL(input, location.href);
      if (url.hostname !== 'huggingface.co') return plain(input, init);
      const { status, body } = await window.hubAnswers(url.pathname, init.headers.Range ?? '');
      return new Response(Uint8Array.from(atob(body), (char) => char.charCodeAt(0)), { status });
    };
  });
  page.on('request', (request) => {
    if (new URL(request.url()).hostname === 'huggingface.co') asked.push(`past the test: ${request.url()}`);
  });
  const expected = await commandPlan(`${folder}/shards`, ['--device-memory', 'h100', '--max-seq-len', '512']);
  // A link that names a model on the hub asks nobody yet.
  await page.goto(`${address}#${fragment({ hub: 'org/tiny', device: 'h100', budget: 'max_seq_len = 512\n' })}`);
  assert.match(await refusal(page), /asked only where you say so/);
  assert.deepEqual(asked, []);
  const named = async (name) => {
    await page.focus('#zoo');
    await page.$eval('#zoo', (input) => { input.value = ''; });
    await page.type('#zoo', name);
    await page.keyboard.press('Enter');
    await page.waitForFunction((name) => document.querySelector('#error:not([hidden]) pre')?.textContent.includes(`${name} is on`), {}, name);
    await page.click('#error .main');
  };
  await page.click('#error .main');
  await page.waitForFunction(() => document.querySelector('.chosen')?.textContent === 'llama');
  assert.deepEqual((await shownPlan(page)).ledger, expected.ledger);
  assert.ok(asked.some((line) => /^\/org\/tiny\/resolve\/main\/model-00001-of-00002.safetensors bytes=0-/.test(line)), asked.join('\n'));
  assert.ok(!asked.some((line) => line.startsWith('past')), asked.join('\n'));
  assert.ok((await page.evaluate(() => location.hash)).includes('hub=org'));
  await named('org/closed');
  await page.waitForFunction(() => document.querySelector('#error pre')?.textContent.includes('not open to all'));
  await context.close();
});

test('a draft model is planned with the other', async ({ address }) => {
  const [own, draft] = ['Qwen/Qwen3-8B', 'Qwen/Qwen3-0.6B'].map((name) => (MODELS.includes(name) ? name : 'Qwen/Qwen3-8B'));
  const flags = ['--draft', fileOf(draft).pathname, '--draft-tokens', '4', '--device-memory', 'h100', '--max-seq-len', '8192'];
  const expected = await commandPlan(fileOf(own).pathname, flags);
  await open(address, fragment({ zoo: own, device: 'h100', budget: 'max_seq_len = 8192\n' }), async (page) => {
    await settled(page);
    await page.$$eval('#change details summary', (all) => all.find((one) => one.textContent === 'Draft model').click());
    await page.type('#draft-zoo', draft);
    await page.keyboard.press('Tab');
    await page.waitForFunction(() => document.querySelector('#toml').value.includes('draft_tokens = 4'));
    await page.waitForFunction(() => location.hash.includes('draft.zoo='));
    const shown = await shownPlan(page);
    assert.deepEqual([shown.pools, shown.ledger, shown.capacity], [expected.pools, expected.ledger, expected.capacity]);
    await page.$$eval('#change details button', (all) => all.find((one) => one.textContent === 'Without a draft model').click());
    await page.waitForFunction(() => !document.querySelector('#toml').value.includes('draft_tokens'));
  });
});

test('a GGUF file is read in the page', async ({ address }) => {
  const files = (await readdir(new URL('tests/fixtures/gguf/', TOP), { recursive: true })).filter((name) => name.endsWith('.gguf'));
  assert.ok(files.length > 0);
  const file = new URL(`tests/fixtures/gguf/${files.sort()[0]}`, TOP).pathname;
  const expected = await commandPlan(file, ['--device-memory', 'h100', '--max-seq-len', '32768']);
  await open(address, fragment({ zoo: SMALL, device: 'h100' }), async (page) => {
    await settled(page);
    await (await page.$('#files')).uploadFile(file);
    await page.waitForFunction((type) => document.querySelector('.chosen')?.textContent === type, {}, expected.model.type);
    const shown = await shownPlan(page, expected.model.type);
    assert.deepEqual(shown.pools, expected.pools);
  });
});

test('a slider changes the TOML, the TOML changes the slider', async ({ address }) => {
  await open(address, fragment({ zoo: NANO, device: 'b200', budget: '# mine\nmax_seq_len = 32768\n' }), async (page) => {
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
      const answered = () => !document.querySelector('#error').hidden || document.querySelector('.chosen')?.textContent !== 'Qwen/Qwen3-Next-80B-A3B-Thinking';
      await page.waitForFunction(answered, { timeout: 20000 });
      assert.equal(await page.$$eval('main img, main script, main iframe', (found) => found.length), 0);
      assert.ok(['1', '2'].every((bad) => bad !== title));
    });
  }
});

test('every part answers: capacity, devices, prefix cache, flags, reasons', async ({ address, screenshots }) => {
  await open(address, fragment({ zoo: NANO, device: 'h100', 'fit.prices': 'h100=2.5 h200=3.5' }), async (page) => {
    await settled(page);
    for (const [id, wanted] of [['capacity', 'svg.chart'], ['fit', '.heat .part'], ['prefix', 'svg.chart'], ['tiers', 'svg.chart'], ['flags', '.file']]) {
      await page.$eval(`#${id}`, (section) => section.scrollIntoView());
      await page.waitForSelector(`#${id} ${wanted}`, { timeout: 60000 });
    }
    assert.deepEqual(await crowded(page), []);
    assert.match(await page.$eval('#flags .file', (pre) => pre.textContent), /max-num-seqs|max_num_seqs/);
    await page.$eval('#map', (section) => section.scrollIntoView());
    // By keyboard: into the pools' layers, with the reason for one.
    const into = async (name) => {
      await page.$eval(`.map [aria-label^="${name}:"]`, (cell) => cell.focus());
      await page.keyboard.press('Enter');
    };
    await into('kv_paged.0');
    await page.waitForSelector('.map [aria-label^="layer 5:"]');
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
    const nameless = await page.$$eval('button, input, select, textarea, summary, .part', (elements) =>
      elements
        .filter((element) => !element.closest('[hidden]'))
        .filter((element) => !(element.getAttribute('aria-label') || element.textContent.trim() || element.labels?.length))
        .map((element) => element.outerHTML));
    assert.deepEqual(nameless, []);
    const skipped = await page.$$eval('button, input, select, textarea, .part', (elements) => elements.filter((element) => element.tabIndex < 0).length);
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

test('what is refused leaves nothing of the plan before', async ({ address }) => {
  const shown = (page) => page.$$eval('#summary, .outputs section, .said .chosen', (parts) =>
    parts.filter((part) => part.checkVisibility()).map((part) => part.id || part.className));
  await open(address, '', async (page) => {
    await settled(page);
    // No plan: its model stays, and the devices that would hold it.
    await page.evaluate((hash) => { location.hash = hash; }, fragment({ device: '1GiB', as: 'plan' }));
    assert.match(await refusal(page), /exit code 3/);
    assert.deepEqual(await shown(page), ['summary', 'why', 'chosen', 'change', 'fit']);
    assert.match(await page.$eval('#summary', (card) => card.textContent), /^No, it does not fit: short of [\d.]+ \w+, in the planner’s own pools/);
    // No model: nothing stays.
    await page.$eval('#pasted', (area) => {
      area.value = '{';
      area.dispatchEvent(new Event('change'));
    });
    await page.waitForFunction(() => document.body.classList.contains('unread'));
    assert.deepEqual(await shown(page), []);
  });
});

test('several devices are shown as the ranks that they are', async ({ address }) => {
  await open(address, fragment({ zoo: 'Qwen/Qwen3-32B', device: '8xh100' }), async (page) => {
    await settled(page);
    const tp = await page.$eval('#input-Tensor-parallel', (slider) => slider.parentElement.querySelector('output').textContent);
    assert.equal(tp, '8');
    for (const knob of await page.$$eval('#change .knob', (knobs) => knobs.map((knob) => knob.textContent))) {
      assert.doesNotMatch(knob, /parallel\.|--/);
      if (/\b(tp|pp|dp) \d/.test(knob)) assert.match(knob, /^(the same )?\d+ (GPUs|× h100) as /);
    }
  });
});

test('the command serves the same page, with the model that it was given', async () => {
  await withServer([fileOf('Qwen/Qwen3-8B').pathname], async ({ origin, token }) => {
    await open(origin, `token=${token}&device=h100`, async (page) => {
      await settled(page);
      assert.equal(await page.$eval('.chosen', (title) => title.textContent), 'qwen3');
      assert.ok(!(await page.evaluate(() => location.href)).includes(token));
      assert.equal(await page.$$eval('#zoo-names option', (options) => options[0].textContent), 'Qwen__Qwen3-8B.json');
      await page.type('#zoo', fileOf('Qwen/Qwen3-32B').pathname);
      await page.keyboard.press('Enter');
      await page.waitForFunction(() => document.querySelector('.said').textContent.includes('Qwen3-32B'));
      const expected = await commandPlan(fileOf('Qwen/Qwen3-32B').pathname, ['--device-memory', 'h100', '--max-seq-len', '32768']);
      // Of the same type as the one before, whose plan is shown until this one's is there.
      await shownPlan(page);
      const isThere = (tokens) => JSON.parse(document.querySelector('#flags .file').textContent).capacity.tokens === tokens;
      await page.waitForFunction(isThere, { timeout: 30000 }, expected.capacity.tokens);
      assert.deepEqual((await shownPlan(page)).capacity, expected.capacity);
      // A command names models as they lie there.
      assert.match(await asksCommand(page, `vllm serve ${fileOf('Qwen/Qwen3-8B').pathname} --max-model-len 8192`), /Using max model len 8192/);
      // And by how their files are called; what is nowhere is asked for.
      assert.match(await asksCommand(page, 'vllm serve Qwen__Qwen3-8B.json --max-model-len 8192'), /Using max model len 8192/);
      const unknown = await asksCommand(page, 'llama-server -m /nowhere/Qwen3-8B-Q4_K_M.gguf -c 8192');
      assert.match(unknown, /^Its model is \/nowhere\/Qwen3-8B-Q4_K_M\.gguf.*It is Qwen__Qwen3-8B\.json.*no such file/s);
    });
  });
});

test('the sentence is answered: people, GPUs, weights, price', async ({ address }) => {
  await open(address, '', async (page) => {
    await settled(page);
    const verdict = () => page.$eval('#summary .verdict', (said) => said.textContent);
    const becomes = (pattern) => page.waitForFunction((source) => new RegExp(source).test(document.querySelector('#summary').textContent), {}, pattern.source);
    // The engine that is usual answers, from its own row; the planner's own pools stand behind it.
    await becomes(/^Yes, vllm [\d.]+ holds [\d, to]+ .*Capped by.*, most of the caches being KV.*The planner’s own pools hold.*\d/);
    assert.equal(await page.$eval('#by', (select) => select.value), 'vllm');
    await page.$eval('#people', (input) => {
      input.value = '5000';
      input.dispatchEvent(new Event('input'));
    });
    await becomes(/^No, vllm [\d.]+ holds [\d, to]+ of 5,000/);
    const before = await verdict();
    // Twice the GPUs by a step of the slider, with the layout that is theirs.
    await page.focus('#device-slider');
    await page.keyboard.press('ArrowRight');
    await page.waitForFunction((before) => document.querySelector('#summary .verdict').textContent !== before, {}, before);
    assert.equal(await page.$eval('#device-count', (input) => input.value), '4');
    await page.waitForFunction(() => location.hash.includes('device=4xh200'));
    const stored = await verdict();
    const chosen = () => page.$eval('#weights', (select) => select.selectedOptions[0].textContent);
    await page.select('#weights', 'int4');
    await page.waitForFunction((before) => document.querySelector('#summary .verdict').textContent !== before, {}, stored);
    assert.match(await chosen(), /^4-bit, assumed: [\d.]+ GiB$/);
    await page.waitForFunction(() => location.hash.includes('weights=int4'));
    await page.type('#price', '$3.5');
    await page.keyboard.press('Enter');
    await becomes(/\$14\.00 an hour for 4 GPUs, \$[\d.]+ a person; \$[\d.]+ for a million tokens at that bound/);
    // What vLLM holds by itself, and the command that says so.
    await becomes(/Other engines hold.*(\d|none) in sglang [\d.]+/);
    const commands = () => page.$eval('#summary details.of-engines', (told) => told.textContent);
    assert.match(await commands(), /vllm serve CHECKPOINT .*--tensor-parallel-size.*CHECKPOINT: one of this model whose weights take/s);
    await page.select('#weights', 'fp8');
    await becomes(/vllm serve Qwen\/Qwen3-Next-80B-A3B-Thinking .*--quantization fp8/);
    // Another engine's answer as the headline, and the planner's own.
    await page.select('#by', 'sglang');
    await becomes(/^No, sglang [\d.]+ holds [\d, to]+ of 5,000 .*The planner’s own pools hold/);
    await page.waitForFunction(() => location.hash.includes('as=sglang'));
    await page.select('#by', 'plan');
    await becomes(/at once, in .*the planner’s own pools.*Engines themselves hold.* in vllm/);
    // A GGUF file is llama.cpp's, unless somebody names another engine.
    await page.evaluate(() => { location.hash = location.hash.replace('as=plan', 'as=').replace('device=4xh200', 'device=h200').replace('people=5000', 'people=50'); });
    await page.waitForFunction(() => document.querySelector('#by').value === 'vllm' && document.querySelector('#device-count').value === '1');
    await page.select('#weights', 'Q4_K_M');
    await becomes(/^[A-Z][a-z]+, llama\.cpp b\d+ holds/);
    assert.match(await chosen(), /^Q4_K_M of 4\.89 bits each, assumed: [\d.]+ GiB$/);
    assert.equal(await page.$eval('#by', (select) => select.value), 'llama.cpp');
    // What is left to a screen is a key of the budget.
    await page.$eval('#reserve', (input) => {
      input.value = '1.5GiB';
      input.dispatchEvent(new Event('change'));
    });
    await page.waitForFunction(() => document.querySelector('#toml').value.includes("reserve = '1.5GiB'") || document.querySelector('#toml').value.includes('reserve = "1.5GiB"'));
    await page.select('#weights', '');
    await becomes(/^No, vllm/);
    // What is no price is said, and nothing changes.
    await page.$eval('#price', (input) => {
      input.value = '2.5/h';
      input.dispatchEvent(new Event('change'));
    });
    await page.waitForFunction(() => /`2\.5\/h` is no price/.test(document.querySelector('#error:not([hidden])')?.textContent));
    // Weights that are typed stand above those that are chosen, and a choice in their place.
    await page.$$eval('#change .control', (all) => {
      const input = all.find((control) => control.querySelector('label')?.textContent === 'memory.weights').querySelector('input');
      input.value = '90GB';
      input.dispatchEvent(new Event('change'));
    });
    await page.waitForFunction(() => document.querySelector('#weights').selectedOptions[0].textContent === 'as typed: 90GB');
    await page.select('#weights', 'int4');
    await page.waitForFunction(() => document.querySelector('#weights').value === 'int4' && !document.querySelector('#toml').value.includes('90GB'));
    // Prices of several stand in the same place, and are what other devices are chosen of.
    await page.$eval('#price', (input) => {
      input.value = 'h200=3.5, h100=2.5';
      input.dispatchEvent(new Event('change'));
    });
    await page.waitForFunction(() => location.hash.includes('h100%3D2.5'));
    await page.$eval('#fit', (section) => section.scrollIntoView());
    await page.waitForFunction(() => document.querySelector('#fit .heat .part') && !/l40s|mi300x/.test(document.querySelector('#fit .answer').textContent), { timeout: 60000 });
    // The bound is that of as many as are held, and falls with the people who are there.
    const rate = () => page.$eval('#summary', (card) => Number(/([\d,]+) tokens\/s/.exec(card.textContent)[1].replaceAll(',', '')));
    const all = await rate();
    await page.$eval('#people', (input) => {
      input.value = '2';
      input.dispatchEvent(new Event('input'));
    });
    await becomes(/^Yes.*tokens\/s for all 2;/);
    assert.ok((await rate()) < all);
  });
});

test('what another layout of the same GPUs holds is said, and a click takes it', async ({ address }) => {
  // Four heads of keys and values: eight ranks hold each twice.
  await open(address, fragment({ zoo: 'Qwen/Qwen3-30B-A3B', device: '8xh100', people: '150', as: 'plan' }), async (page) => {
    await page.waitForSelector('#summary .otherwise .layout', { timeout: 60000 });
    const verdict = () => page.$eval('#summary .verdict', (said) => said.textContent);
    assert.match(await verdict(), /^Yes, divided otherwise: as tp 8 it holds \d+ of 150\.$/);
    const promised = /hold ([\d,]+)$/.exec(await page.$eval('#summary .otherwise', (said) => said.textContent))[1];
    await page.click('#summary .otherwise .layout');
    await page.waitForFunction(() => /^Yes, it holds/.test(document.querySelector('#summary .verdict').textContent));
    assert.ok((await verdict()).includes(`it holds ${promised} `), `${promised}: ${await verdict()}`);
  });
});

test('words say what they mean by keyboard, within the page', async ({ address }) => {
  for (const width of [1280, 390]) {
    await open(address, '', async (page) => {
      await settled(page);
      // Engines answer later, one and then all, and are drawn anew.
      await page.waitForFunction(
        () => /Other engines hold/.test(document.querySelector('#summary').textContent) && !document.querySelector('#summary.waits'),
        { timeout: 30000 },
      );
      const count = await page.$$eval('#summary .term', (terms) => terms.length);
      assert.ok(count >= 4);
      for (let at = 0; at < count; at += 1) {
        const [shown, within] = await page.$$eval('#summary .with-tip', (all, at) => {
          all[at].querySelector('.term').focus();
          const { left, right } = all[at].querySelector('.tip').getBoundingClientRect();
          return [right > left, left >= 0 && right <= document.documentElement.clientWidth];
        }, at);
        assert.ok(shown && within, `${at} at ${width}: shown ${shown}, within ${within}`);
        await page.keyboard.press('Escape');
        assert.equal(await page.$$eval('#summary .tip', (tips, at) => tips[at].checkVisibility(), at), false);
      }
    }, { width });
  }
});

test('two stand side by side, and a link holds both', async ({ address, screenshots }) => {
  let link;
  const cards = (page) => page.$$eval('#answers .card', (all) => all.filter((card) => card.checkVisibility()).map((card) => card.querySelector('.verdict').textContent));
  await open(address, fragment({ zoo: 'Qwen/Qwen3-32B', device: 'h100' }), async (page) => {
    await settled(page);
    await page.click('#set-beside');
    await page.waitForSelector('#beside-card .verdict b');
    const two = await cards(page);
    assert.equal(two.length, 2);
    assert.notEqual(two[0], two[1]);
    await page.waitForFunction(() => location.hash.includes('beside.device=2xh100'));
    link = await page.evaluate(() => location.hash.slice(1));
    await screenshots(page, 'beside');
  });
  await open(address, link, async (page) => {
    await page.waitForSelector('#beside-card .verdict');
    await page.$$eval('#ask button', (buttons) => buttons.find((button) => button.textContent === 'Take it away').click());
    await page.waitForFunction(() => !location.hash.includes('beside'));
    assert.equal((await cards(page)).length, 1);
  });
});

/** Asks about a command in the page, and waits for its answer. */
async function asksCommand(page, text) {
  await page.$$eval('#ways button', (buttons) => buttons[1].click());
  await page.$eval('#command .answer', (answer) => answer.replaceChildren());
  await page.$eval('#command-text', (area, text) => {
    area.value = text;
    area.dispatchEvent(new Event('input'));
  }, text);
  await page.waitForSelector('#command .answer .verdict', { timeout: 30000 });
  return page.$eval('#command .answer', (answer) => answer.textContent);
}

test('a command is answered as the command line does, and its secrets are not shown', async ({ address, screenshots }) => {
  const words = (model) => `HF_TOKEN=sesame1 vllm serve ${model} --max-model-len 16384 --api-key sesame2`;
  const file = `${folder}/serve.sh`;
  await writeFile(file, words(fileOf('Qwen/Qwen3-8B').pathname));
  const { stdout } = await run(COMMAND, ['plan', file, '--device-memory', 'h100']);
  const expected = /\nLOG\n((?: {2}.*\n)+)/.exec(stdout)[1].split('\n').map((line) => line.trim()).join('\n').trim();
  await open(address, fragment({ zoo: SMALL, device: '2xh100' }), async (page) => {
    await settled(page);
    const said = await asksCommand(page, words('Qwen/Qwen3-8B'));
    assert.match(said, /^Yes, it starts/);
    assert.equal(await page.$eval('#command .log', (log) => log.textContent), expected);
    assert.ok(!said.includes('sesame') && said.includes('<hidden>'), said);
    assert.ok(!(await page.evaluate(() => location.href)).includes('sesame'));
    await screenshots(page, 'command');
    // What would change it goes into the field, and is answered.
    await page.$eval('#command .answer', (answer) => answer.querySelector('.changes button').click());
    await page.waitForFunction((before) => document.querySelector('#command .log')?.textContent !== before, {}, expected);
    assert.ok(!(await page.$eval('#command-text', (area) => area.value)).includes('sesame'));
    // What its parser refuses is said in its words, with the nearest that starts.
    const refused = await asksCommand(page, 'vllm serve Qwen/Qwen3-8B --max-model-lenn 16384');
    assert.match(refused, /^No, it would not start/);
    assert.match(refused, /unrecognized arguments: --max-model-lenn/);
    assert.match(refused, /vllm serve Qwen\/Qwen3-8B --max-model-len 16384/);
    // What an answer hangs on is said: to this parser 16k is 16.
    // What it holds is said as the text below says it.
    await asksCommand(page, 'llama-server -m google/gemma-3-1b-it -np 1 -c 131072');
    assert.match(await page.$eval('#command .facts-row', (facts) => facts.textContent), /^Holds.*1 sequence of 32768 tokens/);
    assert.match(await asksCommand(page, 'llama-server -m Qwen/Qwen3-8B -c 16k -np 4'), /Caution: --ctx-size 16k is 16 to its parser/);
    const none = page.waitForFunction(() => /no command that starts an engine/.test(document.querySelector('#error:not([hidden])')?.textContent));
    await page.$eval('#command-text', (area) => {
      area.value = 'echo hello';
      area.dispatchEvent(new Event('input'));
    });
    await none;
    assert.equal(await page.$eval('#command .answer', (answer) => answer.textContent), '');
  });
});

test('a command of a file that is not here is answered with its config, its weights and what others take', async ({ address }) => {
  const command = 'llama-server -m /models/Qwen3-8B-Q4_K_M.gguf -c 32768 -np 1';
  const flags = ['--device', 'rtx-4090', '--weights', '5GB', '--reserve', '1GiB', '--model-config', fileOf(SMALL).pathname];
  const { stdout } = await run(COMMAND, ['plan', ...flags, '--', ...command.split(' ')]);
  const expected = /\nLOG\n((?: {2}.*\n)+)/.exec(stdout)[1].split('\n').map((line) => line.trim()).join('\n').trim();
  const log = () => page.$eval('#command .log', (log) => log.textContent);
  let page;
  await open(address, fragment({ zoo: SMALL, device: 'h100' }), async (opened) => {
    page = opened;
    await settled(page);
    assert.match(await asksCommand(page, command), /Its model is \/models\/Qwen3-8B-Q4_K_M\.gguf/);
    await page.$$eval('#command .answer button', (buttons) => buttons.find((button) => button.textContent === 'It is Qwen3-8B').click());
    await page.waitForSelector('#command .log');
    for (const [id, value] of [['device', 'rtx-4090'], ['weights', '5GB'], ['reserve', '1GiB']]) {
      await page.$eval(`#command-${id}`, (field, value) => {
        field.value = value;
        field.dispatchEvent(new Event('change'));
      }, value);
    }
    await page.waitForFunction((expected) => document.querySelector('#command .log')?.textContent === expected, {}, expected).catch(() => undefined);
    assert.equal(await log(), expected);
    // An edit of the command keeps what was said beside it.
    assert.match(await asksCommand(page, command.replace('32768', '16384')), /^Yes, it starts/);
  });
  // The line of the command line says the same, but for what is a file of its machine.
  await open(address, fragment({ zoo: SMALL, device: 'h100' }), async (opened) => {
    page = opened;
    await settled(page);
    const line = `cacheplan plan ${flags.join(' ')} --strict -- ${command}`;
    const said = await asksCommand(page, line);
    assert.match(said, /^Not taken of the line of cacheplan: --strict/);
    assert.equal(await log(), expected);
  });
});

test('a manifest is dropped, its options and its model after it', async ({ address }) => {
  const compose = 'services:\n  one:\n    image: vllm/vllm-openai:v0.33.0\n    command: --model org/mine --config options.yaml\n';
  const config = await readFile(fileOf('Qwen/Qwen3-8B'), 'utf8');
  await open(address, fragment({ zoo: SMALL, device: 'h100' }), async (page) => {
    await settled(page);
    const drop = (name, text) => page.evaluate((name, text) => {
      const dataTransfer = new DataTransfer();
      dataTransfer.items.add(new File([text], name));
      document.body.dispatchEvent(new DragEvent('drop', { dataTransfer, bubbles: true, cancelable: true }));
    }, name, text);
    const says = (pattern) => page.waitForFunction((source) => new RegExp(source).test(document.querySelector('#command').textContent + document.querySelector('#error:not([hidden])')?.textContent), { timeout: 30000 }, pattern.source);
    await drop('compose.yaml', compose);
    await says(/Its model is org\/mine/);
    await drop('config.json', config);
    await says(/takes options from `options.yaml`; drop that file/);
    await drop('options.yaml', 'max-model-len: 4096\n');
    await says(/Using max model len 4096/);
    assert.match(await page.$eval('#command .answer', (answer) => answer.textContent), /^Yes, it starts.*vllm 0\.33\.0.*config\.json, for org\/mine/s);
    assert.ok(await page.$eval('#error', (error) => error.hidden));
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
