//! What can be wrong with a model's description.

use std::fmt;
use std::ops::Range;

use cacheplan_files::Shown;
use cacheplan_files::SourceError;
use thiserror::Error;

use crate::near::Near;

/// The keys that do not tell what is sought, in words: those that say nothing, and those that are not at a place.
pub(crate) struct Untold<'a> {
    keys: &'a str,
    near: &'a str,
    unsaid: &'a str,
    place: &'a dyn fmt::Display,
}

impl<'a> Untold<'a> {
    pub(crate) fn new(keys: &'a str, near: &'a str, unsaid: &'a str, place: &'a dyn fmt::Display) -> Self {
        Self { keys, near, unsaid, place }
    }
}

impl fmt::Display for Untold<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { keys, near, unsaid, place } = self;
        match (unsaid.is_empty(), keys.is_empty()) {
            (false, true) => f.write_str(unsaid),
            (false, false) => write!(f, "{unsaid}, and none of {keys} is {place}{}", Near(near)),
            (true, _) => write!(f, "none of {keys} is {place}{}", Near(near)),
        }
    }
}

/// A model that cannot be read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FrontendError {
    /// The file cannot be read, is too long, or is no text or JSON.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// A key that the architecture needs is absent, or null.
    #[error(
        "{file}: `{what}` of model_type `{model_type}` cannot be told: {untold}; state it, or pass --assume KEY=VALUE", file = Shown(.file), what = Shown(.what), model_type = Shown(.model_type), untold = Untold::new(.keys, .near, .unsaid, &"there"))]
    Missing {
        /// The file.
        file: Box<str>,
        /// The model_type.
        model_type: String,
        /// The dimension.
        what: Box<str>,
        /// The keys that would tell it and are not there.
        keys: Box<str>,
        /// Those that are and say nothing, with their values, such as a null.
        unsaid: Box<str>,
        /// Keys of the file with a similar name; empty where there are none.
        near: Box<str>,
    },
    /// A key with a value that makes no sense.
    #[error("{file}: `{key}` is {found}; {expected}", file = Shown(.file), key = Shown(.key), found = Shown(.found), expected = Shown(.expected))]
    BadValue {
        /// The file.
        file: String,
        /// The key.
        key: String,
        /// Its value, shortened.
        found: String,
        /// What was expected instead.
        expected: String,
    },
    /// A key whose value makes the model one that its description does not cover.
    #[error(
        "{file}: `{key}` of model_type `{model_type}` is {found}; {reason}; describe the model with --description or \
         GraphBuilder, or pass --assume {key}=VALUE", file = Shown(.file), key = Shown(.key), model_type = Shown(.model_type), found = Shown(.found), reason = Shown(.reason))]
    NotCovered {
        /// The file.
        file: String,
        /// The model_type.
        model_type: String,
        /// The key.
        key: String,
        /// Its value, shortened.
        found: String,
        /// What is not covered.
        reason: Box<str>,
    },
    /// A config that does not say of which architecture it is.
    #[error(
        "{file}: there is no `model_type`, which says what the other keys mean; is this a model's config.json? \
         add it, or pass --assume model_type=NAME", file = Shown(.file))]
    NoModelType {
        /// The file.
        file: String,
    },
    /// A folder without any file that is read.
    #[error("{folder}: there is no config.json in this folder; {instead}", folder = Shown(.folder), instead = Shown(.instead))]
    NoModel {
        /// The folder.
        folder: String,
        /// What would do.
        instead: String,
    },
    /// An architecture without a description.
    #[error(
        "{file}: unknown model_type `{found}`{near}; add a description (docs/adding-a-model.md), \
         describe it with GraphBuilder, or pass --assume model_type=NAME", file = Shown(.file), found = Shown(.found), near = Near(.near))]
    UnknownModelType {
        /// The file.
        file: String,
        /// The model_type found.
        found: String,
        /// Known ones with a similar name; empty where there are none.
        near: String,
    },
    /// A layer of a kind that the architecture does not have.
    #[error(
        "{file}: layer {layer} is of unknown kind `{found}`{near} (known for {model_type}: {known}); \
         pass --assume layer.{layer}=KIND, or describe the model with GraphBuilder", file = Shown(.file), found = Shown(.found), near = Near(.near), model_type = Shown(.model_type))]
    UnknownLayerKind {
        /// The file.
        file: String,
        /// The model_type.
        model_type: String,
        /// The layer.
        layer: u32,
        /// The kind found.
        found: Box<str>,
        /// Those of them with a similar name; empty where there are none.
        near: Box<str>,
        /// Kinds and spellings that the description knows.
        known: Box<str>,
    },
    /// A dtype that is not known.
    #[error("{file}: `{key}`: {source}; pass --assume {key}=DTYPE", file = Shown(.file), key = Shown(.key), source = Shown(.source))]
    UnknownDType {
        /// The file.
        file: String,
        /// The key.
        key: String,
        /// What was found.
        source: cacheplan_handlers::UnknownDType,
    },
    /// An op that keeps state and that no rule understands.
    #[error("{file}: node `{node}`: unknown op `{op}`{near}; describe the model with GraphBuilder instead", file = Shown(.file), node = Shown(.node), op = Shown(.op), near = Near(.near))]
    UnknownOp {
        /// The file.
        file: String,
        /// The node.
        node: String,
        /// Its type, with its domain.
        op: String,
        /// Known types with a similar name; empty where there are none.
        near: String,
    },
    /// A file that ends inside its header.
    #[error("{file}: truncated: the header needs {needed} bytes, the file has {found}", file = Shown(.file))]
    Truncated {
        /// The file.
        file: String,
        /// Bytes up to the header's end.
        needed: u64,
        /// Bytes there are.
        found: u64,
    },
    /// A weight that contradicts the config.
    #[error(
        "{file}: `{tensor}` has {found} along axis {axis}, the config says {expected} ({meaning}); \
         correct the config, or pass --assume KEY=VALUE", file = Shown(.file), tensor = Shown(.tensor))]
    Disagreement {
        /// The file with the weight.
        file: String,
        /// The weight.
        tensor: String,
        /// Its axis.
        axis: usize,
        /// Its size there.
        found: u64,
        /// What the size stands for.
        meaning: &'static str,
        /// Its size according to the config.
        expected: u64,
    },
    /// Weights without a config.
    #[error("{file}: {dimension} cannot be told without a config.json: {known}", file = Shown(.file))]
    NoConfig {
        /// The file.
        file: String,
        /// What is missing.
        dimension: String,
        /// What the weights do tell.
        known: String,
    },
    /// A node or state of an ONNX graph that cannot be understood.
    #[error("{file}: {node}: {reason}", file = Shown(.file), node = Shown(.node), reason = Shown(.reason))]
    Onnx {
        /// The file.
        file: String,
        /// The node or state.
        node: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A program of torch.export that cannot be understood.
    #[error("{file}: {at}: {reason}", file = Shown(.file), at = Shown(.at), reason = Shown(.reason))]
    Program {
        /// The file.
        file: String,
        /// The node, the buffer, or the part of the archive.
        at: String,
        /// What is wrong with it.
        reason: String,
    },
    /// An architecture description that is wrong itself.
    #[error("architecture description of `{model_type}`{place}: {reason}", model_type = Shown(.model_type), reason = Shown(.reason))]
    Description {
        /// The model_type.
        model_type: String,
        /// Where, as far as that is known.
        place: Box<DescriptionPlace>,
        /// What is wrong.
        reason: String,
    },
    /// An assumption that cannot be read or does not apply.
    #[error("assumption `{text}`: {reason}", text = Shown(.text), reason = Shown(.reason))]
    Assumption {
        /// The assumption.
        text: String,
        /// What is wrong.
        reason: String,
    },
}

