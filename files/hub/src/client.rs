//! Asking the hub: whole files within their limits, and parts of files.

use std::io::{ErrorKind, Read};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use cacheplan_files::Limit;
use ureq::Agent;
use ureq::http::{HeaderMap, Response, StatusCode, Uri, header};
use ureq::tls::TlsConfig;

use crate::HubError;
use crate::settings::{Settings, Token, is_on_this_machine};

/// The most answers that lead elsewhere. The hub's own lead once or twice.
const REDIRECTS: usize = 5;
/// How long is waited before each further try, where the answer does not say.
const WAITS: [Duration; 2] = [Duration::from_millis(250), Duration::from_secs(1)];
/// The longest wait that an answer may ask for; who asks for more is not asked again.
const LONGEST_WAIT: Duration = Duration::from_secs(10);
/// How long a connection and the first line of an answer may take, and all that describes a model.
const CONNECT: Duration = Duration::from_secs(10);
const RESPOND: Duration = Duration::from_secs(30);
const WHOLE: Duration = Duration::from_secs(300);
/// The fewest bytes a second that are waited for, once an answer has had some time to begin.
const LEAST_RATE: u64 = 1 << 10;
const TO_BEGIN: Duration = Duration::from_secs(10);
/// All that is fetched to describe one model; the index of the largest has 13 MiB, its headers 15 MiB.
const ALL: Limit = Limit { what: "the description of a model", bytes: 192 << 20, per_value: 0 };
/// What is shown of an answer's own words.
const SAID: usize = 200;

/// Asks one hub.
pub(crate) struct Client {
    agent: Agent,
    endpoint: Uri,
    token: Option<Token>,
    /// Bytes that may still be fetched.
    left: AtomicU64,
    /// When all must have come.
    end: Instant,
}

/// A whole file.
pub(crate) struct Whole {
    pub(crate) bytes: Vec<u8>,
    /// What its content is called, without quotes.
    pub(crate) etag: Option<String>,
}

/// A part of a file.
pub(crate) struct Part {
    pub(crate) bytes: Vec<u8>,
    /// Bytes of the whole file.
    pub(crate) len: u64,
}

impl Client {
    pub(crate) fn new(settings: Settings) -> Self {
        // Redirects are followed here, so that the token goes to nobody else. A proxy is not asked for this machine.
        let config = Agent::config_builder()
            .user_agent(concat!("cacheplan/", env!("CARGO_PKG_VERSION")))
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .tls_config(TlsConfig::builder().root_certs(settings.roots).build())
            .timeout_connect(Some(CONNECT))
            .timeout_recv_response(Some(RESPOND));
        let config = if is_on_this_machine(&settings.endpoint) { config.proxy(None) } else { config };
        Self {
            agent: config.build().new_agent(),
            endpoint: settings.endpoint,
            token: settings.token,
            left: AtomicU64::new(ALL.bytes),
            end: Instant::now() + WHOLE,
        }
    }

    /// A whole file; `path` begins with a slash.
    pub(crate) fn whole(&self, path: &str, limit: Limit) -> Result<Whole, HubError> {
        self.patiently(|| {
            let asked = self.ask(path, None)?;
            let headers = asked.response.headers();
            let etag = asked.etag.clone().or_else(|| etag(headers));
            let length = length(headers);
            let too_long = || HubError::TooLong { url: asked.url.clone(), what: limit.what, most: limit.bytes };
            if length.is_some_and(|length| length > limit.bytes) {
                return Err(too_long());
            }
            // One more than may come, to see it.
            let bytes = self.read(asked.response, &asked.url, limit.bytes + 1, length)?;
            if bytes.len() as u64 > limit.bytes { Err(too_long()) } else { Ok(Whole { bytes, etag }) }
        })
    }

