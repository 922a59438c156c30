//! What a command asks: the engine, the model, and the budget that its flags state.

mod above;
mod calibrated;
mod connectors;
mod llama_cpp;
mod overrides;
mod placed;
mod quantization;
mod radix;
mod rules;
mod sglang;
mod speculation;
mod tensorrt_llm;
mod vllm;

use std::collections::BTreeMap;
use std::sync::Arc;

use cacheplan_handlers::{DType, Kind as CacheKind, ResourceHandler};
use cacheplan_planner::device::BadDevice;
use cacheplan_planner::engines::FlagMeaning;
use cacheplan_planner::logs::Logged;
use cacheplan_planner::plan::LedgerItem;
use cacheplan_planner::{
    Config, Devices, EngineSpec, MeasuredLedger, Memory, ModelCaches, Override, PlanError, PlanRequest, Stated,
};
use cacheplan_transforms::{Model, Resources, WeightBytes};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::dynamo::{self, Rewritten};
use crate::error::ServeError;
use crate::flags::meaning::{Meaning, meaning};
use crate::flags::parse::{Parsed, Setting, parse, program};
use crate::flags::python::float;
use crate::flags::table::{Arity, Flag, Kind, flags, is_read};
use crate::flags::values::is_auto;
use crate::launch::Launch;
use crate::part;
use crate::program::Program;
use crate::remedy::Remedy;
use crate::secret;

pub(crate) use llama_cpp::ubatch;
pub(crate) use placed::{Placed, Short};

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
    /// GPUs that there are, where a launch says it.
    gpus: Option<u32>,
    stated: Vec<Override>,
    above: Vec<Override>,
    measured: Option<MeasuredLedger>,
    /// What the weights take as the engine quantises them, or as they are stated of an engine that is told no budget.
    weights: Option<WeightBytes>,
    model_is_given: bool,
    /// Tokens that a slot of llama.cpp takes, where they are fewer than its cells.
    pub(crate) slot_tokens: Option<u64>,
    knows_bytes: bool,
    /// Those that a device has for caches at least; 0 where nobody says.
    cache_bytes: u64,
}

/// What the engine makes of the question once the model is known.
pub(crate) struct Settled {
    pub(crate) request: PlanRequest,
    /// As the engine's log says them.
    pub(crate) limits: Limits,
    /// vLLM finds the longest sequence that fits.
    pub(crate) fits_length: bool,
    /// Blocks that there are at least, of a model with states, where it starts.
    pub(crate) least_blocks: u64,
    /// Bytes that weights leave of a device, where the command states what caches take of it, which no profile limits.
    pub(crate) room: Option<u64>,
    /// What llama.cpp needs on its devices, and does where they do not hold it.
    pub(crate) placed: Option<Placed>,
    /// What SGLang needs of a device beside its share for weights and caches.
    pub(crate) outside: Option<sglang::Outside>,
}

/// The limits that an engine starts with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Limits {
    /// The longest sequence, in tokens.
    pub max_seq_len: u64,
    /// The most sequences in a step, where it has such a limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_batch_size: Option<u64>,
    /// The most tokens in a step.
    pub max_num_tokens: u64,
}

