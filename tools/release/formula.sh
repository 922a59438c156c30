#!/usr/bin/env bash
# Fills in Homebrew's formula: formula.sh FOLDER URL, where FOLDER has a release's archives with their hashes.
set -euo pipefail

folder=$1 url=$2
archives=("$folder"/cacheplan-*.tar.gz)
version=$(basename "${archives[0]}" | cut -d - -f 2)
edits=(-e "s|@URL@|$url|g" -e "s|@VERSION@|$version|g")
for archive in "${archives[@]}"; do
  target=$(basename "$archive" .tar.gz)
  target=${target#cacheplan-"$version"-}
  edits+=(-e "s|@$target@|$(cut -d ' ' -f 1 "$archive.sha256")|")
done
formula=$(sed "${edits[@]}" "$(dirname "$0")/cacheplan.rb")
if missing=$(grep -o '"@[a-z0-9_-]*@"' <<<"$formula"); then
  printf 'no archive for %s\n' $missing >&2
  exit 1
fi
printf '%s\n' "$formula"
