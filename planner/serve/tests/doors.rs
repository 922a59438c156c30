//! One question has one answer, whichever door it is asked at: `fit`'s rows, a command behind `--`, a plan of our own.

mod common;

use cacheplan_planner::fit::{Answer, Fit, FitQuestion, Prices};
use cacheplan_planner::{Budget, Config, DeviceInfo, EngineSpec, Override, PlanRequest};
use cacheplan_serve::fit::{Asks, By};
use cacheplan_serve::{Options, Starts, answer};
use common::{as_asked, launch, models, on, question};
use rstest::rstest;

const HYBRID: &str = "Qwen__Qwen3-Next-80B-A3B-Thinking";

fn fitted(model: &PlanRequest, question: &FitQuestion, engine: EngineSpec) -> Answer {
    Asks::of_model(model, question.model.as_deref())
        .fit(&[(model, question.clone())], &[engine.into()])
        .unwrap()
        .unwrap()
}

fn of(name: &str) -> PlanRequest {
    PlanRequest::of(models(name).model)
}

fn rows(answer: &Answer) -> impl Iterator<Item = &Fit> {
    answer.fits.iter().filter(|fit| fit.engine.is_some() && fit.sequences > 0)
}

fn said(words: &str, name: &str, options: &Options) -> cacheplan_serve::Answer {
    let options = Options { model_is_given: true, ..options.clone() };
    answer(&launch(words), models(name), &options).unwrap_or_else(|said| panic!("{words}: {said}"))
}

/// A row's interval is what its own command is answered, and it holds what that surely holds.
#[rstest]
#[case("vllm", HYBRID, "h200")]
#[case("vllm", "Qwen__Qwen3-30B-A3B", "h100")]
#[case("sglang", "meta-llama__Llama-3.1-8B-Instruct", "l4")]
#[case("llama.cpp", "meta-llama__Llama-3.1-8B-Instruct", "rtx-4090")]
fn a_row_holds_what_its_command_surely_holds(
    #[case] engine: EngineSpec,
    #[case] name: &str,
    #[case] device: &str,
    #[values(1, 40, 100)] sequences: u64,
) {
    let (model, question) = (of(name), question(&[device], 32_768, sequences));
    let found = fitted(&model, &question, engine);
    for row in rows(&found).filter(|row| row.sequences >= sequences && engine.engine.name() != "llama.cpp") {
        let words = format!("{} m {}", engine.program(), as_asked(&found, row, engine));
        let answer = said(&words, name, &Options { devices: Some(device.parse().unwrap()), ..Options::default() });
        let between = answer.sequences.unwrap();
        let least = if answer.starts == Starts::Yes { between.low } else { 0 };
        assert_eq!(row.sequences_between, Some([least, between.high].map(|of| of * answer.replicas)), "{words}");
        assert_eq!(
            row.holds,
            answer.short_of(Some(sequences), None).is_none() && answer.starts == Starts::Yes,
            "{words}"
        );
    }
    for row in rows(&found) {
        let [least, most] = row.sequences_between.unwrap();
        assert_eq!((row.holds, row.may_hold), (least >= sequences, most >= sequences), "{row:?}");
    }
}

/// What only may hold stands behind what does, and is no answer.
#[test]
fn what_only_may_hold_is_said_to() {
    let engine: EngineSpec = "vllm".parse().unwrap();
    let model = of("Qwen__Qwen3-8B");
    let asked = FitQuestion { max_devices: 1, ..question(&["h100"], 8192, 1) };
    let [least, most] = fitted(&model, &asked, engine).best().unwrap().sequences_between.unwrap();
    assert!(least < most);
    let held = |sequences: u64| {
        let answer = fitted(&model, &FitQuestion { sequences, ..asked.clone() }, engine);
        let row = rows(&answer).find(|row| row.kv_dtype.is_none()).unwrap();
        (row.holds, row.may_hold, answer.table())
    };
    let (holds, may_hold, table) = held(most);
    assert!(!holds && may_hold && table.contains("maybe  1 x h100"), "{table}");
    assert!(!held(most + most / 2).1);
}

/// Weights that an engine quantises as it loads them are read in as many bytes as they take.
#[test]
fn a_step_of_quantised_weights_reads_what_they_take() {
    let engine: EngineSpec = "vllm".parse().unwrap();
    let model = of(HYBRID);
    let asked = question(&["h200"], 32_768, 100);
    let eight = model.model().weights_at(1.0).unwrap().bytes;
    let stated = FitQuestion { weights: Some(cacheplan_planner::ByteSize(eight).into()), ..asked.clone() };
    let options = Options { model_is_given: true, ..on("h200") };
    let command = launch("vllm serve m --quantization fp8");
    let (_, request) = cacheplan_serve::request(&command, &models(HYBRID), &options).unwrap();
    let asks = Asks::of_command(engine, command, models(HYBRID), options, "m".into());
    let quantised = asks.fit(&[(&request, asked)], &[engine.into()]).unwrap().unwrap();
    let alone = |answer: &Answer| rows(answer).next().unwrap().at_best.clone().unwrap().alone_per_second;
    let (found, expected) = (alone(&quantised), alone(&fitted(&model, &stated, engine)));
    assert!((found / expected - 1.0).abs() < 0.02, "{found} and not {expected}");
}

