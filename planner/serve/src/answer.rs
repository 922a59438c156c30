//! What a command would do: the lines of its start, what caps it, and what would change that.

use std::collections::BTreeMap;

use cacheplan_planner::engines::EnginePrediction;
use cacheplan_planner::logs::{EngineLog, Fact, Logged};
use cacheplan_planner::{ByteSize, EngineSpec, PlanError, PlanRequest};
use serde::Serialize;

use crate::change::{Remedy, line, shown};
use crate::error::ServeError;
use crate::flags::meaning::{Meaning, meaning};
use crate::flags::parse::parse;
use crate::flags::table::flags;
use crate::launch::Launch;
use crate::program::Program;
use crate::question::{Limits, Models, Options, Question, ReadFlag, Settled};

/// Whether the engine would start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Starts {
    /// Not even with the most bytes that it may find.
    No,
    /// With the most, and not with the least.
    Maybe,
    /// Also with the least.
    Yes,
}

/// What a command would do. A number that is only known to lie between two has them as `low` and `high`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Answer {
    /// The engine's name.
    pub engine: &'static str,
    /// The version whose parser and rules were used.
    pub version: String,
    /// The model as the command names it.
    pub model: String,
    /// The command, without secrets.
    pub command: Vec<String>,
    /// What its flags were read as.
    pub read: Vec<ReadFlag>,
    /// The limits that it starts with.
    pub limits: Limits,
    /// Whether it starts.
    pub starts: Starts,
    /// Why not, in the engine's words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What the engine's log would say, by the name of the fact; sizes in bytes, concurrency in hundredths.
    pub facts: BTreeMap<Fact, Logged>,
    /// Sequences of the longest length that run at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sequences: Option<Logged>,
    /// The lines of its start.
    pub lines: Vec<String>,
    /// What keeps it from holding more, in the engine's words.
    pub capped_by: String,
    /// Changes, each by itself, that let it start or hold more; those that help most first.
    pub changes: Vec<Change>,
    /// What to know of this.
    pub notes: Vec<String>,
}

/// A changed command, and what it would do.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Change {
    /// What was changed.
    pub change: String,
    /// The words of the changed command, without secrets.
    pub command: Vec<String>,
    /// Whether it starts.
    pub starts: Starts,
    /// Sequences of its longest length that run at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sequences: Option<Logged>,
}

/// A number of an answer beside a log's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Compared {
    /// What it is.
    pub fact: Fact,
    /// What the answer says.
    pub predicted: Logged,
    /// What the log says.
    pub logged: Logged,
    /// Whether they have a value in common.
    pub equal: bool,
}

/// The most changed commands that are tried.
const MOST_TRIES: usize = 60;
/// The most changes in one of them.
const DEEPEST: usize = 4;
const SHOWN: usize = 3;

/// What a command would do with its models.
///
/// # Errors
/// What the engine's parser or the engine refuses, what nobody read, and a model that the planner refuses.
pub fn answer(launch: &Launch, models: impl Into<Models>, options: &Options) -> Result<Answer, ServeError> {
    let models = models.into();
    let mut answer = answer_alone(launch, &models, options)?;
    answer.changes = changes(&answer, launch, &models, options);
    Ok(answer)
}

/// The nearest command to one that has no answer, or would not start, that starts; none where nothing that was tried does.
pub fn repaired(launch: &Launch, models: &Models, options: &Options) -> Option<(Launch, Answer)> {
    let mut tried = 0;
    let mut front = vec![launch.clone()];
    for _ in 0..DEEPEST {
        let mut next = Vec::new();
        for launch in front {
            for changed in remedied(&launch, models, options) {
                tried += 1;
                if tried > MOST_TRIES {
                    return None;
                }
                match answer_alone(&changed, models, options) {
                    Ok(answer) if answer.admits() => return Some((changed, answer)),
                    _ if !next.contains(&changed) => next.push(changed),
                    _ => {}
                }
            }
        }
        front = next;
    }
    None
}

