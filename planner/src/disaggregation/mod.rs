//! Prefill and decode on devices of their own: a plan for each side, what is handed over for each request, and how many
//! requests the link between them and both pools admit.
//!
//! Rates are the [bound of speed](crate::bound): nothing that runs there exceeds them.

mod error;
mod handover;
mod rates;

use serde::Serialize;

use crate::budget::Lengths;
use crate::engines::{Handing, TransferFlags};
use crate::parallel::Parallel;
use crate::plan::CachePlan;
use crate::request::PlanRequest;

pub use error::{DisaggregationError, Role};
pub use handover::{Handed, Handover};
use rates::DeviceRates;
pub use rates::{Balance, Ceiling};

/// Two sides that serve one model, and the requests that pass from one to the other, whose lengths stand in place of those of
/// the budgets' workloads.
#[derive(Clone, Debug)]
pub struct Disaggregation {
    /// What computes prompts.
    pub prefill: PlanRequest,
    /// What writes tokens.
    pub decode: PlanRequest,
    /// Tokens of a prompt.
    pub prompt: u64,
    /// Tokens that are written, of which the first comes with the prompt.
    pub output: u64,
    /// Bytes each second that a device sends, or receives, at most.
    pub link: f64,
}

/// What becomes of a request.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DisaggregationAnswer {
    /// Tokens of a prompt.
    pub prompt: u64,
    /// Tokens that are written.
    pub output: u64,
    /// Bytes each second that a device sends, or receives, at most.
    pub link: f64,
    /// What computes prompts.
    pub prefill: Side,
    /// What writes tokens.
    pub decode: Side,
    /// What passes from one to the other.
    pub handover: Handover,
    /// Seconds that the handover of one request takes where nothing else is on the link.
    pub handover_seconds: f64,
    /// What each part admits at most, in requests each second; of devices whose rates are not known only the link.
    pub ceilings: Vec<Ceiling>,
    /// The name of the lowest of them, which caps the whole.
    pub capped_by: Option<&'static str>,
    /// How many devices of one side keep those of the other busy; absent where rates are not known.
    pub balance: Option<Balance>,
    /// What engines are told, and what they refuse.
    pub engines: Vec<TransferFlags>,
    /// What is taken for granted, one sentence each, in the words of whoever asks.
    #[serde(skip)]
    pub notes: Vec<String>,
}

/// The pool of devices of one side.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Side {
    /// What a device is called; empty where nobody says.
    pub device: String,
    /// How many there are.
    pub devices: u64,
    /// How the model is divided over them.
    pub parallel: Parallel,
    /// Groups of devices that each serve sequences of their own.
    pub replicas: u64,
    /// The engine whose rules say how many sequences run, `vllm@0.33.0`; absent for the plan's own pools.
    pub engine: Option<String>,
    /// Sequences that a replica holds at once.
    pub sequences: u64,
    /// What ends that.
    pub capped_by: String,
    /// The plan of each pipeline stage.
    pub stages: Vec<CachePlan>,
}

