//! Reads the events of vLLM, SGLang and TensorRT-LLM's streaming, and our own, from MessagePack.

use crate::Error;
use crate::events::{Batch, Event, Kind, Stored};
use crate::msgpack::{Reader, Value};

/// The longest batch that is read. One of a million tokens stored at once has half of it; taking it needs 16 times as much.
pub const MAX_BATCH_BYTES: usize = 16 << 20;

impl Batch {
    /// Reads what vLLM, SGLang and TensorRT-LLM's streaming events send as MessagePack, and what [`Batch::to_msgpack`] makes.
    ///
    /// Batches and events are lists or maps: events were lists of fields in a fixed order before they became maps. A field that
    /// is missing at the end of a list has its default.
    pub fn from_msgpack(bytes: &[u8]) -> Result<Self, Error> {
        if bytes.len() > MAX_BATCH_BYTES {
            return Err(Error::TooLong { found: bytes.len(), most: MAX_BATCH_BYTES });
        }
        let mut reader = Reader::new(bytes);
        let (mut rank, mut time, mut events) = (0, 0, None);
        match reader.value()? {
            Value::Array(parts) if parts >= 2 => {
                time = batch_time(&mut reader)?;
                events = Some(list(&mut reader)?);
                if parts > 2 {
                    rank = batch_rank(&mut reader)?;
                }
                (3..parts).try_for_each(|_| reader.skip())?;
            }
            Value::Map(pairs) => {
                for _ in 0..pairs {
                    match key(&mut reader)? {
                        b"ts" => time = batch_time(&mut reader)?,
                        b"events" => events = Some(list(&mut reader)?),
                        b"data_parallel_rank" | b"attn_dp_rank" => rank = batch_rank(&mut reader)?,
                        _ => reader.skip()?,
                    }
                    (reader.event, reader.field) = ("batch", "the batch");
                }
            }
            other => return reader.wrong(other, "[time, events, rank]"),
        }
        let Some(events) = events else { return reader.wrong(Value::Nil, "a batch with `events`") };
        if !reader.is_at_end() {
            (reader.event, reader.field) = ("batch", "the end");
            let found = reader.value()?;
            return reader.wrong(found, "nothing after the batch");
        }
        Ok(Self { rank, time, events })
    }
}

fn list(reader: &mut Reader<'_>) -> Result<Vec<Event>, Error> {
    reader.field = "events";
    let count = reader.array()?;
    let mut events = Vec::new();
    for _ in 0..count {
        events.push(event(reader)?);
    }
    Ok(events)
}

/// Seconds; what is no number, or before 1970, is no time.
fn batch_time(reader: &mut Reader<'_>) -> Result<u64, Error> {
    (reader.event, reader.field) = ("batch", "time");
    Ok(match reader.value()? {
        Value::Float(seconds) => (seconds * 1e6) as u64,
        Value::Unsigned(seconds) => seconds.saturating_mul(1_000_000),
        Value::Nil | Value::Negative(_) => 0,
        other => return reader.wrong(other, "seconds"),
    })
}

fn batch_rank(reader: &mut Reader<'_>) -> Result<u32, Error> {
    (reader.event, reader.field) = ("batch", "rank");
    Ok(reader.number()?.unwrap_or(0))
}

/// The fields of events that are lists, in their order. Later versions added to the end.
const STORED: [&[u8]; 11] = [
    b"block_hashes",
    b"parent_block_hash",
    b"token_ids",
    b"block_size",
    b"lora_id",
    b"medium",
    b"lora_name",
    b"extra_keys",
    b"group_idx",
    b"kv_cache_spec_kind",
    b"kv_cache_spec_sliding_window",
];
const REMOVED: [&[u8]; 3] = [b"block_hashes", b"medium", b"group_idx"];

/// What names the next field: a key of a map, or the place in a list.
enum Fields {
    Named(usize),
    Placed(usize, &'static [&'static [u8]]),
}

