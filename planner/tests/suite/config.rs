//! Flags stand above the environment, that above the file, the file above the defaults; every value has an origin.

use std::collections::BTreeSet;
use std::path::Path;

use cacheplan_handlers::KvLayout;
use cacheplan_planner::budget::Origin;
use cacheplan_planner::device::DeviceKind;
use cacheplan_planner::{Budget, BudgetKey, ByteSize, Config, DeviceInfo, Override, PlanRequest, Values};
use rstest::rstest;

use super::common::published;

const FILE: &str = "max_seq_len = 1000\nmax_batch_size = 2\n\n[memory]\nbytes = '1GiB'\n";

fn variables(pairs: &[(&str, &str)]) -> Vec<Override> {
    Config::environment(pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))).unwrap()
}

fn flag(key: &str, value: &str) -> Override {
    Override { key: key.into(), value: value.into(), origin: Origin::Flag(format!("--{key}")) }
}

fn origin(config: &Config, key: &str) -> String {
    config.settings.iter().find(|setting| setting.key == key).unwrap().origin.to_string()
}

#[test]
fn the_strongest_statement_of_a_key_holds() {
    let environment = variables(&[
        ("CACHEPLAN__MAX_BATCH_SIZE", "3"),
        ("CACHEPLAN__MAX_SEQ_LEN", "2000"),
        ("CACHEPLAN__MEMORY__BYTES", "2GiB"),
        ("CACHEPLAN_LOG", "debug"),
        ("PATH", "/bin"),
    ]);
    let config = Config::resolve(Some((FILE, "b.toml")), &environment, &[flag("max_seq_len", "3000")]).unwrap();
    assert_eq!(config.budget.max_seq_len, Some(3000));
    assert_eq!(config.budget.max_batch_size, Some(3));
    assert_eq!(config.budget.memory.as_ref().unwrap().bytes, Some(ByteSize(2 << 30)));
    assert_eq!(origin(&config, "max_seq_len"), "flag --max_seq_len");
    assert_eq!(origin(&config, "max_batch_size"), "environment CACHEPLAN__MAX_BATCH_SIZE");
    assert_eq!(origin(&config, "grouping"), "default");
}

#[test]
fn a_value_of_the_file_names_its_line() {
    let config = Config::resolve(Some((FILE, "b.toml")), &[], &[]).unwrap();
    assert_eq!(config.budget, Budget::from_toml(FILE, "b.toml").unwrap());
    assert_eq!(origin(&config, "max_batch_size"), "b.toml:2");
    assert_eq!(origin(&config, "memory.bytes"), "b.toml:5");
    insta::assert_snapshot!("config_with_origins", config.table());
}

#[test]
fn values_of_the_environment_may_be_any_toml() {
    let environment = variables(&[
        ("CACHEPLAN__WORKLOAD__PROMPT", "{ lognormal = { median = 300 } }"),
        ("CACHEPLAN__ENGINE__PREFIX_CACHING", "true"),
        ("CACHEPLAN__DTYPES__KV", "fp8"),
        ("CACHEPLAN__MEMORY__FRACTION", "0.5"),
        ("CACHEPLAN__MEMORY__OF", "free"),
        // The file states what this section also needs.
        ("CACHEPLAN__SPECULATION__SCHEME", "replay"),
    ]);
    let file = "workload.prompt.lognormal.median = 300\nengine.prefix_caching = true\ndtypes.kv = 'fp8'\n\
                memory = { fraction = 0.5, of = 'free' }\nspeculation = { draft_tokens = 2, scheme = 'replay' }";
    let part = "speculation.draft_tokens = 2";
    let config = Config::resolve(Some((part, "b.toml")), &environment, &[]).unwrap();
    assert_eq!(config.budget, Budget::from_toml(file, "all.toml").unwrap());
    assert_eq!(origin(&config, "speculation.draft_tokens"), "b.toml:1");
}

