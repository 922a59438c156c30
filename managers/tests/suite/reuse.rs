//! Sequences of a book that reuse prefixes: whatever is shared, copied, passed by a window or evicted, each reads its own
//! past only.

mod world;

use cacheplan_handlers::ResourceHandler;
use cacheplan_managers::BookError;
use cacheplan_managers::book::{CacheBook, NoReuse, SlotId, SlotRole, StepMetadata, Windows, Work};
use cacheplan_managers::prefix::{BranchRule, Key, PrefixReuse, Strategy, TenantId};
use proptest::prelude::ProptestConfig;
use rstest::rstest;

use crate::support::{Setup, conv, kv, ssm};

use self::world::{Op, Running, World, ops};

/// Pools that sequences and the tree compete for.
fn plans(name: &str) -> Setup {
    // The eight tokens before the current one are two pages, the five before it do not end on one.
    let window = |handler: ResourceHandler| handler.with_window(9).unwrap();
    let short = |handler: ResourceHandler| handler.with_window(6).unwrap();
    let mut setup = match name {
        "keys" => Setup::new().with(0, kv(2, 8)),
        "two pools of keys" => Setup::new().with(0, kv(2, 8)).with(1, kv(1, 16)),
        "windows" => Setup::new().with(0, kv(2, 8)).with(1, window(kv(2, 8))),
        "windows alone" => Setup::new().with(0, window(kv(2, 8))).with(1, window(kv(1, 16))),
        "states" => Setup::new().with(0, ssm()).with(1, conv()),
        "a hybrid" => Setup::new().with(0, ssm()).with(0, conv()).with(1, kv(2, 8)),
        "a hybrid with windows" => Setup::new().with(0, ssm()).with(1, short(kv(2, 8))).with(2, kv(2, 8)),
        other => panic!("{other}"),
    };
    setup.slots.checkpoints = 5;
    setup.blocks = 40;
    setup
}

const STRATEGIES: [Strategy; 3] = [
    Strategy::complete(Some(8)),
    Strategy::NO_BUFFER,
    Strategy { chunk_ends: false, interior: true, branch: BranchRule::Also, decode_interval: None, finish: false },
];

#[rstest]
#[case("keys")]
#[case("two pools of keys")]
#[case("windows")]
#[case("windows alone")]
#[case("states")]
#[case("a hybrid")]
#[case("a hybrid with windows")]
fn a_sequence_reads_its_own_past_only(
    #[case] plan: &str,
    // Sixteen hold the longest sequence and no block more.
    #[values(40, 16)] blocks: u64,
) {
    let setup = Setup { blocks, ..plans(plan) };
    const CASES: u32 = 150;
    let mut runner =
        proptest::test_runner::TestRunner::new(ProptestConfig { cases: CASES, ..ProptestConfig::default() });
    let cached = std::cell::Cell::new(0);
    let result = runner.run(&(ops(), 0..STRATEGIES.len()), |(ops, strategy)| {
        let mut world = World::new(&setup, STRATEGIES[strategy]);
        ops.into_iter().for_each(|op| world.apply(op));
        cached.set(cached.get() + world.cached);
        world.end();
        Ok(())
    });
    result.unwrap();
    assert!(cached.get() > 0, "nothing was ever reused");
}

fn tokens(count: u32) -> Vec<u32> {
    (0..count).collect()
}

/// Runs a prompt to its end and `decode` tokens on, and returns what was cached of it.
fn serve(world: &mut World, prompt: &[u32], decode: u32) -> usize {
    let key = Key { namespace: &world.namespace, tokens: prompt };
    let lease = world.reuse.admit(&mut world.book, key, TenantId(0)).unwrap();
    world.execute();
    let cached = lease.cached();
    world.running.push(Running { lease, tokens: prompt.to_vec(), computed: cached });
    while world.running[0].computed < prompt.len() {
        let running = &world.running[0];
        let chunk = world.reuse.next_tokens(&running.lease, prompt.len() - running.computed);
        world.step(&[chunk]);
    }
    for token in 0..decode {
        world.grow(token);
    }
    world.apply(Op::Finish(0));
    cached
}

