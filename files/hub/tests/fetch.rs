//! Descriptions are fetched from a small server on this machine that speaks as the hub does, faults included.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};

use cacheplan_hub::{Description, Hub, HubError};
use rstest::rstest;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

const COMMIT: &str = "c1899de289a04d12100db370d81485cdf75e47ca";
/// What git calls the config's content.
const BLOB: &str = "0123456789abcdef0123456789abcdef01234567";
const CONFIG: &str = "{\"model_type\": \"llama\"}";
/// A file of weights: a header, and so many bytes that nobody may read them.
const WEIGHTS: u64 = 1 << 40;
const CERTIFICATE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/localhost.pem");

/// What a request asks for.
struct Asked {
    path: String,
    headers: BTreeMap<String, String>,
}

/// What the server does instead of answering as it should.
type Answer = dyn Fn(&Asked, &mut TcpStream) -> bool + Send + Sync;

/// A server, and what it was asked.
struct Server {
    address: String,
    asked: Arc<Mutex<Vec<Arc<Asked>>>>,
}

impl Server {
    /// A hub with one model, `a/b`, which answers as it should where `otherwise` does not answer.
    fn start(otherwise: impl Fn(&Asked, &mut TcpStream) -> bool + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (log, otherwise): (_, Arc<Answer>) = (Arc::clone(&asked), Arc::new(otherwise));
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (log, otherwise) = (Arc::clone(&log), Arc::clone(&otherwise));
                std::thread::spawn(move || {
                    let mut stream = stream;
                    let Some(asked) = read_request(&stream).map(Arc::new) else { return };
                    log.lock().unwrap().push(Arc::clone(&asked));
                    if !otherwise(&asked, &mut stream) {
                        as_it_should(&asked, &mut stream);
                    }
                });
            }
        });
        Self { address, asked }
    }

    fn paths(&self) -> Vec<String> {
        self.asked.lock().unwrap().iter().map(|asked| asked.path.clone()).collect()
    }

    fn hub(&self, cache: &Path, more: &[(&str, &str)]) -> Hub {
        let mut variables: Vec<(OsString, OsString)> =
            vec![("HF_ENDPOINT".into(), self.address.clone().into()), ("HF_HOME".into(), cache.into())];
        variables.extend(more.iter().map(|(name, value)| (OsString::from(name), OsString::from(value))));
        Hub::from_variables(variables)
    }
}

fn read_request(stream: &TcpStream) -> Option<Asked> {
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    let path = lines.next()?.split(' ').nth(1)?.to_owned();
    let headers = lines.take_while(|line| !line.is_empty());
    let headers = headers.filter_map(|line| {
        let (name, value) = line.split_once(": ")?;
        Some((name.to_ascii_lowercase(), value.to_owned()))
    });
    Some(Asked { path, headers: headers.collect() })
}

fn reply(stream: &mut TcpStream, status: &str, headers: &[(&str, &str)], body: &[u8]) -> bool {
    let mut head = format!("HTTP/1.1 {status}\r\nConnection: close\r\n");
    if !headers.iter().any(|(name, _)| *name == "Content-Length") {
        head += &format!("Content-Length: {}\r\n", body.len());
    }
    headers.iter().for_each(|(name, value)| head += &format!("{name}: {value}\r\n"));
    // Whoever hangs up has read enough.
    let _ = stream.write_all((head + "\r\n").as_bytes()).and_then(|()| stream.write_all(body));
    true
}

