//! What changed between two plans: every key that they have, but for those that follow from others or say where it all
//! came from.

use std::collections::{BTreeMap, HashMap};
use std::fmt::{self, Display};

use serde::Serialize;
use serde_json::{Map, Value};

use crate::engines::EnginePrediction;
use crate::plan::CachePlan;
use crate::render::{align, ranges, wrap};
use crate::size::ByteSize;

/// The differences between two plans; empty where they allocate and admit the same.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PlanDiff {
    /// Each number or name that differs, in the order of the plan's own keys.
    pub changes: Vec<Change>,
}

/// One number or name that differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Change {
    /// The part of the plan: `limits`, `resources`, `pools`, …; `plan` for what stands in none.
    pub section: String,
    /// The resource, pool or ledger line; empty where the section has one of each key.
    pub name: String,
    /// The key within it, with dots where it stands deeper: `owner`, `handler.layout`, ….
    pub key: String,
    /// The layer, for a resource of one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layer: Option<u32>,
    /// What the first plan says; absent where it has no such thing.
    pub before: Option<Side>,
    /// What the second plan says.
    pub after: Option<Side>,
}

/// A side of a change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Side {
    /// A number of bytes, told apart so that tables can print it in GiB.
    Bytes(u64),
    /// Any other number.
    Count(u64),
    /// A name.
    Name(String),
}

impl Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) if *bytes < 1024 => write!(f, "{bytes} B"),
            Self::Bytes(bytes) => write!(f, "{bytes} ({})", ByteSize(*bytes)),
            Self::Count(count) => write!(f, "{count}"),
            Self::Name(name) => f.write_str(name),
        }
    }
}

impl CachePlan {
    /// What changed from this plan to `after`.
    pub fn diff(&self, after: &Self) -> PlanDiff {
        let mut changes = compare(&facts(self), &facts(after));
        // What one of them alone keeps outside of pools the owner of its resource says.
        let is_own = |has: &Self, lacks: &Self, name: &str| {
            has.pool(name).is_some_and(|pool| !pool.owner.is_managed()) && lacks.pool(name).is_none()
        };
        changes.retain(|Change { section, name, .. }| {
            section != "pools" || !(is_own(self, after, name) || is_own(after, self, name))
        });
        PlanDiff { changes }
    }
}

impl PlanDiff {
    /// The same with what changed of the engines' allocations that stand beside the plans.
    #[must_use]
    pub fn and_engines(mut self, before: Option<&EnginePrediction>, after: Option<&EnginePrediction>) -> Self {
        let of = |engine: Option<&EnginePrediction>| facts(&BTreeMap::from([("engine", engine)]));
        self.changes.extend(compare(&of(before), &of(after)));
        self
    }

    /// Whether nothing differs.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// The changes as a text table, at most 100 columns wide; resources that change alike share a line.
    pub fn table(&self) -> String {
        let mut text = String::new();
        let mut rest = self.changes.as_slice();
        while let [first, ..] = rest {
            let length = rest.iter().take_while(|change| change.section == first.section).count();
            let (section, others) = rest.split_at(length);
            if !text.is_empty() {
                text.push('\n');
            }
            text.push_str(&format!("{}\n", first.section.to_uppercase()));
            text.push_str(&table(section));
            rest = others;
        }
        text
    }
}

/// Keys that are no change by themselves: they say where a plan came from and why it is so, or repeat others.
const PASSED_OVER: [&str; 12] = [
    "schema_version",
    "tool_version",
    "fingerprint",
    "model.fingerprint",
    "model.revision",
    "resources.reason",
    "resources.handler.kind",
    "resources.handler.dtype",
    "pools.members.offset",
    "pools.members.bytes",
    "ledger.note",
    "engine.notes",
];

/// The keys by which the entries of a list are known, the first that one has.
const IDENTITIES: [&str; 5] = ["name", "id", "resource", "pool", "class"];

/// The words of keys whose numbers are bytes.
const IN_BYTES: [&str; 2] = ["bytes", "weights.classes"];

/// One comparable value of a plan.
struct Fact {
    place: Place,
    key: String,
    value: Side,
}

/// What a value is said of.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
struct Place {
    section: String,
    name: String,
    layer: Option<u32>,
}

/// The values of plain data, part by part.
fn facts(data: &impl Serialize) -> Vec<Fact> {
    // Plain data always has a JSON value.
    let data = serde_json::to_value(data).unwrap_or_default();
    let mut facts = Vec::new();
    for (section, value) in data.as_object().into_iter().flatten() {
        let place = Place { section: section.clone(), ..Place::default() };
        match value {
            Value::Object(_) => place.add(section, "", value, &mut facts),
            Value::Array(entries) => {
                for (at, entry) in entries.iter().enumerate() {
                    let layer = entry.get("layer").and_then(Value::as_u64).and_then(|layer| u32::try_from(layer).ok());
                    let (name, rest) = parted(entry, at);
                    Place { name, layer, ..place.clone() }.add(section, "", &rest, &mut facts);
                }
            }
            one => Place { section: "plan".to_owned(), ..place }.add(section, section, one, &mut facts),
        }
    }
    facts
}

