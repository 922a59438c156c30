//! The budget file: what memory there is, what limits hold, how caches are stored.
//!
//! Every key is optional. A key that is not known is an error that names the nearest known one.

mod error;
pub mod key;
mod options;
mod values;
mod workload;

use std::sync::LazyLock;

use cacheplan_handlers::{DType, KvLayout};
use cacheplan_transforms::Resources;
use serde::{Deserialize, Serialize};

use self::key::{BLOCK, BudgetKey, SEQUENCES, TOKENS, Values, section};
use crate::limits::DEFAULT_TOKENS_PER_BLOCK;
pub use crate::mla_cache::MlaCache;
use crate::mla_cache::{MLA_CACHES, NZ_BLOCK};
use crate::parallel::Parallel;
use crate::plan::{Grouping, Scheme};
use crate::size::ByteSize;

pub use error::{BudgetError, Origin};
pub(crate) use error::{in_words, nearest, nearest_key};
pub use options::{EngineOptions, MambaCacheMode};
pub use values::{Fraction, Ratio};
pub(crate) use workload::Sample;
pub use workload::{CheckpointDType, CheckpointStrategy, Lengths, Workload};

const GROUPING_NAMES: Values = Values::Choice(&[
    ("by-key", "one pool per compatibility class"),
    ("by-window", "one pool per window; a mix inside one is an error"),
    ("first-reference", "the first resource of a kind is the reference; what does not match it is local"),
]);

const LAYOUT_NAMES: Values =
    Values::Choice(&[("HND", "[kv_factor, heads, tokens, head_dim]"), ("NHD", "[kv_factor, tokens, heads, head_dim]")]);

const MAXIMIZE_NAMES: Values = Values::Choice(&[
    ("sequences", "sequences that run at once"),
    ("tokens", "tokens in pages, beside max_batch_size sequences"),
]);

section! {
    /// A budget as written; [`PlanRequest::plan`](crate::PlanRequest::plan) fills in what is absent.
    #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields, default)]
    pub struct Budget under "" {
        /// How resources are grouped into pools.
        key("--grouping", GROUPING_NAMES, "by-key", "'by-key'")
        pub grouping: Option<Grouping>,
        /// Whether it is an error that something which grows with sequences has no manager.
        key("--reject-unmanaged", Values::Switch, "false", "true")
        pub reject_unmanaged: bool,
        /// Whether it is an error that paged caches need more than one pool.
        key("--require-uniform", Values::Switch, "false", "true")
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        pub require_uniform: bool,
        /// The longest sequence, prompt and output, in tokens.
        key("--max-seq-len", TOKENS, "4096, or the model's maximum if lower", "4096")
        #[serde(deserialize_with = "values::tokens")]
        pub max_seq_len: Option<u64>,
        /// The most sequences that run at once.
        key("--max-batch-size", SEQUENCES, "as many as the memory admits, or 8 where no memory is stated", "8")
        pub max_batch_size: Option<u64>,
        /// The most tokens in one step, never below one per sequence.
        key("--max-num-tokens", TOKENS, "2048", "2048")
        #[serde(deserialize_with = "values::tokens")]
        pub max_num_tokens: Option<u64>,
        /// The most tokens of prompts in a step of `run` in which a sequence decodes, so that it waits for no more between two of its tokens.
        key("--max-prefill-tokens", TOKENS, "what decoding leaves of max_num_tokens", "256")
        #[serde(deserialize_with = "values::tokens", skip_serializing_if = "Option::is_none")]
        pub max_prefill_tokens: Option<u64>,
        /// The order of heads and tokens inside a block of keys and values.
        key("--layout", LAYOUT_NAMES, "HND", "'HND'")
        #[serde(skip_serializing_if = "Option::is_none")]
        pub layout: Option<KvLayout>,
        /// Tokens in a block of a paged pool.
        key("--tokens-per-block", BLOCK, "16", "16")
        #[serde(deserialize_with = "values::tokens")]
        pub tokens_per_block: Option<u64>,
        /// The cache mode of Ascend's MLA operator that latents are laid out in, and that a run computes by.
        key("--mla-cache-mode", MLA_CACHES, "one tensor, without the operator", "'krope_ctkv'")
        #[serde(skip_serializing_if = "Option::is_none")]
        pub mla_cache_mode: Option<MlaCache>,
        /// What to find the most of; "tokens" needs max_batch_size.
        key("--maximize", MAXIMIZE_NAMES, "sequences", "'sequences'")
        pub maximize: Option<Objective>,
        /// The bytes to divide; without it the limits alone size the pools.
        section(Memory)
        pub memory: Option<Memory>,
        /// How caches are stored where the model does not say.
        section(Dtypes)
        pub dtypes: Dtypes,
        /// The sequences to size for; where neither prompt nor output is stated each is max_seq_len tokens long.
        section(Workload)
        pub workload: Option<Workload>,
        /// Speculative decoding; without it there is none.
        section(Speculation)
        pub speculation: Option<Speculation>,
        /// Several devices.
        section(Parallel)
        pub parallel: Parallel,
        /// Host memory that caches are offloaded to.
        section(Host)
        pub host: Option<Host>,
        /// Files of `run --disk` that cached prefixes are kept in from run to run.
        section(Disk)
        #[serde(skip_serializing_if = "Option::is_none")]
        pub disk: Option<Disk>,
        /// What an engine is told when its allocation is predicted.
        section(EngineOptions)
        pub engine: EngineOptions,
    }
}

