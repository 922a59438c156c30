//! Prefill and decode apart: bytes counted by hand and by the plan of one device, and rates by their definitions.

use cacheplan_handlers::{Growth, KvLayout};
use cacheplan_planner::budget::{Lengths, Workload};
use cacheplan_planner::disaggregation::{Ceiling, DisaggregationAnswer, DisaggregationError, Handed};
use cacheplan_planner::{Devices, Disaggregation, PlanRequest};
use cacheplan_transforms::{Model, ReadOptions};
use proptest::prelude::*;
use rstest::rstest;

use super::common::{budget, published};

const LLAMA: &str = "meta-llama__Meta-Llama-3.1-8B";
const GEMMA: &str = "google__gemma-2-2b";
const DEEPSEEK: &str = "deepseek-ai__DeepSeek-V2-Lite";
const NEMOTRON: &str = "nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16";
const GPT_OSS: &str = "openai__gpt-oss-120b";
/// 400 Gb/s.
const LINK: f64 = 50e9;

/// Devices of which 0.9 is divided; without a limit of its own, as many sequences as fit.
fn place(model: &Model, devices: &str, text: &str) -> PlanRequest {
    let memory = if text.contains("max_batch_size") { "" } else { "[memory]\nfraction = 0.9\nof = 'total'\n" };
    let devices: Devices = devices.parse().unwrap();
    PlanRequest::of(model.clone()).with_budget(budget(&format!("{text}\n{memory}"))).with_devices(devices)
}

fn question(model: &Model, sides: [(&str, &str); 2], prompt: u64) -> Disaggregation {
    let [prefill, decode] = sides.map(|(devices, text)| place(model, devices, text));
    Disaggregation { prefill, decode, prompt, output: 513, link: LINK }
}

fn answer(name: &str, sides: [(&str, &str); 2], prompt: u64) -> DisaggregationAnswer {
    question(&published(name), sides, prompt).answer().unwrap()
}

const ALIKE: [(&str, &str); 2] = [("h100", ""); 2];

#[rstest]
// 32 layers of 8 heads of 128 channels, keys and values of 16 bits; 500 blocks of 16 tokens, and one more token.
#[case(LLAMA, 8000, &[("keys and values", 32, Some(8000), 131_072 * 8000, 131_072 * 8000)])]
#[case(LLAMA, 8001, &[("keys and values", 32, Some(8001), 131_072 * 8001, 131_072 * 501 * 16)])]
// 13 layers of 4 heads of 256 channels with a window; the next token sees 4,095 others, from 1,905 on: 375 - 119 blocks.
#[case(GEMMA, 6000, &[
    ("windows of 4096 tokens", 13, Some(4095), 13 * 4096 * 4095, 13 * 4096 * 256 * 16),
    ("keys and values", 13, Some(6000), 13 * 4096 * 6000, 13 * 4096 * 6000),
])]
// A prompt that no window has passed.
#[case(GEMMA, 1600, &[
    ("windows of 4096 tokens", 13, Some(1600), 13 * 4096 * 1600, 13 * 4096 * 1600),
    ("keys and values", 13, Some(1600), 13 * 4096 * 1600, 13 * 4096 * 1600),
])]
// 27 latents of 512 channels with 64 of their key.
#[case(DEEPSEEK, 4096, &[("latents", 27, Some(4096), 27 * 1152 * 4096, 27 * 1152 * 4096)])]
// 6 layers of 2 heads of 128 channels; 23 states of 64 x 64 x 128 floats, and 3 columns of 6,144 channels of 16 bits.
#[case(NEMOTRON, 4096, &[
    ("states", 23, None, 23 * 64 * 64 * 128 * 4, 23 * 64 * 64 * 128 * 4),
    ("convolutions", 23, None, 23 * 6144 * 3 * 2, 23 * 6144 * 3 * 2),
    ("keys and values", 6, Some(4096), 6 * 1024 * 4096, 6 * 1024 * 4096),
])]
fn each_kind_has_the_bytes_of_its_shape(
    #[case] name: &str,
    #[case] prompt: u64,
    #[case] expected: &[(&str, u64, Option<u64>, u64, u64)],
) {
    let found =
        answer(name, [("h200", "max_batch_size = 8\nmax_seq_len = 16384\n[dtypes]\nkv = 'bf16'"); 2], prompt).handover;
    let expected = expected.iter().map(|(kind, caches, tokens, bytes, received)| Handed {
        kind: (*kind).to_owned(),
        caches: *caches,
        tokens: *tokens,
        bytes: *bytes,
        received: *received,
    });
    let mut expected: Vec<Handed> = expected.collect();
    let mut parts = found.parts.clone();
    parts.sort_by(|a, b| a.kind.cmp(&b.kind));
    expected.sort_by(|a, b| a.kind.cmp(&b.kind));
    assert_eq!(parts, expected);
    assert_eq!(found.bytes, expected.iter().map(|part| part.bytes).sum::<u64>());
    assert_eq!((found.sent_by_device, found.received_by_device), (found.received, found.received));
}

