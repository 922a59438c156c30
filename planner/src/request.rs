//! A question, and the plans that answer it.

use std::fmt;
use std::sync::Arc;

use cacheplan_files::Shown;
use cacheplan_handlers::DType;
use cacheplan_transforms::{ModelInfo, Resource, Resources};

use crate::budget::{Budget, Dtypes};
use crate::check::Violation;
use crate::compare::{Comparison, rule_changes};
use crate::config::Config;
use crate::device::DeviceInfo;
use crate::devices::Devices;
use crate::engines::{EnginePrediction, EngineSpec};
use crate::error::{PlanError, Suggestion};
use crate::explain::{Derivation, ExplainError};
use crate::forward_profile::ForwardProfile;
use crate::measured::MeasuredLedger;
use crate::mla_cache::MlaCache;
use crate::model_caches::ModelCaches;
use crate::parallel::{Agreement, Parallel};
use crate::plan::{CachePlan, Fingerprint, LedgerLine, RankPlans};
use crate::size::ByteSize;
use crate::solver::inputs::{Draft, Inputs};
use crate::solver::ledger;
use crate::solver::make;
use crate::stated::Stated;

/// Everything that a plan follows from: a model, a budget, devices, what was measured, the engine that is to run it.
///
/// A request is a value: [`plan`](Self::plan) gives the same plan each time, and a changed copy is another question about
/// the same model, whose passes run again only where the change makes its caches others.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let config = r#"{ "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4,
/// #   "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 256, "max_position_embeddings": 8192 }"#;
/// use cacheplan_planner::{Budget, PlanRequest};
/// use cacheplan_transforms::{Model, ReadOptions};
///
/// let model = Model::read_config("config.json", config, &ReadOptions::default())?;
/// let budget = Budget::from_toml("max_seq_len = 1024\n[memory]\nbytes = '64MiB'", "budget.toml")?;
/// let request = PlanRequest::of(model).with_budget(budget);
/// let plan = request.plan()?;
/// assert_eq!(request.check(&plan), Ok(()));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct PlanRequest {
    model: ModelCaches,
    draft: Option<ModelCaches>,
    config: Config,
    devices: Option<Devices>,
    profile: Option<ForwardProfile>,
    measured: Option<MeasuredLedger>,
    engine: Option<EngineSpec>,
    stage: u32,
    stated: Stated,
    taker: Option<Taker>,
}

/// Who takes a plan, or refuses it.
#[derive(Clone)]
struct Taker(Arc<dyn Fn(&CachePlan) -> bool + Send + Sync>);

impl fmt::Debug for Taker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Taker")
    }
}

impl PlanRequest {
    /// Asks for a plan of a model, or of caches that a framework collected, with a budget that states nothing.
    pub fn of(model: impl Into<ModelCaches>) -> Self {
        Self {
            model: model.into(),
            draft: None,
            config: Config::from(Budget::default()),
            devices: None,
            profile: None,
            measured: None,
            engine: None,
            stage: 0,
            stated: Stated::Keys,
            taker: None,
        }
    }

    /// The same with this budget.
    #[must_use]
    pub fn with_budget(self, budget: Budget) -> Self {
        self.with_config(budget.into())
    }

    /// The same with a budget that says where each of its values came from.
    #[must_use]
    pub fn with_config(self, config: Config) -> Self {
        Self { config, ..self }
    }

    /// The same on these devices. Several are tensor parallel ranks where the budget does not say how they divide the model.
    #[must_use]
    pub fn with_devices(self, devices: impl Into<Devices>) -> Self {
        Self { devices: Some(devices.into()), ..self }
    }

    /// The same with a model that drafts what this one verifies: its caches and weights stand in the same plan.
    #[must_use]
    pub fn with_draft(self, draft: impl Into<ModelCaches>) -> Self {
        Self { draft: Some(draft.into()), ..self }
    }

    /// The same where a forward was profiled: what it showed stands in place of assumptions.
    #[must_use]
    pub fn with_profile(self, profile: ForwardProfile) -> Self {
        Self { profile: Some(profile), ..self }
    }

