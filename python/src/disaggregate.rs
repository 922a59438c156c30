//! Prefill and decode on devices of their own: `cacheplan disaggregate`.

use cacheplan_planner::Disaggregation;
use pyo3::prelude::*;

use crate::errors::{Said, error};
use crate::plan::{Plan, json};

/// Both plans, what passes between them, and what that admits.
#[pyclass(frozen, module = "cacheplan")]
pub(crate) struct Handing {
    json: String,
    table: String,
}

/// Asks about requests of one length, which stands in place of those of both plans' budgets.
#[pyfunction]
pub(crate) fn disaggregate(
    py: Python<'_>,
    prefill: &Plan,
    decode: &Plan,
    prompt: u64,
    output: u64,
    link: f64,
) -> PyResult<Handing> {
    let question = Disaggregation { prefill: prefill.asked()?, decode: decode.asked()?, prompt, output, link };
    py.detach(|| {
        let answer = question.answer().map_err(|failed| error("PlanError", failed, Said::default()))?;
        Ok(Handing { json: json(&answer)?, table: answer.table() })
    })
}

#[pymethods]
impl Handing {
    /// What `cacheplan disaggregate --format json` prints, without the newline at its end.
    fn to_json(&self) -> &str {
        &self.json
    }

    fn table(&self) -> &str {
        &self.table
    }
}
