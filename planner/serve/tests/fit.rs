//! What devices hold as engines' own commands ask it.

mod common;

use cacheplan_handlers::DType;
use cacheplan_planner::engines::Layout;
use cacheplan_planner::fit::{Answer, Fit, FitQuestion};
use cacheplan_planner::{Config, EngineSpec, Override, PlanRequest};
use cacheplan_serve::fit::Asks;
use cacheplan_serve::{Options, Question, ServeError, Starts, request};
use common::{as_asked, launch, models, on, question};
use rstest::rstest;

/// One of each kind: keys, experts, states of two kinds, windows, latents, convolutions.
const ZOO: [&str; 8] = [
    "meta-llama__Llama-3.1-8B-Instruct",
    "Qwen__Qwen3-30B-A3B",
    "Qwen__Qwen3.5-9B",
    "openai__gpt-oss-120b",
    "google__gemma-2-9b",
    "deepseek-ai__DeepSeek-V2-Lite",
    "nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
    "LiquidAI__LFM2-1.2B",
];

fn asked(name: &str, devices: &[&str], context: u64, sequences: u64) -> (PlanRequest, FitQuestion) {
    (PlanRequest::of(models(name).model), question(devices, context, sequences))
}

/// What engines of a model admit, each by its shortest command.
fn fitted(model: &PlanRequest, question: &FitQuestion, engine: EngineSpec) -> Result<Answer, ServeError> {
    let answer =
        Asks::of_model(model, question.model.as_deref()).fit(&[(model, question.clone())], &[engine.into()])?;
    Ok(answer.unwrap())
}

fn answer(name: &str, devices: &[&str], context: u64, sequences: u64, engine: EngineSpec) -> Answer {
    let (model, question) = asked(name, devices, context, sequences);
    fitted(&model, &question, engine).unwrap()
}

fn of_engine(answer: &Answer) -> impl Iterator<Item = &Fit> {
    answer.fits.iter().filter(|fit| fit.engine.is_some())
}

/// The command that a row prints, asked by itself, admits what the row says.
#[rstest]
#[case("vllm")]
#[case("vllm@0.19.0")]
#[case("sglang")]
#[case("tensorrt-llm")]
fn a_row_is_what_its_own_command_admits(
    #[case] engine: EngineSpec,
    #[values("rtx-4090", "h100")] device: &str,
    #[values(2_048, 32_768)] context: u64,
) {
    let (mut rows, mut held) = (0, 0);
    for name in ZOO {
        let (model, question) = asked(name, &[device], context, 3);
        // Not every engine has every model.
        let Ok(answer) = fitted(&model, &question, engine) else { continue };
        for row in of_engine(&answer) {
            let words = format!("{} org/model {}", engine.program(), as_asked(&answer, row, engine));
            let options = Options { version: Some(engine.version_name()), model_is_given: true, ..on(device) };
            rows += 1;
            if row.sequences == 0 {
                continue;
            }
            held += 1;
            let (_, request) =
                request(&launch(&words), &models(name), &options).unwrap_or_else(|said| panic!("{words}: {said}"));
            let stages = (0..row.parallel.pp).map(|stage| request.clone().of_stage(stage).predict(engine).unwrap());
            let least = stages.map(|stage| stage.sequences).min().unwrap();
            let said = (least * u64::from(row.parallel.dp), row.sequences);
            assert_eq!(said.0, said.1, "{name}: {words}");
        }
    }
    assert!(rows >= 10 && held >= 5, "{rows} rows, {held} that hold some");
}

