//! Attention over paged KV pools: prefill, chunked prefill and decode in one entry point.

mod tile;

use crate::batch::PagedBatch;
use crate::error::{KernelError, Result};
use crate::portable;
use crate::quant::{KvQuant, RowCodec, check_quant};
use crate::storage::{DisjointMut, Element, Input, Output, Rows, with_kv_pool, with_pool};
use crate::view::KvLayerView;
use candle_core::Tensor;
use rayon::prelude::*;
use std::cell::RefCell;
use std::ops::Range;
use tile::{Accumulator, Scratch};

const OP: &str = "paged_attention";

/// Which past keys a query sees. Attention is always causal: a key after the query is never seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Window {
    /// All of them.
    Full,
    /// The last `n` positions, the query's own included.
    Sliding(usize),
    /// Those in the query's own chunk of `n` positions.
    Chunked(usize),
}

impl Window {
    /// The first position that the query at `position` sees.
    pub(crate) fn first_visible(self, position: usize) -> usize {
        match self {
            Self::Full => 0,
            Self::Sliding(n) => (position + 1).saturating_sub(n),
            Self::Chunked(n) => position / n * n,
        }
    }
}

/// How scores are made from queries and keys.
#[derive(Clone, Copy, Debug)]
pub struct Attention<'a> {
    /// Factor on `q . k`.
    pub scale: f32,
    /// Scores become `cap * tanh(score / cap)`.
    pub softcap: Option<f32>,
    /// Which keys are seen.
    pub window: Window,
    /// `[num_heads]` logits that take part in the softmax's denominator only.
    pub sinks: Option<&'a [f32]>,
    /// `[num_heads]` ALiBi slopes: `slope * (key position - query position)` is added to the score.
    pub alibi_slopes: Option<&'a [f32]>,
    /// Elements of a value row. Less than `head_dim` only in a latent pool (`kv_factor` 1), whose values are the
    /// first elements of its keys (absorbed MLA).
    pub value_dim: usize,
    /// How an 8-bit or 4-bit pool stores rows; none for any other.
    pub quant: Option<KvQuant<'a>>,
}

impl Attention<'_> {
    /// Plain causal attention with values as wide as keys.
    pub fn new(scale: f32, value_dim: usize) -> Self {
        Self { scale, softcap: None, window: Window::Full, sinks: None, alibi_slopes: None, value_dim, quant: None }
    }
}

impl Attention<'_> {
    /// What stored keys (`kv` 0) or values of a head are multiplied by.
    pub(crate) fn stored_factor(&self, view: &KvLayerView, kv: usize, head: usize) -> f32 {
        self.quant.map_or(1.0, |quant| quant.factor(view, kv, head))
    }
}

/// Attends from `q` `[total_tokens, num_heads, head_dim]` to the cached keys and values of each sequence.
///
/// This step's keys and values must have been written before ([`crate::reshape_and_cache`]). Query heads are
/// grouped: consecutive `num_heads / num_kv_heads` of them share a KV head. A layer that shares the cache of
/// another passes that layer's view. Returns `[total_tokens, num_heads, value_dim]` in the dtype of `q`.
pub fn paged_attention(
    q: &Tensor,
    pool: &Tensor,
    view: &KvLayerView,
    batch: &PagedBatch<'_>,
    attention: &Attention<'_>,
) -> Result<Tensor> {
    let num_blocks = view.check(OP, pool)?;
    let (total_tokens, num_heads, head_dim) = match q.dims() {
        &[tokens, heads, dim] => (tokens, heads, dim),
        found => {
            return Err(KernelError::Shape {
                op: OP,
                operand: "q",
                found: found.to_vec(),
                expected: "[total_tokens, num_heads, head_dim]".to_owned(),
            });
        }
    };
    batch.check(OP, total_tokens)?;
    check(view, attention, num_heads, head_dim)?;
    check_quant(OP, pool, view, attention.quant.as_ref(), head_dim)?;
    check_blocks(view, batch, attention.window, num_blocks)?;
    if !q.device().is_cpu() {
        return portable::attention::paged_attention(q, pool, view, batch, attention);
    }
    let out = Output::new(total_tokens * num_heads * attention.value_dim);
    let input = Input::new(q)?;
    let quant = attention.quant.as_ref();
    with_kv_pool!(OP, pool.dtype(), T => with_pool::<T, _>(OP, pool, |pool| RowCodec::with(OP, quant, |codec| {
        let step = Step { q: input.rows(), pool, codec, view, batch, attention, num_heads, head_dim };
        step.run(&out);
        Ok(())
    })))?;
    // SAFETY: the tiles and the padding make up all rows.
    unsafe { out.into_tensor((total_tokens, num_heads, attention.value_dim), q) }
}

