//! GGUF files of every architecture give what transformers computes with the numbers of their blocks.

use std::path::{Path, PathBuf};

use cacheplan_runtime::{Prompt, Prompts, RuntimeError, Session, SessionOptions, WeightError};
use cacheplan_text::Message;
use cacheplan_transforms::Model;
use candle_core::{DType, Device, Tensor};
use rstest::rstest;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{Driven, Golden};

fn file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/gguf/models").join(name)
}

/// The token ids of a golden file and the logits behind each.
fn golden(name: &str) -> (Vec<u32>, Tensor) {
    let mut tensors =
        candle_core::safetensors::load(file(&format!("{name}.golden.safetensors")), &Device::Cpu).unwrap();
    let ids = tensors.remove("ids").unwrap().to_dtype(DType::U32).unwrap().to_vec1().unwrap();
    (ids, tensors.remove("logits").unwrap())
}

/// Fails unless all are within 1e-4 of the largest.
#[track_caller]
fn assert_near(ours: &Tensor, theirs: &Tensor, what: &str) {
    assert_eq!(ours.dims(), theirs.dims(), "{what}");
    let values = |tensor: &Tensor| tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap();
    let theirs = values(theirs);
    let largest = theirs.iter().fold(0f32, |most, value| most.max(value.abs()));
    for (at, (ours, theirs)) in values(ours).into_iter().zip(theirs).enumerate() {
        // Written so that NaN fails.
        assert!((ours - theirs).abs() <= 1e-4 * largest, "{what}: element {at} is {ours}, expected {theirs}");
    }
}

/// A prefill of more rows than are streamed, a chunk of a few, then single rows.
#[rstest]
fn a_file_gives_the_golden_logits(
    #[values(
        "llama",
        "llama.k",
        "llama.experts",
        "qwen2",
        "qwen3",
        "qwen3moe",
        "gemma3",
        "gpt-oss",
        "mamba2",
        "nemotron_h",
        "nemotron_h_moe",
        "granitehybrid",
        "lfm2",
        "qwen3next",
        "qwen35",
        "qwen35moe",
        "falcon-h1"
    )]
    name: &str,
) {
    let (ids, expected) = golden(name);
    // Quantised files are planned with caches of 16 bits, which would round.
    let mut driven = Driven::open_assuming(&file(&format!("{name}.gguf")), "dtype=f32");
    let sequence = driven.admit(13);
    let mut logits = vec![driven.step(&[(sequence, &ids[..13])])];
    logits.push(driven.step(&[(sequence, &ids[13..18])]));
    logits.extend((18..ids.len()).map(|at| driven.step(&[(sequence, &ids[at..at + 1])])));
    assert_near(&Tensor::cat(&logits, 0).unwrap(), &expected, name);
}

/// What opening a changed copy of a file says.
fn refused(name: &str, change: impl FnOnce(&mut Vec<u8>)) -> RuntimeError {
    let mut bytes = std::fs::read(file(&format!("{name}.gguf"))).unwrap();
    change(&mut bytes);
    let folder = TempDir::new().unwrap();
    let copy = folder.path().join("changed.gguf");
    std::fs::write(&copy, bytes).unwrap();
    Session::open(&copy, SessionOptions::default()).unwrap_err()
}

/// Where the header describes a tensor, behind its name.
fn described(bytes: &[u8], tensor: &str) -> usize {
    let at = bytes.windows(tensor.len()).position(|window| window == tensor.as_bytes());
    at.unwrap() + tensor.len()
}

#[test]
fn a_file_that_is_cut_off_names_the_tensor_that_is_gone() {
    let error = refused("llama", |bytes| bytes.truncate(bytes.len() - 40));
    let message = error.to_string();
    assert!(matches!(error, RuntimeError::Weights(WeightError::Malformed { .. })), "{message}");
    assert!(message.contains("changed.gguf: the file ends at byte") && message.contains("its tensor `"), "{message}");
}

