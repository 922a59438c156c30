//! Models by their names on the hub: as its own tools have put them on this disk, and fetched where they are not there.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const CONFIG: &str = "../tests/fixtures/configs/Qwen__Qwen3-0.6B.json";
const COMMIT: &str = "c1899de289a04d12100db370d81485cdf75e47ca";
const NAME: &str = "Qwen/Qwen3-0.6B";

/// Runs the command with a hub at an address that nobody listens at, unless it is given.
fn cacheplan(args: &[&str], home: &Path, hub: Option<&str>) -> Output {
    let mut run = Command::new(env!("CARGO_BIN_EXE_cacheplan"));
    run.args(args).env("HF_HOME", home).env("HF_ENDPOINT", hub.unwrap_or("http://127.0.0.1:1"));
    for name in ["HF_HUB_CACHE", "HF_TOKEN", "HF_HUB_OFFLINE", "RUST_BACKTRACE"] {
        run.env_remove(name);
    }
    run.output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap().replace("\n  │ ", "")
}

/// A plan without where it was read.
/// The plan without what says where its model was read.
fn without_place(output: &Output) -> String {
    let plan = String::from_utf8(output.stdout.clone()).unwrap();
    let says_where = |line: &str| line.starts_with("    \"revision\"") || line.starts_with("    \"name\"");
    plan.lines().filter(|line| !says_where(line)).map(|line| line.to_owned() + "\n").collect()
}

/// As `huggingface_hub` lays it out: files of a snapshot are links to blobs.
#[cfg(unix)]
#[test]
fn a_model_of_the_hubs_cache_is_planned_by_its_name_and_nobody_is_asked() {
    let home = tempfile::tempdir().unwrap();
    let model = home.path().join("hub/models--Qwen--Qwen3-0.6B");
    let snapshot = model.join("snapshots").join(COMMIT);
    for folder in [model.join("refs"), model.join("blobs"), snapshot.clone()] {
        fs::create_dir_all(folder).unwrap();
    }
    fs::write(model.join("refs/main"), COMMIT).unwrap();
    fs::copy(CONFIG, model.join("blobs/a")).unwrap();
    std::os::unix::fs::symlink("../../blobs/a", snapshot.join("config.json")).unwrap();
    let by_path = cacheplan(&["plan", CONFIG, "--format", "json"], home.path(), None);
    assert!(by_path.status.success());
    for name in [NAME, "Qwen/Qwen3-0.6B@main", &format!("{NAME}@{COMMIT}")] {
        let by_name = cacheplan(&["plan", name, "--format", "json"], home.path(), None);
        assert!(by_name.status.success(), "{}", stderr(&by_name));
        assert_eq!(without_place(&by_name), without_place(&by_path), "{name}");
        let plan = String::from_utf8(by_name.stdout).unwrap();
        assert!(plan.contains(&format!("\"revision\": \"{NAME}@{COMMIT}\"")), "{name}");
        assert!(plan.contains(&format!("\"name\": \"{NAME}\"")), "{name}");
    }
}

/// Weights of one embedding and a norm for each layer, of which only the header is ever sent.
fn header() -> (Vec<u8>, u64) {
    let tensor = |name: &str, shape: &str, from: u64, bytes: u64| {
        let to = from + bytes;
        format!("\"{name}\": {{\"dtype\": \"BF16\", \"shape\": {shape}, \"data_offsets\": [{from}, {to}]}}")
    };
    let embedding = 151_936 * 1024 * 2;
    let mut tensors = vec![tensor("model.embed_tokens.weight", "[151936, 1024]", 0, embedding)];
    tensors.extend((0..28).map(|layer| {
        let name = format!("model.layers.{layer}.input_layernorm.weight");
        tensor(&name, "[1024]", embedding + layer * 2048, 2048)
    }));
    let text = format!("{{{}}}", tensors.join(", "));
    let bytes = [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat();
    let len = bytes.len() as u64 + embedding + 28 * 2048;
    (bytes, len)
}

/// A hub with that model, until the test ends; how often it was asked.
fn serve() -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            count.fetch_add(1, Ordering::SeqCst);
            answer(stream);
        }
    });
    (address, asked)
}

