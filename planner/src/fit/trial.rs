//! One layout, planned: what it admits in which dtypes, by its own pools or an engine's.

use cacheplan_handlers::DType;

use super::{AskedOf, AtBest, Engines, Fit, FitQuestion, Told};
use crate::bound::{SpeedBound, Work};
use crate::budget::{Base, Dtypes, Memory};
use crate::config::ConfigValue;
use crate::device::DeviceInfo;
use crate::engines::{EngineSpec, Layout};
use crate::error::PlanError;
use crate::parallel::Parallel;
use crate::plan::{CachePlan, Cap};
use crate::request::PlanRequest;
use crate::size::ByteSize;

/// Plans all stages; `None` where the model cannot be divided so.
pub(super) fn tried(
    request: &PlanRequest,
    device: &DeviceInfo,
    parallel: Parallel,
    question: &FitQuestion,
    work: Option<&Work>,
) -> Option<Tried> {
    let weights = question.weights.and_then(|stated| request.weights_as(stated, None));
    let request = of_device(request, device, weights).changed(|budget| {
        budget.max_seq_len = Some(question.context);
        budget.max_batch_size = None;
        budget.parallel = parallel;
    });
    planned(&request, device, parallel, None, question, work)
}

/// An engine that is asked what it admits on such devices.
pub(super) struct Asking<'a> {
    /// The model.
    pub(super) model: &'a PlanRequest,
    pub(super) engines: Engines<'a>,
    pub(super) engine: EngineSpec,
    pub(super) device: &'a DeviceInfo,
    pub(super) question: &'a FitQuestion,
    pub(super) work: Option<&'a Work>,
}

impl Asking<'_> {
    /// The most that it holds of what it is told; `None` where it cannot be told the layout, or its rules for the model are not
    /// known. It is looked for from `near` on.
    ///
    /// Its steps and graphs grow with the sequences that it is told, so that what it holds of few is more than what it holds of
    /// many.
    pub(super) fn most(&self, layout: Layout, near: u64) -> Option<Tried> {
        let replicas = u64::from(layout.parallel.dp);
        let admits = |sequences: u64| self.of(Layout { sequences, ..layout });
        let holds = |told: u64| admits(told * replicas).map_or(0, |found| (found.sequences / replicas).min(told));
        let needed = self.question.needed();
        let of_replica = |all: u64| all.div_ceil(replicas).clamp(1, MOST_SEQUENCES);
        // It may refuse to be told of as many as the plan's own pools hold.
        let tries = [needed.max(near), needed].map(of_replica);
        let (asked, first) = tries.into_iter().find_map(|asked| Some((asked, admits(asked * replicas)?)))?;
        // Between both lies the most of which it holds as many as it is told: what it holds of too many it holds of fewer too,
        // most often little less than that.
        let mut held = (first.sequences / replicas).min(asked);
        let mut most = if held < asked { asked - 1 } else { MOST_SEQUENCES };
        let mut step = Some(1);
        while held < most {
            let told = step.map_or(most - (most - held) / 2, |step| most.min(held.saturating_add(step)));
            let found = holds(told);
            held = held.max(found);
            step = step.filter(|_| found == told).map(|step: u64| step.saturating_mul(2));
            most = if found < told { told - 1 } else { most };
        }
        // Of none it says what ends them.
        if held == 0 { Some(Tried { sequences: 0, ..first }) } else { admits(held * replicas) }
    }

    /// What it admits where it is told just the sequences of the layout.
    pub(super) fn of(&self, layout: Layout) -> Option<Tried> {
        let Self { engines, engine, device, question, work, .. } = *self;
        let AskedOf { request, cache_bytes, longest } = (engines.asks)(self.told(&layout))?;
        let parallel = layout.parallel;
        let tried = match cache_bytes {
            // Weights that are stated are in it.
            None => planned(&of_device(&request, device, None), device, parallel, Some(engine), question, work)?,
            Some(bytes) => allocating(&request, device, parallel, bytes, engine, question, work)?,
        };
        Some(match longest.filter(|longest| *longest < layout.context) {
            Some(longest) => tried.too_long(longest),
            None => tried,
        })
    }

    /// Sequences of all replicas, at least and at most, as its own command is answered.
    pub(super) fn between(&self, layout: &Layout) -> [u64; 2] {
        (self.engines.between)(self.told(layout))
    }

    fn told<'l>(&'l self, layout: &'l Layout) -> Told<'l> {
        let stated = self.question.weights.filter(|_| !layout.quantizes);
        let weights = stated.and_then(|stated| self.model.weights_as(stated, Some(self.engine.engine)));
        Told { engine: self.engine, device: self.device, layout, weights }
    }
}

