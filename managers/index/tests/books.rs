//! The index beside a model that keeps plain sets and tries every length, and beside bytes that no engine sends.

use std::collections::{HashMap, HashSet};

use cacheplan_index::{Answer, Batch, Bounds, Error, Event, Index, Kind, Prompt, Stored, Trust, WorkerRank};
use proptest::prelude::*;
use rstest::rstest;

/// A message as engines send them, of as much as tests need.
fn text(out: &mut Vec<u8>, text: &str) {
    out.extend([0xd9, u8::try_from(text.len()).unwrap()]);
    out.extend(text.as_bytes());
}

fn number(out: &mut Vec<u8>, number: u64) {
    out.push(0xcf);
    out.extend(number.to_be_bytes());
}

fn list(out: &mut Vec<u8>, numbers: impl ExactSizeIterator<Item = u64>) {
    out.push(0xdc);
    out.extend(u16::try_from(numbers.len()).unwrap().to_be_bytes());
    numbers.for_each(|one| number(out, one));
}

/// Two groups of keys, one of windows of 5 tokens in wider blocks, one of states.
const GROUPS: [(&str, usize, Option<u64>); 4] =
    [("full_attention", 2, None), ("full_attention", 2, None), ("sliding_window", 4, Some(5)), ("mamba", 2, None)];
const LENGTH: usize = 24;

/// The hash of the first `end` tokens of a text; texts part at their middle.
fn hash(of: u64, end: usize) -> u64 {
    if end <= LENGTH / 2 { end as u64 } else { 1000 * (of + 1) + end as u64 }
}

fn tokens(of: u64) -> Vec<u32> {
    (0..LENGTH).map(|at| if at < LENGTH / 2 { at as u32 } else { 100 * (of as u32 + 1) + at as u32 }).collect()
}

fn batch(event: &[u8]) -> Vec<u8> {
    [&[0x93, 0xc0, 0x91], event, &[0x00]].concat()
}

fn stored(group: usize, of: u64, block: usize) -> Vec<u8> {
    let (kind, size, window) = GROUPS[group];
    let mut out = vec![0x88];
    text(&mut out, "type");
    text(&mut out, "BlockStored");
    text(&mut out, "block_hashes");
    list(&mut out, [hash(of, (block + 1) * size)].into_iter());
    text(&mut out, "parent_block_hash");
    if block == 0 {
        out.push(0xc0);
    } else {
        number(&mut out, hash(of, block * size));
    }
    text(&mut out, "token_ids");
    list(
        &mut out,
        tokens(of)[block * size..(block + 1) * size]
            .iter()
            .map(|token| u64::from(*token))
            .collect::<Vec<_>>()
            .into_iter(),
    );
    text(&mut out, "block_size");
    number(&mut out, size as u64);
    text(&mut out, "group_idx");
    number(&mut out, group as u64);
    text(&mut out, "kv_cache_spec_kind");
    text(&mut out, kind);
    text(&mut out, "kv_cache_spec_sliding_window");
    match window {
        Some(window) => number(&mut out, window),
        None => out.push(0xc0),
    }
    batch(&out)
}

fn removed(group: usize, hash: u64) -> Vec<u8> {
    let mut out = vec![0x83];
    text(&mut out, "type");
    text(&mut out, "BlockRemoved");
    text(&mut out, "block_hashes");
    list(&mut out, [hash].into_iter());
    text(&mut out, "group_idx");
    number(&mut out, group as u64);
    batch(&out)
}

