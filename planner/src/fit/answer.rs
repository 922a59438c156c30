//! What was asked, and what each layout that was tried holds.

use std::cmp::Ordering;
use std::fmt;

use cacheplan_handlers::DType;
use serde::Serialize;

use crate::budget::Dtypes;
use crate::device::{DeviceInfo, DeviceKind};
use crate::engines::{Engine, EngineSpec, Layout};
use crate::parallel::Parallel;
use crate::request::PlanRequest;
use crate::size::ByteSize;
use crate::weight_bits::StatedWeights;

/// What was asked, and every layout that was tried.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Answer {
    /// What the model is called, for people.
    #[serde(skip)]
    pub model: String,
    /// What was stated of the model beside its files, as flags of `cacheplan plan`.
    #[serde(skip)]
    pub stated: Vec<String>,
    /// The words of the command that was asked about, told the best layout; they stand in place of commands that are made up.
    #[serde(skip)]
    pub command: Option<Vec<String>>,
    /// The weights that were stated.
    #[serde(skip)]
    pub(crate) weights: Option<Weights>,
    /// Whether the model has routed experts.
    #[serde(skip)]
    pub(crate) experts: bool,
    /// The dtypes that were stated, which no row varies.
    #[serde(skip_serializing_if = "is_default")]
    pub dtypes: Dtypes,
    /// Tokens of each sequence.
    pub context: u64,
    /// Sequences at once.
    pub sequences: u64,
    /// Percent more that a layout must have room for.
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
    /// What weights of fewer bits would take, where they are wider and nobody states them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub fewer_bits: Vec<FewerBits>,
    /// What costs less than the best, or holds what nothing else does, by flags that take neither devices nor precision.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub freed: Option<Freed>,
}

/// Weights that are stated in place of the model's own.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Weights {
    stated: StatedWeights,
    /// Bytes of them, and the same in blocks.
    bytes: [Option<ByteSize>; 2],
    /// Bytes of the model's own, where these are known.
    pub(crate) own: Option<ByteSize>,
    in_full: bool,
}

impl Weights {
    pub(super) fn of(request: &PlanRequest, stated: StatedWeights) -> Self {
        let in_blocks = Engine::all().iter().copied().find(|engine| engine.rules().weights_in_blocks);
        Self {
            stated,
            bytes: [None, in_blocks].map(|engine| request.weights_as(stated, engine)),
            own: request.info().weights.map(|weights| ByteSize(weights.bytes)),
            in_full: request.model().is_in_full(),
        }
    }

    /// Whether the engine makes them itself of those that a checkpoint has in full.
    pub(crate) fn are_made_by(&self, engine: Option<EngineSpec>) -> bool {
        engine.is_some_and(|engine| self.stated.are_made_by(engine.engine, self.in_full))
    }

    /// Bytes of them, as an engine has them.
    pub(crate) fn bytes(&self, engine: Option<EngineSpec>) -> Option<ByteSize> {
        self.bytes[usize::from(engine.is_some_and(|engine| engine.engine.rules().weights_in_blocks))]
    }
}

fn is_default(dtypes: &Dtypes) -> bool {
    *dtypes == Dtypes::default()
}

impl Answer {
    /// Answers of the same question for other devices as one; `None` of none.
    pub fn joined(answers: impl IntoIterator<Item = Self>) -> Option<Self> {
        let joined = answers.into_iter().reduce(|mut all, other| {
            all.fits.extend(other.fits);
            in_order(&mut all.fits);
            all.curves.extend(other.curves);
            all.fewer_bits = FewerBits::joined(all.fewer_bits, other.fewer_bits);
            all.notes.extend(other.notes);
            all.notes.sort();
            all.notes.dedup();
            all
        });
        joined.map(|mut all| {
            let least = all.best().map(cost);
            let is_cheaper = |fit: &Fit| least.is_none_or(|least| cost(fit) < least);
            all.fewer_bits.iter_mut().for_each(|fewer| fewer.fit = fewer.fit.take().filter(is_cheaper));
            all
        })
    }

    /// The best that holds what was asked for.
    pub fn best(&self) -> Option<&Fit> {
        self.fits.iter().find(|fit| fit.holds && self.decides(fit))
    }

    /// Whether a row that answers may hold what was asked for.
    pub fn may_hold(&self) -> bool {
        self.fits.iter().any(|fit| fit.may_hold && self.decides(fit))
    }

