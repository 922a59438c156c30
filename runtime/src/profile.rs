//! What one forward needs besides what is resident, measured.

use cacheplan_managers::CountingAllocator;
use cacheplan_managers::book::{Accepted, StepMetadata, Work};
use cacheplan_managers::device::CacheManager;
use cacheplan_managers::{BookError, ManagerError, book::SequenceId};
use cacheplan_planner::Limits;
use serde::Serialize;

use crate::commit::commit;
use crate::decoder::Decoder;
use crate::draft_model::DraftModel;
use crate::error::{Result, RuntimeError};

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

/// Runs one forward of as many tokens as the plan's limits and pools admit in a step, and of whoever guesses behind it;
/// where steps verify guesses, also one of those, which needs logits for every token. The larger counts.
pub(crate) fn profile(
    decoder: &Decoder,
    draft: Option<&DraftModel>,
    caches: &mut CacheManager,
    limits: &Limits,
) -> Result<MemoryProfile> {
    if !decoder.is_counted() {
        return Err(RuntimeError::Uncounted);
    }
    let mut measure = |step: Measure| {
        let mut sequences = Vec::new();
        let profile = step
            .admit(caches, limits, &mut sequences)
            .and_then(|metadata| measured(step, decoder, draft, caches, &metadata, &sequences));
        for sequence in sequences {
            caches.finish(sequence)?;
        }
        profile
    };
    let full = measure(Measure::Full)?;
    if limits.draft_positions < 2 {
        return Ok(full);
    }
    let verifying = measure(Measure::Verifying)?;
    Ok(MemoryProfile { forward_bytes: full.forward_bytes.max(verifying.forward_bytes), ..full })
}

/// What a step computes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Measure {
    /// As many tokens as there may be.
    Full,
    /// As many guesses behind each sequence as there may be.
    Verifying,
}

/// The bytes of a step over admitted sequences.
fn measured(
    step: Measure,
    decoder: &Decoder,
    draft: Option<&DraftModel>,
    caches: &mut CacheManager,
    metadata: &StepMetadata,
    sequences: &[SequenceId],
) -> Result<MemoryProfile> {
    let tokens = vec![0; metadata.total_tokens()];
    let last_rows: Vec<u32> = metadata.last_rows().collect();
    let rows = match step {
        Measure::Full => last_rows.clone(),
        Measure::Verifying => (0..tokens.len() as u32).collect(),
    };
    let forward = || -> Result<()> {
        // What a step has of the model is there while its prediction layer or a draft goes over the same tokens.
        let had = if decoder.prediction().is_some() {
            let [logits, hidden] = decoder.forward_with_hidden(&tokens, &rows, caches, metadata)?;
            let predicted = decoder.predict(&hidden, &tokens, &last_rows, caches, metadata)?;
            [vec![logits, hidden], predicted.to_vec()].concat()
        } else {
            vec![decoder.forward(&tokens, &rows, caches, metadata)?]
        };
        if step == Measure::Full {
            return draft.map_or(Ok(()), |draft| draft.fill(&tokens, caches, metadata));
        }
        let ends = metadata.cu_seqlens.windows(2).map(|ends| Accepted::First(ends[1] - ends[0]));
        let accepted: Vec<_> = sequences.iter().copied().zip(ends).collect();
        commit(decoder, caches, &accepted)?;
        drop(had);
        Ok(())
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
}

impl Measure {
    /// Admits sequences until the step or the pools are full: such that share the tokens evenly, or of one known token with
    /// guesses behind it.
    fn admit(
        self,
        caches: &mut CacheManager,
        limits: &Limits,
        sequences: &mut Vec<SequenceId>,
    ) -> Result<StepMetadata> {
        let batch = limits.max_batch_size.min(limits.max_num_tokens).max(1);
        let share = match self {
            Self::Full => limits.max_num_tokens.div_ceil(batch),
            Self::Verifying => limits.draft_positions,
        };
        let share = share.min(limits.max_seq_len);
        let mut left = limits.max_num_tokens;
        let mut work = Vec::new();
        while left > 0 && (work.len() as u64) < batch {
            let tokens = share.min(left) as u32;
            match caches.admit(if self == Self::Full { tokens } else { 1 }) {
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
        if self == Self::Full {
            caches.step(&work, &mut metadata)?;
            return Ok(metadata);
        }
        loop {
            match caches.speculate(&work, &mut metadata) {
                Err(ManagerError::Book(BookError::Lack(_))) if work.len() > 1 => work.truncate(work.len() - 1),
                done => {
                    done?;
                    return Ok(metadata);
                }
            }
        }
    }
}
