//! A prefix cache over real pools: whatever is released is poisoned, and whatever is served is what was computed.

use crate::of_books;
use crate::support::{Setup, host_plan, hybrid, kv};
use cacheplan_handlers::{DType, Kind};
use cacheplan_managers::book::{SlotId, SlotRole, StepMetadata, Work};
use cacheplan_managers::device::{CacheManager, CacheSet, Int8Error};
use cacheplan_managers::prefix::{
    CheckpointFormat, HostTier, Key, Namespace, PrefixReuse, ReuseLease, Strategy, TenantId, Token,
};
use cacheplan_managers::{BookError, Lack, ManagerError, Scarce};
use cacheplan_planner::{CachePlan, Member, Pool};
use candle_core::{Device, Tensor};
use rstest::rstest;

const PAGE: usize = 4;
/// A state of the support crate's Mamba layers in 8 bits: 2 heads of 3 by 4 elements, and a scale per head and channel.
const INT8_STATE: u64 = 2 * 3 * 4 + 2 * 4 * 4;
const TIER: HostTier = HostTier { blocks: 6, slots: 3, windows: 6 };
/// States differ by channel, so that scales do too; no element is off by more than half of the largest scale.
const TOLERANCE: f32 = 60.0 / 127.0;

/// Pools that hold less than the prompts that are served from them.
fn plan(format: CheckpointFormat) -> CachePlan {
    let mut setup = hybrid().blocks(8);
    if format == CheckpointFormat::Int8 {
        setup.slots.checkpoints = 0;
    }
    let mut plan = setup.plan();
    if format == CheckpointFormat::Int8 {
        let apart: Vec<Pool> = plan.pools.iter().filter(|pool| is_state(pool)).map(stored).collect();
        plan.pools.extend(apart);
    }
    with_host(plan)
}

/// Attention over whole contexts and over windows, with states where `states`.
fn windowed(states: bool) -> CachePlan {
    let setup = if states { hybrid() } else { Setup::new().with(1, kv(2, 8)) };
    with_host(setup.with(3, kv(2, 8).with_window(6).unwrap()).blocks(8).plan())
}

fn with_host(mut plan: CachePlan) -> CachePlan {
    let units = |pool| u64::from(if is_state(pool) { TIER.slots } else { TIER.blocks });
    plan.host = Some(host_plan(1 << 20, plan.pools.iter().map(|pool| (pool, units(pool)))));
    plan
}

fn is_state(pool: &Pool) -> bool {
    !pool.id.starts_with("kv")
}

/// Two checkpoints beside a pool of slots, recurrent states in 8 bits.
fn stored(pool: &Pool) -> Pool {
    let ssm = pool.id.starts_with("ssm");
    let bytes = |member: &Member| if ssm { INT8_STATE } else { member.bytes };
    let mut offset = 0;
    let members = pool.members.iter().map(|member| {
        let stored = Member { resource: member.resource.clone(), offset, bytes: bytes(member) };
        offset += stored.bytes;
        stored
    });
    let members: Vec<Member> = members.collect();
    let dtype = if ssm { DType::Int8 } else { pool.dtype };
    Pool {
        id: format!("checkpoint.{}", pool.id),
        checkpoints_of: Some(pool.id.clone()),
        unit_bytes: offset,
        units: 2,
        reserved: 0,
        bytes: 2 * offset,
        members,
        dtype,
        ..pool.clone()
    }
}

fn fill(pool: &Tensor, unit: u32, values: Vec<f32>) {
    let row = Tensor::from_vec(values, (1, pool.dims()[1]), &Device::Cpu).unwrap();
    pool.slice_set(&row.to_dtype(pool.dtype()).unwrap(), 0, unit as usize).unwrap();
}

fn row(pool: &Tensor, unit: u32) -> Vec<f32> {
    let row = pool.narrow(0, unit as usize, 1).unwrap().to_dtype(candle_core::DType::F32).unwrap();
    row.flatten_all().unwrap().to_vec1().unwrap()
}

/// What a block or a state that has absorbed these tokens holds; small integers, which bfloat16 has exactly.
fn contents(tokens: &[Token], len: usize) -> Vec<f32> {
    let seed = tokens.iter().fold(7_u32, |hash, token| hash.wrapping_mul(31).wrapping_add(*token));
    (0..len as u32).map(|i| ((seed.wrapping_add(i).wrapping_mul(2_654_435_761) >> 16) % 120) as f32 - 60.0).collect()
}

