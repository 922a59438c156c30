//! Which setting of a command a log is found to differ in.

mod common;

use cacheplan_planner::logs::{Drift, EngineLog, Fact, Logged};
use cacheplan_serve::{CommandCheck, Launch, Options, answer};
use rstest::rstest;

use common::{launch, models, on};

const NANO: &str = "nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16";
const COMMAND: &str = "vllm serve m --tensor-parallel-size 2 --max-model-len 131072 --max-num-seqs 64";

/// What a start of a command on these devices logs, `said` among it.
fn log_of(command: &str, devices: &str, said: &str) -> EngineLog {
    let options = Options { version: Some("0.33.0".into()), ..on(devices) };
    let of = |options: &Options| answer(&launch(command), models(NANO), options).unwrap();
    let bytes = of(&options).facts[&Fact::CacheBytes].middle();
    let lines = of(&Options { cache_bytes: Some(Logged::exact(bytes)), ..options }).lines;
    let text = format!("LLM engine (v0.33.0) with config: {said}, x=1\n{}", lines.join("\n"));
    EngineLog::read(text.as_bytes(), None).unwrap()
}

fn check(command: &Launch, devices: &str, log: &EngineLog) -> CommandCheck {
    CommandCheck::of(command, &models(NANO), &on(devices), log).unwrap()
}

fn reason(check: &CommandCheck, fact: Fact) -> &str {
    let row = check.rows.iter().find(|row| row.name == fact);
    row.map_or("", |row| &row.reason)
}

/// Its own settings are equal, another one is the one row that drifts, and what follows from it follows.
#[rstest]
#[case::as_it_was("", "tensor_parallel_size=2, pipeline_parallel_size=1, enable_prefix_caching=True", &[], "")]
#[case::ranks(" --tensor-parallel-size 4", "tensor_parallel_size=4, pipeline_parallel_size=1", &["tp"], "--tensor-parallel-size")]
#[case::stages(" --pipeline-parallel-size 2", "tensor_parallel_size=2, pipeline_parallel_size=2", &["pp"], "--pipeline-parallel-size")]
#[case::no_prefixes(" --no-enable-prefix-caching", "enable_prefix_caching=False", &["prefix_caching"], "--enable-prefix-caching")]
fn another_setting_than_the_commands_is_found(
    #[case] more: &str,
    #[case] said: &str,
    #[case] drifting: &[&str],
    #[case] flag: &str,
) {
    let log = log_of(&format!("{COMMAND}{more}"), "4xh100", said);
    // Of a container that asks for as many GPUs as its command divides the model over.
    let launch = Launch { gpus: Some(2), ..launch(COMMAND) };
    let found = check(&launch, "2xh100", &log);
    assert_eq!(found.drifting(), drifting, "{}", found.table());
    if !flag.is_empty() {
        let row = found.rows.iter().find(|row| row.drift == Drift::Unexplained).unwrap();
        assert_eq!(row.reason, format!("it was started with another {flag}"));
        assert_eq!(reason(&found, Fact::Tokens), format!("it follows from {flag}"), "{}", found.table());
    }
}

/// Where the log does not say whether prefixes were kept, its tokens do.
#[rstest]
#[case::off(" --no-enable-prefix-caching", "", "with --no-enable-prefix-caching")]
#[case::off_and_on_stated(" --no-enable-prefix-caching", " --enable-prefix-caching", "with --no-enable-prefix-caching")]
#[case::on(" --enable-prefix-caching", " --no-enable-prefix-caching", "with --enable-prefix-caching")]
fn prefix_caching_is_found_as_the_change(#[case] logged: &str, #[case] more: &str, #[case] change: &str) {
    let log = log_of(&format!("{COMMAND}{logged}"), "2xh100", "x=1");
    let found = check(&launch(&format!("{COMMAND}{more}")), "2xh100", &log);
    assert!(found.drifted, "{}", found.table());
    assert_eq!(found.would_be.as_deref(), Some(&*format!("it would be as logged {change}")), "{}", found.table());
}

/// Bytes that nothing is known to compare with are a row, and are not taken for equal.
#[test]
fn bytes_of_no_known_device_are_said_not_to_be_compared() {
    let log = log_of(COMMAND, "2xh100", "tensor_parallel_size=2");
    let of = |options: &Options| CommandCheck::of(&launch(COMMAND), &models(NANO), options, &log).unwrap();
    let (without, with) = (of(&Options::default()), of(&on("2xh100")));
    let is_row = |line: &str| line.starts_with("cache_bytes ") && line.ends_with("NOT COMPARED");
    assert!(without.table().lines().any(is_row) && without.table().contains("--device"), "{}", without.table());
    assert!(without.uncompared.is_some() && without.rows.iter().any(|row| row.name == Fact::Tokens));
    assert!(with.uncompared.is_none() && !with.table().contains("NOT COMPARED"), "{}", with.table());
}
