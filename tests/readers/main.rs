//! Mutated files of every kind are read or refused within the limits that `SECURITY.md` states.
//!
//! Each reader gets a second; `CACHEPLAN_SOAK_SECONDS` gives each more. CI gives ten, `cargo xtask soak` ten minutes.

mod graphs;
mod limits;
mod mutation;
mod texts;
mod traces;

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use cacheplan::candle::{DType, Device};
use cacheplan::files::{Limit, Source};
use cacheplan::hub::Hub;
use cacheplan::managers::book::{CacheBook, Stats};
use cacheplan::planner::{
    Budget, CachePlan, EngineLog, ForwardProfile, MeasuredLedger, PlanRequest, Prices, RankPlans, Serving, Target,
};
use cacheplan::runtime::Weights;
use cacheplan::transforms::{Model, PassContext, ReadOptions};
use serde_json::{Map, Value};

use limits::survive;

fn fixture(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(path)
}

/// The files of a folder with this ending.
fn seeds(folder: &str, ending: &str) -> Vec<Vec<u8>> {
    let mut paths: Vec<PathBuf> = fs::read_dir(fixture(folder)).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.to_string_lossy().ends_with(ending));
    paths.sort();
    assert!(!paths.is_empty(), "{folder} has no files");
    paths.iter().map(|path| fs::read(path).unwrap()).collect()
}

/// The beginning of a fixture: a header and a little of what follows.
fn beginning(path: &str, length: usize) -> Vec<u8> {
    let mut bytes = fs::read(fixture(path)).unwrap();
    bytes.truncate(length);
    bytes
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn walk(mut model: Model) {
    let _ = model.graph.collect(&PassContext::default());
}

/// A model in memory under this name, with these files beside it.
fn model(name: &str, bytes: &[u8], beside: &[Source]) -> Option<Model> {
    Model::read_source(&Source::memory(name, bytes), beside, &ReadOptions::default()).ok()
}

/// A real file, of which only a part is held in memory, as what `read` makes of it.
fn a_file<T>(name: &str, read: impl Fn(&Path) -> Option<T>) -> impl Fn(&[u8]) -> Option<T> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    move |bytes| {
        let _until_dropped = &folder;
        fs::write(&path, bytes).unwrap();
        read(&path)
    }
}

fn model_of(path: &Path) -> Option<Model> {
    Model::read(path, &ReadOptions::default()).ok()
}

fn nothing<T>(_: T) {}

#[test]
fn configs() {
    let is_read = |bytes: &Vec<u8>| model("config.json", bytes, &[]).is_some();
    let seeds: Vec<Vec<u8>> = seeds("configs", ".json").into_iter().filter(is_read).collect();
    assert!(seeds.len() > 20, "{} configs are read", seeds.len());
    survive("configs", Limit::CONFIG, &seeds, |bytes| model("config.json", bytes, &[]), walk);
}

#[test]
fn calibrations() {
    let config = Source::memory("config.json", beginning("models/llama/config.json", usize::MAX));
    let config = config.bytes(Limit::CONFIG).unwrap();
    let seed =
        br#"{"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}}"#;
    let read = |bytes: &[u8]| model("config.json", &config, &[Source::memory("hf_quant_config.json", bytes)]);
    survive("calibrations", Limit::CONFIG, &[seed.to_vec()], read, walk);
}

#[test]
fn runtime_configs() {
    let seed = beginning("edge_llm/config.json", usize::MAX);
    survive("runtime configs", Limit::CONFIG, &[seed], |bytes| model("config.json", bytes, &[]), walk);
}

/// `generation_config.json`, as `run` reads it.
#[test]
fn generation_configs() {
    let seed = br#"{"bos_token_id": 1, "eos_token_id": [2, 3], "temperature": 0.6, "x": {"y": [null, "z"]}}"#.to_vec();
    let read = |bytes: &[u8]| Source::memory("g", bytes).json::<Map<String, Value>>(Limit::CONFIG).ok();
    survive("generation configs", Limit::CONFIG, &[seed], read, nothing);
}

#[test]
fn descriptions() {
    let guide = fs::read_to_string(fixture("../../docs/adding-a-model.md")).unwrap();
    let block = |language: &str| {
        let start = guide.split_once(&format!("```{language}\n")).unwrap().1;
        start.split_once("```").unwrap().0.to_owned()
    };
    let config = block("json");
    let read = |bytes: &[u8]| {
        let descriptions = vec![Source::memory("d", bytes).text(Limit::TOML).ok()?];
        Model::read_config("config.json", &config, &ReadOptions { descriptions, ..ReadOptions::default() }).ok()
    };
    survive("descriptions", Limit::TOML, &[block("toml").into_bytes()], read, walk);
}

