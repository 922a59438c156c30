//! The ranks over which SGLang divides the heads of attention.

use cacheplan_planner::ModelCaches;

use super::super::blocks::{self, Cut};
use super::super::rules::lists;
use super::super::{HEADS, Question, of_config};
use crate::error::ServeError;
use crate::remedy::Remedy;

/// Types whose classes divide heads over all ranks, also where replicas of attention have fewer each (`models/*.py` of 0.5.23).
const OVER_ALL_RANKS: &str = "afmoe apertus arcee baichuan chatglm cohere cohere2 cohere2_moe deepseek exaone exaone4 gemma gemma2 \
    gemma3 gemma3_text gemma3n gemma3n_text gemma4 gemma4_text glm4 granite granitemoe granitemoehybrid grok-1 hunyuan \
    hunyuan_v1_dense hunyuan_v1_moe internlm2 llama minicpm mistral mixtral nemotron_h olmo2 olmo3 olmoe orion phi3 qwen2 solar \
    starcoder2 xverse";

/// Refuses ranks over which heads cannot be divided.
pub(super) fn divide(question: &Question, model: &ModelCaches, tp: u64, replicas: u64) -> Result<(), ServeError> {
    let over_all = lists(OVER_ALL_RANKS, &model.info().model_type);
    let ranks = if over_all { tp } else { tp / replicas };
    let said = |heads: u64| format!("{heads} attention heads are not divisible by tp_size {ranks}");
    question.divides(of_config(model, HEADS), "--tp-size", ranks, said)?;
    // Heads of one rank alone are looked at with its caches.
    let kv =
        of_config(model, "num_key_value_heads").filter(|kv| over_all && replicas > 1 && !ranks.is_multiple_of(*kv));
    let said = |heads: u64| format!("{heads} KV heads are not divisible by tp_size {ranks}");
    question.divides(kv, "--tp-size", ranks, said)
}

/// Refuses ranks that cut blocks of weights (`layers/quantization/fp8.py`). Which ranks cut what is not attention beside its replicas depends
/// on the model's class.
pub(super) fn cut(question: &Question, model: &ModelCaches, tp: u64, replicas: u64) -> Result<(), ServeError> {
    const EXPERTS: &str = "--ep-size";
    // Whatever sends tokens to experts gives each rank whole ones.
    let sends = question.value("--moe-a2a-backend").is_some_and(|word| word != "none");
    let ep = if sends { tp } else { question.count(EXPERTS).unwrap_or(1).max(1) };
    let cut = Cut {
        ranks: ("--tp-size", if replicas == 1 { tp } else { 1 }),
        of_expert: tp / ep,
        whole: Some(Remedy::Set(EXPERTS, tp.to_string())),
        refines: false,
    };
    if question.is_on_amd() { Ok(()) } else { blocks::look(question, model, cut) }
}
