//! Models that engines have and transformers has not: what a token and a sequence take, and the weights, follow by hand from the
//! engine's classes.

mod support;

use cacheplan_handlers::{Growth, Kind};
use cacheplan_transforms::{Model, PassContext, ReadOptions, Resources};
use rstest::rstest;
use serde_json::{Value, json};

use support::{bytes_per_token, read, state_bytes};

fn parameters(model: &Model) -> Option<u64> {
    model.info.weights.map(|weights| weights.bytes / model.info.dtype.row_bytes(1).unwrap())
}

fn resources(model: &mut Model) -> Resources {
    model.graph.collect(&PassContext::default()).unwrap().resources
}

/// Layers, and how far they look back.
fn growths(resources: &Resources, kind: &Kind) -> Vec<(u32, Option<u32>)> {
    let paged = |growth| if let Growth::Paged { window, .. } = growth { window } else { None };
    resources.of_kind(kind).map(|found| (found.layer.unwrap(), paged(found.handler.growth()))).collect()
}

/// Bytes of a token, of the matrices of a sequence, of its convolutions and of its other states, and the weights where they are
/// told.
#[rstest]
#[case::gated_deltas(
    "alice_ai_80b",
    12 * 2 * 2 * 256 * 2,
    [36 * 32 * 128 * 128 * 4, 36 * 3 * 32 * 128 * 3 * 2, 0],
    // Queries, their gate, keys, values, output and norms; then queries to output of KDA, its gates, decays and norms; then
    // experts, the shared one and what routes, and what mixes residuals.
    Some(
        12 * (2048 * (3 * 16 + 2 * 2) * 256 + 2048 + 2 * 256)
            + 36 * (4 * 2048 * 4096 + 3 * 4096 * 4 + 2 * 128 * (2048 + 4096) + 32 * 2048 + 4096 + 32 + 128 + 2048)
            + 48 * (513 * 3 * 2048 * 512 + 512 * 2048 + 2 * 2048 + 4 * 2048)
            + 2 * 129_024 * 2048 + 2048,
    )
)]
#[case::period_of_eight(
    "plamo3_8b",
    32 * 2 * 4 * 128 * 2,
    [0; 3],
    Some(32 * (4096 * (2 * 32 + 2 * 4) * 128 + 3 * 4096 * 13_312 + 4 * 4096 + 2 * 128) + 107_520 * 4096 + 4096)
)]
#[case::biases_of_outputs(
    "telechat2_7b",
    30 * 2 * 32 * 128 * 2,
    [0; 3],
    Some(30 * (4 * 4096 * 4096 + 3 * 4096 * 12_288 + 4 * 4096) + 2 * 131_072 * 4096 + 4096)
)]
#[case::two_shifts("rwkv6_world_1_6b", 0, [24 * 32 * 64 * 64 * 4, 0, 24 * 2 * 2048 * 2], None)]
#[case::noise(
    "motif_2_12_7b",
    40 * 2 * 16 * 128 * 2,
    [0; 3],
    Some(
        40 * (4096 * (40 + 2 * 16 + 2 * 32) * 128 + 3 * 4096 * 16_384 + 2 * 4096 + 6 * 128 + 4)
            + 2 * 219_520 * 4096 + 4096,
    )
)]
#[case::narrow_values("openpangu_pro_moe_v2", 50 * 8 * (192 + 128) * 2, [0; 3], None)]
fn a_reconstructed_model_takes(
    #[case] file: &str,
    #[case] per_token: u64,
    #[case] states: [u64; 3],
    #[case] weights: Option<u64>,
) {
    let mut model = read(&format!("reconstructed/{file}.json"));
    let resources = resources(&mut model);
    let found = [Kind::Ssm, Kind::CausalConv, Kind::State].map(|kind| state_bytes(&resources, &kind));
    assert_eq!((bytes_per_token(&resources), found), (per_token, states));
    assert_eq!(parameters(&model), weights, "{:?}", model.weights_unknown);
}

#[test]
fn the_first_layer_of_a_period_of_motif_3_sees_everything_and_others_129_tokens() {
    let mut model = read("published/motif_3.json");
    let found = growths(&resources(&mut model), &Kind::MlaPaged);
    let expected: Vec<_> = (0..53).map(|layer| (layer, (layer % 4 != 0).then_some(129))).collect();
    assert_eq!(found, expected);
}