#[rstest]
#[case::in_the_file("max_seq_length = 1", &[], &[], "b.toml:1: unknown field `max_seq_length`")]
#[case::no_toml("max_seq_len =", &[], &[], "b.toml:1: ")]
#[case::in_the_environment("", &[("CACHEPLAN__MAX_SEQ_LEN", "long")], &[], "environment CACHEPLAN__MAX_SEQ_LEN: `long` is not a number of tokens")]
#[case::a_choice("", &[("CACHEPLAN__GROUPING", "by-keys")], &[], "environment CACHEPLAN__GROUPING: unknown variant `by-keys`")]
#[case::in_a_flag("", &[], &[("dtypes.kv", "fp7")], "flag --dtypes.kv: unknown dtype")]
#[case::of_its_section("", &[], &[("speculation.mtp_layers", "1"), ("max_seq_len", "64")], "flag --speculation.mtp_layers: `speculation.draft_tokens` (--draft-tokens) is missing")]
#[case::between_two("[memory]\nbytes = 5000", &[("CACHEPLAN__MEMORY__OF", "free")], &[], "the configuration: `memory.of` is stated without")]
#[case::no_section("memory = 5", &[("CACHEPLAN__MEMORY__OF", "free")], &[], "b.toml:1: invalid type: integer `5`, expected the section Memory")]
fn an_error_names_who_stated_the_value(
    #[case] file: &str,
    #[case] pairs: &[(&str, &str)],
    #[case] flags: &[(&str, &str)],
    #[case] expected: &str,
) {
    let flags: Vec<Override> = flags.iter().map(|(key, value)| flag(key, value)).collect();
    let error = Config::resolve(Some((file, "b.toml")), &variables(pairs), &flags).unwrap_err().to_string();
    assert!(error.contains(expected), "{error}");
}

/// Whatever a file is called, it is no flag.
#[rstest]
#[case("max_seq_length = 1", &[], &[], 1)]
#[case("", &[("CACHEPLAN__MAX_SEQ_LEN", "long")], &[], 1)]
#[case("", &[], &[("dtypes.kv", "fp7")], 2)]
#[case("memory = 5", &[], &[("memory.bytes", "1")], 1)]
#[case("[memory]\nbytes = 5", &[], &[("memory.of", "free")], 1)]
#[case("", &[], &[("memory.bytes", "1GiB"), ("memory.fraction", "0.5"), ("memory.of", "free")], 2)]
#[case("[memory]\nbytes = '1GiB'", &[], &[("memory.fraction", "0.5"), ("memory.of", "free")], 1)]
fn only_a_flag_that_is_wrong_is_wrong_usage(
    #[case] file: &str,
    #[case] pairs: &[(&str, &str)],
    #[case] flags: &[(&str, &str)],
    #[case] code: u8,
) {
    let flags: Vec<Override> = flags.iter().map(|(key, value)| flag(key, value)).collect();
    let error = Config::resolve(Some((file, "flag b.toml")), &variables(pairs), &flags).unwrap_err();
    assert_eq!(error.exit_code(), code, "{error}");
}

#[test]
fn what_is_stated_reads_as_the_same_budget() {
    let environment = variables(&[("CACHEPLAN__DTYPES__KV", "fp8")]);
    let config = Config::resolve(Some((FILE, "b.toml")), &environment, &[]).unwrap();
    assert_eq!(Budget::from_toml(&config.stated(), "stated.toml"), Ok(config.budget));
}

#[test]
fn a_variable_that_names_no_key_is_an_error_with_the_nearest_one() {
    let error = Config::environment([("CACHEPLAN__MEMORY__BYTE".to_owned(), "1".to_owned())]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "environment CACHEPLAN__MEMORY__BYTE: there is no key `memory.byte`; did you mean `memory.bytes`?"
    );
}

