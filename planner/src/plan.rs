//! The plan: plain data that says where every byte of inference state lives, who owns it, and why.

use std::fmt;

use cacheplan_handlers::{DType, ResourceHandler};
use cacheplan_transforms::{ModelInfo, Resource};
use serde::{Deserialize, Serialize};

pub use crate::parallel::{Agreement, Parallel};

/// The version of the plan's JSON. Keys are added within a version, never renamed or repurposed.
pub(crate) const SCHEMA_VERSION: u32 = 1;

/// Where every byte of one model's caches lives on one device.
///
/// Every allocation is a [`Pool`], those that no manager owns included, so that the pools' bytes add up to all of it.
/// A planner makes it, or it is read, which proves it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct CachePlan {
    /// The version of the JSON that was written.
    pub schema_version: u32,
    /// Version of the library that made the plan.
    pub tool_version: String,
    /// What the plan was made from.
    pub fingerprint: Fingerprint,
    /// The model.
    pub model: ModelInfo,
    /// The grouping policy.
    pub policy: Grouping,
    /// The manager that serves its caches.
    pub manager: ManagerKind,
    /// The groups of ranks of which this is one rank's plan.
    pub parallel: Parallel,
    /// Limits that the plan was made for.
    pub limits: Limits,
    /// How states are put back to the accepted tokens; absent without speculation, and where the model's own resources
    /// say how.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rollback: Option<Scheme>,
    /// Sequence slots.
    pub slots: SlotDomain,
    /// Every resource, in registration order.
    pub resources: Vec<PlannedResource>,
    /// Every allocation.
    pub pools: Vec<Pool>,
    /// What the pools admit.
    pub capacity: Capacity,
    /// Sums over the resources and pools.
    pub totals: Totals,
    /// Where the device's bytes go, caches included.
    pub ledger: Vec<LedgerLine>,
    /// What the host tier holds; absent where the budget states none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<HostPlan>,
    /// What all ranks are together; absent on one device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deployment: Option<Deployment>,
    /// Bytes that an engine is said to have for its caches (`engine.cache_bytes`); absent where they are the plan's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub engine_cache_bytes: Option<u64>,
}

/// All ranks of which a plan is one rank's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deployment {
    /// Devices in all.
    pub devices: u64,
    /// Groups of devices that each serve sequences of their own.
    pub replicas: u64,
    /// Devices of one replica.
    pub devices_per_replica: u64,
    /// Sequences that one replica runs at once: those of `capacity`.
    pub sequences_per_replica: u64,
    /// Sequences that all replicas run at once.
    pub sequences: u64,
    /// What a rank holds of the weights; empty where they are unknown or on a stage without any.
    pub weights: Vec<WeightShare>,
}

/// One class of weights and what a rank holds of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WeightShare {
    /// `attention`, `routed experts`; `weights` where nothing tells classes apart.
    pub class: String,
    /// Bytes of all of them, counted once; of embeddings and towers, which lie on one stage, those of this.
    pub bytes: u64,
    /// Over how many ranks they are divided, pipeline stages included where they share them.
    pub ranks: u64,
    /// Bytes on each of these ranks.
    pub bytes_per_rank: u64,
}

/// A plan for every pipeline stage, sized alike.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankPlans {
    /// The sizes of the groups.
    pub parallel: Parallel,
    /// What all ranks serve.
    pub agreement: Agreement,
    /// Hash of the agreement and of each stage's pools; ranks with equal hashes hold equal plans.
    pub hash: String,
    /// One plan per pipeline stage; the ranks of a stage hold equal plans.
    pub stages: Vec<CachePlan>,
}

/// Host memory, divided over the pools whose contents can move there.
///
/// It is no pool of its own: it holds what leaves the device, whole sequences or what a prefix tree evicts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostPlan {
    /// Its bytes, the limit for everything that is parked.
    pub bytes: u64,
    /// Whole sequences of the workload that it holds at once.
    pub sequences: u64,
    /// What these sequences take, pool by pool.
    pub pools: Vec<HostPool>,
    /// Bytes that do not hold one more sequence.
    pub unused_bytes: u64,
}

