//! The words in which a budget is stated, and changes to it suggested.

use crate::budget::key::BudgetKey;

/// How a budget is stated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stated {
    /// As keys of a file: `max_seq_len = 4096`.
    #[default]
    Keys,
    /// As flags of the command: `--max-seq-len 4096`.
    Flags,
    /// By a command that starts an engine, which is told no more than that says.
    Command,
}

impl Stated {
    /// Keys and their values.
    pub(crate) fn settings(self, keys: &[(&str, String)]) -> String {
        let words: Vec<String> = keys.iter().map(|(path, value)| self.setting(path, value)).collect();
        words.join(if self == Self::Flags { " " } else { ", " })
    }

    /// A key and its value.
    pub(crate) fn setting(self, path: &str, value: &str) -> String {
        match self {
            Self::Keys | Self::Command => format!("{path} = {value}"),
            Self::Flags => {
                let flag = BudgetKey::all().iter().find(|key| key.path == path).map_or(path, |key| key.flag);
                format!("{flag} {}", value.trim_matches('"'))
            }
        }
    }
}
