//! GGUF headers tell the same caches as the configs they were converted from.

mod support;

use std::fs;
use std::path::Path;

use cacheplan_handlers::{DType, Growth, Kind};
use cacheplan_transforms::{CacheDTypes, FrontendError, Model, PassContext, ReadOptions, Resources};
use rstest::rstest;

use support::{essence, fixture};

#[rstest]
#[case("llama", "llama")]
#[case("qwen3", "qwen3")]
#[case("gemma3", "gemma3")]
#[case("gpt-oss", "gpt_oss")]
#[case("deepseek2", "deepseek_v3")]
#[case("mamba", "mamba")]
#[case("mamba2", "mamba2")]
#[case("jamba", "jamba")]
#[case("granitehybrid", "granitemoehybrid")]
#[case("nemotron_h", "nemotron_h")]
#[case("lfm2", "lfm2")]
#[case("qwen3next", "qwen3_next")]
fn a_header_gives_the_resources_of_its_config(#[case] gguf: &str, #[case] config: &str) {
    let (model, from_gguf) = support::collected(&format!("gguf/{gguf}.gguf"));
    let (original, from_config) = support::collected(&format!("models/{config}"));
    assert_eq!(essence(&from_gguf.resources), essence(&from_config.resources));
    assert_eq!(model.info.layers, original.info.layers);
    assert_eq!(model.info.model_type, format!("gguf:{gguf}"));
    assert!(model.info.weights.unwrap().exact);
}

/// What is written of a config for an engine is read back as the same.
#[test]
fn a_file_without_weights_of_deepseek_v4_gives_the_resources_of_its_config() {
    let read = |path: &Path| Model::read(path, &ReadOptions::default()).unwrap();
    let original = read(&fixture("configs/deepseek-ai__DeepSeek-V4-Flash.json"));
    let file = tempfile::Builder::new().suffix(".gguf").tempfile().unwrap();
    fs::write(file.path(), original.gguf_skeleton().unwrap().header).unwrap();
    let written = read(file.path());
    assert_eq!((written.info.model_type.as_str(), written.info.layers), ("gguf:deepseek4", original.info.layers));
    // The weights that are left out have a dtype of their own.
    let dtypes = CacheDTypes { kv: Some(DType::F16), ..CacheDTypes::default() };
    let context = PassContext { dtypes, ..PassContext::default() };
    let resources = |model: Model| essence(&{ model.graph }.collect(&context).unwrap().resources);
    assert_eq!(resources(written), resources(original));
}

/// `<|endoftext|>` is no key of the file, and `<|end|>` is one that ends no text by its name.
#[test]
fn texts_end_with_what_the_keys_and_the_vocabulary_say() {
    let ends = |file: &str| {
        let path = fixture(&format!("gguf/vocabularies/{file}.gguf"));
        Model::read(&path, &ReadOptions::default()).unwrap().config["eos_token_id"].to_string()
    };
    assert_eq!(ends("merges"), "[2,707]");
    assert_eq!(ends("pieces"), "[2]");
}

/// A header with these whole numbers, each under its key, and one F32 tensor of `elements`.
fn header(architecture: &str, numbers: &[(&str, u32)], elements: u64) -> Vec<u8> {
    let text = |out: &mut Vec<u8>, text: &str| {
        out.extend((text.len() as u64).to_le_bytes());
        out.extend(text.as_bytes());
    };
    let mut out = b"GGUF\x03\0\0\0".to_vec();
    out.extend(1u64.to_le_bytes());
    out.extend((1 + numbers.len() as u64).to_le_bytes());
    text(&mut out, "general.architecture");
    out.extend(8u32.to_le_bytes());
    text(&mut out, architecture);
    for (key, number) in numbers {
        let key = if key.starts_with("split.") { (*key).to_owned() } else { format!("{architecture}.{key}") };
        text(&mut out, &key);
        out.extend(4u32.to_le_bytes());
        out.extend(number.to_le_bytes());
    }
    text(&mut out, "blk.0.attn_q.weight");
    out.extend(1u32.to_le_bytes());
    out.extend(elements.to_le_bytes());
    out.extend(0u32.to_le_bytes());
    out.extend(0u64.to_le_bytes());
    out
}

const SIZES: [(&str, u32); 4] =
    [("block_count", 12), ("embedding_length", 64), ("attention.head_count", 4), ("attention.head_count_kv", 2)];
const WINDOW: (&str, u32) = ("attention.sliding_window", 32);

fn read_numbers(architecture: &str, numbers: &[(&str, u32)], assume: &[&str]) -> Result<Model, FrontendError> {
    let path = tempfile::Builder::new().suffix(".gguf").tempfile().unwrap();
    fs::write(path.path(), header(architecture, numbers, 16)).unwrap();
    let assume = assume.iter().map(|text| text.parse().unwrap()).collect();
    Model::read(path.path(), &ReadOptions { assume, ..ReadOptions::default() })
}

