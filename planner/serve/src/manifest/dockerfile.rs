//! Dockerfiles, as scripts that run the same container.

use std::collections::BTreeMap;

use super::wheel;
use crate::words::quoted;

/// Whether a text is one: its first instruction is `FROM`, or `ARG` in front of that.
pub(super) fn is(text: &str) -> bool {
    let lines = text.lines().map(str::trim_start).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let mut names = lines.map(|line| line.split_whitespace().next().unwrap_or(""));
    match names.next() {
        Some("FROM") => true,
        Some("ARG") => names.any(|name| name == "FROM"),
        _ => false,
    }
}

/// What a stage says of the image that it makes.
#[derive(Default)]
struct Stage {
    image: String,
    /// The stage that it goes on from.
    base: Option<usize>,
    /// Its variables.
    names: Vec<String>,
    entrypoint: Option<Run>,
    command: Option<Run>,
    /// What it installs, by the place.
    installs: Vec<(usize, String)>,
    /// The place of what was said last of it.
    line: Option<usize>,
}

/// Words as a shell reads them.
struct Run {
    words: Vec<String>,
    by_shell: bool,
}

impl Run {
    /// A list of words, or text for a shell.
    fn of(text: &str) -> Self {
        match serde_json::from_str::<Vec<String>>(text) {
            Ok(words) => Self { words: words.iter().map(|word| quoted(word)).collect(), by_shell: false },
            Err(_) => Self { words: vec!["sh".into(), "-c".into(), quoted(text)], by_shell: true },
        }
    }
}

/// The script: the variables where they are set, and what the last stage runs.
pub(super) fn script(text: &str) -> String {
    let mut script = vec![String::new(); text.lines().count()];
    let mut stages = vec![Stage::default()];
    let mut names: BTreeMap<String, usize> = BTreeMap::new();
    let escape = escape(text);
    for (line, instruction) in instructions(text, escape) {
        let (word, rest) = instruction.split_once(char::is_whitespace).unwrap_or((&instruction, ""));
        let rest = rest.trim();
        // What escapes in its own words; those that a shell or JSON reads have a backslash.
        let own = with_backslashes(rest, escape);
        let index = stages.len();
        let stage = &mut stages[index - 1];
        match word.to_ascii_uppercase().as_str() {
            "FROM" => {
                let mut words = rest.split_whitespace().filter(|word| !word.starts_with("--"));
                let image = words.next().unwrap_or("");
                let base = names.get(&image.to_lowercase()).copied();
                names.extend(words.nth(1).map(|name| (name.to_lowercase(), index)));
                stages.push(Stage { image: format!("\"{image}\""), base, ..Stage::default() });
            }
            "ARG" if rest.contains('=') => own.clone_into(&mut script[line]),
            "ENV" => {
                let rest = &*own;
                let (first, value) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
                match first.contains('=') {
                    true => {
                        let words = shlex::split(rest).unwrap_or_default();
                        stage.names.extend(words.iter().filter_map(|word| Some(word.split_once('=')?.0.to_owned())));
                        rest.clone_into(&mut script[line]);
                    }
                    // The older form, of one variable.
                    false => {
                        stage.names.push(first.to_owned());
                        script[line] = format!("{first}=\"{}\"", value.trim().replace('"', "\\\""));
                    }
                }
            }
            "RUN" => stage.installs.push((line, installs(rest))),
            "ENTRYPOINT" => (stage.entrypoint, stage.line) = (Some(Run::of(rest)), Some(line)),
            "CMD" => (stage.command, stage.line) = (Some(Run::of(rest)), Some(line)),
            _ => {}
        }
    }
    // The last stage, and those that it goes on from.
    let of = |stage: &&Stage| stage.base.map(|base| &stages[base]);
    let last: Vec<&Stage> = std::iter::successors(stages.last(), of).collect();
    for (line, installs) in last.iter().flat_map(|stage| &stage.installs) {
        installs.clone_into(&mut script[*line]);
    }
    let line = last.iter().find_map(|stage| stage.line).unwrap_or(0);
    // Variables that are set behind it are its own all the same.
    let mut end = script.split_off((line + 1).min(script.len()));
    end.extend([script.pop().unwrap_or_default(), run(&last)]);
    end.retain(|part| !part.is_empty());
    script.push(end.join("; "));
    script.join("\n")
}

