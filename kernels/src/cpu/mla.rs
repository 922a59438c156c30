//! Multi-head latent attention's preprocessing on the CPU: rows are normed and quantised, meet each weight once, and are
//! rotated, absorbed and written where they are made. Products of 8 bits are summed in 32, as Ascend's operator does.

use super::element::Element;
use super::kv_cache;
use super::linear::{Inputs, Numbers, Task};
use super::output::DisjointMut;
use super::simd::{Ahead, StridedRows, add_weighted, sum_of_squares, vectorized};
use super::storage::{Input, RowShape, Rows, with_float_pool};
use super::tasks::for_each;
use crate::error::Result;
use crate::ops::mla::{MlaCacheMode, MlaNorm, MlaPreprocess, MlaProjection, MlaQuantMode, MlaShape, MlaStep};
use candle_core::{Device, Storage, StorageRef, Tensor};
use pulp::bytemuck::cast_slice;
use rayon::prelude::*;
use std::cell::RefCell;
use std::marker::PhantomData;
use std::ops::Range;

const OP: &str = "mla_preprocess";

/// Outputs of the first product that a task takes, and tokens whose queries are absorbed at a time.
const OUTPUTS: usize = 64;
const TOKENS: usize = 64;

pub(crate) fn preprocess(mla: &MlaPreprocess, step: &MlaStep<'_>) -> Result<(Tensor, Option<Tensor>)> {
    with_float_pool!(OP, step.input.dtype(), T => match mla.cache_mode {
        MlaCacheMode::Int8Nz => run::<T, u8>(mla, step),
        _ => run::<T, T>(mla, step),
    })
}