/// What a plan finds the most of within the bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Objective {
    /// Sequences that run at once.
    #[default]
    Sequences,
    /// Tokens in pages, with `max_batch_size` sequences running.
    Tokens,
}

const SCHEME_NAMES: Values = Values::Choice(&[
    ("snapshots", "every state after each candidate is kept"),
    ("replay", "what the recurrence takes from each candidate is kept"),
]);

section! {
    /// How many tokens are drafted, and how states are rolled back to the accepted ones.
    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct Speculation under "speculation." {
        /// Tokens that are drafted in each step.
        key("--draft-tokens", Values::Count(1, 1024), needed, "3")
        pub draft_tokens: u32,
        /// How states are rolled back to the accepted tokens.
        key("--draft-scheme", SCHEME_NAMES, "snapshots", "'snapshots'")
        #[serde(default)]
        pub scheme: Scheme,
        /// Layers of the model's own prediction head, each with a KV cache.
        key("--mtp-layers", Values::Count(0, 1024), "0", "0")
        #[serde(default)]
        pub mtp_layers: u32,
        /// Weights of the draft model over all ranks, where no file tells.
        key("--draft-weights", Values::Bytes, "the draft model's own", "'1GiB'")
        #[serde(default)]
        pub draft_weights: Option<ByteSize>,
    }
}

impl Speculation {
    /// Candidate positions of a step, the committed one included.
    pub(crate) fn positions(&self) -> u64 {
        u64::from(self.draft_tokens) + 1
    }

    /// How the states of a model are rolled back, unless a pass has collected what they need already.
    pub(crate) fn rollback_of(&self, resources: &Resources) -> Option<Scheme> {
        let has_twins = resources.iter().any(|resource| resource.handler.is_speculative());
        (!has_twins).then_some(self.scheme)
    }
}

section! {
    /// Host memory that caches are offloaded to.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct Host under "host." {
        /// Its bytes.
        key("--host-bytes", Values::Bytes, needed, "'64GiB'")
        pub bytes: ByteSize,
    }
}

section! {
    /// Files of `run --disk` that cached prefixes are kept in from run to run.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct Disk under "disk." {
        /// Their bytes at most.
        key("--disk-bytes", Values::Bytes, needed, "'256GiB'")
        pub bytes: ByteSize,
    }
}

const OF_NAMES: Values = Values::Choice(&[
    ("free", "of what is left for caches, as TensorRT-LLM means it"),
    ("total", "of all memory, as vLLM and SGLang do"),
]);

