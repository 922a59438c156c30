//! Running a trace against the tree.

use std::collections::VecDeque;

use super::below::{Below, Moved, Wanted};
use super::error::SimulateError;
use super::report::{Peak, Point, Report};
use super::scenario::Scenario;
use super::sequence::Sequence;
use super::trace::TraceRequest;
use crate::book::{BlockId, SlotId};
use crate::prefix::cache::{Final, Lease, PrefixCache, Progress};
use crate::prefix::{
    CheckpointFormat, Extend, Key, Match, Namespace, Released, Strategy, TenantId, TreeConfig, UnitCount, WindowSpan,
};

/// No request is longer, in tokens: a trace that says so is wrong, and would not fit the memory of the simulation.
pub(super) const MAX_TOKENS: usize = 1 << 24;

impl Scenario {
    /// Runs the requests in order.
    ///
    /// # Errors
    /// A scenario that the cache refuses, or a request that does not fit the KV pool.
    pub fn run(self, requests: &[TraceRequest]) -> Result<Report, SimulateError> {
        refuse_endless(requests, self, 1)?;
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
        let metrics = run.cache.metrics();
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

impl Scenario {
    /// Refuses a request that alone needs more than there is, before anything is made of it.
    pub(super) fn refuse_too_large(&self, index: usize, request: &TraceRequest) -> Result<(), SimulateError> {
        let available = self.kv_tokens.unwrap_or(MAX_TOKENS).min(MAX_TOKENS);
        let needed = request.tokens();
        if available < needed.saturating_add(self.page) {
            return Err(SimulateError::TooLarge { request: index, needed, available });
        }
        Ok(())
    }
}

/// The most tokens of all requests together.
const MAX_TOKENS_OF_ALL: u64 = 4 << 30;

/// The most steps that they take.
const MAX_STEPS: u64 = 1 << 22;

/// Refuses what would run for hours: a plan of few tokens a step makes many steps of a long context, in each of so many runs.
pub(super) fn refuse_endless(requests: &[TraceRequest], scenario: Scenario, runs: u64) -> Result<(), SimulateError> {
    // A request beyond its own limit is refused by its name.
    let tokens = requests.iter().map(|request| request.tokens().min(MAX_TOKENS)).fold(0, usize::saturating_add);
    let steps = tokens / scenario.prefill_chunk.max(1);
    if tokens as u64 > MAX_TOKENS_OF_ALL || steps as u64 > MAX_STEPS / runs {
        Err(SimulateError::TooMuch { tokens, steps })
    } else {
        Ok(())
    }
}

/// A request that has been prefilled and is still decoding.
struct Open {
    lease: Lease,
    sequence: Sequence,
    blocks: Vec<BlockId>,
}

/// Blocks of sliding windows for the tree; those of running requests are their own.
#[derive(Debug)]
pub(super) struct WindowPool {
    /// Pages that a token looks back on.
    pub(super) pages: usize,
    /// Blocks that the tree may have. `None`: as many as it takes.
    pub(super) blocks: Option<usize>,
    used: usize,
    free: Vec<BlockId>,
    next: u32,
}

impl WindowPool {
    pub(super) fn new(pages: usize, blocks: Option<usize>) -> Self {
        Self { pages, blocks, used: 0, free: Vec::new(), next: 0 }
    }
}

/// What a run has besides its scenario.
pub(super) struct Extras<'a> {
    /// Tokens of a symbol: 1, or a page.
    pub(super) unit: usize,
    pub(super) windows: Option<WindowPool>,
    pub(super) below: Option<Below<'a>>,
}

/// Tokens of prompts.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counted {
    pub(super) prompt: u64,
    pub(super) hit: u64,
}

pub(super) struct Run<'a> {
    scenario: Scenario,
    extras: Extras<'a>,
    /// The tree's, in tokens.
    config: TreeConfig,
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
    counted: Counted,
}

impl<'a> Run<'a> {
    pub(super) fn new(scenario: Scenario) -> Result<Self, SimulateError> {
        Self::with(scenario, Extras { unit: 1, windows: None, below: None })
    }

    pub(super) fn with(scenario: Scenario, extras: Extras<'a>) -> Result<Self, SimulateError> {
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
        let unit = extras.unit;
        let page = scenario.page / unit;
        let chunk = if unit == 1 { scenario.chunk } else { config.grid() / unit };
        let window = extras.windows.as_ref().map(|windows| windows.pages * page);
        let in_symbols = TreeConfig { page, chunk, window, ..config.clone() };
        Ok(Self {
            scenario,
            extras,
            config,
            cache: PrefixCache::new(in_symbols, strategy)?,
            strategy,
            namespace: Namespace::default(),
            open: VecDeque::new(),
            out: Released::default(),
            free_blocks: Vec::new(),
            blocks_used: 0,
            next_block: 0,
            next_slot: 0,
            peak: Peak::default(),
            counted: Counted::default(),
        })
    }