#[derive(Clone, Debug)]
enum Op {
    Store { group: usize, of: u64, block: usize },
    Remove { group: usize, of: u64, block: usize },
    Clear,
    Again,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let place = (0..GROUPS.len(), 0..3_u64, 0..LENGTH / 2);
    let fits = |(group, of, block): (usize, u64, usize)| (group, of, block % (LENGTH / GROUPS[group].1));
    let op = prop_oneof![
        30 => place.clone().prop_map(move |place| { let (group, of, block) = fits(place); Op::Store { group, of, block } }),
        8 => place.prop_map(move |place| { let (group, of, block) = fits(place); Op::Remove { group, of, block } }),
        1 => Just(Op::Clear),
        3 => Just(Op::Again),
    ];
    proptest::collection::vec(op, 1..250)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn an_index_counts_as_plain_sets_do(ops in ops()) {
        let index = Index::new(Bounds::default());
        let mut held: HashMap<(usize, u64), u32> = HashMap::new();
        let (mut known, mut next, mut last) = (HashSet::new(), 0, None::<(u64, Vec<u8>)>);
        for op in ops {
            let bytes = match &op {
                Op::Store { group, of, block } => {
                    known.insert(*group);
                    *held.entry((*group, hash(*of, (block + 1) * GROUPS[*group].1))).or_default() += 1;
                    stored(*group, *of, *block)
                }
                Op::Remove { group, of, block } => {
                    let hash = hash(*of, (block + 1) * GROUPS[*group].1);
                    if let Some(copies) = held.get_mut(&(*group, hash)) {
                        *copies = copies.saturating_sub(1);
                    }
                    removed(*group, hash)
                }
                Op::Clear => {
                    held.clear();
                    batch(b"\x81\xa4type\xb0AllBlocksCleared")
                }
                // A batch that is sent again changes nothing.
                Op::Again => {
                    if let Some((number, bytes)) = last.clone().filter(|(number, _)| *number > 0) {
                        index.take(1, number, &bytes).unwrap();
                    }
                    continue;
                }
            };
            index.take(1, next, &bytes).unwrap();
            last = Some((next, bytes));
            next += 1;
        }
        for of in 0..if next == 0 { 0 } else { 3 } {
            let has = |group: usize, end: usize| held.get(&(group, hash(of, end))).is_some_and(|copies| *copies > 0);
            let unit = if known.contains(&2) { 4 } else { 2 };
            let goes = |end: usize| known.iter().all(|group| match *group {
                0 | 1 => (1..=end / 2).all(|block| has(*group, block * 2)),
                2 => (1..=end / 4).rev().take(1).all(|block| has(2, block * 4)),
                _ => end == 0 || has(3, end),
            });
            let expected = (0..LENGTH).rev().filter(|end| end % unit == 0).find(|end| goes(*end)).unwrap_or(0);
            let hashes: Vec<u64> = (1..=LENGTH / 2).map(|block| hash(of, block * 2)).collect();
            let answer = index.ask(Prompt::Hashes { hashes: &hashes, block: 2, tokens: LENGTH })[0].reuse;
            prop_assert_eq!(answer.tokens, if known.is_empty() { 0 } else { expected });
            prop_assert_eq!(answer.trust, Trust::Exact);
            // A block is named by its tokens if that before it is: never more than by hashes.
            prop_assert!(index.ask(Prompt::Tokens(&tokens(of)))[0].reuse.tokens <= answer.tokens);
        }
    }

    #[test]
    fn no_bytes_do_harm(mut bytes in proptest::collection::vec(any::<u8>(), 0..200), at in 0..400_usize, with in any::<u8>()) {
        let _ = Batch::from_msgpack(&bytes);
        bytes = stored(2, 1, 3);
        let at = at % bytes.len();
        bytes[at] = with;
        let index = Index::new(Bounds::default());
        if index.take(1, 0, &bytes).is_ok() {
            for answer in index.ask(Prompt::Tokens(&tokens(1))) {
                prop_assert!(answer.reuse.tokens < LENGTH);
            }
        }
    }
}

#[rstest]
#[case::cut(&[0x93, 0xc0, 0x91, 0x88], "a batch of events ends at byte 4, within type")]
#[case::a_length_that_is_not_there(&[0xdd, 0xff, 0xff, 0xff, 0xff, 0xc0, 0xdd, 0xff, 0xff, 0xff, 0xff], "a batch of events ends at byte 11, within the event")]
#[case::no_list(&[0x05], "batch: the batch is 5, not [time, events, rank]")]
#[case::another_event(
    b"\x92\xc0\x91\x81\xa4type\xa5Moved",
    "an event of type `Moved`; BlockStored, BlockRemoved and AllBlocksCleared are known"
)]
#[case::no_hashes(
    b"\x92\xc0\x91\x82\xa4type\xacBlockRemoved\xacblock_hashes\xa1x",
    "BlockRemoved: block_hashes is `x`, not a list"
)]
#[case::no_block(b"\x92\xc0\x91\x81\xa4type\xabBlockStored", "BlockStored: block_size is nothing, not above zero")]
fn what_is_no_batch_is_refused_by_event_and_field(#[case] bytes: &[u8], #[case] says: &str) {
    assert_eq!(Batch::from_msgpack(bytes).unwrap_err().to_string(), says);
}

#[test]
fn sglang_says_nothing_of_states_and_gets_a_bound() {
    // [0.0, [{"type": "BlockStored", "block_hashes": [-5], "parent_block_hash": None, "token_ids": [1, 2], "block_size": 2, "lora_id": None}], None]
    let bytes = b"\x93\x00\x91\x86\xa4type\xabBlockStored\xacblock_hashes\x91\xfb\xb1parent_block_hash\xc0\xa9token_ids\x92\x01\x02\xaablock_size\x02\xa7lora_id\xc0\xc0";
    let index = Index::new(Bounds::default());
    index.take(3, 0, bytes).unwrap();
    let reuse = index.ask(Prompt::Tokens(&[1, 2, 3]))[0].reuse;
    assert_eq!((reuse.tokens, reuse.keys, reuse.trust), (2, 2, Trust::AtMostNoGroups));
}

