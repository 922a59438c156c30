//! Experts on the CPU and by candle's ops, against the references.

use super::recurrent::wide;
use super::{Random, assert_close, on_cpu, values};
use crate::ops::experts::ExpertProducts;
use crate::{Routing, Rows, portable, reference};
use candle_core::{DType, Device, Tensor};
use rstest::rstest;

/// Ways to choose: a small one, and those of published models.
pub(crate) const ROUTINGS: [Routing; 7] = [
    Routing::softmax(4, 2, true),
    Routing::softmax(60, 4, false),
    Routing::softmax(128, 8, true),
    Routing::softmax(512, 10, true),
    Routing { groups: 6, top_groups: 3, softmax: false, scale: 0.5, ..Routing::softmax(6, 3, false) },
    Routing { groups: 8, top_groups: 4, softmax: false, scale: 2.5, ..Routing::softmax(256, 8, true) },
    Routing { groups: 8, top_groups: 3, best_of_group: 1, scale: 16.0, ..Routing::softmax(160, 6, false) },
];

/// Holds a choice to the reference's.
#[track_caller]
pub(crate) fn assert_routed(found: &(Tensor, Tensor), logits: &Tensor, correction: Option<&Tensor>, routing: &Routing) {
    let correction = correction.map(|correction| wide(&values(correction)));
    let expected = reference::route(&wide(&values(logits)), correction.as_deref(), routing).concat();
    let experts: Vec<u32> = found.0.flatten_all().unwrap().to_vec1().unwrap();
    assert_eq!(experts, expected.iter().map(|chosen| chosen.0 as u32).collect::<Vec<_>>());
    assert_close(&values(&found.1), &expected.iter().map(|chosen| chosen.1 as f32).collect::<Vec<_>>(), 1e-5);
}

/// What the experts of the reference make of each choice, and the sums by `shares`.
pub(crate) fn expected(of: &ExpertProducts<'_>) -> Vec<f32> {
    let [rows, per_token, sharing] = of.choices().unwrap();
    let (_, outputs, inputs) = of.weight.dims3().unwrap();
    let [x, weight] = [of.x, of.weight].map(|tensor| wide(&values(tensor)));
    let [bias, shares] = [of.bias, of.shares].map(|tensor| tensor.map(|tensor| wide(&values(tensor))));
    let chosen: Vec<u32> = of.chosen.flatten_all().unwrap().to_vec1().unwrap();
    let made = chosen.iter().enumerate().map(|(choice, &expert)| {
        let x = &x[choice / sharing * inputs..][..inputs];
        reference::expert(x, &weight, bias.as_deref(), outputs, expert as usize)
    });
    let made: Vec<Vec<f64>> = made.collect();
    let Some(shares) = shares else { return made.concat().into_iter().map(|value| value as f32).collect() };
    let sum = |row: usize, output: usize| {
        (0..per_token).map(|i| row * per_token + i).map(|choice| shares[choice] * made[choice][output]).sum::<f64>()
    };
    (0..rows)
        .flat_map(|row| (0..outputs).map(move |output| (row, output)))
        .map(|(row, at)| sum(row, at) as f32)
        .collect()
}

/// Experts that rows chose, the same one for several among them.
pub(crate) fn chosen(rows: usize, per_token: usize, experts: usize) -> Tensor {
    let numbers = (0..rows).flat_map(|row| (0..per_token).map(move |i| ((row / 2 * 5 + i * 2 + 1) % experts) as u32));
    Tensor::from_vec(numbers.collect(), (rows, per_token), &Device::Cpu).unwrap()
}

#[rstest]
fn the_choice_is_that_of_the_reference(
    #[values(0, 1, 2, 3, 4, 5)] routing: usize,
    #[values(false, true)] corrected: bool,
) {
    let (routing, mut source) = (ROUTINGS[routing], Random::new(91));
    let logits = source.tensor(&[7, routing.experts + 3]).narrow(1, 2, routing.experts).unwrap();
    let correction = corrected.then(|| source.tensor(&[routing.experts]));
    assert_routed(
        &routing.run(&on_cpu(), &logits, correction.as_ref()).unwrap(),
        &logits,
        correction.as_ref(),
        &routing,
    );
}

#[rstest]
fn products_of_chosen_experts_are_those_of_the_reference(
    #[values(DType::F32, DType::BF16)] dtype: DType,
    #[values(false, true)] own_rows: bool,
    #[values(false, true)] with_bias: bool,
) {
    let (rows, per_token, experts, outputs, inputs) = (5, 3, 7, 9, 37);
    let mut source = Random::new(92);
    let x = source.tensor(&[if own_rows { rows * per_token } else { rows }, inputs]);
    let weight = source.tensor(&[experts, outputs, inputs]).to_dtype(dtype).unwrap();
    let bias = with_bias.then(|| source.tensor(&[experts, outputs]).to_dtype(dtype).unwrap());
    let (chosen, shares) = (chosen(rows, per_token, experts), source.tensor(&[rows, per_token]));
    let of = ExpertProducts { x: &x, weight: &weight, bias: bias.as_ref(), chosen: &chosen, shares: None };
    let summed = ExpertProducts { shares: Some(&shares), ..of };
    let found = Rows(&x).by_experts(&on_cpu(), &weight, bias.as_ref(), &chosen).unwrap();
    assert_eq!(found.dims(), [rows, per_token, outputs]);
    assert_close(&values(&found), &expected(&of), 1e-5);
    let found = Rows(&x).summed_by_experts(&on_cpu(), &weight, bias.as_ref(), &chosen, &shares).unwrap();
    assert_eq!(found.dims(), [rows, outputs]);
    assert_close(&values(&found), &expected(&summed), 1e-5);
    for of in [of, summed] {
        assert_close(&values(&portable::experts::products(&of).unwrap()), &expected(&of), 1e-5);
    }
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let mut source = Random::new(93);
    let (x, weight) = (source.tensor(&[2, 8]), source.tensor(&[4, 3, 8]));
    let names = |numbers: [u32; 4]| Tensor::from_vec(numbers.to_vec(), (2, 2), &Device::Cpu).unwrap();
    let by =
        |weight: &Tensor, bias: Option<&Tensor>, chosen: &Tensor| Rows(&x).by_experts(&on_cpu(), weight, bias, chosen);
    let narrow = weight.narrow(2, 0, 7).unwrap();
    let refused = [
        (by(&narrow, None, &names([0; 4])), "`x`"),
        (by(&weight, Some(&x), &names([0; 4])), "`bias`"),
        (by(&weight, None, &x.narrow(1, 0, 2).unwrap()), "expected u32"),
        (by(&weight, None, &names([0, 3, 4, 1])), "`chosen`[2] is 4, below 4"),
        (Routing::softmax(4, 2, true).run(&on_cpu(), &x, None).map(|chosen| chosen.0), "`logits`"),
        (Routing::softmax(8, 9, true).run(&on_cpu(), &x, None).map(|chosen| chosen.0), "9 of 8 experts"),
    ];
    for (result, reason) in refused {
        let error = result.unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
}
