//! Running a trace against the tree.

use std::collections::VecDeque;

use super::error::SimulateError;
use super::report::{Peak, Point, Report};
use super::scenario::Scenario;
use super::trace::{Piece, TraceRequest};
use crate::book::{BlockId, SlotId};
use crate::prefix::cache::{Final, Lease, PrefixCache, Progress};
use crate::prefix::{
    CheckpointFormat, Extend, Key, Match, Namespace, Released, Strategy, TenantId, Token, TreeConfig, UnitCount,
};

/// No request is longer, in tokens: a trace that says so is wrong, and would not fit the memory of the simulation.
const MAX_TOKENS: usize = 1 << 24;

impl Scenario {
    /// Runs the requests in order.
    ///
    /// # Errors
    /// A scenario that the cache refuses, or a request that does not fit the KV pool.
    pub fn run(self, requests: &[TraceRequest]) -> Result<Report, SimulateError> {
        refuse_endless(requests, self)?;
        let mut run = Run::new(self)?;
        let every = (requests.len() / 200).max(1);
        let mut course = Vec::new();
        for (i, request) in requests.iter().enumerate() {
            run.give_way()?;
            run.start(i, request)?;
            if (i + 1) % every == 0 || i + 1 == requests.len() {
                course.push(Point {
                    requests: i + 1,
                    hit_rate: run.cache.metrics().hit_rate(),
                    checkpoints: run.checkpoints(),
                });
            }
        }
        while !run.open.is_empty() {
            run.finish_oldest()?;
        }
        let metrics = *run.cache.metrics();
        let mean = metrics.prompt_tokens / metrics.requests.max(1);
        Ok(Report {
            scenario: self,
            hit_rate: metrics.hit_rate(),
            kv_hit_rate: metrics.kv_hit_rate(),
            computed_tokens: metrics.prompt_tokens - metrics.hit_tokens,
            peak_checkpoints: run.peak.checkpoints,
            peak: run.peak,
            metrics,
            reuse: run.cache.reuse(self.checkpoints.unwrap_or(usize::MAX), mean as usize),
            course,
        })
    }
}

/// The most tokens of all requests together, and the most steps that they take.
const MAX_WORK: (u64, u64) = (4 << 30, 1 << 22);

/// Refuses what would run for hours: a plan of few tokens a step makes many steps of a long context.
fn refuse_endless(requests: &[TraceRequest], scenario: Scenario) -> Result<(), SimulateError> {
    let pieces = |request: &TraceRequest| {
        request.prompt.iter().chain([&request.output]).map(Piece::len).fold(0, usize::saturating_add)
    };
    // A request beyond its own limit is refused by its name.
    let tokens = requests.iter().map(|request| pieces(request).min(MAX_TOKENS)).fold(0, usize::saturating_add);
    let steps = tokens / scenario.prefill_chunk.max(1);
    if tokens as u64 > MAX_WORK.0 || steps as u64 > MAX_WORK.1 {
        Err(SimulateError::TooMuch { tokens, steps })
    } else {
        Ok(())
    }
}

/// A request that has been prefilled and is still decoding.
struct Open {
    lease: Lease,
    /// Prompt and output.
    tokens: Vec<Token>,
    prompt: usize,
    blocks: Vec<BlockId>,
}

pub(super) struct Run {
    scenario: Scenario,
    cache: PrefixCache,
    strategy: Strategy,
    namespace: Namespace,
    open: VecDeque<Open>,
    out: Released,
    free_blocks: Vec<BlockId>,
    blocks_used: usize,
    next_block: u32,
    next_slot: u32,
    peak: Peak,
}

impl Run {
    pub(super) fn new(scenario: Scenario) -> Result<Self, SimulateError> {
        let config = TreeConfig {
            page: scenario.page,
            chunk: scenario.chunk,
            states: scenario.states,
            checkpoints: scenario.format,
            host: scenario.host,
            eviction: scenario.policy.eviction(),
            tenants: vec![1; usize::from(scenario.tenants)],
            ..TreeConfig::default()
        };
        let strategy = scenario.policy.strategy();
        Ok(Self {
            scenario,
            cache: PrefixCache::new(config, strategy)?,
            strategy,
            namespace: Namespace::default(),
            open: VecDeque::new(),
            out: Released::default(),
            free_blocks: Vec::new(),
            blocks_used: 0,
            next_block: 0,
            next_slot: 0,
            peak: Peak::default(),
        })
    }

    fn checkpoints(&self) -> usize {
        let states = self.cache.tree().usage().states;
        states.evictable + states.protected
    }

