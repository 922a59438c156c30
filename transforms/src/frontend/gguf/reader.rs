//! The bytes of a GGUF header: keys with values, then tensor shapes.

use std::io::Read;

use serde_json::Value;

use crate::frontend::FrontendError;

/// No header is read further than this.
const MAX_HEADER: u64 = 256 << 20;
/// Keys and tensor names are shorter than this.
const MAX_NAME: u64 = 4 << 10;
/// Text values that are kept; longer ones (chat templates) are skipped.
const MAX_TEXT: u64 = 4 << 10;
/// Lists that are kept, one entry per layer; longer ones (vocabularies) are skipped.
const MAX_LIST: u64 = 10_000;
/// The most entries of either kind that are read.
const MAX_ENTRIES: u64 = 1 << 20;
/// Names and values that are kept, in all.
const MAX_KEPT: usize = 1 << 16;

/// What a GGUF file says of its model.
pub(super) struct Header {
    values: Vec<(String, Value)>,
    embedding: Option<(&'static str, u64)>,
    weight_bytes: Option<u64>,
    fingerprint: String,
}

impl Header {
    pub(super) fn values(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.values.iter().map(|(key, value)| (key.as_str(), value))
    }

    pub(super) fn text(&self, key: &str) -> Option<&str> {
        self.values.iter().find(|(known, _)| known == key)?.1.as_str()
    }

    /// The dtype of the token embeddings, unless they are quantised.
    pub(super) fn embedding_dtype(&self) -> Option<&'static str> {
        self.embedding.map(|(dtype, _)| dtype).filter(|dtype| !dtype.is_empty())
    }

    pub(super) fn number(&self, key: &str) -> Option<u64> {
        self.values.iter().find(|(known, _)| known == key)?.1.as_u64()
    }

    /// Rows of the token embeddings.
    pub(super) fn vocabulary(&self) -> Option<u64> {
        self.embedding.map(|(_, rows)| rows)
    }

    /// Bytes of all tensors; `None` if one has a type that is not known.
    pub(super) fn weight_bytes(&self) -> Option<u64> {
        self.weight_bytes
    }

    /// Hash of the header's bytes.
    pub(super) fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    pub(super) fn read(file: &str, source: impl Read, size: u64) -> Result<Self, FrontendError> {
        let mut reader = Reader { file, source, size, position: 0, hash: blake3::Hasher::new() };
        if &reader.bytes::<4>()? != b"GGUF" {
            return Err(reader.bad("magic", "not GGUF", "a GGUF file was expected"));
        }
        let version = reader.u32()?;
        if !(2..=3).contains(&version) {
            return Err(reader.bad("version", &version.to_string(), "little-endian versions 2 and 3 are read"));
        }
        let tensors = reader.count("tensor count")?;
        let keys = reader.count("key count")?;
        let mut values = Vec::new();
        for _ in 0..keys {
            let key = reader.name()?;
            let kind = reader.u32()?;
            if let Some(value) = reader.value(kind)? {
                if values.len() >= MAX_KEPT {
                    return Err(reader.bad("key count", &keys.to_string(), "far fewer keys were expected"));
                }
                values.push((key, value));
            }
        }
        let mut embedding = None;
        let mut weight_bytes = Some(0u64);
        for _ in 0..tensors {
            let (name, shape, kind) = reader.tensor()?;
            let bytes = tensor_bytes(kind, &shape);
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
        }
        let fingerprint = reader.hash.finalize().to_hex().to_string();
        Ok(Self { values, embedding, weight_bytes, fingerprint })
    }
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

struct Reader<'a, R> {
    file: &'a str,
    source: R,
    size: u64,
    position: u64,
    hash: blake3::Hasher,
}

