//! A plan in the words of an engine that people run: flags or files, where each value comes from, and what is lost.
//!
//! One table of keys per engine; Dynamo, llm-d and Ray wrap the same arguments.

mod admitted;
mod aiconfigurator;
pub(crate) mod dialect;
mod dynamo;
mod edge_llm;
pub(crate) mod file;
pub(crate) mod input;
mod llm_d;
mod ray;
pub(crate) mod serving;
mod simulators;
mod target;
pub(crate) mod target_file;

use cacheplan_files::Shown;
use cacheplan_handlers::Kind;
use serde::Serialize;

use crate::engines::{Engine, EnginePrediction, EngineSpec};
use crate::error::{EngineRefusal, PlanError};
use crate::plan::{CachePlan, Scheme};
use file::File;
use input::Input;

pub(crate) use dialect::Dialect;
pub use dialect::FlagMeaning;
pub use serving::{ExportError, Serving, Setting};
pub use target::Target;
pub(crate) use target_file::TargetFile;

/// A plan as an engine takes it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Export {
    /// The target's name, `vllm`.
    pub target: String,
    /// The engine that reads the values and its version, `vLLM 0.33.0`.
    pub engine: String,
    /// The file's suggested name.
    pub file_name: String,
    /// The file: YAML, a shell script or JSON.
    pub text: String,
    /// Every value with its key and where it comes from.
    pub settings: Vec<Setting>,
    /// Sequences of the plan's mean length that the engine admits with these values, as its model says; absent where that is
    /// not known, and then `not_expressed` says why, or where it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admits: Option<u64>,
    /// What the plan says and the engine cannot be told, one sentence each.
    pub not_expressed: Vec<String>,
}

impl Export {
    /// Whether the file itself says what is not expressed: JSON has no comments.
    pub fn has_comments(&self) -> bool {
        !self.file_name.ends_with(".json")
    }
}

