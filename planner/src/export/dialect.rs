//! What an engine can be told: its keys, and what it has no words for.

use cacheplan_handlers::DType;
use serde_json::json;

use super::file::nested;
use super::input::{Class, DTypeName, Input, Sourced};
use super::serving::Setting;
use crate::budget::Budget;
use crate::engines::Version;

/// One engine's vocabulary.
pub(crate) struct Dialect {
    /// The engine's own name, for people.
    pub(crate) name: &'static str,
    /// The versions whose keys were read in their sources or documents, oldest first.
    pub(crate) versions: &'static [&'static str],
    /// Its keys, in the order they are written.
    pub(crate) keys: &'static [Key],
    /// What it cannot be told; each gives a sentence where the plan says it.
    pub(crate) gaps: &'static [fn(&Input<'_>) -> Option<String>],
    /// Whether it chooses the dtypes of caches itself where no key says them.
    pub(crate) chooses_dtypes: bool,
    /// Why it cannot run the plan at all.
    pub(crate) refuses: fn(&Input<'_>) -> Option<String>,
}

/// One key.
pub(crate) struct Key {
    /// As the engine spells it; a dot leads into a section.
    pub(crate) name: &'static str,
    /// The key of the budget that it says, `!` before it where it says the opposite; empty where it says none.
    path: &'static str,
    says: Says,
    /// The first version that has it.
    since: Version,
    /// The flag without which it says something else than its key of the budget.
    beside: Option<&'static str>,
}

