// What a plan is asked with, and the address that holds all of it. It is behind `#`, which no server is told.

import type { Chosen } from './model';

export interface State {
  chosen: Chosen;
  /** The model that drafts for it. */
  draft: Chosen | null;
  /** How many are to be served at once. */
  people: number;
  device: string;
  /** The engine whose answer is the headline, the usual one where it is empty; `plan` for the planner's own. */
  by: string;
  /** What the weights are quantised to, `fp8`; as they are stored where it is empty. */
  weights: string;
  budget: string;
  stage: number;
  /** What is asked beside it: another device, another model where one is named. */
  beside: { chosen: Chosen | null; device: string } | null;
  workload: string;
  /** The most host memory and disk, and the hit rate to reach; nothing where a text is empty. */
  tiers: { host: string; disk: string; hit: string };
  fit: { devices: string; most: number; prices: string };
}

export const START: State = {
  chosen: { from: 'zoo', name: 'Qwen/Qwen3-Next-80B-A3B-Thinking' },
  draft: null,
  people: 100,
  device: '2xh200',
  by: '',
  weights: '',
  budget: 'max_seq_len = 32768\n',
  stage: 0,
  beside: null,
  workload: 'agents',
  tiers: { host: '1TiB', disk: '4TiB', hit: '' },
  fit: { devices: 'l40s h100 h200 b200 mi300x', most: 8, prices: '' },
};

/** The state as the part of an address behind `#`. Files that were dropped cannot stand in it. */
export async function toFragment(state: State): Promise<string> {
  const fields = new URLSearchParams();
  for (const [prefix, chosen] of [['', state.chosen], ['draft.', state.draft], ['beside.', state.beside?.chosen ?? null]] as const) {
    if (chosen?.from === 'zoo') fields.set(`${prefix}zoo`, chosen.name);
    if (chosen?.from === 'path') fields.set(`${prefix}path`, chosen.path);
    if (chosen?.from === 'hub') fields.set(`${prefix}hub`, chosen.name);
    if (chosen?.from === 'text') {
      fields.set(`${prefix}name`, chosen.name);
      fields.set(`${prefix}config`, await packed(chosen.text));
    }
  }
  fields.set('people', String(state.people));
  fields.set('device', state.device);
  if (state.by !== '') fields.set('as', state.by);
  if (state.weights !== '') fields.set('weights', state.weights);
  fields.set('budget', state.budget);
  if (state.stage > 0) fields.set('stage', String(state.stage));
  if (state.beside) fields.set('beside.device', state.beside.device);
  fields.set('workload', state.workload);
  for (const [name, value] of Object.entries(state.tiers)) fields.set(`tiers.${name}`, value);
  for (const [name, value] of Object.entries(state.fit)) if (value !== '') fields.set(`fit.${name}`, String(value));
  return fields.toString();
}

/** The state of an address; what it does not say is as at the start, with the model `first`. */
export async function fromFragment(fragment: string, first = START.chosen): Promise<State> {
  const fields = new URLSearchParams(fragment);
  const number = (name: string, otherwise: number, most: number) => {
    const value = Number(fields.get(name) ?? otherwise);
    return Number.isInteger(value) && value >= 0 && value <= most ? value : otherwise;
  };
  const besides = fields.get('beside.device');
  return {
    chosen: (await chosenOf(fields, '')) ?? first,
    draft: await chosenOf(fields, 'draft.'),
    people: number('people', START.people, 2 ** 32) || 1,
    device: fields.get('device') ?? START.device,
    by: fields.get('as') ?? START.by,
    weights: fields.get('weights') ?? START.weights,
    budget: fields.get('budget') ?? START.budget,
    stage: number('stage', 0, 4096),
    beside: besides === null ? null : { chosen: await chosenOf(fields, 'beside.'), device: besides },
    workload: fields.get('workload') ?? START.workload,
    tiers: {
      host: fields.get('tiers.host') ?? START.tiers.host,
      disk: fields.get('tiers.disk') ?? START.tiers.disk,
      hit: fields.get('tiers.hit') ?? START.tiers.hit,
    },
    fit: {
      devices: fields.get('fit.devices') ?? START.fit.devices,
      most: number('fit.most', START.fit.most, 64),
      prices: fields.get('fit.prices') ?? START.fit.prices,
    },
  };
}

async function chosenOf(fields: URLSearchParams, prefix: string): Promise<Chosen | null> {
  const [zoo, path, hub, config] = ['zoo', 'path', 'hub', 'config'].map((name) => fields.get(`${prefix}${name}`));
  if (zoo) return { from: 'zoo', name: zoo };
  if (path) return { from: 'path', path };
  // Following a link is not yet to ask for what it names.
  if (hub) return { from: 'hub', name: hub, asked: false };
  if (!config) return null;
  return { from: 'text', name: fields.get(`${prefix}name`) ?? 'config.json', text: await unpacked(config) };
}

/** The longest config that a link unpacks to, as the planner reads no longer one. */
const LONGEST_CONFIG = 8 << 20;

async function packed(text: string): Promise<string> {
  const stream = new Blob([text]).stream().pipeThrough(new CompressionStream('deflate-raw'));
  const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  const letters = Array.from(bytes, (byte) => String.fromCharCode(byte)).join('');
  return btoa(letters).replaceAll('+', '-').replaceAll('/', '_').replaceAll('=', '');
}

async function unpacked(text: string): Promise<string> {
  const letters = atob(text.replaceAll('-', '+').replaceAll('_', '/'));
  const bytes = Uint8Array.from(letters, (letter) => letter.charCodeAt(0));
  const reader = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('deflate-raw')).getReader();
  const parts: BlobPart[] = [];
  for (let length = 0; ; ) {
    const { done, value } = await reader.read();
    if (done) return new Blob(parts).text();
    length += value.length;
    if (length > LONGEST_CONFIG) throw new Error('the config in this link is too long');
    parts.push(value as BlobPart);
  }
}