#[rstest]
#[case("keys", [0, 28, 28, 40])]
#[case("two pools of keys", [0, 28, 28, 40])]
#[case("windows", [0, 28, 28, 40])]
#[case("windows alone", [0, 28, 28, 40])]
// A state serves from any token on; those within a sequence are left at ends of blocks.
#[case("a hybrid", [0, 28, 28, 41])]
#[case("a hybrid with windows", [0, 28, 28, 41])]
// Without keys a state can be found after any number of tokens.
#[case("states", [0, 29, 29, 41])]
fn a_prompt_a_second_time_and_a_conversation_go_on_from_the_deepest_place(
    #[case] plan: &str,
    #[case] expected: [usize; 4],
) {
    let mut setup = plans(plan);
    setup.slots.checkpoints = 8;
    let mut world = World::new(&setup, Strategy::complete(Some(4)));
    let first = tokens(30);
    let conversation: Vec<u32> = first.iter().copied().chain((0..11).map(|token| 7 + token)).chain([3, 5]).collect();
    let found = [
        serve(&mut world, &first, 0),
        serve(&mut world, &first, 11),
        serve(&mut world, &first, 0),
        serve(&mut world, &conversation, 0),
    ];
    assert_eq!(found, expected);
    assert_eq!(world.reuse.metrics().requests, 4);
    world.end();
}

/// What a turn has computed serves the next, however many blocks that is; and with no more blocks than one sequence has
/// it runs all the same.
#[rstest]
fn a_finished_turn_serves_the_next_one_wherever_it_ends(
    #[values("a hybrid", "a hybrid with windows")] plan: &str,
    #[values(1, 4, 7, 16, 32)] block: u32,
    #[values(false, true)] narrow: bool,
) {
    let mut setup = plans(plan);
    setup.tokens_per_block = block.into();
    setup.blocks = if narrow { u64::from(59_u32.div_ceil(block)) + 1 } else { 80 };
    let mut world = World::new(&setup, Strategy::complete(Some(8)));
    let mut history = tokens(20);
    let mut cached = Vec::new();
    for decoded in [11, 7, 13] {
        cached.push(serve(&mut world, &history, decoded));
        history.extend((0..decoded).map(|token| 7 + token).chain([3, 5]));
    }
    assert!(narrow || cached == [0, 31, 40], "{cached:?}");
    world.end();
}

#[test]
fn a_hold_in_the_tree_does_not_keep_the_blocks_that_a_window_has_passed() {
    let mut setup = plans("windows alone");
    // One sequence's window and step: nothing is left for what it has passed.
    setup.blocks = 4;
    let mut world = World::new(&setup, Strategy::complete(None));
    assert_eq!(serve(&mut world, &tokens(14), 40), 0);
    world.end();
}

#[rstest]
fn cached_prefixes_make_way_for_a_prompt_that_starts_otherwise(
    #[values("keys", "two pools of keys", "windows", "windows alone", "a hybrid")] plan: &str,
) {
    let mut setup = plans(plan);
    setup.blocks = 16;
    let mut world = World::new(&setup, Strategy::complete(None));
    for start in 0..5 {
        let prompt: Vec<u32> = (start * 100..start * 100 + 60).collect();
        assert_eq!(serve(&mut world, &prompt, 0), 0);
    }
    world.end();
}

#[test]
fn a_request_that_was_not_admitted_is_not_counted() {
    let mut world = World::new(&plans("keys"), Strategy::complete(None));
    let long = tokens(64);
    for _ in 0..3 {
        let key = Key { namespace: &world.namespace, tokens: &long };
        let admitted = world.reuse.admit(&mut world.book, key, TenantId(0));
        if let Ok(lease) = admitted {
            world.running.push(Running { lease, tokens: long.clone(), computed: 0 });
        }
    }
    assert_eq!(world.running.len(), 2, "40 blocks hold two prompts of 16 blocks");
    assert_eq!(world.reuse.metrics().requests, 2);
    world.end();
}

