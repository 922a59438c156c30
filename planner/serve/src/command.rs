//! A script, or any text with one command, read as a shell would; nothing of it is run.

use std::collections::BTreeMap;

use crate::error::ServeError;
use crate::launch::Launch;
use crate::program::Program;
use crate::words::assignment;

/// The longest text that is read as a command, in bytes.
pub const LONGEST: usize = 1 << 20;

impl Launch {
    /// The one command that starts an engine in a text, such as a shell script; `place` names it in errors, `env` is the environment in
    /// which it would run.
    ///
    /// # Errors
    /// Another number of such commands than one, a variable without a value in its words, or what only a shell can tell.
    pub fn from_text(text: &str, place: &str, env: &BTreeMap<String, String>) -> Result<Self, ServeError> {
        let wrong = |what: String| ServeError::Text { place: place.to_owned(), what };
        if text.len() > LONGEST {
            return Err(wrong(format!("more than {LONGEST} bytes are no command")));
        }
        let mut shell = Shell { env: env.clone(), ..Shell::default() };
        let commands = shell.read(text).map_err(|what| wrong(what.to_owned()))?;
        let starts = |command: &&Command| Program::of(&command.words).is_ok();
        let mut found: Vec<&Command> = commands.iter().filter(starts).collect();
        let [command] = found.as_mut_slice() else {
            return Err(ServeError::Commands { place: place.to_owned(), found: found.len() });
        };
        match &command.unknown {
            Some(Unknown::Variable(name)) => Err(ServeError::Unset { name: name.clone() }),
            Some(Unknown::Output) => {
                Err(wrong("the command has words that another command prints; write them out".into()))
            }
            None => Ok(Self {
                words: command.words.clone(),
                env: command.env.clone(),
                place: place.to_owned(),
                ..Self::default()
            }),
        }
    }

    /// The words of a command that a shell has read already.
    ///
    /// # Errors
    /// A variable that was quoted and has no value.
    pub fn from_words(words: Vec<String>, env: &BTreeMap<String, String>) -> Result<Self, ServeError> {
        let words: Result<Vec<String>, ServeError> = words.into_iter().map(|word| expanded(&word, env)).collect();
        Ok(Self { words: words?, env: env.clone(), place: "the command".into(), ..Self::default() })
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

/// The words of one command, for tests.
#[cfg(test)]
pub(crate) fn words(text: &str) -> Result<Vec<String>, &'static str> {
    let commands = Shell::default().read(text)?;
    Ok(commands.into_iter().next().map(|command| command.words).unwrap_or_default())
}

/// What only a shell could say of a word.
#[derive(Clone, Debug)]
enum Unknown {
    Variable(String),
    Output,
}

struct Command {
    words: Vec<String>,
    /// The variables that are set before it.
    env: BTreeMap<String, String>,
    unknown: Option<Unknown>,
}

/// What a shell keeps while it reads.
#[derive(Default)]
struct Shell {
    env: BTreeMap<String, String>,
    lists: BTreeMap<String, Vec<String>>,
    commands: Vec<Command>,
    words: Vec<String>,
    /// The word that is being read; none between words.
    word: Option<String>,
    unknown: Option<Unknown>,
    /// The list whose words are being read.
    list: Option<String>,
}

impl Shell {
    fn read(&mut self, text: &str) -> Result<Vec<Command>, &'static str> {
        let mut rest = text;
        while let Some(char) = rest.chars().next() {
            rest = self.step(char, rest)?;
        }
        self.end_command();
        Ok(std::mem::take(&mut self.commands))
    }

