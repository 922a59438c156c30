//! Real exports give what ONNX Runtime and transformers gave.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use cacheplan_graphs::{Element, GraphEngine, GraphError, Input, Runner, Slice};
use candle_core::{Device, Tensor};
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
    fn new(opset: &str) -> Self {
        let runner = runner(&format!("onnx/hybrid_opset{opset}.onnx"));
        let mut states = HashMap::new();
        for port in runner.inputs().iter().filter(|port| port.element == Element::Float) {
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
        let inputs: Vec<Input<'_>> = ports
            .iter()
            .map(|port| match port.name.as_str() {
                "input_ids" => Input { data: Slice::Int(tokens), shape: vec![1, tokens.len()] },
                "context_lengths" => Input { data: Slice::Int(&lengths), shape: vec![1] },
                name => Input { data: Slice::Float(&self.states[name].0), shape: self.states[name].1.clone() },
            })
            .collect();
        let names: Vec<String> = self.runner.outputs().iter().map(|port| port.name.clone()).collect();
        let made: Vec<(Vec<f32>, Vec<usize>)> = {
            let outputs = self.runner.run(&inputs).unwrap();
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

#[rstest]
#[case("18")]
#[case("23")]
fn a_hybrid_gives_what_onnx_runtime_gave(#[case] opset: &str) {
    let golden = golden(&format!("onnx/hybrid_opset{opset}.golden.safetensors"));
    let mut hybrid = Hybrid::new(opset);
    let prompt = tokens(&golden, "prompt");
    let mut logits = hybrid.step(&prompt);
    let flat = |name: &str| golden[name].flatten_all().unwrap().to_vec1::<f32>().unwrap();
    assert!(farthest(&logits, &flat("prefill.logits")) < 1e-4);
    let outputs: Vec<String> = hybrid.runner.outputs()[1..].iter().map(|port| port.name.clone()).collect();
    for output in outputs {
        let state = &hybrid.states[&output.replace("present", "past").replace("_out", "")];
        assert!(farthest(&state.0, &flat(&format!("prefill.{output}"))) < 1e-4, "{output}");
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
    let whole = Hybrid::new("18").step(&prompt);
    for opset in ["18", "23"] {
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
        let int = |data, shape: &[usize]| Input { data: Slice::Int(data), shape: shape.to_vec() };
        let inputs = [
            int(&ids, &[1, bucket]),
            int(&mask, &[1, Self::LEN]),
            Input { data: Slice::Float(&self.k), shape: cache.clone() },
            Input { data: Slice::Float(&self.v), shape: cache },
            int(&positions, &[bucket]),
            int(&positions, &[1, bucket]),
        ];
        let runner = if bucket == 1 { &mut self.decode } else { &mut self.prefill };
        let (hidden, k, v) = {
            let outputs = runner.run(&inputs).unwrap();
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
    assert!(matches!(decode.run(&[]).unwrap_err(), GraphError::Malformed { .. }));
    let shapes: Vec<Vec<usize>> =
        decode.inputs().iter().map(|port| port.shape.iter().flatten().copied().collect()).collect();
    let (floats, ints) = (vec![0.0; 4 * 2 * 128 * 32], vec![0; 128]);
    let input = |at: usize, shape: &Vec<usize>| {
        let len = shape.iter().product();
        let data = if at == 2 || at == 3 { Slice::Float(&floats[..len]) } else { Slice::Int(&ints[..len]) };
        Input { data, shape: shape.clone() }
    };
    let mut inputs: Vec<Input<'_>> = shapes.iter().enumerate().map(|(at, shape)| input(at, shape)).collect();
    decode.run(&inputs).unwrap();
    inputs[1].shape = vec![1, 127];
    assert!(decode.run(&inputs).unwrap_err().to_string().contains("`attention_mask`"));
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
        let int = |data, shape: &[usize]| Input { data: Slice::Int(data), shape: shape.to_vec() };
        let inputs = [
            int(&ids, &[1, 2]),
            int(&mask, &[1, 128]),
            Input { data: Slice::Float(&model.k), shape: cache.clone() },
            Input { data: Slice::Float(&model.v), shape: cache },
            int(&positions, &[2]),
            int(&positions, &[1, 2]),
        ];
        model.prefill.run(&inputs).unwrap_err().to_string()
    };
    assert!(message.contains("(ScatterND): index 128 is not within an axis of 128"), "{message}");
}
