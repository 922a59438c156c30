//! What simulators and other planners are told.

use super::*;

/// Simulators and other planners count blocks, tokens and bytes: the plan's own, of the pool that runs out first.
#[test]
fn simulators_and_planners_get_blocks_tokens_and_bytes() {
    for plan in [hybrid(), windowed()] {
        let full = plan.pools.iter().find(|pool| pool.tokens_per_block.is_some() && pool.window.is_none()).unwrap();
        let (blocks, size) = (full.units - full.reserved, full.tokens_per_block.unwrap());
        let of = |name: &str| arguments(target(name), &newest(&plan, target(name)));
        let simulator = of("llm-d-sim");
        assert_eq!(simulator["kv-cache-size"], blocks);
        assert_eq!(simulator["block-size"], size);
        assert_eq!(simulator["max-num-seqs"], plan.limits.max_batch_size);
        assert_eq!(simulator["model"], "org/Hybrid-30B");
        let vidur = of("vidur");
        assert_eq!(vidur["vllm_scheduler_config_num_blocks"], blocks);
        assert_eq!(vidur["vllm_scheduler_config_block_size"], size);
        assert_eq!(vidur["vllm_scheduler_config_max_tokens_in_batch"], plan.limits.max_num_tokens);
        let planner = of("aiconfigurator");
        assert_eq!(planner["num_gpu_blocks"], blocks);
        assert_eq!(planner["total_kv_size_tokens"], blocks * size);
        assert_eq!(planner["kv_size_per_token_bytes"], plan.totals.kv_bytes_per_token);
        assert_eq!(planner["total_kv_size_bytes"], cache_bytes(&plan));
        let per_sequence = format!("{} bytes of states for each sequence", plan.totals.state_bytes_per_sequence);
        let states = plan.totals.state_bytes_per_sequence > 0;
        for name in ["llm-d-sim", "vidur", "aiconfigurator"] {
            let said = newest(&plan, target(name)).not_expressed.iter().any(|gap| gap.starts_with(&per_sequence));
            assert_eq!(said, states, "{name}");
        }
    }
}

#[rstest]
#[case::no_pages("llm-d-sim", "", "counts blocks of one size, and the plan has none")]
#[case::no_pages("vidur", "", "counts blocks of one size, and the plan has none")]
#[case::odd_blocks("llm-d-sim", "kv", "its blocks have 8, 16, 32, 64 or 128 tokens, the plan's 256")]
fn a_simulator_that_cannot_count_a_plans_caches_is_not_told(
    #[case] target: Target,
    #[case] with: &str,
    #[case] expected: &str,
) {
    let mut model = Model::new("m", 1).with("ssm", 0, ResourceHandler::ssm(8, 64, 128, DType::F32).unwrap());
    if with == "kv" {
        model = model.with("kv", 0, ResourceHandler::kv_paged(8, 64, DType::Bf16).unwrap());
    }
    let plan = model.request(&budget("tokens_per_block = 256\nmax_seq_len = 4096\n[memory]\nbytes = '1GiB'")).plan();
    let error = plan.unwrap().export(target, None, &serving()).unwrap_err().to_string();
    assert!(error.contains(expected), "{error}");
}
