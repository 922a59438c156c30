//! Attention that is written out as products, a mask and a softmax, computed over the columns that its mask leaves.
//!
//! Caches of fixed shapes are mostly hidden. Columns that no row sees weigh nothing, so that leaving them out gives the same
//! numbers; how many that are is read from the mask of each run.

use crate::builder::{Builder, KernelCall, Result};
use crate::kernels::{Binary, Kernel, matmul, softmax_rows};
use crate::layout::{Layout, count};
use crate::nest::{Nest, Row};
use crate::tensor::{Element, Operand, Value};

/// What is added to hidden scores is below this, and no score comes near it.
const HIDDEN: f32 = -1e30;

/// Columns are computed in blocks of these, so that sums are divided alike however many there are.
const BLOCK: usize = 64;

/// q, k, mask and v, over common outer axes: q `[…, rows, head_dim]`, k `[…, head_dim, columns]`, mask `[…, rows, columns]`
/// and v `[…, columns, width]`.
#[derive(Clone, Debug)]
pub(crate) struct MaskedAttention {
    q: Layout,
    k: Layout,
    mask: Layout,
    v: Layout,
    /// What scores are multiplied with or divided by before the mask is added.
    scale: Option<(Binary, f32)>,
}

/// The product of weights and values, where the weights are such an attention's.
pub(crate) fn fused(builder: &mut Builder, weights: &Value, values: &Value) -> Result<Option<Value>> {
    match find(builder, weights, values) {
        Some((attention, inputs, shape)) => {
            let outputs = vec![(Element::Float, shape)];
            let made = builder.compute(Kernel::MaskedAttention(Box::new(attention)), inputs, outputs)?;
            Ok(made.into_iter().next())
        }
        None => Ok(None),
    }
}

/// The step that makes all of a value, row by row.
fn whole<'a>(builder: &'a Builder, value: &Value) -> Option<&'a KernelCall> {
    let step = builder.maker(value)?;
    (value.layout == Layout::contiguous(value.shape().to_vec())).then_some(step)
}

fn find(builder: &Builder, weights: &Value, values: &Value) -> Option<(MaskedAttention, Vec<Value>, Vec<usize>)> {
    let softmax = whole(builder, weights).filter(|step| matches!(step.kernel, Kernel::Softmax))?;
    let scores = softmax.inputs.first().filter(|scores| scores.shape() == weights.shape())?;
    let sum = whole(builder, scores).filter(|step| matches!(step.kernel, Kernel::Binary(Binary::Add, _)))?;
    let [scaled, mask] = sum.inputs.as_slice() else { return None };
    let (mut product, mut scale) = (whole(builder, scaled)?, None);
    if let Kernel::Binary(op @ (Binary::Mul | Binary::Div), _) = product.kernel {
        let [scores, factor] = product.inputs.as_slice() else { return None };
        let factor = crate::builder::constant(factor).ok().filter(|factor| factor.layout.len() == 1)?;
        scale = Some((op, *factor.floats().ok()?.get(factor.layout.offset)?));
        product = whole(builder, scores)?;
    }
    let Kernel::MatMul { a: q, b: k } = &product.kernel else { return None };
    let [q_value, k_value] = product.inputs.as_slice() else { return None };
    let shape = weights.shape();
    let (&[ref outer @ .., rows, columns], &[.., depth, width]) = (shape, values.shape()) else { return None };
    if q.shape.len() != shape.len() || depth != columns || [mask.element, values.element] != [Element::Float; 2] {
        return None;
    }
    // A mask that is the same for all columns hides none.
    if mask.shape().last() != Some(&columns) {
        return None;
    }
    let mask_layout = mask.layout.broadcast(shape)?;
    let v = values.layout.broadcast(&[outer, &[columns, width]].concat())?;
    let made = [outer, &[rows, width]].concat();
    let direct = MaskedAttention { q: q.clone(), k: k.clone(), mask: mask_layout, v, scale };
    let inputs = [q_value, k_value, mask, values].map(Value::clone);
    let (attention, inputs) = shared(builder, &direct, &inputs).unwrap_or((direct, inputs));
    Some((attention, inputs.to_vec(), made))
}

/// The same over keys and values before they were copied for each head of queries, with an axis for the heads that share.
fn shared(builder: &Builder, direct: &MaskedAttention, inputs: &[Value; 4]) -> Option<(MaskedAttention, [Value; 4])> {
    let (k_value, k) = before_copy(builder, &inputs[1], &direct.k)?;
    let (v_value, v) = before_copy(builder, &inputs[3], &direct.v)?;
    let outer = &k.shape[..k.rank() - 2];
    if outer != &v.shape[..v.rank() - 2] {
        return None;
    }
    let split = |layout: &Layout| layout.reshaped(&[outer, &layout.shape[layout.rank() - 2..]].concat());
    let (q, mask) = (split(&direct.q)?, split(&direct.mask)?);
    let attention = MaskedAttention { q, k, mask, v, scale: direct.scale };
    Some((attention, [inputs[0].clone(), k_value, inputs[2].clone(), v_value]))
}

/// Where the numbers of a copy come from, over the axes that the copy had.
fn before_copy(builder: &Builder, value: &Value, layout: &Layout) -> Option<(Value, Layout)> {
    let copy = builder.maker(value).filter(|step| matches!(step.kernel, Kernel::Copy(_)))?;
    let from = copy.inputs.first()?;
    let rank = from.layout.rank();
    let &[.., rows, width] = from.layout.shape.as_slice() else { return None };
    // The view is the copy with its outer axes as one or several, and perhaps its last two turned.
    let last = layout.rank() - 2;
    let turned = match (&layout.shape[last..], &layout.strides[last..]) {
        ([a, b], [x, y]) if (*a, *b, *x, *y) == (rows, width, width, 1) => false,
        ([a, b], [x, y]) if (*a, *b, *x, *y) == (width, rows, 1, width) => true,
        _ => return None,
    };
    let expected = Layout::contiguous([&layout.shape[..last], &[rows, width]].concat());
    let same = layout.offset == 0 && layout.strides[..last] == expected.strides[..last];
    if !same || count(&layout.shape) != count(&from.layout.shape) {
        return None;
    }
    let mut order: Vec<usize> = (0..rank).collect();
    if turned {
        order.swap(rank - 2, rank - 1);
    }
    Some((from.clone(), from.layout.permuted(&order)))
}

impl MaskedAttention {
    /// q, k, mask, v.
    pub(crate) fn run(&self, inputs: &[Operand<'_>], out: &mut [f32]) -> std::result::Result<(), String> {
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
            Some((Binary::Mul, factor)) => scores.iter_mut().for_each(|score| *score *= factor),
            Some((_, factor)) => scores.iter_mut().for_each(|score| *score /= factor),
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