/// 70,000 bytes of a header, so that more than the first piece is needed.
fn header() -> Vec<u8> {
    let text = format!("{{\"__metadata__\": {{\"a\": \"{}\"}}}}", "x".repeat(70_000));
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

fn as_it_should(asked: &Asked, stream: &mut TcpStream) {
    let files = ["README.md", "config.json", "model.safetensors", "consolidated.safetensors", "x/q.gguf"];
    let resolved = format!("/a/b/resolve/{COMMIT}/");
    match asked.path.as_str() {
        "/api/models/a/b/revision/main" | "/api/models/a/b/revision/refs%2Fpr%2F1" => {
            let files: Vec<String> = files.iter().map(|file| format!("{{\"rfilename\": \"{file}\"}}")).collect();
            let listing = format!("{{\"sha\": \"{COMMIT}\", \"siblings\": [{}]}}", files.join(","));
            reply(stream, "200 OK", &[], listing.as_bytes());
        }
        path if path == format!("{resolved}config.json") => {
            let to = [("Location", "/moved/config.json"), ("X-Linked-Etag", &format!("\"{BLOB}\""))];
            reply(stream, "307 Temporary Redirect", &to, b"");
        }
        "/moved/config.json" => drop(reply(stream, "200 OK", &[("ETag", "\"other\"")], CONFIG.as_bytes())),
        path if path.starts_with(&resolved) && path.ends_with(".safetensors") || path.ends_with(".gguf") => {
            let (from, to) = range(asked);
            let header = header();
            let last = to.min(WEIGHTS - 1);
            let bytes: Vec<u8> = (from..=last).map(|at| header.get(at as usize).copied().unwrap_or(0)).collect();
            let range = format!("bytes {from}-{last}/{WEIGHTS}");
            reply(stream, "206 Partial Content", &[("Content-Range", &range)], &bytes);
        }
        _ => drop(reply(stream, "404 Not Found", &[("X-Error-Code", "RepoNotFound")], b"")),
    }
}

fn range(asked: &Asked) -> (u64, u64) {
    let (from, to) = asked.headers["range"].strip_prefix("bytes=").unwrap().split_once('-').unwrap();
    (from.parse().unwrap(), to.parse().unwrap())
}

fn open(hub: &Hub, name: &str) -> Result<Description, HubError> {
    hub.open(Path::new(name)).map(|found| found.expect("this is a name of the hub"))
}

fn listing(asked: &Asked) -> bool {
    asked.path.starts_with("/api/")
}

#[test]
fn a_model_is_fetched_once_and_then_found() {
    let (server, cache) = (Server::start(|_, _| false), tempfile::tempdir().unwrap());
    let hub = server.hub(cache.path(), &[]);
    let fetched = open(&hub, "a/b").unwrap();
    assert_eq!(fetched.revision, format!("a/b@{COMMIT}"));
    assert!(fetched.is_fetched() && fetched.file.is_none());
    let lengths = |description: &Description| -> BTreeMap<String, u64> {
        description.beside.iter().map(|file| (file.name().rsplit('/').next().unwrap().to_owned(), file.len())).collect()
    };
    let expected = [("config.json".to_owned(), CONFIG.len() as u64), ("model.safetensors".to_owned(), WEIGHTS)].into();
    assert_eq!(lengths(&fetched), expected);
    fetched.keep().unwrap();

    // As the hub's own tools lay it out: the name leads to the commit, the commit's file to its content.
    let model = cache.path().join("hub/models--a--b");
    let snapshot = model.join("snapshots").join(COMMIT);
    assert_eq!(fs::read_to_string(model.join("refs/main")).unwrap(), COMMIT);
    assert_eq!(fs::read_to_string(model.join("blobs").join(BLOB)).unwrap(), CONFIG);
    assert_eq!(fs::read_to_string(snapshot.join("config.json")).unwrap(), CONFIG);
    assert!(!snapshot.join("model.safetensors").exists(), "a header is no file");

    let before = server.paths().len();
    assert_eq!(hub.located(Path::new("a/b")), snapshot);
    let found = hub.open(&snapshot).unwrap().unwrap();
    assert!(!found.is_fetched());
    assert_eq!((found.revision.as_str(), lengths(&found)), (fetched.revision.as_str(), expected));
    let weights = found.beside.iter().find(|file| file.len() == WEIGHTS).unwrap();
    let mut read = vec![0; header().len()];
    weights.read_exact_at(&mut read, 0).unwrap();
    assert!(read == header());
    assert!(weights.read_exact_at(&mut [0], 1 << 30).is_err(), "what was not kept is not invented");
    assert_eq!(server.paths().len(), before, "nobody is asked for what is here");
}

#[test]
fn no_more_than_the_header_is_read_of_weights() {
    let (server, cache) = (Server::start(|_, _| false), tempfile::tempdir().unwrap());
    open(&server.hub(cache.path(), &[]), "a/b").unwrap();
    let asked = server.asked.lock().unwrap();
    let of_weights: Vec<(u64, u64)> =
        asked.iter().filter(|asked| asked.path.ends_with(".safetensors")).map(|asked| range(asked)).collect();
    assert_eq!(of_weights, [(0, 65_535), (65_536, header().len() as u64 - 1)]);
}

#[test]
fn a_file_in_gguf_is_read_as_far_as_its_reader_goes() {
    let (server, cache) = (Server::start(|_, _| false), tempfile::tempdir().unwrap());
    let hub = server.hub(cache.path(), &[]);
    let fetched = open(&hub, "a/b@refs/pr/1/x/q.gguf");
    assert!(fetched.is_err(), "a revision is one path: what stands behind it is its own");
    let fetched = open(&hub, "a/b/x/q.gguf").unwrap();
    fetched.file.as_ref().unwrap().read_exact_at(&mut [0; 100], 66_000).unwrap();
    fetched.keep().unwrap();
    let found = open(&hub, "a/b/x/q.gguf").unwrap();
    assert!(!found.is_fetched());
    found.file.unwrap().read_exact_at(&mut [0; 100], 66_000).unwrap();
}

#[test]
fn a_revision_is_asked_for_by_its_name() {
    let (server, cache) = (Server::start(|_, _| false), tempfile::tempdir().unwrap());
    let fetched = open(&server.hub(cache.path(), &[]), "a/b@refs/pr/1").unwrap();
    assert_eq!(fetched.revision, format!("a/b@{COMMIT}"));
    fetched.keep().unwrap();
    assert!(cache.path().join("hub/models--a--b/refs/refs/pr/1").exists());
    assert!(!cache.path().join("hub/models--a--b/refs/main").exists());
}

#[rstest]
#[case::not_there("404 Not Found", "", "there is no such model, revision or file, RepoNotFound")]
#[case::unauthorised(
    "401 Unauthorized",
    "",
    "answers 401, RepoNotFound; the model is gated, private or not there; set HF_TOKEN"
)]
#[case::forbidden("403 Forbidden", "hf_secret", "its terms may have to be accepted")]
#[case::too_many("429 Too Many Requests", "", "answers 429, too many questions; ask again later")]
#[case::broken("503 Service Unavailable", "", "answers 503")]
#[case::odd("418 I'm a teapot", "", "answers 418")]
fn a_refusal_says_what_would_do(#[case] status: &'static str, #[case] token: &str, #[case] expected: &str) {
    let code = [("X-Error-Code", "RepoNotFound"), ("Retry-After", "0")];
    let server = Server::start(move |_, stream| reply(stream, status, &code, b""));
    let cache = tempfile::tempdir().unwrap();
    let error = open(&server.hub(cache.path(), &[("HF_TOKEN", token)]), "a/b").unwrap_err().to_string();
    assert!(error.contains(expected) && !error.contains("secret"), "{error}");
    let tries = if status.starts_with('4') && !status.starts_with("429") { 1 } else { 3 };
    assert_eq!(server.paths().len(), tries);
    assert!(!cache.path().join("hub").exists());
}

