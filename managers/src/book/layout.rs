//! How the pools of a plan are used, read from it once.

use std::collections::HashMap;
use std::ops::Range;

use cacheplan_handlers::{Growth, Kind};
use cacheplan_planner::{CachePlan, Limits, Member, PlannedResource, Pool, SlotDomain};

use crate::book::error::{BookError, Result};

/// Names the numbers by which the units of a pool are reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Indexing {
    /// Blocks through block tables; the number counts the paged pools.
    Blocks(usize),
    /// Slots of the slot domain.
    Slots,
    /// Rows of a speculative batch.
    DraftRows,
    /// Checkpoints that are no slots, by the number that a prefix cache gives them.
    Checkpoints,
    /// Nothing: one tensor.
    Fixed,
}

/// Locates a resource: a pool and the member in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolIndex {
    /// Index into the plan's pools.
    pub pool: usize,
    /// Index into the pool's members.
    pub member: usize,
    /// What indexes the pool.
    pub indexing: Indexing,
}

/// The geometry of one paged pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PagedSpec {
    /// The pool's id.
    pub id: String,
    /// Its index in the plan.
    pub pool: usize,
    /// Its number among the paged pools.
    pub paged: usize,
    /// Blocks, reserved ones included.
    pub blocks: u32,
    /// Blocks at the front that pad block tables.
    pub reserved: u32,
    /// Entries in a block.
    pub entries_per_block: u32,
    /// Tokens per entry; 1 except for compressed resources.
    pub stride: u32,
    /// The sliding window in tokens, if every member has one.
    pub window: Option<u32>,
    /// Blocks of a sequence's ring, if windows are cyclic; else 0.
    pub ring: u32,
    /// Bytes of one block.
    pub block_bytes: u64,
}

/// What a plan has of one of its pools.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedUnits {
    /// The pool's id.
    pub id: String,
    /// Its units, reserved ones included.
    pub units: u64,
    /// Units at the front that pad.
    pub reserved: u64,
    /// Bytes of one unit.
    pub unit_bytes: u64,
}

/// Chooses what becomes of a windowed pool's blocks when the window has passed them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Windows {
    /// They go back to the pool, so that a sequence holds no more than its window shows.
    #[default]
    Sliding,
    /// They are the sequence's next blocks: each sequence keeps a ring from its admission to its end, as large as its
    /// window and a speculative step, so that decoding never waits for a block. A longer chunk of a prompt takes more
    /// for its step.
    Cyclic,
}

impl PagedSpec {
    /// Entries that `tokens` tokens take.
    pub fn entries(&self, tokens: u32) -> u32 {
        tokens.div_ceil(self.stride)
    }

    /// Blocks that `tokens` tokens take, before any window.
    pub fn blocks_for(&self, tokens: u32) -> u32 {
        self.entries(tokens).div_ceil(self.entries_per_block)
    }

    /// What a table that starts at block `first` keeps reserved: up to here reaches a ring.
    pub(crate) fn ring_end(&self, first: u32) -> u32 {
        first.saturating_add(self.ring)
    }

    /// The first block that the query at position `tokens` can see: a key `k` is visible if `tokens - k < window`.
    pub fn first_visible_block(&self, tokens: u32) -> u32 {
        let first_token = self.window.map_or(0, |window| (tokens + 1).saturating_sub(window));
        first_token / self.stride / self.entries_per_block
    }
}

/// The pools of a plan by what they are used for, and where each resource lies.
#[derive(Clone, Debug)]
pub struct Layout {
    /// The paged pools, in the plan's order.
    pub paged: Vec<PagedSpec>,
    /// How each pool of the plan is indexed.
    pub indexing: Vec<Indexing>,
    /// And its units.
    pub planned: Vec<PlannedUnits>,
    /// The slot domain.
    pub slots: SlotDomain,
    /// The plan's limits.
    pub limits: Limits,
    /// What windowed pools do with passed blocks.
    pub windows: Windows,
    /// The rows of every draft pool that batches use; empty where candidates cannot be taken back.
    pub draft_rows: Range<u32>,
    /// Bytes of one slot over all pools of the slot domain.
    pub slot_bytes: u64,
    /// Bytes of the host tier; `None` if the plan has none.
    pub host_bytes: Option<u64>,
    /// Checkpoints in pools of their own; `None` where they are slots.
    pub checkpoints_apart: Option<u64>,
    by_name: HashMap<String, PoolIndex>,
    by_layer: HashMap<(u32, Kind), PoolIndex>,
}

