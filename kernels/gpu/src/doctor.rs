//! `doctor`: every op on random inputs against the op on the CPU.

mod checks;

use crate::driver::{Description, Gpu};
use crate::emulated::Emulator;
use crate::gpu::Checked;
use crate::machine::{End, Machine, Watch};
use crate::modules::MODULES;
use crate::table::table;
use crate::{Failure, Form, Target, fresh_seed, note, print};
use cacheplan_kernels::Backend;
use cacheplan_kernels::cases::{Case, Data, furthest};
use serde::Serialize;
use std::collections::BTreeSet;

/// Of the emulator: so many that a context of a few blocks is split.
const PROCESSORS: usize = 32;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// `cuda:0`, `cuda:1`, .., or `emulator`, which needs no GPU
    #[arg(long, default_value = "cuda:0")]
    device: Target,
    /// What inputs follow from; a new one each time, which is printed
    #[arg(long)]
    seed: Option<u64>,
    /// At the sizes of the emulator, for tools under which all is slow
    #[arg(long)]
    small: bool,
    /// How to print
    #[arg(long, value_enum, default_value_t = Form::Table)]
    format: Form,
}

/// All that was found.
#[derive(Serialize)]
struct Findings {
    device: String,
    /// None for the emulator.
    description: Option<Description>,
    seed: u64,
    checks: Vec<Check>,
    /// Kernels in this binary that no check asked for.
    not_run: Vec<String>,
    holds: bool,
}

/// One case, and what became of it.
#[derive(Serialize)]
struct Check {
    op: &'static str,
    case: String,
    kernels: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<f32>,
    tolerance: f32,
    verdict: Verdict,
    #[serde(skip_serializing_if = "Option::is_none")]
    what: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Holds,
    Wrong,
    /// No kernel was made for it: on a device it runs as candle's own ops, which are not here.
    Portable,
}

pub(crate) fn run(args: &Args) -> Result<bool, Failure> {
    let seed = args.seed.unwrap_or_else(fresh_seed);
    let (machine, description): (Box<dyn Machine>, _) = match args.device {
        Target::Emulator => (Box::new(Emulator::new(seed, PROCESSORS)?), None),
        Target::Cuda(number) => {
            let gpu = Gpu::open(number, &MODULES.iter().map(|module| module.binary).collect::<Vec<_>>())?;
            let description = gpu.describe()?;
            (Box::new(Checked::new(gpu, description.target())), Some(description))
        }
    };
    if args.format == Form::Table {
        print(&heading(args.device, description.as_ref(), seed))?;
    }
    let cases = checks::all(description.is_some() && !args.small);
    let checks = check(&cases, machine, seed)?;
    let run: BTreeSet<&str> = checks.iter().flat_map(|check| &check.kernels).map(String::as_str).collect();
    let not_run = kernels().filter(|name| !run.contains(name)).map(str::to_owned).collect();
    let holds = checks.iter().all(|check| check.verdict != Verdict::Wrong);
    let findings = Findings { device: args.device.to_string(), description, seed, checks, not_run, holds };
    match args.format {
        Form::Json => print(&format!("{}\n", serde_json::to_string_pretty(&findings).unwrap_or_default()))?,
        Form::Table => print(&report(&findings))?,
    }
    Ok(holds)
}

/// The kernels of ops in this binary: what measures the device itself is none.
fn kernels() -> impl Iterator<Item = &'static str> {
    let of_ops = MODULES.iter().filter(|module| module.name != "machine");
    of_ops
        .flat_map(|module| module.ptx.split(".entry ").skip(1).filter_map(|text| text.split('(').next()).map(str::trim))
}

/// Calls each case on the CPU, then on the machine, over the same data.
fn check(cases: &[Case], machine: Box<dyn Machine>, seed: u64) -> Result<Vec<Check>, Failure> {
    let data = |at: usize| Data::random(seed.wrapping_add(at as u64 * 0x1_0001));
    let watch = Watch::new(machine);
    let each = cases.iter().enumerate();
    each.map(|(at, case)| {
        let expected = case.call(&Backend::Cpu.run(), &mut data(at)).map_err(|source| Failure::Cpu {
            op: case.op,
            case: case.to_string(),
            source: Box::new(source),
        })?;
        let outcome = watch.call(|on| case.call(on, &mut data(at)));
        let (error, verdict, what) = match outcome.end {
            End::Left => (None, Verdict::Portable, None),
            End::Failed(what) => (None, Verdict::Wrong, Some(what)),
            End::Given(found) => {
                let error = furthest(&found, &expected);
                (Some(error), if error <= case.tolerance { Verdict::Holds } else { Verdict::Wrong }, None)
            }
        };
        if verdict == Verdict::Wrong {
            note(&format!("{}, {case}: {}", case.op, what.as_deref().unwrap_or("too far from the CPU")));
        }
        let (op, tolerance, kernels) = (case.op, case.tolerance, outcome.kernels);
        Ok(Check { op, case: case.to_string(), kernels, error, tolerance, verdict, what })
    })
    .collect()
}

