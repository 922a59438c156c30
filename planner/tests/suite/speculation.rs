//! Speculative decoding: twins, stashes, and the caches of what drafts.

use cacheplan_handlers::{DType, ResourceHandler};
use cacheplan_planner::{CachePlan, Owner, PlanRequest, check, plan};
use cacheplan_transforms::{PassContext, ReadOptions, collect, read_model};
use rstest::rstest;

use crate::common::{Model, budget, kv, nemotron_3_nano};

fn planned(request: &PlanRequest<'_>) -> CachePlan {
    let plan = plan(request).unwrap();
    assert_eq!(check(request, &plan), Ok(()));
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

#[test]
fn a_draft_model_and_a_prediction_head_have_their_caches_in_the_same_plan() {
    let model = Model::new("m", 2).with("kv", 0, kv(8, 128)).with("kv", 1, kv(8, 128));
    let draft = Model::new("draft", 1).with("kv", 0, kv(2, 64));
    let budget = budget("max_batch_size = 1\n[speculation]\ndraft_tokens = 4\nmtp_layers = 1\ndraft_weights = '1GiB'");
    let request = PlanRequest { draft: Some(&draft.resources), ..model.request(&budget) };
    let plan = planned(&request);
    let names: Vec<&str> = plan.resources.iter().map(|resource| resource.name.as_str()).collect();
    assert_eq!(names, ["kv_0", "kv_1", "draft.mtp_0", "draft.kv_0"]);
    assert!(plan.resources.iter().all(|resource| resource.owner == Owner::KvCacheManager));
    assert_eq!(plan.totals.kv_bytes_per_token, 3 * 4096 + 512);
    assert!(plan.ledger.iter().any(|line| line.name == "draft weights" && line.bytes == 1 << 30));
}

/// The prediction heads of published models are attention layers like the model's last; a token's bytes in bf16.
#[rstest]
#[case::latent("deepseek-ai__DeepSeek-V3", &[(512 + 64) * 2])]
#[case::latent_and_indexer("deepseek-ai__DeepSeek-V3.2", &[(512 + 64) * 2, 128 * 2])]
#[case::behind_delta_nets("Qwen__Qwen3-Next-80B-A3B-Thinking", &[2 * 2 * 256 * 2])]
#[case::full("zai-org__GLM-4.5", &[2 * 8 * 128 * 2])]
#[case::behind_mamba("nvidia__NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16", &[2 * 2 * 128 * 2])]
fn a_prediction_head_keeps_what_the_last_attention_keeps(#[case] config: &str, #[case] bytes: &[u64]) {
    let file = format!("{}/../tests/fixtures/configs/{config}.json", env!("CARGO_MANIFEST_DIR"));
    let mut model = read_model(file.as_ref(), &ReadOptions::default()).unwrap();
    let resources = collect(&mut model.graph, &PassContext::default()).unwrap().resources;
    let budget = budget("max_batch_size = 1\n[speculation]\ndraft_tokens = 2\nmtp_layers = 1");
    let model = Model { info: model.info, resources };
    let plan = planned(&model.request(&budget));
    let head: Vec<u64> = plan
        .resources
        .iter()
        .filter(|resource| resource.name.starts_with("draft.mtp_0"))
        .map(|resource| resource.bytes_per_token)
        .collect();
    assert_eq!(head, bytes);
}

#[test]
fn a_draft_model_without_speculation_is_an_error() {
    let model = Model::new("m", 1).with("kv", 0, kv(8, 128));
    let budget = budget("");
    let error = plan(&PlanRequest { draft: Some(&model.resources), ..model.request(&budget) }).unwrap_err();
    assert!(error.to_string().contains("`[speculation]` is not"), "{error}");
}

#[test]
fn a_model_without_states_only_looks_ahead() {
    let model = Model::new("m", 1).with("latent", 0, ResourceHandler::mla_paged(512, 64, DType::Bf16).unwrap());
    let plain = budget("max_seq_len = 4096\nmax_batch_size = 1");
    let drafting = budget("max_seq_len = 4096\nmax_batch_size = 1\n[speculation]\ndraft_tokens = 4");
    let units = |budget| planned(&model.request(budget)).pools[0].units;
    assert_eq!((units(&plain), units(&drafting)), (1 + 256, 1 + 257));
}
