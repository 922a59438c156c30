//! What the host tier holds: as many whole sequences as its bytes admit.

use crate::demand::{Demand, Load};
use crate::solve::{MAX_SEQUENCES, last};
use crate::{ByteSize, HostPlan, HostPool, PlanError, Pool};

/// Divides the host's bytes over the pools whose contents a sequence takes along when it leaves the device.
///
/// A sequence takes what the solver counts for it, without padding; `agreed` is what all ranks can park.
///
/// # Errors
/// A host that does not hold one sequence.
pub(crate) fn plan(
    bytes: ByteSize,
    pools: &[Pool],
    demands: &[Demand],
    load: &Load,
    agreed: Option<u64>,
) -> Result<HostPlan, PlanError> {
    let held: Vec<(&Pool, &Demand)> = pools.iter().zip(demands).filter(|(_, demand)| demand.is_parked()).collect();
    let units = |pool: &Pool, demand: &Demand, sequences| demand.units(load, sequences).saturating_sub(pool.reserved);
    let needed = |sequences: u64| -> u128 {
        let bytes = |(pool, demand): &(&Pool, &Demand)| {
            u128::from(units(pool, demand, sequences)) * u128::from(pool.unit_bytes)
        };
        held.iter().map(bytes).sum()
    };
    let cap = agreed.unwrap_or(MAX_SEQUENCES).min(MAX_SEQUENCES);
    let sequences = last(cap, |sequences| needed(sequences) <= bytes.0.into());
    if sequences == 0 {
        let one = ByteSize(u64::try_from(needed(1)).unwrap_or(u64::MAX));
        return Err(PlanError::Budget(format!(
            "`host.bytes` {bytes} holds no sequence of {} tokens, which takes {one}",
            load.max_seq_len
        )));
    }
    let pools: Vec<HostPool> = held
        .iter()
        .map(|(pool, demand)| {
            let units = units(pool, demand, sequences);
            // At most the host's bytes.
            HostPool { pool: pool.id.clone(), units, unit_bytes: pool.unit_bytes, bytes: units * pool.unit_bytes }
        })
        .collect();
    let taken: u64 = pools.iter().map(|pool| pool.bytes).sum();
    Ok(HostPlan { bytes: bytes.0, sequences, pools, unused_bytes: bytes.0 - taken })
}
