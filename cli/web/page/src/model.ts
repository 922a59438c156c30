// A model that somebody chose: read by each planner that is asked about it, and again where one forgot it.

import { fromHub } from './hub';
import { hasEnding, type Piece } from './piece';
import { Refused, type Planner } from './planner';
import type { Opened, Place } from './types';

/** Where a model comes from; all but files can stand in a link. */
export type Chosen =
  | { from: 'zoo'; name: string }
  | { from: 'text'; name: string; text: string }
  | { from: 'path'; path: string }
  | { from: 'hub'; name: string; asked: boolean }
  | { from: 'files'; files: File[] };

/** What is read of a file before anything is asked for; of one of several that are alike, and far away, less. */
const FIRST = 1 << 18;
const FIRST_OF_SHARD = 1 << 16;

/** More slices than this no header needs: each is as long as all before it. */
const MOST_SLICES = 20000;

export class Model {
  private readonly numbers = new Map<Planner, Promise<Opened>>();

  constructor(private readonly open: (planner: Planner) => Promise<Opened>) {}

  /** Behind a command that reads this machine's disk, names on the hub are for that. */
  static of(chosen: Chosen, zoo: Record<string, string>, readsDisk: boolean): Model {
    switch (chosen.from) {
      case 'zoo': {
        const text = zoo[chosen.name];
        if (text === undefined) throw new Refused({ message: `${chosen.name} is not in the zoo`, code: 1 });
        return Model.ofFiles([new File([text], `${chosen.name}.json`)]);
      }
      case 'text':
        return Model.ofFiles([new File([chosen.text], chosen.name)]);
      case 'path':
        return new Model((planner) => planner.ask<Opened>({ ask: 'open_path', path: chosen.path }));
      case 'files':
        return Model.ofFiles(inOrder(chosen.files));
      case 'hub': {
        const { name, asked } = chosen;
        if (readsDisk) return Model.of({ from: 'path', path: name }, zoo, readsDisk);
        if (!asked) throw new Refused({ message: `${name} is on huggingface.co, which is asked only where you say so`, code: 1 });
        let pieces: Promise<Piece[]> | null = null;
        return new Model(async (planner) => openPieces(planner, await (pieces ??= fromHub(name))));
      }
    }
  }

  private static ofFiles(files: File[]): Model {
    const pieces = files.map((file) => ({
      name: file.name,
      length: file.size,
      slice: async (offset: number, length: number) => file.slice(offset, offset + length),
    }));
    return new Model((planner) => openPieces(planner, pieces));
  }

  opened(planner: Planner): Promise<Opened> {
    let opened = this.numbers.get(planner);
    if (!opened) {
      opened = this.open(planner);
      this.numbers.set(planner, opened);
    }
    return opened;
  }

  /** Asks about this model, and the one that drafts for it. */
  async ask<T>(planner: Planner, question: (model: number, draft: number | null) => object, draft: Model | null = null, bytes: BlobPart[] = []): Promise<T> {
    const ask = async () => {
      const [own, drafts] = await Promise.all([this.opened(planner), draft?.opened(planner)]);
      return planner.ask<T>(question(own.model, drafts?.model ?? null), bytes);
    };
    try {
      return await ask();
    } catch (error) {
      if (!(error instanceof Refused) || error.failure.code !== 0) throw error;
      for (const forgotten of [this, draft]) forgotten?.numbers.delete(planner);
      return ask();
    }
  }
}

/** What a typed name means: a model of the zoo, a path where the disk is read, or a name on the hub. */
export function chosenBy(text: string, zoo: string[], readsDisk: boolean): Chosen {
  const same = (known: string) => known.toLowerCase() === text.toLowerCase();
  const words = text.toLowerCase().split(/\s+/);
  const named = zoo.find(same) ?? (/[/\\]/.test(text) ? undefined : zoo.find((known) => words.every((word) => known.toLowerCase().includes(word))));
  if (named) return { from: 'zoo', name: named };
  return readsDisk ? { from: 'path', path: text } : { from: 'hub', name: text, asked: false };
}

/** A name as models have them in folders: without its folder and endings, `org__name` as `org/name`. */
export function plainName(name: string): string {
  const file = name.split(/[/\\]/).at(-1)!;
  return file.replace(/(-\d+-of-\d+)?\.(json|gguf|safetensors)$/i, '').replace('__', '/').toLowerCase();
}

