//! What vLLM refuses.

use cacheplan_planner::logs::Logged;
use cacheplan_serve::{Options, answer};
use rstest::rstest;

use super::common::{changed, launch, models, on};
use super::{DEEPSEEK, GEMMA, KIMI, LLAMA, NEMOTRON, NEXT, OSS, said};

/// Of the newest version, flags behind the model that it starts without.
#[rstest]
#[case::whole_images_beside_states(
    "Qwen__Qwen3.5-27B",
    "-tp 8 --disable-chunked-mm-input",
    "Chunked MM input is required"
)]
#[case::headless_balance(
    "Qwen__Qwen3-30B-A3B",
    "-dp 2 --headless --data-parallel-hybrid-lb --data-parallel-size-local 1",
    "not applicable in headless mode"
)]
#[case::headless_alone(
    "Qwen__Qwen3-30B-A3B",
    "-dp 2 --headless --data-parallel-size-local 0",
    "must be > 0 in headless mode"
)]
#[case::nodes_by_ray(LLAMA, "-tp 8 --nnodes 2 --distributed-executor-backend ray", "nnodes > 1 can only be set when")]
#[case::ports(
    "Qwen__Qwen3-30B-A3B",
    "-dp 4 --data-parallel-multi-port-external-lb",
    "requires --data-parallel-size-local >= 2"
)]
#[case::profiled(LLAMA, "--profiler-config {\"profiler\":\"torch\"}", "torch_profiler_dir must be set")]
#[case::processors(
    LLAMA,
    "--logits-processors x:Y --speculative-config {\"method\":\"ngram\",\"num_speculative_tokens\":2}",
    "Custom logits processors are not supported"
)]
#[case::one_process(LLAMA, "-tp 2 --distributed-executor-backend uni", "waits for others that nobody starts")]
#[case::level(LLAMA, "-O4", "Input should be 0, 1, 2 or 3 (it is '4')")]
#[case::part_of_a_level(LLAMA, "-O.cudagraph_mode=NONE", "Input should be 0, 1, 2 or 3")]
#[case::number_of_compilation(LLAMA, "--compilation-config 3", "instance of CompilationConfig")]
#[case::key_of_compilation(LLAMA, "--compilation-config {\"bogus\":1}", "bogus: Unexpected keyword argument")]
#[case::sizes_of_graphs(
    LLAMA,
    "--cudagraph-capture-sizes 1 2 4 --max-cudagraph-capture-size 8",
    "(=8) should be consistent with the max value of cudagraph_capture_sizes(=4)"
)]
#[case::lookups(
    LLAMA,
    "--speculative-config {\"method\":\"ngram\",\"num_speculative_tokens\":4,\"prompt_lookup_max\":2,\"prompt_lookup_min\":5}",
    "prompt_lookup_min=5 must be <= prompt_lookup_max=2"
)]
#[case::no_predicting_layer(
    LLAMA,
    "--speculative-config {\"method\":\"mtp\",\"num_speculative_tokens\":1}",
    "Unsupported speculative method: 'mtp'"
)]
#[case::threshold(LLAMA, "--long-prefill-token-threshold 200000", "greater than the max_model_len (131072)")]
#[case::no_experts(LLAMA, "-ep", "Number of experts in the model must be greater than 0")]
#[case::rank_of_a_node(LLAMA, "--nnodes 2 --node-rank 2 -tp 8", "`--node-rank` must be between 0 and 1")]
#[case::nodes(LLAMA, "--nnodes 3 -tp 8", "must evenly divide the total world size (8)")]
#[case::nodes_of_ray(LLAMA, "--data-parallel-backend ray -dp 2 --nnodes 2", "requires `--data-parallel-backend mp`")]
#[case::hybrid_balance(LLAMA, "-dp 2 --data-parallel-hybrid-lb", "requires `--data-parallel-size-local`")]
#[case::external_balance(LLAMA, "-dp 4 -dpn 2", "Non-MoE models do not support external data parallel mode")]
#[case::headless(LLAMA, "--headless --api-server-count 2", "--api-server-count=2 cannot be used with --headless")]
#[case::unknown_kernels(LLAMA, "--attention-backend XFORMERS", "Unknown attention backend: 'XFORMERS'")]
#[case::removed_kernels(LLAMA, "--attention-backend TREE_ATTN", "Unknown attention backend: 'TREE_ATTN'")]
#[case::kernels_of_latents(LLAMA, "--attention-backend FLASHMLA", "'non-MLA not supported']")]
#[case::configured_kernels(LLAMA, "--attention-config {\"backend\":\"FLASHMLA\"}", "'non-MLA not supported']")]
#[case::kernels_of_keys(DEEPSEEK, "-tp 8 --attention-backend FLASH_ATTN", "'MLA not supported']")]
#[case::kernels_of_another_gpu(
    DEEPSEEK,
    "-tp 8 --attention-backend CUTLASS_MLA",
    "['compute capability not supported']"
)]
#[case::dtype_of_kernels(
    LLAMA,
    "--kv-cache-dtype fp8_e5m2 --attention-backend FLASH_ATTN",
    "['kv_cache_dtype not supported']"
)]
#[case::packed_dtype_of_kernels(
    LLAMA,
    "--kv-cache-dtype int8_per_token_head --attention-backend FLASH_ATTN",
    "['kv_cache_dtype not supported']"
)]
#[case::rounding(NEMOTRON, "--enable-mamba-cache-stochastic-rounding", "requires the SSM cache to be float16")]
#[case::kernels_of_states(NEMOTRON, "--mamba-backend bogus", "Unknown Mamba SSU backend: 'BOGUS'")]
#[case::dtype_of_states(
    KIMI,
    "-tp 2 --mamba-ssm-cache-dtype float16",
    "supports only auto, float32, and bfloat16; got float16"
)]
#[case::interleaved_tokens(
    DEEPSEEK,
    "-tp 8 -dcp 2 --cp-kv-cache-interleave-size 48",
    "cp_kv_cache_interleave_size (48)"
)]
#[case::fewer_interleaved_tokens(
    DEEPSEEK,
    "-tp 8 -dcp 2 --dcp-kv-cache-interleave-size 3",
    "cp_kv_cache_interleave_size (3)"
)]
#[case::interleaved_blocks(
    DEEPSEEK,
    "-tp 8 -dcp 2 --cp-kv-cache-interleave-size 64 --block-size 32",
    "Block_size(32) should be greater than or equal to"
)]
#[case::tools(LLAMA, "--enable-auto-tool-choice", "--enable-auto-tool-choice requires --tool-call-parser")]
#[case::outputs(LLAMA, "--enable-log-outputs", "--enable-log-outputs requires --enable-log-requests")]
#[case::unknown_tools(LLAMA, "--enable-auto-tool-choice --tool-call-parser bogus", "invalid tool call parser: bogus")]
#[case::unknown_reasoning(LLAMA, "--reasoning-parser bogus", "invalid reasoning parser: bogus")]
#[case::format_of_files(LLAMA, "--load-format bogus", "Load format `bogus` is not supported")]
#[case::quantization(LLAMA, "-q bogus", "Unknown quantization method: bogus")]
#[case::interval(LLAMA, "--stream-interval 0", "stream_interval: Input should be greater than or equal to 1")]
#[case::probabilities(LLAMA, "--max-logprobs -2", "max_logprobs: Input should be greater than or equal to -1")]
#[case::sample(
    LLAMA,
    "--kv-cache-metrics-sample 2",
    "kv_cache_metrics_sample: Input should be less than or equal to 1 (it is 2)"
)]
#[case::free_blocks(LLAMA, "--watermark 1.5", "watermark: Input should be less than 1.0 (it is 1.5)")]
#[case::devices(LLAMA, "--device-ids 0,0", "--device-ids must not contain duplicates")]
#[case::executor(LLAMA, "--distributed-executor-backend bogus", "bogus is no class by its module")]
#[case::small_batches(LLAMA, "--enable-dbo", "allgather_reducescatter is not supported")]
#[case::running(LLAMA, "--max-num-seqs 8 --max-num-active-seqs 9", "(9) cannot be greater than max_num_seqs (8)")]
#[case::none_running(
    LLAMA,
    "--max-num-active-seqs 0",
    "max_num_active_seqs: Input should be greater than or equal to 1"
)]
#[case::traces(LLAMA, "--collect-detailed-traces all", "requires `--otlp-traces-endpoint` to be set")]
#[case::shared_memory(GEMMA, "--mm-shm-cache-max-object-size-mb 64", "when 'mm_processor_cache_type' is 'shm'")]
#[case::encoders_kernels(GEMMA, "--mm-encoder-attn-backend XFORMERS", "Attention backend 'XFORMERS' has been removed")]
#[case::encoders_scales(GEMMA, "--mm-encoder-fp8-scale-path x", "require 'mm_encoder_attn_dtype' to be 'fp8'")]
#[case::device_of_processors(GEMMA, "--mm-processor-device cuda", "Cannot run the multi-modal processor on 'cuda'")]
#[case::shared_tensors(GEMMA, "--mm-tensor-ipc torch_shm", "without VLLM_WORKER_MULTIPROC_METHOD set to spawn")]
#[case::shared_tensors_of_ranks(GEMMA, "-tp 2 --mm-tensor-ipc torch_shm", "not supported with data_parallel_size > 1")]
#[case::few_to_shard(
    LLAMA,
    "--enable-batch-sharded-sampling -tp 2 --max-num-seqs 1",
    "max_num_seqs (1) is below tensor_parallel_size (2)"
)]
#[case::all_to_shard(
    LLAMA,
    "--enable-batch-sharded-sampling -tp 2 --max-logprobs -1",
    "max_logprobs is -1, allowing vocab-size logprob requests"
)]
#[case::encoders_graphs(
    LLAMA,
    "--language-model-only -cc.cudagraph_mm_encoder=true",
    "incompatible with cudagraph_mm_encoder=True"
)]
#[case::rounding_here(
    NEMOTRON,
    "--mamba-ssm-cache-dtype float16 --enable-mamba-cache-stochastic-rounding",
    "requires compute capability 10.0"
)]
#[case::hyper_connections(LLAMA, "--enable-hc-sp -tp 2", "--enable-hc-sp is not supported for this model")]
#[case::encodes_text(
    LLAMA,
    "--ec-transfer-config {\"ec_connector\":\"ECExampleConnector\",\"ec_role\":\"ec_producer\"}",
    "requires a multimodal model"
)]
#[case::groups_of_a_connector(
    OSS,
    "--no-disable-hybrid-kv-cache-manager --kv-transfer-config {\"kv_connector\":\"LMCacheConnectorV1\",\"kv_role\":\"kv_both\"}",
    "Connector LMCacheConnectorV1 does not support HMA but HMA is enabled"
)]
#[case::sleeps(
    LLAMA,
    "--enable-sleep-mode --kv-transfer-config {\"kv_connector\":\"MooncakeStoreConnector\",\"kv_role\":\"kv_both\"}",
    "MooncakeStoreConnector does not support sleep mode"
)]
#[case::context_of_nixl(
    DEEPSEEK,
    "-tp 8 -dcp 4 --kv-transfer-config {\"kv_connector\":\"NixlConnector\",\"kv_role\":\"kv_both\"}",
    "decode_context_parallel_size=4 must be 1 or equal to the NIXL transfer parallel size=8"
)]
#[case::bytes_of_the_host(
    LLAMA,
    "--kv-transfer-config {\"kv_connector\":\"OffloadingConnector\",\"kv_role\":\"kv_both\"}",
    "cpu_bytes_to_use must be specified"
)]
#[case::step(LLAMA, "--max-num-scheduled-tokens 0", "max_num_scheduled_tokens: Input should be greater than or equal")]
#[case::prefills(LLAMA, "--prefill-schedule-interval 0", "prefill_schedule_interval: Input should be greater than")]
#[case::queued(LLAMA, "--max-num-queued-reqs -1", "max_num_queued_reqs: Input should be greater than or equal to 0")]
#[case::block(LLAMA, "--block-size 0", "block_size: Input should be greater than 0")]
#[case::blocks(LLAMA, "--num-gpu-blocks-override 0", "No available memory for the cache blocks")]
#[case::interval_of_all_alike(
    LLAMA,
    "--prefix-cache-retention-interval 64",
    "this model has no sliding-window or Mamba KV cache group"
)]
#[case::interval_of_one_group(
    OSS,
    "--prefix-cache-retention-interval 64 --disable-hybrid-kv-cache-manager",
    "this model has no sliding-window or Mamba KV cache group"
)]
#[case::interval_of_windows(OSS, "--prefix-cache-retention-interval 100", "a multiple of scheduler_block_size (16)")]
#[case::interval_of_states(NEMOTRON, "--prefix-cache-retention-interval 16", "a multiple of scheduler_block_size (")]
#[case::prefix_unit(LLAMA, "--prefix-match-unit 8", "Invalid prefix_match_unit=8")]
#[case::prefix_unit_of_blocks(LLAMA, "--prefix-match-unit 16 --block-size 32", "Unset it or set it to that")]
#[case::external_rank(LLAMA, "--data-parallel-external-lb", "requires a data-parallel rank")]
#[case::two_balances(
    LLAMA,
    "--data-parallel-external-lb --data-parallel-hybrid-lb",
    "Cannot use more than one data parallel load balancing mode"
)]
#[case::external_local(LLAMA, "-dpn 0 -dpl 2", "requires `--data-parallel-size-local 1`; got 2")]
#[case::external_alone(LLAMA, "-dpn 0", "can only be set when data_parallel_size > 1")]
#[case::more_local(LLAMA, "-dpl 2", "data_parallel_size_local (2) must be <= data_parallel_size (1)")]
#[case::faults(LLAMA, "--enable-fault-tolerance", "Fault tolerance requires external load balancer mode")]
#[case::mixed_devices(LLAMA, "--device-ids 0,GPU-abc", "must not mix integer IDs and UUIDs")]
#[case::word_for_a_size(LLAMA, "--cudagraph-capture-sizes abc", "argument --cudagraph-capture-sizes: invalid value")]
#[case::sizes_twice(
    LLAMA,
    "--cudagraph-capture-sizes 1 --compilation-config {\"cudagraph_capture_sizes\":[1,2]}",
    "are mutually exclusive"
)]
#[case::kernels_twice(
    LLAMA,
    "--attention-backend FLASH_ATTN --attention-config.backend FLASHINFER",
    "attention_backend and attention_config.backend are mutually exclusive"
)]
#[case::stages_of_one(
    LLAMA,
    "-tp 2 -pp 2 --distributed-executor-backend uni",
    "Pipeline Parallelism without Ray distributed executor"
)]
#[case::nodes_of_memory(LLAMA, "--numa-bind-nodes 0", "require numa_bind=True")]
#[case::profiled_by_ray(LLAMA, "--ray-workers-use-nsight", "unless workers run with Ray")]
#[case::mask(LLAMA, "--return-sampling-mask", "requires logprobs_mode='processed_logprobs'")]
#[case::port(LLAMA, "--grpc-port 9000", "requires VLLM_USE_RUST_FRONTEND=1")]
#[case::gone_connector(
    LLAMA,
    "--kv-transfer-config {\"kv_connector\":\"SharedStorageConnector\",\"kv_role\":\"kv_both\"}",
    "Unsupported connector type: SharedStorageConnector"
)]
#[case::overlap_with_drafts(
    LLAMA,
    "--async-scheduling --speculative-config {\"method\":\"suffix\",\"num_speculative_tokens\":4}",
    "not supported by the V1 model runner with suffix-based speculative decoding"
)]
#[case::other_files(DEEPSEEK, "-tp 8 -q awq", "in the model config (fp8) does not match")]
#[case::online_over_files(DEEPSEEK, "-tp 8 -q fp8_per_block", "in the model config (fp8) does not match")]
#[case::passes(
    LLAMA,
    "--compilation-config {\"pass_config\":{\"enable_sp\":true}}",
    "enable_sp: Unexpected keyword argument"
)]
#[case::states_without_groups(
    NEXT,
    "-tp 4 --kv-transfer-config {\"kv_connector\":\"LMCacheConnectorV1\",\"kv_role\":\"kv_both\"}",
    "Failed to promote local KV cache specs"
)]
#[case::metrics(LLAMA, "--enable-per-request-metrics --disable-log-stats", "requires engine statistics logging")]
#[case::videos(GEMMA, "--max-num-batched-tokens 2048", "(2496) is larger than max_num_batched_tokens (2048)")]
#[case::connector(
    LLAMA,
    "--kv-transfer-config {\"kv_connector\":\"BogusConnector\",\"kv_role\":\"kv_both\"}",
    "Unsupported connector type: BogusConnector"
)]
fn vllm_refuses(#[case] model: &str, #[case] flags: &str, #[case] expected: &str) {
    let found = said(&format!("vllm serve m {flags}"), model, "0.33.0").unwrap_or_else(|| panic!("{flags}: starts"));
    assert!(found.contains(expected), "{found}");
}