/// Of what a decode replica receives: what the busiest device of prefill sends, and one of decode receives.
#[rstest]
#[case::alike(LLAMA, 4, 4, 1, 4, 4)]
#[case::gathered(LLAMA, 4, 2, 1, 4, 2)]
#[case::shared(LLAMA, 2, 4, 1, 2, 4)]
// 16 ranks hold each of 8 heads twice: 4 ranks of 2 heads take each of them from one.
#[case::copies_idle(LLAMA, 16, 4, 1, 8, 4)]
// 16 ranks keep a copy of each head.
#[case::copies_kept(LLAMA, 4, 16, 2, 4, 16)]
#[case::latents(DEEPSEEK, 4, 1, 1, 1, 1)]
#[case::latents_kept(DEEPSEEK, 1, 4, 4, 1, 4)]
fn ranks_share_what_they_hand_over(
    #[case] name: &str,
    #[case] from: u64,
    #[case] to: u64,
    #[case] copies: u64,
    #[case] senders: u64,
    #[case] receivers: u64,
) {
    let sides = [from, to].map(|tp| format!("{tp}xh100"));
    let found = answer(name, [(&sides[0], ""), (&sides[1], "")], 4096).handover;
    assert_eq!(found.received, copies * found.bytes);
    assert_eq!(found.sent_by_device, found.received / senders);
    assert_eq!(found.received_by_device, found.received / receivers);
}

#[test]
fn stages_send_their_own_layers_to_whoever_has_them() {
    let found = answer(LLAMA, [("2xh100", "[parallel]\npp = 2"), ("h100", "")], 4096).handover;
    assert_eq!((found.sent_by_device, found.received_by_device), (found.bytes / 2, found.bytes));
}

#[test]
fn tokens_that_ranks_divide_arrive_divided() {
    let found = answer(DEEPSEEK, [("2xh100", ""), ("2xh100", "[parallel]\ntp = 2\ndcp = 2")], 4096).handover;
    assert_eq!((found.received, found.received_by_device), (found.bytes, found.bytes / 2));
}

fn ceiling<'a>(answer: &'a DisaggregationAnswer, name: &str) -> &'a Ceiling {
    answer.ceilings.iter().find(|ceiling| ceiling.name == name).unwrap()
}

fn near(found: f64, expected: f64) {
    assert!((found / expected - 1.0).abs() < 1e-9, "{found} and not {expected}");
}

