//! Exported graphs as a model of text: their states live in planned pools, and a call reads them where they lie.
//!
//! A sequence's tokens go through the graphs in calls of the sizes that those take ([`bucket`]). A call is given what the
//! pools hold of the sequence ([`state`]) and gives back what is new, which alone is written.

mod bucket;
mod experts;
mod export;
mod linear_attention;
mod random;
pub(crate) mod recurrent;
mod state;
mod write;

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use cacheplan_files::SourceError;
use cacheplan_graphs::{Element, GraphEngine, Input, Port, Runner, Slice};
use cacheplan_handlers::Kind;
use cacheplan_kernels::{Backend, Rope, Run};
use cacheplan_managers::device::CacheManager;
use cacheplan_planner::PlanRequest;
use cacheplan_transforms::{Model, ReadOptions, Resource, StateBinding, StatePart};
use candle_core::{Device, Tensor};

use self::bucket::{Call, calls};
pub(crate) use self::experts::{Chosen, Stack};
pub use self::export::GraphExport;
pub(crate) use self::linear_attention::{Decay, Recurrence};
use self::state::{Lanes, Pools, is_replaced};
pub(crate) use self::write::{Attending, Writer, int, refuse};
pub use self::write::{GraphDType, GraphForm};
use crate::cache_use::CacheUse;
use crate::decoder::{Decoder, TextModel};
use crate::error::{ConfigError, Result, RuntimeError};
use crate::inputs::StepInputs;
use crate::layers::RopeConfig;

/// The most sequences of one call.
const MAX_BATCH: usize = 256;

/// Graphs over the same states, each for another number of tokens.
#[derive(Debug)]
pub(crate) struct Exported {
    /// A runner keeps the buffers of its last run.
    graphs: Mutex<Vec<BoundGraph>>,
    /// The tokens of a call of each; `None` for those that take any number.
    sizes: Vec<Option<usize>>,
    /// Whether tokens behind the prompt's own change nothing: there is no state that they would be a part of, or the
    /// graph is told how many count.
    pads: bool,
    states: Vec<StateBinding>,
    caches: Vec<CacheUse>,
    max_seq_len: Option<u64>,
    vocab_size: usize,
    /// Whether the rows of tokens are logits, so that nothing of a model is needed around the graphs.
    gives_logits: bool,
    gives_hidden: bool,
    engine: GraphEngine,
}

/// The rows of a graph that ends at its last layer.
const LAST_HIDDEN: &str = "last_hidden_state";

/// A graph and what its inputs and outputs are.
#[derive(Debug)]
struct BoundGraph {
    runner: Runner,
    /// Sequences of a call.
    batch: usize,
    /// Whether each of them has a position of its own; else those of one call have as many tokens behind them.
    own_positions: bool,
    inputs: Vec<Role>,
    /// The rope table that it is given, with its shape.
    rope: Option<(Vec<f32>, Vec<usize>)>,
    /// The output with a row for each token.
    rows: usize,
    /// The outputs that take the place of the states, in the order of the bindings.
    states: Vec<usize>,
    /// Whether it renews the states of recurrences and convolutions where they lie, so that nobody copies them: all of
    /// them, since a pool that is renewed cannot be read by others meanwhile.
    renews: bool,
}

/// What an input is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Tokens,
    /// 1 for the tokens that are there, as far as the cache reaches.
    Mask,
    /// The position of each token.
    Positions,
    /// How many tokens of the call count; of a token that decodes behind a start index, how many there are with it.
    Lengths,
    /// How many tokens are there already; nothing where there are none and the graph takes nothing.
    Start,
    /// The angles of each position, cosines first.
    Rope,
    State(usize),
}

