//! The ops: what each is told and what it refuses in a file of its own, and here who runs it.
//!
//! Every op checks its operands and hands them to the [`Backend`](crate::Backend) of the step. Its forms take what has been
//! checked, know the types of the files beside this one, and are called from here only. A new form is a folder of
//! functions of the same names and one more argument of [`Run::compute`].

pub(crate) mod attention;
mod check;
pub(crate) mod conv1d;
mod elementwise;
pub(crate) mod experts;
pub(crate) mod groups;
pub(crate) mod index_scores;
pub(crate) mod kv_cache;
pub(crate) mod linear;
pub(crate) mod linear_attention;
pub(crate) mod mamba1;
pub(crate) mod mamba2;
pub(crate) mod mla;
pub(crate) mod norm;
pub(crate) mod pool;
pub(crate) mod quant;
pub(crate) mod rg_lru;
pub(crate) mod rope;
pub(crate) mod routing;
mod stored;

use crate::backend::{Fallback, Run};
use crate::batch::{PagedBatch, StateBatch};
use crate::error::Result;
use crate::states::States;
use crate::stored::StoredMatrix;
use crate::view::{KvLayerView, StateLayerView};
use crate::{cpu, cuda, portable};
use attention::PagedAttention;
use candle_core::Tensor;
use conv1d::CausalConv1d;
use experts::ExpertProducts;
use kv_cache::KvWrite;
use linear_attention::LinearAttentionScan;
use mamba1::Mamba1Scan;
use mamba2::{Mamba2Scan, ScanInput};
use mla::MlaCacheMode;
use mla::{MlaPreprocess, MlaStep};
use norm::{GateOrder, RmsNorm};
use pool::PoolRows;
use rg_lru::RgLruScan;
use rope::{Positions, Rope};
use routing::Routing;
use std::borrow::Cow;

/// Computes `$file::$op` on a [`Run`], by whichever of its forms the backend has.
macro_rules! compute {
    ($on:expr, $fallback:ident, $file:ident::$op:ident($($operand:expr),*)) => {
        $on.compute(
            concat!(stringify!($file), "::", stringify!($op)),
            Fallback::$fallback,
            |target| cuda::$file::$op($($operand,)* target),
            || cpu::$file::$op($($operand),*),
            || portable::$file::$op($($operand),*),
        )
    };
}

/// Heads `[tokens, heads, head_dim]` whose elements lie side by side in each token, which is how kernels read them.
fn by_token<'a>(on: &Run<'_>, heads: &'a Tensor) -> Result<Cow<'a, Tensor>> {
    let side_by_side = matches!((heads.dims(), heads.stride()), (&[_, _, dim], &[_, step, 1]) if step == dim);
    Ok(if on.reads_in_place() || side_by_side { Cow::Borrowed(heads) } else { Cow::Owned(heads.contiguous()?) })
}

impl PagedAttention<'_> {
    /// Attends from `q` `[total_tokens, num_heads, head_dim]` to the cached keys and values of each sequence.
    ///
    /// This step's keys and values must have been written before ([`KvWrite`]). Query heads are grouped: consecutive
    /// `num_heads / num_kv_heads` of them share a KV head. A layer that shares the cache of another passes that layer's
    /// view. Returns `[total_tokens, num_heads, value_dim]` in the dtype of `q`.
    pub fn run(
        &self,
        on: &Run<'_>,
        q: &Tensor,
        pool: &Tensor,
        view: &KvLayerView,
        batch: &PagedBatch<'_>,
    ) -> Result<Tensor> {
        attention::check(self, q, pool, view, batch)?;
        let q = &*by_token(on, q)?;
        compute!(on, OnHost, attention::paged_attention(q, pool, view, batch, self))
    }
}

impl KvWrite<'_> {
    /// Writes keys and values into the layer's blocks of `pool`.
    pub fn run(&self, on: &Run<'_>, pool: &Tensor, view: &KvLayerView) -> Result<()> {
        kv_cache::check(self, pool, view)?;
        compute!(on, OnHost, kv_cache::write(self, None, pool, view))
    }

    /// As [`run`](Self::run), with `q` `[total_tokens, num_heads, head_dim]` and the keys rotated on the way. Returns
    /// the rotated `q`.
    pub fn run_rotated<'a>(
        &self,
        on: &Run<'_>,
        q: &Tensor,
        rope: &Rope,
        positions: impl Into<Positions<'a>>,
        pool: &Tensor,
        view: &KvLayerView,
    ) -> Result<Tensor> {
        let head_dim = self.head_dim(view);
        kv_cache::check_queries(self, q, head_dim)?;
        let (mut own, positions) = (None, positions.into());
        let table = rope.table(on, &positions, self.slot_mapping.len(), head_dim, &mut own)?;
        kv_cache::check(self, pool, view)?;
        compute!(on, OnHost, kv_cache::write(self, Some(table), pool, view))?;
        let q = &*by_token(on, q)?;
        compute!(on, OnHost, rope::apply(q, table))
    }
}

