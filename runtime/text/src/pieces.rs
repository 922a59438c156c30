//! SentencePiece's tokens: pairs of pieces are joined, those first that make the piece with the highest score.
//!
//! The library's own joins by a list of merges, which such a vocabulary lacks, and pieces of the same score are joined from
//! the left here.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};
use std::path::{Path, PathBuf};

use tokenizers::models::bpe::BpeTrainer;
use tokenizers::{Model, Result, Token};

/// A vocabulary with scores.
#[derive(Clone, Debug)]
pub(crate) struct Pieces {
    ids: HashMap<String, u32>,
    pieces: Vec<String>,
    scores: Vec<f32>,
    /// The tokens of single bytes, for what is no piece.
    bytes: [Option<u32>; 256],
    unknown: Option<u32>,
    /// Bytes of the longest piece.
    longest: usize,
}

impl Pieces {
    /// Those of a vocabulary: each piece's place is its id. `Err` has two places of the same piece.
    pub(crate) fn new(
        pieces: Vec<String>,
        scores: Vec<f32>,
        unknown: Option<u32>,
    ) -> std::result::Result<Self, (u32, u32)> {
        let mut ids = HashMap::with_capacity(pieces.len());
        for (id, piece) in (0..).zip(&pieces) {
            if let Some(first) = ids.insert(piece.clone(), id) {
                return Err((first, id));
            }
        }
        let mut bytes = [None; 256];
        for (byte, token) in (0..=u8::MAX).zip(&mut bytes) {
            *token = ids.get(&format!("<0x{byte:02X}>")).copied();
        }
        let longest = pieces.iter().map(String::len).max().unwrap_or(0);
        Ok(Self { ids, pieces, scores, bytes, unknown, longest })
    }

    /// The piece that two make that stand side by side, if there is one.
    fn joined(&self, text: &str, symbols: &[Symbol], left: usize) -> Option<Join> {
        let right = symbols[left].next?;
        let (start, end) = (symbols[left].start, symbols[right].end);
        if end - start > self.longest {
            return None;
        }
        let id = *self.ids.get(&text[start..end])?;
        Some(Join { score: self.scores[id as usize], left, right, length: end - start })
    }

    fn push(&self, text: &str, start: usize, tokens: &mut Vec<Token>) -> Result<()> {
        let token = |id: u32, start, end| Token::new(id, self.pieces[id as usize].clone(), (start, end));
        if let Some(&id) = self.ids.get(text) {
            tokens.push(token(id, start, start + text.len()));
            return Ok(());
        }
        for (at, byte) in (start..).zip(text.bytes()) {
            let id = self.bytes[usize::from(byte)].or(self.unknown);
            let id = id.ok_or_else(|| format!("the vocabulary has no token for the byte 0x{byte:02X}"))?;
            tokens.push(token(id, at, at + 1));
        }
        Ok(())
    }
}

/// A part of a text: a character, or what became of some.
struct Symbol {
    start: usize,
    /// Where it ends; its start if it is part of another now.
    end: usize,
    before: Option<usize>,
    next: Option<usize>,
}

/// Two symbols that may become one.
struct Join {
    score: f32,
    left: usize,
    right: usize,
    /// Bytes of both; other ones have become longer since.
    length: usize,
}

impl Ord for Join {
    fn cmp(&self, other: &Self) -> Ordering {
        self.score.total_cmp(&other.score).then(other.left.cmp(&self.left))
    }
}

impl PartialOrd for Join {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Join {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Join {}

impl Model for Pieces {
    type Trainer = BpeTrainer;

    fn tokenize(&self, text: &str) -> Result<Vec<Token>> {
        let mut symbols: Vec<Symbol> = text
            .char_indices()
            .enumerate()
            .map(|(place, (start, char))| Symbol {
                start,
                end: start + char.len_utf8(),
                before: place.checked_sub(1),
                next: Some(place + 1),
            })
            .collect();
        if let Some(last) = symbols.last_mut() {
            last.next = None;
        }
        let mut joins: BinaryHeap<Join> =
            (0..symbols.len()).filter_map(|left| self.joined(text, &symbols, left)).collect();
        while let Some(Join { left, right, length, .. }) = joins.pop() {
            let end = symbols[right].end;
            let is_gone = |symbol: &Symbol| symbol.start == symbol.end;
            if is_gone(&symbols[left]) || is_gone(&symbols[right]) || end - symbols[left].start != length {
                continue;
            }
            let next = symbols[right].next;
            symbols[right].end = symbols[right].start;
            symbols[left].end = end;
            symbols[left].next = next;
            if let Some(next) = next {
                symbols[next].before = Some(left);
            }
            let before = symbols[left].before.and_then(|before| self.joined(text, &symbols, before));
            joins.extend(before.into_iter().chain(self.joined(text, &symbols, left)));
        }
        let mut tokens = Vec::new();
        let mut next = (!symbols.is_empty()).then_some(0);
        while let Some(symbol) = next.map(|place| &symbols[place]) {
            self.push(&text[symbol.start..symbol.end], symbol.start, &mut tokens)?;
            next = symbol.next;
        }
        Ok(tokens)
    }

    fn token_to_id(&self, token: &str) -> Option<u32> {
        self.ids.get(token).copied()
    }

    fn id_to_token(&self, id: u32) -> Option<String> {
        self.pieces.get(id as usize).cloned()
    }

    fn get_vocab(&self) -> HashMap<String, u32> {
        self.ids.clone()
    }

    fn get_vocab_size(&self) -> usize {
        self.pieces.len()
    }

    fn save(&self, _: &Path, _: Option<&str>) -> Result<Vec<PathBuf>> {
        Err("a vocabulary of a GGUF file is not written".into())
    }

    fn get_trainer(&self) -> BpeTrainer {
        BpeTrainer::default()
    }
}