/// The host's share of one pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostPool {
    /// The pool on the device.
    pub pool: String,
    /// Blocks or slots, none of them reserved.
    pub units: u64,
    /// Bytes of one, as on the device.
    pub unit_bytes: u64,
    /// `units * unit_bytes`.
    pub bytes: u64,
}

/// Hashes (lower-case hex) of what a plan was made from; a plan runs only where they match.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fingerprint {
    /// The model's resources.
    pub model: String,
    /// Budget, limits and workload.
    pub budget: String,
    /// The device's name and size.
    pub device: String,
}

/// The limits of a plan, with their TensorRT-LLM names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// The longest sequence, prompt and output, in tokens.
    pub max_seq_len: u64,
    /// The most sequences in one step.
    pub max_batch_size: u64,
    /// The most tokens in one step.
    pub max_num_tokens: u64,
    /// Candidate positions of a speculative step, the committed one included; 1 without speculation.
    pub draft_positions: u64,
}

/// How resources are grouped into pools.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Grouping {
    /// AutoDeploy's rule: the first handler of a kind is the reference, what does not match it is local.
    FirstReference,
    /// AutoDeploy's later rule: one pool per window, a mix inside one is an error.
    ByWindow,
    /// One pool per compatibility class.
    #[default]
    ByKey,
}

/// How recurrent states are rolled back to the accepted tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scheme {
    /// A copy of every state at each candidate position; the accepted one is scattered back.
    #[default]
    Snapshots,
    /// The inputs of each state's recurrence at each candidate position; accepted ones are replayed. The convolution's
    /// own state is wide enough for the inputs of all candidates, so that accepting none of them changes nothing.
    Replay,
}

/// How recurrent states are stored where they wait for a later request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StoredStates {
    /// As checkpoints are on the device.
    #[default]
    Own,
    /// Those of float32 in bfloat16.
    Bf16,
    /// In 8 bits, with a float32 scale for each channel of each head.
    Int8,
}

impl StoredStates {
    /// All of them, the exact one first.
    pub const ALL: [Self; 3] = [Self::Own, Self::Bf16, Self::Int8];
}

impl fmt::Display for StoredStates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Own => "own",
            Self::Bf16 => "bf16",
            Self::Int8 => "int8",
        })
    }
}

/// Which manager a plan needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ManagerKind {
    /// Paged caches only.
    KvCacheManager,
    /// Paged caches and states.
    MambaHybridCacheManager,
}

/// Who allocates and frees a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Owner {
    /// Blocks.
    KvCacheManager,
    /// Slots.
    MambaCacheManager,
    /// A tensor of its own, in the same slot domain.
    Local,
    /// Bytes that are used but that nobody here allocates.
    Unaccounted,
}

impl Owner {
    /// Whether a manager owns it.
    pub const fn is_managed(self) -> bool {
        matches!(self, Self::KvCacheManager | Self::MambaCacheManager)
    }
}

/// What a pool is divided into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// A page of `tokens_per_block` tokens.
    Block,
    /// One sequence's state.
    Slot,
    /// One tensor.
    Fixed,
}

/// How a number is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Certainty {
    /// Follows from shapes and dtypes.
    Exact,
    /// Was measured on the device.
    Measured,
    /// Was assumed; the real number may differ.
    Assumed,
}

/// One allocation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pool {
    /// Unique name, `kv_paged.0`; the resource's own name for a local allocation.
    pub id: String,
    /// Who allocates it.
    pub owner: Owner,
    /// What it is divided into.
    pub unit: Unit,
    /// Bytes of one unit over all members.
    pub unit_bytes: u64,
    /// How many units, those reserved for padding included.
    pub units: u64,
    /// Units at the front that pad a batch: block 0 of a paged pool, slot 0 of a state pool.
    pub reserved: u64,
    /// `unit_bytes * units`.
    pub bytes: u64,
    /// The absolute layers with a member here, ascending.
    pub layers: Vec<u32>,
    /// The element type of all members.
    pub dtype: DType,
    /// Tokens in a block; absent for slots and fixed tensors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_per_block: Option<u64>,
    /// The sliding window in tokens; absent for full attention.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<u32>,
    /// The pool whose slots this one holds checkpoints of; absent for a pool of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoints_of: Option<String>,
    /// The members in memory order: a unit is their concatenation.
    pub members: Vec<Member>,
}