impl Rope {
    /// Rotates `x` `[total_tokens, heads, head_dim]`; elements after `rotary_dim` pass through.
    pub fn apply<'a>(&self, on: &Run<'_>, x: &Tensor, positions: impl Into<Positions<'a>>) -> Result<Tensor> {
        let (tokens, _, head_dim) = x.dims3()?;
        let (mut own, positions) = (None, positions.into());
        let table = self.table(on, &positions, tokens, head_dim, &mut own)?;
        let x = &*by_token(on, x)?;
        compute!(on, OnHost, rope::apply(x, table))
    }
}

impl CausalConv1d<'_> {
    /// Convolves `x` `[total_tokens, conv_dim]` with the weight and moves the state on.
    ///
    /// `y[t, d] = bias[d] + sum_k weight[k, d] * x[t - (d_conv - 1) + k, d]`, where the rows before a sequence's first
    /// token are its state. Prefill, chunked prefill and decode are the same call; a new sequence starts from a zeroed
    /// slot. Afterwards the state holds the last `d_conv - 1` inputs, the oldest first.
    pub fn run(
        &self,
        on: &Run<'_>,
        x: &Tensor,
        pool: &Tensor,
        view: &StateLayerView,
        batch: &StateBatch<'_>,
    ) -> Result<Tensor> {
        let states = &States { pool, view, batch };
        conv1d::check(self, x, states)?;
        compute!(on, OnHost, conv1d::causal_conv1d(self, x, states))
    }
}

impl Mamba1Scan<'_> {
    /// Steps each sequence's state over its tokens and reads it out.
    ///
    /// The state is `[d_inner, 1, d_state]`; `x`, `dt` and `z` are `[total_tokens, d_inner]`, `b` and `c`
    /// `[total_tokens, d_state]`. Per token and channel: `s = s * exp(a * dt) + dt * b * x` and `y = s . c + d * x`,
    /// then the gate. Prefill and decode are the same call. Returns `[total_tokens, d_inner]` in the dtype of `x`.
    pub fn run(
        &self,
        on: &Run<'_>,
        input: &ScanInput<'_>,
        pool: &Tensor,
        view: &StateLayerView,
        batch: &StateBatch<'_>,
    ) -> Result<Tensor> {
        let states = &States { pool, view, batch };
        mamba1::check(self, input, states)?;
        compute!(on, OnHost, mamba1::mamba1_scan(input, self, states))
    }
}

impl Mamba2Scan<'_> {
    /// Steps each sequence's state `[heads, head_dim, d_state]` over its tokens and reads it out.
    ///
    /// Per token and head, with `dt` as [`TimeStep`](crate::TimeStep) makes it:
    /// `S = S * exp(a * dt) + dt * x (x) b` and `y = S . c + d * x`, then the gate.
    /// Consecutive `heads / groups` heads share a group of `b` and `c`. Prefill and decode are the same call. Returns
    /// `[total_tokens, heads * head_dim]` in the dtype of `x`.
    pub fn run(
        &self,
        on: &Run<'_>,
        input: &ScanInput<'_>,
        pool: &Tensor,
        view: &StateLayerView,
        batch: &StateBatch<'_>,
    ) -> Result<Tensor> {
        let states = &States { pool, view, batch };
        mamba2::check(self, input, states)?;
        compute!(on, OnHost, mamba2::mamba2_scan(input, self, states))
    }
}

impl LinearAttentionScan<'_> {
    /// Steps each sequence's state `[heads, key_dim, value_dim]` over its tokens and reads it out.
    ///
    /// Per token and head: `S = S * exp(decay)`; with the delta rule `v = beta * (v - k . S)`; `S += k (x) v`;
    /// `o = scale * q . S`. Prefill and decode are the same call. Returns `[total_tokens, heads * value_dim]` in the
    /// dtype of `v`.
    pub fn run(&self, on: &Run<'_>, pool: &Tensor, view: &StateLayerView, batch: &StateBatch<'_>) -> Result<Tensor> {
        let states = &States { pool, view, batch };
        linear_attention::check(self, states)?;
        compute!(on, OnHost, linear_attention::linear_attention(self, states))
    }
}

