//! `copy_rows.cu`: whole rows of a pool, and zeros.

use super::{Argument, Buffers, Contents, Launches, Target, VECTOR};
use candle_core::Tensor;
use std::collections::HashSet;

/// What `copy_rows.cu` names `kThreads` and `kMoves`.
const THREADS: usize = 128;
const MOVES: usize = 4;

/// The launch that copies row `from` onto row `to` of each pair, unless the pairs depend on their order.
pub(crate) fn copy_rows<'a>(pool: &'a Tensor, pairs: &'a [(u32, u32)], _target: &Target) -> Option<Launches<'a>> {
    let sources: HashSet<u32> = pairs.iter().map(|pair| pair.0).collect();
    let mut targets = HashSet::new();
    // All pairs run at once: no row may be written twice, or written and read.
    let independent = pairs.iter().all(|&(_, to)| targets.insert(to) && !sources.contains(&to));
    if independent { over_rows("copy_rows", pool, "pairs", Contents::Pairs(pairs), pairs.len()) } else { None }
}

/// The launch that fills rows with zeros.
pub(crate) fn zero_rows<'a>(pool: &'a Tensor, rows: &'a [u32], _target: &Target) -> Option<Launches<'a>> {
    let mut named = HashSet::new();
    let distinct = rows.iter().all(|row| named.insert(row));
    if distinct { over_rows("zero_rows", pool, "rows", Contents::Lengths(rows.into()), rows.len()) } else { None }
}

/// The launch of a kernel over `count` of what `named` lists.
fn over_rows<'a>(
    kernel: &str,
    pool: &'a Tensor,
    name: &'static str,
    named: Contents<'a>,
    count: usize,
) -> Option<Launches<'a>> {
    let (_, elements) = pool.dims2().ok()?;
    let row_bytes = elements * pool.dtype().size_in_bytes();
    if !row_bytes.is_multiple_of(VECTOR) {
        return None;
    }
    let mut buffers = Buffers::default();
    let arguments =
        vec![buffers.add("pool", Contents::Pool(pool)), buffers.add(name, named), Argument::I64(row_bytes as i64)];
    let grid = [row_bytes.div_ceil(THREADS * MOVES * VECTOR), count, 1];
    Some(buffers.launch(kernel.to_owned(), grid, THREADS, arguments))
}
