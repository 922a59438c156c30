//! The words of a command that a shell has read already.

use std::collections::BTreeMap;

use crate::error::ServeError;
use crate::launch::Launch;
use crate::manifest;

impl Launch {
    /// The engines that the words of a command start, which a shell has read already; `env` is the environment in which it
    /// would run.
    ///
    /// # Errors
    /// A variable that was quoted and has no value, what `manifest` refuses, and words that start no engine.
    pub fn from_words(words: Vec<String>, env: &BTreeMap<String, String>) -> Result<Vec<Self>, ServeError> {
        let words: Result<Vec<String>, ServeError> = words.into_iter().map(|word| expanded(&word, env)).collect();
        let words = words?;
        let found = manifest::of_words(&words, env)?;
        match found.is_empty() {
            true => Err(ServeError::no_engine(&words)),
            false => Ok(found),
        }
    }
}

/// `$NAME` and `${NAME}` in a word by their values.
fn expanded(word: &str, env: &BTreeMap<String, String>) -> Result<String, ServeError> {
    let mut text = String::new();
    let mut rest = word;
    while let Some(at) = rest.find('$') {
        text += &rest[..at];
        let (name, behind) = variable(&rest[at + 1..]);
        match (name, env.get(name)) {
            ("", _) => text.push('$'),
            (_, Some(value)) => text += value,
            (name, None) => return Err(ServeError::Unset { name: name.to_owned() }),
        }
        rest = behind;
    }
    Ok(text + rest)
}

/// The name that a `$` is followed by, and what is behind; no name where it is none.
fn variable(text: &str) -> (&str, &str) {
    let is_name = |char: char| char.is_ascii_alphanumeric() || char == '_';
    if let Some((name, behind)) = text.strip_prefix('{').and_then(|rest| rest.split_once('}'))
        && !name.is_empty()
        && name.chars().all(is_name)
    {
        return (name, behind);
    }
    let end = text.find(|char| !is_name(char)).unwrap_or(text.len());
    if text.starts_with(|first: char| first.is_ascii_digit()) { ("", text) } else { text.split_at(end) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("CUDA_VISIBLE_DEVICES=0 exec /opt/venv/bin/vllm serve m", "/opt/venv/bin/vllm serve m", None)]
    #[case("uv run sglang serve --model-path m", "sglang serve --model-path m", None)]
    #[case("docker run --gpus all -e A=1 vllm/vllm-openai:v0.24.0 --model m", "vllm serve --model m", Some("0.24.0"))]
    #[case("uv run --with vllm==0.10.1.1 vllm serve m", "vllm serve m", Some("0.10.1.1"))]
    #[case("uvx --from=sglang[all]==0.5.10.post2 sglang serve m", "sglang serve m", Some("0.5.10.post2"))]
    #[case("bash -c 'vllm serve $HOME'", "vllm serve /home/a", None)]
    fn words_are_read_as_those_of_a_script_are(#[case] text: &str, #[case] words: &str, #[case] version: Option<&str>) {
        let env = BTreeMap::from([("HOME".to_owned(), "/home/a".to_owned())]);
        let found = Launch::from_words(shlex::split(text).unwrap(), &env).unwrap();
        assert_eq!(found[0].words.join(" "), words);
        assert_eq!(found[0].version.as_deref(), version);
    }

    #[rstest]
    #[case("ls -l", "`ls` starts no engine")]
    #[case("vllm serve $MODEL", "`$MODEL` is not set")]
    fn what_starts_no_engine_is_refused(#[case] text: &str, #[case] message: &str) {
        let error = Launch::from_words(shlex::split(text).unwrap(), &BTreeMap::new()).unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }
}