    /// Ends requests until one more may run.
    pub(super) fn give_way(&mut self) -> Result<(), SimulateError> {
        while self.open.len() >= self.scenario.concurrency.max(1) {
            self.finish_oldest()?;
        }
        Ok(())
    }

    /// Slots that have been handed out, all of other numbers: they are the ids below this.
    pub(super) fn slots(&self) -> usize {
        self.next_slot as usize + 1
    }

    pub(super) fn prompt_tokens(&self) -> u64 {
        self.cache.metrics().prompt_tokens
    }

    /// Tells of every state on the path of a request, deepest first: its slot, its tokens, and whether the request could
    /// start from it.
    pub(super) fn states_on_path(&self, request: &TraceRequest, mut tell: impl FnMut(usize, usize, bool)) {
        let mut tokens = Vec::new();
        request.prompt.iter().for_each(|piece| piece.expand(&mut tokens));
        let mut end = tokens.len();
        loop {
            let found = self.cache.tree().match_prefix(Key { namespace: &self.namespace, tokens: &tokens[..end] });
            let Some(slot) = found.state else { break };
            tell(slot.0 as usize, found.hit, found.hit < tokens.len());
            end = found.hit - 1;
        }
    }

    pub(super) fn start(&mut self, index: usize, request: &TraceRequest) -> Result<(), SimulateError> {
        let page = self.scenario.page;
        let available = self.scenario.kv_tokens.unwrap_or(MAX_TOKENS).min(MAX_TOKENS);
        let lens = request.prompt.iter().chain([&request.output]).map(Piece::len);
        let needed = lens.fold(0, usize::saturating_add);
        if available < needed.saturating_add(page) {
            return Err(SimulateError::TooLarge { request: index, needed, available });
        }
        let mut tokens = Vec::with_capacity(needed);
        request.prompt.iter().for_each(|piece| piece.expand(&mut tokens));
        let prompt = tokens.len();
        request.output.expand(&mut tokens);
        if prompt == 0 {
            return Ok(());
        }
        let pool = self.scenario.kv_tokens.unwrap_or(usize::MAX);
        while pool < self.in_flight() + tokens.len() + page && !self.open.is_empty() {
            self.finish_oldest()?;
        }
        let namespace = self.namespace.clone();
        let key = |len: usize| Key { namespace: &namespace, tokens: &tokens[..len] };
        let found = self.bring_back(key(prompt));
        let tenant = TenantId(request.tenant % self.scenario.tenants);
        let live = self.slot();
        let mut lease = self.cache.admit(key(prompt), &found, live, tenant)?;
        self.cache.copied(&mut lease)?;
        let mut blocks = Vec::new();
        self.cache.held_blocks(&lease, &mut blocks);
        let mut start = found.hit;
        while start < prompt {
            let end = prompt.min(start + self.scenario.prefill_chunk.max(1));
            let extend = Extend { start, end, prompt, branch: lease.branch() };
            for checkpoint in self.strategy.checkpoints(self.cache.tree().config(), extend) {
                self.extend_blocks(&mut blocks, checkpoint.position);
                self.store(&mut lease, key(checkpoint.position), &mut blocks)?;
            }
            start = end;
        }
        self.extend_blocks(&mut blocks, tokens.len());
        self.open.push_back(Open { lease, tokens, prompt, blocks });
        Ok(())
    }

    fn store(&mut self, lease: &mut Lease, key: Key<'_>, blocks: &mut Vec<BlockId>) -> Result<(), SimulateError> {
        let state = self.checkpoint_slot();
        let private = blocks.split_off(key.tokens.len().div_ceil(self.scenario.page).min(blocks.len()));
        let at = Progress { key, blocks, window: None };
        self.cache.store(lease, at, state, &mut self.out)?;
        blocks.clear();
        self.cache.held_blocks(lease, blocks);
        blocks.extend(private);
        self.take_back();
        self.note_peak();
        Ok(())
    }

