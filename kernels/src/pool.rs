//! Moves whole rows of a pool: blocks of a KV pool, slots of a state pool.
//!
//! All layers of a block or slot are contiguous, so one copy moves a block of every layer or the whole state of a
//! sequence. The ops work on any dtype and move bits unchanged.

use crate::error::{KernelError, Result};
use crate::portable;
use candle_core::{CpuStorage, InplaceOp1, Layout, Tensor};
use rayon::prelude::*;

/// Copies row `from` onto row `to` for each pair, in order: a later pair sees what an earlier one wrote.
pub fn copy_rows(pool: &Tensor, pairs: &[(u32, u32)]) -> Result<()> {
    const OP: &str = "copy_rows";
    let (rows, _) = pool.dims2()?;
    let named = |index: fn(&(u32, u32)) -> u32| pairs.iter().map(index);
    check_rows(OP, "from", named(|pair| pair.0), rows)?;
    check_rows(OP, "to", named(|pair| pair.1), rows)?;
    if !pool.device().is_cpu() {
        return portable::pool::copy_rows(pool, pairs);
    }
    Ok(pool.inplace_op1(&RowOp::Copy(pairs))?)
}

/// Fills rows with zeros: the state of a sequence that has not begun.
pub fn zero_rows(pool: &Tensor, rows: &[u32]) -> Result<()> {
    const OP: &str = "zero_rows";
    check_rows(OP, "rows", rows.iter().copied(), pool.dims2()?.0)?;
    if !pool.device().is_cpu() {
        return portable::pool::zero_rows(pool, rows);
    }
    Ok(pool.inplace_op1(&RowOp::Zero(rows))?)
}

/// Reads rows into a new `[rows.len(), row_elems]` tensor on the pool's device, in the given order.
pub fn gather_rows(pool: &Tensor, rows: &[u32]) -> Result<Tensor> {
    check_rows("gather_rows", "rows", rows.iter().copied(), pool.dims2()?.0)?;
    if rows.is_empty() {
        return Ok(pool.narrow(0, 0, 0)?.copy()?);
    }
    let parts = rows.iter().map(|&row| pool.narrow(0, row as usize, 1)).collect::<candle_core::Result<Vec<_>>>()?;
    // One part alone would come back as a view of the pool.
    Ok(match parts.as_slice() {
        [part] => part.copy()?,
        parts => Tensor::cat(parts, 0)?,
    })
}

/// Writes `values` `[rows.len(), row_elems]`, from any device, onto the rows.
pub fn scatter_rows(pool: &Tensor, rows: &[u32], values: &Tensor) -> Result<()> {
    const OP: &str = "scatter_rows";
    let (count, row_elems) = pool.dims2()?;
    check_rows(OP, "rows", rows.iter().copied(), count)?;
    if values.dims() != [rows.len(), row_elems] {
        return Err(KernelError::Shape {
            op: OP,
            operand: "values",
            found: values.dims().to_vec(),
            expected: format!("[{}, {row_elems}]", rows.len()),
        });
    }
    if values.dtype() != pool.dtype() {
        return Err(KernelError::DType {
            op: OP,
            operand: "values",
            found: values.dtype(),
            expected: "the dtype of the pool",
        });
    }
    let values = values.to_device(pool.device())?.contiguous()?;
    for (index, &row) in rows.iter().enumerate() {
        pool.slice_set(&values.narrow(0, index, 1)?, 0, row as usize)?;
    }
    Ok(())
}

fn check_rows(op: &'static str, operand: &'static str, rows: impl Iterator<Item = u32>, count: usize) -> Result<()> {
    for (at, row) in rows.enumerate() {
        if row as usize >= count {
            return Err(KernelError::Index {
                op,
                operand,
                at,
                found: i64::from(row),
                expected: format!("expected less than {count}"),
            });
        }
    }
    Ok(())
}

enum RowOp<'a> {
    Copy(&'a [(u32, u32)]),
    Zero(&'a [u32]),
}

/// Elements that one thread copies or clears at a time.
const PIECE: usize = 1 << 16;

impl RowOp<'_> {
    fn run<T: Copy + Default + Send + Sync>(&self, pool: &mut [T], width: usize) {
        match self {
            Self::Copy(pairs) => {
                for &(from, to) in *pairs {
                    let (from, to) = (from as usize * width, to as usize * width);
                    let (source, target) = match from.cmp(&to) {
                        std::cmp::Ordering::Less => {
                            let (head, tail) = pool.split_at_mut(to);
                            (&head[from..][..width], &mut tail[..width])
                        }
                        std::cmp::Ordering::Greater => {
                            let (head, tail) = pool.split_at_mut(from);
                            (&tail[..width], &mut head[to..][..width])
                        }
                        std::cmp::Ordering::Equal => continue,
                    };
                    target
                        .par_chunks_mut(PIECE)
                        .zip(source.par_chunks(PIECE))
                        .for_each(|(target, source)| target.copy_from_slice(source));
                }
            }
            Self::Zero(rows) => {
                for &row in *rows {
                    pool[row as usize * width..][..width]
                        .par_chunks_mut(PIECE)
                        .for_each(|piece| piece.fill(T::default()));
                }
            }
        }
    }
}

impl InplaceOp1 for RowOp<'_> {
    fn name(&self) -> &'static str {
        match self {
            Self::Copy(_) => "copy_rows",
            Self::Zero(_) => "zero_rows",
        }
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> candle_core::Result<()> {
        let (_, width) = layout.shape().dims2()?;
        let Some((start, end)) = layout.contiguous_offsets() else {
            candle_core::bail!("{}: the pool is not contiguous", self.name())
        };
        match storage {
            CpuStorage::U8(data)
            | CpuStorage::F6E2M3(data)
            | CpuStorage::F6E3M2(data)
            | CpuStorage::F4(data)
            | CpuStorage::F8E8M0(data) => self.run(&mut data[start..end], width),
            CpuStorage::U32(data) => self.run(&mut data[start..end], width),
            CpuStorage::I16(data) => self.run(&mut data[start..end], width),
            CpuStorage::I32(data) => self.run(&mut data[start..end], width),
            CpuStorage::I64(data) => self.run(&mut data[start..end], width),
            CpuStorage::BF16(data) => self.run(&mut data[start..end], width),
            CpuStorage::F16(data) => self.run(&mut data[start..end], width),
            CpuStorage::F32(data) => self.run(&mut data[start..end], width),
            CpuStorage::F64(data) => self.run(&mut data[start..end], width),
            CpuStorage::F8E4M3(data) => self.run(&mut data[start..end], width),
        }
        Ok(())
    }
}
