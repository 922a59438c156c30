//! Where states wait: in the host tier and as checkpoints in 8 bits.

use cacheplan_handlers::{DType, ResourceHandler};
use cacheplan_planner::{CachePlan, Parallel, StoredStates};
use rstest::rstest;

use super::common::{Model, budget, kv, nemotron_3_nano, nemotron_3_nano_with};

const CHECKPOINTS: &str = "max_seq_len = 4096\nmax_batch_size = 3\n[workload]\nprompt = { fixed = 4096 }\n\
                           checkpoints_per_sequence = 2\n";

#[test]
fn a_host_holds_whole_sequences_pool_by_pool() {
    let model = nemotron_3_nano();
    let budget = budget("max_seq_len = 4096\nmax_batch_size = 2\n[host]\nbytes = '1GiB'");
    let plan = model.request(&budget).plan().unwrap();
    let host = plan.host.as_ref().unwrap();
    // 256 blocks of 6 layers x 1,024 bytes x 16 tokens, and 23 layers of a 2 MiB state and of 6,144 x 3 channels.
    let [blocks, states, convs] = [256 * 6 * 1024 * 16, 23 * (2 << 20), 23 * 6144 * 3 * 2];
    let sequences = (1 << 30) / (blocks + states + convs);
    assert_eq!(host.sequences, sequences);
    let of = |pool: &str| host.pools.iter().find(|other| other.pool == pool).map(|pool| (pool.units, pool.bytes));
    assert_eq!(of("kv_paged.0"), Some((sequences * 256, sequences * blocks)));
    assert_eq!(of("ssm.0"), Some((sequences, sequences * states)));
    assert_eq!(of("causal_conv.0"), Some((sequences, sequences * convs)));
    assert_eq!(host.unused_bytes, (1 << 30) - sequences * (blocks + states + convs));
    let text = model.request(&budget).explain(&plan, "host").unwrap().to_string();
    assert!(text.contains(&format!("the host tier holds {sequences} sequences in 1073741824 bytes")), "{text}");
    assert!(plan.table().contains(&format!("\nHOST TIER\n{sequences} sequences in 1.00 GiB\n")));
}

/// 23 states of 64 heads of 64 x 128, and as many convolutions of 6,144 channels.
#[test]
fn a_state_that_waits_takes_the_bytes_of_how_it_is_stored() {
    let conv = 23 * 6144 * 3 * 2;
    let state = 64 * 64 * 128;
    let int8 = 23 * (state + 4 * 64 * 128) + conv;
    let stored = |model: Model, text: &str| {
        let plan = model.request(&budget(text)).plan().unwrap();
        StoredStates::ALL.map(|stored| plan.stored_state_bytes(stored))
    };
    let wide = stored(nemotron_3_nano(), "max_seq_len = 4096");
    assert_eq!(wide, [Some(23 * state * 4 + conv), Some(23 * state * 2 + conv), Some(int8)]);
    let narrow = stored(nemotron_3_nano_with(DType::Bf16, DType::Bf16), "max_seq_len = 4096");
    assert_eq!(narrow, [Some(23 * state * 2 + conv), None, Some(int8)]);
    // Checkpoints that lie in 8 bits already are no smaller in any way.
    let apart = stored(nemotron_3_nano(), &format!("{CHECKPOINTS}checkpoint_dtype = 'int8'"));
    assert_eq!(apart, [Some(int8), None, None]);
    let keys = stored(Model::new("llama", 1).with("kv", 0, kv(8, 128)), "max_seq_len = 4096");
    assert_eq!(keys, [Some(0), None, None]);
}

#[test]
fn a_host_without_room_for_a_sequence_is_an_error() {
    let model = nemotron_3_nano();
    let error = model.request(&budget("max_seq_len = 4096\n[host]\nbytes = '8MiB'")).plan().unwrap_err().to_string();
    assert!(error.contains("`host.bytes` 8.00 MiB holds no sequence of 4096 tokens, which takes 70.81 MiB"), "{error}");
}

