//! What llama.cpp needs on its devices, and what it does where they do not hold it.
//!
//! `--fit` changes only what nobody states: first the context, down to `--fit-ctx`, then the layers that lie on the devices. It leaves all
//! as it is where `-ngl` or a place for tensors is stated, and then an allocation fails (`common/fit.cpp`).

use std::ops::Range;

use cacheplan_planner::budget::Fraction;
use cacheplan_planner::engines::{EnginePrediction, OfLayer, Version};
use cacheplan_planner::measured::MeasuredBytes;
use cacheplan_planner::plan::LedgerLine;
use cacheplan_planner::{ByteSize, DeviceInfo, Devices, GgufType, ModelCaches};
use cacheplan_transforms::{Resources, WeightBytes};

use super::llama_cpp::{self, FLASH_ATTENTION_HAS_VALUES};
use super::moved::{self, Moved, Tensor};
use super::spread::{self, spread};
use super::{Question, above};
use crate::error::ServeError;
use crate::flags::values::stoi;
use crate::remedy::Remedy;

/// From this build on all layers are on the devices where nobody says; before none was. The same build as that of `-fa auto`.
const ALL_LAYERS: Version = FLASH_ATTENTION_HAS_VALUES;
/// By which memory of CUDA and HIP is shared with the host's, whatever its value (`ggml_cuda_device_malloc`).
const SWAPS: &str = "GGML_CUDA_ENABLE_UNIFIED_MEMORY";
/// `--fit-ctx` where nobody states it.
const LEAST_CONTEXT: u64 = 4096;

/// The part of estimated buffers that they may be more or less: of nine logs the farthest was a sixth off.
const ESTIMATED: u64 = 4;
/// What `--fit` leaves free of each device where nobody states it.
const FIT_TARGET: u64 = 1 << 30;

/// What it needs on its devices, as far as that is known.
pub(crate) struct Placed {
    /// Those that layers lie on; none where all stays on the host.
    devices: Vec<Holder>,
    /// The layers, the output among them.
    layers: u64,
    /// At least, as they are taken to be, and at most.
    weights: [u64; 3],
    /// What is stated or was measured of steps; else they are estimated.
    compute: Option<u64>,
    /// Bytes of a step's attention scores for each cell that a sequence sees, where they are kept.
    scores: u64,
    /// Contexts as they were measured; else they are what logs say of such a device.
    context: Option<u64>,
    /// Whether slots share their cells.
    is_shared: bool,
    /// Graphs, as they are stated or were measured, and what is reserved, on each device.
    others: [u64; 2],
    /// Layers with states, with what each takes of them.
    states: Vec<(u64, u64)>,
    /// What of the weights `--fit` takes to be lost where it shrinks a context of several devices.
    cut: u64,
    /// Whether the name of its file says that it is quantised, and its weights are taken to be those of the config.
    pub(crate) doubts_weights: bool,
    /// Whether nobody knows what its weights take.
    lacks_weights: bool,
    /// Whether caches stay on the host whatever lies on the devices.
    stays: bool,
    /// Why it is not known what of the weights lies elsewhere than where layers do.
    uncounted: Option<String>,
    /// What it does where that is too little.
    pub(crate) short: Short,
    /// Whether what they do not hold lies in the host's memory, and no allocation fails for it.
    pub(crate) swaps: bool,
}

/// A device, and what lies on it.
struct Holder {
    /// As its backend calls it.
    name: String,
    /// What it has of its memory at most and at least, less what it leaves free of it; none where no device is named.
    room: Option<[u64; 2]>,
    layers: Range<u64>,
    /// Its part of the weights.
    weights: f64,
}

/// What it does where its devices are too small.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Short {
    /// It takes fewer cells, and then leaves layers on the host, or fails.
    Cells {
        /// The fewest.
        least: u64,
        /// Whether it fails where these are too many.
        fails: bool,
    },
    /// It leaves layers on the host.
    Layers,
    /// It fails to allocate.
    Fails,
}

