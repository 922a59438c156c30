//! What the planner says to each question: the calls that the command makes, as JSON.

use cacheplan_managers::simulate::{Policy, Scenario, Workload};
use cacheplan_planner::{
    Budget, BudgetError, BudgetKey, ByteSize, CachePlan, Config, DeviceInfo, Engine, EngineSpec, FitQuestion, Parallel,
    PlanError, PlanRequest, Prices, RankPlans, Serving, Target, Values,
};
use cacheplan_transforms::{Collected, Graph, Model, ModelInfo, PassContext, Resources};
use serde::Serialize;
use serde_json::{Value, json};

use crate::question::{Format, Of};

/// An error as the command ends with it.
#[derive(Debug, Serialize)]
pub(crate) struct Refused {
    message: String,
    /// The exit code of the command; 0 for a model that is to be opened again.
    code: u8,
    /// The bytes of the budget that are at fault.
    #[serde(skip_serializing_if = "Option::is_none")]
    span: Option<(usize, usize)>,
}

impl Refused {
    pub(crate) fn new(code: u8, error: impl std::fmt::Display) -> Self {
        Self { message: error.to_string(), code, span: None }
    }

    pub(crate) fn error(error: impl std::fmt::Display) -> Self {
        Self::new(1, error)
    }

    pub(crate) fn usage(error: impl std::fmt::Display) -> Self {
        Self::new(2, error)
    }

    /// The model is not kept any more.
    pub(crate) fn gone() -> Self {
        Self::new(0, "this model is to be opened again")
    }
}

impl From<PlanError> for Refused {
    fn from(error: PlanError) -> Self {
        Self::new(error.exit_code(), error)
    }
}

impl From<BudgetError> for Refused {
    fn from(error: BudgetError) -> Self {
        let span = error.span.as_ref().map(|span| (span.start, span.end));
        Self { span, ..Self::new(error.exit_code(), error) }
    }
}

fn json_of(value: &impl Serialize) -> Result<Value, Refused> {
    serde_json::to_value(value).map_err(Refused::error)
}

fn walk(graph: &Graph, context: &PassContext) -> Result<Collected, Refused> {
    graph.clone().collect(context).map_err(|error| Refused::new(4, error))
}

/// What a question is about: a model with its caches, a budget, a device.
pub(crate) struct Subject<'a> {
    model: &'a Model,
    /// The model that drafts for it.
    draft: Option<&'a Model>,
    config: Config,
    device: Option<DeviceInfo>,
    caches: Caches,
    stage: u32,
    /// What was taken for granted.
    notes: Vec<String>,
}

/// The caches of a model and of the one that drafts for it.
struct Caches {
    own: Resources,
    draft: Option<Resources>,
}

impl<'a> Subject<'a> {
    pub(crate) fn of(model: &'a Model, draft: Option<&'a Model>, of: &Of) -> Result<Self, Refused> {
        let several = match of.device.trim() {
            "" => None,
            device => Some(DeviceInfo::several(device).map_err(Refused::usage)?),
        };
        let resolve = if several.is_some() { Config::resolve_for_device } else { Config::resolve };
        let mut config = resolve(Some((&of.budget, "the budget")), &[], &[])?;
        if let Some(workload) = &mut config.budget.workload {
            let beside = |file: &str| Err(format!("`{file}` is a file; the page reads none beside a budget"));
            workload.load(beside).map_err(Refused::error)?;
        }
        let mut notes = config.budget.notes(&model.info);
        if let Some((count, device)) = &several {
            if config.budget.divide_over(*count).map_err(Refused::usage)? {
                notes.push(format!("{count} devices: tp {count}; [parallel] divides otherwise"));
            }
            if device.is_nominal() {
                notes.push(format!(
                    "{} has {} as its maker's tool reports it",
                    device.name,
                    ByteSize(device.total_bytes)
                ));
            }
        }
        notes.extend(model.doubts.iter().cloned());
        if let (None, Some(why)) = (model.info.weights, &model.weights_unknown) {
            notes.push(format!("the size of the weights is not known: {why}"));
        }
        let budget = &config.budget;
        let caches = Caches::of(model, draft, |info| budget.pass_context(info))?;
        let device = several.map(|(_, device)| device);
        Ok(Self { model, draft, config, device, caches, stage: of.stage, notes })
    }

