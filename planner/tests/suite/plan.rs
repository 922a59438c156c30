//! Whole plans: owners, sizes, totals, errors.

use super::common::{Model, budget, kv, nemotron_3_nano, published};
use cacheplan_handlers::{DType, ResourceHandler};
use cacheplan_planner::budget::Lengths;
use cacheplan_planner::device::DeviceKind;
use cacheplan_planner::{
    ByteSize, Config, DeviceInfo, Devices, EngineSpec, ForwardProfile, ManagerKind, Override, Owner, PlanError,
    PlanRequest, SlotDomain,
};
use cacheplan_transforms::WeightBytes;
use rstest::rstest;

#[test]
fn nemotron_3_nano_is_all_managed_and_its_bytes_are_known() {
    let model = nemotron_3_nano();
    let plan =
        model.request(&budget("max_seq_len = 8192\ntokens_per_block = 32\n[memory]\nbytes = '24GiB'")).plan().unwrap();
    let count = |kind: &str| plan.resources.iter().filter(|resource| resource.kind == kind).count();
    assert_eq!((count("ssm"), count("causal_conv"), count("kv_paged")), (23, 23, 6));
    assert!(plan.resources.iter().all(|resource| resource.owner.is_managed()));
    assert_eq!(plan.totals.kv_bytes_per_token, 6_144);
    assert_eq!(plan.totals.state_bytes_per_sequence, 48_234_496 + 847_872);
    assert_eq!(plan.manager, ManagerKind::MambaHybridCacheManager);
    assert_eq!(plan.totals.managed_bytes, plan.pools.iter().map(|pool| pool.bytes).sum::<u64>());
    // 24 GiB = (1 + n) slots + (1 + 256 n) blocks of 32 tokens.
    let (slot, block) = (49_082_368, 32 * 6_144);
    assert_eq!(plan.capacity.sequences, ((24u64 << 30) - slot - block) / (slot + 256 * block));
    assert_eq!(plan.slots, SlotDomain { padding: 1, live: plan.capacity.sequences, checkpoints: 0 });
    let rest = (24u64 << 30) - plan.totals.managed_bytes;
    assert!(rest < block, "{rest} bytes are left, which would hold one more block");
}

#[test]
fn what_sequences_leave_behind_says_nothing_about_their_length() {
    let model = nemotron_3_nano();
    let memory = "max_seq_len = 8192\ntokens_per_block = 32\n[memory]\nbytes = '24GiB'\n";
    let budget = budget(&format!("{memory}[workload]\ncheckpoints_per_sequence = 1"));
    let plan = model.request(&budget).plan().unwrap();
    // 24 GiB = (1 + 2 n) slots + (1 + 256 n) blocks of 32 tokens.
    let (slot, block) = (49_082_368, 32 * 6_144);
    assert_eq!(plan.capacity.sequences, ((24u64 << 30) - slot - block) / (2 * slot + 256 * block));
    assert_eq!(plan.capacity.tokens_per_sequence, 8_192);
}

#[test]
fn too_many_checkpoints_are_told_how_many_would_do() {
    let model = nemotron_3_nano();
    let budget = budget("[memory]\nbytes = '1GiB'\n[workload]\ncheckpoints_per_sequence = 4000000000");
    let error = model.request(&budget).plan().unwrap_err().to_string();
    // 1 GiB = (2 + n) slots and 257 blocks of 16 tokens, of which 19 slots fit.
    assert!(error.contains("workload.checkpoints_per_sequence = 19: 1 sequence"), "{error}");
}

#[test]
fn capacity_is_stated_for_the_sequences_that_were_counted() {
    let model = nemotron_3_nano();
    let lengths = "[workload]\nprompt = { histogram = [[3000, 1], [100, 2]] }\noutput = { fixed = 500 }";
    let plan = model.request(&budget(&format!("max_seq_len = 8192\n{lengths}"))).plan().unwrap();
    // (3500 + 2 * 600) / 3, rounded up.
    assert_eq!(plan.capacity.tokens_per_sequence, 1_567);
    assert!(plan.table().contains("CAPACITY  8 sequences of 1567 tokens, "), "{}", plan.table());
}