/// `docker run` of what a stage has become with those that it goes on from; nothing where only its image says what it runs.
fn run(stages: &[&Stage]) -> String {
    let mut words: Vec<&str> = vec!["docker", "run"];
    words.extend(stages.iter().rev().flat_map(|stage| &stage.names).flat_map(|name| ["-e", name.as_str()]));
    let image = stages.last().map_or("", |stage| &*stage.image);
    let entry = stages.iter().position(|stage| stage.entrypoint.is_some());
    // An entrypoint takes back the command of what its stage goes on from.
    let own = entry.map_or(stages, |entry| &stages[..=entry]);
    let stated = own.iter().find_map(|stage| stage.command.as_ref());
    let command = stated.iter().flat_map(|run| &run.words).map(String::as_str);
    match entry.and_then(|entry| stages[entry].entrypoint.as_ref()) {
        None if stated.is_none() => return String::new(),
        None => words.extend([image].into_iter().chain(command)),
        Some(Run { words: entrypoint, by_shell }) => {
            let (first, others) =
                entrypoint.split_first().map_or(("''", &[][..]), |(first, others)| (&**first, others));
            words.extend(["--entrypoint", first, image].into_iter().chain(others.iter().map(String::as_str)));
            // A shell takes no arguments from elsewhere.
            words.extend(command.filter(|_| !by_shell));
        }
    }
    words.join(" ")
}

/// The commands of `RUN` that install something, each under a condition where it stands under one.
fn installs(text: &str) -> String {
    let text = serde_json::from_str::<Vec<String>>(text)
        .map_or_else(|_| text.to_owned(), |words| words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" "));
    let mut found = Vec::new();
    for part in text.split([';', '\n']).flat_map(|part| part.split("&&")) {
        for (index, command) in part.split("||").enumerate() {
            let bare = command.trim_start();
            let own = ["then ", "else ", "do ", "{ "].iter().find_map(|word| bare.strip_prefix(word));
            let is_certain = index == 0 && own.is_none();
            let words = shlex::split(own.unwrap_or(bare)).unwrap_or_default();
            // Options of the instruction stand in front, and what the shell does with what is printed behind.
            let words = words.into_iter().skip_while(|word| word.starts_with("--"));
            let words: Vec<String> =
                words.take_while(|word| !word.starts_with(['|', '>', '<', '&', '#', ')']) && word != "2>&1").collect();
            if wheel::is_install(&words) {
                let words: Vec<String> = words.iter().map(|word| expanding(word)).collect();
                found.push(format!("{}{}", if is_certain { "" } else { "true || " }, words.join(" ")));
            }
        }
    }
    found.join("; ")
}

/// A word as a shell reads it that puts variables into it.
fn expanding(word: &str) -> String {
    let escaped = word.replace('\\', "\\\\").replace('"', "\\\"").replace('`', "\\`").replace("$(", "\\$(");
    format!("\"{escaped}\"")
}

/// What continues a line: a directive above all else may say another sign (`# escape=` and a backtick).
fn escape(text: &str) -> char {
    let directives = text.lines().map_while(|line| line.trim().strip_prefix('#')?.split_once('='));
    let stated = directives.filter(|(name, _)| name.trim().eq_ignore_ascii_case("escape")).map(|(_, sign)| sign.trim());
    if stated.last() == Some("`") { '`' } else { '\\' }
}

/// A text whose signs are escaped as a shell reads it.
fn with_backslashes(text: &str, escape: char) -> String {
    let mut out = String::with_capacity(text.len());
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        if character == escape || character == '\\' {
            out.push('\\');
        }
        match character == escape {
            true => out.extend(characters.next()),
            false => out.push(character),
        }
    }
    out
}

