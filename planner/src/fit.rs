//! Which devices, how many and divided how hold so many sequences of so many tokens.
//!
//! Every layout that an engine can run on so many devices is planned; nothing is measured.

use std::collections::BTreeMap;

use cacheplan_handlers::DType;
use serde::{Deserialize, Serialize};

use crate::bound::{SpeedBound, Work};
use crate::budget::{Base, Fraction, Memory};
use crate::device::{DeviceInfo, DeviceKind};
use crate::engines::{EngineSpec, Version};
use crate::error::PlanError;
use crate::parallel::Parallel;
use crate::plan::{CachePlan, Cap};
use crate::request::PlanRequest;
use crate::size::ByteSize;
use crate::solver::solve::last;
use crate::weight_bits::WeightBits;

/// What shall be held, and on what.
#[derive(Clone, Debug)]
pub struct FitQuestion {
    /// What the model is called in the commands that are printed; its type where absent.
    pub model: Option<String>,
    /// Facts that were stated beside the model's files, `KEY=VALUE`, which the commands that are printed repeat.
    pub assumed: Vec<String>,
    /// Tokens of each sequence.
    pub context: u64,
    /// Sequences at once.
    pub sequences: u64,
    /// The devices to choose among, each with the name that it was asked for by.
    pub devices: Vec<(String, DeviceInfo)>,
    /// The most devices.
    pub max_devices: u32,
    /// Hundredths more sequences than are asked for that a layout must have room for before it holds them.
    pub margin: u32,
    /// Weights over all ranks, where the model does not tell.
    pub weights: Option<ByteSize>,
    /// What the devices cost.
    pub prices: Prices,
    /// Engines that are asked what they admit.
    pub engines: Vec<EngineSpec>,
}

impl FitQuestion {
    /// Sequences that a layout must have room for.
    fn needed(&self) -> u64 {
        let needed = (u128::from(self.sequences) * u128::from(100 + u64::from(self.margin))).div_ceil(100);
        u64::try_from(needed).unwrap_or(u64::MAX)
    }

    /// What is stated of the model, as flags of `cacheplan plan`.
    fn stated(&self) -> Vec<String> {
        let assumed = self.assumed.iter().flat_map(|fact| ["--assume".to_owned(), fact.clone()]);
        let weights = self.weights.iter().flat_map(|size| ["--weights".to_owned(), size.stated()]);
        assumed.chain(weights).collect()
    }

    /// The devices to choose among where none are named, by name and comma.
    pub const DEVICES: &'static str = "l4,rtx-4090,rtx-5090,l40s,a100-80gb,rtx-pro-6000,h100,h200,b200,gb200,gaudi-3,mi300x,mi325x,mi355x,m4-max-128gb,\
         m3-ultra-512gb";
}

/// What devices cost, as its TOML file states it: `currency = "USD"` and `[per_hour]` with a number for each device.
/// [`state`](Self::state) states one by itself.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prices {
    /// What the prices are in; empty where nobody says.
    pub currency: String,
    /// One hour of one device, by its name.
    pub per_hour: BTreeMap<String, f64>,
}

impl Prices {
    /// Reads them.
    ///
    /// # Errors
    /// In words: text that is no TOML, an unknown or missing key, a price below 0.
    pub fn from_toml(text: &str) -> Result<Self, String> {
        let prices: Self = cacheplan_files::Source::parse_toml(text).map_err(|error| error.to_string())?;
        for (device, price) in &prices.per_hour {
            let named = device.parse::<DeviceInfo>().map_err(|error| format!("`per_hour.{device}`: {error}"))?;
            if let Some(other) = prices.name_of(&named).filter(|other| *other != device) {
                return Err(format!("`per_hour.{other}` and `per_hour.{device}` are prices of one device"));
            }
            if !price.is_finite() || *price < 0.0 {
                return Err(format!("`per_hour.{device}` is {price}; a price of at least 0 was expected"));
            }
        }
        Ok(prices)
    }

