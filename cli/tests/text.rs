//! `cacheplan run` with text, chats and files of requests.

use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use rstest::rstest;
use serde_json::{Value, json};

fn top() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// The tiny Llama with a tokenizer, and with what else is given.
fn model(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(top().join("tests/fixtures/models/llama").join(file), folder.path().join(file)).unwrap();
    }
    std::fs::copy(top().join("runtime/text/tests/fixtures/tiny/tokenizer.json"), folder.path().join("tokenizer.json"))
        .unwrap();
    for (name, content) in files {
        std::fs::write(folder.path().join(name), content).unwrap();
    }
    folder
}

const CHATML: (&str, &str) = (
    "chat_template.jinja",
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>' }}{% endfor %}<|im_start|>",
);

fn command(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cacheplan"));
    command.arg("run").arg(folder).args(["--max-seq-len", "200", "--max-batch-size", "4", "--ignore-eos"]);
    command.env("NO_COLOR", "1");
    command
}

fn run<S: AsRef<OsStr>>(folder: &Path, args: &[S]) -> Output {
    command(folder).args(args).output().unwrap()
}

fn piped<S: AsRef<OsStr>>(folder: &Path, args: &[S], input: &str) -> Output {
    let mut child =
        command(folder).args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

#[track_caller]
fn stdout(output: Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[track_caller]
fn json_of(output: Output) -> Value {
    serde_json::from_str(&stdout(output)).unwrap()
}

#[track_caller]
fn refused(output: Output, code: i32) -> String {
    assert_eq!(output.status.code(), Some(code), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stderr).unwrap()
}

fn lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap();
    assert!(text.is_empty() || text.ends_with('\n'), "{text}");
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_prompt_streams_the_text_of_its_tokens() {
    let folder = model(&[]);
    let args = ["--prompt", "the cat in a hat", "--max-new-tokens", "12"];
    let as_json = json_of(run(folder.path(), &[&args[..], &["--format", "json"]].concat()));
    let text = as_json["texts"][0].as_str().unwrap().to_owned();
    assert_eq!(as_json["tokens"][0].as_array().unwrap().len(), 12);
    // "the", "in" and " a" are one token each.
    assert_eq!(as_json["requests"][0]["prompt_tokens"], 12);
    assert_eq!(as_json["requests"][0]["finish_reason"], "length");
    let output = run(folder.path(), &args);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(told.contains("12 prompt tokens (0 of them cached), 12 generated in "), "{told}");
    assert_eq!(stdout(output), text.clone() + "\n");
    assert_eq!(stdout(piped(folder.path(), &["--prompt", "-", "--max-new-tokens", "12"], args[1])), text + "\n");

    // The same as ids.
    let ids: Vec<Value> = as_json["tokens"][0].as_array().unwrap().clone();
    let vocabulary: Value =
        serde_json::from_slice(&std::fs::read(folder.path().join("tokenizer.json")).unwrap()).unwrap();
    let id = |token: &str| vocabulary["model"]["vocab"][token].as_u64().unwrap().to_string();
    let prompt: Vec<String> =
        ["the", " ", "c", "a", "t", " ", "in", " a", " ", "h", "a", "t"].iter().map(|token| id(token)).collect();
    let with_ids =
        run(folder.path(), &["--prompt-ids", &prompt.join(","), "--max-new-tokens", "12", "--format", "json"]);
    let with_ids = json_of(with_ids);
    assert_eq!(with_ids["tokens"][0].as_array().unwrap(), &ids);
    assert_eq!(with_ids.get("texts"), None);
}

#[test]
fn a_stop_string_ends_the_text_and_is_no_part_of_it() {
    let folder = model(&[]);
    let args = ["--prompt", "the cat", "--max-new-tokens", "16", "--format", "json"];
    let whole = json_of(run(folder.path(), &args))["texts"][0].as_str().unwrap().to_owned();
    let characters: Vec<char> = whole.chars().collect();
    let stop: String = characters[5..8].iter().collect();
    let stopped = json_of(run(folder.path(), &[&args[..], &["--stop", &stop]].concat()));
    assert_eq!(stopped["texts"][0].as_str().unwrap(), &whole[..whole.find(&stop).unwrap()]);
    assert_eq!(stopped["requests"][0]["finish_reason"], "stop");
    assert!(stopped["tokens"][0].as_array().unwrap().len() < 16);
}

#[test]
fn a_seed_decides_what_is_drawn() {
    let folder = model(&[("generation_config.json", r#"{"do_sample": true, "temperature": 1.5, "top_k": 50}"#)]);
    let tokens = |more: &[&str]| {
        let args = ["--prompt", "the cat", "--prompt", "the cat", "--max-new-tokens", "12", "--format", "json"];
        json_of(run(folder.path(), &[&args[..], more].concat()))["tokens"].clone()
    };
    let drawn = tokens(&["--seed", "1"]);
    assert_ne!(drawn[0], drawn[1], "the second request has another seed");
    assert_eq!(tokens(&["--seed", "1"]), drawn);
    assert_eq!(tokens(&["--seed", "2"])[0], drawn[1]);
    let likely = tokens(&["--temperature", "0"]);
    assert_eq!(likely[0], likely[1]);
}

#[rstest]
#[case::by_a_flag(&[], &["--seed", "1"], "--seed: `seed` does nothing")]
#[case::above_the_makers(&[("generation_config.json", r#"{"do_sample": true}"#)], &["--temperature", "0", "--top-k", "5"], "--top-k: `top_k` does nothing")]
fn what_decides_a_draw_is_refused_where_nothing_is_drawn(
    #[case] files: &[(&str, &str)],
    #[case] flags: &[&str],
    #[case] expected: &str,
) {
    let folder = model(files);
    let error = refused(run(folder.path(), &[&["--prompt", "a"], flags].concat()), 2);
    assert!(error.contains(expected), "{error}");
}

/// A key of the file is no more told to an engine than a flag.
#[test]
fn what_only_an_engine_is_told_is_refused_in_a_budget() {
    let folder = model(&[("budget.toml", "[engine]\ncontext = 5\n")]);
    let budget = folder.path().join("budget.toml");
    let error =
        refused(run(folder.path(), &[OsStr::new("--prompt"), "a".as_ref(), "--budget".as_ref(), budget.as_ref()]), 1);
    assert!(error.contains("`engine.context` tells an engine something"), "{error}");
}

/// What a model's files have and a run does not do is said.
#[test]
fn what_is_not_used_of_a_model_is_noted() {
    let folder = model(&[("generation_config.json", r#"{"num_beams": 2}"#)]);
    let config = std::fs::read_to_string(folder.path().join("config.json")).unwrap();
    let fewer = config.replace("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1");
    std::fs::write(folder.path().join("config.json"), fewer).unwrap();
    let output = run(folder.path(), &["--prompt-ids", "1", "--max-new-tokens", "1"]);
    let noted = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{noted}");
    assert!(noted.contains("9 of 21 tensors are no part of the model that runs"), "{noted}");
    assert!(noted.contains("a run does not do what it says by `num_beams`"), "{noted}");
}

#[test]
fn help_offers_no_length_that_is_refused() {
    for command in ["run", "profile"] {
        let help = Command::new(env!("CARGO_BIN_EXE_cacheplan")).args([command, "--help"]).output().unwrap();
        let help = stdout(help);
        assert!(help.contains("--max-seq-len <TOKENS> ") && !help.contains("auto: the longest"), "{help}");
    }
}

/// A folder is a model's, whatever its name; a config that is piped in is none.
#[test]
fn a_folder_is_run_by_what_is_in_it() {
    let folder = model(&[]);
    for name in ["m.onnx", "m.pt2", "m.gguf", "m.json"] {
        let named = folder.path().join(name);
        std::fs::create_dir(&named).unwrap();
        for file in
            std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_file())
        {
            std::fs::copy(&file, named.join(file.file_name().unwrap())).unwrap();
        }
        assert_eq!(run(&named, &["--prompt", "a", "--max-new-tokens", "1"]).status.code(), Some(0), "{name}");
    }
    let error = refused(run(Path::new("-"), &["--prompt", "a"]), 2);
    assert!(error.contains("piped in has no weights"), "{error}");
}

#[test]
fn a_chat_is_put_into_the_template_turn_by_turn() {
    let folder = model(&[CHATML]);
    let args = ["--chat", "--max-new-tokens", "6"];
    let one = json_of(run(folder.path(), &[&args[..], &["--prompt", "hi", "--format", "json"]].concat()));
    // <|im_start|> u s e r \n h i <|im_end|> <|im_start|>
    assert_eq!(one["requests"][0]["prompt_tokens"], 10);
    let system = [&args[..], &["--prompt", "hi", "--system", "be", "--format", "json"]].concat();
    assert_eq!(json_of(run(folder.path(), &system))["requests"][0]["prompt_tokens"], 21);
    let turns = piped(folder.path(), &args, "hi\n\nand now\n");
    let answers = stdout(turns);
    let first = one["texts"][0].as_str().unwrap();
    assert!(answers.starts_with(&format!("{first}\n")), "{answers:?}");
    assert!(answers.len() > first.len() + 2);
}

#[rstest]
fn a_gguf_file_needs_no_other_for_text_and_chats(#[values("merges", "pieces")] name: &str) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("m.gguf");
    std::fs::copy(top().join(format!("tests/fixtures/gguf/vocabularies/{name}.gguf")), &file).unwrap();
    let args = ["--prompt", "the cache", "--max-new-tokens", "5"];
    let as_json = json_of(run(&file, &[&args[..], &["--format", "json"]].concat()));
    let text = as_json["texts"][0].as_str().unwrap();
    assert_eq!(as_json["tokens"][0].as_array().unwrap().len(), 5);
    assert_eq!(stdout(run(&file, &args)), format!("{text}\n"));
    let chat = json_of(run(&file, &[&args[..], &["--chat", "--format", "json"]].concat()));
    let tokens = |run: &Value| run["requests"][0]["prompt_tokens"].as_u64().unwrap();
    // The user, the end, and whose turn it is.
    assert_eq!(tokens(&chat), tokens(&as_json) + 3);
    let turns = stdout(piped(&file, &["--chat", "--max-new-tokens", "5"], "the cache\nand now\n"));
    assert!(turns.starts_with(chat["texts"][0].as_str().unwrap()), "{turns:?}");
}

#[test]
fn a_gguf_files_vocabulary_that_is_not_its_models_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("m.gguf");
    let bytes = std::fs::read(top().join("tests/fixtures/gguf/vocabularies/merges.gguf")).unwrap();
    let at = bytes.windows(9).position(|found| found == b"llama-bpe").unwrap();
    let other = [&bytes[..at], b"llama-xyz", &bytes[at + 9..]].concat();
    std::fs::write(&file, other).unwrap();
    let error = refused(run(&file, &["--prompt", "a"]), 1);
    assert!(error.contains("`tokenizer.ggml.pre` is llama-xyz; known is `gpt-2`"), "{error}");
}

#[test]
fn text_of_a_model_does_not_steer_the_terminal() {
    let folder = model(&[]);
    let path = folder.path().join("tokenizer.json");
    let tokenizer = std::fs::read_to_string(&path).unwrap();
    // Every token that the model may say brings an escape along.
    let hostile = tokenizer.replace(
        "\"decoder\":{\"type\":\"Fuse\"}",
        r#""decoder":{"type":"Replace","pattern":{"Regex":"(?s)^"},"content":"\u001b[2J"}"#,
    );
    assert_ne!(hostile, tokenizer);
    std::fs::write(&path, hostile).unwrap();
    let text = stdout(run(folder.path(), &["--prompt", "the cat", "--max-new-tokens", "4"]));
    assert!(text.contains("\\u001b[2J") && !text.contains('\u{1b}'), "{text:?}");
}

#[rstest]
#[case::no_tokenizer(&[], "", &["--prompt", "a"], "there is no tokenizer.json here")]
#[case::no_words(&[], "", &["--prompt-ids", "1", "--stop", "a"], "which prompts of text and stop strings need")]
#[case::no_template(&[], "tiny", &["--chat", "--prompt", "a"], "there is no chat template here")]
#[case::other_model(&[], "byte_level", &["--prompt", "a"], "it is not this model's tokenizer: token `")]
#[case::failing_template(&[("chat_template.jinja", "a\n{{ raise_exception('no such role') }}")], "tiny",
    &["--chat", "--prompt", "a"], "chat_template.jinja, line 2: invalid operation: no such role")]
#[case::broken_template(&[("chat_template.jinja", "a\n{% if %}")], "tiny",
    &["--chat", "--prompt", "a"], "chat_template.jinja, line 2: syntax error")]
#[case::generation_config(&[("generation_config.json", r#"{"do_sample": true, "temperature": -1}"#)], "tiny",
    &["--prompt", "a"], "generation_config.json: `temperature` is -1")]