/// Of flags that change what weights take, where the bytes for caches are known.
#[rstest]
#[case::adapters_of_kimi(KIMI, "--enable-lora", "LoRA is not supported for ['KimiLinearForCausalLM']")]
#[case::stored_adapters(
    LLAMA,
    "--enable-lora --max-loras 4 --max-cpu-loras 2",
    "max_cpu_loras (2) must be >= max_loras (4)"
)]
#[case::adapters_and_drafts(
    LLAMA,
    "--enable-lora --speculative-config {\"method\":\"ngram\",\"num_speculative_tokens\":20}",
    "decreasing num_speculative_tokens"
)]
#[case::adapters_of_experts(NEXT, "--enable-lora --moe-backend deep_gemm_mega_moe", "LoRA is not supported with")]
#[case::spare_experts(
    NEXT,
    "--eplb-config {\"num_redundant_experts\":8}",
    "num_redundant_experts is set to 8 but EPLB"
)]
#[case::adapters(LLAMA, "--enable-lora --max-loras 4 --max-cpu-loras 4", "")]
#[case::adapters_and_few_drafts(
    LLAMA,
    "--enable-lora --speculative-config {\"method\":\"ngram\",\"num_speculative_tokens\":3}",
    ""
)]
#[case::online(LLAMA, "-q fp8_per_block", "")]
fn vllm_refuses_beside_weights(#[case] model: &str, #[case] flags: &str, #[case] expected: &str) {
    let options = Options { cache_bytes: Some(Logged::exact(20 << 30)), ..on("8xh200") };
    let found = answer(&launch(&format!("vllm serve m {flags}")), models(model), &options);
    let found = found.err().map_or(String::new(), |error| error.to_string());
    assert!(found.contains(expected) && found.is_empty() == expected.is_empty(), "{found}");
}

