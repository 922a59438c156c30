//! Replays against one that is written down the long way: sets of prefixes, of which nothing is ever lost.

use std::collections::HashSet;

use cacheplan_planner::{Budget, CachePlan, PlanRequest, StoredStates};
use cacheplan_transforms::{Model, ReadOptions};
use proptest::prelude::*;
use rstest::rstest;

use super::{TiersError, TiersQuestion};
use crate::prefix::{HostTier, Token};
use crate::simulate::below::Below;
use crate::simulate::run::{Counted, Extras, Run, WindowPool};
use crate::simulate::{Links, Moved, Piece, Policy, Scenario, TraceRequest, Workload};

const PAGE: usize = 4;
const CHUNK: usize = 12;
const FAST: Links = Links { host: 1e12, disk: 1e12 };

fn tokens_of(request: &TraceRequest) -> (Vec<Token>, usize) {
    let mut tokens = Vec::new();
    request.prompt.iter().for_each(|piece| piece.expand(&mut tokens));
    let prompt = tokens.len();
    request.output.expand(&mut tokens);
    (tokens, prompt)
}

/// Prompt tokens that need not be computed where nothing is lost: a state at the end and the window before it are needed.
fn reused(requests: &[TraceRequest], states: bool, window: Option<usize>) -> u64 {
    let (mut keys, mut windows, mut kept) = (HashSet::new(), HashSet::new(), HashSet::new());
    let mut hits = 0;
    for request in requests {
        let (tokens, prompt) = tokens_of(request);
        let mut hit = 0;
        for end in (PAGE..prompt).step_by(PAGE) {
            if !keys.contains(&tokens[..end]) {
                break;
            }
            let pages = end / PAGE;
            let from = window.map_or(pages, |window| pages.saturating_sub(window));
            let whole = (from..pages).all(|page| windows.contains(&tokens[..(page + 1) * PAGE]));
            if whole && (!states || kept.contains(&tokens[..end])) {
                hit = end;
            }
        }
        hits += hit as u64;
        let mut keep = |end: usize, exact: bool| {
            let pages = end / PAGE;
            for page in 0..pages {
                keys.insert(tokens[..(page + 1) * PAGE].to_vec());
                if window.is_some_and(|window| page + window >= pages) {
                    windows.insert(tokens[..(page + 1) * PAGE].to_vec());
                }
            }
            if exact {
                kept.insert(tokens[..end].to_vec());
            }
        };
        let mut start = hit;
        while start < prompt {
            start = prompt.min(start + CHUNK);
            if start.is_multiple_of(PAGE) {
                keep(start, true);
            }
        }
        keep(tokens.len() / PAGE * PAGE, tokens.len().is_multiple_of(PAGE));
    }
    hits
}

/// The tree with a device of so many pages and states, and tiers below of so many of each.
fn replay(
    requests: &[TraceRequest],
    states: bool,
    window: Option<usize>,
    device: usize,
    [host, disk]: [u32; 2],
    links: Links,
) -> (Counted, Moved) {
    let of = |units: u32| HostTier { blocks: units, slots: units, windows: units };
    let scenario = Scenario {
        policy: Policy::NoBuffer,
        states,
        checkpoints: Some(4),
        kv_tokens: Some(device * PAGE),
        page: PAGE,
        chunk: 2,
        prefill_chunk: CHUNK,
        concurrency: 1,
        host: (host + disk > 0).then(|| of(host + disk)),
        ..Scenario::default()
    };
    let compute = |from: usize, to: usize| (to - from) as f64;
    let below = (host + disk > 0).then(|| Below::new(of(host), [8, 2, 32], PAGE, links, Some(&compute)));
    let windows = window.map(|pages| WindowPool::new(pages, None));
    let mut run = Run::with(scenario, Extras { unit: PAGE, windows, below }).unwrap();
    for (at, request) in requests.iter().enumerate() {
        run.give_way().unwrap();
        run.start(at, request).unwrap();
    }
    run.end().unwrap()
}

