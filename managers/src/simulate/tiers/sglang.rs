//! The tree with tiers below it beside SGLang's, request by request.

use std::collections::HashSet;

use serde::Deserialize;

use crate::prefix::HostTier;
use crate::simulate::below::Below;
use crate::simulate::run::{Extras, Run};
use crate::simulate::{Links, Piece, Policy, Scenario, TraceRequest};

/// A trace and what SGLang's tree found, as `tools/xtask/oracle/sglang_tiers.py` writes it; all but `page` in pages.
#[derive(Deserialize)]
struct Witness {
    page: usize,
    device: usize,
    host: u32,
    prompts: Vec<Vec<u64>>,
    hits: Vec<u64>,
    loaded: Vec<u64>,
    /// Hits of the same tree where the rest of a span that a prompt turns off from keeps its age.
    aging: Vec<u64>,
}

fn witnesses() -> Vec<Witness> {
    let path = format!("{}/../tests/fixtures/oracles/sglang-0.5.23.tiers.jsonl", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Pages of each prompt that ours finds, and those of all that came from host memory.
fn ours(witness: &Witness) -> (Vec<u64>, u64) {
    let Witness { page, device, host, prompts, .. } = witness;
    let tier = HostTier { blocks: *host, slots: 0, windows: 0 };
    let scenario = Scenario {
        policy: Policy::NoBuffer,
        states: false,
        kv_tokens: Some(device * page),
        page: *page,
        chunk: 1,
        prefill_chunk: 1 << 20,
        concurrency: 1,
        host: (*host > 0).then_some(tier),
        ..Scenario::default()
    };
    let links = Links { host: 1.0, disk: 1.0 };
    let below = (*host > 0).then(|| Below::new(tier, [1, 0, 0], *page, links, None));
    let mut run = Run::with(scenario, Extras { unit: *page, windows: None, below }).unwrap();
    let mut hits = Vec::new();
    for (at, pages) in prompts.iter().enumerate() {
        let own = (1 << 40) + at as u64;
        let mut prompt: Vec<Piece> = pages.iter().map(|id| Piece::Run { id: *id, len: *page }).collect();
        prompt.push(Piece::Run { id: own, len: 1 });
        let before = run.hit_tokens();
        run.give_way().unwrap();
        run.start(at, &TraceRequest { prompt, output: Piece::Run { id: own, len: 0 }, tenant: 0 }).unwrap();
        hits.push((run.hit_tokens() - before) / *page as u64);
    }
    let (_, moved) = run.end().unwrap();
    (hits, moved.host_tokens / *page as u64)
}

/// SGLang takes the rest of a span, where a prompt turns off inside it, for just used; here it keeps its age, and something else
/// goes first. So many of all requests find another number of pages by that, and none by anything else.
const BY_RESTS: usize = 2;

#[test]
fn every_request_hits_what_it_hits_in_sglangs_tree_but_for_the_age_of_rests() {
    let (mut requests, mut apart) = (0, 0);
    for witness in witnesses() {
        let place = format!("{} pages on the device, {} in host memory", witness.device, witness.host);
        let (hits, loaded) = ours(&witness);
        assert_eq!(hits, witness.aging, "{place}");
        requests += hits.len();
        apart += hits.iter().zip(&witness.hits).filter(|(ours, theirs)| ours != theirs).count();
        let pages: usize = witness.prompts.iter().flatten().collect::<HashSet<_>>().len();
        if pages <= witness.host as usize {
            assert_eq!(hits, witness.hits, "{place}");
            // What the device kept need not come back.
            assert!(loaded <= witness.loaded.iter().sum::<u64>(), "{place}: {loaded}");
        }
    }
    assert_eq!((requests, apart), (720, BY_RESTS));
}