fn check(view: &KvLayerView, attention: &Attention<'_>, num_heads: usize, head_dim: usize) -> Result<()> {
    let refuse = |reason: String| Err(KernelError::Argument { op: OP, reason });
    if num_heads == 0 || !num_heads.is_multiple_of(view.num_kv_heads) {
        return refuse(format!("{num_heads} query heads cannot share {} KV heads evenly", view.num_kv_heads));
    }
    let value_dim = attention.value_dim;
    let fits = match view.kv_factor {
        1 => (1..=head_dim).contains(&value_dim),
        _ => value_dim == head_dim,
    };
    if !fits {
        return refuse(format!(
            "value_dim {value_dim} does not fit head_dim {head_dim} with kv_factor {}",
            view.kv_factor
        ));
    }
    if matches!(attention.window, Window::Sliding(0) | Window::Chunked(0)) {
        return refuse("a window of 0 positions sees nothing".to_owned());
    }
    for (per_head, name) in [(attention.sinks, "sinks"), (attention.alibi_slopes, "alibi_slopes")] {
        if let Some(found) = per_head.map(<[f32]>::len).filter(|&len| len != num_heads) {
            return refuse(format!("{name} has {found} entries for {num_heads} heads"));
        }
    }
    Ok(())
}

/// Checks that every block that some query sees exists.
fn check_blocks(view: &KvLayerView, batch: &PagedBatch<'_>, window: Window, num_blocks: usize) -> Result<()> {
    for sequence in 0..batch.len() {
        let kv_len = batch.kv_lens[sequence] as usize;
        let queries = batch.rows(sequence).len();
        if kv_len == 0 || queries == 0 {
            continue;
        }
        let first = window.first_visible(kv_len - queries) / view.tokens_per_block;
        let last = (kv_len - 1) / view.tokens_per_block;
        let blocks = batch.blocks(sequence);
        for logical in first..=last {
            let found = blocks.get(logical).copied().unwrap_or(-1);
            if usize::try_from(found).map_or(true, |block| block >= num_blocks) {
                return Err(KernelError::Index {
                    op: OP,
                    operand: "block_tables",
                    at: sequence * batch.max_blocks + logical,
                    found: i64::from(found),
                    expected: format!("but sequence {sequence} sees that block: expected less than {num_blocks}"),
                });
            }
        }
    }
    Ok(())
}

/// Query tokens that one task takes together. Their scores against a stretch of context stay in a near cache.
const QUERY_TILE: usize = 32;
/// Context that one task takes when there are too few queries to share out. The cut depends on positions alone,
/// never on the batch or the thread count, so that results do not depend on them either.
const KV_SPLIT: usize = 512;

/// One call on the CPU.
struct Step<'a, T> {
    q: Rows<'a>,
    pool: &'a [T],
    codec: RowCodec<'a>,
    view: &'a KvLayerView,
    batch: &'a PagedBatch<'a>,
    attention: &'a Attention<'a>,
    num_heads: usize,
    head_dim: usize,
}

/// Some query tokens of one sequence, the positions they stand at, and the context they see.
struct QueryTile {
    sequence: usize,
    rows: Range<usize>,
    first_position: usize,
    context: Range<usize>,
    /// Parts that the context is cut into, each a task of its own for each KV head.
    parts: usize,
    /// Number of tasks of the tiles before.
    first_task: usize,
}

/// What a decode step would otherwise allocate anew each time.
#[derive(Default)]
struct Workspace {
    tiles: Vec<QueryTile>,
    partials: Vec<f32>,
}

