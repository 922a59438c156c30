//! The planning rows of AutoDeploy's interface tests, each under the policy of its generation, and vectors derived from
//! its formulas.
//!
//! The shared setting is that of its tests: max_seq_len 128, batch 4, pages of 32 tokens. Where AutoDeploy's tests look
//! at tensors, these look at the plan that would allocate them.

use cacheplan_handlers::{DType, Growth, Kind, ResourceHandler};
use cacheplan_planner::budget::Fraction;
use cacheplan_planner::{Budget, CachePlan, ForwardProfile, Grouping, ManagerKind, Owner, PlanError, Unit};
use rstest::rstest;

use super::common::{Model, budget, mamba2};
use super::formulas::{n_groups, needs_resize, reuses_blocks};

const SETTING: &str = "max_seq_len = 128\nmax_batch_size = 4\ntokens_per_block = 32\n";

fn first_reference() -> Budget {
    budget(&format!("grouping = 'first-reference'\n{SETTING}"))
}

fn by_window() -> Budget {
    budget(&format!("grouping = 'by-window'\n{SETTING}"))
}

fn kv(heads: u64, head_dim: u64) -> ResourceHandler {
    ResourceHandler::kv_paged(heads, head_dim, DType::F16).unwrap()
}

fn windowed(heads: u64, head_dim: u64, window: u32) -> ResourceHandler {
    kv(heads, head_dim).with_window(window).unwrap()
}

fn ssm() -> ResourceHandler {
    mamba2(4, 64, 16, 2, DType::Bf16)
}

fn conv(conv_dim: u64) -> ResourceHandler {
    ResourceHandler::causal_conv(conv_dim, 4, vec![], DType::F32).unwrap()
}

fn model(handlers: Vec<ResourceHandler>) -> Model {
    (0u32..).zip(handlers).fold(Model::new("m", 64), |model, (layer, handler)| model.with("r", layer, handler))
}

fn planned(handlers: Vec<ResourceHandler>, budget: &Budget) -> CachePlan {
    let model = model(handlers);
    let plan = model.request(budget).plan().unwrap();
    assert_eq!(model.request(budget).check(&plan), Ok(()));
    plan
}

fn owned_by(plan: &CachePlan, owner: Owner) -> usize {
    plan.resources.iter().filter(|resource| resource.owner == owner).count()
}

/// Rows 7 to 11, 15, 49 to 52, 65: what is registered is planned, and by whom.
#[rstest]
#[case::row_7(vec![kv(8, 64)], [1, 0, 0], ManagerKind::KvCacheManager)]
#[case::row_8(vec![ssm()], [0, 1, 0], ManagerKind::MambaHybridCacheManager)]
#[case::row_9(vec![ResourceHandler::unpaged(&[8, 64], DType::F16).unwrap()], [0, 0, 1], ManagerKind::KvCacheManager)]
#[case::row_10(vec![kv(8, 64), kv(8, 64), ssm()], [2, 1, 0], ManagerKind::MambaHybridCacheManager)]
#[case::row_11(vec![kv(8, 64), kv(8, 64)], [2, 0, 0], ManagerKind::KvCacheManager)]
#[case::row_15(vec![kv(8, 64), kv(8, 64), ssm()], [2, 1, 0], ManagerKind::MambaHybridCacheManager)]
#[case::row_49(vec![ssm(), ssm(), ssm()], [0, 3, 0], ManagerKind::MambaHybridCacheManager)]
#[case::row_50(vec![conv(256), conv(256), conv(256)], [0, 3, 0], ManagerKind::MambaHybridCacheManager)]
#[case::row_51(vec![ssm(), ssm(), ssm(), conv(320), conv(320)], [0, 4, 1], ManagerKind::MambaHybridCacheManager)]
#[case::row_52(vec![ResourceHandler::state(&[10, 20], DType::F32).unwrap()], [0, 0, 1], ManagerKind::KvCacheManager)]
#[case::row_65(vec![kv(8, 64), kv(8, 64)], [2, 0, 0], ManagerKind::KvCacheManager)]
fn the_first_reference_assigns_owners(
    #[case] handlers: Vec<ResourceHandler>,
    #[case] owners: [usize; 3],
    #[case] manager: ManagerKind,
) {
    let count = handlers.len();
    let plan = planned(handlers, &first_reference());
    assert_eq!(plan.resources.len(), count);
    let found = [Owner::KvCacheManager, Owner::MambaCacheManager, Owner::Local].map(|owner| owned_by(&plan, owner));
    assert_eq!((found, plan.manager), (owners, manager));
}