#[test]
fn safetensors_headers() {
    let config = beginning("models/llama/config.json", usize::MAX);
    let seed = fs::read(fixture("models/llama/model.safetensors")).unwrap();
    let read = |bytes: &[u8]| model("model.safetensors", bytes, &[Source::memory("config.json", config.clone())]);
    survive("safetensors headers", Limit::SAFETENSORS, &[header(&seed)], read, walk);
}

/// A safetensors file of which only a tensor is kept, since mutations should meet the header.
fn header(file: &[u8]) -> Vec<u8> {
    let length = u64::from_le_bytes(*file.first_chunk().unwrap()) as usize;
    file[..(8 + length + 4096).min(file.len())].to_vec()
}

#[test]
fn indices_of_shards() {
    let config = beginning("models/llama/config.json", usize::MAX);
    let seed = br#"{"metadata": {"total_size": 10000000},
        "weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}"#;
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("config.json"), config).unwrap();
    let read = |bytes: &[u8]| {
        fs::write(folder.path().join("model.safetensors.index.json"), bytes).unwrap();
        Model::read(folder.path(), &ReadOptions::default()).ok()
    };
    survive("indices of shards", Limit::INDEX, &[seed.to_vec()], read, walk);
}

/// Commands and manifests that start engines, with the file of options that a command may name.
#[test]
fn manifests() {
    let folder = fixture("../../planner/serve/tests/manifests");
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_file());
    let mut seeds: Vec<Vec<u8>> = files.map(|path| fs::read(path).unwrap()).collect();
    seeds.sort();
    let read = |bytes: &[u8]| cacheplan_serve::manifest::read("m", bytes).ok();
    seeds.retain(|bytes| read(bytes).is_some());
    assert!(seeds.len() > 15, "{} manifests are read", seeds.len());
    survive("manifests", Limit::MANIFEST, &seeds, read, |launches| {
        for launch in launches {
            let _ = format!("{launch} {launch:?}");
        }
    });
}

/// The headers as `run` reads them.
#[test]
fn weights() {
    let folder = tempfile::tempdir().unwrap();
    let seed = fs::read(fixture("models/llama/model.safetensors")).unwrap();
    let read = |bytes: &[u8]| {
        fs::write(folder.path().join("model.safetensors"), bytes).unwrap();
        Weights::open(folder.path(), DType::F32, &Device::Cpu).ok()
    };
    survive("weights", Limit::SAFETENSORS, &[seed], read, nothing);
}

#[test]
fn gguf_headers() {
    survive("GGUF headers", Limit::GGUF, &seeds("gguf", ".gguf"), a_file("m.gguf", model_of), walk);
}

#[test]
fn onnx_graphs() {
    survive("ONNX graphs", Limit::ONNX, &seeds("onnx", ".onnx"), a_file("m.onnx", model_of), walk);
}

#[test]
fn exported_programs() {
    let is_read = |bytes: &Vec<u8>| model("m.pt2", bytes, &[]).is_some();
    let seeds: Vec<Vec<u8>> = seeds("pt2", ".pt2").into_iter().filter(is_read).collect();
    assert_eq!(seeds.len(), 3);
    survive("exported programs", Limit::PT2, &seeds, a_file("m.pt2", model_of), walk);
}

#[test]
fn budgets() {
    let seed = b"max_seq_len = 8192\nmax_batch_size = 4\n[memory]\nfraction = 0.9\nof = \"free\"\n[dtypes]\nkv = \"fp8\"\n\
                 [workload]\nprompt = { histogram = [[100, 3], [900, 1]] }\noutput = { lognormal = { median = 300 } }\n";
    let llama = model("config.json", &beginning("models/llama/config.json", usize::MAX), &[]).unwrap();
    let read = |bytes: &[u8]| Budget::from_toml(&Source::memory("b", bytes).text(Limit::TOML).ok()?, "mutated").ok();
    // Whatever a budget asks for, a plan or an error comes at once.
    survive("budgets", Limit::TOML, &[seed.to_vec()], read, |budget| {
        let mut graph = llama.graph.clone();
        let Ok(collected) = graph.collect(&budget.pass_context(&llama.info)) else { return };
        let _ = PlanRequest::of((llama.info.clone(), collected.resources.clone())).with_budget(budget.clone()).plan();
    });
}

#[test]
fn histograms() {
    let seed = b"# tokens,weight\n100,3\n900,1\n4000,2\n".to_vec();
    let read = |bytes: &[u8]| {
        let text = Source::memory("h", bytes).text(Limit::HISTOGRAM).ok()?;
        let budget = Budget::from_toml("[workload]\nprompt = { file = \"h\" }\n", "b").ok()?;
        budget.workload.unwrap().load(|_| Ok(text.clone())).ok()
    };
    survive("histograms", Limit::HISTOGRAM, &[seed], read, nothing);
}

