//! Inputs that ask for far more than they are worth are refused within 64 MiB and seconds, and large honest ones are read
//! within 64 MiB and 4 times the file.

use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;
use std::time::Duration;

use cacheplan_files::Source;
use cacheplan_transforms::{FrontendError, Model, PassContext, ReadOptions};
use cpu_time::ThreadTime;
use rstest::rstest;

const MIB: u64 = 1 << 20;
/// Of a processor, in a debug build.
const MAX_TIME: Duration = Duration::from_secs(2);

/// Reads within the limits for what is refused, or with a model for what is accepted.
fn within_limits(bytes: u64, read: impl FnOnce() -> Result<Model, FrontendError>) -> Result<Model, FrontendError> {
    let start = ThreadTime::now();
    let mut result = None;
    let memory = allocation_counter::measure(|| result = Some(read()));
    let result = result.unwrap();
    let most = 64 * MIB + if result.is_ok() { 4 * bytes } else { 0 };
    assert!(memory.bytes_max <= most, "took {} bytes", memory.bytes_max);
    assert!(start.elapsed() < MAX_TIME, "took {:?}", start.elapsed());
    result
}

fn config(text: String) -> Result<Model, FrontendError> {
    let length = text.len() as u64;
    within_limits(length, || Model::read_source(&Source::memory("config.json", text), &[], &ReadOptions::default()))
}

fn file(path: &Path) -> Result<Model, FrontendError> {
    within_limits(fs::metadata(path).unwrap().len(), || Model::read(path, &ReadOptions::default()))
}

const LLAMA: &str = r#""model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4"#;

#[rstest]
#[case::padded(format!("{{{LLAMA}}}{}", " ".repeat(200 << 20)), "a config of more than 8388608 bytes is not read")]
#[case::many_layers(format!("{{{LLAMA}, \"layer_types\": [{}\"a\"]}}", "\"mamba\",".repeat(1_000_000)), "take more than")]
#[case::open_brackets("[".repeat(8 << 20), "recursion limit")]
#[case::long_name(format!("{{\"model_type\": {:?}}}", "x".repeat(7 << 20)), "unknown model_type")]
#[case::twice(format!("{{{LLAMA}, \"hidden_size\": 8}}"), "the key `hidden_size` is stated twice")]
fn configs_that_ask_for_too_much_are_refused(#[case] text: String, #[case] expected: &str) {
    let message = config(text).unwrap_err().to_string();
    assert!(message.contains(expected) && message.len() < 4096, "{} bytes: {:.500}", message.len(), message);
}

#[test]
fn a_large_honest_config_is_read() {
    assert!(config(format!("{{{LLAMA}, \"x\": {:?}}}", "y".repeat(7 << 20))).is_ok());
}

/// The graph of one is walked within as much again.
#[rstest]
#[case::hybrid(
    r#""model_type": "nemotron_h", "hidden_size": 64, "mamba_num_heads": 8, "mamba_head_dim": 16, "ssm_state_size": 16,
       "vocab_size": 32, "hybrid_override_pattern""#,
    format!("{:?}", "M".repeat(1024))
)]
#[case::recurrent(
    r#""d_model": 64, "d_intermediate": 0, "vocab_size": 32, "ssm_cfg": {"layer": "Mamba2"}, "attn_layer_idx": [],
       "attn_cfg": {}, "rms_norm": true, "tie_embeddings": true, "n_layer""#,
    "1024".to_owned()
)]
fn the_most_layers_that_are_read_stay_within_the_limit(#[case] keys: &str, #[case] layers: String) {
    let mut model = config(format!("{{{keys}: {layers}}}")).unwrap();
    let memory = allocation_counter::measure(|| assert!(model.graph.collect(&PassContext::default()).is_ok()));
    assert!(memory.bytes_max <= 16 * MIB, "walking took {} bytes", memory.bytes_max);
}

