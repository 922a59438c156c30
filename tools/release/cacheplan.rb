# Homebrew's formula of a release. `tools/release/formula.sh FOLDER URL` fills in what stands between `@`.
class Cacheplan < Formula
  desc "Plans, proves, allocates and runs the caches of LLM inference"
  homepage "@URL@"
  version "@VERSION@"
  license any_of: ["MIT", "Apache-2.0"]

  on_macos do
    on_arm do
      url "@URL@/cacheplan-@VERSION@-aarch64-apple-darwin.tar.gz"
      sha256 "@aarch64-apple-darwin@"
    end
    on_intel do
      url "@URL@/cacheplan-@VERSION@-x86_64-apple-darwin.tar.gz"
      sha256 "@x86_64-apple-darwin@"
    end
  end
  on_linux do
    on_arm do
      url "@URL@/cacheplan-@VERSION@-aarch64-unknown-linux-musl.tar.gz"
      sha256 "@aarch64-unknown-linux-musl@"
    end
    on_intel do
      url "@URL@/cacheplan-@VERSION@-x86_64-unknown-linux-musl.tar.gz"
      sha256 "@x86_64-unknown-linux-musl@"
    end
  end

  def install
    bin.install "cacheplan"
    man1.install Dir["man/man1/*.1"]
    bash_completion.install "completions/cacheplan.bash" => "cacheplan"
    zsh_completion.install "completions/_cacheplan"
    fish_completion.install "completions/cacheplan.fish"
    doc.install Dir["*.md", "*.txt", "LICENSE-*"]
  end

  test do
    (testpath/"config.json").write <<~JSON
      {"model_type": "mamba2", "num_hidden_layers": 2, "hidden_size": 64, "num_heads": 4, "head_dim": 32,
       "state_size": 16, "n_groups": 1, "conv_kernel": 4, "expand": 2, "vocab_size": 256, "torch_dtype": "float32"}
    JSON
    assert_match "CAPACITY", shell_output("#{bin}/cacheplan plan #{testpath}/config.json")
  end
end
