//! `mla_preprocess.cu`: what stands in front of latent attention, for the few tokens of a decode step in bf16.

use super::{Argument, Buffers, Contents, Launch, Launches, MAX_TOKENS, Target, is_vector};
use crate::{MlaCacheMode, MlaNorm, MlaPool, MlaPreprocess, MlaProjection, MlaQuantMode, MlaStep};
use candle_core::{DType, Tensor};
use std::collections::HashSet;

/// What they name `kThreads`, `kWarps * kOutputs`, `kRows`, `kMostQuery` and `kStep`.
const THREADS: u32 = 256;
const OUTPUTS: usize = 16;
const ROWS: usize = 4;
const MOST_QUERY: usize = 256;
const STEP: usize = 4;

/// The launches of a step, unless the kernels were not made for it.
pub(crate) fn preprocess<'a>(mla: &'a MlaPreprocess, step: &MlaStep<'a>, _: &Target) -> Option<Launches<'a>> {
    let (shape, tokens) = (&mla.shape, step.input.dims()[0]);
    let bytes = mla.quant_mode != MlaQuantMode::Unquantised;
    let dtype = if bytes { DType::U8 } else { DType::BF16 };
    let whole = |width: usize| is_vector(width, dtype);
    let plain = |tensor: &Tensor| tensor.is_contiguous() && tensor.layout().start_offset() == 0;
    let in_rows = |of: &MlaProjection| of.weight.rank() == 2 && plain(&of.weight);
    let made = step.input.dtype() == DType::BF16
        && (1..=MAX_TOKENS).contains(&tokens)
        && [step.input, step.cos, step.sin, &mla.absorb].into_iter().all(plain)
        && mla.absorb.rank() == 3
        && in_rows(&mla.down)
        && mla.up.as_ref().is_none_or(in_rows)
        && whole(shape.hidden)
        && shape.q_lora.is_none_or(whole)
        && [shape.kv_lora, shape.rope].into_iter().all(|width| width.is_multiple_of(STEP))
        && [Some(&mla.norm0), mla.norm1.as_ref()]
            .into_iter()
            .flatten()
            .all(|norm| plain(&norm.gamma) && norm.beta.as_ref().is_none_or(plain))
        && shape.nope + shape.rope <= MOST_QUERY
        && [Some(&step.cache), step.rope_cache.as_ref()].into_iter().flatten().all(names_each_slot_once);
    if !made {
        return None;
    }
    let buffers = &mut Buffers::default();
    let joined = step.rope_cache.is_none();
    let int8 = mla.cache_mode == MlaCacheMode::Int8Nz;
    let q_width = if joined { shape.kv_lora + shape.rope } else { shape.kv_lora };
    let q_dtype = if int8 { DType::U8 } else { DType::BF16 };
    let mut arguments = vec![buffers.input("input", step.input)];
    arguments.extend(norm(buffers, Some(&mla.norm0), tokens, shape.hidden, ["row", "row_scales"]));
    arguments.extend(norm(buffers, mla.norm1.as_ref(), tokens, shape.q_lora.unwrap_or(0), ["query", "query_scales"]));
    arguments.extend(projection(buffers, Some(&mla.down)));
    arguments.extend(projection(buffers, mla.up.as_ref()));
    arguments.extend([
        buffers.input("gamma2", &mla.gamma2),
        buffers.input("cos", step.cos),
        buffers.input("sin", step.sin),
        buffers.input("absorb", &mla.absorb),
        buffers.input("latent_scale", mla.latent_scale.as_ref()),
        buffers.input("query_scale", mla.query_scale.as_ref()),
        buffers.add("below", Contents::Scratch(tokens * shape.down_rows())),
        buffers.add("q", Contents::Output(q_dtype, vec![tokens, shape.heads, q_width])),
        match joined {
            true => Argument::Pointer(None),
            false => buffers.add("q_rope", Contents::Output(DType::BF16, vec![tokens, shape.heads, shape.rope])),
        },
    ]);
    arguments.extend(pool(buffers, Some(&step.cache)));
    arguments.extend(pool(buffers, step.rope_cache.as_ref()));
    let mode = match mla.quant_mode {
        MlaQuantMode::PerTensorAsymmetric => 0,
        MlaQuantMode::PerTokenSymmetric => 1,
        MlaQuantMode::Unquantised => 2,
    };
    let sizes = [tokens, shape.hidden, shape.heads, shape.q_lora.unwrap_or(0), shape.kv_lora, shape.nope, shape.rope];
    arguments.extend(sizes.map(|size| Argument::I32(size as i32)));
    arguments.extend([Argument::I32(shape.down_rows() as i32), Argument::I32(mode)]);
    let epsilon = mla.epsilon;
    arguments.extend([epsilon.input, epsilon.query, epsilon.latent].map(|epsilon| Argument::F32(epsilon as f32)));
    let weight = if bytes { "int8" } else { "bf16" };
    let groups = tokens.div_ceil(ROWS) as u32;
    let launch = |kernel: String, grid: [u32; 3]| Launch {
        kernel,
        grid,
        threads: THREADS,
        shared_bytes: 0,
        arguments: arguments.clone(),
    };
    let launches = vec![
        launch("mla_norm_bf16".into(), [tokens as u32, 1, 1]),
        launch(format!("mla_down_{weight}"), [shape.down_rows().div_ceil(OUTPUTS) as u32, groups, 1]),
        launch("mla_latent_bf16".into(), [tokens as u32, 1, 1]),
        launch(format!("mla_heads_{weight}"), [shape.heads as u32, groups, 1]),
    ];
    Some(Launches { buffers: std::mem::take(&mut buffers.0), launches })
}