section! {
    /// The bytes to divide: either `bytes` for the caches, or a `fraction` of a named base for the whole process.
    #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields, default)]
    pub struct Memory under "memory." {
        /// Bytes for the caches alone; instead of fraction.
        key("--memory-bytes", Values::Bytes, "not set", "'24GiB'")
        pub bytes: Option<ByteSize>,
        /// A share of the device's memory, with at most six decimals; needs of.
        key("--memory-fraction", Values::Fraction, "not set", "0.9")
        pub fraction: Option<Fraction>,
        /// What fraction is a share of: "free" as TensorRT-LLM means it, "total" as vLLM and SGLang do.
        key("--memory-of", OF_NAMES, "not set", "'free'")
        pub of: Option<Base>,
        /// Bytes that nobody may use.
        key("--reserve", Values::Bytes, "0", "'512MiB'")
        pub reserve: Option<ByteSize>,
        /// Weights over all ranks, where no file tells.
        key("--weights", Values::Bytes, "the model's own", "'61GiB'")
        #[serde(skip_serializing_if = "Option::is_none")]
        pub weights: Option<ByteSize>,
        /// Peak bytes of one step besides weights and caches.
        key("--activations", Values::Bytes, "assumed from max_num_tokens unless measured", "'512MiB'")
        pub activations: Option<ByteSize>,
        /// What a process has on a device before anything else: the device's context and libraries.
        key("--device-context", Values::Bytes, "assumed on a GPU unless measured", "'500MiB'")
        #[serde(skip_serializing_if = "Option::is_none")]
        pub context: Option<ByteSize>,
        /// Bytes of captured CUDA graphs.
        key("--graphs", Values::Bytes, "assumed on a GPU unless measured", "'600MiB'")
        pub graphs: Option<ByteSize>,
        /// Whether what assumed bytes may be more is kept free too.
        key("--safe", Values::Switch, "false", "true")
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        pub safe: bool,
    }
}

impl Memory {
    /// A share of what is free once weights, reserve, activations and states are served; `None` outside (0, 1] or with
    /// more than six decimals.
    pub fn of_free(share: f64) -> Option<Self> {
        let fraction = Some(Fraction::new(share)?);
        Some(Self { fraction, of: Some(Base::Free), ..Self::default() })
    }
}

/// What a memory fraction is a share of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Base {
    /// Of the bytes left once weights, reserve, activations and states are served: TensorRT-LLM's meaning.
    Free,
    /// Of all the device's memory, weights and activations included: vLLM's and SGLang's meaning.
    Total,
}

section! {
    /// Dtypes for caches whose dtype the model does not state.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields, default)]
    pub struct Dtypes under "dtypes." {
        /// Keys and values.
        key("--kv-dtype", Values::DType, "the model's dtype", "'fp8'")
        #[serde(deserialize_with = "values::kv_dtype")]
        pub kv: Option<DType>,
        /// Recurrent states.
        key("--ssm-dtype", Values::DType, "the model's own, else f32", "'f32'")
        #[serde(deserialize_with = "values::state_dtype")]
        pub ssm: Option<DType>,
        /// Convolution states.
        key("--conv-dtype", Values::DType, "the model's dtype", "'bf16'")
        #[serde(deserialize_with = "values::state_dtype")]
        pub conv: Option<DType>,
    }
}

impl Budget {
    /// Reads a budget from TOML; `origin` names the text in errors.
    ///
    /// # Errors
    /// Text that is no TOML, an unknown key, a value of the wrong kind, or keys that contradict each other.
    pub fn from_toml(text: &str, origin: &str) -> Result<Self, BudgetError> {
        let at = |line| Some(Origin::File { name: origin.to_owned(), line });
        let budget: Self = cacheplan_files::Source::parse_toml(text).map_err(|error| {
            let message = in_words(&error.message);
            BudgetError { origin: at(error.line), span: error.span, nearest: nearest_key(&message), message }
        })?;
        budget.validated().map_err(|error| BudgetError { origin: at(None), ..error })
    }

    /// The budget, unless its keys contradict each other.
    pub(crate) fn validated(self) -> Result<Self, BudgetError> {
        // What devices divide over is not known yet.
        let divided = self.parallel.world_size() > 1;
        match self.validate_keys().and_then(|()| if divided { self.parallel.validate() } else { Ok(()) }) {
            Ok(()) => Ok(self),
            Err(message) => Err(BudgetError::new(None, message)),
        }
    }

    /// What contradicts itself, in words.
    pub(crate) fn validate(&self) -> Result<(), String> {
        self.validate_keys()?;
        self.parallel.validate()
    }

