//! What one forward needs besides what is resident, measured.

use cacheplan_managers::CountingAllocator;
use cacheplan_managers::book::{StepMetadata, Work};
use cacheplan_managers::device::CacheManager;
use cacheplan_managers::{BookError, ManagerError, book::SequenceId};
use cacheplan_planner::Limits;
use serde::Serialize;

use crate::decoder::Decoder;
use crate::draft_model::DraftModel;
use crate::error::RuntimeError;

/// The measurement of one forward over a full step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MemoryProfile {
    /// Sequences in the step.
    pub sequences: u64,
    /// Tokens in the step.
    pub tokens: u64,
    /// Bytes that were there before the forward, caches included.
    pub resident_bytes: u64,
    /// The most bytes that the forward had beyond those.
    pub forward_bytes: u64,
    /// What counted the bytes.
    pub method: &'static str,
}

/// Runs one forward of as many tokens as the plan's limits and pools admit in a step, and of whoever guesses behind it.
pub(crate) fn profile(
    decoder: &Decoder,
    draft: Option<&DraftModel>,
    caches: &mut CacheManager,
    limits: &Limits,
) -> Result<MemoryProfile, RuntimeError> {
    if !decoder.is_counted() {
        return Err(RuntimeError::Uncounted);
    }
    let mut sequences = Vec::new();
    let profile = admit_step(caches, limits, &mut sequences).and_then(|metadata| {
        let tokens = vec![0; metadata.total_tokens()];
        let last_rows: Vec<u32> = metadata.cu_seqlens[1..].iter().map(|end| end - 1).collect();
        let forward = || -> Result<(), RuntimeError> {
            // What a step has of the model is there while its prediction layer or a draft goes over the same tokens.
            let rows = if decoder.prediction().is_some() {
                let [logits, hidden] = decoder.forward_with_hidden(&tokens, &last_rows, caches, &metadata)?;
                let predicted = decoder.predict(&hidden, &tokens, &last_rows, caches, &metadata)?;
                [vec![logits, hidden], predicted.to_vec()].concat()
            } else {
                vec![decoder.forward(&tokens, &last_rows, caches, &metadata)?]
            };
            let filled = draft.map_or(Ok(()), |draft| draft.fill(&tokens, caches, &metadata));
            drop(rows);
            filled
        };
        let (forward, peak) = CountingAllocator::measure_peak(&decoder.device(), forward);
        forward?;
        let peak = peak.ok_or(RuntimeError::Unmeasured)?;
        Ok(MemoryProfile {
            sequences: last_rows.len() as u64,
            tokens: tokens.len() as u64,
            resident_bytes: decoder.mapped_bytes() + peak.resident_bytes,
            forward_bytes: peak.beyond_bytes,
            method: peak.method,
        })
    });
    for sequence in sequences {
        caches.finish(sequence)?;
    }
    profile
}

/// Admits sequences that share the tokens of a step evenly, until the pools are full.
fn admit_step(
    caches: &mut CacheManager,
    limits: &Limits,
    sequences: &mut Vec<SequenceId>,
) -> Result<StepMetadata, RuntimeError> {
    let batch = limits.max_batch_size.min(limits.max_num_tokens).max(1);
    let share = limits.max_num_tokens.div_ceil(batch).min(limits.max_seq_len);
    let mut left = limits.max_num_tokens;
    let mut work = Vec::new();
    while left > 0 && (work.len() as u64) < batch {
        let tokens = share.min(left) as u32;
        match caches.admit(tokens) {
            Ok(sequence) => {
                sequences.push(sequence);
                work.push(Work { sequence, tokens });
            }
            Err(ManagerError::Book(BookError::Lack(_))) if !work.is_empty() => break,
            Err(error) => return Err(error.into()),
        }
        left -= u64::from(tokens);
    }
    let mut metadata = StepMetadata::default();
    caches.step(&work, &mut metadata)?;
    Ok(metadata)
}
