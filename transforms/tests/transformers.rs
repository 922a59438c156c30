//! Hugging Face transformers, run on shapes alone, caches what the config front-end says, layer by layer.
//!
//! `tests/fixtures/transformers/make.py` writes what transformers does.

mod support;

use std::collections::BTreeMap;

use cacheplan_handlers::DType;
use cacheplan_transforms::{FrontendError, Model, ReadOptions};
use serde::Deserialize;
use serde_json::{Map, Value};

use support::{caches, fixture, otherwise, without_dtypes};

/// One model as transformers builds it.
#[derive(Deserialize)]
struct Known {
    /// The defaults of its config class; `None` for a file of `configs/`.
    config: Option<Map<String, Value>>,
    /// What a layer caches, and the layers that do.
    caches: BTreeMap<String, String>,
}

/// Its caches hold compressed entries, which the comparison does not describe; the other's runs of a layer are layers there.
const OTHER_CACHES: [&str; 2] = ["deepseek-ai__DeepSeek-V4-Flash.json", "transformers__hrm_text.json"];
/// Only counts of its layers are there; transformers takes its default pattern, this crate the counts.
const ONLY_COUNTS: [&str; 1] = ["nvidia__NVIDIA-Nemotron-3-Nano-4B.json"];

/// Their sizes of heads are not those that their config classes default to.
const NO_DEFAULTS: [&str; 10] = [
    "glm4_moe",
    "glm4v_moe",
    "hunyuan_v1_dense",
    "hunyuan_v1_moe",
    "hunyuan_vl",
    "ministral",
    "mistral3",
    "nemotron",
    "dots1",
    "qwen4_exp",
];

fn known() -> BTreeMap<String, Known> {
    let file = std::fs::File::open(fixture("transformers/caches.json")).unwrap();
    let mut known: BTreeMap<String, Known> = serde_json::from_reader(std::io::BufReader::new(file)).unwrap();
    known.retain(|name, _| !OTHER_CACHES.contains(&name.as_str()) && !ONLY_COUNTS.contains(&name.as_str()));
    known
}

fn text(name: &str, known: &Known) -> String {
    match &known.config {
        Some(config) => serde_json::to_string(config).unwrap(),
        None => std::fs::read_to_string(fixture(&format!("configs/{name}"))).unwrap(),
    }
}

/// The text of a config without some keys, a wrapper's decoder included.
fn without(config: &Map<String, Value>, keys: &[&str]) -> String {
    let mut config = config.clone();
    keys.iter().for_each(|key| drop(config.remove(*key)));
    if let Some(Value::Object(decoder)) = config.get_mut("text_config") {
        keys.iter().for_each(|key| drop(decoder.remove(*key)));
    }
    serde_json::to_string(&config).unwrap()
}

fn read(name: &str, text: &str) -> Model {
    Model::read_config(name, text, &ReadOptions::default()).unwrap()
}

/// Whether a model keeps what is known, in the same dtypes unless those are known to be others, or the file states another
/// dtype than bfloat16, in which all were run.
fn keeps(model: Model, known: &Known) -> bool {
    let other_dtypes =
        model.info.dtype != DType::Bf16 || otherwise().contains(&format!("{} dtypes", model.info.model_type));
    let found = caches(model);
    found == known.caches || (other_dtypes && without_dtypes(&found) == without_dtypes(&known.caches))
}

#[test]
fn each_layer_caches_what_it_caches_in_transformers() {
    let known = known();
    assert!(known.len() > 185, "{}", known.len());
    for (name, known) in known {
        let model = read(&name, &text(&name, &known));
        assert!(keeps(model.clone(), &known), "{name}: {:?} beside {:?}", caches(model), known.caches);
    }
}

/// Older files state no kinds of layers where the architecture's own pattern, or another key, gives them.
#[test]
fn layers_are_of_the_same_kinds_without_a_list_of_them() {
    // Only the list tells.
    const LISTED: &str = "beam cwm dots3_note flint granite_swa granitemoe_swa granitemoehybrid kolibri1 laguna \
        lfm2_moe mellum mimo_v2_flash nemotron_h step3p7";
    for (name, known) in known() {
        let Some(config) = known.config.as_ref().filter(|_| LISTED.split_whitespace().all(|listed| listed != name))
        else {
            continue;
        };
        let text = without(config, &["layer_types", "layers_block_type"]);
        assert!(keeps(read(&name, &text), &known), "{name}");
    }
}

/// Where a key is absent, the architecture's default stands for it, or it must be stated.
#[test]
fn heads_are_as_many_without_keys_that_state_them() {
    const KEYS: [&[&str]; 3] = [&["num_key_value_heads"], &["head_dim"], &["num_key_value_heads", "head_dim"]];
    let (mut compared, mut wrong) = (0, Vec::new());
    for (name, known) in known() {
        // A wrapper's defaults are those of the decoder that it happens to wrap; `CHANGES` of make.py are no defaults.
        let Some(config) = known.config.as_ref().filter(|_| !NO_DEFAULTS.contains(&name.as_str())) else { continue };
        for keys in KEYS {
            match Model::read_config(&name, &without(config, keys), &ReadOptions::default()) {
                Ok(model) if keeps(model.clone(), &known) => compared += 1,
                Err(FrontendError::Missing { .. } | FrontendError::BadValue { .. }) => {}
                Ok(_) => wrong.push(format!("{name} without {keys:?} is read as something else")),
                Err(error) => wrong.push(error.to_string()),
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(compared > 280, "{compared}");
}
