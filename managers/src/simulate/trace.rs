//! Requests, and the files they are read from.
//!
//! Two formats, both one JSON object per line:
//! - ours: `{"prompt": [PIECE, …], "output": PIECE, "tenant": 0}`, where a piece is `{"id": 7, "len": 300}`, a run of
//!   300 tokens that is the same wherever its id is, or `{"tokens": [1, 2, 3]}`;
//! - Mooncake's: `{"timestamp": 27482, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1, …]}`, one id per
//!   block of 512 tokens, the last one possibly partial. Equal ids stand for equal blocks behind equal blocks. Further
//!   fields, which descendants of the format have, are passed over. Requests run in the order of their timestamps.

use std::fmt;
use std::io::{BufRead, Read};

use cacheplan_files::Limit;
use serde::de::{self, IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::error::SimulateError;
use crate::prefix::Token;

const MOONCAKE_BLOCK: usize = 512;

/// A run of tokens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, try_from = "Keys")]
pub enum Piece {
    /// Tokens that follow from an identity: what is meant matters less than what is shared.
    Run {
        /// Equal ids stand for equal tokens.
        id: u64,
        /// How many.
        len: usize,
    },
    /// The tokens themselves.
    Tokens {
        /// In order.
        tokens: Vec<Token>,
    },
}

/// A piece as it is written, so that nothing has to be kept until its kind is known.
#[derive(Deserialize)]
#[serde(
    deny_unknown_fields,
    expecting = "a piece: tokens are written {\"tokens\": [7, 9]}, or {\"id\": 7, \"len\": 512} where only what is shared matters"
)]
struct Keys {
    id: Option<u64>,
    len: Option<usize>,
    tokens: Option<Vec<Token>>,
}

impl TryFrom<Keys> for Piece {
    type Error = &'static str;

    fn try_from(keys: Keys) -> Result<Self, Self::Error> {
        match keys {
            Keys { id: Some(id), len: Some(len), tokens: None } => Ok(Self::Run { id, len }),
            Keys { id: None, len: None, tokens: Some(tokens) } => Ok(Self::Tokens { tokens }),
            _ => Err("a piece has either `tokens`, or `id` and `len`"),
        }
    }
}

impl Piece {
    /// Counts its tokens.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Run { len, .. } => *len,
            Self::Tokens { tokens } => tokens.len(),
        }
    }

    /// Tells whether it has no tokens.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn expand(&self, out: &mut Vec<Token>) {
        match self {
            Self::Run { id, len } => out.extend((0..*len as u64).map(|i| mix(mix(*id).wrapping_add(i)) as Token)),
            Self::Tokens { tokens } => out.extend(tokens),
        }
    }
}

/// One request of a trace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TraceRequest {
    /// What it sends.
    pub prompt: Vec<Piece>,
    /// What it is answered.
    pub output: Piece,
    /// Who sends it, as an index.
    #[serde(default)]
    pub tenant: u16,
}

#[derive(Deserialize)]
struct Mooncake {
    /// Milliseconds.
    timestamp: f64,
    input_length: usize,
    output_length: usize,
    #[serde(deserialize_with = "hash_ids")]
    hash_ids: Vec<u64>,
}

/// The most blocks of a prompt, which has 33 million tokens then.
const MOST_BLOCKS: usize = 1 << 16;

fn hash_ids<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u64>, D::Error> {
    struct Ids;

    impl<'de> Visitor<'de> for Ids {
        type Value = Vec<u64>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "at most {MOST_BLOCKS} ids of blocks")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<u64>, A::Error> {
            let mut ids = Vec::new();
            while let Some(id) = list.next_element()? {
                if ids.len() == MOST_BLOCKS {
                    return Err(de::Error::invalid_length(ids.len() + 1, &self));
                }
                ids.push(id);
            }
            Ok(ids)
        }
    }

    deserializer.deserialize_seq(Ids)
}

/// What tells the formats apart.
#[derive(Deserialize)]
struct Probe {
    hash_ids: Option<IgnoredAny>,
}

/// The most bytes of a line; a request of a million tokens, each written out, has 7.
const MAX_LINE: u64 = 8 << 20;
/// The most lines, empty ones included.
const MAX_LINES: usize = 1 << 22;

impl TraceRequest {
    /// Reads a trace in either format. Empty lines are passed over.
    ///
    /// # Errors
    /// Names the line that is not a request, or that there are too many before.
    pub fn read_trace(mut reader: impl BufRead) -> Result<Vec<Self>, SimulateError> {
        let mut requests: Vec<(f64, TraceRequest)> = Vec::new();
        let (mut text, mut kept) = (String::new(), 0);
        for line in 1.. {
            text.clear();
            if reader.by_ref().take(MAX_LINE).read_line(&mut text)? == 0 {
                break;
            }
            if text.len() as u64 == MAX_LINE || line > MAX_LINES || kept > Limit::TRACE.bytes {
                return Err(SimulateError::TooLong { line });
            }
            if text.trim().is_empty() {
                continue;
            }
            let malformed = |source| SimulateError::Line { line, source };
            let probe: Probe = serde_json::from_str(&text).map_err(malformed)?;
            requests.push(if probe.hash_ids.is_some() {
                let request: Mooncake = serde_json::from_str(&text).map_err(malformed)?;
                (request.timestamp, from_mooncake(request, line)?)
            } else {
                // Ours say by their order alone when they arrive.
                let now = requests.last().map_or(0.0, |(timestamp, _)| *timestamp);
                (now, serde_json::from_str(&text).map_err(malformed)?)
            });
            kept += requests.last().map_or(0, |(_, request)| request.bytes());
        }
        requests.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        Ok(requests.into_iter().map(|(_, request)| request).collect())
    }
}

impl TraceRequest {
    /// Counts the tokens of prompt and output.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.prompt.iter().chain([&self.output]).map(Piece::len).fold(0, usize::saturating_add)
    }

    /// About what it takes in memory, while the list that it is in grows.
    fn bytes(&self) -> u64 {
        let tokens = |piece: &Piece| match piece {
            Piece::Run { .. } => 0,
            Piece::Tokens { tokens } => size_of_val(tokens.as_slice()),
        };
        let pieces = self.prompt.iter().chain([&self.output]);
        let bytes =
            2 * size_of::<(f64, Self)>() + pieces.map(|piece| size_of::<Piece>() + tokens(piece)).sum::<usize>();
        bytes as u64
    }
}

fn from_mooncake(request: Mooncake, line: usize) -> Result<TraceRequest, SimulateError> {
    let Mooncake { input_length, output_length, hash_ids, .. } = request;
    if hash_ids.len() != input_length.div_ceil(MOONCAKE_BLOCK) {
        return Err(SimulateError::BlockCount { line, blocks: hash_ids.len(), tokens: input_length });
    }
    let block_len = |i: usize| MOONCAKE_BLOCK.min(input_length - i * MOONCAKE_BLOCK);
    let prompt = hash_ids.iter().enumerate().map(|(i, &id)| Piece::Run { id, len: block_len(i) }).collect();
    // The trace does not say what was answered; ids from the other end of the range are no block's.
    let output = Piece::Run { id: u64::MAX - line as u64, len: output_length };
    Ok(TraceRequest { prompt, output, tenant: 0 })
}

/// Deterministic noise.
pub(super) fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 31)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let x = (x ^ (x >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x ^ (x >> 32)
}
