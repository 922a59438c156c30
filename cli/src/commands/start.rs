//! A command that starts an engine, behind `--`: what it would log, what caps it, and which flags would change that.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::io::Read;
use std::path::{Path, PathBuf};

use cacheplan::files::{Limit, Shown, Source};
use cacheplan::handlers::DType;
use cacheplan::planner::{DeviceInfo, EngineLog, EngineSpec, MeasuredLedger, Override, PlanRequest, StatedWeights};
use cacheplan::transforms::ReadOptions;
use cacheplan_serve::fit::Asks;
use cacheplan_serve::manifest::ManifestError;
use cacheplan_serve::{
    Answer, Asked, CommandCheck, Launch, Models, Options, Question, Refusal, ServeError, Starts, answer, manifest,
};

use crate::commands::budget::weights_of;
use crate::commands::hub;
use crate::commands::load::{OnDevice, open, unread};
use crate::failure::{DRIFT, Failure, note, print, print_json, read, say};
use crate::paint::print_table;

/// What is asked of such a command.
#[derive(clap::Args, Default)]
pub(crate) struct StartArgs {
    /// The engine's version where a command is asked about; its image's, or the newest that is modelled, where absent
    #[arg(long, value_name = "VERSION", help_heading = "Command behind --", hide_short_help = true)]
    engine_version: Option<String>,

    /// Exit with 3 unless the command holds so many sequences of its longest length, whatever it finds at its start; `stated`:
    /// as many as it is told to run
    #[arg(long, value_name = "N|stated", value_parser = expected, help_heading = "Command behind --", hide_short_help = true)]
    expect_sequences: Option<Expected>,

    /// Exit with 3 unless its caches hold so many tokens
    #[arg(long, value_name = "N", help_heading = "Command behind --", hide_short_help = true)]
    expect_tokens: Option<u64>,

    /// Config of the model that the command names, where that is a path of another machine or a file that is not here;
    /// `NAME=MODEL`, repeated, for those that name NAME
    #[arg(long, value_name = "[NAME=]MODEL", value_parser = model_config, help_heading = "Command behind --", hide_short_help = true)]
    model_config: Vec<ModelConfig>,

    /// Leave a file out that holds no command of an engine
    #[arg(long, help_heading = "Command behind --", hide_short_help = true)]
    if_any: bool,

    /// A command that starts vLLM, SGLang, TensorRT-LLM or llama.cpp, with its variables before it; or a file that holds one, or `-`
    #[arg(last = true, value_name = "COMMAND")]
    words: Vec<String>,
}

/// The config of a model that a command names.
#[derive(Clone)]
struct ModelConfig {
    /// The name in the command; any where absent.
    of: Option<String>,
    path: PathBuf,
}

fn model_config(text: &str) -> Result<ModelConfig, Infallible> {
    let named = text.split_once('=').filter(|_| !Path::new(text).exists());
    let (of, path) = named.map_or((None, text), |(of, path)| (Some(of.to_owned()), path));
    Ok(ModelConfig { of, path: hub::find(Path::new(path)) })
}

/// How many sequences a command shall hold.
#[derive(Clone, Copy)]
enum Expected {
    So(u64),
    /// As many as it is told to run.
    Stated,
}

fn expected(text: &str) -> Result<Expected, String> {
    match text {
        "stated" => Ok(Expected::Stated),
        number => {
            number.parse::<u64>().map(Expected::So).map_err(|wrong| format!("{wrong}; a number, or `stated`, would do"))
        }
    }
}

/// How an answer is printed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Print {
    Text,
    Json,
    Markdown,
}

/// What else is said about the command.
pub(crate) struct Beside<'a> {
    /// Whether what only may start is a failure.
    pub(crate) strict: bool,
    pub(crate) device: &'a OnDevice,
    pub(crate) overrides: &'a [Override],
    /// Weights of which only the bits are stated.
    pub(crate) bits: Option<StatedWeights>,
    pub(crate) read: ReadOptions,
    pub(crate) draft: Option<&'a Path>,
    /// What an engine logged of its memory.
    pub(crate) measured: Option<&'a MeasuredLedger>,
}

/// Files whose name says that they hold a command.
const SCRIPTS: [&str; 13] =
    ["sh", "bash", "zsh", "txt", "yaml", "yml", "service", "bat", "cmd", "ps1", "sbatch", "slurm", "dockerfile"];
