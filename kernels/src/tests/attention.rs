//! Paged attention against dense attention over the same keys and values.

use super::{Random, assert_close, on_cpu, values};
use crate::reference::{self, AttentionCase};
use crate::*;
use cacheplan_handlers::KvLayout;
use candle_core::{DType, Device, Tensor};
use rstest::rstest;

/// A batch whose keys and values were written into shuffled blocks of a pool full of NaN.
pub(super) struct Paged {
    pub(super) view: KvLayerView,
    pub(super) pool: Tensor,
    /// Per sequence, `[context, kv_heads, head_dim]` as the pool stores them, without scales.
    keys: Vec<Vec<f32>>,
    values: Vec<Vec<f32>>,
    cu_seqlens: Vec<u32>,
    kv_lens: Vec<u32>,
    pub(super) block_tables: Vec<i32>,
    pub(super) max_blocks: usize,
    /// The row that each token follows, of a step of trees.
    parents: Option<Vec<i32>>,
    /// The positions that each token sees, of a step whose tokens choose them.
    chosen: Option<Vec<Vec<u32>>>,
    listed: (Vec<u32>, Vec<u32>),
}

pub(super) struct Layout {
    pub(super) kv_heads: usize,
    pub(super) head_dim: usize,
    pub(super) kv_factor: usize,
    pub(super) block: usize,
    pub(super) order: KvLayout,
    pub(super) dtype: DType,
}

impl Paged {
    /// `sequences` are (query tokens, context).
    pub(super) fn new(layout: &Layout, sequences: &[(usize, usize)]) -> Self {
        let Layout { kv_heads, head_dim, kv_factor, block, order, dtype } = *layout;
        let layer = kv_factor * kv_heads * block * head_dim;
        let view = KvLayerView {
            block_elems: layer + 3 * head_dim,
            layer_offset: 2 * head_dim,
            kv_factor,
            num_kv_heads: kv_heads,
            head_dim,
            tokens_per_block: block,
            order,
        };
        let max_blocks = sequences.iter().map(|(_, context)| context.div_ceil(block)).max().unwrap_or(0);
        let blocks = sequences.len() * max_blocks + 1;
        // Integers have no NaN.
        let bytes = matches!(dtype, DType::U8 | DType::F8E4M3);
        let poison = if dtype == DType::U8 { 127.0 } else { f32::NAN };
        let pool = Tensor::full(poison, (blocks, view.block_elems), &Device::Cpu).unwrap().to_dtype(dtype).unwrap();
        let mut random = Random::new(21);
        let mut paged = Self {
            view,
            pool,
            keys: Vec::new(),
            values: Vec::new(),
            cu_seqlens: vec![0],
            kv_lens: Vec::new(),
            block_tables: Vec::new(),
            max_blocks,
            parents: None,
            chosen: None,
            listed: Default::default(),
        };
        for (sequence, &(queries, context)) in sequences.iter().enumerate() {
            // Blocks of all sequences in turn, from the last to the first; where there is no context, none.
            let table: Vec<i32> = (0..max_blocks)
                .map(|i| {
                    if i < context.div_ceil(block) { (blocks - 1 - i * sequences.len() - sequence) as i32 } else { -1 }
                })
                .collect();
            let [k, v] = [(); 2].map(|()| stored(&random.tensor(&[context, kv_heads, head_dim]), dtype));
            let slots: Vec<i64> =
                (0..context).map(|i| i64::from(table[i / block]) * block as i64 + (i % block) as i64).collect();
            let quant = bytes.then_some(KvScales { k: 1.0, v: 1.0 }.into());
            let write = KvWrite { quant, ..KvWrite::new(&k, (kv_factor == 2).then_some(&v), &slots) };
            write.run(&on_cpu(), &paged.pool, &view).unwrap();
            paged.keys.push(values(&k));
            paged.values.push(values(&v));
            paged.block_tables.extend(table);
            paged.cu_seqlens.push(paged.cu_seqlens[sequence] + queries as u32);
            paged.kv_lens.push(context as u32);
        }
        paged
    }