#[test]
fn why_a_plan_allows_no_reuse_is_said() {
    let reason = |setup: &Setup, windows| {
        let plan = setup.plan();
        let mut book = CacheBook::with_windows(&plan, windows).unwrap();
        match PrefixReuse::new(&plan, &mut book, Strategy::complete(None)) {
            Err(BookError::NoReuse(reason)) => reason,
            other => panic!("{other:?}"),
        }
    };
    let mut hybrid = plans("a hybrid");
    hybrid.slots.checkpoints = 0;
    assert_eq!(reason(&hybrid, Windows::Sliding), NoReuse::NoCheckpoints);
    assert_eq!(reason(&Setup::new(), Windows::Sliding), NoReuse::NothingCached);
    let rings = reason(&plans("windows"), Windows::Cyclic);
    assert!(matches!(rings, NoReuse::Rings { .. }), "{rings}");
    let two = Setup::new().with(0, kv(2, 8).with_window(9).unwrap()).with(1, kv(2, 8).with_window(12).unwrap());
    let two = reason(&two, Windows::Sliding);
    assert!(matches!(two, NoReuse::Windows { found: 12, expected: 9, .. }), "{two}");
}

#[test]
fn a_checkpoint_is_made_of_a_slot_of_the_plan() {
    let mut world = World::new(&plans("a hybrid"), Strategy::complete(None));
    serve(&mut world, &tokens(30), 0);
    let used = world.book.slots().used(SlotRole::Checkpoint);
    assert!(used > 0 && used <= 5);
    assert_eq!(world.book.slots().used(SlotRole::Live), 0);
    let free: Vec<SlotId> = world.book.slots().free_slots().collect();
    assert!(!free.is_empty());
    world.end();
}

/// Sixteen tokens are computed; eighty more are claimed, then one is computed and not told.
#[rstest]
fn what_the_book_does_not_have_is_refused_and_changes_nothing(#[values("keys", "windows", "a hybrid")] plan: &str) {
    let mut world = World::new(&plans(plan), Strategy::complete(Some(4)));
    let (prompt, claimed) = (tokens(16), tokens(96));
    let key = Key { namespace: &world.namespace, tokens: &prompt };
    let mut lease = world.reuse.admit(&mut world.book, key, TenantId(0)).unwrap();
    let sequence = lease.sequence();
    world.book.step(&[Work { sequence, tokens: 16 }], &mut StepMetadata::default()).unwrap();
    let before = (world.reuse.tree().usage(), world.book.stats());

    let refused = world.reuse.computed(&mut world.book, &mut lease, &claimed[16..]);
    assert_eq!(refused, Err(BookError::OtherTokens { sequence, known: 96, computed: 0, found: 16 }));
    assert_eq!(lease.tokens(), prompt);
    assert_eq!((world.reuse.tree().usage(), world.book.stats()), before);

    world.book.step(&[Work { sequence, tokens: 1 }], &mut StepMetadata::default()).unwrap();
    let refused = world.reuse.finish(&mut world.book, lease);
    assert_eq!(refused, Err(BookError::OtherTokens { sequence, known: 16, computed: 0, found: 17 }));
    assert_eq!(world.reuse.tree().usage(), before.0);
    let key = Key { namespace: &world.namespace, tokens: &claimed };
    assert_eq!(world.reuse.tree().match_prefix(key).hit, 0);
    assert_eq!(world.book.tokens(sequence), Ok(17), "the sequence is the book's as before");
    world.book.finish(sequence).unwrap();
    world.end();
}

#[test]
fn a_sequence_that_is_not_in_the_pools_leaves_nothing() {
    let mut world = World::new(&plans("a hybrid"), Strategy::complete(Some(4)));
    let prompt = tokens(16);
    let key = Key { namespace: &world.namespace, tokens: &prompt };
    let mut lease = world.reuse.admit(&mut world.book, key, TenantId(0)).unwrap();
    let sequence = lease.sequence();
    world.book.park(sequence).unwrap();
    let refused = world.reuse.computed(&mut world.book, &mut lease, &[]);
    assert!(matches!(refused, Err(BookError::WrongState { .. })), "{refused:?}");
    assert!(matches!(world.reuse.finish(&mut world.book, lease), Err(BookError::WrongState { .. })));
    world.book.finish(sequence).unwrap();
    assert!(matches!(world.book.tokens(sequence), Err(BookError::StaleSequence(_))));
    world.end();
}

