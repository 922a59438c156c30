//! A small hybrid model inside the library: every kind of cache, and one that a framework would add itself.

use cacheplan_handlers::{DType, ResourceHandler};
use cacheplan_kernels::{Backend, GateOrder, Routing};
use cacheplan_planner::{Budget, DeviceInfo, Grouping, Memory};
use cacheplan_transforms::layers::{Attention as AttentionSpec, BlockSpec, FeedForward, Mamba2 as Mamba2Spec};
use cacheplan_transforms::registry::{Cache, Descriptor};
use cacheplan_transforms::{GraphBuilder, Model};

use crate::block::Block;
use crate::decoder::Decoder;
use crate::error::{Result, RuntimeError};
use crate::layers::{
    Activation, Attention, CausalConv, ExpertMlps, Linear, Mamba2, Mamba2Rules, Mamba2Shape, Mixer, Mlp, Moe,
    TokenShift, size,
};
use crate::models::{self, Layer, TensorNames};
use crate::request::Request;
use crate::session::{Session, SessionOptions};
use crate::weights::Weights;

const HIDDEN: u64 = 64;
const VOCAB_SIZE: u64 = 256;
const EXPERTS: u64 = 4;
const NORM_EPS: f64 = 1e-5;
const TOKEN_SHIFT: &str = "demo.token_shift";

const ATTENTION: AttentionSpec = AttentionSpec::grouped(4, 2, 16);

const MAMBA2: Mamba2Spec =
    Mamba2Spec { num_heads: 8, head_dim: 16, d_state: 16, n_groups: 2, d_conv: 4, state_dtype: None };

const MLP: FeedForward = FeedForward {
    intermediate_size: 128,
    matrices: 2,
    experts: 0,
    experts_per_token: 0,
    shared_size: 0,
    latent_size: None,
};

const MAMBA2_RULES: Mamba2Rules = Mamba2Rules {
    activation: Activation::Silu,
    conv_bias: true,
    in_bias: false,
    out_bias: false,
    norm_eps: NORM_EPS as f32,
    gate: GateOrder::GateThenNorm,
    dt_limit: (0.0, f32::INFINITY),
};

impl Session {
    /// Plans and allocates the demo's caches and invents its weights.
    ///
    /// The plan is made for a device of 64 MiB, whatever the real one has, so that a plan, its measurement and its resize
    /// can be compared between machines.
    ///
    /// # Errors
    /// A device without the memory.
    pub fn demo(backend: Backend) -> Result<Self> {
        let budget = Budget {
            // The original's rule: it leaves generic states to local allocation, so that the demo shows both owners.
            grouping: Some(Grouping::FirstReference),
            max_seq_len: Some(512),
            max_num_tokens: Some(128),
            tokens_per_block: Some(16),
            memory: Memory::of_free(0.9),
            ..Budget::default()
        };
        let device_info = DeviceInfo::cpu("demo", 64 << 20, 64 << 20);
        let descriptor = Descriptor::new(TOKEN_SHIFT, |op| {
            let hidden = op.dim("hidden", "x", 2)?;
            Ok(vec![Cache { suffix: "token_shift".into(), handler: ResourceHandler::state(&[1, hidden], DType::F32)? }])
        });
        let options = SessionOptions {
            budget,
            backend,
            device_info: Some(device_info),
            descriptors: vec![descriptor],
            ..SessionOptions::default()
        };
        Self::new(model(), options, |model, on| decoder(model, &Weights::invented(candle_core::DType::F32, on)))
    }
}

impl Request {
    /// Three prompts of different lengths.
    pub fn demo() -> Vec<Self> {
        let prompt = |start: u32, len: u32| (start..start + len).map(|token| token * 7 % VOCAB_SIZE as u32).collect();
        [(1, 40), (50, 9), (120, 150)].into_iter().map(|(start, len)| Self::new(prompt(start, len), 16)).collect()
    }
}

fn model() -> Model {
    let mut builder = GraphBuilder::new("demo_hybrid", HIDDEN, DType::F32);
    builder.vocabulary(VOCAB_SIZE, false);
    builder.layer();
    builder.mamba2(&MAMBA2);
    builder.layer();
    builder.feed_forward(&MLP);
    builder.layer();
    builder.attention(&ATTENTION);
    builder.layer();
    builder.mamba2(&MAMBA2);
    builder.layer();
    builder.feed_forward(&FeedForward { experts: EXPERTS, experts_per_token: 1, ..MLP });
    builder.layer();
    // Keeps the previous token's input, in a state that the library knows nothing of.
    builder.custom("token_shift", TOKEN_SHIFT, &[]).feed_forward(&MLP);
    builder.layer();
    builder.attention(&ATTENTION);
    builder.build()
}

fn decoder(model: &Model, weights: &Weights) -> Result<Decoder> {
    let frame = TensorNames { root: "", ..TensorNames::new(NORM_EPS, false) };
    models::decoder(model, weights, frame, |layer| Ok(vec![Block::boxed(layer.norm("norm")?, mixer(layer)?)]))
}

fn mixer(layer: &Layer<'_>) -> Result<Box<dyn Mixer>> {
    let plain = |sizes: &FeedForward| layer.mlp(sizes.intermediate_size, Activation::Relu2);
    let weights = &layer.weights;
    let mixer: Box<dyn Mixer> = match layer.blocks {
        [BlockSpec::Mamba2(dims)] => {
            Box::new(Mamba2::load(weights, layer.index, Mamba2Shape::new(layer.hidden, dims), MAMBA2_RULES)?)
        }
        [BlockSpec::Attention(dims)] => {
            Box::new(Attention::load(weights, layer.index, layer.attention(dims, false)?, None)?)
        }
        [BlockSpec::FeedForward(sizes @ FeedForward { experts: 0, .. })] => {
            Box::new(Mlp::load_plain(weights, plain(sizes))?)
        }
        [BlockSpec::FeedForward(sizes)] => {
            let experts = ExpertMlps::load(weights.backend(), size(sizes.experts), |expert| {
                Mlp::load_plain(&weights.enter(expert), plain(sizes)).map_err(RuntimeError::from)
            })?;
            let router = Linear::load(&weights.enter("gate"), layer.hidden, size(sizes.experts), false)?;
            Box::new(Moe::new(Routing::softmax(size(sizes.experts), 2, true), router, experts))
        }
        [BlockSpec::Op(_), BlockSpec::FeedForward(sizes)] => Box::new(TokenShift {
            layer: layer.index,
            mix: CausalConv::new(weights.get("mix", (2, layer.hidden))?),
            mlp: Mlp::load_plain(weights, plain(sizes))?,
        }),
        _ => return Err(layer.refuse("the layers that it was made with")),
    };
    Ok(mixer)
}