/// What a command must hold it holds whatever its engine finds at its start.
#[test]
fn a_row_holds_what_is_expected_at_least() {
    let engine: EngineSpec = "vllm@0.33.0".parse().unwrap();
    let (name, words) = ("nvidia__Nemotron-H-8B-Base-8K", "vllm serve m --max-model-len 8192");
    let (model, question) = asked(name, &["l4"], 8192, 8);
    let options = Options { model_is_given: true, expected_sequences: Some(8), ..Options::default() };
    let asks = Asks::of_command(engine, launch(words), models(name), options, "m".into());
    let found = asks.fit(&[(&model, question)], &[engine.into()]).unwrap().unwrap();
    let mut held = 0;
    for row in of_engine(&found).filter(|row| row.holds && row.parallel.dp == 1) {
        let flags = engine.flags_of(&found.layout_of(row, engine)).unwrap().into_iter();
        let flags: Vec<String> = flags.flat_map(|(name, value)| [Some(name.to_owned()), value]).flatten().collect();
        let devices = Some(format!("{}xl4", row.devices).parse().unwrap());
        let options = Options { devices, ..Options::default() };
        let words = format!("vllm serve m {}", flags.join(" "));
        let answer = cacheplan_serve::answer(&launch(&words), models(name), &options).unwrap();
        assert!(answer.sequences.is_some_and(|sequences| sequences.low >= 8), "{words}: {:?}", answer.sequences);
        held += 1;
    }
    assert!(held > 0);
}

/// So is one that allocates what it is told: its row is held to its pass, its context and what it leaves free, as its command is.
#[rstest]
fn a_row_of_cells_starts_as_its_own_command_does(
    #[values("rtx-4090", "h100")] device: &str,
    #[values(2_048, 32_768)] context: u64,
) {
    let engine: EngineSpec = "llama.cpp".parse().unwrap();
    let (mut held, mut short) = (0, 0);
    for name in ZOO {
        let (model, question) = asked(name, &[device], context, 3);
        let Ok(found) = fitted(&model, &question, engine) else { continue };
        let options = Options { model_is_given: true, ..on(device) };
        let starts = |row: &Fit, sequences: u64| {
            let layout = Layout { sequences, ..found.layout_of(row, engine) };
            let flags = engine.flags_of(&layout).unwrap().into_iter();
            let flags: Vec<String> = flags.flat_map(|(name, value)| [Some(name.to_owned()), value]).flatten().collect();
            let words = format!("{} org/model {}", engine.program(), flags.join(" "));
            match cacheplan_serve::answer(&launch(&words), models(name), &options) {
                Ok(said) => (said.starts, said.reason, words),
                Err(refused @ ServeError::Engine { .. }) => (Starts::No, Some(refused.to_string()), words),
                Err(other) => panic!("{words}: {other}"),
            }
        };
        for row in of_engine(&found) {
            if row.sequences > 0 {
                held += 1;
                let (starts, why, words) = starts(row, row.sequences);
                assert_eq!((starts, why.as_deref()), (Starts::Yes, None), "{name}: {words}");
            }
            short += 1;
            let (starts, why, words) = starts(row, row.sequences + row.sequences / 8 + 1);
            assert_ne!((starts, why.as_deref()), (Starts::Yes, None), "{name}: {words}");
        }
    }
    assert!(held >= 2 && short >= held, "{held} rows hold some of {short}");
}

/// The command beside BEST asks the engine as its row was asked, and no other one.
#[rstest]
#[case("vllm", "cacheplan plan --device h200 -- vllm serve org/model --max-model-len 4096")]
#[case("vllm@0.19.0", "cacheplan plan --device h200 --engine-version 0.19.0 -- vllm serve org/model")]
#[case("llama.cpp", "cacheplan plan --device h200 -- llama-server -m org/model --ctx-size 32768")]
fn the_best_row_is_asked_about_by_the_engines_own_command(#[case] engine: EngineSpec, #[case] expected: &str) {
    let table = answer("meta-llama__Llama-2-7b-hf", &["h200"], 4_096, 8, engine).table();
    let joined = table.replace("\\\n   ", "");
    assert!(joined.contains(expected) && !joined.contains("--as vllm") && !joined.contains("--as llama"), "{table}");
}

/// Where engines are asked, what one of them admits is the answer, in its own words.
#[rstest]
#[case("vllm", "  vllm serve org/model --max-model-len 4096 --max-num-seqs ")]
#[case("sglang", "  python -m sglang.launch_server --model-path org/model --context-length 4096")]
#[case("tensorrt-llm", "  trtllm-serve org/model --max_seq_len 4096 --max_batch_size ")]
#[case("llama.cpp", " llama-server -m org/model ")]
fn the_engine_that_is_asked_is_told_what_it_admits(#[case] engine: EngineSpec, #[case] expected: &str) {
    let answer = answer("meta-llama__Llama-2-7b-hf", &["h200"], 4_096, 8, engine);
    let best = answer.best().unwrap();
    assert!(best.engine.as_ref().is_some_and(|name| name.starts_with(engine.engine.name())), "{best:?}");
    let table = answer.table();
    assert!(table.contains(expected), "{table}");
    let told = answer.told(best, engine).unwrap();
    let sequences = if engine.engine.name() == "llama.cpp" { 8 } else { best.sequences_between.unwrap()[0] };
    assert!(told.split_whitespace().any(|word| word == sequences.to_string()), "{told}");
}

