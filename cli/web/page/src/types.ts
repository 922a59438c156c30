// What the planner answers, as far as the page looks at it.

import type { Drawing } from './dom';

export interface Failure {
  message: string;
  /** The exit code of the command; 0 for a model that is to be opened again. */
  code: number;
  span?: [number, number];
}

export interface Opened {
  model: number;
  type: string;
  source: string;
  dtype: string;
  longest: number | null;
  /** Bytes of all weights as they are stored, and what they would take otherwise. */
  weights: { stored: number | null; offered: Offered[] };
  assumed: number;
  inspection: string;
}

/** Weights that a model may be quantised to. */
export interface Offered {
  /** As it is asked for, `fp8`. */
  word: string;
  /** As people call it. */
  called: string;
  /** Whether they are a file of llama.cpp's. */
  file: boolean;
  /** Of a weight, all tensors of such a file together. */
  bits: number | null;
  bytes: number | null;
}

/** A folder or file of this machine. */
export interface Place {
  name: string;
  path: string;
  /** Whether the command line named it; the first of these is open. */
  named: boolean;
}

export interface Plan {
  model: { type: string; layers: number; dtype: string };
  limits: { max_seq_len: number; max_batch_size: number; max_num_tokens: number };
  capacity: { tokens: number | null; sequences: number; tokens_per_sequence: number; capped_by: string };
  parallel: { tp: number; pp: number; dp: number; ep: number; cp: number };
  deployment?: { devices: number; replicas: number; sequences: number };
}

export interface Pictures {
  /** From the device to what the map shows: the name of each, and how it is shown. */
  path: [string, string][];
  map: Drawing;
  ledger: Drawing;
  layers: Drawing;
}

export interface Charts {
  curves: Drawing;
  more: Drawing;
  numbers: Drawing | null;
}

/** What no software exceeds, with so many sequences over all replicas. */
export interface AtBest {
  sequences: number;
  tokens_per_second: number;
  alone_per_second: number;
  prompt_seconds: number;
  bound_by: string;
  per_million_tokens: number | null;
}

export interface Planned {
  plan: Plan;
  pictures: Pictures;
  /** Pools by their ids, with what they hold in a sentence. */
  terms: [string, string][];
  ranks: string | null;
  stages: number;
  knobs: { change: string; sequences: number }[];
  /** What a token, full windows and the states of a sequence take. */
  totals: string;
  /** The bound of speed; null where the device's rates are not known. */
  at_best: (AtBest & { source: string }) | null;
  /** GPUs of the plan. */
  devices: number;
  /** What all of them cost an hour, where that of one is stated. */
  per_hour: number | null;
  stated: Record<string, string>;
  /** What somebody typed of the weights. */
  weights_typed: string | null;
  /** What holds of a device where nobody states it. */
  usual: Record<string, string>;
  notes: string[];
  device: { name: string; total_bytes: number } | null;
}

export type Values =
  | { kind: 'count' | 'tokens'; least: number; most: number }
  | { kind: 'bytes' | 'fraction' | 'dtype' | 'lengths' }
  | { kind: 'choice'; names: [string, string][] };

export interface Key {
  path: string;
  section: string;
  values: Values;
  default: string;
  help: string;
}

export interface Choices {
  keys: Key[];
  devices: string[];
  targets: string[];
  engines: string[];
  reads_disk: boolean;
  version: string;
}

export interface Derivation {
  claim: string;
  from?: Derivation[];
}

export interface Curves {
  pictures: Charts;
}

export interface Fit {
  device: string;
  devices: number;
  parallel: { tp: number; pp: number; dp: number; ep: number };
  /** The planner's own pools where it is null. */
  engine: string | null;
  kv_dtype: string | null;
  state_dtype: string | null;
  holds: boolean;
  may_hold: boolean;
  sequences: number;
  /** Of an engine at least and at most. */
  sequences_between?: [number, number];
  capped_by: string;
  outside_bytes: number;
  cache_bytes: number;
  per_hour: number | null;
  per_million_tokens: number | null;
}