    /// The same where an engine logged what it takes: each line that it logged stands in place of an assumption.
    #[must_use]
    pub fn with_measured(self, measured: MeasuredLedger) -> Self {
        Self { measured: Some(measured), ..self }
    }

    /// The same for an engine, with the dtypes that it would choose.
    #[must_use]
    pub fn for_engine(self, engine: EngineSpec) -> Self {
        Self { engine: Some(engine), ..self }
    }

    /// The same about a pipeline stage; it is the first one where nobody says.
    #[must_use]
    pub fn of_stage(self, stage: u32) -> Self {
        Self { stage, ..self }
    }

    /// The same for who takes not every plan: only changes are suggested whose plans are taken.
    #[must_use]
    pub fn taken_by(self, takes: impl Fn(&CachePlan) -> bool + Send + Sync + 'static) -> Self {
        Self { taker: Some(Taker(Arc::new(takes))), ..self }
    }

    /// Whether its asker takes a plan.
    pub(crate) fn takes(&self, plan: &CachePlan) -> bool {
        self.taker.as_ref().is_none_or(|Taker(takes)| takes(plan))
    }

    /// The same of a budget that is stated so: changes are suggested in the same way.
    #[must_use]
    pub fn stated_in(self, stated: Stated) -> Self {
        Self { stated, ..self }
    }

    /// The model that it asks about.
    pub fn model(&self) -> &ModelCaches {
        &self.model
    }

    /// The budget as it was stated, with where each value came from.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The engine that is to run the model.
    pub const fn engine(&self) -> Option<EngineSpec> {
        self.engine
    }

    /// The pipeline stage that it asks about.
    pub const fn stage(&self) -> u32 {
        self.stage
    }

    /// One of the devices.
    pub fn device(&self) -> Option<&DeviceInfo> {
        self.devices.as_ref().map(Devices::device)
    }

    /// All of their memory together.
    pub fn device_memory(&self) -> Option<ByteSize> {
        let devices = self.devices.as_ref()?;
        Some(ByteSize(devices.device().total_bytes.saturating_mul(devices.count().into())))
    }

    /// The weights over all ranks, as the budget states them or the model's files tell them.
    pub fn weights(&self) -> Option<ByteSize> {
        let stated = self.config.budget.memory.as_ref().and_then(|memory| memory.weights);
        ledger::told(stated, self.info().weights).map(|weights| ByteSize(weights.size.bytes))
    }

    /// The budget as plans are made of it: several devices divide the model, and a named one has a compute capability where
    /// an engine asks for that.
    ///
    /// # Errors
    /// Another number of ranks than devices, keys that contradict each other, or what is stated of what was measured.
    pub fn budget(&self) -> Result<Budget, PlanError> {
        let stated = &self.config.budget;
        let divided = self.devices.as_ref().map(|devices| devices.divide(&self.config));
        let budget = divided.unwrap_or_else(|| Ok(stated.clone()))?;
        // One that was built in Rust no reader has looked at.
        budget.validate_keys().map_err(PlanError::Budget)?;
        budget.parallel.validate().map_err(|why| PlanError::Stated(Box::new(self.config.blamed(why))))?;
        if let (Some(_), Some(memory)) = (&self.profile, &budget.memory) {
            let lines = [
                ("memory.weights", memory.weights),
                ("memory.activations", memory.activations),
                ("memory.context", memory.context),
            ];
            let stated = lines.into_iter().find(|(_, stated)| stated.is_some());
            stated.map_or(Ok(()), |(key, _)| Err(PlanError::Measured { key }))?;
        }
        // Keys and values of one dtype, however an engine is told it, are what the pools hold too.
        let keys = budget.engine.cache_type_k.filter(|keys| Some(*keys) == budget.engine.cache_type_v);
        let kv = budget.dtypes.kv.or(keys.filter(|_| self.engine.is_some()));
        let budget = Budget { dtypes: Dtypes { kv, ..budget.dtypes }, ..budget };
        Ok(match (self.engine, self.device()) {
            // Engines choose kernels and dtypes by the GPU that is named.
            (Some(_), Some(device)) => budget.on(device),
            _ => budget,
        })
    }

