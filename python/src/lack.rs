//! What the books had no room for.

use pyo3::prelude::*;

/// What an operation had no room for; `PrefixReuse.make_room` takes it.
#[pyclass(frozen, module = "cacheplan")]
pub(crate) struct Lack(pub(crate) cacheplan_managers::Lack);

#[pymethods]
impl Lack {
    #[getter]
    fn needed(&self) -> u64 {
        self.0.needed
    }

    #[getter]
    fn free(&self) -> u64 {
        self.0.free
    }

    #[getter]
    fn capacity(&self) -> u64 {
        self.0.capacity
    }

    fn __repr__(&self) -> String {
        format!("<cacheplan.Lack {}>", self.0)
    }
}
