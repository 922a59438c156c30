//! Plans: made, printed, explained, compared, exported.

use std::path::PathBuf;
use std::sync::Arc;

use cacheplan_files::{Limit, Shown, Source};
use cacheplan_planner::{
    Budget, BudgetKey, CachePlan, Config, DeviceInfo, Engine, EngineSpec, Measured, Override, Parallel, PlanError,
    PlanRequest, RankPlans, Serving, Target, Values,
};
use cacheplan_transforms::Resources;
use pyo3::prelude::*;

use crate::errors::{self, Said, error};
use crate::model::Model;

/// A plan, and what it was made from where it was made here.
#[pyclass(frozen, module = "cacheplan")]
pub(crate) struct Plan {
    pub(crate) plan: CachePlan,
    /// Its pipeline stage.
    stage: u32,
    made: Option<Arc<Inputs>>,
}

/// A model with its caches.
struct Collected {
    model: Model,
    resources: Resources,
}

/// Everything that a plan depends on.
struct Inputs {
    own: Collected,
    draft: Option<Collected>,
    budget: Budget,
    device: Option<DeviceInfo>,
    measured: Option<Measured>,
    ranks: Option<RankPlans>,
}

impl Collected {
    fn of(model: &Model, budget: &Budget) -> PyResult<Self> {
        let resources = model.resources(&budget.pass_context(&model.read.info))?;
        Ok(Self { model: model.clone(), resources })
    }
}

impl Inputs {
    fn request<'a>(&'a self, stage: u32, own: &'a Resources, draft: Option<&'a Resources>) -> PlanRequest<'a> {
        let request = PlanRequest {
            device: self.device.as_ref(),
            measured: self.measured.as_ref(),
            stage,
            agreement: self.ranks.as_ref().filter(|_| self.budget.parallel.pp > 1).map(|ranks| ranks.agreement),
            ..PlanRequest::new(&self.own.model.read.info, own, &self.budget)
        };
        let request = match self.draft.as_ref().zip(draft) {
            Some((draft, resources)) => request.drafted_by(&draft.model.read.info, resources),
            None => request,
        };
        request.with_step_of(&self.own.model.read)
    }

    fn own_request(&self, stage: u32) -> PlanRequest<'_> {
        self.request(stage, &self.own.resources, self.draft.as_ref().map(|draft| &draft.resources))
    }

    /// Asks with the caches that an engine would have.
    fn with_engine<R>(
        &self,
        stage: u32,
        engine: EngineSpec,
        ask: impl FnOnce(&PlanRequest<'_>) -> Result<R, PlanError>,
    ) -> PyResult<R> {
        let of = |of: &Collected| of.model.resources(&self.budget.engine_context(&of.model.read.info, engine));
        let own = of(&self.own)?;
        let draft = self.draft.as_ref().map(of).transpose()?;
        let request = self.request(stage, &own, draft.as_ref());
        ask(&PlanRequest { agreement: None, ..request }).map_err(errors::plan)
    }
}

/// Plans the caches of `model`. `keywords` are keys of the budget by their flags' names, values as TOML or plain text.
#[pyfunction]
#[pyo3(name = "_plan", signature = (model, draft, budget, folder, keywords, device, measured, stage))]
#[allow(clippy::too_many_arguments, reason = "the package gives them names and defaults")]
pub(crate) fn make(
    py: Python<'_>,
    model: &Model,
    draft: Option<&Model>,
    budget: Option<(String, String)>,
    folder: Option<PathBuf>,
    keywords: Vec<(String, String)>,
    device: Option<&str>,
    measured: Option<(String, String)>,
    stage: u32,
) -> PyResult<Plan> {
    let device = device.map(device_of).transpose()?;
    let budget = resolve(budget, folder, keywords, device.as_ref())?;
    let measured = measured.map(|(text, name)| {
        Measured::from_toml(&text, &name).map_err(|failed| error("BudgetError", failed, Said::default()))
    });
    let measured = measured.transpose()?;
    py.detach(|| {
        let own = Collected::of(model, &budget)?;
        let draft = draft.map(|draft| Collected::of(draft, &budget)).transpose()?;
        let device = device.map(|(_, device)| device);
        let mut inputs = Inputs { own, draft, budget, device, measured, ranks: None };
        let several = inputs.budget.parallel != Parallel::default();
        if several {
            inputs.ranks = Some(RankPlans::of(&inputs.own_request(0)).map_err(errors::plan)?);
        }
        let planned = match &inputs.ranks {
            None if stage > 0 => None,
            None => Some(inputs.own_request(0).plan().map_err(errors::plan)?),
            Some(ranks) => ranks.stages.get(stage as usize).cloned(),
        };
        let planned = planned.ok_or_else(|| {
            let message = format!("there is no stage {stage}; the stages are 0 to {}", inputs.budget.parallel.pp - 1);
            error("BudgetError", message, Said { key: Some("stage".into()), ..Said::default() })
        })?;
        Ok(Plan { plan: planned, stage, made: Some(Arc::new(inputs)) })
    })
}

