//! Ops over rows of activations.

use super::{Case, Sequences, Work, name, tolerance};
use cacheplan_kernels::{GateOrder, RmsNorm, Rows, linear};
use candle_core::DType;

/// `RmsNorm`: plain over whole rows, or gated over groups.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Norm {
    pub(crate) rows: usize,
    pub(crate) width: usize,
    /// Groups of a row, and where the gate stands; none where there is no gate.
    pub(crate) gate: Option<(usize, GateOrder)>,
    pub(crate) input: DType,
    pub(crate) weight: DType,
}

impl Norm {
    pub(crate) fn case(self) -> Case {
        let Self { rows, width, gate, input, weight } = self;
        let moved = if gate.is_some() { 3 } else { 2 };
        Case {
            op: if gate.is_some() { "gated norm" } else { "norm" },
            sizes: vec![("rows", rows), ("width", width), ("groups", gate.map_or(1, |(groups, _)| groups))],
            variant: match gate {
                None => format!("{}, {} weight", name(input), name(weight)),
                Some((_, order)) => format!("{}, {} weight, {order:?}", name(input), name(weight)),
            },
            tolerance: tolerance(&[input]),
            work: Work::bytes(moved * rows * width * input.size_in_bytes() + width * weight.size_in_bytes()),
            call: Box::new(move |on, data| {
                let of = Sequences::even(rows, 1, 1);
                let x = data.rows(&of, width, input)?;
                let weights = data.tensor(&[width], weight)?;
                let norm = RmsNorm { weight: &weights, eps: 1e-5 };
                Ok(vec![match gate {
                    None => norm.run(on, &x)?,
                    Some((groups, order)) => {
                        let z = data.rows(&of, width, input)?;
                        norm.run_gated(on, &x, &z, width / groups, order)?
                    }
                }])
            }),
        }
    }
}

/// Functions of single elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Elementwise {
    SiluProduct,
    WeightedSum,
}

impl Elementwise {
    pub(crate) fn case(self, rows: usize, width: usize, dtype: DType) -> Case {
        Case {
            op: match self {
                Self::SiluProduct => "gated product",
                Self::WeightedSum => "weighted sum",
            },
            sizes: vec![("rows", rows), ("width", width)],
            variant: name(dtype).to_owned(),
            tolerance: tolerance(&[dtype]),
            work: Work::bytes(3 * rows * width * dtype.size_in_bytes()),
            call: Box::new(move |on, data| {
                let of = Sequences::even(rows, 1, 1);
                Ok(vec![match self {
                    Self::SiluProduct => Rows(&data.rows(&of, 2 * width, dtype)?).silu_product(on)?,
                    Self::WeightedSum => {
                        let [x, y] = [data.rows(&of, width, dtype)?, data.rows(&of, width, dtype)?];
                        Rows(&x).weighted_sum(on, 0.5, &y, -2.0)?
                    }
                }])
            }),
        }
    }
}

/// A product with weights.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Product {
    pub(crate) rows: usize,
    pub(crate) inputs: usize,
    pub(crate) outputs: usize,
    pub(crate) dtype: DType,
}

impl Product {
    pub(crate) fn case(self) -> Case {
        let Self { rows, inputs, outputs, dtype } = self;
        let elements = rows * inputs + inputs * outputs + rows * outputs;
        Case {
            op: "product",
            sizes: vec![("rows", rows), ("inputs", inputs), ("outputs", outputs)],
            variant: name(dtype).to_owned(),
            tolerance: tolerance(&[dtype]),
            work: Work {
                bytes: (elements * dtype.size_in_bytes()) as u64,
                flops: 2 * (rows * inputs * outputs) as u64,
            },
            call: Box::new(move |on, data| {
                let [x, weight] = [data.tensor(&[rows, inputs], dtype)?, data.tensor(&[outputs, inputs], dtype)?];
                Ok(vec![linear(on, &x, &weight)?])
            }),
        }
    }
}
