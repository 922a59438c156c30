//! Attention that is written out as products, a mask and a softmax, computed over the columns that its mask leaves.
//!
//! Caches of fixed shapes are mostly hidden. Columns that no row sees weigh nothing, so that leaving them out gives the same
//! numbers; how many that are is read from the mask of each run.

use crate::layout::Layout;
use crate::nest::{Nest, Row};
use crate::products::{matmul, softmax_rows};
use crate::tensor::Operand;

/// What is added to hidden scores is below this, and no score comes near it.
const HIDDEN: f32 = -1e30;

/// Columns are computed in blocks of these, so that sums are divided alike however many there are.
const BLOCK: usize = 64;

/// q, k, mask and v, over common outer axes: q `[…, rows, head_dim]`, k `[…, head_dim, columns]`, mask `[…, rows, columns]`
/// and v `[…, columns, width]`.
#[derive(Clone, Debug)]
pub(crate) struct MaskedAttention {
    pub(crate) q: Layout,
    pub(crate) k: Layout,
    pub(crate) mask: Layout,
    pub(crate) v: Layout,
    /// Before the mask is added.
    pub(crate) scale: Option<Scale>,
}

/// How a graph scales its scores; both are kept apart since they round otherwise.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Scale {
    Times(f32),
    Over(f32),
}

impl MaskedAttention {
    /// q, k, mask, v.
    pub(crate) fn run(&self, inputs: &[Operand<'_>], out: &mut [f32]) -> Result<(), String> {
        let [q, k, mask, v] = inputs else { return Err("it takes four inputs here".to_owned()) };
        let (q, k, mask, v) = (q.floats()?, k.floats()?, mask.floats()?, v.floats()?);
        let last = self.mask.rank() - 1;
        let columns = seen(&self.mask, mask).next_multiple_of(BLOCK).min(self.mask.shape[last]);
        let mut shape = self.mask.shape.clone();
        shape[last] = columns;
        // Room for the columns that count, which are few as a rule.
        let mut scores = vec![0.0; shape.iter().product()];
        matmul(q, &self.q, k, &self.k.narrow(last, 0, columns), &mut scores)?;
        match self.scale {
            Some(Scale::Times(factor)) => scores.iter_mut().for_each(|score| *score *= factor),
            Some(Scale::Over(factor)) => scores.iter_mut().for_each(|score| *score /= factor),
            None => {}
        }
        let nest = Nest::new(&shape, &[&self.mask.narrow(last, 0, columns)]);
        nest.for_rows(|at, Row { starts: [start, ..], strides: [step, ..], len }| {
            scores[at..at + len].iter_mut().enumerate().for_each(|(n, score)| *score += mask[start + n * step]);
        });
        softmax_rows(&mut scores, columns);
        matmul(&scores, &Layout::contiguous(shape), v, &self.v.narrow(last - 1, 0, columns), out)
    }
}

/// The columns up to the last that a row sees; all of them where a row sees none.
fn seen(layout: &Layout, mask: &[f32]) -> usize {
    let last = layout.rank() - 1;
    let columns = layout.shape[last];
    let hidden = |x: &f32| *x <= HIDDEN;
    // Axes along which the mask repeats are looked at once.
    let mut rows = layout.narrow(last, 0, 1);
    for axis in 0..last {
        if rows.strides[axis] == 0 {
            rows.shape[axis] = 1;
        }
    }
    let step = layout.strides[last];
    let (mut most, mut blind) = (0, false);
    Nest::new(&rows.shape, &[&rows]).for_rows(|_, Row { starts, strides, len }| {
        for start in (0..len).map(|n| starts[0] + n * strides[0]) {
            let end = if step == 1 {
                // From the end in blocks, which the compiler looks at as a whole.
                let row = &mask[start..start + columns];
                let behind =
                    row.rchunks(BLOCK).take_while(|block| block.iter().all(hidden)).map(<[f32]>::len).sum::<usize>();
                columns - behind
            } else {
                (0..columns).rev().find(|n| !hidden(&mask[start + n * step])).map_or(0, |n| n + 1)
            };
            most = most.max(end);
            blind |= end == 0;
        }
    });
    if blind { columns } else { most }
}
