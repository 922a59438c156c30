//! From operations on tensors to the steps of a program: what only moves numbers becomes another layout, what depends
//! on nothing open is computed at once, and the rest is left to a run.

use std::collections::HashSet;
use std::sync::Arc;

use crate::kernels::{Binary, Cast, Compare, Kernel, Reduce, Unary, Wrote, run};
use crate::layout::{Layout, MAX_RANK, count};
use crate::nest::{Nest, gathered};
use crate::tensor::{Data, Element, Operand, Slice, Source, Value};

/// Numbers of one tensor: 4 GiB of them.
const MAX_LEN: usize = 1 << 30;
/// Numbers of a tensor that says sizes or places: as many as there are axes, or parts.
const MAX_KNOWN: usize = 1 << 10;

pub(crate) type Result<T> = std::result::Result<T, String>;

/// A kernel with its operands, and what it makes.
#[derive(Clone, Debug)]
pub(crate) struct KernelCall {
    /// The node that it is a part of.
    pub(crate) node: usize,
    pub(crate) kernel: Kernel,
    pub(crate) inputs: Vec<Value>,
    pub(crate) outputs: Vec<usize>,
    /// The operand that is written where it lies, which is what the last output would be.
    pub(crate) target: Option<usize>,
    /// The operand that is a state in a pool, and is renewed there; the output that takes its place is not made.
    pub(crate) renews: Option<usize>,
}

/// What a step makes: so many numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Buffer {
    pub(crate) element: Element,
    pub(crate) len: usize,
}

/// The steps so far.
#[derive(Debug, Default)]
pub(crate) struct Builder {
    /// The node that is being looked at.
    pub(crate) node: usize,
    pub(crate) steps: Vec<KernelCall>,
    pub(crate) buffers: Vec<Buffer>,
    /// Which inputs are lent to be written.
    pub(crate) lent: Vec<bool>,
    /// Which are states that are renewed in their pools.
    pub(crate) renewed: Vec<bool>,
    /// Nodes that make what they return anew, since something still reads what they would write.
    pub(crate) apart: HashSet<usize>,
    /// How much may still be computed at once.
    allowance: usize,
    /// Whether that was too little.
    is_spent: bool,
}

/// The common shape of operands.
pub(crate) fn broadcast(shapes: &[&[usize]]) -> Result<Vec<usize>> {
    let rank = shapes.iter().map(|shape| shape.len()).max().unwrap_or(0);
    let mut common = vec![1; rank];
    for shape in shapes {
        for (size, &own) in common[rank - shape.len()..].iter_mut().zip(*shape) {
            match (*size, own) {
                (1, own) => *size = own,
                (size, own) if own == 1 || own == size => {}
                _ => return Err(format!("shapes {shapes:?} do not go together")),
            }
        }
    }
    Ok(common)
}

/// An axis, which may be counted from the last.
pub(crate) fn axis(found: i64, rank: usize) -> Result<usize> {
    crate::kernels::index(found, rank).map_err(|_| format!("axis {found} of a tensor with {rank}"))
}

fn operand(value: &Value) -> Option<Operand<'_>> {
    let Source::Constant(data) = &value.place else { return None };
    Some(Operand { data: data.slice(), layout: &value.layout })
}

/// A constant, for kernels that keep it.
pub(crate) fn constant(value: &Value) -> Result<Operand<'_>> {
    operand(value).ok_or_else(|| "one of its parameters is not a constant".to_owned())
}

impl Builder {
    /// A builder that computes at once what takes no more than `allowance` steps together.
    pub(crate) fn new(allowance: usize) -> Self {
        Self { allowance, ..Self::default() }
    }

    /// Whether the last error was that it would take too much to compute a node at once.
    pub(crate) fn put_off(&mut self) -> bool {
        std::mem::take(&mut self.is_spent)
    }

    /// Takes the work of computing something at once from what is left.
    pub(crate) fn afford(&mut self, work: usize) -> Result<()> {
        match self.allowance.checked_sub(work) {
            Some(left) => self.allowance = left,
            None => {
                self.is_spent = true;
                return Err("it takes too much to compute".to_owned());
            }
        }
        Ok(())
    }

