//! Changes by which a command starts, or holds more, each of them asked anew.

use cacheplan_planner::engines::llama_cpp::CELLS;
use cacheplan_planner::logs::Fact;
use cacheplan_planner::{ByteSize, Devices, Engine};

use crate::answer::{Answer, Change, Starts};
use crate::bisect::last;
use crate::cap::Cap;
use crate::flags::parse::Parsed;
use crate::flags::table::flags;
use crate::found::{longest, outcome};
use crate::launch::Launch;
use crate::program::Program;
use crate::question::{Models, Options, Question};
use crate::remedy::Remedy;
use crate::said::Said;

/// The most changes that are shown.
const SHOWN: usize = 3;
/// Shares of a device for weights and caches that are tried of SGLang.
const SHARES: [&str; 6] = ["0.95", "0.93", "0.9", "0.88", "0.85", "0.8"];

/// What tells llama.cpp how it keeps keys, and values.
const KEYS: &str = "--cache-type-k";
const VALUES: &str = "--cache-type-v";

/// The flag that says whether prefixes are kept, and the changes by which they are and are not.
pub(crate) fn prefix_switch(engine: Engine) -> Option<(&'static str, Remedy, Remedy)> {
    const ON: &str = "--enable-prefix-caching";
    const OFF: &str = "--disable-radix-cache";
    match engine.name() {
        "vllm" => Some((ON, Remedy::Set(ON, String::new()), Remedy::Set("--no-enable-prefix-caching", String::new()))),
        "sglang" => Some((OFF, Remedy::Remove(OFF), Remedy::Set(OFF, String::new()))),
        _ => None,
    }
}

/// Changes that cost neither devices nor precision, with which an engine may hold more, and whether prefixes are reused with them: what
/// costs least first.
pub(crate) fn free(engine: Engine) -> Vec<(Vec<Remedy>, bool)> {
    let share = match engine.name() {
        "vllm" => Remedy::Set("--gpu-memory-utilization", "0.95".to_owned()),
        "sglang" => Remedy::Set("--mem-fraction-static", SHARES[2].to_owned()),
        _ => return Vec::new(),
    };
    let none = prefix_switch(engine).map(|(_, _, off)| [(vec![off.clone()], false), (vec![off, share.clone()], false)]);
    std::iter::once((vec![share], true)).chain(none.into_iter().flatten()).collect()
}

/// What is asked, and how it is answered as it stands.
pub(crate) struct Search<'a> {
    pub(crate) answer: &'a Answer,
    pub(crate) launch: &'a Launch,
    pub(crate) models: &'a Models,
    pub(crate) options: &'a Options,
}

/// Changes that are made together, with what they come to.
type Changed = (Vec<Remedy>, Answer);