#[test]
fn numbers_that_are_none_name_file_and_tensor() {
    let files = Model::gguf_files(&file("llama.gguf")).unwrap().files;
    let norm = files[0].tensors.iter().find(|tensor| tensor.name == "output_norm.weight").unwrap();
    let at = norm.offset as usize;
    let error = refused("llama", |bytes| bytes[at..at + 4].copy_from_slice(&f32::NAN.to_le_bytes()));
    let message = error.to_string();
    assert!(
        matches!(&error, RuntimeError::Weights(WeightError::NotFinite { name, .. }) if name == "output_norm.weight"),
        "{message}"
    );
    assert!(
        message.contains("changed.gguf: tensor `output_norm.weight` has numbers that are infinite or none"),
        "{message}"
    );
}

#[test]
fn a_tensor_of_another_shape_names_both() {
    let error = refused("llama", |bytes| {
        let at = described(bytes, "output_norm.weight");
        bytes[at + 4] = 16;
    });
    let message = error.to_string();
    assert!(
        message.contains("changed.gguf: tensor `output_norm.weight` has shape [16], the config asks for [32]"),
        "{message}"
    );
}

#[test]
fn a_type_that_is_not_run_is_refused_by_its_name() {
    let error = refused("llama", |bytes| {
        let at = described(bytes, "output_norm.weight");
        bytes[at + 12] = 20;
    });
    let message = error.to_string();
    assert!(
        matches!(&error, RuntimeError::Weights(WeightError::Blocks { found, .. }) if found == "IQ4_NL"),
        "{message}"
    );
    assert!(message.contains("`output_norm.weight` is IQ4_NL") && message.contains("it runs F32"), "{message}");
}

#[test]
fn a_missing_tensor_is_named_as_the_file_would() {
    let error = refused("llama", |bytes| {
        let at = described(bytes, "output_norm.weight");
        bytes[at - 1] = b'x';
    });
    let message = error.to_string();
    assert!(message.contains("tensor `model.norm.weight` of shape [32] is missing"), "{message}");
    assert!(message.contains("has no `output_norm.weight`"), "{message}");
}

#[test]
fn a_missing_file_of_a_split_is_named() {
    let folder = TempDir::new().unwrap();
    let first = folder.path().join("m-00001-of-00002.gguf");
    let mut bytes = std::fs::read(file("qwen3.gguf")).unwrap();
    // One more key behind the counts: of how many files this is the first.
    let keys = u64::from_le_bytes(bytes[16..24].try_into().unwrap()) + 1;
    bytes[16..24].copy_from_slice(&keys.to_le_bytes());
    let mut key = 11u64.to_le_bytes().to_vec();
    key.extend(b"split.count");
    key.extend([2, 0, 0, 0, 2, 0]);
    bytes.splice(24..24, key);
    std::fs::write(&first, bytes).unwrap();
    let message = Session::open(&first, SessionOptions::default()).unwrap_err().to_string();
    assert!(message.contains("file 2 of 2 is absent") && message.contains("m-00002-of-00002.gguf"), "{message}");
}

/// Of what a plan is not made of, a run does not guess.
#[test]
fn an_architecture_without_a_decoder_is_refused_by_name() {
    let error = refused("llama", |bytes| {
        let names: Vec<usize> = (0..bytes.len() - 5).filter(|&at| &bytes[at..at + 5] == b"llama").collect();
        names.into_iter().for_each(|at| bytes[at..at + 5].copy_from_slice(b"arcee"));
    });
    assert!(error.to_string().contains("gguf:arcee") && error.exit_code() == 4, "{error}");
}