/// Files whose name says that they describe a model.
const MODELS: [&str; 6] = ["gguf", "onnx", "pt2", "pte", "safetensors", "toml"];
/// Those that are such without an extension, and may have any.
const BUILDS: [&str; 2] = ["Dockerfile", "Containerfile"];

/// Whether a path is that of a command rather than of a model.
pub(crate) fn is_script(path: &Path) -> bool {
    let of = |part: Option<&std::ffi::OsStr>| part.and_then(std::ffi::OsStr::to_str).unwrap_or("").to_owned();
    let builds = BUILDS.contains(&of(path.file_name()).split('.').next().unwrap_or(""));
    let extension = of(path.extension()).to_ascii_lowercase();
    (builds || SCRIPTS.contains(&&*extension) || (!MODELS.contains(&&*extension) && holds_command(path)))
        && !path.is_dir()
}

/// Whether a file of any name holds a command: what it says chooses it then.
fn holds_command(path: &Path) -> bool {
    const BEGINNING: u64 = 4096;
    let Ok(source) = Source::open(path) else { return false };
    let mut bytes = Vec::new();
    if source.reader().take(BEGINNING).read_to_end(&mut bytes).is_err() || bytes.contains(&0) {
        return false;
    }
    match is_json(&String::from_utf8_lossy(&bytes)) {
        true => source.text(Limit::MANIFEST).is_ok_and(|text| manifest::is_object(&text)),
        false => !bytes.trim_ascii().is_empty(),
    }
}

/// Whether a text holds a command rather than the JSON that describes a model.
pub(crate) fn is_command(text: &str) -> bool {
    if is_json(text) { manifest::is_object(text) } else { !text.trim().is_empty() }
}

/// Whether a text is JSON, or begins as an object of it and not as a group of a shell or a map of YAML.
fn is_json(text: &str) -> bool {
    let text = text.trim_start_matches('\u{feff}').trim_start();
    text.strip_prefix('{').is_some_and(|rest| rest.trim_start().starts_with(['"', '}']))
        || serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok()
}

impl StartArgs {
    pub(crate) fn is_stated(&self) -> bool {
        !self.words.is_empty()
    }

    /// A command names its model itself.
    pub(crate) fn refuse_beside(&self, model: Option<&Path>) -> Result<(), Failure> {
        match model.filter(|_| self.is_stated()) {
            Some(_) => Err(Failure::new(2, "a command behind `--` names its model; leave the other one out")),
            None => Ok(()),
        }
    }

    /// Flags that are about a command are wrong where there is none.
    pub(crate) fn refuse_alone(&self) -> Result<(), Failure> {
        let stated = [
            ("--engine-version", self.engine_version.is_some()),
            ("--expect-sequences", self.expect_sequences.is_some()),
            ("--expect-tokens", self.expect_tokens.is_some()),
            ("--model-config", !self.model_config.is_empty()),
            ("--if-any", self.if_any),
        ];
        let stated = stated.iter().find(|(_, is)| *is && !self.is_stated());
        stated.map_or(Ok(()), |(flag, _)| {
            Err(Failure::new(2, format!("{flag} is about a command behind `--` or in a file, and there is none")))
        })
    }

    /// The commands that stand behind `--`, or in the file there.
    fn launches(&self) -> Result<Vec<Launch>, Failure> {
        match self.words.as_slice() {
            [one] if one == "-" || Path::new(one).is_file() => launches_in(Path::new(one), self.version()),
            words => {
                let launches = Launch::from_words(words.to_vec(), &environment()).map_err(failed)?;
                launches.into_iter().map(|launch| with_options(launch, Path::new(""), self.version())).collect()
            }
        }
    }

    /// Answers the commands behind `--`.
    pub(crate) fn run(&self, beside: &Beside<'_>, print_as: Print) -> Result<(), Failure> {
        match self.words.as_slice() {
            [file] if Path::new(file).is_file() => self.run_file(Path::new(file), beside, print_as),
            _ => self.answer_all(&self.launches()?, beside, print_as),
        }
    }

