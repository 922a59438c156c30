//! The whole way: read, plan, load, allocate; then profile, resize, generate, report.

mod resize;
mod unused;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cacheplan_graphs::GraphEngine;
use cacheplan_handlers::{DType, Kind};
use cacheplan_kernels::{Backend, MlaCacheMode, Products};
use cacheplan_managers::book::{Exposition, NoReuse, Stats};
use cacheplan_managers::device::{CacheSet, PrefixFiles};
use cacheplan_managers::prefix::{Metrics, PrefixReuse, Strategy};
use cacheplan_managers::{BookError, CountingAllocator, ManagerError};
use cacheplan_planner::{Budget, CachePlan, DeviceInfo, ModelCaches, Override, PlanRequest};
use cacheplan_transforms::{Model, ReadOptions, registry::Descriptor};

use self::unused::Uses;
use crate::beam::{Beams, Hypothesis, Search};
use crate::decoder::Decoder;
use crate::device::{compute_dtype, device_info, open_device, stored_dtype};
use crate::disk::identity;
use crate::draft_model::{DraftModel, DraftPlan};
use crate::error::{RequestError, Result, RuntimeError};
use crate::exported::{self, Exported};
use crate::follow::{Follow, Nobody};
use crate::generate::{Generator, Serving};
use crate::generation::Generation;
use crate::generation_config::GenerationConfig;
use crate::models;
use crate::profile::MemoryProfile;
use crate::report::{PoolReport, Reuse, RunReport};
use crate::request::Request;
use crate::speed::Recorder;
use crate::totals::Totals;
use crate::weights::{LatentLayout, Loading, WeightError, Weights};

/// What a session is opened with besides the model.
#[derive(Clone)]
pub struct SessionOptions {
    /// Memory, limits, dtypes.
    pub budget: Budget,
    /// The budget's values with where each was stated, for errors; empty where nobody knows.
    pub settings: Vec<Override>,
    /// Where the model runs and its caches live.
    pub backend: Backend,
    /// What the device has; read from the device if absent.
    pub device_info: Option<DeviceInfo>,
    /// Assumptions and descriptions for the front-end.
    pub read: ReadOptions,
    /// How ops become cache resources.
    pub descriptors: Vec<Descriptor>,
    /// A model that guesses what the other says next, where the budget has speculation; without one a run guesses by
    /// looking up the prompt.
    pub draft: Option<PathBuf>,
    /// Whether guesses that are looked up branch, where the budget has speculation: several continuations are verified in
    /// one step, as a tree.
    pub draft_tree: bool,
    /// Whether a prompt takes over what the caches still have of an earlier one that starts alike, where the plan
    /// allows it: models with states need checkpoints (`workload.checkpoints_per_sequence`). See [`Session::reuse`].
    pub reuse_prefixes: bool,
    /// Whether steps that decode are recorded as CUDA graphs, where the model runs on such a device.
    pub graphs: bool,
    /// Whether sequences go on behind a token that ends texts.
    pub ignore_eos: bool,
    /// A folder of graphs with caches of fixed shapes that compute in place of the model's own layers.
    pub static_graphs: Option<PathBuf>,
    /// A folder of files in which prefixes outlive the process, as many as the budget's `disk.bytes` admit; for
    /// [`Session::open`], which knows the model's files.
    pub disk: Option<PathBuf>,
    /// How rows are multiplied with the blocks of a GGUF file: [`Products::Fast`] rounds them. All other weights are exact.
    pub products: Products,
    /// What exported graphs are run by.
    pub graph_engine: GraphEngine,
    /// How many tokens the longest sequence has that will be asked for, where somebody can tell: where the caches do not
    /// fit, only changes are suggested that leave room for it.
    pub longest: Option<Arc<dyn Fn() -> u64 + Send + Sync>>,
    /// Where [`Session::open`] shows how far the weights are read.
    pub loading: Arc<Loading>,
}

