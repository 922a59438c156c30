//! How the tokens of a step are shared out among those that decode and those whose prompts are computed.

/// What a step computes of each job, and what it could compute besides.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Shares {
    /// Tokens of each job.
    pub(super) chunks: Vec<usize>,
    /// Further tokens of any kind.
    pub(super) left: usize,
    /// Further tokens of prompts.
    pub(super) left_for_prompts: usize,
}

impl Shares {
    /// Shares `tokens` out among jobs that have so many `pending`; `chunk` says how many of those that are left a job takes.
    ///
    /// Decoding goes before prompts, so that a long prompt does not hold up those that are under way; and while any job
    /// decodes, prompts take no more than `max_prefill`, so that the next token of each comes behind a bounded step.
    /// Prompts go on in every step that has room, the oldest first.
    pub(super) fn of(
        pending: &[usize],
        tokens: usize,
        max_prefill: usize,
        chunk: impl Fn(usize, usize) -> usize,
    ) -> Self {
        let (mut chunks, mut left) = (vec![0; pending.len()], tokens);
        let decoding = |index: &usize| pending[*index] == 1;
        for index in (0..pending.len()).filter(decoding) {
            chunks[index] = chunk(index, left);
            left -= chunks[index];
        }
        let decodes = chunks.iter().any(|&chunk| chunk > 0);
        let mut left_for_prompts = if decodes { left.min(max_prefill) } else { left };
        for index in (0..pending.len()).filter(|index| !decoding(index)) {
            chunks[index] = chunk(index, left_for_prompts);
            left_for_prompts -= chunks[index];
            left -= chunks[index];
        }
        Self { chunks, left, left_for_prompts }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Steps until all are computed, with `ends` of blocks at which a step of a prompt may have to end.
        #[test]
        fn neither_decoding_nor_prompts_starve(
            mut pending in prop::collection::vec(1usize..200, 1..12),
            tokens in 12usize..64,
            max_prefill in 1usize..80,
            ends in 1usize..20,
        ) {
            while pending.iter().any(|&pending| pending > 1) {
                let chunk = |index: usize, left: usize| {
                    let most = left.min(pending[index]);
                    if most > ends { most - most % ends } else { most }
                };
                let Shares { chunks, left, left_for_prompts } = Shares::of(&pending, tokens, max_prefill, chunk);
                let prompts: usize = chunks.iter().zip(&pending).filter(|(_, pending)| **pending > 1).map(|(c, _)| c).sum();
                let decoding = pending.iter().filter(|&&pending| pending == 1).count();
                let decoded = chunks.iter().zip(&pending).filter(|(chunk, pending)| (**chunk, **pending) == (1, 1)).count();
                prop_assert_eq!(decoded, decoding, "one that decodes gets a token in every step that has room for all");
                prop_assert!(decoding == 0 || prompts <= max_prefill, "{} tokens of prompts", prompts);
                prop_assert!(prompts > 0 || decoding == tokens, "prompts stand still");
                prop_assert_eq!(chunks.iter().sum::<usize>() + left, tokens);
                prop_assert!(left_for_prompts <= left);
                let bounded = decoding == 0 || max_prefill >= tokens;
                prop_assert!(!bounded || left_for_prompts == left, "what is not bounded is for prompts too");
                // One that decodes has always one more to compute.
                for (pending, chunk) in pending.iter_mut().zip(chunks) {
                    *pending = (*pending - chunk).max(1);
                }
            }
        }
    }
}