#[test]
fn the_table_of_nemotron_3_nano_shows_owner_and_reason_within_100_columns() {
    let model = nemotron_3_nano();
    let table = model
        .request(&budget("max_seq_len = 8192\ntokens_per_block = 32\n[memory]\nbytes = '24GiB'"))
        .plan()
        .unwrap()
        .table();
    assert!(table.lines().all(|line| line.chars().count() <= 100), "{table}");
    insta::assert_snapshot!(table);
}

#[test]
fn the_json_reads_back_and_has_the_keys_of_the_contract() {
    let model = nemotron_3_nano();
    let made = model.request(&budget("max_batch_size = 2")).plan().unwrap();
    let json = serde_json::to_value(&made).unwrap();
    for key in ["schema_version", "model", "manager", "resources", "pools", "capacity", "totals"] {
        assert!(json.get(key).is_some(), "{key}");
    }
    assert_eq!(json["model"]["type"], "nemotron_h");
    assert_eq!(json["manager"], "mamba_hybrid_cache_manager");
    assert_eq!(json["resources"][0]["owner"], "mamba_cache_manager");
    assert_eq!(json["pools"][0]["unit"], "slot");
    assert_eq!(serde_json::from_value::<cacheplan_planner::CachePlan>(json).unwrap(), made);
}

#[test]
fn members_of_a_unit_stand_one_after_the_other() {
    let model = Model::new("m", 3).with("kv", 0, kv(8, 64)).with("kv", 1, kv(2, 64)).with("kv", 2, kv(8, 64));
    let plan = model.request(&budget("tokens_per_block = 16")).plan().unwrap();
    let places: Vec<_> = plan.pools[0].members.iter().map(|member| (member.offset, member.bytes)).collect();
    assert_eq!(places, [(0, 32_768), (32_768, 8_192), (40_960, 32_768)]);
    assert_eq!(plan.pools[0].unit_bytes, 73_728);
    assert_eq!(plan.manager, ManagerKind::KvCacheManager);
}

#[test]
fn the_first_reference_decides_what_is_managed_and_keys_leave_nothing_out() {
    let model = Model::new("m", 3).with("kv", 0, kv(8, 64)).with("kv", 1, kv(8, 128)).with("kv", 2, kv(2, 64));
    let by_reference = model.request(&budget("grouping = 'first-reference'")).plan().unwrap();
    let owners: Vec<_> = by_reference.resources.iter().map(|resource| resource.owner).collect();
    assert_eq!(owners, [Owner::KvCacheManager, Owner::Local, Owner::KvCacheManager]);
    assert_eq!(by_reference.resources[1].reason, "unlike the reference `kv_0`: head_dim 128 differs from 64");
    assert_eq!(by_reference.pools[1].units, by_reference.pools[0].units);
    assert_eq!(by_reference.totals.unmanaged_bytes, by_reference.pools[1].bytes);
    let by_key = model.request(&budget("")).plan().unwrap();
    assert_eq!(by_key.totals.unmanaged_bytes, 0);
    assert_eq!(by_key.pools.len(), 2);
}

#[test]
fn the_first_reference_keeps_only_as_many_state_layers_as_both_lists_have() {
    let mut model = Model::new("m", 5);
    for layer in 0..3 {
        model = model.with("ssm", layer, ResourceHandler::ssm(4, 64, 16, DType::Bf16).unwrap());
    }
    for layer in 0..2 {
        model = model.with("conv", layer, ResourceHandler::causal_conv(320, 4, vec![], DType::F32).unwrap());
    }
    let plan = model.request(&budget("grouping = 'first-reference'")).plan().unwrap();
    let local: Vec<_> = plan
        .resources
        .iter()
        .filter(|resource| resource.owner == Owner::Local)
        .map(|resource| &resource.name)
        .collect();
    assert_eq!(local, ["ssm_2"]);
}

