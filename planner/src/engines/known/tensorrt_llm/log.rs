//! How TensorRT-LLM words its start: 0.8 to 1.3, built engines and the PyTorch backend.

use crate::logs::dialect::LogDialect;
use crate::logs::fact::Fact;
use crate::logs::line::Line;
use crate::logs::wording::Fold::{Last, Sum};
use crate::logs::wording::Wording;

const BLOCK: Option<Fact> = Some(Fact::TokensPerBlock);
const PAGES: Option<Fact> = Some(Fact::BlocksPerSequence);
const BLOCKS: Option<Fact> = Some(Fact::NumBlocks);
const LENGTH: Option<Fact> = Some(Fact::MaxSeqLen);
const BATCH: Option<Fact> = Some(Fact::MaxBatchSize);
const STEP: Option<Fact> = Some(Fact::MaxNumTokens);
const ACTIVATIONS: Option<Fact> = Some(Fact::Activations);

pub(crate) static WORDS: LogDialect = LogDialect {
    starts: &["TensorRT-LLM version: ", "TensorRT LLM version: "],
    lines: &[
        Wording { text: "Number of tokens per block: {}", facts: &[BLOCK], fold: Last },
        Wording { text: "Max KV cache pages per sequence: {}", facts: &[PAGES], fold: Last },
        Wording { text: "Number of blocks in KV cache primary pool: {}", facts: &[BLOCKS], fold: Last },
        Wording {
            text: "Allocated {} for max tokens in paged KV cache ({})",
            facts: &[Some(Fact::KvBytes), Some(Fact::Tokens)],
            fold: Last,
        },
        Wording { text: "] max_seq_len={}, max_num_requests={}", facts: &[LENGTH, BATCH], fold: Last },
        Wording { text: "max_num_requests={}, max_num_tokens={}", facts: &[BATCH, STEP], fold: Last },
        Wording { text: ", max_num_tokens={}, max_batch_size={}", facts: &[STEP, BATCH], fold: Last },
        Wording { text: "TRTGptModel maxBatchSize: {}", facts: &[BATCH], fold: Last },
        Wording { text: "TRTGptModel maxSequenceLen: {}", facts: &[LENGTH], fold: Last },
        Wording { text: "TRTGptModel maxNumTokens: {}", facts: &[STEP], fold: Last },
        Wording {
            text: "Memory used after loading model weights (inside torch) in memory usage profiling: {}",
            facts: &[Some(Fact::Weights)],
            fold: Last,
        },
        Wording {
            text: "Memory dynamically allocated during inference (inside torch) in memory usage profiling: {}",
            facts: &[ACTIVATIONS],
            fold: Last,
        },
        // NCCL's buffers and the captured graphs are in it too.
        Wording {
            text: "Memory used outside torch (e.g., NCCL and CUDA graphs) in memory usage profiling: {}",
            facts: &[Some(Fact::Context)],
            fold: Last,
        },
        Wording { text: "Loaded engine size: {}", facts: &[Some(Fact::Weights)], fold: Last },
        Wording { text: "Allocated {} for execution context memory", facts: &[ACTIVATIONS], fold: Sum },
        Wording { text: "Allocated {} GPU memory for runtime buffers", facts: &[ACTIVATIONS], fold: Sum },
        Wording { text: "Allocated {} GPU memory for decoder", facts: &[ACTIVATIONS], fold: Sum },
    ],
    // The PyTorch backend profiles with small caches first.
    tries: &[("Peak memory during memory usage profiling", &[Fact::KvBytes, Fact::Tokens, Fact::NumBlocks])],
    writes: &[
        Line::always(
            "max_seq_len={}, max_num_requests={}, max_num_tokens={}, max_batch_size={}",
            &[&[Fact::MaxSeqLen], &[Fact::MaxBatchSize], &[Fact::MaxNumTokens], &[Fact::MaxBatchSize]],
        ),
        Line::always("Number of tokens per block: {}.", &[&[Fact::TokensPerBlock]]),
        Line::always(
            "[MemUsageChange] Allocated {} for max tokens in paged KV cache ({}).",
            &[&[Fact::KvBytes], &[Fact::Tokens]],
        ),
    ],
    complete: &[Fact::Tokens],
    example: "[MemUsageChange] Allocated 16.05 GiB for max tokens in paged KV cache (263008)",
    leaves_out_states: true,
    ..LogDialect::OF_NONE
};