#[test]
fn row_51_the_third_state_is_local_because_there_are_two_convolutions() {
    let plan = planned(vec![ssm(), ssm(), ssm(), conv(320), conv(320)], &first_reference());
    let local: Vec<_> = plan.resources.iter().filter(|resource| resource.owner == Owner::Local).collect();
    assert_eq!(local[0].name, "r_2");
    assert_eq!(local[0].reason, "the manager has 2 layers, the fewer of its ssm and conv states");
}

#[rstest]
#[case::row_12_without_uniformity(vec![kv(8, 64), windowed(8, 80, 32)], 2)]
#[case::row_24(vec![windowed(8, 64, 64), kv(4, 128)], 2)]
#[case::row_62(vec![kv(8, 64), kv(8, 64)], 1)]
#[case::row_63(vec![windowed(8, 64, 64), windowed(8, 64, 64), kv(4, 128)], 2)]
fn windows_have_a_pool_each(#[case] handlers: Vec<ResourceHandler>, #[case] pools: usize) {
    let count = handlers.len();
    let plan = planned(handlers, &by_window());
    assert_eq!((plan.pools.len(), owned_by(&plan, Owner::KvCacheManager)), (pools, count));
}

#[rstest]
fn row_12_caches_that_must_be_uniform_and_are_not(#[values(Grouping::ByWindow, Grouping::ByKey)] policy: Grouping) {
    let budget = Budget { grouping: Some(policy), require_uniform: true, ..by_window() };
    let mixed = model(vec![kv(8, 64), windowed(8, 80, 32)]);
    let error = mixed.request(&budget).plan().unwrap_err();
    assert!(matches!(error, PlanError::Grouping(_)) && error.to_string().contains("not uniform"), "{error}");
    assert_eq!(planned(vec![kv(8, 64), kv(8, 64), ssm()], &budget).pools.len(), 2);
}

#[test]
fn row_63_windows_are_64_and_all_tokens() {
    let plan = planned(vec![windowed(8, 64, 64), windowed(8, 64, 64), kv(4, 128)], &by_window());
    let windows: Vec<_> = plan.pools.iter().map(|pool| pool.window).collect();
    assert_eq!(windows, [Some(64), None]);
}

#[rstest]
#[case::rows_54_and_64_head_dims(vec![kv(8, 64), kv(8, 80)], "head_dim 80")]
#[case::row_64_heads_and_head_dims(vec![kv(8, 64), kv(4, 128)], "head_dim 128")]
#[case::dtypes(vec![kv(8, 64), ResourceHandler::kv_paged(8, 64, DType::Bf16).unwrap()], "bf16")]
#[case::row_14_attention_types(vec![kv(8, 64), ResourceHandler::mla_paged(48, 16, DType::F16).unwrap()], "attention types")]
fn a_mix_inside_one_window_is_an_error(#[case] handlers: Vec<ResourceHandler>, #[case] expected: &str) {
    let model = model(handlers);
    let error = model.request(&by_window()).plan().unwrap_err();
    assert!(matches!(error, PlanError::Grouping(_)), "{error}");
    assert!(error.to_string().contains(expected), "{error}");
}

#[test]
fn row_16_a_page_is_factor_heads_tokens_and_head_dim() {
    let plan = planned(vec![kv(8, 64)], &first_reference());
    assert_eq!(plan.pools[0].unit_bytes, 2 * 8 * 32 * 64 * 2);
    assert_eq!(plan.pools[0].dtype, DType::F16);
}

#[test]
fn row_17_a_slot_is_heads_head_dim_and_state() {
    let plan = planned(vec![kv(8, 64), ssm()], &first_reference());
    let pool = plan.pools.iter().find(|pool| pool.unit == Unit::Slot).unwrap();
    assert_eq!((pool.unit_bytes, pool.dtype), (4 * 64 * 16 * 2, DType::Bf16));
}

#[test]
fn row_18_speculation_plans_a_twin_for_every_state() {
    let mut budget = first_reference();
    budget.speculation = Some(toml("draft_tokens = 2"));
    let plan = planned(vec![ssm(), conv(320), ssm(), conv(320)], &budget);
    assert_eq!((plan.resources.len(), owned_by(&plan, Owner::MambaCacheManager)), (8, 8));
    assert_eq!(plan.totals.unmanaged_bytes, 0);
}

fn toml<T: serde::de::DeserializeOwned>(text: &str) -> T {
    toml::from_str(text).unwrap()
}

