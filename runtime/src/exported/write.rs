//! Writes a model's blocks as an ONNX graph over caches of fixed shapes.
//!
//! Every layer adds its own nodes ([`Mixer::trace`](crate::layers::Mixer::trace)); what they share is here.

use cacheplan_kernels::{Backend, Rope, Window};
use cacheplan_transforms::onnx::{
    AttributeProto, Dimension, EDGE_LLM, FunctionProto, GraphProto, ModelProto, NodeProto, OperatorSetId, TensorProto,
    TensorShape, TensorType, TypeProto, ValueInfo,
};
use candle_core::{DType, Device, Tensor};
use half::{bf16, f16};

use crate::error::RuntimeError;

/// The version of the standard operators, where none is newer.
const OPSET: i64 = 18;
/// The first in which `ConstantOfShape` gives bf16.
const OPSET_OF_BF16: i64 = 20;
const IR_VERSION: i64 = 10;

/// What the weights, activations and caches of a graph are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GraphDType {
    /// 32-bit floats.
    #[default]
    F32,
    /// 16-bit floats; norms, softmax, routers and the decay rates of Mamba-2 are 32-bit.
    F16,
    /// 16-bit floats with the range of f32; the same are 32-bit.
    Bf16,
}

/// The shapes of a graph's inputs, and its numbers.
#[derive(Clone, Copy, Debug)]
pub struct GraphForm {
    /// Tokens of a call; `None` for any number.
    pub tokens: Option<usize>,
    /// Sequences of a call.
    pub batch: usize,
    /// Tokens that the caches hold.
    pub max_cache_len: usize,
    /// Its numbers.
    pub dtype: GraphDType,
}

/// A graph that is being written.
#[derive(Debug)]
pub(crate) struct Writer {
    graph: GraphProto,
    form: GraphForm,
    opset: i64,
    /// The layer whose cache is read, by which nodes are called.
    layer: Option<u32>,
    /// The embedded tokens.
    embedded: String,
    layer_inputs: Option<String>,
    /// Keys and values so far, of layers with as many key heads of the same size in one cache.
    key_caches: Vec<KeyCache>,
    /// New latents of each latent attention so far, and how wide they are.
    latents: Vec<String>,
    latent_width: Option<usize>,
    functions: Vec<FunctionProto>,
}

/// The keys and values of layers with as many key heads of the same size.
#[derive(Debug)]
struct KeyCache {
    kv_heads: usize,
    head_dim: usize,
    layers: Vec<LayerKeys>,
}

/// The keys and values of a layer.
#[derive(Debug)]
struct LayerKeys {
    layer: u32,
    /// All of them, `[batch, heads, cache, head_dim]`.
    all: [String; 2],
    /// The new ones alone, behind an axis of layers.
    new: [String; 2],
}

impl KeyCache {
    /// What its inputs, or with `new` its outputs, are called: the first one as if it were the only one.
    fn names(&self, at: usize, word: &str) -> [String; 2] {
        let size = if at == 0 { String::new() } else { format!("{}x{}_", self.kv_heads, self.head_dim) };
        ["k", "v"].map(|side| format!("{word}_{size}{side}"))
    }
}

/// An attention to write.
pub(crate) struct Attending<'a> {
    /// The absolute layer whose keys and values it reads.
    pub(crate) layer: u32,
    /// `[1, tokens, heads, head_dim]`.
    pub(crate) q: String,
    /// Keys and values in the same way; none of a layer that reads those of an earlier one.
    pub(crate) kv: Option<[String; 2]>,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) scale: f32,
    pub(crate) window: Window,
    pub(crate) rope: Option<&'a Rope>,
    /// Logits that take part in the softmax's denominator alone, one per head.
    pub(crate) sinks: Option<&'a [f32]>,
}

/// Scores of queries `[batch, heads, tokens, size]` and keys `[batch, heads or 1, cache, size]`.
#[derive(Clone, Copy)]
struct Scores<'a> {
    q: &'a str,
    keys: &'a str,
    scale: f32,
    window: Window,
    sinks: Option<&'a [f32]>,
}

type Result<T> = std::result::Result<T, RuntimeError>;

