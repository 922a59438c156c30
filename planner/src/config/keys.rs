//! Every key of a budget, once: flags, variables, the commented file, the schema, the reference and origins follow.

use toml::Value;

use crate::limits::MAX_COUNT;
use crate::size::{ByteSize, TokenCount};

/// What environment variables start with: `CACHEPLAN__MEMORY__BYTES` is `memory.bytes`.
pub(super) const PREFIX: &str = "CACHEPLAN__";

/// A key of the budget: one entry of the file, one environment variable, one flag.
#[derive(Debug)]
pub struct BudgetKey {
    /// Its dotted path, `memory.bytes`.
    pub path: &'static str,
    /// Its flag, `--memory-bytes`.
    pub flag: &'static str,
    /// What values it takes.
    pub values: Values,
    /// What holds where it is absent, in words or as a value.
    pub default: &'static str,
    /// A value that could be written, as TOML.
    pub(super) example: &'static str,
    /// What it is, in one sentence.
    pub help: &'static str,
}

/// What values a key takes.
#[derive(Clone, Copy, Debug)]
pub enum Values {
    /// A whole number from the first to the second.
    Count(u64, u64),
    /// Tokens, from the first to the second: an integer or a text such as `32k`.
    Tokens(u64, u64),
    /// An integer of bytes or a text such as `24GiB`.
    Bytes,
    /// A number above 0 and at most 1.
    Fraction,
    /// The name of an element type.
    DType,
    /// One of these names, each with what it means.
    Choice(&'static [(&'static str, &'static str)]),
    /// `true` or `false`.
    Switch,
    /// A distribution of lengths.
    Lengths,
}

impl BudgetKey {
    /// All keys, section by section.
    pub fn all() -> &'static [Self] {
        &KEYS
    }

    /// The section it stands in, in words; `None` outside all sections.
    pub fn section(&self) -> Option<&'static str> {
        Some(self.split().0).filter(|section| !section.is_empty())
    }

    /// The environment variable that sets it, `CACHEPLAN__MEMORY__BYTES`.
    pub fn variable(&self) -> String {
        PREFIX.to_owned() + &self.path.to_uppercase().replace('.', "__")
    }

    /// Why `value` is outside what the key takes; of what its type forbids the reader says more.
    pub(super) fn refuses(&self, value: &Value) -> Option<String> {
        let count = match value {
            Value::String(text) if matches!(self.values, Values::Tokens(..)) => text.parse::<TokenCount>().ok()?.0,
            value => u64::try_from(value.as_integer()?).ok()?,
        };
        if matches!(self.values, Values::Bytes) {
            return ByteSize::without_unit(count).err().map(|error| format!("`{}`: {error}", self.path));
        }
        let (Values::Count(least, most) | Values::Tokens(least, most)) = self.values else { return None };
        let outside = !(least..=most).contains(&count);
        outside.then(|| format!("`{}` is {count}; it must be between {least} and {most}", self.path))
    }

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

const TOKENS: Values = Values::Tokens(1, MAX_COUNT);
const SEQUENCES: Values = Values::Count(1, MAX_COUNT);
const RANKS: Values = Values::Count(1, 4096);

const MLA_CACHES: [(&str, &str); 4] = [
    ("kvcache", "latent and rope key in one tensor"),
    ("krope_ctkv", "the same in two tensors"),
    ("int8_nz", "an int8 latent in rows of 32 elements, a 16-bit rope key"),
    ("nz", "both at 16 bits, in rows of 16 elements"),
];

const fn key(
    path: &'static str,
    flag: &'static str,
    values: Values,
    default: &'static str,
    example: &'static str,
    help: &'static str,
) -> BudgetKey {
    BudgetKey { path, flag, values, default, example, help }
}

