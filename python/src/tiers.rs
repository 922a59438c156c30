//! How large tiers below the device must be: `cacheplan tiers`.

use std::path::PathBuf;

use cacheplan_files::Limit;
use cacheplan_managers::simulate::tiers::{TiersAsked, TiersError, TiersTold};
use pyo3::prelude::*;
use serde_json::{Map, Value};

use crate::errors::{self, Said, error};
use crate::plan::{Plan, json};
use crate::simulate::requests;

/// The smallest tiers that do, and what engines are told of them.
#[pyclass(frozen, module = "cacheplan")]
pub(crate) struct Tiers(TiersTold);

/// Asks about the plan's stage; `asked` are the tiers as stated, a JSON object.
#[pyfunction]
#[pyo3(signature = (plan, workload, trace, asked))]
pub(crate) fn tiers(
    py: Python<'_>,
    plan: &Plan,
    workload: Option<&str>,
    trace: Option<PathBuf>,
    asked: &str,
) -> PyResult<Tiers> {
    let (request, asked) = (plan.request()?, stated(asked)?);
    py.detach(|| {
        let (title, requests) = requests(workload, trace)?;
        asked.answer(&request, title, &requests).map(Tiers).map_err(failed)
    })
}

fn stated(text: &str) -> PyResult<TiersAsked> {
    let keys: Map<String, Value> =
        Limit::PLAN.parse_json(text.as_bytes()).map_err(|failed| error("PlanError", failed, Said::default()))?;
    TiersAsked::of_json(keys).map_err(failed)
}

fn failed(failed: TiersError) -> PyErr {
    match failed {
        TiersError::Plan(failed) => errors::plan(failed),
        TiersError::Stated { ref key, ref found, .. } => {
            let said = Said { key: Some(key.clone()), found: Some(found.clone()), hint: None };
            error("PlanError", &failed, said)
        }
        TiersError::Value { what, .. } => {
            error("PlanError", &failed, Said { key: Some(what.replace('-', "_")), ..Said::default() })
        }
        failed => error("PlanError", failed, Said::default()),
    }
}

#[pymethods]
impl Tiers {
    /// What `cacheplan tiers --format json` prints, without the newline at its end.
    fn to_json(&self) -> PyResult<String> {
        json(&self.0)
    }

    fn table(&self) -> String {
        self.0.table()
    }

    fn svg(&self) -> String {
        self.0.curve().svg()
    }
}
