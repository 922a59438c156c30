//! Why there is no plan.

mod refusal;

use std::fmt;

use cacheplan_files::Shown;
use cacheplan_handlers::Kind;
use cacheplan_transforms::{PassError, ResourceError};

use thiserror::Error;

use crate::budget::{BudgetError, Origin};
use crate::plan::LedgerLine;
use crate::size::ByteSize;

pub use refusal::EngineRefusal;

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The budget does not hold one sequence.
    #[error(transparent)]
    DoesNotFit(Box<Shortfall>),
    /// A stated count with which an engine serves no sequence, whatever its bytes.
    #[error("{engine}: {said}", said = Shown(.said))]
    TooFew {
        /// The engine.
        engine: &'static str,
        /// Which count, and what it would have to hold.
        said: String,
    },
    /// The grouping policy refuses the resources.
    #[error("{shown}", shown = Shown(.0))]
    Grouping(String),
    /// The budget contradicts itself or the request.
    #[error("{shown}", shown = Shown(.0))]
    Budget(String),
    /// Sizes of groups of ranks that do not go with each other.
    #[error(transparent)]
    Stated(Box<BudgetError>),
    /// Ranks over which the model cannot be divided.
    #[error("{shown}", shown = Shown(.0))]
    Layout(String),
    /// A state that the scheme `replay` cannot move on, since nobody says what its steps take.
    #[error(
        "`{resource}` of `{node}` is a {kind} whose recurrence is not known, so that its inputs cannot be kept and replayed; set `speculation.scheme = \"snapshots\"`", resource = Shown(.resource), node = Shown(.node), kind = Shown(.kind))]
    NoReplay {
        /// The state's name.
        resource: String,
        /// The node that keeps it, `layers.3.mixer`.
        node: String,
        /// What it is for.
        kind: Kind,
    },
    /// A key that nothing of the plan follows from.
    #[error("{why}")]
    Unconsumed {
        /// The key, or the section of keys.
        key: &'static str,
        /// Why not, with the key as it is stated.
        why: String,
    },
    /// A cache mode of latents, of a model that keeps none.
    #[error(
        "`mla_cache_mode = \"{mode}\"` says how latents of multi-head latent attention are kept, and a {model_type} has none; leave the key out", model_type = Shown(.model_type))]
    NoLatents {
        /// What was asked for.
        mode: &'static str,
        /// The model's type.
        model_type: String,
    },
    /// An engine does not run this model, or not with what it is told.
    #[error(transparent)]
    Engine(#[from] EngineRefusal),
    /// A number of ranks that is not the number of devices.
    #[error("{shown}", shown = Shown(.0))]
    Devices(String),
    /// A line that is stated and was measured too.
    #[error("`{key}` is stated beside a profiled forward (--measurement), which has measured that; leave one out")]
    Measured {
        /// The key.
        key: &'static str,
    },
    /// A key of the budget that is what a fit looks for.
    #[error(
        "{}`{key}` is what fit looks for; leave it out: how long, how many and on which devices is asked beside the budget",
        origin.as_ref().map(|origin| format!("{}: ", Shown(origin))).unwrap_or_default()
    )]
    Sought {
        /// The key.
        key: &'static str,
        /// Who stated it, where that is known.
        origin: Option<Origin>,
    },
    /// More sequences than the budget holds of any length.
    #[error("{} do not fit, however short they are", crate::size::sequences(*asked))]
    TooMany {
        /// What was asked for.
        asked: u64,
    },
    /// More sequences than a step has tokens for, however short they are.
    #[error(
        "{} do not run at once, however short they are: `max_num_tokens` is {max_num_tokens}, of which a step serves {held}{}",
        crate::size::sequences(*asked), change.iter().map(|change| format!("\n  try {change}")).collect::<String>()
    )]
    SmallStep {
        /// What was asked for.
        asked: u64,
        /// How many a step serves.
        held: u64,
        /// Tokens of a step.
        max_num_tokens: u64,
        /// The step that would do, as it would be stated, if one does.
        change: Option<String>,
    },
    /// A pipeline stage that there is not.
    #[error("there is no stage {stage}; the stages are 0 to {last}")]
    NoStage {
        /// What was asked for.
        stage: u32,
        /// The last one.
        last: u32,
    },
    /// A graph whose caches cannot be collected.
    #[error(transparent)]
    Graph(#[from] PassError),
    /// A cache that is stated beside others of its name.
    #[error(transparent)]
    Resource(#[from] ResourceError),
    /// A product of counts and bytes above 64 bits.
    #[error("pool `{pool}` would need more than {} bytes; lower max_seq_len or max_batch_size", u64::MAX, pool = Shown(.pool))]
    TooLarge {
        /// The pool's name.
        pool: String,
    },
}

/// What is missing, and where.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "does not fit: {} of {max_seq_len} tokens need {} of caches, {}; short of {} ({shortfall} bytes), most of it `{capped_by}`{}",
    crate::size::sequences(*sequences), ByteSize(*needed), there(*available, overdrawn.as_ref()), ByteSize(*shortfall), tries(suggestions)
)]
pub struct Shortfall {
    /// Sequences that were asked for.
    pub sequences: u64,
    /// Their length.
    pub max_seq_len: u64,
    /// Bytes that the caches need at least.
    pub needed: u64,
    /// Bytes that the budget leaves for them.
    pub available: u64,
    /// `needed - available`, or more where a fraction applies or what is there besides caches takes too much.
    pub shortfall: u64,
    /// The pool or ledger line that needs the most.
    pub capped_by: String,
    /// What takes more than the whole budget before there is any cache.
    pub overdrawn: Option<Overdrawn>,
    /// Changes that would make it fit, each tried.
    pub suggestions: Vec<Suggestion>,
}

