//! What the books refuse, and why.

use std::fmt;

use cacheplan_files::Shown;
use thiserror::Error;

use super::ids::{BlockId, SequenceId, SlotId, SlotRole};
use crate::prefix::{PrefixError, Reuse};

/// Says what an operation has no room for. Something that makes way, or a sequence that ends, helps.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{of}: {needed} needed, {free} of {capacity} free; {}", of.remedy())]
pub struct Lack {
    /// What is scarce.
    pub of: Scarce,
    /// How much the operation needs.
    pub needed: u64,
    /// What is free, or would become free by it.
    pub free: u64,
    /// All there is.
    pub capacity: u64,
}

/// Units that an operation may lack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scarce {
    /// Blocks of a paged pool.
    Blocks {
        /// Its number among the paged pools.
        paged: usize,
        /// Its id.
        pool: String,
    },
    /// Slots of a role.
    Slots(SlotRole),
    /// Bytes of the host tier.
    HostBytes,
}

impl fmt::Display for Scarce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Blocks { pool, .. } => write!(f, "pool `{pool}` lacks blocks"),
            Self::Slots(role) => write!(f, "no {role} slot is left"),
            Self::HostBytes => f.write_str("the host tier lacks bytes"),
        }
    }
}

impl Scarce {
    const fn remedy(&self) -> &'static str {
        match self {
            Self::Blocks { .. } => "finish or preempt a sequence, or plan a larger pool",
            Self::Slots(SlotRole::Live) => "finish or preempt a sequence, or plan a larger max_batch_size",
            Self::Slots(SlotRole::Checkpoint) => "release one, or plan more checkpoints",
            Self::HostBytes => "finish a sequence, or plan a larger host tier",
        }
    }
}

/// What functions of the books return.
pub(crate) type Result<T, E = BookError> = std::result::Result<T, E>;