/// More are asked of no engine.
const MOST_SEQUENCES: u64 = 1 << 32;

/// The same on such a device, of which a share is divided unless somebody says what is.
fn of_device(request: &PlanRequest, device: &DeviceInfo, weights: Option<ByteSize>) -> PlanRequest {
    // The usual share of another device is nobody's word.
    let usual = |set: &ConfigValue| set.key == "memory.fraction" && set.origin.is_of_device();
    let is_usual = request.config().settings.iter().any(usual);
    request.clone().with_devices(device.clone()).changed(|budget| {
        let stated = budget.memory.clone().unwrap_or_default();
        budget.memory = Some(Memory {
            bytes: None,
            fraction: stated.fraction.filter(|_| !is_usual).or(Some(device.usual_share())),
            of: stated.of.or(Some(Base::Total)),
            weights: weights.or(stated.weights),
            ..stated
        });
    })
}

/// The same where so many bytes of the device are for caches.
fn with_bytes(request: &PlanRequest, device: &DeviceInfo, bytes: u64) -> PlanRequest {
    request.clone().with_devices(device.clone()).changed(|budget| {
        budget.engine.cache_bytes = Some(ByteSize(bytes));
        budget.memory = Some(Memory { bytes: Some(ByteSize(bytes)), ..Memory::default() });
    })
}

/// What a layout admits: of an engine where one is asked, else of the plan's own pools.
fn planned(
    request: &PlanRequest,
    device: &DeviceInfo,
    parallel: Parallel,
    engine: Option<EngineSpec>,
    question: &FitQuestion,
    work: Option<&Work>,
) -> Option<Tried> {
    let plans = match request.made() {
        Ok(ranks) => ranks.stages,
        Err(PlanError::DoesNotFit(short)) => {
            let outside = short.overdrawn.as_ref().map(crate::error::Overdrawn::taken);
            return Some(Tried {
                parallel,
                sequences: 0,
                capped_by: Ending::named(short.capped_by),
                outside_bytes: outside.unwrap_or(0),
                cache_bytes: short.available,
                between: None,
                longest: None,
                at_best: None,
            });
        }
        Err(_) => return None,
    };
    let poorest = plans.iter().find(|plan| plan.capacity.capped_by.is_memory()).or(plans.first())?;
    let bytes = |plan: &CachePlan, for_caches: bool| {
        let lines = plan.ledger.iter().filter(|line| line.name.is_for_caches() == for_caches);
        lines.map(|line| line.bytes).sum::<u64>()
    };
    let found = match engine {
        Some(engine) => admitted(request, engine, &plans)?,
        None => {
            let capped_by = match poorest.capacity.capped_by {
                Cap::Memory => Ending::of(poorest, &plans),
                cap => Ending::named(cap.to_string()),
            };
            (poorest.capacity.sequences, capped_by)
        }
    };
    let outside = plans.iter().map(|plan| bytes(plan, false)).max().unwrap_or(0);
    let for_caches = plans.iter().map(|plan| bytes(plan, true)).min().unwrap_or(0);
    Some(Tried::of(found, &plans, [outside, for_caches], parallel, device, question, work))
}