/// With activations of `T` and latents of `Q`.
fn run<T: Element, Q: Element>(mla: &MlaPreprocess, step: &MlaStep<'_>) -> Result<(Tensor, Option<Tensor>)> {
    let MlaShape { hidden, heads, q_lora, kv_lora, nope, rope } = mla.shape;
    let [input, cos, sin] = [Input::new(step.input)?, Input::new(step.cos)?, Input::new(step.sin)?];
    let (input, turns) = (input.rows(), Turns { cos: cos.rows(), sin: sin.rows() });
    let (tokens, down_rows) = (input.len(), mla.shape.down_rows());

    let norm = Norm::new(&mla.norm0.gamma, mla.norm0.beta.as_ref(), mla.epsilon.input)?;
    let normed = norm.operand::<T>(&mla.norm0, mla.quant_mode, tokens, hidden, |row| input.row(row))?;
    let weight = mla.down.rows(down_rows, hidden)?;
    let weight = Elements::new(&weight);
    let down = Projection::<T>::new(&mla.down, &weight, hidden)?;
    let mut below = vec![0f32; tokens * down_rows];
    let parts = DisjointMut::new(&mut below);
    for_each((0..down_rows.div_ceil(OUTPUTS)).into_par_iter(), |task| {
        let outputs = task * OUTPUTS..down_rows.min((task + 1) * OUTPUTS);
        down.multiply(&normed, tokens, outputs, |row, output, product| {
            let at = row * down_rows + output;
            // SAFETY: each output is one task's alone.
            unsafe { parts.slice(at..at + 1)[0] = product };
        });
    });
    let below = |row: usize, part: Range<usize>| &below[row * down_rows..][..down_rows][part];

    // Latents and rope keys.
    let norm = Norm::new(&mla.gamma2, None, mla.epsilon.latent)?;
    let width = kv_lora + rope;
    let mut kept = vec![0f32; tokens * width];
    for_each(kept.par_chunks_exact_mut(width).enumerate(), |(row, kept)| {
        let (latent, key) = kept.split_at_mut(kv_lora);
        norm.run::<T>(below(row, 0..kv_lora), latent);
        turns.apply::<T>(row, below(row, kv_lora..width), key);
    });
    let kept = Tensor::from_vec(kept, (tokens, width), &Device::Cpu)?;
    let [latents, keys] = [kept.narrow(1, 0, kv_lora)?, kept.narrow(1, kv_lora, rope)?];
    mla.write(step, [&latents, &keys], |write, pool, view| kv_cache::write(write, None, pool, view))?;

    // Queries, head by head.
    let rest = |row: usize| below(row, width..down_rows);
    let weight = mla.up.as_ref().map(|up| up.rows(mla.shape.query_rows(), q_lora.unwrap_or(0))).transpose()?;
    let weight = weight.as_ref().map(Elements::new);
    let up = match (q_lora, &mla.norm1, mla.up.as_ref().zip(weight.as_ref())) {
        (Some(q_lora), Some(norm1), Some((projection, weight))) => {
            let norm = Norm::new(&norm1.gamma, norm1.beta.as_ref(), mla.epsilon.query)?;
            let normed = norm.operand::<T>(norm1, mla.quant_mode, tokens, q_lora, rest)?;
            Some((Projection::<T>::new(projection, weight, q_lora)?, normed))
        }
        _ => None,
    };
    let absorb = mla.absorbing_rows()?;
    let absorb = Elements::new(&absorb);
    let scales = mla.query_scale.as_ref().map(Input::flat).transpose()?;
    let joined = mla.cache_mode == MlaCacheMode::KvCache;
    let q_width = if joined { width } else { kv_lora };
    let mut latent_out = vec![Q::store(0.0); tokens * heads * q_width];
    let mut rope_out = vec![T::store(0.0); if joined { 0 } else { tokens * heads * rope }];
    let (latent_parts, rope_parts) = (DisjointMut::new(&mut latent_out), DisjointMut::new(&mut rope_out));
    thread_local! {
        /// A head's queries, its absorbing weights, and its absorbed queries.
        static HEAD: RefCell<[Vec<f32>; 3]> = const { RefCell::new([const { Vec::new() }; 3]) };
    }
    for_each((0..heads).into_par_iter(), |head| {
        let size = nope + rope;
        let [mut query, mut wide, mut absorbed] = HEAD.take();
        query.resize(tokens * size, 0.0);
        wide.resize(nope * kv_lora, 0.0);
        let outputs = head * size..(head + 1) * size;
        match &up {
            Some((up, normed)) => up.multiply(normed, tokens, outputs.clone(), |row, output, product| {
                query[row * size + output - outputs.start] = product;
            }),
            None => {
                for (row, query) in query.chunks_exact_mut(size).enumerate() {
                    query.copy_from_slice(&rest(row)[outputs.clone()]);
                }
            }
        }
        let stored = &absorb.of::<T>()[head * nope * kv_lora..][..nope * kv_lora];
        vectorized(
            #[inline(always)]
            || wide.iter_mut().zip(stored).for_each(|(wide, stored)| *wide = stored.load()),
        );
        let weights = StridedRows::new(&wide, kv_lora, kv_lora, nope);
        let scale = scales.as_ref().map_or(1.0, |scales| scales.rows().row(0)[head]);
        let mut turned = vec![0f32; rope];
        for first in (0..tokens).step_by(TOKENS) {
            let count = TOKENS.min(tokens - first);
            absorbed.clear();
            absorbed.resize(count * kv_lora, 0.0);
            add_weighted(&query[first * size..], size, weights, &mut absorbed, kv_lora, count, &mut Ahead::nothing());
            for (row, absorbed) in (first..).zip(absorbed.chunks_exact(kv_lora)) {
                let at = row * heads + head;
                // SAFETY: each head of a token is one task's alone.
                let out = unsafe { latent_parts.slice(at * q_width..(at + 1) * q_width) };
                for (out, &value) in out.iter_mut().zip(absorbed) {
                    *out = Q::store(rounded::<T>(value) * scale);
                }
                turns.apply::<T>(row, &query[row * size + nope..][..rope], &mut turned);
                if joined {
                    out[kv_lora..].iter_mut().zip(&turned).for_each(|(out, &value)| *out = Q::store(value));
                } else {
                    // SAFETY: as above.
                    let out = unsafe { rope_parts.slice(at * rope..(at + 1) * rope) };
                    out.iter_mut().zip(&turned).for_each(|(out, &value)| *out = T::store(value));
                }
            }
        }
        HEAD.set([query, wide, absorbed]);
    });
    let latent_out = Tensor::from_vec(latent_out, (tokens, heads, q_width), &Device::Cpu)?;
    let rope_out = (!joined).then(|| Tensor::from_vec(rope_out, (tokens, heads, rope), &Device::Cpu));
    Ok((latent_out, rope_out.transpose()?))
}

