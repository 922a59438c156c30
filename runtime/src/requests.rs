//! Requests as lines of a file, and what came of them as lines of another.

use std::fmt;
use std::io::{BufRead, BufReader, Read};
use std::time::Duration;

use cacheplan_files::{Limit, Object, Shown, Source, SourceError};
use cacheplan_text::{Message, no_stop};
use serde::de::{self, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use thiserror::Error;

use crate::prompts::Prompt;
use crate::request::{Finish, Output};
use crate::sampling::{SamplingOptions, narrowed};

/// A request as a line states it: `docs/run.md` has the keys.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestLine {
    /// Its line in the file, from 1 on.
    pub line: usize,
    /// What the line calls it.
    pub id: Option<String>,
    /// What to go on from.
    pub prompt: Prompt,
    /// The most tokens to generate.
    pub max_tokens: Option<usize>,
    /// Strings that end its text.
    pub stop: Vec<String>,
    /// How to sample.
    pub sampling: SamplingOptions,
    /// When it comes.
    pub arrival: Duration,
    /// Whose it is.
    pub tenant: Option<String>,
}

/// Requests that cannot be read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RequestsError {
    /// The file cannot be read.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// There is none.
    #[error("{}: it holds no request; a request is a line such as {{\"prompt\": \"Once\"}}", Shown(.file))]
    None {
        /// The file.
        file: String,
    },
    /// A line that is no request.
    #[error("{}, line {line}: {}", Shown(.file), Shown(.reason))]
    Line {
        /// The file.
        file: String,
        /// Its line, from 1 on.
        line: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// More than is kept in memory.
    #[error("{}, line {line}: the requests to here take more than {bytes} bytes; split the file", Shown(.file))]
    TooMany {
        /// The file.
        file: String,
        /// The line that is too much, from 1 on.
        line: usize,
        /// What they may take.
        bytes: u64,
    },
}

/// The most bytes of a line.
const LONGEST_LINE: u64 = Limit::PROMPT.bytes;
/// The most lines, empty ones included.
const MOST_LINES: usize = 1 << 22;

/// The keys of a line.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Keys {
    id: Option<String>,
    prompt: Option<String>,
    prompt_ids: Option<Vec<u32>>,
    messages: Option<Vec<Object<Message>>>,
    max_tokens: Option<usize>,
    #[serde(default)]
    stop: Stop,
    temperature: Option<f64>,
    top_k: Option<usize>,
    top_p: Option<f64>,
    min_p: Option<f64>,
    repetition_penalty: Option<f64>,
    presence_penalty: Option<f64>,
    frequency_penalty: Option<f64>,
    seed: Option<u64>,
    #[serde(default)]
    arrival: f64,
    tenant: Option<String>,
}

/// The most strings that a request may end at.
const MOST_STOPS: usize = 64;

/// One string or several.
#[derive(Default)]
struct Stop(Vec<String>);

impl<'de> Deserialize<'de> for Stop {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OneOrSeveral;

        fn stopping<E: de::Error>(stop: String) -> Result<String, E> {
            no_stop(&stop).map_or(Ok(stop), |why| Err(E::custom(format_args!("`stop`: {why}"))))
        }

        impl<'de> Visitor<'de> for OneOrSeveral {
            type Value = Stop;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "`stop` as a string or a list of at most {MOST_STOPS} strings")
            }

            fn visit_str<E: de::Error>(self, one: &str) -> Result<Stop, E> {
                Ok(Stop(vec![stopping(one.to_owned())?]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Stop, A::Error> {
                let mut several = Vec::new();
                while let Some(stop) = list.next_element()? {
                    if several.len() == MOST_STOPS {
                        return Err(de::Error::invalid_length(several.len() + 1, &self));
                    }
                    several.push(stopping(stop)?);
                }
                Ok(Stop(several))
            }
        }

        deserializer.deserialize_any(OneOrSeveral)
    }
}

/// The longest that a request may wait for its time: a week.
const LONGEST: f64 = 7.0 * 24.0 * 3600.0;

