//! The file of options that an engine's command names: flags of vLLM and SGLang, `LlmArgs` of TensorRT-LLM.

use cacheplan_files::{Limit, Source};
use cacheplan_planner::engines::Version;
use serde_json::{Number, Value as Json};

use super::error::{ManifestError, Place};
use super::reading::{Reading, Spot};
use super::unknown;
use super::yaml::{self, Node, Value};
use crate::Launch;
use crate::flags::table::flags;
use crate::program::Program;
use crate::secret::{self, HIDDEN};

/// Flags that name such a file.
const FLAGS: [&str; 4] = ["--config", "--extra-llm-api-options", "--extra-engine-args", "--llm-api-options"];

impl Launch {
    /// The file of options that the command names, `--config` and its like, where nobody has read it yet.
    pub fn config_file(&self) -> Option<&str> {
        self.config_flag().filter(|_| !self.has_config).map(|(_, _, path)| path)
    }

    /// That its engine opens no file which it is told with `=` (vLLM's `argparse_utils.py`, SGLang's `server_args.py`).
    pub(crate) fn config_note(&self) -> Option<String> {
        let stuck =
            |word: &String| word.strip_prefix("--config=").map(|file| file.chars().take(200).collect::<String>());
        let file = self.words.iter().rev().find_map(stuck).filter(|_| !self.is_tensorrt_llm())?;
        Some(format!(
            "the engine does not open {file}: it looks for a file behind a word that is `--config` alone; `--config {file}` would do"
        ))
    }

    /// Reads the file of options that the command names, as the engine would: those of vLLM and SGLang become words in
    /// front of the others, so that these win, in place of the flag; those of TensorRT-LLM, of which most are no flags, become
    /// [`Launch::config`], and the command goes on naming the file.
    ///
    /// # Errors
    /// A file that is no map in YAML within the limits, or with values in it that are templates, and one that its engine refuses.
    pub fn with_config(mut self, name: &str, text: &str) -> Result<Self, ManifestError> {
        let text = Source::memory(name, text).text(Limit::MANIFEST)?;
        let reading = Reading::new(name);
        let documents = yaml::documents(name, &text)?;
        let root = documents.first().filter(|root| !root.is_null());
        if let Some((engine, said)) = self.refuses_config(root.is_none(), documents.len()) {
            let at = Place { file: name.to_owned(), ..Place::default() };
            return Err(ManifestError::Refused { at, engine, said });
        }
        if self.is_tensorrt_llm() {
            self.has_config = true;
            if let Some(root) = root {
                settings(&reading.root(root), "", &mut self.config)?;
            }
            // The command says it too.
            let words = &self.words;
            self.config.retain(|(key, value)| key != "model" || !words.contains(value));
            return Ok(self);
        }
        if let Some((from, to, _)) = self.config_flag() {
            self.words.drain(from..to);
        }
        let Some(root) = root else { return Ok(self) };
        let root = reading.root(root);
        let program = self.program_words();
        let takes_model = self.is_vllm_serve();
        let is_model = |word: &String| !secret::is_flag(word);
        let has_flag = self.words.iter().any(|word| word == "--model" || word.starts_with("--model="));
        let has_model = has_flag || self.words.get(program).is_some_and(is_model);
        let mut words = Vec::new();
        for (key, value) in root.all_entries()? {
            match key {
                // The command's own wins.
                "model" if takes_model && has_model => {}
                "model" if takes_model => self.words.insert(program, literal(&value)?),
                _ if is_off(&value) && self.takes_opposite(key) => words.push(format!("--no-{key}")),
                _ => flag(key, &value, &mut words)?,
            }
        }
        let at = program + usize::from(takes_model && self.words.get(program).is_some_and(is_model));
        self.words.splice(at..at, words);
        Ok(self)
    }

