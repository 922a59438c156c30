//! What each op computes, written once more in f64, one token after the other, as the papers state it.
//!
//! These functions are slow and plain on purpose. They share no code with the ops, take plain slices in row-major
//! order, know no pools, and are what the ops are tested against; they are themselves checked against the inputs
//! and outputs of Hugging Face's implementations.

mod attention;
mod conv1d;
mod experts;
mod index_scores;
mod linear;
mod linear_attention;
mod mamba;
mod mla;
mod norm;
mod rg_lru;
mod rope;

pub(crate) use attention::{AttentionCase, attention};
pub(crate) use conv1d::causal_conv1d;
pub(crate) use experts::{expert, route};
pub(crate) use index_scores::index_scores;
pub(crate) use linear::linear;
pub(crate) use linear_attention::{LinearAttentionCase, linear_attention};
pub(crate) use mamba::{MambaCase, mamba};
pub(crate) use mla::{MlaCase, MlaQuant, mla_preprocess};
pub(crate) use norm::gated_rms_norm;
pub(crate) use rg_lru::rg_lru;
pub(crate) use rope::rotate;

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn silu(x: f64) -> f64 {
    x * sigmoid(x)
}

/// `ln(1 + e^x)`; above 40 the difference to `x` is below an f64's precision.
fn softplus(x: f64) -> f64 {
    if x > 40.0 { x } else { x.exp().ln_1p() }
}
