//! The graph that the passes walk: ops as nodes, edges that carry ports into one table of tensors.

use std::borrow::Cow;
use std::fmt;

use cacheplan_handlers::DType;
use petgraph::Direction;
use petgraph::graph::{DiGraph, NodeIndex};
use petgraph::visit::EdgeRef;

use crate::weights::{Stored, WeightClass, WeightClasses};

/// A node of the graph.
pub(crate) type OpId = NodeIndex<u32>;

/// The name of an op or a tensor: the layer it belongs to and the part it plays there, `layers.5.attention`.
///
/// It is kept in two pieces because a graph holds tens of thousands of names and hardly ever prints one.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name {
    /// The absolute layer; `None` outside the decoder layers.
    pub layer: Option<u32>,
    /// What it is there, `attention`.
    pub part: Cow<'static, str>,
}

impl Name {
    /// A name inside a layer, or outside all of them.
    pub fn new(layer: Option<u32>, part: impl Into<Cow<'static, str>>) -> Self {
        Self { layer, part: part.into() }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.layer {
            Some(layer) => write!(f, "layers.{layer}.{}", self.part),
            None => f.write_str(&self.part),
        }
    }
}

/// One axis of a tensor's shape.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Extent {
    /// Known while planning.
    Known(u64),
    /// Known only while running, `batch` or `sequence`.
    Symbol(Cow<'static, str>),
}

impl Extent {
    /// Sequences in a step.
    pub const BATCH: Self = Self::Symbol(Cow::Borrowed("batch"));
    /// New tokens of a sequence in a step.
    pub const SEQUENCE: Self = Self::Symbol(Cow::Borrowed("sequence"));
    /// Sequence slots, counted by the plan.
    pub const SLOTS: Self = Self::Symbol(Cow::Borrowed("slots"));
    /// Blocks of a paged pool, counted by the plan.
    pub const BLOCKS: Self = Self::Symbol(Cow::Borrowed("blocks"));
}

impl From<u64> for Extent {
    fn from(size: u64) -> Self {
        Self::Known(size)
    }
}

impl fmt::Display for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Known(size) => write!(f, "{size}"),
            Self::Symbol(symbol) => f.write_str(symbol),
        }
    }
}

/// A row of the tensor table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// What it is called.
    pub name: Name,
    /// Its axes, outermost first.
    pub shape: Vec<Extent>,
    /// Its element type.
    pub dtype: DType,
    /// Where it comes from.
    pub origin: TensorOrigin,
}

/// Where a tensor comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TensorOrigin {
    /// Given with each step.
    Input,
    /// A weight.
    Parameter,
    /// An output of an op.
    Op(OpId),
}

/// A row number of the tensor table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TensorId(u32);

/// A fact about an op that no tensor shape tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Attribute {
    /// A count or a size.
    Number(u64),
    /// Several of them.
    Numbers(Vec<u64>),
    /// An element type that the model states.
    DType(DType),
    /// A yes.
    Flag,
}