/// Of a layer's pair the first number does not count the token itself; -1 is no window.
#[test]
fn a_window_is_the_first_of_a_layers_pair() {
    let config = json!({
        "model_type": "domyn_edge", "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 32, "head_dim": 16,
        "window_sizes": [[7, 0], [-1, -1], [0, 0]],
    });
    let mut model = Model::read_config("config.json", &config.to_string(), &ReadOptions::default()).unwrap();
    assert_eq!(growths(&resources(&mut model), &Kind::KvPaged), [(0, Some(8)), (1, None), (2, None)]);
}

#[test]
fn the_last_layer_of_a_period_of_plamo_3_sees_everything() {
    let expected: Vec<_> = (0..32).map(|layer| (layer, (layer % 8 != 7).then_some(2048))).collect();
    let mut model = read("reconstructed/plamo3_8b.json");
    assert_eq!(growths(&resources(&mut model), &Kind::KvPaged), expected);
    // Files of another date list the windows.
    let mut config: Value =
        serde_json::from_str(&std::fs::read_to_string(support::fixture("reconstructed/plamo3_8b.json")).unwrap())
            .unwrap();
    let keys = config.as_object_mut().unwrap();
    keys.remove("window_size");
    keys.insert(
        "sliding_window".into(),
        (0..32).map(|layer| (layer % 8 != 7).then_some(2048)).collect::<Vec<_>>().into(),
    );
    let mut listed = Model::read_config("c", &config.to_string(), &ReadOptions::default()).unwrap();
    assert_eq!(growths(&resources(&mut listed), &Kind::KvPaged), expected);
}

#[test]
fn a_recurrence_of_rwkv_7_keeps_a_matrix_in_float32_and_the_last_token_twice() {
    let mut model = read("published/rwkv7_world3_1_5b.json");
    let resources = resources(&mut model);
    assert_eq!(state_bytes(&resources, &Kind::State), 24 * 2 * 2048 * 2);
    assert_eq!(resources.iter().count(), 24 * 3);
    let (model, collected) = support::collected("published/rwkv7_world3_1_5b.json");
    let inspected = model.inspection(&collected).to_string();
    let shifts = inspected.lines().find(|line| line.trim_start().starts_with("state ")).unwrap();
    assert_eq!(shifts.split_whitespace().take(3).collect::<Vec<_>>(), ["state", "48", "0-23"]);
}