/// What an engine admits that allocates what it is told of so many bytes: beside them no weights are counted once more.
fn allocating(
    request: &PlanRequest,
    device: &DeviceInfo,
    parallel: Parallel,
    bytes: u64,
    engine: EngineSpec,
    question: &FitQuestion,
    work: Option<&Work>,
) -> Option<Tried> {
    let of_one = request.changed(|budget| {
        budget.memory = None;
        budget.max_batch_size = Some(1);
    });
    let plans = of_one.made().ok()?.stages;
    let found = admitted(&with_bytes(request, device, bytes), engine, &plans)?;
    let for_caches = bytes.min(device.total_bytes);
    Some(Tried::of(found, &plans, [device.total_bytes - for_caches, for_caches], parallel, device, question, work))
}

/// What a layout admits, before it has a name and a price.
pub(super) struct Tried {
    parallel: Parallel,
    pub(super) sequences: u64,
    between: Option<[u64; 2]>,
    longest: Option<u64>,
    capped_by: Ending,
    outside_bytes: u64,
    cache_bytes: u64,
    at_best: Option<SpeedBound>,
}

impl Tried {
    /// So many sequences of a replica, whose caches are as these plans have them.
    fn of(
        (sequences, capped_by): (u64, Ending),
        stages: &[CachePlan],
        [outside_bytes, cache_bytes]: [u64; 2],
        parallel: Parallel,
        device: &DeviceInfo,
        question: &FitQuestion,
        work: Option<&Work>,
    ) -> Self {
        let run = sequences.min(question.sequences.div_ceil(parallel.dp.into()));
        let at_best = work.zip(device.rates()).filter(|_| run > 0);
        let at_best = at_best.and_then(|(work, rates)| work.bound(stages, parallel, rates, question.context, run));
        let sequences = sequences.saturating_mul(parallel.dp.into());
        Self { parallel, sequences, between: None, longest: None, capped_by, outside_bytes, cache_bytes, at_best }
    }

    /// The same where none runs, since a sequence has no more than so many tokens.
    fn too_long(self, longest: u64) -> Self {
        let capped_by = Ending::named(format!("{longest} tokens of a sequence"));
        Self { sequences: 0, at_best: None, longest: Some(longest), capped_by, ..self }
    }

    /// Sequences at least and at most, as the engine's own command has them that is told the layout.
    pub(super) fn between(self, between: [u64; 2]) -> Self {
        Self { between: Some(between), ..self }
    }

    pub(super) fn priced(self, name: &str, device: &DeviceInfo, variant: Variant, question: &FitQuestion) -> Fit {
        let Self { parallel, sequences, between, longest, capped_by, outside_bytes, cache_bytes, at_best } = self;
        let [least, most] = between.unwrap_or([sequences; 2]);
        let devices = parallel.world_size();
        let per_hour = question.prices.of(device).map(|price| price * devices as f64);
        let tokens = question.context.saturating_mul(question.sequences) as f64;
        Fit {
            device: name.to_owned(),
            devices,
            memory_bytes: device.total_bytes.saturating_mul(devices),
            parallel,
            engine: variant.engine.map(|engine| format!("{}@{}", engine.engine.name(), engine.version_name())),
            kv_dtype: variant.kv_dtype,
            state_dtype: variant.state_dtype,
            holds: least >= question.needed(),
            may_hold: most >= question.needed(),
            sequences,
            sequences_between: between,
            longest,
            capped_by: capped_by.name,
            capped_by_words: capped_by.words,
            outside_bytes,
            cache_bytes,
            per_hour,
            per_million_tokens: per_hour.map(|price| price / (tokens / 1e6)),
            at_best: at_best.map(|bound| AtBest {
                alone_per_second: bound.alone_per_second(),
                tokens_per_second: bound.tokens_per_second,
                sequences: bound.all.sequences * u64::from(parallel.dp),
                bound_by: bound.all.bound_by,
                prompt_seconds: bound.prompt.seconds,
                per_million_tokens: per_hour.map(|price| bound.per_million_tokens(price)),
            }),
        }
    }
}

/// The caches of a model in other dtypes, or in an engine's.
#[derive(Clone, Copy)]
pub(super) struct Variant {
    pub(super) engine: Option<EngineSpec>,
    kv_dtype: Option<DType>,
    state_dtype: Option<DType>,
}

