//! A graph for inputs of one shape: its steps, and the buffers that they share.

use std::collections::HashSet;

use crate::builder::{Buffer, Builder, KernelCall};
use crate::error::GraphError;
use crate::graph::{Graph, Port};
use crate::kernels::{Kernel, Target, Wrote, is_fill, renew, run, run_at};
use crate::layout::{Layout, count};
use crate::nodes::lower;
use crate::tensor::{Data, Element, Operand, Pooled, Slice, SliceMut, Source, Stored, Value, View};

/// What a run is given for one input.
#[derive(Debug)]
pub struct Input<'a> {
    /// Its numbers, row by row.
    pub data: Lent<'a>,
    /// Its shape.
    pub shape: Vec<usize>,
}

/// How the numbers of an input are lent.
#[derive(Debug)]
pub enum Lent<'a> {
    /// To be read.
    Read(Slice<'a>),
    /// To be written too where that saves a copy. They are as they were again when the outputs are dropped.
    Write(SliceMut<'a>),
    /// States in a pool, to be renewed there. The output that takes their place is not made.
    Renew(Pooled<'a>),
}

impl<'a> Input<'a> {
    /// Numbers that are read.
    pub fn new(data: Slice<'a>, shape: Vec<usize>) -> Self {
        Self { data: Lent::Read(data), shape }
    }

    /// Numbers that may be written until the outputs are dropped.
    pub fn scratch(data: SliceMut<'a>, shape: Vec<usize>) -> Self {
        Self { data: Lent::Write(data), shape }
    }

    /// States that are renewed where they lie; an input that [`Runner::renewable`](crate::Runner::renewable) names.
    pub fn renewed(state: Pooled<'a>, shape: Vec<usize>) -> Self {
        Self { data: Lent::Renew(state), shape }
    }

    pub(crate) fn slice(&self) -> Slice<'_> {
        match &self.data {
            Lent::Read(data) => *data,
            Lent::Write(data) => data.slice(),
            Lent::Renew(_) => Slice::Float(&[]),
        }
    }
}

/// How an input lies: what is different makes another program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    element: Element,
    sizes: Vec<usize>,
    is_lent: bool,
    is_renewed: bool,
}

/// The shapes that inputs have.
pub(crate) fn shapes(inputs: &[Input<'_>]) -> Vec<Shape> {
    let shape = |input: &Input<'_>| Shape {
        element: input.slice().element(),
        sizes: input.shape.clone(),
        is_lent: matches!(input.data, Lent::Write(_)),
        is_renewed: matches!(input.data, Lent::Renew(_)),
    };
    inputs.iter().map(shape).collect()
}

#[derive(Debug)]
pub(crate) struct Program {
    /// Tells its memory from that of another program.
    number: usize,
    steps: Vec<KernelCall>,
    /// The memory of each buffer: buffers that are not needed at the same time share one.
    memory_of: Vec<usize>,
    lens: Vec<usize>,
    memory: Vec<Buffer>,
    pub(crate) outputs: Vec<Made>,
}

/// An output: tensors one behind the other along an axis, which nobody puts together.
#[derive(Debug)]
pub(crate) struct Made {
    parts: Vec<Value>,
    axis: usize,
    /// What the graph says that it is made of.
    element: Element,
}

impl Program {
    /// The steps of a graph whose inputs have these shapes.
    pub(crate) fn new(graph: &Graph, shapes: &[Shape], number: usize) -> Result<Self, GraphError> {
        let mut apart = HashSet::new();
        // A node that writes what is read later makes its result anew instead: then no node can be found twice.
        loop {
            let (builder, outputs) = steps(graph, shapes, &apart)?;
            match read_too_late(&builder.steps, &outputs) {
                Some(step) => drop(apart.insert(builder.steps[step].node)),
                None => return Ok(Self::of(graph, builder, outputs, number)),
            }
        }
    }

    fn of(graph: &Graph, builder: Builder, outputs: Vec<Value>, number: usize) -> Self {
        let outputs = outputs.into_iter().zip(&graph.outputs).map(|(value, port)| {
            let (parts, axis) = apart(&builder, &value).unwrap_or_else(|| (vec![value], 0));
            Made { parts, axis, element: port.element }
        });
        let mut program = Self {
            number,
            outputs: outputs.collect(),
            memory_of: Vec::new(),
            lens: builder.buffers.iter().map(|buffer| buffer.len).collect(),
            steps: builder.steps,
            memory: Vec::new(),
        };
        program.drop_unread();
        program.share(&builder.buffers);
        program
    }