impl Short {
    /// Whether it ends there.
    pub(crate) fn fails(self) -> bool {
        matches!(self, Self::Fails | Self::Cells { fails: true, .. })
    }
}

/// What holds something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Held {
    /// Each device its own layers.
    Each,
    /// All devices together, as `--fit` looks at several.
    Together,
    /// The same less what it takes to be lost where it shrinks a context.
    Shrunk,
}

/// Takes what is stated of memory out of the question, since it divides none.
pub(crate) fn placed(question: &mut Question, model: &ModelCaches) -> Result<Placed, ServeError> {
    let stated = above::taken(question, |key| key.starts_with("memory."))?;
    let lines = question.measured.take().map(|measured| measured.lines).unwrap_or_default();
    let either = |stated: Option<ByteSize>, measured: Option<u64>| stated.map(|size| size.0).or(measured);
    let measured = |line: Option<MeasuredBytes>| line.map(|line| line.bytes);
    let stated_weights = either(stated.weights, measured(lines.weights));
    // Told no budget, it has them as those of the model.
    question.weights = stated_weights.map(|bytes| WeightBytes::new(bytes, false));
    let own = stated_weights.or(model.info().weights.map(|weights| weights.bytes));
    let (own, lacks_weights) = (own.unwrap_or(0), own.is_none());
    let compute = either(stated.activations, measured(lines.activations));
    let context = either(stated.context, measured(lines.context));
    let graphs = either(stated.graphs, measured(lines.graphs)).unwrap_or(0);
    let others = [graphs, stated.reserve.map_or(0, |size| size.0)];
    let caches = question.caches(model)?;
    let layers = layers(model, &caches) + 1;
    let names = spread::devices(question)?;
    let short = short(question, layers, names.len());
    let moved = moved::moved(question, model)?;
    let of_config = model
        .info()
        .weights
        .filter(|weights| stated_weights.is_none() && !weights.exact && question.device().is_some());
    // A file whose name says how it is quantised has not the weights of the config.
    let named = GgufType::of_file(&question.model).filter(|_| of_config.is_some());
    let named = named.and_then(|of| Some((of, model.weights_in(of)?)));
    let quantised = quantised(&question.model).map(str::to_owned).filter(|_| of_config.is_some() && named.is_none());
    let doubts_weights = quantised.is_some();
    let weights = named.map_or([own; 3], |(_, bytes)| bytes);
    if let (Some((of, bytes)), Some(config)) = (named, of_config) {
        question.weights = Some(WeightBytes::new(bytes[1], false));
        let ([least, assumed, most], config) = (bytes.map(ByteSize), ByteSize(config.bytes));
        question.notes.push(format!(
            "weights of {assumed} are assumed from the name, {least} to {most} of a file in {}, where the config's are {config}: state the file's size with --weights",
            of.name
        ));
    } else if let Some(weights) = of_config {
        let (weights, dtype) = (ByteSize(weights.bytes), model.info().dtype);
        question.cautions.extend(quantised.map(|name| {
            format!(
                "its name says that the file is {name}, and {weights} are the weights of the config, in {dtype}: how large is the file? state it with --weights"
            )
        }));
        question.notes.push(format!(
            "weights of {weights} are those of the config, in {dtype}; state those of a quantised file with --weights"
        ));
    }
    if names.is_empty() {
        question.notes.push("it finds no device: weights and caches lie on the host, and the CPU runs them".into());
    }
    let shares = question.device().map(DeviceInfo::shares_of_gpu);
    let devices = holders(question, names, layers, short, &moved, shares)?;
    let on_host: f64 = moved.tensors.iter().filter(|tensor| tensor.to.is_none()).map(|tensor| tensor.part).sum();
    if moved::is_told(question) {
        let on_host = ByteSize((weights[1] as f64 * on_host).round() as u64);
        let lie =
            moved.uncounted.as_ref().map_or_else(|| format!("{on_host} of weights lie"), |_| "weights lie".into());
        question.notes.push(format!(
            "{lie} on the host, which changes no cache: each lies where its layer's attention is computed"
        ));
    }
    question.cautions.extend(moved.uncounted.iter().map(|why| format!("{why}: what the devices hold is not judged")));
    if let Some(most) = devices.iter().rev().max_by_key(|device| device.count()).filter(|_| devices.len() > 1) {
        let (name, most) = (&most.name, most.count());
        question.notes.push(format!(
            "a layer lies whole on a device: {name} has {most} of {layers}, the output among these, and none has more"
        ));
    }
    if matches!(short, Short::Cells { .. }) && devices.iter().any(|device| device.room.is_some()) {
        question.notes.push("no --ctx-size is stated, so that it takes as many cells as fit beside what --fit-target leaves free; as many as are stated it allocates".into());
    }
    // Layers are divided over devices, and no layer's cells are.
    question.devices = question.device().cloned().map(Devices::from);
    let is_shared = question.is_stated("engine.context");
    let scores = if llama_cpp::is_without_flash_attention(question) { scores(question, model) } else { 0 };
    let states = caches.iter().filter(|cache| cache.handler.is_state());
    let states = states.map(|cache| (cache.layer.unwrap_or(0).into(), cache.handler.unit_bytes())).collect();
    let cut = cut(model, weights[1], layers, devices.len());
    let is_cuda = |device: &Holder| device.name.starts_with("CUDA") || device.name.starts_with("ROCm");
    let swaps = question.env.contains_key(SWAPS) && !devices.is_empty() && devices.iter().all(is_cuda);
    if swaps {
        question.notes.push(format!(
            "{SWAPS} is set: what the devices do not hold lies in the host's memory, slowly, and no allocation fails for it"
        ));
    }
    let stays = question.flag("--kv-offload").is_some_and(|setting| !setting.on);
    Ok(Placed {
        devices,
        layers,
        weights,
        compute,
        scores,
        context,
        is_shared,
        others,
        states,
        cut,
        doubts_weights,
        lacks_weights,
        stays,
        uncounted: moved.uncounted,
        short,
        swaps,
    })
}

