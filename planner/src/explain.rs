//! Where a number of a plan comes from, down to a tensor's axis or a key of the budget.

use std::fmt;

use cacheplan_files::Shown;
use cacheplan_handlers::{Growth, Shape};
use cacheplan_transforms::{Resource, Resources};
use serde::Serialize;
use thiserror::Error;

use crate::budget::{Base, Budget, Memory, nearest};
use crate::error::PlanError;
use crate::parallel::Parallel;
use crate::plan::{CachePlan, Cap, HostPlan, LedgerItem, PlannedResource, Pool, Unit};
use crate::render::{owner_name, ranges, wrap};
use crate::size::{ByteSize, sequences};
use crate::solver::demand::Demand;
use crate::solver::inputs::Inputs;
use crate::solver::make::{beside, load};

/// A statement and the statements that it follows from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Derivation {
    /// One number and what it is: `ssm_0 takes 2097152 bytes per sequence (2.00 MiB)`.
    pub claim: String,
    /// What it follows from; empty for what is given.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub from: Vec<Derivation>,
}

/// Why there is no explanation.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ExplainError {
    /// Nothing in the plan is called that.
    #[error(
        "`{subject}` is no cache, pool, ledger line or layer of this plan; {}{there}",
        nearest.as_ref().map(|name| format!("did you mean `{name}`? ")).unwrap_or_default(), subject = Shown(.subject))]
    Unknown {
        /// What was asked for.
        subject: String,
        /// What is there, in a sentence.
        there: String,
        /// The name nearest to it.
        nearest: Option<String>,
    },
    /// A layer number beyond the model's last.
    #[error("layer {layer} does not exist; the model has layers 0 to {last}")]
    NoSuchLayer {
        /// What was asked for.
        layer: u32,
        /// The last layer.
        last: u32,
    },
    /// The budget states no host tier.
    #[error("this plan has no host tier; `host.bytes` states one")]
    NoHost,
    /// The request cannot be planned.
    #[error(transparent)]
    Plan(#[from] PlanError),
}

impl Inputs<'_> {
    /// What [`PlanRequest::explain`](crate::request::PlanRequest::explain) says of the plan of these inputs, which hold what the plan
    /// does not: the tensors behind each dimension, and which limits the budget states.
    pub(crate) fn explain(&self, plan: &CachePlan, subject: &str) -> Result<Derivation, ExplainError> {
        let held = self.held()?;
        let explainer = Explainer { request: self, plan, held: &held.resources };
        if subject == "capacity" {
            return Ok(explainer.capacity());
        }
        if let Some(host) = plan.host.as_ref().filter(|_| subject == "host") {
            return Ok(explainer.host(host));
        }
        if let Some(resource) = plan.resource(subject) {
            return Ok(explainer.resource(resource));
        }
        if let Some(pool) = plan.pool(subject) {
            return Ok(explainer.pool(pool));
        }
        if let Some(line) = plan.ledger.iter().find(|line| line.name.name() == subject) {
            return Ok(explainer.ledger_line(line));
        }
        let word = subject.trim_start_matches("layer").trim_start_matches('s').trim_start_matches(['.', ' ', '_']);
        if let Ok(layer) = word.parse() {
            return explainer.layer(layer);
        }
        if subject == "host" {
            return Err(ExplainError::NoHost);
        }
        let subjects = plan.subjects();
        // What ends with a layer's number means that layer, whatever it is called there.
        let number = subject.rsplit(['_', '.']).next().and_then(|end| end.parse::<u32>().ok());
        let there = plan.resources.iter().filter(|resource| number.is_some() && resource.layer == number);
        let there: Vec<&str> = there.map(|resource| resource.name.as_str()).collect();
        let nearest = match there.as_slice() {
            [] => nearest(subject, subjects.names()),
            [one] => Some((*one).to_owned()),
            several => {
                nearest(subject, several.iter().copied()).or_else(|| several.first().map(|one| (*one).to_owned()))
            }
        };
        Err(ExplainError::Unknown { subject: subject.into(), there: subjects.in_short(), nearest })
    }
}

impl Derivation {
    fn new(claim: impl Into<String>, from: Vec<Self>) -> Self {
        Self { claim: claim.into(), from }
    }

