//! Prefill, decode, chunks and batches, step by step.

use rstest::rstest;

use crate::caches::{assert_caches_match, by_slash};
use crate::harness::{BUDGET, Driven, Golden, assert_close, folder};

const PREFILL: usize = 21;
const FIRST_CHUNK: usize = 13;
const DECODE_STEPS: usize = 6;

over_models_with_steps!(prefill_and_every_decode_step_give_the_golden_logits_and_caches);
fn prefill_and_every_decode_step_give_the_golden_logits_and_caches(model: &str) {
    let golden = Golden::load(model);
    let ids = golden.ids("ids");
    let mut driven = Driven::open(model);
    let sequence = driven.admit(PREFILL);
    let logits = driven.step(&[(sequence, &ids[..PREFILL])]);
    assert_close(&logits, &golden.get("prefill_logits"), "prefill_logits");
    assert_caches_match(&mut driven, sequence, &golden, "prefill/", by_slash);
    for step in 0..DECODE_STEPS {
        let logits = driven.step(&[(sequence, &ids[PREFILL + step..][..1])]);
        let name = format!("decode{step}");
        assert_close(&logits, &golden.get(&format!("{name}_logits")), &name);
        assert_caches_match(&mut driven, sequence, &golden, &format!("{name}/"), by_slash);
    }
}

/// Configs from before a key existed leave it out, and mean what Hugging Face's classes take for it.
#[rstest]
#[case("bamba", "/rope_parameters", "partial_rotary_factor")]
#[case("mamba2", "", "use_conv_bias")]
#[case("nemotron_h", "", "use_conv_bias")]
#[case("qwen3_next", "/rope_parameters", "partial_rotary_factor")]
fn a_key_that_old_configs_leave_out_has_its_default(#[case] model: &str, #[case] section: &str, #[case] key: &str) {
    let copy = tempfile::TempDir::new().unwrap();
    let config = std::fs::read_to_string(folder(model).join("config.json")).unwrap();
    let mut config: serde_json::Value = serde_json::from_str(&config).unwrap();
    config.pointer_mut(section).unwrap().as_object_mut().unwrap().remove(key).unwrap();
    std::fs::write(copy.path().join("config.json"), config.to_string()).unwrap();
    std::fs::copy(folder(model).join("model.safetensors"), copy.path().join("model.safetensors")).unwrap();
    let golden = Golden::load(model);
    let mut driven = Driven::open_in(copy.path());
    let sequence = driven.admit(PREFILL);
    let logits = driven.step(&[(sequence, &golden.ids("ids")[..PREFILL])]);
    assert_close(&logits, &golden.get("prefill_logits"), key);
}

#[rstest]
fn a_prompt_in_two_chunks_gives_the_golden_logits_and_caches(
    // Jamba's golden chunks are wrong in Hugging Face itself.
    #[values(
        "bamba",
        "deepseek_v2",
        "deepseek_v3",
        "falcon_h1",
        "gemma3",
        "gemma4",
        "gemma4_moe",
        "glm5_next_text",
        "gpt_oss",
        "granitemoehybrid",
        "lfm2_moe",
        "llama",
        "mamba2",
        "nemotron_h",
        "olmo_hybrid",
        "qwen3_next",
        "qwen4_exp_text",
        "zamba2"
    )]
    model: &str,
) {
    let golden = Golden::load(model);
    let ids = golden.ids("ids");
    let mut driven = Driven::open(model);
    let sequence = driven.admit(PREFILL);
    driven.step(&[(sequence, &ids[..FIRST_CHUNK])]);
    let logits = driven.step(&[(sequence, &ids[FIRST_CHUNK..PREFILL])]);
    assert_close(&logits, &golden.get("chunk1_logits"), "chunk1_logits");
    assert_caches_match(&mut driven, sequence, &golden, "chunk1/", by_slash);
}

#[rstest]
fn sequences_of_different_lengths_in_one_step_do_not_disturb_each_other(
    #[values("llama", "mamba2", "nemotron_h", "gemma3", "gemma4", "gemma4_moe", "glm5_next_text", "qwen4_exp_text")]
    model: &str,
) {
    let golden = Golden::load(model);
    let ids = golden.ids("ids");
    let full = golden.get("full_logits");
    let mut driven = Driven::open(model);
    let (long, short) = (driven.admit(PREFILL), driven.admit(5));
    let logits = driven.step(&[(long, &ids[..PREFILL]), (short, &ids[..5])]);
    assert_close(&logits.narrow(0, 0, PREFILL).unwrap(), &full.narrow(0, 0, PREFILL).unwrap(), "long prefill");
    assert_close(&logits.narrow(0, PREFILL, 5).unwrap(), &full.narrow(0, 0, 5).unwrap(), "short prefill");
    // One decodes while the other still computes a part of its prompt, and they change places.
    let logits = driven.step(&[(short, &ids[5..9]), (long, &ids[PREFILL..PREFILL + 1])]);
    assert_close(&logits.narrow(0, 0, 4).unwrap(), &full.narrow(0, 5, 4).unwrap(), "short chunk");
    assert_close(&logits.narrow(0, 4, 1).unwrap(), &full.narrow(0, PREFILL, 1).unwrap(), "long decode");
}

