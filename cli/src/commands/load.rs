//! Reading a model and a budget: the first half of every subcommand.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use cacheplan::files::{Limit, Source, SourceError};
use cacheplan::planner::Measured;
use cacheplan::planner::{
    Budget, BudgetError, ByteSize, CachePlan, Config, DeviceInfo, EngineSpec, ForwardProfile, Memory, Override,
    PlanRequest, RankPlans,
};
use cacheplan::runtime::SessionOptions;
use cacheplan::transforms::{
    Assumption, Collected, FrontendError, Graph, Model, ModelInfo, PassContext, ReadOptions, Resources,
};
use miette::{LabeledSpan, NamedSource, miette};

use crate::commands::budget::BudgetArgs;
use crate::commands::hub;
use crate::failure::{Failure, in_file, note, read};

/// What every subcommand that plans a model takes.
#[derive(clap::Args)]
pub(crate) struct ModelArgs {
    /// A folder with config.json, or a config.json, .safetensors, .gguf or .onnx file; `-` for a config.json piped in;
    /// org/name[@revision] or org/name/file.gguf for a model of the Hugging Face hub
    #[arg(value_parser = hub::model())]
    pub(crate) model: PathBuf,

    #[command(flatten)]
    pub(crate) reading: Reading,
}

/// How a model is read, and the budget for it.
#[derive(clap::Args)]
pub(crate) struct Reading {
    /// A fact the files leave out: layer.7=full_attention, model_type=llama, head_dim=128
    #[arg(long, value_name = "KEY=VALUE")]
    assume: Vec<Assumption>,

    /// Architecture description (TOML) that comes before the built-in ones
    #[arg(long, value_name = "FILE")]
    description: Vec<PathBuf>,

    #[command(flatten)]
    pub(crate) budget: BudgetArgs,
}

/// What a plan is for besides its model and budget.
#[derive(clap::Args, Default)]
pub(crate) struct Target {
    #[command(flatten)]
    device: OnDevice,

    /// Draft model, whose caches and weights the same plan holds; needs --draft-tokens or [speculation]
    #[arg(long, value_name = "MODEL", value_parser = hub::model())]
    draft: Option<PathBuf>,

    /// What a profiled forward showed (JSON with resident_bytes, forward_bytes and free_bytes); replaces assumptions
    #[arg(long, value_name = "FILE")]
    measurement: Option<PathBuf>,

    /// What an engine logged (TOML, as `cacheplan calibrate` writes it); replaces assumptions line by line
    #[arg(long, value_name = "FILE", conflicts_with = "measurement")]
    measured: Option<PathBuf>,
}

/// The device, of which only the memory is known.
#[derive(clap::Args, Default)]
pub(crate) struct OnDevice {
    /// Memory of the device the plan is for, such as 24GiB, or its name, such as h100 (8xh100 for eight);
    /// 0.9 of it is divided where the
    /// budget states no [memory]
    #[arg(long, value_name = "SIZE|DEVICE", value_parser = Devices::parse)]
    device_memory: Option<Devices>,
}

/// What `--device-memory` names.
#[derive(Clone)]
struct Devices {
    count: u32,
    device: DeviceInfo,
    /// One of them in the user's words, where there are several.
    word: Option<String>,
}

impl Devices {
    fn parse(text: &str) -> Result<Self, String> {
        let (count, device) = DeviceInfo::several(text).map_err(|error| error.to_string())?;
        let word = text.split_once(['x', 'X', '*']).filter(|_| count > 1).map(|(_, word)| word.trim().to_owned());
        Ok(Self { count, device, word })
    }
}

impl OnDevice {
    /// The budget for it, and what was taken for granted, to be said once nothing is wrong: before an error it would seem to
    /// have to do with that.
    pub(crate) fn resolve(&self, budget: &BudgetArgs) -> Result<(Config, Vec<String>), Failure> {
        let stated = self.device_memory.as_ref();
        let mut config = resolve(budget, stated.is_some())?;
        let mut notes = Vec::new();
        if let Some(device) = stated.map(|stated| &stated.device).filter(|device| device.is_nominal()) {
            let size = ByteSize(device.total_bytes);
            let tool = if device.name.starts_with("AMD") { "rocm-smi" } else { "nvidia-smi" };
            notes.push(format!("{} has {size}, as {tool} reports it; state the size where yours differs", device.name));
        }
        if let Some(Devices { count, .. }) = stated {
            notes.extend(divide_over(*count, &mut config.budget)?);
        }
        Ok((config, notes))
    }
}