impl Fields {
    fn each<'a>(
        &self,
        reader: &mut Reader<'a>,
        mut of: impl FnMut(&mut Reader<'a>, &[u8]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        match *self {
            Self::Named(pairs) => (0..pairs).try_for_each(|_| {
                let name = key(reader)?;
                of(reader, name)
            }),
            Self::Placed(parts, names) => {
                (0..parts).try_for_each(|at| of(reader, names.get(at).copied().unwrap_or_default()))
            }
        }
    }
}

/// An event is a map in which `type` comes first, or a list of which its type is the first.
fn event(reader: &mut Reader<'_>) -> Result<Event, Error> {
    (reader.event, reader.field) = ("event", "the event");
    let (parts, is_map) = match reader.value()? {
        Value::Map(pairs) if pairs > 0 => (pairs - 1, true),
        Value::Array(parts) if parts > 0 => (parts - 1, false),
        other => return reader.wrong(other, "a map with `type`, or a list that begins with its type"),
    };
    reader.field = "type";
    if is_map {
        match reader.value()? {
            Value::Text(b"type") => {}
            other => return reader.wrong(other, "`type` as its first key"),
        }
    }
    let fields = |names| if is_map { Fields::Named(parts) } else { Fields::Placed(parts, names) };
    match reader.text()? {
        Some(b"BlockStored") => stored(reader, &fields(&STORED)),
        Some(b"BlockRemoved") => removed(reader, &fields(&REMOVED)),
        Some(b"AllBlocksCleared") => {
            fields(&[]).each(reader, |reader, _| reader.skip())?;
            Ok(Event::Cleared)
        }
        other => Err(Error::Event(String::from_utf8_lossy(other.unwrap_or(b"")).chars().take(40).collect())),
    }
}

fn stored(reader: &mut Reader<'_>, fields: &Fields) -> Result<Event, Error> {
    reader.event = "BlockStored";
    let mut stored = Stored { on_device: true, ..Stored::default() };
    fields.each(reader, |reader, name| {
        match name {
            b"block_hashes" => stored.hashes = hashes(reader)?,
            b"parent_block_hash" => {
                reader.field = "parent_block_hash";
                stored.parent = reader.hash()?;
            }
            b"token_ids" => tokens(reader, &mut stored)?,
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
                stored.kind = reader.text()?.map(Kind::of_vllm);
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
        Ok(())
    })?;
    if stored.block == 0 {
        reader.field = "block_size";
        return reader.wrong(Value::Nil, "above zero");
    }
    Ok(Event::Stored(stored))
}

/// Tokens; where SGLang drafts, pairs of neighbours, which are no tokens to ask by.
fn tokens(reader: &mut Reader<'_>, stored: &mut Stored) -> Result<(), Error> {
    reader.field = "token_ids";
    for _ in 0..reader.array()? {
        match reader.value()? {
            Value::Unsigned(token) if token <= u64::from(u32::MAX) => stored.tokens.push(token as u32),
            Value::Array(2) => {
                reader.number()?;
                reader.number()?;
                stored.is_keyed = true;
            }
            other => return reader.wrong(other, "a token"),
        }
    }
    Ok(())
}

fn removed(reader: &mut Reader<'_>, fields: &Fields) -> Result<Event, Error> {
    reader.event = "BlockRemoved";
    let (mut gone, mut of, mut on_device) = (Vec::new(), None, true);
    fields.each(reader, |reader, name| {
        match name {
            b"block_hashes" => gone = hashes(reader)?,
            b"group_idx" => of = group(reader)?,
            b"medium" => on_device &= is_device(reader)?,
            b"locality" => on_device &= is_local(reader)?,
            _ => reader.skip()?,
        }
        Ok(())
    })?;
    Ok(Event::Removed { hashes: gone, group: of, window: None, on_device })
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

impl Kind {
    fn of_vllm(name: &[u8]) -> Self {
        match name {
            b"full_attention" | b"mla_attention" | b"sink_full_attention" => Self::Full,
            b"sliding_window" | b"sliding_window_mla" => Self::Window,
            b"mamba" => Self::State,
            _ => Self::Unknown,
        }
    }
}
