//! Tokenizers as GGUF files have them: a vocabulary, and names of rules. They become what a `tokenizer.json` would say.

use std::collections::{BTreeMap, HashMap};

use cacheplan_files::Source;
use serde_json::{Map, Value, json};

use crate::error::TextError;
use crate::template::ChatTemplate;
use crate::tokenizer::Tokenizer;

/// Pieces that are longer are no words; making one of parts would take too long.
const LONGEST_PIECE: usize = 128;

/// What the kinds of `tokenizer.ggml.token_type` mean here.
const NORMAL: u64 = 1;
const CONTROL: u64 = 3;
const USER_DEFINED: u64 = 4;

/// How a text is cut before pieces are merged, by the names of `tokenizer.ggml.pre`.
struct Rules {
    names: &'static [&'static str],
    patterns: &'static [&'static str],
    /// A word that is a token is taken whole.
    whole_words: bool,
    /// A text begins with a token of its own, unless the file says otherwise.
    begins: bool,
    /// Composed characters, as the makers' own tokenizer has them.
    composes: bool,
}

/// The names that there are rules for.
const NAMES: &str = "gpt-2, phi-2, llama3, llama-v3, llama-bpe, falcon3, falcon-h1, pixtral, lfm2, qwen2, \
                     deepseek-r1-qwen, qwen35, smollm, starcoder, refact, command-r, gpt-4o, llama4 and tekken";

const GPT_2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

static RULES: [Rules; 7] = [
    Rules { names: &["gpt-2", "phi-2"], patterns: &[GPT_2], whole_words: false, begins: false, composes: false },
    Rules {
        names: &["llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "lfm2"],
        patterns: &[
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ],
        whole_words: true,
        begins: true,
        composes: false,
    },
    Rules {
        names: &["qwen2", "deepseek-r1-qwen"],
        patterns: &[
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ],
        whole_words: false,
        begins: false,
        composes: true,
    },
    Rules {
        names: &["qwen35"],
        patterns: &[
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ],
        whole_words: false,
        begins: false,
        composes: true,
    },
    Rules {
        names: &["smollm", "starcoder", "refact", "command-r"],
        patterns: &[r"\p{N}", GPT_2],
        whole_words: false,
        begins: false,
        composes: false,
    },
    Rules {
        names: &["gpt-4o", "llama4"],
        patterns: &[
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ],
        whole_words: false,
        begins: false,
        composes: false,
    },
    Rules {
        names: &["tekken"],
        patterns: &[
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ],
        whole_words: true,
        begins: true,
        composes: false,
    },
];

impl Tokenizer {
    /// The tokenizer of a GGUF file, of which `keys` are those below `tokenizer.`.
    ///
    /// # Errors
    /// A kind of vocabulary, or a rule, that is not known; a vocabulary that is none, or another model's.
    pub fn of_gguf(file: &str, keys: &Map<String, Value>, vocab_size: usize) -> Result<Self, TextError> {
        let json = Vocabulary { file, keys }.to_json()?;
        Self::read(&Source::memory(file, json.to_string()), vocab_size)
    }
}

impl ChatTemplate {
    /// The chat template of a GGUF file, of which `keys` are those below `tokenizer.`; `None` where it has none.
    ///
    /// # Errors
    /// A template that is not of its language.
    pub fn of_gguf(file: &str, keys: &Map<String, Value>) -> Result<Option<Self>, TextError> {
        let vocabulary = Vocabulary { file, keys };
        let Some(text) = vocabulary.text("tokenizer.chat_template") else { return Ok(None) };
        let special: BTreeMap<String, String> = ["bos", "eos"]
            .into_iter()
            .filter_map(|which| {
                let token = vocabulary.token(vocabulary.special(which)?)?;
                Some((format!("{which}_token"), token.to_owned()))
            })
            .collect();
        Self::new(&format!("{file}: tokenizer.chat_template"), text, special).map(Some)
    }
}

/// The keys of a GGUF file that are its tokenizer's.
struct Vocabulary<'a> {
    file: &'a str,
    keys: &'a Map<String, Value>,
}

impl<'a> Vocabulary<'a> {
    fn to_json(&self) -> Result<Value, TextError> {
        let value = |key: &'static str, found: &str, known: &'static str| TextError::Value {
            file: self.file.to_owned(),
            key,
            found: format!("`{found}`"),
            known,
        };
        let mut json = match self.text("tokenizer.ggml.model").unwrap_or_default() {
            "llama" => self.of_scores()?,
            "gpt2" => {
                let name = self.text("tokenizer.ggml.pre").unwrap_or("default");
                let rules = RULES.iter().find(|rules| rules.names.contains(&name));
                self.of_merges(rules.ok_or_else(|| value("tokenizer.ggml.pre", name, NAMES))?)?
            }
            other => return Err(value("tokenizer.ggml.model", other, "llama and gpt2")),
        };
        json["version"] = "1.0".into();
        json["added_tokens"] = self.added()?.into();
        Ok(json)
    }