fn device_of(text: &str) -> PyResult<(u32, DeviceInfo)> {
    DeviceInfo::several(text).map_err(|failed| {
        error("BudgetError", failed, Said { key: Some("device".into()), found: Some(text.into()), hint: None })
    })
}

fn resolve(
    file: Option<(String, String)>,
    folder: Option<PathBuf>,
    keywords: Vec<(String, String)>,
    device: Option<&(u32, DeviceInfo)>,
) -> PyResult<Budget> {
    let overrides: PyResult<Vec<Override>> =
        keywords.into_iter().map(|(name, value)| of_keyword(name, value)).collect();
    let file = file.as_ref().map(|(text, name)| (text.as_str(), name.as_str()));
    let resolve = if device.is_some() { Config::resolve_for_device } else { Config::resolve };
    let mut budget = resolve(file, &[], &overrides?).map_err(errors::budget)?.budget;
    if let Some(workload) = &mut budget.workload {
        // Histograms stand beside the budget.
        let folder = folder.unwrap_or_default();
        let read = |file: &str| {
            let source = Source::open(&folder.join(file));
            source.and_then(|source| source.text(Limit::HISTOGRAM)).map_err(|failed| failed.to_string())
        };
        workload.load(read).map_err(|failed| error("BudgetError", failed, Said::default()))?;
    }
    if let Some((count, _)) = device {
        budget
            .divide_over(*count)
            .map_err(|message| error("BudgetError", message, Said { key: Some("device".into()), ..Said::default() }))?;
    }
    Ok(budget)
}

/// `memory_bytes` is the flag `--memory-bytes`, the key `memory.bytes`.
fn of_keyword(name: String, value: String) -> PyResult<Override> {
    match BudgetKey::all().iter().find(|key| keyword(key) == name) {
        Some(key) => Ok(Override::by_flag(key.path, value, name)),
        None => {
            let known = BudgetKey::all().iter().map(keyword);
            let nearest = known.min_by_key(|known| Shown(known.as_str()).distance(&name));
            let hint = nearest.map(|nearest| format!("did you mean `{nearest}`?"));
            let message = format!("`{name}` is no key of a budget; {}", hint.clone().unwrap_or_default());
            Err(error("BudgetError", message, Said { key: Some(name), hint, found: None }))
        }
    }
}

fn keyword(key: &BudgetKey) -> String {
    key.flag.trim_start_matches('-').replace('-', "_")
}

/// Every key of a budget: keyword, dotted path, what holds where it is absent, and what it is.
#[pyfunction]
pub(crate) fn budget_keys() -> Vec<(String, &'static str, &'static str, &'static str, Vec<&'static str>)> {
    let choices = |key: &BudgetKey| match key.values {
        Values::Choice(names) => names.iter().map(|(name, _)| *name).collect(),
        _ => Vec::new(),
    };
    BudgetKey::all().iter().map(|key| (keyword(key), key.path, key.default, key.help, choices(key))).collect()
}

fn engine_of(text: &str) -> PyResult<EngineSpec> {
    text.parse().map_err(|failed| {
        let names: Vec<String> = Engine::all().iter().map(ToString::to_string).collect();
        let hint = Some(format!("one of {}", names.join(", ")));
        error("EngineError", failed, Said { key: Some("engine".into()), found: Some(text.into()), hint })
    })
}

pub(crate) fn json(value: &impl serde::Serialize) -> PyResult<String> {
    serde_json::to_string_pretty(value).map_err(|failed| error("PlanError", failed, Said::default()))
}

impl Plan {
    fn inputs(&self) -> PyResult<&Inputs> {
        self.made.as_deref().ok_or_else(|| {
            let message = "this plan was read from JSON, which does not hold the model; plan it again for this";
            error("PlanError", message, Said { hint: Some("cacheplan.plan(model, …)".into()), ..Said::default() })
        })
    }
}

