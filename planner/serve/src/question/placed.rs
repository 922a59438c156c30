//! What llama.cpp needs on its devices, and what it does where they do not hold it.
//!
//! `--fit` changes only what nobody states: first the context, down to `--fit-ctx`, then the layers that lie on the devices. It leaves all
//! as it is where `-ngl` or a place for tensors is stated, and then an allocation fails (`common/fit.cpp`).

use cacheplan_planner::engines::{EnginePrediction, Version};
use cacheplan_planner::measured::MeasuredBytes;
use cacheplan_planner::plan::LedgerLine;
use cacheplan_planner::{ByteSize, Devices, GgufType, ModelCaches};
use cacheplan_transforms::{Resource, Resources, WeightBytes};

use super::llama_cpp::{self, FITS, FLASH_ATTENTION_HAS_VALUES, OFF};
use super::{Question, above};
use crate::error::ServeError;
use crate::flags::parse::Setting;
use crate::flags::values::stoi;
use crate::remedy::Remedy;

/// From this build on all layers are on the devices where nobody says; before none was. The same build as that of `-fa auto`.
const ALL_LAYERS: Version = FLASH_ATTENTION_HAS_VALUES;
/// `--fit-ctx` where nobody states it.
const LEAST_CONTEXT: u64 = 4096;

/// The part of estimated buffers that they may be more or less: of nine logs the farthest was a sixth off.
const ESTIMATED: u64 = 4;
/// What `--fit` leaves free of each device where nobody states it.
const FIT_TARGET: u64 = 1 << 30;

