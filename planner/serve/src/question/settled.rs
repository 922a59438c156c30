//! What an engine makes of a question once the model is known.

use std::sync::Arc;

use cacheplan_planner::engines::{FlagMeaning, Version};
use cacheplan_planner::logs::failures::FEW_DEVICES;
use cacheplan_planner::plan::{Certainty, LedgerItem, LedgerLine};
use cacheplan_planner::{Budget, Config, Devices, Memory, ModelCaches, PlanError, PlanRequest, Stated};
use cacheplan_transforms::Resources;

use super::placed::{self, Placed};
use super::{Limits, Models, Question, above, llama_cpp, sglang, tensorrt_llm, vllm};
use crate::error::ServeError;
use crate::flags::meaning::{Meaning, meaning};
use crate::flags::parse::Setting;
use crate::manifest::GROUP;
use crate::remedy::Remedy;
use crate::visible;

/// What the engine makes of the question once the model is known.
pub(crate) struct Settled {
    pub(crate) request: PlanRequest,
    /// As the engine's log says them.
    pub(crate) limits: Limits,
    /// vLLM finds the longest sequence that fits.
    pub(crate) fits_length: bool,
    /// Blocks that there are at least, of a model with states, where it starts.
    pub(crate) least_blocks: u64,
    /// The most sequences that vLLM runs at once of those that a step has room for, where it is told.
    pub(crate) most_running: Option<u64>,
    /// Bytes that weights and what is stated beside them leave of a device, where the command states what caches take of it, which no
    /// profile limits.
    pub(crate) room: Option<u64>,
    /// What llama.cpp needs on its devices, and does where they do not hold it.
    pub(crate) placed: Option<Placed>,
    /// The same with the weights that it loads, where it quantises them only then.
    pub(crate) loaded: Option<PlanRequest>,
    /// What SGLang needs of a device beside its share for weights and caches.
    pub(crate) outside: Option<sglang::Outside>,
}

impl Question {
    /// The limits that the engine starts with for the model, and all that the command says as a question to the planner.
    ///
    /// # Errors
    /// What the engine refuses of the model.
    pub fn request(&self, models: &Models) -> Result<(Limits, PlanRequest), ServeError> {
        let (_, settled) = self.clone().settled(models)?;
        Ok((settled.limits, settled.request))
    }

    /// Refuses more tokens of a sequence, or more sequences, than the command states itself; each by the flag of whoever asks.
    ///
    /// # Errors
    /// The first that is above the command's own, with the engine's flag for it.
    pub fn refuse_beyond(&self, tokens: (&str, Option<u64>), sequences: (&str, Option<u64>)) -> Result<(), ServeError> {
        let engine = self.engine.engine;
        let of_replicas =
            [(tokens, engine.length_flag(), 1), (sequences, engine.sequences_flag(), self.whole_replicas())];
        for ((flag, asked), own, replicas) in of_replicas {
            if let (Some(asked), Some(stated)) = (asked, self.count(own).filter(|stated| *stated > 0))
                && asked > stated.saturating_mul(replicas)
            {
                let each = if replicas > 1 { format!(" on each of {replicas} replicas") } else { String::new() };
                let why = format!("{asked} is above what the command states itself: {own} {stated}{each}");
                return Err(ServeError::Unconsumed { flag: flag.to_owned(), why });
            }
        }
        Ok(())
    }

    /// What the engine makes of it for a model.
    pub(crate) fn settled(mut self, Models { model, draft }: &Models) -> Result<(Self, Settled), ServeError> {
        let settle = match self.engine.engine.name() {
            "vllm" => vllm::settle,
            "sglang" => sglang::settle,
            "tensorrt-llm" => tensorrt_llm::settle,
            _ => llama_cpp::settle,
        };
        self.model_type.clone_from(&model.info().model_type);
        let (mut limits, fits_length) = settle(&mut self, model)?;
        if let (Some(draft), "vllm") = (draft, self.engine.engine.name()) {
            limits = vllm::with_draft(&mut self, model, draft, limits)?;
        }
        above::refuse_unconsumed(&self)?;
        above::beside_stated_bytes(&mut self);
        let engine = self.engine.engine.name();
        let above = self.above.clone();
        let placed = if engine == "llama.cpp" { Some(placed::placed(&mut self, model)?) } else { None };
        let outside = if engine == "sglang" { sglang::beside_share(&mut self)? } else { Memory::default() };
        self.leave_out_dtypes(model);
        self.refuse_layout()?;
        let mut config = Config::resolve(None, &self.stated, &self.above)?;
        // What an engine that divides no bytes has taken out of its question is stated all the same.
        for taken in above.iter().filter(|stated| !self.above.contains(stated)) {
            let setting = config.settings.iter_mut().find(|setting| setting.key == taken.key);
            setting.into_iter().for_each(|setting| setting.origin = taken.origin.clone());
        }
        let of_model = |model: ModelCaches| {
            let request = PlanRequest::of(model).with_config(config.clone());
            let request = request.for_engine(self.engine).stated_in(Stated::Command);
            self.devices.iter().cloned().fold(request, PlanRequest::with_devices)
        };
        let loaded = self.loads_in_full.then(|| of_model(model.clone()));
        let mut request = of_model(self.weights.map_or_else(|| model.clone(), |weights| model.with_weights(weights)));
        let as_run =
            |draft: &ModelCaches| if engine == "vllm" { vllm::as_run(&self, draft) } else { Ok(Some(draft.clone())) };
        request = draft
            .iter()
            .filter_map(|draft| as_run(draft).transpose())
            .collect::<Result<Vec<_>, _>>()?
            .into_iter()
            .fold(request, PlanRequest::with_draft);
        request = self.measured.iter().cloned().fold(request, PlanRequest::with_measured);
        let outside = if engine == "sglang" { sglang::outside(&self, &request, &outside)? } else { None };
        let least_blocks = if engine == "vllm" { vllm::look_at_caches(&mut self, &request, &limits)? } else { 0 };
        let states = |key: &str| self.stated.iter().any(|stated| stated.key == key);
        let limitless = states("engine.num_blocks") || states("engine.cache_bytes");
        let room = if limitless { self.room(&request)? } else { None };
        let most_running = match engine {
            "vllm" => vllm::most_running(&self),
            "sglang" => sglang::most_running(&self),
            _ => None,
        };
        Ok((self, Settled { request, limits, fits_length, least_blocks, most_running, room, placed, loaded, outside }))
    }

