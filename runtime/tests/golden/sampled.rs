//! Sampled tokens follow from a request alone, and beams are those of transformers.

use std::collections::HashMap;
use std::time::Duration;

use cacheplan_planner::{Budget, Unit};
use cacheplan_runtime::{
    Admission, Beams, Finish, Follow, Output, Request, RequestError, Sampling, Session, SessionOptions,
};
use candle_core::{Device, Tensor};
use rstest::rstest;
use serde_json::Value;

use crate::harness::{BUDGET, Golden, session};

/// Requests of different lengths, seeds and ways to sample.
fn requests(model: &str) -> Vec<Request> {
    let ids = Golden::load(model).ids("ids");
    let plain = Sampling::default();
    let ways = [
        Sampling { temperature: 1.0, seed: 3, ..plain.clone() },
        Sampling { temperature: 1.4, top_k: 20, top_p: 0.9, min_p: 0.02, seed: 4, ..plain.clone() },
        Sampling {
            temperature: 0.8,
            repetition_penalty: 1.3,
            presence_penalty: 0.4,
            frequency_penalty: 0.2,
            seed: 5,
            ..plain
        },
    ];
    let lengths = [27, 5, 16];
    let request = |(len, sampling): (usize, Sampling)| Request { sampling, ..Request::new(ids[..len].to_vec(), 20) };
    lengths.into_iter().zip(ways).map(request).collect()
}

fn tokens(outputs: &[Output]) -> Vec<Vec<u32>> {
    outputs.iter().map(|output| output.tokens.clone()).collect()
}

#[rstest]
fn sampled_tokens_are_the_same_alone_together_and_after_preemption(#[values("nemotron_h", "llama")] model: &str) {
    let requests = requests(model);
    let alone: Vec<Vec<u32>> = requests
        .iter()
        .map(|request| {
            session(model, BUDGET).generate(std::slice::from_ref(request), false).unwrap().outputs[0].tokens.clone()
        })
        .collect();
    let together = session(model, BUDGET).generate(&requests, false).unwrap();
    assert_eq!(tokens(&together.outputs), alone);

    let mut crowded = session(model, BUDGET);
    let mut plan = crowded.plan().clone();
    for pool in plan.pools.iter_mut().filter(|pool| pool.unit == Unit::Block) {
        pool.units = 10;
        pool.bytes = pool.units * pool.unit_bytes;
    }
    crowded.parts().1.resize(&plan).unwrap();
    let preempted = crowded.generate(&requests, false).unwrap();
    assert!(preempted.outputs.iter().any(|output| output.preemptions > 0));
    assert_eq!(
        preempted.speed.preemptions,
        preempted.outputs.iter().map(|output| u64::from(output.preemptions)).sum::<u64>()
    );
    assert_eq!(tokens(&preempted.outputs), alone);
    // What those found again that had made way is no hit of a prompt.
    let reuse = crowded.report(&requests, &preempted).unwrap().reuse;
    if let Some(reuse) = reuse {
        let cached: usize = preempted.outputs.iter().map(|output| output.cached_tokens).sum();
        assert_eq!(reuse.hit_tokens, cached as u64);
        let metrics = crowded.reuse().unwrap().unwrap();
        assert_eq!(metrics.hit_tokens, reuse.hit_tokens + reuse.returned_tokens, "{reuse:?}");
    }

    let mut reseeded = requests;
    reseeded[0].sampling.seed += 1;
    assert_ne!(session(model, BUDGET).generate(&reseeded[..1], false).unwrap().outputs[0].tokens, alone[0]);
}

#[test]
fn a_temperature_near_nothing_gives_the_most_likely_tokens() {
    let requests = requests("llama");
    let with = |temperature| -> Vec<Request> {
        let sampling = Sampling { temperature, ..Sampling::default() };
        requests.iter().map(|request| Request { sampling: sampling.clone(), ..request.clone() }).collect()
    };
    let outputs = |requests: &[Request]| tokens(&session("llama", BUDGET).generate(requests, false).unwrap().outputs);
    assert_eq!(outputs(&with(1e-4)), outputs(&with(0.0)));
}

