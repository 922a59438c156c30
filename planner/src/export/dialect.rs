//! What an engine can be told: its keys, and what it has no words for.

use serde_json::Value;

use super::input::Input;
use super::serving::Setting;
use crate::budget::Budget;

/// One engine's vocabulary.
pub(crate) struct Dialect {
    /// The engine's own name, for people.
    pub(crate) name: &'static str,
    /// The versions whose keys were read in their sources or documents, oldest first.
    pub(crate) versions: &'static [&'static str],
    /// Its keys, in the order they are written.
    pub(crate) keys: &'static [Key],
    /// Ranks that it is told besides tp and pp: as plans call them, and its key.
    pub(crate) ranks: &'static [(&'static str, &'static str)],
    /// What it cannot be told; each gives a sentence where the plan says it.
    pub(crate) gaps: &'static [fn(&Input<'_>) -> Option<String>],
    /// Why it cannot run the plan at all.
    pub(crate) refuses: fn(&Input<'_>) -> Option<String>,
    /// The way back, where the engine is modelled: the keys as what its model is told.
    pub(crate) back: Option<fn(&Told<'_>) -> Budget>,
}

/// One key.
pub(crate) struct Key {
    /// As the engine spells it; a dot leads into a section.
    pub(crate) name: &'static str,
    /// Index of the first of [`Dialect::versions`] that has it.
    pub(crate) since: usize,
    /// The plan's value and where it comes from; `None` where the plan does not say it.
    pub(crate) value: fn(&Input<'_>) -> Option<(Value, String)>,
}

/// Settings, read back.
pub(crate) struct Told<'a>(pub(crate) &'a [Setting]);

impl Told<'_> {
    pub(crate) fn number(&self, key: &str) -> Option<u64> {
        self.value(key)?.as_u64()
    }

    pub(crate) fn fraction(&self, key: &str) -> Option<f64> {
        self.value(key)?.as_f64()
    }

    pub(crate) fn switch(&self, key: &str) -> Option<bool> {
        self.value(key)?.as_bool()
    }

    fn value(&self, key: &str) -> Option<&Value> {
        self.0.iter().find(|setting| setting.key == key).map(|setting| &setting.value)
    }
}

impl Dialect {
    pub(crate) fn settings(&self, input: &Input<'_>) -> Vec<Setting> {
        let known = self.keys.iter().filter(|key| key.since <= input.release);
        known
            .filter_map(|key| (key.value)(input).map(|(value, source)| Setting { key: key.name.into(), value, source }))
            .collect()
    }

    pub(crate) fn not_expressed(&self, input: &Input<'_>, settings: &[Setting]) -> Vec<String> {
        let is_told = |key: &str| settings.iter().any(|setting| setting.key == key);
        let told: Vec<&str> = self.ranks.iter().filter(|(_, key)| is_told(key)).map(|(ranks, _)| *ranks).collect();
        let missing = self.keys.iter().filter(|key| key.since > input.release).filter_map(|key| {
            let (value, _) = (key.value)(input)?;
            Some(format!("`{}` = {value}: this version has no such key", key.name))
        });
        missing.chain(self.gaps.iter().filter_map(|gap| gap(input))).chain(input.common_gaps(&told)).collect()
    }
}
