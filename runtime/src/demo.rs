//! A small hybrid model inside the library: every kind of cache, and one that a framework would add itself.

use cacheplan_handlers::{DType, ResourceHandler};
use cacheplan_kernels::GateOrder;
use cacheplan_planner::{Base, Budget, DeviceInfo, DeviceKind, Fraction, Memory, Policy};
use cacheplan_transforms::{
    Attention as AttentionOp, Cache, Descriptor, FeedForward, GraphBuilder, Mamba2 as Mamba2Op, Model, Registry, Stage,
};
use candle_core::Device;

use crate::decoder::{Block, Decoder};
use crate::error::RuntimeError;
use crate::generate::Request;
use crate::layers::{
    Activation, Attention, AttentionShape, CausalConv, Linear, Mamba2, Mamba2Shape, Mixer, Mlp, MlpShape, Moe, RmsNorm,
    Routing, TokenShift,
};
use crate::session::{Session, SessionOptions};
use crate::weights::{Scope, Weights};

const HIDDEN: usize = 64;
const VOCAB_SIZE: usize = 256;
const INTERMEDIATE: usize = 128;
const EXPERTS: usize = 4;
const NORM_EPS: f64 = 1e-5;
const TOKEN_SHIFT: &str = "demo.token_shift";

const ATTENTION: AttentionShape = AttentionShape { hidden: HIDDEN, heads: 4, kv_heads: 2, head_dim: 16, bias: false };

const MAMBA2: Mamba2Shape = Mamba2Shape {
    hidden: HIDDEN,
    heads: 8,
    head_dim: 16,
    d_state: 16,
    n_groups: 2,
    d_conv: 4,
    activation: Activation::Silu,
    conv_bias: true,
    in_bias: false,
    out_bias: false,
    norm_eps: NORM_EPS as f32,
    gate: GateOrder::GateThenNorm,
    dt_limit: (0.0, f32::INFINITY),
};

const MLP: MlpShape =
    MlpShape { hidden: HIDDEN, intermediate: INTERMEDIATE, bias: false, activation: Activation::Relu2 };

const ROUTING: Routing = Routing::softmax(EXPERTS, 2, true);

/// What each layer does.
#[derive(Clone, Copy)]
enum Layer {
    Mamba,
    Attention,
    Mlp,
    Moe,
    /// Keeps the previous token's input, in a state that the library knows nothing of.
    TokenShift,
}

const LAYERS: [Layer; 7] =
    [Layer::Mamba, Layer::Mlp, Layer::Attention, Layer::Mamba, Layer::Moe, Layer::TokenShift, Layer::Attention];

/// Plans and allocates the demo's caches and invents its weights.
///
/// The plan is made for a device of 64 MiB, whatever the real one has, so that a plan, its measurement and its resize
/// can be compared between machines.
///
/// # Errors
/// A device without the memory.
pub fn session(device: Device) -> Result<Session, RuntimeError> {
    let budget = Budget {
        // The original's rule: it leaves generic states to local allocation, so that the demo shows both owners.
        grouping: Some(Policy::FirstReference),
        max_seq_len: Some(512),
        max_num_tokens: Some(128),
        tokens_per_block: Some(16),
        memory: Some(Memory { fraction: Fraction::new(0.9), of: Some(Base::Free), ..Memory::default() }),
        ..Budget::default()
    };
    let device_info =
        DeviceInfo { name: "demo".to_owned(), total_bytes: 64 << 20, free_bytes: 64 << 20, kind: DeviceKind::Cpu };
    let mut registry = Registry::default();
    registry.register(Descriptor::new(TOKEN_SHIFT, Stage::InsertCustomCaches, |op| {
        let hidden = op.dim("hidden", "x", 2)?;
        Ok(vec![Cache { suffix: "token_shift".into(), handler: ResourceHandler::state(&[1, hidden], DType::F32)? }])
    }));
    let options =
        SessionOptions { budget, device, device_info: Some(device_info), registry, ..SessionOptions::default() };
    Session::new(model(), options, |_, device| decoder(&Weights::invented(candle_core::DType::F32, device)))
}

