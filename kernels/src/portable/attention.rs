//! Attention per sequence over gathered keys and values.

use super::{head_factors, row_index, softmax, widen};
use crate::batch::PagedBatch;
use crate::error::Result;
use crate::ops::attention::PagedAttention;
use crate::ops::quant::KvQuant;
use crate::view::KvLayerView;
use candle_core::{D, DType, Tensor};
use std::ops::Range;

pub(crate) fn paged_attention(
    q: &Tensor,
    pool: &Tensor,
    view: &KvLayerView,
    batch: &PagedBatch<'_>,
    attention: &PagedAttention<'_>,
) -> Result<Tensor> {
    view.check_table("paged_attention")?;
    let (total_tokens, num_heads, _) = q.dims3()?;
    let mut outputs = Vec::with_capacity(batch.len());
    for sequence in 0..batch.len() {
        let rows = batch.rows(sequence);
        if rows.is_empty() {
            continue;
        }
        let shape = (rows.len(), num_heads, attention.value_dim);
        outputs.push(if batch.kv_lens[sequence] == 0 {
            Tensor::zeros(shape, q.dtype(), q.device())?
        } else {
            let q = q.narrow(0, rows.start, rows.len())?;
            one_sequence(&q, pool, view, batch, sequence, attention)?.reshape(shape)?.to_dtype(q.dtype())?
        });
    }
    if outputs.is_empty() {
        return Ok(Tensor::zeros((total_tokens, num_heads, attention.value_dim), q.dtype(), q.device())?);
    }
    Ok(Tensor::cat(&outputs, 0)?)
}

fn one_sequence(
    q: &Tensor,
    pool: &Tensor,
    view: &KvLayerView,
    batch: &PagedBatch<'_>,
    sequence: usize,
    attention: &PagedAttention<'_>,
) -> Result<Tensor> {
    let (queries, num_heads, head_dim) = q.dims3()?;
    let group = num_heads / view.num_kv_heads;
    let kv_len = batch.kv_lens[sequence] as usize;
    let first_position = kv_len - queries;
    let first_key = attention.window.first_visible(first_position);
    let keys = kv_len - first_key;

    let gather = |kv: usize| {
        let (entries, quant) = (first_key..kv_len, attention.quant);
        stored_rows(pool, view, batch.blocks(sequence), &StoredRows { kv, entries, head_dim, quant })
    };
    let k = gather(0)?;
    let v = match view.kv_factor {
        1 => k.narrow(2, 0, attention.value_dim)?.contiguous()?,
        _ => gather(1)?,
    };

    // [num_kv_heads, group * queries, ..] rows, the group outermost.
    let q = q
        .to_dtype(DType::F32)?
        .reshape((queries, view.num_kv_heads, group, head_dim))?
        .permute((1, 2, 0, 3))?
        .reshape((view.num_kv_heads, group * queries, head_dim))?;
    let mut scores = (q.matmul(&k.t()?.contiguous()?)? * f64::from(attention.scale))?;
    if let Some(cap) = attention.softcap {
        scores = ((scores / f64::from(cap))?.tanh()? * f64::from(cap))?;
    }
    // Which keys each query sees: of a tree's those on its path, by where they stand.
    let first_row = batch.rows(sequence).start;
    let mut seen = Vec::with_capacity(queries * keys);
    for query in first_position..kv_len {
        let path = batch.parents.map(|parents| PagedBatch::path(parents, first_row + query - first_position));
        let path: Option<Vec<usize>> = path.map(Iterator::collect);
        let stands_at = path.as_ref().map_or(query, |path| first_position + path.len() - 1);
        let first = attention.window.first_visible(stands_at);
        let chosen = batch.chosen.map(|chosen| chosen.of(first_row + query - first_position).to_vec());
        seen.extend((first_key..kv_len).map(|key| match (&path, key.checked_sub(first_position)) {
            _ if chosen.is_some() => chosen.iter().flatten().any(|position| *position as usize == key),
            (Some(path), Some(row)) => {
                let behind = path.iter().position(|on_path| *on_path == first_row + row);
                behind.is_some_and(|behind| stands_at - behind >= first)
            }
            _ => (first..=query).contains(&key),
        }));
    }
    let bias: Vec<f32> = (0..num_heads)
        .flat_map(|head| {
            let slope = attention.alibi_slopes.map_or(0.0, |slopes| slopes[head]);
            let pairs =
                (first_position..kv_len).flat_map(move |query| (first_key..kv_len).map(move |key| (query, key)));
            pairs.zip(&seen).map(
                move |((query, key), seen)| {
                    if *seen { -slope * query.abs_diff(key) as f32 } else { f32::NEG_INFINITY }
                },
            )
        })
        .collect();
    let bias = Tensor::from_vec(bias, scores.shape(), q.device())?;
    scores = (scores + bias)?;
    if let Some(sinks) = attention.sinks {
        let sinks = Tensor::new(sinks, q.device())?
            .reshape((view.num_kv_heads, group, 1, 1))?
            .broadcast_as((view.num_kv_heads, group, queries, 1))?
            .reshape((view.num_kv_heads, group * queries, 1))?;
        scores = Tensor::cat(&[&scores, &sinks], D::Minus1)?;
    }
    let mut weights = softmax(&scores)?.narrow(D::Minus1, 0, keys)?.contiguous()?;
    // A row may see nothing of what was chosen, and then its weights are none.
    if batch.chosen.is_some() && attention.sinks.is_none() {
        let seen: Vec<u8> = seen.iter().map(|&seen| seen.into()).cycle().take(num_heads * seen.len()).collect();
        let seen = Tensor::from_vec(seen, weights.shape(), q.device())?;
        weights = seen.where_cond(&weights, &weights.zeros_like()?)?;
    }
    Ok(weights
        .matmul(&v)?
        .reshape((view.num_kv_heads, group, queries, attention.value_dim))?
        .permute((2, 0, 1, 3))?
        .contiguous()?)
}

