//! Experts: how they are chosen, and what they make of rows.

use super::{Case, Sequences, Work, name, tolerance};
use crate::{Routing, Rows};
use candle_core::{DType, Device, Tensor};

/// `Routing`, corrected or not.
#[derive(Clone, Copy, Debug)]
pub struct Choice {
    pub rows: usize,
    pub routing: Routing,
    pub corrected: bool,
    pub dtype: DType,
}

impl Choice {
    pub fn case(self) -> Case {
        let Self { rows, routing, corrected, dtype } = self;
        let Routing { experts, experts_per_token, groups, softmax, .. } = routing;
        let scores = if softmax { "softmax" } else { "sigmoid" };
        Case {
            op: "choice of experts",
            sizes: vec![("rows", rows), ("experts", experts), ("chosen", experts_per_token), ("groups", groups)],
            variant: format!("{}, {scores}{}", name(dtype), if corrected { ", corrected" } else { "" }),
            tolerance: tolerance(&[DType::F32]),
            work: Work::bytes(rows * (experts * dtype.size_in_bytes() + experts_per_token * 8)),
            prepare: Box::new(move |data| {
                // Logits that 16 bits tell apart, since equal ones would be told apart by errors alone.
                let place = |row: usize, expert: usize| (expert * 37 + row * 11) % experts.next_power_of_two();
                let logit = |row, expert| place(row, expert) as f32 / 64.0 - 4.0;
                let logits = (0..rows).flat_map(|row| (0..experts).map(move |expert| logit(row, expert))).collect();
                let logits: Vec<f32> = logits;
                let logits = Tensor::from_vec(logits, (rows, experts), &Device::Cpu)?.to_dtype(dtype)?;
                let correction = corrected.then(|| data.tensor(&[experts], DType::F32)).transpose()?;
                Ok(Box::new(move |on| {
                    let (chosen, shares) = routing.run(on, &logits, correction.as_ref())?;
                    Ok(vec![chosen, shares])
                }))
            }),
        }
    }
}

/// `Rows::by_experts`, or with a row for each choice `Rows::summed_by_experts`.
#[derive(Clone, Copy, Debug)]
pub struct Experts {
    pub rows: usize,
    pub per_token: usize,
    pub experts: usize,
    pub inputs: usize,
    pub outputs: usize,
    pub bias: bool,
    pub summed: bool,
    pub dtype: DType,
}

impl Experts {
    pub fn case(self) -> Case {
        let Self { rows, per_token, experts, inputs, outputs, bias, summed, dtype } = self;
        let choices = rows * per_token;
        let (read, written) = if summed { (choices, rows) } else { (rows, choices) };
        let elements = choices.min(experts) * inputs * outputs + read * inputs + written * outputs;
        Case {
            op: if summed { "sums of experts" } else { "experts" },
            sizes: vec![
                ("rows", rows),
                ("chosen", per_token),
                ("experts", experts),
                ("inputs", inputs),
                ("outputs", outputs),
            ],
            variant: format!("{}{}", name(dtype), if bias { ", bias" } else { "" }),
            tolerance: tolerance(&[dtype]),
            work: Work::bytes(elements * dtype.size_in_bytes()),
            prepare: Box::new(move |data| {
                let x = data.rows(&Sequences::even(read, 1, 1), inputs, dtype)?;
                let weight = data.tensor(&[experts, outputs, inputs], dtype)?;
                let bias = bias.then(|| data.tensor(&[experts, outputs], dtype)).transpose()?;
                let numbers = (0..choices).map(|choice| (choice % experts) as u32).collect();
                let chosen = Tensor::from_vec(numbers, (rows, per_token), &Device::Cpu)?;
                let shares = data.tensor(&[rows, per_token], DType::F32)?;
                Ok(Box::new(move |on| {
                    let (rows, bias) = (Rows(&x), bias.as_ref());
                    Ok(vec![if summed {
                        rows.summed_by_experts(on, &weight, bias, &chosen, &shares)?
                    } else {
                        rows.by_experts(on, &weight, bias, &chosen)?
                    }])
                }))
            }),
        }
    }
}
