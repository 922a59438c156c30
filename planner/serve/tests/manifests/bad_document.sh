cat > a.yaml <<END
max_batch_size: $BATCH
END
trtllm-serve m --extra_llm_api_options a.yaml
