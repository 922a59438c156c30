//! Commands that people published, with what their engines then logged: `tests/fixtures/starts`.
//!
//! A command is answered for the bytes that its engine logged, and what it says beside its log: tokens within 1 %, all else
//! to the printed digit.

mod ledgers;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use cacheplan_planner::EngineSpec;
use cacheplan_planner::engines::{UnknownEngine, Version};
use cacheplan_planner::logs::{EngineLog, Fact, Logged};
use cacheplan_serve::{Answer, Launch, Models, Options, ServeError, Starts, answer, manifest};
use cacheplan_transforms::{Model, ReadOptions};
use serde_json::Value;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures")
}

/// The release before what a build adds to it: `0.18.1` of `v0.18.1rc1.dev27`, `b9849` of llama.cpp's `9849 (799fcc04a)`.
fn version(engine: &str, logged: &str) -> Option<String> {
    let logged = logged.trim_start_matches('v');
    let end = logged.find(|char: char| !(char.is_ascii_digit() || char == '.')).unwrap_or(logged.len());
    let release = logged[..end].trim_end_matches('.');
    match engine {
        // Builds between releases have no number.
        _ if release.starts_with("0.0.0") || release == "0.1" || release.is_empty() => None,
        // A commit of no build may begin with digits.
        "llama.cpp" if logged[end..].starts_with(|next: char| next.is_ascii_alphanumeric()) => None,
        "llama.cpp" => Some(format!("b{release}")),
        // One before all that are modelled is asked about as the oldest.
        _ => match format!("{engine}@{logged}").parse::<EngineSpec>() {
            Err(UnknownEngine::Version { oldest, .. })
                if release.parse().is_ok_and(|asked: Version| asked < oldest) =>
            {
                Some(oldest.to_string())
            }
            _ => Some(logged.to_owned()),
        },
    }
}

/// What a printed number of so many digits behind the point stands for, in units.
fn printed(number: f64, half: f64, unit: f64) -> Logged {
    Logged { low: ((number - half).max(0.0) * unit) as u64, high: ((number + half) * unit) as u64 }
}

fn sum(numbers: impl Iterator<Item = Logged>) -> Option<Logged> {
    numbers.reduce(|a, b| Logged { low: a.low + b.low, high: a.high + b.high })
}

/// The bytes for caches that an engine logged, and what followed from them.
type Facts = (Option<Logged>, Vec<(Fact, Logged)>);

