//! A graph as it is read: its nodes, and what of it is constant.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::{Component, Path};

use cacheplan_files::{Limit, Source};
use cacheplan_transforms::onnx::{
    EdgeOp, GraphProto, ModelProto, NodeProto, OnnxError, OperatorSetId, TensorProto, ValueInfo, weigh,
};
use prost::Message;
use prost::bytes::Bytes;

use crate::builder::Builder;
use crate::error::GraphError;
use crate::layout::{MAX_RANK, count};
use crate::node::{Node, sizes, value_of};
use crate::nodes::{is_known, lower};
use crate::stateful::state_of;
use crate::tensor::{Element, Value};

/// Numbers that are computed when a graph is loaded, besides as many as its weights have.
const COMPUTED: usize = 1 << 21;

/// Versions of the standard operators that are run.
const OPSETS: std::ops::RangeInclusive<i64> = 13..=27;

/// A graph that can be run.
#[derive(Debug)]
pub(crate) struct Graph {
    pub(crate) file: String,
    /// What a run is given.
    pub(crate) inputs: Vec<Port>,
    /// What a run gives.
    pub(crate) outputs: Vec<Port>,
    /// The numbers of the inputs among all values.
    pub(crate) given: Vec<usize>,
    /// Those of the outputs.
    pub(crate) made: Vec<usize>,
    /// Those that depend on the inputs, in their order.
    pub(crate) nodes: Vec<Node>,
    /// The values by number: what is constant.
    pub(crate) constants: Vec<Option<Value>>,
}

/// An input or output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Its name.
    pub name: String,
    /// What it is made of.
    pub element: Element,
    /// Its axes; `None` for those that are open.
    pub shape: Vec<Option<usize>>,
}

impl Graph {
    /// Reads a graph and its weights; weights in other files must lie in the folder of this one.
    pub(crate) fn open(path: &Path) -> Result<Self, GraphError> {
        let source = Source::open(path)?;
        let (model, file) = (decode(&source)?, source.name());
        let folder = path.parent().unwrap_or(Path::new(""));
        let malformed = |reason: String| GraphError::Malformed { file: file.to_owned(), reason };
        let standard = model.opset_import.iter().find(|opset| matches!(opset.domain.as_str(), "" | "ai.onnx"));
        let version = standard.map_or(0, |opset| opset.version);
        if !OPSETS.contains(&version) {
            let (first, last) = (OPSETS.start(), OPSETS.end());
            return Err(malformed(format!("its operators are of version {version}; {first} to {last} are run")));
        }
        let Some(graph) = model.graph else { return Err(malformed("it has no graph".to_owned())) };
        let opsets = model.opset_import;
        Loader { file, folder, opsets, numbers: HashMap::new(), constants: Vec::new() }.load(graph)
    }

    /// Inputs that are the states of one op, and the outputs that take their place: what nobody else reads can be renewed
    /// where it lies.
    pub(crate) fn renewable(&self) -> Vec<(usize, usize)> {
        // How often the numbers of each value are read, and the last node that does.
        let mut reads = vec![(0, None); self.constants.len()];
        for node in self.nodes.iter().filter(|node| node.op != "Shape") {
            node.inputs.iter().flatten().for_each(|&value| reads[value] = (reads[value].0 + 1, Some(node)));
        }
        self.made.iter().for_each(|&value| reads[value].0 += 1);
        let once = |value: Option<&Option<usize>>| value.copied().flatten().filter(|&value| reads[value].0 == 1);
        let places = |values: &[usize]| values.iter().enumerate().map(|(at, &value)| (value, at)).collect();
        let [given, made]: [HashMap<usize, usize>; 2] = [places(&self.given), places(&self.made)];
        let pair = |node: &Node| {
            let before = once(node.inputs.get(state_of(node)?))?;
            let mut after = once(node.outputs.get(1))?;
            // An output is often called otherwise than what it is.
            while let Some(named) = reads[after].1.filter(|reader: &&Node| reader.op == "Identity") {
                after = once(named.outputs.first())?;
            }
            Some((*given.get(&before)?, *made.get(&after)?))
        };
        self.nodes.iter().filter_map(pair).collect()
    }

    /// The error of a node.
    pub(crate) fn refuse(&self, node: usize, reason: String) -> GraphError {
        refuse(&self.file, &self.nodes[node], reason)
    }
}