/// What an engine's key says in terms of the budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FlagMeaning {
    /// This key of the budget.
    Key(&'static str),
    /// The opposite of this one.
    NotKey(&'static str),
    /// The dtype of some caches.
    DType {
        /// The key of the budget.
        path: &'static str,
        /// The word for the model's own.
        own: Option<&'static str>,
        /// The engine's names.
        names: &'static [DTypeName],
    },
    /// What no key of the budget does.
    Unsaid,
}

/// How a key says the plan's value.
enum Says {
    /// As it stands in the plan.
    Plan,
    /// In a way of its own; `None` where the plan does not say it.
    Own(fn(&Input<'_>) -> Sourced),
    /// The dtype of these caches by its name; or a word for the model's own dtype.
    DType(Class, Option<&'static str>, &'static [DTypeName]),
}

/// A key that says the plan's value as it stands there.
pub(crate) const fn plan(name: &'static str, path: &'static str) -> Key {
    Key { name, path, says: Says::Plan, since: Version::EVER, beside: None }
}

/// A key that says a value of the budget in a way of its own.
pub(crate) const fn flag(name: &'static str, path: &'static str, value: fn(&Input<'_>) -> Sourced) -> Key {
    Key { name, path, says: Says::Own(value), since: Version::EVER, beside: None }
}

/// A key that says what no key of the budget does.
pub(crate) const fn own(name: &'static str, value: fn(&Input<'_>) -> Sourced) -> Key {
    flag(name, "", value)
}

/// A key for the dtype of some caches.
pub(crate) const fn dtype(
    name: &'static str,
    of: Class,
    own: Option<&'static str>,
    names: &'static [DTypeName],
) -> Key {
    Key { name, path: "", says: Says::DType(of, own, names), since: Version::EVER, beside: None }
}

impl Key {
    /// The same of versions from this one on.
    pub(crate) const fn since(self, since: Version) -> Self {
        Self { since, ..self }
    }

    /// The same where its own key of the budget is meant beside another flag alone.
    pub(crate) const fn beside(self, other: &'static str) -> Self {
        Self { beside: Some(other), ..self }
    }

    /// The plan's value and where it comes from.
    pub(crate) fn value(&self, input: &Input<'_>) -> Sourced {
        match self.says {
            Says::Plan => input.planned(self.path),
            Says::Own(value) => value(input),
            Says::DType(of, own, names) => input.dtype_name(of, own, names),
        }
    }

    /// The same as it is told, where this version has the key.
    pub(crate) fn setting(&self, input: &Input<'_>) -> Option<Setting> {
        let (value, source) = self.value(input).filter(|_| self.since <= input.version)?;
        Some(Setting { key: self.name.into(), value, source })
    }

    /// What it says, read the way back.
    pub(crate) fn meaning(&self) -> FlagMeaning {
        match (&self.says, self.path.strip_prefix('!')) {
            (Says::DType(of, own, names), _) => FlagMeaning::DType { path: of.path(), own: *own, names },
            (_, Some(path)) => FlagMeaning::NotKey(path),
            (_, None) if self.path.is_empty() => FlagMeaning::Unsaid,
            (_, None) => FlagMeaning::Key(self.path),
        }
    }

    /// What the engine's own rules are told by the setting of this key.
    fn told(&self, settings: &[Setting]) -> Option<Setting> {
        let is_said = |name: &str| settings.iter().any(|setting| setting.key == name);
        if self.beside.is_some_and(|other| !is_said(other)) {
            return None;
        }
        let said = settings.iter().find(|setting| setting.key == self.name).map(|setting| setting.value.clone());
        let (path, value) = match self.path.strip_prefix('!') {
            Some(path) => (path, json!(said != Some(json!(true)))),
            None => (self.path, said?),
        };
        let told = Setting { key: path.into(), value, source: String::new() };
        // What one rank holds, and in which dtypes, its rules read in the caches. A share of nothing they do not take.
        let is_told = !path.is_empty() && !path.starts_with("parallel.");
        (is_told && budget(std::slice::from_ref(&told)).is_some()).then_some(told)
    }
}

/// The budget of these keys and values.
fn budget(told: &[Setting]) -> Option<Budget> {
    serde_json::from_value(nested(told)).ok()
}

impl Dialect {
    pub(crate) fn settings(&self, input: &Input<'_>) -> Vec<Setting> {
        self.keys.iter().filter_map(|key| key.setting(input)).collect()
    }

    /// The way back: the settings as what the engine's own rules are told.
    pub(crate) fn told(&self, settings: &[Setting]) -> Budget {
        let told: Vec<Setting> = self.keys.iter().filter_map(|key| key.told(settings)).collect();
        budget(&told).unwrap_or_default()
    }

    /// The dtypes that keys and values can be told to have in a version.
    pub(crate) fn kv_dtypes(&self, version: Version) -> Vec<DType> {
        let names = self.keys.iter().filter_map(|key| match key.says {
            Says::DType(Class::Kv, _, names) if key.since <= version => Some(names),
            _ => None,
        });
        let mut known = Vec::new();
        // Several words may say one of them.
        for (dtype, ..) in names.flatten().filter(|(_, _, since)| *since <= version) {
            if !known.contains(dtype) {
                known.push(*dtype);
            }
        }
        known
    }

    /// The engine's word for a dtype of such caches in the newest release.
    pub(crate) fn word(&self, class: Class, dtype: DType) -> Option<&'static str> {
        let names = |key: &Key| match key.says {
            Says::DType(of, _, names) if of == class => Some(names),
            _ => None,
        };
        let names = self.keys.iter().filter_map(names).flatten();
        names.copied().find(|(known, ..)| *known == dtype).map(|(_, word, _)| word)
    }

    /// What the settings say of the dtype of latents.
    pub(super) fn told_latents<'a>(&self, settings: &'a [Setting]) -> Option<&'a str> {
        let key = self.keys.iter().find(|key| matches!(key.says, Says::DType(Class::Kv, ..)))?;
        settings.iter().find(|setting| setting.key == key.name)?.value.as_str()
    }

    pub(crate) fn not_expressed(&self, input: &Input<'_>, settings: &[Setting]) -> Vec<String> {
        let is_told = |key: &&Key| settings.iter().any(|setting| setting.key == key.name);
        let ranks = self.keys.iter().filter(is_told).filter_map(|key| key.path.strip_prefix("parallel."));
        let ranks: Vec<&str> = ranks.collect();
        let missing = self.keys.iter().filter(|key| key.since > input.version).filter_map(|key| {
            let (value, _) = key.value(input)?;
            Some(format!("`{}` = {value}: this version has no such key", key.name))
        });
        let gaps = self.gaps.iter().filter_map(|gap| gap(input));
        let unnamed = Class::ALL.into_iter().filter(|of| self.chooses_dtypes && !self.names_dtype(*of, input));
        let unnamed = unnamed.filter_map(|of| input.chosen_dtype(of));
        missing.chain(gaps).chain(unnamed).chain(input.common_gaps(&ranks)).collect()
    }

    /// Whether some key says the dtype of these caches.
    fn names_dtype(&self, class: Class, input: &Input<'_>) -> bool {
        let names = |key: &Key| matches!(key.says, Says::DType(of, ..) if of == class) && key.value(input).is_some();
        self.keys.iter().any(names)
    }
}
