//! Words of Dynamo's workers, as the engine behind each takes them: `dynamo.tsv`, which `cargo xtask flags` reads in its wheel.

use std::sync::LazyLock;

use cacheplan_planner::EngineSpec;
use serde_json::Value;

use crate::error::ServeError;
use crate::flags::table::Flag;
use crate::remedy::Remedy;

/// A flag that a worker reads itself.
struct Row {
    worker: &'static str,
    flag: &'static str,
    /// The most values that it takes.
    most: usize,
    /// Another flag, `model`, `options`, `unread`, or nothing that says something of caches.
    becomes: &'static str,
}

static ROWS: LazyLock<Vec<Row>> = LazyLock::new(|| {
    let lines = include_str!("flags/dynamo.tsv").lines().skip(2);
    let row = |line: &'static str| {
        let [worker, flag, values, becomes] = line.split('\t').collect::<Vec<_>>().try_into().ok()?;
        let most = match values {
            "0" => 0,
            "1" | "?" => 1,
            _ => usize::MAX,
        };
        Some(Row { worker, flag, most, becomes })
    };
    lines.filter_map(row).collect()
});

/// Words as the engine takes them.
pub(crate) struct Rewritten {
    pub(crate) words: Vec<String>,
    /// Options of the engine that stand above all words, with dots between their keys.
    pub(crate) options: Vec<(String, String)>,
}

/// The engine whose worker stands in front of the arguments.
pub(crate) fn worker(words: &[String], start: usize) -> Option<&str> {
    words.get(start.checked_sub(1)?)?.strip_prefix("dynamo.")
}

