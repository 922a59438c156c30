//! Caches that several layers have in common, that stand for several tokens, or that layers have for each of their runs.

mod support;

use cacheplan_handlers::{DType, Growth, Kind, ResourceHandler};
use cacheplan_transforms::{Model, PassContext, ReadOptions, Resource, Resources};
use rstest::rstest;
use serde_json::{Value, json};

use support::read;

fn resources(config: &Value) -> Resources {
    let text = config.to_string();
    let mut model = Model::read_config("config.json", &text, &ReadOptions::default()).unwrap();
    model.graph.collect(&PassContext::default()).unwrap().resources
}

fn refusal(config: &Value) -> String {
    Model::read_config("config.json", &config.to_string(), &ReadOptions::default()).unwrap_err().to_string()
}

/// The config with some keys changed; a null takes one away.
fn with(mut config: Value, changes: Value) -> Value {
    let (Value::Object(keys), Value::Object(changes)) = (&mut config, changes) else { panic!("no objects") };
    for (key, value) in changes {
        match value {
            Value::Null => drop(keys.remove(&key)),
            value => drop(keys.insert(key, value)),
        }
    }
    config
}

/// Six layers with sources of three ratios, and a draft layer at the end of the list.
fn v41() -> Value {
    json!({
        "model_type": "deepseek_v41", "hidden_size": 64, "num_hidden_layers": 6, "num_attention_heads": 4,
        "num_nextn_predict_layers": 1, "head_dim": 32, "index_head_dim": 64, "sliding_window": 8,
        "kv_source_layer_ids": [1, 4], "index_source_layer_ids": [1, 3, 4],
        "compress_ratios": [0, 3, 3, 3, 1, 1, 0],
    })
}

fn of_kind<'a>(resources: &'a Resources, kind: &'a Kind) -> Vec<&'a Resource> {
    resources.of_kind(kind).collect()
}

fn stride(resource: &Resource) -> u32 {
    match resource.handler.growth() {
        Growth::Paged { stride, .. } => stride,
        _ => 0,
    }
}

#[test]
fn deepseek_v4_1_keeps_890_bytes_of_all_tokens_owned_by_four_layers() {
    let mut model = read("configs/deepseek-ai__DeepSeek-V4.1-Flash.json");
    let resources = model.graph.collect(&PassContext::default()).unwrap().resources;
    let owners = |kind: &Kind| -> Vec<(u32, u32)> {
        resources.of_kind(kind).map(|resource| (resource.layer.unwrap(), stride(resource))).collect()
    };
    let four = [(2, 2), (8, 2), (14, 2), (20, 1)];
    assert_eq!(owners(&Kind::CompressedLatent), four);
    assert_eq!(owners(&Kind::IndexKey), four);
    let global = |kind: &Kind| -> f64 {
        let each = resources.of_kind(kind).map(|resource| resource.handler.bytes_per_token().unwrap());
        each.map(|(bytes, tokens)| bytes as f64 / tokens as f64).sum()
    };
    assert_eq!(global(&Kind::CompressedLatent), 2.5 * 288.0);
    assert_eq!(global(&Kind::IndexKey), 2.5 * 68.0);
    assert_eq!(global(&Kind::CompressedLatent) + global(&Kind::IndexKey), 890.0);
    let latents = of_kind(&resources, &Kind::CompressedLatent);
    assert_eq!(latents[3].shared_by, (21..40).collect::<Vec<u32>>());
    assert_eq!(of_kind(&resources, &Kind::IndexKey)[3].shared_by, [24, 28, 32, 36]);
    let windows = of_kind(&resources, &Kind::MlaPaged);
    assert_eq!(windows.len(), 40);
    assert!(windows.iter().all(|window| {
        window.handler.unit_bytes() == 528 && window.handler.growth() == Growth::Paged { stride: 1, window: Some(128) }
    }));
    let rings = of_kind(&resources, &Kind::Ring);
    assert_eq!(rings.iter().map(|ring| ring.layer.unwrap()).collect::<Vec<_>>(), [2, 8, 14]);
    assert!(rings.iter().all(|ring| ring.handler.unit_bytes() == 8 * 2 * 512 * 4));
}

