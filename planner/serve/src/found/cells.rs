//! What llama.cpp makes of the devices that it finds: it divides no bytes among caches, it allocates cells.

use cacheplan_planner::engines::EnginePrediction;
use cacheplan_planner::engines::llama_cpp::CELLS;
use cacheplan_planner::plan::{LedgerItem, LedgerLine};
use cacheplan_planner::{EngineSpec, PlanError, PlanRequest};

use super::{At, End};
use crate::bisect::last;
use crate::error::ServeError;
use crate::question::{Held, Limits, Placed, Short};

/// What it makes of the least and of the most that it may find.
pub(super) fn ends(
    request: &PlanRequest,
    engine: EngineSpec,
    placed: &Placed,
    limits: &Limits,
) -> Result<[End; 2], ServeError> {
    let ends = held(request, engine, placed, limits)?;
    // What is too much for the devices swaps, where it would fail.
    let takes = |end: End| End { lacks: end.lacks.filter(|_| !placed.swaps || !placed.short.fails()), ..end };
    let [mut least, most] = ends.map(takes);
    least.lacks = least.lacks.or_else(|| placed.unknown_weights());
    Ok([least, most])
}

/// The same where its devices hold all that it allocates on them.
fn held(request: &PlanRequest, engine: EngineSpec, placed: &Placed, limits: &Limits) -> Result<[End; 2], ServeError> {
    let context = context(request, engine)?;
    let stated = request.predict(engine)?;
    let end = |max_seq_len: u64, predicted: &EnginePrediction, lacks: Option<String>| End {
        at: Some(At { max_seq_len, predicted: predicted.clone() }),
        lacks,
    };
    let lacks = |predicted: &EnginePrediction, held: Held| placed.lacks(predicted, context.as_ref(), held);
    let [least, most] = lacks(&stated, Held::Each);
    let Some(why) = most else { return Ok([(); 2].map(|()| end(limits.max_seq_len, &stated, None))) };
    // `--fit` shrinks the context for what it finds, which is known between two.
    if let Short::Cells { least, fails } = placed.short {
        // A context that is no longer than that is left as it is.
        let fewest = stated.tokens.map_or(least, |all| least.min(all));
        let of = |cells: u64| with_cells(request, cells).predict(engine);
        let [whole, shrunk] = placed.fitted();
        let most_cells = |at: usize| {
            let fits = |cells: u64| of(cells).is_ok_and(|predicted| lacks(&predicted, shrunk)[at].is_none());
            let all = stated.tokens.unwrap_or(fewest);
            if lacks(&stated, whole)[at].is_none() {
                return Some(all);
            }
            let most = last(all / CELLS, |steps| steps <= fewest / CELLS || fits(steps * CELLS));
            fits(fewest).then(|| (most * CELLS).max(fewest))
        };
        if let Some(most) = most_cells(0) {
            let fewer = most_cells(1).unwrap_or(fewest);
            // Of several devices each has whole layers.
            let shrunk = |cells: u64, at: usize| {
                let Ok(predicted) = of(cells) else { return End { at: None, lacks: None } };
                let is_stated = Some(cells) == stated.tokens;
                let predicted = if is_stated { stated.clone() } else { predicted };
                let length = if is_stated { limits.max_seq_len } else { length(request, cells) };
                match lacks(&predicted, Held::Each)[at].clone() {
                    Some(why) if !fails && at == 1 => End { at: None, lacks: Some(why) },
                    why => end(length, &predicted, why.filter(|_| fails)),
                }
            };
            return Ok([shrunk(fewer, 1), shrunk(most, 0)]);
        }
        let (length, predicted) = (length(request, fewest), of(fewest)?);
        let surely = lacks(&predicted, Held::Each)[0].is_some();
        return Ok(short(placed, length, predicted, why, surely));
    }
    Ok(short(placed, limits.max_seq_len, stated, why, least.is_some()))
}

/// The bytes that it has for caches on its devices at least.
pub(super) fn bytes(request: &PlanRequest, engine: EngineSpec, placed: &Placed) -> Result<u64, PlanError> {
    let context = context(request, engine)?;
    Ok(placed.for_caches(&request.predict(engine)?, context.as_ref()))
}

/// Where the devices do not hold it, or only may.
fn short(placed: &Placed, max_seq_len: u64, predicted: EnginePrediction, lacks: String, surely: bool) -> [End; 2] {
    let fails = placed.short.fails();
    let at = At { max_seq_len, predicted };
    let low = if fails { Some(at.clone()) } else { None };
    [End { at: low, lacks: Some(lacks.clone()) }, End { at: Some(at), lacks: (fails && surely).then_some(lacks) }]
}

/// What logs say of a context on such a device.
pub(super) fn context(request: &PlanRequest, engine: EngineSpec) -> Result<Option<LedgerLine>, PlanError> {
    let lines = request.beside_caches(engine)?;
    Ok(lines.into_iter().find(|line| line.name == LedgerItem::Context))
}

/// What a slot holds of so many cells.
fn length(request: &PlanRequest, cells: u64) -> u64 {
    let budget = &request.config().budget;
    match budget.engine.context {
        Some(_) => cells,
        None => (cells / budget.max_batch_size.unwrap_or(1).max(1)).next_multiple_of(CELLS),
    }
}

/// The same with another `n_ctx`.
fn with_cells(request: &PlanRequest, cells: u64) -> PlanRequest {
    let each = length(request, cells);
    request.changed(|budget| {
        // Of cells that are shared a sequence may be told to take no more.
        let most = budget.max_seq_len.filter(|_| budget.engine.context.is_some()).unwrap_or(u64::MAX);
        budget.max_seq_len = Some(each.min(most));
        budget.engine.context = budget.engine.context.map(|_| cells);
    })
}
