//! What is a secret, by its name or by its look: it is never shown.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use cacheplan_files::Shown;
use cacheplan_planner::Engine;

use crate::flags::table::all_flags;
use crate::started::started;

/// What stands in the place of a secret.
pub(crate) const HIDDEN: &str = "<hidden>";

/// Tells whether what is called this is a secret: `HF_TOKEN`, `--api-key`, `vllmApiKey`.
pub(crate) fn is_secret(name: &str) -> bool {
    let parts = parts(name);
    let last = parts.last().map_or("", String::as_str);
    let before = parts.len().checked_sub(2).map_or("", |index| parts[index].as_str());
    match last {
        "password" | "passwd" | "passphrase" | "secret" | "credential" | "credentials" | "apikey" => true,
        // `--pad-token` is a word of a vocabulary, and Python takes `--max-num-batched-token` for the flag with an `s`.
        "token" => {
            !matches!(before, "per" | "pad" | "eos" | "bos" | "unk" | "stop" | "special")
                && !parts.iter().any(|part| matches!(part.as_str(), "max" | "min" | "num"))
        }
        "key" | "keys" => {
            matches!(before, "api" | "access" | "secret" | "private" | "auth" | "encryption" | "account" | "master")
        }
        _ => false,
    }
}

/// The words of a name in small letters: `vllmApiKey` and `VLLM_API_KEY` have the same.
fn parts(name: &str) -> Vec<String> {
    let (mut parts, mut small) = (vec![String::new()], false);
    for character in name.chars().take(200) {
        let ends = !character.is_ascii_alphanumeric();
        if (ends || (small && character.is_ascii_uppercase())) && parts.last().is_some_and(|part| !part.is_empty()) {
            parts.push(String::new());
        }
        small = character.is_ascii_lowercase();
        if let (false, Some(part)) = (ends, parts.last_mut()) {
            part.push(character.to_ascii_lowercase());
        }
    }
    parts.retain(|part| !part.is_empty());
    parts
}

/// Tells whether some part of a text has the form of a key that somebody hands out.
pub(crate) fn has_key(text: &str) -> bool {
    const FORMS: [&str; 9] = ["hf_", "sk-", "sk_", "nvapi-", "ghp_", "github_pat_", "glpat-", "AKIA", "xoxb-"];
    let has_password = text.split("://").skip(1).any(|rest| {
        let user = rest.split('/').next().and_then(|host| host.rsplit_once('@')).map(|(user, _)| user);
        user.is_some_and(|user| user.contains(':'))
    });
    let names = text.contains("Bearer ") || has_password;
    names
        || text
            .split(|character: char| !character.is_ascii_alphanumeric() && character != '_' && character != '-')
            .any(|part| part.len() >= 20 && FORMS.iter().any(|form| part.starts_with(form)))
}

/// Tells whether a flag's words follow it up to the next flag.
pub(crate) fn is_flag(word: &str) -> bool {
    word.len() > 1 && word.starts_with('-') && !word[1..].starts_with(|c: char| c.is_ascii_digit() || c == '.')
}

/// The names of an engine's flags in all versions, and whether what they take is a secret: `-hft` is `--hf-token`.
type Names = BTreeMap<&'static str, bool>;

static NAMES: LazyLock<Vec<(Engine, Names)>> = LazyLock::new(|| {
    let names = |engine: Engine| {
        let of = |flag: &'static crate::flags::table::Flag| {
            let secret = flag.names().any(is_secret);
            flag.names().map(move |name| (name, secret))
        };
        all_flags(engine).flat_map(of).collect()
    };
    Engine::all().iter().map(|engine| (*engine, names(*engine))).collect()
});

/// All names of flags that take a secret. They are few beside all names, which a long command would ask for at each word.
static SECRET_NAMES: LazyLock<BTreeSet<&'static str>> = LazyLock::new(|| {
    let of = |(_, names): &'static (Engine, Names)| names.iter().filter(|(_, secret)| **secret).map(|(name, _)| *name);
    NAMES.iter().flat_map(of).collect()
});