impl Default for SessionOptions {
    /// A budget without a memory limit, on the CPU.
    fn default() -> Self {
        let (budget, settings, device_info, read, descriptors, draft) = Default::default();
        let (static_graphs, disk, graph_engine, longest, loading, products) = Default::default();
        let (backend, reuse_prefixes, graphs, ignore_eos, draft_tree) = (Backend::Cpu, true, true, false, false);
        Self {
            budget,
            settings,
            backend,
            device_info,
            read,
            descriptors,
            draft,
            draft_tree,
            reuse_prefixes,
            graphs,
            ignore_eos,
            static_graphs,
            disk,
            products,
            graph_engine,
            longest,
            loading,
        }
    }
}

/// A model, the plan of its caches, and the caches.
#[derive(Debug)]
pub struct Session {
    /// What its plan follows from.
    request: PlanRequest,
    /// Whether the caller stated the device's memory, rather than the device itself.
    device_is_stated: bool,
    decoder: Decoder,
    draft: Option<DraftModel>,
    draft_tree: bool,
    caches: CacheSet,
    /// `None` where reuse is switched off.
    prefixes: Option<Result<PrefixReuse, NoReuse>>,
    /// Where they outlive the process.
    disk: Option<PrefixFiles>,
    /// What there is to say of the model's files.
    notes: Vec<String>,
    /// What the model's makers say about generation.
    generation: GenerationConfig,
    /// How many tenants share the prefixes.
    tenants: u32,
    totals: Totals,
    profile: Option<MemoryProfile>,
}

impl Session {
    /// The device called `cpu` or `cuda:N`.
    ///
    /// # Errors
    /// Another name, a build without CUDA, a device that does not answer.
    pub fn open_device(name: &str) -> Result<Backend> {
        open_device(name)
    }

    /// Reads the model in `path` (a folder, its `config.json`, or an exported graph), plans and allocates its caches,
    /// loads its weights.
    ///
    /// # Errors
    /// Whatever is wrong with the config, the weights, the budget or the device.
    pub fn open(path: &Path, options: SessionOptions) -> Result<Self> {
        exported::refuse_program(path)?;
        let model = Model::read(path, &options.read)?;
        let folder = if path.is_dir() { path } else { path.parent().unwrap_or(Path::new("")) };
        let mut generation = GenerationConfig::read(folder, &model.config)?;
        if options.ignore_eos {
            generation.eos = Vec::new();
        }
        let disk = options.disk.clone().map(|folder| {
            let models = [Some(path), options.draft.as_deref(), options.static_graphs.as_deref()];
            identity(models.into_iter().flatten(), &options.read).map(|identity| (folder, identity))
        });
        let disk = disk.transpose()?;
        let loading = options.loading.clone();
        let predicting = options.budget.speculation.as_ref().is_some_and(|speculation| speculation.mtp_layers > 0);
        let (mode, kv, products) = (options.budget.mla_cache_mode, options.budget.dtypes.kv, options.products);
        let mut unread = None;
        let own = |model: &Model, on: &Backend| {
            models::refuse_unknown(model)?;
            let weights = Weights::of_model(path, compute_dtype(model.info.dtype, on), on)?.with_products(products)?;
            let latents = LatentLayout {
                mode: mode.map(|mode| MlaCacheMode::try_from(mode.number())).transpose()?,
                dtype: stored_dtype(kv.unwrap_or(model.info.dtype)),
            };
            let weights = weights.shown_in(loading).predicting(predicting).with_latents(latents);
            let decoder = Decoder::load(model, &weights)?;
            // Beside graphs most are theirs.
            unread = weights.unread().filter(|_| !model.layers.is_empty());
            Ok(decoder)
        };
        let engine = options.graph_engine.clone();
        let is_graph = exported::is_graph(path);
        if is_graph && products == Products::Fast {
            return Err(WeightError::Rounded { found: "a graph has products of its own" }.into());
        }
        let session = match options.static_graphs.clone() {
            Some(folder) => {
                let (graphs, files) = exported::read(&folder, &model)?;
                // Of the model's own weights only those around its layers are read.
                let mut around = model;
                around.layers.clear();
                Self::planned(graphs, options, true, |graphs, on| {
                    Exported::open(&files, &engine, graphs, on)?.decoder(|| own(&around, on), on)
                })?
            }
            None if is_graph => Self::planned(model, options, true, |model, on| {
                Exported::open(&[path.to_owned()], &engine, model, on)?.alone(path, on)
            })?,
            None => Self::new(model, options, own)?,
        };
        let notes = unread.into_iter().chain(generation.note()).collect();
        let mut session = Self { generation, notes, ..session };
        disk.map_or(Ok(()), |(folder, identity)| session.open_files(&folder, identity))?;
        Ok(session)
    }