/// A model whose embedding of one token overflows, with and without drafts.
#[rstest]
fn a_request_whose_logits_are_no_numbers_ends_alone(
    #[values("", "[speculation]\ndraft_tokens = 3\n")] speculation: &str,
) {
    let folder = tempfile::tempdir().unwrap();
    let model = crate::harness::folder("falcon_h1");
    let config = std::fs::read_to_string(model.join("config.json")).unwrap();
    let config = config.replace("\"embedding_multiplier\": 1.0", "\"embedding_multiplier\": 100.0");
    std::fs::write(folder.path().join("config.json"), config).unwrap();
    let mut weights = candle_core::safetensors::load(model.join("model.safetensors"), &Device::Cpu).unwrap();
    let save = |weights: &HashMap<String, Tensor>| {
        candle_core::safetensors::save(weights, folder.path().join("model.safetensors")).unwrap();
        let budget = Budget::from_toml(&format!("{BUDGET}{speculation}"), "test").unwrap();
        Session::open(folder.path(), SessionOptions { budget, ignore_eos: true, ..SessionOptions::default() }).unwrap()
    };
    let mut requests = requests("llama");
    let others = [requests[0].clone(), requests[2].clone()];
    let without = save(&weights).generate(&others, false).unwrap();
    assert!(without.outputs.iter().all(|output| output.error.is_none() && output.tokens.len() == 20));

    // A token that only the request in the middle has.
    let seen = |token: &u32| {
        let asked = others.iter().any(|request| request.prompt.contains(token));
        asked || without.outputs.iter().any(|output| output.tokens.contains(token))
    };
    let embedding = weights.get_mut("model.embed_tokens.weight").unwrap();
    let (tokens, width) = embedding.dims2().unwrap();
    let spoiled = (6..tokens as u32).find(|token| !seen(token)).unwrap();
    let mut rows: Vec<Vec<f32>> = embedding.to_vec2().unwrap();
    rows[spoiled as usize] = vec![3e38; width];
    *embedding = Tensor::new(rows, &Device::Cpu).unwrap();
    let mut session = save(&weights);
    requests[1].prompt = vec![3, spoiled, 4, 5];
    let served = session.generate(&requests, false).unwrap();
    assert!(idle(&session));
    let failed = &served.outputs[1];
    assert_eq!((failed.tokens.len(), failed.finish), (0, Finish::Error));
    assert_eq!(failed.error, Some(RequestError::NotANumber { request: 1 }));
    assert_eq!([&served.outputs[0].tokens, &served.outputs[2].tokens], [0, 1].map(|at| &without.outputs[at].tokens));
}

/// Ends requests after some tokens, and closes or abandons the run.
struct Ender {
    tokens: Vec<Vec<u32>>,
    /// A request ends with its token at this place.
    last: usize,
    finished: Vec<(usize, Finish)>,
    steps: usize,
    /// What is answered from this step on.
    then: Option<(usize, Admission)>,
}

impl Ender {
    fn new(requests: usize, last: usize, then: Option<(usize, Admission)>) -> Self {
        Self { tokens: vec![Vec::new(); requests], last, finished: Vec::new(), steps: 0, then }
    }
}

impl Follow for Ender {
    fn admission(&mut self) -> Admission {
        self.steps += 1;
        self.then.filter(|(step, _)| self.steps >= *step).map_or(Admission::Open, |(_, then)| then)
    }

    fn token(&mut self, place: usize, token: u32) -> bool {
        self.tokens[place].push(token);
        self.tokens[place].len() < self.last
    }

    fn finished(&mut self, place: usize, output: &Output) {
        self.finished.push((place, output.finish));
        assert_eq!(output.tokens, self.tokens[place]);
    }
}

fn idle(session: &Session) -> bool {
    session.caches().manager().unwrap().book().sequences().next().is_none()
}

#[test]
fn a_follower_sees_every_token_once_and_ends_requests() {
    let requests = requests("llama");
    let mut session = session("llama", BUDGET);
    let mut follower = Ender::new(3, 4, None);
    let served = session.serve(&requests, false, &mut follower).unwrap();
    assert!(served.outputs.iter().all(|output| output.tokens.len() == 4 && output.finish == Finish::Stop));
    assert_eq!(follower.finished.len(), 3);
    assert!(idle(&session));
}

#[rstest]
#[case(Admission::Closed, Finish::Length)]
#[case(Admission::Abandoned, Finish::Cancelled)]
fn a_closed_run_finishes_what_has_begun_and_an_abandoned_one_gives_it_up(
    #[case] then: Admission,
    #[case] expected: Finish,
) {
    let mut requests = requests("llama");
    let late = Request { arrival: Duration::from_secs(3600), ..requests[0].clone() };
    requests.push(late);
    let mut session = session("llama", BUDGET);
    let mut follower = Ender::new(4, 99, Some((5, then)));
    let served = session.serve(&requests, false, &mut follower).unwrap();
    assert_eq!(follower.finished.len(), 3);
    assert!(follower.finished.iter().all(|(_, finish)| *finish == expected), "{:?}", follower.finished);
    assert_eq!((served.outputs[3].tokens.len(), served.outputs[3].finish), (0, Finish::Cancelled));
    assert!(idle(&session));
}

#[test]
fn requests_come_when_they_arrive() {
    let mut requests = requests("llama");
    requests[0].arrival = Duration::from_millis(150);
    let served = session("llama", BUDGET).generate(&requests, false).unwrap();
    assert!(served.speed.seconds >= 0.15);
    assert_eq!(
        tokens(&served.outputs),
        tokens(&session("llama", BUDGET).generate(&requests[..], false).unwrap().outputs)
    );
    let times = served.outputs[0].times;
    assert!(times.queued <= times.first_token && times.first_token <= times.total, "{times:?}");
    assert!(times.total.unwrap() < Duration::from_millis(150) + Duration::from_secs(60));
    let speed = &served.speed;
    // The late one finds the front of its prompt.
    assert_eq!(speed.generated_tokens, 60);
    assert!((27..=48).contains(&speed.computed_prompt_tokens));
    assert!(speed.time_per_token.unwrap().p50 <= speed.time_per_token.unwrap().p99);
}

