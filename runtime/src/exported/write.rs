//! Writes a model's blocks as an ONNX graph over caches of fixed shapes.
//!
//! Every layer adds its own nodes ([`Mixer::trace`](crate::layers::Mixer::trace)); what they share is here.

use cacheplan_kernels::{Backend, Rope, Window};
use cacheplan_transforms::onnx::{
    AttributeProto, Dimension, EDGE_LLM, FunctionProto, GraphProto, ModelProto, NodeProto, OperatorSetId, TensorProto,
    TensorShape, TensorType, TypeProto, ValueInfo,
};
use candle_core::{DType, Device, Tensor};

use crate::error::RuntimeError;

/// The version of the standard operators.
const OPSET: i64 = 18;
const IR_VERSION: i64 = 10;

/// A graph that is being written.
#[derive(Debug)]
pub(crate) struct Writer {
    graph: GraphProto,
    /// Tokens of a call; `None` for any number.
    tokens: Option<usize>,
    max_cache_len: usize,
    /// New keys and values of each attention so far, and its key heads and their size.
    attentions: Vec<[String; 2]>,
    heads: Option<[usize; 2]>,
    functions: Vec<FunctionProto>,
}

/// An attention to write.
pub(crate) struct Attending<'a> {
    /// `[1, tokens, heads, head_dim]`.
    pub(crate) q: String,
    pub(crate) k: String,
    pub(crate) v: String,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) scale: f32,
    pub(crate) window: Window,
    pub(crate) rope: Option<&'a Rope>,
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

