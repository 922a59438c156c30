//! Rewrites the nodes that keep state to the ops that the passes know.

mod recurrent;

use std::collections::{BTreeMap, HashMap, HashSet};

use cacheplan_handlers::DType;

use super::attention::{self, Operands, Root};
use super::fixed::FixedCache;
use super::lookup::Lookup;
use super::mask::{Sight, sight};
use super::states::{MAX_LAYER, State, States, key_to_value, layer_in};
use crate::frontend::FrontendError;
use crate::graph::{Attribute, Extent, Graph, Name, Op, OpId, TensorId};
use crate::layers::{BlockSpec, LayerSpec};
use crate::model::{Fact, StateBinding, StatePart};
use crate::near::near;
use crate::onnx::{EDGE_LLM_OPS, EdgeAttention, EdgeOp, NodeProto, OperatorSetId};
use crate::registry::Registry;

/// How an op that keeps state is read.
#[derive(Clone, Copy)]
enum Keeper {
    /// The positions of query, key, value, past key, past value and mask; the attributes of both numbers of heads.
    Attention([usize; 6], [&'static str; 2]),
    LinearAttention,
    /// The axis of channels, and the position of the state.
    CausalConv(usize, usize),
}

/// The op types that keep state and are understood, besides those of TensorRT-Edge-LLM ([`EdgeOp`]).
const KEEPERS: [(&str, Keeper); 7] = [
    ("Attention", Keeper::Attention([0, 1, 2, 4, 5, 3], ["q_num_heads", "kv_num_heads"])),
    ("CausalConvWithState", Keeper::CausalConv(1, 3)),
    ("LinearAttention", Keeper::LinearAttention),
    ("com.microsoft.CausalConvWithState", Keeper::CausalConv(1, 3)),
    ("com.microsoft.GroupQueryAttention", Keeper::Attention([0, 1, 2, 3, 4, 10], ["num_heads", "kv_num_heads"])),
    ("com.microsoft.LinearAttention", Keeper::LinearAttention),
    ("com.microsoft.MultiHeadAttention", Keeper::Attention([0, 1, 2, 6, 7, 5], ["num_heads", "num_heads"])),
];

/// A rewritten graph.
pub(super) struct Lowered {
    pub(super) graph: Graph,
    pub(super) dtype: DType,
    pub(super) layers: Vec<LayerSpec>,
    pub(super) facts: Vec<Fact>,
    pub(super) states: Vec<StateBinding>,
    /// Tokens of a sequence, where its caches have fixed shapes.
    pub(super) max_tokens: Option<u64>,
    pub(super) step_tokens: Option<u64>,
}

pub(super) struct Lowering<'a> {
    file: &'a str,
    lookup: &'a Lookup<'a>,
    opsets: &'a [OperatorSetId],
    states: States<'a>,
    /// Keys and values of all layers in tensors of fixed shapes.
    fixed: Vec<FixedCache<'a>>,
    bindings: Vec<StateBinding>,
    explained: HashSet<&'a str>,
    graph: Graph,
    tensors: HashMap<&'a str, TensorId>,
    /// The key and value tensors that were made for each root, so that attentions over one cache share them.
    views: HashMap<(&'a str, &'static str), TensorId>,
    kinds: BTreeMap<u32, &'static str>,
    /// The last convolution of each layer, with its channels.
    convolutions: HashMap<u32, (OpId, u64)>,
    attentions: u32,
    /// Tokens that caches of a stated capacity have room for.
    max_tokens: Option<u64>,
    facts: Vec<Fact>,
}

type Result<T> = std::result::Result<T, FrontendError>;

impl<'a> Lowering<'a> {
    pub(super) fn new(file: &'a str, lookup: &'a Lookup<'a>, opsets: &'a [OperatorSetId]) -> Self {
        let (explained, tensors, views, kinds, convolutions, facts) = Default::default();
        let states = States::pair(lookup);
        Self {
            file,
            lookup,
            opsets,
            states,
            fixed: Vec::new(),
            bindings: Vec::new(),
            explained,
            graph: Graph::new(),
            tensors,
            views,
            kinds,
            convolutions,
            attentions: 0,
            max_tokens: None,
            facts,
        }
    }