/// A serving loop of one request at a time.
struct World {
    set: CacheSet,
    reuse: PrefixReuse,
    /// Hits of which a part lay on the host.
    from_host: usize,
}

impl World {
    fn new(plan: &CachePlan) -> Self {
        let mut set = CacheSet::allocate(plan, &Device::Cpu).unwrap();
        let reuse = set.prefix_reuse(Strategy::NO_BUFFER).unwrap();
        Self { set, reuse, from_host: 0 }
    }

    /// Whatever nobody holds is unreadable from here on.
    fn poison(&self) {
        self.set.manager().unwrap().fill_free(f64::NAN).unwrap();
        self.reuse.tree().check().unwrap();
    }

    fn admit(&mut self, tokens: &[Token]) -> Result<ReuseLease, ManagerError> {
        let namespace = Namespace::default();
        let key = Key { namespace: &namespace, tokens };
        self.set.manager_mut()?.admit_reusing(&mut self.reuse, key, TenantId::default())
    }

    fn step(&mut self, lease: &ReuseLease, tokens: usize) {
        let World { set, reuse, .. } = self;
        let manager = set.manager_mut().unwrap();
        let work = [Work { sequence: lease.sequence(), tokens: tokens as u32 }];
        while let Err(error) = manager.step(&work, &mut StepMetadata::default()) {
            let ManagerError::Book(BookError::Lack(lack)) = &error else { panic!("{error}") };
            assert!(manager.with_book(|book| reuse.make_room(book, lack)).unwrap(), "{error}");
        }
    }

    /// What a forward leaves behind the first `end` tokens: blocks from page `from` on, and the states.
    fn compute(&mut self, lease: &ReuseLease, from: usize, end: usize) {
        let (tokens, manager) = (lease.tokens(), self.set.manager().unwrap());
        for (paged, pool) in paged(manager) {
            let table = manager.book().block_table(lease.sequence(), paged).unwrap();
            for (page, &block) in table[..end / PAGE].iter().enumerate().skip(from).filter(|(_, block)| **block >= 0) {
                fill(&pool, block as u32, contents(&tokens[..(page + 1) * PAGE], pool.dims()[1]));
            }
        }
        for (pool, slot) in states(manager, lease) {
            fill(&pool, slot, contents(&tokens[..end], pool.dims()[1]));
        }
    }

    /// Serves a prompt and returns how much of it was hit.
    fn serve(&mut self, tokens: &[Token], format: CheckpointFormat) -> usize {
        let namespace = Namespace::default();
        let found = self.reuse.tree().match_prefix(Key { namespace: &namespace, tokens: &tokens[..tokens.len() - 1] });
        let mut lease = self.admit(tokens).unwrap();
        self.poison();
        let hit = lease.cached();
        self.from_host += usize::from(hit == found.hit && (hit > found.resident || found.host_state.is_some()));
        self.verify(&lease, format);
        let mut computed = hit;
        while computed < tokens.len() {
            let chunk = self.reuse.next_tokens(&lease, tokens.len() - computed);
            self.step(&lease, chunk);
            self.compute(&lease, computed / PAGE, computed + chunk);
            computed += chunk;
            let World { set, reuse, .. } = self;
            set.manager_mut().unwrap().with_book(|book| reuse.computed(book, &mut lease, &[])).unwrap();
            self.poison();
        }
        let World { set, reuse, .. } = self;
        set.manager_mut().unwrap().with_book(|book| reuse.finish(book, lease)).unwrap();
        self.poison();
        hit
    }

