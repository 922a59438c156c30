//! The budget file: what memory there is, what limits hold, how caches are stored.
//!
//! Every key is optional. A key that is not known is an error that names the nearest known one.

use std::ops::Range;

use cacheplan_files::Shown;
use cacheplan_handlers::{DType, KvLayout};
use serde::{Deserialize, Deserializer, Serialize};
use thiserror::Error;

use crate::config::MAX_COUNT;
use crate::make::DEFAULT_TOKENS_PER_BLOCK;
use crate::mla_cache::{MlaCache, NZ_BLOCK};
use crate::size::ByteSize;
use crate::{EngineOptions, Grouping, Origin, Parallel, Speculation, Workload};

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
    pub max_seq_len: Option<u64>,
    /// The most sequences that run at once; where absent, as many as the memory admits, or 8 without a memory budget.
    pub max_batch_size: Option<u64>,
    /// The most tokens in one step; 2,048 where absent, and never below one token per sequence.
    pub max_num_tokens: Option<u64>,
    /// The order of heads and tokens inside a block of keys and values; HND where absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layout: Option<KvLayout>,
    /// Tokens in a block of a paged pool; 16 where absent.
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
    #[serde(deserialize_with = "dtype")]
    pub kv: Option<DType>,
    /// Recurrent states; float32 where absent.
    #[serde(deserialize_with = "dtype")]
    pub ssm: Option<DType>,
    /// Convolution states; the model's dtype where absent.
    #[serde(deserialize_with = "dtype")]
    pub conv: Option<DType>,
}

/// An exact share between 0 and 1, in millionths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(into = "f64")]
pub struct Fraction {
    millionths: u32,
}

impl Fraction {
    /// Everything.
    pub const ONE: Self = Self { millionths: 1_000_000 };

    /// The share nearest to `value`; `None` outside (0, 1] or with more than six decimals.
    pub fn new(value: f64) -> Option<Self> {
        let scaled = value * 1e6;
        let rounded = scaled.round();
        // A value with at most six decimals is within rounding error of a whole number of millionths.
        let exact = (scaled - rounded).abs() < 1e-6 && (1.0..=1e6).contains(&rounded);
        exact.then_some(Self { millionths: rounded as u32 })
    }

    /// The share of `bytes`, rounded down.
    pub fn of(self, bytes: u64) -> u64 {
        // At most `bytes`, so it fits.
        (u128::from(bytes) * u128::from(self.millionths) / 1_000_000) as u64
    }
}

impl From<Fraction> for f64 {
    fn from(fraction: Fraction) -> Self {
        Self::from(fraction.millionths) / 1e6
    }
}

impl<'de> Deserialize<'de> for Fraction {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = f64::deserialize(deserializer)?;
        Self::new(value).ok_or_else(|| {
            serde::de::Error::custom(format!(
                "fraction {value} is not above 0 and at most 1, with at most six decimals"
            ))
        })
    }
}

pub(crate) fn dtype<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<DType>, D::Error> {
    let name = Option::<String>::deserialize(deserializer)?;
    name.map(|name| name.parse()).transpose().map_err(serde::de::Error::custom)
}

/// A budget that cannot be read or contradicts itself.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{}: {}{}", Shown(place(origin.as_ref())), Shown(message), hint(nearest.as_deref()))]
pub struct BudgetError {
    /// Where the value at fault came from; `None` where values of several places contradict each other.
    pub origin: Option<Origin>,
    /// The bytes of the file that are at fault.
    pub span: Option<Range<usize>>,
    /// What is wrong and what would do.
    pub message: String,
    /// The known key nearest to an unknown one.
    pub nearest: Option<String>,
}

impl BudgetError {
    pub(crate) fn new(origin: Option<Origin>, message: impl Into<String>) -> Self {
        Self { origin, span: None, message: message.into(), nearest: None }
    }

    /// The exit code of a command that ends with this error: 2 where flags are wrong by themselves, else 1.
    pub const fn exit_code(&self) -> u8 {
        if matches!(self.origin, Some(Origin::Flag(_))) { 2 } else { 1 }
    }
}

fn place(origin: Option<&Origin>) -> String {
    origin.map_or_else(|| "the configuration".into(), Origin::to_string)
}

fn hint(nearest: Option<&str>) -> String {
    nearest.map(|name| format!("; did you mean `{name}`?")).unwrap_or_default()
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
    pub(crate) fn engine_mla_cache(&self) -> Option<MlaCache> {
        self.engine.mla_cache.or(self.mla_cache_mode)
    }
}

fn of_caches_alone(key: &str) -> String {
    format!("`memory.{key}` is stated beside `memory.bytes`, which are of caches alone; nothing would consume it")
}

/// Serde's message without the names of Rust's types.
pub(crate) fn in_words(message: &str) -> String {
    let words = [
        // TOML's own integers are wider than any count.
        (" as i128, expected u64", ", expected one below 2^64"),
        (", expected u64", ", expected a whole number"),
        (", expected u32", ", expected a whole number"),
        (", expected f64", ", expected a number"),
        (", expected struct ", ", expected the section "),
        // Only lengths are one of several things with a value.
        ("wanted exactly 1 element", "expected one of `fixed`, `uniform`, `lognormal`, `histogram`, `file`"),
    ];
    words.iter().fold(message.to_owned(), |message, (rust, words)| message.replace(rust, words))
}

/// The expected key nearest to the unknown one, read from serde's own message.
pub(crate) fn nearest_key(message: &str) -> Option<String> {
    let mut quoted = message.strip_prefix("unknown ")?.split('`').skip(1).step_by(2);
    let unknown = quoted.next()?;
    nearest(unknown, quoted)
}

/// The known name that `unknown` was probably meant to be.
pub(crate) fn nearest<'a>(unknown: &str, known: impl Iterator<Item = &'a str>) -> Option<String> {
    known
        .map(|known| (Shown(unknown).distance(known), known))
        .min()
        .filter(|(distance, known)| *distance <= known.len().div_ceil(2))
        .map(|(_, known)| known.to_owned())
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
    #[case("[dtypes]\nkv = 'fp7'\n", "unknown dtype")]
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
