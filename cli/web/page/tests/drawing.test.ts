import { expect, test } from 'vitest';
import { needed, nameOf } from '../src/hub';
import { isCommand } from '../src/command';
import { changeOf, inWords, proposed } from '../src/change';
import { byRules, priceOf } from '../src/fit';
import { counted, devices, devicesText, price, range, short, tokensOf } from '../src/format';
import { chosenBy, inOrder, isOfModel, meantBy, placeNamed } from '../src/model';
import { rates } from '../src/prefix';
import { isTrace, rateOf } from '../src/tiers';

test('names on the hub are read as the command reads them', () => {
  expect(nameOf('org/name')).toEqual({ model: 'org/name', revision: 'main', file: null });
  expect(nameOf(' org/name/sub/m.gguf@pr/1 ')).toEqual({ model: 'org/name', revision: 'pr/1', file: 'sub/m.gguf' });
  for (const text of ['', 'name', 'org/', 'org/../x', 'org/name@', 'org/na me', 'org/name@a@b', 'https://huggingface.co/org/name', 'org/name?x']) {
    expect(nameOf(text)).toBeNull();
  }
});

test('of a model on the hub what tells its plan is read', () => {
  const shards = ['model-00001-of-00002.safetensors', 'model-00002-of-00002.safetensors'];
  expect(needed(['README.md', 'config.json', 'model.safetensors.index.json', ...shards, 'original/x.safetensors'], null)).toEqual([
    'model.safetensors.index.json', 'config.json', ...shards,
  ]);
  expect(needed(['model.safetensors', 'config.json'], null)).toEqual(['model.safetensors', 'config.json']);
  expect(needed(['config.json', 'pytorch_model.bin'], null)).toEqual(['config.json']);
  expect(needed(['m.gguf'], 'm.gguf')).toEqual(['m.gguf']);
});

test('weights are read before what lies beside them, and what names shards before those', () => {
  const order = (...names: string[]) => inOrder(names.map((name) => ({ name }))).map(({ name }) => name);
  expect(order('config.json', 'model.safetensors')).toEqual(['model.safetensors', 'config.json']);
  const [index, shard] = ['model.safetensors.index.json', 'model-00001-of-00002.safetensors'];
  expect(order(shard!, 'config.json', index!)).toEqual([index, 'config.json', shard]);
  expect(() => order('config.json', shard!)).toThrow('drop model.safetensors.index.json');
  expect(order('b-00002-of-00002.gguf', 'b-00001-of-00002.gguf')[0]).toBe('b-00001-of-00002.gguf');
});

test('a trace is told from a config, and a hit rate is read as people write it', () => {
  expect(isTrace('{"timestamp": 1, "input_length": 512, "output_length": 8, "hash_ids": [7]}\n{}')).toBe(true);
  expect(isTrace(' {"prompt": [{"id": 1, "len": 9}], "output": {"id": 2, "len": 1}}')).toBe(true);
  expect(isTrace('{"model_type": "llama"}')).toBe(false);
  expect(isTrace('{\n  "prompt": 1\n}')).toBe(false);
  expect([rateOf('0.6'), rateOf('60 %'), rateOf('7.5%')]).toEqual([0.6, 0.6, 0.075]);
  expect(() => rateOf('much')).toThrow('0.6 is one');
});

test('what was simulated is drawn policy by policy', () => {
  const one = (checkpoints: number) => ({
    policies: ['a', 'b'].map((policy, at) => ({ policy, points: [{ checkpoints, hit_rate: at / checkpoints, kv_hit_rate: 1 }] })),
    planned: 4,
    states: true,
    reuse: '',
  });
  expect(rates([one(1), one(4)])).toEqual([['a', [[1, 0], [4, 0]]], ['b', [[1, 1], [4, 0.25]]]]);
});

test('changes that the planner proposes are read, and said for people', () => {
  const parallel = { tp: 2, pp: 1, dp: 1, cp: 1 };
  const said = (text: string) => inWords(changeOf(text)!, parallel);
  expect(changeOf('--device-memory 4xh200 parallel.tp = 2, parallel.pp = 2')).toEqual({ device: '4xh200', keys: [['parallel.tp', '2'], ['parallel.pp', '2']] });
  expect(said('--device-memory 4xh200 parallel.tp = 2, parallel.pp = 2')).toBe('4 × h200 as tp 2, pp 2');
  expect(said('parallel.pp = 8')).toBe('16 GPUs as pp 8');
  expect(said('dtypes.kv = "f8_e4m3"')).toBe('keys and values as f8_e4m3');
  expect(said('max_seq_len = 16384')).toBe('16k tokens each');
  expect(said('memory.reserve = "1GiB"')).toBe('memory.reserve = "1GiB"');
  expect(changeOf('run fewer sequences')).toBeNull();
  const message = 'does not fit: x\n  try max_seq_len = 2048: 3 sequence(s), 1 GiB\n  try --device-memory 2xh100 parallel.tp = 2: 9';
  expect(proposed(message)).toEqual([
    { change: 'max_seq_len = 2048', rest: '3 sequence(s), 1 GiB' },
    { change: '--device-memory 2xh100 parallel.tp = 2', rest: '9' },
  ]);
});