    /// What is taken for granted, and what is stated and yet may not be meant, one sentence each.
    pub fn notes(&self) -> Vec<String> {
        let info = self.model.info();
        let mut notes = self.config.budget.notes(info);
        let of_devices = self.devices.as_ref().map(|devices| devices.notes(&self.config, self.stated));
        // Devices that do not divide the model are an error of the plan.
        notes.extend(of_devices.and_then(Result::ok).unwrap_or_default());
        notes.extend(self.unpaged());
        let Some(model) = self.model.model() else { return notes };
        notes.extend(model.doubts.iter().cloned());
        notes.extend(self.config.budget.unreached_windows(model));
        if let (None, Some(why), true) = (info.weights, &model.weights_unknown, self.needs_weights()) {
            notes.push(format!("the size of the weights is not known: {why}"));
        }
        notes
    }

    /// What is stated of pages beside a model that has none.
    fn unpaged(&self) -> Option<String> {
        let budget = &self.config.budget;
        let keys = [("tokens_per_block", budget.tokens_per_block.is_some()), ("layout", budget.layout.is_some())];
        let (key, _) = keys.into_iter().find(|(_, stated)| *stated)?;
        let is_paged = self.caches().ok()?.iter().any(|cache| cache.handler.is_paged());
        (!is_paged).then(|| format!("`{key}` says nothing of a model without paged caches"))
    }

    /// Whether what is left for caches depends on the weights, and nobody says their size.
    fn needs_weights(&self) -> bool {
        let memory = self.config.budget.memory.as_ref();
        let is_said = memory.is_some_and(|memory| memory.bytes.is_some() || memory.weights.is_some());
        self.devices.is_some() && self.profile.is_none() && self.measured.is_none() && !is_said
    }

    /// Tokens of one sequence of the workload: its prompt and output where they are stated, else the longest.
    ///
    /// # Errors
    /// A budget that contradicts itself.
    pub fn tokens_per_sequence(&self) -> Result<u64, PlanError> {
        let budget = self.budget()?;
        Ok(make::load(&budget, budget.max_seq_len_for(self.info()))?.tokens_per_sequence())
    }

    /// The caches of the model on all ranks, as the passes give them.
    ///
    /// # Errors
    /// An op that cannot be described, or that keeps state nobody knows how to cache.
    pub fn caches(&self) -> Result<Arc<Resources>, PlanError> {
        self.model.collect(&self.budget()?, self.engine)
    }

    /// Plans the caches of a rank of its stage: who owns each, how large each pool is, and why.
    ///
    /// # Errors
    /// A budget that does not hold one sequence, that contradicts itself, or that the grouping policy cannot serve; where a
    /// change would do, the error says which.
    pub fn plan(&self) -> Result<CachePlan, PlanError> {
        self.ranks()?.into_stage(self.stage)
    }

    /// Plans every pipeline stage, all sized for what the poorest can serve.
    ///
    /// # Errors
    /// As [`plan`](Self::plan), or sizes that do not divide the model.
    pub fn ranks(&self) -> Result<RankPlans, PlanError> {
        let _span = tracing::debug_span!("planning").entered();
        self.made().map_err(|error| match error {
            PlanError::DoesNotFit(mut shortfall) => {
                shortfall.suggestions = self.suggestions();
                PlanError::DoesNotFit(shortfall)
            }
            PlanError::Budget(why) => PlanError::Budget(why + &self.another_layout()),
            PlanError::Layout(why) => PlanError::Layout(why + &self.another_layout()),
            PlanError::Stated(mut error) => {
                error.message += &self.another_layout();
                PlanError::Stated(error)
            }
            error => error,
        })
    }

    /// The same without suggestions where it does not fit.
    pub(crate) fn made(&self) -> Result<RankPlans, PlanError> {
        make::make_all(&self.settled()?.inputs())
    }