    /// States the price of an hour of one device, in place of another that is stated of it.
    ///
    /// # Errors
    /// In words: what is no device, a price below 0.
    pub fn state(&mut self, device: &str, price: f64) -> Result<(), String> {
        let named = device.parse::<DeviceInfo>().map_err(|error| error.to_string())?;
        if !price.is_finite() || price < 0.0 {
            return Err(format!("{price} is no price of `{device}`; a number of at least 0 was expected"));
        }
        let stated = self.name_of(&named).cloned().unwrap_or_else(|| device.to_owned());
        self.per_hour.insert(stated, price);
        Ok(())
    }

    /// What a device is called here.
    fn name_of(&self, device: &DeviceInfo) -> Option<&String> {
        self.per_hour.keys().find(|name| name.parse().as_ref() == Ok(device))
    }

    /// The price of an hour of one device, however its name is written.
    fn of(&self, device: &DeviceInfo) -> Option<f64> {
        self.per_hour.get(self.name_of(device)?).copied()
    }
}

/// What one layout on one kind of device admits.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Fit {
    /// The device's name.
    pub device: String,
    /// How many of them.
    pub devices: u64,
    /// Memory of all of them.
    pub memory_bytes: u64,
    /// How the model is divided over them.
    pub parallel: Parallel,
    /// The engine that admits so many, `vllm@0.33.0`; absent for the plan's own pools.
    pub engine: Option<String>,
    /// The element type of keys and values; that of the model where absent.
    pub kv_dtype: Option<DType>,
    /// The element type of recurrent states; that of the model where absent.
    pub state_dtype: Option<DType>,
    /// Whether it holds what was asked for.
    pub holds: bool,
    /// Sequences that all devices run at once, 0 where the weights alone take too much.
    pub sequences: u64,
    /// What more sequences would break: a pool of the plan, a limit, or the engine.
    pub capped_by: String,
    /// The same in words, of a pool what it holds of how many layers.
    pub capped_by_words: String,
    /// Bytes on each device besides caches, assumed: weights, context, activations.
    pub outside_bytes: u64,
    /// Bytes for caches on each device.
    pub cache_bytes: u64,
    /// The price of an hour; absent where none is stated.
    pub per_hour: Option<f64>,
    /// The price of an hour for each million tokens that are held of those asked for.
    pub per_million_tokens: Option<f64>,
    /// What the devices do at best with the sequences asked for, or with as many as it holds; absent where it holds none,
    /// or where the devices' rates are not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at_best: Option<AtBest>,
}

/// The [bound of speed](crate::bound) of a layout: what nothing that runs there exceeds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AtBest {
    /// Tokens each second of one sequence alone.
    pub alone_per_second: f64,
    /// Tokens each second of `sequences`, over all replicas.
    pub tokens_per_second: f64,
    /// How many run for that.
    pub sequences: u64,
    /// What ends that: `memory` or `products`.
    pub bound_by: &'static str,
    /// Seconds to read a prompt of the whole context.
    pub prompt_seconds: f64,
    /// The price of a million tokens that are written at that rate; absent where none is stated.
    pub per_million_tokens: Option<f64>,
}

/// What was asked, and every layout that was tried.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Answer {
    /// What the model is called, for people.
    #[serde(skip)]
    pub model: String,
    /// What was stated of the model beside its files, as flags of `cacheplan plan`.
    #[serde(skip)]
    pub stated: Vec<String>,
    /// What the weights would take in 4 bits, where that is known.
    #[serde(skip)]
    pub in_four_bits: Option<ByteSize>,
    /// Tokens of each sequence.
    pub context: u64,
    /// Sequences at once.
    pub sequences: u64,
    /// Hundredths more that a layout must have room for.
    pub margin: u32,
    /// What is asked and yet may not be meant, and what the model's files leave open, one sentence each.
    pub notes: Vec<String>,
    /// What prices are in, empty where nobody says; absent without prices.
    pub currency: Option<String>,
    /// All layouts, those first that hold: the cheapest, then those in the model's own dtypes, then the least memory, then
    /// the most room; then those that fall the least short.
    pub fits: Vec<Fit>,
    /// For the best layout of each device, what it holds at other lengths.
    pub curves: Vec<Curve>,
}

