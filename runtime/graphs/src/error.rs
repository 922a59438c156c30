//! What is wrong with a graph, or with what it is given.

use cacheplan_files::{Shown, SourceError};
use thiserror::Error;

/// A graph that cannot be loaded or run.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum GraphError {
    /// A file that cannot be read.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// A file that holds no graph.
    #[error("{file}: {reason}", file = Shown(.file), reason = Shown(.reason))]
    Malformed {
        /// The file.
        file: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A weight or a constant that cannot be used.
    #[error("{file}: tensor `{tensor}`: {reason}", file = Shown(.file), tensor = Shown(.tensor), reason = Shown(.reason))]
    Tensor {
        /// The file.
        file: String,
        /// The tensor's name.
        tensor: String,
        /// What is wrong with it.
        reason: String,
    },
    /// ONNX Runtime, which is not there or does not suit.
    #[error("ONNX Runtime: {reason}", reason = Shown(.reason))]
    OnnxRuntime {
        /// Why not.
        reason: String,
    },
    /// A node that cannot be computed.
    #[error("{file}: node `{node}` ({op}): {reason}", file = Shown(.file), node = Shown(.node), op = Shown(.op), reason = Shown(.reason))]
    Node {
        /// The file.
        file: String,
        /// The node's name, or that of its first output where it has none.
        node: String,
        /// Its operator.
        op: String,
        /// Why it cannot.
        reason: String,
    },
    /// An input or output that is not what a run has.
    #[error("{file}: `{port}`: {reason}", file = Shown(.file), port = Shown(.port), reason = Shown(.reason))]
    Port {
        /// The file.
        file: String,
        /// The input or output.
        port: String,
        /// What is wrong with it.
        reason: String,
    },
}
