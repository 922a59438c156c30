//! Attention over caches of fixed shapes.

use cacheplan_kernels::{Backend, Rope, Window};
use cacheplan_transforms::onnx::{AttributeProto, TensorProto};
use candle_core::{Device, Tensor};

use super::{GraphDType, OPSET_OF_BF16, Writer, int, refuse};
use crate::error::{Result, RuntimeError};

/// The keys and values of layers with as many key heads of the same size.
#[derive(Debug)]
pub(super) struct KeyCache {
    pub(super) kv_heads: usize,
    pub(super) head_dim: usize,
    pub(super) layers: Vec<LayerKeys>,
}

/// The keys and values of a layer.
#[derive(Debug)]
pub(super) struct LayerKeys {
    layer: u32,
    /// All of them, `[batch, heads, cache, head_dim]`.
    all: [String; 2],
    /// The new ones alone, behind an axis of layers.
    pub(super) new: [String; 2],
}

impl KeyCache {
    /// What its inputs, or with `new` its outputs, are called: the first one as if it were the only one.
    pub(super) fn names(&self, at: usize, word: &str) -> [String; 2] {
        let size = if at == 0 { String::new() } else { format!("{}x{}_", self.kv_heads, self.head_dim) };
        ["k", "v"].map(|side| format!("{word}_{size}{side}"))
    }
}

/// An attention to write.
pub(crate) struct Attending<'a> {
    /// The absolute layer whose keys and values it reads.
    pub(crate) layer: u32,
    /// `[1, tokens, heads, head_dim]`.
    pub(crate) q: String,
    /// Keys and values in the same way; none of a layer that reads those of an earlier one.
    pub(crate) kv: Option<[String; 2]>,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) scale: f32,
    pub(crate) window: Window,
    pub(crate) rope: Option<&'a Rope>,
    /// Logits that take part in the softmax's denominator alone, one per head.
    pub(crate) sinks: Option<&'a [f32]>,
}

/// Scores of queries `[batch, heads, tokens, size]` and keys `[batch, heads or 1, cache, size]`.
#[derive(Clone, Copy)]
struct Scores<'a> {
    q: &'a str,
    keys: &'a str,
    scale: f32,
    window: Window,
    sinks: Option<&'a [f32]>,
}

impl Writer {
    /// The positions of the tokens, `[batch, tokens]`. Sequences that are alone have them without the first axis.
    fn positions(&mut self) -> String {
        let (batch, tokens) = (self.form.batch, self.form.tokens);
        if batch > 1 {
            return self.input("cache_position", TensorProto::INT64, &[Some(batch), tokens]);
        }
        let positions = self.input("cache_position", TensorProto::INT64, &[tokens]);
        self.unsqueeze(&positions, &[0])
    }

    /// Where the tokens' columns lie in a cache `[batch, columns, …]`, as `[batch, tokens, 2]`.
    fn columns(&mut self) -> String {
        let (positions, zero) = (self.positions(), self.whole(0));
        let batch = self.form.batch;
        let sequences = (0..batch as i64).flat_map(i64::to_le_bytes).collect();
        let sequences = self.constant(TensorProto::INT64, &[batch, 1], sequences);
        let nothing = self.node("Mul", &[&positions, &zero]);
        let sequences = self.node("Add", &[&nothing, &sequences]);
        let parts = [sequences, positions].map(|part| self.unsqueeze(&part, &[2]));
        self.node_with("Concat", &[&parts[0], &parts[1]], vec![int("axis", 2)])
    }

    /// `[batch, tokens, heads, head_dim]`, rotated.
    ///
    /// Where neighbours are rotated together they come out half the rotated channels apart, as those of keys do: scores do
    /// not depend on the order.
    pub(crate) fn rotated(&mut self, x: &str, rope: &Rope, head_dim: usize) -> Result<String> {
        let rotary = rope.rotary_dim();
        let half = rotary / 2;
        // A one in each first half and zeros behind it: the rotation's cosine comes first, its sine behind.
        let rows = self.form.max_cache_len;
        let is_first = |at: usize| if rope.is_interleaved() { at < rotary && at.is_multiple_of(2) } else { at < half };
        let unit: Vec<f32> = (0..rows * head_dim).map(|at| f32::from(is_first(at % head_dim))).collect();
        let unit = Tensor::from_vec(unit, (rows, 1, head_dim), &Device::Cpu)?;
        let positions: Vec<u32> = (0..rows as u32).collect();
        let table = rope.apply(&Backend::Cpu.run(), &unit, &positions)?.squeeze(1)?.narrow(1, 0, rotary)?;
        let table = if rope.is_interleaved() {
            table.reshape((rows, half, 2))?.transpose(1, 2)?.reshape((rows, rotary))?
        } else {
            table
        };
        let positions = self.input("position_ids", TensorProto::INT64, &[Some(self.form.batch), self.form.tokens]);
        let mut part = |start: usize| {
            let table = self.weight(&table.narrow(1, start, half)?.contiguous()?)?;
            let rows = self.node_with("Gather", &[&table, &positions], vec![int("axis", 0)]);
            Ok::<_, RuntimeError>(self.unsqueeze(&rows, &[2]))
        };
        let (cos, sin) = (part(0)?, part(half)?);
        let [pairs, rest] = match head_dim - rotary {
            0 => [x.to_owned(), String::new()],
            rest => self.split(x, [rotary, rest]),
        };
        let [first, second] = if rope.is_interleaved() {
            [0, 1].map(|start| {
                let [start, end, axis, step] = [start, i64::MAX, -1, 2].map(|number| self.ints(&[number]));
                self.node("Slice", &[&pairs, &start, &end, &axis, &step])
            })
        } else {
            self.split(&pairs, [half, half])
        };
        let mut product = |a: &str, b: &str| self.node("Mul", &[a, b]);
        let terms = [product(&first, &cos), product(&second, &sin), product(&second, &cos), product(&first, &sin)];
        let (new_first, new_second) =
            (self.node("Sub", &[&terms[0], &terms[1]]), self.node("Add", &[&terms[2], &terms[3]]));
        let parts = [new_first.as_str(), new_second.as_str(), rest.as_str()];
        let parts = if rest.is_empty() { &parts[..2] } else { &parts[..] };
        Ok(self.node_with("Concat", parts, vec![int("axis", -1)]))
    }