/// A GGUF file of `length` bytes, nearly all of them zero and not on the disk, with one key that has this value.
fn sparse_gguf(path: &Path, kind: u32, value: &[u8], length: u64) {
    let mut bytes = b"GGUF\x03\0\0\0".to_vec();
    bytes.extend(0u64.to_le_bytes());
    bytes.extend(1u64.to_le_bytes());
    bytes.extend(20u64.to_le_bytes());
    bytes.extend(b"general.architecture");
    bytes.extend(kind.to_le_bytes());
    bytes.extend(value);
    let mut file = File::create(path).unwrap();
    file.write_all(&bytes).unwrap();
    file.seek(SeekFrom::Start(length - 1)).unwrap();
    file.write_all(&[0]).unwrap();
}

#[rstest]
#[case::bytes(0, 259 << 20, "longer than 67108864 bytes")]
#[case::numbers(4, 60_000_000, "longer than 67108864 bytes")]
#[case::texts(8, 32_000_000, "at most 2097152 are read")]
#[case::lists(9, 32_000_000, "a list of lists")]
fn endless_lists_of_a_gguf_file_are_refused(#[case] kind: u32, #[case] length: u64, #[case] expected: &str) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    let list = [&kind.to_le_bytes()[..], &length.to_le_bytes()].concat();
    sparse_gguf(&path, 9, &list, 260 << 20);
    let message = file(&path).unwrap_err().to_string();
    assert!(message.contains(expected), "{message}");
}

#[test]
fn a_safetensors_header_that_lies_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("config.json"), format!("{{{LLAMA}}}")).unwrap();
    let path = folder.path().join("model.safetensors");
    let read = |header: &str, data: usize| {
        let text = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &vec![0; data]].concat();
        fs::write(&path, text).unwrap();
        file(folder.path()).unwrap_err().to_string()
    };
    let tensor = |dtype: &str, shape: &str, offsets: &str| {
        format!("{{\"dtype\": \"{dtype}\", \"shape\": {shape}, \"data_offsets\": {offsets}}}")
    };
    let one = |tensor: String| format!("{{\"a\": {tensor}}}");
    assert!(read(&one(tensor("F32", "[2]", "[0, 4]")), 4).contains("which F32 of shape [2] does not take"));
    assert!(read(&one(tensor("F32", "[1]", "[4, 0]")), 4).contains("ends before it begins"));
    assert!(read(&one(tensor("F32", "[1]", "[4, 8]")), 8).contains("the byte behind the tensor before it"));
    assert!(read(&one(tensor("F32", "[1]", "[0, 4]")), 9).contains("4 are those of its tensors"));
    assert!(read(&one(tensor("F32", "[1,1,1,1,1,1,1,1,1]", "[0, 4]")), 4).contains("has 9 axes"));
    let (first, second) = (tensor("F32", "[1]", "[0, 4]"), tensor("F32", "[1]", "[0, 4]"));
    assert!(read(&format!("{{\"a\": {first}, \"b\": {second}}}"), 8).contains("the byte behind the tensor before it"));
    assert!(read(&format!("{{\"a\": {first}, \"a\": {second}}}"), 8).contains("stated twice"));
}

#[test]
fn an_index_is_not_believed_about_shards_that_are_not_there() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(
        folder.path().join("config.json"),
        format!("{{{LLAMA}, \"vocab_size\": 1000, \"intermediate_size\": 128}}"),
    )
    .unwrap();
    let index = |size: u64| {
        let text =
            format!("{{\"metadata\": {{\"total_size\": {size}}}, \"weight_map\": {{\"a\": \"1.safetensors\"}}}}");
        fs::write(folder.path().join("model.safetensors.index.json"), text).unwrap();
        file(folder.path())
    };
    let message = index(1).unwrap_err().to_string();
    assert!(message.contains("`metadata.total_size` is 1; about"), "{message}");
    assert!(!index(1_000_000).unwrap().info.weights.unwrap().exact);
}

#[rstest]
#[case::shards((0..1_000_000).map(|n| format!("\"{n}\":\"{n}\",")).collect(), "more than 10000 files")]
#[case::a_name(format!("\"x\":\"{}\",", "b".repeat(17 << 20)), "a file name of more than 255 bytes")]
fn an_index_of_endless_shards_is_refused(#[case] map: String, #[case] expected: &str) {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("config.json"), format!("{{{LLAMA}}}")).unwrap();
    fs::write(folder.path().join("model.safetensors.index.json"), format!("{{\"weight_map\": {{{map}\"a\":\"b\"}}}}"))
        .unwrap();
    let message = file(folder.path()).unwrap_err().to_string();
    assert!(message.contains(expected), "{message}");
}

