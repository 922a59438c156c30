//! What other engines would allocate for the same model and bytes.
//!
//! Each engine is a description over our resources: how it groups layers, what a page is, how it divides bytes. Which
//! version a rule was read from, or which logged sizes it reproduces, stands beside the rule.

mod caches;
mod llama_cpp;
mod sglang;
mod tensorrt_llm;
mod vllm;

use std::fmt;
use std::str::FromStr;

use cacheplan_handlers::DType;
use cacheplan_transforms::ModelInfo;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::budget::Budget;
use crate::demand::Load;
use crate::{CachePlan, PlanError, PlanRequest, make};

use caches::Caches;

/// An engine that is modelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Engine {
    /// vLLM: one shared pool of equal pages for groups of layers.
    #[serde(rename = "vllm")]
    Vllm,
    /// SGLang: a token pool and a state pool at a fixed ratio.
    #[serde(rename = "sglang")]
    Sglang,
    /// TensorRT-LLM: block pools per window, and states for the largest batch.
    #[serde(rename = "tensorrt-llm")]
    TensorRtLlm,
    /// llama.cpp: cells for a fixed context, and float32 states.
    #[serde(rename = "llama.cpp")]
    LlamaCpp,
}

/// `major.minor.patch`; a missing part is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub u32, pub u32, pub u32);

/// An engine at a version: `vllm@0.19.0`, or `vllm` for the newest that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EngineSpec {
    /// The engine.
    pub engine: Engine,
    /// Its version.
    pub version: Version,
}

/// A text that names no engine that is modelled.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum UnknownEngine {
    /// No such engine.
    #[error(
        "unknown engine `{0}`; known are vllm, sglang, tensorrt-llm and llama.cpp, each with `@VERSION` or without"
    )]
    Name(String),
    /// A version that is none, or above the newest that was read.
    #[error("unknown version `{version}` of {engine}; versions up to {newest} are modelled")]
    Version {
        /// The engine.
        engine: Engine,
        /// What was asked for.
        version: String,
        /// The newest modelled.
        newest: Version,
    },
}

/// What an engine is told besides the budget's limits; its own defaults where absent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EngineOptions {
    /// Bytes for its caches, as it logs them; the plan's own cache bytes where absent.
    pub cache_bytes: Option<crate::ByteSize>,
    /// Tokens in a block or page.
    pub block_size: Option<u64>,
    /// Whether prefixes are kept for reuse; off where absent, for every engine alike.
    pub prefix_caching: Option<bool>,
    /// SGLang's `max_mamba_cache_size`, TensorRT-LLM's and llama.cpp's parallel sequences.
    pub state_slots: Option<u64>,
    /// SGLang's `mamba_full_memory_ratio`, 0.9 where absent.
    pub state_ratio: Option<crate::Fraction>,
    /// SGLang's `swa_full_tokens_ratio`, 0.8 where absent.
    pub window_ratio: Option<crate::Fraction>,
    /// How an engine on Ascend stores latents.
    pub mla_cache: Option<MlaCache>,
    /// llama.cpp's `-c`: cells for all sequences together.
    pub context: Option<u64>,
    /// llama.cpp's `-ub`, 512 where absent.
    pub ubatch: Option<u64>,
}

/// The cache modes of Ascend's fused MLA preprocessing, each with its own bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MlaCache {
    /// Latent and rope key in one tensor.
    Kvcache,
    /// The same in two tensors.
    KropeCtkv,
    /// An int8 latent and a 16-bit rope key, in the NZ layout: rows of 32 and 16 elements.
    Int8Nz,
    /// Both at 16 bits in the NZ layout: rows of 16 elements.
    Nz,
}

/// What an engine would allocate; what it has no notion of is absent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnginePrediction {
    /// The engine's name.
    pub name: String,
    /// The version whose rules were used.
    pub version: String,
    /// Tokens in a block or page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub block_size: Option<u64>,
    /// Bytes of one layer's page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page_bytes: Option<u64>,
    /// Groups of layers that share a block table.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub groups: Option<u64>,
    /// Layers in a group, padding included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group_size: Option<u64>,
    /// Blocks, those that pad included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub num_blocks: Option<u64>,
    /// Blocks that one sequence of `max_seq_len` tokens needs over all groups.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocks_per_request: Option<u64>,
    /// Tokens in this version's sense: what it logs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// Tokens of the pool for sliding windows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window_tokens: Option<u64>,
    /// Slots for states, padding excluded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state_slots: Option<u64>,
    /// Bytes of pages, or of the one pool that also holds states.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_bytes: Option<u64>,
    /// Bytes of states in pools of their own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state_bytes: Option<u64>,
    /// Bytes of recurrent states among them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ssm_bytes: Option<u64>,
    /// Bytes of convolution states among them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conv_bytes: Option<u64>,
    /// Bytes of buffers for speculation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speculation_bytes: Option<u64>,
    /// Sequences of the budget's workload that run at once.
    pub sequences: u64,
    /// Bytes of the budget that hold nothing such a sequence needs.
    pub wasted_bytes: u64,
    /// What limits the sequences, and the rules used with where each comes from.
    pub notes: Vec<String>,
}

