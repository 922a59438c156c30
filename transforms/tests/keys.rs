//! What a key changes of caches and weights in Hugging Face transformers, it changes here: no key is passed over.
//!
//! `tests/fixtures/transformers/keys.py` changes each key of each config class in a small model and writes what follows.

mod support;

use std::collections::{BTreeMap, BTreeSet};

use cacheplan_transforms::{Model, ReadOptions};
use serde_json::{Map, Value};

use support::{caches, fixture, not_stored, otherwise, without_dtypes};

/// A model that transformers made: which config, and what it has.
struct Made {
    /// Its type, and the key that is not what it is in the small model; `*` for that itself.
    name: [String; 2],
    config: Value,
    caches: BTreeMap<String, String>,
    parameters: u64,
}

/// The models of the table; a row that ends before tells that none could be made.
fn table() -> Vec<Made> {
    let text = std::fs::read_to_string(fixture("transformers/keys.tsv")).unwrap();
    let mut made: Vec<Made> = Vec::new();
    // Where in `made` the small model of a type is.
    let mut small = BTreeMap::new();
    for row in text.lines() {
        let cells: Vec<&str> = row.split('\t').collect();
        match cells[..] {
            [name, "*", config, caches, parameters] => {
                small.insert(name, made.len());
                made.push(Made {
                    name: [name, "*"].map(str::to_owned),
                    config: serde_json::from_str(config).unwrap(),
                    caches: serde_json::from_str(caches).unwrap(),
                    parameters: parameters.parse().unwrap(),
                });
            }
            [name, key, value, left_out, caches, parameters] => {
                let usual = &made[small[name]];
                let mut config = usual.config.clone();
                left_out.split_whitespace().for_each(|path| drop(object(&mut config, path).remove(last(path))));
                let value = serde_json::from_str(value).unwrap_or_else(|_| Value::from(value));
                object(&mut config, key).insert(last(key).to_owned(), value);
                let caches = if caches == "=" { usual.caches.clone() } else { serde_json::from_str(caches).unwrap() };
                let parameters = if parameters == "=" { usual.parameters } else { parameters.parse().unwrap() };
                made.push(Made { name: [name, key].map(str::to_owned), config, caches, parameters });
            }
            _ => assert_eq!(cells.len(), 4, "{row}"),
        }
    }
    made
}

/// The object inside of a config that has the last key of a path.
fn object<'a>(config: &'a mut Value, path: &str) -> &'a mut Map<String, Value> {
    let outer: Vec<&str> = path.split('.').collect();
    let found = outer[..outer.len() - 1].iter().fold(config, |config, key| &mut config[*key]);
    found.as_object_mut().unwrap()
}

fn last(path: &str) -> &str {
    path.rsplit('.').next().unwrap()
}

/// Runs of a layer are layers to its cache.
const RUNS_ARE_LAYERS: [&str; 1] = ["hrm_text"];

/// How many layers keep each cache, wherever they are.
fn counted(caches: &BTreeMap<String, String>) -> BTreeMap<String, u64> {
    let mut counted = BTreeMap::new();
    for (words, layers) in caches {
        let count = |run: &str| match run.split_once('-') {
            Some((first, last)) => last.parse::<u64>().unwrap() - first.parse::<u64>().unwrap() + 1,
            None => 1,
        };
        let layers: u64 = layers.split(", ").map(count).sum();
        words.split(" + ").for_each(|word| *counted.entry(word.to_owned()).or_default() += layers);
    }
    counted
}

/// What is otherwise than in transformers; `None` where nothing is. Where dtypes are known to be, they are left out, and it is
/// `seen` that they are.
fn difference(made: &Made, model: Model, otherwise: &BTreeSet<String>, seen: &mut BTreeSet<String>) -> Option<String> {
    let weights = model.info.weights.map(|weights| weights.bytes / model.info.dtype.row_bytes(1).unwrap());
    let found = caches(model);
    let name = &made.name[0];
    let dtypes = format!("{name} dtypes");
    let alike = if RUNS_ARE_LAYERS.contains(&name.as_str()) {
        counted(&found) == counted(&made.caches)
    } else if otherwise.contains(&dtypes) {
        if found != made.caches {
            seen.insert(dtypes);
        }
        without_dtypes(&found) == without_dtypes(&made.caches)
    } else {
        found == made.caches
    };
    if !alike {
        return Some(format!("caches {found:?} beside {:?}", made.caches));
    }
    let stored = made.parameters - not_stored(&made.config);
    let other = weights.filter(|&weights| weights != stored)?;
    Some(format!("{other} weights beside {stored}, {:+}", other as i64 - stored as i64))
}

#[test]
fn a_key_changes_what_it_changes_in_transformers() {
    let made = table();
    let otherwise = otherwise();
    // Types whose layers keep what the table has no words for.
    let not_told: BTreeSet<&str> = otherwise.iter().filter_map(|row| row.strip_suffix(" *")).collect();
    let (mut equal, mut wrong, mut dtypes, mut refused) =
        (BTreeSet::new(), BTreeSet::new(), BTreeSet::new(), Vec::new());
    for made in made.iter().filter(|made| !not_told.contains(made.name[0].as_str())) {
        let row = made.name.join(" ");
        match Model::read_config(&made.name[0], &made.config.to_string(), &ReadOptions::default()) {
            Ok(model) => match difference(made, model, &otherwise, &mut dtypes) {
                Some(difference) => drop(wrong.insert((row, difference))),
                None => drop(equal.insert(row)),
            },
            Err(error) => refused.push((row, error.to_string())),
        }
    }
    let found: BTreeSet<&String> = wrong.iter().map(|(row, _)| row).chain(&dtypes).collect();
    let unexpected: Vec<_> = wrong.iter().filter(|(row, _)| !otherwise.contains(row)).collect();
    assert!(unexpected.is_empty(), "{unexpected:#?}");
    let mended: Vec<_> = otherwise.iter().filter(|row| !row.ends_with(" *") && !found.contains(row)).collect();
    assert!(mended.is_empty(), "{mended:?}");
    assert!(equal.len() > 2000, "{}", equal.len());
    // A refusal names its key; most of these rows are of types that nobody described.
    assert!(refused.len() * 10 < equal.len(), "{}", refused.len());
}

/// Of the config classes that generate, those of which nobody described what they keep: caches of images or of another
/// model's encoding, or caches beside those of layers.
const REFUSED: &str = "blip blt mllama trocr";

#[test]
fn all_but_a_few_generative_classes_are_planned() {
    let table = std::fs::read_to_string(fixture("transformers/parameters.tsv")).unwrap();
    let classes = table.lines().map(|line| line.split('\t').collect::<Vec<_>>()).filter(|row| row[2] != "-");
    let (mut all, mut refused) = (0, Vec::new());
    for row in classes {
        all += 1;
        if let Err(error) = Model::read_config(row[0], row[2], &ReadOptions::default()) {
            assert!(error.is_unsupported(), "{}: {error}", row[0]);
            refused.push(row[0]);
        }
    }
    assert_eq!(refused.join(" "), REFUSED);
    assert!(refused.len() * 20 <= all, "{} of {all}", refused.len());
}
