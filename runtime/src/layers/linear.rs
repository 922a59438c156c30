//! Affine projections.

use cacheplan_kernels::{Rows, Run};
use candle_core::Tensor;

use crate::error::Result;
use crate::exported::{Stack, Writer};
use crate::weights::{LowRank, Matrix, Scope, WeightError};

/// `x · weightᵀ + bias` over rows.
#[derive(Clone, Debug)]
pub(crate) struct Linear {
    weight: Matrix,
    bias: Option<Tensor>,
}

impl Linear {
    /// As nodes of a graph.
    pub(crate) fn trace(&self, writer: &mut Writer, x: &str) -> Result<String> {
        writer.linear(x, &self.weight.computed()?, self.bias.as_ref())
    }

    /// Projections of one size beside each other as constants of a graph; all have a bias or none has.
    pub(super) fn stack<'a>(writer: &mut Writer, parts: impl Iterator<Item = &'a Self> + Clone) -> Result<Stack> {
        let weights: Vec<Tensor> =
            parts.clone().map(|part| part.weight.computed()?.t()).collect::<candle_core::Result<_>>()?;
        let weight = writer.weight(&Tensor::stack(&weights, 0)?)?;
        let biases: Vec<&Tensor> = parts.filter_map(|part| part.bias.as_ref()).collect();
        let bias = if biases.is_empty() { None } else { Some(Tensor::stack(&biases, 0)?.unsqueeze(1)?) };
        Ok(Stack { weight, bias: bias.map(|bias| writer.weight(&bias)).transpose()? })
    }

    /// Reads `weight` `[outputs, inputs]` and, if the model has one, `bias` `[outputs]`.
    pub(crate) fn load(weights: &Scope<'_>, inputs: usize, outputs: usize, bias: bool) -> Result<Self, WeightError> {
        let weight = weights.product("weight", [outputs, inputs])?;
        Ok(Self { weight, bias: weights.bias(bias, outputs)? })
    }

    /// A projection by `weight` `[outputs, inputs]` and `bias` `[outputs]`.
    pub(crate) fn new(weight: Tensor, bias: Option<Tensor>) -> Self {
        Self { weight: Matrix::Dense(weight), bias }
    }

    /// A projection by `weight` alone.
    pub(crate) fn of(weight: Matrix) -> Self {
        Self { weight, bias: None }
    }

    /// One projection to the outputs of several over the same input, in their order; all have a bias or none has.
    pub(crate) fn stacked(parts: &[Self]) -> candle_core::Result<Self> {
        let biases: Vec<&Tensor> = parts.iter().filter_map(|part| part.bias.as_ref()).collect();
        let bias = if biases.is_empty() { None } else { Some(Tensor::cat(&biases, 0)?) };
        Ok(Self { weight: Matrix::stacked(parts.iter().map(|part| &part.weight))?, bias })
    }

    /// How many outputs there are.
    pub(crate) fn outputs(&self) -> usize {
        self.weight.rows()
    }

    /// The same projection, whose tensors others share, with `change` added to its weight.
    pub(crate) fn plus(self, change: LowRank) -> Self {
        Self { weight: Matrix::Changed(Box::new(self.weight), change), ..self }
    }

    /// The same projection with each output multiplied by `factor`.
    pub(crate) fn scaled(self, factor: f64) -> candle_core::Result<Self> {
        if factor == 1.0 {
            return Ok(self);
        }
        let bias = self.bias.map(|bias| bias * factor).transpose()?;
        Ok(Self::new((self.weight.computed()? * factor)?, bias))
    }

    /// The same projection with consecutive groups of outputs, given as (size, factor), multiplied.
    pub(crate) fn scaled_sections(self, sections: impl Iterator<Item = (usize, f64)>) -> candle_core::Result<Self> {
        let factors: Vec<f64> = sections.flat_map(|(size, factor)| std::iter::repeat_n(factor, size)).collect();
        if factors.iter().all(|&factor| factor == 1.0) {
            return Ok(self);
        }
        let outputs = factors.len();
        let weight = self.weight.computed()?;
        let factors = Tensor::from_vec(factors, outputs, weight.device())?.to_dtype(weight.dtype())?;
        let bias = self.bias.map(|bias| bias * &factors).transpose()?;
        Ok(Self::new(weight.broadcast_mul(&factors.unsqueeze(1)?)?, bias))
    }

    /// The projection to some of the outputs, in the order given.
    pub(crate) fn select(&self, outputs: impl IntoIterator<Item = usize>) -> candle_core::Result<Self> {
        let outputs: Vec<usize> = outputs.into_iter().collect();
        let of_bias = |bias: &Tensor| {
            let indices = outputs.iter().map(|&output| output as u32).collect();
            bias.index_select(&Tensor::from_vec(indices, outputs.len(), bias.device())?, 0)
        };
        let bias = self.bias.as_ref().map(of_bias).transpose()?;
        Ok(Self { weight: self.weight.select(&outputs)?, bias })
    }

    /// `[rows, inputs]` to `[rows, outputs]`.
    pub(crate) fn forward(&self, on: &Run<'_>, x: &Tensor) -> candle_core::Result<Tensor> {
        let y = self.weight.product(on, x)?;
        match &self.bias {
            Some(bias) => y.broadcast_add(bias),
            None => Ok(y),
        }
    }
}

