//! A request as the tree is asked for it.

use super::trace::{TraceRequest, mix};
use crate::prefix::Token;

/// A request with a symbol for each unit of its tokens.
///
/// Where the unit is a page, equal pages have equal symbols: what the tree finds is the same, and of a prompt of a
/// thousand pages it compares a thousand numbers. Two pages of one symbol behind the same pages are as good as never.
#[derive(Clone, Debug)]
pub(super) struct Sequence {
    pub(super) symbols: Vec<Token>,
    /// Tokens of the prompt.
    pub(super) prompt: usize,
    /// Tokens of prompt and output.
    pub(super) tokens: usize,
    pub(super) tenant: u16,
}

impl Sequence {
    pub(super) fn of(request: &TraceRequest, unit: usize) -> Self {
        let prompt = request.prompt.iter().map(super::Piece::len).sum();
        let mut tokens = Vec::with_capacity(prompt + request.output.len());
        request.prompt.iter().chain([&request.output]).for_each(|piece| piece.expand(&mut tokens));
        let all = tokens.len();
        if unit > 1 {
            let symbol = |page: &[Token]| page.iter().fold(0_u64, |sum, &token| mix(sum ^ u64::from(token) ^ 1 << 40));
            tokens = tokens.chunks(unit).map(|page| symbol(page) as Token).collect();
        }
        Self { symbols: tokens, prompt, tokens: all, tenant: request.tenant }
    }
}
