//! Which graph computes how many of a sequence's tokens.

use crate::error::{Result, RuntimeError};

/// One run of one graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Call {
    pub(super) graph: usize,
    /// The sequence's place in the step.
    pub(super) sequence: usize,
    /// The first row of the step.
    pub(super) row: usize,
    /// Tokens of the sequence that are there already.
    pub(super) past: usize,
    /// Tokens that are computed.
    pub(super) tokens: usize,
    /// Tokens that the graph takes, those that pad included.
    pub(super) size: usize,
}

/// The calls that compute `tokens` tokens behind `past`, with graphs of the given sizes.
///
/// A graph of just that size comes first, then one of any size, then the next larger one, padded, then the largest one
/// for a part of the tokens: in the end one by one. No call reaches beyond `limit`, padding included.
pub(super) fn calls(
    sizes: &[Option<usize>],
    pads: bool,
    limit: Option<usize>,
    mut past: usize,
    mut tokens: usize,
    sequence: usize,
    mut row: usize,
) -> Result<Vec<Call>> {
    let mut calls = Vec::new();
    let too_long = || past.saturating_add(tokens);
    if let Some(limit) = limit.filter(|&limit| too_long() > limit) {
        return Err(RuntimeError::BeyondGraph { tokens: too_long(), limit });
    }
    while tokens > 0 {
        let fits = |size: usize| limit.is_none_or(|limit| past + size <= limit);
        let fixed = || sizes.iter().enumerate().filter_map(|(graph, size)| Some((graph, (*size)?)));
        let exact = fixed().find(|(_, size)| *size == tokens);
        let open = || sizes.iter().position(Option::is_none).map(|graph| (graph, tokens));
        let padded = || fixed().filter(|(_, size)| pads && *size > tokens && fits(*size)).min_by_key(|(_, size)| *size);
        let part = || fixed().filter(|(_, size)| *size < tokens).max_by_key(|(_, size)| *size);
        let chosen = exact.or_else(open).or_else(padded).or_else(part);
        let (graph, size) = chosen.ok_or_else(|| RuntimeError::NoBucket { tokens, past, sizes: sizes.to_vec() })?;
        let some = size.min(tokens);
        calls.push(Call { graph, sequence, row, past, tokens: some, size });
        (past, row, tokens) = (past + some, row + some, tokens - some);
    }
    Ok(calls)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    /// Each call as graph, tokens and size.
    #[rstest]
    #[case::decode(&[None, Some(1)], 40, 1, &[(1, 1, 1)])]
    #[case::any_number(&[None, Some(1)], 0, 13, &[(0, 13, 13)])]
    #[case::just_that(&[Some(64), None, Some(13)], 0, 13, &[(2, 13, 13)])]
    #[case::padded(&[Some(1), Some(64), Some(16)], 0, 13, &[(2, 13, 16)])]
    #[case::cut_and_padded(&[Some(1), Some(16)], 0, 40, &[(1, 16, 16), (1, 16, 16), (1, 8, 16)])]
    #[case::no_room_for_padding(&[Some(1), Some(16)], 125, 3, &[(0, 1, 1), (0, 1, 1), (0, 1, 1)])]
    #[case::one_by_one(&[Some(1)], 0, 3, &[(0, 1, 1), (0, 1, 1), (0, 1, 1)])]
    #[case::one_of_any_number(&[None], 5, 1, &[(0, 1, 1)])]
    fn tokens_go_to_the_graph_that_suits_them(
        #[case] sizes: &[Option<usize>],
        #[case] past: usize,
        #[case] tokens: usize,
        #[case] expected: &[(usize, usize, usize)],
    ) {
        let calls = calls(sizes, true, Some(128), past, tokens, 0, 7).unwrap();
        let found: Vec<_> = calls.iter().map(|call| (call.graph, call.tokens, call.size)).collect();
        assert_eq!(found, expected);
        let mut at = (past, 7);
        for call in &calls {
            assert_eq!((call.past, call.row), at);
            at = (at.0 + call.tokens, at.1 + call.tokens);
        }
    }

    #[test]
    fn what_no_graph_takes_is_refused() {
        assert!(matches!(calls(&[Some(16)], true, Some(128), 120, 5, 0, 0), Err(RuntimeError::NoBucket { .. })));
        assert!(matches!(calls(&[Some(16)], false, Some(128), 0, 5, 0, 0), Err(RuntimeError::NoBucket { .. })));
        assert!(matches!(calls(&[None], true, Some(128), 120, 9, 0, 0), Err(RuntimeError::BeyondGraph { .. })));
    }
}