/// A plan with an engine's prediction beside it, as one JSON object.
#[derive(Clone, Debug, Serialize)]
pub struct EnginePlan<'a> {
    /// Our plan.
    #[serde(flatten)]
    pub plan: &'a CachePlan,
    /// The engine's allocation.
    pub engine: EnginePrediction,
}

impl EnginePlan<'_> {
    /// Both as YAML, with the keys of their JSON.
    pub fn yaml(&self) -> String {
        // Plain data always has a JSON value.
        crate::render::yaml(&serde_json::to_value(self).unwrap_or_default())
    }

    /// Both as text tables, at most 100 columns wide.
    pub fn table(&self) -> String {
        format!("{}\n{}", self.plan.table(), self.engine.table())
    }

    /// Both as Markdown.
    pub fn markdown(&self) -> String {
        format!("{}\n{}", self.plan.markdown(), self.engine.markdown())
    }
}

/// Everything that an engine's rules look at.
struct Setting<'a> {
    caches: Caches<'a>,
    /// Lengths in this engine's page sizes are derived from this.
    load: Load,
    options: &'a EngineOptions,
    budget: &'a Budget,
    /// Bytes for caches; `None` if the budget states none.
    bytes: Option<u64>,
    draft_tokens: u64,
    version: Version,
}

/// Predicts what `engine` would allocate for the model and budget of `request`.
///
/// The resources must have been collected with [`EngineSpec::state_dtype`] and [`EngineSpec::conv_dtype`].
///
/// # Errors
/// A budget that does not hold one sequence, or without any bytes where the engine needs them.
pub fn predict(request: &PlanRequest<'_>, engine: EngineSpec) -> Result<EnginePrediction, PlanError> {
    request.budget.validate().map_err(PlanError::Budget)?;
    let held = request.held_by_engine()?;
    let max_seq_len = request.budget.max_seq_len_for(request.model);
    let load = make::load(request.budget, max_seq_len)?;
    let options = &request.budget.engine;
    let bytes = match options.cache_bytes {
        Some(bytes) => Some(bytes.0),
        None => make::available_bytes(request, &load)?,
    };
    let draft_tokens = request.budget.speculation.as_ref().map_or(0, |speculation| speculation.draft_tokens.into());
    if let Some(unread) = held.iter().find(|resource| resource.handler.kind().name() == "core.compressed_latent") {
        return Err(PlanError::Engine(format!(
            "{}: the rules for compressed attention (`{}`) were not read; nothing is predicted rather than guessed",
            engine.engine, unread.name
        )));
    }
    let caches = Caches::of(&held, max_seq_len, options.mla_cache, engine.engine);
    let setting =
        Setting { caches, load, options, budget: request.budget, bytes, draft_tokens, version: engine.version };
    let mut prediction = match engine.engine {
        Engine::Vllm => vllm::predict(&setting),
        Engine::Sglang => sglang::predict(&setting),
        Engine::TensorRtLlm => tensorrt_llm::predict(&setting),
        Engine::LlamaCpp => llama_cpp::predict(&setting),
    }?;
    prediction.name = engine.engine.to_string();
    prediction.version = engine.version_name();
    let read = engine.engine.read();
    if !read.contains(&engine.version) {
        let name = |version: &Version| EngineSpec { version: *version, ..engine }.version_name();
        let names: Vec<String> = read.iter().map(name).collect();
        prediction.notes.push(format!(
            "{} was not read itself: its rules are those of {}, with the changes that were merged between",
            prediction.version,
            names.join(" and ")
        ));
    }
    if let Some(bytes) = bytes {
        let needed = u128::from(prediction.sequences) * setting.caches.bytes_per_sequence(&setting.load);
        prediction.wasted_bytes = bytes.saturating_sub(u64::try_from(needed).unwrap_or(u64::MAX));
    }
    Ok(prediction)
}

/// Bytes that one sequence of the workload needs at least as the engine stores it.
pub(crate) fn bytes_per_sequence(
    request: &PlanRequest<'_>,
    load: &Load,
    engine: EngineSpec,
) -> Result<u128, PlanError> {
    let held = request.held_by_engine()?;
    let (engine, options) = (engine.engine, &request.budget.engine);
    Ok(Caches::of(&held, load.max_seq_len, options.mla_cache, engine).bytes_per_sequence(load))
}

impl Setting<'_> {
    fn bytes(&self) -> Result<u64, PlanError> {
        let missing = "an engine divides bytes: state `[memory]` (--memory-bytes), a device (--device-memory), or its own cache bytes (--cache-bytes)";
        self.bytes.ok_or_else(|| PlanError::Budget(missing.into()))
    }

    fn prefix_caching(&self) -> bool {
        self.options.prefix_caching.unwrap_or(false)
    }

    fn does_not_fit(&self, needed: u128, what: &str) -> PlanError {
        let available = self.bytes.unwrap_or(0);
        let needed = u64::try_from(needed).unwrap_or(u64::MAX);
        PlanError::DoesNotFit(Box::new(crate::Shortfall {
            sequences: 1,
            max_seq_len: self.load.max_seq_len,
            needed,
            available,
            shortfall: needed.saturating_sub(available),
            capped_by: what.into(),
            overdrawn: None,
            suggestions: Vec::new(),
        }))
    }
}

