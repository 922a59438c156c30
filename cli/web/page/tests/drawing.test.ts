import { expect, test } from 'vitest';
import { needed, nameOf } from '../src/hub';
import { inOrder } from '../src/model';
import { rates } from '../src/prefix';

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

test('what was simulated is drawn policy by policy', () => {
  const one = (checkpoints: number) => ({
    policies: ['a', 'b'].map((policy, at) => ({ policy, points: [{ checkpoints, hit_rate: at / checkpoints, kv_hit_rate: 1 }] })),
    planned: 4,
    states: true,
    reuse: '',
  });
  expect(rates([one(1), one(4)])).toEqual([['a', [[1, 0], [4, 0]]], ['b', [[1, 1], [4, 0.25]]]]);
});
