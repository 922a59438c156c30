//! What a tensor of a checkpoint is called in a GGUF file, and how its converter changed it.

/// Where a GGUF file has a tensor.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct GgufTensor {
    /// The names that it may have, the first that is there counts.
    pub(super) names: Vec<String>,
    /// Which of the experts that lie in one tensor.
    pub(super) expert: Option<usize>,
    /// What turns the file's numbers into the checkpoint's.
    pub(super) undo: Undo,
}

/// A change of the converter's, taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Undo {
    Nothing,
    /// The file has one more.
    MinusOne,
    /// The file has the negative exponential.
    LogOfNegative,
}

/// Names around the layers.
const OUTER: &[(&str, &[&str])] = &[
    ("embed_tokens", &["token_embd"]),
    ("embeddings", &["token_embd"]),
    ("norm", &["output_norm"]),
    ("norm_f", &["output_norm"]),
    ("final_layernorm", &["output_norm"]),
    ("embedding_norm", &["token_embd_norm", "output_norm"]),
];

/// Names in a layer. Where there are several, architectures differ.
const INNER: &[(&str, &[&str])] = &[
    ("input_layernorm", &["attn_norm"]),
    ("operator_norm", &["attn_norm"]),
    ("norm", &["attn_norm"]),
    ("post_attention_layernorm", &["post_attention_norm", "ffn_norm"]),
    ("pre_feedforward_layernorm", &["ffn_norm"]),
    ("pre_ff_layernorm", &["ffn_norm"]),
    ("ffn_norm", &["ffn_norm"]),
    ("post_feedforward_layernorm", &["post_ffw_norm"]),
    ("self_attn.q_proj", &["attn_q"]),
    ("self_attn.k_proj", &["attn_k"]),
    ("self_attn.v_proj", &["attn_v"]),
    ("self_attn.o_proj", &["attn_output"]),
    ("self_attn.out_proj", &["attn_output"]),
    ("self_attn.q_norm", &["attn_q_norm"]),
    ("self_attn.k_norm", &["attn_k_norm"]),
    ("self_attn.q_layernorm", &["attn_q_norm"]),
    ("self_attn.k_layernorm", &["attn_k_norm"]),
    ("mlp.gate_proj", &["ffn_gate"]),
    ("mlp.up_proj", &["ffn_up"]),
    ("mlp.down_proj", &["ffn_down"]),
    ("feed_forward.gate_proj", &["ffn_gate"]),
    ("feed_forward.up_proj", &["ffn_up"]),
    ("feed_forward.down_proj", &["ffn_down"]),
    ("feed_forward.w1", &["ffn_gate"]),
    ("feed_forward.w3", &["ffn_up"]),
    ("feed_forward.w2", &["ffn_down"]),
    ("shared_mlp.gate_proj", &["ffn_gate_shexp", "ffn_gate"]),
    ("shared_mlp.up_proj", &["ffn_up_shexp", "ffn_up"]),
    ("shared_mlp.down_proj", &["ffn_down_shexp", "ffn_down"]),
    ("mlp.gate", &["ffn_gate_inp"]),
    ("mlp.router", &["ffn_gate_inp"]),
    ("block_sparse_moe.router.layer", &["ffn_gate_inp"]),
    ("mlp.shared_expert.gate_proj", &["ffn_gate_shexp"]),
    ("mlp.shared_expert.up_proj", &["ffn_up_shexp"]),
    ("mlp.shared_expert.down_proj", &["ffn_down_shexp"]),
    ("mlp.shared_expert_gate", &["ffn_gate_inp_shexp"]),
    ("conv.in_proj", &["shortconv.in_proj"]),
    ("conv.conv", &["shortconv.conv"]),
    ("conv.out_proj", &["shortconv.out_proj"]),
    ("linear_attn.in_proj_qkvz", &["ssm_in"]),
    ("linear_attn.in_proj_qkv", &["attn_qkv"]),
    ("linear_attn.in_proj_z", &["attn_gate"]),
    ("linear_attn.in_proj_ba", &["ssm_ba"]),
    ("linear_attn.in_proj_a", &["ssm_alpha"]),
    ("linear_attn.in_proj_b", &["ssm_beta"]),
    // Of a mixer by whatever name.
    ("in_proj", &["ssm_in"]),
    ("conv1d", &["ssm_conv1d"]),
    ("mixer.norm", &["ssm_norm"]),
    ("out_proj", &["ssm_out"]),
    // Nemotron-H has one mixer of any kind in each layer.
    ("q_proj", &["attn_q"]),
    ("k_proj", &["attn_k"]),
    ("v_proj", &["attn_v"]),
    ("o_proj", &["attn_output"]),
    ("up_proj", &["ffn_up"]),
    ("down_proj", &["ffn_down"]),
    ("gate", &["ffn_gate_inp"]),
    ("shared_experts.up_proj", &["ffn_up_shexp"]),
    ("shared_experts.down_proj", &["ffn_down_shexp"]),
    ("fc1_latent_proj", &["ffn_latent_down"]),
    ("fc2_latent_proj", &["ffn_latent_up"]),
];

/// Tensors in a layer that are neither `weight` nor `bias`.
const BARE: &[(&str, &str, Undo)] = &[
    ("A_log", "ssm_a", Undo::LogOfNegative),
    ("D", "ssm_d", Undo::Nothing),
    ("dt_bias", "ssm_dt.bias", Undo::Nothing),
    ("sinks", "attn_sinks.weight", Undo::Nothing),
    ("e_score_correction_bias", "exp_probs_b.bias", Undo::Nothing),
];

