//! What of a plan can be explained, by name.

use std::fmt;

use serde::Serialize;

use crate::plan::CachePlan;
use crate::render::wrap;

/// Every name that an explanation takes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Subjects {
    /// What is of the whole plan: `capacity`, and `host` where it has a host tier.
    pub whole: Vec<&'static str>,
    /// The number of the last layer; each from 0 on is a name.
    pub last_layer: u32,
    /// Lines of the ledger that are no pools.
    pub lines: Vec<String>,
    /// Pools.
    pub pools: Vec<String>,
    /// Caches of layers.
    pub resources: Vec<String>,
}

impl CachePlan {
    /// What of this plan can be explained.
    pub fn subjects(&self) -> Subjects {
        let pools: Vec<String> = self.pools.iter().map(|pool| pool.id.clone()).collect();
        let lines = self.ledger.iter().map(|line| line.name.name().to_owned());
        Subjects {
            whole: ["capacity"].into_iter().chain(self.host.is_some().then_some("host")).collect(),
            last_layer: self.model.layers.saturating_sub(1),
            lines: lines.filter(|line| !pools.contains(line)).collect(),
            pools,
            resources: self.resources.iter().map(|resource| resource.name.clone()).collect(),
        }
    }
}

impl Subjects {
    /// All of them but layers' numbers.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        let stated = self.resources.iter().chain(&self.pools).chain(&self.lines).map(String::as_str);
        stated.chain(self.whole.iter().copied())
    }

    /// In a sentence, with one cache for all of them.
    pub(crate) fn in_short(&self) -> String {
        let own = self.whole.iter().copied().chain(self.pools.iter().chain(&self.lines).map(String::as_str));
        let own: Vec<String> = own.map(|name| format!("`{name}`")).collect();
        let first = self.resources.first();
        let caches = first.map(|first| format!(", {} caches such as `{first}`", self.resources.len()));
        format!("there are {}, layers 0 to {}{}", own.join(", "), self.last_layer, caches.unwrap_or_default())
    }
}

impl fmt::Display for Subjects {
    /// A line for each kind, at most 100 columns wide.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let layers = vec![format!("0 to {}", self.last_layer)];
        let whole: Vec<String> = self.whole.iter().map(|&name| name.to_owned()).collect();
        let kinds = [("plan", &whole), ("layers", &layers), ("ledger", &self.lines), ("pools", &self.pools)];
        for (kind, names) in kinds.into_iter().chain([("caches", &self.resources)]) {
            let listed = wrap(&names.join(", "), 8);
            write!(f, "{kind:8}{}", listed.trim_start())?;
        }
        Ok(())
    }
}