/// What the entry of a list is known by, and the rest of it.
fn parted(entry: &Value, at: usize) -> (String, Value) {
    let Some(entry) = entry.as_object() else { return (at.to_string(), entry.clone()) };
    let known = IDENTITIES.iter().find_map(|key| Some((*key, entry.get(*key)?.as_str()?)));
    let is_place = |key: &str| key == "layer" || known.is_some_and(|(identity, _)| identity == key);
    let rest: Map<String, Value> =
        entry.iter().filter(|(key, _)| !is_place(key)).map(|(key, value)| (key.clone(), value.clone())).collect();
    (known.map_or_else(|| at.to_string(), |(_, name)| name.to_owned()), Value::Object(rest))
}

fn joined(outer: &str, inner: &str) -> String {
    if outer.is_empty() { inner.to_owned() } else { format!("{outer}.{inner}") }
}

impl Place {
    /// Adds what stands at a path of the plan, by the key that it has here.
    fn add(&self, path: &str, key: &str, value: &Value, facts: &mut Vec<Fact>) {
        if PASSED_OVER.contains(&path) {
            return;
        }
        let value = match value {
            Value::Null => return,
            Value::Object(inner) => {
                for (word, value) in inner {
                    self.add(&joined(path, word), &joined(key, word), value, facts);
                }
                return;
            }
            Value::Array(entries) if entries.iter().any(Value::is_object) => {
                let entries = entries.iter().enumerate().map(|(at, entry)| parted(entry, at));
                let (names, rests): (Vec<String>, Vec<Value>) = entries.unzip();
                for (name, rest) in names.iter().zip(&rests) {
                    self.add(path, &joined(key, name), rest, facts);
                }
                Side::Name(names.join(", "))
            }
            Value::Array(entries) if key == "layers" || key == "shared_by" => Side::Name(ranges(
                &entries.iter().filter_map(|layer| layer.as_u64()?.try_into().ok()).collect::<Vec<_>>(),
            )),
            Value::Number(number) => match number.as_u64() {
                Some(bytes) if IN_BYTES.iter().any(|word| path.contains(word)) => Side::Bytes(bytes),
                Some(count) => Side::Count(count),
                None => Side::Name(number.to_string()),
            },
            // A local resource is its own pool.
            Value::String(name) if key == "pool" && *name == self.name => Side::Name("own tensor".to_owned()),
            Value::String(name) => Side::Name(name.clone()),
            other => Side::Name(other.to_string()),
        };
        facts.push(Fact { place: self.clone(), key: key.to_owned(), value });
    }
}

/// Facts of both sides, part by part, joined by place and key; those only in `after` come last.
fn compare(before: &[Fact], after: &[Fact]) -> Vec<Change> {
    fn indexed(facts: &[Fact]) -> HashMap<(&Place, &str), &Fact> {
        facts.iter().map(|fact| ((&fact.place, &*fact.key), fact)).collect()
    }
    let (old, new) = (indexed(before), indexed(after));
    let change = |fact: &Fact, before: Option<&Fact>, after: Option<&Fact>| Change {
        section: fact.place.section.clone(),
        name: fact.place.name.clone(),
        key: fact.key.clone(),
        layer: fact.place.layer,
        before: before.map(|fact| fact.value.clone()),
        after: after.map(|fact| fact.value.clone()),
    };
    let changed = before.iter().filter_map(|fact| {
        let other = new.get(&(&fact.place, &*fact.key)).copied();
        other.is_none_or(|other| other.value != fact.value).then(|| change(fact, Some(fact), other))
    });
    let added = after.iter().filter(|fact| !old.contains_key(&(&fact.place, &*fact.key)));
    let mut changes: Vec<Change> = changed.chain(added.map(|fact| change(fact, None, Some(fact)))).collect();
    let mut sections: Vec<&str> = Vec::new();
    for fact in before.iter().chain(after) {
        if !sections.contains(&&*fact.place.section) {
            sections.push(&fact.place.section);
        }
    }
    changes.sort_by_key(|change| sections.iter().position(|section| *section == change.section));
    changes
}

/// Changes of one section, those of several resources that are alike in one row.
fn table(changes: &[Change]) -> String {
    let mut alike: Vec<(&Change, Vec<&Change>)> = Vec::new();
    for change in changes {
        let same = |first: &Change| {
            change.layer.is_some()
                && first.layer.is_some()
                && (&first.key, &first.before, &first.after) == (&change.key, &change.before, &change.after)
        };
        match alike.iter_mut().find(|(first, _)| same(first)) {
            Some((_, group)) => group.push(change),
            None => alike.push((change, vec![change])),
        }
    }
    let side = |value: Option<&Side>| value.map_or_else(|| "-".to_owned(), short);
    let rows: Vec<Vec<String>> = alike
        .iter()
        .map(|(first, group)| {
            let name = match group.len() {
                1 => first.name.clone(),
                count => format!("{count} resources"),
            };
            let mut row =
                vec![name, first.key.clone(), side(first.before.as_ref()), "->".into(), side(first.after.as_ref())];
            row.extend(growth(first));
            row
        })
        .collect();
    let mut text = String::new();
    for (line, (_, group)) in align(&rows, &[]).iter().zip(&alike) {
        text.push_str(&format!("  {line}\n"));
        if group.len() > 1 {
            let layers: Vec<u32> = group.iter().filter_map(|change| change.layer).collect();
            text.push_str(&wrap(&format!("layers {}", ranges(&layers)), 6));
        }
    }
    text
}

