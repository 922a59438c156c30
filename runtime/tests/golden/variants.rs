//! Options that the other models leave at their defaults: a prompt in chunks, then one token at a time.

use std::path::PathBuf;

use rstest::rstest;

use crate::harness::{Driven, Golden, assert_close};

fn folder(variant: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/variants").join(variant)
}

#[rstest]
fn an_option_changes_the_logits_as_in_the_golden_file(
    #[values(
        "bamba_gelu",
        "bamba_odd_rotation",
        "deepseek_v2_lite",
        "deepseek_v3_yarn",
        "falcon_h1_projector_bias",
        "gemma3_older_rope",
        "gemma4_of_a_wrapper",
        "gemma4_older_sizes",
        "gemma4_unified_keys",
        "gemma4_unified_of_a_wrapper",
        "gemma4_wide_experts",
        "glm5_next_older_keys",
        "glm5_next_token_keys",
        "gpt_oss_defaults",
        "kimi_linear_own_head",
        "lfm2_moe_uncorrected",
        "lfm2_older_names",
        "mamba2_tanh",
        "mamba_relu",
        "minimax_window",
        "mistral_listed_window",
        "mistral_window",
        "mixtral_stacked",
        "mixtral_window",
        "nemotron_h_latent_experts",
        "olmo_hybrid_unrotated",
        "qwen2_window",
        "qwen3_moe_sparse_step",
        "qwen3_moe_stacked",
        "qwen3_next_gelu",
        "qwen3_window",
        "qwen4_exp_long_ngrams",
        "qwen4_exp_sigmoid",
        "zamba2_attention_adapters",
        "zamba2_untied"
    )]
    variant: &str,
) {
    let golden = Golden::load_from(&folder(variant));
    let (ids, expected) = (golden.ids("ids"), golden.get("full_logits"));
    let mut driven = Driven::open_in(&folder(variant));
    let sequence = driven.admit(9);
    let mut done = 0;
    for step in [9, 10, 1, 1, 1, 1, 1] {
        let logits = driven.step(&[(sequence, &ids[done..done + step])]);
        assert_close(&logits, &expected.narrow(0, done, step).unwrap(), &format!("tokens from {done} on"));
        done += step;
    }
    assert_eq!(done, ids.len());
}
