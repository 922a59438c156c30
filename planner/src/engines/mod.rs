//! What other engines would allocate for the same model and bytes.
//!
//! Each engine is one [`Description`](description::Description) over our resources: how it groups layers, what a page is,
//! how it divides bytes. Which version a rule was read from, or which logged sizes it reproduces, stands beside the rule.

mod caches;
pub(crate) mod description;
mod expanded;
pub(crate) mod known;
mod options;
mod prediction;
mod version;

use cacheplan_handlers::Kind;
use cacheplan_transforms::ModelInfo;

use crate::budget::Budget;
use crate::demand::Load;
use crate::room::Room;
use crate::step::StepSize;
use crate::{ByteSize, PlanError, PlanRequest, Shortfall, make};

pub(crate) use options::{EngineOptions, MambaCacheMode};
pub(crate) use prediction::EnginePrediction;
pub(crate) use version::Version;
pub use version::{Engine, EngineSpec};

use caches::Caches;
use description::Description;

/// Everything that an engine's rules look at.
struct Situation<'a> {
    caches: Caches<'a>,
    /// Lengths in this engine's page sizes are derived from this.
    load: Load,
    options: &'a EngineOptions,
    budget: &'a Budget,
    model: &'a ModelInfo,
    /// Bytes for caches; `None` if the budget states none.
    bytes: Option<u64>,
    draft_tokens: u64,
    version: Version,
}

impl PlanRequest<'_> {
    /// Predicts what `engine` would allocate for the model and budget of this request.
    ///
    /// The resources must have been collected in [`engine_context`](crate::Budget::engine_context).
    ///
    /// # Errors
    /// A budget that does not hold one sequence, or without any bytes where the engine needs them.
    pub fn predict(&self, engine: EngineSpec) -> Result<EnginePrediction, PlanError> {
        (Self { engine: Some(engine.engine), ..*self }).predicted(engine)
    }

    fn predicted(&self, engine: EngineSpec) -> Result<EnginePrediction, PlanError> {
        self.budget.validate().map_err(PlanError::Budget)?;
        let held = self.held_by_engine()?;
        let max_seq_len = self.budget.max_seq_len_for(self.model);
        let load = make::load(self.budget, max_seq_len)?;
        let options = &self.budget.engine;
        let bytes = match options.cache_bytes {
            Some(bytes) => Some(bytes.0),
            None => available_bytes(self, &load)?,
        };
        let draft_tokens = self.budget.speculation.as_ref().map_or(0, |speculation| speculation.draft_tokens.into());
        let description = engine.engine.description();
        if let Some(unread) = held.resources.of_kind(&Kind::CompressedLatent).next().filter(|_| !description.compresses)
        {
            return Err(PlanError::Engine(format!(
                "{}: the rules for compressed attention (`{}`) were not read; nothing is predicted rather than guessed",
                engine.engine, unread.name
            )));
        }
        if let Some(latent) = held.resources.of_kind(&Kind::MlaPaged).next()
            && (description.descriptors)(self.model).is_some()
        {
            return Err(PlanError::Engine(format!(
                "{} keeps a key and a value for every head of {} instead of `{}`; plan with --as {0}",
                engine.engine, self.model.model_type, latent.name
            )));
        }
        let caches = Caches::of(&held, max_seq_len, self.budget.engine_mla_cache(), engine);
        let mut situation = Situation {
            caches,
            load,
            options,
            budget: self.budget,
            model: self.model,
            bytes,
            draft_tokens,
            version: engine.version,
        };
        let predicted = (description.predict)(&situation);
        let mut prediction = predicted.map_err(|error| with_what_is_missing(error, &mut situation, description))?;
        prediction.name = engine.engine.to_string();
        prediction.version = engine.version_name();
        prediction.notes.extend(engine.unread());
        if let (Some(stated), Ok(Some(planned))) = (options.cache_bytes, available_bytes(self, &situation.load))
            && stated.0 != planned
        {
            let (stated, planned) = (stated, ByteSize(planned));
            prediction
                .notes
                .insert(0, format!("for the {stated} that it is said to have, not the {planned} of the plan"));
        }
        if let Some(bytes) = bytes {
            let needed = u128::from(prediction.sequences) * situation.caches.bytes_per_sequence(&situation.load);
            prediction.wasted_bytes = bytes.saturating_sub(u64::try_from(needed).unwrap_or(u64::MAX));
        }
        Ok(prediction)
    }
}

