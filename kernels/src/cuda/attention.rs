//! Attention over a paged pool: which kernels take a call.

use super::call::{Call, Operands, Share};
use super::{Buffers, Launch, Launches, Target, attend, decode, mla, prefill};
use crate::{KvLayerView, PagedAttention, PagedBatch};
use candle_core::Tensor;

/// The launches of a step, unless no kernel was made for it.
pub(crate) fn paged_attention<'a>(
    q: &'a Tensor,
    pool: &'a Tensor,
    view: &KvLayerView,
    batch: &PagedBatch<'a>,
    attention: &PagedAttention<'a>,
    target: &Target,
) -> Option<Launches<'a>> {
    // No kernel walks trees, which are a guess's verification, or reads some positions alone: candle's ops do.
    if batch.parents.is_some() || batch.chosen.is_some() {
        return None;
    }
    let &[tokens, heads, head_dim] = q.dims() else { return None };
    let mut buffers = Buffers::default();
    let operands = Operands::new(&mut buffers, q, pool, batch, attention)?;
    let call = &Call { q, pool, view, batch, attention, target, tokens, heads, head_dim, operands };
    let launches = matrices(call, &mut buffers)
        .or_else(|| mla::launches(call, &mut buffers))
        .or_else(|| attend::launches(call, &mut buffers))?;
    Some(Launches { buffers: buffers.0, launches })
}

/// Sequences of one query token by one kernel, those of more by another, both with matrix products.
fn matrices<'a>(call: &Call<'_, 'a>, buffers: &mut Buffers<'a>) -> Option<Vec<Launch>> {
    if !call.is_narrow() {
        return None;
    }
    match (call.share(|| prefill::fills(call, 2)), decode::makes(call), prefill::makes(call)) {
        (Share::Decode, true, _) => Some(decode::launches(call, buffers)),
        (Share::Both, true, true) => {
            let several = prefill::launches(call, buffers, 2);
            Some([several, decode::launches(call, buffers)].concat())
        }
        (_, _, true) => Some(prefill::launches(call, buffers, 0)),
        _ => None,
    }
}
