//! A command that `fit` prints holds what its row says, once it is pasted behind `cacheplan plan`.

mod common;

use cacheplan_planner::fit::{Answer, Fit, FitQuestion};
use cacheplan_planner::{Config, Override, PlanRequest};
use cacheplan_serve::fit::{Asks, By};
use cacheplan_serve::{Options, Starts, answer};
use common::{launch, models, on, question};
use rstest::rstest;

const HYBRID: &str = "Qwen__Qwen3-Next-80B-A3B-Thinking";

fn asked(name: &str, stated: &[Override], question: &FitQuestion, by: &[By]) -> Answer {
    let device = question.devices.first().map(|(_, device)| device);
    let config = Config::resolve_on(device, None, &[], stated).unwrap();
    let model = PlanRequest::of(models(name).model).with_config(config);
    let asks = Asks::of_model(&model, question.model.as_deref());
    asks.fit(&[(&model, question.clone())], by).unwrap().unwrap()
}

/// The words of a printed command that begins so, its lines joined.
fn printed(table: &str, begins: &str) -> Vec<String> {
    let best = table.split_once("BEST\n").unwrap_or_else(|| panic!("{table}")).1.replace("\\\n", " ");
    let line = best.lines().find(|line| line.trim_start().starts_with(begins)).unwrap_or_else(|| panic!("{table}"));
    line.split_whitespace().map(str::to_owned).collect()
}

/// Sequences of all replicas at least and at most, as the printed command is answered, and whether it surely starts.
fn pasted(name: &str, table: &str) -> ([u64; 2], Starts, String) {
    let words = printed(table, "cacheplan plan --device");
    let (flags, command) = words.split_at(words.iter().position(|word| word == "--").unwrap());
    let value = |flag: &str| flags.iter().position(|word| word == flag).map(|at| flags[at + 1].clone());
    let keys = [("--weights", "memory.weights"), ("--reserve", "memory.reserve")];
    let overrides = keys.into_iter().filter_map(|(flag, key)| Some(Override::by_flag(key, value(flag)?, flag)));
    let options = Options {
        version: value("--engine-version"),
        overrides: overrides.collect(),
        model_is_given: true,
        ..on(&value("--device").unwrap())
    };
    let words = command[1..].join(" ");
    let said = answer(&launch(&words), models(name), &options).unwrap_or_else(|said| panic!("{words}: {said}"));
    let all = said.sequences.unwrap_or_else(|| panic!("{words}: {:?}", said.reason));
    ([all.low, all.high].map(|of| of * said.replicas), said.starts, words)
}

fn assert_is_true(name: &str, found: &Answer, best: &Fit) {
    let table = found.table();
    let (held, starts, words) = pasted(name, &table);
    assert_eq!(starts, Starts::Yes, "{words}");
    if words.starts_with("llama-server") {
        // It takes the cells of all that it is told, and is told what is asked for.
        assert_eq!(held, [found.sequences.min(best.sequences); 2], "{words}");
    } else {
        // It is told of no more than it surely holds, so that nobody is preempted.
        assert_eq!(held, [best.sequences_between.unwrap()[0]; 2], "{words}\n{table}");
    }
    assert!(held[0] >= found.sequences, "{words}");
}

/// Whatever the model keeps: states, windows, latents, plain keys.
#[rstest]
fn the_printed_command_holds_what_its_row_says(
    #[values(
        "Qwen__Qwen3-Next-80B-A3B-Thinking",
        "nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
        "openai__gpt-oss-120b",
        "mistralai__Mistral-7B-v0.1",
        "deepseek-ai__DeepSeek-V2-Lite",
        "meta-llama__Llama-3.1-8B-Instruct"
    )]
    name: &str,
    #[values("rtx-pro-6000", "h200", "m3-ultra-512gb")] device: &str,
    #[values((4_096, 100), (8_192, 7))] (context, sequences): (u64, u64),
) {
    let found = asked(name, &[], &question(&[device], context, sequences), &[]);
    assert!(found.fits.iter().all(|fit| fit.engine.is_some()), "{:?}", found.notes);
    let best = found.best().unwrap_or_else(|| panic!("{}", found.table()));
    assert_is_true(name, &found, best);
    assert!(!found.table().contains("--mamba-ssm-cache-dtype float32"), "{}", found.table());
}

