//! The books, simulated pools that execute what they decide, and the model.

use std::collections::{HashMap, HashSet};

use super::op::Op;
use crate::support::Setup;
use cacheplan_managers::book::{
    Accepted, BlockId, CacheBook, Indexing, PassedPages, PoolOp, Prefix, Residency, SequenceId, SetAside, SlotId,
    SlotRole, StepMetadata, Windows, Work,
};
use cacheplan_managers::{BookError, Lack, Scarce};
use cacheplan_planner::CachePlan;

mod check;

/// What a state has absorbed, or `None` where memory is poisoned.
type State = Option<Vec<u64>>;

/// What the model knows of a sequence: its tokens, and the candidates of a speculative step.
#[derive(Clone, Debug, Default)]
struct Model {
    tokens: Vec<u64>,
    candidates: Option<(i32, Vec<u64>)>,
}

/// A prefix held from outside, as a prefix cache would.
#[derive(Debug)]
struct Held {
    tokens: Vec<u64>,
    prefix: Prefix,
}

/// What an offloaded sequence left in host memory.
type Parked = (Vec<Vec<Vec<Option<u64>>>>, State);

pub(crate) struct World {
    book: CacheBook,
    plan: CachePlan,
    /// `[pool][block][entry]`; `None` is poison.
    blocks: Vec<Vec<Vec<Option<u64>>>>,
    slots: Vec<State>,
    drafts: HashMap<(u32, u32), Vec<u64>>,
    models: HashMap<SequenceId, Model>,
    held: Vec<Held>,
    parked: HashMap<SequenceId, Parked>,
    /// What a prefix cache has of the host tier, in bytes.
    set_aside: Option<(SetAside, u64)>,
    stale: Vec<SequenceId>,
    next_token: u64,
}

impl World {
    pub(crate) fn new(setup: &Setup, windows: Windows) -> Self {
        let plan = setup.plan();
        let book = CacheBook::with_windows(&plan, windows).unwrap();
        let layout = book.layout();
        Self {
            blocks: layout
                .paged
                .iter()
                .map(|spec| vec![vec![None; spec.entries_per_block as usize]; spec.blocks as usize])
                .collect(),
            slots: vec![None; plan.slots.total() as usize],
            book,
            plan,
            drafts: HashMap::new(),
            models: HashMap::new(),
            held: Vec::new(),
            parked: HashMap::new(),
            set_aside: None,
            stale: Vec::new(),
            next_token: 1,
        }
    }

    pub(crate) fn apply(&mut self, op: Op) {
        match op {
            Op::Admit { prompt } => self.admit(u32::from(prompt)),
            Op::Step { picks } => self.step(&picks),
            Op::Fork(pick) => self.fork(pick),
            Op::Truncate { pick, keep } => self.truncate(pick, keep),
            Op::Speculate { picks } => self.speculate(&picks),
            Op::Commit { accept, path } => self.commit(accept, path),
            Op::Checkpoint(pick) => self.checkpoint(pick),
            Op::FinishIntoCheckpoint(pick) => self.finish_into_checkpoint(pick),
            Op::Rewind { pick, checkpoint } => self.rewind(pick, checkpoint),
            Op::AdmitPrefix { checkpoint, more } => self.admit_prefix(checkpoint, u32::from(more)),
            Op::DropCheckpoint(pick) => self.drop_checkpoint(pick),
            Op::Preempt(pick) => self.preempt(pick),
            Op::Resume { pick, tokens } => self.resume(pick, u32::from(tokens)),
            Op::Offload(pick) => self.offload(pick),
            Op::Onload(pick) => self.onload(pick),
            Op::Compact => self.compact(),
            Op::Rebalance { blocks, live } => self.rebalance(blocks, live),
            Op::Migrate { blocks, live } => self.migrate(blocks, live),
            Op::Finish(pick) => self.finish_one(pick),
            Op::SetAside(bytes) => self.set_aside(u64::from(bytes)),
            Op::Stale(pick) => self.use_stale(pick),
        }
        self.execute();
        self.poison();
    }

