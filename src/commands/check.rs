//! `cacheplan plan check`: whether a plan is right, and still that of its model, budget and device.

use std::path::PathBuf;

use cacheplan::planner::{ByteSize, Fingerprint, PlanRequest, Violation, check, check_alone};
use miette::miette;

use crate::commands::load::{Grouping, Source, read_plan, stated_device};
use crate::failure::{Failure, print};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// A plan as `plan --out` writes it
    file: PathBuf,

    /// The model it was made for; without it only what the plan says of itself is proved
    #[arg(long, value_name = "MODEL")]
    model: Option<PathBuf>,

    /// The budget it was made for
    #[arg(long, value_name = "FILE", requires = "model")]
    budget: Option<PathBuf>,

    /// The grouping it was made with, where a flag stated it
    #[arg(long, value_enum, value_name = "POLICY", requires = "model")]
    grouping: Option<Grouping>,

    /// Memory of the device it was made for, where a flag stated it
    #[arg(long, value_name = "SIZE", requires = "model")]
    device_memory: Option<ByteSize>,
}

/// The exit code of a plan that is not, or no longer, right.
const DRIFT: u8 = 5;

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let plan = read_plan(&args.file)?;
    let file = args.file.display();
    let Some(model) = &args.model else {
        check_alone(&plan).map_err(|violations| drift(&format!("{file} contradicts itself"), &violations))?;
        return print(&format!(
            "{file}: {} resources in {} pools are consistent; limits, capacity and fingerprint need --model\n",
            plan.resources.len(),
            plan.pools.len()
        ));
    };
    let loaded = Source::of(model.clone(), args.budget.clone(), args.grouping).load()?;
    let device = args.device_memory.map(stated_device);
    let request = PlanRequest {
        device: device.as_ref(),
        ..PlanRequest::new(&loaded.model.info, &loaded.collected.resources, &loaded.budget)
    };
    let stale = plan.fingerprint.differences(&Fingerprint::of(&request));
    if !stale.is_empty() {
        return Err(drift(&format!("{file} was made for another {}; plan anew", stale.join(" and another ")), &[]));
    }
    check(&request, &plan).map_err(|violations| drift(&format!("{file} is wrong"), &violations))?;
    let (resources, pools) = (plan.resources.len(), plan.pools.len());
    print(&format!("{file}: {resources} resources in {pools} pools are proved for this model, budget and device\n"))
}

fn drift(what: &str, violations: &[Violation]) -> Failure {
    let lines: String = violations.iter().map(|violation| format!("\n  {violation}")).collect();
    Failure::new(DRIFT, miette!("{what}{lines}"))
}