/** Weights of fewer bits than the model's own, assumed, and the cheapest layout that holds what was asked for then. */
export interface FewerBits {
  bits: number;
  weights_bytes: number;
  fit: Fit | null;
}

/** A layout that surely holds what was asked for once its engine is told more flags. */
export interface Freed {
  fit: Fit;
  flags: string[];
  reuses_prefixes: boolean;
}

export interface Fits {
  answer: { context: number; sequences: number; notes: string[]; currency: string | null; fits: Fit[]; fewer_bits?: FewerBits[]; freed?: Freed };
  /** The best row as words of `cacheplan plan`. */
  flags: string | null;
  pictures: Charts;
  svg: string;
  html: string;
}

export interface Simulated {
  policies: { policy: string; points: { checkpoints: number; hit_rate: number; kv_hit_rate: number }[] }[];
  planned: number;
  states: boolean;
  reuse: string;
}

/** Bytes of each kind in a tier of a rank. */
export interface TierKinds {
  keys: number;
  windows: number;
  states: number;
}

/** One replay of a trace. */
export interface TierPoint {
  sizes: Record<'device' | 'host' | 'disk', TierKinds>;
  hit_rate: number;
}

/** How large tiers must be, as the command says it. */
export interface Tiered {
  told: {
    trace: string;
    answer: {
      requests: number;
      left_out: number;
      replays: number;
      ceiling: number;
      planned: TierPoint;
      curve: TierPoint[];
      chosen: TierPoint | null;
    };
    engines: { engine: string; read_in: string; lines: string[]; notes: string[] }[];
  };
  table: string;
  drawn: { picture: Drawing; numbers: Drawing };
  svg: string;
  /** Why nothing tried reaches the hit rate that was asked for. */
  out_of_reach: string | null;
  /** What is taken for granted. */
  note: string | null;
}

export interface Told {
  target: string;
  told: {
    export?: {
      engine: string;
      file_name: string;
      text: string;
      admits?: number;
      not_expressed: string[];
      settings: { key: string; value: unknown; source: string }[];
    };
    error?: string;
  };
}

/** A command in a text. */
export interface Found {
  place: string;
  /** Without secrets. */
  shown: string;
  model: string | null;
  draft: string | null;
  device: string | null;
  /** What a pasted line of cacheplan says of the model's config, and what of it means nothing here. */
  model_config: string | null;
  left_out: string[];
}

/** What engines would hold, each by its own command. */
export interface Admits {
  engines: EngineRow[];
  /** Why others, or all of them, are not asked. */
  unasked: string[];
  /** The one that serves the model there where nobody names one; absent where no GPU is named. */
  usual?: string;
}

/** An engine's row, as `fit` has it. */
export interface EngineRow {
  engine: string;
  version: string;
  devices: number;
  sequences: Interval;
  capped_by: string;
  /** Those that take the most of the memory, where that ends it. */
  caches: string | null;
  at_best?: AtBest | null;
  per_hour: number | null;
  /** None where it holds none. */
  command: string | null;
  /** The word of the command in whose place weights of the model are to stand that it does not have itself. */
  others: { name: string; bytes: number; own: number } | null;
}

/** A number that is only known to lie between two. */
export interface Interval {
  low: number;
  high: number;
}

export interface Change {
  change: string;
  starts: 'no' | 'maybe' | 'yes';
  sequences?: Interval;
}

/** What a command would do, or why that is not known. */
export interface Started {
  answer?: {
    engine: string;
    version: string;
    model: string;
    read: { flag: string; value: string; says: string }[];
    limits: { max_seq_len: number };
    starts: 'no' | 'maybe' | 'yes';
    reason?: string;
    /** What the answer hangs on that the command leaves open. */
    cautions?: string[];
    /** Of each replica. */
    sequences?: Interval;
    replicas?: number;
    lines: string[];
    capped_by: string;
    changes: Change[];
    notes: string[];
  };
  text?: string;
  refused?: Failure;
  wants_device?: boolean;
  changes?: Change[];
  /** What it holds, in words. */
  holds?: string | null;
  /** What each change comes to. */
  said?: string[];
  /** The changed commands, as lines of a shell. */
  changed?: string[];
}