fn answer(mut stream: TcpStream) {
    let mut lines = BufReader::new(&stream).lines().map_while(Result::ok).take_while(|line| !line.is_empty());
    let first = lines.next().unwrap_or_default();
    let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
    let range = lines.find_map(|line| line.to_lowercase().strip_prefix("range: bytes=").map(str::to_owned));
    let (status, headers, body) = if path == format!("/api/models/{NAME}/revision/main") {
        let listing = format!(
            "{{\"sha\": \"{COMMIT}\", \"siblings\": [{{\"rfilename\": \"config.json\"}}, {{\"rfilename\": \
             \"model.safetensors\"}}]}}"
        );
        ("200 OK", String::new(), listing.into_bytes())
    } else if path.ends_with("/config.json") {
        ("200 OK", String::new(), fs::read(CONFIG).unwrap())
    } else if let (true, Some(range)) = (path.ends_with("/model.safetensors"), range) {
        let (header, len) = header();
        let (from, to) = range.split_once('-').unwrap();
        let (from, to): (usize, u64) = (from.parse().unwrap(), to.parse().unwrap());
        let to = to.min(len - 1);
        let body: Vec<u8> = (from..=to as usize).map(|at| header.get(at).copied().unwrap_or(0)).collect();
        ("206 Partial Content", format!("Content-Range: bytes {from}-{to}/{len}\r\n"), body)
    } else {
        ("404 Not Found", String::new(), Vec::new())
    };
    let head = format!("HTTP/1.1 {status}\r\nConnection: close\r\n{headers}Content-Length: {}\r\n\r\n", body.len());
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&body));
}

#[test]
fn a_model_is_fetched_and_planned_alike_when_nobody_can_be_asked_any_more() {
    let (home, (hub, asked)) = (tempfile::tempdir().unwrap(), serve());
    let plan = ["plan", NAME, "--format", "json", "--device-memory", "24GiB"];
    let fetched = cacheplan(&plan, home.path(), Some(&hub));
    assert!(fetched.status.success(), "{}", stderr(&fetched));
    assert!(stderr(&fetched).contains(&format!("{NAME}@{COMMIT} was fetched: its description, no weights")));
    let json = String::from_utf8(fetched.stdout.clone()).unwrap();
    assert!(json.contains(&format!("\"revision\": \"{NAME}@{COMMIT}\"")));
    let bytes = 151_936 * 1024 * 2 + 28 * 2048;
    assert!(
        json.contains(&format!("\"bytes\": {bytes},\n      \"exact\": true")),
        "the header tells the weights' size"
    );

    let times = asked.load(Ordering::SeqCst);
    for hub in [Some(&*hub), None] {
        let found = cacheplan(&plan, home.path(), hub);
        assert_eq!(found.stdout, fetched.stdout, "{}", stderr(&found));
    }
    assert_eq!(asked.load(Ordering::SeqCst), times);
    let table = cacheplan(&["plan", NAME], home.path(), None);
    let table = String::from_utf8(table.stdout).unwrap();
    let read_at = table.lines().find_map(|line| line.strip_prefix("READ AT")).map(str::trim);
    assert_eq!(read_at, Some(&*format!("{NAME}@{COMMIT}")));
}

#[test]
fn weights_are_never_fetched() {
    let (home, (hub, asked)) = (tempfile::tempdir().unwrap(), serve());
    let graphs = ["export-graph", NAME, "--max-cache-len", "8", "--out", "nowhere"];
    for command in [&["run", NAME, "--prompt-ids", "1"][..], &["profile", NAME], &graphs] {
        let output = cacheplan(command, home.path(), Some(&hub));
        assert_eq!(output.status.code(), Some(1));
        let message = stderr(&output);
        assert!(
            message.contains("no such model in") && message.contains(&format!("`hf download {NAME}`")),
            "{message}"
        );
    }
    assert_eq!(asked.load(Ordering::SeqCst), 0);
    // A plan has fetched the config since.
    assert!(cacheplan(&["plan", NAME], home.path(), Some(&hub)).status.success());
    let output = cacheplan(&["run", NAME, "--prompt-ids", "1"], home.path(), Some(&hub));
    assert!(stderr(&output).contains(&format!("`hf download {NAME} --revision {COMMIT}`")), "{}", stderr(&output));
}

#[test]
fn a_mistyped_path_asks_nobody() {
    let (home, (hub, asked)) = (tempfile::tempdir().unwrap(), serve());
    let output = cacheplan(&["plan", "tests/fixture"], home.path(), Some(&hub));
    assert!(stderr(&output).contains("tests/fixture: there is no such file or folder"), "{}", stderr(&output));
    assert_eq!(asked.load(Ordering::SeqCst), 0);
}