fn resources(mut model: Model) -> Resources {
    model.graph.collect(&PassContext::default()).unwrap().resources
}

#[test]
fn a_split_model_weighs_what_all_its_files_weigh() {
    let folder = tempfile::tempdir().unwrap();
    let file = |number: u32| folder.path().join(format!("m-{number:05}-of-00002.gguf"));
    let part = |number: u32, elements| {
        let numbers = [&SIZES[..], &[("split.no", number - 1), ("split.count", 2)]].concat();
        fs::write(file(number), header("llama", &numbers, elements)).unwrap();
    };
    part(1, 1000);
    let alone = Model::read(&file(1), &ReadOptions::default()).unwrap();
    assert_eq!(alone.info.weights, None);
    assert!(alone.facts.iter().any(|fact| fact.assumed && fact.value == "file 2 is absent"));
    part(2, 234);
    let whole = Model::read(&file(1), &ReadOptions::default()).unwrap().info.weights.unwrap();
    assert_eq!((whole.bytes, whole.exact), (1234 * 4, true));
    let second = Model::read(&file(2), &ReadOptions::default()).unwrap_err();
    assert!(second.to_string().contains("the first file of the split"), "{second}");
}

#[rstest]
#[case::no_pattern("gemma3", &[WINDOW], &[5, 11])]
#[case::a_period("gemma3", &[WINDOW, ("attention.sliding_window_pattern", 4)], &[3, 7, 11])]
#[case::even_layers("gemma2", &[WINDOW], &[1, 3, 5, 7, 9, 11])]
#[case::another_period("gemma2", &[WINDOW, ("attention.sliding_window_pattern", 3)], &[2, 5, 8, 11])]
#[case::no_window("gemma2", &[WINDOW, ("attention.sliding_window_pattern", 1)], &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11])]
#[case::of_gpt_oss("gpt-oss", &[WINDOW, ("attention.key_length", 16), ("attention.sliding_window_pattern", 4)], &[3, 7, 11])]
#[case::eight_by_themselves("plamo3", &[WINDOW], &[7])]
#[case::draft_layers("glm4moe", &[("nextn_predict_layers", 2)], &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9])]
fn headers_say_which_layers_see_everything(
    #[case] architecture: &str,
    #[case] more: &[(&str, u32)],
    #[case] expected: &[u32],
) {
    let resources = resources(read_numbers(architecture, &[&SIZES[..], more].concat(), &[]).unwrap());
    let full = Growth::Paged { stride: 1, window: None };
    let found: Vec<u32> = resources.iter().filter(|r| r.handler.growth() == full).filter_map(|r| r.layer).collect();
    assert_eq!(found, expected);
}

/// llama.cpp keeps keys and values of every layer and token, whatever else these architectures differ in.
#[rstest]
fn architectures_of_full_attention_alone_keep_every_token(
    #[values(
        "apertus",
        "arctic",
        "baichuan",
        "bailingmoe",
        "bailingmoe2",
        "bitnet",
        "bloom",
        "chatglm",
        "codeshell",
        "dbrx",
        "exaone",
        "falcon",
        "gpt2",
        "gptneox",
        "grok",
        "grovemoe",
        "jais",
        "maincoder",
        "minicpm",
        "mpt",
        "nemotron",
        "olmo",
        "orion",
        "pangu-embedded",
        "phi2",
        "plamo",
        "qwen",
        "refact",
        "starcoder",
        "starcoder2",
        "xverse"
    )]
    architecture: &str,
) {
    let resources = resources(read_numbers(architecture, &SIZES, &[]).unwrap());
    assert_eq!(support::bytes_per_token(&resources), 12 * 2 * 2 * 16 * 2);
}

/// As many numbers as llama.cpp's `n_embd_s` and `n_embd_r` have, all in f32.
#[rstest]
#[case::both_blocks("rwkv7", &[], 2)]
#[case::attention_alone("arwkv7", &[("token_shift_count", 1)], 1)]
fn a_recurrence_of_rwkv_keeps_matrices_and_shifted_tokens(
    #[case] architecture: &str,
    #[case] more: &[(&str, u32)],
    #[case] shifts: u64,
) {
    let numbers = [&SIZES[..2], &[("wkv.head_size", 16), ("feed_forward_length", 128)], more].concat();
    let resources = resources(read_numbers(architecture, &numbers, &[]).unwrap());
    let bytes = [Kind::Ssm, Kind::State].map(|kind| support::state_bytes(&resources, &kind));
    assert_eq!(bytes, [12 * 64 * 16 * 4, 12 * shifts * 64 * 4]);
}