static KEYS: [BudgetKey; 56] = [
    key(
        "grouping",
        "--grouping",
        Values::Choice(&[
            ("by-key", "one pool per compatibility class"),
            ("by-window", "one pool per window; a mix inside one is an error"),
            ("first-reference", "the first resource of a kind is the reference; what does not match it is local"),
        ]),
        "by-key",
        "'by-key'",
        "How resources are grouped into pools.",
    ),
    key(
        "reject_unmanaged",
        "--reject-unmanaged",
        Values::Switch,
        "false",
        "true",
        "Whether it is an error that something which grows with sequences has no manager.",
    ),
    key(
        "require_uniform",
        "--require-uniform",
        Values::Switch,
        "false",
        "true",
        "Whether it is an error that paged caches need more than one pool.",
    ),
    key(
        "max_seq_len",
        "--max-seq-len",
        TOKENS,
        "4096, or the model's maximum if lower",
        "4096",
        "The longest sequence, prompt and output, in tokens.",
    ),
    key(
        "max_batch_size",
        "--max-batch-size",
        SEQUENCES,
        "as many as the memory admits, or 8 without [memory]",
        "8",
        "The most sequences that run at once.",
    ),
    key(
        "max_num_tokens",
        "--max-num-tokens",
        TOKENS,
        "2048",
        "2048",
        "The most tokens in one step, never below one per sequence.",
    ),
    key(
        "layout",
        "--layout",
        Values::Choice(&[
            ("HND", "[kv_factor, heads, tokens, head_dim]"),
            ("NHD", "[kv_factor, tokens, heads, head_dim]"),
        ]),
        "HND",
        "'HND'",
        "The order of heads and tokens inside a block of keys and values.",
    ),
    key("tokens_per_block", "--tokens-per-block", TOKENS, "16", "16", "Tokens in a block of a paged pool."),
    key(
        "mla_cache_mode",
        "--mla-cache-mode",
        Values::Choice(&MLA_CACHES),
        "one tensor, without the operator",
        "'krope_ctkv'",
        "The cache mode of Ascend's MLA operator that latents are laid out in, and that a run computes by.",
    ),
    key(
        "maximize",
        "--maximize",
        Values::Choice(&[
            ("sequences", "sequences that run at once"),
            ("tokens", "tokens in pages, beside max_batch_size sequences"),
        ]),
        "sequences",
        "'sequences'",
        "What to find the most of; \"tokens\" needs max_batch_size.",
    ),
    key(
        "memory.bytes",
        "--memory-bytes",
        Values::Bytes,
        "not set",
        "'24GiB'",
        "Bytes for the caches alone; instead of fraction.",
    ),
    key(
        "memory.fraction",
        "--memory-fraction",
        Values::Fraction,
        "not set",
        "0.9",
        "A share of the device's memory, with at most six decimals; needs of.",
    ),
    key(
        "memory.of",
        "--memory-of",
        Values::Choice(&[
            ("free", "of what is left for caches, as TensorRT-LLM means it"),
            ("total", "of all memory, as vLLM and SGLang do"),
        ]),
        "not set",
        "'free'",
        "What fraction is a share of: \"free\" as TensorRT-LLM means it, \"total\" as vLLM and SGLang do.",
    ),
    key("memory.reserve", "--reserve", Values::Bytes, "0", "'512MiB'", "Bytes that nobody may use."),
    key(
        "memory.weights",
        "--weights",
        Values::Bytes,
        "the model's own",
        "'61GiB'",
        "Weights over all ranks, where no file tells.",
    ),
    key(
        "memory.activations",
        "--activations",
        Values::Bytes,
        "assumed from max_num_tokens unless measured",
        "'512MiB'",
        "Peak bytes of one step besides weights and caches.",
    ),
    key(
        "memory.graphs",
        "--graphs",
        Values::Bytes,
        "assumed on a GPU unless measured",
        "'600MiB'",
        "Bytes of captured CUDA graphs.",
    ),
    key(
        "memory.safe",
        "--safe",
        Values::Switch,
        "false",
        "true",
        "Whether what assumed bytes may be more is kept free too.",
    ),
    key("dtypes.kv", "--kv-dtype", Values::DType, "the model's dtype", "'fp8'", "Keys and values."),
    key("dtypes.ssm", "--ssm-dtype", Values::DType, "the model's own, else f32", "'f32'", "Recurrent states."),
    key("dtypes.conv", "--conv-dtype", Values::DType, "the model's dtype", "'bf16'", "Convolution states."),
    key(
        "workload.prompt",
        "--prompt",
        Values::Lengths,
        "max_seq_len, or 0 beside an output",
        "{ fixed = 300 }",
        "Prompt lengths in tokens.",
    ),
    key("workload.output", "--output", Values::Lengths, "0", "{ fixed = 200 }", "Output lengths in tokens."),
    key(
        "workload.prefix_reuse",
        "--prefix-reuse",
        Values::Fraction,
        "not set",
        "0.25",
        "The share of each prompt that sequences have in common; its blocks are stored once.",
    ),
    key(
        "workload.checkpoints_per_sequence",
        "--checkpoints",
        Values::Count(0, MAX_COUNT),
        "0",
        "0",
        "States that each running sequence leaves for prefix reuse.",
    ),
    key(
        "workload.checkpoint_dtype",
        "--checkpoint-dtype",
        Values::Choice(&[("int8", "one byte per element and a scale per head and channel")]),
        "the states' own",
        "'int8'",
        "How these states are stored.",
    ),
    key(
        "workload.checkpoint_strategy",
        "--checkpoint-strategy",
        Values::Choice(&[
            ("no-buffer", "where forwards and sequences end"),
            ("double-buffered", "one aligned or branch position of each forward, and every so many decoded tokens"),
            ("complete", "wherever one can serve a later prompt"),
        ]),
        "complete",
        "'complete'",
        "Where a run leaves these states.",
    ),
    key(
        "speculation.draft_tokens",
        "--draft-tokens",
        Values::Count(1, 1024),
        "not set",
        "3",
        "Tokens that are drafted in each step.",
    ),
    key(
        "speculation.scheme",
        "--draft-scheme",
        Values::Choice(&[
            ("snapshots", "every state after each candidate is kept"),
            ("replay", "what the recurrence takes from each candidate is kept"),
        ]),
        "snapshots",
        "'snapshots'",
        "How states are rolled back to the accepted tokens.",
    ),
    key(
        "speculation.mtp_layers",
        "--mtp-layers",
        Values::Count(0, 1024),
        "0",
        "0",
        "Layers of the model's own prediction head, each with a KV cache.",
    ),
    key(
        "speculation.draft_weights",
        "--draft-weights",
        Values::Bytes,
        "the draft model's own",
        "'1GiB'",
        "Weights of the draft model over all ranks, where no file tells.",
    ),
    key(
        "parallel.tp",
        "--tp",
        RANKS,
        "1",
        "1",
        "Tensor parallel: divides KV heads, state heads and convolution channels.",
    ),
    key("parallel.pp", "--pp", RANKS, "1", "1", "Pipeline parallel: divides layers."),
    key(
        "parallel.dp",
        "--dp",
        RANKS,
        "1",
        "1",
        "Data parallel: replicas that serve other sequences; they share routed experts where ep says so.",
    ),
    key(
        "parallel.ep",
        "--ep",
        RANKS,
        "1",
        "1",
        "Expert parallel: divides routed experts, over tp or over tp times dp ranks; no caches.",
    ),
    key(
        "parallel.cp",
        "--cp",
        RANKS,
        "1",
        "1",
        "Context parallel with ranks of its own: divides a sequence's paged tokens.",
    ),
    key(
        "parallel.dcp",
        "--dcp",
        RANKS,
        "1",
        "1",
        "Decode context parallel: tp ranks that hold the same heads divide a sequence's paged tokens.",
    ),
    key("host.bytes", "--host-bytes", Values::Bytes, "not set", "'64GiB'", "Its bytes."),
    key(
        "engine.cache_bytes",
        "--cache-bytes",
        Values::Bytes,
        "the plan's own cache bytes",
        "'24GiB'",
        "Bytes for its caches, as it logs them.",
    ),
    key("engine.block_size", "--block-size", TOKENS, "the engine's own", "16", "Tokens in a block or page."),
    key(
        "engine.prefix_caching",
        "--prefix-caching",
        Values::Switch,
        "false",
        "false",
        "Whether prefixes are kept for reuse.",
    ),
    key(
        "engine.state_slots",
        "--state-slots",
        SEQUENCES,
        "the engine's own",
        "64",
        "SGLang's max_mamba_cache_size; parallel sequences of TensorRT-LLM and llama.cpp.",
    ),
    key("engine.state_ratio", "--state-ratio", Values::Fraction, "0.9", "0.9", "SGLang's mamba_full_memory_ratio."),
    key("engine.window_ratio", "--window-ratio", Values::Fraction, "0.8", "0.8", "SGLang's swa_full_tokens_ratio."),
    key(
        "engine.mla_cache",
        "--mla-cache",
        Values::Choice(&MLA_CACHES),
        "mla_cache_mode",
        "'int8_nz'",
        "How an engine on Ascend stores latents.",
    ),
    key(
        "engine.context",
        "--context",
        TOKENS,
        "the engine's own",
        "4096",
        "llama.cpp's -c: cells for all sequences together.",
    ),
    key("engine.ubatch", "--ubatch", TOKENS, "512", "512", "llama.cpp's -ub."),
    key(
        "engine.num_blocks",
        "--num-blocks",
        SEQUENCES,
        "what the bytes give",
        "1000",
        "Blocks whatever the bytes: vLLM's num_gpu_blocks_override.",
    ),
    key(
        "engine.max_total_tokens",
        "--max-total-tokens",
        TOKENS,
        "what the bytes give",
        "100000",
        "The most tokens whatever the bytes: SGLang's max_total_tokens.",
    ),
    key(
        "engine.compute_capability",
        "--compute-capability",
        Values::Count(70, 129),
        "90",
        "90",
        "The compute capability of the GPU times ten, by which engines choose kernels.",
    ),
    key(
        "engine.mamba_cache_mode",
        "--mamba-cache-mode",
        Values::Choice(&[
            ("none", "the running state alone"),
            ("align", "the running state and the last one at a block's end"),
            ("all", "one at the end of every block"),
        ]),
        "align with prefix caching, none without",
        "'align'",
        "How vLLM keeps states.",
    ),
    key(
        "engine.cache_type_k",
        "--cache-type-k",
        Values::DType,
        "that of keys and values",
        "'q8_0'",
        "llama.cpp's -ctk: the dtype of keys.",
    ),
    key(
        "engine.cache_type_v",
        "--cache-type-v",
        Values::DType,
        "that of keys and values",
        "'q8_0'",
        "llama.cpp's -ctv: the dtype of values.",
    ),
    key(
        "engine.swa_full",
        "--swa-full",
        Values::Switch,
        "false",
        "false",
        "llama.cpp's --swa-full: windows own as many cells as full attention.",
    ),
    key(
        "engine.async_scheduling",
        "--async-scheduling",
        Values::Switch,
        "true",
        "false",
        "vLLM's --async-scheduling: a step is prepared while others run, and holds its tokens.",
    ),
    key(
        "engine.hybrid_kv_cache",
        "--hybrid-kv-cache",
        Values::Switch,
        "true",
        "false",
        "Whether layers of several kinds are groups: false is vLLM's --disable-hybrid-kv-cache-manager.",
    ),
];
