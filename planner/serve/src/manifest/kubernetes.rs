//! Objects of Kubernetes, and the pods in them.

use std::collections::BTreeSet;

use super::command;
use super::docker::Container;
use super::error::ManifestError;
use super::origin::Origin;
use super::reading::Spot;
use super::unknown::{self, Why};
use super::variables::{Unread, Variables};
use crate::Launch;

/// The objects of a file, so that what one of them names is found in another.
pub(super) struct Objects<'a> {
    objects: Vec<Spot<'a>>,
}

impl<'a> Objects<'a> {
    /// The objects of documents, those of lists among them.
    pub(super) fn of(documents: &[Spot<'a>]) -> Result<Self, ManifestError> {
        let mut objects = Vec::new();
        let mut left: Vec<Spot<'a>> = documents.iter().rev().cloned().collect();
        while let Some(object) = left.pop() {
            match object.get("items").filter(|_| kind(&object).is_some_and(|kind| kind.ends_with("List"))) {
                Some(items) => left.extend(items.items()?.into_iter().rev()),
                None => objects.push(object),
            }
        }
        Ok(Self { objects })
    }

    /// The objects that have a kind.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Spot<'a>> {
        self.objects.iter().filter(|object| kind(object).is_some())
    }

    /// The texts of all `ConfigMap` objects: the object's name, the key, the text.
    pub(super) fn config_maps(&self) -> Result<Vec<(String, String, String)>, ManifestError> {
        let mut texts = Vec::new();
        for map in self.objects.iter().filter(|object| kind(object) == Some("ConfigMap")) {
            let Some(name) = map.dig(&["metadata", "name"]).and_then(|spot| spot.raw()) else { continue };
            for (key, value) in map.map("data")? {
                let Some(text) = value.raw() else { continue };
                texts.push((name.to_owned(), key.to_owned(), text.to_owned()));
            }
        }
        Ok(texts)
    }

    /// The texts of a `ConfigMap`.
    fn config_map(&self, name: &str) -> Result<Vec<(&'a str, Spot<'a>)>, ManifestError> {
        let mut maps = self.objects.iter().filter(|object| kind(object) == Some("ConfigMap"));
        let map = maps.find(|map| map.dig(&["metadata", "name"]).and_then(|spot| spot.raw()) == Some(name));
        map.map_or_else(|| Ok(Vec::new()), |map| map.map("data"))
    }
}

pub(super) fn kind<'a>(object: &Spot<'a>) -> Option<&'a str> {
    object.get("kind")?.raw()
}

/// The kind and the name of an object.
pub(super) fn title(object: &Spot<'_>) -> String {
    let name = object.dig(&["metadata", "name"]).and_then(|name| name.raw()).unwrap_or("");
    format!("{} {name}", kind(object).unwrap_or("")).trim_end().chars().take(200).collect()
}

/// The engines of a pod; `variables` are given to each of its containers.
pub(super) fn pod_launches(
    pod: &Spot<'_>,
    title: &str,
    objects: &Objects<'_>,
    variables: &Variables,
) -> Result<Vec<Launch>, ManifestError> {
    let mut found = Vec::new();
    for container in pod.list("containers")? {
        container.reading.charge(variables.weight(), &container.place())?;
        let origin = origin(&container, pod, title, objects)?;
        found.extend(command::of_container(container_of(&container, variables.clone())?, &origin)?);
    }
    Ok(found)
}

