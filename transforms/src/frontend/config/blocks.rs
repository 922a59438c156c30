//! Kinds of blocks: which dimensions each needs, which keys usually tell them, and how the builder adds it.

use cacheplan_handlers::{DecayKind, Ring};

use super::dims::Dims;
use crate::builder::GraphBuilder;
use crate::frontend::FrontendError;
use crate::graph::Op;
use crate::layers::{Attention, CompressedAttention, FeedForward, LinearAttention, Mamba1, Mamba2, Mla};
use crate::near::{Near, near};

/// A kind of block that descriptions can name.
pub(super) struct Schema {
    pub(super) name: &'static str,
    /// Each dimension with the expression that tells it unless a description says otherwise; empty for none.
    pub(super) dims: &'static [(&'static str, &'static str)],
    /// How many weights it has besides its matrices and its convolution: norms, biases, gates. Names of dimensions stand
    /// for their expressions.
    pub(super) more: &'static str,
    /// How many of them flags add. A description whose `more` speaks of a bias says all of them there.
    pub(super) bias: &'static str,
    /// The graph's name of these: `more` are whole on every rank, those of a mixer are divided with it.
    pub(super) more_part: &'static str,
    /// Weights of further matrices of a mixer, which are divided and stored as its others; none where `more` is stated.
    pub(super) divided: &'static str,
    pub(super) emit: fn(&mut GraphBuilder, &Dims<'_>) -> Result<(), FrontendError>,
}

/// What is true of a kind unless it says otherwise.
const PLAIN: Schema =
    Schema { name: "", dims: &[], more: "0", bias: "0", more_part: "more", divided: "", emit: |_, _| Ok(()) };

const ATTENTION: Schema = Schema {
    name: "attention",
    more: "hidden_size",
    bias: "(attention_bias ?? 0) * (hidden_size + (num_heads + 2 * num_kv_heads) * head_dim)",
    dims: &attention_dims(""),
    emit: |builder, dims| attention(builder, dims, dims.window()?),
    ..PLAIN
};

const fn attention_dims(window: &'static str) -> [(&'static str, &'static str); 6] {
    [
        ("num_heads", "num_attention_heads"),
        ("num_kv_heads", "num_key_value_heads ?? num_attention_heads"),
        ("head_dim", "head_dim ?? hidden_size / num_attention_heads"),
        ("value_dim", ""),
        ("window", window),
        ("shares_layer", ""),
    ]
}

const SCHEMAS: &[Schema] = &[
    ATTENTION,
    Schema {
        name: "sliding_attention",
        dims: &attention_dims("sliding_window"),
        emit: |builder, dims| attention(builder, dims, Some(dims.get("window")?)),
        ..ATTENTION
    },
    Schema {
        name: "mla",
        more: "hidden_size + kv_lora_rank + (q_lora_rank ?? 0)",
        bias: "(attention_bias ?? 0) * (hidden_size + kv_lora_rank + qk_rope_head_dim + (q_lora_rank ?? 0))",
        dims: &[
            ("num_heads", "num_attention_heads"),
            ("q_lora_rank", "q_lora_rank"),
            ("kv_lora_rank", "kv_lora_rank"),
            ("qk_nope_head_dim", "qk_nope_head_dim"),
            ("qk_rope_head_dim", "qk_rope_head_dim"),
            ("v_head_dim", "v_head_dim ?? qk_nope_head_dim"),
            ("window", ""),
            ("shares_layer", ""),
        ],
        emit: |builder, dims| {
            builder.mla(&Mla {
                num_heads: dims.get("num_heads")?,
                q_lora_rank: dims.find("q_lora_rank")?,
                kv_lora_rank: dims.get("kv_lora_rank")?,
                qk_nope_head_dim: dims.get("qk_nope_head_dim")?,
                qk_rope_head_dim: dims.count("qk_rope_head_dim")?,
                v_head_dim: dims.get("v_head_dim")?,
                window: dims.window()?,
                cache_dtype: dims.kv_dtype()?,
                shares_layer: dims.owner(builder, Op::MLA, "")?,
            });
            Ok(())
        },
        ..PLAIN
    },
    Schema {
        name: "indexer",
        more: "index_n_heads * index_head_dim * q_lora_rank + 2 * index_head_dim + hidden_size * index_n_heads",
        dims: &[("index_head_dim", "index_head_dim"), ("stride", "1"), ("shares_layer", "")],
        emit: |builder, dims| {
            let entries = dims.entries(builder, (Op::INDEXER, ""), "index_head_dim", dims.stated_dtype()?)?;
            builder.index_keys(&entries);
            Ok(())
        },
        ..PLAIN
    },
    Schema {
        name: "entries",
        // Of one head ranks have the whole vector; several heads they divide as keys.
        dims: &[("width", ""), ("heads", "0"), ("stride", "1"), ("window", ""), ("shares_layer", "")],
        emit: |builder, dims| {
            let mut entries = dims.entries(builder, (Op::ENTRIES, dims.block), "width", dims.kv_dtype()?)?;
            entries.window = dims.window()?;
            builder.entries(dims.suffix(), dims.count("heads")?, &entries);
            Ok(())
        },
        ..PLAIN
    },
    Schema {
        name: "ring",
        // Rows that are still read when the next token comes; drafted tokens come on top, and rows come in units.
        dims: &[("width", ""), ("rows", ""), ("unit", "1"), ("doubles", "0"), ("shares_layer", "")],
        emit: |builder, dims| {
            let doubles = dims.count("doubles")? > 0;
            let ring = Ring { behind: dims.get("rows")?, unit: dims.get("unit")?, doubles };
            let shares_layer = dims.owner(builder, Op::RING, dims.block)?;
            builder.ring(dims.suffix(), ring, dims.get("width")?, dims.stated_dtype()?, shares_layer);
            Ok(())
        },
        ..PLAIN
    },
    Schema {
        name: "state",
        dims: &[("rows", "1"), ("width", ""), ("shares_layer", "")],
        emit: |builder, dims| {
            let dtype = dims.stated_dtype()?;
            if dtype.is_none() {
                dims.assume("dtype", "the model's");
            }
            let shares_layer = dims.owner(builder, Op::STATE, dims.block)?;
            builder.state(dims.suffix(), &[dims.get("rows")?, dims.get("width")?], dtype, shares_layer);
            Ok(())
        },
        ..PLAIN
    },
    Schema {
        name: "conv",
        // Columns are kept of as many tokens as the kernel spans, less its own.
        dims: &[("channels", "hidden_size"), ("d_conv", ""), ("dilation", "1"), ("heads", "0")],
        emit: |builder, dims| {
            let (channels, d_conv) = (dims.get("channels")?, dims.get("d_conv")?);
            let kernel = (d_conv, dims.get("dilation")?);
            builder.conv(dims.suffix(), channels, kernel, dims.count("heads")?, dims.stated_dtype()?);
            Ok(())
        },
        ..PLAIN
    },
    Schema {
        name: "compressed_attention",
        dims: &[
            ("num_heads", "num_attention_heads"),
            ("head_dim", "head_dim"),
            ("window", "sliding_window"),
            ("ratio", "compress_ratios"),
            ("index_head_dim", "index_head_dim"),
        ],
        emit: |builder, dims| {
            builder.compressed_attention(&CompressedAttention {
                num_heads: dims.get("num_heads")?,
                head_dim: dims.get("head_dim")?,
                window: dims.get("window")?,
                ratio: dims.count("ratio")?,
                index_head_dim: dims.find("index_head_dim")?,
                cache_dtype: dims.kv_dtype()?,
            });
            Ok(())
        },
        ..PLAIN
    },
    // Weights of a layer that belong to no op.
    Schema { name: "weights", ..PLAIN },
    Schema {
        name: "table",
        dims: &[("rows", ""), ("width", "")],
        emit: |builder, dims| {
            match dims.find("rows")? {
                Some(0) => {}
                Some(rows) => drop(builder.table(rows, dims.get("width")?, dims.stated_dtype()?)),
                None => builder.forget_weights(|| "nothing says how many rows its n-gram tables have".to_owned()),
            }
            Ok(())
        },
        ..PLAIN
    },
    Schema {
        name: "rwkv4",
        more_part: "mixer.more",
        dims: &[("width", "attention_hidden_size ?? hidden_size")],
        emit: |builder, dims| {
            builder.rwkv4(dims.get("width")?);
            Ok(())
        },
        ..PLAIN
    },
    Schema {
        name: "mamba1",
        more: "hidden_size + d_inner * (2 + (use_conv_bias ?? mamba_conv_bias ?? 1))",
        bias: "(mamba_proj_bias ?? use_bias ?? 0) * (2 * d_inner + hidden_size)",
        more_part: "mixer.more",
        dims: &[
            ("d_inner", "intermediate_size ?? d_inner ?? expand * hidden_size"),
            ("d_state", "state_size ?? 16"),
            ("d_conv", "conv_kernel ?? 4"),
            ("dt_rank", "time_step_rank ?? (hidden_size + 15) // 16"),
        ],
        emit: |builder, dims| {
            builder.mamba1(&Mamba1 {
                d_inner: dims.get("d_inner")?,
                d_state: dims.get("d_state")?,
                d_conv: dims.get("d_conv")?,
                dt_rank: dims.get("dt_rank")?,
                state_dtype: dims.state_dtype()?,
            });
            Ok(())
        },
        ..PLAIN
    },
    Schema {
        name: "mamba2",
        more: "hidden_size + num_heads * (3 + head_dim) + (use_conv_bias ?? mamba_conv_bias ?? 1) * (num_heads * head_dim + 2 * n_groups * d_state)",
        bias: "(mamba_proj_bias ?? use_bias ?? 0) * (2 * num_heads * head_dim + 2 * n_groups * d_state + num_heads + hidden_size)",
        more_part: "mixer.more",
        dims: &[
            ("num_heads", "mamba_n_heads"),
            ("head_dim", "mamba_d_head"),
            ("d_state", "mamba_d_state"),
            ("n_groups", "mamba_n_groups ?? 1"),
            ("d_conv", "mamba_d_conv ?? 4"),
        ],
        emit: |builder, dims| {
            builder.mamba2(&Mamba2 {
                num_heads: dims.get("num_heads")?,
                head_dim: dims.get("head_dim")?,
                d_state: dims.get("d_state")?,
                n_groups: dims.find("n_groups")?.unwrap_or(1),
                d_conv: dims.get("d_conv")?,
                state_dtype: dims.state_dtype()?,
            });
            Ok(())
        },
        ..PLAIN
    },
    Schema {
        name: "linear_attention",
        more: "hidden_size + num_v_heads * (2 * hidden_size + 2) + head_v_dim",
        more_part: "mixer.more",
        divided: "hidden_size * num_v_heads * head_v_dim",
        dims: &[
            ("num_k_heads", "linear_num_key_heads"),
            ("num_v_heads", "linear_num_value_heads"),
            ("head_k_dim", "linear_key_head_dim"),
            ("head_v_dim", "linear_value_head_dim"),
            ("delta_rule", "1"),
            // Decays of a head at a token: one, one per key channel, or none where the layer fixes them.
            ("decays", "1"),
            ("d_conv", "linear_conv_kernel_dim ?? 4"),
        ],
        emit: |builder, dims| {
            builder.linear_attention(&LinearAttention {
                num_k_heads: dims.get("num_k_heads")?,
                num_v_heads: dims.get("num_v_heads")?,
                head_k_dim: dims.get("head_k_dim")?,
                head_v_dim: dims.get("head_v_dim")?,
                delta_rule: dims.count("delta_rule")? > 0,
                decay: match dims.count("decays")? {
                    0 => DecayKind::Fixed,
                    1 => DecayKind::PerHead,
                    _ => DecayKind::PerChannel,
                },
                // A width of 1 sees nothing but the token itself; one of 0 is a mistake.
                d_conv: Some(dims.get("d_conv")?).filter(|&width| width > 1),
                state_dtype: dims.state_dtype()?,
            });
            Ok(())
        },
        ..PLAIN
    },
    Schema {
        name: "short_conv",
        more: "hidden_size",
        dims: &[("channels", "hidden_size"), ("d_conv", "conv_L_cache ?? 3")],
        emit: |builder, dims| {
            builder.short_conv(dims.get("channels")?, dims.get("d_conv")?);
            Ok(())
        },
        ..PLAIN
    },
    Schema {
        name: "rg_lru",
        more: "2 * hidden_size + 6 * width + 2 * width * width / num_attention_heads",
        more_part: "mixer.more",
        dims: &[("width", "lru_width ?? hidden_size"), ("d_conv", "conv1d_width ?? 4")],
        emit: |builder, dims| {
            builder.rg_lru(dims.get("width")?, dims.get("d_conv")?, dims.state_dtype()?);
            Ok(())
        },
        ..PLAIN
    },
    Schema {
        name: "feed_forward",
        more: "hidden_size",
        bias: "(mlp_bias ?? 0) * ((matrices - 1) * dense_size + hidden_size)",
        dims: &[
            ("dense_size", "intermediate_size"),
            ("expert_size", "moe_intermediate_size ?? intermediate_size"),
            ("experts", "n_routed_experts ?? num_experts ?? num_local_experts"),
            (
                "experts_per_token",
                "num_experts_per_tok ?? num_experts_per_token ?? moe_k ?? moe_topk ?? moe_top_k ?? top_k_experts ?? expert_used_count ?? 1",
            ),
            ("dense_layers", "first_k_dense_replace"),
            ("shared_size", "n_shared_experts * moe_intermediate_size ?? shared_expert_intermediate_size"),
            ("latent_size", ""),
            ("matrices", "3"),
        ],
        emit: feed_forward,
        ..PLAIN
    },
];

fn attention(builder: &mut GraphBuilder, dims: &Dims<'_>, window: Option<u64>) -> Result<(), FrontendError> {
    let stated = dims.find("shares_layer")?.and_then(|layer| u32::try_from(layer).ok());
    let shares_layer = stated.filter(|&layer| layer != dims.context.layer).or(dims.context.shares_layer);
    let (num_heads, head_dim) = (dims.get("num_heads")?, dims.get("head_dim")?);
    if let Some(kv_heads) =
        dims.number("num_kv_heads")?.filter(|kv| kv.value > 0 && !num_heads.is_multiple_of(kv.value))
    {
        let expected = format!("a divisor of the {num_heads} attention heads was expected");
        return Err(dims.values.bad_number("num_kv_heads", &kv_heads, &expected));
    }
    builder.attention(&Attention {
        num_heads,
        num_kv_heads: dims.get("num_kv_heads")?,
        head_dim,
        value_dim: dims.find("value_dim")?.filter(|&channels| channels != head_dim),
        window,
        cache_dtype: dims.kv_dtype()?,
        shares_layer,
    });
    Ok(())
}

/// Feed-forward blocks hold no cache, so that a model whose sizes are absent or odd is read all the same: without an
/// estimate of its weights, and without a block that a decoder could run.
fn feed_forward(builder: &mut GraphBuilder, dims: &Dims<'_>) -> Result<(), FrontendError> {
    match feed_forward_sizes(dims) {
        Ok(Some(sizes)) => drop(builder.feed_forward(&sizes)),
        Ok(None) => {
            let sizes = ["dense_size", "expert_size"].into_iter().filter_map(|dim| dims.expr(dim));
            let keys: Vec<&str> = sizes.flat_map(|size| size.keys()).collect();
            builder.forget_weights(|| dims.values.absent("the feed-forward blocks", &keys, dims.context.layer));
        }
        Err(error) => builder.forget_weights(|| error.to_string()),
    }
    Ok(())
}

fn feed_forward_sizes(dims: &Dims<'_>) -> Result<Option<FeedForward>, FrontendError> {
    let listed = dims.values.entry("mlp_layer_types", dims.context.layer).map(|kind| kind == "dense");
    let dense = match listed {
        Some(dense) => dense,
        None => u64::from(dims.context.layer) < dims.find("dense_layers")?.unwrap_or(0),
    };
    let experts = dims.find("experts")?.filter(|_| !dense).unwrap_or(0);
    let size = dims.find(if experts == 0 { "dense_size" } else { "expert_size" })?;
    let shared_size = dims.find("shared_size")?.filter(|_| experts > 0).unwrap_or(0);
    let latent_size = dims.find("latent_size")?.filter(|&channels| channels > 0 && experts > 0);
    let matrices = dims.find("matrices")?.unwrap_or(3);
    let experts_per_token = if experts == 0 { 0 } else { dims.find("experts_per_token")?.unwrap_or(1).min(experts) };
    Ok(size.map(|intermediate_size| FeedForward {
        intermediate_size,
        matrices,
        experts,
        experts_per_token,
        shared_size,
        latent_size,
    }))
}

/// What every block can say beside its dimensions.
const SAID: [&str; 10] = ["block", "more", "bias", "divided", "weights", "sets", "when", "times", "after", "dtype"];

impl Schema {
    fn keys(&self) -> impl Iterator<Item = &'static str> {
        self.dims.iter().map(|(dim, _)| *dim).chain(SAID)
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.keys().any(|known| known == key)
    }

    pub(super) fn lacks(&self, block: &str, key: &str) -> String {
        let (near, dims) = (near(key, self.keys()), self.dims.iter().map(|(dim, _)| *dim).collect::<Vec<_>>());
        format!("block `{block}` has no dimension `{key}`{}; it has {}", Near(&near), dims.join(", "))
    }
}

pub(super) fn schema(name: &str) -> Result<&'static Schema, String> {
    let known = || SCHEMAS.iter().map(|schema| schema.name);
    SCHEMAS.iter().find(|schema| schema.name == name).ok_or_else(|| {
        let (near, known) = (near(name, known()), known().collect::<Vec<_>>().join(", "));
        format!("unknown block `{name}`{}; known are {known}", Near(&near))
    })
}
