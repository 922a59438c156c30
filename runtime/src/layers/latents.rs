//! Latents and rope keys in the pools of a cache mode, and attention over them.

use cacheplan_handlers::{Kind, KvLayout};
use cacheplan_kernels::{KvLayerView, MlaCacheMode, PagedAttention, PagedBatch};
use candle_core::{DType, Tensor};

use super::MlaShape;
use crate::cache_use::CacheUse;
use crate::error::Result;
use crate::layer_cache::PagedCache;
use crate::step::Step;

/// Bytes of a column of the NZ order.
const COLUMN_BYTES: usize = 32;

/// The caches of one layer.
#[derive(Debug)]
pub(super) struct Latents {
    layer: u32,
    mode: MlaCacheMode,
    /// Widths of the latent and of the rope key.
    widths: [usize; 2],
    /// Elements of a column of each.
    columns: [usize; 2],
    /// What int8 latents are multiplied by.
    scale: Option<f32>,
    /// Factor on scores.
    score_scale: f32,
}

impl Latents {
    pub(super) fn new(
        layer: u32,
        shape: &MlaShape,
        mode: MlaCacheMode,
        dtype: DType,
        scale: Option<&Tensor>,
    ) -> Result<Self> {
        let widths = [shape.kv_lora_rank, shape.rope];
        let elems = COLUMN_BYTES / dtype.size_in_bytes();
        let columns = match mode {
            MlaCacheMode::KvCache | MlaCacheMode::KropeCtkv => widths,
            MlaCacheMode::Int8Nz => [COLUMN_BYTES, elems],
            MlaCacheMode::Nz => [elems, elems],
        };
        let scale = scale.map(|scale| scale.to_dtype(DType::F32)?.get(0)?.to_scalar()).transpose()?;
        Ok(Self { layer, mode, widths, columns, scale, score_scale: shape.scale as f32 })
    }

    pub(super) fn caches(&self) -> Vec<CacheUse> {
        let part = |kind: Kind, which: usize| {
            let (width, column) = (self.widths[which], self.columns[which]);
            CacheUse::new(self.layer, kind, [1, width / column, column])
        };
        match self.mode {
            MlaCacheMode::KvCache => {
                vec![CacheUse::new(self.layer, Kind::MlaPaged, [1, 1, self.widths[0] + self.widths[1]])]
            }
            _ => vec![part(Kind::MlaPaged, 0), part(Kind::MlaRope, 1)],
        }
    }

    /// Where a step's latents and rope keys are kept; in the first mode together.
    pub(super) fn pools<'a>(&self, step: &Step<'a>) -> Result<(PagedCache<'a>, Option<PagedCache<'a>>)> {
        let ropes = (self.mode != MlaCacheMode::KvCache).then(|| step.paged(self.layer, &Kind::MlaRope));
        Ok((step.paged(self.layer, &Kind::MlaPaged)?, ropes.transpose()?))
    }

    /// Attends with `q` `[tokens, heads, latent + rope]` to what the pools hold, this step's included: `[tokens, heads,
    /// latent]`.
    pub(super) fn attend(&self, q: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        let rule = PagedAttention::new(self.score_scale, self.widths[0]);
        let (latents, ropes) = self.pools(step)?;
        let Some(ropes) = ropes else {
            return Ok(rule.run(step.on(), q, latents.pool, &latents.view, &latents.batch)?);
        };
        // Attention reads rows of latent and rope key together, so that what a step sees is put together for it.
        let tables = [&latents, &ropes].map(|cache| seen(&cache.batch, cache.view.tokens_per_block));
        let [latent, rope] = [rows(&latents, &tables[0], self.scale)?, rows(&ropes, &tables[1], None)?];
        let joined = Tensor::cat(&[latent, rope], 2)?;
        let (blocks, tokens, width) = joined.dims3()?;
        let view = KvLayerView {
            block_elems: tokens * width,
            layer_offset: 0,
            kv_factor: 1,
            num_kv_heads: 1,
            head_dim: width,
            tokens_per_block: tokens,
            order: KvLayout::Hnd,
        };
        let batch = &latents.batch;
        let mut renumbered = vec![-1; batch.block_tables.len()];
        for (number, &place) in (0..).zip(&tables[0]) {
            renumbered[place] = number;
        }
        let batch = PagedBatch { block_tables: (&renumbered).into(), ..*batch };
        Ok(rule.run(step.on(), q, &joined.reshape((blocks, tokens * width))?, &view, &batch)?)
    }
}

/// The places in a batch's tables of the blocks that its queries see.
fn seen(batch: &PagedBatch<'_>, tokens_per_block: usize) -> Vec<usize> {
    let of = |sequence: usize| {
        let blocks = (batch.kv_lens[sequence] as usize).div_ceil(tokens_per_block);
        (0..blocks).map(move |block| sequence * batch.max_blocks + block)
    };
    (0..batch.len()).flat_map(of).collect()
}

/// Blocks of a pool as rows, `[blocks, tokens, width]` in f32; one block of nothing where none is seen.
fn rows(cache: &PagedCache<'_>, places: &[usize], scale: Option<f32>) -> Result<Tensor> {
    let view = &cache.view;
    let (columns, tokens, width) = (view.num_kv_heads, view.tokens_per_block, view.head_dim);
    let mut blocks: Vec<u32> = places.iter().map(|&place| cache.batch.block_tables[place].max(0) as u32).collect();
    if blocks.is_empty() {
        blocks.push(0);
    }
    let count = blocks.len();
    let units = cache.pool.index_select(&Tensor::new(blocks, cache.pool.device())?, 0)?;
    let stored = units.narrow(1, view.layer_offset, view.layer_elems())?.reshape((count, columns, tokens, width))?;
    let rows = stored.transpose(1, 2)?.contiguous()?.reshape((count, tokens, columns * width))?;
    Ok(match scale {
        Some(scale) => (dequantised(&rows)? * f64::from(scale))?,
        None => rows.to_dtype(DType::F32)?,
    })
}

/// int8 bits in a U8 tensor as whole numbers in f32.
pub(super) fn dequantised(bits: &Tensor) -> candle_core::Result<Tensor> {
    let wide = bits.to_dtype(DType::F32)?;
    wide.ge(128.0)?.where_cond(&(&wide - 256.0)?, &wide)
}