    fn admit(&mut self, prompt: u32) {
        if let Some(id) = self.expect_room(|book| book.admit(prompt)) {
            self.models.insert(id, Model::default());
        }
    }

    fn step(&mut self, picks: &[(u8, u8)]) {
        let work = self.work(picks);
        let mut metadata = StepMetadata::default();
        let done = self.expect_room(|book| book.step(&work, &mut metadata)).is_some();
        self.execute();
        if !done {
            return;
        }
        for (row, part) in work.iter().enumerate() {
            let fresh = self.fresh(part.tokens);
            self.write(&metadata, row, &fresh);
            let model = self.models.get_mut(&part.sequence).unwrap();
            model.tokens.extend(&fresh);
            if metadata.slots[row] >= 0 {
                self.slots[metadata.slots[row] as usize].as_mut().unwrap().extend(&fresh);
            }
        }
    }

    fn fork(&mut self, pick: u8) {
        let Some(id) = self.pick(pick) else { return };
        if let Some(child) = self.expect_room(|book| book.fork(id)) {
            let model = self.models[&id].clone();
            self.models.insert(child, model);
        }
    }

    fn truncate(&mut self, pick: u8, keep: u8) {
        let Some(id) = self.pick(pick) else { return };
        let len = self.models[&id].tokens.len();
        let keep = usize::from(keep) % (len + 1);
        match self.book.truncate(id, keep as u32) {
            Ok(()) => self.models.get_mut(&id).unwrap().tokens.truncate(keep),
            Err(BookError::CannotTruncate { .. }) => {}
            Err(BookError::WrongState { .. }) => assert!(!self.settled(id)),
            Err(error) => panic!("{error}"),
        }
    }

    fn speculate(&mut self, picks: &[(u8, u8)]) {
        let mut work = self.work(picks);
        for part in &mut work {
            part.tokens = part.tokens.min(self.plan.limits.draft_positions as u32);
        }
        let mut metadata = StepMetadata::default();
        let done = self.expect_room(|book| book.speculate(&work, &mut metadata)).is_some();
        self.execute();
        if !done {
            return;
        }
        for (row, part) in work.iter().enumerate() {
            let fresh = self.fresh(part.tokens);
            self.write(&metadata, row, &fresh);
            let model = self.models.get_mut(&part.sequence).unwrap();
            model.candidates = Some((metadata.draft_rows[row], fresh));
        }
    }

    /// Commits some or all speculating sequences with accept lengths, or paths, derived from the seed.
    fn commit(&mut self, accept: u8, path: Option<u8>) {
        let open: Vec<_> = self
            .models
            .iter()
            .filter_map(|(id, model)| model.candidates.clone().map(|(row, candidates)| (*id, row, candidates)))
            .filter(|(id, ..)| !accept.is_multiple_of(3) || self.models[id].tokens.len().is_multiple_of(2))
            .collect();
        let mut chosen = Vec::new();
        for (id, row, candidates) in open {
            let picked: Vec<u32> = match path {
                Some(bits) => (0..candidates.len() as u32).filter(|bit| bits >> bit & 1 == 1).collect(),
                None => (0..u32::from(accept) % (candidates.len() as u32 + 1)).collect(),
            };
            // The state after candidate `i` of the accepted path has absorbed the path up to it.
            let tokens = &self.models[&id].tokens;
            let mut state = tokens.clone();
            for &candidate in &picked {
                state.push(candidates[candidate as usize]);
                self.drafts.insert((row as u32, candidate), state.clone());
            }
            chosen.push((id, picked, candidates));
        }
        let accepted: Vec<_> = chosen
            .iter()
            .map(|(id, picked, _)| match path {
                Some(_) => (*id, Accepted::Path(picked)),
                None => (*id, Accepted::First(picked.len() as u32)),
            })
            .collect();
        if let Some(&first) = accepted.first() {
            let (before, twice) = (self.fingerprint(), [&accepted[..], &[first]].concat());
            assert_eq!(self.book.commit(&twice), Err(BookError::DuplicateSequence(first.0)));
            assert_eq!(self.fingerprint(), before);
        }
        self.book.commit(&accepted).unwrap();
        self.execute();
        self.drafts.clear();
        for (id, picked, candidates) in chosen {
            let model = self.models.get_mut(&id).unwrap();
            model.tokens.extend(picked.iter().map(|&candidate| candidates[candidate as usize]));
            model.candidates = None;
        }
    }