/// Several devices are tensor parallel ranks where nobody says how the model is divided over them, which is then said.
fn divide_over(devices: u32, budget: &mut Budget) -> Result<Option<String>, Failure> {
    let divided =
        budget.divide_over(devices).map_err(|message| Failure::new(2, miette!("--device-memory: {message}")))?;
    Ok(divided.then(|| format!("{devices} devices: tp {devices}; --tp, --pp, --dp and --ep divide otherwise")))
}

/// A model, its budget and its resources, and what they are planned for.
pub(crate) struct Loaded {
    /// With the graph as the passes left it.
    pub(crate) model: Model,
    /// The graph as it was read.
    unwalked: Graph,
    pub(crate) budget: Budget,
    pub(crate) collected: Collected,
    device: Option<Devices>,
    draft: Option<Drafting>,
    measurement: Option<ForwardProfile>,
    measured: Option<Measured>,
    /// The engine that it is planned for, where one is named.
    engine: Option<EngineSpec>,
    /// Whether flags alone state the budget.
    in_flags: bool,
}

/// A draft model.
struct Drafting {
    info: ModelInfo,
    /// The graph as it was read.
    unwalked: Graph,
    resources: Resources,
}

/// A model's caches, and its draft model's, with the dtypes that an engine would choose.
pub(crate) struct OfEngine {
    own: Resources,
    draft: Option<Resources>,
}

impl ModelArgs {
    /// The budget file under the environment's values and the flags', with where each value came from.
    pub(crate) fn config(&self) -> Result<Config, Failure> {
        resolve(&self.reading.budget, false)
    }

    /// What the flags say about how to read the model.
    pub(crate) fn read_options(&self) -> Result<ReadOptions, Failure> {
        self.reading.options()
    }

    /// What a session is opened with: the budget with where each value came from, and how to read the model.
    pub(crate) fn session_options(&self) -> Result<SessionOptions, Failure> {
        let Config { budget, settings } = self.config()?;
        let settings = settings
            .into_iter()
            .map(|setting| Override { key: setting.key.to_owned(), value: setting.value, origin: setting.origin })
            .collect();
        Ok(SessionOptions { budget, settings, read: self.read_options()?, ..SessionOptions::default() })
    }

    /// Reads everything and walks the graph.
    pub(crate) fn load(&self, target: &Target) -> Result<Loaded, Failure> {
        self.reading.load(&self.model, target, None)
    }
}

/// Says which key the size of the weights would follow from.
pub(crate) fn say_why_weights_are_unknown(model: &Model) {
    if let (None, Some(why)) = (model.info.weights, &model.weights_unknown) {
        note(&format!("the size of the weights is not known: {why}"));
    }
}

impl Target {
    /// Whether what is left for caches depends on the weights, and nobody says their size.
    fn needs_weights(&self, budget: &Budget) -> bool {
        let said = |memory: &Memory| memory.bytes.is_some() || memory.weights.is_some();
        let measured = self.measurement.is_some() || self.measured.is_some();
        self.device.device_memory.is_some() && !measured && !budget.memory.as_ref().is_some_and(said)
    }

    pub(crate) fn is_stated(&self) -> bool {
        self.device.device_memory.is_some()
            || self.draft.is_some()
            || self.measurement.is_some()
            || self.measured.is_some()
    }
}

impl Reading {
    pub(crate) fn is_stated(&self) -> bool {
        let budget = &self.budget;
        !self.assume.is_empty()
            || !self.description.is_empty()
            || budget.budget.is_some()
            || !budget.overrides().is_empty()
    }

    fn options(&self) -> Result<ReadOptions, Failure> {
        let descriptions =
            self.description.iter().map(|path| read(path, Limit::TOML)).collect::<Result<Vec<String>, Failure>>()?;
        Ok(ReadOptions { assume: self.assume.clone(), descriptions })
    }

    fn open(&self, model: &Path) -> Result<Model, Failure> {
        let options = self.options()?;
        open(model, &options, |error| self.unread(model, error))
    }

