//! Every key of a budget, once: what the commented file, the schema and the list of origins are made from.

/// A key of the budget file.
pub(super) struct Key {
    /// Its dotted path, `memory.bytes`.
    pub(super) path: &'static str,
    pub(super) kind: Kind,
    /// What holds where it is absent, in words or as a value.
    pub(super) default: &'static str,
    /// A value that could be written, as TOML.
    pub(super) example: &'static str,
    /// What it is, in one sentence.
    pub(super) help: &'static str,
}

/// What values a key takes.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    /// A whole number from the first to the second.
    Count(u64, u64),
    /// An integer of bytes or a text such as `24GiB`.
    Bytes,
    /// A number above 0 and at most 1.
    Fraction,
    /// The name of an element type.
    DType,
    /// One of these names.
    Choice(&'static [&'static str]),
    /// `true` or `false`.
    Switch,
    /// A distribution of lengths.
    Lengths,
}

impl Key {
    /// The section it stands in and its name there: `("memory", "bytes")`; no section is `""`.
    pub(super) fn split(&self) -> (&'static str, &'static str) {
        self.path.rsplit_once('.').unwrap_or(("", self.path))
    }
}

/// What a section is, in one sentence; those not listed here have no section.
pub(super) const SECTIONS: [(&str, &str); 7] = [
    ("memory", "The bytes to divide; without it the limits alone size the pools."),
    ("dtypes", "How caches are stored where the model does not say."),
    (
        "workload",
        "The sequences to size for; where neither prompt nor output is stated each is max_seq_len tokens long.",
    ),
    ("speculation", "Speculative decoding; without it there is none."),
    ("parallel", "Several devices."),
    ("host", "Host memory that caches are offloaded to."),
    ("engine", "What an engine is told when its allocation is predicted."),
];

/// Keys that must be stated where their section is.
pub(super) const REQUIRED: [&str; 2] = ["speculation.draft_tokens", "host.bytes"];

const LIMIT: Kind = Kind::Count(1, 1 << 32);
const SIZE: Kind = Kind::Count(1, 4096);
const TOKENS: Kind = Kind::Count(0, u64::MAX);

const fn key(path: &'static str, kind: Kind, default: &'static str, example: &'static str, help: &'static str) -> Key {
    Key { path, kind, default, example, help }
}

