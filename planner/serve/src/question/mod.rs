//! What a command asks: the engine, the model, and the budget that its flags state.

mod above;
mod blocks;
mod calibrated;
mod connectors;
mod limits;
mod llama_cpp;
mod moved;
mod overrides;
mod placed;
mod quantization;
mod radix;
mod read;
mod rules;
mod settled;
mod sglang;
mod speculation;
mod speculative;
mod spread;
pub(crate) mod tensorrt_llm;
mod vllm;

use std::collections::BTreeMap;

use cacheplan_handlers::DType;
use cacheplan_planner::budget::Origin;
use cacheplan_planner::device::BadDevice;
use cacheplan_planner::logs::Logged;
use cacheplan_planner::{Devices, EngineSpec, MeasuredLedger, ModelCaches, Override};
use cacheplan_transforms::{Model, WeightBytes};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::dynamo;
use crate::error::ServeError;
use crate::flags::parse::{Parsed, Setting};
use crate::flags::python::float;
use crate::flags::table::{Flag, flags, is_read};
use crate::launch::Launch;
use crate::part;
use crate::program::Program;
use crate::remedy::Remedy;
use crate::said::Said;
use crate::visible;

pub use limits::Limits;
pub(crate) use llama_cpp::ubatch;
pub(crate) use placed::{Held, Placed, Short};
pub(crate) use settled::Settled;
pub(crate) use sglang::{running, slots_with_moved};

/// What a command leaves to whoever asks about it.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The engine's version, such as `0.33.0`; its image's, or the newest that is modelled, where absent.
    pub version: Option<String>,
    /// The devices that it runs on; those of the launch where absent.
    pub devices: Option<Devices>,
    /// Bytes that the engine has for its caches, where they are known, such as from its log.
    pub cache_bytes: Option<Logged>,
    /// Keys of the budget that stand above the command's, such as `engine.cache_bytes`: those that no command line says.
    pub overrides: Vec<Override>,
    /// What an engine logged of its memory, in place of assumptions.
    pub measured: Option<MeasuredLedger>,
    /// Whether the model is given otherwise than by the name in the command, which need not be one that can be found.
    pub model_is_given: bool,
    /// Sequences that it is expected to hold, at which changes aim.
    pub expected_sequences: Option<u64>,
}

/// The models that a command names, read.
#[derive(Clone, Debug)]
pub struct Models {
    /// The one that is served.
    pub model: ModelCaches,
    /// The one that drafts.
    pub draft: Option<ModelCaches>,
}

impl From<Model> for Models {
    fn from(model: Model) -> Self {
        Self { model: model.into(), draft: None }
    }
}

/// What a flag of the command was read as.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ReadFlag {
    /// The flag's long name.
    pub flag: String,
    /// Its value; hidden where it is a secret.
    pub value: String,
    /// What it says: a key of the budget, or in words.
    pub says: String,
}

/// What a command asks, before its model is read.
#[derive(Clone, Debug)]
pub struct Question {
    /// The engine that it starts.
    pub engine: EngineSpec,
    /// The model, as the hub or a disk knows it, `org/name@revision`.
    pub model: String,
    /// The model that drafts, where one is named.
    pub draft: Option<String>,
    /// What its flags were read as.
    pub read: Vec<ReadFlag>,
    /// What to know of the answer.
    pub notes: Vec<String>,
    /// What the answer hangs on that the command leaves open, or says otherwise than it may be meant.
    pub(crate) cautions: Vec<String>,
    /// Its type, once it is read.
    model_type: String,
    pub(crate) parsed: Parsed,
    pub(crate) env: BTreeMap<String, String>,
    /// Options of TensorRT-LLM's file, of which some are looked at with the model.
    config: Vec<(String, String)>,
    devices: Option<Devices>,
    /// Why the device that a manifest names is none that is known.
    unknown_device: Option<BadDevice>,
    /// GPUs that its process sees, where that is known.
    gpus: Option<u32>,
    /// Those of all pods of its group, where that is known.
    group_gpus: Option<u64>,
    stated: Vec<Override>,
    above: Vec<Override>,
    measured: Option<MeasuredLedger>,
    /// What the weights take as the engine quantises them, or as they are stated of an engine that is told no budget.
    weights: Option<WeightBytes>,
    /// Whether those of the files are on a device before it quantises them.
    loads_in_full: bool,
    model_is_given: bool,
    /// Whether its share of a device leaves as much as SGLang itself leaves for steps and graphs.
    leaves_room: bool,
    /// Tokens that a slot of llama.cpp takes, where they are fewer than its cells.
    pub(crate) slot_tokens: Option<u64>,
    knows_bytes: bool,
    /// Those that a device has for caches at least; 0 where nobody says.
    cache_bytes: u64,
}