/// How a file is quantised, as people name it: `Q4_K_M` in `Qwen3-8B-Q4_K_M.gguf`.
fn quantised(name: &str) -> Option<&str> {
    let file = name.rsplit('/').next().unwrap_or(name);
    file.split(['-', '.', ':']).find(|part| {
        let bits = ["IQ", "iq", "Q", "q", "TQ", "tq"].iter().find_map(|prefix| part.strip_prefix(prefix));
        let of_bits = bits.is_some_and(|rest| rest.starts_with(|bit: char| bit.is_ascii_digit()) && rest.contains('_'));
        of_bits || part.eq_ignore_ascii_case("mxfp4")
    })
}

/// What lies on each device: the last layers that are offered, the output behind them, by shares that are stated or by its memory.
fn holders(
    question: &Question,
    names: Vec<String>,
    layers: u64,
    short: Short,
    moved: &Moved,
    of_gpu: Option<[Fraction; 2]>,
) -> Result<Vec<Holder>, ServeError> {
    let offered = offered(question).unwrap_or(u64::MAX).min(layers);
    let shares = spread::shares(question, names.len()).unwrap_or_else(|| vec![1.0; names.len()]);
    let all: f32 = shares.iter().sum();
    let by_rows = spread::is_by_rows(question);
    let parts = spread(&shares, layers - offered..layers);
    let spared = spared(question, short)?;
    let bytes = question.device().map(|device| device.total_bytes);
    let holder = |(index, ((name, layers_of), share)): (usize, ((String, Range<u64>), f32))| {
        let of_layers = (layers_of.end - layers_of.start) as f64 / layers as f64;
        let weights = if by_rows { f64::from(share / all) } else { of_layers };
        let own = |tensor: &Tensor| match by_rows {
            true => weights,
            false if layers_of.contains(&tensor.layer) => 1.0,
            false => 0.0,
        };
        let more = |tensor: &Tensor| tensor.part * (f64::from(tensor.to.as_ref() == Some(&name)) - own(tensor));
        let weights = (weights + moved.tensors.iter().map(more).sum::<f64>()).max(0.0);
        let room = bytes
            .zip(of_gpu)
            .map(|(bytes, [least, most])| [most, least].map(|share| share.of(bytes).saturating_sub(spared(index))));
        Holder { name, room, layers: layers_of, weights }
    };
    let devices = names.into_iter().zip(parts).zip(shares).enumerate().map(holder);
    Ok(devices.filter(|device| device.count() > 0).collect())
}

