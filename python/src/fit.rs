//! Which devices hold so many sequences of so many tokens: `cacheplan fit`.

use cacheplan_planner::{ByteSize, DeviceInfo, FitQuestion, PlanRequest, Prices};
use pyo3::prelude::*;

use crate::errors::{self, Said, error};
use crate::model::Model;
use crate::plan::json;

/// Every layout that was tried, those first that hold, as the command prints it.
#[pyclass(frozen, module = "cacheplan")]
pub(crate) struct Fit {
    json: String,
    table: String,
    csv: String,
    svg: String,
}

/// Plans every layout on at most `max_gpus` of each device.
#[pyfunction]
#[pyo3(signature = (model, context, sequences, gpus, max_gpus, prices, weights))]
#[allow(clippy::too_many_arguments, reason = "the package gives them names and defaults")]
pub(crate) fn fit(
    py: Python<'_>,
    model: &Model,
    context: u64,
    sequences: u64,
    gpus: Vec<String>,
    max_gpus: u32,
    prices: Option<&str>,
    weights: Option<&str>,
) -> PyResult<Fit> {
    let refused =
        |key: &str, failed: String| error("BudgetError", failed, Said { key: Some(key.into()), ..Said::default() });
    let devices: Result<Vec<(String, DeviceInfo)>, _> =
        gpus.iter().map(|name| name.parse().map(|device| (name.trim().to_lowercase(), device))).collect();
    let weights = weights.map(str::parse::<ByteSize>).transpose();
    let question = FitQuestion {
        model: None,
        stated: Vec::new(),
        context,
        sequences,
        devices: devices.map_err(|failed| refused("gpus", failed.to_string()))?,
        max_devices: max_gpus,
        margin: 0,
        weights: weights.map_err(|failed| refused("weights", failed.to_string()))?,
        prices: prices
            .map(Prices::from_toml)
            .transpose()
            .map_err(|failed| refused("prices", failed))?
            .unwrap_or_default(),
        engines: Vec::new(),
    };
    let request = PlanRequest::of(model.caches.clone());
    py.detach(|| {
        let answer = request.fit(&question).map_err(errors::plan)?;
        Ok(Fit { json: json(&answer)?, table: answer.table(), csv: answer.csv(), svg: answer.svg() })
    })
}

#[pymethods]
impl Fit {
    /// What `cacheplan fit --format json` prints, without the newline at its end.
    fn to_json(&self) -> &str {
        &self.json
    }

    fn table(&self) -> &str {
        &self.table
    }

    fn csv(&self) -> &str {
        &self.csv
    }

    fn svg(&self) -> &str {
        &self.svg
    }
}
