//! A smaller model that guesses what another says next, over caches that the same plan holds as `draft.…`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cacheplan_kernels::Backend;
use cacheplan_managers::book::StepMetadata;
use cacheplan_managers::device::CacheManager;
use cacheplan_planner::{Budget, PlanRequest};
use cacheplan_transforms::{Model, ReadOptions, Resources};
use candle_core::{Device, Tensor};

use crate::decoder::Decoder;
use crate::device::compute_dtype;
use crate::error::{Result, RuntimeError};
use crate::models;
use crate::step::Names;
use crate::weights::Weights;

/// What a plan needs of a draft model, before its weights are read.
#[derive(Debug)]
pub(crate) struct DraftPlan {
    path: PathBuf,
    model: Arc<Model>,
    resources: Arc<Resources>,
}

/// A draft model that guesses.
#[derive(Debug)]
pub(crate) struct DraftModel {
    decoder: Decoder,
}

/// A row of a speculative step: the candidate at a place of a sequence of the step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    pub(crate) sequence: usize,
    pub(crate) place: usize,
    pub(crate) token: u32,
}

impl DraftPlan {
    /// Reads the draft model in `path`.
    ///
    /// # Errors
    /// One that cannot be read, has no decoder, or keeps states, which no plan takes back.
    pub(crate) fn read(path: &Path, budget: &Budget) -> Result<Self> {
        let model = Model::read(path, &ReadOptions::default())?;
        models::refuse_unknown(&model)?;
        let model = Arc::new(model);
        let resources = PlanRequest::of(Arc::clone(&model)).with_budget(budget.clone()).caches()?;
        match resources.iter().find(|resource| resource.handler.is_state()) {
            Some(state) => Err(RuntimeError::DraftState { name: state.name.clone() }),
            None => Ok(Self { path: path.to_owned(), model, resources }),
        }
    }

    /// The model that a plan holds beside the other's.
    pub(crate) fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// Reads its weights; it guesses for `verifier`.
    ///
    /// # Errors
    /// Weights that cannot be used, another vocabulary.
    pub(crate) fn load(self, verifier: &Decoder, on: &Backend) -> Result<DraftModel> {
        let weights = Weights::of_model(&self.path, compute_dtype(self.model.info.dtype, on), on)?;
        let decoder = Decoder::load(&self.model, &weights)?;
        decoder.caches().iter().try_for_each(|cache| cache.check(&self.resources))?;
        let (found, expected) = (decoder.vocab_size(), verifier.vocab_size());
        if found != expected {
            return Err(RuntimeError::DraftVocabulary { found, expected });
        }
        let layers = |resource: &cacheplan_transforms::Resource| -> Vec<u32> {
            resource.layer.into_iter().chain(resource.shared_by.iter().copied()).collect()
        };
        let names: Names = self
            .resources
            .iter()
            .flat_map(|resource| {
                let (kind, name) = (resource.handler.kind(), format!("draft.{}", resource.name));
                layers(resource).into_iter().map(move |layer| ((layer, kind.clone()), name.clone()))
            })
            .collect();
        Ok(DraftModel { decoder: decoder.calling_caches(names) })
    }
}

impl DraftModel {
    /// The model itself.
    pub(crate) fn decoder(&self) -> &Decoder {
        &self.decoder
    }

    /// Computes the caches of a step's tokens.
    pub(crate) fn fill(&self, tokens: &[u32], caches: &CacheManager, metadata: &StepMetadata) -> Result<()> {
        self.decoder.fill(tokens, caches, metadata)
    }

    /// What comes behind candidates, each the next of its sequence: logits `[candidates.len(), vocab_size]` on the CPU.
    pub(crate) fn next(&self, candidates: &[Candidate], caches: &CacheManager, step: &StepMetadata) -> Result<Tensor> {
        let tokens: Vec<u32> = candidates.iter().map(|candidate| candidate.token).collect();
        let rows: Vec<u32> = (0..tokens.len() as u32).collect();
        let logits = self.decoder.forward(&tokens, &rows, caches, &one_each(candidates, step))?;
        Ok(logits.to_device(&Device::Cpu)?)
    }
}

/// The candidates as a step of one token of each of their sequences.
pub(crate) fn one_each(candidates: &[Candidate], step: &StepMetadata) -> StepMetadata {
    let mut one = StepMetadata { cu_seqlens: vec![0], ..StepMetadata::default() };
    let rows: Vec<(usize, usize)> = candidates
        .iter()
        .map(|candidate| (candidate.sequence, step.cu_seqlens[candidate.sequence] as usize + candidate.place))
        .collect();
    for &(_, row) in &rows {
        one.positions.push(step.positions[row]);
        one.cu_seqlens.push(one.positions.len() as u32);
        one.kv_lens.push(step.positions[row] + 1);
        // It keeps no states.
        one.slots.push(-1);
        one.draft_rows.push(-1);
    }
    for pool in &step.pools {
        let mut part = pool.clone();
        part.block_tables = rows.iter().flat_map(|&(sequence, _)| pool.row(sequence)).copied().collect();
        part.slot_mapping = rows.iter().map(|&(_, row)| pool.slot_mapping[row]).collect();
        one.pools.push(part);
    }
    one
}
