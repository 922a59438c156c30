//! What a knob, or a change that an error proposes, promises holds once it is stated as it is printed.

use cacheplan_planner::error::Suggestion;
use cacheplan_planner::{Config, Devices, Override, PlanError, PlanRequest};

use super::random::Random;
use super::zoo::models;

const CHANGES: usize = 500;

fn budget(random: &mut Random) -> String {
    let length = random.pick(&[128, 1_000, 4_096, 8_192, 32_768, 131_072]);
    let mut text = format!("max_seq_len = {length}\n");
    if random.one_in(3) {
        text += &format!("max_batch_size = {}\n", random.pick(&[1, 7, 64, 256, 4_000]));
    }
    if random.one_in(3) {
        text += &format!("max_num_tokens = {}\n", random.pick(&[64, 512, 2_048, 16_384]));
    }
    if random.one_in(4) {
        text += "maximize = 'tokens'\n";
    }
    if random.one_in(3) {
        text += &format!("[memory]\nbytes = '{}MiB'\n", random.pick(&[64, 700, 4_096, 20_000]));
    }
    if random.one_in(3) {
        let each = random.pick(&[1, 4, 20]);
        text += &format!("[workload]\ncheckpoints_per_sequence = {each}\n");
        if random.one_in(3) {
            text += "checkpoint_dtype = 'int8'\n";
        }
        if random.one_in(2) {
            text += "prompt = { lognormal = { median = 700 } }\n";
        }
    }
    if random.one_in(4) {
        text += "[speculation]\ndraft_tokens = 2\n";
    }
    if random.one_in(4) {
        text += &format!("[parallel]\n{}\n", random.pick(&["tp = 2", "pp = 2", "tp = 2\npp = 2", "dp = 2", "tp = 4"]));
    }
    text
}

/// A change as it would be written into the budget: `parallel.tp = 2, parallel.dcp = 2`.
fn stated(suggestion: &Suggestion) -> Vec<Override> {
    let keys = suggestion.change.split(", ");
    keys.map(|key| {
        let (path, value) = key.split_once(" = ").unwrap();
        Override::by_argument(path, value, path)
    })
    .collect()
}

#[test]
fn what_is_suggested_gives_what_it_promises() {
    let mut random = Random(2026);
    let requests: Vec<(String, PlanRequest)> = models().map(|(name, model)| (name, PlanRequest::of(model))).collect();
    let (mut knobs, mut tries) = (0, 0);
    for case in 0.. {
        if knobs + tries >= CHANGES {
            break;
        }
        assert!(case < 20 * CHANGES, "only {knobs} knobs and {tries} tries");
        let (name, request) = &requests[random.below(requests.len() as u64) as usize];
        let text = budget(&mut random);
        let device: Devices = random.pick(&["rtx-4090", "h100", "h200", "mi300x"]).parse().unwrap();
        let asked = |changes: &[Override]| {
            let config = Config::resolve_on(Some(device.device()), Some((&text, "budget.toml")), &[], changes);
            Some(request.clone().with_config(config.ok()?).with_devices(device.clone()))
        };
        let Some(before) = asked(&[]) else { continue };
        let (counted, promised) = match before.plan() {
            Ok(plan) => (&mut knobs, before.knobs(&plan)),
            Err(PlanError::DoesNotFit(short)) => (&mut tries, short.suggestions),
            Err(_) => continue,
        };
        for suggestion in promised {
            let place = || format!("{name} on {}: {suggestion}\n{text}", device.device().name);
            let after = asked(&stated(&suggestion)).unwrap_or_else(|| panic!("{} is refused", place()));
            let plan = after.plan().unwrap_or_else(|error| panic!("{}\n{error}", place()));
            let served = plan.deployment.as_ref().map_or(plan.capacity.sequences, |all| all.sequences);
            assert_eq!(served, suggestion.sequences, "{}", place());
            assert_eq!(plan.totals.managed_bytes + plan.totals.unmanaged_bytes, suggestion.bytes, "{}", place());
            *counted += 1;
        }
    }
    assert!(knobs > 50 && tries > 50, "{knobs} knobs and {tries} tries");
}