/// Prompts of pages out of three, so that many share a beginning, with an end and an answer of their own.
fn requests() -> impl Strategy<Value = Vec<TraceRequest>> {
    let request = (proptest::collection::vec(0_u64..3, 0..9), 0_usize..6, 0_usize..9);
    proptest::collection::vec(request, 1..30).prop_map(|requests| {
        let all = requests.into_iter().enumerate().map(|(at, (pages, tail, answer))| {
            let own = 1000 + 2 * at as u64;
            let mut prompt: Vec<Piece> = pages.into_iter().map(|id| Piece::Run { id, len: PAGE }).collect();
            prompt.push(Piece::Run { id: own, len: tail });
            TraceRequest { prompt, output: Piece::Run { id: own + 1, len: answer }, tenant: 0 }
        });
        all.collect()
    })
}

/// A span went below with its window, and its front came back by a request that keeps no window there.
#[test]
fn a_window_is_reused_from_below_where_its_keys_came_back_without_one() {
    let request = |own: u64, pages: &[u64], tail: usize, answer: usize| {
        let mut prompt: Vec<Piece> = pages.iter().map(|&id| Piece::Run { id, len: PAGE }).collect();
        prompt.push(Piece::Run { id: own, len: tail });
        TraceRequest { prompt, output: Piece::Run { id: own + 1, len: answer }, tenant: 0 }
    };
    let all: [(&[u64], usize, usize); 5] =
        [(&[1, 1], 0, 0), (&[0, 0, 0], 0, 0), (&[0, 0, 1, 0], 0, 0), (&[1, 0], 1, 3), (&[1, 1, 0], 0, 0)];
    let requests = (1000..).step_by(2).zip(all).map(|(own, (pages, tail, answer))| request(own, pages, tail, answer));
    let requests: Vec<TraceRequest> = requests.collect();
    let (counted, _) = replay(&requests, true, Some(2), 2000, [0, 400], FAST);
    assert_eq!((counted.hit, reused(&requests, true, Some(2))), (8, 8));
}

proptest! {
    /// What the device loses lies below it, in either tier, as long as these hold everything.
    #[test]
    fn tiers_that_hold_everything_reuse_all_that_can_be(
        requests in requests(),
        states: bool,
        window in proptest::option::of(1_usize..4),
        host in 0_u32..40,
    ) {
        let expected = reused(&requests, states, window);
        let (counted, moved) = replay(&requests, states, window, 2000, [host, 400], FAST);
        prop_assert_eq!(counted.hit, expected);
        prop_assert!(moved.host_tokens + moved.disk_tokens <= counted.hit);
        prop_assert!(moved.disk_bytes <= moved.host_bytes);
        prop_assert_eq!(moved.declined, 0);
        let (short_of_room, _) = replay(&requests, states, window, 16, [host, 400], FAST);
        prop_assert!(short_of_room.hit <= expected);
        prop_assert!(window.is_some() || short_of_room.hit == expected);
    }

    /// Which tier a unit lies in decides how fast it comes back, and not whether it does.
    #[test]
    fn hits_depend_on_what_tiers_hold_together(requests in requests(), states: bool, host in 0_u32..12, disk in 0_u32..12) {
        let (all_host, _) = replay(&requests, states, None, 16, [host + disk, 0], FAST);
        let (both, moved) = replay(&requests, states, None, 16, [host, disk], FAST);
        prop_assert_eq!(all_host.hit, both.hit);
        if !states {
            prop_assert_eq!(moved.host_bytes, (moved.host_tokens + moved.disk_tokens) / PAGE as u64 * 8);
            prop_assert!(moved.written_bytes >= moved.disk_bytes);
        }
    }

    /// A symbol for each page finds what the tokens themselves find.
    #[test]
    fn a_symbol_for_each_page_hits_what_tokens_hit(requests in requests(), states: bool) {
        let scenario = Scenario {
            policy: Policy::CompleteLru, states, checkpoints: Some(5), kv_tokens: Some(20 * PAGE), page: PAGE, chunk: 2,
            prefill_chunk: CHUNK, concurrency: 2, ..Scenario::default()
        };
        let by = |unit| {
            let mut run = Run::with(scenario, Extras { unit, windows: None, below: None }).unwrap();
            for (at, request) in requests.iter().enumerate() {
                run.give_way().unwrap();
                run.start(at, request).unwrap();
            }
            run.end().unwrap().0.hit
        };
        prop_assert_eq!(by(1), by(PAGE));
    }
}

