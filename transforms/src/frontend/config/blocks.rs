//! Blocks: which dimensions each needs, which keys usually tell them, and how the builder adds it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use cacheplan_handlers::{DType, DecayKind, Ring};

use super::expr::Expr;
use super::layers::check_lists;
use super::values::{Number, Values};
use crate::builder::{Entries, GraphBuilder};
use crate::frontend::{DescriptionPlace, FrontendError};
use crate::graph::Op;
use crate::layers::{Attention, CompressedAttention, FeedForward, LinearAttention, Mamba1, Mamba2, Mla};
use crate::model::Fact;
use crate::near::{Near, near};

/// The most runs of layers in one step that are read, over all layers.
const MAX_RUNS: u64 = 4_096;

/// A kind of block that descriptions can name.
struct Schema {
    name: &'static str,
    /// Each dimension with the expression that tells it unless a description says otherwise; empty for none.
    dims: &'static [(&'static str, &'static str)],
    /// How many weights it has besides its matrices and its convolution: norms, biases, gates. Names of dimensions stand
    /// for their expressions.
    more: &'static str,
    /// How many of them flags add. A description whose `more` speaks of a bias says all of them there.
    bias: &'static str,
    /// The graph's name of these: `more` are whole on every rank, those of a mixer are divided with it.
    more_part: &'static str,
    /// Weights of further matrices of a mixer, which are divided and stored as its others; none where `more` is stated.
    divided: &'static str,
    emit: fn(&mut GraphBuilder, &Dims<'_>) -> Result<(), FrontendError>,
}

const ATTENTION: Schema = Schema {
    name: "attention",
    more: "hidden_size",
    bias: "(attention_bias ?? 0) * (hidden_size + (num_heads + 2 * num_kv_heads) * head_dim)",
    more_part: "more",
    divided: "",
    dims: &attention_dims(""),
    emit: |builder, dims| attention(builder, dims, dims.window()?),
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
        more_part: "more",
        divided: "",
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
    },
    Schema {
        name: "indexer",
        more: "index_n_heads * index_head_dim * q_lora_rank + 2 * index_head_dim + hidden_size * index_n_heads",
        bias: "0",
        more_part: "more",
        divided: "",
        dims: &[("index_head_dim", "index_head_dim"), ("stride", "1"), ("shares_layer", "")],
        emit: |builder, dims| {
            let entries = dims.entries(builder, (Op::INDEXER, ""), "index_head_dim", dims.stated_dtype()?)?;
            builder.index_keys(&entries);
            Ok(())
        },
    },
    Schema {
        name: "entries",
        more: "0",
        bias: "0",
        more_part: "more",
        divided: "",
        // Of one head ranks have the whole vector; several heads they divide as keys.
        dims: &[("width", ""), ("heads", "0"), ("stride", "1"), ("window", ""), ("shares_layer", "")],
        emit: |builder, dims| {
            let mut entries = dims.entries(builder, (Op::ENTRIES, &dims.block.name), "width", dims.kv_dtype()?)?;
            entries.window = dims.window()?;
            builder.entries(dims.suffix(), dims.count("heads")?, &entries);
            Ok(())
        },
    },
    Schema {
        name: "ring",
        more: "0",
        bias: "0",
        more_part: "more",
        divided: "",
        // Rows that are still read when the next token comes; drafted tokens come on top, and rows come in units.
        dims: &[("width", ""), ("rows", ""), ("unit", "1"), ("doubles", "0"), ("shares_layer", "")],
        emit: |builder, dims| {
            let doubles = dims.count("doubles")? > 0;
            let ring = Ring { behind: dims.get("rows")?, unit: dims.get("unit")?, doubles };
            let shares_layer = dims.owner(builder, Op::RING, &dims.block.name)?;
            builder.ring(dims.suffix(), ring, dims.get("width")?, dims.stated_dtype()?, shares_layer);
            Ok(())
        },
    },
    Schema {
        name: "state",
        more: "0",
        bias: "0",
        more_part: "more",
        divided: "",
        dims: &[("rows", "1"), ("width", ""), ("shares_layer", "")],
        emit: |builder, dims| {
            let dtype = dims.stated_dtype()?;
            if dtype.is_none() {
                dims.assume("dtype", "the model's");
            }
            let shares_layer = dims.owner(builder, Op::STATE, &dims.block.name)?;
            builder.state(dims.suffix(), &[dims.get("rows")?, dims.get("width")?], dtype, shares_layer);
            Ok(())
        },
    },
    Schema {
        name: "conv",
        more: "0",
        bias: "0",
        more_part: "more",
        divided: "",
        // Columns are kept of as many tokens as the kernel spans, less its own.
        dims: &[("channels", "hidden_size"), ("d_conv", ""), ("dilation", "1"), ("heads", "0")],
        emit: |builder, dims| {
            let (channels, d_conv) = (dims.get("channels")?, dims.get("d_conv")?);
            let kernel = (d_conv, dims.get("dilation")?);
            builder.conv(dims.suffix(), channels, kernel, dims.count("heads")?, dims.stated_dtype()?);
            Ok(())
        },
    },
    Schema {
        name: "compressed_attention",
        more: "0",
        bias: "0",
        more_part: "more",
        divided: "",
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
    },
    // Weights of a layer that belong to no op.
    Schema { name: "weights", more: "0", bias: "0", more_part: "more", divided: "", dims: &[], emit: |_, _| Ok(()) },
    Schema {
        name: "table",
        more: "0",
        bias: "0",
        more_part: "more",
        divided: "",
        dims: &[("rows", ""), ("width", "")],
        emit: |builder, dims| {
            match dims.find("rows")? {
                Some(0) => {}
                Some(rows) => drop(builder.table(rows, dims.get("width")?, dims.stated_dtype()?)),
                None => builder.forget_weights(|| "nothing says how many rows its n-gram tables have".to_owned()),
            }
            Ok(())
        },
    },
    Schema {
        name: "rwkv4",
        more: "0",
        bias: "0",
        more_part: "mixer.more",
        divided: "",
        dims: &[("width", "attention_hidden_size ?? hidden_size")],
        emit: |builder, dims| {
            builder.rwkv4(dims.get("width")?);
            Ok(())
        },
    },
    Schema {
        name: "mamba1",
        more: "hidden_size + d_inner * (2 + (use_conv_bias ?? mamba_conv_bias ?? 1))",
        bias: "(mamba_proj_bias ?? use_bias ?? 0) * (2 * d_inner + hidden_size)",
        more_part: "mixer.more",
        divided: "",
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
    },
    Schema {
        name: "mamba2",
        more: "hidden_size + num_heads * (3 + head_dim) + (use_conv_bias ?? mamba_conv_bias ?? 1) * (num_heads * head_dim + 2 * n_groups * d_state)",
        bias: "(mamba_proj_bias ?? use_bias ?? 0) * (2 * num_heads * head_dim + 2 * n_groups * d_state + num_heads + hidden_size)",
        more_part: "mixer.more",
        divided: "",
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
    },
    Schema {
        name: "linear_attention",
        more: "hidden_size + num_v_heads * (2 * hidden_size + 2) + head_v_dim",
        bias: "0",
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
    },
    Schema {
        name: "short_conv",
        more: "hidden_size",
        bias: "0",
        more_part: "more",
        divided: "",
        dims: &[("channels", "hidden_size"), ("d_conv", "conv_L_cache ?? 3")],
        emit: |builder, dims| {
            builder.short_conv(dims.get("channels")?, dims.get("d_conv")?);
            Ok(())
        },
    },
    Schema {
        name: "rg_lru",
        more: "2 * hidden_size + 6 * width + 2 * width * width / num_attention_heads",
        bias: "0",
        more_part: "mixer.more",
        divided: "",
        dims: &[("width", "lru_width ?? hidden_size"), ("d_conv", "conv1d_width ?? 4")],
        emit: |builder, dims| {
            builder.rg_lru(dims.get("width")?, dims.get("d_conv")?, dims.state_dtype()?);
            Ok(())
        },
    },
    Schema {
        name: "feed_forward",
        more: "hidden_size",
        bias: "(mlp_bias ?? 0) * ((matrices - 1) * dense_size + hidden_size)",
        more_part: "more",
        divided: "",
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
    },
];

