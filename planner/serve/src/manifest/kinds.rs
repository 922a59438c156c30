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
        "LeaderWorkerSet" => &[
            &["spec", "leaderWorkerTemplate", "leaderTemplate", "spec"],
            &["spec", "leaderWorkerTemplate", "workerTemplate", "spec"],
        ],
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
