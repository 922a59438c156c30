//! What is absurd or never ends is refused at once, in little memory.

use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rstest::rstest;

use super::{cacheplan, command, confined, llama, stderr, within_limits};

#[rstest]
#[case::model(&["plan", "PATH"])]
#[case::description(&["plan", "CONFIG", "--description", "PATH"])]
#[case::budget(&["plan", "CONFIG", "--budget", "PATH"])]
#[case::measurement(&["plan", "CONFIG", "--measurement", "PATH"])]
#[case::draft(&["plan", "CONFIG", "--draft-tokens", "2", "--draft", "PATH"])]
#[case::checked(&["plan", "check", "PATH"])]
#[case::exported(&["export", "PATH", "--to", "vllm"])]
#[case::trace(&["simulate", "--trace", "PATH"])]
#[case::stats(&["stats", "PATH"])]
fn what_never_ends_is_refused_at_once(#[case] args: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("config.json");
    fs::write(&config, llama().to_string()).unwrap();
    for (name, target) in [("zero", "/dev/zero"), ("zero.gguf", "/dev/zero"), ("zero.safetensors", "/dev/zero")] {
        symlink(target, folder.path().join(name)).unwrap();
    }
    for name in ["pipe", "pipe.gguf", "pipe.onnx"] {
        assert!(Command::new("mkfifo").arg(folder.path().join(name)).status().unwrap().success());
    }
    for name in ["zero", "zero.gguf", "zero.safetensors", "pipe", "pipe.gguf", "pipe.onnx"] {
        let path = folder.path().join(name);
        let args = args.iter().map(|arg| match *arg {
            "PATH" => path.as_os_str(),
            "CONFIG" => config.as_os_str(),
            other => other.as_ref(),
        });
        let output = within_limits(&mut command(&args.collect::<Vec<_>>()));
        assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
        assert!(stderr(&output).contains("a regular file was expected"), "{}", stderr(&output));
    }
}

#[rstest]
#[case("config.json")]
#[case("hf_quant_config.json")]
#[case("model.safetensors")]
#[case("model.safetensors.index.json")]
fn a_pipe_in_a_folder_is_refused_at_once(#[case] name: &str) {
    let folder = tempfile::tempdir().unwrap();
    if name != "config.json" {
        fs::write(folder.path().join("config.json"), llama().to_string()).unwrap();
    }
    assert!(Command::new("mkfifo").arg(folder.path().join(name)).status().unwrap().success());
    let output = within_limits(command(&["plan"]).arg(folder.path()));
    assert!(stderr(&output).contains("this is a pipe"), "{}", stderr(&output));
}

#[rstest]
#[case::config(&["plan", "-"], "[")]
#[case::spaces(&["plan", "-"], " ")]
#[case::trace(&["simulate", "--trace", "-"], "x")]
#[case::stats(&["stats", "-"], " ")]
fn endless_input_is_read_to_its_limit_only(#[case] args: &[&str], #[case] text: &str) {
    let mut child = command(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let chunk = text.repeat(1 << 16);
    let mut written = 0usize;
    // Ends where nobody reads any more.
    while input.write_all(chunk.as_bytes()).is_ok() {
        written += chunk.len();
        assert!(written < 100 << 20, "more than 100 MiB were taken");
    }
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("is not read") || stderr(&output).contains("line 1"), "{}", stderr(&output));
}

const LLAMA: &str = r#""model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4"#;

