//! Random operations on real pools, whose free units are poisoned after each of them.
//!
//! The suite runs 1,000 operations; `CACHEPLAN_SOAK_OPS` asks for more, a twentieth of which is run here.

use std::collections::BTreeMap;

use crate::support::{Setup, hybrid, kv};
use cacheplan_handlers::Kind;
use cacheplan_kernels::{Backend, KvWrite};
use cacheplan_managers::book::{
    Accepted, BlockId, CacheBook, Prefix, Residency, SequenceId, SetAside, SlotId, StepMetadata, Windows, Work,
};
use cacheplan_managers::device::{CacheManager, CacheSet, CapturedState};
use cacheplan_managers::{BookError, ManagerError};
use cacheplan_planner::SlotDomain;
use candle_core::{Device, Tensor};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};

const WINDOW: usize = 6;
const POSITIONS: u32 = 4;

fn setup(blocks: u64, live: u64) -> Setup {
    let twins = |setup: Setup, layer| {
        setup
            .with(layer, crate::support::ssm().intermediate().unwrap())
            .with(layer, crate::support::conv().intermediate().unwrap())
    };
    let windowed = hybrid().with(3, kv(2, 8).with_window(WINDOW as u32).unwrap());
    let mut setup = twins(twins(windowed, 0), 2).blocks(blocks).host(8000);
    setup.slots = SlotDomain { padding: 1, live, checkpoints: 2 };
    setup
}

/// What the model knows of a sequence: its tokens' numbers.
#[derive(Clone, Debug, Default)]
struct Model {
    tokens: Vec<u32>,
    candidates: Option<(i32, Vec<u32>)>,
}

/// What every element of a state is after these tokens; small enough for bf16.
fn state(tokens: &[u32]) -> f32 {
    (tokens.iter().zip(1..).map(|(token, place)| token * place).sum::<u32>() % 251) as f32
}

/// A prefix held from outside, as a prefix cache would.
struct Held {
    tokens: Vec<u32>,
    prefix: Prefix,
    slot: SlotId,
}

struct Machine {
    set: CacheSet,
    models: BTreeMap<SequenceId, Model>,
    held: Vec<Held>,
    host: Option<SetAside>,
    captured: Vec<(CapturedState, Vec<u32>)>,
    next: u32,
}

impl Machine {
    fn new(windows: Windows) -> Self {
        let set = CacheSet::with_windows(&setup(20, 4).plan(), windows, &Device::Cpu).unwrap();
        Self { set, models: BTreeMap::new(), held: Vec::new(), host: None, captured: Vec::new(), next: 1 }
    }

    fn manager(&mut self) -> &mut CacheManager {
        self.set.manager_mut().unwrap()
    }

    fn apply(&mut self, (operation, pick, amount): (u8, u8, u8)) {
        let count = u32::from(amount);
        let resident = self.pick(Residency::Resident, pick);
        match (operation % 24, resident) {
            (0 | 1, _) => {
                if let Some(id) = self.allowed(|manager| manager.admit(count % 24)) {
                    self.models.insert(id, Model::default());
                }
            }
            (2..=5, Some(id)) => self.step(id, count % 9 + 1),
            (6, Some(id)) => {
                if let Some(child) = self.allowed(|manager| manager.fork(id)) {
                    let model = self.models[&id].clone();
                    self.models.insert(child, model);
                }
            }
            (7, Some(id)) => {
                let keep = if amount % 3 == 0 { 0 } else { self.models[&id].tokens.len() };
                if self.allowed(|manager| manager.truncate(id, keep as u32)).is_some() {
                    self.models.get_mut(&id).unwrap().tokens.truncate(keep);
                }
            }
            (8 | 9, Some(id)) => self.speculate(id, count % POSITIONS + 1),
            (10 | 11, Some(id)) => self.commit(id, amount),
            (12, Some(id)) => {
                self.allowed(|manager| manager.offload(id));
            }
            (13, _) => {
                if let Some(id) = self.pick(Residency::Offloaded, pick) {
                    self.allowed(|manager| manager.onload(id));
                }
            }
            (14, Some(id)) if amount % 2 == 0 => {
                self.manager().preempt(id).unwrap();
                *self.models.get_mut(&id).unwrap() = Model::default();
            }
            (14, _) => {
                if let Some(id) = self.pick(Residency::Preempted, pick) {
                    self.allowed(|manager| manager.resume(id, count % 24));
                }
            }
            (15, Some(id)) if amount % 2 == 0 => {
                if let Some(captured) = self.allowed(|manager| manager.capture(id)) {
                    self.captured.push((captured, self.models[&id].tokens.clone()));
                }
            }
            (15, Some(id)) => self.restore(id, amount),
            (16, _) => self.resize(pick, amount),
            (17, _) => {
                let id = self.models.keys().copied().nth(usize::from(pick) % self.models.len().max(1));
                if let Some(id) = id {
                    self.manager().finish(id).unwrap();
                    self.models.remove(&id);
                }
            }
            (18, Some(id)) if amount % 2 == 0 => self.hold(id, |manager| manager.checkpoint(id)),
            (18, Some(id)) => {
                self.hold(id, |manager| Ok(manager.finish_into_checkpoint(id)?));
                if self.manager().book().tokens(id).is_err() {
                    self.models.remove(&id);
                }
            }
            (19, Some(id)) => self.rewind(id, amount),
            (20 | 21, _) => self.admit_prefix(pick, count % 12),
            (22, _) if !self.held.is_empty() => self.let_go(usize::from(pick) % self.held.len()),
            (23, _) => {
                let bytes = u64::from(count) * 64;
                self.host = match self.host.take() {
                    Some(_) => None,
                    None => self.allowed(|manager| manager.with_book(|book| book.set_host_aside(bytes))),
                };
            }
            _ => {}
        }
    }