    /// Every block that the next token sees, and the states, hold what belongs there.
    fn verify(&self, lease: &ReuseLease, format: CheckpointFormat) {
        let (prefix, manager) = (&lease.tokens()[..lease.cached()], self.set.manager().unwrap());
        for (paged, pool) in paged(manager) {
            let spec = &manager.book().layout().paged[paged];
            let table = manager.book().block_table(lease.sequence(), paged).unwrap();
            for page in spec.first_visible_block(prefix.len() as u32) as usize..prefix.len() / PAGE {
                let expected = contents(&prefix[..(page + 1) * PAGE], pool.dims()[1]);
                assert_eq!(row(&pool, u32::try_from(table[page]).unwrap()), expected, "pool {paged}, page {page}");
            }
        }
        for (at, (pool, slot)) in states(manager, lease).into_iter().enumerate().filter(|_| !prefix.is_empty()) {
            let int8 = at == 0 && format == CheckpointFormat::Int8;
            let tolerance = if int8 { TOLERANCE / 2.0 * 1.001 } else { 0.0 };
            let expected = contents(prefix, pool.dims()[1]);
            let near = row(&pool, slot).iter().zip(&expected).all(|(x, y)| (x - y).abs() <= tolerance);
            assert!(near, "{:?} of {expected:?}", row(&pool, slot));
        }
    }
}

fn paged(manager: &CacheManager) -> Vec<(usize, Tensor)> {
    let layers = [1, 3].into_iter().filter_map(|layer| manager.route(layer, &Kind::KvPaged).ok());
    let pool = |route| manager.kv_layer(route).map(|layer| (layer.paged, layer.pool.clone())).unwrap();
    layers.map(pool).collect()
}

/// The pools of recurrent states and of convolutions, with the slot of a sequence.
fn states(manager: &CacheManager, lease: &ReuseLease) -> Vec<(Tensor, u32)> {
    let Some(slot) = manager.book().slot(lease.sequence()).unwrap() else { return Vec::new() };
    let state = |kind| (manager.state_layer(manager.route(0, &kind).unwrap()).unwrap().pool.clone(), slot.0);
    [Kind::Ssm, Kind::CausalConv].map(state).into()
}

#[rstest]
#[case::native(plan(CheckpointFormat::Native), CheckpointFormat::Native)]
#[case::int8(plan(CheckpointFormat::Int8), CheckpointFormat::Int8)]
#[case::windows(windowed(false), CheckpointFormat::Native)]
#[case::windows_and_states(windowed(true), CheckpointFormat::Native)]
fn whatever_is_served_is_what_was_computed(#[case] plan: CachePlan, #[case] format: CheckpointFormat) {
    let mut world = World::new(&plan);
    let mut noise = 1_u64;
    let mut hits = 0;
    for _ in 0..400 {
        noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let (len, variant) = (PAGE * (1 + (noise >> 40) as usize % 5), (noise >> 50) as u32 % 3);
        let tokens: Vec<Token> = (0..len as u32).map(|i| if i < 8 { i } else { variant * 100 + i }).collect();
        hits += usize::from(world.serve(&tokens, format) > 0);
    }
    assert!(hits > 100 && world.from_host > 20, "{hits} hits, {} of them from the host", world.from_host);
    let World { set, mut reuse, .. } = world;
    let mut set = set;
    set.manager_mut().unwrap().with_book(|book| reuse.clear(book)).unwrap();
    assert_eq!(reuse.tree().usage(), Default::default());
    set.shutdown().unwrap();
}

#[test]
fn a_tier_beyond_the_plans_host_bytes_is_refused() {
    let mut small = plan(CheckpointFormat::Native);
    small.host.as_mut().unwrap().bytes = 64;
    let refused = CacheSet::allocate(&small, &Device::Cpu).unwrap().prefix_reuse(Strategy::NO_BUFFER);
    assert!(matches!(refused, Err(ManagerError::Book(BookError::Lack(Lack { of: Scarce::HostBytes, .. })))));
    let mut without = CacheSet::allocate(&hybrid().plan(), &Device::Cpu).unwrap();
    assert_eq!(without.prefix_reuse(Strategy::NO_BUFFER).unwrap().host(), None);
    assert_eq!(without.prefix_host_bytes().unwrap(), 0);
}