    /// What a kernel makes of its operands: at once if they are constants, else when the program runs.
    pub(crate) fn compute(
        &mut self,
        kernel: Kernel,
        inputs: Vec<Value>,
        outputs: Vec<(Element, Vec<usize>)>,
    ) -> Result<Vec<Value>> {
        let mut sizes = Vec::with_capacity(outputs.len());
        for (_, shape) in &outputs {
            let len = count(shape).filter(|&len| len <= MAX_LEN && shape.len() <= MAX_RANK);
            sizes.push(len.ok_or_else(|| format!("what it makes would be {shape:?}"))?);
        }
        let operands: Option<Vec<Operand<'_>>> = inputs.iter().map(operand).collect();
        if let Some(operands) = operands {
            let read = operands.iter().map(|operand| operand.layout.len());
            let work = sizes.iter().copied().chain(read).fold(1, usize::saturating_add);
            self.afford(work.saturating_mul(kernel.depth()))?;
            let zeros = outputs.iter().zip(&sizes).map(|((element, _), &len)| Data::zeros(*element, len));
            let mut made = zeros.collect::<Result<Vec<Data>>>()?;
            run(&kernel, &operands, &mut made, &mut Wrote::default())?;
            return Ok(made.into_iter().zip(outputs).map(|(data, (_, shape))| Value::constant(data, shape)).collect());
        }
        let first = self.buffers.len();
        self.buffers.extend(outputs.iter().zip(&sizes).map(|((element, _), &len)| Buffer { element: *element, len }));
        let places = (first..self.buffers.len()).collect();
        self.steps.push(KernelCall { node: self.node, kernel, inputs, outputs: places, target: None, renews: None });
        let values = outputs.into_iter().enumerate().map(|(n, (element, shape))| Value {
            place: Source::Buffer(first + n),
            element,
            layout: Layout::contiguous(shape),
        });
        Ok(values.collect())
    }

    /// As [`Self::compute`]; the last output takes the place of the operand at `at`, where that is lent to be written.
    pub(crate) fn compute_at(
        &mut self,
        kernel: Kernel,
        inputs: Vec<Value>,
        outputs: Vec<(Element, Vec<usize>)>,
        at: usize,
    ) -> Result<Vec<Value>> {
        let Some(number) = self.writable(&inputs, at) else { return self.compute(kernel, inputs, outputs) };
        let own = &inputs[at];
        let place = Source::Written(number, self.steps.len());
        let written = Value { place, element: own.element, layout: own.layout.clone() };
        self.compute_but_last(kernel, inputs, outputs, written, |step| step.target = Some(at))
    }

    /// What a kernel makes of its operands, the one at `at` being a state that the last output takes the place of: where it
    /// lies in a pool, that is renewed.
    pub(crate) fn compute_state(
        &mut self,
        kernel: Kernel,
        inputs: Vec<Value>,
        outputs: Vec<(Element, Vec<usize>)>,
        at: usize,
    ) -> Result<Vec<Value>> {
        let state = inputs[at].clone();
        if state.place.input().is_none_or(|number| self.renewed.get(number) != Some(&true)) {
            return self.compute(kernel, inputs, outputs);
        }
        self.compute_but_last(kernel, inputs, outputs, state, |step| step.renews = Some(at))
    }

    /// What a kernel makes, of which the last is there already; `say` tells the step where that lies.
    fn compute_but_last(
        &mut self,
        kernel: Kernel,
        inputs: Vec<Value>,
        mut outputs: Vec<(Element, Vec<usize>)>,
        last: Value,
        say: impl FnOnce(&mut KernelCall),
    ) -> Result<Vec<Value>> {
        outputs.pop();
        let mut made = self.compute(kernel, inputs, outputs)?;
        if let Some(step) = self.steps.last_mut() {
            say(step);
        }
        made.push(last);
        Ok(made)
    }

    /// The input that the operand is, if it can be written and no other operand is a part of it.
    pub(crate) fn writable(&self, inputs: &[Value], at: usize) -> Option<usize> {
        let number = inputs[at].place.input().filter(|&number| self.lent.get(number) == Some(&true))?;
        let alone = inputs.iter().enumerate().all(|(n, input)| n == at || input.place.input() != Some(number));
        (alone && !self.apart.contains(&self.node)).then_some(number)
    }

    /// The step that makes a value as it lies, if one does.
    pub(crate) fn maker(&self, value: &Value) -> Option<&KernelCall> {
        let Source::Buffer(buffer) = value.place else { return None };
        self.steps.iter().rev().find(|step| step.outputs.contains(&buffer))
    }

    pub(crate) fn one(
        &mut self,
        kernel: Kernel,
        inputs: Vec<Value>,
        element: Element,
        shape: Vec<usize>,
    ) -> Result<Value> {
        let mut made = self.compute(kernel, inputs, vec![(element, shape)])?;
        made.pop().ok_or_else(|| "it makes nothing".to_owned())
    }