/// What it leaves free of each device where it fits itself to them.
fn spared(question: &Question, short: Short) -> Result<impl Fn(usize) -> u64, ServeError> {
    const FLAG: &str = "--fit-target";
    let fits = short != Short::Fails && llama_cpp::fits(question);
    let stated = question.value(FLAG).filter(|_| fits);
    let of_each = |each: &str| each.trim().parse::<u64>().ok()?.checked_mul(1 << 20);
    let targets: Option<Vec<u64>> = stated.map_or(Some(Vec::new()), |list| list.split(',').map(of_each).collect());
    let targets = targets.ok_or_else(|| {
        let stated = stated.unwrap_or_default();
        question.refused(format!("error: {FLAG}: `{stated}` is no number of MiB"), [Remedy::Remove(FLAG)])
    })?;
    Ok(move |device: usize| match (fits, targets.as_slice()) {
        (false, _) => 0,
        // One is that of all.
        (true, [all]) => *all,
        (true, targets) => targets.get(device).copied().unwrap_or(FIT_TARGET),
    })
}

/// What `--fit` takes off the bytes of several devices where it shrinks the context: about half a layer's weights for each, or a sixth of
/// one with experts.
fn cut(model: &ModelCaches, weights: u64, layers: u64, devices: usize) -> u64 {
    let has_experts = model.info().weights.and_then(|weights| weights.classes).is_some_and(|of| of.routed > 0);
    let parts = if has_experts { 6 } else { 2 };
    let of_layer = weights / layers.saturating_sub(1).max(1);
    if devices > 1 { of_layer.saturating_mul(devices as u64 + 1) / parts } else { 0 }
}

/// Bytes of a pass for each cell that every query head scores, in float32.
fn scores(question: &Question, model: &ModelCaches) -> u64 {
    super::of_config(model, super::HEADS).unwrap_or(0).saturating_mul(4).saturating_mul(llama_cpp::ubatch(question))
}

/// The layers of the model, without the output.
fn layers(model: &ModelCaches, caches: &Resources) -> u64 {
    let last = caches.iter().filter_map(|cache| cache.layer).max().map_or(0, |last| u64::from(last) + 1);
    last.max(model.info().layers.into())
}

/// The layers that are to lie on the devices, the output among them.
fn offered(question: &Question) -> Option<u64> {
    let stated = layers_stated(question).and_then(|value| u64::try_from(stoi(value)?).ok());
    stated.or((question.engine.version < ALL_LAYERS && layers_stated(question).is_none()).then_some(0))
}

/// What a command says of the layers on the devices; to let the engine choose says nothing.
fn layers_stated(question: &Question) -> Option<&str> {
    question.value("--n-gpu-layers").filter(|value| *value != "auto" && stoi(value) != Some(-1))
}