    pub(super) fn batch(&self) -> PagedBatch<'_> {
        let batch = PagedBatch::new(&self.cu_seqlens, &self.kv_lens, &self.block_tables, self.max_blocks);
        let batch = self.parents.as_ref().map_or(batch, |parents| batch.with_parents(parents));
        let (starts, positions) = &self.listed;
        self.chosen.as_ref().map_or(batch, |_| batch.with_chosen(Chosen { starts, positions }))
    }

    /// Lets tokens choose what they see.
    fn choose(&mut self, chosen: Vec<Vec<u32>>) {
        let ends = chosen.iter().scan(0, |end, seen| {
            *end += seen.len() as u32;
            Some(*end)
        });
        self.listed = (std::iter::once(0).chain(ends).collect(), chosen.concat());
        self.chosen = Some(chosen);
    }

    /// The positions of a sequence that a row's token stands behind, by where they are written, its own last.
    fn line(&self, sequence: usize, position: usize) -> Vec<usize> {
        let first = self.cu_seqlens[sequence] as usize;
        let before = self.kv_lens[sequence] as usize - (self.cu_seqlens[sequence + 1] as usize - first);
        if let Some(chosen) = &self.chosen {
            return chosen[first + position - before].iter().map(|seen| *seen as usize).collect();
        }
        let (Some(parents), Some(row)) = (&self.parents, position.checked_sub(before)) else {
            return (0..=position).collect();
        };
        let mut path = vec![position];
        let mut row = first + row;
        while let Ok(parent) = usize::try_from(parents[row]) {
            path.push(before + parent - first);
            row = parent;
        }
        path.reverse();
        (0..before).chain(path).collect()
    }

    /// Scales for each token and head of a pool of 8 bits, and none where nobody's rows are. Some values have 0.
    pub(super) fn own_scales(&self) -> Tensor {
        let mut random = Random::new(24);
        let (blocks, rows) = (self.pool.dim(0).unwrap(), self.view.layer_rows());
        let mut scales = vec![f32::NAN; blocks * rows];
        for (sequence, &context) in self.kv_lens.iter().enumerate() {
            for token in 0..context as usize {
                for (kv, head) in (0..2).flat_map(|kv| (0..self.view.num_kv_heads).map(move |head| (kv, head))) {
                    let scale = if (kv, token % 7) == (1, 3) { 0.0 } else { 0.01 + 0.008 * random.unit() };
                    scales[self.block(sequence, token).unwrap() * rows + self.row(kv, head, token)] = scale;
                }
            }
        }
        Tensor::from_vec(scales, (blocks, rows), &Device::Cpu).unwrap()
    }

    /// The block of a token, unless it is gone.
    fn block(&self, sequence: usize, token: usize) -> Option<usize> {
        self.block_tables[sequence * self.max_blocks + token / self.view.tokens_per_block].try_into().ok()
    }

    fn row(&self, kv: usize, head: usize, token: usize) -> usize {
        self.view.row(kv, head, token % self.view.tokens_per_block)
    }

    /// The keys (`kv` 0) or values of a sequence, as stored numbers and scales make them.
    fn scaled(&self, kv: usize, sequence: usize, quant: Option<KvQuant<'_>>) -> Vec<f64> {
        let stored = &[&self.keys, &self.values][kv][sequence];
        let (heads, width) = (self.view.num_kv_heads, self.view.head_dim);
        let own = match quant {
            Some(KvQuant::PerToken(scales)) => Some(scales.to_vec2::<f32>().unwrap()),
            _ => None,
        };
        let scale = |token: usize, head: usize| match (&own, self.block(sequence, token)) {
            (Some(own), Some(block)) => own[block][self.row(kv, head, token)],
            _ => quant.map_or(1.0, |quant| quant.factor(&self.view, kv, head)),
        };
        let rows = stored.chunks_exact(width).enumerate();
        rows.flat_map(|(at, row)| row.iter().map(move |&x| (at, x)))
            .map(|(at, x)| f64::from(x) * f64::from(scale(at / heads, at % heads)))
            .collect()
    }

    fn check(&self, heads: usize, attention: &PagedAttention<'_>, tolerance: f32) {
        let run = |q: &Tensor| attention.run(&on_cpu(), q, &self.pool, &self.view, &self.batch()).unwrap();
        self.check_as(run, DType::F32, heads, attention, tolerance);
    }

    /// As [`check`](Self::check), by another executor and with queries in `dtype`.
    pub(super) fn check_as(
        &self,
        run: impl Fn(&Tensor) -> Tensor,
        dtype: DType,
        heads: usize,
        attention: &PagedAttention<'_>,
        tolerance: f32,
    ) {
        let head_dim = self.view.head_dim;
        let total = *self.cu_seqlens.last().unwrap() as usize;
        let q = Random::new(22).tensor(&[total, heads, head_dim]).to_dtype(dtype).unwrap();
        let found = values(&run(&q));
        let q = values(&q);
        let wide = |data: &[f32]| data.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
        let sinks = attention.sinks.map(wide);
        let slopes = attention.alibi_slopes.map(wide);
        let width = attention.value_dim;
        for sequence in 0..self.kv_lens.len() {
            let sees = |query: usize, key: usize| {
                let line = self.line(sequence, query);
                let Some(key) = line.iter().position(|at| *at == key) else { return false };
                let query = line.len().saturating_sub(1);
                match attention.window {
                    Window::Full => true,
                    Window::Sliding(n) => query - key < n,
                    Window::Chunked(n) => query / n == key / n,
                }
            };
            let case = AttentionCase {
                heads,
                kv_heads: self.view.num_kv_heads,
                head_dim,
                value_dim: attention.value_dim,
                scale: f64::from(attention.scale),
                softcap: attention.softcap.map(f64::from),
                sees: &sees,
                sinks: sinks.as_deref(),
                slopes: slopes.as_deref(),
            };
            let rows = self.cu_seqlens[sequence] as usize..self.cu_seqlens[sequence + 1] as usize;
            let found = &found[rows.start * heads * width..rows.end * heads * width];
            if self.kv_lens[sequence] == 0 {
                assert!(found.iter().all(|&value| value == 0.0), "padding rows are 0");
                continue;
            }
            let k = self.scaled(0, sequence, attention.quant);
            let v: Vec<f64> = match self.view.kv_factor {
                1 => k.chunks_exact(head_dim).flat_map(|row| row[..width].to_vec()).collect(),
                _ => self.scaled(1, sequence, attention.quant),
            };
            let q = wide(&q[rows.start * heads * head_dim..rows.end * heads * head_dim]);
            let expected: Vec<f32> = reference::attention(&q, &k, &v, &case).into_iter().map(|x| x as f32).collect();
            assert_close(found, &expected, tolerance);
        }
    }
}

