// Changes that the planner proposes, in its words: `max_seq_len = 2048`, `--device-memory 4xh100 parallel.tp = 4`.

import { h } from './dom';
import { devices, short } from './format';

export interface Change {
  /** Other devices, where it says any. */
  device: string | null;
  keys: [string, string][];
}

/** What a change says; null where it is none of keys and devices. */
export function changeOf(text: string): Change | null {
  const [, device, rest] = /^(?:--device-memory (\S+) )?(.*)$/s.exec(text)!;
  const keys = rest!.split(/, (?=[a-z_.]+ = )/).map((one) => /^([a-z_.]+) = (.+)$/s.exec(one));
  if (keys.some((key) => key === null)) return null;
  return { device: device ?? null, keys: keys.map((key) => [key![1]!, key![2]!]) };
}

export type Sizes = { tp: number; pp: number; dp: number; cp: number };
export const ONE: Sizes = { tp: 1, pp: 1, dp: 1, cp: 1 };

/** A change for people: a layout with the GPUs that it takes, where `parallel` is how they are divided before. */
export function inWords({ device, keys }: Change, parallel: Sizes): string {
  const isSize = (key: string) => /^parallel\.(tp|pp|dp|cp|ep)$/.test(key);
  const after: Sizes = { ...parallel };
  for (const [key, value] of keys) if (isSize(key) && key !== 'parallel.ep') after[key.slice('parallel.'.length) as keyof Sizes] = Number(value);
  const one = ([key, value]: [string, string]) => {
    if (isSize(key)) return `${key.slice('parallel.'.length)} ${value}`;
    if (key === 'max_seq_len' && /^\d+$/.test(value)) return `${short(Number(value))} tokens each`;
    if (key === 'max_batch_size') return `at most ${value} sequences`;
    if (key === 'dtypes.kv') return `keys and values as ${value.replaceAll('"', '')}`;
    return `${key} = ${value}`;
  };
  const said = keys.map(one).join(', ');
  if (!keys.some(([key]) => isSize(key))) return said;
  const { count, name } = devices(device ?? '');
  const gpus = device === null ? after.tp * after.pp * after.dp * after.cp : count;
  return `${gpus} ${name === '' ? (gpus === 1 ? 'GPU' : 'GPUs') : `× ${name}`} as ${said}`;
}

/** A button that makes the change, or words where it cannot be made here; `rest` follows it. */
export function changeButton(text: string, rest: string, parallel: Sizes, make: (change: Change) => void): HTMLElement {
  const change = changeOf(text);
  if (!change) return h('span', { class: 'note' }, `${text}${rest}`);
  return h('button', { type: 'button', class: 'knob', click: () => make(change) }, `${inWords(change, parallel)}${rest}`);
}

/** What an error proposes, line by line: `  try max_seq_len = 2048: 3 sequence(s), …`. */
export function proposed(message: string): { change: string; rest: string }[] {
  return [...message.matchAll(/^ {2}try ([^:\n]+ = [^:\n]+): (.*)$/gm)].map(([, change, rest]) => ({ change: change!, rest: rest! }));
}
