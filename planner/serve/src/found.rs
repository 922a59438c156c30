//! What the engine makes of a command: its rules, asked for the least and for the most bytes that it may find.

mod cells;

use std::collections::BTreeMap;

use cacheplan_planner::engines::EnginePrediction;
use cacheplan_planner::error::Shortfall;
use cacheplan_planner::fit::AskedOf;
use cacheplan_planner::logs::failures::{NOTHING_LEFT, NOTHING_LEFT_OF_SHARE};
use cacheplan_planner::logs::{Fact, Logged};
use cacheplan_planner::plan::LedgerItem;
use cacheplan_planner::{ByteSize, EngineSpec, PlanError, PlanRequest};

use crate::answer::{Answer, Starts};
use crate::bisect::last;
use crate::cap::Cap;
use crate::error::ServeError;
use crate::launch::Launch;
use crate::question::{Limits, Models, Options, Placed, Question, Settled, running, slots_with_moved, ubatch};

/// The answer without changes.
pub(crate) fn answer_alone(launch: &Launch, models: &Models, options: &Options) -> Result<Answer, ServeError> {
    let question = Question::of(launch, options)?;
    let (question, settled) = question.settled(models)?;
    let found = Found::of(&question, &settled, options)?;
    let caps = found.caps(&settled);
    let capped_by = found.capped_by(&caps, &question, &settled);
    Ok(Answer { capped_by, caps, ..found.answer(launch, question, &settled)? })
}

/// What a command would do, without what caps it and what would change that, which take longer than all else.
///
/// # Errors
/// As [`answer`](crate::answer).
pub fn outcome(launch: &Launch, models: &Models, options: &Options) -> Result<Answer, ServeError> {
    let question = Question::of(launch, options)?;
    let (question, settled) = question.settled(models)?;
    Found::of(&question, &settled, options)?.answer(launch, question, &settled)
}

/// What a command asks the planner, and of which engine.
///
/// # Errors
/// As [`answer`](crate::answer).
pub fn request(launch: &Launch, models: &Models, options: &Options) -> Result<(EngineSpec, PlanRequest), ServeError> {
    let (question, settled) = Question::of(launch, options)?.settled(models)?;
    Ok((question.engine, settled.request))
}

/// The same, with the bytes for caches of an engine that divides none.
pub(crate) fn asked_of(launch: &Launch, models: &Models, options: &Options) -> Result<AskedOf, ServeError> {
    let (question, settled) = Question::of(launch, options)?.settled(models)?;
    let cache_bytes = match (&settled.placed, options.expected_sequences) {
        (Some(placed), _) => Some(cells::bytes(&settled.request, question.engine, placed)?),
        // What is expected must hold whatever it finds at its start.
        (None, Some(_)) => settled.request.cache_bytes(question.engine)?.map(|[least, ..]| least),
        (None, None) => None,
    };
    // What it serves the beginning of alone, by its slots or the model.
    let told = settled.request.config().budget.max_seq_len;
    let longest = [question.slot_tokens, told].into_iter().flatten().min();
    Ok(AskedOf { request: settled.request, cache_bytes, longest })
}

/// What the engine makes of the least and of the most bytes.
struct Found {
    engine: EngineSpec,
    bytes: Option<Logged>,
    low: End,
    high: End,
}

/// What it makes of so many bytes, and why it does not start with them.
struct End {
    at: Option<At>,
    lacks: Option<String>,
}

impl End {
    fn starts(&self) -> bool {
        self.at.is_some() && self.lacks.is_none()
    }
}

/// What it makes of so many bytes.
#[derive(Clone)]
struct At {
    max_seq_len: u64,
    predicted: EnginePrediction,
}