/// A field of a message that is a message or a text.
fn field(tag: u8, content: &[u8]) -> Vec<u8> {
    let mut bytes = vec![tag << 3 | 2];
    let mut length = content.len();
    while length > 0x7f {
        bytes.push(0x80 | (length & 0x7f) as u8);
        length >>= 7;
    }
    bytes.push(length as u8);
    bytes.extend(content);
    bytes
}

fn graph(nodes: &[u8]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.onnx");
    fs::write(&path, field(7, nodes)).unwrap();
    file(&path).unwrap_err().to_string()
}

/// 200,000 nodes that are as small as real ones: refused, or read within the limit for what is accepted.
#[test]
fn a_graph_of_very_many_nodes_stays_within_the_limit() {
    let node = |n: u32| {
        let fields = [(1, format!("a{n}")), (2, format!("a{}", n + 1)), (3, format!("node{n}")), (4, "Add".into())];
        field(1, &fields.map(|(tag, text)| field(tag, text.as_bytes())).concat())
    };
    let message = graph(&(0..200_000).flat_map(node).collect::<Vec<u8>>());
    assert!(message.contains("nodes, values and names take more than"), "{message}");
}

/// Numbers of eleven bytes, one of which lies across the limit.
#[test]
fn a_graph_that_is_too_long_is_refused_in_the_midst_of_a_number() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.onnx");
    fs::write(&path, b"\x08\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01".repeat((33 << 20) / 11)).unwrap();
    let message = file(&path).unwrap_err().to_string();
    assert!(message.contains("an ONNX graph of more than 33554432 bytes is not read"), "{message}");
}

/// Nodes of two bytes each, that are empty.
#[test]
fn a_graph_of_endless_nodes_is_refused() {
    let message = graph(&[0x0a, 0x00].repeat(2 << 20));
    assert!(message.contains("nodes, values and names take more than 58720256 bytes"), "{message}");
}

#[test]
fn a_graph_that_goes_in_a_circle_or_keeps_nothing_is_refused() {
    let node = |name: &str, input: &str, output: &str| {
        let fields = [(1, input), (2, output), (3, name), (4, "Add")];
        field(1, &fields.map(|(tag, text)| field(tag, text.as_bytes())).concat())
    };
    let circle = graph(&[node("first", "b", "a"), node("second", "a", "b")].concat());
    assert!(circle.contains("node `first`: it reads what a later node makes"), "{circle}");
    let cacheless = graph(&[node("first", "x", "a"), node("second", "a", "b")].concat());
    assert!(cacheless.contains("there is nothing to plan"), "{cacheless}");
}

/// A link to itself is there and cannot be read, as a folder is that one may not look into.
#[rstest]
#[case("config.json")]
#[case("hf_quant_config.json")]
#[case("model.safetensors")]
#[case("model.safetensors.index.json")]
#[cfg(unix)]
fn a_file_that_is_there_and_cannot_be_read_is_an_error(#[case] name: &str) {
    let folder = tempfile::tempdir().unwrap();
    if name != "config.json" {
        fs::write(folder.path().join("config.json"), format!("{{{LLAMA}}}")).unwrap();
    }
    std::os::unix::fs::symlink(name, folder.path().join(name)).unwrap();
    let message = file(folder.path()).unwrap_err().to_string();
    assert!(message.contains(name) && !message.contains("there is no config.json"), "{message}");
}

