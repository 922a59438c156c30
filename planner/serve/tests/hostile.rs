//! Whatever bytes come in, they are read or refused: no panic, and within the limits.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use cacheplan_serve::manifest;
use proptest::prelude::*;
use rstest::rstest;

/// Far more than a debug build takes on a machine that does other things too.
const MAX_TIME: Duration = Duration::from_secs(5);

/// What reading may take, as `SECURITY.md` states it for a file that is refused.
const MAX_BYTES: u64 = 64 << 20;

/// Reads, shows what came out, and gives why nothing did.
fn refusal(bytes: &[u8]) -> String {
    refusal_of("m", bytes)
}

fn refusal_of(name: &str, bytes: &[u8]) -> String {
    let start = Instant::now();
    let mut read = None;
    let memory = allocation_counter::measure(|| read = Some(manifest::read(name, bytes)));
    let shown = match read.unwrap() {
        Ok(launches) => {
            let shown: Vec<String> = launches.iter().map(|launch| format!("{launch} {launch:?}")).collect();
            assert!(shown.concat().len() < 64 << 20);
            String::new()
        }
        Err(error) => error.to_string(),
    };
    assert!(start.elapsed() < MAX_TIME, "{:?} for {} bytes: {shown:.300}", start.elapsed(), bytes.len());
    assert!(memory.bytes_max < MAX_BYTES, "{} bytes for {}: {shown:.300}", memory.bytes_max, bytes.len());
    assert!(shown.len() < 4_000, "an error of {} bytes", shown.len());
    assert!(!shown.contains(char::is_control), "{shown:?}");
    shown
}

fn repeated(head: &str, part: &str, tail: &str) -> String {
    let parts = (1_000_000 - head.len() - tail.len()) / part.len();
    format!("{head}{}{tail}", part.repeat(parts))
}

/// Variables that double twenty times, in front of an engine.
fn doubling(line: impl Fn(usize) -> String, tail: &str) -> String {
    (1..40).map(line).collect::<String>() + tail
}

