//! What connectors of vLLM do to blocks on the device: they move those that there are, and of models with several kinds of layers
//! some of them turn the grouping off (`VllmConfig.__post_init__`, `KVConnectorFactory.supports_hma_config`).

use std::ops::Range;

use cacheplan_handlers::Growth;
use cacheplan_planner::ModelCaches;
use cacheplan_planner::engines::Version;
use serde_json::Value;

use super::Question;
use crate::error::ServeError;
use crate::remedy::Remedy;

const FLAG: &str = "--kv-transfer-config";
/// Read in 0.22.0, and not in 0.18.0: a connector is asked; before any turned the grouping off.
const ASKS_THE_CONNECTOR: Version = Version(0, 22, 0);
/// Read in 0.18.0, and not in 0.11.0: a stated `--no-disable-hybrid-kv-cache-manager` is kept.
const KEEPS_WHAT_IS_STATED: Version = Version(0, 18, 0);

/// From this version on all names of `KVConnectorFactory` were read: in 0.22.0 to 0.24.0, 0.26.0, 0.28.0, 0.30.0, 0.32.0 and 0.33.0.
const REGISTRY: Version = Version(0, 22, 0);
const OLD: Version = Version(0, 0, 0);
const ALL: Version = Version(u32::MAX, 0, 0);

/// A connector, the versions that have it, and since when it knows groups (`SupportsHMA`).
type Connector = (&'static str, Range<Version>, Version);

const CONNECTORS: [Connector; 19] = [
    ("NixlConnector", OLD..ALL, OLD),
    ("NixlPullConnector", Version(0, 24, 0)..ALL, OLD),
    ("NixlPushConnector", Version(0, 24, 0)..ALL, OLD),
    ("OffloadingConnector", OLD..ALL, OLD),
    ("SimpleCPUOffloadConnector", OLD..ALL, OLD),
    ("MooncakeConnector", OLD..ALL, OLD),
    ("MooncakeStoreConnector", OLD..ALL, OLD),
    ("DecodeBenchConnector", OLD..ALL, OLD),
    ("ExampleHiddenStatesConnector", OLD..ALL, OLD),
    // Not in 0.28.0.
    ("MoRIIOConnector", OLD..ALL, Version(0, 30, 0)),
    ("LMCacheConnectorV1", OLD..ALL, ALL),
    ("LMCacheMPConnector", OLD..ALL, ALL),
    ("ExampleConnector", OLD..ALL, ALL),
    ("HF3FSKVConnector", OLD..ALL, ALL),
    ("FlexKVConnectorV1", OLD..ALL, ALL),
    ("P2pNcclConnector", OLD..Version(0, 24, 0), ALL),
    ("SharedStorageConnector", OLD..REGISTRY, ALL),
    ("PyNcclConnector", OLD..REGISTRY, ALL),
    ("FlexKVConnector", OLD..REGISTRY, ALL),
];
/// Connectors that are not read, and since when there are such.
const NOT_READ: [(&str, Version); 2] = [("MultiConnector", OLD), ("HiSparseConnector", Version(0, 30, 0))];

fn known(version: Version, name: &str) -> Option<&'static Connector> {
    CONNECTORS.iter().find(|(of, versions, _)| *of == name && versions.contains(&version))
}

/// Whether it is known to know no groups.
pub(super) fn knows_no_groups(version: Version, name: &str) -> bool {
    known(version, name).is_some_and(|(.., since)| version < *since)
}