#[test]
fn row_19_unpaged_data_has_a_row_per_slot() {
    let plan = planned(vec![ResourceHandler::unpaged(&[8, 64], DType::F16).unwrap()], &first_reference());
    let pool = &plan.pools[0];
    assert_eq!((pool.owner, pool.units, pool.unit_bytes), (Owner::Local, 5, 128 * 8 * 64 * 2));
    assert_eq!(plan.resources[0].handler.allocation_shape(5, 128), [5, 128, 8, 64]);
}

#[rstest]
#[case::row_20(vec![kv(8, 64), kv(8, 64)], true)]
#[case::row_21(vec![kv(8, 64), ssm()], false)]
fn blocks_are_reused_only_if_everything_is_paged(#[case] handlers: Vec<ResourceHandler>, #[case] reused: bool) {
    assert_eq!(reuses_blocks(&model(handlers).resources), reused);
}

#[rstest]
#[case::row_22(None, false)]
#[case::row_23(Fraction::new(0.5), true)]
fn a_fraction_asks_for_a_resize(#[case] fraction: Option<Fraction>, #[case] needed: bool) {
    assert_eq!(needs_resize(&model(vec![kv(8, 64)]).resources, fraction), needed);
    assert!(!needs_resize(&model(vec![ssm()]).resources, fraction));
}

fn rejecting() -> Budget {
    Budget { reject_unmanaged: true, ..by_window() }
}

fn generic_state() -> ResourceHandler {
    ResourceHandler::state(&[10, 20], DType::F32).unwrap()
}

#[test]
fn row_53_a_state_without_a_manager_is_refused_by_name() {
    let model = model(vec![kv(8, 64), generic_state()]);
    let error = model.request(&rejecting()).plan().unwrap_err();
    assert!(matches!(error, PlanError::Grouping(_)) && error.to_string().contains("`r_1` (state)"), "{error}");
}

#[test]
fn row_55_what_is_there_once_may_be_local() {
    let kind = Kind::try_from("acme.scratch".to_owned()).unwrap();
    let scratch = ResourceHandler::new(kind, Growth::Fixed, vec![], DType::Int32, None).unwrap();
    assert_eq!(owned_by(&planned(vec![kv(8, 64), scratch], &rejecting()), Owner::Local), 1);
}

fn replaying(policy: Grouping) -> Budget {
    let speculation = Some(toml("draft_tokens = 2\nscheme = 'replay'"));
    Budget { grouping: Some(policy), speculation, ..rejecting() }
}

#[rstest]
fn row_56_replay_buffers_have_the_manager_of_their_states(
    #[values(Grouping::FirstReference, Grouping::ByWindow, Grouping::ByKey)] policy: Grouping,
) {
    let plan = planned(vec![ssm(), conv(320), ssm(), conv(320)], &replaying(policy));
    let replays = plan.resources.iter().filter(|resource| resource.kind.starts_with("replay."));
    assert_eq!(replays.filter(|replay| replay.owner == Owner::MambaCacheManager).count(), 8);
    assert_eq!(owned_by(&plan, Owner::Local), 0);
}

#[rstest]
fn row_57_a_generic_state_beside_replay_buffers_is_refused_and_they_are_not(
    #[values(Grouping::FirstReference, Grouping::ByWindow, Grouping::ByKey)] policy: Grouping,
) {
    let model = model(vec![ssm(), conv(320), ssm(), conv(320), generic_state()]);
    let error = model.request(&replaying(policy)).plan().unwrap_err().to_string();
    assert!(error.contains("`r_4`") && !error.contains("replay_"), "{error}");
}

#[test]
fn inputs_of_a_local_state_are_local() {
    let other = mamba2(8, 64, 16, 2, DType::Bf16);
    let plan = planned(vec![ssm(), other], &Budget { reject_unmanaged: false, ..replaying(Grouping::FirstReference) });
    let owners = |layer: u32| plan.resources.iter().filter(move |resource| resource.layer == Some(layer));
    assert!(owners(0).all(|resource| resource.owner == Owner::MambaCacheManager));
    assert!(owners(1).all(|resource| resource.owner == Owner::Local));
}

#[test]
fn row_25_without_memory_a_resize_changes_nothing() {
    let model = model(vec![kv(8, 64)]);
    let budget = first_reference();
    let measured = ForwardProfile { resident_bytes: 1 << 30, forward_bytes: 1 << 28, free_bytes: 1 << 34 };
    let (before, after) =
        (model.request(&budget).plan().unwrap(), model.request(&budget).with_profile(measured).plan().unwrap());
    assert_eq!((before.pools, before.capacity), (after.pools, after.capacity));
}

