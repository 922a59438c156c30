//! What engines would hold of a plan: each asked as `fit` asks it, by the command that the plan's layout comes to.

use std::collections::BTreeMap;

use cacheplan_planner::fit::Answer;
use cacheplan_planner::{Devices, Engine, EngineSpec, FitQuestion, PlanRequest, Prices};
use cacheplan_serve::fit::Asks;
use serde_json::{Value, json};

use crate::answers::{self, Refused};
use crate::question::PlanQuestion;

/// The engines that can be told the layout, each by its row, and why others are not asked; of one by its name or, where that is
/// empty, of the usual one where only that is asked.
pub(crate) fn admits(
    request: &PlanRequest,
    of: &PlanQuestion,
    people: u64,
    by: Option<&str>,
    prices: Prices,
) -> Result<Value, Refused> {
    let not_asked = |why: String| Ok(json!({ "engines": [], "unasked": [why] }));
    let Ok(devices) = of.device.trim().parse::<Devices>() else {
        return not_asked("no engine is asked: it would be by a command on a GPU, and none is named".into());
    };
    if of.draft.is_some() {
        return not_asked("no engine is asked: what it takes with a draft model “Read a command” says".into());
    }
    let settings = request.config().settings.iter().filter(|set| set.origin.is_stated());
    let unsaid: Vec<&str> = settings.map(|set| set.key).filter(|key| !is_said(key)).collect();
    if !unsaid.is_empty() {
        let keys = unsaid.join(", ");
        return not_asked(format!(
            "no engine is asked: their shortest commands do not say {keys}, which the budget states; “Read a command” takes yours"
        ));
    }
    let budget = request.budget()?;
    let longest = request.model().model().and_then(|model| model.info.max_position_embeddings);
    let Some(context) = budget.max_seq_len.or(longest) else {
        return not_asked("no engine is asked: of how many tokens a sequence is, nobody says".into());
    };
    let device = devices.device().clone();
    let question = FitQuestion {
        model: Some("MODEL".into()),
        stated: Vec::new(),
        context,
        sequences: people,
        devices: vec![(device.name.clone(), device)],
        max_devices: devices.count(),
        margin: 0,
        weights: answers::weights_of(request, of.weights)?,
        prices,
    };
    let asks = Asks::of_model(request, question.model.as_deref());
    let usual = asks.usual_engine(devices.device(), question.weights);
    let asked: Vec<EngineSpec> = match by {
        None => Engine::all().iter().copied().map(EngineSpec::from).collect(),
        Some("") => vec![usual.parse().map_err(Refused::usage)?],
        Some(name) => vec![name.parse().map_err(Refused::usage)?],
    };
    let mut engines = Vec::new();
    // Engines of which the same is said share a sentence.
    let mut unasked: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for spec in asked {
        let why = match asks.as_divided(request, &question, spec) {
            Ok(Some(answer)) => {
                engines.extend(told(&answer, spec));
                continue;
            }
            Ok(None) => "it can be told no such layout".to_owned(),
            Err(error) => error.to_string(),
        };
        let why = why.lines().next().unwrap_or_default().to_owned();
        unasked.entry(why).or_default().push(format!("{} {}", spec.engine.name(), spec.version_name()));
    }
    let said = |(why, names): (String, Vec<String>)| {
        let are = if names.len() == 1 { "is" } else { "are" };
        format!("{} {are} not asked: {why}", names.join(", "))
    };
    let unasked: Vec<String> = unasked.into_iter().map(said).collect();
    Ok(json!({ "engines": engines, "unasked": unasked, "usual": usual }))
}

/// Whether an engine's own command says a key, or what lies beside that on its devices.
fn is_said(key: &str) -> bool {
    matches!(key, "max_seq_len" | "memory.weights" | "memory.reserve" | "dtypes.kv" | "dtypes.ssm")
        || key.starts_with("parallel.")
}

/// The row of an engine as `fit` has it, and its command where it may hold any.
fn told(answer: &Answer, spec: EngineSpec) -> Option<Value> {
    let row = answer.fits.first()?;
    let [low, high] = row.sequences_between.unwrap_or([row.sequences; 2]);
    let served = answer.served(row, spec).filter(|_| high > 0);
    let command = served.as_ref().map(|served| format!("{} {} {}", served.program, served.model, served.flags));
    let others = served.as_ref().and_then(|served| Some((&served.model, served.others?)));
    // Of none the pool that lacks is no limit that somebody set.
    let (capped_by, caches) = if high == 0 && row.longest.is_none() { ("memory", None) } else { row.ending() };
    let others = others.map(|(name, others)| json!({ "name": name, "bytes": others.bytes.0, "own": others.own.0 }));
    Some(json!({
        "engine": spec.engine.name(),
        "version": spec.version_name(),
        "devices": row.devices,
        "sequences": { "low": low, "high": high },
        "capped_by": capped_by,
        "caches": caches,
        "at_best": row.at_best,
        "per_hour": row.per_hour,
        "command": command,
        "others": others,
    }))
}