#[test]
fn a_second_tier_is_refused_while_the_first_is_there_and_a_dropped_one_gives_its_bytes_back() {
    let mut set = CacheSet::allocate(&plan(CheckpointFormat::Native), &Device::Cpu).unwrap();
    let used = |set: &CacheSet| set.manager().unwrap().book().host_stats().unwrap().used_bytes;
    let first = set.prefix_reuse(Strategy::NO_BUFFER).unwrap();
    let bytes = used(&set);
    assert!(bytes > 0);
    assert_eq!(set.prefix_host_bytes().unwrap(), bytes);
    let refused = set.prefix_reuse(Strategy::NO_BUFFER);
    assert!(matches!(refused, Err(ManagerError::Book(BookError::HostSetAside { bytes: found })) if found == bytes));
    assert_eq!((used(&set), set.prefix_host_bytes().unwrap()), (bytes, bytes));
    drop(first);
    assert_eq!(used(&set), 0);
    let _second = set.prefix_reuse(Strategy::NO_BUFFER).unwrap();
    assert_eq!(used(&set), bytes);
}

#[test]
fn checkpoint_pools_are_allocated_as_planned() {
    let plan = plan(CheckpointFormat::Int8);
    let set = CacheSet::allocate(&plan, &Device::Cpu).unwrap();
    let bytes: Vec<(String, u64)> =
        set.bytes().unwrap().into_iter().map(|pool| (pool.id, pool.planned_bytes)).collect();
    let planned: Vec<(String, u64)> = plan.pools.iter().map(|pool| (pool.id.clone(), pool.bytes)).collect();
    assert_eq!(bytes, planned);
}

#[test]
fn a_state_that_no_scale_fits_is_refused_by_its_slot_and_takes_no_checkpoint() {
    let mut set = CacheSet::allocate(&plan(CheckpointFormat::Int8), &Device::Cpu).unwrap();
    let manager = set.manager_mut().unwrap();
    let sequence = manager.admit(4).unwrap();
    let live = manager.book().slot(sequence).unwrap().unwrap();
    let ssm = manager.state_layer(manager.route(0, &Kind::Ssm).unwrap()).unwrap().pool.clone();
    fill(&ssm, live.0, vec![f32::INFINITY; ssm.dims()[1]]);
    let refused = manager.checkpoint(sequence);
    assert!(
        matches!(refused, Err(ManagerError::NotQuantisable { slot, source: Int8Error::NotFinite { index: 0 } }) if slot == live)
    );
    assert_eq!(manager.book().checkpoints().used(SlotRole::Checkpoint), 0);
    assert_eq!(
        of_books(manager.rewind(sequence, SlotId(9), 0).unwrap_err()),
        BookError::SlotNotHeld { slot: SlotId(9) }
    );
    fill(&ssm, live.0, vec![1.0; ssm.dims()[1]]);
    let checkpoint = manager.checkpoint(sequence).unwrap();
    fill(&ssm, live.0, vec![2.0; ssm.dims()[1]]);
    manager.rewind(sequence, checkpoint, 0).unwrap();
    assert!(row(&ssm, live.0).iter().all(|x| (x - 1.0).abs() < 0.01));
}

/// Nothing is served from a state that could not be kept; it is dropped, and what it stood for is computed again.
#[rstest]
fn a_prefix_whose_state_no_scale_fits_is_computed_again(#[values(false, true)] same_again: bool) {
    let mut world = World::new(&plan(CheckpointFormat::Int8));
    let tokens: Vec<Token> = (0..8).collect();
    let lease = world.admit(&tokens).unwrap();
    world.step(&lease, 8);
    world.compute(&lease, 0, 8);
    let [(ssm, slot), _] = states(world.set.manager().unwrap(), &lease).try_into().unwrap();
    fill(&ssm, slot, vec![f32::NAN; ssm.dims()[1]]);
    let World { set, reuse, .. } = &mut world;
    set.manager_mut().unwrap().with_book(|book| reuse.finish(book, lease)).unwrap();
    let longer: Vec<Token> = (0..12).collect();
    assert_eq!(world.reuse.tree().usage().states.evictable, 1, "the tree has taken it for a state");
    if same_again {
        assert_eq!(world.serve(&tokens, CheckpointFormat::Int8), 0);
    }
    let cached = if same_again { 8 } else { 0 };
    assert_eq!(world.serve(&longer, CheckpointFormat::Int8), cached, "what was computed again is whole");
    let other: Vec<Token> = (50..62).collect();
    assert_eq!(world.serve(&other[..8], CheckpointFormat::Int8), 0);
    assert_eq!(world.serve(&other, CheckpointFormat::Int8), 8);
}