/// A resource's place inside a unit of its pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// The resource's name.
    pub resource: String,
    /// Bytes from the start of the unit.
    pub offset: u64,
    /// Bytes in each unit.
    pub bytes: u64,
}

/// One resource with its owner and the reason for it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlannedResource {
    /// Unique name.
    pub name: String,
    /// The absolute layer; absent for a whole-model resource.
    pub layer: Option<u32>,
    /// The kind's name.
    pub kind: String,
    /// Who allocates it.
    pub owner: Owner,
    /// The pool it is a member of.
    pub pool: String,
    /// Element type.
    pub dtype: DType,
    /// Bytes that one more token costs, rounded up for compressed resources; 0 if it does not grow.
    pub bytes_per_token: u64,
    /// Bytes that each sequence costs whatever its length.
    pub bytes_per_sequence: u64,
    /// Bytes that are there once.
    pub bytes_fixed: u64,
    /// Why this owner, in one sentence.
    pub reason: String,
    /// How the bytes are known.
    pub source: Certainty,
    /// What it is.
    pub handler: ResourceHandler,
    /// Layers that read it without owning one (shared KV).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shared_by: Vec<u32>,
    /// Whether it belongs to the draft model or the prediction head, whose layers have numbers of their own.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub drafts: bool,
}

impl PlannedResource {
    /// What was planned for, to be planned for again; where it was found is not in a plan.
    pub(crate) fn collected(&self) -> Resource {
        Resource {
            name: self.name.clone(),
            layer: self.layer,
            handler: self.handler.clone(),
            node: String::new(),
            provenance: Vec::new(),
            shared_by: self.shared_by.clone(),
        }
    }
}

/// The one count of sequence slots that every consumer takes its rows from.
///
/// Padding comes first: slot 0 reads as zero and is never written. The other counts are quotas over the slots behind
/// it, so that a finished sequence's slot becomes a checkpoint without a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotDomain {
    /// Slots that pad a batch; reads give zero, writes go nowhere.
    pub padding: u64,
    /// Slots of running sequences.
    pub live: u64,
    /// Slots that hold states for prefix reuse; 0 where checkpoints have pools of their own.
    pub checkpoints: u64,
}

impl SlotDomain {
    /// All slots.
    pub const fn total(self) -> u64 {
        self.padding.saturating_add(self.live).saturating_add(self.checkpoints)
    }
}

/// What the pools admit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capacity {
    /// Tokens that the paged pools hold at once; `None` if nothing is paged.
    pub tokens: Option<u64>,
    /// Sequences of `tokens_per_sequence` that run at once.
    pub sequences: u64,
    /// How long a sequence is when it ends: the mean of the workload, rounded up, or `max_seq_len` where none is stated.
    pub tokens_per_sequence: u64,
    /// Tokens that full-attention pools hold beyond those of the sequences.
    pub spare_tokens: u64,
    /// What runs out first.
    pub capped_by: Cap,
}

/// What keeps one more sequence from running.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cap {
    /// The bytes for caches.
    Memory,
    /// The limit that was asked for.
    MaxBatchSize,
    /// The tokens of a step, of which each sequence takes one, or all its candidates.
    MaxNumTokens,
    /// What all ranks agreed on.
    #[serde(rename = "another rank")]
    AnotherRank,
    /// 1,048,576 sequences, more than any scheduler runs.
    SequenceLimit,
}

impl Cap {
    /// Whether it is the bytes for caches.
    pub const fn is_memory(self) -> bool {
        matches!(self, Self::Memory)
    }
}

impl fmt::Display for Cap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Memory => "memory",
            Self::MaxBatchSize => "max_batch_size",
            Self::MaxNumTokens => "max_num_tokens",
            Self::AnotherRank => "another rank",
            Self::SequenceLimit => "the most that is planned",
        })
    }
}

/// Sums over resources and pools, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// What one more token costs over all paged resources, before any window stops the growth.
    pub kv_bytes_per_token: u64,
    /// What one more sequence costs over all states.
    pub state_bytes_per_sequence: u64,
    /// Pools that a manager owns.
    pub managed_bytes: u64,
    /// Pools that are local.
    pub unmanaged_bytes: u64,
}

