//! What one rank holds of a model's weights, class by class, as vLLM and SGLang divide them.
//!
//! Attention, dense blocks and shared experts are divided over the ranks that serve the same sequences (`tp`). Routed
//! experts are divided over those too, and where `ep` is larger over the data-parallel group besides: then every replica
//! runs the attention of its own sequences, and the experts of all. Norms, routers and projections down to a latent are
//! whole on every rank. Of the layers pipeline stages are taken to hold equal shares; towers and token embeddings lie on the
//! first of them and the head on the last, which has the token embeddings once more where these are the head.

use cacheplan_transforms::{WeightBytes, WeightClasses};

use crate::parallel::Parallel;
use crate::plan::WeightShare;

/// The shares of a rank of `stage` where a model's weights lie on `stages` pipeline stages.
pub(crate) fn shares(weights: &WeightBytes, parallel: Parallel, stage: u32, stages: u64) -> Vec<WeightShare> {
    let (tp, experts) = (u64::from(parallel.tp), u64::from(parallel.tp.max(parallel.ep)));
    let share = |class: &str, bytes: u64, ranks: u64| WeightShare {
        class: class.to_owned(),
        bytes,
        ranks,
        bytes_per_rank: bytes.div_ceil(ranks),
    };
    let Some(classes) = weights.classes else { return vec![share("weights", weights.bytes, tp * stages)] };
    let WeightClasses { attention, dense, routed, shared, embeddings, replicated, head, tower, whole_tower } = classes;
    let is_alone = stages == 1;
    let (is_first, is_last) = (stage == 0, u64::from(stage) + 1 == stages);
    let tokens = embeddings.saturating_sub(head);
    let here = match (is_first, is_last) {
        _ if is_alone => embeddings,
        (true, _) => tokens,
        (_, true) if head == 0 => tokens,
        (_, true) => head,
        _ => 0,
    };
    // One rank's stage has all of them, whatever they are.
    let [tower, whole_tower] = if is_alone { [0, 0] } else { [tower, whole_tower] };
    let first = |bytes: u64| if is_first { bytes } else { 0 };
    let all = [
        share("attention", attention, tp * stages),
        share("dense", dense.saturating_sub(tower), tp * stages),
        share("routed experts", routed, experts * stages),
        share("shared experts", shared, tp * stages),
        share("embeddings", here, tp),
        share("replicated", replicated.saturating_sub(whole_tower), stages),
        share("towers", first(tower), tp),
        share("whole towers", first(whole_tower), 1),
    ];
    all.into_iter().filter(|share| share.bytes > 0).collect()
}
