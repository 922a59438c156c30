//! Reading a model and a budget: the first half of every subcommand.

use std::path::{Path, PathBuf};

use cacheplan::planner::{
    Budget, BudgetError, ByteSize, CachePlan, Config, DeviceInfo, DeviceKind, Origin, Override, Policy, environment,
};
use cacheplan::transforms::{Assumption, Collected, Model, PassContext, ReadOptions, collect, read_model};
use clap::ValueEnum;
use miette::{LabeledSpan, NamedSource, miette};

use crate::failure::{Failure, read};

/// What every subcommand that plans a model takes.
#[derive(clap::Args)]
pub(crate) struct Source {
    /// A folder with config.json, or a config.json, .safetensors, .gguf or .onnx file
    pub(crate) model: PathBuf,

    /// A fact the files leave out: layer.7=full_attention, model_type=llama, head_dim=128
    #[arg(long, value_name = "KEY=VALUE")]
    assume: Vec<Assumption>,

    /// Architecture description (TOML) that comes before the built-in ones
    #[arg(long, value_name = "FILE")]
    description: Vec<PathBuf>,

    /// Budget file (TOML): memory, limits, dtypes; without one the limits alone size the pools
    #[arg(long, value_name = "FILE")]
    pub(crate) budget: Option<PathBuf>,

    /// How resources are grouped into pools
    #[arg(long, value_enum, value_name = "POLICY")]
    pub(crate) grouping: Option<Grouping>,
}

/// The grouping policies by their names in plans and budgets.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Grouping {
    /// One pool per compatibility class
    ByKey,
    /// One pool per window; a mix inside one is an error
    ByWindow,
    /// The first resource of a kind is the reference; what does not match it is local
    FirstReference,
}

impl From<Grouping> for Policy {
    fn from(grouping: Grouping) -> Self {
        match grouping {
            Grouping::ByKey => Self::ByKey,
            Grouping::ByWindow => Self::ByWindow,
            Grouping::FirstReference => Self::FirstReference,
        }
    }
}

/// A model, its budget and its resources.
pub(crate) struct Loaded {
    pub(crate) model: Model,
    pub(crate) budget: Budget,
    pub(crate) collected: Collected,
}

impl Source {
    /// A model and a budget without further flags.
    pub(crate) fn of(model: PathBuf, budget: Option<PathBuf>, grouping: Option<Grouping>) -> Self {
        Self { model, assume: Vec::new(), description: Vec::new(), budget, grouping }
    }

    /// The budget file under the environment's values and the flags'.
    pub(crate) fn budget(&self) -> Result<Budget, Failure> {
        let grouping = self.grouping.map(|grouping| Override {
            key: "grouping".into(),
            value: Policy::from(grouping).to_string(),
            origin: Origin::Flag("--grouping".into()),
        });
        Ok(resolve(self.budget.as_deref(), grouping.as_slice())?.budget)
    }

    /// What the flags say about how to read the model.
    pub(crate) fn read_options(&self) -> Result<ReadOptions, Failure> {
        let descriptions = self.description.iter().map(|path| read(path)).collect::<Result<Vec<String>, Failure>>()?;
        Ok(ReadOptions { assume: self.assume.clone(), descriptions })
    }

    /// Reads the model and the budget.
    pub(crate) fn read(&self) -> Result<(Model, Budget), Failure> {
        let budget = self.budget()?;
        let model = read_model(&self.model, &self.read_options()?)
            .map_err(|error| Failure::new(if error.is_unsupported() { 4 } else { 1 }, miette!("{error}")))?;
        Ok((model, budget))
    }

    /// Reads the model and the budget and walks the graph.
    pub(crate) fn load(&self) -> Result<Loaded, Failure> {
        let (model, budget) = self.read()?;
        let context = budget.pass_context(&model.info);
        Loaded::new(model, budget, &context)
    }
}

impl Loaded {
    /// Walks the graph of a model that was read.
    pub(crate) fn new(mut model: Model, budget: Budget, context: &PassContext) -> Result<Self, Failure> {
        let collected = collect(&mut model.graph, context).map_err(|error| Failure::new(4, miette!("{error}")))?;
        Ok(Self { model, budget, collected })
    }
}

/// The budget file, where there is one, under the environment and these flags; histograms are read.
pub(crate) fn resolve(path: Option<&Path>, flags: &[Override]) -> Result<Config, Failure> {
    let text = path.map(read).transpose()?.unwrap_or_default();
    let origin = path.map(|path| path.display().to_string()).unwrap_or_default();
    let failed = |error: BudgetError| {
        let labels: Vec<LabeledSpan> = error.span.clone().map(LabeledSpan::underline).into_iter().collect();
        let shown = error.to_string();
        Failure::new(1, miette!(labels = labels, "{shown}").with_source_code(NamedSource::new(&origin, text.clone())))
    };
    // A variable that is no text cannot be ours.
    let variables =
        std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    let environment = environment(variables).map_err(failed)?;
    let mut config =
        Config::resolve(path.map(|_| (text.as_str(), origin.as_str())), &environment, flags).map_err(failed)?;
    if let Some(workload) = &mut config.budget.workload {
        // Histograms stand beside the budget.
        let beside = path.and_then(Path::parent).unwrap_or(Path::new(""));
        let read = |file: &str| std::fs::read_to_string(beside.join(file)).map_err(|error| format!("{file}: {error}"));
        workload.load(read).map_err(|error| Failure::new(1, miette!("{origin}: {error}")))?;
    }
    Ok(config)
}

/// A plan as `plan --out` writes it.
pub(crate) fn read_plan(path: &Path) -> Result<CachePlan, Failure> {
    CachePlan::from_json(&read(path)?, &path.display().to_string()).map_err(Failure::error)
}

/// A GPU of which only the memory is known, all of it free.
pub(crate) fn stated_device(memory: ByteSize) -> DeviceInfo {
    DeviceInfo { name: "stated".into(), total_bytes: memory.0, free_bytes: memory.0, kind: DeviceKind::Cuda }
}