#[rstest]
#[case("0.11.0", "--compilation-config 3")]
#[case("0.24.0", "--long-prefill-token-threshold 200000")]
#[case("0.33.0", "-O3 --compilation-config {\"cudagraph_mode\":\"NONE\"}")]
#[case("0.33.0", "--cudagraph-capture-sizes 1 2 4 --max-cudagraph-capture-size 4")]
#[case("0.33.0", "-tp 8 --nnodes 2 --node-rank 1")]
#[case("0.33.0", "--attention-backend FLASH_ATTN --kv-cache-dtype fp8_e4m3")]
#[case("0.33.0", "--enable-auto-tool-choice --tool-call-parser hermes --reasoning-parser qwen3")]
#[case("0.33.0", "--reasoning-parser mine --reasoning-parser-plugin mine.py")]
#[case("0.33.0", "--max-logprobs -1 --stream-interval 1 --watermark 0.1 --device-ids 0,1")]
#[case("0.33.0", "--max-num-seqs 8 --max-num-active-seqs 8 --max-num-queued-reqs 0 --prefix-match-unit 16")]
#[case("0.33.0", "--prefix-match-unit 8 --no-enable-prefix-caching")]
#[case("0.33.0", "-dp 2 -dpl 2 --numa-bind --numa-bind-nodes 0 1 --device-ids GPU-a,GPU-b")]
#[case("0.33.0", "--return-sampling-mask --logprobs-mode processed_logprobs")]
#[case("0.33.0", "--speculative-config {\"method\":\"ngram\",\"num-speculative-tokens\":3}")]
#[case(
    "0.33.0",
    "--kv-transfer-config {\"kv_connector\":\"OffloadingConnector\",\"kv_role\":\"kv_both\",\"kv_connector_extra_config\":{\"cpu_bytes_to_use\":80g}}"
)]
#[case("0.23.0", "--kv-transfer-config {\"kv_connector\":\"P2pNcclConnector\",\"kv_role\":\"kv_both\"}")]
#[case("0.24.0", "--kv-transfer-config {\"kv_connector\":\"NixlPullConnector\",\"kv_role\":\"kv_both\"}")]
#[case("0.33.0", "--compilation-config {\"pass_config\":{\"fuse_allreduce_rms\":true}} --convert none")]
#[case("0.28.0", "--enable-dbo --all2all-backend nixl_ep")]
fn vllm_takes(#[case] version: &str, #[case] flags: &str) {
    assert_eq!(said(&format!("vllm serve m {flags}"), LLAMA, version), None);
}

