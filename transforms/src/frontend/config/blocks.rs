//! Blocks: which dimensions each needs, which keys usually tell them, and how the builder adds it.

use std::collections::BTreeMap;

use cacheplan_handlers::DType;

use super::expr::Expr;
use super::values::Values;
use crate::builder::{Attention, CompressedAttention, FeedForward, GraphBuilder, LinearAttention, Mamba1, Mamba2, Mla};
use crate::frontend::FrontendError;

/// A kind of block that descriptions can name.
struct Schema {
    name: &'static str,
    /// Each dimension with the expression that tells it unless a description says otherwise; empty for none.
    dims: &'static [(&'static str, &'static str)],
    emit: fn(&mut GraphBuilder, &Dims<'_>) -> Result<(), FrontendError>,
}

const SCHEMAS: &[Schema] = &[
    Schema {
        name: "attention",
        dims: &[
            ("num_heads", "num_attention_heads"),
            ("num_kv_heads", "num_key_value_heads ?? num_attention_heads"),
            ("head_dim", "head_dim ?? hidden_size / num_attention_heads"),
            ("shares_layer", ""),
        ],
        emit: |builder, dims| attention(builder, dims, None),
    },
    Schema {
        name: "sliding_attention",
        dims: &[
            ("num_heads", "num_attention_heads"),
            ("num_kv_heads", "num_key_value_heads ?? num_attention_heads"),
            ("head_dim", "head_dim ?? hidden_size / num_attention_heads"),
            ("window", "sliding_window"),
            ("shares_layer", ""),
        ],
        emit: |builder, dims| attention(builder, dims, Some(dims.get("window")?)),
    },
    Schema {
        name: "mla",
        dims: &[
            ("num_heads", "num_attention_heads"),
            ("q_lora_rank", "q_lora_rank"),
            ("kv_lora_rank", "kv_lora_rank"),
            ("qk_nope_head_dim", "qk_nope_head_dim"),
            ("qk_rope_head_dim", "qk_rope_head_dim"),
            ("v_head_dim", "v_head_dim ?? qk_nope_head_dim"),
        ],
        emit: |builder, dims| {
            builder.mla(&Mla {
                num_heads: dims.get("num_heads")?,
                q_lora_rank: dims.find("q_lora_rank")?,
                kv_lora_rank: dims.get("kv_lora_rank")?,
                qk_nope_head_dim: dims.get("qk_nope_head_dim")?,
                qk_rope_head_dim: dims.get("qk_rope_head_dim")?,
                v_head_dim: dims.get("v_head_dim")?,
                cache_dtype: dims.context.dtypes[1],
            });
            Ok(())
        },
    },
    Schema {
        name: "indexer",
        dims: &[("index_head_dim", "index_head_dim")],
        emit: |builder, dims| {
            builder.indexer(dims.get("index_head_dim")?);
            Ok(())
        },
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
                ratio: dims.find("ratio")?.unwrap_or(0),
                index_head_dim: dims.find("index_head_dim")?,
                cache_dtype: dims.context.dtypes[1],
            });
            Ok(())
        },
    },
    Schema {
        name: "rwkv4",
        dims: &[("width", "attention_hidden_size ?? hidden_size")],
        emit: |builder, dims| {
            builder.rwkv4(dims.get("width")?);
            Ok(())
        },
    },
    Schema {
        name: "mamba1",
        dims: &[
            ("d_inner", "intermediate_size ?? d_inner ?? expand * hidden_size"),
            ("d_state", "state_size ?? 16"),
            ("d_conv", "conv_kernel ?? 4"),
            ("dt_rank", "time_step_rank ?? 1"),
        ],
        emit: |builder, dims| {
            builder.mamba1(&Mamba1 {
                d_inner: dims.get("d_inner")?,
                d_state: dims.get("d_state")?,
                d_conv: dims.get("d_conv")?,
                dt_rank: dims.get("dt_rank")?,
                state_dtype: dims.context.dtypes[0],
            });
            Ok(())
        },
    },
    Schema {
        name: "mamba2",
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
                state_dtype: dims.context.dtypes[0],
            });
            Ok(())
        },
    },
    Schema {
        name: "linear_attention",
        dims: &[
            ("num_k_heads", "linear_num_key_heads"),
            ("num_v_heads", "linear_num_value_heads"),
            ("head_k_dim", "linear_key_head_dim"),
            ("head_v_dim", "linear_value_head_dim"),
            ("d_conv", "linear_conv_kernel_dim ?? 4"),
        ],
        emit: |builder, dims| {
            builder.linear_attention(&LinearAttention {
                num_k_heads: dims.get("num_k_heads")?,
                num_v_heads: dims.get("num_v_heads")?,
                head_k_dim: dims.get("head_k_dim")?,
                head_v_dim: dims.get("head_v_dim")?,
                d_conv: dims.find("d_conv")?.filter(|&width| width > 1),
                state_dtype: dims.context.dtypes[0],
            });
            Ok(())
        },
    },
    Schema {
        name: "short_conv",
        dims: &[("channels", "hidden_size"), ("d_conv", "conv_L_cache ?? 3")],
        emit: |builder, dims| {
            builder.short_conv(dims.get("channels")?, dims.get("d_conv")?);
            Ok(())
        },
    },
    Schema {
        name: "rg_lru",
        dims: &[("width", "lru_width ?? hidden_size"), ("d_conv", "conv1d_width ?? 4")],
        emit: |builder, dims| {
            builder.rg_lru(dims.get("width")?, dims.get("d_conv")?, dims.context.dtypes[0]);
            Ok(())
        },
    },
    Schema {
        name: "feed_forward",
        dims: &[
            ("dense_size", "intermediate_size"),
            ("expert_size", "moe_intermediate_size ?? intermediate_size"),
            ("experts", "n_routed_experts ?? num_experts ?? num_local_experts"),
            ("dense_layers", "first_k_dense_replace"),
            ("shared_size", "n_shared_experts * moe_intermediate_size ?? shared_expert_intermediate_size"),
            ("matrices", "3"),
        ],
        emit: feed_forward,
    },
];