    fn checkpoint(&mut self, pick: u8) {
        let Some(id) = self.pick(pick).filter(|&id| self.settled(id)) else { return };
        let state = if self.book.layout().has_slots() {
            let Some(slot) = self.expect_room(|book| book.checkpoint(id)) else { return };
            Some(slot)
        } else {
            None
        };
        self.hold(id, state);
    }

    fn finish_into_checkpoint(&mut self, pick: u8) {
        let Some(id) = self.pick(pick).filter(|&id| self.settled(id)) else { return };
        if !self.book.layout().has_slots() {
            return;
        }
        let Some(slot) = self.expect_room(|book| book.finish_into_checkpoint(id)) else { return };
        let tokens = self.models.remove(&id).unwrap().tokens;
        self.stale.push(id);
        // Its blocks went with it, so the state alone is held.
        let blocks = vec![Vec::new(); self.blocks.len()];
        let prefix = Prefix { tokens: tokens.len() as u32, blocks, state: Some(slot) };
        self.held.push(Held { tokens, prefix });
    }

    /// Retains a sequence's visible blocks, as a prefix cache does.
    fn hold(&mut self, id: SequenceId, state: Option<SlotId>) {
        let tokens = self.models[&id].tokens.clone();
        let mut blocks = Vec::new();
        for paged in 0..self.blocks.len() {
            let spec = self.book.layout().paged[paged].clone();
            let range = spec.first_visible_block(tokens.len() as u32)..spec.blocks_for(tokens.len() as u32);
            let table = self.book.block_table(id, paged).unwrap();
            let held: Vec<BlockId> = range.map(|logical| BlockId(table[logical as usize] as u32)).collect();
            for &block in &held {
                self.book.retain_block(paged, block).unwrap();
            }
            blocks.push(held);
        }
        self.held.push(Held { prefix: Prefix { tokens: tokens.len() as u32, blocks, state }, tokens });
    }

    fn rewind(&mut self, pick: u8, checkpoint: u8) {
        let Some(id) = self.pick(pick) else { return };
        if self.held.is_empty() {
            return;
        }
        let held = &self.held[usize::from(checkpoint) % self.held.len()];
        let model = &self.models[&id];
        let is_past = model.tokens.starts_with(&held.tokens);
        let (Some(slot), true) = (held.prefix.state, is_past) else { return };
        let tokens = held.tokens.len();
        match self.book.rewind(id, slot, tokens as u32) {
            Ok(()) => self.models.get_mut(&id).unwrap().tokens.truncate(tokens),
            Err(BookError::CannotTruncate { .. }) => {}
            Err(BookError::WrongState { .. }) => assert!(!self.settled(id)),
            Err(error) => panic!("{error}"),
        }
    }

