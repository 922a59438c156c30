//! What vLLM makes of flags that change its caches, held to its rules.

mod common;

use cacheplan_planner::logs::{Drift, EngineLog, Fact, Logged};
use cacheplan_serve::{Answer, CommandCheck, Launch, Models, Options, ServeError, Starts, answer};
use rstest::rstest;
use serde_json::Value;

use common::{changed, launch, models, on};

fn told(command: &str, model: &str, options: &Options) -> Answer {
    answer(&launch(command), models(model), options).unwrap()
}

const NEXT: &str = "Qwen__Qwen3-Next-80B-A3B-Thinking";

fn with_bytes(version: &str, gib: u64) -> Options {
    Options { version: Some(version.into()), cache_bytes: Some(Logged::exact(gib << 30)), ..Options::default() }
}

/// A drafter of five layers, four of which its config gives windows.
fn drafter(change: impl Fn(&mut Value)) -> Models {
    let windowed = |config: &mut Value| {
        config["num_hidden_layers"] = 5.into();
        config["use_sliding_window"] = true.into();
        config["sliding_window"] = 2048.into();
        let kinds = ["sliding_attention"; 4].into_iter().chain(["full_attention"]);
        config["layer_types"] = kinds.collect::<Vec<_>>().into();
        config["dflash_config"] = serde_json::json!({ "mask_token_id": 4 });
        change(config);
    };
    changed("Qwen__Qwen3-8B", windowed)
}

/// Tokens where a model of 36 layers has a drafter.
fn with_drafter(version: &str, method: &str, draft: Models) -> Result<u64, String> {
    let models = Models { draft: Some(draft.model), ..models("Qwen__Qwen3-8B") };
    let config = format!("{{\"method\":\"{method}\",\"model\":\"d\",\"num_speculative_tokens\":7}}");
    let launch = launch(&format!(
        "vllm serve m --max-model-len 32768 --max-num-batched-tokens 2048 --speculative-config {config}"
    ));
    let found = answer(&launch, models, &with_bytes(version, 41)).map_err(|error| error.to_string())?;
    Ok(found.facts[&Fact::Tokens].low)
}

#[test]
fn windows_of_drafters_are_kept_by_the_versions_that_read_them() {
    let same = drafter(|config| drop(config.as_object_mut().unwrap().remove("layer_types")));
    let old = with_drafter("0.24.0", "dflash", drafter(|_| {})).unwrap();
    // 41 layers of 4096 bytes a token, in blocks of 16.
    assert_eq!(old, 262_144);
    let refused = with_drafter("0.25.0", "dflash", drafter(|_| {})).unwrap_err();
    assert!(refused.contains("mixed sliding/full attention"), "{refused}");
    let [mixed, plain] = [drafter(|_| {}), same].map(|draft| with_drafter("0.26.0", "dflash", draft).unwrap());
    assert!(mixed > plain, "{mixed} {plain}");
    // All layers of one whose config states windows beside have them.
    let windows = |config: &mut Value| {
        config.as_object_mut().unwrap().remove("layer_types");
        config["dflash_config"] = serde_json::json!({ "use_swa": true, "swa_window_size": 1024 });
    };
    assert!(with_drafter("0.27.0", "dspark", drafter(windows)).unwrap() > plain);
}

#[test]
fn states_are_kept_as_the_command_says() {
    let of = |flags: &str| {
        let command = format!("vllm serve m --enable-prefix-caching --max-model-len 262144 --max-num-seqs 8 {flags}");
        let model = "nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16";
        told(command.trim(), model, &with_bytes("0.27.0", 16)).facts[&Fact::Concurrency].low
    };
    // Its own way keeps one for every block, in four groups beside that of attention.
    assert!(of("--mamba-cache-mode align") > 4 * of(""));
}

