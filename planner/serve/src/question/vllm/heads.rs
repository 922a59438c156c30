//! Which models draft by layers that learned to predict, as vLLM tells them by their configs (`SpeculativeConfig.hf_config_override`).

use cacheplan_planner::ModelCaches;
use cacheplan_planner::engines::Version;
use cacheplan_transforms::Model;
use serde_json::Value;

use super::super::{Question, speculative};
use crate::error::ServeError;
use crate::remedy::Remedy;

const FLAG: &str = "--speculative-config";
const READ: Version = Version(0, 33, 0);

/// Types and classes of such models, where their configs say how many such layers there are, and how many there are where those do not.
const HEADS: [(&str, &[&str], Option<u64>); 8] = [
    (
        "deepseek_v3 deepseek_v32 glm_moe_dsa deepseek_mtp deepseek_v4 deepseek_v41 pangu_ultra_moe pangu_ultra_moe_mtp kimi_k3 kimi_k3_mtp \
         MiMoForCausalLM mimo mimo_mtp Glm4MoeForCausalLM glm4_moe glm4_moe_mtp Glm4MoeLiteForCausalLM glm4_moe_lite glm4_moe_lite_mtp \
         GlmOcrForConditionalGeneration glm_ocr glm_ocr_mtp ernie4_5_moe ernie_mtp nemotron_h nemotron_h_puzzle nemotron_h_mtp qwen3_next \
         qwen3_next_mtp BailingMoeV3ForCausalLM BailingMoeV3VLForConditionalGeneration BailingMoeV2_5ForCausalLM bailing_hybrid \
         bailing_hybrid_mtp bailing_hybrid_v3_mtp exaone_moe exaone_moe_mtp exaone4_5 exaone4_5_text exaone4_5_mtp hy_v3 hy_v3_mtp hy_v4 \
         hy_v4_mtp glm5_next glm5_next_mtp mtp",
        &["num_nextn_predict_layers"],
        None,
    ),
    (
        "dots3_note dots3_note_mtp step3p5 step3p7 Step3p5ForCausalLM Step3p7ForConditionalGeneration step3p5_mtp step5 step5_vl \
         Step5ForCausalLM Step5ForConditionalGeneration step5_mtp",
        &["num_nextn_predict_layers"],
        Some(1),
    ),
    (
        "qwen3_5 qwen3_5_moe qwen3_5_text qwen3_5_moe_text qwen3_5_mtp intern_s2_preview interns2_mobius",
        &["mtp_num_hidden_layers"],
        None,
    ),
    ("qwen4_exp qwen4_exp_text qwen4_exp_mtp", &["mtp_num_hidden_layers", "num_nextn_predict_layers"], None),
    (
        "minimax_m3_vl MiniMaxM3SparseForConditionalGeneration minimax_m3_mtp MiniMaxM3MTP",
        &["num_mtp_modules"],
        Some(1),
    ),
    ("inkling_mm_model inkling_model inkling_mtp", &["mtp_config"], Some(0)),
    // Only the first of theirs is run.
    (
        "MiMoV2ForCausalLM MiMoV2OmniForCausalLM MiMoV2FlashForCausalLM mimo_v2 mimo_v2_flash mimo_v2_mtp longcat_flash longcat_flash_mtp",
        &[],
        Some(1),
    ),
    (ASSISTANTS, &[], Some(1)),
];

/// They draft by all of their layers, which read the caches of the model that they assist and keep none.
const ASSISTANTS: &str = "gemma4_assistant gemma4_unified_assistant gemma4_mtp";

/// Whether a method drafts by such layers: `deepseek_mtp`, `qwen3_5_mtp` and their like are names of one.
pub(in super::super) fn is_method(name: &str) -> bool {
    name == "mtp" || name.ends_with("_mtp")
}

fn lists(names: &str, name: &str) -> bool {
    names.split_whitespace().any(|known| known == name)
}

/// The type of the whole model, and its class.
fn names(model: &Model) -> [Option<&str>; 2] {
    let outer = model.around.get("model_type").and_then(Value::as_str);
    let class = model.stated("architectures").and_then(|classes| classes.get(0)?.as_str());
    [outer.or(Some(&model.info.model_type)), class]
}