impl Layout {
    /// Reads a plan.
    ///
    /// # Errors
    /// A pool whose members do not exist, grow differently, or contradict its units.
    pub fn new(plan: &CachePlan, windows: Windows) -> Result<Self> {
        let resources: HashMap<&str, &PlannedResource> =
            plan.resources.iter().map(|resource| (resource.name.as_str(), resource)).collect();
        let mut layout = Self {
            paged: Vec::new(),
            indexing: Vec::new(),
            planned: Vec::new(),
            slots: plan.slots,
            limits: plan.limits.clone(),
            windows,
            draft_rows: 0..0,
            slot_bytes: 0,
            host_bytes: plan.host.as_ref().map(|host| host.bytes),
            checkpoints_apart: None,
            by_name: HashMap::new(),
            by_layer: HashMap::new(),
        };
        for pool in &plan.pools {
            layout.add(pool, &resources)?;
            let Pool { units, reserved, unit_bytes, .. } = *pool;
            layout.planned.push(PlannedUnits { id: pool.id.clone(), units, reserved, unit_bytes });
        }
        // Pools are in another order than resources: a layer's first of a kind is the first that the plan lists.
        for resource in &plan.resources {
            let Some(&place) = layout.by_name.get(&resource.name) else { continue };
            for layer in resource.layer.iter().chain(&resource.shared_by) {
                layout.by_layer.entry((*layer, resource.handler.kind().clone())).or_insert(place);
            }
        }
        let moves_back =
            |resource: &&PlannedResource| resource.handler.is_state() && resource.handler.as_ring().is_none();
        let mut states = plan.resources.iter().filter(moves_back).peekable();
        let in_place = states.peek().is_some() && states.all(|resource| resource.handler.has_candidates());
        if in_place && !layout.indexing.contains(&Indexing::DraftRows) {
            // All that candidates leave lies in the slots, and rows only number the sequences.
            layout.draft_rows = 0..u32::try_from(plan.limits.max_batch_size).unwrap_or(u32::MAX);
        }
        Ok(layout)
    }

    /// Finds a layer's resource of a kind, the first of several; layers that share another's are routed to it.
    pub fn place(&self, layer: u32, kind: &Kind) -> Option<PoolIndex> {
        self.by_layer.get(&(layer, kind.clone())).copied()
    }

    /// Finds the resource called `name`.
    pub fn place_of(&self, name: &str) -> Option<PoolIndex> {
        self.by_name.get(name).copied()
    }

    /// Whether both have the same resources in the same places, whatever the number of units.
    pub(crate) fn same_but_for_units(&self, other: &Self) -> bool {
        let geometry = |spec: &PagedSpec| PagedSpec { blocks: 0, ..spec.clone() };
        self.indexing == other.indexing
            && self.by_name == other.by_name
            && self.by_layer == other.by_layer
            && self.paged.iter().map(geometry).eq(other.paged.iter().map(geometry))
    }

    /// Tells whether sequences need a slot.
    pub fn has_slots(&self) -> bool {
        self.indexing.contains(&Indexing::Slots)
    }

