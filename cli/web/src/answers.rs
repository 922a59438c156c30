//! What the planner says to each question: the calls that the command makes, as JSON.

use cacheplan_managers::simulate::{Policy, Scenario, Workload};
use cacheplan_planner::{
    Budget, BudgetError, BudgetKey, ByteSize, Config, DeviceInfo, Devices, Engine, EngineSpec, FitQuestion,
    MeasuredLedger, ModelCaches, Override, Parallel, PlanError, PlanRequest, Pool, Prices, Serving, Target, Values,
    WeightBits,
};
use cacheplan_transforms::Model;
use cacheplan_transforms::layers::LayerSpec;
use serde::Serialize;
use serde_json::{Value, json};

use crate::question::{Format, PlanQuestion};

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

pub(crate) fn json_of(value: &impl Serialize) -> Result<Value, Refused> {
    serde_json::to_value(value).map_err(Refused::error)
}

/// The request that a question is about.
pub(crate) fn request(
    model: ModelCaches,
    draft: Option<ModelCaches>,
    of: &PlanQuestion,
) -> Result<PlanRequest, Refused> {
    let devices = match of.device.trim() {
        "" => None,
        text => Some(text.parse::<Devices>().map_err(Refused::usage)?),
    };
    let request = PlanRequest::of(model);
    let engine = of.engine.as_deref().map(str::parse::<EngineSpec>).transpose().map_err(Refused::usage)?;
    let weights = |bits| -> Result<Override, Refused> {
        let bytes = weights_at(&request, bits, engine)?;
        Ok(Override::by_argument("memory.weights", bytes.0.to_string(), format!("{bits} weights, assumed")))
    };
    let weights = of.bits.map(weights).transpose()?;
    let device = devices.as_ref().map(Devices::device);
    let mut config = Config::resolve_on(device, Some((&of.budget, "the budget")), &[], weights.as_slice())?;
    if let Some(workload) = &mut config.budget.workload {
        let beside = |file: &str| Err(format!("`{file}` is a file; the page reads none beside a budget"));
        workload.load(beside).map_err(Refused::error)?;
    }
    let request = request.with_config(config).of_stage(of.stage);
    let request = devices.into_iter().fold(request, PlanRequest::with_devices);
    let request = draft.into_iter().fold(request, PlanRequest::with_draft);
    let request = engine.into_iter().fold(request, PlanRequest::for_engine);
    let measured = of.measured.as_deref().map(|text| MeasuredLedger::from_toml(text, "the measured lines"));
    let measured = measured.transpose().map_err(Refused::error)?;
    Ok(measured.into_iter().fold(request, PlanRequest::with_measured))
}

/// What the weights would take with so many bits each.
pub(crate) fn weights_at(
    request: &PlanRequest,
    bits: WeightBits,
    engine: Option<EngineSpec>,
) -> Result<ByteSize, Refused> {
    let why = "the size of the weights is not known, so what fewer bits would take is not either";
    request.weights_at(bits, engine.map(|engine| engine.engine)).map(ByteSize).ok_or_else(|| Refused::usage(why))
}

fn layers(request: &PlanRequest) -> &[LayerSpec] {
    request.model().model().map(|model| model.layers.as_slice()).unwrap_or_default()
}

fn engines() -> Vec<EngineSpec> {
    Engine::all().iter().copied().map(EngineSpec::from).collect()
}

