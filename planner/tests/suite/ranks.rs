//! Several ranks: what each holds, what all agree on.

use cacheplan_handlers::{DType, ResourceHandler};
use cacheplan_planner::{PlanRequest, check, plan, plan_ranks};

use crate::common::{Model, budget, kv, nemotron_3_nano};

#[test]
fn tensor_parallel_ranks_hold_a_share_of_heads_and_channels() {
    let model = nemotron_3_nano();
    let budget = budget("max_batch_size = 2\n[parallel]\ntp = 4");
    let request = model.request(&budget);
    let plan = plan(&request).unwrap();
    assert_eq!(check(&request, &plan), Ok(()));
    // 2 KV heads over 4 ranks: one each, twice. 64 state heads and 6,144 channels in sections divide.
    assert_eq!(plan.totals.kv_bytes_per_token, 6_144 / 2);
    assert_eq!(plan.totals.state_bytes_per_sequence, (48_234_496 + 847_872) / 4);
}

#[test]
fn a_size_that_does_not_divide_the_model_is_an_error_that_names_it() {
    let model = nemotron_3_nano();
    let error = plan(&model.request(&budget("[parallel]\ntp = 3"))).unwrap_err().to_string();
    assert!(error.contains("tp 3 does not divide"), "{error}");
    let error = plan(&model.request(&budget("[parallel]\npp = 100"))).unwrap_err().to_string();
    assert!(error.contains("more than the 52 layers"), "{error}");
}

#[test]
fn context_parallel_ranks_hold_a_share_of_the_tokens() {
    let model = Model::new("m", 1).with("kv", 0, kv(8, 128));
    let at = |cp: u32| {
        let budget = budget(&format!("max_seq_len = 4096\nmax_batch_size = 1\n[parallel]\ncp = {cp}"));
        plan(&model.request(&budget)).unwrap().pools[0].units - 1
    };
    assert_eq!((at(1), at(4)), (256, 64));
}

/// Three of the four layers of the first stage are attention, one of the second.
fn lopsided() -> Model {
    let state = || ResourceHandler::ssm(64, 64, 128, DType::F32).unwrap();
    let mut model = Model::new("m", 8);
    for layer in 0..8 {
        model = if matches!(layer, 0 | 1 | 2 | 4) {
            model.with("kv", layer, kv(8, 128))
        } else {
            model.with("ssm", layer, state())
        };
    }
    model
}

#[test]
fn stages_agree_on_what_the_poorest_can_serve() {
    let model = lopsided();
    let budget = budget("max_seq_len = 4096\n[parallel]\npp = 2\n[memory]\nbytes = '1GiB'");
    let request = model.request(&budget);
    let alone: Vec<u64> =
        (0..2).map(|stage| plan(&PlanRequest { stage, ..request }).unwrap().capacity.sequences).collect();
    let ranks = plan_ranks(&request).unwrap();
    assert_ne!(alone[0], alone[1]);
    assert_eq!(ranks.agreement.sequences, *alone.iter().min().unwrap());
    for (stage, plan) in (0..).zip(&ranks.stages) {
        assert_eq!(plan.capacity.sequences, ranks.agreement.sequences);
        assert_eq!(plan.capacity.spare_tokens, ranks.agreement.spare_tokens);
        let agreed = PlanRequest { stage, agreement: Some(ranks.agreement), ..request };
        assert_eq!(check(&agreed, plan), Ok(()));
    }
    let layers: Vec<u32> = ranks.stages[1].resources.iter().filter_map(|resource| resource.layer).collect();
    assert_eq!(layers, [4, 5, 6, 7]);
    assert_eq!(ranks.hash, plan_ranks(&request).unwrap().hash);
}

/// The minimum over ranks of 1,000, 900 and 1,100 tokens, then whole blocks.
#[test]
fn ranks_take_the_least_tokens_and_floor_them_to_blocks() {
    let model = Model::new("m", 3).with("kv", 0, kv(10, 128)).with("kv", 1, kv(9, 128)).with("kv", 2, kv(11, 128));
    // One layer per stage and 1,000 * 10 heads' worth of bytes: 1,000, 1,111 and 909 tokens less the null block.
    let budget = budget("max_seq_len = 16\n[parallel]\npp = 3\n[memory]\nbytes = 5120000");
    let ranks = plan_ranks(&model.request(&budget)).unwrap();
    let tokens: Vec<_> = ranks.stages.iter().map(|plan| plan.capacity.tokens).collect();
    assert_eq!(tokens, [Some(909 / 16 * 16 - 16); 3]);
}
