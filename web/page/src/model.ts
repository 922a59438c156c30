// A model that somebody chose: read by each planner that is asked about it, and again where one forgot it.

import { Refused, type Planner } from './planner';
import type { Opened } from './types';

/** Where a model comes from; all but files can stand in a link. */
export type Chosen =
  | { from: 'zoo'; name: string }
  | { from: 'text'; name: string; text: string }
  | { from: 'path'; path: string }
  | { from: 'files'; files: File[] };

/** What is read of a file before anything is asked for. */
const FIRST = 1 << 18;

/** More slices than this no header needs: each is as long as all before it. */
const MOST_SLICES = 2000;

export class Model {
  private readonly numbers = new Map<Planner, Promise<Opened>>();

  constructor(private readonly open: (planner: Planner) => Promise<Opened>) {}

  static of(chosen: Chosen, zoo: Record<string, string>): Model {
    switch (chosen.from) {
      case 'zoo': {
        const text = zoo[chosen.name];
        if (text === undefined) throw new Refused({ message: `${chosen.name} is not in the zoo`, code: 1 });
        return new Model((planner) => openFiles(planner, [new File([text], `${chosen.name}.json`)]));
      }
      case 'text':
        return new Model((planner) => openFiles(planner, [new File([chosen.text], chosen.name)]));
      case 'path':
        return new Model((planner) => planner.ask<Opened>({ ask: 'open_path', path: chosen.path }));
      case 'files':
        return new Model((planner) => openFiles(planner, inOrder(chosen.files)));
    }
  }

  opened(planner: Planner): Promise<Opened> {
    let opened = this.numbers.get(planner);
    if (!opened) {
      opened = this.open(planner);
      this.numbers.set(planner, opened);
    }
    return opened;
  }

  async ask<T>(planner: Planner, question: (model: number) => object): Promise<T> {
    try {
      return await planner.ask<T>(question((await this.opened(planner)).model));
    } catch (error) {
      if (!(error instanceof Refused) || error.failure.code !== 0) throw error;
      this.numbers.delete(planner);
      return planner.ask<T>(question((await this.opened(planner)).model));
    }
  }
}

/** The model first, what lies beside it after: weights know more than a config does. */
export function inOrder<F extends { name: string }>(files: F[]): F[] {
  const rank = ({ name }: F) => {
    const endings = ['.gguf', '.onnx', '.safetensors', 'config.json', '.json'];
    const found = endings.findIndex((ending) => name.endsWith(ending));
    // Of shards none is the model.
    const shard = name.endsWith('.safetensors') && /-\d+-of-\d+/.test(name);
    return found < 0 || shard ? endings.length : found;
  };
  return [...files].sort((left, right) => rank(left) - rank(right) || left.name.localeCompare(right.name));
}

interface Missing {
  missing: { file: number; offset: number; length: number };
}

/** Reads what the planner asks for, slice by slice: headers are at the front of files of any size. */
async function openFiles(planner: Planner, files: File[]): Promise<Opened> {
  const slices = files.map((file): [number, number][] => (file.size > 0 ? [[0, Math.min(file.size, FIRST)]] : []));
  for (let asked = 0; asked < MOST_SLICES; asked += 1) {
    const described = files.map((file, at) => ({ name: file.name, length: file.size, slices: slices[at] }));
    const bytes = files.flatMap((file, at) => slices[at]!.map(([offset, length]) => file.slice(offset, offset + length)));
    const answer = await planner.ask<Opened | Missing>({ ask: 'open', files: described }, bytes);
    if (!('missing' in answer)) return answer;
    const { file, offset, length } = answer.missing;
    slices[file]!.push([offset, length]);
  }
  throw new Refused({ message: 'the header of this file has no end', code: 1 });
}
