//! Replaying kept inputs gives the bits of having stepped over them, whatever the recurrence.

use super::{Random, assert_close, on_cpu, values};
use crate::reference::{self, LinearAttentionCase, MambaCase};
use crate::states::States;
use crate::*;
use candle_core::{DType, Device, Tensor};
use rstest::rstest;

const HEADS: usize = 4;
const ROWS: usize = 8;
const COLUMNS: usize = 12;
/// Heads of keys, and groups of `B`.
const SHARED: usize = 2;
const TOKENS: usize = 40;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Recurrence {
    Mamba1,
    Mamba2,
    GatedDelta,
    KimiDelta,
    Lightning,
    RgLru,
}

use Recurrence::{GatedDelta, KimiDelta, Lightning, Mamba1, Mamba2 as Ssd, RgLru as Lru};

/// A layer with the inputs of some tokens; `[TOKENS, width]` each.
struct Layer {
    recurrence: Recurrence,
    portable: bool,
    view: StateLayerView,
    /// Keys and queries, `B` and `C`.
    shared: [Tensor; 2],
    /// `x` or values.
    x: Tensor,
    /// A number for each head: time steps, write strengths.
    per_head: Tensor,
    /// Log decays for each head or each of its rows.
    decay: Tensor,
    /// Gates of the recurrent unit.
    gates: [Tensor; 2],
    /// Negative rates of decay, as many as the largest recurrence has.
    rates: Tensor,
}

impl Layer {
    fn new(recurrence: Recurrence, portable: bool) -> Self {
        let shape = match recurrence {
            Mamba1 => [HEADS * ROWS, 1, COLUMNS],
            Lru => [HEADS * ROWS, 1, 1],
            _ => [HEADS, ROWS, COLUMNS],
        };
        let (shared, x, per_head) = match recurrence {
            Mamba1 => (COLUMNS, HEADS * ROWS, HEADS * ROWS),
            Ssd => (SHARED * COLUMNS, HEADS * ROWS, HEADS),
            Lru => (1, HEADS * ROWS, 1),
            _ => (SHARED * ROWS, HEADS * COLUMNS, HEADS),
        };
        let mut random = Random::new(41);
        let mut made = |width: usize| random.tensor(&[TOKENS, width]);
        let decays = if recurrence == KimiDelta { HEADS * ROWS } else { HEADS };
        let elems: usize = shape.iter().product();
        Self {
            recurrence,
            portable,
            view: StateLayerView::matrix(elems + 6, 5, shape),
            shared: [made(shared), made(shared)],
            x: made(x),
            per_head: ((made(per_head) + 1.0).unwrap() / 2.0).unwrap(),
            decay: (made(decays) - 1.0).unwrap(),
            gates: [made(HEADS * ROWS), made(HEADS * ROWS)],
            rates: (made(HEADS * ROWS * COLUMNS) - 1.5).unwrap().get(0).unwrap(),
        }
    }

    /// Runs the given rows; a replay is given nothing that only its readout would need.
    fn run(&self, rows: &[u32], pool: &Tensor, batch: &StateBatch<'_>) -> Vec<Vec<f32>> {
        let rows = Tensor::new(rows, &Device::Cpu).unwrap();
        let pick = |tensor: &Tensor| tensor.index_select(&rows, 0).unwrap();
        let [kept, readout] = self.shared.each_ref().map(pick);
        let readout = if matches!(batch.writes, StateWrites::Replay) { &kept } else { &readout };
        let (x, per_head, decay) = (pick(&self.x), pick(&self.per_head), pick(&self.decay));
        let view = &self.view;
        let out = match self.recurrence {
            Mamba1 => {
                let a = self.rates.reshape((HEADS * ROWS, COLUMNS)).unwrap();
                let layer = Mamba1Scan { a: &a, d: None, time_step: TimeStep::new(None) };
                let input = ScanInput { x: &x, dt: &per_head, b: &kept, c: readout, z: None };
                match self.portable {
                    true => portable::mamba1::mamba1_scan(&input, &layer, &States { pool, view, batch }),
                    false => layer.run(&on_cpu(), &input, pool, view, batch),
                }
            }
            Ssd => {
                let a = self.rates.narrow(0, 0, HEADS).unwrap();
                let layer = Mamba2Scan { a: &a, d: None, time_step: TimeStep::new(None) };
                let input = ScanInput { x: &x, dt: &per_head, b: &kept, c: readout, z: None };
                match self.portable {
                    true => portable::mamba2::mamba2_scan(&input, &layer, &States { pool, view, batch }),
                    false => layer.run(&on_cpu(), &input, pool, view, batch),
                }
            }
            Lru => {
                let a = self.rates.narrow(0, 0, HEADS * ROWS).unwrap();
                let [input_gate, recurrence_gate] = self.gates.each_ref().map(pick);
                let positions = vec![1; rows.elem_count()];
                let (input_gate, recurrence_gate) = (&input_gate, &recurrence_gate);
                let input =
                    RgLruScan { x: &x, input_gate, recurrence_gate, a_param: &a, positions: (&positions).into() };
                match self.portable {
                    true => portable::rg_lru::rg_lru(&input, &States { pool, view, batch }),
                    false => input.run(&on_cpu(), pool, view, batch),
                }
            }
            _ => {
                let slopes = self.slopes();
                let input = LinearAttentionScan {
                    q: readout,
                    k: &kept,
                    v: &x,
                    decay: match self.recurrence {
                        GatedDelta => StateDecay::PerHead(&decay),
                        KimiDelta => StateDecay::PerChannel(&decay),
                        _ => StateDecay::Fixed(&slopes),
                    },
                    beta: (self.recurrence != Lightning).then_some(&per_head),
                    scale: 0.5,
                    l2_norm: self.recurrence != Lightning,
                };
                match self.portable {
                    true => portable::linear_attention::linear_attention(&input, &States { pool, view, batch }),
                    false => input.run(&on_cpu(), pool, view, batch),
                }
            }
        };
        out.unwrap().to_vec2().unwrap()
    }