    /// Pieces of bytes, merged in the order of a list.
    fn of_merges(&self, rules: &Rules) -> Result<Value, TextError> {
        let merges = self.list("tokenizer.ggml.merges")?.iter().filter_map(Value::as_str);
        let merges: Vec<_> = merges.filter_map(|merge| merge.split_once(' ')).map(|(a, b)| json!([a, b])).collect();
        let isolated = |pattern: &&str| json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false});
        let mut cuts: Vec<Value> = rules.patterns.iter().map(isolated).collect();
        cuts.push(json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}));
        Ok(json!({
            "normalizer": rules.composes.then(|| json!({"type": "NFC"})),
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": cuts},
            "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
            "post_processor": self.around(rules.begins),
            "model": {
                "type": "BPE", "ignore_merges": rules.whole_words, "vocab": self.ids()?, "merges": merges,
            },
        }))
    }

    /// SentencePiece's: pieces of text, of which the two that make the piece with the highest score are merged first, and
    /// bytes for what is in no piece.
    fn of_scores(&self) -> Result<Value, TextError> {
        let scores = self.list("tokenizer.ggml.scores")?;
        let pieces: HashMap<&str, (usize, f64)> = self
            .tokens()?
            .zip(scores)
            .enumerate()
            .filter(|(id, _)| self.kind(*id) == NORMAL)
            .map(|(id, (piece, score))| (piece, (id, score.as_f64().unwrap_or(0.0))))
            .collect();
        let mut merges = Vec::new();
        for (piece, (_, score)) in pieces.iter().filter(|(piece, _)| piece.chars().count() <= LONGEST_PIECE) {
            let cuts = piece.char_indices().skip(1).map(|(at, _)| piece.split_at(at));
            merges.extend(cuts.filter_map(|(a, b)| Some((*score, pieces.get(a)?.0, pieces.get(b)?.0, a, b))));
        }
        // Of equal scores the tokens with the lower ids come first.
        merges.sort_by(|left, right| right.0.total_cmp(&left.0).then((left.1, left.2).cmp(&(right.1, right.2))));
        let merges: Vec<Value> = merges.into_iter().map(|(_, _, _, a, b)| json!([a, b])).collect();
        let prefix = self.switch("tokenizer.ggml.add_space_prefix").unwrap_or(true);
        let mut normalizers = vec![json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"})];
        let mut decoders = vec![
            json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "}),
            json!({"type": "ByteFallback"}),
            json!({"type": "Fuse"}),
        ];
        if prefix {
            normalizers.insert(0, json!({"type": "Prepend", "prepend": "▁"}));
            decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
        }
        let unknown = self.special("unknown").and_then(|id| self.token(id));
        Ok(json!({
            "normalizer": {"type": "Sequence", "normalizers": normalizers},
            "decoder": {"type": "Sequence", "decoders": decoders},
            "post_processor": self.around(true),
            "model": {
                "type": "BPE", "unk_token": unknown, "fuse_unk": true, "byte_fallback": true, "vocab": self.ids()?,
                "merges": merges,
            },
        }))
    }

    /// What is put around a text.
    fn around(&self, begins: bool) -> Option<Value> {
        let added = |key: &str, which: &str, otherwise: bool| {
            let id = self.special(which).filter(|_| self.switch(key).unwrap_or(otherwise))?;
            Some((id, self.token(id)?))
        };
        let begin = added("tokenizer.ggml.add_bos_token", "bos", begins);
        let end = added("tokenizer.ggml.add_eos_token", "eos", false);
        let special = |(_, token): (usize, &str)| json!({"SpecialToken": {"id": token, "type_id": 0}});
        let text = json!({"Sequence": {"id": "A", "type_id": 0}});
        let single: Vec<Value> = begin.map(special).into_iter().chain([text]).chain(end.map(special)).collect();
        let tokens: Map<String, Value> = begin
            .into_iter()
            .chain(end)
            .map(|(id, token)| (token.to_owned(), json!({"id": token, "ids": [id], "tokens": [token]})))
            .collect();
        (!tokens.is_empty()).then(|| {
            let pair = json!([{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}]);
            json!({"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": tokens})
        })
    }

    /// Tokens that are found in a text before it is cut; those that steer a model are no part of what it says.
    fn added(&self) -> Result<Vec<Value>, TextError> {
        let added = |(id, token): (usize, &str)| {
            let kind = self.kind(id);
            let special = kind == CONTROL || self.special("unknown") == Some(id);
            (special || kind == USER_DEFINED).then(|| {
                json!({
                    "id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false,
                    "normalized": false, "special": special,
                })
            })
        };
        Ok(self.tokens()?.enumerate().filter_map(added).collect())
    }

    fn ids(&self) -> Result<Map<String, Value>, TextError> {
        Ok(self.tokens()?.enumerate().map(|(id, token)| (token.to_owned(), id.into())).collect())
    }

    fn tokens(&self) -> Result<impl Iterator<Item = &'a str>, TextError> {
        Ok(self.list("tokenizer.ggml.tokens")?.iter().map(|token| token.as_str().unwrap_or_default()))
    }

    fn token(&self, id: usize) -> Option<&'a str> {
        self.keys.get("tokenizer.ggml.tokens")?.as_array()?.get(id)?.as_str()
    }

    fn kind(&self, id: usize) -> u64 {
        let kinds = self.keys.get("tokenizer.ggml.token_type").and_then(Value::as_array);
        kinds.and_then(|kinds| kinds.get(id)?.as_u64()).unwrap_or(NORMAL)
    }

    /// The id of the token that is `bos`, `eos` or `unknown`.
    fn special(&self, which: &str) -> Option<usize> {
        let id = self.keys.get(&format!("tokenizer.ggml.{which}_token_id"))?.as_u64()?;
        usize::try_from(id).ok()
    }

    fn text(&self, key: &str) -> Option<&'a str> {
        self.keys.get(key)?.as_str()
    }

    fn switch(&self, key: &str) -> Option<bool> {
        self.keys.get(key)?.as_bool()
    }

    fn list(&self, key: &'static str) -> Result<&'a [Value], TextError> {
        let list = self.keys.get(key).and_then(Value::as_array);
        list.map(Vec::as_slice).ok_or_else(|| TextError::Value {
            file: self.file.to_owned(),
            key,
            found: "absent".to_owned(),
            known: "a list with an entry per token, or per merge",
        })
    }
}