/// A dtype that is stated is told the engine too, whose own rows vary none then.
#[test]
fn a_stated_dtype_is_told_the_engine() {
    let engine: EngineSpec = "llama.cpp".parse().unwrap();
    let (model, question) = asked("meta-llama__Llama-2-7b-hf", &["h200"], 4_096, 8);
    let stated = [Override::by_flag("dtypes.kv", "q8_0", "--kv-dtype")];
    let model = model.with_config(Config::resolve(None, &[], &stated).unwrap());
    let answer = fitted(&model, &question, engine).unwrap();
    assert!(of_engine(&answer).all(|fit| fit.kv_dtype.is_none()));
    let told = answer.told(answer.best().unwrap(), engine).unwrap();
    let flags = "--ctx-size 32768 --parallel 8 --cache-type-k q8_0 --cache-type-v q8_0 --flash-attn on";
    assert_eq!(told, flags);
}

/// vLLM 0.11.0 failed on such keys below compute capability 8.9 (vllm-project/vllm#26431).
#[rstest]
#[case("a100-80gb", "vllm@0.11.0", false)]
#[case("l40s", "vllm@0.11.0", true)]
#[case("a100-80gb", "vllm@0.33.0", true)]
fn keys_of_8_bits_are_offered_where_the_engine_reads_them(
    #[case] device: &str,
    #[case] engine: EngineSpec,
    #[case] offered: bool,
) {
    let answer = answer("Qwen__Qwen3-8B", &[device], 4_096, 1, engine);
    let narrow = of_engine(&answer).filter(|fit| fit.kv_dtype == Some(DType::F8E4m3)).count();
    assert_eq!(narrow > 0, offered);
    assert!(of_engine(&answer).any(|fit| fit.kv_dtype.is_none()));
}

/// What quantised weights leave is the engine's too.
#[rstest]
#[case("vllm")]
#[case("llama.cpp")]
fn weights_that_are_stated_are_the_engines_too(#[case] engine: EngineSpec) {
    let (model, question) = asked("Qwen__Qwen3-8B", &["rtx-4090"], 32_768, 1);
    let held = |weights: Option<&str>| {
        let weights = weights.map(|size| size.parse().unwrap());
        let answer = fitted(&model, &FitQuestion { weights, max_devices: 1, ..question.clone() }, engine).unwrap();
        of_engine(&answer).find(|fit| fit.kv_dtype.is_none()).unwrap().sequences
    };
    // A sequence takes 4.5 GiB, and 5 GB are 10.6 GiB less than the weights in 16 bits.
    assert!(held(Some("5GB")) >= held(None) + 2, "{} {}", held(Some("5GB")), held(None));
}

/// What it refuses whatever the layout is said in its words.
#[test]
fn an_engine_that_refuses_every_layout_says_why() {
    let (model, question) = asked("Qwen__Qwen3-8B", &["h100"], 1 << 20, 1);
    let refused = fitted(&model, &question, "vllm".parse().unwrap()).unwrap_err().to_string();
    assert!(refused.contains("User-specified max_model_len (1048576)"), "{refused}");
}

/// What it would cut to the model's longest is no row that holds it.
#[test]
fn an_engine_that_cuts_longer_sequences_holds_none_of_them() {
    let (model, question) = asked("nvidia__Nemotron-H-8B-Base-8K", &["h100"], 32_768, 1);
    let answer = fitted(&model, &question, "tensorrt-llm".parse().unwrap()).unwrap();
    assert!(of_engine(&answer).count() > 0);
    for fit in of_engine(&answer) {
        assert!(!fit.holds && !fit.may_hold && fit.sequences == 0, "{}", fit.sequences);
        assert!(fit.capped_by.starts_with("8192 "), "{}", fit.capped_by);
    }
    let table = answer.table();
    assert!(table.contains("no sequence of 32768 tokens, the longest has 8192"), "{table}");
    assert!(!table.contains("room for no sequence"), "{table}");
}