/// How capacity falls with the length of the sequences.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Curve {
    /// The devices and their layout.
    pub name: String,
    /// Tokens of each sequence, and how many of them all devices run at once.
    pub points: Vec<(u64, u64)>,
}

/// The lengths of a curve: 1,024 to 1,048,576 tokens.
const CURVE: std::ops::RangeInclusive<u32> = 10..=20;

impl PlanRequest {
    /// Plans every layout of the model.
    ///
    /// # Errors
    /// A model of whose weights nobody knows the size, or whose layers nobody read.
    pub fn fit(&self, question: &FitQuestion) -> Result<Answer, PlanError> {
        if self.info().weights.is_none() && question.weights.is_none() {
            let why = self.model().model().and_then(|model| model.weights_unknown.as_ref());
            let why = why.map(|why| format!(" ({why})")).unwrap_or_default();
            return Err(PlanError::Budget(format!(
                "the size of the model's weights is unknown{why}, so what they leave for caches is too; state it with --weights"
            )));
        }
        let Some(divisible) = self.model().divisible() else {
            let unread = "how a model of which only the caches are known can be divided is unknown";
            return Err(PlanError::Budget(unread.into()));
        };
        // What the passes refuse is no layout that does not fit.
        self.caches()?;
        let asked = self.changed(|budget| budget.max_seq_len = Some(question.context));
        let engines = std::iter::once(None).chain(question.engines.iter().copied().map(Some));
        let variants: Vec<Variant> = engines.flat_map(|engine| Variant::all(&asked, engine)).collect();
        let work = self.with_weights(question).work();
        let divided = self.budget()?.parallel;
        let mut fits = Vec::new();
        for (name, device) in &question.devices {
            // No engine divides a model over memory that processors share.
            let most = if device.kind == DeviceKind::Integrated { 1 } else { question.max_devices };
            for parallel in divisible.layouts(most, divided, |tp| asked.divides_over(tp)) {
                for variant in variants.iter().filter(|variant| variant.runs_on(device)) {
                    let tried = tried(&variant.of(&asked), device, variant.engine, parallel, question, work.as_ref());
                    fits.extend(tried.map(|tried| tried.priced(name, device, *variant, question)));
                }
            }
        }
        in_order(&mut fits);
        let currency = (!question.prices.per_hour.is_empty()).then(|| question.prices.currency.clone());
        let mut answer = Answer {
            model: question.model.clone().unwrap_or_else(|| self.info().model_type.clone()),
            stated: question.stated(),
            in_four_bits: self.weights_at(WeightBits::Four).map(ByteSize),
            context: question.context,
            sequences: question.sequences,
            margin: question.margin,
            notes: asked.notes(),
            currency,
            fits,
            curves: Vec::new(),
        };
        answer.curves = answer.best_of_each().into_iter().filter_map(|fit| curve(self, fit, question)).collect();
        Ok(answer)
    }

    /// The longest sequences of which some layout holds as many as are asked for, in the model's own dtypes and the plan's own
    /// pools, up to what the model was made for; 0 where none holds them however short they are.
    ///
    /// # Errors
    /// As [`fit`](Self::fit).
    pub fn longest_that_fits(&self, question: &FitQuestion) -> Result<u64, PlanError> {
        let Some(divisible) = self.model().divisible() else { return Ok(0) };
        let divided = self.budget()?.parallel;
        let layouts: Vec<(&DeviceInfo, Parallel)> = question
            .devices
            .iter()
            .flat_map(|(_, device)| {
                let most = if device.kind == DeviceKind::Integrated { 1 } else { question.max_devices };
                divisible
                    .layouts(most, divided, |tp| self.divides_over(tp))
                    .into_iter()
                    .map(move |parallel| (device, parallel))
            })
            .collect();
        let holds = |context: u64| {
            let question = FitQuestion { context, ..question.clone() };
            layouts.iter().any(|(device, parallel)| {
                tried(self, device, None, *parallel, &question, None)
                    .is_some_and(|tried| tried.sequences >= question.needed())
            })
        };
        let most = self.info().max_position_embeddings.unwrap_or(1 << *CURVE.end());
        Ok(last(most.min(1 << 32), |context| context == 0 || holds(context)))
    }

