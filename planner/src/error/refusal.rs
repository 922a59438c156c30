//! Why an engine does not run a model, or not with what it is told.

use cacheplan_files::Shown;
use cacheplan_handlers::DType;
use thiserror::Error;

use crate::budget::key::BudgetKey;
use crate::engines::Version;

/// What an engine, or the model of it, refuses.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum EngineRefusal {
    /// The rules for a cache of the model were not read.
    #[error("{engine}: the rules for `{cache}` were not read; nothing is predicted rather than guessed", cache = Shown(.cache))]
    Unread {
        /// The engine.
        engine: &'static str,
        /// The cache.
        cache: String,
    },
    /// A latent that the engine multiplies out, collected as a latent.
    #[error("{engine} keeps a key and a value for every head of {model} instead of `{cache}`; plan with --as {engine}", model = Shown(.model), cache = Shown(.cache))]
    KeepsHeads {
        /// The engine.
        engine: &'static str,
        /// The model's type.
        model: String,
        /// The latent.
        cache: String,
    },
    /// A model type that the engine has no architecture for.
    #[error("{engine} {version} has no architecture for {model}", model = Shown(.model))]
    Architecture {
        /// The engine.
        engine: &'static str,
        /// Its version.
        version: String,
        /// The model's type.
        model: String,
    },
    /// A dtype that the engine keeps no keys and values in.
    #[error(
        "{engine} {version} keeps no keys and values in {dtype} (`dtypes.kv`, --kv-dtype); it takes the model's own and {}",
        listed(&.told.iter().map(|dtype| dtype.name()).collect::<Vec<_>>())
    )]
    KvDType {
        /// The engine.
        engine: &'static str,
        /// Its version.
        version: String,
        /// The dtype.
        dtype: DType,
        /// What it can be told.
        told: Vec<DType>,
    },
    /// An option that another engine has.
    #[error("{engine} has no `{path}` ({flag}), which tells {} something; leave it out", listed(takers))]
    NotConsumed {
        /// The engine.
        engine: &'static str,
        /// The key of the budget, `engine.context`.
        path: &'static str,
        /// Its flag.
        flag: &'static str,
        /// The engines that consume it.
        takers: Vec<&'static str>,
    },
    /// A value that the engine's version no longer knows.
    #[error("{engine} {version} has no `{path}` = \"{value}\"; {instead}")]
    Gone {
        /// The engine.
        engine: &'static str,
        /// Its version.
        version: String,
        /// The key of the budget.
        path: &'static str,
        /// The value.
        value: &'static str,
        /// What would do.
        instead: &'static str,
    },
    /// Layers of several kinds without the manager that serves them.
    #[error(
        "{engine} cannot keep layers of several kinds in one group; leave `engine.hybrid_kv_cache` (--hybrid-kv-cache) on"
    )]
    SeveralKinds {
        /// The engine.
        engine: &'static str,
    },
    /// A model that the engine does not divide into pipeline stages.
    #[error("{engine} does not divide {model} into pipeline stages; state --pp 1", model = Shown(.model))]
    Stages {
        /// The engine.
        engine: &'static str,
        /// The model's type.
        model: String,
    },
    /// A block that no kernel reads.
    #[error("{engine}: no kernel for `{cache}` reads blocks of {block} tokens; state a multiple of {multiple} as --block-size", cache = Shown(.cache))]
    Block {
        /// The engine.
        engine: &'static str,
        /// A cache that such blocks would hold.
        cache: String,
        /// What was stated.
        block: u64,
        /// What its kernels read multiples of.
        multiple: u64,
    },
    /// A dtype that no kernel of the device reads, as the engine says it.
    #[error("{engine} {version} would not start: {said} (`dtypes.kv`, --kv-dtype)", said = Shown(.said))]
    Kernel {
        /// The engine.
        engine: &'static str,
        /// Its version.
        version: Version,
        /// Its message.
        said: String,
    },
    /// What the engine ends with at its start, as it says it.
    #[error("{engine} {version} would not start: {said}", said = Shown(.said))]
    Start {
        /// The engine.
        engine: &'static str,
        /// Its version.
        version: Version,
        /// Its message.
        said: String,
    },
    /// A latent in two dtypes.
    #[error(
        "a latent is key and value at once, and {engine} does not start with it in two dtypes; state the same for both"
    )]
    LatentInTwoDtypes {
        /// The engine.
        engine: &'static str,
    },
    /// Rows of keys and values of two widths in two dtypes.
    #[error(
        "{engine}: keys and values of this model differ in width, so that what two dtypes take is not known; state the same for both"
    )]
    RowsInTwoDtypes {
        /// The engine.
        engine: &'static str,
    },
    /// A plan that no engine is asked about.
    #[error("the plan's scheme is replay, which widens convolutions as no engine does; plan with snapshots")]
    Replay,
    /// A log that says what cannot be.
    #[error("the log says that a block, a context or a step has 0 tokens")]
    EmptyBlock,
    /// A plan whose numbers no planner makes.
    #[error("the plan is damaged: {what}", what = Shown(.what))]
    Damaged {
        /// What is wrong.
        what: String,
    },
}

impl EngineRefusal {
    /// A key that the engine does not consume.
    pub(crate) fn not_consumed(engine: &'static str, path: &str, takers: Vec<&'static str>) -> Self {
        let known = BudgetKey::all().iter().find(|known| known.path == path);
        let (path, flag) = known.map_or(("engine", "[engine]"), |known| (known.path, known.flag));
        Self::NotConsumed { engine, path, flag, takers }
    }
}

fn listed(names: &[&str]) -> String {
    match names {
        [] => "no engine".into(),
        [one] => (*one).into(),
        [rest @ .., last] => format!("{} and {last}", rest.join(", ")),
    }
}
