//! `bench`: how close each op comes to what the device can do.

mod limits;
mod shapes;

use crate::driver::{Description, Gpu};
use crate::emulated::Emulator;
use crate::gpu::Measured;
use crate::machine::{Cost, End, Machine, Watch};
use crate::modules::MODULES;
use crate::table::table;
use crate::{Failure, Target, note, print};
use cacheplan_kernels::cases::{Case, Data, Work};
use limits::Limits;
use serde::Serialize;
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only the ops whose name contains this
    #[arg(default_value = "")]
    op: String,
    /// `cuda:0`, `cuda:1`, .., or `emulator`, which counts sectors and instructions at tiny sizes
    #[arg(long, default_value = "cuda:0")]
    device: Target,
    /// Write the figures to a file too
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the sizes alone, which needs no device, for others to measure
    #[arg(long)]
    list: bool,
}

/// What was measured. `benches/peers/cuda.py` reads and writes the same form.
#[derive(Serialize)]
struct Bench {
    by: String,
    device: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<Description>,
    #[serde(skip_serializing_if = "Option::is_none")]
    limits: Option<Limits>,
    figures: Vec<Figure>,
}

/// One op at one size.
#[derive(Serialize)]
struct Figure {
    op: &'static str,
    sizes: Map<String, Value>,
    variant: String,
    bytes: u64,
    flops: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    microseconds: Option<f64>,
    /// Of the limit that binds, and which that is.
    #[serde(skip_serializing_if = "Option::is_none")]
    part: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sectors: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ideal_sectors: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    warp_instructions_per_kib: Option<f64>,
    /// Why there is no figure.
    #[serde(skip_serializing_if = "Option::is_none")]
    missing: Option<String>,
}

impl Figure {
    fn new(case: &Case) -> Self {
        Self {
            op: case.op,
            sizes: case.sizes.iter().map(|&(name, size)| (name.to_owned(), size.into())).collect(),
            variant: case.variant.clone(),
            bytes: case.work.bytes,
            flops: case.work.flops,
            microseconds: None,
            part: None,
            limit: None,
            sectors: None,
            ideal_sectors: None,
            warp_instructions_per_kib: None,
            missing: None,
        }
    }

    fn add(&mut self, work: Work, cost: Cost, limits: Option<&Limits>) {
        if let Some(seconds) = cost.seconds {
            self.microseconds = Some(seconds * 1e6);
            if let Some(limits) = limits {
                let (floor, limit) = limits.floor(work);
                (self.part, self.limit) = (Some(floor / seconds), Some(limit));
            }
        }
        if let Some([sectors, ideal, instructions, moved]) = cost.counts {
            (self.sectors, self.ideal_sectors) = (Some(sectors), Some(ideal));
            self.warp_instructions_per_kib = Some(instructions as f64 * 1024.0 / moved.max(1) as f64);
        }
    }

    fn row(&self, case: &Case) -> Vec<String> {
        let or_none = |text: Option<String>| text.unwrap_or_else(|| "none".to_owned());
        let rate = self.microseconds.map(|time| match self.limit {
            Some("matmul") => format!("{:.1} TFLOP/s", self.flops as f64 / time / 1e6),
            _ => format!("{:.0} GB/s", self.bytes as f64 / time / 1e3),
        });
        let mut row = vec![self.op.to_owned(), case.to_string()];
        if self.sectors.is_some() || self.microseconds.is_none() && self.missing.is_none() {
            let ratio = self.sectors.zip(self.ideal_sectors).map(|(all, ideal)| all as f64 / ideal.max(1) as f64);
            row.push(or_none(self.sectors.map(|sectors| sectors.to_string())));
            row.push(or_none(ratio.map(|ratio| format!("{ratio:.2}"))));
            row.push(or_none(self.warp_instructions_per_kib.map(|count| format!("{count:.0}"))));
        } else {
            row.push(or_none(self.microseconds.map(|time| format!("{time:.1} µs"))));
            row.push(or_none(rate));
            row.push(or_none(self.part.zip(self.limit).map(|(part, limit)| format!("{part:.2} of {limit}"))));
        }
        row.push(self.missing.clone().unwrap_or_default());
        row
    }
}

