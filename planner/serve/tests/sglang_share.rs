//! The share of a device that SGLang chooses where nobody states it, beside what its own formulas give (`handle_gpu_memory_settings`,
//! `reserve_for_graph_mb` and `adjust_mem_fraction_for_vlm` of 0.5.23).

mod common;

use cacheplan_planner::logs::{Fact, Logged};
use cacheplan_serve::{Options, Starts, answer, request};
use rstest::rstest;

use common::{launch, models, on};

const DENSE: &str = "meta-llama__Llama-3.1-8B-Instruct";
const LATENTS: &str = "deepseek-ai__DeepSeek-V2-Lite";
const LOOKS: &str = "Qwen__Qwen3.5-27B";
const LOOKS_WHOLE: &str = "google__gemma-4-26B-A4B";

fn tokens(model: &str, device: &str, flags: &str) -> Logged {
    let options = Options { version: Some("0.5.23".into()), ..on(device) };
    let command = format!("sglang serve --model-path m --context-length 4096 {flags}");
    answer(&launch(command.trim_end()), models(model), &options).unwrap().facts[&Fact::Tokens]
}

#[rstest]
#[case::graphs_of_prompts(DENSE, "h100", "--stream-interval 1", "0.83")]
#[case::small_device("Qwen__Qwen3-8B", "rtx-4090", "--stream-interval 1", "0.704")]
#[case::fewer_requests(DENSE, "h100", "--max-running-requests 4", "0.836")]
#[case::more_requests_than_graphs(DENSE, "h100", "--max-running-requests 900", "0.83")]
#[case::largest_stands_above_requests(DENSE, "h100", "--max-running-requests 4 --cuda-graph-max-bs-decode 256", "0.83")]
#[case::no_graphs(DENSE, "h100", "--disable-cuda-graph", "0.841")]
#[case::no_graphs_of_a_step(DENSE, "h100", "--disable-decode-cuda-graph", "0.836")]
#[case::no_graphs_of_prompts(DENSE, "h100", "--disable-prefill-cuda-graph", "0.835")]
#[case::no_backend(DENSE, "h100", "--cuda-graph-backend-prefill disabled", "0.835")]
#[case::backend_stands_above_the_switch(
    DENSE,
    "h100",
    "--disable-prefill-cuda-graph --cuda-graph-backend-prefill breakable",
    "0.83"
)]
#[case::sizes(DENSE, "h100", "--cuda-graph-bs-decode 1 2 4", "0.836")]
#[case::object(DENSE, "h100", r#"--cuda-graph-config {"decode":{"max_bs":4}}"#, "0.836")]
#[case::object_of_prompts(DENSE, "h100", r#"--cuda-graph-config {"prefill":{"backend":"disabled"}}"#, "0.835")]
#[case::fewer_sizes_of_prompts(DENSE, "h100", "--cuda-graph-max-bs-prefill 512", "0.832")]
#[case::sizes_of_prompts(DENSE, "h100", "--cuda-graph-bs-prefill 512 1024", "0.835")]
#[case::smaller_step(DENSE, "h100", "--chunked-prefill-size 2048", "0.874")]
#[case::decodes(DENSE, "h100", "--disaggregation-mode decode", "0.874")]
#[case::prefills(DENSE, "h100", "--disaggregation-mode prefill", "0.836")]
#[case::stages_capture_no_prompts(DENSE, "2xh100", "--pp-size 2", "0.834")]
#[case::latents(LATENTS, "h100", "--stream-interval 1", "0.816")]
#[case::encoder(LOOKS, "h100", "--stream-interval 1", "0.767555")]
#[case::without_its_encoder(LOOKS, "h100", "--language-only", "0.83")]
#[case::encoder_whose_prompts_are_not_captured(LOOKS_WHOLE, "h100", "--stream-interval 1", "0.75963")]
fn the_share_is_what_the_formulas_give(
    #[case] model: &str,
    #[case] device: &str,
    #[case] flags: &str,
    #[case] share: &str,
) {
    assert_eq!(tokens(model, device, flags), tokens(model, device, &format!("{flags} --mem-fraction-static {share}")));
}

