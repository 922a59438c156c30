//! The question as people ask it, and what they are told: the same in the command, on the page and in Python.

use cacheplan_planner::bound::PrefillBound;
use cacheplan_planner::engines::{LowerTiers, TierFlags};
use cacheplan_planner::pictures::TierCurve;
use cacheplan_planner::{ByteSize, CachePlan, DeviceInfo, PlanRequest, StoredStates};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::answer::{TierPoint, TiersAnswer};
use super::error::TiersError;
use super::question::TiersQuestion;
use crate::simulate::{Compute, Links, Policy, TraceRequest};

/// What an SSD gives at most: 4 lanes of 16 GT/s, 128 bits of every 130, one way.
const DISK_RATE: f64 = 16e9 * 4.0 * 128.0 / 130.0 / 8.0;
const DISK_SOURCE: &str = "PCI Express 4.0, 4 lanes";

/// Tiers below the device as they are stated; what is not follows from the device, the plan, or is none.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TiersAsked {
    /// The most host memory of a rank.
    pub host: Option<ByteSize>,
    /// The most disk of a rank.
    pub disk: Option<ByteSize>,
    /// The hit rate to reach.
    pub target_hit: Option<f64>,
    /// The price of a GiB of host memory, and of one of the disk.
    pub prices: Option<[f64; 2]>,
    /// Bytes each second from host memory to a rank.
    pub host_rate: Option<ByteSize>,
    /// Bytes each second from the disk for a rank.
    pub disk_rate: Option<ByteSize>,
    /// Sequences that run at a time.
    pub running: Option<u32>,
    /// How states are placed and evicted.
    pub policy: Policy,
    /// How states are stored below the device.
    pub stored_states: StoredStates,
    /// Tokens per chunk of the model's scan.
    pub chunk: u32,
}

impl Default for TiersAsked {
    fn default() -> Self {
        Self {
            host: None,
            disk: None,
            target_hit: None,
            prices: None,
            host_rate: None,
            disk_rate: None,
            running: None,
            policy: Policy::CompleteLru,
            stored_states: StoredStates::Own,
            chunk: 64,
        }
    }
}

/// The answer, with what it rests on and what engines are told.
#[derive(Clone, Debug, Serialize)]
pub struct TiersTold {
    /// What the requests are called.
    pub trace: String,
    /// What was found.
    pub answer: TiersAnswer,
    /// Who states each rate.
    pub sources: TierSources,
    /// The chosen tiers in the words of each engine.
    pub engines: Vec<TierFlags>,
    /// What the model is called.
    #[serde(skip)]
    pub(super) model: String,
    /// The longest sequence of the plan.
    #[serde(skip)]
    pub(super) max_seq_len: u64,
}

/// Who states the rates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct TierSources {
    /// From host memory.
    pub host_rate: &'static str,
    /// From the disk.
    pub disk_rate: &'static str,
    /// What computing takes; absent where no rates of the device are known.
    pub computing: Option<&'static str>,
}

impl TiersAsked {
    /// Reads what a door states as JSON, key by key, so that an error has its own.
    ///
    /// # Errors
    /// A key that there is none of, or a value that is none of its.
    pub fn of_json(stated: Map<String, Value>) -> Result<Self, TiersError> {
        let read = |key: &str, value: Value, found: &Value| {
            serde_json::from_value::<Self>(value).map_err(|wrong| TiersError::Stated {
                key: key.to_owned(),
                found: found.to_string(),
                why: wrong.to_string(),
            })
        };
        for (key, value) in &stated {
            let alone: Map<String, Value> = [(key.clone(), value.clone())].into_iter().collect();
            read(key, alone.into(), value)?;
        }
        read("tiers", stated.into(), &Value::Null)
    }

