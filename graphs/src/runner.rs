//! Runs a graph, with a program for each shape of its inputs.

use crate::Graph;
use crate::error::GraphError;
use crate::program::{Input, Memory, Program, check, shapes};
use crate::tensor::View;

/// Programs that are kept. More shapes than these come and go: those of a growing past.
const KEPT: usize = 8;

/// A graph and the memory that its runs share.
#[derive(Debug)]
pub struct Runner {
    graph: Graph,
    /// The one that ran last is the last.
    programs: Vec<(Vec<Vec<usize>>, Program)>,
    memory: Memory,
}

/// What a run gave.
#[derive(Debug)]
pub struct Outputs<'a> {
    program: &'a Program,
    inputs: &'a [Input<'a>],
    memory: &'a Memory,
}

impl Runner {
    /// A runner of a graph.
    pub fn new(graph: Graph) -> Self {
        Self { graph, programs: Vec::new(), memory: Memory::default() }
    }

    /// The graph.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Runs the graph over `inputs`, in the order of its own.
    ///
    /// # Errors
    /// An input of another shape or type than the graph's, shapes that do not go together, an index out of range.
    pub fn run<'a>(&'a mut self, inputs: &'a [Input<'a>]) -> Result<Outputs<'a>, GraphError> {
        check(&self.graph, inputs)?;
        self.prepare(shapes(inputs))?;
        let Self { graph, programs, memory } = self;
        let Some((_, program)) = programs.last() else { unreachable!("it was prepared") };
        program.run(graph, inputs, memory)?;
        Ok(Outputs { program, inputs, memory })
    }

    /// The bytes of the buffers of a run over inputs of these shapes.
    ///
    /// # Errors
    /// Shapes that do not go together.
    pub fn bytes(&mut self, shapes: Vec<Vec<usize>>) -> Result<u64, GraphError> {
        self.prepare(shapes)?;
        Ok(self.programs.last().map_or(0, |(_, program)| program.bytes()))
    }

    /// Makes the program for these shapes the last one.
    fn prepare(&mut self, shapes: Vec<Vec<usize>>) -> Result<(), GraphError> {
        let program = match self.programs.iter().position(|(own, _)| *own == shapes) {
            Some(at) if at + 1 == self.programs.len() => return Ok(()),
            Some(at) => self.programs.remove(at),
            None => {
                let program = Program::new(&self.graph, &shapes)?;
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

impl Outputs<'_> {
    /// The output of that number; `None` where there are not so many.
    pub fn get(&self, at: usize) -> Option<View<'_>> {
        (at < self.program.outputs.len()).then(|| self.program.output(at, self.inputs, self.memory))
    }
}
