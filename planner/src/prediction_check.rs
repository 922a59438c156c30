//! What an engine is said to allocate is what its rules give for the request.

use serde_json::Value;

use crate::check::{Findings, Rule, Violation};
use crate::engines::{EnginePrediction, EngineSpec};
use crate::error::PlanError;
use crate::request::PlanRequest;

/// What people read, and the name and version by which the rules were found.
const FREE: [&str; 3] = ["name", "notes", "version"];

impl PlanRequest {
    /// Proves that an engine's section of a plan, as `plan --as ENGINE --format json` writes it, is what the engine would
    /// allocate for this request.
    ///
    /// # Errors
    /// Every number that is not as it must be; an engine that there is not, or that refuses the request.
    pub fn check_prediction(&self, found: &EnginePrediction) -> Result<(), Vec<Violation>> {
        let mut findings = Findings::default();
        let named: Result<EngineSpec, _> = format!("{}@{}", found.name, found.version).parse();
        let expected = match named.map(|engine| self.predict(engine)) {
            Ok(Ok(expected)) => expected,
            Ok(Err(error)) => return Err(vec![refused(&error)]),
            Err(unknown) => {
                findings.add(Rule::Engine, "engine", &found.name, unknown.to_string());
                return Err(findings.0);
            }
        };
        let fields = |prediction: &EnginePrediction| match serde_json::to_value(prediction) {
            Ok(Value::Object(fields)) => fields,
            _ => serde_json::Map::new(),
        };
        let (found, expected) = (fields(found), fields(&expected));
        let names = found.keys().chain(expected.keys().filter(|name| !found.contains_key(*name)));
        for name in names.filter(|name| !FREE.contains(&name.as_str())) {
            let [found, expected] = [&found, &expected].map(|of| of.get(name).unwrap_or(&Value::Null));
            if found != expected {
                findings.add(Rule::Engine, format!("engine.{name}"), found.to_string(), expected.to_string());
            }
        }
        if findings.0.is_empty() { Ok(()) } else { Err(findings.0) }
    }
}

fn refused(error: &PlanError) -> Violation {
    let (place, found) = ("engine".into(), "an allocation".into());
    Violation { rule: Rule::Engine, place, found, expected: error.to_string() }
}
