//! Every operation, with a device that fails at each of its pool operations in turn.

use std::collections::BTreeMap;

use cacheplan_handlers::{Kind, ResourceHandler};
use cacheplan_kernels::{Backend, KvWrite};
use cacheplan_planner::SlotDomain;
use candle_core::{Device, Tensor};
use rstest::rstest;

#[path = "../../../tests/suite/support.rs"]
mod support;

use crate::ManagerError;
use crate::book::{Accepted, Prefix, Residency, SequenceId, SlotRole, StepMetadata, Work};
use crate::device::{CacheManager, CacheSet, fault};
use crate::prefix::Strategy;
use support::{Setup, conv, hybrid, kv, ssm};

fn setup() -> Setup {
    let twin = |handler: ResourceHandler| handler.intermediate().unwrap();
    let mut setup = hybrid().with(3, kv(2, 8).with_window(6).unwrap()).with(0, twin(ssm())).with(0, twin(conv()));
    setup = setup.with(2, twin(ssm())).with(2, twin(conv())).blocks(24).host(1 << 20);
    setup.slots = SlotDomain { padding: 1, live: 6, checkpoints: 2 };
    setup
}

/// A set with sequences in every state, and their handles.
struct World {
    set: CacheSet,
    plain: SequenceId,
    forked: SequenceId,
    speculating: SequenceId,
    tree: SequenceId,
    preempted: SequenceId,
    offloaded: SequenceId,
}

impl World {
    fn new() -> Self {
        let mut set = CacheSet::allocate(&setup().plan(), &Device::Cpu).unwrap();
        let manager = set.manager_mut().unwrap();
        let filled = |manager: &mut CacheManager, tokens: u32, first: u32| {
            let sequence = manager.admit(tokens + 2).unwrap();
            fill(manager, sequence, tokens, first);
            sequence
        };
        // The first slot is free again, so that there is something to compact.
        let gap = filled(manager, 1, 0);
        let offloaded = filled(manager, 7, 300);
        manager.offload(offloaded).unwrap();
        let preempted = filled(manager, 2, 400);
        manager.preempt(preempted).unwrap();
        let plain = filled(manager, 6, 0);
        let forked = manager.fork(plain).unwrap();
        let (speculating, tree) = (filled(manager, 5, 100), filled(manager, 5, 200));
        for sequence in [speculating, tree] {
            let mut step = StepMetadata::default();
            manager.speculate(&[Work { sequence, tokens: 4 }], &mut step).unwrap();
        }
        manager.finish(gap).unwrap();
        Self { set, plain, forked, speculating, tree, preempted, offloaded }
    }

    fn manager(&self) -> &CacheManager {
        self.set.manager().unwrap()
    }

    /// What can be seen of every sequence, and what is free.
    fn seen(&self) -> (BTreeMap<SequenceId, Seen>, [u32; 4]) {
        let manager = self.manager();
        let book = manager.book();
        let sequences = book.sequences().map(|id| (id, Seen::new(manager, id))).collect();
        let blocks = [0, 1].map(|paged| book.blocks(paged).unwrap().available());
        let slots = [SlotRole::Live, SlotRole::Checkpoint].map(|role| book.slots().available(role));
        (sequences, [blocks[0], blocks[1], slots[0], slots[1]])
    }
}

#[derive(Clone, Debug, PartialEq)]
struct Seen {
    residency: Residency,
    tokens: u32,
    speculates: bool,
    slot: Option<u32>,
    contents: Vec<f32>,
}

impl Seen {
    fn new(manager: &CacheManager, id: SequenceId) -> Self {
        let sequence = manager.book.sequences.get(id).unwrap();
        let mut contents = Vec::new();
        if sequence.residency == Residency::Resident {
            let flat = |tensor: Tensor| {
                tensor.to_dtype(candle_core::DType::F32).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap()
            };
            for (layer, kind) in [(0, Kind::Ssm), (2, Kind::CausalConv)] {
                contents.extend(flat(manager.read_state(id, manager.route(layer, &kind).unwrap()).unwrap()));
            }
            contents.extend(flat(manager.read_kv(id, manager.route(1, &Kind::KvPaged).unwrap()).unwrap().keys));
        }
        Self {
            residency: sequence.residency,
            tokens: sequence.tokens,
            speculates: sequence.draft.is_some(),
            slot: sequence.slot.map(|slot| slot.0),
            contents,
        }
    }
}

