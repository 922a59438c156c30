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
    /// As flags of a command that asks of several places for one model, each with devices and keys of its own.
    Place {
        /// The flag of its devices: `--prefill`.
        devices: &'static str,
        /// The flag of its keys: `--on-prefill`.
        keys: &'static str,
    },
}

impl Stated {
    /// Keys and their values.
    pub(crate) fn settings(self, keys: &[(&str, String)]) -> String {
        let words: Vec<String> = keys.iter().map(|(path, value)| self.setting(path, value)).collect();
        words.join(if matches!(self, Self::Flags | Self::Place { .. }) { " " } else { ", " })
    }

    /// Devices.
    pub(crate) fn devices(self, devices: &str) -> String {
        let flag = if let Self::Place { devices, .. } = self { devices } else { "--device-memory" };
        format!("{flag} {devices}")
    }

    /// A key and its value.
    pub(crate) fn setting(self, path: &str, value: &str) -> String {
        match self {
            Self::Keys | Self::Command => format!("{path} = {value}"),
            // What passes from one place to another has one element type in both.
            Self::Place { keys, .. } if !path.starts_with("dtypes.") => {
                format!("{keys} {}={}", flag(path).trim_start_matches('-'), value.trim_matches('"'))
            }
            Self::Flags | Self::Place { .. } => format!("{} {}", flag(path), value.trim_matches('"')),
        }
    }
}

fn flag(path: &str) -> &str {
    BudgetKey::all().iter().find(|key| key.path == path).map_or(path, |key| key.flag)
}
