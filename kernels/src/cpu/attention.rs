//! Attention on the CPU: tiles of queries over stretches of context, tasks for each KV head.

mod tile;

use super::codec::RowCodec;
use super::element::Element;
use super::output::{DisjointMut, Output};
use super::storage::{Input, Rows, with_kv_pool, with_pool};
use super::tasks::for_each;
use crate::batch::{Chosen, PagedBatch};
use crate::error::Result;
use crate::ops::attention::PagedAttention;
use crate::view::KvLayerView;
use candle_core::Tensor;
use rayon::prelude::*;
use std::cell::RefCell;
use std::ops::Range;
use tile::{Accumulator, Scratch};

const OP: &str = "paged_attention";

pub(crate) fn paged_attention(
    q: &Tensor,
    pool: &Tensor,
    view: &KvLayerView,
    batch: &PagedBatch<'_>,
    attention: &PagedAttention<'_>,
) -> Result<Tensor> {
    let (total_tokens, num_heads, head_dim) = q.dims3()?;
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
    attention: &'a PagedAttention<'a>,
    num_heads: usize,
    head_dim: usize,
}

/// Some query tokens of one sequence, the positions they stand at, and the context they see.
#[derive(Clone)]
struct QueryTile {
    sequence: usize,
    rows: Range<usize>,
    first_position: usize,
    context: Range<usize>,
    /// Parts that the context is cut into, each a task of its own for each KV head.
    parts: usize,
    /// Number of tasks of the tiles before.
    first_task: usize,
    /// Stretches that it sees besides, in the workspace's list of them: of a tree the tokens on its path, of a token that
    /// chooses all that it sees.
    besides: Range<usize>,
}

/// What a decode step would otherwise allocate anew each time.
#[derive(Default)]
struct Workspace {
    tiles: Vec<QueryTile>,
    stretches: Vec<Range<usize>>,
    partials: Vec<f32>,
}

