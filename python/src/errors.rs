//! Rust's errors as the exceptions of `cacheplan._errors`, each with the key, what was found and what would do.

use cacheplan_managers::BookError;
use cacheplan_planner::{BudgetError, PlanError};
use cacheplan_transforms::FrontendError;
use pyo3::prelude::*;

use crate::lack::Lack;

/// What an exception says beside its message.
#[derive(Default)]
pub(crate) struct Said {
    pub(crate) key: Option<String>,
    pub(crate) found: Option<String>,
    pub(crate) hint: Option<String>,
}

/// An exception of the class `class` of `cacheplan._errors`.
pub(crate) fn error(class: &str, message: impl ToString, said: Said) -> PyErr {
    let Said { key, found, hint } = said;
    Python::attach(|py| {
        let class = py.import("cacheplan._errors").and_then(|module| module.getattr(class));
        match class.and_then(|class| class.call1((message.to_string(), key, found, hint))) {
            Ok(error) => PyErr::from_value(error),
            Err(error) => error,
        }
    })
}

pub(crate) fn budget(error_: BudgetError) -> PyErr {
    let key = error_.origin.as_ref().map(ToString::to_string);
    let hint = error_.nearest.as_ref().map(|nearest| format!("did you mean `{nearest}`?"));
    error("BudgetError", &error_, Said { key, hint, found: None })
}

pub(crate) fn model(error_: FrontendError) -> PyErr {
    let said = match &error_ {
        FrontendError::Missing { what, keys, unsaid, .. } => {
            let hint = if keys.is_empty() { unsaid.to_string() } else { format!("one of {keys}") };
            Said { key: Some(what.to_string()), hint: Some(hint), found: None }
        }
        FrontendError::BadValue { key, found, expected, .. } => {
            Said { key: Some(key.clone()), found: Some(found.clone()), hint: Some(expected.clone()) }
        }
        FrontendError::NotCovered { key, found, reason, .. } => {
            Said { key: Some(key.clone()), found: Some(found.clone()), hint: Some(reason.to_string()) }
        }
        FrontendError::NoModelType { .. } => {
            Said { key: Some("model_type".into()), hint: Some("assume=[\"model_type=NAME\"]".into()), found: None }
        }
        FrontendError::UnknownModelType { found, near, .. } => {
            let hint = Some(near).filter(|near| !near.is_empty()).map(|near| format!("near: {near}"));
            Said { key: Some("model_type".into()), found: Some(found.clone()), hint }
        }
        FrontendError::Description { place, .. } if !place.key.is_empty() => {
            Said { key: Some(place.key.clone()), ..Said::default() }
        }
        FrontendError::UnknownLayerKind { layer, found, known, .. } => Said {
            key: Some(format!("layer.{layer}")),
            found: Some(found.to_string()),
            hint: Some(format!("one of {known}")),
        },
        _ => Said::default(),
    };
    error("ModelError", &error_, said)
}

pub(crate) fn plan(error_: PlanError) -> PyErr {
    let of_key = |key: &str| Said { key: Some(key.into()), ..Said::default() };
    match &error_ {
        PlanError::DoesNotFit(short) => {
            let said = Said {
                key: Some(short.capped_by.clone()),
                found: Some(format!("{} bytes short", short.shortfall)),
                hint: short.suggestions.first().map(ToString::to_string),
            };
            error("DoesNotFit", &error_, said)
        }
        PlanError::Sought { key, .. } => error("BudgetError", &error_, of_key(key)),
        PlanError::Devices(_) => error("BudgetError", &error_, of_key("device")),
        PlanError::NoStage { .. } => error("BudgetError", &error_, of_key("stage")),
        PlanError::Graph(_) | PlanError::Resource(_) => error("ModelError", &error_, Said::default()),
        _ => error("PlanError", &error_, Said::default()),
    }
}

pub(crate) fn book(error_: BookError) -> PyErr {
    match error_ {
        BookError::Lack(lack) => {
            let said = Said { key: Some(lack.of.to_string()), found: Some(format!("{} free", lack.free)), hint: None };
            let raised = error("NoRoom", &lack, said);
            // The loop of an engine hands it on to `make_room`.
            let attached = Python::attach(|py| raised.value(py).setattr("lack", Lack(lack)));
            attached.map_or_else(|error| error, |()| raised)
        }
        other => error("BookError", &other, Said::default()),
    }
}
