//! What vLLM makes of flags that change its caches, held to its rules.

mod common;

use cacheplan_planner::logs::{Fact, Logged};
use cacheplan_serve::{Answer, Models, Options, Starts, answer};
use rstest::rstest;
use serde_json::Value;

use common::{changed, launch, models, on};

fn told(command: &str, model: &str, options: &Options) -> Answer {
    answer(&launch(command), models(model), options).unwrap()
}

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

#[test]
fn caches_on_a_cpu_take_what_its_variable_says_in_blocks_of_128() {
    let command = |rest: &str| format!("VLLM_CPU_KVCACHE_SPACE=1 vllm serve m --max-model-len 2048 {rest}");
    let options = Options { version: Some("0.29.0".into()), ..Options::default() };
    let found = told(&command(""), "Qwen__Qwen3.5-2B", &options);
    let says = |fact: Fact| found.facts[&fact].low;
    // As a public start of the sister with the same caches logged: five blocks of 128 hold a state.
    assert_eq!([says(Fact::TokensPerBlock), says(Fact::Tokens), says(Fact::Concurrency)], [640, 27_852, 1360]);
    // It captures no graphs, so that fewer blocks than sequences are enough.
    assert!(found.starts != Starts::No, "{:?}", found.reason);
    let plain = told(&command("--block-size 32"), "Qwen__Qwen3-0.6B", &options);
    assert_eq!(plain.facts[&Fact::TokensPerBlock].low, 32);
}
