//! Guesses at what comes next, which one step verifies all at once.

use std::collections::HashMap;

/// The most tokens at the end of a text that are looked for further up; the fewest is one.
const LONGEST: usize = 3;

/// Stands for no token in a shorter run; no vocabulary has so many.
const NONE: u32 = u32::MAX;

/// Prompt lookup: what followed when the end of a sequence last occurred in it. It needs no weights, and helps where a
/// text repeats itself or its prompt.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lookup {
    /// Where each run of up to so many tokens last began, but for those at the end of the sequence.
    last: HashMap<[u32; LONGEST], usize>,
    /// Tokens whose runs are there.
    known: usize,
}

impl Lookup {
    /// What followed the end of `tokens` further up in them, at most `most` tokens. Of calls for one sequence, each has
    /// the tokens of the one before it, and more of them or none.
    pub(crate) fn look_up<'a>(&mut self, tokens: &'a [u32], most: usize) -> &'a [u32] {
        if most == 0 {
            return &[];
        }
        // The end itself is no earlier occurrence, but one may overlap it.
        for end in self.known.max(1)..tokens.len() {
            for length in 1..=LONGEST.min(end) {
                self.last.insert(run(&tokens[end - length..end]), end - length);
            }
        }
        self.known = tokens.len();
        let found = (1..=LONGEST.min(tokens.len())).rev().find_map(|length| {
            let start = *self.last.get(&run(&tokens[tokens.len() - length..]))?;
            let next = &tokens[start + length..];
            Some(&next[..next.len().min(most)])
        });
        found.unwrap_or_default()
    }
}

/// A run of at most so many tokens.
fn run(tokens: &[u32]) -> [u32; LONGEST] {
    std::array::from_fn(|place| tokens.get(place).copied().unwrap_or(NONE))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn look_up(tokens: &[u32], most: usize) -> &[u32] {
        Lookup::default().look_up(tokens, most)
    }

    #[rstest]
    #[case::nothing(&[], &[])]
    #[case::new(&[1, 2, 3], &[])]
    #[case::one(&[7, 1, 2, 7], &[1, 2, 7])]
    #[case::the_longest_match_wins(&[1, 2, 3, 9, 3, 8, 1, 2, 3], &[9, 3, 8])]
    #[case::the_last_of_equal_ones_wins(&[5, 1, 5, 2, 5], &[2, 5])]
    #[case::repetition(&[4, 4, 4, 4], &[4])]
    fn what_followed_before_is_guessed(#[case] tokens: &[u32], #[case] expected: &[u32]) {
        assert_eq!(look_up(tokens, 3), expected);
    }

    #[test]
    fn no_more_than_was_asked_for_is_guessed() {
        assert_eq!(look_up(&[7, 1, 2, 3, 7], 2), &[1, 2]);
        assert_eq!(look_up(&[7, 1, 2, 3, 7], 0), &[] as &[u32]);
    }

    /// As a search through the whole sequence finds it.
    fn searched(tokens: &[u32], most: usize) -> &[u32] {
        for length in (1..=LONGEST).rev().filter(|length| *length < tokens.len()) {
            let (before, end) = tokens.split_at(tokens.len() - length);
            if let Some(start) = (0..before.len()).rev().find(|&start| &tokens[start..start + length] == end) {
                let next = &tokens[start + length..];
                return &next[..next.len().min(most)];
            }
        }
        &[]
    }

    #[test]
    fn a_sequence_that_grows_is_searched_as_a_whole_one() {
        let mut state = 1u64;
        let mut tokens = Vec::new();
        let mut lookup = Lookup::default();
        for step in 0..600 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            tokens.push((state >> 33) as u32 % 7);
            // Steps that guess nothing, and such that add several tokens, lie between.
            if step % 5 != 0 {
                assert_eq!(lookup.look_up(&tokens, step % 4), searched(&tokens, step % 4), "{tokens:?}");
            }
        }
    }
}
