//! Which version of an engine is installed in front of its command, by `pip install vllm==0.28.0` and its like.

use super::engine::WRAPPERS;
use super::unknown;
use crate::started::base;

/// What was installed last of an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Installed {
    /// The engine; none of a file of requirements, which may name any.
    engine: Option<&'static str>,
    /// Its version, where the requirement says one.
    version: Option<String>,
    /// What says that, as it is written.
    written: String,
    /// Whether it runs for certain.
    is_certain: bool,
}

/// Everything that was, the last behind those before.
#[derive(Clone, Debug, Default)]
pub(super) struct Wheels(Vec<Installed>);

/// What an answer is told of an engine's wheel.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Told {
    pub(super) version: Option<String>,
    /// What does not settle it.
    pub(super) open: Option<String>,
}

impl Wheels {
    /// Takes what words install, where they do; `file` knows files of requirements that are written out.
    pub(super) fn note<'f>(
        &mut self,
        words: &[String],
        line: Option<usize>,
        is_certain: bool,
        file: impl Fn(&str) -> Option<&'f str>,
    ) {
        let mut words = installs(words).unwrap_or_default().iter().map(|word| unknown::written(word));
        while let Some(word) = words.next() {
            let (option, inline) = word.split_once('=').map_or((&*word, None), |(option, value)| (option, Some(value)));
            let path = match option {
                "-r" | "-c" | "--requirement" | "--requirements" | "--constraint" => {
                    inline.map(str::to_owned).or_else(|| words.next()).unwrap_or_default()
                }
                _ => {
                    self.put(requirement(&word), line, is_certain);
                    continue;
                }
            };
            match file(&path) {
                Some(text) => {
                    let lines = text.lines().map(|line| line.split(" #").next().unwrap_or(""));
                    lines.for_each(|text| self.put(requirement(text), line, is_certain));
                }
                None => {
                    let written = format!("{option} {path:.80}");
                    self.put(Some(Installed { engine: None, version: None, written, is_certain }), line, true);
                }
            }
        }
    }

    /// Takes what a word of a command asks for: `--with vllm==0.28.0`, `--from=vllm==0.28.0`.
    pub(super) fn note_word(&mut self, word: &str) {
        let word = unknown::written(word);
        let value =
            word.strip_prefix("--").and_then(|option| option.split_once('=')).map_or(&*word, |(_, value)| value);
        value.split(',').for_each(|value| self.put(requirement(value), None, true));
    }

    fn put(&mut self, installed: Option<Installed>, line: Option<usize>, is_certain: bool) {
        let Some(mut installed) = installed else { return };
        let place = line.map_or(String::new(), |line| format!(" (line {line})"));
        (installed.is_certain, installed.written) = (is_certain, format!("`{}`{place}", installed.written));
        self.0.retain(|known| known.engine != installed.engine);
        self.0.push(installed);
    }

    /// What is known of an engine's version beside its image, which may say one.
    pub(super) fn of(&self, engine: &str, image: Option<&str>) -> Told {
        let last = |engine: Option<&str>| self.0.iter().rev().find(|known| known.engine == engine);
        let file = || last(None).filter(|_| image.is_none());
        match last(Some(engine)).or_else(file) {
            None => Told::default(),
            Some(Installed { version, written, is_certain, .. }) => {
                let is_settled = *is_certain && version.is_some();
                Told { version: version.clone(), open: (!is_settled).then(|| written.clone()) }
            }
        }
    }
}

/// Whether words install something.
pub(super) fn is_install(words: &[String]) -> bool {
    installs(words).is_some()
}

/// What stands behind `pip install`, and whatever else installs.
fn installs(words: &[String]) -> Option<&[String]> {
    /// Options of the program may stand in front of what it does.
    const MOST: usize = 12;
    const PROGRAMS: [&str; 9] = ["uv", "pipx", "poetry", "pdm", "pipenv", "pixi", "conda", "mamba", "micromamba"];
    let is_program = |word: &String| {
        let name = base(word);
        PROGRAMS.contains(&name)
            || name.strip_prefix("pip").is_some_and(|rest| rest.bytes().all(|c| c.is_ascii_digit() || c == b'.'))
    };
    let first = base(words.first()?);
    let at = words.iter().position(is_program)?;
    if at > 0 && !first.starts_with("python") && !WRAPPERS.contains(&first) {
        return None;
    }
    let rest = &words[at + 1..];
    let verb = rest.iter().take(MOST).position(|word| matches!(word.as_str(), "install" | "add"))?;
    Some(&rest[verb + 1..])
}

/// What a requirement says of an engine; none where it names none, or any version of it.
fn requirement(text: &str) -> Option<Installed> {
    let text = text.split(';').next().unwrap_or("").trim();
    let (place, is_address) = match text.split_once('@') {
        Some((name, address)) if engine_of(name.trim().split('[').next().unwrap_or("")).is_some() => {
            (address.trim(), true)
        }
        _ => (text, text.contains("://") || text.ends_with(".whl")),
    };
    if is_address {
        return address(place);
    }
    let end = text.find(|c: char| !(c.is_ascii_alphanumeric() || "-_.".contains(c))).unwrap_or(text.len());
    let (name, rest) = text.split_at(end);
    let engine = engine_of(name)?;
    let rest = rest.strip_prefix('[').and_then(|rest| rest.split_once(']')).map_or(rest, |(_, rest)| rest).trim();
    // Any version is the newest.
    if rest.is_empty() {
        return None;
    }
    // `=` is conda's.
    let exact = rest.trim_start_matches('=').trim();
    let is_exact = rest.starts_with('=') && is_version(exact);
    Some(Installed::of(engine, is_exact.then_some(exact), text))
}

