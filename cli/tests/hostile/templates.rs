//! Chat templates of strangers are bounded.

use std::fs;
use std::io::Write;
use std::process::Stdio;

use rstest::rstest;

use super::{command, fixture, stderr, within_limits};

/// A folder with the tiny Llama, a tokenizer and a chat template.
fn chatting(template: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for file in ["config.json", "model.safetensors"] {
        fs::copy(fixture("models/llama").join(file), folder.path().join(file)).unwrap();
    }
    fs::copy(fixture("../../runtime/text/tests/fixtures/tiny/tokenizer.json"), folder.path().join("tokenizer.json"))
        .unwrap();
    fs::write(folder.path().join("chat_template.jinja"), template).unwrap();
    folder
}

#[rstest]
#[case::deep("{% set n=namespace(d=[]) %}{% for i in range(100000) %}{% set n.d=[n.d] %}{% endfor %}{{ n.d }}")]
#[case::deep_and_dropped(
    "{% set n=namespace(d=[]) %}{% for i in range(100000) %}{% set n.d={'a': n.d} %}{% endfor %}{{ n.d|length }}{{ n.d }}"
)]
#[case::doubled("{% set n=namespace(s='a'*1000) %}{% for i in range(40) %}{% set n.s=n.s~n.s %}{% endfor %}")]
#[case::added("{% set n=namespace(s='a'*1000) %}{% for i in range(40) %}{% set n.s=n.s+n.s %}{% endfor %}")]
#[case::replaced(
    "{% set n=namespace(s='a'*100) %}{% for i in range(9) %}{% set n.s=n.s|replace('a', n.s) %}{% endfor %}"
)]
#[case::indented(
    "{% set n=namespace(s='a\n'*1000) %}{% for i in range(9) %}{% set n.s=n.s|indent(100000) %}{% endfor %}"
)]
#[case::captured(
    "{% set n=namespace(s='a'*1000) %}{% for i in range(40) %}{% set s %}{{ n.s }}{{ n.s }}{% endset %}{% set n.s=s %}{% endfor %}"
)]
#[case::handed_on("{% macro f(s, n) %}{% if n %}{{ f(s ~ s, n - 1) }}{% endif %}{% endmacro %}{{ f('a'*1000, 40) }}")]
#[case::repeated("{{ 'a' * 100000000 }}")]
#[case::cut("{{ 'a'.split('a' * 50000000) }}")]
#[case::endless("{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}")]
fn a_template_takes_no_more_than_it_is_given(#[case] template: &str) {
    let folder = chatting(template);
    let asked = ["--chat", "--prompt", "hi", "--max-new-tokens", "1", "--max-seq-len", "64"];
    let output = within_limits(command(&["run"]).arg(folder.path()).args(asked));
    assert_eq!(output.status.code(), Some(1), "{}: {}", output.status, stderr(&output));
    assert!(stderr(&output).contains("chat_template.jinja"), "{}", stderr(&output));
}

#[test]
fn a_template_that_ended_its_process_ends_no_other_conversation() {
    let folder = chatting(
        "{% if messages[0].content == 'no' %}{% set n=namespace(s='a'*1000) %}{% for i in range(40) %}{% set n.s=n.s~n.s %}{% endfor %}{% endif %}{{ messages[0].content }}",
    );
    let run = |input: &str| {
        let mut chat = command(&["run"]);
        chat.arg(folder.path()).args(["--chat", "--max-new-tokens", "2", "--max-seq-len", "64", "--ignore-eos"]);
        let mut child = chat.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        child.wait_with_output().unwrap()
    };
    let output = run("hat\n");
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(run("no\n").status.code(), Some(1));
}

#[test]
fn a_prompt_that_cannot_fit_is_refused_before_it_is_cut() {
    let folder = chatting("");
    let prompt = folder.path().join("prompt");
    fs::write(&prompt, "every block has an owner ".repeat(300_000)).unwrap();
    let mut run = command(&["run"]);
    run.arg(folder.path()).args(["--max-seq-len", "256", "--prompt", "-"]).stdin(fs::File::open(&prompt).unwrap());
    let output = within_limits(&mut run);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains("more than the 256 tokens that a sequence may have"), "{}", stderr(&output));
}
