//! The checker accepts what the planner makes and nothing else.

use cacheplan_handlers::{DType, Dim, ResourceHandler};
use cacheplan_planner::check::Rule;
use cacheplan_planner::device::DeviceKind;
use cacheplan_planner::engines::EnginePrediction;
use cacheplan_planner::plan::Cap;
use cacheplan_planner::{
    CachePlan, DeviceInfo, EngineSpec, ForwardProfile, Grouping, ManagerKind, Member, Owner, PlanRequest, Unit,
};
use rstest::rstest;
use serde_json::Value;

use super::common::{Model, budget, kv, nemotron_3_nano, published};

/// Every kind of pool at once: full and windowed pages, states, twins, unpaged tokens.
fn mixed() -> Model {
    let mut model = Model::new("mixed", 6)
        .with("kv", 0, kv(8, 64))
        .with("kv", 1, kv(2, 64).with_window(256).unwrap())
        .with("latent", 2, ResourceHandler::mla_paged(512, 64, DType::F8E4m3).unwrap())
        .with("ssm", 3, ResourceHandler::ssm(4, 64, 16, DType::F32).unwrap())
        .with("conv", 3, ResourceHandler::causal_conv(320, 4, vec![256, 32, 32], DType::Bf16).unwrap())
        .with("ssm", 4, ResourceHandler::ssm(8, 64, 16, DType::F32).unwrap())
        .with("extra", 5, ResourceHandler::unpaged(&[3], DType::Int32).unwrap());
    model.info.weights = Some(cacheplan_transforms::WeightBytes::new(1 << 30, true));
    model
}

const BUDGET: &str = "
    max_seq_len = 2048
    max_num_tokens = 512
    [memory]
    fraction = 0.8
    of = 'free'
    reserve = '64MiB'
    [workload]
    prompt = { lognormal = { median = 300, sigma = 0.5 } }
    output = { fixed = 200 }
    checkpoints_per_sequence = 2
    prefix_reuse = 0.25
    [speculation]
    draft_tokens = 3
";

fn device() -> DeviceInfo {
    DeviceInfo { name: "gpu".into(), total_bytes: 24 << 30, free_bytes: 22 << 30, kind: DeviceKind::Cuda }
}

#[rstest]
fn every_policy_and_budget_gives_a_plan_that_checks(
    #[values("by-key", "first-reference")] grouping: &str,
    #[values("", "max_batch_size = 3", "max_batch_size = 3\nmaximize = 'tokens'")] batch: &str,
    #[values(true, false)] measured: bool,
) {
    let (model, device) = (mixed(), device());
    let budget = budget(&format!("grouping = '{grouping}'\n{batch}\n{BUDGET}"));
    let measurement = ForwardProfile { resident_bytes: 2 << 30, forward_bytes: 1 << 28, free_bytes: 20 << 30 };
    let request = model.request(&budget).with_devices(device);
    let request = if measured { request.with_profile(measurement) } else { request };
    let plan = request.plan().unwrap();
    assert_eq!(request.check(&plan), Ok(()));
}

/// Four ranks, two of which serve the same sequences.
const DIVIDED: &str = "
    max_seq_len = 2048
    [memory]
    bytes = '1GiB'
    [parallel]
    tp = 2
    dp = 2
";

#[rstest]
fn changing_any_number_of_an_engines_section_is_found(
    #[values("vllm@0.33.0", "sglang", "tensorrt-llm", "llama.cpp")] engine: EngineSpec,
) {
    let budget = budget("max_seq_len = 8192\nmax_batch_size = 4\n[memory]\nbytes = '8GiB'");
    let model = published("Qwen__Qwen3-0.6B");
    let request = PlanRequest::of(model).with_budget(budget).for_engine(engine);
    let json = serde_json::to_value(request.predict(engine).unwrap()).unwrap();
    let read = |json: &Value| serde_json::from_value::<EnginePrediction>(json.clone()).unwrap();
    assert_eq!(request.check_prediction(&read(&json)), Ok(()));
    let numbers = numbers(&json, &mut String::new());
    assert!(numbers.len() >= 4, "{numbers:?}");
    for pointer in numbers {
        let mut corrupt = json.clone();
        let number = corrupt.pointer_mut(&pointer).unwrap();
        *number = number.as_u64().map_or_else(|| Value::from(1.5), |number| Value::from(number + 1));
        let violations = request.check_prediction(&read(&corrupt)).unwrap_err();
        assert!(violations.iter().all(|violation| violation.rule == Rule::Engine), "{pointer}: {violations:?}");
    }
}

