if [ -n "$BIG" ]; then
  vllm serve Qwen/Qwen3-32B
else
  vllm serve Qwen/Qwen3-8B
fi
