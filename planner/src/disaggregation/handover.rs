//! What passes from prefill to decode for one request, kind by kind.

use std::collections::BTreeMap;

use cacheplan_handlers::{Growth, Kind, KvLayout, ResourceHandler};
use cacheplan_transforms::Resource;
use serde::Serialize;

use super::{DisaggregationError, Role, Side};
use crate::plan::{CachePlan, PlannedResource};

/// What a request leaves on one side and needs on the other.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Handover {
    /// Kind by kind, in the order of the model's caches.
    pub parts: Vec<Handed>,
    /// Bytes of all of them, each counted once and without the rest of a block.
    pub bytes: u64,
    /// Bytes that all ranks of a decode replica receive: whole blocks, and a copy for each rank that keeps one.
    pub received: u64,
    /// Bytes that the busiest device of a prefill replica sends.
    pub sent_by_device: u64,
    /// Bytes that the busiest device of a decode replica receives.
    pub received_by_device: u64,
    /// Over how many of a prefill replica's tensor parallel ranks, and over how many of decode's, heads are divided.
    pub ranks: [u32; 2],
    /// The order of heads and tokens on both sides, where it is not the same: what arrives is turned once more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turned: Option<[KvLayout; 2]>,
}

/// One kind of cache in a handover.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Handed {
    /// `keys and values`, `windows of 4096 tokens`, `states`.
    pub kind: String,
    /// Caches of it.
    pub caches: u64,
    /// Tokens of each that decode needs: a window's are its last ones. Absent for what has one size whatever the prompt.
    pub tokens: Option<u64>,
    /// Bytes, each counted once and without the rest of a block.
    pub bytes: u64,
    /// Bytes that all ranks of a decode replica receive.
    pub received: u64,
}

/// What decode needs of a cache after a prompt.
enum Needs {
    /// Entries of the last `tokens` of so many tokens.
    Tail { tokens: u64, stride: u64 },
    /// All of it.
    Whole,
    /// Nothing: it is written anew in each step.
    Nothing,
}

impl Needs {
    fn of(handler: &ResourceHandler, prompt: u64) -> Self {
        let kind = handler.kind();
        match handler.growth() {
            // The next token looks back on `window - 1` others.
            Growth::Paged { stride, window } => {
                let tokens = prompt.min(window.map_or(u64::MAX, |window| u64::from(window).saturating_sub(1)));
                Self::Tail { tokens, stride: u64::from(stride).max(1) }
            }
            Growth::PerSlotToken => Self::Tail { tokens: prompt, stride: 1 },
            Growth::PerSequence if !kind.is_replay() => Self::Whole,
            Growth::PerSequence | Growth::PerDraftPosition | Growth::Fixed => Self::Nothing,
        }
    }
}

/// Bytes that decode needs of a cache, without the rest of a block.
fn exact(handler: &ResourceHandler, prompt: u64) -> u64 {
    match Needs::of(handler, prompt) {
        Needs::Tail { tokens, stride } => handler.unit_bytes().saturating_mul(tokens / stride),
        Needs::Whole => handler.unit_bytes(),
        Needs::Nothing => 0,
    }
}

/// Bytes that a rank of decode receives of a cache, in whole blocks of its plan.
fn in_blocks(resource: &PlannedResource, plan: &CachePlan, context_ranks: u64, prompt: u64) -> u64 {
    let pool = plan.pool(&resource.pool);
    let blocks = pool.and_then(|pool| {
        let member = pool.members.iter().find(|member| member.resource == resource.name)?;
        Some((pool.tokens_per_block?, member.bytes))
    });
    match (Needs::of(&resource.handler, prompt), blocks) {
        (Needs::Tail { tokens, .. }, Some((block, bytes))) => {
            let [all, tail] = [prompt, tokens].map(|tokens| tokens.div_ceil(context_ranks));
            let touched = if tail == 0 { 0 } else { all.div_ceil(block) - (all - tail) / block };
            touched.saturating_mul(bytes)
        }
        _ => exact(&resource.handler, prompt),
    }
}

/// What a kind is called, apart for each length of windows.
fn name(resource: &Resource, drafts: bool) -> String {
    let handler = &resource.handler;
    let name = match (handler.growth(), handler.kind()) {
        (Growth::Paged { window: Some(window), .. }, _) => format!("windows of {window} tokens"),
        (_, Kind::KvPaged) => "keys and values".to_owned(),
        (_, Kind::MlaPaged | Kind::MlaRope) => "latents".to_owned(),
        (_, Kind::IndexKey) => "index keys".to_owned(),
        (_, Kind::CompressedLatent) => "compressed latents".to_owned(),
        (_, Kind::Ring) => "rings".to_owned(),
        (_, Kind::Ssm) => "states".to_owned(),
        (_, Kind::CausalConv) => "convolutions".to_owned(),
        (_, Kind::State) => "other states".to_owned(),
        (_, kind) => kind.to_string(),
    };
    if drafts { format!("{name} of drafts") } else { name }
}