    fn parts(&self) -> impl Iterator<Item = &Value> {
        self.outputs.iter().flat_map(|output| &output.parts)
    }

    /// Leaves out the steps whose results nobody reads.
    fn drop_unread(&mut self) {
        let mut read = vec![false; self.lens.len()];
        self.parts().filter_map(buffer_of).for_each(|&buffer| read[buffer] = true);
        for at in (0..self.steps.len()).rev() {
            let step = &self.steps[at];
            if step.target.is_some() || step.renews.is_some() || step.outputs.iter().any(|&buffer| read[buffer]) {
                step.inputs.iter().filter_map(buffer_of).for_each(|&buffer| read[buffer] = true);
            } else {
                self.steps.remove(at);
            }
        }
    }

    /// Gives each buffer the memory of one that nobody reads any more, or new memory.
    fn share(&mut self, buffers: &[Buffer]) {
        let mut last = vec![0; buffers.len()];
        for (at, step) in self.steps.iter().enumerate() {
            step.outputs.iter().chain(step.inputs.iter().filter_map(buffer_of)).for_each(|&buffer| last[buffer] = at);
        }
        let kept: Vec<usize> = self.parts().filter_map(buffer_of).copied().collect();
        kept.into_iter().for_each(|buffer| last[buffer] = usize::MAX);
        let mut free: Vec<usize> = Vec::new();
        self.memory_of = vec![usize::MAX; buffers.len()];
        for (at, step) in self.steps.iter().enumerate() {
            for &buffer in &step.outputs {
                let Buffer { element, len } = buffers[buffer];
                // The nearest in size of those of its kind; what is filled once is nobody else's.
                let alike = free.iter().enumerate().filter(|(_, memory)| self.memory[**memory].element == element);
                let best = alike.min_by_key(|(_, memory)| self.memory[**memory].len.abs_diff(len)).map(|(n, _)| n);
                let memory = match best.filter(|_| !fills(step)) {
                    Some(best) => free.swap_remove(best),
                    None => {
                        self.memory.push(Buffer { element, len });
                        self.memory.len() - 1
                    }
                };
                self.memory[memory].len = self.memory[memory].len.max(len);
                self.memory_of[buffer] = memory;
                if fills(step) {
                    last[buffer] = usize::MAX;
                }
            }
            let done = step.outputs.iter().chain(step.inputs.iter().filter_map(buffer_of));
            let mut done: Vec<usize> = done.filter(|&&buffer| last[buffer] == at).copied().collect();
            done.sort_unstable();
            done.dedup();
            free.extend(done.into_iter().map(|buffer| self.memory_of[buffer]));
        }
    }

    /// Bytes that a run takes from one place to another without computing with them.
    pub(crate) fn moved_bytes(&self) -> u64 {
        let bytes = |step: &KernelCall| -> u64 {
            match (step.target, fills(step)) {
                (None, false) if step.kernel.moves() || widens(step) => {
                    step.outputs.iter().map(|&buffer| self.lens[buffer] as u64 * 4).sum()
                }
                // Its rows alone.
                _ if step.kernel.moves() => step.inputs.last().map_or(0, |rows| rows.layout.len() as u64 * 4),
                _ => 0,
            }
        };
        self.steps.iter().map(bytes).sum()
    }

