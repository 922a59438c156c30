//! Mooncake's traces as requests.

use std::path::Path;

use serde::Deserialize;

/// The tokens that an id stands for.
const ID_TOKENS: usize = 512;

#[derive(Deserialize)]
pub(crate) struct Trace {
    pub(crate) name: String,
    blake3: String,
}

#[derive(Deserialize)]
struct Line {
    timestamp: f64,
    input_length: usize,
    hash_ids: Vec<u64>,
}

pub(crate) struct Request {
    pub(crate) seconds: f64,
    pub(crate) tokens: usize,
    ids: Vec<u64>,
    /// The hash of the ids up to each.
    chains: Vec<u64>,
}

pub(crate) fn mix(before: u64, next: u64) -> u64 {
    (before ^ (next + 1)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
}

impl Request {
    fn new(mut line: Line, whole_ids: bool) -> Self {
        if whole_ids && line.input_length > ID_TOKENS {
            line.hash_ids.truncate(line.input_length / ID_TOKENS);
        }
        let mut chains = Vec::new();
        for id in &line.hash_ids {
            chains.push(mix(chains.last().copied().unwrap_or(0), *id));
        }
        let tokens = line.input_length.min(line.hash_ids.len() * ID_TOKENS).max(1);
        Self { seconds: line.timestamp / 1000.0, tokens, ids: line.hash_ids, chains }
    }

    /// The hash of the first `end` tokens: of the ids up to there, and of where it is.
    pub(crate) fn hash(&self, end: usize) -> u64 {
        self.chains[(end - 1) / ID_TOKENS] ^ (end as u64).wrapping_mul(0xbf58_476d_1ce4_e5b9)
    }

    /// What the tokens of a block that ends here are, whatever comes before them.
    pub(crate) fn content(&self, end: usize) -> u64 {
        mix(self.ids[(end - 1) / ID_TOKENS], (end % ID_TOKENS) as u64)
    }
}

impl Trace {
    /// The requests in the order of their arrival.
    pub(crate) fn read(&self, folder: &Path, whole_ids: bool) -> Vec<Request> {
        let text = std::fs::read_to_string(folder.join(&self.name)).unwrap();
        assert_eq!(blake3::hash(text.as_bytes()).to_hex().as_str(), self.blake3, "another {} was committed", self.name);
        let mut requests: Vec<Request> =
            text.lines().map(|line| Request::new(serde_json::from_str(line).unwrap(), whole_ids)).collect();
        requests.sort_by(|one, other| one.seconds.total_cmp(&other.seconds));
        requests
    }
}
