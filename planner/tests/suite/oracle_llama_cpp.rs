//! What llama.cpp logged of its caches, without it: rows under `tests/fixtures/oracles`, made by
//! `cargo xtask oracle llama.cpp`.

use std::collections::BTreeSet;

use cacheplan_planner::engines::EnginePrediction;
use cacheplan_planner::{ByteSize, EngineSpec, PlanRequest};
use cacheplan_transforms::Model;
use rstest::rstest;
use serde::Deserialize;

use super::common::budget;
use super::oracles::{docs_state, fixture, lines, zoo};

/// What it was told.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Question {
    model: String,
    ctx: u64,
    parallel: u64,
    #[serde(default)]
    unified: bool,
    #[serde(default)]
    swa_full: bool,
    ubatch: Option<u64>,
    type_k: Option<String>,
    type_v: Option<String>,
}

/// One of its caches, with MiB of its parts as they were printed.
#[derive(Debug)]
enum Cache {
    /// Keys and values, and how many cells each stream has.
    Keys { cells: u64, parts: [f64; 2] },
    /// Convolutions, and recurrent states.
    States([f64; 2]),
    /// What forms compressed entries, of so many streams.
    Compressors { streams: u64, size: f64 },
}

impl Cache {
    fn parse(text: &str) -> Self {
        let (kind, numbers) = text.split_once(' ').unwrap();
        let numbers: Vec<f64> = numbers.split(' ').map(|number| number.parse().unwrap()).collect();
        match (kind, &numbers[..]) {
            ("kv", [cells, _layers, keys, values]) => Self::Keys { cells: *cells as u64, parts: [*keys, *values] },
            ("rs", [_cells, _layers, conv, ssm]) => Self::States([*conv, *ssm]),
            ("cs", [streams, _layers, size]) => Self::Compressors { streams: *streams as u64, size: *size },
            _ => panic!("{text}"),
        }
    }
}

fn predicted(question: &Question, engine: EngineSpec) -> Result<EnginePrediction, String> {
    let model: Model = zoo(&question.model);
    let mut told = budget("");
    // A context is shared, or divided into equal streams.
    let own = question.ctx / question.parallel;
    told.max_seq_len = Some(if question.unified { question.ctx } else { own });
    told.engine.context = question.unified.then_some(question.ctx);
    told.engine.state_slots = Some(question.parallel);
    told.engine.ubatch = question.ubatch;
    told.engine.swa_full = Some(question.swa_full);
    let dtype = |text: &Option<String>| text.as_ref().map(|text| text.parse().unwrap());
    (told.engine.cache_type_k, told.engine.cache_type_v) = (dtype(&question.type_k), dtype(&question.type_v));
    let context = told.engine_context(&model.info, engine);
    let resources = model.graph.clone().collect(&context).unwrap().resources;
    PlanRequest::of((model.info.clone(), resources.clone()))
        .with_budget(told.clone())
        .predict(engine)
        .map_err(|error| error.to_string())
}

/// Bytes that print as these MiB, each to two decimals.
fn prints_as(bytes: Option<u64>, printed: &[f64]) -> bool {
    let half_digits = 0.005 * printed.len() as f64 + 1e-9;
    (ByteSize(bytes.unwrap_or(0)).0 as f64 / f64::from(1 << 20) - printed.iter().sum::<f64>()).abs() <= half_digits
}

fn difference(question: &Question, answer: &str, engine: EngineSpec) -> Option<String> {
    let caches: Vec<Cache> = answer.split(", ").map(Cache::parse).collect();
    let ours = match predicted(question, engine) {
        Ok(ours) => ours,
        Err(error) => return Some(format!("{question:?}: {error}")),
    };
    let (mut printed, mut conv, mut ssm, mut cells) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut streams = if question.unified { 1 } else { question.parallel };
    let mut is_compressed = false;
    for cache in caches {
        match cache {
            Cache::Keys { parts: [0.0, 0.0], .. } => {}
            Cache::Keys { cells: of_stream, parts } => {
                cells.push(of_stream);
                printed.extend(parts);
            }
            Cache::States([of_conv, of_ssm]) => {
                conv.push(of_conv);
                ssm.push(of_ssm);
            }
            Cache::Compressors { streams: own, size } => {
                (streams, is_compressed) = (own, true);
                ssm.push(size);
            }
        }
    }
    // Compressed entries, whose bytes say how many there are, stand behind those of the window.
    cells.truncate(if is_compressed { 1 } else { cells.len() });
    let cells: BTreeSet<u64> = cells.into_iter().map(|cells| cells * streams).collect();
    // Where there are no keys, its cells hold nothing, and where entries are compressed none is of one token.
    let tokens = ours.tokens.filter(|_| !printed.is_empty() && !is_compressed);
    let equal = prints_as(ours.kv_bytes, &printed)
        && prints_as(ours.ssm_bytes, &ssm)
        && prints_as(ours.conv_bytes, &conv)
        && cells == tokens.into_iter().chain(ours.window_tokens).collect();
    let found = (ours.kv_bytes.map(ByteSize), ours.ssm_bytes.map(ByteSize), ours.conv_bytes.map(ByteSize));
    (!equal).then(|| format!("{question:?}: {answer}; ours {found:?} {:?} {:?}", ours.tokens, ours.window_tokens))
}

