//! Commands and models for tests.

use std::collections::BTreeMap;
use std::path::PathBuf;

use cacheplan_serve::{Launch, Models, Options};
use cacheplan_transforms::{Model, ReadOptions};

pub(crate) fn launch(command: &str) -> Launch {
    let words = command.split(' ').map(str::to_owned).collect();
    Launch::from_words(words, &BTreeMap::new()).unwrap().pop().unwrap()
}

pub(crate) fn models(name: &str) -> Models {
    let path =
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/configs").join(format!("{name}.json"));
    let text = std::fs::read_to_string(path).unwrap();
    Model::read_config("config.json", &text, &ReadOptions::default()).unwrap().into()
}

pub(crate) fn on(device: &str) -> Options {
    Options { devices: Some(device.parse().unwrap()), ..Options::default() }
}
