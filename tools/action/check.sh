#!/usr/bin/env bash
# Whether the command in each file would start: check.sh [FLAGS OF `cacheplan plan`] -- FILE...
# Files are chosen by what stands in them: one without an engine's command is left out, and says so. The exit code is the
# largest of the others'; CACHEPLAN names another program than the one in PATH.
set -euo pipefail

refuse() {
  printf 'check.sh: %s; check.sh [FLAGS OF `cacheplan plan`] -- FILE... would do\n' "$1" >&2
  exit 2
}

flags=()
while (($#)) && [[ $1 != -- ]]; do
  flags+=("$1")
  shift
done
# Without it the files are among the flags, and none would be looked at.
(($#)) || refuse 'no `--` stands between flags and files'
shift
(($#)) || refuse 'no files stand behind `--`'

worst=0
for file in "$@"; do
  printf '%s\n' "$file"
  code=0
  "${CACHEPLAN:-cacheplan}" plan --if-any ${flags[@]+"${flags[@]}"} -- "$file" || code=$?
  ((code <= worst)) || worst=$code
done
exit "$worst"
