llama-server -m models/*.gguf