#[rstest]
#[case("0.26.0", "{\"use_fp4_indexer_cache\":true,\"flash_attn_version\":3}", None)]
#[case("0.33.0", "{\"use_fp4_indexer_cache\":true}", Some("use_fp4_indexer_cache"))]
#[case("0.26.0", "{\"indexer_kv_dtype\":\"mxfp4\"}", Some("indexer_kv_dtype"))]
#[case("0.26.0", "{\"backend\":\"flashinfer\"}", None)]
fn the_attention_config_is_read_as_far_as_caches_depend_on_it(
    #[case] version: &str,
    #[case] config: &str,
    #[case] unread: Option<&str>,
) {
    let launch = launch(&format!("vllm serve m --attention-config {config}"));
    let found = answer(&launch, models("Qwen__Qwen3-8B"), &with_bytes(version, 16));
    match unread {
        None => assert_eq!(
            found.unwrap().notes.iter().any(|note| note.contains("FLASHINFER may read")),
            config.contains("backend")
        ),
        Some(key) => assert!(found.unwrap_err().to_string().contains(key)),
    }
}

/// The layers that draft are in the checkpoint of DeepSeek-V4 itself.
#[test]
fn dspark_without_a_model_drafts_by_layers_of_the_models_own() {
    let of = |drafts: &str| {
        let command = format!("vllm serve m --kv-cache-dtype fp8 --max-model-len 65536 {drafts}");
        let found = told(
            command.trim(),
            "deepseek-ai__DeepSeek-V4-Flash",
            &Options { devices: on("b300").devices, ..with_bytes("0.26.0", 85) },
        );
        found.facts[&Fact::Tokens].low
    };
    let drafts =
        |method: &str| of(&format!("--speculative-config {{\"method\":\"{method}\",\"num_speculative_tokens\":7}}"));
    assert!(of("") > drafts("mtp") && drafts("mtp") > drafts("dspark"));
    let launch = launch("vllm serve m --speculative-config {\"method\":\"dspark\",\"num_speculative_tokens\":7}");
    let error = answer(&launch, models("Qwen__Qwen3-8B"), &with_bytes("0.26.0", 16)).unwrap_err().to_string();
    assert!(error.contains("dspark"), "{error}");
}

#[rstest]
#[case("\"kv_cache_dtype\":\"fp8\",", true)]
#[case("\"kv_cache_dtype\":\"auto\",", false)]
fn drafts_in_another_dtype_are_refused(#[case] stated: &str, #[case] refused: bool) {
    let config = format!("{{{stated}\"method\":\"ngram\",\"num_speculative_tokens\":7}}");
    let launch = launch(&format!("vllm serve m --speculative-config {config}"));
    let found = answer(&launch, models("Qwen__Qwen3-8B"), &with_bytes("0.27.0", 16));
    assert_eq!(found.is_err_and(|error| error.to_string().contains("of drafts in `fp8`")), refused);
}

/// Its words are padded to 64 and divided exactly: 130048 of Falcon-H1, 100352 of phi-4.
#[rstest]
#[case("tiiuae__Falcon-H1-7B-Instruct", 6, "130048 is not divisible by 6")]
#[case("microsoft__phi-4", 10, "100352 is not divisible by 10")]
#[case("microsoft__phi-4", 2, "")]
fn vllm_divides_the_vocabulary_as_well(#[case] model: &str, #[case] tp: u64, #[case] said: &str) {
    let command = launch(&format!("vllm serve m -tp {tp} --nnodes 2"));
    let found = answer(&command, models(model), &on("8xh100"));
    assert!(found.as_ref().err().map_or(String::new(), ToString::to_string).contains(said), "{found:?}");
    assert_eq!(found.is_err(), !said.is_empty());
}

/// vLLM had two engines for a while, of which only the second is modelled.
#[rstest]
#[case("--num-scheduler-steps 4", None, Some(4))]
#[case("--num-scheduler-steps 1", None, None)]
#[case("--num-scheduler-steps 4", Some("1"), Some(3))]
#[case("--speculative-config {\"model\":\"d\",\"num_speculative_tokens\":3}", None, Some(4))]
#[case("--speculative-config {\"method\":\"ngram\",\"num_speculative_tokens\":3}", None, None)]
#[case("--max-num-seqs 8", Some("0"), Some(4))]
#[case("--max-num-seqs 8", Some("1"), None)]
fn vllms_v0_engine_is_not_answered(#[case] flags: &str, #[case] chosen: Option<&str>, #[case] code: Option<u8>) {
    let mut command = launch(&format!("vllm serve m {flags}"));
    command.env.extend(chosen.map(|chosen| ("VLLM_USE_V1".to_owned(), chosen.to_owned())));
    let options = Options { version: Some("0.8.5".into()), ..on("h100") };
    let found = answer(&command, models("Qwen__Qwen3-8B"), &options);
    assert_eq!(found.as_ref().err().map(ServeError::exit_code), code, "{found:?}");
}