#[case::too_long(&[], "tiny", &["--prompt", "a", "--max-new-tokens", "1000"], "max_seq_len")]
fn what_is_wrong_with_text_is_named(
    #[case] files: &[(&str, &str)],
    #[case] tokenizer: &str,
    #[case] args: &[&str],
    #[case] expected: &str,
) {
    let folder = model(files);
    let path = folder.path().join("tokenizer.json");
    std::fs::remove_file(&path).unwrap();
    if !tokenizer.is_empty() {
        let from = top().join("runtime/text/tests/fixtures").join(tokenizer).join("tokenizer.json");
        std::fs::copy(from, &path).unwrap();
    }
    let error = refused(run(folder.path(), args), 1);
    assert!(error.contains(expected), "{error}");
}

#[rstest]
#[case(&["--max-new-tokens", "4"])]
#[case(&["--prompt", "a", "--requests", "x"])]
#[case(&["--prompt-ids", "1", "--chat"])]
#[case(&["--prompt", "a", "--out", "x"])]
#[case(&["--prompt", "a", "--beams", "2", "--temperature", "1"])]
#[case(&["--prompt", "a", "--report", "xml"])]
#[case(&["--prompt", "a", "--report", "json", "--format", "json"])]
#[case(&["--prompt", "a", "--stop", "b\u{fffd}"])]
#[case(&["--prompt", "a", "--stop", ""])]
#[case(&["--prompt", "-", "--prompt", "-"])]
#[case(&["--prompt", "a", "--beams", "2", "--host-bytes", "1MiB"])]
#[case(&["--prompt", "a", "--beams", "2", "--max-prefill-tokens", "4"])]
#[case(&["--prompt", "a", "--beams", "2", "--no-prefix-reuse"])]
#[case(&["--prompt", "a", "--context", "5"])]
#[case(&["--prompt", "a", "--prompt", "b", "--logits", "x"])]
fn flags_that_do_not_go_together_are_wrong_usage(#[case] args: &[&str]) {
    refused(run(model(&[]).path(), args), 2);
}