    /// What would let more sequences run at once than `plan`, its plan, does: one change each, those that
    /// admit the most first. None where no memory is stated.
    pub fn knobs(&self, plan: &CachePlan) -> Vec<Suggestion> {
        let _span = tracing::debug_span!("knobs").entered();
        self.budget().map(|budget| self.larger(&budget, plan)).unwrap_or_default()
    }

    /// What is missing where `max_batch_size` asks for more sequences than `plan`, its plan, holds.
    pub fn missing(&self, plan: &CachePlan) -> Option<String> {
        let held = plan.capacity.sequences;
        let settled = self.settled().ok()?;
        let asked = settled.budget.max_batch_size.filter(|asked| *asked > held)?;
        // A larger step leaves less.
        let (needed, there) = make::beside(&settled.inputs(), asked).ok()?;
        let there = there?.bytes;
        let short = needed.checked_sub(there).filter(|short| *short > 0)?;
        let [needed, there, short] = [needed, there, short].map(ByteSize);
        Some(format!(
            "max_batch_size {asked} was asked for, and {held} fit: caches of {asked} need {needed}, {there} are there; short of {short}"
        ))
    }

    /// Explains `capacity`, `host`, or the resource, pool, ledger line or layer number that `subject` names, in `plan`,
    /// its plan.
    ///
    /// # Errors
    /// A name that is not in the plan, or a request that cannot be planned.
    pub fn explain(&self, plan: &CachePlan, subject: &str) -> Result<Derivation, ExplainError> {
        self.settled()?.inputs().explain(plan, subject)
    }

    /// Proves that `plan` is right for this request: coverage, layout, sizes, capacity, maximality and ledger. Of several
    /// pipeline stages it is held to the one whose fingerprint it bears.
    ///
    /// # Errors
    /// Everything that is not as it must be.
    pub fn check(&self, plan: &CachePlan) -> Result<(), Vec<Violation>> {
        let unreadable = |error: PlanError| vec![Violation::unreadable(&error)];
        let settled = self.settled().map_err(unreadable)?;
        let stages = settled.stages().map_err(unreadable)?;
        let own = stages.iter().find(|inputs| inputs.fingerprint() == plan.fingerprint);
        own.or(stages.first()).map_or(Ok(()), |inputs| inputs.check(plan))
    }

    /// The pipeline stage whose plan bears the fingerprint of `plan`; `None` where it was made of something else.
    ///
    /// # Errors
    /// As [`ranks`](Self::ranks).
    pub fn stage_of(&self, plan: &CachePlan) -> Result<Option<u32>, PlanError> {
        let settled = self.settled()?;
        let stages = settled.stages()?;
        Ok((0..).zip(&stages).find(|(_, inputs)| inputs.fingerprint() == plan.fingerprint).map(|(stage, _)| stage))
    }

    /// What its plan bears, and no other: a plan with another fingerprint was made of something else.
    ///
    /// # Errors
    /// As [`plan`](Self::plan).
    pub fn fingerprint(&self) -> Result<Fingerprint, PlanError> {
        let settled = self.settled()?;
        let (stages, last) = (settled.stages()?, settled.budget.parallel.pp.saturating_sub(1));
        let own = stages.get(self.stage as usize).ok_or(PlanError::NoStage { stage: self.stage, last })?;
        Ok(own.fingerprint())
    }

    /// Predicts what `engine` would allocate for the model and budget of this request.
    ///
    /// # Errors
    /// A budget that does not hold one sequence, or without any bytes where the engine needs them; an option that the
    /// engine does not consume, and what it refuses.
    pub fn predict(&self, engine: EngineSpec) -> Result<EnginePrediction, PlanError> {
        self.clone().for_engine(engine).settled()?.inputs().predict(engine)
    }

    /// Bytes that `engine` has for its caches: at least, as they are taken to be, and at most. They are one number where they are
    /// stated, and none where the budget states no memory.
    ///
    /// # Errors
    /// As [`predict`](Self::predict).
    pub fn cache_bytes(&self, engine: EngineSpec) -> Result<Option<[u64; 3]>, PlanError> {
        self.clone().for_engine(engine).settled()?.inputs().bytes_between(engine)
    }

