//! What engines refuse at start of words that their parsers take: each engine's table of such rules is beside its own, and this reads it.

use std::ops::Range;

use cacheplan_handlers::{Growth, Kind, ResourceHandler};
use cacheplan_planner::engines::Version;
use cacheplan_planner::{ModelCaches, PlanRequest};
use serde_json::Value;

use super::{Limits, Question};
use crate::error::ServeError;
use crate::flags::parse::Setting;
use crate::flags::python::float;
use crate::remedy::Remedy;

/// Behind every version that there is.
const ALL: Version = Version(u32::MAX, 0, 0);

/// One thing that an engine refuses.
pub(super) struct Rule {
    /// Versions that were read to refuse it.
    versions: Range<Version>,
    /// Flags of which one less may do.
    flags: &'static [&'static str],
    /// What the engine says; none of a command that keeps to the rule.
    says: fn(&Case<'_>) -> Option<String>,
}

/// A rule of a version and of all behind it.
pub(super) const fn since(
    version: Version,
    flags: &'static [&'static str],
    says: fn(&Case<'_>) -> Option<String>,
) -> Rule {
    within(version..ALL, flags, says)
}

pub(super) const fn within(
    versions: Range<Version>,
    flags: &'static [&'static str],
    says: fn(&Case<'_>) -> Option<String>,
) -> Rule {
    Rule { versions, flags, says }
}

/// The rule that a command breaks, in the engine's words.
pub(super) fn look(rules: &[Rule], case: &Case<'_>) -> Result<(), ServeError> {
    let question = case.question;
    let mut of_version = rules.iter().filter(|rule| rule.versions.contains(&question.engine.version));
    let Some((said, flags)) = of_version.find_map(|rule| Some(((rule.says)(case)?, rule.flags))) else {
        return Ok(());
    };
    let stated = flags.iter().copied().filter(|flag| question.flag(flag).is_some());
    Err(question.refused(said, stated.map(Remedy::Remove)))
}

/// A row of a table of what an engine refuses: what holds of a command then, and what the engine says.
///
/// What holds are words with blanks between: a flag that is stated; `--flag=a|b`, where it is one of these; `--flag<1` and `--flag>1`, a
/// number that is less or more, in each of them its default where nobody states it; `@word`, something of the model or the device; and `!`
/// before any of them, where it does not hold.
pub(super) type Row = (&'static str, &'static str);

/// The first row of a table that holds, in the engine's words; without a model of those that ask nothing of it.
pub(super) fn look_at_rows(rows: &[Row], question: &Question, case: Option<&Case<'_>>) -> Result<(), ServeError> {
    let holds = |part: &str| match part.strip_prefix('@') {
        Some(word) => case.is_some_and(|case| case.is(word)),
        None => says(question, part),
    };
    let all = |when: &str| {
        when.split(' ').all(|part| part.strip_prefix('!').map_or_else(|| holds(part), |part| !holds(part)))
    };
    let asked = |when: &str| case.is_some() || !when.contains('@');
    let Some((when, said)) = rows.iter().find(|(when, _)| asked(when) && all(when)) else { return Ok(()) };
    let flags = when.split(' ').filter(|part| !part.starts_with(['!', '@'])).map(|part| condition(part).0);
    let stated = flags.filter(|flag| question.flag(flag).is_some());
    Err(question.refused(*said, stated.map(Remedy::Remove)))
}

/// Whether a part of a row holds that asks about a flag.
fn says(question: &Question, part: &str) -> bool {
    let (flag, asked) = condition(part);
    if asked.is_empty() {
        // A text without a sign is as none.
        return question.flag(flag).is_some_and(|setting| setting.on && !setting.value().is_empty());
    }
    let (sign, limit) = asked.split_at(1);
    let Some(value) = question.value(flag).or_else(|| question.default(flag)) else { return false };
    let numbers = float(value).zip(float(limit));
    match sign {
        "=" => limit.split('|').any(|word| word == value),
        "<" => numbers.is_some_and(|(value, limit)| value < limit),
        _ => numbers.is_some_and(|(value, limit)| value > limit),
    }
}

/// A flag, and what is asked of its value.
fn condition(part: &str) -> (&str, &str) {
    part.split_at(part.find(['=', '<', '>']).unwrap_or(part.len()))
}

/// A command and its model, as rules ask about them.
pub(super) struct Case<'a> {
    pub(super) question: &'a Question,
    pub(super) model: &'a ModelCaches,
    pub(super) limits: Limits,
    kinds: Vec<Kind>,
    has_states: bool,
    keeps_all_alike: bool,
    has_windows: bool,
}

impl<'a> Case<'a> {
    pub(super) fn of(question: &'a Question, model: &'a ModelCaches, limits: Limits) -> Result<Self, ServeError> {
        let caches = question.caches(model)?;
        let kinds = caches.iter().map(|cache| cache.handler.kind().clone()).collect();
        let has_states = caches.iter().any(|cache| ResourceHandler::is_state(&cache.handler));
        let keeps_all = |growth: Growth| matches!(growth, Growth::Paged { window: None, .. });
        let keeps_all_alike = caches.iter().all(|cache| keeps_all(cache.handler.growth()));
        let has_windows =
            caches.iter().any(|cache| matches!(cache.handler.growth(), Growth::Paged { window: Some(_), .. }));
        Ok(Self { question, model, limits, kinds, has_states, keeps_all_alike, has_windows })
    }

