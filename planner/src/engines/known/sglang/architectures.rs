//! Models that it does not run: read in the wheels of 0.5.9, 0.5.12, 0.5.18 and 0.5.23, with the transformers that each of them asks for.

/// Types whose class nothing in `srt/models` has, where transformers' own does not take kernels of others
/// (`_supports_attention_backend`), or there is none (`resolve_transformers_arch`). All others without a class are run by transformers'
/// code.
const LACKS: &str = "
    bamba big_bird biogpt bloom codegen cpmant falcon gpt_neo gpt_neox_japanese jamba megatron-bert mpt olmo_hybrid openai-gpt rembert
    roformer rwkv xglm xlm xlnet xlstm zamba zamba2
    Motif alice_ai minimax_m1 minimax_text_01 motif pangu_ultra_moe phi4flash plamo2 rwkv5 rwkv6 rwkv7
";

/// Whether it has no architecture for a model type.
pub(super) fn lacks(model_type: &str) -> bool {
    LACKS.split_whitespace().any(|lacking| lacking == model_type)
}
