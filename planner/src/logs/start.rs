//! What an engine decided at its start, as it knows it itself before it allocates, beside a plan.

use std::collections::{BTreeMap, BTreeSet};

use cacheplan_handlers::{DType, Growth};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::check::{Drift, LogCheck};
use super::{EngineLog, Fact, Logged};
use crate::engines::{EngineSpec, UnknownEngine, Version};
use crate::error::PlanError;
use crate::plan::{CachePlan, PlannedResource};
use crate::render::{owner_name, ranges, wrap};
use crate::size::ByteSize;

/// What one rank of an engine is about to allocate.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EngineStart {
    /// The engine's name.
    pub engine: String,
    /// Its version, as it says it.
    pub version: String,
    /// What its log would say, unrounded: sizes in bytes, switches as 0 and 1.
    pub facts: BTreeMap<Fact, u64>,
    /// Its groups of layers; none where it has no notion of them.
    pub groups: Vec<EngineGroup>,
}

/// Caches that an engine manages together.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EngineGroup {
    /// What the engine calls them.
    pub kind: String,
    /// Those of each layer.
    pub caches: Vec<EngineCache>,
}

/// What an engine keeps of one layer on a rank.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EngineCache {
    /// The absolute layer; absent where its name has no number, which is not compared.
    pub layer: Option<u32>,
    /// Element types, by any name that [`DType`] reads; one that it does not know is not compared.
    pub dtypes: Vec<String>,
    /// Bytes of a block or of a sequence's state, without padding.
    pub bytes: u64,
    /// Tokens in a block; absent of a state.
    pub tokens: Option<u64>,
}

/// A plan beside what an engine decided.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StartCheck {
    /// Whether it is not what the plan says.
    pub drifted: bool,
    /// The numbers that its log would have.
    pub numbers: LogCheck,
    /// Its groups, in its order.
    pub groups: Vec<GroupCheck>,
    /// Layers of the plan for which it keeps nothing.
    pub missing: Vec<u32>,
}

/// One group of an engine beside the plan's caches of its layers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GroupCheck {
    /// What the engine calls it.
    pub kind: String,
    /// Its layers.
    pub layers: BTreeSet<u32>,
    /// Who owns their caches in the plan, and why.
    pub owners: BTreeSet<String>,
    /// What it keeps of one layer.
    pub started: String,
    /// Whether that is the plan's.
    pub drift: Drift,
    /// Why not, layer by layer; empty where it is.
    pub reasons: Vec<String>,
}

/// A start that cannot be set beside a plan.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StartError {
    /// An engine or version that is not modelled.
    #[error(transparent)]
    Engine(#[from] UnknownEngine),
    /// A plan that cannot be put into the engine's terms.
    #[error(transparent)]
    Plan(#[from] PlanError),
}

impl EngineCache {
    const fn is_state(&self) -> bool {
        self.tokens.is_none()
    }
}

impl CachePlan {
    /// Sets this plan beside what an engine is about to allocate: numbers by the rules of [`EngineLog::check`], and for each
    /// layer element types and bytes.
    ///
    /// Bytes of a layer that differ are the engine's own layout where its rules account for its number of blocks, else drift.
    ///
    /// # Errors
    /// An engine that is not known, and what [`EngineLog::check`] refuses.
    pub fn check_start(&self, start: &EngineStart) -> Result<StartCheck, StartError> {
        let engine = start.engine.parse::<EngineSpec>()?.engine;
        let (oldest, newest) = (engine.rules().oldest, engine.newest());
        let unknown = |()| UnknownEngine::Version { engine, version: start.version.clone(), oldest, newest };
        let version: Version = start.version.parse().map_err(unknown)?;
        let facts = start.facts.iter().map(|(fact, value)| (*fact, Logged::exact(*value))).collect();
        let numbers =
            EngineLog { engine, version: Some(version), starts: 1, is_cut: false, facts }.check(self, None)?;
        let drifts =
            |row: &super::Row| matches!(row.name, Fact::NumBlocks | Fact::Tokens) && row.drift == Drift::Unexplained;
        let layers = Layers { plan: self, start, accounted: !numbers.rows.iter().any(drifts) };
        let groups: Vec<GroupCheck> = start.groups.iter().map(|group| layers.group(group)).collect();
        let missing = if groups.is_empty() { Vec::new() } else { layers.missing() };
        let drifted =
            numbers.drifted || !missing.is_empty() || groups.iter().any(|group| group.drift == Drift::Unexplained);
        Ok(StartCheck { drifted, numbers, groups, missing })
    }
}

/// The caches of both, layer by layer.
struct Layers<'a> {
    plan: &'a CachePlan,
    start: &'a EngineStart,
    /// Whether the engine's rules give its number of blocks.
    accounted: bool,
}

