//! Copies and clearing of whole rows on the CPU, on all threads.

use crate::error::Result;
use candle_core::{CpuStorage, InplaceOp1, Layout, Tensor};
use rayon::prelude::*;

pub(crate) fn copy_rows(pool: &Tensor, pairs: &[(u32, u32)]) -> Result<()> {
    Ok(pool.inplace_op1(&RowOp::Copy(pairs))?)
}

pub(crate) fn zero_rows(pool: &Tensor, rows: &[u32]) -> Result<()> {
    Ok(pool.inplace_op1(&RowOp::Zero(rows))?)
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
