//! A graph in ONNX Runtime, whose library is loaded while the program runs.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use ort::logging::LogLevel;
use ort::session::{Session, SessionInputValue, SessionOutputs};
use ort::value::{Outlet, PrimitiveTensorElementType, Tensor, TensorElementType, TensorRef};

use crate::error::GraphError;
use crate::graph::Port;
use crate::layout::Layout;
use crate::program::{Input, check};
use crate::tensor::{Element, Slice, View};

/// A process has one of them.
static LIBRARY: OnceLock<PathBuf> = OnceLock::new();

/// A graph that ONNX Runtime has loaded.
#[derive(Debug)]
pub(crate) struct OnnxRuntime {
    file: String,
    session: Session,
    pub(crate) inputs: Vec<Port>,
    pub(crate) outputs: Vec<Port>,
    /// The element type of each input: whole numbers are converted to it.
    types: Vec<TensorElementType>,
}

/// What a run gave.
#[derive(Debug)]
pub(crate) struct Made<'a> {
    values: SessionOutputs<'a>,
    outputs: &'a [Port],
}

/// Loads the library, once.
fn load(library: &Path) -> Result<(), GraphError> {
    let refuse = |reason: String| GraphError::OnnxRuntime { reason };
    let path = std::path::absolute(library).map_err(|error| refuse(format!("{}: {error}", library.display())))?;
    let loaded = LIBRARY.get_or_init(|| path.clone());
    if *loaded != path {
        return Err(refuse(format!("{} is in use already, another cannot be loaded", loaded.display())));
    }
    let environment = ort::init_from(&path).map_err(|error| refuse(error.to_string()))?;
    environment.with_telemetry(false).commit();
    Ok(())
}

impl OnnxRuntime {
    pub(crate) fn open(file: &Path, library: &Path) -> Result<Self, GraphError> {
        load(library)?;
        let name = file.display().to_string();
        let session = session(file).map_err(|reason| GraphError::Malformed { file: name.clone(), reason })?;
        let port = |outlet: &Outlet| {
            port(outlet).map_err(|reason| GraphError::Port {
                file: name.clone(),
                port: outlet.name().to_owned(),
                reason,
            })
        };
        let inputs = session.inputs().iter().map(port).collect::<Result<_, _>>()?;
        let outputs = session.outputs().iter().map(port).collect::<Result<_, _>>()?;
        let types = session.inputs().iter().filter_map(|outlet| outlet.dtype().tensor_type()).collect();
        Ok(Self { file: name, session, inputs, outputs, types })
    }

    pub(crate) fn run<'a>(&'a mut self, inputs: &[Input<'_>]) -> Result<Made<'a>, GraphError> {
        let Self { file, session, inputs: ports, outputs, types } = self;
        check(file, ports, inputs)?;
        let refuse = |error: ort::Error| GraphError::Malformed { file: file.clone(), reason: error.to_string() };
        let given: ort::Result<Vec<_>> = inputs.iter().zip(types).map(|(input, ty)| value(input, *ty)).collect();
        let values = session.run(given.map_err(refuse)?.as_slice()).map_err(refuse)?;
        Ok(Made { values, outputs })
    }
}

/// A graph as it is loaded; what is wrong with it is said once, in the error.
fn session(file: &Path) -> Result<Session, String> {
    let quiet = |error: ort::Error<_>| error.to_string();
    let mut builder =
        Session::builder().map_err(|error| error.to_string())?.with_log_level(LogLevel::Fatal).map_err(quiet)?;
    builder.commit_from_file(file).map_err(|error| error.to_string())
}

fn port(outlet: &Outlet) -> Result<Port, String> {
    let tensor = outlet.dtype().tensor_type().zip(outlet.dtype().tensor_shape());
    let (ty, shape) = tensor.ok_or("it is no tensor")?;
    let element = match ty {
        TensorElementType::Float32 => Element::Float,
        TensorElementType::Int32 | TensorElementType::Int64 | TensorElementType::Bool => Element::Int,
        other => return Err(format!("its element type {other} is not computed; f32, i32, i64 and bool are")),
    };
    // Open axes are negative.
    let shape = shape.iter().map(|&size| usize::try_from(size).ok()).collect();
    Ok(Port { name: outlet.name().to_owned(), element, shape })
}

/// An input: lent as it is, but for the narrower whole numbers.
fn value<'a>(input: &'a Input<'_>, ty: TensorElementType) -> ort::Result<SessionInputValue<'a>> {
    let shape = input.shape.clone();
    Ok(match (input.slice(), ty) {
        // No input of such a type is announced.
        (Slice::Half(_) | Slice::Brain(_), _) => return Err(ort::Error::new("numbers of 16 bits are not lent")),
        (Slice::Float(data), _) => TensorRef::from_array_view((shape, data))?.into(),
        (Slice::Int(data), TensorElementType::Int32) => owned(shape, data, |number| number as i32)?,
        (Slice::Int(data), TensorElementType::Bool) => owned(shape, data, |number| number != 0)?,
        (Slice::Int(data), _) => TensorRef::from_array_view((shape, data))?.into(),
    })
}

fn owned<T: PrimitiveTensorElementType + std::fmt::Debug + Clone + 'static>(
    shape: Vec<usize>,
    data: &[i64],
    narrow: impl Fn(i64) -> T,
) -> ort::Result<SessionInputValue<'static>> {
    let data: Vec<T> = data.iter().map(|&number| narrow(number)).collect();
    Ok(Tensor::from_array((shape, data))?.into())
}

impl Made<'_> {
    pub(crate) fn get(&self, at: usize) -> Option<View<'_>> {
        let (shape, data) = self.values.get(&self.outputs.get(at)?.name)?.try_extract_tensor::<f32>().ok()?;
        let shape = shape.iter().map(|&size| usize::try_from(size).ok()).collect::<Option<_>>()?;
        Some(View { parts: vec![(Slice::Float(data), Layout::contiguous(shape))], axis: 0, element: Element::Float })
    }
}