/// The instructions, each with the place of its first line; a document in one is left out.
fn instructions(text: &str, escape: char) -> Vec<(usize, String)> {
    let mut found: Vec<(usize, String)> = Vec::new();
    let (mut goes_on, mut end) = (false, None::<String>);
    for (at, line) in text.lines().enumerate() {
        let line = line.trim();
        let is_end = end.as_deref() == Some(line);
        if end.is_some() || line.is_empty() || line.starts_with('#') {
            end = end.filter(|_| !is_end);
            continue;
        }
        let (part, more) = line.strip_suffix(escape).map_or((line, false), |part| (part, true));
        match found.last_mut().filter(|_| goes_on) {
            Some((_, instruction)) => *instruction += &format!(" {}", part.trim()),
            None => found.push((at, part.trim_end().to_owned())),
        }
        goes_on = more;
        let document = line.split_whitespace().find_map(|word| word.strip_prefix("<<"));
        end = document.map(|name| name.trim_start_matches('-').trim_matches(['"', '\'']).to_owned());
    }
    found
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use crate::manifest;

    #[rstest]
    #[case::list(
        "FROM vllm/vllm-openai:v0.24.0\nENV HF_HOME=/data LENGTH=8192\nENTRYPOINT [\"vllm\", \"serve\"]\nCMD [\"m\", \"--port\", \"80\"]\n",
        "HF_HOME=/data LENGTH=8192 vllm serve m --port 80",
        4
    )]
    #[case::entrypoint_of_the_image(
        "# ours\nARG TAG=v0.24.0\nFROM vllm/vllm-openai:${TAG}\nRUN pip install x \\\n  # why\n  y\nCMD [\"m\"]\n",
        "vllm serve m",
        7
    )]
    #[case::without_the_entrypoint_of_the_image(
        "FROM vllm/vllm-openai:v0.24.0\nENTRYPOINT []\nCMD [\"vllm\", \"serve\", \"m\"]\n",
        "vllm serve m",
        3
    )]
    #[case::without_the_entrypoint_of_the_image_in_a_shell(
        "FROM vllm/vllm-openai:v0.24.0\nENTRYPOINT [\"\"]\nCMD vllm serve m\n",
        "vllm serve m",
        3
    )]
    #[case::another_escape(
        "# syntax=docker/dockerfile:1\n# escape=`\nFROM vllm/vllm-openai:v0.24.0\nENV A=c:\\x `\n  B=a` b\nCMD [\"m\", `\n  \"--port\", \"80\"]\n",
        "A=\"c:\\\\x\" B='a b' vllm serve m --port 80",
        6
    )]
    #[case::shell(
        "FROM lmsysorg/sglang:v0.5.23 AS base\nENV LENGTH 8192\nFROM base\nCMD python3 -m sglang.launch_server --model-path m \\\n  --context-length $LENGTH\n",
        "LENGTH=8192 python3 -m sglang.launch_server --model-path m --context-length 8192",
        4
    )]
    #[case::another_stage(
        "FROM ubuntu AS build\nCMD vllm serve other\nFROM ubuntu\nRUN <<EOF\nCMD vllm serve none\nEOF\nENTRYPOINT vllm serve m\nCMD [\"x\"]\nENV A=1\n",
        "A=1 vllm serve m",
        8
    )]
    #[case::entrypoint_over_another_stage(
        "FROM ubuntu AS base\nENV A=1\nCMD [\"x\"]\nFROM base AS two\nENV B=2\nENTRYPOINT [\"vllm\", \"serve\", \"m\"]\nFROM two\n",
        "A=1 B=2 vllm serve m",
        6
    )]
    fn a_dockerfile_starts_what_its_last_stage_runs(#[case] text: &str, #[case] command: &str, #[case] line: usize) {
        let found = manifest::read("Dockerfile", text.as_bytes()).unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].to_string(), found[0].place.clone()), (command.to_owned(), format!("Dockerfile:{line}")));
    }

    #[rstest]
    #[case("FROM vllm/vllm-openai:v0.24.0\nCMD [\"$MODEL\"]\n", "Dockerfile:2")]
    #[case("FROM ubuntu\nCMD vllm serve $MODEL\n", "MODEL")]
    #[case("FROM ubuntu\nRUN apt-get update\n", "no command that starts an engine")]
    fn what_a_dockerfile_leaves_open_is_refused(#[case] text: &str, #[case] expected: &str) {
        let error = manifest::read("Dockerfile", text.as_bytes()).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}
