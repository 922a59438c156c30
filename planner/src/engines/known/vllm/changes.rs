//! What changed between versions, in words, for whoever compares two of them.

use super::{
    COUNTS_ALL_STAGES, READS_STATES, RESERVES_THE_NULL_BLOCK, SAMPLES_UNSORTED, STATES_OF_NEMOTRON_IN_FLOAT32, blocks,
    count, groups, packed, states,
};
use crate::engines::rules::RuleChange;

pub(super) static CHANGES: [RuleChange; 26] = [
    (groups::GROUPS_KINDS, "layers of several kinds are several groups; before, windows kept every token"),
    (states::KEEPS_STATES, "with prefix caching states are kept, by models that keep one for every block"),
    (groups::PADS_CLOSE_KINDS, "a group is as large as the most layers of a kind where those are close to the fewest"),
    (blocks::WIDE_ON_BLACKWELL.start, "heads of 256 of a hybrid have blocks of 32 on Blackwell"),
    (READS_STATES[0].0, "states of Nemotron-H are what its config says"),
    (COUNTS_ALL_STAGES.start, "a sequence in all stages has to fit the poorest one"),
    (states::KEEPS_LAST_STATES, "with prefix caching the last state is kept, by all other models with states"),
    (SAMPLES_UNSORTED, "tokens are picked without sorting logits: a step takes less"),
    (COUNTS_ALL_STAGES.end, "each stage has to fit its own part of a sequence"),
    (groups::PADS_MORE, "close is below 1.5 times as many layers, before 1.25 times"),
    (blocks::WIDE_ON_BLACKWELL.end, "heads of 256 of a hybrid have blocks of 16 on Blackwell again"),
    (STATES_OF_NEMOTRON_IN_FLOAT32, "states of Nemotron-H are float32 where its config says nothing"),
    (count::REPORTS_CONCURRENCY, "the tokens that are said are those of whole sequences of the longest length"),
    (blocks::ASKS_THE_KERNEL, "blocks of latents are those of the kernel that is chosen"),
    (packed::COUNTS_PAGES_BY_SIZE, "a block has as many pages of a size as the group with the most of them"),
    (count::OVERLAPS_STEPS, "windows hold the tokens of two steps, which overlap"),
    (packed::LAYS_GROUPS_OVER_EACH_OTHER, "groups lie over each other, each alone in a block"),
    (states::KEEPS_LAST_STATES_OF_ALL, "with prefix caching the last state alone is kept, by all models"),
    (packed::PACKS_ANY, "states and what forms entries are groups of a block too"),
    (RESERVES_THE_NULL_BLOCK, "the null block is kept apart before a sequence has to fit"),
    (packed::PACKS_UNSTATED, "records of compressed attention are packed where nobody says"),
    (packed::MIXES_RECORDS, "entries of compressed attention have 4 bits on Blackwell"),
    (states::EXPORTS_CHECKPOINTS, "a prefill writes a state at a block's end into a block of its own"),
    (blocks::SMALL_BLOCKS_OF_LATENTS, "blocks of latents and wide heads are others"),
    (states::EXPORTS_GATED_DELTA, "a prefill of gated delta layers writes a state into a block of its own"),
    (count::OVERLAPS_DRAFTS_FROM_TEXT, "steps overlap also with drafts from the text"),
];
