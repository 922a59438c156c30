//! torch.export: a program as `torch.export.save` writes it (`.pt2`), without its weights.
//!
//! What a program keeps from call to call are the buffers that it renews: those that its signature says, and those that it
//! writes in place. Of these, keys and values are the ones that an attention reads; any other is a state as large as its
//! shape says. Nothing of torch is needed, and no pickle is opened.

mod archive;
mod schema;
mod states;

use cacheplan_files::{Limit, Shown, Source, SourceError};

use self::archive::Member;
use self::schema::{MAJOR, Program};
use self::states::States;
use super::{FrontendError, ReadOptions};
use crate::model::{Fact, Model, ModelInfo};
use crate::weights::WeightBytes;

/// Why a program is not read, and where that is.
#[derive(Debug)]
enum Refusal {
    At { at: String, reason: String },
    Source(SourceError),
}

impl Refusal {
    fn at(at: &str, reason: impl Into<String>) -> Self {
        Self::At { at: at.to_owned(), reason: reason.into() }
    }

    fn archive(reason: impl Into<String>) -> Self {
        Self::at("the archive", reason)
    }
}

impl From<SourceError> for Refusal {
    fn from(error: SourceError) -> Self {
        Self::Source(error)
    }
}

/// Reads the structure of a program.
pub(super) fn read(source: &Source, options: &ReadOptions) -> Result<Model, FrontendError> {
    if let Some(assumption) = options.assume.first() {
        let reason = "an exported program has no keys; describe the model with GraphBuilder instead".to_owned();
        return Err(FrontendError::Assumption { text: format!("{assumption:?}"), reason });
    }
    program(source).map_err(|refusal| match refusal {
        Refusal::Source(error) => error.into(),
        Refusal::At { at, reason } => FrontendError::Program { file: source.name().to_owned(), at, reason },
    })
}

fn program(source: &Source) -> Result<Model, Refusal> {
    let members = archive::members(source)?;
    let described = description(&members)?;
    let text = archive::data(source, described)?;
    let program: Program =
        Limit::PT2.parse_json(&text).map_err(|error| Refusal::at(&described.name, error.to_string()))?;
    let version = &program.schema_version;
    if version.major != MAJOR {
        let reason = format!(
            "its schema is {}.{}, and known is {MAJOR}; export it with torch 2.7 or later",
            version.major, version.minor
        );
        return Err(Refusal::at(&described.name, reason));
    }
    let mut weights = members.iter().filter(|member| is_weight(&member.name));
    let weights = weights.try_fold(0u64, |sum, member| sum.checked_add(member.len));
    let states = States::find(&program)?;
    let (graph, layers) = states.graph(&program);
    let info = ModelInfo {
        model_type: "torch.export".to_owned(),
        layers: layers.len() as u32,
        dtype: states.dtype(&program),
        max_position_embeddings: states.tokens(),
        weights: weights.filter(|&bytes| bytes <= i64::MAX as u64).map(|bytes| WeightBytes::new(bytes, true)),
        fingerprint: blake3::hash(&text).to_hex().to_string(),
        name: None,
        revision: None,
        step_tokens: states.step_tokens(&program),
    };
    let mut model = Model::new(info, graph, layers);
    let torch = Shown(&program.torch_version);
    model.source =
        format!("{} (torch.export, schema {}.{}, torch {torch})", source.name(), version.major, version.minor);
    model.facts = states.facts();
    model.facts.push(Fact {
        what: "nodes".to_owned(),
        value: program.graph_module.graph.nodes.len().to_string(),
        from: "the program".to_owned(),
        assumed: false,
    });
    Ok(model)
}

/// The one program of an archive.
fn description(members: &[Member]) -> Result<&Member, Refusal> {
    let is_program = |member: &&Member| {
        let folders = member.name.rsplit_once('/').map(|(folders, _)| folders);
        member.name.ends_with(".json") && folders.is_some_and(|folders| folders.rsplit('/').next() == Some("models"))
    };
    let programs: Vec<&Member> = members.iter().filter(is_program).collect();
    match programs.as_slice() {
        [program] => Ok(program),
        [] => {
            let reason =
                "there is no program in it (models/*.json); save it with torch.export.save of torch 2.7 or later";
            Err(Refusal::archive(reason))
        }
        programs => {
            let names: Vec<&str> = programs.iter().map(|member| member.name.as_str()).collect();
            Err(Refusal::archive(format!("there are several programs in it, and one is read: {}", names.join(", "))))
        }
    }
}

fn is_weight(name: &str) -> bool {
    let member = name.rsplit_once("data/weights/").map(|(_, member)| member);
    member.is_some_and(|member| !member.contains('/') && !member.ends_with(".json"))
}
