//! SGLang's own tree of keys and states, recorded by `cargo xtask oracle sglang-events`, beside indexes that saw its events, and the
//! same with our hook's words on states.

use std::io::{BufRead, BufReader};

use cacheplan_index::{Bounds, Index, Prompt, Trust};
use flate2::read::GzDecoder;
use serde::Deserialize;

const RECORDED: &[u8] = include_bytes!("../../../tests/fixtures/events/sglang-0.5.23.jsonl.gz");

#[derive(Deserialize)]
struct Trace {
    pages: usize,
    states: usize,
    /// A prompt, the tokens that the tree goes on from, its events, and those with states.
    steps: Vec<(Option<Vec<u32>>, usize, String, String)>,
}

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

#[test]
fn its_own_events_give_a_bound_and_those_with_states_what_it_goes_on_from() {
    let (mut requests, mut reused, mut promised, mut above) = (0, 0, 0, 0);
    for line in BufReader::new(GzDecoder::new(RECORDED)).lines() {
        let trace: Trace = serde_json::from_str(&line.unwrap()).unwrap();
        let (own, with_states) = (Index::new(Bounds::default()), Index::new(Bounds::default()));
        for (number, (prompt, hit, plain, named)) in (0..).zip(&trace.steps) {
            own.take(7, number, &bytes(plain)).unwrap();
            with_states.take(7, number, &bytes(named)).unwrap();
            let Some(prompt) = prompt else { continue };
            let what = format!("{} pages, {} states, request {number}", trace.pages, trace.states);
            let ask = |index: &Index| index.ask(Prompt::Tokens(prompt)).first().map(|answer| answer.reuse);
            let (bound, exact) = (ask(&own).unwrap(), ask(&with_states).unwrap());
            assert_eq!(exact.tokens, *hit, "{what}");
            assert!(bound.tokens >= *hit, "{what}");
            // The first prompts may be too short for a page.
            if number > 1 {
                assert_eq!((bound.trust, exact.trust), (Trust::AtMostNoGroups, Trust::Exact), "{what}");
            }
            requests += 1;
            reused += hit;
            promised += bound.tokens;
            above += usize::from(bound.tokens > *hit);
        }
    }
    println!(
        "{requests} requests, {reused} tokens gone on from, {promised} that its own events promise, {above} above"
    );
    assert_eq!(requests, 500);
    assert!(above > 50, "the traces tell keys and states apart: {above}");
}