fn attention(builder: &mut GraphBuilder, dims: &Dims<'_>, window: Option<u64>) -> Result<(), FrontendError> {
    let stated = dims.find("shares_layer")?.and_then(|layer| u32::try_from(layer).ok());
    let shares_layer = stated.filter(|&layer| layer != dims.context.layer).or(dims.context.shares_layer);
    let num_heads = dims.get("num_heads")?;
    if let Some(kv_heads) =
        dims.number("num_kv_heads")?.filter(|kv| kv.value > 0 && !num_heads.is_multiple_of(kv.value))
    {
        let expected = format!("a divisor of the {num_heads} attention heads was expected");
        return Err(dims.values.bad_number("num_kv_heads", &kv_heads, &expected));
    }
    builder.attention(&Attention {
        num_heads,
        num_kv_heads: dims.get("num_kv_heads")?,
        head_dim: dims.get("head_dim")?,
        value_dim: dims.find("value_dim")?,
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
            builder.forget_weights(|| dims.values.absent("the feed-forward blocks", &keys));
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

/// A block of a description, ready to be added to layers.
pub(super) struct Block {
    /// What the description calls it.
    name: String,
    schema: &'static Schema,
    dims: Vec<(&'static str, Expr)>,
    more: Expr,
    /// Those that flags add.
    bias: Expr,
    /// The same of weights that ranks divide with the mixer.
    divided: Option<Expr>,
    /// All weights besides `more` and a convolution, where they are not those of the usual matrices.
    weights: Option<Expr>,
    /// How many layers have weights of their own; the layers behind use theirs.
    sets: Option<Expr>,
    /// How many layers have had it.
    seen: Cell<u64>,
    /// Whether a layer of the kind has it.
    when: Option<Expr>,
    /// How often it runs in a step, each time with caches of its own.
    times: Option<Expr>,
    /// How often its layer ran before it, with the same weights.
    after: Option<Expr>,
    /// The names of its caches' dtype, or keys that state one, in turn.
    dtype: Vec<String>,
}

/// The dimensions of one block in one layer.
pub(super) struct Dims<'a> {
    block: &'a Block,
    values: &'a Values<'a>,
    context: LayerContext<'a>,
}

/// What a block must know of the layer that it is added to.
#[derive(Clone, Copy)]
pub(super) struct LayerContext<'a> {
    /// The absolute layer.
    pub(super) layer: u32,
    /// How many layers there are.
    pub(super) layers: u32,
    /// Where its dimensions are written down, if it is the first layer of its kind.
    pub(super) notes: Option<&'a RefCell<Vec<Fact>>>,
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
        if let Some((_, why)) = fault(name, overrides) {
            return Err(why);
        }
        let schema = schema(base(name, overrides))?;
        let mut dims = Vec::with_capacity(schema.dims.len());
        for &(dim, usual) in schema.dims {
            let text = overrides.and_then(|table| table.get(dim)).map_or(usual, String::as_str);
            if !text.is_empty() {
                dims.push((dim, Expr::parse(text)?));
            }
        }
        let stated = |key: &str| overrides.and_then(|table| table.get(key)).map(String::as_str);
        let of_dims = |text: &str| {
            let expr = Expr::parse(text)?;
            Ok::<_, String>(expr.with(&|key| dims.iter().find(|(dim, _)| *dim == key).map(|(_, expr)| expr)))
        };
        let more = of_dims(stated("more").unwrap_or(schema.more))?;
        let speaks_of_biases = stated("more").is_some_and(|more| more.contains("bias"));
        let bias = of_dims(stated("bias").unwrap_or(if speaks_of_biases { "0" } else { schema.bias }))?;
        let usual = if stated("more").is_some() { "" } else { schema.divided };
        let divided =
            Some(stated("divided").unwrap_or(usual)).filter(|text| !text.is_empty()).map(of_dims).transpose()?;
        let weights = stated("weights").map(of_dims).transpose()?;
        let parsed = ["sets", "when", "times", "after"].map(|key| stated(key).map(Expr::parse).transpose());
        let [sets, when, times, after] = parsed;
        let (sets, when, times, after) = (sets?, when?, times?, after?);
        let dtype = stated("dtype").into_iter().flat_map(|words| words.split("??"));
        let dtype = dtype.map(|word| word.trim().to_owned()).collect();
        let (name, seen) = (name.to_owned(), Cell::new(0));
        Ok(Self { name, schema, dims, more, bias, divided, weights, sets, seen, when, times, after, dtype })
    }

    /// What tells its dimensions, and whether and how often it is there.
    pub(super) fn dims(&self) -> impl Iterator<Item = &Expr> {
        let own = self.dims.iter().map(|(_, expr)| expr);
        own.chain(&self.when).chain(&self.times).chain(&self.after)
    }

    /// Whether its dtype is stated under `key`.
    pub(super) fn has_dtype_of(&self, key: &str) -> bool {
        self.dtype.iter().any(|word| word == key)
    }

    /// Refuses lists that name layers which there are not.
    pub(super) fn check_lists(&self, values: &Values<'_>, layers: u32) -> Result<(), FrontendError> {
        self.dims().try_for_each(|expr| check_lists(expr, values, layers))
    }

    /// Adds the block to the builder's current layer.
    pub(super) fn emit(
        &self,
        builder: &mut GraphBuilder,
        values: &Values<'_>,
        context: LayerContext<'_>,
    ) -> Result<(), FrontendError> {
        let dims = Dims { block: self, values, context };
        if let Some(when) = &self.when
            && values.eval(when, context.layer)?.is_none_or(|number| number.value == 0)
        {
            return Ok(());
        }
        let again = self.is_seen_in_full(values, context.layer)?;
        builder.count_elsewhere(again || self.weights.is_some());
        for run in dims.runs()? {
            builder.run(run);
            let emitted = (self.schema.emit)(builder, &dims);
            builder.run(0);
            emitted?;
        }
        builder.count_elsewhere(false);
        if again || self.after.is_some() {
            return Ok(());
        }
        // Biases that no flag adds need no size.
        let biases = Some(&self.bias).filter(|_| self.has_biases(values, context.layer));
        let more = std::iter::once(&self.more).chain(biases).map(|more| (self.schema.more_part, more));
        let matrices = self.weights.iter().chain(&self.divided).map(|matrices| ("mixer.divided", matrices));
        for (part, expr) in more.chain(matrices) {
            // It serves the estimate of the weights only, so that no model is refused for it.
            match values.eval(expr, context.layer) {
                Ok(Some(number)) => builder.more_weights(part, number.value),
                Ok(None) => {
                    let what = format!("the block `{}`", self.name);
                    builder.forget_weights(|| values.absent(&what, &expr.keys()));
                }
                Err(error) => builder.forget_weights(|| error.to_string()),
            }
        }
        Ok(())
    }
}

impl Block {
    /// Whether its biases can be told, or a flag that adds some is on although they cannot.
    fn has_biases(&self, values: &Values<'_>, layer: u32) -> bool {
        let is_on = |key: &str| match values.eval(&Expr::Key(key.to_owned()), layer) {
            Ok(flag) => flag.is_some_and(|flag| flag.value > 0),
            Err(_) => true,
        };
        let mut flags = self.bias.keys().into_iter().filter(|key| key.contains("bias"));
        values.eval(&self.bias, layer).is_ok_and(|bias| bias.is_some()) || flags.any(is_on)
    }

    /// Whether as many layers had it as have weights of their own.
    fn is_seen_in_full(&self, values: &Values<'_>, layer: u32) -> Result<bool, FrontendError> {
        let sets = self.sets.as_ref().map(|sets| values.eval(sets, layer)).transpose()?.flatten();
        let seen = self.seen.replace(self.seen.get() + 1);
        Ok(sets.is_some_and(|sets| sets.value <= seen))
    }
}

/// What every block can say beside its dimensions.
const SAID: [&str; 10] = ["block", "more", "bias", "divided", "weights", "sets", "when", "times", "after", "dtype"];

impl Schema {
    fn keys(&self) -> impl Iterator<Item = &'static str> {
        self.dims.iter().map(|(dim, _)| *dim).chain(SAID)
    }

    fn has(&self, key: &str) -> bool {
        self.keys().any(|known| known == key)
    }

    fn lacks(&self, block: &str, key: &str) -> String {
        let (near, dims) = (near(key, self.keys()), self.dims.iter().map(|(dim, _)| *dim).collect::<Vec<_>>());
        format!("block `{block}` has no dimension `{key}`{}; it has {}", Near(&near), dims.join(", "))
    }
}