/// A decoder of two layers of 64 channels with 4 heads and feed-forward blocks of 128, and some keys more: bytes of a token, and
/// weights besides 32 embeddings.
#[rstest]
#[case::experts_beside_a_dense_block(
    json!({
        "model_type": "arctic", "num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 2,
        "moe_layer_frequency": 1, "use_residual": true, "parallel_attn_mlp_res": true,
    }),
    2 * 2 * 2 * 16 * 2,
    Some(2 * (64 * 64 * 2 + 64 * 32 * 2 + 4 * 64 + 4 * 3 * 64 * 128 + 3 * 64 * 64 + 3 * 64) + 64)
)]
#[case::baichuan(json!({"model_type": "baichuan"}), 2 * 2 * 64 * 2, Some(2 * (4 * 64 * 64 + 3 * 64 * 128 + 2 * 64) + 64))]
#[case::exaone(
    json!({"model_type": "exaone", "num_hidden_layers": null, "num_layers": 2, "num_key_value_heads": 2, "head_dim": 20}),
    2 * 2 * 2 * 20 * 2,
    Some(2 * (64 * (2 * 4 + 2 * 2) * 20 + 3 * 64 * 128 + 2 * 64) + 64)
)]
#[case::a_head_of_its_own_in_each_layer(
    json!({
        "model_type": "domyn_edge", "num_key_value_heads": 2, "window_sizes": [[7, 0], [-1, -1]],
        "position_layers": ["rope", "nope"], "per_layer_config": {"0": {"head_dim": 16}, "1": {"head_dim": 32}},
    }),
    2 * 2 * (16 + 32) * 2,
    Some(64 * (16 + 32) * (2 * 4 + 2 * 2) + 16 + 32 + 2 * (3 * 64 * 128 + 4 * 64) + 64)
)]
#[case::experts_between_norms(
    json!({"model_type": "grok-1", "num_key_value_heads": 2, "num_experts": 4, "num_experts_per_tok": 2}),
    2 * 2 * 2 * 16 * 2,
    Some(2 * (64 * 64 * 2 + 64 * 32 * 2 + 4 * 64 + 4 * 3 * 64 * 128 + 4 * 64) + 64)
)]
#[case::a_gate_in_place_of_positions(
    json!({
        "model_type": "jais", "n_embd": 64, "n_head": 4, "n_layer": 2, "n_inner": 128, "n_positions": 16,
        "activation_function": "swiglu", "position_embedding_type": "alibi",
    }),
    2 * 2 * 64 * 2,
    Some(2 * (4 * 64 * 64 + 4 * 64 + 3 * 64 * 128 + 2 * 128 + 64 + 4 * 64) + 2 * 64)
)]
#[case::text_of_speech(
    json!({"model_type": "kimi_audio", "num_key_value_heads": 2, "kimia_mimo_layers": 6, "kimia_mimo_transformer_from_layer_index": 1}),
    2 * 2 * 2 * 16 * 2,
    None
)]
#[case::blocks_of_attention(
    json!({
        "model_type": "phi3small", "num_key_value_heads": 2, "ff_intermediate_size": 128, "dense_attention_every_n_layers": 2,
        "blocksparse_block_size": 64, "blocksparse_num_local_blocks": 16, "blocksparse_vert_stride": 8,
    }),
    2 * 2 * 2 * 16 * 2,
    Some(2 * (64 * 64 * 2 + 64 * 32 * 2 + 64 + (4 + 2 * 2) * 16 + 3 * 64 * 128 + 64 + 2 * 128 + 4 * 64) + 2 * 64)
)]
#[case::sinks(
    json!({
        "model_type": "pangu_v2_moe", "num_key_value_heads": 2, "qk_nope_dim": 16, "qk_rope_dim": 8, "v_channels": 16,
        "param_sink_number": 128, "param_sink_with_value": true,
    }),
    2 * 2 * (24 + 16) * 2,
    None
)]
#[case::orion(
    json!({"model_type": "orion", "num_key_value_heads": 4}),
    2 * 2 * 64 * 2,
    Some(2 * (4 * 64 * 64 + 3 * 64 * 128 + 4 * 64) + 2 * 64)
)]
#[case::chosen_blocks(
    json!({"model_type": "minicpm", "num_key_value_heads": 2, "tie_word_embeddings": false, "sparse_config": {"kernel_size": 32, "topk": 64}}),
    2 * 2 * 2 * 16 * 2,
    Some(2 * (64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 128 + 2 * 64) + 64)
)]
#[case::some_biases(
    json!({"model_type": "PanguEmbedded", "num_key_value_heads": 2, "bias": true, "qkv_bias": false}),
    2 * 2 * 2 * 16 * 2,
    Some(2 * (64 * 64 * 2 + 64 * 32 * 2 + 64 + 3 * 64 * 128 + 2 * 64) + 64)
)]
#[case::dense_first(
    json!({
        "model_type": "param2moe", "num_key_value_heads": 2, "use_qk_norm": true, "num_experts": 4, "num_experts_per_tok": 2,
        "moe_intermediate_size": 16, "num_shared_experts": 2, "moe_shared_expert_intermediate_size": 32,
    }),
    2 * 2 * 2 * 16 * 2,
    Some(2 * (64 * 64 * 2 + 64 * 32 * 2 + 2 * 16 + 2 * 64) + 3 * 64 * 128 + 3 * 64 * (4 * 16 + 32) + 4 * 64 + 64)
)]
#[case::one_group(
    json!({"model_type": "step1"}),
    2 * 2 * 16 * 2,
    Some(2 * (64 * 64 * 2 + 64 * 16 * 2 + 3 * 64 * 128 + 2 * 64) + 64)
)]
#[case::groups(
    json!({"model_type": "step1", "num_attention_groups": 2}),
    2 * 2 * 2 * 16 * 2,
    Some(2 * (64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 128 + 2 * 64) + 64)
)]
#[case::xverse(json!({"model_type": "xverse"}), 2 * 2 * 64 * 2, Some(2 * (4 * 64 * 64 + 3 * 64 * 128 + 2 * 64) + 64))]
#[case::block_diffusion(
    json!({"model_type": "sdar", "num_key_value_heads": 2, "head_dim": 32}),
    2 * 2 * 2 * 32 * 2,
    Some(2 * (64 * 32 * (2 * 4 + 2 * 2) + 2 * 32 + 3 * 64 * 128 + 2 * 64) + 64)
)]
#[case::experts_of_block_diffusion(
    json!({
        "model_type": "llada2_moe", "num_key_value_heads": 2, "num_experts": 4, "moe_intermediate_size": 16,
        "num_shared_experts": 1, "first_k_dense_replace": 1,
    }),
    2 * 2 * 2 * 16 * 2,
    Some(2 * (64 * 64 * 2 + 64 * 32 * 2 + 2 * 16 + 2 * 64) + 3 * 64 * 128 + 3 * 64 * (4 * 16 + 16) + 4 * 64 + 64)
)]
#[case::images(json!({"model_type": "dots_ocr", "num_key_value_heads": 2, "use_sliding_window": false, "sliding_window": 8}), 2 * 2 * 2 * 16 * 2, None)]
#[case::keys_of_all_heads(
    json!({"model_type": "deepseek_v2", "use_mla": false, "kv_lora_rank": null, "qk_nope_head_dim": 0, "v_head_dim": 0}),
    2 * 2 * 64 * 2,
    Some(2 * (4 * 64 * 64 + 3 * 64 * 128 + 2 * 64) + 64)
)]
fn a_decoder_keeps_what_its_engine_keeps(#[case] changes: Value, #[case] per_token: u64, #[case] weights: Option<u64>) {
    let mut config = json!({
        "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 32,
        "tie_word_embeddings": false,
    });
    for (key, value) in changes.as_object().unwrap() {
        config[key] = value.clone();
    }
    let mut model = Model::read_config("config.json", &config.to_string(), &ReadOptions::default()).unwrap();
    assert_eq!(bytes_per_token(&resources(&mut model)), per_token);
    assert_eq!(parameters(&model), weights.map(|besides| besides + 2 * 32 * 64), "{:?}", model.weights_unknown);
}

