//! What one rank has of a step besides weights and caches, under the engine that runs it.

use super::inputs::Inputs;
use super::step::{LOGIT_BYTES, StepBytes, StepSize};

/// What one rank has of a step, under the engine that runs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RankStep {
    /// Bytes of a token in the widest layer.
    pub(crate) of_token: u64,
    /// Bytes of a sequence whose next token is chosen.
    pub(crate) of_logits: u64,
    /// Bytes of the buffer for an indexer's keys, however large the step.
    pub(crate) of_index: u64,
}

impl RankStep {
    /// That of `step` on each rank.
    pub(crate) fn of(step: StepBytes, request: &Inputs<'_>) -> Self {
        let logit_bytes = request.engine.map_or(LOGIT_BYTES, |engine| engine.logit_bytes);
        let indexed = request.engine.map_or(0, |engine| engine.indexed_sequences);
        let indexed = indexed.saturating_mul(request.budget.max_seq_len_for(request.model));
        let chunks = request.engine.is_some_and(|engine| engine.chunks_delta_rules);
        let of_rank =
            |[whole, divided]: [u64; 2]| whole.saturating_add(divided.div_ceil(request.budget.parallel.tp.into()));
        let in_chunks = if chunks { of_rank(step.chunked) } else { 0 };
        Self {
            of_token: of_rank([step.whole, step.divided]).max(in_chunks),
            of_logits: step.vocab.saturating_mul(logit_bytes),
            of_index: step.index_key.saturating_mul(indexed),
        }
    }

    /// Bytes of a step.
    pub(crate) fn peak(&self, size: StepSize) -> u64 {
        self.in_layers(size).max(self.of_rows(size)).saturating_add(self.of_index)
    }

    /// Whether its tokens in the widest layer take more than its logits.
    pub(crate) fn is_widest_in_layers(&self, size: StepSize) -> bool {
        self.in_layers(size) >= self.of_rows(size)
    }

    const fn in_layers(&self, size: StepSize) -> u64 {
        size.tokens.saturating_mul(self.of_token)
    }

    const fn of_rows(&self, size: StepSize) -> u64 {
        size.logit_rows.saturating_mul(self.of_logits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 8,192 tokens in the widest layer, or 1,024 sequences' logits.
    #[test]
    fn a_step_takes_what_its_layers_or_its_logits_do() {
        let step = RankStep { of_token: 100, of_logits: 1000, of_index: 7 };
        assert_eq!(step.peak(StepSize { tokens: 8192, logit_rows: 1 }), 819_207);
        assert_eq!(step.peak(StepSize { tokens: 8192, logit_rows: 1024 }), 1_024_007);
    }
}