impl Role {
    fn of(port: &Port, states: &[StateBinding]) -> Result<Self, String> {
        let state = states.iter().position(|state| state.input == port.name);
        Ok(match port.name.as_str() {
            _ if state.is_some() => Self::State(state.unwrap_or_default()),
            "input_ids" => Self::Tokens,
            "attention_mask" => Self::Mask,
            "cache_position" | "position_ids" => Self::Positions,
            "context_lengths" => Self::Lengths,
            "kvcache_start_index" => Self::Start,
            "rope_rotary_cos_sin" => Self::Rope,
            _ => {
                let known = "input_ids, attention_mask, cache_position, position_ids, context_lengths, \
                             kvcache_start_index, rope_rotary_cos_sin and states";
                return Err(format!("nobody knows what to give it; known are {known}"));
            }
        })
    }
}

/// Tokens of a step that is planned where graphs that keep no keys do not say, as in other plans.
const STEP_TOKENS: u64 = 2048;

/// Whether a path names an exported graph, as [`Session::open`](crate::Session::open) takes it; a folder is none, whatever its name.
pub fn is_graph(path: &Path) -> bool {
    is_file_of(path, "onnx")
}

fn is_file_of(path: &Path, format: &str) -> bool {
    path.extension().is_some_and(|extension| extension == format) && !path.is_dir()
}

/// Refuses a program of torch.export, which nothing here runs.
pub(crate) fn refuse_program(path: &Path) -> Result<()> {
    if !is_file_of(path, "pt2") {
        return Ok(());
    }
    let reason = "programs of torch.export are planned, not run; give the model's own folder, or an ONNX graph";
    let (file, what) = (path.display().to_string(), "the program".to_owned());
    Err(RuntimeError::Exported { file, what, reason: reason.to_owned() })
}

