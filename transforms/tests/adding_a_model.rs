//! The steps of `docs/adding-a-model.md`, run.

mod support;

use cacheplan_transforms::{FrontendError, Model, PassContext, ReadOptions};

/// The first block of a language in the guide.
fn block(language: &str) -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/adding-a-model.md");
    let guide = std::fs::read_to_string(path).unwrap();
    let start = guide.split_once(&format!("```{language}\n")).unwrap().1;
    start.split_once("```").unwrap().0.to_owned()
}

#[test]
fn a_made_up_architecture_is_added_by_a_description_alone() {
    let (config, description) = (block("json"), block("toml"));
    let unknown = Model::read_config("config.json", &config, &ReadOptions::default()).unwrap_err();
    assert!(matches!(unknown, FrontendError::UnknownModelType { .. }), "{unknown}");

    let options = ReadOptions { descriptions: vec![description], ..ReadOptions::default() };
    let mut model = Model::read_config("config.json", &config, &options).unwrap();
    let collected = model.graph.collect(&PassContext::default()).unwrap();
    let shown = model.inspection(&collected).to_string();
    let (read, _) = shown.split_once("\nRead\n").unwrap();
    assert_eq!(read, block("text"));
}

/// `examples/heron` has the files that the guide shows.
#[test]
fn the_guide_shows_the_files_of_the_example() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/heron");
    for (file, language) in [("config.json", "json"), ("heron.toml", "toml")] {
        assert_eq!(std::fs::read_to_string(format!("{root}/{file}")).unwrap(), block(language), "{file}");
    }
}

#[test]
fn a_wrong_description_says_what_is_wrong() {
    let wrong = |from: &str, to: &str| {
        let descriptions = vec![block("toml").replace(from, to)];
        Model::read_config("config.json", &block("json"), &ReadOptions { descriptions, ..ReadOptions::default() })
            .unwrap_err()
            .to_string()
    };
    assert!(wrong("[\"mamba2\",", "[\"mamba3\",").contains("unknown block `mamba3`"));
    assert!(wrong("d_state = ", "d_stat = ").contains("block `mamba2` has no dimension `d_stat`"));
    assert!(wrong("scan.conv ??", "scan.conv ? ?").contains("unexpected"));
    let dtype = "d_state = \"scan.state\"\n";
    assert!(wrong(dtype, &format!("dtype = \"float33\"\n{dtype}")).contains("`float33` is no dtype"));
    assert!(wrong("[kinds]", "[kindz]").contains("unknown field `kindz`"));
    assert!(wrong("\"scan.heads\"", "\"scan.hats\"").contains("none of `scan.hats` is there"));
    assert!(wrong("look = \"attention\"", "").contains("layer 2 is of unknown kind `look`"));
}

#[test]
fn the_dtype_of_a_state_that_nothing_states_is_said_to_be_assumed() {
    let config =
        r#"{"model_type": "mine", "torch_dtype": "bfloat16", "hidden_size": 64, "num_hidden_layers": 2, "r": 4}"#;
    let shown = |dtype: &str| {
        let description = format!(
            "model_types = [\"mine\"]\n[[pattern]]\nkinds = [\"rec\"]\n[kinds]\nrec = [\"state\"]\n[blocks.state]\nrows = \"r\"\nwidth = \"8\"\n{dtype}"
        );
        let options = ReadOptions { descriptions: vec![description], ..ReadOptions::default() };
        let mut model = Model::read_config("config.json", config, &options).unwrap();
        let collected = model.graph.collect(&PassContext::default()).unwrap();
        model.inspection(&collected).to_string()
    };
    assert!(shown("").contains("state.dtype"), "{}", shown(""));
    assert!(!shown("dtype = \"f32\"\n").contains("state.dtype"));
}
