//! Which tokens end a text.

use std::io::ErrorKind;
use std::path::Path;

use serde_json::{Map, Value};

use crate::error::ConfigError;

const FILE: &str = "generation_config.json";
const KEY: &str = "eos_token_id";

/// `eos_token_id` of the folder's `generation_config.json`, or of the model's config if that file states none.
pub(crate) fn read(folder: &Path, config: &Map<String, Value>) -> Result<Vec<u32>, ConfigError> {
    let file = folder.join(FILE);
    let unusable = |reason: String| ConfigError::File { file: file.clone(), reason };
    let stated = match std::fs::read(&file) {
        Ok(text) => serde_json::from_slice::<Map<String, Value>>(&text).map_err(|e| unusable(e.to_string()))?,
        Err(error) if error.kind() == ErrorKind::NotFound => Map::new(),
        Err(error) => return Err(unusable(error.to_string())),
    };
    let stated = stated.get(KEY).filter(|value| !value.is_null());
    let value = stated.or_else(|| config.get(KEY)).unwrap_or(&Value::Null);
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    let ids = match value {
        Value::Null => Some(Vec::new()),
        Value::Array(ids) => ids.iter().map(id).collect(),
        one => id(one).map(|id| vec![id]),
    };
    ids.ok_or_else(|| ConfigError::Unsupported {
        key: KEY,
        found: value.to_string(),
        known: "a token id, a list of token ids, and null",
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    #[rstest]
    #[case(None, json!({"eos_token_id": 2}), &[2])]
    #[case(None, json!({"eos_token_id": [2, 5]}), &[2, 5])]
    #[case(None, json!({"eos_token_id": null}), &[])]
    #[case(None, json!({}), &[])]
    #[case(Some(r#"{"eos_token_id": [7]}"#), json!({"eos_token_id": 2}), &[7])]
    #[case(Some("{}"), json!({"eos_token_id": 2}), &[2])]
    fn the_generation_config_goes_before_the_config(
        #[case] generation: Option<&str>,
        #[case] config: Value,
        #[case] expected: &[u32],
    ) {
        let folder = tempfile::tempdir().unwrap();
        if let Some(text) = generation {
            std::fs::write(folder.path().join(FILE), text).unwrap();
        }
        assert_eq!(read(folder.path(), config.as_object().unwrap()).unwrap(), expected);
    }

    #[rstest]
    #[case(None, json!({"eos_token_id": -1}), "`eos_token_id` is `-1`")]
    #[case(None, json!({"eos_token_id": "</s>"}), "`eos_token_id` is `\"</s>\"`")]
    #[case(Some("{"), json!({}), "generation_config.json: EOF")]
    fn what_is_no_token_is_refused(#[case] generation: Option<&str>, #[case] config: Value, #[case] message: &str) {
        let folder = tempfile::tempdir().unwrap();
        if let Some(text) = generation {
            std::fs::write(folder.path().join(FILE), text).unwrap();
        }
        let error = read(folder.path(), config.as_object().unwrap()).unwrap_err();
        assert!(error.to_string().contains(message), "{error}");
    }
}