fn refuse(file: &str, node: &Node, reason: String) -> GraphError {
    GraphError::Node { file: file.to_owned(), node: node.name.clone(), op: node.op.clone(), reason }
}

fn decode(source: &Source) -> Result<ModelProto, GraphError> {
    let malformed =
        |error: OnnxError| GraphError::Malformed { file: source.name().to_owned(), reason: error.to_string() };
    let bytes = Bytes::from(source.bytes(Limit::ONNX_WITH_WEIGHTS)?);
    weigh(&mut bytes.clone()).map_err(malformed)?;
    ModelProto::decode(bytes).map_err(|error| malformed(error.into()))
}

struct Loader<'a> {
    file: &'a str,
    folder: &'a Path,
    opsets: Vec<OperatorSetId>,
    /// The number of each name.
    numbers: HashMap<String, usize>,
    constants: Vec<Option<Value>>,
}

impl Loader<'_> {
    fn number(&mut self, name: &str) -> usize {
        if let Some(&number) = self.numbers.get(name) {
            return number;
        }
        let number = self.constants.len();
        self.numbers.insert(name.to_owned(), number);
        self.constants.push(None);
        number
    }

    fn load(mut self, graph: GraphProto) -> Result<Graph, GraphError> {
        // What cannot be run is refused before any weight is read.
        for proto in &graph.node {
            let node = self.node(proto.clone())?;
            if node.edge.is_none() && !is_known(&node.op) {
                return Err(refuse(self.file, &node, "this operator is not run".to_owned()));
            }
        }
        let mut files = HashMap::new();
        let mut weights = 0usize;
        for tensor in graph.initializer {
            let name = tensor.name.clone();
            let elsewhere = self.elsewhere(&tensor, &mut files)?;
            let value = value_of(&tensor, elsewhere.as_ref()).map_err(|reason| GraphError::Tensor {
                file: self.file.to_owned(),
                tensor: name.clone(),
                reason,
            })?;
            weights = weights.saturating_add(value.layout.len());
            let number = self.number(&name);
            self.constants[number] = Some(value);
        }
        let mut made: Vec<bool> = self.constants.iter().map(Option::is_some).collect();
        let (mut inputs, mut given) = (Vec::new(), Vec::new());
        for info in &graph.input {
            // Old exports list their weights as inputs too.
            let number = self.number(&info.name);
            made.resize(self.constants.len(), false);
            if !made[number] {
                inputs.push(self.port(info)?);
                given.push(number);
                made[number] = true;
            }
        }
        let mut nodes = Vec::new();
        let mut builder = Builder::new(weights.saturating_add(COMPUTED));
        for proto in graph.node {
            let node = self.node(proto)?;
            made.resize(self.constants.len(), false);
            if let Some(missing) = node.inputs.iter().flatten().find(|&&input| !made[input]) {
                let name = self.numbers.iter().find(|(_, number)| *number == missing).map_or("", |(name, _)| name);
                return Err(refuse(self.file, &node, format!("it reads `{name}`, which nothing before it makes")));
            }
            node.outputs.iter().flatten().for_each(|&output| made[output] = true);
            let known: Vec<Option<Value>> =
                node.inputs.iter().map(|input| input.and_then(|input| self.constants[input].clone())).collect();
            if known.iter().zip(&node.inputs).any(|(value, input)| value.is_none() && input.is_some()) {
                nodes.push(node);
                continue;
            }
            let values = match lower(&mut builder, &node, &known) {
                Err(_) if builder.put_off() => {
                    nodes.push(node);
                    continue;
                }
                values => values.map_err(|reason| refuse(self.file, &node, reason))?,
            };
            for (output, value) in node.outputs.iter().zip(values) {
                if let Some(output) = *output {
                    self.constants[output] = Some(value);
                }
            }
        }
        let (mut outputs, mut results) = (Vec::new(), Vec::new());
        for info in &graph.output {
            let number = self.number(&info.name);
            let port = self.port(info)?;
            if made.get(number) != Some(&true) {
                return Err(GraphError::Port {
                    file: self.file.to_owned(),
                    port: port.name,
                    reason: "nothing makes it".to_owned(),
                });
            }
            outputs.push(port);
            results.push(number);
        }
        let (file, constants) = (self.file.to_owned(), self.constants);
        Ok(Graph { file, inputs, outputs, given, made: results, nodes, constants })
    }

    fn node(&mut self, proto: NodeProto) -> Result<Node, GraphError> {
        let op = proto.full_type();
        let edge = EdgeOp::of(&proto, &self.opsets);
        let name = if proto.name.is_empty() { proto.output.first().cloned().unwrap_or_default() } else { proto.name };
        let mut numbers = |names: Vec<String>| -> Vec<Option<usize>> {
            names.iter().map(|name| (!name.is_empty()).then(|| self.number(name))).collect()
        };
        let (inputs, mut outputs) = (numbers(proto.input), numbers(proto.output));
        while outputs.last().is_some_and(Option::is_none) {
            outputs.pop();
        }
        let node = Node { name, op, edge: None, inputs, outputs, attributes: proto.attribute };
        match edge {
            Ok(edge) => Ok(Node { edge, ..node }),
            Err(error) => Err(refuse(self.file, &node, error.to_string())),
        }
    }

    fn port(&self, info: &ValueInfo) -> Result<Port, GraphError> {
        let refuse = |reason: String| GraphError::Port { file: self.file.to_owned(), port: info.name.clone(), reason };
        let tensor = info.r#type.as_ref().and_then(|found| found.tensor_type.as_ref());
        let tensor = tensor.ok_or_else(|| refuse("it is no tensor".to_owned()))?;
        let element = match tensor.elem_type {
            TensorProto::FLOAT => Element::Float,
            TensorProto::FLOAT16 => Element::Half,
            TensorProto::BFLOAT16 => Element::Brain,
            TensorProto::INT32 | TensorProto::INT64 | TensorProto::BOOL => Element::Int,
            other => {
                return Err(refuse(format!(
                    "its element type {other} is not computed; f32, f16, bf16, i32, i64 and bool are"
                )));
            }
        };
        let dims = tensor.shape.iter().flat_map(|shape| &shape.dim);
        let shape: Vec<_> = dims.map(|dim| dim.dim_value.and_then(|size| usize::try_from(size).ok())).collect();
        if shape.len() > MAX_RANK {
            return Err(refuse(format!("it has {} axes; tensors have at most {MAX_RANK}", shape.len())));
        }
        Ok(Port { name: info.name.clone(), element, shape })
    }

    /// The bytes of a weight that lies in another file.
    fn elsewhere(
        &self,
        tensor: &TensorProto,
        files: &mut HashMap<String, (Source, u64)>,
    ) -> Result<Option<Bytes>, GraphError> {
        if tensor.data_location == 0 {
            return Ok(None);
        }
        let refuse =
            |reason: String| GraphError::Tensor { file: self.file.to_owned(), tensor: tensor.name.clone(), reason };
        let get = |key: &str| tensor.external_data.iter().find(|pair| pair.key == key).map(|pair| pair.value.as_str());
        let location = get("location").ok_or_else(|| refuse("it is in another file, which has no name".to_owned()))?;
        let mut parts = Path::new(location).components();
        let (Some(Component::Normal(_)), None) = (parts.next(), parts.next()) else {
            return Err(refuse(format!("`{location}` is not a file beside the graph")));
        };
        let number = |key: &str, otherwise: u64| match get(key) {
            Some(text) => text.parse::<u64>().map_err(|_| refuse(format!("its {key} is `{text}`"))),
            None => Ok(otherwise),
        };
        let (source, left) = match files.entry(location.to_owned()) {
            Entry::Occupied(opened) => opened.into_mut(),
            Entry::Vacant(place) => {
                let source = Source::open(&self.folder.join(location))?;
                let left = source.len();
                place.insert((source, left))
            }
        };
        let offset = number("offset", 0)?;
        let length = number("length", source.len().saturating_sub(offset))?;
        if offset.checked_add(length).is_none_or(|end| end > source.len()) {
            let bytes = source.len();
            return Err(refuse(format!("{length} bytes from {offset} on are not in `{location}`, which has {bytes}")));
        }
        // Else a small graph could read a file many times over.
        *left = left
            .checked_sub(length)
            .ok_or_else(|| refuse(format!("the tensors in `{location}` take more bytes than it has")))?;
        let stated = count(&sizes(tensor).unwrap_or_default()).and_then(|count| count.checked_mul(8));
        let fits = usize::try_from(length).ok().filter(|&length| stated.is_some_and(|stated| length <= stated));
        let length = fits.ok_or_else(|| refuse(format!("{length} bytes are more than its shape says")))?;
        let mut bytes = vec![0; length];
        source.read_exact_at(&mut bytes, offset)?;
        Ok(Some(bytes.into()))
    }
}