#[rstest]
#[case("vllm serve m --no-enable-chunked-prefill", "0.33.0", "", "Chunked prefill is enabled")]
#[case("vllm serve m --enable-chunked-prefill", "0.33.0", "Chunked prefill is enabled", "")]
#[case(
    "sglang serve --model-path m --chunked-prefill-size -1",
    "0.5.23",
    "chunked_prefill_size=-1,",
    "chunked_prefill_size=1"
)]
#[case("sglang serve --model-path m --chunked-prefill-size 0", "0.5.23", "chunked_prefill_size=0,", "")]
fn prompts_that_are_not_cut_are_logged_as_such(
    #[case] command: &str,
    #[case] version: &str,
    #[case] has: &str,
    #[case] lacks: &str,
) {
    let options = Options { devices: on("h100").devices, ..with_bytes(version, 20) };
    let found = told(command, "Qwen__Qwen3-8B", &options);
    let lines = found.lines.join("\n");
    assert!(lines.contains(has) && (lacks.is_empty() || !lines.contains(lacks)), "{lines}");
    assert!(found.read.iter().all(|flag| flag.says != "its default"), "{:?}", found.read);
}

/// Asserted up to some version between 0.24.0 and 0.33.0: a step has room for the block that is aligned to states.
#[rstest]
#[case(
    "nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
    "--mamba-cache-mode align --max-num-batched-tokens 1024 --max-num-seqs 64"
)]
#[case("Qwen__Qwen3-Next-80B-A3B-Thinking", "-tp 4 --max-num-batched-tokens 256")]
fn a_step_has_room_for_the_block_of_states(#[case] model: &str, #[case] flags: &str) {
    let command = format!("vllm serve m --enable-prefix-caching --max-model-len 8192 {flags}");
    let of =
        |version: &str| told(&command, model, &Options { devices: on("8xh100").devices, ..with_bytes(version, 20) });
    let old = of("0.24.0");
    assert!(old.reason.as_ref().is_some_and(|reason| reason.contains("must be <= max_num_batched_tokens")), "{old:?}");
    let change = old.changes.iter().find(|change| change.change.starts_with("--max-num-batched-tokens"));
    assert!(change.is_some_and(|change| change.starts == Starts::Yes), "{:?}", old.changes);
    assert_eq!(of("0.33.0").starts, Starts::Yes);
}

/// Ray's ranks may be on other nodes, as its own message says.
#[rstest]
#[case("-tp 16", false)]
#[case("-tp 16 --distributed-executor-backend ray", true)]
#[case("-tp 16 --nnodes 2", true)]
fn ranks_of_other_nodes_are_taken(#[case] flags: &str, #[case] taken: bool) {
    let command = launch(&format!("vllm serve m --max-model-len 8192 {flags}"));
    let found = answer(&command, models("openai__gpt-oss-120b"), &on("8xh100"));
    assert_eq!(found.is_ok(), taken, "{found:?}");
}

/// What is offered on more GPUs than a node has says on how many nodes, and is taken as it stands.
#[rstest]
#[case("vllm serve m -tp 8", "deepseek-ai__DeepSeek-V3")]
#[case("sglang serve --model-path m --tp 8", "deepseek-ai__DeepSeek-V3")]
fn ranks_of_several_nodes_are_offered_with_their_nodes(#[case] command: &str, #[case] model: &str) {
    let found = told(command, model, &on("8xh100"));
    let change = found.changes.iter().find(|change| change.command.contains(&"--nnodes".to_owned()));
    let change = change.unwrap_or_else(|| panic!("{:?}", found.changes));
    let again = told(&change.command.join(" "), model, &on("8xh100"));
    assert_eq!((again.starts, again.sequences), (change.starts, change.sequences));
}

