//! In plans that keep inputs, a commit leaves the bits of having stepped over the accepted tokens, whichever
//! recurrences the layers have.

use cacheplan_handlers::{DType, DecayKind, Growth, Kind, Recurrence};
use cacheplan_kernels::{
    Backend, CausalConv1d, LinearAttentionScan, Mamba1Scan, Mamba2Scan, RgLruScan, ScanInput, StateBatch, StateDecay,
    StateLayerView, StateWrites, TimeStep,
};
use cacheplan_managers::ManagerError;
use cacheplan_managers::book::{Accepted, SequenceId, StepMetadata, Work};
use cacheplan_managers::device::{CacheManager, CacheSet, ReplayLayer};
use cacheplan_planner::{Budget, CachePlan, PlanRequest, PlannedResource};
use cacheplan_transforms::{GraphBuilder, PassContext, layers::Attention};
use candle_core::{Device, Tensor};
use proptest::prelude::*;

#[derive(Clone, Copy, Debug)]
enum Mixer {
    Mamba1,
    Mamba2,
    Linear { delta_rule: bool, decay: DecayKind },
    RgLru,
}

const GATED_DELTA: Mixer = Mixer::Linear { delta_rule: true, decay: DecayKind::PerHead };
const KIMI_DELTA: Mixer = Mixer::Linear { delta_rule: true, decay: DecayKind::PerChannel };
const LIGHTNING: Mixer = Mixer::Linear { delta_rule: false, decay: DecayKind::Fixed };

/// What the planner makes of one attention layer and these mixers, of `candidates` positions.
fn planned(mixers: &[Mixer], candidates: usize, activations: DType, state_dtype: DType) -> CachePlan {
    use cacheplan_transforms::layers as made;
    let state_dtype = Some(state_dtype);
    let mut builder = GraphBuilder::new("made_up", 16, activations);
    builder.layer();
    builder.attention(&Attention::grouped(2, 1, 8));
    for mixer in mixers {
        builder.layer();
        match *mixer {
            Mixer::Mamba1 => {
                builder.mamba1(&made::Mamba1 { d_inner: 6, d_state: 4, d_conv: 4, dt_rank: 1, state_dtype })
            }
            Mixer::Mamba2 => builder.mamba2(&made::Mamba2 {
                num_heads: 4,
                head_dim: 3,
                d_state: 5,
                n_groups: 2,
                d_conv: 4,
                state_dtype,
            }),
            Mixer::Linear { delta_rule, decay } => builder.linear_attention(&made::LinearAttention {
                num_k_heads: 2,
                num_v_heads: 4,
                head_k_dim: 3,
                head_v_dim: 5,
                delta_rule,
                decay,
                d_conv: delta_rule.then_some(3),
                state_dtype,
            }),
            Mixer::RgLru => builder.rg_lru(7, 4, state_dtype),
        };
    }
    let mut model = builder.build();
    let resources = model.graph.collect(&PassContext::default()).unwrap().resources;
    let budget = format!(
        "max_seq_len = 64\nmax_batch_size = 2\n[speculation]\ndraft_tokens = {}\nscheme = 'replay'",
        candidates - 1
    );
    let budget = Budget::from_toml(&budget, "budget.toml").unwrap();
    let request = PlanRequest::of((model.info.clone(), resources.clone())).with_budget(budget.clone());
    let plan = request.plan().unwrap();
    assert_eq!(request.check(&plan), Ok(()));
    plan
}

/// A plan with its manager and made-up activations.
struct Run<'a> {
    plan: &'a CachePlan,
    manager: &'a mut CacheManager,
}

fn candle(dtype: DType) -> candle_core::DType {
    if dtype == DType::Bf16 { candle_core::DType::BF16 } else { candle_core::DType::F32 }
}

/// `[tokens, width]` for tokens of these numbers, rounded as the plan keeps them.
fn made(tokens: &[u32], width: usize, salt: u32, dtype: DType) -> Tensor {
    let value = |token: u32, at: usize| ((token * 131 + salt * 29 + at as u32 * 17) as f32 * 0.37).sin() / 2.0;
    let values: Vec<f32> = tokens.iter().flat_map(|&token| (0..width).map(move |at| value(token, at))).collect();
    Tensor::from_vec(values, (tokens.len(), width), &Device::Cpu).unwrap().to_dtype(candle(dtype)).unwrap()
}

