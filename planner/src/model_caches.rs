//! A model and its caches, collected once for each way in which they are asked for.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use cacheplan_handlers::{DType, KvLayout};
use cacheplan_transforms::registry::Descriptor;
use cacheplan_transforms::{
    CacheDTypes, Collected, Graph, Model, ModelInfo, PassContext, Resource, Resources, WeightBytes,
};

use crate::budget::Budget;
use crate::engines::EngineSpec;
use crate::error::PlanError;
use crate::mla_cache::MlaCache;
use crate::solver::divisible::Divisible;
use crate::solver::step::StepBytes;

/// A model whose caches the passes collect when a plan asks for them. A copy is the same model, and shares what was
/// collected.
#[derive(Clone)]
pub struct ModelCaches(Arc<Parts>);

struct Parts {
    from: Origin,
    /// Caches that are stated beside those of the model's own graph.
    beside: Vec<Resource>,
    /// How ops that the built-in descriptors do not know become caches.
    descriptors: Vec<Descriptor>,
    step: Option<StepBytes>,
    divisible: Option<Divisible>,
    /// Whether its weights are other than those that were read.
    reweighed: bool,
    collected: Mutex<Vec<(Asked, Arc<Resources>)>>,
}

#[derive(Clone)]
enum Origin {
    Model(Arc<Model>),
    /// Of a framework that walks its own graphs.
    Collected(Box<ModelInfo>, Arc<Resources>),
}

/// What caches depend on besides the model.
#[derive(Clone, Copy, PartialEq)]
struct Asked {
    dtypes: CacheDTypes,
    layout: KvLayout,
    mla_cache_mode: Option<MlaCache>,
    engine: Option<EngineSpec>,
}

/// The ways to ask that are kept; a picture asks for some sixty.
const KEPT: usize = 128;

/// A key that nothing takes, and its flag.
pub(crate) type Untaken = (&'static str, &'static str);

/// Keys of dtypes with their flags, what a budget states of each, and what sets it.
type DTypeKey = (Untaken, fn(&Budget) -> Option<DType>, fn(&mut Budget, DType));
const DTYPES: [DTypeKey; 3] = [
    (("dtypes.kv", "--kv-dtype"), |budget| budget.dtypes.kv, |budget, dtype| budget.dtypes.kv = Some(dtype)),
    (("dtypes.ssm", "--ssm-dtype"), |budget| budget.dtypes.ssm, |budget, dtype| budget.dtypes.ssm = Some(dtype)),
    (("dtypes.conv", "--conv-dtype"), |budget| budget.dtypes.conv, |budget, dtype| budget.dtypes.conv = Some(dtype)),
];

impl ModelCaches {
    /// What is known of the model besides its caches.
    pub fn info(&self) -> &ModelInfo {
        match &self.0.from {
            Origin::Model(model) => &model.info,
            Origin::Collected(info, _) => info,
        }
    }

    /// The model as it was read; `None` where its caches came from a framework.
    pub fn model(&self) -> Option<&Model> {
        match &self.0.from {
            Origin::Model(model) => Some(model),
            Origin::Collected(..) => None,
        }
    }

    /// The same model with descriptors of ops that the built-in ones do not know, and with caches beside its own.
    #[must_use]
    pub fn with(&self, descriptors: Vec<Descriptor>, beside: Vec<Resource>) -> Self {
        Self(Arc::new(Parts { descriptors, beside, ..self.parts() }))
    }

    /// The same, where a framework that walks its own graphs knows what a step takes.
    #[must_use]
    pub fn with_step(&self, step: StepBytes) -> Self {
        Self(Arc::new(Parts { step: Some(step), ..self.parts() }))
    }

    /// The same with weights of so many bytes, assumed; of classes that are not known in proportion to its own.
    #[must_use]
    pub fn with_weights(&self, weights: WeightBytes) -> Self {
        let Parts { from, .. } = &*self.0;
        let of = |info: &mut ModelInfo| info.weights = Some(weights.in_proportion_to(info.weights));
        let from = match from {
            Origin::Model(model) => {
                let mut model = Model::clone(model);
                of(&mut model.info);
                Origin::Model(Arc::new(model))
            }
            Origin::Collected(info, resources) => {
                let mut info = info.clone();
                of(&mut info);
                Origin::Collected(info, Arc::clone(resources))
            }
        };
        Self(Arc::new(Parts { from, reweighed: true, ..self.parts() }))
    }

    /// The weights where its graph's own tensors are what they were counted of.
    pub(crate) fn weights_of_dimensions(&self) -> Option<WeightBytes> {
        self.info().weights.filter(|weights| !weights.exact && !weights.unproven && !self.0.reweighed)
    }

    /// What it consists of, with nothing collected.
    fn parts(&self) -> Parts {
        let Parts { from, beside, descriptors, step, divisible, reweighed, .. } = &*self.0;
        Parts {
            from: from.clone(),
            beside: beside.clone(),
            descriptors: descriptors.clone(),
            step: *step,
            divisible: *divisible,
            reweighed: *reweighed,
            collected: Mutex::default(),
        }
    }