/// Where a container of a pod stands, with its GPUs and with the files that are mounted in it.
pub(super) fn origin<'a>(
    container: &Spot<'a>,
    pod: &Spot<'a>,
    title: &str,
    objects: &Objects<'a>,
) -> Result<Origin<'a>, ManifestError> {
    let at = container.get("args").or_else(|| container.get("command")).unwrap_or_else(|| container.clone()).place();
    let name = container.get("name").and_then(|name| name.raw()).unwrap_or("");
    let object = if name.is_empty() { title.to_owned() } else { format!("{title}, container {name:.200}") };
    let mut origin = Origin::new(container.reading, at, object);
    let (gpus, part) = match container.get("resources") {
        Some(resources) => gpus(&resources)?,
        None => (None, None),
    };
    origin.gpus = gpus;
    origin.image = container.get("image").map(|image| image.text()).transpose()?;
    origin.items = container.list("args")?;
    origin.device = part.or(device(pod)?);
    let volumes = pod.list("volumes")?;
    for mount in container.list("volumeMounts")? {
        // Each looks through all of them.
        container.reading.charge(volumes.len() + objects.objects.len(), &origin.at)?;
        let volume =
            volumes.iter().find(|volume| text(volume, "name").is_some_and(|name| Some(name) == text(&mount, "name")));
        let map = volume.and_then(|volume| volume.dig(&["configMap", "name"])).and_then(|name| name.raw());
        let (Some(map), Some(folder)) = (map, text(&mount, "mountPath")) else { continue };
        for (key, value) in objects.config_map(map)? {
            let Some(value) = value.raw() else { continue };
            let path = match text(&mount, "subPath") {
                Some(part) if part == key => folder.to_owned(),
                Some(_) => continue,
                None => format!("{}/{key}", folder.trim_end_matches('/')),
            };
            container.reading.charge(path.len() + value.len(), &container.place())?;
            origin.files.push((path.into(), value.into()));
        }
    }
    Ok(origin)
}

fn text<'a>(spot: &Spot<'a>, key: &str) -> Option<&'a str> {
    spot.get(key)?.raw()
}

/// A container as it is written, its variables put into its words.
pub(super) fn container_of(container: &Spot<'_>, mut variables: Variables) -> Result<Container, ManifestError> {
    environment_of_maps(container, &mut variables)?;
    environment(container, "env", &mut variables)?;
    let (reading, at) = (container.reading, container.place());
    let words = |key: &str| -> Result<Option<Vec<String>>, ManifestError> {
        let Some(list) = container.get(key) else { return Ok(None) };
        let texts = list.items()?.iter().map(Spot::string).collect::<Result<Vec<_>, _>>()?;
        texts.iter().map(|text| variables.kubernetes(text, |_| false, reading, &at)).collect::<Result<_, _>>().map(Some)
    };
    let (entrypoint, arguments) = (words("command")?, words("args")?.unwrap_or_default());
    let image = container.get("image").map(|image| image.text()).transpose()?;
    Ok(Container { image, entrypoint, arguments, variables })
}

/// The variables of a list of `name` and `value`.
pub(super) fn environment(spot: &Spot<'_>, key: &str, variables: &mut Variables) -> Result<(), ManifestError> {
    let entries = spot.list(key)?;
    let names: BTreeSet<&str> = entries.iter().filter_map(|entry| text(entry, "name")).collect();
    for entry in entries {
        let Some(name) = entry.get("name").and_then(|name| name.raw()) else { continue };
        let written = format!("$({name})");
        let value = match (entry.get("value"), entry.get("valueFrom")) {
            (Some(value), _) => {
                let value = value.string()?;
                variables.kubernetes(&value, |name| names.contains(name), spot.reading, &entry.place())?
            }
            (None, Some(from)) if from.has("secretKeyRef") => Why::Secret.mark(&written),
            (None, Some(from)) => match of_map(&from) {
                Some(text) => {
                    spot.reading.charge(text.len(), &entry.place())?;
                    unknown::mark_templates(text)
                }
                None => Why::Cluster.mark(&written),
            },
            (None, None) => String::new(),
        };
        variables.set(name, vec![value], true);
    }
    Ok(())
}

/// The text that `configMapKeyRef` names, where its object is in the same file.
fn of_map<'a>(from: &Spot<'a>) -> Option<&'a str> {
    let named = from.get("configMapKeyRef")?;
    let (map, key) = (text(&named, "name")?, text(&named, "key")?);
    from.reading.config_map(map).find(|(known, _)| *known == key).map(|(_, text)| text)
}

