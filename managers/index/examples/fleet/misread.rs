//! A router's index as llm-d's was before its pull request 2363: it takes every group's event for a prefix without gaps.
//!
//! An event's tokens are cut into blocks of its own, each is called by the blocks before it, and the engine's hashes are laid
//! over these evenly, however few they are. What follows a hash goes on from the last block that it was laid over.

use std::collections::{HashMap, HashSet};

use crate::trace::{Request, mix};
use crate::worker::Said;

/// The tokens of its blocks, by default.
const BLOCK: usize = 16;

#[derive(Default)]
pub(crate) struct Misread {
    by_hash: HashMap<u64, Vec<u64>>,
    /// Who has a block, in which set.
    holders: HashMap<u64, HashSet<(usize, usize)>>,
}

fn chain(request: &Request, before: u64, stretch: std::ops::Range<usize>) -> impl Iterator<Item = u64> {
    let ends = (stretch.start / BLOCK + 1..=stretch.end / BLOCK).map(|block| block * BLOCK);
    ends.scan(before, |before, end| {
        *before = mix(*before, request.content(end));
        Some(*before)
    })
}

impl Misread {
    pub(crate) fn take(&mut self, worker: usize, said: &Said, request: &Request) {
        match said {
            Said::Stored { set, stretch, ends } => {
                let before = match stretch.start {
                    0 => 0,
                    start => match self.by_hash.get(&request.hash(start)).and_then(|blocks| blocks.last()) {
                        Some(before) => *before,
                        None => return,
                    },
                };
                let blocks: Vec<u64> = chain(request, before, stretch.clone()).collect();
                ends.iter().for_each(|end| drop(self.by_hash.insert(request.hash(*end), Vec::new())));
                let most = ends.len().max(blocks.len());
                for at in 0..most {
                    let hash = request.hash(ends[at * ends.len() / most]);
                    self.by_hash.entry(hash).or_default().push(blocks[at * blocks.len() / most]);
                }
                for block in blocks {
                    self.holders.entry(block).or_default().insert((worker, *set));
                }
            }
            Said::Removed { set, hash } => {
                for block in self.by_hash.get(hash).into_iter().flatten() {
                    if let Some(holders) = self.holders.get_mut(block) {
                        holders.remove(&(worker, *set));
                    }
                }
            }
        }
    }

    /// The tokens that each worker is believed to have.
    pub(crate) fn believed(&self, request: &Request, believed: &mut [usize]) {
        let mut active: HashSet<usize> = (0..believed.len()).collect();
        for block in chain(request, 0, 0..request.tokens) {
            let holders = self.holders.get(&block);
            active.retain(|worker| holders.is_some_and(|held| held.iter().any(|(holder, _)| holder == worker)));
            if active.is_empty() {
                break;
            }
            active.iter().for_each(|worker| believed[*worker] += BLOCK);
        }
        // The last token is always computed.
        believed.iter_mut().for_each(|tokens| *tokens = (*tokens).min(request.tokens - 1));
    }
}