    /// What its engine says of the file by its name, or where it says nothing (vLLM's `argparse_utils.py`, SGLang's
    /// `server_args_config_parser.py`).
    fn refuses_config(&self, is_empty: bool, documents: usize) -> Option<(&'static str, String)> {
        let (_, _, path) = self.config_flag()?;
        let program = &self.words[..self.program_words()];
        let of =
            |name: &str| program.iter().any(|word| word.rsplit('/').next().is_some_and(|word| word.contains(name)));
        let several = self.words.iter().filter(|word| *word == "--config").count() > 1;
        let ending = path.rsplit('.').next().unwrap_or(path);
        let said = if of("sglang") {
            let suffix =
                path.rsplit('/').next().and_then(|file| file.rsplit_once('.')).map_or("", |(_, suffix)| suffix);
            let is_yaml = ["yaml", "yml"].iter().any(|known| suffix.eq_ignore_ascii_case(known));
            match (several, is_yaml) {
                (true, _) => "Multiple config files specified! Only one allowed.".to_owned(),
                (_, false) => format!("Config file must be YAML format, got: {suffix}"),
                _ => several_documents(documents)?,
            }
        } else if of("vllm") {
            match ending {
                _ if several => "More than one config file specified!".to_owned(),
                "yaml" | "yml" if documents > 1 => several_documents(documents)?,
                "yaml" | "yml" if is_empty => "'NoneType' object has no attribute 'items'".to_owned(),
                "yaml" | "yml" => return None,
                other => format!("Config file must be of a yaml/yml type. {other} supplied"),
            }
        } else {
            several_documents(documents)?
        };
        let engine = match () {
            () if of("sglang") => "sglang",
            () if of("vllm") => "vllm",
            () => "tensorrt-llm",
        };
        Some((engine, said))
    }

    /// The words from which to which the flag stands, and its value: the last, which is the one that TensorRT-LLM's parsers take;
    /// others refuse several.
    fn config_flag(&self) -> Option<(usize, usize, &str)> {
        let is_config = |flag: &str| FLAGS.contains(&flag.replace('_', "-").as_str());
        self.words.iter().enumerate().rev().find_map(|(index, word)| match word.split_once('=') {
            // vLLM and SGLang look for the file behind a word that is `--config` alone.
            Some((flag, path)) if is_config(flag) && (flag != "--config" || self.is_tensorrt_llm()) => {
                Some((index, index + 1, path))
            }
            None if is_config(word) => Some((index, index + 2, self.words.get(index + 1)?.as_str())),
            _ => None,
        })
    }

    fn is_tensorrt_llm(&self) -> bool {
        let engine = &self.words[..self.program_words().min(self.words.len())];
        engine
            .iter()
            .any(|word| word.ends_with("trtllm-serve") || word == "dynamo.trtllm" || word.starts_with("tensorrt_llm"))
    }

    /// Whether the model stands behind the words that name the engine.
    fn is_vllm_serve(&self) -> bool {
        let program = &self.words[..self.program_words()];
        program.last().is_some_and(|word| word == "serve") && program.iter().any(|word| word.contains("vllm"))
    }

    /// Whether what is off in a file becomes a word of its own: `--no-…` where the parser that reads the file has it, which that of
    /// `vllm serve` leaves to its subcommand (`load_config_file`).
    fn takes_opposite(&self, key: &str) -> bool {
        /// Read in 0.28.0, and not in 0.24.0.
        const SAYS_OFF: Version = Version(0, 28, 0);
        let is_server = self.words.iter().take(6).any(|word| API_SERVERS.contains(&word.as_str()));
        let Ok(Program { engine, .. }) = Program::of(self, None) else { return false };
        let opposite = format!("--no-{key}");
        let mut known = flags(engine.engine, engine.version).into_iter();
        is_server && engine.version >= SAYS_OFF && known.any(|flag| flag.negated.contains(&opposite.as_str()))
    }

    /// The words that name the engine: `vllm serve`, `python -m sglang.launch_server`.
    fn program_words(&self) -> usize {
        let module = self.words.iter().take(6).position(|word| word == "-m");
        let words = module.map_or(1, |index| index + 2);
        let serves = self.words.get(words).is_some_and(|word| word == "serve");
        (words + usize::from(serves)).min(self.words.len())
    }
}

/// vLLM's servers whose own parser has the engine's flags.
const API_SERVERS: [&str; 2] = ["vllm.entrypoints.openai.api_server", "vllm.entrypoints.api_server"];