#[test]
fn every_part_admits_what_its_definition_says_and_the_lowest_caps() {
    let sides = [("4xh100", "[parallel]\ntp = 2\ndp = 2"), ("2xh100", "[parallel]\ntp = 1\ndp = 2")];
    let found = answer(LLAMA, sides, 8192);
    let whole = 131_072.0 * 8192.0;
    // A prefill device sends half of a request, a decode device receives all of it.
    near(ceiling(&found, "link out of prefill").per_second, 2.0 * LINK / (whole / 2.0));
    near(ceiling(&found, "link into decode").per_second, 2.0 * LINK / whole);
    near(found.handover_seconds, whole / LINK);

    let model = published(LLAMA);
    let prefill = place(&model, "4xh100", "max_seq_len = 8192\n[parallel]\ntp = 2\ndp = 2");
    let plan = prefill.plan().unwrap();
    let seconds = prefill.prefill(&plan).unwrap().seconds(0, 8192);
    near(ceiling(&found, "computing prompts").per_second, 2.0 / seconds);
    let held = found.prefill.sequences as f64;
    near(ceiling(&found, "room for prompts").per_second, 2.0 * held / (seconds + found.handover_seconds));

    // No step is faster than that of prompts alone, nor slower than that of whole sequences.
    let writing = ceiling(&found, "writing tokens").per_second;
    let decode = place(&model, "h100", "max_seq_len = 8705");
    let held = found.decode.sequences as f64;
    let step = |length: u64| {
        let request = decode.changed(|budget| {
            let prompt = Lengths::Fixed(length);
            budget.workload = Some(Workload { prompt, ..Workload::default() });
            budget.max_batch_size = Some(found.decode.sequences);
        });
        let ranks = request.ranks().unwrap();
        let bound = request.bound_of(&ranks.stages, Some(found.decode.sequences)).unwrap();
        assert_eq!(bound.all.sequences, found.decode.sequences);
        bound.all.seconds
    };
    assert!(writing <= 2.0 * held / (512.0 * step(8192)), "{writing}");
    assert!(writing >= 2.0 * held / (found.handover_seconds + 512.0 * step(8705)), "{writing}");

    let lowest = found.ceilings.iter().map(|ceiling| ceiling.per_second).fold(f64::INFINITY, f64::min);
    near(ceiling(&found, found.capped_by.unwrap()).per_second, lowest);
    let balance = found.balance.as_ref().unwrap();
    near(balance.prefill_per_decode, (balance.of_decode_replica / 1.0) / (balance.of_prefill_replica / 2.0));
}

#[test]
fn a_link_that_is_slow_enough_caps_and_a_fast_one_does_not() {
    let model = published(LLAMA);
    let of_link = |link: f64| Disaggregation { link, ..question(&model, ALIKE, 8192) }.answer().unwrap();
    assert!(of_link(1e8).capped_by.unwrap().starts_with("link"));
    assert!(!of_link(1e13).capped_by.unwrap().starts_with("link"));
}

#[test]
fn without_rates_of_the_devices_only_the_link_is_bounded() {
    let found = answer(LLAMA, [("80GiB", ""), ("80GiB", "")], 4096);
    let names: Vec<&str> = found.ceilings.iter().map(|ceiling| ceiling.name).collect();
    assert_eq!((names, found.balance), (vec!["link out of prefill", "link into decode"], None));
}

const SIX_HEADS: &str = r#"{"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 768, "num_attention_heads": 6,
    "num_key_value_heads": 6, "intermediate_size": 1536, "vocab_size": 256, "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16"}"#;