#[test]
fn sources_ratios_and_widths_are_those_of_the_config() {
    let resources = resources(&v41());
    let latents = of_kind(&resources, &Kind::CompressedLatent);
    let seen: Vec<_> = latents.iter().map(|of| (of.layer.unwrap(), stride(of), of.shared_by.clone())).collect();
    assert_eq!(seen, [(1, 3, vec![2, 3]), (4, 1, vec![5])]);
    assert_eq!(latents[0].handler.unit_bytes(), 2 * 9);
    let keys = of_kind(&resources, &Kind::IndexKey);
    let seen: Vec<_> = keys.iter().map(|of| (of.layer.unwrap(), stride(of), of.shared_by.clone())).collect();
    assert_eq!(seen, [(1, 3, vec![3]), (4, 1, vec![])]);
    assert_eq!(keys[0].handler.unit_bytes(), 2 * 17);
    assert_eq!(of_kind(&resources, &Kind::Ring).len(), 1);
}

#[test]
fn a_budget_s_dtype_is_that_of_latents_and_not_of_the_keys_that_choose() {
    let mut model = Model::read_config("c", &v41().to_string(), &ReadOptions::default()).unwrap();
    let mut context = PassContext::default();
    context.dtypes.kv = Some(DType::Bf16);
    let resources = model.graph.collect(&context).unwrap().resources;
    let dtype = |kind: &Kind| resources.of_kind(kind).next().unwrap().handler.dtype();
    assert_eq!([Kind::CompressedLatent, Kind::MlaPaged].map(|kind| dtype(&kind)), [DType::Bf16; 2]);
    assert_eq!([Kind::IndexKey, Kind::Ring].map(|kind| dtype(&kind)), [DType::Mxfp4, DType::F32]);
}

#[rstest]
#[case::source_beyond_the_layers(json!({"kv_source_layer_ids": [1, 6]}), "`kv_source_layer_ids` is 6; layers from 0 to 5")]
#[case::index_source_beyond_them(json!({"index_source_layer_ids": [9]}), "`index_source_layer_ids` is 9; layers from 0 to 5")]
#[case::source_that_is_no_layer(json!({"kv_source_layer_ids": [1, -4]}), "`kv_source_layer_ids` is -4")]
#[case::source_of_ratio_0(json!({"kv_source_layer_ids": [0, 1, 4]}), "a layer of ratio 0 makes no latents")]
#[case::no_sources(json!({"kv_source_layer_ids": []}), "nothing says which layers make the latents")]
#[case::nobody_chooses(json!({"index_source_layer_ids": null}), "nothing says which layers make the latents")]
#[case::read_before_it_is_made(json!({"kv_source_layer_ids": [4]}), "latents.shares_layer")]
#[case::read_of_another_ratio(json!({"compress_ratios": [0, 3, 2, 3, 1, 1, 0]}), "layer 1, whose `latents` it reads, has one for 3 tokens")]
#[case::keys_that_nobody_keeps(json!({"index_source_layer_ids": [3, 4]}), "layer 3 reads its `index_keys`, of which that layer has none")]
#[case::too_few_ratios(json!({"compress_ratios": [0, 3, 3]}), "it has no entry for layer 3")]
#[case::one_ratio(json!({"compress_ratios": null}), "compress_ratios")]
fn sources_that_cannot_be_are_refused_by_name(#[case] changes: Value, #[case] expected: &str) {
    let message = refusal(&with(v41(), changes));
    assert!(message.contains(expected), "{message}");
}

fn looped(model_type: &str) -> Value {
    json!({
        "model_type": model_type, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 32,
    })
}

fn names(resources: &Resources) -> Vec<&str> {
    resources.iter().map(|resource| resource.name.as_str()).collect()
}

