//! The whole way: read, plan, load, allocate; then profile, resize, generate, report.

use std::collections::HashMap;
use std::path::Path;

use cacheplan_handlers::DType;
use cacheplan_managers::book::prefix::{Metrics, Strategy};
use cacheplan_managers::book::{NoReuse, PrefixReuse};
use cacheplan_managers::device::{CacheSet, measure_peak};
use cacheplan_planner::{Budget, CachePlan, DeviceInfo, Measurement, Parallel, PlanRequest, plan, resize};
use cacheplan_transforms::{Model, PassContext, ReadOptions, Registry, Resources, collect, read_model};
use candle_core::{Device, Tensor};
use serde_json::Value;

use crate::decoder::Decoder;
use crate::device::device_info;
use crate::eos;
use crate::error::RuntimeError;
use crate::generate::{Generator, Output, Request};
use crate::models;
use crate::profile::{MemoryProfile, profile};
use crate::report::{PoolReport, RunReport};
use crate::weights::Weights;

/// What a session is opened with besides the model.
#[derive(Clone)]
pub struct SessionOptions {
    /// Memory, limits, dtypes.
    pub budget: Budget,
    /// Where the model runs and its caches live.
    pub device: Device,
    /// What the device has; read from the device if absent.
    pub device_info: Option<DeviceInfo>,
    /// Assumptions and descriptions for the front-end.
    pub read: ReadOptions,
    /// How ops become cache resources.
    pub registry: Registry,
    /// Whether a prompt takes over what the caches still have of an earlier one that starts alike, where the plan
    /// allows it: models with states need checkpoints (`workload.checkpoints_per_sequence`). See [`Session::reuse`].
    pub reuse_prefixes: bool,
    /// Whether sequences go on behind a token that ends texts.
    pub ignore_eos: bool,
}

impl Default for SessionOptions {
    /// A budget without a memory limit, on the CPU.
    fn default() -> Self {
        let (budget, device_info, read, registry) = Default::default();
        let device = Device::Cpu;
        Self { budget, device, device_info, read, registry, reuse_prefixes: true, ignore_eos: false }
    }
}

/// A model, the plan of its caches, and the caches.
#[derive(Debug)]
pub struct Session {
    model: Model,
    resources: Resources,
    budget: Budget,
    device_info: Option<DeviceInfo>,
    /// Whether the caller stated the device's memory, rather than the device itself.
    device_is_stated: bool,
    decoder: Decoder,
    caches: CacheSet,
    /// `None` where reuse is switched off.
    prefixes: Option<Result<PrefixReuse, NoReuse>>,
    /// Tokens that end a sequence.
    eos: Vec<u32>,
    profile: Option<MemoryProfile>,
}

/// What a batch of requests gave.
#[derive(Clone, Debug)]
pub struct Generation {
    /// One output per request, in their order.
    pub outputs: Vec<Output>,
    /// The most bytes on the device while generating, weights and caches included; `None` if nobody counts.
    pub peak_bytes: Option<u64>,
}

impl Generation {
    /// Writes the logits that were kept to a safetensors file: `logits` `[steps, vocab_size]` of the first request,
    /// the last prompt position and then one row per decode step; `logits.N` of the request at place N after it.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn save_logits(&self, file: &Path) -> Result<(), RuntimeError> {
        let name = |request: usize| if request == 0 { "logits".to_owned() } else { format!("logits.{request}") };
        let kept = self.outputs.iter().enumerate();
        let tensors: HashMap<String, Tensor> =
            kept.filter_map(|(request, output)| Some((name(request), output.logits.clone()?))).collect();
        candle_core::safetensors::save(&tensors, file)
            .map_err(|source| RuntimeError::Write { file: file.to_owned(), source: Box::new(source) })
    }
}

