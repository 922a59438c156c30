//! The events that TensorRT-LLM's `get_kv_cache_events` gives, as JSON.

use serde::Deserialize;

use crate::Error;
use crate::events::{Batch, Event, Kind, Stored};
use crate::read::MAX_BATCH_BYTES;

#[derive(Deserialize)]
struct Message {
    event_id: u64,
    data: Data,
    #[serde(default)]
    window_size: Option<u32>,
    #[serde(default)]
    attention_dp_rank: Option<u32>,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Data {
    Created,
    Stored {
        parent_hash: Option<Hash>,
        blocks: Vec<Block>,
    },
    Removed {
        block_hashes: Vec<Hash>,
    },
    /// A block moved between device and host: it can be reused from both.
    Updated,
}

/// Versions differ in whether hashes are signed.
#[derive(Clone, Copy, Deserialize)]
#[serde(untagged)]
enum Hash {
    Unsigned(u64),
    Negative(i64),
}

impl Hash {
    fn number(self) -> u64 {
        match self {
            Self::Unsigned(hash) => hash,
            Self::Negative(hash) => hash.cast_unsigned(),
        }
    }
}

#[derive(Deserialize)]
struct Block {
    block_hash: Hash,
    tokens: Vec<Token>,
    #[serde(default)]
    mm_keys: Vec<serde::de::IgnoredAny>,
}

#[derive(Deserialize)]
struct Token {
    token_id: u32,
    #[serde(default)]
    token_extra_id: u64,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMore {
    More(Vec<Message>),
    One(Message),
}

impl Batch {
    /// Reads one event of TensorRT-LLM or a list of them, each with its number.
    ///
    /// They name groups by their windows and say nothing of states: answers are upper bounds.
    pub fn from_trtllm(bytes: &[u8]) -> Result<Vec<(u64, Self)>, Error> {
        if bytes.len() > MAX_BATCH_BYTES {
            return Err(Error::TooLong { found: bytes.len(), most: MAX_BATCH_BYTES });
        }
        let messages = match serde_json::from_slice(bytes).map_err(|error| Error::Json(error.to_string()))? {
            OneOrMore::More(messages) => messages,
            OneOrMore::One(message) => vec![message],
        };
        messages.into_iter().map(batch).collect()
    }
}

fn batch(message: Message) -> Result<(u64, Batch), Error> {
    let window = message.window_size;
    let mut events = Vec::new();
    match message.data {
        Data::Created | Data::Updated => {}
        Data::Removed { block_hashes } => events.push(Event::Removed {
            hashes: block_hashes.into_iter().map(Hash::number).collect(),
            group: None,
            window,
            on_device: true,
        }),
        Data::Stored { parent_hash, blocks } => {
            let mut parent = parent_hash.map(Hash::number);
            for block in blocks {
                let size = u32::try_from(block.tokens.len()).ok().filter(|size| *size > 0);
                let Some(size) = size else {
                    return Err(Error::Json("a block without tokens was stored".to_owned()));
                };
                let hash = block.block_hash.number();
                events.push(Event::Stored(Stored {
                    hashes: vec![hash],
                    parent,
                    is_keyed: !block.mm_keys.is_empty() || block.tokens.iter().any(|token| token.token_extra_id != 0),
                    tokens: block.tokens.into_iter().map(|token| token.token_id).collect(),
                    block: size,
                    group: None,
                    kind: window.map(|_| Kind::Window),
                    window,
                    on_device: true,
                }));
                parent = Some(hash);
            }
        }
    }
    Ok((message.event_id, Batch { rank: message.attention_dp_rank.unwrap_or(0), time: 0, events }))
}