#[rstest]
#[case("CACHEPLAN_MAX_SEQ_LEN", "the variable of `max_seq_len` is CACHEPLAN__MAX_SEQ_LEN")]
#[case("CACHEPLAN_MEMORY_BYTES", "the variable of `memory.bytes` is CACHEPLAN__MEMORY__BYTES")]
#[case("CACHEPLAN_MEMORY__BYTES", "the variable of `memory.bytes` is CACHEPLAN__MEMORY__BYTES")]
fn a_variable_with_too_few_underscores_is_an_error(#[case] name: &str, #[case] said: &str) {
    let error = Config::environment([(name.to_owned(), "1".to_owned())]).unwrap_err().to_string();
    assert_eq!(error, format!("environment {name}: sets nothing; {said}"));
}

#[rstest]
#[case("", &[("memory.fraction", "0.9"), ("memory.of", "\"total\"")])]
#[case("[memory]\nreserve = '1GiB'", &[("memory.fraction", "0.9"), ("memory.of", "\"total\"")])]
#[case("[memory]\nof = 'free'", &[("memory.fraction", "0.9")])]
#[case("[memory]\nbytes = '1GiB'", &[])]
#[case("[memory]\nfraction = 0.5\nof = 'free'", &[])]
fn a_stated_device_has_its_usual_share_divided(#[case] file: &str, #[case] expected: &[(&str, &str)]) {
    let device = DeviceInfo::cuda("gpu", 1 << 34, 1 << 34);
    let config = Config::resolve_on(Some(&device), Some((file, "b.toml")), &[], &[]).unwrap();
    let of_device = config.settings.iter().filter(|setting| setting.origin == Origin::Device);
    let of_device: Vec<_> = of_device.map(|setting| (setting.key, setting.value.as_str())).collect();
    assert_eq!(of_device, expected);
    assert!(config.budget.memory.is_some());
}

/// Whatever it is called: what its memory is shared with decides.
#[rstest]
#[case::its_own(DeviceKind::Cuda, 0.9)]
#[case::a_processors(DeviceKind::Cpu, 0.9)]
#[case::shared(DeviceKind::Integrated, 0.75)]
fn the_usual_share_follows_the_kind_of_memory(#[case] kind: DeviceKind, #[case] share: f64) {
    for name in ["NVIDIA GB10", "NVIDIA Jetson AGX Thor", "Apple M5", "stated"] {
        let device = DeviceInfo { kind, ..DeviceInfo::cuda(name, 1 << 37, 1 << 37) };
        let config = Config::resolve_on(Some(&device), None, &[], &[]).unwrap();
        let memory = config.budget.memory.unwrap();
        assert_eq!(memory.fraction.map(f64::from), Some(share), "{name}");
        assert_eq!(device.usual_share().of(1_000_000), (share * 1e6) as u64);
    }
}

#[test]
fn the_commented_file_reads_as_the_defaults() {
    assert_eq!(Budget::from_toml(&Config::commented_file(), "budget.toml"), Ok(Budget::default()));
}

/// The commented file's keys as `(section, line)`, uncommented.
fn examples() -> Vec<(String, String)> {
    let text = Config::commented_file();
    let mut section = String::new();
    let mut found = Vec::new();
    for line in text.lines().filter_map(|line| line.strip_prefix('#')).filter(|line| !line.starts_with([' ', ':'])) {
        match line.strip_prefix('[') {
            Some(name) => section = name.trim_end_matches(']').to_owned(),
            None => found.push((section.clone(), line.to_owned())),
        }
    }
    found
}

#[test]
fn each_commented_line_is_a_key_with_a_value_that_reads() {
    for (section, line) in examples() {
        // What a key needs beside it.
        let beside = match (section.as_str(), line.split(' ').next().unwrap()) {
            ("memory", "bytes") => "",
            ("memory", "fraction") => "of = 'free'\n",
            ("memory", "of") => "fraction = 0.5\n",
            ("memory", "reserve" | "safe") => "fraction = 0.5\nof = 'total'\n",
            ("memory", _) => "bytes = 1\n",
            ("workload", "checkpoint_dtype" | "checkpoint_strategy" | "checkpoint_interval") => {
                "checkpoints_per_sequence = 1\n"
            }
            ("speculation", key) if key != "draft_tokens" => "draft_tokens = 1\n",
            _ => "",
        };
        let header = if section.is_empty() { String::new() } else { format!("[{section}]\n") };
        let budget = Budget::from_toml(&format!("{header}{beside}{line}\n"), "line.toml");
        assert!(budget.is_ok(), "[{section}] {line}: {}", budget.unwrap_err());
    }
}

