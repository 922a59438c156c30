//! Random models and budgets: every plan checks, and none admits one sequence more or fewer than counting finds.
//!
//! `CACHEPLAN_SOAK_CASES` sets the number of cases; 2,000 where absent.

use cacheplan_handlers::{DType, DecayKind, Growth, Kind, Recurrence, ResourceHandler};
use cacheplan_planner::budget::{Base, Fraction};
use cacheplan_planner::plan::Cap;
use cacheplan_planner::{
    Budget, ByteSize, CachePlan, DeviceInfo, Memory, PlanError, PlanRequest, Pool, StepBytes, Unit,
};

use super::common::{Model, budget};

/// SplitMix64: small, seeded, the same everywhere.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }

    pub(super) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }

    pub(super) fn one_in(&mut self, odds: u64) -> bool {
        self.below(odds) == 0
    }
}

fn random_model(random: &mut Random) -> Model {
    let layers = 1 + random.below(10) as u32;
    let mut model = Model::new("random", layers);
    for layer in 0..layers {
        let dtype = random.pick(&[DType::F32, DType::Bf16, DType::F8E4m3, DType::Nvfp4, DType::Q8_0]);
        let heads = random.pick(&[1, 2, 8]);
        let dim = random.pick(&[16, 64, 80]);
        model = match random.below(8) {
            0 | 1 => model.with("kv", layer, ResourceHandler::kv_paged(heads, dim, dtype).unwrap()),
            2 => {
                let window = random.pick(&[1, 17, 64, 4096]);
                model.with(
                    "kv",
                    layer,
                    ResourceHandler::kv_paged(heads, dim, dtype).unwrap().with_window(window).unwrap(),
                )
            }
            3 => model.with("latent", layer, ResourceHandler::mla_paged(dim, 8, dtype).unwrap()),
            4 => model.with("ssm", layer, recurrent(random, [heads, dim, 16], dtype)).with(
                "conv",
                layer,
                ResourceHandler::causal_conv(heads * dim + 32, 4, vec![], dtype).unwrap(),
            ),
            5 => model.with("state", layer, ResourceHandler::state(&[heads, dim], dtype).unwrap()),
            6 => model.with("extra", layer, ResourceHandler::unpaged(&[heads], dtype).unwrap()),
            _ => {
                let growth = Growth::Paged { stride: random.pick(&[4, 12, 128]), window: None };
                let shape = vec![cacheplan_handlers::Dim::whole("dim", dim)];
                let kind = Kind::Custom("test.strided".into());
                model.with("strided", layer, ResourceHandler::new(kind, growth, shape, dtype, None).unwrap())
            }
        };
    }
    model
}

fn recurrent(random: &mut Random, [heads, rows, columns]: [u64; 3], dtype: DType) -> ResourceHandler {
    let recurrence = match random.below(4) {
        0 => Recurrence::SelectiveScan,
        1 => Recurrence::Ssd { n_groups: random.pick(&[1, 2]) },
        2 => Recurrence::LinearAttention {
            num_k_heads: random.pick(&[1, 4]),
            delta_rule: random.pick(&[false, true]),
            decay: random.pick(&[DecayKind::Fixed, DecayKind::PerHead, DecayKind::PerChannel]),
        },
        _ => Recurrence::RgLru,
    };
    ResourceHandler::ssm(heads, rows, columns, dtype).unwrap().with_recurrence(recurrence)
}

fn random_budget(random: &mut Random) -> Budget {
    let mut text = format!("grouping = '{}'\n", random.pick(&["by-key", "by-key", "first-reference", "by-window"]));
    text += &format!("max_seq_len = {}\n", random.pick(&[1, 31, 100, 1000]));
    text += &format!("tokens_per_block = {}\n", random.pick(&[1, 8, 32]));
    text += &format!("max_num_tokens = {}\n", random.pick(&[1, 40, 500, 100_000]));
    if random.one_in(3) {
        text += &format!("max_batch_size = {}\n", random.pick(&[1, 2, 9]));
        if random.one_in(2) {
            text += "maximize = 'tokens'\n";
        }
    }
    text += &format!("[memory]\nbytes = {}\n", (1 << random.pick(&[12, 16, 20, 22])) + random.below(5000));
    if random.one_in(6) {
        text += &format!("[host]\nbytes = {}\n", 1 << random.pick(&[16, 20, 24]));
    }
    if random.one_in(4) {
        text += "[workload]\nprompt = { fixed = 4096 }\n";
        text += &format!("checkpoints_per_sequence = {}\n", random.pick(&[1, 3]));
        text += random.pick(&["", "checkpoint_dtype = 'int8'\n"]);
    }
    if random.one_in(4) {
        text += "[speculation]\ndraft_tokens = 3\n";
        text += random.pick(&["", "scheme = 'replay'\n"]);
    }
    budget(&text)
}

fn is_draft(plan: &CachePlan, pool: &Pool) -> bool {
    let first = plan.resource(&pool.members[0].resource).unwrap();
    first.handler.growth() == Growth::PerDraftPosition
}