    fn slopes(&self) -> Vec<f32> {
        (0..HEADS).map(|head| -0.3 / (head + 1) as f32).collect()
    }

    /// A pool of four slots; slots are wider than the layer.
    fn pool(&self, dtype: DType) -> Tensor {
        Random::new(42).tensor(&[4, self.view.slot_elems]).to_dtype(dtype).unwrap()
    }

    /// The outputs and the slot after stepping over `path` one token at a time.
    fn in_order(&self, path: &[u32], dtype: DType) -> (Vec<Vec<f32>>, Vec<f32>) {
        let pool = self.pool(dtype);
        let step = |&row: &u32| self.run(&[row], &pool, &StateBatch::new(&[0, 1], &[2]));
        (path.iter().flat_map(step).collect(), values(&pool))
    }

    /// The layer's state after `path` as the reference has it.
    fn reference(&self, path: &[u32], dtype: DType) -> Vec<f32> {
        let rows = Tensor::new(path, &Device::Cpu).unwrap();
        let wide = |tensor: &Tensor| -> Vec<f64> {
            let picked = tensor.index_select(&rows, 0).unwrap();
            values(&picked).into_iter().map(f64::from).collect()
        };
        let start = 2 * self.view.slot_elems + self.view.layer_offset;
        let before = &values(&self.pool(dtype))[start..start + self.view.elems()];
        let mut state: Vec<f64> = before.iter().copied().map(f64::from).collect();
        let rates: Vec<f64> = values(&self.rates).into_iter().map(f64::from).collect();
        let (b, c, x, per_head) = (wide(&self.shared[0]), wide(&self.shared[1]), wide(&self.x), wide(&self.per_head));
        match self.recurrence {
            Mamba1 | Ssd => {
                let one = self.recurrence == Mamba1;
                let case = MambaCase {
                    heads: if one { HEADS * ROWS } else { HEADS },
                    head_dim: if one { 1 } else { ROWS },
                    d_state: COLUMNS,
                    groups: if one { 1 } else { SHARED },
                    x: &x,
                    dt: &per_head,
                    a: if one { &rates } else { &rates[..HEADS] },
                    b: &b,
                    c: &c,
                    d: None,
                    z: None,
                    dt_bias: None,
                    dt_limit: (0.0, f64::INFINITY),
                };
                reference::mamba(&case, &mut state);
            }
            Lru => {
                let [i, r] = self.gates.each_ref().map(wide);
                let positions = vec![1; path.len()];
                reference::rg_lru(&x, &i, &r, &rates[..HEADS * ROWS], &positions, &mut state);
            }
            _ => {
                let per_row = |at: usize| match self.recurrence {
                    GatedDelta => wide(&self.decay)[at / ROWS],
                    KimiDelta => wide(&self.decay)[at],
                    _ => f64::from(self.slopes()[at / ROWS % HEADS]),
                };
                let decay: Vec<f64> = (0..path.len() * HEADS * ROWS).map(per_row).collect();
                let case = LinearAttentionCase {
                    key_heads: SHARED,
                    heads: HEADS,
                    key_dim: ROWS,
                    value_dim: COLUMNS,
                    q: &c,
                    k: &b,
                    v: &x,
                    decay: &decay,
                    beta: (self.recurrence != Lightning).then_some(&per_head),
                    scale: 0.5,
                    l2_norm: self.recurrence != Lightning,
                };
                reference::linear_attention(&case, &mut state);
            }
        }
        state.into_iter().map(|value| value as f32).collect()
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[rstest]
fn a_replay_of_any_length_is_stepping(
    #[values(Mamba1, Ssd, GatedDelta, KimiDelta, Lightning, Lru)] recurrence: Recurrence,
    #[values(DType::F32, DType::BF16)] dtype: DType,
    #[values(false, true)] portable: bool,
) {
    let layer = Layer::new(recurrence, portable);
    for accepted in (0..=17).chain([TOKENS]) {
        let path: Vec<u32> = (0..accepted as u32).collect();
        let pool = layer.pool(dtype);
        let rows = [0, accepted as u32];
        let batch = StateBatch::new(&rows, &[2]).with_writes(StateWrites::Replay);
        layer.run(&path, &pool, &batch);
        assert_eq!(bits(&values(&pool)), bits(&layer.in_order(&path, dtype).1), "{accepted} accepted");
        let start = 2 * layer.view.slot_elems + layer.view.layer_offset;
        let tolerance = if dtype == DType::F32 { 1e-5 } else { 2e-2 };
        let found = &values(&pool)[start..start + layer.view.elems()];
        assert_close(found, &layer.reference(&path, dtype), tolerance);
    }
}

#[rstest]
fn a_tree_is_verified_without_a_trace_and_any_of_its_paths_replayed(
    #[values(Mamba1, Ssd, GatedDelta, KimiDelta, Lightning, Lru)] recurrence: Recurrence,
    #[values(DType::F32, DType::BF16)] dtype: DType,
    #[values(false, true)] portable: bool,
) {
    let layer = Layer::new(recurrence, portable);
    // 0 - 1 - 3     6
    //  \\- 2 - 4 - 5
    let parents = [-1, 0, 0, 1, 2, 4, -1];
    let pool = layer.pool(dtype);
    let writes = StateWrites::Tree { parents: &parents, slots: &[] };
    let verified = layer.run(&[0, 1, 2, 3, 4, 5, 6], &pool, &StateBatch::new(&[0, 7], &[2]).with_writes(writes));
    assert_eq!(bits(&values(&pool)), bits(&values(&layer.pool(dtype))), "verifying leaves no trace");
    for (node, verified) in verified.iter().enumerate() {
        let up = std::iter::successors(Some(node as u32), |&node| u32::try_from(parents[node as usize]).ok());
        let mut path: Vec<u32> = up.collect();
        path.reverse();
        let (outputs, stepped) = layer.in_order(&path, dtype);
        assert_eq!(verified, &outputs[path.len() - 1], "the output of candidate {node}");
        let pool = layer.pool(dtype);
        let rows = [0, path.len() as u32];
        let batch = StateBatch::new(&rows, &[2]).with_writes(StateWrites::Replay);
        layer.run(&path, &pool, &batch);
        assert_eq!(bits(&values(&pool)), bits(&stepped), "path {path:?}");
    }
}

#[test]
fn a_convolution_verifies_a_tree_without_slots() {
    let x = Random::new(43).tensor(&[4, 6]);
    let weight = Random::new(44).tensor(&[4, 6]);
    let view = StateLayerView::conv(18, 0, 4, 6);
    let pool = Random::new(45).tensor(&[3, 18]);
    let run = |rows: &[u32], pool: &Tensor, batch: &StateBatch<'_>| -> Vec<Vec<f32>> {
        let x = x.index_select(&Tensor::new(rows, &Device::Cpu).unwrap(), 0).unwrap();
        CausalConv1d { weight: &weight, bias: None, silu: true }
            .run(&on_cpu(), &x, pool, &view, batch)
            .unwrap()
            .to_vec2()
            .unwrap()
    };
    let writes = StateWrites::Tree { parents: &[-1, 0, 0, 2], slots: &[] };
    let verified = run(&[0, 1, 2, 3], &pool, &StateBatch::new(&[0, 4], &[1]).with_writes(writes));
    let copy = pool.copy().unwrap();
    let path = run(&[0, 2, 3], &copy, &StateBatch::new(&[0, 3], &[1]));
    assert_eq!([&verified[0], &verified[2], &verified[3]], [&path[0], &path[1], &path[2]]);
    assert_eq!(values(&pool), Random::new(45).vec(54));
}