#[test]
fn a_header_cut_anywhere_is_an_error_and_no_panic() {
    let whole = fs::read(fixture("gguf/nemotron_h.gguf")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cut.gguf");
    for length in (0..whole.len() - 64).step_by(13) {
        fs::write(&path, &whole[..length]).unwrap();
        let error = Model::read(&path, &ReadOptions::default()).unwrap_err();
        assert!(matches!(error, FrontendError::Truncated { .. }), "{length}: {error}");
    }
}

#[test]
fn an_unknown_architecture_is_unsupported() {
    let mut file = fs::read(fixture("gguf/llama.gguf")).unwrap();
    let position = file.windows(5).position(|window| window == b"llama").unwrap();
    file[position] = b'x';
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    fs::write(&path, file).unwrap();
    let error = Model::read(&path, &ReadOptions::default()).unwrap_err();
    assert!(error.is_unsupported() && error.to_string().contains("gguf:xlama"), "{error}");
}

/// A quantised cache is the budget's choice: llama.cpp's q8_0 keeps 34 bytes per 32 numbers.
#[test]
fn a_quantised_cache_keeps_its_scales() {
    let mut model = support::read("gguf/qwen3.gguf");
    let dtypes = cacheplan_transforms::CacheDTypes { kv: Some(cacheplan_handlers::DType::Q8_0), ..Default::default() };
    let resources = model.graph.collect(&PassContext { dtypes, ..PassContext::default() }).unwrap().resources;
    assert_eq!(resources.get("kv_cache_0").unwrap().handler.unit_bytes(), 2 * 2 * 34);
}

/// The header of a Llama of one layer, and one tensor at an offset if there is any.
fn llama(offset: Option<u64>) -> Vec<u8> {
    let text = |text: &str| [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
    let mut file = b"GGUF\x03\0\0\0".to_vec();
    let numbers = ["block_count", "embedding_length", "attention.head_count", "feed_forward_length", "vocab_size"];
    file.extend(u64::from(offset.is_some()).to_le_bytes());
    file.extend((numbers.len() as u64 + 1).to_le_bytes());
    file.extend([text("general.architecture"), 8u32.to_le_bytes().to_vec(), text("llama")].concat());
    for (key, number) in numbers.iter().zip([1u32, 64, 4, 128, 100]) {
        file.extend(
            [text(&format!("llama.{key}")), 4u32.to_le_bytes().to_vec(), number.to_le_bytes().to_vec()].concat(),
        );
    }
    if let Some(offset) = offset {
        file.extend([text("token_embd.weight"), 2u32.to_le_bytes().to_vec()].concat());
        file.extend([64u64, 100].map(u64::to_le_bytes).concat());
        file.extend([0u32.to_le_bytes().to_vec(), offset.to_le_bytes().to_vec()].concat());
    }
    file
}

fn read_llama(offset: Option<u64>) -> Result<Model, FrontendError> {
    let file = tempfile::Builder::new().suffix(".gguf").tempfile().unwrap();
    fs::write(file.path(), llama(offset)).unwrap();
    Model::read(file.path(), &ReadOptions::default())
}

#[test]
fn a_file_without_tensors_says_nothing_of_weights() {
    let model = read_llama(None).unwrap();
    assert_eq!(model.info.weights, None);
    assert!(model.weights_unknown.is_some());
    assert_eq!(read_llama(Some(0)).unwrap().info.weights.unwrap().bytes, 64 * 100 * 4);
}

#[test]
fn a_tensor_beyond_any_file_is_refused_by_name() {
    let error = read_llama(Some(u64::MAX - 31)).unwrap_err().to_string();
    assert!(error.contains("`token_embd.weight` is an offset of 18446744073709551584 bytes"), "{error}");
}

/// llama.cpp keeps keys and values in widths of their own.
#[rstest]
fn values_may_be_wider_or_narrower_than_keys(
    #[values("llama", "qwen2", "qwen3", "qwen3moe", "arcee", "gemma2", "plamo3")] architecture: &str,
    #[values((24, 8), (8, 24), (16, 16))] (key, value): (u32, u32),
) {
    let lengths = [("attention.key_length", key), ("attention.value_length", value)];
    let resources = resources(read_numbers(architecture, &[&SIZES[..], &lengths].concat(), &[]).unwrap());
    assert_eq!(support::bytes_per_token(&resources), u64::from(12 * 2 * (key + value) * 2));
}

/// What nothing reads is refused by its path, unless it says nothing or the caller says so.
#[rstest]
#[case("llama", "attention.sliding_window")]
#[case("llama", "attention.key_length_swa")]
#[case("llama", "attention.kv_lora_rank")]
#[case("glm4moe", "attention.sliding_window")]
#[case("qwen2", "attention.sliding_window_pattern")]
#[case("qwen3", "attention.shared_kv_layers")]
#[case("gemma2", "attention.shared_kv_layers")]
#[case("arcee", "attention.indexer.key_length")]
#[case("olmo", "full_attention_interval")]
#[case("plamo3", "ssm.state_size")]
fn a_key_of_caches_that_nothing_reads_is_refused(#[case] architecture: &str, #[case] key: &str) {
    let with = |number| [&SIZES[..], &[(key, number)]].concat();
    let error = read_numbers(architecture, &with(7), &[]).unwrap_err();
    assert!(error.is_unsupported(), "{error}");
    assert!(error.to_string().contains(&format!("`{key}` of model_type `gguf:{architecture}` is 7")), "{error}");
    assert!(read_numbers(architecture, &with(7), &[&format!("{key}=null")]).is_ok(), "{key}");
    assert!(read_numbers(architecture, &with(0), &[]).is_ok(), "{key}");
}

/// A key that some architecture makes caches of is refused, or makes others.
#[rstest]
fn no_key_of_caches_is_passed_over(
    #[values("llama", "qwen2", "qwen3", "qwen3moe", "arcee", "gemma2", "gemma3", "gpt-oss", "plamo3")]
    architecture: &str,
    #[values(
        ("attention.head_count_kv", 4),
        ("attention.key_length", 8),
        ("attention.value_length", 8),
        ("attention.key_length_swa", 8),
        ("attention.value_length_swa", 8),
        ("attention.sliding_window", 16),
        ("attention.sliding_window_pattern", 3),
        ("attention.kv_lora_rank", 8),
        ("attention.shared_kv_layers", 3),
        ("attention.recurrent_layers", 3),
        ("attention.compress_ratios", 4),
        ("attention.indexer.key_length", 8),
        ("full_attention_interval", 3),
        ("shortconv.l_cache", 3),
        ("ssm.conv_kernel", 3),
        ("ssm.state_size", 8)
    )]
    (key, number): (&str, u32),
) {
    let mut numbers = SIZES.to_vec();
    numbers.extend([("attention.key_length", 16), ("attention.value_length", 16)]);
    if ["gemma2", "gemma3", "gpt-oss", "plamo3"].contains(&architecture) {
        numbers.push(WINDOW);
    }
    let usual = essence(&resources(read_numbers(architecture, &numbers, &[]).unwrap()));
    numbers.retain(|(known, _)| *known != key);
    numbers.push((key, number));
    match read_numbers(architecture, &numbers, &[]) {
        Ok(model) => assert_ne!(essence(&resources(model)), usual),
        Err(error) => assert!(error.to_string().contains(key), "{error}"),
    }
}