#[rstest]
#[case("")]
#[case("memory")]
#[case("dtypes")]
#[case("workload")]
#[case("speculation")]
#[case("parallel")]
#[case("host")]
#[case("disk")]
#[case("engine")]
fn no_key_is_missing_from_the_commented_file(#[case] section: &str) {
    let header = if section.is_empty() { String::new() } else { format!("[{section}]\n") };
    let error = Budget::from_toml(&format!("{header}no_such_key = 1\n"), "b.toml").unwrap_err().message;
    // The reader lists every key that it knows.
    let known: Vec<&str> = error.split('`').skip(3).step_by(2).collect();
    assert!(!known.is_empty(), "{error}");
    let examples = examples();
    for key in known {
        let there = examples.iter().any(|(at, line)| at == section && line.starts_with(&format!("{key} = ")));
        let is_section = section.is_empty() && examples.iter().any(|(at, _)| at == key);
        assert!(there || is_section, "`{key}` of [{section}] is missing");
    }
}

#[test]
fn the_committed_schema_is_current() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("schemas/budget.schema.json");
    if std::env::var_os("UPDATE_SCHEMAS").is_some() {
        std::fs::write(&path, Config::schema()).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(committed, Config::schema(), "run the test with UPDATE_SCHEMAS=1");
}

#[rstest]
#[case("{ lognormal = { median = 300, sigm = 2.0 } }", "sigm, available keys: median, sigma")]
#[case("{ uniform = { min = 1, max = 2, maximum = 5 } }", "maximum, available keys: min, max")]
fn an_unknown_key_of_a_distribution_is_refused(#[case] lengths: &str, #[case] said: &str) {
    let error = Budget::from_toml(&format!("[workload]\nprompt = {lengths}\n"), "b.toml").unwrap_err();
    assert_eq!(error.origin, Some(Origin::File { name: "b.toml".into(), line: Some(2) }), "{error}");
    assert!(error.message.ends_with(said), "{error}");
}

/// The text between the marks of a document, and the document with `table` there.
fn between_marks(document: &str, table: &str) -> (String, String) {
    let (before, rest) = document.split_once("<!-- keys -->\n").unwrap();
    let (found, after) = rest.split_once("<!-- end of keys -->").unwrap();
    (found.to_owned(), format!("{before}<!-- keys -->\n{table}<!-- end of keys -->{after}"))
}

#[test]
fn the_committed_reference_is_current() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/budget.md");
    let document = std::fs::read_to_string(&path).unwrap();
    let (committed, written) = between_marks(&document, &Config::reference());
    if std::env::var_os("UPDATE_SCHEMAS").is_some() {
        std::fs::write(&path, written).unwrap();
    } else {
        assert_eq!(committed, Config::reference(), "run the test with UPDATE_SCHEMAS=1");
    }
}

#[test]
fn every_key_has_a_flag_and_a_variable_of_its_own() {
    let flags: BTreeSet<&str> = BudgetKey::all().iter().map(|key| key.flag).collect();
    assert_eq!(flags.len(), BudgetKey::all().len());
    for key in BudgetKey::all() {
        let named = key.flag.strip_prefix("--").unwrap();
        assert!(named.chars().all(|c| c.is_ascii_lowercase() || c == '-'), "{named}");
        let value = if key.path == "memory.of" { "free" } else { "1" };
        let set = Config::environment([(key.variable(), value.to_owned())]).unwrap();
        assert_eq!(set[0].key, key.path);
    }
}