    fn admit_prefix(&mut self, checkpoint: u8, more: u32) {
        if self.held.is_empty() {
            return;
        }
        let held = &self.held[usize::from(checkpoint) % self.held.len()];
        let (prefix, tokens) = (held.prefix.clone(), held.tokens.clone());
        let prompt = prefix.tokens + more;
        let complete = self.book.layout().paged.iter().zip(&prefix.blocks).all(|(spec, blocks)| {
            blocks.len() as u32
                == spec.blocks_for(prefix.tokens)
                    - spec.first_visible_block(prefix.tokens).min(spec.blocks_for(prefix.tokens))
        });
        if !complete {
            let refused = self.book.admit_prefix(prompt.min(64), &prefix);
            assert!(refused.is_err(), "a prefix without its blocks was taken over");
            return;
        }
        if let Some(id) = self.expect_room(|book| book.admit_prefix(prompt, &prefix)) {
            self.models.insert(id, Model { tokens, candidates: None });
        }
    }

    fn drop_checkpoint(&mut self, pick: u8) {
        if self.held.is_empty() {
            return;
        }
        let held = self.held.swap_remove(usize::from(pick) % self.held.len());
        for (paged, blocks) in held.prefix.blocks.iter().enumerate() {
            for &block in blocks {
                self.book.release_block(paged, block).unwrap();
            }
        }
        if let Some(slot) = held.prefix.state {
            self.book.release_checkpoint(slot).unwrap();
        }
    }

    fn preempt(&mut self, pick: u8) {
        let Some(id) = self.pick(pick) else { return };
        self.book.preempt(id).unwrap();
        *self.models.get_mut(&id).unwrap() = Model::default();
    }

    fn resume(&mut self, pick: u8, tokens: u32) {
        let Some(id) = self.pick_in(Residency::Preempted, pick) else { return };
        self.expect_room(|book| book.resume(id, tokens));
    }

    fn offload(&mut self, pick: u8) {
        let Some(id) = self.pick(pick).filter(|&id| self.settled(id)) else { return };
        let saved = self.saved(id);
        if self.expect_room(|book| book.offload(id)).is_some() {
            self.parked.insert(id, saved);
        }
    }

    fn saved(&self, id: SequenceId) -> Parked {
        let held = self.book.held_blocks(id).unwrap();
        let contents = held.iter().zip(&self.blocks);
        let contents =
            contents.map(|(ids, pool)| ids.iter().map(|block| pool[block.0 as usize].clone()).collect()).collect();
        let state = self.book.slot(id).unwrap().and_then(|slot| self.slots[slot.0 as usize].clone());
        (contents, state)
    }

    fn onload(&mut self, pick: u8) {
        let Some(id) = self.pick_in(Residency::Offloaded, pick) else { return };
        if self.expect_room(|book| book.onload(id)).is_some() {
            self.unpark(id);
        }
    }

    fn unpark(&mut self, id: SequenceId) {
        let (contents, state) = self.parked.remove(&id).unwrap();
        for (paged, (ids, saved)) in self.book.held_blocks(id).unwrap().into_iter().zip(contents).enumerate() {
            for (block, entries) in ids.into_iter().zip(saved) {
                self.blocks[paged][block.0 as usize] = entries;
            }
        }
        if let Some(slot) = self.book.slot(id).unwrap() {
            self.slots[slot.0 as usize] = state;
        }
    }

    fn compact(&mut self) {
        for moved in self.book.compact_slots().unwrap() {
            assert_eq!(self.book.slot(moved.sequence).unwrap(), Some(moved.to));
            assert!(moved.to < moved.from);
        }
    }

    /// Moves capacity between blocks and slots while everything lives on.
    fn rebalance(&mut self, blocks: i8, live: i8) {
        let plan = self.resized(blocks, live);
        let before = self.fingerprint();
        match self.book.shrink_to(&plan) {
            Ok(layout) => {
                for (spec, pool) in layout.paged.iter().zip(&mut self.blocks) {
                    pool.resize(spec.blocks as usize, vec![None; spec.entries_per_block as usize]);
                }
                self.slots.resize(plan.slots.total() as usize, None);
                self.book.grow_to(layout);
                self.plan = plan;
            }
            Err(BookError::UnitInUse { .. }) => assert_eq!(self.fingerprint(), before),
            Err(error) => panic!("{error}"),
        }
    }

