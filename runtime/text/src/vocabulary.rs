//! The vocabulary in a GGUF file: its keys, checked, and made what the library cuts texts by.

use std::collections::{BTreeMap, HashMap};

use serde_json::{Map, Value};
use tokenizers::models::bpe::{BPE, Merges, Vocab};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence as PreTokenizers;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{AddedToken, PreTokenizerWrapper, SplitDelimiterBehavior, TokenizerImpl, decoders, normalizers};

use crate::error::TextError;
use crate::guarded::guarded;
use crate::pieces::Pieces;
use crate::pre::{KNOWN, Pre, pre};

const MODEL: &str = "tokenizer.ggml.model";
const PRE: &str = "tokenizer.ggml.pre";
const TOKENS: &str = "tokenizer.ggml.tokens";
const MERGES: &str = "tokenizer.ggml.merges";
const SCORES: &str = "tokenizer.ggml.scores";
const KINDS: &str = "tokenizer.ggml.token_type";
const ADD_BOS: &str = "tokenizer.ggml.add_bos_token";
const ADD_EOS: &str = "tokenizer.ggml.add_eos_token";
const ADD_SPACE: &str = "tokenizer.ggml.add_space_prefix";
/// The key of the chat template.
pub(crate) const TEMPLATE: &str = "tokenizer.chat_template";

/// Keys of tokens that have a name in templates, and the token where a vocabulary of pieces states none.
const NAMED: [(&str, &str, Option<u32>); 4] = [
    ("bos_token", "tokenizer.ggml.bos_token_id", Some(1)),
    ("eos_token", "tokenizer.ggml.eos_token_id", Some(2)),
    ("unk_token", "tokenizer.ggml.unknown_token_id", Some(0)),
    ("pad_token", "tokenizer.ggml.padding_token_id", None),
];

/// The mark of a space in pieces.
const SPACE: &str = "▁";

/// A tokenizer as the library has it, over pieces.
pub(crate) type PieceTokenizer = TokenizerImpl<
    Pieces,
    tokenizers::NormalizerWrapper,
    PreTokenizerWrapper,
    tokenizers::PostProcessorWrapper,
    tokenizers::DecoderWrapper,
>;

/// What cuts texts.
pub(crate) enum Cutter {
    /// By merges, and all that the library knows.
    Library(Box<tokenizers::Tokenizer>),
    /// By scores.
    Pieces(Box<PieceTokenizer>),
}

/// The keys of a file's tokenizer.
pub(crate) struct Vocabulary<'a> {
    /// The file.
    pub(crate) file: &'a str,
    /// Texts, numbers and switches.
    pub(crate) keys: &'a Map<String, Value>,
    /// The tokens.
    pub(crate) tokens: Vec<String>,
}

/// A tokenizer that was made, and what a text begins and ends with.
pub(crate) struct Made {
    pub(crate) cutter: Cutter,
    pub(crate) first: Option<u32>,
    pub(crate) last: Option<u32>,
}

impl<'a> Vocabulary<'a> {
    /// Of these keys and lists.
    pub(crate) fn new(file: &'a str, keys: &'a Map<String, Value>, words: &mut HashMap<String, Vec<String>>) -> Self {
        let mut tokens = words.remove(TOKENS).unwrap_or_default();
        for (id, token) in tokens.iter_mut().enumerate().filter(|(_, token)| token.is_empty()) {
            *token = format!("[EMPTY_{id}]");
        }
        Self { file, keys, tokens }
    }

