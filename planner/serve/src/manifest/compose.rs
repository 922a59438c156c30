//! Services of Docker Compose.

mod words;

use super::command;
use super::docker::{self, Container};
use super::error::ManifestError;
use super::kubernetes;
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
        let service = Service::of(root, service)?;
        let at = service.get("command").or_else(|| service.get("entrypoint"));
        let at = at.unwrap_or_else(|| service.own().clone()).place();
        let mut origin = Origin::new(root.reading, at, format!("service {name:.200}"));
        origin.gpus = gpus(&service)?;
        origin.items = match service.get("command") {
            Some(command) if command.raw().is_none() => command.items()?,
            _ => Vec::new(),
        };
        let image = service.get("image").map(|image| interpolated(&image)).transpose()?;
        let entrypoint = service.get("entrypoint").map(|words| words_of(&words)).transpose()?;
        let arguments = service.get("command").map(|words| words_of(&words)).transpose()?.unwrap_or_default();
        let variables = environment(&service)?;
        let by_runtime = service.get("runtime").is_some_and(|runtime| runtime.raw() == Some(docker::RUNTIME));
        if by_runtime && !service.0.iter().any(|service| devices(service).is_some()) {
            origin.gpus = docker::visible(&variables, &origin.at)?;
        }
        let container = Container { image, entrypoint, arguments, variables };
        found.extend(command::of_container(container, &origin)?);
    }
    Ok(found)
}

/// A service, and those of the same file that it extends: each stands over those behind it.
struct Service<'a>(Vec<Spot<'a>>);

impl<'a> Service<'a> {
    fn of(root: &Spot<'a>, own: Spot<'a>) -> Result<Self, ManifestError> {
        const DEEPEST: usize = 16;
        const INSTEAD: &str = "write out what it takes from there";
        let mut chain = vec![own];
        while let Some(extends) = chain.last().and_then(|service| service.get("extends")) {
            if extends.has("file") {
                return Err(extends.refuse("a service that extends one of another file", INSTEAD));
            }
            let name = extends.get("service").unwrap_or_else(|| extends.clone()).known()?;
            let Some(base) = root.dig(&["services", &name]) else {
                return Err(extends.refuse("a service that extends one that is not there", INSTEAD));
            };
            if chain.len() == DEEPEST {
                return Err(extends.refuse("a service that extends itself, or another over many", INSTEAD));
            }
            chain.push(base);
        }
        Ok(Self(chain))
    }

    fn own(&self) -> &Spot<'a> {
        &self.0[0]
    }

    /// What stands last over what it extends.
    fn get(&self, key: &str) -> Option<Spot<'a>> {
        self.0.iter().find_map(|service| service.get(key))
    }
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
    words::words(&text).map_err(|_| {
        spot.refuse("a text with a quote that has no end, or with a parenthesis,", "write a list of words")
    })
}

/// Variables as a map, or as a list of `NAME=value`.
fn environment(service: &Service<'_>) -> Result<Variables, ManifestError> {
    let mut variables = Variables::default();
    for stated in service.0.iter().rev().filter_map(|service| service.get("environment")) {
        variables_of(&stated, &mut variables)?;
    }
    let mut of_files = Variables::default();
    for files in service.0.iter().filter_map(|service| service.get("env_file")) {
        let files = if files.raw().is_some() { vec![files] } else { files.items()? };
        for file in files {
            let name = interpolated(&file.get("path").unwrap_or_else(|| file.clone()))?;
            of_files.unread(kubernetes::unread(&file, &format!("env_file {name}")));
        }
    }
    variables.stand_over(of_files);
    Ok(variables)
}

fn variables_of(stated: &Spot<'_>, variables: &mut Variables) -> Result<(), ManifestError> {
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
    Ok(())
}

/// The list of devices that a service asks for itself.
fn devices<'a>(service: &Spot<'a>) -> Option<Spot<'a>> {
    let reserved = service.dig(&["deploy", "resources", "reservations", "devices"]);
    reserved.or_else(|| service.get("gpus").filter(|gpus| gpus.raw().is_none()))
}

/// The GPUs that a service reserves; all of them is no number.
fn gpus(service: &Service<'_>) -> Result<Option<u32>, ManifestError> {
    let mut found = service.0.iter().filter_map(devices);
    let Some(devices) = found.next() else { return Ok(None) };
    // Compose puts the lists together.
    if found.next().is_some() {
        return Err(devices.refuse("devices beside those of the service that is extended", "state them once"));
    }
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