/// An interval is a multiple of the block that windows and states have.
#[rstest]
#[case(OSS, 64)]
#[case(LLAMA, 0)]
fn vllm_takes_intervals_of_whole_blocks(#[case] model: &str, #[case] interval: u64) {
    assert_eq!(said(&format!("vllm serve m --prefix-cache-retention-interval {interval}"), model, "0.33.0"), None);
}

#[rstest]
#[case("0.24.0", LLAMA, "-ep", "Number of experts")]
#[case("0.24.0", LLAMA, "--max-num-partial-prefills 2 --max-long-partial-prefills 3", "(3) must be less than or equal")]
#[case("0.11.0", LLAMA, "--max-num-partial-prefills 2 --max-long-partial-prefills 3", "(3) must be less than or equal")]
#[case("0.11.0", LLAMA, "--async-scheduling -pp 2", "not supported with pipeline-parallel-size > 1")]
#[case(
    "0.11.0",
    LLAMA,
    "--async-scheduling --speculative-config {\"method\":\"ngram\",\"num_speculative_tokens\":2}",
    "speculative decoding is not supported with async scheduling"
)]
#[case(
    "0.11.0",
    LLAMA,
    "--speculative-config {\"model\":\"Qwen3-0.6B\",\"num_speculative_tokens\":3}",
    "Speculative decoding with draft model is not supported yet"
)]
#[case("0.28.0", LLAMA, "--enable-dbo", "Microbatching currently only supports")]
#[case("0.23.0", LLAMA, "--enable-dbo --all2all-backend nixl_ep", "nixl_ep is not supported")]
#[case(
    "0.26.0",
    LLAMA,
    "--kv-transfer-config {\"kv_connector\":\"P2pNcclConnector\",\"kv_role\":\"kv_both\"}",
    "Unsupported connector type: P2pNcclConnector"
)]
#[case(
    "0.28.0",
    LLAMA,
    "--kv-transfer-config {\"kv_connector\":\"HiSparse\",\"kv_role\":\"kv_both\"}",
    "Unsupported connector type: HiSparse"
)]
#[case(
    "0.23.0",
    LLAMA,
    "--kv-transfer-config {\"kv_connector\":\"ExampleHiddenStatesConnector\",\"kv_role\":\"kv_both\"}",
    "does not support chunked prefill"
)]
#[case("0.28.0", GEMMA, "--max-num-batched-tokens 2048", "(2496) is larger than max_num_batched_tokens (2048)")]
fn older_vllm_refuses(#[case] version: &str, #[case] model: &str, #[case] flags: &str, #[case] expected: &str) {
    let found = said(&format!("vllm serve m {flags}"), model, version).unwrap_or_else(|| panic!("{flags}: starts"));
    assert!(found.contains(expected), "{found}");
}

