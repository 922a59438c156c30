//! `DynamoGraphDeployment`: services (v1alpha1) or components (v1beta1), each with a pod.

use super::command;
use super::error::ManifestError;
use super::kubernetes::{self, Objects};
use super::reading::Spot;
use super::variables::Variables;
use crate::Launch;

pub(super) fn launches(object: &Spot<'_>, objects: &Objects<'_>) -> Result<Vec<Launch>, ManifestError> {
    let title = kubernetes::title(object);
    let Some(spec) = object.get("spec") else { return Ok(Vec::new()) };
    let mut shared = Variables::default();
    for key in ["envs", "env"] {
        kubernetes::environment(&spec, key, &mut shared)?;
    }
    let mut found = Vec::new();
    for (name, service) in spec.map("services")? {
        spec.reading.charge(shared.weight(), &service.place())?;
        let mut variables = shared.clone();
        kubernetes::environment(&service, "envs", &mut variables)?;
        kubernetes::environment_of_secret(&service, &mut variables);
        let Some(pod) = service.get("extraPodSpec") else { continue };
        let Some(container) = pod.get("mainContainer") else { continue };
        let title = format!("{title}, service {name:.200}");
        let mut origin = kubernetes::origin(&container, &pod, &title, objects)?;
        if let (None, Some(resources)) = (origin.gpus, service.get("resources")) {
            let (gpus, part) = kubernetes::gpus(&resources)?;
            (origin.gpus, origin.device) = (gpus, part.or(origin.device));
        }
        let nodes = nodes(&service)?;
        let launches = command::of_container(kubernetes::container_of(&container, variables)?, &origin)?;
        found.extend(launches.into_iter().map(|launch| launch.on_nodes(nodes)));
    }
    for component in spec.list("components")? {
        let name = component.get("name").and_then(|name| name.raw()).unwrap_or("");
        let title = format!("{title}, component {name:.200}");
        if let Some(pod) = component.dig(&["podTemplate", "spec"]) {
            let launches = kubernetes::pod_launches(&pod, &title, objects, &shared)?;
            let nodes = nodes(&component)?;
            found.extend(launches.into_iter().map(|launch| launch.on_nodes(nodes)));
        }
    }
    Ok(found)
}

/// The pods of one replica, each on a node of its own.
fn nodes(service: &Spot<'_>) -> Result<u32, ManifestError> {
    service.dig(&["multinode", "nodeCount"]).map_or(Ok(1), |count| count.count())
}