    fn budget(&self) -> &Budget {
        &self.config.budget
    }

    fn request<'b>(&'b self, caches: &'b Caches) -> PlanRequest<'b> {
        let request = PlanRequest::new(&self.model.info, &caches.own, self.budget());
        let request = PlanRequest { device: self.device.as_ref(), ..request };
        let request = match self.draft.zip(caches.draft.as_ref()) {
            Some((draft, resources)) => request.drafted_by(&draft.info, resources),
            None => request,
        };
        request.with_step_of(self.model)
    }

    /// The caches as every engine would have them.
    fn of_engines(&self) -> Result<Vec<(EngineSpec, Caches)>, Refused> {
        let engines = Engine::all().iter().copied().map(EngineSpec::from);
        let of = |engine| Caches::of(self.model, self.draft, |info| self.budget().engine_context(info, engine));
        engines.map(|engine| Ok((engine, of(engine)?))).collect()
    }

    fn requests<'b>(&'b self, engines: &'b [(EngineSpec, Caches)]) -> Vec<(EngineSpec, PlanRequest<'b>)> {
        engines.iter().map(|(engine, caches)| (*engine, self.request(caches))).collect()
    }

    /// The plan of the stage, and its request with what all ranks agreed on.
    fn planned(&self) -> Result<(CachePlan, PlanRequest<'_>, Option<String>), Refused> {
        let request = self.request(&self.caches);
        if self.budget().parallel == Parallel::default() {
            return Ok((request.plan()?, request, None));
        }
        let ranks = RankPlans::of(&request)?;
        let stages = ranks.stages.len();
        let plan = ranks.stages.get(self.stage as usize).cloned().ok_or_else(|| {
            Refused::usage(format!("there is no stage {}; the stages are 0 to {}", self.stage, stages - 1))
        })?;
        let agreement = (stages > 1).then_some(ranks.agreement);
        Ok((plan, PlanRequest { stage: self.stage, agreement, ..request }, Some(ranks.heading())))
    }
}

impl Caches {
    fn of(model: &Model, draft: Option<&Model>, context: impl Fn(&ModelInfo) -> PassContext) -> Result<Self, Refused> {
        let walked =
            |model: &Model| -> Result<Resources, Refused> { Ok(walk(&model.graph, &context(&model.info))?.resources) };
        Ok(Self { own: walked(model)?, draft: draft.map(walked).transpose()? })
    }
}

/// What forms are made of.
pub(crate) fn choices(reads_disk: bool) -> Value {
    let keys = BudgetKey::all().iter().map(|key| {
        let values = match key.values {
            Values::Count(least, most) => json!({ "kind": "count", "least": least, "most": most }),
            Values::Tokens(least, most) => json!({ "kind": "tokens", "least": least, "most": most }),
            Values::Bytes => json!({ "kind": "bytes" }),
            Values::Fraction => json!({ "kind": "fraction" }),
            Values::DType => json!({ "kind": "dtype" }),
            Values::Choice(names) => json!({ "kind": "choice", "names": names }),
            Values::Switch => json!({ "kind": "choice", "names": [["true", ""], ["false", ""]] }),
            Values::Lengths => json!({ "kind": "lengths" }),
        };
        let section = key.section().unwrap_or_default();
        json!({ "path": key.path, "section": section, "values": values, "default": key.default, "help": key.help })
    });
    let devices: Vec<String> = DeviceInfo::names().collect();
    let targets: Vec<&str> = Target::all().map(Target::name).collect();
    json!({
        "keys": keys.collect::<Vec<_>>(),
        "devices": devices,
        "targets": targets,
        "reads_disk": reads_disk,
        "version": env!("CARGO_PKG_VERSION"),
    })
}