    pub(super) fn run(mut self) -> Result<Lowered> {
        for input in &self.lookup.graph.input {
            if let Some((shape, dtype)) = self.known(&input.name) {
                let tensor = self.graph.add_input(Name::new(None, input.name.clone()), shape, dtype);
                self.tensors.insert(&input.name, tensor);
            }
        }
        for tensor in &self.lookup.graph.initializer {
            if let Some((shape, dtype)) = self.known(&tensor.name) {
                let sizes: Vec<u64> = shape.iter().filter_map(known_size).collect();
                let id = self.graph.add_parameter(Name::new(None, tensor.name.clone()), &sizes, dtype);
                self.tensors.insert(&tensor.name, id);
            }
        }
        self.fixed = FixedCache::find(self.file, self.lookup, &self.states)?;
        for node in &self.lookup.graph.node {
            self.node(node)?;
        }
        self.fixed_caches();
        self.unexplained()?;
        let registry = Registry::default();
        if !self.graph.op_ids().any(|id| registry.get(&self.graph.op(id).kind).is_some()) {
            let reason = "none of its nodes keeps a state or keys and values; there is nothing to plan".to_owned();
            return Err(FrontendError::Onnx { file: self.file.to_owned(), node: "graph".to_owned(), reason });
        }
        let layers = self.kinds.keys().next_back().map_or(0, |last| last + 1);
        let kind = |layer| self.kinds.get(&layer).map_or("none", |kind| *kind).to_owned();
        let spec = |layer| LayerSpec { kind: kind(layer), ..LayerSpec::default() };
        let mut layers: Vec<LayerSpec> = (0..layers).map(spec).collect();
        // The ops that keep state stand in the graph with all that the export tells of them.
        for op in self.graph.op_ids().map(|id| self.graph.op(id)).filter(|op| registry.get(&op.kind).is_some()) {
            if let Some(layer) = op.name.layer.and_then(|layer| layers.get_mut(layer as usize)) {
                layer.blocks.push(BlockSpec::Op(op.kind.to_string()));
            }
        }
        let dtype = self.dtype();
        let max_tokens = self.fixed.iter().map(|fixed| fixed.tokens).min().or(self.max_tokens);
        let step_tokens = self.fixed.iter().map(|fixed| fixed.step_tokens(self.lookup)).min();
        // A graph some of whose states nothing explains can be planned, but nobody knows how to run it.
        let whole = self.bindings.len() == self.states.iter().count();
        let states = if whole { self.bindings } else { Vec::new() };
        Ok(Lowered { graph: self.graph, layers, dtype, facts: self.facts, states, max_tokens, step_tokens })
    }

    fn node(&mut self, node: &'a NodeProto) -> Result<()> {
        let name = node.full_type();
        match EdgeOp::of(node, self.opsets).map_err(|error| self.refuse(node, error.to_string()))? {
            Some(EdgeOp::CausalConv1d(stated)) => return self.causal_conv(node, 2, 3, Some(stated)),
            Some(EdgeOp::UpdateSsmState(stated)) => return self.update_ssm_state(node, stated),
            Some(EdgeOp::Attention(attention)) => return self.edge_attention(node, attention),
            None => {}
        }
        match KEEPERS.iter().find(|(keeper, _)| *keeper == name) {
            Some((_, Keeper::Attention(at, heads))) => self.attention_op(node, *at, *heads),
            Some((_, Keeper::LinearAttention)) => self.linear_attention(node),
            Some((_, Keeper::CausalConv(channels, state))) => self.causal_conv(node, *channels, *state, None),
            None => match attention::written_out(self.lookup, node) {
                Some(operands) if self.is_fixed(operands.key) => {
                    self.plain(node);
                    Ok(())
                }
                Some(operands) if self.is_kept(operands.key, operands.value) => self.written_out(node, &operands),
                _ => self.other(node),
            },
        }
    }

    /// The caches of fixed shape: of each layer the tokens of a slot, keys of all layers first and values behind them, as
    /// the graph has them.
    fn fixed_caches(&mut self) {
        for fixed in std::mem::take(&mut self.fixed) {
            self.fixed_cache(&fixed);
            self.fixed.push(fixed);
        }
    }