/// All keys, section by section.
pub(super) const KEYS: [Key; 42] = [
    key(
        "grouping",
        Kind::Choice(&["by-key", "by-window", "first-reference"]),
        "by-key",
        "'by-key'",
        "How resources are grouped into pools.",
    ),
    key(
        "reject_unmanaged",
        Kind::Switch,
        "false",
        "true",
        "Whether it is an error that something which grows with sequences has no manager.",
    ),
    key(
        "require_uniform",
        Kind::Switch,
        "false",
        "true",
        "Whether it is an error that paged caches need more than one pool.",
    ),
    key(
        "max_seq_len",
        LIMIT,
        "4096, or the model's maximum if lower",
        "4096",
        "The longest sequence, prompt and output, in tokens.",
    ),
    key(
        "max_batch_size",
        LIMIT,
        "as many as the memory admits, or 8 without [memory]",
        "8",
        "The most sequences that run at once.",
    ),
    key("max_num_tokens", LIMIT, "2048", "2048", "The most tokens in one step, never below one per sequence."),
    key("tokens_per_block", LIMIT, "16", "16", "Tokens in a block of a paged pool."),
    key(
        "maximize",
        Kind::Choice(&["sequences", "tokens"]),
        "sequences",
        "'sequences'",
        "What to find the most of; \"tokens\" needs max_batch_size.",
    ),
    key("memory.bytes", Kind::Bytes, "not set", "'24GiB'", "Bytes for the caches alone; instead of fraction."),
    key(
        "memory.fraction",
        Kind::Fraction,
        "not set",
        "0.9",
        "A share of the device's memory, with at most six decimals; needs of.",
    ),
    key(
        "memory.of",
        Kind::Choice(&["free", "total"]),
        "not set",
        "'free'",
        "What fraction is a share of: \"free\" as TensorRT-LLM means it, \"total\" as vLLM and SGLang do.",
    ),
    key("memory.reserve", Kind::Bytes, "0", "'512MiB'", "Bytes that nobody may use."),
    key("memory.weights", Kind::Bytes, "the model's own", "'61GiB'", "Weights over all ranks, where no file tells."),
    key(
        "memory.activations",
        Kind::Bytes,
        "assumed from max_num_tokens unless measured",
        "'512MiB'",
        "Peak bytes of one step besides weights and caches.",
    ),
    key("memory.graphs", Kind::Bytes, "0", "'600MiB'", "Bytes of captured CUDA graphs."),
    key("dtypes.kv", Kind::DType, "the model's dtype", "'fp8'", "Keys and values."),
    key("dtypes.ssm", Kind::DType, "f32", "'f32'", "Recurrent states."),
    key("dtypes.conv", Kind::DType, "the model's dtype", "'bf16'", "Convolution states."),
    key(
        "workload.prompt",
        Kind::Lengths,
        "max_seq_len, or 0 beside an output",
        "{ fixed = 300 }",
        "Prompt lengths in tokens.",
    ),
    key("workload.output", Kind::Lengths, "0", "{ fixed = 200 }", "Output lengths in tokens."),
    key(
        "workload.prefix_reuse",
        Kind::Fraction,
        "not set",
        "0.25",
        "The share of each prompt that sequences have in common; its blocks are stored once.",
    ),
    key(
        "workload.checkpoints_per_sequence",
        TOKENS,
        "0",
        "0",
        "States that each running sequence leaves for prefix reuse.",
    ),
    key(
        "workload.checkpoint_dtype",
        Kind::Choice(&["int8"]),
        "the states' own",
        "'int8'",
        "How these states are stored.",
    ),
    key("speculation.draft_tokens", Kind::Count(1, 1024), "not set", "3", "Tokens that are drafted in each step."),
    key(
        "speculation.scheme",
        Kind::Choice(&["snapshots", "replay"]),
        "snapshots",
        "'snapshots'",
        "How states are rolled back to the accepted tokens.",
    ),
    key(
        "speculation.mtp_layers",
        Kind::Count(0, 1024),
        "0",
        "0",
        "Layers of the model's own prediction head, each with a KV cache.",
    ),
    key(
        "speculation.draft_weights",
        Kind::Bytes,
        "the draft model's own",
        "'1GiB'",
        "Weights of the draft model over all ranks, where no file tells.",
    ),
    key("parallel.tp", SIZE, "1", "1", "Tensor parallel: divides KV heads, state heads and convolution channels."),
    key("parallel.pp", SIZE, "1", "1", "Pipeline parallel: divides layers."),
    key("parallel.dp", SIZE, "1", "1", "Data parallel: every group of ranks serves other sequences."),
    key("parallel.ep", SIZE, "1", "1", "Expert parallel: divides experts, hence no caches."),
    key("parallel.cp", SIZE, "1", "1", "Context parallel: divides a sequence's paged tokens."),
    key("host.bytes", Kind::Bytes, "not set", "'64GiB'", "Its bytes."),
    key(
        "engine.cache_bytes",
        Kind::Bytes,
        "the plan's own cache bytes",
        "'24GiB'",
        "Bytes for its caches, as it logs them.",
    ),
    key("engine.block_size", TOKENS, "the engine's own", "16", "Tokens in a block or page."),
    key("engine.prefix_caching", Kind::Switch, "false", "false", "Whether prefixes are kept for reuse."),
    key(
        "engine.state_slots",
        TOKENS,
        "the engine's own",
        "64",
        "SGLang's max_mamba_cache_size; parallel sequences of TensorRT-LLM and llama.cpp.",
    ),
    key("engine.state_ratio", Kind::Fraction, "0.9", "0.9", "SGLang's mamba_full_memory_ratio."),
    key("engine.window_ratio", Kind::Fraction, "0.8", "0.8", "SGLang's swa_full_tokens_ratio."),
    key(
        "engine.mla_cache",
        Kind::Choice(&["kvcache", "krope_ctkv", "int8_nz", "nz"]),
        "not set",
        "'int8_nz'",
        "How an engine on Ascend stores latents.",
    ),
    key("engine.context", TOKENS, "the engine's own", "4096", "llama.cpp's -c: cells for all sequences together."),
    key("engine.ubatch", TOKENS, "512", "512", "llama.cpp's -ub."),
];
