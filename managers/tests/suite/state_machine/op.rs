//! The operations that the books are tried with.

use proptest::prelude::*;

/// One random operation; `u8`s pick among what exists.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    Admit { prompt: u8 },
    Step { picks: Vec<(u8, u8)> },
    Fork(u8),
    Truncate { pick: u8, keep: u8 },
    Speculate { picks: Vec<(u8, u8)> },
    Commit { accept: u8, path: Option<u8> },
    Checkpoint(u8),
    FinishIntoCheckpoint(u8),
    Rewind { pick: u8, checkpoint: u8 },
    AdmitPrefix { checkpoint: u8, more: u8 },
    DropCheckpoint(u8),
    Preempt(u8),
    Resume { pick: u8, tokens: u8 },
    Offload(u8),
    Onload(u8),
    Compact,
    Rebalance { blocks: i8, live: i8 },
    Migrate { blocks: i8, live: i8 },
    Finish(u8),
    SetAside(u16),
    Stale(u8),
}

impl Arbitrary for Op {
    type Parameters = ();
    type Strategy = BoxedStrategy<Self>;

    fn arbitrary_with((): ()) -> Self::Strategy {
        let picks = || proptest::collection::vec((any::<u8>(), 1u8..9), 1..5);
        prop_oneof![
            4 => (0u8..40).prop_map(|prompt| Self::Admit { prompt }),
            10 => picks().prop_map(|picks| Self::Step { picks }),
            2 => any::<u8>().prop_map(Self::Fork),
            2 => any::<(u8, u8)>().prop_map(|(pick, keep)| Self::Truncate { pick, keep }),
            3 => picks().prop_map(|picks| Self::Speculate { picks }),
            4 => any::<(u8, Option<u8>)>().prop_map(|(accept, path)| Self::Commit { accept, path }),
            2 => any::<u8>().prop_map(Self::Checkpoint),
            1 => any::<u8>().prop_map(Self::FinishIntoCheckpoint),
            2 => any::<(u8, u8)>().prop_map(|(pick, checkpoint)| Self::Rewind { pick, checkpoint }),
            2 => any::<(u8, u8)>().prop_map(|(checkpoint, more)| Self::AdmitPrefix { checkpoint, more: more % 16 }),
            2 => any::<u8>().prop_map(Self::DropCheckpoint),
            1 => any::<u8>().prop_map(Self::Preempt),
            2 => (any::<u8>(), 0u8..40).prop_map(|(pick, tokens)| Self::Resume { pick, tokens }),
            1 => any::<u8>().prop_map(Self::Offload),
            2 => any::<u8>().prop_map(Self::Onload),
            1 => Just(Self::Compact),
            1 => (-4i8..5, -1i8..2).prop_map(|(blocks, live)| Self::Rebalance { blocks, live }),
            1 => (-4i8..5, -1i8..2).prop_map(|(blocks, live)| Self::Migrate { blocks, live }),
            2 => any::<u8>().prop_map(Self::Finish),
            1 => any::<u16>().prop_map(|bytes| Self::SetAside(bytes % 2048)),
            1 => any::<u8>().prop_map(Self::Stale),
        ]
        .boxed()
    }
}