/// What a model says of itself.
pub(crate) fn opened(number: u64, model: &Model) -> Value {
    let info = &model.info;
    let inspection = walk(&model.graph, &Budget::default().pass_context(info))
        .map(|collected| model.inspection(&collected).to_string());
    json!({
        "model": number,
        "type": info.model_type,
        "source": model.source,
        "dtype": info.dtype.to_string(),
        "longest": info.max_position_embeddings,
        "assumed": model.facts.iter().filter(|fact| fact.assumed).count(),
        "inspection": inspection.unwrap_or_default(),
    })
}

pub(crate) fn plan(subject: &Subject<'_>, into: &[String], width: f64) -> Result<Value, Refused> {
    let (plan, request, ranks) = subject.planned()?;
    let pictures = plan.pictures(subject.device.as_ref(), &subject.model.layers, into, width);
    let knobs = request.knobs(&plan);
    let knobs: Vec<Value> =
        knobs.iter().map(|knob| json!({ "change": knob.change, "sequences": knob.sequences })).collect();
    let (mut stated, mut usual) = (serde_json::Map::new(), serde_json::Map::new());
    for setting in &subject.config.settings {
        let told = (setting.key.to_owned(), Value::from(setting.value.clone()));
        stated.extend(Some(told.clone()).filter(|_| setting.origin.is_stated()));
        usual.extend(Some(told).filter(|_| setting.origin.is_of_device()));
    }
    Ok(json!({
        "plan": json_of(&plan)?,
        "pictures": json_of(&pictures)?,
        "ranks": ranks,
        "stages": subject.budget().parallel.pp,
        "knobs": knobs,
        "stated": stated,
        "usual": usual,
        "notes": subject.notes,
        "device": json_of(&subject.device)?,
    }))
}

/// A file that the command writes of a plan.
pub(crate) fn file(subject: &Subject<'_>, format: Format) -> Result<Value, Refused> {
    let (plan, ..) = subject.planned()?;
    let device = subject.device.as_ref();
    let text = match format {
        Format::Svg => plan.svg_on(device),
        Format::Html => {
            let engines = subject.of_engines()?;
            let curves = subject.request(&subject.caches).curves(&[], &subject.requests(&engines));
            plan.html(device, &subject.model.layers, &curves)
        }
    };
    Ok(json!({ "text": text }))
}

/// Lengths of one set of curves.
const MOST_LENGTHS: usize = 32;

pub(crate) fn curves(subject: &Subject<'_>, contexts: &[u64], width: f64) -> Result<Value, Refused> {
    if contexts.len() > MOST_LENGTHS {
        return Err(Refused::usage(format!("capacity at more than {MOST_LENGTHS} lengths is not asked for at once")));
    }
    let (plan, ..) = subject.planned()?;
    let engines = subject.of_engines()?;
    let curves = subject.request(&subject.caches).curves(contexts, &subject.requests(&engines));
    Ok(json!({ "curves": json_of(&curves)?, "pictures": json_of(&curves.pictures(&plan, width))? }))
}

pub(crate) fn explain(subject: &Subject<'_>, of: &str) -> Result<Value, Refused> {
    let (plan, request, _) = subject.planned()?;
    let derivation = request.explain(&plan, of).map_err(Refused::error)?;
    Ok(json!({ "derivation": json_of(&derivation)? }))
}

pub(crate) fn flags(subject: &Subject<'_>, model: Option<String>) -> Result<Value, Refused> {
    let (plan, ..) = subject.planned()?;
    let serving = Serving { model: model.filter(|name| !name.is_empty()), ..Serving::default() };
    let targets: Result<Vec<Value>, Refused> = Target::all()
        .map(|target| {
            let told = match plan.export(target, None, &serving) {
                Ok(export) => json!({ "export": json_of(&export)? }),
                Err(error) => json!({ "error": error.to_string() }),
            };
            Ok(json!({ "target": target.name(), "told": told }))
        })
        .collect();
    Ok(json!({ "targets": targets? }))
}