/// Advances a sequence and writes its tokens' numbers into the attention layers and the states.
fn fill(manager: &mut CacheManager, sequence: SequenceId, tokens: u32, first: u32) {
    let mut step = StepMetadata::default();
    manager.step(&[Work { sequence, tokens }], &mut step).unwrap();
    let rows: Vec<f32> = (first..first + tokens).flat_map(|token| vec![token as f32; 16]).collect();
    let keys = Tensor::from_vec(rows, (tokens as usize, 2, 8), &Device::Cpu).unwrap();
    for layer in [1, 3] {
        let layer = manager.kv_layer(manager.route(layer, &Kind::KvPaged).unwrap()).unwrap();
        let slots = &step.pools[layer.paged].slot_mapping;
        KvWrite::new(&keys, Some(&keys), slots).run(&Backend::Cpu.run(), layer.pool, &layer.view).unwrap();
    }
    let slot = manager.book().slot(sequence).unwrap().unwrap();
    for pool in manager.mamba().unwrap().slot_pools() {
        pool.fill_units(std::iter::once(slot.0), f64::from(first) + 1.0).unwrap();
    }
}

type Operation = fn(&mut World) -> Result<(), ManagerError>;

fn manager(world: &mut World) -> &mut CacheManager {
    world.set.manager_mut().unwrap()
}

/// A step in which the windowed layer lets go of blocks, too.
fn step(world: &mut World) -> Result<(), ManagerError> {
    let work = [Work { sequence: world.plain, tokens: 5 }, Work { sequence: world.forked, tokens: 1 }];
    manager(world).step(&work, &mut StepMetadata::default())
}

fn speculate(world: &mut World) -> Result<(), ManagerError> {
    let work = [Work { sequence: world.plain, tokens: 3 }];
    manager(world).speculate(&work, &mut StepMetadata::default())
}

fn commit(world: &mut World) -> Result<(), ManagerError> {
    let accepted = [(world.speculating, Accepted::First(2)), (world.tree, Accepted::Path(&[1, 3]))];
    manager(world).commit(&accepted)
}

fn restore(world: &mut World) -> Result<(), ManagerError> {
    let mut state = world.manager().capture(world.plain)?;
    state.tokens = 5;
    let forked = world.forked;
    manager(world).restore(forked, &state)
}

fn rewind(world: &mut World) -> Result<(), ManagerError> {
    let plain = world.plain;
    let checkpoint = manager(world).checkpoint(plain)?;
    let done = manager(world).rewind(plain, checkpoint, 6);
    manager(world).book.release_checkpoint(checkpoint)?;
    done
}

fn prefix(world: &mut World) -> Result<(), ManagerError> {
    let plain = world.plain;
    let checkpoint = manager(world).checkpoint(plain)?;
    let blocks = world.manager().book().held_blocks(plain)?;
    let prefix = Prefix { tokens: 6, blocks, state: Some(checkpoint) };
    let admitted = manager(world).admit_prefix(9, &prefix).map(|_| ());
    manager(world).book.release_checkpoint(checkpoint)?;
    admitted
}

#[rstest]
#[case::admit(|world: &mut World| manager(world).admit(9).map(|_| ()))]
#[case::admit_prefix(prefix)]
#[case::fork(|world: &mut World| { let plain = world.plain; manager(world).fork(plain).map(|_| ()) })]
#[case::step(step)]
#[case::speculate(speculate)]
#[case::commit(commit)]
#[case::truncate_to_nothing(|world: &mut World| { let plain = world.plain; manager(world).truncate(plain, 0) })]
#[case::checkpoint(|world: &mut World| { let plain = world.plain; manager(world).checkpoint(plain).map(|_| ()) })]
#[case::rewind(rewind)]
#[case::restore(restore)]
#[case::resume(|world: &mut World| { let preempted = world.preempted; manager(world).resume(preempted, 5) })]
#[case::offload(|world: &mut World| { let plain = world.plain; manager(world).offload(plain) })]
#[case::onload(|world: &mut World| { let offloaded = world.offloaded; manager(world).onload(offloaded) })]
#[case::compact(|world: &mut World| manager(world).compact_slots().map(|_| ()))]
fn a_failing_device_leaves_everything_as_it_was_or_says_what_is_lost(#[case] operation: Operation) {
    for working in 0.. {
        let mut world = World::new();
        let (before, free) = world.seen();
        let done = fault::after(working, || operation(&mut world));
        let (after, free_now) = world.seen();
        let lost = match done {
            Ok(()) => {
                assert!(working > 0, "the operation has nothing that can fail");
                return;
            }
            Err(ManagerError::ContentsLost { sequences, .. }) => sequences,
            Err(ManagerError::Tensor(_)) => Vec::new(),
            Err(error) => panic!("{error}"),
        };
        assert_eq!(before.len(), after.len(), "a sequence was left behind");
        for (id, before) in before {
            let after = &after[&id];
            if lost.contains(&id) {
                assert_eq!((after.residency, after.slot), (Residency::Preempted, None));
            } else {
                assert_eq!(*after, before, "{id} after {working} pool operations");
            }
        }
        if lost.is_empty() {
            assert_eq!(free_now, free, "something leaked");
        }
        // The device works again, and so does everything.
        if lost.is_empty() {
            operation(&mut world).unwrap();
        }
        for id in world.manager().book().sequences().collect::<Vec<_>>() {
            manager(&mut world).finish(id).unwrap();
        }
    }
}