impl RequestLine {
    /// The requests of a file of JSON lines. Empty lines are none.
    ///
    /// # Errors
    /// A file that cannot be read, the first line that is no request, or no line at all.
    pub fn read(source: &Source) -> Result<Vec<Self>, RequestsError> {
        source.within(Limit::REQUESTS)?;
        let file = || source.name().to_owned();
        let mut reader = BufReader::new(source.reader());
        let (mut requests, mut text, mut kept) = (Vec::new(), Vec::new(), 0);
        for line in 1.. {
            text.clear();
            let read = reader.by_ref().take(LONGEST_LINE + 1).read_until(b'\n', &mut text);
            if read.map_err(|source| SourceError::Io { name: file(), source })? == 0 {
                break;
            }
            // Editors on Windows put a mark in front.
            let said = text.strip_prefix("\u{feff}".as_bytes()).filter(|_| line == 1).unwrap_or(&text);
            let said = said.strip_suffix(b"\n").unwrap_or(said);
            let request = match text.len() as u64 > LONGEST_LINE {
                true => Err(format!("a line has at most {LONGEST_LINE} bytes")),
                false if line > MOST_LINES => Err(format!("a file has at most {MOST_LINES} lines")),
                false if said.trim_ascii().is_empty() => continue,
                false => Self::parse(said, line),
            };
            let request = request.map_err(|reason| RequestsError::Line { file: file(), line, reason })?;
            kept += request.bytes() as u64;
            if kept > Limit::REQUESTS.bytes {
                return Err(RequestsError::TooMany { file: file(), line, bytes: Limit::REQUESTS.bytes });
            }
            requests.push(request);
        }
        if requests.is_empty() { Err(RequestsError::None { file: file() }) } else { Ok(requests) }
    }

    /// About what it takes in memory, while the list that it is in grows.
    fn bytes(&self) -> usize {
        let prompt = match &self.prompt {
            Prompt::Text(text) | Prompt::Rendered(text) => text.len(),
            Prompt::Ids(ids) => size_of_val(ids.as_slice()),
            Prompt::Chat(messages) => {
                messages.iter().map(|said| size_of::<Message>() + said.role.len() + said.content.len()).sum()
            }
        };
        let names = self.id.as_ref().map_or(0, String::len) + self.tenant.as_ref().map_or(0, String::len);
        let stop: usize = self.stop.iter().map(|stop| size_of::<String>() + stop.len()).sum();
        3 * size_of::<Self>() + prompt + names + stop
    }

    fn parse(text: &[u8], line: usize) -> Result<Self, String> {
        let Object::<Keys>(keys) = Limit::REQUESTS
            .parse_json(text)
            // It is always the first line of what was parsed.
            .map_err(|error| error.to_string().replace(" line 1 column ", " column "))?;
        let prompt = match (keys.prompt, keys.prompt_ids, keys.messages) {
            (Some(text), None, None) => Prompt::Text(text),
            (None, Some(ids), None) => Prompt::Ids(ids),
            (None, None, Some(messages)) => Prompt::Chat(messages.into_iter().map(|Object(message)| message).collect()),
            _ => return Err("a request has one of `prompt`, `prompt_ids` and `messages`".to_owned()),
        };
        if !(0.0..=LONGEST).contains(&keys.arrival) {
            return Err(format!("`arrival` is {}; it must be seconds from 0 to {LONGEST}", keys.arrival));
        }
        let single = |key, stated: Option<f64>| {
            stated.map(|stated| narrowed(key, stated)).transpose().map_err(|error| error.to_string())
        };
        Ok(Self {
            line,
            id: keys.id,
            prompt,
            max_tokens: keys.max_tokens,
            stop: keys.stop.0,
            sampling: SamplingOptions {
                temperature: single("temperature", keys.temperature)?,
                top_k: keys.top_k,
                top_p: single("top_p", keys.top_p)?,
                min_p: single("min_p", keys.min_p)?,
                repetition_penalty: single("repetition_penalty", keys.repetition_penalty)?,
                presence_penalty: single("presence_penalty", keys.presence_penalty)?,
                frequency_penalty: single("frequency_penalty", keys.frequency_penalty)?,
                seed: keys.seed,
            },
            arrival: Duration::from_secs_f64(keys.arrival),
            tenant: keys.tenant,
        })
    }
}

impl RequestLine {
    /// The error of this line, which stands in `file`.
    pub fn refused(&self, file: impl Into<String>, reason: impl Into<String>) -> RequestsError {
        RequestsError::Line { file: file.into(), line: self.line, reason: reason.into() }
    }
}

/// What came of a request, as a line of JSON.
#[derive(Clone, Debug, Serialize)]
pub struct OutputLine<'a> {
    /// The request's line in its file.
    pub line: usize,
    /// What that line calls it.
    pub id: Option<&'a str>,
    /// The generated text, where the model has a tokenizer that was used.
    pub text: Option<&'a str>,
    /// The generated tokens.
    pub tokens: &'a [u32],
    /// Why it ended.
    pub finish_reason: Finish,
    /// Why it could not go on, where that is why it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Of these, those whose caches were already there.
    pub cached_tokens: usize,
    /// Times that it gave up its caches to make room.
    pub preemptions: u32,
    /// From its arrival to its admission.
    pub queued_seconds: Option<f64>,
    /// From its arrival to its first token.
    pub first_token_seconds: Option<f64>,
    /// From its arrival to its end.
    pub total_seconds: Option<f64>,
}