#[rstest]
#[case::windows_by_one_engine(json!({"model_type": "solar", "sliding_window": 2047}), "`sliding_window` of model_type `solar`")]
#[case::both_directions(json!({"model_type": "PanguEmbedded", "is_causal": false}), "`is_causal`")]
#[case::some_attention(json!({"model_type": "rwkv7", "head_dim": 16, "attn": {"layers": [1], "num_heads": 4}}), "`attn`")]
#[case::latents_that_are_not_used(
    json!({"model_type": "deepseek_v2", "use_mla": false, "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8}),
    "`use_mla`"
)]
#[case::windows_over_heads(
    json!({"model_type": "Motif", "use_sliding_window": true, "sliding_window": 8, "num_noise_heads": 2}),
    "`use_sliding_window`"
)]
#[case::another_order(
    json!({"model_type": "Motif", "kv_lora_rank": 32, "sliding_window_pattern": "all", "use_sliding_window": true}),
    "`sliding_window_pattern`"
)]
#[case::one_convolution(
    json!({
        "model_type": "alice_ai", "number_of_conv_states": 1, "linear_num_key_heads": 4, "linear_num_value_heads": 4,
        "linear_key_head_dim": 16, "linear_value_head_dim": 16,
    }),
    "`number_of_conv_states`"
)]
fn what_nobody_described_of_them_is_refused_by_name(#[case] changes: Value, #[case] expected: &str) {
    let mut config = json!({"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4});
    for (key, value) in changes.as_object().unwrap() {
        config[key] = value.clone();
    }
    let refused = Model::read_config("config.json", &config.to_string(), &ReadOptions::default()).unwrap_err();
    assert!(refused.is_unsupported() && refused.to_string().contains(expected), "{refused}");
}