    /// What the engine has beside its caches, line by line, while it measures its largest step.
    ///
    /// # Errors
    /// As [`predict`](Self::predict).
    pub fn beside_caches(&self, engine: EngineSpec) -> Result<Vec<LedgerLine>, PlanError> {
        self.clone().for_engine(engine).settled()?.inputs().beside_caches()
    }

    /// Compares `by-key` with `engine` at the same bytes, both with the dtypes that the engine would choose.
    ///
    /// Both keep the same features on; our blocks are at most as large as the engine's.
    ///
    /// # Errors
    /// A budget without memory, whose memory other things than caches take up, or that contradicts itself. What does not
    /// fit into memory that is left counts as no sequences.
    pub fn compare(&self, engine: EngineSpec) -> Result<Comparison, PlanError> {
        let asked = self.clone().for_engine(engine);
        match asked.settled()?.inputs().compare(engine)? {
            Some(row) => Ok(row),
            // Beside weights that leave nothing there is nothing to compare; the plan's own error says so.
            None => Err(asked.ranks().err().unwrap_or(PlanError::Budget("no bytes are left for caches".into()))),
        }
    }

    /// Compares with each of these engines, and says of a version behind another one of the same engine which rules make them
    /// differ.
    ///
    /// # Errors
    /// As [`compare`](Self::compare).
    pub fn compare_all(&self, engines: &[EngineSpec]) -> Result<Vec<Comparison>, PlanError> {
        let mut rows: Vec<Comparison> = Vec::with_capacity(engines.len());
        for (at, &engine) in engines.iter().enumerate() {
            let mut row = self.compare(engine)?;
            if let Some(&before) = at.checked_sub(1).and_then(|before| engines.get(before)) {
                row.changes = self.rule_changes(before, engine)?;
            }
            rows.push(row);
        }
        Ok(rows)
    }

    /// Which of an engine's rules make `one` of its versions differ from `other` here, oldest first, each with what it did;
    /// empty of two engines.
    ///
    /// # Errors
    /// As [`compare`](Self::compare).
    pub fn rule_changes(&self, one: EngineSpec, other: EngineSpec) -> Result<Vec<String>, PlanError> {
        rule_changes(one, other, |engine| self.compare(engine))
    }

    /// The same with another budget, of which `change` is what differs from the stated one. Nobody says any more where its
    /// values came from.
    #[must_use]
    pub fn changed(&self, change: impl FnOnce(&mut Budget)) -> Self {
        let mut budget = self.config.budget.clone();
        change(&mut budget);
        self.clone().with_budget(budget)
    }

    /// The same divided otherwise, over as many devices as that takes where their number is stated.
    pub(crate) fn divided(&self, parallel: Parallel) -> Self {
        let ranks = u32::try_from(parallel.world_size()).unwrap_or(u32::MAX);
        let counted = |devices: &Devices| if devices.count() > 1 { devices.times(ranks) } else { devices.clone() };
        let devices = self.devices.as_ref().map(counted);
        Self { devices, ..self.changed(|budget| budget.parallel = parallel) }
    }

    /// The caches that a rank would hold if there were no other, those of drafts included, and which are those.
    pub(crate) fn undivided(&self) -> Result<Vec<(Resource, bool)>, PlanError> {
        let whole = self.divided(Parallel::default()).of_stage(0);
        let settled = whole.settled()?;
        let held = settled.inputs().held()?;
        Ok(held.iter().map(|(resource, drafts)| (resource.clone(), drafts)).collect())
    }

    /// How many devices are taken for tensor parallel ranks where nobody says how they divide the model.
    pub(crate) fn assumes_ranks(&self) -> Option<u32> {
        self.devices.as_ref().filter(|devices| devices.assumes_ranks(&self.config)).map(Devices::count)
    }

    /// One of the devices in the user's words, where their number was stated with it.
    pub(crate) fn counted_device(&self) -> Option<&str> {
        self.devices.as_ref().and_then(Devices::word)
    }