/// Keys and values of 8 bits take half as much, by whichever word they are stated.
#[test]
fn longest_sequences_are_those_of_the_stated_dtype() {
    let name = "meta-llama__Llama-3.1-8B-Instruct";
    let llama: EngineSpec = "llama.cpp".parse().unwrap();
    let longest = |budget: &str| {
        let text = format!("max_batch_size = 1\n[memory]\nfraction = 0.9\nof = 'total'\n{budget}");
        let budget = Budget::from_toml(&text, "budget.toml").unwrap();
        let request = of(name).with_budget(budget).with_devices("rtx-4090".parse::<DeviceInfo>().unwrap());
        request.for_engine(llama).longest_sequence().unwrap()
    };
    let narrow = longest("[dtypes]\nkv = 'q8_0'");
    assert_eq!(longest("[engine]\ncache_type_k = 'q8_0'\ncache_type_v = 'q8_0'"), narrow);
    assert!(narrow > longest("") * 3 / 2);

    let stated = [Override::by_flag("dtypes.kv", "q8_0", "--kv-dtype")];
    let model = of(name).with_config(Config::resolve(None, &[], &stated).unwrap());
    let asked = FitQuestion { max_devices: 1, ..question(&["rtx-4090"], 80_000, 1) };
    let answer = fitted(&model, &asked, llama);
    assert!(answer.best().is_some(), "{}", answer.table());
    let found = Asks::of_model(&model, None).longest_that_fits(&model, &asked, &[llama.into()]).unwrap();
    assert!(found > 80_000, "{found}");
}

/// A sequence that is too long for an engine is no lack of memory.
#[test]
fn an_engines_own_limit_is_said() {
    let model = of("Qwen__Qwen3-8B");
    let weights = Some("5GB".parse().unwrap());
    let asked = FitQuestion { weights, max_devices: 1, ..question(&["rtx-4090"], 65_536, 1) };
    let answer = fitted(&model, &asked, "llama.cpp".parse().unwrap());
    let row = answer.fits.iter().find(|fit| fit.engine.is_some()).unwrap();
    assert_eq!((row.sequences, row.capped_by.as_str()), (0, "40960 tokens of a sequence"));
    let table = answer.table();
    assert!(table.contains("40960 tokens") && !table.contains("--weights what"), "{table}");
}

/// Weights that are stated are known.
#[test]
fn stated_weights_are_not_said_to_be_unknown() {
    let said = |weights: Option<&str>| {
        let overrides = weights.map(|size| Override::by_flag("memory.weights", size, "--weights"));
        let options = Options { overrides: overrides.into_iter().collect(), ..on("rtx-4090") };
        said("llama-server -m x.gguf", "google__gemma-3-1b-it", &options).notes
    };
    let is_unknown = |notes: &[String]| notes.iter().any(|note| note.contains("size of the weights is not known"));
    assert!(is_unknown(&said(None)) && !is_unknown(&said(Some("'2GB'"))), "{:?}", said(Some("'2GB'")));
}

/// Replicas hold together what is expected of them.
#[test]
fn replicas_are_counted_together() {
    let words = "vllm serve m --tensor-parallel-size 2 --data-parallel-size 2 --max-model-len 32768 --max-num-seqs 128";
    let found = said(words, HYBRID, &on("h200"));
    let of_one = found.sequences.unwrap().low;
    assert_eq!(found.replicas, 2);
    assert_eq!(found.short_of(Some(2 * of_one), None), None);
    assert!(found.short_of(Some(2 * of_one + 1), None).is_some());
    assert!(found.text().contains(" on each of 2 replicas"), "{}", found.text());
}

