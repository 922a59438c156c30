//! The page's answers are the command's numbers, and its server answers nobody else.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use cacheplan::transforms::{Model, ReadOptions};
use cacheplan_web::OpenModels;
use rstest::rstest;
use serde_json::{Value, json};

const COMMAND: &str = env!("CARGO_BIN_EXE_cacheplan");

fn ask(models: &OpenModels, question: &Value, bytes: &[u8]) -> Value {
    serde_json::from_str(&models.answer(&encoded(question, bytes))).unwrap()
}

fn encoded(question: &Value, bytes: &[u8]) -> Vec<u8> {
    let text = question.to_string();
    [&u32::try_from(text.len()).unwrap().to_le_bytes()[..], text.as_bytes(), bytes].concat()
}

#[rstest]
#[case::limits_alone("", "")]
#[case::device("max_seq_len = 32768\n", "h100")]
#[case::ranks("max_seq_len = 8192\n[dtypes]\nkv = 'fp8'\n", "8xh200")]
fn plans_of_the_page_are_those_of_the_command(#[case] budget: &str, #[case] device: &str) {
    let folder = tempfile::tempdir().unwrap();
    let budget_file = folder.path().join("budget.toml");
    fs::write(&budget_file, budget).unwrap();
    let (models, mut compared, mut refused) = (OpenModels::default(), 0, 0);
    for entry in fs::read_dir("../tests/fixtures/configs").unwrap() {
        let path = entry.unwrap().path();
        let text = fs::read(&path).unwrap();
        let mut command = Command::new(COMMAND);
        command.args(["plan", "--format", "json", "--budget"]).arg(&budget_file).arg(&path);
        if !device.is_empty() {
            command.args(["--device-memory", device]);
        }
        let output = command.output().unwrap();
        let file = json!({ "name": path.display().to_string(), "length": text.len(), "slices": [[0, text.len()]] });
        let opened = ask(&models, &json!({ "ask": "open", "files": [file] }), &text);
        let of = json!({ "model": opened["model"], "budget": budget, "device": device });
        let answer = ask(&models, &json!({ "ask": "plan", "of": of }), &[]);
        if output.status.success() {
            let expected: Value = serde_json::from_slice(&output.stdout).unwrap();
            assert_eq!(answer["plan"], expected, "{}", path.display());
            compared += 1;
        } else {
            assert_eq!(answer["error"]["code"], json!(output.status.code().unwrap()), "{}: {answer}", path.display());
            let message = answer["error"]["message"].as_str().unwrap().lines().next().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            // The command's own errors name its flags and the file.
            assert!(
                message.starts_with("the budget") || said.contains(message),
                "{}: {message}\n{said}",
                path.display()
            );
            refused += 1;
        }
    }
    assert!(compared >= 20 && compared + refused >= 73, "{compared} compared, {refused} refused");
}