/// A preemption would take from a lease what it says that it has: the lease ends instead, and what it computed is found.
#[rstest]
#[case("keys", 28)]
#[case("windows", 28)]
#[case("a hybrid", 30)]
fn a_sequence_of_a_lease_makes_way_by_its_end(#[case] plan: &str, #[case] found: usize) {
    let mut world = World::new(&plans(plan), Strategy::complete(Some(4)));
    let (prompt, longer) = (tokens(30), tokens(31));
    let key = Key { namespace: &world.namespace, tokens: &prompt };
    let lease = world.reuse.admit(&mut world.book, key, TenantId(0)).unwrap();
    world.execute();
    let sequence = lease.sequence();
    world.running.push(Running { lease, tokens: prompt, computed: 0 });
    while world.running[0].computed < 30 {
        let chunk = world.reuse.next_tokens(&world.running[0].lease, 30 - world.running[0].computed);
        world.step(&[chunk]);
    }
    let before = world.book.stats();
    assert_eq!(world.book.preempt(sequence), Err(BookError::Leased(sequence)));
    assert_eq!(world.book.stats(), before);

    let lease = world.running.pop().unwrap().lease;
    world.reuse.finish(&mut world.book, lease).unwrap();
    let key = Key { namespace: &world.namespace, tokens: &longer };
    let lease = world.reuse.admit(&mut world.book, key, TenantId(0)).unwrap();
    assert_eq!(lease.cached(), found);
    let sequence = lease.sequence();
    world.reuse.abandon(lease).unwrap();
    world.execute();
    world.book.preempt(sequence).unwrap();
    world.book.resume(sequence, 31).unwrap();
    world.book.finish(sequence).unwrap();
    world.end();
}

#[rstest]
fn a_dropped_lease_gives_its_sequence_back(#[values("keys", "windows", "a hybrid")] plan: &str) {
    let mut world = World::new(&plans(plan), Strategy::complete(Some(4)));
    let prompt = tokens(48);
    for round in 0..20 {
        let key = Key { namespace: &world.namespace, tokens: &prompt };
        let mut lease = world.reuse.admit(&mut world.book, key, TenantId(0)).unwrap();
        let left = prompt.len() - lease.cached();
        let tokens = world.reuse.next_tokens(&lease, left) as u32;
        let work = [Work { sequence: lease.sequence(), tokens }];
        world.book.step(&work, &mut StepMetadata::default()).unwrap();
        world.reuse.computed(&mut world.book, &mut lease, &[]).unwrap();
        assert_eq!(lease.cached() > 0, round > 0, "what was computed stays");
        drop(lease);
    }
    assert_eq!(world.book.sequences().count(), 1);
    world.book.reclaim().unwrap();
    assert_eq!(world.book.sequences().count(), 0);
    world.end();
}

/// A step of an engine that only asks the books sees the room that a dropped lease leaves.
#[test]
fn books_take_the_room_of_a_dropped_lease() {
    let mut setup = plans("a hybrid");
    setup.slots.live = 1;
    let mut world = World::new(&setup, Strategy::complete(None));
    let prompt = tokens(8);
    let key = Key { namespace: &world.namespace, tokens: &prompt };
    let lease = world.reuse.admit(&mut world.book, key, TenantId(0)).unwrap();
    assert!(matches!(world.book.admit(8), Err(BookError::Lack(_))));
    drop(lease);
    let sequence = world.book.admit(8).unwrap();
    world.book.finish(sequence).unwrap();
    world.end();
}

