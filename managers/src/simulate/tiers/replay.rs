//! One replay of a trace over tiers of some sizes.

use cacheplan_planner::StoredStates;

use super::answer::TierPoint;
use super::error::TiersError;
use super::question::TiersQuestion;
use super::sizes::{Kinds, Sizes, Split};
use crate::prefix::{HostTier, Provision};
use crate::simulate::below::Below;
use crate::simulate::run::{Extras, Run, WindowPool, refuse_endless};
use crate::simulate::sequence::Sequence;
use crate::simulate::{Scenario, SimulateError, TraceRequest};

/// Requests run at a time where nobody says how many.
const RUNNING: usize = 16;

/// A search replays some forty times; most are over tiers that keep little, so that all take as long as eight.
const REPLAYS: u64 = 8;

/// The most pages of all requests together.
const MAX_PAGES: usize = 1 << 27;

/// What all replays share.
pub(super) struct Replay<'a> {
    question: TiersQuestion<'a>,
    base: Scenario,
    sequences: Vec<Sequence>,
    pub(super) left_out: usize,
    /// Of KV blocks, window blocks and states.
    pub(super) unit_bytes: [usize; 3],
    /// What the plan has of each on the device.
    pub(super) planned: Kinds,
    window_pages: Option<usize>,
    /// Tokens of the longest request.
    longest: usize,
    /// More units than the trace has pages hold nothing.
    pages: usize,
}

/// What one replay is of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Job {
    pub(super) sizes: Sizes,
    pub(super) distance: usize,
    pub(super) stored: StoredStates,
}

impl<'a> Replay<'a> {
    pub(super) fn of(question: TiersQuestion<'a>, requests: &[TraceRequest]) -> Result<Self, TiersError> {
        let plan = question.plan;
        let Provision { tree, blocks, windows, checkpoints, shape } = Provision::of_plan(plan, question.chunk)?;
        let unit_bytes = [shape.block_bytes, shape.window_bytes, shape.state_bytes];
        let bytes = |units: u32, unit: usize| u64::from(units).saturating_mul(unit as u64);
        if unit_bytes[0] == 0 && !tree.states {
            return Err(TiersError::NoReuse { model: plan.model.model_type.clone() });
        }
        let base = Scenario::of_plan(plan, question.chunk)?;
        let running = question.running.unwrap_or(base.concurrency.min(RUNNING));
        let base = Scenario { concurrency: running, policy: question.policy, ..base };
        let most = plan.limits.max_seq_len;
        let served: Vec<&TraceRequest> = requests.iter().filter(|request| request.tokens() as u64 <= most).collect();
        if served.is_empty() {
            let shortest = requests.iter().map(TraceRequest::tokens).min().unwrap_or(0);
            return Err(TiersError::AllTooLong { requests: requests.len(), most, shortest });
        }
        refuse_endless(requests, base, REPLAYS)?;
        let longest = served.iter().map(|request| request.tokens()).max().unwrap_or(0);
        let pages: usize = served.iter().map(|request| request.tokens().div_ceil(tree.page)).sum();
        if pages > MAX_PAGES {
            return Err(SimulateError::TooMuch { tokens: pages.saturating_mul(tree.page), steps: pages }.into());
        }
        let window_pages =
            tree.window.filter(|_| unit_bytes[1] > 0).map(|window| (window - 1).div_ceil(tree.page).max(1));
        // Windows of running requests are their own.
        let live = window_pages.map_or(0, |pages| running.saturating_mul(pages + 1));
        let windows = windows.saturating_sub(u32::try_from(live).unwrap_or(u32::MAX));
        let planned = Kinds {
            keys: bytes(blocks, unit_bytes[0]),
            windows: bytes(windows, unit_bytes[1]),
            states: bytes(checkpoints, unit_bytes[2]),
        };
        let sequences = served.iter().map(|request| Sequence::of(request, tree.page)).collect();
        let left_out = requests.len() - served.len();
        Ok(Self { question, base, sequences, left_out, unit_bytes, planned, window_pages, longest, pages })
    }

    pub(super) fn requests(&self) -> usize {
        self.sequences.len()
    }

    pub(super) fn prompt_tokens(&self) -> u64 {
        self.sequences.iter().map(|sequence| sequence.prompt as u64).sum()
    }

    pub(super) fn base(&self) -> &Scenario {
        &self.base
    }

