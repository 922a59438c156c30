//! Weights told by a config alone are as many as in Hugging Face transformers, towers and heads included.
//!
//! `cargo xtask transformers` writes what transformers counts.

mod support;

use std::collections::BTreeSet;

use cacheplan_transforms::{Model, ReadOptions};
use rstest::rstest;
use serde_json::Value;

use support::{fixture, not_stored};

/// Rows of which the config does not tell the weights, and why.
const NOT_KNOWN: [(&[&str], &str); 6] = [
    (
        &[
            "LiquidAI__LFM2-1.2B.json",
            "Qwen__Qwen3.5-2B.json",
            "Qwen__Qwen3.5-9B.json",
            "google__gemma-2-2b.json",
            "google__gemma-2-9b.json",
            "google__gemma-3-1b-it.json",
            "ibm-granite__granite-4.0-h-350m.json",
            "nvidia__NVIDIA-Nemotron-3-Nano-4B.json",
            "zai-org__GLM-4.5.json",
        ],
        "a reconstructed file that lacks a size: what transformers takes for it is another model's",
    ),
    (&["grok_2.json"], "a file of a model that transformers lacks, under the name of one that it has"),
    (&["fast_vlm", "perception_lm"], "a tower of timm's, by its name"),
    (&["granite4_vision"], "how many queries stand for a window is a fraction as text"),
    (&["moshi"], "transformers counts the decoder alone, without what speaks beside it"),
    (&["video_llava"], "two towers by one config"),
];

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
    let (mut equal, mut unknown, mut wrong) = (0, BTreeSet::new(), Vec::new());
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
            unknown.insert(name);
            continue;
        };
        let stored = parameters - not_stored(&serde_json::from_str(&text).unwrap_or_default());
        let ours = weights.bytes / model.info.dtype.row_bytes(1).unwrap();
        if ours == stored {
            equal += 1;
        } else {
            wrong.push(format!("{name}: {ours} beside {stored}, {:+}", ours as i64 - stored as i64));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(equal > 410, "{equal}");
    let expected: BTreeSet<&str> = NOT_KNOWN.iter().flat_map(|(names, _)| names.iter().copied()).collect();
    assert_eq!(unknown, expected.into_iter().map(str::to_owned).collect());
}

#[rstest]
#[case::a_number_is_that_of_its_class("unlimited_ocr", "/vision_config/sam_config", "hidden_size", true)]
#[case::a_list_of_several_is_not_known("unlimited_ocr", "/vision_config/sam_config", "downsample_channels", false)]
#[case::a_list_of_one_number_is_known("minicpm_ocr", "/vision_config", "window_kernel_size", true)]
fn what_a_tower_leaves_out(#[case] name: &str, #[case] part: &str, #[case] key: &str, #[case] known: bool) {
    let row = rows().into_iter().find(|row| row.name == name).unwrap();
    let mut config: Value = serde_json::from_str(&row.text).unwrap();
    config.pointer_mut(part).unwrap().as_object_mut().unwrap().remove(key).unwrap();
    let model = Model::read_config(name, &config.to_string(), &ReadOptions::default()).unwrap();
    let expected = known.then_some(row.parameters * model.info.dtype.row_bytes(1).unwrap());
    assert_eq!(model.info.weights.map(|weights| weights.bytes), expected, "{:?}", model.weights_unknown);
}

#[test]
fn a_tower_that_nobody_describes_is_not_passed_over() {
    let row = rows().into_iter().find(|row| row.name == "nemotron_h_omni").unwrap();
    let mut config: Value = serde_json::from_str(&row.text).unwrap();
    config["audio_config"] = serde_json::json!({ "model_type": "parakeet_encoder", "hidden_size": 1024 });
    let model = Model::read_config("omni", &config.to_string(), &ReadOptions::default()).unwrap();
    assert!(model.weights_unknown.unwrap().contains("`audio_config`"));
}