pub(super) fn port(name: &str, elem_type: i32, shape: &[Option<usize>]) -> ValueInfo {
    let dim = |size: &Option<usize>| Dimension {
        dim_value: size.map(|size| size as i64),
        dim_param: size.is_none().then(|| "seq".to_owned()),
    };
    let shape = Some(TensorShape { dim: shape.iter().map(dim).collect() });
    let tensor_type = Some(TensorType { elem_type, shape });
    ValueInfo { name: name.to_owned(), r#type: Some(TypeProto { tensor_type }) }
}

impl Writer {
    pub(crate) fn new(tokens: Option<usize>, max_cache_len: usize) -> Self {
        let graph = GraphProto { name: "text_model".to_owned(), ..GraphProto::default() };
        let (attentions, heads, functions) = Default::default();
        let mut writer = Self { graph, tokens, max_cache_len, attentions, heads, functions };
        writer.input("input_ids", TensorProto::INT64, &[Some(1), tokens]);
        writer
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
        self.graph.output.push(port(name, TensorProto::FLOAT, shape));
    }

    /// States the shape of a value, for readers that infer none.
    pub(crate) fn state_shape(&mut self, value: &str, shape: &[Option<usize>]) {
        self.graph.value_info.push(port(value, TensorProto::FLOAT, shape));
    }

    /// Tokens of a call.
    pub(crate) fn tokens(&self) -> Option<usize> {
        self.tokens
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

    pub(crate) fn floats(&mut self, values: &[f32], dims: &[usize]) -> String {
        self.constant(TensorProto::FLOAT, dims, values.iter().flat_map(|value| value.to_le_bytes()).collect())
    }

    pub(crate) fn number(&mut self, value: f32) -> String {
        self.floats(&[value], &[])
    }

    pub(crate) fn whole(&mut self, value: i64) -> String {
        self.constant(TensorProto::INT64, &[], value.to_le_bytes().to_vec())
    }

    pub(crate) fn ints(&mut self, values: &[i64]) -> String {
        let raw = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.constant(TensorProto::INT64, &[values.len()], raw)
    }

    /// A weight, widened to f32.
    pub(crate) fn weight(&mut self, weight: &Tensor) -> Result<String> {
        let values = weight.to_device(&Device::Cpu)?.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?;
        Ok(self.floats(&values, weight.dims()))
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
        let squares = self.node("Mul", &[x, x]);
        let (last, eps) = (self.ints(&[-1]), self.number(eps));
        let mean = self.node_with("ReduceMean", &[&squares, &last], vec![int("keepdims", 1)]);
        let sum = self.node("Add", &[&mean, &eps]);
        let root = self.node("Sqrt", &[&sum]);
        let factor = self.node("Reciprocal", &[&root]);
        self.node("Mul", &[x, &factor])
    }

    pub(crate) fn scaled(&mut self, x: &str, factor: f64) -> String {
        if factor == 1.0 {
            return x.to_owned();
        }
        let factor = self.number(factor as f32);
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

    /// `[1, tokens, heads, head_dim]`, halves of the first `rotary_dim` channels paired.
    fn rotated(&mut self, x: &str, rope: &Rope, head_dim: usize) -> Result<String> {
        let rotary = rope.rotary_dim();
        let half = rotary / 2;
        // A one in each first half and zeros behind it: the rotation's cosine comes first, its sine behind.
        let rows = self.max_cache_len;
        let unit: Vec<f32> = (0..rows * head_dim).map(|at| f32::from(at % head_dim < half)).collect();
        let unit = Tensor::from_vec(unit, (rows, 1, head_dim), &Device::Cpu)?;
        let positions: Vec<u32> = (0..rows as u32).collect();
        let table = rope.apply(&Backend::Cpu.run(), &unit, &positions)?.squeeze(1)?;
        let positions = self.input("position_ids", TensorProto::INT64, &[Some(1), self.tokens]);
        let mut part = |start: usize| {
            let table = self.weight(&table.narrow(1, start, half)?.contiguous()?)?;
            let rows = self.node_with("Gather", &[&table, &positions], vec![int("axis", 0)]);
            Ok::<_, RuntimeError>(self.unsqueeze(&rows, &[2]))
        };
        let (cos, sin) = (part(0)?, part(half)?);
        let [first, second, rest] = match head_dim - rotary {
            0 => {
                let [first, second] = self.split(x, [half, half]);
                [first, second, String::new()]
            }
            rest => self.split(x, [half, half, rest]),
        };
        let mut product = |a: &str, b: &str| self.node("Mul", &[a, b]);
        let terms = [product(&first, &cos), product(&second, &sin), product(&second, &cos), product(&first, &sin)];
        let (new_first, new_second) =
            (self.node("Sub", &[&terms[0], &terms[1]]), self.node("Add", &[&terms[2], &terms[3]]));
        let parts = [new_first.as_str(), new_second.as_str(), rest.as_str()];
        let parts = if rest.is_empty() { &parts[..2] } else { &parts[..] };
        Ok(self.node_with("Concat", parts, vec![int("axis", -1)]))
    }

    /// What is added to scores `[1, heads, tokens, cache]`.
    fn mask(&mut self, window: Window) -> Result<String> {
        let len = self.max_cache_len;
        let positions = self.input("cache_position", TensorProto::INT64, &[self.tokens]);
        let rows = self.unsqueeze(&positions, &[1]);
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
        let valid = self.input("attention_mask", TensorProto::INT64, &[Some(1), Some(len)]);
        let zero = self.ints(&[0]);
        let valid = self.node("Greater", &[&valid, &zero]);
        let seen = self.node("And", &[&seen, &valid]);
        let (kept, hidden) = (self.number(0.0), self.number(f32::MIN));
        let mask = self.node("Where", &[&seen, &kept, &hidden]);
        Ok(self.unsqueeze(&mask, &[0, 1]))
    }

    /// Attention over the fixed cache; `[1, tokens, heads * head_dim]`.
    pub(crate) fn attend(&mut self, attending: Attending<'_>) -> Result<String> {
        let Attending { mut q, mut k, v, heads, kv_heads, head_dim, scale, window, rope } = attending;
        if *self.heads.get_or_insert([kv_heads, head_dim]) != [kv_heads, head_dim] {
            return Err(refuse(
                "attention",
                "layers with key heads of different numbers or sizes have no common cache",
            ));
        }
        if let Some(rope) = rope {
            (q, k) = (self.rotated(&q, rope, head_dim)?, self.rotated(&k, rope, head_dim)?);
        }
        let q = self.transpose(&q, &[0, 2, 1, 3]);
        let layer = self.attentions.len();
        let (len, groups) = (self.max_cache_len, heads / kv_heads);
        let positions = self.input("cache_position", TensorProto::INT64, &[self.tokens]);
        let places = self.unsqueeze(&positions, &[1]);
        let shape = self.ints(&[len, 1, kv_heads, head_dim].map(|size| size as i64));
        let empty = self.node("ConstantOfShape", &[&shape]);
        let mut sides = Vec::new();
        let mut kept = Vec::new();
        for (past, new) in [("past_k", k), ("past_v", v)] {
            let past = self.input(past, TensorProto::FLOAT, &[None; 0]);
            let number = self.whole(layer as i64);
            let own = self.node_with("Gather", &[&past, &number], vec![int("axis", 0)]);
            let rows = self.transpose(&own, &[2, 0, 1, 3]);
            let new = self.transpose(&new, &[1, 0, 2, 3]);
            let all = self.node("ScatterND", &[&rows, &places, &new]);
            let all = self.transpose(&all, &[1, 2, 0, 3]);
            let side = self.node("ScatterND", &[&empty, &places, &new]);
            let side = self.transpose(&side, &[1, 2, 0, 3]);
            sides.push(self.unsqueeze(&side, &[0]));
            let apart = self.unsqueeze(&all, &[2]);
            let shape = self.ints(&[1, kv_heads, groups, len, head_dim].map(|size| size as i64));
            let each = self.node("Expand", &[&apart, &shape]);
            kept.push(self.reshape(&each, &[1, heads as i64, len as i64, head_dim as i64]));
        }
        if let Ok(sides) = <[String; 2]>::try_from(sides) {
            self.attentions.push(sides);
        }
        let keys = self.transpose(&kept[0], &[0, 1, 3, 2]);
        let scores = self.node("MatMul", &[&q, &keys]);
        let scores = self.scaled(&scores, f64::from(scale));
        let mask = self.mask(window)?;
        let scores = self.node("Add", &[&scores, &mask]);
        let weights = self.node_with("Softmax", &[&scores], vec![int("axis", -1)]);
        let y = self.node("MatMul", &[&weights, &kept[1]]);
        let y = self.transpose(&y, &[0, 2, 1, 3]);
        Ok(self.reshape(&y, &[1, -1, (heads * head_dim) as i64]))
    }

    /// A function that stands for an op of another domain where a runtime does not know it.
    pub(crate) fn function(&mut self, function: FunctionProto) {
        if self.functions.iter().all(|own| own.name != function.name) {
            self.functions.push(function);
        }
    }

    /// The model, whose rows are `hidden`.
    pub(crate) fn finish(mut self, hidden: &str, channels: usize) -> ModelProto {
        let tokens = self.tokens;
        self.output(hidden, "last_hidden_state", &[Some(1), tokens, Some(channels)]);
        if let Some([kv_heads, head_dim]) = self.heads {
            let layers = std::mem::take(&mut self.attentions);
            let shape = [layers.len(), 1, kv_heads, self.max_cache_len, head_dim].map(Some);
            for (at, (past, new)) in [("past_k", "new_k"), ("past_v", "new_v")].into_iter().enumerate() {
                let parts: Vec<&str> = layers.iter().map(|sides| sides[at].as_str()).collect();
                let all = self.node_with("Concat", &parts, vec![int("axis", 0)]);
                self.output(&all, new, &shape);
                if let Some(input) = self.graph.input.iter_mut().find(|input| input.name == past) {
                    *input = port(past, TensorProto::FLOAT, &shape);
                }
            }
        }
        let opset = |domain: &str, version| OperatorSetId { domain: domain.to_owned(), version };
        let mut opset_import = vec![opset("", OPSET)];
        if !self.functions.is_empty() {
            opset_import.push(opset(EDGE_LLM, 1));
        }
        ModelProto {
            ir_version: IR_VERSION,
            producer_name: "cacheplan".to_owned(),
            graph: Some(self.graph),
            opset_import,
            functions: self.functions,
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
