//! The budget file: what memory there is, what limits hold, how caches are stored.
//!
//! Every key is optional. A key that is not known is an error that names the nearest known one.

mod error;
mod options;
mod values;
mod workload;

use cacheplan_handlers::{DType, KvLayout};
use cacheplan_transforms::Resources;
use serde::{Deserialize, Serialize};

use crate::limits::{DEFAULT_TOKENS_PER_BLOCK, MAX_COUNT};
pub use crate::mla_cache::MlaCache;
use crate::mla_cache::NZ_BLOCK;
use crate::parallel::Parallel;
use crate::plan::{Grouping, Scheme};
use crate::size::ByteSize;

pub use error::{BudgetError, Origin};
pub(crate) use error::{in_words, nearest, nearest_key};
pub use options::{EngineOptions, MambaCacheMode};
pub use values::Fraction;
pub(crate) use workload::Sample;
pub use workload::{CheckpointDType, CheckpointStrategy, Lengths, Workload};

/// A budget as written; [`PlanRequest::plan`](crate::PlanRequest::plan) fills in what is absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Budget {
    /// How resources are grouped into pools; `by-key` where absent.
    pub grouping: Option<Grouping>,
    /// Whether it is an error that something which grows with sequences has no manager; false where absent.
    pub reject_unmanaged: bool,
    /// Whether it is an error that paged caches need more than one pool, as moving them between machines may ask.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub require_uniform: bool,
    /// The longest sequence, prompt and output, in tokens; where absent 4,096 or the model's maximum if lower.
    #[serde(deserialize_with = "values::tokens")]
    pub max_seq_len: Option<u64>,
    /// The most sequences that run at once; where absent, as many as the memory admits, or 8 without a memory budget.
    pub max_batch_size: Option<u64>,
    /// The most tokens in one step; 2,048 where absent, and never below one token per sequence.
    #[serde(deserialize_with = "values::tokens")]
    pub max_num_tokens: Option<u64>,
    /// The order of heads and tokens inside a block of keys and values; HND where absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layout: Option<KvLayout>,
    /// Tokens in a block of a paged pool; 16 where absent.
    #[serde(deserialize_with = "values::tokens")]
    pub tokens_per_block: Option<u64>,
    /// The cache mode of Ascend's MLA operator that latents are laid out in; joined with their rope keys where absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mla_cache_mode: Option<MlaCache>,
    /// What to find the most of; `sequences` where absent.
    pub maximize: Option<Objective>,
    /// The bytes to divide; without it the limits alone size the pools.
    pub memory: Option<Memory>,
    /// How caches are stored where the model does not say.
    pub dtypes: Dtypes,
    /// The sequences to size for; without it each is `max_seq_len` long.
    pub workload: Option<Workload>,
    /// Speculative decoding.
    pub speculation: Option<Speculation>,
    /// Several devices.
    pub parallel: Parallel,
    /// Host memory that caches are offloaded to.
    pub host: Option<Host>,
    /// What an engine is told when its allocation is predicted.
    pub engine: EngineOptions,
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

/// How many tokens are drafted, and how states are rolled back to the accepted ones.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Speculation {
    /// Tokens that are drafted in each step.
    pub draft_tokens: u32,
    /// How states are rolled back.
    #[serde(default)]
    pub scheme: Scheme,
    /// Layers of the model's own prediction head, each with caches like those of its last full-attention layer.
    #[serde(default)]
    pub mtp_layers: u32,
    /// Bytes of the draft model's weights over all ranks; where absent those that its files hold, or its dimensions tell.
    #[serde(default)]
    pub draft_weights: Option<ByteSize>,
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

/// Host memory that caches are offloaded to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Host {
    /// Its bytes.
    pub bytes: ByteSize,
}

/// The bytes to divide: either `bytes` for the caches, or a `fraction` of a named base for the whole process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Memory {
    /// Bytes for the caches alone.
    pub bytes: Option<ByteSize>,
    /// A share of the device's memory, with at most six decimals; needs `of`.
    pub fraction: Option<Fraction>,
    /// What `fraction` is a share of.
    pub of: Option<Base>,
    /// Bytes that nobody may use; 0 where absent.
    pub reserve: Option<ByteSize>,
    /// Bytes of the model's weights over all ranks; where absent those that its files hold, or its dimensions tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weights: Option<ByteSize>,
    /// Peak bytes of one step besides weights and caches; assumed from `max_num_tokens` where absent and not measured.
    pub activations: Option<ByteSize>,
    /// Bytes of captured CUDA graphs; assumed on a GPU where absent and not measured.
    pub graphs: Option<ByteSize>,
    /// Whether what assumed bytes may be more is kept free too.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub safe: bool,
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