impl Layers<'_> {
    /// The model's own, which have the engine's numbers; a draft's layers have numbers of their own.
    fn planned(&self) -> impl Iterator<Item = (u32, &PlannedResource)> {
        let own = self.plan.resources.iter().filter(|resource| !resource.drafts);
        // What is there once, or in a tensor of its own, no engine groups.
        let own = own.filter(|resource| resource.handler.is_paged() || resource.handler.is_state());
        own.filter_map(|resource| Some((resource.layer?, resource)))
    }

    fn group(&self, group: &EngineGroup) -> GroupCheck {
        let mut check = GroupCheck {
            kind: group.kind.clone(),
            layers: group.caches.iter().filter_map(|cache| cache.layer).collect(),
            owners: BTreeSet::new(),
            started: group.caches.first().map(shown).unwrap_or_default(),
            drift: Drift::None,
            reasons: Vec::new(),
        };
        let mut said = Vec::new();
        let mut seen = BTreeSet::new();
        for cache in group.caches.iter().filter(|cache| seen.insert((cache.layer, cache.is_state()))) {
            let planned = self
                .planned()
                .filter(|(layer, own)| Some(*layer) == cache.layer && own.handler.is_state() == cache.is_state());
            let planned: Vec<&PlannedResource> = planned.map(|(_, own)| own).collect();
            check.owners.extend(planned.iter().map(|own| format!("{}: {}", owner_name(own.owner), own.reason)));
            let (drift, what) = self.layer(cache, &planned);
            if drift == Drift::Unexplained || check.drift == Drift::None {
                check.drift = drift;
            }
            said.extend(what.map(|what| (what, cache.layer)));
        }
        check.reasons = folded(said);
        check
    }

    /// Whether one layer's pages, or its states, are as planned, and what they are where not.
    fn layer(&self, cache: &EngineCache, planned: &[&PlannedResource]) -> (Drift, Option<String>) {
        let Some(layer) = cache.layer else { return (Drift::Estimate, Some("without a number: not compared".into())) };
        if planned.is_empty() {
            return match layer < self.plan.model.layers {
                true => (Drift::Unexplained, Some("the plan has no cache of this kind there".into())),
                false => (Drift::Estimate, Some("a draft's, which the plan numbers apart: not compared".into())),
            };
        }
        // What the engine keeps of a layer may lie in several groups.
        let caches = self.start.groups.iter().flat_map(|group| &group.caches);
        let caches = caches.filter(|other| other.layer == cache.layer && other.is_state() == cache.is_state());
        let caches: Vec<&EngineCache> = caches.collect();
        let theirs: Option<BTreeSet<DType>> =
            caches.iter().flat_map(|cache| &cache.dtypes).map(|name| name.parse().ok()).collect();
        let ours: BTreeSet<DType> = planned.iter().map(|own| own.dtype).collect();
        if let Some(theirs) = theirs.filter(|theirs| *theirs != ours) {
            return (Drift::Unexplained, Some(format!("{}, planned {}", names(&theirs), names(&ours))));
        }
        let theirs = Share::of(caches.iter().map(|cache| (cache.bytes, cache.tokens.unwrap_or(1))));
        let ours = Share::of(planned.iter().map(|own| match own.handler.growth() {
            Growth::Paged { stride, .. } => (own.handler.unit_bytes(), stride.into()),
            _ => (own.handler.unit_bytes(), 1),
        }));
        if theirs == ours {
            return (Drift::None, None);
        }
        let per = if cache.is_state() { "sequence" } else { "token" };
        let what = format!("{}, planned {}", theirs.shown(per), ours.shown(per));
        match self.accounted {
            true => (Drift::Follows, Some(what + "; its rules have a layout of their own for it")),
            false => (Drift::Unexplained, Some(what)),
        }
    }

    fn missing(&self) -> Vec<u32> {
        let kept: BTreeSet<u32> =
            self.start.groups.iter().flat_map(|group| &group.caches).filter_map(|cache| cache.layer).collect();
        let planned: BTreeSet<u32> = self.planned().map(|(layer, _)| layer).collect();
        planned.difference(&kept).copied().collect()
    }
}

/// Bytes of so many tokens.
#[derive(Clone, Copy, Debug)]
struct Share {
    bytes: u128,
    tokens: u128,
}

