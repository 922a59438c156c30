//! The engines that are modelled, and which of them at which version is meant.
//!
//! A row pairs what is known of one engine: what it allocates, how it words its start, how a plan is told to it. Nothing
//! below knows of the others.

use std::fmt;
use std::str::FromStr;

use cacheplan_handlers::DType;
use cacheplan_transforms::registry::Descriptor;
use cacheplan_transforms::{CacheDTypes, ModelInfo, Resources};
use thiserror::Error;

use super::caches::HOPPER;
use super::flags;
use super::known::{llama_cpp, sglang, tensorrt_llm, vllm};
use super::layout::{self, Layout, LayoutFlag, Told};
use super::prediction::EnginePrediction;
use super::rules::{EngineRules, Numbering};
use super::stored::{OfAttention, Stored, Telling};
use super::version::Version;
use crate::budget::{Budget, nearest};
use crate::error::EngineRefusal;
use crate::export::dialect::Key;
use crate::export::{Dialect, FlagMeaning, TargetFile};
use crate::logs::LogDialect;
use crate::overheads::EngineAssumptions;
use crate::parallel::Parallel;

/// An engine that is modelled: `vllm`, `sglang`, `tensorrt-llm` or `llama.cpp`.
#[derive(Clone, Copy)]
pub struct Engine(&'static Row);

/// What is known of one engine.
struct Row {
    rules: &'static EngineRules,
    /// How it words its start.
    words: &'static LogDialect,
    /// How a plan is told to it, where that is known.
    file: Option<&'static TargetFile>,
    /// The dtypes that it can be told to keep keys and values in, beside the model's own, on a GPU of that capability.
    kv_dtypes: fn(Version, u32) -> Vec<DType>,
    /// How it is told a layout.
    told: &'static Told,
}

/// The engines, in the order in which they are shown.
static ENGINES: [Engine; 4] = [
    Engine(&Row {
        rules: &vllm::RULES,
        words: &vllm::WORDS,
        file: Some(&flags::VLLM_FILE),
        kv_dtypes: flags::vllm_kv_dtypes,
        told: &layout::VLLM,
    }),
    Engine(&Row {
        rules: &sglang::RULES,
        words: &sglang::WORDS,
        file: Some(&flags::SGLANG_FILE),
        kv_dtypes: |version, _| flags::SGLANG.kv_dtypes(version),
        told: &layout::SGLANG,
    }),
    Engine(&Row {
        rules: &tensorrt_llm::RULES,
        words: &tensorrt_llm::WORDS,
        file: Some(&flags::TENSORRT_LLM_FILE),
        kv_dtypes: |version, _| flags::TENSORRT_LLM.kv_dtypes(version),
        told: &layout::TENSORRT_LLM,
    }),
    Engine(&Row {
        rules: &llama_cpp::RULES,
        words: &llama_cpp::WORDS,
        file: Some(&flags::LLAMA_CPP_FILE),
        kv_dtypes: |_, _| llama_cpp::KV_DTYPES.into(),
        told: &layout::LLAMA_CPP,
    }),
];

/// An engine at a version: `vllm@0.19.0`, or `vllm` for the newest that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    #[error("unknown engine `{0}`; {meant}known are {known}, each with `@VERSION` or without", meant = meant(.0), known = names())]
    Name(String),
    /// A version that is none, or outside those that are modelled.
    #[error("unknown version `{version}` of {engine}; versions from {oldest} to {newest} are modelled")]
    Version {
        /// The engine.
        engine: Engine,
        /// What was asked for.
        version: String,
        /// The oldest modelled.
        oldest: Version,
        /// The newest modelled.
        newest: Version,
    },
}

/// Other names for an engine that leave no doubt: its program, and how else it is written.
const ALSO: [(&str, &str); 3] = [("llama-server", "llama.cpp"), ("llamacpp", "llama.cpp"), ("trtllm", "tensorrt-llm")];