/// Numbers as a pool stores them; those of 8 bits as f32, behind a scale of 1.
fn stored(numbers: &Tensor, dtype: DType) -> Tensor {
    match dtype {
        DType::U8 => (numbers * 100.0).unwrap().round().unwrap(),
        DType::F8E4M3 => (numbers * 100.0).unwrap().to_dtype(dtype).unwrap().to_dtype(DType::F32).unwrap(),
        _ => numbers.to_dtype(dtype).unwrap(),
    }
}

/// Decode, chunked prefill, whole prefill, padding, and lengths around blocks and tiles.
const SEQUENCES: [(usize, usize); 9] =
    [(1, 1), (1, 16), (1, 17), (5, 21), (3, 0), (0, 4), (33, 33), (40, 100), (1, 70)];

fn plain(head_dim: usize) -> PagedAttention<'static> {
    PagedAttention::new((head_dim as f32).powf(-0.5), head_dim)
}

#[rstest]
fn shapes(
    #[values(1, 2, 4, 16)] group: usize,
    #[values(16, 80, 128, 512)] head_dim: usize,
    #[values((16, KvLayout::Hnd), (32, KvLayout::Nhd), (1, KvLayout::Hnd))] blocks: (usize, KvLayout),
) {
    let layout = Layout { kv_heads: 2, head_dim, kv_factor: 2, block: blocks.0, order: blocks.1, dtype: DType::F32 };
    Paged::new(&layout, &SEQUENCES).check(2 * group, &plain(head_dim), 1e-5);
}

