//! The wording of an engine's start log.

use super::fact::Fact;
use super::line::{Line, SizeUnit};
use super::wording::Wording;

/// The wording of one engine's start log, and what it says there of itself.
pub(crate) struct LogDialect {
    /// What a process writes first, with its version behind it where it says one.
    pub(crate) starts: &'static [&'static str],
    /// The lines that have a number.
    pub(crate) lines: &'static [Wording],
    /// Those that are written of a prediction, in the order of a start.
    pub(crate) writes: &'static [Line],
    /// How it prints sizes.
    pub(crate) size_unit: SizeUnit,
    /// From such a line on what is said is of the draft model.
    pub(crate) drafts: &'static [&'static str],
    /// At such a line these are forgotten: they were tried only.
    pub(crate) tries: &'static [(&'static str, &'static [Fact])],
    /// A start that says one of these is complete.
    pub(crate) complete: &'static [Fact],
    /// What such a line looks like, for whoever has another log.
    pub(crate) example: &'static str,
    /// It makes its block as large as a state, where there are states, rather than being told one.
    pub(crate) block_follows_states: bool,
    /// It is told how many states to hold.
    pub(crate) slots_are_told: bool,
    /// It does not say what its states take.
    pub(crate) leaves_out_states: bool,
    /// It is told how many cells to hold, rather than dividing bytes.
    pub(crate) divides_cells: bool,
}

impl LogDialect {
    /// What holds of an engine unless it says otherwise.
    pub(crate) const OF_NONE: Self = Self {
        starts: &[],
        lines: &[],
        writes: &[],
        size_unit: SizeUnit("GiB", 30),
        drafts: &[],
        tries: &[],
        complete: &[],
        example: "",
        block_follows_states: false,
        slots_are_told: false,
        leaves_out_states: false,
        divides_cells: false,
    };
}