/// What an address of a wheel, or of sources, says.
fn address(text: &str) -> Option<Installed> {
    let path = text.split('#').next().unwrap_or(text);
    let name = base(path);
    if let Some((package, rest)) = name.strip_suffix(".whl").and_then(|name| name.split_once('-')) {
        let version = rest.split(['-', '+']).next().filter(|version| is_version(version));
        return engine_of(package).map(|engine| Installed::of(engine, version, name));
    }
    let (name, tag) = name.split_once('@').map_or((name, ""), |(name, tag)| (name, tag));
    let name = name.trim_end_matches(".git");
    let version = tag.strip_prefix('v').filter(|version| is_version(version));
    engine_of(name).map(|engine| Installed::of(engine, version, name))
}

impl Installed {
    fn of(engine: &'static str, version: Option<&str>, written: &str) -> Self {
        let written = written.chars().take(80).collect();
        Self { engine: Some(engine), version: version.map(str::to_owned), written, is_certain: true }
    }
}

fn engine_of(package: &str) -> Option<&'static str> {
    const PACKAGES: [&str; 3] = ["vllm", "sglang", "tensorrt-llm"];
    let package = package.to_ascii_lowercase().replace('_', "-");
    PACKAGES.into_iter().find(|known| *known == package)
}

/// Whether a text is one version: `0.8.5.post1`, `1.3.0rc1`, `0.28.0+cu129`.
fn is_version(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_digit())
        && text.contains('.')
        && text.bytes().all(|c| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'+' | b'-' | b'_'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn told(command: &str, engine: &str) -> (Option<String>, bool) {
        let mut wheels = Wheels::default();
        let words = shlex::split(command).unwrap();
        let file = |path: &str| (path == "known.txt").then_some("# ours\ntorch\nvllm==0.20.1 # why\n");
        wheels.note(&words, None, true, file);
        let Told { version, open } = wheels.of(engine, None);
        (version, open.is_some())
    }

    #[rstest]
    #[case("pip install vllm==0.28.0", Some("0.28.0"), false)]
    #[case("pip3 --no-cache-dir install -U torch 'vllm[flashinfer] == 0.8.5.post1'", Some("0.8.5.post1"), false)]
    #[case("/venv/bin/python3 -m pip install vllm==0.28.0+cu129", Some("0.28.0+cu129"), false)]
    #[case("sudo -E uv pip install --system vllm==0.28.0 --torch-backend=auto", Some("0.28.0"), false)]
    #[case("uv tool install vllm==0.28.0", Some("0.28.0"), false)]
    #[case("uv add vllm===0.28.0", Some("0.28.0"), false)]
    #[case("conda install -c conda-forge vllm=0.28.0", Some("0.28.0"), false)]
    #[case("pip install 'vllm==0.28.0; python_version > \"3.9\"'", Some("0.28.0"), false)]
    #[case("pip install https://a/b/vllm-0.28.0+cu129-cp38-abi3-manylinux1_x86_64.whl", Some("0.28.0"), false)]
    #[case("pip install 'vllm @ git+https://github.com/vllm-project/vllm.git@v0.28.0'", Some("0.28.0"), false)]
    #[case("pip install -r known.txt", Some("0.20.1"), false)]
    #[case("pip install -r other.txt", None, true)]
    #[case("pip install --requirement=other.txt vllm==0.28.0", Some("0.28.0"), false)]
    #[case("pip install 'vllm>=0.28'", None, true)]
    #[case("pip install vllm==0.28.*", None, true)]
    #[case("pip install vllm==0.28.0,!=0.28.1", None, true)]
    #[case("pip install git+https://github.com/vllm-project/vllm.git", None, true)]
    #[case("pip install vllm", None, false)]
    #[case("pip install sglang==0.5.10", None, false)]
    #[case("pip uninstall vllm==0.28.0", None, false)]
    #[case("docker exec a pip install vllm==0.28.0", None, false)]
    fn a_version_is_taken_where_the_requirement_says_it(
        #[case] command: &str,
        #[case] version: Option<&str>,
        #[case] is_open: bool,
    ) {
        assert_eq!(told(command, "vllm"), (version.map(str::to_owned), is_open));
    }

    #[rstest]
    #[case("--from=sglang[all]==0.5.10.post2", "sglang", Some("0.5.10.post2"))]
    #[case("vllm==0.28.0,torch", "vllm", Some("0.28.0"))]
    #[case("torch==2.9.0", "vllm", None)]
    fn a_word_asks_for_a_version(#[case] word: &str, #[case] engine: &str, #[case] version: Option<&str>) {
        let mut wheels = Wheels::default();
        wheels.note_word(word);
        assert_eq!(wheels.of(engine, None), Told { version: version.map(str::to_owned), open: None });
    }
}