/// The pool's values are rounded before they are compared, so that the tolerance is that of the arithmetic.
#[rstest]
fn narrow_pools(#[values(DType::F16, DType::BF16)] dtype: DType, #[values(1, 16)] group: usize) {
    let layout = Layout { kv_heads: 2, head_dim: 64, kv_factor: 2, block: 16, order: KvLayout::Hnd, dtype };
    Paged::new(&layout, &SEQUENCES).check(2 * group, &plain(64), 1e-5);
}

/// Stored numbers times their scale come back, the nearest to what was written.
#[rstest]
#[case::int8(DType::U8, 0.5 / 127.0)]
#[case::fp8(DType::F8E4M3, 1.0 / 16.0)]
fn quantised_pools(#[case] dtype: DType, #[case] tolerance: f32, #[values(1, 8)] heads: usize) {
    let view = KvLayerView {
        block_elems: 2 * 8 * 32,
        layer_offset: 0,
        kv_factor: 2,
        num_kv_heads: 1,
        head_dim: 32,
        tokens_per_block: 8,
        order: KvLayout::Hnd,
    };
    let mut random = Random::new(23);
    let [k, v] = [(); 2].map(|()| random.tensor(&[20, 1, 32]));
    let q = random.tensor(&[2, heads, 32]);
    let slots: Vec<i64> = (0..20).map(|i| i + 8).collect();
    let batch = PagedBatch::new(&[0, 2], &[20], &[1, 2, 3], 3);
    let exact = Tensor::zeros((4, view.block_elems), DType::F32, &Device::Cpu).unwrap();
    KvWrite::new(&k, Some(&v), &slots).run(&on_cpu(), &exact, &view).unwrap();
    let expected = plain(32).run(&on_cpu(), &q, &exact, &view, &batch).unwrap();
    let pool = Tensor::zeros((4, view.block_elems), dtype, &Device::Cpu).unwrap();
    let scales = KvScales { k: 1.0 / 127.0, v: 1.0 / 127.0 };
    KvWrite { k: &k, v: Some(&v), slot_mapping: (&slots).into(), quant: Some(scales.into()) }
        .run(&on_cpu(), &pool, &view)
        .unwrap();
    let attention = PagedAttention { quant: Some(scales.into()), ..plain(32) };
    let found = attention.run(&on_cpu(), &q, &pool, &view, &batch).unwrap();
    // Errors of single values average out in a weighted mean.
    assert_close(&values(&found), &values(&expected), 2.0 * tolerance);
    let error = plain(32).run(&on_cpu(), &q, &pool, &view, &batch).unwrap_err();
    assert!(error.to_string().contains("pool needs scales"), "{error}");
}

#[rstest]
#[case::sliding(|a: &mut PagedAttention<'_>| a.window = Window::Sliding(9))]
#[case::sliding_one(|a: &mut PagedAttention<'_>| a.window = Window::Sliding(1))]
#[case::chunked(|a: &mut PagedAttention<'_>| a.window = Window::Chunked(12))]
#[case::softcap(|a: &mut PagedAttention<'_>| a.softcap = Some(0.3))]
#[case::sinks(|a: &mut PagedAttention<'_>| a.sinks = Some(&SINKS))]
#[case::alibi(|a: &mut PagedAttention<'_>| a.alibi_slopes = Some(&SLOPES))]
#[case::all(|a: &mut PagedAttention<'_>| {
    a.window = Window::Sliding(20);
    a.softcap = Some(2.0);
    a.sinks = Some(&SINKS);
    a.alibi_slopes = Some(&SLOPES);
})]
fn options(#[case] change: fn(&mut PagedAttention<'_>), #[values(1, 4)] kv_heads: usize) {
    let layout = Layout { kv_heads, head_dim: 32, kv_factor: 2, block: 8, order: KvLayout::Hnd, dtype: DType::F32 };
    let mut attention = plain(32);
    change(&mut attention);
    Paged::new(&layout, &SEQUENCES).check(16, &attention, 1e-5);
}

const SINKS: [f32; 16] = [0.5, -2.0, 4.0, 0.0, 1.0, -9.0, 8.0, 0.1, 0.2, 0.3, 0.4, 1.5, 2.5, -1.5, -2.5, 3.0];
const SLOPES: [f32; 16] = [1.0, 0.5, 0.25, 0.125, 0.06, 0.03, 0.02, 0.01, 0.9, 0.8, 0.7, 0.6, 0.4, 0.3, 0.2, 0.1];

