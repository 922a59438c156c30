//! How llama.cpp words its start, with caches by name since 2025 and `KV self size` before.

use crate::logs::dialect::LogDialect;
use crate::logs::fact::Fact;
use crate::logs::line::{Line, SizeUnit};
use crate::logs::wording::Fold::{First, Sum, SumOnDevice};
use crate::logs::wording::Wording;

const KV: Option<Fact> = Some(Fact::KvBytes);

pub(crate) static WORDS: LogDialect = LogDialect {
    starts: &["build: ", "build_info: b", "build = "],
    lines: &[
        Wording { text: " n_ctx = {}", facts: &[Some(Fact::Tokens)], fold: First },
        Wording { text: " n_ctx_seq = {}", facts: &[Some(Fact::MaxSeqLen)], fold: First },
        Wording { text: " n_ctx_per_seq = {}", facts: &[Some(Fact::MaxSeqLen)], fold: First },
        Wording { text: " n_seq_max = {}", facts: &[Some(Fact::MaxBatchSize)], fold: First },
        Wording { text: " n_batch = {}", facts: &[Some(Fact::MaxNumTokens)], fold: First },
        Wording { text: " n_ubatch = {}", facts: &[Some(Fact::Ubatch)], fold: First },
        Wording { text: " kv_unified = {}", facts: &[Some(Fact::SharedCells)], fold: First },
        Wording { text: " model buffer size = {}", facts: &[Some(Fact::Weights)], fold: SumOnDevice },
        Wording { text: " compute buffer size = {}", facts: &[Some(Fact::Activations)], fold: SumOnDevice },
        // One line for each cache: of full attention, of windows, of an indexer.
        Wording { text: " size = {} ({} cells,*K (*): {}, V (*): {}", facts: &[KV, None, None, None], fold: Sum },
        Wording { text: " KV self size = {}", facts: &[KV], fold: Sum },
        Wording { text: " KV buffer size = {}", facts: &[Some(Fact::KvBuffers)], fold: Sum },
        Wording {
            text: " size = {} ({} cells,*R (*): {}, S (*): {}",
            facts: &[None, Some(Fact::StateSlots), Some(Fact::ConvBytes), Some(Fact::SsmBytes)],
            fold: Sum,
        },
        // What forms compressed entries: three of one wording, each for all sequences.
        Wording {
            text: " ratio = {}, state = *, streams = {}, rs_seq = {}, layers = {}, size = {}",
            facts: &[None, None, None, None, Some(Fact::SsmBytes)],
            fold: Sum,
        },
        Wording {
            text: " ratio = {}, state = *, streams = {}, rs_seq",
            facts: &[None, Some(Fact::StateSlots)],
            fold: First,
        },
    ],
    drafts: &["draft context against the target model", "loading draft model"],
    writes: &[
        Line::always("llama_context: n_seq_max = {}", &[&[Fact::MaxBatchSize]]),
        Line::always("llama_context: n_ctx = {}", &[&[Fact::Tokens]]),
        Line::always("llama_context: n_ctx_seq = {}", &[&[Fact::MaxSeqLen]]),
        Line::always("llama_context: n_batch = {}", &[&[Fact::MaxNumTokens]]),
        Line::always("llama_context: n_ubatch = {}", &[&[Fact::Ubatch]]),
        Line::always("llama_kv_cache: CUDA0 KV buffer size = {}", &[&[Fact::KvBytes]]),
        Line::always(
            "llama_memory_recurrent: size = {} ({} cells), R (f32): {}, S (f32): {}",
            &[&[Fact::ConvBytes, Fact::SsmBytes], &[Fact::StateSlots], &[Fact::ConvBytes], &[Fact::SsmBytes]],
        ),
    ],
    size_unit: SizeUnit("MiB", 20),
    complete: &[Fact::KvBytes, Fact::KvBuffers, Fact::SsmBytes],
    example: "llama_kv_cache: size = 256.00 MiB (8192 cells, 8 layers, 1/1 seqs), K (f16): 128.00 MiB, V (f16): 128.00 MiB",
    divides_cells: true,
    ..LogDialect::OF_NONE
};
