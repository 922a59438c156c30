//! Ops that carry a state from token to token.

use super::{Case, Data, Sequences, Work, name, tolerance};
use crate::{
    CausalConv1d, KernelError, LinearAttentionScan, Mamba1Scan, Mamba2Scan, RgLruScan, ScanInput, StateBatch,
    StateDecay, StateLayerView, StateWrites, TimeStep,
};
use candle_core::{DType, Tensor};

/// Elements around a layer's state in its slot: other layers.
const BESIDE: usize = 8;

/// Which states a step leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writes {
    /// That after its last token.
    Final,
    /// With the bits of one token after the other.
    Replay,
    /// Besides, that after every other token, as a prefix cache keeps them.
    Snapshots,
    /// None but those of the nodes of a tree, in slots of their own.
    Tree,
}

impl Writes {
    fn name(self) -> &'static str {
        match self {
            Self::Final => "",
            Self::Replay => ", replay",
            Self::Snapshots => ", snapshots",
            Self::Tree => ", tree",
        }
    }
}

/// A state pool with its step: a slot for each sequence and, where they are kept, for each token.
struct Step {
    of: Sequences,
    writes: Writes,
    view: StateLayerView,
    pool: Tensor,
    /// Of snapshots and of a tree's nodes.
    nodes: Vec<i32>,
    parents: Vec<i32>,
}

impl Step {
    fn new(
        data: &mut Data,
        of: &Sequences,
        writes: Writes,
        view: impl Fn(usize, usize) -> StateLayerView,
        dtype: DType,
    ) -> Result<Self, KernelError> {
        let elements = view(usize::MAX, 0).elems();
        let beside = if data.is_poisoned() { BESIDE } else { 0 };
        let view = view(elements + 2 * beside, beside);
        let mut slots = of.len() + 2;
        let tokens = of.tokens();
        let nodes = match writes {
            Writes::Final | Writes::Replay => Vec::new(),
            Writes::Snapshots => (0..tokens).map(|at| if at % 2 == 0 { (slots + at) as i32 } else { -1 }).collect(),
            Writes::Tree => (0..tokens).map(|at| (slots + at) as i32).collect(),
        };
        if !nodes.is_empty() {
            slots += tokens;
        }
        // Each token of a tree follows the one before the one before it.
        let parent = |rows: &[u32]| {
            let first = i64::from(rows[0]);
            (first..i64::from(rows[1])).map(move |row| if row - 2 < first { -1 } else { (row - 2) as i32 })
        };
        let parents = of.cu_seqlens.windows(2).flat_map(parent).collect();
        let pool = data.pool([slots, view.slot_elems], &of.owned(), [view.layer_offset, elements], dtype)?;
        Ok(Self { of: of.clone(), writes, view, pool, nodes, parents })
    }

    fn batch(&self) -> StateBatch<'_> {
        let writes = match self.writes {
            Writes::Final => StateWrites::Final,
            Writes::Replay => StateWrites::Replay,
            Writes::Snapshots => StateWrites::AlsoAfter(&self.nodes),
            Writes::Tree => StateWrites::Tree { parents: &self.parents, slots: &self.nodes },
        };
        self.of.batch().with_writes(writes)
    }

    /// What a call gives, with the pool that it changed.
    fn given(&self, out: Tensor) -> Result<Vec<Tensor>, KernelError> {
        Ok(vec![out, self.pool.clone()])
    }
}

/// What is shared by the sizes of every op here: sequences, and tokens of the longest.
fn sizes(of: &Sequences) -> Vec<(&'static str, usize)> {
    vec![("batch", of.len()), ("tokens", of.longest())]
}

/// Bytes of states that are read and written once for each sequence.
fn state_bytes(of: &Sequences, elements: usize, state: DType) -> usize {
    2 * of.owned().len() * elements * state.size_in_bytes()
}

/// `Mamba2Scan`.
#[derive(Clone, Copy, Debug)]
pub struct Mamba2 {
    pub heads: usize,
    pub head_dim: usize,
    pub d_state: usize,
    pub groups: usize,
    pub state: DType,
    pub input: DType,
    pub writes: Writes,
}