fn schema(name: &str) -> Result<&'static Schema, String> {
    let known = || SCHEMAS.iter().map(|schema| schema.name);
    SCHEMAS.iter().find(|schema| schema.name == name).ok_or_else(|| {
        let (near, known) = (near(name, known()), known().collect::<Vec<_>>().join(", "));
        format!("unknown block `{name}`{}; known are {known}", Near(&near))
    })
}

/// The kind of block that it is.
fn base<'a>(name: &'a str, overrides: Option<&'a BTreeMap<String, String>>) -> &'a str {
    overrides.and_then(|table| table.get("block")).map_or(name, String::as_str)
}

/// The key of a block that is wrong, and why; no key where its name is.
pub(super) fn fault<'a>(
    name: &str,
    overrides: Option<&'a BTreeMap<String, String>>,
) -> Option<(Option<&'a str>, String)> {
    let stated = || overrides.into_iter().flatten().map(|(key, text)| (key.as_str(), text));
    let schema = match schema(base(name, overrides)) {
        Ok(schema) => schema,
        Err(why) => return Some((stated().map(|(key, _)| key).find(|key| *key == "block"), why)),
    };
    if let Some((key, _)) = stated().find(|(key, _)| !schema.has(key)) {
        return Some((Some(key), schema.lacks(name, key)));
    }
    let mut expressions = stated().filter(|(key, _)| !matches!(*key, "block" | "dtype"));
    expressions.find_map(|(key, text)| Some((Some(key), Expr::parse(text).err().filter(|_| !text.is_empty())?)))
}