    fn add(&mut self, pool: &Pool, resources: &HashMap<&str, &PlannedResource>) -> Result<()> {
        let bad = |reason: String| BookError::BadPlan { pool: pool.id.clone(), reason };
        let index = self.indexing.len();
        let mut members = Vec::with_capacity(pool.members.len());
        let mut free_from = 0;
        for member in &pool.members {
            let resource = resources
                .get(member.resource.as_str())
                .ok_or_else(|| bad(format!("member `{}` is no resource of the plan", member.resource)))?;
            let end = member.offset.checked_add(member.bytes).filter(|&end| end <= pool.unit_bytes);
            let end = end.ok_or_else(|| bad(format!("member `{}` ends beyond the unit", member.resource)))?;
            if member.offset < free_from {
                return Err(bad(format!("member `{}` lies over the one before", member.resource)));
            }
            free_from = end;
            members.push((member, *resource));
        }
        let Some((_, first)) = members.first() else {
            return Err(bad("it has no members".into()));
        };
        if pool.checkpoints_of.is_some() {
            // Its members are routed to where running sequences have them.
            let units = self.checkpoints_apart.map_or(pool.units, |units| units.min(pool.units));
            self.checkpoints_apart = Some(units);
            self.indexing.push(Indexing::Checkpoints);
            return Ok(());
        }
        let indexing = match first.handler.growth() {
            Growth::Paged { .. } => {
                let spec = paged_spec(pool, index, &members, self.limits.max_seq_len)?;
                self.paged.push(PagedSpec { paged: self.paged.len(), ..spec });
                self.add_ring();
                Indexing::Blocks(self.paged.len() - 1)
            }
            Growth::PerSlotToken | Growth::PerSequence => {
                if pool.units > MAX_UNITS {
                    return Err(BookError::TooManyUnits { pool: pool.id.clone(), units: pool.units });
                }
                if pool.units != self.slots.total() {
                    return Err(bad(format!("it has {} slots, the slot domain {}", pool.units, self.slots.total())));
                }
                self.slot_bytes = self.slot_bytes.saturating_add(pool.unit_bytes);
                Indexing::Slots
            }
            Growth::PerDraftPosition => {
                let units = u32::try_from(pool.units)
                    .map_err(|_| BookError::TooManyUnits { pool: pool.id.clone(), units: pool.units })?;
                let rows = pool.reserved.min(pool.units) as u32..units;
                let only = self.indexing.iter().all(|other| *other != Indexing::DraftRows);
                self.draft_rows =
                    if only { rows } else { rows.start.max(self.draft_rows.start)..rows.end.min(self.draft_rows.end) };
                Indexing::DraftRows
            }
            Growth::Fixed => Indexing::Fixed,
        };
        self.indexing.push(indexing);
        for (member, (_, resource)) in members.iter().enumerate() {
            let place = PoolIndex { pool: index, member, indexing };
            self.by_name.insert(resource.name.clone(), place);
        }
        Ok(())
    }
}

impl Layout {
    /// Gives the last paged pool its ring.
    fn add_ring(&mut self) {
        let Some(spec) = self.paged.last_mut() else { return };
        let Some(window) = spec.window.filter(|_| self.windows == Windows::Cyclic) else { return };
        // The keys of a speculative step's first query, and the step; the worst case begins at the end of a block.
        let tokens = u64::from(window).saturating_sub(1) + self.limits.draft_positions;
        let longest = spec.blocks_for(u32::try_from(self.limits.max_seq_len).unwrap_or(u32::MAX));
        let entries = u32::try_from(tokens).map_or(u32::MAX, |tokens| spec.entries(tokens));
        spec.ring = (entries.saturating_sub(1).div_ceil(spec.entries_per_block) + 1).min(longest);
    }
}

/// The most blocks or slots of a pool. Books take some bytes for each, and number them with 31 bits: -1 is no block.
const MAX_UNITS: u64 = 1 << 28;

fn paged_spec(
    pool: &Pool,
    index: usize,
    members: &[(&Member, &PlannedResource)],
    max_seq_len: u64,
) -> Result<PagedSpec> {
    let bad = |reason: String| BookError::BadPlan { pool: pool.id.clone(), reason };
    let blocks = u32::try_from(pool.units).ok().filter(|&blocks| u64::from(blocks) <= MAX_UNITS);
    let blocks = blocks.ok_or_else(|| BookError::TooManyUnits { pool: pool.id.clone(), units: pool.units })?;
    let reserved = pool.reserved.min(pool.units) as u32;
    let mut geometry = None;
    let mut window = Some(0);
    for (member, resource) in members {
        let Growth::Paged { stride, window: own_window } = resource.handler.growth().within(max_seq_len) else {
            return Err(bad(format!("member `{}` is not paged", member.resource)));
        };
        let entries = u32::try_from(member.bytes / resource.handler.unit_bytes());
        let entries =
            entries.map_err(|_| bad(format!("blocks of member `{}` have 2^32 entries or more", member.resource)))?;
        if entries == 0 {
            return Err(bad(format!("member `{}` holds no whole entry", member.resource)));
        }
        if *geometry.get_or_insert((entries, stride)) != (entries, stride) {
            return Err(bad(format!("member `{}` has other entries per block than the first", member.resource)));
        }
        // The pool keeps what its most demanding member needs.
        window = window.zip(own_window).map(|(widest, own)| widest.max(own));
    }
    let (entries_per_block, stride) = geometry.ok_or_else(|| bad("it has no members".into()))?;
    Ok(PagedSpec {
        id: pool.id.clone(),
        pool: index,
        paged: 0,
        blocks,
        reserved,
        entries_per_block,
        stride,
        window,
        ring: 0,
        block_bytes: pool.unit_bytes,
    })
}
