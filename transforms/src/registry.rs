//! How an op becomes cache resources: descriptors, which a framework can add to.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use cacheplan_files::Shown;
use cacheplan_handlers::{DType, DecayKind, HandlerError, Recurrence, ResourceHandler};
use thiserror::Error;

use crate::cache_dtypes::CacheDTypes;
use crate::graph::{Attribute, Extent, Graph, Op};

/// The insertion pass that an op belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Stage {
    /// Attention over keys and values.
    Attention,
    /// Multi-head latent attention.
    Mla,
    /// Recurrent states.
    Ssm,
    /// Convolution states.
    CausalConv,
    /// Whatever a framework adds that is none of these.
    Custom,
}

impl Stage {
    /// The pass of an op of `kind`: what is none of the known kinds of caches comes after them all.
    pub(crate) fn of(kind: &str) -> Self {
        match kind {
            Op::ATTENTION | Op::STATIC_CACHE => Self::Attention,
            Op::MLA | Op::INDEXER | Op::COMPRESSED_ATTENTION | Op::ENTRIES => Self::Mla,
            Op::RWKV4 | Op::SSD | Op::SELECTIVE_SCAN | Op::LINEAR_ATTENTION | Op::RG_LRU | Op::RING => Self::Ssm,
            Op::CAUSAL_CONV => Self::CausalConv,
            _ => Self::Custom,
        }
    }
}

/// One cache that an op needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cache {
    /// The first part of the resource's name; the layer follows: `kv_cache` becomes `kv_cache_5`.
    pub suffix: Cow<'static, str>,
    /// What it is.
    pub handler: ResourceHandler,
}

