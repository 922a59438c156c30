//! Questions as the page writes them: four bytes with the length of a JSON text, that text, and the bytes it speaks of.

use std::collections::BTreeMap;

use cacheplan_files::Limit;
use cacheplan_managers::simulate::Workload;
use cacheplan_planner::{Prices, StatedWeights};
use serde::de::Error;
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

/// The longest JSON text of a question. A budget is 128 KiB of it at most.
const LONGEST: usize = 1 << 20;

/// What the page asks.
#[derive(Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Question {
    /// Every key of a budget, every device, engine and format: what forms are made of.
    Choices {},
    /// The models that the command was started with, or found.
    Places {},
    /// Read a model from slices of its files.
    Open {
        /// The first is the model, the others lie beside it.
        files: Vec<File>,
        /// Facts that the files leave out.
        #[serde(default)]
        assume: Vec<String>,
    },
    /// Read a model from this machine's disk.
    OpenPath { path: String },
    /// Another value for a key of the budget, or none; in the text, so that what else stands there stays.
    Set {
        #[serde(deserialize_with = "budget")]
        budget: String,
        key: String,
        value: Option<String>,
    },
    /// The plan with its pictures, of which the map shows what is within the parts of these names; and what would admit more.
    Plan {
        of: PlanQuestion,
        #[serde(default)]
        into: Vec<String>,
        #[serde(default)]
        width: Width,
        /// Sequences that are to run at once, of which the bound of speed is.
        #[serde(default)]
        people: Option<u64>,
        /// The price of an hour of one device.
        #[serde(default)]
        price: Option<f64>,
    },
    /// How the plan's capacity and that of every engine fall with the length of sequences.
    Curves {
        of: PlanQuestion,
        /// The usual ones where there is none.
        #[serde(default)]
        contexts: Vec<u64>,
        #[serde(default)]
        width: Width,
    },
    /// Where a number comes from.
    Explain { of: PlanQuestion, subject: String },
    /// The plan in the words of every engine.
    Flags { of: PlanQuestion, model: Option<String> },
    /// Devices by layout.
    Fit {
        model: u64,
        context: u64,
        sequences: u64,
        devices: Vec<String>,
        max_devices: u32,
        prices: Option<Prices>,
        #[serde(default, deserialize_with = "weights")]
        weights: Option<StatedWeights>,
        /// TOML, of which weights and what others take of each device are those of all that are tried.
        #[serde(default, deserialize_with = "budget")]
        budget: String,
        /// Whose rules answer, `vllm@0.33.0` or `plan`; those that are usual where nobody says.
        #[serde(default, rename = "as")]
        by: Option<String>,
        #[serde(default)]
        width: Width,
    },
    /// The prices of devices by what somebody typed: of this one, or of several, beside those that are stated.
    Prices { text: String, stated: String, device: String },
    /// Hit rates over checkpoints.
    Simulate { of: PlanQuestion, workload: Workload, checkpoints: Vec<usize> },
    /// What was simulated, as a picture: the policies, each with its hit rates by the number of checkpoints.
    Rates {
        of: PlanQuestion,
        rates: Vec<(String, Vec<(u64, f64)>)>,
        #[serde(default)]
        width: Width,
    },
    /// How large tiers below the device must be for a built-in workload, or for the trace of such a name behind the text.
    Tiers {
        of: PlanQuestion,
        #[serde(default)]
        workload: Option<Workload>,
        #[serde(default)]
        trace: Option<String>,
        asked: Map<String, Value>,
        #[serde(default)]
        width: Width,
    },
    /// What engines would hold of the plan, each by its own command, for so many people.
    Admits {
        of: PlanQuestion,
        people: u64,
        /// The one that is asked alone; the usual one where the name is empty.
        #[serde(default, rename = "as")]
        by: Option<String>,
        prices: Option<Prices>,
    },
    /// The commands in a text that start engines.
    Commands { of: CommandText },
    /// What one of them would do with these models.
    Start { of: CommandText, at: usize, model: Option<u64>, draft: Option<u64> },
    /// The plan as a file of pictures.
    File { of: PlanQuestion, format: Format },
}