#[test]
fn caches_on_a_cpu_take_what_its_variable_says_in_blocks_of_128() {
    let command = |rest: &str| format!("VLLM_CPU_KVCACHE_SPACE={rest}");
    let options = Options { version: Some("0.29.0".into()), ..Options::default() };
    let found = told(&command("1 vllm serve m --max-model-len 2048"), "Qwen__Qwen3.5-2B", &options);
    let says = |fact: Fact| found.facts[&fact].low;
    // As a public start of the sister with the same caches logged: five blocks of 128 hold a state.
    assert_eq!([says(Fact::TokensPerBlock), says(Fact::Tokens), says(Fact::Concurrency)], [640, 27_852, 1360]);
    // It captures no graphs, so that fewer blocks than sequences are enough.
    assert!(found.starts != Starts::No, "{:?}", found.reason);
    // 2 GiB are 18,724 tokens.
    let tokens = |rest: &str| told(&command(rest), "Qwen__Qwen3-0.6B", &options).facts[&Fact::Tokens].low;
    let stated = tokens("2 vllm serve m --max-model-len 2048 --block-size 32");
    assert_eq!([tokens("2 vllm serve m --max-model-len 2048"), stated], [146 * 128, 585 * 32]);
}

/// Of those that a step has room for fewer may run at once.
#[test]
fn no_more_sequences_run_than_are_told_to() {
    let of = |flags: &str| told(&format!("vllm serve m --max-model-len 8192{flags}"), "Qwen__Qwen3-8B", &on("h100"));
    let (all, few) = (of(""), of(" --max-num-active-seqs 3"));
    assert_eq!(few.sequences, Some(Logged::exact(3)));
    assert!(few.capped_by.contains("--max-num-active-seqs 3"), "{}", few.capped_by);
    // What is measured at its start is as before.
    assert_eq!(few.facts[&Fact::CacheBytes], all.facts[&Fact::CacheBytes]);
}

/// Qwen3-8B has sequences of 40,960 tokens, what drafts here of 4096.
#[rstest]
#[case("0.33.0", "", "", Ok(4096))]
#[case("0.33.0", "", r#","max_model_len":2048"#, Ok(2048))]
#[case("0.33.0", " --max-model-len 1024", "", Ok(1024))]
#[case("0.33.0", "", r#","max_model_len":99999"#, Err("speculative_max_model_len=99999 cannot be larger"))]
#[case("0.24.0", "", "", Ok(40_960))]
fn a_sequence_is_no_longer_than_that_of_a_model_that_drafts(
    #[case] version: &str,
    #[case] flags: &str,
    #[case] more: &str,
    #[case] expected: Result<u64, &str>,
) {
    let draft = changed("Qwen__Qwen3-8B", |config| config["max_position_embeddings"] = 4096.into());
    let models = Models { draft: Some(draft.model), ..models("Qwen__Qwen3-8B") };
    let config = format!("{{\"model\":\"d\",\"num_speculative_tokens\":3{more}}}");
    let command = launch(&format!("vllm serve m{flags} --speculative-config {config}"));
    let found = answer(&command, models, &with_bytes(version, 60)).map(|found| found.facts[&Fact::MaxSeqLen]);
    match (found, expected) {
        (Ok(found), Ok(expected)) => assert_eq!(found, Logged::exact(expected)),
        (Err(error), Err(expected)) => assert!(error.to_string().contains(expected), "{error}"),
        (found, _) => panic!("{found:?}"),
    }
}

/// Decoding is captured as a whole with drafts too, by kernels that take steps of several tokens.
#[rstest]
#[case(NEXT, "", Starts::No)]
#[case(NEXT, r#" -sc {"method":"mtp","num_speculative_tokens":2}"#, Starts::No)]
#[case(NEXT, " --enforce-eager", Starts::Yes)]
#[case(NEXT, r#" --attention-backend FLASHINFER -sc {"method":"mtp","num_speculative_tokens":2}"#, Starts::Yes)]
#[case("../published/ling_2_6_1t", r#" -sc {"method":"ngram","num_speculative_tokens":2}"#, Starts::No)]
fn every_sequence_has_a_block_for_its_state(#[case] model: &str, #[case] flags: &str, #[case] starts: Starts) {
    let command = launch(&format!("vllm serve m -tp 8 --max-model-len 8192 --max-num-seqs 1024{flags}"));
    let found = answer(&command, models(model), &with_bytes("0.33.0", 2)).unwrap();
    assert_eq!(found.starts, starts, "{:?}", found.reason);
}