#[test]
fn a_convolution_that_no_group_count_explains_is_local() {
    let model = Model::new("m", 1).with("ssm", 0, ResourceHandler::ssm(4, 64, 16, DType::Bf16).unwrap()).with(
        "conv",
        0,
        ResourceHandler::causal_conv(255, 4, vec![], DType::F32).unwrap(),
    );
    let plan = model.request(&budget("grouping = 'first-reference'")).plan().unwrap();
    let conv = plan.resource("conv_0").unwrap();
    assert_eq!(conv.owner, Owner::Local);
    assert!(conv.reason.contains("conv_dim 255 = 64 * 4 + 2 * n_groups * 16"), "{}", conv.reason);
    assert_eq!(plan.pool("conv_0").unwrap().units, plan.slots.total());
}

#[test]
fn a_window_pool_stops_growing() {
    let windowed = kv(8, 64).with_window(1024).unwrap();
    let model = Model::new("m", 2).with("kv", 0, windowed).with("kv", 1, kv(8, 64));
    let text = "max_seq_len = 65536\nmax_batch_size = 4\nmax_num_tokens = 2048\ntokens_per_block = 32";
    let plan = model.request(&budget(text)).plan().unwrap();
    assert_eq!(plan.pools[1].units, 1 + 4 * 2048);
    // 4 windows of 33 blocks, and 2,044 further tokens of a step: 4 of them enter a new block after 2 tokens each.
    assert_eq!(plan.pools[0].units, 1 + 4 * 33 + 4 + (2044 - 4 * 2) / 32);
    assert_eq!(plan.pools[0].window, Some(1024));
}

#[test]
fn a_window_that_never_binds_is_full_attention() {
    let model = Model::new("m", 2).with("kv", 0, kv(8, 64).with_window(4096).unwrap()).with("kv", 1, kv(8, 64));
    let plan = model.request(&budget("max_seq_len = 4096")).plan().unwrap();
    assert_eq!(plan.pools.len(), 1);
    assert_eq!(plan.pools[0].window, None);
}

#[rstest]
#[case("by-key")]
#[case("by-window")]
#[case("first-reference")]
fn one_sequence_too_many_names_the_shortfall(#[case] grouping: &str) {
    let model = nemotron_3_nano();
    let text =
        format!("grouping = '{grouping}'\nmax_seq_len = 4096\ntokens_per_block = 32\n[memory]\nbytes = '100MiB'");
    let error = model.request(&budget(&text)).plan().unwrap_err();
    assert_eq!(error.exit_code(), 3);
    let PlanError::DoesNotFit(shortfall) = error else { panic!("{error}") };
    let needed = 2 * 49_082_368 + (1 + 128) * 32 * 6_144;
    assert_eq!((shortfall.needed, shortfall.shortfall), (needed, needed - (100 << 20)));
}

/// Whoever asks: the rule is not that of one door.
#[rstest]
#[case("weights")]
#[case("activations")]
fn what_was_measured_is_not_stated_beside_it(#[case] line: &str) {
    let model = Model::new("m", 1).with("kv", 0, ResourceHandler::kv_paged(16, 128, DType::Bf16).unwrap());
    let budget = budget(&format!("max_seq_len = 64\n[memory]\nfraction = 0.9\nof = 'free'\n{line} = '1GiB'"));
    let measured = ForwardProfile { resident_bytes: 5 << 30, forward_bytes: 3 << 30, free_bytes: 38 << 30 };
    let error = model.request(&budget).with_profile(measured).plan().unwrap_err();
    assert_eq!(error.exit_code(), 2);
    assert!(error.to_string().starts_with(&format!("`memory.{line}` is stated beside a profiled forward")), "{error}");
}

