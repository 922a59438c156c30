//! What stands beside a command is used, or refused by its flag; and answers hold what they say.

mod common;

use cacheplan_planner::logs::{Fact, Logged};
use cacheplan_planner::{BudgetKey, MeasuredLedger, Override, Values};
use cacheplan_serve::{Answer, Options, ServeError, Starts, answer};
use rstest::rstest;

use common::{launch, models, on};

const NEXT: &str = "Qwen__Qwen3-Next-80B-A3B-Thinking";
const COMMANDS: [&str; 5] = [
    "vllm serve m --max-model-len 4096",
    "vllm serve m --max-model-len 4096 --kv-cache-memory-bytes 20G",
    "sglang serve --model-path m --context-length 4096",
    "trtllm-serve m --max_seq_len 4096",
    "llama-server -m m -c 4096",
];

fn told(command: &str, model: &str, options: &Options) -> Result<Answer, ServeError> {
    answer(&launch(command), models(model), options)
}

fn with(device: &str, keys: &[(&str, &str)]) -> Options {
    let overrides = keys.iter().map(|(key, value)| Override::by_flag(*key, *value, format!("--{key}"))).collect();
    Options { overrides, ..on(device) }
}

/// Values that change what they are about wherever they are looked at.
fn values(key: &BudgetKey) -> Vec<String> {
    match key.values {
        Values::Count(..) if key.path == "engine.compute_capability" => vec!["100".into()],
        Values::Count(..) => vec!["3".into()],
        Values::Tokens(..) => vec!["512".into()],
        Values::Bytes => vec!["'79GiB'".into()],
        Values::Fraction | Values::Ratio => vec!["0.37".into()],
        Values::DType => vec!["'f8_e4m3'".into()],
        Values::Choice(names) => names.iter().map(|(name, _)| format!("'{name}'")).collect(),
        Values::Switch => vec!["true".into(), "false".into()],
        Values::Lengths => vec!["{ fixed = 100 }".into()],
    }
}

#[test]
fn every_key_above_a_command_changes_its_answer_or_is_refused_by_its_flag() {
    let models = ["Qwen__Qwen3-8B", "deepseek-ai__DeepSeek-V2-Lite"];
    for command in COMMANDS {
        for key in BudgetKey::all() {
            let outcome = |model: &str, value: String| {
                let overrides = vec![Override::by_flag(key.path, value, key.flag)];
                let found = told(command, model, &Options { overrides, ..on("h100") });
                match found {
                    Ok(found) => found != told(command, model, &on("h100")).unwrap(),
                    Err(error) => {
                        let said = error.to_string();
                        assert!(said.contains(key.flag) || said.contains(key.path), "{command}, {}: {said}", key.flag);
                        true
                    }
                }
            };
            let noticed = models.iter().any(|model| values(key).into_iter().any(|value| outcome(model, value)));
            assert!(noticed, "{command}: {} is swallowed", key.flag);
        }
    }
}

#[rstest]
#[case("--max_seq_len", "max_seq_len", "1024", "the command says that itself: --max-model-len")]
#[case("--tp", "parallel.tp", "2", "--tensor-parallel-size")]
#[case("--grouping", "grouping", "'by-window'", "a plan of our own")]
fn what_the_command_says_itself_is_refused_with_its_flag(
    #[case] flag: &str,
    #[case] key: &str,
    #[case] value: &str,
    #[case] expected: &str,
) {
    let overrides = vec![Override::by_flag(key, value, flag)];
    let error = told("vllm serve m", "Qwen__Qwen3-8B", &Options { overrides, ..on("h100") }).unwrap_err();
    assert_eq!(error.exit_code(), 2);
    assert!(error.to_string().starts_with(flag) && error.to_string().contains(expected), "{error}");
}

#[test]
fn measured_lines_stand_for_what_is_assumed() {
    const GIB: f64 = (1u64 << 30) as f64;
    let text = "engine = \"vllm\"\n[limits]\n[lines]\nweights = { bytes = 20000000000 }\n";
    let measured = Some(MeasuredLedger::from_toml(text, "measured.toml").unwrap());
    let of = |options: &Options| told(COMMANDS[0], "Qwen__Qwen3-8B", options).unwrap().facts[&Fact::CacheBytes];
    let (assumed, found) = (of(&on("h100")), of(&Options { measured: measured.clone(), ..on("h100") }));
    // The config's 8.19 billion weights take 15.26 GiB, those that were measured 18.63.
    let less = (assumed.high - found.high) as f64 / GIB;
    assert!((3.3..3.5).contains(&less), "{less}");
    let stated = Options { measured, ..with("h100", &[("engine.cache_bytes", "'40GiB'")]) };
    let error = told(COMMANDS[0], "Qwen__Qwen3-8B", &stated).unwrap_err().to_string();
    assert!(error.starts_with("--measured: "), "{error}");
}

