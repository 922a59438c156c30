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

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use cacheplan_files::SourceError;
use cacheplan_graphs::{Element, GraphEngine, Input, Port, Runner, Slice};
use cacheplan_kernels::{Backend, Rope, Run};
use cacheplan_managers::device::CacheManager;
use cacheplan_planner::PlanRequest;
use cacheplan_transforms::{Model, ReadOptions, Resource, StateBinding, StatePart};
use candle_core::{Device, Tensor};

use self::bucket::{Call, calls};
pub(crate) use self::experts::{Chosen, Stack};
pub use self::export::GraphExport;
pub(crate) use self::linear_attention::{Decay, Recurrence};
use self::state::Pools;
pub(crate) use self::write::{Attending, Writer, int, refuse};
pub use self::write::{GraphDType, GraphForm};
use crate::cache_use::CacheUse;
use crate::decoder::{Decoder, TextModel};
use crate::error::{ConfigError, RuntimeError};
use crate::inputs::StepInputs;
use crate::layers::RopeConfig;

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
    engine: GraphEngine,
}

/// A graph and what its inputs and outputs are.
#[derive(Debug)]
struct BoundGraph {
    runner: Runner,
    inputs: Vec<Role>,
    /// The rope table that it is given, with its shape.
    rope: Option<(Vec<f32>, Vec<usize>)>,
    /// The output with a row for each token.
    rows: usize,
    /// The outputs that take the place of the states, in the order of the bindings.
    states: Vec<usize>,
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

/// Refuses a program of torch.export, which nothing here runs.
pub(crate) fn refuse_program(path: &Path) -> Result<(), RuntimeError> {
    if path.extension().is_none_or(|extension| extension != "pt2") {
        return Ok(());
    }
    let reason = "programs of torch.export are planned, not run; give the model's own folder, or an ONNX graph";
    let (file, what) = (path.display().to_string(), "the program".to_owned());
    Err(RuntimeError::Exported { file, what, reason: reason.to_owned() })
}

/// The graphs in a folder.
pub(crate) fn files(folder: &Path) -> Result<Vec<PathBuf>, RuntimeError> {
    let name = folder.display().to_string();
    let unread = |source| ConfigError::Source(SourceError::Io { name: name.clone(), source });
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(unread)? {
        let path = entry.map_err(unread)?.path();
        if path.extension().is_some_and(|extension| extension == "onnx") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// What the graphs in a folder are planned by: the one that takes the most tokens.
pub(crate) fn read(folder: &Path, native: &Model) -> Result<(Model, Vec<PathBuf>), RuntimeError> {
    let refuse = |file: &Path, reason: String| RuntimeError::Exported {
        file: file.display().to_string(),
        what: "the graph".to_owned(),
        reason,
    };
    let files = files(folder)?;
    let mut largest: Option<(u64, Model)> = None;
    for file in &files {
        let mut model = Model::read(file, &ReadOptions::default())?;
        let replaced = |part| matches!(part, StatePart::Convolution | StatePart::Recurrence);
        let only_replaced = !model.states.is_empty() && model.states.iter().all(|state| replaced(state.part));
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
        let is_fixed = |part| matches!(part, StatePart::FixedKeys | StatePart::FixedValues | StatePart::FixedLatents);
        let only_keys = model.states.iter().all(|state| is_fixed(state.part));
        // A config without a vocabulary says of a model what its states are, and no more.
        let contradicts = if native.vocab_size.is_none() { disagreement(native, &model) } else { None };
        contradicts.map_or(Ok(()), |reason| Err(refuse(file, reason)))?;
        if only_keys && model.info.layers != native.info.layers {
            let (own, its) = (native.info.layers, model.info.layers);
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

/// What a graph's own states contradict of the config beside it.
fn disagreement(native: &Model, graph: &Model) -> Option<String> {
    let caches = |model: &Model| PlanRequest::of(model.clone()).caches().ok();
    let sizes = |cache: &Resource| cache.handler.shape().iter().map(|dim| dim.size).collect::<Vec<_>>();
    let (own, its) = caches(native).zip(caches(graph))?;
    its.iter().find_map(|found| {
        let alike = |own: &&Resource| own.layer == found.layer && own.handler.kind() == found.handler.kind();
        let (name, shape) = (&found.name, sizes(found));
        let stated = own.iter().find(alike).map(sizes).filter(|stated| *stated != shape)?;
        Some(format!("its `{name}` is {shape:?}, and that of the config {stated:?}"))
    })
}

impl Exported {
    /// The graphs in `files`, whose states `model` names.
    ///
    /// # Errors
    /// A graph that cannot be run, an input that nobody knows what to give, graphs over different states.
    pub(crate) fn open(
        files: &[PathBuf],
        engine: &GraphEngine,
        model: &Model,
        on: &Backend,
    ) -> Result<Self, RuntimeError> {
        let mut exported = Self {
            graphs: Mutex::default(),
            sizes: Vec::new(),
            pads: true,
            states: model.states.clone(),
            caches: Vec::new(),
            max_seq_len: model.info.max_position_embeddings,
            vocab_size: 0,
            gives_logits: false,
            engine: engine.clone(),
        };
        let mut graphs = Vec::new();
        for file in files {
            graphs.push(exported.bind(file, model, on)?);
        }
        exported.graphs = Mutex::new(graphs);
        Ok(exported)
    }

    fn bind(&mut self, file: &Path, model: &Model, on: &Backend) -> Result<BoundGraph, RuntimeError> {
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
        let port_of = |role: Role| inputs.iter().position(|found| *found == role).map(|at| &ports[at]);
        let tokens = port_of(Role::Tokens).ok_or_else(|| refuse("input_ids", "there is no such input".to_owned()))?;
        let &[batch, size] = tokens.shape.as_slice() else {
            return Err(refuse("input_ids", format!("it is {:?}, expected [batch, tokens]", tokens.shape)));
        };
        if let Some(batch) = batch.filter(|&batch| batch != 1) {
            let reason = format!("it takes {batch} sequences, which would share one position; export a batch of 1");
            return Err(refuse("input_ids", reason));
        }
        let output = |name: &str| runner.outputs().iter().position(|port| port.name == name);
        let (mut states, mut caches) = (Vec::new(), Vec::new());
        for (number, state) in self.states.iter().enumerate() {
            let port = port_of(Role::State(number)).zip(output(&state.output));
            let (port, at) =
                port.ok_or_else(|| refuse(&state.input, "there is no such state in this graph".to_owned()))?;
            states.push(at);
            caches.extend(state::cache_of(state, &port.shape).map_err(|reason| refuse(&state.input, reason))?);
        }
        if !self.sizes.is_empty() && caches != self.caches {
            return Err(refuse("the graph", "its states are not those of the graphs beside it".to_owned()));
        }
        self.caches = caches;
        let rest = (0..runner.outputs().len()).find(|at| !states.contains(at));
        let rows = ["last_hidden_state", "logits"].into_iter().find_map(output).or(rest);
        let rows = rows.ok_or_else(|| refuse("the graph", "it gives nothing but states".to_owned()))?;
        let port = &runner.outputs()[rows];
        let [_, _, Some(width)] = port.shape[..] else {
            return Err(refuse(&port.name, format!("it is {:?}, expected [1, tokens, channels]", port.shape)));
        };
        let hidden = port.name == "last_hidden_state";
        let gives_logits = port.name == "logits";
        if !self.sizes.is_empty() && gives_logits != self.gives_logits {
            return Err(refuse(&port.name, "the graphs beside it give other rows".to_owned()));
        }
        self.gives_logits = gives_logits;
        if let Some(expected) = model.hidden_size.filter(|&expected| hidden && expected != width as u64) {
            return Err(refuse(&port.name, format!("it has {width} channels, the model {expected}")));
        }
        self.vocab_size = model.vocab_size.and_then(|size| usize::try_from(size).ok()).unwrap_or(width);
        let replaced =
            self.states.iter().any(|state| matches!(state.part, StatePart::Convolution | StatePart::Recurrence));
        self.pads &= !replaced || inputs.contains(&Role::Lengths);
        self.sizes.push(size);
        Ok(BoundGraph { runner, inputs, rope, rows, states })
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

    /// The model of these graphs: alone where they give logits, else with what `around` them is another's.
    pub(crate) fn decoder(
        self,
        around: impl FnOnce() -> Result<Decoder, RuntimeError>,
        on: &Backend,
    ) -> Result<Decoder, RuntimeError> {
        if self.gives_logits { Ok(Decoder::new(self, None, on)) } else { Ok(around()?.with_text(self)) }
    }

    /// Runs one call and writes what is new; returns a row for each of its tokens.
    fn call(
        &self,
        graph: &mut BoundGraph,
        call: Call,
        tokens: &[u32],
        pools: &Pools<'_>,
    ) -> Result<Vec<f32>, RuntimeError> {
        let Call { past, size, .. } = call;
        let count = tokens.len();
        let mut ids: Vec<i64> = tokens.iter().map(|&token| token.into()).collect();
        ids.resize(size, 0);
        let positions: Vec<i64> = (past as i64..).take(size).collect();
        let columns = self.max_seq_len.unwrap_or((past + size) as u64) as usize;
        let mask: Vec<i64> = (0..columns).map(|at| i64::from(at < past + count)).collect();
        let decodes = size == 1 && graph.inputs.contains(&Role::Start);
        let lengths = [if decodes { past + 1 } else { count } as i64];
        let start = [past as i64];
        let mut held = Vec::with_capacity(self.states.len());
        for (number, state) in self.states.iter().enumerate() {
            let port = graph.inputs.iter().position(|role| *role == Role::State(number));
            let shape = port.map_or(&[][..], |port| &graph.runner.inputs()[port].shape);
            held.push(pools.held(state, shape, call)?);
        }
        let new = {
            let mut inputs = Vec::with_capacity(graph.inputs.len());
            for (role, port) in graph.inputs.iter().zip(graph.runner.inputs()) {
                let flat = |len: usize| if port.shape.len() == 1 { vec![len] } else { vec![1, len] };
                inputs.push(match *role {
                    Role::Tokens => Input { data: Slice::Int(&ids), shape: vec![1, size] },
                    Role::Mask => Input { data: Slice::Int(&mask), shape: flat(columns) },
                    Role::Positions => Input { data: Slice::Int(&positions), shape: flat(size) },
                    Role::Lengths => Input { data: Slice::Int(&lengths), shape: vec![1] },
                    Role::Start => {
                        let start = if past == 0 && port.shape == [None] { &start[..0] } else { &start };
                        Input { data: Slice::Int(start), shape: vec![start.len()] }
                    }
                    Role::Rope => {
                        let (table, shape) = graph.rope.as_ref().ok_or_else(|| self.odd(&port.name))?;
                        Input { data: Slice::Float(table), shape: shape.clone() }
                    }
                    Role::State(state) => {
                        let held = &held[state];
                        Input { data: held.numbers()?, shape: held.shape(&port.shape) }
                    }
                });
            }
            let outputs = graph.runner.run(&inputs)?;
            let view = |at: usize| outputs.get(at);
            let rows = view(graph.rows).and_then(|rows| rows.narrow(1, 0, count)?.floats());
            let rows = rows.ok_or_else(|| self.odd("the rows of its tokens"))?;
            let mut new = Vec::with_capacity(self.states.len());
            for (state, &at) in self.states.iter().zip(&graph.states) {
                let made = view(at).and_then(|view| state::new_part(state, &view, past, count));
                new.push(made.ok_or_else(|| self.odd(&state.output))?);
            }
            (rows, new)
        };
        drop(held);
        let (rows, new) = new;
        pools.write(&self.states, new, call, count)?;
        Ok(rows)
    }

    fn odd(&self, what: &str) -> RuntimeError {
        let reason = "it has not the shape that was announced".to_owned();
        RuntimeError::Exported { file: "the graph".to_owned(), what: what.to_owned(), reason }
    }
}

/// Cosines and sines of each position, as the rotation turns a one in each first half.
fn rope_table(rope: &Rope, positions: usize, rotary: usize) -> Result<Vec<f32>, RuntimeError> {
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

    fn forward(&self, _: &Run<'_>, inputs: &StepInputs<'_>, caches: &CacheManager) -> Result<Tensor, RuntimeError> {
        let StepInputs { tokens, rows, metadata, .. } = inputs;
        let mut graphs = self.graphs.lock().unwrap_or_else(PoisonError::into_inner);
        let pools = Pools { caches, metadata };
        // All calls are known before the first one writes.
        let mut plan = Vec::new();
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
        for call in plan {
            let made = self.call(&mut graphs[call.graph], call, &tokens[call.row..call.row + call.tokens], &pools)?;
            width = made.len() / call.tokens;
            for (row, chosen) in rows.iter().zip(&mut chosen) {
                if let Some(at) = (*row as usize).checked_sub(call.row).filter(|&at| at < call.tokens) {
                    *chosen = made[at * width..][..width].to_vec();
                }
            }
        }
        chosen.iter_mut().for_each(|row| row.resize(width, 0.0));
        Ok(Tensor::from_vec(chosen.concat(), (rows.len(), width), &Device::Cpu)?)
    }
}