#[test]
fn a_resize_divides_what_was_measured() {
    let model = Model::new("m", 1).with("kv", 0, ResourceHandler::kv_paged(16, 128, DType::Bf16).unwrap());
    let budget = budget("max_seq_len = 4096\ntokens_per_block = 32\n[memory]\nfraction = 0.9\nof = 'free'");
    let measured = ForwardProfile { resident_bytes: 5 << 30, forward_bytes: 3 << 30, free_bytes: 38 << 30 };
    let plan = model.request(&budget).with_profile(measured).plan().unwrap();
    // 38 GiB less 3 GiB, times 0.9, over 8,192 bytes per token: 4,128,768 tokens, of which block 0 is padding.
    assert_eq!(plan.model.layers, 1);
    assert_eq!(plan.totals.kv_bytes_per_token, 8_192);
    assert_eq!(plan.capacity.tokens, Some(4_128_768 / 32 * 32 - 32));
}

#[test]
fn free_and_total_are_different_bases() {
    let model = Model::new("m", 1).with("kv", 0, kv(8, 128));
    let device = DeviceInfo { name: "gpu".into(), total_bytes: 80 << 30, free_bytes: 60 << 30, kind: DeviceKind::Cuda };
    let bytes_of = |base: &str| {
        let text = format!(
            "tokens_per_block = 32\n[memory]\nfraction = 0.5\nof = '{base}'\nweights = '2GiB'\nactivations = '1GiB'"
        );
        let budget = budget(&text);
        let plan = model.request(&budget).with_devices(device.clone()).plan().unwrap();
        plan.totals.managed_bytes
    };
    let block = 32 * 4096;
    let context: ByteSize = "0.60GiB".parse().unwrap();
    let taken = (3 << 30) + context.0;
    assert_eq!(bytes_of("total") / block, ((40 << 30) - taken) / block);
    assert_eq!(bytes_of("free") / block, ((60 << 30) - taken) / 2 / block);
}

#[test]
fn a_fraction_without_a_device_is_an_error() {
    let model = Model::new("m", 1).with("kv", 0, kv(8, 128));
    let error = model.request(&budget("[memory]\nfraction = 0.5\nof = 'total'")).plan().unwrap_err();
    assert!(error.to_string().contains("no device"), "{error}");
}

#[rstest]
#[case("total")]
#[case("free")]
fn a_fraction_beside_weights_of_unknown_size_is_an_error(#[case] base: &str) {
    let model = Model::new("m", 1).with("kv", 0, kv(8, 128));
    let device = DeviceInfo { name: "gpu".into(), total_bytes: 80 << 30, free_bytes: 60 << 30, kind: DeviceKind::Cuda };
    let budget = budget(&format!("[memory]\nfraction = 0.5\nof = '{base}'"));
    let error = model.request(&budget).with_devices(device.clone()).plan().unwrap_err();
    assert!(error.to_string().contains("state `memory.weights` (--weights)"), "{error}");
}

/// The fixed-size cache of a traced decoder: per layer `[batch, heads, max_cache_len, head_dim]` for keys and values. By key
/// they lie together, by AutoDeploy's rule each is a tensor of its own.
#[rstest]
#[case("by-key", 1)]
#[case("first-reference", 4)]
fn static_caches_are_tensors_for_the_whole_batch(#[case] grouping: &str, #[case] tensors: usize) {
    let (layers, batch, heads, max_cache_len, head_dim) = (2, 4, 8, 512, 64);
    let entry = || ResourceHandler::static_cache(heads, head_dim, DType::Bf16).unwrap();
    let both = |model: Model, layer| model.with("past_k", layer, entry()).with("past_v", layer, entry());
    let model = (0..layers).fold(Model::new("static", layers), both);
    let budget = budget(&format!("max_seq_len = {max_cache_len}\nmax_batch_size = {batch}\ngrouping = '{grouping}'"));
    let plan = model.request(&budget).plan().unwrap();
    // One more row pads the batch.
    let per_row = 2 * heads * max_cache_len * head_dim * 2;
    assert_eq!(plan.totals.unmanaged_bytes, u64::from(layers) * (batch + 1) * per_row);
    assert_eq!((plan.pools.len(), plan.capacity.tokens), (tensors, None));
    assert!(plan.resources.iter().all(|resource| resource.owner == Owner::Local), "{:?}", plan.resources);
}