#[test]
fn a_plan_of_several_ranks_says_what_they_are_together() {
    let request = mixed().request(&budget(DIVIDED));
    let mut plan = request.plan().unwrap();
    assert_eq!(request.check(&plan), Ok(()));
    plan.deployment = None;
    let violations: Vec<String> = request.check(&plan).unwrap_err().iter().map(ToString::to_string).collect();
    assert_eq!(violations, ["deployment: deployment is absent, expected what all ranks are together"]);
}

/// JSON pointers of all numbers.
fn numbers(value: &Value, at: &mut String) -> Vec<String> {
    let children: Vec<(String, &Value)> = match value {
        Value::Number(_) => return vec![at.clone()],
        Value::Array(items) => items.iter().enumerate().map(|(index, item)| (index.to_string(), item)).collect(),
        Value::Object(map) => map.iter().map(|(key, item)| (key.clone(), item)).collect(),
        _ => Vec::new(),
    };
    children.into_iter().flat_map(|(key, item)| numbers(item, &mut format!("{at}/{key}"))).collect()
}

fn checkpoints(plan: &mut CachePlan) -> &mut cacheplan_planner::Pool {
    plan.pools.iter_mut().find(|pool| pool.checkpoints_of.is_some()).unwrap()
}

fn pool(plan: &mut CachePlan, unit: Unit) -> &mut cacheplan_planner::Pool {
    plan.pools.iter_mut().find(|pool| pool.unit == unit).unwrap()
}