/// States for the sequences that it is told take what others would be held in.
#[rstest]
#[case("nvidia__Nemotron-H-8B-Base-8K", "tensorrt-llm")]
#[case("nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "tensorrt-llm")]
#[case("Qwen__Qwen3.5-4B", "tensorrt-llm")]
#[case("Qwen__Qwen3.5-4B", "vllm")]
fn what_an_engine_holds_does_not_depend_on_how_many_are_asked_for(#[case] model: &str, #[case] engine: EngineSpec) {
    let held = |sequences: u64| {
        let (model, question) = asked(model, &["h100"], 4096, sequences);
        let answer = fitted(&model, &FitQuestion { max_devices: 1, ..question }, engine).unwrap();
        of_engine(&answer).find(|fit| fit.kv_dtype.is_none() && fit.state_dtype.is_none()).unwrap().sequences
    };
    let few = held(1);
    for sequences in [10, 150, few, few + 1, 2 * few] {
        assert_eq!(held(sequences), few, "of {sequences}");
    }
}

/// llama.cpp takes cells for every sequence that it is told of, so that its command asks for no more than are needed.
#[test]
fn what_is_held_beside_what_the_command_asks_for_is_said_to_be_room() {
    let answer = answer("meta-llama__Llama-3.1-8B-Instruct", &["h100"], 8192, 4, "llama.cpp".parse().unwrap());
    let table = answer.table();
    assert!(table.contains("--parallel 4"), "{table}");
    assert!(table.contains(": 4 asked for, and room for "), "{table}");
}

/// With as many sequences as there may be room for vLLM may not start, with those that are asked for it does.
#[test]
fn states_alone_are_held_by_the_device_whose_own_command_starts() {
    let engine = "vllm@0.33.0".parse().unwrap();
    let found = answer("state-spaces__mamba2-2.7b", &["h200"], 16384, 16, engine);
    let alone = of_engine(&found).find(|row| row.devices == 1).unwrap();
    assert!(alone.holds && alone.sequences_between.unwrap()[0] >= 16, "{alone:?}");
}

/// The rows of a command that is asked about itself.
fn of_command(command: &str, name: &str, device: &str, max_devices: u32) -> Result<Answer, ServeError> {
    let (launch, models) = (launch(command), models(name));
    let options = Options { model_is_given: true, ..on(device) };
    let (engine, request) = request(&launch, &models, &options)?;
    let context = request.config().budget.max_seq_len.unwrap();
    let question = FitQuestion { max_devices, ..question(&[device], context, 1) };
    let asks = Asks::of_command(engine, launch, models, options, "m".into());
    Ok(asks.fit(&[(&request, question)], &[engine.into()])?.unwrap())
}

