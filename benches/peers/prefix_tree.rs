//! Our side of `prefix_tree.py`: the same prompts, the same operations, medians in nanoseconds as JSON.
//!
//! The file holds the number of prompts, then each prompt as its length and its tokens, all little-endian `u32`.
#![expect(clippy::print_stdout, reason = "the script reads it")]

use std::time::Instant;

use cacheplan_managers::book::{BlockId, SlotId};
use cacheplan_managers::prefix::{Hold, Insert, Key, Match, Namespace, Released, TenantId, Tree, TreeConfig};

struct Peer {
    tree: Tree,
    namespace: Namespace,
    out: Released,
    units: u32,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut files = std::env::args().skip(1);
    let (Some(prompts), Some(leaves)) = (files.next(), files.next()) else {
        return Err("usage: peer_prefix_tree PROMPTS LEAVES".into());
    };
    let prompts = read(&prompts)?;
    let config = TreeConfig { chunk: 64, ..TreeConfig::default() };
    let mut peer =
        Peer { tree: Tree::new(config.clone())?, namespace: Namespace::default(), out: Released::default(), units: 0 };

    let mut inserts = Vec::new();
    for prompt in &prompts {
        inserts.push(peer.insert(prompt)?);
    }
    let namespace = Namespace::default();
    let order: Vec<&Vec<u32>> = (0..prompts.len()).map(|i| &prompts[i * 2_654_435 % prompts.len()]).collect();
    let mut hits = 0;
    let (mut matches, mut diverging, mut locks) = (Vec::new(), Vec::new(), Vec::new());
    for prompt in &order {
        let (nanos, found) = timed(|| peer.tree.match_prefix(Key { namespace: &namespace, tokens: prompt }));
        hits += found.hit;
        matches.push(nanos);
        locks.push(timed(|| lock_unlock(&mut peer.tree, &found)).0);
    }
    for prompt in &order {
        let mut prompt = (*prompt).clone();
        let at = prompt.len() / 2;
        prompt[at] = u32::MAX;
        diverging.push(timed(|| peer.tree.match_prefix(Key { namespace: &namespace, tokens: &prompt })).0);
    }
    let states = (0..1000).map(|_| peer.evict(|tree, out| tree.evict_state(1, out).states)).collect();
    let kv = (0..1000).map(|_| peer.evict(|tree, out| tree.evict_kv(1, out).tokens)).collect();

    let mut wide = Peer { tree: Tree::new(config)?, ..peer };
    for leaf in read(&leaves)? {
        wide.insert(&leaf)?;
    }
    let kv_wide = (0..1000).map(|_| wide.evict(|tree, out| tree.evict_kv(1, out).tokens)).collect();
    println!(
        "{{\"hits\": {hits}, \"insert\": {}, \"match\": {}, \"match_diverging\": {}, \"lock_unlock\": {}, \
         \"evict_state\": {}, \"evict_leaf\": {}, \"evict_leaf_100k\": {}}}",
        median(inserts),
        median(matches),
        median(diverging),
        median(locks),
        median(states),
        median(kv),
        median(kv_wide)
    );
    Ok(())
}

impl Peer {
    fn insert(&mut self, prompt: &[u32]) -> Result<u64, Box<dyn std::error::Error>> {
        let blocks: Vec<BlockId> = (0..prompt.len() as u32).map(|i| BlockId(self.units.wrapping_add(i))).collect();
        self.units = self.units.wrapping_add(prompt.len() as u32);
        let insert = Insert {
            key: Key { namespace: &self.namespace, tokens: prompt },
            blocks: &blocks,
            owned: 0,
            state: Some(SlotId(self.units)),
            window: None,
            tenant: TenantId::default(),
        };
        let (nanos, inserted) = timed(|| self.tree.insert(&insert, &mut self.out));
        inserted?;
        self.out.blocks.clear();
        self.out.slots.clear();
        Ok(nanos)
    }

    fn evict(&mut self, evict: impl FnOnce(&mut Tree, &mut Released) -> usize) -> u64 {
        self.out.blocks.clear();
        self.out.slots.clear();
        timed(|| evict(&mut self.tree, &mut self.out)).0
    }
}

fn lock_unlock(tree: &mut Tree, found: &Match) {
    if let Ok(receipt) = tree.lock(found, Hold::PathAndState) {
        let _ = tree.unlock(receipt);
    }
}

fn timed<T>(act: impl FnOnce() -> T) -> (u64, T) {
    let start = Instant::now();
    let result = std::hint::black_box(act());
    (start.elapsed().as_nanos() as u64, result)
}

fn median(mut samples: Vec<u64>) -> u64 {
    samples.sort_unstable();
    samples[samples.len() / 2]
}

fn read(path: &str) -> Result<Vec<Vec<u32>>, std::io::Error> {
    let bytes = std::fs::read(path)?;
    let mut words = bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
    let count = words.next().unwrap_or(0);
    Ok((0..count)
        .map(|_| {
            let len = words.next().unwrap_or(0) as usize;
            words.by_ref().take(len).collect()
        })
        .collect())
}
