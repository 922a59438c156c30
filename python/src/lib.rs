//! `cacheplan._native`: the planner and the books for Python.
//!
//! What people import is the package `cacheplan`, which adds records, paths and docstrings; here are only the calls that
//! need Rust. Planning releases the interpreter lock; books belong to the thread that made them.

mod array;
mod book;
mod disaggregate;
mod errors;
mod fit;
mod index;
mod lack;
mod model;
mod plan;
mod reuse;
mod simulate;
mod tiers;

use pyo3::prelude::*;

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("FIT_DEVICES", cacheplan_planner::FitQuestion::DEVICES)?;
    module.add_class::<model::Model>()?;
    module.add_class::<plan::Plan>()?;
    module.add_class::<book::CacheBook>()?;
    module.add_class::<book::Sequence>()?;
    module.add_class::<book::Step>()?;
    module.add_class::<book::Pool>()?;
    module.add_class::<lack::Lack>()?;
    module.add_class::<reuse::PrefixReuse>()?;
    module.add_class::<reuse::Lease>()?;
    module.add_class::<array::Array>()?;
    module.add_class::<fit::Fit>()?;
    module.add_class::<simulate::Simulation>()?;
    module.add_class::<tiers::Tiers>()?;
    module.add_class::<disaggregate::Handing>()?;
    module.add_class::<index::Index>()?;
    module.add_function(wrap_pyfunction!(fit::fit, module)?)?;
    module.add_function(wrap_pyfunction!(simulate::simulate, module)?)?;
    module.add_function(wrap_pyfunction!(tiers::tiers, module)?)?;
    module.add_function(wrap_pyfunction!(disaggregate::disaggregate, module)?)?;
    module.add_function(wrap_pyfunction!(plan::make, module)?)?;
    module.add_function(wrap_pyfunction!(plan::budget_keys, module)?)
}