/// The graphs in a folder.
pub(crate) fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let name = folder.display().to_string();
    let unread = |source| ConfigError::Source(SourceError::Io { name: name.clone(), source });
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(unread)? {
        let path = entry.map_err(unread)?.path();
        if is_graph(&path) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// What the graphs in a folder are planned by: the one that takes the most tokens.
pub(crate) fn read(folder: &Path, native: &Model) -> Result<(Model, Vec<PathBuf>)> {
    let refuse = |file: &Path, reason: String| RuntimeError::Exported {
        file: file.display().to_string(),
        what: "the graph".to_owned(),
        reason,
    };
    let files = files(folder)?;
    let mut largest: Option<(u64, Model)> = None;
    for file in &files {
        let mut model = Model::read(file, &ReadOptions::default())?;
        let only_replaced = !model.states.is_empty() && model.states.iter().all(|state| is_replaced(state.part));
        let step_tokens = match model.info.step_tokens {
            Some(tokens) => tokens,
            // States of one size reach as far as the model does.
            None if only_replaced => STEP_TOKENS,
            // One whose caches grow takes any number of tokens, so that there is no other beside it.
            None if files.len() == 1 => u64::MAX,
            None => {
                let reason = "its caches have no fixed shapes, and other graphs lie beside it; run it by itself";
                return Err(refuse(file, reason.to_owned()));
            }
        };
        let only_keys = model.states.iter().all(|state| state.part == StatePart::Fixed);
        disagreement(native, &model).map_or(Ok(()), |reason| Err(refuse(file, reason)))?;
        let (own, its) = (layers_that_keep(native), model.info.layers);
        if only_keys && own != its {
            return Err(refuse(file, format!("it keeps keys of {its} layers, the model has {own}")));
        }
        model.info.step_tokens = Some(step_tokens).filter(|tokens| *tokens != u64::MAX);
        if largest.as_ref().is_none_or(|(tokens, _)| *tokens < step_tokens) {
            largest = Some((step_tokens, model));
        }
    }
    let (_, mut model) = largest.ok_or_else(|| refuse(folder, "there is no .onnx file in this folder".to_owned()))?;
    // What is not in a graph is the model's own.
    model.info.max_position_embeddings = model.info.max_position_embeddings.or(native.info.max_position_embeddings);
    model.vocab_size = native.vocab_size.or(model.vocab_size);
    model.hidden_size = native.hidden_size;
    model.config = native.config.clone();
    Ok((model, files))
}

/// How many layers there are up to the last that has a cache of its own: those behind it read the caches of others.
fn layers_that_keep(model: &Model) -> u32 {
    let caches = PlanRequest::of(model.clone()).caches();
    let last = caches.ok().and_then(|caches| caches.iter().filter_map(|cache| cache.layer).max());
    last.map_or(model.info.layers, |last| last + 1)
}

/// What a graph's own states contradict of the config beside it.
fn disagreement(native: &Model, graph: &Model) -> Option<String> {
    let caches = |model: &Model| PlanRequest::of(model.clone()).caches().ok();
    let sizes = |cache: &Resource| cache.handler.shape().iter().map(|dim| dim.size).collect::<Vec<_>>();
    let (own, its) = caches(native).zip(caches(graph))?;
    its.iter().find_map(|found| {
        let alike = |own: &&Resource| own.layer == found.layer && own.handler.kind() == found.handler.kind();
        let (name, shape) = (&found.name, sizes(found));
        match own.iter().find(alike).map(sizes) {
            None if *found.handler.kind() == Kind::Ssm => Some(format!(
                "its `{name}` is of a layer that keeps no such state in the config; it is of another model"
            )),
            // A config without a vocabulary says of a model what its states are, and no more.
            Some(stated) if stated != shape && native.vocab_size.is_none() => {
                Some(format!("its `{name}` is {shape:?}, and that of the config {stated:?}"))
            }
            _ => None,
        }
    })
}

impl Exported {
    /// The graphs in `files`, whose states `model` names.
    ///
    /// # Errors
    /// A graph that cannot be run, an input that nobody knows what to give, graphs over different states.
    pub(crate) fn open(files: &[PathBuf], engine: &GraphEngine, model: &Model, on: &Backend) -> Result<Self> {
        let mut exported = Self {
            graphs: Mutex::default(),
            sizes: Vec::new(),
            pads: true,
            states: model.states.clone(),
            caches: Vec::new(),
            max_seq_len: model.info.max_position_embeddings,
            vocab_size: 0,
            gives_logits: false,
            gives_hidden: false,
            engine: engine.clone(),
        };
        let mut graphs = Vec::new();
        for file in files {
            graphs.push(exported.bind(file, model, on)?);
        }
        exported.graphs = Mutex::new(graphs);
        Ok(exported)
    }

    fn bind(&mut self, file: &Path, model: &Model, on: &Backend) -> Result<BoundGraph> {
        let refuse = |what: &str, reason: String| RuntimeError::Exported {
            file: file.display().to_string(),
            what: what.to_owned(),
            reason,
        };
        if !on.device().is_cpu() {
            return Err(refuse("the graph", "graphs run on the CPU only".to_owned()));
        }
        if self.states.is_empty() {
            return Err(refuse(
                "the graph",
                "it has states whose use is not known, so that nobody can carry them".to_owned(),
            ));
        }
        let runner = Runner::open(file, &self.engine)?;
        let ports = runner.inputs();
        let mut inputs = Vec::new();
        for port in ports {
            let role = Role::of(port, &self.states).map_err(|reason| refuse(&port.name, reason))?;
            let is_float = matches!(role, Role::State(_) | Role::Rope);
            if port.element.is_float() != is_float {
                let wanted = if is_float { Element::Float } else { Element::Int };
                return Err(refuse(&port.name, format!("it is {:?}, expected {wanted:?}", port.element)));
            }
            inputs.push(role);
        }
        let rope = ports.iter().zip(&inputs).find(|(_, role)| **role == Role::Rope);
        let rope = rope.map(|(port, _)| self.rope(model, port).map_err(|reason| refuse(&port.name, reason)));
        let rope = rope.transpose()?;
        if let Some((_, shape)) = &rope {
            let positions = shape[1] as u64;
            self.max_seq_len = Some(self.max_seq_len.map_or(positions, |most| most.min(positions)));
        }
        let port_of = |role: Role| inputs.iter().position(|found| *found == role).map(|at| &ports[at]);
        let tokens = port_of(Role::Tokens).ok_or_else(|| refuse("input_ids", "there is no such input".to_owned()))?;
        let &[batch, size] = tokens.shape.as_slice() else {
            return Err(refuse("input_ids", format!("it is {:?}, expected [batch, tokens]", tokens.shape)));
        };
        let batch = batch.unwrap_or(1);
        if !(1..=MAX_BATCH).contains(&batch) {
            return Err(refuse("input_ids", format!("it takes {batch} sequences, from 1 to {MAX_BATCH} are run")));
        }
        let plugin = |state: &StateBinding| !matches!(state.part, StatePart::Keys | StatePart::Values);
        let own_positions = inputs.contains(&Role::Start)
            && !inputs.iter().any(|role| matches!(role, Role::Positions | Role::Mask))
            && self.states.iter().all(plugin);
        let output = |name: &str| runner.outputs().iter().position(|port| port.name == name);
        let (mut states, mut caches) = (Vec::new(), Vec::new());
        for (number, state) in self.states.iter().enumerate() {
            let port = port_of(Role::State(number)).zip(output(&state.output));
            let (port, at) =
                port.ok_or_else(|| refuse(&state.input, "there is no such state in this graph".to_owned()))?;
            states.push(at);
            caches.extend(state::caches_of(state, &port.shape).map_err(|reason| refuse(&state.input, reason))?);
        }
        if !self.sizes.is_empty() && caches != self.caches {
            return Err(refuse("the graph", "its states are not those of the graphs beside it".to_owned()));
        }
        self.caches = caches;
        let rest = (0..runner.outputs().len()).find(|at| !states.contains(at));
        let rows = [LAST_HIDDEN, "logits"].into_iter().find_map(output).or(rest);
        let rows = rows.ok_or_else(|| refuse("the graph", "it gives nothing but states".to_owned()))?;
        let port = &runner.outputs()[rows];
        let [_, _, Some(width)] = port.shape[..] else {
            return Err(refuse(&port.name, format!("it is {:?}, expected [1, tokens, channels]", port.shape)));
        };
        let hidden = port.name == LAST_HIDDEN;
        let gives_logits = port.name == "logits";
        if !self.sizes.is_empty() && gives_logits != self.gives_logits {
            return Err(refuse(&port.name, "the graphs beside it give other rows".to_owned()));
        }
        (self.gives_logits, self.gives_hidden) = (gives_logits, hidden);
        if let Some(expected) = model.hidden_size.filter(|&expected| hidden && expected != width as u64) {
            return Err(refuse(&port.name, format!("it has {width} channels, the model {expected}")));
        }
        self.vocab_size = model.vocab_size.and_then(|size| usize::try_from(size).ok()).unwrap_or(width);
        let replaced = || self.states.iter().zip(&states).enumerate().filter(|(_, (state, _))| is_replaced(state.part));
        self.pads &= replaced().next().is_none() || inputs.contains(&Role::Lengths);
        let pairs = runner.renewable();
        let renews = replaced().all(|(number, (_, output))| {
            inputs.iter().position(|role| *role == Role::State(number)).is_some_and(|at| pairs.contains(&(at, *output)))
        });
        self.sizes.push(size);
        Ok(BoundGraph { runner, batch, own_positions, inputs, rope, rows, states, renews })
    }

    /// The angles `[1, positions, rotary_dim]` of the model that the graph was exported of.
    fn rope(&self, model: &Model, port: &Port) -> Result<(Vec<f32>, Vec<usize>), String> {
        if model.config.is_empty() {
            return Err("its angles follow from the model's config: run it as `run MODEL --static DIR`".to_owned());
        }
        let &[_, positions, Some(rotary)] = port.shape.as_slice() else {
            return Err(format!("it is {:?}, expected [1, positions, rotary_dim]", port.shape));
        };
        let positions = positions.or(self.max_seq_len.and_then(|len| usize::try_from(len).ok()));
        let stated = |key: &str| model.config.get(key).and_then(serde_json::Value::as_u64);
        let positions = positions.or(stated("max_position_embeddings").and_then(|len| usize::try_from(len).ok()));
        let positions = positions.ok_or("neither the graph nor the config says how many positions there are")?;
        let heads = stated("num_attention_heads").filter(|&heads| heads > 0);
        let head_dim = stated("head_dim").or_else(|| Some(stated("hidden_size")? / heads?));
        let head_dim = head_dim.and_then(|size| usize::try_from(size).ok()).ok_or("the config states no head_dim")?;
        let config = serde_json::Value::Object(model.config.clone());
        let config: RopeConfig = serde_json::from_value(config).map_err(|error| error.to_string())?;
        let rope = config.partial_rope(head_dim).map_err(|error| error.to_string())?;
        if rope.rotary_dim() != rotary {
            return Err(format!("it has {rotary} channels, the model rotates {}", rope.rotary_dim()));
        }
        let table = rope_table(&rope, positions, rotary).map_err(|error| error.to_string())?;
        Ok((table, vec![1, positions, rotary]))
    }

    /// The model of these graphs, with nothing around them.
    ///
    /// # Errors
    /// A graph that ends at the last layer.
    pub(crate) fn alone(self, file: &Path, on: &Backend) -> Result<Decoder, RuntimeError> {
        if self.gives_hidden {
            return Err(RuntimeError::Exported {
                file: file.display().to_string(),
                what: LAST_HIDDEN.to_owned(),
                reason: "the graph gives no logits; run it with the model around it, as `run MODEL --static DIR`"
                    .to_owned(),
            });
        }
        Ok(Decoder::new(self, None, on))
    }

    /// The model of these graphs: alone where they give logits, else with what `around` them is another's.
    pub(crate) fn decoder(self, around: impl FnOnce() -> Result<Decoder>, on: &Backend) -> Result<Decoder> {
        if self.gives_logits { Ok(Decoder::new(self, None, on)) } else { Ok(around()?.with_text(self)) }
    }

    /// Runs calls of as many sequences at once, and writes what is new; returns the rows of each one's tokens.
    ///
    /// Where they are fewer than the graph takes, the first one is there several times, and what that makes is dropped.
    fn run(&self, graph: &mut BoundGraph, calls: &[Call], tokens: &[u32], pools: &Pools<'_>) -> Result<Vec<Vec<f32>>> {
        let batch = graph.batch;
        let Some(&first) = calls.first() else { return Ok(Vec::new()) };
        let size = first.size;
        let lanes: Vec<Call> = calls.iter().copied().chain(std::iter::repeat(first)).take(batch).collect();
        let each = |of: &dyn Fn(&Call) -> Vec<i64>| lanes.iter().flat_map(of).collect::<Vec<i64>>();
        let ids = each(&|call| {
            let own = tokens[call.row..call.row + call.tokens].iter().map(|&token| i64::from(token));
            own.chain(std::iter::repeat(0)).take(size).collect()
        });
        let positions = each(&|call| (call.past as i64..).take(size).collect());
        let most = lanes.iter().map(|call| call.past + size).max().unwrap_or(size);
        // A mask reaches as far as the caches, which grow where their shapes are open.
        let fixed = self.max_seq_len.filter(|_| self.states.iter().any(|state| state.part == StatePart::Fixed));
        let columns = fixed.unwrap_or(most as u64) as usize;
        // As long as the caches: what a token takes must not grow with it.
        let mut mask = vec![0; lanes.len() * columns];
        for (call, row) in lanes.iter().zip(mask.chunks_exact_mut(columns.max(1))) {
            row[..columns.min(call.past + call.tokens)].fill(1);
        }
        let decodes = size == 1 && graph.inputs.contains(&Role::Start);
        let lengths = each(&|call| vec![if decodes { call.past + 1 } else { call.tokens } as i64]);
        let starts = each(&|call| vec![call.past as i64]);
        let ports = graph.runner.inputs().to_vec();
        let place = |state: usize| graph.inputs.iter().position(|role| *role == Role::State(state));
        let places: Vec<Option<usize>> = (0..self.states.len()).map(place).collect();
        let port_of = |state: usize| places[state].map_or(&[][..], |port: usize| ports[port].shape.as_slice());
        let BoundGraph { runner, inputs: roles, rope, rows: rows_at, states: states_at, renews, .. } = graph;
        let given = Lanes { calls: &lanes, count: calls.len() };
        let (rows, new) = pools.lend(&self.states, &port_of, *renews, given, |held| {
            let mut held: Vec<Option<Input<'_>>> = held.into_iter().map(Some).collect();
            let mut inputs = Vec::with_capacity(roles.len());
            for (role, port) in roles.iter().zip(&ports) {
                // Of one axis for all sequences, or of two.
                let (rows, outer) = if port.shape.len() > 1 { (batch, vec![batch]) } else { (1, Vec::new()) };
                let ints = |values, len: usize| {
                    let values: &[i64] = values;
                    Input::new(Slice::Int(&values[..rows * len]), [outer.as_slice(), &[len]].concat())
                };
                let unstarted = port.shape == [None] && starts.iter().all(|&start| start == 0);
                inputs.push(match *role {
                    Role::Tokens => ints(&ids, size),
                    Role::Mask => ints(&mask, columns),
                    Role::Positions => ints(&positions, size),
                    Role::Lengths => Input::new(Slice::Int(&lengths), vec![batch]),
                    Role::Start if unstarted => Input::new(Slice::Int(&[]), vec![0]),
                    Role::Start => Input::new(Slice::Int(&starts), vec![batch]),
                    Role::Rope => {
                        let (table, shape) = rope.as_ref().ok_or_else(|| self.odd(&port.name))?;
                        Input::new(Slice::Float(table), shape.clone())
                    }
                    Role::State(state) => held[state].take().ok_or_else(|| self.odd(&port.name))?,
                });
            }
            let outputs = runner.run(&mut inputs)?;
            let (mut rows, mut new) = (Vec::new(), Vec::new());
            for (lane, call) in calls.iter().enumerate() {
                let of = |at: usize| {
                    let made = outputs.get(at)?;
                    if batch == 1 { Some(made) } else { made.narrow(0, lane, 1) }
                };
                let own = of(*rows_at).and_then(|rows| rows.narrow(1, 0, call.tokens)?.floats());
                rows.push(own.ok_or_else(|| self.odd("the rows of its tokens"))?);
                let mut states = Vec::with_capacity(self.states.len());
                for (state, &at) in self.states.iter().zip(&*states_at) {
                    if *renews && is_replaced(state.part) {
                        states.push(None);
                        continue;
                    }
                    let made = of(at).and_then(|view| state::new_part(state, &view, call.past, call.tokens));
                    states.push(Some(made.ok_or_else(|| self.odd(&state.output))?));
                }
                new.push(states);
            }
            Ok((rows, new))
        })?;
        for (&call, new) in calls.iter().zip(new) {
            pools.write(&self.states, new, call, call.tokens)?;
        }
        Ok(rows)
    }

    fn odd(&self, what: &str) -> RuntimeError {
        let reason = "it has not the shape that was announced".to_owned();
        RuntimeError::Exported { file: "the graph".to_owned(), what: what.to_owned(), reason }
    }
}

/// Cosines and sines of each position, as the rotation turns a one in each first half.
fn rope_table(rope: &Rope, positions: usize, rotary: usize) -> Result<Vec<f32>> {
    let unit: Vec<f32> = (0..positions * rotary).map(|at| f32::from(at % rotary < rotary / 2)).collect();
    let unit = Tensor::from_vec(unit, (positions, 1, rotary), &Device::Cpu)?;
    let places: Vec<u32> = (0..positions as u32).collect();
    Ok(rope.apply(&Backend::Cpu.run(), &unit, &places)?.flatten_all()?.to_vec1()?)
}

impl TextModel for Exported {
    fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    fn caches(&self) -> Vec<CacheUse> {
        self.caches.clone()
    }

    fn max_seq_len(&self) -> Option<u64> {
        self.max_seq_len
    }

    fn is_counted(&self) -> bool {
        self.engine == GraphEngine::Interpreter
    }

    fn forward(&self, _: &Run<'_>, inputs: &StepInputs<'_>, caches: &CacheManager) -> Result<Tensor> {
        let StepInputs { tokens, rows, metadata, .. } = inputs;
        let mut graphs = self.graphs.lock().unwrap_or_else(PoisonError::into_inner);
        let pools = Pools { caches, metadata };
        // All calls are known before the first one writes.
        let mut plan = VecDeque::new();
        for sequence in 0..metadata.batch() {
            let [first, end] = [sequence, sequence + 1].map(|at| metadata.cu_seqlens[at] as usize);
            if metadata.kv_lens[sequence] == 0 || first == end {
                continue;
            }
            let past = metadata.positions[first] as usize;
            let limit = self.max_seq_len.map(|limit| limit as usize);
            plan.extend(calls(&self.sizes, self.pads, limit, past, end - first, sequence, first)?);
        }
        let mut chosen: Vec<Vec<f32>> = vec![Vec::new(); rows.len()];
        let mut width = 0;
        while let Some(first) = plan.pop_front() {
            let mut some = vec![first];
            let BoundGraph { batch, own_positions, .. } = graphs[first.graph];
            // What comes next of other sequences goes along where the graph takes it.
            let mut seen = vec![first.sequence];
            plan.retain(|call: &Call| {
                let next = !seen.contains(&call.sequence);
                seen.push(call.sequence);
                let alike = (call.graph, call.size) == (first.graph, first.size);
                let goes = next && alike && (own_positions || call.past == first.past) && some.len() < batch;
                if goes {
                    some.push(*call);
                }
                !goes
            });
            let made = self.run(&mut graphs[first.graph], &some, tokens, &pools)?;
            for (call, made) in some.into_iter().zip(made) {
                width = made.len() / call.tokens;
                for (row, chosen) in rows.iter().zip(&mut chosen) {
                    if let Some(at) = (*row as usize).checked_sub(call.row).filter(|&at| at < call.tokens) {
                        *chosen = made[at * width..][..width].to_vec();
                    }
                }
            }
        }
        chosen.iter_mut().for_each(|row| row.resize(width, 0.0));
        Ok(Tensor::from_vec(chosen.concat(), (rows.len(), width), &Device::Cpu)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    /// No recurrent state is copied on its way into a graph or out of it: one buffer, the slot, is lent as both.
    #[rstest]
    #[case("onnx/hybrid_opset18.onnx")]
    #[case("onnx/hybrid_opset23.onnx")]
    #[case::sixteen_bits("onnx/hybrid_f16.onnx")]
    fn recurrent_states_are_renewed_in_their_slots(#[case] file: &str) {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures").join(file);
        let model = Model::read(&file, &ReadOptions::default()).unwrap();
        let exported = Exported::open(&[file], &GraphEngine::Interpreter, &model, &Backend::Cpu).unwrap();
        assert!(exported.states.iter().any(|state| is_replaced(state.part)));
        assert!(exported.graphs.into_inner().unwrap().iter().all(|graph| graph.renews));
    }
}