/// A number as `T` holds it.
#[inline(always)]
fn rounded<T: Element>(value: f32) -> f32 {
    T::store(value).load()
}

/// Elements of a contiguous tensor, where they lie.
struct Elements<'a>(StorageRef<'a>, Range<usize>);

impl<'a> Elements<'a> {
    fn new(tensor: &'a Tensor) -> Self {
        let (storage, layout) = tensor.storage_and_layout();
        let start = layout.start_offset();
        Self(storage, start..start + layout.shape().elem_count())
    }

    /// None where they are of another type.
    fn of<E: Element>(&self) -> &[E] {
        match &*self.0 {
            Storage::Cpu(storage) => E::slice_of(storage).map_or(&[], |elements| &elements[self.1.clone()]),
            _ => &[],
        }
    }
}

/// An RMSNorm, whose outputs are rounded to the dtype of activations.
struct Norm {
    gamma: Vec<f32>,
    beta: Option<Vec<f32>>,
    epsilon: f32,
}

impl Norm {
    fn new(gamma: &Tensor, beta: Option<&Tensor>, epsilon: f64) -> Result<Self> {
        let beta = beta.map(numbers).transpose()?;
        Ok(Self { gamma: numbers(gamma)?, beta, epsilon: epsilon as f32 })
    }

    fn run<T: Element>(&self, x: &[f32], out: &mut [f32]) {
        vectorized(
            #[inline(always)]
            || {
                let root = (sum_of_squares(x) / x.len() as f32 + self.epsilon).sqrt();
                for ((out, x), gamma) in out.iter_mut().zip(x).zip(&self.gamma) {
                    *out = x / root * gamma;
                }
                for (out, beta) in out.iter_mut().zip(self.beta.iter().flatten()) {
                    *out += beta;
                }
                out.iter_mut().for_each(|out| *out = rounded::<T>(*out));
            },
        );
    }

    /// The rows that `row` gives, normed, as a product takes them.
    fn operand<'r, T: Element>(
        &self,
        quant: &MlaNorm,
        mode: MlaQuantMode,
        tokens: usize,
        width: usize,
        row: impl Fn(usize) -> &'r [f32] + Send + Sync,
    ) -> Result<Operand> {
        let mut normed = vec![0f32; tokens * width];
        for_each(normed.par_chunks_exact_mut(width).enumerate(), |(at, normed)| self.run::<T>(row(at), normed));
        if mode == MlaQuantMode::Unquantised {
            let shape = RowShape { rows: tokens, width, stride: width };
            let rows = shape.rows;
            return Ok(Operand::Floats(Inputs::new(&Input::Owned { data: normed, shape }.rows(), 0..rows)));
        }
        let scale = quant.quant_scale.as_ref().map(numbers).transpose()?.map(|scale| scale[0]);
        let offset = quant.quant_offset.as_ref().map(Tensor::to_vec1::<u8>).transpose()?;
        let offset = offset.map_or(0.0, |offset| offset[0].load());
        let mut bytes = vec![0i16; normed.len()];
        let mut scales = vec![1f32; tokens];
        let rows = normed.par_chunks_exact(width).zip(bytes.par_chunks_exact_mut(width)).zip(&mut scales);
        for_each(rows, |((normed, bytes), of_row)| {
            let divisor = scale.unwrap_or_else(|| {
                *of_row = normed.iter().fold(0f32, |most, x| most.max(x.abs())) / 127.0;
                // A row of zeros has no scale; any would do.
                if *of_row == 0.0 { 1.0 } else { *of_row }
            });
            vectorized(
                #[inline(always)]
                || {
                    for (byte, x) in bytes.iter_mut().zip(normed) {
                        *byte = (x / divisor + offset).round_ties_even().clamp(-128.0, 127.0) as i16;
                    }
                },
            );
        });
        Ok(Operand::Bytes { bytes, scales })
    }
}