#[test]
fn older_vllm_refuses_kernels_of_a_variable() {
    let mut command = launch("vllm serve m");
    command.env.insert("VLLM_ATTENTION_BACKEND".into(), "BOGUS".into());
    let options = Options { version: Some("0.11.0".into()), ..on("h100") };
    let error = answer(&command, models(LLAMA), &options).unwrap_err();
    assert!(error.to_string().contains("Invalid attention backend: 'BOGUS'"), "{error}");
}

#[rstest]
#[case(
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
    "--kv-transfer-config {\"kv_connector\":\"NixlConnector\",\"kv_role\":\"kv_both\"}",
    "is incompatible with PYTORCH_CUDA_ALLOC_CONF"
)]
#[case("VLLM_DP_SIZE=2", "", "Offline data parallel mode is not supported/useful for dense models")]
#[case(
    "VLLM_USE_V2_MODEL_RUNNER=0",
    "-pp 2 --async-scheduling",
    "not supported by the V1 model runner with pipeline parallelism"
)]
#[case(
    "VLLM_USE_V2_MODEL_RUNNER=1",
    "--speculative-config {\"method\":\"suffix\",\"num_speculative_tokens\":4}",
    "Model Runner V2 does not yet support: speculative method 'suffix'"
)]
#[case(
    "VLLM_USE_V2_MODEL_RUNNER=1",
    "-tp 2 --enable-dbo --all2all-backend deepep_low_latency --speculative-config {\"method\":\"ngram\",\"num_speculative_tokens\":3}",
    "Model Runner V2 does not yet support: dual batch overlap with speculative decoding"
)]
#[case("VLLM_WORKER_MULTIPROC_METHOD=thread", "", "Invalid value 'thread' for VLLM_WORKER_MULTIPROC_METHOD")]
#[case("VLLM_KV_CACHE_LAYOUT=foo", "", "Invalid value 'foo' for VLLM_KV_CACHE_LAYOUT")]
#[case("VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=false", "", "invalid literal for int() with base 10: 'false'")]
#[case(
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
    "--kv-offloading-size 10",
    "KV connector OffloadingConnector is incompatible with PYTORCH_CUDA_ALLOC_CONF"
)]
fn vllm_refuses_under_a_variable(#[case] variable: &str, #[case] flags: &str, #[case] expected: &str) {
    let found = said(format!("{variable} vllm serve m {flags}").trim(), LLAMA, "0.33.0");
    assert!(found.as_ref().is_some_and(|found| found.contains(expected)), "{found:?}");
    assert_eq!(said(format!("vllm serve m {}", flags.replace("--async-scheduling", "")).trim(), LLAMA, "0.33.0"), None);
}

