//! Decodes a model from a file of any size: weights, and what the messages do not name, are jumped over, never read.

use cacheplan_files::{Limit, Source, SourceError};
use prost::Message;
use prost::bytes::{Buf, Bytes};

use crate::frontend::FrontendError;
use crate::onnx::{ModelProto, OnnxError, weigh};

const CHUNK: u64 = 16 << 10;

/// Bytes of the longest number.
const LONGEST_NUMBER: usize = 10;

/// The model in a file, without its weights, and the hash of what was read.
pub(super) fn decode(source: &Source) -> Result<(ModelProto, String), FrontendError> {
    read(source, |buffer| weigh(buffer))?;
    read(source, |buffer| Ok(ModelProto::decode(buffer)?))
}

/// What `decode` makes of a file, and the hash of what it read.
fn read<T>(
    source: &Source,
    decode: impl FnOnce(&mut FileBuf<'_>) -> Result<T, OnnxError>,
) -> Result<(T, String), FrontendError> {
    let mut buffer = FileBuf::new(source);
    let decoded = decode(&mut buffer);
    if let Some(error) = buffer.error {
        return Err(error.into());
    }
    let decoded = decoded.map_err(|error| FrontendError::Onnx {
        file: source.name().to_owned(),
        node: "model".to_owned(),
        reason: error.to_string(),
    })?;
    Ok((decoded, buffer.hash.finalize().to_hex().to_string()))
}

struct FileBuf<'a> {
    source: &'a Source,
    chunk: Vec<u8>,
    position: usize,
    /// Bytes of the file behind the chunk.
    left: u64,
    /// Bytes that were read rather than jumped over.
    read: u64,
    error: Option<SourceError>,
    hash: blake3::Hasher,
}

impl<'a> FileBuf<'a> {
    fn new(source: &'a Source) -> Self {
        let (chunk, hash) = (Vec::with_capacity(CHUNK as usize), blake3::Hasher::new());
        let mut buffer = Self { source, chunk, position: 0, left: source.len(), read: 0, error: None, hash };
        buffer.refill();
        buffer
    }

    fn refill(&mut self) {
        let step = self.left.min(CHUNK);
        self.position = 0;
        self.chunk.clear();
        if self.read + step > Limit::ONNX.bytes {
            return self.fail(SourceError::TooLong { name: self.source.name().to_owned(), limit: Limit::ONNX });
        }
        self.chunk.resize(step as usize, 0);
        if let Err(error) = self.source.read_exact_at(&mut self.chunk, self.source.len() - self.left) {
            return self.fail(error);
        }
        self.hash.update(&self.chunk);
        self.left -= step;
        self.read += step;
    }

    /// The decoder sees zeros, which end whatever number it is in the midst of, and then the end; `decode` reports the cause.
    fn fail(&mut self, error: SourceError) {
        self.chunk.clear();
        self.chunk.resize(CHUNK as usize, 0);
        self.left = 0;
        self.error = Some(error);
    }
}

impl Buf for FileBuf<'_> {
    fn remaining(&self) -> usize {
        usize::try_from(self.left).unwrap_or(usize::MAX).saturating_add(self.chunk.len() - self.position)
    }

    fn chunk(&self) -> &[u8] {
        &self.chunk[self.position..]
    }

    fn advance(&mut self, count: usize) {
        let here = self.chunk.len() - self.position;
        if count < here {
            self.position += count;
            return;
        }
        self.left -= ((count - here) as u64).min(self.left);
        self.refill();
    }

    /// Bytes are the data of tensors, and texts of attributes: all but single numbers is jumped over.
    fn copy_to_bytes(&mut self, count: usize) -> Bytes {
        if count > LONGEST_NUMBER {
            self.advance(count);
            return Bytes::new();
        }
        let mut bytes = [0; LONGEST_NUMBER];
        self.copy_to_slice(&mut bytes[..count]);
        Bytes::copy_from_slice(&bytes[..count])
    }
}
