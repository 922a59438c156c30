//! The bytes of a GGUF header: keys with values, then tensor shapes.

use std::collections::BTreeSet;
use std::io::{self, BufRead, BufReader, ErrorKind};

use cacheplan_files::{Limit, Source, SourceError};
use serde_json::{Map, Value};

use crate::frontend::FrontendError;

/// The types of values that are no scalars.
pub(super) const TEXT: u32 = 8;
pub(super) const LIST: u32 = 9;

/// Keys, tensor names and tokens are shorter than this.
const MAX_NAME: u64 = 4 << 10;
/// Text values that are kept; longer ones (chat templates) are skipped.
const MAX_TEXT: u64 = 4 << 10;
/// Lists that are kept, one entry per layer; longer ones (vocabularies) are skipped.
const MAX_LIST: u64 = 10_000;
/// The most entries of either kind that are read.
const MAX_ENTRIES: u64 = 1 << 20;
/// The most strings in all lists. The largest vocabularies have 300,000 words and 600,000 merges.
const MAX_STRINGS: u64 = 2 << 20;
/// Bytes that the names and values that are kept may take.
const MAX_KEPT: u64 = 32 << 20;
/// The most kinds of tensors that are told apart.
const MAX_KINDS: usize = 1_000;
/// The list of a vocabulary's tokens.
const TOKENS: &str = "tokenizer.ggml.tokens";
/// Keys of the tokens that end a text, a turn of a chat, a message to a tool.
const ENDS_STATED: [&str; 3] =
    ["tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"];
/// Tokens that do so by their name, since many files state but the first. `<|end|>` is none of them: in gpt-oss it ends a
/// message, and another may follow.
const ENDS: [&str; 8] = [
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<end_of_turn>",
    "<|return|>",
    "<|call|>",
];
/// No file is longer: 1 PiB.
const MAX_FILE: u64 = 1 << 50;
/// No file is aligned to more.
const MAX_ALIGNMENT: u64 = 1 << 20;

/// What a GGUF file says of its model.
pub(super) struct Header {
    values: Vec<(String, Value)>,
    ends: Vec<u64>,
    kinds: BTreeSet<String>,
    data: u64,
    embedding: Option<(&'static str, u64)>,
    weight_bytes: Option<u64>,
    fingerprint: String,
}

impl Header {
    pub(super) fn values(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.values.iter().map(|(key, value)| (key.as_str(), value))
    }

    pub(super) fn value(&self, key: &str) -> Option<&Value> {
        self.values.iter().find(|(known, _)| known == key).map(|(_, value)| value)
    }

    pub(super) fn text(&self, key: &str) -> Option<&str> {
        self.value(key)?.as_str()
    }

    /// The dtype of the token embeddings, unless they are quantised.
    pub(super) fn embedding_dtype(&self) -> Option<&'static str> {
        self.embedding.map(|(dtype, _)| dtype).filter(|dtype| !dtype.is_empty())
    }

    pub(super) fn number(&self, key: &str) -> Option<u64> {
        self.value(key)?.as_u64()
    }

    /// The tokens that end a text, or what a model says in a chat.
    pub(super) fn ends(&self) -> &[u64] {
        &self.ends
    }

    /// Rows of the token embeddings.
    pub(super) fn vocabulary(&self) -> Option<u64> {
        self.embedding.map(|(_, rows)| rows)
    }

    /// Bytes of all tensors; `None` if one has a type that is not known.
    pub(super) fn weight_bytes(&self) -> Option<u64> {
        self.weight_bytes
    }

    /// What kinds of tensors there are: their names without the layer.
    pub(super) fn tensor_kinds(&self) -> impl Iterator<Item = &str> {
        self.kinds.iter().map(String::as_str)
    }

    /// Where the tensors' bytes begin.
    pub(super) fn data(&self) -> u64 {
        self.data
    }

    /// Hash of the header's bytes.
    pub(super) fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    pub(super) fn read(source: &Source) -> Result<Self, FrontendError> {
        Self::read_tensors(source, |_| Ok(()))
    }