    /// Tokens of a step as its log says them; none where it is told not to cut prompts, and says no number of them.
    pub(crate) fn logged_step(&self, limits: &Limits) -> Option<u64> {
        match self.engine.engine.name() {
            "vllm" if !vllm::cuts_prompts(self) => None,
            "sglang" => match self.flag(sglang::CHUNK).and_then(Setting::whole) {
                Some(stated) if stated <= 0 => u64::try_from(stated).ok(),
                _ => Some(limits.max_num_tokens),
            },
            _ => Some(limits.max_num_tokens),
        }
    }

    /// Engines refuse the division over ranks that the planner has none of, in words of their own.
    fn refuse_layout(&self) -> Result<(), ServeError> {
        let parallel = Config::parallel(&self.stated)?;
        let stated = self.parsed.settings.values().map(|setting| setting.flag);
        let divides = stated.filter(|flag| match meaning(self.engine.engine, flag) {
            Meaning::Key(path) | Meaning::Planner(FlagMeaning::Key(path)) => path.starts_with("parallel."),
            _ => false,
        });
        let remedies: Vec<Remedy> = divides.map(|flag| Remedy::Remove(flag.name)).collect();
        parallel.validate().map_err(|said| self.refused(said, remedies))
    }

    /// What weights leave of a device, and what is stated or measured beside them: what is assumed may be less.
    fn room(&self, request: &PlanRequest) -> Result<Option<u64>, ServeError> {
        let Some(device) = self.device() else { return Ok(None) };
        let lines = request.beside_caches(self.engine)?;
        let is_stated = |name: &str| self.above.iter().any(|stated| stated.key == format!("memory.{name}"));
        let counts = |line: &&LedgerLine| {
            line.name == LedgerItem::Weights || line.source == Certainty::Measured || is_stated(line.name.name())
        };
        let least = lines.iter().filter(counts).map(|line| line.bytes.saturating_sub(line.uncertain_bytes));
        Ok(Some(least.fold(device.total_bytes, u64::saturating_sub)))
    }

    /// The caches of the model as the engine keeps them.
    pub(super) fn caches(&self, model: &ModelCaches) -> Result<Arc<Resources>, ServeError> {
        Ok(PlanRequest::of(model.clone()).for_engine(self.engine).caches()?)
    }

    /// An engine takes dtypes from whoever has no caches of them; what is asked of the planner leaves those out.
    fn leave_out_dtypes(&mut self, model: &ModelCaches) {
        let engine = self.engine;
        let is_taken = |key: &str| model.takes_dtype(key, &Budget::default(), Some(engine));
        self.stated.retain(|stated| !stated.key.starts_with("dtypes.") || is_taken(&stated.key));
    }

    /// What the engine says of a count that is stated too small, with the flags of counts as what may be left out.
    pub(crate) fn without_counts(&self, error: ServeError) -> ServeError {
        const COUNTS: [&str; 4] =
            ["--max-total-tokens", "--num-gpu-blocks-override", "--max-mamba-cache-size", "--swa-full-tokens-ratio"];
        match error {
            ServeError::Plan(PlanError::TooFew { said, .. }) => {
                let stated = COUNTS.into_iter().filter(|flag| self.flag(flag).is_some());
                self.refused(said, stated.map(Remedy::Remove).collect::<Vec<_>>())
            }
            error => error,
        }
    }

    /// A variable that divides layers over pipeline stages otherwise than they are planned.
    pub(crate) fn refuse_partition(&self, variable: &'static str, stages: &str) -> Result<(), ServeError> {
        let several = self.count(stages).unwrap_or(1) > 1;
        if !several || !self.env.contains_key(variable) {
            return Ok(());
        }
        let why = "stages of other layers than the engine's own division gives are not planned".to_owned();
        Err(ServeError::NotHandled { flag: variable.into(), why, remedies: Vec::new() })
    }

