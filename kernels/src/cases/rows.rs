//! Ops over rows of activations.

use super::{Case, Sequences, Work, name, tolerance};
use crate::stored::BlockFormat;
use crate::{GateOrder, Products, RmsNorm, Rows, StoredMatrix, linear};
use candle_core::DType;

/// `RmsNorm`: plain over whole rows, or gated over groups.
#[derive(Clone, Copy, Debug)]
pub struct Norm {
    pub rows: usize,
    pub width: usize,
    /// Groups of a row, and where the gate stands; none where there is no gate.
    pub gate: Option<(usize, GateOrder)>,
    pub input: DType,
    pub weight: DType,
}

impl Norm {
    pub fn case(self) -> Case {
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
            prepare: Box::new(move |data| {
                let of = Sequences::even(rows, 1, 1);
                let x = data.rows(&of, width, input)?;
                let weights = data.tensor(&[width], weight)?;
                let z = gate.map(|_| data.rows(&of, width, input)).transpose()?;
                Ok(Box::new(move |on| {
                    let norm = RmsNorm { weight: &weights, eps: 1e-5 };
                    Ok(vec![match gate.zip(z.as_ref()) {
                        None => norm.run(on, &x)?,
                        Some(((groups, order), z)) => norm.run_gated(on, &x, z, width / groups, order)?,
                    }])
                }))
            }),
        }
    }
}

/// Functions of single elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Elementwise {
    SiluProduct,
    WeightedSum,
}

impl Elementwise {
    pub fn case(self, rows: usize, width: usize, dtype: DType) -> Case {
        Case {
            op: match self {
                Self::SiluProduct => "gated product",
                Self::WeightedSum => "weighted sum",
            },
            sizes: vec![("rows", rows), ("width", width)],
            variant: name(dtype).to_owned(),
            tolerance: tolerance(&[dtype]),
            work: Work::bytes(3 * rows * width * dtype.size_in_bytes()),
            prepare: Box::new(move |data| {
                let of = Sequences::even(rows, 1, 1);
                Ok(match self {
                    Self::SiluProduct => {
                        let both = data.rows(&of, 2 * width, dtype)?;
                        Box::new(move |on| Ok(vec![Rows(&both).silu_product(on)?]))
                    }
                    Self::WeightedSum => {
                        let [x, y] = [data.rows(&of, width, dtype)?, data.rows(&of, width, dtype)?];
                        Box::new(move |on| Ok(vec![Rows(&x).weighted_sum(on, 0.5, &y, -2.0)?]))
                    }
                })
            }),
        }
    }
}

/// A product with weights.
#[derive(Clone, Copy, Debug)]
pub struct Product {
    pub rows: usize,
    pub inputs: usize,
    pub outputs: usize,
    pub input: DType,
    pub weight: DType,
}

impl Product {
    pub fn case(self) -> Case {
        let Self { rows, inputs, outputs, input, weight: dtype } = self;
        let activations = rows * (inputs + outputs) * input.size_in_bytes();
        Case {
            op: "product",
            sizes: vec![("rows", rows), ("inputs", inputs), ("outputs", outputs)],
            variant: name(dtype).to_owned(),
            tolerance: tolerance(&[dtype]),
            work: Work {
                bytes: (inputs * outputs * dtype.size_in_bytes() + activations) as u64,
                flops: 2 * (rows * inputs * outputs) as u64,
            },
            prepare: Box::new(move |data| {
                let [x, weight] = [data.tensor(&[rows, inputs], input)?, data.tensor(&[outputs, inputs], dtype)?];
                Ok(Box::new(move |on| Ok(vec![linear(on, &x, &weight)?])))
            }),
        }
    }
}

/// A product with weights in blocks; the CPU's alone.
#[derive(Clone, Copy, Debug)]
pub struct StoredProduct {
    pub rows: usize,
    pub inputs: usize,
    pub outputs: usize,
    pub format: BlockFormat,
    pub products: Products,
}

impl StoredProduct {
    pub fn case(self) -> Case {
        let Self { rows, inputs, outputs, format, products } = self;
        let weight = outputs * (inputs / format.elements() * format.bytes());
        Case {
            op: "stored product",
            sizes: vec![("rows", rows), ("inputs", inputs), ("outputs", outputs)],
            variant: format!("{format:?}, {products:?}").to_lowercase(),
            tolerance: tolerance(&[DType::F32]),
            work: Work {
                bytes: (weight + rows * (inputs + outputs) * size_of::<f32>()) as u64,
                flops: 2 * (rows * inputs * outputs) as u64,
            },
            prepare: Box::new(move |data| {
                let x = data.tensor(&[rows, inputs], DType::F32)?;
                let weight = [data.stored(format, outputs, inputs)?.with_products(products)];
                Ok(Box::new(move |_| Ok(vec![StoredMatrix::linear(&x, &weight)?])))
            }),
        }
    }
}
