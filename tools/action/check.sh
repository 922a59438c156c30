#!/usr/bin/env bash
# Whether the command in each file would start: check.sh [FLAGS OF `cacheplan plan`] -- FILE...
# A file in which no engine is named starts none, and is left out. The exit code is the largest of the others'; CACHEPLAN
# names another program than the one in PATH.
set -euo pipefail

flags=()
while (($#)) && [[ $1 != -- ]]; do
  flags+=("$1")
  shift
done
shift || true

worst=0
for file in "$@"; do
  printf '%s\n' "$file"
  if [[ -f $file ]] && ! grep -qiE 'vllm|sglang|trtllm|tensorrt|llama' "$file"; then
    printf 'names no engine: left out\n'
    continue
  fi
  code=0
  "${CACHEPLAN:-cacheplan}" plan ${flags[@]+"${flags[@]}"} -- "$file" || code=$?
  ((code <= worst)) || worst=$code
done
exit "$worst"
