//! What the user says instead of the model's files.

use std::str::FromStr;

use serde_json::Value;

use super::values::Values;
use crate::frontend::FrontendError;

/// A fact that the caller states: `layer.7=full_attention`, `model_type=llama`, `head_dim=128`.
#[derive(Clone, Debug, PartialEq)]
pub enum Assumption {
    /// The kind of one layer.
    LayerKind {
        /// The absolute layer.
        layer: u32,
        /// Its kind, in the model's or the description's spelling.
        kind: String,
    },
    /// The value of a config key.
    Key {
        /// The key.
        key: String,
        /// Its value.
        value: Value,
    },
}

impl FromStr for Assumption {
    type Err = FrontendError;

    fn from_str(text: &str) -> Result<Self, FrontendError> {
        let wrong = |reason: &str| FrontendError::Assumption { text: text.to_owned(), reason: reason.to_owned() };
        let (key, value) = text.split_once('=').ok_or_else(|| wrong("KEY=VALUE was expected"))?;
        let (key, value) = (key.trim(), value.trim());
        if key.is_empty() || value.is_empty() {
            return Err(wrong("KEY=VALUE was expected"));
        }
        if let Some(layer) = key.strip_prefix("layer.") {
            let layer = layer.parse().map_err(|_| wrong("layer.N=KIND was expected, N the absolute layer"))?;
            return Ok(Self::LayerKind { layer, kind: value.to_owned() });
        }
        // A number, a list or a word: whatever is not JSON is text.
        let value = serde_json::from_str(value).unwrap_or_else(|_| Value::from(value));
        Ok(Self::Key { key: key.to_owned(), value })
    }
}

impl Assumption {
    /// Puts a stated key in place of the config's; layer kinds are looked at where layers are read.
    pub(super) fn apply(&self, values: &mut Values<'_>) {
        if let Self::Key { key, value } = self {
            values.set(key, value.clone());
            values.note(key.as_str(), &value, "stated by the caller", true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[test]
    fn keys_and_layers_are_told_apart() {
        let layer = Assumption::LayerKind { layer: 7, kind: "full_attention".into() };
        assert_eq!("layer.7=full_attention".parse::<Assumption>().unwrap(), layer);
        let key = Assumption::Key { key: "head_dim".into(), value: Value::from(128) };
        assert_eq!("head_dim=128".parse::<Assumption>().unwrap(), key);
    }

    #[rstest]
    #[case("layer.x=mamba")]
    #[case("head_dim")]
    #[case("=3")]
    fn anything_else_is_refused(#[case] text: &str) {
        assert!(matches!(text.parse::<Assumption>(), Err(FrontendError::Assumption { .. })));
    }
}
