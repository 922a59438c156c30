//! `mla_decode.cu`: absorbed latent attention of one query token of each sequence.

use super::attention::{Call, Stretches};
use super::{Argument, Buffers, Launch, decode, format};
use crate::Window;

/// What `mla_decode.cu` names `kKeys`, `kValues`, `kRows`, `kTile`, `kWarps`, `kStages` and `kScoreRow`.
const KEYS: usize = 576;
const VALUES: usize = 512;
const ROWS: usize = 16;
const TILE: usize = 32;
const WARPS: usize = 8;
const STAGES: usize = 2;
const SCORE_ROW: usize = TILE + 8;

/// The launches of a decode step, unless the kernel was not made for it.
pub(super) fn launches<'a>(call: &Call<'_, 'a>, buffers: &mut Buffers<'a>) -> Option<Vec<Launch>> {
    let (attention, batch, told) = (call.attention, call.batch, &call.operands);
    let widths = (call.head_dim, attention.value_dim, call.view.kv_factor, call.view.num_kv_heads);
    let plain = attention.alibi_slopes.is_none() && attention.softcap.is_none() && attention.window == Window::Full;
    let decode = call.sequences(2..usize::MAX).next().is_none();
    if !(call.is_narrow() && widths == (KEYS, VALUES, 1, 1) && plain && decode) {
        return None;
    }
    let row_tiles = call.heads.div_ceil(ROWS);
    // Two blocks of 94 KB fit a processor.
    let blocks = row_tiles * call.singles();
    let stretches = Stretches::new(call.longest(1..2), TILE, blocks, 2 * call.device.processors);
    let scratch = call.scratch(buffers, stretches.count, batch.len());
    let mut arguments = vec![told.q, told.pool, scratch[0], scratch[1], told.tables, told.kv_lens, told.cu_seqlens];
    arguments.push(told.q_stride);
    arguments.extend(&call.strides()[..2]);
    arguments.extend([
        Argument::I32(batch.max_blocks as i32),
        call.block_shift(),
        Argument::I32(call.heads as i32),
        Argument::I32(stretches.tokens as i32),
        told.scale[0],
    ]);
    let decode = Launch {
        kernel: format!("mla_decode_{}", format(call.pool.dtype())?),
        grid: [row_tiles as u32, batch.len() as u32, stretches.count as u32],
        threads: 32 * WARPS as u32,
        shared_bytes: (STAGES * TILE + ROWS) * KEYS * 2 + 2 * ROWS * SCORE_ROW * 4,
        arguments,
    };
    Some(vec![decode, decode::join(call, scratch, stretches.count)])
}