fn short(question: &Question, layers: u64, devices: usize) -> Short {
    let fits = llama_cpp::fits(question);
    let keeps_some = moved::is_told(question);
    let all = offered(question).is_none_or(|offered| offered >= layers);
    // What is stated of layers it does not change.
    let is_split = spread::shares(question, devices).is_some() || devices > 1 && spread::is_by_rows(question);
    let fails = all && (!fits || keeps_some || is_split || layers_stated(question).is_some());
    match (fits && llama_cpp::is_free(question), fails) {
        (true, _) => {
            let of_stream = llama_cpp::counted(question, "--fit-ctx").unwrap_or(LEAST_CONTEXT).max(1);
            Short::Cells { least: of_stream.saturating_mul(llama_cpp::streams(question)), fails }
        }
        (false, true) => Short::Fails,
        (false, false) => Short::Layers,
    }
}

impl Holder {
    fn count(&self) -> u64 {
        self.layers.end - self.layers.start
    }

    fn holds(&self, layer: Option<u32>) -> bool {
        self.layers.contains(&layer.unwrap_or(0).into())
    }
}

/// What a device needs: each of [`PARTS`].
#[derive(Clone, Copy, Default)]
struct Needs([u64; 5]);

const PARTS: [&str; 5] = ["weights", "graphs", "what is reserved", "steps and the device's context", "caches"];

impl Needs {
    fn all(self) -> u64 {
        self.0.into_iter().fold(0, u64::saturating_add)
    }

    fn and(self, other: Self) -> Self {
        Self(std::array::from_fn(|part| self.0[part].saturating_add(other.0[part])))
    }

    /// The parts in words, with as much as there is at least, and at most.
    fn words(self, most: Self, joined: &str) -> String {
        let all = PARTS.into_iter().zip(self.0.into_iter().zip(most.0));
        let some = all.filter(|(what, (_, most))| *most > 0 || *what == "caches");
        some.map(|(what, (least, most))| format!("{} of {what}", span(least, most))).collect::<Vec<_>>().join(joined)
    }
}

fn span(least: u64, most: u64) -> String {
    match least == most {
        true => ByteSize(least).to_string(),
        false => format!("{} to {}", ByteSize(least), ByteSize(most)),
    }
}

impl Placed {
    /// Bytes of steps and of the context on each device at least, as they are taken to be, and at most.
    fn beside(&self, predicted: &EnginePrediction, context: Option<&LedgerLine>) -> [u64; 3] {
        let streams = if self.is_shared { 1 } else { predicted.sequences.max(1) };
        let seen = predicted.tokens.unwrap_or(0) / streams;
        let estimated = || predicted.compute_bytes.map(|bytes| bytes.saturating_add(self.scores.saturating_mul(seen)));
        let compute = match self.compute.map_or_else(estimated, |_| None) {
            Some(bytes) => [bytes - bytes / ESTIMATED, bytes, bytes.saturating_add(bytes / ESTIMATED)],
            None => [self.compute.unwrap_or(0); 3],
        };
        let context = match (self.context, context) {
            (Some(measured), _) => [measured; 3],
            (None, Some(line)) => {
                let uncertain = line.uncertain_bytes;
                [line.bytes.saturating_sub(uncertain), line.bytes, line.bytes.saturating_add(uncertain)]
            }
            (None, None) => [0; 3],
        };
        [0, 1, 2].map(|at| compute[at].saturating_add(context[at]))
    }

    /// What takes the devices' memory, in words: at least and at most, as far as that is not known exactly.
    pub(crate) fn taken(&self, predicted: &EnginePrediction, context: Option<&LedgerLine>) -> Option<String> {
        let rooms: Vec<[u64; 2]> = self.devices.iter().map(|device| device.room).collect::<Option<_>>()?;
        let [room, sure] = [0, 1].map(|at| rooms.iter().fold(0u64, |all, room| all.saturating_add(room[at])));
        if rooms.is_empty() || !self.is_judged() {
            return None;
        }
        let beside = self.beside(predicted, context);
        let [least, most] = [0, 2].map(|at| {
            let of_each = self.devices.iter().map(|device| self.needs(device, predicted, at, beside[at]));
            of_each.fold(Needs::default(), Needs::and)
        });
        let left = span(sure.saturating_sub(most.all()), room.saturating_sub(least.all()));
        let estimated = match beside[0] < beside[2] {
            true => "; steps and the context are estimated, --activations states them",
            false => "",
        };
        Some(format!("{} on the devices: {}; {left} are left{estimated}", span(sure, room), least.words(most, ", ")))
    }

