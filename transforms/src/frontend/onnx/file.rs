//! Decodes a model from a file of any size: what the messages do not name is jumped over, never read.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use prost::Message;
use prost::bytes::Buf;

use super::proto::ModelProto;
use crate::frontend::FrontendError;

/// Names, shapes and attributes above this are refused; those of the largest models are a few MiB.
const MAX_STRUCTURE: u64 = 32 << 20;
const CHUNK: usize = 16 << 10;

/// The model in a file, without its weights, and the hash of what was read.
pub(super) fn decode(path: &Path) -> Result<(ModelProto, String), FrontendError> {
    let name = path.display().to_string();
    let mut buffer = FileBuf::open(path).map_err(|source| FrontendError::Io { file: name.clone(), source })?;
    let decoded = ModelProto::decode(&mut buffer);
    if let Some(source) = buffer.error {
        return Err(FrontendError::Io { file: name, source });
    }
    let model = decoded.map_err(|error| FrontendError::Onnx {
        file: name,
        node: "model".to_owned(),
        reason: format!("not a valid ONNX message: {error}"),
    })?;
    Ok((model, buffer.hash.finalize().to_hex().to_string()))
}

struct FileBuf {
    file: File,
    chunk: Vec<u8>,
    position: usize,
    /// Bytes of the file behind the chunk.
    left: u64,
    /// Bytes that were read rather than jumped over.
    read: u64,
    error: Option<io::Error>,
    hash: blake3::Hasher,
}

impl FileBuf {
    fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let left = file.metadata()?.len();
        let (chunk, hash) = (Vec::with_capacity(CHUNK), blake3::Hasher::new());
        let mut buffer = Self { file, chunk, position: 0, left, read: 0, error: None, hash };
        buffer.refill();
        Ok(buffer)
    }

    fn refill(&mut self) {
        let step = self.left.min(CHUNK as u64);
        self.chunk.clear();
        self.position = 0;
        if step == 0 {
            return;
        }
        let result = if self.read > MAX_STRUCTURE {
            let text = format!("more than {MAX_STRUCTURE} bytes of names and shapes");
            Err(io::Error::new(io::ErrorKind::FileTooLarge, text))
        } else {
            Read::by_ref(&mut self.file).take(step).read_to_end(&mut self.chunk).map(|_| ())
        };
        match result {
            Ok(()) if self.chunk.len() as u64 == step => {
                self.hash.update(&self.chunk);
                self.left -= step;
                self.read += step;
            }
            // The decoder sees the end of the input; `decode` reports the cause.
            Ok(()) => self.fail(io::ErrorKind::UnexpectedEof.into()),
            Err(error) => self.fail(error),
        }
    }

    fn fail(&mut self, error: io::Error) {
        self.chunk.clear();
        self.left = 0;
        self.error = Some(error);
    }
}

impl Buf for FileBuf {
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
        let jump = ((count - here) as u64).min(self.left);
        if jump > 0 {
            let moved = i64::try_from(jump).map_err(io::Error::other);
            match moved.and_then(|jump| self.file.seek(SeekFrom::Current(jump))) {
                Ok(_) => self.left -= jump,
                Err(error) => return self.fail(error),
            }
        }
        self.refill();
    }
}