#[test]
fn tenants_share_what_is_cached() {
    let mut session = session("llama", BUDGET);
    let prompt = Golden::load("llama").ids("ids");
    let of = |tenant| Request { tenant, ..Request::new(prompt.clone(), 4) };
    let first = session.generate(&[of(0), of(2)], false).unwrap();
    let second = session.generate(&[of(1)], false).unwrap();
    assert_eq!(first.outputs[0].tokens, second.outputs[0].tokens);
    assert!(second.outputs[0].cached_tokens > 0);
}

#[test]
fn beams_are_those_of_transformers() {
    let cases: Vec<Value> = serde_json::from_str(include_str!("../fixtures/beams.json")).unwrap();
    assert!(cases.len() > 10);
    for case in cases {
        let ids = |value: &Value| -> Vec<u32> { serde_json::from_value(value.clone()).unwrap() };
        let model = case["model"].as_str().unwrap();
        let folder = tempfile::tempdir().unwrap();
        for file in ["config.json", "model.safetensors"] {
            std::fs::copy(crate::harness::folder(model).join(file), folder.path().join(file)).unwrap();
        }
        let config = serde_json::json!({"eos_token_id": case["eos"]});
        std::fs::write(folder.path().join("generation_config.json"), config.to_string()).unwrap();
        let budget = "max_seq_len = 96\nmax_batch_size = 4\nmax_num_tokens = 8\ntokens_per_block = 8\n";
        let mut session = crate::harness::session_in_ending(folder.path(), budget);
        let beams = Beams {
            width: case["width"].as_u64().unwrap() as usize,
            length_penalty: case["length_penalty"].as_f64().unwrap() as f32,
        };
        let request = Request::new(ids(&case["prompt"]), case["new"].as_u64().unwrap() as usize);
        let found = session.beam_search(&request, beams).unwrap();
        let expected = case["found"].as_array().unwrap();
        assert_eq!(found.len(), expected.len());
        for (ours, theirs) in found.iter().zip(expected) {
            assert_eq!(ours.tokens, ids(&theirs["tokens"]), "{case}");
            assert!((ours.score - theirs["score"].as_f64().unwrap()).abs() < 1e-3, "{case}");
        }
        assert!(idle(&session));
    }
}

/// With as many beams as there are sequences none is lost: the search is exhaustive.
#[rstest]
fn wide_beams_find_the_best_of_all_sequences(#[values("llama", "mamba2")] model: &str) {
    let budget = "max_seq_len = 32\nmax_batch_size = 48\nmax_num_tokens = 64\ntokens_per_block = 8\n";
    let prompt = Golden::load(model).ids("ids")[..5].to_vec();
    let mut searched = session(model, budget);
    let found =
        searched.beam_search(&Request::new(prompt.clone(), 2), Beams { width: 48, length_penalty: 1.0 }).unwrap();

    // The best pairs of tokens, by computing the row of every first token.
    let mut plain = session(model, budget);
    let logits = |session: &mut Session, prompt: &[u32]| -> Vec<f64> {
        let output = session.generate(&[Request::new(prompt.to_vec(), 1)], true).unwrap().outputs.remove(0);
        let row: Vec<f32> = output.logits.unwrap().get(0).unwrap().to_vec1().unwrap();
        let sum: f64 = row.iter().map(|&logit| f64::from(logit).exp()).sum();
        row.iter().map(|&logit| f64::from(logit) - sum.ln()).collect()
    };
    let first = logits(&mut plain, &prompt);
    let mut best = (f64::NEG_INFINITY, [0; 2]);
    for (token, score) in (0..).zip(&first) {
        let longer: Vec<u32> = prompt.iter().copied().chain([token]).collect();
        for (next, then) in (0..).zip(logits(&mut plain, &longer)) {
            if score + then > best.0 {
                best = (score + then, [token, next]);
            }
        }
    }
    assert_eq!(found[0].tokens, best.1);
    assert!((found[0].score - best.0 / 2.0).abs() < 1e-4);
    assert!(found.is_sorted_by(|left, right| left.score >= right.score));
}

#[rstest]
#[case(0)]
#[case(4)]
fn beams_that_no_step_holds_are_refused(#[case] width: usize) {
    let request = Request::new(vec![1, 2, 3], 4);
    let error = session("llama", BUDGET).beam_search(&request, Beams { width, length_penalty: 1.0 }).unwrap_err();
    assert!(error.to_string().contains("it must be from 1 to 3"), "{error}");
}