impl Found {
    fn of(question: &Question, settled: &Settled, options: &Options) -> Result<Self, ServeError> {
        let (engine, request) = (question.engine, &settled.request);
        if let Some(placed) = &settled.placed {
            let [low, high] = cells::ends(request, engine, placed, &settled.limits)?;
            return Ok(Self { engine, bytes: None, low, high });
        }
        let bytes = match options.cache_bytes {
            Some(bytes) => bytes,
            None => {
                let [low, _, high] = request.cache_bytes(engine)?.ok_or_else(|| question.without_device())?;
                Logged { low, high }
            }
        };
        // Whose bytes for caches are known has loaded its weights.
        let too_large = |request: &PlanRequest| too_large(request, engine).filter(|_| options.cache_bytes.is_none());
        let loads = settled.loaded.as_ref().and_then(too_large);
        let end = |bytes: u64, outside: Option<u64>| {
            if loads.is_some() {
                return Ok(End { at: None, lacks: loads.clone() });
            }
            let found = at(request, settled, engine, bytes).map_err(|error| question.without_counts(error))?;
            if let Ok(block) = found.as_ref().map(|at| at.predicted.block_size.unwrap_or(0)) {
                question.refuse_interval(block)?;
            }
            Ok::<End, ServeError>(match found {
                Ok(at) => {
                    let full = || too_full(settled, outside, at.unused(bytes));
                    End { lacks: at.lacks(settled, engine).or_else(full), at: Some(at) }
                }
                Err(shortfall) => {
                    let lacks = too_large(request).unwrap_or_else(|| refusal(request, settled, engine, &shortfall));
                    End { at: None, lacks: Some(lacks) }
                }
            })
        };
        let low = end(bytes.low, settled.outside.map(|outside| outside.most))?;
        let high = end(bytes.high, settled.outside.map(|outside| outside.least))?;
        Ok(Self { engine, bytes: Some(bytes), low, high })
    }

    /// Why it does not start, or with the least that it may find does not.
    fn reason(&self) -> Option<String> {
        let at_worst = || self.low.lacks.as_ref().map(|lacks| format!("at worst: {lacks}"));
        self.high.lacks.clone().or_else(at_worst)
    }

    fn starts(&self) -> Starts {
        match (self.low.starts(), self.high.starts()) {
            (true, true) => Starts::Yes,
            (false, true) => Starts::Maybe,
            _ => Starts::No,
        }
    }

