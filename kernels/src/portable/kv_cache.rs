//! Cache writes as row scatters.

use crate::error::Result;
use crate::kv_cache::KvScales;
use crate::portable::{self, narrow};
use crate::rope::RopeTable;
use crate::view::KvLayerView;
use candle_core::{DType, Tensor};

pub(crate) fn write(
    pool: &Tensor,
    view: &KvLayerView,
    k: &Tensor,
    v: Option<&Tensor>,
    slot_mapping: &[i64],
    scales: KvScales,
    rope: Option<&RopeTable>,
) -> Result<()> {
    let live: Vec<(u32, usize)> = slot_mapping
        .iter()
        .enumerate()
        .filter_map(|(token, &slot)| Some((token as u32, usize::try_from(slot).ok()?)))
        .collect();
    if live.is_empty() {
        return Ok(());
    }
    let tokens = Tensor::from_iter(live.iter().map(|(token, _)| *token), pool.device())?;
    let pool_rows = pool.reshape(((), view.head_dim))?;
    let k = match rope {
        Some(table) => {
            &portable::rope::apply(&k.reshape((slot_mapping.len(), view.num_kv_heads, view.head_dim))?, table)?
        }
        None => k,
    };
    for (kv, (input, scale)) in [(Some(k), scales.k), (v, scales.v)].into_iter().enumerate() {
        let Some(input) = input else { continue };
        let rows = input.index_select(&tokens, 0)?.reshape(((), view.head_dim))?;
        let rows = narrow(&rows, pool.dtype(), scale)?;
        let index: Vec<u32> = live
            .iter()
            .flat_map(|&(_, slot)| {
                let block = slot / view.tokens_per_block * view.block_elems;
                (0..view.num_kv_heads).map(move |head| {
                    let offset = view.row_offset(kv, head, slot % view.tokens_per_block);
                    ((block + offset) / view.head_dim) as u32
                })
            })
            .collect();
        let index = Tensor::new(index, pool.device())?
            .to_dtype(DType::U32)?
            .unsqueeze(1)?
            .broadcast_as(rows.shape())?
            .contiguous()?;
        pool_rows.scatter_set(&index, &rows, 0)?;
    }
    Ok(())
}