    /// What a row calls something of the model or the device.
    fn is(&self, word: &str) -> bool {
        match word {
            "states" => self.has_states,
            "keeps-prefixes" => self.question.keeps_prefixes(),
            "sparse" => self.keeps(&Kind::IndexKey),
            "more-than-text" => takes_more_than_text(self.model),
            "attn-dp" => self.question.attention_replicas() > 1,
            "before-blackwell" => self.generation().is_some_and(|generation| generation < 10),
            model => self.model_type() == model,
        }
    }

    pub(super) fn is_on(&self, flag: &str) -> bool {
        self.question.is_on(flag)
    }

    pub(super) fn is_stated(&self, flag: &str) -> bool {
        self.question.flag(flag).is_some()
    }

    /// A number that a flag states; of a size that nobody states 1.
    pub(super) fn size(&self, flag: &str) -> u64 {
        self.question.count(flag).unwrap_or(1)
    }

    pub(super) fn whole(&self, flag: &str) -> Option<i64> {
        self.question.flag(flag).and_then(Setting::whole)
    }

    pub(super) fn word(&self, flag: &str) -> Option<&str> {
        self.question.value(flag)
    }

    /// The word of a flag where a list of words has it not.
    pub(super) fn unlisted(&self, flag: &str, list: &str) -> Option<&str> {
        self.word(flag).filter(|word| !lists(list, word))
    }

    /// The object that a flag states.
    pub(super) fn object(&self, flag: &'static str) -> serde_json::Map<String, Value> {
        self.question.object(flag).ok().flatten().unwrap_or_default()
    }

    pub(super) fn model_type(&self) -> &str {
        &self.model.info().model_type
    }

    pub(super) const fn has_states(&self) -> bool {
        self.has_states
    }

    /// Whether every layer keeps all tokens, so that all of them are one group.
    pub(super) const fn keeps_all_alike(&self) -> bool {
        self.keeps_all_alike
    }

    /// Whether a group of caches keeps no token for good: states, and windows that slide where those have groups of their own. Chunks are
    /// counted as windows, and slide not.
    pub(super) fn forgets(&self) -> bool {
        let slides = self.has_windows && super::of_config(self.model, "attention_chunk_size").is_none();
        self.has_states || slides && !self.is_on("--disable-hybrid-kv-cache-manager")
    }

    /// Whether layers have windows.
    pub(super) const fn forgets_windows(&self) -> bool {
        self.has_windows
    }

    pub(super) fn keeps(&self, kind: &Kind) -> bool {
        self.kinds.contains(kind)
    }

    /// The generation of the GPU, as CUDA counts.
    pub(super) fn generation(&self) -> Option<u32> {
        self.capability().map(|capability| capability / 10)
    }

    /// The compute capability of the GPU, times ten.
    pub(super) fn capability(&self) -> Option<u32> {
        let devices = self.question.device()?.clone();
        let request = PlanRequest::of(self.model.clone()).for_engine(self.question.engine).with_devices(devices);
        request.budget().ok()?.engine.compute_capability
    }

    /// Whether neither its type nor a key of its config speaks of experts.
    pub(super) fn is_dense(&self) -> bool {
        let config = self.model.model().map(|model| &model.config);
        let is_of_experts = |name: &str| name.contains("moe") || name.contains("expert");
        let states = |config: &serde_json::Map<String, Value>| {
            config.iter().any(|(key, value)| any(key, value, &|key, value| is_of_experts(key) && !is_none(value)))
        };
        config.is_some_and(|config| !states(config))
            && !is_of_experts(self.model_type())
            && self.model_type() != "mixtral"
    }
}

/// Whether the model takes more than text.
pub(super) fn takes_more_than_text(model: &ModelCaches) -> bool {
    model.model().is_none_or(|model| ["vision_config", "audio_config"].iter().any(|key| model.stated(key).is_some()))
}

/// Whether a list of words has one.
pub(super) fn lists(list: &str, word: &str) -> bool {
    list.split_whitespace().any(|known| known == word)
}

/// The words of a list as engines print them.
pub(super) fn listed(list: &str) -> String {
    list.split_whitespace().collect::<Vec<_>>().join(", ")
}

fn is_none(value: &Value) -> bool {
    matches!(value, Value::Null | Value::Bool(false))
        || value.as_f64() == Some(0.0)
        || value.as_array().is_some_and(Vec::is_empty)
}

/// Whether a key or one within its value is such a one.
fn any(key: &str, value: &Value, of: &dyn Fn(&str, &Value) -> bool) -> bool {
    of(key, value)
        || match value {
            Value::Object(inner) => inner.iter().any(|(key, value)| any(key, value, of)),
            Value::Array(all) => all.iter().any(|value| value.is_object() && any("", value, of)),
            _ => false,
        }
}
