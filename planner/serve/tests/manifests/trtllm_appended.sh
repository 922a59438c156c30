cat <<'END' > a.yaml
kv_cache_config:
  dtype: fp8
END
cat >> a.yaml <<'END'
max_batch_size: 64
END
cat > b.yaml <<'END'
max_batch_size: 64
END
sed -i s/64/128/ b.yaml
trtllm-serve m --extra_llm_api_options ./a.yaml
# What `sed` made of the file is not known.
trtllm-serve m --extra_llm_api_options b.yaml
