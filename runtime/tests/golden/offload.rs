//! A sequence that makes way waits in host memory or is computed again; what it generates is what it would have alone.

use cacheplan_managers::book::Residency;
use cacheplan_planner::Unit;
use cacheplan_runtime::{Admission, Follow, Generation, Output, Request, Session};
use rstest::rstest;

use crate::harness::{BUDGET, session, session_without_reuse};

const HOST: &str = "\n[host]\nbytes = '8MiB'\n";

/// Three requests of 6, 5 and 5 blocks at their ends.
fn requests() -> Vec<Request> {
    let prompt = |start: u32, count: u32| (start..start + count).map(|token| 1 + token * 7 % 90).collect();
    [(0, 27), (3, 20), (9, 18)].map(|(start, count)| Request::new(prompt(start, count), 20)).into()
}

/// Pools that hold two of them.
fn crowd(session: &mut Session, host_bytes: Option<u64>) {
    let mut plan = session.plan().clone();
    for pool in plan.pools.iter_mut().filter(|pool| pool.unit == Unit::Block) {
        pool.units = pool.units.min(10);
        pool.bytes = pool.units * pool.unit_bytes;
    }
    if let (Some(host), Some(bytes)) = (&mut plan.host, host_bytes) {
        host.bytes = bytes;
    }
    session.parts().1.resize(&plan).unwrap();
}

fn tokens(outputs: &[Output]) -> Vec<&[u32]> {
    outputs.iter().map(|output| output.tokens.as_slice()).collect()
}

/// Each request alone, in pools with room.
fn alone(model: &str) -> Vec<Output> {
    let mut session = session_without_reuse(model, BUDGET);
    let one = |request| session.generate(&[request], false).unwrap().outputs.remove(0);
    requests().into_iter().map(one).collect()
}

#[track_caller]
fn assert_nothing_is_left(session: &mut Session) {
    session.forget_prefixes().unwrap();
    let book = session.caches().manager().unwrap().book();
    assert!(book.sequences().next().is_none());
    book.ensure_idle().unwrap();
}

#[rstest]
fn caches_that_made_way_come_back_from_the_host(
    #[values(
        "bamba",
        "deepseek_v3",
        "falcon_h1",
        "gemma3",
        "gemma4",
        "gpt_oss",
        "granitemoehybrid",
        "jamba",
        "kimi_linear",
        "lfm2",
        "llama",
        "minimax",
        "nemotron_h",
        "qwen3",
        "qwen3_5_text",
        "qwen3_next",
        "zamba2"
    )]
    model: &str,
) {
    let expected = alone(model);
    let mut without_reuse = session_without_reuse(model, &format!("{BUDGET}{HOST}"));
    let mut with_reuse = session(model, &format!("{BUDGET}{HOST}"));
    for session in [&mut without_reuse, &mut with_reuse] {
        crowd(session, None);
        let Generation { outputs, speed, .. } = session.generate(&requests(), false).unwrap();
        assert_eq!(tokens(&outputs), tokens(&expected));
        assert!(speed.preemptions >= speed.offloads && speed.offloads > 0, "{speed:?}");
        assert!(session.metrics().unwrap().contains(&format!("offloads_total {}\n", speed.offloads)));
        assert_nothing_is_left(session);
    }
}

#[rstest]
fn without_room_in_the_host_tier_caches_are_computed_again(#[values("llama", "nemotron_h")] model: &str) {
    let mut session = session_without_reuse(model, &format!("{BUDGET}{HOST}"));
    crowd(&mut session, Some(1));
    let Generation { outputs, speed, .. } = session.generate(&requests(), false).unwrap();
    assert_eq!(tokens(&outputs), tokens(&alone(model)));
    assert!(speed.preemptions > 0 && speed.offloads == 0, "{speed:?}");
    assert_nothing_is_left(&mut session);
}

/// Wants each request until it was asked about it so many times.
struct Asked([usize; 3]);

impl Follow for Asked {
    fn wants(&mut self, place: usize) -> bool {
        let left = &mut self.0[place];
        *left = left.saturating_sub(1);
        *left > 0
    }
}

/// Gives everything up after so many steps.
struct GivenUp(usize);

impl Follow for GivenUp {
    fn admission(&mut self) -> Admission {
        self.0 = self.0.saturating_sub(1);
        if self.0 == 0 { Admission::Abandoned } else { Admission::Open }
    }
}

#[rstest]
fn a_request_that_is_not_wanted_any_more_leaves_nothing(#[values(1, 2, 9, 16, 19)] asked: usize) {
    let expected = alone("nemotron_h");
    let mut session = session_without_reuse("nemotron_h", &format!("{BUDGET}{HOST}"));
    crowd(&mut session, None);
    for cancelled in 0..3 {
        let mut wanted = Asked([usize::MAX; 3]);
        wanted.0[cancelled] = asked;
        let outputs = session.serve(&requests(), false, &mut wanted).unwrap().outputs;
        for (place, (output, expected)) in outputs.iter().zip(&expected).enumerate() {
            let length = if place == cancelled { output.tokens.len() } else { 20 };
            assert_eq!(output.tokens, expected.tokens[..length]);
            assert!(place != cancelled || length < 20);
        }
        assert_nothing_is_left(&mut session);
    }
    let mut given_up = GivenUp(asked);
    let outputs = session.serve(&requests(), false, &mut given_up).unwrap().outputs;
    for (output, expected) in outputs.iter().zip(&expected) {
        assert_eq!(output.tokens, expected.tokens[..output.tokens.len()]);
    }
    // What was generated before a request made way is not lost.
    let generated: usize = outputs.iter().map(|output| output.tokens.len()).sum();
    assert!(generated + 3 >= asked, "{generated} tokens in {asked} steps");
    assert_nothing_is_left(&mut session);
    let offloaded = |session: &Session| {
        let book = session.caches().manager().unwrap().book();
        book.sequences().filter(|id| book.residency(*id).unwrap() == Residency::Offloaded).count()
    };
    assert_eq!(offloaded(&session), 0);
}
