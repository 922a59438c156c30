//! One decoding step of the exported Qwen3 of the fixtures, over a cache of 128 tokens.
//!
//! `tests/fixtures/onnx/step_time.py` measures the same step in ONNX Runtime.

use std::path::Path;

use cacheplan_graphs::{Graph, Input, Runner, Slice};

fn main() {
    divan::main();
}

#[divan::bench(sample_count = 200)]
fn decode(bencher: divan::Bencher<'_, '_>) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/static_cache/decode.onnx");
    let mut runner = Runner::new(Graph::open(&file).unwrap());
    let cache = vec![0.1f32; 4 * 2 * 128 * 32];
    let mask: Vec<i64> = (0..128).map(|at| i64::from(at < 65)).collect();
    let (token, position, shape) = ([7i64], [64i64], vec![4, 1, 2, 128, 32]);
    let int = |data, shape: &[usize]| Input { data: Slice::Int(data), shape: shape.to_vec() };
    let inputs = [
        int(&token, &[1, 1]),
        int(&mask, &[1, 128]),
        Input { data: Slice::Float(&cache), shape: shape.clone() },
        Input { data: Slice::Float(&cache), shape },
        int(&position, &[1]),
        int(&position, &[1, 1]),
    ];
    bencher.bench_local(|| runner.run(&inputs).unwrap().get(0).unwrap().floats().unwrap());
}
