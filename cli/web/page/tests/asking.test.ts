import { expect, test } from 'vitest';
import { bytes, plain } from '../src/format';
import { currencyOf, prices, tried } from '../src/fit';
import { Model } from '../src/model';
import { Planner, Refused, encode } from '../src/planner';
import { START, fromFragment, toFragment, type State } from '../src/state';

test('a link holds a whole state', async () => {
  const state: State = {
    chosen: { from: 'text', name: 'my config.json', text: '{"model_type": "llama", "x": "é&=#"}' },
    draft: { from: 'hub', name: 'org/small@main', asked: false },
    people: 7,
    device: '8xh100',
    by: 'llama.cpp',
    weights: 'Q4_K_M',
    budget: "max_seq_len = 8192 # a & b\n[dtypes]\nkv = 'fp8'\n",
    stage: 2,
    beside: { chosen: { from: 'zoo', name: 'a/b' }, device: '2xb200' },
    workload: 'rag',
    tiers: { host: '', disk: '2TiB', hit: '0.6' },
    fit: { devices: 'h100', most: 3, prices: 'h100=2.5' },
  };
  expect(await fromFragment(await toFragment(state))).toEqual(state);
  const path: State = { ...START, chosen: { from: 'path', path: '/a b/c' } };
  expect(await fromFragment(await toFragment(path))).toEqual(path);
});

test('what a link does not say, or says wrongly, is as at the start', async () => {
  expect(await fromFragment('')).toEqual(START);
  expect(await fromFragment('stage=-1&fit.most=x&people=0')).toEqual({ ...START, people: 1 });
});

test('a link that unpacks to more than any config is refused', async () => {
  const large = await toFragment({ ...START, chosen: { from: 'text', name: 'c', text: ' '.repeat(9 << 20) } });
  await expect(fromFragment(large)).rejects.toThrow('too long');
});

test('a question is its length, its text and its bytes', async () => {
  const question = new Uint8Array(await encode({ ask: 'é' }, [new Uint8Array([1, 2])]).arrayBuffer());
  const text = new TextEncoder().encode('{"ask":"é"}');
  expect([...question]).toEqual([text.length, 0, 0, 0, ...text, 1, 2]);
});

test('files are read by the slices that the planner asks for', async () => {
  const asked: { slices: [number, number][] }[] = [];
  const planner = new Planner(async (question) => {
    const bytes = new Uint8Array(await question.arrayBuffer());
    const length = new DataView(bytes.buffer).getUint32(0, true);
    const { files } = JSON.parse(new TextDecoder().decode(bytes.slice(4, 4 + length)));
    asked.push(files[0]);
    return JSON.stringify(asked.length < 3 ? { missing: { file: 0, offset: 1 << 20, length: 10 } } : { model: 7 });
  });
  const model = Model.of({ from: 'files', files: [new File([new Uint8Array(2 << 20)], 'm.gguf')] }, {}, false);
  expect((await model.opened(planner)).model).toBe(7);
  expect(asked.map(({ slices }) => slices.length)).toEqual([1, 2, 3]);
  expect(asked[2]!.slices.slice(0, 2)).toEqual([[0, 1 << 18], [1 << 20, 10]]);
});

test('a model that a planner forgot is opened again, once', async () => {
  let opened = 0;
  const planner = new Planner(async (question) => {
    const text = await question.text();
    if (text.includes('"open"')) return JSON.stringify({ model: (opened += 1) });
    return JSON.stringify(text.includes('"model":1') ? { error: { message: 'gone', code: 0 } } : { answer: text.includes('"model":2') });
  });
  const model = Model.of({ from: 'text', name: 'c', text: '{}' }, {}, false);
  expect(await model.ask(planner, (number) => ({ ask: 'plan', model: number }))).toEqual({ answer: true });
  expect(opened).toBe(2);
});

test('the hub is asked only where somebody says so', async () => {
  const planner = new Planner(async () => JSON.stringify({ model: 1 }));
  expect(() => Model.of({ from: 'hub', name: 'org/name', asked: false }, {}, false)).toThrow('asked only where you say so');
  // Behind the command it is that which knows names.
  const asked: string[] = [];
  const command = new Planner(async (question) => {
    asked.push(await question.text());
    return JSON.stringify({ model: 1 });
  });
  await Model.of({ from: 'hub', name: 'org/name', asked: false }, {}, true).opened(command);
  expect(asked[0]).toContain('{"ask":"open_path","path":"org/name"}');
  expect((await Model.of({ from: 'text', name: 'c', text: '{}' }, {}, false).opened(planner)).model).toBe(1);
});

test('an error is one with its exit code', async () => {
  const planner = new Planner(async () => JSON.stringify({ error: { message: 'does not fit', code: 3 } }));
  await expect(planner.ask({})).rejects.toSatisfy((error) => error instanceof Refused && error.failure.code === 3);
});

test('numbers are written as the command writes them', () => {
  expect([bytes(0), bytes(1023), bytes(1024), bytes(63155874688)]).toEqual(['0 B', '1023 B', '1.00 KiB', '58.82 GiB']);
});

test('prices and values are read as they are typed', () => {
  expect(prices('h100=2.5, H200=3 x=-1 y= z=a w=2.5/h')).toEqual({ h100: 2.5, h200: 3 });
  expect(prices('h100=$2.5 h200=$3.5')).toEqual({ h100: 2.5, h200: 3.5 });
  expect(['h100=$2.5 h200=$3.5', 'h100=2.5', ''].map(currencyOf)).toEqual(['$', '', '']);
  expect(tried({ ...START.fit, prices: 'h100=2 h200=3' })).toEqual(['h100', 'h200']);
  expect([tried(START.fit).length, tried({ ...START.fit, devices: 'b200', prices: 'h100=2' })]).toEqual([5, ['b200']]);
  expect([plain('"fp8"'), plain('8'), plain('{ fixed = 3 }')]).toEqual(['fp8', '8', '{ fixed = 3 }']);
});
