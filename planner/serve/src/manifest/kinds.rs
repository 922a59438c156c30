//! Which kind of object has its commands where.

use super::error::ManifestError;
use super::kubernetes::{self, Objects};
use super::reading::Spot;
use super::variables::Variables;
use super::{dynamo, kserve, ray};
use crate::Launch;

/// The engines that an object starts.
pub(super) fn launches(object: &Spot<'_>, objects: &Objects<'_>) -> Result<Vec<Launch>, ManifestError> {
    let title = kubernetes::title(object);
    let pods: &[&[&str]] = match kubernetes::kind(object).unwrap_or("") {
        "Pod" | "ServingRuntime" | "ClusterServingRuntime" => &[&["spec"]],
        "Deployment" | "StatefulSet" | "DaemonSet" | "ReplicaSet" | "Job" => &[&["spec", "template", "spec"]],
        "CronJob" => &[&["spec", "jobTemplate", "spec", "template", "spec"]],
        "LeaderWorkerSet" => return leader_worker_set(object, objects),
        "InferenceService" => return kserve::inference_service(object, objects),
        "LLMInferenceService" => return kserve::llm_inference_service(object, objects),
        "DynamoGraphDeployment" => return dynamo::launches(object, objects),
        "RayService" => return ray::service(object),
        _ => &[],
    };
    let mut found = Vec::new();
    for pod in pods.iter().filter_map(|keys| object.dig(keys)) {
        found.extend(kubernetes::pod_launches(&pod, &title, objects, &Variables::default())?);
    }
    Ok(found)
}

/// The variables that its controller gives the pods of a group: how many they are, and which one it is.
pub(crate) const GROUP: &str = "LWS_GROUP_SIZE";
const INDEX: &str = "LWS_WORKER_INDEX";

/// The variables of a pod in a group of so many.
pub(super) fn in_group(size: u32, index: &str) -> Variables {
    let mut variables = Variables::default();
    for (name, value) in [(GROUP, size.to_string()), (INDEX, index.to_owned())] {
        variables.set(name, vec![value], true);
    }
    variables
}

/// The engines of a group, of which each pod is a node: what its leader starts, and what the first of its workers does.
fn leader_worker_set(object: &Spot<'_>, objects: &Objects<'_>) -> Result<Vec<Launch>, ManifestError> {
    let title = kubernetes::title(object);
    let Some(group) = object.dig(&["spec", "leaderWorkerTemplate"]) else { return Ok(Vec::new()) };
    let size = group.get("size").map_or(Ok(1), |size| size.count())?;
    let mut found = Vec::new();
    let pods = ["leaderTemplate", "workerTemplate"].map(|key| group.dig(&[key, "spec"]));
    let [leader, worker] = match &pods {
        // Without a template of its own the leader has the workers'.
        [None, Some(worker)] => [gpus_of(worker)?; 2],
        [Some(leader), Some(worker)] => [gpus_of(leader)?, gpus_of(worker)?],
        _ => [None; 2],
    };
    let all = |workers: u32| leader?.checked_add(worker?.checked_mul(workers)?);
    let group_gpus = size.checked_sub(1).and_then(all);
    for (key, index) in [("leaderTemplate", "0"), ("workerTemplate", "1")] {
        let Some(pod) = group.dig(&[key, "spec"]) else { continue };
        let launches = kubernetes::pod_launches(&pod, &title, objects, &in_group(size, index))?;
        found.extend(launches.into_iter().map(|launch| Launch { group_gpus, ..launch }));
    }
    Ok(found)
}

/// The GPUs that a pod asks for; none where it does not say.
fn gpus_of(pod: &Spot<'_>) -> Result<Option<u32>, ManifestError> {
    let mut all = None;
    for container in pod.list("containers")? {
        if let Some((Some(gpus), _)) = container.get("resources").map(|of| kubernetes::gpus(&of)).transpose()? {
            all = Some(gpus.saturating_add(all.unwrap_or(0)));
        }
    }
    Ok(all)
}