/// The tokens that a window keeps are those of all steps that overlap.
#[rstest]
#[case("", r#" -sc {"method":"suffix","num_speculative_tokens":4}"#)]
#[case("", r#" -sc {"method":"suffix"}"#)]
#[case("VLLM_USE_V2_MODEL_RUNNER=0 ", " -pp 2")]
fn steps_of_the_older_runner_do_not_overlap(#[case] variable: &str, #[case] flags: &str) {
    let tokens = |variable: &str, more: &str| {
        let limits = "--max-model-len 65536 --max-num-batched-tokens 2048";
        let command = format!("{variable}vllm serve m {limits}{flags}{more}");
        told(&command, "openai__gpt-oss-120b", &with_bytes("0.33.0", 20)).facts[&Fact::Tokens].low
    };
    assert_eq!(tokens(variable, ""), tokens(variable, " --no-async-scheduling"));
    if !variable.is_empty() {
        assert!(tokens(variable, "") > tokens("", ""));
    }
}

/// Before 0.30 only some models took the newer runner, whose steps overlap over stages too.
#[rstest]
#[case("0.28.0", "openai__gpt-oss-120b", "", false)]
#[case("0.28.0", "openai__gpt-oss-120b", "VLLM_USE_V2_MODEL_RUNNER=1 ", true)]
#[case("0.28.0", "google__gemma-2-9b", "", true)]
#[case("0.28.0", "google__gemma-2-9b", "VLLM_USE_V2_MODEL_RUNNER=0 ", false)]
#[case("0.30.0", "openai__gpt-oss-120b", "", true)]
fn steps_overlap_over_stages_by_the_newer_runner(
    #[case] version: &str,
    #[case] model: &str,
    #[case] variable: &str,
    #[case] overlaps: bool,
) {
    let tokens = |more: &str| {
        let command = format!("{variable}vllm serve m -pp 2 --max-model-len 8192 --max-num-batched-tokens 1024{more}");
        told(&command, model, &with_bytes(version, 20)).facts[&Fact::Tokens].low
    };
    assert_eq!(tokens("") < tokens(" --no-async-scheduling"), overlaps);
}

/// It is built on the last stage, as if the others had the layers before.
#[test]
fn a_model_that_drafts_by_itself_has_no_stages() {
    let models = Models { draft: Some(models("Qwen__Qwen3-0.6B").model), ..models("Qwen__Qwen3-8B") };
    let command = launch("vllm serve m -pp 2 --speculative-config {\"model\":\"d\",\"num_speculative_tokens\":3}");
    let error = answer(&command, models, &with_bytes("0.33.0", 20)).unwrap_err().to_string();
    assert!(error.contains("intermediate_tensors"), "{error}");
}

#[test]
fn a_variable_turns_the_grouping_of_chunked_layers_off() {
    let tokens = |variable: &str, flag: &str| {
        let command = format!("{variable}vllm serve m -tp 8 --max-model-len 100000{flag}");
        let options = Options { devices: on("8xh100").devices, ..with_bytes("0.33.0", 20) };
        told(&command, "meta-llama__Llama-4-Scout-17B-16E-Instruct", &options).facts[&Fact::Tokens].low
    };
    const OFF: &str = "VLLM_ALLOW_CHUNKED_LOCAL_ATTN_WITH_HYBRID_KV_CACHE=0 ";
    assert_eq!(tokens(OFF, ""), tokens("", " --disable-hybrid-kv-cache-manager"));
    assert_ne!(tokens(OFF, ""), tokens("", ""));
}

#[rstest]
#[case("VLLM_CPU_KVCACHE_SPACE=4 ", "0.33.0")]
#[case("VLLM_ATTENTION_BACKEND=NOPE ", "0.33.0")]
fn a_variable_that_nothing_reads_on_a_gpu_changes_nothing(#[case] variable: &str, #[case] version: &str) {
    let options = Options { version: Some(version.into()), ..on("h100") };
    let of = |variable: &str| told(&format!("{variable}vllm serve m"), "Qwen__Qwen3-8B", &options);
    let (found, expected) = (of(variable), of(""));
    assert_eq!((found.facts, found.notes), (expected.facts, expected.notes));
}

#[test]
fn blocks_that_are_kept_free_are_noted() {
    let found = told("vllm serve m --watermark 0.9", "Qwen__Qwen3-8B", &on("h100"));
    assert!(found.notes.iter().any(|note| note.starts_with("--watermark 0.9 keeps")), "{:?}", found.notes);
}