impl RequestLine {
    /// What came of the request, whose prompt has `prompt_tokens` tokens.
    #[must_use]
    pub fn answered<'a>(&'a self, prompt_tokens: usize, output: &'a Output, text: Option<&'a str>) -> OutputLine<'a> {
        let seconds = |time: Option<Duration>| time.map(|time| time.as_secs_f64());
        OutputLine {
            line: self.line,
            id: self.id.as_deref(),
            text,
            tokens: &output.tokens,
            finish_reason: output.finish,
            error: output.error.as_ref().map(ToString::to_string),
            prompt_tokens,
            cached_tokens: output.cached_tokens,
            preemptions: output.preemptions,
            queued_seconds: seconds(output.times.queued),
            first_token_seconds: seconds(output.times.first_token),
            total_seconds: seconds(output.times.total),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[test]
    fn every_key_of_a_line_is_read() {
        let text = r#"
{"prompt": "a", "stop": "x"}

{"id": "b", "prompt_ids": [1, 2], "max_tokens": 4, "stop": ["x", "y"], "temperature": 0.5, "top_k": 3, "top_p": 0.9, "min_p": 0.1, "repetition_penalty": 1.1, "presence_penalty": 0.2, "frequency_penalty": 0.3, "seed": 18446744073709551615, "arrival": 1.5, "tenant": "t"}
{"messages": [{"role": "user", "content": "hi"}]}
"#;
        let lines = RequestLine::read(&Source::memory("r.jsonl", text)).unwrap();
        assert_eq!(lines.iter().map(|line| line.line).collect::<Vec<_>>(), [2, 4, 5]);
        assert_eq!((&lines[0].prompt, &lines[0].stop), (&Prompt::Text("a".into()), &vec!["x".to_owned()]));
        let all = &lines[1];
        assert_eq!((all.id.as_deref(), &all.prompt, all.max_tokens), (Some("b"), &Prompt::Ids(vec![1, 2]), Some(4)));
        assert_eq!((all.stop.len(), all.arrival, all.tenant.as_deref()), (2, Duration::from_millis(1500), Some("t")));
        let sampling = SamplingOptions {
            temperature: Some(0.5),
            top_k: Some(3),
            top_p: Some(0.9),
            min_p: Some(0.1),
            repetition_penalty: Some(1.1),
            presence_penalty: Some(0.2),
            frequency_penalty: Some(0.3),
            seed: Some(u64::MAX),
        };
        assert_eq!(all.sampling, sampling);
        assert_eq!(lines[2].prompt, Prompt::Chat(vec![Message::new("user", "hi")]));
    }

    #[rstest]
    #[case(
        "{\"prompt\": \"a\"}\n{\"prompt\": ",
        "r.jsonl, line 2: not valid JSON: EOF while parsing a value at column 11"
    )]
    #[case("{\"promt\": \"a\"}", "r.jsonl, line 1: JSON of another kind: unknown field `promt`")]
    #[case("\n\n[1]", "r.jsonl, line 3: JSON of another kind: ")]
    #[case(
        "[\"an id\", \"Once\"]",
        "line 1: JSON of another kind: invalid type: sequence, expected an object with keys"
    )]
    #[case("{\"messages\": [[\"user\", \"hi\"]]}", "invalid type: sequence, expected an object with keys")]
    #[case(
        "{\"prompt\": \"a\", \"prompt_ids\": [1]}",
        "line 1: a request has one of `prompt`, `prompt_ids` and `messages`"
    )]
    #[case("{}", "line 1: a request has one of ")]
    #[case("{\"prompt\": \"a\", \"arrival\": -1}", "line 1: `arrival` is -1; it must be seconds from 0")]
    #[case(
        "{\"prompt\": \"a\", \"stop\": [\"a\\ufffd\"]}",
        "`stop`: U+FFFD stands for bytes that are no character yet"
    )]
    #[case("{\"prompt\": \"a\", \"stop\": 3}", "expected `stop` as a string or a list of at most 64 strings")]
    #[case("{\"prompt\": \"a\", \"max_tokens\": -3}", "line 1: JSON of another kind: invalid value: integer `-3`")]
    #[case(
        "{\"prompt\": \"a\", \"temperature\": 1e308}",
        "line 1: `temperature` is 1e308; it must be at most 3.4028235e38"
    )]
    #[case(" \n", "r.jsonl: it holds no request")]
    fn a_line_that_is_no_request_is_named(#[case] text: &str, #[case] expected: &str) {
        let error = RequestLine::read(&Source::memory("r.jsonl", text)).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}