    /// The bytes of a file from `from` on to before `to`, or to its end.
    pub(crate) fn part(&self, path: &str, from: u64, to: u64) -> Result<Part, HubError> {
        let last = to.saturating_sub(1).max(from);
        self.patiently(|| {
            let asked = self.ask(path, Some((from, last)))?;
            let wrong = |found: String| HubError::Range { url: asked.url.clone(), from, to: last, found };
            let ranged = asked.response.headers().get(header::CONTENT_RANGE).and_then(|value| value.to_str().ok());
            if asked.response.status() != StatusCode::PARTIAL_CONTENT {
                return Err(wrong("all of it".to_owned()));
            }
            let ranged = ranged.unwrap_or_default();
            let (first, end, len) = content_range(ranged).ok_or_else(|| wrong(format!("`{ranged}`")))?;
            if first != from || Some(end) != len.checked_sub(1).map(|end| end.min(last)) {
                return Err(wrong(format!("`{ranged}`")));
            }
            let expected = end - first + 1;
            let bytes = self.read(asked.response, &asked.url, expected, Some(expected))?;
            Ok(Part { bytes, len })
        })
    }

    /// Tries again what may pass.
    fn patiently<T>(&self, ask: impl Fn() -> Result<T, HubError>) -> Result<T, HubError> {
        for wait in WAITS {
            match ask() {
                Err(error) if error.may_pass() => sleep(wait),
                done => return done,
            }
        }
        ask()
    }

    /// The first answer that leads nowhere else and is one.
    fn ask(&self, path: &str, range: Option<(u64, u64)>) -> Result<Asked, HubError> {
        let start = format!("{}{path}", self.endpoint.to_string().trim_end_matches('/'));
        let shown = start.split('?').next().unwrap_or_default().to_owned();
        let malformed = |why: String| HubError::Malformed { url: shown.clone(), why };
        let mut at: Uri = start.parse().map_err(|_| malformed("this is no address".to_owned()))?;
        let mut named = None;
        for _ in 0..=REDIRECTS {
            let left = self.end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(HubError::TooLate { url: shown, seconds: WHOLE.as_secs() });
            }
            let request = self.agent.get(at.clone()).config().timeout_global(Some(left)).build();
            let mut request = request.header(header::ACCEPT_ENCODING, "identity");
            if let Some((from, to)) = range {
                request = request.header(header::RANGE, format!("bytes={from}-{to}"));
            }
            if let Some(token) = self.token.as_ref().filter(|_| is_same_host(&at, &self.endpoint)) {
                request = request.header(header::AUTHORIZATION, token.bearer());
            }
            let response = request.call().map_err(|error| unreachable(&shown, &error))?;
            let headers = response.headers();
            named = named.or_else(|| headers.get("x-linked-etag").and_then(|value| plain_etag(value.to_str().ok()?)));
            if !response.status().is_redirection() {
                return match self.refusal(&shown, &response) {
                    Some(refusal) => Err(refusal),
                    None => Ok(Asked { response, url: shown, etag: named }),
                };
            }
            let to = headers.get(header::LOCATION).and_then(|to| to.to_str().ok()).unwrap_or_default();
            at = self.follow(&at, to).ok_or_else(|| {
                let found = to.split(['?', '#']).next().unwrap_or_default();
                HubError::Insecure { from: shown.clone(), found: found.to_owned() }
            })?;
        }
        Err(HubError::Redirects { url: shown, found: "on and on".to_owned(), most: REDIRECTS })
    }

    /// Where an answer leads: https, or http on this machine where the hub itself is there.
    fn follow(&self, at: &Uri, to: &str) -> Option<Uri> {
        let to: Uri = match to.strip_prefix('/') {
            Some(rest) if !rest.starts_with('/') => {
                format!("{}://{}{to}", at.scheme_str()?, at.authority()?).parse().ok()?
            }
            _ => to.parse().ok()?,
        };
        let is_here = is_on_this_machine(&to) && is_on_this_machine(&self.endpoint);
        let is_plain = !to.authority()?.as_str().contains('@');
        (is_plain && (to.scheme_str() == Some("https") || is_here)).then_some(to)
    }

    /// What is wrong with an answer by its status and its headers; it waits as long as the hub asks for.
    fn refusal(&self, url: &str, response: &Response<ureq::Body>) -> Option<HubError> {
        let (url, headers) = (url.to_owned(), response.headers());
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let said = || text("x-error-message").or(text("x-error-code")).map(short).unwrap_or_default();
        let encoded = text("content-encoding").filter(|encoding| *encoding != "identity");
        Some(match response.status().as_u16() {
            200 | 206 => {
                let why = format!("the answer is {}, which was not asked for", encoded?);
                HubError::Malformed { url, why }
            }
            status @ (401 | 403) => {
                let what_would_do = match self.token {
                    None => "set HF_TOKEN or log in with `hf auth login`, as somebody who may read it",
                    Some(_) => {
                        "see its page on the hub: its terms may have to be accepted, or the token may not read it"
                    }
                };
                HubError::Denied { url, status, said: said(), what_would_do }
            }
            404 => HubError::NotFound { url, said: said() },
            429 => {
                let seconds: u64 = text("retry-after").and_then(|value| value.parse().ok()).unwrap_or(0);
                let wait = Some(seconds).filter(|seconds| *seconds > LONGEST_WAIT.as_secs());
                if wait.is_none() {
                    sleep(Duration::from_secs(seconds));
                }
                HubError::TooMany { url, wait }
            }
            status => HubError::Status { url, status, said: said() },
        })
    }

    /// At most `most` bytes of an answer.
    fn read(
        &self,
        response: Response<ureq::Body>,
        url: &str,
        most: u64,
        announced: Option<u64>,
    ) -> Result<Vec<u8>, HubError> {
        let takes = announced.unwrap_or(0).min(most);
        let too_long = || HubError::TooLong { url: url.to_owned(), what: ALL.what, most: ALL.bytes };
        if takes > self.left.load(Ordering::Relaxed) {
            return Err(too_long());
        }
        let (mut bytes, mut buffer, begun) = (Vec::new(), vec![0; 64 << 10], Instant::now());
        let mut reader = response.into_body().into_reader().take(most);
        let read = loop {
            match reader.read(&mut buffer) {
                Ok(0) => break Ok(()),
                Ok(count) => bytes.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => break Err(error),
            }
            let (found, time) = (bytes.len() as u64, begun.elapsed());
            if time > TO_BEGIN && found < LEAST_RATE * time.as_secs() {
                return Err(HubError::TooSlow {
                    url: url.to_owned(),
                    found,
                    seconds: time.as_secs(),
                    least: LEAST_RATE,
                });
            }
        };
        let found = bytes.len() as u64;
        let left = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(found));
        left.map_err(|_| too_long())?;
        let truncated = |expected| HubError::Truncated { url: url.to_owned(), expected, found };
        match (read, announced) {
            (_, Some(expected)) if found < expected.min(most) => Err(truncated(expected)),
            (Err(error), _) if error.kind() == ErrorKind::UnexpectedEof => Err(truncated(found + 1)),
            _ if Instant::now() >= self.end => Err(HubError::TooLate { url: url.to_owned(), seconds: WHOLE.as_secs() }),
            (Err(error), _) => Err(HubError::Unreachable { url: url.to_owned(), why: error.to_string() }),
            (Ok(()), _) => Ok(bytes),
        }
    }
}