/// Which one was probably meant: also by a name that people have for it.
fn meant(unknown: &str) -> String {
    const OTHERS: [(&str, &str); 4] =
        [("llama", "llama.cpp"), ("ollama", "llama.cpp"), ("trt-llm", "tensorrt-llm"), ("tensorrt", "tensorrt-llm")];
    let lower = unknown.to_lowercase();
    let other = ALSO.iter().chain(&OTHERS).find(|(name, _)| *name == lower).map(|(_, engine)| (*engine).to_owned());
    let near = || nearest(&lower, Engine::all().iter().map(|engine| engine.name()));
    other.or_else(near).map(|name| format!("did you mean `{name}`? ")).unwrap_or_default()
}

/// `a, b, c and d`.
fn names() -> String {
    let names: Vec<&str> = Engine::all().iter().map(|engine| engine.name()).collect();
    match names.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
        _ => names.concat(),
    }
}

impl Engine {
    /// All engines.
    pub fn all() -> &'static [Self] {
        &ENGINES
    }

    /// The name on the command line and in plans.
    pub const fn name(self) -> &'static str {
        self.0.rules.name
    }

    /// The newest version whose rules were read; used where none is named.
    pub fn newest(self) -> Version {
        self.0.rules.read.last().copied().unwrap_or(Version(0, 0, 0))
    }

    pub(crate) const fn rules(self) -> &'static EngineRules {
        self.0.rules
    }

    pub(crate) const fn dialect(self) -> &'static LogDialect {
        self.0.words
    }

    /// The flag for tensor parallel ranks; `None` of an engine that divides no layer.
    pub fn ranks_flag(self) -> Option<&'static str> {
        self.0.told.sizes.first().copied()
    }

    /// The flag for the stages of a pipeline.
    pub fn stages_flag(self) -> Option<&'static str> {
        self.0.told.sizes.get(1).copied()
    }

    /// The flag for the tokens of a sequence; of llama.cpp for those of all.
    pub const fn length_flag(self) -> &'static str {
        self.0.told.length
    }

    /// The flag for the most sequences at once.
    pub const fn sequences_flag(self) -> &'static str {
        self.0.told.sequences
    }

    /// Whether a flag has it make 8 bits of weights that a checkpoint has in full.
    pub(crate) const fn quantizes(self) -> bool {
        self.0.told.quantizes.is_some()
    }

    pub(crate) const fn file(self) -> Option<&'static TargetFile> {
        self.0.file
    }

    /// What the key of that name, such as `max-num-seqs`, says in terms of the budget; none where no plan is told by it.
    pub fn meaning_of(self, key: &str) -> Option<FlagMeaning> {
        self.file()?.dialect.keys.iter().find(|known| known.name == key).map(Key::meaning)
    }

    /// The engine that a dialect is spoken to, where it is modelled.
    pub(crate) fn speaking(dialect: &Dialect) -> Option<Self> {
        let speaks = |engine: &&Self| engine.file().is_some_and(|own| std::ptr::eq(own.dialect, dialect));
        Self::all().iter().find(speaks).copied()
    }

    /// Refuses an option that none of `asked` consumes.
    ///
    /// # Errors
    /// The first such key, with the engines that do.
    pub fn refuse_unconsumed(asked: &[EngineSpec], budget: &Budget) -> Result<(), EngineRefusal> {
        let Some(first) = asked.first() else { return Ok(()) };
        let consumed: Vec<&str> = asked.iter().flat_map(|spec| spec.engine.0.rules.consumes).copied().collect();
        let Some(key) = budget.engine.unconsumed(&consumed).into_iter().next() else { return Ok(()) };
        let takes = |engine: &&Self| engine.0.rules.consumes.contains(&key.as_str());
        let takers = Self::all().iter().filter(takes).map(|engine| engine.name()).collect();
        Err(EngineRefusal::not_consumed(first.engine.name(), &format!("engine.{key}"), takers))
    }

    /// Refuses ranks that divide the tokens of a sequence as it has none.
    pub(crate) fn refuse_divided_tokens(self, parallel: Parallel) -> Result<(), EngineRefusal> {
        let lacks = |key: &str| !self.0.rules.divides_tokens.contains(&key);
        let stated = [("dcp", parallel.dcp), ("cp", parallel.cp)];
        let Some((key, _)) = stated.into_iter().find(|(key, size)| *size > 1 && lacks(key)) else { return Ok(()) };
        let takers = Self::all().iter().filter(|engine| engine.0.rules.divides_tokens.contains(&key));
        let takers = takers.map(|engine| engine.name()).collect();
        Err(EngineRefusal::not_consumed(self.name(), &format!("parallel.{key}"), takers))
    }
}