#[rstest]
#[case::a_byte_count_off_by_one(Rule::Size, |plan: &mut CachePlan| pool(plan, Unit::Block).bytes += 1)]
#[case::a_unit_off_by_one_byte(Rule::Size, |plan: &mut CachePlan| pool(plan, Unit::Slot).unit_bytes -= 1)]
#[case::a_block_too_few(Rule::Capacity, |plan: &mut CachePlan| pool(plan, Unit::Block).units -= 1)]
#[case::a_slot_too_many(Rule::Capacity, |plan: &mut CachePlan| pool(plan, Unit::Slot).units += 1)]
#[case::no_padding_slot(Rule::Limits, |plan: &mut CachePlan| pool(plan, Unit::Slot).reserved = 0)]
#[case::no_null_block(Rule::Limits, |plan: &mut CachePlan| pool(plan, Unit::Block).reserved = 0)]
#[case::members_overlap(Rule::Layout, |plan: &mut CachePlan| plan.pools.iter_mut().find(|p| p.members.len() > 1).unwrap().members[1].offset -= 2)]
#[case::a_gap_between_members(Rule::Layout, |plan: &mut CachePlan| plan.pools.iter_mut().find(|p| p.members.len() > 1).unwrap().members[1].offset += 2)]
#[case::an_offset_inside_an_element(Rule::Layout, |plan: &mut CachePlan| pool(plan, Unit::Slot).members[0].offset = 1)]
#[case::a_member_too_short(Rule::Layout, |plan: &mut CachePlan| pool(plan, Unit::Block).members[0].bytes -= 2)]
#[case::a_resource_owned_twice(Rule::Membership, |plan: &mut CachePlan| {
    let member = plan.pools[0].members[0].clone();
    plan.pools[1].members.push(member);
})]
#[case::a_resource_without_a_pool(Rule::Membership, |plan: &mut CachePlan| { pool(plan, Unit::Block).members.pop(); })]
#[case::a_member_nobody_knows(Rule::Membership, |plan: &mut CachePlan| {
    pool(plan, Unit::Block).members.push(Member { resource: "ghost".into(), offset: 0, bytes: 2 });
})]
#[case::a_resource_that_names_another_pool(Rule::Membership, |plan: &mut CachePlan| plan.resources[0].pool = "kv_paged.0".into())]
#[case::a_resource_forgotten(Rule::Coverage, |plan: &mut CachePlan| { plan.resources.pop(); })]
#[case::resources_in_another_order(Rule::Coverage, |plan: &mut CachePlan| plan.resources.swap(0, 1))]
#[case::another_layer(Rule::Coverage, |plan: &mut CachePlan| plan.resources[0].layer = Some(1))]
#[case::a_layer_missing_from_its_pool(Rule::Coverage, |plan: &mut CachePlan| { pool(plan, Unit::Slot).layers.pop(); })]
#[case::a_cache_that_drafts_for_nobody(Rule::Coverage, |plan: &mut CachePlan| plan.resources[0].drafts = true)]
#[case::another_dtype(Rule::Coverage, |plan: &mut CachePlan| plan.resources[0].dtype = DType::F16)]
#[case::another_kind(Rule::Coverage, |plan: &mut CachePlan| plan.resources[0].kind = "state".into())]
#[case::a_pool_of_another_dtype(Rule::Compatibility, |plan: &mut CachePlan| pool(plan, Unit::Slot).dtype = DType::F16)]
#[case::blocks_owned_by_the_state_manager(Rule::Owner, |plan: &mut CachePlan| pool(plan, Unit::Block).owner = Owner::MambaCacheManager)]
#[case::an_owner_its_pool_does_not_have(Rule::Owner, |plan: &mut CachePlan| plan.resources[0].owner = Owner::Local)]
#[case::slots_called_blocks(Rule::Owner, |plan: &mut CachePlan| pool(plan, Unit::Slot).unit = Unit::Block)]
#[case::the_manager_without_states(Rule::Owner, |plan: &mut CachePlan| plan.manager = ManagerKind::KvCacheManager)]
#[case::two_pools_of_one_name(Rule::Membership, |plan: &mut CachePlan| plan.pools[1].id = plan.pools[0].id.clone())]
#[case::blocks_of_another_size(Rule::Layout, |plan: &mut CachePlan| pool(plan, Unit::Block).tokens_per_block = Some(64))]
#[case::a_window_from_nowhere(Rule::Layout, |plan: &mut CachePlan| pool(plan, Unit::Block).window = Some(128))]
#[case::live_slots_off_by_one(Rule::Limits, |plan: &mut CachePlan| plan.slots.live -= 1)]
#[case::a_checkpoint_from_nowhere(Rule::Limits, |plan: &mut CachePlan| plan.slots.checkpoints += 1)]
#[case::a_longer_sequence(Rule::Limits, |plan: &mut CachePlan| plan.limits.max_seq_len += 1)]
#[case::a_sequence_promised_too_many(Rule::Capacity, |plan: &mut CachePlan| plan.capacity.sequences += 1)]
#[case::shorter_sequences_than_promised(Rule::Capacity, |plan: &mut CachePlan| plan.capacity.tokens_per_sequence += 1)]
#[case::tokens_promised_too_many(Rule::Capacity, |plan: &mut CachePlan| plan.capacity.tokens = plan.capacity.tokens.map(|tokens| tokens + 1))]
#[case::a_cap_that_is_not_one(Rule::Capacity, |plan: &mut CachePlan| plan.capacity.capped_by = Cap::AnotherRank)]
#[case::a_total_off_by_one(Rule::Size, |plan: &mut CachePlan| plan.totals.managed_bytes -= 1)]
#[case::a_ledger_line_off_by_one(Rule::Ledger, |plan: &mut CachePlan| plan.ledger[0].bytes += 1)]
#[case::a_ledger_line_missing(Rule::Ledger, |plan: &mut CachePlan| { plan.ledger.pop(); })]
#[case::no_host_tier(Rule::Host, |plan: &mut CachePlan| plan.host = None)]
#[case::a_parked_sequence_too_many(Rule::Host, |plan: &mut CachePlan| plan.host.as_mut().unwrap().sequences += 1)]
#[case::a_pool_missing_from_the_host(Rule::Host, |plan: &mut CachePlan| { plan.host.as_mut().unwrap().pools.pop(); })]
#[case::checkpoints_of_nothing(Rule::Membership, |plan: &mut CachePlan| checkpoints(plan).checkpoints_of = Some("ssm".into()))]
#[case::checkpoints_missing(Rule::Limits, |plan: &mut CachePlan| { plan.pools.pop(); })]
#[case::checkpoints_of_another_dtype(Rule::Compatibility, |plan: &mut CachePlan| checkpoints(plan).dtype = DType::F32)]
#[case::a_checkpoint_without_its_scales(Rule::Layout, |plan: &mut CachePlan| checkpoints(plan).members[0].bytes = 64 * 64 * 128)]
#[case::checkpoints_of_another_owner(Rule::Compatibility, |plan: &mut CachePlan| checkpoints(plan).owner = Owner::Local)]
#[case::another_policy(Rule::Fingerprint, |plan: &mut CachePlan| plan.policy = Grouping::ByWindow)]
#[case::another_model(Rule::Fingerprint, |plan: &mut CachePlan| plan.model.layers += 1)]
#[case::another_fingerprint(Rule::Fingerprint, |plan: &mut CachePlan| plan.fingerprint.budget.push('0'))]
#[case::another_schema(Rule::Fingerprint, |plan: &mut CachePlan| plan.schema_version += 1)]
fn corruption_is_found_by_its_rule(#[case] rule: Rule, #[case] corrupt: fn(&mut CachePlan)) {
    let model = nemotron_3_nano();
    let budget = budget(
        "max_seq_len = 8192\n[memory]\nbytes = '24GiB'\n[host]\nbytes = '8GiB'\n\
         [workload]\nprompt = { fixed = 8192 }\ncheckpoints_per_sequence = 1\ncheckpoint_dtype = 'int8'",
    );
    let request = model.request(&budget);
    let mut plan = request.plan().unwrap();
    assert_eq!(request.check(&plan), Ok(()));
    corrupt(&mut plan);
    let violations = request.check(&plan).unwrap_err();
    assert!(violations.iter().any(|violation| violation.rule == rule), "{violations:#?}");
}