/// Dtypes for caches whose dtype the model does not state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Dtypes {
    /// Keys and values; the model's dtype where absent.
    #[serde(deserialize_with = "values::kv_dtype")]
    pub kv: Option<DType>,
    /// Recurrent states; float32 where absent.
    #[serde(deserialize_with = "values::state_dtype")]
    pub ssm: Option<DType>,
    /// Convolution states; the model's dtype where absent.
    #[serde(deserialize_with = "values::state_dtype")]
    pub conv: Option<DType>,
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

    /// The budget for so many devices: they are tensor parallel ranks where nobody says how the model is divided. Says
    /// whether that was so.
    ///
    /// # Errors
    /// In words, another number of ranks.
    pub fn divide_over(&mut self, devices: u32) -> Result<bool, String> {
        let assumed = devices > 1 && self.parallel == Parallel::default();
        if assumed {
            self.parallel.tp = devices;
        }
        match self.parallel.world_size() {
            ranks if devices > 1 && ranks != u64::from(devices) => {
                Err(format!("{devices} devices are named, but [parallel] has {ranks} ranks"))
            }
            _ => Ok(assumed),
        }
    }

    /// The budget, unless its keys contradict each other.
    pub(crate) fn validated(self) -> Result<Self, BudgetError> {
        match self.validate() {
            Ok(()) => Ok(self),
            Err(message) => Err(BudgetError::new(None, message)),
        }
    }

    /// What contradicts itself, in words.
    pub(crate) fn validate(&self) -> Result<(), String> {
        let counts = [
            ("max_seq_len", self.max_seq_len),
            ("max_batch_size", self.max_batch_size),
            ("max_num_tokens", self.max_num_tokens),
            ("tokens_per_block", self.tokens_per_block),
        ];
        for (key, value) in counts {
            if let Some(value) = value
                && !(1..=MAX_COUNT).contains(&value)
            {
                return Err(format!("`{key}` is {value}; it must be between 1 and {MAX_COUNT}"));
            }
        }
        let checkpoints = self.workload.as_ref().map_or(0, |workload| workload.checkpoints_per_sequence);
        if checkpoints > MAX_COUNT {
            return Err(format!(
                "`workload.checkpoints_per_sequence` is {checkpoints}; it must be at most {MAX_COUNT}"
            ));
        }
        self.parallel.validate()?;
        if let Some(speculation) = &self.speculation {
            if !(1..=1024).contains(&speculation.draft_tokens) {
                return Err("`speculation.draft_tokens` must be between 1 and 1024".into());
            }
            if speculation.mtp_layers > 1024 {
                return Err("`speculation.mtp_layers` must be at most 1024".into());
            }
        }
        if let Some(workload) = self.workload.as_ref().filter(|workload| workload.checkpoints_per_sequence == 0) {
            let of_checkpoints = [
                ("checkpoint_dtype", workload.checkpoint_dtype.is_some()),
                ("checkpoint_strategy", workload.checkpoint_strategy.is_some()),
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

impl Budget {
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
    #[case(
        "[dtypes]\nssm = 'nvfp4'\n",
        "b.toml:2: no states are stored in `nvfp4`; write one of f32, f16, bf16, f8_e4m3, f8_e5m2, int8"
    )]
    #[case("[dtypes]\nconv = 'int32'\n", "no states are stored in `int32`")]
    #[case("[engine]\ncache_type_v = 'int32'\n", "no keys and values are stored in `int32`")]
    #[case("max_seq_len = 0\n", "must be between")]
    #[case("max_seq_len = -4\n", "invalid value")]
    #[case("max_seq_len =\n", "b.toml:1")]
    #[case("[speculation]\ndraft_tokens = 1025\n", "between 1 and 1024")]
    #[case("[speculation]\ndraft_tokens = 1\nmtp_layers = 1025\n", "at most 1024")]
    #[case("workload.prompt = {}\n", "expected one of `fixed`, `uniform`")]
    #[case("max_seq_len = 99999999999999999999\n", "expected one below 2^64")]
    fn a_bad_value_says_what_would_do(#[case] text: &str, #[case] expected: &str) {
        let error = Budget::from_toml(text, "b.toml").unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}
