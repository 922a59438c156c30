//! What a prefix cache of a plan's sizes would do to a workload: `cacheplan simulate`.

use std::io::BufReader;
use std::path::PathBuf;

use cacheplan_files::{Limit, Source};
use cacheplan_managers::simulate::{Policy, Report, Scenario, TraceRequest, Workload};
use pyo3::prelude::*;

use crate::errors::{Said, error};
use crate::plan::{Plan, json};

/// A report for each policy.
#[pyclass(frozen, module = "cacheplan")]
pub(crate) struct Simulation {
    title: String,
    reports: Vec<Report>,
}

/// A size, or `"unlimited"`.
#[derive(FromPyObject)]
pub(crate) enum Most {
    Count(usize),
    Word(String),
}

impl Most {
    fn limit(self, key: &'static str) -> PyResult<Option<usize>> {
        match self {
            Self::Count(count) => Ok(Some(count)),
            Self::Word(word) if word == "unlimited" => Ok(None),
            Self::Word(word) => Err(refused(key, format!("`{word}` is neither a number nor `unlimited`"))),
        }
    }
}

fn refused(key: &str, failed: impl ToString) -> PyErr {
    error("PlanError", failed, Said { key: Some(key.into()), ..Said::default() })
}

/// Runs a built-in workload or the requests of a trace. Sizes are the plan's, else those of `Scenario`.
#[pyfunction]
#[allow(clippy::too_many_arguments, reason = "the package gives them names and defaults")]
#[pyo3(signature = (plan, workload, trace, policies, chunk, checkpoints, kv_tokens))]
pub(crate) fn simulate(
    py: Python<'_>,
    plan: Option<&Plan>,
    workload: Option<&str>,
    trace: Option<PathBuf>,
    policies: Vec<String>,
    chunk: Option<usize>,
    checkpoints: Option<Most>,
    kv_tokens: Option<Most>,
) -> PyResult<Simulation> {
    let policies: PyResult<Vec<Policy>> = policies
        .iter()
        .map(|name| {
            let known = Policy::ALL.map(Policy::name).join(", ");
            let found = Policy::ALL.into_iter().find(|policy| policy.name() == name);
            found.ok_or_else(|| refused("policies", format!("`{name}` is no policy; there are {known}")))
        })
        .collect();
    let mut policies = policies?;
    if policies.is_empty() {
        policies.extend(Policy::ALL);
    }
    let chunk = chunk.unwrap_or(Scenario::default().chunk);
    let scenario = match plan {
        Some(plan) => Scenario::of_plan(&plan.plan, chunk).map_err(|failed| refused("plan", failed))?,
        None => Scenario { chunk, ..Scenario::default() },
    };
    let scenario = Scenario {
        checkpoints: checkpoints.map_or(Ok(scenario.checkpoints), |most| most.limit("checkpoints"))?,
        kv_tokens: kv_tokens.map_or(Ok(scenario.kv_tokens), |most| most.limit("kv_tokens"))?,
        ..scenario
    };
    py.detach(|| {
        let (title, requests) = requests(workload, trace)?;
        let reports = policies.iter().map(|&policy| Scenario { policy, ..scenario }.run(&requests));
        let reports = reports.collect::<Result<_, _>>().map_err(|failed| refused("workload", failed))?;
        Ok(Simulation { title, reports })
    })
}

/// The requests of a built-in workload or a trace, and what they are called.
pub(crate) fn requests(workload: Option<&str>, trace: Option<PathBuf>) -> PyResult<(String, Vec<TraceRequest>)> {
    match (workload, trace) {
        (Some(name), None) => Ok((name.to_owned(), built_in(name).map_err(|failed| refused("workload", failed))?)),
        (None, Some(path)) => Ok((path.display().to_string(), read(&path).map_err(|failed| refused("trace", failed))?)),
        _ => Err(refused("workload", "either a workload or a trace is simulated")),
    }
}

fn built_in(name: &str) -> Result<Vec<TraceRequest>, String> {
    let workload: Workload = serde_json::from_value(name.into()).map_err(|failed| failed.to_string())?;
    Ok(workload.requests())
}

fn read(path: &std::path::Path) -> Result<Vec<TraceRequest>, String> {
    let said = |failed: &dyn std::fmt::Display| format!("{}: {failed}", path.display());
    let source = Source::named(path, Limit::TRACE).map_err(|failed| said(&failed))?;
    source.within(Limit::TRACE).map_err(|failed| said(&failed))?;
    let requests = TraceRequest::read_trace(BufReader::new(source.reader())).map_err(|failed| said(&failed))?;
    if requests.is_empty() { Err(said(&"the trace holds no request")) } else { Ok(requests) }
}

#[pymethods]
impl Simulation {
    /// What `cacheplan simulate --format json` prints, without the newline at its end.
    fn to_json(&self) -> PyResult<String> {
        json(&self.reports)
    }

    fn table(&self) -> String {
        let rows: Vec<String> = self.reports.iter().map(Report::row).collect();
        format!("{}\n{}\n", Report::HEADER, rows.join("\n"))
    }

    fn svg(&self) -> String {
        Report::chart(&self.title, &self.reports)
    }
}
