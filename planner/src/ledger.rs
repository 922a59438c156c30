//! Where the device's bytes go, line by line, each with its source.

use cacheplan_transforms::WeightBytes;

use crate::size::ByteSize;
use crate::solve::CacheBytes;
use crate::{DeviceKind, LedgerLine, Owner, PlanError, PlanRequest, Pool, Source};

/// Peak bytes that one token of a step is assumed to need besides weights and caches.
///
/// The widest tensors of a 70B decoder's layer at bf16 (query, key, value, two MLP halves) take about this much.
pub(crate) const ASSUMED_BYTES_PER_STEP_TOKEN: u64 = 256 << 10;

/// What a CUDA context with its libraries is assumed to take.
pub(crate) const ASSUMED_CONTEXT_BYTES: u64 = 512 << 20;

/// The lines so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ledger {
    pub(crate) lines: Vec<LedgerLine>,
}

impl Ledger {
    /// What one of `shards` ranks holds of a model's weights.
    fn weights(&mut self, name: &str, (bytes, source, note): Weights, shards: u64) {
        let note = if shards > 1 { format!("{note}, over {shards} shards") } else { note.into() };
        self.line(name, bytes.div_ceil(shards), source, note);
    }

    fn line(&mut self, name: &str, bytes: u64, source: Source, note: String) {
        self.lines.push(LedgerLine { name: name.into(), bytes, source, note });
    }

    /// Bytes of all lines so far.
    pub(crate) fn sum(&self) -> u64 {
        self.lines.iter().fold(0, |sum, line| sum.saturating_add(line.bytes))
    }

    /// One line per managed pool, one for all local ones, and what nobody takes.
    pub(crate) fn add_pools(&mut self, pools: &[Pool], memory: Option<CacheBytes>) {
        let mut taken = 0u64;
        for pool in pools {
            taken = taken.saturating_add(pool.bytes);
            if pool.owner.is_managed() {
                let note = format!("{} units of {}", pool.units, ByteSize(pool.unit_bytes));
                self.line(&pool.id, pool.bytes, Source::Exact, note);
            }
        }
        let local = pools.iter().filter(|pool| pool.owner == Owner::Local);
        let (count, bytes) = local.fold((0u64, 0u64), |(count, sum), pool| (count + 1, sum.saturating_add(pool.bytes)));
        if count > 0 {
            self.line("local", bytes, Source::Exact, format!("{count} allocations outside the managers"));
        }
        if let Some(memory) = memory {
            let unused = memory.bytes.saturating_sub(taken);
            self.line("unused", unused, Source::Exact, "caches' budget left by rounding, limits or share".into());
        }
    }
}

/// Bytes of a model's weights over all ranks, and how they are known.
pub(crate) type Weights = (u64, Source, &'static str);

/// The model's weights, if they are known.
pub(crate) fn weights(request: &PlanRequest<'_>) -> Option<Weights> {
    told(request.budget.memory.as_ref().and_then(|memory| memory.weights), request.model.weights)
}

/// The draft model's weights, if there is one and they are known.
pub(crate) fn draft_weights(request: &PlanRequest<'_>) -> Option<Weights> {
    let stated = request.budget.speculation.as_ref().and_then(|speculation| speculation.draft_weights);
    told(stated, request.draft.and_then(|draft| draft.model.weights))
}

fn told(stated: Option<ByteSize>, read: Option<WeightBytes>) -> Option<Weights> {
    match (stated, read) {
        (Some(stated), _) => Some((stated.0, Source::Assumed, "stated in the budget")),
        (None, Some(read)) if read.exact => Some((read.bytes, Source::Exact, "sum of the tensors' headers")),
        (None, Some(read)) => Some((read.bytes, Source::Assumed, "computed from the model's dimensions")),
        (None, None) => None,
    }
}

/// What is there besides caches: weights, activations, context, reserve.
pub(crate) fn fixed_lines(request: &PlanRequest<'_>, max_num_tokens: u64) -> Result<Ledger, PlanError> {
    let mut ledger = Ledger::default();
    let memory = request.budget.memory.clone().unwrap_or_default();
    let shards = |layers: u32| request.budget.parallel.shards(request.stage, layers);
    if let Some(measured) = request.measurement {
        ledger.line("resident", measured.resident_bytes, Source::Measured, "weights and what the process holds".into());
        ledger.line("activations", measured.forward_bytes, Source::Measured, "peak of one profiled forward".into());
    } else {
        if let (Some(weights), Some(shards)) = (weights(request), shards(request.model.layers)) {
            ledger.weights("weights", weights, shards);
        }
        if request.device.is_some_and(|device| device.kind != DeviceKind::Cpu) {
            ledger.line("context", ASSUMED_CONTEXT_BYTES, Source::Assumed, "CUDA context and libraries".into());
        }
        match memory.activations {
            Some(bytes) => ledger.line("activations", bytes.0, Source::Assumed, "stated in the budget".into()),
            None => {
                let bytes = max_num_tokens.saturating_mul(ASSUMED_BYTES_PER_STEP_TOKEN);
                let each = ByteSize(ASSUMED_BYTES_PER_STEP_TOKEN);
                let note = format!("{max_num_tokens} tokens a step at {each}");
                ledger.line("activations", bytes, Source::Assumed, note);
            }
        }
    }
    if let Some(bytes) = memory.graphs {
        ledger.line("graphs", bytes.0, Source::Assumed, "captured CUDA graphs, stated in the budget".into());
    }
    // Weights that are stated without a model are divided over all ranks.
    let layers = request.draft.map_or(request.budget.parallel.pp, |draft| draft.model.layers);
    if let (Some(weights), Some(shards)) = (draft_weights(request), shards(layers)) {
        ledger.weights("draft weights", weights, shards);
    }
    let host = request.budget.host.filter(|_| request.device.is_some_and(|device| device.kind != DeviceKind::Cuda));
    if let Some(host) = host {
        let note = "offloaded caches, in the same memory as the device's";
        ledger.line("host tier", host.bytes.0, Source::Assumed, note.into());
    }
    if let Some(reserve) = memory.reserve {
        ledger.line("reserve", reserve.0, Source::Exact, "stated in the budget".into());
    }
    Ok(ledger)
}
