//! What sizes follow from, read from the request alone.

use std::collections::HashSet;

use cacheplan_handlers::Growth;

use crate::budget::{Lengths, Sample};
use crate::error::PlanError;
use crate::plan::{CachePlan, Pool, Unit};
use crate::solver::inputs::Inputs;

/// What sizes follow from, read from the request alone.
pub(super) struct Facts<'a> {
    /// Resources that only running sequences have.
    speculative: HashSet<&'a str>,
    pub(super) seq_len: u64,
    pub(super) step_tokens: u64,
    pub(super) positions: u64,
    context_ranks: u64,
    pub(super) checkpoints: u64,
    /// Whether checkpoints have pools of their own.
    pub(super) apart: bool,
    reuse_millionths: u64,
    samples: Vec<Sample>,
    pub(super) tokens_per_block: u64,
}

/// What is in a step: its tokens, and those of them whose next is chosen.
#[derive(Clone, Copy)]
pub(super) struct StepSize {
    pub(super) tokens: u128,
    pub(super) candidates: u128,
}

impl<'a> Facts<'a> {
    pub(super) fn of(request: &Inputs<'_>, plan: &'a CachePlan) -> Result<Self, PlanError> {
        let budget = request.budget;
        let seq_len = budget.max_seq_len.unwrap_or_else(|| match request.model.max_position_embeddings {
            Some(longest) if longest < 4096 || request.model.step_tokens.is_some() => longest.max(1),
            _ => 4096,
        });
        let workload = budget.workload.as_ref();
        // A prompt or an output of 0 tokens is one that is not stated.
        let stated = workload.filter(|workload| [&workload.prompt, &workload.output] != [&Lengths::Fixed(0); 2]);
        let samples = match stated {
            Some(workload) => workload.samples(seq_len).map_err(PlanError::Budget)?,
            None => vec![Sample { prompt: seq_len, total: seq_len, weight: 1 }],
        };
        let reuse = workload.and_then(|workload| workload.prefix_reuse).map_or(0.0, f64::from);
        let speculative =
            plan.resources.iter().filter(|resource| resource.handler.growth() == Growth::PerDraftPosition);
        Ok(Self {
            speculative: speculative.map(|resource| resource.name.as_str()).collect(),
            seq_len,
            step_tokens: budget.max_num_tokens.unwrap_or(2048),
            positions: budget.speculation.as_ref().map_or(0, |speculation| u64::from(speculation.draft_tokens)) + 1,
            context_ranks: u64::from(budget.parallel.cp) * u64::from(budget.parallel.dcp),
            checkpoints: workload.map_or(0, |workload| workload.checkpoints_per_sequence),
            apart: workload.is_some_and(|workload| workload.checkpoint_dtype.is_some()),
            reuse_millionths: (reuse * 1e6).round() as u64,
            samples,
            tokens_per_block: budget.tokens_per_block.unwrap_or(16),
        })
    }

    /// The mean length of all sequences, rounded up.
    pub(super) fn tokens_per_sequence(&self) -> u128 {
        let (mut tokens, mut weights) = (0, 0);
        for sample in &self.samples {
            tokens += u128::from(sample.total) * u128::from(sample.weight);
            weights += u128::from(sample.weight);
        }
        tokens / weights + u128::from(!tokens.is_multiple_of(weights))
    }

    /// Tokens of a sequence on this rank.
    fn held(&self, tokens: u64) -> u128 {
        let written = u128::from(tokens) + u128::from(self.positions) - 1;
        written / u128::from(self.context_ranks) + u128::from(!written.is_multiple_of(self.context_ranks.into()))
    }

    fn is_speculative(&self, pool: &Pool) -> bool {
        pool.members.iter().all(|member| self.speculative.contains(&*member.resource))
    }

    /// Whether a sequence that leaves the device takes its share of the pool along.
    pub(super) fn is_parked(&self, pool: &Pool) -> bool {
        pool.unit == Unit::Block || (pool.unit == Unit::Slot && !self.is_speculative(pool))
    }

    /// Units that a pool needs for this many sequences and spare tokens.
    pub(super) fn units(&self, pool: &Pool, sequences: u64, spare: u64) -> u128 {
        let slots = 1 + u128::from(sequences);
        let checkpoints = u128::from(sequences) * u128::from(self.checkpoints);
        match (pool.unit, pool.tokens_per_block) {
            (Unit::Fixed, _) => 1,
            _ if pool.checkpoints_of.is_some() => checkpoints,
            (Unit::Slot, _) if self.apart || self.is_speculative(pool) => slots,
            (Unit::Slot, _) => slots + checkpoints,
            (Unit::Block, Some(block)) if block > 0 => {
                let grown = if pool.window.is_none() { u128::from(spare.div_ceil(block)) } else { 0 };
                1 + self.blocks(block.into(), pool.window.map(u128::from), sequences.into()) + grown
            }
            (Unit::Block, _) => 0,
        }
    }

    fn blocks(&self, block: u128, window: Option<u128>, sequences: u128) -> u128 {
        let up = |tokens: u128, unit: u128| tokens / unit + u128::from(!tokens.is_multiple_of(unit));
        let resting = |tokens: u64| {
            let all = up(self.held(tokens), block);
            window.map_or(all, |window| all.min(up(window - 1, block) + 1))
        };
        let common = |prompt: u64| match window {
            Some(_) => 0,
            None => {
                let prompt = u128::from(prompt / self.context_ranks);
                prompt * u128::from(self.reuse_millionths) / 1_000_000 / block
            }
        };
        let (mut own, mut all, mut weights, mut shared) = (0, 0, 0, 0);
        for sample in &self.samples {
            let weight = u128::from(sample.weight);
            // A sequence writes its own last block, whatever of its prompt others have too.
            let blocks = up(self.held(sample.total), block);
            let common = common(sample.prompt).min(blocks.saturating_sub(1));
            let full = blocks - common;
            own += weight * full.min(resting(sample.total));
            all += weight * full;
            weights += weight;
            shared = shared.max(common);
        }
        let mean = |weighted: u128, sequences: u128| up(sequences * weighted, weights);
        let entered = |sequences: u128| match window {
            None => 0,
            // Hand out the step's tokens: what brings a sequence into its next block first, whole blocks then.
            Some(window) => {
                let step = u128::from(self.step_tokens).max(sequences * u128::from(self.positions));
                let into_next = up(window - 1, block) * block - (window - 1) + 1;
                let spare = step.saturating_sub(sequences);
                let served = sequences.min(spare / into_next);
                served + (spare - served * into_next) / block
            }
        };
        let longest = up(self.held(self.seq_len), block).min(resting(self.seq_len) + entered(1));
        (mean(own, sequences) + entered(sequences)).min(mean(all, sequences)).saturating_add(shared).max(longest)
    }

    /// What a step of so many sequences holds: as many tokens as the budget lets it, and never less than every candidate.
    pub(super) fn step(&self, sequences: u64) -> StepSize {
        let candidates = u128::from(sequences) * u128::from(self.positions);
        StepSize { tokens: candidates.max(self.step_tokens.into()), candidates }
    }

    /// Bytes of all paged pools and of all others.
    pub(super) fn bytes(&self, plan: &CachePlan, sequences: u64, spare: u64) -> (u128, u128) {
        plan.pools.iter().fold((0, 0), |(paged, other), pool| {
            let bytes = self.units(pool, sequences, spare) * u128::from(pool.unit_bytes);
            if pool.unit == Unit::Block { (paged + bytes, other) } else { (paged, other + bytes) }
        })
    }
}
