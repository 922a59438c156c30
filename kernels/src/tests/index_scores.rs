//! The choice of an indexer against scores of every entry in f64.

use super::{Random, assert_close, on_cpu, values};
use crate::reference;
use crate::*;
use cacheplan_handlers::KvLayout;
use candle_core::{DType, Device, Tensor};
use rstest::rstest;

const HEADS: usize = 3;
const DIM: usize = 8;
/// Entries in a block.
const BLOCK: usize = 4;
/// Query tokens and context: one that decodes, a chunk, a prompt, one without a whole entry, padding.
const SEQUENCES: [(usize, usize); 5] = [(1, 61), (7, 40), (70, 70), (1, 2), (2, 0)];

struct Case {
    pool: Tensor,
    view: KvLayerView,
    keys: Vec<Vec<f32>>,
    cu_seqlens: Vec<u32>,
    kv_lens: Vec<u32>,
    tables: Vec<i32>,
    max_blocks: usize,
}

/// Keys of a sequence's whole entries in blocks of a pool full of NaN.
fn case(stride: usize, dtype: DType) -> Case {
    let max_blocks = SEQUENCES.iter().map(|(_, context)| (context / stride).div_ceil(BLOCK)).max().unwrap();
    let view = KvLayerView {
        block_elems: (BLOCK + 3) * DIM,
        layer_offset: 2 * DIM,
        kv_factor: 1,
        num_kv_heads: 1,
        head_dim: DIM,
        tokens_per_block: BLOCK,
        order: KvLayout::Nhd,
    };
    let blocks = SEQUENCES.len() * max_blocks;
    let pool = Tensor::full(f32::NAN, (blocks, view.block_elems), &Device::Cpu).unwrap().to_dtype(dtype).unwrap();
    let (cu_seqlens, kv_lens) = (vec![0], Vec::new());
    let mut case = Case { pool, view, keys: Vec::new(), cu_seqlens, kv_lens, tables: Vec::new(), max_blocks };
    let mut random = Random::new(3);
    for (sequence, (queries, context)) in SEQUENCES.into_iter().enumerate() {
        let entries = context / stride;
        let block = |logical: usize| (blocks - 1 - logical * SEQUENCES.len() - sequence) as i32;
        let table: Vec<i32> =
            (0..max_blocks).map(|at| if at < entries.div_ceil(BLOCK) { block(at) } else { -1 }).collect();
        let k = random.tensor(&[entries, 1, DIM]).to_dtype(dtype).unwrap();
        let slots: Vec<i64> =
            (0..entries).map(|at| i64::from(table[at / BLOCK]) * BLOCK as i64 + (at % BLOCK) as i64).collect();
        KvWrite::new(&k, None, &slots).run(&on_cpu(), &case.pool, &case.view).unwrap();
        case.keys.push(values(&k));
        case.tables.extend(table);
        case.cu_seqlens.push(case.cu_seqlens[sequence] + queries as u32);
        case.kv_lens.push(context as u32);
    }
    case
}

impl Case {
    fn batch(&self) -> PagedBatch<'_> {
        PagedBatch::new(&self.cu_seqlens, &self.kv_lens, &self.tables, self.max_blocks)
    }
}

#[rstest]
fn the_best_entries_are_chosen_of_those_that_are_seen(
    #[values(1, 3)] stride: usize,
    #[values(1, 5, 1000)] most: usize,
    #[values(false, true)] weighted: bool,
    #[values(DType::F32, DType::BF16)] dtype: DType,
    #[values(false, true)] by_candle: bool,
) {
    let case = case(stride, dtype);
    let total = *case.cu_seqlens.last().unwrap() as usize;
    let mut random = Random::new(4);
    let (q, shares) = (random.tensor(&[total, HEADS, DIM]), random.tensor(&[total, HEADS]));
    let scores = IndexScores { scale: 0.4, shares: weighted.then_some(&shares), stride, most, quant: None };
    let on = if by_candle { Backend::Candle(Device::Cpu) } else { Backend::Cpu };
    let best = scores.best(&on.run(), &q, &case.pool, &case.view, &case.batch()).unwrap();
    let (q, shares) = (values(&q), values(&shares));
    for (sequence, (queries, context)) in SEQUENCES.into_iter().enumerate() {
        for row in 0..queries {
            let at = case.cu_seqlens[sequence] as usize + row;
            let seen = if context == 0 { 0 } else { (context - queries + row + 1) / stride };
            let q = &q[at * HEADS * DIM..][..HEADS * DIM];
            let shares = if weighted { shares[at * HEADS..][..HEADS].to_vec() } else { vec![1.0; HEADS] };
            let scores = reference::index_scores(q, &case.keys[sequence][..seen * DIM], &shares, 0.4);
            assert_eq!(best[at].len(), most.min(seen));
            assert!(best[at].is_sorted_by(|a, b| a < b));
            // As many of the chosen scores as there are: near ones may change places.
            let mut of_chosen: Vec<f32> = best[at].iter().map(|entry| scores[*entry as usize] as f32).collect();
            let mut of_all: Vec<f32> = scores.iter().map(|score| *score as f32).collect();
            for scores in [&mut of_chosen, &mut of_all] {
                scores.sort_by(|a, b| b.total_cmp(a));
            }
            assert_close(&of_chosen, &of_all[..of_chosen.len()], 1e-5);
        }
    }
}

/// Scores of 0 are common: no head's product is above it.
#[test]
fn of_equal_entries_the_earlier_is_chosen() {
    let case = case(1, DType::F32);
    let q = Tensor::zeros((*case.cu_seqlens.last().unwrap() as usize, HEADS, DIM), DType::F32, &Device::Cpu).unwrap();
    let scores = IndexScores { scale: 1.0, shares: None, stride: 1, most: 3, quant: None };
    let best = scores.best(&on_cpu(), &q, &case.pool, &case.view, &case.batch()).unwrap();
    assert_eq!(best[0], [0, 1, 2]);
}

#[test]
fn a_block_that_is_not_there_is_refused() {
    let mut case = case(1, DType::F32);
    case.tables[1] = -1;
    let q = Tensor::zeros((*case.cu_seqlens.last().unwrap() as usize, HEADS, DIM), DType::F32, &Device::Cpu).unwrap();
    let scores = IndexScores { scale: 1.0, shares: None, stride: 1, most: 3, quant: None };
    let error = scores.best(&on_cpu(), &q, &case.pool, &case.view, &case.batch()).unwrap_err();
    assert!(error.to_string().contains("`block_tables`[1] is -1, but sequence 0 has entries in that block"), "{error}");
}