/// What `yaml.safe_load` says of a file of several documents.
fn several_documents(documents: usize) -> Option<String> {
    let said = "expected a single document in the stream, but found another document";
    (documents > 1).then(|| said.to_owned())
}

/// The command of a file that says all that an engine needs, which is one of so many documents.
pub(super) fn alone(root: &Spot<'_>, documents: usize) -> Result<Option<Launch>, ManifestError> {
    let keys: Vec<String> = root.entries()?.iter().map(|(key, _)| key.replace('_', "-")).collect();
    let has = |known: &[&str]| keys.iter().any(|key| known.contains(&key.as_str()));
    let words: &[&str] = if has(&TENSORRT_LLM) {
        &["trtllm-serve"]
    } else if has(&["model-path"]) {
        &["python3", "-m", "sglang.launch_server"]
    } else if has(&["model"]) || has(&VLLM) {
        &["vllm", "serve"]
    } else {
        return Ok(None);
    };
    if let Some(said) = several_documents(documents) {
        let engine = match words.last() {
            Some(&"trtllm-serve") => "tensorrt-llm",
            Some(&"serve") => "vllm",
            _ => "sglang",
        };
        return Err(ManifestError::Refused { at: root.place(), engine, said });
    }
    let mut words: Vec<String> = words.iter().map(ToString::to_string).collect();
    let place = root.reading.file.to_owned();
    let mut launch = Launch { place, ..Launch::default() };
    if words[0] == "trtllm-serve" {
        words.extend(root.get("model").map(|model| literal(&model)).transpose()?);
        settings(root, "", &mut launch.config)?;
        // It is a word by now.
        launch.config.retain(|(key, _)| key != "model");
        words.extend(["--config".to_owned(), root.reading.file.to_owned()]);
        launch.has_config = true;
    } else {
        let is_vllm = words[0] == "vllm";
        if let (true, Some(model)) = (is_vllm, root.get("model")) {
            words.push(literal(&model)?);
        }
        for (key, value) in root.all_entries()?.iter().filter(|(key, _)| !is_vllm || *key != "model") {
            flag(key, value, &mut words)?;
        }
    }
    root.reading.count_launch(&root.place())?;
    launch.words = unknown::settle(&words, |_| root.place())?;
    Ok(Some(launch))
}

/// Keys that TensorRT-LLM alone has.
const TENSORRT_LLM: [&str; 8] = [
    "kv-cache-config",
    "cuda-graph-config",
    "max-num-tokens",
    "moe-config",
    "enable-attention-dp",
    "moe-expert-parallel-size",
    "cache-transceiver-config",
    "print-iter-log",
];
const VLLM: [&str; 5] =
    ["max-model-len", "gpu-memory-utilization", "max-num-seqs", "max-num-batched-tokens", "served-model-name"];

/// A keyword of `LLM`, which also says what is off.
pub(super) fn keyword(key: &str, value: &Spot<'_>, words: &mut Vec<String>) -> Result<(), ManifestError> {
    match &value.node.value {
        _ if is_off(value) => words.push(format!("--no-{key}")),
        _ => flag(key, value, words)?,
    }
    Ok(())
}

/// Whether it says `false`.
fn is_off(value: &Spot<'_>) -> bool {
    matches!(&value.node.value, Value::Text { text, plain: true } if truth(text) == Some(false))
}

/// A key of a file as vLLM turns it into words.
pub(super) fn flag(key: &str, value: &Spot<'_>, words: &mut Vec<String>) -> Result<(), ManifestError> {
    if secret::is_secret(key) {
        words.extend([format!("--{key}"), HIDDEN.to_owned()]);
        return Ok(());
    }
    match &value.node.value {
        Value::Text { text, plain: true } if truth(text) == Some(true) => words.push(format!("--{key}")),
        // Both engines pass over what is false, and over what lists nothing.
        Value::Text { text, plain: true } if truth(text) == Some(false) => {}
        Value::List(items) if items.is_empty() => {}
        Value::Text { .. } => words.extend([format!("--{key}"), scalar(value)?]),
        Value::List(_) => {
            words.push(format!("--{key}"));
            for item in value.items()? {
                words.push(match &item.node.value {
                    Value::Text { .. } => scalar(&item)?,
                    _ => json(item.node, &item.place())?.to_string(),
                });
            }
        }
        Value::Map(_) => words.extend([format!("--{key}"), json(value.node, &value.place())?.to_string()]),
    }
    Ok(())
}

