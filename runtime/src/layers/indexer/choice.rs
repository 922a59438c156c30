//! What the tokens of a step see.

use std::ops::Range;

use cacheplan_kernels::Chosen;
use cacheplan_managers::book::StepMetadata;

/// What the tokens of a step see: those of the keys that were chosen, and those behind the last key.
#[derive(Clone, Debug)]
pub(crate) struct Choice {
    starts: Vec<u32>,
    positions: Vec<u32>,
}

impl Choice {
    /// As attention takes it.
    pub(crate) fn chosen(&self) -> Chosen<'_> {
        Chosen { starts: &self.starts, positions: &self.positions }
    }

    /// The tokens of the chosen `entries` of each row, and those before it that no whole entry has.
    pub(super) fn of(entries: &[Vec<u32>], stride: usize, metadata: &StepMetadata) -> Self {
        let (mut starts, mut positions, stride) = (vec![0], Vec::new(), stride as u32);
        for (sequence, rows) in sequences(metadata) {
            for row in rows.clone() {
                let seen = match metadata.kv_lens[sequence] {
                    0 => 0,
                    kv_len => kv_len - (rows.end - row - 1) as u32,
                };
                positions.extend(entries[row].iter().flat_map(|entry| entry * stride..(entry + 1) * stride));
                positions.extend(seen / stride * stride..seen);
                starts.push(positions.len() as u32);
            }
        }
        Self { starts, positions }
    }
}

/// The sequences of a step with their rows.
pub(super) fn sequences(metadata: &StepMetadata) -> impl Iterator<Item = (usize, Range<usize>)> + '_ {
    metadata.cu_seqlens.windows(2).map(|ends| ends[0] as usize..ends[1] as usize).enumerate()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_sees_the_tokens_of_chosen_keys_and_those_without_one() {
        let metadata = StepMetadata { cu_seqlens: vec![0, 2, 3, 5], kv_lens: vec![9, 2, 0], ..StepMetadata::default() };
        // Positions 7 and 8, position 1, and padding.
        let entries = [vec![0], vec![0, 1], vec![], vec![], vec![]];
        let choice = Choice::of(&entries, 3, &metadata);
        let of = |row: usize| &choice.positions[choice.starts[row] as usize..choice.starts[row + 1] as usize];
        assert_eq!(of(0), [0, 1, 2, 6, 7]);
        assert_eq!(of(1), [0, 1, 2, 3, 4, 5]);
        assert_eq!(of(2), [0, 1]);
        assert_eq!((of(3), of(4)), (&[][..], &[][..]));
    }
}