#[test]
fn what_may_pass_is_tried_again() {
    let tries = Mutex::new(0);
    let server = Server::start(move |_, stream| {
        let mut tries = tries.lock().unwrap();
        *tries += 1;
        *tries == 1 && reply(stream, "502 Bad Gateway", &[], b"")
    });
    assert!(open(&server.hub(tempfile::tempdir().unwrap().path(), &[]), "a/b").is_ok());
}

/// Whoever wants to be left alone for long is, and it is said; nobody waits for a byte a second.
#[test]
fn a_hub_that_puts_off_is_not_waited_for() {
    let (later, slow) = (
        Server::start(|_, stream| reply(stream, "429 Too Many Requests", &[("Retry-After", "100000")], b"")),
        Server::start(|_, stream| {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n");
            while stream.write_all(b" ").is_ok() {
                std::thread::sleep(std::time::Duration::from_millis(500));
            }
            true
        }),
    );
    let cache = tempfile::tempdir().unwrap();
    for (server, expected) in [(later, "in 100000 seconds, it says"), (slow, "fewer than 1024 bytes a second")] {
        let begun = std::time::Instant::now();
        let error = open(&server.hub(cache.path(), &[]), "a/b").unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        assert!(begun.elapsed() < std::time::Duration::from_secs(15), "{:?}", begun.elapsed());
        assert_eq!(server.paths().len(), 1);
    }
}

