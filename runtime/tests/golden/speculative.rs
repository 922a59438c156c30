//! Guessing ahead changes how fast tokens come, never which.

use cacheplan_planner::{Budget, Unit};
use cacheplan_runtime::{Output, Request, Sampling, Session, SessionOptions};
use rstest::rstest;

use crate::harness::{BUDGET, folder, options, session, session_without_reuse};

const DRAFTS: &str = "\n[speculation]\ndraft_tokens = 3\n";

fn with_drafts() -> String {
    BUDGET.to_owned() + DRAFTS
}

/// Prompts that repeat themselves, so that there is something to look up, with tokens below `vocabulary`.
fn prompts(count: u64, vocabulary: u64) -> Vec<Vec<u32>> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = move |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let prompt = |_| {
        let pattern: Vec<u32> = (0..1 + next(6)).map(|_| next(vocabulary) as u32).collect();
        let mut prompt: Vec<u32> = pattern.iter().copied().cycle().take(4 + next(24) as usize).collect();
        let len = prompt.len() as u64;
        prompt[next(len) as usize] = next(vocabulary) as u32;
        prompt
    };
    (0..count).map(prompt).collect()
}

/// What is generated of all requests, three at a time.
fn generate(session: &mut Session, requests: &[Request]) -> (Vec<Output>, u64, u64, u64) {
    let (mut outputs, mut steps, mut drafted, mut accepted) = (Vec::new(), 0, 0, 0);
    for batch in requests.chunks(3) {
        let generation = session.generate(batch, false).unwrap();
        steps += generation.speed.steps;
        drafted += generation.speed.drafted_tokens;
        accepted += generation.speed.accepted_tokens;
        outputs.extend(generation.outputs);
    }
    (outputs, steps, drafted, accepted)
}

fn tokens(outputs: &[Output]) -> Vec<&[u32]> {
    outputs.iter().map(|output| output.tokens.as_slice()).collect()
}

/// `CACHEPLAN_PROMPTS` asks for more than the default suite has time for.
fn count(default: u64) -> u64 {
    std::env::var("CACHEPLAN_PROMPTS").map_or(default, |count| count.parse().unwrap())
}

over_every_model!(guessing_ahead_generates_the_same_tokens);
#[expect(clippy::print_stdout, reason = "how many guesses were right, for whoever asks for more prompts")]
fn guessing_ahead_generates_the_same_tokens(model: &str) {
    let mut plain = session_without_reuse(model, BUDGET);
    let mut guessing = session_without_reuse(model, &with_drafts());
    let drawn = Sampling { temperature: 0.9, top_k: 40, seed: 11, ..Sampling::default() };
    // Whatever came often comes again, so that guesses are right.
    let repeating = Sampling { frequency_penalty: -4.0, ..Sampling::default() };
    let vocabulary = plain.vocab_size() as u64;
    let requests: Vec<Request> = prompts(count(200), vocabulary)
        .into_iter()
        .zip([Sampling::default(), drawn, repeating].into_iter().cycle())
        .map(|(prompt, sampling)| Request { sampling, ..Request::new(prompt, 12) })
        .collect();
    let (expected, plain_steps, none, _) = generate(&mut plain, &requests);
    let (found, steps, drafted, accepted) = generate(&mut guessing, &requests);
    assert_eq!(none, 0);
    assert_eq!(tokens(&found), tokens(&expected));
    println!("{model}: {accepted} of {drafted} accepted, {steps} steps in place of {plain_steps}");
    assert!(accepted > 0 && steps < plain_steps, "{accepted} of {drafted} accepted, {steps} of {plain_steps} steps");
    let manager = guessing.caches().manager().unwrap();
    assert!(manager.book().sequences().next().is_none());
    assert!(manager.book().stats().pools.iter().all(|pool| pool.used == 0));
}