impl Session {
    /// Reads the model in `path` (a folder, or its `config.json`), plans and allocates its caches, loads its weights.
    ///
    /// # Errors
    /// Whatever is wrong with the config, the weights, the budget or the device.
    pub fn open(path: &Path, options: SessionOptions) -> Result<Self, RuntimeError> {
        let model = read_model(path, &options.read)?;
        let folder = if path.is_dir() { path } else { path.parent().unwrap_or(Path::new("")) };
        let eos = if options.ignore_eos { Vec::new() } else { eos::read(folder, &model.config)? };
        let session = Self::new(model, options, |model, device| {
            let weights = Weights::open(folder, compute_dtype(model.info.dtype, device), device)?;
            models::load(&Value::Object(model.config.clone()), &weights)
        })?;
        Ok(Self { eos, ..session })
    }

    /// Plans and allocates the caches of a model that was read or built, and loads its decoder with `load`.
    ///
    /// The plan comes first, so that a budget that does not do is refused before the weights are read.
    ///
    /// # Errors
    /// Whatever is wrong with the model, the budget, the device, or what `load` finds.
    pub fn new(
        mut model: Model,
        options: SessionOptions,
        load: impl FnOnce(&Model, &Device) -> Result<Decoder, RuntimeError>,
    ) -> Result<Self, RuntimeError> {
        let SessionOptions { budget, device, device_info: stated, registry, reuse_prefixes, .. } = options;
        if budget.parallel != Parallel::default() {
            return Err(RuntimeError::ManyRanks);
        }
        let context = PassContext { registry, ..budget.pass_context(&model.info) };
        let resources = collect(&mut model.graph, &context)?.resources;
        let device_is_stated = stated.is_some();
        let device_info = stated.or_else(|| device_info(&device));
        let first =
            plan(&PlanRequest { device: device_info.as_ref(), ..PlanRequest::new(&model.info, &resources, &budget) })?;
        let decoder = load(&model, &device)?;
        let caches = CacheSet::allocate(&first, &device)?;
        let mut session = Self {
            model,
            resources,
            budget,
            device_info,
            device_is_stated,
            decoder,
            caches,
            prefixes: None,
            eos: Vec::new(),
            profile: None,
        };
        if reuse_prefixes {
            session.start_reuse()?;
        }
        Ok(session)
    }

    /// An empty prefix cache over the pools, if they allow one.
    fn start_reuse(&mut self) -> Result<(), RuntimeError> {
        /// Tokens between the states that decoding leaves, so that a conversation goes on from near its end.
        const DECODED: usize = 256;
        let layout = self.caches.manager()?.book().layout();
        let page = layout.paged.first().map_or(1, |spec| spec.entries_per_block as usize);
        let strategy = Strategy::complete(Some(DECODED.next_multiple_of(page)));
        self.prefixes = Some(PrefixReuse::new(self.caches.plan(), layout, strategy));
        Ok(())
    }

    /// Gives up what earlier requests left in the caches, so that later ones start anew.
    ///
    /// # Errors
    /// Caches that were shut down.
    pub fn forget_prefixes(&mut self) -> Result<(), RuntimeError> {
        if let Some(Ok(prefixes)) = &mut self.prefixes {
            self.caches.manager_mut()?.with_book(|book| prefixes.clear(book))?;
        }
        Ok(())
    }