/// vLLM's `max_num_seqs` where nobody states the largest batch.
const USUAL_SEQUENCES: u64 = 256;

/// Bytes that the budget leaves for the caches of an engine, which measures a step of its largest batch; `None` if it
/// states no memory.
pub(crate) fn available_bytes(request: &PlanRequest<'_>, load: &Load) -> Result<Option<u64>, PlanError> {
    let sequences = request.budget.max_batch_size.unwrap_or(USUAL_SEQUENCES).min(load.max_num_tokens);
    let step = StepSize { tokens: load.max_num_tokens, logit_rows: sequences };
    Ok(Room::of(request)?.at(step).map(|memory| memory.paged_share.of(memory.bytes)))
}

/// Bytes that one sequence of the workload needs at least as the engine stores it.
pub(crate) fn bytes_per_sequence(
    request: &PlanRequest<'_>,
    load: &Load,
    engine: EngineSpec,
) -> Result<u128, PlanError> {
    let held = request.held_by_engine()?;
    Ok(Caches::of(&held, load.max_seq_len, request.budget.engine_mla_cache(), engine).bytes_per_sequence(load))
}

/// How many bytes would do where these do not: an engine's own division says that better than a sum of caches.
fn with_what_is_missing(error: PlanError, situation: &mut Situation<'_>, description: &Description) -> PlanError {
    let PlanError::DoesNotFit(mut shortfall) = error else { return error };
    let (available, what) = (shortfall.available, shortfall.capped_by.clone());
    let mut holds = |bytes: u64| {
        situation.bytes = Some(bytes);
        (description.predict)(situation).is_ok()
    };
    let doubled = std::iter::successors(Some(available.max(1)), |bytes| bytes.checked_mul(2));
    let Some(mut enough) = doubled.take_while(|bytes| *bytes <= MOST_BYTES).find(|bytes| holds(*bytes)) else {
        return PlanError::Budget(format!(
            "{}: no bytes hold one sequence of {} tokens; `{what}` is stated too small",
            description.name, shortfall.max_seq_len
        ));
    };
    let mut too_few = available;
    while enough - too_few > 1 {
        let middle = too_few + (enough - too_few) / 2;
        if holds(middle) { enough = middle } else { too_few = middle }
    }
    (shortfall.needed, shortfall.shortfall) = (enough, enough - available);
    PlanError::DoesNotFit(shortfall)
}

/// No engine has more for its caches on one device.
const MOST_BYTES: u64 = 1 << 60;

impl Situation<'_> {
    fn bytes(&self) -> Result<u64, PlanError> {
        let missing = "an engine divides bytes: state `[memory]` (--memory-bytes), a device (--device-memory), or its own cache bytes (--cache-bytes)";
        self.bytes.ok_or_else(|| PlanError::Budget(missing.into()))
    }

    fn prefix_caching(&self) -> bool {
        self.options.prefix_caching.unwrap_or(false)
    }

    /// Not one sequence: `what` is too small.
    fn does_not_fit(&self, what: &str) -> PlanError {
        PlanError::DoesNotFit(Box::new(Shortfall {
            sequences: 1,
            max_seq_len: self.load.max_seq_len,
            needed: 0,
            available: self.bytes.unwrap_or(0),
            shortfall: 0,
            capped_by: what.into(),
            overdrawn: None,
            suggestions: Vec::new(),
        }))
    }
}