    /// Whether a row answers: of a device on which an engine was asked it is what that admits, since that is what starts.
    pub(crate) fn decides(&self, fit: &Fit) -> bool {
        fit.engine.is_some() || !self.fits.iter().any(|other| other.engine.is_some() && other.device == fit.device)
    }

    /// The rows of engines that cost less than the best and are short of what was asked for by a part of it, those first that cost
    /// least: flags of theirs may make it up.
    pub fn nearly(&self) -> Vec<&Fit> {
        let best = self.best().map(cost);
        let is_cheaper = |fit: &Fit| best.is_none_or(|best| cost(fit) < best);
        let is_near = |fit: &Fit| fit.most().saturating_mul(NEAR) >= self.needed();
        let mut rows: Vec<&Fit> = self.fits.iter().filter(|fit| fit.engine.is_some() && !fit.holds).collect();
        rows.retain(|fit| is_cheaper(fit) && is_near(fit));
        rows.sort_by(|one, other| {
            let cost = cost(one).partial_cmp(&cost(other)).unwrap_or(Ordering::Equal);
            cost.then(one.changed_dtypes().cmp(&other.changed_dtypes())).then(other.most().cmp(&one.most()))
        });
        rows
    }

    /// Sequences that a layout must have room for.
    pub fn needed(&self) -> u64 {
        needed(self.sequences, self.margin)
    }

    /// A row as it is printed to be started: for as many as it surely holds, so that nobody is preempted; where what was asked for
    /// is among those that it may hold, for these.
    pub fn printed(&self, fit: &Fit, engine: EngineSpec) -> Layout {
        let layout = self.layout_of(fit, engine);
        let (least, most) = (fit.least(), fit.most());
        let sequences = match least {
            _ if fit.sequences_between.is_none() || takes_all(engine) => layout.sequences,
            _ if least < self.sequences && self.sequences <= most => self.sequences,
            0 => layout.sequences,
            least => least,
        };
        Layout { sequences, ..layout }
    }

    /// A row as an engine is told it: for as many sequences as it holds, or where cells are taken at the start, as are asked for.
    pub fn layout_of(&self, fit: &Fit, engine: EngineSpec) -> Layout {
        Layout {
            parallel: fit.parallel,
            kv_dtype: fit.kv_dtype.or(self.dtypes.kv),
            state_dtype: fit.state_dtype.or(self.dtypes.ssm),
            context: self.context,
            sequences: if takes_all(engine) { fit.sequences.min(self.sequences) } else { fit.sequences },
            quantizes: self.weights.as_ref().is_some_and(|weights| weights.are_made_by(Some(engine))),
            experts: self.experts,
        }
    }

    /// The flags by which an engine is told a row as it is [`printed`](Self::printed); `None` where it cannot be.
    pub fn told(&self, fit: &Fit, engine: EngineSpec) -> Option<String> {
        let flags = engine.flags_of(&self.printed(fit, engine))?;
        let words = flags.into_iter().flat_map(|(name, value)| [Some(name.to_owned()), value]);
        Some(words.flatten().collect::<Vec<_>>().join(" "))
    }

    /// The command by which an engine serves a row, to be pasted; `None` where it cannot be told it, or the model is a file that it
    /// does not take. A description without weights is no model that can be served.
    pub fn served(&self, fit: &Fit, engine: EngineSpec) -> Option<Served> {
        let is_gguf = self.model.to_lowercase().ends_with(".gguf");
        let takes_files = engine.engine.name() == "llama.cpp";
        if !takes_files && (is_gguf || fit.is_integrated()) {
            return None;
        }
        let flags = self.told(fit, engine)?;
        let model = self.model.as_str();
        let folder = if model == "config.json" { "." } else { model.strip_suffix("/config.json").unwrap_or(model) };
        let others = self.weights.as_ref().filter(|weights| !weights.are_made_by(Some(engine)));
        let others = others.and_then(|weights| {
            Some(OtherWeights { bytes: weights.bytes(Some(engine))?, own: weights.own?, file: takes_files })
        });
        let name = match takes_files {
            true if is_gguf => folder,
            // Where its layers do not fit it is to say so, in place of running some of them on the host.
            true => "MODEL.gguf",
            false if others.is_some() => "CHECKPOINT",
            false if folder.ends_with(".json") || folder == "-" => "MODEL",
            false => folder,
        };
        let layers = if takes_files { "-ngl 99 " } else { "" };
        Some(Served { program: engine.program(), model: name.to_owned(), flags: format!("{layers}{flags}"), others })
    }