/// What a recurrence takes at some tokens; decays are logarithms.
fn input(of: &PlannedResource, tokens: &[u32]) -> Tensor {
    let width = of.handler.shape().iter().map(|dim| dim.size as usize).product();
    let salt = of.layer.unwrap() + of.kind.bytes().map(u32::from).sum::<u32>();
    let made = made(tokens, width, salt, of.dtype);
    if matches!(of.kind.as_str(), "replay.g") { (made - 0.6).unwrap() } else { made }
}

/// Steps a state with the layer's kernel; `input` gives what is kept, so that nothing is given to the readout.
fn step(
    recurrence: Recurrence,
    input: &dyn Fn(&str) -> Tensor,
    pool: &Tensor,
    view: &StateLayerView,
    batch: &StateBatch<'_>,
) {
    let [heads, rows, columns] = view.shape;
    let rates = |count: usize| -> Vec<f32> { (0..count).map(|at| -0.2 - at as f32 / 50.0).collect() };
    let tensor = |values: Vec<f32>| Tensor::new(values, &Device::Cpu).unwrap();
    let time_step = TimeStep::new(None);
    let out = match recurrence {
        Recurrence::SelectiveScan | Recurrence::Ssd { .. } => {
            let (x, b, dt) = (input("x"), input("b"), input("dt"));
            let scan = ScanInput { x: &x, dt: &dt, b: &b, c: &b, z: None };
            if recurrence == Recurrence::SelectiveScan {
                let a = tensor(rates(heads * columns)).reshape((heads, columns)).unwrap();
                Mamba1Scan { a: &a, d: None, time_step }.run(&Backend::Cpu.run(), &scan, pool, view, batch)
            } else {
                let a = tensor(rates(heads));
                Mamba2Scan { a: &a, d: None, time_step }.run(&Backend::Cpu.run(), &scan, pool, view, batch)
            }
        }
        Recurrence::LinearAttention { delta_rule, decay, .. } => {
            let (k, v, slopes) = (input("k"), input("v"), rates(heads));
            let beta = delta_rule.then(|| input("beta"));
            let g = (decay != DecayKind::Fixed).then(|| input("g"));
            let decay = match (decay, &g) {
                (DecayKind::PerHead, Some(g)) => StateDecay::PerHead(g),
                (DecayKind::PerChannel, Some(g)) => StateDecay::PerChannel(g),
                _ => StateDecay::Fixed(&slopes),
            };
            let beta = beta.as_ref();
            let input = LinearAttentionScan { q: &k, k: &k, v: &v, decay, beta, scale: 1.0, l2_norm: delta_rule };
            input.run(&Backend::Cpu.run(), pool, view, batch)
        }
        Recurrence::Ring(_) => unreachable!("a ring is not stepped over again"),
        Recurrence::RgLru => {
            let (x, input_gate, recurrence_gate) = (input("x"), input("input_gate"), input("recurrence_gate"));
            let positions = vec![1; x.dims()[0]];
            let a_param = tensor(rates(heads * rows));
            let (input_gate, recurrence_gate) = (&input_gate, &recurrence_gate);
            let input =
                RgLruScan { x: &x, input_gate, recurrence_gate, a_param: &a_param, positions: (&positions).into() };
            input.run(&Backend::Cpu.run(), pool, view, batch)
        }
    };
    assert!(out.is_ok(), "{out:?}");
}

