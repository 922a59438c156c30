//! Moves of rows within a pool.

use super::{Case, Work, name};
use cacheplan_kernels::PoolRows;
use candle_core::DType;

/// What happens to rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Move {
    Copy,
    Zero,
}

/// A pool and how many of its rows move.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pool {
    pub(crate) rows: usize,
    pub(crate) elements: usize,
    pub(crate) dtype: DType,
}

impl Pool {
    pub(crate) fn case(self, what: Move) -> Case {
        let Self { rows, elements, dtype } = self;
        let moved = rows * elements * dtype.size_in_bytes();
        let (op, times) = match what {
            Move::Copy => ("copy rows", 2),
            Move::Zero => ("zero rows", 1),
        };
        Case {
            op,
            sizes: vec![("rows", rows), ("elements", elements)],
            variant: name(dtype).to_owned(),
            // What is moved keeps its bits.
            tolerance: 0.0,
            work: Work::bytes(times * moved),
            call: Box::new(move |on, data| {
                let pool = data.tensor(&[2 * rows + 1, elements], dtype)?;
                let rows = rows as u32;
                match what {
                    Move::Copy => {
                        // From the second half into the first, in the other order.
                        let pairs: Vec<(u32, u32)> = (0..rows).map(|i| (rows + i, rows - 1 - i)).collect();
                        PoolRows(&pool).copy(on, &pairs)?;
                    }
                    Move::Zero => PoolRows(&pool).zero(on, &(0..rows).map(|i| 2 * i).collect::<Vec<_>>())?,
                }
                Ok(vec![pool])
            }),
        }
    }
}
