//! `route_experts.cu` and `experts.cu`.

use super::{TARGET, assert_traffic, emulate, prove_all, prove_mutants, random, schedules};
use crate::Routing;
use crate::cuda::experts::products;
use crate::cuda::routing::route;
use crate::ops::experts::ExpertProducts;
use crate::tests::experts::{ROUTINGS, assert_routed, chosen, expected};
use crate::tests::{Random, assert_close, values};
use cacheplan_emulator::Options;
use candle_core::{DType, Device, Tensor};
use rstest::rstest;

const DTYPES: [DType; 3] = [DType::F32, DType::BF16, DType::F16];

/// Rows with NaN between them.
fn rows(source: &mut Random, count: usize, width: usize, dtype: DType) -> Tensor {
    let beside = Tensor::full(f32::NAN, (count, 8), &Device::Cpu).unwrap().to_dtype(dtype).unwrap();
    let rows = random(source, &[count, width], dtype);
    Tensor::cat(&[&beside, &rows], 1).unwrap().narrow(1, 8, width).unwrap()
}

/// The logits of a few rows that 16 bits can tell apart: in some order, at even steps.
fn distinct(source: &mut Random, count: usize, experts: usize, dtype: DType) -> Tensor {
    let mut all = Vec::new();
    for _ in 0..count {
        let mut row: Vec<f32> = (0..experts).map(|i| i as f32 / 64.0 - 4.0).collect();
        for at in (1..experts).rev() {
            row.swap(at, ((source.unit() + 1.0) / 2.0 * at as f32) as usize);
        }
        all.extend(row);
    }
    let beside = Tensor::full(f32::NAN, (count, 3), &Device::Cpu).unwrap();
    let rows = Tensor::from_vec(all, (count, experts), &Device::Cpu).unwrap();
    Tensor::cat(&[&rows, &beside], 1).unwrap().to_dtype(dtype).unwrap().narrow(1, 0, experts).unwrap()
}

#[rstest]
#[ignore = "needs the CUDA compiler: cargo xtask cuda-prove"]
fn routing(
    #[values(0, 1, 2, 3, 4, 5)] at: usize,
    #[values(0, 1, 2)] dtype: usize,
    #[values(false, true)] corrected: bool,
) {
    let (routing, mut source) = (ROUTINGS[at], Random::new(94));
    let logits = distinct(&mut source, 3, routing.experts, DTYPES[dtype]);
    let correction = corrected.then(|| random(&mut source, &[routing.experts], DType::F32));
    for options in schedules() {
        let launches = route(&routing, &logits, correction.as_ref(), &TARGET).unwrap();
        let mut outputs = emulate(&launches, &options).outputs;
        let found = (outputs.remove(0), outputs.remove(0));
        assert_routed(&found, &logits, correction.as_ref(), &routing);
    }
}

#[rstest]
#[ignore = "needs the CUDA compiler: cargo xtask cuda-prove"]
fn routing_takes_the_earlier_of_equal_experts(#[values(1, 2, 3, 5)] at: usize) {
    let (routing, mut source) = (ROUTINGS[at], Random::new(95));
    let logits: Vec<f32> = (0..3 * routing.experts).map(|_| (source.unit() * 2.0).round()).collect();
    let logits = Tensor::from_vec(logits, (3, routing.experts), &Device::Cpu).unwrap();
    // Moved approximations would tell equal ones apart.
    for order in [0, 1, 2] {
        let options = Options { order, perturb: 0, early_copies: false };
        let mut outputs = emulate(&route(&routing, &logits, None, &TARGET).unwrap(), &options).outputs;
        assert_routed(&(outputs.remove(0), outputs.remove(0)), &logits, None, &routing);
    }
}

#[test]
#[ignore = "needs the CUDA compiler: cargo xtask cuda-prove"]
fn routing_chooses_experts_that_there_are_whatever_the_logits() {
    let routing = ROUTINGS[5];
    let poison = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::from_bits(u32::MAX)];
    for value in poison {
        let logits = Tensor::full(value, (1, routing.experts), &Device::Cpu).unwrap();
        let chosen = emulate(&route(&routing, &logits, None, &TARGET).unwrap(), &Options::default()).outputs.remove(0);
        let mut chosen: Vec<u32> = chosen.flatten_all().unwrap().to_vec1().unwrap();
        chosen.sort_unstable();
        chosen.dedup();
        assert_eq!((chosen.len(), chosen.iter().all(|&expert| expert < 256)), (8, true), "{value}: {chosen:?}");
    }
}

#[test]
#[ignore = "needs the CUDA compiler: cargo xtask cuda-prove"]
fn routing_mutants_and_traffic() {
    let mut source = Random::new(96);
    for routing in [ROUTINGS[2], ROUTINGS[5]] {
        let logits = distinct(&mut source, 2, routing.experts, DType::BF16).contiguous().unwrap();
        let launches = route(&routing, &logits, None, &TARGET).unwrap();
        prove_mutants(&launches, &[]);
        assert_traffic(&emulate(&launches, &Options::default()), 4200.0);
    }
}