#[rstest]
fn a_decoder_reads_nothing_but_the_pools(
    #[values("llama", "mamba2", "nemotron_h", "deepseek_v3", "gemma4", "glm5_next_text", "qwen4_exp_text")] model: &str,
) {
    let ids = Golden::load(model).ids("ids");
    let mut driven = Driven::open(model);
    let sequence = driven.admit(PREFILL);
    driven.step(&[(sequence, &ids[..PREFILL])]);
    driven.caches().fill(f64::NAN).unwrap();
    let logits = driven.step(&[(sequence, &ids[PREFILL..PREFILL + 1])]).flatten_all().unwrap();
    assert!(logits.to_vec1::<f32>().unwrap().iter().all(|logit| logit.is_nan()));
}

#[rstest]
fn a_decoder_reads_nothing_that_belongs_to_nobody(
    #[values("llama", "mamba2", "nemotron_h", "gemma3", "gemma4", "glm5_next_text", "qwen4_exp_text")] model: &str,
) {
    let golden = Golden::load(model);
    let ids = golden.ids("ids");
    let mut driven = Driven::open(model);
    let sequence = driven.admit(PREFILL);
    driven.step(&[(sequence, &ids[..PREFILL])]);
    driven.caches().fill_free(f64::NAN).unwrap();
    let logits = driven.step(&[(sequence, &ids[PREFILL..PREFILL + 1])]);
    assert_close(&logits, &golden.get("decode0_logits"), "decode0_logits");
}

/// `tolerance` bounds every row, `typical` all but the worst. A small error can choose another expert for a token, so
/// that one row is much further off than the format explains: row 9 of nemotron_h, in all formats of 8 bits and fewer
/// but fp8.
#[rstest]
fn narrower_caches_give_nearly_the_golden_logits(
    #[values("deepseek_v3", "llama", "nemotron_h")] model: &str,
    #[values(
        ("bf16", 0.006, 0.005),
        ("f16", 0.0008, 0.00065),
        ("fp8", 0.085, 0.08),
        ("fp8_e5m2", 0.125, 0.12),
        ("int8", 0.1, 0.0145),
        ("q8_0", 0.13, 0.013),
        ("q4_0", 0.26, 0.23),
        ("mxfp4", 0.5, 0.3),
        ("nvfp4", 0.33, 0.24)
    )]
    (dtype, tolerance, typical): (&str, f32, f32),
) {
    let conv = if model == "nemotron_h" { "conv = 'bf16'\n" } else { "" };
    let [second, worst] = errors(model, &format!("kv = '{dtype}'\n{conv}"));
    assert!(worst > 0.0 && worst < tolerance, "{worst}");
    assert!(second < typical, "{second}");
}

/// Keys that are values too are narrowed once for each, and those that several layers read once for all.
#[rstest]
fn narrower_caches_that_layers_share_give_nearly_the_golden_logits(
    #[values("gemma4", "gemma4_moe")] model: &str,
    #[values(("bf16", 0.002), ("fp8", 0.08), ("int8", 0.005))] (dtype, tolerance): (&str, f32),
) {
    let [_, worst] = errors(model, &format!("kv = '{dtype}'\n"));
    assert!(worst > 0.0 && worst < tolerance, "{worst}");
}

/// The two largest errors of the rows of a prefill, as parts of the largest logit.
fn errors(model: &str, dtypes: &str) -> [f32; 2] {
    let golden = Golden::load(model);
    let ids = golden.ids("ids");
    let dtypes = format!("{BUDGET}[dtypes]\n{dtypes}");
    let mut driven = Driven::open_with(model, &dtypes);
    let sequence = driven.admit(PREFILL);
    let logits = driven.step(&[(sequence, &ids[..PREFILL])]);
    let expected = golden.get("prefill_logits");
    let largest = expected.abs().unwrap().max_all().unwrap().to_scalar::<f32>().unwrap();
    let off = (logits - expected).unwrap().abs().unwrap().max(1).unwrap().to_vec1::<f32>().unwrap();
    let mut errors: Vec<f32> = off.into_iter().map(|error| error / largest).collect();
    errors.sort_by(f32::total_cmp);
    // A NaN sorts last, and is below no bound.
    [errors[PREFILL - 2], errors[PREFILL - 1]]
}