/// Sends bytes until nobody reads them.
fn endless(stream: &mut TcpStream, status: &str, headers: &str) -> bool {
    let _ = stream.write_all(format!("HTTP/1.1 {status}\r\nConnection: close\r\n{headers}\r\n").as_bytes());
    while stream.write_all(&[b' '; 1 << 16]).is_ok() {}
    true
}

#[rstest]
#[case::ignores_ranges(
    "0-9",
    "200 OK",
    "bytes 0 to 65535 were asked for, all of it came; the whole file is not read instead"
)]
#[case::other_range("bytes 5-65540/1099511627776", "206 Partial Content", "`bytes 5-65540/1099511627776` came")]
#[case::longer_range("bytes 0-99999/1099511627776", "206 Partial Content", "`bytes 0-99999/1099511627776` came")]
#[case::shorter_range("bytes 0-9/1099511627776", "206 Partial Content", "`bytes 0-9/1099511627776` came")]
#[case::impossible_range("bytes 0-65535/10", "206 Partial Content", "`bytes 0-65535/10` came")]
#[case::unknown_length("bytes 0-65535/*", "206 Partial Content", "`bytes 0-65535/*` came")]
#[case::no_range("", "206 Partial Content", "`` came")]
#[case::unsatisfiable("bytes */0", "416 Range Not Satisfiable", "answers 416")]
fn a_server_that_does_not_give_parts_is_not_read_on(
    #[case] range: &'static str,
    #[case] status: &'static str,
    #[case] expected: &str,
) {
    let server = Server::start(move |asked, stream| {
        let headers = format!("Content-Range: {range}\r\nContent-Length: {WEIGHTS}\r\n");
        asked.path.ends_with(".safetensors") && endless(stream, status, &headers)
    });
    let error = open(&server.hub(tempfile::tempdir().unwrap().path(), &[]), "a/b").unwrap_err().to_string();
    assert!(error.contains(expected), "{error}");
}

#[rstest]
#[case::endless("", "a list of a model's files of more than 8388608 bytes is not read")]
#[case::announced("Content-Length: 99999999999\r\n", "of more than 8388608 bytes is not read")]
#[case::packed("Content-Encoding: gzip\r\n", "the answer is gzip, which was not asked for")]
fn an_answer_is_read_to_its_limit(#[case] headers: &'static str, #[case] expected: &str) {
    let server = Server::start(move |_, stream| endless(stream, "200 OK", headers));
    let error = open(&server.hub(tempfile::tempdir().unwrap().path(), &[]), "a/b").unwrap_err().to_string();
    assert!(error.contains(expected), "{error}");
}