/// A method of files is known by its name and by what it makes of weights, and asked as what a flag says.
#[rstest]
#[case::removed("h100", "hqq", "", "", Some("Unknown quantization method: hqq"))]
#[case::removed_before("h100", "bitsandbytes", "", "", Some("Unknown quantization method: bitsandbytes"))]
#[case::deprecated("h100", "fbgemm_fp8", "", "", Some("is deprecated"))]
#[case::taken_all_the_same("h100", "fbgemm_fp8", "", " --allow-deprecated-quantization", None)]
#[case::known("h100", "awq", "", "", None)]
#[case::known_in_eight_bits("h100", "fp8", "", "", None)]
#[case::written_otherwise("h100", "compressed_tensors", "", "", None)]
#[case::eight_bits_on_an_old_gpu("t4", "modelopt", "FP8", "", Some("Minimum capability: 80. Current capability: 75"))]
#[case::four_bits_on_an_old_gpu("t4", "modelopt", "NVFP4", "", None)]
fn vllm_knows_methods_of_files(
    #[case] device: &str,
    #[case] method: &str,
    #[case] algorithm: &str,
    #[case] flags: &str,
    #[case] expected: Option<&str>,
) {
    let model = changed(LLAMA, |config| {
        config["quantization_config"] = serde_json::json!({"quant_method": method, "quant_algo": algorithm});
    });
    let options = Options { version: Some("0.33.0".into()), cache_bytes: Some(Logged::exact(4 << 30)), ..on(device) };
    let found = answer(&launch(&format!("vllm serve m --max-model-len 4096{flags}")), model, &options);
    match (found, expected) {
        (Err(error), Some(expected)) => assert!(error.to_string().contains(expected), "{error}"),
        (found, expected) => assert!(found.is_ok() && expected.is_none(), "{found:?}"),
    }
}

