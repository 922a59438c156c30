//! What the planner says to each question: the calls that the command makes, as JSON.

use cacheplan_managers::book::{Policy, Scenario, Workload};
use cacheplan_planner::{
    Budget, BudgetError, ByteSize, CachePlan, Config, DeviceInfo, Engine, EngineSpec, FitQuestion, Key, Parallel,
    PlanError, PlanRequest, Prices, RankPlans, Serving, Target, Values,
};
use cacheplan_transforms::layers::{BlockSpec, LayerSpec};
use cacheplan_transforms::{Collected, Graph, Model, PassContext, Resources};
use serde::Serialize;
use serde_json::{Value, json};

use crate::question::Of;

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
    config: Config,
    device: Option<DeviceInfo>,
    resources: Resources,
    stage: u32,
    /// What was taken for granted.
    notes: Vec<String>,
}

impl<'a> Subject<'a> {
    pub(crate) fn of(model: &'a Model, of: &Of) -> Result<Self, Refused> {
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
        let resources = walk(&model.graph, &config.budget.pass_context(&model.info))?.resources;
        let device = several.map(|(_, device)| device);
        Ok(Self { model, config, device, resources, stage: of.stage, notes })
    }

    fn budget(&self) -> &Budget {
        &self.config.budget
    }

    fn request<'b>(&'b self, budget: &'b Budget, resources: &'b Resources) -> PlanRequest<'b> {
        let request =
            PlanRequest { device: self.device.as_ref(), ..PlanRequest::new(&self.model.info, resources, budget) };
        request.with_step_of(self.model)
    }

    /// The plan of the stage, and its request with what all ranks agreed on.
    fn planned(&self) -> Result<(CachePlan, PlanRequest<'_>, Option<String>), Refused> {
        let request = self.request(self.budget(), &self.resources);
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

/// What forms are made of.
pub(crate) fn choices(reads_disk: bool) -> Value {
    let keys = Key::all().iter().map(|key| {
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
        "layers": model.layers.iter().map(layer).collect::<Vec<_>>(),
        "assumed": model.facts.iter().filter(|fact| fact.assumed).count(),
        "inspection": inspection.unwrap_or_default(),
    })
}

fn layer(layer: &LayerSpec) -> Value {
    let window = layer.blocks.iter().find_map(|block| match block {
        BlockSpec::Attention(attention) => attention.window,
        BlockSpec::Mla(mla) => mla.window,
        BlockSpec::CompressedAttention(attention) => Some(attention.window),
        _ => None,
    });
    let shares = layer.blocks.iter().find_map(|block| match block {
        BlockSpec::Attention(attention) => attention.shares_layer,
        _ => None,
    });
    let blocks: Vec<&str> = layer.blocks.iter().map(BlockSpec::name).collect();
    json!({ "kind": layer.kind, "blocks": blocks, "window": window, "shares": shares })
}

pub(crate) fn plan(subject: &Subject<'_>) -> Result<Value, Refused> {
    let (plan, request, ranks) = subject.planned()?;
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
        "ranks": ranks,
        "stages": subject.budget().parallel.pp,
        "knobs": knobs,
        "stated": stated,
        "usual": usual,
        "notes": subject.notes,
        "device": json_of(&subject.device)?,
    }))
}

pub(crate) fn picture(subject: &Subject<'_>) -> Result<Value, Refused> {
    Ok(json!({ "svg": subject.planned()?.0.svg() }))
}

/// Lengths of one set of curves.
const MOST_LENGTHS: usize = 32;

pub(crate) fn curves(subject: &Subject<'_>, contexts: &[u64]) -> Result<Value, Refused> {
    if contexts.len() > MOST_LENGTHS {
        return Err(Refused::usage(format!("capacity at more than {MOST_LENGTHS} lengths is not asked for at once")));
    }
    // Workloads state lengths of their own, beside which a context would be no length but a limit.
    let at = |context: u64| Budget { max_seq_len: Some(context), workload: None, ..subject.budget().clone() };
    let ours: Vec<Value> = contexts
        .iter()
        .map(|&context| {
            let budget = at(context);
            let (sequences, cap) = capacity(&subject.request(&budget, &subject.resources));
            json!({ "context": context, "sequences": sequences, "capped_by": cap })
        })
        .collect();
    let mut engines = Vec::new();
    for engine in Engine::all().iter().copied().map(EngineSpec::from) {
        let info = &subject.model.info;
        let resources = walk(&subject.model.graph, &subject.budget().engine_context(info, engine))?.resources;
        let here = subject.request(subject.budget(), &resources).compare(engine);
        let points = contexts.iter().filter_map(|&context| {
            let budget = at(context);
            let row = subject.request(&budget, &resources).compare(engine).ok()?;
            Some(json!({ "context": context, "sequences": row.engine_sequences, "ours": row.sequences }))
        });
        let points: Vec<Value> = points.collect();
        let (row, error) = match here {
            Ok(row) => (Some(json_of(&row)?), None),
            Err(error) => (None, Some(error.to_string())),
        };
        engines.push(json!({ "engine": engine.engine.to_string(), "row": row, "error": error, "points": points }));
    }
    Ok(json!({ "ours": ours, "engines": engines }))
}

/// Sequences that a budget admits, and what runs out first: of memory the pool that takes most of it.
fn capacity(request: &PlanRequest<'_>) -> (u64, String) {
    let planned = match request.budget.parallel == Parallel::default() {
        true => request.plan(),
        false => RankPlans::of(request).map(|mut ranks| ranks.stages.swap_remove(0)),
    };
    match planned {
        Ok(plan) => {
            let largest = plan.pools.iter().max_by_key(|pool| pool.bytes).map(|pool| pool.id.clone());
            let cap = plan.capacity.capped_by;
            let cap = largest.filter(|_| cap.is_memory()).unwrap_or_else(|| cap.to_string());
            (plan.capacity.sequences, cap)
        }
        Err(PlanError::DoesNotFit(short)) => (0, short.capped_by),
        Err(error) => (0, error.to_string()),
    }
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
    let resources = walk(&model.graph, &budget.pass_context(&model.info))?.resources;
    let request = PlanRequest::new(&model.info, &resources, &budget).with_step_of(model);
    let answer = request.fit(&model.layers, &question)?;
    let flags: Vec<Value> =
        answer.fits.iter().map(|fit| json!({ "cacheplan": fit.flags(), "vllm": fit.vllm_flags(context) })).collect();
    Ok(json!({ "answer": json_of(&answer)?, "flags": flags, "svg": answer.svg() }))
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

/// Tokens per chunk of a scan, as the command takes it.
const CHUNK: usize = 64;
