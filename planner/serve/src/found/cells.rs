//! What llama.cpp makes of the devices that it finds: it divides no bytes among caches, it allocates cells.

use cacheplan_handlers::Growth;
use cacheplan_planner::engines::EnginePrediction;
use cacheplan_planner::{EngineSpec, PlanError, PlanRequest};

use super::{At, End};
use crate::error::ServeError;
use crate::question::{CELLS, Limits, Placed, Short};

/// What it makes of the least and of the most that it may find.
pub(super) fn ends(
    request: &PlanRequest,
    engine: EngineSpec,
    placed: &Placed,
    limits: &Limits,
) -> Result<[End; 2], ServeError> {
    let stated = request.predict(engine)?;
    let end = |max_seq_len: u64, predicted: &EnginePrediction, lacks: Option<String>| End {
        at: Some(At { max_seq_len, predicted: predicted.clone() }),
        lacks,
    };
    let Some(lacks) = placed.lacks(&stated) else {
        return Ok([(); 2].map(|()| end(limits.max_seq_len, &stated, None)));
    };
    let (most, predicted) = match placed.short {
        Short::Cells { least, .. } => {
            let of = |cells: u64| with_cells(request, cells).predict(engine);
            let fits = |cells: u64| of(cells).is_ok_and(|predicted| placed.lacks(&predicted).is_none());
            let all = stated.tokens.unwrap_or(least);
            if fits(least) {
                let (mut fitting, mut failing) = (least / CELLS, all / CELLS + 1);
                while failing - fitting > 1 {
                    let middle = fitting + (failing - fitting) / 2;
                    if fits(middle * CELLS) { fitting = middle } else { failing = middle }
                }
                let each = |cells: u64| length(request, cells);
                let most = (fitting * CELLS).max(least);
                return Ok([least, most].map(|cells| (cells, of(cells))).map(|(cells, predicted)| End {
                    at: predicted.ok().map(|predicted| At { max_seq_len: each(cells), predicted }),
                    lacks: None,
                }));
            }
            (length(request, least), of(least)?)
        }
        _ => (limits.max_seq_len, stated),
    };
    let fails = matches!(placed.short, Short::Fails | Short::Cells { fails: true, .. });
    let low =
        if fails { end(most, &predicted, Some(lacks.clone())) } else { End { at: None, lacks: Some(lacks.clone()) } };
    Ok([low, end(most, &predicted, fails.then_some(lacks))])
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
        budget.max_seq_len = Some(each);
        budget.engine.context = budget.engine.context.map(|_| cells);
    })
}

/// Bytes of the cells of layers without a window, of all that there are; none where all layers are of one kind.
pub(super) fn without_window(request: &PlanRequest, predicted: &EnginePrediction) -> Result<Option<u64>, PlanError> {
    let (Some(tokens), Some(window), Some(all)) = (predicted.tokens, predicted.window_tokens, predicted.kv_bytes)
    else {
        return Ok(None);
    };
    let caches = request.caches()?;
    let of = |windowed: bool, cells: u64| {
        let paged = caches.iter().filter(|cache| match cache.handler.growth() {
            Growth::Paged { stride: 1, window } => window.is_some() == windowed,
            _ => false,
        });
        paged.map(|cache| u128::from(cache.handler.unit_bytes())).sum::<u128>() * u128::from(cells)
    };
    let (full, windowed) = (of(false, tokens), of(true, window));
    let part = u128::from(all) * full / (full + windowed).max(1);
    Ok(u64::try_from(part).ok().filter(|_| full > 0 && windowed > 0))
}