impl EngineSpec {
    /// The version as the engine writes it: builds of llama.cpp are `b5913`.
    pub fn version_name(self) -> String {
        match self.engine {
            Engine::LlamaCpp => format!("b{}", self.version.0),
            _ => self.version.to_string(),
        }
    }

    /// The dtype of recurrent states whose dtype the model does not state.
    pub const fn state_dtype(self, model: &ModelInfo) -> DType {
        match self.engine {
            // `auto` follows the model's dtype (logged: Qwen3-Next bf16 in 0.10 to 0.13, Granite 4 bf16).
            Engine::Vllm | Engine::TensorRtLlm => model.dtype,
            Engine::Sglang | Engine::LlamaCpp => DType::F32,
        }
    }

    /// The dtype of convolution states, whatever the model states; `None` is the model's.
    pub const fn conv_dtype(self) -> Option<DType> {
        match self.engine {
            Engine::Vllm | Engine::TensorRtLlm => None,
            Engine::Sglang => Some(DType::Bf16),
            Engine::LlamaCpp => Some(DType::F32),
        }
    }
}

impl Engine {
    /// All engines.
    pub const ALL: [Self; 4] = [Self::Vllm, Self::Sglang, Self::TensorRtLlm, Self::LlamaCpp];

    /// The newest version whose rules were read; used where none is named.
    pub const fn newest(self) -> Version {
        match self {
            Self::Vllm => Version(0, 33, 0),
            Self::Sglang => Version(0, 5, 23),
            Self::TensorRtLlm => Version(1, 3, 0),
            Self::LlamaCpp => llama_cpp::OWN_CELLS,
        }
    }

    /// The versions whose rules were read; llama.cpp's are those since a build.
    const fn read(self) -> &'static [Version] {
        match self {
            Self::Vllm => &[Version(0, 17, 1), Version(0, 33, 0)],
            Self::Sglang => &[Version(0, 5, 9), Version(0, 5, 23)],
            Self::TensorRtLlm => &[Version(1, 3, 0)],
            Self::LlamaCpp => &[llama_cpp::OWN_CELLS],
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Vllm => "vllm",
            Self::Sglang => "sglang",
            Self::TensorRtLlm => "tensorrt-llm",
            Self::LlamaCpp => "llama.cpp",
        }
    }
}

impl From<Engine> for EngineSpec {
    fn from(engine: Engine) -> Self {
        Self { engine, version: engine.newest() }
    }
}

impl FromStr for EngineSpec {
    type Err = UnknownEngine;

    fn from_str(text: &str) -> Result<Self, UnknownEngine> {
        let (name, version) = text.split_once('@').map_or((text, None), |(name, version)| (name, Some(version)));
        let engine = Engine::ALL.into_iter().find(|engine| engine.name() == name);
        let engine = engine.ok_or_else(|| UnknownEngine::Name(name.to_owned()))?;
        let Some(version) = version else { return Ok(engine.into()) };
        let newest = engine.newest();
        let unknown = || UnknownEngine::Version { engine, version: version.to_owned(), newest };
        let parsed: Version = version.parse().map_err(|()| unknown())?;
        // llama.cpp has a build every few hours; the newest rules hold until a change is read.
        if parsed > newest && engine != Engine::LlamaCpp {
            return Err(unknown());
        }
        Ok(Self { engine, version: parsed })
    }
}

impl FromStr for Version {
    type Err = ();

    /// `0.19`, `v0.20.1`, `0.16.1rc1`, `b4321`.
    fn from_str(text: &str) -> Result<Self, ()> {
        let mut parts = text.trim_start_matches(['v', 'b']).splitn(3, '.').map(|part| {
            let digits = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
            part[..digits].parse::<u32>().map_err(|_| ())
        });
        let major = parts.next().ok_or(())??;
        Ok(Self(major, parts.next().transpose()?.unwrap_or(0), parts.next().transpose()?.unwrap_or(0)))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}.{}.{}", self.0, self.1, self.2))
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("vllm@0.19.0", Engine::Vllm, Version(0, 19, 0))]
    #[case("vllm@v0.16.1rc1", Engine::Vllm, Version(0, 16, 1))]
    #[case("sglang", Engine::Sglang, Version(0, 5, 23))]
    #[case("llama.cpp@b4321", Engine::LlamaCpp, Version(4321, 0, 0))]
    fn engines_read_with_and_without_a_version(#[case] text: &str, #[case] engine: Engine, #[case] version: Version) {
        assert_eq!(text.parse(), Ok(EngineSpec { engine, version }));
    }

    #[rstest]
    #[case("vlm", "unknown engine `vlm`")]
    #[case("vllm@newest", "unknown version `newest` of vllm; versions up to 0.33.0")]
    #[case("vllm@99", "unknown version `99`")]
    fn an_unknown_engine_or_version_is_an_error(#[case] text: &str, #[case] expected: &str) {
        let error = text.parse::<EngineSpec>().unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    }
}