impl<T: Element> Step<'_, T> {
    fn run(&self, out: &Output) {
        thread_local! {
            static WORKSPACE: RefCell<Workspace> = RefCell::default();
        }
        let mut workspace = WORKSPACE.take();
        let Workspace { tiles, partials } = &mut workspace;
        self.plan(tiles);
        self.batch.clear_padding(self.num_heads * self.attention.value_dim, out);
        let heads = self.view.num_kv_heads;
        let tasks = tiles.last().map_or(0, |tile| tile.first_task + tile.parts) * heads;
        let partial_elems = Accumulator::elems(self.most_rows(tiles), self.attention.value_dim);
        // Tiles of several parts are rare and small: a slot for every task is simpler than a list of those.
        let split = tiles.iter().any(|tile| tile.parts > 1);
        partials.resize(if split { tasks * partial_elems } else { 0 }, 0.0);
        let partials = DisjointMut::new(partials);

        (0..tasks).into_par_iter().for_each(|task| {
            let (head, task) = (task % heads, task / heads);
            let tile = &tiles[tiles.partition_point(|tile| tile.first_task <= task) - 1];
            let part = task - tile.first_task;
            if tile.parts == 1 {
                Scratch::with(partial_elems, |scratch, memory| {
                    let sum = self.attend(tile, head, tile.context.clone(), memory, scratch);
                    self.finish(tile, head, &sum, out);
                });
            } else {
                let start = (task * heads + head) * partial_elems;
                // SAFETY: each task has its own stretch.
                let memory = unsafe { partials.slice(start..start + partial_elems) };
                let context = part_of(&tile.context, part);
                Scratch::with(0, |scratch, _| {
                    self.attend(tile, head, context, memory, scratch);
                });
            }
        });
        tiles.par_iter().filter(|tile| tile.parts > 1).for_each(|tile| {
            for head in 0..heads {
                let part = |part: usize| {
                    let start = ((tile.first_task + part) * heads + head) * partial_elems;
                    // SAFETY: the tasks that wrote these stretches are done, and this tile is read here only.
                    let memory = unsafe { partials.slice(start..start + partial_elems) };
                    Accumulator::resume(memory, self.query_rows(tile), self.attention.value_dim)
                };
                let mut sum = part(0);
                for other in 1..tile.parts {
                    sum.merge(&part(other));
                }
                self.finish(tile, head, &sum, out);
            }
        });
        WORKSPACE.set(workspace);
    }

    /// The factor on `q . k` as it is stored.
    fn scale(&self, kv_head: usize) -> f32 {
        self.attention.scale * self.attention.stored_factor(self.view, 0, kv_head)
    }

    fn group(&self) -> usize {
        self.num_heads / self.view.num_kv_heads
    }

    /// Query rows that one KV head of a tile serves.
    fn query_rows(&self, tile: &QueryTile) -> usize {
        tile.rows.len() * self.group()
    }

    fn most_rows(&self, tiles: &[QueryTile]) -> usize {
        tiles.iter().map(|tile| self.query_rows(tile)).max().unwrap_or(0)
    }

    fn plan(&self, tiles: &mut Vec<QueryTile>) {
        tiles.clear();
        let mut first_task = 0;
        for sequence in 0..self.batch.len() {
            let rows = self.batch.rows(sequence);
            let kv_len = self.batch.kv_lens[sequence] as usize;
            if kv_len == 0 {
                continue;
            }
            for start in rows.clone().step_by(QUERY_TILE) {
                let end = (start + QUERY_TILE).min(rows.end);
                let first_position = kv_len - (rows.end - start);
                let last_position = kv_len - 1 - (rows.end - end);
                let context = self.attention.window.first_visible(first_position)..last_position + 1;
                let parts = if end - start < QUERY_TILE { part_count(&context) } else { 1 };
                tiles.push(QueryTile { sequence, rows: start..end, first_position, context, parts, first_task });
                first_task += parts;
            }
        }
    }

    /// The unnormalised output of one tile over a stretch of context, for the query heads of one KV head.
    fn attend<'m>(
        &self,
        tile: &QueryTile,
        kv_head: usize,
        context: Range<usize>,
        memory: &'m mut [f32],
        scratch: &mut Scratch,
    ) -> Accumulator<'m> {
        let mut sum = Accumulator::new(memory, self.query_rows(tile), self.attention.value_dim);
        tile::attend(self, tile, kv_head, context, &mut sum, scratch);
        sum
    }

    fn finish(&self, tile: &QueryTile, kv_head: usize, sum: &Accumulator<'_>, out: &Output) {
        let group = self.group();
        let value_scale = self.attention.stored_factor(self.view, 1, kv_head);
        for (row, token) in tile.rows.clone().enumerate() {
            for member in 0..group {
                let head = kv_head * group + member;
                let start = (token * self.num_heads + head) * self.attention.value_dim;
                // SAFETY: this task alone has this token and this head.
                let target = unsafe { out.piece(start..start + self.attention.value_dim) };
                let sink = self.attention.sinks.map(|sinks| sinks[head]);
                sum.finish(row * group + member, sink, value_scale, target);
            }
        }
    }
}

/// Number of stretches between multiples of [`KV_SPLIT`] that `context` touches.
fn part_count(context: &Range<usize>) -> usize {
    context.end.div_ceil(KV_SPLIT) - context.start / KV_SPLIT
}

fn part_of(context: &Range<usize>, part: usize) -> Range<usize> {
    let part = context.start / KV_SPLIT + part;
    (part * KV_SPLIT).max(context.start)..((part + 1) * KV_SPLIT).min(context.end)
}