/// What takes bytes of a device.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "String", from = "String")]
pub enum LedgerItem {
    /// The model's weights.
    Weights,
    /// What stays without caches, as it was measured: weights and what the process holds.
    Resident,
    /// The peak of one step besides weights and caches.
    Activations,
    /// What the device's own libraries take.
    Context,
    /// NCCL's buffers.
    Nccl,
    /// Captured CUDA graphs.
    Graphs,
    /// The draft model's weights.
    DraftWeights,
    /// Offloaded caches, where host and device share their memory.
    HostTier,
    /// What nobody may use.
    Reserve,
    /// What the assumed lines may take beyond what they say, where the budget wants to be safe of that.
    Margin,
    /// A managed pool, by its id.
    Pool(String),
    /// All pools that no manager owns.
    Local,
    /// What caches could take and do not.
    Unused,
}

impl LedgerItem {
    const NAMED: [Self; 12] = [
        Self::Weights,
        Self::Resident,
        Self::Activations,
        Self::Context,
        Self::Nccl,
        Self::Graphs,
        Self::DraftWeights,
        Self::HostTier,
        Self::Reserve,
        Self::Margin,
        Self::Local,
        Self::Unused,
    ];

    /// The name in plans; a pool's is its id.
    pub fn name(&self) -> &str {
        match self {
            Self::Weights => "weights",
            Self::Resident => "resident",
            Self::Activations => "activations",
            Self::Context => "context",
            Self::Nccl => "nccl",
            Self::Graphs => "graphs",
            Self::DraftWeights => "draft weights",
            Self::HostTier => "host tier",
            Self::Reserve => "reserve",
            Self::Margin => "margin",
            Self::Pool(id) => id,
            Self::Local => "local",
            Self::Unused => "unused",
        }
    }

    /// Whether it is a cache, or what is left for them.
    pub(crate) const fn is_for_caches(&self) -> bool {
        matches!(self, Self::Pool(_) | Self::Local | Self::Unused)
    }
}

impl fmt::Display for LedgerItem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl From<LedgerItem> for String {
    fn from(item: LedgerItem) -> Self {
        item.name().to_owned()
    }
}

impl From<String> for LedgerItem {
    fn from(name: String) -> Self {
        Self::NAMED.into_iter().find(|item| item.name() == name).unwrap_or(Self::Pool(name))
    }
}

const fn is_zero(bytes: &u64) -> bool {
    *bytes == 0
}

/// One line of the device's bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerLine {
    /// What takes them.
    pub name: LedgerItem,
    /// Bytes.
    pub bytes: u64,
    /// How they are known.
    pub source: Certainty,
    /// What the number rests on, in one sentence.
    pub note: String,
    /// How many bytes more it may take, as far as that is known; honoured where the budget says `memory.safe`.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub uncertain_bytes: u64,
}

impl fmt::Display for Grouping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::FirstReference => "first-reference",
            Self::ByWindow => "by-window",
            Self::ByKey => "by-key",
        })
    }
}

impl CachePlan {
    /// Bytes for caches: the pools', and what their rounding leaves; `None` where they are more than can be counted.
    pub(crate) fn cache_bytes(&self) -> Option<u64> {
        let pools = self.pools.iter().filter(|pool| pool.owner != Owner::Unaccounted).map(|pool| pool.bytes);
        let unused = self.ledger.iter().filter(|line| line.name == LedgerItem::Unused).map(|line| line.bytes);
        pools.chain(unused).try_fold(0u64, u64::checked_add)
    }

    /// The pool called `id`.
    pub fn pool(&self, id: &str) -> Option<&Pool> {
        self.pools.iter().find(|pool| pool.id == id)
    }

    /// States for prefix reuse that fit, in slots or in pools of their own.
    pub fn checkpoints(&self) -> u64 {
        let apart = self.pools.iter().filter(|pool| pool.checkpoints_of.is_some()).map(|pool| pool.units).min();
        apart.unwrap_or(self.slots.checkpoints)
    }

    /// The resource called `name`.
    pub fn resource(&self, name: &str) -> Option<&PlannedResource> {
        self.resources.iter().find(|resource| resource.name == name)
    }
}
