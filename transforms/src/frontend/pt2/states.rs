//! What a program renews, and what of it keeps keys and values.

use std::collections::{BTreeMap, HashMap, HashSet};

use cacheplan_handlers::DType;

use super::Refusal;
use super::schema::{Argument, Node, Program, Spec, SpecArgument, TensorMeta};
use crate::graph::{Attribute, Extent, Graph, Name, Op, TensorId};
use crate::layers::{BlockSpec, LayerSpec};
use crate::model::Fact;

/// No model has as many layers as this.
const MAX_LAYER: u32 = 10_000;

/// Attention of any backend: its inputs are query, key and value.
const ATTENTIONS: [&str; 7] = [
    "scaled_dot_product_attention",
    "_scaled_dot_product_attention_math",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_fused_attention_overrideable",
];

/// Ops whose first input is what comes out, moved or with some of it renewed.
const MOVES: [&str; 24] = [
    "_to_copy",
    "_unsafe_view",
    "alias",
    "clone",
    "contiguous",
    "copy",
    "detach",
    "expand",
    "index_copy",
    "index_put",
    "lift_fresh_copy",
    "narrow",
    "permute",
    "repeat",
    "repeat_interleave",
    "reshape",
    "select",
    "slice",
    "slice_scatter",
    "squeeze",
    "to",
    "transpose",
    "unsqueeze",
    "view",
];

/// Higher-order ops that run what is in them once, as if it stood there; the caches of others could not be told.
const WRAPPERS: [&str; 2] = ["wrap_with_autocast", "wrap_with_set_grad_enabled"];

/// The states of a program.
pub(super) struct States<'a> {
    caches: Vec<Cache<'a>>,
    counters: Vec<&'a str>,
}

struct Cache<'a> {
    /// The layer that its name tells, or its place among its kind.
    layer: Option<u32>,
    dtype: DType,
    /// Sizes of one sequence's; of keys, and of values, `[heads, tokens, head_dim]`, or of all layers in one.
    sizes: Vec<u64>,
    kept: Kept<'a>,
}

enum Kept<'a> {
    /// Keys, values of the same sizes, and the tokens that they are of.
    KeysAndValues {
        names: [&'a str; 2],
        inputs: [&'a str; 2],
        tokens: u64,
        told: bool,
    },
    State {
        name: &'a str,
        input: &'a str,
    },
}

/// Inputs that a program may renew, and who makes each tensor.
struct Lookup<'a> {
    tensors: &'a HashMap<String, TensorMeta>,
    /// Buffers, constants and inputs by the tensors that stand for them.
    names: BTreeMap<&'a str, &'a str>,
    producers: HashMap<&'a str, &'a Node>,
}