impl<T: Element> Step<'_, T> {
    fn run(&self, out: &Output) {
        thread_local! {
            static WORKSPACE: RefCell<Workspace> = RefCell::default();
        }
        let mut workspace = WORKSPACE.take();
        let Workspace { tiles, stretches, partials } = &mut workspace;
        self.plan(tiles, stretches);
        out.clear_padding(self.batch.padding(), self.num_heads * self.attention.value_dim);
        let heads = self.view.num_kv_heads;
        let tasks = tiles.last().map_or(0, |tile| tile.first_task + tile.parts) * heads;
        let partial_elems = Accumulator::elems(self.most_rows(tiles), self.attention.value_dim);
        // Tiles of several parts are rare and small: a slot for every task is simpler than a list of those.
        let split = tiles.iter().any(|tile| tile.parts > 1);
        partials.resize(if split { tasks * partial_elems } else { 0 }, 0.0);
        let partials = DisjointMut::new(partials);

        for_each((0..tasks).into_par_iter(), |task| {
            let (head, task) = (task % heads, task / heads);
            let tile = &tiles[tiles.partition_point(|tile| tile.first_task <= task) - 1];
            let part = task - tile.first_task;
            if tile.parts == 1 {
                Scratch::with(partial_elems, |scratch, memory| {
                    let mut sum = self.attend(tile, head, tile.context.clone(), memory, scratch);
                    self.attend_besides(tile, stretches, head, &mut sum, scratch);
                    self.finish(tile, head, &sum, out);
                });
            } else {
                let start = (task * heads + head) * partial_elems;
                // SAFETY: each task has its own stretch.
                let memory = unsafe { partials.slice(start..start + partial_elems) };
                let context = part_of(&tile.context, part);
                Scratch::with(0, |scratch, _| {
                    let mut sum = self.attend(tile, head, context, memory, scratch);
                    if part == 0 {
                        self.attend_besides(tile, stretches, head, &mut sum, scratch);
                    }
                });
            }
        });
        let merged = if split { tiles.as_slice() } else { &[] };
        for_each(merged.par_iter(), |tile| {
            let heads = if tile.parts > 1 { heads } else { 0 };
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

    fn plan(&self, tiles: &mut Vec<QueryTile>, stretches: &mut Vec<Range<usize>>) {
        tiles.clear();
        stretches.clear();
        let mut first_task = 0;
        for sequence in 0..self.batch.len() {
            let rows = self.batch.rows(sequence);
            let kv_len = self.batch.kv_lens[sequence] as usize;
            if kv_len == 0 {
                continue;
            }
            if self.batch.parents.is_some() || self.batch.chosen.is_some() {
                for row in rows.clone() {
                    let tile = match (self.batch.parents, self.batch.chosen) {
                        (Some(parents), _) => self.tile_of_tree(sequence, row, parents, first_task, stretches),
                        (None, Some(chosen)) => self.tile_of_chosen(sequence, row, chosen, first_task, stretches),
                        (None, None) => continue,
                    };
                    first_task += tile.parts;
                    tiles.push(tile);
                }
                continue;
            }
            for start in rows.clone().step_by(QUERY_TILE) {
                let end = (start + QUERY_TILE).min(rows.end);
                let first_position = kv_len - (rows.end - start);
                let last_position = kv_len - 1 - (rows.end - end);
                let context = self.attention.window.first_visible(first_position)..last_position + 1;
                let parts = if end - start < QUERY_TILE { part_count(&context) } else { 1 };
                let (rows, besides) = (start..end, 0..0);
                tiles.push(QueryTile { sequence, rows, first_position, context, parts, first_task, besides });
                first_task += parts;
            }
        }
    }

    /// A token of a tree is a tile of its own: what was there before the step, and the tokens on its path.
    fn tile_of_tree(
        &self,
        sequence: usize,
        row: usize,
        parents: &[i32],
        first_task: usize,
        stretches: &mut Vec<Range<usize>>,
    ) -> QueryTile {
        let rows = self.batch.rows(sequence);
        let before = self.batch.kv_lens[sequence] as usize - rows.len();
        let first_position = before + PagedBatch::path(parents, row).count() - 1;
        let first_visible = self.attention.window.first_visible(first_position);
        let besides = stretches.len();
        let on_path = PagedBatch::path(parents, row).take(first_position + 1 - first_visible);
        stretches.extend(on_path.map(|row| before + row - rows.start).map(|position| position..position + 1));
        let context = first_visible.min(before)..before;
        let parts = part_count(&context).max(1);
        let (rows, besides) = (row..row + 1, besides..stretches.len());
        QueryTile { sequence, rows, first_position, context, parts, first_task, besides }
    }

    /// A token that chooses what it sees is a tile of its own, without a context.
    fn tile_of_chosen(
        &self,
        sequence: usize,
        row: usize,
        chosen: Chosen<'_>,
        first_task: usize,
        stretches: &mut Vec<Range<usize>>,
    ) -> QueryTile {
        let first_position = self.batch.kv_lens[sequence] as usize - (self.batch.rows(sequence).end - row);
        let besides = stretches.len();
        for &position in chosen.of(row) {
            let position = position as usize;
            match stretches[besides..].last_mut().filter(|stretch| stretch.end == position) {
                Some(stretch) => stretch.end += 1,
                None => stretches.push(position..position + 1),
            }
        }
        let (rows, besides) = (row..row + 1, besides..stretches.len());
        QueryTile { sequence, rows, first_position, context: 0..0, parts: 1, first_task, besides }
    }

    /// Adds the stretches that a token sees besides its context, each where it is written.
    fn attend_besides(
        &self,
        tile: &QueryTile,
        stretches: &[Range<usize>],
        kv_head: usize,
        sum: &mut Accumulator<'_>,
        scratch: &mut Scratch,
    ) {
        for stretch in &stretches[tile.besides.clone()] {
            // As if the query were the last of it, so that it is seen whatever the window.
            let at = QueryTile { first_position: stretch.end - 1, ..tile.clone() };
            tile::attend(self, &at, kv_head, stretch.clone(), sum, scratch);
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