impl EngineSpec {
    /// What a plan that it is to run assumes of it.
    pub(crate) fn assumptions(self) -> EngineAssumptions {
        let rules = self.engine.rules();
        EngineAssumptions {
            name: rules.name,
            captures_apart: rules.captures_apart,
            logit_bytes: (rules.logit_bytes)(self.version),
            chunks_delta_rules: rules.chunks_delta_rules,
            indexed_sequences: rules.indexed_sequences,
        }
    }

    /// The command up to the model's name: `vllm serve`.
    pub fn program(self) -> &'static str {
        self.engine.0.told.program
    }

    /// The flags that divide a model over devices, whether a layout needs them or not.
    pub fn flags_of_sizes(self) -> &'static [&'static str] {
        self.engine.0.told.sizes
    }

    /// The flags of a layout; `None` where it cannot be told one.
    pub fn flags_of(self, layout: &Layout) -> Option<Vec<LayoutFlag>> {
        (self.engine.0.told.flags)(layout)
    }

    /// The dtype of 8 bits that it can be told to keep keys and values in.
    pub(crate) fn eight_bits(self, capability: Option<u32>) -> Option<DType> {
        let can = self.kv_dtypes(capability);
        [DType::F8E4m3, DType::Q8_0].into_iter().find(|dtype| can.contains(dtype))
    }

    /// The version as the engine writes it: builds of llama.cpp are `b11549`.
    pub fn version_name(self) -> String {
        self.engine.written(self.version)
    }

    /// Slots for states that a running request takes of SGLang's; other engines have one for each.
    pub fn slots_per_request(self, model_type: &str, prefix_caching: bool) -> Option<u64> {
        (self.engine.name() == sglang::RULES.name)
            .then(|| sglang::slots_per_request(model_type, prefix_caching, self.version))
    }

    /// The dtypes that it chooses for a model where nobody states them, but that of convolution states.
    pub(crate) fn dtypes(self, model: &ModelInfo, capability: Option<u32>, conv: Option<DType>) -> CacheDTypes {
        (self.engine.0.rules.dtypes)(model, self.version, capability.unwrap_or(HOPPER), conv)
    }

    /// The dtypes that it can be told to keep keys and values in, beside the model's own.
    pub(super) fn kv_dtypes(self, capability: Option<u32>) -> Vec<DType> {
        (self.engine.0.kv_dtypes)(self.version, capability.unwrap_or(HOPPER))
    }

    /// How it stores latents among a model's caches where a command says so. None of a model without latents, and where that is not
    /// known.
    ///
    /// # Errors
    /// What the engine says where no kernel of attention reads the model's caches so.
    pub fn stored(
        self,
        model: &ModelInfo,
        caches: &Resources,
        budget: &Budget,
        told: OfAttention<'_>,
    ) -> Result<Option<Stored>, EngineRefusal> {
        let (version, stated) = (self.version, budget.dtypes.kv);
        let (gfx, dcp) = (budget.engine.gfx, budget.parallel.dcp > 1);
        let capability = budget.engine.compute_capability.unwrap_or(HOPPER);
        (self.engine.0.rules.stored)(&Telling { model, caches, version, capability, gfx, stated, dcp, told })
    }

    /// What it keeps of ops of such a model in a way of its own.
    pub(crate) fn descriptor(self, model: &ModelInfo) -> Option<Descriptor> {
        (self.engine.0.rules.descriptors)(model)
    }

    /// That it has no such model, where it has none.
    pub(crate) fn lacks(self, model: &ModelInfo) -> Option<EngineRefusal> {
        let rules = self.engine.0.rules;
        (rules.lacks)(&model.model_type).then(|| EngineRefusal::Architecture {
            engine: rules.name,
            version: self.version_name(),
            model: model.model_type.clone(),
        })
    }

    /// What to know of a version whose own rules were not read.
    pub(super) fn unread(self) -> Option<String> {
        let EngineRules { read, numbering, .. } = self.engine.0.rules;
        // Of builds rules hold until a change is read.
        if *numbering == Numbering::Builds && read.first().is_some_and(|first| self.version > *first) {
            return None;
        }
        let names: Vec<String> = read.iter().map(|version| self.engine.written(*version)).collect();
        (!read.contains(&self.version)).then(|| {
            let changes = match read.first().is_some_and(|first| self.version < *first) {
                true => "without the changes that were found to be merged later",
                false => "with the changes that were merged between",
            };
            format!(
                "{} was not read itself: its rules are those of {}, {changes}",
                self.version_name(),
                names.join(" and ")
            )
        })
    }
}