    /// What people look at first: the best layout of each device and engine, beside it the best in the model's own dtypes, and
    /// none that holds nothing.
    pub(crate) fn best_of_devices(&self) -> Vec<&Fit> {
        let mut best: Vec<&Fit> = Vec::new();
        for fit in self.fits.iter().filter(|fit| fit.sequences > 0) {
            let mut alike = best.iter().filter(|other| (&other.device, &other.engine) == (&fit.device, &fit.engine));
            if alike.clone().next().is_none() || (fit.changed_dtypes() == 0 && alike.all(|it| it.changed_dtypes() > 0))
            {
                best.push(fit);
            }
        }
        // What an engine makes of a layout stands beside what the plan's own pools do.
        let same = |of: &Fit, fit: &Fit| {
            let layout = |fit: &Fit| (fit.devices, fit.parallel, fit.kv_dtype.is_some(), fit.state_dtype.is_some());
            fit.engine.is_some() && of.engine.is_none() && of.device == fit.device && layout(of) == layout(fit)
        };
        let is_shown =
            |fit: &&Fit| fit.sequences > 0 && best.iter().any(|shown| std::ptr::eq(*shown, *fit) || same(shown, fit));
        self.fits.iter().filter(is_shown).collect()
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

/// How many times as much flags may make of what a row holds.
const NEAR: u64 = 4;

/// Sequences with so many percent more.
pub(super) fn needed(sequences: u64, margin: u32) -> u64 {
    let needed = (u128::from(sequences) * u128::from(100 + u64::from(margin))).div_ceil(100);
    u64::try_from(needed).unwrap_or(u64::MAX)
}

/// Whether it takes cells for all that it is told.
fn takes_all(engine: EngineSpec) -> bool {
    engine.engine.name() == "llama.cpp"
}

/// A layout that surely holds what was asked for once its engine is told more flags.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Freed {
    /// The layout, with what it holds then of those that it is told of.
    pub fit: Fit,
    /// The flags.
    pub flags: Vec<String>,
    /// Whether the engine goes on reusing prefixes.
    pub reuses_prefixes: bool,
    /// The words of its command, whose model is as each door names it.
    #[serde(skip)]
    pub command: Vec<String>,
}

impl Freed {
    /// A row whose command, told these flags, holds so many at least and at most.
    pub fn of(fit: &Fit, between: [u64; 2], flags: Vec<String>, reuses_prefixes: bool, command: Vec<String>) -> Self {
        let fit =
            Fit { sequences: between[0], sequences_between: Some(between), holds: true, may_hold: true, ..fit.clone() };
        Self { fit, flags, reuses_prefixes, command }
    }
}

/// A command that serves a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Served {
    /// Up to the model's name.
    pub program: &'static str,
    /// The model, or a word in its place.
    pub model: String,
    /// What follows it.
    pub flags: String,
    /// What that word stands for, where it is to have other weights than the model.
    pub others: Option<OtherWeights>,
}

/// Weights that somebody must have, where an engine does not make them itself of the model's own.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OtherWeights {
    /// What they take.
    pub bytes: ByteSize,
    /// What the model's own take.
    pub own: ByteSize,
    /// Whether they are a file.
    pub file: bool,
}

/// Says what takes the place of the model's own: `CHECKPOINT: one of this model whose weights take …`.
impl fmt::Display for OtherWeights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bytes, own, file } = self;
        let other = if *file { "MODEL.gguf: a file" } else { "CHECKPOINT: one" };
        write!(f, "{other} of this model whose weights take {bytes}, as --weights says; its own take {own}")
    }
}

/// Weights of fewer bits than the model's own, assumed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FewerBits {
    /// Bits of a weight of its layers: 8 or 4.
    pub bits: u32,
    /// All weights then.
    pub weights_bytes: u64,
    /// The cheapest layout that surely holds what was asked for then, where it costs less than the one without; else absent.
    pub fit: Option<Fit>,
}

impl FewerBits {
    /// The same of other devices or engines as one: of each number of bits what costs least.
    pub(super) fn joined(mut all: Vec<Self>, others: Vec<Self>) -> Vec<Self> {
        let costs = |fewer: &Self| fewer.fit.as_ref().map_or((f64::INFINITY, u64::MAX), cost);
        for other in others {
            match all.iter_mut().find(|known| known.bits == other.bits) {
                Some(known) if costs(&other) < costs(known) => *known = other,
                Some(_) => {}
                None => all.push(other),
            }
        }
        all
    }
}

/// What a layout costs where it has a price, and else its memory.
pub(crate) fn cost(fit: &Fit) -> (f64, u64) {
    fit.per_hour.map_or((f64::INFINITY, fit.memory_bytes), |price| (price, 0))
}

