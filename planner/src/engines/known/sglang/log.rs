//! How SGLang words its start: 0.4.6 to 0.5.23. It does not log its version.

use crate::engines::version::Version;
use crate::logs::dialect::LogDialect;
use crate::logs::fact::Fact;
use crate::logs::line::{Line, SizeUnit};
use crate::logs::wording::Fold::{First, Last, Sum};
use crate::logs::wording::Wording;

const TOKENS: Option<Fact> = Some(Fact::Tokens);
const WINDOW: Option<Fact> = Some(Fact::WindowTokens);
const KV: Option<Fact> = Some(Fact::KvBytes);

/// Read in 0.5.13, and not in 0.5.12.
const NAMES_DTYPE: Version = Version(0, 5, 13);
/// Keys and values apart, in all versions that were read; latents have one size.
const OF_BOTH: &[&[Fact]] = &[&[Fact::Tokens], &[Fact::KeyBytes], &[Fact::ValueBytes]];
const OF_ONE: &[&[Fact]] = &[&[Fact::Tokens], &[Fact::KvBytes]];
/// The same of what drafts, whose pool comes after the model's own.
const OF_BOTH_OF_DRAFTS: &[&[Fact]] = &[&[Fact::Tokens], &[Fact::DraftKeyBytes], &[Fact::DraftValueBytes]];
const OF_ONE_OF_DRAFTS: &[&[Fact]] = &[&[Fact::Tokens], &[Fact::DraftKvBytes]];

const UNNAMED_APART: &str = "KV Cache is allocated. #tokens: {}, K size: {}, V size: {}";
const UNNAMED: &str = "KV Cache is allocated. #tokens: {}, KV size: {}";
const NAMED_APART: &str = "KV Cache is allocated. dtype: {dtype}, #tokens: {}, K size: {}, V size: {}";
const NAMED: &str = "KV Cache is allocated. dtype: {dtype}, #tokens: {}, KV size: {}";

pub(crate) static WORDS: LogDialect = LogDialect {
    starts: &["server_args=ServerArgs(", "server_args={"],
    lines: &[
        Wording { text: " context_length={},", facts: &[Some(Fact::MaxSeqLen)], fold: First },
        Wording { text: "context_len={}", facts: &[Some(Fact::MaxSeqLen)], fold: First },
        Wording { text: " chunked_prefill_size={}", facts: &[Some(Fact::MaxNumTokens)], fold: First },
        Wording { text: " max_running_requests={}", facts: &[Some(Fact::MaxBatchSize)], fold: Last },
        Wording { text: " tp_size={},", facts: &[Some(Fact::Tp)], fold: First },
        Wording { text: " pp_size={},", facts: &[Some(Fact::Pp)], fold: First },
        Wording { text: " page_size={},", facts: &[Some(Fact::TokensPerBlock)], fold: First },
        Wording { text: " disable_radix_cache={}", facts: &[Some(Fact::NoPrefixCaching)], fold: First },
        Wording { text: " speculative_num_draft_tokens={},", facts: &[Some(Fact::DraftTokens)], fold: First },
        Wording { text: "Init torch distributed ends.*mem usage={}", facts: &[Some(Fact::Nccl)], fold: First },
        Wording { text: "Load weight end.*mem usage={}", facts: &[Some(Fact::Weights)], fold: First },
        Wording { text: "max_mamba_cache_size: {}", facts: &[Some(Fact::StateSlots)], fold: First },
        Wording { text: "conv_state size: {}", facts: &[Some(Fact::ConvBytes)], fold: First },
        Wording { text: "ssm_state size: {}", facts: &[Some(Fact::SsmBytes)], fold: First },
        Wording { text: "intermediate_ssm_state_cache size: {}", facts: &[Some(Fact::SpeculationBytes)], fold: First },
        // A draft model's pool comes after the model's own.
        Wording {
            text: "KV Cache is allocated.*#tokens: {}, K size: {}, V size: {}",
            facts: &[TOKENS, KV, KV],
            fold: First,
        },
        Wording { text: "KV Cache is allocated.*#tokens: {}, KV size: {}", facts: &[TOKENS, KV], fold: First },
        // The sum of the two pools that were logged before it.
        Wording {
            text: "SWAKVPool mem usage: {}, swa size: {}, full size: {}",
            facts: &[KV, WINDOW, TOKENS],
            fold: Last,
        },
        Wording { text: "max_total_num_tokens={}", facts: &[TOKENS], fold: Last },
        Wording { text: "Capture*graph end.*mem usage={}", facts: &[Some(Fact::Graphs)], fold: Sum },
    ],
    writes: &[
        Line::always(
            "Mamba Cache is allocated. max_mamba_cache_size: {}, conv_state size: {tight}, ssm_state size: {tight}",
            &[&[Fact::StateSlots], &[Fact::ConvBytes], &[Fact::SsmBytes]],
        ),
        Line::always(
            "SWAKVPool mem usage: {}, swa size: {}, full size: {}",
            &[&[Fact::KvBytes], &[Fact::WindowTokens], &[Fact::Tokens]],
        ),
        Line::always(UNNAMED_APART, OF_BOTH).before(NAMES_DTYPE),
        Line::always(UNNAMED, OF_ONE).before(NAMES_DTYPE),
        Line::always(NAMED_APART, OF_BOTH).since(NAMES_DTYPE),
        Line::always(NAMED, OF_ONE).since(NAMES_DTYPE),
        Line::always(UNNAMED_APART, OF_BOTH_OF_DRAFTS).before(NAMES_DTYPE).of_drafts(),
        Line::always(UNNAMED, OF_ONE_OF_DRAFTS).before(NAMES_DTYPE).of_drafts(),
        Line::always(NAMED_APART, OF_BOTH_OF_DRAFTS).since(NAMES_DTYPE).of_drafts(),
        Line::always(NAMED, OF_ONE_OF_DRAFTS).since(NAMES_DTYPE).of_drafts(),
        Line::always(
            "max_total_num_tokens={}, chunked_prefill_size={}, max_running_requests={}, context_len={}",
            &[&[Fact::Tokens], &[Fact::MaxNumTokens], &[Fact::MaxBatchSize], &[Fact::MaxSeqLen]],
        ),
        // As its flag says that prompts are not cut.
        Line::always(
            "max_total_num_tokens={}, chunked_prefill_size=-1, max_running_requests={}, context_len={}",
            &[&[Fact::Tokens], &[Fact::MaxBatchSize], &[Fact::MaxSeqLen]],
        ),
    ],
    size_unit: SizeUnit("GB", 30),
    complete: &[Fact::Tokens],
    example: "KV Cache is allocated. #tokens: 1557504, K size: 2.23 GB, V size: 2.23 GB",
    slots_are_told: true,
    ..LogDialect::OF_NONE
};
