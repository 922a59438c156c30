//! The events of engines, from their bytes.

use crate::Error;
use crate::msgpack::{Reader, Value};

/// The longest batch that is read. One of a million tokens stored at once has half of it; taking it needs 16 times as much.
pub const MAX_BATCH_BYTES: usize = 16 << 20;

/// What an engine published at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// The data-parallel rank that it came from.
    pub rank: u32,
    /// In the order in which they happened.
    pub events: Vec<Event>,
}

/// What happened to the blocks of a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Blocks can be reused from now on.
    Stored(Stored),
    /// Blocks are gone.
    Removed {
        /// Their hashes.
        hashes: Vec<u64>,
        /// Of which group; of none where the engine names no groups.
        group: Option<u32>,
        /// Whether they lay on the device.
        on_device: bool,
    },
    /// All blocks are gone.
    Cleared,
}

/// Blocks that can be reused.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stored {
    /// Their hashes, each of all tokens up to the block's end.
    pub hashes: Vec<u64>,
    /// The hash of what comes before the tokens.
    pub parent: Option<u64>,
    /// The tokens of a stretch that has the blocks; those of other blocks may be among them.
    pub tokens: Vec<u32>,
    /// Tokens of each block.
    pub block: u32,
    /// The group; none where the engine names no groups.
    pub group: Option<u32>,
    /// What the group keeps, in the engine's words.
    pub kind: Option<Kind>,
    /// The tokens of its window.
    pub window: Option<u32>,
    /// Whether something besides tokens decides who may reuse them: an adapter, a salt, an image.
    pub is_keyed: bool,
    /// Whether they lie on the device of the worker.
    pub on_device: bool,
}

/// What the blocks of a group hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Keys and values, or latents, of all tokens.
    Full,
    /// Those of the last tokens.
    Window,
    /// States after the last token of a block.
    State,
    /// What this version knows no rule for.
    Unknown,
}

impl Batch {
    /// Reads what vLLM 0.33 and SGLang 0.5.23 publish.
    pub fn from_msgpack(bytes: &[u8]) -> Result<Self, Error> {
        if bytes.len() > MAX_BATCH_BYTES {
            return Err(Error::TooLong { found: bytes.len(), most: MAX_BATCH_BYTES });
        }
        let mut reader = Reader::new(bytes);
        let parts = reader.array()?;
        if parts < 2 {
            return reader.wrong(Value::Array(parts), "[time, events, rank]");
        }
        reader.skip()?;
        reader.field = "events";
        let count = reader.array()?;
        let mut events = Vec::new();
        for _ in 0..count {
            events.push(event(&mut reader)?);
        }
        (reader.event, reader.field) = ("batch", "rank");
        let rank = if parts > 2 { reader.number()?.unwrap_or(0) } else { 0 };
        for _ in 3..parts {
            reader.skip()?;
        }
        if !reader.is_at_end() {
            reader.field = "the end";
            let found = reader.value()?;
            return reader.wrong(found, "nothing after the batch");
        }
        Ok(Self { rank, events })
    }
}

/// An event is a map in which `type` comes first.
fn event(reader: &mut Reader<'_>) -> Result<Event, Error> {
    (reader.event, reader.field) = ("event", "the event");
    let pairs = match reader.value()? {
        Value::Map(pairs) if pairs > 0 => pairs,
        other => return reader.wrong(other, "a map with `type`"),
    };
    reader.field = "type";
    match reader.value()? {
        Value::Text(b"type") => {}
        other => return reader.wrong(other, "`type` as its first key"),
    }
    match reader.text()? {
        Some(b"BlockStored") => stored(reader, pairs - 1),
        Some(b"BlockRemoved") => removed(reader, pairs - 1),
        Some(b"AllBlocksCleared") => {
            (1..pairs).try_for_each(|_| reader.skip().and_then(|()| reader.skip()))?;
            Ok(Event::Cleared)
        }
        other => Err(Error::Event(String::from_utf8_lossy(other.unwrap_or(b"")).chars().take(40).collect())),
    }
}

