//! Prints the token hit rates of `docs/prefix-cache.md`: `cargo bench -p cacheplan-managers --bench hit_rates`, or those
//! of the trace files that are named behind `--`.
#![allow(clippy::print_stdout, reason = "a bench prints")]

#[path = "../tests/suite/traces.rs"]
mod traces;

use std::fs::File;
use std::io::BufReader;

use cacheplan_managers::simulate::{Ceiling, Policy, Report, Scenario, SimulateError, TraceRequest, Workload};
use traces::{CONVERSATION, SYNTHETIC, TOOL_AGENT, conversations};

const CHECKPOINTS: [Option<usize>; 4] = [Some(64), Some(128), Some(256), None];
const OPEN: [usize; 6] = [15, 30, 60, 100, 200, 400];

fn main() -> Result<(), SimulateError> {
    // Cargo adds a flag of its own.
    let files: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    if files.is_empty() { documented() } else { files.iter().try_for_each(|file| of_file(file)) }
}

/// A trace that someone recorded.
fn of_file(file: &str) -> Result<(), SimulateError> {
    let requests = TraceRequest::read_trace(BufReader::new(File::open(file)?))?;
    let unlimited = run(&requests, Policy::Coverage, None)?;
    let resident = unlimited.metrics.kv_hit_tokens as f64 / unlimited.metrics.prompt_tokens as f64;
    println!("{file}: {} requests, resident KV {resident:.3}, unlimited {:.3}", requests.len(), unlimited.hit_rate);
    let ceiling = Ceiling::new(&requests, Scenario::default())?;
    println!("| checkpoints | double-buffered | coverage | ceiling |\n|---|---|---|---|");
    for checkpoints in [64, 128, 256] {
        let [double, coverage] = against(&requests, Some(checkpoints))?;
        println!("| {checkpoints} | {double:.3} | {coverage:.3} | {:.3} |", ceiling.hit_rate(checkpoints));
    }
    Ok(())
}

/// The tables of the documentation.
fn documented() -> Result<(), SimulateError> {
    println!(
        "| workload | checkpoints | no-buffer | double-buffered | complete, LRU | coverage | resident KV (coverage) |"
    );
    println!("|---|---|---|---|---|---|---|");
    for workload in Workload::ALL {
        let requests = workload.requests();
        for checkpoints in CHECKPOINTS {
            let reports = Policy::ALL.map(|policy| run(&requests, policy, checkpoints));
            let reports = reports.into_iter().collect::<Result<Vec<_>, _>>()?;
            let rates: Vec<_> = reports.iter().map(|report| format!("{:.3}", report.hit_rate)).collect();
            let resident = reports
                .last()
                .map_or(0.0, |coverage| coverage.metrics.kv_hit_tokens as f64 / coverage.metrics.prompt_tokens as f64);
            println!("| {workload:?} | {} | {} | {resident:.3} |", named(checkpoints), rates.join(" | "));
        }
        let ceiling = Ceiling::new(&requests, Scenario::default())?;
        println!("{workload:?}: ceiling of 64 checkpoints {:.3}", ceiling.hit_rate(64));
    }

    println!("\n| open | checkpoints | double-buffered | coverage | ceiling |\n|---|---|---|---|---|");
    for open in OPEN {
        let requests = TraceRequest::read_trace(conversations(1200, open, 7).as_bytes())?;
        let ceiling = Ceiling::new(&requests, Scenario::default())?;
        for checkpoints in [64, 256] {
            let [double, coverage] = against(&requests, Some(checkpoints))?;
            println!("| {open} | {checkpoints} | {double:.3} | {coverage:.3} | {:.3} |", ceiling.hit_rate(checkpoints));
        }
    }

    println!("\nHeld out, means of three; then coverage over double-buffered, and over unlimited, at 64.\n");
    for (name, traces) in held_out()? {
        let (mut means, mut gains) = ([0.0; 6], String::new());
        for requests in &traces {
            let unlimited = run(requests, Policy::Coverage, None)?.hit_rate;
            for (i, checkpoints) in [64, 128, 256].into_iter().enumerate() {
                let [double, coverage] = against(requests, Some(checkpoints))?;
                means[2 * i] += double / 3.0;
                means[2 * i + 1] += coverage / 3.0;
                if checkpoints == 64 {
                    gains += &format!(" {:.2} ({:.2})", coverage / double, coverage / unlimited);
                }
            }
        }
        println!("| {name} | {} |{gains}", means.map(|mean| format!("{mean:.3}")).join(" | "));
    }
    Ok(())
}

/// Traces of one kind from several seeds.
type Family = (String, Vec<Vec<TraceRequest>>);

/// Traces whose seeds no policy was chosen by.
fn held_out() -> Result<Vec<Family>, SimulateError> {
    let mut all = Vec::new();
    for workload in Workload::ALL {
        all.push((format!("{workload:?}"), [101, 102, 103].map(|seed| workload.seeded(seed)).into()));
    }
    for open in OPEN {
        let traces = [108, 109, 110].map(|seed| TraceRequest::read_trace(conversations(1200, open, seed).as_bytes()));
        all.push((format!("{open} open"), traces.into_iter().collect::<Result<_, _>>()?));
    }
    for (name, traffic) in [("conversations", CONVERSATION), ("tools and agents", TOOL_AGENT), ("synthetic", SYNTHETIC)]
    {
        let traces = [1101, 1102, 1103].map(|seed| TraceRequest::read_trace(traffic.trace(1500, seed).as_bytes()));
        all.push((format!("like {name}"), traces.into_iter().collect::<Result<_, _>>()?));
    }
    Ok(all)
}

/// The token hit rates of the double buffer and of coverage.
fn against(requests: &[TraceRequest], checkpoints: Option<usize>) -> Result<[f64; 2], SimulateError> {
    let double = run(requests, Policy::DoubleBuffered, checkpoints)?.hit_rate;
    Ok([double, run(requests, Policy::Coverage, checkpoints)?.hit_rate])
}

fn run(requests: &[TraceRequest], policy: Policy, checkpoints: Option<usize>) -> Result<Report, SimulateError> {
    Scenario { policy, checkpoints, ..Scenario::default() }.run(requests)
}

fn named(checkpoints: Option<usize>) -> String {
    checkpoints.map_or_else(|| "unlimited".into(), |count| count.to_string())
}
