//! What single flags say of caches, by the engines' own rules.

#[path = "../common/mod.rs"]
mod common;
mod equal;
mod lengths;
mod numbers;
mod pools;
mod secrets;
mod unread;

use cacheplan_planner::logs::Logged;
use cacheplan_serve::{Answer, Options, ServeError, answer};

use common::{launch, models, on};

/// The answer of a version that has 20 GiB for caches.
fn told(command: &str, model: &str, version: &str) -> Result<Answer, ServeError> {
    let cache_bytes = Some(Logged::exact(20 << 30));
    answer(&launch(command), models(model), &Options { version: Some(version.into()), cache_bytes, ..on("h100") })
}

const SERVE: &str = "vllm serve m";

const SGLANG: &str = "sglang serve --model-path m";

/// The answer under a variable.
fn under(name: &str, value: &str, command: &str, model: &str) -> Result<Answer, ServeError> {
    let mut launch = launch(command);
    launch.env.insert(name.into(), value.into());
    answer(&launch, models(model), &Options { cache_bytes: Some(Logged::exact(20 << 30)), ..on("h100") })
}