/// Projections of one size beside each other, of which each row names those that it takes.
#[derive(Debug)]
pub(super) struct LinearStack {
    /// `[count, outputs, inputs]`.
    weight: Tensor,
    /// `[count, outputs]`.
    bias: Option<Tensor>,
}

impl LinearStack {
    /// Projections by `weight` `[count, outputs, inputs]` alone.
    pub(super) fn of(weight: Tensor) -> Self {
        Self { weight, bias: None }
    }

    /// Room for as many projections like this one; none where the weight is in the blocks of a file.
    pub(super) fn like(linear: &Linear, count: usize) -> candle_core::Result<Option<Self>> {
        let room = |part: &Tensor| Tensor::zeros([&[count][..], part.dims()].concat(), part.dtype(), part.device());
        let Matrix::Dense(weight) = &linear.weight else { return Ok(None) };
        Ok(Some(Self { weight: room(weight)?, bias: linear.bias.as_ref().map(room).transpose()? }))
    }

    /// Takes over a projection as that of the number; none if it is unlike the others.
    pub(super) fn take(&self, number: usize, linear: &Linear) -> candle_core::Result<Option<Linear>> {
        let alike = |stack: &Tensor, part: &Tensor| stack.dims()[1..] == *part.dims() && stack.dtype() == part.dtype();
        let put = |stack: &Tensor, part: &Tensor| stack.slice_set(&part.unsqueeze(0)?.contiguous()?, 0, number);
        let Matrix::Dense(weight) = &linear.weight else { return Ok(None) };
        if !alike(&self.weight, weight) {
            return Ok(None);
        }
        match (&self.bias, &linear.bias) {
            (None, None) => {}
            (Some(stack), Some(bias)) if alike(stack, bias) => put(stack, bias)?,
            _ => return Ok(None),
        }
        put(&self.weight, weight)?;
        Ok(Some(self.get(number)?))
    }

    /// The projection of that number, whose weights lie here.
    pub(super) fn get(&self, number: usize) -> candle_core::Result<Linear> {
        let bias = self.bias.as_ref().map(|bias| bias.get(number)).transpose()?;
        Ok(Linear::new(self.weight.get(number)?, bias))
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.weight.dims()[0]
    }

    /// What the projections `chosen` `[rows, per_row]` make of rows, as `[rows · per_row, outputs]`.
    pub(super) fn forward(&self, on: &Run<'_>, x: &Tensor, chosen: &Tensor) -> candle_core::Result<Tensor> {
        Rows(x).by_experts(on, &self.weight, self.bias.as_ref(), chosen)?.flatten(0, 1)
    }

    /// The same of a row for each choice, summed over a row's choices by `shares`, as `[rows, outputs]`.
    pub(super) fn summed(
        &self,
        on: &Run<'_>,
        x: &Tensor,
        chosen: &Tensor,
        shares: &Tensor,
    ) -> candle_core::Result<Tensor> {
        Ok(Rows(x).summed_by_experts(on, &self.weight, self.bias.as_ref(), chosen, shares)?)
    }
}