/// What encoders give and are given is kept of the share, whoever states that.
#[rstest]
#[case::usual(LOOKS, "h100", "", 100)]
#[case::no_encoder(DENSE, "h100", "", 0)]
#[case::only_text("google__gemma-3-1b-it", "h100", "", 0)]
#[case::given_on_the_gpu(LOOKS, "h100", " --mm-feature-transport cuda_ipc", 1124)]
#[case::told(LOOKS, "h100", "SGLANG_VLM_CACHE_SIZE_MB=0", 0)]
#[case::both_told(
    LOOKS,
    "h100",
    "SGLANG_USE_CUDA_IPC_TRANSPORT=1 SGLANG_MM_FEATURE_CACHE_MB=2000 SGLANG_VLM_CACHE_SIZE_MB=50",
    2050
)]
fn what_encoders_give_is_kept_of_the_share(
    #[case] model: &str,
    #[case] device: &str,
    #[case] told: &str,
    #[case] mib: u64,
) {
    let (variables, flags) = if told.starts_with(' ') { ("", told) } else { (told, "") };
    let command =
        format!("{variables} sglang serve --model-path m --context-length 4096 --mem-fraction-static 0.8{flags}");
    let fraction = |version: &str| {
        let options = Options { version: Some(version.into()), ..on(device) };
        let (_, asked) = request(&launch(command.trim_start()), &models(model), &options).unwrap();
        f64::from(asked.config().budget.memory.as_ref().unwrap().fraction.unwrap())
    };
    let kept = |version: &str| ((0.8 - fraction(version)) * 81_559.0).round() as u64;
    assert_eq!(kept("0.5.23"), mib);
    if variables.is_empty() && flags.is_empty() {
        assert_eq!((kept("0.5.18"), kept("0.5.17")), (mib, 0));
    }
}

/// The share is chosen of the whole step, of which each replica takes its part behind that.
#[test]
fn replicas_of_the_attention_reserve_a_whole_step() {
    let flags = "--tp-size 8 --dp-size 8 --enable-dp-attention";
    assert_eq!(
        tokens(DENSE, "8xh100", flags),
        tokens(DENSE, "8xh100", &format!("{flags} --mem-fraction-static 0.586"))
    );
}

#[test]
fn a_share_is_not_chosen_where_it_is_stated() {
    let stated = |flags: &str| tokens(DENSE, "h100", &format!("--mem-fraction-static 0.8 {flags}"));
    assert_eq!(stated("--max-running-requests 4"), stated("--max-running-requests 4 --disable-prefill-cuda-graph"));
}

/// A share is the same whoever states it, and what is no more than the engine's own leaves as much room as that.
#[rstest]
fn a_share_that_is_stated_starts_as_the_engines_own(
    #[values("l40s", "h100", "rtx-4090", "b200")] device: &str,
    #[values("", " --chunked-prefill-size 2048", " --cuda-graph-max-bs-decode 8", " --disable-cuda-graph")] flags: &str,
) {
    let options = Options { version: Some("0.5.23".into()), ..on(device) };
    let command = |share: Option<f64>| {
        let share = share.map_or(String::new(), |share| format!(" --mem-fraction-static {share:.6}"));
        launch(&format!("sglang serve --model-path m --context-length 512{flags}{share}"))
    };
    let models = || models("Qwen__Qwen3-8B");
    let of = |share| answer(&command(share), models(), &options).unwrap();
    let (_, asked) = request(&command(None), &models(), &options).unwrap();
    let share = f64::from(asked.config().budget.memory.as_ref().unwrap().fraction.unwrap());
    let (own, stated) = (of(None), of(Some(share)));
    assert_eq!((stated.starts, &stated.facts), (own.starts, &own.facts), "{share}: {}", stated.text());
    assert_eq!(of(Some(share - 0.02)).starts, own.starts);
    assert_ne!(of(Some(0.999)).starts, Starts::Yes);
}
