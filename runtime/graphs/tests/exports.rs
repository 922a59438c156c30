//! Real exports give what ONNX Runtime and transformers gave.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use cacheplan_graphs::{GraphEngine, GraphError, Input, Pooled, Port, Runner, Slice, SliceMut};
use cacheplan_kernels::StateLayerView;
use cacheplan_transforms::onnx::{AttributeProto, ModelProto, NodeProto};
use candle_core::{DType, Device, Tensor};
use prost::Message;
use rstest::rstest;

fn fixture(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures").join(file)
}

fn runner(file: &str) -> Runner {
    Runner::open(&fixture(file), &GraphEngine::Interpreter).unwrap()
}

fn golden(file: &str) -> HashMap<String, Tensor> {
    candle_core::safetensors::load(fixture(file), &Device::Cpu).unwrap()
}

fn tokens(golden: &HashMap<String, Tensor>, name: &str) -> Vec<i64> {
    golden[name].flatten_all().unwrap().to_vec1::<i64>().unwrap()
}

fn farthest(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// One call after the other, with the states that the last one left.
struct Hybrid {
    runner: Runner,
    states: HashMap<String, (Vec<f32>, Vec<usize>)>,
}

impl Hybrid {
    fn new(name: &str) -> Self {
        Self::of(runner(&format!("onnx/hybrid_{name}.onnx")))
    }

    fn of(runner: Runner) -> Self {
        let mut states = HashMap::new();
        for port in runner.inputs().iter().filter(|port| port.element.is_float()) {
            let open = |axis: usize| usize::from(axis == 0);
            let shape: Vec<usize> =
                port.shape.iter().enumerate().map(|(axis, size)| size.unwrap_or_else(|| open(axis))).collect();
            states.insert(port.name.clone(), (vec![0.0; shape.iter().product()], shape));
        }
        Self { runner, states }
    }

    /// The logits of all tokens.
    fn step(&mut self, tokens: &[i64]) -> Vec<f32> {
        let lengths = [tokens.len() as i64];
        let ports = self.runner.inputs().to_vec();
        let mut inputs: Vec<Input<'_>> = ports
            .iter()
            .map(|port| match port.name.as_str() {
                "input_ids" => Input::new(Slice::Int(tokens), vec![1, tokens.len()]),
                "context_lengths" => Input::new(Slice::Int(&lengths), vec![1]),
                name => Input::new(Slice::Float(&self.states[name].0), self.states[name].1.clone()),
            })
            .collect();
        let names: Vec<String> = self.runner.outputs().iter().map(|port| port.name.clone()).collect();
        let made: Vec<(Vec<f32>, Vec<usize>)> = {
            let outputs = self.runner.run(&mut inputs).unwrap();
            let views = (0..names.len()).map(|at| outputs.get(at).unwrap());
            views.map(|view| (view.floats().unwrap(), view.shape().to_vec())).collect()
        };
        let mut logits = Vec::new();
        for (name, made) in names.into_iter().zip(made) {
            match name.as_str() {
                "logits" => logits = made.0,
                name => drop(self.states.insert(name.replace("present", "past").replace("_out", ""), made)),
            }
        }
        logits
    }
}

fn best(logits: &[f32]) -> i64 {
    (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap() as i64
}

/// In f16 ONNX Runtime rounds behind some nodes and we where values leave the graph, 11 bits each time: logits of up to 2.5
/// differ by at most 0.003, states of up to 2 by at most 0.002.
#[rstest]
#[case("opset18", 1e-4)]
#[case("opset23", 1e-4)]
#[case("f16", 4e-3)]
fn a_hybrid_gives_what_onnx_runtime_gave(#[case] name: &str, #[case] error: f32) {
    let golden = golden(&format!("onnx/hybrid_{name}.golden.safetensors"));
    let mut hybrid = Hybrid::new(name);
    let prompt = tokens(&golden, "prompt");
    let mut logits = hybrid.step(&prompt);
    let flat = |name: &str| golden[name].to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
    let found = farthest(&logits, &flat("prefill.logits"));
    assert!(found < error, "{found}");
    let outputs: Vec<String> = hybrid.runner.outputs()[1..].iter().map(|port| port.name.clone()).collect();
    for output in outputs {
        let state = &hybrid.states[&output.replace("present", "past").replace("_out", "")];
        let found = farthest(&state.0, &flat(&format!("prefill.{output}")));
        assert!(found < error, "{output}: {found}");
    }
    let mut greedy = Vec::new();
    for _ in 0..12 {
        greedy.push(best(&logits[logits.len() - 128..]));
        logits = hybrid.step(&greedy[greedy.len() - 1..]);
    }
    assert_eq!(greedy, tokens(&golden, "greedy"));
}

/// A prompt at once, in pieces, and token by token.
#[test]
fn a_hybrid_computes_a_prompt_in_any_pieces_and_in_either_opset() {
    let prompt: Vec<i64> = (0..21).map(|n| n * 37 % 128).collect();
    let whole = Hybrid::new("opset18").step(&prompt);
    for opset in ["opset18", "opset23"] {
        for pieces in [vec![21], vec![13, 8], vec![1; 21]] {
            let (mut hybrid, mut logits, mut at) = (Hybrid::new(opset), Vec::new(), 0);
            for piece in &pieces {
                logits.extend(hybrid.step(&prompt[at..at + piece]));
                at += piece;
            }
            assert!(
                farthest(&logits, &whole) < 2e-6,
                "{opset} in {} pieces: {}",
                pieces.len(),
                farthest(&logits, &whole)
            );
        }
    }
}

/// The middle one of three slots is the sequence's: it becomes what an output would be, the others stay as they were.
#[rstest]
#[case("opset18")]
#[case("opset23")]
fn states_are_renewed_where_they_lie_in_a_pool(#[case] name: &str) {
    let mut made = Hybrid::new(name);
    let mut runner = runner(&format!("onnx/hybrid_{name}.onnx"));
    let pairs = runner.renewable();
    let (ports, outputs) = (runner.inputs().to_vec(), runner.outputs().to_vec());
    let named: Vec<(&str, &str)> =
        pairs.iter().map(|&(input, output)| (ports[input].name.as_str(), outputs[output].name.as_str())).collect();
    let expected = [0, 2].map(|layer| ["conv", "ssm"].map(|kind| format!("{kind}_state_{layer}"))).concat();
    assert_eq!(named.iter().map(|(input, _)| *input).collect::<Vec<_>>(), expected);
    assert!(named.iter().all(|(input, output)| *output == format!("{input}_out")), "{named:?}");
    let pools: HashMap<&str, (Tensor, StateLayerView)> = named
        .iter()
        .map(|&(name, _)| {
            let shape = match *made.states[name].1 {
                [_, channels, columns] => [columns - 1, channels, 1],
                [_, heads, head_dim, d_state] => [heads, head_dim, d_state],
                _ => panic!("{name}"),
            };
            let elems = shape.iter().product();
            let slots = [7f32, 0.0, 7.0].map(|value| vec![value; elems]).concat();
            let pool = Tensor::from_vec(slots, (3, elems), &Device::Cpu).unwrap();
            (name, (pool, StateLayerView::matrix(elems, 0, shape)))
        })
        .collect();
    let prompt: Vec<i64> = (0..19).map(|n| n * 37 % 128).collect();
    for tokens in [&prompt[..], &[3], &[5, 6, 7]] {
        let before = made.states.clone();
        let expected = made.step(tokens);
        let lengths = [tokens.len() as i64];
        let input = |port: &Port| match port.name.as_str() {
            "input_ids" => Input::new(Slice::Int(tokens), vec![1, tokens.len()]),
            "context_lengths" => Input::new(Slice::Int(&lengths), vec![1]),
            name => match pools.get(name) {
                Some((pool, view)) => {
                    Input::renewed(Pooled { pool, view: *view, slots: vec![1] }, before[name].1.clone())
                }
                None => Input::new(Slice::Float(&before[name].0), before[name].1.clone()),
            },
        };
        let mut inputs: Vec<Input<'_>> = ports.iter().map(input).collect();
        let logits = outputs.iter().position(|port| port.name == "logits").unwrap();
        assert_eq!(runner.run(&mut inputs).unwrap().get(logits).unwrap().floats().unwrap(), expected);
        for (name, (pool, view)) in &pools {
            let rows: Vec<Vec<f32>> = pool.to_vec2().unwrap();
            assert!(rows[0].iter().chain(&rows[2]).all(|&x| x == 7.0), "{name}");
            let [kept, channels, _] = view.shape;
            let (values, shape) = &made.states[*name];
            let state: Vec<f32> = match **shape {
                // Its last columns, channels side by side.
                [_, _, columns] => (0..kept * channels)
                    .map(|at| values[at % channels * columns + columns - kept + at / channels])
                    .collect(),
                _ => values.clone(),
            };
            assert_eq!(rows[1], state, "{name}");
        }
    }
}

/// Keys and values of all layers, as one slot of a plan holds them.
struct Static {
    prefill: Runner,
    decode: Runner,
    k: Vec<f32>,
    v: Vec<f32>,
    past: usize,
}

impl Static {
    const LEN: usize = 128;

    fn new(dirt: f32) -> Self {
        let elems = 4 * 2 * Self::LEN * 32;
        let [prefill, decode] = ["prefill", "decode"].map(|half| runner(&format!("static_cache/{half}.onnx")));
        Self { prefill, decode, k: vec![dirt; elems], v: vec![dirt; elems], past: 0 }
    }

    /// The last hidden states of `tokens`, padded to `bucket` tokens.
    fn step(&mut self, tokens: &[i64], bucket: usize) -> Vec<f32> {
        let mut ids = tokens.to_vec();
        ids.resize(bucket, 0);
        let positions: Vec<i64> = (self.past as i64..).take(bucket).collect();
        let mask: Vec<i64> = (0..Self::LEN).map(|at| i64::from(at < self.past + tokens.len())).collect();
        let cache = vec![4, 1, 2, Self::LEN, 32];
        let int = |data, shape: &[usize]| Input::new(Slice::Int(data), shape.to_vec());
        let mut inputs = [
            int(&ids, &[1, bucket]),
            int(&mask, &[1, Self::LEN]),
            Input::scratch(SliceMut::Float(&mut self.k), cache.clone()),
            Input::scratch(SliceMut::Float(&mut self.v), cache),
            int(&positions, &[bucket]),
            int(&positions, &[1, bucket]),
        ];
        let runner = if bucket == 1 { &mut self.decode } else { &mut self.prefill };
        let (hidden, k, v) = {
            let outputs = runner.run(&mut inputs).unwrap();
            let hidden = outputs.get(0).unwrap().narrow(1, 0, tokens.len()).unwrap().floats().unwrap();
            let columns = |at| outputs.get(at).unwrap().narrow(3, self.past, tokens.len()).unwrap().floats().unwrap();
            (hidden, columns(1), columns(2))
        };
        for (kept, new) in [(&mut self.k, k), (&mut self.v, v)] {
            for (row, new) in new.chunks_exact(tokens.len() * 32).enumerate() {
                kept[(row * Self::LEN + self.past) * 32..][..new.len()].copy_from_slice(new);
            }
        }
        self.past += tokens.len();
        hidden
    }
}

#[test]
fn a_static_cache_gives_the_tokens_of_the_model_that_was_exported() {
    let golden = golden("static_cache/golden.safetensors");
    let weights =
        candle_core::safetensors::load(fixture("static_cache/qwen3/model.safetensors"), &Device::Cpu).unwrap();
    let head = weights.get("lm_head.weight").unwrap_or_else(|| &weights["model.embed_tokens.weight"]);
    let token = |hidden: &[f32]| {
        let hidden = Tensor::from_slice(&hidden[hidden.len() - 64..], (1, 64), &Device::Cpu).unwrap();
        best(&hidden.matmul(&head.t().unwrap()).unwrap().flatten_all().unwrap().to_vec1().unwrap())
    };
    let mut model = Static::new(0.0);
    let prompt = tokens(&golden, "input_ids");
    let mut greedy = vec![token(&model.step(&prompt, prompt.len()))];
    while greedy.len() < 24 {
        let last = greedy[greedy.len() - 1];
        greedy.push(token(&model.step(&[last], 1)));
    }
    assert_eq!(greedy, tokens(&golden, "greedy"));
}

#[test]
fn padding_dirt_and_pieces_change_no_bit() {
    let prompt: Vec<i64> = (0..13).map(|n| n * 53 % 320).collect();
    let plain = Static::new(0.0).step(&prompt, 13);
    assert_eq!(Static::new(0.0).step(&prompt, 64), plain, "padded");
    assert_eq!(Static::new(1e3).step(&prompt, 64), plain, "padded, over dirt");
    for pieces in [[8, 5], [5, 8], [12, 1]] {
        let mut cut = Static::new(-7.0);
        let mut hidden = cut.step(&prompt[..pieces[0]], pieces[0]);
        hidden.extend(cut.step(&prompt[pieces[0]..], pieces[1]));
        assert_eq!(hidden, plain, "{pieces:?}");
    }
}

#[test]
fn a_run_refuses_what_is_not_its_input() {
    let mut decode = runner("static_cache/decode.onnx");
    assert!(matches!(decode.run(&mut []).unwrap_err(), GraphError::Malformed { .. }));
    let shapes: Vec<Vec<usize>> =
        decode.inputs().iter().map(|port| port.shape.iter().flatten().copied().collect()).collect();
    let (floats, ints) = (vec![0.0; 4 * 2 * 128 * 32], vec![0; 128]);
    let input = |at: usize, shape: &Vec<usize>| {
        let len = shape.iter().product();
        let data = if at == 2 || at == 3 { Slice::Float(&floats[..len]) } else { Slice::Int(&ints[..len]) };
        Input::new(data, shape.clone())
    };
    let mut inputs: Vec<Input<'_>> = shapes.iter().enumerate().map(|(at, shape)| input(at, shape)).collect();
    decode.run(&mut inputs).unwrap();
    inputs[1].shape = vec![1, 127];
    assert!(decode.run(&mut inputs).unwrap_err().to_string().contains("`attention_mask`"));
}

/// A token writes its rows, and what it wrote is undone when nobody reads its outputs any more. A layer's keys are 32 KiB.
#[test]
fn a_cache_that_is_lent_is_not_copied_and_is_as_it_was() {
    let (token, position, mask, shape) = ([7i64], [64i64], vec![1i64; 128], vec![4, 1, 2, 128, 32]);
    let int = |data, shape: &[usize]| Input::new(Slice::Int(data), shape.to_vec());
    let cache: Vec<f32> = (0..4 * 2 * 128 * 32).map(|n| (n % 97) as f32 * 0.01).collect();
    let (mut k, mut v) = (cache.clone(), cache.clone());
    let mut decode = runner("static_cache/decode.onnx");
    let mut made = Vec::new();
    for lent in [false, true, true] {
        let [k, v] = [&mut k, &mut v].map(|side| {
            if lent {
                Input::scratch(SliceMut::Float(side), shape.clone())
            } else {
                Input::new(Slice::Float(side), shape.clone())
            }
        });
        let mut inputs =
            [int(&token, &[1, 1]), int(&mask, &[1, 128]), k, v, int(&position, &[1]), int(&position, &[1, 1])];
        {
            let outputs = decode.run(&mut inputs).unwrap();
            made.push((0..3).map(|at| outputs.get(at).unwrap().floats().unwrap()).collect::<Vec<_>>());
        }
        assert_eq!(decode.moved_bytes().unwrap() < 32 << 10, lent, "{:?}", decode.moved_bytes());
    }
    assert_eq!((&k, &v), (&cache, &cache));
    assert_eq!(made[0], made[1]);
    assert_eq!(made[0], made[2]);
}

/// A position behind the last column would be written beside the cache.
#[test]
fn an_index_out_of_range_names_its_node() {
    let mut model = Static::new(0.0);
    model.past = Static::LEN - 2;
    let message = {
        let positions = [127i64, 128];
        let (ids, mask) = ([0i64, 0], [1i64; 128]);
        let cache = vec![4, 1, 2, 128, 32];
        let int = |data, shape: &[usize]| Input::new(Slice::Int(data), shape.to_vec());
        let mut inputs = [
            int(&ids, &[1, 2]),
            int(&mask, &[1, 128]),
            Input::new(Slice::Float(&model.k), cache.clone()),
            Input::new(Slice::Float(&model.v), cache),
            int(&positions, &[2]),
            int(&positions, &[1, 2]),
        ];
        model.prefill.run(&mut inputs).unwrap_err().to_string()
    };
    assert!(message.contains("(ScatterND): index 128 is not within an axis of 128"), "{message}");
}

/// The hybrid with its recurrent ops changed.
fn changed(change: impl Fn(&mut ModelProto)) -> Result<Runner, GraphError> {
    let mut model = ModelProto::decode(std::fs::read(fixture("onnx/hybrid_opset18.onnx")).unwrap().as_slice()).unwrap();
    change(&mut model);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("graph.onnx");
    std::fs::write(&file, model.encode_to_vec()).unwrap();
    Runner::open(&file, &GraphEngine::Interpreter)
}

fn each<'a>(model: &'a mut ModelProto, op: &'a str) -> impl Iterator<Item = &'a mut NodeProto> {
    model.graph.as_mut().unwrap().node.iter_mut().filter(move |node| node.op_type == op)
}

fn limited(model: &mut ModelProto, limit: [f32; 2]) {
    let name = "time_step_limit".to_owned();
    let limit = AttributeProto { name, floats: limit.to_vec(), r#type: 6, ..AttributeProto::default() };
    each(model, "update_ssm_state").for_each(|node| node.attribute.push(limit.clone()));
}

/// Bounds that hold nothing change no bit, and a step of no time leaves the states as they were.
#[test]
fn a_limit_of_the_time_step_is_applied() {
    let prompt: Vec<i64> = (0..9).map(|n| n * 37 % 128).collect();
    let plain = Hybrid::new("opset18").step(&prompt);
    let wide = changed(|model| limited(model, [0.0, f32::INFINITY])).unwrap();
    assert_eq!(Hybrid::of(wide).step(&prompt), plain);
    let mut still = Hybrid::of(changed(|model| limited(model, [0.0, 0.0])).unwrap());
    assert_ne!(still.step(&prompt), plain);
    for layer in ["ssm_state_0", "ssm_state_2"] {
        assert!(still.states[layer].0.iter().all(|&x| x == 0.0), "{layer}");
    }
}

#[test]
fn a_softplus_that_is_not_stated_is_applied() {
    let prompt: Vec<i64> = (0..9).map(|n| n * 37 % 128).collect();
    let without = |value: Option<i64>| {
        let runner = changed(|model| {
            each(model, "update_ssm_state").for_each(|node| match value {
                None => node.attribute.retain(|attribute| attribute.name != "dt_softplus"),
                Some(value) => node.attribute.iter_mut().filter(|a| a.name == "dt_softplus").for_each(|a| a.i = value),
            });
        });
        Hybrid::of(runner.unwrap()).step(&prompt)
    };
    assert_eq!(without(None), Hybrid::new("opset18").step(&prompt));
    assert_ne!(without(Some(0)), without(None));
}

#[rstest]
#[case::version(|model: &mut ModelProto| {
    model.opset_import.iter_mut().filter(|opset| opset.domain == "trt_edgellm").for_each(|opset| opset.version = 2);
}, "(trt_edgellm.causal_conv1d): the graph imports version 2 of `trt_edgellm`")]
#[case::domain(|model: &mut ModelProto| {
    each(model, "update_ssm_state").for_each(|node| node.domain = "_trt_edgellm".to_owned());
}, "(_trt_edgellm.update_ssm_state): it is of the domain `_trt_edgellm`")]
#[case::stride(|model: &mut ModelProto| {
    let stride = AttributeProto { name: "stride".to_owned(), i: 3, r#type: 2, ..AttributeProto::default() };
    each(model, "causal_conv1d").for_each(|node| node.attribute.push(stride.clone()));
}, "(trt_edgellm.causal_conv1d): attribute stride is 3; only 1 is computed")]
fn what_the_plugins_would_not_run_is_refused(#[case] change: fn(&mut ModelProto), #[case] message: &str) {
    let error = changed(change).unwrap_err().to_string();
    assert!(error.contains(message), "{error}");
}