impl<R: Read> Reader<'_, R> {
    fn bytes<const N: usize>(&mut self) -> Result<[u8; N], FrontendError> {
        let mut buffer = [0; N];
        self.fill(&mut buffer)?;
        Ok(buffer)
    }

    fn fill(&mut self, buffer: &mut [u8]) -> Result<(), FrontendError> {
        self.need(buffer.len() as u64)?;
        let io = |source| FrontendError::Io { file: self.file.to_owned(), source };
        self.source.read_exact(buffer).map_err(io)?;
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
        if needed > MAX_HEADER {
            return Err(self.bad("header", &needed.to_string(), &format!("at most {MAX_HEADER} bytes are read")));
        }
        Ok(())
    }

    fn skip(&mut self, length: u64) -> Result<(), FrontendError> {
        self.need(length)?;
        let mut buffer = [0; 4096];
        let mut left = length;
        while left > 0 {
            let step = left.min(4096) as usize;
            self.fill(&mut buffer[..step])?;
            left -= step as u64;
        }
        Ok(())
    }

    fn u32(&mut self) -> Result<u32, FrontendError> {
        Ok(u32::from_le_bytes(self.bytes()?))
    }

    fn u64(&mut self) -> Result<u64, FrontendError> {
        Ok(u64::from_le_bytes(self.bytes()?))
    }

    fn count(&mut self, what: &str) -> Result<u64, FrontendError> {
        let count = self.u64()?;
        if count <= MAX_ENTRIES {
            Ok(count)
        } else {
            Err(self.bad(what, &count.to_string(), "far fewer were expected"))
        }
    }

    fn name(&mut self) -> Result<String, FrontendError> {
        let length = self.u64()?;
        match self.string(length, MAX_NAME)? {
            Some(name) => Ok(name),
            None => Err(self.bad("name", &format!("{length} bytes long"), "a short UTF-8 name was expected")),
        }
    }

    /// Text of `length` bytes; `None` (and skipped) if it is longer than `limit` or not UTF-8.
    fn string(&mut self, length: u64, limit: u64) -> Result<Option<String>, FrontendError> {
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
    fn value(&mut self, kind: u32) -> Result<Option<Value>, FrontendError> {
        match kind {
            8 => {
                let length = self.u64()?;
                Ok(self.string(length, MAX_TEXT)?.map(Value::from))
            }
            9 => {
                let (kind, length) = (self.u32()?, self.u64()?);
                self.list(kind, length)
            }
            _ => self.scalar(kind).map(Some),
        }
    }

    fn scalar(&mut self, kind: u32) -> Result<Value, FrontendError> {
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

    fn list(&mut self, kind: u32, length: u64) -> Result<Option<Value>, FrontendError> {
        // Every entry takes at least a byte, so that a length beyond the file is refused before anything is allocated.
        self.need(length)?;
        let keep = length <= MAX_LIST && !matches!(kind, 8 | 9);
        let mut list = Vec::new();
        for _ in 0..length {
            match kind {
                8 => {
                    let length = self.u64()?;
                    self.skip(length)?;
                }
                9 => return Err(self.bad("value type", "a list of lists", "no known key has one")),
                _ => {
                    let value = self.scalar(kind)?;
                    if keep {
                        list.push(value);
                    }
                }
            }
        }
        Ok(keep.then_some(Value::Array(list)))
    }

    fn tensor(&mut self) -> Result<(String, Vec<u64>, u32), FrontendError> {
        let name = self.name()?;
        let rank = self.u32()?;
        if rank > 4 {
            return Err(self.bad(&name, &format!("a tensor of {rank} axes"), "at most 4 were expected"));
        }
        let shape = (0..rank).map(|_| self.u64()).collect::<Result<Vec<u64>, _>>()?;
        let kind = self.u32()?;
        self.skip(8)?;
        Ok((name, shape, kind))
    }

    fn bad(&self, key: &str, found: &str, expected: &str) -> FrontendError {
        FrontendError::BadValue {
            file: self.file.to_owned(),
            key: key.to_owned(),
            found: found.to_owned(),
            expected: expected.to_owned(),
        }
    }
}
