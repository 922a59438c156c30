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
    use cacheplan_transforms::{Model, ReadOptions};

    use super::*;
    use crate::engines::EngineSpec;

    /// vLLM logged 1.44 GiB for steps of 8,192 tokens and 1,024 sequences (`vllm-0.3x-llama-3.1-8b.log`).
    #[test]
    fn the_peak_of_llama_is_near_what_vllm_logged() {
        let config =
            concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/configs/meta-llama__Llama-3.1-8B-Instruct.json");
        let step = StepBytes::of(&Model::read(config.as_ref(), &ReadOptions::default()).unwrap()).unwrap();
        let peak = |engine: Option<&str>| {
            let engine = engine.map(|engine| engine.parse::<EngineSpec>().unwrap().assumptions());
            let of_logits = step.vocab * engine.map_or(LOGIT_BYTES, |engine| engine.logit_bytes);
            let step = RankStep { of_token: step.whole + step.divided, of_logits, of_index: 0 };
            step.peak(StepSize { tokens: 8192, logit_rows: 1024 }) as f64 / f64::from(1 << 30)
        };
        let plain = peak(None);
        assert!((1.0..1.44).contains(&plain) && plain * 1.5 > 1.44, "{plain}");
        let vllm = peak(Some("vllm@0.33.0"));
        assert!((vllm - 1.44).abs() < 0.35 * 1.44, "{vllm}");
    }

    /// 8,192 tokens in the widest layer, or 1,024 sequences' logits.
    #[test]
    fn a_step_takes_what_its_layers_or_its_logits_do() {
        let step = RankStep { of_token: 100, of_logits: 1000, of_index: 7 };
        assert_eq!(step.peak(StepSize { tokens: 8192, logit_rows: 1 }), 819_207);
        assert_eq!(step.peak(StepSize { tokens: 8192, logit_rows: 1024 }), 1_024_007);
    }
}