/// A Qwen3 in f16 whose attentions are plugins, over caches of 64 tokens.
struct Plugged {
    runner: Runner,
    caches: Vec<Vec<f32>>,
    table: Vec<f32>,
    past: i64,
}

impl Plugged {
    const CACHE: [usize; 5] = [1, 2, 2, 64, 32];

    fn new() -> Self {
        let angle = |position: usize, pair: usize| position as f32 * 10_000f32.powf(-(2.0 * pair as f32) / 32.0);
        let row = |position: usize| {
            (0..32).map(move |at| if at < 16 { angle(position, at).cos() } else { angle(position, at - 16).sin() })
        };
        let runner = runner("onnx/edge_attention/model.onnx");
        let caches = vec![vec![0.0; Self::CACHE.iter().product()]; 4];
        Self { runner, caches, table: (0..64).flat_map(row).collect(), past: 0 }
    }

    /// The last hidden state of each token.
    fn step(&mut self, tokens: &[i64]) -> Result<Vec<f32>, GraphError> {
        let (start, count) = ([self.past], tokens.len() as i64);
        let lengths = [if count == 1 && self.past > 0 { self.past + 1 } else { count }];
        let start = if self.past == 0 { &start[..0] } else { &start };
        let ports = self.runner.inputs().to_vec();
        let mut inputs: Vec<Input<'_>> = ports
            .iter()
            .map(|port| match port.name.as_str() {
                "input_ids" => Input::new(Slice::Int(tokens), vec![1, tokens.len()]),
                "context_lengths" => Input::new(Slice::Int(&lengths), vec![1]),
                "kvcache_start_index" => Input::new(Slice::Int(start), vec![start.len()]),
                "rope_rotary_cos_sin" => Input::new(Slice::Float(&self.table), vec![1, 64, 32]),
                name => {
                    let layer: usize = name.rsplit('_').next().unwrap().parse().unwrap();
                    Input::new(Slice::Float(&self.caches[layer]), Self::CACHE.to_vec())
                }
            })
            .collect();
        let (hidden, caches) = {
            let outputs = self.runner.run(&mut inputs)?;
            let floats = |at: usize| outputs.get(at).unwrap().floats().unwrap();
            (floats(0), (1..5).map(floats).collect())
        };
        self.caches = caches;
        self.past += count;
        Ok(hidden)
    }
}

/// The largest error in hidden states of up to 2.4 is that of a few roundings to 11 bits.
#[test]
fn attention_plugins_give_what_their_definition_says_in_any_pieces() {
    let golden = golden("onnx/edge_attention/golden.safetensors");
    let prompt = tokens(&golden, "prompt");
    let expected = golden["prefill.hidden"].to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1().unwrap();
    for pieces in [vec![13], vec![5, 8], vec![1, 11, 1]] {
        let (mut plugged, mut hidden, mut at) = (Plugged::new(), Vec::new(), 0);
        for &piece in &pieces {
            hidden.extend(plugged.step(&prompt[at..at + piece]).unwrap());
            at += piece;
        }
        let found = farthest(&hidden, &expected);
        assert!(found < 8e-3, "{pieces:?}: {found}");
    }
}

#[test]
fn a_token_beyond_the_cache_of_a_plugin_is_refused() {
    let mut plugged = Plugged::new();
    plugged.past = 64;
    let message = plugged.step(&[1]).unwrap_err().to_string();
    assert!(
        message.contains("node `attention_0` (trt_edgellm.AttentionPlugin): 1 tokens from position 64 on"),
        "{message}"
    );
}