/// A GGUF file of f32 tensors, their axes the slowest first, and of keys.
fn written(keys: &[(&str, Value)], tensors: &[(String, Tensor)]) -> Vec<u8> {
    fn text(out: &mut Vec<u8>, text: &str) {
        out.extend((text.len() as u64).to_le_bytes());
        out.extend(text.as_bytes());
    }
    let mut out = b"GGUF".to_vec();
    out.extend(3u32.to_le_bytes());
    out.extend((tensors.len() as u64).to_le_bytes());
    out.extend((keys.len() as u64).to_le_bytes());
    for (key, value) in keys {
        text(&mut out, key);
        match value {
            Value::String(value) => {
                out.extend(8u32.to_le_bytes());
                text(&mut out, value);
            }
            Value::Array(list) if list.iter().all(Value::is_string) => {
                out.extend([9u32.to_le_bytes(), 8u32.to_le_bytes()].concat());
                out.extend((list.len() as u64).to_le_bytes());
                list.iter().for_each(|one| text(&mut out, one.as_str().unwrap()));
            }
            Value::Array(list) => {
                out.extend([9u32.to_le_bytes(), 4u32.to_le_bytes()].concat());
                out.extend((list.len() as u64).to_le_bytes());
                list.iter().for_each(|one| out.extend((one.as_u64().unwrap() as u32).to_le_bytes()));
            }
            Value::Number(number) if number.is_u64() => {
                out.extend(4u32.to_le_bytes());
                out.extend((number.as_u64().unwrap() as u32).to_le_bytes());
            }
            other => {
                out.extend(6u32.to_le_bytes());
                out.extend((other.as_f64().unwrap() as f32).to_le_bytes());
            }
        }
    }
    let mut offset = 0u64;
    for (name, tensor) in tensors {
        text(&mut out, name);
        out.extend((tensor.rank() as u32).to_le_bytes());
        tensor.dims().iter().rev().for_each(|size| out.extend((*size as u64).to_le_bytes()));
        out.extend(0u32.to_le_bytes());
        out.extend(offset.to_le_bytes());
        offset += (4 * tensor.elem_count() as u64).next_multiple_of(32);
    }
    for (_, tensor) in tensors {
        out.resize(out.len().next_multiple_of(32), 0);
        let values = tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        out.extend(values.into_iter().flat_map(f32::to_le_bytes));
    }
    out
}

/// The rows of heads with those that are rotated together beside each other.
fn permuted(rows: &Tensor, heads: usize) -> Tensor {
    let (all, columns) = rows.dims2().unwrap();
    let halves = rows.reshape((heads, 2, all / heads / 2, columns)).unwrap();
    halves.transpose(1, 2).unwrap().contiguous().unwrap().reshape((all, columns)).unwrap()
}

/// Groups of `width` along an axis, of which the first of each of `groups` come first, then the second of each.
fn tiled(tensor: &Tensor, axis: usize, groups: usize, width: usize) -> Tensor {
    let heads = tensor.dims()[axis] / width;
    let order = (0..heads / groups).flat_map(|nth| (0..groups).map(move |group| group * (heads / groups) + nth));
    let order: Vec<u32> = order.flat_map(|head| head * width..(head + 1) * width).map(|at| at as u32).collect();
    tensor.index_select(&Tensor::new(order, &Device::Cpu).unwrap(), axis).unwrap()
}

/// Opens a file of these keys and tensors, and gives the logits behind each of some tokens.
fn logits_of(keys: &[(&str, Value)], tensors: &[(String, Tensor)], ids: &[u32]) -> Tensor {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("model.gguf");
    std::fs::write(&path, written(keys, tensors)).unwrap();
    let mut driven = Driven::open_assuming(&path, "dtype=f32");
    let sequence = driven.admit(ids.len());
    driven.step(&[(sequence, ids)])
}

/// The tensors of a fixture, as llama.cpp's converter would name and change them.
fn converted(folder: &Path, change: impl Fn(&str, Tensor) -> Vec<(String, Tensor)>) -> Vec<(String, Tensor)> {
    let tensors = candle_core::safetensors::load(folder.join("model.safetensors"), &Device::Cpu).unwrap();
    let mut tensors: Vec<_> = tensors.into_iter().flat_map(|(name, tensor)| change(&name, tensor)).collect();
    tensors.sort_by(|left, right| left.0.cmp(&right.0));
    tensors
}

/// What a name of a checkpoint becomes, by the end of it.
fn renamed(name: &str, table: &[(&str, &str)]) -> String {
    let name = name.strip_prefix("model.").unwrap_or(name).replace("layers.", "blk.");
    let (old, new) = table.iter().find(|(old, _)| name.ends_with(old)).unwrap_or_else(|| panic!("{name}"));
    name.replace(old, new)
}

const AROUND: [(&str, &str); 4] = [
    ("embed_tokens.weight", "token_embd.weight"),
    ("lm_head.weight", "output.weight"),
    ("input_layernorm.weight", "attn_norm.weight"),
    ("self_attn.o_proj.weight", "attn_output.weight"),
];