over_models_that_verify_trees!(trees_of_guesses_generate_the_same_tokens);
#[expect(clippy::print_stdout, reason = "how many guesses were right, beside those of chains")]
fn trees_of_guesses_generate_the_same_tokens(model: &str) {
    let budget = BUDGET.to_owned() + "\n[speculation]\ndraft_tokens = 6\n";
    let mut plain = session_without_reuse(model, BUDGET);
    let options = SessionOptions { draft_tree: true, reuse_prefixes: false, ..options(&budget) };
    let mut guessing = Session::open(&folder(model), options).unwrap();
    let repeating = Sampling { frequency_penalty: -4.0, ..Sampling::default() };
    let vocabulary = plain.vocab_size() as u64;
    // Pairs that occur with several followers.
    let branching = |prompt: Vec<u32>| {
        let other = prompt.iter().map(|token| (u64::from(*token) * 7 % vocabulary) as u32);
        prompt.iter().zip(other).flat_map(|(token, other)| [prompt[0], *token, other]).collect::<Vec<_>>()
    };
    let requests: Vec<Request> = prompts(count(60), vocabulary)
        .into_iter()
        .zip([Sampling::default(), repeating].into_iter().cycle())
        .map(|(prompt, sampling)| Request { sampling, ..Request::new(branching(prompt), 9) })
        .collect();
    let (expected, plain_steps, ..) = generate(&mut plain, &requests);
    let (mut found, mut steps, mut drafted, mut accepted, mut chained) = (Vec::new(), 0, 0, 0, [0, 0]);
    for batch in requests.chunks(3) {
        let generation = guessing.generate(batch, false).unwrap();
        let speed = &generation.speed;
        (steps, drafted, accepted) =
            (steps + speed.steps, drafted + speed.drafted_tokens, accepted + speed.accepted_tokens);
        let chain = [speed.chain_drafted_tokens, speed.chain_accepted_tokens];
        chained.iter_mut().zip(chain).for_each(|(sum, tokens)| *sum += tokens.unwrap_or(0));
        found.extend(generation.outputs);
    }
    assert_eq!(tokens(&found), tokens(&expected));
    let [in_chains, right_in_chains] = chained;
    println!(
        "{model}: {accepted} of {drafted} in trees, {right_in_chains} of {in_chains} in chains, {steps} of {plain_steps} steps"
    );
    assert!(accepted > 0 && right_in_chains > 0 && steps < plain_steps, "{accepted}, {right_in_chains}, {steps}");
    let manager = guessing.caches().manager().unwrap();
    assert!(manager.book().stats().pools.iter().all(|pool| pool.used == 0));
}

#[rstest]
#[case::without_guesses("llama", "", None, "it needs --draft-tokens or [speculation]")]
#[case::of_a_draft("llama", DRAFTS, Some("llama"), "guess chains")]
#[case::of_keys_of_several_tokens("glm5_next_text", DRAFTS, None, "keys of several tokens")]
fn trees_that_nobody_looks_up_are_refused(
    #[case] model: &str,
    #[case] budget: &str,
    #[case] draft: Option<&str>,
    #[case] message: &str,
) {
    let budget = BUDGET.to_owned() + budget;
    let options = SessionOptions { draft_tree: true, draft: draft.map(folder), ..options(&budget) };
    let error = Session::open(&folder(model), options).unwrap_err();
    assert!(error.to_string().contains(message) && error.exit_code() == 2, "{error}");
}

#[rstest]
fn guessing_goes_together_with_preemption_and_kept_prefixes(
    #[values("llama", "nemotron_h", "glm5_next_text", "qwen4_exp_text")] model: &str,
) {
    let checkpoints = if model == "llama" { "" } else { "\n[workload]\ncheckpoints_per_sequence = 2\n" };
    let sampling = Sampling { frequency_penalty: -4.0, ..Sampling::default() };
    let long = prompts(3, 90).into_iter().map(|prompt| prompt.into_iter().cycle().take(27).collect());
    let requests: Vec<Request> =
        long.map(|prompt| Request { sampling: sampling.clone(), ..Request::new(prompt, 20) }).collect();
    let (expected, ..) = generate(&mut session_without_reuse(model, BUDGET), &requests);
    let mut guessing = session(model, &(with_drafts() + checkpoints));
    for _ in 0..2 {
        let (found, _, _, accepted) = generate(&mut guessing, &requests);
        assert_eq!(tokens(&found), tokens(&expected));
        assert!(accepted > 0);
    }
    assert!(guessing.reuse().unwrap().unwrap().hit_tokens > 0);

    let mut crowded = session_without_reuse(model, &with_drafts());
    let mut plan = crowded.plan().clone();
    for pool in plan.pools.iter_mut().filter(|pool| pool.unit == Unit::Block) {
        pool.units = 10;
        pool.bytes = pool.units * pool.unit_bytes;
    }
    crowded.parts().1.resize(&plan).unwrap();
    let (found, ..) = generate(&mut crowded, &requests);
    assert!(found.iter().any(|output| output.preemptions > 0));
    assert_eq!(tokens(&found), tokens(&expected));
}

