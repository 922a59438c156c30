//! Products with the weights of chosen experts, a choice after the other.

use super::linear::linear;
use crate::error::Result;
use crate::ops::experts::{ExpertProducts, numbers};
use crate::portable::experts::gather;
use candle_core::{DType, Tensor};

pub(crate) fn products(of: &ExpertProducts<'_>) -> Result<Tensor> {
    let [_, _, sharing] = of.choices()?;
    let mut products = vec![Tensor::zeros((0, of.weight.dim(1)?), DType::F32, of.x.device())?];
    for (choice, expert) in numbers(of)?.into_iter().enumerate() {
        let x = of.x.narrow(0, choice / sharing, 1)?.to_dtype(DType::F32)?;
        let product = linear(&x, &of.weight.get(expert as usize)?)?;
        products.push(match of.bias {
            Some(bias) => product.broadcast_add(&bias.get(expert as usize)?.to_dtype(DType::F32)?)?,
            None => product,
        });
    }
    Ok(gather(of, &Tensor::cat(&products, 0)?)?.to_dtype(of.x.dtype())?)
}
