//! Beside the logits processors of transformers.

use std::collections::HashMap;

use cacheplan_runtime::Sampling;
use serde::Deserialize;

#[derive(Deserialize)]
struct Case {
    sampling: Sampling,
    logits: Vec<f32>,
    tokens: Vec<u32>,
    prompt: usize,
    shares: HashMap<u32, f64>,
}

#[test]
fn tokens_are_as_likely_as_transformers_makes_them() {
    let cases: Vec<Case> = serde_json::from_str(include_str!("fixtures/sampling.json")).unwrap();
    assert!(cases.len() > 20);
    for case in cases {
        let ours = case.sampling.distribution(&case.logits, &case.tokens, case.prompt).unwrap();
        assert_eq!(ours.len(), case.shares.len(), "{:?}", case.sampling);
        for (token, share) in ours {
            // Theirs is computed in float32.
            assert!((share - case.shares[&token]).abs() < 1e-6, "{:?}: {token} is {share}", case.sampling);
        }
    }
}
