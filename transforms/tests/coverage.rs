//! A key that changes what is cached is never passed over.

mod support;

use cacheplan_transforms::{Assumption, FrontendError, Model, PassContext, ReadOptions};
use rstest::rstest;

use support::ranges;

fn read(text: &str, assume: &[&str]) -> Result<Model, FrontendError> {
    let assume: Vec<Assumption> = assume.iter().map(|text| text.parse().unwrap()).collect();
    Model::read_config("config.json", text, &ReadOptions { assume, ..ReadOptions::default() })
}

/// A decoder of 8 layers with 8 heads of 16, and some keys more.
fn decoder(model_type: &str, keys: &str) -> String {
    let comma = if keys.is_empty() { "" } else { ", " };
    format!(
        r#"{{"model_type": "{model_type}", "hidden_size": 128, "num_hidden_layers": 8, "num_attention_heads": 8,
        "num_key_value_heads": 4, "head_dim": 16{comma}{keys}}}"#
    )
}

fn layers_of(model: &Model, kind: &str) -> String {
    let layers = (0u32..).zip(&model.layers).filter(|(_, layer)| layer.kind == kind).map(|(layer, _)| layer);
    ranges(&layers.collect::<Vec<_>>())
}

#[rstest]
#[case::window("llama", r#""sliding_window": 64"#, "sliding_window")]
#[case::layers("olmo2", r#""layer_types": ["full_attention", "linear_attention"]"#, "layer_types")]
#[case::chunks("granite", r#""attention_chunk_size": 64"#, "attention_chunk_size")]
#[case::values("glm4_moe", r#""v_head_dim": 8"#, "v_head_dim")]
#[case::latent("llama", r#""kv_lora_rank": 8"#, "kv_lora_rank")]
#[case::indexer(
    "deepseek_v3",
    r#""kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "index_head_dim": 8"#,
    "index_head_dim"
)]
#[case::key_heads("gemma3", r#""swa_num_key_value_heads": 2"#, "swa_num_key_value_heads")]
#[case::states("mistral", r#""linear_attn_config": {"num_heads": 2}"#, "linear_attn_config")]
#[case::both_directions("gemma3", r#""use_bidirectional_attention": true"#, "use_bidirectional_attention")]
#[case::another_window("llama", r#""interleaved_sliding_window": 64"#, "interleaved_sliding_window")]
#[case::images("llama", r#""cross_attention_layers": [3, 7]"#, "cross_attention_layers")]
#[case::sharing("qwen3", r#""kv_source_layers": [0, 0, 2, 2, 4, 4, 6, 6]"#, "kv_source_layers")]
fn a_key_that_nothing_explains_is_refused_by_name(#[case] model_type: &str, #[case] keys: &str, #[case] key: &str) {
    let error = read(&decoder(model_type, keys), &[]).unwrap_err();
    assert!(error.is_unsupported(), "{error}");
    assert!(error.to_string().contains(&format!("`{key}` of model_type `{model_type}` is")), "{error}");
    assert!(read(&decoder(model_type, keys), &[&format!("{key}=null")]).is_ok(), "{key}");
}

#[rstest]
#[case("llama", r#""sliding_window": null"#)]
#[case("llama", r#""use_mla": false, "kv_lora_rank": 0, "hybrid_layer_pattern": [], "sliding_window": -1"#)]
#[case("granite", r#""layer_types": ["full_attention", "full_attention"]"#)]
#[case("qwen2", r#""sliding_window": 64, "use_sliding_window": false"#)]
#[case("gemma4", r#""use_bidirectional_attention": "vision", "sliding_window": 4"#)]
#[case("mimo_v2_flash", r#""hybrid_layer_pattern": [0, 1, 1, 1, 1, 0, 1, 0], "attention_chunk_size": 128"#)]
fn a_key_that_says_nothing_special_is_not(#[case] model_type: &str, #[case] keys: &str) {
    read(&decoder(model_type, keys), &[]).unwrap();
}

