//! The flags that stand above the budget file, one for each of its keys, made from the keys themselves.

use std::path::PathBuf;

use cacheplan::planner::size::TokenCount;
use cacheplan::planner::{BudgetKey, ByteSize, Engine, ModelCaches, Override, PlanRequest, StatedWeights, Values};
use clap::builder::{PossibleValue, PossibleValuesParser, ValueParser};
use clap::{Arg, ArgMatches, Command};

use crate::failure::Failure;
use crate::numbers::{number, whole};

/// The budget file and what stands above it.
#[derive(Clone)]
pub(crate) struct BudgetArgs {
    pub(crate) budget: Option<PathBuf>,
    overrides: Vec<Override>,
    /// Weights of which only the bits are stated, which take what the model says.
    bits: Option<StatedWeights>,
    /// Whether the length of sequences is to be found.
    finds_length: bool,
}

/// The key that can be left to the memory, and the word for that.
const LENGTH: (&str, &str) = ("max_seq_len", "auto");

/// The key that may be stated in bits of a weight.
const WEIGHTS: &str = "memory.weights";

/// What most people state, and short help shows.
const FIRST: [&str; 5] = ["max_seq_len", "max_batch_size", "dtypes.kv", "parallel.tp", "memory.weights"];

/// The heading of the flags outside the budget's sections.
const BUDGET: &str = "Budget (each flag stands above an environment variable, that above the file)";

/// The heading of the flags behind those of the budget.
pub(crate) const OWN: &str = "This command";

impl BudgetArgs {
    /// Flags that only tell an engine something are wrong where there is none.
    pub(crate) fn refuse_engine_flags(&self, instead: &str) -> Result<(), Failure> {
        let told = self.overrides.iter().find(|set| set.key.starts_with("engine."));
        let Some(flag) = told.and_then(Override::stated_by) else { return Ok(()) };
        Err(Failure::new(2, format!("{flag} tells an engine something; {instead}")))
    }

    /// The keys that flags set.
    pub(crate) fn overrides(&self) -> &[Override] {
        &self.overrides
    }

    /// Weights of which only the bits are stated.
    pub(crate) const fn bits(&self) -> Option<StatedWeights> {
        self.bits
    }

    /// The same with what a model's weights take of so many bits, as an engine has them.
    pub(crate) fn weighed(&self, model: &ModelCaches, engine: Option<Engine>) -> Result<Self, Failure> {
        let weighed = self.bits.map(|bits| weights_of(bits, model, engine)).transpose()?;
        Ok(Self { bits: None, ..self.with(weighed.as_slice()) })
    }

    /// All else.
    pub(crate) fn without_bits(&self) -> Self {
        Self { bits: None, ..self.clone() }
    }

    /// Bits of a weight say nothing where no model is asked.
    pub(crate) fn refuse_bits(&self) -> Result<(), Failure> {
        let said = "--weights: bits of a weight are a size of `plan` and `fit` alone; state the size that `cacheplan plan` says";
        if self.bits.is_some() { Err(Failure::new(2, said)) } else { Ok(()) }
    }

    /// Whether the longest sequences that fit are asked for.
    pub(crate) const fn finds_length(&self) -> bool {
        self.finds_length
    }

    /// The same with the length that was found.
    pub(crate) fn of_length(&self, tokens: u64) -> Self {
        let mut found = Self { finds_length: false, ..self.clone() };
        found.overrides.push(Override::by_flag(LENGTH.0, tokens.to_string(), "--max-seq-len auto"));
        found
    }

    /// The same with more above them.
    pub(crate) fn with(&self, more: &[Override]) -> Self {
        let mut with = self.clone();
        with.overrides.extend_from_slice(more);
        with
    }

    /// Nothing is searched for where the length is that of what is run or read.
    pub(crate) fn refuse_finding(&self) -> Result<(), Failure> {
        let stated = "--max-seq-len auto: only `cacheplan plan` finds the longest that fits; state here the number that it finds";
        if self.finds_length { Err(Failure::new(2, stated)) } else { Ok(()) }
    }
}