#[test]
fn a_mixtral_in_a_file_of_llamas_gives_the_golden_logits() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/variants/mixtral_stacked");
    let table = [
        &AROUND[..],
        &[
            ("self_attn.q_proj.weight", "attn_q.weight"),
            ("self_attn.k_proj.weight", "attn_k.weight"),
            ("self_attn.v_proj.weight", "attn_v.weight"),
            ("post_attention_layernorm.weight", "ffn_norm.weight"),
            ("mlp.gate.weight", "ffn_gate_inp.weight"),
            ("mlp.experts.down_proj", "ffn_down_exps.weight"),
            ("norm.weight", "output_norm.weight"),
        ],
    ]
    .concat();
    let tensors = converted(&folder, |name, tensor| match name.strip_prefix("model.layers.0.") {
        Some("mlp.experts.gate_up_proj") => {
            let half = tensor.dims()[1] / 2;
            let part = |name: &str, at| (format!("blk.0.{name}"), tensor.narrow(1, at, half).unwrap());
            vec![part("ffn_gate_exps.weight", 0), part("ffn_up_exps.weight", half)]
        }
        Some("self_attn.q_proj.weight") => vec![(renamed(name, &table), permuted(&tensor, 3))],
        Some("self_attn.k_proj.weight") => vec![(renamed(name, &table), permuted(&tensor, 1))],
        _ => vec![(renamed(name, &table), tensor)],
    });
    let keys = [
        ("general.architecture", json!("llama")),
        ("llama.block_count", json!(1)),
        ("llama.context_length", json!(64)),
        ("llama.embedding_length", json!(12)),
        ("llama.feed_forward_length", json!(20)),
        ("llama.attention.head_count", json!(3)),
        ("llama.attention.head_count_kv", json!(1)),
        ("llama.attention.key_length", json!(8)),
        ("llama.attention.value_length", json!(8)),
        ("llama.attention.layer_norm_rms_epsilon", json!(1e-5)),
        ("llama.rope.freq_base", json!(1e6)),
        ("llama.rope.dimension_count", json!(8)),
        ("llama.expert_count", json!(2)),
        ("llama.expert_used_count", json!(1)),
    ];
    let golden = Golden::load_from(&folder);
    let logits = logits_of(&keys, &tensors, &golden.ids("ids"));
    assert_near(&logits, &golden.get("full_logits"), "mixtral");
}