/// A node: what is computed, from what, and which caches it was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Op {
    /// What it is called, unique in its graph.
    pub name: Name,
    /// What it computes, a namespaced word: `core.attention`. See [`crate::ops`].
    pub kind: Cow<'static, str>,
    /// The tensors it reads, each under the name of its port.
    pub inputs: Vec<(Cow<'static, str>, TensorId)>,
    /// The tensors it makes.
    pub outputs: Vec<TensorId>,
    /// What no shape tells.
    pub attributes: Vec<(Cow<'static, str>, Attribute)>,
    /// Names of the cache resources that the passes gave it.
    pub caches: Vec<String>,
}

impl Op {
    /// An op without ports; add them with [`Op::input`] and [`Op::attribute`].
    pub(crate) fn new(name: Name, kind: impl Into<Cow<'static, str>>) -> Self {
        let (inputs, outputs, attributes, caches) = Default::default();
        Self { name, kind: kind.into(), inputs, outputs, attributes, caches }
    }

    /// The same op reading `tensor` at `port`.
    #[must_use]
    pub(crate) fn input(mut self, port: impl Into<Cow<'static, str>>, tensor: TensorId) -> Self {
        self.inputs.push((port.into(), tensor));
        self
    }

    /// The same op with one more attribute.
    #[must_use]
    pub(crate) fn attribute(mut self, key: impl Into<Cow<'static, str>>, value: Attribute) -> Self {
        self.attributes.push((key.into(), value));
        self
    }

    /// The same op with one more attribute, where there is a value for it.
    #[must_use]
    pub(crate) fn maybe(self, key: &'static str, value: Option<Attribute>) -> Self {
        match value {
            Some(value) => self.attribute(key, value),
            None => self,
        }
    }

    /// The same op with the layer whose caches it means to read, where it has none of its own.
    #[must_use]
    pub(crate) fn shared_with(self, layer: Option<u32>) -> Self {
        self.maybe(Attribute::SHARES_LAYER, layer.map(|layer| Attribute::Number(layer.into())))
    }

    /// The tensor read at `port`.
    pub fn port(&self, port: &str) -> Option<TensorId> {
        self.inputs.iter().find(|(name, _)| name == port).map(|&(_, tensor)| tensor)
    }

    /// The attribute called `key`.
    pub fn get(&self, key: &str) -> Option<&Attribute> {
        self.attributes.iter().find(|(name, _)| name == key).map(|(_, value)| value)
    }

    /// The number called `key`.
    pub fn number(&self, key: &str) -> Option<u64> {
        match self.get(key) {
            Some(Attribute::Number(number)) => Some(*number),
            _ => None,
        }
    }

    /// The dtype called `key`.
    pub fn dtype(&self, key: &str) -> Option<DType> {
        match self.get(key) {
            Some(Attribute::DType(dtype)) => Some(*dtype),
            _ => None,
        }
    }
}

/// Which output feeds which input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edge {
    /// The tensor that flows.
    pub tensor: TensorId,
    /// Index into the consumer's inputs.
    pub input: usize,
}

/// A model as the passes see it.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    ops: DiGraph<Op, Edge>,
    tensors: Vec<Tensor>,
}

impl Graph {
    /// An empty graph.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a tensor that is given with each step.
    pub(crate) fn add_input(&mut self, name: Name, shape: Vec<Extent>, dtype: DType) -> TensorId {
        self.add_tensor(Tensor { name, shape, dtype, origin: TensorOrigin::Input })
    }

    /// Adds a weight.
    pub(crate) fn add_parameter(&mut self, name: Name, shape: &[u64], dtype: DType) -> TensorId {
        let shape = shape.iter().map(|&size| Extent::Known(size)).collect();
        self.add_tensor(Tensor { name, shape, dtype, origin: TensorOrigin::Parameter })
    }

    /// Stores each weight as `how` says of its name; one without a word stays as it is.
    ///
    /// What is stored in no element type becomes a row of bytes.
    pub(crate) fn store_parameters(
        &mut self,
        how: impl Fn(&Name) -> Result<Option<Stored>, String>,
    ) -> Result<(), String> {
        for tensor in self.tensors.iter_mut().filter(|tensor| tensor.origin == TensorOrigin::Parameter) {
            match how(&tensor.name)? {
                None => {}
                Some(Stored::As(dtype)) => tensor.dtype = dtype,
                Some(packed) => {
                    let bytes = tensor.elements().and_then(|elements| packed.bytes(elements)).unwrap_or(u64::MAX);
                    (tensor.shape, tensor.dtype) = (vec![Extent::Known(bytes)], DType::Int8);
                }
            }
        }
        Ok(())
    }

    /// The weight of that name that was added last.
    pub(crate) fn last_parameter(&self, name: &Name) -> Option<TensorId> {
        let is_it = |tensor: &Tensor| tensor.origin == TensorOrigin::Parameter && tensor.name == *name;
        self.tensors.iter().rposition(is_it).and_then(|place| u32::try_from(place).ok()).map(TensorId)
    }

    /// Adds an op, with an edge from the producer of each of its inputs.
    pub(crate) fn add_op(&mut self, op: Op) -> OpId {
        let inputs = op.inputs.len();
        let id = self.ops.add_node(op);
        for input in 0..inputs {
            let tensor = self.ops[id].inputs[input].1;
            self.connect(tensor, id, input);
        }
        id
    }