/// A text with commands in it, and what else is said of them.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CommandText {
    /// Of its file, `deployment.yaml`.
    pub(crate) name: String,
    pub(crate) text: String,
    /// The files of options that its commands may name, each with its text.
    #[serde(default)]
    pub(crate) files: BTreeMap<String, String>,
    /// Its device, where the text does not say it.
    #[serde(default)]
    pub(crate) device: String,
    /// What the engine's log says that it has for caches.
    #[serde(default)]
    pub(crate) cache_bytes: String,
    /// What its weights take, where they are others than the model's.
    #[serde(default)]
    pub(crate) weights: String,
    /// What others take of the device.
    #[serde(default)]
    pub(crate) reserve: String,
    /// Whether the model is given otherwise than by its name.
    #[serde(default)]
    pub(crate) model_is_given: bool,
}

/// A format of files.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Format {
    Svg,
    Html,
}

/// How wide pictures are drawn, in pixels.
#[derive(Clone, Copy, Deserialize)]
#[serde(from = "f64")]
pub(crate) struct Width(pub(crate) f64);

impl From<f64> for Width {
    fn from(pixels: f64) -> Self {
        Self(if pixels.is_finite() { pixels.round().clamp(280.0, 2000.0) } else { Self::default().0 })
    }
}

impl Default for Width {
    fn default() -> Self {
        Self(900.0)
    }
}

/// A model, a budget and a device.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PlanQuestion {
    /// The number that opening it gave.
    pub(crate) model: u64,
    /// That of the model that drafts for it.
    #[serde(default)]
    pub(crate) draft: Option<u64>,
    /// TOML.
    #[serde(default, deserialize_with = "budget")]
    pub(crate) budget: String,
    /// `h100`, `8xh100`, `24GiB`; none where it is empty.
    #[serde(default)]
    pub(crate) device: String,
    /// The pipeline stage.
    #[serde(default)]
    pub(crate) stage: u32,
    /// The engine that is to run the model, `vllm@0.33.0`.
    #[serde(default)]
    pub(crate) engine: Option<String>,
    /// The weights, where the model is to be quantised: `fp8`, `Q4_K_M`.
    #[serde(default, deserialize_with = "weights")]
    pub(crate) weights: Option<StatedWeights>,
    /// What an engine logged, as TOML.
    #[serde(default)]
    pub(crate) measured: Option<String>,
}

/// A budget, as long as a file of one may be.
fn budget<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let text = String::deserialize(deserializer)?;
    match text.len() as u64 > Limit::TOML.bytes {
        true => Err(D::Error::custom(format!("a budget of more than {} bytes is not read", Limit::TOML.bytes))),
        false => Ok(text),
    }
}

fn weights<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<StatedWeights>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    text.map(|text| text.parse()).transpose().map_err(D::Error::custom)
}

/// A file and the slices of it that are at hand.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct File {
    pub(crate) name: String,
    pub(crate) length: u64,
    /// Offset and length of each slice; their bytes follow the text in this order, file after file.
    pub(crate) slices: Vec<(u64, u64)>,
}

impl Question {
    /// The question, and the bytes behind it.
    pub(crate) fn read(bytes: &[u8]) -> Result<(Self, &[u8]), String> {
        let (length, rest) = bytes.split_first_chunk::<4>().ok_or("a question begins with its length")?;
        let length = usize::try_from(u32::from_le_bytes(*length)).unwrap_or(usize::MAX);
        if length > LONGEST {
            return Err(format!("a question of more than {LONGEST} bytes is not read"));
        }
        let (text, rest) = rest.split_at_checked(length).ok_or("the question is shorter than it says")?;
        let question = serde_json::from_slice(text).map_err(|error| format!("no question: {error}"))?;
        Ok((question, rest))
    }
}
