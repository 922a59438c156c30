//! The PTX files of these tests, and launches over them.
#![allow(dead_code, reason = "each test file uses a part")]

use cacheplan_emulator::{Device, Module, Options, Run, Shape};
use std::path::{Path, PathBuf};

pub(crate) fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/ptx").join(name)
}

pub(crate) fn read(name: &str) -> String {
    std::fs::read_to_string(file(name)).unwrap()
}

pub(crate) fn module(name: &str) -> Module {
    Module::parse(&read(&format!("{name}.ptx"))).unwrap()
}

pub(crate) fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

pub(crate) fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect()
}

/// Parameters, each at a multiple of its size.
#[derive(Default)]
pub(crate) struct Parameters(pub(crate) Vec<u8>);

impl Parameters {
    pub(crate) fn with(mut self, value: &[u8]) -> Self {
        self.0.resize(self.0.len().next_multiple_of(value.len()), 0);
        self.0.extend(value);
        self
    }
}

/// Runs `kernel(in, out, n)` over `input` and an output of `out_len` zeros, and returns it.
pub(crate) fn run(
    module: &Module,
    kernel: &str,
    input: &[f32],
    out_len: usize,
    blocks: u32,
    options: &Options,
) -> (Vec<f32>, Run) {
    let mut device = Device::new();
    let input_buffer = device.input("in", &bytes(input), 4);
    let out = device.buffer("out", out_len as u64 * 4, 4);
    device.upload(out, 0, &vec![0; out_len * 4]);
    let parameters = Parameters::default()
        .with(&device.address(input_buffer).to_le_bytes())
        .with(&device.address(out).to_le_bytes())
        .with(&(input.len() as i32).to_le_bytes());
    let shape = Shape { grid: [blocks, 1, 1], block: [256, 1, 1], shared_bytes: 0 };
    let run = device.run(module.kernel(kernel).unwrap(), &shape, &parameters.0, options).unwrap();
    (floats(&device.download(out, 0, out_len * 4).0), run)
}