#[test]
fn histograms_whose_pairs_are_too_many_to_count_are_refused() {
    let model = nemotron_3_nano();
    let lengths: Vec<String> = (1..=3000).map(|tokens| format!("[{tokens}, 1]")).collect();
    let lengths = lengths.join(", ");
    let text = format!("[workload]\nprompt = {{ histogram = [{lengths}] }}\noutput = {{ histogram = [{lengths}] }}");
    let error = model.request(&budget(&text)).plan().unwrap_err().to_string();
    assert!(error.contains("3000 prompt lengths and 3000 output lengths"), "{error}");
}

/// A stated step is never widened: it caps the sequences, and says so.
#[test]
fn a_stated_step_caps_the_sequences() {
    let model = nemotron_3_nano();
    let planned = |text: &str| {
        let budget = budget(&format!("max_seq_len = 64\n[memory]\nbytes = '80GiB'\n{text}"));
        let budget = cacheplan_planner::Budget { max_num_tokens: Some(512), ..budget };
        let plan = model.request(&budget).plan().unwrap();
        assert_eq!(model.request(&budget).check(&plan), Ok(()));
        plan
    };
    let alone = planned("");
    assert_eq!((alone.limits.max_num_tokens, alone.capacity.sequences), (512, 512));
    assert_eq!(alone.capacity.capped_by, cacheplan_planner::plan::Cap::MaxNumTokens);
    let drafting = planned("[speculation]\ndraft_tokens = 3");
    assert_eq!((drafting.limits.max_num_tokens, drafting.capacity.sequences), (512, 128));
}

/// 36 layers of 8 heads of 128 in bf16 are 144 KiB a token, and 576 MiB for 4,096 of them; padding is a block of 16.
#[rstest]
#[case(
    10,
    Some(
        "max_batch_size 10 was asked for, and 7 fit: caches of 10 need 5.63 GiB, 4.00 GiB are there; short of 1.63 GiB"
    )
)]
#[case(7, None)]
fn what_is_missing_for_the_sequences_that_were_asked_for_is_said(#[case] asked: u64, #[case] expected: Option<&str>) {
    let told = budget(&format!("max_seq_len = 4096\nmax_batch_size = {asked}\nmemory.bytes = '4GiB'"));
    let mut model = super::oracles::zoo("Qwen__Qwen3-8B");
    let resources = model.graph.collect(&told.pass_context(&model.info)).unwrap().resources;
    let request = PlanRequest::of((model.info.clone(), resources.clone())).with_budget(told.clone());
    assert_eq!(request.missing(&request.plan().unwrap()).as_deref(), expected);
}

/// A cap is what one more sequence breaks: memory, wherever it does, even at a batch that was stated.
#[rstest]
#[case(7, cacheplan_planner::plan::Cap::Memory, true)]
#[case(6, cacheplan_planner::plan::Cap::MaxBatchSize, false)]
fn a_stated_batch_that_memory_ends_too_gets_the_rest(
    #[case] batch: u64,
    #[case] cap: cacheplan_planner::plan::Cap,
    #[case] fills: bool,
) {
    let model = Model::new("m", 1).with("kv", 0, super::common::kv(8, 128));
    // 64 KiB a block of 16 tokens: 60 blocks, of which 7 sequences of 128 tokens take 57 with the null block.
    let budget = budget(&format!("max_seq_len = 128\nmax_batch_size = {batch}\nmemory.bytes = '3840KiB'"));
    let plan = model.request(&budget).plan().unwrap();
    assert_eq!(model.request(&budget).check(&plan), Ok(()));
    assert_eq!((plan.capacity.sequences, plan.capacity.capped_by), (batch, cap));
    assert_eq!(plan.pools[0].units == 60, fills);
}