#[test]
fn blocks_of_no_tokens_are_refused_however_they_come() {
    let index = Index::new(Bounds::default());
    let stored =
        Stored { hashes: vec![5], group: Some(0), kind: Some(Kind::Full), on_device: true, ..Stored::default() };
    let taken = index.take_batch(1, 0, &Batch { events: vec![Event::Stored(stored)], ..Batch::default() });
    assert_eq!(taken.unwrap_err().to_string(), "BlockStored: block_size is 0, not above zero");
    assert!(index.ask(Prompt::Hashes { hashes: &[5, 6], block: 2, tokens: 9 }).is_empty());
}

#[test]
fn a_bound_costs_a_worker_its_further_blocks_and_says_so() {
    let index = Index::new(Bounds { workers: 1, blocks: 2, ..Bounds::default() });
    for block in 0..4 {
        index.take(1, block, &stored(0, 0, usize::try_from(block).unwrap())).unwrap();
    }
    let reuse = index.ask(Prompt::Tokens(&tokens(0)))[0].reuse;
    assert_eq!((reuse.tokens, reuse.trust), (4, Trust::AtLeastBound));
    assert_eq!(index.sizes()[0].2, 2);
    assert_eq!(index.take(2, 0, &stored(0, 0, 0)), Err(Error::Workers { worker: 2, most: 1 }));
    index.forget(1);
    assert_eq!(index.take(2, 0, &stored(0, 0, 0)), Ok(()));
}

#[test]
fn a_worker_that_begins_anew_or_late_is_known_as_such() {
    let index = Index::new(Bounds::default());
    let ask = || index.ask(Prompt::Tokens(&tokens(0)))[0].reuse;
    index.take(1, 9, &stored(0, 0, 0)).unwrap();
    assert_eq!((ask().tokens, ask().trust), (2, Trust::Estimate));
    index.take(1, 0, &stored(3, 0, 0)).unwrap();
    assert_eq!((ask().tokens, ask().limited_by, ask().trust), (2, Some(Kind::State), Trust::Exact));
    // Keys come to be known: no longer prefix has both.
    index.take(1, 1, &stored(0, 0, 0)).unwrap();
    index.take(1, 2, &stored(0, 0, 1)).unwrap();
    assert_eq!((ask().tokens, ask().keys, ask().limited_by), (2, 4, Some(Kind::State)));
}

#[test]
fn what_was_lost_can_be_replayed_before_it_counts() {
    let index = Index::new(Bounds::default());
    let who = WorkerRank { worker: 1, rank: 0 };
    assert_eq!(index.next(who), None);
    index.take(1, 0, &stored(0, 0, 0)).unwrap();
    // Batch 3 arrives; the subscriber sees that 1 and 2 are missing, and asks the publisher for them first.
    assert_eq!(index.next(who), Some(1));
    for number in 1..4 {
        index.take(1, number, &stored(0, 0, usize::try_from(number).unwrap())).unwrap();
    }
    let reuse = index.ask(Prompt::Tokens(&tokens(0)))[0].reuse;
    assert_eq!((reuse.tokens, reuse.trust), (8, Trust::Exact));
}

#[test]
fn workers_are_written_and_asked_at_once() {
    let index = Index::new(Bounds::default());
    std::thread::scope(|scope| {
        for worker in 0..4 {
            let index = &index;
            scope.spawn(move || {
                for block in 0..12 {
                    index.take(worker, block, &stored(0, 0, usize::try_from(block).unwrap())).unwrap();
                    index.ask(Prompt::Tokens(&tokens(0)));
                }
            });
        }
    });
    let answers = index.ask(Prompt::Tokens(&tokens(0)));
    assert_eq!(answers.len(), 4);
    assert!(answers.iter().all(|answer| answer.reuse.tokens == 22));
}

#[test]
fn workers_that_hold_the_same_are_answered_each_by_its_own_groups_and_trust() {
    let index = Index::new(Bounds::default());
    // The first and the second store the same; the third's first batch is lost; the fourth keeps states of it.
    for (worker, first, group) in [(1, 0, 0), (2, 0, 0), (3, 7, 0), (4, 0, 3)] {
        (0..2).for_each(|block| index.take(worker, first + block, &stored(group, 0, block as usize)).unwrap());
    }
    // The fifth holds no more than the first block.
    index.take(5, 0, &stored(0, 0, 0)).unwrap();
    let reuse = |answer: &Answer| (answer.reuse.tokens, answer.reuse.keys, answer.reuse.trust);
    let answers: Vec<_> = index.ask(Prompt::Tokens(&tokens(0))).iter().map(reuse).collect();
    let [of_keys, lost] = [Trust::Exact, Trust::Estimate].map(|trust| (4, 4, trust));
    assert_eq!(answers, [of_keys, of_keys, lost, (4, LENGTH - 2, Trust::Exact), (2, 2, Trust::Exact)]);
}
