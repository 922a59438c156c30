//! Multi-head latent attention behind Ascend's operator, `MlaPreprocess`: the operator has the norm in front of the layer
//! and everything up to the caches, in the dtype of the caches and with weights in 8 bits where a checkpoint has them.

use std::ops::Range;

use cacheplan_kernels::{
    MlaCacheMode, MlaEpsilon, MlaNorm, MlaPool, MlaPreprocess, MlaProjection, MlaQuantMode, MlaShape as OperatorShape,
    MlaStep, Positions, Rope, Run,
};
use candle_core::{D, DType, Tensor};

use super::latents::{Latents, dequantised};
use super::mla::{LATENT_NORM_EPS, up_projection};
use super::{Linear, Mixer, MlaShape};
use crate::cache_use::CacheUse;
use crate::error::{Result, RuntimeError};
use crate::layer_cache::PagedCache;
use crate::step::Step;
use crate::weights::Scope;

/// Most tokens that the operator takes at once.
const MOST_TOKENS: usize = 1024;

/// The attention of one layer, with the norm in front of it.
#[derive(Debug)]
pub(crate) struct PreprocessedMla {
    operator: MlaPreprocess,
    latents: Latents,
    /// `[heads, latent, value]`: from the attended latent to the head's output.
    from_latent: Tensor,
    o: Linear,
    rope: Rope,
    /// What the operator computes in.
    dtype: DType,
}

impl PreprocessedMla {
    /// Reads the attention of layer `index`, whose tensors are in `weights`, if its plan asks for the operator or its
    /// weights are the operator's. `eps` is that of the model's norms.
    pub(crate) fn load_if_asked(
        weights: &Scope<'_>,
        index: u32,
        shape: MlaShape,
        rope: &Rope,
        eps: f64,
    ) -> Result<Option<Self>> {
        let projection = weights.enter("self_attn.kv_a_proj_with_mqa");
        let quant_mode = match ["deq_scale", "weight_scale"].map(|scale| projection.stores(scale)) {
            [true, _] => MlaQuantMode::PerTensorAsymmetric,
            [false, true] => MlaQuantMode::PerTokenSymmetric,
            [false, false] => MlaQuantMode::Unquantised,
        };
        let asked = weights.latents();
        if quant_mode != MlaQuantMode::PerTensorAsymmetric && asked.mode.is_none() {
            return Ok(None);
        }
        let is_quantised = quant_mode != MlaQuantMode::Unquantised;
        let refuse = |reason: String| RuntimeError::Preprocess { layer: index, reason };
        let mode = asked.mode.unwrap_or(MlaCacheMode::KvCache);
        let dtype = asked.dtype.ok_or_else(|| refuse("its caches are in neither f32, f16 nor bf16".into()))?;
        if shape.bias {
            return Err(refuse("it has no biases, and the config states `attention_bias`".into()));
        }
        if is_quantised && dtype == DType::F32 {
            return Err(refuse(
                "with int8 weights it computes in f16 or bf16, and the caches are f32 (`dtypes.kv`)".into(),
            ));
        }
        if !is_quantised && mode == MlaCacheMode::Int8Nz {
            return Err(refuse("an int8 cache needs int8 weights, which this checkpoint has not".into()));
        }
        let epsilon = MlaEpsilon { input: eps, ..LATENT_NORM_EPS.into() };
        let operator = Reader { weights, layer: index, shape, dtype, quant_mode }.operator(mode, epsilon)?;
        let attention = weights.enter("self_attn");
        let [_, from_latent] = up_projection(&attention, &shape)?;
        let o = Linear::load(&attention.enter("o_proj"), shape.heads * shape.value, shape.hidden, false)?;
        let latents = Latents::new(index, &shape, mode, dtype, operator.latent_scale.as_ref())?;
        Ok(Some(Self { operator, latents, from_latent, o, rope: rope.clone(), dtype }))
    }