    /// Why a model could not be read, with what would do.
    pub(crate) fn unread(&self, model: &Path, error: FrontendError) -> Failure {
        match (error, self.description.as_slice()) {
            (error @ FrontendError::Description { .. }, [described, ..]) => in_file(described, error),
            (error, _) => unread(model, error),
        }
    }

    /// Reads everything and walks the graph; states have the dtypes that `engine` would choose, where one is named.
    pub(crate) fn load(&self, model: &Path, target: &Target, engine: Option<EngineSpec>) -> Result<Loaded, Failure> {
        let (Config { budget, .. }, notes) = target.device.resolve(&self.budget)?;
        let device = target.device.device_memory.clone();
        // Engines choose kernels and dtypes by the GPU that is named.
        let budget = match device.as_ref().filter(|_| engine.is_some()) {
            Some(named) => budget.on(&named.device),
            None => budget,
        };
        let measurement = target.measurement.as_deref().map(read_measurement).transpose()?;
        let measured = target.measured.as_deref().map(read_measured).transpose()?;
        let mut model = self.open(model)?;
        let in_flags = self.budget.budget.is_none();
        budget.notes(&model.info).iter().for_each(|said| note(said));
        let unwalked = model.graph.clone();
        let collected = walk(&mut model.graph, &context(&model.info, &budget, engine))?;
        // What is assumed of the model does not hold for its draft.
        let draft = target.draft.as_deref().map(|path| {
            let mut draft = open(path, &ReadOptions::default(), |error| unread(path, error))?;
            let unwalked = draft.graph.clone();
            let resources = walk(&mut draft.graph, &context(&draft.info, &budget, engine))?.resources;
            Ok(Drafting { info: draft.info, unwalked, resources })
        });
        let draft = draft.transpose()?;
        notes.iter().chain(&model.doubts).for_each(|said| note(said));
        if target.needs_weights(&budget) {
            say_why_weights_are_unknown(&model);
        }
        Ok(Loaded { model, unwalked, budget, collected, device, draft, measurement, measured, engine, in_flags })
    }
}

impl Loaded {
    /// The request for one device, or for the first of several.
    pub(crate) fn request(&self) -> PlanRequest<'_> {
        self.request_with(&self.collected.resources, self.draft.as_ref().map(|draft| &draft.resources))
    }

    /// The requests of all pipeline stages, with what their ranks agree on.
    pub(crate) fn stages(&self) -> Result<Vec<PlanRequest<'_>>, Failure> {
        let request = self.request();
        let stages = self.budget.parallel.pp;
        let agreement = match stages {
            1 => None,
            _ => {
                let ranks = RankPlans::of(&request);
                Some(ranks.map_err(|error| Failure::new(error.exit_code(), miette!("{error}")))?.agreement)
            }
        };
        Ok((0..stages).map(|stage| PlanRequest { stage, agreement, ..request }).collect())
    }

    /// The same with resources that were collected for an engine.
    pub(crate) fn request_of<'a>(&'a self, collected: &'a OfEngine) -> PlanRequest<'a> {
        self.request_with(&collected.own, collected.draft.as_ref())
    }

    fn request_with<'a>(&'a self, resources: &'a Resources, drafting: Option<&'a Resources>) -> PlanRequest<'a> {
        let request = PlanRequest {
            device: self.device.as_ref().map(|named| &named.device),
            counted_device: self.device.as_ref().and_then(|named| named.word.as_deref()),
            measurement: self.measurement.as_ref(),
            measured: self.measured.as_ref(),
            engine: self.engine.map(|spec| spec.engine),
            ..PlanRequest::new(&self.model.info, resources, &self.budget)
        };
        let request = match self.draft.as_ref().zip(drafting) {
            Some((draft, resources)) => request.drafted_by(&draft.info, resources),
            None => request,
        };
        let request = request.with_step_of(&self.model);
        if self.in_flags { request.stated_in_flags() } else { request }
    }

    /// Collects anew for an engine.
    pub(crate) fn for_engine(&self, engine: EngineSpec) -> Result<OfEngine, Failure> {
        let on_device = self.device.as_ref().map(|named| self.budget.on(&named.device));
        let budget = on_device.as_ref().unwrap_or(&self.budget);
        let resources = |graph: &Graph, info: &ModelInfo| {
            Ok(walk(&mut graph.clone(), &context(info, budget, Some(engine)))?.resources)
        };
        Ok(OfEngine {
            own: resources(&self.unwalked, &self.model.info)?,
            draft: self.draft.as_ref().map(|draft| resources(&draft.unwalked, &draft.info)).transpose()?,
        })
    }
}