    /// Re-creates the pools while every sequence waits in host memory.
    fn migrate(&mut self, blocks: i8, live: i8) {
        let plan = self.resized(blocks, live);
        let resident = |id: &SequenceId| self.book.residency(*id) == Ok(Residency::Resident);
        let sequences: Vec<SequenceId> = self.book.sequences().filter(resident).collect();
        if !self.held.is_empty() || !sequences.iter().all(|&id| self.settled(id)) {
            return;
        }
        for (at, &id) in sequences.iter().enumerate() {
            let saved = self.saved(id);
            match self.book.offload(id) {
                Ok(()) => self.parked.insert(id, saved),
                Err(BookError::Lack(_) | BookError::NoHostTier) => return self.bring_back(&sequences[..at]),
                Err(error) => panic!("{error}"),
            };
        }
        self.book.ensure_idle().unwrap();
        let windows = self.book.layout().windows;
        let fresh = CacheBook::with_windows(&plan, windows).unwrap();
        for (spec, pool) in fresh.layout().paged.iter().zip(&mut self.blocks) {
            *pool = vec![vec![None; spec.entries_per_block as usize]; spec.blocks as usize];
        }
        self.slots = vec![None; plan.slots.total() as usize];
        let old = std::mem::replace(&mut self.book, CacheBook::new(&plan).unwrap());
        self.book = old.replaced_by(fresh);
        self.plan = plan;
        self.bring_back(&sequences);
    }