/// All tokens are written at once, so that no slot may be named twice.
fn names_each_slot_once(pool: &MlaPool<'_>) -> bool {
    let mut seen = HashSet::new();
    pool.slot_mapping.iter().filter(|&&slot| slot >= 0).all(|slot| seen.insert(slot))
}

/// A norm, and where it leaves rows of so many elements for their product.
fn norm<'a>(
    buffers: &mut Buffers<'a>,
    norm: Option<&'a MlaNorm>,
    tokens: usize,
    width: usize,
    names: [&'static str; 2],
) -> [Argument; 6] {
    let Some(norm) = norm else { return [Argument::Pointer(None); 6] };
    [
        buffers.input("gamma", &norm.gamma),
        buffers.input("beta", norm.beta.as_ref()),
        buffers.input("quant_scale", norm.quant_scale.as_ref()),
        buffers.input("quant_offset", norm.quant_offset.as_ref()),
        // As wide as it is unquantised.
        buffers.add(names[0], Contents::Scratch((tokens * width).div_ceil(2))),
        buffers.add(names[1], Contents::Scratch(tokens)),
    ]
}

fn projection<'a>(buffers: &mut Buffers<'a>, of: Option<&'a MlaProjection>) -> [Argument; 3] {
    let Some(of) = of else { return [Argument::Pointer(None); 3] };
    [
        buffers.input("weight", &of.weight),
        buffers.input("factors", of.descale.as_ref()),
        buffers.input("bias", of.bias.as_ref()),
    ]
}

fn pool<'a>(buffers: &mut Buffers<'a>, pool: Option<&MlaPool<'a>>) -> Vec<Argument> {
    let Some(MlaPool { tensor, view, slot_mapping }) = pool else {
        let (none, nothing) = (Argument::Pointer(None), Argument::I64(0));
        return vec![none, none, nothing, nothing, Argument::I32(1), Argument::I32(1)];
    };
    vec![
        buffers.add("pool", Contents::Pool(tensor)),
        buffers.add("slots", Contents::Slots(*slot_mapping)),
        Argument::I64(view.block_elems as i64),
        Argument::I64(view.layer_offset as i64),
        Argument::I32(view.tokens_per_block as i32),
        Argument::I32(view.head_dim as i32),
    ]
}
