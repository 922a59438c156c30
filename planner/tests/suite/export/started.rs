//! What engines start with of a plan.

use super::*;

/// Of one layer with pages of so many tokens, in steps of so many.
fn paged(tokens_per_block: u64, max_num_tokens: u64) -> CachePlan {
    let text = format!(
        "max_seq_len = 4096\ntokens_per_block = {tokens_per_block}\nmax_num_tokens = {max_num_tokens}\n\
         max_batch_size = 1\n[memory]\nbytes = '4GiB'"
    );
    Model::new("llama", 2).with("a", 0, kv(8, 128)).with("b", 1, kv(8, 128)).request(&budget(&text)).plan().unwrap()
}

/// Kernels of vLLM read blocks of 16 tokens and their multiples, TensorRT-LLM's those of a power of 2, and a step of SGLang ends with a page.
#[rstest]
#[case("vllm", 24, 2048, "block-size", 32)]
#[case("vllm", 1, 2048, "block-size", 16)]
#[case("vllm", 32, 2048, "block-size", 32)]
#[case("tensorrt-llm", 100, 2048, "kv_cache_config.tokens_per_block", 128)]
#[case("tensorrt-llm", 32, 2048, "kv_cache_config.tokens_per_block", 32)]
#[case("sglang", 24, 2048, "chunked-prefill-size", 2040)]
#[case("sglang", 64, 100, "chunked-prefill-size", 64)]
#[case("sglang", 16, 1, "chunked-prefill-size", 16)]
#[case("sglang", 16, 2048, "chunked-prefill-size", 2048)]
fn pages_and_steps_are_those_that_the_engine_starts_with(
    #[case] name: &str,
    #[case] tokens_per_block: u64,
    #[case] max_num_tokens: u64,
    #[case] key: &str,
    #[case] expected: u64,
) {
    let export = newest(&paged(tokens_per_block, max_num_tokens), target(name));
    let setting = export.settings.iter().find(|setting| setting.key == key).unwrap();
    assert_eq!(setting.value, expected, "{}", export.text);
}

#[rstest]
#[case("vllm", "--nnodes")]
#[case("sglang", "--dist-init-addr")]
fn ranks_of_several_nodes_are_said_to_be_such(#[case] name: &str, #[case] flag: &str) {
    for (tp, said) in [(8, false), (16, true)] {
        let serving = Serving { parallel: Some(Parallel { tp, ..Parallel::default() }), ..serving() };
        let export = paged(16, 2048).export(target(name), None, &serving).unwrap();
        assert_eq!(export.not_expressed.iter().any(|gap| gap.contains(flag)), said, "{:?}", export.not_expressed);
    }
}

#[test]
fn sglang_is_said_to_read_nvfp4_on_blackwell_alone() {
    let kv = || ResourceHandler::kv_paged(8, 128, DType::Nvfp4).unwrap();
    let plan = Model::new("llama", 1).with("a", 0, kv()).request(&budget("[memory]\nbytes = '4GiB'")).plan().unwrap();
    let export = newest(&plan, target("sglang"));
    assert!(export.not_expressed.iter().any(|gap| gap.contains("on Blackwell alone")), "{:?}", export.not_expressed);
}

/// Ranks that divide a sequence's tokens make each hold a part of them.
#[test]
fn what_vllm_admits_counts_the_ranks_that_divide_a_sequence() {
    let model = Model::new("deepseek_v3", 1).with("a", 0, ResourceHandler::mla_paged(512, 64, DType::Bf16).unwrap());
    let budget =
        budget("max_seq_len = 65536\ntokens_per_block = 64\n[memory]\nbytes = '4GiB'\n[parallel]\ntp = 8\ndcp = 8");
    let plan = model.request(&budget).plan().unwrap();
    let export = newest(&plan, target("vllm"));
    assert!(
        export.admits.unwrap() * 10 > plan.capacity.sequences * 9,
        "{:?} {}",
        export.admits,
        plan.capacity.sequences
    );
}

/// SGLang has no host tier without its radix cache, which a plan without checkpoints turns off.
#[test]
fn sglang_gets_a_host_tier_beside_its_radix_cache_alone() {
    let serving = Serving { host_bytes: Some(HOST_BYTES), ..serving() };
    let plan = nemotron_3_nano().request(&budget("max_seq_len = 8192\n[memory]\nbytes = '24GiB'")).plan().unwrap();
    for (plan, has) in [(plan, false), (hybrid(), true)] {
        let export = plan.export(target("sglang"), None, &serving).unwrap();
        assert_eq!(export.text.contains("--enable-hierarchical-cache"), has, "{}", export.text);
        assert_eq!(export.text.contains("--disable-radix-cache"), !has, "{}", export.text);
        assert_eq!(export.not_expressed.iter().any(|gap| gap.contains("none without its radix cache")), !has);
    }
}

