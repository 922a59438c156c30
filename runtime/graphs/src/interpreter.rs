//! Our own way to run a graph: a program for each shape of its inputs.

use crate::error::GraphError;
use crate::graph::Graph;
use crate::program::{Input, Memory, Program, check, shapes};
use crate::tensor::{Element, View};

/// Programs that are kept. More shapes than these come and go: those of a growing past.
const KEPT: usize = 8;

/// A graph and the memory that its runs share.
#[derive(Debug)]
pub(crate) struct Interpreter {
    graph: Graph,
    /// The one that ran last is the last.
    programs: Vec<(Vec<(Element, Vec<usize>)>, Program)>,
    memory: Memory,
}

/// What a run gave.
#[derive(Debug)]
pub(crate) struct Made<'a> {
    program: &'a Program,
    inputs: &'a [Input<'a>],
    memory: &'a Memory,
}

impl Interpreter {
    pub(crate) fn new(graph: Graph) -> Self {
        Self { graph, programs: Vec::new(), memory: Memory::default() }
    }

    pub(crate) fn graph(&self) -> &Graph {
        &self.graph
    }

    pub(crate) fn run<'a>(&'a mut self, inputs: &'a [Input<'a>]) -> Result<Made<'a>, GraphError> {
        check(&self.graph.file, &self.graph.inputs, inputs)?;
        self.prepare(shapes(inputs))?;
        let Self { graph, programs, memory } = self;
        let Some((_, program)) = programs.last() else { unreachable!("it was prepared") };
        program.run(graph, inputs, memory)?;
        Ok(Made { program, inputs, memory })
    }

    /// Makes the program for these shapes the last one.
    fn prepare(&mut self, shapes: Vec<(Element, Vec<usize>)>) -> Result<(), GraphError> {
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

impl Made<'_> {
    pub(crate) fn get(&self, at: usize) -> Option<View<'_>> {
        (at < self.program.outputs.len()).then(|| self.program.output(at, self.inputs, self.memory))
    }
}