/// Why the books did not do what they were asked. Nothing has changed when one of these is returned.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum BookError {
    /// There is no room.
    #[error(transparent)]
    Lack(#[from] Lack),
    /// Offloading in a plan without a host tier.
    #[error("the plan has no host tier; state `[host] bytes` in the budget")]
    NoHostTier,
    /// A second prefix cache beside one whose host memory is still there.
    #[error("{bytes} bytes of the host tier are set aside for a prefix cache already; drop its host memory first")]
    HostSetAside {
        /// What the first one has.
        bytes: u64,
    },
    /// A handle of a sequence that was finished.
    #[error("{0} was finished; its handle is stale")]
    StaleSequence(SequenceId),
    /// A handle that another manager made.
    #[error("{0} belongs to another manager")]
    ForeignSequence(SequenceId),
    /// A sequence that is in another state than the operation needs.
    #[error("{sequence} is {found}; the operation needs one that is {expected}")]
    WrongState {
        /// The sequence.
        sequence: SequenceId,
        /// Its state, in words.
        found: &'static str,
        /// What the operation needs, in words.
        expected: &'static str,
    },
    /// A sequence of a lease, which would not know what becomes of it.
    #[error(
        "{0} is held by a lease of a prefix cache; finish or drop the lease, and admit its tokens again: of a finished one they are found while there is room"
    )]
    Leased(SequenceId),
    /// A sequence that stands twice in one step.
    #[error("{0} stands twice in one step")]
    DuplicateSequence(SequenceId),
    /// A step, or a sequence's part of it, without tokens.
    #[error("{0} has no tokens in this step; leave it out instead")]
    NoTokens(SequenceId),
    /// A sequence that would grow beyond the plan's limit.
    #[error("{tokens} tokens exceed the plan's max_seq_len of {max_seq_len}")]
    TooLong {
        /// Its length.
        tokens: u64,
        /// The limit.
        max_seq_len: u64,
    },
    /// A step with more sequences, tokens or candidates than the plan made room for.
    #[error("{found} {what} exceed the {limit} that the plan made room for")]
    StepTooLarge {
        /// `sequences in a step`, `tokens in a step`, `candidate positions`, ….
        what: &'static str,
        /// How many were asked for.
        found: u64,
        /// How many there is room for.
        limit: u64,
    },
    /// An accept length or path that does not fit the candidates.
    #[error("{sequence}: {reason}", reason = Shown(.reason))]
    BadAcceptance {
        /// The sequence.
        sequence: SequenceId,
        /// What is wrong.
        reason: String,
    },
    /// A truncation that the caches cannot express.
    #[error("{sequence} cannot be cut to {tokens} tokens: {reason}", reason = Shown(.reason))]
    CannotTruncate {
        /// The sequence.
        sequence: SequenceId,
        /// The length asked for.
        tokens: u64,
        /// Why.
        reason: String,
    },
    /// What the prefix cache refuses.
    #[error(transparent)]
    Prefix(#[from] PrefixError),
    /// A plan whose prefixes cannot be kept.
    #[error(transparent)]
    NoReuse(#[from] NoReuse),
    /// Tokens that were told of a sequence and are not those that the books have.
    #[error(
        "{sequence}: {known} tokens are known and {computed} were computed, but the books have {found}; tell every token as it is computed"
    )]
    OtherTokens {
        /// The sequence.
        sequence: SequenceId,
        /// Those of its prompt, and those told since.
        known: usize,
        /// Those that were computed when it was spoken of last.
        computed: usize,
        /// Those that the books have.
        found: usize,
    },
    /// A step that does not fit the pools.
    #[error("the step does not fit the pools: {shown}", shown = Shown(.0))]
    BadStep(String),
    /// A prefix that does not fit the pools.
    #[error("the prefix cannot be taken over: {shown}", shown = Shown(.0))]
    BadPrefix(String),
    /// A block that is used although nobody holds it.
    #[error("block {} is not held by anyone", block.0)]
    BlockNotHeld {
        /// The block.
        block: BlockId,
    },
    /// A slot that is used although nobody holds it.
    #[error("slot {} is not held by anyone", slot.0)]
    SlotNotHeld {
        /// The slot.
        slot: SlotId,
    },
    /// A ring of a pool whose windows slide.
    #[error("the windows of pool `{pool}` slide; allocate it with cyclic windows to have rings", pool = Shown(.pool))]
    NoRing {
        /// The pool.
        pool: String,
    },
    /// A pool index or id that the plan does not have.
    #[error("the plan has no pool `{shown}`", shown = Shown(.0))]
    UnknownPool(String),
    /// Pools that cannot go away because something lives in them.
    #[error("the pools are in use: {sequences} sequences, {blocks} blocks, {slots} slots; finish or offload them")]
    Busy {
        /// Sequences that hold blocks or a slot.
        sequences: usize,
        /// Blocks that are held.
        blocks: u64,
        /// Slots that are held.
        slots: u64,
    },
    /// A plan whose pools differ in more than their number of units.
    #[error("the plan has other pools than those in use; resize with sequences finished")]
    OtherPools,
    /// A unit that a shrunken pool would no longer have.
    #[error("pool `{pool}`: unit {unit} is in use and would be cut off at {units} units", pool = Shown(.pool))]
    UnitInUse {
        /// The pool.
        pool: String,
        /// The unit.
        unit: u32,
        /// Units that the pool would have.
        units: u32,
    },
    /// A pool with more units than can be numbered.
    #[error("pool `{pool}` has {units} units, more than books are kept of", pool = Shown(.pool))]
    TooManyUnits {
        /// The pool.
        pool: String,
        /// Its units.
        units: u64,
    },
    /// A plan that contradicts itself; the checker says more.
    #[error("pool `{pool}`: {reason}; check the plan with `cacheplan plan check`", pool = Shown(.pool), reason = Shown(.reason))]
    BadPlan {
        /// The pool.
        pool: String,
        /// What is wrong.
        reason: String,
    },
}

/// Why the pools of a plan allow no reuse.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum NoReuse {
    /// States, and no slots to keep any.
    #[error("{}", Reuse::NoCheckpointSlots)]
    NoCheckpoints,
    /// A pool whose blocks end where those of others do not.
    #[error("a block of pool `{pool}` stands for {found} tokens, a page for {expected}")]
    Compressed {
        /// The pool.
        pool: String,
        /// Tokens that one of its blocks stands for.
        found: u64,
        /// Tokens in a page.
        expected: u64,
    },
    /// A pool whose blocks go round in rings.
    #[error("pool `{pool}` keeps its windows in rings, whose blocks are written over; use sliding windows")]
    Rings {
        /// The pool.
        pool: String,
    },
    /// Windows of several lengths.
    #[error("pool `{pool}` has a window of {found} tokens, another {expected}; prefixes are kept for one length")]
    Windows {
        /// The pool.
        pool: String,
        /// Its window in tokens.
        found: u32,
        /// That of the first pool with one.
        expected: u32,
    },
    /// Nothing of a sequence is cached.
    #[error("the plan caches nothing of a sequence")]
    NothingCached,
    /// Pools that cannot share an index.
    #[error(transparent)]
    Pools(#[from] PrefixError),
}
