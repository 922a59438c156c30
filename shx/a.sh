L=" 2048 "; vllm serve /work/blind/models/Qwen__Qwen3-8B.json --max-model-len "$L"