    fn with_weights(&self, question: &FitQuestion) -> Self {
        self.changed(|budget| {
            let memory = budget.memory.get_or_insert_default();
            memory.weights = question.weights.or(memory.weights);
        })
    }
}

/// Those first that hold, and of them those that cost least.
fn in_order(fits: &mut [Fit]) {
    let price = |fit: &Fit| fit.per_hour.unwrap_or(f64::INFINITY);
    fits.sort_by(|a, b| {
        let room = b.sequences.cmp(&a.sequences);
        // The model's own dtypes first, since they lose nothing; only a price says what that may cost.
        let changed = a.changed_dtypes().cmp(&b.changed_dtypes());
        let cost = price(a).total_cmp(&price(b)).then(changed).then(a.memory_bytes.cmp(&b.memory_bytes));
        let cost = cost.then(a.engine.is_some().cmp(&b.engine.is_some()));
        let of_alike = if a.holds { cost.then(room) } else { room.then(cost) };
        b.holds.cmp(&a.holds).then(of_alike).then(a.devices.cmp(&b.devices))
    });
}

impl Answer {
    /// Answers of the same question for other devices as one; `None` of none.
    pub fn joined(answers: impl IntoIterator<Item = Self>) -> Option<Self> {
        answers.into_iter().reduce(|mut all, other| {
            all.fits.extend(other.fits);
            in_order(&mut all.fits);
            all.curves.extend(other.curves);
            all.notes.extend(other.notes);
            all.notes.sort();
            all.notes.dedup();
            all
        })
    }

    /// The best that holds what was asked for.
    pub fn best(&self) -> Option<&Fit> {
        self.fits.first().filter(|fit| fit.holds)
    }

    /// What people look at first: the best layout of each device and engine, and none that holds nothing.
    pub(crate) fn best_of_devices(&self) -> Vec<&Fit> {
        let kind = |fit: &Fit| (fit.device.clone(), fit.engine.clone());
        let mut best: Vec<&Fit> = Vec::new();
        for fit in self.fits.iter().filter(|fit| fit.sequences > 0) {
            if best.iter().all(|other| kind(other) != kind(fit)) {
                best.push(fit);
            }
        }
        best
    }

    /// The devices of which no number that was tried holds anything: the most that were tried, and what ends it there.
    pub(crate) fn too_small(&self) -> Vec<&Fit> {
        let mut largest: Vec<&Fit> = Vec::new();
        for fit in &self.fits {
            match largest.iter_mut().find(|other| other.device == fit.device) {
                Some(other) if other.devices >= fit.devices && other.sequences >= fit.sequences => {}
                Some(other) => *other = fit,
                None => largest.push(fit),
            }
        }
        let held = |device: &str| self.fits.iter().any(|fit| fit.device == device && fit.sequences > 0);
        largest.retain(|fit| !held(&fit.device));
        largest
    }

    /// For each device, dtype and engine the best layout, in the order of `fits`.
    pub(crate) fn best_of_each(&self) -> Vec<&Fit> {
        let kind = |fit: &Fit| (fit.device.clone(), fit.kv_dtype, fit.state_dtype, fit.engine.clone());
        let mut best: Vec<&Fit> = Vec::new();
        for fit in &self.fits {
            if best.iter().all(|other| kind(other) != kind(fit)) {
                best.push(fit);
            }
        }
        best
    }
}

