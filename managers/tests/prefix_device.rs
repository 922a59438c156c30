//! A prefix cache over real pools: whatever is released is poisoned, and whatever is served is what was computed.
#![cfg(feature = "device")]

mod support;

use cacheplan_handlers::{DType, Kind};
use cacheplan_managers::ManagerError;
use cacheplan_managers::book::prefix::{
    CheckpointFormat, Final, HostBlockId, HostSlotId, HostTier, Int8Error, Key, Load, Namespace, Offload, PrefixCache,
    Progress, Released, StateShape, Strategy, TenantId, Token, TreeConfig,
};
use cacheplan_managers::book::{BlockId, SlotId, SlotRole};
use cacheplan_managers::device::{CacheSet, MambaHybridCacheManager, PrefixHost};
use cacheplan_planner::{CachePlan, HostPlan, Member, Pool};
use candle_core::{Device, Tensor};
use rstest::rstest;
use support::{Setup, hybrid, kv};

const PAGE: usize = 4;
/// What the support crate's Mamba layers have.
const STATE: StateShape = StateShape { heads: 2, head_dim: 3, d_state: 4 };
const TIER: HostTier = HostTier { blocks: 6, slots: 3, windows: 0 };
/// States differ by channel, so that scales do too; no element is off by more than half of the largest scale.
const TOLERANCE: f32 = 60.0 / 127.0;

fn plan(format: CheckpointFormat) -> CachePlan {
    let mut setup = hybrid();
    if format == CheckpointFormat::Int8 {
        setup.slots.checkpoints = 0;
    }
    let mut plan = setup.plan();
    plan.host = Some(HostPlan { bytes: 1 << 20, sequences: 1, pools: Vec::new(), unused_bytes: 0 });
    if format == CheckpointFormat::Int8 {
        let apart: Vec<Pool> = plan.pools.iter().filter(|pool| is_state(pool)).map(stored).collect();
        plan.pools.extend(apart);
    }
    plan
}

fn is_state(pool: &Pool) -> bool {
    !pool.id.starts_with("kv")
}