/// Which rows of a sequence are read, and how they are stored.
pub(crate) struct StoredRows<'a> {
    /// 0 for keys, 1 for values.
    pub(crate) kv: usize,
    /// Tokens, or what else a block holds one of.
    pub(crate) entries: Range<usize>,
    /// Elements of a row, which stored bytes may not tell.
    pub(crate) head_dim: usize,
    pub(crate) quant: Option<KvQuant<'a>>,
}

/// Rows of a sequence in f32, `[num_kv_heads, entries, head_dim]`, whose blocks are `blocks`.
pub(crate) fn stored_rows(pool: &Tensor, view: &KvLayerView, blocks: &[i32], of: &StoredRows<'_>) -> Result<Tensor> {
    let StoredRows { kv, ref entries, head_dim, quant } = *of;
    // For each row of a head its block and its place in it.
    let places = || {
        (0..view.num_kv_heads).flat_map(|head| entries.clone().map(move |entry| (head, entry))).map(|(head, entry)| {
            let block = blocks[entry / view.tokens_per_block] as usize;
            (block, view.row(kv, head, entry % view.tokens_per_block))
        })
    };
    let first = |block: usize| (block * view.block_elems + view.layer_offset) / view.head_dim;
    let index = row_index(places().map(|(block, row)| first(block) + row), pool.device())?;
    let rows = pool.reshape(((), view.head_dim))?.index_select(&index, 0)?;
    let shape = (view.num_kv_heads, entries.len(), head_dim);
    let Some(quant) = quant else { return Ok(widen(&rows)?.reshape(shape)?) };
    if let KvQuant::Grouped(format) = quant {
        return Ok(format.dequantize(&rows, head_dim)?.reshape(shape)?);
    }
    let factors = match quant {
        KvQuant::PerToken(scales) => {
            let index = row_index(places().map(|(block, row)| block * view.layer_rows() + row), pool.device())?;
            scales.flatten_all()?.index_select(&index, 0)?.reshape((view.num_kv_heads, entries.len(), 1))?
        }
        _ => head_factors(view, kv, &quant, pool.device())?.unsqueeze(2)?,
    };
    Ok(widen(&rows)?.reshape(shape)?.broadcast_mul(&factors)?)
}