    /// The tokenizer, for a model that knows `vocab_size` tokens.
    pub(crate) fn make(
        mut self,
        words: &mut HashMap<String, Vec<String>>,
        numbers: &mut HashMap<String, Vec<f64>>,
        vocab_size: usize,
    ) -> Result<Made, TextError> {
        if !self.keys.contains_key(MODEL) {
            return Err(TextError::NoTokenizer { folder: self.file.to_owned() });
        }
        let Some(last) = self.tokens.last() else { return Err(self.value(TOKENS, "absent", "a list of words")) };
        if self.tokens.len() > vocab_size {
            let (file, token, id) = (self.file.to_owned(), last.clone(), self.tokens.len() as u32 - 1);
            return Err(TextError::Vocabulary { file, token, id, vocab_size });
        }
        let added = self.added(numbers)?;
        match self.text(MODEL) {
            Some("gpt2") => {
                let name = self.text(PRE);
                let pre = name.and_then(pre).ok_or_else(|| self.value(PRE, name.unwrap_or("absent"), KNOWN))?;
                let first = self.around(ADD_BOS, "bos_token", pre.adds_bos)?;
                let last = self.around(ADD_EOS, "eos_token", false)?;
                let file = self.file;
                let merges = words.remove(MERGES).unwrap_or_default();
                let tokenizer = guarded(|| self.merged(merges, pre, added)).flatten();
                let cutter = Cutter::Library(Box::new(tokenizer.map_err(|reason| not_a_tokenizer(file, reason))?));
                Ok(Made { cutter, first, last })
            }
            Some("llama") => {
                let first = self.around(ADD_BOS, "bos_token", true)?;
                let last = self.around(ADD_EOS, "eos_token", false)?;
                let scores: Vec<f32> =
                    numbers.remove(SCORES).unwrap_or_default().into_iter().map(|score| score as f32).collect();
                if scores.len() != self.tokens.len() || scores.iter().any(|score| score.is_nan()) {
                    let found = format!("a list of {}", scores.len());
                    return Err(self.value(SCORES, found, "a number for each token"));
                }
                let unknown = self.named("unk_token")?;
                let adds_space = self.switch(ADD_SPACE, true)?;
                let (file, tokens) = (self.file, std::mem::take(&mut self.tokens));
                let tokenizer = guarded(|| pieces(tokens, scores, unknown, adds_space, added)).flatten();
                let cutter = Cutter::Pieces(Box::new(tokenizer.map_err(|reason| not_a_tokenizer(file, reason))?));
                Ok(Made { cutter, first, last })
            }
            other => Err(self.value(
                MODEL,
                other.unwrap_or("no text"),
                "`gpt2` and `llama`; a tokenizer.json beside the file is taken before it",
            )),
        }
    }

    /// The chat template, if there is one.
    pub(crate) fn template(&self) -> Result<Option<&'a str>, TextError> {
        let Some(template) = self.keys.get(TEMPLATE) else { return Ok(None) };
        template.as_str().map(Some).ok_or_else(|| self.value(TEMPLATE, template.to_string(), "a text"))
    }

    /// The tokens that a template may name.
    pub(crate) fn special(&self) -> Result<BTreeMap<String, String>, TextError> {
        let mut special = BTreeMap::new();
        for (name, ..) in NAMED.iter().filter(|_| !self.tokens.is_empty()) {
            if let Some(id) = self.named(name)? {
                special.insert((*name).to_owned(), self.tokens[id as usize].clone());
            }
        }
        Ok(special)
    }

    /// A tokenizer that joins bytes by a list of merges.
    fn merged(self, merges: Vec<String>, pre: Pre, added: Vec<AddedToken>) -> Result<tokenizers::Tokenizer, String> {
        let shown = |error: tokenizers::Error| error.to_string();
        let mut vocab = Vocab::default();
        for (id, token) in (0..).zip(self.tokens) {
            if let Some(first) = vocab.insert(token, id) {
                return Err(twice(first, id));
            }
        }
        let pair = |merge: String| {
            // A space at the very beginning is a part of the first.
            let at = merge.bytes().skip(1).position(|byte| byte == b' ').map(|at| at + 1);
            at.map(|at| (merge[..at].to_owned(), merge[at + 1..].to_owned()))
                .ok_or_else(|| format!("the merge `{merge}` is not of two"))
        };
        let merges: Merges = merges.into_iter().map(pair).collect::<Result<_, String>>()?;
        let model = BPE::builder().vocab_and_merges(vocab, merges).ignore_merges(pre.whole_words);
        let mut tokenizer = tokenizers::Tokenizer::new(model.build().map_err(shown)?);
        let mut steps = Vec::new();
        for split in pre.splits {
            let pattern = SplitPattern::Regex((*split).to_owned());
            let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false);
            steps.push(split.map_err(shown)?.into());
        }
        steps.push(ByteLevel::new(false, false, false).into());
        tokenizer.with_pre_tokenizer(Some(PreTokenizers::new(steps)));
        tokenizer.with_decoder(Some(ByteLevel::default()));
        let composed = pre.composes.then_some(normalizers::unicode::NFC);
        tokenizer.with_normalizer(composed).map_err(shown)?;
        tokenizer.add_tokens(added).map_err(shown)?;
        Ok(tokenizer)
    }

    /// The tokens that are found in a text before it is cut.
    fn added(&self, numbers: &mut HashMap<String, Vec<f64>>) -> Result<Vec<AddedToken>, TextError> {
        let kinds = numbers.remove(KINDS).unwrap_or_else(|| vec![1.0; self.tokens.len()]);
        if kinds.len() != self.tokens.len() {
            let found = format!("a list of {}", kinds.len());
            return Err(self.value(KINDS, found, "a number for each token"));
        }
        let added = |(kind, token): (f64, &String)| {
            // Unknown and control; those that users defined are text like any other.
            let special = [2.0, 3.0].contains(&kind);
            (special || kind == 4.0).then(|| AddedToken::from(token.as_str(), special).normalized(false))
        };
        Ok(kinds.into_iter().zip(&self.tokens).filter_map(added).collect())
    }

    /// The token that stands before or behind each text, if the file says so, or says nothing and it is usual.
    fn around(&self, key: &'static str, name: &str, usual: bool) -> Result<Option<u32>, TextError> {
        if !self.switch(key, usual)? {
            return Ok(None);
        }
        match self.named(name)? {
            Some(id) => Ok(Some(id)),
            None => Err(self.value(id_key(name), "absent", "the id of the token that is put around texts")),
        }
    }

    /// The id of the token that templates call `name`.
    fn named(&self, name: &str) -> Result<Option<u32>, TextError> {
        let Some((_, key, usual)) = NAMED.into_iter().find(|(known, ..)| *known == name) else { return Ok(None) };
        let id = match self.keys.get(key) {
            None => return Ok(usual.filter(|id| self.text(MODEL) == Some("llama") && self.knows(*id))),
            Some(id) => id,
        };
        let known = id.as_u64().and_then(|id| u32::try_from(id).ok()).filter(|id| self.knows(*id));
        known.map(Some).ok_or_else(|| self.value(key, id.to_string(), "the id of a token"))
    }

    fn knows(&self, id: u32) -> bool {
        (id as usize) < self.tokens.len()
    }

    fn text(&self, key: &str) -> Option<&'a str> {
        self.keys.get(key)?.as_str()
    }

    fn switch(&self, key: &'static str, usual: bool) -> Result<bool, TextError> {
        let Some(value) = self.keys.get(key) else { return Ok(usual) };
        value.as_bool().ok_or_else(|| self.value(key, value.to_string(), "true and false"))
    }

    fn value(&self, key: &'static str, found: impl Into<String>, known: &'static str) -> TextError {
        TextError::Value { file: self.file.to_owned(), key, found: found.into(), known }
    }
}