/// Of cells that do not fit the most that do are offered, and no more than the model reads.
#[rstest]
#[case("Qwen__Qwen3-8B", "-c 57344 -np 1", 40_960)]
#[case("meta-llama__Llama-3.1-8B-Instruct", "-c 131072 -np 2", 0)]
fn the_most_cells_that_start_are_offered(#[case] name: &str, #[case] flags: &str, #[case] expected: u64) {
    let found = said(&format!("llama-server -m x.gguf -ngl 99 {flags}"), name, &on("rtx-4090"));
    assert_ne!(found.starts, Starts::Yes);
    let change = &found.changes[0];
    assert_eq!(change.starts, Starts::Yes, "{change:?}");
    let cells: u64 = change.command.last().unwrap().parse().unwrap();
    assert!(expected == 0 || cells == expected, "{change:?}");
    let slots = found.limits.max_batch_size.unwrap();
    if expected == 0 {
        let more = flags.replace("131072", &(cells + 256 * slots).to_string());
        let more = said(&format!("llama-server -m x.gguf -ngl 99 {more}"), name, &on("rtx-4090"));
        assert_ne!(more.starts, Starts::Yes, "{cells}");
    }
}

/// A change that a cap of the command's own hides is shown with the cap raised.
#[test]
fn changes_are_shown_beyond_the_commands_own_cap() {
    let words = "vllm serve m --tensor-parallel-size 2 --max-model-len 32768 --max-num-seqs 120";
    let found = said(words, HYBRID, &on("h200"));
    assert!(!found.changes.is_empty());
    for change in &found.changes {
        // What holds just the cap holds no more without it.
        let words = change.command.join(" ").replace(" --max-num-seqs 120", "");
        let free = || said(&words, HYBRID, &on("h200")).sequences.unwrap().low;
        assert!(change.sequences.unwrap().low > 120 || free() <= 120, "{change:?}");
    }
    assert!(found.changes.iter().any(|change| change.sequences.unwrap().low > 120), "{:?}", found.changes);
}

/// What the answer hangs on stands above it.
#[rstest]
#[case("-m Qwen3-8B-IQ4_KSS.gguf -c 65536 -np 4 -ngl 99", Some("the file is IQ4_KSS"))]
#[case("-m Qwen3-8B-Q4_K_M.gguf -c 65536 -np 4 -ngl 99", None)]
#[case("-m Qwen3-8B.gguf -c 16k -np 4 -ngl 99", Some("--ctx-size 16k is 16 to its parser"))]
#[case("-m Qwen3-8B.gguf -c 4096 -ngl 99", None)]
fn what_an_answer_hangs_on_comes_first(#[case] flags: &str, #[case] expected: Option<&str>) {
    let found = said(&format!("llama-server {flags}"), "Qwen__Qwen3-8B", &on("rtx-4090"));
    match expected {
        Some(expected) => assert!(found.cautions[0].contains(expected), "{:?}", found.cautions),
        None => assert_eq!(found.cautions, Vec::<String>::new()),
    }
}

#[test]
fn lines_behind_a_command_are_said_not_to_be_read() {
    let script = b"vllm serve m --max-model-len 4096\n--max-num-seqs 4\n--enforce-eager\n";
    let launch = cacheplan_serve::manifest::read("s.sh", script).unwrap().remove(0);
    let options = Options { model_is_given: true, ..on("h100") };
    let found = answer(&launch, models("Qwen__Qwen3-8B"), &options).unwrap();
    assert!(
        found.cautions[0].starts_with("2 lines after the command are not read: the first begins with --max-num-seqs")
    );
    assert_ne!(found.limits.max_batch_size, Some(4));
}

/// Fewer bits are offered where they cost less, in the engine's own pools where one is asked.
#[rstest]
#[case(None)]
#[case(Some("vllm"))]
fn weights_of_fewer_bits_are_offered_where_they_cost_less(#[case] engine: Option<&str>) {
    let model = of(HYBRID);
    let prices = Prices::from_toml("currency = ''\n[per_hour]\nh200 = 3.5\nh100 = 2.5\n").unwrap();
    let asked = FitQuestion { prices, ..question(&["h100", "h200"], 32_768, 60) };
    let by = [engine.unwrap_or("plan").parse::<By>().unwrap()];
    let asks = Asks::of_model(&model, Some("m"));
    let found = asks.fit(&[(&model, asked.clone())], &by).unwrap().unwrap();
    let best = found.best().unwrap().per_hour.unwrap();
    let eight = found.fewer_bits.iter().find(|fewer| fewer.bits == 8).unwrap();
    // As many as `--quantization fp8` takes.
    assert_eq!(eight.weights_bytes, model.model().weights_at(1.0).unwrap().bytes);
    let offered = eight.fit.as_ref().unwrap();
    assert!(offered.per_hour.unwrap() < best && offered.holds && offered.engine.is_some() == engine.is_some());
    assert!(found.table().contains("with 8-bit weights, assumed "), "{}", found.table());
    let weights = Some("fp8".parse().unwrap());
    let stated = asks.fit(&[(&model, FitQuestion { weights, ..asked })], &by).unwrap().unwrap();
    assert_eq!(stated.best().unwrap().per_hour, offered.per_hour);
    assert!(stated.fewer_bits.is_empty());
}
