// What the planner answers, as far as the page looks at it.

export interface Failure {
  message: string;
  /** The exit code of the command; 0 for a model that is to be opened again. */
  code: number;
  span?: [number, number];
}

export interface Layer {
  kind: string;
  blocks: string[];
  window: number | null;
  shares: number | null;
}

export interface Opened {
  model: number;
  type: string;
  source: string;
  dtype: string;
  longest: number | null;
  layers: Layer[];
  assumed: number;
  inspection: string;
}

export interface Pool {
  id: string;
  owner: string;
  unit: string;
  unit_bytes: number;
  units: number;
  bytes: number;
  layers: number[];
  dtype: string;
  tokens_per_block?: number;
  window?: number;
  checkpoints_of?: string;
  members: { resource: string; offset: number; bytes: number }[];
}

export interface Resource {
  name: string;
  layer: number | null;
  kind: string;
  owner: string;
  pool: string;
  dtype: string;
  bytes_per_token: number;
  bytes_per_sequence: number;
  bytes_fixed: number;
  reason: string;
  source: string;
  shared_by?: number[];
  drafts?: boolean;
}

export interface LedgerLine {
  name: string;
  bytes: number;
  source: string;
  note: string;
  uncertain_bytes?: number;
}

export interface Plan {
  model: { type: string; layers: number; dtype: string };
  limits: { max_seq_len: number; max_batch_size: number; max_num_tokens: number };
  resources: Resource[];
  pools: Pool[];
  ledger: LedgerLine[];
  capacity: { tokens: number | null; sequences: number; tokens_per_sequence: number; capped_by: string };
  totals: { kv_bytes_per_token: number; state_bytes_per_sequence: number };
  deployment?: { devices: number; replicas: number; sequences: number };
}

export interface Planned {
  plan: Plan;
  ranks: string | null;
  stages: number;
  knobs: { change: string; sequences: number }[];
  stated: Record<string, string>;
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
  reads_disk: boolean;
  version: string;
}

export interface Derivation {
  claim: string;
  from?: Derivation[];
}

export interface Curves {
  ours: { context: number; sequences: number; capped_by: string }[];
  engines: {
    engine: string;
    row: {
      engine: string;
      version: string;
      bytes: number;
      sequences: number;
      engine_sequences: number;
      wasted_bytes: number;
      engine_wasted_bytes: number;
      why: string[];
    } | null;
    error: string | null;
    points: { context: number; sequences: number; ours: number }[];
  }[];
}

export interface Fit {
  device: string;
  devices: number;
  parallel: { tp: number; pp: number; dp: number; ep: number };
  kv_dtype: string | null;
  state_dtype: string | null;
  holds: boolean;
  sequences: number;
  capped_by: string;
  outside_bytes: number;
  cache_bytes: number;
  per_hour: number | null;
  per_million_tokens: number | null;
}

export interface Fits {
  answer: { context: number; sequences: number; currency: string | null; fits: Fit[] };
  flags: { cacheplan: string; vllm: string }[];
  svg: string;
}

export interface Simulated {
  policies: { policy: string; points: { checkpoints: number; hit_rate: number; kv_hit_rate: number }[] }[];
  planned: number;
  states: boolean;
  reuse: string;
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
