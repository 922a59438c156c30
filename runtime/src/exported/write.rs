//! Writes a model's blocks as an ONNX graph over caches of fixed shapes.
//!
//! Every layer adds its own nodes ([`Mixer::trace`](crate::layers::Mixer::trace)); what they share is here.

mod attention;

use cacheplan_transforms::onnx::{
    AttributeProto, Dimension, EDGE_LLM, FunctionProto, GraphProto, ModelProto, NodeProto, OperatorSetId, TensorProto,
    TensorShape, TensorType, TypeProto, ValueInfo,
};
use candle_core::{DType, Device, Tensor};
use half::{bf16, f16};

pub(crate) use self::attention::Attending;
use self::attention::KeyCache;
use crate::error::{Result, RuntimeError};

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
