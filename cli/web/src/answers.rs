//! What the planner says to each question: the calls that the command makes, as JSON.

use cacheplan_managers::simulate::{Policy, Scenario, Workload};
use cacheplan_planner::budget::Origin;
use cacheplan_planner::{
    Budget, BudgetError, BudgetKey, ByteSize, Config, DeviceInfo, Devices, Engine, EngineSpec, FitQuestion,
    MeasuredLedger, ModelCaches, Override, Parallel, PlanError, PlanRequest, Pool, Prices, Serving, StatedWeights,
    Target, Values,
};
use cacheplan_serve::ServeError;
use cacheplan_serve::fit::{Asks, By};
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
    let device = devices.as_ref().map(Devices::device);
    let resolved = |flags: &[Override]| Config::resolve_on(device, Some((&of.budget, "the budget")), &[], flags);
    let mut config = resolved(&[])?;
    if let Some(stated) = of.weights.filter(|_| !states_weights(&config)) {
        let bytes = weights_as(&request, stated, engine)?;
        let assumed = format!("{stated} weights, assumed");
        config = resolved(&[Override::by_argument("memory.weights", bytes.0.to_string(), assumed)])?;
    }
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

/// Whether somebody typed what the weights take, which stands above what is assumed of them.
fn states_weights(config: &Config) -> bool {
    config.budget.memory.as_ref().is_some_and(|memory| memory.weights.is_some())
}

/// What somebody typed of the weights; what is assumed of bits nobody did.
fn typed_weights(request: &PlanRequest) -> Option<&str> {
    let mut settings = request.config().settings.iter();
    let set = settings.find(|set| set.key == "memory.weights")?;
    matches!(set.origin, Origin::File { .. }).then(|| set.value.trim_matches('"'))
}

/// The weights that a request's budget states, or else those that are chosen.
pub(crate) fn weights_of(
    request: &PlanRequest,
    chosen: Option<StatedWeights>,
) -> Result<Option<StatedWeights>, Refused> {
    let stated = request.config().budget.memory.as_ref().and_then(|memory| memory.weights);
    match (stated, chosen) {
        (Some(size), _) => Ok(Some(size.into())),
        (None, chosen) => chosen.map(|chosen| weights_as(request, chosen, None).map(|_| chosen)).transpose(),
    }
}

/// What the weights would take as they are chosen.
fn weights_as(request: &PlanRequest, chosen: StatedWeights, engine: Option<EngineSpec>) -> Result<ByteSize, Refused> {
    let unknown = || {
        let why = request.model().model().and_then(|model| model.weights_unknown.as_ref());
        let why = why.map(|why| format!(" ({why})")).unwrap_or_default();
        let why = match request.model().is_in_full() {
            true => format!("the size of its own is not{why}"),
            false => "its own are quantised".to_owned(),
        };
        Refused::usage(format!(
            "what {chosen} weights of this model take is not known, since {why}; state what the file takes as memory.weights (--weights)"
        ))
    };
    request.weights_as(chosen, engine.map(|engine| engine.engine)).ok_or_else(unknown)
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
        "engines": Engine::all().iter().map(|engine| engine.name()).collect::<Vec<_>>(),
        "reads_disk": reads_disk,
        "version": env!("CARGO_PKG_VERSION"),
    })
}

/// Weights that a model may be quantised to: for engines of checkpoints, and as the files that llama.cpp serves are called.
const OFFERED: [&str; 6] = ["fp8", "int4", "Q4_K_M", "Q5_K_M", "Q6_K", "Q8_0"];

/// What a model says of itself.
pub(crate) fn opened(number: u64, model: &Model) -> Value {
    let info = &model.info;
    let request = PlanRequest::of(ModelCaches::from(model.clone()));
    let offered = OFFERED.iter().filter_map(|word| {
        let chosen: StatedWeights = word.parse().ok()?;
        let of_file = matches!(chosen, StatedWeights::Gguf(_));
        let (called, bits) = match chosen {
            StatedWeights::Gguf(of) => (of.name.to_owned(), Some(of.bits())),
            chosen => (chosen.to_string(), None),
        };
        let bytes = request.weights_as(chosen, None);
        Some(json!({ "word": word, "called": called, "file": of_file, "bits": bits, "bytes": bytes.map(|bytes| bytes.0) }))
    });
    let walked = model.graph.clone().collect(&Budget::default().pass_context(info));
    let inspection = walked.map(|collected| model.inspection(&collected).to_string());
    json!({
        "model": number,
        "type": info.model_type,
        "source": model.source,
        "dtype": info.dtype.to_string(),
        "longest": info.max_position_embeddings,
        "weights": { "stored": info.weights.map(|weights| weights.bytes), "offered": offered.collect::<Vec<_>>() },
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
        "weights_typed": typed_weights(request),
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

/// A request with what a budget says that holds of any device, what others take of it, and the weights that it states.
pub(crate) fn on_any_device(
    request: PlanRequest,
    budget: &str,
    devices: &[String],
) -> Result<(PlanRequest, Option<StatedWeights>), Refused> {
    let device = devices.first().and_then(|name| name.parse::<DeviceInfo>().ok());
    let stated = Config::resolve_on(device.as_ref(), Some((budget, "the budget")), &[], &[])?;
    let memory = stated.budget.memory.unwrap_or_default();
    let reserve = memory.reserve.map(|size| Override::by_argument("memory.reserve", size.stated(), "what others take"));
    let weights = memory.weights.map(StatedWeights::Bytes);
    match reserve {
        // Where nobody says anything of memory each device is planned as if alone.
        None => Ok((request, weights)),
        Some(reserve) => {
            Ok((request.with_config(Config::resolve_on(device.as_ref(), None, &[], &[reserve])?), weights))
        }
    }
}

/// What devices are asked to hold, and by whose rules.
pub(crate) struct FitAsked<'a> {
    pub(crate) context: u64,
    pub(crate) sequences: u64,
    pub(crate) devices: &'a [String],
    pub(crate) max_devices: u32,
    pub(crate) weights: Option<StatedWeights>,
    pub(crate) prices: Prices,
    /// Those that are usual where nobody says.
    pub(crate) by: Option<By>,
}

pub(crate) fn fit(request: &PlanRequest, asked: FitAsked<'_>, width: f64) -> Result<Value, Refused> {
    let FitAsked { context, sequences, devices, max_devices, weights, prices, by } = asked;
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
        weights,
        prices,
    };
    let found = Asks::of_model(request, None).fit(&[(request, question)], by.as_slice());
    let answer = found.map_err(|error| match error {
        ServeError::Plan(error) => error.into(),
        other => Refused::new(other.exit_code(), other),
    })?;
    let answer = answer.ok_or_else(|| Refused::usage("no device is named"))?;
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