#[test]
fn prices() {
    let seed = b"currency = \"USD\"\n[per_hour]\nh100 = 2.5\n\"24GiB\" = 0.3\n".to_vec();
    let read = |bytes: &[u8]| Prices::from_toml(&Source::memory("p", bytes).text(Limit::TOML).ok()?).ok();
    survive("prices", Limit::TOML, &[seed], read, nothing);
}

/// What `calibrate` writes.
#[test]
fn measured() {
    let logs = seeds("logs", ".log");
    let toml =
        |log: &Vec<u8>| Some(MeasuredLedger::from_log(&EngineLog::read(&log[..], None).ok()?, "a.log").ok()?.to_toml());
    let seeds: Vec<Vec<u8>> = logs.iter().filter_map(toml).map(String::into_bytes).collect();
    let read = |bytes: &[u8]| MeasuredLedger::from_toml(&Source::memory("m", bytes).text(Limit::TOML).ok()?, "m").ok();
    survive("measured", Limit::TOML, &seeds, read, |measured| {
        assert!(!measured.to_toml().contains('\u{1b}'));
    });
}

/// What a profile writes.
#[test]
fn measurements() {
    let seed = br#"{"resident_bytes": 123456789, "forward_bytes": 12345678, "free_bytes": 1234567890}"#.to_vec();
    let read = |bytes: &[u8]| Limit::MEASURED.parse_json::<ForwardProfile>(within(bytes, Limit::MEASURED)?).ok();
    survive("measurements", Limit::MEASURED, &[seed], read, nothing);
}

#[test]
fn statistics() {
    let seed = serde_json::to_vec(&CacheBook::new(&small_plan("")).unwrap().stats()).unwrap();
    let read = |bytes: &[u8]| Limit::MEASURED.parse_json::<Stats>(within(bytes, Limit::MEASURED)?).ok();
    survive("statistics", Limit::MEASURED, &[seed], read, |stats| drop((stats.to_string(), stats.prometheus())));
}

/// What is not longer than its limit, as `Source` hands it on.
fn within(bytes: &[u8], limit: Limit) -> Option<&[u8]> {
    (bytes.len() as u64 <= limit.bytes).then_some(bytes)
}

#[test]
fn logs_of_engines() {
    let read = a_file("a.log", |path| {
        let source = Source::open(path).unwrap();
        source.within(Limit::LOG).ok()?;
        EngineLog::read(BufReader::new(source.reader()), None).ok()
    });
    let seeds: Vec<Vec<u8>> = seeds("logs", ".log").into_iter().filter(|log| read(log).is_some()).collect();
    assert!(seeds.len() > 10, "{} logs are read", seeds.len());
    let plan = small_plan("");
    survive("logs", Limit::LOG, &seeds, read, |log| {
        let _ = (log.check(&plan, None), MeasuredLedger::from_log(&log, "a.log"));
    });
}

#[test]
fn traces() {
    let seeds = [include_str!("seeds/ours.jsonl"), include_str!("seeds/mooncake.jsonl")];
    let seeds = seeds.map(|seed| seed.as_bytes().to_vec());
    let read = a_file("t.jsonl", |path| {
        let source = Source::open(path).unwrap();
        source.within(Limit::TRACE).ok()?;
        cacheplan::managers::simulate::TraceRequest::read_trace(BufReader::new(source.reader())).ok()
    });
    survive("traces", Limit::TRACE, &seeds, read, |requests| traces::comes_back_in_our_format(&requests));
}

#[test]
fn plans() {
    let seeds = [
        small_plan("max_batch_size = 2"),
        small_plan("[memory]\nbytes = '64MiB'\n[workload]\ncheckpoints_per_sequence = 1\n[host]\nbytes = '8MiB'"),
    ];
    let seeds = seeds.map(|plan| serde_json::to_vec_pretty(&plan).unwrap());
    let read = |bytes: &[u8]| CachePlan::from_json(&text(within(bytes, Limit::PLAN)?), "mutated").ok();
    survive("plans", Limit::PLAN, &seeds, read, |plan| {
        let shown = plan.table() + &plan.markdown() + &plan.svg() + &plan.yaml();
        assert!(!shown.contains(['\u{1b}', '\u{2028}']), "{shown}");
        for target in Target::all() {
            let serving = Serving { model: Some("m".into()), ..Serving::default() };
            if let Ok(export) = plan.export(target, None, &serving) {
                assert!(!export.text.contains(['\u{1b}', '\u{2028}']), "{}", export.text);
            }
        }
        assert!(CacheBook::new(&plan).is_ok());
    });
}