/// The words of a command, those from `start` on as the engine takes them.
pub(crate) fn rewritten(words: &[String], start: usize, known: &[&'static Flag]) -> Result<Rewritten, ServeError> {
    let Some(worker) = worker(words, start) else {
        return Ok(Rewritten { words: words.to_vec(), options: Vec::new() });
    };
    let mut taken = words[..start].to_vec();
    let mut options = Vec::new();
    let mut at = start;
    while let Some(word) = words.get(at) {
        at += 1;
        let (name, stuck) =
            word.split_once('=').map_or((word.as_str(), None), |(name, value)| (name, Some(value.to_owned())));
        if name.starts_with("--trtllm.") {
            return Err(ServeError::unread(name, "nobody read what a key that is stated so does to caches", []));
        }
        // TensorRT-LLM's worker reads all flags itself, the others leave the engine its own.
        let is_engines = worker != "trtllm" && known.iter().any(|flag| flag.names().any(|known| known == name));
        let row = ROWS.iter().find(|row| row.worker == worker && row.flag == name).filter(|_| !is_engines);
        let Some(row) = row else {
            taken.push(word.clone());
            continue;
        };
        let mut values: Vec<String> = stuck.into_iter().collect();
        while let Some(value) = words.get(at).filter(|next| values.len() < row.most && !next.starts_with("--")) {
            values.push(value.clone());
            at += 1;
        }
        match row.becomes {
            "" => {}
            "unread" => {
                let why = "what this flag of Dynamo does to caches was not read";
                return Err(ServeError::unread(row.flag, why, [Remedy::Remove(row.flag)]));
            }
            "model" => taken.extend(values),
            "options" => options.extend(options_of(row.flag, values.first().map_or("", String::as_str))?),
            flag => taken.extend(std::iter::once(flag.to_owned()).chain(values)),
        }
    }
    Ok(Rewritten { words: taken, options })
}

/// A worker that hands over what it prefills must be told how (`update_dynamo_config_with_engine` of `dynamo/vllm/args.py`).
pub(crate) fn refuse_prefill(words: &[String], start: usize, engine: EngineSpec) -> Result<(), ServeError> {
    const HOW: &str = "--kv-transfer-config";
    let (worker, words) = (worker(words, start), &words[start..]);
    let value = |flag: &str| {
        let at =
            words.iter().rposition(|word| word.split('=').next().is_some_and(|name| name.replace('_', "-") == flag))?;
        words[at].split_once('=').map(|(_, value)| value).or_else(|| words.get(at + 1).map(String::as_str))
    };
    // Its parts are flags of their own: `--kv-transfer-config.kv_role`.
    let is_told = words.iter().any(|word| word.replace('_', "-").starts_with(HOW));
    if worker != Some("vllm") || is_told || value("--disaggregation-mode") != Some("prefill") {
        return Ok(());
    }
    let example = r#"{"kv_connector":"NixlConnector","kv_role":"kv_both"}"#;
    let said =
        format!("When using --disaggregation-mode prefill, you must explicitly provide {HOW}. Example: '{example}'");
    Err(ServeError::Engine { engine: engine.engine, said, remedies: vec![Remedy::Set(HOW, example.to_owned())] })
}

/// An object of options by their keys.
fn options_of(flag: &'static str, text: &str) -> Result<Vec<(String, String)>, ServeError> {
    let Ok(Value::Object(options)) = serde_json::from_str(text) else {
        let why = "a JSON object of the engine's options was expected".to_owned();
        return Err(ServeError::NotHandled { flag: flag.to_owned(), why, remedies: vec![Remedy::Remove(flag)] });
    };
    let mut flat = Vec::new();
    let mut front: Vec<(String, Value)> = options.into_iter().collect();
    while let Some((key, value)) = front.pop() {
        match value {
            Value::Object(inner) => {
                front.extend(inner.into_iter().map(|(name, value)| (format!("{key}.{name}"), value)));
            }
            Value::String(text) => flat.push((key, text)),
            value => flat.push((key, value.to_string())),
        }
    }
    flat.sort();
    Ok(flat)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flags::table::flags;
    use rstest::rstest;

    fn taken(command: &str, engine: &str) -> Result<String, ServeError> {
        let words: Vec<String> = command.split(' ').map(str::to_owned).collect();
        let spec: cacheplan_planner::EngineSpec = engine.parse().unwrap();
        rewritten(&words, 3, &flags(spec.engine, spec.version)).map(|rewritten| rewritten.words[3..].join(" "))
    }

    #[rstest]
    #[case(
        "python -m dynamo.vllm --model m --namespace n --enable-rl --max-model-len 8",
        "vllm",
        "--model m --max-model-len 8"
    )]
    #[case(
        "python -m dynamo.vllm --model m --output-modalities text image --dtype half",
        "vllm",
        "--model m --dtype half"
    )]
    #[case(
        "python -m dynamo.sglang --model-path m --endpoint=e --page-size 16",
        "sglang",
        "--model-path m --page-size 16"
    )]
    #[case("python -m dynamo.trtllm --model m --max-seq-len 8 --kv-block-size 32", "tensorrt-llm", "m --max_seq_len 8")]
    #[case(
        "python -m dynamo.trtllm --model-path m --publish-events-and-metrics --dyn-endpoint-types chat --max-seq-len 8",
        "tensorrt-llm",
        "m --max_seq_len 8"
    )]
    #[case("python -m sglang.launch_server --namespace n", "sglang", "--namespace n")]
    fn a_worker_leaves_the_engine_its_own_words(#[case] command: &str, #[case] engine: &str, #[case] expected: &str) {
        assert_eq!(taken(command, engine).unwrap(), expected);
    }

    #[rstest]
    #[case("python3 -m dynamo.vllm --model m --disaggregation-mode prefill", true)]
    #[case("python3 -m dynamo.vllm --model m --disaggregation-mode=prefill", true)]
    #[case("python3 -m dynamo.vllm --model m --disaggregation-mode prefill --kv-transfer-config {}", false)]
    #[case("python3 -m dynamo.vllm --model m --disaggregation-mode prefill --kv_transfer_config.kv_role x", false)]
    #[case("python3 -m dynamo.vllm --model m --disaggregation-mode decode", false)]
    #[case("python3 -m dynamo.sglang --model-path m --disaggregation-mode prefill", false)]
    fn a_worker_that_prefills_must_be_told_how_it_hands_over(#[case] command: &str, #[case] is_refused: bool) {
        let words: Vec<String> = command.split(' ').map(str::to_owned).collect();
        let found = refuse_prefill(&words, 3, "vllm".parse().unwrap()).map_err(|error| error.to_string());
        assert_eq!(found.is_err_and(|error| error.contains("provide --kv-transfer-config")), is_refused);
    }

    #[rstest]
    #[case("python -m dynamo.vllm --model m --connector nixl lmcache", "vllm", "--connector")]
    #[case(
        "python -m dynamo.trtllm --model m --trtllm.kv_cache_config.dtype fp8",
        "tensorrt-llm",
        "--trtllm.kv_cache_config.dtype"
    )]
    fn what_a_worker_changes_of_caches_is_refused_by_name(
        #[case] command: &str,
        #[case] engine: &str,
        #[case] flag: &str,
    ) {
        assert!(taken(command, engine).unwrap_err().to_string().starts_with(flag));
    }
}