    /// Holds a sequence's visible blocks and the checkpoint that `keep` makes of it.
    fn hold(&mut self, id: SequenceId, keep: impl FnOnce(&mut CacheManager) -> Result<SlotId, ManagerError>) {
        let tokens = self.models[&id].tokens.clone();
        let book = self.manager().book();
        let len = tokens.len() as u32;
        let visible = book.layout().paged.iter().enumerate().map(|(paged, spec)| {
            let range = spec.first_visible_block(len)..spec.blocks_for(len);
            let table = book.block_table(id, paged).unwrap();
            range.map(|logical| BlockId(table[logical as usize] as u32)).collect::<Vec<_>>()
        });
        let blocks: Vec<Vec<BlockId>> = visible.collect();
        let retain = |book: &mut CacheBook, keep: bool| {
            for (paged, blocks) in blocks.iter().enumerate() {
                blocks.iter().try_for_each(|&block| match keep {
                    true => book.retain_block(paged, block),
                    false => book.release_block(paged, block).map(|_| ()),
                })?;
            }
            Ok(())
        };
        self.manager().with_book(|book| retain(book, true)).unwrap();
        if let Some(slot) = self.allowed(keep) {
            self.held.push(Held { prefix: Prefix { tokens: len, blocks, state: Some(slot) }, tokens, slot });
        } else {
            self.manager().with_book(|book| retain(book, false)).unwrap();
        }
    }

    fn rewind(&mut self, id: SequenceId, pick: u8) {
        let Some(held) = self.held.get(usize::from(pick) % self.held.len().max(1)) else { return };
        let (slot, tokens) = (held.slot, held.tokens.clone());
        if self.models[&id].tokens.starts_with(&tokens)
            && self.allowed(|manager| manager.rewind(id, slot, tokens.len() as u32)).is_some()
        {
            self.models.get_mut(&id).unwrap().tokens = tokens;
        }
    }

    fn admit_prefix(&mut self, pick: u8, more: u32) {
        let Some(held) = self.held.get(usize::from(pick) % self.held.len().max(1)) else { return };
        let (prefix, tokens) = (held.prefix.clone(), held.tokens.clone());
        if let Some(id) = self.allowed(|manager| manager.admit_prefix(prefix.tokens + more, &prefix)) {
            self.models.insert(id, Model { tokens, candidates: None });
        }
    }

    fn let_go(&mut self, index: usize) {
        let Held { prefix, slot, .. } = self.held.swap_remove(index);
        let release = |book: &mut CacheBook| {
            for (paged, blocks) in prefix.blocks.iter().enumerate() {
                blocks.iter().try_for_each(|&block| book.release_block(paged, block).map(|_| ()))?;
            }
            book.release_checkpoint(slot)
        };
        self.manager().with_book(release).unwrap();
    }