/// Before anything is read of the model, but where it decides what would do.
#[rstest]
#[case(&["--temperature", "nan"], "--temperature: `temperature` is NaN; it must be a number from 0 on")]
#[case(&["--temperature", "-1"], "--temperature: `temperature` is -1")]
#[case(&["--top-p", "2"], "--top-p: `top_p` is 2; it must be above 0 and at most 1")]
#[case(&["--min-p", "inf"], "--min-p: `min_p` is inf")]
#[case(&["--temperature", "1e308"], "'1e308' for '--temperature <X>': at most 3.4028235e38 was expected")]
#[case(&["--repetition-penalty", "0"], "--repetition-penalty: `repetition_penalty` is 0")]
#[case(&["--presence-penalty", "nan"], "--presence-penalty: `presence_penalty` is NaN")]
#[case(&["--frequency-penalty", "101"], "--frequency-penalty: `frequency_penalty` is 101")]
#[case(&["--max-new-tokens", "0"], "'--max-new-tokens <N>'")]
#[case(&["--temperature", "x"], "a number was expected")]
#[case(&["--top-k", "x"], "a whole number from 0 on was expected")]
#[case(&["--seed", "-1"], "a whole number from 0 on was expected")]
#[case(&["--draft-tokens", "-1"], "a whole number from 1 on was expected")]
#[case(&["--beams", "0"], "'--beams <N>'")]
#[case(&["--beams", "5"], "--beams: a beam search of width 5: it must be from 1 to 4")]
#[case(&["--max-seq-len", "auto"], "--max-seq-len auto: only `cacheplan plan` finds")]
#[case(&["--tokens-per-block", "4294967296"], "'--tokens-per-block <TOKENS>': 4294967296 is not in 1..=2147483648")]
#[case(&["--products", "fast"], "and this model's weights are safetensors; leave `products` (--products) exact")]
fn a_value_that_cannot_be_is_wrong_usage_by_its_name(#[case] args: &[&str], #[case] expected: &str) {
    let folder = model(&[]);
    let mut command = Command::new(env!("CARGO_BIN_EXE_cacheplan"));
    command.arg("run").arg(folder.path()).args(["--prompt-ids", "1,2", "--max-batch-size", "4"]).env("NO_COLOR", "1");
    let error = refused(command.args(args).output().unwrap(), 2);
    assert!(error.contains(expected), "{error}");
}