    /// A number of the prediction, between both; 0 where it may not start, but of what only bytes decide.
    fn span(&self, of: impl Fn(&At) -> Option<u64>) -> Option<Logged> {
        let high = of(self.high.at.as_ref()?)?;
        let low = match &self.low.at {
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
        let length = self.span(|at| Some(at.max_seq_len)).unwrap_or(Logged::exact(limits.max_seq_len));
        // Where it does not start it logs none; one that is stated is what it is.
        let least = if length.low > 0 || length.high < limits.max_seq_len { length.low.max(1) } else { length.high };
        say(Fact::MaxSeqLen, Some(Logged { low: least.min(length.high), ..length }));
        say(Fact::MaxNumTokens, question.logged_step(limits).and_then(exact));
        say(Fact::CacheBytes, self.bytes);
        let makes_block = self.engine.engine.name() == "vllm";
        let has_states = |at: &At| at.predicted.state_page_bytes.is_some();
        let block = self.span(|at| at.predicted.block_size.filter(|_| !makes_block || has_states(at)));
        // Blocks are as long where none is allocated.
        say(Fact::TokensPerBlock, block.map(|block| if block.low == 0 { Logged::exact(block.high) } else { block }));
        say(Fact::NumBlocks, self.span(|at| at.predicted.num_blocks));
        say(Fact::Tokens, self.span(|at| at.predicted.tokens));
        say(Fact::WindowTokens, self.span(|at| at.predicted.window_tokens));
        let slots = |predicted: &EnginePrediction| {
            let running = running(question, limits, predicted);
            predicted.state_slots.map(|slots| slots_with_moved(question, limits, running, slots))
        };
        // Of all slots and the padding.
        let of_slots = |predicted: &EnginePrediction, bytes: Option<u64>| {
            let (all, divided) = (slots(predicted)?.checked_add(1)?, predicted.state_slots?.checked_add(1)?);
            u64::try_from(u128::from(bytes?) * u128::from(all) / u128::from(divided)).ok()
        };
        let states = |predicted: &EnginePrediction, bytes: Option<u64>| of_slots(predicted, bytes).or(bytes);
        say(Fact::StateSlots, self.span(|at| slots(&at.predicted)));
        say(Fact::KvBytes, self.span(|at| at.predicted.kv_bytes));
        say(Fact::KeyBytes, self.span(|at| at.predicted.kv_bytes?.checked_sub(at.predicted.value_bytes?)));
        say(Fact::ValueBytes, self.span(|at| at.predicted.value_bytes));
        let of_drafts = |predicted: &EnginePrediction| (predicted.draft_kv_bytes, predicted.draft_value_bytes);
        say(Fact::DraftKvBytes, self.span(|at| of_drafts(&at.predicted).0));
        say(Fact::DraftValueBytes, self.span(|at| of_drafts(&at.predicted).1));
        say(
            Fact::DraftKeyBytes,
            self.span(|at| {
                let (all, values) = of_drafts(&at.predicted);
                all?.checked_sub(values?)
            }),
        );
        say(Fact::SsmBytes, self.span(|at| states(&at.predicted, at.predicted.ssm_bytes)));
        say(Fact::ConvBytes, self.span(|at| states(&at.predicted, at.predicted.conv_bytes)));
        say(Fact::Concurrency, self.span(|at| at.predicted.concurrency.map(|times| (times * 100.0).round() as u64)));
        say(
            Fact::MaxBatchSize,
            self.span(|at| running(question, limits, &at.predicted)).or(limits.max_batch_size.and_then(exact)),
        );
        if self.engine.engine.name() == "llama.cpp" {
            say(Fact::Ubatch, exact(ubatch(question)));
        }
        facts
    }

    /// The least that it finds, as a question of its own.
    fn least(&self, settled: &Settled) -> Option<(PlanRequest, &At)> {
        let (at, bytes) = (self.low.at.as_ref()?, self.bytes?);
        Some((told(&settled.request, bytes.low, at.max_seq_len), at))
    }

    /// What keeps it from holding more.
    fn caps(&self, settled: &Settled) -> Vec<Cap> {
        match self.least(settled) {
            Some((_, at)) if Some(at.predicted.sequences) == settled.most_running => {
                vec![Cap::Running(at.predicted.sequences)]
            }
            Some((told, at)) if self.starts() != Starts::No || at.predicted.sequences == 0 => {
                Cap::of(&told, self.engine, at.predicted.sequences)
            }
            _ => self.bytes.map(|_| Cap::Bytes).into_iter().collect(),
        }
    }

    fn capped_by(&self, caps: &[Cap], question: &Question, settled: &Settled) -> String {
        let few_blocks = self.high.at.as_ref().is_some_and(|at| at.few_blocks(settled).is_some());
        match self.least(settled) {
            _ if self.starts() == Starts::No && few_blocks => "the blocks for states".to_owned(),
            _ if self.bytes.is_none() => self.cells_capped_by(question, settled),
            told => Cap::words(caps, question, told.as_ref().map(|(told, _)| told)),
        }
    }

    /// What keeps llama.cpp from more cells.
    fn cells_capped_by(&self, question: &Question, settled: &Settled) -> String {
        let cells = question.count("--ctx-size").filter(|cells| *cells > 0);
        let is_shared = settled.request.config().budget.engine.context.is_some();
        let length = self.span(|at| Some(at.max_seq_len)).map_or(0, |length| length.low);
        match (cells, question.slot_tokens) {
            (Some(_), Some(trained)) if !is_shared => format!("the {trained} tokens that the model was made for"),
            (Some(_), _) => "the cells that are stated".to_owned(),
            (None, _) if length < settled.limits.max_seq_len => "the memory that --fit finds".to_owned(),
            (None, _) => "the cells that it takes where --ctx-size states none".to_owned(),
        }
    }

    fn answer(self, launch: &Launch, question: Question, settled: &Settled) -> Result<Answer, ServeError> {
        let facts = self.facts(&question, &settled.limits);
        let starts = self.starts();
        let sequences = self.span(|at| Some(at.predicted.sequences));
        let holds_none = self.high.at.is_some() && sequences == Some(Logged::exact(0));
        let sequences = sequences.filter(|_| starts != Starts::No || holds_none);
        // It says what it made of its memory before it looks at its blocks.
        let fails = settled.placed.is_some() && starts == Starts::No;
        let dtype = self.high.at.as_ref().and_then(|at| at.predicted.kv_dtype);
        let mut lines =
            if self.high.at.is_some() && !fails { self.engine.start_lines(&facts, dtype) } else { Vec::new() };
        if facts.contains_key(&Fact::WindowTokens) {
            // Each of two pools has such a line of its own; the sum of both is the one that is known. What drafts has the last.
            let own = lines.iter().position(|line| line.starts_with("KV Cache is allocated"));
            own.into_iter().for_each(|own| drop(lines.remove(own)));
        }
        if let (Some(placed), Some(high)) = (&settled.placed, &self.high.at) {
            let ends = [self.low.at.as_ref().unwrap_or(high), high].map(|at| &at.predicted);
            lines = lines.into_iter().flat_map(|line| placed.lines(line, ends)).collect();
        }
        let is_stated = settled.request.config().budget.workload.is_some();
        let tokens_each = is_stated.then(|| settled.request.tokens_per_sequence()).transpose()?;
        let tokens_each = tokens_each.into_iter().chain(question.slot_tokens).min();
        let is_shared = settled.placed.is_some() && settled.request.config().budget.engine.context.is_some();
        let sharing = settled.limits.max_batch_size.filter(|slots| is_shared && *slots > 1);
        let mut notes = question.notes.clone();
        notes.extend(settled.request.notes());
        notes.extend(self.high.at.iter().flat_map(|at| at.predicted.notes.clone()));
        if let (Some(placed), Some(at)) = (&settled.placed, &self.high.at) {
            let context = cells::context(&settled.request, self.engine)?;
            notes.extend(placed.taken(&at.predicted, context.as_ref()));
        }
        Ok(Answer {
            engine: self.engine.engine.name(),
            version: self.engine.version_name(),
            model: question.model.clone(),
            command: launch.shown(),
            limits: settled.limits,
            starts,
            reason: self.reason(),
            facts,
            sequences,
            replicas: settled.request.config().budget.parallel.dp.into(),
            cautions: question.cautions,
            tokens_each,
            sharing,
            lines,
            offloads: settled.placed.as_ref().is_some_and(|placed| !placed.short.fails()),
            doubts_weights: settled.placed.as_ref().is_some_and(|placed| placed.doubts_weights),
            stated_by: settled.placed.as_ref().map_or("", Placed::stated_by),
            lacks_devices: settled.placed.as_ref().is_some_and(Placed::lacks_devices),
            capped_by: String::new(),
            caps: Vec::new(),
            changes: Vec::new(),
            notes,
            read: question.read,
        })
    }
}

/// What the engine makes of so many bytes; else what one sequence lacks.
fn at(
    request: &PlanRequest,
    settled: &Settled,
    engine: EngineSpec,
    bytes: u64,
) -> Result<Result<At, Box<Shortfall>>, ServeError> {
    let most = settled.most_running.unwrap_or(u64::MAX);
    let of = |length: u64| {
        let mut predicted = told(request, bytes, length).predict(engine)?;
        predicted.sequences = predicted.sequences.min(most);
        Ok(predicted)
    };
    let length = settled.limits.max_seq_len;
    match of(length) {
        Ok(predicted) => Ok(Ok(At { max_seq_len: length, predicted })),
        Err(error @ (PlanError::DoesNotFit(_) | PlanError::TooFew { .. })) => {
            let longest = if settled.fits_length { longest(request, engine, bytes, length) } else { None };
            match longest {
                Some(fits) => Ok(Ok(At { max_seq_len: fits, predicted: of(fits)? })),
                None => match error {
                    PlanError::DoesNotFit(shortfall) => Ok(Err(shortfall)),
                    error => Err(error.into()),
                },
            }
        }
        Err(error) => Err(error.into()),
    }
}

impl At {
    /// Why it does not start with what it made of its bytes.
    fn lacks(&self, settled: &Settled, engine: EngineSpec) -> Option<String> {
        if let Some(blocks) = self.few_blocks(settled) {
            return Some(too_few(settled.least_blocks, blocks));
        }
        let step = settled.limits.max_num_tokens;
        if let Some(block) = self.predicted.least_step.filter(|block| *block > step) {
            return Some(format!(
                "In Mamba cache align mode, block_size ({block}) must be <= max_num_batched_tokens ({step})."
            ));
        }
        let of_drafts = self.predicted.draft_kv_bytes.unwrap_or(0);
        let pages = self.predicted.kv_bytes.map(|bytes| bytes.saturating_add(of_drafts));
        if let (Some(room), Some(bytes)) = (settled.room, pages)
            && bytes > room
        {
            let [bytes, room] = [bytes, room].map(ByteSize);
            return Some(format!(
                "CUDA out of memory. Tried to allocate {bytes}: what is beside caches leaves {room} of the device"
            ));
        }
        let length = self.max_seq_len;
        // Of a length that it found itself it says so, and starts.
        (self.predicted.sequences == 0 && !settled.fits_length).then(|| match self.predicted.tokens {
            Some(tokens) if tokens < length => {
                format!("its pool of {tokens} tokens is smaller than one sequence of {length}: {} refuses each of that length", engine.engine)
            }
            _ => format!("it holds no sequence of {length} tokens"),
        })
    }