impl Variant {
    /// As they are, with keys and values in 8 bits, with states of 32 bits in 16, and with both, as far as these are smaller and
    /// the engine can be told them on that device.
    pub(super) fn all(request: &PlanRequest, engine: Option<EngineSpec>, device: &DeviceInfo) -> Vec<Self> {
        let plain = Self::plain(engine);
        let stated = request.budget().map(|budget| budget.dtypes).unwrap_or_default();
        // What is stated is not varied.
        let eight = match engine {
            _ if stated.kv.is_some() => None,
            Some(engine) => engine.eight_bits(device.compute_capability()),
            None => Some(DType::F8E4m3),
        };
        let sixteen = Some(DType::Bf16).filter(|_| stated.ssm.is_none());
        let of_kv = [Some(plain), eight.map(|_| Self { kv_dtype: eight, ..plain })].into_iter().flatten();
        let all = of_kv.flat_map(|kv| [Some(kv), sixteen.map(|_| Self { state_dtype: sixteen, ..kv })]).flatten();
        let is_smaller = |variant: &Self| {
            let without = [
                variant.kv_dtype.map(|_| Self { kv_dtype: None, ..*variant }),
                variant.state_dtype.map(|_| Self { state_dtype: None, ..*variant }),
            ];
            let own = variant.of(request);
            without.into_iter().flatten().all(|without| own.stores_less_than(&without.of(request)))
        };
        all.filter(is_smaller).collect()
    }

    pub(super) const fn plain(engine: Option<EngineSpec>) -> Self {
        Self { engine, kv_dtype: None, state_dtype: None }
    }

    /// Which dtypes are other than the model's.
    pub(super) fn changes(&self) -> [bool; 2] {
        [self.kv_dtype.is_some(), self.state_dtype.is_some()]
    }

    pub(super) fn of(&self, request: &PlanRequest) -> PlanRequest {
        request.stored_in(self.kv_dtype, self.state_dtype).as_run_by(self.engine)
    }

    /// As its engine is told it, in the dtypes that are stated where it varies none.
    pub(super) fn layout(
        &self,
        of: &PlanRequest,
        parallel: Parallel,
        stated: Dtypes,
        question: &FitQuestion,
    ) -> Layout {
        let alone = Layout::alone(question.context, question.sequences, stated);
        Layout {
            parallel,
            kv_dtype: self.kv_dtype.or(stated.kv),
            state_dtype: self.state_dtype.or(stated.ssm),
            quantizes: self.engine.is_some_and(|engine| of.quantizes(question.weights, engine)),
            experts: of.model().has_experts(),
            ..alone
        }
    }
}

/// What ends a layout's capacity: as plans name it, and for people.
struct Ending {
    name: String,
    words: String,
}

impl Ending {
    fn named(name: String) -> Self {
        Self { words: name.clone(), name }
    }

    /// The pool that takes the most of one of the stages.
    fn of(plan: &CachePlan, stages: &[CachePlan]) -> Self {
        let largest = plan.pools.iter().max_by_key(|pool| pool.bytes);
        largest.map_or_else(
            || Self::named("memory".into()),
            |pool| Self { name: pool.id.clone(), words: plan.pool_in_words(pool, stages) },
        )
    }
}

/// What an engine admits, and which of its caches ends that, as the plans of its stages have them.
fn admitted(request: &PlanRequest, engine: EngineSpec, plans: &[CachePlan]) -> Option<(u64, Ending)> {
    match request.settled().ok()?.inputs().predict_among(engine) {
        Ok(prediction) => {
            let plan = plans.iter().max_by_key(|plan| plan.pools.iter().map(|pool| pool.bytes).max())?;
            Some((prediction.sequences, Ending { name: "the engine".to_owned(), ..Ending::of(plan, plans) }))
        }
        Err(PlanError::DoesNotFit(short)) => Some((0, Ending::named(short.capped_by))),
        Err(_) => None,
    }
}
