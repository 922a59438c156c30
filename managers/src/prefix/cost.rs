//! What it costs to compute tokens again.
//!
//! Every layer costs `a * n + b * n²` floating-point operations for the first `n` tokens, so a whole model is two
//! coefficients.

use std::iter::Sum;
use std::ops::Add;

use serde::{Deserialize, Serialize};

/// The cost of a prefill as a polynomial of its length.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// Operations per token.
    pub linear: f64,
    /// Operations per pair of tokens.
    pub quadratic: f64,
}

impl Cost {
    /// Counts tokens: the right measure where nothing is known about the model.
    pub const TOKENS: Self = Self { linear: 1.0, quadratic: 0.0 };

    /// A softmax attention layer, per device: projections `4·n·h·(heads·d + kv_heads·d)`, scores `4·n²·heads·d`.
    #[must_use]
    pub fn attention(hidden: usize, heads: usize, kv_heads: usize, head_dim: usize) -> Self {
        let inner = (heads * head_dim) as f64;
        Self { linear: 4.0 * hidden as f64 * (inner + (kv_heads * head_dim) as f64), quadratic: 4.0 * inner }
    }

    /// A linear-attention or state-space layer: scan `2·n·inner·d_state`, projections `8·n·h·inner`.
    #[must_use]
    pub fn linear_attention(hidden: usize, heads: usize, head_dim: usize, d_state: usize) -> Self {
        let inner = (heads * head_dim) as f64;
        Self { linear: 2.0 * inner * d_state as f64 + 8.0 * hidden as f64 * inner, quadratic: 0.0 }
    }

    /// A gated feed-forward layer, `6·n·h·width`. For experts, `width` is that of those active for one token.
    #[must_use]
    pub fn feed_forward(hidden: usize, width: usize) -> Self {
        Self { linear: 6.0 * hidden as f64 * width as f64, quadratic: 0.0 }
    }

    /// The cost of the first `tokens` tokens.
    #[must_use]
    pub fn of(self, tokens: usize) -> f64 {
        let n = tokens as f64;
        self.linear * n + self.quadratic * n * n
    }

    /// The cost of going on from `from` to `to` tokens.
    #[must_use]
    pub fn between(self, from: usize, to: usize) -> f64 {
        self.of(to) - self.of(from)
    }
}

impl Default for Cost {
    fn default() -> Self {
        Self::TOKENS
    }
}

impl Add for Cost {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { linear: self.linear + other.linear, quadratic: self.quadratic + other.quadratic }
    }
}

impl Sum for Cost {
    fn sum<I: Iterator<Item = Self>>(layers: I) -> Self {
        let zero = Self { linear: 0.0, quadratic: 0.0 };
        layers.fold(zero, Self::add)
    }
}