/// Those first that hold, then those that may, and of them those that cost least.
pub(super) fn in_order(fits: &mut [Fit]) {
    let price = |fit: &Fit| fit.per_hour.unwrap_or(f64::INFINITY);
    fits.sort_by(|a, b| {
        let room = b.sequences.cmp(&a.sequences);
        // The model's own dtypes first, since they lose nothing; only a price says what that may cost.
        let changed = a.changed_dtypes().cmp(&b.changed_dtypes());
        let cost = price(a).total_cmp(&price(b)).then(changed).then(a.memory_bytes.cmp(&b.memory_bytes));
        let cost = cost.then(a.engine.is_some().cmp(&b.engine.is_some()));
        let of_alike = if a.may_hold { cost.then(room) } else { room.then(cost) };
        (b.holds, b.may_hold).cmp(&(a.holds, a.may_hold)).then(of_alike).then(a.devices.cmp(&b.devices))
    });
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
    /// Whether it surely holds what was asked for: an engine also with the least that it may find at its start.
    pub holds: bool,
    /// Whether it does with the most that it may find.
    pub may_hold: bool,
    /// Sequences that all devices run at once, 0 where the weights alone take too much.
    pub sequences: u64,
    /// The same of an engine at least and at most, as its own command is answered; absent of the plan's own pools.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sequences_between: Option<[u64; 2]>,
    /// Tokens of a sequence at most, where the engine gives none as many as are asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub longest: Option<u64>,
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

impl Fit {
    /// Whether its memory is what processor and GPU share.
    pub(crate) fn is_integrated(&self) -> bool {
        self.device.parse::<DeviceInfo>().is_ok_and(|device| device.kind == DeviceKind::Integrated)
    }

    /// Whether all dtypes are the model's, and the pools the plan's own.
    pub fn is_plain(&self) -> bool {
        self.changed_dtypes() == 0 && self.engine.is_none()
    }

    /// Sequences that it surely holds.
    pub(crate) fn least(&self) -> u64 {
        self.sequences_between.map_or(self.sequences, |[least, _]| least)
    }

    /// Sequences that it may hold.
    pub(crate) fn most(&self) -> u64 {
        self.sequences_between.map_or(self.sequences, |[_, most]| most)
    }

    /// Sequences that it holds, in words: `97..103` where that is not known exactly.
    pub(crate) fn held(&self) -> String {
        let (least, most) = (self.least(), self.most());
        if least < most { format!("{least}..{most}") } else { least.to_string() }
    }

    pub(crate) fn changed_dtypes(&self) -> usize {
        [self.kv_dtype, self.state_dtype].into_iter().flatten().count()
    }

    /// Sizes and dtypes, for people.
    pub(crate) fn division(&self) -> String {
        let flags = self.flags().replace("--", "").replace("-dtype", "");
        if flags.is_empty() { "alone".to_owned() } else { flags }
    }

    fn engine_name(&self) -> Option<&str> {
        self.engine.as_deref()?.split('@').next()
    }

    /// The same with the engine whose rules they are.
    pub(crate) fn layout(&self) -> String {
        let engine = self.engine.as_ref().map(|engine| format!("{engine}: ")).unwrap_or_default();
        engine + &self.division()
    }

    /// The same where these are not those of another row.
    pub(crate) fn layout_beside(&self, other: &Self) -> String {
        match &self.engine {
            engine if *engine == other.engine => self.division(),
            // Its version stands below the rows, where it is not asked of two.
            Some(_) if self.engine_name() == other.engine_name() => self.layout(),
            _ => format!("{}: {}", self.engine_name().unwrap_or("plan"), self.division()),
        }
    }

    /// The layout as flags of `cacheplan plan`.
    pub(crate) fn flags(&self) -> String {
        let sizes = self.parallel.sizes().into_iter().filter(|(_, size)| *size > 1);
        let mut flags: Vec<String> = sizes.map(|(key, size)| format!("--{key} {size}")).collect();
        flags.extend(self.kv_dtype.map(|dtype| format!("--kv-dtype {dtype}")));
        flags.extend(self.state_dtype.map(|dtype| format!("--ssm-dtype {dtype}")));
        flags.join(" ")
    }
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

/// How capacity falls with the length of the sequences.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Curve {
    /// The devices and their layout.
    pub name: String,
    /// Tokens of each sequence, and how many of them all devices run at once.
    pub points: Vec<(u64, u64)>,
}
