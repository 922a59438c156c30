//! Commands and manifests that start an engine: what they name, and what they would do.

use std::collections::BTreeMap;

use cacheplan_planner::{Devices, Override};
use cacheplan_serve::{Asked, Launch, Models, Options, Question, Refusal, ServeError, answer, line, manifest};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::answers::{Refused, json_of};

/// A text with commands in it, and what else is said of them.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CommandText {
    /// Of its file, `deployment.yaml`.
    name: String,
    text: String,
    /// The files of options that its commands may name, each with its text.
    #[serde(default)]
    files: BTreeMap<String, String>,
    /// Its device, where the text does not say it.
    #[serde(default)]
    device: String,
    /// What the engine's log says that it has for caches.
    #[serde(default)]
    cache_bytes: String,
}

impl CommandText {
    fn launches(&self) -> Result<Vec<Launch>, Refused> {
        manifest::read(&self.name, self.text.as_bytes()).map_err(Refused::usage)
    }

    fn options(&self) -> Result<Options, Refused> {
        let devices = match self.device.trim() {
            "" => None,
            text => Some(text.parse::<Devices>().map_err(Refused::usage)?),
        };
        let bytes = Some(self.cache_bytes.trim()).filter(|text| !text.is_empty());
        let overrides = bytes.map(|bytes| Override::by_flag("engine.cache_bytes", bytes, "the bytes of caches"));
        Ok(Options { devices, overrides: overrides.into_iter().collect(), ..Options::default() })
    }

    /// The command with the options of the file that it names.
    fn whole(&self, launch: Launch) -> Result<Launch, Refused> {
        let Some(file) = launch.config_file().map(str::to_owned) else { return Ok(launch) };
        let last = file.rsplit(['/', '\\']).next().unwrap_or(&file);
        let text = self.files.get(last).ok_or_else(|| {
            Refused::usage(format!("the command takes options from `{file}`; drop that file on the page too"))
        })?;
        launch.with_config(&file, text).map_err(Refused::usage)
    }
}

/// The commands that start engines in a text, with the names of their models.
pub(crate) fn found(text: &CommandText) -> Result<Value, Refused> {
    let options = text.options()?;
    let one = |launch: Launch| {
        let (place, shown) = (launch.place.clone(), launch.to_string());
        // What a file of options says is asked for when the command is.
        let launch = text.whole(launch.clone()).unwrap_or(launch);
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
            "device": launch.device,
        })
    };
    Ok(json!({ "commands": text.launches()?.into_iter().map(one).collect::<Vec<_>>() }))
}

/// What one of them would do; its models are there where they could be had.
pub(crate) fn start(text: &CommandText, at: usize, models: Option<Models>) -> Result<Value, Refused> {
    let launch = text.launches()?.into_iter().nth(at).ok_or_else(|| Refused::usage("there is no such command"))?;
    let (launch, options) = (text.whole(launch)?, text.options()?);
    let error = match (Asked::of(&launch, &options), &models) {
        (Asked::Taken(_), Some(models)) => match answer(&launch, models.clone(), &options) {
            Ok(answer) => {
                let commands: Vec<String> = answer.changes.iter().map(|change| line(&change.command)).collect();
                let command = line(&answer.command);
                return Ok(
                    json!({ "answer": json_of(&answer)?, "text": answer.text(), "command": command, "changed": commands }),
                );
            }
            Err(error) => error,
        },
        (Asked::Taken(question), None) => {
            return Err(Refused::usage(format!("the model `{}` was not read", question.model)));
        }
        (Asked::Refused { error, .. }, _) => error,
    };
    refused(Refusal::of(error, &launch, models.as_ref(), &options))
}

fn refused(refusal: Refusal) -> Result<Value, Refused> {
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