    /// The same of one that devices have not divided yet.
    pub(crate) fn validate_keys(&self) -> Result<(), String> {
        self.validate_ranges()?;
        if let Some(workload) = self.workload.as_ref().filter(|workload| workload.checkpoints_per_sequence == 0) {
            let of_checkpoints = [
                ("checkpoint_dtype", workload.checkpoint_dtype.is_some()),
                ("checkpoint_strategy", workload.checkpoint_strategy.is_some()),
                ("checkpoint_interval", workload.checkpoint_interval.is_some()),
            ];
            if let Some((key, _)) = of_checkpoints.into_iter().find(|(_, stated)| *stated) {
                return Err(format!("`workload.{key}` is stated, but `workload.checkpoints_per_sequence` is 0"));
            }
        }
        self.validate_mla_cache()?;
        if self.maximize == Some(Objective::Tokens) && self.max_batch_size.is_none() {
            return Err("`maximize = \"tokens\"` needs `max_batch_size`, the sequences to serve meanwhile".into());
        }
        match &self.memory {
            Some(Memory { bytes: None, fraction: None, .. }) => {
                Err("`[memory]` states neither `bytes` nor `fraction`; nothing would consume it".into())
            }
            Some(Memory { bytes: Some(_), fraction: Some(_), .. }) => {
                Err("`memory.bytes` and `memory.fraction` are both stated; keep one".into())
            }
            Some(Memory { bytes: Some(_), reserve: Some(_), .. }) => Err(of_caches_alone("reserve")),
            Some(Memory { bytes: Some(_), safe: true, .. }) => Err(of_caches_alone("safe")),
            Some(Memory { fraction: Some(_), of: None, .. }) => {
                Err("`memory.fraction` needs `of = \"free\"` or `of = \"total\"`; engines differ in what they mean"
                    .into())
            }
            Some(Memory { fraction: None, of: Some(_), .. }) => {
                Err("`memory.of` is stated without `memory.fraction`; nothing would consume it".into())
            }
            _ => Ok(()),
        }
    }
}

impl BudgetKey {
    /// All keys, section by section.
    pub fn all() -> &'static [Self] {
        static ALL: LazyLock<Vec<BudgetKey>> = LazyLock::new(|| {
            let sections = Budget::SECTIONS.iter().map(|section| section.keys);
            std::iter::once(Budget::KEYS).chain(sections).flatten().cloned().collect()
        });
        &ALL
    }
}

impl Budget {
    /// That every number is one that its key takes.
    fn validate_ranges(&self) -> Result<(), String> {
        let stated = serde_json::to_value(self).map_err(|error| error.to_string())?;
        let refused = BudgetKey::all().iter().find_map(|key| {
            let mut names = key.path.split('.');
            key.outside(names.try_fold(&stated, |value, name| value.get(name))?.as_u64()?)
        });
        refused.map_or(Ok(()), Err)
    }

    /// That blocks are those of the operator's cache mode.
    fn validate_mla_cache(&self) -> Result<(), String> {
        let Some(mode) = self.mla_cache_mode else { return Ok(()) };
        let (name, tokens) = (mode.name(), self.tokens_per_block.unwrap_or(DEFAULT_TOKENS_PER_BLOCK));
        if !mode.takes_blocks_of(tokens) {
            let known = if mode.is_nz() { "" } else { "at most " };
            return Err(format!(
                "`mla_cache_mode = \"{name}\"` has blocks of {known}{NZ_BLOCK} tokens; `tokens_per_block` is {tokens}"
            ));
        }
        if mode.is_nz() && self.layout == Some(KvLayout::Nhd) {
            return Err(format!("`mla_cache_mode = \"{name}\"` keeps columns before tokens; `layout` must be \"HND\""));
        }
        Ok(())
    }

    /// How an engine on Ascend stores latents: as it is said to, or as the plan does.
    pub fn engine_mla_cache(&self) -> Option<MlaCache> {
        self.engine.mla_cache.or(self.mla_cache_mode)
    }
}

