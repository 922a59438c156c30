//! A book with a tree of prefixes, and what was written where in its pools.

use std::hash::{DefaultHasher, Hash, Hasher};

use cacheplan_managers::BookError;
use cacheplan_managers::book::{BlockId, CacheBook, PoolOp, StepMetadata, Work};
use cacheplan_managers::prefix::{Key, Namespace, PrefixReuse, ReuseLease, Strategy, TenantId};
use proptest::prelude::{Just, any, prop, prop_oneof};
use proptest::strategy::Strategy as _;

use crate::support::Setup;

/// What was computed at a position: everything up to it. `None` is poison.
pub(super) type Content = Option<u64>;

pub(super) fn content(tokens: &[u32]) -> Content {
    let mut hasher = DefaultHasher::new();
    tokens.hash(&mut hasher);
    Some(hasher.finish())
}

#[derive(Clone, Debug)]
pub(super) enum Op {
    Start(Vec<u8>),
    Step { budgets: Vec<u8> },
    Decode { tokens: u8 },
    Finish(u8),
    Abandon(u8),
    Drop(u8),
    Clear,
}

pub(super) fn ops() -> impl proptest::strategy::Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        4 => prop::collection::vec(0u8..3, 1..8).prop_map(Op::Start),
        6 => prop::collection::vec(1u8..17, 4).prop_map(|budgets| Op::Step { budgets }),
        6 => (1u8..12).prop_map(|tokens| Op::Decode { tokens }),
        3 => any::<u8>().prop_map(Op::Finish),
        1 => any::<u8>().prop_map(Op::Abandon),
        1 => any::<u8>().prop_map(Op::Drop),
        1 => Just(Op::Clear),
    ];
    prop::collection::vec(op, 1..120)
}

pub(super) struct Running {
    pub(super) lease: ReuseLease,
    pub(super) tokens: Vec<u32>,
    pub(super) computed: usize,
}

pub(super) struct World {
    pub(super) book: CacheBook,
    pub(super) reuse: PrefixReuse,
    /// `[pool][block][entry]`
    pub(super) blocks: Vec<Vec<Vec<Content>>>,
    pub(super) slots: Vec<Content>,
    pub(super) running: Vec<Running>,
    pub(super) namespace: Namespace,
    pub(super) cached: usize,
}

impl World {
    pub(super) fn new(setup: &Setup, strategy: Strategy) -> Self {
        let plan = setup.plan();
        let mut book = CacheBook::new(&plan).unwrap();
        let reuse = PrefixReuse::new(&plan, &mut book, strategy).unwrap();
        let pools = book.layout().paged.iter();
        Self {
            blocks: pools.map(|spec| vec![vec![None; spec.entries_per_block as usize]; spec.blocks as usize]).collect(),
            slots: vec![None; plan.slots.total() as usize],
            book,
            reuse,
            running: Vec::new(),
            namespace: Namespace::default(),
            cached: 0,
        }
    }

    pub(super) fn apply(&mut self, op: Op) {
        match op {
            Op::Start(segments) => self.start(&segments),
            Op::Step { budgets } => {
                let chunks = self.running.iter().zip(budgets.iter().cycle());
                let chunks: Vec<usize> = chunks
                    .map(|(running, &budget)| {
                        let left = running.tokens.len() - running.computed;
                        self.reuse.next_tokens(&running.lease, left.min(usize::from(budget)))
                    })
                    .collect();
                self.step(&chunks);
            }
            Op::Decode { tokens } => {
                for step in 0..tokens {
                    self.grow(u32::from(step));
                }
            }
            Op::Finish(pick) => {
                if let Some(running) = self.take(pick) {
                    self.reuse.finish(&mut self.book, running.lease).unwrap();
                }
            }
            Op::Abandon(pick) => {
                if let Some(running) = self.take(pick) {
                    self.abandon(running);
                }
            }
            Op::Drop(pick) => {
                if let Some(running) = self.take(pick) {
                    // Whether the caller has ended the sequence by itself must not matter.
                    if pick % 2 == 0 {
                        self.book.finish(running.lease.sequence()).unwrap();
                    }
                    drop(running);
                }
            }
            Op::Clear => self.reuse.clear(&mut self.book).unwrap(),
        }
        self.execute();
        self.poison();
        self.reuse.tree().check().unwrap();
    }

    /// A prompt of segments that others have too: each is some tokens that follow from its name and place.
    pub(super) fn start(&mut self, segments: &[u8]) {
        if self.running.len() == 4 {
            return;
        }
        let tokens = segments.iter().enumerate().flat_map(|(place, &segment)| {
            (0..3 + (place as u32 * 5 + u32::from(segment)) % 7).map(move |at| u32::from(segment) * 100 + at)
        });
        let tokens: Vec<u32> = tokens.collect();
        let key = Key { namespace: &self.namespace, tokens: &tokens };
        let admitted = self.reuse.admit(&mut self.book, key, TenantId(0));
        self.execute();
        let lease = match admitted {
            Ok(admitted) => admitted,
            Err(BookError::Lack(_)) => return,
            Err(error) => panic!("{error}"),
        };
        let computed = lease.cached();
        assert!(computed < tokens.len());
        self.cached += computed;
        let running = Running { lease, tokens, computed };
        self.assert_past(&running);
        self.running.push(running);
    }