#[test]
fn a_tier_that_loads_slower_than_computing_counts_for_nothing() {
    let requests = Workload::Rag.requests();
    let requests: Vec<TraceRequest> = requests.into_iter().take(30).collect();
    let device = 4000;
    let (alone, _) = replay(&requests, false, None, device, [0, 0], FAST);
    let (fast, _) = replay(&requests, false, None, device, [1 << 20, 0], FAST);
    let slow = Links { host: 1e-3, disk: 1e-3 };
    let (slow, moved) = replay(&requests, false, None, device, [1 << 20, 0], slow);
    assert!(fast.hit > alone.hit, "{} after {}", fast.hit, alone.hit);
    assert!(slow.hit < fast.hit && moved.loads == 0 && moved.declined > 0 && moved.host_bytes == 0, "{moved:?}");
}

fn plan(budget: &str) -> CachePlan {
    let config = r#"{ "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 512, "num_attention_heads": 8,
      "intermediate_size": 256, "vocab_size": 256, "max_position_embeddings": 32768, "torch_dtype": "bfloat16" }"#;
    let model = Model::read_config("config.json", config, &ReadOptions::default()).unwrap();
    PlanRequest::of(model).with_budget(Budget::from_toml(budget, "budget.toml").unwrap()).plan().unwrap()
}

const BUDGET: &str = "max_seq_len = 16384\n[memory]\nbytes = '256MiB'";

fn question(plan: &CachePlan) -> TiersQuestion<'_> {
    TiersQuestion {
        plan,
        chunk: 64,
        policy: Policy::CompleteLru,
        running: Some(2),
        host: 1 << 30,
        disk: 0,
        stored: StoredStates::Own,
        target: None,
        links: FAST,
        compute: None,
        prices: None,
    }
}

#[test]
fn the_smallest_tiers_that_reach_the_target_reach_it() {
    let plan = plan(BUDGET);
    let requests: Vec<TraceRequest> = Workload::Agents.requests().into_iter().take(300).collect();
    let largest = question(&plan).answer(&requests).unwrap();
    let most = largest.curve.last().unwrap().hit_rate;
    assert!(most > largest.planned.hit_rate + 0.02, "{most} after {}", largest.planned.hit_rate);
    // A leaf moves as a whole, so that a little more room may hit a little less.
    assert!(largest.curve.windows(2).all(|two| two[0].hit_rate <= two[1].hit_rate + 0.01));
    let target = f64::midpoint(most, largest.planned.hit_rate);
    let answer = TiersQuestion { target: Some(target), ..question(&plan) }.answer(&requests).unwrap();
    let chosen = answer.chosen.unwrap();
    assert!(chosen.hit_rate >= target && chosen.host() > 0 && chosen.host() < 1 << 30, "{chosen:?}");
    let unreached = TiersQuestion { target: Some(1.0), ..question(&plan) }.answer(&requests).unwrap();
    assert_eq!(unreached.chosen, None);
}