    /// The cosines and sines of positions, `[tokens, rotated]` each: what becomes of a pair of one and nothing.
    fn turns(&self, on: &Run<'_>, positions: Positions<'_>, x: &Tensor) -> Result<[Tensor; 2]> {
        let half = (positions.len(), 1, self.operator.shape.rope / 2);
        let device = x.device();
        let pairs =
            Tensor::cat(&[Tensor::ones(half, DType::F32, device)?, Tensor::zeros(half, DType::F32, device)?], 2)?;
        let turned = self.rope.apply(on, &pairs, positions)?.squeeze(1)?;
        let twice = |part: Tensor| Tensor::cat(&[&part, &part], 1)?.to_dtype(self.dtype);
        Ok([twice(turned.narrow(1, 0, half.2)?)?, twice(turned.narrow(1, half.2, half.2)?)?])
    }

    /// Queries of all tokens, `[tokens, heads, latent + rope]` in f32, whose latents and rope keys are in the pools then.
    fn queries(&self, x: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        let [cos, sin] = self.turns(step.on(), step.positions(), x)?;
        let x = x.to_dtype(self.dtype)?;
        let (latents, ropes) = self.latents.pools(step)?;
        let tokens = x.dim(0)?;
        let mut parts = Vec::new();
        for start in (0..tokens).step_by(MOST_TOKENS) {
            let end = tokens.min(start + MOST_TOKENS);
            let part = |tensor: &Tensor| tensor.narrow(0, start, end - start)?.contiguous();
            let (input, cos, sin) = (part(&x)?, part(&cos)?, part(&sin)?);
            let operands = MlaStep {
                input: &input,
                cos: &cos,
                sin: &sin,
                cache: pool(&latents, start..end),
                rope_cache: ropes.as_ref().map(|ropes| pool(ropes, start..end)),
            };
            let (latent, rope) = self.operator.run(step.on(), &operands)?;
            parts.push(self.joined(&latent, rope.as_ref())?);
        }
        Ok(Tensor::cat(&parts, 0)?)
    }

    /// Both parts of queries in one tensor of f32.
    fn joined(&self, latent: &Tensor, rope: Option<&Tensor>) -> candle_core::Result<Tensor> {
        // The scales of int8 queries are factors, so that each head's own is taken back here.
        let latent = match &self.operator.query_scale {
            Some(scale) => {
                let scale = scale.to_dtype(DType::F32)?.reshape((1, scale.elem_count(), 1))?;
                dequantised(latent)?.broadcast_div(&scale)?
            }
            None => latent.to_dtype(DType::F32)?,
        };
        match rope {
            Some(rope) => Tensor::cat(&[latent, rope.to_dtype(DType::F32)?], D::Minus1),
            None => Ok(latent),
        }
    }
}

impl Mixer for PreprocessedMla {
    fn forward(&self, x: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        let q = self.queries(x, step)?;
        let y = self.latents.attend(&q, step)?.to_dtype(x.dtype())?;
        let y = y.transpose(0, 1)?.contiguous()?.matmul(&self.from_latent)?.transpose(0, 1)?;
        let tokens = x.dim(0)?;
        Ok(self.o.forward(step.on(), &y.reshape((tokens, ()))?)?)
    }

    fn caches(&self) -> Vec<CacheUse> {
        self.latents.caches()
    }
}

/// Where a cache takes some of a step's tokens.
fn pool<'c>(cache: &'c PagedCache<'_>, tokens: Range<usize>) -> MlaPool<'c> {
    MlaPool { tensor: cache.pool, view: &cache.view, slot_mapping: cache.slot_mapping.part(tokens) }
}

/// Reads an operator's weights from a layer's, in the order in which it takes them.
struct Reader<'a> {
    weights: &'a Scope<'a>,
    layer: u32,
    shape: MlaShape,
    dtype: DType,
    quant_mode: MlaQuantMode,
}