#[test]
fn our_own_limit_is_not_called_memory() {
    let model = Model::new("m", 1).with("kv", 0, super::common::kv(1, 16));
    let budget = budget("max_seq_len = 1\ntokens_per_block = 1\nmemory.bytes = '1GiB'");
    let plan = model.request(&budget).plan().unwrap();
    assert_eq!(model.request(&budget).check(&plan), Ok(()));
    assert_eq!(
        (plan.capacity.sequences, plan.capacity.capped_by),
        (1 << 20, cacheplan_planner::plan::Cap::SequenceLimit)
    );
}

#[rstest]
#[case("200GiB", "has 79.65 GiB")]
#[case("70GiB", "does not fit")]
fn stated_bytes_lie_on_the_device_beside_everything_else(#[case] bytes: &str, #[case] expected: &str) {
    let mut model = Model::new("m", 1).with("kv", 0, super::common::kv(8, 128));
    model.info.weights = Some(WeightBytes::new(79 << 30, true));
    let device: DeviceInfo = "h100".parse().unwrap();
    let budget = budget(&format!("memory.bytes = '{bytes}'"));
    let error = model.request(&budget).with_devices(device.clone()).plan().unwrap_err().to_string();
    assert!(error.contains(expected), "{error}");
}

/// Tokens beyond those of the sequences are whole blocks, which are there.
#[rstest]
#[case(16)]
#[case(64)]
fn spare_tokens_are_those_that_blocks_hold(#[case] tokens_per_block: u64) {
    let model = published("Qwen__Qwen3-8B");
    let text = format!("max_seq_len = 4096\ntokens_per_block = {tokens_per_block}\n[memory]\nbytes = '20GiB'\n");
    let request = PlanRequest::of(model).with_budget(budget(&text));
    let plan = request.plan().unwrap();
    assert_eq!(request.check(&plan), Ok(()));
    let held = (plan.pools[0].units - plan.pools[0].reserved) * tokens_per_block;
    assert_eq!(plan.capacity.spare_tokens, held - plan.capacity.sequences * 4096);
    assert!(plan.capacity.spare_tokens > 0);
}

/// A dtype that no cache takes is a mistake, as other keys are that nothing consumes.
#[rstest]
#[case("Qwen__Qwen3-8B", "[dtypes]\nssm = 'f32'", Some("`dtypes.ssm` (--ssm-dtype)"))]
#[case("Qwen__Qwen3-8B", "[dtypes]\nconv = 'bf16'", Some("`dtypes.conv` (--conv-dtype)"))]
#[case("Qwen__Qwen3-8B", "[dtypes]\nkv = 'bf16'", None)]
#[case("Qwen__Qwen3-8B", "[engine]\nmla_cache = 'nz'", Some("`engine.mla_cache` (--mla-cache)"))]
#[case("deepseek-ai__DeepSeek-R1", "[engine]\nmla_cache = 'nz'", None)]
#[case("deepseek-ai__DeepSeek-R1", "[dtypes]\nkv = 'fp8'", None)]
#[case("nvidia__NVIDIA-Nemotron-3-Nano-4B", "[dtypes]\nkv = 'fp8'\nssm = 'f32'\nconv = 'bf16'", None)]
#[case("RWKV__rwkv-4-169m-pile", "[dtypes]\nkv = 'fp8'", Some("`dtypes.kv` (--kv-dtype)"))]
#[case("LiquidAI__LFM2-1.2B", "[dtypes]\nssm = 'f32'", Some("`dtypes.ssm` (--ssm-dtype)"))]
fn a_dtype_that_no_cache_takes_is_refused(#[case] model: &str, #[case] text: &str, #[case] refused: Option<&str>) {
    let budget = budget(&format!("max_seq_len = 1000\nmax_batch_size = 2\n{text}\n"));
    let planned = PlanRequest::of(published(model)).with_budget(budget).plan();
    match refused {
        None => assert!(planned.is_ok(), "{planned:?}"),
        Some(key) => assert!(planned.unwrap_err().to_string().starts_with(&format!("{key} is stated, but"))),
    }
}