#[test]
fn checkpoints_in_8_bits_take_a_quarter_of_the_bytes() {
    let model = nemotron_3_nano();
    let own = model.request(&budget(CHECKPOINTS)).plan().unwrap();
    assert_eq!((own.checkpoints(), own.slots.checkpoints, own.pool("ssm.0").unwrap().units), (6, 6, 10));

    let text = format!("{CHECKPOINTS}checkpoint_dtype = 'int8'");
    let budget = budget(&text);
    let request = model.request(&budget);
    let int8 = request.plan().unwrap();
    assert_eq!(request.check(&int8), Ok(()));
    assert_eq!((int8.checkpoints(), int8.slots.checkpoints, int8.slots.total()), (6, 0, 4));
    let stored = int8.pool("checkpoint.ssm.0").unwrap();
    assert_eq!((stored.dtype, stored.units, stored.reserved), (DType::Int8, 6, 0));
    assert_eq!(stored.checkpoints_of.as_deref(), Some("ssm.0"));
    // [64, 64, 128] of one byte and a scale for each of 64 x 128 channels.
    assert_eq!((stored.members[1].offset, stored.members[1].bytes), (557_056, 64 * 64 * 128 + 4 * 64 * 128));
    let conv = int8.pool("checkpoint.causal_conv.0").unwrap();
    assert_eq!((conv.dtype, conv.unit_bytes), (DType::Bf16, int8.pool("causal_conv.0").unwrap().unit_bytes));
    let bytes = |plan: &CachePlan| plan.pools.iter().map(|pool| pool.bytes).sum::<u64>();
    assert_eq!(int8.totals.managed_bytes, bytes(&int8));
    let saved = 6 * 23 * (64 * 64 * 128 * 4 - 557_056);
    assert_eq!(bytes(&own) - bytes(&int8), saved);
    let text = request.explain(&int8, "checkpoint.ssm.0").unwrap().to_string();
    assert!(text.contains("6 checkpoints") && text.contains("in int8: 64 x 64 x 128 bytes"), "{text}");
}

#[rstest]
#[case(ResourceHandler::ssm(5120, 1, 16, DType::F32))]
#[case(ResourceHandler::ssm(8, 64, 16, DType::F8E4m3))]
#[case(ResourceHandler::causal_conv(64, 4, vec![], DType::Bf16))]
fn states_that_int8_makes_no_smaller_are_an_error(
    #[case] state: Result<ResourceHandler, cacheplan_handlers::HandlerError>,
) {
    let model = Model::new("m", 1).with("state", 0, state.unwrap());
    let text = format!("{CHECKPOINTS}checkpoint_dtype = 'int8'");
    let error = model.request(&budget(&text)).plan().unwrap_err().to_string();
    assert!(error.contains("no state of the model is smaller in it"), "{error}");
}

#[rstest]
#[case("checkpoint_interval = 64", "is stated, but `workload.checkpoints_per_sequence` is 0")]
#[case("checkpoint_strategy = 'no-buffer'", "is stated, but `workload.checkpoints_per_sequence` is 0")]
#[case("checkpoint_dtype = 'int8'", "is stated, but `workload.checkpoints_per_sequence` is 0")]
#[case("checkpoints_per_sequence = 1\ncheckpoint_dtype = 'fp8'", "unknown variant `fp8`, expected `int8`")]
fn another_dtype_or_no_checkpoints_are_errors(#[case] keys: &str, #[case] expected: &str) {
    let error = cacheplan_planner::Budget::from_toml(&format!("[workload]\n{keys}"), "b.toml").unwrap_err().to_string();
    assert!(error.contains(expected), "{error}");
}

#[test]
fn a_plan_without_tiers_reads_and_writes_as_before() {
    let model = Model::new("m", 1).with("kv", 0, kv(2, 64));
    let json = serde_json::to_value(model.request(&budget("max_batch_size = 1")).plan().unwrap()).unwrap();
    assert!(json.get("host").is_none() && json.pointer("/pools/0/checkpoints_of").is_none());
    assert!(serde_json::from_value::<CachePlan>(json).is_ok());
}

#[test]
fn stages_park_as_many_sequences_as_the_poorest_and_need_not_all_have_states() {
    let model = Model::new("m", 2).with("ssm", 0, ResourceHandler::ssm(8, 64, 128, DType::F32).unwrap()).with(
        "kv",
        1,
        kv(8, 128),
    );
    let mut budget = budget(&format!("{CHECKPOINTS}checkpoint_dtype = 'int8'\n[host]\nbytes = '64MiB'"));
    budget.parallel = Parallel { pp: 2, ..Parallel::default() };
    let ranks = model.request(&budget).ranks().unwrap();
    // The second stage parks 16 MiB of pages for each sequence.
    assert_eq!(ranks.agreement.host_sequences, Some(4));
    assert!(ranks.stages.iter().all(|stage| stage.host.as_ref().unwrap().sequences == 4));
}