fn stored(reader: &mut Reader<'_>, pairs: usize) -> Result<Event, Error> {
    reader.event = "BlockStored";
    let mut stored = Stored { on_device: true, ..Stored::default() };
    for _ in 0..pairs {
        match key(reader)? {
            b"block_hashes" => stored.hashes = hashes(reader)?,
            b"parent_block_hash" => {
                reader.field = "parent_block_hash";
                stored.parent = reader.hash()?;
            }
            b"token_ids" => {
                reader.field = "token_ids";
                for _ in 0..reader.array()? {
                    let Some(token) = reader.number()? else { return reader.wrong(Value::Nil, "a token") };
                    stored.tokens.push(token);
                }
            }
            b"block_size" => {
                reader.field = "block_size";
                match reader.number()? {
                    Some(block) if block > 0 => stored.block = block,
                    other => {
                        return reader.wrong(other.map_or(Value::Nil, |n| Value::Unsigned(n.into())), "above zero");
                    }
                }
            }
            b"group_idx" => stored.group = group(reader)?,
            b"kv_cache_spec_kind" => {
                reader.field = "kv_cache_spec_kind";
                stored.kind = reader.text()?.map(|kind| match kind {
                    b"full_attention" | b"mla_attention" | b"sink_full_attention" => Kind::Full,
                    b"sliding_window" | b"sliding_window_mla" => Kind::Window,
                    b"mamba" => Kind::State,
                    _ => Kind::Unknown,
                });
            }
            b"kv_cache_spec_sliding_window" => {
                reader.field = "kv_cache_spec_sliding_window";
                stored.window = reader.number()?;
            }
            b"medium" => stored.on_device &= is_device(reader)?,
            b"locality" => stored.on_device &= is_local(reader)?,
            b"lora_id" | b"lora_name" | b"cache_salt" => stored.is_keyed |= reader.value()? != Value::Nil,
            b"extra_keys" => stored.is_keyed |= has_keys(reader)?,
            _ => reader.skip()?,
        }
    }
    if stored.block == 0 {
        reader.field = "block_size";
        return reader.wrong(Value::Nil, "above zero");
    }
    Ok(Event::Stored(stored))
}

fn removed(reader: &mut Reader<'_>, pairs: usize) -> Result<Event, Error> {
    reader.event = "BlockRemoved";
    let (mut gone, mut of, mut on_device) = (Vec::new(), None, true);
    for _ in 0..pairs {
        match key(reader)? {
            b"block_hashes" => gone = hashes(reader)?,
            b"group_idx" => of = group(reader)?,
            b"medium" => on_device &= is_device(reader)?,
            b"locality" => on_device &= is_local(reader)?,
            _ => reader.skip()?,
        }
    }
    Ok(Event::Removed { hashes: gone, group: of, on_device })
}

fn key<'a>(reader: &mut Reader<'a>) -> Result<&'a [u8], Error> {
    reader.field = "a key";
    match reader.text()? {
        Some(key) => Ok(key),
        None => reader.wrong(Value::Nil, "a text"),
    }
}

fn hashes(reader: &mut Reader<'_>) -> Result<Vec<u64>, Error> {
    reader.field = "block_hashes";
    let mut hashes = Vec::new();
    for _ in 0..reader.array()? {
        let Some(hash) = reader.hash()? else { return reader.wrong(Value::Nil, "a block's hash") };
        hashes.push(hash);
    }
    Ok(hashes)
}

fn group(reader: &mut Reader<'_>) -> Result<Option<u32>, Error> {
    reader.field = "group_idx";
    reader.number()
}

fn is_device(reader: &mut Reader<'_>) -> Result<bool, Error> {
    reader.field = "medium";
    Ok(reader.text()?.is_none_or(|medium| medium == b"GPU"))
}

fn is_local(reader: &mut Reader<'_>) -> Result<bool, Error> {
    reader.field = "locality";
    Ok(reader.text()?.is_none_or(|locality| locality != b"REMOTE"))
}

/// Whether any block of a list has keys of its own.
fn has_keys(reader: &mut Reader<'_>) -> Result<bool, Error> {
    reader.field = "extra_keys";
    let Value::Array(blocks) = reader.value()? else { return Ok(false) };
    let mut has = false;
    for _ in 0..blocks {
        has |= match reader.value()? {
            Value::Nil => false,
            Value::Array(keys) => {
                (0..keys).try_for_each(|_| reader.skip())?;
                keys > 0
            }
            other => return reader.wrong(other, "a list of keys, or nothing"),
        };
    }
    Ok(has)
}