impl CachePlan {
    /// Says the plan in the words of `target` at `version`, or at the newest known one.
    ///
    /// The version is that of the engine; for Dynamo it is Dynamo's own, which decides the engine's.
    ///
    /// # Errors
    /// A version whose keys are not known, or a plan that is damaged or that the engine has no words for.
    pub fn export(&self, target: Target, version: Option<&str>, serving: &Serving) -> Result<Export, ExportError> {
        let (file, release, version) = target.resolve(version)?;
        let dialect = file.dialect;
        let host_bytes = serving.host_bytes.or(self.host.as_ref().map(|host| host.bytes));
        let serving = &Serving { host_bytes, ..serving.clone() };
        let engine = Engine::speaking(dialect).map(|engine| EngineSpec { engine, version });
        let predict = |budget| admitted::predicted(self, engine?, budget);
        let stores = |word: Option<&str>| engine.map_or(Ok(None), |engine| admitted::stored(self, engine, word));
        let mut input = Input { plan: self, serving, version, predict: &predict, stores: &stores, admitted: None };
        input.refuse_damage()?;
        input.refuse_split(dialect.name)?;
        if let Some(model) = serving.model.as_deref().filter(|model| !is_name(model)) {
            return Err(ExportError::Model { found: model.to_owned() });
        }
        if let Some(rope) = input.resources().find(|resource| *resource.handler.kind() == Kind::MlaRope) {
            let what = format!(
                "`{}` is a rope key apart from its latent (`mla_cache_mode`), and no flag asks for that",
                rope.name
            );
            return Err(ExportError::Unsupported { engine: dialect.name, what });
        }
        if let Some(what) = (dialect.refuses)(&input) {
            return Err(ExportError::Unsupported { engine: dialect.name, what });
        }
        let mut settings = dialect.settings(&input);
        dialect.told_latents(&settings).map_or(Ok(None), |word| stores(Some(word))).map_err(ExportError::Refused)?;
        let mut not_expressed = dialect.not_expressed(&input, &settings);
        let (limit, made_for) = (self.limits.max_seq_len, self.model.max_position_embeddings);
        not_expressed.extend(made_for.filter(|longest| limit > *longest).map(|longest| {
            format!("max_seq_len {limit} is longer than the {longest} tokens that the model was made for: engines refuse that unless they are told to allow it")
        }));
        let unknown =
            input.parallel().pp > 1 && engine.is_some_and(|engine| engine.engine.rules().divides_whole_models);
        if let Some(refusal) = engine.filter(|_| unknown).and_then(|engine| engine.lacks(&self.model)) {
            return Err(ExportError::Refused(refusal));
        }
        not_expressed.extend(unknown.then(|| {
            let name = dialect.name;
            format!("what {name} admits with these values: it groups the layers of all pipeline stages, and a plan has those of one; `plan MODEL --as` says it")
        }));
        let told = dialect.told(&settings);
        let predicted = if unknown { None } else { input.predicted(told.clone()) };
        let unjudged = engine.filter(|_| !unknown && predicted.is_none());
        not_expressed.extend(unjudged.map(|_| {
            let why = match self.rollback {
                Some(Scheme::Replay) => "by its scheme `replay` states are kept otherwise than engines keep them",
                _ => "its rules do not know caches of these shapes",
            };
            format!("what {} admits with these values: {why}; `plan -- FILE` says it of the file", dialect.name)
        }));
        let admits = match predicted {
            Some(Ok(prediction)) => {
                not_expressed.extend(logged_concurrency(&prediction, self, dialect.name));
                Some((prediction.sequences, prediction.notes.join("; ")))
            }
            Some(Err(PlanError::DoesNotFit(short))) => {
                let most = admitted::most(&told, |told| input.predicted(told));
                Some((most, format!("capped by {}", short.capped_by)))
            }
            Some(Err(PlanError::Engine(
                refusal @ (EngineRefusal::KvDType { .. } | EngineRefusal::Architecture { .. }),
            ))) => {
                return Err(ExportError::Refused(refusal));
            }
            // A file that never starts is none.
            Some(Err(PlanError::TooFew { said, .. })) => {
                let what = format!("{said}; plan for more sequences, or for longer ones");
                return Err(ExportError::Unsupported { engine: dialect.name, what });
            }
            Some(Err(other)) => {
                not_expressed.push(format!("what {} admits with these values: {other}", dialect.name));
                None
            }
            None => None,
        };
        if let Some((admitted, why)) = &admits
            && *admitted < self.capacity.sequences
        {
            let (planned, name) = (self.capacity.sequences, dialect.name);
            not_expressed.push(format!("{admitted} of the plan's {planned} sequences run at once in {name}: {why}"));
            // None is no number of sequences that an engine starts with.
            input.admitted = Some(*admitted).filter(|admitted| *admitted > 0);
            settings = dialect.settings(&input);
        }
        let admits = admits.map(|(admitted, _)| admitted);
        let unnamed = serving.model.is_none() && target.names_model();
        not_expressed.extend(unnamed.then(|| "which model it is: replace <MODEL> by its name or path".into()));
        not_expressed.extend((file.gaps)(serving));
        let engine = format!("{} {release}", dialect.name);
        let text = (file.write)(&File {
            engine: &engine,
            model: input.model(),
            model_type: &self.model.model_type,
            tool_version: &self.tool_version,
            parallel: input.parallel(),
            settings: &settings,
            not_expressed: &not_expressed,
        });
        let file_name = file.file_name.into();
        Ok(Export { target: target.to_string(), engine, file_name, text, settings, admits, not_expressed })
    }
}

/// What an engine logs of its room where that is less than the sequences that run: for windows it counts whole steps of a
/// prefill, in which only some of the sequences are.
fn logged_concurrency(predicted: &EnginePrediction, plan: &CachePlan, name: &str) -> Option<String> {
    if plan.capacity.tokens_per_sequence < plan.limits.max_seq_len {
        return None;
    }
    let (logged, planned) = (predicted.concurrency?, predicted.sequences.min(plan.capacity.sequences));
    (logged * 100.0 < planned as f64 * 99.0).then(|| {
        let length = plan.limits.max_seq_len;
        format!(
            "{name} logs a concurrency of {logged:.2} for {length} tokens, fewer than the {planned} sequences that run: it \
             counts a window as if every sequence were in a prefill"
        )
    })
}

/// Whether no shell, parser or engine can take it for anything but a name.
fn is_name(model: &str) -> bool {
    !model.is_empty() && !model.starts_with('-') && Shown::printable(model) == model && !model.contains(['\n', '\t'])
}