    /// Those for which there is no room wait on: what sequences shared before, each of them has for itself then.
    fn bring_back(&mut self, sequences: &[SequenceId]) {
        for &id in sequences {
            match self.book.onload(id) {
                Ok(()) => self.unpark(id),
                Err(BookError::Lack(_)) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// The plan with some more or fewer blocks and live slots.
    fn resized(&self, blocks: i8, live: i8) -> CachePlan {
        let mut plan = self.plan.clone();
        plan.slots.live = plan.slots.live.saturating_add_signed(i64::from(live)).max(1);
        for (pool, indexing) in plan.pools.iter_mut().zip(&self.book.layout().indexing) {
            match indexing {
                Indexing::Blocks(_) => pool.units = pool.units.saturating_add_signed(i64::from(blocks)).max(4),
                Indexing::Slots => pool.units = plan.slots.total(),
                Indexing::DraftRows | Indexing::Checkpoints | Indexing::Fixed => {}
            }
            pool.bytes = pool.units * pool.unit_bytes;
        }
        plan
    }

    fn finish_one(&mut self, pick: u8) {
        let mut ids: Vec<_> = self.models.keys().copied().collect();
        ids.sort_unstable();
        if ids.is_empty() {
            return;
        }
        let id = ids[usize::from(pick) % ids.len()];
        self.book.finish(id).unwrap();
        self.models.remove(&id);
        self.parked.remove(&id);
        self.stale.push(id);
    }

    /// Sets bytes of the host tier aside where there are none, and gives them back where there are.
    fn set_aside(&mut self, bytes: u64) {
        let Some((_held, bytes)) = self.set_aside.take() else {
            let set_aside = self.expect_room(|book| book.set_host_aside(bytes));
            return self.set_aside = set_aside.map(|set_aside| (set_aside, bytes));
        };
        let before = self.book.host_stats();
        assert_eq!(self.book.set_host_aside(0).unwrap_err(), BookError::HostSetAside { bytes });
        assert_eq!(self.book.host_stats(), before);
    }

    fn use_stale(&mut self, pick: u8) {
        if self.stale.is_empty() {
            return;
        }
        let id = self.stale[usize::from(pick) % self.stale.len()];
        let stale = BookError::StaleSequence(id);
        assert_eq!(self.book.finish(id), Err(BookError::StaleSequence(id)));
        assert_eq!(self.book.fork(id).unwrap_err(), stale);
        assert_eq!(self.book.tokens(id).unwrap_err(), stale);
        let mut metadata = StepMetadata::default();
        let refused = self.book.step(&[Work { sequence: id, tokens: 1 }], &mut metadata);
        assert_eq!(refused, Err(BookError::StaleSequence(id)));
    }

    /// Ends everything and checks that nothing leaked.
    pub(crate) fn finish(&mut self) {
        while !self.held.is_empty() {
            self.drop_checkpoint(0);
        }
        while !self.models.is_empty() {
            self.finish_one(0);
        }
        self.book.ensure_idle().unwrap();
    }

    /// Executes what the books decided, on the simulated pools.
    fn execute(&mut self) {
        for op in self.book.take_ops() {
            match op {
                PoolOp::CopyBlock { paged, from, to } => {
                    self.blocks[paged][to.0 as usize] = self.blocks[paged][from.0 as usize].clone();
                }
                PoolOp::CopyEntry { paged, from, to } => {
                    let entry = self.blocks[paged][from.0.0 as usize][from.1 as usize];
                    self.blocks[paged][to.0.0 as usize][to.1 as usize] = entry;
                }
                PoolOp::ZeroSlot(slot) => self.slots[slot.0 as usize] = Some(Vec::new()),
                PoolOp::CopySlot { from, to } => self.slots[to.0 as usize] = self.slots[from.0 as usize].clone(),
                PoolOp::CommitStates { row, path, to } => {
                    self.slots[to.0 as usize] = Some(self.drafts[&(row, *path.last().unwrap())].clone());
                }
                other => panic!("{other:?}"),
            }
        }
    }

    /// Makes every free block and slot unreadable.
    fn poison(&mut self) {
        for (paged, pool) in self.blocks.iter_mut().enumerate() {
            for block in self.book.blocks(paged).unwrap().free_blocks() {
                pool[block.0 as usize].fill(None);
            }
        }
        for slot in self.book.slots().free_slots() {
            self.slots[slot.0 as usize] = None;
        }
    }

    /// What kernels would do with a row of a step.
    fn write(&mut self, metadata: &StepMetadata, row: usize, tokens: &[u64]) {
        let rows = metadata.cu_seqlens[row] as usize..metadata.cu_seqlens[row + 1] as usize;
        for (pool, contents) in metadata.pools.iter().zip(&mut self.blocks) {
            for (&slot, &token) in pool.slot_mapping[rows.clone()].iter().zip(tokens) {
                let entries = contents[0].len() as i64;
                contents[(slot / entries) as usize][(slot % entries) as usize] = Some(token);
            }
        }
    }

    fn settled(&self, id: SequenceId) -> bool {
        self.models[&id].candidates.is_none()
    }

    fn pick(&self, pick: u8) -> Option<SequenceId> {
        self.pick_in(Residency::Resident, pick)
    }

    fn pick_in(&self, residency: Residency, pick: u8) -> Option<SequenceId> {
        let mut ids: Vec<_> =
            self.models.keys().copied().filter(|&id| self.book.residency(id).unwrap() == residency).collect();
        ids.sort_unstable();
        (!ids.is_empty()).then(|| ids[usize::from(pick) % ids.len()])
    }

    /// Different resident sequences with their token counts.
    fn work(&self, picks: &[(u8, u8)]) -> Vec<Work> {
        let mut work: Vec<Work> = Vec::new();
        for &(pick, tokens) in picks {
            let Some(sequence) = self.pick(pick) else { continue };
            if work.iter().all(|part| part.sequence != sequence) && self.settled(sequence) {
                work.push(Work { sequence, tokens: u32::from(tokens) });
            }
        }
        work
    }

    fn fresh(&mut self, count: u32) -> Vec<u64> {
        let first = self.next_token;
        self.next_token += u64::from(count);
        (first..self.next_token).collect()
    }
}