    /// What is added to scores `[batch, heads, tokens, cache]`, in f32.
    fn mask(&mut self, window: Window) -> Result<String> {
        let (batch, len) = (self.form.batch, self.form.max_cache_len);
        let positions = self.positions();
        let rows = self.unsqueeze(&positions, &[2]);
        let columns = self.ints(&(0..len as i64).collect::<Vec<_>>());
        let mut seen = self.node("LessOrEqual", &[&columns, &rows]);
        match window {
            Window::Full => {}
            Window::Sliding(tokens) => {
                let tokens = self.ints(&[tokens as i64]);
                let ends = self.node("Add", &[&columns, &tokens]);
                let near = self.node("Greater", &[&ends, &rows]);
                seen = self.node("And", &[&seen, &near]);
            }
            Window::Chunked(_) => return Err(refuse("attention", "chunks of a window are not exported")),
        }
        let valid = self.input("attention_mask", TensorProto::INT64, &[Some(batch), Some(len)]);
        let zero = self.ints(&[0]);
        let valid = self.node("Greater", &[&valid, &zero]);
        let valid = self.unsqueeze(&valid, &[1]);
        let seen = self.node("And", &[&seen, &valid]);
        let (kept, hidden) = (self.wide_number(0.0), self.wide_number(f32::MIN));
        let mask = self.node("Where", &[&seen, &kept, &hidden]);
        Ok(self.unsqueeze(&mask, &[1]))
    }

    /// The cache `past` of one layer with the new tokens' columns `[batch, tokens, heads, size]` in it, as
    /// `[batch, heads, cache, size]`, and these columns alone, behind an axis of layers.
    fn with_new(
        &mut self,
        past: &str,
        (row, layer): (usize, u32),
        new: &str,
        [heads, size]: [usize; 2],
    ) -> [String; 2] {
        let (batch, len) = (self.form.batch, self.form.max_cache_len);
        if self.form.dtype == GraphDType::Bf16 {
            self.need_opset(OPSET_OF_BF16);
        }
        let columns = self.columns();
        let shape = self.ints(&[batch, len, heads, size].map(|size| size as i64));
        let zero = match self.form.dtype {
            GraphDType::F32 => Vec::new(),
            GraphDType::F16 | GraphDType::Bf16 => vec![AttributeProto {
                name: "value".to_owned(),
                t: Some(Box::new(TensorProto {
                    dims: vec![1],
                    data_type: self.data_type(),
                    raw_data: vec![0; 2].into(),
                    ..TensorProto::default()
                })),
                r#type: 4,
                ..AttributeProto::default()
            }],
        };
        let empty = self.node_with("ConstantOfShape", &[&shape], zero);
        let past = self.data_input(past, &[None; 0]);
        let row = self.whole(row as i64);
        self.layer = Some(layer);
        let own = self.node_with("Gather", &[&past, &row], vec![int("axis", 0)]);
        self.layer = None;
        let rows = self.transpose(&own, &[0, 2, 1, 3]);
        let [all, side] = [rows, empty].map(|rows| {
            let written = self.node("ScatterND", &[&rows, &columns, new]);
            self.transpose(&written, &[0, 2, 1, 3])
        });
        [all, self.unsqueeze(&side, &[0])]
    }

