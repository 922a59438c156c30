//! What one rank holds of a model's weights, class by class, as vLLM and SGLang divide them.
//!
//! Attention, dense blocks and shared experts are divided over the ranks that serve the same sequences (`tp`). Routed
//! experts are divided over those too, and where `ep` is larger over the data-parallel group besides: then every replica
//! runs the attention of its own sequences, and the experts of all. Norms, routers and projections down to a latent are
//! whole on every rank. Pipeline stages are taken to hold equal shares.

use cacheplan_transforms::{WeightBytes, WeightClasses};

use crate::parallel::Parallel;
use crate::plan::WeightShare;

/// The shares of a rank where a model's weights lie on `stages` pipeline stages.
pub(crate) fn shares(weights: &WeightBytes, parallel: Parallel, stages: u64) -> Vec<WeightShare> {
    let (tp, experts) = (u64::from(parallel.tp), u64::from(parallel.tp.max(parallel.ep)));
    let share = |class: &str, bytes: u64, ranks: u64| {
        let ranks = ranks * stages;
        WeightShare { class: class.to_owned(), bytes, ranks, bytes_per_rank: bytes.div_ceil(ranks) }
    };
    let Some(WeightClasses { attention, dense, routed, shared, embeddings, replicated }) = weights.classes else {
        return vec![share("weights", weights.bytes, tp)];
    };
    let all = [
        share("attention", attention, tp),
        share("dense", dense, tp),
        share("routed experts", routed, experts),
        share("shared experts", shared, tp),
        share("embeddings", embeddings, tp),
        share("replicated", replicated, 1),
    ];
    all.into_iter().filter(|share| share.bytes > 0).collect()
}