    /// What is not known of that which its devices must hold, where that decides whether they do, and what would state it.
    pub(crate) fn unknown_weights(&self) -> Option<String> {
        let is_open = self.lacks_weights && self.is_judged() && !self.swaps;
        let unknown = is_open.then(|| "the size of its weights is not known: state it with --weights".to_owned());
        unknown.or_else(|| self.uncounted.clone())
    }

    /// What states that which is assumed.
    pub(crate) fn stated_by(&self) -> &'static str {
        match () {
            () if self.uncounted.is_some() => "what of the weights lies on its devices is not known",
            () if self.lacks_weights => "the size of its weights is not known; state it with --weights",
            () if self.weights[0] < self.weights[2] => {
                "what its weights take is assumed from the file's name; state it with --weights"
            }
            () => "steps and the device's context are estimated; state them with --activations",
        }
    }

    /// Whether it takes devices that nobody names.
    pub(crate) fn lacks_devices(&self) -> bool {
        self.devices.iter().any(|device| device.room.is_none())
    }

    /// Whether it is known what lies on the devices: all layers, on devices that are named.
    fn is_judged(&self) -> bool {
        let all: u64 = self.devices.iter().map(Holder::count).sum();
        self.uncounted.is_none() && all == self.layers && self.devices.iter().all(|device| device.room.is_some())
    }

    /// Bytes of caches on a device.
    fn caches(&self, device: &Holder, predicted: &EnginePrediction) -> u64 {
        if self.stays {
            return 0;
        }
        let pages = predicted.of_layers.iter().filter(|of| device.holds(of.layer)).map(|of| of.bytes);
        let pages = pages.fold(0, u64::saturating_add);
        let of_states = |on: &dyn Fn(u64) -> bool| -> u128 {
            self.states.iter().filter(|(layer, _)| on(*layer)).map(|(_, bytes)| u128::from(*bytes)).sum()
        };
        let (own, all) = (of_states(&|layer| device.layers.contains(&layer)), of_states(&|_| true).max(1));
        let states = u128::from(predicted.state_bytes.unwrap_or(0)) * own / all;
        pages.saturating_add(u64::try_from(states).unwrap_or(u64::MAX))
    }

    /// What a device needs at least (0) or at most (2).
    fn needs(&self, device: &Holder, predicted: &EnginePrediction, at: usize, beside: u64) -> Needs {
        let weights = (self.weights[at] as f64 * device.weights).round() as u64;
        let [graphs, reserve] = self.others;
        Needs([weights, graphs, reserve, beside, self.caches(device, predicted)])
    }

    /// What is left for caches beside weights and steps; all there is where they lie elsewhere, or no device is named.
    pub(crate) fn for_caches(&self, predicted: &EnginePrediction, context: Option<&LedgerLine>) -> u64 {
        if !self.is_judged() {
            return u64::MAX;
        }
        // As much as it may be, so that what it is told lies on the devices surely.
        let [_, _, beside] = self.beside(predicted, context);
        let all = self.devices.iter().map(|device| self.caches(device, predicted)).fold(0, u64::saturating_add);
        let of_all = |device: &Holder| {
            let own = self.caches(device, predicted);
            let others = self.needs(device, predicted, 2, beside).all().saturating_sub(own);
            let [_, sure] = device.room?;
            let left = sure.saturating_sub(others);
            let of_all = (u128::from(left) * u128::from(all)).checked_div(own.into())?;
            Some(u64::try_from(of_all).unwrap_or(u64::MAX))
        };
        self.devices.iter().filter_map(of_all).min().unwrap_or(u64::MAX)
    }

    /// How it fits a context to its devices as it is, and one that is shrunk.
    pub(crate) fn fitted(&self) -> [Held; 2] {
        if self.devices.len() > 1 { [Held::Together, Held::Shrunk] } else { [Held::Each; 2] }
    }

    /// Why the devices do not hold that, where their memory is known: with what it may need at least, and at most.
    pub(crate) fn lacks(
        &self,
        predicted: &EnginePrediction,
        context: Option<&LedgerLine>,
        held: Held,
    ) -> [Option<String>; 2] {
        if !self.is_judged() {
            return [None, None];
        }
        let beside = self.beside(predicted, context);
        [0, 2].map(|at| {
            // Of those that are alike the first decides.
            let of_each = self.devices.iter().rev().map(|device| {
                let named = if self.devices.len() > 1 { device.name.as_str() } else { "the device" };
                (self.needs(device, predicted, at, beside[at]), device.room.map_or(0, |room| room[at / 2]), named)
            });
            let together = |(needs, all): (Needs, u64), (more, room, _): (Needs, u64, &str)| {
                (needs.and(more), all.saturating_add(room))
            };
            let (needs, room, named) = match held {
                Held::Each => of_each.max_by_key(|(needs, room, _)| i128::from(needs.all()) - i128::from(*room))?,
                Held::Together | Held::Shrunk => {
                    let cut = if held == Held::Shrunk { self.cut } else { 0 };
                    let (needs, room) = of_each.fold((Needs::default(), 0), together);
                    (needs, room.saturating_sub(cut), "all devices")
                }
            };
            let does = match self.devices.first().map_or("", |device| device.name.as_str()) {
                _ if !self.short.fails() => "layers stay on the host".to_owned(),
                // A HIP build has the words of the CUDA one.
                name if name.starts_with("CUDA") || name.starts_with("ROCm") => {
                    "cudaMalloc failed: out of memory".to_owned()
                }
                name => format!("failed to allocate {name} buffer"),
            };
            let (parts, size) = (needs.words(needs, " and "), ByteSize(room));
            (needs.all() > room).then(|| format!("{does}: {parts} are more than the {size} of {named}"))
        })
    }

    /// The lines of the cells, one for each cache and each place in which it lies, with as much as either end has; as it is where nobody
    /// knows the parts.
    pub(crate) fn lines(&self, line: String, [low, high]: [&EnginePrediction; 2]) -> Vec<String> {
        if !line.contains("KV buffer size") || high.of_layers.is_empty() {
            return vec![line];
        }
        let on = |of: &OfLayer| {
            let device = self.devices.iter().position(|device| device.holds(of.layer) && !self.stays);
            device.map_or(0, |index| index + 1)
        };
        let names: Vec<&str> =
            std::iter::once("CPU").chain(self.devices.iter().map(|device| device.name.as_str())).collect();
        let mut lines = Vec::new();
        for windowed in [false, true] {
            for (place, name) in names.iter().enumerate() {
                let bytes = |predicted: &EnginePrediction| {
                    let own = predicted.of_layers.iter().filter(|of| of.windowed == windowed && on(of) == place);
                    own.map(|of| of.bytes).reduce(u64::saturating_add)
                };
                let Some((least, most)) = bytes(low).zip(bytes(high)) else { continue };
                let mib = |bytes: u64| format!("{:.2}", bytes as f64 / f64::from(1 << 20));
                let (least, most) = (mib(least.min(most)), mib(least.max(most)));
                let size = if least == most { most } else { format!("{least}..{most}") };
                lines.push(format!("llama_kv_cache: {name} KV buffer size = {size} MiB"));
            }
        }
        lines
    }
}