/// 8 GiB of caches beside 15.3 GiB of weights in 16 bits, or 5 in four.
#[rstest]
#[case("-c 32768 -np 1", &[], Starts::Yes)]
#[case("-c 65536 -np 1", &[], Starts::Maybe)]
#[case("-c 65536 -np 1 -ngl 99", &[], Starts::No)]
#[case("-c 65536 -np 1 -fit off", &[], Starts::No)]
#[case("-c 65536 -np 1 -fit 0", &[], Starts::No)]
#[case("-c 65536 -np 1 -ngl 99", &[("memory.weights", "'5GiB'")], Starts::Yes)]
#[case("-c 65536 -np 1", &[("memory.weights", "'5GiB'"), ("memory.reserve", "'11GiB'")], Starts::Maybe)]
fn llama_server_is_held_to_stated_weights(#[case] flags: &str, #[case] keys: &[(&str, &str)], #[case] starts: Starts) {
    let found = told(&format!("llama-server -m m {flags}"), "Qwen__Qwen3-8B", &with("rtx-4090", keys)).unwrap();
    assert_eq!(found.starts, starts, "{:?}", found.reason);
    assert_eq!(found.lines.is_empty(), starts == Starts::No, "{:?}", found.lines);
}

/// `common/fit.cpp` changes what nobody states alone.
#[test]
fn llama_server_takes_the_cells_that_are_stated_or_says_between_which() {
    for cells in [4096, 32_768, 131_072] {
        for slots in [1, 2] {
            for weights in ["'1GiB'", "'15GiB'", "'23GiB'"] {
                let command = format!("llama-server -m m -c {cells} -np {slots}");
                let found =
                    told(&command, "Qwen__Qwen3-8B", &with("rtx-4090", &[("memory.weights", weights)])).unwrap();
                assert_eq!(found.facts[&Fact::Tokens], Logged::exact(cells), "{command}, {weights}");
                assert_eq!(found.facts[&Fact::MaxBatchSize], Logged::exact(slots), "{command}, {weights}");
            }
        }
    }
    // 147,456 bytes a cell: of 24 GiB, 20 of which are weights and one is left free, 3 GiB hold 21,845, less what a pass and the
    // context take, which is estimated.
    let found = told("llama-server -m m", "Qwen__Qwen3-8B", &with("24GiB", &[("memory.weights", "'20GiB'")])).unwrap();
    let Logged { low, high } = found.facts[&Fact::Tokens];
    assert!(4096 < low && low < high && high < (3 << 30) / 147_456, "{low} to {high}");
    assert_eq!(found.starts, Starts::Yes);
}

#[test]
fn windows_have_a_buffer_of_their_own() {
    let found = told("llama-server -m m -c 8192 -np 1", "google__gemma-3-1b-it", &on("h100")).unwrap();
    // 4 full layers of 8,192 cells and 22 of 1,024, of 1,024 bytes.
    let buffers: Vec<&str> = found.lines.iter().filter(|line| line.contains("KV buffer")).map(String::as_str).collect();
    let said = |mib: f64| format!("llama_kv_cache: CUDA0 KV buffer size = {mib:.2} MiB");
    assert_eq!(buffers, [said(4.0 * 8.0), said(22.0)]);
}

#[rstest]
#[case("b5913", "-ctv q8_0", false)]
#[case("b5913", "-fa -ctv q8_0", true)]
#[case("b5913", "-ctk q8_0", true)]
#[case("b6325", "-ctv q8_0", true)]
#[case("b6325", "-fa off -ctv q8_0", false)]
fn quantised_values_need_flash_attention(#[case] version: &str, #[case] flags: &str, #[case] starts: bool) {
    let options = Options { version: Some(version.into()), ..on("h100") };
    let found = told(&format!("llama-server -m m -c 4096 {flags}"), "Qwen__Qwen3-8B", &options);
    assert_eq!(found.is_ok(), starts, "{:?}", found.err().map(|error| error.to_string()));
}