#[test]
fn beams_give_the_best_text() {
    let folder = model(&[]);
    let args = ["--prompt", "the cat", "--beams", "3", "--max-new-tokens", "6"];
    let found = json_of(run(folder.path(), &[&args[..], &["--format", "json"]].concat()));
    let beams = found["beams"][0].as_array().unwrap();
    assert_eq!(beams.len(), 3);
    assert!(beams[0]["score"].as_f64() >= beams[1]["score"].as_f64());
    let best = beams[0]["text"].as_str().unwrap();
    assert!(stdout(run(folder.path(), &args)).ends_with(&format!("  {best}\n")));
}

const REQUESTS: &str = r#"{"id": "a", "prompt": "the cat", "max_tokens": 5}
{"prompt_ids": [1, 2, 3], "max_tokens": 4, "temperature": 1, "seed": 7, "tenant": "t"}

{"id": "late", "prompt": "the cat", "max_tokens": 5, "arrival": 0.05, "stop": ["zzz"]}
"#;

#[test]
fn requests_of_a_file_become_lines_of_outputs_and_a_report() {
    let folder = model(&[("requests.jsonl", REQUESTS)]);
    let at = |name: &str| folder.path().join(name).display().to_string();
    let (requests, out) = (at("requests.jsonl"), at("out.jsonl"));
    let args = ["--requests", &requests, "--out", &out, "--timeline", &at("t.svg"), "--report", "json", &at("r.json")];
    assert_eq!(stdout(run(folder.path(), &args)), "");
    let mut outputs = lines(out.as_ref());
    outputs.sort_by_key(|line| line["line"].as_u64());
    assert_eq!(outputs.len(), 3);
    assert_eq!(outputs.iter().map(|line| line["line"].as_u64().unwrap()).collect::<Vec<_>>(), [1, 2, 4]);
    assert_eq!((outputs[0]["id"].as_str(), outputs[0]["tokens"].as_array().unwrap().len()), (Some("a"), 5));
    assert_eq!(outputs[0]["tokens"], outputs[2]["tokens"]);
    assert_eq!(outputs[0]["text"], outputs[2]["text"]);
    assert!(outputs[0]["text"].is_string() && outputs[1]["text"].is_null());
    assert_eq!(outputs[1]["finish_reason"], "length");
    assert!(outputs[2]["first_token_seconds"].as_f64() <= outputs[2]["total_seconds"].as_f64());

    let report: Value = serde_json::from_slice(&std::fs::read(at("r.json")).unwrap()).unwrap();
    assert_eq!(report["speed"]["generated_tokens"], 14);
    assert!(report["speed"]["time_to_first_token"]["p99"].as_f64() > Some(0.0));
    assert!(report["reuse"]["hit_rate"].is_number());
    assert!(report["stats"]["pools"][0]["high_water"].as_u64() > Some(0));
    let svg = std::fs::read_to_string(at("t.svg")).unwrap();
    assert!(svg.contains("kv_paged.0: at most ") && svg.ends_with("</svg>\n"), "{svg}");

    // From standard input to standard output, with a report for people.
    let piped = stdout(piped(folder.path(), &["--requests", "-", "--report", "markdown"], REQUESTS));
    let (lines, markdown) = piped.split_at(piped.find("# Run").unwrap());
    assert_eq!(lines.lines().count(), 3);
    assert!(markdown.contains("| generated tokens | 14 |") && markdown.contains("## Planned beside actual"));
    assert!(markdown.lines().filter(|line| line.starts_with("| kv_paged.0")).all(|line| !line.contains("**no**")));
}

