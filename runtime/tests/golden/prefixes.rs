//! A prompt that starts like an earlier one of the session takes over its caches, and nothing else changes.

use cacheplan_managers::book::NoReuse;
use cacheplan_planner::Unit;
use cacheplan_runtime::{Output, Request, Session};
use rstest::rstest;

use crate::harness::{BUDGET, assert_alike, session, session_without_reuse};

/// A session with blocks of 8 tokens, and two checkpoints for each of three sequences if the model has states.
fn reusing(model: &str) -> Session {
    let plain = session(model, BUDGET);
    if !has_states(&plain) {
        return plain;
    }
    session(model, &format!("{BUDGET}[workload]\ncheckpoints_per_sequence = 2\n"))
}

fn has_states(session: &Session) -> bool {
    session.plan().pools.iter().any(|pool| pool.unit == Unit::Slot)
}

fn tokens(from: u32, count: u32) -> Vec<u32> {
    (from..from + count).map(|token| 1 + token * 7 % 90).collect()
}

fn generate(session: &mut Session, prompt: &[u32]) -> Output {
    let request = Request::new(prompt.to_vec(), 6);
    session.generate(&[request], true).unwrap().outputs.remove(0)
}

#[track_caller]
fn assert_same(ours: &Output, theirs: &Output) {
    assert_eq!(ours.tokens, theirs.tokens);
    assert_alike(ours.logits.as_ref().unwrap(), theirs.logits.as_ref().unwrap(), "logits");
}

/// A prompt, the same again, and one that leaves it in its third block.
fn prompts() -> [Vec<u32>; 3] {
    let first = tokens(0, 27);
    let mut parted = first.clone();
    parted[20..].reverse();
    [first.clone(), first, parted]
}

#[rstest]
fn a_prompt_goes_on_from_the_caches_of_an_earlier_one(
    #[values(
        "bamba",
        "falcon_h1",
        "gemma3",
        "gemma4",
        "glm5_next_text",
        "gpt_oss",
        "jamba",
        "llama",
        "nemotron_h",
        "qwen3_next",
        "qwen4_exp_text",
        "zamba2"
    )]
    model: &str,
) {
    let mut cached = reusing(model);
    let has_states = has_states(&cached);
    let outputs = prompts().map(|prompt| {
        let output = generate(&mut cached, &prompt);
        assert_same(&output, &generate(&mut session(model, BUDGET), &prompt));
        output
    });
    let found = outputs.each_ref().map(|output| output.cached_tokens);
    // The state of a hybrid lies after 24 tokens; the third prompt parts after 20, and leaves one after 16.
    assert_eq!(found, if has_states { [0, 24, 0] } else { [0, 24, 16] });
    let [_, _, parted] = prompts();
    let again = generate(&mut cached, &[&parted[..17], &[3, 5, 7]].concat());
    assert_eq!(again.cached_tokens, 16);
    cached.forget_prefixes().unwrap();
    assert_eq!(generate(&mut cached, &parted).cached_tokens, 0);
    cached.forget_prefixes().unwrap();
    cached.parts().1.shutdown().unwrap();
}

#[rstest]
fn the_same_prompt_gives_the_same_bits_where_it_was_cut(#[values("bamba", "nemotron_h")] model: &str) {
    let mut cached = reusing(model);
    let [first, again, _] = prompts();
    let outputs = [first, again].map(|prompt| generate(&mut cached, &prompt));
    assert_eq!(outputs[1].cached_tokens, 24);
    let bits = outputs.each_ref().map(|output| output.logits.as_ref().unwrap().to_vec2::<f32>().unwrap());
    assert_eq!(bits[0], bits[1]);
}

#[test]
fn a_plan_that_allows_no_reuse_says_why_and_serves_each_prompt_anew() {
    let mut plain = session("nemotron_h", BUDGET);
    assert_eq!(plain.reuse(), Some(Err(&NoReuse::NoCheckpoints)));
    for prompt in prompts() {
        assert_eq!(generate(&mut plain, &prompt).cached_tokens, 0);
    }
}

/// Pools that hold one prompt and little more, so that each makes room for the next.
fn crowd(session: &mut Session, blocks: u64) {
    let mut plan = session.plan().clone();
    for pool in plan.pools.iter_mut().filter(|pool| pool.tokens_per_block.is_some()) {
        pool.units = blocks;
        pool.bytes = pool.units * pool.unit_bytes;
    }
    session.parts().1.resize(&plan).unwrap();
}