impl Reader<'_> {
    fn operator(&self, cache_mode: MlaCacheMode, epsilon: MlaEpsilon) -> Result<MlaPreprocess> {
        let MlaShape { hidden, heads, q_lora_rank, kv_lora_rank, nope, rope, .. } = self.shape;
        let queries = heads * (nope + rope);
        let latent = self.projection("kv_a_proj_with_mqa", hidden, kv_lora_rank + rope, 1)?;
        let (first, norm1, up) = match q_lora_rank {
            None => ("q_proj", None, None),
            Some(rank) => (
                "q_a_proj",
                Some(self.norm("self_attn.q_a_layernorm", rank, "q_b_proj")?),
                Some(self.projection("q_b_proj", rank, queries, heads)?),
            ),
        };
        let query = match q_lora_rank {
            None => self.projection(first, hidden, queries, heads)?,
            Some(rank) => self.projection(first, hidden, rank, 0)?,
        };
        let norm0 = self.norm("input_layernorm", hidden, first)?;
        self.check_same_input(first, "kv_a_proj_with_mqa")?;
        let attention = self.weights.enter("self_attn");
        let [absorb, _] = up_projection(&attention, &self.shape)?;
        let (latent_scale, query_scale) = match cache_mode {
            MlaCacheMode::Int8Nz => {
                let scale = |name: &str, len: usize| {
                    Ok::<_, RuntimeError>(attention.enter(name).get("scale", (len, 1))?.flatten_all()?)
                };
                let (latents, queries) = (scale("fa_k", 1)?, scale("fa_q", heads)?);
                self.check("fa_k.scale", &latents, |scale| scale > 0.0)?;
                self.check("fa_q.scale", &queries, |scale| scale > 0.0)?;
                (Some(latents.to_dtype(self.dtype)?), Some(queries.recip()?.to_dtype(self.dtype)?))
            }
            _ => (None, None),
        };
        Ok(MlaPreprocess {
            shape: OperatorShape { hidden, heads, q_lora: q_lora_rank, kv_lora: kv_lora_rank, nope, rope },
            cache_mode,
            quant_mode: self.quant_mode,
            epsilon,
            norm0,
            down: joined(&latent, &query)?,
            norm1,
            up,
            gamma2: attention.enter("kv_a_layernorm").get("weight", kv_lora_rank)?.to_dtype(self.dtype)?,
            absorb: absorb.to_dtype(self.dtype)?,
            latent_scale,
            query_scale,
        })
    }

    /// A norm, and what quantises its output for `projection`.
    fn norm(&self, name: &str, size: usize, projection: &str) -> Result<MlaNorm> {
        let norm = self.weights.enter(name);
        let read = |name: &str| Ok::<_, RuntimeError>(norm.get(name, size)?.to_dtype(self.dtype)?);
        let quant = self.weights.enter("self_attn").enter(projection);
        let by_tensor = self.quant_mode == MlaQuantMode::PerTensorAsymmetric;
        let quantised = |name: &str| by_tensor.then(|| quant.get(name, 1)).transpose();
        let scale = quantised("input_scale")?.map(|scale| scale.to_dtype(self.dtype)).transpose()?;
        // Stored as a float, and whole; the operator takes its bits as int8.
        let offset = quantised("input_offset")?;
        if let (Some(scale), Some(offset)) = (&scale, &offset) {
            self.check(&format!("{projection}.input_scale"), scale, |scale| scale > 0.0)?;
            let is_int8 = |offset: f32| offset.fract() == 0.0 && (-128.0..128.0).contains(&offset);
            self.check(&format!("{projection}.input_offset"), offset, is_int8)?;
        }
        let bits = |offset: Tensor| offset.lt(0.0)?.where_cond(&(&offset + 256.0)?, &offset)?.to_dtype(DType::U8);
        Ok(MlaNorm {
            gamma: read("weight")?,
            // Of a checkpoint whose outliers were moved into the norm.
            beta: norm.stores("bias").then(|| read("bias")).transpose()?,
            quant_scale: scale,
            quant_offset: offset.map(bits).transpose()?,
        })
    }

    /// That all of a layer's numbers are what they must be, so that none of them turns others into nonsense.
    fn check(&self, name: &str, numbers: &Tensor, holds: impl Fn(f32) -> bool) -> Result<()> {
        let numbers: Vec<f32> = numbers.to_dtype(DType::F32)?.to_vec1()?;
        match numbers.into_iter().find(|&number| !holds(number)) {
            None => Ok(()),
            Some(found) => {
                let reason = format!("`{name}` is {found}; scales are above 0, offsets whole and from -128 to 127");
                Err(RuntimeError::Preprocess { layer: self.layer, reason })
            }
        }
    }

    /// A projection whose outputs have the rotated ones, the last of each of `heads` groups, in halves; none for 0.
    fn projection(&self, name: &str, inputs: usize, outputs: usize, heads: usize) -> Result<MlaProjection> {
        let weights = self.weights.enter("self_attn").enter(name);
        let bits = || weights.stored_as(DType::U8, "weight", (outputs, inputs));
        let read = match self.quant_mode {
            MlaQuantMode::Unquantised => {
                let weight = weights.get("weight", (outputs, inputs))?.to_dtype(self.dtype)?;
                MlaProjection { weight, descale: None, bias: None }
            }
            MlaQuantMode::PerTensorAsymmetric => MlaProjection {
                weight: bits()?,
                descale: Some(self.descale(&weights, "deq_scale", outputs)?),
                bias: Some(weights.stored_as(DType::I32, "quant_bias", outputs)?),
            },
            MlaQuantMode::PerTokenSymmetric => {
                self.check_symmetric(&weights, name, outputs)?;
                let descale = Some(self.descale(&weights, "weight_scale", outputs)?);
                MlaProjection { weight: bits()?, descale, bias: None }
            }
        };
        if heads == 0 || !self.shape.interleaved {
            return Ok(read);
        }
        let order: Vec<u32> = self.shape.halves(outputs, heads).map(|output| output as u32).collect();
        let order = Tensor::from_vec(order, outputs, read.weight.device())?;
        let select = |tensor: &Tensor| tensor.index_select(&order, 0);
        Ok(MlaProjection {
            weight: select(&read.weight)?,
            descale: read.descale.as_ref().map(select).transpose()?,
            bias: read.bias.as_ref().map(select).transpose()?,
        })
    }

    /// Factors on the integer product: f32 beside bf16, and beside f16 their bits in i64. A checkpoint may have either.
    fn descale(&self, weights: &Scope<'_>, name: &str, outputs: usize) -> Result<Tensor> {
        let as_bits = self.dtype == DType::F16;
        let device = weights.device();
        let factors = weights.product_scales(name, outputs)?;
        let bits = || factors.iter().map(|factor| i64::from(factor.to_bits())).collect::<Vec<_>>();
        Ok(if as_bits { Tensor::new(bits(), device)? } else { Tensor::new(factors, device)? })
    }

    /// That a projection has no offsets, for which the operator has no place where each token has a scale of its own.
    fn check_symmetric(&self, weights: &Scope<'_>, name: &str, outputs: usize) -> Result<()> {
        let stored = weights.stores("weight_offset");
        let offsets = stored.then(|| weights.product_scales("weight_offset", outputs)).transpose()?;
        match offsets.into_iter().flatten().find(|&offset| offset != 0.0) {
            None => Ok(()),
            Some(found) => {
                let reason = format!("`{name}.weight_offset` has {found}; offsets of weights must be 0");
                Err(RuntimeError::Preprocess { layer: self.layer, reason })
            }
        }
    }

    /// That two projections of the same rows quantise them alike, since the operator does it once for both.
    fn check_same_input(&self, one: &str, other: &str) -> Result<()> {
        if self.quant_mode != MlaQuantMode::PerTensorAsymmetric {
            return Ok(());
        }
        let attention = self.weights.enter("self_attn");
        for name in ["input_scale", "input_offset"] {
            let read = |projection: &str| {
                let numbers = attention.enter(projection).get(name, 1)?.to_dtype(DType::F32)?;
                Ok::<_, RuntimeError>(numbers.to_vec1::<f32>()?)
            };
            if read(one)? != read(other)? {
                let (one, other) = (attention.enter(one).full_name(name), attention.enter(other).full_name(name));
                return Err(crate::weights::WeightError::Scales { one, other }.into());
            }
        }
        Ok(())
    }
}

/// One projection to the outputs of both.
fn joined(one: &MlaProjection, other: &MlaProjection) -> candle_core::Result<MlaProjection> {
    let both = |one: &Option<Tensor>, other: &Option<Tensor>| match (one, other) {
        (Some(one), Some(other)) => Tensor::cat(&[one, other], 0).map(Some),
        _ => Ok(None),
    };
    Ok(MlaProjection {
        weight: Tensor::cat(&[&one.weight, &other.weight], 0)?,
        descale: both(&one.descale, &other.descale)?,
        bias: both(&one.bias, &other.bias)?,
    })
}