/// Bytes besides caches that are more than the budget allows in all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overdrawn {
    /// Bytes that the budget allows for everything.
    pub allowed: u64,
    /// What takes more than that.
    pub lines: Vec<LedgerLine>,
}

impl Overdrawn {
    /// The line that takes the most.
    pub(crate) fn largest(&self) -> String {
        self.lines.iter().max_by_key(|line| line.bytes).map_or_else(String::new, |line| line.name.to_string())
    }

    /// Bytes of all lines.
    pub fn taken(&self) -> u64 {
        self.lines.iter().fold(0, |sum, line| sum.saturating_add(line.bytes))
    }
}

/// One change to the budget and what it would give.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suggestion {
    /// The change, as it would be stated: `max_seq_len = 2048`, or `--max-seq-len 2048` where flags state the budget.
    pub change: String,
    /// Sequences that run at once with it, over all replicas.
    pub sequences: u64,
    /// Bytes that its caches take on each device.
    pub bytes: u64,
}

impl fmt::Display for Suggestion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sequences = crate::size::sequences(self.sequences);
        write!(f, "{}: {sequences}, {} of caches", self.change, ByteSize(self.bytes))
    }
}

fn there(available: u64, overdrawn: Option<&Overdrawn>) -> String {
    let Some(overdrawn) = overdrawn else { return format!("{} are there", ByteSize(available)) };
    let lines: Vec<String> =
        overdrawn.lines.iter().map(|line| format!("{} {}", line.name, ByteSize(line.bytes))).collect();
    let (taken, allowed) = (ByteSize(overdrawn.taken()), ByteSize(overdrawn.allowed));
    format!("but {} take {taken} of the {allowed} allowed", lines.join(", "))
}

fn tries(suggestions: &[Suggestion]) -> String {
    suggestions.iter().map(|suggestion| format!("\n  try {suggestion}")).collect()
}

impl PlanError {
    /// The key that nothing consumes, where that is what is wrong.
    #[must_use]
    pub const fn unconsumed(&self) -> Option<&'static str> {
        match self {
            Self::Unconsumed { key, .. } => Some(key),
            Self::NoLatents { .. } => Some("mla_cache_mode"),
            _ => None,
        }
    }

    /// The exit code of a command that ends with this error: 2 where it names what there is not, 3 where the budget is too
    /// small or an engine would not start, 4 where a model or an engine has not, or nobody read, what is asked, else 1.
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::DoesNotFit(_) | Self::TooMany { .. } | Self::SmallStep { .. } | Self::TooFew { .. } => 3,
            Self::Engine(EngineRefusal::Start { .. }) => 3,
            Self::Engine(EngineRefusal::NotConsumed { .. } | EngineRefusal::Gone { .. }) => 1,
            Self::Engine(_) | Self::Graph(_) | Self::Resource(_) => 4,
            Self::Stated(error) => error.exit_code(),
            Self::Devices(_) | Self::Measured { .. } | Self::Sought { .. } | Self::NoStage { .. } => 2,
            _ => 1,
        }
    }
}