test('what is typed into the sentence is a model of the zoo, a name on the hub, or a path', () => {
  const zoo = ['Qwen/Qwen3-8B', 'Qwen/Qwen3-32B'];
  expect(chosenBy('qwen/qwen3-32b', zoo, false)).toEqual({ from: 'zoo', name: 'Qwen/Qwen3-32B' });
  expect(chosenBy('qwen3 32', zoo, true)).toEqual({ from: 'zoo', name: 'Qwen/Qwen3-32B' });
  expect(chosenBy('Qwen/Qwen3', zoo, false)).toEqual({ from: 'hub', name: 'Qwen/Qwen3', asked: false });
  expect(chosenBy('/models/mine', zoo, true)).toEqual({ from: 'path', path: '/models/mine' });
});

test('files are of a model or hold commands', () => {
  expect(['vllm serve m', 'x: 1', '{"vllm": 1}', 'services:\n  a: 1', 'kind: Pod\napiVersion: v1'].map(isCommand)).toEqual([true, false, false, true, true]);
  expect(['a.gguf', 'config.JSON', 'serve.sh', 'compose.yaml'].map((name) => isOfModel({ name }))).toEqual([true, true, false, false]);
});

test('counts of devices, tokens and prices are said as people do', () => {
  expect([devices('8xh100'), devices('h100'), devices('24GiB')]).toEqual([{ count: 8, name: 'h100' }, { count: 1, name: 'h100' }, { count: 1, name: '24GiB' }]);
  expect([devicesText(8, 'h100'), devicesText(1, 'h100'), devicesText(2, '')]).toEqual(['8xh100', 'h100', '']);
  expect([short(32768), short(1 << 20), short(1000), short(1536)]).toEqual(['32k', '1m', '1,000', '1,536']);
  expect(['32k', '1,000', '2M', '8kb', ''].map(tokensOf)).toEqual([32768, 1000, 2 << 20, null, null]);
  expect([price(3.5, '$'), price(3.5), price(0.035, '€')]).toEqual(['$3.50', '3.50', '€0.035']);
  expect([counted(1, 'sequence'), counted(1200, 'sequence')]).toEqual(['1 sequence', '1,200 sequences']);
  expect([range({ low: 2, high: 2 }), range({ low: 0, high: 0 }), range({ low: 97, high: 1030 })]).toEqual(['2', 'none', '97 to 1,030']);
  expect(priceOf('h100=2', 'H100')).toBe(2);
  expect(priceOf('h100=2', 'b200')).toBeNull();
});

test('a file of weights is of the model that its name begins with', () => {
  const zoo = ['Qwen/Qwen3-8B', 'Qwen/Qwen3-32B', 'google/gemma-3-1b-it'];
  const places = [{ name: 'Qwen__Qwen3-8B.json', path: '/m/Qwen__Qwen3-8B.json', named: true }, { name: 'a/b', path: '/cache/snapshots/0f', named: false }];
  expect(meantBy('/m/Qwen3-8B-Q4_K_M.gguf', zoo, [])).toEqual([{ from: 'zoo', name: 'Qwen/Qwen3-8B' }]);
  expect(meantBy('gemma-3-1b-it-Q8_0-00001-of-00002.gguf', zoo, places)).toEqual([{ from: 'zoo', name: 'google/gemma-3-1b-it' }]);
  expect(meantBy('Qwen3-8B-Q4_K_M.gguf', zoo, places)[0]).toEqual({ from: 'path', path: '/m/Qwen__Qwen3-8B.json' });
  expect(meantBy('mistral.gguf', zoo, places)).toEqual([]);
  for (const name of ['Qwen__Qwen3-8B.json', '/m/Qwen__Qwen3-8B.json', 'Qwen/Qwen3-8B', 'elsewhere/Qwen__Qwen3-8B.json']) {
    expect(placeNamed(name, places)).toEqual({ from: 'path', path: '/m/Qwen__Qwen3-8B.json' });
  }
  expect(placeNamed('Qwen3-8B-Q4_K_M.gguf', places)).toBeNull();
});

test('it is said by whose rules devices are chosen', () => {
  const rows = (...engines: (string | null)[]) => byRules(engines.map((engine) => ({ engine })));
  expect(rows(null)).toContain('planner’s own pools');
  expect(rows('vllm@0.33.0', 'llama.cpp@b11549', 'vllm@0.33.0')).toContain('rules of vllm@0.33.0 and llama.cpp@b11549,');
});