#[test]
fn a_violation_says_where_and_what() {
    let model = nemotron_3_nano();
    let budget = budget("max_batch_size = 1");
    let request = model.request(&budget);
    let mut plan = request.plan().unwrap();
    plan.slots.padding = 0;
    let violations: Vec<_> = request.check(&plan).unwrap_err().iter().map(ToString::to_string).collect();
    assert_eq!(violations, ["limits: slots.padding is 0, expected 1"]);
}

/// The checker derives what each rank holds by itself, so that a share of another size is found.
#[rstest]
fn what_a_rank_holds_is_derived_anew(#[values(1, 2)] tp: u32, #[values(1, 2)] pp: u32) {
    let model = nemotron_3_nano();
    let draft = Model::new("draft", 2).with("kv", 0, kv(4, 64)).with("kv", 1, kv(4, 64));
    let budget = budget(&format!(
        "max_batch_size = 1\n[speculation]\ndraft_tokens = 2\nmtp_layers = 1\nscheme = 'replay'\n\
         [parallel]\ntp = {tp}\npp = {pp}"
    ));
    for stage in 0..pp {
        let request = model.request(&budget).with_draft(draft.caches()).of_stage(stage);
        let made = request.plan().unwrap();
        assert_eq!(request.check(&made), Ok(()));
        for at in 0..made.resources.len() {
            let mut fewer = made.clone();
            fewer.resources.remove(at);
            assert!(request.check(&fewer).is_err(), "without {}", made.resources[at].name);
            let mut undivided = made.clone();
            let handler = &undivided.resources[at].handler;
            let mut shape = handler.shape().to_vec();
            shape[0] = Dim::whole(shape[0].name.clone(), shape[0].size * 2);
            let (kind, growth) = (handler.kind().clone(), handler.growth());
            undivided.resources[at].handler =
                ResourceHandler::new(kind, growth, shape, handler.dtype(), handler.layout()).unwrap();
            let violations = request.check(&undivided).unwrap_err();
            let found = |rule: Rule| violations.iter().any(|violation| violation.rule == rule);
            assert!(found(Rule::Coverage) || found(Rule::Rollback), "{violations:#?}");
        }
    }
}
