//! Weights told by a config alone are as many as in Hugging Face transformers, towers and heads included.
//!
//! `cargo xtask transformers` writes what transformers counts.

mod support;

use cacheplan_transforms::{Model, ReadOptions};

use support::fixture;

/// Rows of which the config does not tell the weights: what stands beside the decoder or inside of it is not described, or
/// a file lacks a size that transformers has a default for.
const NOT_KNOWN: &str = "\
    LiquidAI__LFM2-1.2B.json Qwen__Qwen3.5-2B.json Qwen__Qwen3.5-9B.json google__gemma-2-2b.json \
    google__gemma-2-9b.json google__gemma-3-1b-it.json ibm-granite__granite-4.0-h-350m.json \
    nvidia__NVIDIA-Nemotron-3-Nano-4B.json zai-org__GLM-4.5.json grok_2.json longcat.json aria axk2 blip-2 chameleon \
    cohere_compass cosmos3_edge deepseek_ocr2 deepseek_vl deepseek_vl_hybrid diffusion_gemma doge dots3_note \
    electra emu3 ernie4_5_vl_moe fast_vlm fun_asr_nano fuyu git glmasr got_ocr2 granite4_vision granite_docling \
    granite_speech granite_speech_plus hunyuan_vl hyperclovax_vision_v2 idefics idefics2 inkling_mm_model \
    instructblip instructblipvideo janus kosmos-2 kosmos-2.5 kyutai_speech_to_text lfm3_vl lighton_ocr \
    longcat_flash minicpm_ocr minicpmv4_6 minicpmv4_7 mistral_large4 molmo2 moshi moss_transcribe_diarize \
    muse_glimmer muse_spark nemo_speechlm nemotron_h_omni ovis2 paligemma perception_lm phi4_multimodal pi0 \
    pp_chart2table qianfan_ocr qwen2_5_omni qwen3_asr qwen3_omni_moe qwen4_exp rembert roc_bert roformer step3p7 \
    unlimited_ocr vibevoice_asr video_llama_3 video_llava vipllava voxtral_realtime xmod";

/// A model of transformers, its count of parameters, and the text of its config.
struct Row {
    name: String,
    parameters: u64,
    text: String,
}

fn rows() -> Vec<Row> {
    let table = std::fs::read_to_string(fixture("transformers/parameters.tsv")).unwrap();
    let rows = table.lines().map(|line| {
        let [name, parameters, config] = line.split('\t').collect::<Vec<_>>().try_into().unwrap();
        Row { name: name.to_owned(), parameters: parameters.parse().unwrap(), text: text(name, config) }
    });
    rows.collect()
}

/// The config of a row; `-` stands for the file of that name.
fn text(name: &str, config: &str) -> String {
    if config != "-" {
        return config.to_owned();
    }
    let files = ["configs", "published"].map(|folder| fixture(folder).join(name));
    std::fs::read_to_string(files.iter().find(|file| file.exists()).unwrap()).unwrap()
}

#[test]
fn weights_are_as_many_as_in_transformers() {
    let (mut equal, mut unknown, mut wrong) = (0, Vec::new(), Vec::new());
    for Row { name, parameters, text } in rows() {
        let model = match Model::read_config(&name, &text, &ReadOptions::default()) {
            Ok(model) => model,
            Err(error) if error.is_unsupported() => continue,
            Err(error) => {
                wrong.push(format!("{name}: {error}"));
                continue;
            }
        };
        if model.config.contains_key("quantization_config") {
            continue;
        }
        let Some(weights) = model.info.weights else {
            assert!(model.weights_unknown.is_some(), "{name}");
            unknown.push(name);
            continue;
        };
        let ours = weights.bytes / model.info.dtype.row_bytes(1).unwrap();
        if ours == parameters {
            equal += 1;
        } else {
            wrong.push(format!("{name}: {ours} beside {parameters}, {:+}", ours as i64 - parameters as i64));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(equal > 245, "{equal}");
    let expected: Vec<&str> = NOT_KNOWN.split_whitespace().collect();
    assert_eq!(unknown, expected);
}