    fn given(claim: impl Into<String>) -> Self {
        Self::new(claim, Vec::new())
    }

    fn write(&self, f: &mut fmt::Formatter<'_>, depth: usize) -> fmt::Result {
        f.write_str(&wrap(&self.claim, 2 * depth))?;
        self.from.iter().try_for_each(|step| step.write(f, depth + 1))
    }
}

impl fmt::Display for Derivation {
    /// An indented outline, at most 100 columns wide.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, 0)
    }
}

struct Explainer<'a> {
    request: &'a Inputs<'a>,
    plan: &'a CachePlan,
    /// The resources of this rank, with their provenance.
    held: &'a Resources,
}

impl Explainer<'_> {
    fn budget(&self) -> &Budget {
        self.request.budget
    }

    fn layer(&self, layer: u32) -> Result<Derivation, ExplainError> {
        let layers = self.plan.model.layers;
        if layer >= layers {
            return Err(ExplainError::NoSuchLayer { layer, last: layers.saturating_sub(1) });
        }
        let own = self.plan.resources.iter().filter(|resource| resource.layer == Some(layer) && !resource.drafts);
        let mut from: Vec<_> = own.map(|resource| self.resource(resource)).collect();
        let shared = self.plan.resources.iter().filter(|resource| !resource.drafts);
        let shared = shared.filter(|resource| resource.shared_by.contains(&layer));
        from.extend(
            shared.map(|resource| Derivation::given(format!("reads {}, which another layer owns", resource.name))),
        );
        let claim = match from.len() {
            0 => format!("layer {layer} has no cache"),
            1 => format!("layer {layer} has 1 cache"),
            count => format!("layer {layer} has {count} caches"),
        };
        Ok(Derivation::new(claim, from))
    }

    fn resource(&self, planned: &PlannedResource) -> Derivation {
        let (name, tokens) = (&planned.name, self.plan.limits.max_seq_len);
        let unit = planned.handler.unit_bytes();
        let (cost, factor) = match planned.handler.growth() {
            Growth::Paged { stride: 1, .. } => (format!("{} per token", bytes(planned.bytes_per_token)), None),
            Growth::Paged { stride, .. } => (
                format!("{} per token", bytes(planned.bytes_per_token)),
                Some(format!("one entry of {} serves {stride} tokens", bytes(unit))),
            ),
            Growth::PerSequence => (format!("{} per sequence", bytes(planned.bytes_per_sequence)), None),
            Growth::PerSlotToken => (
                format!("{} per sequence", bytes(planned.bytes_per_sequence)),
                Some(format!("{tokens} tokens, held whole by each slot, of {}", bytes(unit))),
            ),
            Growth::PerDraftPosition => (
                format!("{} per sequence", bytes(planned.bytes_per_sequence)),
                Some(format!("{} candidate positions of {}", self.plan.limits.draft_positions, bytes(unit))),
            ),
            Growth::Fixed => (format!("{} once", bytes(planned.bytes_fixed)), None),
        };
        let mut from: Vec<_> = factor.map(Derivation::given).into_iter().collect();
        from.push(self.shape(planned, unit));
        from.push(Derivation::given(format!("owner {}: {}", owner_name(planned.owner), planned.reason)));
        if let Some(member) = self.plan.pool(&planned.pool).and_then(|pool| {
            let member = pool.members.iter().find(|member| member.resource == planned.name)?;
            Some(format!(
                "in each {} of {}: {} at byte {} of {}",
                unit_name(pool),
                pool.id,
                bytes(member.bytes),
                member.offset,
                pool.unit_bytes
            ))
        }) {
            from.push(Derivation::given(member));
        }
        if !planned.shared_by.is_empty() {
            from.push(Derivation::given(format!("also read by layers {}", ranges(&planned.shared_by))));
        }
        Derivation::new(format!("{name} takes {cost}"), from)
    }

    /// Bytes of a unit from its dimensions, and each dimension from its tensor.
    fn shape(&self, planned: &PlannedResource, unit: u64) -> Derivation {
        let dims = planned.handler.shape();
        let product: Vec<String> = dims.iter().map(|dim| format!("{} = {}", dim.name, dim.size)).collect();
        let claim = format!("({}) elements of {} take {unit} bytes", product.join(") x ("), planned.dtype);
        let mut from = Vec::new();
        if let Some(resource) = self.held.get(&planned.name) {
            from.extend(origin(resource));
        }
        let parallel = self.budget().parallel;
        if parallel != Parallel::default() {
            let mut sizes = format!("tp {}, pp {}, cp {}", parallel.tp, parallel.pp, parallel.cp);
            if parallel.dcp > 1 {
                sizes.push_str(&format!(", dcp {}", parallel.dcp));
            }
            from.push(Derivation::given(format!("this rank's share of the model's dimensions: {sizes} (`parallel`)")));
        }
        Derivation::new(claim, from)
    }

    fn pool(&self, pool: &Pool) -> Derivation {
        let unit = unit_name(pool);
        let mut sizes: Vec<(u64, Vec<&str>)> = Vec::new();
        for member in &pool.members {
            match sizes.iter_mut().find(|(bytes, _)| *bytes == member.bytes) {
                Some((_, names)) => names.push(&member.resource),
                None => sizes.push((member.bytes, vec![&member.resource])),
            }
        }
        let mut sum: Vec<String> = sizes.iter().map(|(bytes, names)| format!("{} x {bytes}", names.len())).collect();
        let of_members: u64 = sizes.iter().map(|(bytes, names)| bytes * names.len() as u64).sum();
        sum.extend(
            pool.unit_bytes.checked_sub(of_members).filter(|padding| *padding > 0).map(|it| format!("{it} padding")),
        );
        let members = sizes.into_iter().map(|(bytes, names)| {
            let claim = format!("{} x {bytes} bytes: {}", names.len(), names.join(", "));
            let steps = match (pool.tokens_per_block, self.plan.resource(names[0])) {
                (Some(tokens), Some(first)) => vec![Derivation::new(
                    format!("{tokens} tokens of {} bytes", first.bytes_per_token),
                    vec![self.tokens_per_block(tokens), self.shape(first, first.handler.unit_bytes())],
                )],
                (None, Some(first)) => vec![self.shape(first, first.handler.unit_bytes())],
                (_, None) => Vec::new(),
            };
            Derivation::new(claim, steps)
        });
        let units = match pool.unit {
            Unit::Fixed => Derivation::given("1 tensor"),
            Unit::Slot => self.slots(pool),
            Unit::Block => self.blocks(pool),
        };
        let each = if pool.checkpoints_of.is_some() {
            self.stored(pool)
        } else {
            let claim = format!("each {unit} is {} = {} over all members", bytes(pool.unit_bytes), sum.join(" + "));
            Derivation::new(claim, members.collect())
        };
        let own = pool.checkpoints_of.as_ref().unwrap_or(&pool.id);
        let owner = self.plan.resources.iter().find(|resource| resource.pool == *own);
        let owner =
            owner.map(|first| Derivation::given(format!("owner {}: {}", owner_name(first.owner), first.reason)));
        let claim =
            format!("{} takes {} = {} {unit}s x {} bytes", pool.id, bytes(pool.bytes), pool.units, pool.unit_bytes);
        Derivation::new(claim, [Some(units), Some(each), owner].into_iter().flatten().collect())
    }

    /// The members of a pool of checkpoints: how each is stored.
    fn stored(&self, pool: &Pool) -> Derivation {
        let members = pool.members.iter().filter_map(|member| {
            let resource = self.plan.resource(&member.resource)?;
            let handler = &resource.handler;
            Some(if member.bytes == resource.bytes_per_sequence {
                Derivation::given(format!("{} as in a live slot: {} bytes", member.resource, member.bytes))
            } else {
                let Some(Shape::Ssm { num_heads: heads, head_dim: rows, d_state: channels }) = handler.known_shape()
                else {
                    return None;
                };
                Derivation::given(format!(
                    "{} in int8: {heads} x {rows} x {channels} bytes and a float32 scale for each of {heads} x \
                     {channels} channels, {} bytes instead of {}",
                    member.resource, member.bytes, resource.bytes_per_sequence
                ))
            })
        });
        Derivation::new(format!("each checkpoint is {} over all members", bytes(pool.unit_bytes)), members.collect())
    }

    fn host(&self, host: &HostPlan) -> Derivation {
        let pools = host.pools.iter().map(|pool| {
            let claim = format!("{} {} = {} units x {}", pool.pool, bytes(pool.bytes), pool.units, pool.unit_bytes);
            Derivation::new(claim, vec![Derivation::given("as the device's pool counts them, less its padding")])
        });
        let mut from = vec![
            Derivation::given(format!("`host.bytes` = {} (the budget)", bytes(host.bytes))),
            Derivation::new(format!("{} sequences take", host.sequences), pools.collect()),
        ];
        from.push(Derivation::given(format!("{} unused: too few for one more", bytes(host.unused_bytes))));
        Derivation::new(format!("the host tier holds {} sequences in {}", host.sequences, bytes(host.bytes)), from)
    }

    fn slots(&self, pool: &Pool) -> Derivation {
        if let Some(origin) = &pool.checkpoints_of {
            let each = self.budget().workload.as_ref().map_or(0, |workload| workload.checkpoints_per_sequence);
            let sequences = self.plan.capacity.sequences;
            let claim = format!("{each} for each of {sequences} sequences (`workload.checkpoints_per_sequence`)");
            let apart = format!("apart from {origin}, because of `workload.checkpoint_dtype`");
            let from = vec![Derivation::given(claim), Derivation::given(apart)];
            return Derivation::new(format!("{} checkpoints", pool.units), from);
        }
        let slots = self.plan.slots;
        let checkpoints = pool.units.saturating_sub(slots.padding + slots.live);
        let mut from = vec![
            Derivation::given(format!("{} padding slot: reads as zero, is never written", slots.padding)),
            Derivation::given(format!("{} live slots: one for each sequence of `capacity`", slots.live)),
        ];
        if checkpoints > 0 {
            let each = self.budget().workload.as_ref().map_or(0, |workload| workload.checkpoints_per_sequence);
            from.push(Derivation::given(format!(
                "{checkpoints} checkpoints: {each} per sequence (`workload.checkpoints_per_sequence`)"
            )));
        }
        let parts = [slots.padding, slots.live, checkpoints];
        Derivation::new(format!("{} slots = {}", pool.units, added(&parts)), from)
    }

    fn blocks(&self, pool: &Pool) -> Derivation {
        let tokens = pool.tokens_per_block.unwrap_or(1).max(1);
        let capacity = &self.plan.capacity;
        let spare = if pool.window.is_none() { capacity.spare_tokens.div_ceil(tokens) } else { 0 };
        let serving = pool.units.saturating_sub(pool.reserved + spare);
        let mut why = vec![self.tokens_per_block(tokens)];
        match self.budget().workload.as_ref().filter(|workload| workload.states_lengths()) {
            None => {
                why.push(Derivation::new(
                    format!("each sequence is {} tokens long, as no lengths are stated", self.plan.limits.max_seq_len),
                    vec![self.max_seq_len()],
                ));
            }
            Some(_) => {
                let text = "the mean over the workload's prompts and outputs (`workload.prompt`, `workload.output`), \
                            and never less than one sequence of `max_seq_len` tokens";
                why.push(Derivation::new(text, vec![self.max_seq_len()]));
            }
        }
        if let Some(share) = self.budget().workload.as_ref().and_then(|workload| workload.prefix_reuse)
            && let (Some(shared), None) = (self.shared_blocks(tokens), pool.window)
        {
            why.push(Derivation::given(format!(
                "{shared} of them hold the start of the prompts, once for all sequences (`workload.prefix_reuse` = {})",
                f64::from(share)
            )));
        }
        let parallel = self.budget().parallel;
        if parallel.context_ranks() > 1 {
            why.push(Derivation::given(format!(
                "each rank holds one of every {} tokens of a sequence (`parallel.cp` {} x `parallel.dcp` {})",
                parallel.context_ranks(),
                parallel.cp,
                parallel.dcp
            )));
        }
        if let Some(window) = pool.window {
            why.push(Derivation::given(format!(
                "a window of {window} tokens stops the growth; the {} new tokens of a step (`max_num_tokens`) are held \
                 beside it",
                self.plan.limits.max_num_tokens
            )));
        }
        if self.plan.limits.draft_positions > 1 {
            why.push(Derivation::given(format!(
                "a step writes {} positions beyond the committed tokens (`speculation.draft_tokens`)",
                self.plan.limits.draft_positions - 1
            )));
        }
        let mut from = vec![
            Derivation::given(format!("{} null block at the front pads block tables", pool.reserved)),
            Derivation::new(format!("{serving} blocks serve the {} sequences of `capacity`", capacity.sequences), why),
        ];
        if spare > 0 {
            from.push(Derivation::given(format!("{spare} blocks more fit in the bytes: {} tokens", spare * tokens)));
        }
        Derivation::new(format!("{} blocks = {}", pool.units, added(&[pool.reserved, serving, spare])), from)
    }

    /// Blocks of what all sequences share.
    fn shared_blocks(&self, tokens_per_block: u64) -> Option<u64> {
        let load = load(self.budget(), self.plan.limits.max_seq_len).ok()?;
        let growth = Growth::Paged { stride: 1, window: None };
        Demand::new(growth, 1, tokens_per_block, &load).shared_blocks()
    }

    fn tokens_per_block(&self, used: u64) -> Derivation {
        Derivation::given(match self.budget().tokens_per_block {
            Some(stated) if stated == used => format!("`tokens_per_block` = {used} (the budget)"),
            Some(stated) => format!("`tokens_per_block` = {stated} (the budget), in whole entries {used}"),
            None => format!("`tokens_per_block` = {used} (the default)"),
        })
    }

    fn max_seq_len(&self) -> Derivation {
        let length = self.plan.limits.max_seq_len;
        let source = match (self.budget().max_seq_len, self.request.model.max_position_embeddings) {
            (Some(_), _) => "the budget",
            (None, Some(longest)) if longest == length => "the model's max_position_embeddings",
            (None, _) => "the default",
        };
        Derivation::given(format!("`max_seq_len` = {length} ({source})"))
    }

    fn ledger_line(&self, line: &crate::plan::LedgerLine) -> Derivation {
        let budget = self.budget();
        let memory = |stated: fn(&Memory) -> bool| budget.memory.as_ref().is_some_and(stated);
        let drafting = budget.speculation.as_ref();
        let key = match line.name {
            LedgerItem::Activations if self.request.measurement.is_none() => {
                Some("`memory.activations` or `max_num_tokens`")
            }
            LedgerItem::Weights if memory(|memory| memory.weights.is_some()) => Some("`memory.weights`"),
            LedgerItem::Graphs => Some("`memory.graphs`"),
            LedgerItem::Context => Some("`memory.context` (--device-context)"),
            LedgerItem::DraftWeights if drafting.is_some_and(|drafting| drafting.draft_weights.is_some()) => {
                Some("`speculation.draft_weights`")
            }
            LedgerItem::HostTier => Some("`host.bytes`"),
            LedgerItem::Reserve => Some("`memory.reserve`"),
            _ => None,
        };
        let mut from = vec![Derivation::given(line.note.clone())];
        from.extend(key.map(|key| Derivation::given(format!("set by {key}"))));
        if line.name == LedgerItem::Local {
            let local = self.plan.pools.iter().filter(|pool| !pool.owner.is_managed());
            from.extend(local.map(|pool| Derivation::given(format!("{} {}", pool.id, bytes(pool.bytes)))));
        }
        if line.name == LedgerItem::Unused {
            from.extend(self.memory());
        }
        let source = crate::render::source_name(line.source);
        Derivation::new(format!("{} takes {} ({source})", line.name, bytes(line.bytes)), from)
    }

    fn capacity(&self) -> Derivation {
        let capacity = &self.plan.capacity;
        let taken = self.plan.totals.managed_bytes + self.plan.totals.unmanaged_bytes;
        let pools = self.plan.pools.iter().map(|pool| {
            Derivation::given(format!(
                "{} {} = {} {}s x {}",
                pool.id,
                bytes(pool.bytes),
                pool.units,
                unit_name(pool),
                pool.unit_bytes
            ))
        });
        let mut from = vec![self.max_seq_len()];
        from.extend(self.memory());
        from.push(Derivation::new(format!("the pools take {}", bytes(taken)), pools.collect()));
        from.push(self.cap());
        let claim = format!(
            "{} of {} tokens run at once, capped by {}",
            sequences(capacity.sequences),
            capacity.tokens_per_sequence,
            capacity.capped_by
        );
        Derivation::new(claim, from)
    }

    /// Why there is not one sequence more.
    fn cap(&self) -> Derivation {
        let more = self.plan.capacity.sequences + 1;
        match self.plan.capacity.capped_by {
            Cap::Memory => {
                Derivation::given(match beside(self.request, more) {
                    Ok((needed, there)) => {
                        // A larger step leaves less of a device for caches.
                        let is_share = self.budget().memory.as_ref().is_some_and(|memory| memory.bytes.is_none());
                        let there = there
                            .filter(|_| is_share)
                            .map(|there| format!("; a step of as many leaves {}", bytes(there.bytes)));
                        format!("{more} sequences need {} of caches{}", bytes(needed), there.unwrap_or_default())
                    }
                    Err(error) => format!("{more} sequences cannot be planned: {error}"),
                })
            }
            Cap::MaxBatchSize => Derivation::given(match self.budget().max_batch_size {
                Some(stated) => format!("`max_batch_size` = {stated} (the budget)"),
                None => {
                    format!(
                        "`max_batch_size` = {} (the default where no memory is stated)",
                        self.plan.capacity.sequences
                    )
                }
            }),
            Cap::MaxNumTokens => Derivation::given(format!(
                "a step of `max_num_tokens` = {} (the budget) has tokens for no more",
                self.plan.limits.max_num_tokens
            )),
            Cap::AnotherRank => Derivation::given(format!("{} serves no more", Cap::AnotherRank)),
            Cap::SequenceLimit => Derivation::given("no scheduler runs more"),
        }
    }

    /// What the caches may take, if the budget says.
    fn memory(&self) -> Option<Derivation> {
        let memory = self.budget().memory.as_ref()?;
        if let Some(stated) = memory.bytes {
            return Some(Derivation::given(format!("`memory.bytes` = {} (the budget) for caches", bytes(stated.0))));
        }
        let (fraction, of) = (memory.fraction?, memory.of?);
        let outside = self.plan.ledger.iter().filter(|line| !line.name.is_for_caches());
        let outside = outside.map(|line| Derivation::given(format!("less {} {}", line.name, bytes(line.bytes))));
        let named = self.request.device.filter(|device| device.is_nominal());
        let named = named.map(|device| Derivation::given(format!("{}: what nvidia-smi reports for one", device.name)));
        let share = f64::from(fraction);
        let device = self.request.device;
        let measured = self.request.measurement;
        let base = match (of, measured, device) {
            (Base::Total, _, Some(device)) => {
                format!("{share} of the device's {} (`memory.fraction` of total)", bytes(device.total_bytes))
            }
            (Base::Free, Some(measured), _) => format!(
                "{share}, for pages only, of the {} free once weights are loaded (`memory.fraction` of free)",
                bytes(measured.free_bytes)
            ),
            (Base::Free, None, Some(device)) => format!(
                "{share}, for pages only, of the device's {} free (`memory.fraction` of free)",
                bytes(device.free_bytes)
            ),
            _ => return None,
        };
        Some(Derivation::new(base, named.into_iter().chain(outside).collect()))
    }
}

/// The node and the tensors that a resource was derived from.
fn origin(resource: &Resource) -> Vec<Derivation> {
    let node = Derivation::given(format!("node {}", resource.node));
    std::iter::once(node).chain(resource.provenance.iter().map(Derivation::given)).collect()
}

/// `1 + 2048`, without what is none.
fn added(parts: &[u64]) -> String {
    let parts = parts.iter().filter(|part| **part > 0).map(u64::to_string);
    parts.collect::<Vec<_>>().join(" + ")
}

const fn unit_name(pool: &Pool) -> &'static str {
    match pool.unit {
        Unit::Block => "block",
        Unit::Slot => "slot",
        Unit::Fixed => "tensor",
    }
}

/// `25769803776 bytes (24.00 GiB)`; small ones without the second half.
fn bytes(count: u64) -> String {
    if count < 1024 { format!("{count} bytes") } else { format!("{count} bytes ({})", ByteSize(count)) }
}
