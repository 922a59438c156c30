//! The same facts in the layouts of engines and versions.

use cacheplan_index::{Batch, Bounds, Error, Event, Index, Kind, Prompt, Stored, Trust};
use rstest::rstest;

/// `[0.0, [["BlockStored", [7], None, [1, 2], 2, *more]]]`, as msgspec encodes it.
fn stored(count: u8, more: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0x92, 0x00, 0x91, 0x90 | (5 + count)];
    bytes.extend(b"\xabBlockStored\x91\x07\xc0\x92\x01\x02\x02");
    bytes.extend(more);
    bytes
}

#[rstest]
#[case::before_0_11(1, b"\xc0", None, Trust::AtMostNoGroups)]
#[case::vllm_0_11_and_sglang(2, b"\xc0\xa3GPU", None, Trust::AtMostNoGroups)]
#[case::with_a_name(3, b"\xc0\xa3GPU\xc0", None, Trust::AtMostNoGroups)]
#[case::with_keys(4, b"\xc0\xa3GPU\xc0\x91\xc0", None, Trust::AtMostNoGroups)]
#[case::with_groups(7, b"\xc0\xa3GPU\xc0\x91\xc0\x00\xaefull_attention\xc0", Some(0), Trust::Exact)]
#[case::with_what_is_not_known_yet(
    8,
    b"\xc0\xa3GPU\xc0\x91\xc0\x00\xaefull_attention\xc0\x93\x01\x02\x03",
    Some(0),
    Trust::Exact
)]
fn lists_of_fields_grew_at_their_end(
    #[case] count: u8,
    #[case] more: &[u8],
    #[case] group: Option<u32>,
    #[case] trust: Trust,
) {
    let bytes = stored(count, more);
    let Event::Stored(event) = Batch::from_msgpack(&bytes).unwrap().events.remove(0) else { panic!("stored") };
    assert_eq!((event.hashes, event.tokens, event.block, event.group), (vec![7], vec![1, 2], 2, group));
    let index = Index::new(Bounds::default());
    index.take(1, 0, &bytes).unwrap();
    let reuse = index.ask(Prompt::Tokens(&[1, 2, 3]))[0].reuse;
    assert_eq!((reuse.tokens, reuse.trust), (2, trust));
}

#[test]
fn a_batch_may_be_a_map() {
    let listed = stored(1, b"\xc0");
    let mapped = [b"\x83\xa2ts\x00\xa6events", &listed[2..], b"\xb2data_parallel_rank\x03"].concat();
    let batch = Batch::from_msgpack(&mapped).unwrap();
    assert_eq!(batch.rank, 3);
    assert_eq!(batch.events, Batch::from_msgpack(&listed).unwrap().events);
    assert_eq!(
        Batch::from_msgpack(b"\x81\xa2ts\x00").unwrap_err().to_string(),
        "batch: the batch is nothing, not a batch with `events`"
    );
}

#[test]
fn blocks_on_the_host_are_not_on_the_device() {
    let index = Index::new(Bounds::default());
    index.take(1, 0, &stored(2, b"\xc0\xaaCPU_PINNED")).unwrap();
    assert_eq!(index.ask(Prompt::Tokens(&[1, 2, 3]))[0].reuse.tokens, 0);
}

#[test]
fn pairs_of_tokens_name_no_prompt() {
    let index = Index::new(Bounds::default());
    // ["BlockStored", [7], None, [[1, 2], [2, 3]], 2, None], as SGLang sends where it drafts.
    let bytes = b"\x92\x00\x91\x96\xabBlockStored\x91\x07\xc0\x92\x92\x01\x02\x92\x02\x03\x02\xc0";
    index.take(1, 0, bytes).unwrap();
    assert_eq!(index.ask(Prompt::Tokens(&[1, 2, 3]))[0].reuse.tokens, 0);
    assert_eq!(index.ask(Prompt::Hashes { hashes: &[7], block: 2, tokens: 3 })[0].reuse.tokens, 2);
}