/// A value of a key as a budget takes it: bytes by themselves are a number to the engine, and none without a unit to a budget.
fn in_bytes(path: &str, value: String) -> String {
    let is_number = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
    if path == "engine.cache_bytes" && is_number { value + "B" } else { value }
}

impl Question {
    /// Reads the words of a command.
    ///
    /// # Errors
    /// Words that start no engine, that its parser refuses, or that say what nobody read.
    pub fn of(launch: &Launch, options: &Options) -> Result<Self, ServeError> {
        let program = Program::of(launch, options.version.as_deref())?;
        let Program { engine, start, .. } = program;
        let env = launch.env.clone();
        if engine.engine.name() == "tensorrt-llm" {
            tensorrt_llm::refuse_subcommand(&launch.words, start)?;
        }
        let known = flags(engine.engine, engine.version);
        dynamo::refuse_prefill(&launch.words, start, engine)?;
        let Said { words, parsed, above, stated, beside } = Said::of(launch, &program, &known)?;
        let config = launch.config.iter().cloned().chain(above).collect();
        part::refuse_whole(launch, options.devices.as_ref())?;
        let named = launch.device.as_deref().map(str::parse::<Devices>);
        let (devices, unknown_device) = match (options.devices.clone(), named) {
            (Some(devices), _) => (Some(devices), None),
            (None, Some(Ok(devices))) => match launch.gpus {
                // Of the node's devices the container sees those that it asks for.
                Some(_) => (Some(devices.device().clone().into()), None),
                None => (Some(devices), None),
            },
            (None, Some(Err(unknown))) => (None, Some(unknown)),
            (None, None) => (None, None),
        };
        part::refuse_other_build(launch, devices.as_ref())?;
        // One device is a kind of device, whatever their number.
        let counted = devices.as_ref().map(Devices::count).filter(|count| *count > 1);
        let nodes = launch.nodes.unwrap_or(1).max(1);
        // Each node sees its own.
        let there = counted.into_iter().chain(launch.gpus.map(|gpus| gpus / nodes)).min();
        let seen = visible::seen(&env, devices.as_ref().map(Devices::device), there);
        let gpus = seen.map(|seen| seen.saturating_mul(nodes));
        let unopened = launch.config_note();
        let mut question = Self {
            engine,
            model: String::new(),
            draft: None,
            read: Vec::new(),
            notes: Vec::new(),
            cautions: Vec::new(),
            model_type: String::new(),
            parsed,
            env,
            config,
            devices,
            unknown_device,
            gpus,
            group_gpus: launch.group_gpus.map(u64::from),
            stated,
            above: options.overrides.clone(),
            measured: options.measured.clone(),
            weights: None,
            loads_in_full: false,
            model_is_given: options.model_is_given,
            leaves_room: false,
            slot_tokens: None,
            knows_bytes: options.cache_bytes.is_some(),
            cache_bytes: options.cache_bytes.map_or(0, |bytes| bytes.low),
        };
        let unread = launch.cautions.iter().cloned().chain(launch.cut_note()).chain(unopened.clone());
        question.cautions.extend(unread.chain(beside));
        if options.version.is_none() {
            question.cautions.extend(launch.wheel_note(engine));
            question.notes.extend(launch.image_note(engine));
        }
        question.notes.extend(part::other_device(launch, options.devices.as_ref()));
        let short = question.parsed.short.iter().map(|(written, whole)| format!("{written} is short for {whole}"));
        question.notes.extend(short.collect::<Vec<_>>());
        match engine.engine.name() {
            "vllm" => vllm::look_at_words(&question)?,
            "sglang" => {
                // A word too many is the parser's to refuse.
                question.read_model(&words, start)?;
                sglang::look_at_words(&question)?;
            }
            "llama.cpp" => llama_cpp::look_at_words(&question)?,
            _ => {}
        }
        question.read_flags()?;
        if let Some(file) = question.read.iter_mut().find(|flag| unopened.is_some() && flag.flag == "--config") {
            file.says = "a file that the engine does not open".to_owned();
        }
        question.read_model(&words, start)?;
        if !is_read(engine.engine, engine.version) && engine.engine.name() != "llama.cpp" {
            let said = engine.version_name();
            question.notes.push(format!("the parser of {said} was not read itself: flags are those of its neighbours"));
        }
        Ok(question)
    }