/// A parameter's numbers.
fn numbers(tensor: &Tensor) -> Result<Vec<f32>> {
    Ok(Input::flat(tensor)?.rows().row(0).to_vec())
}

/// Rows that a product takes: whole numbers of 8 bits, which what they give is multiplied by a scale of each row for, or
/// floats.
enum Operand {
    Bytes { bytes: Vec<i16>, scales: Vec<f32> },
    Floats(Inputs),
}

/// A product `x w^T` and what dequantises it.
struct Projection<'a, T> {
    weight: &'a Elements<'a>,
    factors: Vec<f32>,
    bias: Option<Vec<i32>>,
    width: usize,
    activations: PhantomData<T>,
}

impl<'a, T: Element> Projection<'a, T> {
    fn new(projection: &MlaProjection, weight: &'a Elements<'a>, width: usize) -> Result<Self> {
        let factors = projection.factors()?.map(|factors| numbers(&factors)).transpose()?.unwrap_or_default();
        let bias = projection.bias.as_ref().map(Tensor::to_vec1).transpose()?;
        Ok(Self { weight, factors, bias, width, activations: PhantomData })
    }

    /// Hands over some outputs of all rows, rounded to the dtype of activations, each with its row and its number.
    #[inline(always)]
    fn multiply(&self, x: &Operand, rows: usize, outputs: Range<usize>, mut each: impl FnMut(usize, usize, f32)) {
        let width = self.width;
        match x {
            Operand::Floats(inputs) => {
                let weight = Numbers { data: self.weight.of::<T>(), in_width: width };
                Task { inputs, rows: 0..rows, outputs: outputs.clone() }.multiply(weight, |row, products| {
                    for (output, &product) in outputs.clone().zip(products) {
                        each(row, output, rounded::<T>(product));
                    }
                });
            }
            Operand::Bytes { bytes, scales } => {
                let weight: &[i8] = cast_slice(self.weight.of::<u8>());
                vectorized(
                    #[inline(always)]
                    || {
                        for output in outputs.clone() {
                            let weight = &weight[output * width..][..width];
                            let bias = self.bias.as_ref().map_or(0, |bias| i64::from(bias[output]));
                            for (row, scale) in scales.iter().enumerate() {
                                let sum = dot(&bytes[row * width..][..width], weight);
                                let product = (i64::from(sum) + bias) as f32 * self.factors[output] * scale;
                                each(row, output, rounded::<T>(product));
                            }
                        }
                    },
                );
            }
        }
    }
}

/// A sum of products of 8 bits, which the check of the operands keeps within 32.
#[inline(always)]
fn dot(x: &[i16], weight: &[i8]) -> i32 {
    let products = x.iter().zip(weight).map(|(&x, &weight)| i32::from(x).wrapping_mul(i32::from(weight)));
    products.fold(0, i32::wrapping_add)
}

/// Cosines and sines of each token.
struct Turns<'a> {
    cos: Rows<'a>,
    sin: Rows<'a>,
}

impl Turns<'_> {
    /// Rotates the pairs `(i, i + half)` of a token's row.
    fn apply<T: Element>(&self, token: usize, x: &[f32], out: &mut [f32]) {
        let (cos, sin, half) = (self.cos.row(token), self.sin.row(token), x.len() / 2);
        for (at, out) in out.iter_mut().enumerate() {
            let turned = if at < half { -x[at + half] } else { x[at - half] };
            *out = rounded::<T>(x[at] * cos[at] + turned * sin[at]);
        }
    }
}