/// Modules whose parts [`INNER`] lists without them.
const MIXERS: [&str; 3] = ["mixer", "mamba", "linear_attn"];

/// Where a file of `architecture` has the tensor that checkpoints call `name`; `None` for what no file has.
pub(super) fn place(architecture: &str, name: &str) -> Option<GgufTensor> {
    let found = |names: Vec<String>, expert, undo| Some(GgufTensor { names, expert, undo });
    let name = name.strip_prefix("model.").or_else(|| name.strip_prefix("backbone.")).unwrap_or(name);
    let Some(inside) = name.strip_prefix("layers.") else {
        if matches!(name, "lm_head.weight" | "rope_freqs.weight") {
            return found(vec![name.replace("lm_head", "output")], None, Undo::Nothing);
        }
        let (part, leaf) = name.rsplit_once('.')?;
        let (_, places) = OUTER.iter().find(|(known, _)| *known == part)?;
        let names = places.iter().map(|place| format!("{place}.{leaf}")).collect();
        return found(names, None, norm_shift(architecture, places[0]));
    };
    let (layer, inside) = inside.split_once('.')?;
    let layer: u32 = layer.parse().ok()?;
    let (part, leaf) = inside.rsplit_once('.')?;
    if let Some((_, place, undo)) = BARE.iter().find(|(known, ..)| *known == leaf) {
        return found(vec![format!("blk.{layer}.{place}")], None, *undo);
    }
    if let Some((_, expert)) = part.split_once(".experts.") {
        let (expert, part) = expert.split_once('.')?;
        let part = match part {
            "gate_proj" => "ffn_gate_exps",
            "up_proj" => "ffn_up_exps",
            "down_proj" => "ffn_down_exps",
            _ => return None,
        };
        return found(vec![format!("blk.{layer}.{part}.{leaf}")], Some(expert.parse().ok()?), Undo::Nothing);
    }
    let of_mixer = part.split_once('.').filter(|(module, _)| MIXERS.contains(module));
    let part = match of_mixer {
        Some((_, "norm")) => "mixer.norm",
        Some((_, inner)) if !part.starts_with("linear_attn.in_proj_") => inner,
        _ => part,
    };
    let (_, places) = INNER.iter().find(|(known, _)| *known == part)?;
    let mut names: Vec<String> = places.iter().map(|place| format!("blk.{layer}.{place}.{leaf}")).collect();
    if part == "pre_ff_layernorm" {
        // Falcon-H1's converter leaves the end off.
        names.push(format!("blk.{layer}.{}", places[0]));
    }
    found(names, None, norm_shift(architecture, places[0]))
}

/// What the converter did to norms that checkpoints store as their distance from one.
fn norm_shift(architecture: &str, place: &str) -> Undo {
    let from_one = matches!(architecture, "gemma3" | "qwen3next" | "qwen35" | "qwen35moe");
    let shifted = from_one && place.ends_with("norm") && place != "ssm_norm";
    if shifted { Undo::MinusOne } else { Undo::Nothing }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("llama", "model.layers.3.self_attn.q_proj.weight", "blk.3.attn_q.weight", None, Undo::Nothing)]
    #[case("qwen2", "model.layers.3.self_attn.q_proj.bias", "blk.3.attn_q.bias", None, Undo::Nothing)]
    #[case("llama", "lm_head.weight", "output.weight", None, Undo::Nothing)]
    #[case("gemma3", "model.norm.weight", "output_norm.weight", None, Undo::MinusOne)]
    #[case("gemma3", "model.layers.0.self_attn.q_norm.weight", "blk.0.attn_q_norm.weight", None, Undo::MinusOne)]
    #[case("qwen3next", "model.layers.0.linear_attn.norm.weight", "blk.0.ssm_norm.weight", None, Undo::Nothing)]
    #[case(
        "qwen3moe",
        "model.layers.1.mlp.experts.7.up_proj.weight",
        "blk.1.ffn_up_exps.weight",
        Some(7),
        Undo::Nothing
    )]
    #[case(
        "nemotron_h",
        "backbone.layers.1.mixer.experts.2.down_proj.weight",
        "blk.1.ffn_down_exps.weight",
        Some(2),
        Undo::Nothing
    )]
    #[case("mamba2", "backbone.layers.0.mixer.A_log", "blk.0.ssm_a", None, Undo::LogOfNegative)]
    #[case("mamba2", "backbone.layers.0.norm.weight", "blk.0.attn_norm.weight", None, Undo::Nothing)]
    #[case("mamba2", "backbone.layers.0.mixer.norm.weight", "blk.0.ssm_norm.weight", None, Undo::Nothing)]
    #[case("falcon-h1", "model.layers.0.mamba.dt_bias", "blk.0.ssm_dt.bias", None, Undo::Nothing)]
    #[case("lfm2", "model.layers.0.conv.conv.weight", "blk.0.shortconv.conv.weight", None, Undo::Nothing)]
    fn a_tensor_has_its_place(
        #[case] architecture: &str,
        #[case] name: &str,
        #[case] expected: &str,
        #[case] expert: Option<usize>,
        #[case] undo: Undo,
    ) {
        let place = place(architecture, name).unwrap();
        assert_eq!((place.names[0].as_str(), place.expert, place.undo), (expected, expert, undo));
    }

    #[rstest]
    #[case("model.layers.0.self_attn.rotary.weight")]
    #[case("model.layers.x.self_attn.q_proj.weight")]
    #[case("model.layers.0.mlp.experts.one.up_proj.weight")]
    #[case("model.layers")]
    fn what_no_file_has_has_none(#[case] name: &str) {
        assert_eq!(place("llama", name), None);
    }
}
