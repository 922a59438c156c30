export PORT=8000
vllm serve $MODEL --port $PORT