fn heading(device: Target, description: Option<&Description>, seed: u64) -> String {
    let found = match description {
        None => "the emulator: nothing runs on a GPU".to_owned(),
        Some(found) => format!(
            "{}, compute capability {}, {} processors, {:.1} of {:.1} GiB free, driver of CUDA {}",
            found.name,
            found.compute_capability,
            found.processors,
            found.free_bytes as f64 / f64::from(1 << 30),
            found.memory_bytes as f64 / f64::from(1 << 30),
            found.driver
        ),
    };
    let bytes: usize = MODULES.iter().map(|module| module.binary.len()).sum();
    format!(
        "{device}: {found}\ncacheplan-gpu {}: {} kernels of {} files, {} KiB for {} and PTX\nseed {seed}\n\n",
        env!("CARGO_PKG_VERSION"),
        kernels().count(),
        MODULES.len(),
        bytes >> 10,
        include_str!("../../cuda/architectures.txt").lines().collect::<Vec<_>>().join(", ")
    )
}

fn report(findings: &Findings) -> String {
    let groups = groups(&findings.checks);
    let (portable, run): (Vec<_>, Vec<_>) = groups.iter().partition(|group| group.verdict() == Verdict::Portable);
    let rows: Vec<Vec<String>> = run.iter().map(|group| group.row()).collect();
    let mut text = table(&["op", "kernel", ">cases", ">largest error", ">tolerance", "verdict"], &rows);
    if !portable.is_empty() {
        let rows: Vec<Vec<String>> = portable
            .iter()
            .flat_map(|group| group.checks.iter().map(|check| vec![check.op.to_owned(), check.case.clone()]))
            .collect();
        text += "\nLeft to the portable path, for want of a kernel:\n";
        text += &table(&["op", "case"], &rows);
    }
    if !findings.not_run.is_empty() {
        text += &format!("\nKernels that no check asked for: {}\n", findings.not_run.join(", "));
    }
    let wrong = findings.checks.iter().filter(|check| check.verdict == Verdict::Wrong).count();
    let held = findings.checks.iter().filter(|check| check.verdict == Verdict::Holds).count();
    text + &match wrong {
        0 => format!("\nAll {held} checks hold.\n"),
        _ => format!("\n{wrong} checks do not hold, {held} do.\n"),
    }
}

/// Checks of one op and the same kernels, but for their formats and sizes.
struct Group<'a> {
    kernels: String,
    checks: Vec<&'a Check>,
}

fn groups(checks: &[Check]) -> Vec<Group<'_>> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    for check in checks {
        let kernels = families(&check.kernels, check.verdict);
        // Each tolerance has a row of its own.
        let same = |group: &&mut Group<'_>| {
            let first = group.checks[0];
            (first.op, &group.kernels, first.tolerance) == (check.op, &kernels, check.tolerance)
        };
        match groups.iter_mut().find(same) {
            Some(group) => group.checks.push(check),
            None => groups.push(Group { kernels, checks: vec![check] }),
        }
    }
    // Those of an op stand together, in the order in which it was first checked.
    let first = |op| checks.iter().position(|check| check.op == op);
    groups.sort_by_key(|group| first(group.checks[0].op));
    groups
}

/// Names of kernels without their formats and sizes.
fn families(kernels: &[String], verdict: Verdict) -> String {
    if verdict == Verdict::Portable {
        return "portable".to_owned();
    }
    let family = |kernel: &String| kernel.split('_').take(2).collect::<Vec<_>>().join("_");
    let mut families: Vec<String> = kernels.iter().map(family).collect();
    families.dedup();
    families.join(", ")
}

impl Group<'_> {
    fn verdict(&self) -> Verdict {
        let all = |verdict| self.checks.iter().all(|check| check.verdict == verdict);
        if all(Verdict::Portable) {
            Verdict::Portable
        } else if all(Verdict::Holds) {
            Verdict::Holds
        } else {
            Verdict::Wrong
        }
    }

    fn row(&self) -> Vec<String> {
        let mut errors = self.checks.iter().map(|check| check.error);
        let largest = errors.try_fold(0f32, |most, error| Some(most.max(error?)));
        vec![
            self.checks[0].op.to_owned(),
            self.kernels.clone(),
            self.checks.len().to_string(),
            largest.map_or_else(|| "none".to_owned(), |error| format!("{error:.1e}")),
            format!("{:.0e}", self.checks[0].tolerance),
            if self.verdict() == Verdict::Holds { "holds" } else { "WRONG" }.to_owned(),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::{Device, Tensor};

    #[test]
    fn errors_are_parts_of_the_largest_magnitude() {
        let tensor = |values: &[f32]| Tensor::new(values, &Device::Cpu).unwrap();
        let of = |values: &[f32]| furthest(&[tensor(values)], &[tensor(&[1.0, -2.0, f32::NAN])]);
        assert_eq!(of(&[1.0, -2.0, f32::NAN]), 0.0);
        assert!((of(&[1.0, -1.9, f32::NAN]) - 0.05).abs() < 1e-6);
        // No number where one was, a number where none was, and fewer of them.
        for wrong in [&[f32::NAN, -2.0, f32::NAN][..], &[1.0, -2.0, 0.0], &[1.0, -2.0]] {
            assert_eq!(of(wrong), f32::INFINITY, "{wrong:?}");
        }
    }

    #[test]
    fn an_op_that_gives_nothing_is_wrong() {
        assert_eq!(furthest(&[], &[Tensor::new(1f32, &Device::Cpu).unwrap()]), f32::INFINITY);
    }
}