#[rstest]
#[case::keys(&["plan", "CONFIG", "--budget", "FILE"], (0..1_000_000).map(|n| format!("key{n} = 1\n")).collect())]
#[case::comment(&["plan", "CONFIG", "--budget", "FILE"], format!("# {}\n", "x".repeat(100 << 20)))]
#[case::dotted(&["plan", "CONFIG", "--budget", "FILE"], format!("{}a = 1\n", "a.".repeat(50_000)))]
#[case::deep(&["plan", "CONFIG", "--budget", "FILE"], format!("a = {}\n", "[".repeat(100_000)))]
#[case::description(&["plan", "CONFIG", "--description", "FILE"], "layers = 1\n".repeat(1_000_000))]
#[case::sum(&["plan", "CONFIG", "--description", "FILE"], format!("model_types = [\"llama\"]\nlayers = \"1{}\"\n", "+1".repeat(50_000)))]
#[case::calls(&["plan", "CONFIG", "--description", "FILE"], format!("model_types = [\"llama\"]\nlayers = \"{}\"\n", "len(".repeat(20_000)))]
#[case::measured(&["plan", "CONFIG", "--measured", "FILE"], "[lines]\n".repeat(1_000_000))]
#[case::prices(&["fit", "CONFIG", "--context", "4k", "--sequences", "1", "--prices", "FILE"], "a = 1\n".repeat(1_000_000))]
#[case::measurement(&["plan", "CONFIG", "--measurement", "FILE"], format!("[{}1]", "1,".repeat(4_000_000)))]
#[case::statistics(&["stats", "FILE"], format!("{{\"pools\": [{}{{}}]}}", "{},".repeat(2_000_000)))]
#[case::padded(&["plan", "FILE"], format!("{{{LLAMA}}}{}", " ".repeat(200 << 20)))]
#[case::layers(&["plan", "FILE"], format!("{{{LLAMA}, \"layer_types\": [{}\"a\"]}}", "\"mamba\",".repeat(1_000_000)))]
#[case::name(&["plan", "FILE"], format!("{{\"model_type\": \"{}\"}}", "x".repeat(20 << 20)))]
#[case::short_name(&["plan", "FILE"], format!("{{\"model_type\": \"{}\"}}", "x".repeat(7 << 20)))]
#[case::plan(&["plan", "check", "FILE"], format!("{{\"schema_version\": 1, \"pools\": [{}{{}}]}}", "{},".repeat(1_000_000)))]
#[case::trace(&["simulate", "--trace", "FILE"], "{\"input_length\": 1, \"output_length\": 1, \"hash_ids\": [] }\n".repeat(100_000) + "x")]
#[case::log(&["check", "--log", "FILE", "--plan", "CONFIG"], "x".repeat(40 << 20))]
#[case::log_lines(&["calibrate", "--out", "OUT", "--log", "FILE"], "INFO x\n".repeat(1_000_000))]
#[case::log_words(&["calibrate", "--out", "OUT", "--log", "FILE"], "# GPU blocks: x\n".repeat(500_000))]
#[case::operation(&["bench", "nosuch"], String::new())]
fn what_is_refused_takes_no_more_than_64_mib_and_2_seconds(#[case] args: &[&str], #[case] content: String) {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).into_os_string().into_string().unwrap();
    let (config, file, out) = (path("config.json"), path("file.json"), path("out"));
    fs::write(&config, llama().to_string()).unwrap();
    fs::write(&file, content).unwrap();
    let args = args.iter().map(|arg| match *arg {
        "CONFIG" => config.as_str(),
        "FILE" => file.as_str(),
        "OUT" => out.as_str(),
        other => other,
    });
    let output = confined(&args.collect::<Vec<_>>()).output().unwrap();
    assert!(matches!(output.status.code(), Some(1 | 2 | 4)), "{}: {:.2000}", output.status, stderr(&output));
    assert!(output.stderr.len() < 16 << 10 && !Path::new(&out).exists(), "{} bytes of error", output.stderr.len());
}

#[test]
fn a_budget_that_asks_for_too_much_is_refused_with_its_file_key_and_line() {
    let folder = tempfile::tempdir().unwrap();
    let (config, budget) = (folder.path().join("config.json"), folder.path().join("my-budget.toml"));
    fs::write(&config, llama().to_string()).unwrap();
    for (text, key) in [
        ("\n[workload]\ncheckpoints_per_sequence = 18446744073709551615\n".to_owned(), "checkpoints_per_sequence"),
        ("\n[workload]\ncheckpoints_per_sequence = 9223372036854775807\n".to_owned(), "checkpoints_per_sequence"),
        (format!("\n\na{} = 1\n", ".a".repeat(1000)), "a"),
        (format!("\n\na = {}\n", "[".repeat(1000)), "3"),
    ] {
        fs::write(&budget, text).unwrap();
        let output = command(&["plan"]).arg(&config).arg("--budget").arg(&budget).output().unwrap();
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(text.contains("my-budget.toml") && text.contains(key), "{text}");
        assert!(key == "checkpoints_per_sequence" || text.contains(":3") || text.contains("line 3"), "{text}");
    }
}

#[test]
fn an_op_that_nobody_measures_costs_nothing() {
    let start = Instant::now();
    let output = cacheplan(&["bench", "nosuch"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
}

#[rstest]
#[case::layers(&["plan"], "config.json", format!("{{{}, \"num_hidden_layers\": 10000}}", LLAMA.replace("\"num_hidden_layers\": 2, ", "")).into_bytes(), "at most 1024 layers")]
#[case::layers_that_are_fitted(&["fit", "--context", "4k", "--sequences", "1"], "config.json", format!("{{{}, \"num_hidden_layers\": 10000}}", LLAMA.replace("\"num_hidden_layers\": 2, ", "")).into_bytes(), "at most 1024 layers")]
#[case::dimensions(&["plan"], "model.onnx", onnx_of_dimensions(15_000_000), "take more than")]
fn what_would_take_long_is_refused_at_once(
    #[case] args: &[&str],
    #[case] name: &str,
    #[case] content: Vec<u8>,
    #[case] expected: &str,
) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join(name);
    fs::write(&file, content).unwrap();
    let (first, rest) = args.split_first().unwrap();
    let output = confined(&[&[*first, file.to_str().unwrap()], rest].concat()).output().unwrap();
    assert!(matches!(output.status.code(), Some(1 | 4)), "{}: {}", output.status, stderr(&output));
    assert!(stderr(&output).contains(expected), "{}", stderr(&output));
}

/// A graph with a weight whose dimensions are stated one by one.
fn onnx_of_dimensions(count: usize) -> Vec<u8> {
    let within = |tag: u8, message: Vec<u8>| {
        let mut length = Vec::new();
        let mut left = message.len();
        while left >= 128 {
            length.push(left as u8 | 128);
            left >>= 7;
        }
        length.push(left as u8);
        [vec![tag << 3 | 2], length, message].concat()
    };
    within(7, within(5, [0x08, 0x01].repeat(count)))
}
