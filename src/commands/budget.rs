//! The flags that stand above the budget file, each for one of its keys.

use std::path::PathBuf;

use cacheplan::planner::{ByteSize, Origin, Override, Policy};
use clap::ValueEnum;
use clap::builder::RangedU64ValueParser;
use miette::miette;

use crate::failure::Failure;

/// The budget file and what stands above it.
#[derive(clap::Args)]
#[command(
    allow_negative_numbers = true,
    next_help_heading = "Budget (each flag stands above an environment variable, that above the file)"
)]
pub(crate) struct BudgetArgs {
    /// Budget file (TOML): memory, limits, dtypes; without one the limits alone size the pools
    #[arg(long, value_name = "FILE")]
    pub(crate) budget: Option<PathBuf>,

    /// How resources are grouped into pools
    #[arg(long, value_enum, value_name = "POLICY")]
    grouping: Option<Grouping>,

    /// The longest sequence, prompt and output
    #[arg(long, value_name = "TOKENS", value_parser = count())]
    max_seq_len: Option<u64>,

    /// The most sequences that run at once
    #[arg(long, value_name = "N", value_parser = count())]
    max_batch_size: Option<u64>,

    /// The most tokens in one step
    #[arg(long, value_name = "TOKENS", value_parser = count())]
    max_num_tokens: Option<u64>,

    /// Tokens in a block of a paged pool
    #[arg(long, value_name = "TOKENS", value_parser = count())]
    tokens_per_block: Option<u64>,

    /// Bytes for the caches alone, such as 24GiB
    #[arg(long, value_name = "SIZE")]
    memory_bytes: Option<ByteSize>,

    /// Bytes of the weights over all ranks, where the model's files do not tell
    #[arg(long, value_name = "SIZE")]
    weights: Option<ByteSize>,

    /// Dtype of keys and values, such as fp8
    #[arg(long, value_name = "DTYPE")]
    kv_dtype: Option<String>,

    /// Dtype of recurrent states whose dtype the model does not state
    #[arg(long, value_name = "DTYPE")]
    ssm_dtype: Option<String>,

    /// Prompt lengths: a number of tokens, or a distribution as in the budget file
    #[arg(long, value_name = "LENGTHS", value_parser = lengths)]
    prompt: Option<String>,

    /// Output lengths, likewise
    #[arg(long, value_name = "LENGTHS", value_parser = lengths)]
    output: Option<String>,

    /// The share of each prompt that sequences have in common
    #[arg(long, value_name = "SHARE")]
    prefix_reuse: Option<f64>,

    /// States that each running sequence leaves for prefix reuse
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<u64>::new().range(..=MAX_COUNT))]
    checkpoints: Option<u64>,

    /// How these states are stored: int8; as in live slots where absent
    #[arg(long, value_name = "DTYPE")]
    checkpoint_dtype: Option<String>,

    /// Tokens that are drafted in each step
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    draft_tokens: Option<u32>,

    /// How states are rolled back to the accepted tokens: snapshots or replay
    #[arg(long, value_name = "SCHEME")]
    draft_scheme: Option<String>,

    /// Layers of the model's own prediction head
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(..=1024))]
    mtp_layers: Option<u32>,

    /// Bytes of the draft model's weights over all ranks, where its files do not tell
    #[arg(long, value_name = "SIZE")]
    draft_weights: Option<ByteSize>,

    /// Host memory that caches are offloaded to, such as 64GiB
    #[arg(long, value_name = "SIZE")]
    host_bytes: Option<ByteSize>,

    /// Tensor-parallel ranks
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    tp: Option<u32>,

    /// Pipeline stages
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pp: Option<u32>,

    /// Data-parallel groups
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    dp: Option<u32>,

    /// Expert-parallel ranks
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    ep: Option<u32>,

    /// Context-parallel ranks
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    cp: Option<u32>,

    /// The engine keeps prefixes for reuse
    #[arg(long)]
    prefix_caching: bool,

    /// Tokens in the engine's block or page
    #[arg(long, value_name = "TOKENS", value_parser = count())]
    block_size: Option<u64>,

    /// The engine's state slots or parallel sequences
    #[arg(long, value_name = "N", value_parser = count())]
    state_slots: Option<u64>,

    /// llama.cpp's -c: cells for all sequences together
    #[arg(long, value_name = "TOKENS", value_parser = count())]
    context: Option<u64>,

    /// Bytes of an engine's caches as it logs them, in place of the budget's memory
    #[arg(long, value_name = "SIZE")]
    cache_bytes: Option<ByteSize>,

    #[command(flatten)]
    end: EndOfSection,
}

/// The heading of a section in the help lasts until the next.
#[derive(clap::Args)]
#[command(next_help_heading = "This command")]
struct EndOfSection {}

