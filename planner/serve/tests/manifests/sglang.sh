source venv/bin/activate && python3 -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 8 \
    --mem-fraction-static 0.85 --dist-init-addr "$HEAD_IP:5000"; echo done