/// The question of the nearest command that the engine's parser takes; none where nothing that was tried is one.
pub fn nearest(launch: &Launch, options: &Options) -> Option<Question> {
    let mut front = vec![launch.clone()];
    for _ in 0..DEEPEST {
        let mut next: Vec<Launch> = Vec::new();
        for launch in front {
            let remedies = match Question::of(&launch, options) {
                Ok(question) => return Some(question),
                Err(error) => error.remedies().to_vec(),
            };
            let (Ok(Program { start, .. }), Some(engine)) = (Program::of(&launch.words), engine_of(&launch, options))
            else {
                continue;
            };
            let known = flags(engine.engine, engine.version);
            let words = remedies.iter().flat_map(|remedy| remedy.applied(&launch.words, start, &known));
            next.extend(
                words.map(|words| Launch { words, ..launch.clone() }).take(MOST_TRIES.saturating_sub(next.len())),
            );
        }
        front = next;
    }
    None
}

/// The commands that one change each makes of one that has no answer or does not start.
fn remedied(launch: &Launch, models: &Models, options: &Options) -> Vec<Launch> {
    let Ok(Program { start, .. }) = Program::of(&launch.words) else { return Vec::new() };
    let remedies = match answer_alone(launch, models, options) {
        Ok(answer) => larger(&answer, launch, models, options).into_iter().map(|(remedy, _)| remedy).collect(),
        Err(error) if error.remedies().is_empty() => every_flag_less(launch, options),
        Err(error) => error.remedies().to_vec(),
    };
    let Some(engine) = engine_of(launch, options) else { return Vec::new() };
    let known = flags(engine.engine, engine.version);
    let words = remedies.iter().flat_map(|remedy| remedy.applied(&launch.words, start, &known));
    words.map(|words| Launch { words, ..launch.clone() }).collect()
}

fn engine_of(launch: &Launch, options: &Options) -> Option<EngineSpec> {
    let Program { engine, version, .. } = Program::of(&launch.words).ok()?;
    match options.version.as_ref().or(version.as_ref()) {
        Some(version) => format!("{engine}@{version}").parse().ok(),
        None => Some(engine.into()),
    }
}

/// One flag less that says something of caches, whichever it is: what the planner refuses names no flag of the engine.
fn every_flag_less(launch: &Launch, options: &Options) -> Vec<Remedy> {
    let (Some(engine), Ok(Program { start, env, .. })) = (engine_of(launch, options), Program::of(&launch.words))
    else {
        return Vec::new();
    };
    let Ok(parsed) = parse(engine, &launch.words, start, &env) else { return Vec::new() };
    let says = |name: &&&str| {
        let flag = parsed.settings[**name].flag;
        !matches!(meaning(engine.engine, flag), Meaning::None | Meaning::Model | Meaning::Revision)
    };
    parsed.settings.keys().filter(says).map(|name| Remedy::Remove(name)).collect()
}

/// The answer without changes.
fn answer_alone(launch: &Launch, models: &Models, options: &Options) -> Result<Answer, ServeError> {
    let question = Question::of(launch, options)?;
    let (question, settled) = question.settled(models.model.clone(), models.draft.clone())?;
    Found::of(&question, &settled, options)?.answer(launch, question, &settled)
}

/// What the engine makes of the least and of the most bytes.
struct Found {
    engine: EngineSpec,
    bytes: Option<Logged>,
    low: Option<At>,
    high: Option<At>,
    /// Why it does not start with the least, in the engine's words.
    reason: Option<String>,
}

/// What it makes of so many bytes.
struct At {
    max_seq_len: u64,
    predicted: EnginePrediction,
}