    /// Answers the commands in a file.
    pub(crate) fn run_file(&self, file: &Path, beside: &Beside<'_>, print_as: Print) -> Result<(), Failure> {
        let text = read(file, Limit::MANIFEST)?;
        let name = file.to_string_lossy();
        if self.if_any && !manifest::may_hold(&text) {
            note(&format!("{name}: left out, it names no engine"));
            return Ok(());
        }
        let found = manifest::read(&name, text.as_bytes());
        if self.if_any && matches!(found, Err(ManifestError::NoCommand { .. })) {
            note(&format!("{name}: left out, it holds no command of an engine"));
            return Ok(());
        }
        let launches = settled(found, file.parent().unwrap_or(Path::new("")), self.version())?;
        self.answer_all(&launches, beside, print_as)
    }

    /// Sequences that are expected of a command.
    fn expected(&self, question: &Question) -> Result<Option<u64>, Failure> {
        match self.expect_sequences {
            None => Ok(None),
            Some(Expected::So(number)) => Ok(Some(number)),
            Some(Expected::Stated) => question.stated_sequences().map(Some).ok_or_else(|| {
                let flag = question.engine.engine.sequences_flag();
                let said = "--expect-sequences stated: the command does not say how many sequences it runs";
                Failure::new(2, format!("{said}; {flag}, or a number in place of `stated`, would do"))
            }),
        }
    }

    /// Answers commands one after another, each below its place where there are several; the first failure is that of all.
    pub(crate) fn answer_all(&self, launches: &[Launch], beside: &Beside<'_>, print_as: Print) -> Result<(), Failure> {
        let [first, more @ ..] = launches else { return Ok(()) };
        self.refuse_one_config_of_several(launches, &self.options(beside))?;
        if more.is_empty() {
            return self.answer(first, beside, print_as);
        }
        if print_as == Print::Json {
            let places: Vec<&str> = launches.iter().map(|launch| launch.place.as_str()).collect();
            let said = format!("JSON is of one command, and there are {}: {}", places.len(), places.join("; "));
            return Err(Failure::new(2, said));
        }
        let mut failed = Ok(());
        for launch in launches {
            print(&format!("{}\n", Shown(&launch.place)))?;
            let answered = self.answer(launch, beside, print_as).map_err(|failure| failure.in_place(&launch.place));
            if let (Err(failure), Ok(())) = (&answered, &failed) {
                let mut lines = failure.message().lines();
                note(lines.next().unwrap_or_default());
                lines.for_each(|line| say(&format!("{}\n", Shown(line))));
            }
            failed = failed.and(answered);
            print("\n")?;
        }
        failed
    }

    /// Answers a command.
    fn answer(&self, launch: &Launch, beside: &Beside<'_>, print_as: Print) -> Result<(), Failure> {
        let mut options = self.options(beside);
        let found = match Asked::of(launch, &options) {
            Asked::Taken(question) => {
                options.expected_sequences = self.expected(&question)?;
                let models = self.opened(&question, beside)?;
                let engine = Some(question.engine.engine);
                let weights = beside.bits.map(|bits| weights_of(bits, &models.model, engine)).transpose()?;
                options.overrides.extend(weights);
                answer(launch, models.clone(), &options).map_err(|error| (error, Some(models)))
            }
            Asked::Refused { error, nearest } => {
                Err((error, nearest.and_then(|question| self.opened(&question, beside).ok())))
            }
        };
        let found = found.map_err(|(error, models)| Refusal::of(error, launch, models.as_ref(), &options));
        match found {
            Ok(found) => self.judged(&found, options.expected_sequences, beside.strict, print_as),
            Err(refusal) => {
                let report = refusal.report();
                match (print_as, &report) {
                    (Print::Json, _) => print_json(&refusal)?,
                    (Print::Text, Some(report)) => print(report)?,
                    (Print::Markdown, Some(report)) => print(&markdown(report))?,
                    (_, None) => {}
                }
                let is_said = print_as != Print::Json && report.is_some();
                let failure = if is_said { refusal.failure() } else { refusal.text() };
                Err(Failure::new(refusal.error.exit_code(), failure)
                    .refused_for(refusal.error.said().unwrap_or_default()))
            }
        }
    }