    pub(crate) const fn stated(&self) -> Stated {
        self.stated
    }

    /// The element types of keys and values and of recurrent states in other widths.
    pub(crate) fn stored_in(&self, kv: Option<DType>, state: Option<DType>) -> Self {
        self.changed(|budget| {
            budget.dtypes.kv = kv.or(budget.dtypes.kv);
            budget.dtypes.ssm = state.or(budget.dtypes.ssm);
        })
    }

    /// Refuses what is stated of caches that the model does not keep.
    fn refuse_untaken(&self, budget: &Budget, caches: &Resources) -> Result<(), PlanError> {
        let models: Vec<&ModelCaches> = [&self.model].into_iter().chain(&self.draft).collect();
        let latents = ("engine.mla_cache", "--mla-cache");
        let of_latents = budget.engine.mla_cache.filter(|_| !MlaCache::is_for(caches)).map(|_| latents);
        let untaken = of_latents.or_else(|| ModelCaches::untaken_dtype(&models, budget, self.engine));
        let model_type = Shown(&self.info().model_type);
        untaken.map_or(Ok(()), |(key, flag)| {
            let why =
                format!("`{key}` ({flag}) is stated, but a {model_type} keeps no cache that takes it; leave it out");
            Err(PlanError::Unconsumed { key, why })
        })
    }

    pub(crate) fn info(&self) -> &ModelInfo {
        self.model.info()
    }

    /// Divides and walks the model, once for all of its stages.
    pub(crate) fn settled(&self) -> Result<Settled<'_>, PlanError> {
        let budget = self.budget()?;
        let caches = self.model.collect(&budget, self.engine)?;
        if let Some(mode) = budget.mla_cache_mode
            && !MlaCache::is_for(&caches)
        {
            return Err(PlanError::NoLatents { mode: mode.name(), model_type: self.info().model_type.clone() });
        }
        self.refuse_untaken(&Budget { dtypes: self.config.budget.dtypes, ..budget.clone() }, &caches)?;
        let of_draft = |draft: &ModelCaches| draft.collect(&budget, self.engine);
        let draft_caches = self.draft.as_ref().map(of_draft).transpose()?;
        Ok(Settled { request: self, budget, caches, draft_caches })
    }
}

/// A request whose model is divided and walked.
pub(crate) struct Settled<'r> {
    request: &'r PlanRequest,
    pub(crate) budget: Budget,
    caches: Arc<Resources>,
    draft_caches: Option<Arc<Resources>>,
}

impl Settled<'_> {
    /// What the plan of the stage that is asked about follows from.
    pub(crate) fn inputs(&self) -> Inputs<'_> {
        self.inputs_of(self.request.stage, None)
    }

    /// The same of any stage, with what the ranks of all of them agree on.
    pub(crate) fn inputs_of(&self, stage: u32, agreement: Option<Agreement>) -> Inputs<'_> {
        let request = self.request;
        let draft = request.draft.as_ref().zip(self.draft_caches.as_deref());
        Inputs {
            device: request.device(),
            measurement: request.profile.as_ref(),
            measured: request.measured.as_ref(),
            draft: draft.map(|(draft, resources)| Draft { model: draft.info(), resources }),
            stage,
            agreement,
            step: request.model.step(),
            prediction: request.model.model().map_or_else(Default::default, |model| model.prediction),
            divisible: request.model.divisible(),
            engine: request.engine.map(EngineSpec::assumptions),
            stated: request.stated,
            ..Inputs::new(request.info(), &self.caches, &self.budget)
        }
    }

    /// The same for all stages, with what their ranks agree on.
    fn stages(&self) -> Result<Vec<Inputs<'_>>, PlanError> {
        let pp = self.budget.parallel.pp;
        let agreement = (pp > 1).then(|| make::make_all(&self.inputs())).transpose()?;
        let agreement = agreement.map(|ranks| ranks.agreement);
        Ok((0..pp).map(|stage| self.inputs_of(stage, agreement)).collect())
    }
}