/// Bytes that so many parked sequences take, counted as above without what pads a batch.
fn parked_bytes(plan: &CachePlan, budget: &Budget, sequences: u64) -> u64 {
    let parked = plan.pools.iter().filter(|pool| pool.unit != Unit::Fixed && !is_draft(plan, pool));
    parked.map(|pool| pool.unit_bytes * (counted_units(plan, budget, pool, sequences) - pool.reserved)).sum()
}

/// Units of a pool for `sequences` sequences of `max_seq_len` tokens, counted one sequence at a time.
fn counted_units(plan: &CachePlan, budget: &Budget, pool: &Pool, sequences: u64) -> u64 {
    let limits = &plan.limits;
    let checkpoints = budget.workload.as_ref().map_or(0, |workload| workload.checkpoints_per_sequence);
    match pool.unit {
        Unit::Fixed => 1,
        Unit::Slot if pool.checkpoints_of.is_some() => sequences * checkpoints,
        Unit::Slot if is_draft(plan, pool) => 1 + sequences,
        Unit::Slot if plan.pools.iter().any(|other| other.checkpoints_of.is_some()) => 1 + sequences,
        Unit::Slot => 1 + sequences * (1 + checkpoints),
        Unit::Block => {
            let block = pool.tokens_per_block.unwrap();
            let tokens = limits.max_seq_len + limits.draft_positions - 1;
            let full = |sequences: u64| (0..sequences).map(|_| tokens.div_ceil(block)).sum::<u64>();
            let touched = |sequences: u64| match pool.window {
                None => full(sequences),
                Some(window) => full(sequences).min(counted_window(budget, plan, window.into(), block, sequences)),
            };
            1 + touched(sequences).max(touched(1))
        }
    }
}

/// Hands out a step's tokens one by one, always to the sequence that is nearest to a further block.
fn counted_window(budget: &Budget, plan: &CachePlan, window: u64, block: u64, sequences: u64) -> u64 {
    let positions = plan.limits.draft_positions;
    let step = budget.max_num_tokens.unwrap_or(2_048).max(sequences * positions);
    let touched = |new: u64| (0..block).map(|start| (start + window - 1 + new).div_ceil(block)).max().unwrap();
    let first = (2..).find(|new| touched(*new) > touched(1)).unwrap() - 1;
    let mut blocks = sequences * touched(1);
    let mut spare = step.saturating_sub(sequences);
    let mut fresh = sequences;
    while spare > 0 {
        let price = if fresh > 0 { first } else { block };
        if spare < price {
            break;
        }
        spare -= price;
        fresh = fresh.saturating_sub(1);
        blocks += 1;
    }
    blocks
}

fn counted_bytes(plan: &CachePlan, budget: &Budget, sequences: u64) -> u64 {
    plan.pools.iter().map(|pool| pool.unit_bytes * counted_units(plan, budget, pool, sequences)).sum()
}

