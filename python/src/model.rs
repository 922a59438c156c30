//! Models, read from files or from the text of a config.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::sync::Arc;

use cacheplan_planner::{ModelCaches, PlanRequest};
use cacheplan_transforms::{Assumption, ReadOptions, Resource};
use pyo3::prelude::*;

use crate::errors::{self, Said, error};

/// A model as its own files describe it: layers, dimensions, and the graph that its caches are collected from.
#[pyclass(frozen, module = "cacheplan")]
#[derive(Clone)]
pub(crate) struct Model {
    pub(crate) read: Arc<cacheplan_transforms::Model>,
    /// With what the passes collected of it, and the caches that the caller states beside those.
    pub(crate) caches: ModelCaches,
}

impl From<cacheplan_transforms::Model> for Model {
    fn from(read: cacheplan_transforms::Model) -> Self {
        let read = Arc::new(read);
        Self { caches: Arc::clone(&read).into(), read }
    }
}

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
        py.detach(|| cacheplan_transforms::Model::read(&path, &options)).map(Self::from).map_err(errors::model)
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
        py.detach(|| cacheplan_transforms::Model::read_config(name, text, &options))
            .map(Self::from)
            .map_err(errors::model)
    }

    /// The model with caches beside its own, a JSON list of resources.
    fn with_caches(&self, caches: &str) -> PyResult<Self> {
        let failed =
            |failed: String| error("ModelError", failed, Said { key: Some("caches".into()), ..Said::default() });
        let stated: Vec<Resource> = serde_json::from_str(caches).map_err(|error| failed(error.to_string()))?;
        let layers = self.layers();
        match stated.iter().find(|resource| resource.layer.is_some_and(|layer| layer >= layers)) {
            Some(beyond) => Err(failed(format!(
                "`{}` is of no layer of the model; its layers are 0 to {}",
                beyond.name,
                layers - 1
            ))),
            None => Ok(Self { caches: self.caches.with(Vec::new(), stated), ..self.clone() }),
        }
    }

    /// The `model_type` that its files state.
    #[getter]
    fn model_type(&self) -> &str {
        &self.read.info.model_type
    }

    /// Decoder layers.
    #[getter]
    fn layers(&self) -> u32 {
        self.read.info.layers
    }

    /// A hash of all that its plans depend on, for one build of this package.
    fn identity(&self, py: Python<'_>) -> PyResult<String> {
        py.detach(|| {
            let mut hasher = DefaultHasher::new();
            format!("{:?}", self.read.info).hash(&mut hasher);
            PlanRequest::of(self.caches.clone()).caches().map_err(errors::plan)?.hash(&mut hasher);
            Ok(format!("{:016x}", hasher.finish()))
        })
    }

    /// The element type of its activations, such as `bfloat16`.
    #[getter]
    fn dtype(&self) -> String {
        self.read.info.dtype.to_string()
    }

    /// Bytes of its weights over all ranks, where its files tell.
    #[getter]
    fn weight_bytes(&self) -> Option<u64> {
        self.read.info.weights.as_ref().map(|weights| weights.bytes)
    }

    fn __repr__(&self) -> String {
        format!("<cacheplan.Model {} of {} layers, {}>", self.model_type(), self.layers(), self.dtype())
    }
}