    /// Operands of one type, over their common shape.
    fn elementwise(
        &mut self,
        operands: &[&Value],
        element: Element,
        kernel: impl FnOnce(Nest) -> Kernel,
    ) -> Result<Value> {
        let shapes: Vec<&[usize]> = operands.iter().map(|operand| operand.shape()).collect();
        let shape = broadcast(&shapes)?;
        let fits = |operand: &&Value| operand.layout.broadcast(&shape).ok_or("shapes do not go together");
        let layouts = operands.iter().map(fits).collect::<std::result::Result<Vec<Layout>, _>>()?;
        let nest = Nest::new(&shape, &layouts.iter().collect::<Vec<_>>());
        self.one(kernel(nest), operands.iter().map(|operand| (*operand).clone()).collect(), element, shape)
    }

    pub(crate) fn unary(&mut self, op: Unary, x: &Value) -> Result<Value> {
        self.elementwise(&[x], x.element, |nest| Kernel::Unary(op, nest))
    }

    pub(crate) fn binary(&mut self, op: Binary, a: &Value, b: &Value) -> Result<Value> {
        if a.element != b.element {
            return Err("its operands are of two types".to_owned());
        }
        self.elementwise(&[a, b], a.element, |nest| Kernel::Binary(op, nest))
    }

    pub(crate) fn compare(&mut self, op: Compare, a: &Value, b: &Value) -> Result<Value> {
        self.elementwise(&[a, b], Element::Int, |nest| Kernel::Compare(op, nest))
    }

    pub(crate) fn choose(&mut self, condition: &Value, a: &Value, b: &Value) -> Result<Value> {
        self.elementwise(&[condition, a, b], a.element, Kernel::Where)
    }

    pub(crate) fn is_nan(&mut self, x: &Value) -> Result<Value> {
        self.elementwise(&[x], Element::Int, Kernel::IsNan)
    }

    pub(crate) fn cast(&mut self, to: Cast, x: &Value) -> Result<Value> {
        let element = if matches!(to, Cast::Int | Cast::Bool) { Element::Int } else { Element::Float };
        if element == x.element && matches!(to, Cast::Float | Cast::Int) {
            return Ok(x.clone());
        }
        self.elementwise(&[x], element, |nest| Kernel::Cast(to, nest))
    }

    pub(crate) fn number(value: f32) -> Value {
        Value::constant(Data::Float(vec![value]), Vec::new())
    }

    pub(crate) fn whole_numbers(values: Vec<i64>) -> Value {
        let shape = vec![values.len()];
        Value::constant(Data::Int(values), shape)
    }

    /// The same numbers, of 16 bits as `f32`.
    pub(crate) fn wide(&mut self, x: &Value) -> Result<Value> {
        match x.element {
            Element::Half | Element::Brain => self.cast(Cast::Float, x),
            Element::Float | Element::Int => Ok(x.clone()),
        }
    }

    /// The same numbers row by row.
    pub(crate) fn contiguous(&mut self, x: &Value) -> Result<Value> {
        match x.element {
            _ if x.layout.is_contiguous() => Ok(x.clone()),
            Element::Half | Element::Brain => self.wide(x),
            Element::Float | Element::Int => self.elementwise(&[x], x.element, Kernel::Copy),
        }
    }

    pub(crate) fn reshape(&mut self, x: &Value, shape: Vec<usize>) -> Result<Value> {
        if count(&shape) != Some(x.layout.len()) || shape.len() > MAX_RANK {
            return Err(format!("{:?} cannot become {shape:?}", x.shape()));
        }
        match x.layout.reshaped(&shape) {
            Some(layout) => Ok(x.with(layout)),
            None => {
                let moved = self.contiguous(x)?;
                Ok(moved.with(Layout { offset: moved.layout.offset, ..Layout::contiguous(shape) }))
            }
        }
    }

    /// Axes of size one at those places of the new shape.
    pub(crate) fn unsqueeze(&mut self, x: &Value, axes: &[i64]) -> Result<Value> {
        let rank = x.layout.rank() + axes.len();
        if rank > MAX_RANK {
            return Err(format!("{rank} axes; tensors have at most {MAX_RANK}"));
        }
        let axes = axes.iter().map(|&found| axis(found, rank)).collect::<Result<Vec<_>>>()?;
        let mut sizes = x.shape().iter().copied();
        let shape: Vec<usize> =
            (0..rank).map(|at| if axes.contains(&at) { 1 } else { sizes.next().unwrap_or(1) }).collect();
        self.reshape(x, shape)
    }

