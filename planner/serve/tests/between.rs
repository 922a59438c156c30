//! Changes that raise more than they name: how many a command holds then lies between its cap and the engine's default.

mod common;

use cacheplan_serve::{Answer, answer};
use common::{launch, models, on};

const HYBRID: &str = "Qwen__Qwen3-Next-80B-A3B-Thinking";

fn of(words: &str) -> Answer {
    answer(&launch(words), models(HYBRID), &on("h200")).unwrap_or_else(|said| panic!("{words}: {said}"))
}

/// No other number holds more than the one that a change states.
#[test]
fn a_change_states_the_most_that_it_holds() {
    let words =
        "vllm serve m --tensor-parallel-size 2 --max-model-len 32768 --no-enable-prefix-caching --max-num-seqs 128";
    let found = of(words);
    let share = found.changes.iter().find(|change| change.change.contains("--gpu-memory-utilization 0.95"));
    let share = share.unwrap_or_else(|| panic!("{}", found.text()));
    let held = share.sequences.unwrap().low;
    assert!(held > 128, "{share:?}");
    let base = share.command.join(" ");
    for told in [held + 1, held + 4, held + held / 8, 512, 1024] {
        let other = of(&base.replace(&format!("--max-num-seqs {held}"), &format!("--max-num-seqs {told}")));
        assert!(other.sequences.unwrap().low <= held, "{told}: {:?} of {held}", other.sequences);
    }
}

/// Prefixes that are kept by default keep states, which takes no devices to change.
#[test]
fn keeping_no_prefixes_is_offered_where_that_holds_more() {
    let words = "vllm serve m --tensor-parallel-size 2 --max-model-len 32768 --max-num-seqs 256";
    let found = of(words);
    let change = found.changes.iter().find(|change| change.change.contains("--no-enable-prefix-caching"));
    let change = change.unwrap_or_else(|| panic!("{}", found.text()));
    assert_eq!(change.command.last().unwrap(), "--no-enable-prefix-caching");
    assert!(change.sequences.unwrap().low > found.sequences.unwrap().low);
    assert!(!found.text().contains("not none"), "{}", found.text());
}