#[test]
fn what_else_is_asked_is_what_the_command_says() {
    let path = "../tests/fixtures/configs/nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16.json";
    let budget = "max_seq_len = 32768\n";
    let said = |arguments: &[&str]| {
        let output = Command::new(COMMAND).args(arguments).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    let models = OpenModels::with_disk(Vec::new(), |path| {
        Model::read(Path::new(path), &ReadOptions::default()).map_err(|error| (1, error.to_string()))
    });
    let opened = ask(&models, &json!({ "ask": "open_path", "path": path }), &[]);
    let of = json!({ "model": opened["model"], "budget": budget, "device": "h100" });
    let device = ["--device-memory", "h100", "--max-seq-len", "32768", "--format", "json"];

    let curves = ask(&models, &json!({ "ask": "curves", "of": of, "contexts": [32768] }), &[]);
    let compared = said(&[&["compare", path], &device[..]].concat());
    for (engine, expected) in curves["curves"]["engines"].as_array().unwrap().iter().zip(compared.as_array().unwrap()) {
        assert_eq!(&engine["row"], expected);
        assert_eq!(engine["points"][0]["sequences"], expected["engine_sequences"]);
    }
    let explained = ask(&models, &json!({ "ask": "explain", "of": of, "subject": "kv_cache_5" }), &[]);
    assert_eq!(explained["derivation"], said(&[&["plan", "explain", path, "kv_cache_5"], &device[..]].concat()));

    for format in ["svg", "html"] {
        let file = ask(&models, &json!({ "ask": "file", "of": of, "format": format }), &[]);
        let flags = ["plan", path, "--device-memory", "h100", "--max-seq-len", "32768", "--format", format];
        let output = Command::new(COMMAND).args(flags).output().unwrap();
        assert_eq!(file["text"], String::from_utf8(output.stdout).unwrap());
    }
    // Pictures of the page are elements, whose markup is in the files.
    let planned = ask(&models, &json!({ "ask": "plan", "of": of, "into": ["kv_paged.0"], "width": 700 }), &[]);
    assert_eq!(planned["pictures"]["path"][2][0], "kv_paged.0");
    assert_eq!(planned["pictures"]["map"]["tag"], "svg");

    let asked = json!({ "ask": "fit", "model": opened["model"], "context": 32768, "sequences": 32, "devices": ["h100", "b200"], "max_devices": 2 });
    // By the planner's own pools, and where nobody says whose, by the engine that is usual.
    for by in [Some("plan"), None] {
        let mut fit =
            vec!["fit", path, "--context", "32k", "--sequences", "32", "--gpus", "h100,b200", "--max-gpus", "2"];
        fit.extend(["--format", "json"]);
        fit.extend(by.into_iter().flat_map(|by| ["--as", by]));
        let mut asked = asked.clone();
        asked["as"] = json!(by);
        assert_eq!(ask(&models, &asked, &[])["answer"], said(&fit), "{by:?}");
    }
    // By an engine's rules, of weights that are typed beside what others take.
    let budget = "max_seq_len = 32768\n[memory]\nweights = '40GiB'\nreserve = '8GiB'\n";
    let mut by_engine = asked;
    let more = json!({ "as": "vllm", "budget": budget, "devices": ["h100"], "max_devices": 1 });
    by_engine.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let flags = ["--context", "32k", "--sequences", "32", "--gpus", "h100", "--max-gpus", "1", "--format", "json"];
    let stated = ["fit", path, "--as", "vllm", "--weights", "40GiB", "--reserve", "8GiB"];
    let answer = ask(&models, &by_engine, &[]);
    assert_eq!(answer["answer"], said(&[&stated[..], &flags[..]].concat()), "{}", answer["error"]);
}

const HYBRID: &str = "../tests/fixtures/configs/Qwen__Qwen3-Next-80B-A3B-Thinking.json";
const GEMMA: &str = "../tests/fixtures/configs/google__gemma-3-1b-it.json";

fn by_disk() -> OpenModels {
    OpenModels::with_disk(Vec::new(), |path| {
        Model::read(Path::new(path), &ReadOptions::default()).map_err(|error| (1, error.to_string()))
    })
}

/// What engines hold of a model by the page.
fn admits(path: &str, more: &Value, people: u64) -> Value {
    let models = by_disk();
    let opened = ask(&models, &json!({ "ask": "open_path", "path": path }), &[]);
    let mut of = json!({ "model": opened["model"] });
    of.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let prices = json!({ "currency": "$", "per_hour": { "h200": 3.5 } });
    ask(&models, &json!({ "ask": "admits", "of": of, "people": people, "prices": prices }), &[])
}

/// With weights as they are, and of fewer bits: the engine makes them itself, or is to be given others.
#[rstest]
#[case::as_stored(2, "vllm", None, "MODEL --tensor-parallel-size 2 --max-model-len")]
#[case::made_by_the_engine(1, "vllm", Some("fp8"), "MODEL --quantization fp8 --max-model-len")]
#[case::also_by_another(1, "sglang", Some("fp8"), "MODEL --quantization fp8 --context-length")]
#[case::of_a_checkpoint(1, "vllm", Some("int4"), "CHECKPOINT --max-model-len")]
#[case::of_a_file(1, "llama.cpp", Some("Q4_K_M"), "-m MODEL.gguf -ngl 99 --ctx-size")]
fn engines_of_the_page_are_asked_as_fit_asks_them(
    #[case] devices: usize,
    #[case] engine: &str,
    #[case] weights: Option<&str>,
    #[case] words: &str,
) {
    let device = format!("{devices}xh200");
    let asked = json!({ "budget": "max_seq_len = 32768\n", "device": device, "weights": weights });
    let found = admits(HYBRID, &asked, 100);
    let row = found["engines"].as_array().unwrap().iter().find(|row| row["engine"] == engine).unwrap();
    let count = devices.to_string();
    let mut fit = vec!["fit", HYBRID, "--as", engine, "--context", "32k", "--sequences", "100", "--gpus", "h200"];
    fit.extend(["--max-gpus", &count, "--format", "json", "--price", "h200=$3.5"]);
    fit.extend(weights.into_iter().flat_map(|weights| ["--weights", weights]));
    let said: Value = serde_json::from_slice(&Command::new(COMMAND).args(&fit).output().unwrap().stdout).unwrap();
    let is_plain = |fit: &&Value| {
        fit["devices"] == json!(devices) && fit["parallel"]["tp"] == json!(devices) && fit["parallel"]["ep"] == 1
    };
    let mut fits = said["fits"].as_array().unwrap().iter().filter(is_plain);
    let fit = fits.find(|fit| fit["kv_dtype"].is_null() && fit["state_dtype"].is_null()).unwrap();
    assert_eq!(json!([row["sequences"]["low"], row["sequences"]["high"]]), fit["sequences_between"], "{row}");
    for key in ["at_best", "per_hour", "devices"] {
        assert_eq!(row[key], fit[key], "{row}");
    }
    assert_eq!((&row["capped_by"], &row["caches"]), (&json!("memory"), &fit["capped_by_words"]), "{row}");
    let command = row["command"].as_str().unwrap();
    // As many as it surely holds, or as are asked for where it may, and where it takes cells for all that it is told.
    let [low, high] = ["low", "high"].map(|end| row["sequences"][end].as_u64().unwrap());
    let told = if (low..=high).contains(&100) || engine == "llama.cpp" { 100 } else { low };
    assert!(command.contains(words) && command.ends_with(&format!(" {told}")), "{command}");
    assert_eq!(row["others"].is_null(), !matches!(weights, Some("int4" | "Q4_K_M")), "{row}");
}

/// Where nobody names an engine it is that which `fit` asks.
#[rstest]
#[case::a_checkpoint("h200", None, "vllm")]
#[case::a_gguf_file("h200", Some("Q4_K_M"), "llama.cpp")]
#[case::memory_that_processors_share("m4-max-128gb", None, "llama.cpp")]
fn the_usual_engine_answers_where_none_is_named(
    #[case] device: &str,
    #[case] weights: Option<&str>,
    #[case] engine: &str,
) {
    let models = by_disk();
    let path = "../tests/fixtures/configs/Qwen__Qwen3-8B.json";
    let opened = ask(&models, &json!({ "ask": "open_path", "path": path }), &[]);
    let of = json!({ "model": opened["model"], "budget": "max_seq_len = 8192", "device": device, "weights": weights });
    let found = ask(&models, &json!({ "ask": "admits", "of": of, "people": 1, "as": "" }), &[]);
    let engines: Vec<&Value> = found["engines"].as_array().unwrap().iter().map(|row| &row["engine"]).collect();
    assert_eq!((engines, &found["usual"]), (vec![&json!(engine)], &json!(engine)), "{found}");
    let mut fit = vec!["fit", path, "--context", "8k", "--sequences", "1", "--gpus", device, "--max-gpus", "1"];
    fit.extend(["--format", "json"]);
    fit.extend(weights.into_iter().flat_map(|weights| ["--weights", weights]));
    let said: Value = serde_json::from_slice(&Command::new(COMMAND).args(&fit).output().unwrap().stdout).unwrap();
    assert!(said["fits"][0]["engine"].as_str().unwrap().starts_with(engine), "{said}");
}

/// What is left to others is said beside a command; what no shortest command says is named.
#[test]
fn engines_are_asked_beside_a_reserve_or_it_is_said_why_not() {
    let held = |budget: &str| {
        let found = admits(HYBRID, &json!({ "budget": budget, "device": "2xh200" }), 100);
        let low = found["engines"].get(0).map(|row| row["sequences"]["low"].as_u64().unwrap());
        (low, found["unasked"].to_string())
    };
    let (all, _) = held("max_seq_len = 32768\n");
    let (left, _) = held("max_seq_len = 32768\n[memory]\nreserve = '20GiB'\n");
    assert!(left.unwrap() < all.unwrap(), "{left:?} {all:?}");
    let (none, why) = held("max_seq_len = 32768\n[speculation]\ndraft_tokens = 4\n");
    assert!(none.is_none() && why.contains("speculation.draft_tokens"), "{why}");
}

/// Where the planner's own pools do not fit an engine may start all the same.
#[test]
fn engines_answer_what_the_planner_refuses() {
    let path = "../tests/fixtures/configs/Qwen__Qwen3-8B.json";
    let asked = json!({ "budget": "max_seq_len = 32768\n[memory]\nreserve = '1.5GiB'\n", "device": "rtx-4090" });
    let models = by_disk();
    let opened = ask(&models, &json!({ "ask": "open_path", "path": path }), &[]);
    let of = json!({ "model": opened["model"], "budget": asked["budget"], "device": "rtx-4090" });
    assert_eq!(ask(&models, &json!({ "ask": "plan", "of": of }), &[])["error"]["code"], 3);
    let found = admits(path, &asked, 1);
    let row = found["engines"].as_array().unwrap().iter().find(|row| row["engine"] == "llama.cpp").unwrap();
    assert_eq!(row["sequences"], json!({ "low": 1, "high": 1 }), "{found}");
    assert!(row["command"].as_str().unwrap().contains("-m MODEL.gguf -ngl 99 --ctx-size 32768 --parallel 1"), "{row}");
}

#[test]
fn typed_weights_stand_above_those_of_chosen_bits() {
    let models = by_disk();
    let plan = |path: &str, budget: &str, weights: Option<&str>| {
        let opened = ask(&models, &json!({ "ask": "open_path", "path": path }), &[]);
        let of = json!({ "model": opened["model"], "budget": budget, "device": "rtx-4090", "weights": weights });
        ask(&models, &json!({ "ask": "plan", "of": of }), &[])
    };
    let (typed, path) =
        ("max_seq_len = 8192\n[memory]\nweights = '5GB'\n", "../tests/fixtures/configs/Qwen__Qwen3-8B.json");
    let both = plan(path, typed, Some("int4"));
    assert_eq!((&both["plan"], &both["weights_typed"]), (&plan(path, typed, None)["plan"], &json!("5GB")));
    let chosen = plan(path, "max_seq_len = 8192\n", Some("int4"));
    assert!(chosen["plan"] != both["plan"] && chosen["weights_typed"].is_null(), "{}", chosen["weights_typed"]);
    // Of a model whose own are not known it is said what is not, and what would do; that does.
    let error = plan(GEMMA, "max_seq_len = 8192\n", Some("int4"))["error"].clone();
    let why = error["message"].as_str().unwrap();
    assert!(error["code"] == 2 && why.contains("is not known") && why.contains("memory.weights"), "{error}");
    assert!(plan(GEMMA, "max_seq_len = 8192\n[memory]\nweights = '2GB'\n", Some("int4"))["plan"].is_object());
}

#[test]
fn prices_are_taken_as_the_command_takes_them() {
    let typed = |text: &str| {
        let asked = json!({ "ask": "prices", "text": text, "stated": "h100=$2", "device": "h200" });
        ask(&OpenModels::default(), &asked, &[])
    };
    assert_eq!(typed("$3.50")["prices"], "h100=$2 h200=$3.5");
    assert_eq!(typed("h100=$2.50, h200=$3.50")["prices"], "h100=$2.5 h200=$3.5");
    let error = typed("h200=2.5/h")["error"].clone();
    let output = Command::new(COMMAND).args(["fit", HYBRID, "--price", "h200=2.5/h"]).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(error["code"].as_i64(), output.status.code().map(i64::from));
    assert!(said.contains(error["message"].as_str().unwrap()), "{error}\n{said}");
}

/// A workload that the command knows, and the text of a trace behind the question.
#[test]
fn tiers_of_the_page_are_those_of_the_command() {
    let path = "../tests/fixtures/configs/Qwen__Qwen3-0.6B.json";
    let budget = "max_seq_len = 16384\n[memory]\nbytes = '3GiB'\nweights = '1GiB'\n";
    let line = |at: usize| {
        let ids: Vec<usize> = (at % 4 * 20..at % 4 * 20 + 15).chain([1000 + at]).collect();
        format!("{{\"timestamp\": {at}, \"input_length\": 8000, \"output_length\": 10, \"hash_ids\": {ids:?}}}\n")
    };
    let trace: String = (0..16).map(line).collect();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("trace.jsonl");
    fs::write(&file, &trace).unwrap();
    let models = OpenModels::with_disk(Vec::new(), |path| {
        Model::read(Path::new(path), &ReadOptions::default()).map_err(|error| (1, error.to_string()))
    });
    let opened = ask(&models, &json!({ "ask": "open_path", "path": path }), &[]);
    let of = json!({ "model": opened["model"], "budget": budget, "device": "l4" });
    let asked = json!({ "host": "16GiB", "target_hit": 0.7, "running": 1 });
    let page = |more: Value, bytes: &[u8]| {
        let mut question = json!({ "ask": "tiers", "of": of, "asked": asked });
        question.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        ask(&models, &question, bytes)
    };
    let plan =
        ["tiers", path, "--device", "l4", "--max-seq-len", "16384", "--memory-bytes", "3GiB", "--weights", "1GiB"];
    let flags = ["--host", "16GiB", "--target-hit", "0.7", "--running", "1", "--json", "--trace"];
    let output = Command::new(COMMAND).args(plan).args(flags).arg(&file).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let expected: Value = serde_json::from_slice(&output.stdout).unwrap();
    let answer = page(json!({ "trace": file.display().to_string() }), trace.as_bytes());
    assert_eq!(answer["told"], expected, "{answer}");
    assert_eq!((&answer["drawn"]["picture"]["tag"], &answer["out_of_reach"]), (&json!("svg"), &Value::Null));
    assert!(answer["table"].as_str().unwrap().starts_with("TRACE"));
    for (wrong, bytes, code, said) in [
        (json!({ "trace": "t" }), &b"{\"hash_ids\": 1}"[..], 1, "t: trace line 1"),
        (json!({ "trace": "t" }), b"\n", 1, "t: the trace holds no request"),
        (json!({}), b"", 2, "either a workload or a trace"),
        (json!({ "workload": "chat", "asked": { "host": "0" } }), b"", 2, "`host` is 0 bytes"),
        (json!({ "workload": "chat", "asked": { "hots": "1GiB" } }), b"", 2, "`hots`: unknown field"),
        (json!({ "workload": "chat", "asked": { "host": "much" } }), b"", 2, "`host`: `much` is not a byte size"),
        (json!({ "trace": "t" }), &vec![b' '; (16 << 20) + 1], 2, "16777216 at most"),
    ] {
        let refused = page(wrong, bytes);
        let error = &refused["error"];
        assert!(error["code"] == json!(code) && error["message"].as_str().unwrap().contains(said), "{said}: {refused}");
    }
}

#[test]
fn a_page_elsewhere_reads_no_disk() {
    let answer = ask(&OpenModels::default(), &json!({ "ask": "open_path", "path": "/etc/hostname" }), &[]);
    assert_eq!(answer["error"]["code"], json!(2));
}

#[rstest]
#[case::nothing(b"")]
#[case::too_short(b"\xff\0\0\0{}")]
#[case::too_long(b"\xff\xff\xff\xff")]
#[case::no_json(b"\x01\0\0\0{")]
#[case::unknown(b"\x0c\0\0\0{\"ask\":\"no\"}")]
fn what_is_no_question_is_an_error(#[case] question: &[u8]) {
    let answer: Value = serde_json::from_str(&OpenModels::default().answer(question)).unwrap();
    assert_eq!(answer["error"]["code"], json!(2), "{answer}");
}

struct Serving {
    child: Child,
    port: String,
    token: String,
}

impl Serving {
    fn start() -> Self {
        let mut command = Command::new(COMMAND);
        command.args(["web", "--port", "0"]).env("HF_HUB_CACHE", "/nowhere").stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut address = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut address).unwrap();
        let (port, token) = address.trim().strip_prefix("http://127.0.0.1:").unwrap().split_once("/#token=").unwrap();
        Self { child, port: port.to_owned(), token: token.to_owned() }
    }

    /// Sends a request with these headers, in which `PORT` and `TOKEN` stand for what they are.
    fn send(&self, request: &str, headers: &str, body: &[u8]) -> String {
        let headers = headers.replace("PORT", &self.port).replace("TOKEN", &self.token);
        let mut stream = TcpStream::connect(format!("127.0.0.1:{}", self.port)).unwrap();
        let head = format!("{request} HTTP/1.1\r\n{headers}Content-Length: {}\r\n\r\n", body.len());
        stream.write_all(&[head.as_bytes(), body].concat()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

#[test]
fn the_server_answers_its_own_page_and_nobody_else() {
    let server = Serving::start();
    let status = |request: &str, headers: &str| {
        let answer = server.send(request, headers, &encoded(&json!({ "ask": "choices" }), &[]));
        answer.split(' ').nth(1).unwrap().to_owned()
    };
    const OWN: &str = "Host: 127.0.0.1:PORT\r\n";
    const TOKEN: &str = "Host: 127.0.0.1:PORT\r\nX-Cacheplan-Token: TOKEN\r\n";
    for (request, headers, expected) in [
        ("POST /ask", TOKEN.to_owned(), "200"),
        ("POST /ask", format!("{TOKEN}Origin: http://127.0.0.1:PORT\r\n"), "200"),
        ("POST /ask", OWN.to_owned(), "403"),
        ("POST /ask", format!("{OWN}X-Cacheplan-Token: TOKENx\r\n"), "403"),
        ("POST /ask", format!("{OWN}X-Cacheplan-Token: \r\n"), "403"),
        ("POST /ask", format!("{TOKEN}Origin: http://evil.example\r\n"), "403"),
        ("POST /ask", format!("{TOKEN}Origin: null\r\n"), "403"),
        ("POST /ask", format!("{TOKEN}Origin: http://localhost:PORT\r\n"), "403"),
        ("POST /ask", TOKEN.replace("127.0.0.1:PORT", "evil.example:PORT"), "403"),
        ("POST /ask", TOKEN.replace(":PORT", ""), "403"),
        ("POST /ask", format!("{TOKEN}Transfer-Encoding: chunked\r\n"), "411"),
        ("OPTIONS /ask", TOKEN.to_owned(), "405"),
        ("GET /", OWN.to_owned(), "200"),
        ("GET /../Cargo.toml", OWN.to_owned(), "404"),
        ("GET /", "Host: evil.example\r\n".to_owned(), "403"),
        ("GET /", String::new(), "400"),
    ] {
        assert_eq!(status(request, &headers), expected, "{request} {headers}");
    }
    let page = server.send("GET /", OWN, b"");
    assert!(page.contains("Content-Security-Policy: default-src 'none'; script-src 'self';"), "{page}");
    assert!(page.contains("name=\"planner\" content=\"http\""), "{page}");
    assert!(!page.contains("Access-Control") && !page.contains(&server.token), "{page}");
}

#[test]
fn the_page_asks_nobody_but_the_hub() {
    for entry in fs::read_dir("web/dist").unwrap() {
        let path = entry.unwrap().path();
        let kept = ["zoo.json", "planner.wasm"].iter().any(|name| path.ends_with(Path::new(name)));
        let text = fs::read(&path).unwrap();
        let text = String::from_utf8_lossy(&text);
        // The names of namespaces are no addresses; the hub's are in one file, and in the policy that allows them.
        let hub =
            ["http://www.w3.org/2000/svg", "https://huggingface.co", "https://*.huggingface.co", "https://*.hf.co"];
        let addresses = hub.iter().fold(text.to_string(), |text, address| text.replace(address, ""));
        assert!(kept || !addresses.contains("http://") && !addresses.contains("https://"), "{}", path.display());
        assert!(kept || !text.contains("innerHTML") && !text.contains("eval("), "{}", path.display());
    }
}