    /// Ends all requests that still run, and says what was counted.
    pub(super) fn end(mut self) -> Result<(Counted, Moved), SimulateError> {
        while !self.open.is_empty() {
            self.finish_oldest()?;
        }
        Ok((self.counted, self.extras.below.as_ref().map(Below::moved).unwrap_or_default()))
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

    /// Prompt tokens that were not computed, of requests so far.
    #[cfg(test)]
    pub(super) fn hit_tokens(&self) -> u64 {
        self.counted.hit
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

    /// Admits a request.
    pub(super) fn start(&mut self, index: usize, request: &TraceRequest) -> Result<(), SimulateError> {
        self.scenario.refuse_too_large(index, request)?;
        self.begin(&Sequence::of(request, self.extras.unit))
    }

    /// As [`Run::start`], for one that is not too large.
    pub(super) fn begin(&mut self, sequence: &Sequence) -> Result<(), SimulateError> {
        let (page, unit) = (self.scenario.page, self.extras.unit);
        let Sequence { prompt, tokens, .. } = *sequence;
        if prompt == 0 {
            return Ok(());
        }
        let pool = self.scenario.kv_tokens.unwrap_or(usize::MAX);
        while pool < self.in_flight() + tokens + page && !self.open.is_empty() {
            self.finish_oldest()?;
        }
        let namespace = self.namespace.clone();
        let key = |len: usize| Key { namespace: &namespace, tokens: &sequence.symbols[..len] };
        let asked = key(prompt.div_ceil(unit));
        let found = self.bring_back(asked, prompt);
        let tenant = TenantId(sequence.tenant % self.scenario.tenants);
        let live = self.slot();
        let mut lease = self.cache.admit(asked, &found, live, tenant)?;
        self.cache.copied(&mut lease)?;
        self.cache.release_window(&mut lease)?;
        let mut blocks = Vec::new();
        self.cache.held_blocks(&lease, &mut blocks);
        let mut start = found.hit * unit;
        self.counted.prompt += prompt as u64;
        self.counted.hit += start as u64;
        let branch = lease.branch().map(|branch| branch * unit);
        while start < prompt {
            let end = prompt.min(start + self.scenario.prefill_chunk.max(1));
            let extend = Extend { start, end, prompt, branch };
            for checkpoint in self.strategy.checkpoints(&self.config, extend) {
                self.extend_blocks(&mut blocks, checkpoint.position);
                self.store(&mut lease, key(checkpoint.position / unit), &mut blocks)?;
            }
            start = end;
        }
        self.extend_blocks(&mut blocks, tokens);
        self.open.push_back(Open { lease, sequence: sequence.clone(), blocks });
        Ok(())
    }

    fn store(&mut self, lease: &mut Lease, key: Key<'_>, blocks: &mut Vec<BlockId>) -> Result<(), SimulateError> {
        let state = self.checkpoint_slot();
        let pages = (key.tokens.len() * self.extras.unit).div_ceil(self.scenario.page);
        let private = blocks.split_off(pages.min(blocks.len()));
        let (from, windows) = self.window_before(key.tokens.len());
        let window = (!windows.is_empty()).then_some(WindowSpan { from, blocks: &windows });
        let at = Progress { key, blocks, window };
        self.cache.store(lease, at, state, &mut self.out)?;
        self.cache.release_window(lease)?;
        blocks.clear();
        self.cache.held_blocks(lease, blocks);
        blocks.extend(private);
        self.take_back();
        self.note_peak();
        Ok(())
    }

    fn finish_oldest(&mut self) -> Result<(), SimulateError> {
        let Some(Open { mut lease, sequence, mut blocks }) = self.open.pop_front() else {
            return Ok(());
        };
        let Sequence { prompt, tokens, .. } = sequence;
        let namespace = self.namespace.clone();
        let (page, unit) = (self.scenario.page, self.extras.unit);
        let key = |len: usize| Key { namespace: &namespace, tokens: &sequence.symbols[..len / unit] };
        let exact = self.strategy.finish && tokens.is_multiple_of(page);
        // Where the final state has no key, what a second buffer tracked last takes its place.
        let tracked = self.strategy.decode_interval.map_or(0, |interval| tokens / interval * interval);
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
            let (from, windows) = self.window_before(tokens / page * (page / unit));
            let window = (!windows.is_empty()).then_some(WindowSpan { from, blocks: &windows });
            let at = Progress { key: key(tokens), blocks: &blocks, window };
            self.cache.finish(lease, at, state, &mut self.out)?;
        } else {
            self.out.blocks.extend(blocks.drain(lease.owned() * unit / page..));
            self.cache.abort(lease)?;
        }
        self.take_back();
        self.note_peak();
        Ok(())
    }

    /// Looks a prompt up, and loads what of the hit lies on the host.
    fn bring_back(&mut self, asked: Key<'_>, prompt: usize) -> Match {
        let found = self.cache.lookup(asked);
        let mut wanted = Wanted { state: found.host_state.filter(|_| found.state.is_none()), ..Wanted::default() };
        let is_resident = found.hit <= found.resident && found.host_window == 0;
        if is_resident && wanted.state.is_none() {
            return found;
        }
        let unit = self.extras.unit;
        let resident = self.cache.lookup_resident(asked);
        if let Some(below) = &mut self.extras.below {
            self.cache.tree().units_to_load(&found, &mut wanted.blocks, &mut wanted.windows);
            if !below.pays(&wanted, resident.hit * unit, found.hit * unit, prompt) {
                return resident;
            }
        }
        let loaded = if is_resident { Some(found) } else { self.load(&found, asked) };
        match (loaded, &mut self.extras.below) {
            (Some(loaded), Some(below)) => {
                below.loaded(&wanted, resident.hit * unit, loaded.hit * unit, prompt);
                loaded
            }
            (Some(loaded), None) => loaded,
            (None, _) => self.cache.lookup_resident(asked),
        }
    }

    /// Loads a hit, which is held while room is made for it. `None` where there is none.
    fn load(&mut self, found: &Match, asked: Key<'_>) -> Option<Match> {
        let held = self.cache.hold_to_load(found).ok()?;
        let loaded = self.load_held(found, asked);
        self.cache.let_go(held).ok()?;
        loaded
    }

    fn load_held(&mut self, found: &Match, asked: Key<'_>) -> Option<Match> {
        let mut blocks = Vec::new();
        self.extend_blocks(&mut blocks, found.hit.saturating_sub(found.resident) * self.extras.unit);
        let pages = found.host_window * self.extras.unit / self.scenario.page;
        let windows = self.window_blocks(pages).unwrap_or_default();
        if self.cache.load(found, &blocks, &windows, &mut Vec::new()).is_ok() {
            return Some(self.cache.lookup(asked));
        }
        self.blocks_used -= blocks.len();
        self.free_blocks.append(&mut blocks);
        self.out.window.extend(windows);
        self.take_back();
        None
    }

    /// Blocks for the window before a position in symbols, and where they begin; none where there is no room for them.
    fn window_before(&mut self, position: usize) -> (usize, Vec<BlockId>) {
        let symbols = self.scenario.page / self.extras.unit;
        let Some(windows) = &self.extras.windows else { return (0, Vec::new()) };
        let (pages, end) = (windows.pages, position / symbols);
        let from = end.saturating_sub(pages);
        (from * symbols, self.window_blocks(end - from).unwrap_or_default())
    }

    fn window_blocks(&mut self, pages: usize) -> Option<Vec<BlockId>> {
        let symbols = self.scenario.page / self.extras.unit;
        let free =
            |windows: &WindowPool| windows.blocks.map_or(usize::MAX, |blocks| blocks.saturating_sub(windows.used));
        let missing = pages.saturating_sub(self.extras.windows.as_ref().map(free)?);
        if missing > 0 {
            self.cache.evict_window(missing * symbols, &mut self.out);
            self.take_back();
        }
        let windows = self.extras.windows.as_mut().filter(|windows| free(windows) >= pages)?;
        windows.used += pages;
        let mut taken = Vec::with_capacity(pages);
        for _ in 0..pages {
            let free = windows.free.pop();
            taken.push(free.unwrap_or(BlockId(windows.next)));
            windows.next += u32::from(free.is_none());
        }
        Some(taken)
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
        self.open.iter().map(|open| open.sequence.tokens + self.scenario.page).sum()
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
                self.cache.evict_kv((missing - free) * self.scenario.page / self.extras.unit, &mut self.out);
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
        if let Some(windows) = &mut self.extras.windows {
            windows.used -= self.out.window.len();
            windows.free.append(&mut self.out.window);
        }
        if let Some(below) = &mut self.extras.below {
            below.offload(&self.out.offloads);
        }
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
