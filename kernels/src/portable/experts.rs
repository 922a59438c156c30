//! Products with the weights of chosen experts, of which each choice gets a copy.

use crate::error::Result;
use crate::ops::experts::ExpertProducts;
use candle_core::{DType, Tensor};

pub(crate) fn products(of: &ExpertProducts<'_>) -> Result<Tensor> {
    let ([rows, per_token, sharing], chosen) = (of.choices()?, of.chosen.flatten_all()?);
    let (count, inputs) = (rows * per_token, of.x.dim(1)?);
    let x = of.x.reshape((count / sharing, 1, inputs))?.broadcast_as((count / sharing, sharing, inputs))?;
    let weight = of.weight.index_select(&chosen, 0)?.to_dtype(of.x.dtype())?;
    let products = weight.matmul(&x.reshape((count, inputs, 1))?)?.squeeze(2)?;
    let products = match of.bias {
        Some(bias) => (products + bias.index_select(&chosen, 0)?.to_dtype(of.x.dtype())?)?,
        None => products,
    };
    gather(of, &products)
}

/// What is wanted of the products of each choice: these, or their sums.
pub(crate) fn gather(of: &ExpertProducts<'_>, products: &Tensor) -> Result<Tensor> {
    let [rows, per_token, _] = of.choices()?;
    let products = products.reshape((rows, per_token, of.weight.dim(1)?))?;
    let Some(shares) = of.shares else { return Ok(products) };
    let shares = shares.to_dtype(DType::F32)?.unsqueeze(2)?;
    Ok(products.to_dtype(DType::F32)?.broadcast_mul(&shares)?.sum(1)?.to_dtype(of.x.dtype())?)
}
