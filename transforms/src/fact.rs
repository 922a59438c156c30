//! How what is known of a model is known.

use serde::{Deserialize, Serialize};

/// One thing that a front-end found out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fact {
    /// What it is, `attention.head_dim`.
    pub what: String,
    /// Its value.
    pub value: String,
    /// How it is known: the keys it follows from, or what was assumed.
    pub from: String,
    /// Whether nothing in the model's files says so.
    pub assumed: bool,
}
