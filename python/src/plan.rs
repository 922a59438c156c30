//! Plans: made, printed, explained, compared, exported.

use std::path::PathBuf;
use std::sync::Arc;

use cacheplan_files::{Limit, Shown, Source};
use cacheplan_planner::engines::{EnginePlan, EnginePrediction};
use cacheplan_planner::{
    BudgetKey, CachePlan, Config, Devices, Engine, EngineSpec, EngineStart, MeasuredLedger, Override, Parallel,
    PlanRequest, RankPlans, Serving, Target, Values,
};
use pyo3::prelude::*;
use serde::Deserialize;

use crate::errors::{self, Said, error};
use crate::model::Model;

/// A plan, and what it was made from where it was made here.
#[pyclass(frozen, module = "cacheplan")]
pub(crate) struct Plan {
    pub(crate) plan: CachePlan,
    /// What the engine would allocate that it was planned for.
    engine: Option<EnginePrediction>,
    made: Option<Arc<Made>>,
    /// Its pipeline stage.
    stage: u32,
}

/// A request and the plans that answer it.
struct Made {
    source: Model,
    request: PlanRequest,
    engine: Option<EngineSpec>,
    ranks: RankPlans,
}

impl Made {
    /// What the engine would allocate on a stage.
    fn predicted(&self, stage: u32) -> PyResult<Option<EnginePrediction>> {
        let request = self.request.clone().of_stage(stage);
        self.engine.map(|engine| request.predict(engine)).transpose().map_err(errors::plan)
    }
}

/// Plans the caches of `model`. `keywords` are keys of the budget by their flags' names, values as TOML or plain text.
#[pyfunction]
#[pyo3(name = "_plan", signature = (model, draft, budget, folder, keywords, device, measured, stage, engine))]
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
    engine: Option<&str>,
) -> PyResult<Plan> {
    let devices = device.map(devices_of).transpose()?;
    let config = resolve(budget, folder, keywords, devices.as_ref())?;
    let measured = measured.map(|(text, name)| {
        MeasuredLedger::from_toml(&text, &name).map_err(|failed| error("BudgetError", failed, Said::default()))
    });
    let request = PlanRequest::of(model.caches.clone()).with_config(config).of_stage(stage);
    let request = devices.into_iter().fold(request, PlanRequest::with_devices);
    let request = measured.transpose()?.into_iter().fold(request, PlanRequest::with_measured);
    let engine = engine.map(engine_of).transpose()?;
    let request = engine.into_iter().fold(request, PlanRequest::for_engine);
    let request = draft.map(|draft| draft.caches.clone()).into_iter().fold(request, PlanRequest::with_draft);
    py.detach(|| {
        let ranks = request.ranks().map_err(errors::plan)?;
        let plan = ranks.stage(stage).map_err(errors::plan)?.clone();
        let made = Made { source: model.clone(), request, engine, ranks };
        Ok(Plan { plan, engine: made.predicted(stage)?, stage, made: Some(Arc::new(made)) })
    })
}

/// What a plan's file has beside the plan.
#[derive(Deserialize)]
struct Beside {
    engine: Option<EnginePrediction>,
}

fn devices_of(text: &str) -> PyResult<Devices> {
    text.parse().map_err(|failed| {
        error("BudgetError", failed, Said { key: Some("device".into()), found: Some(text.into()), hint: None })
    })
}

fn resolve(
    file: Option<(String, String)>,
    folder: Option<PathBuf>,
    keywords: Vec<(String, String)>,
    devices: Option<&Devices>,
) -> PyResult<Config> {
    let overrides: PyResult<Vec<Override>> =
        keywords.into_iter().map(|(name, value)| of_keyword(name, value)).collect();
    let file = file.as_ref().map(|(text, name)| (text.as_str(), name.as_str()));
    let device = devices.map(Devices::device);
    let mut config = Config::resolve_on(device, file, &[], &overrides?).map_err(errors::budget)?;
    if let Some(workload) = &mut config.budget.workload {
        // Histograms stand beside the budget.
        let folder = folder.unwrap_or_default();
        let read = |file: &str| {
            let source = Source::open(&folder.join(file));
            source.and_then(|source| source.text(Limit::HISTOGRAM)).map_err(|failed| failed.to_string())
        };
        workload.load(read).map_err(|failed| error("BudgetError", failed, Said::default()))?;
    }
    Ok(config)
}

/// `memory_bytes` is the flag `--memory-bytes`, the key `memory.bytes`.
fn of_keyword(name: String, value: String) -> PyResult<Override> {
    match BudgetKey::all().iter().find(|key| keyword(key) == name) {
        Some(key) => Ok(Override::by_argument(key.path, value, name)),
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
    fn made(&self) -> PyResult<&Made> {
        self.made.as_deref().ok_or_else(|| {
            let message = "this plan was read from JSON, which does not hold the model; plan it again for this";
            error("PlanError", message, Said { hint: Some("cacheplan.plan(model, …)".into()), ..Said::default() })
        })
    }
}

impl Plan {
    /// The plan and what the engine would allocate, where it was planned for one.
    fn both(&self) -> Option<EnginePlan<'_>> {
        self.engine.clone().map(|engine| engine.beside(&self.plan))
    }

    /// What was asked.
    pub(crate) fn asked(&self) -> PyResult<PlanRequest> {
        Ok(self.made()?.request.clone())
    }

    /// The request, about its stage.
    pub(crate) fn request(&self) -> PyResult<PlanRequest> {
        Ok(self.made()?.request.clone().of_stage(self.stage))
    }
}

