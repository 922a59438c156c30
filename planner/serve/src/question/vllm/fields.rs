//! What pydantic refuses of what flags say, of configurations that are JSON and of numbers.

use serde_json::Value;

use super::super::Question;
use crate::error::ServeError;
use crate::flags::fields::{READ, expected, expected_of, flags, out_of_bounds, refuses};
use crate::flags::parse::program;
use crate::flags::python::float;
use crate::flags::table::Kind;
use crate::remedy::Remedy;

/// Flags that stay what they are until the engine makes its configuration of them.
const LATER: [(&str, &str); 2] =
    [("--speculative-config", "SpeculativeConfig"), ("--watermark-config", "WatermarkConfig")];
/// Texts that are lists in JSON.
const LISTS: [&str; 3] = ["--allowed-origins", "--allowed-methods", "--allowed-headers"];

/// What the parser refuses of flags that are JSON.
pub(super) fn look(question: &Question) -> Result<(), ServeError> {
    if question.engine.version < READ {
        return Ok(());
    }
    let refused = |flag: &'static str, said: String| {
        let said = format!("error: argument {flag}: {said}");
        Err(ServeError::Parser { program: program(question.engine.engine), said, remedies: vec![Remedy::Remove(flag)] })
    };
    for setting in question.parsed.settings.values().filter(|setting| setting.flag.kind == Kind::Text) {
        let flag = setting.flag;
        if LISTS.contains(&flag.name) && serde_json::from_str::<Value>(setting.value()).is_err() {
            return refused(flag.name, format!("invalid loads value: '{}'", setting.value()));
        }
        let stated = setting.values.iter().map(|value| Value::from(value.as_str()));
        let expected = stated.filter(|_| flag.choices.is_empty()).find_map(|value| expected_of(flag, &value));
        if let Some(expected) = expected {
            return refused(flag.name, format!("invalid choice: '{}' ({expected})", setting.value()));
        }
    }
    for (flag, class) in flags() {
        let Some(setting) = question.flag(flag) else { continue };
        let value = serde_json::from_str(setting.value()).ok();
        if let Some(said) = value.and_then(|value: Value| expected(class, &value)) {
            return refused(setting.flag.name, said);
        }
    }
    Ok(())
}

/// What its configuration refuses of words that its parser takes.
pub(super) fn bounds(question: &Question) -> Result<(), ServeError> {
    if question.engine.version < READ {
        return Ok(());
    }
    for (flag, class) in LATER {
        let Some(object) = question.object(flag)? else { continue };
        let object = object.into_iter().map(|(key, value)| (key.replace('-', "_"), value)).collect();
        if let Some(refused) = refuses(class, &object) {
            return Err(question.refused(refused, [Remedy::Remove(flag)]));
        }
    }
    for setting in question.parsed.settings.values() {
        let flag = setting.flag;
        // Adapters have a configuration only where they are on, and images where the model takes them.
        let is_made = match flag.group {
            "LoRAConfig" => question.is_on("--enable-lora"),
            "MultiModalConfig" => flag.kind == Kind::Json,
            group => group != "Frontend",
        };
        let number = match flag.kind {
            _ if !is_made => None,
            Kind::Json => {
                let value = serde_json::from_str(setting.value()).ok();
                if let Some(expected) = value.and_then(|value: Value| expected_of(flag, &value)) {
                    let said = format!("1 validation error for {}: {}: {expected}", flag.group, flag.name);
                    return Err(question.refused(said, [Remedy::Remove(flag.name)]));
                }
                None
            }
            Kind::Int | Kind::HumanInt | Kind::HumanIntOrAuto => setting.whole().map(|number| number as f64),
            Kind::Float => float(setting.value()),
            _ => None,
        };
        if let Some((number, expected)) = number.and_then(|number| Some((number, out_of_bounds(flag, number)?))) {
            let name = flag.name.trim_start_matches('-').replace('-', "_");
            let said = format!("1 validation error for {}: {name}: {expected} (it is {})", flag.group, setting.value());
            let is_percent = flag.kind == Kind::Float && number > 1.0 && out_of_bounds(flag, number / 100.0).is_none();
            let share = is_percent.then(|| Remedy::Set(flag.name, (number / 100.0).to_string()));
            return Err(question.refused(said, share.into_iter().chain([Remedy::Remove(flag.name)])));
        }
    }
    Ok(())
}