impl EnginePrediction {
    /// What the engine's server is told, besides the model, so that it allocates this; `budget` is what it was predicted for.
    ///
    /// None where the engine does not say without a GPU what it would allocate.
    pub fn arguments(&self, budget: &Budget) -> Option<Vec<String>> {
        let engine: EngineSpec = self.name.parse().ok()?;
        engine.engine.rules().arguments.map(|of| of(self, budget))
    }
}

impl Engine {
    fn written(self, version: Version) -> String {
        match self.0.rules.numbering {
            Numbering::Releases => version.to_string(),
            Numbering::Builds => format!("b{}", version.0),
        }
    }
}

impl PartialEq for Engine {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Eq for Engine {}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
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
        let name = ALSO.iter().find(|(also, _)| *also == name).map_or(name, |(_, name)| name);
        let engine = Engine::all().iter().copied().find(|engine| engine.name() == name);
        let engine = engine.ok_or_else(|| UnknownEngine::Name(name.to_owned()))?;
        let Some(version) = version else { return Ok(engine.into()) };
        let (oldest, newest) = (engine.0.rules.oldest, engine.newest());
        let unknown = || UnknownEngine::Version { engine, version: version.to_owned(), oldest, newest };
        let parsed: Version = version.parse().map_err(|()| unknown())?;
        let is_modelled = (oldest..=newest).contains(&parsed);
        if !is_modelled && engine.0.rules.numbering == Numbering::Releases {
            return Err(unknown());
        }
        Ok(Self { engine, version: parsed })
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
    #[case("vllm@0.19.0", "vllm", Version(0, 19, 0))]
    #[case("vllm@v0.16.1rc1", "vllm", Version(0, 16, 1))]
    #[case("sglang", "sglang", Version(0, 5, 23))]
    #[case("llama-server", "llama.cpp", Version(11549, 0, 0))]
    #[case("llama.cpp@b4321", "llama.cpp", Version(4321, 0, 0))]
    fn engines_read_with_and_without_a_version(#[case] text: &str, #[case] name: &str, #[case] version: Version) {
        let engine = Engine::all().iter().copied().find(|engine| engine.name() == name).unwrap();
        assert_eq!(text.parse(), Ok(EngineSpec { engine, version }));
    }

    #[test]
    fn changes_are_told_oldest_first() {
        for engine in Engine::all() {
            let changes = engine.rules().changes;
            assert!(changes.is_sorted_by_key(|(version, _)| *version), "{engine}: {changes:?}");
        }
    }

    #[rstest]
    #[case("TRTLLM", "unknown engine `TRTLLM`; did you mean `tensorrt-llm`? known are")]
    #[case("triton", "unknown engine `triton`; known are")]
    #[case(
        "vlm",
        "unknown engine `vlm`; did you mean `vllm`? known are vllm, sglang, tensorrt-llm and llama.cpp, each with `@VERSION`"
    )]
    #[case("vllm@newest", "unknown version `newest` of vllm; versions from 0.7.2 to 0.33.0")]
    #[case("vllm@99", "unknown version `99`")]
    #[case("vllm@0.6.3", "unknown version `0.6.3` of vllm; versions from 0.7.2 to 0.33.0")]
    #[case("sglang@0.4.5", "unknown version `0.4.5` of sglang; versions from 0.4.6")]
    fn an_unknown_engine_or_version_is_an_error(#[case] text: &str, #[case] expected: &str) {
        let error = text.parse::<EngineSpec>().unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    }
}