/// A tokenizer that joins pieces by their scores.
fn pieces(
    tokens: Vec<String>,
    scores: Vec<f32>,
    unknown: Option<u32>,
    adds_space: bool,
    added: Vec<AddedToken>,
) -> Result<PieceTokenizer, String> {
    let shown = |error: tokenizers::Error| error.to_string();
    let model = Pieces::new(tokens, scores, unknown).map_err(|(first, second)| twice(first, second))?;
    let mut tokenizer = PieceTokenizer::new(model);
    let mut marks: Vec<tokenizers::NormalizerWrapper> = Vec::new();
    let mut words: Vec<tokenizers::DecoderWrapper> = vec![
        replace(SPACE, " ").map_err(shown)?.into(),
        decoders::byte_fallback::ByteFallback::new().into(),
        decoders::fuse::Fuse::new().into(),
    ];
    if adds_space {
        marks.push(normalizers::Prepend::new(SPACE.to_owned()).into());
        words.push(decoders::strip::Strip::new(' ', 1, 0).into());
    }
    marks.push(replace(" ", SPACE).map_err(shown)?.into());
    tokenizer.with_normalizer(Some(normalizers::Sequence::new(marks))).map_err(shown)?;
    tokenizer.with_decoder(Some(decoders::sequence::Sequence::new(words)));
    tokenizer.add_tokens(added).map_err(shown)?;
    Ok(tokenizer)
}

fn replace(from: &str, to: &str) -> tokenizers::Result<normalizers::Replace> {
    normalizers::Replace::new(from, to)
}

fn twice(first: u32, second: u32) -> String {
    format!("the tokens {first} and {second} are the same word")
}

fn id_key(name: &str) -> &'static str {
    NAMED.iter().find(|(known, ..)| *known == name).map_or("", |(_, key, _)| key)
}

fn not_a_tokenizer(file: &str, reason: String) -> TextError {
    TextError::NotATokenizer { file: file.to_owned(), reason }
}
