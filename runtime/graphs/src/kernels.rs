//! What the steps of a program compute, over buffers that are there already.

use candle_core::cpu::erf::erf_f32;
use half::{bf16, f16};

use crate::cached_attention::CachedAttention;
use crate::custom::{Convolution, LinearAttention, Scan, States};
use crate::layout::Layout;
use crate::masked_attention::MaskedAttention;
use crate::nest::{Nest, Row};
use crate::products::{matmul, softmax_rows};
use crate::tensor::{Data, Operand, Pooled, Slice, SliceMut, Stored};

/// The work of one step.
#[derive(Clone, Debug)]
pub(crate) enum Kernel {
    Unary(Unary, Nest),
    Binary(Binary, Nest),
    Compare(Compare, Nest),
    Where(Nest),
    IsNan(Nest),
    Cast(Cast, Nest),
    Copy(Nest),
    /// Along the axis; operands one behind the other.
    Concat(usize),
    /// Rows of the first operand along the axis, by the second.
    Gather(usize),
    Scatter,
    /// The layouts of both operands, broadcast over the batch.
    MatMul {
        a: Layout,
        b: Layout,
    },
    Reduce(Reduce),
    CumSum,
    Softmax,
    /// Of each row the largest, or the smallest, and where they stand.
    Top {
        largest: bool,
    },
    LinearAttention(LinearAttention),
    Convolution(Box<Convolution>),
    Scan(Box<Scan>),
    CachedAttention(CachedAttention),
    MaskedAttention(Box<MaskedAttention>),
}

impl Kernel {
    /// Whether it takes numbers from one place to another and computes nothing with them.
    pub(crate) fn moves(&self) -> bool {
        matches!(self, Self::Copy(_) | Self::Concat(_) | Self::Gather(_) | Self::Scatter | Self::CachedAttention(_))
    }