/// `auto` is the longest of which as many fit as are asked for, and the model's own length where that fits.
#[rstest]
#[case("bytes = '2GiB'", 1)]
#[case("bytes = '2GiB'", 3)]
#[case("bytes = '900GiB'", 1)]
fn the_longest_sequence_fits_and_one_token_more_does_not(#[case] memory: &str, #[case] sequences: u64) {
    let model = published("meta-llama__Llama-3.1-8B-Instruct");
    let made_for = model.info.max_position_embeddings.unwrap();
    let request =
        PlanRequest::of(model).with_budget(budget(&format!("max_batch_size = {sequences}\n[memory]\n{memory}")));
    let longest = request.longest_sequence().unwrap();
    let held = |length: u64| {
        let plan = request.changed(|budget| budget.max_seq_len = Some(length)).plan();
        plan.map_or(0, |plan| plan.capacity.sequences)
    };
    assert!(held(longest) >= sequences);
    assert!(longest == made_for || held(longest + 1) < sequences, "{longest}");
    assert_eq!(longest == made_for, memory.contains("900GiB"));
}

#[test]
fn the_longest_sequence_needs_memory_and_room_for_one() {
    let request =
        |text: &str| PlanRequest::of(published("meta-llama__Llama-3.1-8B-Instruct")).with_budget(budget(text));
    let unbounded = request("").longest_sequence().unwrap_err().to_string();
    assert!(unbounded.contains("--device-memory or [memory]"), "{unbounded}");
    let none = request("[memory]\nbytes = '1KiB'").longest_sequence().unwrap_err();
    assert!(matches!(&none, PlanError::DoesNotFit(short) if short.suggestions.is_empty()), "{none}");
    let many = request("max_batch_size = 100000\n[memory]\nbytes = '1GiB'").longest_sequence().unwrap_err();
    assert_eq!((many.exit_code(), many.to_string()), (3, "100000 sequences do not fit, however short they are".into()));
}

/// What a step admits no length helps: the key is named, and a step that would do.
#[rstest]
#[case("", 7)]
#[case("[speculation]\ndraft_tokens = 3\n", 28)]
fn the_longest_sequence_of_more_than_a_step_serves_names_the_step(#[case] more: &str, #[case] needed: u64) {
    let text = |step: u64| format!("max_batch_size = 7\nmax_num_tokens = {step}\n{more}[memory]\nbytes = '40GiB'");
    let request =
        |step: u64| PlanRequest::of(published("meta-llama__Llama-3.1-8B-Instruct")).with_budget(budget(&text(step)));
    let refused = request(needed / 7).longest_sequence().unwrap_err();
    assert_eq!(refused.exit_code(), 3);
    let said = refused.to_string();
    assert!(said.contains(&format!("`max_num_tokens` is {}, of which a step serves 1", needed / 7)), "{said}");
    assert!(said.ends_with(&format!("try max_num_tokens = {needed}")), "{said}");
    assert!(request(needed).longest_sequence().unwrap() > 1);
    assert!(request(needed - 1).longest_sequence().is_err());
    // Where memory does not hold so many either, a wider step is no help.
    let small =
        request(needed / 7).changed(|budget| budget.memory.as_mut().unwrap().bytes = Some("2MiB".parse().unwrap()));
    assert!(!small.longest_sequence().unwrap_err().to_string().contains("try"));
}