/// The flags of an engine, of all engines where none is known.
fn names(engine: Option<Engine>) -> impl Iterator<Item = &'static Names> {
    NAMES.iter().filter(move |(known, _)| engine.is_none_or(|engine| engine == *known)).map(|(_, names)| names)
}

/// Tells whether a flag takes a secret that is written so: it is one's name, what the parser takes for it, or what was
/// probably meant by it.
pub(crate) fn is_secret_flag(engine: Option<Engine>, written: &str) -> bool {
    if is_secret(written) {
        return true;
    }
    if let Some(secret) = known(engine, written) {
        return secret;
    }
    let written = joined(written);
    let begins = |name: &str| written.len() > 2 && name.starts_with(&*written);
    if SECRET_NAMES.iter().any(|name| begins(name)) {
        return true;
    }
    let is_near = |name: &str| {
        name.len().abs_diff(written.len()) * 3 <= name.len() && Shown(&*written).distance(name) * 3 <= name.len()
    };
    let first = |names: &Names| names.range(&*written..).next().is_some_and(|(name, _)| begins(name));
    SECRET_NAMES.iter().any(|name| is_near(name)) && !names(engine).any(first)
}

/// Whether a flag of that very name takes a secret; none where no version has it.
fn known(engine: Option<Engine>, written: &str) -> Option<bool> {
    let joined = joined(written);
    names(engine).filter_map(|names| names.get(written).or_else(|| names.get(&*joined))).copied().max()
}

fn joined(written: &str) -> Cow<'_, str> {
    if written.starts_with("--") { written.replace('_', "-").into() } else { written.into() }
}

/// What of a word is a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hides {
    Nothing,
    /// What stands from this byte on, behind the name of its flag.
    From(usize),
    All,
}

/// What words stand behind.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Behind {
    Nothing,
    /// A flag that takes secrets.
    Flag,
    /// Such a flag with its value: the only word that engines take there is the model, and another is one more secret.
    Value,
}

/// Looks at the words of a command one after another.
pub(crate) struct Watch {
    engine: Option<Engine>,
    /// Whether the model is named elsewhere than behind a secret.
    names_model: bool,
    behind: Behind,
    /// Directly behind it.
    next: bool,
}

impl Watch {
    pub(crate) fn of(words: &[String]) -> Self {
        let started = started(words);
        let first = started.and_then(|(_, start)| words.get(start));
        let by_flag = |word: &String| matches!(word.split('=').next(), Some("--model" | "--model-path"));
        let names_model = first.is_some_and(|word| !is_flag(word)) || words.iter().any(by_flag);
        Self { engine: started.map(|(engine, _)| engine), names_model, behind: Behind::Nothing, next: false }
    }

    /// What of the next word is a secret.
    pub(crate) fn sees(&mut self, word: &str) -> Hides {
        let (name, value) = named(self.engine, word);
        // Some parsers take any word behind a flag for its value.
        let is_value = std::mem::take(&mut self.next) && !word.starts_with("--") && known(self.engine, name).is_none();
        if !is_flag(word) || is_value {
            return match value {
                _ if self.behind == Behind::Flag => Hides::All,
                Some(from) if is_secret(name) => Hides::From(from),
                _ if self.behind == Behind::Value && std::mem::replace(&mut self.names_model, true) => Hides::All,
                _ => Hides::Nothing,
            };
        }
        let secret = is_secret_flag(self.engine, name);
        self.behind = match value {
            _ if !secret => Behind::Nothing,
            Some(_) => Behind::Value,
            None => Behind::Flag,
        };
        self.next = self.behind == Behind::Flag;
        value.filter(|_| secret).map_or(Hides::Nothing, Hides::From)
    }
}

/// The words of a command without the secrets in them.
pub(crate) fn hidden(words: &[String]) -> Vec<Cow<'_, str>> {
    let mut watch = Watch::of(words);
    let shown = |word: &String| match watch.sees(word) {
        Hides::All => Some(HIDDEN.to_owned()),
        Hides::From(from) => Some(hidden_from(word, from)),
        Hides::Nothing => (has_key(word) || has_secret_member(word)).then(|| HIDDEN.to_owned()),
    };
    let hidden: Vec<Option<String>> = words.iter().map(shown).collect();
    words.iter().zip(hidden).map(|(word, hidden)| hidden.map_or(Cow::Borrowed(word.as_str()), Cow::Owned)).collect()
}