/// Reads a model's description; `unread` says what would do where it cannot be read.
pub(crate) fn open(
    path: &Path,
    options: &ReadOptions,
    unread: impl FnOnce(FrontendError) -> Failure,
) -> Result<Model, Failure> {
    let read = if path == Path::new("-") {
        let piped = Source::stdin(Limit::CONFIG).map_err(FrontendError::from);
        piped.and_then(|piped| Model::read_source(&piped, &[], options))
    } else {
        hub::read(path, options).map_err(Failure::error)?
    };
    read.map_err(unread)
}

pub(crate) fn unread(path: &Path, error: FrontendError) -> Failure {
    match error {
        FrontendError::Source(SourceError::Io { name, source }) if source.kind() == ErrorKind::NotFound => {
            let nothing = hub::advice(path)
                .unwrap_or_else(|| "there is no such file or folder; a model of the hub is named org/name".to_owned());
            if path.exists() { in_file(name.as_ref(), source) } else { in_file(path, nothing) }
        }
        error => Failure::new(if error.is_unsupported() { 4 } else { 1 }, miette!("{error}")),
    }
}

fn context(info: &ModelInfo, budget: &Budget, engine: Option<EngineSpec>) -> PassContext {
    match engine {
        Some(engine) => budget.engine_context(info, engine),
        None => budget.pass_context(info),
    }
}

pub(crate) fn walk(graph: &mut Graph, context: &PassContext) -> Result<Collected, Failure> {
    graph.collect(context).map_err(|error| Failure::new(4, miette!("{error}")))
}

/// The budget file, where there is one, under the environment and the flags; histograms are read.
fn resolve(args: &BudgetArgs, for_device: bool) -> Result<Config, Failure> {
    let path = args.budget.as_deref();
    let text = path.map(|path| read(path, Limit::TOML)).transpose()?.unwrap_or_default();
    let origin = path.map(|path| path.display().to_string()).unwrap_or_default();
    let failed = |error: BudgetError| {
        let labels: Vec<LabeledSpan> = error.span.clone().map(LabeledSpan::underline).into_iter().collect();
        let report = miette!(labels = labels, "{error}").with_source_code(NamedSource::new(&origin, text.clone()));
        Failure::new(error.exit_code(), report)
    };
    // A name that is no text cannot be ours; a value that is none is no value of any key.
    let text_of = |value: OsString| value.to_string_lossy().into_owned();
    let variables = std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, text_of(value))));
    let environment = Config::environment(variables).map_err(failed)?;
    let resolve = if for_device { Config::resolve_for_device } else { Config::resolve };
    let file = path.map(|_| (text.as_str(), origin.as_str()));
    let mut config = resolve(file, &environment, args.overrides()).map_err(failed)?;
    if let Some(workload) = &mut config.budget.workload {
        // Histograms stand beside the budget.
        let beside = path.and_then(Path::parent).unwrap_or(Path::new(""));
        let read = |file: &str| {
            let source = Source::open(&beside.join(file));
            source.and_then(|source| source.text(Limit::HISTOGRAM)).map_err(|error| error.to_string())
        };
        workload.load(read).map_err(|error| Failure::new(1, miette!("{error}")))?;
    }
    Ok(config)
}

/// A plan as `plan --out` writes it.
pub(crate) fn read_plan(path: &Path) -> Result<CachePlan, Failure> {
    CachePlan::from_json(&read(path, Limit::PLAN)?, &path.display().to_string())
        .map_err(|error| Failure::new(error.exit_code(), miette!("{error}")))
}

fn read_measurement(path: &Path) -> Result<ForwardProfile, Failure> {
    let keys = "JSON with resident_bytes, forward_bytes and free_bytes was expected";
    Limit::MEASURED
        .parse_json(read(path, Limit::MEASURED)?.as_bytes())
        .map_err(|error| in_file(path, format!("no measurement: {error}; {keys}")))
}

fn read_measured(path: &Path) -> Result<Measured, Failure> {
    Measured::from_toml(&read(path, Limit::TOML)?, &path.display().to_string()).map_err(Failure::error)
}
