//! Commands and models for tests.

use std::collections::BTreeMap;
use std::path::PathBuf;

use cacheplan_planner::EngineSpec;
use cacheplan_planner::fit::{Answer, Fit, FitQuestion, Prices};
use cacheplan_serve::{Launch, Models, Options};
use cacheplan_transforms::{Model, ReadOptions};

#[allow(dead_code, reason = "not every test asks by words of a command line")]
pub(crate) fn launch(command: &str) -> Launch {
    let words = command.split(' ').map(str::to_owned).collect();
    Launch::from_words(words, &BTreeMap::new()).unwrap().pop().unwrap()
}

#[allow(dead_code, reason = "not every test asks of the zoo")]
pub(crate) fn models(name: &str) -> Models {
    changed(name, |_| {})
}

/// The model of a configuration in which something is changed.
#[allow(dead_code, reason = "not every test asks of the zoo")]
pub(crate) fn changed(name: &str, change: impl Fn(&mut serde_json::Value)) -> Models {
    let path =
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/configs").join(format!("{name}.json"));
    let mut config = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    change(&mut config);
    Model::read_config("config.json", &config.to_string(), &ReadOptions::default()).unwrap().into()
}

#[allow(dead_code, reason = "not every test asks of a device")]
pub(crate) fn on(device: &str) -> Options {
    Options { devices: Some(device.parse().unwrap()), ..Options::default() }
}

/// The flags by which the engine of a row was asked for it, which tell it of all that the row may hold.
#[allow(dead_code, reason = "not every test asks what devices hold")]
pub(crate) fn as_asked(answer: &Answer, row: &Fit, engine: EngineSpec) -> String {
    let flags = engine.flags_of(&answer.layout_of(row, engine)).unwrap().into_iter();
    flags.flat_map(|(name, value)| [Some(name.to_owned()), value]).flatten().collect::<Vec<_>>().join(" ")
}

/// What shall be held on at most four of some devices.
#[allow(dead_code, reason = "not every test asks what devices hold")]
pub(crate) fn question(devices: &[&str], context: u64, sequences: u64) -> FitQuestion {
    let named = |name: &&str| ((*name).to_owned(), name.parse().unwrap());
    FitQuestion {
        model: Some("org/model".into()),
        stated: Vec::new(),
        context,
        sequences,
        devices: devices.iter().map(named).collect(),
        max_devices: 4,
        margin: 0,
        weights: None,
        prices: Prices::default(),
    }
}