/** One of the models that the command was given, by its path or by how its file is called. */
export function placeNamed(name: string, places: Place[]): Chosen | null {
  const file = (text: string) => text.split(/[/\\]/).at(-1)!;
  const found = places.find(({ path }) => path === name) ?? places.find(({ named, path }) => named && (file(path) === file(name) || plainName(path) === name.toLowerCase()));
  return found ? { from: 'path', path: found.path } : null;
}

/** Models that a file's name may be of: `Qwen3-8B-Q4_K_M.gguf` is of Qwen3-8B. Those of this machine first. */
export function meantBy(name: string, zoo: string[], places: Place[]): Chosen[] {
  const letters = (text: string) => plainName(text).split('/').at(-1)!.replace(/[^a-z0-9]/g, '');
  const own = letters(name);
  const isOf = (known: string) => known !== '' && own.startsWith(known);
  const known: [string, Chosen][] = [
    ...places.map(({ name, path }): [string, Chosen] => [letters(name), { from: 'path', path }]),
    ...zoo.map((name): [string, Chosen] => [letters(name), { from: 'zoo', name }]),
  ];
  // The longest name says most.
  return known.filter(([known]) => isOf(known)).sort(([left], [right]) => right.length - left.length).slice(0, 3).map(([, chosen]) => chosen);
}

/** What a model is called where it was chosen. */
export function nameOf(chosen: Chosen): string {
  switch (chosen.from) {
    case 'zoo':
    case 'text':
    case 'hub':
      return chosen.name;
    case 'path':
      return chosen.path;
    case 'files':
      return chosen.files.map(({ name }) => name).join(', ');
  }
}

export function filesOf(files: Iterable<File>): Chosen {
  return { from: 'files', files: [...files] };
}

/** Endings of files that a model is read of. */
const MODEL_FILES = ['.json', '.gguf', '.safetensors', '.onnx'];

export function isOfModel({ name }: { name: string }): boolean {
  return MODEL_FILES.some((ending) => hasEnding(name, ending));
}

const isIndex = (name: string) => hasEnding(name, '.safetensors.index.json');
const isShard = (name: string) => hasEnding(name, '.safetensors') && /-\d+-of-\d+/.test(name);

/** The model first, what lies beside it after: weights know more than a config does. */
export function inOrder<F extends { name: string }>(files: F[]): F[] {
  const rank = ({ name }: F) => {
    const endings = ['.gguf', '.onnx', '.safetensors', '.safetensors.index.json', 'config.json', '.json'];
    const found = endings.findIndex((ending) => hasEnding(name, ending));
    // Of shards none is the model, but what names them.
    return found < 0 || isShard(name) ? endings.length : found;
  };
  if (files.some(({ name }) => isShard(name)) && !files.some(({ name }) => isIndex(name))) {
    const message = 'these weights are in several files: drop model.safetensors.index.json, which names them, and config.json with them';
    throw new Refused({ message, code: 1 });
  }
  return [...files].sort((left, right) => rank(left) - rank(right) || left.name.localeCompare(right.name));
}

interface Missing {
  missing: { file: number; offset: number; length: number };
}

/** Reads what the planner asks for, slice by slice: headers are at the front of files of any size. */
async function openPieces(planner: Planner, pieces: Piece[]): Promise<Opened> {
  const read = async (piece: Piece, offset: number, length: number) => ({ offset, length, bytes: await piece.slice(offset, length) });
  const slices = await Promise.all(
    pieces.map(async (piece) => {
      const first = Math.min(piece.length, isShard(piece.name) ? FIRST_OF_SHARD : FIRST);
      return first > 0 ? [await read(piece, 0, first)] : [];
    }),
  );
  for (let asked = 0; asked < MOST_SLICES; asked += 1) {
    const files = pieces.map(({ name, length }, at) => ({ name, length, slices: slices[at]!.map((slice) => [slice.offset, slice.length]) }));
    const answer = await planner.ask<Opened | Missing>({ ask: 'open', files }, slices.flat().map(({ bytes }) => bytes));
    if (!('missing' in answer)) return answer;
    const { file, offset, length } = answer.missing;
    slices[file]!.push(await read(pieces[file]!, offset, length));
  }
  throw new Refused({ message: 'the header of this file has no end', code: 1 });
}
