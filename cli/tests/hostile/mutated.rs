//! Files of every kind, changed at random.

use std::fs;
use std::path::Path;

use rstest::rstest;

use super::{assert_harmless, confined, fixture, plan, stderr};

/// Files of every kind that commands read, each changed in many ways: whatever comes of it is an answer or a refusal within
/// 64 MiB and 2 seconds, in a process of its own, so that one that aborts is found. `CACHEPLAN_HOSTILE_ROUNDS` asks for more.
#[rstest]
#[case::config(&["plan FILE", "inspect FILE", "compare FILE", "plan explain FILE"], "config.json")]
#[case::budget(&["plan config.json --budget FILE", "config show --budget FILE"], "budget.toml")]
#[case::plan(&["plan check FILE", "plan diff FILE plan.json", "export FILE --to vllm", "export FILE --to llm-d"], "plan.json")]
#[case::trace(&["simulate --trace FILE --policy no-buffer"], "trace.jsonl")]
#[case::measured(&["plan config.json --measured FILE"], "measured.toml")]
#[case::measurement(&["plan config.json --measurement FILE"], "measurement.json")]
#[case::log(&["calibrate --log FILE", "check --plan plan.json --log FILE"], "start.log")]
#[case::description(&["plan config.json --description FILE"], "description.toml")]
fn whatever_is_read_is_answered_or_refused(#[case] commands: &[&str], #[case] name: &str) {
    let rounds: u64 = std::env::var("CACHEPLAN_HOSTILE_ROUNDS").map_or(8, |rounds| rounds.parse().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    plan(folder.path());
    fs::write(at("budget.toml"), "max_seq_len = 64\n[memory]\nbytes = \"1GiB\"\n[workload]\nprompt = { fixed = 20 }\n")
        .unwrap();
    fs::write(
        at("trace.jsonl"),
        "{\"prompt\": [{\"id\": 7, \"len\": 512}, {\"tokens\": [3, 9]}], \"output\": {\"id\": 8, \"len\": 100}}\n"
            .repeat(4),
    )
    .unwrap();
    fs::write(at("measured.toml"), "[lines]\nweights = { bytes = 1000, within = 10 }\n").unwrap();
    fs::write(at("measurement.json"), r#"{ "resident_bytes": 6000, "forward_bytes": 1000, "free_bytes": 8000000 }"#)
        .unwrap();
    fs::copy(fixture("logs/tensorrt-llm-deepseek-r1-distill-llama-8b.log"), at("start.log")).unwrap();
    let llama = fixture("../../transforms/src/frontend/config/architectures/llama.toml");
    fs::copy(llama, at("description.toml")).unwrap();
    let seed = fs::read(at(name)).unwrap();
    let mut random = 0x9E37_79B9_7F4A_7C15_u64;
    let mut below = |below: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as usize % below.max(1)
    };
    let changed = at("changed").with_extension(Path::new(name).extension().unwrap());
    for _ in 0..rounds {
        let mut bytes = seed.clone();
        for _ in 0..1 + below(3) {
            let (from, to) = (below(bytes.len()), below(bytes.len()));
            let (from, to) = (from.min(to), from.max(to));
            match below(6) {
                0 => bytes.truncate(from),
                1 if !bytes.is_empty() => bytes[from] ^= 1 << below(8),
                2 => drop(bytes.splice(from..to, [])),
                3 => {
                    let more = bytes[from..to].repeat(1 + below(50));
                    drop(bytes.splice(from..from, more));
                }
                4 => {
                    // Another number, at the first digit behind a place.
                    let digit = bytes[from..].iter().position(u8::is_ascii_digit).map(|at| from + at);
                    let numbers = ["18446744073709551615", "-1", "1e308", "0", "9007199254740993", "4294967296"];
                    let number = numbers[below(numbers.len())].bytes();
                    digit.into_iter().for_each(|at| drop(bytes.splice(at..=at, number.clone())));
                }
                _ => {
                    let bracket = [b'[', b'{', b'"'][below(3)];
                    drop(bytes.splice(from..from, vec![bracket; below(5000)]));
                }
            }
        }
        fs::write(&changed, &bytes).unwrap();
        for args in commands {
            let args: Vec<String> = args
                .split(' ')
                .map(|arg| match arg {
                    "FILE" => changed.display().to_string(),
                    "config.json" | "plan.json" => at(arg).display().to_string(),
                    other => other.to_owned(),
                })
                .collect();
            let output = confined(&args.iter().map(String::as_str).collect::<Vec<_>>()).output().unwrap();
            let kept = || {
                let kept = std::env::temp_dir().join(format!("cacheplan-hostile-{name}"));
                fs::write(&kept, &bytes).unwrap();
                kept
            };
            let harmless = matches!(output.status.code(), Some(0..=5)) && !stderr(&output).contains("panicked");
            assert!(harmless, "{args:?}: {} at {}: {}", output.status, kept().display(), stderr(&output));
            assert_harmless(&output);
        }
    }
}