    /// Bytes for caches that none of its pools takes; none where it does not say what they take.
    fn unused(&self, bytes: u64) -> u64 {
        let EnginePrediction { kv_bytes, draft_kv_bytes, state_bytes, .. } = self.predicted;
        let EnginePrediction { speculation_bytes, speculation_conv_bytes, .. } = self.predicted;
        let pools = [kv_bytes, draft_kv_bytes, state_bytes, speculation_bytes, speculation_conv_bytes];
        let taken = pools.into_iter().flatten().reduce(u64::saturating_add);
        taken.map_or(0, |taken| bytes.saturating_sub(taken))
    }

    /// The blocks, where they are too few for the states of all sequences.
    fn few_blocks(&self, settled: &Settled) -> Option<u64> {
        let blocks = self.predicted.num_blocks.filter(|_| self.predicted.state_page_bytes.is_some());
        blocks.filter(|blocks| *blocks < settled.least_blocks)
    }
}

/// SGLang captures graphs in what is free then: outside its share, and what stated counts leave of that.
fn too_full(settled: &Settled, needed: Option<u64>, unused: u64) -> Option<String> {
    let (needed, room) = (needed?, settled.outside?.room.saturating_add(unused));
    (needed > room).then(|| {
        let [needed, room] = [needed, room].map(ByteSize);
        format!("Capture cuda graph failed: steps and graphs take {needed}, and --mem-fraction-static leaves {room}; set it to a smaller value")
    })
}

fn too_few(sequences: u64, blocks: u64) -> String {
    format!(
        "max_num_seqs ({sequences}) exceeds available Mamba cache blocks ({blocks}). Each decode sequence requires one Mamba cache block, so CUDA graph capture cannot proceed. Please lower max_num_seqs to at most {blocks} or increase gpu_memory_utilization."
    )
}

/// The same question where the engine has so many bytes for caches and sequences of such a length.
pub(crate) fn told(request: &PlanRequest, bytes: u64, length: u64) -> PlanRequest {
    request.changed(|budget| {
        budget.engine.cache_bytes = Some(ByteSize(bytes));
        budget.memory = None;
        budget.max_seq_len = Some(length);
    })
}

/// The longest sequence that so many bytes hold.
pub(crate) fn longest(request: &PlanRequest, engine: EngineSpec, bytes: u64, most: u64) -> Option<u64> {
    let fits = |length: u64| told(request, bytes, length).predict(engine).is_ok();
    Some(last(most.saturating_sub(1), fits)).filter(|longest| *longest > 0)
}

/// Weights that no device holds end before any cache.
fn too_large(request: &PlanRequest, engine: EngineSpec) -> Option<String> {
    let device = request.device()?.total_bytes;
    let lines = request.beside_caches(engine).ok()?;
    let weights = lines.iter().find(|line| line.name == LedgerItem::Weights)?;
    (weights.bytes.saturating_sub(weights.uncertain_bytes) > device).then(|| {
        let [weights, device] = [weights.bytes, device].map(ByteSize);
        format!("CUDA out of memory: it loads weights of {weights} on each device, which has {device}")
    })
}

/// Why it does not start, as it says it itself.
fn refusal(request: &PlanRequest, settled: &Settled, engine: EngineSpec, shortfall: &Shortfall) -> String {
    let Shortfall { needed, available: bytes, .. } = *shortfall;
    let gib = |bytes: u64| format!("{:.2}", bytes as f64 / f64::from(1 << 30));
    let length = settled.limits.max_seq_len;
    match engine.engine.name() {
        "vllm" if bytes == 0 => {
            format!("{NOTHING_LEFT}. Try increasing `gpu_memory_utilization` when initializing the engine.")
        }
        "vllm" => {
            let longest = longest(request, engine, bytes, length);
            let estimate = longest.map(|length| {
                format!("Based on the available memory, the estimated maximum model length is {length}. ")
            });
            format!(
                "To serve at least one request with the model's max seq len ({length}), ({} GiB KV cache is needed, which is larger than the available KV cache memory ({} GiB). {}Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine.",
                gib(needed),
                gib(bytes),
                estimate.unwrap_or_default()
            )
        }
        "sglang" => NOTHING_LEFT_OF_SHARE.into(),
        _ => format!("{} GiB hold no sequence of {length} tokens, which needs {} GiB", gib(bytes), gib(needed)),
    }
}