/// Also where weights are stated in bits or in bytes, and where some of each device is reserved.
#[rstest]
#[case(HYBRID, "h200", "fp8", None)]
#[case(HYBRID, "h200", "int4", None)]
#[case(HYBRID, "h100", "74.83GiB", None)]
#[case("Qwen__Qwen3-8B", "rtx-4090", "8-bit", Some("1GiB"))]
#[case("meta-llama__Llama-3.1-8B-Instruct", "m4-max-128gb", "Q4_K_M", Some("4GiB"))]
fn the_printed_command_has_the_weights_that_are_stated(
    #[case] name: &str,
    #[case] device: &str,
    #[case] weights: &str,
    #[case] reserve: Option<&str>,
) {
    let stated = reserve.map(|size| Override::by_flag("memory.reserve", size, "--reserve"));
    let words = reserve.into_iter().flat_map(|size| ["--reserve".to_owned(), size.to_owned()]);
    let asked_for = FitQuestion {
        weights: Some(weights.parse().unwrap()),
        stated: words.collect(),
        ..question(&[device], 8_192, 4)
    };
    let found = asked(name, stated.as_slice(), &asked_for, &[]);
    let best = found.best().unwrap_or_else(|| panic!("{}", found.table()));
    assert_is_true(name, &found, best);
    let table = found.table();
    if weights == "fp8" || weights == "8-bit" {
        // The engine makes them itself of the checkpoint that there is.
        let served = printed(&table, "vllm serve").join(" ");
        assert!(served.starts_with("vllm serve org/model ") && served.contains("--quantization fp8"), "{table}");
        assert!(!table.contains("--weights"), "{table}");
    } else {
        let joined = table.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(joined.contains("as --weights says"), "{table}");
    }
}

/// What no engine can be told is of the planner's own pools, and says so.
#[test]
fn what_an_engine_refuses_is_answered_by_the_planner_alone() {
    let found = asked("Qwen__Qwen3-8B", &[], &question(&["h100"], 1 << 20, 1), &[]);
    assert!(found.fits.iter().all(|fit| fit.engine.is_none()) && !found.fits.is_empty());
    assert!(
        found.notes.iter().any(|note| note.contains("User-specified max_model_len (1048576)")),
        "{:?}",
        found.notes
    );
    assert!(!found.table().contains("vllm serve"), "{}", found.table());
}

/// The planner's own pools are asked for by a word, and stand beside an engine's where both are.
#[test]
fn the_planners_own_pools_are_asked_for_by_a_word() {
    let by = |words: &[&str]| {
        let by: Vec<By> = words.iter().map(|word| word.parse().unwrap()).collect();
        asked(HYBRID, &[], &question(&["h200"], 8_192, 4), &by)
    };
    let (own, both) = (by(&["plan"]), by(&["vllm", "plan"]));
    assert!(own.best().unwrap().engine.is_none());
    assert!(both.best().unwrap().engine.is_some() && both.fits.iter().any(|fit| fit.engine.is_none()));
    assert_eq!(by(&["vllm"]).fits, by(&[]).fits);
}

/// A folder is served whole; of a description alone only the flags can be said.
#[rstest]
#[case("models/it's mine/config.json", "  vllm serve \"models/it's mine\" --max-model-len")]
#[case("config.json", "  vllm serve . --max-model-len")]
#[case("org/model", "  vllm serve org/model --max-model-len")]
#[case("llama.json", "  vllm serve MODEL --max-model-len")]
#[case("my llama.gguf", "  llama-server -m 'my llama.gguf' -ngl 99 --ctx-size 4096 --parallel 1\n")]
fn what_serves_the_model_can_be_pasted(#[case] model: &str, #[case] expected: &str) {
    let question = FitQuestion { model: Some(model.to_owned()), ..question(&["h200"], 4_096, 1) };
    let table = asked("meta-llama__Llama-2-7b-hf", &[], &question, &[]).table();
    assert!(table.contains(expected), "{table}");
}

/// Flags that cost neither devices nor precision are tried before more is paid, and their command holds what is said of it.
#[rstest]
#[case(HYBRID, &[("h200", 3.5), ("h100", 2.5)], (32_768, 205), None, "2 x h200")]
#[case(HYBRID, &[("h200", 3.5), ("h100", 2.5)], (32_768, 100), Some("fp8"), "1 x h200")]
fn what_flags_alone_hold_is_named_with_its_command(
    #[case] name: &str,
    #[case] prices: &[(&str, f64)],
    #[case] (context, sequences): (u64, u64),
    #[case] weights: Option<&str>,
    #[case] said: &str,
    #[values(2, 8)] max_devices: u32,
) {
    let devices: Vec<&str> = prices.iter().map(|(device, _)| *device).collect();
    let mut asked_for = FitQuestion { max_devices, ..question(&devices, context, sequences) };
    asked_for.weights = weights.map(|bits| bits.parse().unwrap());
    prices.iter().for_each(|(device, price)| asked_for.prices.state(device, *price).unwrap());
    let found = asked(name, &[], &asked_for, &[]);
    let freed = found.freed.as_ref().unwrap_or_else(|| panic!("{}", found.table()));
    assert!(found.best().is_none_or(|best| best.per_hour > freed.fit.per_hour), "{}", found.table());
    let changes = format!("BEST\n{}", found.table().split_once("CHANGES\n").unwrap().1);
    assert!(changes.contains(said), "{changes}");
    let (held, starts, words) = pasted(name, &changes);
    assert_eq!((Some(held), starts), (freed.fit.sequences_between, Starts::Yes), "{words}");
    assert!(held[0] >= sequences, "{words}");
}
