//! The shapes that are measured: layers of published models.

use super::Bound;
use crate::error::Result;
use crate::{
    Backend, CausalConv1d, KvLayerView, KvWrite, LinearAttentionScan, Mamba2Scan, PagedAttention, PagedBatch, PoolRows,
    ScanInput, StateBatch, StateDecay, StateLayerView, TimeStep, linear,
};
use cacheplan_handlers::KvLayout;
use candle_core::{DType, Device, Tensor};

/// One op at one shape.
pub(super) struct Case {
    pub(super) op: &'static str,
    pub(super) shape: String,
    pub(super) bound: Bound,
    /// Bytes or operations of one call.
    pub(super) work: f64,
    /// Part of the machine's rate that is asked for.
    pub(super) target: Option<f64>,
    pub(super) prepare: Box<dyn FnOnce() -> Result<Call>>,
}

impl Case {
    fn asked(self, part: f64) -> Self {
        Self { target: Some(part), ..self }
    }
}

/// Runs the op once.
type Call = Box<dyn FnMut() -> Result<()>>;

/// Layers that calls go through in turn, so that none finds its state in a cache that a model would have evicted.
const LAYERS: usize = 4;

pub(super) fn all() -> Vec<Case> {
    let mut cases = vec![state_update(1), state_update(16).asked(0.7), scan_prefill(4096).asked(0.35)];
    cases.extend([1, 4].map(|group| attention_decode(group, 4, 4096).asked(0.7)));
    cases.push(attention_decode(8, 4, 4096));
    cases.push(attention_decode(4, 1, 16384).asked(0.7));
    cases.push(attention_prefill(4, 2048));
    cases.extend([conv(1, 4096).asked(0.5), conv(64, 1)]);
    cases.extend([delta_rule(16, 1), delta_rule(1, 2048)]);
    cases.extend([1, 4].map(|rows| projection(rows, DType::F32)));
    cases.extend([1, 4, 16].map(|rows| projection(rows, DType::BF16)));
    cases.extend([cache_write(4096), block_copy()]);
    cases
}

fn random(shape: impl Into<candle_core::Shape>) -> Result<Tensor> {
    Ok(Tensor::rand(-1f32, 1f32, shape, &Device::Cpu)?)
}

/// Offsets of `batch` sequences of `tokens`.
fn offsets(batch: usize, tokens: usize) -> Vec<u32> {
    (0..=batch).map(|i| (i * tokens) as u32).collect()
}

fn slots(batch: usize) -> Vec<i32> {
    (0..batch as i32).collect()
}

/// Mamba2-2.7B.
const HEADS: usize = 80;
const HEAD_DIM: usize = 64;
const D_STATE: usize = 128;

fn state_update(batch: usize) -> Case {
    let work = (2 * batch * HEADS * HEAD_DIM * D_STATE * 4) as f64;
    mamba("state update", format!("batch {batch}, 80 heads of 64 x 128"), Bound::Copy, work, batch, 1)
}

fn scan_prefill(tokens: usize) -> Case {
    // The chunked algorithm's operations with its usual chunk of 128, causal halves counted.
    let per_token = HEADS * (128 * HEAD_DIM + 4 * D_STATE * HEAD_DIM) + 128 * D_STATE;
    let shape = format!("{tokens} tokens, 80 heads of 64 x 128");
    mamba("scan prefill", shape, Bound::Compute, (tokens * per_token) as f64, 1, tokens)
}

fn mamba(op: &'static str, shape: String, bound: Bound, work: f64, batch: usize, tokens: usize) -> Case {
    let prepare = move || -> Result<Call> {
        let elems = HEADS * HEAD_DIM * D_STATE;
        let total = batch * tokens;
        let pool = Tensor::zeros((batch, LAYERS * elems), DType::F32, &Device::Cpu)?;
        let x = random((total, HEADS * HEAD_DIM))?;
        let dt = random((total, HEADS))?;
        let (b, c) = (random((total, D_STATE))?, random((total, D_STATE))?);
        let a = (random(HEADS)? - 1.5)?;
        let d = random(HEADS)?;
        let (cu_seqlens, slots) = (offsets(batch, tokens), slots(batch));
        let mut layer = 0;
        Ok(Box::new(move || {
            layer = (layer + 1) % LAYERS;
            let view = StateLayerView::matrix(LAYERS * elems, layer * elems, [HEADS, HEAD_DIM, D_STATE]);
            let input = ScanInput { x: &x, dt: &dt, b: &b, c: &c, z: None };
            let parameters = Mamba2Scan { a: &a, d: Some(&d), time_step: TimeStep::new(None) };
            let batch = StateBatch::new(&cu_seqlens, &slots);
            parameters.run(&Backend::Cpu.run(), &input, &pool, &view, &batch)?;
            Ok(())
        }))
    };
    Case { op, shape, bound, work, target: None, prepare: Box::new(prepare) }
}