#[rstest]
#[case::length("vllm serve m #".to_owned() + &"x".repeat(1 << 20), "a manifest of more than 1048576 bytes is not read")]
#[case::flow(repeated("a: ", "[", ""), "recursion limit exceeded")]
#[case::flow_maps(repeated("a: ", "{a: ", ""), "is not read")]
#[case::lists(repeated("a:\n", "- ", ""), "is not read")]
#[case::keys(repeated("a:\n", "? ", ""), "a key that is a list or a map")]
#[case::values(repeated("a:\n", "- 1\n", ""), "a manifest of values of more than 100000")]
#[case::documents(repeated("a: 1\n", "---\n", ""), "a manifest of values of more than 100000")]
#[case::anchors("a: &b [1]\nc: *b\n".to_owned(), "an anchor (`&b`) is not read")]
#[case::an_alias("a: *b\n".to_owned(), "unknown anchor")]
#[case::merge("a: {<<: {b: 1}}\n".to_owned(), "a merge (`<<`) is not read")]
#[case::tag("a: !!binary aGk=\n".to_owned(), "is not read; write the value as a text")]
#[case::marks("a: \"\\x01\"\n".to_owned(), "a control character is not read")]
#[case::marks_of_a_script("vllm serve \u{1}a\u{2}\u{3}".to_owned(), "a control character")]
#[case::an_open_quote(repeated("a: '", "x ", ""), "this is no YAML")]
#[case::an_open_block(repeated("a: |\n", " x\n", ""), "no command that starts an engine")]
#[case::comments(repeated("", "# x\n", ""), "no command that starts an engine")]
#[case::nothing(String::new(), "no command that starts an engine")]
#[case::shell_doubles(doubling(|i| format!("A{}=${{A{i}}}${{A{i}}}xxxxxxxx\n", i + 1), "vllm serve $A40").replacen("${A1}${A1}", "x", 1), "more than")]
#[case::arrays_double(doubling(|_| "A=(\"${A[@]}\" \"${A[@]}\" x)\n".to_owned(), "vllm serve ${A[@]}"), "more than")]
#[case::added_doubles(doubling(|_| "A+=x$A\n".to_owned(), "vllm serve $A"), "more than")]
#[case::substitutions(repeated("vllm serve ", "$(", ""), "a `$(` has no end")]
#[case::braces(repeated("vllm serve ", "${A:-", ""), "a `${` has no end")]
#[case::defaults(format!("vllm serve {}x{}", "${A:-".repeat(9_000), "}".repeat(9_000)), "is more than a variable")]
#[case::brackets(repeated("vllm serve ", "{", ""), "more than")]
#[case::documents_of_a_shell(repeated("cat <<A <<B\n", "x\n", ""), "a document behind `<<` has no end")]
#[case::commands("vllm serve m\n".repeat(300), "a manifest of commands of more than 256")]
#[case::shells(repeated("X=1\n", "bash -c true\n", ""), "a script of more than 50000 words")]
#[case::variables(repeated("vllm serve \"", "$a", "\""), "a script of more than 50000 words")]
#[case::patterns(repeated("vllm serve ", "*", ""), "a script of more than 50000 words")]
#[case::elements(repeated("A=(", "a ", ")"), "a script of more than 50000 words")]
#[case::variables_of_documents(repeated("cat > a <<B\n", "$a", "\nB\n"), "a script of more than 50000 words")]
#[case::empty_elements(doubling(|_| "A=(\"${A[@]}\" \"${A[@]}\" \"\")\n".to_owned(), "vllm serve ${A[@]}"), "more than")]
#[case::added_elements("A+=(\"\")\n".repeat(20_000) + "vllm serve m", "more than")]
#[case::files("cat > a.yaml <<B\nB\n".repeat(8_000) + "vllm serve --config a.yaml", "")]
#[case::a_long_option_file(format!("cat > a.yaml <<B\n{}B\n{}", (0..9_000).map(|key| format!("k{key}: 1\n")).collect::<String>(), "vllm serve --config a.yaml\n".repeat(200)), "an expansion of variables of more than")]
#[case::nested_shells("bash -c ".repeat(20) + "x", "no command that starts an engine")]
#[case::flags_of_docker(repeated("docker run ", "-e ", "i vllm serve m"), "a script of more than 50000 words")]
fn what_would_harm_is_refused(#[case] text: String, #[case] expected: &str) {
    let found = refusal(text.as_bytes());
    assert!(found.contains(expected), "{found:.500}");
}