#[test]
fn a_tenant_without_a_share_is_refused_and_one_that_comes_later_costs_nobody_anything() {
    let mut world = World::new(&plans("a hybrid"), Strategy::complete(Some(4)));
    let prompt = tokens(30);
    assert_eq!(serve(&mut world, &prompt, 0), 0);
    let admit = |world: &mut World, tenant: u16| {
        let key = Key { namespace: &world.namespace, tokens: &prompt };
        let lease = world.reuse.admit(&mut world.book, key, TenantId(tenant));
        lease.map(|lease| lease.cached())
    };
    let refused = admit(&mut world, 9).unwrap_err().to_string();
    assert_eq!(refused, "tenant 9 is not one of 1, which are numbered from 0; name more of them");
    for (tenants, tenant) in [(10, 9), (1 << 16, u16::MAX)] {
        world.reuse.set_tenants(vec![1; tenants]).unwrap();
        world.reuse.tree().check().unwrap();
        assert_eq!(admit(&mut world, tenant), Ok(28), "what was cached is there still");
    }
    assert!(world.reuse.set_tenants(vec![1; 3]).is_err(), "what three of them hold would be nobody's");
    world.execute();
    world.end();
}

/// Three requests share 100 of 120 tokens. The first leaves a state where the second turns off only if it is told of it.
#[rstest]
#[case::told(true, [0, 96, 96])]
#[case::not_told(false, [0, 0, 96])]
fn running_requests_find_a_state_where_they_turn_off(#[case] told: bool, #[case] expected: [usize; 3]) {
    let mut setup = plans("a hybrid");
    setup.tokens_per_block = 16;
    (setup.limits.max_seq_len, setup.limits.max_num_tokens) = (128, 128);
    let mut world = World::new(&setup, Strategy::complete(None));
    let prompts: Vec<Vec<u32>> =
        (0..3).map(|own| (0..100).chain(1000 * own + 500..1000 * own + 520).collect()).collect();
    for (at, prompt) in prompts.iter().enumerate() {
        let key = |tokens| Key { namespace: &world.namespace, tokens };
        let mut lease = world.reuse.admit(&mut world.book, key(prompt), TenantId(0)).unwrap();
        for other in prompts[at + 1..].iter().filter(|_| told) {
            assert_eq!(world.reuse.expect(&mut lease, key(other)), 96);
        }
        world.execute();
        let computed = lease.cached();
        assert_eq!(computed, expected[at], "request {at}");
        world.running.push(Running { lease, tokens: prompt.clone(), computed });
        while world.running[at].computed < prompt.len() {
            let running = &world.running[at];
            let mut chunks = vec![0; at];
            chunks.push(world.reuse.next_tokens(&running.lease, prompt.len() - running.computed));
            world.step(&chunks);
        }
    }
    world.end();
}

/// Of 100 tokens in common 96 end a block. They are to come until they are computed, and then there.
#[rstest]
#[case::keys("keys", Strategy::complete(None), false, 96)]
#[case::states_that_are_told("a hybrid", Strategy::complete(None), true, 96)]
#[case::states_that_are_not("a hybrid", Strategy::complete(None), false, 0)]
#[case::a_strategy_that_leaves_none("a hybrid", Strategy::NO_BUFFER, true, 0)]
fn a_prompt_is_told_what_a_running_sequence_will_leave_of_it(
    #[case] plan: &str,
    #[case] strategy: Strategy,
    #[case] told: bool,
    #[case] expected: usize,
) {
    let mut setup = plans(plan);
    setup.tokens_per_block = 16;
    (setup.limits.max_seq_len, setup.limits.max_num_tokens) = (128, 128);
    let mut world = World::new(&setup, strategy);
    let prompt = |own: u32| -> Vec<u32> { (0..100).chain(own..own + 20).collect() };
    let (first, second, other) = (prompt(500), prompt(700), (900..1000).collect::<Vec<u32>>());
    let namespace = world.namespace.clone();
    let key = |tokens| Key { namespace: &namespace, tokens };
    let mut lease = world.reuse.admit(&mut world.book, key(&first), TenantId(0)).unwrap();
    world.execute();
    if told {
        assert_eq!(world.reuse.expect(&mut lease, key(&second)), 96);
    }
    world.running.push(Running { lease, tokens: first.clone(), computed: 0 });
    while world.running[0].computed < first.len() {
        let Running { lease, computed, .. } = &world.running[0];
        let coming = if *computed < 96 { expected } else { 0 };
        assert_eq!(world.reuse.coming(lease, key(&second)), coming, "behind {computed} tokens");
        assert_eq!(world.reuse.coming(lease, key(&other)), 0);
        let chunk = world.reuse.next_tokens(lease, first.len() - computed);
        world.step(&[chunk]);
    }
    let lease = world.reuse.admit(&mut world.book, key(&second), TenantId(0)).unwrap();
    assert_eq!(lease.cached(), expected);
    drop(lease);
    world.execute();
    world.end();
}

