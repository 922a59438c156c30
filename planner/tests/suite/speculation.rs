//! Speculative decoding: twins, stashes, and the caches of what drafts.

use cacheplan_handlers::{DType, Growth, Kind, ResourceHandler};
use cacheplan_planner::check::Rule;
use cacheplan_planner::plan::{LedgerItem, Scheme};
use cacheplan_planner::{CachePlan, Owner, PlanError, PlanRequest};
use cacheplan_transforms::{PassContext, ReadOptions};
use rstest::rstest;

use super::common::{Model, budget, kv, nemotron_3_nano};

fn planned(request: &PlanRequest) -> CachePlan {
    let plan = request.plan().unwrap();
    assert_eq!(request.check(&plan), Ok(()));
    assert_eq!(plan.check_alone(), Ok(()));
    plan
}

#[test]
fn snapshots_hold_every_state_at_each_position_for_running_sequences_only() {
    let model = nemotron_3_nano();
    let budget = budget(
        "max_batch_size = 4\n[speculation]\ndraft_tokens = 3\n[workload]\nprompt = { fixed = 100 }\n\
         checkpoints_per_sequence = 2",
    );
    let plan = planned(&model.request(&budget));
    let pool = |id: &str| plan.pool(id).unwrap();
    assert_eq!(pool("intermediate_ssm.0").unit_bytes, 4 * pool("ssm.0").unit_bytes);
    assert_eq!((pool("ssm.0").units, pool("intermediate_ssm.0").units), (1 + 4 * 3, 1 + 4));
    assert_eq!(plan.limits.draft_positions, 4);
    assert_eq!(plan.totals.unmanaged_bytes, 0);
    // A sequence's own state is counted once.
    assert_eq!(plan.totals.state_bytes_per_sequence, 49_082_368);
}

#[test]
fn replay_keeps_inputs_instead_of_states_and_widens_the_convolution() {
    let model = nemotron_3_nano();
    let bytes = |scheme: &str| {
        let budget = budget(&format!("max_batch_size = 4\n[speculation]\ndraft_tokens = 3\nscheme = '{scheme}'"));
        let plan = planned(&model.request(&budget));
        (plan.totals.managed_bytes, plan.resource("conv_0").unwrap().bytes_per_sequence)
    };
    let ((snapshots, _), (replay, conv)) = (bytes("snapshots"), bytes("replay"));
    assert!(replay * 3 < snapshots, "{replay} against {snapshots}");
    assert_eq!(conv, 6_144 * (3 + 4) * 2);
}

/// A published model with its caches.
fn published(config: &str) -> Model {
    let file = format!("{}/../tests/fixtures/configs/{config}.json", env!("CARGO_MANIFEST_DIR"));
    let mut model = cacheplan_transforms::Model::read(file.as_ref(), &ReadOptions::default()).unwrap();
    let resources = model.graph.collect(&PassContext::default()).unwrap().resources;
    Model { info: model.info, resources }
}