/// Reads the connectors that a command names.
pub(super) fn settle(question: &mut Question, model: &ModelCaches) -> Result<(), ServeError> {
    let names = names(question)?;
    if names.is_empty() {
        return Ok(());
    }
    question.notes.push(format!(
        "{} moves blocks that are counted here; what it keeps elsewhere is beside them",
        names.join(", ")
    ));
    let version = question.engine.version;
    let unknown = names.iter().find(|name| known(version, name).is_none());
    let is_elsewhere = question.object(FLAG)?.is_some_and(|config| config.contains_key("kv_connector_module_path"));
    if let Some(name) = unknown.filter(|_| !is_elsewhere) {
        if version >= REGISTRY && !NOT_READ.iter().any(|(of, since)| of == name && version >= *since) {
            return Err(question.refused(format!("Unsupported connector type: {name}"), [Remedy::Remove(FLAG)]));
        }
        question.notes.push(format!(
            "no connector `{name}` was read: vLLM refuses one that it does not know, unless `kv_connector_module_path` says where it is"
        ));
    }
    let manager = question.flag("--disable-hybrid-kv-cache-manager").map(|setting| setting.on);
    if manager == Some(false) && version >= KEEPS_WHAT_IS_STATED {
        return Ok(());
    }
    if version < ASKS_THE_CONNECTOR {
        question.default_of("engine.hybrid_kv_cache", false);
        return Ok(());
    }
    if let Some(unknown) = unknown.filter(|_| manager.is_none())
        && has_several_kinds(question, model)?
    {
        let why = format!(
            "whether {unknown} knows several kinds of layers was not read; state it with --[no-]disable-hybrid-kv-cache-manager"
        );
        let remedies = [Remedy::Set("--disable-hybrid-kv-cache-manager", String::new()), Remedy::Remove(FLAG)];
        return Err(ServeError::unread(FLAG, why, remedies));
    }
    if names.iter().any(|name| knows_no_groups(version, name)) {
        question.default_of("engine.hybrid_kv_cache", false);
    }
    Ok(())
}

/// What a server is to others, which must be stated (`KVTransferConfig.__post_init__` of 0.33.0).
fn role(question: &Question, config: &Value) -> Result<(), ServeError> {
    const ROLES: [&str; 3] = ["kv_producer", "kv_consumer", "kv_both"];
    let role = config.get("kv_role").filter(|role| !role.is_null());
    let said = match role.map(|role| role.as_str().filter(|role| ROLES.contains(role))) {
        Some(Some(_)) => return Ok(()),
        Some(None) => format!("Unsupported kv_role: {}.", role.unwrap_or(&Value::Null)),
        None if config.get("kv_connector").is_none() => return named(question),
        None => "Please specify kv_role when kv_connector is set.".to_owned(),
    };
    let roles = ROLES.join(", ");
    Err(question.refused(format!("{said} Supported roles are {roles}"), [Remedy::Remove(FLAG)]))
}

/// A configuration must name one, which offloading to the host does by itself.
fn named(question: &Question) -> Result<(), ServeError> {
    if question.engine.version < REGISTRY || question.flag("--kv-offloading-size").is_some() {
        return Ok(());
    }
    Err(question.refused("Connector name is not set in KVTransferConfig", [Remedy::Remove(FLAG)]))
}

/// The names of the connectors; of several behind one those.
pub(super) fn names(question: &Question) -> Result<Vec<String>, ServeError> {
    let mut names = Vec::new();
    if let Some(config) = question.object(FLAG)?.map(Value::Object) {
        role(question, &config)?;
        let name = |config: &Value| config.get("kv_connector").and_then(Value::as_str).map(str::to_owned);
        match name(&config).as_deref() {
            Some("MultiConnector") => {
                let all = config.pointer("/kv_connector_extra_config/connectors").and_then(Value::as_array);
                names.extend(all.into_iter().flatten().filter_map(name));
            }
            Some("HiSparseConnector") => {
                let why = "which pages of sparse attention stay on the GPU is decided by its code";
                return Err(ServeError::unread(FLAG, why, [Remedy::Remove(FLAG)]));
            }
            name => names.extend(name.map(str::to_owned)),
        }
    }
    if question.flag("--kv-offloading-size").is_some() {
        let backend = question.value("--kv-offloading-backend").unwrap_or("native");
        names.push(if backend == "lmcache" { "LMCacheMPConnector" } else { "OffloadingConnector" }.to_owned());
    }
    Ok(names)
}

/// Whether some layers keep all tokens and others states or a window.
fn has_several_kinds(question: &Question, model: &ModelCaches) -> Result<bool, ServeError> {
    let caches = question.caches(model)?;
    let keeps_all = |growth: Growth| matches!(growth, Growth::Paged { window: None, .. });
    let all = caches.iter().filter(|resource| keeps_all(resource.handler.growth())).count();
    Ok(0 < all && all < caches.iter().count())
}