impl Mamba2 {
    pub fn case(self, of: Sequences) -> Case {
        let Self { heads, head_dim, d_state, groups, state, input, writes } = self;
        let (tokens, longest) = (of.tokens(), of.longest());
        let op = if longest > 16 { "SSD prefill" } else { "state update" };
        let activations = tokens * (3 * heads * head_dim + 2 * groups * d_state + heads) * input.size_in_bytes();
        // The products of the chunked algorithm, in chunks of 128, causal halves counted.
        let per_token = heads * (128 * head_dim + 4 * d_state * head_dim) + groups * 128 * d_state;
        let work = Work {
            bytes: (state_bytes(&of, heads * head_dim * d_state, state) + activations) as u64,
            flops: if longest > 16 { (tokens * per_token) as u64 } else { 0 },
        };
        let own = [("heads", heads), ("head_dim", head_dim), ("d_state", d_state), ("groups", groups)];
        Case {
            op,
            sizes: [sizes(&of), own.to_vec()].concat(),
            variant: format!("{} states, {}{}", name(state), name(input), writes.name()),
            tolerance: tolerance(&[state, input]),
            work,
            prepare: Box::new(move |data| {
                let view = |slot, at| StateLayerView::matrix(slot, at, [heads, head_dim, d_state]);
                let step = Step::new(data, &of, writes, view, state)?;
                let [x, z] = [data.rows(&of, heads * head_dim, input)?, data.rows(&of, heads * head_dim, input)?];
                let [b, c] = [data.rows(&of, groups * d_state, input)?, data.rows(&of, groups * d_state, input)?];
                let dt = data.rows(&of, heads, input)?;
                let a = data.between(-2.0, -0.1, &[heads], DType::F32)?;
                let [d, bias] = [data.tensor(&[heads], DType::F32)?, data.tensor(&[heads], DType::F32)?];
                Ok(Box::new(move |on| {
                    let layer = Mamba2Scan { a: &a, d: Some(&d), time_step: TimeStep::new(Some(&bias)) };
                    let input = ScanInput { x: &x, dt: &dt, b: &b, c: &c, z: Some(&z) };
                    step.given(layer.run(on, &input, &step.pool, &step.view, &step.batch())?)
                }))
            }),
        }
    }
}

/// Which rule of linear attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeltaKind {
    Gated,
    Kimi,
    Lightning,
}

/// `LinearAttentionScan`.
#[derive(Clone, Copy, Debug)]
pub struct LinearAttention {
    pub kind: DeltaKind,
    pub heads: usize,
    pub key_heads: usize,
    pub key_dim: usize,
    pub value_dim: usize,
    pub state: DType,
    pub input: DType,
    pub writes: Writes,
}

impl LinearAttention {
    pub fn case(self, of: Sequences) -> Case {
        let Self { kind, heads, key_heads, key_dim, value_dim, state, input, writes } = self;
        let (tokens, longest) = (of.tokens(), of.longest());
        let (short, long, rule) = match kind {
            DeltaKind::Gated => ("gated delta update", "gated delta prefill", ""),
            DeltaKind::Kimi => ("Kimi delta update", "Kimi delta prefill", ""),
            DeltaKind::Lightning => ("lightning update", "lightning prefill", ""),
        };
        let decays = match kind {
            DeltaKind::Gated => heads * 4,
            DeltaKind::Kimi => heads * key_dim * input.size_in_bytes(),
            DeltaKind::Lightning => 0,
        };
        let row = (2 * key_heads * key_dim + 2 * heads * value_dim + heads) * input.size_in_bytes() + decays;
        let elements = heads * key_dim * value_dim;
        let work = Work {
            bytes: (state_bytes(&of, elements, state) + tokens * row) as u64,
            // Reading a state, adding to it, and the products within a block of 16.
            flops: if longest > 16 {
                (tokens * (6 * elements + heads * 16 * 2 * (key_dim + value_dim))) as u64
            } else {
                0
            },
        };
        let own = [("heads", heads), ("key_heads", key_heads), ("key_dim", key_dim), ("value_dim", value_dim)];
        Case {
            op: if longest > 16 { long } else { short },
            sizes: [sizes(&of), own.to_vec()].concat(),
            variant: format!("{} states, {}{rule}{}", name(state), name(input), writes.name()),
            tolerance: tolerance(&[state, input]),
            work,
            prepare: Box::new(move |data| {
                let view = |slot, at| StateLayerView::matrix(slot, at, [heads, key_dim, value_dim]);
                let step = Step::new(data, &of, writes, view, state)?;
                let [q, k] = [data.rows(&of, key_heads * key_dim, input)?, data.rows(&of, key_heads * key_dim, input)?];
                let v = data.rows(&of, heads * value_dim, input)?;
                let beta = data.rows_between(0.0, 1.0, &of, heads, input)?;
                let per_head = data.rows_between(-1.0, 0.0, &of, heads, DType::F32)?;
                let per_channel = data.rows_between(-1.0, 0.0, &of, heads * key_dim, input)?;
                let fixed: Vec<f32> = (1..=heads).map(|head| -0.3 / head as f32).collect();
                let delta = kind != DeltaKind::Lightning;
                Ok(Box::new(move |on| {
                    let scan = LinearAttentionScan {
                        q: &q,
                        k: &k,
                        v: &v,
                        decay: match kind {
                            DeltaKind::Gated => StateDecay::PerHead(&per_head),
                            DeltaKind::Kimi => StateDecay::PerChannel(&per_channel),
                            DeltaKind::Lightning => StateDecay::Fixed(&fixed),
                        },
                        beta: delta.then_some(&beta),
                        scale: (key_dim as f32).powf(-0.5),
                        l2_norm: delta,
                    };
                    step.given(scan.run(on, &step.pool, &step.view, &step.batch())?)
                }))
            }),
        }
    }
}

