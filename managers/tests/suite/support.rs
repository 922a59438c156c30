//! Small plans for tests: one pool per compatibility class, members in registration order.
#![allow(dead_code, unreachable_pub, reason = "every test file uses its own part")]

use cacheplan_handlers::{DType, Growth, ResourceHandler};
use cacheplan_planner::{CachePlan, Limits, ManagerKind, Member, Owner, PlannedResource, Pool, SlotDomain, Unit};
use serde::de::DeserializeOwned;

/// What a test plan is made from.
pub struct Setup {
    pub resources: Vec<(u32, ResourceHandler, Owner)>,
    pub blocks: u64,
    pub tokens_per_block: u64,
    pub slots: SlotDomain,
    pub limits: Limits,
    pub host_bytes: Option<u64>,
}

impl Setup {
    pub fn new() -> Self {
        Self {
            resources: Vec::new(),
            blocks: 16,
            tokens_per_block: 4,
            slots: SlotDomain { padding: 1, live: 4, checkpoints: 2 },
            limits: Limits { max_seq_len: 64, max_batch_size: 4, max_num_tokens: 64, draft_positions: 4 },
            host_bytes: None,
        }
    }

    pub fn with(mut self, layer: u32, handler: ResourceHandler) -> Self {
        let owner = match handler.growth() {
            Growth::Paged { .. } => Owner::KvCacheManager,
            Growth::PerSequence | Growth::PerDraftPosition => Owner::MambaCacheManager,
            Growth::PerSlotToken | Growth::Fixed => Owner::Local,
        };
        self.resources.push((layer, handler, owner));
        self
    }

    pub fn local(mut self, layer: u32, handler: ResourceHandler) -> Self {
        self.resources.push((layer, handler, Owner::Local));
        self
    }

    pub fn blocks(self, blocks: u64) -> Self {
        Self { blocks, ..self }
    }

    pub fn host(self, bytes: u64) -> Self {
        Self { host_bytes: Some(bytes), ..self }
    }

    pub fn plan(&self) -> CachePlan {
        let mut pools: Vec<Pool> = Vec::new();
        let mut resources = Vec::new();
        let mut keys = Vec::new();
        for (index, (layer, handler, owner)) in self.resources.iter().enumerate() {
            let key = (*owner, handler.compat_key(self.limits.max_seq_len), (*owner == Owner::Local).then_some(index));
            let name = format!("{}_{layer}", handler.kind());
            let bytes = handler.unit_bytes()
                * match handler.growth() {
                    Growth::Paged { .. } => self.tokens_per_block,
                    Growth::PerSlotToken => self.limits.max_seq_len,
                    Growth::PerDraftPosition => self.limits.draft_positions,
                    Growth::PerSequence | Growth::Fixed => 1,
                };
            let at = keys.iter().position(|other| *other == key).unwrap_or_else(|| {
                keys.push(key);
                pools.push(self.pool(handler, *owner, pools.len()));
                pools.len() - 1
            });
            let pool = &mut pools[at];
            pool.members.push(Member { resource: name.clone(), offset: pool.unit_bytes, bytes });
            pool.layers.push(*layer);
            pool.unit_bytes += bytes;
            pool.bytes = pool.unit_bytes * pool.units;
            let pool = pool.id.clone();
            resources.push(self.resource(name, *layer, handler, *owner, pool));
        }
        let mut plan = nothing();
        plan.model.layers = self.resources.len() as u32;
        if self.resources.iter().any(|(_, handler, owner)| handler.is_state() && owner.is_managed()) {
            plan.manager = ManagerKind::MambaHybridCacheManager;
        }
        plan.limits = self.limits.clone();
        plan.slots = self.slots;
        plan.capacity.sequences = self.slots.live;
        plan.capacity.tokens_per_sequence = self.limits.max_seq_len;
        plan.host = self.host_bytes.map(|bytes| host(bytes, &pools));
        plan.resources = resources;
        plan.pools = pools;
        plan
    }

