//! Which engine, at which version.

use std::fmt;
use std::str::FromStr;

use cacheplan_transforms::registry::Descriptor;
use cacheplan_transforms::{CacheDTypes, ModelInfo};
use thiserror::Error;

use super::description::{Description, Numbering};
use super::known::ENGINES;
use crate::budget::Budget;
use crate::error::EngineRefusal;

/// An engine that is modelled: `vllm`, `sglang`, `tensorrt-llm` or `llama.cpp`.
#[derive(Clone, Copy)]
pub struct Engine(&'static Description);

/// `major.minor.patch`; a missing part is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub u32, pub u32, pub u32);

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
    #[error("unknown engine `{0}`; known are {known}, each with `@VERSION` or without", known = names())]
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

/// `a, b, c and d`.
fn names() -> String {
    let names: Vec<&str> = Engine::all().iter().map(|engine| engine.name()).collect();
    match names.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
        _ => names.concat(),
    }
}

impl Engine {
    pub(super) const fn new(description: &'static Description) -> Self {
        Self(description)
    }

    /// All engines.
    pub fn all() -> &'static [Self] {
        &ENGINES
    }

    /// The name on the command line and in plans.
    pub const fn name(self) -> &'static str {
        self.0.name
    }

    /// The newest version whose rules were read; used where none is named.
    pub fn newest(self) -> Version {
        self.0.read.last().copied().unwrap_or(Version(0, 0, 0))
    }

    pub(crate) const fn description(self) -> &'static Description {
        self.0
    }

    /// Refuses an option that none of `asked` consumes.
    ///
    /// # Errors
    /// The first such key, with the engines that do.
    pub fn refuse_unconsumed(asked: &[EngineSpec], budget: &Budget) -> Result<(), EngineRefusal> {
        let Some(first) = asked.first() else { return Ok(()) };
        let consumed: Vec<&str> = asked.iter().flat_map(|spec| spec.engine.0.consumes).copied().collect();
        let Some(key) = budget.engine.unconsumed(&consumed).into_iter().next() else { return Ok(()) };
        let takes = |engine: &&Self| engine.0.consumes.contains(&key.as_str());
        let takers = Self::all().iter().filter(takes).map(|engine| engine.name()).collect();
        Err(EngineRefusal::not_consumed(first.engine.name(), &key, takers))
    }
}

/// The compute capability, times ten, of the GPU that engines are taken to run on where nobody says.
pub(super) const HOPPER: u32 = 90;

impl EngineSpec {
    /// The version as the engine writes it: builds of llama.cpp are `b5913`.
    pub fn version_name(self) -> String {
        self.engine.written(self.version)
    }

    /// The dtypes that it chooses for a model where nobody states them.
    pub(crate) fn dtypes(self, model: &ModelInfo, capability: Option<u32>) -> CacheDTypes {
        (self.engine.0.dtypes)(model, self.version, capability.unwrap_or(HOPPER))
    }

    /// What it keeps of ops of such a model in a way of its own.
    pub(crate) fn descriptor(self, model: &ModelInfo) -> Option<Descriptor> {
        (self.engine.0.descriptors)(model)
    }

    pub(crate) const fn keeps_long_windows(self) -> bool {
        self.engine.0.storage.keeps_long_windows
    }

    /// What to know of a version whose own rules were not read.
    pub(super) fn unread(self) -> Option<String> {
        let read = self.engine.0.read;
        let names: Vec<String> = read.iter().map(|version| self.engine.written(*version)).collect();
        (!read.contains(&self.version)).then(|| {
            format!(
                "{} was not read itself: its rules are those of {}, with the changes that were merged between",
                self.version_name(),
                names.join(" and ")
            )
        })
    }
}

impl Engine {
    fn written(self, version: Version) -> String {
        match self.0.numbering {
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
        let engine = Engine::all().iter().copied().find(|engine| engine.name() == name);
        let engine = engine.ok_or_else(|| UnknownEngine::Name(name.to_owned()))?;
        let Some(version) = version else { return Ok(engine.into()) };
        let newest = engine.newest();
        let unknown = || UnknownEngine::Version { engine, version: version.to_owned(), newest };
        let parsed: Version = version.parse().map_err(|()| unknown())?;
        if parsed > newest && engine.0.numbering == Numbering::Releases {
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
    #[case("vllm@0.19.0", "vllm", Version(0, 19, 0))]
    #[case("vllm@v0.16.1rc1", "vllm", Version(0, 16, 1))]
    #[case("sglang", "sglang", Version(0, 5, 23))]
    #[case("llama.cpp@b4321", "llama.cpp", Version(4321, 0, 0))]
    fn engines_read_with_and_without_a_version(#[case] text: &str, #[case] name: &str, #[case] version: Version) {
        let engine = Engine::all().iter().copied().find(|engine| engine.name() == name).unwrap();
        assert_eq!(text.parse(), Ok(EngineSpec { engine, version }));
    }

    #[rstest]
    #[case("vlm", "unknown engine `vlm`; known are vllm, sglang, tensorrt-llm and llama.cpp, each with `@VERSION`")]
    #[case("vllm@newest", "unknown version `newest` of vllm; versions up to 0.33.0")]
    #[case("vllm@99", "unknown version `99`")]
    fn an_unknown_engine_or_version_is_an_error(#[case] text: &str, #[case] expected: &str) {
        let error = text.parse::<EngineSpec>().unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    }
}