#[rstest]
#[case("0.12.0", "without the changes that were found to be merged later")]
#[case("0.32.0", "with the changes that were merged between")]
fn a_version_that_was_not_read_itself_says_by_which_it_is_answered(#[case] version: &str, #[case] expected: &str) {
    let options = Options { version: Some(version.into()), ..on("h100") };
    let notes = told("vllm serve m", "Qwen__Qwen3-8B", &options).notes;
    assert!(notes.iter().any(|note| note.contains("its rules are those of") && note.ends_with(expected)), "{notes:?}");
}

/// Loading them ends it, whatever share of the device it may take.
#[rstest]
#[case("vllm serve m")]
#[case("python -m sglang.launch_server --model-path m")]
fn weights_larger_than_the_device_are_why_it_does_not_start(#[case] command: &str) {
    let found = told(command, "nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", &on("l40s"));
    let reason = found.reason.unwrap();
    assert!(reason.contains("out of memory") && reason.contains("weights of 58.82 GiB"), "{reason}");
    assert!(reason.contains("which has 44.99 GiB"), "{reason}");
}

/// Until weights are quantised as they are loaded, the device has to hold them in full.
#[rstest]
#[case::in_full("0.14.0", Starts::No)]
#[case::quantised("0.15.0", Starts::Yes)]
fn weights_that_are_quantised_after_they_are_loaded_have_to_fit_in_full(
    #[case] version: &str,
    #[case] expected: Starts,
) {
    let options = Options { version: Some(version.into()), ..on("l40s") };
    let model = "nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16";
    let found = told("vllm serve m --quantization fp8 --max-model-len 4096", model, &options);
    assert_eq!(found.starts, expected, "{:?}", found.reason);
    if expected == Starts::No {
        assert!(found.reason.unwrap().contains("it loads weights of 58.82 GiB"));
        assert!(found.notes.iter().any(|note| note.contains("before 0.15.0 it loads weights in full")));
        let larger = Options { devices: Some("h100".parse().unwrap()), ..options };
        assert_ne!(told("vllm serve m --quantization fp8 --max-model-len 4096", model, &larger).starts, Starts::No);
    }
}

/// The same command of a newer version logs other numbers: why is said, where they are.
#[rstest]
#[case::before("0.19.0", "", [false, false])]
#[case::tokens("0.24.0", "", [false, true])]
#[case::prefixes("0.33.0", "", [true, true])]
#[case::stated("0.33.0", " --no-enable-prefix-caching", [false, true])]
fn what_a_newer_version_does_otherwise_is_said(#[case] version: &str, #[case] flag: &str, #[case] expected: [bool; 2]) {
    let options = Options { version: Some(version.into()), ..on("2xh100") };
    let said = |model: &str| {
        let notes = told(&format!("vllm serve m --tensor-parallel-size 2{flag}"), model, &options).notes;
        ["it keeps prefixes where nobody says", "concurrency is what compares"]
            .map(|said| notes.iter().any(|note| note.contains(said)))
    };
    assert_eq!(said("nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16"), expected);
    assert_eq!(said("Qwen__Qwen3-8B"), [false; 2]);
}

/// A state for every block is what fills the pool: keeping the last alone costs nothing.
#[test]
fn states_that_prefix_caching_keeps_for_every_block_are_said_and_the_free_change_is_offered() {
    let command =
        "vllm serve m --tensor-parallel-size 2 --max-model-len 131072 --max-num-seqs 64 --enable-prefix-caching";
    let options = Options { version: Some("0.19.0".into()), expected_sequences: Some(64), ..on("2xh100") };
    let found = told(command, "nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", &options);
    assert!(found.sequences.is_some_and(|held| held.high < 64), "{:?}", found.sequences);
    assert!(found.notes.iter().any(|note| note.contains("a state for every block")), "{:?}", found.notes);
    let changes: Vec<&str> = found.changes.iter().map(|change| change.change.as_str()).collect();
    assert!(changes.iter().any(|change| change.starts_with("--mamba-cache-mode align")), "{changes:?}");
    assert!(changes.contains(&"without --enable-prefix-caching"), "{changes:?}");
    assert!(found.changes.iter().all(|change| change.sequences.is_some_and(|held| held.low >= 64)));
}

