//! Guesses at what comes next, which one step verifies all at once.

/// The most and the fewest tokens at the end of a text that are looked for further up.
const LONGEST: usize = 3;
const SHORTEST: usize = 1;

/// What followed when the end of `tokens` last occurred in them, at most `most` tokens: prompt lookup. It needs no
/// weights, and helps where a text repeats itself or its prompt.
pub(crate) fn look_up(tokens: &[u32], most: usize) -> &[u32] {
    for length in (SHORTEST..=LONGEST).rev().filter(|length| *length < tokens.len()) {
        let (before, end) = tokens.split_at(tokens.len() - length);
        // The end itself is no earlier occurrence, but one may overlap it.
        let found = (0..before.len()).rev().find(|&start| &tokens[start..start + length] == end);
        if let Some(start) = found {
            let next = &tokens[start + length..];
            return &next[..next.len().min(most)];
        }
    }
    &[]
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

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
}
