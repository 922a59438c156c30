//! Whole sessions: generation, preemption, chunks and resizes leave the tokens as they are.

use cacheplan_planner::Unit;
use cacheplan_runtime::{Follow, Output, Request, Session, SessionOptions};
use candle_core::{Device, Tensor};
use rstest::rstest;

use crate::caches::{assert_caches_match, by_dot};
use crate::harness::{BUDGET, Driven, Golden, assert_close, folder, session};

#[rstest]
fn greedy_generation_gives_the_golden_tokens(
    #[values("kimi_linear", "lfm2", "mamba", "minimax", "qwen3", "qwen3_5_text")] model: &str,
    #[values("short", "long")] prompt: &str,
) {
    let golden = Golden::load(model);
    let expected = golden.ids(&format!("{prompt}.greedy"));
    let request = Request::new(golden.ids(&format!("{prompt}.input_ids")), expected.len());
    let generation = session(model, BUDGET).generate(&[request], false).unwrap();
    assert_eq!(generation.outputs[0].tokens, expected);
}

#[rstest]
fn a_prompt_gives_the_golden_logits_and_caches(
    #[values("kimi_linear", "lfm2", "mamba", "minimax", "qwen3", "qwen3_5_text")] model: &str,
    #[values("short", "long")] prompt: &str,
) {
    let golden = Golden::load(model);
    let ids = golden.ids(&format!("{prompt}.input_ids"));
    let mut driven = Driven::open(model);
    let sequence = driven.admit(ids.len());
    let logits = driven.step(&[(sequence, &ids)]);
    assert_close(&logits, &golden.get(&format!("{prompt}.logits")), "logits");
    assert_caches_match(&mut driven, sequence, &golden, &format!("{prompt}.cache."), by_dot);
}

/// Three prompts of different lengths, with the logits of every step.
fn generate(model: &str, session: &mut Session) -> Vec<Output> {
    let ids = Golden::load(model).ids("ids");
    let request = |len: usize| Request::new(ids[..len].to_vec(), 20);
    session.generate(&[27, 5, 16].map(request), true).unwrap().outputs
}

fn assert_same(ours: &[Output], theirs: &[Output]) {
    for (ours, theirs) in ours.iter().zip(theirs) {
        assert_eq!(ours.tokens, theirs.tokens);
        let logits = |output: &Output| -> Tensor { output.logits.clone().unwrap() };
        assert_close(&logits(ours), &logits(theirs), "logits");
    }
}

#[rstest]
fn the_size_of_a_step_does_not_change_what_is_generated(
    #[values("gemma4", "nemotron_h", "llama", "mamba2", "glm5_next_text", "qwen4_exp_text")] model: &str,
) {
    let whole = generate(model, &mut session(model, BUDGET));
    let small_steps = "max_seq_len = 96\nmax_batch_size = 3\nmax_num_tokens = 4\ntokens_per_block = 8\n";
    assert_same(&generate(model, &mut session(model, small_steps)), &whole);
}

/// The places of requests in the order in which their tokens come.
#[derive(Default)]
struct Order(Vec<usize>);

impl Follow for Order {
    fn token(&mut self, place: usize, _: u32) -> bool {
        self.0.push(place);
        true
    }
}

#[test]
fn a_prompt_takes_no_more_than_its_share_of_a_step_beside_decoding() {
    // The first two prompts fill a step; the third is computed beside their decoding.
    let requests = [(4, 12), (60, 12), (64, 2)].map(|(prompt, new)| {
        let prompt = (0..prompt).map(|token| 1 + (token * 7 + prompt) % 90).collect();
        Request::new(prompt, new)
    });
    let served = ["", "max_prefill_tokens = 8\n"].map(|bound| {
        let mut order = Order::default();
        let mut session = session("llama", &format!("{BUDGET}{bound}"));
        let outputs = session.serve(&requests, false, &mut order).unwrap().outputs;
        let before = order.0.iter().take_while(|&&place| place != 2).filter(|&&place| place == 0).count();
        (before, outputs.into_iter().map(|output| output.tokens).collect::<Vec<_>>())
    });
    // 62 tokens of it in one step and two in the next, or eight in each of eight steps.
    assert_eq!([served[0].0, served[1].0], [3, 9]);
    assert_eq!(served[0].1, served[1].1);
}

#[rstest]
fn sequences_that_lose_their_caches_generate_what_they_would_have(
    #[values("gemma4", "nemotron_h", "llama", "glm5_next_text", "qwen4_exp_text")] model: &str,
) {
    let roomy = generate(model, &mut session(model, BUDGET));
    let mut crowded = session(model, BUDGET);
    let mut plan = crowded.plan().clone();
    for pool in plan.pools.iter_mut().filter(|pool| pool.unit == Unit::Block) {
        // The longest needs 6 blocks, all three together 15.
        pool.units = 10;
        pool.bytes = pool.units * pool.unit_bytes;
    }
    crowded.parts().1.resize(&plan).unwrap();
    let outputs = generate(model, &mut crowded);
    assert!(outputs.iter().any(|output| output.preemptions > 0));
    assert_same(&outputs, &roomy);
}

#[test]
fn the_logits_of_a_run_are_saved_row_by_row() {
    let golden = Golden::load("llama");
    let prompt = golden.ids("ids")[..21].to_vec();
    let generation = session("llama", BUDGET).generate(&[Request::new(prompt, 3)], true).unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    generation.save_logits(file.path()).unwrap();
    let saved = candle_core::safetensors::load(file.path(), &Device::Cpu).unwrap();
    assert_eq!(saved["logits"].dims(), [3, 96]);
    let last_prompt_row = golden.get("prefill_logits").narrow(0, 20, 1).unwrap();
    assert_close(&saved["logits"].narrow(0, 0, 1).unwrap(), &last_prompt_row, "the last prompt position");
}

#[test]
fn a_token_that_ends_texts_is_the_last() {
    let prompt = Golden::load("llama").ids("ids")[..21].to_vec();
    let request = [Request::new(prompt, 8)];
    let all = session("llama", BUDGET).generate(&request, false).unwrap().outputs.remove(0).tokens;
    let first_again = all.iter().position(|token| *token == all[4]).unwrap();

    let copy = tempfile::tempdir().unwrap();
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(folder("llama").join(file), copy.path().join(file)).unwrap();
    }
    let generation_config = format!("{{\"eos_token_id\": [95, {}]}}", all[4]);
    std::fs::write(copy.path().join("generation_config.json"), generation_config).unwrap();
    let tokens = |ignore_eos| {
        let options = SessionOptions { ignore_eos, ..SessionOptions::default() };
        let mut session = Session::open(copy.path(), options).unwrap();
        session.generate(&request, false).unwrap().outputs.remove(0).tokens
    };
    assert_eq!(tokens(false), all[..=first_again]);
    assert_eq!(tokens(true), all);
}
