//! The choice of experts, which is made on the host.

use crate::error::Result;
use crate::ops::routing::Routing;
use candle_core::{D, DType, Tensor};

pub(crate) fn route(routing: &Routing, logits: &Tensor, correction: Option<&Tensor>) -> Result<(Tensor, Tensor)> {
    let logits = logits.to_dtype(DType::F32)?;
    let scores = if routing.softmax {
        let raised = logits.broadcast_sub(&logits.max_keepdim(D::Minus1)?)?.exp()?;
        raised.broadcast_div(&raised.sum_keepdim(D::Minus1)?)?
    } else {
        (logits.neg()?.exp()? + 1.0)?.recip()?
    };
    let choice = match correction {
        Some(correction) => scores.broadcast_add(&correction.flatten_all()?.to_dtype(DType::F32)?)?,
        None => scores.clone(),
    };
    let rows = scores.to_vec2::<f32>()?.into_iter().zip(choice.to_vec2::<f32>()?);
    let chosen = rows.flat_map(|(scores, choice)| routing.choose(&scores, &choice));
    let (experts, weights): (Vec<u32>, Vec<f32>) = chosen.map(|(expert, weight)| (expert as u32, weight)).unzip();
    let (shape, device) = ((logits.dim(0)?, routing.experts_per_token), logits.device());
    Ok((Tensor::from_vec(experts, shape, device)?, Tensor::from_vec(weights, shape, device)?))
}
