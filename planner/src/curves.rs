//! How capacity falls with the length of sequences, ours and that of every engine.

use serde::Serialize;

use crate::compare::Comparison;
use crate::engines::EngineSpec;
use crate::error::PlanError;
use crate::request::PlanRequest;

/// Sequences at once over the length of each.
#[derive(Clone, Debug, Serialize)]
pub struct Curves {
    pub(crate) ours: Vec<OurPoint>,
    pub(crate) engines: Vec<EngineCurve>,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct OurPoint {
    pub(crate) context: u64,
    pub(crate) sequences: u64,
    /// What runs out first: of memory the pool that takes most of it.
    pub(crate) capped_by: String,
}

/// An engine with the same bytes.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct EngineCurve {
    pub(crate) engine: String,
    /// It beside ours with this very budget, or why they are not compared.
    pub(crate) row: Option<Comparison>,
    pub(crate) error: Option<String>,
    pub(crate) points: Vec<EnginePoint>,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct EnginePoint {
    pub(crate) context: u64,
    pub(crate) sequences: u64,
    /// Ours with the dtypes that the engine chooses.
    pub(crate) ours: u64,
}

/// The lengths that a picture has: 1,024 to 1,048,576 tokens.
const USUAL: std::ops::RangeInclusive<u32> = 10..=20;

impl PlanRequest {
    /// Plans every length of `contexts`, the usual ones where it is empty, and asks `engines` what they would admit of each.
    pub fn curves(&self, contexts: &[u64], engines: &[EngineSpec]) -> Curves {
        let usual: Vec<u64> = USUAL.map(|power| 1 << power).collect();
        let contexts = if contexts.is_empty() { &usual } else { contexts };
        // Workloads state lengths of their own, beside which a context would be no length but a limit.
        let at = |context: u64| self.changed(|budget| (budget.max_seq_len, budget.workload) = (Some(context), None));
        let ours = contexts.iter().map(|&context| {
            let (sequences, capped_by) = capacity(&at(context));
            OurPoint { context, sequences, capped_by }
        });
        let engines = engines.iter().map(|&engine| {
            let points = contexts.iter().filter_map(|&context| {
                let row = at(context).compare(engine).ok()?;
                Some(EnginePoint { context, sequences: row.engine_sequences, ours: row.sequences })
            });
            let (row, error) = match self.compare(engine) {
                Ok(row) => (Some(row), None),
                Err(error) => (None, Some(error.to_string())),
            };
            EngineCurve { engine: engine.engine.to_string(), row, error, points: points.collect() }
        });
        Curves { ours: ours.collect(), engines: engines.collect() }
    }
}

fn capacity(request: &PlanRequest) -> (u64, String) {
    let planned = request.made().and_then(|ranks| ranks.into_stage(0));
    match planned {
        Ok(plan) => {
            let largest = plan.pools.iter().max_by_key(|pool| pool.bytes).map(|pool| pool.id.clone());
            let cap = plan.capacity.capped_by;
            let cap = largest.filter(|_| cap.is_memory()).unwrap_or_else(|| cap.to_string());
            (plan.capacity.sequences, cap)
        }
        Err(PlanError::DoesNotFit(short)) => (0, short.capped_by),
        Err(error) => (0, error.to_string()),
    }
}