    /// What reuse of prefixes has achieved, or why the plan allows none. `None` where it is switched off.
    pub fn reuse(&self) -> Option<Result<&Metrics, &NoReuse>> {
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

    /// The decoder and the caches, for callers that step by themselves. What they do to the pools is theirs to keep apart
    /// from prefixes: see [`Session::forget_prefixes`].
    pub fn parts(&mut self) -> (&Decoder, &mut CacheSet) {
        (&self.decoder, &mut self.caches)
    }

    /// Measures one forward of a full step.
    ///
    /// # Errors
    /// Nobody who counts bytes; a failing forward.
    pub fn profile(&mut self) -> Result<MemoryProfile, RuntimeError> {
        self.forget_prefixes()?;
        let limits = self.caches.plan().limits.clone();
        let measured = profile(&self.decoder, self.caches.manager_mut()?, &limits)?;
        self.profile = Some(measured.clone());
        Ok(measured)
    }

    /// Gives up the pools and allocates those that suit a measurement.
    ///
    /// # Errors
    /// No plan for what was measured; then the pools are as before. A device that does not give the memory.
    pub fn resize(&mut self, measured: &MemoryProfile) -> Result<(), RuntimeError> {
        let cache_bytes: u64 = self.caches.plan().pools.iter().map(|pool| pool.bytes).sum();
        self.forget_prefixes()?;
        self.caches.shutdown()?;
        let resident_bytes = measured.resident_bytes.saturating_sub(cache_bytes);
        let free_bytes = match &self.device_info {
            Some(stated) if self.device_is_stated => stated.free_bytes.saturating_sub(resident_bytes),
            _ => device_info(self.decoder.device()).map_or(0, |info| info.free_bytes),
        };
        let measurement = Measurement { resident_bytes, forward_bytes: measured.forward_bytes, free_bytes };
        let request = PlanRequest {
            device: self.device_info.as_ref(),
            ..PlanRequest::new(&self.model.info, &self.resources, &self.budget)
        };
        let resized = resize(&request, &measurement);
        let next = resized.as_ref().unwrap_or(self.caches.plan()).clone();
        self.caches.resize(&next)?;
        if self.prefixes.is_some() {
            self.start_reuse()?;
        }
        resized?;
        Ok(())
    }

    /// Generates greedily from each prompt, as many at once as the plan admits.
    ///
    /// What can serve later prompts stays in the caches and makes way when there is no other room.
    ///
    /// # Errors
    /// A request that cannot be served, caches that run out, a failing forward. No sequence is left in the caches.
    pub fn generate(&mut self, requests: &[Request], keep_logits: bool) -> Result<Generation, RuntimeError> {
        let limits = self.caches.plan().limits.clone();
        let caches = self.caches.manager_mut()?;
        let prefixes = self.prefixes.as_mut().and_then(|prefixes| prefixes.as_mut().ok());
        let mut generator = Generator::new(&self.decoder, caches, prefixes, &limits, &self.eos, keep_logits);
        let (outputs, peak) = measure_peak(self.decoder.device(), || generator.run(requests));
        let peak_bytes = peak.map(|peak| peak.resident_bytes + peak.beyond_bytes);
        Ok(Generation { outputs: outputs?, peak_bytes })
    }

    /// What a run of `requests` gave, beside what was planned and what was measured.
    ///
    /// # Errors
    /// Caches that were shut down.
    pub fn report(&self, requests: &[Request], generation: &Generation) -> Result<RunReport, RuntimeError> {
        let plan = self.caches.plan();
        let pools = self.caches.bytes()?.into_iter().map(|pool| {
            let owner = plan.pool(&pool.id).map(|planned| planned.owner);
            PoolReport { id: pool.id, owner, planned_bytes: pool.planned_bytes, actual_bytes: pool.actual_bytes }
        });
        let generation_number = self.caches.manager()?.generation();
        let no_reuse = match self.reuse() {
            Some(Ok(_)) => None,
            Some(Err(reason)) => Some(reason.to_string()),
            None => Some("it is switched off".to_owned()),
        };
        Ok(RunReport::new(requests, generation, pools.collect(), self.profile.clone(), generation_number, no_reuse))
    }
}

/// The dtype to compute in: f32 on the CPU, which has no fast bf16, else the model's own.
fn compute_dtype(model: DType, device: &Device) -> candle_core::DType {
    match model {
        _ if device.is_cpu() => candle_core::DType::F32,
        DType::F16 => candle_core::DType::F16,
        DType::F32 => candle_core::DType::F32,
        _ => candle_core::DType::BF16,
    }
}
