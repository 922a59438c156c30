import { describe, expect, test } from 'vitest';
import { apart } from '../src/chart';
import { onColour, poolColour } from '../src/colours';
import { areas, cells } from '../src/treemap';
import { alike } from '../src/strip';
import type { Plan, Planned } from '../src/types';

const whole = { x: 3, y: 5, width: 700, height: 400 };

describe('areas', () => {
  test.each([[[1]], [[6, 6, 4, 3, 2, 2, 1]], [[58, 9, 2, 0.04, 0, 8]], [Array.from({ length: 300 }, () => 1)]])('%# fill the whole', (sizes) => {
    const found = areas(sizes, whole);
    const covered = found.reduce((sum, { width, height }) => sum + width * height, 0);
    expect(covered).toBeCloseTo(whole.width * whole.height, 3);
    for (const { x, y, width, height } of found) {
      expect(x).toBeGreaterThanOrEqual(whole.x - 1e-6);
      expect(y).toBeGreaterThanOrEqual(whole.y - 1e-6);
      expect(x + width).toBeLessThanOrEqual(whole.x + whole.width + 1e-6);
      expect(y + height).toBeLessThanOrEqual(whole.y + whole.height + 1e-6);
    }
    for (const [at, one] of found.entries()) {
      for (const other of found.slice(at + 1)) {
        const wide = Math.min(one.x + one.width, other.x + other.width) - Math.max(one.x, other.x);
        const high = Math.min(one.y + one.height, other.y + other.height) - Math.max(one.y, other.y);
        expect(Math.min(wide, high)).toBeLessThan(1e-6);
      }
    }
  });

  test('are in proportion', () => {
    const [large, small] = areas([3, 1], whole);
    expect((large!.width * large!.height) / (small!.width * small!.height)).toBeCloseTo(3);
  });
});

test('names of lines never overlap and stay inside', () => {
  for (const ends of [[50, 50, 50], [10, 300, 299, 298, 301], [0, 1, 2, 3, 4, 5, 6]]) {
    const places = apart(ends, 15, 20, 300).sort((left, right) => left - right);
    places.slice(1).forEach((place, at) => expect(place - places[at]!).toBeGreaterThanOrEqual(15 - 1e-9));
    expect(places.at(-1)).toBeLessThanOrEqual(300);
  }
});

test('pools have colours of their own, on which text can be read', () => {
  const fills = Array.from({ length: 24 }, (_, place) => poolColour(place));
  expect(new Set(fills).size).toBe(24);
  expect(fills.every((fill) => /^#[0-9a-f]{6}$/.test(fill))).toBe(true);
  expect([onColour('#ffffff'), onColour('#000000'), onColour('#0072b2')]).toEqual(['#000000', '#ffffff', '#ffffff']);
});

const pool = (id: string, owner: string, bytes: number, members: string[]) => ({
  id, owner, unit: 'block', unit_bytes: bytes / 2, units: 2, bytes, layers: members.map((_, at) => at), dtype: 'bf16',
  tokens_per_block: 16, members: members.map((resource, at) => ({ resource, offset: at, bytes: bytes / 2 / members.length })),
});
const resource = (name: string, layer: number, of: string, owner = 'kv_cache_manager') => ({
  name, layer, kind: 'kv_paged', owner, pool: of, dtype: 'bf16', bytes_per_token: 1, bytes_per_sequence: 0, bytes_fixed: 0,
  reason: 'first of its kind', source: 'exact', shared_by: name === 'kv_0' ? [3] : [],
});
const plan: Plan = {
  model: { type: 'x', layers: 4, dtype: 'bf16' },
  limits: { max_seq_len: 1, max_batch_size: 1, max_num_tokens: 1 },
  resources: [resource('kv_0', 0, 'kv_paged.0'), resource('kv_1', 1, 'kv_paged.0'), resource('own', 2, 'own', 'local')],
  pools: [pool('kv_paged.0', 'kv_cache_manager', 400, ['kv_0', 'kv_1']), pool('own', 'local', 100, ['own'])],
  ledger: [
    { name: 'weights', bytes: 300, source: 'exact', note: '' },
    { name: 'kv_paged.0', bytes: 400, source: 'exact', note: '' },
    { name: 'local', bytes: 100, source: 'exact', note: '' },
    { name: 'unused', bytes: 20, source: 'exact', note: '' },
  ],
  capacity: { tokens: 1, sequences: 1, tokens_per_sequence: 1, capped_by: 'memory' },
  totals: { kv_bytes_per_token: 1, state_bytes_per_sequence: 0 },
};

test('every byte of the ledger and of the device is in the map', () => {
  const planned = { plan, device: { name: 'A', total_bytes: 1000 } } as Planned;
  const root = cells(planned);
  expect(root.bytes).toBe(1000);
  expect(root.children!.map(({ name, bytes }) => [name, bytes])).toEqual([['weights', 300], ['left to others', 180], ['caches', 520]]);
  const caches = root.children!.at(-1)!.children!;
  expect(caches.map(({ name, bytes }) => [name, bytes])).toEqual([['kv_paged.0', 400], ['own', 100], ['unused', 20]]);
  expect(caches[0]!.children!.map(({ name, bytes }) => [name, bytes])).toEqual([['layer 0', 200], ['layer 1', 200]]);
});

test('layers that are alike are one group, those that read another and those without cache too', () => {
  const layers = ['attention', 'attention', 'mamba', 'attention'].map((kind) => ({ kind, blocks: [kind], window: null, shares: null }));
  const groups = alike(plan, layers);
  expect(groups.map((group) => group.layers)).toEqual([[0, 1], [2], [3]]);
  expect(groups.map((group) => group.bytes)).toEqual([200, 100, 0]);
  expect(groups[2]!.mark).toBe('↑');
});
