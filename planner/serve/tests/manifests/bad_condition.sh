TP=1
[ "$(nvidia-smi -L | wc -l)" -gt 1 ] && TP=2
vllm serve Qwen/Qwen3-8B --tensor-parallel-size $TP
