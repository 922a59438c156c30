//! `copy_rows.cu`: whole rows of a pool, and zeros.

use super::{Argument, Buffers, Contents, Device, Launch, Launches, VECTOR};
use candle_core::Tensor;
use std::collections::HashSet;

/// What `copy_rows.cu` names `kThreads` and `kMoves`.
const THREADS: usize = 128;
const MOVES: usize = 4;

/// The launch that copies row `from` onto row `to` of each pair, unless the pairs depend on their order.
pub(crate) fn copy_rows<'a>(pool: &'a Tensor, pairs: &'a [(u32, u32)], _device: &Device) -> Option<Launches<'a>> {
    let (_, elements) = pool.dims2().ok()?;
    let row_bytes = elements * pool.dtype().size_in_bytes();
    let sources: HashSet<u32> = pairs.iter().map(|pair| pair.0).collect();
    let mut targets = HashSet::new();
    // All pairs run at once: no row may be written twice, or written and read.
    let independent = pairs.iter().all(|&(_, to)| targets.insert(to) && !sources.contains(&to));
    if !(independent && row_bytes.is_multiple_of(VECTOR)) {
        return None;
    }
    let mut buffers = Buffers::default();
    let arguments = vec![
        buffers.add("pool", Contents::Pool(pool)),
        buffers.add("pairs", Contents::Pairs(pairs)),
        Argument::I64(row_bytes as i64),
    ];
    let launch = Launch {
        kernel: "copy_rows".to_owned(),
        grid: [row_bytes.div_ceil(THREADS * MOVES * VECTOR) as u32, pairs.len() as u32, 1],
        threads: THREADS as u32,
        shared_bytes: 0,
        arguments,
    };
    Some(Launches { buffers: buffers.0, launches: vec![launch] })
}

/// The launch that fills rows with zeros.
pub(crate) fn zero_rows<'a>(pool: &'a Tensor, rows: &'a [u32], _device: &Device) -> Option<Launches<'a>> {
    let (_, elements) = pool.dims2().ok()?;
    let row_bytes = elements * pool.dtype().size_in_bytes();
    let mut named = HashSet::new();
    if !(row_bytes.is_multiple_of(VECTOR) && rows.iter().all(|row| named.insert(row))) {
        return None;
    }
    let mut buffers = Buffers::default();
    let arguments = vec![
        buffers.add("pool", Contents::Pool(pool)),
        buffers.add("rows", Contents::Lengths(rows)),
        Argument::I64(row_bytes as i64),
    ];
    let launch = Launch {
        kernel: "zero_rows".to_owned(),
        grid: [row_bytes.div_ceil(THREADS * MOVES * VECTOR) as u32, rows.len() as u32, 1],
        threads: THREADS as u32,
        shared_bytes: 0,
        arguments,
    };
    Some(Launches { buffers: buffers.0, launches: vec![launch] })
}