    /// Keeps prefixes in files from here on, and finds those of earlier processes.
    fn open_files(&mut self, folder: &Path, identity: [u8; 32]) -> Result<()> {
        let limit = self.request.config().budget.disk.ok_or(RuntimeError::NoDiskBytes)?;
        let refused = match self.reuse() {
            Some(Ok(_)) => None,
            Some(Err(reason)) => Some(reason.to_string()),
            None => Some("reuse of prefixes is switched off".into()),
        };
        if let Some(reason) = refused {
            return Err(RuntimeError::NoPrefixesOnDisk { reason });
        }
        let files = PrefixFiles::open(folder, limit.bytes.0, self.plan(), identity).map_err(ManagerError::from)?;
        self.disk = Some(files);
        Ok(())
    }

    /// The files in which prefixes outlive the process, where there are any.
    pub fn files(&self) -> Option<&PrefixFiles> {
        self.disk.as_ref()
    }

    /// Takes what there is to say since it was last taken: of the model's files what is not used, of files of prefixes what
    /// became of them.
    pub fn take_notes(&mut self) -> Vec<String> {
        let of_disk = self.disk.as_mut().map(PrefixFiles::take_notes).unwrap_or_default();
        std::mem::take(&mut self.notes).into_iter().chain(of_disk).collect()
    }

    /// Plans and allocates the caches of a model that was read or built, and loads its decoder with `load`.
    ///
    /// The plan comes first, so that a budget that does not do is refused before the weights are read.
    ///
    /// # Errors
    /// Whatever is wrong with the model, the budget, the device, or what `load` finds.
    pub fn new(
        model: Model,
        options: SessionOptions,
        load: impl FnOnce(&Model, &Backend) -> Result<Decoder>,
    ) -> Result<Self> {
        Self::planned(model, options, false, load)
    }