/// The order of convolution states is asked for where there are some.
#[rstest]
#[case(LLAMA, false)]
#[case(NEMOTRON, true)]
fn vllm_asks_for_the_order_of_states_that_it_has(#[case] model: &str, #[case] refuses: bool) {
    let found = said("VLLM_SSM_CONV_STATE_LAYOUT=x vllm serve m", model, "0.33.0");
    assert_eq!(found.is_some(), refuses, "{found:?}");
    assert!(found.is_none_or(|found| found.contains("Invalid value 'x' for VLLM_SSM_CONV_STATE_LAYOUT")));
}

/// What a model keeps decides whether its kernels are the same in every batch.
#[rstest]
#[case(LLAMA, None)]
#[case(NEMOTRON, Some("batch_invariant mode is not supported"))]
#[case(NEXT, Some("batch_invariant mode is not supported"))]
fn vllm_refuses_invariant_batches_of_states(#[case] model: &str, #[case] expected: Option<&str>) {
    let found = said("VLLM_BATCH_INVARIANT=1 vllm serve m -tp 2", model, "0.33.0");
    assert_eq!(found.is_some(), expected.is_some(), "{found:?}");
    assert!(found.is_none_or(|found| expected.is_some_and(|expected| found.contains(expected))));
}

#[rstest]
#[case::of_hip("HIP_VISIBLE_DEVICES=0", "-tp 2", Some("available GPUs (1) in this node (HIP_VISIBLE_DEVICES=0)"))]
#[case::of_the_runtime("ROCR_VISIBLE_DEVICES=0,1 HIP_VISIBLE_DEVICES=0,1,2", "-tp 4", Some("available GPUs (2)"))]
#[case::of_both("HIP_VISIBLE_DEVICES=0,1 CUDA_VISIBLE_DEVICES=2,3", "-tp 2", Some("Inconsistent GPU visibility"))]
#[case::of_both_alike("HIP_VISIBLE_DEVICES=0,1 CUDA_VISIBLE_DEVICES=0,1", "-tp 2", None)]
#[case::enough("HIP_VISIBLE_DEVICES=4,5,6,7", "-tp 4", None)]
fn amds_variables_show_some_of_the_devices(
    #[case] variables: &str,
    #[case] flags: &str,
    #[case] expected: Option<&str>,
) {
    let command = format!("{variables} vllm serve m {flags} --max-model-len 8192");
    let ask = |device: &str| answer(&launch(&command), models(LLAMA), &on(device)).map_err(|error| error.to_string());
    match (ask("8xmi300x"), expected) {
        (Ok(_), None) => {}
        (Err(error), Some(expected)) => assert!(error.contains(expected), "{error}"),
        (found, _) => panic!("{:?}", found.map(drop)),
    }
    // They say nothing to CUDA.
    let only_hip = variables.split(' ').all(|variable| !variable.starts_with("CUDA"));
    assert!(!only_hip || ask("8xh200").is_ok(), "{command}");
}

