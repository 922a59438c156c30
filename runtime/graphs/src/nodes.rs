//! What each operator is, in terms of the builder's.

use cacheplan_transforms::onnx::{EdgeOp, TensorProto};

use crate::builder::{Builder, Result, axis, constant};
use crate::call::Call;
use crate::fuse;
use crate::kernels::{Binary, Cast, Compare, Reduce, Unary};
use crate::layout::count;
use crate::node::Node;
use crate::stateful;
use crate::tensor::{Data, Element, Slice, Value};

/// What an operator is.
enum Operator {
    Unary(Unary),
    /// Of two values or more, from the first on.
    Binary(Binary),
    Compare(Compare),
    Reduce(Reduce),
    One(fn(&mut Builder, &Call<'_>) -> Result<Value>),
    Many(fn(&mut Builder, &Call<'_>) -> Result<Vec<Value>>),
}

/// The operators that are run, besides those of TensorRT-Edge-LLM.
fn operator(name: &str) -> Option<Operator> {
    Some(match name {
        "Abs" => Operator::Unary(Unary::Abs),
        "Add" => Operator::Binary(Binary::Add),
        "And" => Operator::Binary(Binary::And),
        "Attention" => Operator::One(attention),
        "Cast" => Operator::One(cast),
        "CastLike" => Operator::One(cast_like),
        "Concat" => Operator::One(concat),
        "Constant" => Operator::One(|_, call| call.node.constant()),
        "ConstantOfShape" => Operator::One(constant_of_shape),
        "Cos" => Operator::Unary(Unary::Cos),
        "CumSum" => Operator::One(cumulative_sum),
        "Div" => Operator::Binary(Binary::Div),
        "Equal" => Operator::Compare(Compare::Equal),
        "Erf" => Operator::Unary(Unary::Erf),
        "Exp" => Operator::Unary(Unary::Exp),
        "Expand" => Operator::One(expand),
        "Flatten" => Operator::One(flatten),
        "Gather" => Operator::One(gather),
        "Gemm" => Operator::One(gemm),
        "Greater" => Operator::Compare(Compare::Greater),
        "GreaterOrEqual" => Operator::Compare(Compare::GreaterOrEqual),
        "Identity" => Operator::One(|_, call| call.input(0).cloned()),
        "IsNaN" => Operator::One(|builder, call| builder.is_nan(call.input(0)?)),
        "Less" => Operator::Compare(Compare::Less),
        "LessOrEqual" => Operator::Compare(Compare::LessOrEqual),
        "LinearAttention" | "com.microsoft.LinearAttention" => Operator::Many(stateful::linear_attention),
        "Log" => Operator::Unary(Unary::Log),
        "MatMul" => Operator::One(|builder, call| fuse::product(builder, call.input(0)?, call.input(1)?)),
        "Max" => Operator::Binary(Binary::Max),
        "Min" => Operator::Binary(Binary::Min),
        "Mul" => Operator::Binary(Binary::Mul),
        "Neg" => Operator::Unary(Unary::Neg),
        "Not" => Operator::Unary(Unary::Not),
        "Or" => Operator::Binary(Binary::Or),
        "Pow" => Operator::Binary(Binary::Pow),
        "RMSNormalization" => Operator::One(rms_norm),
        "Range" => Operator::One(range),
        "Reciprocal" => Operator::Unary(Unary::Reciprocal),
        "ReduceMax" => Operator::Reduce(Reduce::Max),
        "ReduceMean" => Operator::Reduce(Reduce::Mean),
        "ReduceSum" => Operator::Reduce(Reduce::Sum),
        "Relu" => Operator::Unary(Unary::Relu),
        "Reshape" => Operator::One(reshape),
        "ScatterND" => Operator::One(scatter),
        "Shape" => Operator::One(shape),
        "Sigmoid" => Operator::Unary(Unary::Sigmoid),
        "Sin" => Operator::Unary(Unary::Sin),
        "Slice" => Operator::One(slice),
        "Softmax" => Operator::One(softmax),
        "Softplus" => Operator::Unary(Unary::Softplus),
        "Split" => Operator::Many(split),
        "Sqrt" => Operator::Unary(Unary::Sqrt),
        "Squeeze" => Operator::One(squeeze),
        "Sub" => Operator::Binary(Binary::Sub),
        "Tanh" => Operator::Unary(Unary::Tanh),
        "TopK" => Operator::Many(top),
        "Transpose" => Operator::One(transpose),
        "Unsqueeze" => Operator::One(unsqueeze),
        "Where" => Operator::One(|builder, call| builder.choose(call.input(0)?, call.input(1)?, call.input(2)?)),
        _ => return None,
    })
}

/// Whether an operator is run.
pub(crate) fn is_known(name: &str) -> bool {
    operator(name).is_some()
}

/// Operators that look at a tensor in another way, and take it as it is stored.
fn is_view(name: &str) -> bool {
    matches!(
        name,
        "Expand"
            | "Flatten"
            | "Gather"
            | "Identity"
            | "Reshape"
            | "Shape"
            | "Slice"
            | "Split"
            | "Squeeze"
            | "ScatterND"
            | "Transpose"
            | "Unsqueeze"
    )
}

/// Adds a node to the program; returns what it makes.
pub(crate) fn lower(builder: &mut Builder, node: &Node, inputs: &[Option<Value>]) -> Result<Vec<Value>> {
    if let Some(edge) = node.edge {
        let call = Call { node, inputs };
        return match edge {
            EdgeOp::CausalConv1d(stated) => stateful::convolution(builder, &call, stated),
            EdgeOp::UpdateSsmState(stated) => stateful::scan(builder, &call, stated),
            EdgeOp::Attention(attention) => stateful::cached_attention(builder, &call, attention),
            _ => Err("there is no such operator here".to_owned()),
        };
    }
    let mut wide = Vec::new();
    if !is_view(&node.op) {
        for input in inputs {
            wide.push(input.as_ref().map(|input| builder.wide(input)).transpose()?);
        }
    }
    let inputs = if wide.is_empty() { inputs } else { &wide };
    let call = Call { node, inputs };
    let made = match operator(&node.op).ok_or("there is no such operator here")? {
        Operator::Unary(op) => builder.unary(op, call.input(0)?)?,
        Operator::Binary(op) => {
            let first = call.input(0)?.clone();
            (1..inputs.len()).try_fold(first, |result, at| builder.binary(op, &result, call.input(at)?))?
        }
        Operator::Compare(op) => builder.compare(op, call.input(0)?, call.input(1)?)?,
        Operator::Reduce(op) => reduce(builder, &call, op)?,
        Operator::One(make) => make(builder, &call)?,
        Operator::Many(make) => return make(builder, &call),
    };
    Ok(vec![made])
}

fn cast(builder: &mut Builder, call: &Call<'_>) -> Result<Value> {
    let to = call.node.int("to").ok_or("it has no `to`")?;
    builder.cast(cast_to(to)?, call.input(0)?)
}

fn cast_like(builder: &mut Builder, call: &Call<'_>) -> Result<Value> {
    let to = if call.input(1)?.element.is_float() { Cast::Float } else { Cast::Int };
    builder.cast(to, call.input(0)?)
}

fn concat(builder: &mut Builder, call: &Call<'_>) -> Result<Value> {
    let all = (0..call.inputs.len()).map(|at| call.input(at).cloned()).collect::<Result<Vec<Value>>>()?;
    builder.concat(all, call.node.int("axis").ok_or("it has no axis")?)
}

fn constant_of_shape(_: &mut Builder, call: &Call<'_>) -> Result<Value> {
    let shape = sizes(&call.ints(0)?)?;
    let number = match call.node.tensor("value")? {
        None => Data::Float(vec![0.0]),
        Some(value) => match constant(&value)?.data {
            Slice::Float(data) => Data::Float(data.to_vec()),
            Slice::Int(data) => Data::Int(data.to_vec()),
            _ => return Err("its number is of a type that is not computed".to_owned()),
        },
    };
    Builder::filled(number, &shape)
}

fn cumulative_sum(builder: &mut Builder, call: &Call<'_>) -> Result<Value> {
    let (node, x) = (call.node, call.input(0)?);
    if node.int("exclusive").unwrap_or(0) != 0 || node.int("reverse").unwrap_or(0) != 0 {
        return Err("only sums from the first on, itself included, are run".to_owned());
    }
    let [at] = call.ints(1)?[..] else { return Err("its axis is not one number".to_owned()) };
    builder.cumulative_sum(x, axis(at, x.layout.rank())?)
}

fn expand(_: &mut Builder, call: &Call<'_>) -> Result<Value> {
    Builder::expand(call.input(0)?, &sizes(&call.ints(1)?)?)
}

fn flatten(builder: &mut Builder, call: &Call<'_>) -> Result<Value> {
    let (x, at) = (call.input(0)?, call.node.int("axis").unwrap_or(1));
    let shape = x.shape();
    let at = if at == shape.len() as i64 { shape.len() } else { axis(at, shape.len())? };
    let (outer, inner) = shape.split_at(at);
    builder.reshape(x, vec![outer.iter().product(), inner.iter().product()])
}

fn gather(builder: &mut Builder, call: &Call<'_>) -> Result<Value> {
    let x = call.input(0)?;
    builder.gather(x, call.input(1)?, axis(call.node.int("axis").unwrap_or(0), x.layout.rank())?)
}

fn reshape(builder: &mut Builder, call: &Call<'_>) -> Result<Value> {
    let x = call.input(0)?;
    let shape = new_shape(x.shape(), &call.ints(1)?, call.node.int("allowzero").unwrap_or(0) != 0)?;
    builder.reshape(x, shape)
}

fn scatter(builder: &mut Builder, call: &Call<'_>) -> Result<Value> {
    if call.node.text("reduction").is_some_and(|found| found != "none") {
        return Err("only a scatter that replaces is run".to_owned());
    }
    let updates = builder.wide(call.input(2)?)?;
    builder.scatter(call.input(0)?, call.input(1)?, &updates)
}

fn shape(_: &mut Builder, call: &Call<'_>) -> Result<Value> {
    let shape = call.input(0)?.shape();
    let clamp = |at: i64| (if at < 0 { at + shape.len() as i64 } else { at }).clamp(0, shape.len() as i64) as usize;
    let (start, end) = (clamp(call.node.int("start").unwrap_or(0)), call.node.int("end").map_or(shape.len(), clamp));
    let part = shape.get(start..end.max(start)).unwrap_or(&[]);
    Ok(Builder::whole_numbers(part.iter().map(|&size| size as i64).collect()))
}

fn softmax(builder: &mut Builder, call: &Call<'_>) -> Result<Value> {
    let x = call.input(0)?;
    builder.softmax(x, axis(call.node.int("axis").unwrap_or(-1), x.layout.rank())?)
}

fn squeeze(builder: &mut Builder, call: &Call<'_>) -> Result<Value> {
    let x = call.input(0)?;
    let axes = call.axes_or(1, x.layout.rank())?;
    let shape = x.shape().iter().enumerate();
    let goes = |at: usize, size: usize| axes.as_ref().map_or(size == 1, |axes| axes.contains(&at));
    if let Some((at, size)) = shape.clone().find(|&(at, &size)| goes(at, size) && size != 1) {
        return Err(format!("axis {at} has {size} elements and cannot go"));
    }
    builder.reshape(x, shape.filter(|&(at, &size)| !goes(at, size)).map(|(_, &size)| size).collect())
}

fn top(builder: &mut Builder, call: &Call<'_>) -> Result<Vec<Value>> {
    let x = call.input(0)?;
    let at = axis(call.node.int("axis").unwrap_or(-1), x.layout.rank())?;
    let [count] = sizes(&call.ints(1)?)?[..] else { return Err("its number is not one".to_owned()) };
    builder.top(x, at, count, call.node.int("largest").unwrap_or(1) != 0)
}

fn transpose(_: &mut Builder, call: &Call<'_>) -> Result<Value> {
    let x = call.input(0)?;
    let rank = x.layout.rank();
    let order = match call.node.ints("perm") {
        Some(order) => order.iter().map(|&at| axis(at, rank)).collect::<Result<Vec<_>>>()?,
        None => (0..rank).rev().collect(),
    };
    Builder::transpose(x, &order)
}

fn unsqueeze(builder: &mut Builder, call: &Call<'_>) -> Result<Value> {
    let axes = call.ints_or(1, "axes")?.ok_or("it has no axes")?;
    builder.unsqueeze(call.input(0)?, &axes)
}

fn sizes(found: &[i64]) -> Result<Vec<usize>> {
    let size = |&size: &i64| usize::try_from(size).map_err(|_| format!("{size} is no size"));
    found.iter().map(size).collect()
}

fn cast_to(to: i64) -> Result<Cast> {
    match i32::try_from(to) {
        Ok(TensorProto::FLOAT) => Ok(Cast::Float),
        Ok(TensorProto::FLOAT16) => Ok(Cast::Half),
        Ok(TensorProto::BFLOAT16) => Ok(Cast::Brain),
        Ok(TensorProto::INT32 | TensorProto::INT64) => Ok(Cast::Int),
        Ok(TensorProto::BOOL) => Ok(Cast::Bool),
        _ => Err(format!("element type {to} is not computed; f32, f16, bf16, i32, i64 and bool are")),
    }
}

fn new_shape(old: &[usize], wanted: &[i64], zero_is_zero: bool) -> Result<Vec<usize>> {
    let mut open = None;
    let mut shape = Vec::with_capacity(wanted.len());
    for (at, &size) in wanted.iter().enumerate() {
        shape.push(match size {
            -1 if open.is_none() => {
                open = Some(at);
                1
            }
            0 if !zero_is_zero => *old.get(at).ok_or_else(|| format!("{wanted:?} keeps an axis that {old:?} lacks"))?,
            _ => usize::try_from(size).map_err(|_| format!("{wanted:?} is no shape"))?,
        });
    }
    if let Some(at) = open {
        let known = count(&shape).filter(|&known| known > 0);
        let whole: usize = old.iter().product();
        shape[at] = known
            .filter(|known| whole.is_multiple_of(*known))
            .map(|known| whole / known)
            .ok_or_else(|| format!("{old:?} cannot become {wanted:?}"))?;
    }
    Ok(shape)
}

fn range(builder: &mut Builder, call: &Call<'_>) -> Result<Value> {
    /// Longer than any sequence.
    const LONGEST: i64 = 1 << 28;
    let one = |at: usize| match call.ints(at)?[..] {
        [only] => Ok(only),
        _ => Err(format!("input {at} is not one number")),
    };
    let (start, limit, step) = (one(0)?, one(1)?, one(2)?);
    let count = match step {
        0 => return Err("its step is 0".to_owned()),
        step => {
            (i128::from(limit) - i128::from(start) + i128::from(step) - i128::from(step.signum())) / i128::from(step)
        }
    };
    if count > i128::from(LONGEST) {
        return Err(format!("it would be {count} numbers long"));
    }
    builder.afford(count.max(0) as usize)?;
    Ok(Builder::whole_numbers((0..count.max(0) as i64).map(|n| start + n * step).collect()))
}

fn slice(_: &mut Builder, call: &Call<'_>) -> Result<Value> {
    let mut value = call.input(0)?.clone();
    let (starts, ends) = (call.ints(1)?, call.ints(2)?);
    let axes = match call.get(3) {
        Some(_) => call.ints(3)?,
        None => (0..starts.len() as i64).collect(),
    };
    let steps = match call.get(4) {
        Some(_) => call.ints(4)?,
        None => vec![1; starts.len()],
    };
    if [ends.len(), axes.len(), steps.len()] != [starts.len(); 3] {
        return Err("its starts, ends, axes and steps are not as many".to_owned());
    }
    for (((start, end), at), step) in starts.into_iter().zip(ends).zip(axes).zip(steps) {
        let at = axis(at, value.layout.rank())?;
        let size = value.shape()[at] as i64;
        let clamp = |place: i64| if place < 0 { place.saturating_add(size) } else { place }.clamp(0, size);
        let step = usize::try_from(step).ok().filter(|&step| step > 0).ok_or("only steps forward are run")?;
        let (start, end) = (clamp(start) as usize, clamp(end) as usize);
        let len = end.saturating_sub(start);
        let mut layout = value.layout.narrow(at, start, len.div_ceil(step));
        if layout.shape[at] > 1 {
            layout.strides[at] *= step;
        }
        value = value.with(layout);
    }
    Ok(value)
}

fn split(_: &mut Builder, call: &Call<'_>) -> Result<Vec<Value>> {
    let x = call.input(0)?;
    let at = axis(call.node.int("axis").unwrap_or(0), x.layout.rank())?;
    let (size, parts) = (x.shape()[at], call.node.outputs.len());
    let lengths = match call.ints_or(1, "split")? {
        Some(lengths) => sizes(&lengths)?,
        None => {
            let each = size.div_ceil(parts.max(1));
            (0..parts).map(|n| size.saturating_sub(n * each).min(each)).collect()
        }
    };
    if lengths.len() != parts || lengths.iter().try_fold(0usize, |sum, &len| sum.checked_add(len)) != Some(size) {
        return Err(format!("an axis of {size} in {parts} parts is not {lengths:?}"));
    }
    let mut start = 0;
    let part = |len: usize| {
        start += len;
        x.with(x.layout.narrow(at, start - len, len))
    };
    Ok(lengths.into_iter().map(part).collect())
}

fn reduce(builder: &mut Builder, call: &Call<'_>, op: Reduce) -> Result<Value> {
    let x = call.input(0)?;
    let axes = call.axes_or(1, x.layout.rank())?.filter(|axes| !axes.is_empty());
    if axes.is_none() && call.node.int("noop_with_empty_axes").unwrap_or(0) != 0 {
        return Ok(x.clone());
    }
    let all = || (0..x.layout.rank()).collect();
    builder.reduce(op, x, axes.unwrap_or_else(all), call.node.int("keepdims").unwrap_or(1) != 0)
}

/// `alpha a b + beta c`, each matrix perhaps transposed.
fn gemm(builder: &mut Builder, call: &Call<'_>) -> Result<Value> {
    let node = call.node;
    let matrix = |at: usize, name: &str| {
        let value = call.input(at)?;
        if node.int(name).unwrap_or(0) == 0 { Ok(value.clone()) } else { Builder::transpose(value, &[1, 0]) }
    };
    let mut product = builder.matmul(&matrix(0, "transA")?, &matrix(1, "transB")?)?;
    let scaled = |builder: &mut Builder, value: Value, name: &str| match node.float(name).unwrap_or(1.0) {
        1.0 => Ok(value),
        factor => builder.binary(Binary::Mul, &value, &Builder::number(factor)),
    };
    product = scaled(builder, product, "alpha")?;
    match call.get(2) {
        Some(c) => {
            let c = scaled(builder, c.clone(), "beta")?;
            builder.binary(Binary::Add, &product, &c)
        }
        None => Ok(product),
    }
}

/// `x / sqrt(mean(x²) + epsilon) · scale`, over the axes from `axis` on.
fn rms_norm(builder: &mut Builder, call: &Call<'_>) -> Result<Value> {
    let (x, scale) = (call.input(0)?, call.input(1)?);
    let rank = x.layout.rank();
    let first = axis(call.node.int("axis").unwrap_or(-1), rank)?;
    let squares = builder.binary(Binary::Mul, x, x)?;
    let mean = builder.reduce(Reduce::Mean, &squares, (first..rank).collect(), true)?;
    let mean = builder.binary(Binary::Add, &mean, &Builder::number(call.node.float("epsilon").unwrap_or(1e-5)))?;
    let root = builder.unary(Unary::Sqrt, &mean)?;
    let factor = builder.unary(Unary::Reciprocal, &root)?;
    let normed = builder.binary(Binary::Mul, x, &factor)?;
    builder.binary(Binary::Mul, &normed, scale)
}

/// Opset 23's attention over keys and values that are given whole.
fn attention(builder: &mut Builder, call: &Call<'_>) -> Result<Value> {
    let node = call.node;
    if call.get(4).is_some() || call.get(5).is_some() || node.outputs.len() > 1 {
        return Err("it keeps a past of its own; only one that is given all keys is run".to_owned());
    }
    if node.float("softcap").unwrap_or(0.0) != 0.0 || node.int("is_causal").unwrap_or(0) != 0 {
        return Err("a soft cap or a mask of its own is not run".to_owned());
    }
    let heads = |builder: &mut Builder, at: usize, name: &str| {
        let value = call.input(at)?;
        match *value.shape() {
            [_, _, _, _] => Ok(value.clone()),
            [batch, tokens, width] => {
                let heads = node.int(name).and_then(|heads| usize::try_from(heads).ok()).filter(|&heads| heads > 0);
                let heads = heads
                    .filter(|heads| width.is_multiple_of(*heads))
                    .ok_or_else(|| format!("{name} does not divide {width}"))?;
                let split = builder.reshape(value, vec![batch, tokens, heads, width / heads])?;
                Builder::transpose(&split, &[0, 2, 1, 3])
            }
            _ => Err(format!("input {at} is {:?}", value.shape())),
        }
    };
    let flat = call.input(0)?.layout.rank() == 3;
    let q = heads(builder, 0, "q_num_heads")?;
    let (k, v) = (heads(builder, 1, "kv_num_heads")?, heads(builder, 2, "kv_num_heads")?);
    let (&[batch, q_heads, tokens, head_dim], &[_, kv_heads, ..]) = (q.shape(), k.shape()) else {
        return Err("its inputs have not four axes".to_owned());
    };
    if kv_heads == 0 || !q_heads.is_multiple_of(kv_heads) {
        return Err(format!("{q_heads} heads of queries do not share {kv_heads} of keys"));
    }
    let repeated = |builder: &mut Builder, value: &Value| {
        let &[batch, heads, tokens, width] = value.shape() else {
            return Err("its keys have not four axes".to_owned());
        };
        let apart = builder.unsqueeze(value, &[2])?;
        let each = Builder::expand(&apart, &[batch, heads, q_heads / kv_heads, tokens, width])?;
        builder.reshape(&each, vec![batch, q_heads, tokens, width])
    };
    // Both factors get the root of the scale, as the operator's definition has it.
    let scale = node.float("scale").unwrap_or(1.0 / (head_dim as f32).sqrt()).sqrt();
    let scale = Builder::number(scale);
    let q = builder.binary(Binary::Mul, &q, &scale)?;
    let k = builder.binary(Binary::Mul, &k, &scale)?;
    let (k, v) = (repeated(builder, &k)?, repeated(builder, &v)?);
    let mut scores = builder.matmul(&q, &Builder::transpose(&k, &[0, 1, 3, 2])?)?;
    if let Some(mask) = call.get(3) {
        let mask = if mask.element == Element::Int {
            builder.choose(mask, &Builder::number(0.0), &Builder::number(f32::MIN))?
        } else {
            mask.clone()
        };
        scores = builder.binary(Binary::Add, &scores, &mask)?;
    }
    let last = scores.layout.rank() - 1;
    let weights = builder.softmax(&scores, last)?;
    let y = fuse::product(builder, &weights, &v)?;
    if !flat {
        return Ok(y);
    }
    let width = y.shape()[3] * q_heads;
    let y = Builder::transpose(&y, &[0, 2, 1, 3])?;
    builder.reshape(&y, vec![batch, tokens, width])
}
