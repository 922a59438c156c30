//! What the user says instead of the model's files.

use std::fmt;
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

impl fmt::Display for Assumption {
    /// As it is stated.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LayerKind { layer, kind } => write!(f, "layer.{layer}={kind}"),
            // A text that would be read as something else keeps its quotes.
            Self::Key { key, value: Value::String(text) } if serde_json::from_str::<Value>(text).is_err() => {
                write!(f, "{key}={text}")
            }
            Self::Key { key, value } => write!(f, "{key}={value}"),
        }
    }
}

impl Assumption {
    /// Refuses two about one fact.
    pub(super) fn refuse_repeated(stated: &[Self]) -> Result<(), FrontendError> {
        let is_of = |a: &Self, b: &Self| match (a, b) {
            (Self::LayerKind { layer: a, .. }, Self::LayerKind { layer: b, .. }) => a == b,
            (Self::Key { key: a, .. }, Self::Key { key: b, .. }) => a == b,
            _ => false,
        };
        let repeated = stated.iter().enumerate().find(|(at, one)| stated[..*at].iter().any(|other| is_of(other, one)));
        match repeated {
            None => Ok(()),
            Some((_, one)) => Err(FrontendError::Assumption {
                text: one.to_string(),
                reason: "another assumption says otherwise or the same of it; state one".to_owned(),
            }),
        }
    }

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
    #[case("layer.7=full_attention")]
    #[case("head_dim=128")]
    #[case("model_type=llama")]
    #[case("word=\"128\"")]
    #[case("list=[1,2]")]
    fn one_is_written_as_it_is_stated(#[case] text: &str) {
        assert_eq!(text.parse::<Assumption>().unwrap().to_string(), text);
    }

    #[test]
    fn two_about_one_fact_are_refused() {
        let of = |texts: [&str; 2]| Assumption::refuse_repeated(&texts.map(|text| text.parse().unwrap()));
        assert!(of(["head_dim=64", "head_dim=32"]).is_err());
        assert!(of(["layer.3=none", "layer.3=full_attention"]).is_err());
        assert!(of(["head_dim=64", "layer.3=full_attention"]).is_ok());
    }

    #[rstest]
    #[case("layer.x=mamba")]
    #[case("head_dim")]
    #[case("=3")]
    fn anything_else_is_refused(#[case] text: &str) {
        assert!(matches!(text.parse::<Assumption>(), Err(FrontendError::Assumption { .. })));
    }
}
