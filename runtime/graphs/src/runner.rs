//! What runs a graph: our interpreter, or ONNX Runtime where it is asked for.

use std::path::{Path, PathBuf};

use crate::error::GraphError;
use crate::graph::{Graph, Port};
use crate::interpreter::{Interpreter, Made};
#[cfg(feature = "ort")]
use crate::onnx_runtime::OnnxRuntime;
use crate::program::Input;
use crate::tensor::View;

/// What graphs are run by.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum GraphEngine {
    /// Our interpreter.
    #[default]
    Interpreter,
    /// ONNX Runtime, which is this library; a build with the feature `ort` has it.
    OnnxRuntime(PathBuf),
}

/// A graph that is ready to run.
#[derive(Debug)]
pub struct Runner(Kind);

#[derive(Debug)]
enum Kind {
    Interpreter(Interpreter),
    #[cfg(feature = "ort")]
    OnnxRuntime(OnnxRuntime),
}

/// What a run gave.
#[derive(Debug)]
pub struct Outputs<'a, 'b>(Given<'a, 'b>);

#[derive(Debug)]
enum Given<'a, 'b> {
    Interpreter(Made<'a, 'b>),
    #[cfg(feature = "ort")]
    OnnxRuntime(crate::onnx_runtime::Made<'a>),
}

impl Runner {
    /// Reads a graph for an engine; weights in other files must lie in the folder of this one.
    ///
    /// # Errors
    /// A file that cannot be read or is no graph, an operator that the engine does not run, an engine that is not there.
    pub fn open(file: &Path, engine: &GraphEngine) -> Result<Self, GraphError> {
        match engine {
            GraphEngine::Interpreter => Ok(Self(Kind::Interpreter(Interpreter::new(Graph::open(file)?)))),
            #[cfg(feature = "ort")]
            GraphEngine::OnnxRuntime(library) => Ok(Self(Kind::OnnxRuntime(OnnxRuntime::open(file, library)?))),
            #[cfg(not(feature = "ort"))]
            GraphEngine::OnnxRuntime(_) => Err(GraphError::OnnxRuntime {
                reason: "this build is without it; rebuild with `--features ort`".into(),
            }),
        }
    }

    /// What a run is given.
    pub fn inputs(&self) -> &[Port] {
        match &self.0 {
            Kind::Interpreter(interpreter) => &interpreter.graph().inputs,
            #[cfg(feature = "ort")]
            Kind::OnnxRuntime(runtime) => &runtime.inputs,
        }
    }

    /// What a run gives.
    pub fn outputs(&self) -> &[Port] {
        match &self.0 {
            Kind::Interpreter(interpreter) => &interpreter.graph().outputs,
            #[cfg(feature = "ort")]
            Kind::OnnxRuntime(runtime) => &runtime.outputs,
        }
    }

    /// Pairs the inputs that can be renewed where they lie ([`Input::renewed`]) with the outputs that take their place: the
    /// states of recurrences and convolutions that nothing else reads. ONNX Runtime renews none.
    pub fn renewable(&self) -> Vec<(usize, usize)> {
        match &self.0 {
            Kind::Interpreter(interpreter) => interpreter.graph().renewable(),
            #[cfg(feature = "ort")]
            Kind::OnnxRuntime(_) => Vec::new(),
        }
    }

    /// Bytes that a run in our interpreter takes from one place to another without computing with them: those of the last
    /// run. Nobody knows them of ONNX Runtime.
    pub fn moved_bytes(&self) -> Option<u64> {
        match &self.0 {
            Kind::Interpreter(interpreter) => Some(interpreter.moved_bytes()),
            #[cfg(feature = "ort")]
            Kind::OnnxRuntime(_) => None,
        }
    }

    /// Runs the graph over `inputs`, in the order of its own.
    ///
    /// # Errors
    /// An input of another shape or type than the graph's, shapes that do not go together, an index out of range.
    pub fn run<'a, 'b>(&'a mut self, inputs: &'a mut [Input<'b>]) -> Result<Outputs<'a, 'b>, GraphError> {
        Ok(Outputs(match &mut self.0 {
            Kind::Interpreter(interpreter) => Given::Interpreter(interpreter.run(inputs)?),
            #[cfg(feature = "ort")]
            Kind::OnnxRuntime(runtime) => Given::OnnxRuntime(runtime.run(inputs)?),
        }))
    }
}

impl Outputs<'_, '_> {
    /// The output of that number; `None` where there are not so many, and where ONNX Runtime makes whole numbers.
    pub fn get(&self, at: usize) -> Option<View<'_>> {
        match &self.0 {
            Given::Interpreter(made) => made.get(at),
            #[cfg(feature = "ort")]
            Given::OnnxRuntime(made) => made.get(at),
        }
    }
}