impl Found {
    fn of(question: &Question, settled: &Settled, options: &Options) -> Result<Self, ServeError> {
        let (engine, request) = (question.engine, &settled.request);
        if engine.engine.name() == "llama.cpp" {
            let predicted = request.predict(engine)?;
            let at = |predicted| At { max_seq_len: settled.limits.max_seq_len, predicted };
            return Ok(Self {
                engine,
                bytes: None,
                low: Some(at(predicted.clone())),
                high: Some(at(predicted)),
                reason: None,
            });
        }
        let bytes = match options.cache_bytes {
            Some(bytes) => bytes,
            None => {
                let [low, _, high] = request.cache_bytes(engine)?.ok_or(ServeError::NoDevice)?;
                Logged { low, high }
            }
        };
        let low = at(request, settled, engine, bytes.low)?;
        let high = at(request, settled, engine, bytes.high)?;
        let failed = if high.is_err() { high.as_ref().err() } else { low.as_ref().err() };
        let told = if high.is_err() { bytes.high } else { bytes.low };
        let reason = failed.map(|needed| refusal(request, settled, engine, told, *needed));
        Ok(Self { engine, bytes: Some(bytes), low: low.ok(), high: high.ok(), reason })
    }

    fn starts(&self) -> Starts {
        match (&self.low, &self.high) {
            (Some(_), Some(_)) => Starts::Yes,
            (None, Some(_)) => Starts::Maybe,
            _ => Starts::No,
        }
    }

    /// A number of the prediction, between both; 0 where it may not start.
    fn span(&self, of: impl Fn(&At) -> Option<u64>) -> Option<Logged> {
        let high = of(self.high.as_ref()?)?;
        let low = self.low.as_ref().map_or(Some(0), of)?;
        Some(Logged { low: low.min(high), high: low.max(high) })
    }

    fn facts(&self, question: &Question, limits: &Limits) -> BTreeMap<Fact, Logged> {
        let mut facts = BTreeMap::new();
        let mut say = |fact: Fact, value: Option<Logged>| {
            if let Some(value) = value {
                facts.insert(fact, value);
            }
        };
        let exact = |value: u64| Some(Logged::exact(value));
        say(Fact::MaxSeqLen, self.span(|at| Some(at.max_seq_len)).or(exact(limits.max_seq_len)));
        say(Fact::MaxNumTokens, exact(limits.max_num_tokens));
        say(Fact::CacheBytes, self.bytes);
        let makes_block = self.engine.engine.name() == "vllm";
        let has_states = |at: &At| at.predicted.state_page_bytes.is_some();
        say(Fact::TokensPerBlock, self.span(|at| at.predicted.block_size.filter(|_| !makes_block || has_states(at))));
        say(Fact::NumBlocks, self.span(|at| at.predicted.num_blocks));
        say(Fact::Tokens, self.span(|at| at.predicted.tokens));
        say(Fact::WindowTokens, self.span(|at| at.predicted.window_tokens));
        say(Fact::StateSlots, self.span(|at| at.predicted.state_slots));
        say(Fact::KvBytes, self.span(|at| at.predicted.kv_bytes));
        say(Fact::SsmBytes, self.span(|at| at.predicted.ssm_bytes));
        say(Fact::ConvBytes, self.span(|at| at.predicted.conv_bytes));
        say(Fact::Concurrency, self.span(|at| hundredths(&at.predicted)));
        let running = self.span(|at| running(question, limits, &at.predicted));
        say(Fact::MaxBatchSize, limits.max_batch_size.map(Logged::exact).or(running));
        if self.engine.engine.name() == "llama.cpp" {
            say(Fact::Ubatch, exact(question.count("--ubatch-size").unwrap_or(512).min(limits.max_num_tokens)));
        }
        facts
    }

    fn answer(self, launch: &Launch, question: Question, settled: &Settled) -> Result<Answer, ServeError> {
        let facts = self.facts(&question, &settled.limits);
        let known = flags(self.engine.engine, self.engine.version);
        let starts = self.starts();
        let sequences = self.span(|at| Some(at.predicted.sequences));
        let mut lines = if starts == Starts::No { Vec::new() } else { self.engine.start_lines(&facts) };
        if facts.contains_key(&Fact::WindowTokens) {
            // Each of two pools has such a line of its own; the sum of both is the one that is known.
            lines.retain(|line| !line.starts_with("KV Cache is allocated"));
        }
        let mut notes = question.notes;
        notes.extend(settled.request.notes());
        notes.extend(self.high.iter().flat_map(|at| at.predicted.notes.clone()));
        let capped = match (settled.limits.max_batch_size, sequences) {
            _ if starts == Starts::No => "the bytes for caches".to_owned(),
            (Some(most), Some(found)) if found.low >= most => format!("the most sequences, {most}"),
            _ if self.bytes.is_none() => "the cells that are stated".to_owned(),
            _ => "the bytes for caches".to_owned(),
        };
        Ok(Answer {
            engine: self.engine.engine.name(),
            version: self.engine.version_name(),
            model: question.model,
            command: shown(&launch.words, &known),
            read: question.read,
            limits: settled.limits,
            starts,
            reason: self.reason,
            facts,
            sequences,
            lines,
            capped_by: capped,
            changes: Vec::new(),
            notes,
        })
    }
}

