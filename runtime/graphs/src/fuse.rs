//! Finds attention that a graph writes out, while its nodes become kernels.

use crate::builder::{Builder, KernelCall, Result, constant};
use crate::kernels::{Binary, Kernel};
use crate::layout::{Layout, count};
use crate::masked_attention::{MaskedAttention, Scale};
use crate::tensor::{Element, Value};

/// The product of two values; where they are the weights and the values of an attention, in one kernel.
pub(crate) fn product(builder: &mut Builder, weights: &Value, values: &Value) -> Result<Value> {
    let Some((attention, inputs, shape)) = find(builder, weights, values) else {
        return builder.matmul(weights, values);
    };
    let outputs = vec![(Element::Float, shape)];
    let mut made = builder.compute(Kernel::MaskedAttention(Box::new(attention)), inputs, outputs)?;
    made.pop().ok_or_else(|| "it makes nothing".to_owned())
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
        let factor = constant(factor).ok().filter(|factor| factor.layout.len() == 1)?;
        let factor = *factor.floats().ok()?.get(factor.layout.offset)?;
        scale = Some(if op == Binary::Mul { Scale::Times(factor) } else { Scale::Over(factor) });
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