    /// Refuses ranks over which `whole` cannot be divided, such as the attention heads, in the engine's words.
    pub(super) fn divides(
        &self,
        whole: Option<u64>,
        flag: &'static str,
        ranks: u64,
        said: impl Fn(u64) -> String,
    ) -> Result<(), ServeError> {
        let Some(whole) = whole.filter(|whole| !whole.is_multiple_of(ranks)) else { return Ok(()) };
        let fewer = (1..ranks.min(whole + 1)).rev().filter(|fewer| whole.is_multiple_of(*fewer)).take(3);
        Err(self.refused(said(whole), fewer.map(|fewer| Remedy::Set(flag, fewer.to_string()))))
    }

    /// States several devices as the ranks that the flags ask for, which the planner would else take for tensor parallel ones.
    pub(crate) fn use_devices(&mut self, ranks: u64) -> Result<(), ServeError> {
        // More than a usual node has are those of all nodes together.
        let stated = |flag: &str| self.count(flag).unwrap_or(1).max(1);
        let local = self.count("--data-parallel-size-local").filter(|local| *local > 0);
        // Replicas that are not this node's are those of as many others.
        let of_replicas = local.map_or(1, |local| stated("--data-parallel-size").div_ceil(local));
        let nodes = stated("--nnodes").max(of_replicas);
        let are_of_all = |all: u64| all > u64::from(Devices::USUAL_NODE) && all.is_multiple_of(nodes);
        let there = self.gpus().map(|all| if are_of_all(all) { all / nodes } else { all });
        let shown = match visible::listing(&self.env, self.device()).pop() {
            Some(variable) => format!(" ({variable}={})", self.env[variable]),
            None => String::new(),
        };
        let spans = self.spans_nodes();
        if there == Some(0) && !spans {
            let said = match self.engine.engine.name() {
                "sglang" => "No accelerator (CUDA, XPU, HPU, NPU, MUSA, MPS) or platform plugin is available.",
                _ => "No CUDA GPUs are available",
            };
            return Err(self.refused(format!("{said}{shown}"), []));
        }
        if let Some(there) = there.filter(|there| ranks > *there && !spans) {
            let said = match self.engine.engine.name() {
                "tensorrt-llm" => format!("Only {there} GPUs are available, but {ranks} are required{shown}."),
                _ => format!("World size ({ranks}) {FEW_DEVICES} ({there}) in this node{shown}."),
            };
            let fewer = self.engine.engine.ranks_flag().map(|flag| Remedy::Set(flag, there.to_string()));
            return Err(self.refused(said, fewer));
        }
        if let Some(all) = self.in_group(there).filter(|all| ranks > *all && self.is_rays()) {
            let said = format!(
                "Cannot provide a placement group requiring {ranks} GPUs: the pods of its group have {all} together."
            );
            let fewer = self.engine.engine.ranks_flag().map(|flag| Remedy::Set(flag, all.to_string()));
            return Err(self.refused(said, fewer));
        }
        if let (Some(there), Some(flag)) = (there, self.engine.engine.ranks_flag())
            && there > ranks
        {
            let uses = if ranks == 1 { "one".to_owned() } else { ranks.to_string() };
            self.notes.push(format!(
                "it uses {uses} of the {there} GPUs and leaves the others idle: {flag} says over how many"
            ));
        }
        self.devices = self.device().cloned().map(Devices::from);
        Ok(())
    }

    /// Whether its ranks are also those of other nodes, which see GPUs of their own: Ray's, and MPI's where a group of pods has several, or
    /// it is said how many GPUs each node has.
    fn spans_nodes(&self) -> bool {
        let by_itself = self.engine.engine.name() == "tensorrt-llm" || self.is_rays_by_itself();
        self.value("--distributed-executor-backend") == Some("ray")
            || self.count("--gpus_per_node").is_some_and(|each| self.gpus().is_none_or(|there| each <= there))
            || self.group().is_some() && by_itself
    }

    /// Whether its ranks are Ray's where they are more than the GPUs of its node.
    fn is_rays(&self) -> bool {
        self.value("--distributed-executor-backend") == Some("ray") || self.is_rays_by_itself()
    }

    fn is_rays_by_itself(&self) -> bool {
        /// Read in 0.11.1, and not in 0.11.0: more ranks than GPUs are refused. Before they were Ray's by themselves.
        const ASKS_FOR_RAY: Version = Version(0, 11, 1);
        self.engine.engine.name() == "vllm" && self.engine.version < ASKS_FOR_RAY
    }

    /// The pods of its group, where they are several.
    fn group(&self) -> Option<u64> {
        self.env.get(GROUP).and_then(|size| size.parse::<u64>().ok()).filter(|size| *size > 1)
    }

    /// GPUs of all pods of its group, of which this one sees so many; none where it has no group, or they are not known.
    fn in_group(&self, there: Option<u64>) -> Option<u64> {
        let alike = self.group().and_then(|pods| there?.checked_mul(pods));
        self.group_gpus.filter(|_| self.group().is_some()).or(alike)
    }
}