    /// The same of layers that exported graphs compute, or not.
    fn planned(
        model: Model,
        options: SessionOptions,
        by_graphs: bool,
        load: impl FnOnce(&Model, &Backend) -> Result<Decoder>,
    ) -> Result<Self> {
        let SessionOptions {
            budget,
            settings,
            backend,
            device_info: stated,
            descriptors,
            reuse_prefixes,
            draft,
            draft_tree,
            graphs,
            longest,
            ..
        } = options;
        let device_is_stated = stated.is_some();
        let device_info = stated.or_else(|| device_info(&backend.device()));
        let draft = draft.map(|path| DraftPlan::read(&path, &budget)).transpose()?;
        let is_gguf = model.info.model_type.starts_with("gguf:");
        let predicts = draft.is_none() && models::predicts(&model.decoder) && !is_gguf;
        let preprocesses = budget.mla_cache_mode.is_none() || models::preprocesses(&model.decoder);
        let (budget_of, on) = (budget.clone(), backend.clone());
        let uses = Uses { budget: budget_of, on, reuse_prefixes, predicts, preprocesses, by_graphs };
        let model = Arc::new(model);
        let caches = ModelCaches::from(Arc::clone(&model)).with(descriptors, Vec::new());
        let request = PlanRequest::of(caches).with_budget(budget.clone());
        let request = device_info.into_iter().fold(request, PlanRequest::with_devices);
        let request = draft.iter().map(DraftPlan::model).cloned().fold(request, PlanRequest::with_draft);
        let request = request.taken_by({
            let uses = uses.clone();
            move |plan| {
                let all = || Ok::<_, RuntimeError>(uses.refuse_unused(plan, &[], uses.prefixes(plan)?.as_ref())?);
                all().is_ok() && longest.as_ref().is_none_or(|longest| plan.limits.max_seq_len >= longest())
            }
        });
        let (first, resources) = (request.plan()?, request.caches()?);
        // The books alone tell whether prefixes can be kept, before the weights are read.
        let prefixes = uses.prefixes(&first)?;
        uses.refuse_unused(&first, &settings, prefixes.as_ref())?;
        let decoder = load(&model, &backend)?;
        let draft = draft.map(|draft| draft.load(&decoder, &backend)).transpose()?;
        if !graphs {
            [Some(&decoder), draft.as_ref().map(DraftModel::decoder)]
                .into_iter()
                .flatten()
                .for_each(Decoder::only_launch);
        }
        CountingAllocator::trim();
        decoder.prediction().map_or(Ok(()), |prediction| prediction.check(&first))?;
        decoder.caches().iter().try_for_each(|cache| cache.check(&resources))?;
        if draft_tree {
            let guesses = draft.is_some() || decoder.prediction().is_some();
            let refused = match () {
                () if first.limits.draft_positions <= 1 => Some("it needs --draft-tokens or [speculation]"),
                () if decoder.caches().iter().any(|cache| cache.kind == Kind::Ring) => Some(
                    "the model keeps keys of several tokens each, which stand in a row; leave it out to look lines up",
                ),
                () if guesses => {
                    Some("a draft model and a prediction layer guess chains; leave them out to look trees up")
                }
                () => None,
            };
            refused.map_or(Ok(()), |reason| Err(RuntimeError::DraftTree(reason)))?;
        }
        if let Some(limit) = decoder.max_seq_len().filter(|&limit| first.limits.max_seq_len > limit) {
            let (tokens, limit) = (first.limits.max_seq_len as usize, limit as usize);
            return Err(RuntimeError::BeyondGraph { tokens, limit });
        }
        let groups = [DType::Int8PerTokenHead, DType::F8E5m2, DType::Q8_0, DType::Q4_0, DType::Mxfp4, DType::Nvfp4];
        if let Some(pool) = first.pools.iter().find(|pool| groups.contains(&pool.dtype) && backend.launches()) {
            let dtype = pool.dtype;
            tracing::warn!("no kernel reads {dtype} caches: they pass through the host in every layer of every step");
        }
        let caches = CacheSet::allocate(&first, backend)?;
        let mut session = Self {
            request,
            device_is_stated,
            decoder,
            draft,
            draft_tree,
            caches,
            prefixes,
            disk: None,
            notes: Vec::new(),
            generation: GenerationConfig::default(),
            tenants: 1,
            totals: Totals::default(),
            profile: None,
        };
        session.start_reuse()?;
        Ok(session)
    }

    /// An empty prefix cache over the pools, if they allow one.
    fn start_reuse(&mut self) -> Result<()> {
        // The old one holds the host tier until it is gone.
        if self.prefixes.take().is_some() {
            let strategy = strategy(self.caches.plan(), &self.request.config().budget);
            let shares = vec![1; self.tenants as usize];
            let offloaded = offloaded(self.caches.plan());
            self.prefixes = Some(allowed(self.caches.prefix_reuse_for(strategy, shares, offloaded))?);
        }
        Ok(())
    }

    /// Gives up what earlier requests left in the caches, so that later ones start anew.
    ///
    /// # Errors
    /// Caches that were shut down.
    pub fn forget_prefixes(&mut self) -> Result<()> {
        if let Some(Ok(prefixes)) = &mut self.prefixes {
            self.caches.manager_mut()?.with_book(|book| prefixes.clear(book))?;
        }
        Ok(())
    }