    pub(crate) fn transpose(x: &Value, order: &[usize]) -> Result<Value> {
        let mut seen = order.to_vec();
        seen.sort_unstable();
        if seen != (0..x.layout.rank()).collect::<Vec<_>>() {
            return Err(format!("{order:?} is no order of {} axes", x.layout.rank()));
        }
        Ok(x.with(x.layout.permuted(order)))
    }

    pub(crate) fn expand(x: &Value, shape: &[usize]) -> Result<Value> {
        let shape = broadcast(&[x.shape(), shape])?;
        let fits = shape.len() <= MAX_RANK && count(&shape).is_some_and(|len| len <= MAX_LEN);
        let layout = x.layout.broadcast(&shape).filter(|_| fits);
        Ok(x.with(layout.ok_or_else(|| format!("{:?} cannot become {shape:?}", x.shape()))?))
    }

    pub(crate) fn concat(&mut self, values: Vec<Value>, at: i64) -> Result<Value> {
        let first = values.first().ok_or("it has no inputs")?;
        let at = axis(at, first.layout.rank())?;
        let mut shape = first.shape().to_vec();
        let element = first.element;
        let alike = |value: &Value| {
            let mut own = value.shape().to_vec();
            own.len() == shape.len() && value.element == element && {
                own[at] = shape[at];
                own == shape
            }
        };
        if let Some(other) = values.iter().find(|value| !alike(value)) {
            return Err(format!("{:?} does not go with {shape:?} along axis {at}", other.shape()));
        }
        shape[at] = values.iter().map(|value| value.shape()[at]).sum();
        match values.as_slice() {
            [only] => Ok(only.clone()),
            _ => self.one(Kernel::Concat(at), values, element, shape),
        }
    }

    pub(crate) fn gather(&mut self, data: &Value, indices: &Value, at: usize) -> Result<Value> {
        // One row that is known is a part of the tensor.
        if let (true, Some(&[only])) = (indices.layout.len() == 1, Self::known(indices).as_deref()) {
            let row = crate::kernels::index(only, data.shape()[at])?;
            let part = data.with(data.layout.narrow(at, row, 1));
            let mut shape = data.shape().to_vec();
            shape.splice(at..=at, indices.shape().iter().copied());
            return self.reshape(&part, shape);
        }
        let mut shape = data.shape().to_vec();
        shape.splice(at..=at, indices.shape().iter().copied());
        let data = self.wide(data)?;
        self.one(Kernel::Gather(at), vec![data.clone(), indices.clone()], data.element, shape)
    }

    pub(crate) fn scatter(&mut self, data: &Value, indices: &Value, updates: &Value) -> Result<Value> {
        let depth = indices.shape().last().copied().ok_or("its indices have no axis")?;
        let rest = data.shape().get(depth..).ok_or("its indices have more axes than its data")?;
        let expected = [&indices.shape()[..indices.layout.rank() - 1], rest].concat();
        if updates.shape() != expected || updates.element.is_float() != data.element.is_float() {
            return Err(format!("updates of {:?}, expected {expected:?}", updates.shape()));
        }
        let data = &Self::uniform(data).unwrap_or_else(|| data.clone());
        let mut inputs = vec![data.clone(), indices.clone(), updates.clone()];
        if self.writable(&inputs, 0).is_none() {
            inputs[0] = self.wide(data)?;
        }
        let outputs = vec![(inputs[0].element, data.shape().to_vec())];
        let mut made = self.compute_at(Kernel::Scatter, inputs, outputs, 0)?;
        made.pop().ok_or_else(|| "it makes nothing".to_owned())
    }

    pub(crate) fn matmul(&mut self, a: &Value, b: &Value) -> Result<Value> {
        let no_fit = || format!("{:?} and {:?} have no product", a.shape(), b.shape());
        if a.element != Element::Float || b.element != Element::Float {
            return Err("only products of f32 are computed".to_owned());
        }
        let (&[ref a_outer @ .., rows, depth], &[ref b_outer @ .., b_depth, columns]) = (a.shape(), b.shape()) else {
            return Err(no_fit());
        };
        if depth != b_depth {
            return Err(no_fit());
        }
        // One weight for all: the rows of all are rows of one matrix.
        let outer = broadcast(&[a_outer, b_outer])?;
        if count(b_outer) == Some(1) && outer == a_outer && !a_outer.is_empty() {
            let all = count(a_outer).unwrap_or(0) * rows;
            let flat = self.reshape(a, vec![all, depth])?;
            let b = self.reshape(b, vec![depth, columns])?;
            let product = self.matmul(&flat, &b)?;
            return self.reshape(&product, [a_outer, &[rows, columns]].concat());
        }
        let layout = |value: &Value, last: [usize; 2]| {
            value.layout.broadcast(&[outer.as_slice(), &last].concat()).ok_or_else(no_fit)
        };
        let kernel = Kernel::MatMul { a: layout(a, [rows, depth])?, b: layout(b, [depth, columns])? };
        let shape = [outer.as_slice(), &[rows, columns]].concat();
        self.one(kernel, vec![a.clone(), b.clone()], Element::Float, shape)
    }

