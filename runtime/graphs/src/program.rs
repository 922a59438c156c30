//! A graph for inputs of one shape: its steps, and the buffers that they share.

use crate::builder::{Buffer, Builder, KernelCall};
use crate::error::GraphError;
use crate::graph::{Graph, Port};
use crate::kernels::run;
use crate::layout::{Layout, count};
use crate::nodes::lower;
use crate::tensor::{Data, Element, Operand, Slice, Source, Value, View};

/// What a run is given for one input.
#[derive(Clone, Debug)]
pub struct Input<'a> {
    /// Its numbers, row by row.
    pub data: Slice<'a>,
    /// Its shape.
    pub shape: Vec<usize>,
}

#[derive(Debug)]
pub(crate) struct Program {
    steps: Vec<KernelCall>,
    /// The memory of each buffer: buffers that are not needed at the same time share one.
    memory_of: Vec<usize>,
    lens: Vec<usize>,
    memory: Vec<Buffer>,
    pub(crate) outputs: Vec<Value>,
    /// What the graph says that they are made of.
    elements: Vec<Element>,
}

/// How inputs are stored, and their shapes.
pub(crate) fn shapes(inputs: &[Input<'_>]) -> Vec<(Element, Vec<usize>)> {
    inputs.iter().map(|input| (input.data.element(), input.shape.clone())).collect()
}

impl Program {
    /// The steps of a graph whose inputs are stored as that, in these shapes.
    pub(crate) fn new(graph: &Graph, shapes: &[(Element, Vec<usize>)]) -> Result<Self, GraphError> {
        let mut values = graph.constants.clone();
        for (number, (element, shape)) in shapes.iter().enumerate() {
            let layout = Layout::contiguous(shape.clone());
            values[graph.given[number]] = Some(Value { place: Source::Input(number), element: *element, layout });
        }
        let mut builder = Builder::new(usize::MAX);
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
        let output = |value: usize| values[value].clone();
        let outputs: Vec<Value> = graph.made.iter().filter_map(|&value| output(value)).collect();
        let mut program = Self {
            memory_of: Vec::new(),
            lens: builder.buffers.iter().map(|buffer| buffer.len).collect(),
            steps: builder.steps,
            memory: Vec::new(),
            outputs,
            elements: graph.outputs.iter().map(|port| port.element).collect(),
        };
        program.share(&builder.buffers);
        Ok(program)
    }

    /// Gives each buffer the memory of one that nobody reads any more, or new memory.
    fn share(&mut self, buffers: &[Buffer]) {
        let mut last = vec![0; buffers.len()];
        for (at, step) in self.steps.iter().enumerate() {
            step.outputs.iter().chain(step.inputs.iter().filter_map(buffer_of)).for_each(|&buffer| last[buffer] = at);
        }
        self.outputs.iter().filter_map(buffer_of).for_each(|&buffer| last[buffer] = usize::MAX);
        let mut free: Vec<usize> = Vec::new();
        self.memory_of = vec![usize::MAX; buffers.len()];
        for (at, step) in self.steps.iter().enumerate() {
            for &buffer in &step.outputs {
                let Buffer { element, len } = buffers[buffer];
                // The nearest in size of those of its kind.
                let alike = free.iter().enumerate().filter(|(_, memory)| self.memory[**memory].element == element);
                let best = alike.min_by_key(|(_, memory)| self.memory[**memory].len.abs_diff(len)).map(|(n, _)| n);
                let memory = match best {
                    Some(best) => free.swap_remove(best),
                    None => {
                        self.memory.push(Buffer { element, len });
                        self.memory.len() - 1
                    }
                };
                self.memory[memory].len = self.memory[memory].len.max(len);
                self.memory_of[buffer] = memory;
            }
            let done = step.outputs.iter().chain(step.inputs.iter().filter_map(buffer_of));
            let mut done: Vec<usize> = done.filter(|&&buffer| last[buffer] == at).copied().collect();
            done.sort_unstable();
            done.dedup();
            free.extend(done.into_iter().map(|buffer| self.memory_of[buffer]));
        }
    }

    /// Runs all steps; what they make is left in `memory`.
    pub(crate) fn run(&self, graph: &Graph, inputs: &[Input<'_>], memory: &mut Memory) -> Result<(), GraphError> {
        memory.fit(self).map_err(|reason| GraphError::Malformed { file: graph.file.clone(), reason })?;
        let mut made: Vec<Data> = Vec::with_capacity(2);
        for step in &self.steps {
            for &buffer in &step.outputs {
                let own = &mut memory.0[self.memory_of[buffer]];
                let mut data = std::mem::replace(own, Data::empty(own.element()));
                data.resize(self.lens[buffer]);
                made.push(data);
            }
            let operands: Vec<Operand<'_>> = step
                .inputs
                .iter()
                .map(|value| Operand { data: self.data(&value.place, inputs, memory), layout: &value.layout })
                .collect();
            let done = run(&step.kernel, &operands, &mut made);
            for (&buffer, data) in step.outputs.iter().zip(made.drain(..)) {
                memory.0[self.memory_of[buffer]] = data;
            }
            done.map_err(|reason| graph.refuse(step.node, reason))?;
        }
        Ok(())
    }

    fn data<'a>(&'a self, place: &'a Source, inputs: &[Input<'a>], memory: &'a Memory) -> Slice<'a> {
        match place {
            Source::Constant(data) => data.slice(),
            Source::Input(number) => inputs[*number].data,
            Source::Buffer(buffer) => memory.0[self.memory_of[*buffer]].slice(),
        }
    }

    pub(crate) fn output<'a>(&'a self, at: usize, inputs: &[Input<'a>], memory: &'a Memory) -> View<'a> {
        let value = &self.outputs[at];
        let element = self.elements[at];
        View { data: self.data(&value.place, inputs, memory), layout: value.layout.clone(), element }
    }
}

fn buffer_of(value: &Value) -> Option<&usize> {
    match &value.place {
        Source::Buffer(buffer) => Some(buffer),
        _ => None,
    }
}

/// The buffers of whichever program ran last. They grow, and stay.
#[derive(Debug, Default)]
pub(crate) struct Memory(Vec<Data>);

impl Memory {
    /// Makes room for a program, so that its steps need none.
    fn fit(&mut self, program: &Program) -> Result<(), String> {
        for (at, Buffer { element, len }) in program.memory.iter().enumerate() {
            match self.0.get_mut(at) {
                Some(data) if data.element() == *element => data.reserve(*len)?,
                Some(data) => *data = Data::zeros(*element, *len)?,
                None => self.0.push(Data::zeros(*element, *len)?),
            }
        }
        Ok(())
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
        let narrow = matches!(port.element, Element::Half | Element::Brain) && input.data.element() == Element::Float;
        let typed = port.element == input.data.element() || narrow;
        if !alike || !typed || count(&input.shape) != Some(input.data.len()) {
            let reason = format!(
                "{:?} of {} {:?} numbers was given for {:?} of {:?}",
                input.shape,
                input.data.len(),
                input.data.element(),
                port.shape,
                port.element
            );
            return Err(GraphError::Port { file: file.to_owned(), port: port.name.clone(), reason });
        }
    }
    Ok(())
}