/// Absorbed MLA: one latent head, values that are the first part of the keys.
#[rstest]
fn latent_pools(#[values(1, 16)] heads: usize) {
    let layout = Layout { kv_heads: 1, head_dim: 96, kv_factor: 1, block: 16, order: KvLayout::Hnd, dtype: DType::F32 };
    let attention = PagedAttention { value_dim: 64, ..plain(96) };
    Paged::new(&layout, &SEQUENCES).check(heads, &attention, 1e-5);
}

/// Long contexts are split and merged.
#[rstest]
fn long_contexts(#[values(1, 16)] group: usize) {
    let layout = Layout { kv_heads: 1, head_dim: 32, kv_factor: 2, block: 32, order: KvLayout::Hnd, dtype: DType::F32 };
    let mut attention = plain(32);
    Paged::new(&layout, &[(1, 1500), (2, 512), (1, 513), (40, 1100)]).check(group, &attention, 1e-5);
    attention.window = Window::Sliding(700);
    Paged::new(&layout, &[(1, 1500), (2, 512), (1, 513), (40, 1100)]).check(group, &attention, 1e-5);
}

/// Each row of a tree sees what was there before and its own path, by kernels and by candle's ops.
#[rstest]
#[case::full(Window::Full)]
#[case::sliding(Window::Sliding(9))]
#[case::sliding_within_the_tree(Window::Sliding(2))]
#[case::chunked(Window::Chunked(12))]
fn trees(#[case] window: Window, #[values(1, 4)] kv_heads: usize, #[values(2, 16)] heads: usize) {
    let kv_heads = kv_heads.min(heads);
    let layout = Layout { kv_heads, head_dim: 32, kv_factor: 2, block: 8, order: KvLayout::Hnd, dtype: DType::F32 };
    // A tree of several branches, a chain, roots without anything before them, padding, and a long context.
    let mut paged = Paged::new(&layout, &[(6, 20), (3, 17), (4, 4), (2, 0), (3, 1100)]);
    paged.parents = Some(vec![-1, 0, 0, 1, 1, 2, -1, 6, 7, -1, -1, 9, 11, -1, 13, -1, 15, 15]);
    let attention = PagedAttention { window, ..plain(32) };
    paged.check(heads, &attention, 1e-5);
    let candle = Backend::Candle(Device::Cpu);
    let run = |q: &Tensor| attention.run(&candle.run(), q, &paged.pool, &paged.view, &paged.batch()).unwrap();
    paged.check_as(run, DType::F32, heads, &attention, 1e-5);
}

/// Rows that see some positions alone, one of them nothing, by kernels and by candle's ops.
#[rstest]
fn chosen_positions(#[values(1, 2)] kv_factor: usize, #[values(2, 16)] heads: usize) {
    let kv_heads = if kv_factor == 1 { 1 } else { 2 };
    let layout = Layout { kv_heads, head_dim: 32, kv_factor, block: 8, order: KvLayout::Hnd, dtype: DType::F32 };
    let sequences = [(6, 20), (3, 17), (2, 0), (1, 1), (2, 1100)];
    let mut paged = Paged::new(&layout, &sequences);
    let positions = sequences.iter().flat_map(|&(queries, context)| (0..queries).map(move |i| (context + i, queries)));
    let chosen = positions.enumerate().map(|(row, (end, queries))| match end.checked_sub(queries) {
        Some(own) if row != 4 => (0..=own as u32).filter(|at| (at / 4 * 7 + row as u32) % 5 < 2).collect(),
        _ => Vec::new(),
    });
    paged.choose(chosen.collect());
    let attention = PagedAttention::new(0.3, if kv_factor == 1 { 24 } else { 32 });
    paged.check(heads, &attention, 1e-5);
    let candle = Backend::Candle(Device::Cpu);
    let run = |q: &Tensor| attention.run(&candle.run(), q, &paged.pool, &paged.view, &paged.batch()).unwrap();
    paged.check_as(run, DType::F32, heads, &attention, 1e-5);
}