/// Whoever has made sequences longer is shown it: the most tokens of which it still holds so many.
#[rstest]
#[case("vllm serve m --tensor-parallel-size 2 --max-model-len 262144 --max-num-seqs 64", "--max-model-len")]
#[case("sglang serve --model-path m --tp-size 2 --context-length 262144 --max-running-requests 64", "--context-length")]
fn the_length_that_holds_what_is_expected_is_among_the_changes(#[case] command: &str, #[case] flag: &str) {
    let options = |expected| Options { expected_sequences: Some(expected), ..on("2xh100") };
    let model = "nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16";
    let found = told(command, model, &options(64));
    let shorter: Vec<_> = found.changes.iter().filter(|change| change.change.starts_with(flag)).collect();
    let [change] = &shorter[..] else { panic!("{:?}", found.changes) };
    assert!(change.sequences.is_some_and(|held| held.low >= 64), "{change:?}");
    let length: u64 = change.change.split([' ', ',']).nth(1).unwrap().parse().unwrap();
    let longer = launch(&format!("{command} {flag} {}", length + 256));
    assert!(answer(&longer, models(model), &options(64)).unwrap().sequences.is_some_and(|held| held.low < 64));
}

/// Each row that differs says why: another share of the device, bytes that others took, or nothing that is known.
#[test]
fn what_drifts_from_a_command_says_why() {
    let (command, options) = (launch("vllm serve m --max-model-len 8192"), on("h100"));
    let model = || models("Qwen__Qwen3-8B");
    let check = |text: &str| {
        let log = EngineLog::read(text.as_bytes(), None).unwrap();
        CommandCheck::of(&command, &model(), &options, &log).unwrap()
    };
    let log_of = |words: &str, share: &str| {
        let options = Options { version: Some("0.19.0".into()), ..on("h100") };
        let bytes = told(words, "Qwen__Qwen3-8B", &options).facts[&Fact::CacheBytes].middle();
        let options = Options { cache_bytes: Some(Logged::exact(bytes)), ..options };
        let lines = told(words, "Qwen__Qwen3-8B", &options).lines;
        let told = format!("LLM engine (v0.19.0)\nnon-default args: {{'gpu_memory_utilization': {share}}}\n");
        told + &lines.join("\n")
    };
    let reasons = |check: &CommandCheck| {
        let drifting = check.rows.iter().filter(|row| row.drift != Drift::None);
        drifting.map(|row| (row.name, row.reason.clone())).collect::<Vec<_>>()
    };
    let plain = log_of("vllm serve m --max-model-len 8192", "0.9");
    assert_eq!(check(&plain).drifting(), [""; 0], "{plain}");
    let less = check(&log_of("vllm serve m --max-model-len 8192 --gpu-memory-utilization 0.8", "0.8"));
    let said = reasons(&less);
    assert_eq!(less.drifting(), ["memory_share"]);
    assert_eq!(said[0], (Fact::MemoryShare, "it was started with another --gpu-memory-utilization".to_owned()));
    assert_eq!(said[1], (Fact::CacheBytes, "it follows from --gpu-memory-utilization".to_owned()));
    assert!(said.contains(&(Fact::Tokens, "it follows from cache_bytes".to_owned())), "{said:?}");
    // The same share, and less of it.
    let others = check(&log_of("vllm serve m --max-model-len 8192 --gpu-memory-utilization 0.8", "0.9"));
    let said = reasons(&others);
    assert_eq!(others.drifting(), ["cache_bytes"]);
    assert!(said[0].1.contains("less: others were on its device"), "{said:?}");
    assert!(others.table().contains(&said[0].1), "{}", others.table());
    // Another length, and then what follows from it, or another dtype beside it.
    let longer = check(&log_of("vllm serve m --max-model-len 16384", "0.9"));
    let said = reasons(&longer);
    assert_eq!(longer.drifting(), ["max_seq_len"], "{said:?}");
    assert_eq!(said[0], (Fact::MaxSeqLen, "it was started with another --max-model-len".to_owned()));
    assert!(said.contains(&(Fact::Concurrency, "it follows from --max-model-len".to_owned())), "{said:?}");
    assert_eq!(longer.answer.limits.max_seq_len, 16384);
    let both = check(&log_of("vllm serve m --max-model-len 16384 --kv-cache-dtype fp8", "0.9"));
    let why = both.would_be.as_deref().unwrap();
    assert!(why.contains("another --max-model-len") && why.contains("--kv-cache-dtype fp8"), "{why}");
}