/// What forms are made of.
pub(crate) fn choices(reads_disk: bool) -> Value {
    let keys = BudgetKey::all().iter().map(|key| {
        let values = match key.values {
            Values::Count(least, most) => json!({ "kind": "count", "least": least, "most": most }),
            Values::Tokens(least, most) => json!({ "kind": "tokens", "least": least, "most": most }),
            Values::Bytes => json!({ "kind": "bytes" }),
            Values::Fraction | Values::Ratio => json!({ "kind": "fraction" }),
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
    let request = PlanRequest::of(ModelCaches::from(model.clone()));
    let weights = WeightBits::ALL.map(|bits| request.weights_at(bits, None));
    let walked = model.graph.clone().collect(&Budget::default().pass_context(info));
    let inspection = walked.map(|collected| model.inspection(&collected).to_string());
    json!({
        "model": number,
        "type": info.model_type,
        "source": model.source,
        "dtype": info.dtype.to_string(),
        "longest": info.max_position_embeddings,
        "weights": { "stored": info.weights.map(|weights| weights.bytes), "8": weights[0], "4": weights[1] },
        "assumed": model.facts.iter().filter(|fact| fact.assumed).count(),
        "inspection": inspection.unwrap_or_default(),
    })
}

/// The plan with its pictures; the bound of speed is that of so many people at once, or of as many as are admitted.
pub(crate) fn plan(
    request: &PlanRequest,
    into: &[String],
    width: f64,
    people: Option<u64>,
    price: Option<f64>,
) -> Result<Value, Refused> {
    let ranks = request.ranks()?;
    let several = ranks.parallel != Parallel::default();
    let (stages, heading) = (ranks.parallel.pp, several.then(|| ranks.heading()));
    let devices = u64::from(ranks.parallel.tp)
        * u64::from(ranks.parallel.pp)
        * u64::from(ranks.parallel.dp)
        * u64::from(ranks.parallel.cp);
    let per_hour = price.filter(|price| price.is_finite() && *price >= 0.0).map(|price| price * devices as f64);
    let at_best = request.bound_of(&ranks.stages, people).map(|bound| {
        json!({
            "sequences": bound.all.sequences * u64::from(ranks.parallel.dp),
            "tokens_per_second": bound.tokens_per_second,
            "alone_per_second": bound.alone_per_second(),
            "prompt_seconds": bound.prompt.seconds,
            "bound_by": bound.all.bound_by,
            "source": bound.source,
            "per_million_tokens": per_hour.map(|price| bound.per_million_tokens(price)),
        })
    });
    let plan = ranks.into_stage(request.stage())?;
    let pictures = plan.pictures(request.device(), layers(request), into, width);
    let kind = |pool: &Pool| plan.resources.iter().find(|resource| resource.pool == pool.id)?.handler.kind().about();
    let terms: Vec<(&str, &str)> = plan.pools.iter().filter_map(|pool| Some((pool.id.as_str(), kind(pool)?))).collect();
    let planned = match request.engine() {
        Some(engine) => json_of(&request.predict(engine)?.beside(&plan))?,
        None => json_of(&plan)?,
    };
    let knobs = request.knobs(&plan);
    let knobs: Vec<Value> =
        knobs.iter().map(|knob| json!({ "change": knob.change, "sequences": knob.sequences })).collect();
    let (mut stated, mut usual) = (serde_json::Map::new(), serde_json::Map::new());
    for setting in &request.config().settings {
        let told = (setting.key.to_owned(), Value::from(setting.value.clone()));
        stated.extend(Some(told.clone()).filter(|_| setting.origin.is_stated()));
        usual.extend(Some(told).filter(|_| setting.origin.is_of_device()));
    }
    Ok(json!({
        "plan": planned,
        "pictures": json_of(&pictures)?,
        "terms": terms,
        "ranks": heading,
        "stages": stages,
        "knobs": knobs,
        "totals": plan.totals_in_words(),
        "at_best": at_best,
        "devices": devices,
        "per_hour": per_hour,
        "stated": stated,
        "usual": usual,
        "notes": request.notes(),
        "device": json_of(&request.device())?,
    }))
}

/// A file that the command writes of a plan.
pub(crate) fn file(request: &PlanRequest, format: Format) -> Result<Value, Refused> {
    let plan = request.plan()?;
    let text = match format {
        Format::Svg => plan.svg_on(request.device()),
        Format::Html => plan.html(request.device(), layers(request), &request.curves(&[], &engines())),
    };
    Ok(json!({ "text": text }))
}

/// Lengths of one set of curves.
const MOST_LENGTHS: usize = 32;

pub(crate) fn curves(request: &PlanRequest, contexts: &[u64], width: f64) -> Result<Value, Refused> {
    if contexts.len() > MOST_LENGTHS {
        return Err(Refused::usage(format!("capacity at more than {MOST_LENGTHS} lengths is not asked for at once")));
    }
    let plan = request.plan()?;
    let curves = request.curves(contexts, &engines());
    Ok(json!({ "curves": json_of(&curves)?, "pictures": json_of(&curves.pictures(&plan, width))? }))
}

pub(crate) fn explain(request: &PlanRequest, of: &str) -> Result<Value, Refused> {
    let plan = request.plan()?;
    let derivation = request.explain(&plan, of).map_err(Refused::error)?;
    Ok(json!({ "derivation": json_of(&derivation)? }))
}

pub(crate) fn flags(request: &PlanRequest, model: Option<String>) -> Result<Value, Refused> {
    let plan = request.plan()?;
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

#[expect(clippy::too_many_arguments, reason = "one for each field of the question")]
pub(crate) fn fit(
    request: &PlanRequest,
    context: u64,
    sequences: u64,
    devices: &[String],
    max_devices: u32,
    weights: Option<ByteSize>,
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
    let question = FitQuestion {
        model: None,
        stated: Vec::new(),
        context,
        sequences,
        devices: devices?,
        max_devices,
        margin: 0,
        weights: weights.map(Into::into),
        prices,
    };
    // By the planner's own pools, as all else that the page says of a plan.
    let answer = request.fit(&question)?;
    // Of an engine there is none: its own number stands beside the plan that a row opens.
    let flags = answer.best().map(|fit| fit.plan_flags(context));
    let pictures = json_of(&answer.pictures(width))?;
    let (svg, html) = (answer.svg(), answer.html());
    Ok(json!({ "answer": json_of(&answer)?, "flags": flags, "pictures": pictures, "svg": svg, "html": html }))
}

/// Sizes of the cache that one question simulates.
const MOST_SIZES: usize = 16;

pub(crate) fn simulate(request: &PlanRequest, workload: Workload, checkpoints: &[usize]) -> Result<Value, Refused> {
    if checkpoints.len() > MOST_SIZES {
        return Err(Refused::usage(format!("at most {MOST_SIZES} numbers of checkpoints are simulated at once")));
    }
    let plan = request.plan()?;
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
pub(crate) fn rates(request: &PlanRequest, rates: &[(String, Vec<(u64, f64)>)], width: f64) -> Result<Value, Refused> {
    if rates.len() > MOST_RATES || rates.iter().any(|(_, points)| points.len() > MOST_SIZES) {
        return Err(Refused::usage(format!("at most {MOST_RATES} policies at {MOST_SIZES} sizes are drawn at once")));
    }
    json_of(&request.plan()?.rates(rates, width))
}

/// Tokens per chunk of a scan, as the command takes it.
const CHUNK: usize = 64;