/// The plans of all stages, which a library may read.
#[test]
fn plans_of_ranks() {
    let model = small_model();
    let budget = Budget::from_toml("max_batch_size = 2\n[parallel]\npp = 2", "b").unwrap();
    let resources = model.graph.clone().collect(&budget.pass_context(&model.info)).unwrap().resources;
    let plans = PlanRequest::of((model.info.clone(), resources.clone())).with_budget(budget.clone()).ranks().unwrap();
    let seed = serde_json::to_vec(&plans).unwrap();
    let read = |bytes: &[u8]| Limit::PLAN.parse_json::<RankPlans>(within(bytes, Limit::PLAN)?).ok();
    survive("plans of ranks", Limit::PLAN, &[seed], read, |plans| {
        plans.stages.iter().for_each(|plan| assert!(CacheBook::new(plan).is_ok()));
    });
}

fn small_model() -> Model {
    Model::read(&fixture("models/nemotron_h/config.json"), &ReadOptions::default()).unwrap()
}

/// A plan of a small hybrid.
fn small_plan(budget: &str) -> CachePlan {
    let model = small_model();
    let budget = Budget::from_toml(budget, "b").unwrap();
    let resources = model.graph.clone().collect(&budget.pass_context(&model.info)).unwrap().resources;
    PlanRequest::of((model.info.clone(), resources.clone())).with_budget(budget.clone()).plan().unwrap()
}

/// What the hub says of a model, by a server on this machine.
#[test]
fn listings() {
    let (config, commit) =
        (beginning("models/llama/config.json", usize::MAX), "0123456789abcdef0123456789abcdef01234567");
    let seed = format!(r#"{{"sha": "{commit}", "x": [null], "siblings": [{{"rfilename": "config.json", "y": 1}}]}}"#);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let listing = Arc::new(Mutex::new(Vec::new()));
    let now = Arc::clone(&listing);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let lines = BufReader::new(&stream).lines().map_while(Result::ok).take_while(|line| !line.is_empty());
            let (mut asked, mut body) = (lines.collect::<Vec<String>>(), config.clone());
            if asked.swap_remove(0).contains("/api/") {
                body.clone_from(&now.lock().unwrap());
            }
            let head = format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", body.len());
            let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&body));
        }
    });
    let hub = Hub::from_variables([("HF_ENDPOINT".into(), address.into()), ("HF_HOME".into(), "/nowhere".into())]);
    let read = |bytes: &[u8]| {
        listing.lock().unwrap().clear();
        listing.lock().unwrap().extend_from_slice(bytes);
        let found = hub.open(Path::new("not-a-folder/model")).ok()??;
        Model::read_sources(&found.beside, &ReadOptions::default()).ok()
    };
    survive("listings", Limit::LISTING, &[seed.into_bytes()], read, walk);
}

#[test]
fn kept_headers() {
    let hub = tempfile::tempdir().unwrap();
    let model = hub.path().join("models--a--b");
    let [headers, snapshot] =
        [".headers", "snapshots"].map(|part| model.join(part).join("0123456789abcdef0123456789abcdef01234567"));
    [&headers, &snapshot].into_iter().for_each(|folder| fs::create_dir_all(folder).unwrap());
    fs::copy(fixture("models/llama/config.json"), snapshot.join("config.json")).unwrap();
    let file = fs::read(fixture("models/llama/model.safetensors")).unwrap();
    let header = &file[..8 + u64::from_le_bytes(*file.first_chunk().unwrap()) as usize];
    let seed = [&(file.len() as u64).to_le_bytes(), header].concat();
    let of_disk = Hub::from_variables([("HF_HUB_CACHE".into(), hub.path().into())]);
    let read = |bytes: &[u8]| {
        fs::write(headers.join("model.safetensors"), bytes).unwrap();
        let found = of_disk.open(&snapshot).ok()??;
        Model::read_sources(&found.beside, &ReadOptions::default()).ok()
    };
    survive("kept headers", Limit::KEPT_HEADER, &[seed], read, walk);
}

/// A limit that is added gets a reader here.
#[test]
fn every_limit_has_a_reader_that_is_tested() {
    let limits = fs::read_to_string(fixture("../../files/src/limits.rs")).unwrap();
    let names = limits.lines().filter_map(|line| line.trim().strip_prefix("pub const ")?.split_once(": Self"));
    let readers = [include_str!("main.rs"), include_str!("texts.rs"), include_str!("graphs.rs")];
    let is_part = |char: char| char.is_alphanumeric() || char == '_';
    let used: BTreeSet<&str> = readers
        .iter()
        .flat_map(|text| text.split("Limit::").skip(1))
        .filter_map(|rest| rest.split(|char| !is_part(char)).next())
        .collect();
    let (tested, missing): (Vec<&str>, Vec<&str>) = names.map(|(name, _)| name).partition(|name| used.contains(name));
    assert!(tested.len() > 10 && missing.is_empty(), "{tested:?} are tested, {missing:?} are not");
}
