//! Moves of rows within a pool.

use super::{Case, Work, name};
use crate::PoolRows;
use candle_core::DType;

/// What happens to rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Move {
    Copy,
    Zero,
}

/// A pool and how many of its rows move.
#[derive(Clone, Copy, Debug)]
pub struct Pool {
    pub rows: usize,
    pub elements: usize,
    pub dtype: DType,
}

impl Pool {
    pub fn case(self, what: Move) -> Case {
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
            prepare: Box::new(move |data| {
                let pool = data.tensor(&[2 * rows + 1, elements], dtype)?;
                let count = rows as u32;
                // From the second half into the first, in the other order.
                let pairs: Vec<(u32, u32)> = (0..count).map(|i| (count + i, count - 1 - i)).collect();
                let zeroed: Vec<u32> = (0..count).map(|i| 2 * i).collect();
                Ok(Box::new(move |on| {
                    match what {
                        Move::Copy => PoolRows(&pool).copy(on, &pairs)?,
                        Move::Zero => PoolRows(&pool).zero(on, &zeroed)?,
                    }
                    Ok(vec![pool.clone()])
                }))
            }),
        }
    }
}