/// Every token occurs in the prompt, so that behind each first token the one that follows it there is guessed.
#[test]
fn tokens_behind_guesses_are_as_likely_as_the_model_says() {
    const DRAWS: u64 = 1500;
    const GROUPS: usize = 7;
    let prompt: Vec<u32> = (2..90).collect();
    let sampling = Sampling { temperature: 2.5, ..Sampling::default() };
    let request = |seed| Request { sampling: Sampling { seed, ..sampling.clone() }, ..Request::new(prompt.clone(), 3) };
    let requests: Vec<Request> = (0..DRAWS).map(request).collect();
    let (outputs, _, drafted, accepted) = generate(&mut session("llama", &with_drafts()), &requests);
    assert!(drafted > DRAWS / 2 && accepted > 5, "{accepted} of {drafted}");

    // How often the second token is the guess, or one of a group of others.
    let mut plain = session("llama", BUDGET);
    let mut likely = std::collections::BTreeMap::new();
    let (mut seen, mut expected) = ([0.0; GROUPS + 1], [0.0; GROUPS + 1]);
    for output in outputs.iter().filter(|output| prompt.contains(&output.tokens[0])) {
        let first = output.tokens[0];
        let cell = |token: u32| if token == first + 1 { GROUPS } else { token as usize % GROUPS };
        let shares = likely.entry(first).or_insert_with(|| {
            let longer: Vec<u32> = prompt.iter().copied().chain([first]).collect();
            let output = plain.generate(&[Request::new(longer.clone(), 1)], true).unwrap().outputs.remove(0);
            let logits: Vec<f32> = output.logits.unwrap().get(0).unwrap().to_vec1().unwrap();
            sampling.distribution(&logits, &longer, prompt.len()).unwrap()
        });
        shares.iter().for_each(|&(token, share)| expected[cell(token)] += share);
        seen[cell(output.tokens[1])] += 1.0;
    }
    let squared: f64 =
        seen.iter().zip(&expected).map(|(seen, expected)| (seen - expected) * (seen - expected) / expected).sum();
    println!("{accepted} of {drafted} accepted; seen {seen:?}, expected {expected:?}, {squared}");
    assert!(expected.iter().all(|expected| *expected > 5.0), "{expected:?}");
    // Seven degrees of freedom: above 24.3 in one of a thousand.
    assert!(squared < 24.3, "{squared}: seen {seen:?}, expected {expected:?}");
}

/// Prompts that nothing of the model is known of, a few tokens each.
fn random_prompts(count: u64, vocabulary: u64) -> Vec<Request> {
    let prompts = prompts(count, vocabulary).into_iter();
    prompts.map(|prompt| Request::new(prompt, 8)).collect()
}

/// A model that drafts for itself is right wherever its own rounding lets it be.
#[rstest]
fn a_draft_model_generates_the_same_tokens(
    #[values("deepseek_v3", "gemma4", "gpt_oss", "llama", "nemotron_h", "qwen3", "qwen3_next")] model: &str,
    #[values("gemma4", "llama", "qwen3")] draft: &str,
) {
    let mut plain = session_without_reuse(model, BUDGET);
    if plain.vocab_size() != session(draft, BUDGET).vocab_size() {
        return;
    }
    let checkpoints = "\n[workload]\ncheckpoints_per_sequence = 2\n";
    let has_states = plain.plan().pools.iter().any(|pool| pool.unit == Unit::Slot);
    let checkpoints = if has_states { checkpoints } else { "" };
    let mut guessing = drafted(model, &(with_drafts() + checkpoints), draft).unwrap();
    let drawn = Sampling { temperature: 0.7, seed: 5, ..Sampling::default() };
    let requests: Vec<Request> = random_prompts(count(9), plain.vocab_size() as u64)
        .into_iter()
        .zip([Sampling::default(), drawn].into_iter().cycle())
        .map(|(request, sampling)| Request { sampling, max_new_tokens: 16, ..request })
        .collect();
    let (expected, plain_steps, ..) = generate(&mut plain, &requests);
    for _ in 0..2 {
        let (found, steps, drafted, accepted) = generate(&mut guessing, &requests);
        assert_eq!(tokens(&found), tokens(&expected));
        assert!(drafted > 0);
        println!("{model} by {draft}: {accepted} of {drafted} accepted, {steps} steps in place of {plain_steps}");
        if model == draft {
            assert!(accepted * 100 > drafted * 95 && steps < plain_steps, "{accepted} of {drafted}");
        }
    }
    guessing.forget_prefixes().unwrap();
    guessing.caches().manager().unwrap().book().ensure_idle().unwrap();
}