#[test]
fn our_own_event_says_what_a_worker_holds_of_states() {
    let stored = |group, kind, hash, parent: Option<u64>, from: u32| {
        Event::Stored(Stored {
            hashes: vec![hash],
            parent,
            tokens: vec![from, from + 1],
            block: 2,
            group: Some(group),
            kind: Some(kind),
            window: None,
            is_keyed: false,
            on_device: true,
        })
    };
    let batch = Batch {
        rank: 2,
        time: 1_700_000_000_250_000,
        events: vec![
            stored(0, Kind::Full, 7, None, 0),
            stored(0, Kind::Full, 8, Some(7), 2),
            stored(1, Kind::State, 7, None, 0),
            Event::Removed { hashes: vec![9], group: Some(1), window: None, on_device: true },
            Event::Stored(Stored {
                window: Some(4),
                kind: Some(Kind::Window),
                is_keyed: true,
                on_device: false,
                block: 1,
                group: Some(5),
                ..Stored::default()
            }),
        ],
    };
    let bytes = batch.to_msgpack();
    assert_eq!(Batch::from_msgpack(&bytes), Ok(batch));
    let index = Index::new(Bounds::default());
    index.take(1, 0, &bytes).unwrap();
    let answer = index.ask(Prompt::Tokens(&[0, 1, 2, 3, 4]))[0];
    assert_eq!((answer.who.rank, answer.reuse.tokens, answer.reuse.keys), (2, 2, 4));
    assert_eq!((answer.reuse.limited_by, answer.reuse.trust), (Some(Kind::State), Trust::Exact));
    let cleared = Batch { rank: 2, time: 0, events: vec![Event::Cleared] };
    index.take(1, 1, &cleared.to_msgpack()).unwrap();
    assert_eq!(index.ask(Prompt::Tokens(&[0, 1, 2, 3, 4]))[0].reuse.tokens, 0);
}

/// As `KVCacheEventSerializer` of TensorRT-LLM makes them: a window of 4 tokens beside one of 64, blocks of 2.
fn trtllm(id: u64, window: u32, parent: &str, hash: i64, first: u32) -> String {
    let token = |token: u32| format!(r#"{{"type": "unique_token", "token_id": {token}, "token_extra_id": 0}}"#);
    format!(
        r#"{{"event_id": {id}, "data": {{"type": "stored", "parent_hash": {parent}, "blocks": [{{"type": "stored_block",
        "block_hash": {hash}, "tokens": [{}, {}], "cache_level": 0, "priority": 35}}]}}, "window_size": {window}}}"#,
        token(first),
        token(first + 1)
    )
}

#[test]
fn tensorrt_llm_names_groups_by_windows_and_gets_a_bound() {
    let index = Index::new(Bounds::default());
    let created =
        r#"{"event_id": 0, "data": {"type": "created", "num_blocks_per_cache_level": [9, 0]}, "window_size": 4}"#;
    index.take_trtllm(1, created.as_bytes()).unwrap();
    let mut id = 0;
    for window in [4, 64] {
        for (block, parent) in [(0, "null"), (1, "-10"), (2, "11"), (3, "12")] {
            id += 1;
            let hash = if block == 0 { -10 } else { 10 + block };
            index.take_trtllm(1, trtllm(id, window, parent, hash, 2 * block as u32).as_bytes()).unwrap();
        }
    }
    let ask = || index.ask(Prompt::Tokens(&[0, 1, 2, 3, 4, 5, 6, 7, 8]))[0].reuse;
    assert_eq!((ask().tokens, ask().trust), (8, Trust::AtMostNoGroups));
    let gone = r#"[{"event_id": 9, "data": {"type": "removed", "block_hashes": [-10]}, "window_size": 4},
        {"event_id": 10, "data": {"type": "updated", "block_hash": 13, "cache_level": {"type": "event_diff", "new_value": 1,
        "old_value": 0}, "priority": null}, "window_size": 64}]"#;
    index.take_trtllm(1, gone.as_bytes()).unwrap();
    assert_eq!(ask().tokens, 8, "the window needs its last blocks alone");
    let gone = r#"{"event_id": 11, "data": {"type": "removed", "block_hashes": [12]}, "window_size": 4}"#;
    index.take_trtllm(1, gone.as_bytes()).unwrap();
    assert_eq!((ask().tokens, ask().limited_by), (0, Some(Kind::Window)));
    assert_eq!(ask().keys, 8);
    // One number is left out.
    let gone = r#"{"event_id": 13, "data": {"type": "removed", "block_hashes": [12]}, "window_size": 4}"#;
    index.take_trtllm(1, gone.as_bytes()).unwrap();
    assert_eq!(ask().trust, Trust::Estimate);
}

#[rstest]
#[case::cut(r#"{"event_id": 3"#, "events of TensorRT-LLM: ")]
#[case::without_tokens(
    r#"{"event_id": 3, "data": {"type": "stored", "parent_hash": null, "blocks": [{"block_hash": 1, "tokens": []}]}}"#,
    "events of TensorRT-LLM: a block without tokens was stored"
)]
fn what_tensorrt_llm_does_not_send_is_refused(#[case] text: &str, #[case] says: &str) {
    let error = Index::new(Bounds::default()).take_trtllm(1, text.as_bytes()).unwrap_err();
    assert!(matches!(error, Error::Json(_)) && error.to_string().starts_with(says), "{error}");
}

#[test]
fn nesting_and_lengths_of_json_are_bounded() {
    let deep = "[".repeat(100_000);
    assert!(matches!(Batch::from_trtllm(deep.as_bytes()), Err(Error::Json(_))));
    let long = vec![b' '; cacheplan_index::MAX_BATCH_BYTES + 1];
    assert!(matches!(Batch::from_trtllm(&long), Err(Error::TooLong { .. })));
}