    /// Whether somebody states this key.
    pub(crate) fn is_stated(&self, key: &str) -> bool {
        let knows = key == "engine.cache_bytes" && self.knows_bytes;
        knows || self.stated.iter().chain(&self.above).any(|stated| stated.key == key)
    }

    /// States a key of the budget by a flag.
    pub(crate) fn state(&mut self, path: &'static str, value: String, flag: &Flag) -> String {
        let value = in_bytes(path, value);
        let says = format!("{path} = {value}");
        self.stated.push(Override::by_flag(path, value, flag.name));
        says
    }

    /// States a key that no flag of the command does: the engine's default.
    fn default_of(&mut self, path: &'static str, value: impl std::fmt::Display) {
        if !self.is_stated(path) {
            let origin = Origin::Engine(self.engine.engine.to_string());
            self.stated.push(Override { key: path.into(), value: value.to_string(), origin });
        }
    }

    /// The share of a device for weights and caches, in millionths; one that is less leaves as little as one.
    fn share_of_device(&mut self, share: f64) {
        self.default_of("memory.fraction", (share * 1e6).round().max(1.0) / 1e6);
    }

    /// The same in place of what flags of the command say of the key.
    fn put(&mut self, path: &'static str, value: impl std::fmt::Display) {
        self.stated.retain(|stated| stated.key != path);
        self.default_of(path, value);
    }

    /// Whether this version has the flag.
    pub(crate) fn has_flag(&self, name: &str) -> bool {
        flags(self.engine.engine, self.engine.version).iter().any(|flag| flag.name == name)
    }

    /// Slots for states that a request takes in SGLang.
    pub(crate) fn slots_per_request(&self) -> Option<u64> {
        let said = |key: &str| self.stated.iter().rev().find(|stated| stated.key == key).map(|stated| &*stated.value);
        let each = said("engine.slots_per_request").and_then(|each| each.parse().ok());
        let keeps = said("engine.prefix_caching") == Some("true");
        each.or_else(|| self.engine.slots_per_request(&self.model_type, keeps))
    }

    /// Whether prefixes are kept, as far as it is settled.
    fn keeps_prefixes(&self) -> bool {
        let said = self.stated.iter().rev().find(|stated| stated.key == "engine.prefix_caching");
        said.is_none_or(|said| said.value != "false")
    }

    /// The flag as it was stated.
    pub(crate) fn flag(&self, name: &str) -> Option<&Setting> {
        self.parsed.settings.get(name)
    }

    /// The word that a flag states.
    pub(crate) fn value(&self, name: &str) -> Option<&str> {
        self.flag(name).map(Setting::value)
    }

    /// Whether a switch is on.
    pub(crate) fn is_on(&self, name: &str) -> bool {
        self.flag(name).is_some_and(|setting| setting.on)
    }

    /// The JSON object that a flag states.
    pub(crate) fn object(&self, flag: &'static str) -> Result<Option<Map<String, Value>>, ServeError> {
        let Some(setting) = self.flag(flag) else { return Ok(None) };
        match serde_json::from_str(setting.value()) {
            Ok(Value::Object(object)) => Ok(Some(object)),
            _ => Err(self.refused(format!("argument {flag}: a JSON object was expected"), [Remedy::Remove(flag)])),
        }
    }