/// Hides what stands behind a flag that takes secrets where a variable has put the same elsewhere.
pub(crate) fn hide_again(words: &mut [String], of_variables: &[bool]) {
    let mut watch = Watch::of(words);
    let of = |word: &String| match watch.sees(word) {
        Hides::All => Some(word.clone()),
        Hides::From(from) => word.get(from..).map(str::to_owned),
        Hides::Nothing => None,
    };
    let secrets: Vec<String> = words.iter().filter_map(of).filter(|value| !value.is_empty()).collect();
    for (word, _) in words.iter_mut().zip(of_variables).filter(|(_, of_variable)| **of_variable) {
        let value = word.split_once('=').filter(|_| is_flag(word)).map_or(&**word, |(_, value)| value);
        if secrets.iter().any(|secret| secret == value) {
            *word = format!("{}{HIDDEN}", &word[..word.len() - value.len()]);
        }
    }
}

/// A word that is hidden from a byte on.
pub(crate) fn hidden_from(word: &str, from: usize) -> String {
    format!("{}{HIDDEN}", word.get(..from).unwrap_or_default())
}

/// A flag as it is written, for a message: without what is glued to one that takes a secret.
pub(crate) fn shown_flag(engine: Engine, written: &str) -> Cow<'_, str> {
    match named(Some(engine), written) {
        (name, Some(from)) if is_flag(written) && is_secret_flag(Some(engine), name) => {
            hidden_from(written, from).into()
        }
        _ if has_key(written) => HIDDEN.into(),
        _ => written.into(),
    }
}

/// The name in a word, and where what stands behind it begins: behind `=`, behind what is part of no name, or directly behind the name of a
/// flag that takes a secret, which is then given as it is known.
fn named(engine: Option<Engine>, word: &str) -> (&str, Option<usize>) {
    let equals = word.find('=').unwrap_or(word.len());
    let (name, value) = (&word[..equals], (equals < word.len()).then_some(equals + 1));
    if !is_flag(word) || known(engine, name).is_some() {
        return (name, value);
    }
    if let Some((secret, from)) = glued(engine, name) {
        return (secret, Some(from));
    }
    let end = end_of_name(name);
    match end < name.len() && is_secret_flag(engine, &name[..end]) {
        true => (&word[..end], Some(end)),
        false => (name, value),
    }
}

/// The bytes of a word that may be part of a name.
fn end_of_name(word: &str) -> usize {
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    word.find(|c| !is_part(c)).unwrap_or(word.len())
}

/// The longest name of a flag that takes a secret with which a word begins that is no flag, nor what one begins with, and its bytes
/// there; else the one that it was probably meant to begin with.
fn glued(engine: Option<Engine>, word: &str) -> Option<(&'static str, usize)> {
    let joined = joined(word).to_ascii_lowercase();
    if names(engine).any(|names| names.range(&*joined..).next().is_some_and(|(name, _)| name.starts_with(&*joined))) {
        return None;
    }
    // A long name may have lost a dash.
    let dash = usize::from(!joined.starts_with("--"));
    let begins = |name: &&str| {
        joined.starts_with(*name) || name.strip_prefix("--").is_some_and(|name| joined[1..].starts_with(name))
    };
    let length = |name: &'static str| (name, name.len() - if name.starts_with("--") { dash } else { 0 });
    let exact = SECRET_NAMES.iter().copied().filter(begins).map(length).max_by_key(|(_, length)| *length);
    match exact {
        Some(exact) => Some(exact).filter(|(_, length)| *length < word.len()),
        None => misspelt(engine, &joined[..end_of_name(&joined)]).filter(|(_, length)| *length < word.len()),
    }
}