/// Both compute the same prompt at once, so that each has blocks of its own for it, and the tree those of one.
#[rstest]
fn the_last_sequence_has_room_beside_what_another_leaves_of_its_prompt(
    #[values("keys", "two pools of keys", "windows", "a hybrid", "a hybrid with windows")] plan: &str,
    #[values(20, 28)] prompt: u32,
) {
    let setup = Setup { blocks: 16, ..plans(plan) };
    let mut world = World::new(&setup, Strategy::complete(None));
    let prompt = tokens(prompt);
    for _ in 0..2 {
        let key = Key { namespace: &world.namespace, tokens: &prompt };
        let lease = world.reuse.admit(&mut world.book, key, TenantId(0)).unwrap();
        world.execute();
        world.running.push(Running { lease, tokens: prompt.clone(), computed: 0 });
    }
    while world.running.iter().any(|running| running.computed < prompt.len()) {
        let left = |running: &Running| prompt.len() - running.computed;
        let chunks = world.running.iter().map(|running| world.reuse.next_tokens(&running.lease, left(running)));
        let chunks: Vec<usize> = chunks.collect();
        world.step(&chunks);
    }
    world.apply(Op::Finish(0));
    (0..60 - prompt.len() as u32).for_each(|token| world.grow(token));
    assert_eq!(world.running[0].computed, 60);
    world.end();
}

/// The hit holds four pages, two of which the window has passed; the longest first step needs all that is left and more.
#[test]
fn the_last_sequence_goes_on_without_its_prefix_where_there_is_no_room_for_both() {
    let mut setup = plans("windows alone");
    (setup.blocks, setup.limits.max_num_tokens) = (10, 32);
    let mut world = World::new(&setup, Strategy::complete(None));
    assert_eq!(serve(&mut world, &tokens(16), 0), 0);
    let longer = tokens(56);
    let key = Key { namespace: &world.namespace, tokens: &longer };
    assert_eq!(world.reuse.tree().match_prefix(key).hit, 16);
    let lease = world.reuse.admit(&mut world.book, key, TenantId(0)).unwrap();
    assert_eq!(lease.cached(), 0);
    world.running.push(Running { lease, tokens: longer, computed: 0 });
    world.step(&[32]);
    world.step(&[24]);
    world.end();
}

/// As long as others run, their end is waited for: what is cached stays.
#[test]
fn a_sequence_beside_others_waits_rather_than_lose_its_prefix() {
    let mut setup = plans("windows alone");
    (setup.blocks, setup.limits.max_num_tokens) = (12, 32);
    let mut world = World::new(&setup, Strategy::complete(None));
    assert_eq!(serve(&mut world, &tokens(16), 0), 0);
    let (other, longer) = ([900, 901, 902], tokens(56));
    let key = |tokens| Key { namespace: &world.namespace, tokens };
    let lease = world.reuse.admit(&mut world.book, key(&other), TenantId(0)).unwrap();
    assert!(matches!(world.reuse.admit(&mut world.book, key(&longer), TenantId(0)), Err(BookError::Lack(_))));
    assert_eq!(world.reuse.tree().match_prefix(key(&longer)).hit, 16);
    drop(lease);
    world.end();
}