impl RgLruScan<'_> {
    /// Steps each sequence's state `[width, 1, 1]` over its tokens and returns it after each of them.
    ///
    /// With `log a = -8 * sigmoid(recurrence_gate) * softplus(a_param)`:
    /// `h = a * h + sqrt(1 - a^2) * sigmoid(input_gate) * x`. Returns `[total_tokens, width]` in the dtype of `x`.
    pub fn run(&self, on: &Run<'_>, pool: &Tensor, view: &StateLayerView, batch: &StateBatch<'_>) -> Result<Tensor> {
        let states = &States { pool, view, batch };
        rg_lru::check(self, states)?;
        compute!(on, OnHost, rg_lru::rg_lru(self, states))
    }
}

/// `x w^T` of `x` `[.., in]` and `weight` `[out, in]`, as `[.., out]` in the dtype of `x`.
///
/// A weight of bf16, f16 or 8-bit floats stays as it is and is widened to f32 on the way; sums are in f32. A few rows
/// on the CPU, as in decode, read the weight at the speed of memory.
pub fn linear(on: &Run<'_>, x: &Tensor, weight: &Tensor) -> Result<Tensor> {
    linear::check(x, weight)?;
    // No kernel was made: candle's own product is the device's library.
    let (cpu, portable) = (|| cpu::linear::linear(x, weight), || portable::linear::linear(x, weight));
    on.compute("linear::linear", Fallback::OnDevice, |_| None, cpu, portable)
}

impl StoredMatrix {
    /// `x w^T` of rows `x` `[rows, in]` on the CPU and the weights `parts` `[.., in]`, one after the other, as
    /// `[rows, out]` in the dtype of `x`.
    ///
    /// Numbers are widened to f32 on the way; sums are in f32. A few rows, as in decode, read the parts once.
    pub fn linear(x: &Tensor, parts: &[Self]) -> Result<Tensor> {
        stored::check(x, parts)?;
        cpu::stored::product(x, parts)
    }

    /// Its numbers as f32 on the CPU.
    pub fn numbers(&self) -> Result<Tensor> {
        cpu::stored::numbers(self)
    }

    /// Whether all of its numbers are finite. Reads all of it.
    pub fn is_finite(&self) -> bool {
        cpu::stored::are_finite(self)
    }
}

impl RmsNorm<'_> {
    /// `x / rms(x) * weight` over the last dimension of `x`, whose size the weight has. Sums are in f32.
    pub fn run(&self, on: &Run<'_>, x: &Tensor) -> Result<Tensor> {
        let Self { weight, eps } = *self;
        norm::check_plain(x, weight)?;
        compute!(on, OnDevice, norm::rms_norm(x, weight, eps))
    }

    /// Normalises `x` `[rows, width]` over consecutive groups of `group_size` and gates it with `z` of the same shape.
    ///
    /// The weight is `[width]`, or `[group_size]` and shared by the groups. Sums and gates are in f32.
    pub fn run_gated(
        &self,
        on: &Run<'_>,
        x: &Tensor,
        z: &Tensor,
        group_size: usize,
        order: GateOrder,
    ) -> Result<Tensor> {
        let Self { weight, eps } = *self;
        norm::check_gated(x, z, weight, group_size)?;
        compute!(on, OnDevice, norm::gated_rms_norm(x, z, weight, eps, group_size, order))
    }
}

/// Rows of activations, `[rows, width]`.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a>(pub &'a Tensor);

impl Rows<'_> {
    /// `silu(gate) * up` of rows of `2 * width` that hold the gate first, as `[rows, width]`.
    pub fn silu_product(&self, on: &Run<'_>) -> Result<Tensor> {
        elementwise::check_product(self.0)?;
        compute!(on, OnDevice, elementwise::silu_product(self.0))
    }

    /// `a * x + b * y` of these rows `x` and as many others.
    pub fn weighted_sum(&self, on: &Run<'_>, a: f32, y: &Tensor, b: f32) -> Result<Tensor> {
        elementwise::check_sum(self.0, y)?;
        compute!(on, OnDevice, elementwise::weighted_sum(self.0, a, y, b))
    }

    /// What the experts `chosen` `[rows, per_token]` make of each row, as `[rows, per_token, outputs]`.
    ///
    /// `weight` is `[experts, outputs, inputs]`, `bias` `[experts, outputs]`. There are as many rows as are chosen for,
    /// or one for each choice. It reads the weights once for each choice, and is for the few rows of steps that decode.
    pub fn by_experts(&self, on: &Run<'_>, weight: &Tensor, bias: Option<&Tensor>, chosen: &Tensor) -> Result<Tensor> {
        ExpertProducts { x: self.0, weight, bias, chosen, shares: None }.run(on)
    }

    /// As [`by_experts`](Self::by_experts), summed over the choices, of which each counts what `shares`
    /// `[rows, per_token]` says, as `[rows, outputs]`.
    pub fn summed_by_experts(
        &self,
        on: &Run<'_>,
        weight: &Tensor,
        bias: Option<&Tensor>,
        chosen: &Tensor,
        shares: &Tensor,
    ) -> Result<Tensor> {
        ExpertProducts { x: self.0, weight, bias, chosen, shares: Some(shares) }.run(on)
    }
}