/// What the layout of `fit` holds at other lengths, with the model's own dtypes.
fn curve(request: &PlanRequest, fit: &Fit, question: &FitQuestion) -> Option<Curve> {
    let (name, device) = question.devices.iter().find(|(name, _)| *name == fit.device && fit.is_plain())?;
    let points = CURVE.filter_map(|power| {
        let question = FitQuestion { context: 1 << power, ..question.clone() };
        Some((question.context, tried(request, device, None, fit.parallel, &question, None)?.sequences))
    });
    let layout = fit.flags().replace("--", "");
    Some(Curve { name: format!("{} x {name} {layout}", fit.devices).trim_end().to_owned(), points: points.collect() })
}

/// The share of a device's memory that is divided. Metal gives a GPU what it recommends: 0.84 of 128 GiB and 0.74 of 16 GiB in
/// what users report (antirez/ds4#893, AlexsJones/llmfit#754).
fn share(device: &DeviceInfo) -> f64 {
    if device.kind == DeviceKind::Integrated { 0.75 } else { 0.9 }
}

/// What a layout admits, before it has a name and a price.
struct Tried {
    parallel: Parallel,
    sequences: u64,
    capped_by: Ending,
    outside_bytes: u64,
    cache_bytes: u64,
    at_best: Option<SpeedBound>,
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

/// The caches of a model in other dtypes, or in an engine's.
#[derive(Clone, Copy)]
struct Variant {
    engine: Option<EngineSpec>,
    kv_dtype: Option<DType>,
    state_dtype: Option<DType>,
}

impl Variant {
    /// As they are, with keys and values in 8 bits, with states of 32 bits in 16, and with both, as far as these are smaller.
    fn all(request: &PlanRequest, engine: Option<EngineSpec>) -> Vec<Self> {
        let plain = Self { engine, kv_dtype: None, state_dtype: None };
        let stated = request.budget().map(|budget| budget.dtypes).unwrap_or_default();
        let of_kv = [plain, Self { kv_dtype: Some(DType::F8E4m3), ..plain }];
        let all = of_kv.into_iter().flat_map(|kv| [kv, Self { state_dtype: Some(DType::Bf16), ..kv }]);
        // What is stated is not varied.
        let all = all.filter(|variant| {
            (variant.kv_dtype.is_none() || stated.kv.is_none())
                && (variant.state_dtype.is_none() || stated.ssm.is_none())
        });
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

    /// Whether the engine's kernels read such keys there: Triton converts from e4m3 on compute capability 8.9 and above, and
    /// vLLM 0.11.0 takes it below too (vllm-project/vllm#26431, on an RTX 3090).
    fn runs_on(&self, device: &DeviceInfo) -> bool {
        const NEEDS_ADA: (&str, Version) = ("vllm", Version(0, 11, 0));
        let old = |engine: EngineSpec| engine.engine.name() == NEEDS_ADA.0 && engine.version <= NEEDS_ADA.1;
        let lacks = device.compute_capability().is_some_and(|capability| capability < 89);
        !(lacks && self.kv_dtype.is_some() && self.engine.is_some_and(old))
    }

    fn of(&self, request: &PlanRequest) -> PlanRequest {
        let stored = request.stored_in(self.kv_dtype, self.state_dtype);
        self.engine.into_iter().fold(stored, PlanRequest::for_engine)
    }
}

/// Plans all stages, and asks an engine what it would admit of each; `None` where the model cannot be divided so, or the
/// engine's rules for it are not known.
fn tried(
    request: &PlanRequest,
    device: &DeviceInfo,
    engine: Option<EngineSpec>,
    parallel: Parallel,
    question: &FitQuestion,
    work: Option<&Work>,
) -> Option<Tried> {
    let request = request.clone().with_devices(device.clone()).changed(|budget| {
        let stated = budget.memory.clone().unwrap_or_default();
        budget.memory = Some(Memory {
            bytes: None,
            fraction: stated.fraction.or(Fraction::new(share(device))),
            of: stated.of.or(Some(Base::Total)),
            weights: question.weights.or(stated.weights),
            ..stated
        });
        budget.max_seq_len = Some(question.context);
        budget.max_batch_size = None;
        budget.parallel = parallel;
    });
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
                at_best: None,
            });
        }
        Err(_) => return None,
    };
    let admitted = match engine.map(|engine| admitted(&request, parallel, engine)) {
        None => None,
        Some(admitted) => Some(admitted?),
    };
    let poorest = plans.iter().find(|plan| plan.capacity.capped_by.is_memory()).or(plans.first())?;
    let outside = |plan: &CachePlan| {
        plan.ledger.iter().filter(|line| !line.name.is_for_caches()).map(|line| line.bytes).sum::<u64>()
    };
    let for_caches = |plan: &CachePlan| {
        plan.ledger.iter().filter(|line| line.name.is_for_caches()).map(|line| line.bytes).sum::<u64>()
    };
    let (sequences, capped_by) = admitted.unwrap_or_else(|| {
        let capped_by = match poorest.capacity.capped_by {
            Cap::Memory => Ending::of(poorest, &plans),
            cap => Ending::named(cap.to_string()),
        };
        (poorest.capacity.sequences, capped_by)
    });
    let run = sequences.min(question.sequences.div_ceil(parallel.dp.into()));
    let at_best = work.zip(device.rates()).filter(|_| run > 0);
    let at_best = at_best.and_then(|(work, rates)| work.bound(&plans, parallel, rates, question.context, run));
    Some(Tried {
        parallel,
        at_best,
        sequences: sequences.saturating_mul(parallel.dp.into()),
        capped_by,
        outside_bytes: plans.iter().map(outside).max().unwrap_or(0),
        cache_bytes: plans.iter().map(for_caches).min().unwrap_or(0),
    })
}