    fn step(&mut self, id: SequenceId, tokens: u32) {
        let mut step = StepMetadata::default();
        if self.allowed(|manager| manager.step(&[Work { sequence: id, tokens }], &mut step)).is_some() {
            let fresh = self.fresh(tokens);
            self.write(&step, &fresh);
            let model = self.models.get_mut(&id).unwrap();
            model.tokens.extend(fresh);
            let value = state(&model.tokens);
            self.fill_row(step.slots[0] as usize, &[Kind::Ssm, Kind::CausalConv], |_| value);
        }
    }

    fn speculate(&mut self, id: SequenceId, tokens: u32) {
        let mut step = StepMetadata::default();
        if self.allowed(|manager| manager.speculate(&[Work { sequence: id, tokens }], &mut step)).is_some() {
            let fresh = self.fresh(tokens);
            self.write(&step, &fresh);
            self.models.get_mut(&id).unwrap().candidates = Some((step.draft_rows[0], fresh));
        }
    }

    /// Accepts the candidates whose bits are set, or as many of the first.
    fn commit(&mut self, id: SequenceId, bits: u8) {
        let Some((row, candidates)) = self.models[&id].candidates.clone() else { return };
        let path: Vec<u32> = match bits % 2 {
            0 => (0..candidates.len() as u32).filter(|at| bits >> (at + 1) & 1 == 1).collect(),
            _ => (0..u32::from(bits / 2) % (candidates.len() as u32 + 1)).collect(),
        };
        let mut tokens = self.models[&id].tokens.clone();
        let mut states = vec![f32::NAN; POSITIONS as usize];
        for &accepted in &path {
            tokens.push(candidates[accepted as usize]);
            states[accepted as usize] = state(&tokens);
        }
        self.fill_row(row as usize, &[Kind::IntermediateSsm, Kind::IntermediateCausalConv], |at| states[at]);
        self.manager().commit(&[(id, Accepted::Path(&path))]).unwrap();
        self.models.insert(id, Model { tokens, candidates: None });
    }

    fn restore(&mut self, id: SequenceId, pick: u8) {
        let Some((captured, tokens)) = self.captured.get(usize::from(pick) % self.captured.len().max(1)).cloned()
        else {
            return;
        };
        if self.models[&id].tokens.starts_with(&tokens)
            && self.allowed(|manager| manager.restore(id, &captured)).is_some()
        {
            self.models.get_mut(&id).unwrap().tokens = tokens;
        }
    }

    /// Other sizes under live sequences, or after a shutdown.
    fn resize(&mut self, pick: u8, amount: u8) {
        let plan = setup(12 + u64::from(amount % 20), 2 + u64::from(pick % 4)).plan();
        let done = match amount % 4 {
            0 => self.set.rebalance(&plan),
            1 | 2 => self.set.resize(&plan),
            _ => self.manager().compact_slots().map(|_| ()),
        };
        match done {
            Ok(())
            | Err(ManagerError::Book(
                BookError::UnitInUse { .. }
                | BookError::Lack(_)
                | BookError::Busy { .. }
                | BookError::WrongState { .. },
            )) => {}
            Err(error) => panic!("{error}"),
        }
        if self.models.is_empty() && self.held.is_empty() {
            self.set.shutdown().unwrap();
            assert!(matches!(self.set.manager(), Err(ManagerError::ShutDown)));
            self.set.resize(&plan).unwrap();
        }
    }

    /// Runs what may lack room or come at the wrong time.
    fn allowed<R>(&mut self, operation: impl FnOnce(&mut CacheManager) -> Result<R, ManagerError>) -> Option<R> {
        match operation(self.manager()) {
            Ok(result) => Some(result),
            Err(ManagerError::Book(
                BookError::Lack(_)
                | BookError::WrongState { .. }
                | BookError::CannotTruncate { .. }
                | BookError::TooLong { .. }
                | BookError::StepTooLarge { .. },
            )) => None,
            Err(error) => panic!("{error}"),
        }
    }

    fn write(&mut self, step: &StepMetadata, tokens: &[u32]) {
        let rows: Vec<f32> = tokens.iter().flat_map(|&token| vec![token as f32; 16]).collect();
        let keys = Tensor::from_vec(rows, (tokens.len(), 2, 8), &Device::Cpu).unwrap();
        for layer in [1, 3] {
            let manager = self.manager();
            let layer = manager.kv_layer(manager.route(layer, &Kind::KvPaged).unwrap()).unwrap();
            let slots = &step.pools[layer.paged].slot_mapping;
            KvWrite::new(&keys, Some(&keys), slots).run(&Backend::Cpu.run(), layer.pool, &layer.view).unwrap();
        }
    }