    /// How much is done for each number that it reads or makes, at most.
    pub(crate) fn depth(&self) -> usize {
        match self {
            Self::MaskedAttention(_) => 1 << 10,
            Self::MatMul { a, .. } => a.shape.last().copied().unwrap_or(1).max(1),
            Self::Convolution(_) | Self::Scan(_) | Self::LinearAttention(_) | Self::CachedAttention(_) => 1 << 10,
            _ => 1,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unary {
    Abs,
    Cos,
    Erf,
    Exp,
    Log,
    Neg,
    Not,
    Reciprocal,
    Relu,
    Sigmoid,
    Sin,
    Softplus,
    Sqrt,
    Tanh,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Binary {
    Add,
    And,
    Div,
    Max,
    Min,
    Mul,
    Or,
    Pow,
    Sub,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compare {
    Equal,
    Greater,
    GreaterOrEqual,
    Less,
    LessOrEqual,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cast {
    Float,
    /// A float, rounded to what `f16` has.
    Half,
    /// The same with `bf16`.
    Brain,
    Int,
    Bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reduce {
    Max,
    Mean,
    Sum,
}

type Done = Result<(), String>;

/// Makes the outputs of a step, which have the sizes that the program gave them.
pub(crate) fn run(kernel: &Kernel, inputs: &[Operand<'_>], outputs: &mut [Data], wrote: &mut Wrote) -> Done {
    match (kernel, outputs) {
        (Kernel::Unary(op, nest), [Data::Float(out)]) => unary(*op, nest, inputs[0].floats()?, out),
        (Kernel::Unary(op, nest), [Data::Int(out)]) => int_unary(*op, nest, inputs[0].ints()?, out)?,
        (Kernel::Binary(op, nest), [Data::Float(out)]) => {
            binary(*op, nest, inputs[0].floats()?, inputs[1].floats()?, out);
        }
        (Kernel::Binary(op, nest), [Data::Int(out)]) => {
            int_binary(*op, nest, inputs[0].ints()?, inputs[1].ints()?, out)?;
        }
        (Kernel::Compare(op, nest), [Data::Int(out)]) => match (inputs[0].data, inputs[1].data) {
            (Slice::Float(a), Slice::Float(b)) => compare(*op, nest, a, b, out),
            (Slice::Int(a), Slice::Int(b)) => compare(*op, nest, a, b, out),
            _ => return Err("its operands are of two types".to_owned()),
        },
        (Kernel::Where(nest), [Data::Float(out)]) => {
            choose(nest, inputs[0].ints()?, inputs[1].floats()?, inputs[2].floats()?, out);
        }
        (Kernel::Where(nest), [Data::Int(out)]) => {
            choose(nest, inputs[0].ints()?, inputs[1].ints()?, inputs[2].ints()?, out);
        }
        (Kernel::IsNan(nest), [Data::Int(out)]) => map(nest, inputs[0].floats()?, out, |x| i64::from(x.is_nan())),
        (Kernel::Cast(to, nest), [out]) => cast(*to, nest, inputs[0].data, out)?,
        (Kernel::Copy(nest), [Data::Float(out)]) => copy(nest, inputs[0].floats()?, out),
        (Kernel::Copy(nest), [Data::Int(out)]) => copy(nest, inputs[0].ints()?, out),
        (Kernel::Concat(axis), [Data::Float(out)]) => concat(*axis, inputs, Operand::floats, out)?,
        (Kernel::Concat(axis), [Data::Int(out)]) => concat(*axis, inputs, Operand::ints, out)?,
        (Kernel::Gather(axis), [Data::Float(out)]) => {
            gather(*axis, inputs[0].floats()?, inputs[0].layout, &inputs[1], out)?;
        }
        (Kernel::Gather(axis), [Data::Int(out)]) => {
            gather(*axis, inputs[0].ints()?, inputs[0].layout, &inputs[1], out)?;
        }
        (Kernel::Scatter, [Data::Float(out)]) => scattered(inputs, Operand::floats, out, wrote)?,
        (Kernel::Scatter, [Data::Int(out)]) => scattered(inputs, Operand::ints, out, wrote)?,
        (Kernel::MaskedAttention(attention), [Data::Float(out)]) => attention.run(inputs, out)?,
        (Kernel::MatMul { a, b }, [Data::Float(out)]) => {
            matmul(inputs[0].floats()?, a, inputs[1].floats()?, b, out)?;
        }
        (Kernel::Reduce(op), [Data::Float(out)]) => reduce(*op, inputs[0].rows()?, out),
        (Kernel::CumSum, [Data::Float(out)]) => cumulative(inputs[0].rows()?, inputs[0].layout, out),
        (Kernel::Softmax, [Data::Float(out)]) => softmax(inputs[0].rows()?, inputs[0].layout, out),
        (Kernel::Top { largest }, [Data::Float(values), Data::Int(places)]) => {
            top(*largest, inputs[0].rows()?, inputs[0].layout, values, places);
        }
        (Kernel::LinearAttention(attention), [Data::Float(out), Data::Float(state)]) => {
            attention.run(inputs, out, States::Made(state))?;
        }
        (Kernel::Convolution(convolution), [Data::Float(out), Data::Float(state)]) => {
            convolution.run(inputs, out, States::Made(state))?;
        }
        (Kernel::Scan(scan), [Data::Float(out), Data::Float(state)]) => scan.run(inputs, out, States::Made(state))?,
        (Kernel::CachedAttention(attention), [Data::Float(out), Data::Float(cache)]) => {
            cache.copy_from_slice(&inputs[3].gathered()?);
            attention.run(inputs, out, cache.as_mut_slice(), &mut |_, _| {})?;
        }
        _ => return Err("it is not defined for elements of this type".to_owned()),
    }
    Ok(())
}

fn map<T: Copy, U>(nest: &Nest, x: &[T], out: &mut [U], f: impl Fn(T) -> U) {
    nest.for_rows(|at, Row { starts: [x_at, ..], strides: [step, ..], len }| {
        let out = &mut out[at..at + len];
        if step == 1 {
            out.iter_mut().zip(&x[x_at..x_at + len]).for_each(|(out, x)| *out = f(*x));
        } else {
            out.iter_mut().enumerate().for_each(|(n, out)| *out = f(x[x_at + n * step]));
        }
    });
}

fn zip<T: Copy, U>(nest: &Nest, a: &[T], b: &[T], out: &mut [U], f: impl Fn(T, T) -> U) {
    nest.for_rows(|at, Row { starts: [a_at, b_at, _], strides, len }| {
        let out = &mut out[at..at + len];
        match strides {
            [1, 1, _] => {
                let operands = a[a_at..a_at + len].iter().zip(&b[b_at..b_at + len]);
                out.iter_mut().zip(operands).for_each(|(out, (a, b))| *out = f(*a, *b));
            }
            [1, 0, _] => {
                let b = b[b_at];
                out.iter_mut().zip(&a[a_at..a_at + len]).for_each(|(out, a)| *out = f(*a, b));
            }
            [0, 1, _] => {
                let a = a[a_at];
                out.iter_mut().zip(&b[b_at..b_at + len]).for_each(|(out, b)| *out = f(a, *b));
            }
            [a_step, b_step, _] => {
                let each = out.iter_mut().enumerate();
                each.for_each(|(n, out)| *out = f(a[a_at + n * a_step], b[b_at + n * b_step]));
            }
        }
    });
}

fn copy<T: Copy>(nest: &Nest, x: &[T], out: &mut [T]) {
    nest.for_rows(|at, Row { starts: [x_at, ..], strides: [step, ..], len }| {
        let out = &mut out[at..at + len];
        match step {
            1 => out.copy_from_slice(&x[x_at..x_at + len]),
            0 => out.fill(x[x_at]),
            _ => out.iter_mut().enumerate().for_each(|(n, out)| *out = x[x_at + n * step]),
        }
    });
}

fn unary(op: Unary, nest: &Nest, x: &[f32], out: &mut [f32]) {
    match op {
        Unary::Abs => map(nest, x, out, f32::abs),
        Unary::Cos => map(nest, x, out, f32::cos),
        Unary::Erf => map(nest, x, out, erf_f32),
        Unary::Exp => map(nest, x, out, f32::exp),
        Unary::Log => map(nest, x, out, f32::ln),
        Unary::Neg => map(nest, x, out, |x| -x),
        Unary::Not => map(nest, x, out, |x| f32::from(x == 0.0)),
        Unary::Reciprocal => map(nest, x, out, |x| 1.0 / x),
        Unary::Relu => map(nest, x, out, |x| if x < 0.0 { 0.0 } else { x }),
        Unary::Sigmoid => map(nest, x, out, |x| 1.0 / (1.0 + (-x).exp())),
        Unary::Sin => map(nest, x, out, f32::sin),
        Unary::Softplus => map(nest, x, out, |x| if x > 20.0 { x } else { x.exp().ln_1p() }),
        Unary::Sqrt => map(nest, x, out, f32::sqrt),
        Unary::Tanh => map(nest, x, out, f32::tanh),
    }
}

fn int_unary(op: Unary, nest: &Nest, x: &[i64], out: &mut [i64]) -> Done {
    match op {
        Unary::Abs => map(nest, x, out, i64::wrapping_abs),
        Unary::Neg => map(nest, x, out, i64::wrapping_neg),
        Unary::Not => map(nest, x, out, |x| i64::from(x == 0)),
        _ => return Err("it is not defined for whole numbers".to_owned()),
    }
    Ok(())
}

fn binary(op: Binary, nest: &Nest, a: &[f32], b: &[f32], out: &mut [f32]) {
    match op {
        Binary::Add => zip(nest, a, b, out, |a, b| a + b),
        Binary::And => zip(nest, a, b, out, |a, b| f32::from(a != 0.0 && b != 0.0)),
        Binary::Div => zip(nest, a, b, out, |a, b| a / b),
        Binary::Max => zip(nest, a, b, out, |a: f32, b| if a.is_nan() || a > b { a } else { b }),
        Binary::Min => zip(nest, a, b, out, |a: f32, b| if a.is_nan() || a < b { a } else { b }),
        Binary::Mul => zip(nest, a, b, out, |a, b| a * b),
        Binary::Or => zip(nest, a, b, out, |a, b| f32::from(a != 0.0 || b != 0.0)),
        // Squares are what norms are made of.
        Binary::Pow => zip(nest, a, b, out, |a: f32, b| if b == 2.0 { a * a } else { a.powf(b) }),
        Binary::Sub => zip(nest, a, b, out, |a, b| a - b),
    }
}

fn int_binary(op: Binary, nest: &Nest, a: &[i64], b: &[i64], out: &mut [i64]) -> Done {
    match op {
        Binary::Add => zip(nest, a, b, out, i64::wrapping_add),
        Binary::And => zip(nest, a, b, out, |a, b| i64::from(a != 0 && b != 0)),
        Binary::Div => {
            zip(nest, a, b, out, |a, b| a.checked_div(b).unwrap_or(i64::MIN));
            if b.contains(&0) {
                return Err("a division by zero".to_owned());
            }
        }
        Binary::Max => zip(nest, a, b, out, i64::max),
        Binary::Min => zip(nest, a, b, out, i64::min),
        Binary::Mul => zip(nest, a, b, out, i64::wrapping_mul),
        Binary::Or => zip(nest, a, b, out, |a, b| i64::from(a != 0 || b != 0)),
        Binary::Pow => return Err("it is not defined for whole numbers".to_owned()),
        Binary::Sub => zip(nest, a, b, out, i64::wrapping_sub),
    }
    Ok(())
}

fn compare<T: Copy + PartialOrd>(op: Compare, nest: &Nest, a: &[T], b: &[T], out: &mut [i64]) {
    match op {
        Compare::Equal => zip(nest, a, b, out, |a, b| i64::from(a == b)),
        Compare::Greater => zip(nest, a, b, out, |a, b| i64::from(a > b)),
        Compare::GreaterOrEqual => zip(nest, a, b, out, |a, b| i64::from(a >= b)),
        Compare::Less => zip(nest, a, b, out, |a, b| i64::from(a < b)),
        Compare::LessOrEqual => zip(nest, a, b, out, |a, b| i64::from(a <= b)),
    }
}

fn choose<T: Copy>(nest: &Nest, condition: &[i64], a: &[T], b: &[T], out: &mut [T]) {
    nest.for_rows(|at, Row { starts, strides, len }| {
        let out = &mut out[at..at + len];
        // One of two numbers, as masks are.
        if strides == [1, 0, 0] {
            let (a, b) = (a[starts[1]], b[starts[2]]);
            let condition = &condition[starts[0]..][..len];
            return out
                .iter_mut()
                .zip(condition)
                .for_each(|(out, condition)| *out = if *condition != 0 { a } else { b });
        }
        for (n, out) in out.iter_mut().enumerate() {
            let at = |operand: usize| starts[operand] + n * strides[operand];
            *out = if condition[at(0)] != 0 { a[at(1)] } else { b[at(2)] };
        }
    });
}

fn cast(to: Cast, nest: &Nest, from: Slice<'_>, out: &mut Data) -> Done {
    match (from, to, out) {
        (Slice::Float(x), Cast::Float, Data::Float(out)) => copy(nest, x, out),
        (Slice::Half(x), Cast::Float, Data::Float(out)) => map(nest, x, out, f16::to_f32),
        (Slice::Brain(x), Cast::Float, Data::Float(out)) => map(nest, x, out, bf16::to_f32),
        (Slice::Float(x), Cast::Half, Data::Float(out)) => map(nest, x, out, |x| f16::from_f32(x).to_f32()),
        (Slice::Float(x), Cast::Brain, Data::Float(out)) => map(nest, x, out, |x| bf16::from_f32(x).to_f32()),
        (Slice::Int(x), Cast::Half, Data::Float(out)) => map(nest, x, out, |x| f16::from_f32(x as f32).to_f32()),
        (Slice::Int(x), Cast::Brain, Data::Float(out)) => map(nest, x, out, |x| bf16::from_f32(x as f32).to_f32()),
        (Slice::Int(x), Cast::Int, Data::Int(out)) => copy(nest, x, out),
        (Slice::Int(x), Cast::Float, Data::Float(out)) => map(nest, x, out, |x| x as f32),
        (Slice::Float(x), Cast::Int, Data::Int(out)) => map(nest, x, out, |x| x as i64),
        (Slice::Int(x), Cast::Bool, Data::Int(out)) => map(nest, x, out, |x| i64::from(x != 0)),
        (Slice::Float(x), Cast::Bool, Data::Int(out)) => map(nest, x, out, |x| i64::from(x != 0.0)),
        _ => return Err("it is not defined between these types".to_owned()),
    }
    Ok(())
}

type Take<'a, T> = fn(&Operand<'a>) -> Result<&'a [T], String>;

fn concat<'a, T: Copy>(axis: usize, inputs: &[Operand<'a>], take: Take<'a, T>, out: &mut [T]) -> Done {
    let behind = |operand: &Operand<'_>| operand.layout.shape[axis..].iter().product::<usize>();
    let width: usize = inputs.iter().map(behind).sum();
    let mut first = 0;
    for input in inputs {
        let (data, part) = (take(input)?, behind(input));
        // Each loop lies within one stretch of the output: the axes from `axis` on are contiguous there.
        Nest::new(&input.layout.shape, &[input.layout]).for_rows(|at, Row { starts, strides, len }| {
            let mut done = 0;
            while done < len {
                let (row, column) = ((at + done) / part, (at + done) % part);
                let some = (part - column).min(len - done);
                let target = &mut out[row * width + first + column..][..some];
                let from = starts[0] + done * strides[0];
                match strides[0] {
                    1 => target.copy_from_slice(&data[from..from + some]),
                    step => target.iter_mut().enumerate().for_each(|(n, target)| *target = data[from + n * step]),
                }
                done += some;
            }
        });
        first += part;
    }
    Ok(())
}

/// An index into an axis of `size`, which may be counted from its end.
pub(crate) fn index(found: i64, size: usize) -> Result<usize, String> {
    let from_start = if found < 0 { found.checked_add(size as i64) } else { Some(found) };
    let fits = from_start.and_then(|found| usize::try_from(found).ok()).filter(|&found| found < size);
    fits.ok_or_else(|| format!("index {found} is not within an axis of {size}"))
}

fn gather<T: Copy>(axis: usize, data: &[T], layout: &Layout, indices: &Operand<'_>, out: &mut [T]) -> Done {
    let found = indices.ints()?;
    let mut chosen = Vec::with_capacity(indices.layout.len());
    Nest::new(&indices.layout.shape, &[indices.layout]).for_rows(|_, Row { starts, strides, len }| {
        chosen.extend((0..len).map(|n| found[starts[0] + n * strides[0]]));
    });
    let (outer, inner): (Vec<usize>, Vec<usize>) = ((0..axis).collect(), (axis + 1..layout.rank()).collect());
    let (outer, inner) = (layout.permuted(&outer), layout.permuted(&inner));
    let part = inner.len();
    let mut at = 0;
    let mut done: Done = Ok(());
    Nest::new(&outer.shape, &[&outer]).for_rows(|_, Row { starts, strides, len }| {
        for start in (0..len).map(|n| starts[0] + n * strides[0]) {
            for &found in &chosen {
                match index(found, layout.shape[axis]) {
                    Ok(row) => {
                        let inner = Layout { offset: start + row * layout.strides[axis], ..inner.clone() };
                        copy(&Nest::new(&inner.shape, &[&inner]), data, &mut out[at..at + part]);
                    }
                    Err(error) => done = Err(error),
                }
                at += part;
            }
        }
    });
    done
}

/// Indices `[…, depth]` into data of this layout, updates `[…, rest of the data]`: calls `write` with the place of each
/// element among the data's and with what it becomes.
fn scatter<'a, T: Copy>(
    data: &Layout,
    indices: &Operand<'_>,
    updates: &Operand<'a>,
    take: Take<'a, T>,
    mut write: impl FnMut(usize, T),
) -> Done {
    let (found, layout) = (indices.ints()?, indices.layout);
    let last = layout.rank() - 1;
    let depth = layout.shape[last];
    let (part_shape, part_strides) = (&data.shape[depth..], &data.strides[depth..]);
    // The updates of one index: their last axes, behind as many as there are indices.
    let inner = updates.layout.permuted(&(last..updates.layout.rank()).collect::<Vec<_>>());
    let outer =
        [layout.permuted(&(0..last).collect::<Vec<_>>()), updates.layout.permuted(&(0..last).collect::<Vec<_>>())];
    let from = take(updates)?;
    let mut done: Done = Ok(());
    Nest::new(&outer[0].shape, &[&outer[0], &outer[1]]).for_rows(|_, Row { starts, strides, len }| {
        for n in 0..len {
            let place = (0..depth).try_fold(data.offset, |place, axis| {
                let found = found[starts[0] + n * strides[0] + axis * layout.strides[last]];
                Ok(place + data.strides[axis] * index(found, data.shape[axis])?)
            });
            match place {
                Ok(offset) => {
                    let inner = Layout { offset: starts[1] + n * strides[1], ..inner.clone() };
                    let part = Layout { shape: part_shape.to_vec(), strides: part_strides.to_vec(), offset };
                    Nest::new(part_shape, &[&part, &inner]).for_rows(|_, Row { starts, strides, len }| {
                        (0..len).for_each(|n| write(starts[0] + n * strides[0], from[starts[1] + n * strides[1]]));
                    });
                }
                Err(error) => done = Err(error),
            }
        }
    });
    done
}

/// What the data of a scatter is made of what it was: everywhere, or where the last run wrote.
fn scattered<'a, T: Copy>(inputs: &[Operand<'a>], take: Take<'a, T>, out: &mut [T], wrote: &mut Wrote) -> Done {
    let [data, indices, updates] = inputs else { return Err("it takes three inputs".to_owned()) };
    let values = take(data)?;
    match wrote {
        Wrote::These(places) if is_fill(data.layout) => {
            places.drain(..).for_each(|place| out[place] = values[data.layout.offset]);
        }
        _ => copy(&Nest::new(&data.layout.shape, &[data.layout]), values, out),
    }
    let mut places = Vec::new();
    let own = Layout::contiguous(data.layout.shape.clone());
    let done = scatter(&own, indices, updates, take, |place, value| {
        out[place] = value;
        places.push(place);
    });
    *wrote = Wrote::These(places);
    done
}

/// Whether a tensor is one number everywhere.
pub(crate) fn is_fill(layout: &Layout) -> bool {
    layout.shape.iter().zip(&layout.strides).all(|(&size, &stride)| size == 1 || stride == 0)
}

/// Which elements of a buffer a scatter wrote in the last run.
#[derive(Clone, Debug, Default)]
pub(crate) enum Wrote {
    #[default]
    Unknown,
    These(Vec<usize>),
}

/// An operand that is written where it lies, and what it was there before.
pub(crate) struct Target<'a> {
    pub(crate) data: SliceMut<'a>,
    pub(crate) layout: &'a Layout,
    /// Places, and the numbers that were there.
    pub(crate) before: &'a mut Vec<(usize, f32)>,
}

/// Makes the outputs of a step one of whose operands is written where it lies.
pub(crate) fn run_at(kernel: &Kernel, inputs: &[Operand<'_>], outputs: &mut [Data], target: Target<'_>) -> Done {
    fn scatter_at<T: Stored>(
        inputs: &[Operand<'_>],
        data: &mut [T],
        layout: &Layout,
        before: &mut Vec<(usize, f32)>,
    ) -> Done {
        scatter(layout, &inputs[1], &inputs[2], Operand::floats, |place, value| {
            before.push((place, data[place].wide()));
            data[place] = T::narrow(value);
        })
    }
    let Target { data, layout, before } = target;
    match (kernel, outputs, data) {
        (Kernel::Scatter, [], SliceMut::Float(data)) => scatter_at(inputs, data, layout, before),
        (Kernel::Scatter, [], SliceMut::Half(data)) => scatter_at(inputs, data, layout, before),
        (Kernel::Scatter, [], SliceMut::Brain(data)) => scatter_at(inputs, data, layout, before),
        (Kernel::CachedAttention(attention), [Data::Float(out)], data) => match data {
            SliceMut::Float(data) => attention
                .run(inputs, out, &mut data[layout.span()], &mut |at, old| before.push((layout.offset + at, old))),
            SliceMut::Half(data) => attention
                .run(inputs, out, &mut data[layout.span()], &mut |at, old| before.push((layout.offset + at, old))),
            SliceMut::Brain(data) => attention
                .run(inputs, out, &mut data[layout.span()], &mut |at, old| before.push((layout.offset + at, old))),
        },
        _ => Err("it cannot be written where it lies".to_owned()),
    }
}

/// Makes the outputs of a step but for the states, which it renews in their pool.
pub(crate) fn renew(kernel: &Kernel, inputs: &[Operand<'_>], outputs: &mut [Data], states: &Pooled<'_>) -> Done {
    match (kernel, outputs) {
        (Kernel::LinearAttention(attention), [Data::Float(out)]) => attention.run(inputs, out, States::Pooled(states)),
        (Kernel::Convolution(convolution), [Data::Float(out)]) => convolution.run(inputs, out, States::Pooled(states)),
        (Kernel::Scan(scan), [Data::Float(out)]) => scan.run(inputs, out, States::Pooled(states)),
        _ => Err("it keeps no state".to_owned()),
    }
}

fn reduce(op: Reduce, x: &[f32], out: &mut [f32]) {
    let width = x.len().checked_div(out.len()).unwrap_or(0);
    for (row, out) in out.iter_mut().enumerate() {
        let x = &x[row * width..][..width];
        *out = match op {
            Reduce::Max => x.iter().copied().fold(f32::NEG_INFINITY, f32::max),
            Reduce::Sum => sum(x),
            Reduce::Mean => sum(x) / width as f32,
        };
    }
}

/// In eight lanes, so that it does not take one addition after the other.
fn sum(x: &[f32]) -> f32 {
    let mut lanes = [0f32; 8];
    let chunks = x.chunks_exact(8);
    let tail: f32 = chunks.remainder().iter().sum();
    chunks.for_each(|chunk| lanes.iter_mut().zip(chunk).for_each(|(lane, x)| *lane += x));
    lanes.iter().sum::<f32>() + tail
}

fn cumulative(x: &[f32], layout: &Layout, out: &mut [f32]) {
    let width = layout.shape.last().copied().unwrap_or(1).max(1);
    for (x, out) in x.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
        let mut sum = 0.0;
        out.iter_mut().zip(x).for_each(|(out, x)| {
            sum += x;
            *out = sum;
        });
    }
}

/// Of equal numbers the earlier one comes first.
fn top(largest: bool, x: &[f32], layout: &Layout, values: &mut [f32], places: &mut [i64]) {
    let width = layout.shape.last().copied().unwrap_or(1).max(1);
    let count = values.len() / (x.len() / width).max(1);
    let mut order: Vec<usize> = Vec::with_capacity(width);
    let rows = values.chunks_exact_mut(count.max(1)).zip(places.chunks_exact_mut(count.max(1)));
    for (x, (values, places)) in x.chunks_exact(width).zip(rows) {
        order.clear();
        order.extend(0..width);
        order.sort_by(|&a, &b| if largest { x[b].total_cmp(&x[a]) } else { x[a].total_cmp(&x[b]) });
        for ((value, place), &at) in values.iter_mut().zip(places).zip(&order) {
            (*value, *place) = (x[at], at as i64);
        }
    }
}

fn softmax(x: &[f32], layout: &Layout, out: &mut [f32]) {
    out.copy_from_slice(x);
    softmax_rows(out, layout.shape.last().copied().unwrap_or(1));
}