impl Search<'_> {
    /// Those first that take no more devices, what is the cap before others, and what helps most. Where so many sequences are expected, those that hold them.
    pub(crate) fn changes(&self) -> Vec<Change> {
        let expected = self.options.expected_sequences.filter(|expected| self.answer.least() < *expected);
        let mut found = match expected {
            Some(expected) => self.reaching(expected),
            None => self.helpful(),
        };
        found.extend(self.fewer_idle());
        let raises_cap = |remedies: &[Remedy]| remedies.iter().any(|remedy| self.is_cap(remedy));
        found.sort_by_key(|(remedies, answer)| {
            let sequences = answer.sequences.map(|sequences| (sequences.low, sequences.high));
            let most = std::cmp::Reverse((raises_cap(remedies), sequences));
            (std::cmp::Reverse(answer.starts), self.takes_devices(remedies), most)
        });
        found.truncate(SHOWN);
        // Another question, and maybe the one that was meant.
        found.extend(expected.and_then(|expected| self.shorter(expected)));
        found.into_iter().map(|(remedies, answer)| self.change(&remedies, answer)).collect()
    }

    /// Single changes that help, the best of each flag.
    pub(crate) fn helpful(&self) -> Vec<Changed> {
        let rank = |answer: &Answer| (answer.starts, answer.least());
        // Of what only has to start the smallest change of a flag is shown.
        let most =
            |answer: &Answer| (answer.starts, if self.answer.starts == Starts::Yes { answer.least() } else { 0 });
        let mut best: Vec<Changed> = Vec::new();
        let helps = self.tried().into_iter().filter(|(_, other)| rank(other) > rank(self.answer));
        for (remedies, answer) in helps.map(|changed| self.uncapped(&changed).unwrap_or(changed)) {
            let same = |known: &&mut Changed| known.0.first().map(Remedy::flag) == remedies.first().map(Remedy::flag);
            match best.iter_mut().find(same) {
                // Of two that do as much the first is the smaller change.
                Some(known) if most(&answer) > most(&known.1) => *known = (remedies, answer),
                Some(_) => {}
                None => best.push((remedies, answer)),
            }
        }
        best
    }

    /// No more cells than llama.cpp gives its slots, which hold as much.
    fn fewer_idle(&self) -> Option<Changed> {
        let engine = self.engine().filter(|engine| engine.ranks_flag().is_none())?;
        let (each, slots) = (self.answer.tokens_each?, self.answer.limits.max_batch_size?);
        let of = |answer: &Answer| answer.facts.get(&Fact::KvBytes).map_or(0, |bytes| bytes.high);
        let fewer = Remedy::Set(engine.length_flag(), each.saturating_mul(slots).to_string());
        let (remedies, answer) = self.outcome(&[fewer])?;
        let is_as_much = answer.starts >= self.answer.starts && answer.sequences == self.answer.sequences;
        (is_as_much && answer.length() == self.answer.length() && of(&answer) < of(self.answer))
            .then_some((remedies, answer))
    }

    /// A change that holds all that the command lets it, with as many more as it holds then.
    fn uncapped(&self, (remedies, answer): &Changed) -> Option<Changed> {
        let engine = self.engine().filter(|engine| engine.ranks_flag().is_some())?;
        let flag = engine.sequences_flag();
        let most = answer.limits.max_batch_size?;
        let is_stated = self.program().is_some_and(|(_, parsed)| parsed.settings.contains_key(flag));
        let is_capped = answer.sequences.is_some_and(|sequences| sequences.low == most);
        if !is_stated || !is_capped || remedies.iter().any(|remedy| remedy.flag() == flag) {
            return None;
        }
        let parts = self.parts();
        let told = |most: u64| {
            let most = Remedy::Set(flag, most.saturating_mul(parts).to_string());
            self.outcome(&[remedies.clone(), vec![most]].concat())
        };
        let held = |most: u64| told(most).and_then(|(_, answer)| answer.sequences).map_or(0, |all| all.low);
        // What is captured for many takes what some of them would be held in: the most of which it holds all lies between.
        let mut holds = most;
        let mut fails = most.saturating_mul(2);
        while holds < fails && held(fails) == fails {
            (holds, fails) = (fails, fails.saturating_mul(2));
        }
        holds = holds.max(held(fails).min(fails - 1));
        while fails - holds > 1 {
            let middle = holds + (fails - holds) / 2;
            let found = held(middle);
            if found >= middle { holds = middle } else { (holds, fails) = (holds.max(found), middle) }
        }
        let changed = (holds > most).then(|| told(holds)).flatten()?;
        (changed.1.least() > answer.least()).then_some(changed)
    }

    /// The fewest changes that hold so many sequences as long as asked for: one, else two; of those on the same devices, and of
    /// others.
    fn reaching(&self, expected: u64) -> Vec<Changed> {
        let reaches = |(_, other): &Changed| {
            other.least() >= expected && other.limits.max_seq_len >= self.answer.limits.max_seq_len
        };
        let tried = self.tried();
        let (alone, others): (Vec<Changed>, Vec<Changed>) = tried.into_iter().partition(reaches);
        let singles: Vec<Remedy> = others.into_iter().flat_map(|(remedies, _)| remedies).collect();
        let pairs = singles.iter().enumerate().flat_map(|(at, one)| {
            singles[at + 1..]
                .iter()
                .filter(move |other| other.flag() != one.flag())
                .map(move |other| vec![one.clone(), other.clone()])
        });
        let (dearer, same): (Vec<_>, Vec<_>) = pairs.partition(|pair| self.takes_devices(pair));
        let (more, mut found): (Vec<Changed>, Vec<Changed>) =
            alone.into_iter().partition(|(remedies, _)| self.takes_devices(remedies));
        let of = |pairs: Vec<Vec<Remedy>>| pairs.into_iter().filter_map(|pair| self.outcome(&pair)).filter(reaches);
        if found.is_empty() {
            found = of(same).collect();
        }
        match more.is_empty() {
            true if found.is_empty() => of(dearer).collect(),
            _ => found.into_iter().chain(more).collect(),
        }
    }

    /// The longest sequences of which it holds so many.
    fn shorter(&self, expected: u64) -> Option<Changed> {
        const STEP: u64 = 256;
        let engine = self.engine().filter(|engine| engine.ranks_flag().is_some())?;
        let limits = self.answer.limits;
        let told = |steps: u64| {
            let changed = self.outcome(&[Remedy::Set(engine.length_flag(), (steps * STEP).to_string())]);
            changed.filter(|(_, answer)| answer.least() >= expected)
        };
        if limits.max_batch_size.is_some_and(|most| most.saturating_mul(self.answer.replicas) < expected) {
            return None;
        }
        let most = last(limits.max_seq_len.div_ceil(STEP).saturating_sub(1), |steps| told(steps).is_some());
        Some(most).filter(|steps| *steps > 0).and_then(told)
    }

    fn takes_devices(&self, remedies: &[Remedy]) -> bool {
        let ranks = self.engine().and_then(Engine::ranks_flag);
        remedies.iter().any(|remedy| Some(remedy.flag()) == ranks)
    }

    /// Single changes with what they come to.
    fn tried(&self) -> Vec<Changed> {
        let mut seen: Vec<Remedy> = Vec::new();
        for remedy in self.tries() {
            if !seen.contains(&remedy) {
                seen.push(remedy);
            }
        }
        seen.into_iter().filter_map(|remedy| self.outcome(&self.whole(remedy))).collect()
    }

    /// GPUs of a node: as many as are named, or as a usual one has.
    fn node(&self) -> u32 {
        self.options.devices.as_ref().map_or(0, Devices::count).max(Devices::USUAL_NODE)
    }

    /// A change with what belongs to it: to keys' dtype that of values, to ranks the nodes that they need where they are more than one
    /// has.
    fn whole(&self, remedy: Remedy) -> Vec<Remedy> {
        const NODES: &str = "--nnodes";
        let nodes = || {
            let (Program { engine, .. }, parsed) = self.program()?;
            let number = |flag: &str| u64::try_from(parsed.settings.get(flag)?.whole()?).ok();
            let Remedy::Set(flag, ranks) = &remedy else { return None };
            let ranks = ranks.parse::<u64>().ok().filter(|_| Some(*flag) == engine.engine.ranks_flag())?;
            let stages = engine.engine.stages_flag().and_then(number).unwrap_or(1);
            let nodes = ranks.saturating_mul(stages).div_ceil(self.node().into());
            (nodes > number(NODES).unwrap_or(1)).then(|| Remedy::Set(NODES, nodes.to_string()))
        };
        let more = match &remedy {
            Remedy::Set(KEYS, dtype) => Some(Remedy::Set(VALUES, dtype.clone())),
            _ => nodes(),
        };
        std::iter::once(remedy).chain(more).collect()
    }

    fn program(&self) -> Option<(Program, Parsed)> {
        let program = Program::of(self.launch, self.options.version.as_deref()).ok()?;
        let known = flags(program.engine.engine, program.engine.version);
        let parsed = Said::of(self.launch, &program, &known).ok()?.parsed;
        Some((program, parsed))
    }

    /// Among how many replicas the sequences are divided that the command states.
    fn parts(&self) -> u64 {
        Question::of(self.launch, self.options).map_or(1, |question| question.attention_replicas())
    }

    fn engine(&self) -> Option<Engine> {
        self.program().map(|(program, _)| program.engine.engine)
    }

    /// What the command with these changes comes to; more ranks have more devices.
    fn outcome(&self, remedies: &[Remedy]) -> Option<Changed> {
        let mut launch = self.launch.changed(remedies, self.options.version.as_deref())?;
        let mut options = self.options.clone();
        if self.takes_devices(remedies) {
            (launch.gpus, launch.nodes, launch.group_gpus) = (None, None, None);
            let node = self.node();
            options.devices = options.devices.map(|devices| devices.times(node));
        }
        Some((remedies.to_vec(), outcome(&launch, self.models, &options).ok()?))
    }

    fn is_cap(&self, remedy: &Remedy) -> bool {
        let flag = |cap: &Cap| match cap {
            Cap::Sequences => self.engine().is_some_and(|engine| remedy.flag() == engine.sequences_flag()),
            Cap::Running(_) => {
                self.engine().is_some_and(|engine| remedy.flag() == Question::running_flag(engine.name()))
            }
            Cap::Slots => remedy.flag() == "--max-mamba-cache-size",
            Cap::Tokens => remedy.flag() == "--max-total-tokens",
            Cap::Blocks => remedy.flag() == "--num-gpu-blocks-override",
            Cap::Bytes => false,
        };
        self.answer.caps.iter().any(flag)
    }

    fn change(&self, remedies: &[Remedy], answer: Answer) -> Change {
        let said: Vec<String> = remedies.iter().map(|remedy| self.said(remedy)).collect();
        let flag = self.engine().and_then(Engine::ranks_flag).unwrap_or_default();
        let stated = self.program().and_then(|(_, parsed)| u64::try_from(parsed.settings.get(flag)?.whole()?).ok());
        let more = remedies.iter().find_map(|remedy| match remedy {
            Remedy::Set(name, ranks) if *name == flag => Some(ranks.parse::<u64>().ok()? / stated.unwrap_or(1).max(1)),
            _ => None,
        });
        let more = more.map_or(String::new(), |times| format!(", on {times} times the devices"));
        let slow =
            if answer.offloads && !self.answer.offloads { ", with layers on the CPU, which is slow" } else { "" };
        let bytes = |answer: &Answer| answer.facts.get(&Fact::KvBytes).map_or(0, |bytes| bytes.high);
        let is_idle = self.engine().is_some_and(|engine| engine.ranks_flag().is_none());
        let is_as_much = is_idle && (answer.starts, answer.sequences) == (self.answer.starts, self.answer.sequences);
        let saves = bytes(self.answer).checked_sub(bytes(&answer)).filter(|saved| is_as_much && *saved > 0);
        Change {
            change: said.join(" and ") + &more + slow,
            tokens_each: Some(answer.length()).filter(|length| *length != self.answer.length()),
            saves: saves.map(ByteSize).filter(|_| answer.length() == self.answer.length()),
            command: answer.command,
            starts: answer.starts,
            sequences: answer.sequences,
        }
    }

    /// A change in words, with what stands there now.
    fn said(&self, remedy: &Remedy) -> String {
        let limits = self.answer.limits;
        let now = |flag: &str| {
            let (Program { engine, .. }, parsed) = self.program()?;
            let number = match flag {
                // Of all slots together.
                "--ctx-size" => None,
                _ if flag == engine.engine.length_flag() => Some(limits.max_seq_len),
                _ if flag == engine.engine.sequences_flag() => limits.max_batch_size.filter(|_| self.parts() == 1),
                "--max-num-batched-tokens" => Some(limits.max_num_tokens),
                _ => None,
            };
            // What is usual of a mode depends on whether prefixes are kept.
            if flag == "--mamba-cache-mode" && !parsed.settings.contains_key(flag) {
                return None;
            }
            let usual = || flags(engine.engine, engine.version).into_iter().find(|known| known.name == flag)?.default;
            let written = parsed.settings.get(flag).map(|setting| setting.value().to_owned());
            number.map(|number| number.to_string()).or(written).or_else(|| usual().map(str::to_owned))
        };
        match remedy {
            Remedy::Set(flag, value) => match now(flag).filter(|now| !now.is_empty()) {
                Some(now) => format!("{flag} {value}, not {now}"),
                None => format!("{flag} {value}").trim_end().to_owned(),
            },
            Remedy::Remove(flag) => format!("without {flag}"),
            Remedy::Rename(from, to) => format!("{to}, not {from}"),
            Remedy::Drop(word) => format!("without {word}"),
        }
    }

    fn tries(&self) -> Vec<Remedy> {
        let Some((Program { engine, .. }, parsed)) = self.program() else { return Vec::new() };
        let (name, answer) = (engine.engine.name(), self.answer);
        let (length, batch) = (engine.engine.length_flag(), engine.engine.sequences_flag());
        let number = |flag: &str| u64::try_from(parsed.settings.get(flag)?.whole()?).ok();
        let Some(tp) = engine.engine.ranks_flag() else { return self.fewer_cells(number(length).unwrap_or(0), length) };
        let ranks = number(tp).unwrap_or(1);
        let mut tries: Vec<Remedy> = [2, 4].map(|times| Remedy::Set(tp, (times * ranks).to_string())).into();
        let limits = answer.limits;
        if answer.starts == Starts::Yes {
            tries.push(Remedy::Set(length, (limits.max_seq_len / 2).max(1).to_string()));
        } else {
            tries.extend(self.fewer(length, batch));
            // Each row of a batch has a slot for its states there, whether it runs or not.
            let rows = limits.max_batch_size.filter(|_| name == "tensorrt-llm");
            let halves = std::iter::successors(rows, |rows| (*rows > 1).then_some(rows / 2)).skip(1);
            tries.extend(halves.map(|rows| Remedy::Set(batch, rows.to_string())));
        }
        let expected = self.options.expected_sequences.unwrap_or(0);
        // As the flag says them: of replicas of the attention all together, of others each.
        let parts = self.parts();
        let most = limits.max_batch_size.unwrap_or(u64::MAX).saturating_mul(parts);
        let expected_each = expected.div_ceil((answer.replicas / parts).max(1));
        if answer.caps.contains(&Cap::Sequences) || most < expected_each {
            tries.push(Remedy::Set(batch, most.saturating_mul(2).max(expected_each).to_string()));
        }
        if let Some(slots) = number("--max-mamba-cache-size").filter(|_| answer.caps.contains(&Cap::Slots)) {
            let more = [slots.saturating_add(8), slots.saturating_add(slots / 4), slots.saturating_mul(2)];
            tries.extend(more.map(|slots| Remedy::Set("--max-mamba-cache-size", slots.to_string())));
        }
        for (cap, flag) in [(Cap::Tokens, "--max-total-tokens"), (Cap::Blocks, "--num-gpu-blocks-override")] {
            tries.extend(answer.caps.contains(&cap).then_some(Remedy::Remove(flag)));
        }
        let is_running = |cap: &Cap| matches!(cap, Cap::Running(_));
        tries.extend(answer.caps.iter().any(is_running).then(|| Remedy::Remove(Question::running_flag(name))));
        // A step that has no room for the block that is aligned to states.
        let block = answer.facts.get(&Fact::TokensPerBlock).map_or(0, |block| block.high);
        if name == "vllm" && block > limits.max_num_tokens {
            tries.push(Remedy::Set("--max-num-batched-tokens", block.to_string()));
        }
        match name {
            "vllm" => tries.extend([
                Remedy::Set("--kv-cache-dtype", "fp8".into()),
                Remedy::Set("--gpu-memory-utilization", "0.95".into()),
                Remedy::Set("--max-num-batched-tokens", (limits.max_num_tokens / 2).max(1).to_string()),
                Remedy::Remove("--kv-cache-memory-bytes"),
                // Fewer states are kept for reuse.
                Remedy::Set("--mamba-cache-mode", "align".into()),
                Remedy::Remove("--enable-prefix-caching"),
            ]),
            "sglang" => {
                tries.push(Remedy::Set("--kv-cache-dtype", "fp8_e4m3".into()));
                let shares = if answer.starts == Starts::Yes { &SHARES[2..3] } else { &SHARES[..] };
                tries.extend(shares.iter().map(|share| Remedy::Set("--mem-fraction-static", (*share).to_owned())));
            }
            _ => {}
        }
        // Where it keeps prefixes by default.
        tries.extend(self.engine().filter(|_| name == "vllm").and_then(prefix_switch).map(|(_, _, off)| off));
        // Other weights are another model, which is offered where this one is too large.
        let is_short = answer.starts != Starts::Yes || answer.least() < expected;
        if is_short
            && self.models.model.is_in_full()
            && !parsed.settings.contains_key("--quantization")
            && name != "tensorrt-llm"
        {
            tries.push(Remedy::Set("--quantization", "fp8".into()));
        }
        tries
    }

    /// The most cells of those stated of llama.cpp with which it starts, all of them in 8 bits, or layers on the host as it finds them to fit.
    fn fewer_cells(&self, cells: u64, length: &'static str) -> Vec<Remedy> {
        if self.answer.starts == Starts::Yes {
            return Vec::new();
        }
        // As many as are surely allocated, in steps in which every slot has whole ones, and no more than the model reads.
        let slots = self.answer.limits.max_batch_size.unwrap_or(1).max(1);
        let step = CELLS.saturating_mul(slots);
        let most = self.answer.tokens_each.map_or(cells, |each| each.saturating_mul(slots).min(cells)) / step;
        let of = |steps: u64| Remedy::Set(length, (steps * step).to_string());
        let starts = |steps: u64| self.outcome(&[of(steps)]).is_some_and(|(_, answer)| answer.starts == Starts::Yes);
        let fewer = Some(last(most, starts)).filter(|steps| *steps > 0).map(of);
        let narrow = Remedy::Set(KEYS, "q8_0".to_owned());
        fewer.into_iter().chain([narrow, Remedy::Remove("--n-gpu-layers")]).collect()
    }

    /// Fewer sequences or tokens, with which it starts.
    fn fewer(&self, length: &'static str, batch: &'static str) -> Vec<Remedy> {
        let (answer, limits) = (self.answer, self.answer.limits);
        // A block for the state of each sequence.
        let blocks = answer.facts.get(&Fact::NumBlocks).filter(|blocks| blocks.low > 0);
        let blocks = blocks.filter(|blocks| limits.max_batch_size.is_some_and(|most| most > blocks.low));
        let mut tries: Vec<Remedy> =
            blocks.map(|blocks| Remedy::Set(batch, blocks.low.to_string())).into_iter().collect();
        let question = Question::of(self.launch, self.options).and_then(|question| question.settled(self.models));
        if let (Ok((question, settled)), Some(bytes)) = (question, answer.facts.get(&Fact::CacheBytes)) {
            let longest = |bytes: u64| longest(&settled.request, question.engine, bytes, limits.max_seq_len);
            tries.extend(
                [bytes.low, bytes.low.midpoint(bytes.high), bytes.high]
                    .into_iter()
                    .filter_map(longest)
                    .map(|fits| Remedy::Set(length, fits.to_string())),
            );
        }
        tries
    }
}
