//! Models, read from files or from the text of a config.

use std::path::PathBuf;

use cacheplan_transforms::{Assumption, ReadOptions};
use pyo3::prelude::*;

use crate::errors::{self, Said, error};

/// A model as its own files describe it: layers, dimensions, and the graph that its caches are collected from.
#[pyclass(frozen, module = "cacheplan")]
pub(crate) struct Model(pub(crate) cacheplan_transforms::Model);

fn options(assume: Vec<String>, descriptions: Vec<String>) -> PyResult<ReadOptions> {
    let assume: Result<Vec<Assumption>, _> = assume.iter().map(|text| text.parse::<Assumption>()).collect();
    let assume =
        assume.map_err(|found| error("ModelError", found, Said { key: Some("assume".into()), ..Said::default() }))?;
    Ok(ReadOptions { assume, descriptions })
}

#[pymethods]
impl Model {
    /// Reads a folder with `config.json`, or a config.json, .safetensors, .gguf or .onnx file. Of weights only headers.
    #[staticmethod]
    fn read(py: Python<'_>, path: PathBuf, assume: Vec<String>, descriptions: Vec<String>) -> PyResult<Self> {
        let options = options(assume, descriptions)?;
        py.detach(|| cacheplan_transforms::Model::read(&path, &options)).map(Self).map_err(errors::model)
    }

    /// Reads the text of a config.json; `name` stands for the file in errors.
    #[staticmethod]
    fn from_config(
        py: Python<'_>,
        text: &str,
        name: &str,
        assume: Vec<String>,
        descriptions: Vec<String>,
    ) -> PyResult<Self> {
        let options = options(assume, descriptions)?;
        py.detach(|| cacheplan_transforms::Model::read_config(name, text, &options)).map(Self).map_err(errors::model)
    }

    /// The `model_type` that its files state.
    #[getter]
    fn model_type(&self) -> &str {
        &self.0.info.model_type
    }

    /// Decoder layers.
    #[getter]
    fn layers(&self) -> u32 {
        self.0.info.layers
    }

    /// The element type of its activations, such as `bfloat16`.
    #[getter]
    fn dtype(&self) -> String {
        self.0.info.dtype.to_string()
    }

    /// Bytes of its weights over all ranks, where its files tell.
    #[getter]
    fn weight_bytes(&self) -> Option<u64> {
        self.0.info.weights.as_ref().map(|weights| weights.bytes)
    }

    fn __repr__(&self) -> String {
        format!("<cacheplan.Model {} of {} layers, {}>", self.model_type(), self.layers(), self.dtype())
    }
}