impl Run<'_> {
    fn of_kind<'a>(&'a self, kind: &'a Kind) -> impl Iterator<Item = &'a PlannedResource> {
        self.plan.resources.iter().filter(move |resource| resource.handler.kind() == kind)
    }

    /// What is kept of each token for the recurrence of a layer.
    fn kept(&self, layer: Option<u32>) -> impl Iterator<Item = &PlannedResource> {
        let drafts = self.plan.resources.iter().filter(|kept| kept.handler.growth() == Growth::PerDraftPosition);
        drafts.filter(move |kept| kept.layer == layer)
    }

    /// Runs all layers over some tokens; what they leave behind is the batch's choice.
    fn forward(&self, tokens: &[u32], slot: u32, writes: StateWrites<'_>) {
        let (rows, slots) = ([0, tokens.len() as u32], [slot as i32]);
        let batch = StateBatch::new(&rows, &slots).with_writes(writes);
        for state in self.of_kind(&Kind::Ssm) {
            let layer = self.manager.state_layer(self.manager.route_of(&state.name).unwrap()).unwrap();
            let input = |name: &str| {
                let kept = self.kept(state.layer).find(|kept| kept.kind.strip_prefix("replay.") == Some(name));
                input(kept.unwrap(), tokens)
            };
            step(state.handler.recurrence().unwrap(), &input, layer.pool, &layer.view, &batch);
        }
        for conv in self.of_kind(&Kind::CausalConv) {
            let layer = self.manager.state_layer(self.manager.route_of(&conv.name).unwrap()).unwrap();
            let [columns, channels, _] = layer.view.shape;
            let weight = Tensor::ones((columns + 1, channels), candle_core::DType::F32, &Device::Cpu).unwrap();
            let x = made(tokens, channels, conv.layer.unwrap(), conv.dtype);
            CausalConv1d { weight: &weight, bias: None, silu: false }
                .run(&Backend::Cpu.run(), &x, layer.pool, &layer.view, &batch)
                .unwrap();
        }
    }

    /// Steps a sequence over tokens one at a time, as decoding does.
    fn decode(&mut self, sequence: SequenceId, tokens: &[u32]) {
        for &token in tokens {
            self.manager.step(&[Work { sequence, tokens: 1 }], &mut StepMetadata::default()).unwrap();
            let slot = self.manager.book().slot(sequence).unwrap().unwrap().0;
            self.forward(&[token], slot, StateWrites::Final);
        }
    }

    /// Verifies candidates that follow `parents` and commits those on `path`.
    fn speculate(&mut self, sequence: SequenceId, candidates: &[u32], parents: &[i32], path: &[u32]) {
        let mut metadata = StepMetadata::default();
        let work = Work { sequence, tokens: candidates.len() as u32 };
        self.manager.speculate(&[work], &mut metadata).unwrap();
        let before = self.bits(sequence);
        self.forward(candidates, metadata.slots[0] as u32, StateWrites::Tree { parents, slots: &[] });
        for kept in self.plan.resources.iter().filter(|kept| kept.handler.growth() == Growth::PerDraftPosition) {
            let route = self.manager.route_of(&kept.name).unwrap();
            self.manager.stash(route, &metadata, &input(kept, candidates)).unwrap();
        }
        for conv in self.of_kind(&Kind::CausalConv) {
            let channels = conv.handler.dim("conv_dim").unwrap() as usize;
            let x = made(candidates, channels, conv.layer.unwrap(), conv.dtype);
            self.manager.stash(self.manager.route_of(&conv.name).unwrap(), &metadata, &x).unwrap();
        }
        assert_eq!(self.bits(sequence), before, "candidates leave live states as they are");
        let plan = self.plan;
        let mut replay = |layer: &ReplayLayer<'_>| replay(plan, layer);
        self.manager.commit_replaying(&[(sequence, Accepted::Path(path))], &mut replay).unwrap();
    }

    fn bits(&self, sequence: SequenceId) -> Vec<u32> {
        let states = self.plan.resources.iter().filter(|resource| resource.handler.is_state());
        let values = states.flat_map(|state| {
            let read = self.manager.read_state(sequence, self.manager.route_of(&state.name).unwrap()).unwrap();
            let wide = read.to_dtype(candle_core::DType::F32).unwrap().flatten_all().unwrap();
            wide.to_vec1::<f32>().unwrap()
        });
        values.map(f32::to_bits).collect()
    }
}

/// What a decoder does in a commit: the layer's own kernel over what was kept.
fn replay(plan: &CachePlan, layer: &ReplayLayer<'_>) -> Result<(), ManagerError> {
    let state = plan.resources.iter().find(|state| state.layer == layer.layer && *state.handler.kind() == Kind::Ssm);
    let recurrence = state.unwrap().handler.recurrence().unwrap();
    let input = |name: &str| layer.input(&format!("replay.{name}")).unwrap().clone();
    let first = if matches!(recurrence, Recurrence::LinearAttention { .. }) { "k" } else { "x" };
    let (rows, slots) = ([0, input(first).dims()[0] as u32], [layer.slot.0 as i32]);
    let batch = StateBatch::new(&rows, &slots).with_writes(StateWrites::Replay);
    step(recurrence, &input, layer.state.pool, &layer.state.view, &batch);
    Ok(())
}

fn mixer() -> impl Strategy<Value = Mixer> {
    prop::sample::select(vec![GATED_DELTA, KIMI_DELTA, LIGHTNING, Mixer::Mamba1, Mixer::Mamba2, Mixer::RgLru])
}

