//! How large tiers below the device must be: `cacheplan tiers`, of a built-in workload or of a trace that was dropped.

use cacheplan_managers::simulate::tiers::{TiersAsked, TiersError};
use cacheplan_managers::simulate::{TraceRequest, Workload};
use cacheplan_planner::PlanRequest;
use serde_json::{Map, Value, json};

use crate::answers::{Refused, json_of};

/// The longest trace. It is replayed dozens of times, in a browser on one thread.
const LONGEST_TRACE: usize = 16 << 20;

/// The most tokens of its requests, for the same reason; each workload has less than a tenth.
const MOST_TOKENS: usize = 1 << 28;

/// Requests, and what they are called.
pub(crate) type Requests = (String, Vec<TraceRequest>);

/// The requests that are asked about; `bytes` are the text of the trace.
pub(crate) fn requests(workload: Option<Workload>, trace: Option<String>, bytes: &[u8]) -> Result<Requests, Refused> {
    let (name, requests) = match (workload, trace) {
        (Some(workload), None) => (workload.name().to_owned(), workload.requests()),
        (None, Some(name)) if bytes.len() > LONGEST_TRACE => {
            let (found, most) = (bytes.len(), LONGEST_TRACE);
            let why =
                format!("{name}: the page replays no trace of {found} bytes, {most} at most; `cacheplan tiers` does");
            return Err(Refused::usage(why));
        }
        (None, Some(name)) => {
            let read = TraceRequest::read_trace(bytes).map_err(|error| Refused::error(format!("{name}: {error}")))?;
            (name, read)
        }
        _ => return Err(Refused::usage("either a workload or a trace is replayed")),
    };
    let tokens = requests.iter().map(TraceRequest::tokens).fold(0, usize::saturating_add);
    match (requests.len(), tokens) {
        (0, _) => Err(Refused::error(format!("{name}: the trace holds no request"))),
        (_, tokens) if tokens > MOST_TOKENS => Err(Refused::usage(format!(
            "{name}: the page replays no trace of {tokens} tokens, {MOST_TOKENS} at most; `cacheplan tiers` does"
        ))),
        _ => Ok((name, requests)),
    }
}

/// The smallest tiers that do, as the command prints them, with the curve.
pub(crate) fn answer(
    request: &PlanRequest,
    asked: Map<String, Value>,
    (name, requests): Requests,
    width: f64,
) -> Result<Value, Refused> {
    let refused = |error| match error {
        TiersError::Plan(error) => Refused::from(error),
        error => Refused::new(error.exit_code(), error),
    };
    let told = TiersAsked::of_json(asked).and_then(|asked| asked.answer(request, name, &requests)).map_err(refused)?;
    Ok(json!({
        "told": json_of(&told)?,
        "table": told.table(),
        "drawn": json_of(&told.curve().drawn(width))?,
        "svg": told.curve().svg(),
        "out_of_reach": told.out_of_reach(),
        "note": told.note(),
    }))
}