/// A scalar as Python shows what YAML makes of it.
fn scalar(value: &Spot<'_>) -> Result<String, ManifestError> {
    let written = value.raw().filter(|_| matches!(value.node.value, Value::Text { plain: true, .. }));
    Ok(match written {
        Some(_) if value.node.is_null() => "None".to_owned(),
        Some(text) => match (truth(text), number(text)) {
            (Some(true), _) => "True".to_owned(),
            (Some(false), _) => "False".to_owned(),
            (None, Some(number)) => number.to_string(),
            (None, None) => literal(value)?,
        },
        None => literal(value)?,
    })
}

/// The settings of a map, with dots between the keys.
fn settings(map: &Spot<'_>, prefix: &str, found: &mut Vec<(String, String)>) -> Result<(), ManifestError> {
    for (key, value) in map.entries()? {
        let name = if prefix.is_empty() { key.to_owned() } else { format!("{prefix}.{key}") };
        map.reading.charge(name.len(), &map.place())?;
        match &value.node.value {
            Value::Map(_) => settings(&value, &name, found)?,
            _ if secret::is_secret(key) => found.push((name, HIDDEN.to_owned())),
            Value::List(_) => found.push((name, json(value.node, &value.place())?.to_string())),
            Value::Text { text, plain } => {
                let number = plain.then(|| number(text)).flatten();
                found.push((name, number.map_or_else(|| literal(&value), |number| Ok(number.to_string()))?));
            }
        }
    }
    Ok(())
}

/// A text that is no template of a shell either.
fn literal(value: &Spot<'_>) -> Result<String, ManifestError> {
    let text = value.known()?;
    match text.find("${") {
        Some(start) => {
            let template: String = text[start..].chars().take(60).take_while(|c| *c != '}').collect();
            unknown::known(&unknown::Why::Template.mark(&format!("{template}}}")), &value.place())
        }
        None => Ok(text),
    }
}

/// A scalar of YAML 1.1 that is a number which no other reader takes for the same: a whole one, or one in sixties.
fn number(text: &str) -> Option<Number> {
    whole(text).map(Number::from).or_else(|| in_sixties(text))
}

/// `34:08`, which is 2048, and `1:30.5`, which is 90.5: as PyYAML resolves them, whose whole ones begin with no zero.
fn in_sixties(text: &str) -> Option<Number> {
    let (is_negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let (digits, fraction) = digits.split_once('.').map_or((digits, None), |(digits, rest)| (digits, Some(rest)));
    let is_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'_');
    let (first, rest) = digits.split_once(':')?;
    let begins = first.starts_with(|digit: char| digit.is_ascii_digit() && (digit != '0' || fraction.is_some()));
    let is_sixtieth = |part: &str| match part.as_bytes() {
        [low] => low.is_ascii_digit(),
        [high, low] => (b'0'..=b'5').contains(high) && low.is_ascii_digit(),
        _ => false,
    };
    if !begins || !is_digits(first) || !rest.split(':').all(is_sixtieth) || !fraction.is_none_or(is_digits) {
        return None;
    }
    let first = first.replace('_', "").parse::<i64>().ok()?;
    let all = rest.split(':').try_fold(first, |all, part| all.checked_mul(60)?.checked_add(part.parse().ok()?))?;
    let sign = if is_negative { -1 } else { 1 };
    match fraction {
        None => Some(Number::from(sign * all)),
        Some(fraction) => {
            let behind: f64 = format!("0.{}0", fraction.replace('_', "")).parse().ok()?;
            Number::from_f64(sign as f64 * (all as f64 + behind))
        }
    }
}