#[rstest]
#[case::whole("config", "22", "truncated: 22 bytes were announced, 3 came")]
#[case::part("weights", "65536", "truncated: 65536 bytes were announced, 3 came")]
fn a_body_that_ends_early_is_truncated(#[case] of: &'static str, #[case] length: &'static str, #[case] expected: &str) {
    let server = Server::start(move |asked, stream| match asked.path.as_str() {
        "/moved/config.json" if of == "config" => reply(stream, "200 OK", &[("Content-Length", length)], b"{\"a"),
        path if path.ends_with(".safetensors") && of == "weights" => {
            let range = format!("bytes 0-65535/{WEIGHTS}");
            let headers = [("Content-Length", length), ("Content-Range", &range)];
            reply(stream, "206 Partial Content", &headers, b"abc")
        }
        _ => false,
    });
    let error = open(&server.hub(tempfile::tempdir().unwrap().path(), &[]), "a/b").unwrap_err().to_string();
    assert!(error.contains(expected), "{error}");
}

#[rstest]
#[case::no_json("<html>", "JSON")]
#[case::no_commit("{\"sha\": \"../../x\"}", "no commit is stated")]
#[case::nothing("{\"sha\": \"c1899de289a04d12100db370d81485cdf75e47ca\"}", "there is no config.json; a model with one")]
fn a_listing_that_is_none_is_refused(#[case] body: &'static str, #[case] expected: &str) {
    let server = Server::start(move |asked, stream| listing(asked) && reply(stream, "200 OK", &[], body.as_bytes()));
    let error = open(&server.hub(tempfile::tempdir().unwrap().path(), &[]), "a/b").unwrap_err().to_string();
    assert!(error.contains(expected), "{error}");
}

#[rstest]
#[case::in_a_circle("/api/models/a/b/revision/main", "the answer leads on and on")]
#[case::unsafe_address("http://example.com/x?signature=secret", "http://example.com/x is not asked")]
#[case::other_protocol("file:///etc/passwd", "file:///etc/passwd is not asked")]
#[case::nowhere("", " is not asked")]
#[case::as_somebody("https://user:secret@example.com/", "is not asked")]
fn redirects_end_and_stay_safe(#[case] to: &'static str, #[case] expected: &str) {
    let server =
        Server::start(move |asked, stream| listing(asked) && reply(stream, "302 Found", &[("Location", to)], b""));
    let error = open(&server.hub(tempfile::tempdir().unwrap().path(), &[]), "a/b").unwrap_err().to_string();
    assert!(error.contains(expected), "{error}");
    assert!(!error.contains("signature"), "{error}");
    assert!(server.paths().len() <= 6);
}

#[test]
fn the_token_goes_to_the_hub_and_to_nobody_else() {
    let other = Server::start(|_, _| false);
    let to = format!("{}/moved/config.json", other.address);
    let server = Server::start(move |asked, stream| {
        asked.path.ends_with("/config.json") && reply(stream, "302 Found", &[("Location", &to)], b"")
    });
    let cache = tempfile::tempdir().unwrap();
    let hub = server.hub(cache.path(), &[("HF_TOKEN", "hf_secret")]);
    let fetched = open(&hub, "a/b").unwrap();
    let of_hub = server.asked.lock().unwrap();
    assert!(of_hub.len() >= 3);
    assert!(of_hub.iter().all(|asked| asked.headers.get("authorization").is_some_and(|is| is == "Bearer hf_secret")));
    let elsewhere = other.asked.lock().unwrap();
    assert_eq!(elsewhere.len(), 1);
    assert!(elsewhere.iter().all(|asked| !asked.headers.contains_key("authorization")));
    assert!(!format!("{hub:?} {fetched:?}").contains("hf_secret"));
}

#[test]
fn offline_nobody_is_asked() {
    let (server, cache) = (Server::start(|_, _| false), tempfile::tempdir().unwrap());
    let error = open(&server.hub(cache.path(), &[("HF_HUB_OFFLINE", "1")]), "a/b").unwrap_err().to_string();
    assert!(error.contains("HF_HUB_OFFLINE forbids to fetch it; `hf download a/b`"), "{error}");
    assert!(server.paths().is_empty());
}