    fn fixed_cache(&mut self, fixed: &FixedCache<'a>) {
        let FixedCache { heads, tokens, head_dim, dtype, .. } = *fixed;
        self.explained.extend(fixed.states().map(|state| state.input));
        self.bindings.extend(fixed.bindings());
        let mut add = |layer: u32, state: &State<'a>| {
            let name = || Name::new(Some(layer), state.input.to_owned());
            let view = Op::new(name(), Op::VIEW);
            let view = match self.tensors.get(state.input) {
                Some(&tensor) => view.input("x", tensor),
                None => view,
            };
            let view = self.graph.add_op(view);
            let shape = [Extent::BATCH].into_iter().chain([heads, tokens, head_dim].map(Extent::Known)).collect();
            let cache = self.graph.add_output(view, name(), shape, dtype);
            let op = Op::new(name(), Op::STATIC_CACHE).input("cache", cache);
            self.graph.add_op(op.attribute(Attribute::STATEFUL, Attribute::Flag));
        };
        for state in fixed.states() {
            fixed.layers.iter().for_each(|&layer| add(layer, state));
        }
        for &layer in &fixed.layers {
            self.kinds.entry(layer).or_insert("attention");
        }
        let rows = if fixed.layers_are_told { "the nodes that read its rows" } else { "the order of its rows" };
        let layers = fixed.layers.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
        let (what, among_others) = (fixed.key.input.to_owned(), self.bindings.len() > fixed.states().count());
        self.note(what, format!("layers {layers}"), rows.to_owned(), !fixed.layers_are_told && among_others);
    }

    /// Whether an attention reads a cache of fixed shape.
    fn is_fixed(&self, key: &str) -> bool {
        let state = attention::root(self.lookup, &self.states, key).and_then(|root| root.state);
        state.is_some_and(|state| self.fixed.iter().any(|fixed| fixed.key.input == state))
    }

    fn bind(&mut self, input: &str, layer: u32, part: StatePart) {
        if let Some(State { input, output, .. }) = self.states.of(input).cloned() {
            let (input, output) = (input.to_owned(), output.to_owned());
            let binding = StateBinding { input, output, layers: vec![layer], part };
            if !self.bindings.contains(&binding) {
                self.bindings.push(binding);
            }
        }
    }

    /// A node of any other type; one that calls itself an attention and reads no state would go uncached unnoticed.
    fn other(&mut self, node: &'a NodeProto) -> Result<()> {
        let reads_state = node.input.iter().any(|name| self.states.of(name).is_some());
        if node.op_type.to_ascii_lowercase().ends_with("attention") && !reads_state {
            return Err(FrontendError::UnknownOp {
                file: self.file.to_owned(),
                node: node.name.clone(),
                near: near(&node.full_type(), KEEPERS.map(|(name, _)| name).into_iter().chain(EDGE_LLM_OPS)),
                op: node.full_type(),
            });
        }
        self.plain(node);
        Ok(())
    }

    /// A node that keeps nothing stays what it is.
    fn plain(&mut self, node: &'a NodeProto) {
        let mut op = Op::new(Name::new(None, node.name.clone()), format!("onnx.{}", node.full_type()));
        for (port, input) in node.input.iter().enumerate() {
            if let Some(&tensor) = self.tensors.get(input.as_str()) {
                op = op.input(port.to_string(), tensor);
            }
        }
        let id = self.graph.add_op(op);
        self.outputs(node, id);
    }

    fn outputs(&mut self, node: &'a NodeProto, id: OpId) {
        for output in &node.output {
            if let Some((shape, dtype)) = self.known(output) {
                let tensor = self.graph.add_output(id, Name::new(None, output.clone()), shape, dtype);
                self.tensors.insert(output, tensor);
            }
        }
    }

    /// Shape and dtype of a value, where both are known and a cache could have them.
    fn known(&self, name: &str) -> Option<(Vec<Extent>, DType)> {
        let value = self.lookup.value(name)?;
        Some((value.shape.clone(), value.dtype?))
    }