/// The largest count that a budget can hold.
const MAX_COUNT: u64 = 1 << 32;

/// Counts that a budget can hold.
fn count() -> RangedU64ValueParser {
    RangedU64ValueParser::new().range(1..=MAX_COUNT)
}

/// A number of tokens, or a distribution as the budget file writes it.
fn lengths(text: &str) -> Result<String, String> {
    match text.parse::<u64>() {
        Ok(tokens) if tokens <= MAX_COUNT => Ok(format!("{{ fixed = {tokens} }}")),
        _ if text.starts_with('{') => Ok(text.to_owned()),
        _ => Err(format!(
            "a number of tokens up to {MAX_COUNT}, or a distribution such as `{{ lognormal = {{ median = 300 }} }}`"
        )),
    }
}

/// The grouping policies by their names in plans and budgets.
#[derive(Clone, Copy, ValueEnum)]
enum Grouping {
    /// One pool per compatibility class
    ByKey,
    /// One pool per window; a mix inside one is an error
    ByWindow,
    /// The first resource of a kind is the reference; what does not match it is local
    FirstReference,
}

impl From<Grouping> for Policy {
    fn from(grouping: Grouping) -> Self {
        match grouping {
            Grouping::ByKey => Self::ByKey,
            Grouping::ByWindow => Self::ByWindow,
            Grouping::FirstReference => Self::FirstReference,
        }
    }
}

impl BudgetArgs {
    /// Flags that only tell an engine something are wrong where there is none.
    pub(crate) fn refuse_engine_flags(&self, instead: &str) -> Result<(), Failure> {
        let told = self.overrides().into_iter().find(|set| set.key.starts_with("engine."));
        let Some(Override { origin: Origin::Flag(flag), .. }) = told else { return Ok(()) };
        Err(Failure::new(2, miette!("{flag} tells an engine something; {instead}")))
    }

    /// The keys that flags set.
    pub(crate) fn overrides(&self) -> Vec<Override> {
        let text = |value: &Option<String>| value.clone();
        let small = |value: Option<u32>| value.map(|value| value.to_string());
        let count = |value: Option<u64>| value.map(|value| value.to_string());
        let bytes = |value: Option<ByteSize>| value.map(|size| size.0.to_string());
        let stated = [
            ("grouping", "--grouping", self.grouping.map(|grouping| Policy::from(grouping).to_string())),
            ("max_seq_len", "--max-seq-len", count(self.max_seq_len)),
            ("max_batch_size", "--max-batch-size", count(self.max_batch_size)),
            ("max_num_tokens", "--max-num-tokens", count(self.max_num_tokens)),
            ("tokens_per_block", "--tokens-per-block", count(self.tokens_per_block)),
            ("memory.bytes", "--memory-bytes", bytes(self.memory_bytes)),
            ("memory.weights", "--weights", bytes(self.weights)),
            ("dtypes.kv", "--kv-dtype", text(&self.kv_dtype)),
            ("dtypes.ssm", "--ssm-dtype", text(&self.ssm_dtype)),
            ("workload.prompt", "--prompt", text(&self.prompt)),
            ("workload.output", "--output", text(&self.output)),
            ("workload.prefix_reuse", "--prefix-reuse", self.prefix_reuse.map(|share| format!("{share:?}"))),
            ("workload.checkpoints_per_sequence", "--checkpoints", count(self.checkpoints)),
            ("workload.checkpoint_dtype", "--checkpoint-dtype", text(&self.checkpoint_dtype)),
            ("speculation.draft_tokens", "--draft-tokens", small(self.draft_tokens)),
            ("speculation.scheme", "--draft-scheme", text(&self.draft_scheme)),
            ("speculation.mtp_layers", "--mtp-layers", small(self.mtp_layers)),
            ("speculation.draft_weights", "--draft-weights", bytes(self.draft_weights)),
            ("host.bytes", "--host-bytes", bytes(self.host_bytes)),
            ("parallel.tp", "--tp", small(self.tp)),
            ("parallel.pp", "--pp", small(self.pp)),
            ("parallel.dp", "--dp", small(self.dp)),
            ("parallel.ep", "--ep", small(self.ep)),
            ("parallel.cp", "--cp", small(self.cp)),
            ("engine.prefix_caching", "--prefix-caching", self.prefix_caching.then(|| "true".into())),
            ("engine.block_size", "--block-size", count(self.block_size)),
            ("engine.state_slots", "--state-slots", count(self.state_slots)),
            ("engine.context", "--context", count(self.context)),
            ("engine.cache_bytes", "--cache-bytes", bytes(self.cache_bytes)),
        ];
        let set = stated.into_iter().filter_map(|(key, flag, value)| {
            Some(Override { key: key.into(), value: value?, origin: Origin::Flag(flag.into()) })
        });
        set.collect()
    }
}