/// A layout that a command says itself is a row, which holds what `plan` says that the command does, and whose command is told it as it
/// says it.
#[rstest]
#[case("Qwen__Qwen3-30B-A3B", "h100", 8, "--tp 8 --dp 8 --enable-dp-attention --context-length 8192", "tp 1 dp 8 ep 8")]
#[case("Qwen__Qwen3-30B-A3B", "h100", 8, "--tp 8 --dp 4 --enable-dp-attention --context-length 8192", "tp 2 dp 4 ep 8")]
#[case(
    "Qwen__Qwen3-30B-A3B",
    "h100",
    8,
    "--tp 8 --dp 8 --enable-dp-attention --ep-size 8 --context-length 8192",
    "tp 1 dp 8 ep 8"
)]
#[case(
    "deepseek-ai__DeepSeek-V3",
    "h200",
    16,
    "--tp 16 --dp 16 --enable-dp-attention --nnodes 2 --context-length 8192",
    "tp 1 dp 16 ep 16"
)]
#[case("Qwen__Qwen3-30B-A3B", "h100", 4, "--tp 4 --ep-size 2 --context-length 8192", "tp 4 dp 1 ep 2")]
#[case("Qwen__Qwen3-30B-A3B", "h100", 8, "--tp 4 --ep-size 4 --dp 2 --context-length 8192", "tp 4 dp 2 ep 4")]
fn what_a_command_says_of_its_layout_is_a_row(
    #[case] name: &str,
    #[case] device: &str,
    #[case] devices: u32,
    #[case] flags: &str,
    #[case] expected: &str,
) {
    let words = format!("python -m sglang.launch_server --model-path m {flags}");
    let answer = of_command(&words, name, device, devices).unwrap();
    let layout = |fit: &Fit| format!("tp {} dp {} ep {}", fit.parallel.tp, fit.parallel.dp, fit.parallel.ep);
    let best = answer.best().unwrap();
    assert_eq!(layout(best), expected);
    let options = on(&format!("{devices}x{device}"));
    let own = cacheplan_serve::answer(&launch(&words), models(name), &options).unwrap();
    let engine = best.engine.as_deref().unwrap().parse().unwrap();
    let told = launch(&words).told(&answer.printed(best, engine), None).unwrap().unwrap();
    let again = cacheplan_serve::answer(&told, models(name), &options).unwrap();
    let replicas = u64::from(best.parallel.dp);
    assert_eq!(again.sequences.unwrap().low * replicas, best.sequences_between.unwrap()[0], "{:?}", told.words);
    assert!(again.sequences.unwrap().low >= own.sequences.unwrap().low, "{:?}", told.words);
    assert_eq!(told.words.iter().any(|word| word == "--ep-size"), flags.contains("--ep-size"), "{:?}", told.words);
}

/// Of experts the command says over how many ranks they are divided.
#[test]
fn ranks_that_experts_are_divided_over_are_kept() {
    let answer =
        of_command("trtllm-serve m --tp_size 4 --ep_size 2 --max_seq_len 8192", "Qwen__Qwen3-30B-A3B", "h100", 4);
    let answer = answer.unwrap();
    assert!(
        of_engine(&answer).count() > 0 && of_engine(&answer).all(|fit| (fit.parallel.tp, fit.parallel.ep) == (4, 2))
    );
}

/// What a command states of sequences its rows are held to, and the best one's command says it as it was said.
#[rstest]
#[case("trtllm-serve m --tp_size 2 --max_seq_len 8192 --max_batch_size 16", "--max_batch_size 16", 16)]
#[case(
    "python -m sglang.launch_server --model-path m --context-length 8192 --max-running-requests 6",
    "--max-running-requests 6",
    6
)]
#[case("vllm serve m --data-parallel-size 2 --max-model-len 8192 --max-num-seqs 8", "--max-num-seqs 8", 16)]
fn sequences_that_a_command_states_are_kept(#[case] command: &str, #[case] expected: &str, #[case] most: u64) {
    let answer = of_command(command, "openai__gpt-oss-120b", "h100", 2).unwrap();
    let best = answer.best().unwrap();
    assert_eq!(best.sequences_between, Some([most; 2]));
    let told = launch(command).told(&answer.printed(best, best.engine.as_deref().unwrap().parse().unwrap()), None);
    let words = told.unwrap().unwrap().words.join(" ");
    assert!(words.contains(expected), "{words}");
}

/// Replicas have each as many as the command states, but those of the attention alone.
#[rstest]
#[case("python -m sglang.launch_server --model-path m --dp 4 --max-running-requests 64", 256)]
#[case(
    "python -m sglang.launch_server --model-path m --tp 4 --dp 4 --enable-dp-attention --max-running-requests 64",
    64
)]
#[case("vllm serve m --data-parallel-size 4 --max-num-seqs 64", 256)]
fn as_many_may_be_asked_for_as_all_replicas_are_told_of(#[case] command: &str, #[case] most: u64) {
    let question = Question::of(&launch(command), &on("h200")).unwrap();
    assert_eq!(question.stated_sequences(), Some(most));
    let asked = |sequences: u64| question.refuse_beyond(("--context", None), ("--sequences", Some(sequences)));
    assert!(asked(most).is_ok());
    let said = asked(most + 1).unwrap_err().to_string();
    assert!(said.contains("states itself"), "{said}");
}