/// A model that states no maximum is served as long as its caches fit.
#[test]
fn the_longest_sequence_of_a_model_without_a_maximum_is_the_memorys() {
    let budget = budget("[memory]\nbytes = '60GiB'");
    let request = PlanRequest::of(published("MiniMaxAI__MiniMax-Text-01")).with_budget(budget);
    let longest = request.longest_sequence().unwrap();
    let fits = |length: u64| request.changed(|budget| budget.max_seq_len = Some(length)).plan().is_ok();
    assert!(longest > 1 << 20 && fits(longest) && !fits(longest + 1), "{longest}");
}

/// What is suggested beside an engine is what the engine holds too.
#[rstest]
#[case("Qwen__Qwen3-8B", "l4", "llama.cpp", "max_seq_len = 32768")]
#[case("openbmb__MiniCPM3-4B", "l4", "vllm", "max_seq_len = 32768")]
#[case("Zyphra__Zamba2-7B", "h100", "vllm", "memory.weights = '70GiB'")]
#[case("deepseek-ai__DeepSeek-V3.2", "mi300x", "llama.cpp", "")]
#[case("deepseek-ai__DeepSeek-V4-Flash", "h100", "tensorrt-llm", "")]
fn what_is_suggested_beside_an_engine_is_held_by_it(
    #[case] model: &str,
    #[case] device: &str,
    #[case] engine: EngineSpec,
    #[case] stated: &str,
) {
    let device: Devices = device.parse().unwrap();
    let asked = |more: &[Override]| {
        let config = Config::resolve_on(Some(device.device()), Some((stated, "budget.toml")), &[], more).unwrap();
        let ranks = config.budget.parallel.world_size() as u32;
        let request = PlanRequest::of(published(model)).with_config(config).with_devices(device.times(ranks));
        request.for_engine(engine)
    };
    let PlanError::DoesNotFit(short) = asked(&[]).plan().unwrap_err() else { panic!("{model} fits") };
    for suggestion in &short.suggestions {
        let keys = suggestion.change.split(", ").map(|key| key.split_once(" = ").unwrap());
        let changes: Vec<Override> = keys.map(|(key, value)| Override::by_flag(key, value, key)).collect();
        let request = asked(&changes);
        let sequences = request.predict(engine).unwrap_or_else(|error| panic!("{suggestion}: {error}")).sequences;
        let replicas = u64::from(request.config().budget.parallel.dp);
        assert_eq!((sequences * replicas, request.plan().is_ok()), (suggestion.sequences, true), "{suggestion}");
    }
}

#[rstest]
#[case(&[("parallel.tp", "1")], Err("2 devices are named, but [parallel] has 1 rank"))]
#[case(&[("parallel.ep", "2")], Ok(2))]
#[case(&[("parallel.dcp", "2")], Ok(2))]
#[case(&[("parallel.pp", "2")], Ok(1))]
#[case(&[], Ok(2))]
fn devices_are_tensor_parallel_ranks_where_nobody_says_how_many_there_are(
    #[case] stated: &[(&str, &str)],
    #[case] expected: Result<u32, &str>,
) {
    let flags: Vec<Override> = stated.iter().map(|(key, value)| Override::by_argument(*key, *value, *key)).collect();
    let config = Config::resolve(None, &[], &flags).unwrap();
    let model = published("Qwen__Qwen3-30B-A3B");
    let request = PlanRequest::of(model).with_config(config).with_devices("2xh100".parse::<Devices>().unwrap());
    let tp = request.budget().map(|budget| budget.parallel.tp).map_err(|error| error.to_string());
    assert_eq!(tp, expected.map_err(str::to_owned));
}

#[test]
fn lengths_in_one_number_are_read_wherever_a_key_is_stated() {
    let prompt = Override::by_flag("workload.prompt", "300", "--prompt");
    let config = Config::resolve(None, &[prompt], &[]).unwrap();
    assert_eq!(config.budget.workload.unwrap().prompt, Lengths::Fixed(300));
}
