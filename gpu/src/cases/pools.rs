//! Moves of rows within a pool.

use super::{Case, Work, name};
use cacheplan_kernels::PoolRows;
use candle_core::DType;

/// What happens to rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Move {
    Copy,
    Zero,
    /// The commit of accepted states, each from one of three slots.
    Commit,
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
            Move::Commit => ("commit states", 2),
        };
        Case {
            op,
            sizes: vec![("rows", rows), ("elements", elements)],
            variant: name(dtype).to_owned(),
            // What is moved keeps its bits.
            tolerance: 0.0,
            work: Work::bytes(times * moved),
            call: Box::new(move |on, data| {
                const DEPTH: usize = 3;
                let held = if what == Move::Commit { (1 + DEPTH) * rows } else { 2 * rows };
                let pool = data.tensor(&[held + 1, elements], dtype)?;
                let rows = rows as u32;
                match what {
                    Move::Copy => {
                        // From the second half into the first, in the other order.
                        let pairs: Vec<(u32, u32)> = (0..rows).map(|i| (rows + i, rows - 1 - i)).collect();
                        PoolRows(&pool).copy(on, &pairs)?;
                    }
                    Move::Zero => PoolRows(&pool).zero(on, &(0..rows).map(|i| 2 * i).collect::<Vec<_>>())?,
                    Move::Commit => {
                        let slots: Vec<i32> = (0..rows as i32).collect();
                        let snapshots: Vec<i32> = (rows as i32..(1 + DEPTH as i32) * rows as i32).collect();
                        let accepted: Vec<u32> = (0..rows).map(|i| 1 + i % DEPTH as u32).collect();
                        PoolRows(&pool).commit_accepted(on, &slots, &snapshots, DEPTH, &accepted)?;
                    }
                }
                Ok(vec![pool])
            }),
        }
    }
}