const KV_HEADS: usize = 8;
const KV_DIM: usize = 128;
const BLOCK: usize = 64;

fn kv_view() -> KvLayerView {
    let layer = 2 * KV_HEADS * BLOCK * KV_DIM;
    KvLayerView {
        block_elems: LAYERS * layer,
        layer_offset: 0,
        kv_factor: 2,
        num_kv_heads: KV_HEADS,
        head_dim: KV_DIM,
        tokens_per_block: BLOCK,
        order: KvLayout::Hnd,
    }
}

fn attention_decode(group: usize, batch: usize, context: usize) -> Case {
    let work = (2 * batch * context * KV_HEADS * KV_DIM * 4) as f64;
    let shape = format!("batch {batch}, context {context}, 8 KV heads of 128, {group} queries each");
    attention("attention decode", shape, Bound::Read, work, group, batch, context, 1)
}

fn attention_prefill(group: usize, tokens: usize) -> Case {
    let work = (4 * group * KV_HEADS * KV_DIM * tokens * tokens / 2) as f64;
    let shape = format!("{tokens} tokens, 8 KV heads of 128, {group} queries each");
    attention("attention prefill", shape, Bound::Compute, work, group, 1, tokens, tokens)
}

#[allow(clippy::too_many_arguments, reason = "the two callers name all of them")]
fn attention(
    op: &'static str,
    shape: String,
    bound: Bound,
    work: f64,
    group: usize,
    batch: usize,
    context: usize,
    tokens: usize,
) -> Case {
    let prepare = move || -> Result<Call> {
        let blocks = context.div_ceil(BLOCK);
        let pool = random((batch * blocks, kv_view().block_elems))?;
        let q = random((batch * tokens, group * KV_HEADS, KV_DIM))?;
        // Neighbouring blocks of a sequence lie apart in the pool.
        let block_tables: Vec<i32> =
            (0..batch).flat_map(|i| (0..blocks).map(move |j| (j * batch + i) as i32)).collect();
        let (cu_seqlens, kv_lens) = (offsets(batch, tokens), vec![context as u32; batch]);
        let mut layer = 0;
        Ok(Box::new(move || {
            layer = (layer + 1) % LAYERS;
            let mut view = kv_view();
            view.layer_offset = layer * view.layer_elems();
            let batch = PagedBatch::new(&cu_seqlens, &kv_lens, &block_tables, blocks);
            PagedAttention::new(0.088, KV_DIM).run(&Backend::Cpu.run(), &q, &pool, &view, &batch)?;
            Ok(())
        }))
    };
    Case { op, shape, bound, work, target: None, prepare: Box::new(prepare) }
}

fn conv(batch: usize, tokens: usize) -> Case {
    const CHANNELS: usize = 5376;
    let (op, state_rows) = if tokens > 1 { ("conv prefill", 0) } else { ("conv update", 2 * 3) };
    let work = (batch * CHANNELS * 4 * (2 * tokens + state_rows)) as f64;
    let prepare = move || -> Result<Call> {
        let elems = 3 * CHANNELS;
        let pool = Tensor::zeros((batch, LAYERS * elems), DType::F32, &Device::Cpu)?;
        let x = random((batch * tokens, CHANNELS))?;
        let (weight, bias) = (random((4, CHANNELS))?, random(CHANNELS)?);
        let (cu_seqlens, slots) = (offsets(batch, tokens), slots(batch));
        let mut layer = 0;
        Ok(Box::new(move || {
            layer = (layer + 1) % LAYERS;
            let view = StateLayerView::conv(LAYERS * elems, layer * elems, 4, CHANNELS);
            let batch = StateBatch::new(&cu_seqlens, &slots);
            CausalConv1d { weight: &weight, bias: Some(&bias), silu: true }.run(
                &Backend::Cpu.run(),
                &x,
                &pool,
                &view,
                &batch,
            )?;
            Ok(())
        }))
    };
    let shape = format!("batch {batch}, {tokens} tokens, 5376 channels, width 4");
    Case { op, shape, bound: Bound::Copy, work, target: None, prepare: Box::new(prepare) }
}