#[pymethods]
impl Plan {
    /// Reads a plan and proves it; `origin` names the text in errors.
    #[staticmethod]
    fn from_json(py: Python<'_>, text: &str, origin: &str) -> PyResult<Self> {
        let plan = py.detach(|| CachePlan::from_json(text, origin));
        let plan = plan.map_err(|failed| error("PlanFileError", failed, Said::default()))?;
        Ok(Self { plan, stage: 0, made: None })
    }

    /// The plan as `cacheplan plan --format json` prints it, without the newline at its end.
    fn to_json(&self) -> PyResult<String> {
        json(&self.plan)
    }

    fn table(&self) -> String {
        self.plan.table()
    }

    fn markdown(&self) -> String {
        self.plan.markdown()
    }

    fn yaml(&self) -> String {
        self.plan.yaml()
    }

    fn svg(&self) -> String {
        self.plan.svg()
    }

    /// Whether the model and the budget are still there, so that it can be explained and checked against them.
    #[getter]
    fn is_made_here(&self) -> bool {
        self.made.is_some()
    }

    /// The model that it was made of.
    fn source(&self) -> PyResult<Model> {
        Ok(self.inputs()?.own.model.clone())
    }

    /// What all ranks agreed on as JSON, its hash, and the plan of each stage; nothing where there is one rank.
    fn ranks(&self) -> PyResult<Option<(String, String, Vec<Self>)>> {
        if self.plan.parallel == Parallel::default() {
            return Ok(None);
        }
        let Some(ranks) = &self.inputs()?.ranks else { return Ok(None) };
        let stages = (0..).zip(&ranks.stages);
        let stages = stages.map(|(stage, plan)| Self { plan: plan.clone(), stage, made: self.made.clone() });
        Ok(Some((json(&ranks.agreement)?, ranks.hash.clone(), stages.collect())))
    }

    /// Changes that would admit more: what would be written, and sequences with it.
    fn knobs(&self, py: Python<'_>) -> PyResult<Vec<(String, u64)>> {
        let inputs = self.inputs()?;
        let knobs = py.detach(|| inputs.own_request(self.stage).knobs(&self.plan));
        Ok(knobs.into_iter().map(|knob| (knob.change.to_string(), knob.sequences)).collect())
    }

    fn explain(&self, py: Python<'_>, subject: &str) -> PyResult<String> {
        let inputs = self.inputs()?;
        let derived = py.detach(|| inputs.own_request(self.stage).explain(&self.plan, subject));
        let derived = derived.map_err(|failed| {
            error("PlanError", failed, Said { key: Some("subject".into()), found: Some(subject.into()), hint: None })
        });
        Ok(derived?.to_string())
    }

    /// What changed from this plan to `after`; empty where nothing did.
    fn diff(&self, after: &Self) -> String {
        let diff = self.plan.diff(&after.plan);
        if diff.is_empty() { String::new() } else { diff.table() }
    }

    /// Everything that the independent checker finds wrong.
    fn violations(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        let inputs = self.inputs()?;
        let checked = py.detach(|| inputs.own_request(self.stage).check(&self.plan));
        Ok(checked.err().unwrap_or_default().iter().map(ToString::to_string).collect())
    }

    /// The plan in the words of an engine, as JSON.
    #[pyo3(signature = (target, version, model))]
    fn export(&self, target: &str, version: Option<&str>, model: Option<String>) -> PyResult<String> {
        let failed = |failed| error("ExportError", failed, Said { key: Some("target".into()), ..Said::default() });
        let target: Target = target.parse().map_err(failed)?;
        let serving = Serving { model, parallel: Some(self.plan.parallel), host_bytes: None };
        let exported = self.plan.export(target, version, &serving).map_err(failed)?;
        json(&exported)
    }

    /// What an engine would allocate, as JSON.
    fn engine(&self, py: Python<'_>, engine: &str) -> PyResult<String> {
        let (inputs, engine) = (self.inputs()?, engine_of(engine)?);
        json(&py.detach(|| inputs.with_engine(self.stage, engine, |request| request.predict(engine)))?)
    }

    /// Our plan beside an engine's allocation, as JSON.
    fn compare(&self, py: Python<'_>, engine: &str) -> PyResult<String> {
        let (inputs, engine) = (self.inputs()?, engine_of(engine)?);
        json(&py.detach(|| inputs.with_engine(self.stage, engine, |request| request.compare(engine)))?)
    }

    fn __eq__(&self, other: &Self) -> bool {
        self.plan == other.plan
    }
}