#[rstest]
#[case::calls("a.bat", repeated("", "call ", "llama-server.exe -m m"), "")]
#[case::conditions("a.bat", repeated("", "if x ", "llama-server.exe -m m"), "under a condition")]
#[case::loops("a.bat", repeated("", "for a do if not exist b call ", "llama-server.exe -m m"), "under a condition")]
#[case::stages(
    "Dockerfile",
    format!(
        "FROM a AS s0\n{}{}CMD [\"vllm\", \"serve\", \"m\"]\n",
        (0..9_000).map(|index| format!("ENV A{index}=1\n")).collect::<String>(),
        (1..30_000).map(|index| format!("FROM s{} AS s{index}\n", index - 1)).collect::<String>()
    ),
    ""
)]
#[case::blocks("m", "{\n".repeat(24_000) + &"A=1\n".repeat(24_000) + "vllm serve m", "")]
#[case::options_of_shells("m", format!("A=({})\nexec ${{A[@]}} ${{A[@]}} ${{A[@]}}", "sh -o ".repeat(24_000)), "no command that starts an engine")]
#[case::forgotten_files(
    "m",
    format!("{}A=({})\nsed ${{A[@]}}", (0..2_000).map(|index| format!("cat > a{index} <<B\nB\n")).collect::<String>(), "b ".repeat(20_000)),
    "an expansion of variables of more than"
)]
#[case::lists_of_containers(
    "m",
    format!("A=({})\ndocker run {} vllm/vllm-openai:v0.24.0 m", "b ".repeat(20_000), "-e A ".repeat(12_000)),
    ""
)]
#[case::texts_of_cmd("a.bat", doubling(|i| format!("set A{}=%A{i}%%A{i}%xxxxxxxx\n", i + 1), "vllm serve %A40%").replacen("%A1%%A1%", "x", 1), "more than")]
#[case::slices("a.bat", repeated("set A=x\nvllm serve m ", "%A:~0,1%", ""), "")]
#[case::jumps("a.bat", repeated("", "if x goto a\n", ":a\nvllm serve m\n"), "")]
#[case::scopes("a.bat", repeated("", "setlocal\n", "vllm serve m\n"), "")]
#[case::blocks_of_cmd("a.bat", repeated("", "(", ""), "no command that starts an engine")]
#[case::shells_of_cmd("a.bat", repeated("", "cmd /c ", "vllm serve m"), "more than")]
#[case::sums("a.bat", repeated("set /a a=", "(", "\nvllm serve %a%"), "more than")]
#[case::texts_of_power_shell("a.ps1", "$a = 'xxxxxxxx'\n".to_owned() + &"$a += $a\n".repeat(40) + "vllm serve $a", "does not compute")]
#[case::lists_of_power_shell("a.ps1", repeated("$a = 'x' * 4000\nvllm serve ", "$a ", ""), "does not compute")]
#[case::arguments("a.ps1", repeated("vllm serve ", "a ", ""), "does not compute")]
#[case::words_of_cmd("a.bat", repeated("vllm serve ", "a ", ""), "more than")]
#[case::words_of_units("a.service", repeated("[Service]\nExecStart=vllm serve ", "a ", ""), "more than")]
#[case::statements("a.ps1", repeated("", "$a=1;", "vllm serve m"), "")]
#[case::indices("a.ps1", repeated("", "$a[", "\nvllm serve m"), "")]
#[case::names("a.ps1", repeated("", "${", "\nvllm serve m"), "")]
#[case::parentheses("a.ps1", repeated("vllm serve m ", "(", ""), "does not compute")]
#[case::blocks_of_power_shell("a.ps1", repeated("", "if (x) {", ""), "no command that starts an engine")]
#[case::tries("a.ps1", repeated("", "try ", "vllm serve m"), "")]
#[case::scripts_of_power_shell("a.ps1", repeated("iex '", "iex ", "'"), "no command that starts an engine")]
#[case::sourced("a.ps1", (0..30_000).map(|i| format!("$a{i}=1\n. x\n")).collect::<String>(), "more than")]
#[case::variables_of_units(
    "a.service",
    repeated("[Service]\nEnvironment=A=xxxxxxxx\nExecStart=vllm serve m \"", "${A}", "\""),
    "more than"
)]
#[case::commands_of_units(
    "a.service",
    repeated("[Service]\nType=oneshot\nExecStart=", "vllm serve m ; ", ""),
    "more than"
)]
#[case::continued_lines("a.service", repeated("[Service]\nExecStart=vllm serve m ", "\\\n", ""), "")]
fn what_would_harm_in_a_file_of_a_kind_is_refused(#[case] name: &str, #[case] text: String, #[case] expected: &str) {
    let found = refusal_of(name, text.as_bytes());
    assert!(found.contains(expected), "{found:.500}");
}

#[rstest]
#[case::kubernetes_doubles(doubling(|i| format!("        - {{name: A{}, value: $(A{i})$(A{i})xxxxxxxx}}\n", i + 1), ""), "more than")]
#[case::many_containers("        - {name: A, value: x}\n".repeat(3), "no command that starts an engine")]
fn what_would_harm_in_a_pod_is_refused(#[case] environment: String, #[case] expected: &str) {
    let text =
        format!("kind: Pod\nspec:\n  containers:\n    - env:\n        - {{name: A1, value: xxxxxxxxx}}\n{environment}");
    let found = refusal(text.as_bytes());
    assert!(found.contains(expected), "{found:.500}");
}

#[rstest]
#[case(&[0xff, 0xfe, 0x00])]
#[case(&[0x00, 0x01])]
#[case(b"vllm serve a\0b")]
fn bytes_that_are_no_text_are_refused_or_read(#[case] bytes: &[u8]) {
    refusal(bytes);
}