fn drafted(model: &str, budget: &str, draft: &str) -> Result<Session, cacheplan_runtime::RuntimeError> {
    let budget = cacheplan_planner::Budget::from_toml(budget, "test").unwrap();
    let draft = Some(crate::harness::folder(draft));
    let options = cacheplan_runtime::SessionOptions {
        budget,
        draft,
        ignore_eos: true,
        ..cacheplan_runtime::SessionOptions::default()
    };
    Session::open(&crate::harness::folder(model), options)
}

#[rstest]
#[case::states("llama", "nemotron_h", "keeps the state")]
#[case::no_speculation("llama", "llama", "a draft model is given, but `[speculation]`")]
fn a_draft_model_that_cannot_guess_is_refused(#[case] model: &str, #[case] draft: &str, #[case] expected: &str) {
    let budget = if draft == "llama" { BUDGET.to_owned() } else { with_drafts() };
    let error = drafted(model, &budget, draft).unwrap_err().to_string();
    assert!(error.contains(expected), "{error}");
}

#[rstest]
fn replaying_what_was_accepted_generates_the_same_tokens(
    #[values(
        "bamba",
        "falcon_h1",
        "granitemoehybrid",
        "jamba",
        "kimi_linear",
        "lfm2",
        "mamba",
        "mamba2",
        "minimax",
        "nemotron_h",
        "qwen3_5_text",
        "qwen3_next",
        "zamba2"
    )]
    model: &str,
) {
    let mut plain = session_without_reuse(model, BUDGET);
    let mut replaying = session_without_reuse(model, &format!("{}scheme = \"replay\"\n", with_drafts()));
    let drawn = Sampling { temperature: 0.9, top_k: 40, seed: 11, ..Sampling::default() };
    let repeating = Sampling { frequency_penalty: -4.0, ..Sampling::default() };
    let requests: Vec<Request> = prompts(count(9), plain.vocab_size() as u64)
        .into_iter()
        .zip([Sampling::default(), drawn, repeating].into_iter().cycle())
        .map(|(prompt, sampling)| Request { sampling, ..Request::new(prompt, 24) })
        .collect();
    let (expected, plain_steps, ..) = generate(&mut plain, &requests);
    let (found, steps, _, accepted) = generate(&mut replaying, &requests);
    assert_eq!(tokens(&found), tokens(&expected));
    assert!(accepted > 0 && steps < plain_steps, "{accepted} accepted, {steps} of {plain_steps} steps");
    replaying.caches().manager().unwrap().book().ensure_idle().unwrap();
}

#[rstest]
#[case("draft_tokens = 3\nmtp_layers = 1", "llama", "has no prediction layers")]
fn what_is_not_used_of_a_speculation_is_refused(#[case] keys: &str, #[case] model: &str, #[case] expected: &str) {
    let budget = cacheplan_planner::Budget::from_toml(&format!("{BUDGET}\n[speculation]\n{keys}\n"), "test").unwrap();
    let options = cacheplan_runtime::SessionOptions { budget, ..cacheplan_runtime::SessionOptions::default() };
    let error = Session::open(&crate::harness::folder(model), options).unwrap_err().to_string();
    assert!(error.contains(expected), "{error}");
}

/// Inputs that are kept in fewer bits than they are computed in would move states elsewhere.
#[test]
fn replay_of_inputs_that_would_be_rounded_is_refused() {
    let narrow = tempfile::TempDir::new().unwrap();
    let config = std::fs::read_to_string(crate::harness::folder("mamba2").join("config.json")).unwrap();
    std::fs::write(narrow.path().join("config.json"), config.replace("\"float32\"", "\"bfloat16\"")).unwrap();
    let budget = Budget::from_toml(&(with_drafts() + "scheme = 'replay'\n"), "test").unwrap();
    let options = SessionOptions { budget, ..SessionOptions::default() };
    let error = Session::open(narrow.path(), options).unwrap_err().to_string();
    assert!(error.contains("`speculation`: replay keeps inputs in bf16 and the run computes in f32"), "{error}");
}