    pub(super) fn has_windows(&self) -> bool {
        self.window_pages.is_some()
    }

    /// Says what the device lacks for one request.
    pub(super) fn too_small(&self) -> TiersError {
        let needed = ((self.longest / self.base.page + 2) * self.unit_bytes[0]) as u64;
        TiersError::TooSmall { found: self.planned.keys, needed, tokens: self.longest }
    }

    /// Replays with room for everything on the device.
    pub(super) fn ceiling(&self) -> Result<f64, TiersError> {
        let scenario = Scenario { kv_tokens: None, checkpoints: None, host: None, ..self.base };
        let windows = self.window_pages.map(|pages| WindowPool::new(pages, None));
        let mut run = Run::with(scenario, Extras { unit: self.base.page, windows, below: None })?;
        for sequence in &self.sequences {
            run.give_way()?;
            run.begin(sequence)?;
        }
        let (counted, _) = run.end()?;
        Ok(rate(counted.hit, counted.prompt))
    }

    /// Bytes of a state below the device.
    pub(super) fn stored_bytes(&self, stored: StoredStates) -> usize {
        let own = self.unit_bytes[2];
        match stored {
            StoredStates::Own => own,
            // What nothing would make smaller stays.
            _ => self
                .question
                .plan
                .stored_state_bytes(stored)
                .and_then(|bytes| usize::try_from(bytes).ok())
                .unwrap_or(own),
        }
    }

    /// Replays with tiers of these sizes. `None` where the device holds no request of the longest.
    pub(super) fn run(&self, job: Job) -> Result<Option<TierPoint>, TiersError> {
        let Job { sizes, distance, stored } = job;
        let page = self.base.page;
        let [block, window, state] = self.unit_bytes;
        let units = |bytes: u64, unit: usize| match unit {
            // What takes no bytes there is room for.
            0 => self.pages,
            _ => usize::try_from(bytes / unit as u64).unwrap_or(usize::MAX).min(self.pages),
        };
        let stored_state = self.stored_bytes(stored);
        let of = |kinds: Kinds| HostTier {
            blocks: u32::try_from(units(kinds.keys, block)).unwrap_or(u32::MAX),
            windows: u32::try_from(units(kinds.windows, window)).unwrap_or(u32::MAX),
            slots: u32::try_from(units(kinds.states, stored_state)).unwrap_or(u32::MAX),
        };
        let device_blocks =
            usize::try_from(sizes.device.keys.checked_div(block as u64).unwrap_or(0)).unwrap_or(usize::MAX);
        let kv_tokens = (block > 0).then(|| device_blocks.saturating_mul(page));
        if kv_tokens.is_some_and(|tokens| tokens < self.longest + page) {
            return Ok(None);
        }
        let (host, disk) = (of(sizes.host), of(sizes.disk));
        let both = HostTier {
            blocks: host.blocks.saturating_add(disk.blocks),
            windows: host.windows.saturating_add(disk.windows),
            slots: host.slots.saturating_add(disk.slots),
        };
        let has_lower = sizes.host.bytes() > 0 || sizes.disk.bytes() > 0;
        let scenario = Scenario {
            checkpoints: Some(units(sizes.device.states, state)).filter(|_| self.base.states),
            kv_tokens,
            host: has_lower.then_some(both),
            prefill_chunk: distance,
            ..self.base
        };
        let links = self.question.links;
        let bytes = [block, window, stored_state];
        let below = has_lower.then(|| Below::new(host, bytes, page, links, self.question.compute));
        let windows = self.window_pages.map(|pages| WindowPool::new(pages, Some(units(sizes.device.windows, window))));
        let mut run = Run::with(scenario, Extras { unit: page, windows, below })?;
        for sequence in &self.sequences {
            run.give_way()?;
            run.begin(sequence)?;
        }
        let (counted, moved) = run.end()?;
        let lower = Kinds {
            keys: sizes.host.keys.saturating_add(sizes.disk.keys),
            windows: sizes.host.windows.saturating_add(sizes.disk.windows),
            states: sizes.host.states.saturating_add(sizes.disk.states),
        };
        Ok(Some(TierPoint {
            sizes,
            device_split: Split::in_proportion_to(sizes.device),
            lower_split: Split::in_proportion_to(lower),
            distance,
            stored,
            hit_rate: rate(counted.hit, counted.prompt),
            hit_tokens: counted.hit,
            moved,
        }))
    }
}

fn rate(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}