/// What the engine makes of so many bytes; else the bytes that one sequence needs.
fn at(request: &PlanRequest, settled: &Settled, engine: EngineSpec, bytes: u64) -> Result<Result<At, u64>, ServeError> {
    let of = |length: u64| told(request, bytes, length).predict(engine);
    let length = settled.limits.max_seq_len;
    match of(length) {
        Ok(predicted) => Ok(Ok(At { max_seq_len: length, predicted })),
        Err(PlanError::DoesNotFit(shortfall)) => {
            let longest = if settled.fits_length { longest(request, engine, bytes, length) } else { None };
            match longest {
                Some(fits) => Ok(Ok(At { max_seq_len: fits, predicted: of(fits)? })),
                None => Ok(Err(shortfall.needed)),
            }
        }
        Err(error) => Err(error.into()),
    }
}

/// The same question where the engine has so many bytes for caches and sequences of such a length.
fn told(request: &PlanRequest, bytes: u64, length: u64) -> PlanRequest {
    request.changed(|budget| {
        budget.engine.cache_bytes = Some(ByteSize(bytes));
        budget.memory = None;
        budget.max_seq_len = Some(length);
    })
}

/// The longest sequence that so many bytes hold.
fn longest(request: &PlanRequest, engine: EngineSpec, bytes: u64, most: u64) -> Option<u64> {
    let fits = |length: u64| told(request, bytes, length).predict(engine).is_ok();
    let (mut fitting, mut failing) = (0, most);
    while failing - fitting > 1 {
        let middle = fitting + (failing - fitting) / 2;
        if fits(middle) { fitting = middle } else { failing = middle }
    }
    (fitting > 0).then_some(fitting)
}

/// Why it does not start, as it says it itself.
fn refusal(request: &PlanRequest, settled: &Settled, engine: EngineSpec, bytes: u64, needed: u64) -> String {
    let gib = |bytes: u64| format!("{:.2}", bytes as f64 / f64::from(1 << 30));
    let length = settled.limits.max_seq_len;
    match engine.engine.name() {
        "vllm" if bytes == 0 => "No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.".into(),
        "vllm" => {
            let longest = longest(request, engine, bytes, length);
            let estimate = longest.map(|length| format!("Based on the available memory, the estimated maximum model length is {length}. "));
            format!(
                "To serve at least one request with the model's max seq len ({length}), ({} GiB KV cache is needed, which is larger than the available KV cache memory ({} GiB). {}Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine.",
                gib(needed),
                gib(bytes),
                estimate.unwrap_or_default()
            )
        }
        "sglang" => "Not enough memory. Please try to increase --mem-fraction-static.".into(),
        _ => format!("{} GiB hold no sequence of {length} tokens, which needs {} GiB", gib(bytes), gib(needed)),
    }
}

fn hundredths(predicted: &EnginePrediction) -> Option<u64> {
    let (blocks, each) = (predicted.num_blocks?, predicted.blocks_per_request?.max(1));
    u64::try_from((u128::from(blocks) * 200 + u128::from(each)) / (2 * u128::from(each))).ok()
}

