//! `plan check` proves a plan for what it was made with.

use rstest::rstest;

use super::{GEMMA, NANO, cacheplan, config, stdout};

/// What a plan was made with proves it; without one of these it is another plan's.
#[rstest]
#[case::flags(NANO, &["--memory-bytes", "4GiB"], &[])]
#[case::a_device(GEMMA, &["--device-memory", "24GiB", "--weights", "2GB"], &[])]
#[case::a_stage(NANO, &["--pp", "2", "--memory-bytes", "4GiB"], &["--stage", "1"])]
#[case::one_of_four_ranks(NANO, &["--tp", "4", "--memory-bytes", "4GiB"], &[])]
#[case::a_draft(NANO, &["--draft-tokens", "2", "--draft", "DRAFT"], &[])]
#[case::a_measurement(NANO, &["--device-memory", "141GiB", "--measurement", "FILE:measured.json"], &[])]
#[case::an_assumption(NANO, &["--assume", "head_dim=256"], &[])]
fn check_proves_a_plan_for_what_it_was_made_with(#[case] model: &str, #[case] made: &[&str], #[case] of: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let measured = r#"{ "resident_bytes": 60000000000, "forward_bytes": 1000000000, "free_bytes": 80000000000 }"#;
    std::fs::write(folder.path().join("measured.json"), measured).unwrap();
    let draft = config(GEMMA);
    let made: Vec<&str> =
        made.iter().map(|flag| if *flag == "DRAFT" { draft.to_str().unwrap() } else { flag }).collect();
    let out = ["--out", "FILE:plan.json"];
    stdout(&cacheplan(&["plan"], Some(model), &[&made[..], of, &out].concat(), folder.path()));
    let against = |flags: &[&str]| {
        let model = config(model);
        let checked = ["FILE:plan.json", "--model", model.to_str().unwrap()];
        cacheplan(&["plan", "check"], None, &[&checked[..], flags].concat(), folder.path())
    };
    let proved = stdout(&against(&made));
    assert!(proved.contains("are proved for this model, budget and device"), "{proved}");
    assert_eq!(against(&[]).status.code(), Some(5));
}

#[test]
fn flags_of_a_check_without_its_model_are_wrong_usage() {
    let folder = tempfile::tempdir().unwrap();
    stdout(&cacheplan(&["plan"], Some(NANO), &["--out", "FILE:plan.json"], folder.path()));
    let checked = cacheplan(&["plan", "check"], None, &["FILE:plan.json", "--tp", "2"], folder.path());
    assert_eq!(checked.status.code(), Some(2));
}

/// Its ledger assumes what that engine logged, and so does the proof.
#[test]
fn a_plan_beside_an_engine_is_proved_beside_it() {
    let folder = tempfile::tempdir().unwrap();
    let model = "Qwen__Qwen3-8B.json";
    let flags = ["--device-memory", "h100", "--max-seq-len", "8192", "--as", "sglang"];
    let made = [&flags[..], &["--out", "FILE:plan.json"]].concat();
    let text = stdout(&cacheplan(&["plan"], Some(model), &made, folder.path()));
    assert!(text.contains("one log of sglang"), "{text}");
    let model = config(model);
    let proof = ["FILE:plan.json", "--model", model.to_str().unwrap()];
    let checked = stdout(&cacheplan(&["plan", "check"], None, &[&proof[..], &flags].concat(), folder.path()));
    assert!(checked.contains("are proved"), "{checked}");
    let alone = cacheplan(&["plan", "check"], None, &[&proof[..], &flags[..4]].concat(), folder.path());
    assert_eq!(alone.status.code(), Some(5));
}
