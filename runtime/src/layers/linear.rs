//! Affine projections.

use candle_core::Tensor;

use crate::weights::{Scope, WeightError};

/// `x · weightᵀ + bias` over rows.
#[derive(Debug)]
pub(crate) struct Linear {
    weight: Tensor,
    bias: Option<Tensor>,
}

impl Linear {
    /// Reads `weight` `[outputs, inputs]` and, if the model has one, `bias` `[outputs]`.
    pub(crate) fn load(weights: &Scope<'_>, inputs: usize, outputs: usize, bias: bool) -> Result<Self, WeightError> {
        let weight = weights.get("weight", (outputs, inputs))?;
        Ok(Self { weight, bias: weights.bias(bias, outputs)? })
    }

    /// A projection by `weight` `[outputs, inputs]` and `bias` `[outputs]`.
    pub(crate) fn new(weight: Tensor, bias: Option<Tensor>) -> Self {
        Self { weight, bias }
    }

    /// One projection to the outputs of several over the same input, in their order; all have a bias or none has.
    pub(crate) fn stacked(parts: &[Self]) -> candle_core::Result<Self> {
        let weights: Vec<&Tensor> = parts.iter().map(|part| &part.weight).collect();
        let biases: Vec<&Tensor> = parts.iter().filter_map(|part| part.bias.as_ref()).collect();
        let bias = if biases.is_empty() { None } else { Some(Tensor::cat(&biases, 0)?) };
        Ok(Self { weight: Tensor::cat(&weights, 0)?, bias })
    }

    /// How many outputs there are.
    pub(crate) fn outputs(&self) -> usize {
        self.weight.dims()[0]
    }

    /// The same projection with `change` `[outputs, inputs]` added to its weight.
    pub(crate) fn plus(self, change: &Tensor) -> candle_core::Result<Self> {
        Ok(Self { weight: (self.weight + change)?, ..self })
    }

    /// The same projection with each output multiplied by `factor`.
    pub(crate) fn scaled(self, factor: f64) -> candle_core::Result<Self> {
        if factor == 1.0 {
            return Ok(self);
        }
        let bias = self.bias.map(|bias| bias * factor).transpose()?;
        Ok(Self { weight: (self.weight * factor)?, bias })
    }

    /// The same projection with consecutive groups of outputs, given as (size, factor), multiplied.
    pub(crate) fn scaled_sections(self, sections: impl Iterator<Item = (usize, f64)>) -> candle_core::Result<Self> {
        let factors: Vec<f64> = sections.flat_map(|(size, factor)| std::iter::repeat_n(factor, size)).collect();
        if factors.iter().all(|&factor| factor == 1.0) {
            return Ok(self);
        }
        let outputs = factors.len();
        let factors = Tensor::from_vec(factors, outputs, self.weight.device())?.to_dtype(self.weight.dtype())?;
        let bias = self.bias.map(|bias| bias * &factors).transpose()?;
        Ok(Self { weight: self.weight.broadcast_mul(&factors.unsqueeze(1)?)?, bias })
    }

    /// The projection to some of the outputs, in the order given.
    pub(crate) fn select(&self, outputs: impl IntoIterator<Item = usize>) -> candle_core::Result<Self> {
        let outputs: Vec<u32> = outputs.into_iter().map(|output| output as u32).collect();
        let count = outputs.len();
        let outputs = Tensor::from_vec(outputs, count, self.weight.device())?;
        let bias = self.bias.as_ref().map(|bias| bias.index_select(&outputs, 0)).transpose()?;
        Ok(Self { weight: self.weight.index_select(&outputs, 0)?, bias })
    }

    /// `[rows, inputs]` to `[rows, outputs]`.
    pub(crate) fn forward(&self, x: &Tensor) -> candle_core::Result<Tensor> {
        let y = cacheplan_kernels::linear(x, &self.weight)?;
        match &self.bias {
            Some(bias) => y.broadcast_add(bias),
            None => Ok(y),
        }
    }
}
