//! Published models of 2025 and 2026: what a token and a sequence take follows by hand from the sizes in their files, and
//! weights are as many as the headers of their safetensors say, without layers that predict further tokens and without what
//! routing stores besides parameters.

mod support;

use cacheplan_handlers::Kind;
use cacheplan_transforms::PassContext;
use rstest::rstest;

use support::{bytes_per_token, read, state_bytes};

/// Bytes of a token, of the states of a sequence and of its convolutions, and the weights where they are told.
#[rstest]
#[case::kda_and_latents("ling_3_flash", 7 * 576 * 2, 35 * 32 * 128 * 128 * 4, 35 * 3 * 32 * 128 * 3 * 2, None)]
#[case::lightning_and_latents("ling_2_6_1t", 10 * 576 * 2, 70 * 64 * 128 * 128 * 4, 0, None)]
#[case::kda_and_attention(
    "solar_open2",
    12 * 2 * 8 * 128 * 2,
    36 * 64 * 128 * 128 * 4,
    36 * 3 * 64 * 128 * 3 * 2,
    Some(250_287_794_944)
)]
#[case::four_runs("ouro_2_6b", 4 * 48 * 2 * 16 * 128 * 2, 0, 0, Some(2_667_974_657))]
#[case::two_runs("nanbeige4_2_3b", 2 * 22 * 2 * 8 * 128 * 2, 0, 0, Some(4_169_800_704))]
#[case::without_a_type("longcat_flash_lite", 28 * 576 * 2, 0, 0, None)]
#[case::windows("step_3_5_flash", 45 * 2 * 8 * 128 * 2, 0, 0, None)]
#[case::summaries(
    "qwen3_8_flash_next",
    12 * (2 * 2 * 256 * 2 + 128 * 2 / 4),
    36 * 48 * 128 * 128 * 4,
    36 * 10_240 * 3 * 2 + 4 * 2560 * 9 * 2,
    None
)]
#[case::matrices("xlstm_7b", 0, 32 * 8 * 256 * 512 * 4, 0, Some(6_865_424_896))]
#[case::latents_in_float32("sarvam_105b", 32 * 576 * 4, 0, 0, Some(106_031_767_424 - 31 * 128))]
#[case::float32("sarvam_30b", 19 * 2 * 4 * 64 * 4, 0, 0, Some(32_152_650_368 - 18 * 128))]
#[case::listed_windows("mellum2_12b", 28 * 2 * 4 * 128 * 2, 0, 0, Some(12_149_923_072))]
#[case::window_of_513("kolibri_1", 50 * 2 * 4 * 128 * 2, 0, 0, Some(78_103_074_560 - 50 * 384))]
#[case::windows_in_a_wrapper("command_a_plus", 32 * 2 * 8 * 128 * 2, 0, 0, None)]
#[case::gated_windows("trinity_large", 60 * 2 * 8 * 128 * 2, 0, 0, Some(398_635_286_016))]
#[case::dense_first("north_mini_code", 49 * 2 * 4 * 128 * 2, 0, 0, Some(30_484_303_872))]
#[case::heads_by_layer("laguna_xs_2", 40 * 2 * 8 * 128 * 2, 0, 0, Some(33_442_617_088))]
#[case::convolved_keys("zaya1_8b", 40 * 2 * 2 * 128 * 2, 0, 40 * 1280 * 2 * 2, Some(8_840_488_784))]
#[case::short_convolutions("lfm2_5_8b_a1b", 6 * 2 * 8 * 64 * 2, 0, 18 * 2048 * 2 * 2, Some(8_467_856_128))]
#[case::prediction_by_letters("nemotron_3_super", 8 * 2 * 2 * 128 * 2, 40 * 128 * 64 * 128 * 4, 40 * 10_240 * 3 * 2, None)]
#[case::sparse_by_name("glm_5_2_listed", 78 * 576 * 2 + 21 * 128 * 2, 0, 0, None)]
#[case::grok_by_another_name("grok_2", 64 * 2 * 8 * 128 * 2, 0, 0, None)]
#[case::adjusted_blocks("lfm2_5_350m", 6 * 2 * 8 * 64 * 2, 0, 10 * 1024 * 2 * 2, Some(354_483_968))]
#[case::qwen2_by_another_name("mimo_7b", 36 * 2 * 8 * 128 * 2, 0, 0, None)]
#[case::latents_of_motif("motif_3", 53 * 576 * 2, 0, 0, Some(314_841_775_750 - 251_151_876 - 51 * 384))]
#[case::recurrence("rwkv7_world3_1_5b", 0, 24 * 32 * 64 * 64 * 4, 0, Some(1_527_404_544))]
#[case::minicpm("minicpm_2b", 40 * 2 * 36 * 64 * 2, 0, 0, Some(2_724_880_896))]
#[case::first_deepseek("deepseek_moe_16b", 28 * 2 * 16 * 128 * 2, 0, 0, Some(16_375_728_128))]
#[case::keys_of_deepseek_ocr("deepseek_ocr", 12 * 2 * 10 * 128 * 2, 0, 0, None)]
#[case::pangu("openpangu_embedded_7b", 34 * 2 * 8 * 128 * 2, 0, 0, Some(34 * (4096 * 80 * 128 + 10_240 + 3 * 4096 * 12_800 + 2 * 4096) + 2 * 153_376 * 4096 + 4096))]
#[case::latents_of_pangu("openpangu_ultra_moe_718b", 61 * 576 * 2, 0, 0, Some(61 * (7680 * (1536 + 576) + 1536 * 128 * 192 + 512 * 128 * 256 + 128 * 128 * 7680 + 1536 + 512 + 4 * 7680) + 9 * 7680 * 18_432 + 58 * (257 * 3 * 7680 * 2048 + 256 * 7680) + 2 * 153_600 * 7680 + 7680))]
#[case::telechat("telechat3_36b", 64 * 2 * 8 * 128 * 2, 0, 0, Some(64 * (6144 * 112 * 128 + 3 * 6144 * 24_576 + 2 * 6144) + 2 * 131_072 * 6144 + 6144))]
fn a_published_model_takes(
    #[case] file: &str,
    #[case] per_token: u64,
    #[case] states: u64,
    #[case] convolutions: u64,
    #[case] weights: Option<u64>,
) {
    let mut model = read(&format!("published/{file}.json"));
    let resources = model.graph.collect(&PassContext::default()).unwrap().resources;
    let found =
        [bytes_per_token(&resources), state_bytes(&resources, &Kind::Ssm), state_bytes(&resources, &Kind::CausalConv)];
    assert_eq!(found, [per_token, states, convolutions]);
    let told = model.info.weights.map(|weights| weights.bytes / model.info.dtype.row_bytes(1).unwrap());
    assert_eq!(told.filter(|_| weights.is_some()), weights, "{:?}", model.weights_unknown);
}