    /// Sets what a log says beside the command that it is of.
    pub(crate) fn check(&self, log: &EngineLog, beside: &Beside<'_>, print_as: Print) -> Result<(), Failure> {
        let launch = only(self.launches()?)?;
        let options = self.options(beside);
        let (question, models) = self.question(&launch, &options, beside)?;
        let expected = self.expected(&question)?;
        let found = CommandCheck::of(&launch, &models, &options, log).map_err(failed)?;
        match print_as {
            Print::Json => print_json(&found)?,
            Print::Text | Print::Markdown => print_table(&found.table())?,
        }
        let short = found.answer.short_of(expected, self.expect_tokens);
        if found.drifted {
            let (names, why) = (found.drifting().join(", "), found.would_be.map(|why| format!("; {why}")));
            let expects = expected.is_some() || self.expect_tokens.is_some();
            let holds = expects.then(|| short.unwrap_or("what is expected it holds all the same".to_owned()));
            let holds = holds.map_or(String::new(), |holds| format!("; as it was started, {holds}"));
            let said = format!("the log is not as the command gives it: {names}{}{holds}", why.unwrap_or_default());
            return Err(Failure::new(DRIFT, said));
        }
        if let Some(short) = short {
            return Err(Failure::new(3, short));
        }
        match found.uncompared {
            // All else is as logged, and that is not known to be.
            Some((_, why)) => Err(failed(why).with_advice("the bytes that were logged are not compared without")),
            None => Ok(()),
        }
    }

    /// What the command behind `--`, or in `file`, asks of each of some devices, for a search over them, told the dtypes that
    /// it leaves open; where no devices are named they are that of its node, or the usual ones.
    pub(crate) fn sought(
        &self,
        file: Option<&Path>,
        beside: &Beside<'_>,
        dtypes: [(&str, Option<DType>); 2],
        [tokens, sequences]: [(&str, Option<u64>); 2],
        named: &[(String, DeviceInfo)],
        usual: &[(String, DeviceInfo)],
    ) -> Result<Sought, Failure> {
        if self.expect_tokens.is_some() {
            return Err(Failure::new(2, "--expect-tokens is about one device; state --context and --sequences"));
        }
        let launch = match file {
            Some(file) => only(launches_in(file, self.version())?)?,
            None => only(self.launches()?)?,
        };
        let launch = launch.told_dtypes(dtypes, self.version()).map_err(failed)?;
        let own = launch.device.as_deref().filter(|_| named.is_empty()).map(node).transpose()?;
        let devices = match &own {
            Some(own) => {
                note(&format!("{} is the GPU of its node; --gpus names others", own.0));
                std::slice::from_ref(own)
            }
            None if named.is_empty() => usual,
            None => named,
        };
        let options = self.options(beside);
        let on = |device: &DeviceInfo| Options { devices: Some(device.clone().into()), ..options.clone() };
        let mut models = None;
        let mut found = Vec::new();
        for (name, device) in devices {
            // How many there are is what is sought.
            let launch = Launch { gpus: None, nodes: None, group_gpus: None, ..launch.clone() };
            let question = Question::of(&launch, &on(device)).map_err(failed)?;
            question.refuse_beyond(tokens, sequences).map_err(failed)?;
            let models = match &models {
                Some(models) => models,
                None => models.insert(self.opened(&question, beside)?),
            };
            let (limits, request) = question.request(models).map_err(failed)?;
            found.push((name.clone(), device.clone(), limits.max_seq_len, request, question));
        }
        let (Some((.., question)), Some(models)) = (found.first(), models) else {
            return Err(Failure::new(2, "no device is named"));
        };
        Ok(Sought {
            asks: Asks::of_command(question.engine, launch.clone(), models, options, question.model.clone()),
            launch,
            name: question.model.clone(),
            engine: question.engine,
            sequences: self.expected(question)?.or(question.stated_sequences()),
            on: found.into_iter().map(|(name, device, length, request, _)| (name, device, length, request)).collect(),
        })
    }

    /// What is stated of the command besides its words, as words of `cacheplan plan`.
    pub(crate) fn stated(&self, sought: &Sought) -> Vec<String> {
        let is_said = self.engine_version.is_some() || sought.launch.version.is_some();
        let version = is_said.then(|| ["--engine-version".to_owned(), sought.engine.version_name()]);
        let config = self.config_of(&sought.name);
        let config = config.map(|config| ["--model-config".to_owned(), config.path.display().to_string()]);
        version.into_iter().chain(config).flatten().collect()
    }

    /// The engine's version, where it is stated.
    pub(crate) fn version(&self) -> Option<&str> {
        self.engine_version.as_deref()
    }