    /// Reads the header and hands over its tensors, one by one.
    pub(super) fn read_tensors(
        source: &Source,
        mut each: impl FnMut(TensorInfo) -> Result<(), FrontendError>,
    ) -> Result<Self, FrontendError> {
        let (mut reader, tensors, keys) = open(source)?;
        let (mut values, mut ends) = (Vec::new(), Vec::new());
        for _ in 0..keys {
            let key = reader.name()?;
            let kind = reader.u32()?;
            if key == TOKENS && kind == LIST {
                ends = reader.ends()?;
            } else if let Some(value) = reader.value(kind)? {
                reader.keep(&key, &value)?;
                values.push((key, value));
            }
        }
        let ids = ENDS_STATED.iter().filter_map(|key| values.iter().find(|(known, _)| known == key)?.1.as_u64());
        let mut ends: Vec<u64> = ids.chain(ends).collect();
        let mut known = BTreeSet::new();
        ends.retain(|id| known.insert(*id));
        let mut embedding = None;
        // A file without tensors, such as one of a vocabulary alone, says nothing of weights.
        let mut weight_bytes = (tensors > 0).then_some(0u64);
        let mut kinds = BTreeSet::new();
        for _ in 0..tensors {
            let tensor = reader.tensor()?;
            let TensorInfo { name, shape, kind, .. } = &tensor;
            let (kind, shape) = (*kind, shape.as_slice());
            let bytes = tensor_bytes(kind, shape);
            weight_bytes = weight_bytes.zip(bytes).and_then(|(sum, bytes)| sum.checked_add(bytes));
            if name == "token_embd.weight" {
                let dtype = match kind {
                    0 => "f32",
                    1 => "f16",
                    30 => "bf16",
                    _ => "",
                };
                embedding = shape.get(1).map(|&rows| (dtype, rows));
            }
            if kinds.len() < MAX_KINDS {
                kinds.insert(kind_of(name).to_owned());
            }
            each(tensor)?;
        }
        let fingerprint = reader.hash.finalize().to_hex().to_string();
        let position = reader.position;
        let alignment = values.iter().find(|(key, _)| key == "general.alignment").and_then(|(_, value)| value.as_u64());
        let data = position.next_multiple_of(alignment.unwrap_or(32).clamp(1, MAX_ALIGNMENT));
        Ok(Self { values, ends, kinds, data, embedding, weight_bytes, fingerprint })
    }
}

/// A tensor of a header.
pub(super) struct TensorInfo {
    pub(super) name: String,
    /// The fastest axis first.
    pub(super) shape: Vec<u64>,
    /// Its ggml type.
    pub(super) kind: u32,
    /// Its first byte, counted from where the tensors' bytes begin.
    pub(super) offset: u64,
}

/// The name of a tensor without its layer.
fn kind_of(name: &str) -> &str {
    let of_layer = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
    of_layer.map_or(name, |(_, kind)| kind)
}

/// Bytes of a tensor of a ggml type: elements in a block and bytes of a block.
fn tensor_bytes(kind: u32, shape: &[u64]) -> Option<u64> {
    let (elements, bytes) = match kind {
        0 | 26 => (1, 4),
        1 | 25 | 30 => (1, 2),
        24 => (1, 1),
        27 | 28 => (1, 8),
        2 | 20 => (32, 18),
        3 => (32, 20),
        6 => (32, 22),
        7 => (32, 24),
        8 => (32, 34),
        9 => (32, 40),
        10 => (256, 84),
        11 | 21 => (256, 110),
        12 => (256, 144),
        13 => (256, 176),
        14 => (256, 210),
        15 => (256, 292),
        16 => (256, 66),
        17 => (256, 74),
        18 => (256, 98),
        19 => (256, 50),
        22 => (256, 82),
        23 => (256, 136),
        29 => (256, 56),
        34 => (256, 54),
        35 => (256, 66),
        39 => (32, 17),
        40 => (64, 36),
        41 => (128, 18),
        _ => return None,
    };
    let count = shape.iter().try_fold(1u64, |product, &size| product.checked_mul(size))?;
    (count % elements == 0).then(|| (count / elements).checked_mul(bytes))?
}

/// Bytes that are read at a time.
const CHUNK: usize = 64 << 10;

fn io(file: &str, source: io::Error) -> FrontendError {
    SourceError::Io { name: file.to_owned(), source }.into()
}

pub(super) struct Reader<'a, R> {
    file: &'a str,
    source: R,
    size: u64,
    position: u64,
    /// Strings in lists so far.
    strings: u64,
    /// What is kept so far takes this.
    kept: u64,
    hash: blake3::Hasher,
}

/// A file's reader behind its first bytes; how many tensors and keys follow.
pub(super) fn open(source: &Source) -> Result<(Reader<'_, impl BufRead>, u64, u64), FrontendError> {
    let mut reader = Reader {
        file: source.name(),
        source: BufReader::with_capacity(CHUNK, source.reader()),
        size: source.len(),
        position: 0,
        strings: 0,
        kept: 0,
        hash: blake3::Hasher::new(),
    };
    if &reader.bytes::<4>()? != b"GGUF" {
        return Err(reader.bad("magic", "not GGUF", "a GGUF file was expected"));
    }
    let version = reader.u32()?;
    if !(2..=3).contains(&version) {
        return Err(reader.bad("version", &version.to_string(), "little-endian versions 2 and 3 are read"));
    }
    let (tensors, keys) = (reader.count("tensor count")?, reader.count("key count")?);
    Ok((reader, tensors, keys))
}

