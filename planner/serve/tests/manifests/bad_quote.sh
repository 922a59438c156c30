# The quote is never closed.
vllm serve 'Qwen/Qwen3-8B