    fn finish_oldest(&mut self) -> Result<(), SimulateError> {
        let Some(Open { mut lease, tokens, prompt, mut blocks }) = self.open.pop_front() else {
            return Ok(());
        };
        let namespace = self.namespace.clone();
        let key = |len: usize| Key { namespace: &namespace, tokens: &tokens[..len] };
        let page = self.scenario.page;
        let exact = self.strategy.finish && tokens.len().is_multiple_of(page);
        // Where the final state has no key, what a second buffer tracked last takes its place.
        let tracked = self.strategy.decode_interval.map_or(0, |interval| tokens.len() / interval * interval);
        if !exact && self.scenario.states && tracked > prompt && tracked.is_multiple_of(page) {
            self.store(&mut lease, key(tracked), &mut blocks)?;
        }
        if self.strategy.finish {
            let kept = exact && self.scenario.states && self.make_room();
            let state = match self.scenario.format {
                _ if !kept => Final::Discard,
                CheckpointFormat::Native => Final::Move,
                CheckpointFormat::Int8 => Final::Checkpoint(self.slot()),
            };
            let at = Progress { key: key(tokens.len()), blocks: &blocks, window: None };
            self.cache.finish(lease, at, state, &mut self.out)?;
        } else {
            self.out.blocks.extend(blocks.drain(lease.owned() / page..));
            self.cache.abort(lease)?;
        }
        self.take_back();
        self.note_peak();
        Ok(())
    }

    /// Looks a prompt up, and loads what of the hit lies on the host.
    fn bring_back(&mut self, prompt: Key<'_>) -> Match {
        let found = self.cache.lookup(prompt);
        if found.hit <= found.resident {
            return found;
        }
        let mut blocks = Vec::new();
        self.extend_blocks(&mut blocks, found.hit - found.resident);
        // Making room may have cost a part of the hit.
        if self.cache.load(&found, &blocks, &[], &mut Vec::new()).is_ok() {
            return self.cache.lookup(prompt);
        }
        self.blocks_used -= blocks.len();
        self.free_blocks.append(&mut blocks);
        self.cache.lookup_resident(prompt)
    }

    fn note_peak(&mut self) {
        let usage = self.cache.tree().usage();
        let total = |held: UnitCount| held.evictable + held.protected;
        self.peak = Peak {
            checkpoints: self.peak.checkpoints.max(total(usage.states)),
            kv_tokens: self.peak.kv_tokens.max(self.blocks_used * self.scenario.page),
            host_kv_tokens: self.peak.host_kv_tokens.max(total(usage.host_kv)),
            host_checkpoints: self.peak.host_checkpoints.max(total(usage.host_states)),
        };
    }

    /// KV tokens in the hands of running requests, at most.
    fn in_flight(&self) -> usize {
        self.open.iter().map(|open| open.tokens.len() + self.scenario.page).sum()
    }

    fn slot(&mut self) -> SlotId {
        self.next_slot = self.next_slot.wrapping_add(1);
        SlotId(self.next_slot)
    }

    fn checkpoint_slot(&mut self) -> Option<SlotId> {
        (self.scenario.states && self.make_room()).then(|| self.slot())
    }

    /// Evicts until one more state fits. `false` where running requests hold all of them.
    fn make_room(&mut self) -> bool {
        let cap = self.scenario.checkpoints.unwrap_or(usize::MAX);
        if self.checkpoints() >= cap {
            self.cache.evict_state(self.checkpoints() + 1 - cap, &mut self.out);
            self.take_back();
        }
        self.checkpoints() < cap
    }

    fn extend_blocks(&mut self, blocks: &mut Vec<BlockId>, tokens: usize) {
        let pages = tokens.div_ceil(self.scenario.page);
        let missing = pages.saturating_sub(blocks.len());
        if let Some(size) = self.scenario.kv_tokens {
            let free = size / self.scenario.page - self.blocks_used;
            if free < missing {
                self.cache.evict_kv((missing - free) * self.scenario.page, &mut self.out);
                self.take_back();
            }
        }
        self.blocks_used += missing;
        for _ in 0..missing {
            let free = self.free_blocks.pop();
            blocks.push(free.unwrap_or(BlockId(self.next_block)));
            self.next_block += u32::from(free.is_none());
        }
    }

    fn take_back(&mut self) {
        self.blocks_used -= self.out.blocks.len();
        self.free_blocks.append(&mut self.out.blocks);
        self.out.slots.clear();
        self.out.offloads.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// The tree takes a block of a number that it has for its own.
    #[test]
    fn no_two_blocks_in_use_have_one_number() {
        let mut run = Run::new(Scenario::default()).unwrap();
        let (mut kept, mut returned) = (Vec::new(), Vec::new());
        run.extend_blocks(&mut kept, 10);
        run.extend_blocks(&mut returned, 3);
        run.out.blocks = returned;
        run.take_back();
        run.extend_blocks(&mut kept, 20);
        let mut others = Vec::new();
        run.extend_blocks(&mut others, 5);
        kept.extend(others);
        assert_eq!((kept.len(), kept.iter().collect::<HashSet<_>>().len()), (25, 25));
        assert_eq!(run.blocks_used, 25);
    }
}