    /// Runs the passes over the model's graph, and gives the graph as they left it; `None` where a framework walked its own.
    ///
    /// # Errors
    /// As [`Graph::collect`].
    pub fn walk(&self, budget: &Budget, engine: Option<EngineSpec>) -> Result<Option<(Graph, Collected)>, PlanError> {
        let Some(model) = self.model() else { return Ok(None) };
        let mut graph = model.graph.clone();
        let collected = graph.collect(&self.context(budget, engine))?;
        Ok(Some((graph, collected)))
    }

    /// The caches as a plan of this budget has them, or as an engine would.
    pub(crate) fn collect(&self, budget: &Budget, engine: Option<EngineSpec>) -> Result<Arc<Resources>, PlanError> {
        let context = self.context(budget, engine);
        let asked =
            Asked { dtypes: context.dtypes, layout: context.layout, mla_cache_mode: budget.mla_cache_mode, engine };
        let known = || self.0.collected.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, resources)) = known().iter().find(|(known, _)| *known == asked) {
            return Ok(Arc::clone(resources));
        }
        let mut resources = match &self.0.from {
            Origin::Model(model) => model.graph.clone().collect(&context)?.resources,
            Origin::Collected(_, resources) if self.0.beside.is_empty() => return Ok(Arc::clone(resources)),
            Origin::Collected(_, resources) => Resources::clone(resources),
        };
        for resource in &self.0.beside {
            resources.push(resource.clone())?;
        }
        let resources = Arc::new(resources);
        let mut known = known();
        if known.len() == KEPT {
            known.remove(0);
        }
        known.push((asked, Arc::clone(&resources)));
        Ok(resources)
    }

    /// A dtype that is stated, and that no cache of these models takes.
    pub(crate) fn untaken_dtype(models: &[&Self], budget: &Budget, engine: Option<EngineSpec>) -> Option<Untaken> {
        // Nobody knows what a framework asked of the budget before it came here.
        if models.iter().any(|model| model.model().is_none()) {
            return None;
        }
        let is_untaken = |key: &str| !models.iter().any(|model| model.takes_dtype(key, budget, engine));
        let stated = DTYPES.iter().filter(|(_, stated, _)| stated(budget).is_some());
        stated.map(|(key, ..)| *key).find(|(key, _)| is_untaken(key))
    }

    /// Whether a cache takes the dtype that a key of the budget states, `dtypes.kv` and its like: with another it would be another cache.
    /// True also where caches cannot be made with one, of which nobody knows.
    pub fn takes_dtype(&self, key: &str, budget: &Budget, engine: Option<EngineSpec>) -> bool {
        let Some((.., set)) = DTYPES.iter().find(|((known, _), ..)| *known == key) else { return false };
        let [wide, narrow] = [DType::F32, DType::F16].map(|dtype| {
            let mut budget = budget.clone();
            set(&mut budget, dtype);
            self.collect(&budget, engine)
        });
        let handlers = |caches: &Resources| caches.iter().map(|cache| cache.handler.clone()).collect::<Vec<_>>();
        wide.ok().zip(narrow.ok()).is_none_or(|(wide, narrow)| handlers(&wide) != handlers(&narrow))
    }

    /// The largest live set of a step, where the layers tell it.
    pub(crate) fn step(&self) -> Option<StepBytes> {
        self.0.step
    }

    /// Whether it is known to have routed experts.
    pub(crate) fn has_experts(&self) -> bool {
        self.model().is_some_and(|model| model.expert_channels().next().is_some())
    }

    /// How it can be divided over ranks, where the layers tell it.
    pub(crate) fn divisible(&self) -> Option<Divisible> {
        self.0.divisible
    }

    fn context(&self, budget: &Budget, engine: Option<EngineSpec>) -> PassContext {
        let mut context = match engine {
            Some(engine) => budget.engine_context(self.info(), engine),
            None => budget.pass_context(self.info()),
        };
        self.0.descriptors.iter().cloned().for_each(|descriptor| context.registry.register(descriptor));
        context
    }

    fn new(from: Origin, descriptors: Vec<Descriptor>, beside: Vec<Resource>) -> Self {
        let (step, divisible) = match &from {
            Origin::Model(model) => (StepBytes::of(model), Some(Divisible::of(&model.layers))),
            Origin::Collected(..) => (None, None),
        };
        let (reweighed, collected) = (false, Mutex::default());
        Self(Arc::new(Parts { from, beside, descriptors, step, divisible, reweighed, collected }))
    }
}

impl From<Model> for ModelCaches {
    fn from(model: Model) -> Self {
        Arc::new(model).into()
    }
}

impl From<Arc<Model>> for ModelCaches {
    fn from(model: Arc<Model>) -> Self {
        Self::new(Origin::Model(model), Vec::new(), Vec::new())
    }
}

impl From<(ModelInfo, Resources)> for ModelCaches {
    /// Of a framework that walks its own graphs.
    fn from((info, resources): (ModelInfo, Resources)) -> Self {
        Self::new(Origin::Collected(Box::new(info), Arc::new(resources)), Vec::new(), Vec::new())
    }
}

impl fmt::Debug for ModelCaches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ModelCaches").field(&self.info().model_type).finish()
    }
}