impl Disaggregation {
    /// Plans both sides, and says what passes between them and what they admit.
    ///
    /// # Errors
    /// A link that carries nothing, lengths that nobody serves, a side that cannot be planned, and sides whose caches cannot
    /// pass from one to the other.
    pub fn answer(&self) -> Result<DisaggregationAnswer, DisaggregationError> {
        if !(self.link.is_finite() && self.link > 0.0) {
            return Err(DisaggregationError::Link(self.link));
        }
        if self.prompt == 0 || self.output < 2 {
            return Err(DisaggregationError::Lengths { prompt: self.prompt, output: self.output });
        }
        let asked = [
            sized(&self.prefill, Role::Prefill, self.prompt, 0)?,
            sized(&self.decode, Role::Decode, self.prompt, self.output)?,
        ];
        let [prefill, decode] = [side(&asked[0], Role::Prefill)?, side(&asked[1], Role::Decode)?];
        let whole = asked[1].undivided().map_err(|error| DisaggregationError::plan(Role::Decode, error))?;
        let handover = Handover::of(&prefill, &decode, &whole, self.prompt)?;
        let handover_seconds = handover.seconds(self.link);
        let rates = DeviceRates::of(&asked, [&prefill, &decode], handover_seconds, self);
        let ceilings = rates.ceilings([&prefill, &decode], &handover, self);
        let lowest = ceilings.iter().min_by(|a, b| a.per_second.total_cmp(&b.per_second));
        let handing = Handing {
            layouts: [prefill.parallel, decode.parallel],
            blocks: [&prefill, &decode].map(Side::tokens_per_block),
            handlers: whole.iter().map(|(resource, _)| resource.handler.clone()).collect(),
            prompt: self.prompt,
        };
        let stated = asked[0].engine().or(asked[1].engine()).map(|spec| spec.engine);
        Ok(DisaggregationAnswer {
            prompt: self.prompt,
            output: self.output,
            link: self.link,
            handover_seconds,
            capped_by: lowest.map(|ceiling| ceiling.name),
            balance: Balance::of(&ceilings, [&prefill, &decode]),
            ceilings,
            engines: handing.flags(stated),
            notes: of_both(&asked),
            prefill,
            decode,
            handover,
        })
    }
}

/// What is to be known of either side, once.
fn of_both(asked: &[PlanRequest; 2]) -> Vec<String> {
    let mut notes = asked[0].notes();
    notes.extend(asked[1].notes().into_iter().filter(|note| !asked[0].notes().contains(note)));
    notes
}

/// The same request for sequences of such a prompt and such an output.
fn sized(request: &PlanRequest, role: Role, prompt: u64, output: u64) -> Result<PlanRequest, DisaggregationError> {
    let budget = &request.config().budget;
    let tokens = prompt.saturating_add(output);
    let info = request.info();
    let (most, key) = match (budget.max_seq_len, info.max_position_embeddings) {
        (Some(stated), _) => (stated, "max_seq_len"),
        (None, Some(made_for)) => (made_for, "max_position_embeddings"),
        (None, None) => (u64::MAX, ""),
    };
    if tokens > most {
        return Err(DisaggregationError::TooLong { role, tokens, most, key });
    }
    let sized = request.changed(|budget| {
        budget.max_seq_len = Some(budget.max_seq_len.unwrap_or(tokens));
        let workload = budget.workload.get_or_insert_default();
        (workload.prompt, workload.output) = (Lengths::Fixed(prompt), Lengths::Fixed(output));
    });
    // A shorter one would not be that request.
    Ok(sized.taken_by(move |plan| plan.limits.max_seq_len >= tokens))
}

fn side(request: &PlanRequest, role: Role) -> Result<Side, DisaggregationError> {
    let failed = |error| DisaggregationError::plan(role, error);
    let ranks = request.ranks().map_err(failed)?;
    let parallel = ranks.parallel;
    let (mut sequences, mut capped_by) = (ranks.agreement.sequences, String::new());
    let mut engine = None;
    if let Some(poorest) = ranks.stages.iter().min_by_key(|plan| !plan.capacity.capped_by.is_memory()) {
        capped_by = poorest.capacity.capped_by.to_string();
    }
    if let Some(spec) = request.engine() {
        sequences = request.predict(spec).map_err(failed)?.sequences;
        capped_by = "the engine".to_owned();
        engine = Some(format!("{}@{}", spec.engine, spec.version_name()));
    }
    Ok(Side {
        device: request.device().map(|device| device.name.clone()).unwrap_or_default(),
        devices: parallel.world_size(),
        parallel,
        replicas: parallel.dp.into(),
        engine,
        sequences,
        capped_by,
        stages: ranks.stages,
    })
}

impl Side {
    /// Devices of one replica.
    pub fn replica_size(&self) -> u64 {
        self.parallel.replica_size()
    }

    /// Tokens in a block; 0 where nothing is paged.
    pub fn tokens_per_block(&self) -> u64 {
        let pools = self.stages.iter().flat_map(|plan| &plan.pools);
        pools.filter_map(|pool| pool.tokens_per_block).next().unwrap_or(0)
    }
}
