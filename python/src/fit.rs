//! Which devices hold so many sequences of so many tokens: `cacheplan fit`.

use cacheplan_planner::engines::UnknownEngine;
use cacheplan_planner::{Config, DeviceInfo, FitQuestion, Override, PlanRequest, Prices, StatedWeights};
use cacheplan_serve::ServeError;
use cacheplan_serve::fit::{Asks, By};
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
#[pyo3(signature = (model, context, sequences, gpus, max_gpus, prices, weights, kv_dtype, ssm_dtype, engines, margin))]
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
    kv_dtype: Option<&str>,
    ssm_dtype: Option<&str>,
    engines: Vec<String>,
    margin: u32,
) -> PyResult<Fit> {
    let refused =
        |key: &str, failed: String| error("BudgetError", failed, Said { key: Some(key.into()), ..Said::default() });
    let devices: Result<Vec<(String, DeviceInfo)>, _> =
        gpus.iter().map(|name| name.parse().map(|device| (name.trim().to_lowercase(), device))).collect();
    let weights = weights.map(str::parse::<StatedWeights>).transpose();
    let question = FitQuestion {
        model: None,
        stated: Vec::new(),
        context,
        sequences,
        devices: devices.map_err(|failed| refused("gpus", failed.to_string()))?,
        max_devices: max_gpus,
        margin,
        weights: weights.map_err(|failed| refused("weights", failed))?,
        prices: prices
            .map(Prices::from_toml)
            .transpose()
            .map_err(|failed| refused("prices", failed))?
            .unwrap_or_default(),
    };
    let engines: Result<Vec<By>, _> = engines.iter().map(|name| name.parse()).collect();
    let engines = engines.map_err(|failed: UnknownEngine| refused("engines", failed.to_string()))?;
    let dtypes = [("dtypes.kv", "kv_dtype", kv_dtype), ("dtypes.ssm", "ssm_dtype", ssm_dtype)].into_iter();
    let stated: Vec<Override> =
        dtypes.filter_map(|(key, name, dtype)| Some(Override::by_argument(key, dtype?.to_owned(), name))).collect();
    let config = Config::resolve(None, &[], &stated).map_err(errors::budget)?;
    let request = PlanRequest::of(model.caches.clone()).with_config(config);
    py.detach(|| {
        let answer = Asks::of_model(&request, None).fit(&[(&request, question)], &engines).map_err(asked)?;
        let answer = answer.ok_or_else(|| refused("gpus", "no device is named".into()))?;
        Ok(Fit { json: json(&answer)?, table: answer.table(), csv: answer.csv(), svg: answer.svg() })
    })
}

/// What a plan or an engine refuses.
fn asked(failed: ServeError) -> PyErr {
    match failed {
        ServeError::Plan(failed) => errors::plan(failed),
        other => error("PlanError", other, Said { key: Some("engines".into()), ..Said::default() }),
    }
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