#[test]
fn a_hub_that_is_not_there_says_how_to_ask_nobody() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let cache = tempfile::tempdir().unwrap();
    let variables =
        [("HF_ENDPOINT".into(), format!("http://{closed}").into()), ("HF_HOME".into(), cache.path().into())];
    let error = open(&Hub::from_variables(variables), "a/b").unwrap_err().to_string();
    assert!(error.contains("name a config.json that is on this disk"), "{error}");
}

#[test]
fn files_that_are_not_described_by_a_header_are_not_fetched() {
    let (server, cache) = (Server::start(|_, _| false), tempfile::tempdir().unwrap());
    let error = open(&server.hub(cache.path(), &[]), "a/b/onnx/model.onnx").unwrap_err().to_string();
    assert!(error.contains("onnx/model.onnx is not fetched") && error.contains("`hf download a/b"), "{error}");
    assert!(server.paths().is_empty());
}

#[test]
fn a_cache_that_cannot_be_written_loses_nothing_but_time() {
    let (server, folder) = (Server::start(|_, _| false), tempfile::tempdir().unwrap());
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let below = file.join("hub");
    let hub = server.hub(folder.path(), &[("HF_HUB_CACHE", below.to_str().unwrap())]);
    let fetched = open(&hub, "a/b").unwrap();
    assert!(fetched.keep().is_err());
    let mut text = String::new();
    fetched.beside.iter().find(|file| file.len() < 100).unwrap().reader().read_to_string(&mut text).unwrap();
    assert_eq!(text, CONFIG);
}

/// The server behind TLS, by the certificate in `localhost.pem`, which nobody vouches for but itself.
fn behind_tls(plain: &Server) -> String {
    let pem = Path::new(CERTIFICATE);
    let certificate = CertificateDer::from_pem_file(pem).unwrap();
    let config = rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], PrivateKeyDer::from_pem_file(pem).unwrap());
    let (config, plain) = (Arc::new(config.unwrap()), plain.address.trim_start_matches("http://").to_owned());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("https://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let connection = rustls::ServerConnection::new(Arc::clone(&config)).unwrap();
            let mut asked = rustls::StreamOwned::new(connection, stream);
            let head: Vec<String> =
                BufReader::new(&mut asked).lines().map_while(Result::ok).take_while(|line| !line.is_empty()).collect();
            let (mut answer, mut inside) = (Vec::new(), TcpStream::connect(&plain).unwrap());
            write!(inside, "{}\r\n\r\n", head.join("\r\n")).unwrap();
            inside.read_to_end(&mut answer).unwrap();
            // Whoever does not believe the certificate has hung up.
            let _ = asked.write_all(&answer).and_then(|()| asked.flush());
            asked.conn.send_close_notify();
            let _ = asked.flush();
        }
    });
    address
}

#[test]
fn a_hub_is_believed_by_the_certificates_that_the_environment_names() {
    let server = Server::start(|_, _| false);
    let address = behind_tls(&server);
    let open = |more: &[(&str, &str)]| {
        let cache = tempfile::tempdir().unwrap();
        let endpoint = [&[("HF_ENDPOINT", address.as_str())], more].concat();
        open(&server.hub(cache.path(), &endpoint), "a/b").map(|found| found.revision)
    };
    let error = open(&[]).unwrap_err().to_string();
    assert!(error.contains("UnknownIssuer") && server.paths().is_empty(), "{error}");
    assert_eq!(open(&[("SSL_CERT_FILE", CERTIFICATE)]).unwrap(), format!("a/b@{COMMIT}"));
    let error = open(&[("SSL_CERT_FILE", concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"))]).unwrap_err();
    assert!(error.to_string().contains("certificates in PEM were expected"), "{error}");
}
