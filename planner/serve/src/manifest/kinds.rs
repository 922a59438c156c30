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

/// The engines of a group: what its leader starts has the GPUs of all its pods, and so has what its workers start.
fn leader_worker_set(object: &Spot<'_>, objects: &Objects<'_>) -> Result<Vec<Launch>, ManifestError> {
    let title = kubernetes::title(object);
    let Some(group) = object.dig(&["spec", "leaderWorkerTemplate"]) else { return Ok(Vec::new()) };
    let size = group.get("size").map_or(Ok(1), |size| size.count())?;
    let [leader, worker] = ["leaderTemplate", "workerTemplate"].map(|key| group.dig(&[key, "spec"]));
    let of_leader = leader.as_ref().or(worker.as_ref()).map_or(Ok(None), kubernetes::gpus_of_pod)?;
    let of_worker = worker.as_ref().map_or(Ok(None), kubernetes::gpus_of_pod)?;
    // How many there are is not known where one of them states none.
    let gpus = match size {
        0 | 1 => of_leader,
        _ => of_leader.zip(of_worker).map(|(leader, worker)| leader.saturating_add(worker.saturating_mul(size - 1))),
    };
    let mut found = Vec::new();
    for pod in leader.iter().chain(&worker) {
        let launches = kubernetes::pod_launches(pod, &title, objects, &Variables::default())?;
        found.extend(launches.into_iter().map(|launch| Launch { gpus, ..launch }));
    }
    Ok(found)
}