/// The long name of a flag that takes a secret that was probably meant by the beginning of a word, and where that ends.
fn misspelt(engine: Option<Engine>, word: &str) -> Option<(&'static str, usize)> {
    let secrets = SECRET_NAMES.iter().filter(|name| name.starts_with("--"));
    let (name, (alike, at)) =
        secrets.filter_map(|name| Some((*name, meant(name, word)?))).max_by_key(|(_, (alike, _))| *alike)?;
    // Few other names have to be looked at.
    let beginning = word.get(..4)?;
    let is_another = names(engine).any(|names| {
        let others = names.range(beginning..).map(|(name, _)| *name).take_while(|name| name.starts_with(beginning));
        others.filter_map(|other| meant(other, word)).any(|(other, _)| other > alike)
    });
    (!is_another).then_some((name, at))
}

/// How much of a name, and how far, a word begins with, where it is nearly all. A word that may be the name alone is all of it.
fn meant(name: &str, word: &str) -> Option<(usize, usize)> {
    // So many that are alike make up for one that is not.
    const A_LETTER: usize = 3;
    let far = Shown(name).distances(word);
    let (at, least) = far.iter().copied().enumerate().min_by_key(|(_, far)| *far)?;
    let at = if far.last().is_some_and(|whole| *whole <= least + 1) { word.len() } else { at };
    (least * (A_LETTER + 1) <= name.len()).then(|| (name.len() - least * A_LETTER, at))
}

/// Tells whether JSON in a word has a member that is called as a secret is.
fn has_secret_member(word: &str) -> bool {
    word.starts_with(['{', '[']) && {
        let quoted: Vec<&str> = word.split('"').collect();
        quoted.windows(2).any(|pair| pair[1].trim_start().starts_with(':') && is_secret(pair[0]))
    }
}

/// Words in which nothing is left that has the form of a key.
pub(crate) fn hidden_keys(words: Vec<String>) -> Vec<String> {
    words.into_iter().map(|word| if has_key(&word) { HIDDEN.to_owned() } else { word }).collect()
}