impl<R: BufRead> Reader<'_, R> {
    /// Charges a key and its value, the list's entries included.
    fn keep(&mut self, key: &str, value: &Value) -> Result<(), FrontendError> {
        let entries = value.as_array().map_or(1, |list| 2 * list.len());
        let text = key.len() + value.as_str().map_or(0, str::len);
        self.kept += (2 * (entries + 1) * size_of::<(String, Value)>() + text) as u64;
        let expected = format!("at most {MAX_KEPT} bytes of values are kept");
        if self.kept <= MAX_KEPT { Ok(()) } else { Err(self.bad("keys", "far too many", &expected)) }
    }

    /// Puts a value under its key; whether that is the first one there.
    pub(super) fn keep_in(
        &mut self,
        kept: &mut Map<String, Value>,
        key: &str,
        value: Value,
    ) -> Result<bool, FrontendError> {
        self.keep(key, &value)?;
        Ok(kept.insert(key.to_owned(), value).is_none())
    }

    fn bytes<const N: usize>(&mut self) -> Result<[u8; N], FrontendError> {
        let mut buffer = [0; N];
        self.fill(&mut buffer)?;
        Ok(buffer)
    }

    fn fill(&mut self, buffer: &mut [u8]) -> Result<(), FrontendError> {
        self.need(buffer.len() as u64)?;
        self.source.read_exact(buffer).map_err(|source| io(self.file, source))?;
        self.hash.update(buffer);
        self.position += buffer.len() as u64;
        Ok(())
    }

    /// Fails unless `length` more bytes are there and may be read.
    fn need(&self, length: u64) -> Result<(), FrontendError> {
        let needed = self.position.saturating_add(length);
        if needed > self.size {
            return Err(FrontendError::Truncated { file: self.file.to_owned(), needed, found: self.size });
        }
        let most = Limit::GGUF.bytes;
        if needed > most {
            let found = format!("longer than {most} bytes");
            return Err(self.bad("header", &found, "no more of it is read"));
        }
        Ok(())
    }

    fn skip(&mut self, length: u64) -> Result<(), FrontendError> {
        self.need(length)?;
        let mut left = length;
        while left > 0 {
            let chunk = self.source.fill_buf().map_err(|source| io(self.file, source))?;
            let step = left.min(chunk.len() as u64);
            if step == 0 {
                return Err(io(self.file, ErrorKind::UnexpectedEof.into()));
            }
            self.hash.update(&chunk[..step as usize]);
            self.source.consume(step as usize);
            self.position += step;
            left -= step;
        }
        Ok(())
    }

    pub(super) fn u32(&mut self) -> Result<u32, FrontendError> {
        Ok(u32::from_le_bytes(self.bytes()?))
    }

    pub(super) fn u64(&mut self) -> Result<u64, FrontendError> {
        Ok(u64::from_le_bytes(self.bytes()?))
    }

    fn count(&mut self, what: &str) -> Result<u64, FrontendError> {
        let count = self.u64()?;
        if count <= MAX_ENTRIES {
            Ok(count)
        } else {
            Err(self.bad(what, &count.to_string(), &format!("at most {MAX_ENTRIES} are read")))
        }
    }

    pub(super) fn name(&mut self) -> Result<String, FrontendError> {
        let length = self.u64()?;
        match self.string(length, MAX_NAME)? {
            Some(name) => Ok(name),
            None => Err(self.bad("name", &format!("{length} bytes long"), "a short UTF-8 name was expected")),
        }
    }

    /// Text of `length` bytes; `None` (and skipped) if it is longer than `limit` or not UTF-8.
    pub(super) fn string(&mut self, length: u64, limit: u64) -> Result<Option<String>, FrontendError> {
        self.need(length)?;
        if length > limit {
            self.skip(length)?;
            return Ok(None);
        }
        let mut bytes = vec![0; length as usize];
        self.fill(&mut bytes)?;
        Ok(String::from_utf8(bytes).ok())
    }

    /// One value; `None` if it is one of those that are skipped.
    pub(super) fn value(&mut self, kind: u32) -> Result<Option<Value>, FrontendError> {
        match kind {
            TEXT => {
                let length = self.u64()?;
                Ok(self.string(length, MAX_TEXT)?.map(Value::from))
            }
            LIST => {
                let (kind, length) = (self.u32()?, self.u64()?);
                self.list(kind, length)
            }
            _ => self.scalar(kind).map(Some),
        }
    }

    pub(super) fn scalar(&mut self, kind: u32) -> Result<Value, FrontendError> {
        Ok(match kind {
            0 => self.bytes::<1>()?[0].into(),
            1 => self.bytes::<1>()?[0].cast_signed().into(),
            2 => u16::from_le_bytes(self.bytes()?).into(),
            3 => i16::from_le_bytes(self.bytes()?).into(),
            4 => self.u32()?.into(),
            5 => i32::from_le_bytes(self.bytes()?).into(),
            6 => f32::from_le_bytes(self.bytes()?).into(),
            7 => (self.bytes::<1>()?[0] != 0).into(),
            10 => self.u64()?.into(),
            11 => i64::from_le_bytes(self.bytes()?).into(),
            12 => f64::from_le_bytes(self.bytes()?).into(),
            _ => return Err(self.bad("value type", &kind.to_string(), "a type from 0 to 12 was expected")),
        })
    }

    pub(super) fn list(&mut self, kind: u32, length: u64) -> Result<Option<Value>, FrontendError> {
        let size = match kind {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4..=6 => 4,
            10..=12 => 8,
            TEXT => return self.strings(length),
            LIST => return Err(self.bad("value type", "a list of lists", "no known key has one")),
            _ => return Err(self.bad("value type", &kind.to_string(), "a type from 0 to 12 was expected")),
        };
        let bytes = length.saturating_mul(size);
        // A length beyond the file is refused before anything is allocated.
        self.need(bytes)?;
        if length > MAX_LIST {
            self.skip(bytes)?;
            return Ok(None);
        }
        (0..length).map(|_| self.scalar(kind)).collect::<Result<Vec<_>, _>>().map(|list| Some(Value::Array(list)))
    }

    /// A list of strings, none of which is kept.
    fn strings(&mut self, length: u64) -> Result<Option<Value>, FrontendError> {
        self.charge_strings(length)?;
        for _ in 0..length {
            let length = self.u64()?;
            self.skip(length)?;
        }
        Ok(None)
    }

    /// The places of the words of a list that end what a model says.
    fn ends(&mut self) -> Result<Vec<u64>, FrontendError> {
        let mut ends = Vec::new();
        match (self.u32()?, self.u64()?) {
            (TEXT, length) => self.words(length, |id, word| {
                if word.is_some_and(|word| ENDS.contains(&word.as_str())) {
                    ends.push(id);
                }
            })?,
            (kind, length) => drop(self.list(kind, length)?),
        }
        Ok(ends)
    }

    /// A list of words, one by one with their places; `None` for one that is too long or not UTF-8.
    pub(super) fn words(
        &mut self,
        length: u64,
        mut each: impl FnMut(u64, Option<String>),
    ) -> Result<(), FrontendError> {
        self.charge_strings(length)?;
        for place in 0..length {
            let length = self.u64()?;
            each(place, self.string(length, MAX_NAME)?);
        }
        Ok(())
    }

    /// A list of numbers that have four bytes.
    pub(super) fn numbers(&mut self, kind: u32, length: u64) -> Result<Vec<f64>, FrontendError> {
        self.need(length.saturating_mul(4))?;
        let number = |bytes: [u8; 4]| match kind {
            4 => u32::from_le_bytes(bytes).into(),
            5 => i32::from_le_bytes(bytes).into(),
            _ => f32::from_le_bytes(bytes).into(),
        };
        (0..length).map(|_| self.bytes().map(number)).collect()
    }

    fn charge_strings(&mut self, length: u64) -> Result<(), FrontendError> {
        self.strings = self.strings.saturating_add(length);
        if self.strings > MAX_STRINGS {
            let expected = format!("at most {MAX_STRINGS} are read");
            return Err(self.bad("strings in lists", &self.strings.to_string(), &expected));
        }
        Ok(())
    }

    fn tensor(&mut self) -> Result<TensorInfo, FrontendError> {
        let name = self.name()?;
        let rank = self.u32()?;
        if rank > 4 {
            return Err(self.bad(&name, &format!("a tensor of {rank} axes"), "at most 4 were expected"));
        }
        let shape = (0..rank).map(|_| self.u64()).collect::<Result<Vec<u64>, _>>()?;
        let (kind, offset) = (self.u32()?, self.u64()?);
        let end = tensor_bytes(kind, &shape).unwrap_or(0).checked_add(offset);
        if end.is_none_or(|end| end > MAX_FILE) {
            let expected = "an offset inside of a file was expected";
            return Err(self.bad(&name, &format!("an offset of {offset} bytes"), expected));
        }
        Ok(TensorInfo { name, shape, kind, offset })
    }

    pub(super) fn bad(&self, key: &str, found: &str, expected: &str) -> FrontendError {
        FrontendError::BadValue {
            file: self.file.to_owned(),
            key: key.to_owned(),
            found: found.to_owned(),
            expected: expected.to_owned(),
        }
    }
}
