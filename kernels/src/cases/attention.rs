//! Attention over paged pools, and writes into them.

use super::{Case, Data, Sequences, Work, name, tolerance};
use crate::{
    KernelError, KvLayerView, KvQuant, KvScales, KvWrite, PagedAttention, PagedBatch, Rope, RopeScaling, Window,
};
use cacheplan_handlers::KvLayout;
use candle_core::{DType, Device, Tensor};

/// How a pool lays out a layer.
#[derive(Clone, Copy, Debug)]
pub struct Format {
    pub kv_heads: usize,
    pub head_dim: usize,
    /// 2 for keys and values, 1 for latents.
    pub kv_factor: usize,
    /// Tokens of a block.
    pub block: usize,
    pub order: KvLayout,
    pub pool: DType,
    /// How numbers of 8 bits are scaled; nothing to any other pool.
    pub scales: Scales,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scales {
    PerTensor,
    PerHead,
    PerToken,
}

impl Format {
    /// The layer alone, or between others of its blocks.
    fn view(&self, beside: usize) -> KvLayerView {
        let Self { kv_heads, head_dim, kv_factor, block, order, .. } = *self;
        let mut view = KvLayerView {
            block_elems: 0,
            layer_offset: beside * head_dim,
            kv_factor,
            num_kv_heads: kv_heads,
            head_dim,
            tokens_per_block: block,
            order,
        };
        view.block_elems = view.layer_elems() + 2 * view.layer_offset;
        view
    }

    fn variant(&self, input: DType) -> String {
        let order = if self.order == KvLayout::Hnd { "" } else { ", NHD" };
        let scales = if self.is_scaled() { format!(", {:?} scales", self.scales) } else { String::new() };
        format!("{} pool, {}{scales}{order}", name(self.pool), name(input))
    }

    fn is_scaled(&self) -> bool {
        matches!(self.pool, DType::F8E4M3 | DType::U8)
    }

    /// Bytes that a token takes.
    fn token_bytes(&self) -> usize {
        self.kv_factor * self.kv_heads * self.head_dim * self.pool.size_in_bytes()
    }

    fn sizes(&self) -> Vec<(&'static str, usize)> {
        vec![("kv_heads", self.kv_heads), ("head_dim", self.head_dim), ("block", self.block)]
    }
}

/// The scales of numbers of 8 bits, for as long as a call borrows them.
struct Quant {
    per_head: Vec<f32>,
    per_token: Tensor,
}

impl Quant {
    fn new(format: &Format, data: &mut Data, blocks: usize) -> Result<Self, KernelError> {
        let rows = format.kv_factor * format.kv_heads * format.block;
        let blocks = if format.scales == Scales::PerToken { blocks } else { 0 };
        let per_token = match data {
            // Positive, as scales are.
            Data::Random(_) | Data::Dense(_) => data.between(0.002, 0.02, &[blocks, rows], DType::F32)?,
            Data::Blank => Tensor::ones((blocks, rows), DType::F32, &Device::Cpu)?,
        };
        Ok(Self { per_head: (1..=format.kv_heads).map(|head| 0.01 / head as f32).collect(), per_token })
    }

    fn of(&self, format: &Format) -> Option<KvQuant<'_>> {
        format.is_scaled().then_some(match format.scales {
            Scales::PerTensor => KvScales { k: 0.01, v: 0.004 }.into(),
            Scales::PerHead => KvQuant::PerHead { k: &self.per_head, v: &self.per_head },
            Scales::PerToken => KvQuant::PerToken(&self.per_token),
        })
    }
}

/// What a model may ask of attention beside scores.
#[derive(Clone, Copy, Debug, Default)]
pub struct Features {
    pub window: Option<Window>,
    pub softcap: Option<f32>,
    pub sinks: bool,
    pub alibi: bool,
}

impl Features {
    fn variant(self) -> String {
        let window = self.window.map(|window| format!(", {window:?}")).unwrap_or_default();
        let others = [(self.softcap.is_some(), ", soft cap"), (self.sinks, ", sinks"), (self.alibi, ", ALiBi")];
        others.iter().filter(|(has, _)| *has).fold(window, |text, (_, name)| text + name)
    }
}