#[rstest]
#[case("{\"prompt\": \"a\"}\n{\"prompt\": 3}", "requests.jsonl, line 2: JSON of another kind: ")]
#[case(
    "{\"prompt\": \"a\"}\n\n{\"prompt_ids\": [1, 99]}",
    "requests.jsonl, line 3: request 1: token id 99 is not below"
)]
#[case("{\"prompt\": \"a\", \"min_p\": 2}", "requests.jsonl, line 1: request 0: `min_p` is 2")]
#[case("{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}", "line 1: ")]
#[case("{\"prompt\": \"a\", \"max_tokens\": 500}", "line 1: request 0: 1 prompt tokens and 500 new ones exceed")]
fn a_broken_line_is_named_before_anything_is_computed(#[case] requests: &str, #[case] expected: &str) {
    let folder = model(&[("requests.jsonl", requests)]);
    let (requests, out) = (folder.path().join("requests.jsonl"), folder.path().join("out.jsonl"));
    let args = [OsStr::new("--requests"), requests.as_os_str(), OsStr::new("--out"), out.as_os_str()];
    let error = refused(run(folder.path(), &args), 1);
    assert!(error.contains(expected), "{error}");
    assert!(!out.exists());
}

/// Requests that go on for longer than any test.
fn many(folder: &Path, count: usize) -> PathBuf {
    let path = folder.join("many.jsonl");
    let line = |place: usize| json!({"prompt_ids": [1, 2, 3 + place % 90], "max_tokens": 60}).to_string() + "\n";
    std::fs::write(&path, (0..count).map(line).collect::<String>()).unwrap();
    path
}

