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

impl Remedy {
    /// The flag that it changes; empty where it changes a word.
    pub(crate) const fn flag(&self) -> &'static str {
        match self {
            Self::Set(flag, _) | Self::Remove(flag) => flag,
            Self::Rename(..) | Self::Drop(_) => "",
        }
    }

    /// What it writes.
    pub(crate) fn written(&self) -> String {
        match self {
            Self::Set(flag, value) => format!("{flag} {value}").trim_end().to_owned(),
            Self::Remove(flag) => format!("without {flag}"),
            Self::Rename(_, to) => to.clone(),
            Self::Drop(word) => format!("without {word}"),
        }
    }
}