/// `PagedAttention`.
#[derive(Clone, Copy, Debug)]
pub struct Attention {
    pub format: Format,
    /// Query heads of a KV head.
    pub group: usize,
    pub value_dim: usize,
    pub input: DType,
    pub features: Features,
}

impl Attention {
    pub fn case(self, of: Sequences) -> Case {
        let Self { format, group, value_dim, input, features } = self;
        let heads = group * format.kv_heads;
        let (tokens, longest) = (of.tokens(), of.longest());
        let contexts: usize = of.contexts.iter().map(|&context| context as usize).sum();
        let latent = format.kv_factor == 1;
        let op = match (latent, longest) {
            (false, 0 | 1) => "attention decode",
            (false, 2..=16) => "attention of few tokens",
            (false, _) => "attention prefill",
            (true, 0 | 1) => "MLA decode",
            (true, 2..=16) => "MLA of few tokens",
            (true, _) => "MLA prefill",
        };
        // Scores and sums over what each token sees, causally.
        let seen: usize = of
            .cu_seqlens
            .windows(2)
            .zip(&of.contexts)
            .map(|(rows, &context)| {
                let (queries, context) = ((rows[1] - rows[0]) as usize, context as usize);
                if context == 0 { 0 } else { queries * context - queries * queries.saturating_sub(1) / 2 }
            })
            .sum();
        let activations = tokens * heads * (format.head_dim + value_dim) * input.size_in_bytes();
        let work = Work {
            bytes: (contexts * format.token_bytes() + activations) as u64,
            flops: 2 * (seen * heads * (format.head_dim + value_dim)) as u64,
        };
        let own = [
            ("batch", of.len()),
            ("tokens", longest),
            ("context", of.contexts.iter().copied().max().unwrap_or(0) as usize),
        ];
        Case {
            op,
            sizes: [own.to_vec(), vec![("heads", heads)], format.sizes()].concat(),
            variant: format!("{}{}", format.variant(input), features.variant()),
            tolerance: tolerance(&[input]),
            work,
            prepare: Box::new(move |data| {
                let view = format.view(if data.is_poisoned() { 2 } else { 0 });
                let of = of.clone();
                let paged = Paged::new(&of, format.block);
                let pool = data.tensor(&[paged.blocks, view.block_elems], format.pool)?;
                let quant = Quant::new(&format, data, paged.blocks)?;
                let q = data.rows(&of, heads * format.head_dim, input)?;
                // Heads of padded rows lie apart, as a projection leaves them.
                let q = q.reshape((tokens, heads, format.head_dim))?;
                let sinks: Vec<f32> = (0..heads).map(|head| head as f32 / 4.0 - 1.0).collect();
                let slopes: Vec<f32> = (1..=heads).map(|head| 1.0 / head as f32).collect();
                Ok(Box::new(move |on| {
                    let attention = PagedAttention {
                        softcap: features.softcap,
                        window: features.window.unwrap_or(Window::Full),
                        sinks: features.sinks.then_some(&sinks),
                        alibi_slopes: features.alibi.then_some(&slopes),
                        quant: quant.of(&format),
                        ..PagedAttention::new((format.head_dim as f32).powf(-0.5), value_dim)
                    };
                    let batch = PagedBatch::new(&of.cu_seqlens, &of.contexts, &paged.tables, paged.max_blocks);
                    Ok(vec![attention.run(on, &q, &pool, &view, &batch)?])
                }))
            }),
        }
    }
}

/// Block tables: blocks of all sequences in turn, from the last to the first.
struct Paged {
    tables: Vec<i32>,
    max_blocks: usize,
    blocks: usize,
}

