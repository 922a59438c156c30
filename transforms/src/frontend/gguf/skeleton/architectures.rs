//! Which architecture of llama.cpp a model is converted to, and how its layers differ from a Llama's.
//!
//! Read in `src/models` of llama.cpp b11434, and asked of b11549 what it lacks; a file of another shape is refused by the engine, never misread.

/// One architecture.
pub(super) struct Architecture {
    /// Its name in files.
    pub(super) name: &'static str,
    /// The model types that its converter takes.
    pub(super) model_types: &'static [&'static str],
    /// Norms of the feed-forward block.
    pub(super) norms: &'static [&'static str],
    /// Queries and keys have a norm over a head.
    pub(super) head_norms: bool,
    /// Queries come with a gate as wide as they are.
    pub(super) gated_queries: bool,
    /// Its feed-forward block.
    pub(super) feed: Feed,
    /// Latents are multiplied out into heads before they are kept.
    pub(super) expands_latents: bool,
    /// What its linear attention is made of.
    pub(super) linear: Linear,
    /// Mamba-1 has norms of its step and of B and C.
    pub(super) mamba_norms: bool,
    /// Numbers by the last part of their key that no other architecture asks for.
    pub(super) keys: &'static [(&'static str, u32)],
    /// The same for numbers that are not whole.
    pub(super) floats: &'static [(&'static str, f32)],
}

/// Linear attention.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Linear {
    /// Gated delta net.
    Delta,
    /// The same, with its decay and write strength in one projection.
    JoinedDelta,
    /// Kimi delta attention, with its output gate in two narrow matrices.
    Kda,
    /// The same with a whole one.
    GatedKda,
    /// Lightning attention.
    Lightning,
}

/// A feed-forward block, the narrowest that an architecture takes: no cache depends on it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Feed {
    /// No layer has any.
    None,
    /// Gate, up and down.
    Dense,
    /// Up and down.
    Ungated,
    /// Gate and up in one matrix, and down.
    Joined,
    /// Experts.
    Experts,
    /// Experts and one that every token passes.
    Shared,
    /// The same, and a gate for that one.
    GatedShared,
    /// Experts, router and attention with biases, and a sink for each head.
    Biased,
    /// The same as `Shared`, with a biased router.
    SharedBiased,
    /// Gate, up and down; where an indexer chooses tokens the same as `SharedBiased`.
    SharedWhereIndexed,
}

const LLAMA: Architecture = Architecture {
    name: "llama",
    model_types: &["llama", "mistral", "mixtral"],
    norms: &["ffn_norm"],
    head_norms: false,
    gated_queries: false,
    feed: Feed::Dense,
    expands_latents: false,
    linear: Linear::Delta,
    mamba_norms: false,
    keys: &[],
    floats: &[],
};

/// What is asked of experts also where no layer has any: one that every token passes, and a router with sigmoids.
const SHARED_SIGMOID: &[(&str, u32)] = &[("expert_shared_count", 1), ("expert_gating_func", 2)];

/// Streams of hidden rows that DeepSeek-V4 mixes.
pub(super) const STREAMS: u32 = 4;