    /// Runs all steps; what they make is left in `memory`.
    pub(crate) fn run(&self, graph: &Graph, inputs: &mut [Input<'_>], memory: &mut Memory) -> Result<(), GraphError> {
        memory.fit(self).map_err(|reason| GraphError::Malformed { file: graph.file.clone(), reason })?;
        let mut made: Vec<Data> = Vec::with_capacity(2);
        for (at, step) in self.steps.iter().enumerate() {
            for &buffer in &step.outputs {
                let own = &mut memory.data[self.memory_of[buffer]];
                let mut data = std::mem::replace(own, Data::empty(own.element()));
                data.resize(self.lens[buffer]);
                made.push(data);
            }
            let number = step.target.and_then(|operand| step.inputs[operand].place.input());
            // What is written is nobody's to read meanwhile.
            let taken = number.map(|number| std::mem::replace(&mut inputs[number].data, Lent::Read(Slice::Float(&[]))));
            let mut wrote = if fills(step) { std::mem::take(&mut memory.wrote[at]) } else { Wrote::default() };
            let done = {
                let operands: Vec<Operand<'_>> = step
                    .inputs
                    .iter()
                    .map(|value| Operand { data: self.data(&value.place, inputs, memory), layout: &value.layout })
                    .collect();
                let renewed = step.renews.and_then(|operand| match &inputs[step.inputs[operand].place.input()?].data {
                    Lent::Renew(state) => Some(state),
                    Lent::Read(_) | Lent::Write(_) => None,
                });
                match (taken, step.target, number) {
                    (Some(Lent::Write(mut data)), Some(operand), Some(number)) => {
                        let mut before = Vec::new();
                        let layout = &step.inputs[operand].layout;
                        let target = Target { data: data.lend(), layout, before: &mut before };
                        let done = run_at(&step.kernel, &operands, &mut made, target);
                        drop(operands);
                        inputs[number].data = Lent::Write(data);
                        memory.before.push((number, before));
                        done
                    }
                    _ => match renewed {
                        Some(state) => renew(&step.kernel, &operands, &mut made, state),
                        None => run(&step.kernel, &operands, &mut made, &mut wrote),
                    },
                }
            };
            memory.wrote[at] = wrote;
            for (&buffer, data) in step.outputs.iter().zip(made.drain(..)) {
                memory.data[self.memory_of[buffer]] = data;
            }
            if let Err(reason) = done {
                memory.undo(inputs);
                return Err(graph.refuse(step.node, reason));
            }
        }
        Ok(())
    }

    fn data<'a>(&'a self, place: &'a Source, inputs: &'a [Input<'_>], memory: &'a Memory) -> Slice<'a> {
        match place {
            Source::Constant(data) => data.slice(),
            Source::Input(number) | Source::Written(number, _) => inputs[*number].slice(),
            Source::Buffer(buffer) => memory.data[self.memory_of[*buffer]].slice(),
        }
    }

    pub(crate) fn output<'a>(&'a self, at: usize, inputs: &'a [Input<'_>], memory: &'a Memory) -> View<'a> {
        let Made { parts, axis, element } = &self.outputs[at];
        let parts = parts.iter().map(|part| (self.data(&part.place, inputs, memory), part.layout.clone()));
        View { parts: parts.collect(), axis: *axis, element: *element }
    }
}

/// All nodes as steps, and the graph's outputs.
fn steps(graph: &Graph, shapes: &[Shape], apart: &HashSet<usize>) -> Result<(Builder, Vec<Value>), GraphError> {
    let mut values = graph.constants.clone();
    for (number, shape) in shapes.iter().enumerate() {
        let layout = Layout::contiguous(shape.sizes.clone());
        values[graph.given[number]] = Some(Value { place: Source::Input(number), element: shape.element, layout });
    }
    let mut builder = Builder::new(usize::MAX);
    builder.lent = shapes.iter().map(|shape| shape.is_lent).collect();
    builder.renewed = shapes.iter().map(|shape| shape.is_renewed).collect();
    builder.apart = apart.clone();
    for (number, node) in graph.nodes.iter().enumerate() {
        builder.node = number;
        let inputs: Vec<Option<Value>> =
            node.inputs.iter().map(|input| input.and_then(|input| values[input].clone())).collect();
        let made = lower(&mut builder, node, &inputs).map_err(|reason| graph.refuse(number, reason))?;
        if made.len() < node.outputs.len() {
            return Err(graph.refuse(number, format!("it makes {} values", made.len())));
        }
        for (output, value) in node.outputs.iter().zip(made) {
            if let Some(output) = *output {
                values[output] = Some(value);
            }
        }
    }
    let outputs = graph.made.iter().filter_map(|&value| values[value].clone()).collect();
    Ok((builder, outputs))
}

/// A step that writes an input of which a later step, or an output, still reads what was there.
fn read_too_late(steps: &[KernelCall], outputs: &[Value]) -> Option<usize> {
    let writes = steps.iter().enumerate().filter_map(|(at, step)| Some((at, &step.inputs[step.target?])));
    for (at, written) in writes {
        let span = written.layout.span();
        let older = |value: &Value| match value.place {
            Source::Input(number) => written.place.input() == Some(number),
            Source::Written(number, by) => written.place.input() == Some(number) && by < at,
            Source::Constant(_) | Source::Buffer(_) => false,
        };
        let reads = |value: &Value| {
            let own = value.layout.span();
            older(value) && own.start < span.end && span.start < own.end
        };
        if steps[at + 1..].iter().flat_map(|step| &step.inputs).chain(outputs).any(reads) {
            return Some(at);
        }
    }
    None
}

