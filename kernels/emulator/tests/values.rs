//! What whole kernels compute.

mod common;

use cacheplan_emulator::{Device, Options, Shape};
use common::{Parameters, bytes, floats, module, run};
use rstest::rstest;

#[rstest]
fn sums_of_rows_come_out_right(#[values(1, 255, 256, 1000)] columns: usize, #[values(0, 3)] order: u64) {
    let rows = 3;
    let input: Vec<f32> = (0..rows * columns).map(|at| (at % 17) as f32 - 8.0).collect();
    let mut device = Device::new();
    let (a, b) = (device.input("in", &bytes(&input), 4), device.buffer("out", rows as u64 * 4, 4));
    let parameters = Parameters::default()
        .with(&device.address(a).to_le_bytes())
        .with(&device.address(b).to_le_bytes())
        .with(&(columns as i32).to_le_bytes());
    let module = module("sums");
    let shape = Shape { grid: [rows as u32, 1, 1], block: [256, 1, 1], shared_bytes: 0 };
    let options = Options { order, ..Options::default() };
    let run = device.run(module.kernel("row_sums").unwrap(), &shape, &parameters.0, &options).unwrap();
    assert!(run.reports.is_empty(), "{}", run.reports[0]);
    let sums: Vec<f32> = input.chunks(columns).map(|row| row.iter().sum()).collect();
    // Small whole numbers add up exactly in any order.
    assert_eq!(device.download(b, 0, rows * 4), (bytes(&sums), true));
    assert_eq!(run.stats.stored_bytes, rows as u64 * 4);
    assert_eq!(run.stats.loaded_bytes, (rows * columns) as u64 * 4);
}

#[test]
fn approximate_results_move_by_two_units_at_most() {
    let input: Vec<f32> = (0..256).map(|at| at as f32 / 16.0 - 8.0).collect();
    let module = module("sums");
    let outputs = [0, 1, 2].map(|perturb| {
        let (out, run) = run(&module, "exponentials", &input, 256, 1, &Options { perturb, ..Options::default() });
        assert!(run.reports.is_empty());
        out
    });
    for (x, y) in input.iter().zip(&outputs[0]) {
        assert!((y - x.exp()).abs() <= 2e-6 * x.exp(), "exp {x} = {y}");
    }
    for moved in &outputs[1..] {
        let steps: Vec<i32> =
            moved.iter().zip(&outputs[0]).map(|(a, b)| a.to_bits() as i32 - b.to_bits() as i32).collect();
        assert!(steps.iter().all(|step| step.abs() <= 2));
        assert!([-2, -1, 0, 1, 2].iter().all(|step| steps.contains(step)), "every step occurs");
    }
    assert_ne!(outputs[1], outputs[2]);
}

/// The pool has 2^33 bytes, of which two pages exist.
#[test]
fn a_sparse_buffer_is_addressed_beyond_32_bits() {
    let elements = 1u64 << 31;
    let mut device = Device::new();
    let pool = device.buffer("pool", elements * 4, 4);
    let values: Vec<f32> = (0..32).map(|at| at as f32).collect();
    device.upload(pool, (elements - 32) * 4, &bytes(&values));
    let parameters =
        Parameters::default().with(&device.address(pool).to_le_bytes()).with(&(elements as i64 - 32).to_le_bytes());
    let shape = Shape { grid: [1; 3], block: [32, 1, 1], shared_bytes: 0 };
    let kernel = module("sums");
    let run = device.run(kernel.kernel("far").unwrap(), &shape, &parameters.0, &Options::default()).unwrap();
    assert!(run.reports.is_empty(), "{}", run.reports[0]);
    assert_eq!(floats(&device.download(pool, 0, 128).0), values);
}

/// A product in which every element of both operands counts on its own.
#[test]
fn a_tile_multiplies_as_matrices_do() {
    let bf16 = |values: &[f32]| -> Vec<u8> {
        values.iter().flat_map(|value| ((value.to_bits() >> 16) as u16).to_le_bytes()).collect()
    };
    let a: Vec<f32> = (0..256).map(|at| ((at * 7) % 31) as f32 - 15.0).collect();
    let b: Vec<f32> = (0..128).map(|at| ((at * 5) % 29) as f32 - 14.0).collect();
    let mut device = Device::new();
    let (left, right) = (device.input("a", &bf16(&a), 2), device.input("b", &bf16(&b), 2));
    let c = device.buffer("c", 128 * 4, 4);
    let parameters = [left, right, c]
        .iter()
        .fold(Parameters::default(), |parameters, id| parameters.with(&device.address(*id).to_le_bytes()));
    let shape = Shape { grid: [1; 3], block: [32, 1, 1], shared_bytes: 0 };
    let module = module("sums");
    let run = device.run(module.kernel("tile").unwrap(), &shape, &parameters.0, &Options::default()).unwrap();
    assert!(run.reports.is_empty(), "{}", run.reports[0]);
    let mut expected = vec![0f32; 128];
    for (row, column) in (0..16).flat_map(|row| (0..8).map(move |column| (row, column))) {
        expected[row * 8 + column] = (0..16).map(|k| a[row * 16 + k] * b[k * 8 + column]).sum();
    }
    assert_eq!(floats(&device.download(c, 0, 512).0), expected);
}