    /// Adds an output to an op.
    pub(crate) fn add_output(&mut self, op: OpId, name: Name, shape: Vec<Extent>, dtype: DType) -> TensorId {
        let tensor = self.add_tensor(Tensor { name, shape, dtype, origin: TensorOrigin::Op(op) });
        if let Some(op) = self.ops.node_weight_mut(op) {
            op.outputs.push(tensor);
        }
        tensor
    }

    /// Makes room for so many more ops of one output, each read once.
    pub(crate) fn reserve(&mut self, ops: usize) {
        self.ops.reserve_nodes(ops);
        self.ops.reserve_edges(ops);
        self.tensors.reserve(ops);
    }

    /// Lets an op that is already there read one more tensor.
    pub(crate) fn add_port(&mut self, op: OpId, port: Cow<'static, str>, tensor: TensorId) {
        let inputs = &mut self.ops[op].inputs;
        let input = inputs.len();
        inputs.push((port, tensor));
        self.connect(tensor, op, input);
    }

    /// Makes a port the last of its op's.
    pub(crate) fn move_last(&mut self, op: OpId, port: &str) {
        let inputs = &mut self.ops[op].inputs;
        let Some(from) = inputs.iter().position(|(name, _)| name == port) else { return };
        inputs[from..].rotate_left(1);
        let last = inputs.len() - 1;
        let edges: Vec<_> = self.ops.edges_directed(op, Direction::Incoming).map(|edge| edge.id()).collect();
        for edge in edges {
            let input = &mut self.ops[edge].input;
            *input = if *input == from { last } else { *input - usize::from(*input > from) };
        }
    }

    fn connect(&mut self, tensor: TensorId, consumer: OpId, input: usize) {
        if let TensorOrigin::Op(producer) = self.tensor(tensor).origin {
            self.ops.add_edge(producer, consumer, Edge { tensor, input });
        }
    }

    fn add_tensor(&mut self, tensor: Tensor) -> TensorId {
        let id = TensorId(u32::try_from(self.tensors.len()).unwrap_or(u32::MAX));
        self.tensors.push(tensor);
        id
    }

    /// The tensor of that number.
    ///
    /// # Panics
    /// If `id` is of another graph.
    pub fn tensor(&self, id: TensorId) -> &Tensor {
        &self.tensors[id.0 as usize]
    }

    /// All tensors, in the order they were added.
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// The op of that number.
    ///
    /// # Panics
    /// If `id` is of another graph.
    pub fn op(&self, id: OpId) -> &Op {
        &self.ops[id]
    }

    pub(crate) fn op_mut(&mut self, id: OpId) -> &mut Op {
        &mut self.ops[id]
    }

    /// All ops, in the order they were added, which is the order of execution.
    pub fn op_ids(&self) -> impl Iterator<Item = OpId> + use<> {
        self.ops.node_indices()
    }

    /// The underlying petgraph, for whatever walks it differently.
    pub fn petgraph(&self) -> &DiGraph<Op, Edge> {
        &self.ops
    }
}

impl Graph {
    /// Bytes of all weights by class; `None` if they do not fit.
    pub(crate) fn parameter_bytes(&self, counts: impl Fn(&Name) -> bool) -> Option<WeightClasses> {
        let mut classes = WeightClasses::default();
        for tensor in
            self.tensors.iter().filter(|tensor| tensor.origin == TensorOrigin::Parameter && counts(&tensor.name))
        {
            classes.add(WeightClass::of_part(&tensor.name.part), tensor.bytes()?)?;
        }
        Some(classes)
    }
}

impl Tensor {
    /// How many elements it has; `None` if an extent is symbolic or the product does not fit.
    fn elements(&self) -> Option<u64> {
        self.shape.iter().try_fold(1u64, |elements, extent| match extent {
            Extent::Known(size) => elements.checked_mul(*size),
            Extent::Symbol(_) => None,
        })
    }

    /// Bytes of the whole tensor; `None` if an extent is symbolic or the product does not fit.
    fn bytes(&self) -> Option<u64> {
        let mut sizes = self.shape.iter().map(|extent| match extent {
            Extent::Known(size) => Some(*size),
            Extent::Symbol(_) => None,
        });
        let row = self.dtype.row_bytes(sizes.next_back().unwrap_or(Some(1))?)?;
        sizes.try_fold(row, |bytes, size| bytes.checked_mul(size?))
    }
}