    /// The axes brought to the end, row by row, and the order that takes them there.
    fn rows(&mut self, x: &Value, axes: &[usize]) -> Result<(Value, Vec<usize>)> {
        let kept = (0..x.layout.rank()).filter(|axis| !axes.contains(axis));
        let order: Vec<usize> = kept.chain(axes.iter().copied()).collect();
        let moved = Self::transpose(x, &order)?;
        Ok((self.contiguous(&moved)?, order))
    }

    pub(crate) fn reduce(&mut self, op: Reduce, x: &Value, mut axes: Vec<usize>, keep: bool) -> Result<Value> {
        axes.sort_unstable();
        axes.dedup();
        let (rows, _) = self.rows(x, &axes)?;
        let sizes = x.shape().iter().enumerate();
        let with_ones = sizes.clone().map(|(axis, &size)| if axes.contains(&axis) { 1 } else { size }).collect();
        let without = sizes.filter(|(axis, _)| !axes.contains(axis)).map(|(_, &size)| size).collect();
        let shape = if keep { with_ones } else { without };
        self.one(Kernel::Reduce(op), vec![rows], x.element, shape)
    }

    /// A kernel over rows of one axis that keeps their shape.
    fn along(&mut self, kernel: Kernel, x: &Value, at: usize) -> Result<Value> {
        let (rows, order) = self.rows(x, &[at])?;
        let shape = rows.shape().to_vec();
        let made = self.one(kernel, vec![rows], x.element, shape)?;
        let mut back = vec![0; order.len()];
        order.iter().enumerate().for_each(|(to, &from)| back[from] = to);
        Self::transpose(&made, &back)
    }

    pub(crate) fn softmax(&mut self, x: &Value, at: usize) -> Result<Value> {
        self.along(Kernel::Softmax, x, at)
    }

    /// The `count` largest or smallest along an axis, and where they stand.
    pub(crate) fn top(&mut self, x: &Value, at: usize, count: usize, largest: bool) -> Result<Vec<Value>> {
        let (rows, order) = self.rows(x, &[at])?;
        let mut shape = rows.shape().to_vec();
        let width = shape.last_mut().filter(|width| **width >= count);
        *width.ok_or_else(|| format!("{count} of {} are not there", x.shape()[at]))? = count;
        let outputs = vec![(Element::Float, shape.clone()), (Element::Int, shape)];
        let made = self.compute(Kernel::Top { largest }, vec![rows], outputs)?;
        let mut back = vec![0; order.len()];
        order.iter().enumerate().for_each(|(to, &from)| back[from] = to);
        made.iter().map(|value| Self::transpose(value, &back)).collect()
    }

    pub(crate) fn cumulative_sum(&mut self, x: &Value, at: usize) -> Result<Value> {
        self.along(Kernel::CumSum, x, at)
    }

    /// The whole numbers of a constant.
    pub(crate) fn known(value: &Value) -> Option<Vec<i64>> {
        let operand = operand(value)?;
        let Slice::Int(data) = operand.data else { return None };
        if value.layout.len() > MAX_KNOWN {
            return None;
        }
        Some(gathered(&value.layout, data))
    }

    /// A constant that is one number everywhere, as that number.
    fn uniform(value: &Value) -> Option<Value> {
        let operand = operand(value)?;
        let numbers = gathered(operand.layout, operand.floats().ok()?);
        let first = *numbers.first()?;
        let same = numbers.iter().all(|number| number.to_bits() == first.to_bits());
        same.then(|| Self::filled(Data::Float(vec![first]), value.shape()).ok())?
    }

    /// A tensor of one number everywhere, which takes no room.
    pub(crate) fn filled(number: Data, shape: &[usize]) -> Result<Value> {
        let element = number.element();
        let one = Value { place: Source::Constant(Arc::new(number)), element, layout: Layout::contiguous(Vec::new()) };
        Self::expand(&one, shape)
    }
}
