//! What a plan can be exported to, and which engine's words each takes.

use std::fmt;
use std::str::FromStr;

use super::dialect::Dialect;
use super::edge_llm::EDGE_LLM;
use super::sglang::SGLANG;
use super::tensorrt_llm::TENSORRT_LLM;
use super::vllm::VLLM;
use super::{ExportError, Serving};

/// What a plan can be exported to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// A file for `vllm serve --config`.
    Vllm,
    /// A script that starts `sglang.launch_server`.
    Sglang,
    /// A file for `trtllm-serve --config`.
    TensorRtLlm,
    /// A `DynamoGraphDeployment` with vLLM workers.
    Dynamo,
    /// The same with SGLang workers.
    DynamoSglang,
    /// The same with TensorRT-LLM workers.
    DynamoTensorRtLlm,
    /// A kustomize patch of llm-d's `decode` deployment, which runs vLLM.
    LlmD,
    /// A Ray Serve application, which runs vLLM.
    Ray,
    /// The part of TensorRT-Edge-LLM's `config.json` that concerns caches.
    EdgeLlm,
}

/// A release of Dynamo and the releases of engines in its images.
struct Dynamo {
    version: &'static str,
    vllm: &'static str,
    sglang: &'static str,
    tensorrt_llm: &'static str,
}

/// The first from AIConfigurator's matrix, the second from the package's own requirements.
const DYNAMO: [Dynamo; 2] = [
    Dynamo { version: "1.3.0", vllm: "0.24.0", sglang: "0.5.16", tensorrt_llm: "1.3.0rc23" },
    Dynamo { version: "1.5.1", vllm: "0.28.0", sglang: "0.5.18", tensorrt_llm: "1.3.0rc25" },
];

impl Target {
    /// All targets.
    pub const ALL: [Self; 9] = [
        Self::Vllm,
        Self::Sglang,
        Self::TensorRtLlm,
        Self::Dynamo,
        Self::DynamoSglang,
        Self::DynamoTensorRtLlm,
        Self::LlmD,
        Self::Ray,
        Self::EdgeLlm,
    ];

    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Vllm => "vllm",
            Self::Sglang => "sglang",
            Self::TensorRtLlm => "tensorrt-llm",
            Self::Dynamo => "dynamo",
            Self::DynamoSglang => "dynamo-sglang",
            Self::DynamoTensorRtLlm => "dynamo-tensorrt-llm",
            Self::LlmD => "llm-d",
            Self::Ray => "ray",
            Self::EdgeLlm => "edge-llm",
        }
    }

    /// The versions whose keys are known, oldest first.
    pub fn versions(self) -> Vec<&'static str> {
        match self.in_dynamo() {
            Some(_) => DYNAMO.iter().map(|release| release.version).collect(),
            None => self.dialect().versions.to_vec(),
        }
    }

    pub(super) const fn file_name(self) -> &'static str {
        match self {
            Self::Vllm => "vllm.yaml",
            Self::Sglang => "sglang.sh",
            Self::TensorRtLlm => "tensorrt-llm.yaml",
            Self::Dynamo | Self::DynamoSglang | Self::DynamoTensorRtLlm => "dynamo.yaml",
            Self::LlmD => "llm-d-decode.yaml",
            Self::Ray => "ray-serve.yaml",
            Self::EdgeLlm => "config.json",
        }
    }

    /// The engine's words, and the index of its version.
    pub(super) fn resolve(self, version: Option<&str>) -> Result<(&'static Dialect, usize), ExportError> {
        let known = self.versions();
        let asked = version.map(|version| version.trim_start_matches('v'));
        let found = match asked {
            Some(version) => known.iter().position(|known| *known == version),
            None => known.len().checked_sub(1),
        };
        let unknown = || ExportError::Version {
            target: self.name(),
            found: version.unwrap_or_default().to_owned(),
            known: self.versions(),
        };
        let found = found.ok_or_else(unknown)?;
        let dialect = self.dialect();
        let Some(engine_of) = self.in_dynamo() else { return Ok((dialect, found)) };
        let engine = engine_of(&DYNAMO[found]);
        let release = dialect.versions.iter().position(|known| *known == engine).ok_or_else(unknown)?;
        Ok((dialect, release))
    }

    /// What the wrapper needs besides the engine's arguments.
    pub(super) fn gaps(self, serving: &Serving) -> Vec<String> {
        let in_dynamo = self.in_dynamo().is_some();
        let image = in_dynamo.then(|| "each container's image: that of the Dynamo release for this engine".into());
        let tier = serving.host_bytes.filter(|_| in_dynamo || self == Self::LlmD);
        let memory = tier.map(|bytes| {
            format!("the pod's memory limit and /dev/shm: both must exceed {bytes} bytes for each rank in it")
        });
        let model = serving.model.is_none() && self.names_model();
        let model = model.then(|| "which model it is: replace <MODEL> by its name or path".into());
        model.into_iter().chain(image).chain(memory).collect()
    }

    /// Whether the file itself says which model is served; other files stand beside a command that does.
    pub const fn names_model(self) -> bool {
        !matches!(self, Self::Vllm | Self::TensorRtLlm | Self::EdgeLlm)
    }

    fn dialect(self) -> &'static Dialect {
        match self {
            Self::Vllm | Self::Dynamo | Self::LlmD | Self::Ray => &VLLM,
            Self::Sglang | Self::DynamoSglang => &SGLANG,
            Self::TensorRtLlm | Self::DynamoTensorRtLlm => &TENSORRT_LLM,
            Self::EdgeLlm => &EDGE_LLM,
        }
    }

    /// How to find the engine's version in a release of Dynamo.
    fn in_dynamo(self) -> Option<fn(&Dynamo) -> &'static str> {
        match self {
            Self::Dynamo => Some(|release| release.vllm),
            Self::DynamoSglang => Some(|release| release.sglang),
            Self::DynamoTensorRtLlm => Some(|release| release.tensorrt_llm),
            _ => None,
        }
    }
}

impl FromStr for Target {
    type Err = ExportError;

    fn from_str(text: &str) -> Result<Self, ExportError> {
        let found = Self::ALL.into_iter().find(|target| target.name() == text);
        found.ok_or_else(|| ExportError::Target { found: text.to_owned(), known: Self::ALL.map(Self::name).to_vec() })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