/// Layers that predict; `Some(None)` where the model has such, and its config does not say how many.
fn layers(model: &Model) -> Option<Option<u64>> {
    let names = names(model);
    let is_one = |(of, ..): &&(&str, &[&str], Option<u64>)| names.into_iter().flatten().any(|name| lists(of, name));
    let (_, keys, usual) = HEADS.iter().find(is_one)?;
    let number = |value: &Value| value.as_u64().or_else(|| value.get("num_nextn_predict_layers")?.as_u64());
    let stated = keys.iter().find_map(|key| model.stated(key).and_then(number)).or(*usual);
    let needs_some = names[0].is_some_and(|name| name.starts_with("nemotron_h") && name != "nemotron_h_mtp");
    (!needs_some || stated.is_some_and(|layers| layers > 0)).then_some(stated)
}

fn is_assistant(model: &Model) -> bool {
    names(model)[0].is_some_and(|name| lists(ASSISTANTS, name))
}

/// What a method by the model's own layers, or by those of another checkpoint, adds to its plan.
pub(in super::super) fn settle(
    question: &mut Question,
    model: &ModelCaches,
    name: &str,
    tokens: u64,
) -> Result<(), ServeError> {
    let Some(of) = model.model().filter(|_| question.engine.version >= READ) else {
        question.default_of("speculation.mtp_layers", 1);
        return Ok(());
    };
    let refused = |said: String| question.refused(said, [Remedy::Remove(FLAG), Remedy::Remove("--spec-method")]);
    let Some(stated) = layers(of) else { return Err(unsupported(question, name)) };
    if names(of)[0] == Some("deepseek_v41") {
        return Err(refused(
            "DeepSeek V4.1 has no classic-MTP draft: its checkpoints ship DSpark stages under mtp.*. Use speculative method 'dspark' instead of 'mtp'.".into(),
        ));
    }
    match stated {
        Some(0) if names(of)[0].is_some_and(|name| name.starts_with("inkling")) => {
            return Err(refused("The Inkling checkpoint does not contain MTP weights".into()));
        }
        Some(0) => return Err(refused("integer modulo by zero".into())),
        Some(layers) if tokens > layers && !tokens.is_multiple_of(layers) => {
            return Err(refused(format!("num_speculative_tokens:{tokens} must be divisible by n_predict={layers}")));
        }
        _ => {}
    }
    let run = match names(of)[0] {
        Some("hy_v4") => stated.map(|layers| (layers - 1).max(1)),
        Some(name) if name.starts_with("inkling") => stated.map(|layers| layers.min(tokens)),
        _ => stated,
    };
    question.default_of("speculation.mtp_layers", run.unwrap_or(1));
    Ok(())
}

/// Checkpoints that stand beside a method, and draft by another by their names (`"eagle-" in model`).
const OTHERS: [&str; 4] = ["eagle-", "eagle3", "dflash", "dspark"];

/// Whether of a model that is named beside the served one only such layers are run, by what it is; an assistant runs as a whole.
///
/// # Errors
/// A method by such layers, and a model that has none.
pub(super) fn predicts(question: &Question, draft: &ModelCaches) -> Result<bool, ServeError> {
    let Some(config) = speculative::config(question)?.filter(|_| question.engine.version >= READ) else {
        return Ok(false);
    };
    let name = speculative::method(&config);
    let path = config.get("model").and_then(Value::as_str).unwrap_or_default().to_lowercase();
    let is_asked = is_method(name) || matches!(name, "" | "draft_model");
    let of = draft.model().filter(|_| is_asked && !OTHERS.iter().any(|other| path.contains(other)));
    match of.map(|of| (layers(of), is_assistant(of))) {
        None | Some((Some(_), true)) => Ok(false),
        Some((None, _)) if !is_method(name) => Ok(false),
        Some((None, _)) => Err(unsupported(question, name)),
        Some((Some(_), false)) => Ok(true),
    }
}

/// What a model that is named beside the served one adds, where only such layers of it are run: caches like the served one's.
pub(super) fn beside(question: &mut Question, model: &ModelCaches, draft: &ModelCaches) -> Result<(), ServeError> {
    let Some(config) = speculative::config(question)?.filter(|_| predicts(question, draft).unwrap_or(true)) else {
        return Ok(());
    };
    let tokens = config.get("num_speculative_tokens").and_then(super::words::whole).unwrap_or(1);
    settle(question, draft, speculative::method(&config), tokens)?;
    let [own, other] = [model, draft].map(|model| &*model.info().model_type);
    if own == other {
        return Ok(());
    }
    let why = format!("what the layers of {other} that predict keep beside {own} was not read");
    Err(ServeError::unread(FLAG, why, [Remedy::Remove(FLAG)]))
}

fn unsupported(question: &Question, name: &str) -> ServeError {
    let said = format!("Unsupported speculative method: '{name}'");
    question.refused(said, [Remedy::Remove(FLAG), Remedy::Remove("--spec-method")])
}
