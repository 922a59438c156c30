//! vLLM 0.33's own block pool and coordinator, recorded by `cargo xtask oracle vllm-events`, beside the index that saw their events.

use std::io::{BufRead, BufReader};

use cacheplan_index::{Bounds, Index, Kind, Prompt, Trust};
use flate2::read::GzDecoder;
use serde_json::Value;

const RECORDED: &[u8] = include_bytes!("../../../tests/fixtures/events/vllm-0.33.0.jsonl.gz");

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

fn numbers<T: TryFrom<u64, Error: std::fmt::Debug>>(list: &Value) -> Vec<T> {
    list.as_array().unwrap().iter().map(|one| T::try_from(one.as_u64().unwrap()).unwrap()).collect()
}

/// What the recorded scheduler hashes by: the smallest block of its groups.
fn block_of(model: &str) -> usize {
    match model {
        "states of wide blocks" => 32,
        _ if model.starts_with("windows in finer blocks") => 2,
        _ => 16,
    }
}

#[test]
fn every_request_reuses_what_vllm_counts() {
    let (mut requests, mut of_keys, mut reused, mut limited) = (0, 0, 0, 0);
    let mut unnamed = 0;
    for line in BufReader::new(GzDecoder::new(RECORDED)).lines() {
        let trace: Value = serde_json::from_str(&line.unwrap()).unwrap();
        let model = trace["model"].as_str().unwrap();
        let index = Index::new(Bounds::default());
        for (number, step) in trace["steps"].as_array().unwrap().iter().enumerate() {
            index.take(7, number as u64, &bytes(step[3].as_str().unwrap())).unwrap();
            if step[0].is_null() {
                continue;
            }
            let (tokens, hashes) = (numbers::<u32>(&step[0]), numbers::<u64>(&step[1]));
            let counted = usize::try_from(step[2].as_u64().unwrap()).unwrap();
            let what = format!("{model}, {}, request {number}", trace["trace"]);
            let by_hashes = Prompt::Hashes { hashes: &hashes, block: block_of(model), tokens: tokens.len() };
            let answer = index.ask(by_hashes)[0].reuse;
            assert_eq!(answer.tokens, counted, "{what}");
            // A prompt's tail is stored in a part of a block there, so that no answer is promised.
            let has_parts = model.starts_with("windows in finer blocks");
            assert!(answer.trust == Trust::Exact || number == 0 || has_parts, "{what}: {:?}", answer.trust);
            let by_tokens = index.ask(Prompt::Tokens(&tokens))[0].reuse;
            // Events leave out blocks of windows without saying which: such blocks are known by their hashes alone.
            let is_bound = by_tokens.trust == Trust::AtLeastNamed || has_parts;
            if is_bound || model == "window alone" || model == "two windows" {
                assert!(by_tokens.tokens <= counted, "{what}, by tokens");
                unnamed += usize::from(is_bound && by_tokens.tokens < counted);
            } else {
                assert_eq!(by_tokens, answer, "{what}, by tokens");
            }
            requests += 1;
            reused += counted;
            of_keys += answer.keys;
            limited += usize::from(matches!(answer.limited_by, Some(Kind::State | Kind::Window)));
        }
    }
    assert_eq!(requests, 1170);
    assert!(unnamed > 0, "windows in finer blocks are named by their hashes alone");
    println!("{requests} requests, {reused} tokens reused, {of_keys} that keys alone promise, {limited} limited");
    assert!(
        limited > 100 && of_keys > reused,
        "the traces tell keys and the rest apart: {limited}, {of_keys}, {reused}"
    );
}

#[test]
fn a_worker_whose_events_were_lost_is_an_estimate_until_it_clears() {
    let line = BufReader::new(GzDecoder::new(RECORDED)).lines().next().unwrap().unwrap();
    let trace: Value = serde_json::from_str(&line).unwrap();
    let index = Index::new(Bounds::default());
    let prompt = numbers::<u32>(&trace["steps"][1][0]);
    let trust = || index.ask(Prompt::Tokens(&prompt))[0].reuse.trust;
    let events = |step: usize| bytes(trace["steps"][step][3].as_str().unwrap());
    for step in 0..3 {
        index.take(7, step as u64, &events(step)).unwrap();
    }
    assert_eq!(trust(), Trust::Exact);
    index.take(7, 5, &events(5)).unwrap();
    assert_eq!(trust(), Trust::Estimate);
    // [0.0, [{"type": "AllBlocksCleared"}], 0]
    index.take(7, 6, b"\x93\x00\x91\x81\xa4type\xb0AllBlocksCleared\x00").unwrap();
    assert_eq!(trust(), Trust::Exact);
    assert_eq!(index.sizes()[0].1, 0);
}