#[test]
fn row_40_a_sequence_has_four_pages_however_many_there_are() {
    let mut budget = budget("max_seq_len = 128\ntokens_per_block = 32\n[memory]\nbytes = '16MiB'");
    budget.max_batch_size = None;
    let plan = planned(vec![kv(8, 64)], &budget);
    assert!(plan.pools[0].units > 100);
    assert_eq!((plan.pools[0].units - 1) / plan.capacity.sequences, 4);
}

#[rstest]
#[case((4, 64, 16, 320), Some(2))]
#[case((4, 64, 16, 256), Some(0))]
#[case((4, 64, 16, 255), None)]
#[case((4, 64, 16, 272), None)]
#[case((4, 64, 16, 288), Some(1))]
#[case((4, 64, 16, 240), None)]
#[case((128, 64, 128, 10240), Some(8))]
#[case((32, 128, 128, 8192), Some(16))]
fn group_counts(#[case] (heads, head_dim, d_state, conv_dim): (u64, u64, u64, u64), #[case] groups: Option<u64>) {
    let ssm = ResourceHandler::ssm(heads, head_dim, d_state, DType::F32).unwrap();
    assert_eq!(n_groups(&ssm, &conv(conv_dim)), groups);
}

#[rstest]
#[case(ResourceHandler::kv_paged(8, 64, DType::F16).unwrap(), 2048)]
#[case(ResourceHandler::kv_paged(4, 128, DType::F32).unwrap(), 4096)]
#[case(ResourceHandler::mla_paged(512, 64, DType::Bf16).unwrap(), 1152)]
#[case(ResourceHandler::mla_paged(512, 64, DType::F8E4m3).unwrap(), 576)]
#[case(ResourceHandler::kv_paged(8, 128, DType::F8E4m3).unwrap(), 2048)]
fn bytes_per_token(#[case] handler: ResourceHandler, #[case] bytes: u64) {
    assert_eq!(planned(vec![handler], &first_reference()).totals.kv_bytes_per_token, bytes);
}

/// `tokens = (free - states - forward) * fraction / bytes per token`, of which block 0 is padding.
#[test]
fn a_resize_gives_the_tokens_of_the_formula() {
    // 8,192 bytes per token and 2 GiB of states: 1 padding and 1 live slot of 1 GiB.
    let state = ResourceHandler::state(&[1 << 28], DType::F32).unwrap();
    let model = model(vec![ResourceHandler::kv_paged(16, 128, DType::Bf16).unwrap(), state]);
    let budget = budget(
        "max_seq_len = 5000000\nmax_batch_size = 1\nmaximize = 'tokens'\ntokens_per_block = 32\n\
         [memory]\nfraction = 0.9\nof = 'free'\n[workload]\nprompt = { fixed = 1000 }",
    );
    let measured = ForwardProfile { resident_bytes: 0, forward_bytes: 3 << 30, free_bytes: 40 << 30 };
    let mut shorter = budget.clone();
    shorter.max_seq_len = Some(4096);
    let plan = model.request(&shorter).with_profile(measured).plan().unwrap();
    assert_eq!(plan.capacity.tokens, Some(4_128_768 - 32));
    // Where the budget is known not to exist, there is no plan.
    let error = model.request(&budget).with_profile(measured).plan().unwrap_err();
    assert_eq!(error.exit_code(), 3);
    let none = ForwardProfile { free_bytes: 1 << 30, ..measured };
    assert_eq!(model.request(&shorter).with_profile(none).plan().unwrap_err().exit_code(), 3);
}

/// The token number is clamped to the batch from above; from below a plan holds one longest sequence or is none.
#[rstest]
#[case(1_000_000_000, Some(512))]
#[case(300, Some(288))]
#[case(100, None)]
fn tokens_are_clamped_to_what_the_batch_can_use(#[case] tokens: u64, #[case] planned: Option<u64>) {
    let model = model(vec![kv(8, 64)]);
    let mut budget = budget(&format!("{SETTING}[memory]\nbytes = 1"));
    let null_block = 32;
    budget.memory.as_mut().unwrap().bytes = Some(cacheplan_planner::ByteSize((tokens + null_block) * 2048));
    assert_eq!(model.request(&budget).plan().ok().and_then(|plan| plan.capacity.tokens), planned);
}

#[test]
fn slots_are_one_domain_for_managed_and_local_states() {
    let state = ResourceHandler::state(&[10, 20], DType::F32).unwrap();
    let mut budget = first_reference();
    budget.speculation = Some(toml("draft_tokens = 2"));
    let plan = planned(vec![ssm(), state], &budget);
    let rows: Vec<_> = plan.pools.iter().map(|pool| pool.units).collect();
    assert!(rows.iter().all(|rows| *rows == plan.slots.total()), "{rows:?}");
    assert_eq!(plan.slots.total(), 5);
}