/// An answer that has what was asked for.
struct Asked {
    response: Response<ureq::Body>,
    /// What was asked for, as it may be shown.
    url: String,
    /// What the hub calls the file's content, where it says so before it leads elsewhere.
    etag: Option<String>,
}

fn is_same_host(one: &Uri, other: &Uri) -> bool {
    one.scheme() == other.scheme() && one.authority() == other.authority()
}

fn unreachable(url: &str, error: &ureq::Error) -> HubError {
    HubError::Unreachable { url: url.to_owned(), why: error.to_string() }
}

fn length(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

fn etag(headers: &HeaderMap) -> Option<String> {
    plain_etag(headers.get(header::ETAG)?.to_str().ok()?)
}

/// A hash of git's or of LFS's, which the cache names a file's content by.
fn plain_etag(text: &str) -> Option<String> {
    let text = text.trim_start_matches("W/").trim_matches('"');
    let is_hash = matches!(text.len(), 40 | 64) && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hash.then(|| text.to_ascii_lowercase())
}

/// `bytes 0-9/100` as 0, 9 and 100.
fn content_range(text: &str) -> Option<(u64, u64, u64)> {
    let (range, len) = text.strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let (first, last, len) = (first.parse().ok()?, last.parse().ok()?, len.parse().ok()?);
    (first <= last && last < len).then_some((first, last, len))
}

fn short(text: &str) -> String {
    format!(", {}", text.chars().take(SAID).collect::<String>())
}
