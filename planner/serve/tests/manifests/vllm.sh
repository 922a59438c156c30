#!/usr/bin/env bash
# Two replicas of one model beside each other.
set -euo pipefail
MODEL=Qwen/Qwen3-8B
export VLLM_USE_V1=1 HF_TOKEN="hf_0123456789abcdefghijklmn"
COMMON=(--max-model-len 32768   # half of what it could
        --gpu-memory-utilization 0.9)
COMMON+=(--kv-cache-dtype fp8)
TP=${TP:-2}

if ! command -v vllm > /dev/null; then
  pip install vllm
fi

CUDA_VISIBLE_DEVICES=0,1 nohup vllm serve "$MODEL" \
  --tensor-parallel-size $TP \
  "${COMMON[@]}" \
  --compilation-config '{"cudagraph_mode": "FULL", "note": "$MODEL stays"}' \
  --api-key "$SECRET_OF_MINE" --port 8000 > a.log 2>&1 &
exec vllm serve $MODEL --host $(hostname -I) --port 8001 "${COMMON[@]}" | tee b.log