/// Its counts are of all replicas of the attention, and the plan's of one.
#[test]
fn sglang_is_said_to_divide_its_counts_among_replicas_of_the_attention() {
    for (ep, said) in [(4, true), (1, false)] {
        let serving = Serving { parallel: Some(Parallel { dp: 4, ep, ..Parallel::default() }), ..serving() };
        let export = hybrid().export(target("sglang"), None, &serving).unwrap();
        let gap = export.not_expressed.iter().find(|gap| gap.contains("SGLang divides them by 4"));
        assert_eq!(gap.is_some_and(|gap| gap.contains("--max-mamba-cache-size")), said, "{:?}", export.not_expressed);
    }
}

/// It counts the layers of all stages, and a plan has those of one.
#[test]
fn tensorrt_llm_is_told_no_windows_of_one_stage_alone() {
    let serving = Serving { parallel: Some(Parallel { pp: 2, ..Parallel::default() }), ..serving() };
    let export = windowed().export(target("tensorrt-llm"), None, &serving).unwrap();
    assert!(export.settings.iter().all(|setting| setting.key != "kv_cache_config.max_attention_window"));
    assert!(export.not_expressed.iter().any(|gap| gap.contains("max_attention_window")), "{:?}", export.not_expressed);
}

#[rstest]
#[case("rwkv", "has no architecture for rwkv")]
#[case("zamba2", "does not divide zamba2 into pipeline stages")]
fn what_vllm_has_not_is_refused_in_stages_too(#[case] model: &str, #[case] expected: &str) {
    let model = Model::new(model, 2).with("a", 0, kv(8, 128)).with("b", 1, kv(8, 128));
    let text = "max_seq_len = 4096\n[memory]\nbytes = '4GiB'\n[parallel]\npp = 2";
    let plan = model.request(&budget(text)).plan().unwrap();
    let error = plan.export(target("vllm"), None, &serving()).unwrap_err().to_string();
    assert!(error.contains(expected), "{error}");
}

/// A model without experts starts with none to divide.
#[rstest]
#[case("Qwen__Qwen3-8B", false)]
#[case("Qwen__Qwen3-Next-80B-A3B-Thinking", true)]
fn vllm_divides_experts_where_there_are_some(#[case] model: &str, #[case] has: bool) {
    let text = "max_seq_len = 4096\n[memory]\nbytes = '20GiB'\n[parallel]\ndp = 4\nep = 4";
    let plan = PlanRequest::of(published(model)).with_budget(budget(text)).plan().unwrap();
    let export = newest(&plan, target("vllm"));
    assert_eq!(export.text.contains("enable-expert-parallel"), has, "{}", export.text);
    assert!(export.not_expressed.iter().all(|gap| !gap.starts_with("parallel.ep")), "{:?}", export.not_expressed);
}

/// A request takes five slots beside the radix cache, the two that states are copied to among them.
#[rstest]
fn sglang_is_told_slots_with_which_it_starts(#[values(1, 2, 5)] batch: u64, #[values(1, 2, 3, 4, 9)] checkpoints: u64) {
    let text = format!(
        "max_seq_len = 8192\nmax_batch_size = {batch}\n[memory]\nbytes = '24GiB'\n[workload]\ncheckpoints_per_sequence = {checkpoints}"
    );
    let plan = nemotron_3_nano().request(&budget(&text)).plan().unwrap();
    let slots = plan.slots.live + plan.slots.checkpoints;
    match plan.export(target("sglang"), None, &serving()) {
        Ok(export) => {
            let told = export.settings.iter().find(|setting| setting.key == "max-running-requests").unwrap();
            let running = (slots / 5).min(batch);
            assert_eq!((&told.value, export.admits), (&running.into(), Some(running)), "{slots} slots");
            assert!(running > 0);
        }
        Err(error) => {
            let said = format!("a request takes 5 slots for states beside the radix cache, and it has {slots};");
            assert!(slots < 5 && error.to_string().contains(&said), "{slots} slots: {error}");
        }
    }
}

/// States that are moved on again have shapes that no engine's rules know.
#[test]
fn where_nothing_says_what_is_admitted_the_file_says_why() {
    let of = |scheme: &str| {
        let text = format!(
            "max_seq_len = 8192\n[memory]\nbytes = '24GiB'\n[speculation]\ndraft_tokens = 3\nscheme = '{scheme}'"
        );
        nemotron_3_nano().request(&budget(&text)).plan().unwrap()
    };
    for (plan, says) in [(of("replay"), true), (of("snapshots"), false)] {
        for name in ["vllm", "sglang", "tensorrt-llm"] {
            let export = newest(&plan, target(name));
            let why = export.not_expressed.iter().find(|gap| gap.contains("by its scheme `replay`"));
            assert_eq!((export.admits.is_none(), why.is_some()), (says, says), "{name}: {:?}", export.not_expressed);
            assert!(why.is_none_or(|why| export.text.contains(why)), "{}", export.text);
        }
    }
}
