//! Which keys the config classes of Hugging Face transformers have, as `cargo xtask transformers` writes them down.

use serde_json::Value;

/// One class a line: its model type, a tab, and its keys, those with a default that matters as `key=default`.
const CLASSES: &str = include_str!("classes.tsv");

/// The keys of one class.
#[derive(Clone, Copy)]
pub(super) struct Class {
    keys: &'static str,
}

impl Class {
    /// The class of a model type, of its decoder where it has other parts too; `None` if transformers has none.
    pub(super) fn of(model_type: &str) -> Option<Self> {
        let of = |wanted: &str| {
            let mut rows = CLASSES.lines().filter_map(|line| line.split_once('\t'));
            rows.find(|(name, _)| *name == wanted).map(|(_, keys)| Self { keys })
        };
        // A decoder that transformers knows inside of a wrapper only.
        of(model_type).or_else(|| of(model_type.strip_suffix("_text")?))
    }

    /// What all classes have.
    pub(super) fn common() -> Self {
        Self::of("*").unwrap_or(Self { keys: "" })
    }

    /// Whether the class has a key of its own.
    pub(super) fn has(self, key: &str) -> bool {
        self.entries().any(|(name, _)| name == key)
    }

    /// What the class takes for keys that are absent, as far as that is written down: flags, and numbers of towers.
    pub(super) fn defaults(self) -> impl Iterator<Item = (&'static str, u64)> {
        self.entries().filter_map(|(name, default)| {
            let default = match serde_json::from_str(default?).ok()? {
                Value::Bool(flag) => u64::from(flag),
                // One number for height and width; of several no entry stands for all.
                Value::Array(list) => list.first().filter(|first| list.iter().all(|of| of == *first))?.as_u64()?,
                number => number.as_u64()?,
            };
            Some((name, default))
        })
    }

    fn entries(self) -> impl Iterator<Item = (&'static str, Option<&'static str>)> {
        self.keys.split(' ').map(|entry| entry.split_once('=').map_or((entry, None), |(key, of)| (key, Some(of))))
    }
}

/// The sizes of a decoder whose wrapper's files leave them out, as transformers 5.23.0 has them: LLaVA's.
pub(super) fn sizes(decoder: &str) -> Option<&'static [(&'static str, u64)]> {
    Some(match decoder {
        "llama" => &[
            ("hidden_size", 4096),
            ("intermediate_size", 11_008),
            ("num_attention_heads", 32),
            ("num_hidden_layers", 32),
            ("vocab_size", 32_000),
        ],
        "mistral" => &[
            ("hidden_size", 4096),
            ("intermediate_size", 14_336),
            ("num_attention_heads", 32),
            ("num_hidden_layers", 32),
            ("num_key_value_heads", 8),
            ("vocab_size", 32_000),
        ],
        _ => return None,
    })
}
