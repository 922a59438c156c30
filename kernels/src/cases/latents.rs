//! What stands in front of latent attention.

use super::{Case, Data, Sequences, Work, name, tolerance};
use crate::{
    KernelError, KvLayerView, MlaCacheMode, MlaNorm, MlaPool, MlaPreprocess, MlaProjection, MlaQuantMode, MlaShape,
    MlaStep,
};
use cacheplan_handlers::KvLayout;
use candle_core::{DType, Device, Tensor};

/// Tokens of a block.
const BLOCK: usize = 128;

/// `MlaPreprocess` with latents and rope keys apart, or in one cache.
#[derive(Clone, Copy, Debug)]
pub struct Latents {
    pub shape: MlaShape,
    pub quant_mode: MlaQuantMode,
    pub cache_mode: MlaCacheMode,
    pub input: DType,
}

impl Latents {
    pub fn case(self, tokens: usize) -> Case {
        let Self { shape, quant_mode, input, .. } = self;
        let MlaShape { hidden, heads, q_lora, kv_lora, nope, rope } = shape;
        let weight = self.weight_dtype();
        let products = shape.down_rows() * hidden + q_lora.map_or(0, |q_lora| shape.query_rows() * q_lora);
        let absorb = heads * nope * kv_lora;
        let rows = tokens * (hidden + 2 * rope + kv_lora + rope + heads * (kv_lora + rope));
        Case {
            op: "mla preprocess",
            sizes: vec![("tokens", tokens), ("hidden", hidden), ("heads", heads), ("latent", kv_lora)],
            variant: format!("{}, {quant_mode:?}, {:?}", name(input), self.cache_mode),
            tolerance: tolerance(&[weight, input]),
            work: Work {
                bytes: (products * weight.size_in_bytes() + (absorb + rows) * input.size_in_bytes()) as u64,
                flops: 2 * (tokens * (products + absorb)) as u64,
            },
            prepare: Box::new(move |data| {
                let operator = self.operator(data)?;
                let [x, cos, sin] = [
                    data.rows(&Sequences::even(tokens, 1, 1), hidden, input)?.contiguous()?,
                    data.tensor(&[tokens, rope], input)?,
                    data.tensor(&[tokens, rope], input)?,
                ];
                let slots: Vec<i64> = (0..tokens as i64).rev().collect();
                let pools = self.pools(tokens.div_ceil(BLOCK))?;
                Ok(Box::new(move |on| {
                    let at = |at: usize| {
                        pools.get(at).map(|(tensor, view)| MlaPool { tensor, view, slot_mapping: (&slots).into() })
                    };
                    let Some(cache) = at(0) else { return Ok(Vec::new()) };
                    let step = MlaStep { input: &x, cos: &cos, sin: &sin, cache, rope_cache: at(1) };
                    let (queries, rotated) = operator.run(on, &step)?;
                    let kept = pools.iter().map(|(tensor, _)| tensor.clone());
                    Ok([queries].into_iter().chain(rotated).chain(kept).collect())
                }))
            }),
        }
    }

    fn weight_dtype(&self) -> DType {
        if self.quant_mode == MlaQuantMode::Unquantised { self.input } else { DType::U8 }
    }

    fn operator(&self, data: &mut Data) -> Result<MlaPreprocess, KernelError> {
        let Self { shape, quant_mode, cache_mode, input } = *self;
        let MlaShape { hidden, heads, q_lora, kv_lora, nope, rope: _ } = shape;
        let (quantised, by_tensor) =
            (quant_mode != MlaQuantMode::Unquantised, quant_mode == MlaQuantMode::PerTensorAsymmetric);
        let (weight, factor) = (self.weight_dtype(), 1.0 / 64.0);
        let of = |number: f32, len: usize| Tensor::full(number, len, &Device::Cpu)?.to_dtype(input);
        let part = |data: &mut Data, width: usize, rows: usize| -> candle_core::Result<(MlaNorm, MlaProjection)> {
            let norm = MlaNorm {
                gamma: data.tensor(&[width], input)?,
                beta: None,
                quant_scale: by_tensor.then(|| of(factor, 1)).transpose()?,
                quant_offset: by_tensor.then(|| Tensor::new(&[3u8], &Device::Cpu)).transpose()?,
            };
            let scale = factor / (width as f32).sqrt();
            let descale = match input {
                DType::F16 => Tensor::full(i64::from(scale.to_bits()), rows, &Device::Cpu),
                _ => Tensor::full(scale, rows, &Device::Cpu),
            };
            let projection = MlaProjection {
                weight: data.tensor(&[rows, width], weight)?,
                descale: quantised.then_some(descale).transpose()?,
                bias: by_tensor.then(|| Tensor::full(7i32, rows, &Device::Cpu)).transpose()?,
            };
            Ok((norm, projection))
        };
        let (norm0, down) = part(data, hidden, shape.down_rows())?;
        let above = q_lora.map(|q_lora| part(data, q_lora, shape.query_rows())).transpose()?;
        let (norm1, up) = above.unzip();
        let int8 = cache_mode == MlaCacheMode::Int8Nz;
        Ok(MlaPreprocess {
            shape,
            cache_mode,
            quant_mode,
            epsilon: 1e-6.into(),
            norm0,
            down,
            norm1,
            up,
            gamma2: data.tensor(&[kv_lora], input)?,
            absorb: data.tensor(&[heads, nope, kv_lora], input)?,
            latent_scale: int8.then(|| of(factor, 1)).transpose()?,
            query_scale: int8.then(|| of(8.0, heads)).transpose()?,
        })
    }

    fn pools(&self, blocks: usize) -> candle_core::Result<Vec<(Tensor, KvLayerView)>> {
        let MlaShape { kv_lora, rope, .. } = self.shape;
        let of = |width: usize, dtype: DType| -> candle_core::Result<(Tensor, KvLayerView)> {
            let [columns, head_dim] = self.cache_mode.columns(width, dtype);
            let view = KvLayerView {
                block_elems: columns * BLOCK * head_dim,
                layer_offset: 0,
                kv_factor: 1,
                num_kv_heads: columns,
                head_dim,
                tokens_per_block: BLOCK,
                order: KvLayout::Hnd,
            };
            Ok((Tensor::zeros((blocks, view.block_elems), dtype, &Device::Cpu)?, view))
        };
        match self.cache_mode {
            MlaCacheMode::KvCache => Ok(vec![of(kv_lora + rope, self.input)?]),
            MlaCacheMode::Int8Nz => Ok(vec![of(kv_lora, DType::U8)?, of(rope, self.input)?]),
            _ => Ok(vec![of(kv_lora, self.input)?, of(rope, self.input)?]),
        }
    }
}