pub(crate) fn run(args: &Args) -> Result<bool, Failure> {
    let tiny = args.device == Target::Emulator && !args.list;
    let mut cases = shapes::all(tiny);
    cases.retain(|case| case.op.contains(&args.op));
    if cases.is_empty() {
        return Err(Failure::NoOp(args.op.clone()));
    }
    let by = format!("cacheplan {}", env!("CARGO_PKG_VERSION"));
    let mut bench = Bench { by, device: args.device.to_string(), description: None, limits: None, figures: Vec::new() };
    if args.list {
        bench.figures = cases.iter().map(Figure::new).collect();
        let text = json(&bench);
        return args.json.as_deref().map_or_else(|| print(&text), |file| write(file, &text)).map(|()| true);
    }
    let mut room = u64::MAX;
    let machine: Box<dyn Machine> = match args.device {
        // One processor: a context is split as little as that of a large batch is.
        Target::Emulator => Box::new(Emulator::new(1, 1)?),
        Target::Cuda(number) => {
            let gpu = Gpu::open(number, &MODULES.iter().map(|module| module.binary).collect::<Vec<_>>())?;
            let description = gpu.describe()?;
            let measured = Measured::new(gpu, description.target(), description.l2_bytes)?;
            let limits = Limits::measure(&measured, description.processors)?;
            print(&format!("{}\n{limits}\n", told(args.device, &description)))?;
            room = measured.gpu().describe()?.free_bytes as u64;
            (bench.description, bench.limits) = (Some(description), Some(limits));
            Box::new(measured)
        }
    };
    let watch = Watch::new(machine);
    let mut rows = Vec::new();
    for case in &cases {
        let mut figure = Figure::new(case);
        // What a call reads and writes lies on the device, and little else.
        if case.work.bytes > room / 10 * 9 {
            figure.missing = Some(format!("{} GiB do not fit", case.work.bytes >> 30));
        } else {
            let outcome = watch.call(|on| case.call(on, &mut Data::Blank));
            match outcome.end {
                End::Given(_) => figure.add(case.work, outcome.cost, bench.limits.as_ref()),
                End::Left => figure.missing = Some("no kernel".to_owned()),
                End::Failed(what) => figure.missing = Some(what),
            }
        }
        note(&figure.row(case).join("  "));
        rows.push(figure.row(case));
        bench.figures.push(figure);
    }
    let headings = if tiny {
        ["op", "size", ">sectors", ">of the fewest", ">warp instructions a KiB", ""]
    } else {
        ["op", "size", ">time", ">rate", ">part", ""]
    };
    print(&table(&headings, &rows))?;
    if let Some(file) = &args.json {
        write(file, &json(&bench))?;
    }
    let failed =
        |figure: &Figure| figure.missing.as_deref().is_some_and(|what| what != "no kernel" && !what.ends_with("fit"));
    Ok(!bench.figures.iter().any(failed))
}

fn told(device: Target, found: &Description) -> String {
    format!(
        "{device}: {}, driver of CUDA {}, {} processors, {} MiB of second-level cache, clocks up to {} and {} MHz (memory)\n\
         Medians of repeats with cold caches; `part` is of the copy rate or of the products of matrices, whichever binds.\n",
        found.name,
        found.driver,
        found.processors,
        found.l2_bytes >> 20,
        found.clock_khz / 1000,
        found.memory_clock_khz / 1000
    )
}

fn json(bench: &Bench) -> String {
    serde_json::to_string_pretty(bench).unwrap_or_default() + "\n"
}

fn write(file: &Path, text: &str) -> Result<(), Failure> {
    std::fs::write(file, text).map_err(|source| Failure::File { file: file.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A part is the time that the binding limit asks for, over the time taken.
    #[test]
    fn parts_are_of_the_limit_that_binds() {
        let limits =
            Limits { copy_bytes_per_second: 4e12, driver_copy_bytes_per_second: 3e12, matmul_flops_per_second: 8e14 };
        let case = shapes::all(true).remove(0);
        let mut figure = Figure::new(&case);
        let cost = Cost { seconds: Some(2e-6), counts: None };
        figure.add(Work { bytes: 4_000_000, flops: 8 }, cost, Some(&limits));
        assert_eq!((figure.part, figure.limit), (Some(0.5), Some("copy")));
        figure.add(Work { bytes: 4, flops: 400_000_000 }, cost, Some(&limits));
        assert_eq!((figure.part, figure.limit), (Some(0.25), Some("matmul")));
    }

    /// In the emulator nothing moves but what is counted, and little of it twice.
    #[test]
    fn bytes_that_are_counted_are_bytes_that_move() {
        let emulator = Watch::new(Box::new(Emulator::new(1, 1).unwrap()));
        let (mut compared, mut wrong) = (0, Vec::new());
        for case in shapes::all(true) {
            let outcome = emulator.call(|on| case.call(on, &mut Data::random(1)));
            if let (End::Given(_), Some([_, _, _, moved])) = (&outcome.end, outcome.cost.counts) {
                let ratio = moved as f64 / case.work.bytes as f64;
                if !(0.8..shapes::slack(&case)).contains(&ratio) {
                    wrong.push(format!("{}, {case}: {ratio} of {:?}", case.op, case.work));
                }
                compared += 1;
            } else {
                assert!(matches!(outcome.end, End::Left), "{}, {case}", case.op);
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        assert!(compared > 20, "{compared} ops have kernels");
    }
}