    fn pool(&self, handler: &ResourceHandler, owner: Owner, index: usize) -> Pool {
        let (unit, units, window) = match handler.growth() {
            Growth::Paged { window, .. } => (Unit::Block, 1 + self.blocks, window),
            Growth::PerSlotToken | Growth::PerSequence => (Unit::Slot, self.slots.total(), None),
            Growth::PerDraftPosition => (Unit::Slot, self.slots.padding + self.limits.max_batch_size, None),
            Growth::Fixed => (Unit::Fixed, 1, None),
        };
        Pool {
            id: format!("{}.{index}", handler.kind()),
            owner,
            unit,
            unit_bytes: 0,
            units,
            reserved: u64::from(unit != Unit::Fixed),
            bytes: 0,
            layers: Vec::new(),
            dtype: handler.dtype(),
            tokens_per_block: (unit == Unit::Block).then_some(self.tokens_per_block),
            window,
            checkpoints_of: None,
            members: Vec::new(),
        }
    }

    fn resource(
        &self,
        name: String,
        layer: u32,
        handler: &ResourceHandler,
        owner: Owner,
        pool: String,
    ) -> PlannedResource {
        PlannedResource {
            name,
            layer: Some(layer),
            kind: handler.kind().name().into(),
            owner,
            pool,
            dtype: handler.dtype(),
            bytes_per_token: 0,
            bytes_per_sequence: 0,
            bytes_fixed: 0,
            reason: "test".into(),
            source: serde_json::from_value("exact".into()).unwrap(),
            handler: handler.clone(),
            shared_by: Vec::new(),
            drafts: false,
        }
    }
}

/// A plan without a cache.
fn nothing() -> CachePlan {
    let plan = serde_json::json!({
        "schema_version": 1,
        "tool_version": "test",
        "fingerprint": { "model": "", "budget": "", "device": "" },
        "model": {
            "type": "test", "layers": 0, "dtype": "f32", "max_position_embeddings": null, "weights": null, "fingerprint": "",
        },
        "policy": "by-key",
        "manager": "kv_cache_manager",
        "limits": { "max_seq_len": 1, "max_batch_size": 1, "max_num_tokens": 1, "draft_positions": 1 },
        "slots": { "padding": 1, "live": 1, "checkpoints": 0 },
        "resources": [],
        "pools": [],
        "capacity": {
            "tokens": null, "sequences": 1, "tokens_per_sequence": 1, "spare_tokens": 0, "capped_by": "max_batch_size",
        },
        "totals": {
            "kv_bytes_per_token": 0, "state_bytes_per_sequence": 0, "managed_bytes": 0, "unmanaged_bytes": 0,
        },
        "ledger": [],
    });
    CachePlan::from_json(&plan.to_string(), "test").unwrap()
}

/// As many units of each pool of blocks and slots as half of the bytes hold, so that sequences can wait beside them.
fn host<T: DeserializeOwned>(bytes: u64, pools: &[Pool]) -> T {
    let held = || pools.iter().filter(|pool| pool.unit != Unit::Fixed && !pool.id.starts_with("intermediate"));
    let units = bytes / 2 / held().map(|pool| pool.unit_bytes).sum::<u64>().max(1);
    host_plan(bytes, held().map(|pool| (pool, units)))
}

/// A host tier of so many units of these pools.
pub fn host_plan<'a, T: DeserializeOwned>(bytes: u64, pools: impl Iterator<Item = (&'a Pool, u64)>) -> T {
    let share = |(pool, units): (&Pool, u64)| {
        let bytes = units * pool.unit_bytes;
        serde_json::json!({ "pool": pool.id, "units": units, "unit_bytes": pool.unit_bytes, "bytes": bytes })
    };
    let pools: Vec<serde_json::Value> = pools.map(share).collect();
    let plan = serde_json::json!({ "bytes": bytes, "sequences": 1, "pools": pools, "unused_bytes": 0 });
    serde_json::from_value(plan).unwrap()
}

pub fn kv(heads: u64, head_dim: u64) -> ResourceHandler {
    ResourceHandler::kv_paged(heads, head_dim, DType::F32).unwrap()
}

pub fn ssm() -> ResourceHandler {
    ResourceHandler::ssm(2, 3, 4, DType::F32).unwrap()
}

pub fn conv() -> ResourceHandler {
    ResourceHandler::causal_conv(5, 4, vec![], DType::Bf16).unwrap()
}

/// Attention at layer 1, Mamba-2 at layers 0 and 2.
pub fn hybrid() -> Setup {
    Setup::new().with(0, ssm()).with(0, conv()).with(1, kv(2, 8)).with(2, ssm()).with(2, conv())
}
