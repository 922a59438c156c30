//! What a plan can be exported to: an engine, or what wraps one.

use std::fmt;
use std::str::FromStr;

use super::serving::ExportError;
use super::target_file::TargetFile;
use super::{aiconfigurator, dynamo, edge_llm, llm_d, ray, simulators};
use crate::engines::{Engine, Version};

/// What a plan can be exported to, by name: `vllm`, `dynamo-sglang`.
#[derive(Clone, Copy)]
pub struct Target(&'static TargetFile);

/// Those that wrap an engine, the one that is no engine of ours, simulators and other planners.
const WRAPPERS: [&TargetFile; 9] = [
    &dynamo::VLLM,
    &dynamo::SGLANG,
    &dynamo::TENSORRT_LLM,
    &llm_d::LLM_D,
    &ray::RAY,
    &edge_llm::EDGE_LLM,
    &simulators::LLM_D_SIM,
    &simulators::VIDUR,
    &aiconfigurator::AICONFIGURATOR,
];

impl Target {
    /// All targets.
    pub fn all() -> impl Iterator<Item = Self> {
        let engines = Engine::all().iter().filter_map(|engine| engine.file());
        engines.chain(WRAPPERS).map(Self)
    }

    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        self.0.name
    }

    /// The versions whose keys are known, oldest first.
    pub fn versions(self) -> Vec<&'static str> {
        match self.0.releases {
            [] => self.0.dialect.versions.to_vec(),
            releases => releases.iter().map(|(own, _)| *own).collect(),
        }
    }

    /// The engine's version in a release of what wraps it; none where it was not read.
    pub fn engine_in(self, release: &str) -> Option<&'static str> {
        let release = release.trim_start_matches('v');
        self.0.releases.iter().find(|(own, _)| *own == release).map(|(_, engine)| *engine)
    }

    /// Whether the file itself says which model is served; other files stand beside a command that does.
    pub const fn names_model(self) -> bool {
        self.0.names_model
    }

    /// The engine's words, and its version by name and number.
    pub(super) fn resolve(
        self,
        version: Option<&str>,
    ) -> Result<(&'static TargetFile, &'static str, Version), ExportError> {
        let known = self.versions();
        let unknown = || ExportError::Version {
            target: self.name(),
            found: version.unwrap_or_default().to_owned(),
            known: self.versions(),
        };
        let asked = version.map(|version| version.trim_start_matches('v'));
        let found = match asked {
            Some(version) => known.iter().find(|known| **known == version),
            None => known.last(),
        };
        let found = *found.ok_or_else(unknown)?;
        let name = self.engine_in(found).unwrap_or(found);
        let name = *self.0.dialect.versions.iter().find(|known| **known == name).ok_or_else(unknown)?;
        Ok((self.0, name, name.parse().map_err(|()| unknown())?))
    }
}

impl FromStr for Target {
    type Err = ExportError;

    fn from_str(text: &str) -> Result<Self, ExportError> {
        let found = Self::all().find(|target| target.name() == text);
        found
            .ok_or_else(|| ExportError::Target { found: text.to_owned(), known: Self::all().map(Self::name).collect() })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl PartialEq for Target {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