#[rstest]
#[case::behind_itself(vec![vec![0, 4], vec![1], vec![2]], "token 0 at position 3 cannot see [0, 4]")]
#[case::falling(vec![vec![1, 0], vec![1], vec![2]], "token 0 at position 3 cannot see [1, 0]")]
#[case::twice(vec![vec![1], vec![1, 1], vec![2]], "token 1 at position 4 cannot see [1, 1]")]
#[case::too_few(vec![vec![1]], "chosen.starts must rise from 0 to 1 over 3 tokens")]
fn positions_that_no_token_can_see_are_refused(#[case] chosen: Vec<Vec<u32>>, #[case] message: &str) {
    let layout = Layout { kv_heads: 1, head_dim: 16, kv_factor: 2, block: 4, order: KvLayout::Hnd, dtype: DType::F32 };
    let mut paged = Paged::new(&layout, &[(2, 5), (1, 3)]);
    paged.choose(chosen);
    let q = Random::new(1).tensor(&[3, 2, 16]);
    let error = plain(16).run(&on_cpu(), &q, &paged.pool, &paged.view, &paged.batch()).unwrap_err();
    assert!(error.to_string().contains(message), "{error}");
}

#[rstest]
#[case::later(&[-1, 2, 0], "`parents`[1] is 2")]
#[case::of_another_sequence(&[-1, 0, 0], "`parents`[2] is 0, expected -1 or an earlier row of the sequence, 2..2")]
#[case::too_few(&[-1, 0], "2 parents for 3 tokens")]
fn parents_that_make_no_tree_are_refused(#[case] parents: &[i32], #[case] message: &str) {
    let layout = Layout { kv_heads: 1, head_dim: 16, kv_factor: 2, block: 4, order: KvLayout::Hnd, dtype: DType::F32 };
    let mut paged = Paged::new(&layout, &[(2, 5), (1, 3)]);
    paged.parents = Some(parents.to_vec());
    let q = Random::new(1).tensor(&[3, 2, 16]);
    let error = plain(16).run(&on_cpu(), &q, &paged.pool, &paged.view, &paged.batch()).unwrap_err();
    assert!(error.to_string().contains(message), "{error}");
}

/// A window pool gives back the blocks that no query sees any more.
#[test]
fn blocks_out_of_the_window_are_not_needed() {
    let layout = Layout { kv_heads: 1, head_dim: 16, kv_factor: 2, block: 4, order: KvLayout::Hnd, dtype: DType::F32 };
    let mut paged = Paged::new(&layout, &[(1, 15)]);
    paged.block_tables[0] = -1;
    paged.block_tables[1] = -1;
    let attention = PagedAttention { window: Window::Sliding(7), ..plain(16) };
    paged.check(2, &attention, 1e-5);
    let q = Random::new(1).tensor(&[1, 2, 16]);
    let error = plain(16).run(&on_cpu(), &q, &paged.pool, &paged.view, &paged.batch()).unwrap_err();
    assert!(error.to_string().contains("`block_tables`[0] is -1, but sequence 0 sees that block"), "{error}");
}

#[test]
fn the_place_in_the_batch_changes_no_bit() {
    let layout = Layout { kv_heads: 2, head_dim: 64, kv_factor: 2, block: 16, order: KvLayout::Hnd, dtype: DType::F32 };
    let paged = Paged::new(&layout, &SEQUENCES);
    let q = Random::new(22).tensor(&[85, 8, 64]);
    let attention = plain(64);
    let together = attention.run(&on_cpu(), &q, &paged.pool, &paged.view, &paged.batch()).unwrap();
    for sequence in 0..SEQUENCES.len() {
        let rows = paged.cu_seqlens[sequence] as usize..paged.cu_seqlens[sequence + 1] as usize;
        let lengths = [0, rows.len() as u32];
        let alone = PagedBatch::new(
            &lengths,
            &paged.kv_lens[sequence..=sequence],
            &paged.block_tables[sequence * paged.max_blocks..][..paged.max_blocks],
            paged.max_blocks,
        );
        let q = q.narrow(0, rows.start, rows.len()).unwrap();
        let alone = attention.run(&on_cpu(), &q, &paged.pool, &paged.view, &alone).unwrap();
        assert_eq!(values(&alone), values(&together.narrow(0, rows.start, rows.len()).unwrap()));
    }
}