    /// One decoded token for every sequence whose prompt is computed.
    pub(super) fn grow(&mut self, token: u32) {
        let chunks: Vec<usize> = self
            .running
            .iter_mut()
            .map(|running| {
                let decodes = running.computed == running.tokens.len() && running.tokens.len() < 60;
                if decodes {
                    running.tokens.push(7 + token);
                }
                usize::from(decodes)
            })
            .collect();
        self.step(&chunks);
    }

    /// Computes so many tokens of each; where there is no room, the youngest gives way.
    pub(super) fn step(&mut self, chunks: &[usize]) {
        let mut metadata = StepMetadata::default();
        loop {
            let parts = self.running.iter().zip(chunks).filter(|(_, chunk)| **chunk > 0);
            let work: Vec<Work> = parts
                .map(|(running, &chunk)| Work { sequence: running.lease.sequence(), tokens: chunk as u32 })
                .collect();
            if work.is_empty() {
                return;
            }
            match self.book.step(&work, &mut metadata) {
                Ok(()) => break,
                Err(BookError::Lack(lack)) => {
                    if !self.reuse.make_room(&mut self.book, &lack).unwrap() {
                        assert!(self.running.len() > 1, "one sequence alone always has room: {lack}");
                        let youngest = self.running.pop().unwrap();
                        self.abandon(youngest);
                    }
                }
                Err(error) => panic!("{error}"),
            }
        }
        self.execute();
        let mut running = std::mem::take(&mut self.running);
        for (one, &chunk) in running.iter_mut().zip(chunks).filter(|(_, chunk)| **chunk > 0) {
            self.compute(one, chunk);
        }
        for (one, _) in running.iter_mut().zip(chunks).filter(|(_, chunk)| **chunk > 0) {
            let decoded = &one.tokens[one.lease.tokens().len().min(one.computed)..one.computed];
            self.reuse.computed(&mut self.book, &mut one.lease, decoded).unwrap();
            self.execute();
        }
        self.running = running;
    }

    /// What a forward does: reads what its tokens see, writes what they leave.
    pub(super) fn compute(&mut self, running: &mut Running, chunk: usize) {
        self.assert_past(running);
        let (start, end) = (running.computed, running.computed + chunk);
        for (paged, spec) in self.book.layout().paged.iter().enumerate() {
            let page = spec.entries_per_block as usize;
            let table = self.book.block_table(running.lease.sequence(), paged).unwrap();
            for position in start..end {
                let block = table[position / page];
                assert_eq!(self.book.blocks(paged).unwrap().references(BlockId(block as u32)), 1, "a shared block");
                self.blocks[paged][block as usize][position % page] = content(&running.tokens[..=position]);
            }
        }
        if let Some(slot) = self.book.slot(running.lease.sequence()).unwrap() {
            self.slots[slot.0 as usize] = content(&running.tokens[..end]);
        }
        running.computed = end;
    }

    /// Every position that the next token sees holds what belongs there, and so does the state.
    pub(super) fn assert_past(&self, running: &Running) {
        let computed = running.computed;
        for (paged, spec) in self.book.layout().paged.iter().enumerate() {
            let page = spec.entries_per_block as usize;
            let table = self.book.block_table(running.lease.sequence(), paged).unwrap();
            let first = spec.window.map_or(0, |window| (computed + 1).saturating_sub(window as usize));
            for position in first..computed {
                let block = usize::try_from(table[position / page]).expect("a visible block is held");
                let found = self.blocks[paged][block][position % page];
                assert_eq!(found, content(&running.tokens[..=position]), "pool {paged}, position {position}");
            }
        }
        if let Some(slot) = self.book.slot(running.lease.sequence()).unwrap() {
            assert_eq!(self.slots[slot.0 as usize], content(&running.tokens[..computed]), "the state");
        }
    }

    pub(super) fn take(&mut self, pick: u8) -> Option<Running> {
        let count = self.running.len();
        (count > 0).then(|| self.running.remove(usize::from(pick) % count))
    }

    pub(super) fn abandon(&mut self, running: Running) {
        let sequence = running.lease.sequence();
        self.reuse.abandon(running.lease).unwrap();
        self.book.finish(sequence).unwrap();
    }

    pub(super) fn execute(&mut self) {
        for op in self.book.take_ops() {
            match op {
                PoolOp::CopyBlock { paged, from, to } => {
                    self.blocks[paged][to.0 as usize] = self.blocks[paged][from.0 as usize].clone();
                }
                PoolOp::ZeroSlot(slot) => self.slots[slot.0 as usize] = content(&[]),
                PoolOp::CopySlot { from, to } => self.slots[to.0 as usize] = self.slots[from.0 as usize],
                other => panic!("{other:?}"),
            }
        }
    }

    /// Whatever nobody holds may be overwritten at any time.
    pub(super) fn poison(&mut self) {
        for (paged, pool) in self.blocks.iter_mut().enumerate() {
            for block in self.book.blocks(paged).unwrap().free_blocks() {
                pool[block.0 as usize].fill(None);
            }
        }
        for slot in self.book.slots().free_slots() {
            self.slots[slot.0 as usize] = None;
        }
    }

    pub(super) fn end(mut self) {
        while let Some(running) = self.take(0) {
            self.abandon(running);
        }
        self.reuse.clear(&mut self.book).unwrap();
        self.book.ensure_idle().unwrap();
    }
}