fn attention(builder: &mut GraphBuilder, dims: &Dims<'_>, window: Option<u64>) -> Result<(), FrontendError> {
    let stated = dims.find("shares_layer")?.and_then(|layer| u32::try_from(layer).ok());
    let shares_layer = stated.filter(|&layer| layer != dims.context.layer).or(dims.context.shares_layer);
    builder.attention(&Attention {
        num_heads: dims.get("num_heads")?,
        num_kv_heads: dims.get("num_kv_heads")?,
        head_dim: dims.get("head_dim")?,
        window,
        cache_dtype: dims.context.dtypes[1],
        shares_layer,
    });
    Ok(())
}

/// Feed-forward blocks hold no cache; their dimensions only serve the estimate of the weights and may be absent.
fn feed_forward(builder: &mut GraphBuilder, dims: &Dims<'_>) -> Result<(), FrontendError> {
    let dense = u64::from(dims.context.layer) < dims.find("dense_layers")?.unwrap_or(0);
    let experts = dims.find("experts")?.filter(|_| !dense).unwrap_or(0);
    let size = dims.find(if experts == 0 { "dense_size" } else { "expert_size" })?;
    let shared_size = dims.find("shared_size")?.filter(|_| experts > 0).unwrap_or(0);
    let matrices = dims.find("matrices")?.unwrap_or(3);
    match size {
        Some(intermediate_size) => {
            builder.feed_forward(&FeedForward { intermediate_size, matrices, experts, shared_size });
        }
        None => builder.forget_weights(),
    }
    Ok(())
}

/// A block of a description, ready to be added to layers.
pub(super) struct Block {
    /// What the description calls it.
    name: String,
    schema: &'static Schema,
    dims: Vec<(&'static str, Expr)>,
}

/// The dimensions of one block in one layer.
pub(super) struct Dims<'a> {
    block: &'a Block,
    values: &'a Values<'a>,
    context: LayerContext,
}

/// What a block must know of the layer that it is added to.
#[derive(Clone, Copy)]
pub(super) struct LayerContext {
    /// The absolute layer.
    pub(super) layer: u32,
    /// Whether this is the first layer of its kind, whose dimensions are written down.
    pub(super) first: bool,
    /// The layer whose keys and values it reads.
    pub(super) shares_layer: Option<u32>,
    /// The element types that the model states for states and for keys.
    pub(super) dtypes: [Option<DType>; 2],
}

impl Block {
    /// The block called `name`, with the expressions of a description in place of the usual ones.
    ///
    /// Errors are reasons for a wrong description.
    pub(super) fn new(name: &str, overrides: Option<&BTreeMap<String, String>>) -> Result<Self, String> {
        let base = overrides.and_then(|table| table.get("block")).map_or(name, String::as_str);
        let schema = SCHEMAS.iter().find(|schema| schema.name == base);
        let schema = schema.ok_or_else(|| format!("unknown block `{base}`; known are {}", known()))?;
        if let Some(key) = overrides.into_iter().flat_map(BTreeMap::keys).find(|key| !schema.has(key)) {
            return Err(format!("block `{name}` has no dimension `{key}`"));
        }
        let mut dims = Vec::with_capacity(schema.dims.len());
        for &(dim, usual) in schema.dims {
            let text = overrides.and_then(|table| table.get(dim)).map_or(usual, String::as_str);
            if !text.is_empty() {
                dims.push((dim, Expr::parse(text)?));
            }
        }
        Ok(Self { name: name.to_owned(), schema, dims })
    }

    /// Adds the block to the builder's current layer.
    pub(super) fn emit(
        &self,
        builder: &mut GraphBuilder,
        values: &Values<'_>,
        context: LayerContext,
    ) -> Result<(), FrontendError> {
        (self.schema.emit)(builder, &Dims { block: self, values, context })
    }
}

impl Schema {
    fn has(&self, key: &str) -> bool {
        key == "block" || self.dims.iter().any(|(dim, _)| *dim == key)
    }
}

fn known() -> String {
    SCHEMAS.iter().map(|schema| schema.name).collect::<Vec<_>>().join(", ")
}

impl Dims<'_> {
    fn expr(&self, dim: &str) -> Option<&Expr> {
        self.block.dims.iter().find(|(name, _)| *name == dim).map(|(_, expr)| expr)
    }

    /// A dimension that the block may do without.
    fn find(&self, dim: &str) -> Result<Option<u64>, FrontendError> {
        let Some(expr) = self.expr(dim) else { return Ok(None) };
        let number = self.values.eval(expr, self.context.layer)?;
        if let (true, Some(number)) = (self.context.first, &number) {
            self.values.remember(&format!("{}.{dim}", self.block.name), number);
        }
        Ok(number.map(|number| number.value))
    }

    /// A dimension that the block cannot do without.
    fn get(&self, dim: &str) -> Result<u64, FrontendError> {
        match self.find(dim)? {
            Some(value) if value > 0 => Ok(value),
            _ => Err(self.values.missing(&format!("{}.{dim}", self.block.name), self.expr(dim))),
        }
    }
}