/// 74.25 GiB of weights a rank of 80: the more the share has, the less graphs have.
#[test]
fn no_sequence_is_no_start() {
    let mut seen = Vec::new();
    for share in (90..100).map(|hundredths| format!("0.{hundredths}")) {
        for length in [32_768, 262_144] {
            let command =
                format!("sglang serve --model-path m --tp 2 --mem-fraction-static {share} --context-length {length}");
            let found = told(&command, NEXT, &on("2xh100")).unwrap();
            let (low, high) = found.sequences.map_or((0, 0), |all| (all.low, all.high));
            assert!(found.starts != Starts::Yes || low > 0, "{command}: {:?}", found.sequences);
            assert!(found.starts == Starts::No || high > 0, "{command}: {:?}", found.sequences);
            assert!(found.starts == Starts::Yes || found.reason.is_some(), "{command}");
            seen.push((share.clone(), found.starts));
        }
    }
    // Of 80 GiB 0.8 are left, and graphs alone take more.
    let last = seen.iter().filter(|(share, _)| share == "0.99");
    assert!(last.into_iter().all(|(_, starts)| *starts != Starts::Yes), "{seen:?}");
}

/// What is named as the cap admits more where it is raised, and what is stated besides does not.
#[test]
fn the_cap_is_what_admits_more() {
    let flags = [("--max-running-requests", 2), ("--max-mamba-cache-size", 2), ("--max-total-tokens", 2)];
    let mut caps = std::collections::BTreeMap::new();
    for running in [4, 25, 64] {
        for slots in [40, 128, 400] {
            for tokens in [100_000, 400_000, 3_000_000] {
                let stated = [running, slots, tokens];
                let command = |stated: [u64; 3]| {
                    let words = flags.iter().zip(stated).map(|((flag, _), value)| format!(" {flag} {value}"));
                    let base = "sglang serve --model-path m --tp 2 --context-length 32768";
                    format!("{base}{}", words.collect::<String>())
                };
                let options = with("2xh100", &[("engine.cache_bytes", "'30GiB'")]);
                let held = |stated| {
                    let found = told(&command(stated), NEXT, &options).unwrap();
                    (found.sequences.unwrap().low, found.capped_by, found.changes)
                };
                let (now, cap, changes) = held(stated);
                let alone: Vec<usize> = (0..3)
                    .filter(|at| {
                        [1, 2, 5, 8, stated[*at]].into_iter().any(|more| {
                            let mut raised = stated;
                            raised[*at] += more;
                            held(raised).0 > now
                        })
                    })
                    .collect();
                for (at, (flag, _)) in flags.iter().enumerate() {
                    let named = cap.contains(flag);
                    if cap.contains(" and ") {
                        continue;
                    }
                    assert_eq!(named, alone.contains(&at), "{}: {now}, {cap}", command(stated));
                    let offered = changes.iter().any(|change| change.change.contains(flag));
                    assert!(!named || offered, "{}: {cap}, {changes:?}", command(stated));
                }
                *caps.entry(cap.split(',').next().unwrap().to_owned()).or_insert(0) += 1;
            }
        }
    }
    assert!(caps.len() >= 3, "{caps:?}");
}

#[rstest]
#[case::sglang("sglang serve --model-path m --tp 2 --quantization fp8", 42.0)]
#[case::vllm("vllm serve m -tp 2 --quantization fp8", 41.0)]
#[case::four_bits("sglang serve --model-path m --tp 2 --quantization bitsandbytes", 26.0)]
fn weights_that_the_engine_quantises_are_counted_so(#[case] command: &str, #[case] most: f64) {
    let whole = command.split(" --quantization").next().unwrap();
    assert_ne!(told(whole, NEXT, &on("2xh100")).unwrap().starts, Starts::Yes);
    let found = told(command, NEXT, &on("2xh100")).unwrap();
    assert_eq!(found.starts, Starts::Yes);
    let bytes = found.facts[&Fact::CacheBytes].high as f64 / f64::from(1 << 30);
    assert!(bytes > 70.0 - most, "{bytes}");
    assert!(found.notes.iter().any(|note| note.contains("assumed")), "{:?}", found.notes);
}

#[test]
fn what_a_method_makes_of_weights_is_stated_where_it_is_not_known() {
    let command = "sglang serve --model-path m --tp 2 --quantization mxfp8";
    let Err(error) = told(command, NEXT, &on("2xh100")) else { panic!("it is answered") };
    assert!(error.to_string().contains("--weights"), "{error}");
}