#[rstest]
#[case(ALIKE, 0, 513, LINK, "of a prompt of 0 tokens")]
#[case(ALIKE, 1000, 1, LINK, "nothing is handed over")]
#[case(ALIKE, 1000, 513, 0.0, "a link of 0 bytes a second carries nothing")]
#[case(ALIKE, 1000, 513, -1.0, "carries nothing")]
#[case(ALIKE, 1000, 513, f64::NAN, "carries nothing")]
#[case(ALIKE, 8000, 513, LINK, "decode: a request has 8513 tokens there, and `max_position_embeddings` is 8192")]
#[case([("h100", "max_seq_len = 512"), ("h100", "")], 1000, 513, LINK, "prefill: a request has 1000 tokens there, and `max_seq_len` is 512")]
#[case(ALIKE, u64::MAX, 513, LINK, "prefill: a request has 18446744073709551615 tokens")]
#[case([("2xh100", ""), ("3xh100", "")], 1000, 513, LINK, "prefill has tp 2 and decode tp 3, of which none divides the other")]
#[case([("h100", "[dtypes]\nkv = 'f8_e4m3'"), ("h100", "")], 1000, 513, LINK, "is f8_e4m3 where prompts are computed and bf16 where tokens are written")]
#[case([("h100", ""), ("h100", "[speculation]\ndraft_tokens = 1\nmtp_layers = 1")], 1000, 513, LINK, "`draft.mtp_0` is kept by decode alone")]
#[case([("h100", "[speculation]\ndraft_tokens = 1\nmtp_layers = 1"), ("h100", "")], 1000, 513, LINK, "`draft.mtp_0` is kept by prefill alone")]
#[case([("1GiB", ""), ("1MiB", "")], 1000, 513, LINK, "decode: does not fit")]
fn what_cannot_be_answered_is_refused_by_name(
    #[case] sides: [(&str, &str); 2],
    #[case] prompt: u64,
    #[case] output: u64,
    #[case] link: f64,
    #[case] said: &str,
) {
    let model = Model::read_config("config.json", SIX_HEADS, &ReadOptions::default()).unwrap();
    let question = Disaggregation { output, link, ..question(&model, sides, prompt) };
    let error = question.answer().unwrap_err().to_string();
    assert!(error.contains(said), "{error}");
}

#[test]
fn orders_of_heads_and_tokens_that_differ_are_said() {
    let found = answer(LLAMA, [("h100", ""), ("h100", "layout = 'NHD'")], 4096);
    assert_eq!(found.handover.turned, Some([KvLayout::Hnd, KvLayout::Nhd]));
    assert!(found.table().contains("blocks are HND on one side and NHD on the other"), "{}", found.table());
}

/// Which engines refuse by what was read.
#[rstest]
#[case(LLAMA, ["2xh100", "4xh100"], "", [&[][..], &[], &[], &[]])]
#[case(NEMOTRON, ["2xh100", "2xh100"], "[parallel]\npp = 2", [&["takes no pipeline stages with states"][..], &[], &[], &["takes no pipeline"]])]
#[case("LiquidAI__LFM2-1.2B", ["h100", "h100"], "max_batch_size = 8", [&["not short convolutions"][..], &[], &[], &["not short conv"]])]
#[case("MiniMaxAI__MiniMax-Text-01", ["16xh200", "16xh200"], "[parallel]\ntp = 8\npp = 2", [&["not lightning attention", "pipeline"][..], &[], &[], &["lightning", "pipeline"]])]
fn engines_that_refuse_do_so_by_name(
    #[case] name: &str,
    #[case] devices: [&str; 2],
    #[case] text: &str,
    #[case] expected: [&[&str]; 4],
) {
    let found = answer(name, devices.map(|devices| (devices, text)), 2048);
    let engines: Vec<&str> = found.engines.iter().map(|flags| flags.engine).collect();
    assert_eq!(engines, ["vLLM", "SGLang", "TensorRT-LLM", "Dynamo"]);
    for (flags, expected) in found.engines.iter().zip(expected) {
        let said = flags.refuses.iter().zip(expected).filter(|(said, expected)| said.contains(**expected));
        assert!(said.count() == expected.len() && flags.refuses.len() == expected.len(), "{flags:?}");
    }
}

#[test]
fn an_engine_is_told_alone_and_says_what_runs() {
    let spec: cacheplan_planner::EngineSpec = "vllm".parse().unwrap();
    let asked = question(&published(LLAMA), ALIKE, 8192);
    let [prefill, decode] = [asked.prefill, asked.decode].map(|request| request.for_engine(spec));
    let found = Disaggregation { prefill, decode, prompt: 8192, output: 513, link: LINK }.answer().unwrap();
    let engines: Vec<&str> = found.engines.iter().map(|flags| flags.engine).collect();
    assert_eq!(engines, ["vLLM", "Dynamo"]);
    assert_eq!((found.decode.engine.as_deref(), &*found.decode.capped_by), (Some("vllm@0.33.0"), "the engine"));
}