#[test]
fn a_looped_model_has_keys_of_each_run_and_weights_once() {
    let read = |loops: u64| {
        let config = with(looped("nanbeige"), json!({"num_loops": loops}));
        Model::read_config("c", &config.to_string(), &ReadOptions::default()).unwrap()
    };
    let (mut twice, once) = (read(2), read(1));
    assert_eq!(twice.info.weights, once.info.weights);
    assert_eq!(
        once.layers,
        Model::read_config("c", &looped("llama").to_string(), &ReadOptions::default())
            .unwrap()
            .layers
            .iter()
            .map(|layer| cacheplan_transforms::layers::LayerSpec { kind: "looped".into(), ..layer.clone() })
            .collect::<Vec<_>>()
    );
    let collected = twice.graph.collect(&PassContext::default()).unwrap().resources;
    let expected = ["kv_cache_0", "kv_cache_run1_0", "kv_cache_1", "kv_cache_run1_1", "kv_cache_2", "kv_cache_run1_2"];
    assert_eq!(names(&collected), expected);
}

#[test]
fn later_runs_of_a_loop_coder_have_a_window() {
    let config = with(looped("iquestloopcoder"), json!({"loop_num": 3, "loop_window_size": 16}));
    let resources = resources(&config);
    let windows: Vec<_> = resources.iter().take(3).map(|resource| resource.handler.growth()).collect();
    let window = Growth::Paged { stride: 1, window: Some(16) };
    assert_eq!(windows, [Growth::Paged { stride: 1, window: None }, window, window]);
    assert_eq!(resources.len(), 9);
}

fn dory() -> Value {
    let kinds = ["sliding_attention", "mlp", "full_attention", "mlp", "full_attention", "mlp"];
    json!({
        "model_type": "dory", "hidden_size": 64, "num_hidden_layers": 6, "num_attention_heads": 4, "head_dim": 16,
        "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 32, "sliding_window": 8, "layer_types": kinds,
        "n_input_layers": 2, "n_output_layers": 2, "n_recurrent_loops": 3,
    })
}

#[rstest]
#[case::of_each_loop(json!({}), 1 + 3 + 1)]
#[case::of_each_loop_by_name(json!({"recurrent_kv_cache_mode": "per_loop", "n_recurrent_layers": 2}), 1 + 3 + 1)]
#[case::of_the_last_loop(json!({"recurrent_kv_cache_mode": "last_loop"}), 3)]
#[case::all_of_them_loop(json!({"n_input_layers": 0, "n_output_layers": 0}), 9)]
#[case::none_loops(json!({"n_recurrent_loops": 1}), 3)]
fn a_dory_model_keeps_keys_of_each_loop_or_of_the_last(#[case] changes: Value, #[case] caches: usize) {
    assert_eq!(resources(&with(dory(), changes)).len(), caches);
}

#[rstest]
#[case::no_loops(with(looped("nanbeige"), json!({"num_loops": 0})), "`num_loops` is 0; at least 1 was expected")]
#[case::countless_loops(with(looped("nanbeige"), json!({"num_loops": 100_000})), "at most 4096 runs of layers")]
#[case::loops_of_a_llama(with(looped("llama"), json!({"num_loops": 2})), "num_loops")]
#[case::no_loops_of_a_coder(with(looped("iquestloopcoder"), json!({"loop_num": 0})), "loop_num")]
#[case::no_recurrence(with(dory(), json!({"n_recurrent_loops": 0})), "n_recurrent_loops")]
#[case::layers_that_are_none(with(dory(), json!({"n_recurrent_layers": 3})), "input, recurrent and output layers")]
#[case::another_mode(with(dory(), json!({"recurrent_kv_cache_mode": "first_loop"})), "`recurrent_kv_cache_mode`")]
#[case::too_few_kinds(with(dory(), json!({"layer_types": ["mlp"]})), "it has 1 entries, the model has 6 layers")]
fn loops_that_cannot_be_are_refused_by_name(#[case] config: Value, #[case] expected: &str) {
    let message = refusal(&config);
    assert!(message.contains(expected), "{message}");
}