/// The value of what is called `name`, unless it is a secret.
pub(crate) fn hidden_value<'a>(name: &str, value: &'a str) -> &'a str {
    if is_secret(name) || has_key(value) || has_secret_member(value) { HIDDEN } else { value }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flags::table::Flag;
    use rstest::rstest;

    #[rstest]
    #[case("HF_TOKEN", true)]
    #[case("HUGGING_FACE_HUB_TOKEN", true)]
    #[case("VLLM_API_KEY", true)]
    #[case("--api-key", true)]
    #[case("--hf_token", true)]
    #[case("vllmApiKey", true)]
    #[case("AWS_SECRET_ACCESS_KEY", true)]
    #[case("--ssl-keyfile-password", true)]
    #[case("--max-num-batched-tokens", false)]
    #[case("--max-num-batched-token", false)]
    #[case("--tokenizer", false)]
    #[case("--pad-token", false)]
    #[case("HF_TOKEN_PATH", false)]
    #[case("--ssl-keyfile", false)]
    #[case("", false)]
    fn a_secret_is_told_by_its_name(#[case] name: &str, #[case] expected: bool) {
        assert_eq!(is_secret(name), expected);
    }

    #[rstest]
    #[case(&["--api-key", "a", "b", "--port", "1"], &["--api-key", "<hidden>", "<hidden>", "--port", "1"])]
    #[case(&["--api-key=a", "HF_TOKEN=b", "m"], &["--api-key=<hidden>", "HF_TOKEN=<hidden>", "m"])]
    #[case(&["m", "hf_abcdefghijklmnopqrstuvwx"], &["m", "<hidden>"])]
    #[case(&["--x", r#"{"api_key": "s", "n": 1}"#], &["--x", "<hidden>"])]
    #[case(&["--header", "Authorization: Bearer x", "redis://u:p@h:1/0", "http://h:1/a@b"], &["--header", "<hidden>", "<hidden>", "http://h:1/a@b"])]
    #[case(&["--x", r#"{"n": "api_key"}"#, "--t", "-1"], &["--x", r#"{"n": "api_key"}"#, "--t", "-1"])]
    #[case(&["llama-server", "-hft", "a", "-np", "2"], &["llama-server", "-hft", "<hidden>", "-np", "2"])]
    #[case(&["llama-server", "-hf", "a"], &["llama-server", "-hf", "a"])]
    #[case(&["llama-server", "--api-key", "-sesame"], &["llama-server", "--api-key", "<hidden>"])]
    #[case(&["llama-server", "--hf-token", "-hf", "a"], &["llama-server", "--hf-token", "-hf", "a"])]
    #[case(&["vllm", "serve", "m", "--api-k=a"], &["vllm", "serve", "m", "--api-k=<hidden>"])]
    #[case(&["vllm", "serve", "m", "--hf_tok", "a"], &["vllm", "serve", "m", "--hf_tok", "<hidden>"])]
    #[case(&["vllm", "serve", "m", "--api-kye", "a"], &["vllm", "serve", "m", "--api-kye", "<hidden>"])]
    #[case(&["vllm", "serve", "m", "--ssl-keyfile-p", "a"], &["vllm", "serve", "m", "--ssl-keyfile-p", "<hidden>"])]
    #[case(&["vllm", "serve", "m", "--api-ser", "4"], &["vllm", "serve", "m", "--api-ser", "4"])]
    #[case(&["sglang", "serve", "--admin-api", "a"], &["sglang", "serve", "--admin-api", "<hidden>"])]
    #[case(&["HF_TOKEN=a"], &["HF_TOKEN=<hidden>"])]
    #[case(&["vllm", "serve", "m", "--api-key=a", "b", "-tp", "3"], &["vllm", "serve", "m", "--api-key=<hidden>", "<hidden>", "-tp", "3"])]
    #[case(&["vllm", "serve", "--api-key=a", "m", "b"], &["vllm", "serve", "--api-key=<hidden>", "m", "<hidden>"])]
    #[case(&["vllm", "serve", "m", "--api-key a"], &["vllm", "serve", "m", "--api-key<hidden>"])]
    #[case(&["vllm", "serve", "m", "--api-k a"], &["vllm", "serve", "m", "--api-k<hidden>"])]
    #[case(&["vllm", "serve", "m", "--api-keya", "b", "-tp", "2"], &["vllm", "serve", "m", "--api-key<hidden>", "<hidden>", "-tp", "2"])]
    #[case(&["vllm", "serve", "m", "-api-keya"], &["vllm", "serve", "m", "-api-key<hidden>"])]
    #[case(&["vllm", "serve", "m", "--config.api_key=a"], &["vllm", "serve", "m", "--config.api_key=<hidden>"])]
    #[case(&["vllm", "serve", "m", "--api-keySECRET"], &["vllm", "serve", "m", "--api-key<hidden>"])]
    #[case(&["vllm", "serve", "m", "--api-keeySECRET123"], &["vllm", "serve", "m", "--api-ke<hidden>"])]
    #[case(&["vllm", "serve", "m", "--api-servr-count4"], &["vllm", "serve", "m", "--api-servr-count4"])]
    #[case(&["llama-server", "--api-key-file", "a", "--ssl-key-file=b"], &["llama-server", "--api-key-file", "a", "--ssl-key-file=b"])]
    #[case(&["sglang", "serve", "--api-key=a", "b", "--model-path=m"], &["sglang", "serve", "--api-key=<hidden>", "<hidden>", "--model-path=m"])]
    fn words_are_shown_without_secrets(#[case] words: &[&str], #[case] expected: &[&str]) {
        let words: Vec<String> = words.iter().copied().map(String::from).collect();
        assert_eq!(hidden(&words), expected);
    }

    /// Neither what is shown of a command nor what its parser says has what is glued to the name of a secret, however it is spelt.
    #[test]
    fn no_way_to_glue_a_secret_to_its_flag_shows_it() {
        const GLUES: [&str; 14] = ["", " ", "=", ":", "\t", "\n", ".", ",", "/", "  ", " = ", "\"", "'", "=="];
        let mut asked = 0;
        for engine in Engine::all() {
            let spec = cacheplan_planner::EngineSpec { engine: *engine, version: engine.newest() };
            let program: Vec<String> = spec.program().split_whitespace().map(str::to_owned).collect();
            let secrets = all_flags(*engine).filter(|flag| flag.names().any(is_secret)).flat_map(Flag::names);
            let spellings = secrets.flat_map(|name| {
                let turned =
                    name.strip_prefix("--").map_or_else(|| name[1..].to_owned(), |name| name.replace('-', "_"));
                let dashes = if name.starts_with("--") { "--" } else { "-" };
                // A short name in capitals is another.
                let capitals = if dashes == "--" { name.to_ascii_uppercase() } else { name.to_owned() };
                [name.to_owned(), format!("{dashes}{turned}"), capitals]
            });
            for (name, glue) in spellings.flat_map(|name| GLUES.map(|glue| (name.clone(), glue))) {
                let written = format!("{name}{glue}sesame");
                let words = [program.as_slice(), &["m".to_owned(), written.clone()]].concat();
                let shown = hidden(&words).join(" ");
                assert!(shown.contains(HIDDEN) && !shown.contains("sesame"), "{written}: {shown}");
                let parsed = crate::flags::parse::parse(spec, &words, program.len(), &BTreeMap::new());
                let said = parsed.err().map_or(String::new(), |error| error.to_string());
                assert!(!said.contains("sesame"), "{written}: {said}");
                asked += 1;
            }
        }
        assert!(asked > 100, "{asked}");
    }

    /// Nor what is glued to a name with a letter too many, too few, another, or two in each other's place.
    #[test]
    fn no_way_to_misspell_its_flag_shows_what_is_glued_to_it() {
        const SECRET: &str = "Ope9sesame";
        for engine in Engine::all() {
            let spec = cacheplan_planner::EngineSpec { engine: *engine, version: engine.newest() };
            let program: Vec<String> = spec.program().split_whitespace().map(str::to_owned).collect();
            let secrets = all_flags(*engine).filter(|flag| flag.names().any(is_secret)).flat_map(Flag::names);
            for name in secrets.filter(|name| name.starts_with("--")) {
                let misspelt = (2..name.len()).flat_map(|at| {
                    let (before, letter, after) = (&name[..at], &name[at..=at], &name[at + 1..]);
                    let swapped = after.get(..1).map(|next| format!("{before}{next}{letter}{}", &after[1..]));
                    let others = ["", "x"].map(|other| format!("{before}{other}{after}"));
                    others.into_iter().chain([format!("{before}{letter}{letter}{after}")]).chain(swapped)
                });
                for written in misspelt.map(|name| name + SECRET) {
                    let words = [program.as_slice(), &["m".to_owned(), written.clone()]].concat();
                    let shown = hidden(&words).join(" ");
                    assert!(shown.contains(HIDDEN) && !shown.contains("9sesame"), "{written}: {shown}");
                    let parsed = crate::flags::parse::parse(spec, &words, program.len(), &BTreeMap::new());
                    let said = parsed.err().map_or(String::new(), |error| error.to_string());
                    assert!(!said.contains("9sesame"), "{written}: {said}");
                }
            }
        }
    }

    #[test]
    fn every_flag_of_an_engine_is_a_secret_by_its_names_alone() {
        for engine in Engine::all() {
            for flag in all_flags(*engine) {
                let secret = flag.names().any(is_secret);
                let [by_name, by_start] = [flag.name, flag.name.get(..flag.name.len() - 1).unwrap_or_default()]
                    .map(|name| is_secret_flag(Some(*engine), name));
                assert_eq!(by_name, secret, "{}", flag.name);
                assert!(by_start || !secret, "{}", flag.name);
            }
        }
        let workers = include_str!("flags/dynamo.tsv").lines().skip(2).filter_map(|line| line.split('\t').nth(1));
        let hidden: Vec<&str> = workers.filter(|name| is_secret_flag(None, name)).collect();
        assert_eq!(hidden, [""; 0]);
    }
}