/// SGLang's `max_running_requests` where nobody states it: by its tokens, and by its slots for states.
fn running(question: &Question, limits: &Limits, predicted: &EnginePrediction) -> Option<u64> {
    if question.engine.engine.name() != "sglang" {
        return None;
    }
    let by_tokens = u128::from(predicted.tokens?) * 512 / u128::from(limits.max_seq_len.max(1));
    let by_tokens = u64::try_from(by_tokens).unwrap_or(u64::MAX).clamp(2048, 4096);
    // How many slots a request takes is not said here.
    predicted.state_slots.is_none().then_some(by_tokens.min(predicted.tokens? / 2))
}

/// The changes by which the command starts, or holds more.
fn changes(answer: &Answer, launch: &Launch, models: &Models, options: &Options) -> Vec<Change> {
    let Some(engine) = engine_of(launch, options) else { return Vec::new() };
    let known = flags(engine.engine, engine.version);
    let mut found: Vec<(Remedy, Answer)> = larger(answer, launch, models, options);
    found.sort_by_key(|(_, answer)| {
        std::cmp::Reverse((answer.starts, answer.sequences.map(|sequences| (sequences.low, sequences.high))))
    });
    let shown_of = |(remedy, answer): (Remedy, Answer)| Change {
        change: match remedy {
            Remedy::Set(flag, value) if known.iter().any(|known| known.name == flag) => format!("{flag} {value}"),
            Remedy::Remove(flag) => format!("without {flag}"),
            other => format!("{other:?}"),
        },
        command: answer.command,
        starts: answer.starts,
        sequences: answer.sequences,
    };
    found.into_iter().take(SHOWN).map(shown_of).collect()
}

/// The changes that help, with what they come to.
fn larger(answer: &Answer, launch: &Launch, models: &Models, options: &Options) -> Vec<(Remedy, Answer)> {
    let (Some(engine), Ok(Program { start, .. })) = (engine_of(launch, options), Program::of(&launch.words)) else {
        return Vec::new();
    };
    let known = flags(engine.engine, engine.version);
    let helps = |other: &Answer| {
        (other.starts, other.sequences.map_or(0, |all| all.low))
            > (answer.starts, answer.sequences.map_or(0, |all| all.low))
    };
    let tries = tries(answer, launch, models, options, engine);
    let changed = tries.into_iter().filter_map(|remedy| {
        let words = remedy.applied(&launch.words, start, &known).into_iter().next()?;
        let changed = answer_alone(&Launch { words, ..launch.clone() }, models, options).ok()?;
        Some((remedy, changed))
    });
    changed.filter(|(_, changed)| helps(changed)).collect()
}

fn tries(answer: &Answer, launch: &Launch, models: &Models, options: &Options, engine: EngineSpec) -> Vec<Remedy> {
    let (length, tp, batch) = match engine.engine.name() {
        "vllm" => ("--max-model-len", "--tensor-parallel-size", "--max-num-seqs"),
        "sglang" => ("--context-length", "--tp-size", "--max-running-requests"),
        "tensorrt-llm" => ("--max_seq_len", "--tensor_parallel_size", "--max_batch_size"),
        _ => return Vec::new(),
    };
    let parsed = Program::of(&launch.words)
        .ok()
        .and_then(|Program { start, env, .. }| parse(engine, &launch.words, start, &env).ok());
    let number = |name: &str| parsed.as_ref().and_then(|parsed| parsed.settings.get(name)?.value().parse::<u64>().ok());
    let ranks = number(tp).unwrap_or(1);
    let mut tries = vec![Remedy::Set(tp, (2 * ranks).to_string()), Remedy::Set(tp, (4 * ranks).to_string())];
    let limits = answer.limits;
    match answer.starts {
        Starts::Yes => tries.push(Remedy::Set(length, (limits.max_seq_len / 2).max(1).to_string())),
        _ => {
            let question = Question::of(launch, options)
                .and_then(|question| question.settled(models.model.clone(), models.draft.clone()));
            let bytes = answer.facts.get(&Fact::CacheBytes).copied();
            if let (Ok((_, settled)), Some(bytes)) = (question, bytes) {
                let ends =
                    [bytes.low, bytes.high].map(|bytes| longest(&settled.request, engine, bytes, limits.max_seq_len));
                tries.extend(ends.into_iter().flatten().map(|fits| Remedy::Set(length, fits.to_string())));
            }
        }
    }
    if answer.sequences.is_some_and(|found| limits.max_batch_size.is_some_and(|most| found.low >= most)) {
        tries.push(Remedy::Set(batch, (2 * limits.max_batch_size.unwrap_or(1)).to_string()));
    }
    match engine.engine.name() {
        "vllm" => tries.extend([
            Remedy::Set("--kv-cache-dtype", "fp8".into()),
            Remedy::Set("--gpu-memory-utilization", "0.95".into()),
            Remedy::Set("--max-num-batched-tokens", (limits.max_num_tokens / 2).max(1).to_string()),
            Remedy::Remove("--kv-cache-memory-bytes"),
        ]),
        "sglang" => tries.extend([
            Remedy::Set("--kv-cache-dtype", "fp8_e4m3".into()),
            Remedy::Set("--mem-fraction-static", "0.9".into()),
        ]),
        _ => {}
    }
    tries
}

