//! Operators with a state or a cache, which they are given and hand on: convolutions, scans, linear and cached attention.

use cacheplan_transforms::onnx::{EdgeAttention, EdgeConvolution, EdgeOp, EdgeScan};

use crate::builder::{Builder, Result, constant};
use crate::cached_attention::CachedAttention;
use crate::call::Call;
use crate::custom::{Convolution, LinearAttention, Scan};
use crate::kernels::Kernel;
use crate::node::Node;
use crate::tensor::{Data, Element, Value};

/// The input of a node that is a state, which its second output takes the place of.
pub(crate) fn state_of(node: &Node) -> Option<usize> {
    match (node.edge, node.op.as_str()) {
        (Some(EdgeOp::CausalConv1d(_)), _) | (None, "LinearAttention" | "com.microsoft.LinearAttention") => Some(3),
        (Some(EdgeOp::UpdateSsmState(_)), _) => Some(7),
        _ => None,
    }
}

/// x `[batch, tokens, channels]`, weight, bias, state, context lengths.
pub(crate) fn convolution(builder: &mut Builder, call: &Call<'_>, stated: EdgeConvolution) -> Result<Vec<Value>> {
    let (x, state, lengths) = (call.input(0)?, call.input(3)?, call.input(4)?);
    let bias = call.get(2).map(constant).transpose()?;
    let convolution = Convolution::new(&constant(call.input(1)?)?, bias.as_ref())?;
    let channels = convolution.channels();
    stated.fits(channels as u64, convolution.taps() as u64).map_err(|error| error.to_string())?;
    match (x.shape(), state.shape(), lengths.shape()) {
        (&[batch, _, found], &[states, kept, columns], &[sequences])
            if [found, kept] == [channels; 2] && [states, sequences] == [batch; 2] && convolution.takes(columns) => {}
        (x, state, lengths) => {
            return Err(format!(
                "input {x:?}, state {state:?} and lengths {lengths:?} do not go with {channels} channels"
            ));
        }
    }
    let outputs = vec![(Element::Float, x.shape().to_vec()), (Element::Float, state.shape().to_vec())];
    let inputs = vec![x.clone(), state.clone(), lengths.clone()];
    builder.compute_state(Kernel::Convolution(Box::new(convolution)), inputs, outputs, 1)
}

/// x, a, b, c, d, dt, dt_bias, state `[batch, heads, head_dim, d_state]`, context lengths.
pub(crate) fn scan(builder: &mut Builder, call: &Call<'_>, stated: EdgeScan) -> Result<Vec<Value>> {
    let (x, state, lengths) = (call.input(0)?, call.input(7)?, call.input(8)?);
    let (b, c, dt) = (call.input(2)?, call.input(3)?, call.input(5)?);
    let &[batch, heads, head_dim, d_state] = state.shape() else {
        return Err(format!("its state is {:?}", state.shape()));
    };
    let outer = x.shape().strip_suffix(&[heads, head_dim]).unwrap_or(&[]);
    let groups = call.input(2)?.shape().len().checked_sub(2).map_or(0, |at| b.shape()[at]);
    let rest = |value: &Value, last: &[usize]| value.shape() == [outer, last].concat();
    let fits = outer.first() == Some(&batch)
        && outer.len() <= 2
        && rest(b, &[groups, d_state])
        && rest(c, &[groups, d_state])
        && rest(dt, &[heads])
        && lengths.shape() == [batch];
    if !fits {
        let shapes = [x, b, c, dt, state, lengths].map(Value::shape);
        return Err(format!("x, b, c, dt, state and lengths of {shapes:?} do not go together"));
    }
    let sizes = [heads, head_dim, d_state, groups].map(|size| size as u64);
    stated.fits(sizes[0], sizes[1], sizes[2], sizes[3]).map_err(|error| error.to_string())?;
    let parameter = |at: usize| call.get(at).map(constant).transpose();
    let scan = Scan::new([parameter(1)?, parameter(4)?, parameter(6)?], heads, stated)?;
    let inputs = [x, b, c, dt, state, lengths].map(Value::clone).to_vec();
    let outputs = vec![(Element::Float, x.shape().to_vec()), (Element::Float, state.shape().to_vec())];
    builder.compute_state(Kernel::Scan(Box::new(scan)), inputs, outputs, 4)
}

