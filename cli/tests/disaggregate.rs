//! `cacheplan disaggregate`: what it prints, and what it refuses.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use rstest::rstest;
use serde_json::Value;

const LLAMA: &str = "meta-llama__Meta-Llama-3.1-8B.json";
const SIDES: &[&str] = &["--prefill", "2xh100", "--decode", "4xh100"];
const REQUEST: &[&str] = &["--link", "50", "--prompt", "8192", "--output", "512"];

fn config(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/configs").join(name)
}

fn disaggregate(args: &[&[&str]]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cacheplan"));
    command.arg("disaggregate").arg(config(LLAMA)).args(args.concat()).output().unwrap()
}

#[test]
fn both_sides_have_keys_of_their_own_beside_those_of_both() {
    let own = ["--on-decode", "tp=1", "--on-decode", "parallel.dp=4", "--tokens-per-block", "32", "--json"];
    let output = disaggregate(&[SIDES, REQUEST, &own]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said: Value = serde_json::from_slice(&output.stdout).unwrap();
    let sizes = |side: &str| ["tp", "dp"].map(|size| said[side]["parallel"][size].as_u64().unwrap());
    assert_eq!((sizes("prefill"), sizes("decode")), ([2, 1], [1, 4]));
    for side in ["prefill", "decode"] {
        let pool = &said[side]["stages"][0]["pools"][0];
        assert_eq!(pool["tokens_per_block"], 32, "{pool}");
    }
    // 32 layers of 8 heads of 128 channels, keys and values of 16 bits.
    assert_eq!(said["handover"]["bytes"], 131_072_u64 * 8192);
    assert_eq!(said["handover"]["sent_by_device"], 131_072_u64 * 8192 / 2);
    assert_eq!(said["link"], 50e9);
}

#[test]
fn the_table_names_what_caps_and_what_engines_are_told() {
    let output = disaggregate(&[SIDES, REQUEST]);
    let table = String::from_utf8(output.stdout).unwrap();
    for said in ["HANDED OVER", "<- caps", "BALANCE", "\"kv_role\":\"kv_producer\"", "--disaggregation-mode decode"] {
        assert!(table.contains(said), "{said}: {table}");
    }
}

#[rstest]
#[case(&["--link", "0", "--prompt", "8192", "--output", "512"], "above 0 was expected")]
#[case(&["--link", "-3", "--prompt", "8192", "--output", "512"], "above 0 was expected")]
#[case(&["--link", "inf", "--prompt", "8192", "--output", "512"], "above 0 was expected")]
#[case(&["--link", "50", "--output", "512"], "state --prompt and --output")]
#[case(&["--link", "50", "--prompt", "{ uniform = { min = 1, max = 9 } }", "--output", "512"], "state --prompt and --output")]
#[case(&["--link", "50", "--prompt", "8192", "--output", "1"], "nothing is handed over")]
#[case(&["--link", "50", "--prompt", "200000", "--output", "512"], "prefill: a request has 200000 tokens there, and `max_position_embeddings` is 131072")]
#[case(&["--link", "50", "--prompt", "8192", "--output", "512", "--on-decode", "dtypes.kv=fp8_e4m3"], "no engine converts on the way")]
#[case(&["--link", "50", "--prompt", "8192", "--output", "512", "--on-decode", "nothing=1"], "there is no key `nothing`")]
#[case(&["--link", "50", "--prompt", "8192", "--output", "512", "--on-decode", "tp"], "KEY=VALUE was expected")]
#[case(&["--link", "50", "--prompt", "8192", "--output", "512", "--on-decode", "tp=3"], "--decode: 4 devices are named, but [parallel] has 3 ranks")]
#[case(&["--link", "50", "--prompt", "8192", "--output", "512", "--on-prefill", "tp=1"], "--prefill: 2 devices are named, but [parallel] has 1 rank")]
fn what_is_no_question_is_usage(#[case] args: &[&str], #[case] said: &str) {
    let output = disaggregate(&[SIDES, args]);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(2) && error.contains(said), "{:?} {error}", output.status.code());
}

#[test]
fn lengths_of_a_side_are_numbers_and_cut_nothing() {
    let output = disaggregate(&[
        SIDES,
        &["--link", "50", "--prompt", "8192", "--output", "512", "--on-decode", "workload.prompt=100"],
    ]);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && !error.contains("count as that long"), "{error}");
}

#[test]
fn a_key_of_the_wrong_kind_names_the_flag_that_set_it() {
    let output = disaggregate(&[SIDES, REQUEST, &["--on-prefill", "tp=many"]]);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && error.contains("--on-prefill"), "{error}");
}

/// What is said of a side are flags of this command that change that side, and the side fits with them.
#[rstest]
#[case("--prefill", &["--prefill", "2x9GiB", "--decode", "4xh100"], &[])]
#[case("--decode", &["--prefill", "2xh100", "--decode", "2x9GiB"], &[])]
#[case("--decode", &["--prefill", "2xh100", "--decode", "2x9GiB"], &["--tp", "2"])]
fn what_would_do_for_a_side_is_said_in_flags_of_that_side(
    #[case] side: &str,
    #[case] sides: &[&str],
    #[case] both: &[&str],
) {
    let output = disaggregate(&[sides, REQUEST, both]);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    let tries = error.lines().filter_map(|line| {
        Some(line.trim_start_matches([' ', '│']).strip_prefix("try ")?.split(": ").next()?.to_owned())
    });
    let tries: Vec<String> = tries.collect();
    assert!(output.status.code() == Some(3) && tries.iter().any(|change| change.starts_with(side)), "{error}");
    for change in tries {
        // What is stated of the devices of a side is stated once.
        let words: Vec<&str> = change.split(' ').collect();
        let others = sides.chunks(2).filter(|pair| !words.contains(&pair[0])).flatten().copied().collect::<Vec<&str>>();
        let output = disaggregate(&[&others, REQUEST, both, &words]);
        assert!(output.status.success(), "{change}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn a_side_that_holds_no_request_does_not_fit() {
    let output = disaggregate(&[&["--prefill", "h100", "--decode", "17GiB"], REQUEST]);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(3) && error.contains("decode: does not fit"), "{error}");
}