/// What the first layer with a recurrent state keeps of one candidate: kinds and bytes, bf16 but for gates.
#[rstest]
#[case::mamba2("nvidia__Nemotron-H-8B-Base-8K", 1, &[("x", 128 * 64 * 2), ("b", 8 * 128 * 2), ("dt", 128 * 4), ("decay", 128 * 4)])]
#[case::mamba2_of_two("nvidia__Nemotron-H-8B-Base-8K", 2, &[("x", 64 * 64 * 2), ("b", 4 * 128 * 2), ("dt", 64 * 4), ("decay", 64 * 4)])]
#[case::groups_beside_the_convolution("pfnet__plamo-2-8b", 1, &[("x", 64 * 128 * 2), ("b", 64 * 2), ("dt", 64 * 4), ("decay", 64 * 4)])]
#[case::mamba1("tiiuae__falcon-mamba-7b", 1, &[("x", 8192 * 2), ("b", 16 * 2), ("dt", 8192 * 4)])]
#[case::mamba1_of_two("tiiuae__falcon-mamba-7b", 2, &[("x", 4096 * 2), ("b", 16 * 2), ("dt", 4096 * 4)])]
#[case::gated_delta("Qwen__Qwen3-Next-80B-A3B-Thinking", 1, &[("k", 16 * 128 * 2), ("v", 32 * 128 * 2), ("beta", 32 * 4), ("g", 32 * 4)])]
#[case::gated_delta_of_two("Qwen__Qwen3-Next-80B-A3B-Thinking", 2, &[("k", 8 * 128 * 2), ("v", 16 * 128 * 2), ("beta", 16 * 4), ("g", 16 * 4)])]
#[case::gated_delta_dense("Qwen__Qwen3.5-27B", 1, &[("k", 16 * 128 * 2), ("v", 48 * 128 * 2), ("beta", 48 * 4), ("g", 48 * 4)])]
#[case::kimi_delta("moonshotai__Kimi-Linear-48B-A3B-Instruct", 1, &[("k", 32 * 128 * 2), ("v", 32 * 128 * 2), ("beta", 32 * 4), ("g", 32 * 128 * 4)])]
#[case::lightning("MiniMaxAI__MiniMax-Text-01", 1, &[("k", 64 * 128 * 2), ("v", 64 * 128 * 2)])]
#[case::rg_lru("google__recurrentgemma-2b", 1, &[("x", 2560 * 2), ("input_gate", 2560 * 2), ("recurrence_gate", 2560 * 2)])]
fn replay_keeps_what_the_recurrence_takes(#[case] config: &str, #[case] tp: u32, #[case] expected: &[(&str, u64)]) {
    let model = published(config);
    let budget = budget(&format!(
        "max_batch_size = 1\n[speculation]\ndraft_tokens = 2\nscheme = 'replay'\n[parallel]\ntp = {tp}"
    ));
    let plan = planned(&model.request(&budget));
    let states: Vec<_> = plan.resources.iter().filter(|resource| *resource.handler.kind() == Kind::Ssm).collect();
    for state in &states {
        let inputs =
            plan.resources.iter().filter_map(|resource| Some((resource.kind.strip_prefix("replay.")?, resource)));
        let of_layer = inputs.filter(|(_, resource)| resource.layer == state.layer);
        let found: Vec<_> = of_layer.map(|(kind, resource)| (kind, resource.handler.unit_bytes())).collect();
        assert_eq!(found, expected, "{}", state.name);
    }
    let rows = plan.pools.iter().filter(|pool| pool.id.starts_with("replay."));
    let bytes: u64 = expected.iter().map(|(_, bytes)| bytes).sum();
    assert_eq!(rows.map(|pool| pool.unit_bytes).sum::<u64>(), 3 * bytes * states.len() as u64);
}

#[test]
fn inputs_have_the_dtype_of_the_activations() {
    let mut model = nemotron_3_nano();
    model.info.dtype = DType::F16;
    let budget = budget("max_batch_size = 1\n[speculation]\ndraft_tokens = 2\nscheme = 'replay'");
    let plan = planned(&model.request(&budget));
    let dtype = |name: &str| plan.resource(name).unwrap().dtype;
    assert_eq!(
        ["x", "b", "dt", "decay"].map(|input| dtype(&format!("replay_{input}.ssm_0"))),
        [DType::F16, DType::F16, DType::F32, DType::F32]
    );
}

#[rstest]
#[case::rwkv(published("RWKV__rwkv-4-169m-pile"), "`shift_state_0` of `layers.0.rwkv` is a state")]
#[case::compressor(published("deepseek-ai__DeepSeek-V4-Flash"), "_state_2` of `layers.2.attention` is a state")]
#[case::unstated(
    Model::new("m", 1).with("ssm", 0, ResourceHandler::ssm(4, 64, 16, DType::F32).unwrap()),
    "`ssm_0` of `layers.0.mixer` is a ssm"
)]
fn a_state_whose_recurrence_is_not_known_is_no_replay(#[case] model: Model, #[case] message: &str) {
    let budget = |scheme: &str| {
        budget(&format!("max_batch_size = 1\nmax_seq_len = 1024\n[speculation]\ndraft_tokens = 2\nscheme = '{scheme}'"))
    };
    let error = model.request(&budget("replay")).plan().unwrap_err();
    assert!(matches!(error, PlanError::NoReplay { .. }) && error.to_string().contains(message), "{error}");
    assert!(error.to_string().contains("scheme = \"snapshots\""), "{error}");
    let plan = planned(&model.request(&budget("snapshots")));
    let count = |growth| plan.resources.iter().filter(|resource| resource.handler.growth() == growth).count();
    assert_eq!(count(Growth::PerSequence), count(Growth::PerDraftPosition));
}