#[test]
#[cfg(unix)]
fn a_full_disk_leaves_whole_lines() {
    let folder = model(&[]);
    let out = folder.path().join("out.jsonl");
    let output = Command::new("sh")
        .args(["-c", "trap '' XFSZ; ulimit -f 4; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_cacheplan"), "run"])
        .arg(folder.path())
        .args(["--max-seq-len", "200", "--ignore-eos", "--requests"])
        .arg(many(folder.path(), 40))
        .arg("--out")
        .arg(&out)
        .output()
        .unwrap();
    let error = refused(output, 1);
    assert!(error.contains("out.jsonl: File too large"), "{error}");
    let written = lines(&out);
    assert!((1..40).contains(&written.len()), "{}", written.len());
    assert!(written.iter().all(|line| line["tokens"].as_array().unwrap().len() == 60));
}

#[rstest]
#[case::text(&["--prompt", "the cat"])]
#[case::ids(&["--prompt-ids", "1,2"])]
#[case::json(&["--prompt-ids", "1,2", "--format", "json"])]
#[case::beams(&["--prompt-ids", "1,2", "--beams", "2"])]
#[cfg(target_os = "linux")]
fn a_full_standard_output_is_an_error(#[case] args: &[&str]) {
    let folder = model(&[]);
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = command(folder.path()).args(args).args(["--max-new-tokens", "4"]).stdout(full).output().unwrap();
    let error = refused(output, 1);
    assert!(error.contains("No space left on device") && !error.contains("panicked"), "{error}");
}

#[rstest]
#[case::report(&["--report", "json"])]
#[case::timeline(&["--timeline"])]
#[case::stats(&["--stats"])]
#[case::logits(&["--logits"])]
#[cfg(unix)]
fn a_full_disk_keeps_what_a_run_wrote_before(#[case] flag: &[&str]) {
    let folder = model(&[("old", "old")]);
    let old = folder.path().join("old");
    let output = Command::new("sh")
        .args(["-c", "trap '' XFSZ; ulimit -f 0; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_cacheplan"), "run"])
        .arg(folder.path())
        .args(["--max-seq-len", "200", "--ignore-eos", "--prompt-ids", "1,2", "--max-new-tokens", "4"])
        .args(flag)
        .arg(&old)
        .output()
        .unwrap();
    let error = refused(output, 1);
    assert!(error.contains("old: File too large"), "{error}");
    assert_eq!(std::fs::read_to_string(&old).unwrap(), "old");
    assert!(std::fs::read_dir(folder.path()).unwrap().count() == 4, "nothing is left beside it");
}

