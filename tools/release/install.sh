#!/bin/sh
# Installs the command cacheplan of a release: program, completions, manual pages, licences.
#
#   CACHEPLAN_RELEASES  where the archives are, a URL or `file://` of a folder; required until there is a public one
#   CACHEPLAN_VERSION   which release; required
#   CACHEPLAN_PREFIX    where to, ~/.local where absent
#   CACHEPLAN_TARGET    for another machine than this, `x86_64-unknown-linux-musl`
set -eu

fail() {
  printf 'cacheplan: %s\n' "$1" >&2
  exit 1
}

target() {
  # One libc fits all: what is linked against musl runs on glibc too.
  case "$(uname -s)-$(uname -m)" in
    Linux-x86_64) echo x86_64-unknown-linux-musl ;;
    Linux-aarch64 | Linux-arm64) echo aarch64-unknown-linux-musl ;;
    Darwin-arm64) echo aarch64-apple-darwin ;;
    Darwin-x86_64) echo x86_64-apple-darwin ;;
    *) fail "no release for $(uname -s) on $(uname -m); build it: cargo install --path cli" ;;
  esac
}

sum() {
  if command -v sha256sum >/dev/null; then sha256sum "$1"; else shasum -a 256 "$1"; fi | cut -d ' ' -f 1
}

# In a function, so that a script that arrives in part does nothing.
main() {
  releases=${CACHEPLAN_RELEASES:?where the archives are}
  version=${CACHEPLAN_VERSION:?which release}
  prefix=${CACHEPLAN_PREFIX:-$HOME/.local}
  name=cacheplan-$version-${CACHEPLAN_TARGET:-$(target)}
  scratch=$(mktemp -d)
  trap 'rm -rf "$scratch"' EXIT
  for file in "$name.tar.gz" "$name.tar.gz.sha256"; do
    curl --fail --silent --show-error --location --output "$scratch/$file" "$releases/$file" ||
      fail "$releases/$file cannot be fetched"
  done
  wanted=$(cut -d ' ' -f 1 "$scratch/$name.tar.gz.sha256")
  found=$(sum "$scratch/$name.tar.gz")
  [ "$wanted" = "$found" ] || fail "$name.tar.gz has the hash $found, and $wanted was expected"
  tar -xzf "$scratch/$name.tar.gz" -C "$scratch"
  here=$scratch/$name
  mkdir -p "$prefix/bin" "$prefix/share/man/man1" "$prefix/share/doc/cacheplan" \
    "$prefix/share/bash-completion/completions" "$prefix/share/zsh/site-functions" "$prefix/share/fish/vendor_completions.d"
  # Renamed into its place: a cacheplan that runs keeps the old one.
  cp "$here/cacheplan" "$prefix/bin/.cacheplan.new"
  mv "$prefix/bin/.cacheplan.new" "$prefix/bin/cacheplan"
  cp "$here"/man/man1/*.1 "$prefix/share/man/man1"
  cp "$here"/*.md "$here"/*.txt "$here"/LICENSE-* "$prefix/share/doc/cacheplan"
  cp "$here/completions/cacheplan.bash" "$prefix/share/bash-completion/completions/cacheplan"
  cp "$here/completions/_cacheplan" "$prefix/share/zsh/site-functions"
  cp "$here/completions/cacheplan.fish" "$prefix/share/fish/vendor_completions.d"
  "$prefix/bin/cacheplan" --version
  case ":$PATH:" in
    *":$prefix/bin:"*) ;;
    *) printf 'note: %s is not in PATH\n' "$prefix/bin" >&2 ;;
  esac
}

main
