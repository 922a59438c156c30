//! Reading a model and a budget: the first half of every subcommand.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use cacheplan::planner::{
    Budget, BudgetError, ByteSize, CachePlan, Config, DeviceInfo, Draft, EngineSpec, Measurement, PlanRequest,
    environment, plan_ranks,
};
use cacheplan::transforms::{
    Assumption, Collected, FrontendError, Graph, Model, ModelInfo, PassContext, ReadOptions, Resources, collect,
    read_model,
};
use miette::{LabeledSpan, NamedSource, miette};

use crate::commands::budget::BudgetArgs;
use crate::failure::{Failure, in_file, note, read};

/// What every subcommand that plans a model takes.
#[derive(clap::Args)]
pub(crate) struct Source {
    /// A folder with config.json, or a config.json, .safetensors, .gguf or .onnx file; `-` for a config.json piped in
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
    #[arg(long, value_name = "MODEL")]
    draft: Option<PathBuf>,

    /// What a profiled forward showed (JSON with resident_bytes, forward_bytes and free_bytes); replaces assumptions
    #[arg(long, value_name = "FILE")]
    measurement: Option<PathBuf>,
}

/// The device, of which only the memory is known.
#[derive(clap::Args, Default)]
pub(crate) struct OnDevice {
    /// Memory of the device the plan is for, such as 24GiB, or its name, such as h100; 0.9 of it is divided where the
    /// budget states no [memory]
    #[arg(long, value_name = "SIZE|DEVICE")]
    device_memory: Option<DeviceInfo>,
}

impl OnDevice {
    /// The budget for it; says which memory a name stands for.
    pub(crate) fn resolve(&self, budget: &BudgetArgs) -> Result<Config, Failure> {
        if let Some(device) = self.device_memory.as_ref().filter(|device| device.is_nominal()) {
            let size = ByteSize(device.total_bytes);
            note(&format!("{} has {size}, as nvidia-smi reports it; state the size where yours differs", device.name));
        }
        resolve(budget, self.device_memory.is_some())
    }
}

/// A model, its budget and its resources, and what they are planned for.
pub(crate) struct Loaded {
    /// With the graph as the passes left it.
    pub(crate) model: Model,
    /// The graph as it was read.
    unwalked: Graph,
    pub(crate) budget: Budget,
    pub(crate) collected: Collected,
    device: Option<DeviceInfo>,
    draft: Option<Drafting>,
    measurement: Option<Measurement>,
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

impl Source {
    /// The budget file under the environment's values and the flags'.
    pub(crate) fn budget(&self) -> Result<Budget, Failure> {
        Ok(resolve(&self.reading.budget, false)?.budget)
    }

    /// What the flags say about how to read the model.
    pub(crate) fn read_options(&self) -> Result<ReadOptions, Failure> {
        self.reading.options()
    }

    /// Reads everything and walks the graph.
    pub(crate) fn load(&self, target: &Target) -> Result<Loaded, Failure> {
        self.reading.load(&self.model, target, None)
    }
}

impl Target {
    pub(crate) fn is_stated(&self) -> bool {
        self.device.device_memory.is_some() || self.draft.is_some() || self.measurement.is_some()
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
        let descriptions = self.description.iter().map(|path| read(path)).collect::<Result<Vec<String>, Failure>>()?;
        Ok(ReadOptions { assume: self.assume.clone(), descriptions })
    }

    fn open(&self, model: &Path) -> Result<Model, Failure> {
        let options = self.options()?;
        open(model, &options).map_err(|error| self.unread(model, error))
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
        let budget = target.device.resolve(&self.budget)?.budget;
        let measurement = target.measurement.as_deref().map(read_measurement).transpose()?;
        let mut model = self.open(model)?;
        budget.notes(&model.info).iter().for_each(|said| note(said));
        let unwalked = model.graph.clone();
        let collected = walk(&mut model.graph, &context(&model.info, &budget, engine))?;
        // What is assumed of the model does not hold for its draft.
        let draft = target.draft.as_deref().map(|path| {
            let mut draft = open(path, &ReadOptions::default()).map_err(|error| unread(path, error))?;
            let unwalked = draft.graph.clone();
            let resources = walk(&mut draft.graph, &context(&draft.info, &budget, engine))?.resources;
            Ok(Drafting { info: draft.info, unwalked, resources })
        });
        let draft = draft.transpose()?;
        let device = target.device.device_memory.clone();
        Ok(Loaded { model, unwalked, budget, collected, device, draft, measurement })
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
                let ranks = plan_ranks(&request);
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
        PlanRequest {
            device: self.device.as_ref(),
            draft: self.draft.as_ref().zip(drafting).map(|(draft, resources)| Draft { model: &draft.info, resources }),
            measurement: self.measurement.as_ref(),
            ..PlanRequest::new(&self.model.info, resources, &self.budget)
        }
    }

