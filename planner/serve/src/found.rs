//! What the engine makes of a command: its rules, asked for the least and for the most bytes that it may find.

use std::borrow::Cow;
use std::collections::BTreeMap;

use cacheplan_planner::engines::EnginePrediction;
use cacheplan_planner::logs::{Fact, Logged};
use cacheplan_planner::{ByteSize, EngineSpec, PlanError, PlanRequest};

use crate::answer::{Answer, Starts};
use crate::error::ServeError;
use crate::launch::Launch;
use crate::question::{Limits, Models, Offloaded, Options, Question, Settled};
use crate::secret;

/// The answer without changes.
pub(crate) fn answer_alone(launch: &Launch, models: &Models, options: &Options) -> Result<Answer, ServeError> {
    let question = Question::of(launch, options)?;
    let (question, settled) = question.settled(models.model.clone(), models.draft.clone())?;
    Found::of(&question, &settled, options)?.answer(launch, question, &settled)
}

/// What a command asks the planner, and of which engine.
///
/// # Errors
/// As [`answer`](crate::answer).
pub fn request(launch: &Launch, models: &Models, options: &Options) -> Result<(EngineSpec, PlanRequest), ServeError> {
    let (question, settled) = Question::of(launch, options)?.settled(models.model.clone(), models.draft.clone())?;
    Ok((question.engine, settled.request))
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
            let at = |predicted| At { max_seq_len: settled.limits.max_seq_len, predicted };
            let predicted = request.predict(engine)?;
            let reason = on_the_host(request, &predicted, settled.offloaded);
            let low = reason.is_none().then(|| at(predicted.clone()));
            return Ok(Self { engine, bytes: None, low, high: Some(at(predicted)), reason });
        }
        let bytes = match options.cache_bytes {
            Some(bytes) => bytes,
            None => {
                let [low, _, high] = request.cache_bytes(engine)?.ok_or_else(|| question.without_device())?;
                Logged { low, high }
            }
        };
        let low = at(request, settled, engine, bytes.low)?;
        let high = at(request, settled, engine, bytes.high)?;
        let failed = if high.is_err() { high.as_ref().err() } else { low.as_ref().err() };
        let told = if high.is_err() { bytes.high } else { bytes.low };
        let few = [&high, &low].into_iter().flatten().find_map(|at| at.few_blocks(settled));
        let few = few.map(|blocks| too_few(settled.least_blocks, blocks));
        let reason = failed.map(|needed| refusal(request, settled, engine, told, *needed)).or(few);
        Ok(Self { engine, bytes: Some(bytes), low: low.ok(), high: high.ok(), reason })
    }

    fn starts(&self, settled: &Settled) -> Starts {
        let starts = |end: &Option<At>| end.as_ref().is_some_and(|at| at.few_blocks(settled).is_none());
        match (starts(&self.low), starts(&self.high)) {
            (true, true) => Starts::Yes,
            (false, true) => Starts::Maybe,
            _ => Starts::No,
        }
    }

    /// A number of the prediction, between both; 0 where it may not start, but of what only bytes decide.
    fn span(&self, of: impl Fn(&At) -> Option<u64>) -> Option<Logged> {
        let high = of(self.high.as_ref()?)?;
        let low = match &self.low {
            Some(low) => of(low)?,
            None if self.bytes.is_none() => high,
            None => 0,
        };
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
        let starts = self.starts(settled);
        let sequences = self.span(|at| Some(at.predicted.sequences)).filter(|_| starts != Starts::No);
        // It says what it made of its memory before it looks at its blocks.
        let mut lines = if self.high.is_some() { self.engine.start_lines(&facts) } else { Vec::new() };
        if facts.contains_key(&Fact::WindowTokens) {
            // Each of two pools has such a line of its own; the sum of both is the one that is known.
            lines.retain(|line| !line.starts_with("KV Cache is allocated"));
        }
        if let (Some(offloaded), Some(bytes)) = (settled.offloaded, facts.get(&Fact::KvBytes)) {
            lines = lines.into_iter().flat_map(|line| on_devices(line, offloaded, bytes.high)).collect();
        }
        let mut notes = question.notes;
        notes.extend(settled.request.notes());
        notes.extend(self.high.iter().flat_map(|at| at.predicted.notes.clone()));
        let capped = match (settled.limits.max_batch_size, sequences) {
            _ if starts == Starts::No && self.high.is_some() => "the blocks for states".to_owned(),
            _ if starts == Starts::No => "the bytes for caches".to_owned(),
            (Some(most), Some(found)) if found.low >= most => format!("the most sequences, {most}"),
            _ if self.bytes.is_none() => "the cells that are stated".to_owned(),
            _ => "the bytes for caches".to_owned(),
        };
        Ok(Answer {
            engine: self.engine.engine.name(),
            version: self.engine.version_name(),
            model: question.model,
            command: secret::hidden(&launch.words).into_iter().map(Cow::into_owned).collect(),
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

/// The line of all cells as those of the devices on which they lie; as it is where layers differ and lie on both.
fn on_devices(line: String, offloaded: Offloaded, bytes: u64) -> Vec<String> {
    let Offloaded { on, all, alike, .. } = offloaded;
    if !line.contains(ON_DEVICE) || (on > 0 && !alike) {
        return vec![line];
    }
    let part = |device: &str, layers: u64| {
        let mib = bytes as f64 * layers as f64 / all.max(1) as f64 / f64::from(1 << 20);
        (layers > 0).then(|| format!("llama_kv_cache: {device} KV buffer size = {mib:.2} MiB"))
    };
    [part("CPU", all - on), part("CUDA0", on)].into_iter().flatten().collect()
}

const ON_DEVICE: &str = "CUDA0 KV buffer size";

/// What llama.cpp cannot keep on the devices, where their memory and the size of the weights are known. It asks for no share of
/// them: it fails to allocate, or leaves layers on the host.
fn on_the_host(request: &PlanRequest, predicted: &EnginePrediction, offloaded: Option<Offloaded>) -> Option<String> {
    let caches = match offloaded {
        Some(offloaded) if offloaded.with_weights => return None,
        Some(_) => 0,
        None => [predicted.kv_bytes, predicted.state_bytes].into_iter().flatten().fold(0, u64::saturating_add),
    };
    let (room, weights, caches) = (request.device_memory()?, request.weights(), ByteSize(caches));
    (weights.map_or(0, |weights| weights.0).saturating_add(caches.0) > room.0).then(|| {
        let weights = weights.map_or(String::new(), |weights| format!("weights of {weights} and "));
        format!(
            "{weights}caches of {caches} are more than the {room} of the devices: layers stay on the host (-ngl, --fit), or it fails to allocate"
        )
    })
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

impl At {
    /// The blocks, where they are too few for the states of all sequences.
    fn few_blocks(&self, settled: &Settled) -> Option<u64> {
        let blocks = self.predicted.num_blocks.filter(|_| self.predicted.state_page_bytes.is_some());
        blocks.filter(|blocks| *blocks < settled.least_blocks)
    }
}

fn too_few(sequences: u64, blocks: u64) -> String {
    format!(
        "max_num_seqs ({sequences}) exceeds available Mamba cache blocks ({blocks}). Each decode sequence requires one Mamba cache block, so CUDA graph capture cannot proceed. Please lower max_num_seqs to at most {blocks} or increase gpu_memory_utilization."
    )
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
pub(crate) fn longest(request: &PlanRequest, engine: EngineSpec, bytes: u64, most: u64) -> Option<u64> {
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
