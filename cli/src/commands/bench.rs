//! `cacheplan bench`: what part of this machine's own rates each kernel reaches, on the CPU or, by `cacheplan-gpu`, on a device.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use cacheplan::files::{Limit, Source};
use cacheplan::kernels::roofline::{Measurement, run as measure, threads};
use serde::{Deserialize, Serialize};

use super::runner;
use crate::failure::{Failure, in_file, json, print_now, refuse_places, write};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only the ops with these words in their name, sizes or formats, such as `linear bf16`; of a device, with this name
    op: Option<String>,
    /// `cuda:0`, `cuda:1`, .., or `emulator`, which counts sectors and instructions; without it, this machine's CPU
    #[arg(long)]
    device: Option<String>,
    /// Write the figures to a file; of the CPU's `-` is stdout, without a table
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Compare the parts reached with those of an earlier file, and fail on a loss
    #[arg(long, value_name = "FILE", conflicts_with = "device")]
    against: Option<PathBuf>,
    /// The loss that is allowed, as a part of what was reached before
    #[arg(long, value_name = "PART", default_value_t = 0.1, value_parser = part, requires = "against")]
    loss: f64,
}

fn part(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|part| (0.0..1.0).contains(part)).ok_or("a number from 0 to below 1".to_owned())
}

/// What was measured, in the form of the device's figures.
#[derive(Serialize, Deserialize)]
struct Bench {
    by: String,
    device: String,
    threads: usize,
    figures: Vec<Figure>,
}

#[derive(Serialize, Deserialize)]
struct Figure {
    op: String,
    sizes: BTreeMap<String, usize>,
    variant: String,
    bytes: u64,
    flops: u64,
    microseconds: f64,
    /// Of the limit that binds, and which that is.
    part: f64,
    limit: String,
}

impl Figure {
    fn new(measured: &Measurement) -> Self {
        Self {
            op: measured.op.to_owned(),
            sizes: measured.sizes.iter().map(|&(name, size)| (name.to_owned(), size)).collect(),
            variant: measured.variant.clone(),
            bytes: measured.work.bytes,
            flops: measured.work.flops,
            microseconds: measured.seconds() * 1e6,
            part: measured.part(),
            limit: measured.bound.name().to_owned(),
        }
    }

    /// Tells whether the same was measured.
    fn is_of(&self, other: &Self) -> bool {
        (&self.op, &self.sizes, &self.variant) == (&other.op, &other.sizes, &other.variant)
    }
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    if let Some(device) = &args.device {
        let mut arguments: Vec<OsString> = ["bench", "--device", device].map(Into::into).into();
        arguments.extend(args.json.iter().flat_map(|file| ["--json".into(), file.into()]));
        arguments.extend(args.op.iter().flat_map(|op| ["--".into(), op.into()]));
        return runner::run(arguments);
    }
    let before = args.against.as_deref().map(earlier).transpose()?;
    refuse_places(args.json.as_deref())?;
    let is_table = args.json.as_deref() != Some(Path::new("-"));
    let (mut printed, mut figures, mut losses) = (Ok(()), Vec::new(), Vec::new());
    let op = args.op.as_deref().unwrap_or_default();
    measure(op, |measured| {
        let figure = Figure::new(measured);
        let then = before.iter().flat_map(|before| &before.figures).find(|then| then.is_of(&figure));
        let note = then.map(|then| format!("; {:.2} of {} before", then.part, then.limit)).unwrap_or_default();
        if is_table && printed.is_ok() {
            let headings = if figures.is_empty() { Measurement::headings() + "\n" } else { String::new() };
            printed = print_now(&format!("{headings}{measured}{note}\n"));
        }
        if then.is_some_and(|then| figure.part < then.part * (1.0 - args.loss)) {
            losses.push(format!("{}{note}, {:.2} now", measured.op, figure.part));
        }
        figures.push(figure);
    })
    .map_err(Failure::error)?;
    printed?;
    if figures.is_empty() {
        return Err(Failure::new(2, format!("no op is called like `{op}`; without a name all are measured")));
    }
    if let (Some(before), Some(file)) = (&before, &args.against)
        && !figures.iter().any(|figure| before.figures.iter().any(|then| then.is_of(figure)))
    {
        return Err(in_file(file, "nothing that was measured now is in it"));
    }
    if let Some(file) = &args.json {
        let by = format!("cacheplan {}", env!("CARGO_PKG_VERSION"));
        let bench = Bench { by, device: "cpu".to_owned(), threads: threads(), figures };
        write(file, &json(&bench)?)?;
    }
    match losses.is_empty() {
        true => Ok(()),
        false => Err(Failure::new(1, format!("more is lost than {}:\n{}", args.loss, losses.join("\n")))),
    }
}

/// Reads figures that were taken with as many threads.
fn earlier(file: &Path) -> Result<Bench, Failure> {
    let source = Source::named(file, Limit::MEASURED).map_err(Failure::error)?;
    let bench: Bench = source.json(Limit::MEASURED).map_err(Failure::error)?;
    match bench.threads == threads() {
        true => Ok(bench),
        false => {
            let now = threads();
            let message = format!("measured with {} threads, now there are {now}; RAYON_NUM_THREADS", bench.threads);
            Err(in_file(file, format!("{message} states how many")))
        }
    }
}