/// What an engine logged.
fn logged(start: &Value) -> Result<Facts, String> {
    const GIB: f64 = (1u64 << 30) as f64;
    let logged = &start["logged"];
    let gib = |key: &str| logged[key].as_f64().map(|size| printed(size, 0.005, GIB));
    let number = |key: &str| logged[key].as_u64().map(Logged::exact);
    let all = |facts: Vec<Option<(Fact, Logged)>>| facts.into_iter().flatten().collect();
    let of = |fact: Fact, number: Option<Logged>| number.map(|number| (fact, number));
    Ok(match start["engine"].as_str().unwrap_or_default() {
        "vllm" => {
            let times =
                logged["concurrency"]["times"].as_f64().map(|times| Logged::exact((times * 100.0).round() as u64));
            let facts = all(vec![
                of(Fact::Tokens, number("tokens")),
                of(Fact::Concurrency, times),
                of(Fact::TokensPerBlock, number("block_size")),
                of(Fact::NumBlocks, number("mamba_blocks")),
            ]);
            (
                gib("available_gib")
                    .or(logged["error"]["available_gib"].as_f64().map(|size| printed(size, 0.005, GIB))),
                facts,
            )
        }
        "sglang" if logged["pools"].is_array() => {
            let pools = logged["pools"].as_array().into_iter().flatten();
            let sizes = pools.flat_map(|pool| [&pool[1], &pool[2]]).filter_map(Value::as_f64);
            let sizes = sizes.map(|size| printed(size, 0.005, GIB));
            let tokens = vec![of(Fact::Tokens, number("full_size")), of(Fact::WindowTokens, number("swa_size"))];
            (sum(sizes), all(tokens))
        }
        "sglang" => {
            let parts = ["k_gb", "v_gb", "kv_gb", "conv_state_gb", "ssm_state_gb", "swa_pool_gb"];
            let facts = all(vec![
                of(Fact::Tokens, number("tokens")),
                of(Fact::StateSlots, number("max_mamba_cache_size")),
                of(Fact::WindowTokens, number("swa_tokens")),
            ]);
            (sum(parts.into_iter().filter_map(gib)), facts)
        }
        "tensorrt-llm" => {
            let facts = all(vec![of(Fact::Tokens, number("max_tokens_paged"))]);
            (gib("allocated_gib"), facts)
        }
        _ => {
            let lines: Vec<&str> = start["lines"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
            let engine: EngineSpec = "llama.cpp".parse().map_err(|error| format!("{error}"))?;
            let Ok(log) = EngineLog::read(lines.join("\n").as_bytes(), Some(engine.engine)) else {
                // Lines that were quoted in part: their sizes alone.
                const MIB: f64 = (1u64 << 20) as f64;
                let caches = logged["kv_caches"].as_array().into_iter().flatten();
                let sizes = caches.filter_map(|cache| cache["mib"].as_f64()).map(|size| printed(size, 0.005, MIB));
                return Ok((None, of(Fact::KvBytes, sum(sizes)).into_iter().collect()));
            };
            let facts = [Fact::Tokens, Fact::WindowTokens, Fact::KvBytes, Fact::SsmBytes, Fact::ConvBytes];
            // Where the sum is left out, the buffers stand for it.
            let drafts = start["command"].as_str().is_some_and(|command| command.contains("--spec-type"));
            let buffers = |fact: Fact| log.get(Fact::KvBuffers).filter(|_| fact == Fact::KvBytes && !drafts);
            let said = |fact: Fact| Some((fact, log.get(fact).or_else(|| buffers(fact))?));
            (None, facts.into_iter().filter_map(said).collect())
        }
    })
}

/// Bytes of llama.cpp's states, where their line is quoted without the rest.
fn recurrent(start: &Value) -> Option<Logged> {
    const MIB: f64 = (1u64 << 20) as f64;
    let sizes = start["logged"]["recurrent"].as_array()?.iter().filter_map(|states| states["mib"].as_f64());
    sum(sizes.map(|size| printed(size, 0.005, MIB)))
}

/// What is not as it was logged, if anything.
fn difference(start: &Value) -> Result<(), String> {
    let text = |key: &str| start[key].as_str().unwrap_or_default().to_owned();
    let assume = start["assume"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let assume = assume.map(|fact| fact.parse().map_err(|error| format!("{error}"))).collect::<Result<_, String>>()?;
    let read = |config: &str, options: &ReadOptions| {
        let text = std::fs::read_to_string(fixtures().join(config)).map_err(|error| format!("{config}: {error}"))?;
        Model::read_config("config.json", &text, options).map_err(|error| error.to_string())
    };
    let options = ReadOptions { assume, descriptions: Vec::new() };
    let served = read(start["config"].as_str().ok_or("no config")?, &options)?;
    let draft = start["draft"].as_str().map(|config| read(config, &ReadOptions::default())).transpose()?;
    let model = Models { draft: draft.map(Into::into), ..served.into() };
    let launch = manifest::read("start.sh", text("command").as_bytes()).map_err(|error| error.to_string())?;
    let env: BTreeMap<String, String> = serde_json::from_value(start["env"].clone()).unwrap_or_default();
    let launch = launch.into_iter().next().ok_or("no command")?;
    let launch = Launch { env: env.into_iter().chain(launch.env.clone()).collect(), ..launch };
    let (bytes, facts) = logged(start)?;
    // Without bytes only what no bytes decide can be held.
    let cache_bytes = bytes.or(Some(Logged::exact(16 << 30)));
    // The card's name, or else its memory: what an engine asks of a card before it has logged the bytes.
    let known = |of: &str| of.split([',', '(']).next().and_then(|name| name.parse().ok());
    let memory = |of: &str| of.replace(' ', "").replace("GB", "GiB").parse().ok();
    let gpu = |key: &str| start["gpu"][key].as_str();
    let device = (start["device"].as_str().and_then(known))
        .or_else(|| gpu("name").and_then(known))
        .or_else(|| gpu("memory").and_then(memory))
        // A processor is no device.
        .filter(|_| !gpu("name").is_some_and(|name| name.starts_with("CPU")));
    // Builds between releases have no number; then the release that its finder inferred.
    let inferred = || {
        let said = text("version_inferred");
        let is_release = |word: &&str| word.split('.').count() == 3 && version("", word).as_deref() == Some(*word);
        said.split([' ', ',']).find(is_release).map(str::to_owned)
    };
    let options = Options {
        version: version(&text("engine"), &text("version")).or_else(inferred),
        devices: device,
        cache_bytes,
        model_is_given: true,
        ..Options::default()
    };
    // A version that nobody logged is the newest whose parser takes the words.
    let read: &[&str] = match text("engine").as_str() {
        "vllm" => &["0.28.0", "0.24.0", "0.18.0", "0.11.0"],
        "sglang" => &["0.5.18", "0.5.9"],
        "llama.cpp" => &["b10809", "b8672", "b7390", "b6324"],
        _ => &[],
    };
    let older = |version: &&str| Options { version: Some((*version).to_owned()), ..options.clone() };
    let of = |options: Options| Some((answer(&launch, model.clone(), &options).ok()?, options));
    let (found, options) = match answer(&launch, model.clone(), &options) {
        Err(ServeError::Parser { program, said, .. }) if options.version.is_none() => {
            let refused = || format!("{program}: {said}");
            read.iter().map(older).find_map(of).ok_or_else(refused)?
        }
        found => (found.map_err(|error| error.to_string())?, options),
    };
    if start["logged"]["mamba_blocks"].is_u64() && found.starts != Starts::No {
        return Err("it starts".to_owned());
    }
    if start["logged"]["error"].is_object() || start["logged"]["error"].is_string() {
        if found.starts != Starts::No {
            return Err("it starts".to_owned());
        }
        // The estimate is of the bytes that were logged to two digits, so that it is between those of either end.
        let Some(logged) = start["logged"]["error"]["estimated_length"].as_u64() else { return Ok(()) };
        let estimate = |bytes: u64| {
            let options = Options { cache_bytes: Some(Logged::exact(bytes)), ..options.clone() };
            let reason = answer(&launch, model.clone(), &options).ok()?.reason?;
            reason.split("model length is ").nth(1)?.split('.').next()?.parse::<u64>().ok()
        };
        let ends = cache_bytes.map(|bytes| (estimate(bytes.low), estimate(bytes.high)));
        return match ends {
            Some((Some(low), Some(high))) if (low..=high).contains(&logged) => Ok(()),
            _ => Err(format!("estimated {ends:?}, logged {logged}")),
        };
    }
    // Sizes of keys and values alone: the states beside them take what they take, where no bytes decide that.
    let states = |found: &Answer| {
        let of = |fact: Fact| found.facts.get(&fact).filter(|bytes| bytes.low == bytes.high).map(|bytes| bytes.low);
        Some(of(Fact::SsmBytes)? + of(Fact::ConvBytes).unwrap_or(0))
    };
    let quoted = ["conv_state_gb", "ssm_state_gb"].iter().any(|key| start["logged"][*key].is_f64());
    let found = match (states(&found), cache_bytes) {
        (Some(states), Some(bytes)) if found.engine == "sglang" && !quoted => {
            let bytes = Logged { low: bytes.low + states, high: bytes.high + states };
            let options = Options { cache_bytes: Some(bytes), ..options.clone() };
            answer(&launch, model.clone(), &options).map_err(|error| error.to_string())?
        }
        _ => found,
    };
    let mut differ = Vec::new();
    let mut told = 0;
    if let Some(logged) = recurrent(start) {
        let predicted = states(&found).unwrap_or(0);
        told += 1;
        if !logged.meets(Logged::exact(predicted)) {
            differ.push(format!("states {predicted}, logged {}..{}", logged.low, logged.high));
        }
    }
    for (fact, logged) in facts {
        let Some(predicted) = found.facts.get(&fact) else { continue };
        if bytes.is_none() && matches!(fact, Fact::Tokens | Fact::Concurrency) && found.engine != "llama.cpp" {
            continue;
        }
        let near = match fact {
            Fact::Tokens | Fact::WindowTokens | Fact::StateSlots => logged.high.div_ceil(100),
            _ => 0,
        };
        told += 1;
        if !predicted.meets(Logged { low: logged.low.saturating_sub(near), high: logged.high + near }) {
            let [said, logged] = [*predicted, logged].map(|of| format!("{}..{}", of.low, of.high));
            differ.push(format!("{} {said}, logged {logged}", fact.name()));
        }
    }
    match (told, differ.is_empty()) {
        (0, _) => Err("nothing that it says is in the log".to_owned()),
        (_, true) => Ok(()),
        _ => Err(differ.join("; ")),
    }
}

/// Starts that are not said as they were logged, and why.
const DIFFERENT: &[(&str, &str)] = &[
    ("vllm-40691", "neither the bytes nor the card were logged"),
    ("qwen3-235b-dcp2", "neither the bytes nor the card were logged"),
    ("sgl-qwen38-27b-mi355x", "no size of a cache was logged"),
    ("qwen3-coder-30b-pp2-refused", "its stages have 16 and 32 layers, by a variable that is not planned"),
    ("sgl-qwen38-flash-next-2spark", "the model has no published configuration"),
    ("granite-350m-strix", "the configuration here lacks the kinds of the layers"),
    ("sgl-granite-small", "a build between releases, with flags of its own"),
    ("sgl-qwen3-32b-npu-tp2", "a build for Ascend of unknown version"),
    ("sgl-nemotron3-nano-xpu-tp4", "a build between releases of unknown version, with a flag that 0.5.23 lacks"),
    ("deepseek-v4-flash-2spark", "a build of somebody's own for DGX Spark, with kernels and pages of its own"),
    ("lcpp-gpt-oss-20b-hexagon", "`llama-cli` serves nobody, and is not read"),
    ("lcpp-gpt-oss-20b-m5", "`llama-completion` serves nobody, and is not read"),
    ("trt-dsr1-llama-8b", "a program of somebody's own starts the engine"),
    (
        "nemotron3-nano-nvfp4-tp2",
        "the logged bytes are those of one of two unequal cards; the other, with less, decides",
    ),
    ("b2-glm51-bf16-tp16-dcp8", "a fork, whose `index_topk_pattern` shares indexers among layers; not read"),
    ("b2-gemma4-31b-mtp-xpu-tp2", "a build between releases; what drafts has no configuration here"),
    ("b2-glm52-nvfp4-4spark-dcp4", "a fork that divides sparse latents among ranks"),
    (
        "b2-lcpp-gpt-oss-20b-np8",
        "its other flags are unknown: 512 cells of a window, where a step of 512 tokens has 768",
    ),
    ("b2-sgl-granite-h-micro", "a build of a branch: 1.2 % fewer tokens, a slot of states"),
    ("b2-trt-mimo-v2-flash-2layer", "its log has one pool for the window and the other layer"),
    (
        "qwen3-235b-fp8-tp4-h100",
        "the logged bytes are those of another card than the poorest: its tokens take 1 % less",
    ),
    ("b3-l-gptoss-20b-m5-ub2048", "`llama-cli` serves nobody, and is not read"),
    ("b3-glm52-exl3-tp4", "a fork with kernels of its own, which no release knows"),
    ("b3-trt-bench-llama2-7b-fp8", "`trtllm-bench` serves nobody, and is not read"),
    ("b3-trt-0.8-llama2-7b-a100", "a program of somebody's own starts the engine"),
    ("b3-trt-nemotron-nano-4b-nvfp4", "the caches of a built engine are its builder's choice, which no command says"),
    ("b3-glm52-int4-mi250-tp8-dcp8", "a patched build for ROCm: 2.4 % fewer tokens"),
    ("b3-laguna-int4-4x3090-tp4", "what drafts has no configuration here, and layers of its own"),
    ("b3-laguna-int4-spark-64k", "what drafts has no configuration here, and layers of its own"),
    ("b3-laguna-nvfp4-spark-64k", "what drafts has no configuration here, and layers of its own"),
    ("b3-laguna-int4-main-spark-error", "what drafts has no configuration here, and layers of its own"),
    ("b3-qwen38-27b-awq-a100-40", "of unknown version: 0.28.0 to 0.32.0 give its numbers"),
    (
        "b3-qwen35-35b-gptq-5090-dev126",
        "the bytes hold no sequence of the model's length, so that its command is not whole",
    ),
    ("b3-qwen35-35b-8x910b-dcp4", "a build for Ascend, with blocks of its own: 1.2 % fewer tokens"),
    ("b3-qwen36-27b-nvfp4-spark-060", "kept prefixes, of which its command says nothing: with that it is equal"),
    ("b3-minimax-m27-awq-2spark-085", "the bytes are another card's than the poorest: its tokens take 0.9 % less"),
    ("b4-vllm-qwen3-235b-fp8-8xl40s", "the bytes are another card's than the poorest: 7.27 times and not 7.25"),
    ("b4-sgl-mimo-v2-flash-tp4", "the quote ends behind the pool of windows"),
    ("sgl-nemotron3-omni-tp4", "an image for DGX Spark with a flag that the release's parser takes for two others"),
    ("b6-trt-nemotron3-nano-fp8-autodeploy-spark", "the backend `_autodeploy` was not read"),
    ("b6-trt-qwen25-1.5b-triton-l4", "`tritonserver` is not read"),
    ("b6-trt-qwen25-0.5b-triton-l4", "`tritonserver` is not read"),
    ("b6-lcpp-gemma4-31b-q8kv-r9700", "the quote has the full layers' pool alone"),
    ("b6-lcpp-llama31-70b-rpc", "`llama-cli` serves nobody, and is not read"),
    ("b6-vllm-gemma4-31b-nvfp4-pro6000", "neither the bytes nor the memory that others had were logged"),
    ("b6-vllm-glm51-fp8-tp8-h200-eager", "the configuration here is GLM-5.2's, of a longer length"),
    ("b6-vllm-qwen3-omni-30b-awq-64k-refused", "the configuration here is Qwen3-30B-A3B's, of a shorter length"),
    ("b6-sgl-deepseek-v32-exp-dp8-b200-main", "a build of a day on which the index was not paid from the bytes"),
    ("b6-vllm-qwen36-27b-int4-mtp3-2x3090-p2poff", "the bytes were not logged"),
    ("b6-vllm-qwen36-27b-int4-mtp3-2x3090-p2pon", "the bytes were not logged"),
    ("b6-sgl-qwen38-27b-nvfp4-vision-5090", "the bytes of keys and values were not quoted"),
    ("b6-sgl-qwen3-next-fp8-dp4-deepep-b200", "the bytes of states were not quoted"),
    ("b6-sgl-gemma4-12b-qat-3060", "no bytes were quoted"),
    (
        "b7-lcpp-qwen38-flash-next-8k-b10969-ollama",
        "no published configuration: of the one put together `mtp` is not read",
    ),
    (
        "b8-vllm-gemma4-26b-dflash15-gb10",
        "an image whose `kv_cache_utils.py` is not the release's: a block has twice the bytes of its seven groups of five layers",
    ),
    (
        "b8-vllm-dsv4-flash-0731-dspark7-b300",
        "the log is of a later start, whose length was not quoted: at 65,536 tokens no such bytes hold so many",
    ),
    ("b8-sglang-ling3-flash-fp4-w4a16-spark", "a branch with a parser of reasoning that 0.5.17 lacks"),
    ("b8-sglang-ling3-flash-fp4-w4a8-spark", "a branch with a parser of reasoning that 0.5.17 lacks"),
    (
        "b9-vllm-qwen36-27b-aeon-dflash15-gb10",
        "an image whose `kv_cache_utils.py` is not the release's: a block has twice the bytes of its groups of five layers",
    ),
    ("b9-vllm-glm52-nvfp4-dense-64k-4spark", "a patch of its author's leaves the indexer out where `index_topk` is 0"),
    ("b9-sglang-ling3-flash-fin-fp4-spark", "the log is of another start: 117 slots, where the command states 64"),
    ("b9-sglang-ling3-tiny-bf16-spark", "the log is of another start: 614 slots, where the command states 64"),
    ("b10-trt-llama31-8b-fp8-bench-095", "`trtllm-bench` serves nobody, and is not read"),
    ("b10-trt-llama31-8b-fp8-bench-090", "`trtllm-bench` serves nobody, and is not read"),
    ("b10-trt-0.8-llama3-8b-bf16-3090", "a program of somebody's own starts the engine"),
    ("b10-vllm-opt-27b-bench-tp4-a30", "`vllm bench` serves nobody, and is not read"),
    ("b10-lcpp-qwen35-9b-mtp-q8-131k-m4", "the quote is of the dry run, in front of the cache of what drafts"),
    ("b10-lcpp-qwen35-9b-mtp-q51-262k-m4", "the quote is of the dry run, in front of the cache of what drafts"),
    ("b10-sglang-dsv4-flash-base-bf16-tp8-h20", "pools of DeepSeek-V4 in May 2026 were not read"),
    ("b10-sglang-dsv4-flash-base-fp8-tp8-h20", "pools of DeepSeek-V4 in May 2026 were not read"),
    ("b10-sglang-dsv41-flash-dspark-tp3-3spark", "a checkout changed to divide 64 heads among three ranks"),
    ("b10-sglang-kimi-k26-w4a8-eagle3-dp32-a3", "rules of `npu` were not read"),
    ("b11-sglang-glm5-nvfp4-tp8-pro6000", "an image between releases, with a flag that none of them has"),
    ("b11-sglang-r1-0528-ep8-b200", "the quote has no bytes for caches"),
];

#[test]
fn published_commands_start_as_their_engines_logged() {
    let file = std::fs::read_to_string(fixtures().join("starts/starts.jsonl")).unwrap();
    let starts: Vec<Value> = file.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let mut wrong = Vec::new();
    for start in &starts {
        let id = start["id"].as_str().unwrap();
        let reason = DIFFERENT.iter().find(|(of, _)| *of == id).map(|(_, reason)| *reason);
        match (difference(start), reason) {
            (Ok(()), None) => {}
            (Err(said), Some(_)) => println!("{id}: {said}"),
            (Ok(()), Some(_)) => wrong.push(format!("{id}: equal now")),
            (Err(said), None) => wrong.push(format!("{id}: {said}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(starts.len(), 400);
}
