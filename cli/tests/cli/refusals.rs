//! What is wrong is said once, with its place, and has an exit code.

use std::process::Command;

use rstest::rstest;

use super::{NANO, cacheplan, config, stderr};

/// A model file that is `text`, or the fixture with `find` replaced.
enum Model {
    Missing,
    Text(&'static str),
    Truncated,
    Edited(&'static str, &'static str),
    Good,
}

#[rstest]
#[case::missing_file(Model::Missing, "", 1, "there is no such file or folder; a model of the hub is named org/name")]
#[case::truncated_json(Model::Truncated, "", 1, "not valid JSON")]
#[case::no_object(Model::Text("[]"), "", 1, "config.json: JSON of another kind")]
#[case::another_object(Model::Text("{}"), "", 1, "there is no `model_type`")]
#[case::unknown_model_type(Model::Text(r#"{"model_type": "lama"}"#), "", 4, "llama")]
#[case::negative_dim(Model::Edited("\"head_dim\": 128", "\"head_dim\": -128"), "", 1, "head_dim")]
#[case::zero_dim(Model::Edited("\"head_dim\": 128", "\"head_dim\": 0"), "", 1, "head_dim")]
#[case::absurd_dim(Model::Edited("\"head_dim\": 128", "\"head_dim\": 1e30"), "", 1, "head_dim")]
#[case::budget_too_small(Model::Good, "[memory]\nbytes = '1MiB'", 3, "short")]
#[case::unknown_key(Model::Good, "max_seq_length = 4096", 1, "max_seq_len")]
#[case::fractional_count(Model::Good, "max_seq_len = 4096.5", 1, "`4096.5`, expected a whole number")]
#[case::a_list_for_a_section(Model::Good, "memory = ['24GiB']", 1, "`memory` is a list; a section `[memory]`")]
#[case::sections_of_one_name(Model::Good, "[[memory]]\nbytes = 5", 1, "`memory` is a list; a section `[memory]`")]
#[case::no_section(Model::Good, "memory = 5", 1, "expected the section Memory")]
#[case::no_histogram(Model::Good, "[workload]\nprompt = { file = 'no.csv' }", 1, "/no.csv: ")]
#[case::bad_size(Model::Good, "[memory]\nbytes = '24 bananas'", 1, "24 bananas")]
#[case::no_base(Model::Good, "[memory]\nfraction = 0.9", 1, "of")]
fn bad_input_is_a_clear_error_with_its_exit_code(
    #[case] model: Model,
    #[case] budget: &str,
    #[case] code: i32,
    #[case] says: &str,
) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.json");
    let good = std::fs::read_to_string(config(NANO)).unwrap();
    match model {
        Model::Missing => {}
        Model::Text(text) => std::fs::write(&file, text).unwrap(),
        Model::Truncated => std::fs::write(&file, &good[..good.len() / 2]).unwrap(),
        Model::Edited(find, replace) => {
            assert!(good.contains(find));
            std::fs::write(&file, good.replace(find, replace)).unwrap();
        }
        Model::Good => std::fs::write(&file, good).unwrap(),
    }
    let budget_file = folder.path().join("budget.toml");
    std::fs::write(&budget_file, budget).unwrap();
    let output = cacheplan(&["plan".as_ref(), file.as_os_str(), "--budget".as_ref(), budget_file.as_os_str()]);
    let message = stderr(&output);
    assert_eq!(output.status.code(), Some(code), "{message}");
    assert!(message.contains(says), "{message}");
    assert!(!message.contains("panicked"), "{message}");
    assert!(output.stdout.is_empty());
}

#[rstest]
#[case(&["plan"])]
#[case(&["plan", "x", "--format", "xml"])]
#[case(&["fly"])]
#[case(&["bench", "flying"])]
#[case(&["simulate", "--workload", "chat", "--checkpoints", "-1"])]
fn wrong_usage_exits_with_2(#[case] args: &[&str]) {
    let output = cacheplan(args);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{}", stderr(&output));
}

#[test]
fn weights_that_are_not_there_are_not_downloaded() {
    let message = stderr(&cacheplan(&["run", "org/Model", "--prompt-ids", "1"]));
    assert!(message.contains("org/Model: there is no such file or folder, and no such model in"), "{message}");
    assert!(message.contains("weights are never fetched: `hf download org/Model`"), "{message}");
}

#[rstest]
#[case("", "the trace holds no request")]
#[case("{\"prompt\": [1, 2]}", "tokens are written {\"tokens\": [7, 9]}")]
fn a_trace_that_cannot_be_replayed_is_an_error(#[case] text: &str, #[case] says: &str) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("trace.jsonl");
    std::fs::write(&file, text).unwrap();
    let output = cacheplan(&["simulate".as_ref(), "--trace".as_ref(), file.as_os_str()]);
    assert_eq!(output.status.code(), Some(1));
    let message = stderr(&output);
    assert!(message.contains("trace.jsonl: ") && message.contains(says), "{message}");
}

#[test]
fn a_wrong_description_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("heron.toml");
    std::fs::write(&file, "kinds = 3").unwrap();
    let model = config(NANO);
    let output = cacheplan(&["inspect".as_ref(), model.as_os_str(), "--description".as_ref(), file.as_os_str()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("heron.toml: architecture description"), "{}", stderr(&output));
}

#[test]
fn running_a_model_without_weights_names_the_folder() {
    let output = cacheplan(&["run".as_ref(), config(NANO).as_os_str(), "--prompt-ids".as_ref(), "1".as_ref()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("safetensors"), "{}", stderr(&output));
}

#[rstest]
#[case(&["plan", "check", "nowhere.json"])]
#[case(&["export", "nowhere.json", "--to", "vllm"])]
fn a_missing_file_is_told_once(#[case] args: &[&str]) {
    let output = cacheplan(args);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(stderr(&output).matches("No such file").count(), 1, "{}", stderr(&output));
}

#[rstest]
#[case("80", "80GiB")]
#[case("a100", "a100-80gb")]
fn a_device_that_may_be_two_things_is_refused_with_what_would_do(#[case] stated: &str, #[case] instead: &str) {
    let output = cacheplan(&["plan", config(NANO).to_str().unwrap(), "--device-memory", stated]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains(instead), "{}", stderr(&output));
}

#[cfg(unix)]
#[test]
fn a_link_that_leads_nowhere_is_not_proposed_for_itself() {
    let folder = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink("nowhere", folder.path().join("link")).unwrap();
    let message = stderr(&cacheplan(&["plan".as_ref(), folder.path().join("link").as_os_str()]));
    assert!(message.contains("link: this link leads to nowhere, and there is no such file or folder"), "{message}");
    assert!(!message.contains("did you mean"), "{message}");
}

#[test]
fn a_command_that_is_too_long_ends_alike_from_a_file_and_piped() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("long.sh");
    std::fs::write(&file, "# a comment\n".repeat(100_000) + "vllm serve m\n").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_cacheplan"));
    command.args(["plan", "-", "--device", "h100"]).stdin(std::fs::File::open(&file).unwrap());
    let named = cacheplan(&["plan".as_ref(), file.as_os_str(), "--device".as_ref(), "h100".as_ref()]);
    for refused in [named, command.output().unwrap()] {
        assert_eq!(refused.status.code(), Some(1), "{}", stderr(&refused));
        assert!(stderr(&refused).contains("a manifest of more than 1048576 bytes is not read"), "{}", stderr(&refused));
    }
}
