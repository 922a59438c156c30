//! What engines would hold of a plan: each by the command that its layout comes to, answered as one that was pasted.

use cacheplan_planner::engines::Layout;
use cacheplan_planner::{Devices, Engine, EngineSpec, Override, PlanRequest};
use cacheplan_serve::{Launch, Models, Options, Starts, line, outcome};
use serde_json::{Value, json};

use crate::answers::Refused;
use crate::question::PlanQuestion;

/// The engines that can be told the layout, each with the least and the most that it holds; none where the budget states what no
/// command says.
pub(crate) fn admits(request: &PlanRequest, of: &PlanQuestion, people: u64) -> Result<Value, Refused> {
    let config = request.config();
    let is_said = |key: &str| {
        matches!(key, "max_seq_len" | "memory.weights" | "dtypes.kv" | "dtypes.ssm") || key.starts_with("parallel.")
    };
    let mut stated = config.settings.iter().filter(|setting| setting.origin.is_stated());
    let devices = of.device.trim().parse::<Devices>().ok();
    let Some(devices) = devices.filter(|_| of.draft.is_none() && stated.all(|setting| is_said(setting.key))) else {
        return Ok(json!({ "engines": [] }));
    };
    let ranks = request.ranks()?;
    let parallel = ranks.parallel;
    let plan = ranks.into_stage(request.stage())?;
    let planned = plan.deployment.as_ref().map_or(plan.capacity.sequences, |all| all.sequences);
    let told = |sequences: u64| {
        let alone = Layout::alone(plan.limits.max_seq_len, sequences, config.budget.dtypes);
        Layout { parallel, ..alone }
    };
    let weights = config.budget.memory.as_ref().and_then(|memory| memory.weights);
    let weights = weights.map(|size| Override::by_argument("memory.weights", size.stated(), "the weights"));
    let models = Models { model: request.model().clone(), draft: None };
    let of_engine = |engine: &Engine| {
        let spec = EngineSpec::from(*engine);
        let version = spec.version_name();
        // llama.cpp takes the cells of all that it is told of; others are told of no fewer than there may be room for.
        let sequences = if engine.name() == "llama.cpp" { people } else { planned.max(people) };
        let launch = Launch::serving(spec, "MODEL").told(&told(sequences), Some(&version)).ok()??;
        let options = Options {
            version: Some(version.clone()),
            devices: Some(devices.clone()),
            overrides: weights.clone().into_iter().collect(),
            model_is_given: true,
            ..Options::default()
        };
        let found = outcome(&launch, &models, &options).ok()?;
        let held = found.sequences.filter(|_| found.starts != Starts::No);
        let of_all = |sequences: u64| sequences.saturating_mul(found.replicas);
        let [low, high] = held.map_or([0; 2], |held| [held.low, held.high].map(of_all));
        let low = if found.starts == Starts::Yes { low } else { 0 };
        let command = line(&found.command);
        Some(
            json!({ "engine": engine.name(), "version": version, "sequences": { "low": low, "high": high }, "command": command }),
        )
    };
    Ok(json!({ "engines": Engine::all().iter().filter_map(of_engine).collect::<Vec<_>>() }))
}