pub(crate) fn fit(
    model: &Model,
    context: u64,
    sequences: u64,
    devices: &[String],
    max_devices: u32,
    prices: Prices,
    width: f64,
) -> Result<Value, Refused> {
    if !(1..=64).contains(&max_devices) || devices.len() > 32 {
        return Err(Refused::usage("between 1 and 64 of up to 32 kinds of devices are tried"));
    }
    if !(1..=1 << 32).contains(&context) || !(1..=1 << 32).contains(&sequences) {
        return Err(Refused::usage("between 1 and 2^32 sequences of as many tokens are asked for"));
    }
    let device = |name: &String| match name.parse::<DeviceInfo>() {
        Ok(device) => Ok((name.trim().to_lowercase(), device)),
        Err(error) => Err(Refused::usage(error)),
    };
    let devices: Result<Vec<(String, DeviceInfo)>, Refused> = devices.iter().map(device).collect();
    let question =
        FitQuestion { context, sequences, devices: devices?, max_devices, weights: None, prices, engines: Vec::new() };
    let budget = Budget::default();
    let resources = walk(&model.graph, &budget.pass_context_of_any_length(&model.info))?.resources;
    let request = PlanRequest::new(&model.info, &resources, &budget).with_step_of(model);
    let answer = request.fit(&model.layers, &question)?;
    let flags: Vec<Value> =
        answer.fits.iter().map(|fit| json!({ "cacheplan": fit.flags(), "vllm": fit.vllm_flags(context) })).collect();
    let pictures = json_of(&answer.pictures(width))?;
    let (svg, html) = (answer.svg(), answer.html());
    Ok(json!({ "answer": json_of(&answer)?, "flags": flags, "pictures": pictures, "svg": svg, "html": html }))
}

/// Sizes of the cache that one question simulates.
const MOST_SIZES: usize = 16;

pub(crate) fn simulate(subject: &Subject<'_>, workload: &str, checkpoints: &[usize]) -> Result<Value, Refused> {
    let workload = match workload {
        "chat" => Workload::Chat,
        "agents" => Workload::Agents,
        "rag" => Workload::Rag,
        _ => return Err(Refused::usage("the workloads are chat, agents and rag")),
    };
    if checkpoints.len() > MOST_SIZES {
        return Err(Refused::usage(format!("at most {MOST_SIZES} numbers of checkpoints are simulated at once")));
    }
    let (plan, ..) = subject.planned()?;
    let planned = Scenario::of_plan(&plan, CHUNK).map_err(Refused::error)?;
    let requests = workload.requests();
    let run = |policy: Policy, checkpoints: Option<usize>| {
        Scenario { policy, checkpoints, ..planned }.run(&requests).map_err(Refused::error)
    };
    let mut policies = Vec::new();
    let mut reuse = String::new();
    for policy in Policy::ALL {
        let mut points = Vec::new();
        for &count in checkpoints {
            let report = run(policy, Some(count))?;
            reuse = report.reuse.to_string();
            points
                .push(json!({ "checkpoints": count, "hit_rate": report.hit_rate, "kv_hit_rate": report.kv_hit_rate }));
        }
        policies.push(json!({ "policy": policy.name(), "points": points }));
    }
    Ok(json!({ "policies": policies, "planned": plan.checkpoints(), "states": planned.states, "reuse": reuse }))
}

/// Policies and points of one picture.
const MOST_RATES: usize = 16;

/// Draws what was simulated so far.
pub(crate) fn rates(subject: &Subject<'_>, rates: &[(String, Vec<(u64, f64)>)], width: f64) -> Result<Value, Refused> {
    if rates.len() > MOST_RATES || rates.iter().any(|(_, points)| points.len() > MOST_SIZES) {
        return Err(Refused::usage(format!("at most {MOST_RATES} policies at {MOST_SIZES} sizes are drawn at once")));
    }
    json_of(&subject.planned()?.0.rates(rates, width))
}

/// Tokens per chunk of a scan, as the command takes it.
const CHUNK: usize = 64;
