//! Models that it does not run: read in the wheels of 0.5.9, 0.5.12, 0.5.18 and 0.5.23, with the transformers that each of them asks for.

/// Types whose class nothing in `srt/models` has, where transformers' own does not take kernels of others
/// (`_supports_attention_backend`), or there is none (`resolve_transformers_arch`). All others without a class are run by transformers'
/// code; not those whose keys are wider than the pool that it makes for these (`axk1`, `axk2`, `youtu`).
const LACKS: &str = "
    bamba big_bird biogpt bloom codegen cpmant falcon gpt_neo gpt_neox_japanese jamba megatron-bert mpt olmo_hybrid openai-gpt rembert
    roformer rwkv xglm xlm xlnet xlstm zamba zamba2
    Motif PanguEmbedded PanguProMoE alice_ai arctic axk1 axk2 domyn_edge dory flint inkling2 inkling2_text jais kimi_audio kolibri1 lfm3 minimax_m1
    minimax_text_01 mistral_large4 mistral_large4_text molmo molmo2 molmo2_text motif ouro pangu_ultra_moe pangu_v2_moe param2moe phi3_v
    phi4flash plamo2 plamo3 rwkv5 rwkv6 rwkv7 solar_open2 step1 telechat telechat3 youtu
";

/// Whether it has no architecture for a model type.
pub(super) fn lacks(model_type: &str) -> bool {
    LACKS.split_whitespace().any(|lacking| lacking == model_type)
}