    /// A whole number that a flag states; of flags that may not be negative.
    pub(crate) fn count(&self, name: &str) -> Option<u64> {
        self.flag(name).and_then(Setting::whole).and_then(|number| u64::try_from(number).ok())
    }

    /// A number that a flag states, as Python reads it.
    pub(crate) fn share(&self, name: &str) -> Option<f64> {
        self.flag(name).and_then(|setting| float(setting.value()))
    }

    /// The default of a flag in this version, where its parser has one.
    pub(crate) fn default(&self, name: &str) -> Option<&'static str> {
        flags(self.engine.engine, self.engine.version).into_iter().find(|flag| flag.name == name)?.default
    }

    /// What the engine says before it ends.
    pub(crate) fn refused(&self, said: impl Into<String>, remedies: impl IntoIterator<Item = Remedy>) -> ServeError {
        ServeError::Engine { engine: self.engine.engine, said: said.into(), remedies: remedies.into_iter().collect() }
    }

    /// The flag that states how many sequences run at once of those that it takes.
    pub(crate) fn running_flag(engine: &str) -> &'static str {
        if engine == "sglang" { sglang::MICRO_BATCH } else { vllm::ACTIVE }
    }

    /// The most sequences of all replicas at once, where the command states them.
    pub fn stated_sequences(&self) -> Option<u64> {
        let stated = self.count(self.engine.engine.sequences_flag())?;
        Some(stated.saturating_mul(self.whole_replicas()))
    }

    pub(crate) fn is_on_amd(&self) -> bool {
        self.device().is_some_and(|device| device.maker() == Some("AMD"))
    }

    /// Replicas of the attention alone, among which SGLang divides the sequences and states that it is told of; 1 of all others.
    pub(crate) fn attention_replicas(&self) -> u64 {
        sglang::stated_attention_replicas(self).1
    }

    /// Replicas that each have as many sequences as the command states; 1 of those that divide them.
    pub(crate) fn whole_replicas(&self) -> u64 {
        let replicas = cacheplan_planner::Config::parallel(&self.stated).map_or(1, |parallel| parallel.dp);
        if self.attention_replicas() > 1 { 1 } else { replicas.max(1).into() }
    }

    /// GPUs that its process sees: those that are named, where nothing else says how many.
    pub(crate) fn seen(&self) -> Option<u32> {
        self.gpus.or(self.devices.as_ref().map(Devices::count))
    }

    /// The same of an engine that is not told to run on the processor.
    fn gpus(&self) -> Option<u64> {
        self.gpus.map(u64::from).filter(|_| self.value("--device") != Some("cpu"))
    }

    pub(crate) fn device(&self) -> Option<&cacheplan_planner::DeviceInfo> {
        self.devices.as_ref().map(Devices::device)
    }

    /// Nothing says how long sequences may be.
    fn without_length(&self, flag: &'static str) -> ServeError {
        let said = format!("the model states no longest sequence; state {flag}");
        self.refused(said, [Remedy::Set(flag, "4096".into())])
    }

    /// Nothing says how many bytes there are.
    pub(crate) fn without_device(&self) -> ServeError {
        self.unknown_device.clone().map_or(ServeError::NoDevice, ServeError::Device)
    }
}

/// The dtype that `--dtype` names of vLLM and of SGLang; none where it leaves that to the model.
fn dtype_named(word: &str) -> Option<DType> {
    match word {
        "auto" => None,
        "half" | "float16" => Some(DType::F16),
        "bfloat16" => Some(DType::Bf16),
        _ => Some(DType::F32),
    }
}

/// The attention heads of each layer.
const HEADS: &str = "num_attention_heads";

/// A number of the model, as its config states it.
fn of_config(model: &ModelCaches, key: &str) -> Option<u64> {
    model.model()?.config.get(key)?.as_u64()
}
