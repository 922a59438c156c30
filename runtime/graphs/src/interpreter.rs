//! Our own way to run a graph: a program for each shape of its inputs.

use crate::error::GraphError;
use crate::graph::Graph;
use crate::program::{Input, Memory, Program, Shape, check, shapes};
use crate::tensor::View;

/// Programs that are kept. More shapes than these come and go: those of a growing past.
const KEPT: usize = 8;

/// A graph and the memory that its runs share.
#[derive(Debug)]
pub(crate) struct Interpreter {
    graph: Graph,
    /// The one that ran last is the last.
    programs: Vec<(Vec<Shape>, Program)>,
    /// Programs that were made so far.
    made: usize,
    memory: Memory,
}

/// What a run gave. When it is dropped, inputs that were written are as they were.
#[derive(Debug)]
pub(crate) struct Made<'a, 'b> {
    program: &'a Program,
    inputs: &'a mut [Input<'b>],
    memory: &'a mut Memory,
}

impl Interpreter {
    pub(crate) fn new(graph: Graph) -> Self {
        Self { graph, programs: Vec::new(), made: 0, memory: Memory::default() }
    }

    pub(crate) fn graph(&self) -> &Graph {
        &self.graph
    }

    /// See [`Runner::moved_bytes`](crate::Runner::moved_bytes).
    pub(crate) fn moved_bytes(&self) -> u64 {
        self.programs.last().map_or(0, |(_, program)| program.moved_bytes())
    }

    pub(crate) fn run<'a, 'b>(&'a mut self, inputs: &'a mut [Input<'b>]) -> Result<Made<'a, 'b>, GraphError> {
        check(&self.graph.file, &self.graph.inputs, inputs)?;
        self.prepare(shapes(inputs))?;
        let Self { graph, programs, memory, .. } = self;
        let Some((_, program)) = programs.last() else { unreachable!("it was prepared") };
        program.run(graph, inputs, memory)?;
        Ok(Made { program, inputs, memory })
    }

    /// Makes the program for these shapes the last one.
    fn prepare(&mut self, shapes: Vec<Shape>) -> Result<(), GraphError> {
        let program = match self.programs.iter().position(|(own, _)| *own == shapes) {
            Some(at) if at + 1 == self.programs.len() => return Ok(()),
            Some(at) => self.programs.remove(at),
            None => {
                self.made += 1;
                let program = Program::new(&self.graph, &shapes, self.made)?;
                (shapes, program)
            }
        };
        if self.programs.len() >= KEPT {
            self.programs.remove(0);
        }
        self.programs.push(program);
        Ok(())
    }
}

impl Made<'_, '_> {
    pub(crate) fn get(&self, at: usize) -> Option<View<'_>> {
        (at < self.program.outputs.len()).then(|| self.program.output(at, self.inputs, self.memory))
    }
}

impl Drop for Made<'_, '_> {
    fn drop(&mut self) {
        self.memory.undo(self.inputs);
    }
}