impl Paged {
    fn new(of: &Sequences, block: usize) -> Self {
        let blocks_of = |context: u32| (context as usize).div_ceil(block);
        let max_blocks = of.contexts.iter().map(|&context| blocks_of(context)).max().unwrap_or(0);
        let mut blocks: usize = 1 + of.contexts.iter().map(|&context| blocks_of(context)).sum::<usize>();
        let mut tables = vec![-1; of.len() * max_blocks];
        let held = blocks;
        for logical in 0..max_blocks {
            for (sequence, &context) in of.contexts.iter().enumerate() {
                if logical < blocks_of(context) {
                    blocks -= 1;
                    tables[sequence * max_blocks + logical] = blocks as i32;
                }
            }
        }
        Self { tables, max_blocks, blocks: held }
    }
}

/// `KvWrite`, and `Rope` where keys are rotated.
#[derive(Clone, Copy, Debug)]
pub struct CacheWrite {
    pub format: Format,
    pub tokens: usize,
    pub input: DType,
    /// Elements that are rotated, of queries of so many heads too, and whether pairs are neighbours.
    pub rotated: Option<(usize, usize, bool)>,
}

impl CacheWrite {
    pub fn case(self) -> Case {
        let Self { format, tokens, input, rotated } = self;
        let width = format.kv_heads * format.head_dim;
        let elements = tokens * (format.kv_factor * width);
        let queries = rotated.map_or(0, |(_, heads, _)| 2 * tokens * heads * format.head_dim);
        let tables = rotated.map_or(0, |(dim, ..)| tokens * dim * 4);
        let how =
            rotated.map(|(dim, _, beside)| format!(", rotated {dim}{}", if beside { " interleaved" } else { "" }));
        Case {
            op: if rotated.is_some() { "cache write with RoPE" } else { "cache write" },
            sizes: [vec![("tokens", tokens), ("heads", rotated.map_or(0, |(_, heads, _)| heads))], format.sizes()]
                .concat(),
            variant: format!("{}{}", format.variant(input), how.unwrap_or_default()),
            tolerance: tolerance(&[input, format.pool]),
            work: Work::bytes(tokens * format.token_bytes() + (elements + queries) * input.size_in_bytes() + tables),
            prepare: Box::new(move |data| {
                let view = format.view(if data.is_poisoned() { 2 } else { 0 });
                let of = Sequences::even(tokens, 1, 1);
                let blocks = tokens.div_ceil(format.block) + 1;
                let pool = data.tensor(&[blocks, view.block_elems], format.pool)?;
                let quant = Quant::new(&format, data, blocks)?;
                let k = data.rows(&of, width, input)?;
                let v = if format.kv_factor == 2 { Some(data.rows(&of, width, input)?) } else { None };
                // From the last slot to the first, of which every seventh is not written.
                let slot = |token: usize| if token % 7 == 6 { -1 } else { (tokens - 1 - token) as i64 };
                let slots: Vec<i64> = (0..tokens).map(slot).collect();
                let rotated = match rotated {
                    None => None,
                    Some((dim, heads, beside)) => {
                        let rope = Rope::new(10_000.0, dim, &RopeScaling::None)?;
                        let rope = if beside { rope.interleaved() } else { rope };
                        let positions: Vec<u32> = (0..tokens as u32).map(|token| token * 37).collect();
                        let q = data.rows(&of, heads * format.head_dim, input)?;
                        Some((rope, positions, q.reshape((tokens, heads, format.head_dim))?))
                    }
                };
                Ok(Box::new(move |on| {
                    let write =
                        KvWrite { k: &k, v: v.as_ref(), slot_mapping: (&slots).into(), quant: quant.of(&format) };
                    let mut given = Vec::new();
                    match &rotated {
                        None => write.run(on, &pool, &view)?,
                        Some((rope, positions, q)) => {
                            given.push(write.run_rotated(on, q, rope, positions, &pool, &view)?);
                        }
                    }
                    given.push(pool.clone());
                    if format.pool == DType::F8E4M3 && format.scales == Scales::PerToken {
                        given.push(quant.per_token.clone());
                    }
                    Ok(given)
                }))
            }),
        }
    }
}