#[pymethods]
impl Plan {
    /// Reads a plan and proves it; `origin` names the text in errors.
    #[staticmethod]
    fn from_json(py: Python<'_>, text: &str, origin: &str) -> PyResult<Self> {
        let plan = py.detach(|| CachePlan::from_json(text, origin));
        let wrong = |failed: String| error("PlanFileError", failed, Said::default());
        let plan = plan.map_err(|failed| wrong(failed.to_string()))?;
        let beside: Beside =
            serde_json::from_str(text).map_err(|failed| wrong(format!("{origin}: `engine`: {failed}")))?;
        Ok(Self { plan, engine: beside.engine, made: None, stage: 0 })
    }

    /// The plan as `cacheplan plan --format json` prints it, without the newline at its end.
    fn to_json(&self) -> PyResult<String> {
        self.both().map_or_else(|| json(&self.plan), |both| json(&both))
    }

    fn table(&self) -> String {
        self.both().map_or_else(|| self.plan.table(), |both| both.table())
    }

    fn markdown(&self) -> String {
        self.both().map_or_else(|| self.plan.markdown(), |both| both.markdown())
    }

    fn yaml(&self) -> String {
        self.both().map_or_else(|| self.plan.yaml(), |both| both.yaml())
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
        Ok(self.made()?.source.clone())
    }

    /// What all ranks agreed on as JSON, its hash, and the plan of each stage; nothing where there is one rank.
    fn ranks(&self) -> PyResult<Option<(String, String, Vec<Self>)>> {
        if self.plan.parallel == Parallel::default() {
            return Ok(None);
        }
        let ranks = &self.made()?.ranks;
        let stages = (0..).zip(&ranks.stages).map(|(stage, plan)| {
            let engine = self.made()?.predicted(stage)?;
            Ok(Self { plan: plan.clone(), engine, made: self.made.clone(), stage })
        });
        let stages = stages.collect::<PyResult<_>>()?;
        Ok(Some((json(&ranks.agreement)?, ranks.hash.clone(), stages)))
    }

    /// Changes that would admit more: what would be written, and sequences with it.
    fn knobs(&self, py: Python<'_>) -> PyResult<Vec<(String, u64)>> {
        let request = &self.made()?.request;
        let knobs = py.detach(|| request.knobs(&self.plan));
        Ok(knobs.into_iter().map(|knob| (knob.change.to_string(), knob.sequences)).collect())
    }

    fn explain(&self, py: Python<'_>, subject: &str) -> PyResult<String> {
        let request = self.request()?;
        let derived = py.detach(|| request.explain(&self.plan, subject));
        let derived = derived.map_err(|failed| {
            error("PlanError", failed, Said { key: Some("subject".into()), found: Some(subject.into()), hint: None })
        });
        Ok(derived?.to_string())
    }

    /// What changed from this plan to `after`; empty where nothing did.
    fn diff(&self, after: &Self) -> String {
        self.plan.diff(&after.plan).and_engines(self.engine.as_ref(), after.engine.as_ref()).table()
    }

    /// Everything that the independent checker finds wrong.
    fn violations(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        let request = &self.made()?.request;
        let checked = py.detach(|| request.check(&self.plan));
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
        let (request, engine) = (self.request()?, engine_of(engine)?);
        json(&py.detach(|| request.predict(engine)).map_err(errors::plan)?)
    }

    /// Our plan beside each engine's allocation, as a JSON list.
    fn compare(&self, py: Python<'_>, engines: Vec<String>) -> PyResult<String> {
        let request = self.request()?;
        let engines = engines.iter().map(|engine| engine_of(engine)).collect::<PyResult<Vec<EngineSpec>>>()?;
        json(&py.detach(|| request.compare_all(&engines)).map_err(errors::plan)?)
    }

    /// This plan beside what an engine is about to allocate, said in JSON: a table, what differs, and the owner of each group.
    fn check_start(&self, py: Python<'_>, start: &str) -> PyResult<(String, Vec<String>, Vec<String>)> {
        let wrong =
            |message: String| error("EngineError", message, Said { key: Some("start".into()), ..Said::default() });
        let start: EngineStart =
            Limit::PLAN.parse_json(start.as_bytes()).map_err(|failed| wrong(format!("the start: {failed}")))?;
        let found = py.detach(|| self.plan.check_start(&start)).map_err(|failed| wrong(failed.to_string()))?;
        Ok((found.table(), found.drifting(), found.owners()))
    }

    fn __eq__(&self, other: &Self) -> bool {
        self.plan == other.plan && self.engine == other.engine
    }
}