/// `CausalConv1d`.
#[derive(Clone, Copy, Debug)]
pub struct Convolution {
    pub channels: usize,
    pub d_conv: usize,
    pub dtype: DType,
    pub writes: Writes,
}

impl Convolution {
    pub fn case(self, of: Sequences) -> Case {
        let Self { channels, d_conv, dtype, writes } = self;
        let rows = 2 * of.tokens() + 2 * of.owned().len() * (d_conv - 1) + d_conv + 1;
        Case {
            op: if of.longest() > 16 { "conv prefill" } else { "conv update" },
            sizes: [sizes(&of), vec![("channels", channels), ("d_conv", d_conv)]].concat(),
            variant: format!("{}{}", name(dtype), writes.name()),
            tolerance: tolerance(&[dtype]),
            work: Work::bytes(rows * channels * dtype.size_in_bytes()),
            prepare: Box::new(move |data| {
                let view = |slot, at| StateLayerView::conv(slot, at, d_conv, channels);
                let step = Step::new(data, &of, writes, view, dtype)?;
                let x = data.rows(&of, channels, dtype)?;
                let [weight, bias] = [data.tensor(&[d_conv, channels], dtype)?, data.tensor(&[channels], dtype)?];
                Ok(Box::new(move |on| {
                    let conv = CausalConv1d { weight: &weight, bias: Some(&bias), silu: true };
                    step.given(conv.run(on, &x, &step.pool, &step.view, &step.batch())?)
                }))
            }),
        }
    }
}

/// Which recurrence over channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recurrence {
    /// `Mamba1Scan`, with so many states a channel.
    Mamba1(usize),
    /// `RgLruScan`.
    Gated,
}

/// A recurrence whose channels know nothing of each other.
#[derive(Clone, Copy, Debug)]
pub struct Channels {
    pub recurrence: Recurrence,
    pub channels: usize,
    pub state: DType,
    pub input: DType,
    pub writes: Writes,
}

impl Channels {
    pub fn case(self, of: Sequences) -> Case {
        let Self { recurrence, channels, state, input, writes } = self;
        let prefill = of.longest() > 16;
        let (op, d_state, row, fixed) = match recurrence {
            Recurrence::Mamba1(d_state) => {
                let op = if prefill { "Mamba-1 prefill" } else { "Mamba-1 update" };
                (op, d_state, 4 * channels + 2 * d_state, (d_state + 2) * channels * 4)
            }
            Recurrence::Gated => {
                let op = if prefill { "RG-LRU prefill" } else { "RG-LRU update" };
                (op, 1, 4 * channels, channels * input.size_in_bytes())
            }
        };
        let bytes = state_bytes(&of, channels * d_state, state) + of.tokens() * row * input.size_in_bytes() + fixed;
        Case {
            op,
            sizes: [sizes(&of), vec![("channels", channels), ("d_state", d_state)]].concat(),
            variant: format!("{} states, {}{}", name(state), name(input), writes.name()),
            tolerance: tolerance(&[state, input]),
            work: Work::bytes(bytes),
            prepare: Box::new(move |data| {
                let view = |slot, at| StateLayerView::matrix(slot, at, [channels, 1, d_state]);
                let step = Step::new(data, &of, writes, view, state)?;
                let mut rows = || data.rows(&of, channels, input);
                let (x, first, second) = (rows()?, rows()?, rows()?);
                Ok(match recurrence {
                    Recurrence::Mamba1(_) => {
                        let [b, c] = [data.rows(&of, d_state, input)?, data.rows(&of, d_state, input)?];
                        let a = data.between(-2.0, -0.1, &[channels, d_state], DType::F32)?;
                        let [d, bias] = [data.tensor(&[channels], DType::F32)?, data.tensor(&[channels], DType::F32)?];
                        Box::new(move |on| {
                            let layer = Mamba1Scan { a: &a, d: Some(&d), time_step: TimeStep::new(Some(&bias)) };
                            let input = ScanInput { x: &x, dt: &first, b: &b, c: &c, z: Some(&second) };
                            step.given(layer.run(on, &input, &step.pool, &step.view, &step.batch())?)
                        })
                    }
                    Recurrence::Gated => {
                        let a = data.between(-9.0, 9.0, &[channels], input)?;
                        let positions: Vec<u32> = (1..=of.tokens() as u32).collect();
                        Box::new(move |on| {
                            let scan = RgLruScan {
                                x: &x,
                                input_gate: &first,
                                recurrence_gate: &second,
                                a_param: &a,
                                positions: (&positions).into(),
                            };
                            step.given(scan.run(on, &step.pool, &step.view, &step.batch())?)
                        })
                    }
                })
            }),
        }
    }
}