#[rstest]
#[case::inputs_missing("replay", |plan: &mut CachePlan| plan.resources.retain(|resource| resource.kind != "replay.b"))]
#[case::inputs_of_another_dtype("replay", |plan: &mut CachePlan| {
    let x = plan.resources.iter_mut().find(|resource| resource.kind == "replay.x").unwrap();
    x.handler = ResourceHandler::new(x.handler.kind().clone(), x.handler.growth(), x.handler.shape().to_vec(), DType::F32, None).unwrap();
})]
#[case::a_snapshot_missing("snapshots", |plan: &mut CachePlan| plan.resources.retain(|resource| resource.name != "intermediate.conv_0"))]
#[case::another_scheme("snapshots", |plan: &mut CachePlan| plan.rollback = Some(Scheme::Replay))]
#[case::no_scheme("replay", |plan: &mut CachePlan| {
    plan.rollback = None;
    plan.resources.retain(|resource| !resource.kind.starts_with("replay."));
})]
fn a_state_without_a_way_back_is_found(#[case] scheme: &str, #[case] corrupt: fn(&mut CachePlan)) {
    let model = nemotron_3_nano();
    let budget = budget(&format!("max_batch_size = 1\n[speculation]\ndraft_tokens = 2\nscheme = '{scheme}'"));
    let request = model.request(&budget);
    let mut plan = planned(&request);
    corrupt(&mut plan);
    for violations in [request.check(&plan).unwrap_err(), plan.check_alone().unwrap_err()] {
        assert!(violations.iter().any(|violation| violation.rule == Rule::Rollback), "{violations:#?}");
    }
}

#[test]
fn a_convolution_without_room_for_candidates_is_found_without_the_model() {
    let budget = budget("max_batch_size = 1\n[speculation]\ndraft_tokens = 2\nscheme = 'replay'");
    let mut plan = planned(&nemotron_3_nano().request(&budget));
    let conv = plan.resources.iter_mut().find(|resource| resource.name == "conv_0").unwrap();
    conv.handler = ResourceHandler::causal_conv(6144, 4, vec![4096, 1024, 1024], DType::Bf16).unwrap();
    let violations = plan.check_alone().unwrap_err();
    let rollback: Vec<_> = violations.iter().filter(|violation| violation.rule == Rule::Rollback).collect();
    assert_eq!(rollback.len(), 1, "{violations:#?}");
    assert_eq!(
        rollback[0].to_string(),
        "rollback: resources[conv_0] is 3 columns, expected its own and one for each candidate"
    );
}

#[test]
fn a_draft_model_and_a_prediction_head_have_their_caches_in_the_same_plan() {
    let model = Model::new("m", 2).with("kv", 0, kv(8, 128)).with("kv", 1, kv(8, 128));
    let draft = Model::new("draft", 1).with("kv", 0, kv(2, 64));
    let budget = budget("max_batch_size = 1\n[speculation]\ndraft_tokens = 4\nmtp_layers = 1\ndraft_weights = '1GiB'");
    let request = model.request(&budget).with_draft(draft.caches());
    let plan = planned(&request);
    let names: Vec<&str> = plan.resources.iter().map(|resource| resource.name.as_str()).collect();
    assert_eq!(names, ["kv_0", "kv_1", "draft.mtp_0", "draft.kv_0"]);
    assert!(plan.resources.iter().all(|resource| resource.owner == Owner::KvCacheManager));
    assert_eq!(plan.totals.kv_bytes_per_token, 3 * 4096 + 512);
    assert!(plan.ledger.iter().any(|line| line.name == LedgerItem::DraftWeights && line.bytes == 1 << 30));
}

/// The prediction heads of published models are attention layers like the model's last; a token's bytes in bf16.
#[rstest]
#[case::latent("deepseek-ai__DeepSeek-V3", &[(512 + 64) * 2])]
#[case::latent_and_indexer("deepseek-ai__DeepSeek-V3.2", &[(512 + 64) * 2, 128 * 2])]
#[case::behind_delta_nets("Qwen__Qwen3-Next-80B-A3B-Thinking", &[2 * 2 * 256 * 2])]
#[case::full("zai-org__GLM-4.5", &[2 * 8 * 128 * 2])]
#[case::behind_mamba("nvidia__NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16", &[2 * 2 * 128 * 2])]
fn a_prediction_head_keeps_what_the_last_attention_keeps(#[case] config: &str, #[case] bytes: &[u64]) {
    let model = published(config);
    let budget = budget("max_batch_size = 1\n[speculation]\ndraft_tokens = 2\nmtp_layers = 1");
    let plan = planned(&model.request(&budget));
    let head: Vec<u64> = plan
        .resources
        .iter()
        .filter(|resource| resource.name.starts_with("draft.mtp_0"))
        .map(|resource| resource.bytes_per_token)
        .collect();
    assert_eq!(head, bytes);
}