    /// What reuse of prefixes has achieved, or why the plan allows none. `None` where it is switched off.
    pub fn reuse(&self) -> Option<Result<Metrics, &NoReuse>> {
        self.prefixes.as_ref().map(|prefixes| prefixes.as_ref().map(PrefixReuse::metrics))
    }

    /// The plan that is allocated.
    pub fn plan(&self) -> &CachePlan {
        self.caches.plan()
    }

    /// The caches.
    pub fn caches(&self) -> &CacheSet {
        &self.caches
    }

    /// How many tokens the model knows.
    pub fn vocab_size(&self) -> usize {
        self.decoder.vocab_size()
    }

    /// That a request can be served; `place` stands for it in errors.
    ///
    /// # Errors
    /// Why it cannot.
    pub fn check(&self, place: usize, request: &Request) -> Result<(), RequestError> {
        request.check(place, self.vocab_size(), self.plan().limits.max_seq_len)
    }

    /// The decoder and the caches, for callers that step by themselves. What they do to the pools is theirs to keep apart
    /// from prefixes: see [`Session::forget_prefixes`].
    pub fn parts(&mut self) -> (&Decoder, &mut CacheSet) {
        (&self.decoder, &mut self.caches)
    }

    /// What the model's makers say about generation: the tokens that end texts, and how to sample.
    pub fn generation_config(&self) -> &GenerationConfig {
        &self.generation
    }

    /// Lets prefixes be those of so many tenants with equal shares. What is cached stays, but where they become fewer.
    ///
    /// # Errors
    /// Caches that were shut down.
    pub fn share_among(&mut self, tenants: u32) -> Result<()> {
        let before = std::mem::replace(&mut self.tenants, tenants.max(1));
        match &mut self.prefixes {
            Some(Ok(prefixes)) if self.tenants >= before => {
                Ok(prefixes.set_tenants(vec![1; self.tenants as usize]).map_err(ManagerError::from)?)
            }
            _ => {
                self.forget_prefixes()?;
                self.start_reuse()
            }
        }
    }

    /// Generates from each prompt, as many at once as the plan admits.
    ///
    /// What can serve later prompts stays in the caches and makes way when there is no other room.
    ///
    /// # Errors
    /// A request that cannot be served, caches that run out, a failing forward. No sequence is left in the caches.
    pub fn generate(&mut self, requests: &[Request], keep_logits: bool) -> Result<Generation> {
        self.serve(requests, keep_logits, &mut Nobody)
    }

    /// As [`Session::generate`], while `follower` watches.
    ///
    /// # Errors
    /// As [`Session::generate`].
    pub fn serve(&mut self, requests: &[Request], keep_logits: bool, follower: &mut dyn Follow) -> Result<Generation> {
        let tenants = requests.iter().map(|request| u32::from(request.tenant) + 1).max().unwrap_or(1);
        if tenants > self.tenants {
            self.share_among(tenants)?;
        }
        let limits = self.caches.plan().limits.clone();
        let max_prefill = self.request.config().budget.max_prefill_tokens;
        let max_prefill = max_prefill.map_or(usize::MAX, |tokens| usize::try_from(tokens).unwrap_or(usize::MAX));
        let caches = self.caches.manager_mut()?;
        let prefixes = self.prefixes.as_mut().and_then(|prefixes| prefixes.as_mut().ok());
        let mut recorder = Recorder::new(caches.book(), &mut self.totals);
        let mut generator = Generator::new(Serving {
            model: &self.decoder,
            draft: self.draft.as_ref(),
            tree: self.draft_tree,
            caches,
            prefixes,
            disk: self.disk.as_mut(),
            limits: &limits,
            max_prefill,
            eos: &self.generation.eos,
            keep_logits,
            follower,
            recorder: &mut recorder,
        });
        let (outputs, peak) = CountingAllocator::measure_peak(&self.decoder.device(), || generator.run(requests));
        let peak_bytes = peak
            .filter(|_| self.decoder.is_counted())
            .map(|peak| self.decoder.mapped_bytes() + peak.resident_bytes + peak.beyond_bytes);
        let (speed, timeline) = recorder.done();
        Ok(Generation { outputs: outputs?, peak_bytes, speed, timeline })
    }

