//! What the host tier holds: as many whole sequences as its bytes admit.

use crate::error::PlanError;
use crate::plan::{HostPlan, HostPool, Pool};
use crate::size::ByteSize;
use crate::solver::demand::{Demand, Load};
use crate::solver::solve::{MAX_SEQUENCES, last};

/// The most sequences that the host's bytes hold.
pub(crate) fn sequences(bytes: ByteSize, pools: &[Pool], demands: &[Demand], load: &Load) -> u64 {
    last(MAX_SEQUENCES, |sequences| needed(pools, demands, load, sequences) <= bytes.0.into())
}

/// Divides the host's bytes over the pools whose contents a sequence takes along when it leaves the device, for the
/// sequences that all ranks can park.
///
/// A sequence takes what the solver counts for it, without padding.
///
/// # Errors
/// A host that does not hold one sequence.
pub(crate) fn plan(
    bytes: ByteSize,
    pools: &[Pool],
    demands: &[Demand],
    load: &Load,
    sequences: u64,
) -> Result<HostPlan, PlanError> {
    if sequences == 0 {
        let one = ByteSize(u64::try_from(needed(pools, demands, load, 1)).unwrap_or(u64::MAX));
        return Err(PlanError::Budget(format!(
            "`host.bytes` {bytes} holds no sequence of {} tokens, which takes {one}",
            load.max_seq_len
        )));
    }
    let pools: Vec<HostPool> = parked(pools, demands)
        .map(|(pool, demand)| {
            let units = units(pool, demand, load, sequences);
            // At most the host's bytes.
            HostPool { pool: pool.id.clone(), units, unit_bytes: pool.unit_bytes, bytes: units * pool.unit_bytes }
        })
        .collect();
    let taken: u64 = pools.iter().map(|pool| pool.bytes).sum();
    Ok(HostPlan { bytes: bytes.0, sequences, pools, unused_bytes: bytes.0 - taken })
}

fn parked<'a>(pools: &'a [Pool], demands: &'a [Demand]) -> impl Iterator<Item = (&'a Pool, &'a Demand)> {
    pools.iter().zip(demands).filter(|(_, demand)| demand.is_parked())
}

fn units(pool: &Pool, demand: &Demand, load: &Load, sequences: u64) -> u64 {
    demand.units(load, sequences).saturating_sub(pool.reserved)
}

fn needed(pools: &[Pool], demands: &[Demand], load: &Load, sequences: u64) -> u128 {
    let bytes = |(pool, demand): (&Pool, &Demand)| {
        u128::from(units(pool, demand, load, sequences)) * u128::from(pool.unit_bytes)
    };
    parked(pools, demands).map(bytes).sum()
}
