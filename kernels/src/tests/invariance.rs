//! What must not change a result: how a prompt is cut, who else is in the batch, and forks.

use super::{Random, assert_close, cu_seqlens, on_cpu, values};
use crate::*;
use candle_core::{DType, Device, Tensor};
use proptest::prelude::*;

const HEADS: usize = 2;
const HEAD_DIM: usize = 4;
const D_STATE: usize = 16;
const CHANNELS: usize = 12;
const TOKENS: usize = 150;

/// One layer of each recurrent kind over the same rows of activations.
struct Model {
    scan: [Tensor; 4],
    a: Tensor,
    conv_weight: Tensor,
    beta: Tensor,
    decay: Tensor,
    channel_decay: Tensor,
}

/// Each kind's state in a pool of its own.
struct Pools {
    scan: Tensor,
    conv: Tensor,
    linear: Tensor,
    by_channel: Tensor,
}

impl Pools {
    fn new() -> Self {
        let mut random = Random::new(51);
        Self {
            scan: random.tensor(&[6, HEADS * HEAD_DIM * D_STATE]),
            conv: random.tensor(&[6, 3 * CHANNELS]),
            linear: random.tensor(&[6, HEADS * D_STATE * HEAD_DIM]),
            by_channel: random.tensor(&[6, HEADS * D_STATE * HEAD_DIM]),
        }
    }

    fn all(&self) -> [&Tensor; 4] {
        [&self.scan, &self.conv, &self.linear, &self.by_channel]
    }

    fn slot(&self, slot: usize) -> Vec<f32> {
        self.all().iter().flat_map(|pool| values(&pool.get(slot).unwrap())).collect()
    }

    fn set(&self, slot: u32, from: u32) {
        for pool in self.all() {
            PoolRows(pool).copy(&on_cpu(), &[(from, slot)]).unwrap();
        }
    }
}

impl Model {
    fn new() -> Self {
        let mut random = Random::new(52);
        let widths = [HEADS * HEAD_DIM, HEADS, D_STATE, D_STATE];
        Self {
            scan: widths.map(|width| random.tensor(&[TOKENS, width])),
            a: (random.tensor(&[HEADS]) - 1.5).unwrap(),
            conv_weight: random.tensor(&[4, CHANNELS]),
            beta: ((random.tensor(&[TOKENS, HEADS]) + 1.0).unwrap() / 2.0).unwrap(),
            decay: (random.tensor(&[TOKENS, HEADS]) - 1.0).unwrap(),
            channel_decay: (random.tensor(&[TOKENS, HEADS * D_STATE]) - 1.0).unwrap(),
        }
    }

    /// Runs the rows of each sequence and returns the outputs of each row, all kinds together.
    fn run(&self, sequences: &[(Vec<usize>, i32)], pools: &Pools) -> Vec<Vec<f32>> {
        let rows: Vec<u32> = sequences.iter().flat_map(|(rows, _)| rows.iter().map(|&row| row as u32)).collect();
        let index = Tensor::new(rows, &Device::Cpu).unwrap();
        let lens: Vec<usize> = sequences.iter().map(|(rows, _)| rows.len()).collect();
        let slots: Vec<i32> = sequences.iter().map(|(_, slot)| *slot).collect();
        let offsets = cu_seqlens(&lens);
        let batch = StateBatch::new(&offsets, &slots);
        let pick = |tensor: &Tensor| tensor.index_select(&index, 0).unwrap();
        let [x, dt, b, c] = [0, 1, 2, 3].map(|i| pick(&self.scan[i]));
        let input = ScanInput { x: &x, dt: &dt, b: &b, c: &c, z: None };
        let layer = Mamba2Scan { a: &self.a, d: None, time_step: TimeStep::new(None) };
        let view = StateLayerView::matrix(HEADS * HEAD_DIM * D_STATE, 0, [HEADS, HEAD_DIM, D_STATE]);
        let scan = layer.run(&on_cpu(), &input, &pools.scan, &view, &batch).unwrap();
        let conv_x = Tensor::cat(&[&x, &b], 1).unwrap().narrow(1, 0, CHANNELS).unwrap();
        let view = StateLayerView::conv(3 * CHANNELS, 0, 4, CHANNELS);
        let conv = CausalConv1d { weight: &self.conv_weight, bias: None, silu: true }
            .run(&on_cpu(), &conv_x, &pools.conv, &view, &batch)
            .unwrap();
        let (beta, decay, channel_decay) = (pick(&self.beta), pick(&self.decay), pick(&self.channel_decay));
        let input = LinearAttentionScan {
            q: &b,
            k: &c,
            v: &x,
            decay: StateDecay::PerHead(&decay),
            beta: Some(&beta),
            scale: 0.25,
            l2_norm: true,
        };
        let view = StateLayerView::matrix(HEADS * D_STATE * HEAD_DIM, 0, [HEADS, D_STATE, HEAD_DIM]);
        let linear = input.run(&on_cpu(), &pools.linear, &view, &batch).unwrap();
        let input = LinearAttentionScan { decay: StateDecay::PerChannel(&channel_decay), ..input };
        let by_channel = input.run(&on_cpu(), &pools.by_channel, &view, &batch).unwrap();
        let outputs = [scan, conv, linear, by_channel].map(|out| out.to_vec2::<f32>().unwrap());
        (0..index.elem_count()).map(|row| outputs.iter().flat_map(|out| out[row].clone()).collect()).collect()
    }
}