#[test]
fn a_qwen35_gives_the_golden_logits() {
    let folder = crate::harness::folder("qwen3_5_text");
    let table = [
        &AROUND[..],
        &[
            ("self_attn.q_proj.weight", "attn_q.weight"),
            ("self_attn.k_proj.weight", "attn_k.weight"),
            ("self_attn.v_proj.weight", "attn_v.weight"),
            ("self_attn.q_norm.weight", "attn_q_norm.weight"),
            ("self_attn.k_norm.weight", "attn_k_norm.weight"),
            ("post_attention_layernorm.weight", "post_attention_norm.weight"),
            ("mlp.gate_proj.weight", "ffn_gate.weight"),
            ("mlp.up_proj.weight", "ffn_up.weight"),
            ("mlp.down_proj.weight", "ffn_down.weight"),
            ("linear_attn.A_log", "ssm_a"),
            ("linear_attn.dt_bias", "ssm_dt.bias"),
            ("linear_attn.conv1d.weight", "ssm_conv1d.weight"),
            ("linear_attn.in_proj_a.weight", "ssm_alpha.weight"),
            ("linear_attn.in_proj_b.weight", "ssm_beta.weight"),
            ("linear_attn.in_proj_qkv.weight", "attn_qkv.weight"),
            ("linear_attn.in_proj_z.weight", "attn_gate.weight"),
            ("linear_attn.norm.weight", "ssm_norm.weight"),
            ("linear_attn.out_proj.weight", "ssm_out.weight"),
            ("norm.weight", "output_norm.weight"),
        ],
    ]
    .concat();
    // Two key heads and four value heads, all of 16 channels.
    let behind_keys = |tensor: &Tensor| {
        let values = tiled(&tensor.narrow(0, 64, 64).unwrap(), 0, 2, 16);
        Tensor::cat(&[&tensor.narrow(0, 0, 64).unwrap(), &values], 0).unwrap()
    };
    let tensors = converted(&folder, |name, tensor| {
        let inside = name.split_once("linear_attn.").map(|(_, inside)| inside);
        let tensor = match inside {
            Some("in_proj_qkv.weight") => behind_keys(&tensor),
            Some("conv1d.weight") => behind_keys(&tensor.squeeze(1).unwrap()),
            Some("in_proj_z.weight") => tiled(&tensor, 0, 2, 16),
            Some("out_proj.weight") => tiled(&tensor, 1, 2, 16),
            Some("in_proj_a.weight" | "in_proj_b.weight" | "dt_bias") => tiled(&tensor, 0, 2, 1),
            Some("A_log") => tiled(&tensor.exp().unwrap().neg().unwrap(), 0, 2, 1),
            Some(_) => tensor,
            None if name.ends_with("norm.weight") => (tensor + 1.0).unwrap(),
            None => tensor,
        };
        vec![(renamed(name, &table), tensor)]
    });
    let keys = [
        ("general.architecture", json!("qwen35")),
        ("qwen35.block_count", json!(4)),
        ("qwen35.context_length", json!(512)),
        ("qwen35.embedding_length", json!(64)),
        ("qwen35.feed_forward_length", json!(128)),
        ("qwen35.attention.head_count", json!(4)),
        ("qwen35.attention.head_count_kv", json!(2)),
        ("qwen35.attention.key_length", json!(32)),
        ("qwen35.attention.value_length", json!(32)),
        ("qwen35.attention.layer_norm_rms_epsilon", json!(1e-6)),
        ("qwen35.rope.freq_base", json!(1e4)),
        ("qwen35.rope.dimension_count", json!(8)),
        ("qwen35.full_attention_interval", json!(4)),
        ("qwen35.ssm.conv_kernel", json!(4)),
        ("qwen35.ssm.state_size", json!(16)),
        ("qwen35.ssm.group_count", json!(2)),
        ("qwen35.ssm.time_step_rank", json!(4)),
        ("qwen35.ssm.inner_size", json!(64)),
    ];
    let golden = Golden::load_from(&folder);
    for length in ["short", "long"] {
        let logits = logits_of(&keys, &tensors, &golden.ids(&format!("{length}.input_ids")));
        assert_near(&logits, &golden.get(&format!("{length}.logits")), length);
    }
}

/// A vocabulary of letters and a word, as Llama 2 has them.
#[test]
fn a_file_brings_its_own_tokenizer_and_template() {
    let tokens = ["<unk>", "<s>", "</s>", "▁", "h", "i", "▁h", "▁hi", "!"];
    let keys = [
        ("general.architecture", json!("llama")),
        ("tokenizer.ggml.model", json!("llama")),
        ("tokenizer.ggml.tokens", json!(tokens)),
        ("tokenizer.ggml.scores", json!([0, 0, 0, 0, 0, 0, 5, 6, 0])),
        ("tokenizer.ggml.token_type", json!([2, 3, 3, 1, 1, 1, 1, 1, 1])),
        ("tokenizer.ggml.bos_token_id", json!(1)),
        ("tokenizer.ggml.unknown_token_id", json!(0)),
        ("tokenizer.chat_template", json!("{{ bos_token }}{{ messages[0].content }}!")),
    ];
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("model.gguf");
    std::fs::write(&path, written(&keys, &[])).unwrap();
    let prompts = Prompts::of_model(&path, tokens.len());
    assert_eq!(prompts.ids(&Prompt::Text("hi".into())).unwrap(), [1, 7]);
    assert_eq!(prompts.ids(&Prompt::Chat(vec![Message::new("user", "hi")])).unwrap(), [1, 7, 8]);
    assert_eq!(prompts.tokenizer().unwrap().decode(&[1, 7, 8]).unwrap(), "hi!");
    // What stands beside the file goes before it.
    std::fs::write(folder.path().join("tokenizer.json"), "{}").unwrap();
    let error = Prompts::of_model(&path, tokens.len()).ids(&Prompt::Text("hi".into())).unwrap_err().to_string();
    assert!(error.contains("tokenizer.json: not a tokenizer"), "{error}");
}