/// For each candidate the one that it follows, `-1` for the sequence itself.
fn tree() -> impl Strategy<Value = Vec<i32>> {
    prop::collection::vec(any::<u32>(), 2..=20).prop_map(|picks| {
        let parent = |(at, pick): (usize, &u32)| (*pick as usize % (at + 1)) as i32 - 1;
        picks.iter().enumerate().map(parent).collect()
    })
}

/// The path to a candidate, the candidate itself included.
fn path_to(parents: &[i32], node: usize) -> Vec<u32> {
    let up = std::iter::successors(Some(node as u32), |&node| u32::try_from(parents[node as usize]).ok());
    let mut path: Vec<u32> = up.collect();
    path.reverse();
    path
}

fn assert_replay_is_stepping(plan: &CachePlan, prompt: usize, trees: &[(Vec<i32>, Option<usize>)]) {
    let mut set = CacheSet::allocate(plan, &Device::Cpu).unwrap();
    let mut run = Run { plan, manager: set.manager_mut().unwrap() };
    let sequence = run.manager.admit(1).unwrap();
    let prompt: Vec<u32> = (1000..1000 + prompt as u32).collect();
    run.decode(sequence, &prompt);
    let twin = run.manager.fork(sequence).unwrap();
    for (number, (parents, accepted)) in trees.iter().enumerate() {
        let candidates: Vec<u32> = (0..parents.len() as u32).map(|at| 100 * number as u32 + at).collect();
        let path = accepted.map_or_else(Vec::new, |node| path_to(parents, node));
        run.speculate(sequence, &candidates, parents, &path);
        let tokens: Vec<u32> = path.iter().map(|&at| candidates[at as usize]).collect();
        run.decode(twin, &tokens);
        assert_eq!(run.bits(sequence), run.bits(twin), "tree {number}");
    }
    run.decode(sequence, &[7, 8]);
    run.decode(twin, &[7, 8]);
    assert_eq!(run.bits(sequence), run.bits(twin), "nothing of the rejected candidates is left");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    #[test]
    fn a_replay_after_any_acceptance_is_stepping(
        mixers in prop::collection::vec(mixer(), 1..=3),
        prompt in 1usize..6,
        trees in prop::collection::vec((tree(), any::<prop::sample::Index>(), any::<bool>()), 1..=2),
        activations in prop::sample::select(vec![DType::F32, DType::Bf16]),
        states in prop::sample::select(vec![DType::F32, DType::Bf16]),
    ) {
        let widest = trees.iter().map(|(parents, ..)| parents.len()).max().unwrap();
        let plan = planned(&mixers, widest, activations, states);
        let accept = |(parents, node, some): (Vec<i32>, prop::sample::Index, bool)| {
            let node = some.then(|| node.index(parents.len()));
            (parents, node)
        };
        let trees: Vec<_> = trees.into_iter().map(accept).collect();
        assert_replay_is_stepping(&plan, prompt, &trees);
    }
}

/// Twenty accepted tokens of a chain, which are more than the chunked forms begin at.
#[test]
fn a_long_chain_is_replayed_as_it_was_stepped() {
    let mixers = [GATED_DELTA, KIMI_DELTA, LIGHTNING, Mixer::Mamba2];
    let plan = planned(&mixers, 20, DType::Bf16, DType::F32);
    let chain: Vec<i32> = (-1..19).collect();
    for accepted in 0..20 {
        assert_replay_is_stepping(&plan, 2, &[(chain.clone(), Some(accepted))]);
    }
}

/// A model of convolutions alone keeps its candidates' inputs behind its states.
#[test]
fn convolutions_without_a_recurrence_move_on_by_themselves() {
    let mut builder = GraphBuilder::new("made_up", 8, DType::F32);
    builder.layer();
    builder.short_conv(8, 3);
    let mut model = builder.build();
    let resources = model.graph.collect(&PassContext::default()).unwrap().resources;
    let budget = "max_seq_len = 64\nmax_batch_size = 2\n[speculation]\ndraft_tokens = 3\nscheme = 'replay'";
    let budget = Budget::from_toml(budget, "budget.toml").unwrap();
    let plan = PlanRequest::of((model.info.clone(), resources.clone())).with_budget(budget.clone()).plan().unwrap();
    assert_replay_is_stepping(&plan, 5, &[(vec![-1, 0, 0, 2], Some(3)), (vec![-1, 0], None)]);
}