    /// An op of one of the attention types. Positions: query, key, value, past key, past value, mask.
    fn attention_op(&mut self, node: &'a NodeProto, at: [usize; 6], heads: [&str; 2]) -> Result<()> {
        let missing = |what: &str| self.refuse(node, format!("it has no {what}"));
        let query = node.at(at[0]).ok_or_else(|| missing("query"))?;
        let num_heads = node.number(heads[0]);
        let num_kv_heads = node.number(heads[1]).or(num_heads);
        let key = node.at(at[3]).or_else(|| node.at(at[1])).unwrap_or(query);
        let value = node.at(at[4]).or_else(|| node.at(at[2])).unwrap_or(query);
        let masks = Vec::from_iter(node.at(at[5]));
        if self.is_fixed(key) {
            self.plain(node);
            return Ok(());
        }
        let kept = self.is_kept(key, value);
        let roots = [key, value].map(|name| {
            attention::root(self.lookup, &self.states, name)
                .or_else(|| self.packed(name, num_heads, num_kv_heads, node.at(at[1]).is_none()))
        });
        let [Some(key), Some(value)] = roots else {
            return Err(self.refuse(node, "the heads of its keys cannot be told from any shape".to_owned()));
        };
        // Encoders and cross-attention keep nothing: they have neither a past nor a causal mask.
        let standard = node.full_type() == "Attention";
        if standard && !kept && node.number("is_causal").is_none() && !self.states.is_empty() {
            self.plain(node);
            return Ok(());
        }
        self.add_attention(node, &key, &value, node.number("local_window_size"), &masks)
    }