fn of_caches_alone(key: &str) -> String {
    format!("`memory.{key}` is stated beside `memory.bytes`, which are of caches alone; nothing would consume it")
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[test]
    fn a_full_budget_reads() {
        let text = r#"
            grouping = "first-reference"
            max_seq_len = 8192
            max_batch_size = 4
            tokens_per_block = 16
            [memory]
            fraction = 0.9
            of = "free"
            reserve = "512MiB"
            [dtypes]
            kv = "fp8"
        "#;
        let budget = Budget::from_toml(text, "b.toml").unwrap();
        assert_eq!(budget.grouping, Some(Grouping::FirstReference));
        assert_eq!(budget.dtypes.kv, Some(DType::F8E4m3));
        let memory = budget.memory.unwrap();
        assert_eq!(memory.fraction.unwrap().of(1_000_000), 900_000);
        assert_eq!(memory.reserve, Some(ByteSize(512 << 20)));
    }

    #[test]
    fn tokens_and_bytes_read_as_people_write_them() {
        let text =
            "max_seq_len = '32k'\nmax_num_tokens = 8192\n[memory]\nbytes = '24gib'\n[engine]\nblock_size = '1k'\n";
        let budget = Budget::from_toml(text, "b.toml").unwrap();
        assert_eq!((budget.max_seq_len, budget.max_num_tokens), (Some(32_768), Some(8192)));
        assert_eq!((budget.memory.unwrap().bytes, budget.engine.block_size), (Some(ByteSize(24 << 30)), Some(1024)));
    }

    #[rstest]
    #[case("max_seq_length = 1\n", 1, "max_seq_len")]
    #[case("max_seq_len = 1\n[memory]\nbyte = 1\n", 3, "bytes")]
    #[case("[dtypes]\nkvs = 'fp8'\n", 2, "kv")]
    #[case("grouping = 'by-windows'\n", 1, "by-window")]
    fn an_unknown_key_names_its_line_and_the_nearest_known_one(
        #[case] text: &str,
        #[case] line: usize,
        #[case] nearest: &str,
    ) {
        let error = Budget::from_toml(text, "b.toml").unwrap_err();
        assert_eq!(error.origin, Some(Origin::File { name: "b.toml".into(), line: Some(line) }), "{error}");
        assert_eq!(error.nearest.as_deref(), Some(nearest), "{error}");
    }

    #[rstest]
    #[case("[memory]\nfraction = 0.9\n", "needs `of")]
    #[case("[memory]\n", "neither")]
    #[case("[memory]\nbytes = '1GiB'\nfraction = 0.5\nof = 'free'\n", "keep one")]
    #[case("[memory]\nbytes = 5\nof = 'free'\n", "without `memory.fraction`")]
    #[case("[memory]\nbytes = 5\nreserve = 1\n", "nothing would consume it")]
    #[case("[memory]\nbytes = 5\nsafe = true\n", "nothing would consume it")]
    #[case("[memory]\nfraction = 1.5\nof = 'total'\n", "at most 1")]
    #[case("[memory]\nbytes = '12 apples'\n", "not a byte size")]
    #[case("[memory]\nbytes = '24'\n", "`24` has no unit; write \"24GiB\", or \"24B\" for bytes")]
    #[case("[memory]\nbytes = '80g'\n", "write \"80GiB\" or \"80GB\"")]
    #[case("max_seq_len = '32kb'\n", "write one such as 32768, 32k")]
    #[case("[engine]\nblock_size = 1.5\n", "expected a whole number")]
    #[case("[dtypes]\nkv = 'fp7'\n", "unknown dtype")]
    #[case("[dtypes]\nkv = 'int32'\n", "no keys and values are stored in `int32`; write one of f32, f16,")]
    #[case("[dtypes]\nssm = 'nvfp4'\n", "b.toml:2: no live states are stored in `nvfp4`; write one of f32, f16, bf16")]
    #[case("[dtypes]\nconv = 'fp8'\n", "no live states are stored in `fp8`")]
    #[case(
        "[dtypes]\nssm = 'int8'\n",
        "no live states are stored in `int8`; write one of f32, f16, bf16; what is kept of them for reuse can be, with `workload.checkpoint_dtype"
    )]
    #[case("[engine]\ncache_type_v = 'int32'\n", "no keys and values are stored in `int32`")]
    #[case("max_seq_len = 0\n", "must be between")]
    #[case("max_seq_len = -4\n", "invalid value")]
    #[case("max_seq_len =\n", "b.toml:1")]
    #[case("[speculation]\ndraft_tokens = 1025\n", "between 1 and 1024")]
    #[case("[speculation]\ndraft_tokens = 1\nmtp_layers = 1025\n", "between 0 and 1024")]
    #[case("workload.prompt = {}\n", "expected one of `fixed`, `uniform`")]
    #[case("max_seq_len = 99999999999999999999\n", "expected one below 2^64")]
    fn a_bad_value_says_what_would_do(#[case] text: &str, #[case] expected: &str) {
        let error = Budget::from_toml(text, "b.toml").unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}
