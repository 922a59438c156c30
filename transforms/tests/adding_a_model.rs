//! The steps of `docs/adding-a-model.md`, run.

mod support;

use cacheplan_transforms::{FrontendError, Model, PassContext, ReadOptions};
use rstest::rstest;

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
    assert!(wrong("[kinds]", "[kindz]").contains("line 9: unknown key `kindz` (near: kinds); known are"));
    assert!(wrong("\"scan.heads\"", "\"scan.hats\"").contains("none of `scan.hats` is in config.json"));
    assert!(wrong("look = \"attention\"", "").contains("layer 2 is of unknown kind `look`"));
}

/// With its line, its key, what was found, and the nearest name there is.
#[rstest]
#[case::block("[\"mamba2\",", "[\"mamba22\",", "line 10, `kinds.scan`: unknown block `mamba22` (near: mamba2")]
#[case::own_block("[\"glance\",", "[\"glanze\",", "line 11, `kinds.glance`: unknown block `glanze` (near: glance)")]
#[case::section(
    "[blocks.mamba2]",
    "[blocks.mamba3]",
    "line 13, `blocks.mamba3`: no kind of layer has a block `mamba3` (near: mamba2)"
)]
#[case::base(
    "\"sliding_attention\"",
    "\"sliding_atention\"",
    "line 21, `blocks.glance.block`: unknown block `sliding_atention` (near: sliding_attention"
)]
#[case::dimension(
    "d_state = ",
    "d_stat = ",
    "line 16, `blocks.mamba2.d_stat`: block `mamba2` has no dimension `d_stat` (near: d_state"
)]
#[case::expression(
    "\"scan.conv ?? 4\"",
    "\"scan.conv ??\"",
    "line 18, `blocks.mamba2.d_conv`: a key or a number was expected at the end"
)]
#[case::kind("\"attention\"", "\"atention\"", "line 7, `names.look`: unknown kind `atention` (near: attention)")]
#[case::key_of_the_config(
    "\"scan.heads\"",
    "\"scan.haeds\"",
    "line 14, `blocks.mamba2.num_heads`: none of `scan.haeds` is in config.json (near: scan.heads"
)]
#[case::pattern(
    "\"mixer_types\"",
    "\"mixer_type\"",
    "line 4, `pattern`: none of `mixer_type` is in config.json (near: mixer_types"
)]
#[case::spelling(
    "look = ",
    "lok = ",
    "line 7, `names.lok`: layer 2 is of unknown kind `look` (near: lok) by config.json"
)]
#[case::own_kind(
    "glance = ",
    "glence = ",
    "line 11, `kinds.glence`: layer 5 is of unknown kind `glance` (near: glence)"
)]
#[case::model_type(
    "model_types = [\"heron\"]",
    "model_types = [\"herno\"]",
    "line 1, `model_types`: unknown model_type `heron` (near: herno) in config.json"
)]
#[case::dtype(
    "d_state = ",
    "dtype = \"fp17 ?? f32\"\nd_state = ",
    "line 16, `blocks.mamba2.dtype`: block `mamba2`: `fp17` is no dtype (near: fp16"
)]
#[case::dtype_that_there_is_none_of(
    "d_state = ",
    "dtype = \"f64 ?? f32\"\nd_state = ",
    "block `mamba2`: `f64` is no dtype"
)]
fn what_is_misspelt_in_a_description_is_told_with_its_place(
    #[case] from: &str,
    #[case] to: &str,
    #[case] expected: &str,
) {
    let text = block("toml");
    assert!(text.contains(from), "{text}");
    // Behind another one, which is not about this model.
    let other = "model_types = [\"other\"]\n".to_owned();
    let options = ReadOptions { descriptions: vec![other, text.replacen(from, to, 1)], ..ReadOptions::default() };
    let error = Model::read_config("config.json", &block("json"), &options).unwrap_err();
    let message = error.to_string();
    assert!(message.contains(expected), "{message}");
    let FrontendError::Description { place, .. } = error else { panic!("{message}") };
    assert_eq!(place.which, Some(1));
    // The word itself, not what stands around it.
    let wrong: Vec<&str> = to.split(|sign: char| !(sign.is_alphanumeric() || sign == '_')).collect();
    let marked = &options.descriptions[1][place.span.unwrap()];
    assert!(wrong.contains(&marked) || to.contains(&format!("\"{marked}\"")), "{marked}");
}

/// A config's key that could say what is cached, beside a description that does not read it.
#[rstest]
#[case::misspelt(
    "",
    "width = \"sumary_width\"\nrows = \"4\"",
    "line 8, `blocks.summary.width`: none of `sumary_width` is in config.json (near: summary_width)"
)]
#[case::not_read(
    "",
    "width = \"hidden_size\"\nrows = \"4\"",
    "`mine`: nothing in it reads `summary_width` of config.json, which could say what is cached; read it in an expression, or name it in `ignores`"
)]
#[case::ignored_by_another_name(
    "ignores = [\"sumary_width\"]\n",
    "width = \"hidden_size\"\nrows = \"4\"",
    "line 2, `ignores`: nothing in it reads `summary_width`"
)]
#[case::a_number("", "width = \"summary_width\"\nrows = 4", "line 9: an expression is a text; write \"4\" for 4")]
fn a_key_that_a_description_does_not_read_is_looked_for_in_it(
    #[case] ignores: &str,
    #[case] dims: &str,
    #[case] expected: &str,
) {
    let config = r#"{"model_type": "mine", "hidden_size": 64, "num_hidden_layers": 2, "summary_width": [512, 512]}"#;
    let description = format!(
        "model_types = [\"mine\"]\n{ignores}[[pattern]]\nkinds = [\"rec\"]\n[kinds]\nrec = [\"summary\"]\n[blocks.summary]\nblock = \"ring\"\n{dims}\n"
    );
    let options = ReadOptions { descriptions: vec![description], ..ReadOptions::default() };
    let error = Model::read_config("config.json", config, &options).unwrap_err();
    let FrontendError::Description { place, .. } = &error else { panic!("{error}") };
    assert_eq!(place.which, Some(0));
    assert!(error.to_string().contains(expected), "{error}");
}

#[test]
fn a_name_without_a_near_one_is_told_without_any() {
    let text = block("json").replace("\"heron\"", "\"an_architecture_of_tomorrow\"");
    let message = Model::read_config("config.json", &text, &ReadOptions::default()).unwrap_err().to_string();
    assert!(message.contains("unknown model_type `an_architecture_of_tomorrow`; add"), "{message}");
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
    let by_default = shown("dtype = \"cache_precision ?? f32\"\n");
    assert!(by_default.contains("the description, as `cache_precision` is not there"), "{by_default}");
}