fn all_rows() -> Vec<usize> {
    (0..TOKENS).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn any_cut_of_a_prompt_ends_in_the_same_state(cuts in proptest::collection::btree_set(1..TOKENS, 0..6)) {
        let model = Model::new();
        let whole = Pools::new();
        let expected = model.run(&[(all_rows(), 0)], &whole);
        let pieces = Pools::new();
        let mut found = Vec::new();
        let mut start = 0;
        for end in cuts.into_iter().chain([TOKENS]) {
            found.extend(model.run(&[((start..end).collect(), 0)], &pieces));
            start = end;
        }
        assert_close(&found.concat(), &expected.concat(), 1e-5);
        assert_close(&pieces.slot(0), &whole.slot(0), 1e-5);
    }

    #[test]
    fn neighbours_order_and_padding_change_no_bit(
        lens in proptest::collection::vec(0..70usize, 4),
        place in 0..4usize,
        padding in 0..20usize,
    ) {
        let model = Model::new();
        let alone = Pools::new();
        let rows: Vec<usize> = (5..5 + lens[place]).collect();
        let expected = model.run(&[(rows.clone(), 3)], &alone);
        let together = Pools::new();
        let mut sequences: Vec<(Vec<usize>, i32)> = lens
            .iter()
            .enumerate()
            .map(|(i, &len)| ((i..i + len).collect(), [0, 1, 2, 4][i]))
            .collect();
        sequences[place] = (rows, 3);
        sequences.insert(place, ((0..padding).collect(), -1));
        let before: usize = sequences[..=place].iter().map(|(rows, _)| rows.len()).sum();
        let found = model.run(&sequences, &together);
        prop_assert_eq!(&found[before..before + lens[place]], &expected[..]);
        prop_assert!(found[before - padding..before].iter().flatten().all(|&value| value == 0.0));
        prop_assert_eq!(together.slot(3), alone.slot(3));
        prop_assert_eq!(together.slot(5), alone.slot(5), "a slot of nobody stays as it was");
    }

    #[test]
    fn forks_and_rollbacks_are_bit_equal(prefix in 1..60usize, branch in 1..60usize) {
        let model = Model::new();
        let pools = Pools::new();
        model.run(&[((0..prefix).collect(), 0)], &pools);
        pools.set(1, 0);
        let rows: Vec<usize> = (prefix..prefix + branch).collect();
        let first = model.run(&[(rows.clone(), 0)], &pools);
        let forked = model.run(&[(rows.clone(), 1)], &pools);
        prop_assert_eq!(&first, &forked);
        prop_assert_eq!(pools.slot(0), pools.slot(1));
        // Back to the prefix, by running it again from the first state.
        let again = Pools::new();
        model.run(&[((0..prefix).collect(), 0)], &again);
        pools.set(2, 0);
        for (pool, saved) in pools.all().into_iter().zip(again.all()) {
            PoolRows(pool).scatter(&[2], &PoolRows(saved).gather(&[0]).unwrap()).unwrap();
        }
        prop_assert_eq!(model.run(&[(rows, 2)], &pools), first);
    }
}

/// TensorRT-Edge-LLM's metadata of contexts 78, 175 and 462, padded to 462, for chunks of 128 rows of the padded batch:
/// states move on from piece to piece as in one call.
#[test]
fn the_pieces_of_the_edge_llm_vector_end_in_the_same_states() {
    const CONTEXTS: [usize; 3] = [78, 175, 462];
    const CUMULATIVE_CHUNKS: [usize; 4] = [0, 1, 3, 7];
    const INDICES: [usize; 7] = [0, 3, 4, 7, 8, 9, 10];
    const OFFSETS: [usize; 7] = [0, 78, 0, 28, 0, 0, 0];
    let model = Model::new();
    for (sequence, context) in CONTEXTS.into_iter().enumerate() {
        let chunks = CUMULATIVE_CHUNKS[sequence]..CUMULATIVE_CHUNKS[sequence + 1];
        let mut cuts: Vec<usize> = chunks.map(|i| INDICES[i] * 128 + OFFSETS[i] - sequence * 462).collect();
        cuts.push(context);
        assert!(cuts[0] == 0 && cuts.windows(2).all(|cut| (1..=128).contains(&(cut[1] - cut[0]))), "{cuts:?}");
        let rows = |range: std::ops::Range<usize>| range.map(|row| row % TOKENS).collect::<Vec<_>>();
        let (whole, pieces) = (Pools::new(), Pools::new());
        let expected = model.run(&[(rows(0..context), 0)], &whole);
        let found: Vec<_> = cuts.windows(2).flat_map(|cut| model.run(&[(rows(cut[0]..cut[1]), 0)], &pieces)).collect();
        assert_close(&found.concat(), &expected.concat(), 1e-5);
        assert_close(&pieces.slot(0), &whole.slot(0), 1e-5);
    }
}

#[test]
fn a_slot_of_two_sequences_is_refused() {
    let pool = Tensor::zeros((2, 3), DType::F32, &Device::Cpu).unwrap();
    let x = Tensor::zeros((2, 1), DType::F32, &Device::Cpu).unwrap();
    let weight = Tensor::zeros((4, 1), DType::F32, &Device::Cpu).unwrap();
    let view = StateLayerView::conv(3, 0, 4, 1);
    let batch = StateBatch::new(&[0, 1, 2], &[1, 1]);
    let error =
        CausalConv1d { weight: &weight, bias: None, silu: false }.run(&on_cpu(), &x, &pool, &view, &batch).unwrap_err();
    assert!(error.to_string().contains("`slots`[1] is 1, which another sequence or token holds already"), "{error}");
}