#[rstest]
#[case(|question: &mut TiersQuestion<'_>| question.target = Some(1.5), "`target-hit` is 1.5")]
#[case(|question: &mut TiersQuestion<'_>| question.target = Some(f64::NAN), "`target-hit` is NaN")]
#[case(|question: &mut TiersQuestion<'_>| question.host = u64::MAX, "at most 1 PiB was expected")]
#[case(|question: &mut TiersQuestion<'_>| question.links.disk = 0.0, "`disk-rate` is 0")]
#[case(|question: &mut TiersQuestion<'_>| question.prices = Some([-1.0, 0.0]), "`prices` is -1")]
#[case(|question: &mut TiersQuestion<'_>| question.running = Some(0), "`running` is 0; 1 to 1048576 was expected")]
#[case(|question: &mut TiersQuestion<'_>| question.stored = StoredStates::Bf16, "`stored-states` is bf16")]
fn what_is_no_question_is_refused(#[case] change: fn(&mut TiersQuestion<'_>), #[case] said: &str) {
    let plan = plan(BUDGET);
    let mut question = question(&plan);
    change(&mut question);
    let error = question.answer(&Workload::Rag.requests()).unwrap_err().to_string();
    assert!(error.contains(said), "{error}");
}

/// States of float32 in half the bytes, and in 8 bits with their scales.
#[test]
fn states_below_are_counted_in_the_bytes_that_they_are_stored_in() {
    let file = format!("{}/../tests/fixtures/configs/ibm-granite__granite-4.0-h-350m.json", env!("CARGO_MANIFEST_DIR"));
    let model = Model::read(file.as_ref(), &ReadOptions::default()).unwrap();
    let budget = "max_seq_len = 16384\n[dtypes]\nssm = 'f32'\n[memory]\nbytes = '2GiB'\n[workload]\nprompt = { fixed = 8192 }\n\
                  checkpoints_per_sequence = 1";
    let plan = PlanRequest::of(model).with_budget(Budget::from_toml(budget, "budget.toml").unwrap()).plan().unwrap();
    let requests: Vec<TraceRequest> = Workload::Agents.requests().into_iter().take(150).collect();
    let asked = TiersQuestion { host: 1 << 36, ..question(&plan) };
    let answer = asked.answer(&requests).unwrap();
    let stored: Vec<StoredStates> = answer.storages.iter().map(|point| point.stored).collect();
    assert_eq!(stored, StoredStates::ALL);
    assert!(answer.storages.iter().all(|point| point.sizes == answer.storages[0].sizes));

    // Where host memory holds everything all of them hit alike, and loads differ by what states are smaller.
    let replay = super::replay::Replay::of(asked, &requests).unwrap();
    let half = super::Split { windows: 0.0, states: 0.5 };
    let sizes = super::Sizes { device: half.of(128 << 20), host: half.of(1 << 36), disk: super::Kinds::default() };
    let points = StoredStates::ALL.map(|stored| {
        let job = super::replay::Job { sizes, distance: 1024, stored };
        replay.run(job).unwrap().unwrap()
    });
    let [own, bf16, int8] = StoredStates::ALL.map(|stored| plan.stored_state_bytes(stored).unwrap());
    assert!(points.iter().all(|point| point.hit_tokens == points[0].hit_tokens) && points[0].moved.host_bytes > 0);
    let less = |point: &super::TierPoint| points[0].moved.host_bytes - point.moved.host_bytes;
    assert!(less(&points[1]) > 0);
    assert_eq!(less(&points[1]) * (own - int8), less(&points[2]) * (own - bf16));

    // Of a little host memory twice as many states hold no less than they did.
    let sizes = super::Sizes { host: super::Kinds { states: 4 * own, ..sizes.host }, ..sizes };
    let narrow = StoredStates::ALL
        .map(|stored| replay.run(super::replay::Job { sizes, distance: 1024, stored }).unwrap().unwrap().hit_tokens);
    assert!(narrow[0] < narrow[1] && narrow[1] <= narrow[2], "{narrow:?}");
}

#[test]
fn a_trace_that_the_plan_serves_nothing_of_is_refused() {
    let plan = plan("max_seq_len = 64\n[memory]\nbytes = '64MiB'");
    let error = question(&plan).answer(&Workload::Rag.requests()).unwrap_err();
    assert!(matches!(error, TiersError::AllTooLong { most: 64, .. }), "{error}");
}
