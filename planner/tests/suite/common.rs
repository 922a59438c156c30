//! Models built by hand.

use cacheplan_handlers::{DType, Recurrence, ResourceHandler};
use cacheplan_planner::{Budget, ModelCaches, PlanRequest};
use cacheplan_transforms::{ModelInfo, ReadOptions, Resource, Resources};

/// A model and its caches.
pub(crate) struct Model {
    pub(crate) info: ModelInfo,
    pub(crate) resources: Resources,
}

impl Model {
    pub(crate) fn new(model_type: &str, layers: u32) -> Self {
        let info = ModelInfo {
            name: None,
            model_type: model_type.into(),
            layers,
            dtype: DType::Bf16,
            max_position_embeddings: Some(262_144),
            weights: None,
            fingerprint: model_type.into(),
            revision: None,
            step_tokens: None,
        };
        Self { info, resources: Resources::default() }
    }

    pub(crate) fn with(mut self, suffix: &str, layer: u32, handler: ResourceHandler) -> Self {
        self.resources
            .push(Resource {
                name: format!("{suffix}_{layer}"),
                layer: Some(layer),
                handler,
                node: format!("layers.{layer}.mixer"),
                provenance: Vec::new(),
                shared_by: Vec::new(),
            })
            .unwrap();
        self
    }

    pub(crate) fn request(&self, budget: &Budget) -> PlanRequest {
        PlanRequest::of(self.caches()).with_budget(budget.clone())
    }

    /// The same model as one that is planned for, or that drafts.
    pub(crate) fn caches(&self) -> ModelCaches {
        (self.info.clone(), self.resources.clone()).into()
    }
}

/// A model by its published config.
pub(crate) fn published(name: &str) -> cacheplan_transforms::Model {
    let file = format!("{}/../tests/fixtures/configs/{name}.json", env!("CARGO_MANIFEST_DIR"));
    cacheplan_transforms::Model::read(file.as_ref(), &ReadOptions::default()).unwrap()
}

pub(crate) fn budget(text: &str) -> Budget {
    Budget::from_toml(text, "budget.toml").unwrap()
}

pub(crate) fn kv(num_kv_heads: u64, head_dim: u64) -> ResourceHandler {
    ResourceHandler::kv_paged(num_kv_heads, head_dim, DType::Bf16).unwrap()
}

/// A Mamba-2 layer's recurrent state.
pub(crate) fn mamba2(heads: u64, head_dim: u64, d_state: u64, n_groups: u64, dtype: DType) -> ResourceHandler {
    ResourceHandler::ssm(heads, head_dim, d_state, dtype).unwrap().with_recurrence(Recurrence::Ssd { n_groups })
}

/// Nemotron-3-Nano-30B-A3B: 23 Mamba-2 layers, 6 of attention, 23 without a cache.
pub(crate) fn nemotron_3_nano() -> Model {
    nemotron_3_nano_with(DType::Bf16, DType::F32)
}

/// The same with other dtypes of KV and recurrent states.
pub(crate) fn nemotron_3_nano_with(kv_dtype: DType, ssm_dtype: DType) -> Model {
    let mut model = Model::new("nemotron_h", 52);
    for (layer, kind) in (0u32..).zip("MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME".chars()) {
        model = match kind {
            'M' => model.with("ssm", layer, mamba2(64, 64, 128, 8, ssm_dtype)).with(
                "conv",
                layer,
                ResourceHandler::causal_conv(6144, 4, vec![4096, 1024, 1024], DType::Bf16).unwrap(),
            ),
            '*' => model.with("kv", layer, ResourceHandler::kv_paged(2, 128, kv_dtype).unwrap()),
            _ => model,
        };
    }
    model
}