/// Whether a step makes numbers of 16 bits wider.
fn widens(step: &KernelCall) -> bool {
    step.inputs.iter().any(|input| matches!(input.element, Element::Half | Element::Brain))
}

/// Whether a step scatters over one number, which its memory then keeps from run to run.
fn fills(step: &KernelCall) -> bool {
    matches!(step.kernel, Kernel::Scatter)
        && step.target.is_none()
        && matches!(step.inputs[0].place, Source::Constant(_))
        && is_fill(&step.inputs[0].layout)
}

/// The operands of the concatenation that an output is, and its axis.
fn apart(builder: &Builder, value: &Value) -> Option<(Vec<Value>, usize)> {
    let step = builder.maker(value)?;
    let Kernel::Concat(axis) = step.kernel else { return None };
    let whole = value.layout == Layout::contiguous(value.shape().to_vec());
    let same = step.inputs.first()?.layout.rank() == value.layout.rank();
    (whole && same && value.element == Element::Float).then(|| (step.inputs.clone(), axis))
}

fn buffer_of(value: &Value) -> Option<&usize> {
    match &value.place {
        Source::Buffer(buffer) => Some(buffer),
        _ => None,
    }
}

/// The buffers of whichever program ran last. They grow, and stay.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    data: Vec<Data>,
    /// The program that ran last.
    program: Option<usize>,
    /// What each of its scatters wrote in the last run.
    wrote: Vec<Wrote>,
    /// Per step that wrote an input: its number, and what was there.
    before: Vec<(usize, Vec<(usize, f32)>)>,
}

impl Memory {
    /// Makes room for a program, so that its steps need none.
    fn fit(&mut self, program: &Program) -> Result<(), String> {
        for (at, Buffer { element, len }) in program.memory.iter().enumerate() {
            match self.data.get_mut(at) {
                Some(data) if data.element() == *element => data.reserve(*len)?,
                Some(data) => *data = Data::zeros(*element, *len)?,
                None => self.data.push(Data::zeros(*element, *len)?),
            }
        }
        self.before.clear();
        if self.program != Some(program.number) {
            self.program = Some(program.number);
            self.wrote = vec![Wrote::default(); program.steps.len()];
        }
        Ok(())
    }

    /// Puts back what was in inputs before the run.
    pub(crate) fn undo(&mut self, inputs: &mut [Input<'_>]) {
        fn put<T: Stored>(data: &mut [T], before: &[(usize, f32)]) {
            before.iter().rev().for_each(|&(at, value)| data[at] = T::narrow(value));
        }
        for (number, before) in self.before.drain(..).rev() {
            match &mut inputs[number].data {
                Lent::Write(SliceMut::Float(data)) => put(data, &before),
                Lent::Write(SliceMut::Half(data)) => put(data, &before),
                Lent::Write(SliceMut::Brain(data)) => put(data, &before),
                Lent::Read(_) | Lent::Renew(_) => {}
            }
        }
    }
}

/// Whether numbers and shape of each input are what its port says.
pub(crate) fn check(file: &str, ports: &[Port], inputs: &[Input<'_>]) -> Result<(), GraphError> {
    if inputs.len() != ports.len() {
        let reason = format!("a run was given {} inputs, it has {}", inputs.len(), ports.len());
        return Err(GraphError::Malformed { file: file.to_owned(), reason });
    }
    for (port, input) in ports.iter().zip(inputs) {
        let alike = port.shape.len() == input.shape.len()
            && port.shape.iter().zip(&input.shape).all(|(size, found)| size.is_none_or(|size| size == *found));
        let narrow =
            matches!(port.element, Element::Half | Element::Brain) && input.slice().element() == Element::Float;
        let typed = port.element == input.slice().element() || narrow;
        let whole = matches!(input.data, Lent::Renew(_)) || count(&input.shape) == Some(input.slice().len());
        if !alike || !typed || !whole {
            let reason = format!(
                "{:?} of {} {:?} numbers was given for {:?} of {:?}",
                input.shape,
                input.slice().len(),
                input.slice().element(),
                port.shape,
                port.element
            );
            return Err(GraphError::Port { file: file.to_owned(), port: port.name.clone(), reason });
        }
    }
    Ok(())
}