/// Three prompts of different lengths.
pub fn requests() -> Vec<Request> {
    let prompt = |start: u32, len: u32| (start..start + len).map(|token| token * 7 % VOCAB_SIZE as u32).collect();
    [(1, 40), (50, 9), (120, 150)]
        .into_iter()
        .map(|(start, len)| Request { prompt: prompt(start, len), max_new_tokens: 16 })
        .collect()
}

/// The model as a graph.
fn model() -> Model {
    let size = |size: usize| size as u64;
    let feed_forward = |experts: usize| FeedForward {
        intermediate_size: size(INTERMEDIATE),
        matrices: 2,
        experts: size(experts),
        shared_size: 0,
    };
    let mut builder = GraphBuilder::new("demo_hybrid", size(HIDDEN), DType::F32);
    builder.vocabulary(size(VOCAB_SIZE), false);
    for layer in LAYERS {
        builder.layer();
        match layer {
            Layer::Mamba => builder.mamba2(&Mamba2Op {
                num_heads: size(MAMBA2.heads),
                head_dim: size(MAMBA2.head_dim),
                d_state: size(MAMBA2.d_state),
                n_groups: size(MAMBA2.n_groups),
                d_conv: size(MAMBA2.d_conv),
                state_dtype: None,
            }),
            Layer::Attention => builder.attention(&AttentionOp::grouped(
                size(ATTENTION.heads),
                size(ATTENTION.kv_heads),
                size(ATTENTION.head_dim),
            )),
            Layer::Mlp => builder.feed_forward(&feed_forward(0)),
            Layer::Moe => builder.feed_forward(&feed_forward(EXPERTS)),
            Layer::TokenShift => builder.custom("token_shift", TOKEN_SHIFT, &[]).feed_forward(&feed_forward(0)),
        };
    }
    builder.build()
}

/// The model as a decoder.
fn decoder(weights: &Weights) -> Result<Decoder, RuntimeError> {
    let blocks = (0..).zip(LAYERS).map(|(layer, kind)| {
        let scope = weights.scope("layers").enter(layer);
        Ok(Block::boxed(norm(&scope.enter("norm"))?, mixer(kind, layer, &scope)?))
    });
    let blocks = blocks.collect::<Result<_, RuntimeError>>()?;
    let embedding = weights.get("embed_tokens.weight", (VOCAB_SIZE, HIDDEN))?;
    Decoder::new(embedding, blocks, norm(&weights.scope("norm"))?, weights, false)
}

fn mixer(kind: Layer, layer: u32, weights: &Scope<'_>) -> Result<Box<dyn Mixer>, RuntimeError> {
    let mixer: Box<dyn Mixer> = match kind {
        Layer::Mamba => Box::new(Mamba2::load(weights, layer, MAMBA2)?),
        Layer::Attention => Box::new(Attention::load(weights, layer, ATTENTION, None)?),
        Layer::Mlp => Box::new(Mlp::load_plain(weights, MLP)?),
        Layer::Moe => Box::new(Moe {
            routing: ROUTING,
            router: Linear::load(&weights.enter("gate"), HIDDEN, EXPERTS, false)?,
            correction: None,
            experts: (0..EXPERTS).map(|i| Mlp::load_plain(&weights.enter(i), MLP)).collect::<Result<_, _>>()?,
            latent: None,
            shared: None,
        }),
        Layer::TokenShift => Box::new(TokenShift {
            layer,
            mix: CausalConv::new(weights.get("mix", (2, HIDDEN))?),
            mlp: Mlp::load_plain(weights, MLP)?,
        }),
    };
    Ok(mixer)
}

fn norm(weights: &Scope<'_>) -> Result<RmsNorm, RuntimeError> {
    Ok(RmsNorm::load(weights, HIDDEN, NORM_EPS)?)
}