#[test]
fn a_command_that_does_not_start_is_followed_by_some_that_do() {
    let found = told("sglang serve --model-path m --tp 2", NEXT, &on("2xh100")).unwrap();
    assert_ne!(found.starts, Starts::Yes);
    let changes: Vec<&str> = found.changes.iter().map(|change| &*change.change).collect();
    assert!(changes.iter().any(|change| change.starts_with("--tp-size 4, not 2")), "{changes:?}");
    assert!(changes.iter().any(|change| change.starts_with("--quantization fp8")), "{changes:?}");
}

#[test]
fn changes_aim_at_the_sequences_that_are_expected() {
    let command = "vllm serve m -tp 4 --max-model-len 131072";
    let options = Options { expected_sequences: Some(12), ..on("4xa100-80gb") };
    let found = told(command, "meta-llama__Llama-3.1-70B-Instruct", &options).unwrap();
    assert!(found.sequences.unwrap().low < 12);
    let (shorter, as_long) = found.changes.split_last().unwrap();
    assert!(found.changes.iter().all(|change| change.sequences.unwrap().low >= 12), "{:?}", found.changes);
    // Sequences of another length are another question, and come last.
    let is_shorter = |change: &str| change.contains("--max-model-len");
    assert!(!as_long.is_empty() && as_long.iter().all(|change| !is_shorter(&change.change)), "{as_long:?}");
    assert!(is_shorter(&shorter.change) && shorter.tokens_each.is_some(), "{shorter:?}");
}

#[test]
fn llama_cpp_that_does_not_start_is_offered_fewer_cells() {
    let found = told("llama-server -m m -c 131072 -np 1 -ngl 99", "Qwen__Qwen3-8B", &on("l4")).unwrap();
    assert_eq!(found.starts, Starts::No);
    let offered: Vec<&str> = found.changes.iter().map(|change| &*change.change).collect();
    assert!(offered.iter().any(|change| change.starts_with("--ctx-size")), "{offered:?}");
    assert!(found.changes.iter().all(|change| change.starts != Starts::No));
}

/// What a command states for caches must be left beside the weights, whatever these are.
#[rstest]
#[case(&[], Starts::No)]
#[case(&[("memory.weights", "'40GiB'")], Starts::Yes)]
#[case(&[("memory.weights", "'70GiB'")], Starts::No)]
#[case(&[("memory.weights", "'40GiB'"), ("memory.activations", "'19GiB'")], Starts::Yes)]
#[case(&[("memory.weights", "'40GiB'"), ("memory.activations", "'25GiB'")], Starts::No)]
fn weights_decide_beside_bytes_that_a_command_states(
    #[case] keys: &[(&str, &str)],
    #[case] starts: Starts,
    #[values("vllm", "tensorrt-llm")] engine: &str,
) {
    const BYTES: &str = "kv_cache_config: {max_gpu_total_bytes: 20000000000}\n";
    let launch = match engine {
        "vllm" => launch("vllm serve m --kv-cache-memory-bytes 20G --max-model-len 4096"),
        _ => launch("trtllm-serve m --max_seq_len 4096 --config f.yaml").with_config("f.yaml", BYTES).unwrap(),
    };
    let found = answer(&launch, models("meta-llama__Llama-3.1-70B-Instruct"), &with("h100", keys)).unwrap();
    assert_eq!(found.starts, starts, "{:?}", found.reason);
}

/// A server of text alone has the bytes of the towers for caches, where its version leaves them out.
#[rstest]
#[case("--language-model-only", "0.33.0", true)]
#[case("--limit-mm-per-prompt {\"image\":0,\"video\":0}", "0.33.0", true)]
#[case("--limit-mm-per-prompt {\"image\":0}", "0.33.0", false)]
#[case("--language-model-only", "0.26.0", false)]
fn towers_take_nothing_of_a_server_of_text(#[case] flags: &str, #[case] version: &str, #[case] leaves_out: bool) {
    let command = "vllm serve m --max-model-len 4096";
    let bytes = |command: &str| {
        let found = told(command, "Qwen__Qwen3.5-27B", &Options { version: Some(version.into()), ..on("h200") });
        found.unwrap().facts[&Fact::CacheBytes]
    };
    let (with, without) = (bytes(command), bytes(&format!("{command} {flags}")));
    assert_eq!(without.low > with.low && without.high > with.high, leaves_out, "{with:?} {without:?}");
}