/// What an engine admits on every stage, and what ends it there.
fn admitted(request: &PlanRequest, parallel: Parallel, engine: EngineSpec) -> Option<(u64, Ending)> {
    let settled = request.settled().ok()?;
    let stages = (0..parallel.pp).map(|stage| match settled.inputs_of(stage, None).predict_among(engine) {
        Ok(prediction) => Some((prediction.sequences, Ending::named("the engine".to_owned()))),
        Err(PlanError::DoesNotFit(short)) => Some((0, Ending::named(short.capped_by))),
        Err(_) => None,
    });
    stages.collect::<Option<Vec<_>>>()?.into_iter().min_by_key(|(sequences, _)| *sequences)
}

impl Tried {
    fn priced(self, name: &str, device: &DeviceInfo, variant: Variant, question: &FitQuestion) -> Fit {
        let Self { parallel, sequences, capped_by, outside_bytes, cache_bytes, at_best } = self;
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
            holds: sequences >= question.needed(),
            sequences,
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

impl Fit {
    /// Whether its memory is what processor and GPU share.
    pub(crate) fn is_integrated(&self) -> bool {
        self.device.parse::<DeviceInfo>().is_ok_and(|device| device.kind == DeviceKind::Integrated)
    }

    /// Whether all dtypes are the model's, and the pools the plan's own.
    pub fn is_plain(&self) -> bool {
        self.changed_dtypes() == 0 && self.engine.is_none()
    }

    pub(crate) fn changed_dtypes(&self) -> usize {
        [self.kv_dtype, self.state_dtype].into_iter().flatten().count()
    }

    /// Engine, sizes and dtypes, for people.
    pub(crate) fn layout(&self) -> String {
        let engine = self.engine.as_ref().map(|engine| format!("{engine}: ")).unwrap_or_default();
        let flags = self.flags().replace("--", "").replace("-dtype", "");
        engine + if flags.is_empty() { "alone" } else { &flags }
    }

    /// The layout as flags of `cacheplan plan`.
    pub fn flags(&self) -> String {
        let sizes = self.parallel.sizes().into_iter().filter(|(_, size)| *size > 1);
        let mut flags: Vec<String> = sizes.map(|(key, size)| format!("--{key} {size}")).collect();
        flags.extend(self.kv_dtype.map(|dtype| format!("--kv-dtype {dtype}")));
        flags.extend(self.state_dtype.map(|dtype| format!("--ssm-dtype {dtype}")));
        flags.join(" ")
    }
}