/// The variables that `envFrom` takes of objects, over which those of `env` stand: what is not in the same file is not read.
fn environment_of_maps(container: &Spot<'_>, variables: &mut Variables) -> Result<(), ManifestError> {
    let mut taken = Variables::default();
    for source in container.list("envFrom")? {
        let named = |key: &str| source.get(key)?.get("name")?.raw();
        let prefix = text(&source, "prefix").unwrap_or("");
        let mut is_here = false;
        for (key, value) in named("configMapRef").into_iter().flat_map(|map| container.reading.config_map(map)) {
            is_here = true;
            container.reading.charge(key.len() + value.len(), &source.place())?;
            taken.set(&format!("{prefix}{key}"), vec![unknown::mark_templates(value)], true);
        }
        if !is_here {
            let name = named("configMapRef").or_else(|| named("secretRef")).unwrap_or_default();
            taken.unread(unread(&source, &format!("envFrom {name}")));
        }
    }
    variables.stand_over(taken);
    Ok(())
}

/// What sets variables and is not read, where it is named.
pub(super) fn unread(at: &Spot<'_>, what: &str) -> Unread {
    Unread::new(what, Why::InFile, at.place().line)
}

/// The secret whose keys are variables, by the word that charts and operators have for it.
pub(super) fn environment_of_secret(spot: &Spot<'_>, variables: &mut Variables) {
    let Some(secret) = spot.get("envFromSecret") else { return };
    let name = secret.get("name").unwrap_or_else(|| secret.clone()).raw().unwrap_or_default();
    let mut taken = Variables::default();
    taken.unread(unread(&secret, &format!("envFromSecret {name}")));
    variables.stand_over(taken);
}

/// The GPUs that resources ask for; with the name of what they are parts of, where they are.
pub(super) fn gpus(resources: &Spot<'_>) -> Result<(Option<u32>, Option<String>), ManifestError> {
    for (_, resources) in ["limits", "requests"].iter().filter_map(|key| Some((key, resources.get(key)?))) {
        for (name, count) in resources.entries()? {
            match name {
                "nvidia.com/gpu" | "amd.com/gpu" | "gpu" => return Ok((Some(count.count()?), None)),
                _ if name.starts_with("nvidia.com/mig-") => {
                    return Ok((Some(count.count()?), Some(name.to_owned())));
                }
                _ => {}
            }
        }
    }
    Ok((None, None))
}

/// Labels of nodes that name their GPU.
const LABELS: [&str; 11] = [
    "nvidia.com/gpu.product",
    "cloud.google.com/gke-accelerator",
    "karpenter.k8s.aws/instance-gpu-name",
    "gpu.nvidia.com/model",
    "gpu.nvidia.com/class",
    "amd.com/gpu.product-name",
    "k8s.amazonaws.com/accelerator",
    "skypilot.co/accelerator",
    "node.kubernetes.io/instance-type",
    "beta.kubernetes.io/instance-type",
    "karpenter.azure.com/sku-name",
];

/// The GPU of the nodes that a pod may stand on, if it is one.
pub(super) fn device(pod: &Spot<'_>) -> Result<Option<String>, ManifestError> {
    for label in LABELS {
        if let Some(value) = pod.get("nodeSelector").and_then(|selector| selector.get(label)) {
            return Ok(Some(value.known()?));
        }
    }
    let required = ["affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution"];
    let terms = match pod.dig(&required) {
        Some(required) => required.list("nodeSelectorTerms")?,
        None => pod.list("nodeSelectorTerms")?,
    };
    let mut found: Option<String> = None;
    for expression in terms.iter().map(|term| term.list("matchExpressions")).collect::<Result<Vec<_>, _>>()?.concat() {
        let is_label = text(&expression, "key").is_some_and(|key| LABELS.contains(&key));
        if is_label && text(&expression, "operator") == Some("In") {
            for value in expression.list("values")? {
                let value = value.known()?;
                // One of several is not known.
                if found.as_ref().is_some_and(|found| *found != value) {
                    return Ok(None);
                }
                found = Some(value);
            }
        }
    }
    Ok(found)
}