#[rstest]
#[case::longcat("longcat_flash", r#""num_layers": 3"#, "`num_hidden_layers` of model_type `longcat_flash` is 8")]
#[case::mistral("mistral_large4", r#""kv_source_layers": [0, 0, 2, 3, 4, 5, 6, 7]"#, "`kv_source_layers`")]
#[case::samba("phi4flash", r#""mb_per_layer": 3"#, "`mb_per_layer` of model_type `phi4flash` is 3")]
#[case::ling("bailing_hybrid", r#""layer_group_size": 3, "short_conv_kernel_size": 4"#, "`num_hidden_layers`")]
#[case::dots("dots3_note", r#""use_dsa": false"#, "`use_dsa` of model_type `dots3_note` is false")]
#[case::dots_layers("dots3_note", r#""layer_types": ["full_attention"]"#, "`layer_types`")]
#[case::kda_in_both_lists("kimi_linear", &kimi(r#""kda_layers": [1, 2, 3, 4], "full_attn_layers": [4, 5, 6, 7, 8]"#), "kda_layers")]
#[case::kda_in_neither_list("kimi_linear", &kimi(r#""kda_layers": [1, 2, 3], "full_attn_layers": [5, 6, 7, 8]"#), "kda_layers")]
fn what_a_description_requires_is_checked(#[case] model_type: &str, #[case] keys: &str, #[case] expected: &str) {
    let error = read(&decoder(model_type, keys), &[]).unwrap_err();
    assert!(matches!(error, FrontendError::NotCovered { .. }), "{error}");
    assert!(error.to_string().contains(expected), "{error}");
}

fn kimi(lists: &str) -> String {
    format!(
        r#""kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16,
        "linear_attn_config": {{"num_heads": 4, "head_dim": 16, "short_conv_kernel_size": 4, {lists}}}"#
    )
}

/// The published code asks the list of delta layers.
#[rstest]
#[case(r#""kda_layers": [1, 2, 3, 5]"#)]
#[case(r#""full_attn_layers": [4, 6, 7, 8]"#)]
#[case(r#""kda_layers": [1, 2, 3, 5], "full_attn_layers": [4, 6, 7, 8]"#)]
fn layers_of_kimi_are_of_the_kind_that_either_list_says(#[case] lists: &str) {
    let model = read(&decoder("kimi_linear", &kimi(lists)), &[]).unwrap();
    assert_eq!((&*layers_of(&model, "kda"), &*layers_of(&model, "mla")), ("0-2, 4", "3, 5-7"));
}