/// Ranks that cut blocks of weights: of DeepSeek-V3's 18,432 channels 64 ranks have 288, of its experts' 2048 channels 32 have 64.
#[rstest]
#[case("0.33.0", "-tp 64", Some("input_size_per_partition = 288 is not divisible"))]
#[case("0.33.0", "-tp 32 --enable-expert-parallel", Some("input_size_per_partition = 576 is not divisible"))]
#[case("0.33.0", "-tp 16", None)]
#[case("0.28.0", "-tp 16 -dp 2", Some("gate's and up's weight = 64 is not divisible"))]
#[case("0.33.0", "-tp 16 -dp 2", None)]
#[case("0.28.0", "-tp 16 -dp 2 --enable-expert-parallel", None)]
fn ranks_divide_weights_into_whole_blocks(#[case] version: &str, #[case] flags: &str, #[case] expected: Option<&str>) {
    let options = Options { version: Some(version.into()), ..on("64xh200") };
    let found = answer(&launch(&format!("vllm serve m {flags} --nnodes 8")), models(DEEPSEEK), &options);
    match (found, expected) {
        (Err(error), Some(expected)) => assert!(error.to_string().contains(expected), "{error}"),
        (found, expected) => assert_eq!(found.is_err(), expected.is_some(), "{flags}"),
    }
}
