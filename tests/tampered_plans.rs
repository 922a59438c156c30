//! A plan of which any single field was changed is refused with the field's place, or harms nothing that uses it.
//!
//! The suite changes some fields of each; `CACHEPLAN_SOAK_SECONDS` of a minute or more changes every field in every way.

use std::collections::BTreeMap;
use std::path::Path;

use cacheplan::managers::book::CacheBook;
use cacheplan::planner::{Budget, CachePlan, PlanRequest, Serving, Target};
use cacheplan::transforms::{Model, ReadOptions};
use rstest::rstest;
use serde_json::{Value, json};

const MAX_BYTES: u64 = 64 << 20;

fn planned(model: &str, budget: &str) -> CachePlan {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(model);
    let model = Model::read(&path, &ReadOptions::default()).unwrap();
    let budget = Budget::from_toml(budget, "budget").unwrap();
    let resources = model.graph.clone().collect(&budget.pass_context(&model.info)).unwrap().resources;
    let request = PlanRequest::of((model.info.clone(), resources.clone())).with_budget(budget.clone());
    if budget.parallel == Default::default() {
        return request.plan().unwrap();
    }
    request.ranks().unwrap().stages.swap_remove(0)
}

/// What every target is told, where it can be told the plan.
type Told = Vec<(Target, Option<BTreeMap<String, Value>>)>;

fn told(plan: &CachePlan) -> Told {
    let serving = Serving { model: Some("m".into()), ..Serving::default() };
    let settings = |target| {
        let export = plan.export(target, None, &serving).ok()?;
        Some(export.settings.into_iter().map(|setting| (setting.key, setting.value)).collect())
    };
    Target::all().map(|target| (target, settings(target))).collect()
}

/// Places of all values, lists and objects included.
fn places(value: &Value, at: &mut Vec<String>, found: &mut Vec<String>) {
    let children: Vec<(String, &Value)> = match value {
        Value::Array(items) => items.iter().enumerate().map(|(index, item)| (index.to_string(), item)).collect(),
        Value::Object(map) => map.iter().map(|(key, item)| (key.clone(), item)).collect(),
        _ => Vec::new(),
    };
    for (key, item) in children {
        at.push(key.replace('~', "~0").replace('/', "~1"));
        found.push(format!("/{}", at.join("/")));
        places(item, at, found);
        at.pop();
    }
}

/// What a value is changed to; `None` removes it. `words` are the texts of the plan: other names, other kinds.
fn changes(value: &Value, words: &[String]) -> Vec<Option<Value>> {
    let others: Vec<Value> = match value {
        Value::Number(number) => {
            let number = number.as_u64().unwrap_or(0);
            let near = [0, 1, number.saturating_add(1), number.saturating_sub(1), number.saturating_mul(2)];
            let far = [u64::from(u32::MAX), 1 << 31, 1 << 40, i64::MAX as u64, u64::MAX];
            near.into_iter().chain(far).map(Value::from).chain([json!(-1), json!(0.5), json!("7")]).collect()
        }
        Value::String(text) => {
            let hostile = ["", "x", "a\u{1b}[2J", "\u{2028}trust-remote-code: true", "--flag"].map(String::from);
            let long = [text.repeat(1000), format!("{text}x")];
            words.iter().cloned().chain(hostile).chain(long).map(Value::from).chain([json!(7)]).collect()
        }
        Value::Bool(set) => vec![json!(!set), json!(1)],
        Value::Null => vec![json!(0), json!(1), json!(u64::MAX), json!("x"), json!({})],
        Value::Array(items) => {
            let twice: Vec<&Value> = items.iter().chain(items.last()).collect();
            vec![json!([]), json!(twice), json!(items[..items.len().saturating_sub(1)]), json!({})]
        }
        Value::Object(_) => vec![json!({}), json!([])],
    };
    let all = others.into_iter().map(Some).chain([Some(Value::Null), None]);
    all.filter(|other| other.as_ref() != Some(value)).collect()
}

fn words(plan: &Value, found: &mut Vec<String>) {
    match plan {
        Value::String(text) if text.len() < 30 && !found.contains(text) => found.push(text.clone()),
        Value::Array(items) => items.iter().for_each(|item| words(item, found)),
        Value::Object(map) => map.values().for_each(|item| words(item, found)),
        _ => {}
    }
}

fn changed(plan: &Value, place: &str, to: Option<Value>) -> Value {
    let mut plan = plan.clone();
    let (parent, key) = place.rsplit_once('/').unwrap();
    match (to, plan.pointer_mut(parent).unwrap()) {
        (None, Value::Object(map)) => drop(map.shift_remove(&key.replace("~1", "/").replace("~0", "~"))),
        (None, Value::Array(items)) => drop(items.remove(key.parse().unwrap())),
        (Some(value), _) => *plan.pointer_mut(place).unwrap() = value,
        (None, other) => panic!("{other} has no fields"),
    }
    plan
}

