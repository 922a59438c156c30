//! The six phases in one process whose allocations are counted: nothing else runs in this binary meanwhile.

use std::path::PathBuf;

use cacheplan_kernels::Backend;
use cacheplan_managers::CountingAllocator;
use cacheplan_planner::{Budget, Owner};
use cacheplan_runtime::{Request, RequestError, RuntimeError, Sampling, Session, SessionOptions};
use candle_core::Device;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

fn open(budget: &str) -> Session {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/models/nemotron_h");
    let budget = Budget::from_toml(budget, "test").unwrap();
    Session::open(&folder, SessionOptions { budget, ..SessionOptions::default() }).unwrap()
}

#[track_caller]
fn assert_planned_equals_actual(session: &Session) {
    let pools = session.caches().bytes().unwrap();
    assert!(!pools.is_empty());
    for pool in pools {
        assert_eq!(pool.actual_bytes, Some(pool.planned_bytes), "{}", pool.id);
    }
}

/// One test, since counts are of the whole process.
#[test]
fn a_session_plans_allocates_profiles_resizes_and_generates() {
    let mut session = Session::demo(Backend::Cpu).unwrap();
    let owners: Vec<Owner> = session.plan().pools.iter().map(|pool| pool.owner).collect();
    for owner in [Owner::KvCacheManager, Owner::MambaCacheManager, Owner::Local] {
        assert!(owners.contains(&owner), "no pool is owned by {owner:?}");
    }
    assert_planned_equals_actual(&session);

    let requests = Request::demo();
    let before = session.generate(&requests, false).unwrap();
    let profile = session.profile().unwrap();
    // The step's hidden states and logits alone are live at once at the end of a forward.
    assert!(profile.forward_bytes > profile.tokens * 64 * 4, "{profile:?}");
    assert!(profile.resident_bytes > session.plan().pools.iter().map(|pool| pool.bytes).sum());

    let (sequences, generation) = (session.plan().capacity.sequences, session.caches().manager().unwrap().generation());
    session.resize(&profile).unwrap();
    assert!(session.plan().capacity.sequences > sequences, "the measurement frees what was assumed of activations");
    assert_eq!(session.caches().manager().unwrap().generation(), generation + 1);
    assert_planned_equals_actual(&session);

    let after = session.generate(&requests, false).unwrap();
    let tokens = |generation: &cacheplan_runtime::Generation| -> Vec<Vec<u32>> {
        generation.outputs.iter().map(|output| output.tokens.clone()).collect()
    };
    assert_eq!(tokens(&after), tokens(&before));
    assert!(after.peak_bytes.unwrap() > session.plan().pools.iter().map(|pool| pool.bytes).sum());

    let report = serde_json::to_value(session.report(&requests, &after).unwrap()).unwrap();
    assert_eq!(report["requests"][2]["prompt_tokens"], 150);
    assert_eq!(report["tokens"][0].as_array().unwrap().len(), 16);
    assert_eq!(report["report"]["pools"][0]["planned_bytes"], report["report"]["pools"][0]["actual_bytes"]);
    assert_eq!(report["report"]["profile"]["method"], "counting allocator");
    requests_that_cannot_be_served_are_refused_and_leave_the_caches_free();
    what_a_draft_needs_is_measured_too();
    what_verifying_guesses_needs_is_measured_too();
}

/// Every token of a verifying step has logits; a step that computes prompts has some for the last token of each alone.
fn what_verifying_guesses_needs_is_measured_too() {
    let llama = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/models/llama");
    let budget = "max_seq_len = 128\nmax_batch_size = 16\nmax_num_tokens = 256\n[speculation]\ndraft_tokens = 15\n";
    let budget = Budget::from_toml(budget, "test").unwrap();
    let options = SessionOptions { budget, ignore_eos: true, ..SessionOptions::default() };
    let mut session = Session::open(&llama, options).unwrap();
    let profile = session.profile().unwrap();
    // What comes often is wanted again, so that guesses are right.
    let sampling = Sampling { frequency_penalty: -4.0, ..Sampling::default() };
    let prompt = |first| [first, 6, 7, 8].repeat(8);
    let request = |place: u32| Request { sampling: sampling.clone(), ..Request::new(prompt(5 + place % 3), 60) };
    let requests: Vec<Request> = (0..16).map(request).collect();
    let served = session.generate(&requests, false).unwrap();
    assert!(served.speed.accepted_tokens > 100, "{:?}", served.speed);
    let measured = profile.resident_bytes + profile.forward_bytes;
    let peak = served.peak_bytes.unwrap();
    assert!(peak as f64 <= 1.02 * measured as f64, "{peak} bytes are more than the {measured} that were measured");
}

/// A draft whose feed-forward layers are 32 times as wide as the model's needs more than the model, and is counted.
fn what_a_draft_needs_is_measured_too() {
    let llama = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/models/llama");
    let wide = tempfile::TempDir::new().unwrap();
    let config = std::fs::read_to_string(llama.join("config.json")).unwrap();
    let config = config.replace("\"intermediate_size\": 128", "\"intermediate_size\": 4096");
    std::fs::write(wide.path().join("config.json"), config).unwrap();
    let mut weights = candle_core::safetensors::load(llama.join("model.safetensors"), &Device::Cpu).unwrap();
    for (name, weight) in weights.iter_mut().filter(|(name, _)| name.contains(".mlp.")) {
        *weight = weight.repeat(if name.contains("down_proj") { (1, 32) } else { (32, 1) }).unwrap();
    }
    candle_core::safetensors::save(&weights, wide.path().join("model.safetensors")).unwrap();
    let measured = |draft: Option<PathBuf>| {
        let budget = "max_seq_len = 64\nmax_batch_size = 2\nmax_num_tokens = 64\n[speculation]\ndraft_tokens = 2\n";
        let budget = Budget::from_toml(budget, "test").unwrap();
        let mut session = Session::open(&llama, SessionOptions { budget, draft, ..SessionOptions::default() }).unwrap();
        session.profile().unwrap()
    };
    let (alone, drafted) = (measured(None), measured(Some(wide.path().to_owned())));
    // The gated product alone has 4096 floats for each of the 64 tokens.
    assert!(drafted.forward_bytes > alone.forward_bytes + 64 * 4096 * 4 / 2, "{alone:?}, {drafted:?}");
}

fn requests_that_cannot_be_served_are_refused_and_leave_the_caches_free() {
    let mut session = open("max_seq_len = 32\nmax_batch_size = 2\ntokens_per_block = 8\n");
    let mut refused = |prompt: &[u32], max_new_tokens| {
        let request = Request::new(prompt.to_vec(), max_new_tokens);
        match session.generate(&[request], false) {
            Err(RuntimeError::Request(error)) => error,
            other => panic!("expected a refusal, got {other:?}"),
        }
    };
    assert_eq!(refused(&[], 1), RequestError::EmptyPrompt { request: 0 });
    assert_eq!(refused(&[1], 0), RequestError::NoNewTokens { request: 0 });
    assert_eq!(refused(&[1, 96], 1), RequestError::Token { request: 0, token: 96, vocab_size: 96 });
    let too_long = RequestError::TooLong { request: 0, prompt: 20, new: 13, limit: 32 };
    assert_eq!(refused(&[1; 20], 13), too_long);
    assert!(session.parts().1.shutdown().is_ok());
}