/// Two checkpoints beside a pool of slots, recurrent states in 8 bits.
fn stored(pool: &Pool) -> Pool {
    let ssm = pool.id.starts_with("ssm");
    let bytes = |member: &Member| if ssm { STATE.int8_bytes() as u64 } else { member.bytes };
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

/// The pools of blocks, of recurrent states and of convolutions.
fn pools(manager: &MambaHybridCacheManager) -> [Tensor; 3] {
    let state = |kind| manager.state_layer(manager.route(0, &kind).unwrap()).unwrap().pool.clone();
    let blocks = manager.kv_layer(manager.route(1, &Kind::KvPaged).unwrap()).unwrap().pool.clone();
    [blocks, state(Kind::Ssm), state(Kind::CausalConv)]
}

/// What a block or a state that has absorbed these tokens holds; small integers, which bfloat16 has exactly.
fn contents(tokens: &[Token], len: usize) -> Vec<f32> {
    let seed = tokens.iter().fold(7_u32, |hash, token| hash.wrapping_mul(31).wrapping_add(*token));
    (0..len as u32).map(|i| ((seed.wrapping_add(i).wrapping_mul(2_654_435_761) >> 16) % 120) as f32 - 60.0).collect()
}

/// A serving loop of one request at a time.
struct World {
    set: CacheSet,
    host: PrefixHost,
    cache: PrefixCache,
    blocks: Vec<BlockId>,
    /// Those that are no slots.
    checkpoints: Vec<SlotId>,
    live: SlotId,
    format: CheckpointFormat,
    loaded: usize,
}

impl World {
    fn new(format: CheckpointFormat) -> Self {
        let mut set = CacheSet::allocate(&plan(format), &Device::Cpu).unwrap();
        let manager = set.manager_mut().unwrap();
        let host = PrefixHost::allocate(manager, TIER).unwrap();
        let mut slot = |role| manager.with_book(|book| Ok(book.slots_mut().allocate(role))).unwrap();
        let live = slot(SlotRole::Live).unwrap();
        let checkpoints = match format {
            CheckpointFormat::Native => (0..2).map(|_| slot(SlotRole::Checkpoint).unwrap()).collect(),
            CheckpointFormat::Int8 => vec![SlotId(0), SlotId(1)],
        };
        let tree =
            TreeConfig { page: PAGE, chunk: PAGE, checkpoints: format, host: Some(TIER), ..TreeConfig::default() };
        let cache = PrefixCache::new(tree, Strategy::NO_BUFFER).unwrap();
        Self { set, host, cache, blocks: (1..=8).map(BlockId).collect(), checkpoints, live, format, loaded: 0 }
    }

    fn manager(&mut self) -> &mut MambaHybridCacheManager {
        self.set.manager_mut().unwrap()
    }

    /// Copies out what the tree asks for, and poisons what comes back.
    fn release(&mut self, out: Released) {
        let World { set, host, .. } = self;
        let manager = set.manager_mut().unwrap();
        host.offload(manager, &out.offloads).unwrap();
        let [blocks, ssm, _] = pools(manager);
        for block in out.blocks {
            fill(&blocks, block.0, vec![f32::NAN; blocks.dims()[1]]);
            self.blocks.push(block);
        }
        for slot in out.slots {
            if self.format == CheckpointFormat::Native {
                fill(&ssm, slot.0, vec![f32::NAN; ssm.dims()[1]]);
            }
            self.checkpoints.push(slot);
        }
    }

    fn block(&mut self) -> BlockId {
        while self.blocks.is_empty() {
            let mut out = Released::default();
            assert!(self.cache.evict_kv(1, &mut out).tokens > 0);
            self.release(out);
        }
        self.blocks.pop().unwrap()
    }

    fn checkpoint(&mut self) -> SlotId {
        while self.checkpoints.is_empty() {
            let mut out = Released::default();
            assert!(self.cache.evict_state(1, &mut out).states > 0);
            self.release(out);
        }
        self.checkpoints.pop().unwrap()
    }

    /// Serves a prompt and returns how much of it was hit.
    fn serve(&mut self, tokens: &[Token]) -> usize {
        let namespace = Namespace::default();
        let key = Key { namespace: &namespace, tokens };
        let mut found = self.cache.lookup(key);
        if found.hit > found.resident {
            let fresh: Vec<BlockId> = (found.resident / PAGE..found.hit / PAGE).map(|_| self.block()).collect();
            let mut loads = Vec::new();
            found = if self.cache.load(&found, &fresh, &[], &mut loads).is_ok() {
                self.loaded += loads.len();
                let World { set, host, .. } = self;
                host.load(set.manager_mut().unwrap(), &loads).unwrap();
                self.cache.lookup(key)
            } else {
                self.blocks.extend(fresh);
                self.cache.lookup_resident(key)
            };
        }
        let live = self.live;
        let mut lease = self.cache.admit(key, &found, live, TenantId::default()).unwrap();
        let hit = found.hit;
        match (lease.source(), lease.host_source()) {
            (Some(source), _) => self.manager().load_checkpoint(source, live).unwrap(),
            (_, Some(source)) => {
                let World { set, host, .. } = self;
                host.load_checkpoint(set.manager_mut().unwrap(), source, live).unwrap();
            }
            _ => assert_eq!(hit, 0),
        }
        self.cache.copied(&mut lease).unwrap();
        let mut blocks = Vec::new();
        self.cache.held_blocks(&lease, &mut blocks);
        self.verify(&tokens[..hit], &blocks);
        while blocks.len() < tokens.len() / PAGE {
            let block = self.block();
            let [pool, ..] = pools(self.manager());
            fill(&pool, block.0, contents(&tokens[..(blocks.len() + 1) * PAGE], pool.dims()[1]));
            blocks.push(block);
        }
        let [_, ssm, conv] = pools(self.manager());
        for pool in [ssm, conv] {
            fill(&pool, live.0, contents(tokens, pool.dims()[1]));
        }
        let checkpoint = self.checkpoint();
        self.manager().store_checkpoint(live, checkpoint).unwrap();
        let mut out = Released::default();
        let at = Progress { key, blocks: &blocks, window: None };
        assert_eq!(self.cache.finish(lease, at, Final::Checkpoint(checkpoint), &mut out), Ok(Some(live)));
        self.release(out);
        self.cache.tree().check().unwrap();
        hit
    }

    fn verify(&mut self, prefix: &[Token], blocks: &[BlockId]) {
        let (format, live) = (self.format, self.live);
        let [pool, ssm, conv] = pools(self.manager());
        for (i, block) in blocks.iter().enumerate() {
            assert_eq!(row(&pool, block.0), contents(&prefix[..(i + 1) * PAGE], pool.dims()[1]), "block {i}");
        }
        if prefix.is_empty() {
            return;
        }
        assert_eq!(row(&conv, live.0), contents(prefix, conv.dims()[1]));
        let tolerance = if format == CheckpointFormat::Int8 { TOLERANCE / 2.0 } else { 0.0 };
        let expected = contents(prefix, ssm.dims()[1]);
        let far = row(&ssm, live.0).iter().zip(&expected).any(|(x, y)| (x - y).abs() > tolerance * 1.001 || x.is_nan());
        assert!(!far, "{:?} of {expected:?}", row(&ssm, live.0));
    }
}

#[rstest]
fn whatever_is_served_is_what_was_computed(
    #[values(CheckpointFormat::Native, CheckpointFormat::Int8)] format: CheckpointFormat,
) {
    let mut world = World::new(format);
    let mut noise = 1_u64;
    let mut hits = 0;
    for _ in 0..400 {
        noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let (len, variant) = (PAGE * (1 + (noise >> 40) as usize % 5), (noise >> 50) as u32 % 3);
        let tokens: Vec<Token> = (0..len as u32).map(|i| if i < 8 { i } else { variant * 100 + i }).collect();
        hits += usize::from(world.serve(&tokens) > 0);
    }
    assert!(hits > 100 && world.loaded > 20, "{hits} hits, {} blocks loaded", world.loaded);
}

#[test]
fn a_tier_beyond_the_plans_host_bytes_is_refused() {
    let mut set = CacheSet::allocate(&plan(CheckpointFormat::Native), &Device::Cpu).unwrap();
    let tier = HostTier { blocks: 1 << 20, slots: 0, windows: 0 };
    let refused = PrefixHost::allocate(set.manager_mut().unwrap(), tier);
    assert!(matches!(refused, Err(ManagerError::OutOfHostMemory { .. })));
    let mut without = CacheSet::allocate(&hybrid().plan(), &Device::Cpu).unwrap();
    assert!(matches!(PrefixHost::allocate(without.manager_mut().unwrap(), TIER), Err(ManagerError::NoHostTier)));
}

#[test]
fn a_second_tier_is_refused_while_the_first_is_there_and_a_dropped_one_gives_its_bytes_back() {
    let mut set = CacheSet::allocate(&plan(CheckpointFormat::Native), &Device::Cpu).unwrap();
    let manager = set.manager_mut().unwrap();
    let used = |manager: &MambaHybridCacheManager| manager.book().host_stats().unwrap().used_bytes;
    let first = PrefixHost::allocate(manager, TIER).unwrap();
    let bytes = used(manager);
    assert!(bytes > 0);
    let refused = PrefixHost::allocate(manager, HostTier { blocks: 1, ..HostTier::default() });
    assert!(matches!(refused, Err(ManagerError::HostSetAside { bytes: found }) if found == bytes));
    assert_eq!(used(manager), bytes);
    drop(first);
    assert_eq!(used(manager), 0);
    let _second = PrefixHost::allocate(manager, TIER).unwrap();
    assert_eq!(used(manager), bytes);
}

#[test]
fn window_blocks_go_to_the_host_and_come_back_and_touch_no_other_pool() {
    let setup = Setup::new().with(0, kv(2, 8)).with(1, kv(2, 8).with_window(8).unwrap());
    let mut plan = setup.plan();
    plan.host = Some(HostPlan { bytes: 1 << 20, sequences: 1, pools: Vec::new(), unused_bytes: 0 });
    let mut set = CacheSet::allocate(&plan, &Device::Cpu).unwrap();
    let manager = set.manager_mut().unwrap();
    let host = PrefixHost::allocate(manager, HostTier { windows: 2, ..HostTier::default() }).unwrap();
    let [full, windowed] =
        [0, 1].map(|layer| manager.kv_layer(manager.route(layer, &Kind::KvPaged).unwrap()).unwrap().pool.clone());
    let elems = windowed.dims()[1];
    fill(&windowed, 3, vec![7.0; elems]);
    host.offload(manager, &[Offload::Window { from: BlockId(3), to: HostBlockId(1) }]).unwrap();
    fill(&windowed, 3, vec![f32::NAN; elems]);
    host.load(manager, &[Load::Window { from: HostBlockId(1), to: BlockId(5) }]).unwrap();
    assert_eq!(row(&windowed, 5), vec![7.0; elems]);
    assert!(full.flatten_all().unwrap().to_vec1::<f32>().unwrap().iter().all(|&x| x == 0.0));
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
fn a_state_that_no_scale_fits_is_refused_by_its_slot_and_units_that_are_not_there_by_name() {
    let mut world = World::new(CheckpointFormat::Int8);
    let live = world.live;
    let [_, ssm, _] = pools(world.manager());
    fill(&ssm, live.0, vec![f32::INFINITY; ssm.dims()[1]]);
    let refused = world.manager().store_checkpoint(live, SlotId(0));
    assert!(
        matches!(refused, Err(ManagerError::NotQuantisable { slot, source: Int8Error::NotFinite { index: 0 } }) if slot == live)
    );
    assert!(world.manager().load_checkpoint(SlotId(9), live).is_err());
    assert!(world.manager().load_checkpoint(SlotId(0), SlotId(0)).is_err(), "the padding slot is nobody's");
    let World { set, host, .. } = &mut world;
    let manager = set.manager_mut().unwrap();
    assert!(host.load_checkpoint(manager, HostSlotId(99), live).is_err());
    assert!(host.offload(manager, &[Offload::State { from: SlotId(0), to: HostSlotId(99) }]).is_err());
}