/// A value in a table's column: a long name is cut, the data has it whole.
fn short(value: &Side) -> String {
    const WIDEST: usize = 30;
    let text = value.to_string();
    if text.chars().count() <= WIDEST { text } else { text.chars().take(WIDEST - 3).chain("...".chars()).collect() }
}

/// `+12.00 GiB` for bytes, `+3` for counts.
fn growth(change: &Change) -> Option<String> {
    let signed = |before: u64, after: u64, text: fn(u64) -> String| {
        let sign = if after < before { '-' } else { '+' };
        format!("{sign}{}", text(after.abs_diff(before)))
    };
    match (change.before.as_ref()?, change.after.as_ref()?) {
        (Side::Bytes(before), Side::Bytes(after)) => Some(signed(*before, *after, |bytes| ByteSize(bytes).to_string())),
        (Side::Count(before), Side::Count(after)) => Some(signed(*before, *after, |count| count.to_string())),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use cacheplan_transforms::{Model, ReadOptions};

    use super::*;
    use crate::budget::Budget;
    use crate::plan_file::PlanFields;
    use crate::request::PlanRequest;

    /// A hybrid on several ranks, with a host tier, drafts and kept states.
    fn plan() -> CachePlan {
        let config = r#"{ "model_type": "qwen3_next", "num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4,
            "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 128, "vocab_size": 256, "num_experts": 0,
            "full_attention_interval": 2, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16,
            "linear_value_head_dim": 16, "linear_conv_kernel_dim": 4, "max_position_embeddings": 4096,
            "decoder_sparse_step": 1, "mlp_only_layers": [0, 1, 2, 3] }"#;
        let budget = "max_seq_len = 1024
[memory]
bytes = '64MiB'
[parallel]
tp = 2
dp = 2
[host]
bytes = '16MiB'";
        let model = Model::read_config("config.json", config, &ReadOptions::default()).unwrap();
        PlanRequest::of(model).with_budget(Budget::from_toml(budget, "budget.toml").unwrap()).plan().unwrap()
    }

    /// Every leaf with its path and the pointer to it.
    fn leaves(path: &str, pointer: &str, value: &Value, found: &mut Vec<(String, String)>) {
        match value {
            Value::Object(inner) => inner
                .iter()
                .for_each(|(key, value)| leaves(&joined(path, key), &format!("{pointer}/{key}"), value, found)),
            Value::Array(entries) => entries
                .iter()
                .enumerate()
                .for_each(|(at, value)| leaves(path, &format!("{pointer}/{at}"), value, found)),
            _ => found.push((path.to_owned(), pointer.to_owned())),
        }
    }

    /// Other values that a leaf may have.
    fn others(value: &Value) -> Vec<Value> {
        let words =
            ["local", "fp32", "f32", "NHD", "int8", "whole", "assumed", "by-window", "kv_cache_manager", "memory"];
        match value {
            Value::Number(number) => vec![Value::from(number.as_u64().unwrap_or(0) + 1)],
            Value::Bool(flag) => vec![Value::from(!flag)],
            Value::Null => vec![Value::from(7)],
            _ => words.into_iter().chain(["fixed", "per_sequence", "state", "other"]).map(Value::from).collect(),
        }
    }

    #[test]
    fn two_plans_that_differ_in_a_leaf_that_decides_have_a_diff() {
        let before = plan();
        let whole = serde_json::to_value(&before).unwrap();
        let mut all = Vec::new();
        leaves("", "", &whole, &mut all);
        let mut seen = BTreeMap::new();
        for (path, pointer) in all {
            for other in others(whole.pointer(&pointer).unwrap()) {
                let mut changed = whole.clone();
                *changed.pointer_mut(&pointer).unwrap() = other;
                // What reads as the same, or not at all, is no other plan.
                let Ok(after) = PlanFields::deserialize(&changed) else { continue };
                if after == before {
                    continue;
                }
                let is_passed_over =
                    PASSED_OVER.iter().any(|over| path == *over || path.starts_with(&format!("{over}.")));
                assert_eq!(
                    before.diff(&after).is_empty(),
                    is_passed_over,
                    "{pointer}: {}",
                    changed.pointer(&pointer).unwrap()
                );
                seen.insert(path.clone(), ());
            }
        }
        let parts = [
            "parallel.cp",
            "deployment.sequences",
            "model.dtype",
            "resources.handler.shape.size",
            "resources.handler.layout",
            "host.pools.units",
            "pools.members.resource",
        ];
        assert!(parts.iter().all(|part| seen.contains_key(*part)), "{seen:?}");
    }
}
