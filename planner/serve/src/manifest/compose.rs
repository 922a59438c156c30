//! Services of Docker Compose.

use super::command;
use super::docker::Container;
use super::error::ManifestError;
use super::origin::Origin;
use super::reading::Spot;
use super::unknown;
use super::variables::Variables;
use super::yaml::Value;
use crate::Launch;

/// The engines of the services of a file.
pub(super) fn launches(root: &Spot<'_>) -> Result<Vec<Launch>, ManifestError> {
    let mut found = Vec::new();
    for (name, service) in root.map("services")? {
        let at =
            service.get("command").or_else(|| service.get("entrypoint")).unwrap_or_else(|| service.clone()).place();
        let mut origin = Origin::new(root.reading, at, format!("service {name:.200}"));
        origin.gpus = gpus(&service)?;
        origin.items = match service.get("command") {
            Some(command) if command.raw().is_none() => command.items()?,
            _ => Vec::new(),
        };
        let image = service.get("image").map(|image| interpolated(&image)).transpose()?;
        let entrypoint = service.get("entrypoint").map(|words| words_of(&words)).transpose()?;
        let arguments = service.get("command").map(|words| words_of(&words)).transpose()?.unwrap_or_default();
        let container = Container { image, entrypoint, arguments, variables: environment(&service)? };
        let launches = command::of_container(container, &origin)?;
        if let (Some(base), false) = (service.get("extends"), launches.is_empty() && service.has("command")) {
            return Err(base.refuse("a service that extends another", "write out what it takes from there"));
        }
        found.extend(launches);
    }
    Ok(found)
}

/// A text in which Compose has put values.
fn interpolated(spot: &Spot<'_>) -> Result<String, ManifestError> {
    Variables::compose(&spot.text()?, &spot.place())
}

/// Words as a list, or as a text that is cut into them.
fn words_of(spot: &Spot<'_>) -> Result<Vec<String>, ManifestError> {
    if let Value::List(_) = spot.node.value {
        return spot.items()?.iter().map(interpolated).collect();
    }
    let text = interpolated(spot)?;
    shlex::split(&text).ok_or_else(|| spot.refuse("a quote without an end", "close it"))
}

/// Variables as a map, or as a list of `NAME=value`.
fn environment(service: &Spot<'_>) -> Result<Variables, ManifestError> {
    let mut variables = Variables::default();
    let Some(stated) = service.get("environment") else { return Ok(variables) };
    if let Value::List(_) = stated.node.value {
        for entry in stated.items()? {
            let entry = interpolated(&entry)?;
            // Without a value it is that of whoever runs Compose.
            let (name, value) = match entry.split_once('=') {
                Some((name, value)) => (name, value.to_owned()),
                None => (entry.as_str(), unknown::Why::NotSet.mark(&format!("${entry}"))),
            };
            variables.set(name, vec![value], true);
        }
    } else {
        for (name, value) in stated.entries()? {
            variables.set(name, vec![interpolated(&value)?], true);
        }
    }
    Ok(variables)
}

/// The GPUs that a service reserves; all of them is no number.
fn gpus(service: &Spot<'_>) -> Result<Option<u32>, ManifestError> {
    let reserved = service.dig(&["deploy", "resources", "reservations", "devices"]);
    let stated = service.get("gpus").filter(|gpus| gpus.raw().is_none());
    let Some(devices) = reserved.or(stated) else { return Ok(None) };
    let mut count = None;
    for device in devices.items()? {
        let of = match (device.get("device_ids"), device.get("count")) {
            (Some(ids), _) => u32::try_from(ids.items()?.len()).ok(),
            (None, Some(number)) if number.raw() != Some("all") => Some(number.count()?),
            _ => return Ok(None),
        };
        count = Some(of.unwrap_or(0).saturating_add(count.unwrap_or(0)));
    }
    Ok(count)
}