impl Question {
    /// Reads the words of a command.
    ///
    /// # Errors
    /// Words that start no engine, that its parser refuses, or that say what nobody read.
    pub fn of(launch: &Launch, options: &Options) -> Result<Self, ServeError> {
        let Program { engine, start } = Program::of(launch, options.version.as_deref())?;
        let env = launch.env.clone();
        let known = flags(engine.engine, engine.version);
        let Rewritten { mut words, options: above } = dynamo::rewritten(&launch.words, start, &known)?;
        // In front, so that what the command says itself wins.
        let (config, mut stated) = tensorrt_llm::settings(&launch.config, engine.engine, &known)?;
        words.splice(start..start, config);
        let (config, more) = tensorrt_llm::settings(&above, engine.engine, &known)?;
        words.extend(config);
        stated.extend(more);
        let config = launch.config.iter().cloned().chain(above).collect();
        let parsed = parse(engine, &words, start, &env)?;
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
            gpus: launch.gpus.into_iter().chain(visible(&launch.env)).min(),
            stated,
            above: options.overrides.clone(),
            measured: options.measured.clone(),
            weights: None,
            model_is_given: options.model_is_given,
            slot_tokens: None,
            knows_bytes: options.cache_bytes.is_some(),
            cache_bytes: options.cache_bytes.map_or(0, |bytes| bytes.low),
        };
        question.notes.extend(launch.image_note(engine).filter(|_| options.version.is_none()));
        match engine.engine.name() {
            "vllm" => vllm::look_at_words(&question)?,
            "llama.cpp" => llama_cpp::look_at_words(&question)?,
            _ => {}
        }
        question.read_flags()?;
        question.read_model(&words, start)?;
        if !is_read(engine.engine, engine.version) && engine.engine.name() != "llama.cpp" {
            let said = engine.version_name();
            question.notes.push(format!("the parser of {said} was not read itself: flags are those of its neighbours"));
        }
        Ok(question)
    }

    /// What the flags say, one by one.
    fn read_flags(&mut self) -> Result<(), ServeError> {
        let settings: Vec<Setting> = self.parsed.settings.values().cloned().collect();
        let mut profiled = Vec::new();
        for setting in settings {
            let flag = setting.flag;
            let value = secret::hidden_value(flag.name, &setting.values.join(" ")).to_owned();
            let meaning = meaning(self.engine.engine, flag);
            if !matches!(meaning, Meaning::None | Meaning::Profiled) {
                self.refuse_negative(&setting)?;
            }
            let says = match meaning {
                _ if self.states_default(&setting) => "its default".to_owned(),
                Meaning::None => "no cache depends on it".to_owned(),
                Meaning::Profiled => {
                    profiled.push(flag.name);
                    "what is measured beside caches".to_owned()
                }
                Meaning::Weights => {
                    self.needs_weights(flag)?;
                    "what weights take".to_owned()
                }
                Meaning::Model | Meaning::Revision => "the model".to_owned(),
                Meaning::Own => {
                    // As its parser understands it: 16k is 16000 of vLLM's.
                    let number = setting.whole().filter(|number| *number >= 0 && flag.kind != Kind::Text);
                    let number = number.map(|number| number.to_string()).filter(|number| *number != value);
                    // `stoi` stops at the first sign that is no digit.
                    let is_cut = flag.kind == Kind::CInt && !value.ends_with(|last: char| last.is_ascii_digit());
                    if let Some(number) = number.as_ref().filter(|_| is_cut) {
                        self.cautions.push(format!("{} {value} is {number} to its parser", flag.name));
                    }
                    let number = number.map(|number| number + ", ").unwrap_or_default();
                    format!("{number}read by the engine's own rule")
                }
                Meaning::Key(path) => self.state(path, number(&setting), flag),
                Meaning::Planner(FlagMeaning::Key(path)) => self.state(path, number(&setting), flag),
                Meaning::Planner(FlagMeaning::NotKey(path)) => self.state(path, (!setting.on).to_string(), flag),
                Meaning::Planner(FlagMeaning::DType { path, own, names }) => {
                    let word = setting.value();
                    let known = names.iter().find(|(_, name, _)| *name == word).map(|(dtype, ..)| *dtype);
                    let known = known
                        .or_else(|| word.parse().ok().filter(|dtype: &DType| names.iter().any(|(of, ..)| of == dtype)));
                    match known {
                        Some(dtype) => self.state(path, format!("\"{dtype}\""), flag),
                        None if own == Some(word) => "the model's own".to_owned(),
                        None => return Err(unread_value(flag, word, own)),
                    }
                }
                Meaning::Unread(_) if !setting.on => "left off".to_owned(),
                Meaning::Unread(why) => return Err(unread(flag, why)),
                Meaning::Planner(_) => return Err(unread(flag, "nobody read what it does to caches")),
            };
            let shown = if setting.on { flag.name } else { flag.negated.first().copied().unwrap_or(flag.name) };
            self.read.push(ReadFlag { flag: shown.into(), value, says });
        }
        if !profiled.is_empty() {
            self.notes.push(format!(
                "{} change what is measured beside caches, of which the bytes are not known exactly",
                profiled.join(", ")
            ));
        }
        Ok(())
    }

    /// Tokens of a step as its log says them; none where it is told not to cut prompts, and says no number of them.
    pub(crate) fn logged_step(&self, limits: &Limits) -> Option<u64> {
        match self.engine.engine.name() {
            "vllm" if !vllm::cuts_prompts(self) => None,
            "sglang" => match self.flag(sglang::CHUNK).and_then(Setting::whole) {
                Some(stated) if stated <= 0 => u64::try_from(stated).ok(),
                _ => Some(limits.max_num_tokens),
            },
            _ => Some(limits.max_num_tokens),
        }
    }

    /// Whether a flag says what holds without it; what llama.cpp's parser takes without them is in no table.
    fn states_default(&self, setting: &Setting) -> bool {
        /// What engines decide where nobody says, and what is on.
        const DECIDED: [&str; 3] = ["--enable-prefix-caching", "--async-scheduling", "--enable-chunked-prefill"];
        let flag = setting.flag;
        let unsaid = self.engine.engine.name() != "llama.cpp";
        let is_off = flag.values == Arity::Exactly(0)
            && !setting.on
            && flag.default.map_or(unsaid, |default| default == "false");
        let is_default = !setting.values.is_empty() && flag.default == Some(setting.value());
        (is_off && !DECIDED.contains(&flag.name)) || is_default
    }

    /// What changes weights is answered only beside bytes that are stated.
    fn needs_weights(&self, flag: &'static Flag) -> Result<(), ServeError> {
        if self.is_stated("memory.weights") || self.is_stated("engine.cache_bytes") {
            return Ok(());
        }
        // vLLM and SGLang refuse another quantisation than the files have, so that naming theirs changes nothing; that is looked at with the
        // model.
        if flag.name == "--quantization" {
            return Ok(());
        }
        Err(ServeError::weights_unknown(flag.name, Remedy::Remove(flag.name)))
    }

    /// Whether somebody states this key.
    pub(crate) fn is_stated(&self, key: &str) -> bool {
        let knows = key == "engine.cache_bytes" && self.knows_bytes;
        knows || self.stated.iter().chain(&self.above).any(|stated| stated.key == key)
    }

    /// States a key of the budget by a flag.
    pub(crate) fn state(&mut self, path: &'static str, value: String, flag: &Flag) -> String {
        let says = format!("{path} = {value}");
        self.stated.push(Override::by_flag(path, value, flag.name));
        says
    }

    /// States a key that no flag of the command does: the engine's default.
    fn default_of(&mut self, path: &'static str, value: impl std::fmt::Display) {
        if !self.is_stated(path) {
            let by = format!("{}'s default", self.engine.engine);
            self.stated.push(Override::by_flag(path, value.to_string(), by));
        }
    }

    /// The same in place of what flags of the command say of the key.
    fn put(&mut self, path: &'static str, value: impl std::fmt::Display) {
        self.stated.retain(|stated| stated.key != path);
        self.default_of(path, value);
    }

    fn read_model(&mut self, all: &[String], start: usize) -> Result<(), ServeError> {
        let engine = self.engine.engine.name();
        let by_word = match engine {
            // `_normalize_positional_model_path`, which `launch_server` has not.
            "sglang" => {
                all[..start].ends_with(&["serve".to_owned()])
                    && self.parsed.positional.first().is_some_and(|(at, _)| *at == start)
            }
            engine => matches!(engine, "vllm" | "tensorrt-llm"),
        };
        let program = program(self.engine.engine);
        let mut words = self.parsed.positional.iter().cloned();
        // vLLM's parser takes `--model` for the word, so that another word is one too many.
        let by_word = by_word && !(engine == "vllm" && self.parsed.settings.contains_key("--model"));
        let mut model = if by_word { words.next().map(|(_, word)| word) } else { None };
        if let Some((at, stray)) = words.next() {
            let said = format!("error: unrecognized arguments: {}", secret::hidden(all)[at]);
            return Err(ServeError::Parser { program, said, remedies: vec![Remedy::Drop(stray)] });
        }
        let named = |name: &str| self.parsed.settings.get(name).map(|setting| setting.value().to_owned());
        let by_flag = match engine {
            "vllm" => named("--model"),
            "sglang" => named("--model-path"),
            "llama.cpp" => llama_cpp::model(self)?,
            _ => None,
        };
        model = by_flag.or(model);
        let flag = match engine {
            "vllm" | "tensorrt-llm" => "it behind `serve`, or with --model",
            "sglang" => "--model-path",
            _ => "--model FILE, or --hf-repo with --hf-file",
        };
        let model = model.filter(|model| !model.is_empty()).ok_or(ServeError::NoModel { program, flag })?;
        self.model = match named("--revision") {
            Some(revision) if !model.contains('@') => format!("{model}@{revision}"),
            _ => model,
        };
        self.draft = match engine {
            "vllm" => speculation::draft(self)?,
            "sglang" => named("--speculative-draft-model-path"),
            "llama.cpp" => named("--model-draft"),
            _ => None,
        };
        Ok(())
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

    /// Refuses a flag that counts something and says less than nothing.
    fn refuse_negative(&self, setting: &Setting) -> Result<(), ServeError> {
        // llama.cpp counts without a sign what its parser took with one; -1 is a word of vLLM's for the longest that fits, and
        // of SGLang's for prompts that are not cut.
        let flag = setting.flag;
        let is_word = flag.name == sglang::CHUNK || flag.kind == Kind::HumanIntOrAuto && is_auto(setting.value());
        let counts = !matches!(flag.kind, Kind::CInt | Kind::Text | Kind::Json | Kind::Switch) && !is_word;
        match setting.whole().filter(|number| counts && *number < 0) {
            Some(number) => {
                let said = format!("{} must not be negative (it is {number})", flag.name);
                Err(self.refused(said, [Remedy::Remove(flag.name)]))
            }
            None => Ok(()),
        }
    }

    /// The default of a flag in this version, where its parser has one.
    pub(crate) fn default(&self, name: &str) -> Option<&'static str> {
        flags(self.engine.engine, self.engine.version).into_iter().find(|flag| flag.name == name)?.default
    }

    /// What the engine says before it ends.
    pub(crate) fn refused(&self, said: impl Into<String>, remedies: impl IntoIterator<Item = Remedy>) -> ServeError {
        ServeError::Engine { engine: self.engine.engine, said: said.into(), remedies: remedies.into_iter().collect() }
    }

    /// What the engine says of a count that is stated too small, with the flags of counts as what may be left out.
    pub(crate) fn without_counts(&self, error: ServeError) -> ServeError {
        const COUNTS: [&str; 4] =
            ["--max-total-tokens", "--num-gpu-blocks-override", "--max-mamba-cache-size", "--swa-full-tokens-ratio"];
        match error {
            ServeError::Plan(PlanError::TooFew { said, .. }) => {
                let stated = COUNTS.into_iter().filter(|flag| self.flag(flag).is_some());
                self.refused(said, stated.map(Remedy::Remove).collect::<Vec<_>>())
            }
            error => error,
        }
    }

    /// The limits that the engine starts with for the model, and all that the command says as a question to the planner.
    ///
    /// # Errors
    /// What the engine refuses of the model.
    pub fn request(&self, models: &Models) -> Result<(Limits, PlanRequest), ServeError> {
        let (_, settled) = self.clone().settled(models)?;
        Ok((settled.limits, settled.request))
    }

    /// The most sequences at once, where the command states them.
    pub fn stated_sequences(&self) -> Option<u64> {
        self.count(self.engine.engine.sequences_flag())
    }

    /// Refuses more tokens of a sequence, or more sequences, than the command states itself; each by the flag of whoever asks.
    ///
    /// # Errors
    /// The first that is above the command's own, with the engine's flag for it.
    pub fn refuse_beyond(&self, tokens: (&str, Option<u64>), sequences: (&str, Option<u64>)) -> Result<(), ServeError> {
        let engine = self.engine.engine;
        for ((flag, asked), own) in [(tokens, engine.length_flag()), (sequences, engine.sequences_flag())] {
            if let (Some(asked), Some(stated)) = (asked, self.count(own).filter(|stated| *stated > 0))
                && asked > stated
            {
                let why = format!("{asked} is above what the command states itself: {own} {stated}");
                return Err(ServeError::Unconsumed { flag: flag.to_owned(), why });
            }
        }
        Ok(())
    }

    /// What the engine makes of it for a model.
    pub(crate) fn settled(mut self, Models { model, draft }: &Models) -> Result<(Self, Settled), ServeError> {
        let settle = match self.engine.engine.name() {
            "vllm" => vllm::settle,
            "sglang" => sglang::settle,
            "tensorrt-llm" => tensorrt_llm::settle,
            _ => llama_cpp::settle,
        };
        self.model_type.clone_from(&model.info().model_type);
        let (limits, fits_length) = settle(&mut self, model)?;
        above::refuse_unconsumed(&self)?;
        let engine = self.engine.engine.name();
        let placed = if engine == "llama.cpp" { Some(placed::placed(&mut self, model)?) } else { None };
        let outside = if engine == "sglang" { sglang::beside_share(&mut self)? } else { Memory::default() };
        self.leave_out_dtypes(model)?;
        self.refuse_layout()?;
        let config = Config::resolve(None, &self.stated, &self.above)?;
        let model = self.weights.map_or_else(|| model.clone(), |weights| model.with_weights(weights));
        let mut request = PlanRequest::of(model).with_config(config).for_engine(self.engine).stated_in(Stated::Command);
        request = self.devices.iter().cloned().fold(request, PlanRequest::with_devices);
        let as_run =
            |draft: &ModelCaches| if engine == "vllm" { vllm::as_run(&self, draft) } else { Ok(draft.clone()) };
        request =
            draft.iter().map(as_run).collect::<Result<Vec<_>, _>>()?.into_iter().fold(request, PlanRequest::with_draft);
        request = self.measured.iter().cloned().fold(request, PlanRequest::with_measured);
        let outside = if engine == "sglang" { sglang::outside(&self, &request, &outside)? } else { None };
        let least_blocks = if engine == "vllm" { vllm::look_at_caches(&mut self, &request, &limits)? } else { 0 };
        let states = |key: &str| self.stated.iter().any(|stated| stated.key == key);
        let limitless = states("engine.num_blocks") || states("engine.cache_bytes");
        let room = if limitless { self.room(&request)? } else { None };
        Ok((self, Settled { request, limits, fits_length, least_blocks, room, placed, outside }))
    }

    /// Engines refuse the division over ranks that the planner has none of, in words of their own.
    fn refuse_layout(&self) -> Result<(), ServeError> {
        let parallel = Config::parallel(&self.stated)?;
        let stated = self.parsed.settings.values().map(|setting| setting.flag);
        let divides = stated.filter(|flag| match meaning(self.engine.engine, flag) {
            Meaning::Key(path) | Meaning::Planner(FlagMeaning::Key(path)) => path.starts_with("parallel."),
            _ => false,
        });
        let remedies: Vec<Remedy> = divides.map(|flag| Remedy::Remove(flag.name)).collect();
        parallel.validate().map_err(|said| self.refused(said, remedies))
    }

    /// What weights leave of a device.
    fn room(&self, request: &PlanRequest) -> Result<Option<u64>, ServeError> {
        let Some(device) = self.device() else { return Ok(None) };
        let lines = request.beside_caches(self.engine)?;
        let weights = lines.iter().find(|line| line.name == LedgerItem::Weights);
        let least = weights.map_or(0, |line| line.bytes.saturating_sub(line.uncertain_bytes));
        Ok(Some(device.total_bytes.saturating_sub(least)))
    }

    /// The caches of the model as the engine keeps them.
    fn caches(&self, model: &ModelCaches) -> Result<Arc<Resources>, ServeError> {
        Ok(PlanRequest::of(model.clone()).for_engine(self.engine).caches()?)
    }

    /// An engine takes a dtype for states from whoever has none of them; what is asked of the planner leaves it out.
    fn leave_out_dtypes(&mut self, model: &ModelCaches) -> Result<(), ServeError> {
        let caches = self.caches(model)?;
        let any = |of: fn(&ResourceHandler) -> bool| caches.iter().any(|cache| of(&cache.handler));
        let has_convs = any(|handler| *handler.kind() == CacheKind::CausalConv);
        let has_states = any(|handler| handler.is_state() && *handler.kind() != CacheKind::CausalConv);
        let has_pages = any(|handler| !handler.is_state());
        let kept = [("dtypes.kv", has_pages), ("dtypes.ssm", has_states), ("dtypes.conv", has_convs)];
        self.stated.retain(|stated| !kept.iter().any(|(key, has)| stated.key == *key && !has));
        Ok(())
    }

    /// A variable that divides layers over pipeline stages otherwise than they are planned.
    pub(crate) fn refuse_partition(&self, variable: &'static str, stages: &str) -> Result<(), ServeError> {
        let several = self.count(stages).unwrap_or(1) > 1;
        if !several || !self.env.contains_key(variable) {
            return Ok(());
        }
        let why = "stages of other layers than the engine's own division gives are not planned".to_owned();
        Err(ServeError::NotHandled { flag: variable.into(), why, remedies: Vec::new() })
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

    /// Refuses ranks over which `whole` cannot be divided, such as the attention heads, in the engine's words.
    fn divides(
        &self,
        whole: Option<u64>,
        flag: &'static str,
        ranks: u64,
        said: impl Fn(u64) -> String,
    ) -> Result<(), ServeError> {
        let Some(whole) = whole.filter(|whole| !whole.is_multiple_of(ranks)) else { return Ok(()) };
        let fewer = (1..ranks.min(whole + 1)).rev().filter(|fewer| whole.is_multiple_of(*fewer)).take(3);
        Err(self.refused(said(whole), fewer.map(|fewer| Remedy::Set(flag, fewer.to_string()))))
    }

    /// States several devices as the ranks that the flags ask for, which the planner would else take for tensor parallel ones.
    pub(crate) fn use_devices(&mut self, ranks: u64) -> Result<(), ServeError> {
        let counted = self.devices.as_ref().map(Devices::count).filter(|count| *count > 1);
        // Ray's ranks are also those of other nodes, which see devices of their own.
        let ray = self.value("--distributed-executor-backend") == Some("ray");
        let there = counted.into_iter().chain(self.gpus.filter(|_| !ray)).min();
        if let Some(there) = there.map(u64::from).filter(|there| ranks > *there && !ray) {
            let said =
                format!("World size ({ranks}) is larger than the number of available GPUs ({there}) in this node.");
            let fewer = self.engine.engine.ranks_flag().map(|flag| Remedy::Set(flag, there.to_string()));
            return Err(self.refused(said, fewer));
        }
        if let (Some(there), Some(flag)) = (there, self.engine.engine.ranks_flag())
            && u64::from(there) > ranks
        {
            let uses = if ranks == 1 { "one".to_owned() } else { ranks.to_string() };
            self.notes.push(format!(
                "it uses {uses} of the {there} GPUs and leaves the others idle: {flag} says over how many"
            ));
        }
        self.devices = self.device().cloned().map(Devices::from);
        Ok(())
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

/// GPUs that `CUDA_VISIBLE_DEVICES` lets a process see, where it lists them.
fn visible(env: &BTreeMap<String, String>) -> Option<u32> {
    let listed = env.get("CUDA_VISIBLE_DEVICES").map(|value| value.trim()).filter(|value| !value.is_empty())?;
    let is_one = |name: &str| !name.trim().is_empty() && !name.trim().starts_with('-');
    u32::try_from(listed.split(',').take_while(|name| is_one(name)).count()).ok().filter(|count| *count > 0)
}

/// A value as the budget writes it.
fn number(setting: &Setting) -> String {
    let value = setting.value();
    match setting.flag.kind {
        Kind::Int | Kind::CInt | Kind::HumanInt | Kind::HumanIntOrAuto | Kind::SiInt => {
            setting.whole().map_or(value.to_owned(), |count| count.to_string())
        }
        Kind::Float => float(value).map_or(value.to_owned(), |number| format!("{number:?}")),
        _ => value.to_owned(),
    }
}

fn unread(flag: &'static Flag, why: &str) -> ServeError {
    ServeError::unread(flag.name, why, [Remedy::Remove(flag.name)])
}

fn unread_value(flag: &'static Flag, word: &str, own: Option<&'static str>) -> ServeError {
    let why = format!("caches in `{word}` were not read");
    let remedies = own.map(|own| Remedy::Set(flag.name, own.to_owned())).into_iter().chain([Remedy::Remove(flag.name)]);
    ServeError::unread(flag.name, why, remedies)
}