#[rstest]
fn what_made_way_on_the_device_comes_back_from_the_host(
    #[values("deepseek_v3", "gemma3", "gemma4", "llama", "nemotron_h")] model: &str,
    #[values(false, true)] tiered: bool,
) {
    let mut roomy = session(model, BUDGET);
    let workload = if has_states(&roomy) { "[workload]\ncheckpoints_per_sequence = 2\n" } else { "" };
    let host = if tiered { "[host]\nbytes = '8MiB'\n" } else { "" };
    let mut crowded = session(model, &format!("{BUDGET}{workload}{host}"));
    crowd(&mut crowded, 6);
    let cached = [0, 1, 2, 0].map(|start| {
        let prompt = tokens(start, 26);
        let output = generate(&mut crowded, &prompt);
        assert_same(&output, &generate(&mut roomy, &prompt));
        output.cached_tokens
    });
    assert_eq!(cached, [0, 0, 0, if tiered { 24 } else { 0 }]);
    crowded.forget_prefixes().unwrap();
    crowded.parts().1.shutdown().unwrap();
}

/// A prompt, the same again, and what was said and generated with more behind it.
#[rstest]
#[case::where_forwards_and_sequences_end("no-buffer", [0, 0, 32])]
#[case::one_position_of_each_forward("double-buffered", [0, 24, 24])]
#[case::wherever_one_can_serve("complete", [0, 24, 32])]
fn the_strategy_of_a_budget_says_where_states_are_left(#[case] strategy: &str, #[case] expected: [usize; 3]) {
    let workload = format!("[workload]\ncheckpoints_per_sequence = 2\ncheckpoint_strategy = '{strategy}'\n");
    let mut cached = session("nemotron_h", &format!("{BUDGET}{workload}"));
    let [first, again, _] = prompts();
    let (first, again) = (generate(&mut cached, &first), generate(&mut cached, &again));
    assert_same(&again, &first);
    let longer = [&prompts()[0][..], &first.tokens, &[3, 5, 7]].concat();
    let longer = generate(&mut cached, &longer);
    assert_eq!([first, again, longer].map(|output| output.cached_tokens), expected);
}

/// Where an answer ends a state is kept, and the block around it is copied for who goes on from there.
#[rstest]
fn the_next_turn_goes_on_where_the_last_one_ended(
    #[values("bamba", "falcon_h1", "jamba", "nemotron_h", "qwen3_next")] model: &str,
    #[values(5, 8, 16)] block: usize,
) {
    goes_on_where_the_last_turn_ended(model, block);
}

/// Blocks are of whole keys.
#[rstest]
fn the_next_turn_goes_on_within_a_key_of_several_tokens(
    #[values("glm5_next_text", "qwen4_exp_text")] model: &str,
    #[values(8, 16)] block: usize,
) {
    goes_on_where_the_last_turn_ended(model, block);
}

fn goes_on_where_the_last_turn_ended(model: &str, block: usize) {
    let budget = BUDGET.replace("tokens_per_block = 8", &format!("tokens_per_block = {block}"));
    let mut cached = session(model, &format!("{budget}[workload]\ncheckpoints_per_sequence = 3\n"));
    let mut plain = session_without_reuse(model, &budget);
    let mut history = tokens(0, 26);
    let mut reused = Vec::new();
    for turn in 0..4 {
        let output = generate(&mut cached, &history);
        assert_same(&output, &generate(&mut plain, &history));
        reused.push(output.cached_tokens);
        history.extend(output.tokens.iter().chain(&[3 + turn, 5, 7]));
    }
    // All but the last token of an answer was computed.
    assert_eq!(reused, [0, 31, 40, 49]);
    cached.forget_prefixes().unwrap();
    cached.parts().1.shutdown().unwrap();
}

/// A state that is left while tokens are decoded serves who leaves the answer behind it.
#[rstest]
#[case::every_eighth("checkpoint_interval = 8\n", 48)]
#[case::in_whole_blocks("checkpoint_interval = 10\n", 48)]
#[case::seldom("", 24)]
fn states_are_left_at_the_interval_of_a_budget(#[case] interval: &str, #[case] expected: usize) {
    let workload = format!("[workload]\ncheckpoints_per_sequence = 4\n{interval}");
    let mut cached = session("nemotron_h", &format!("{BUDGET}{workload}"));
    let prompt = tokens(0, 27);
    let answer = cached.generate(&[Request::new(prompt.clone(), 30)], true).unwrap().outputs.remove(0);
    let other = [&prompt[..], &answer.tokens[..25], &[3, 5, 7]].concat();
    assert_eq!(generate(&mut cached, &other).cached_tokens, expected);
}