impl Dims<'_> {
    fn expr(&self, dim: &str) -> Option<&Expr> {
        self.block.dims.iter().find(|(name, _)| *name == dim).map(|(_, expr)| expr)
    }

    /// A dimension that the block may do without.
    fn find(&self, dim: &str) -> Result<Option<u64>, FrontendError> {
        Ok(self.number(dim)?.map(|number| number.value))
    }

    fn number(&self, dim: &str) -> Result<Option<Number<'_>>, FrontendError> {
        let Some(expr) = self.expr(dim) else { return Ok(None) };
        let number = self.values.eval(expr, self.context.layer)?;
        if let Some(number) = &number {
            self.values.check_count(dim, number)?;
        }
        if let (Some(notes), Some(number)) = (self.context.notes, &number) {
            let fact = self.values.remember(&format!("{}.{dim}", self.block.name), number);
            let mut notes = notes.borrow_mut();
            if !notes.contains(&fact) {
                notes.push(fact);
            }
        }
        Ok(number)
    }

    /// Writes down what nothing states.
    fn assume(&self, what: &str, value: &str) {
        if self.context.notes.is_some() {
            let name = format!("{}.{what}", self.block.name);
            self.values.note(name, &value, "the architecture's default", true);
        }
    }

    /// What its caches are called: as the description calls the block.
    fn suffix(&self) -> String {
        self.block.name.clone()
    }

    /// The runs of the block in one step; a layer that does not loop has one.
    fn runs(&self) -> Result<std::ops::Range<u64>, FrontendError> {
        let eval = |expr: &'_ Option<Expr>| match expr {
            Some(expr) => self.values.eval(expr, self.context.layer).map(|number| number.map(|number| number.value)),
            None => Ok(None),
        };
        let after = eval(&self.block.after)?.unwrap_or(0);
        let Some(expr) = &self.block.times else { return Ok(after..after + 1) };
        let Some(times) = self.values.eval(expr, self.context.layer)? else {
            return Err(self.values.missing(&format!("{}.times", self.block.name), Some(expr)));
        };
        self.values.check_count("times", &times)?;
        if times.value == 0 && after == 0 {
            return Err(self.values.bad_number("times", &times, "at least 1 was expected"));
        }
        let all = times.value.saturating_add(after).saturating_mul(self.context.layers.into());
        if all > MAX_RUNS {
            let expected = format!("at most {MAX_RUNS} runs of layers in a step are read");
            return Err(self.values.bad_number("times", &times, &expected));
        }
        Ok(after..after + times.value)
    }

    /// The dtype that the description states for the block's caches, if it does.
    fn stated_dtype(&self) -> Result<Option<DType>, FrontendError> {
        for word in &self.block.dtype {
            if let Ok(dtype) = word.parse() {
                return Ok(Some(dtype));
            }
            if let Some((dtype, _)) = self.values.dtype(&[word])? {
                return Ok(Some(dtype));
            }
        }
        match self.block.dtype.last() {
            None => Ok(None),
            Some(word) => Err(FrontendError::Description {
                model_type: self.values.model_type.clone(),
                place: Box::new(DescriptionPlace::of(&["blocks", &self.block.name, "dtype"])),
                reason: format!(
                    "block `{}`: `{word}` is no dtype, and no key of the config; end with one such as `?? f32`",
                    self.block.name
                ),
            }),
        }
    }

    /// The dtype that the model states for recurrent states, else the block's own.
    fn state_dtype(&self) -> Result<Option<DType>, FrontendError> {
        Ok(self.context.dtypes[0].or(self.stated_dtype()?))
    }

    /// The dtype that the model states for keys, values and latents, else the block's own.
    fn kv_dtype(&self) -> Result<Option<DType>, FrontendError> {
        Ok(self.context.dtypes[1].or(self.stated_dtype()?))
    }

    /// The earlier layer whose caches of such an op it reads instead of having its own; `part` tells them from others of
    /// that op which a layer may have.
    fn owner(&self, builder: &GraphBuilder, op: &'static str, part: &str) -> Result<Option<u32>, FrontendError> {
        let Some(expr) = self.expr("shares_layer") else { return Ok(None) };
        let what = format!("{}.shares_layer", self.block.name);
        let number = self.number("shares_layer")?.ok_or_else(|| self.values.missing(&what, Some(expr)))?;
        let layer = u32::try_from(number.value).unwrap_or(u32::MAX);
        if layer == self.context.layer || builder.has(layer, op, part) {
            return Ok(Some(layer).filter(|&layer| layer != self.context.layer));
        }
        let block = &self.block.name;
        let expected = format!("layer {} reads its `{block}`, of which that layer has none", self.context.layer);
        Err(self.values.bad_number(&what, &number, &expected))
    }

    /// Entries of so many tokens each, its own or those of an earlier layer, which must be alike.
    fn entries(
        &self,
        builder: &GraphBuilder,
        (op, part): (&'static str, &str),
        width: &'static str,
        dtype: Option<DType>,
    ) -> Result<Entries, FrontendError> {
        let shares_layer = self.owner(builder, op, part)?;
        let (width, stride) = (self.get(width)?, self.get("stride")?);
        if let Some((owner, number)) = shares_layer.zip(self.number("stride")?)
            && let Some(theirs) = builder.stride_of(owner, op, part).filter(|&theirs| theirs != stride)
        {
            let expected = format!("layer {owner}, whose `{}` it reads, has one for {theirs} tokens", self.block.name);
            return Err(self.values.bad_number("stride", &number, &expected));
        }
        Ok(Entries { width, stride, window: None, dtype, shares_layer })
    }

    /// A window that the block may do without.
    fn window(&self) -> Result<Option<u64>, FrontendError> {
        match self.number("window")? {
            Some(window) if window.value == 0 => {
                Err(self.values.bad_number("window", &window, "at least 1 was expected"))
            }
            window => Ok(window.map(|window| window.value)),
        }
    }

    /// A number that the block cannot do without, and that may be 0.
    fn count(&self, dim: &str) -> Result<u64, FrontendError> {
        self.find(dim)?.ok_or_else(|| self.values.missing(&format!("{}.{dim}", self.block.name), self.expr(dim)))
    }

    /// A dimension that the block cannot do without.
    fn get(&self, dim: &str) -> Result<u64, FrontendError> {
        match self.number(dim)? {
            Some(number) if number.value > 0 => Ok(number.value),
            Some(number) => Err(self.values.bad_number(dim, &number, "at least 1 was expected")),
            None => Err(self.values.missing(&format!("{}.{dim}", self.block.name), self.expr(dim))),
        }
    }
}