/// A linear layer, one that chooses for itself, and one that uses its choice.
fn glm5_next() -> Value {
    json!({
        "model_type": "glm5_next_text", "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
        "q_lora_rank": 32, "kv_lora_rank": 48, "qk_nope_head_dim": 16, "qk_rope_head_dim": 0, "v_head_dim": 16,
        "linear_head_dim": 16, "linear_num_heads": 4, "linear_conv_kernel_dim": 4, "index_head_dim": 32,
        "index_n_heads": 2, "index_kpool": 4, "intermediate_size": 128, "vocab_size": 64,
        "layer_types": ["linear_attention", "indexed_attention", "full_attention"],
        "indexer_types": ["full", "full", "shared"],
    })
}

#[test]
fn pooled_index_keys_have_a_tail_in_layers_that_choose_for_themselves() {
    let resources = resources(&glm5_next());
    let latents = of_kind(&resources, &Kind::MlaPaged);
    assert_eq!(latents.iter().map(|latent| latent.layer.unwrap()).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(latents[0].handler.unit_bytes(), 96);
    let keys = of_kind(&resources, &Kind::IndexKey);
    assert_eq!(keys.iter().map(|key| (key.layer.unwrap(), stride(key))).collect::<Vec<_>>(), [(1, 4)]);
    let tails = of_kind(&resources, &Kind::Ring);
    assert_eq!(tails.iter().map(|tail| tail.handler.unit_bytes()).collect::<Vec<_>>(), [4 * 2 * 32 * 2]);
    let whole = resources_without_pools();
    assert!(whole.of_kind(&Kind::Ring).next().is_none());
    assert!(whole.of_kind(&Kind::IndexKey).all(|key| stride(key) == 1));
}

fn resources_without_pools() -> Resources {
    resources(&with(glm5_next(), json!({"index_kpool": 1})))
}

#[rstest]
#[case::no_pool(json!({"index_kpool": 0}), "index_kpool")]
#[case::too_few_indexers(json!({"indexer_types": ["full"]}), "it has no entry for layer 1")]
fn pools_that_cannot_be_are_refused_by_name(#[case] changes: Value, #[case] expected: &str) {
    let message = refusal(&with(glm5_next(), changes));
    assert!(message.contains(expected), "{message}");
}

fn qwen4_exp() -> Value {
    json!({
        "model_type": "qwen4_exp_text", "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
        "linear_key_head_dim": 16, "linear_value_head_dim": 16, "linear_conv_kernel_dim": 4, "num_experts": 4,
        "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16, "vocab_size": 64, "hc_count": 2,
        "hc_lowrank": 8, "indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 32, "indexer_budget": 16,
        "indexer_compress_ratio": 4, "ple_layer_ids": [1, 3], "ple_conv_kernel_size": 4, "ngram_size": 3,
        "heads_per_ngram": 2, "ple_embed_dim": 64,
    })
}

#[test]
fn n_gram_layers_keep_a_dilated_convolution_and_token_ids_that_ranks_do_not_divide() {
    let resources = resources(&qwen4_exp());
    let conv = resources.get("ngram_conv_0").unwrap();
    assert_eq!(conv.handler.shape().iter().map(|dim| dim.size).collect::<Vec<_>>(), [128, 9]);
    let context = resources.get("ngram_context_2").unwrap();
    assert_eq!(context.handler.unit_bytes(), 2 * 4);
    assert!(resources.get("ngram_conv_1").is_none());
    let whole =
        |handler: &ResourceHandler| handler.shape().iter().all(|dim| dim.split == cacheplan_handlers::Split::Whole);
    assert!(whole(&conv.handler) && whole(&context.handler));
    assert_eq!(stride(resources.get("index_cache_3").unwrap()), 4);
    assert_eq!(resources.get("tail_3").unwrap().handler.unit_bytes(), 4 * 32 * 2);
}

#[rstest]
#[case::beyond_the_layers(json!({"ple_layer_ids": [5]}), "`ple_layer_ids` is 5; layers from 1 to 4")]
#[case::before_the_first(json!({"ple_layer_ids": [0]}), "`ple_layer_ids` is 0; layers from 1 to 4")]
#[case::in_attention(json!({"ple_layer_ids": [4]}), "n-grams are added in layers of linear attention only")]
#[case::several_key_heads(json!({"indexer_kv_heads": 2}), "an indexer of several key heads")]
#[case::no_ratio(json!({"indexer_compress_ratio": 0}), "indexer_compress_ratio")]
#[case::no_n_grams(json!({"ngram_size": 0}), "ngram_size")]
fn n_grams_and_indexers_that_cannot_be_are_refused_by_name(#[case] changes: Value, #[case] expected: &str) {
    let message = refusal(&with(qwen4_exp(), changes));
    assert!(message.contains(expected), "{message}");
}

#[test]
fn convolutions_beside_attention_go_with_its_key_heads_or_are_whole() {
    let config = json!({
        "model_type": "inkling_text", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "swa_num_key_value_heads": 4, "swa_num_attention_heads": 4,
        "swa_head_dim": 8, "sliding_window_size": 8, "conv_kernel_size": 4, "layer_types": ["hybrid_sliding", "hybrid"],
    });
    let resources = resources(&config);
    let split = |name: &str| {
        let dim = &resources.get(name).unwrap().handler.shape()[0];
        (dim.size, dim.split.clone())
    };
    use cacheplan_handlers::Split::{KvChannels, Whole};
    assert_eq!(split("local_key_conv_0"), (32, KvChannels(4)));
    assert_eq!(split("value_conv_1"), (32, KvChannels(2)));
    assert_eq!(split("mlp_conv_0"), (64, Whole));
    assert_eq!(resources.get("kv_cache_0").unwrap().handler.growth(), Growth::Paged { stride: 1, window: Some(8) });
    assert_eq!(resources.len(), 2 * 5);
}

/// The caches of each layer as `kind stride window [sizes]`.
fn layers(config: &Value) -> Vec<Vec<String>> {
    let mut layers: Vec<Vec<String>> = Vec::new();
    for resource in &resources(config) {
        let layer = resource.layer.unwrap() as usize;
        layers.resize_with(layers.len().max(layer + 1), Vec::new);
        let growth = match resource.handler.growth() {
            Growth::Paged { stride, window } => format!("/{stride} {}", window.unwrap_or(0)),
            _ => "state".to_owned(),
        };
        let sizes: Vec<u64> = resource.handler.shape().iter().map(|dim| dim.size).collect();
        layers[layer].push(format!("{} {growth} {sizes:?}", resource.handler.kind()));
    }
    layers
}

fn step5() -> Value {
    json!({
        "model_type": "step5", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_attention_groups": 2, "head_dim": 16, "sliding_window": 8, "num_nextn_predict_layers": 1,
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
        "attention_other_setting": {
            "attention_type": "sliding_attention", "num_attention_heads": 8, "num_attention_groups": 4, "head_dim": 8,
        },
        "sparse_config": {"sparse_indexer_num_k_heads": 1, "proxy_dim": 32, "region_block_size": 4},
    })
}

#[test]
fn summaries_stand_for_a_region_and_layers_with_a_window_have_heads_of_their_own() {
    let expected = [
        vec!["kv_paged /1 0 [2, 2, 16]", "core.index_key /4 0 [32]", "core.ring state [3, 64]"],
        vec!["kv_paged /1 8 [2, 4, 8]"],
    ];
    assert_eq!(layers(&step5()), expected);
}

#[test]
fn a_block_of_layers_stands_between_those_of_both_ends() {
    let config = json!({
        "model_type": "iquest_q1", "hidden_size": 64, "num_hidden_layers": 8, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "sliding_window": 8, "first_layers_types": ["full_attention"],
        "hybrid_layers_types_block": ["sliding_attention", "full_attention", "sliding_attention"],
        "num_hybrid_layers_block": 2, "last_layers_types": ["full_attention"],
    });
    let windows = |config: &Value| -> Vec<bool> {
        layers(config).iter().map(|caches| caches[0].starts_with("kv_paged /1 8")).collect()
    };
    assert_eq!(windows(&config), [false, true, false, true, true, false, true, false]);
    assert_eq!(windows(&with(config.clone(), json!({"use_sliding_window": false}))), [false; 8]);
    let message = refusal(&with(config, json!({"num_hybrid_layers_block": 3})));
    assert!(message.contains("the model has 8 layers"), "{message}");
}

#[rstest]
#[case::latents_and_delta_nets(
    json!({"model_type": "gigachat3_5", "kv_lora_rank": 32, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16,
        "q_lora_rank": 24, "full_attention_layers": [1], "linear_num_key_heads": 2, "linear_num_value_heads": 4,
        "linear_key_head_dim": 8, "linear_value_head_dim": 16, "linear_conv_kernel_dim": 4}),
    "ssm state [4, 8, 16] + causal_conv state [96, 3] | mla_paged /1 0 [1, 1, 40]"
)]
#[case::means_of_keys(
    json!({"model_type": "minicpm_sala", "mixer_types": ["minicpm4", "lightning"], "lightning_nkv": 4, "lightning_head_dim": 8,
        "num_key_value_heads": 2, "lightning_nh": 4, "sparse_config": {"kernel_size": 32, "kernel_stride": 16}}),
    "kv_paged /1 0 [2, 2, 16] + kv_paged /16 0 [1, 2, 16] + kv_paged /64 0 [1, 2, 16] | ssm state [4, 8, 8]"
)]
#[case::convolved_values(
    json!({"model_type": "jet_nemotron", "layer_types": ["jet", "swa"], "num_key_value_heads": 2,
        "efficient_attention_config": {
            "jet": {"num_heads": 3, "head_dim": 8, "expand_v": 2.0, "conv_size": 4}, "swa": {"window_size": 8}}}),
    "ssm state [3, 8, 16] + causal_conv state [48, 3] | kv_paged /1 8 [2, 2, 16]"
)]
#[case::sizes_of_each_layer(
    json!({"model_type": "nemotron_h_puzzle", "hybrid_override_pattern": "M*", "num_key_value_heads": 2, "head_dim": 16,
        "mamba_num_heads": 4, "mamba_head_dim": 8, "ssm_state_size": 16, "n_groups": 1, "conv_kernel": 4,
        "block_configs": [{"block_type": "mamba", "mamba_num_heads": 6}, {"block_type": "attention", "num_key_value_heads": 1}]}),
    "ssm state [6, 8, 16] + causal_conv state [80, 3] | kv_paged /1 0 [2, 1, 16]"
)]
#[case::one_in_four(
    json!({"model_type": "spark2_5", "num_key_value_heads": 2, "head_dim": 16, "sliding_window": 8}),
    "kv_paged /1 8 [2, 2, 16] | kv_paged /1 8 [2, 2, 16]"
)]
#[case::full_attention(
    json!({"model_type": "k2_horizon", "num_key_value_heads": 2}),
    "kv_paged /1 0 [2, 2, 16] | kv_paged /1 0 [2, 2, 16]"
)]
#[case::frames(json!({"model_type": "csm"}), "kv_paged /1 0 [2, 4, 16] | kv_paged /1 0 [2, 4, 16]")]
#[case::memories_of_heads(
    json!({"model_type": "xlstm", "num_heads": 2, "qk_dim_factor": 0.5, "v_dim_factor": 3.0}),
    "ssm state [2, 32, 96] + state state [2, 32] + state state [2, 1] | ssm state [2, 32, 96] + state state [2, 32] + state state [2, 1]"
)]
#[case::all_at_once(json!({"model_type": "neomme", "sliding_window": 256}), "")]
fn layers_keep_what_an_engine_keeps_of_them(#[case] changes: Value, #[case] expected: &str) {
    let usual = json!({"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4});
    let found: Vec<String> = layers(&with(usual, changes)).iter().map(|caches| caches.join(" + ")).collect();
    assert_eq!(found.join(" | "), expected);
}

#[test]
fn the_guide_shows_blocks_as_they_are_described() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let guide = std::fs::read_to_string(format!("{root}/docs/adding-a-model.md")).unwrap();
    let path = format!("{root}/transforms/src/frontend/config/architectures/deepseek_v41.toml");
    let described = std::fs::read_to_string(path).unwrap();
    let shown = guide.split("```toml\n").last().unwrap().split("```").next().unwrap();
    assert!(shown.contains("last(kv_source_layer_ids)"));
    for block in shown.split("\n\n") {
        assert!(described.contains(block.trim_end()), "{block}");
    }
}