#[rstest]
#[case("engine.block_size", "0")]
#[case("engine.ubatch", "0")]
#[case("engine.state_slots", "18446744073709551615")]
#[case("parallel.cp", "4097")]
fn a_count_outside_its_bounds_names_who_stated_it(#[case] key: &str, #[case] value: &str) {
    let stated = flag(key, value);
    let error = Config::resolve(None, &[], std::slice::from_ref(&stated)).unwrap_err();
    assert_eq!(error.origin, Some(stated.origin), "{error}");
    assert!(error.to_string().contains(value) || value.len() > 18, "{error}");
}

/// Sums of what is stated stay countable, so that no size that is printed is a bound of counting.
#[rstest]
#[case("16777215TiB")]
#[case("1048577TiB")]
#[case("1152921504606846977")]
fn a_size_beyond_counting_names_its_key_and_value(#[case] size: &str) {
    let keys = BudgetKey::all().iter().filter(|key| matches!(key.values, Values::Bytes));
    let mut seen = 0;
    for key in keys {
        let error = Config::resolve(None, &[], &[flag(key.path, size)]).unwrap_err();
        let (said, origin) = (error.to_string(), Origin::Flag(format!("--{}", key.path)));
        assert_eq!(error.origin, Some(origin), "{said}");
        assert!(said.contains(size) && said.contains("sizes are at most 1048576TiB"), "{}: {said}", key.path);
        seen += 1;
    }
    assert!(seen > 6, "{seen} keys");
}

#[test]
fn a_stated_layout_is_that_of_every_pool_of_keys_and_values() {
    let layouts = |text: &str| {
        let budget = Budget::from_toml(text, "b.toml").unwrap();
        let model = super::common::nemotron_3_nano();
        budget.pass_context(&model.info).layout
    };
    assert_eq!(layouts("layout = 'NHD'"), KvLayout::Nhd);
    assert_eq!(layouts(""), KvLayout::Hnd);
}

#[test]
fn a_count_beyond_counting_names_its_key_and_file() {
    let text = "[workload]\ncheckpoints_per_sequence = 9223372036854775807\n";
    let error = Budget::from_toml(text, "budget.toml").unwrap_err().to_string();
    assert!(error.contains("budget.toml") && error.contains("workload.checkpoints_per_sequence"), "{error}");
}

/// Of flags that contradict each other the one is named whose key the sentence begins with.
#[test]
fn a_contradiction_names_the_flag_at_fault() {
    let flags = [("parallel.ep", "8", "--ep"), ("parallel.cp", "2", "--cp")]
        .map(|(key, value, flag)| Override::by_flag(key, value, flag));
    let error = Config::resolve(None, &[], &flags).unwrap_err().to_string();
    assert_eq!(error, "flag --ep: `parallel.ep` 8 does not divide tp * dp = 1");
}

/// A size of groups that does not go with the others is blamed on whoever states it, with or without devices.
#[rstest]
#[case("", &[("parallel.ep", "2", "--ep")], "flag --ep: `parallel.ep` 2 does not divide")]
#[case("", &[("parallel.tp", "1", "--tp"), ("parallel.dcp", "2", "--dcp")], "flag --dcp: `parallel.dcp` 2 does not divide")]
#[case("[parallel]\ntp = 1\ndcp = 2\n", &[], "b.toml:3: `parallel.dcp` 2 does not divide")]
#[case(
    "",
    &[("parallel.dp", "2", "--dp"), ("parallel.ep", "3", "--ep"), ("memory.safe", "true", "--safe")],
    "flag --ep: `parallel.ep` 3 does not divide"
)]
fn sizes_that_contradict_each_other_name_who_states_them(
    #[case] file: &str,
    #[case] flags: &[(&str, &str, &str)],
    #[case] said: &str,
) {
    let flags: Vec<Override> = flags.iter().map(|(key, value, flag)| Override::by_flag(*key, *value, *flag)).collect();
    let device: DeviceInfo = "h100".parse().unwrap();
    let planned = Config::resolve_on(Some(&device), Some((file, "b.toml")), &[], &flags);
    let (code, error) = match planned {
        Err(error) => (error.exit_code(), error.to_string()),
        Ok(config) => {
            let request = PlanRequest::of(published("Qwen__Qwen3-8B")).with_config(config).with_devices(device);
            let error = request.plan().unwrap_err();
            (error.exit_code(), error.to_string())
        }
    };
    assert!(code == if file.is_empty() { 2 } else { 1 } && error.starts_with(said), "{code}: {error}");
}