/// The parts of a place that are keys, the last one first.
fn keys(place: &str) -> impl Iterator<Item = &str> {
    place.rsplit('/').filter(|key| !key.is_empty() && key.parse::<u32>().is_err())
}

/// What is wrong with how a changed plan was taken; `whole` is what engines were told of the plan before.
fn complaint(text: &str, place: &str, whole: &Told) -> Option<String> {
    let plan = match CachePlan::from_json(text, "plan.json") {
        Ok(plan) => plan,
        Err(error) => {
            let message = error.to_string();
            let named = message.contains("contradicts itself\n") || keys(place).any(|key| message.contains(key));
            let harmless = !message.contains(|c: char| c.is_control() && c != '\n');
            return (!named || !harmless).then(|| format!("refused without its place: {message}"));
        }
    };
    if let Err(error) = CacheBook::new(&plan) {
        return Some(format!("the books refuse it: {error}"));
    }
    let shown = plan.table() + &plan.markdown() + &plan.svg() + &plan.yaml();
    if shown.contains(['\u{1b}', '\u{2028}']) {
        return Some("what is shown of it steers".into());
    }
    for ((target, whole), (_, now)) in whole.iter().zip(told(&plan)) {
        let Some(whole) = whole else { continue };
        let Some(now) = now else { return Some(format!("{target} cannot be told it any more")) };
        if let Some((key, _)) = now.iter().find(|(key, value)| **value == json!(0) && whole.get(*key) != Some(*value)) {
            return Some(format!("{target} is told `{key}` = 0"));
        }
    }
    None
}

#[rstest]
#[case::attention("models/llama/config.json", "max_batch_size = 3")]
#[case::hybrid("models/nemotron_h/config.json", "[memory]\nbytes = '64MiB'")]
#[case::checkpoints(
    "models/nemotron_h/config.json",
    "[memory]\nbytes = '64MiB'\n[workload]\nprompt = { fixed = 100 }\ncheckpoints_per_sequence = 2"
)]
#[case::checkpoints_apart(
    "configs/nvidia__NVIDIA-Nemotron-3-Nano-4B.json",
    "max_batch_size = 4\n[workload]\ncheckpoints_per_sequence = 2\ncheckpoint_dtype = 'int8'"
)]
#[case::windows("models/gemma3/config.json", "max_seq_len = 8192\n[memory]\nbytes = '64MiB'")]
#[case::latents("models/deepseek_v3/config.json", "max_batch_size = 4")]
#[case::delta_net("models/qwen3_next/config.json", "max_batch_size = 4")]
#[case::speculation("models/nemotron_h/config.json", "max_batch_size = 4\n[speculation]\ndraft_tokens = 3")]
#[case::replay(
    "models/nemotron_h/config.json",
    "max_batch_size = 4\n[speculation]\ndraft_tokens = 3\nscheme = 'replay'"
)]
#[case::ranks("models/nemotron_h/config.json", "[memory]\nbytes = '64MiB'\n[parallel]\ntp = 2\npp = 2")]
#[case::host("models/nemotron_h/config.json", "[memory]\nbytes = '64MiB'\n[host]\nbytes = '8MiB'")]
#[case::first_reference("models/gemma3/config.json", "grouping = 'first-reference'\nmax_batch_size = 2")]
fn any_changed_field_is_found_or_harmless(#[case] model: &str, #[case] budget: &str) {
    let plan = planned(model, budget);
    let whole = told(&plan);
    assert!(whole.iter().any(|(_, told)| told.is_some()) && CacheBook::new(&plan).is_ok());
    let original = serde_json::to_value(&plan).unwrap();
    assert_eq!(complaint(&original.to_string(), "", &whole), None);
    let (mut all, mut texts) = (Vec::new(), Vec::new());
    places(&original, &mut Vec::new(), &mut all);
    words(&original, &mut texts);
    // Of what there is many times the suite changes a part, another one of each plan.
    let long = std::env::var("CACHEPLAN_SOAK_SECONDS").is_ok_and(|text| text.parse::<u64>().unwrap() >= 60);
    let step = if long { 1 } else { 1 + all.len() / 15 };
    let (mut tried, mut complaints) = (0, Vec::new());
    for (at, place) in all.iter().enumerate() {
        let value = original.pointer(place).unwrap();
        for (way, to) in changes(value, &texts).into_iter().enumerate() {
            if (at + way) % step != 0 {
                continue;
            }
            tried += 1;
            let text = changed(&original, place, to.clone()).to_string();
            let mut found = None;
            let memory = allocation_counter::measure(|| found = complaint(&text, place, &whole));
            if memory.bytes_max > MAX_BYTES {
                found = Some(format!("{} bytes", memory.bytes_max));
            }
            complaints.extend(found.map(|found| format!("{place} -> {:.80}: {found:.300}", format!("{to:?}"))));
        }
    }
    println!("{model}: {} fields, {tried} changes", all.len());
    assert!(
        complaints.is_empty(),
        "{} of {tried}:\n{}",
        complaints.len(),
        complaints[..complaints.len().min(60)].join("\n")
    );
}
