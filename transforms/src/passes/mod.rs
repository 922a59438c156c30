//! The passes that collect cache resources, in the order they run.
//!
//! A pass walks the graph and never sees a config: what it needs of the model is in tensor shapes and attributes.

mod alias_shared_kv;
mod initialize_caches;
mod prepare_masks;
mod verify_caches;
mod walk;

use std::borrow::Cow;

use cacheplan_files::Shown;
use cacheplan_handlers::KvLayout;
use thiserror::Error;

use crate::cache_dtypes::CacheDTypes;
use crate::graph::{Graph, Name, OpId};
use crate::near::Near;
use crate::registry::{DescribeError, Descriptor, Registry, Stage};
use crate::resources::{ResourceError, Resources};

/// What the passes need besides the graph.
#[derive(Clone, Default)]
pub struct PassContext {
    /// How ops become resources.
    pub registry: Registry,
    /// Element types that the budget states.
    pub dtypes: CacheDTypes,
    /// The order of heads and tokens in a KV block.
    pub layout: KvLayout,
}

/// What one pass did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PassReport {
    /// The pass's name.
    pub pass: &'static str,
    /// Nodes that it changed.
    pub matched: Vec<Name>,
    /// Nodes that it looked at and left alone.
    pub skipped: Vec<Skipped>,
}

/// A node that a pass left alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// The node; `None` if the pass had nothing to do in the whole graph.
    pub node: Option<Name>,
    /// Why, in one sentence.
    pub reason: Cow<'static, str>,
}

/// Resources in registration order, and what each pass did to get them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collected {
    /// The resources.
    pub resources: Resources,
    /// One report per pass, in the order they ran.
    pub reports: Vec<PassReport>,
}

impl Collected {
    /// What the pass of that name did.
    pub fn report(&self, pass: &str) -> Option<&PassReport> {
        self.reports.iter().find(|report| report.pass == pass)
    }
}

/// A graph whose caches cannot be collected.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PassError {
    /// A descriptor could not read an op.
    #[error("{pass}: node `{node}` ({kind}): {source}", node = Shown(.node), kind = Shown(.kind), source = Shown(.source))]
    Describe {
        /// The pass.
        pass: &'static str,
        /// The node.
        node: String,
        /// Its op kind.
        kind: String,
        /// What is wrong with it.
        source: Box<DescribeError>,
    },
    /// Two caches of one name.
    #[error("{pass}: node `{node}`: {source}; give one of them another suffix", node = Shown(.node), source = Shown(.source))]
    Resource {
        /// The pass.
        pass: &'static str,
        /// The node.
        node: String,
        /// What is wrong.
        source: ResourceError,
    },
    /// A layer that shares a cache it cannot share.
    #[error("{pass}: node `{node}` cannot share the cache of `{owner}`: {reason}", node = Shown(.node), owner = Shown(.owner), reason = Shown(.reason))]
    Alias {
        /// The pass.
        pass: &'static str,
        /// The node that shares.
        node: String,
        /// The node whose cache it would read.
        owner: String,
        /// Why not.
        reason: String,
    },
    /// A mask that the kernels cannot take.
    #[error(
        "{pass}: node `{node}` ({kind}) reads a mask beside causality, which its kernels do not take; \
         register a descriptor of kernels that do (`Descriptor::taking_masks`), or one of: {takers}", node = Shown(.node), kind = Shown(.kind), takers = Shown(.takers))]
    Mask {
        /// The pass.
        pass: &'static str,
        /// The node.
        node: String,
        /// Its op kind.
        kind: String,
        /// Op kinds whose kernels take masks.
        takers: String,
    },
    /// A node that keeps state and got no cache.
    #[error(
        "{pass}: node `{node}` keeps state between steps but no descriptor knows its op `{kind}`; \
         register one{near}", node = Shown(.node), kind = Shown(.kind), near = Near(.near))]
    NoDescriptor {
        /// The pass.
        pass: &'static str,
        /// The node.
        node: String,
        /// Its op kind.
        kind: String,
        /// Known op kinds with a similar name; empty where there are none.
        near: String,
    },
    /// A graph whose ops have caches already.
    #[error("node `{node}` has caches already; the passes run once over a graph", node = Shown(.node))]
    Walked {
        /// The node.
        node: String,
    },
    /// A resource and a node that do not refer to each other.
    #[error("{pass}: {what}", what = Shown(.what))]
    Unpaired {
        /// The pass.
        pass: &'static str,
        /// Which, and what is missing.
        what: String,
    },
}