    fn options(&self, beside: &Beside<'_>) -> Options {
        Options {
            version: self.engine_version.clone(),
            devices: beside.device.devices().cloned(),
            cache_bytes: None,
            overrides: beside.overrides.to_vec(),
            measured: beside.measured.cloned(),
            model_is_given: !self.model_config.is_empty(),
            expected_sequences: match self.expect_sequences {
                Some(Expected::So(number)) => Some(number),
                Some(Expected::Stated) | None => None,
            },
        }
    }

    /// The config that is stated for a model by its name, with or without a revision, else for any.
    fn config_of(&self, model: &str) -> Option<&ModelConfig> {
        self.named_config_of(model).or_else(|| self.model_config.iter().rev().find(|config| config.of.is_none()))
    }

    fn named_config_of(&self, model: &str) -> Option<&ModelConfig> {
        let plain = model.split('@').next();
        let is_its = |of: &str| of == model || Some(of) == plain;
        self.model_config.iter().rev().find(|config| config.of.as_deref().is_some_and(is_its))
    }

    /// One config is not that of several models.
    fn refuse_one_config_of_several(&self, launches: &[Launch], options: &Options) -> Result<(), Failure> {
        let is_any = |config: &&ModelConfig| config.of.is_none();
        let Some(config) = self.model_config.iter().find(is_any) else { return Ok(()) };
        let named = launches.iter().filter_map(|launch| Some(Question::of(launch, options).ok()?.model));
        let any = named.filter(|model| self.config_of(model).is_some_and(|config| config.of.is_none()));
        let models: Vec<String> = any.collect::<BTreeSet<_>>().into_iter().collect();
        if models.len() < 2 {
            return Ok(());
        }
        let (config, models) = (config.path.display(), models.join(", "));
        let said =
            format!("--model-config {config} is of one model, and there are {models}; state it as NAME=MODEL for each");
        Err(Failure::new(2, said))
    }

    /// The models that a command names, as the hub or a disk has them.
    fn opened(&self, question: &Question, beside: &Beside<'_>) -> Result<Models, Failure> {
        let open = |name: &str, options: &ReadOptions| {
            let path = hub::find(&PathBuf::from(name));
            open(&path, options, |error| unread(&path, error))
        };
        let draft = beside.draft.map(|draft| draft.to_string_lossy().into_owned()).or_else(|| question.draft.clone());
        // A config that names no model is the served one's.
        let config_of = |name: String| match self.named_config_of(&name) {
            Some(config) => config.path.to_string_lossy().into_owned(),
            None => name,
        };
        let draft = draft.map(|name| open(&config_of(name), &ReadOptions::default())).transpose()?;
        let given = self.config_of(&question.model);
        if let Some(ModelConfig { of: None, path }) = given {
            // Of several files it may be the config of one.
            note(&format!("{} is planned by the config {}, as --model-config says", question.model, path.display()));
        }
        let given = given.map(|config| config.path.to_string_lossy().into_owned());
        let model = open(given.as_ref().unwrap_or(&question.model), &beside.read);
        let is_elsewhere = given.is_none() && !hub::find(&PathBuf::from(&question.model)).exists();
        let model = model.map_err(|failure| match (is_elsewhere, self.model_config.is_empty()) {
            (false, _) => failure,
            (true, true) => failure.with_advice("where its config lies elsewhere, name it with --model-config"),
            (true, false) => failure
                .with_advice(&format!("no --model-config names it; --model-config {}=MODEL would", question.model)),
        })?;
        Ok(Models { model: model.into(), draft: draft.map(Into::into) })
    }

    fn question(&self, launch: &Launch, options: &Options, beside: &Beside<'_>) -> Result<(Question, Models), Failure> {
        let question = Question::of(launch, options).map_err(failed)?;
        let models = self.opened(&question, beside)?;
        Ok((question, models))
    }

    /// Prints an answer, and ends with 3 where it does not start or hold what is expected.
    fn judged(&self, found: &Answer, expected: Option<u64>, strict: bool, print_as: Print) -> Result<(), Failure> {
        match print_as {
            Print::Json => print_json(found)?,
            Print::Text => print(&found.text())?,
            Print::Markdown => print(&markdown(&found.text()))?,
        }
        if let Some(failure) = found.failure() {
            return Err(Failure::new(3, failure));
        }
        if found.starts == Starts::Maybe && strict {
            return Err(Failure::new(3, format!("{} only may start; REASON says why", found.engine)));
        }
        let short = found.short_of(expected, self.expect_tokens);
        if let Some(short) = short {
            return Err(Failure::new(3, short));
        }
        if found.starts == Starts::Maybe {
            note("it only may start, and the exit code is 0; with --strict it would be 3");
        }
        Ok(())
    }
}

