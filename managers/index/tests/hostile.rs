//! Events as no engine makes them, in the layouts of SGLang and TensorRT-LLM: sizes that fit nothing, parents that do not exist,
//! the same blocks again and again. Nothing panics, and nothing passes the bounds.

use cacheplan_index::{Bounds, Index, Prompt};
use proptest::prelude::*;

const BOUNDS: Bounds = Bounds { workers: 3, blocks: 20, texts: 40 };

/// Sizes near those of the prompt, and those at the ends of their types.
fn size() -> impl Strategy<Value = u32> {
    prop_oneof![4 => 0_u32..9, 1 => Just(u32::MAX), 1 => Just(u32::MAX - 1), 1 => Just(1 << 31), 1 => any::<u32>()]
}

fn hash() -> impl Strategy<Value = u64> {
    prop_oneof![6 => 0_u64..30, 1 => any::<u64>()]
}

#[derive(Clone, Debug)]
enum What {
    Stored {
        hashes: Vec<u64>,
        parent: Option<u64>,
        tokens: Vec<u32>,
        block: u32,
        window: Option<u32>,
        group: Option<u32>,
    },
    Removed {
        hashes: Vec<u64>,
        window: Option<u32>,
        group: Option<u32>,
    },
    Cleared,
}

fn what() -> impl Strategy<Value = What> {
    let hashes = || prop::collection::vec(hash(), 0..6);
    let window = || prop::option::of(size());
    let group = || prop::option::of(prop_oneof![0_u32..66, any::<u32>()]);
    let tokens = prop::collection::vec(size(), 0..24);
    let stored = (hashes(), prop::option::of(hash()), tokens, size(), window(), group());
    prop_oneof![
        8 => stored.prop_map(|(hashes, parent, tokens, block, window, group)| {
            What::Stored { hashes, parent, tokens, block, window, group }
        }),
        3 => (hashes(), window(), group()).prop_map(|(hashes, window, group)| What::Removed { hashes, window, group }),
        1 => Just(What::Cleared),
    ]
}

fn number(out: &mut Vec<u8>, number: u64) {
    out.push(0xcf);
    out.extend(number.to_be_bytes());
}

fn maybe(out: &mut Vec<u8>, value: Option<u64>) {
    match value {
        Some(value) => number(out, value),
        None => out.push(0xc0),
    }
}

fn list(out: &mut Vec<u8>, numbers: &[u64]) {
    out.extend([0xdc, 0, u8::try_from(numbers.len()).unwrap()]);
    numbers.iter().for_each(|one| number(out, *one));
}

fn text(out: &mut Vec<u8>, text: &[u8]) {
    out.extend([0xd9, u8::try_from(text.len()).unwrap()]);
    out.extend(text);
}

/// A batch of one event that is a list of fields, as SGLang's.
fn listed(what: &What, kind: &[u8]) -> Vec<u8> {
    let mut out = vec![0x93, 0xc0, 0x91];
    match what {
        What::Stored { hashes, parent, tokens, block, window, group } => {
            out.push(0x9c);
            text(&mut out, b"BlockStored");
            list(&mut out, hashes);
            maybe(&mut out, *parent);
            list(&mut out, &tokens.iter().map(|token| u64::from(*token)).collect::<Vec<_>>());
            number(&mut out, u64::from(*block));
            // Adapter, medium, its name, keys.
            out.push(0xc0);
            text(&mut out, b"GPU");
            out.extend([0xc0, 0xc0]);
            maybe(&mut out, group.map(u64::from));
            text(&mut out, kind);
            maybe(&mut out, window.map(u64::from));
        }
        What::Removed { hashes, group, .. } => {
            out.push(0x94);
            text(&mut out, b"BlockRemoved");
            list(&mut out, hashes);
            text(&mut out, b"GPU");
            maybe(&mut out, group.map(u64::from));
        }
        What::Cleared => {
            out.push(0x91);
            text(&mut out, b"AllBlocksCleared");
        }
    }
    out.push(0x00);
    out
}

/// An event as TensorRT-LLM's.
fn json(what: &What, id: u64) -> String {
    let (data, window) = match what {
        What::Stored { hashes, parent, tokens, window, .. } => {
            let tokens: Vec<_> = tokens.iter().map(|token| serde_json::json!({ "token_id": token })).collect();
            let block = |hash| serde_json::json!({ "block_hash": hash, "tokens": tokens });
            let blocks: Vec<_> = hashes.iter().map(block).collect();
            (serde_json::json!({ "type": "stored", "parent_hash": parent, "blocks": blocks }), window)
        }
        What::Removed { hashes, window, .. } => {
            (serde_json::json!({ "type": "removed", "block_hashes": hashes }), window)
        }
        What::Cleared => (serde_json::json!({ "type": "created" }), &None),
    };
    serde_json::json!({ "event_id": id, "data": data, "window_size": window }).to_string()
}

fn is_bounded(index: &Index, prompt: &[u32], hashes: &[u64], block: usize) -> Result<(), TestCaseError> {
    let by_hashes = Prompt::Hashes { hashes, block, tokens: prompt.len() };
    for answer in index.ask(Prompt::Tokens(prompt)).into_iter().chain(index.ask(by_hashes)) {
        prop_assert!(answer.reuse.tokens < prompt.len().max(1), "{answer:?}");
        prop_assert!(answer.reuse.tokens <= answer.reuse.keys, "{answer:?}");
    }
    let sizes = index.sizes();
    prop_assert!(sizes.len() <= BOUNDS.workers && sizes.iter().all(|(_, blocks, _)| *blocks <= BOUNDS.blocks));
    prop_assert!(index.texts() <= BOUNDS.texts);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nothing_that_is_listed_passes_the_bounds(
        said in prop::collection::vec((0_u64..5, hash(), what(), 0..4_usize), 1..60),
        prompt in prop::collection::vec(0_u32..9, 0..24), hashes in prop::collection::vec(hash(), 0..8), block in size(),
    ) {
        let index = Index::new(BOUNDS);
        for (worker, number, what, kind) in said {
            let kind: &[u8] = [&b"full_attention"[..], b"sliding_window", b"mamba", b"another"][kind];
            let _ = index.take(worker, number, &listed(&what, kind));
            is_bounded(&index, &prompt, &hashes, block as usize)?;
        }
        (0..5).for_each(|worker| index.forget(worker));
        prop_assert_eq!(index.texts(), 0);
    }

    #[test]
    fn nothing_of_tensorrt_llm_passes_the_bounds(
        said in prop::collection::vec((0_u64..5, hash(), what()), 1..60),
        prompt in prop::collection::vec(0_u32..9, 0..24), hashes in prop::collection::vec(hash(), 0..8), block in size(),
    ) {
        let index = Index::new(BOUNDS);
        for (worker, id, what) in said {
            let _ = index.take_trtllm(worker, json(&what, id).as_bytes());
            is_bounded(&index, &prompt, &hashes, block as usize)?;
        }
        (0..5).for_each(|worker| index.forget(worker));
        prop_assert_eq!(index.texts(), 0);
    }
}
