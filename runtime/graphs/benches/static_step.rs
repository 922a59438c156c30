//! One decoding step of the exported Qwen3 of the fixtures, over a cache of 128 tokens, by each engine that there is.
//!
//! With the feature `ort`, and ONNX Runtime's library in `ORT_DYLIB_PATH`, that is ONNX Runtime too.

use std::path::Path;

use cacheplan_graphs::{GraphEngine, Input, Runner, Slice};

fn main() {
    divan::main();
}

const INTERPRETER: &str = "interpreter";

fn engines() -> Vec<&'static str> {
    let library = std::env::var_os("ORT_DYLIB_PATH").filter(|_| cfg!(feature = "ort"));
    library.map_or(vec![INTERPRETER], |_| vec![INTERPRETER, "ONNX Runtime"])
}

#[divan::bench(args = engines(), sample_count = 1000)]
fn decode(bencher: divan::Bencher<'_, '_>, engine: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/static_cache/decode.onnx");
    let engine = match engine {
        INTERPRETER => GraphEngine::Interpreter,
        _ => GraphEngine::OnnxRuntime(std::env::var_os("ORT_DYLIB_PATH").unwrap_or_default().into()),
    };
    let mut runner = Runner::open(&file, &engine).unwrap();
    let cache = vec![0.1f32; 4 * 2 * 128 * 32];
    let mask: Vec<i64> = (0..128).map(|at| i64::from(at < 65)).collect();
    let (token, position, shape) = ([7i64], [64i64], vec![4, 1, 2, 128, 32]);
    let int = |data, shape: &[usize]| Input::new(Slice::Int(data), shape.to_vec());
    let mut inputs = [
        int(&token, &[1, 1]),
        int(&mask, &[1, 128]),
        Input::new(Slice::Float(&cache), shape.clone()),
        Input::new(Slice::Float(&cache), shape),
        int(&position, &[1]),
        int(&position, &[1, 1]),
    ];
    bencher.bench_local(|| runner.run(&mut inputs).unwrap().get(0).unwrap().floats().unwrap());
}