/// An answer as Markdown: a heading for each of its sections, with what it says as it is.
fn markdown(text: &str) -> String {
    let runs = text.split(|sign| sign != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat(runs.max(2) + 1);
    let mut lines = text.lines();
    let mut written = format!("# {}\n", lines.next().unwrap_or_default());
    let mut open = false;
    for line in lines {
        let is_heading = !line.is_empty() && line.bytes().all(|byte| byte.is_ascii_uppercase());
        if (is_heading || line.is_empty()) && std::mem::take(&mut open) {
            written.push_str(&format!("{fence}\n"));
        }
        match (is_heading, line.is_empty()) {
            (true, _) => {
                open = true;
                let (first, rest) = line.split_at(1);
                written.push_str(&format!("\n## {first}{}\n\n{fence}text\n", rest.to_lowercase()));
            }
            (false, true) => {}
            (false, false) => written.push_str(&format!("{}\n", line.strip_prefix("  ").unwrap_or(line))),
        }
    }
    if open {
        written.push_str(&format!("{fence}\n"));
    }
    written
}

/// What a command asks of devices.
pub(crate) struct Sought {
    pub(crate) launch: Launch,
    pub(crate) asks: Asks,
    /// The model, as the command names it.
    pub(crate) name: String,
    pub(crate) engine: EngineSpec,
    /// The sequences that it is told to run.
    pub(crate) sequences: Option<u64>,
    /// For each device, the longest sequence, and all else that the command says.
    pub(crate) on: Vec<(String, DeviceInfo, u64, PlanRequest)>,
}

/// The GPU of a node as a manifest names it, with the shortest name that it has here.
fn node(label: &str) -> Result<(String, DeviceInfo), Failure> {
    let device: DeviceInfo = label.parse().map_err(|error| Failure::new(2, format!("the node's GPU: {error}")))?;
    let known = DeviceInfo::names().find(|name| name.parse().as_ref() == Ok(&device));
    Ok((known.unwrap_or_else(|| label.to_lowercase()), device))
}

/// The only command of these.
fn only(mut launches: Vec<Launch>) -> Result<Launch, Failure> {
    match (launches.pop(), launches.len()) {
        (Some(launch), 0) => Ok(launch),
        (_, more) => Err(Failure::new(2, format!("{} commands start an engine there; one was expected", more + 1))),
    }
}

/// The commands in a file; `-` is what is piped in.
pub(crate) fn launches_in(path: &Path, version: Option<&str>) -> Result<Vec<Launch>, Failure> {
    let text = read(path, Limit::MANIFEST)?;
    let beside = path.parent().unwrap_or(Path::new(""));
    launches_of(&text, &path.to_string_lossy(), beside, version)
}

/// The commands in a text; files that they name lie in `folder`.
pub(crate) fn launches_of(
    text: &str,
    name: &str,
    folder: &Path,
    version: Option<&str>,
) -> Result<Vec<Launch>, Failure> {
    settled(manifest::read(name, text.as_bytes()), folder, version)
}

fn settled(
    found: Result<Vec<Launch>, ManifestError>,
    folder: &Path,
    version: Option<&str>,
) -> Result<Vec<Launch>, Failure> {
    let launches = found.map_err(|error| match error {
        // As of a file that is read whole.
        ManifestError::Source(error) => Failure::error(error),
        error => Failure::new(2, error),
    })?;
    launches.into_iter().map(|launch| with_options(launch, folder, version)).collect()
}

/// The command with what the file of options says that it names, as the stated version reads it.
fn with_options(launch: Launch, folder: &Path, version: Option<&str>) -> Result<Launch, Failure> {
    let launch = Launch { version: version.map(str::to_owned).or(launch.version), ..launch };
    let Some(file) = launch.config_file().map(str::to_owned) else { return Ok(launch) };
    let text = read(&folder.join(&file), Limit::MANIFEST)?;
    launch.with_config(&file, &text).map_err(|error| Failure::new(2, error))
}

/// The variables under which the command would run.
fn environment() -> BTreeMap<String, String> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}

pub(crate) fn failed(error: ServeError) -> Failure {
    Failure::new(error.exit_code(), error)
}