    /// Keys of rank 3, all heads in one axis; `all` if queries and values are packed with them.
    fn packed(&self, name: &'a str, heads: Option<u64>, kv_heads: Option<u64>, all: bool) -> Option<Root<'a>> {
        let kv_heads = kv_heads?;
        let width = self.lookup.size(name, 2)?;
        let groups = if all { heads?.checked_add(kv_heads.checked_mul(2)?)? } else { kv_heads };
        let head_dim = width.checked_div(groups).filter(|dim| dim.checked_mul(groups) == Some(width))?;
        Some(Root { tensor: name, state: None, dims: (kv_heads, head_dim) })
    }

    /// Whether keys come from a state, or nothing at all does, so that every attention needs a cache.
    fn is_kept(&self, key: &'a str, value: &'a str) -> bool {
        self.states.is_empty()
            || [key, value]
                .iter()
                .all(|name| attention::root(self.lookup, &self.states, name).is_some_and(|root| root.state.is_some()))
    }

    fn written_out(&mut self, node: &'a NodeProto, operands: &Operands<'a>) -> Result<()> {
        let roots = [operands.key, operands.value].map(|name| attention::root(self.lookup, &self.states, name));
        match roots {
            [Some(key), Some(value)] => self.add_attention(node, &key, &value, None, &operands.masks),
            _ => Err(self.refuse(node, "the heads of its keys cannot be told from any shape".to_owned())),
        }
    }

    fn add_attention(
        &mut self,
        node: &'a NodeProto,
        key: &Root<'a>,
        value: &Root<'a>,
        window: Option<u64>,
        masks: &[&'a str],
    ) -> Result<()> {
        let ordinal = self.attentions;
        self.attentions += 1;
        let layer = self.layer(node, key.state, Some(ordinal))?;
        for (state, part) in [(key.state, StatePart::Keys), (value.state, StatePart::Values)] {
            if let Some(state) = state {
                self.bind(state, layer, part);
            }
        }
        let window = window.or_else(|| self.window_of(layer, masks));
        self.attend(node, layer, [key, value], window);
        Ok(())
    }

    /// q, k, v, cache `[batch, 2, heads, capacity, head_dim]`, context lengths, rope table, start index.
    fn edge_attention(&mut self, node: &'a NodeProto, attention: EdgeAttention) -> Result<()> {
        let EdgeAttention { heads, kv_heads, head_dim, window, .. } = attention;
        if node.input.len() != 7 || node.output.len() != 2 {
            let found = format!("it has {} inputs and {} outputs", node.input.len(), node.output.len());
            return Err(self.refuse(node, format!("{found}; 7 and 2 were expected, queries, keys and values apart")));
        }
        for (position, width) in [(0, heads * head_dim), (1, kv_heads * head_dim), (2, kv_heads * head_dim)] {
            let found = self.lookup.size(node.at(position).unwrap_or(""), 2).filter(|&found| found != width);
            if let Some(found) = found {
                let reason = format!("input {position} has {found} channels; its attributes say {width}");
                return Err(self.refuse(node, reason));
            }
        }
        let state = self.state_at(node, 3)?;
        if self.sizes(node, state, [1, 2, 4])? != [2, kv_heads, head_dim] {
            let expected = format!("[batch, 2, {kv_heads}, capacity, {head_dim}]");
            return Err(self.refuse(node, format!("the cache `{state}` is not {expected}")));
        }
        if let Some(capacity) = self.lookup.size(state, 3) {
            self.max_tokens = Some(self.max_tokens.map_or(capacity, |tokens| tokens.min(capacity)));
        }
        let ordinal = self.attentions;
        self.attentions += 1;
        let layer = self.layer(node, Some(state), Some(ordinal))?;
        self.bind(state, layer, StatePart::KeysAndValues);
        let root = Root { tensor: state, state: Some(state), dims: (kv_heads, head_dim) };
        self.attend(node, layer, [&root, &root], window);
        Ok(())
    }

    /// An attention over these keys and values.
    fn attend(&mut self, node: &'a NodeProto, layer: u32, [key, value]: [&Root<'a>; 2], window: Option<u64>) {
        let key = self.view(layer, key, "attention.key");
        let value = self.view(layer, value, "attention.value");
        let mut op =
            Op::new(Name::new(Some(layer), "attention"), Op::ATTENTION).input("key", key).input("value", value);
        let (window, kind) = match window {
            Some(window) => (Some(window), "sliding_attention"),
            None => (None, "attention"),
        };
        if let Some(window) = window {
            op = op.attribute(Attribute::WINDOW, Attribute::Number(window));
        }
        self.stateful(node, op, layer, kind);
    }

    /// The window that masks leave; what they do not tell is taken for full attention, and listed as assumed.
    fn window_of(&mut self, layer: u32, masks: &[&str]) -> Option<u64> {
        let mut window = None;
        for mask in masks {
            match sight(self.lookup, mask) {
                Sight::All => {}
                Sight::Window(found) => window = Some(window.map_or(found, |window: u64| window.min(found))),
                Sight::Unclear => {
                    let what = format!("layer {layer}: tokens that attention sees");
                    self.note(what, "all".to_owned(), format!("the mask `{mask}` does not tell"), true);
                }
            }
        }
        window
    }

    /// The keys or values of a cache as [B, S, heads, head_dim], made once.
    fn view(&mut self, layer: u32, root: &Root<'a>, part: &'static str) -> TensorId {
        self.explained.extend(root.state);
        if let Some(&view) = self.views.get(&(root.tensor, part)) {
            return view;
        }
        let (heads, head_dim) = root.dims;
        let view = self.reshaped(layer, root.tensor, part, &[heads, head_dim]);
        self.views.insert((root.tensor, part), view);
        view
    }

    /// A tensor in the shape that the ops expect, batch and sequence first.
    fn reshaped(&mut self, layer: u32, from: &'a str, part: &'static str, rest: &[u64]) -> TensorId {
        let dtype = self.lookup.value(from).and_then(|value| value.dtype).unwrap_or_else(|| self.dtype());
        let mut op = Op::new(Name::new(Some(layer), part), Op::VIEW);
        if let Some(&tensor) = self.tensors.get(from) {
            op = op.input("x", tensor);
        }
        let id = self.graph.add_op(op);
        let leading = [Extent::BATCH, Extent::SEQUENCE].into_iter();
        let shape = leading.chain(rest.iter().map(|&size| Extent::Known(size))).collect();
        self.graph.add_output(id, Name::new(Some(layer), part), shape, dtype)
    }

    fn stateful(&mut self, node: &'a NodeProto, op: Op, layer: u32, kind: &'static str) -> OpId {
        let id = self.graph.add_op(op);
        self.outputs(node, id);
        self.kinds.entry(layer).or_insert(kind);
        id
    }

    fn with_state_dtype(&self, op: Op, state: &str) -> Op {
        match self.lookup.value(state).and_then(|value| value.dtype) {
            Some(dtype) => op.attribute(Attribute::STATE_DTYPE, Attribute::DType(dtype)),
            None => op,
        }
    }

    fn state_at(&mut self, node: &'a NodeProto, position: usize) -> Result<&'a str> {
        let Some(name) = node.at(position) else {
            return Err(self.refuse(node, format!("input {position}, its state, is left out")));
        };
        self.explained.insert(name);
        Ok(name)
    }

    fn sizes<const N: usize>(&self, node: &NodeProto, name: &str, axes: [usize; N]) -> Result<[u64; N]> {
        let mut sizes = [0; N];
        for (size, axis) in sizes.iter_mut().zip(axes) {
            let found = self.lookup.size(name, axis).filter(|&found| found <= 1 << 40);
            *size = found.ok_or_else(|| self.refuse(node, format!("axis {axis} of `{name}` is not a known size")))?;
        }
        Ok(sizes)
    }

    /// The layer of a node: told by its state, its name, its weights, or else its place among its kind.
    fn layer(&self, node: &NodeProto, state: Option<&str>, ordinal: Option<u32>) -> Result<u32> {
        let stated = state.and_then(|name| self.states.of(name)?.layer);
        let names = std::iter::once(&node.name).chain(&node.input);
        let layer = stated.or_else(|| names.into_iter().find_map(|name| layer_in(name))).or(ordinal);
        match layer {
            Some(layer) if layer <= MAX_LAYER => Ok(layer),
            Some(layer) => Err(self.refuse(node, format!("layer {layer} is beyond {MAX_LAYER}"))),
            None => Err(self.refuse(node, "its layer cannot be told: no name holds a number".to_owned())),
        }
    }

    /// States that no op explained: keys and values by their names, anything else as it is.
    fn unexplained(&mut self) -> Result<()> {
        let unexplained = |this: &Self| -> Vec<State<'a>> {
            this.states.iter().filter(|state| !this.explained.contains(state.input)).cloned().collect()
        };
        let left = unexplained(self);
        for key in &left {
            let value = key_to_value(key.input).and_then(|value| left.iter().find(|other| other.input == value));
            let (Some(layer), Some(value)) = (key.layer.filter(|&layer| layer <= MAX_LAYER), value) else { continue };
            let roots = [key, value].map(|state| attention::root(self.lookup, &self.states, state.input));
            let [Some(key_root), Some(value_root)] = roots else { continue };
            let keys = self.view(layer, &key_root, "attention.key");
            let values = self.view(layer, &value_root, "attention.value");
            let op = Op::new(Name::new(Some(layer), "attention"), Op::ATTENTION);
            self.graph.add_op(op.input("key", keys).input("value", values));
            self.kinds.entry(layer).or_insert("attention");
            self.note(key.input.to_owned(), "keys and values".to_owned(), "their names; no op tells".to_owned(), true);
        }
        for state in unexplained(self) {
            self.plain_state(&state)?;
        }
        Ok(())
    }

    /// A state of unknown use: as large as its shape says.
    fn plain_state(&mut self, state: &State<'a>) -> Result<()> {
        let Some(&tensor) = self.tensors.get(state.input) else {
            let node = format!("state `{}`", state.input);
            let reason = "no cache has its element type".to_owned();
            return Err(FrontendError::Onnx { file: self.file.to_owned(), node, reason });
        };
        let layer = state.layer.filter(|&layer| layer <= MAX_LAYER);
        let part = state.input.trim_end_matches(|c: char| c.is_ascii_digit() || matches!(c, '_' | '.'));
        let op = Op::new(Name::new(layer, part.to_owned()), Op::STATE).input("state", tensor);
        self.graph.add_op(op.attribute(Attribute::STATEFUL, Attribute::Flag));
        if let Some(layer) = layer {
            self.kinds.entry(layer).or_insert("state");
        }
        let value = format!("a state, replaced by {}", state.output);
        self.note(state.input.to_owned(), value, "its name; no op tells".to_owned(), true);
        Ok(())
    }

    /// The activations' dtype: that of the first output that has one.
    fn dtype(&self) -> DType {
        let outputs = self.lookup.graph.output.iter();
        let mut dtypes = outputs.filter_map(|output| self.lookup.value(&output.name)?.dtype);
        dtypes.next().unwrap_or(DType::F32)
    }

    fn note(&mut self, what: String, value: String, from: String, assumed: bool) {
        self.facts.push(Fact { what, value, from, assumed });
    }

    fn refuse(&self, node: &NodeProto, reason: String) -> FrontendError {
        let node = format!("{} `{}`", node.full_type(), node.name);
        FrontendError::Onnx { file: self.file.to_owned(), node, reason }
    }
}

fn known_size(extent: &Extent) -> Option<u64> {
    match extent {
        Extent::Known(size) => Some(*size),
        Extent::Symbol(_) => None,
    }
}