impl clap::Args for BudgetArgs {
    fn augment_args(command: Command) -> Command {
        let file = Arg::new("budget")
            .long("budget")
            .value_name("FILE")
            .value_parser(clap::value_parser!(PathBuf))
            .help("Budget file (TOML): memory, limits, dtypes; without one the limits alone size the pools")
            .help_heading(BUDGET);
        let flags = BudgetKey::all().iter().map(flag);
        // The heading of a section in the help lasts until the next.
        command.allow_negative_numbers(true).arg(file).args(flags).next_help_heading(OWN)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl clap::FromArgMatches for BudgetArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let (mut finds_length, mut bits) = (false, None);
        let overrides = BudgetKey::all().iter().filter_map(|key| {
            let value = matches.get_one::<String>(key.path)?.clone();
            if (key.path, value.as_str()) == LENGTH {
                finds_length = true;
                return None;
            }
            if key.path == WEIGHTS && value.parse::<ByteSize>().is_err() {
                bits = value.parse().ok();
                return None;
            }
            Some(Override::by_flag(key.path, value, key.flag))
        });
        let overrides = overrides.collect();
        Ok(Self { budget: matches.get_one("budget").cloned(), overrides, bits, finds_length })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// What the flags of a section are about; a section that has no words here is called by its name.
fn heading(section: &'static str) -> &'static str {
    match section {
        "memory" => "Memory of a device, [memory]",
        "dtypes" => "Element types, [dtypes]",
        "workload" => "Prompts, outputs and kept states, [workload]",
        "speculation" => "Speculation, [speculation]",
        "parallel" => "Ranks, [parallel]",
        "host" => "Host memory that caches are offloaded to, [host]",
        "disk" => "Files that prefixes are kept in, [disk]",
        "engine" => "What the engine of --as, or of compare, is told, [engine]",
        section => section,
    }
}

/// The flag of a key, whose value is the text that the budget file would have.
fn flag(key: &'static BudgetKey) -> Arg {
    let (value_name, parser) = match key.values {
        Values::Tokens(least, most) if key.path == LENGTH.0 => ("TOKENS|auto", ValueParser::new(length(least, most))),
        Values::Bytes if key.path == WEIGHTS => ("SIZE|BITS", ValueParser::new(weights)),
        values => parsed(values),
    };
    let arg = Arg::new(key.path)
        .long(key.flag.trim_start_matches('-'))
        .value_name(value_name)
        .value_parser(parser)
        .help(help(key))
        .hide_short_help(!FIRST.contains(&key.path))
        .help_heading(key.section().map_or(BUDGET, heading));
    match key.values {
        Values::Switch => {
            arg.num_args(0..=1).require_equals(true).default_missing_value("true").hide_possible_values(true)
        }
        _ => arg,
    }
}

/// What a flag's value is called and how it is read.
fn parsed(values: Values) -> (&'static str, ValueParser) {
    match values {
        Values::Count(least, most) => {
            let count = whole::<u64>(least..=most);
            ("N", ValueParser::new(move |text: &str| count(text).map(|count| count.to_string())))
        }
        Values::Tokens(least, most) => ("TOKENS", ValueParser::new(move |text: &str| tokens(text, least, most))),
        Values::Bytes => ("SIZE", ValueParser::new(|text: &str| text.parse().map(ByteSize::stated))),
        Values::Fraction => {
            ("SHARE", ValueParser::new(|text: &str| number::<f64>(text).map(|share| format!("{share:?}"))))
        }
        Values::Ratio => {
            ("RATIO", ValueParser::new(|text: &str| number::<f64>(text).map(|ratio| format!("{ratio:?}"))))
        }
        Values::DType => ("DTYPE", ValueParser::string()),
        Values::Choice(names) => {
            let names = names.iter().map(|(name, meaning)| PossibleValue::new(*name).help(*meaning));
            ("NAME", PossibleValuesParser::new(names).into())
        }
        Values::Switch => ("BOOL", PossibleValuesParser::new(["true", "false"]).into()),
        Values::Lengths => ("LENGTHS", ValueParser::new(lengths)),
    }
}

fn tokens(text: &str, least: u64, most: u64) -> Result<String, String> {
    match text.parse::<TokenCount>() {
        Ok(TokenCount(count)) if (least..=most).contains(&count) => Ok(count.to_string()),
        Ok(TokenCount(count)) => Err(format!("{count} is not in {least}..={most}")),
        Err(error) => Err(error.to_string()),
    }
}

/// What weights of so many bits take, as the flag says it.
pub(crate) fn weights_of(
    bits: StatedWeights,
    model: &ModelCaches,
    engine: Option<Engine>,
) -> Result<Override, Failure> {
    let size = PlanRequest::of(model.clone()).weights_as(bits, engine);
    let unknown = "--weights: the size of this model's own weights is not known, or they are quantised; state a size";
    let size = size.ok_or_else(|| Failure::new(2, unknown))?;
    Ok(Override::by_flag(WEIGHTS, size.stated(), "--weights"))
}

/// A size, exactly, or bits as they are written.
fn weights(text: &str) -> Result<String, String> {
    Ok(match text.parse()? {
        StatedWeights::Bytes(size) => size.stated(),
        StatedWeights::Bits(_) | StatedWeights::Gguf(_) => text.to_owned(),
    })
}

/// A number of tokens, or the word for the longest that fit.
fn length(least: u64, most: u64) -> impl Fn(&str) -> Result<String, String> + Clone {
    move |text: &str| if text == LENGTH.1 { Ok(text.to_owned()) } else { tokens(text, least, most) }
}

/// The length of sequences in commands that do not find one.
pub(crate) fn stated_length(arg: Arg) -> Arg {
    let key = BudgetKey::all().iter().find(|key| key.path == LENGTH.0);
    let stated = key.map_or_else(String::new, plain_help);
    arg.value_name("TOKENS").help(stated)
}

fn help(key: &BudgetKey) -> String {
    if key.path == LENGTH.0 {
        let help = key.help.trim_end_matches('.');
        return format!("{help}; auto: the longest that --max-batch-size of, or one, fit (default: {})", key.default);
    }
    plain_help(key)
}

fn plain_help(key: &BudgetKey) -> String {
    let help = key.help.trim_end_matches('.');
    match (key.values, key.default) {
        (Values::Choice(_), _) | (_, "not set") => help.to_owned(),
        (_, default) => format!("{help} (default: {default})"),
    }
}

/// A number of tokens, or a distribution as the budget file writes it.
fn lengths(text: &str) -> Result<String, String> {
    /// The largest count that a budget can hold.
    const MOST: u64 = 1 << 32;
    match text.parse::<u64>() {
        Ok(tokens @ 1..) if tokens <= MOST => Ok(text.to_owned()),
        _ if text.starts_with('{') => Ok(text.to_owned()),
        _ => Err(format!(
            "a number of tokens from 1 to {MOST}, or a distribution such as `{{ lognormal = {{ median = 300 }} }}`"
        )),
    }
}
