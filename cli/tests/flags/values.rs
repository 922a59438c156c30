//! Values of flags, read as people write them, and refused by their flag.

use std::process::Command;

use rstest::rstest;

use super::{GEMMA, NANO, cacheplan, config, plan};

#[rstest]
#[case(&["--as", "vllm", "--cache-bytes", "24GiB", "--format", "svg"], "with --as use")]
#[case(&["--as", "vllm", "--cache-bytes", "24GiB", "--format", "html"], "with --as use")]
#[case(&["--as", "vllm", "--cache-bytes", "24GiB", "--format", "dot"], "with --as use")]
#[case(&["--ranks"], "there is one rank")]
#[case(&["--stage", "1"], "there is one rank")]
#[case(&["--pp", "2", "--stage", "2"], "the stages are 0 to 1")]
#[case(&["--pp", "2", "--ranks", "--format", "svg"], "--stage N")]
#[case(&["--pp", "2", "--ranks", "--format", "html"], "--stage N")]
#[case(&["--tp", "many"], "invalid value")]
#[case(&["--memory-bytes", "-1"], "-1")]
#[case(&["--mtp-layers", "4294967295", "--draft-tokens", "1"], "4294967295 is not in 0..=1024")]
#[case(&["--prompt", "{}"], "flag --prompt: expected one of `fixed`, `uniform`")]
#[case(&["--device-memory", "h1000"], "did you mean h100? Those are: a10, a100-40gb")]
#[case(&["--max-seq-len", "18446744073709551615"], "is not in 1..=4294967296")]
#[case(&["--max-seq-len", "-1"], "invalid value '-1' for '--max-seq-len")]
#[case(&["--max-batch-size", "0"], "0 is not in 1..=4294967296")]
#[case(&["--tp", "0"], "0 is not in 1..=4096")]
#[case(&["--prompt", "many"], "a number of tokens from 1 to 4294967296, or a distribution")]
#[case(&["--prompt", "18446744073709551615"], "a number of tokens from 1 to 4294967296, or a distribution")]
#[case(&["--prompt", "{ fixed = -4 }"], "flag --prompt")]
#[case(&["--prefix-reuse", "NaN"], "flag --prefix-reuse")]
#[case(&["--kv-dtype", "fp7"], "flag --kv-dtype: unknown dtype `fp7`")]
#[case(&["--ssm-dtype", "int8"], "flag --ssm-dtype: no live states are stored in `int8`; write one of f32, f16, bf16")]
#[case(&["--max-seq-len", "32q"], "`32q` is not a number of tokens; write one such as 32768, 32k")]
#[case(&["--cache-bytes", "5GiB"], "--cache-bytes tells an engine something; name the engine with --as")]
#[case(&["--draft-scheme", "replay"], "flag --draft-scheme: `speculation.draft_tokens` (--draft-tokens) is missing")]
fn what_cannot_be_shown_or_read_is_wrong_usage(#[case] flags: &[&str], #[case] says: &str) {
    let folder = tempfile::tempdir().unwrap();
    let output = cacheplan(&["plan"], Some(NANO), flags, folder.path());
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert!(message.contains(says), "{message}");
}

#[rstest]
#[case(&["--as", "vllm"], "a device (--device-memory)")]
#[case(&["--description", "FILE:none.toml"], "none.toml")]
#[case(&["--host-bytes", "1KiB"], "host.bytes")]
#[case(&["--measurement", "FILE:none.json"], "none.json")]
#[case(&["--measurement", "FILE:empty.json"], "no measurement: not valid JSON: EOF while parsing a value at line 1 column 0; JSON with resident_bytes")]
#[case(&["--budget", "FILE:bytes"], "bytes: this is no text")]
fn a_bad_value_names_its_flag(#[case] flags: &[&str], #[case] says: &str) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("empty.json"), "").unwrap();
    std::fs::write(folder.path().join("bytes"), b"\xff\xfe").unwrap();
    let output = cacheplan(&["plan"], Some(NANO), flags, folder.path());
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(message.contains(says) && !message.contains("panicked"), "{message}");
}

/// The message of a wrong file may begin like that of a wrong flag.
#[test]
fn a_wrong_file_is_no_wrong_usage_whatever_it_is_called() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("flag --budget"), "max_seq_length = 1\n").unwrap();
    let mut run = Command::new(env!("CARGO_BIN_EXE_cacheplan"));
    run.current_dir(folder.path()).arg("plan").arg(config(NANO)).args(["--budget", "flag --budget"]);
    let output = run.output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(message.contains("flag --budget:1: unknown field `max_seq_length`"), "{message}");
}

#[rstest]
#[case(&["--memory-bytes", "80"], "`80` has no unit; write \"80GiB\", or \"80B\" for bytes", 2)]
#[case(&["--memory-bytes", "80g"], "write \"80GiB\" or \"80GB\"", 2)]
#[case(&["--memory-bytes", "80B"], "does not fit", 3)]
#[case(&["--device-memory", "24GiB", "--weights", "20"], "`20` has no unit", 2)]
fn a_size_without_a_unit_is_asked_again(#[case] flags: &[&str], #[case] expected: &str, #[case] code: i32) {
    let folder = tempfile::tempdir().unwrap();
    let refused = cacheplan(&["plan"], Some(GEMMA), flags, folder.path());
    let message = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(code) && message.contains(expected), "{message}");
}

#[test]
fn tokens_and_sizes_are_read_as_people_write_them() {
    let exact = plan(GEMMA, &["--max-seq-len", "32768", "--memory-bytes", "24GiB"]);
    assert_eq!(plan(GEMMA, &["--max-seq-len", "32k", "--memory-bytes", "24 gib"]), exact);
}
