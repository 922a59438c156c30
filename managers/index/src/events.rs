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
        /// What tells the group where it has no number: TensorRT-LLM's windows.
        window: Option<u32>,
        /// Whether they lay on the device.
        on_device: bool,
    },
    /// All blocks are gone.
    Cleared,
}

impl Event {
    /// The tokens of a block that it speaks of.
    pub(crate) fn block(&self) -> Option<usize> {
        match self {
            Self::Stored(stored) => Some(stored.block as usize),
            Self::Removed { .. } | Self::Cleared => None,
        }
    }
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

impl Kind {
    fn of_vllm(name: &[u8]) -> Self {
        match name {
            b"full_attention" | b"mla_attention" | b"sink_full_attention" => Self::Full,
            b"sliding_window" | b"sliding_window_mla" => Self::Window,
            b"mamba" => Self::State,
            _ => Self::Unknown,
        }
    }

    fn to_vllm(self) -> &'static str {
        match self {
            Self::Full => "full_attention",
            Self::Window => "sliding_window",
            Self::State => "mamba",
            Self::Unknown => "unknown",
        }
    }
}

impl Batch {
    /// Reads what vLLM, SGLang and TensorRT-LLM's streaming events send as MessagePack, and what [`Batch::to_msgpack`] makes.
    ///
    /// Batches and events are lists or maps: vLLM's events were lists of fields in a fixed order before they became maps, and
    /// SGLang's still are. A field that is missing at the end of a list has its default.
    pub fn from_msgpack(bytes: &[u8]) -> Result<Self, Error> {
        if bytes.len() > MAX_BATCH_BYTES {
            return Err(Error::TooLong { found: bytes.len(), most: MAX_BATCH_BYTES });
        }
        let mut reader = Reader::new(bytes);
        let (mut rank, mut events) = (0, None);
        match reader.value()? {
            Value::Array(parts) if parts >= 2 => {
                reader.skip()?;
                events = Some(list(&mut reader)?);
                if parts > 2 {
                    rank = batch_rank(&mut reader)?;
                }
                (3..parts).try_for_each(|_| reader.skip())?;
            }
            Value::Map(pairs) => {
                for _ in 0..pairs {
                    match key(&mut reader)? {
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
        Ok(Self { rank, events })
    }

    /// Makes our own event: vLLM's newest fields, of which group and kind are always there, so that states are told.
    /// Whoever keeps states and publishes nothing of them (a hook in SGLang, a simulator, a runner) sends these.
    pub fn to_msgpack(&self) -> Vec<u8> {
        let mut out = vec![0x93];
        // The time, which nobody here asks for; other readers want a float.
        put_number(&mut out, 0xcb, 0, 8);
        put_number(&mut out, 0xdd, self.events.len() as u64, 4);
        for event in &self.events {
            match event {
                Event::Stored(stored) => {
                    out.push(0x80 | if stored.is_keyed { 10 } else { 9 });
                    put_text(&mut out, "type");
                    put_text(&mut out, "BlockStored");
                    put_numbers(&mut out, "block_hashes", stored.hashes.iter().copied());
                    put_maybe(&mut out, "parent_block_hash", stored.parent);
                    put_numbers(&mut out, "token_ids", stored.tokens.iter().map(|token| u64::from(*token)));
                    put_maybe(&mut out, "block_size", Some(stored.block.into()));
                    put_place(&mut out, stored.on_device);
                    put_maybe(&mut out, "group_idx", Some(stored.group.unwrap_or(0).into()));
                    put_text(&mut out, "kv_cache_spec_kind");
                    put_text(&mut out, stored.kind.unwrap_or(Kind::Full).to_vllm());
                    put_maybe(&mut out, "kv_cache_spec_sliding_window", stored.window.map(u64::from));
                    if stored.is_keyed {
                        put_text(&mut out, "cache_salt");
                        put_text(&mut out, "");
                    }
                }
                Event::Removed { hashes, group, on_device, .. } => {
                    out.push(0x84);
                    put_text(&mut out, "type");
                    put_text(&mut out, "BlockRemoved");
                    put_numbers(&mut out, "block_hashes", hashes.iter().copied());
                    put_place(&mut out, *on_device);
                    put_maybe(&mut out, "group_idx", Some(group.unwrap_or(0).into()));
                }
                Event::Cleared => {
                    out.push(0x81);
                    put_text(&mut out, "type");
                    put_text(&mut out, "AllBlocksCleared");
                }
            }
        }
        put_number(&mut out, 0xcf, self.rank.into(), 8);
        out
    }
}

/// Writes MessagePack; lengths and numbers in their longest form, which every reader takes.
fn put_text(out: &mut Vec<u8>, text: &str) {
    put_number(out, 0xdb, text.len() as u64, 4);
    out.extend(text.as_bytes());
}

fn put_number(out: &mut Vec<u8>, tag: u8, number: u64, bytes: usize) {
    out.push(tag);
    out.extend(&number.to_be_bytes()[8 - bytes..]);
}

fn put_maybe(out: &mut Vec<u8>, name: &str, number: Option<u64>) {
    put_text(out, name);
    match number {
        Some(number) => put_number(out, 0xcf, number, 8),
        None => out.push(0xc0),
    }
}

fn put_numbers(out: &mut Vec<u8>, name: &str, numbers: impl ExactSizeIterator<Item = u64>) {
    put_text(out, name);
    put_number(out, 0xdd, numbers.len() as u64, 4);
    numbers.for_each(|number| put_number(out, 0xcf, number, 8));
}

fn put_place(out: &mut Vec<u8>, on_device: bool) {
    put_text(out, "medium");
    put_text(out, if on_device { "GPU" } else { "CPU" });
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
