//! Asks an engine's rules what it would allocate for a request.

use cacheplan_handlers::{DType, Growth, Kind};
use cacheplan_transforms::Resource;

use super::caches::{Caches, is_beside};
use super::prediction::EnginePrediction;
use super::registry::{Engine, EngineSpec};
use super::rules::EngineRules;
use super::situation::{Situation, Stage};
use crate::budget::Budget;
use crate::error::{EngineRefusal, PlanError};
use crate::plan::LedgerLine;
use crate::size::ByteSize;
use crate::solver::demand::Load;
use crate::solver::inputs::{Inputs, RankResources};
use crate::solver::make;
use crate::solver::room::Room;
use crate::solver::step::StepSize;

impl Inputs<'_> {
    /// What [`PlanRequest::predict`](crate::request::PlanRequest::predict) says, of resources as the engine stores them.
    pub(crate) fn predict(&self, engine: EngineSpec) -> Result<EnginePrediction, PlanError> {
        Engine::refuse_unconsumed(&[engine], self.budget)?;
        self.predict_among(engine)
    }

    /// The same of one engine of several: what it does not consume another may.
    pub(crate) fn predict_among(&self, engine: EngineSpec) -> Result<EnginePrediction, PlanError> {
        engine.engine.refuse_divided_tokens(self.budget.parallel)?;
        let mut stated = self.budget.engine.clone();
        // What an export says to the engine too.
        stated.block_size = stated.block_size.or(self.budget.tokens_per_block);
        let options = stated.only(engine.engine.rules().consumes);
        let budget = Budget { engine: options, ..self.budget.clone() };
        let budget = self.device.map_or_else(|| budget.clone(), |device| budget.on(device));
        budget.validate().map_err(PlanError::Budget)?;
        let parallel = budget.parallel;
        parallel.validate().map_err(PlanError::Budget)?;
        let max_seq_len = budget.max_seq_len_for(self.model);
        let load = make::load(&budget, max_seq_len)?;
        let of_stages: Vec<Inputs<'_>> = (0..parallel.pp)
            .map(|stage| Inputs { engine: Some(engine.assumptions()), budget: &budget, stage, ..*self })
            .collect();
        let held: Vec<RankResources<'_>> = of_stages.iter().map(Inputs::held_by_engine).collect::<Result<_, _>>()?;
        let rules = engine.engine.rules();
        let mut stages = Vec::with_capacity(held.len());
        for (request, held) in of_stages.iter().zip(&held) {
            let caches = Caches::of(held, &self.model.model_type, max_seq_len, &budget, rules.storage, engine.version);
            stages.push(Stage { caches, bytes: request.engine_bytes(&load)? });
        }
        let last = parallel.pp.saturating_sub(1);
        let own = of_stages.get(self.stage as usize).ok_or(PlanError::NoStage { stage: self.stage, last })?;
        own.predict_beside(engine, &held, &stages, &load)
    }

    /// What the engine allocates on this stage, beside what all of them hold.
    fn predict_beside(
        &self,
        engine: EngineSpec,
        held: &[RankResources<'_>],
        stages: &[Stage<'_>],
        load: &Load,
    ) -> Result<EnginePrediction, PlanError> {
        let stage = self.stage as usize;
        let Stage { caches, bytes } = stages[stage].clone();
        let (rules, options) = (engine.engine.rules(), &self.budget.engine);
        let draft_tokens = self.budget.speculation.as_ref().map_or(0, |speculation| speculation.draft_tokens.into());
        let resources = || held.iter().flat_map(|held| held.resources.iter());
        let of_kind = |kind: &Kind| resources().find(|resource| resource.handler.kind() == kind);
        let name = rules.name;
        if let Some(refusal) = engine.lacks(self.model) {
            return Err(refusal.into());
        }
        let of_several_tokens = |resource: &&Resource| {
            let strided = matches!(resource.handler.growth(), Growth::Paged { stride: 2.., .. });
            strided || *resource.handler.kind() == Kind::CompressedLatent
        };
        // A ring of what an entry is formed of, or a convolution beside attention, which engines keep as pages or not at all.
        let beside = |resource: &&Resource| {
            let is_ring = resource.handler.as_ring().is_some() && !rules.forms_entries;
            is_ring || (is_beside(&resource.handler) && !(rules.convolves)(&self.model.model_type))
        };
        let compressed = resources().find(of_several_tokens).filter(|_| !rules.compresses);
        if let Some(unread) = compressed.or_else(|| resources().find(beside)) {
            return Err(EngineRefusal::Unread { engine: name, cache: unread.name.clone() }.into());
        }
        let told = engine.kv_dtypes(options.compute_capability);
        // An engine can be told to run a model in either float of 16 bits, which its keys and values follow.
        let own = [self.model.dtype, DType::Bf16, DType::F16];
        let is_kept = |dtype: DType| own.contains(&dtype) || told.contains(&dtype);
        // Records of compressed attention are the engine's own.
        let is_record =
            |resource: &Resource| *resource.handler.kind() != Kind::IndexKey && of_several_tokens(&resource);
        let packed = rules.forms_entries && resources().any(is_record);
        let kept = resources().filter(|resource| resource.handler.kind().is_kv() && !packed);
        let planned = kept.map(|resource| resource.handler.dtype());
        let stated = [options.cache_type_k, options.cache_type_v];
        if let Some(dtype) = planned.chain(stated.into_iter().flatten()).find(|dtype| !is_kept(*dtype)) {
            let version = engine.version_name();
            return Err(EngineRefusal::KvDType { engine: name, version, dtype, told }.into());
        }
        if let Some(latent) = of_kind(&Kind::MlaPaged)
            && (rules.descriptors)(self.model).is_some()
        {
            let (model, cache) = (self.model.model_type.clone(), latent.name.clone());
            return Err(EngineRefusal::KeepsHeads { engine: name, model, cache }.into());
        }
        let mut situation = Situation {
            caches,
            stages: stages.to_vec(),
            stage,
            load: load.clone(),
            options,
            budget: self.budget,
            device: self.device,
            model: self.model,
            bytes,
            draft_tokens,
            step: self.step,
            version: engine.version,
            stated: self.stated,
        };
        if let Some(refusal) = (rules.refuses)(&situation) {
            return Err(refusal.into());
        }
        let predicted = (rules.predict)(&situation);
        let mut prediction = predicted.map_err(|error| with_what_is_missing(error, &mut situation, rules))?;
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

    /// Bytes that the engine has for its caches on this stage.
    fn engine_bytes(&self, load: &Load) -> Result<Option<u64>, PlanError> {
        match self.budget.engine.cache_bytes {
            Some(bytes) => Ok(Some(bytes.0)),
            None => available_bytes(self, load),
        }
    }
}

/// vLLM's `max_num_seqs` where nobody states the largest batch.
const USUAL_SEQUENCES: u64 = 256;

/// Bytes that the budget leaves for the caches of an engine, which measures a step of its largest batch; `None` if it
/// states no memory.
pub(crate) fn available_bytes(request: &Inputs<'_>, load: &Load) -> Result<Option<u64>, PlanError> {
    Ok(Room::of(request)?.at(measured_step(request, load)).map(|memory| memory.paged_share.of(memory.bytes)))
}

/// The step that an engine measures.
fn measured_step(request: &Inputs<'_>, load: &Load) -> StepSize {
    let sequences = request.budget.max_batch_size.unwrap_or(USUAL_SEQUENCES).min(load.max_num_tokens);
    StepSize { tokens: load.max_num_tokens, logit_rows: sequences }
}

impl Inputs<'_> {
    /// The same at least, as it is taken to be, and at most: what nobody stated or measured is not known exactly.
    pub(crate) fn bytes_between(&self, engine: EngineSpec) -> Result<Option<[u64; 3]>, PlanError> {
        let assumed = Inputs { engine: Some(engine.assumptions()), ..*self };
        let load = make::load(self.budget, self.budget.max_seq_len_for(self.model))?;
        Ok(match self.budget.engine.cache_bytes {
            Some(bytes) => Some([bytes.0; 3]),
            None => Room::of(&assumed)?.between(measured_step(self, &load)),
        })
    }

    /// What is there beside caches while the engine measures a step, line by line.
    pub(crate) fn beside_caches(&self) -> Result<Vec<LedgerLine>, PlanError> {
        let load = make::load(self.budget, self.budget.max_seq_len_for(self.model))?;
        Ok(Room::of(self)?.ledger(measured_step(self, &load)).lines)
    }
}

/// Bytes that one sequence of the workload needs at least as the engine stores it.
pub(crate) fn bytes_per_sequence(request: &Inputs<'_>, load: &Load, engine: EngineSpec) -> Result<u128, PlanError> {
    let held = request.held_by_engine()?;
    let caches = Caches::of(
        &held,
        &request.model.model_type,
        load.max_seq_len,
        request.budget,
        engine.engine.rules().storage,
        engine.version,
    );
    Ok(caches.bytes_per_sequence(load))
}

/// How many bytes would do where these do not: an engine's own division says that better than a sum of caches.
fn with_what_is_missing(error: PlanError, situation: &mut Situation<'_>, rules: &EngineRules) -> PlanError {
    let PlanError::DoesNotFit(mut shortfall) = error else { return error };
    let (available, what) = (shortfall.available, shortfall.capped_by.clone());
    let mut holds = |bytes: u64| {
        situation.bytes = Some(bytes);
        situation.stages.iter_mut().for_each(|stage| stage.bytes = Some(bytes));
        (rules.predict)(situation).is_ok()
    };
    let doubled = std::iter::successors(Some(available.max(1)), |bytes| bytes.checked_mul(2));
    let Some(mut enough) = doubled.take_while(|bytes| *bytes <= MOST_BYTES).find(|bytes| holds(*bytes)) else {
        // Stated counts are what is too small, and the engine says what they would have to give.
        if shortfall.needed > available {
            shortfall.shortfall = shortfall.needed - available;
            return PlanError::DoesNotFit(shortfall);
        }
        let length = shortfall.max_seq_len;
        let said = format!("no bytes hold one sequence of {length} tokens; `{what}` is stated too small");
        return PlanError::TooFew { engine: rules.name, said };
    };
    let mut too_few = available;
    while enough - too_few > 1 {
        let middle = too_few + (enough - too_few) / 2;
        if holds(middle) { enough = middle } else { too_few = middle }
    }
    // What a sequence needs may leave out what is never used.
    shortfall.needed = if shortfall.needed > 0 { shortfall.needed } else { enough };
    shortfall.shortfall = enough - available;
    PlanError::DoesNotFit(shortfall)
}

/// No engine has more for its caches on one device.
const MOST_BYTES: u64 = 1 << 60;
