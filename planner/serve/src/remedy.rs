//! One change to a command.

/// One change to a command.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Remedy {
    /// Another value of a flag, stated once.
    Set(&'static str, String),
    /// A flag less, with its values.
    Remove(&'static str),
    /// Another name for what is written so.
    Rename(String, String),
    /// A word that no parser knows less, with what may be its value.
    Drop(String),
}