impl Handover {
    /// What passes after a prompt of so many tokens; `whole` are the caches of decode that nothing divides.
    pub(super) fn of(
        prefill: &Side,
        decode: &Side,
        whole: &[(Resource, bool)],
        prompt: u64,
    ) -> Result<Self, DisaggregationError> {
        let (from, to) = (prefill.parallel, decode.parallel);
        let ranks = [from.tp, to.tp];
        if !from.tp.is_multiple_of(to.tp) && !to.tp.is_multiple_of(from.tp) {
            return Err(DisaggregationError::Ranks { prefill: from.tp, decode: to.tp });
        }
        let held = |side: &Side| {
            let stages = side.stages.iter().enumerate();
            let all = stages.flat_map(|(stage, plan)| plan.resources.iter().map(move |held| (&*held.name, stage)));
            all.map(|(name, stage)| (name.to_owned(), stage)).collect::<BTreeMap<String, usize>>()
        };
        let [senders, receivers] = [held(prefill), held(decode)];
        let mut sent = vec![0.0; prefill.stages.len()];
        let mut arrived = vec![0u64; decode.stages.len()];
        let mut parts: Vec<Handed> = Vec::new();
        let mut turned = None;
        for (resource, drafts) in whole {
            let needs = Needs::of(&resource.handler, prompt);
            if matches!(needs, Needs::Nothing) {
                continue;
            }
            let one_sided = |has| DisaggregationError::OneSided { cache: resource.name.clone(), has };
            let at = |stages: &BTreeMap<String, usize>| stages.get(&resource.name).copied();
            let sender = at(&senders).ok_or_else(|| one_sided(Role::Decode))?;
            let receiver = at(&receivers).ok_or_else(|| one_sided(Role::Prefill))?;
            let (source, target) = (&prefill.stages[sender], &decode.stages[receiver]);
            let (Some(left), Some(right)) = (source.resource(&resource.name), target.resource(&resource.name)) else {
                continue;
            };
            alike(left, right)?;
            turned = turned.or(left.handler.layout().zip(right.handler.layout()).filter(|(a, b)| a != b));
            let of_rank = in_blocks(right, target, to.context_ranks(), prompt);
            let copies = u64::from(to.tp) * u64::from(to.cp);
            let received = of_rank.saturating_mul(copies);
            arrived[receiver] = arrived[receiver].saturating_add(of_rank);
            let shares =
                |held: &PlannedResource| resource.handler.unit_bytes() as f64 / held.handler.unit_bytes().max(1) as f64;
            sent[sender] += received as f64 / busy(from.tp, to.tp, shares(left), shares(right)) / f64::from(from.cp);
            let tokens = if let Needs::Tail { tokens, .. } = needs { Some(tokens) } else { None };
            let kind = name(resource, *drafts);
            let bytes = exact(&resource.handler, prompt);
            match parts.iter_mut().find(|part| part.kind == kind) {
                Some(part) => {
                    part.caches += 1;
                    part.bytes = part.bytes.saturating_add(bytes);
                    part.received = part.received.saturating_add(received);
                }
                None => parts.push(Handed { kind, caches: 1, tokens, bytes, received }),
            }
        }
        // What a draft keeps on one side alone it cannot hand over.
        let known = |name: &str| whole.iter().any(|(resource, _)| resource.name == name);
        let prompts = prefill.stages.iter().flat_map(|plan| &plan.resources);
        let mut kept = prompts.filter(|held| !matches!(Needs::of(&held.handler, prompt), Needs::Nothing));
        if let Some(alone) = kept.find(|held| !known(&held.name)) {
            return Err(DisaggregationError::OneSided { cache: alone.name.clone(), has: Role::Prefill });
        }
        let sum = |of: fn(&Handed) -> u64| parts.iter().map(of).fold(0u64, u64::saturating_add);
        Ok(Self {
            bytes: sum(|part| part.bytes),
            received: sum(|part| part.received),
            sent_by_device: sent.into_iter().fold(0.0, f64::max).ceil() as u64,
            received_by_device: arrived.into_iter().max().unwrap_or(0),
            parts,
            ranks,
            turned: turned.map(|(from, to)| [from, to]),
        })
    }

    /// Seconds on a link of so many bytes each second for a device: what the busiest device of either side takes.
    pub(super) fn seconds(&self, link: f64) -> f64 {
        self.sent_by_device.max(self.received_by_device) as f64 / link
    }
}

/// Ranks of `from` among which what those of `to` receive of a cache is divided: a rank of decode takes each part of what it
/// keeps from one rank that has it. `left` and `right` are how many different parts the ranks of each side have.
fn busy(from: u32, to: u32, left: f64, right: f64) -> f64 {
    if to >= from {
        return from.into();
    }
    let parts = (left / right).max(1.0).min(f64::from(from / to));
    f64::from(to) * parts
}

/// Refuses caches that cannot pass as they are.
fn alike(left: &PlannedResource, right: &PlannedResource) -> Result<(), DisaggregationError> {
    if left.dtype == right.dtype {
        return Ok(());
    }
    let key = match right.handler.kind() {
        Kind::Ssm => "`dtypes.ssm` (--ssm-dtype)",
        Kind::CausalConv => "`dtypes.conv` (--conv-dtype)",
        _ => "`dtypes.kv` (--kv-dtype)",
    };
    let (prefill, decode) = (left.dtype, right.dtype);
    Err(DisaggregationError::DTypes { cache: right.name.clone(), prefill, decode, key })
}