    fn step<'a>(&mut self, char: char, text: &'a str) -> Result<&'a str, &'static str> {
        let behind = &text[char.len_utf8()..];
        match char {
            '\\' => {
                let Some(next) = behind.chars().next() else { return Ok(behind) };
                let end = behind.strip_prefix("\r\n").or_else(|| behind.strip_prefix('\n'));
                if let Some(next_line) = end {
                    return Ok(next_line);
                }
                self.push(next);
                return Ok(&behind[next.len_utf8()..]);
            }
            '\'' => {
                let (quoted, behind) = behind.split_once('\'').ok_or("a quote is not closed")?;
                self.word.get_or_insert_default().push_str(quoted);
                return Ok(behind);
            }
            '"' => return self.quoted(behind),
            '$' => return Ok(self.dollar(behind, false)),
            '`' => {
                self.unknown = Some(Unknown::Output);
                return Ok(behind.split_once('`').map_or("", |(_, behind)| behind));
            }
            '#' if self.word.is_none() => return Ok(behind.find('\n').map_or("", |end| &behind[end..])),
            '(' if self.word.as_deref().is_some_and(|word| word.ends_with('=')) => {
                self.list = self.word.take().map(|word| word.trim_end_matches('=').to_owned());
            }
            ')' if self.list.is_some() => {
                self.end_word();
                let name = self.list.take().unwrap_or_default();
                self.lists.insert(name, std::mem::take(&mut self.words));
            }
            '\n' if self.list.is_some() => self.end_word(),
            '\n' | ';' | '&' | '|' | '(' | ')' => self.end_command(),
            '<' | '>' => {
                // What is read or written is no word.
                if self.word.as_deref().is_some_and(|word| word.chars().all(|char| char.is_ascii_digit())) {
                    self.word = None;
                }
                self.end_word();
                let target = behind.trim_start_matches(['>', '<', '&', ' ']);
                return Ok(target.find(char::is_whitespace).map_or("", |end| &target[end..]));
            }
            char if char.is_whitespace() => self.end_word(),
            char => self.push(char),
        }
        Ok(behind)
    }

    fn push(&mut self, char: char) {
        self.word.get_or_insert_default().push(char);
    }

    fn quoted<'a>(&mut self, mut rest: &'a str) -> Result<&'a str, &'static str> {
        self.word.get_or_insert_default();
        while let Some(char) = rest.chars().next() {
            let behind = &rest[char.len_utf8()..];
            rest = match char {
                '"' => return Ok(behind),
                '$' => self.dollar(behind, true),
                '`' => {
                    self.unknown = Some(Unknown::Output);
                    behind
                }
                '\\' if behind.starts_with('\n') => &behind[1..],
                '\\' if behind.starts_with(['"', '\\', '$', '`']) => {
                    self.push(behind.chars().next().unwrap_or_default());
                    &behind[1..]
                }
                char => {
                    self.push(char);
                    behind
                }
            };
        }
        Err("a quote is not closed")
    }

    /// What stands for `$` and what is behind it.
    fn dollar<'a>(&mut self, behind: &'a str, is_quoted: bool) -> &'a str {
        if behind.starts_with('(') {
            self.unknown = Some(Unknown::Output);
            let mut depth = 0usize;
            for (at, char) in behind.char_indices() {
                depth = match char {
                    '(' => depth + 1,
                    ')' => depth - 1,
                    _ => depth,
                };
                if depth == 0 {
                    return &behind[at + 1..];
                }
            }
            return "";
        }
        let braced = behind.strip_prefix('{').and_then(|rest| rest.split_once('}'));
        if let Some((inner, rest)) = braced {
            let list = inner.strip_suffix("[@]").and_then(|name| self.lists.get(name));
            if let Some(words) = list {
                let (last, first) = words.split_last().map_or((None, &[][..]), |(last, first)| (Some(last), first));
                self.words.extend(first.iter().cloned());
                self.word = last.cloned();
                return rest;
            }
            // `${NAME:-value}`.
            if let Some((name, otherwise)) = inner.split_once(":-").or_else(|| inner.split_once('-')) {
                let value = self.env.get(name).cloned().unwrap_or_else(|| otherwise.to_owned());
                self.word.get_or_insert_default().push_str(&value);
                return rest;
            }
        }
        let (name, rest) = variable(behind);
        match (name, self.env.get(name)) {
            ("", _) => self.push('$'),
            (_, Some(value)) if is_quoted => self.word.get_or_insert_default().push_str(value),
            (_, Some(value)) => {
                // A value that is not in quotes is cut into words.
                let value = value.clone();
                for (at, part) in value.split_whitespace().enumerate() {
                    if at > 0 {
                        self.end_word();
                    }
                    self.word.get_or_insert_default().push_str(part);
                }
            }
            (name, None) => self.unknown = Some(Unknown::Variable(name.to_owned())),
        }
        rest
    }

    fn end_word(&mut self) {
        self.words.extend(self.word.take());
    }

    fn end_command(&mut self) {
        self.end_word();
        let mut words = std::mem::take(&mut self.words);
        let unknown = self.unknown.take();
        if words.first().is_some_and(|first| first == "export") {
            words.remove(0);
        }
        if !words.is_empty() && words.iter().all(|word| assignment(word).is_some()) {
            let set = words.iter().filter_map(|word| assignment(word));
            self.env.extend(set.map(|(name, value)| (name.to_owned(), value.to_owned())));
        } else if !words.is_empty() {
            self.commands.push(Command { words, env: self.env.clone(), unknown });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn read(text: &str) -> Result<Launch, ServeError> {
        Launch::from_text(text, "start.sh", &BTreeMap::new())
    }

    #[rstest]
    #[case("vllm serve m --max-model-len 8k\n", "vllm serve m --max-model-len 8k")]
    #[case(
        "#!/bin/bash\nset -e\n# starts it\nvllm serve m \\\n  --tensor-parallel-size 2 # two\n",
        "vllm serve m --tensor-parallel-size 2"
    )]
    #[case(
        "export MODEL=org/m\nLEN=4096\nexec vllm serve \"$MODEL\" --max-model-len ${LEN} 2>&1 | tee log\n",
        "exec vllm serve org/m --max-model-len 4096"
    )]
    #[case("cd /srv && vllm serve ${MODEL:-org/m} > out.log &\n", "vllm serve org/m")]
    #[case("args=(\n --a 1 # one\n --b 'x y'\n)\nvllm serve m \"${args[@]}\"\n", "vllm serve m --a 1 --b x y")]
    #[case(
        "vllm serve m --speculative-config '{\"method\": \"mtp\"}'",
        "vllm serve m --speculative-config {\"method\": \"mtp\"}"
    )]
    fn one_command_is_found_as_a_shell_would(#[case] text: &str, #[case] expected: &str) {
        assert_eq!(read(text).unwrap().words.join(" "), expected);
    }

    #[test]
    fn a_value_in_quotes_is_one_word() {
        assert_eq!(read("vllm serve m --a \"x $HOME\"".replace("$HOME", "y").as_str()).unwrap().words[4], "x y");
    }

    #[rstest]
    #[case("vllm serve $MODEL", "`$MODEL` is not set")]
    #[case("vllm serve m --api-key \"${KEY}\"", "`$KEY` is not set")]
    #[case("vllm serve $(cat model)", "another command prints")]
    #[case("vllm serve 'm", "a quote is not closed")]
    #[case("echo hello", "0 commands")]
    #[case("vllm serve a\nvllm serve b", "2 commands")]
    fn what_only_a_shell_can_tell_is_refused_by_name(#[case] text: &str, #[case] expected: &str) {
        let error = read(text).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}