#[rstest]
#[case::keys("llama", LLAMA, [("2xh100", ""), ("4xh100", "[parallel]\ntp = 1\ndp = 4")])]
#[case::windows("gpt_oss", GPT_OSS, [("2xh100", ""), ("2xh100", "")])]
#[case::states("nemotron", NEMOTRON, [("4xh100", "[parallel]\ntp = 4"), ("2xh100", "")])]
fn the_table_says_it_for_people(#[case] file: &str, #[case] name: &str, #[case] sides: [(&str, &str); 2]) {
    let table = answer(name, sides, 8192).table();
    let of_answer = table.lines().take_while(|line| !line.starts_with('#'));
    assert!(of_answer.clone().all(|line| line.chars().count() <= 80), "{table}");
    insta::assert_snapshot!(format!("disaggregation_{file}"), table);
}

/// What the plan of one device says that a sequence takes of a kind, without windows.
fn planned(answer: &DisaggregationAnswer, prompt: u64) -> u64 {
    let plan = &answer.prefill.stages[0];
    let of = |resource: &cacheplan_planner::PlannedResource| match resource.handler.growth() {
        Growth::Paged { window: Some(window), .. } => resource.bytes_per_token * prompt.min(u64::from(window) - 1),
        _ => resource.bytes_per_token * prompt + resource.bytes_per_sequence,
    };
    plan.resources.iter().map(of).sum()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn what_is_handed_over_is_what_a_sequence_takes(
        name in prop::sample::select(vec![LLAMA, GEMMA, DEEPSEEK, NEMOTRON, GPT_OSS, "Qwen__Qwen3.5-9B", "ai21labs__Jamba-v0.1"]),
        prompt in 1u64..7000,
        block in prop::sample::select(vec![1u64, 16, 64]),
        decode in prop::sample::select(vec!["b200", "2xb200", "4xb200"]),
    ) {
        let text = format!("tokens_per_block = {block}\nmax_batch_size = 2\n[dtypes]\nkv = 'bf16'");
        let staged = format!("{text}\n[parallel]\npp = 2");
        let found = answer(name, [("2xb200", &staged), (decode, &text)], prompt);
        let of_one = answer(name, [("b200", &text), (decode, &text)], prompt);
        prop_assert_eq!(found.handover.bytes, planned(&of_one, prompt));
        let ranks = u64::from(found.decode.parallel.tp);
        for part in &found.handover.parts {
            // A block at either end, of each cache, and no more copies than ranks.
            let rest = part.tokens.map_or(0, |tokens| 2 * block * part.bytes.div_ceil(tokens.max(1)));
            prop_assert!(part.received >= part.bytes, "{:?}", part);
            prop_assert!(part.received <= (part.bytes + rest) * ranks, "{:?}", part);
        }
    }
}

#[test]
fn lengths_of_a_workload_give_way_to_those_of_the_request() {
    let stated = "[workload]\nprompt = { fixed = 100 }\noutput = { fixed = 7 }";
    let found = answer(LLAMA, [("h100", stated), ("h100", stated)], 8192);
    assert_eq!(found.decode.stages[0].capacity.tokens_per_sequence, 8192 + 513);
    assert_eq!(found.prefill.stages[0].capacity.tokens_per_sequence, 8192);
}

#[test]
fn a_side_without_room_keeps_its_exit_code() {
    let model = published(LLAMA);
    let error = question(&model, [("h100", ""), ("8GiB", "")], 1000).answer().unwrap_err();
    assert_eq!(error.exit_code(), 3, "{error}");
    assert_eq!(DisaggregationError::Link(0.0).exit_code(), 2);
}