impl Answer {
    /// Whether the engine may start, and then holds a sequence.
    pub fn admits(&self) -> bool {
        self.starts != Starts::No && self.sequences.is_none_or(|sequences| sequences.high >= 1)
    }

    /// Why it does not hold as many sequences of the longest length, or as many tokens, as are expected: the least that it may hold counts.
    pub fn short_of(&self, sequences: Option<u64>, tokens: Option<u64>) -> Option<String> {
        let found =
            [("sequences", sequences, self.sequences), ("tokens", tokens, self.facts.get(&Fact::Tokens).copied())];
        found.into_iter().find_map(|(what, expected, found)| {
            let (expected, found) = (expected?, found.unwrap_or(Logged::exact(0)));
            let number = if found.low == found.high {
                found.low.to_string()
            } else {
                format!("{} to {}", found.low, found.high)
            };
            (found.low < expected).then(|| format!("{expected} {what} are expected, and it holds {number}"))
        })
    }

    /// Each number that both the answer and a log have.
    pub fn beside(&self, log: &EngineLog) -> Vec<Compared> {
        let compared = |(fact, predicted): (&Fact, &Logged)| {
            let logged = log.get(*fact)?;
            Some(Compared { fact: *fact, predicted: *predicted, logged, equal: predicted.meets(logged) })
        };
        self.facts.iter().filter_map(compared).collect()
    }

    /// As text: whether it starts, the lines of its start, what caps it and what would change that.
    pub fn text(&self) -> String {
        let starts = match self.starts {
            Starts::Yes => "starts",
            Starts::Maybe => "may start: the bytes for caches are not known exactly",
            Starts::No => "would not start",
        };
        let mut text = format!("{} {}, {}: {starts}\n", self.engine, self.version, self.model);
        let mut section = |name: &str, lines: &[String]| {
            if !lines.is_empty() {
                text.push_str(&format!("\n{name}\n"));
                lines.iter().for_each(|line| text.push_str(&format!("  {line}\n")));
            }
        };
        section("REASON", self.reason.as_slice());
        let read: Vec<String> =
            self.read.iter().map(|flag| format!("{} {}: {}", flag.flag, flag.value, flag.says)).collect();
        section("READ", &read);
        section("LOG", &self.lines);
        let holds = self.sequences.map(|all| {
            let number = if all.low == all.high { all.low.to_string() } else { format!("{}..{}", all.low, all.high) };
            format!(
                "{number} sequences of {} tokens; capped by {}",
                self.facts.get(&Fact::MaxSeqLen).map_or(0, |length| length.high),
                self.capped_by
            )
        });
        section("HOLDS", holds.as_slice());
        let changes: Vec<String> = self.changes.iter().map(Change::text).collect();
        section("CHANGES", &changes);
        section("NOTES", &self.notes);
        text
    }
}

impl Change {
    fn text(&self) -> String {
        let number = self.sequences.map_or(String::new(), |all| {
            let number = if all.low == all.high { all.low.to_string() } else { format!("{}..{}", all.low, all.high) };
            format!(": {number} sequences")
        });
        format!("{}{number}\n    {}", self.change, line(&self.command))
    }
}
