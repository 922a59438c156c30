llama-server --model <drive>/models/qwen.gguf --ctx-size 8192