    /// The best continuations of a prompt, the best first, with the request's penalties and without its temperature.
    ///
    /// # Errors
    /// As [`Session::generate`]; more beams than a step has sequences.
    pub fn beam_search(&mut self, request: &Request, beams: Beams) -> Result<Vec<Hypothesis>> {
        let limits = self.caches.plan().limits.clone();
        let caches = self.caches.manager_mut()?;
        let prefixes = self.prefixes.as_mut().and_then(|prefixes| prefixes.as_mut().ok());
        let search = Search { model: &self.decoder, caches, prefixes, limits: &limits, eos: &self.generation.eos };
        search.run(request, beams)
    }

    /// How full the pools are, and what prompts took over of one another.
    ///
    /// # Errors
    /// Caches that were shut down.
    pub fn stats(&self) -> Result<Stats> {
        Ok(self.caches.manager()?.book().stats())
    }

    /// All that is known of pools, prefixes and what was served, in the text format that Prometheus reads: what a server
    /// answers at `/metrics`.
    ///
    /// # Errors
    /// Caches that were shut down.
    pub fn metrics(&self) -> Result<String> {
        let mut out = Exposition::default();
        self.stats()?.expose(&mut out);
        self.totals.expose(&mut out);
        Ok(out.into_text())
    }

    /// What a run of `requests` gave, beside what was planned and what was measured.
    ///
    /// # Errors
    /// Caches that were shut down.
    pub fn report(&self, requests: &[Request], generation: &Generation) -> Result<RunReport> {
        let plan = self.caches.plan();
        let pools = self.caches.bytes()?.into_iter().map(|pool| {
            let owner = plan.pool(&pool.id).map(|planned| planned.owner);
            PoolReport { id: pool.id, owner, planned_bytes: pool.planned_bytes, actual_bytes: pool.actual_bytes }
        });
        let generation_number = self.caches.manager()?.generation();
        let reuse = match self.reuse() {
            Some(Ok(_)) => Ok(Reuse::of(requests, generation)),
            Some(Err(reason)) => Err(reason.to_string()),
            None => Err("it is switched off".to_owned()),
        };
        let (pools, profile) = (pools.collect(), self.profile.clone());
        let stats = self.stats()?;
        Ok(RunReport::new(requests, generation, pools, profile, generation_number, stats, reuse))
    }
}

/// What came of a prefix cache, or why the plan allows none.
fn allowed(reuse: Result<PrefixReuse, ManagerError>) -> Result<Result<PrefixReuse, NoReuse>, ManagerError> {
    match reuse {
        Ok(reuse) => Ok(Ok(reuse)),
        Err(ManagerError::Book(BookError::NoReuse(reason))) => Ok(Err(reason)),
        Err(error) => Err(error),
    }
}

/// How many sequences at most wait in the host tier beside prefixes: half of those that it holds.
fn offloaded(plan: &CachePlan) -> u64 {
    // One always runs.
    let waiting = plan.limits.max_batch_size.saturating_sub(1);
    plan.host.as_ref().map_or(0, |host| (host.sequences / 2).min(waiting))
}

/// Where requests leave states in the caches of a plan.
fn strategy(plan: &CachePlan, budget: &Budget) -> Strategy {
    let block = plan.pools.iter().find_map(|pool| pool.tokens_per_block).unwrap_or(1);
    let workload = budget.workload.clone().unwrap_or_default();
    let decoded = usize::try_from(workload.decoded_interval(block)).unwrap_or(usize::MAX);
    let stated = workload.checkpoint_strategy.unwrap_or_default();
    stated.among([Strategy::NO_BUFFER, Strategy::double_buffered(decoded), Strategy::complete(Some(decoded))])
}