/// A place in an architecture description.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DescriptionPlace {
    /// Which of the caller's descriptions, from 0; none of a built-in one.
    pub which: Option<usize>,
    /// The key, with dots: `blocks.mamba2.d_state`.
    pub key: String,
    /// The word of its value that is wrong; empty where the key is.
    pub word: String,
    /// Its line, from 1.
    pub line: Option<usize>,
    /// Its bytes.
    pub span: Option<Range<usize>>,
}

/// Shows it behind what it is a place of.
impl fmt::Display for DescriptionPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.line.map_or(Ok(()), |line| write!(f, ", line {line}"))?;
        if self.key.is_empty() { Ok(()) } else { write!(f, ", `{}`", Shown(&self.key)) }
    }
}

impl DescriptionPlace {
    /// A key by the names on the way to it, wherever it stands.
    pub(crate) fn of(path: &[&str]) -> Self {
        Self { key: path.join("."), ..Self::default() }
    }

    /// A word of its value.
    pub(crate) fn at(self, word: &str) -> Self {
        Self { word: word.to_owned(), ..self }
    }
}

impl FrontendError {
    /// A description that is wrong, nobody knows where.
    pub(crate) fn description(model_type: &str, reason: String) -> Self {
        Self::Description { model_type: model_type.to_owned(), place: Box::default(), reason }
    }

    /// Whether it names something that may be meant.
    pub(crate) fn has_near(&self) -> bool {
        matches!(self, Self::Missing { near, .. } if !near.is_empty())
    }

    /// Whether the model is valid but of a kind that is not supported; the command then exits with 4, else with 1.
    pub fn is_unsupported(&self) -> bool {
        matches!(
            self,
            Self::UnknownModelType { .. }
                | Self::NotCovered { .. }
                | Self::UnknownLayerKind { .. }
                | Self::UnknownOp { .. }
                | Self::UnknownDType { .. }
        )
    }
}