/// A layer of Qwen3-Next.
fn delta_rule(batch: usize, tokens: usize) -> Case {
    const KEY_HEADS: usize = 16;
    const VALUE_HEADS: usize = 32;
    const DIM: usize = 128;
    let elems = VALUE_HEADS * DIM * DIM;
    let (op, bound, work) = if tokens > 1 {
        ("delta rule prefill", Bound::Compute, (7 * tokens * elems) as f64)
    } else {
        ("delta rule update", Bound::Copy, (2 * batch * elems * 4) as f64)
    };
    let prepare = move || -> Result<Call> {
        let total = batch * tokens;
        let pool = Tensor::zeros((batch, LAYERS * elems), DType::F32, &Device::Cpu)?;
        let (q, k) = (random((total, KEY_HEADS * DIM))?, random((total, KEY_HEADS * DIM))?);
        let v = random((total, VALUE_HEADS * DIM))?;
        let decay = (random((total, VALUE_HEADS))? - 1.0)?;
        let beta = ((random((total, VALUE_HEADS))? + 1.0)? / 2.0)?;
        let (cu_seqlens, slots) = (offsets(batch, tokens), slots(batch));
        let mut layer = 0;
        Ok(Box::new(move || {
            layer = (layer + 1) % LAYERS;
            let view = StateLayerView::matrix(LAYERS * elems, layer * elems, [VALUE_HEADS, DIM, DIM]);
            let input = LinearAttentionScan {
                q: &q,
                k: &k,
                v: &v,
                decay: StateDecay::PerHead(&decay),
                beta: Some(&beta),
                scale: 0.088,
                l2_norm: true,
            };
            let batch = StateBatch::new(&cu_seqlens, &slots);
            input.run(&Backend::Cpu.run(), &pool, &view, &batch)?;
            Ok(())
        }))
    };
    let shape = format!("batch {batch}, {tokens} tokens, 32 heads of 128 x 128");
    Case { op, shape, bound, work, target: None, prepare: Box::new(prepare) }
}

/// The down projection of a Llama-8B layer.
fn projection(rows: usize, dtype: DType) -> Case {
    const IN: usize = 14336;
    const OUT: usize = 4096;
    let prepare = move || -> Result<Call> {
        let (x, weight) = (random((rows, IN))?, random((OUT, IN))?.to_dtype(dtype)?);
        Ok(Box::new(move || linear(&Backend::Cpu.run(), &x, &weight).map(drop)))
    };
    let shape = format!("{rows} rows, {IN} to {OUT}, {}", dtype.as_str());
    Case {
        op: "linear",
        shape,
        bound: Bound::Read,
        work: (IN * OUT * dtype.size_in_bytes()) as f64,
        target: None,
        prepare: Box::new(prepare),
    }
}

fn cache_write(tokens: usize) -> Case {
    let work = (2 * 2 * tokens * KV_HEADS * KV_DIM * 4) as f64;
    let prepare = move || -> Result<Call> {
        let view = kv_view();
        let pool = Tensor::zeros((tokens.div_ceil(BLOCK), view.block_elems), DType::F32, &Device::Cpu)?;
        let (k, v) = (random((tokens, KV_HEADS, KV_DIM))?, random((tokens, KV_HEADS, KV_DIM))?);
        let slot_mapping: Vec<i64> = (0..tokens as i64).collect();
        Ok(Box::new(move || KvWrite::new(&k, Some(&v), &slot_mapping).run(&Backend::Cpu.run(), &pool, &view)))
    };
    let shape = format!("{tokens} tokens, 8 KV heads of 128");
    Case { op: "cache write", shape, bound: Bound::Copy, work, target: None, prepare: Box::new(prepare) }
}

fn block_copy() -> Case {
    const PAIRS: u32 = 32;
    let elems = kv_view().block_elems;
    let prepare = move || -> Result<Call> {
        let pool = Tensor::zeros((2 * PAIRS as usize, elems), DType::F32, &Device::Cpu)?;
        let pairs: Vec<(u32, u32)> = (0..PAIRS).map(|i| (i, PAIRS + i)).collect();
        Ok(Box::new(move || PoolRows(&pool).copy(&Backend::Cpu.run(), &pairs)))
    };
    let work = (2 * PAIRS as usize * elems * 4) as f64;
    let shape = format!("{PAIRS} blocks of {} KiB", elems * 4 / 1024);
    Case { op: "block copy", shape, bound: Bound::Copy, work, target: None, prepare: Box::new(prepare) }
}