    /// Collects anew for an engine.
    pub(crate) fn for_engine(&self, engine: EngineSpec) -> Result<OfEngine, Failure> {
        let resources = |graph: &Graph, info: &ModelInfo| {
            Ok(walk(&mut graph.clone(), &context(info, &self.budget, Some(engine)))?.resources)
        };
        Ok(OfEngine {
            own: resources(&self.unwalked, &self.model.info)?,
            draft: self.draft.as_ref().map(|draft| resources(&draft.unwalked, &draft.info)).transpose()?,
        })
    }
}

fn open(path: &Path, options: &ReadOptions) -> Result<Model, FrontendError> {
    let path = if path == Path::new("-") { Path::new("/dev/stdin") } else { path };
    read_model(path, options)
}

fn unread(path: &Path, error: FrontendError) -> Failure {
    match error {
        FrontendError::Io { source, .. } if source.kind() == ErrorKind::NotFound && !path.exists() => Failure::new(
            1,
            miette!(
                "{}: there is no such file or folder; models are read from disk, nothing is downloaded",
                path.display()
            ),
        ),
        error => Failure::new(if error.is_unsupported() { 4 } else { 1 }, miette!("{error}")),
    }
}

fn context(info: &ModelInfo, budget: &Budget, engine: Option<EngineSpec>) -> PassContext {
    match engine {
        Some(engine) => budget.engine_context(info, engine),
        None => budget.pass_context(info),
    }
}

fn walk(graph: &mut Graph, context: &PassContext) -> Result<Collected, Failure> {
    collect(graph, context).map_err(|error| Failure::new(4, miette!("{error}")))
}

/// The budget file, where there is one, under the environment and the flags; histograms are read.
fn resolve(args: &BudgetArgs, for_device: bool) -> Result<Config, Failure> {
    let path = args.budget.as_deref();
    let text = path.map(read).transpose()?.unwrap_or_default();
    let origin = path.map(|path| path.display().to_string()).unwrap_or_default();
    let failed = |error: BudgetError| {
        let labels: Vec<LabeledSpan> = error.span.clone().map(LabeledSpan::underline).into_iter().collect();
        let report = miette!(labels = labels, "{error}").with_source_code(NamedSource::new(&origin, text.clone()));
        Failure::new(error.exit_code(), report)
    };
    // A name that is no text cannot be ours; a value that is none is no value of any key.
    let text_of = |value: OsString| value.to_string_lossy().into_owned();
    let variables = std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, text_of(value))));
    let environment = environment(variables).map_err(failed)?;
    let resolve = if for_device { Config::resolve_for_device } else { Config::resolve };
    let file = path.map(|_| (text.as_str(), origin.as_str()));
    let mut config = resolve(file, &environment, &args.overrides()).map_err(failed)?;
    if let Some(workload) = &mut config.budget.workload {
        // Histograms stand beside the budget.
        let beside = path.and_then(Path::parent).unwrap_or(Path::new(""));
        let read = |file: &str| {
            let path = beside.join(file);
            std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))
        };
        workload.load(read).map_err(|error| Failure::new(1, miette!("{error}")))?;
    }
    Ok(config)
}

/// A plan as `plan --out` writes it.
pub(crate) fn read_plan(path: &Path) -> Result<CachePlan, Failure> {
    CachePlan::from_json(&read(path)?, &path.display().to_string()).map_err(Failure::error)
}

fn read_measurement(path: &Path) -> Result<Measurement, Failure> {
    let keys = "JSON with resident_bytes, forward_bytes and free_bytes was expected";
    serde_json::from_str(&read(path)?).map_err(|error| in_file(path, format!("no measurement: {error}; {keys}")))
}