type Derive = dyn Fn(&mut OpView<'_>) -> Result<Vec<Cache>, DescribeError> + Send + Sync;

/// Says which caches the ops of one kind need.
#[derive(Clone)]
pub struct Descriptor {
    pub(crate) kind: Cow<'static, str>,
    pub(crate) stage: Stage,
    pub(crate) derive: Arc<Derive>,
    pub(crate) takes_masks: bool,
}

impl Descriptor {
    /// A descriptor of ops of `kind`.
    ///
    /// `derive` reads the dimensions from the op's tensors and returns the caches; none means that this op, with these
    /// dimensions, keeps nothing.
    pub fn new(
        kind: impl Into<Cow<'static, str>>,
        derive: impl Fn(&mut OpView<'_>) -> Result<Vec<Cache>, DescribeError> + Send + Sync + 'static,
    ) -> Self {
        let kind = kind.into();
        Self { stage: Stage::of(&kind), kind, derive: Arc::new(derive), takes_masks: false }
    }

    /// The same descriptor, of ops whose kernels take a mask beside causality.
    #[must_use]
    pub fn taking_masks(self) -> Self {
        Self { takes_masks: true, ..self }
    }
}

/// The descriptors in force: the built-in ones and those a framework registers.
#[derive(Clone)]
pub struct Registry(HashMap<Cow<'static, str>, Descriptor>);

impl Registry {
    /// One that knows no op.
    pub(crate) fn empty() -> Self {
        Self(HashMap::new())
    }

    /// Adds a descriptor; it replaces an earlier one of the same op kind.
    pub fn register(&mut self, descriptor: Descriptor) {
        self.0.insert(descriptor.kind.clone(), descriptor);
    }

    /// The descriptor of an op kind.
    pub fn get(&self, kind: &str) -> Option<&Descriptor> {
        self.0.get(kind)
    }

    /// Op kinds whose kernels take masks, in no particular order.
    pub(crate) fn taking_masks(&self) -> impl Iterator<Item = &str> {
        self.0.values().filter(|descriptor| descriptor.takes_masks).map(|descriptor| descriptor.kind.as_ref())
    }

    /// Op kinds that have a descriptor, in no particular order.
    pub fn kinds(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(Cow::as_ref)
    }
}

/// An op as its descriptor sees it: tensors, attributes and the budget's dtypes, nothing of any config.
///
/// It writes down where each dimension came from.
pub struct OpView<'a> {
    graph: &'a Graph,
    op: &'a Op,
    dtypes: CacheDTypes,
    pub(crate) provenance: Vec<String>,
}

impl<'a> OpView<'a> {
    pub(crate) fn new(graph: &'a Graph, op: &'a Op, dtypes: CacheDTypes) -> Self {
        Self { graph, op, dtypes, provenance: Vec::with_capacity(4) }
    }

    /// The op itself.
    pub fn op(&self) -> &'a Op {
        self.op
    }

    /// The size of one axis of the tensor at `port`, remembered as the origin of the dimension `dim`.
    ///
    /// # Errors
    /// No such port, no such axis, or an axis that is known only while running.
    pub fn dim(&mut self, dim: &str, port: &'static str, axis: usize) -> Result<u64, DescribeError> {
        let id = self.op.port(port).ok_or(DescribeError::NoInput { port })?;
        let tensor = self.graph.tensor(id);
        match tensor.shape.get(axis) {
            None => Err(DescribeError::Rank { port, rank: tensor.shape.len(), axis }),
            Some(Extent::Symbol(symbol)) => {
                Err(DescribeError::Symbolic { dim: dim.to_owned(), port, axis, symbol: symbol.to_string() })
            }
            Some(Extent::Known(size)) => {
                self.provenance.push(format!("{dim} = {size} (tensor {}, axis {axis})", tensor.name));
                Ok(*size)
            }
        }
    }

    /// Writes down something else that the caches follow from.
    pub fn note(&mut self, line: String) {
        self.provenance.push(line);
    }

    /// How many axes the tensor at `port` has.
    ///
    /// # Errors
    /// No such port.
    pub fn rank(&self, port: &'static str) -> Result<usize, DescribeError> {
        let id = self.op.port(port).ok_or(DescribeError::NoInput { port })?;
        Ok(self.graph.tensor(id).shape.len())
    }

    /// The element type of the tensor at `port`.
    ///
    /// # Errors
    /// No such port.
    pub fn dtype(&self, port: &'static str) -> Result<DType, DescribeError> {
        let id = self.op.port(port).ok_or(DescribeError::NoInput { port })?;
        Ok(self.graph.tensor(id).dtype)
    }

    /// The element type of keys and values: the budget's, else the model's own, else that of the tensor at `port`. Where
    /// the first two say int8, each row has a scale in the cache, unless an engine keeps scales outside.
    ///
    /// # Errors
    /// No such port.
    pub fn kv_dtype(&mut self, port: &'static str) -> Result<DType, DescribeError> {
        let keys = self.dtype(port)?;
        let scales_outside = self.dtypes.scales_outside;
        let scaled = |dtype: DType| match dtype {
            DType::Int8 if !scales_outside => DType::Int8PerTokenHead,
            other => other,
        };
        Ok(self.choose(&[
            (self.dtypes.kv.map(scaled), "the budget"),
            (self.op.dtype(Attribute::CACHE_DTYPE).map(scaled), "the model"),
            (Some(keys), "the keys"),
        ]))
    }

    /// The element type that the model states for this cache alone, whatever the budget states of others.
    pub fn stored_dtype(&mut self) -> Option<DType> {
        let dtype = self.op.dtype(Attribute::STORED_DTYPE)?;
        self.provenance.push(format!("dtype = {dtype} (the model)"));
        Some(dtype)
    }

    /// The element type of a recurrent state: the budget's, else what the model states, else what an engine chooses, else
    /// float32.
    ///
    /// # Errors
    /// One that no live state is stored in.
    pub fn state_dtype(&mut self) -> Result<DType, DescribeError> {
        self.state_dtype_or(self.dtypes.state)
    }

    /// The same of a recurrence, of which an engine may choose otherwise.
    pub(crate) fn recurrent_dtype(&mut self, recurrence: &Recurrence) -> Result<DType, DescribeError> {
        let per_channel =
            matches!(recurrence, Recurrence::LinearAttention { delta_rule: true, decay: DecayKind::PerChannel, .. });
        self.state_dtype_or(self.dtypes.per_channel.filter(|_| per_channel).or(self.dtypes.state))
    }

    fn state_dtype_or(&mut self, chosen: Option<DType>) -> Result<DType, DescribeError> {
        let stated = self.op.dtype(Attribute::STATE_DTYPE).filter(|_| !self.dtypes.states_unread);
        self.choose_state(
            "dtypes.ssm",
            &[
                (self.dtypes.state_override, "the budget"),
                (stated, "the model"),
                (chosen, "the engine"),
                (Some(DType::F32), "the default"),
            ],
        )
    }

    /// The element type of a convolution state: the budget's, else that of the tensor at `port`.
    ///
    /// # Errors
    /// No such port, or a type that no live state is stored in.
    pub fn conv_dtype(&mut self, port: &'static str) -> Result<DType, DescribeError> {
        let activations = self.dtype(port)?;
        let candidates = [(self.dtypes.conv, "the budget"), (Some(activations), "the activations")];
        self.choose_state("dtypes.conv", &candidates)
    }

    fn choose_state(
        &mut self,
        key: &'static str,
        candidates: &[(Option<DType>, &'static str)],
    ) -> Result<DType, DescribeError> {
        let dtype = self.choose(candidates);
        if dtype.holds_states() { Ok(dtype) } else { Err(DescribeError::LiveState { key, dtype }) }
    }

    fn choose(&mut self, candidates: &[(Option<DType>, &'static str)]) -> DType {
        let stated = candidates.iter().find_map(|&(dtype, source)| dtype.map(|dtype| (dtype, source)));
        let (dtype, source) = stated.unwrap_or((DType::F32, "the default"));
        self.provenance.push(format!("dtype = {dtype} ({source})"));
        dtype
    }
}

/// An op whose caches cannot be told.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DescribeError {
    /// The op lacks an input.
    #[error("it has no input `{port}`")]
    NoInput {
        /// The port that is missing.
        port: &'static str,
    },
    /// A tensor has too few axes.
    #[error("input `{port}` has {rank} axes; axis {axis} was expected")]
    Rank {
        /// The port.
        port: &'static str,
        /// How many axes it has.
        rank: usize,
        /// The axis looked for.
        axis: usize,
    },
    /// A dimension is not known while planning.
    #[error("{dim} cannot be told: axis {axis} of input `{port}` is the symbol `{symbol}`", dim = Shown(.dim), symbol = Shown(.symbol))]
    Symbolic {
        /// The dimension.
        dim: String,
        /// The port.
        port: &'static str,
        /// The axis.
        axis: usize,
        /// What stands there instead of a number.
        symbol: String,
    },
    /// A state in a type that none is computed in.
    #[error("its live state would be stored in {dtype}, in which none is computed; state `{key}` as f32, f16 or bf16")]
    LiveState {
        /// The key of a budget that chooses another.
        key: &'static str,
        /// The type that was chosen.
        dtype: DType,
    },
    /// Shapes of one op that cannot go together.
    #[error("{shown}", shown = Shown(.0))]
    Inconsistent(String),
    /// The dimensions make no valid resource.
    #[error(transparent)]
    Handler(#[from] HandlerError),
}