fn seeds() -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/manifests");
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_file());
    let mut seeds: Vec<String> = files.map(|path| fs::read_to_string(path).unwrap()).collect();
    seeds.sort();
    assert!(seeds.len() > 30);
    seeds
}

/// Signs that mean something to YAML or to a shell.
const SIGNS: [&str; 32] = [
    "\n", " ", "  ", "- ", ": ", "'", "\"", "{", "}", "[", "]", "$", "${", "$(", ")", "`", "\\", "|", "|\n", ">",
    "<<A\n", "&", "&a ", "*a", "#", "{{", "}}", "---\n", "A=", "(", ";", "\u{1}",
];

/// Signs that mean something to `cmd.exe`, to PowerShell or to systemd.
const OTHER_SIGNS: [&str; 64] = [
    "\n",
    " ",
    "é",
    "'",
    "\"",
    "{",
    "}",
    "[",
    "]",
    "(",
    ")",
    "$",
    "${",
    "$(",
    "@(",
    "@",
    "@\"\n",
    "\n\"@",
    "`",
    "`\n",
    "\\",
    "\\\n",
    "^",
    "^\n",
    "|",
    "||",
    "&",
    "&&",
    ";",
    ",",
    "=",
    "+=",
    "++",
    "-",
    "--x",
    "*",
    "*>",
    "2>&1",
    ">",
    "%",
    "%A%",
    "%A:~1,2%",
    "%1",
    "%~dp0",
    "!A!",
    ":a\n",
    "# ",
    "<#",
    "#>",
    "$a",
    "$env:A",
    "[int]",
    "0x1",
    "2kb",
    "1.5",
    "set A=",
    "set /a A",
    "goto a\n",
    "call ",
    "if x ",
    "for ",
    "setlocal\n",
    "vllm serve m",
    "Environment=A=1\n",
];

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_mutated_manifest_is_read_or_refused(
        seed in any::<prop::sample::Index>(),
        other in any::<prop::sample::Index>(),
        edits in prop::collection::vec((any::<prop::sample::Index>(), 0..40usize, 0..SIGNS.len(), any::<bool>()), 1..12),
    ) {
        let seeds = seeds();
        let mut text: Vec<char> = seed.get(&seeds).chars().collect();
        let donor: Vec<char> = other.get(&seeds).chars().collect();
        for (at, length, sign, splices) in edits {
            let from = at.index(text.len() + 1);
            let to = (from + length / 2).min(text.len());
            let piece: Vec<char> = if splices {
                let start = at.index(donor.len() + 1);
                donor[start..(start + length * 4).min(donor.len())].to_vec()
            } else {
                SIGNS[sign].chars().collect()
            };
            text.splice(from..to, piece);
        }
        refusal(text.iter().collect::<String>().as_bytes());
    }

    #[test]
    fn signs_in_any_order_are_read_or_refused(signs in prop::collection::vec(0..SIGNS.len() + 6, 0..60)) {
        const WORDS: [&str; 6] = ["vllm serve ", "docker run ", "bash -c ", "kind: Pod\n", "services:\n", "if "];
        let text: String = signs.iter().map(|sign| SIGNS.iter().chain(&WORDS).nth(*sign).unwrap()).copied().collect();
        refusal(text.as_bytes());
    }

    #[test]
    fn signs_of_other_readers_in_any_order_are_read_or_refused(
        kind in 0..3usize,
        signs in prop::collection::vec(0..OTHER_SIGNS.len(), 0..60),
    ) {
        const KINDS: [(&str, &str); 3] = [("a.bat", ""), ("a.ps1", ""), ("a.service", "[Service]\nExecStart=vllm serve ")];
        let text: String = signs.iter().map(|sign| OTHER_SIGNS[*sign]).collect();
        refusal_of(KINDS[kind].0, format!("{}{text}", KINDS[kind].1).as_bytes());
    }

    #[test]
    fn any_text_is_read_or_refused(text in ".{0,400}") {
        refusal(text.as_bytes());
    }
}