/// Phi-3's files state a window, which llama.cpp has not, and RWKV's how often it rescales.
#[rstest]
#[case("phi3", "attention.sliding_window", &SIZES)]
#[case("rwkv6", "rescale_every_n_layers", &[SIZES[0], SIZES[1], ("wkv.head_size", 16)])]
fn a_key_that_means_no_cache_where_it_stands_is_ignored(
    #[case] architecture: &str,
    #[case] key: &str,
    #[case] numbers: &[(&str, u32)],
) {
    let plain = essence(&resources(read_numbers(architecture, numbers, &[]).unwrap()));
    let stated = read_numbers(architecture, &[numbers, &[(key, 6)]].concat(), &[]).unwrap();
    assert_eq!(essence(&resources(stated)), plain);
}

/// With a length of a head's key apart a file has one head in its cache, without it all of them.
#[rstest]
#[case(&[("attention.head_count_kv", 1), ("attention.key_length_mla", 24)], Ok("gguf:deepseek2"))]
#[case(&[("attention.head_count_kv", 4)], Ok("gguf:deepseek2-whole"))]
#[case(&[("attention.head_count_kv", 4), ("attention.key_length_mla", 24)], Err("`attention.head_count_kv`"))]
#[case(&[("attention.head_count_kv", 1)], Err("`attention.head_count_kv`"))]
fn latents_are_one_head_or_multiplied_out(#[case] more: &[(&str, u32)], #[case] expected: Result<&str, &str>) {
    let rest = [("attention.kv_lora_rank", 32), ("rope.dimension_count", 8)];
    let lengths = [("attention.key_length", 24), ("attention.value_length", 16)];
    match (read_numbers("deepseek2", &[&SIZES[..3], &rest, &lengths, more].concat(), &[]), expected) {
        (Ok(model), Ok(model_type)) => assert_eq!(model.info.model_type, model_type),
        (Err(error), Err(said)) => assert!(error.to_string().contains(said), "{error}"),
        (found, _) => panic!("{found:?}"),
    }
}
