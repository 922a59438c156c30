//! How capacity falls with the length of sequences, ours and that of every engine.

use serde::Serialize;

use crate::engines::EngineSpec;
use crate::{Budget, Comparison, Parallel, PlanError, PlanRequest, RankPlans};

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

impl PlanRequest<'_> {
    /// Plans every length of `contexts`, the usual ones where it is empty. `engines` are the same request with the resources
    /// that were collected in each engine's context, as [`compare`](Self::compare) needs them.
    pub fn curves(&self, contexts: &[u64], engines: &[(EngineSpec, PlanRequest<'_>)]) -> Curves {
        let usual: Vec<u64> = USUAL.map(|power| 1 << power).collect();
        let contexts = if contexts.is_empty() { &usual } else { contexts };
        // Workloads state lengths of their own, beside which a context would be no length but a limit.
        let budgets: Vec<Budget> = contexts
            .iter()
            .map(|&context| Budget { max_seq_len: Some(context), workload: None, ..self.budget.clone() })
            .collect();
        let at = || contexts.iter().copied().zip(&budgets);
        let ours = at().map(|(context, budget)| {
            let (sequences, capped_by) = capacity(&PlanRequest { budget, ..*self });
            OurPoint { context, sequences, capped_by }
        });
        let engines = engines.iter().map(|(engine, request)| {
            let points = at().filter_map(|(context, budget)| {
                let row = PlanRequest { budget, ..*request }.compare(*engine).ok()?;
                Some(EnginePoint { context, sequences: row.engine_sequences, ours: row.sequences })
            });
            let (row, error) = match request.compare(*engine) {
                Ok(row) => (Some(row), None),
                Err(error) => (None, Some(error.to_string())),
            };
            EngineCurve { engine: engine.engine.to_string(), row, error, points: points.collect() }
        });
        Curves { ours: ours.collect(), engines: engines.collect() }
    }
}

fn capacity(request: &PlanRequest<'_>) -> (u64, String) {
    let planned = match request.budget.parallel == Parallel::default() {
        true => request.plan(),
        false => RankPlans::of(request).map(|mut ranks| ranks.stages.swap_remove(0)),
    };
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
