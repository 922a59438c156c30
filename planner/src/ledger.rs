//! Where the device's bytes go, line by line, each with its source.

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

/// Bytes of the weights over all ranks, and how they are known, if at all.
pub(crate) fn weights(request: &PlanRequest<'_>) -> Option<(u64, Source, &'static str)> {
    let stated = request.budget.memory.as_ref().and_then(|memory| memory.weights);
    match (stated, request.model.weights) {
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
    if let Some(measured) = request.measurement {
        ledger.line("resident", measured.resident_bytes, Source::Measured, "weights and what the process holds".into());
        ledger.line("activations", measured.forward_bytes, Source::Measured, "peak of one profiled forward".into());
    } else {
        if let Some((bytes, source, note)) = weights(request) {
            let shards = u64::from(request.budget.parallel.tp) * u64::from(request.budget.parallel.pp);
            let note = if shards > 1 { format!("{note}, over {shards} shards") } else { note.into() };
            ledger.line("weights", bytes.div_ceil(shards), source, note);
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
    let draft_weights = request.budget.speculation.as_ref().and_then(|speculation| speculation.draft_weights);
    let host = request.budget.host.filter(|_| request.device.is_some_and(|device| device.kind != DeviceKind::Cuda));
    let stated = [
        ("graphs", memory.graphs, "captured CUDA graphs, stated in the budget"),
        ("draft weights", draft_weights, "of the draft model"),
        ("host tier", host.map(|host| host.bytes), "offloaded caches, in the same memory as the device's"),
    ];
    for (name, bytes, note) in stated {
        if let Some(bytes) = bytes {
            ledger.line(name, bytes.0, Source::Assumed, note.into());
        }
    }
    if let Some(reserve) = memory.reserve {
        ledger.line("reserve", reserve.0, Source::Exact, "stated in the budget".into());
    }
    Ok(ledger)
}