/// query, key, value `[batch, tokens, channels]`, past state `[batch, heads, key_dim, value_dim]`, decay, beta.
pub(crate) fn linear_attention(builder: &mut Builder, call: &Call<'_>) -> Result<Vec<Value>> {
    let heads = |name: &str| call.node.int(name).and_then(|heads| usize::try_from(heads).ok()).unwrap_or(0);
    let (heads, q_heads) = (heads("kv_num_heads"), heads("q_num_heads"));
    if heads == 0 || heads != q_heads {
        return Err(format!("{q_heads} heads of queries over {heads} of keys are not run, only as many of both"));
    }
    let (q, k, v) = (call.input(0)?, call.input(1)?, call.input(2)?);
    let (&[batch, tokens, keys], &[_, _, values]) = (q.shape(), v.shape()) else {
        return Err("its inputs have not three axes".to_owned());
    };
    let (key_dim, value_dim) = (keys / heads, values / heads);
    let state_shape = vec![batch, heads, key_dim, value_dim];
    let state = match call.get(3) {
        Some(state) => state.clone(),
        None => Builder::filled(Data::Float(vec![0.0]), &state_shape)?,
    };
    let fits = [q, k, v].iter().zip([keys, keys, values]).all(|(x, width)| x.shape() == [batch, tokens, width])
        && (key_dim * heads, value_dim * heads) == (keys, values)
        && state.shape() == state_shape;
    if !fits {
        let shapes = [q, k, v, &state].map(Value::shape);
        return Err(format!("query, key, value and state of {shapes:?} do not go together in {heads} heads"));
    }
    let rule = call.node.text("update_rule").unwrap_or("gated_delta");
    let (has_decay, has_beta) = match rule {
        "linear" => (false, false),
        "gated" => (true, false),
        "delta" => (false, true),
        "gated_delta" => (true, true),
        other => return Err(format!("its rule is {other}; linear, gated, delta and gated_delta are run")),
    };
    let mut inputs = vec![q.clone(), k.clone(), v.clone(), state];
    let mut per_channel = false;
    if has_decay {
        let decay = call.input(4)?;
        per_channel = decay.shape() == [batch, tokens, keys] && key_dim > 1;
        if !per_channel && decay.shape() != [batch, tokens, heads] {
            return Err(format!("its decay is {:?}", decay.shape()));
        }
        inputs.push(decay.clone());
    }
    if has_beta {
        inputs.push(Builder::expand(call.input(5)?, &[batch, tokens, heads])?);
    }
    let scale = call.node.float("scale").filter(|&scale| scale != 0.0).unwrap_or(1.0 / (key_dim as f32).sqrt());
    let kernel = LinearAttention { heads, per_channel, has_decay, has_beta, scale };
    let outputs = vec![(Element::Float, v.shape().to_vec()), (Element::Float, state_shape)];
    builder.compute_state(Kernel::LinearAttention(kernel), inputs, outputs, 3)
}

/// q, k, v `[batch, tokens, heads * head_dim]`, cache `[batch, 2, kv_heads, capacity, head_dim]`, lengths `[batch]`, rope
/// table `[1 or batch, positions, rotary_dim]`, start index `[0 or batch]`.
pub(crate) fn cached_attention(builder: &mut Builder, call: &Call<'_>, attention: EdgeAttention) -> Result<Vec<Value>> {
    let [heads, kv_heads, head_dim] =
        [attention.heads, attention.kv_heads, attention.head_dim].map(|size| size as usize);
    let shapes = (0..7).map(|at| call.input(at).map(Value::shape)).collect::<Result<Vec<&[usize]>>>()?;
    let &[batch, tokens, _] = shapes[0] else { return Err(format!("its queries are {:?}", shapes[0])) };
    let fits = [(0, heads), (1, kv_heads), (2, kv_heads)]
        .iter()
        .all(|&(at, heads)| shapes[at] == [batch, tokens, heads * head_dim])
        && matches!(shapes[3], &[own, 2, found, _, width] if [own, found, width] == [batch, kv_heads, head_dim])
        && shapes[4] == [batch]
        && matches!(shapes[5], &[tables, _, rotary] if [1, batch].contains(&tables) && rotary <= head_dim && rotary % 2 == 0)
        && [[0], [batch]].iter().any(|shape| shapes[6] == shape);
    if !fits || call.inputs.len() != 7 {
        return Err(format!("inputs of {shapes:?} do not go with {heads} and {kv_heads} heads of {head_dim}"));
    }
    let mut inputs = Vec::new();
    for at in 0..7 {
        let value = call.input(at)?;
        // The cache is read as it is stored.
        let value = if at == 3 { value.clone() } else { builder.wide(value)? };
        inputs.push(builder.contiguous(&value)?);
    }
    let cache = shapes[3].to_vec();
    let outputs = vec![(Element::Float, vec![batch, tokens, heads, head_dim]), (Element::Float, cache)];
    builder.compute_at(Kernel::CachedAttention(CachedAttention(attention)), inputs, outputs, 3)
}
