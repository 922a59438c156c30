//! Cache writes as row scatters.

use super::{narrow, rope, row_index};
use crate::error::Result;
use crate::ops::kv_cache::KvWrite;
use crate::ops::quant::KvQuant;
use crate::ops::rope::RopeTable;
use crate::view::KvLayerView;
use candle_core::Tensor;

/// Writes keys, rotated where there is a table, and values.
pub(crate) fn write(
    write: &KvWrite<'_>,
    rope_table: Option<RopeTable<'_>>,
    pool: &Tensor,
    view: &KvLayerView,
) -> Result<()> {
    view.check_table("reshape_and_cache")?;
    let KvWrite { k, v, slot_mapping, quant } = *write;
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
    let k = match rope_table {
        Some(table) => {
            let heads = (slot_mapping.len(), view.num_kv_heads, write.head_dim(view));
            &rope::apply(&k.reshape(heads)?, table)?
        }
        None => k,
    };
    for (kv, input) in [Some(k), v].into_iter().enumerate() {
        let Some(input) = input else { continue };
        let rows = input.contiguous()?.index_select(&tokens, 0)?.reshape((live.len(), view.num_kv_heads, ()))?;
        let (rows, own_scales) = narrow(&rows, pool.dtype(), view, kv, quant.as_ref())?;
        let rows = rows.reshape(((), view.head_dim))?;
        // For each row its block and its place in it.
        let places: Vec<(usize, usize)> = live
            .iter()
            .flat_map(|&(_, slot)| (0..view.num_kv_heads).map(move |head| (slot, head)))
            .map(|(slot, head)| (slot / view.tokens_per_block, view.row(kv, head, slot % view.tokens_per_block)))
            .collect();
        let index =
            places.iter().map(|(block, row)| (block * view.block_elems + view.layer_offset) / view.head_dim + row);
        scatter(&pool_rows, index, &rows)?;
        if let (Some(KvQuant::PerToken(scales)), Some(own_scales)) = (quant, own_scales) {
            let index = places.iter().map(|(block, row)| block * view.layer_rows() + row);
            scatter(&scales.reshape(((), 1))?, index, &own_scales.reshape(((), 1))?)?;
        }
    }
    Ok(())
}

/// Writes `rows` onto those of `table` that `index` names.
fn scatter(table: &Tensor, index: impl Iterator<Item = usize>, rows: &Tensor) -> Result<()> {
    let index = row_index(index, table.device())?.unsqueeze(1)?.broadcast_as(rows.shape())?.contiguous()?;
    Ok(table.scatter_set(&index, &rows.contiguous()?, 0)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::{DType, Device};

    #[test]
    fn a_row_whose_number_the_index_cannot_hold_is_refused() {
        let table = Tensor::zeros((2, 1), DType::F32, &Device::Cpu).unwrap();
        let row = Tensor::ones((1, 1), DType::F32, &Device::Cpu).unwrap();
        scatter(&table, std::iter::once(1 << 32), &row).unwrap_err();
        scatter(&table, std::iter::once(1), &row).unwrap();
    }
}