#[test]
fn llama_cpp_allocates_as_its_model_says() {
    let engine: EngineSpec = "llama.cpp@b11549".parse().unwrap();
    let questions: Vec<Question> = lines(&fixture("llama.cpp.jsonl"));
    let answers = fixture("llama.cpp-b11549.txt");
    assert_eq!(questions.len(), answers.lines().count());
    // It refuses a latent whose keys and values, which are one, are to have two dtypes.
    let (refused, answered): (Vec<_>, Vec<_>) =
        questions.iter().zip(answers.lines()).partition(|(_, answer)| *answer == "-");
    assert!(refused.iter().all(|(question, _)| question.type_k.is_some() && question.type_k != question.type_v));
    for (question, _) in &refused {
        let why = predicted(question, engine).unwrap_err();
        assert!(why.starts_with("a latent is key and value at once"), "{question:?}: {why}");
    }
    let wrong: Vec<String> =
        answered.iter().filter_map(|(question, answer)| difference(question, answer, engine)).collect();
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), answered.len(), wrong.join("\n"));
    let models: BTreeSet<&str> = questions.iter().map(|question| question.model.as_str()).collect();
    let architectures: BTreeSet<&str> =
        models.iter().map(|model| zoo(model).gguf_skeleton().unwrap().architecture).collect();
    docs_state(&format!("{} configs of {} architectures", models.len(), architectures.len()));
    docs_state(&format!("{} of the {} starts it refuses", refused.len(), questions.len()));
    docs_state(&format!("Of the other {} all are equal", answered.len()));
}

/// What it allocated for the largest pass, in MiB: b11549 on a CPU, started on files without weights, with tokens' embeddings
/// (16 KiB each) beside what a device would hold; and on CUDA, as public logs say of builds of May and September 2026 (stored
/// files 56992954617, 56781022437 and 68540442885).
#[rstest]
#[case("meta-llama__Llama-3.1-8B-Instruct", "b11549", 8_192, 512, 132.02 - 8.0)]
#[case("meta-llama__Llama-3.1-8B-Instruct", "b11549", 131_072, 512, 252.02 - 8.0)]
#[case("meta-llama__Llama-3.1-8B-Instruct", "b11549", 8_192, 2_048, 528.07 - 32.0)]
#[case("Qwen__Qwen3.5-27B", "b9200", 200_192, 512, 654.78)]
#[case("Qwen__Qwen3.5-27B", "b9174", 131_072, 512, 495.00)]
#[case("Qwen__Qwen3.5-27B", "b10809", 32_768, 128, 38.50)]
fn buffers_of_a_pass_are_near_what_was_logged(
    #[case] config: &str,
    #[case] engine: &str,
    #[case] cells: u64,
    #[case] ubatch: u64,
    #[case] logged: f64,
) {
    let engine: EngineSpec = format!("llama.cpp@{engine}").parse().unwrap();
    let stated = format!("max_seq_len = {cells}\nmax_batch_size = 4\n[engine]\ncontext = {cells}\nubatch = {ubatch}");
    let request = PlanRequest::of(super::common::published(config)).with_budget(budget(&stated));
    let bytes = request.predict(engine).unwrap().compute_bytes.unwrap();
    let ratio = bytes as f64 / f64::from(1 << 20) / logged;
    assert!((0.875..=1.125).contains(&ratio), "{bytes} is {ratio} of what was logged");
}
