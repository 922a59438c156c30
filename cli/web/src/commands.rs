//! Commands and manifests that start an engine: what they name, and what they would do.

use cacheplan_planner::{Devices, Override};
use cacheplan_serve::{Asked, Launch, Models, Options, Question, Refusal, ServeError, answer, line, manifest};
use serde_json::{Value, json};

use crate::answers::{Refused, json_of};
use crate::pasted::Pasted;
use crate::question::CommandText;

/// The commands of a text, and what is asked of them.
struct Read {
    launches: Vec<Launch>,
    options: Options,
    pasted: Pasted,
}

impl CommandText {
    fn read(&self) -> Result<Read, Refused> {
        let mut pasted = Pasted::of(&self.text)?.unwrap_or_default();
        let launches = match std::mem::take(&mut pasted.launches) {
            none if none.is_empty() => manifest::read(&self.name, self.text.as_bytes()).map_err(Refused::usage)?,
            launches => launches,
        };
        let device = Some(self.device.trim()).filter(|text| !text.is_empty()).or(pasted.device.as_deref());
        let devices = device.map(str::parse::<Devices>).transpose().map_err(Refused::usage)?;
        let fields = [
            ("engine.cache_bytes", &self.cache_bytes, "the bytes of caches"),
            ("memory.weights", &self.weights, "the weights"),
            ("memory.reserve", &self.reserve, "what others take"),
        ];
        // A field stands above the line.
        let mut overrides = pasted.overrides.clone();
        for (key, field, name) in fields {
            let Some(value) = Some(field.trim()).filter(|text| !text.is_empty()) else { continue };
            overrides.retain(|stated| stated.key != key);
            overrides.push(Override::by_argument(key, value, name));
        }
        let options = Options {
            version: pasted.version.clone(),
            devices,
            overrides,
            expected_sequences: pasted.expected_sequences,
            model_is_given: self.model_is_given || pasted.model_config.is_some(),
            ..Options::default()
        };
        Ok(Read { launches, options, pasted })
    }

    /// The command with the options of the file that it names, as the stated version reads it.
    fn whole(&self, launch: Launch, version: Option<&str>) -> Result<Launch, Refused> {
        let Some(file) = launch.config_file().map(str::to_owned) else { return Ok(launch) };
        let launch = Launch { version: version.map(str::to_owned).or(launch.version), ..launch };
        let last = file.rsplit(['/', '\\']).next().unwrap_or(&file);
        let text = self.files.get(last).ok_or_else(|| {
            Refused::usage(format!("the command takes options from `{file}`; drop that file on the page too"))
        })?;
        launch.with_config(&file, text).map_err(Refused::usage)
    }
}

/// The commands that start engines in a text, with the names of their models.
pub(crate) fn found(text: &CommandText) -> Result<Value, Refused> {
    let Read { launches, options, pasted } = text.read()?;
    let one = |launch: Launch| {
        let (place, shown) = (launch.place.clone(), launch.to_string());
        // What a file of options says is asked for when the command is.
        let launch = text.whole(launch.clone(), options.version.as_deref()).unwrap_or(launch);
        let question = match Asked::of(&launch, &options) {
            Asked::Taken(question) => Some(question),
            Asked::Refused { nearest, .. } => nearest,
        };
        let named = |name: fn(&Question) -> Option<&String>| question.as_deref().and_then(name);
        json!({
            "place": place,
            "shown": shown,
            "model": named(|question| Some(&question.model)),
            "draft": named(|question| question.draft.as_ref()),
            "device": launch.device.as_ref().or(pasted.device.as_ref()),
            "model_config": pasted.model_config,
            "left_out": pasted.left_out,
        })
    };
    Ok(json!({ "commands": launches.into_iter().map(one).collect::<Vec<_>>() }))
}

/// What one of them would do; its models are there where they could be had.
pub(crate) fn start(text: &CommandText, at: usize, models: Option<&Models>) -> Result<Value, Refused> {
    let Read { launches, options, .. } = text.read()?;
    let launch = launches.into_iter().nth(at).ok_or_else(|| Refused::usage("there is no such command"))?;
    let launch = text.whole(launch, options.version.as_deref())?;
    let error = match (Asked::of(&launch, &options), models) {
        (Asked::Taken(_), Some(models)) => match answer(&launch, models.clone(), &options) {
            Ok(answer) => {
                let commands: Vec<String> = answer.changes.iter().map(|change| line(&change.command)).collect();
                return Ok(json!({
                    "answer": json_of(&answer)?,
                    "text": answer.text(),
                    "holds": answer.holds(),
                    "command": line(&answer.command),
                    "changed": commands,
                    "said": answer.changes_said(),
                }));
            }
            Err(error) => error,
        },
        (Asked::Taken(question), None) => {
            return Err(Refused::usage(format!("the model `{}` was not read", question.model)));
        }
        (Asked::Refused { error, .. }, _) => error,
    };
    refused(&Refusal::of(error, &launch, models, &options))
}

fn refused(refusal: &Refusal) -> Result<Value, Refused> {
    let changed = refusal.change.as_ref().map(|change| line(&change.command));
    // Which device it is, the page asks for by itself.
    let wants_device = matches!(refusal.error, ServeError::NoDevice);
    Ok(json!({
        "refused": { "message": refusal.error.to_string(), "code": refusal.error.exit_code() },
        "wants_device": wants_device,
        "changes": refusal.change.as_slice(),
        "changed": changed.as_slice(),
    }))
}

#[cfg(test)]
mod tests {
    use cacheplan_transforms::{Model, ReadOptions};
    use rstest::rstest;

