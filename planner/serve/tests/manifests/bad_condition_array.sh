ARGS=(--tensor-parallel-size 2)
if [ -n "$LONG" ]; then
  ARGS+=(--max-model-len 131072)
fi
vllm serve Qwen/Qwen3-8B "${ARGS[@]}"
