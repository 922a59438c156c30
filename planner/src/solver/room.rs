//! The bytes for caches beside a step: what the device allows, less everything else.

use crate::budget::{Base, Fraction, Memory};
use crate::error::PlanError;
use crate::size::ByteSize;
use crate::solver::inputs::Inputs;
use crate::solver::ledger::{self, CacheBytes, Ledger, Outside};
use crate::solver::step::StepSize;

/// What caches may take beside a step, which is less the more is in it.
pub(crate) struct Room<'a> {
    outside: Outside<'a>,
    /// Bytes that the caches were given.
    stated: Option<u64>,
    /// What the device allows for everything.
    allowed: Option<Allowed>,
}

#[derive(Clone, Copy)]
struct Allowed {
    bytes: u64,
    /// Bytes besides caches that `bytes` no longer contain.
    resident: u64,
    paged_share: Fraction,
}

impl<'a> Room<'a> {
    /// # Errors
    /// A share of a device that is not known, or beside weights that are not.
    pub(crate) fn of(request: &Inputs<'a>) -> Result<Self, PlanError> {
        let outside = Outside::of(request)?;
        let allowed = allowed(request)?;
        let stated = request.budget.memory.as_ref().and_then(|memory| memory.bytes).map(|bytes| bytes.0);
        Ok(Self { outside, stated, allowed })
    }

    /// Where the other bytes go.
    pub(crate) fn ledger(&self, step: StepSize) -> Ledger {
        self.outside.ledger(step)
    }

    /// What paged caches may take at least, as it is taken to be, and at most; `None` if the budget states no memory.
    pub(crate) fn between(&self, step: StepSize) -> Option<[u64; 3]> {
        let Some(Allowed { bytes, resident, paged_share }) = self.allowed else {
            return self.stated.map(|bytes| [bytes; 3]);
        };
        let left = |taken: u64| {
            let left = bytes.saturating_sub(taken.saturating_sub(resident));
            paged_share.of(self.stated.map_or(left, |stated| stated.min(left)))
        };
        Some(self.outside.between(step).map(left))
    }

    /// What the pools may take together; `None` if the budget states no memory.
    pub(crate) fn at(&self, step: StepSize) -> Option<CacheBytes> {
        let given = |bytes| CacheBytes { bytes, overdrawn: 0, paged_share: Fraction::ONE };
        let Some(Allowed { bytes, resident, paged_share }) = self.allowed else { return self.stated.map(given) };
        let taken = self.outside.bytes(step).saturating_sub(resident);
        let left = bytes.saturating_sub(taken);
        let (bytes, overdrawn) = (self.stated.map_or(left, |stated| stated.min(left)), taken.saturating_sub(bytes));
        Some(CacheBytes { bytes, overdrawn, paged_share })
    }
}

fn allowed(request: &Inputs<'_>) -> Result<Option<Allowed>, PlanError> {
    let all = |bytes| Ok(Some(Allowed { bytes, resident: 0, paged_share: Fraction::ONE }));
    let Some(Memory { bytes, fraction, of, .. }) = &request.budget.memory else { return Ok(None) };
    let device = request.device;
    if let Some(stated) = bytes {
        return match device {
            Some(device) if stated.0 > device.total_bytes => Err(PlanError::Budget(format!(
                "`memory.bytes` (--memory-bytes) is {stated}, and {} has {}",
                device.name,
                ByteSize(device.total_bytes)
            ))),
            Some(device) => all(device.total_bytes),
            None => Ok(None),
        };
    }
    let (Some(fraction), Some(of)) = (*fraction, *of) else { return Ok(None) };
    let no_device = || {
        PlanError::Budget("`memory.fraction` is a share of a device, and no device was given (--device-memory)".into())
    };
    refuse_unknown_weights(request)?;
    match (of, request.measurement) {
        (Base::Total, _) => all(fraction.of(device.ok_or_else(no_device)?.total_bytes)),
        // Weights are resident already, so the free bytes no longer contain them.
        (Base::Free, Some(measured)) => {
            Ok(Some(Allowed { bytes: measured.free_bytes, resident: measured.resident_bytes, paged_share: fraction }))
        }
        (Base::Free, None) => {
            let bytes = device.ok_or_else(no_device)?.free_bytes;
            Ok(Some(Allowed { bytes, resident: 0, paged_share: fraction }))
        }
    }
}

/// What a share of a device leaves for caches is known only beside weights that are.
fn refuse_unknown_weights(request: &Inputs<'_>) -> Result<(), PlanError> {
    let has_weights =
        ledger::weights(request).is_some() || request.measured.is_some_and(|measured| measured.lines.weights.is_some());
    if request.device.is_some() && request.measurement.is_none() && !has_weights {
        let unknown = "the model's files do not tell the size of its weights, so what `memory.fraction` leaves for caches is \
                       unknown; state `memory.weights` (--weights), or the caches' own `memory.bytes` (--memory-bytes)";
        return Err(PlanError::Budget(unknown.into()));
    }
    if request.draft.is_some() && ledger::draft_weights(request).is_none() {
        let unknown = "the draft model's files do not tell the size of its weights, so what `memory.fraction` leaves for \
                       caches is unknown; state `speculation.draft_weights` (--draft-weights), or the caches' own \
                       `memory.bytes` (--memory-bytes)";
        return Err(PlanError::Budget(unknown.into()));
    }
    Ok(())
}
