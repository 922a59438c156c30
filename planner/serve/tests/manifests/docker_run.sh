docker run -d --rm --gpus '"device=0,1"' --shm-size=1g -v ~/.cache/huggingface:/root/.cache/huggingface \
    -e "HUGGING_FACE_HUB_TOKEN=$HF_TOKEN" --env VLLM_LOGGING_LEVEL=INFO -p8000:8000 --ipc=host \
    vllm/vllm-openai:v0.11.0 --model meta-llama/Llama-3.1-8B-Instruct --tensor-parallel-size 2
sudo podman run --device nvidia.com/gpu=0 --device nvidia.com/gpu=1 --name s -itp 30000:30000 lmsysorg/sglang:latest \
    bash -c "python3 -m sglang.launch_server --model-path Qwen/Qwen3-32B --tp 2 --host 0.0.0.0"
docker run --gpus 1 -v models:/models ghcr.io/ggml-org/llama.cpp:server-cuda -m /models/q.gguf -c 8192 -ngl 99
docker run -it --entrypoint bash nvcr.io/nvidia/tensorrt-llm/release:1.1.0 -lc 'trtllm-serve Qwen/Qwen3-8B --tp_size 1'