/// What it needs on its devices, as far as that is known.
pub(crate) struct Placed {
    /// The memory of all devices, less what it leaves free of them; none where no device is named.
    room: Option<u64>,
    /// At least, as they are taken to be, and at most.
    weights: [u64; 3],
    /// What is stated or was measured of steps; else they are estimated.
    compute: Option<u64>,
    /// Bytes of a step's attention scores for each cell that a sequence sees, where they are kept.
    scores: u64,
    /// Contexts as they were measured; else they are what logs say of such a device.
    context: Option<u64>,
    split: Split,
    /// The first of them, as its backend calls it.
    device: &'static str,
    /// Whether slots share their cells.
    is_shared: bool,
    /// Graphs, as they are stated or were measured, and what is reserved.
    others: [(u64, &'static str); 2],
    /// Whether the name of its file says that it is quantised, and its weights are taken to be those of the config.
    pub(crate) doubts_weights: bool,
    /// Where the cells lie, if not all on the devices.
    pub(crate) cells: Option<Offloaded>,
    /// What it does where that is too little.
    pub(crate) short: Short,
}

/// How layers are divided over devices: the one with the most has so many of all.
#[derive(Clone, Copy, Debug)]
struct Split {
    most: u64,
    all: u64,
}

impl Split {
    /// What all devices have where this one has so much.
    fn of_all(self, bytes: u64) -> u64 {
        u64::try_from(u128::from(bytes) * u128::from(self.all) / u128::from(self.most)).unwrap_or(u64::MAX)
    }
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

/// Layers with cells that are on the device, of all.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offloaded {
    pub(crate) on: u64,
    pub(crate) all: u64,
    /// Whether each has as many bytes.
    pub(crate) alike: bool,
    /// Whether weights lie where the cells do.
    pub(crate) with_weights: bool,
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
    let own = stated_weights.or(model.info().weights.map(|weights| weights.bytes)).unwrap_or(0);
    let compute = either(stated.activations, measured(lines.activations));
    let context = either(stated.context, measured(lines.context));
    let graphs = either(stated.graphs, measured(lines.graphs)).unwrap_or(0);
    let others = [(graphs, "graphs"), (stated.reserve.map_or(0, |size| size.0), "what is reserved")];
    let caches = question.caches(model)?;
    let devices = used(question)?;
    let split = split(question, layers(&caches), devices);
    let room = question.device().map(|device| split.of_all(device.total_bytes));
    // Layers are divided over devices, and no layer's cells are.
    question.devices = question.device().cloned().map(Devices::from);
    let of_config = model.info().weights.filter(|weights| stated_weights.is_none() && !weights.exact && room.is_some());
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
    let cells = offloaded(question, &caches);
    if cells.is_some_and(|cells| cells.on > 0 && cells.on < cells.all && !cells.alike) {
        question.notes.push("the size is that of all layers together, on the GPU and on the host".into());
    }
    if devices > 1 {
        question.notes.push(format!("the size is that of all {devices} devices together; each has a line of its own"));
    }
    let short = short(question, &caches);
    if matches!(short, Short::Cells { .. }) && room.is_some() {
        question.notes.push("no --ctx-size is stated, so that it takes as many cells as fit beside what --fit-target leaves free; as many as are stated it allocates".into());
    }
    let spared = split.of_all(spared(question, short)?);
    let room = room.map(|room| room.saturating_sub(spared));
    let is_shared = question.is_stated("engine.context");
    let scores = if llama_cpp::is_without_flash_attention(question) { scores(question, model) } else { 0 };
    let device = device(question);
    Ok(Placed {
        room,
        weights,
        compute,
        scores,
        context,
        split,
        device,
        is_shared,
        others,
        doubts_weights,
        cells,
        short,
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

/// The devices that layers lie on: one where it splits nothing, and those with a share where it is told shares.
fn used(question: &Question) -> Result<u32, ServeError> {
    const SPLIT: &str = "--split-mode";
    const MAIN: &str = "--main-gpu";
    let Some(all) = question.devices.as_ref().map(Devices::count) else { return Ok(1) };
    if question.value(SPLIT) == Some("none") {
        let main = question.flag(MAIN).and_then(Setting::whole).unwrap_or(0);
        return match u32::try_from(main) {
            Ok(main) if main < all => Ok(1),
            Ok(main) => {
                let said = format!("invalid value for main_gpu: {main} (available devices: {all})");
                Err(question.refused(said, [Remedy::Set(MAIN, "0".to_owned())]))
            }
            Err(_) => Err(ServeError::unread(MAIN, "layers lie on no device then", [Remedy::Remove(MAIN)])),
        };
    }
    let with_any = shares(question, all).map(|shares| shares.iter().filter(|share| **share > 0.0).count());
    Ok(with_any.and_then(|used| u32::try_from(used).ok()).unwrap_or(all))
}

/// The shares of layers that a command states for its devices, if any.
fn shares(question: &Question, devices: u32) -> Option<Vec<f32>> {
    let stated = question.value("--tensor-split").filter(|_| devices > 1)?;
    let share = |share: &str| share.trim().parse::<f32>().unwrap_or(0.0);
    let stated: Vec<f32> = stated.split([',', '/']).take(devices as usize).map(share).collect();
    stated.iter().any(|share| *share > 0.0).then_some(stated)
}

/// Each layer lies on the first device of which the share ends behind it (`load_tensors`), the output behind the last.
fn split(question: &mut Question, layers: u64, devices: u32) -> Split {
    let alike = Split { most: 1, all: devices.max(1).into() };
    let count = question.devices.as_ref().map_or(1, Devices::count);
    let Some(shares) = shares(question, count).filter(|_| devices > 1) else { return alike };
    let all = offered(question).unwrap_or(u64::MAX).min(layers + 1).max(1);
    let sum: f32 = shares.iter().sum();
    let ends: Vec<f32> = shares
        .iter()
        .scan(0.0, |end, share| {
            *end += share;
            Some(*end / sum)
        })
        .collect();
    let on = |device: usize| {
        let of = |layer: &u64| ends.partition_point(|end| *end <= *layer as f32 / all as f32) == device;
        (0..all).filter(of).count() as u64
    };
    let most = (0..ends.len()).map(on).max().unwrap_or(1).max(1);
    question.notes.push(format!("the device with the largest share has {most} of {all} layers, and decides"));
    Split { most, all }
}

/// What it leaves free of a device where it fits itself to it.
fn spared(question: &Question, short: Short) -> Result<u64, ServeError> {
    const FLAG: &str = "--fit-target";
    if short == Short::Fails || !fits(question) {
        return Ok(0);
    }
    let Some(stated) = question.value(FLAG).map(str::to_owned) else { return Ok(FIT_TARGET) };
    let most = stated.split(',').map(|each| each.trim().parse::<u64>().ok()?.checked_mul(1 << 20)).max().flatten();
    most.ok_or_else(|| {
        question.refused(format!("error: {FLAG}: `{stated}` is no number of MiB"), [Remedy::Remove(FLAG)])
    })
}

/// Bytes of a pass for each cell that every query head scores, in float32.
fn scores(question: &Question, model: &ModelCaches) -> u64 {
    super::of_config(model, super::HEADS).unwrap_or(0).saturating_mul(4).saturating_mul(llama_cpp::ubatch(question))
}

/// Whether it fits itself to the devices.
fn fits(question: &Question) -> bool {
    question.engine.version >= FITS && question.value("--fit").is_none_or(|value| !OFF.contains(&value))
}

/// One more than the last layer with caches.
fn layers(caches: &Resources) -> u64 {
    caches.iter().filter_map(|cache| cache.layer).max().map_or(0, |last| u64::from(last) + 1)
}

/// The layers that are to lie on the devices, the output among them.
fn offered(question: &Question) -> Option<u64> {
    if question.value("--device") == Some("none") {
        return Some(0);
    }
    let stated = question.value("--n-gpu-layers").and_then(|value| u64::try_from(stoi(value)?).ok());
    stated.or((question.engine.version < ALL_LAYERS && question.flag("--n-gpu-layers").is_none()).then_some(0))
}

fn short(question: &Question, caches: &Resources) -> Short {
    let fits = fits(question);
    let free = llama_cpp::counted(question, "--ctx-size").unwrap_or(0) == 0;
    let keeps_some = llama_cpp::keeps_weights_on_host(question);
    let all = offered(question).is_none_or(|offered| offered > layers(caches)) && !keeps_some;
    let fails = all && (!fits || keeps_some || question.flag("--n-gpu-layers").is_some());
    match (fits && free, fails) {
        (true, _) => {
            Short::Cells { least: llama_cpp::counted(question, "--fit-ctx").unwrap_or(LEAST_CONTEXT).max(1), fails }
        }
        (false, true) => Short::Fails,
        (false, false) => Short::Layers,
    }
}

/// Where the cells lie, if not all on the device: with their layer, of which the last are offloaded, the output first.
fn offloaded(question: &Question, caches: &Resources) -> Option<Offloaded> {
    let stays = question.flag("--kv-offload").is_some_and(|setting| !setting.on);
    let paged = || caches.iter().filter(|cache| cache.handler.is_paged());
    let first = (layers(caches) + 1).saturating_sub(offered(question).unwrap_or(u64::MAX));
    let is_on = |layer: Option<u32>| !stays && u64::from(layer.unwrap_or(0)) >= first;
    let of = |cache: &Resource| (cache.handler.growth(), cache.handler.unit_bytes());
    let first_of = paged().next().map(of);
    let (all, on) = (paged().count() as u64, paged().filter(|cache| is_on(cache.layer)).count() as u64);
    let alike = paged().all(|cache| Some(of(cache)) == first_of);
    (on < all).then_some(Offloaded { on, all, alike, with_weights: first > 0 })
}

impl Placed {
    /// Bytes of steps and contexts at least, as they are taken to be, and at most.
    fn beside(&self, predicted: &EnginePrediction, context: Option<&LedgerLine>) -> [u64; 3] {
        let streams = if self.is_shared { 1 } else { predicted.sequences.max(1) };
        let seen = predicted.tokens.unwrap_or(0) / streams;
        let estimated = || predicted.compute_bytes.map(|bytes| bytes.saturating_add(self.scores.saturating_mul(seen)));
        let compute = match self.compute.map_or_else(estimated, |_| None) {
            // On each device, since each runs layers.
            Some(bytes) => [bytes - bytes / ESTIMATED, bytes, bytes + bytes / ESTIMATED],
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
        [0, 1, 2].map(|at| self.split.of_all(compute[at].saturating_add(context[at])))
    }

    /// What takes the devices' memory, in words: at least and at most, as far as that is not known exactly.
    pub(crate) fn taken(&self, predicted: &EnginePrediction, context: Option<&LedgerLine>) -> Option<String> {
        let (Some(room), Some(caches)) = (self.room, self.held(predicted)) else { return None };
        let beside = self.beside(predicted, context);
        let [(least, few), (most, many)] = [0, 2].map(|at| self.parts(at, beside[at], caches));
        let span = |least: u64, most: u64| match least == most {
            true => ByteSize(least).to_string(),
            false => format!("{} to {}", ByteSize(least), ByteSize(most)),
        };
        let parts =
            few.iter().zip(&many).map(|((least, what), (most, _))| format!("{} of {what}", span(*least, *most)));
        let parts = parts.collect::<Vec<_>>().join(", ");
        let left = span(room.saturating_sub(most), room.saturating_sub(least));
        let estimated = match beside[0] < beside[2] {
            true => "; steps and the context are estimated, --activations states them",
            false => "",
        };
        Some(format!("{} on the devices: {parts}; {left} are left{estimated}", ByteSize(room)))
    }

    /// All that lies on the devices with what it needs at least (0) or at most (2), and each part of it.
    fn parts(&self, at: usize, beside: u64, caches: u64) -> (u64, Vec<(u64, &'static str)>) {
        let [graphs, reserve] = self.others;
        let parts = [
            (self.weights[at], "weights"),
            graphs,
            reserve,
            (beside, "steps and the device's context"),
            (caches, "caches"),
        ];
        let all = parts.iter().fold(0, |all: u64, (bytes, _)| all.saturating_add(*bytes));
        (all, parts.into_iter().filter(|(bytes, what)| *bytes > 0 || *what == "caches").collect())
    }

    /// Bytes of caches on the devices; none where layers are on the host, with their weights.
    fn held(&self, predicted: &EnginePrediction) -> Option<u64> {
        match self.cells {
            Some(cells) if cells.with_weights => None,
            Some(_) => Some(0),
            None => {
                let parts = [predicted.kv_bytes, predicted.state_bytes].into_iter().flatten();
                Some(parts.fold(0, u64::saturating_add))
            }
        }
    }

    /// What is left for caches beside weights and steps; all there is where they lie elsewhere, or no device is named.
    pub(crate) fn for_caches(&self, predicted: &EnginePrediction, context: Option<&LedgerLine>) -> u64 {
        let (Some(_), Some(room)) = (self.held(predicted).filter(|bytes| *bytes > 0), self.room) else {
            return u64::MAX;
        };
        // As much as it may be, so that what it is told lies on the devices surely.
        let [_, _, beside] = self.beside(predicted, context);
        room.saturating_sub(self.parts(2, beside, 0).0)
    }

    /// Why the devices do not hold that, where their memory is known: with what it may need at least, and at most.
    pub(crate) fn lacks(&self, predicted: &EnginePrediction, context: Option<&LedgerLine>) -> [Option<String>; 2] {
        let (Some(caches), Some(room)) = (self.held(predicted), self.room) else { return [None, None] };
        let beside = self.beside(predicted, context);
        [0, 2].map(|at| {
            let (needed, parts) = self.parts(at, beside[at], caches);
            let parts: Vec<String> =
                parts.into_iter().map(|(bytes, what)| format!("{} of {what}", ByteSize(bytes))).collect();
            let parts = parts.join(" and ");
            let does = match self.device {
                _ if !self.short.fails() => "layers stay on the host".to_owned(),
                // A HIP build has the words of the CUDA one.
                "CUDA0" | "ROCm0" => "cudaMalloc failed: out of memory".to_owned(),
                device => format!("failed to allocate {device} buffer"),
            };
            let filled = if self.split.most > 1 { ", each filled by its share" } else { "" };
            let room = ByteSize(room);
            (needed > room.0).then(|| format!("{does}: {parts} are more than the {room} of the devices{filled}"))
        })
    }

    /// A line with the name of the devices that are meant in place of an NVIDIA GPU's.
    pub(crate) fn named(&self, line: &str) -> String {
        line.replace(NVIDIA, self.device)
    }

    /// The lines of the cells, one for each cache and each place in which it lies; as it is where nobody knows the parts. Layers without a
    /// window have `full` of the bytes, where others have one.
    pub(crate) fn lines(&self, line: String, bytes: u64, full: Option<u64>) -> Vec<String> {
        if !line.contains(ON_DEVICE) {
            return vec![line];
        }
        let mib = |bytes: u64| format!("{:.2} MiB", bytes as f64 / f64::from(1 << 20));
        let said = |device: &str, bytes: u64| format!("llama_kv_cache: {device} KV buffer size = {}", mib(bytes));
        match (self.cells, full) {
            (Some(Offloaded { on, all, alike, .. }), _) if on == 0 || alike => {
                let part = |layers: u64| u64::try_from(u128::from(bytes) * u128::from(layers) / u128::from(all.max(1)));
                let part =
                    |device: &str, layers: u64| (layers > 0).then(|| said(device, part(layers).unwrap_or(bytes)));
                [part("CPU", all - on), part(NVIDIA, on)].into_iter().flatten().collect()
            }
            (None, Some(full)) => vec![said(NVIDIA, full), said(NVIDIA, bytes.saturating_sub(full))],
            _ => vec![line],
        }
    }
}

const ON_DEVICE: &str = "CUDA0 KV buffer size";
/// The first device of NVIDIA's, which is taken where nobody says whose it is.
const NVIDIA: &str = "CUDA0";
/// In b7921, and not in b7845 (ggml-org/llama.cpp#18919): devices of Metal are counted.
const COUNTS_METAL: Version = Version(7921, 0, 0);

/// The first device as its backend calls it.
fn device(question: &Question) -> &'static str {
    match question.device().and_then(|device| device.name.split(' ').next()) {
        Some("Apple") if question.engine.version < COUNTS_METAL => "Metal",
        Some("Apple") => "MTL0",
        Some("AMD") => "ROCm0",
        _ => NVIDIA,
    }
}
