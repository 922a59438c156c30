//! T5: DeepSeek-V4's paged resources with pages and strides of their own.
//!
//! max_seq_len 256 and 2 sequences; a compressed resource has one entry for every 4 (or 128) tokens.

use cacheplan_handlers::{DType, Dim, Growth, Kind, ResourceHandler};
use cacheplan_managers::book::{CacheBook, PassedPages, RaggedPages, SequenceId, StepMetadata, Work};
use cacheplan_planner::{CachePlan, Limits, SlotDomain};
use rstest::rstest;

use crate::support::Setup;

const SWA: usize = 0;
const MHC: usize = 1;
const INDEXER: usize = 2;

fn paged(name: &str, shape: &[u64], dtype: DType, stride: u32) -> ResourceHandler {
    let dims = shape.iter().enumerate().map(|(axis, &size)| Dim::whole(format!("dim{axis}"), size)).collect();
    let kind = Kind::Custom(format!("deepseek_v4.{name}"));
    ResourceHandler::new(kind, Growth::Paged { stride, window: None }, dims, dtype, None).unwrap()
}

/// Gives pools their own page size and number of pages.
fn with_pages(mut plan: CachePlan, pages: &[(u64, u64)]) -> CachePlan {
    for (index, &(entries, units)) in pages.iter().enumerate() {
        let unit = plan.resources[index].handler.unit_bytes();
        let pool = &mut plan.pools[index];
        (pool.unit_bytes, pool.units, pool.bytes) = (unit * entries, units, unit * entries * units);
        pool.members[0].bytes = pool.unit_bytes;
    }
    plan
}

fn plan() -> CachePlan {
    let mut setup = Setup::new()
        .with(0, paged("swa", &[2, 1, 8], DType::F16, 1))
        .with(0, paged("mhc", &[1, 8], DType::Bf16, 4))
        .with(0, paged("indexer", &[1, 4], DType::F16, 4))
        .with(0, ResourceHandler::state(&[4, 8], DType::Bf16).unwrap());
    setup.slots = SlotDomain { padding: 1, live: 2, checkpoints: 0 };
    setup.limits = Limits { max_seq_len: 256, max_batch_size: 2, max_num_tokens: 256, draft_positions: 1 };
    with_pages(setup.plan(), &[(4, 9), (2, 5), (2, 5)])
}

fn grown(book: &mut CacheBook, lengths: &[u32]) -> Vec<SequenceId> {
    let ids: Vec<_> = lengths.iter().map(|&length| book.admit(length).unwrap()).collect();
    for (&sequence, &tokens) in ids.iter().zip(lengths) {
        book.step(&[Work { sequence, tokens }], &mut StepMetadata::default()).unwrap();
    }
    ids
}

fn pages(book: &CacheBook, ids: &[SequenceId], pool: usize) -> RaggedPages {
    book.ragged_pages(ids, pool, PassedPages::Cut).unwrap()
}

#[cfg(feature = "device")]
#[test]
fn t5_1_each_resource_has_pages_of_its_own() {
    use cacheplan_managers::device::CacheSet;
    let set = CacheSet::allocate(&plan(), &candle_core::Device::Cpu).unwrap();
    let manager = set.manager().unwrap();
    let shape = |name: &str| {
        let layer = manager.kv_layer(manager.route_of(name).unwrap()).unwrap();
        let view = layer.view;
        [layer.pool.dims()[0], view.tokens_per_block, view.num_kv_heads, view.head_dim]
    };
    assert_eq!(shape("deepseek_v4.swa_0"), [9, 4, 2, 8]);
    assert_eq!(shape("deepseek_v4.mhc_0"), [5, 2, 1, 8]);
    assert_eq!(shape("deepseek_v4.indexer_0"), [5, 2, 1, 4]);
    let compressor = manager.state_layer(manager.route_of("state_0").unwrap()).unwrap();
    assert_eq!((compressor.pool.dims()[0], compressor.view.shape), (3, [4, 8, 1]));
}

#[test]
fn t5_2_compressed_lengths_are_rounded_up() {
    let mut book = CacheBook::new(&plan()).unwrap();
    let ids = grown(&mut book, &[9, 13]);
    let (mhc, swa) = (pages(&book, &ids, MHC), pages(&book, &ids, SWA));
    assert_eq!((mhc.seq_len_with_cache, mhc.last_page_len), (vec![3, 4], vec![1, 2]));
    assert_eq!((swa.seq_len_with_cache, swa.last_page_len), (vec![9, 13], vec![1, 1]));
}

#[test]
fn t5_3_a_decode_step_grows_each_resource_at_its_own_pace() {
    let mut book = CacheBook::new(&plan()).unwrap();
    let ids = grown(&mut book, &[8, 9]);
    let work: Vec<_> = ids.iter().map(|&sequence| Work { sequence, tokens: 1 }).collect();
    let mut step = StepMetadata::default();
    book.step(&work, &mut step).unwrap();
    assert_eq!(step.positions, [8, 9]);
    assert_eq!(pages(&book, &ids, SWA).seq_len_with_cache, [9, 10]);
    assert_eq!(pages(&book, &ids, SWA).cu_num_pages, [0, 3, 6]);
    for pool in [MHC, INDEXER] {
        assert_eq!(pages(&book, &ids, pool).seq_len_with_cache, [3, 3]);
        assert_eq!(pages(&book, &ids, pool).cu_num_pages, [0, 2, 4]);
    }
}

#[rstest]
#[case(128, 1)]
#[case(129, 2)]
#[case(255, 2)]
fn t5_4_a_stride_of_128_takes_one_page(#[case] tokens: u32, #[case] entries: u32) {
    let mut setup = Setup::new()
        .with(0, paged("compressed", &[1, 8], DType::Bf16, 128))
        .with(0, paged("tokens", &[1, 8], DType::Bf16, 1));
    setup.limits = Limits { max_seq_len: 256, max_batch_size: 1, max_num_tokens: 256, draft_positions: 1 };
    let mut book = CacheBook::new(&with_pages(setup.plan(), &[(2, 3), (8, 33)])).unwrap();
    let ids = grown(&mut book, &[tokens]);
    let (compressed, plain) = (pages(&book, &ids, 0), pages(&book, &ids, 1));
    assert_eq!((compressed.seq_len_with_cache, compressed.pages.len()), (vec![entries], 1));
    assert!(compressed.pages.len() < plain.pages.len());
}