/// Every architecture that can be written.
pub(super) static ARCHITECTURES: &[Architecture] = &[
    LLAMA,
    Architecture { name: "qwen2", model_types: &["qwen2"], ..LLAMA },
    Architecture { name: "smollm3", model_types: &["smollm3"], ..LLAMA },
    Architecture { name: "phi3", model_types: &["phi3"], feed: Feed::Joined, ..LLAMA },
    Architecture { name: "qwen3", model_types: &["qwen3"], head_norms: true, ..LLAMA },
    Architecture { name: "qwen3moe", model_types: &["qwen3_moe"], feed: Feed::Experts, head_norms: true, ..LLAMA },
    Architecture { name: "hunyuan-dense", model_types: &["hunyuan_v1_dense"], head_norms: true, ..LLAMA },
    Architecture { name: "hunyuan-moe", model_types: &["hunyuan"], feed: Feed::Shared, head_norms: true, ..LLAMA },
    Architecture {
        name: "glm4moe",
        model_types: &["glm4_moe"],
        norms: &["post_attention_norm"],
        keys: &[("expert_shared_count", 1)],
        ..LLAMA
    },
    Architecture {
        name: "llama4",
        model_types: &["llama4", "llama4_text"],
        keys: &[("interleave_moe_layer_step", 0)],
        ..LLAMA
    },
    Architecture { name: "deci", model_types: &["nemotron-nas"], ..LLAMA },
    Architecture {
        name: "gemma2",
        model_types: &["gemma2"],
        norms: &["post_attention_norm", "ffn_norm", "post_ffw_norm"],
        ..LLAMA
    },
    Architecture {
        name: "gemma3",
        model_types: &["gemma3", "gemma3_text"],
        norms: &["post_attention_norm", "ffn_norm", "post_ffw_norm"],
        head_norms: true,
        ..LLAMA
    },
    Architecture {
        name: "gemma4",
        model_types: &["gemma4", "gemma4_text"],
        norms: &["post_attention_norm", "ffn_norm", "post_ffw_norm"],
        head_norms: true,
        keys: &[("embedding_length_per_layer_input", 0)],
        ..LLAMA
    },
    Architecture {
        name: "gpt-oss",
        model_types: &["gpt_oss"],
        norms: &["post_attention_norm"],
        feed: Feed::Biased,
        ..LLAMA
    },
    Architecture { name: "mamba", model_types: &["mamba", "falcon_mamba"], feed: Feed::None, ..LLAMA },
    Architecture { name: "mamba2", model_types: &["mamba2", "mamba_ssm"], feed: Feed::None, ..LLAMA },
    Architecture { name: "jamba", model_types: &["jamba"], mamba_norms: true, ..LLAMA },
    Architecture { name: "nemotron_h", model_types: &["nemotron_h"], norms: &[], feed: Feed::Ungated, ..LLAMA },
    Architecture { name: "granitehybrid", model_types: &["granitemoehybrid", "bamba"], ..LLAMA },
    Architecture { name: "falcon-h1", model_types: &["falcon_h1"], ..LLAMA },
    Architecture { name: "lfm2", model_types: &["lfm2"], head_norms: true, ..LLAMA },
    Architecture {
        name: "qwen3next",
        model_types: &["qwen3_next"],
        norms: &["post_attention_norm"],
        head_norms: true,
        gated_queries: true,
        feed: Feed::GatedShared,
        linear: Linear::JoinedDelta,
        ..LLAMA
    },
    Architecture {
        name: "qwen35",
        model_types: &["qwen3_5", "qwen3_5_text"],
        norms: &["post_attention_norm"],
        head_norms: true,
        gated_queries: true,
        ..LLAMA
    },
    Architecture {
        name: "qwen35moe",
        model_types: &["qwen3_5_moe", "qwen3_5_moe_text"],
        norms: &["post_attention_norm"],
        head_norms: true,
        gated_queries: true,
        feed: Feed::GatedShared,
        ..LLAMA
    },
    Architecture {
        name: "deepseek2",
        model_types: &["deepseek_v2", "deepseek_v3", "kimi_k2", "glm4_moe_lite"],
        keys: &[("expert_shared_count", 1)],
        ..LLAMA
    },
    Architecture { name: "deepseek32", model_types: &["deepseek_v32"], keys: SHARED_SIGMOID, ..LLAMA },
    Architecture {
        name: "deepseek4",
        model_types: &["deepseek_v4"],
        norms: &["ffn_norm"],
        feed: Feed::SharedBiased,
        // Its router takes the root of a softplus; the four streams are what its graph is built for.
        keys: &[
            ("expert_shared_count", 1),
            ("expert_gating_func", 4),
            ("hyper_connection.count", STREAMS),
            ("hyper_connection.sinkhorn_iterations", 1),
            ("hash_layer_count", 0),
        ],
        floats: &[
            ("expert_weights_scale", 1.0),
            ("swiglu_clamp_exp", 1.0),
            ("hyper_connection.epsilon", 1e-6),
            ("attention.compress_rope_freq_base", 1e4),
        ],
        ..LLAMA
    },
    Architecture { name: "glm-dsa", model_types: &["glm_moe_dsa"], keys: SHARED_SIGMOID, ..LLAMA },
    Architecture {
        name: "kimi-linear",
        model_types: &["kimi_linear"],
        linear: Linear::Kda,
        keys: SHARED_SIGMOID,
        ..LLAMA
    },
    Architecture {
        name: "kimi-k3",
        model_types: &["kimi_k3"],
        linear: Linear::GatedKda,
        keys: &[("expert_shared_count", 1), ("expert_gating_func", 2), ("attn_res.block_size", 12)],
        floats: &[("activation.situ_beta", 1.0), ("activation.situ_linear_beta", 1.0), ("expert_weights_scale", 1.0)],
        ..LLAMA
    },
    Architecture {
        name: "minimax-01",
        model_types: &["minimax_text_01", "minimax_m1"],
        feed: Feed::Experts,
        linear: Linear::Lightning,
        floats: &[("residual_scale", 1.0)],
        ..LLAMA
    },
    Architecture {
        name: "minimax-m3",
        model_types: &["minimax_m3"],
        head_norms: true,
        feed: Feed::SharedWhereIndexed,
        keys: SHARED_SIGMOID,
        ..LLAMA
    },
    Architecture {
        name: "plamo2",
        model_types: &["plamo2"],
        norms: &["post_attention_norm", "ffn_norm", "post_ffw_norm"],
        feed: Feed::Joined,
        mamba_norms: true,
        ..LLAMA
    },
    Architecture { name: "minicpm3", model_types: &["minicpm3"], expands_latents: true, ..LLAMA },
];