/// An assistant drafts with the caches of the model that it assists.
#[rstest]
#[case("somebody_vl", true)]
#[case("other_assistant", false)]
fn a_wrapper_is_read_as_its_decoder_unless_it_reads_the_caches_of_another(
    #[case] wrapper: &str,
    #[case] read_as: bool,
) {
    let text = format!(r#"{{"model_type": "{wrapper}", "text_config": {}}}"#, decoder("qwen3", ""));
    match read(&text, &[]) {
        Ok(model) => assert!(read_as && model.info.model_type == "qwen3"),
        Err(error) => assert!(!read_as && error.is_unsupported(), "{error}"),
    }
}

/// As modeling code states it: `sliding_window` may be one number, or a list with nulls.
#[rstest]
#[case(r#""mb_per_layer": 2, "sliding_window": 64"#)]
#[case(r#""mb_per_layer": 2, "sliding_window": [null, 64, null, 64, null, null, null, null]"#)]
fn the_second_half_of_phi4flash_shares_one_cache(#[case] keys: &str) {
    let mut model = read(&decoder("phi4flash", keys), &[]).unwrap();
    assert_eq!(
        support::layer_kinds(&model).join(" "),
        "mamba sliding_attention mamba sliding_attention mamba attention memory shared_attention"
    );
    let resources = model.graph.collect(&PassContext::default()).unwrap().resources;
    let names: Vec<&str> = resources.iter().map(|resource| resource.name.as_str()).collect();
    let expected =
        "kv_cache_1 kv_cache_3 kv_cache_5 ssm_state_0 ssm_state_2 ssm_state_4 conv_state_0 conv_state_2 conv_state_4";
    assert_eq!(names.join(" "), expected);
    assert_eq!(resources.get("kv_cache_5").unwrap().shared_by, [7]);
}

#[test]
fn a_row_of_mimo_v2_holds_a_key_and_a_narrower_value() {
    let keys = r#""hybrid_layer_pattern": [0, 1, 1, 1, 1, 0, 1, 0], "v_head_dim": 12, "swa_head_dim": 24, "swa_v_head_dim": 8,
        "swa_num_key_value_heads": 2, "swa_num_attention_heads": 4, "sliding_window_size": 64, "sliding_window": 64"#;
    let mut model = read(&decoder("mimo_v2", keys), &[]).unwrap();
    let resources = model.graph.collect(&PassContext::default()).unwrap().resources;
    let bytes = |name: &str| resources.get(name).unwrap().handler.bytes_per_token().unwrap().0;
    assert_eq!((bytes("kv_cache_0"), bytes("kv_cache_1")), (4 * (16 + 12) * 2, 2 * (24 + 8) * 2));
}

#[test]
fn a_latent_of_longcat_flash_is_kept_twice_per_layer() {
    let keys =
        r#""num_layers": 8, "kv_lora_rank": 32, "q_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8"#;
    assert_eq!(read(&decoder("longcat_flash", keys), &[]).unwrap().info.layers, 16);
}

/// The list of layers of Step-3.5 goes on with its draft layers.
#[test]
fn a_list_of_layers_may_go_on_with_draft_layers() {
    let kinds = r#""layer_types": ["full_attention", "sliding_attention", "full_attention", "sliding_attention",
        "full_attention", "sliding_attention", "full_attention", "sliding_attention", "full_attention"], "sliding_window": 4"#;
    let model = read(&decoder("step3p5", &format!(r#"{kinds}, "num_nextn_predict_layers": 1"#)), &[]).unwrap();
    assert_eq!(layers_of(&model, "sliding_attention"), "1, 3, 5, 7");
    let error = read(&decoder("step3p5", kinds), &[]).unwrap_err();
    assert!(error.to_string().contains("it has 9 entries, the model has 8 layers"), "{error}");
}

/// MusicFlamingo states the sizes of its rotary time embedding beside its decoder.
#[test]
fn sizes_beside_a_decoder_are_not_those_of_the_decoder() {
    let inner = decoder("qwen2", "");
    let outer =
        format!(r#"{{"model_type": "musicflamingo", "head_dim": 1280, "sliding_window": 9, "text_config": {inner}}}"#);
    let inner = inner.replace(r#""head_dim": 16"#, r#""head_dim": null"#);
    let outer = outer.replace(r#""head_dim": 16"#, r#""head_dim": null"#);
    let dims = |text: &str| {
        let mut model = read(text, &[]).unwrap();
        let resources = model.graph.collect(&PassContext::default()).unwrap().resources;
        resources.iter().map(|resource| resource.handler.clone()).collect::<Vec<_>>()
    };
    assert_eq!(dims(&outer), dims(&inner));
}

/// Next season's keys are in no list: their words tell that they could mean caches.
#[rstest]
#[case::loops("llama", r#""num_loops": 3"#, "num_loops")]
#[case::sources("qwen3", r#""kv_source_layer_ids": [0, 4]"#, "kv_source_layer_ids")]
#[case::kinds(
    "mistral",
    r#""whatever": ["sliding", "full", "full", "full", "full", "full", "full", "full"]"#,
    "whatever"
)]
#[case::nested("qwen3", r#""other_setting": {"layer_window": 64}"#, "other_setting")]
fn a_key_that_no_class_has_and_that_could_mean_caches_is_refused(
    #[case] model_type: &str,
    #[case] keys: &str,
    #[case] key: &str,
) {
    let error = read(&decoder(model_type, keys), &[]).unwrap_err();
    assert!(error.to_string().contains(&format!("`{key}` of model_type `{model_type}` is")), "{error}");
    assert!(read(&decoder(model_type, keys), &[&format!("{key}=null")]).is_ok());
    assert!(read(&decoder(model_type, keys), &[&format!("{key}=2")]).is_err());
}

/// What next season's files could say, of caches and of other things.
#[rstest]
#[case::of_caches(
    r#"{"num_recurrence_steps": 4, "universal_passes": 3, "h_cycles": 2, "layer_reuse_map": [0, 0, 2, 2],
    "kv_donor_layers": [0, 4], "num_kv_shared_layers": 4, "cross_layer_sharing_factor": 2, "cla_share_factor": 2, "attention_span": 4096,
    "lookback_size": 1024, "local_block_size": 64, "num_sink_slots": 4, "seq_downsample": 2, "layer_schedule":
    ["a", "b", "a", "b", "a", "b", "a", "b"], "mixing": "linear", "gdn_head_dim": 64, "hyena_order": 2, "state_size": 16,
    "num_memory_slots": 8, "engram_layers": [1], "ring_rows": 8, "summary_stride": 8, "latent_kv_dim": 64,
    "full_attention_every": 4, "global_layers": [0, 7], "attn_layer_map": {"0": "x"}, "shortconv_width": 4,
    "numLoops": 3, "kv_token_ratio": 2, "attention_schedule": "abab", "deep": {"inner": {"swa_size": 64}}}"#,
    true
)]
#[case::of_other_things(
    r#"{"attention_softcap": 50.0, "qk_norm_eps": 1e-6, "router_z_loss": 0.1, "shared_expert_gate_bias": true,
    "mlp_gate_rank": 16, "residual_gain": 0.7, "logit_temperature": 2.0, "embedding_multiplier": 12.0,
    "use_fused_cross_entropy": true, "rope_scaling_base": 5e5, "weight_decay": 0.1, "optimizer": "muon",
    "lr_scheduler_type": "linear", "attention_output_gate": true, "chat_style": "concise", "expert_capacity_factor": 1.25,
    "ffn_mult": 2.67, "license": "mit", "softmax_scale": 0.1, "logit_softcap": 30.0, "training_steps": 1000,
    "global_batch_size": 1024, "tokenizer_class": "Fast", "layer_scales": [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8]}"#,
    false
)]
fn invented_keys_are_refused_where_they_could_mean_caches_and_noted_otherwise(
    #[case] invented: &str,
    #[case] of_caches: bool,
) {
    let invented: serde_json::Map<String, serde_json::Value> = serde_json::from_str(invented).unwrap();
    assert!(invented.len() > 20);
    for (key, value) in &invented {
        let text = decoder("llama", &format!("\"{key}\": {value}"));
        let passed_over = read(&text, &[&format!("{key}=null")]).unwrap();
        assert!(passed_over.facts.iter().any(|fact| fact.assumed && fact.what.contains(key.as_str())), "{key}");
        match read(&text, &[]) {
            Ok(model) => {
                let noted = model.facts.iter().any(|fact| fact.what == "not read" && fact.value == *key);
                assert!(!of_caches && noted, "{key} is not refused");
            }
            Err(error) => assert!(of_caches && error.to_string().contains(key.as_str()), "{key}: {error}"),
        }
    }
}

#[test]
fn other_keys_that_no_class_has_are_listed() {
    let model =
        read(&decoder("llama", r#""num_loops": 1, "colour": "red", "num_experts_in_shared_pool": 2"#), &[]).unwrap();
    let listed = model.facts.iter().find(|fact| fact.what == "not read").unwrap();
    assert_eq!(listed.value, "colour, num_experts_in_shared_pool");
}

/// A near type would give other caches, unless it reads all that could mean some.
#[rstest]
#[case("", " (near: qwen, qwen2, qwen3)")]
#[case(r#""kv_source_layer_ids": [0, 4]"#, "")]
#[case(r#""interleaved_sliding_window": 64"#, "")]
fn only_near_types_that_read_every_key_are_proposed(#[case] keys: &str, #[case] near: &str) {
    let error = read(&decoder("qwen5", keys), &[]).unwrap_err().to_string();
    assert!(error.contains(&format!("unknown model_type `qwen5`{near}; add")), "{error}");
}

#[test]
fn published_configs_are_read_without_assumptions() {
    let names = support::names("published");
    assert!(names.len() > 50);
    for name in names {
        let (_, collected) = support::collected(&format!("published/{name}"));
        assert!(!collected.resources.is_empty(), "{name}");
    }
}
