//! The form of a file: what it is, whence, of which tokens, how long its parts are, the parts, and the sum of all that.

use std::io::{Read, Write};
use std::path::Path;

use cacheplan_files::{ReplaceError, Source, replace};

use crate::prefix::Token;

/// How names end.
pub(super) const SUFFIX: &str = ".cacheplan-prefix";

const MAGIC: &[u8; 16] = b"cacheplan prefix";
const VERSION: u32 = 1;
/// Magic, version, origin, count of tokens and of parts.
const FIXED: u64 = 16 + 4 + 32 + 4 + 4;
const SUM: u64 = 32;
/// Pools of a plan are fewer.
const MOST_PARTS: u32 = 1 << 16;
/// No sequence is longer.
const MOST_TOKENS: u32 = 1 << 24;

/// What stands before the parts.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) tokens: Vec<Token>,
    parts: Vec<u64>,
    /// Of the whole file.
    pub(super) bytes: u64,
}

impl Header {
    pub(super) fn new(tokens: &[Token], parts: &[Vec<u8>]) -> Self {
        let parts: Vec<u64> = parts.iter().map(|part| part.len() as u64).collect();
        let lists = 8 * parts.len() as u64 + 4 * tokens.len() as u64;
        let bytes = FIXED + lists + parts.iter().sum::<u64>() + SUM;
        Self { tokens: tokens.to_vec(), parts, bytes }
    }

    /// The same tokens of the same origin have the same name.
    pub(super) fn name(&self, origin: &[u8; 32]) -> String {
        let mut hasher = blake3::Hasher::new();
        hasher.update(origin);
        for token in &self.tokens {
            hasher.update(&token.to_le_bytes());
        }
        format!("{}{SUFFIX}", &hasher.finalize().to_hex()[..32])
    }

    pub(super) fn write(&self, path: &Path, origin: &[u8; 32], parts: &[Vec<u8>]) -> Result<(), ReplaceError> {
        let front = self.front(origin);
        let mut hasher = blake3::Hasher::new();
        hasher.update(&front);
        for part in parts {
            hasher.update(part);
        }
        replace(path, |out| {
            out.write_all(&front)?;
            parts.iter().try_for_each(|part| out.write_all(part))?;
            out.write_all(hasher.finalize().as_bytes())
        })
    }

    fn front(&self, origin: &[u8; 32]) -> Vec<u8> {
        let mut front = Vec::new();
        front.extend_from_slice(MAGIC);
        front.extend_from_slice(&VERSION.to_le_bytes());
        front.extend_from_slice(origin);
        front.extend_from_slice(&(self.tokens.len() as u32).to_le_bytes());
        front.extend_from_slice(&(self.parts.len() as u32).to_le_bytes());
        self.parts.iter().for_each(|part| front.extend_from_slice(&part.to_le_bytes()));
        self.tokens.iter().for_each(|token| front.extend_from_slice(&token.to_le_bytes()));
        front
    }

    /// The header of a file of this origin, or why it is none. What it says of lengths is the length that the file has.
    pub(super) fn read(path: &Path, origin: &[u8; 32]) -> Result<Self, String> {
        let source = Source::open(path).map_err(|error| error.to_string())?;
        Self::of(&source, &mut source.reader(), origin)
    }

    fn of(source: &Source, reader: &mut impl Read, origin: &[u8; 32]) -> Result<Self, String> {
        let damaged = || "it is damaged".to_owned();
        let mut take = |bytes: u64| {
            let mut taken = vec![0; bytes as usize];
            reader.read_exact(&mut taken).map(|()| taken).map_err(|_| damaged())
        };
        let fixed = take(FIXED)?;
        let number = |at: usize| fixed[at..at + 4].iter().rev().fold(0u32, |all, &byte| all << 8 | u32::from(byte));
        if fixed[..16] != MAGIC[..] {
            return Err(damaged());
        }
        if number(16) != VERSION {
            return Err(format!("its form has version {}, and this reads {VERSION}", number(16)));
        }
        if fixed[20..52] != origin[..] {
            return Err("another model, plan or version has written it".into());
        }
        let (tokens, parts) = (number(52), number(56));
        let lists = 8 * u64::from(parts) + 4 * u64::from(tokens);
        // Before any of it is allocated.
        if tokens == 0 || tokens > MOST_TOKENS || parts > MOST_PARTS || FIXED + lists + SUM > source.len() {
            return Err(damaged());
        }
        let lengths = take(8 * u64::from(parts))?;
        let lengths: Vec<u64> = lengths
            .chunks_exact(8)
            .map(|bytes| bytes.iter().rev().fold(0, |all, &byte| all << 8 | u64::from(byte)))
            .collect();
        let rest = lengths.iter().try_fold(FIXED + lists + SUM, |all, &part| all.checked_add(part));
        if rest != Some(source.len()) {
            return Err(damaged());
        }
        let tokens = take(4 * u64::from(tokens))?;
        let tokens =
            tokens.chunks_exact(4).map(|bytes| bytes.iter().rev().fold(0, |all, &byte| all << 8 | Token::from(byte)));
        Ok(Self { tokens: tokens.collect(), parts: lengths, bytes: source.len() })
    }

    /// The parts of a file of these tokens, each as long as is expected, or why there are none.
    pub(super) fn read_all(
        path: &Path,
        origin: &[u8; 32],
        tokens: &[Token],
        expected: &[u64],
    ) -> Result<Vec<Vec<u8>>, String> {
        let source = Source::open(path).map_err(|error| error.to_string())?;
        let mut reader = source.reader();
        let header = Self::of(&source, &mut reader, origin)?;
        if header.tokens != tokens || header.parts != expected {
            return Err("it is damaged: it has not what this plan's pools have of its tokens".into());
        }
        let mut hasher = blake3::Hasher::new();
        hasher.update(&header.front(origin));
        let mut parts = Vec::with_capacity(expected.len());
        for &length in expected {
            let mut part = vec![0; usize::try_from(length).map_err(|_| "it does not fit this machine".to_owned())?];
            reader.read_exact(&mut part).map_err(|error| error.to_string())?;
            hasher.update(&part);
            parts.push(part);
        }
        let mut sum = [0; SUM as usize];
        reader.read_exact(&mut sum).map_err(|error| error.to_string())?;
        if sum == *hasher.finalize().as_bytes() { Ok(parts) } else { Err("it is damaged: its sum is another".into()) }
    }
}