/// MiMo-V2's heads of keys, twice as many where there is a window.
const WINDOWED: &str = r#"{ "model_type": "mimo_v2_flash", "num_hidden_layers": 3, "hidden_size": 4096, "vocab_size": 1000,
    "num_attention_heads": 64, "num_key_value_heads": 4, "swa_num_key_value_heads": 8, "head_dim": 192, "v_head_dim": 128,
    "intermediate_size": 1024, "sliding_window_size": 128, "hybrid_layer_pattern": [0, 1, 0] }"#;

#[test]
fn a_prediction_head_with_a_window_is_like_the_last_layer_with_one() {
    let model = cacheplan_transforms::Model::read_config("config.json", WINDOWED, &ReadOptions::default()).unwrap();
    let budget = budget("max_batch_size = 1\n[speculation]\ndraft_tokens = 2\nmtp_layers = 1");
    let request = PlanRequest::of(model).with_budget(budget);
    let plan = request.plan().unwrap();
    request.check(&plan).unwrap();
    let head = plan.resource("draft.mtp_0").unwrap();
    assert_eq!((head.layer, head.bytes_per_token), (Some(1), 8 * (192 + 128) * 2));
}

#[test]
fn a_draft_model_without_speculation_is_an_error() {
    let model = Model::new("m", 1).with("kv", 0, kv(8, 128));
    let budget = budget("");
    let error = model.request(&budget).with_draft(model.caches()).plan().unwrap_err();
    assert!(error.to_string().contains("`[speculation]` (--draft-tokens) is not"), "{error}");
}

#[test]
fn a_model_without_states_only_looks_ahead() {
    let model = Model::new("m", 1).with("latent", 0, ResourceHandler::mla_paged(512, 64, DType::Bf16).unwrap());
    let plain = budget("max_seq_len = 4096\nmax_batch_size = 1");
    let drafting = budget("max_seq_len = 4096\nmax_batch_size = 1\n[speculation]\ndraft_tokens = 4");
    let units = |budget| planned(&model.request(budget)).pools[0].units;
    assert_eq!((units(&plain), units(&drafting)), (1 + 256, 1 + 257));
}

/// Rings have rows for what is drafted, and nothing beside them to put them back.
#[rstest]
#[case::six(6, "snapshots", 8)]
#[case::seven(7, "snapshots", 16)]
#[case::many(20, "replay", 32)]
fn a_ring_has_rows_for_drafted_tokens_and_no_twin(#[case] drafted: u64, #[case] scheme: &str, #[case] rows: u64) {
    let model = super::common::published("deepseek-ai__DeepSeek-V4.1-Flash");
    let text =
        format!("max_batch_size = 2\nmax_seq_len = 4096\n[speculation]\ndraft_tokens = {drafted}\nscheme = '{scheme}'");
    let budget = budget(&format!("{text}\nmtp_layers = 1\n[parallel]\ntp = 8"));
    let plan = PlanRequest::of(model).with_budget(budget).plan().unwrap();
    let rings: Vec<_> = plan.resources.iter().filter(|resource| resource.kind == "core.ring").collect();
    assert_eq!(rings.len(), 3);
    assert!(rings.iter().all(|ring| ring.bytes_per_sequence == rows * 1024 * 4));
    assert!(plan.resources.iter().all(|resource| !resource.handler.is_speculative()));
    let head = plan.resource("draft.mtp_0").unwrap();
    assert_eq!(head.handler.growth(), Growth::Paged { stride: 1, window: Some(128) });
}

#[test]
fn stages_do_not_divide_layers_that_share_a_cache() {
    let model = published("deepseek-ai__DeepSeek-V4.1-Flash");
    let budget = budget("max_batch_size = 2\nmax_seq_len = 4096\n[parallel]\npp = 4");
    let message = model.request(&budget).plan().unwrap_err().to_string();
    assert!(message.contains("`latents_8` is read by layer 10, which is on another stage"), "{message}");
}