    use super::*;

    const LLAMA: &str = r#"{ "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 1024, "num_attention_heads": 8,
        "intermediate_size": 256, "vocab_size": 256, "max_position_embeddings": 8192, "torch_dtype": "bfloat16" }"#;

    fn text(name: &str, text: &str) -> CommandText {
        CommandText { name: name.into(), text: text.into(), device: "h100".into(), ..CommandText::default() }
    }

    fn llama() -> Option<Models> {
        Some(Model::read_config("config.json", LLAMA, &ReadOptions::default()).unwrap().into())
    }

    #[test]
    fn the_models_of_commands_are_named_without_secrets() {
        let of =
            text("a.sh", "HF_TOKEN=sesame vllm serve org/a --api-key sesame\nvllm serve org/b --max-model-lenn 8\n");
        let found = found(&of).unwrap();
        assert!(!found.to_string().contains("sesame"), "{found}");
        assert_eq!([&found["commands"][0]["model"], &found["commands"][1]["model"]], ["org/a", "org/b"]);
    }

    #[rstest]
    #[case::answered("vllm serve org/a --api-key sesame")]
    #[case::refused("vllm serve org/a --max-model-lenn 8 --api-key sesame")]
    fn no_answer_shows_a_secret(#[case] command: &str) {
        let said = start(&text("a.sh", command), 0, llama().as_ref()).unwrap();
        assert!(!said.to_string().contains("sesame") && said.to_string().contains("<hidden>"), "{said}");
    }

    #[test]
    fn bytes_of_a_log_make_its_numbers_exact() {
        let mut of = text("a.sh", "vllm serve org/a --max-model-len 4096");
        let tokens = |of: &CommandText| start(of, 0, llama().as_ref()).unwrap()["answer"]["facts"]["tokens"].clone();
        let guessed = tokens(&of);
        assert_ne!(guessed["low"], guessed["high"]);
        of.cache_bytes = "1GiB".into();
        let known = tokens(&of);
        assert_eq!(known["low"], known["high"]);
    }

    #[test]
    fn a_file_of_options_is_asked_for_and_read() {
        let mut of = text("a.sh", "vllm serve org/a --config /etc/options.yaml");
        let why = serde_json::to_value(start(&of, 0, llama().as_ref()).unwrap_err()).unwrap();
        assert!(why["message"].as_str().unwrap().contains("`/etc/options.yaml`; drop that file"), "{why}");
        of.files.insert("options.yaml".into(), "max-model-len: 2048\n".into());
        assert_eq!(start(&of, 0, llama().as_ref()).unwrap()["answer"]["limits"]["max_seq_len"], 2048);
    }

    /// Of a file that is not here: its config given apart, with the size of its weights and what a screen takes.
    #[test]
    fn what_fields_say_is_what_a_pasted_line_says() {
        let command = "llama-server -m /m/llama-Q4_K_M.gguf -c 4096 -np 1 -ngl 99";
        let lines = |of: &CommandText| start(of, 0, llama().as_ref()).unwrap()["answer"].clone();
        let fields = CommandText {
            device: "rtx-4090".into(),
            weights: "4GB".into(),
            reserve: "1GiB".into(),
            model_is_given: true,
            ..text("a.sh", command)
        };
        let line =
            format!("cacheplan plan --device rtx-4090 --weights 4GB --reserve 1GiB --model-config a.json -- {command}");
        let pasted = CommandText { device: String::new(), ..text("a.sh", &line) };
        let said = found(&pasted).unwrap();
        assert_eq!([&said["commands"][0]["model_config"], &said["commands"][0]["device"]], ["a.json", "rtx-4090"]);
        let [fields, pasted] = [lines(&fields), lines(&pasted)];
        assert_eq!([&fields["facts"], &fields["starts"]], [&pasted["facts"], &pasted["starts"]]);
        let small = CommandText { weights: "25GB".into(), device: "rtx-4090".into(), ..text("a.sh", &line) };
        assert_eq!(lines(&small)["starts"], "no");
    }

    /// The tokens that the model was made for, where the command asks for more: as the text of the same answer.
    #[test]
    fn what_a_command_holds_is_what_its_text_says() {
        let of = CommandText { device: "rtx-4090".into(), ..text("a.sh", "llama-server -m a.gguf -np 1 -c 131072") };
        let said = start(&of, 0, llama().as_ref()).unwrap();
        assert_eq!(said["holds"], "1 sequence of 8192 tokens", "{said}");
        let text = said["text"].as_str().unwrap();
        let told: Vec<&str> = said["said"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
        assert!(
            text.contains("1 sequence of 8192 tokens") && told.iter().all(|change| text.contains(change)),
            "{text}"
        );
    }

    #[test]
    fn a_device_is_asked_for() {
        let of = CommandText { device: String::new(), ..text("a.sh", "vllm serve org/a") };
        assert_eq!(start(&of, 0, llama().as_ref()).unwrap()["wants_device"], true);
    }

    #[rstest]
    #[case::no_command("echo hello", 0, "no command")]
    #[case::none_there("vllm serve org/a", 1, "no such command")]
    #[case::no_model("vllm serve org/a", 0, "`org/a` was not read")]
    fn what_cannot_be_answered_is_an_error(#[case] command: &str, #[case] at: usize, #[case] expected: &str) {
        let why = serde_json::to_value(start(&text("a.sh", command), at, None).unwrap_err()).unwrap();
        assert!(why["message"].as_str().unwrap().contains(expected), "{why}");
    }
}