#[test]
fn a_change_of_the_books_alone_is_made_up_for_before_anything_is_read() {
    let mut world = World::new();
    let plain = world.plain;
    let route = world.manager().route(0, &Kind::Ssm).unwrap();
    let failed = fault::after(0, || manager(&mut world).with_book(|book| book.fork(plain)));
    assert!(matches!(failed, Err(ManagerError::Tensor(_))));
    assert!(matches!(world.manager().state_layer(route), Err(ManagerError::Unfinished { ops: 1 })));
    assert!(matches!(world.manager().capture(plain), Err(ManagerError::Unfinished { ops: 1 })));
    manager(&mut world).with_book(|_| Ok(())).unwrap();
    let states: Vec<_> = world.seen().0.into_values().filter(|seen| seen.tokens == 6).collect();
    assert_eq!(states.len(), 3);
    assert!(states.iter().all(|seen| seen.contents == states[0].contents));
}

#[test]
fn a_resize_that_the_device_cannot_give_puts_the_old_pools_back() {
    for working in 0.. {
        let mut world = World::new();
        for id in world.manager().book().sequences().filter(|&id| id != world.offloaded).collect::<Vec<_>>() {
            manager(&mut world).finish(id).unwrap();
        }
        let plan = setup().blocks(40).plan();
        let refused = fault::during(working, || world.set.resize(&plan));
        if refused.is_ok() {
            return assert!(working > 3);
        }
        assert_eq!(world.set.plan().pools, setup().plan().pools);
        let offloaded = world.offloaded;
        manager(&mut world).onload(offloaded).unwrap();
        assert_eq!(world.seen().0[&offloaded].contents[0], 301.0);
    }
}

#[test]
fn a_rebalance_that_the_device_cannot_give_keeps_every_sequence() {
    let mut larger = setup().blocks(40);
    larger.slots.live = 5;
    for working in 0.. {
        let mut world = World::new();
        manager(&mut world).compact_slots().unwrap();
        let before = world.seen().0;
        let refused = fault::after(working, || world.set.rebalance(&larger.plan()));
        assert_eq!(world.seen().0, before);
        match refused {
            Ok(()) => return assert!(working > 2),
            Err(error) => assert!(matches!(error, ManagerError::Tensor(_)), "{error}"),
        }
        world.set.rebalance(&larger.plan()).unwrap();
        assert_eq!(world.seen().0, before);
    }
}

#[test]
fn a_move_to_another_device_takes_every_pool_or_none() {
    for working in 0.. {
        let mut world = World::new();
        let route = world.manager().route(1, &Kind::KvPaged).unwrap();
        let (before, pools) = (world.seen(), pool_tensors(world.manager()));
        // A test has one device only; as far as moving goes it is another one.
        let moved = fault::after(working, || world.set.move_to(Backend::Cpu));
        assert_eq!(world.seen(), before, "after {working} pool operations");
        let staying = pools.into_iter().zip(pool_tensors(world.manager())).filter(|(old, new)| old == new).count();
        match moved {
            Ok(()) => {
                assert_eq!(staying, 0);
                assert!(matches!(world.manager().kv_layer(route), Err(ManagerError::StaleRoute { .. })));
                return assert!(working > 3 * world.set.plan().pools.len() - 3);
            }
            Err(error) => {
                assert!(matches!(error, ManagerError::Tensor(_)), "{error}");
                assert_eq!(staying, world.set.plan().pools.len());
                world.manager().kv_layer(route).unwrap();
                world.set.move_to(Backend::Cpu).unwrap();
                assert_eq!(world.seen(), before);
            }
        }
    }
}

fn pool_tensors(manager: &CacheManager) -> Vec<candle_core::TensorId> {
    manager.pools().map(|(_, pool)| pool.tensor.id()).collect()
}

#[test]
fn a_prefix_host_that_cannot_be_had_sets_nothing_aside() {
    for working in 0.. {
        let mut world = World::new();
        let used = |world: &World| world.manager().book().host_stats().unwrap().used_bytes;
        let before = used(&world);
        let Err(error) = fault::after(working, || world.set.prefix_reuse(Strategy::NO_BUFFER)) else {
            return assert!(working > 2);
        };
        assert!(matches!(error, ManagerError::Tensor(_)), "{error}");
        assert_eq!(used(&world), before);
        assert!(world.set.prefix_reuse(Strategy::NO_BUFFER).unwrap().host().is_some_and(|tier| tier.windows > 0));
    }
}
