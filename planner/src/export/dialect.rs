//! What an engine can be told: its keys, and what it has no words for.

use serde_json::Value;

use super::Setting;
use super::input::Input;

/// One engine's vocabulary.
pub(super) struct Dialect {
    /// The engine's own name, for people.
    pub(super) name: &'static str,
    /// The versions whose keys were read in their sources or documents, oldest first.
    pub(super) versions: &'static [&'static str],
    /// Its keys, in the order they are written.
    pub(super) keys: &'static [Key],
    /// What it cannot be told; each gives a sentence where the plan says it.
    pub(super) gaps: &'static [fn(&Input<'_>) -> Option<String>],
    /// Why it cannot run the plan at all.
    pub(super) refuses: fn(&Input<'_>) -> Option<String>,
}

/// One key.
pub(super) struct Key {
    /// As the engine spells it; a dot leads into a section.
    pub(super) name: &'static str,
    /// Index of the first of [`Dialect::versions`] that has it.
    pub(super) since: usize,
    /// The plan's value and where it comes from; `None` where the plan does not say it.
    pub(super) value: fn(&Input<'_>) -> Option<(Value, String)>,
}

impl Dialect {
    pub(super) fn settings(&self, input: &Input<'_>) -> Vec<Setting> {
        let known = self.keys.iter().filter(|key| key.since <= input.release);
        known
            .filter_map(|key| (key.value)(input).map(|(value, source)| Setting { key: key.name.into(), value, source }))
            .collect()
    }

    pub(super) fn not_expressed(&self, input: &Input<'_>) -> Vec<String> {
        let missing = self.keys.iter().filter(|key| key.since > input.release).filter_map(|key| {
            let (value, _) = (key.value)(input)?;
            Some(format!("`{}` = {value}: this version has no such key", key.name))
        });
        missing.chain(self.gaps.iter().filter_map(|gap| gap(input))).chain(input.common_gaps()).collect()
    }
}