pub(crate) fn int(name: &str, value: i64) -> AttributeProto {
    AttributeProto { name: name.to_owned(), i: value, r#type: 2, ..AttributeProto::default() }
}

pub(crate) fn ints(name: &str, values: &[i64]) -> AttributeProto {
    AttributeProto { name: name.to_owned(), ints: values.to_vec(), r#type: 7, ..AttributeProto::default() }
}

/// The error of a part of a model that cannot be written.
pub(crate) fn refuse(what: &str, reason: impl Into<String>) -> RuntimeError {
    RuntimeError::Exported { file: "the graph".to_owned(), what: what.to_owned(), reason: reason.into() }
}

fn port(name: &str, elem_type: i32, shape: &[Option<usize>]) -> ValueInfo {
    let dim = |size: &Option<usize>| Dimension {
        dim_value: size.map(|size| size as i64),
        dim_param: size.is_none().then(|| "seq".to_owned()),
    };
    let shape = Some(TensorShape { dim: shape.iter().map(dim).collect() });
    let tensor_type = Some(TensorType { elem_type, shape });
    ValueInfo { name: name.to_owned(), r#type: Some(TypeProto { tensor_type }) }
}

fn numbers(weight: &Tensor) -> Result<Vec<f32>> {
    Ok(weight.to_device(&Device::Cpu)?.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?)
}

impl Writer {
    pub(crate) fn new(form: GraphForm) -> Self {
        let graph = GraphProto { name: "text_model".to_owned(), ..GraphProto::default() };
        let (embedded, layer_inputs, key_caches, latents, latent_width, functions) = Default::default();
        let mut writer = Self {
            graph,
            form,
            opset: OPSET,
            layer: None,
            embedded,
            layer_inputs,
            key_caches,
            latents,
            latent_width,
            functions,
        };
        writer.input("input_ids", TensorProto::INT64, &[Some(form.batch), form.tokens]);
        writer
    }

    /// A writer of a function's body, which computes in f32.
    pub(crate) fn of_function() -> Self {
        Self::new(GraphForm { tokens: None, batch: 1, max_cache_len: 0, dtype: GraphDType::F32 })
    }

    /// The graph needs operators of this version.
    pub(crate) fn need_opset(&mut self, version: i64) {
        self.opset = self.opset.max(version);
    }

    pub(crate) fn set_embedded(&mut self, embedded: &str) {
        embedded.clone_into(&mut self.embedded);
    }

    /// The embedded tokens, `[batch, tokens, hidden]`.
    pub(crate) fn embedded(&self) -> &str {
        &self.embedded
    }

    pub(crate) fn set_layer_inputs(&mut self, inputs: &str) {
        self.layer_inputs = Some(inputs.to_owned());
    }

    /// What the layers take of the tokens beside the stream, `[batch, tokens, layers, channels]`.
    pub(crate) fn layer_inputs(&self) -> Option<&str> {
        self.layer_inputs.as_deref()
    }

    /// Tokens of a call.
    pub(crate) fn tokens(&self) -> Option<usize> {
        self.form.tokens
    }

    /// Sequences of a call.
    pub(crate) fn batch(&self) -> usize {
        self.form.batch
    }

    /// Tokens of all sequences of a call.
    pub(crate) fn rows(&self) -> Option<usize> {
        self.form.tokens.map(|tokens| tokens * self.form.batch)
    }

    /// The element type of weights, activations and caches.
    pub(crate) fn data_type(&self) -> i32 {
        match self.form.dtype {
            GraphDType::F32 => TensorProto::FLOAT,
            GraphDType::F16 => TensorProto::FLOAT16,
            GraphDType::Bf16 => TensorProto::BFLOAT16,
        }
    }

    fn cast(&mut self, x: &str, to: i32) -> String {
        match self.form.dtype {
            GraphDType::F32 => x.to_owned(),
            GraphDType::F16 | GraphDType::Bf16 => self.node_with("Cast", &[x], vec![int("to", to.into())]),
        }
    }

    /// Of the graph's numbers f32.
    pub(crate) fn wide(&mut self, x: &str) -> String {
        self.cast(x, TensorProto::FLOAT)
    }

    /// Of f32 the graph's numbers.
    pub(crate) fn narrow(&mut self, x: &str) -> String {
        self.cast(x, self.data_type())
    }

    /// A cache as it was.
    pub(crate) fn data_input(&mut self, name: &str, shape: &[Option<usize>]) -> String {
        self.input(name, self.data_type(), shape)
    }

    /// How many tokens of each sequence count.
    pub(crate) fn lengths(&mut self) -> String {
        self.input("context_lengths", TensorProto::INT32, &[Some(self.form.batch)])
    }

    /// An input, once.
    pub(crate) fn input(&mut self, name: &str, elem_type: i32, shape: &[Option<usize>]) -> String {
        if self.graph.input.iter().all(|input| input.name != name) {
            self.graph.input.push(port(name, elem_type, shape));
        }
        name.to_owned()
    }

    pub(crate) fn output(&mut self, value: &str, name: &str, shape: &[Option<usize>]) {
        let node = NodeProto {
            input: vec![value.to_owned()],
            output: vec![name.to_owned()],
            name: name.to_owned(),
            op_type: "Identity".to_owned(),
            ..NodeProto::default()
        };
        self.graph.node.push(node);
        self.graph.output.push(port(name, self.data_type(), shape));
    }

    /// States the shape of a value, for readers that infer none.
    pub(crate) fn state_shape(&mut self, value: &str, shape: &[Option<usize>]) {
        self.graph.value_info.push(port(value, self.data_type(), shape));
    }

    /// A node with several outputs. What is computed already, of the same values, is there once.
    pub(crate) fn nodes<const N: usize>(
        &mut self,
        domain: &str,
        op: &str,
        inputs: &[&str],
        attribute: Vec<AttributeProto>,
    ) -> [String; N] {
        let alike = |node: &&NodeProto| {
            (node.op_type.as_str(), node.domain.as_str()) == (op, domain)
                && node.input == inputs
                && node.attribute == attribute
        };
        if let Some(Ok(outputs)) = self.graph.node.iter().find(alike).map(|node| node.output.clone().try_into()) {
            return outputs;
        }
        let name = format!("{}_{}", op.to_ascii_lowercase(), self.graph.node.len());
        let name = self.layer.map_or(name.clone(), |layer| format!("layers.{layer}.{name}"));
        let outputs: [String; N] = std::array::from_fn(|n| if n == 0 { name.clone() } else { format!("{name}_{n}") });
        self.graph.node.push(NodeProto {
            input: inputs.iter().map(|&input| input.to_owned()).collect(),
            output: outputs.to_vec(),
            name,
            op_type: op.to_owned(),
            attribute,
            domain: domain.to_owned(),
        });
        outputs
    }

    pub(crate) fn node_with(&mut self, op: &str, inputs: &[&str], attribute: Vec<AttributeProto>) -> String {
        let [output] = self.nodes("", op, inputs, attribute);
        output
    }

    pub(crate) fn node(&mut self, op: &str, inputs: &[&str]) -> String {
        self.node_with(op, inputs, Vec::new())
    }

    fn constant(&mut self, data_type: i32, dims: &[usize], raw: Vec<u8>) -> String {
        // The same numbers are there once: every layer has the same tables of its rotation.
        let dims: Vec<i64> = dims.iter().map(|&size| size as i64).collect();
        let alike =
            |tensor: &&TensorProto| tensor.data_type == data_type && tensor.dims == dims && tensor.raw_data == raw;
        if let Some(tensor) = self.graph.initializer.iter().find(alike) {
            return tensor.name.clone();
        }
        let name = format!("constant_{}", self.graph.initializer.len());
        let tensor =
            TensorProto { dims, data_type, name: name.clone(), raw_data: raw.into(), ..TensorProto::default() };
        self.graph.initializer.push(tensor);
        name
    }

    /// Constants in f32.
    pub(crate) fn wide_floats(&mut self, values: &[f32], dims: &[usize]) -> String {
        self.constant(TensorProto::FLOAT, dims, values.iter().flat_map(|value| value.to_le_bytes()).collect())
    }

    /// Constants in the graph's numbers, beyond which none of these is.
    pub(crate) fn data_floats(&mut self, values: &[f32], dims: &[usize]) -> String {
        match self.form.dtype {
            GraphDType::F32 => self.wide_floats(values, dims),
            GraphDType::F16 => {
                let raw = values.iter().flat_map(|&value| f16::from_f32(value).to_le_bytes()).collect();
                self.constant(TensorProto::FLOAT16, dims, raw)
            }
            GraphDType::Bf16 => {
                let raw = values.iter().flat_map(|&value| bf16::from_f32(value).to_le_bytes()).collect();
                self.constant(TensorProto::BFLOAT16, dims, raw)
            }
        }
    }

    pub(crate) fn wide_number(&mut self, value: f32) -> String {
        self.wide_floats(&[value], &[])
    }

    pub(crate) fn data_number(&mut self, value: f32) -> String {
        self.data_floats(&[value], &[])
    }

    pub(crate) fn whole(&mut self, value: i64) -> String {
        self.constant(TensorProto::INT64, &[], value.to_le_bytes().to_vec())
    }

    pub(crate) fn ints(&mut self, values: &[i64]) -> String {
        let raw = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.constant(TensorProto::INT64, &[values.len()], raw)
    }

    /// A weight in f32.
    pub(crate) fn wide_weight(&mut self, weight: &Tensor) -> Result<String> {
        Ok(self.wide_floats(&numbers(weight)?, weight.dims()))
    }

    /// A weight in the graph's numbers.
    pub(crate) fn weight(&mut self, weight: &Tensor) -> Result<String> {
        let values = numbers(weight)?;
        let beyond = |value: &&f32| value.is_finite() && f16::from_f32(**value).is_infinite();
        if let (GraphDType::F16, Some(value)) = (self.form.dtype, values.iter().find(beyond)) {
            let reason = format!("{value} is beyond f16, whose largest number is 65504; export f32");
            return Err(refuse("a weight", reason));
        }
        Ok(self.data_floats(&values, weight.dims()))
    }

    /// `x` times a weight stored `[outputs, inputs]`.
    pub(crate) fn linear(&mut self, x: &str, weight: &Tensor, bias: Option<&Tensor>) -> Result<String> {
        let weight = self.weight(&weight.t()?.contiguous()?)?;
        let product = self.node("MatMul", &[x, &weight]);
        match bias {
            Some(bias) => {
                let bias = self.weight(bias)?;
                Ok(self.node("Add", &[&product, &bias]))
            }
            None => Ok(product),
        }
    }

    /// Each row of the last axis over the root of its mean square.
    pub(crate) fn normalised(&mut self, x: &str, eps: f32) -> String {
        let x = self.wide(x);
        let squares = self.node("Mul", &[&x, &x]);
        let (last, eps) = (self.ints(&[-1]), self.wide_number(eps));
        let mean = self.node_with("ReduceMean", &[&squares, &last], vec![int("keepdims", 1)]);
        let sum = self.node("Add", &[&mean, &eps]);
        let root = self.node("Sqrt", &[&sum]);
        let factor = self.node("Reciprocal", &[&root]);
        let x = self.node("Mul", &[&x, &factor]);
        self.narrow(&x)
    }

    /// The sum over these axes.
    pub(crate) fn sum(&mut self, x: &str, axes: &[i64], keep: bool) -> String {
        let axes = self.ints(axes);
        self.node_with("ReduceSum", &[x, &axes], vec![int("keepdims", keep.into())])
    }

    pub(crate) fn scaled(&mut self, x: &str, factor: f64) -> String {
        if factor == 1.0 {
            return x.to_owned();
        }
        let factor = self.data_number(factor as f32);
        self.node("Mul", &[x, &factor])
    }

    pub(crate) fn silu(&mut self, x: &str) -> String {
        let gate = self.node("Sigmoid", &[x]);
        self.node("Mul", &[x, &gate])
    }

    /// The last axis in pieces of these sizes.
    pub(crate) fn split<const N: usize>(&mut self, x: &str, sizes: [usize; N]) -> [String; N] {
        let sizes = self.ints(&sizes.map(|size| size as i64));
        self.nodes("", "Split", &[x, &sizes], vec![int("axis", -1)])
    }

    pub(crate) fn reshape(&mut self, x: &str, shape: &[i64]) -> String {
        let shape = self.ints(shape);
        self.node("Reshape", &[x, &shape])
    }

    pub(crate) fn transpose(&mut self, x: &str, order: &[i64]) -> String {
        self.node_with("Transpose", &[x], vec![ints("perm", order)])
    }

    pub(crate) fn unsqueeze(&mut self, x: &str, axes: &[i64]) -> String {
        let axes = self.ints(axes);
        self.node("Unsqueeze", &[x, &axes])
    }

    /// The positions of the tokens, `[batch, tokens]`. Sequences that are alone have them without the first axis.
    fn positions(&mut self) -> String {
        let (batch, tokens) = (self.form.batch, self.form.tokens);
        if batch > 1 {
            return self.input("cache_position", TensorProto::INT64, &[Some(batch), tokens]);
        }
        let positions = self.input("cache_position", TensorProto::INT64, &[tokens]);
        self.unsqueeze(&positions, &[0])
    }

    /// Where the tokens' columns lie in a cache `[batch, columns, …]`, as `[batch, tokens, 2]`.
    fn columns(&mut self) -> String {
        let (positions, zero) = (self.positions(), self.whole(0));
        let batch = self.form.batch;
        let sequences = (0..batch as i64).flat_map(i64::to_le_bytes).collect();
        let sequences = self.constant(TensorProto::INT64, &[batch, 1], sequences);
        let nothing = self.node("Mul", &[&positions, &zero]);
        let sequences = self.node("Add", &[&nothing, &sequences]);
        let parts = [sequences, positions].map(|part| self.unsqueeze(&part, &[2]));
        self.node_with("Concat", &[&parts[0], &parts[1]], vec![int("axis", 2)])
    }

    /// `[batch, tokens, heads, head_dim]`, rotated.
    ///
    /// Where neighbours are rotated together they come out half the rotated channels apart, as those of keys do: scores do
    /// not depend on the order.
    pub(crate) fn rotated(&mut self, x: &str, rope: &Rope, head_dim: usize) -> Result<String> {
        let rotary = rope.rotary_dim();
        let half = rotary / 2;
        // A one in each first half and zeros behind it: the rotation's cosine comes first, its sine behind.
        let rows = self.form.max_cache_len;
        let is_first = |at: usize| if rope.is_interleaved() { at < rotary && at.is_multiple_of(2) } else { at < half };
        let unit: Vec<f32> = (0..rows * head_dim).map(|at| f32::from(is_first(at % head_dim))).collect();
        let unit = Tensor::from_vec(unit, (rows, 1, head_dim), &Device::Cpu)?;
        let positions: Vec<u32> = (0..rows as u32).collect();
        let table = rope.apply(&Backend::Cpu.run(), &unit, &positions)?.squeeze(1)?.narrow(1, 0, rotary)?;
        let table = if rope.is_interleaved() {
            table.reshape((rows, half, 2))?.transpose(1, 2)?.reshape((rows, rotary))?
        } else {
            table
        };
        let positions = self.input("position_ids", TensorProto::INT64, &[Some(self.form.batch), self.form.tokens]);
        let mut part = |start: usize| {
            let table = self.weight(&table.narrow(1, start, half)?.contiguous()?)?;
            let rows = self.node_with("Gather", &[&table, &positions], vec![int("axis", 0)]);
            Ok::<_, RuntimeError>(self.unsqueeze(&rows, &[2]))
        };
        let (cos, sin) = (part(0)?, part(half)?);
        let [pairs, rest] = match head_dim - rotary {
            0 => [x.to_owned(), String::new()],
            rest => self.split(x, [rotary, rest]),
        };
        let [first, second] = if rope.is_interleaved() {
            [0, 1].map(|start| {
                let [start, end, axis, step] = [start, i64::MAX, -1, 2].map(|number| self.ints(&[number]));
                self.node("Slice", &[&pairs, &start, &end, &axis, &step])
            })
        } else {
            self.split(&pairs, [half, half])
        };
        let mut product = |a: &str, b: &str| self.node("Mul", &[a, b]);
        let terms = [product(&first, &cos), product(&second, &sin), product(&second, &cos), product(&first, &sin)];
        let (new_first, new_second) =
            (self.node("Sub", &[&terms[0], &terms[1]]), self.node("Add", &[&terms[2], &terms[3]]));
        let parts = [new_first.as_str(), new_second.as_str(), rest.as_str()];
        let parts = if rest.is_empty() { &parts[..2] } else { &parts[..] };
        Ok(self.node_with("Concat", parts, vec![int("axis", -1)]))
    }

    /// What is added to scores `[batch, heads, tokens, cache]`, in f32.
    fn mask(&mut self, window: Window) -> Result<String> {
        let (batch, len) = (self.form.batch, self.form.max_cache_len);
        let positions = self.positions();
        let rows = self.unsqueeze(&positions, &[2]);
        let columns = self.ints(&(0..len as i64).collect::<Vec<_>>());
        let mut seen = self.node("LessOrEqual", &[&columns, &rows]);
        match window {
            Window::Full => {}
            Window::Sliding(tokens) => {
                let tokens = self.ints(&[tokens as i64]);
                let ends = self.node("Add", &[&columns, &tokens]);
                let near = self.node("Greater", &[&ends, &rows]);
                seen = self.node("And", &[&seen, &near]);
            }
            Window::Chunked(_) => return Err(refuse("attention", "chunks of a window are not exported")),
        }
        let valid = self.input("attention_mask", TensorProto::INT64, &[Some(batch), Some(len)]);
        let zero = self.ints(&[0]);
        let valid = self.node("Greater", &[&valid, &zero]);
        let valid = self.unsqueeze(&valid, &[1]);
        let seen = self.node("And", &[&seen, &valid]);
        let (kept, hidden) = (self.wide_number(0.0), self.wide_number(f32::MIN));
        let mask = self.node("Where", &[&seen, &kept, &hidden]);
        Ok(self.unsqueeze(&mask, &[1]))
    }

    /// The cache `past` of one layer with the new tokens' columns `[batch, tokens, heads, size]` in it, as
    /// `[batch, heads, cache, size]`, and these columns alone, behind an axis of layers.
    fn with_new(
        &mut self,
        past: &str,
        (row, layer): (usize, u32),
        new: &str,
        [heads, size]: [usize; 2],
    ) -> [String; 2] {
        let (batch, len) = (self.form.batch, self.form.max_cache_len);
        if self.form.dtype == GraphDType::Bf16 {
            self.need_opset(OPSET_OF_BF16);
        }
        let columns = self.columns();
        let shape = self.ints(&[batch, len, heads, size].map(|size| size as i64));
        let zero = match self.form.dtype {
            GraphDType::F32 => Vec::new(),
            GraphDType::F16 | GraphDType::Bf16 => vec![AttributeProto {
                name: "value".to_owned(),
                t: Some(Box::new(TensorProto {
                    dims: vec![1],
                    data_type: self.data_type(),
                    raw_data: vec![0; 2].into(),
                    ..TensorProto::default()
                })),
                r#type: 4,
                ..AttributeProto::default()
            }],
        };
        let empty = self.node_with("ConstantOfShape", &[&shape], zero);
        let past = self.data_input(past, &[None; 0]);
        let row = self.whole(row as i64);
        self.layer = Some(layer);
        let own = self.node_with("Gather", &[&past, &row], vec![int("axis", 0)]);
        self.layer = None;
        let rows = self.transpose(&own, &[0, 2, 1, 3]);
        let [all, side] = [rows, empty].map(|rows| {
            let written = self.node("ScatterND", &[&rows, &columns, new]);
            self.transpose(&written, &[0, 2, 1, 3])
        });
        [all, self.unsqueeze(&side, &[0])]
    }

    /// How much of each column of the cache a token takes, `[batch, heads, tokens, cache]`.
    fn shares(&mut self, scores: Scores<'_>) -> Result<String> {
        let Scores { q, keys, scale, window, sinks } = scores;
        // Before the product, which f16 has less room for.
        let q = self.scaled(q, f64::from(scale));
        let keys = self.transpose(keys, &[0, 1, 3, 2]);
        let scores = self.node("MatMul", &[&q, &keys]);
        let scores = self.wide(&scores);
        let mask = self.mask(window)?;
        let scores = self.node("Add", &[&scores, &mask]);
        let weights = match sinks {
            None => self.node_with("Softmax", &[&scores], vec![int("axis", -1)]),
            Some(sinks) => {
                let len = self.form.max_cache_len;
                let [first, one, last, end] = [0, 1, 3, len as i64].map(|number| self.ints(&[number]));
                let column = self.node("Slice", &[&scores, &first, &one, &last]);
                let nothing = self.wide_number(0.0);
                let column = self.node("Mul", &[&column, &nothing]);
                let sinks = self.wide_floats(sinks, &[sinks.len(), 1, 1]);
                let column = self.node("Add", &[&column, &sinks]);
                let scores = self.node_with("Concat", &[&scores, &column], vec![int("axis", -1)]);
                let weights = self.node_with("Softmax", &[&scores], vec![int("axis", -1)]);
                self.node("Slice", &[&weights, &first, &end, &last])
            }
        };
        Ok(self.narrow(&weights))
    }

    /// Attention over the fixed cache; `[batch, tokens, heads * head_dim]`.
    pub(crate) fn attend(&mut self, attending: Attending<'_>) -> Result<String> {
        let Attending { layer, mut q, kv, heads, kv_heads, head_dim, scale, window, rope, sinks } = attending;
        if let Some(rope) = rope {
            q = self.rotated(&q, rope, head_dim)?;
        }
        if let Some([mut k, v]) = kv {
            if let Some(rope) = rope {
                k = self.rotated(&k, rope, head_dim)?;
            }
            self.keep(layer, [&k, &v], [kv_heads, head_dim]);
        }
        let own = |cache: &KeyCache| Some(cache.layers.iter().find(|keys| keys.layer == layer)?.all.clone());
        let all = self.key_caches.iter().find_map(own);
        let all = all.ok_or_else(|| refuse("attention", format!("layer {layer}, whose keys it reads, has none")))?;
        let q = self.transpose(&q, &[0, 2, 1, 3]);
        let (batch, len, groups) = (self.form.batch, self.form.max_cache_len, heads / kv_heads);
        let [keys, values] = all.map(|all| {
            let apart = self.unsqueeze(&all, &[2]);
            let shape = self.ints(&[batch, kv_heads, groups, len, head_dim].map(|size| size as i64));
            let each = self.node("Expand", &[&apart, &shape]);
            self.reshape(&each, &[0, heads as i64, len as i64, head_dim as i64])
        });
        let weights = self.shares(Scores { q: &q, keys: &keys, scale, window, sinks })?;
        let y = self.node("MatMul", &[&weights, &values]);
        let y = self.transpose(&y, &[0, 2, 1, 3]);
        Ok(self.reshape(&y, &[0, 0, (heads * head_dim) as i64]))
    }

    /// Adds the new keys and values `[batch, tokens, heads, head_dim]` of a layer to the cache of those of their size.
    fn keep(&mut self, layer: u32, new: [&str; 2], [kv_heads, head_dim]: [usize; 2]) {
        let alike = |cache: &KeyCache| [cache.kv_heads, cache.head_dim] == [kv_heads, head_dim];
        let at = self.key_caches.iter().position(alike).unwrap_or_else(|| {
            self.key_caches.push(KeyCache { kv_heads, head_dim, layers: Vec::new() });
            self.key_caches.len() - 1
        });
        let cache = &self.key_caches[at];
        let (place, past) = ((cache.layers.len(), layer), cache.names(at, "past"));
        let [k, v] = [0, 1].map(|side| self.with_new(&past[side], place, new[side], [kv_heads, head_dim]));
        let ([all_k, new_k], [all_v, new_v]) = (k, v);
        self.key_caches[at].layers.push(LayerKeys { layer, all: [all_k, all_v], new: [new_k, new_v] });
    }

    /// Attention of `q` `[batch, tokens, heads, width]` over a fixed cache of `latents` `[batch, tokens, 1, width]`, the
    /// first `rank` channels of which are what is summed; `[batch, heads, tokens, rank]`.
    pub(crate) fn attend_latents(
        &mut self,
        layer: u32,
        [q, latents]: [&str; 2],
        [width, rank]: [usize; 2],
        scale: f32,
    ) -> Result<String> {
        if *self.latent_width.get_or_insert(width) != width {
            return Err(refuse("latent attention", "layers with latents of different sizes have no common cache"));
        }
        let [all, side] = self.with_new("past_latents", (self.latents.len(), layer), latents, [1, width]);
        self.latents.push(side);
        let q = self.transpose(q, &[0, 2, 1, 3]);
        let weights = self.shares(Scores { q: &q, keys: &all, scale, window: Window::Full, sinks: None })?;
        let [first, end, last] = [0, rank as i64, 3].map(|number| self.ints(&[number]));
        let values = self.node("Slice", &[&all, &first, &end, &last]);
        Ok(self.node("MatMul", &[&weights, &values]))
    }

    /// A function that stands for an op of another domain where a runtime does not know it, once for all layers.
    pub(crate) fn function(&mut self, function: FunctionProto) -> Result<()> {
        match self.functions.iter().find(|own| own.name == function.name) {
            None => self.functions.push(function),
            Some(own) if *own == function => {}
            Some(_) => return Err(refuse(&function.name, "layers of different sizes have no function in common")),
        }
        Ok(())
    }

    /// The model, whose rows are `hidden`.
    pub(crate) fn finish(mut self, hidden: &str, channels: usize) -> ModelProto {
        let GraphForm { tokens, batch, max_cache_len, .. } = self.form;
        self.output(hidden, "last_hidden_state", &[Some(batch), tokens, Some(channels)]);
        for (number, cache) in std::mem::take(&mut self.key_caches).into_iter().enumerate() {
            let shape = [cache.layers.len(), batch, cache.kv_heads, max_cache_len, cache.head_dim].map(Some);
            let names = ["past", "new"].map(|word| cache.names(number, word));
            for side in [0, 1] {
                let parts: Vec<&str> = cache.layers.iter().map(|keys| keys.new[side].as_str()).collect();
                self.finish_cache(names.each_ref().map(|names| names[side].as_str()), &parts, shape);
            }
        }
        if let Some(width) = self.latent_width {
            let layers = std::mem::take(&mut self.latents);
            let shape = [layers.len(), batch, 1, max_cache_len, width].map(Some);
            let parts: Vec<&str> = layers.iter().map(String::as_str).collect();
            self.finish_cache(["past_latents", "new_latents"], &parts, shape);
        }
        let opset = |domain: &str, version| OperatorSetId { domain: domain.to_owned(), version };
        let mut opset_import = vec![opset("", self.opset)];
        if !self.functions.is_empty() {
            opset_import.push(opset(EDGE_LLM, 1));
        }
        // A function's operators are of the version of the graph's.
        self.functions.iter_mut().for_each(|function| function.opset_import = vec![opset("", self.opset)]);
        ModelProto {
            ir_version: IR_VERSION,
            producer_name: "cacheplan".to_owned(),
            graph: Some(self.graph),
            opset_import,
            functions: self.functions,
        }
    }

    /// A cache of all layers: what is new of it as an output, and the shape of the input.
    fn finish_cache(&mut self, [past, new]: [&str; 2], layers: &[&str], shape: [Option<usize>; 5]) {
        let all = self.node_with("Concat", layers, vec![int("axis", 0)]);
        self.output(&all, new, &shape);
        let data_type = self.data_type();
        if let Some(input) = self.graph.input.iter_mut().find(|input| input.name == past) {
            *input = port(past, data_type, &shape);
        }
    }

    /// The nodes of a function, written as those of a graph are.
    pub(crate) fn into_function(
        self,
        name: &str,
        inputs: &[&str],
        outputs: &[(&str, &str)],
        attributes: &[&str],
    ) -> FunctionProto {
        let owned = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        // A function has no initializers: its constants are nodes.
        let constants = self.graph.initializer.into_iter().map(|tensor| NodeProto {
            output: vec![tensor.name.clone()],
            op_type: "Constant".to_owned(),
            attribute: vec![AttributeProto {
                name: "value".to_owned(),
                t: Some(Box::new(tensor)),
                r#type: 4,
                ..AttributeProto::default()
            }],
            ..NodeProto::default()
        });
        let results = outputs.iter().map(|&(value, output)| NodeProto {
            input: vec![value.to_owned()],
            output: vec![output.to_owned()],
            op_type: "Identity".to_owned(),
            ..NodeProto::default()
        });
        FunctionProto {
            name: name.to_owned(),
            input: owned(inputs),
            output: outputs.iter().map(|(_, output)| (*output).to_owned()).collect(),
            attribute: owned(attributes),
            node: constants.chain(self.graph.node).chain(results).collect(),
            opset_import: vec![OperatorSetId { domain: String::new(), version: OPSET }],
            domain: EDGE_LLM.to_owned(),
            attribute_proto: Vec::new(),
        }
    }
}
