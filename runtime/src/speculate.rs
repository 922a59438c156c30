//! Guesses at what comes next, which one step verifies all at once.

use std::collections::HashMap;

/// The most tokens at the end of a text that are looked for further up; the fewest is one.
const LONGEST: usize = 3;

/// Continuations of a tree at most, each the newest of its kind.
const BRANCHES: usize = 4;

/// Stands for no token in a shorter run; no vocabulary has so many.
const NONE: u32 = u32::MAX;

/// Prompt lookup: what followed when the end of a sequence last occurred in it. It needs no weights, and helps where a
/// text repeats itself or its prompt.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lookup {
    /// Where each run of up to so many tokens began the last times, the newest first, but for those at the end of the
    /// sequence.
    last: HashMap<[u32; LONGEST], Vec<usize>>,
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
        self.learn(tokens);
        self.continuations(tokens).next().map(|next| &next[..next.len().min(most)]).unwrap_or_default()
    }

    /// The same for several occurrences, as a tree of at most `most` tokens: what followed the longest run and the last
    /// time has half of them, the others share the rest.
    pub(crate) fn look_up_tree(&mut self, tokens: &[u32], most: usize) -> Guesses {
        self.learn(tokens);
        let mut tree = Guesses::default();
        let branches: Vec<&[u32]> = self.continuations(tokens).take(BRANCHES).collect();
        let Some(first) = branches.first() else { return tree };
        tree.add(&first[..first.len().min(most.div_ceil(2))]);
        for depth in 1..=most {
            for branch in branches.iter().filter(|branch| branch.len() >= depth) {
                if tree.tokens.len() < most {
                    tree.add(&branch[..depth]);
                }
            }
        }
        tree
    }

    /// What followed the end of `tokens` before: behind the longest runs first, and of equal ones the last.
    fn continuations<'a>(&self, tokens: &'a [u32]) -> impl Iterator<Item = &'a [u32]> {
        (1..=LONGEST.min(tokens.len())).rev().flat_map(move |length| {
            let starts = self.last.get(&run(&tokens[tokens.len() - length..]));
            starts.into_iter().flatten().map(move |start| &tokens[start + length..])
        })
    }

    fn learn(&mut self, tokens: &[u32]) {
        // The end itself is no earlier occurrence, but one may overlap it.
        for end in self.known.max(1)..tokens.len() {
            for length in 1..=LONGEST.min(end) {
                let starts = self.last.entry(run(&tokens[end - length..end])).or_default();
                starts.truncate(BRANCHES - 1);
                starts.insert(0, end - length);
            }
        }
        self.known = tokens.len();
    }
}

/// Guessed tokens that may branch: each with the place that it follows, 0 for the known token before all, and N for the
/// Nth guess, which is an earlier one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Guesses {
    pub(crate) tokens: Vec<u32>,
    pub(crate) parents: Vec<u32>,
}

impl Guesses {
    /// Tokens that each follow the one before.
    pub(crate) fn chain(tokens: Vec<u32>) -> Self {
        let parents = (0..tokens.len() as u32).collect();
        Self { tokens, parents }
    }

    /// Whether each follows the one before.
    pub(crate) fn is_chain(&self) -> bool {
        self.parents.iter().zip(0..).all(|(parent, place)| *parent == place)
    }

    /// The place of a guess behind another, or behind the known token.
    pub(crate) fn behind(&self, place: usize, token: u32) -> Option<usize> {
        let found = |at: &usize| (self.parents[*at] as usize, self.tokens[*at]) == (place, token);
        (0..self.tokens.len()).find(found).map(|at| at + 1)
    }

    /// Adds what is new of a continuation.
    fn add(&mut self, continuation: &[u32]) {
        let mut place = 0;
        for &token in continuation {
            place = self.behind(place, token).unwrap_or_else(|| {
                self.parents.push(place as u32);
                self.tokens.push(token);
                self.tokens.len()
            });
        }
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

    #[rstest]
    #[case::nothing(&[1, 2, 3], 4, &[], &[])]
    #[case::one_continuation_is_a_chain(&[7, 1, 2, 7], 3, &[1, 2, 7], &[0, 1, 2])]
    #[case::two_that_differ_at_once(&[5, 1, 2, 5, 3, 4, 5], 4, &[3, 4, 1, 2], &[0, 1, 0, 3])]
    #[case::two_that_begin_alike(&[5, 1, 2, 9, 5, 1, 4, 9, 5], 5, &[1, 4, 9, 2, 9], &[0, 1, 2, 1, 4])]
    #[case::the_newest_has_half(&[5, 1, 1, 5, 2, 2, 5, 3, 3, 5], 4, &[3, 3, 2, 1], &[0, 1, 0, 0])]
    fn several_continuations_make_a_tree(
        #[case] tokens: &[u32],
        #[case] most: usize,
        #[case] guessed: &[u32],
        #[case] parents: &[u32],
    ) {
        let tree = Lookup::default().look_up_tree(tokens, most);
        assert_eq!((tree.tokens.as_slice(), tree.parents.as_slice()), (guessed, parents));
        assert_eq!(tree.is_chain(), parents.iter().copied().eq(0..parents.len() as u32));
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