impl Share {
    /// The sum of parts, each so many bytes of so many tokens.
    fn of(parts: impl Iterator<Item = (u64, u64)>) -> Self {
        parts.fold(Self { bytes: 0, tokens: 1 }, |sum, (bytes, tokens)| {
            let tokens = u128::from(tokens.max(1));
            let common = lcm(sum.tokens, tokens);
            let scaled = |bytes: u128, tokens: u128| bytes.saturating_mul(common / tokens);
            Self { bytes: scaled(sum.bytes, sum.tokens).saturating_add(scaled(bytes.into(), tokens)), tokens: common }
        })
    }

    fn shown(self, of: &str) -> String {
        let divided = gcd(self.bytes, self.tokens).max(1);
        // To the last of them, by which they may differ.
        let bytes = self.bytes / divided;
        match self.tokens / divided {
            1 => format!("{bytes} B per {of}"),
            tokens => format!("{bytes} B per {tokens} {of}s"),
        }
    }
}

impl PartialEq for Share {
    fn eq(&self, other: &Self) -> bool {
        self.bytes.saturating_mul(other.tokens) == other.bytes.saturating_mul(self.tokens)
    }
}

const fn gcd(one: u128, other: u128) -> u128 {
    if other == 0 { one } else { gcd(other, one % other) }
}

/// Of numbers that are not 0.
const fn lcm(one: u128, other: u128) -> u128 {
    (one / gcd(one, other)).saturating_mul(other)
}

/// `bf16, 4.0 KiB per block of 16 tokens`.
fn shown(cache: &EngineCache) -> String {
    let dtypes: BTreeSet<&str> = cache.dtypes.iter().map(String::as_str).collect();
    let (dtypes, bytes) = (dtypes.into_iter().collect::<Vec<&str>>().join(", "), ByteSize(cache.bytes));
    match cache.tokens {
        Some(tokens) => format!("{dtypes}, {bytes} per block of {tokens} tokens"),
        None => format!("{dtypes}, {bytes} per state"),
    }
}

fn names(dtypes: &BTreeSet<DType>) -> String {
    dtypes.iter().map(|dtype| dtype.name()).collect::<Vec<&str>>().join(", ")
}

/// Layers of which the same is said, in one line.
fn folded(said: Vec<(String, Option<u32>)>) -> Vec<String> {
    let mut layers: BTreeMap<String, BTreeSet<u32>> = BTreeMap::new();
    said.into_iter().for_each(|(what, layer)| layers.entry(what).or_default().extend(layer));
    layers.into_iter().map(|(what, of)| format!("{}: {what}", numbered(&of))).collect()
}

/// `layers 0-3,5`.
fn numbered(layers: &BTreeSet<u32>) -> String {
    let layers: Vec<u32> = layers.iter().copied().collect();
    match layers.len() {
        0 => "a layer".into(),
        1 => format!("layer {}", layers[0]),
        _ => format!("layers {}", ranges(&layers)),
    }
}

impl StartCheck {
    /// In what the engine is not what the plan says, by name.
    pub fn drifting(&self) -> Vec<String> {
        let numbers = self.numbers.drifting().into_iter().map(str::to_owned);
        let groups = self.groups.iter().filter(|group| group.drift == Drift::Unexplained);
        let missing = (!self.missing.is_empty()).then(|| "layers".to_owned());
        numbers.chain(groups.map(|group| group.kind.clone())).chain(missing).collect()
    }

    /// Which groups there are, who owns their layers' caches, and why: a line for each.
    pub fn owners(&self) -> Vec<String> {
        let line = |(index, group): (usize, &GroupCheck)| {
            let owners = group.owners.iter().map(String::as_str).collect::<Vec<&str>>().join("; ");
            let layers = numbered(&group.layers);
            format!("group {index}: {} of {layers}, {}; {owners}", group.kind, group.started)
        };
        self.groups.iter().enumerate().map(line).collect()
    }

    /// As a text table, at most 100 columns wide, like that of a log.
    pub fn table(&self) -> String {
        let mut text = self.numbers.table_of("started");
        for (index, group) in self.groups.iter().enumerate() {
            let verdict = match group.drift {
                Drift::None => "equal",
                Drift::Follows => "follows",
                Drift::Estimate => "not compared",
                Drift::Unexplained => "DRIFT",
            };
            text.push_str(&wrap(&format!("group {index}: {}, {}  {verdict}", group.kind, group.started), 0));
            group.reasons.iter().for_each(|reason| text.push_str(&wrap(reason, 4)));
        }
        if !self.missing.is_empty() {
            let layers = numbered(&self.missing.iter().copied().collect());
            text.push_str(&wrap(&format!("{layers}: planned, and kept nowhere  DRIFT"), 0));
        }
        text
    }
}