#[test]
fn random_plans_check_and_admit_exactly_what_counting_finds() {
    let cases = std::env::var("CACHEPLAN_SOAK_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(2_000u64);
    let (mut planned, mut refused) = (0, 0);
    for seed in 0..cases {
        let mut random = Random(seed);
        let model = random_model(&mut random);
        let budget = random_budget(&mut random);
        let request = model.request(&budget);
        let bytes = budget.memory.as_ref().unwrap().bytes.unwrap().0;
        let plan = match request.plan() {
            Ok(plan) => plan,
            Err(PlanError::DoesNotFit(shortfall)) => {
                refused += 1;
                assert_eq!(shortfall.needed - bytes, shortfall.shortfall, "seed {seed}");
                // The same request with what it asks for fits exactly one.
                let mut enough = budget.clone();
                enough.memory.as_mut().unwrap().bytes = Some(cacheplan_planner::ByteSize(shortfall.needed));
                enough.host = None;
                let plan = model.request(&enough).plan().unwrap();
                assert_eq!(counted_bytes(&plan, &enough, 1), shortfall.needed, "seed {seed}");
                continue;
            }
            Err(PlanError::Grouping(_)) => continue,
            // Generic states have no recurrence.
            Err(PlanError::NoReplay { kind: Kind::State, .. }) => continue,
            // A host tier or checkpoints that this model has no use for, or a host too small for one sequence.
            Err(PlanError::Unconsumed { key: "host.bytes" | "workload.checkpoints_per_sequence", .. }) => continue,
            Err(PlanError::Budget(reason)) if reason.contains("host") || reason.contains("checkpoint") => continue,
            // A step that has not a token for every candidate of one sequence.
            Err(PlanError::Budget(reason)) if reason.contains("`max_num_tokens`") => {
                let positions = budget.speculation.as_ref().map_or(1, |speculation| speculation.draft_tokens + 1);
                assert!(budget.max_num_tokens < Some(positions.into()), "seed {seed}: {reason}");
                continue;
            }
            Err(error) => panic!("seed {seed}: {error}"),
        };
        planned += 1;
        assert_eq!(request.check(&plan), Ok(()), "seed {seed}");
        if let Some(host) = &plan.host {
            let parked = |sequences| parked_bytes(&plan, &budget, sequences);
            assert_eq!(parked(host.sequences) + host.unused_bytes, host.bytes, "seed {seed}");
            if host.sequences < 1 << 20 {
                assert!(parked(host.sequences + 1) > host.bytes, "seed {seed}: one more could be parked");
            }
        }
        let sequences = plan.capacity.sequences;
        assert!(counted_bytes(&plan, &budget, sequences) <= bytes, "seed {seed}: {sequences} sequences do not fit");
        let positions = plan.limits.draft_positions;
        let steps = budget.max_num_tokens.unwrap() / positions;
        assert!(sequences <= steps, "seed {seed}: {sequences} sequences of {positions} tokens in a step");
        if Some(sequences) != budget.max_batch_size && sequences < steps && sequences < 1 << 20 {
            let another = counted_bytes(&plan, &budget, sequences + 1);
            assert!(another > bytes, "seed {seed}: one more than {sequences} sequences fits");
        }
    }
    assert!(planned * 4 > cases && refused * 50 > cases, "{planned} planned, {refused} refused of {cases}");
}

/// Bytes of a step of so many sequences, counted from what one token and one logit take.
fn step_bytes(plan: &CachePlan, budget: &Budget, step: StepBytes, sequences: u64) -> u64 {
    let candidates = sequences * plan.limits.draft_positions;
    let tokens = budget.max_num_tokens.unwrap_or(2_048).max(candidates);
    (tokens * (step.whole + step.divided)).max(candidates * step.vocab * 10)
}

/// Activations are those of the sequences that are admitted: every number up to the plan's own fits beside its step, one more
/// does not unless a limit ends them, more memory never admits less, and a plan's own numbers, stated, give it again.
#[test]
fn random_plans_hold_their_own_numbers_beside_the_steps_that_these_take() {
    let cases = std::env::var("CACHEPLAN_SOAK_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(2_000u64);
    let (mut by_memory, mut by_limits) = (0, 0);
    for seed in 0..cases {
        let mut random = Random(seed ^ 0x5eed);
        let model = random_model(&mut random);
        let mut budget = random_budget(&mut random);
        budget.max_num_tokens = budget.max_num_tokens.filter(|_| random.one_in(2));
        let bytes = budget.memory.as_ref().unwrap().bytes.unwrap().0;
        let weights = random.pick(&[1, 1_000]);
        budget.memory = Some(Memory {
            fraction: Fraction::new(0.5),
            of: Some(Base::Total),
            weights: Some(ByteSize(weights)),
            ..Memory::default()
        });
        budget.host = None;
        let step = StepBytes {
            whole: random.pick(&[1, 8, 100]),
            divided: random.pick(&[0, 16]),
            vocab: random.pick(&[1, 5, 300]),
            chunked: [0, 0],
            index_key: 0,
        };
        let planned = |budget: &Budget, bytes: u64| {
            let device = DeviceInfo::cpu("host", 2 * bytes, 2 * bytes);
            let request =
                PlanRequest::of(model.caches().with_step(step)).with_budget(budget.clone()).with_devices(device);
            request.plan().map(|plan| (request.check(&plan), plan))
        };
        let Ok((checked, plan)) = planned(&budget, bytes) else { continue };
        assert_eq!(checked, Ok(()), "seed {seed}");
        let fits = |sequences: u64| {
            let caches = counted_bytes(&plan, &budget, sequences);
            weights + step_bytes(&plan, &budget, step, sequences) + caches <= bytes
        };
        let (sequences, cap) = (plan.capacity.sequences, plan.capacity.capped_by);
        assert!((1..=sequences.min(20)).chain([sequences]).all(fits), "seed {seed}: not every number fits");
        assert_eq!(cap == Cap::Memory, !fits(sequences + 1), "seed {seed}: {cap}");
        match cap {
            Cap::Memory => by_memory += 1,
            _ => by_limits += 1,
        }
        for stated in [
            Budget { max_batch_size: Some(sequences), ..budget.clone() },
            Budget { max_num_tokens: Some(plan.limits.max_num_tokens), ..budget.clone() },
        ] {
            let (checked, again) = planned(&stated, bytes).unwrap();
            assert_eq!(checked, Ok(()), "seed {seed}");
            assert_eq!(again.capacity.sequences, sequences, "seed {seed}");
            assert_eq!((&again.pools, &again.ledger), (&plan.pools, &plan.ledger), "seed {seed}");
        }
        let (_, more) = planned(&budget, bytes + random.below(bytes)).unwrap();
        assert!(more.capacity.sequences >= sequences, "seed {seed}: more memory admits fewer");
    }
    assert!(by_memory * 8 > cases && by_limits * 20 > cases, "{by_memory} by memory, {by_limits} by limits of {cases}");
}