/// A checkpoint in 8 bits is near its state, not equal to it.
#[rstest]
fn a_prompt_goes_on_from_a_checkpoint_in_8_bits(#[values("bamba", "nemotron_h", "qwen3_next")] model: &str) {
    let budget = format!("{BUDGET}[workload]\ncheckpoints_per_sequence = 2\ncheckpoint_dtype = \"int8\"\n");
    let mut cached = session(model, &budget);
    let [first, again, _] = prompts();
    let anew = generate(&mut cached, &first);
    let reused = generate(&mut cached, &again);
    assert_eq!((anew.cached_tokens, reused.cached_tokens), (0, 24));
    let difference = (anew.logits.unwrap().get(0).unwrap() - reused.logits.unwrap().get(0).unwrap()).unwrap();
    let most = difference.abs().unwrap().max_all().unwrap().to_scalar::<f32>().unwrap();
    assert!(most > 0.0 && most < 0.05, "logits differ by {most}");
    cached.forget_prefixes().unwrap();
    cached.parts().1.shutdown().unwrap();
}

/// Conversations of three users that start alike, two or three requests at a time: each goes on behind an answer, or
/// anew from a shared start.
fn conversations() -> Vec<Vec<Request>> {
    let shared = tokens(0, 19);
    let mut histories = [shared.clone(), [&shared[..], &tokens(40, 7)].concat(), tokens(5, 3)];
    let batch = |turn: u32| {
        let users = histories.iter_mut().enumerate().filter(|(user, _)| !(turn as usize + user).is_multiple_of(4));
        let requests = users.map(|(user, history)| {
            if history.len() > 60 {
                *history = [&shared[..], &tokens(turn + user as u32, 5)].concat();
            }
            history.extend(tokens(turn * 3 + user as u32, 1 + (turn + user as u32) % 5));
            let request = Request::new(history.clone(), 2 + (turn as usize * 5 + user) % 16);
            // What a chat template makes of the answer: not the tokens that were generated.
            history.extend(tokens(60 + turn, request.max_new_tokens as u32 / 2));
            request
        });
        requests.collect()
    };
    (0..9).map(batch).collect()
}

over_every_model!(conversations_give_the_same_with_and_without_reuse);
fn conversations_give_the_same_with_and_without_reuse(model: &str) {
    // Prompts take several steps, and the pools hold two long sequences.
    let chunked = BUDGET.replace("max_num_tokens = 64", "max_num_tokens = 24");
    let mut plain = session_without_reuse(model, &chunked);
    let checkpoints = "[workload]\ncheckpoints_per_sequence = 2\n";
    let mut cached = session(model, &format!("{chunked}{}", if has_states(&plain) { checkpoints } else { "" }));
    let mut plan = cached.plan().clone();
    for pool in plan.pools.iter_mut().filter(|pool| pool.tokens_per_block.is_some()) {
        pool.units = pool.units.min(25);
        pool.bytes = pool.units * pool.unit_bytes;
    }
    cached.parts().1.resize(&plan).unwrap();
    for requests in conversations() {
        let ours = cached.generate(&requests, true).unwrap().outputs;
        let theirs = plain.generate(&requests, true).unwrap().outputs;
        for (ours, theirs) in ours.iter().zip(&theirs) {
            assert_same(ours, theirs);
        }
    }
    let metrics = cached.reuse().unwrap().unwrap();
    assert!(metrics.hit_rate() > 0.3, "{metrics:?}");
    cached.forget_prefixes().unwrap();
    cached.parts().1.shutdown().unwrap();
}

#[rstest]
fn cached_prefixes_make_way_for_sequences(#[values("gemma3", "gemma4", "llama", "nemotron_h")] model: &str) {
    let mut crowded = reusing(model);
    let mut plan = crowded.plan().clone();
    for pool in plan.pools.iter_mut().filter(|pool| pool.tokens_per_block.is_some()) {
        // A sequence needs 4 blocks, three of different starts 12.
        pool.units = 9;
        pool.bytes = pool.units * pool.unit_bytes;
    }
    crowded.parts().1.resize(&plan).unwrap();
    let mut roomy = session(model, BUDGET);
    for start in [0, 1, 2, 0] {
        let prompt = tokens(start, 26);
        assert_same(&generate(&mut crowded, &prompt), &generate(&mut roomy, &prompt));
    }
    let requests = [0, 1, 2].map(|start| Request::new(tokens(start, 20), 12));
    let together = crowded.generate(&requests, true).unwrap().outputs;
    for (ours, theirs) in together.iter().zip(&roomy.generate(&requests, true).unwrap().outputs) {
        assert_same(ours, theirs);
    }
}