impl ExpertProducts<'_> {
    fn run(&self, on: &Run<'_>) -> Result<Tensor> {
        self.check()?;
        compute!(on, OnDevice, experts::products(self))
    }
}

impl Routing {
    /// The experts that router logits `[rows, experts]` choose, `[rows, experts_per_token]` of u32 with the best first,
    /// and what each of them counts, in f32.
    ///
    /// `correction` `[experts]` is added to the scores for the choice alone. Of two that are equal the earlier expert is
    /// better.
    pub fn run(&self, on: &Run<'_>, logits: &Tensor, correction: Option<&Tensor>) -> Result<(Tensor, Tensor)> {
        routing::check(self, logits, correction)?;
        compute!(on, OnHost, routing::route(self, logits, correction))
    }

    /// For each expert the rows that chose it and what it counts for them, which is told to the host: a step that asks
    /// is not recorded.
    pub fn by_expert(&self, on: &Run<'_>, chosen: &Tensor, shares: &Tensor) -> Result<Vec<(Vec<u32>, Vec<f32>)>> {
        on.note_host_read();
        routing::by_expert(self, &chosen.to_vec2()?, &shares.to_vec2()?)
    }
}

impl PoolRows<'_> {
    /// Copies row `from` onto row `to` for each pair, in order: a later pair sees what an earlier one wrote.
    pub fn copy(&self, on: &Run<'_>, pairs: &[(u32, u32)]) -> Result<()> {
        pool::check(self.0, "copy_rows", "from", pairs.iter().map(|pair| pair.0))?;
        pool::check(self.0, "copy_rows", "to", pairs.iter().map(|pair| pair.1))?;
        compute!(on, OnHost, pool::copy_rows(self.0, pairs))
    }

    /// Fills rows with zeros: the state of a sequence that has not begun.
    pub fn zero(&self, on: &Run<'_>, rows: &[u32]) -> Result<()> {
        pool::check(self.0, "zero_rows", "rows", rows.iter().copied())?;
        compute!(on, OnHost, pool::zero_rows(self.0, rows))
    }

    /// Reads rows into a new `[rows.len(), row_elems]` tensor on the pool's device, in the given order.
    pub fn gather(&self, rows: &[u32]) -> Result<Tensor> {
        pool::check(self.0, "gather_rows", "rows", rows.iter().copied())?;
        portable::pool::gather_rows(self.0, rows)
    }

    /// Writes `values` `[rows.len(), row_elems]`, from any device, onto the rows.
    pub fn scatter(&self, rows: &[u32], values: &Tensor) -> Result<()> {
        pool::check(self.0, "scatter_rows", "rows", rows.iter().copied())?;
        pool::check_values(self.0, rows, values)?;
        portable::pool::scatter_rows(self.0, rows, values)
    }
}

impl MlaPreprocess {
    /// Makes the queries of a step and writes its latents and rope keys into the cache.
    ///
    /// The queries are `[tokens, heads, kv_lora]`, with the rope part behind it in the first cache mode, in int8 with
    /// the int8 cache; and `[tokens, heads, rope]` in all modes but the first. Decode and prefill then attend with
    /// [`PagedAttention`] over the latent (`kv_factor` 1).
    pub fn run(&self, on: &Run<'_>, step: &MlaStep<'_>) -> Result<(Tensor, Option<Tensor>)> {
        mla::check(self, step)?;
        compute!(on, OnHost, mla::preprocess(self, step))
    }
}

impl MlaCacheMode {
    /// `[.., n, k]` to the NZ order `[.., k / C0, n, C0]`, where `C0` elements take 32 bytes.
    pub fn to_nz(x: &Tensor) -> Result<Tensor> {
        mla::nz_encode(x)
    }

    /// `[.., k / C0, n, C0]` to `[.., n, k]`.
    pub fn from_nz(x: &Tensor) -> Result<Tensor> {
        mla::nz_decode(x)
    }
}
