//! `cacheplan plan check`: whether a plan is right, and still that of its model, budget and device.

use std::fmt::Display;
use std::path::PathBuf;

use cacheplan::files::Shown;
use cacheplan::planner::EngineSpec;
use cacheplan::planner::check::Violation;

use crate::commands::hub;
use crate::commands::load::{Reading, Target, read_engine_plan, refused};
use crate::failure::{DRIFT, Failure, print};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// A plan as `plan --out` writes it, also that of a pipeline stage
    file: PathBuf,

    /// The model it was made for; without it only what the plan says of itself is proved
    #[arg(long, value_name = "MODEL", value_parser = hub::model())]
    model: Option<PathBuf>,

    #[command(flatten)]
    reading: Reading,

    #[command(flatten)]
    target: Target,

    /// The engine that the plan was made beside, where one was named
    #[arg(long = "as", value_name = "ENGINE[@VERSION]", requires = "model")]
    engine: Option<EngineSpec>,
}

/// The most lines of what differs from a plan that was made anew.
const MOST_LINES: usize = 40;

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let (plan, prediction) = read_engine_plan(&args.file)?;
    let file = Shown(args.file.display().to_string());
    let Some(model) = &args.model else {
        if args.reading.is_stated() || args.target.is_stated() {
            return Err(Failure::new(2, "flags about the model, its budget and its device need --model"));
        }
        return print(&format!(
            "{file}: {} resources in {} pools are consistent; limits, capacity, ledger{} and fingerprint need --model\n",
            plan.resources.len(),
            plan.pools.len(),
            if prediction.is_some() { ", what the engine allocates" } else { "" }
        ));
    };
    let request = args.reading.request(model, &args.target, args.engine)?;
    let Some(stage) = request.stage_of(&plan).map_err(refused)? else {
        let stale = plan.fingerprint.differences(&request.fingerprint().map_err(refused)?);
        let anew = request.plan().map(|anew| plan.diff(&anew).table()).unwrap_or_default();
        let lines: String = anew.lines().take(MOST_LINES).map(|line| format!("\n  {line}")).collect();
        let others = stale.join(" and another ");
        return Err(Failure::new(DRIFT, format!("{file} was made for another {others}; plan anew{lines}")));
    };
    let wrong = |violations: Vec<Violation>| drift(&format!("{file} is wrong"), &violations);
    request.check(&plan).map_err(wrong)?;
    if let Some(prediction) = &prediction {
        request.of_stage(stage).check_prediction(prediction).map_err(wrong)?;
    }
    let (resources, pools) = (plan.resources.len(), plan.pools.len());
    print(&format!("{file}: {resources} resources in {pools} pools are proved for this model, budget and device\n"))
}

fn drift(what: &str, violations: &[impl Display]) -> Failure {
    let lines: String = violations.iter().map(|violation| format!("\n  {violation}")).collect();
    Failure::new(DRIFT, format!("{what}{lines}"))
}