    /// Plans the request, and replays the requests until the smallest tiers are found; `trace` is what these are called.
    ///
    /// # Errors
    /// As [`TiersError`] says.
    pub fn answer(
        &self,
        request: &PlanRequest,
        trace: String,
        requests: &[TraceRequest],
    ) -> Result<TiersTold, TiersError> {
        self.refuse_nothing()?;
        let plan = request.plan()?;
        let bound = request.prefill(&plan);
        let (slot, slot_source) =
            request.device().map_or_else(|| DeviceInfo::cpu("", 0, 0).host_link(), DeviceInfo::host_link);
        let stated = |rate: Option<ByteSize>, known: f64, source| match rate {
            Some(rate) => (rate.0 as f64, "stated"),
            None => (known, source),
        };
        let (host_rate, host_source) = stated(self.host_rate, slot, slot_source);
        let (disk_rate, disk_source) = stated(self.disk_rate, DISK_RATE, DISK_SOURCE);
        let compute = bound.as_ref().map(|bound| move |from: usize, to: usize| bound.seconds(from as u64, to as u64));
        let question = TiersQuestion {
            plan: &plan,
            chunk: self.chunk as usize,
            policy: self.policy,
            running: self.running.map(|running| running as usize),
            host: self.host.map_or(0, |size| size.0),
            disk: self.disk.map_or(0, |size| size.0),
            stored: self.stored_states,
            target: self.target_hit,
            links: Links { host: host_rate, disk: disk_rate },
            compute: compute.as_ref().map(|compute| compute as Compute<'_>),
            prices: self.prices,
        };
        let answer = question.answer(requests)?;
        let computing = bound.as_ref().map(PrefillBound::source);
        let sources = TierSources { host_rate: host_source, disk_rate: disk_source, computing };
        let engines = flags(&answer, &plan);
        let (model, max_seq_len) = (plan.model.title(), plan.limits.max_seq_len);
        Ok(TiersTold { trace, answer, sources, engines, model, max_seq_len })
    }
}

impl TiersAsked {
    /// What is none is left out instead of stated.
    fn refuse_nothing(&self) -> Result<(), TiersError> {
        let sizes = [("host", self.host), ("disk", self.disk)];
        match sizes.into_iter().find(|(_, size)| *size == Some(ByteSize(0))) {
            Some((what, _)) => Err(TiersError::Value {
                what,
                found: "0 bytes, which are no tier".into(),
                expected: "more, or nothing,",
            }),
            None => Ok(()),
        }
    }
}

impl TiersTold {
    /// Why nothing tried is enough, where a hit rate was asked for.
    #[must_use]
    pub fn out_of_reach(&self) -> Option<String> {
        let target = self.answer.target.filter(|_| self.answer.chosen.is_none())?;
        let (most, ceiling) = (self.answer.point().hit_rate, self.answer.ceiling);
        Some(format!(
            "nothing tried reaches {target}: the most is {most:.4}, and {ceiling:.4} with room for everything"
        ))
    }

    /// What is taken for granted.
    #[must_use]
    pub fn note(&self) -> Option<&'static str> {
        let why = "no rates of the device, or no weights, are known, so that every load counts as if it beat computing";
        self.sources.computing.is_none().then_some(why)
    }

    /// The hit rate over the bytes below the device, to be drawn.
    #[must_use]
    pub fn curve(&self) -> TierCurve {
        let answer = &self.answer;
        let below = |point: &TierPoint| point.host().saturating_add(point.disk());
        let point = |point: &TierPoint| {
            let tiers = format!("host {}, disk {}", ByteSize(point.host()), ByteSize(point.disk()));
            (below(point), point.hit_rate, tiers)
        };
        TierCurve {
            title: format!("{}: {}", self.model, self.trace),
            points: answer.curve.iter().map(point).collect(),
            alone: answer.curve.first().map_or(answer.planned.hit_rate, |point| point.hit_rate),
            ceiling: answer.ceiling,
            chosen: answer.chosen.as_ref().map(below),
        }
    }
}

fn flags(answer: &TiersAnswer, plan: &CachePlan) -> Vec<TierFlags> {
    let point = answer.point();
    let [_, _, state] = answer.unit_bytes;
    let ratio = |states: u64, keys: u64| (state > 0 && keys > 0).then(|| states as f64 / keys as f64);
    let device = point.sizes.device;
    let live = plan.slots.live.saturating_mul(state as u64);
    let lower = [point.sizes.host, point.sizes.disk];
    LowerTiers {
        host: point.host(),
        disk: point.disk(),
        host_states: point.sizes.host.states.checked_div(answer.stored_state_bytes as u64).unwrap_or(0),
        running: answer.running as u64,
        distance: point.distance as u64,
        // Engines count the states of running sequences with those of prefixes.
        device_ratio: ratio(device.states.saturating_add(live), device.keys),
        lower_ratio: ratio(lower[0].states + lower[1].states, lower[0].keys + lower[1].keys),
        parallel: plan.parallel,
    }
    .flags()
}