    /// Fills a row of state pools, one value for each position.
    fn fill_row(&mut self, row: usize, kinds: &[Kind], value: impl Fn(usize) -> f32) {
        for kind in kinds {
            let manager = self.manager();
            let layer = manager.state_layer(manager.route(0, kind).unwrap()).unwrap();
            let elems = layer.view.elems();
            let values = (0..layer.view.slot_elems).map(|at| value(at / elems % layer.positions));
            let values = Tensor::from_vec(values.collect(), (1, layer.view.slot_elems), &Device::Cpu).unwrap();
            layer.pool.slice_set(&values.to_dtype(layer.pool.dtype()).unwrap(), 0, row).unwrap();
        }
    }

    /// Poisons what is free and reads everything that is not.
    fn check(&mut self) {
        self.manager().fill_free(f64::NAN).unwrap();
        let manager = self.set.manager().unwrap();
        for (&id, model) in &self.models {
            if manager.book().residency(id).unwrap() != Residency::Resident {
                continue;
            }
            for layer in [1, 3] {
                let dense = manager.read_kv(id, manager.route(layer, &Kind::KvPaged).unwrap()).unwrap();
                let first = dense.first_token;
                assert!(layer == 3 || first == 0);
                for (rows, values) in [(&dense.keys, "keys"), (dense.values.as_ref().unwrap(), "values")] {
                    let rows: Vec<Vec<f32>> = rows.flatten_from(1).unwrap().to_vec2().unwrap();
                    assert_eq!(first + rows.len(), model.tokens.len());
                    let visible = if layer == 3 { (model.tokens.len() + 1).saturating_sub(WINDOW) } else { 0 };
                    for (position, row) in (first..).zip(&rows).filter(|(position, _)| *position >= visible) {
                        let token = model.tokens[position] as f32;
                        assert!(row.iter().all(|value| *value == token), "{values} of {id} at {position}: {row:?}");
                    }
                }
            }
            for (layer, kind) in [(0, Kind::Ssm), (0, Kind::CausalConv), (2, Kind::Ssm), (2, Kind::CausalConv)] {
                let found = manager.read_state(id, manager.route(layer, &kind).unwrap()).unwrap();
                let found = found.to_dtype(candle_core::DType::F32).unwrap().flatten_all().unwrap();
                let expected = state(&model.tokens);
                assert!(found.to_vec1::<f32>().unwrap().iter().all(|value| *value == expected), "state of {id}");
            }
        }
    }

    fn finish(&mut self) {
        self.host = None;
        while !self.held.is_empty() {
            self.let_go(0);
        }
        for id in std::mem::take(&mut self.models).into_keys() {
            self.manager().finish(id).unwrap();
        }
        let book = self.set.manager().unwrap().book();
        book.ensure_idle().unwrap();
        assert_eq!(book.host_stats().unwrap().used_bytes, 0);
        self.set.shutdown().unwrap();
    }

    fn pick(&self, residency: Residency, pick: u8) -> Option<SequenceId> {
        let book = self.set.manager().unwrap().book();
        let ids: Vec<_> = self.models.keys().filter(|id| book.residency(**id).unwrap() == residency).collect();
        (!ids.is_empty()).then(|| *ids[usize::from(pick) % ids.len()])
    }

    fn fresh(&mut self, count: u32) -> Vec<u32> {
        let first = self.next;
        self.next += count;
        (first..self.next).collect()
    }
}

#[test]
fn random_operations_on_real_pools_read_what_was_written() {
    let soak = std::env::var("CACHEPLAN_SOAK_OPS").ok().and_then(|ops| ops.parse::<u32>().ok());
    let cases = soak.map_or(1_000, |ops| ops / 20).div_ceil(2 * 100);
    for windows in [Windows::Sliding, Windows::Cyclic] {
        let mut runner = TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
        let operations = proptest::collection::vec(any::<(u8, u8, u8)>(), 100);
        let outcome = runner.run(&operations, |operations| {
            let mut machine = Machine::new(windows);
            for operation in operations {
                machine.apply(operation);
                machine.check();
            }
            machine.finish();
            Ok::<(), TestCaseError>(())
        });
        if let Err(failure) = outcome {
            panic!("{failure}");
        }
    }
}
