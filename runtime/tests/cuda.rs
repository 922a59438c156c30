//! What a CUDA device computes and holds; needs a device.
//!
//! `cargo test -p cacheplan-managers -p cacheplan-runtime --features cacheplan-runtime/cuda --test cuda -- --nocapture`
//! prints planned beside actual bytes.
#![cfg(feature = "cuda")]

#[allow(dead_code, reason = "what the other tests of these models need besides")]
#[path = "golden/harness.rs"]
mod harness;

use cacheplan_kernels::Backend;
use cacheplan_planner::Budget;
use cacheplan_runtime::{Request, Session, SessionOptions};
use harness::{BUDGET, Golden, folder};
use rstest::rstest;

fn session(model: &str, budget: &str, device: &Backend, graphs: bool) -> Session {
    let budget = Budget::from_toml(budget, "test").unwrap();
    let options =
        SessionOptions { budget, backend: device.clone(), graphs, ignore_eos: true, ..SessionOptions::default() };
    Session::open(&folder(model), options).unwrap()
}

/// The tokens of three prompts of different lengths, which end after one another.
fn generate(model: &str, session: &mut Session) -> Vec<Vec<u32>> {
    let ids = Golden::load(model).ids("ids");
    let requests = [(27, 20), (5, 31), (16, 12)].map(|(prompt, count)| Request::new(ids[..prompt].to_vec(), count));
    let outputs = session.generate(&requests, false).unwrap().outputs;
    outputs.into_iter().map(|output| output.tokens).collect()
}

#[rstest]
fn fixtures_give_the_tokens_of_the_cpu(
    #[values("deepseek_v3", "llama", "mamba2", "nemotron_h", "qwen3_next")] model: &str,
    #[values(true, false)] graphs: bool,
) {
    let expected = generate(model, &mut session(model, BUDGET, &Backend::Cpu, graphs));
    let device = Session::open_device("cuda:0").unwrap();
    let mut session = session(model, BUDGET, &device, graphs);
    assert_eq!(generate(model, &mut session), expected);
    // Again, when all that can be is recorded; and once more in pools that were made anew.
    session.forget_prefixes().unwrap();
    assert_eq!(generate(model, &mut session), expected);
    session.forget_prefixes().unwrap();
    let plan = session.plan().clone();
    session.parts().1.resize(&plan).unwrap();
    assert_eq!(generate(model, &mut session), expected);
}

#[allow(clippy::print_stdout, reason = "the figures are what it is run for")]
#[rstest]
fn pools_take_their_planned_bytes_once_they_suit_what_was_measured(#[values(true, false)] graphs: bool) {
    let device = Session::open_device("cuda:0").unwrap();
    let budget = format!("{BUDGET}[memory]\nfraction = 0.5\nof = \"free\"\n");
    let mut session = session("nemotron_h", &budget, &device, graphs);
    let profile = session.profile().unwrap();
    println!("{} bytes beyond {} in a forward ({})", profile.forward_bytes, profile.resident_bytes, profile.method);
    session.resize(&profile).unwrap();
    generate("nemotron_h", &mut session);
    let (mut planned, mut actual) = (0, 0);
    for pool in session.caches().bytes().unwrap() {
        planned += pool.planned_bytes;
        actual += pool.actual_bytes.expect("the device counts");
    }
    let off = 100.0 * (actual as f64 - planned as f64) / planned as f64;
    println!("{planned} planned, {actual} actual, {off:.4} %");
    assert!(off.abs() < 0.1, "off by {off} %");
}