/// A scalar of YAML 1.1 that is a whole number: `8_192`, `0x2000`, and `020000`, which counts by eights.
fn whole(text: &str) -> Option<i64> {
    let digits = text.replace('_', "");
    let (sign, digits) = match digits.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, digits.strip_prefix('+').unwrap_or(&digits)),
    };
    let (base, digits) = match digits.as_bytes() {
        [b'0', b'x', ..] => (16, &digits[2..]),
        [b'0', b'b', ..] => (2, &digits[2..]),
        [b'0', _, ..] => (8, &digits[1..]),
        _ => (10, digits),
    };
    let is_number = !digits.is_empty() && digits.chars().all(|digit| digit.is_digit(base));
    is_number.then(|| i64::from_str_radix(digits, base).ok()?.checked_mul(sign))?
}

/// A scalar of YAML 1.1 that is true or false.
pub(super) fn truth(text: &str) -> Option<bool> {
    match text {
        "true" | "True" | "TRUE" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" => Some(true),
        "false" | "False" | "FALSE" | "no" | "No" | "NO" | "off" | "Off" | "OFF" => Some(false),
        _ => None,
    }
}

/// A value as JSON, which is what a flag takes for a map.
pub(super) fn json(node: &Node, at: &Place) -> Result<Json, ManifestError> {
    Ok(match &node.value {
        _ if node.is_null() => Json::Null,
        Value::Text { text, plain } => match (plain, truth(text), number(text), serde_json::from_str(text)) {
            (true, Some(truth), ..) => Json::Bool(truth),
            (true, None, Some(number), _) => Json::Number(number),
            (true, None, None, Ok(number @ Json::Number(_))) => number,
            _ => Json::String(unknown::known(&unknown::mark_templates(text), at)?),
        },
        Value::List(items) => Json::Array(items.iter().map(|item| json(item, at)).collect::<Result<_, _>>()?),
        Value::Map(entries) => {
            let entry = |(key, value): &(String, Node)| {
                let value = if secret::is_secret(key) { Json::String(HIDDEN.to_owned()) } else { json(value, at)? };
                Ok::<_, ManifestError>((key.clone(), value))
            };
            Json::Object(entries.iter().map(entry).collect::<Result<_, _>>()?)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    const FILE: &str = "model: of/file\nmax-model-len: 4096\nenforce-eager: true\n";

    #[rstest]
    #[case("vllm serve --config f.yaml --port 1", "vllm serve of/file --max-model-len 4096 --enforce-eager --port 1")]
    #[case("vllm serve a/b --config f.yaml", "vllm serve a/b --max-model-len 4096 --enforce-eager")]
    #[case("vllm serve --model a/b --config f.yaml", "vllm serve --max-model-len 4096 --enforce-eager --model a/b")]
    #[case(
        "python -m vllm.entrypoints.cli.main serve --config f.yaml",
        "python -m vllm.entrypoints.cli.main serve of/file --max-model-len 4096 --enforce-eager"
    )]
    #[case(
        "python3 -m vllm.entrypoints.openai.api_server --config f.yaml",
        "python3 -m vllm.entrypoints.openai.api_server --model of/file --max-model-len 4096 --enforce-eager"
    )]
    fn flags_of_a_file_stand_in_front_of_those_of_the_command(#[case] command: &str, #[case] expected: &str) {
        let words = command.split(' ').map(String::from).collect();
        let launch = Launch { words, ..Launch::default() };
        assert_eq!(launch.config_file(), Some("f.yaml"));
        let launch = launch.with_config("f.yaml", FILE).unwrap();
        assert_eq!((launch.to_string().as_str(), launch.config_file()), (expected, None));
    }

    #[rstest]
    #[case("enable-prefix-caching: false\n", "")]
    #[case("bogus: false\nserved-model-name: []\n", "")]
    #[case("max-model-len: ~\n", " --max-model-len None")]
    #[case("cudagraph-capture-sizes: [0x10, 8_0, ~, on, '010']\n", " --cudagraph-capture-sizes 16 80 None True 010")]
    #[case("hf-overrides: {a: 0x10, b: 1.5}\n", " --hf-overrides '{\"a\":16,\"b\":1.5}'")]
    #[case("max-model-len: 010000\nmax-num-seqs: 0x10\n", " --max-model-len 4096 --max-num-seqs 16")]
    #[case("max-model-len: 8_192\nrevision: '010'\n", " --max-model-len 8192 --revision 010")]
    #[case("max-model-len: 34:08\nmax-num-seqs: '34:08'\n", " --max-model-len 2048 --max-num-seqs 34:08")]
    #[case("seed: -1:0:1\nrevision: 1:30.5\nport: 0:30\n", " --seed -3601 --revision 90.5 --port 0:30")]
    #[case("revision: 34:61\nseed: 999999999999999999:00\n", " --revision 34:61 --seed 999999999999999999:00")]
    fn values_are_those_of_yaml_as_the_engine_reads_it(#[case] text: &str, #[case] expected: &str) {
        let words = ["vllm", "serve", "m", "--config", "f.yaml"].map(String::from).to_vec();
        let launch = Launch { words, ..Launch::default() }.with_config("f.yaml", text).unwrap();
        assert_eq!(launch.to_string(), format!("vllm serve m{expected}"));
    }

    #[rstest]
    #[case("vllm.entrypoints.openai.api_server", None, "enable-chunked-prefill: false", " --no-enable-chunked-prefill")]
    #[case("vllm.entrypoints.openai.api_server", Some("0.24.0"), "enable-chunked-prefill: false", "")]
    #[case("vllm.entrypoints.openai.api_server", None, "enable_chunked_prefill: false", "")]
    #[case("vllm.entrypoints.openai.api_server", None, "disable-log-stats: false", "")]
    #[case("vllm.entrypoints.cli.main serve", None, "enable-chunked-prefill: false", "")]
    fn what_is_off_is_said_where_the_parser_that_reads_the_file_has_a_word_for_it(
        #[case] program: &str,
        #[case] version: Option<&str>,
        #[case] text: &str,
        #[case] expected: &str,
    ) {
        let command = format!("python -m {program} --config f.yaml");
        let words = command.split(' ').map(String::from).collect();
        let launch = Launch { words, version: version.map(str::to_owned), ..Launch::default() };
        let launch = launch.with_config("f.yaml", text).unwrap();
        assert_eq!(launch.to_string(), format!("python -m {program}{expected}"));
    }

    #[rstest]
    #[case("vllm serve m --config f.yaml")]
    #[case("sglang serve --model-path m --config f.yaml")]
    #[case("trtllm-serve m --config f.yaml")]
    fn a_file_of_several_documents_is_refused(
        #[case] command: &str,
        #[values("a: 1\n---\nb: 2\n", "a: 1\n---\n")] text: &str,
    ) {
        let words = command.split(' ').map(String::from).collect();
        let error = Launch { words, ..Launch::default() }.with_config("f.yaml", text).unwrap_err().to_string();
        assert!(error.contains("expected a single document in the stream"), "{error}");
    }

    #[rstest]
    #[case("max-model-len: 8\nmodel: m\n---\nmax-model-len: 9\n", true)]
    #[case("---\nmax-model-len: 8\nmodel: m\n...\n", false)]
    fn options_that_stand_alone_are_one_document(#[case] text: &str, #[case] is_refused: bool) {
        let found = crate::manifest::read("a.yaml", text.as_bytes()).map_err(|error| error.to_string());
        assert_eq!(found.is_err_and(|error| error.contains("expected a single document")), is_refused);
    }

    #[rstest]
    #[case("vllm serve m --config f.json", FILE, "Config file must be of a yaml/yml type. json supplied")]
    #[case("vllm serve m --config f", FILE, "Config file must be of a yaml/yml type. f supplied")]
    #[case("vllm serve m --config f.yaml --config g.yaml", FILE, "More than one config file specified!")]
    #[case("vllm serve m --config f.yaml", "", "'NoneType' object has no attribute 'items'")]
    #[case("vllm serve m --config f.yml", "# nothing\n", "'NoneType' object has no attribute 'items'")]
    #[case("python3 -m dynamo.vllm --model m --config f.json", FILE, "Config file must be of a yaml/yml type")]
    #[case("sglang serve --model-path m --config f.json", "tp-size: 2\n", "Config file must be YAML format, got: json")]
    #[case("sglang serve --config f.yml --config g.yml", "tp-size: 2\n", "Multiple config files specified!")]
    fn a_file_that_its_engine_does_not_take_is_refused(#[case] command: &str, #[case] text: &str, #[case] said: &str) {
        let words = command.split(' ').map(String::from).collect();
        let error = Launch { words, ..Launch::default() }.with_config("f", text).unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }

    #[rstest]
    #[case("sglang serve --model-path m --config f.YML", "")]
    #[case("trtllm-serve m --config f.json", "{}")]
    fn a_file_that_says_nothing_is_taken_where_its_engine_takes_it(#[case] command: &str, #[case] text: &str) {
        let words = command.split(' ').map(String::from).collect();
        let launch = Launch { words, ..Launch::default() }.with_config("f", text).unwrap();
        assert_eq!(launch.config_file(), None);
    }

    #[test]
    fn a_file_stands_behind_a_word_of_its_own() {
        let words = |program: &str, flag: &str| vec![program.to_owned(), "serve".to_owned(), flag.to_owned()];
        assert_eq!(Launch { words: words("vllm", "--config=f.yaml"), ..Launch::default() }.config_file(), None);
        let launch = Launch { words: words("trtllm-serve", "--config=f.yaml"), ..Launch::default() };
        assert_eq!(launch.config_file(), Some("f.yaml"));
    }

    #[test]
    fn options_of_tensorrt_llm_alone_name_their_model_once() {
        let launch = crate::manifest::read("a.yaml", b"model: m\nmax_num_tokens: 8_192\n").unwrap().remove(0);
        assert_eq!(launch.words, ["trtllm-serve", "m", "--config", "a.yaml"]);
        assert_eq!(launch.config_file(), None);
        assert_eq!(launch.config, [("max_num_tokens".to_owned(), "8192".to_owned())]);
    }

    #[test]
    fn options_of_tensorrt_llm_are_settings() {
        let words = "trtllm-serve m --extra_llm_api_options f.yaml".split(' ').map(String::from).collect();
        let launch = Launch { words, ..Launch::default() };
        let launch = launch
            .with_config("f.yaml", "kv_cache_config: {dtype: fp8, tokens: [1, no]}\nmax_seq_len: 0x20\n")
            .unwrap();
        assert_eq!(launch.to_string(), "trtllm-serve m --extra_llm_api_options f.yaml");
        assert_eq!(launch.config_file(), None);
        let config: Vec<(&str, &str)> =
            launch.config.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        let expected =
            [("kv_cache_config.dtype", "fp8"), ("kv_cache_config.tokens", "[1,false]"), ("max_seq_len", "32")];
        assert_eq!(config, expected);
    }

    #[rstest]
    #[case("trtllm-serve m --config f.yaml --extra_llm_api_options g.yaml")]
    #[case("trtllm-serve m --config=f.yaml --config g.yaml")]
    #[case("python3 -m dynamo.trtllm --model m --extra-engine-args f.yaml --extra-engine-args g.yaml")]
    fn of_several_files_of_tensorrt_llm_the_last_is_read(#[case] command: &str) {
        let words = command.split(' ').map(String::from).collect();
        assert_eq!(Launch { words, ..Launch::default() }.config_file(), Some("g.yaml"));
    }

    #[rstest]
    #[case("- a\n", "f.yaml:1: this is a list; a map was expected")]
    #[case("a: ${B}\n", "f.yaml:1: a: `${B}` is a template")]
    #[case("a: &b c\n", "f.yaml:1: a: an anchor (`&b`) is not read")]
    fn a_file_that_is_none_is_refused(#[case] text: &str, #[case] expected: &str) {
        let words = ["vllm", "serve", "--config", "f.yaml"].map(String::from).to_vec();
        let error = Launch { words, ..Launch::default() }.with_config("f.yaml", text).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    }
}