impl<'a> Lookup<'a> {
    fn new(program: &'a Program) -> Self {
        let graph = &program.graph_module.graph;
        let specs = program.graph_module.signature.input_specs.iter().flatten();
        let name = |(kind, spec): (&'a String, &'a Spec)| {
            let tensor = spec.arg.as_ref()?.tensor()?;
            let name = spec.buffer_name.as_deref().or(spec.tensor_constant_name.as_deref()).unwrap_or(tensor);
            (kind != "parameter").then_some((tensor, name))
        };
        let made = |node: &'a Node| {
            node.outputs.iter().flat_map(move |output| output.tensors().map(move |tensor| (tensor, node)))
        };
        let producers = graph.nodes.iter().flat_map(made).collect();
        Self { tensors: &graph.tensor_values, names: specs.filter_map(name).collect(), producers }
    }

    /// The buffer that a tensor is, or is a part of, or has been renewed from.
    fn root(&self, tensor: &'a str) -> Option<&'a str> {
        let mut tensor = tensor;
        // A cache is a handful of moves away from its attention.
        for _ in 0..256 {
            if let Some((input, _)) = self.names.get_key_value(tensor) {
                return Some(*input);
            }
            let node = *self.producers.get(tensor)?;
            let moves = op(node).is_some_and(|name| MOVES.contains(&name.strip_suffix('_').unwrap_or(name)));
            tensor = if moves { first(node)? } else { return None };
        }
        None
    }

    /// The inputs that are renewed, in their order.
    fn renewed(&self, program: &'a Program) -> Vec<&'a str> {
        let mut renewed: HashSet<&str> = HashSet::new();
        for (kind, spec) in program.graph_module.signature.output_specs.iter().flatten() {
            let stated = spec.buffer_name.as_deref().filter(|_| kind == "buffer_mutation");
            renewed.extend(stated.and_then(|name| Some(*self.names.iter().find(|(_, found)| **found == name)?.0)));
        }
        for node in &program.graph_module.graph.nodes {
            let in_place = op(node).is_some_and(|name| name.ends_with('_') && !name.starts_with('_'));
            renewed.extend(first(node).filter(|_| in_place).and_then(|tensor| self.root(tensor)));
        }
        self.names.keys().copied().filter(|input| renewed.contains(input)).collect()
    }
}

/// The name of an op of aten, `index_copy_` of `torch.ops.aten.index_copy_.default`.
fn op(node: &Node) -> Option<&str> {
    node.target.strip_prefix("torch.ops.aten.")?.split('.').next()
}

fn first(node: &Node) -> Option<&str> {
    node.inputs.first()?.arg.tensors().next()
}

impl<'a> States<'a> {
    pub(super) fn find(program: &'a Program) -> Result<Self, Refusal> {
        let lookup = Lookup::new(program);
        let renewed = lookup.renewed(program);
        if renewed.is_empty() {
            let reason =
                "it renews no buffer, so that it keeps nothing from call to call; export it with a static cache";
            return Err(Refusal::at("the program", reason));
        }
        let mut pairs = Vec::new();
        for node in &program.graph_module.graph.nodes {
            refuse_hidden(node)?;
            let Some(name) = op(node).filter(|name| name.contains("attention")) else { continue };
            if !ATTENTIONS.contains(&name) {
                return Err(Refusal::at(&node.target, "an attention of this kind is not known"));
            }
            let pair = attended(&lookup, node, &renewed)?;
            if !pairs.iter().any(|(_, found, _)| *found == pair.1) {
                pairs.push(pair);
            }
        }
        let mut states = Self { caches: Vec::new(), counters: Vec::new() };
        for (number, (_, inputs, tokens)) in (0u32..).zip(&pairs) {
            states.add_pair(&lookup, *inputs, *tokens, Some(number))?;
        }
        let mut left: Vec<&str> = renewed;
        left.retain(|input| !pairs.iter().any(|(_, pair, _)| pair.contains(input)));
        // An attention that was written out in other ops tells less than the names do.
        for input in left.clone() {
            let value = value_of(lookup.names[input]);
            let value = value.and_then(|value| left.iter().copied().find(|other| lookup.names[other] == value));
            let alike = |value: &&str| {
                lookup.tensors.get(input).map(TensorMeta::sizes) == lookup.tensors.get(*value).map(TensorMeta::sizes)
            };
            if let Some(value) = value.filter(alike).filter(|_| left.contains(&input)) {
                states.add_pair(&lookup, [input, value], None, None)?;
                left.retain(|other| *other != input && *other != value);
            }
        }
        left.into_iter().try_for_each(|input| states.add_state(&lookup, input))?;
        states.caches.sort_by_key(|cache| cache.layer);
        Ok(states)
    }

    fn add_pair(
        &mut self,
        lookup: &Lookup<'a>,
        inputs: [&'a str; 2],
        tokens: Option<u64>,
        number: Option<u32>,
    ) -> Result<(), Refusal> {
        let names = inputs.map(|input| lookup.names[input]);
        let [(keys, dtype), (values, of_values)] = [shape(lookup, inputs[0])?, shape(lookup, inputs[1])?];
        if (&keys, dtype) != (&values, of_values) {
            let reason = format!("it is {values:?} {of_values}, and `{}` {keys:?} {dtype}", names[0]);
            return Err(Refusal::at(names[1], reason));
        }
        // `[batch, heads, tokens, head_dim]`, or all layers' in one.
        let (batch, sizes) = match *keys.as_slice() {
            [batch, heads, tokens, head_dim] => (batch, vec![heads, tokens, head_dim]),
            [layers, batch, heads, tokens, head_dim] if layers <= MAX_LAYER.into() => {
                (batch, vec![layers, heads, tokens, head_dim])
            }
            _ => {
                return Err(Refusal::at(
                    names[0],
                    format!("it is {keys:?}, and keys have four axes, or five with layers"),
                ));
            }
        };
        one_sequence(names[0], batch)?;
        let layer = layer_in(names[0]).or(number);
        let tokens_of = |sizes: &[u64]| sizes.iter().rev().nth(1).copied().unwrap_or(0);
        let (told, tokens) = (tokens.is_some(), tokens.unwrap_or_else(|| tokens_of(&sizes)));
        self.caches.push(Cache { layer, dtype, sizes, kept: Kept::KeysAndValues { names, inputs, tokens, told } });
        Ok(())
    }

    fn add_state(&mut self, lookup: &Lookup<'a>, input: &'a str) -> Result<(), Refusal> {
        let name = lookup.names[input];
        if lookup
            .tensors
            .get(input)
            .and_then(TensorMeta::sizes)
            .is_some_and(|sizes| sizes.iter().fold(1, |all: u64, size| all.saturating_mul(*size)) <= 1)
        {
            self.counters.push(name);
            return Ok(());
        }
        let (sizes, dtype) = shape(lookup, input)?;
        let Some((&batch, sizes)) = sizes.split_first().filter(|(_, rest)| !rest.is_empty()) else {
            return Err(Refusal::at(name, format!("it is {sizes:?}, which no axis makes the state of one sequence")));
        };
        one_sequence(name, batch)?;
        let (layer, kept) = (layer_in(name), Kept::State { name, input });
        self.caches.push(Cache { layer, dtype, sizes: sizes.to_vec(), kept });
        Ok(())
    }

    /// The graph with an op for each state, and what its layers are.
    pub(super) fn graph(&self, program: &Program) -> (Graph, Vec<LayerSpec>) {
        let mut graph = Graph::new();
        let mut tensors: HashMap<&str, TensorId> = HashMap::new();
        let described = &program.graph_module;
        let known =
            |name: &str| described.graph.tensor_values.get(name).and_then(|meta| Some((meta.shape(), meta.dtype()?)));
        for (kind, spec) in described.signature.input_specs.iter().flatten() {
            let Some(name) = spec.arg.as_ref().and_then(SpecArgument::tensor) else { continue };
            let Some((shape, dtype)) = known(name) else { continue };
            let sizes: Option<Vec<u64>> = described.graph.tensor_values[name].sizes();
            let id = match sizes.filter(|_| kind == "parameter") {
                Some(sizes) => graph.add_parameter(Name::new(None, name.to_owned()), &sizes, dtype),
                None => graph.add_input(Name::new(None, name.to_owned()), shape, dtype),
            };
            tensors.insert(name, id);
        }
        for node in &described.graph.nodes {
            let made = node.outputs.iter().flat_map(Argument::tensors);
            let made: Vec<(&str, (Vec<Extent>, DType))> = made.filter_map(|name| Some((name, known(name)?))).collect();
            let Some((name, _)) = made.first() else { continue };
            let kind = node.target.strip_prefix("torch.ops.").unwrap_or(&node.target);
            let mut op = Op::new(Name::new(None, (*name).to_owned()), kind.to_owned());
            for (port, tensor) in node.inputs.iter().flat_map(|input| input.arg.tensors()).enumerate() {
                if let Some(&tensor) = tensors.get(tensor) {
                    op = op.input(port.to_string(), tensor);
                }
            }
            let id = graph.add_op(op);
            for (name, (shape, dtype)) in made {
                tensors.insert(name, graph.add_output(id, Name::new(None, name.to_owned()), shape, dtype));
            }
        }
        let mut layers = Vec::new();
        for cache in &self.caches {
            for (layer, op) in cache.add(&mut graph, &tensors) {
                let layer = layer.unwrap_or(0) as usize;
                if layers.len() <= layer {
                    layers.resize_with(layer + 1, || LayerSpec { kind: "none".to_owned(), ..LayerSpec::default() });
                }
                layers[layer].kind = cache.kind().to_owned();
                layers[layer].blocks.push(BlockSpec::Op(op.to_owned()));
            }
        }
        (graph, layers)
    }

    /// The dtype of what the program gives.
    pub(super) fn dtype(&self, program: &Program) -> DType {
        let Program { graph_module: module, .. } = program;
        let given = module.signature.output_specs.iter().flatten().filter(|(kind, _)| *kind == "user_output");
        let mut given =
            given.filter_map(|(_, spec)| module.graph.tensor_values.get(spec.arg.as_ref()?.tensor()?)?.dtype());
        given.next().unwrap_or(DType::F32)
    }

    /// The most tokens that its keys and values are of.
    pub(super) fn tokens(&self) -> Option<u64> {
        let tokens = self.caches.iter().filter_map(|cache| match cache.kept {
            Kept::KeysAndValues { tokens, .. } => Some(tokens),
            Kept::State { .. } => None,
        });
        tokens.max()
    }

    /// Tokens of a call; one whose number is open takes as many as there is room for.
    pub(super) fn step_tokens(&self, program: &Program) -> Option<u64> {
        let ids = program.graph_module.graph.tensor_values.get("input_ids")?;
        match ids.shape().get(1)? {
            Extent::Known(tokens) => Some(*tokens),
            Extent::Symbol(_) => self.tokens(),
        }
    }

    pub(super) fn facts(&self) -> Vec<Fact> {
        let counters = self.counters.iter().map(|name| Fact {
            what: (*name).to_owned(),
            value: "one number, no cache".to_owned(),
            from: "its shape; the program renews it".to_owned(),
            assumed: false,
        });
        self.caches.iter().map(Cache::fact).chain(counters).collect()
    }
}

impl Cache<'_> {
    fn kind(&self) -> &'static str {
        match self.kept {
            Kept::KeysAndValues { .. } => "attention",
            Kept::State { .. } => "state",
        }
    }

    /// Adds the ops that keep it; returns the layer and kind of each.
    fn add(&self, graph: &mut Graph, tensors: &HashMap<&str, TensorId>) -> Vec<(Option<u32>, &'static str)> {
        let (buffers, op, port) = match &self.kept {
            Kept::KeysAndValues { names, inputs, .. } => {
                (names.iter().zip(inputs).collect(), Op::STATIC_CACHE, "cache")
            }
            Kept::State { name, input } => (vec![(name, input)], Op::STATE, "state"),
        };
        // A row for each layer, or one layer's alone.
        let rows: Vec<(Option<u32>, &[u64])> = match self.sizes.split_first() {
            Some((&rows, sizes)) if op == Op::STATIC_CACHE && sizes.len() == 3 => {
                (0..rows as u32).map(|row| (Some(row), sizes)).collect()
            }
            _ => vec![(self.layer, self.sizes.as_slice())],
        };
        let mut kept = Vec::new();
        for (name, input) in buffers {
            let part = name.trim_end_matches(|c: char| c.is_ascii_digit() || "_.".contains(c));
            let part = part.rsplit('.').next().filter(|part| !part.is_empty()).unwrap_or("state");
            for &(layer, sizes) in &rows {
                let called = || Name::new(layer, part.to_owned());
                let view = Op::new(called(), Op::VIEW);
                let view = match tensors.get(input) {
                    Some(&tensor) => view.input("x", tensor),
                    None => view,
                };
                let view = graph.add_op(view);
                let shape = std::iter::once(Extent::BATCH).chain(sizes.iter().copied().map(Extent::Known)).collect();
                let state = graph.add_output(view, called(), shape, self.dtype);
                let stateful = Op::new(called(), op).input(port, state);
                graph.add_op(stateful.attribute(Attribute::STATEFUL, Attribute::Flag));
                kept.push((layer, op));
            }
        }
        kept
    }

    fn fact(&self) -> Fact {
        let sizes = &self.sizes;
        let (what, value, from, assumed) = match self.kept {
            Kept::KeysAndValues { names: [key, value], tokens, told, .. } => {
                let from = if told { "the attention that reads them" } else { "their names; no op tells" };
                (format!("{key}, {value}"), format!("keys and values of {tokens} tokens, {sizes:?}"), from, !told)
            }
            Kept::State { name, .. } => {
                (name.to_owned(), format!("a state, {sizes:?}"), "the program renews it; no op tells what it is", true)
            }
        };
        Fact { what, value, from: from.to_owned(), assumed }
    }
}