#[test]
#[ignore = "needs the CUDA compiler: cargo xtask cuda-prove"]
fn routing_of_more_than_there_is_room_for_is_left() {
    let logits = Tensor::zeros((1, 513), DType::F32, &Device::Cpu).unwrap();
    assert!(route(&Routing::softmax(513, 8, true), &logits, None, &TARGET).is_none());
    assert!(route(&Routing::softmax(513, 513, true), &logits, None, &TARGET).is_none());
}

/// Spans of part of a warp, of one, of several behind the ring; outputs of part of a block, odd and even.
#[rstest]
#[ignore = "needs the CUDA compiler: cargo xtask cuda-prove"]
fn products_and_sums_of_experts(
    #[values(0, 1, 2)] dtype: usize,
    #[values(8, 264, 2600)] inputs: usize,
    #[values(1, 10)] outputs: usize,
    #[values(false, true)] own_rows: bool,
    #[values(false, true)] with_bias: bool,
) {
    if !prove_all() && (own_rows != with_bias || (inputs == 2600 && outputs == 10)) {
        return;
    }
    let (dtype, rows_of, per_token, experts) = (DTYPES[dtype], 4, 3, 7);
    let mut source = Random::new(97);
    let x = rows(&mut source, if own_rows { rows_of * per_token } else { rows_of }, inputs, dtype);
    let chosen = chosen(rows_of, per_token, experts);
    let known: Vec<u32> = chosen.flatten_all().unwrap().to_vec1().unwrap();
    // Experts that nobody chose are NaN.
    let weights: Vec<Tensor> = (0..experts as u32)
        .map(|expert| match known.contains(&expert) {
            true => random(&mut source, &[outputs, inputs], dtype),
            false => Tensor::full(f32::NAN, (outputs, inputs), &Device::Cpu).unwrap().to_dtype(dtype).unwrap(),
        })
        .collect();
    let weight = Tensor::stack(&weights, 0).unwrap();
    let bias = with_bias.then(|| random(&mut source, &[experts, outputs], dtype));
    let shares = source.tensor(&[rows_of, per_token]);
    let of = ExpertProducts { x: &x, weight: &weight, bias: bias.as_ref(), chosen: &chosen, shares: None };
    let tolerance = match dtype {
        DType::F32 => 1e-5,
        DType::F16 => 2e-3,
        _ => 2e-2,
    };
    for of in [of, ExpertProducts { shares: Some(&shares), ..of }] {
        for options in schedules() {
            let found = emulate(&products(&of, &TARGET).unwrap(), &options).outputs.remove(0);
            match of.shares {
                Some(_) => assert_eq!(found.dims(), [rows_of, outputs]),
                None => assert_eq!(found.dims(), [rows_of, per_token, outputs]),
            }
            assert_close(&values(&found), &expected(&of), tolerance);
        }
    }
}

#[test]
#[ignore = "needs the CUDA compiler: cargo xtask cuda-prove"]
fn products_of_an_expert_that_there_is_not_are_no_numbers() {
    let mut source = Random::new(98);
    let (x, weight) = (source.tensor(&[2, 16]), source.tensor(&[2, 4, 16]));
    let chosen = Tensor::new(&[[1u32], [2]], &Device::Cpu).unwrap();
    let of = ExpertProducts { x: &x, weight: &weight, bias: None, chosen: &chosen, shares: None };
    let found = values(&emulate(&products(&of, &TARGET).unwrap(), &Options::default()).outputs.remove(0));
    assert!(found[..4].iter().all(|value| value.is_finite()) && found[4..].iter().all(|value| value.is_nan()));
}

#[test]
#[ignore = "needs the CUDA compiler: cargo xtask cuda-prove"]
fn products_of_experts_mutants() {
    let mut source = Random::new(99);
    let (x, weight) = (source.tensor(&[2, 1280]), source.tensor(&[4, 2, 1280]));
    let (chosen, shares) = (chosen(2, 2, 4), source.tensor(&[2, 2]));
    let of = ExpertProducts { x: &x, weight: &weight, bias: None, chosen: &chosen, shares: None };
    for of in [of, ExpertProducts { shares: Some(&shares), ..of }] {
        prove_mutants(&products(&of, &TARGET).unwrap(), &[]);
    }
}

#[rstest]
#[case(DType::BF16, 2048, 90.0)]
#[case(DType::BF16, 768, 105.0)]
#[case(DType::F32, 2048, 45.0)]
#[ignore = "needs the CUDA compiler: cargo xtask cuda-prove"]
fn products_of_experts_traffic(#[case] dtype: DType, #[case] inputs: usize, #[case] warp_instructions_per_kib: f64) {
    let mut source = Random::new(1);
    let (rows, per_token, experts, outputs) = (1, 4, 8, 16);
    let (x, weight) =
        (random(&mut source, &[rows, inputs], dtype), random(&mut source, &[experts, outputs, inputs], dtype));
    let (chosen, shares) = (chosen(rows, per_token, experts), source.tensor(&[rows, per_token]));
    let of = ExpertProducts { x: &x, weight: &weight, bias: None, chosen: &chosen, shares: None };
    for of in [of, ExpertProducts { shares: Some(&shares), ..of }] {
        assert_traffic(&emulate(&products(&of, &TARGET).unwrap(), &Options::default()), warp_instructions_per_kib);
    }
}