#[test]
fn a_model_in_memory_reads_as_the_folder_does() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/models/llama");
    let memory = |name: &str| Source::memory(name, fs::read(folder.join(name)).unwrap());
    let (weights, config) = (memory("model.safetensors"), memory("config.json"));
    let from_memory = Model::read_source(&weights, &[config], &ReadOptions::default()).unwrap();
    let mut from_folder = Model::read(&folder, &ReadOptions::default()).unwrap();
    // What lies in memory has no folder to be called by.
    assert_eq!(from_folder.info.name.take().as_deref(), Some("llama"));
    assert_eq!(from_memory.info, from_folder.info);
    let alone = Model::read_source(&weights, &[], &ReadOptions::default()).unwrap_err();
    assert!(matches!(alone, FrontendError::NoConfig { .. }), "{alone}");
}

/// A model of so many layers, as its description counts them.
fn counted(layers: &str, keys: &str) -> Result<Model, FrontendError> {
    let options = ReadOptions {
        descriptions: vec![format!("model_types = [\"odd\"]\nlayers = \"{layers}\"\n")],
        ..ReadOptions::default()
    };
    let text = format!("{{{LLAMA}{keys}}}").replace("llama", "odd");
    within_limits(text.len() as u64, || Model::read_source(&Source::memory("config.json", text), &[], &options))
}

/// The limit of one sum bounds nothing of sums inside of it, on either side, nor of what else takes long inside of one.
#[rstest]
#[case::added(|inner| format!("sum(1000, {inner})"), "layer")]
#[case::counted(|inner| format!("sum({inner} % 100 + 900, {inner} + 1)"), "1")]
#[case::beside(|inner| format!("sum(1000, {inner} + {inner}) + sum(30, {inner})"), "1")]
#[case::at(|inner| format!("sum(1000, at(layer, {inner}))"), "1")]
#[case::primes(|inner| format!("sum(1000, {inner})"), "primes(1000, 4096)")]
#[case::list(|inner| format!("sum(1000, {inner})"), "in(list)")]
fn the_work_of_an_expression_is_bounded_however_sums_nest(#[case] nest: fn(String) -> String, #[case] inner: &str) {
    let list = format!(", \"list\": [{}1]", "5,".repeat(100_000));
    let keys = if inner.contains("list") { list } else { String::new() };
    let nested = (1..4).scan(inner.to_owned(), |expression, _| {
        *expression = nest(expression.clone());
        Some(expression.clone())
    });
    let mut refused = Vec::new();
    for expression in nested {
        let layers = format!("({expression}) // 1000000000000000 + 2");
        if let Err(error) = counted(&layers, &keys) {
            assert!(matches!(error, FrontendError::Description { .. }), "{error}");
            refused.push(error.to_string());
        }
    }
    assert!(refused.last().is_some_and(|error| error.contains("take more than 1048576 steps")), "{refused:?}");
}

#[rstest]
#[case("5 // 0", "`5 // 0`")]
#[case("power(2, 63)", "`power(2, 63)`")]
#[case("primes(1, 1000000000)", "`primes(1, 1000000000)`")]
#[case("5 / 2", "`5 / 2`")]
#[case("sum(3, layer - 1)", "`0 - 1`")]
fn an_expression_is_quoted_as_it_is_written(#[case] layers: &str, #[case] quoted: &str) {
    let error = counted(layers, "").unwrap_err().to_string();
    assert_eq!(error, format!("architecture description of `odd`: {quoted} is not a whole number in range"));
}

#[test]
fn a_description_that_counts_below_zero_says_so() {
    let description = "model_types = [\"odd\"]\nlayers = \"1 - 5\"\n".to_owned();
    let options = ReadOptions { descriptions: vec![description], ..ReadOptions::default() };
    let text = format!("{{{LLAMA}}}").replace("llama", "odd");
    let error = Model::read_source(&Source::memory("config.json", text), &[], &options).unwrap_err().to_string();
    assert_eq!(error, "architecture description of `odd`: `1 - 5` is not a whole number in range");
    let descriptions = vec!["model_types = [\"odd\"]\n\nlayers = 7\n".to_owned()];
    let options = ReadOptions { descriptions, ..ReadOptions::default() };
    let error =
        Model::read_source(&Source::memory("c", "{\"model_type\": \"odd\"}"), &[], &options).unwrap_err().to_string();
    assert!(error.contains("line 3: ") && !error.contains('\n'), "{error}");
}