/// The buffers that an attention reads: `(node, [keys, values], tokens)`.
type Attended<'a> = (&'a Node, [&'a str; 2], Option<u64>);

fn attended<'a>(lookup: &Lookup<'a>, node: &'a Node, renewed: &[&str]) -> Result<Attended<'a>, Refusal> {
    let input = |at: usize| node.inputs.get(at).and_then(|input| input.arg.tensors().next());
    let kept = |at: usize| input(at).and_then(|tensor| lookup.root(tensor)).filter(|root| renewed.contains(root));
    let (Some(key), Some(value)) = (kept(1), kept(2)) else {
        let at = node.outputs.iter().flat_map(Argument::tensors).next().unwrap_or(&node.target);
        let reason = "its keys and values come from no buffer that the program renews: it was exported without a cache";
        return Err(Refusal::at(at, reason));
    };
    let seen = input(1).and_then(|tensor| lookup.tensors.get(tensor)).and_then(TensorMeta::sizes);
    Ok((node, [key, value], seen.and_then(|sizes| sizes.iter().rev().nth(1).copied())))
}

fn refuse_hidden(node: &Node) -> Result<(), Refusal> {
    let higher = node.target.strip_prefix("torch.ops.higher_order.");
    match higher.filter(|name| !WRAPPERS.contains(name)) {
        Some(_) => Err(Refusal::at(&node.target, "what it keeps cannot be told; export the program without it")),
        None => Ok(()),
    }
}

fn shape(lookup: &Lookup<'_>, input: &str) -> Result<(Vec<u64>, DType), Refusal> {
    let name = lookup.names[input];
    let meta = lookup.tensors.get(input).ok_or_else(|| Refusal::at(name, "its shape is not stated"))?;
    let sizes = meta.sizes().filter(|sizes| sizes.iter().all(|size| *size > 0));
    let sizes = sizes.ok_or_else(|| Refusal::at(name, "a size of it is open, 0, or beyond what a cache has"))?;
    Ok((sizes, meta.dtype().ok_or_else(|| Refusal::at(name, "no cache has its element type"))?))
}

fn one_sequence(name: &str, batch: u64) -> Result<(), Refusal> {
    match batch {
        1 => Ok(()),
        _ => {
            let reason = format!("it holds {batch} sequences, which would share one position; export a batch of 1");
            Err(Refusal::at(name, reason))
        }
    }
}

/// The name of the values that belong to keys of that name.
fn value_of(name: &str) -> Option<String> {
    let (before, after) = name.rsplit_once("key")?;
    Some(format!("{before}value{after}"))
}

/// The layer in a name such as `model.layers.5.key_cache` or `key_cache_5`.
fn layer_in(name: &str) -> Option<u32> {
    let words: Vec<&str> = name.split(['.', '_']).collect();
    let behind = words.windows(2).find(|pair| matches!(pair[0], "layers" | "layer" | "blocks" | "h"));
    let stated = behind.and_then(|pair| pair[1].parse().ok());
    let number = stated.or_else(|| words.iter().rev().find_map(|word| word.parse().ok()));
    number.filter(|layer| *layer <= MAX_LAYER)
}