    /// How much of each column of the cache a token takes, `[batch, heads, tokens, cache]`.
    fn shares(&mut self, scores: Scores<'_>) -> Result<String> {
        let Scores { q, keys, scale, window, sinks } = scores;
        // Before the product, which f16 has less room for.
        let q = self.scaled(q, f64::from(scale));
        let keys = self.transpose(keys, &[0, 1, 3, 2]);
        let scores = self.node("MatMul", &[&q, &keys]);
        let scores = self.wide(&scores);
        let mask = self.mask(window)?;
        let scores = self.node("Add", &[&scores, &mask]);
        let weights = match sinks {
            None => self.node_with("Softmax", &[&scores], vec![int("axis", -1)]),
            Some(sinks) => {
                let len = self.form.max_cache_len;
                let [first, one, last, end] = [0, 1, 3, len as i64].map(|number| self.ints(&[number]));
                let column = self.node("Slice", &[&scores, &first, &one, &last]);
                let nothing = self.wide_number(0.0);
                let column = self.node("Mul", &[&column, &nothing]);
                let sinks = self.wide_floats(sinks, &[sinks.len(), 1, 1]);
                let column = self.node("Add", &[&column, &sinks]);
                let scores = self.node_with("Concat", &[&scores, &column], vec![int("axis", -1)]);
                let weights = self.node_with("Softmax", &[&scores], vec![int("axis", -1)]);
                self.node("Slice", &[&weights, &first, &end, &last])
            }
        };
        Ok(self.narrow(&weights))
    }

    /// Attention over the fixed cache; `[batch, tokens, heads * head_dim]`.
    pub(crate) fn attend(&mut self, attending: Attending<'_>) -> Result<String> {
        let Attending { layer, mut q, kv, heads, kv_heads, head_dim, scale, window, rope, sinks } = attending;
        if let Some(rope) = rope {
            q = self.rotated(&q, rope, head_dim)?;
        }
        if let Some([mut k, v]) = kv {
            if let Some(rope) = rope {
                k = self.rotated(&k, rope, head_dim)?;
            }
            self.keep(layer, [&k, &v], [kv_heads, head_dim]);
        }
        let own = |cache: &KeyCache| Some(cache.layers.iter().find(|keys| keys.layer == layer)?.all.clone());
        let all = self.key_caches.iter().find_map(own);
        let all = all.ok_or_else(|| refuse("attention", format!("layer {layer}, whose keys it reads, has none")))?;
        let q = self.transpose(&q, &[0, 2, 1, 3]);
        let (batch, len, groups) = (self.form.batch, self.form.max_cache_len, heads / kv_heads);
        let [keys, values] = all.map(|all| {
            let apart = self.unsqueeze(&all, &[2]);
            let shape = self.ints(&[batch, kv_heads, groups, len, head_dim].map(|size| size as i64));
            let each = self.node("Expand", &[&apart, &shape]);
            self.reshape(&each, &[0, heads as i64, len as i64, head_dim as i64])
        });
        let weights = self.shares(Scores { q: &q, keys: &keys, scale, window, sinks })?;
        let y = self.node("MatMul", &[&weights, &values]);
        let y = self.transpose(&y, &[0, 2, 1, 3]);
        Ok(self.reshape(&y, &[0, 0, (heads * head_dim) as i64]))
    }

    /// Adds the new keys and values `[batch, tokens, heads, head_dim]` of a layer to the cache of those of their size.
    fn keep(&mut self, layer: u32, new: [&str; 2], [kv_heads, head_dim]: [usize; 2]) {
        let alike = |cache: &KeyCache| [cache.kv_heads, cache.head_dim] == [kv_heads, head_dim];
        let at = self.key_caches.iter().position(alike).unwrap_or_else(|| {
            self.key_caches.push(KeyCache { kv_heads, head_dim, layers: Vec::new() });
            self.key_caches.len() - 1
        });
        let cache = &self.key_caches[at];
        let (place, past) = ((cache.layers.len(), layer), cache.names(at, "past"));
        let [k, v] = [0, 1].map(|side| self.with_new(&past[side], place, new[side], [kv_heads, head_dim]));
        let ([all_k, new_k], [all_v, new_v]) = (k, v);
        self.key_caches[at].layers.push(LayerKeys { layer, all: [all_k, all_v], new: [new_k, new_v] });
    }

    /// Attention of `q` `[batch, tokens, heads, width]` over a fixed cache of `latents` `[batch, tokens, 1, width]`, the
    /// first `rank` channels of which are what is summed; `[batch, heads, tokens, rank]`.
    pub(crate) fn attend_latents(
        &mut self,
        layer: u32,
        [q, latents]: [&str; 2],
        [width, rank]: [usize; 2],
        scale: f32,
    ) -> Result<String> {
        if *self.latent_width.get_or_insert(width) != width {
            return Err(refuse("latent attention", "layers with latents of different sizes have no common cache"));
        }
        let [all, side] = self.with_new("past_latents", (self.latents.len(), layer), latents, [1, width]);
        self.latents.push(side);
        let q = self.transpose(q, &[0, 2, 1, 3]);
        let weights = self.shares(Scores { q: &q, keys: &all, scale, window: Window::Full, sinks: None })?;
        let [first, end, last] = [0, rank as i64, 3].map(|number| self.ints(&[number]));
        let values = self.node("Slice", &[&all, &first, &end, &last]);
        Ok(self.node("MatMul", &[&weights, &values]))
    }
}