/// A log of another version than the command's image, which is the first thing to look for.
#[test]
fn a_log_of_another_version_than_the_commands_drifts() {
    let mut command = launch("vllm serve m --max-model-len 8192");
    let lines = |version: &str| {
        let options = Options { version: Some(version.into()), ..on("h100") };
        let bytes = told("vllm serve m --max-model-len 8192", "Qwen__Qwen3-8B", &options).facts[&Fact::CacheBytes];
        let options = Options { cache_bytes: Some(Logged::exact(bytes.middle())), ..options };
        let lines = told("vllm serve m --max-model-len 8192", "Qwen__Qwen3-8B", &options).lines;
        let text = format!("LLM engine (v{version})\n{}", lines.join("\n"));
        EngineLog::read(text.as_bytes(), None).unwrap()
    };
    let (old, new) = (lines("0.19.0"), lines("0.33.0"));
    let drifting = |command: &Launch, log: &EngineLog| {
        let check = CommandCheck::of(command, &models("Qwen__Qwen3-8B"), &on("h100"), log).unwrap();
        let stated = check.table().lines().any(|line| line.starts_with("version ") && line.ends_with("DRIFT"));
        assert_eq!(stated, check.stated_version.is_some(), "{}", check.table());
        check.drifting()
    };
    assert_eq!(drifting(&command, &new), [""; 0]);
    command.version = Some("0.19.0".into());
    assert_eq!(drifting(&command, &old), [""; 0]);
    assert_eq!(drifting(&command, &new), ["version"]);
}

/// Graphs are estimated where `cudagraph_mode` is not NONE, whoever says that.
#[rstest]
#[case("-O0", true)]
#[case("--optimization-level 0", true)]
#[case("-cc.cudagraph_mode=NONE", true)]
#[case("--compilation-config {\"cudagraph_mode\":\"none\"}", true)]
#[case("-O0 -cc.cudagraph_mode=FULL", false)]
#[case("-O1", false)]
#[case("-cc.cudagraph_mode=PIECEWISE", false)]
#[case("-O0 -cc.cudagraph_mm_encoder=true", false)]
fn graphs_that_are_not_captured_take_nothing(#[case] flags: &str, #[case] are_none: bool) {
    let bytes = |flags: &str| {
        let command = format!("vllm serve m --max-model-len 2048{flags}");
        told(&command, "meta-llama__Llama-3.1-8B-Instruct", &on("17GiB")).facts[&Fact::CacheBytes]
    };
    let [eager, usual] = [" --enforce-eager", ""].map(bytes);
    assert_ne!(eager, usual);
    assert_eq!(bytes(&format!(" {flags}")), if are_none { eager } else { usual });
}

/// What a command's own bytes may give, those that were logged must: 55 GiB are 450,560 tokens.
#[rstest]
#[case("450,560", "55.00", &[])]
#[case("440,000", "53.71", &["tokens", "concurrency"])]
fn numbers_of_a_log_follow_from_its_own_bytes(#[case] tokens: &str, #[case] times: &str, #[case] drifting: &[&str]) {
    let log = format!(
        "INFO 11-28 12:00:01 [api_server.py:1900] vLLM API server version 0.28.0\n\
         INFO 11-28 12:00:40 [gpu_worker.py:298] Available KV cache memory: 55.00 GiB\n\
         INFO 11-28 12:00:41 [kv_cache_utils.py:1087] GPU KV cache size: {tokens} tokens\n\
         INFO 11-28 12:00:41 [kv_cache_utils.py:1091] Maximum concurrency for 8,192 tokens per request: {times}x\n"
    );
    let log = EngineLog::read(log.as_bytes(), None).unwrap();
    let command = launch("vllm serve m --max-model-len 8192");
    let models = models("meta-llama__Llama-3.1-8B-Instruct");
    let mut found = CommandCheck::of(&command, &models, &on("h100"), &log).unwrap().drifting();
    found.sort_by_key(|name| std::cmp::Reverse(*name));
    assert_eq!(found, drifting);
}
