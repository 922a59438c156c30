//! A line of this command that was pasted: what it says besides the engine's command behind its `--`.

use std::collections::BTreeMap;

use cacheplan_planner::{BudgetKey, Override};
use cacheplan_serve::Launch;

use crate::answers::Refused;

/// `cacheplan plan --device h100 … -- vllm serve …`.
#[derive(Default)]
pub(crate) struct Pasted {
    pub(crate) launches: Vec<Launch>,
    pub(crate) device: Option<String>,
    pub(crate) version: Option<String>,
    pub(crate) expected_sequences: Option<u64>,
    /// What `--model-config` names.
    pub(crate) model_config: Option<String>,
    /// Keys of the budget, by their flags.
    pub(crate) overrides: Vec<Override>,
    /// Words that the page does nothing with.
    pub(crate) left_out: Vec<String>,
}

impl Pasted {
    /// The line, if the text is one.
    pub(crate) fn of(text: &str) -> Result<Option<Self>, Refused> {
        let text = text.trim();
        let text = text.strip_prefix("$ ").unwrap_or(text).replace("\\\r\n", "").replace("\\\n", "");
        let is_ours = |word: &String| word.rsplit(['/', '\\']).next().is_some_and(|name| name == "cacheplan");
        // What is no line of a shell is no line of ours.
        let Some(words) = shlex::split(&text).filter(|words| words.first().is_some_and(is_ours)) else {
            return Ok(None);
        };
        let Some(at) = words.iter().position(|word| word == "--") else {
            let said =
                "this line of cacheplan has no command of an engine behind `--`; a model is planned by the other way";
            return Err(Refused::usage(said));
        };
        let launches = Launch::from_words(words[at + 1..].to_vec(), &BTreeMap::new()).map_err(Refused::usage)?;
        let mut pasted = Self { launches, ..Self::default() };
        let mut rest = words[1..at].iter().skip_while(|word| !word.starts_with('-')).peekable();
        while let Some(word) = rest.next() {
            let (flag, own) = word.split_once('=').map_or((word.as_str(), None), |(flag, value)| (flag, Some(value)));
            let value = own.or_else(|| rest.next_if(|next| !next.starts_with("--")).map(String::as_str));
            if !pasted.takes(flag, value) {
                let value = value.map_or(String::new(), |value| format!(" {value}"));
                pasted.left_out.push(format!("{flag}{value}"));
            }
        }
        Ok(Some(pasted))
    }

    /// Whether a flag means something here.
    fn takes(&mut self, flag: &str, value: Option<&str>) -> bool {
        let Some(value) = value else { return false };
        match flag {
            "--device" | "--device-memory" => self.device = Some(value.to_owned()),
            "--engine-version" => self.version = Some(value.to_owned()),
            "--model-config" => self.model_config = Some(value.rsplit('=').next().unwrap_or(value).to_owned()),
            "--expect-sequences" => match value.parse() {
                Ok(number) => self.expected_sequences = Some(number),
                Err(_) => return false,
            },
            flag => match BudgetKey::all().iter().find(|key| key.flag == flag) {
                Some(key) => self.overrides.push(Override::by_flag(key.path, value, key.flag)),
                None => return false,
            },
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_ours_says_what_its_command_is_asked_with() {
        let text = "$ cacheplan plan --device rtx-4090 --weights=4.92GB --reserve 1GiB --strict --format json \\\n  \
                    --model-config llama.json -- llama-server -m x.gguf -c 8192";
        let pasted = Pasted::of(text).unwrap().unwrap();
        assert_eq!(pasted.launches[0].words.join(" "), "llama-server -m x.gguf -c 8192");
        let stated: Vec<(&str, &str)> = pasted.overrides.iter().map(|over| (&*over.key, &*over.value)).collect();
        assert_eq!(stated, [("memory.weights", "4.92GB"), ("memory.reserve", "1GiB")]);
        assert_eq!([&pasted.device, &pasted.model_config], [&Some("rtx-4090".into()), &Some("llama.json".into())]);
        assert_eq!(pasted.left_out, ["--strict", "--format json"]);
    }

    #[test]
    fn other_texts_are_none_of_ours() {
        for text in ["vllm serve m", "apiVersion: v1", "it's", ""] {
            assert!(Pasted::of(text).unwrap().is_none(), "{text}");
        }
        assert!(Pasted::of("cacheplan plan MODEL --device h100").is_err());
    }
}