/// The bytes of a file of a model, changed.
fn ruin(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = std::fs::read(path).unwrap();
    change(&mut bytes);
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn a_missing_shard_and_weights_that_are_no_numbers_end_a_run_by_their_names() {
    let folder = model(&[]);
    let weights = folder.path().join("model.safetensors");
    ruin(&weights, |bytes| {
        let end = bytes.len();
        bytes[end - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
    });
    let error = refused(run(folder.path(), &["--prompt", "the cat"]), 1);
    assert!(error.contains("model.safetensors: tensor `") && error.contains("(NaN)"), "{error}");
    std::fs::rename(&weights, folder.path().join("model-00001-of-00002.safetensors")).unwrap();
    let index = r#"{"weight_map": {"x": "model-00001-of-00002.safetensors", "y": "model-00002-of-00002.safetensors"}}"#;
    std::fs::write(folder.path().join("model.safetensors.index.json"), index).unwrap();
    let error = refused(run(folder.path(), &["--prompt", "the cat"]), 1);
    assert!(error.contains("model-00002-of-00002.safetensors: No such file"), "{error}");
}

/// Of a GGUF file: its last matrix, its template, and a file of the split that it says it is of.
#[rstest]
#[case::no_number(None, &["--prompt", "a"], "m.gguf: tensor `blk.0.attn_v.weight` has numbers that are infinite or none (NaN)")]
#[case::template(Some(("{{ bos_token }}", "{{ bos.a.b.c }}")), &["--chat", "--prompt", "a"],
    "m.gguf: tokenizer.chat_template, line 1: undefined value")]
#[case::no_template(Some(("tokenizer.chat_template", "tokenizer.dull_template")), &["--chat", "--prompt", "a"],
    "`tokenizer.chat_template` of a GGUF file")]
#[case::vocabulary(Some(("tokenizer.ggml.tokens", "tokenizer.ggml.tokenz")), &["--prompt", "a"],
    "`tokenizer.ggml.tokens` is absent")]
fn a_ruined_gguf_file_is_named_with_what_is_wrong(
    #[case] change: Option<(&str, &str)>,
    #[case] args: &[&str],
    #[case] expected: &str,
) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("m.gguf");
    std::fs::copy(top().join("tests/fixtures/gguf/vocabularies/merges.gguf"), &file).unwrap();
    ruin(&file, |bytes| match change {
        Some((from, to)) => {
            let at = bytes.windows(from.len()).position(|found| found == from.as_bytes()).unwrap();
            bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
        }
        // The scale of the last block of 34 bytes; the file ends at a multiple of 32.
        None => {
            let at = bytes.len() - (16 * 34_usize).next_multiple_of(32) + 15 * 34;
            bytes[at..at + 2].copy_from_slice(&[0x00, 0x7e]);
        }
    });
    let error = refused(run(&file, args), 1);
    assert!(error.contains(expected), "{error}");
}

#[test]
#[cfg(unix)]
fn an_interrupt_finishes_what_runs_and_leaves_a_valid_file() {
    let folder = model(&[]);
    let out = folder.path().join("out.jsonl");
    let mut child = command(folder.path())
        .arg("--requests")
        .arg(many(folder.path(), 3000))
        .arg("--out")
        .arg(&out)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let noted = child.stderr.take().unwrap();
    let begun = || std::fs::metadata(&out).is_ok_and(|found| found.len() > 0);
    for _ in 0..600 {
        if begun() {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(begun(), "no output within half a minute");
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let status = child.wait().unwrap();
    assert_eq!(status.code(), Some(1));
    let written = lines(&out);
    assert!((1..3000).contains(&written.len()), "{}", written.len());
    assert!(written.iter().all(|line| line["finish_reason"] == "length"));
    // What was not begun has no prompt that was computed.
    let prompts: u64 = written.iter().map(|line| line["prompt_tokens"].as_u64().unwrap()).sum();
    let noted = std::io::read_to_string(noted).unwrap();
    assert!(noted.contains(&format!("note: {prompts} prompt tokens")), "{noted}");
}