/// Values of all keys, from the file that shows one of each; of choices all.
fn every_value() -> Vec<Override> {
    let file = Config::commented_file();
    let (mut values, mut section) = (Vec::new(), "");
    for line in file.lines() {
        if let Some(name) = line.strip_prefix("#[").and_then(|line| line.strip_suffix(']')) {
            section = name;
        }
        let Some((name, value)) = line.strip_prefix('#').and_then(|line| line.split_once(" = ")) else { continue };
        let path = if section.is_empty() { name.to_owned() } else { format!("{section}.{name}") };
        let Some(key) = BudgetKey::all().iter().find(|key| key.path == path) else { continue };
        match key.values {
            Values::Choice(names) => values.extend(names.iter().map(|(name, _)| flag(key.path, name))),
            _ => values.push(flag(key.path, value)),
        }
    }
    assert!(BudgetKey::all().iter().all(|key| values.iter().any(|value| value.key == key.path)));
    values
}

/// The flag that is named makes the error, alone or with the other; never the other by itself.
#[test]
fn an_error_of_two_flags_never_names_an_innocent_one() {
    let values = every_value();
    let error = |flags: &[&Override]| {
        let flags: Vec<Override> = flags.iter().map(|flag| (*flag).clone()).collect();
        Config::resolve(None, &[], &flags).err()
    };
    let alone: Vec<_> = values.iter().map(|value| error(&[value])).collect();
    let mut refused = 0;
    for (one, of_one) in values.iter().zip(&alone) {
        for (other, of_other) in values.iter().zip(&alone).filter(|(other, _)| other.key != one.key) {
            let Some(found) = error(&[one, other]) else { continue };
            let says = |alone: &Option<cacheplan_planner::BudgetError>| {
                alone.as_ref().is_some_and(|alone| alone.message == found.message)
            };
            let innocent = [(one, says(of_other) && !says(of_one)), (other, says(of_one) && !says(of_other))];
            for (flag, _) in innocent.iter().filter(|(_, is_innocent)| *is_innocent) {
                assert_ne!(found.origin.as_ref(), Some(&flag.origin), "{found}");
            }
            assert!([&one.origin, &other.origin].contains(&found.origin.as_ref().unwrap()), "{found}");
            refused += 1;
        }
    }
    assert!(refused > 500, "{refused} pairs");
}

#[rstest]
#[case(&[("parallel.tp", "2"), ("memory.reserve", "1GiB")], "memory.reserve")]
#[case(&[("dtypes.kv", "fp8"), ("maximize", "tokens")], "maximize")]
#[case(&[("host.bytes", "64GiB"), ("mla_cache_mode", "nz")], "mla_cache_mode")]
#[case(&[("mla_cache_mode", "nz"), ("tokens_per_block", "32")], "tokens_per_block")]
fn whoever_is_at_fault_is_named_wherever_it_stands(#[case] flags: &[(&str, &str)], #[case] at_fault: &str) {
    let mut flags: Vec<Override> = flags.iter().map(|(key, value)| flag(key, value)).collect();
    for _ in 0..2 {
        let error = Config::resolve(None, &[], &flags).unwrap_err();
        assert_eq!(error.origin, Some(flag(at_fault, "").origin), "{error}");
        flags.reverse();
    }
}
