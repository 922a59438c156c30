//! How vLLM words its start: 0.6 (its first engine) to 0.33.

use crate::engines::version::Version;
use crate::logs::dialect::LogDialect;
use crate::logs::fact::Fact;
use crate::logs::line::Line;
use crate::logs::wording::Fold::{First, Least};
use crate::logs::wording::Wording;

const TOKENS: Option<Fact> = Some(Fact::Tokens);
const CONCURRENCY: Option<Fact> = Some(Fact::Concurrency);
const BLOCKS: Option<Fact> = Some(Fact::NumBlocks);
const LENGTH: Option<Fact> = Some(Fact::MaxSeqLen);
const STEP: Option<Fact> = Some(Fact::MaxNumTokens);
const BATCH: Option<Fact> = Some(Fact::MaxBatchSize);
const BLOCK: Option<Fact> = Some(Fact::TokensPerBlock);
const DRAFTS: Option<Fact> = Some(Fact::DraftTokens);
const BYTES: Option<Fact> = Some(Fact::CacheBytes);
const SHARE: Option<Fact> = Some(Fact::MemoryShare);
const WEIGHTS: Option<Fact> = Some(Fact::Weights);
const RESIDENT: Option<Fact> = Some(Fact::Resident);
const ACTIVATIONS: Option<Fact> = Some(Fact::Activations);
const CONTEXT: Option<Fact> = Some(Fact::Context);
const GRAPHS: Option<Fact> = Some(Fact::Graphs);

/// Read in 0.24.0 and 0.28.0: between them two lines became one.
const ONE_LINE: Version = Version(0, 28, 0);

pub(crate) static WORDS: LogDialect = LogDialect {
    starts: &["LLM engine (v", "vLLM API server version "],
    lines: &[
        Wording { text: "'max_model_len': {}", facts: &[LENGTH], fold: First },
        Wording { text: "Using max model len {}", facts: &[LENGTH], fold: First },
        Wording { text: " max_seq_len={},", facts: &[LENGTH], fold: First },
        Wording { text: "'max_num_seqs': {}", facts: &[BATCH], fold: First },
        Wording { text: "'max_num_batched_tokens': {}", facts: &[STEP], fold: First },
        Wording { text: "Chunked prefill is enabled with max_num_batched_tokens={}", facts: &[STEP], fold: First },
        Wording { text: "'gpu_memory_utilization': {}", facts: &[SHARE], fold: First },
        Wording { text: " tensor_parallel_size={},", facts: &[Some(Fact::Tp)], fold: First },
        Wording { text: " pipeline_parallel_size={},", facts: &[Some(Fact::Pp)], fold: First },
        Wording { text: " enable_prefix_caching={}", facts: &[Some(Fact::PrefixCaching)], fold: First },
        Wording { text: "'num_speculative_tokens': {}", facts: &[DRAFTS], fold: First },
        Wording { text: " num_spec_tokens={}", facts: &[DRAFTS], fold: First },
        Wording { text: "Setting attention block size to {} tokens", facts: &[BLOCK], fold: First },
        Wording { text: "kv cache block size to {} for", facts: &[BLOCK], fold: First },
        Wording { text: "'block_size': {}", facts: &[BLOCK], fold: First },
        Wording { text: "Loading model weights took {}", facts: &[WEIGHTS], fold: First },
        Wording { text: "Model loading took {}", facts: &[WEIGHTS], fold: First },
        Wording {
            text: "model weights take {}; non_torch_memory takes {}; PyTorch activation peak memory takes {}; the rest of the memory reserved for KV Cache is {}",
            facts: &[WEIGHTS, CONTEXT, ACTIVATIONS, BYTES],
            fold: First,
        },
        Wording {
            text: "Actual usage is {} for weight, {} for peak activation, {} for non-torch memory, and {} for CUDAGraph",
            facts: &[WEIGHTS, ACTIVATIONS, CONTEXT, GRAPHS],
            fold: First,
        },
        Wording {
            text: "Actual usage is {} for consumed memory (weights + non-torch), {} for peak activation, and {} for CUDAGraph",
            facts: &[RESIDENT, ACTIVATIONS, GRAPHS],
            fold: First,
        },
        Wording { text: "Graph capturing finished in*took {}", facts: &[GRAPHS], fold: First },
        Wording { text: "Available KV cache memory: {}", facts: &[BYTES], fold: Least },
        Wording { text: "# GPU blocks: {}", facts: &[BLOCKS], fold: Least },
        Wording { text: "# CUDA blocks: {}", facts: &[BLOCKS], fold: Least },
        Wording { text: "# cuda blocks: {}", facts: &[BLOCKS], fold: Least },
        Wording { text: "GPU KV cache size: {} tokens", facts: &[TOKENS], fold: Least },
        Wording {
            text: "Maximum concurrency for {} tokens per request: {}x",
            facts: &[LENGTH, CONCURRENCY],
            fold: Least,
        },
    ],
    writes: &[
        Line::always("Using max model len {}", &[&[Fact::MaxSeqLen]]),
        Line::always("Chunked prefill is enabled with max_num_batched_tokens={}.", &[&[Fact::MaxNumTokens]]),
        Line::always(
            "Setting attention block size to {} tokens to ensure that attention page size is >= mamba page size.",
            &[&[Fact::TokensPerBlock]],
        ),
        Line::always("Available KV cache memory: {}", &[&[Fact::CacheBytes]]),
        Line::always("GPU KV cache size: {,} tokens", &[&[Fact::Tokens]]).before(ONE_LINE),
        Line::always(
            "Maximum concurrency for {,} tokens per request: {}x",
            &[&[Fact::MaxSeqLen], &[Fact::Concurrency]],
        )
        .before(ONE_LINE),
        Line::always(
            "GPU KV cache size: {,} tokens, Maximum concurrency for {,} tokens per request: {}x",
            &[&[Fact::Tokens], &[Fact::MaxSeqLen], &[Fact::Concurrency]],
        )
        .since(ONE_LINE),
    ],
    complete: &[Fact::Tokens, Fact::NumBlocks],
    example: "GPU KV cache size: 165,792 tokens",
    block_follows_states: true,
    ..LogDialect::OF_NONE
};