/// A pass in the middle of its work.
struct Walk<'a> {
    graph: &'a mut Graph,
    context: &'a PassContext,
    resources: &'a mut Resources,
    /// The ops that have a descriptor, in the order of execution: looked up once, since most ops keep nothing.
    keepers: &'a [(OpId, &'a Descriptor)],
    pass: &'static str,
    report: PassReport,
}

type Pass = (&'static str, fn(&mut Walk<'_>) -> Result<(), PassError>);

/// The order, and why each pass stands where it stands.
const PASSES: [Pass; 9] = [
    // Attention before everything else: registration order is KV, latent, recurrent, convolution, as in AutoDeploy,
    // whose first resource of a kind is the reference of `first-reference`.
    ("insert_cached_attention", |walk| walk.insert_all(Stage::Attention)),
    ("insert_cached_mla", |walk| walk.insert_all(Stage::Mla)),
    // States before convolutions: a convolution's pool is checked against the state it feeds.
    ("insert_cached_ssm", |walk| walk.insert_all(Stage::Ssm)),
    ("insert_cached_causal_conv", |walk| walk.insert_all(Stage::CausalConv)),
    // After the known kinds, so that a framework's resources never move theirs.
    ("insert_custom_caches", |walk| walk.insert_all(Stage::Custom)),
    // After all owners exist: a layer can share only what was inserted.
    ("alias_shared_kv", alias_shared_kv::run),
    // When the list is complete: gives every resource its node, in registration order.
    ("initialize_caches", initialize_caches::run),
    // After the caches have become inputs, since kernels take the mask behind them.
    ("prepare_masks", prepare_masks::run),
    // Last: only checks.
    ("verify_caches", verify_caches::run),
];

impl Graph {
    /// Runs all passes over the graph: every op that keeps state gets its caches.
    ///
    /// The graph is changed: cache nodes are added and their readers refer to them.
    ///
    /// # Errors
    /// An op that cannot be described, or that keeps state nobody knows how to cache; a graph that was walked before.
    pub fn collect(&mut self, context: &PassContext) -> Result<Collected, PassError> {
        let _span = tracing::debug_span!("passes").entered();
        let keepers = keepers(self, &context.registry)?;
        let mut resources = Resources::default();
        let mut reports = Vec::with_capacity(PASSES.len());
        for (pass, run) in PASSES {
            let report = PassReport { pass, matched: Vec::new(), skipped: Vec::new() };
            let mut walk = Walk { graph: self, context, resources: &mut resources, keepers: &keepers, pass, report };
            tracing::debug_span!("pass", name = pass).in_scope(|| run(&mut walk))?;
            let mut report = walk.report;
            if report.matched.is_empty() && report.skipped.is_empty() {
                report.skipped.push(Skipped { node: None, reason: "no node needs it".into() });
            }
            tracing::debug!(pass, matched = report.matched.len(), skipped = report.skipped.len(), "pass done");
            reports.push(report);
        }
        Ok(Collected { resources, reports })
    }
}

fn keepers<'a>(graph: &Graph, registry: &'a Registry) -> Result<Vec<(OpId, &'a Descriptor)>, PassError> {
    let mut keepers = Vec::new();
    for id in graph.op_ids() {
        let op = graph.op(id);
        if !op.caches.is_empty() {
            return Err(PassError::Walked { node: op.name.to_string() });
        }
        if let Some(descriptor) = registry.get(&op.kind) {
            keepers.push((id, descriptor));
        }
    }
    Ok(keepers)
}

impl Walk<'_> {
    fn matched(&mut self, id: OpId) {
        self.report.matched.push(self.graph.op(id).name.clone());
    }

    fn skipped(&mut self, id: OpId, reason: impl Into<Cow<'static, str>>) {
        let node = Some(self.graph.op(id).name.clone());
        self.report.skipped.push(Skipped { node, reason: reason.into() });
    }
}
