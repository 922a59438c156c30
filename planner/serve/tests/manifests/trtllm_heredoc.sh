MAX=256
cat > /tmp/extra.yml <<END
kv_cache_config:
  free_gpu_memory_fraction: 0.8
  enable_block_reuse: false
  dtype: fp8
cuda_graph_config:
  batch_sizes: [1, 2, $MAX]
max_batch_size: $MAX
END
mpirun -n 4 --allow-run-as-root trtllm-llmapi-launch trtllm-serve nvidia/DeepSeek-R1-FP4 \
  --tp_size 8 --extra_llm_api_options /tmp/extra.yml
