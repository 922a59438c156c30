//! The page from this machine, to this machine: plain HTTP on the loopback address, nothing kept open.
//!
//! Other web sites can send requests to it too, and other users of the machine. So it answers only where the `Host` is its
//! own, refuses any other `Origin`, and asks for the token that the address ends with before it reads a question.

mod request;

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use self::request::{Bad, LONGEST_BODY, Request};
use crate::{Asset, DiskModel, OpenModels, Opener};

/// Connections at a time; a browser opens six.
const MOST_CONNECTIONS: usize = 32;

/// How long a head may take, a body, and the answer.
const FOR_HEAD: Duration = Duration::from_secs(5);
const FOR_BODY: Duration = Duration::from_secs(30);
const FOR_ANSWER: Duration = Duration::from_secs(30);
/// How long is waited for what was sent and is not read.
const FOR_REST: Duration = Duration::from_secs(2);

/// What all questions that are being answered may take together: as much as the longest one.
const ALL_BODIES: usize = LONGEST_BODY;

/// What browsers are told of every file. The page asks nobody but this server.
const HEADERS: &str = "Connection: close\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n\
    Referrer-Policy: no-referrer\r\nCross-Origin-Resource-Policy: same-origin\r\n\
    Cross-Origin-Opener-Policy: same-origin\r\n\
    Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; \
    connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n";

/// Serves the page, and answers with models of this machine's disk.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    answering: Arc<Answering>,
}

#[derive(Debug)]
struct Answering {
    models: OpenModels,
    port: u16,
    token: String,
    connections: AtomicUsize,
    /// Bytes that the questions which are being answered have stated.
    bodies: AtomicUsize,
}

impl Server {
    /// Takes a port of the loopback address, any free one for 0.
    ///
    /// # Errors
    /// A port that is taken, or a system without random numbers.
    pub fn open(port: u16, places: Vec<DiskModel>, opener: Opener) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
        let port = listener.local_addr()?.port();
        let mut random = [0; 16];
        getrandom::fill(&mut random).map_err(io::Error::other)?;
        let token = random.iter().map(|byte| format!("{byte:02x}")).collect();
        let (connections, bodies) = Default::default();
        let models = OpenModels::with_disk(places, opener);
        Ok(Self { listener, answering: Arc::new(Answering { models, port, token, connections, bodies }) })
    }

    /// Where the page is, with the token without which nothing is answered.
    pub fn address(&self) -> String {
        format!("http://127.0.0.1:{}/#token={}", self.answering.port, self.answering.token)
    }

    /// Serves until the process ends.
    pub fn run(&self) {
        for stream in self.listener.incoming().flatten() {
            let answering = Arc::clone(&self.answering);
            let connection = Connection(answering);
            // A thread that cannot be had drops the connection.
            if connection.0.connections.fetch_add(1, Ordering::Relaxed) < MOST_CONNECTIONS {
                let _ = std::thread::Builder::new().spawn(move || connection.0.serve(&stream));
            }
        }
    }
}

/// Counts itself out at its end, also where answering panics.
struct Connection(Arc<Answering>);

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Room for a question, until it is answered.
struct Room<'a> {
    taken: &'a AtomicUsize,
    bytes: usize,
}

impl<'a> Room<'a> {
    /// `None` where all questions together would take too much.
    fn take(taken: &'a AtomicUsize, bytes: usize) -> Option<Self> {
        let more = |taken: usize| taken.checked_add(bytes).filter(|all| *all <= ALL_BODIES);
        taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(Self { taken, bytes })
    }
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        self.taken.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A connection until a moment: who sends or reads slowly is not waited for beyond it.
struct Until<'a> {
    stream: &'a TcpStream,
    end: Instant,
}

impl<'a> Until<'a> {
    fn from_now(stream: &'a TcpStream, time: Duration) -> Self {
        Self { stream, end: Instant::now() + time }
    }

    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.end.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(Some(left)) }
    }
}

impl Read for Until<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(buffer)
    }
}

impl Write for Until<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A status line, what the body is, and the body.
type Response = (&'static str, &'static str, Vec<u8>);

impl Answering {
    fn serve(&self, stream: &TcpStream) {
        let (status, media_type, body) = match Request::read(&mut Until::from_now(stream, FOR_HEAD)) {
            Ok(request) => self.respond(&request, &mut Until::from_now(stream, FOR_BODY)),
            Err(Bad::Gone) => return,
            Err(Bad::NoLength) => no_length(),
            Err(Bad::Request(why)) => refused("400 Bad Request", why),
        };
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {media_type}\r\nContent-Length: {}\r\n{HEADERS}\r\n",
            body.len()
        );
        let mut answer = Until::from_now(stream, FOR_ANSWER);
        let sent = answer.write_all(head.as_bytes()).and_then(|()| answer.write_all(&body));
        if sent.is_ok() && stream.shutdown(Shutdown::Write).is_ok() {
            // What was sent and not read would make the system throw the answer away.
            let _ = io::copy(&mut Until::from_now(stream, FOR_REST).take(1 << 20), &mut io::sink());
        }
    }

    fn respond(&self, request: &Request, stream: &mut impl Read) -> Response {
        let own = [format!("127.0.0.1:{}", self.port), format!("localhost:{}", self.port)];
        if !own.contains(&request.host) {
            return refused("403 Forbidden", "this is no name of this server");
        }
        if request.origin.as_ref().is_some_and(|origin| *origin != format!("http://{}", request.host)) {
            return refused("403 Forbidden", "another site may not ask");
        }
        match (request.method.as_str(), request.path.as_str()) {
            ("GET", path) => match Asset::at(path) {
                Some(asset) => ("200 OK", asset.media_type, page(asset)),
                None => refused("404 Not Found", "there is no such file"),
            },
            ("POST", "/ask") if !self.knows(request.token.as_deref()) => {
                refused("403 Forbidden", "open the address that `cacheplan web` printed: its token is missing or old")
            }
            ("POST", "/ask") => match request.length() {
                Err(Bad::NoLength) => no_length(),
                Err(Bad::Request(why)) => refused("413 Content Too Large", why),
                Err(Bad::Gone) => refused("400 Bad Request", "the question is shorter than it says"),
                Ok(length) => match Room::take(&self.bodies, length) {
                    None => refused("503 Service Unavailable", "other long questions are being answered; ask again"),
                    Some(_room) => self.ask(request, stream),
                },
            },
            _ => refused("405 Method Not Allowed", "GET a file, or POST a question to /ask"),
        }
    }

    fn ask(&self, request: &Request, stream: &mut impl Read) -> Response {
        match request.body(stream) {
            Ok(question) => ("200 OK", "application/json", self.models.answer(&question).into_bytes()),
            Err(Bad::NoLength) => no_length(),
            Err(Bad::Request(why)) => refused("413 Content Too Large", why),
            Err(Bad::Gone) => refused("400 Bad Request", "the question is shorter than it says, or took too long"),
        }
    }

    /// Compared in full, so that the time it takes tells nothing.
    fn knows(&self, token: Option<&str>) -> bool {
        let token = token.unwrap_or_default().as_bytes();
        let differing = self.token.bytes().zip(token).fold(0, |differing, (own, theirs)| differing | (own ^ theirs));
        token.len() == self.token.len() && differing == 0
    }
}

fn no_length() -> Response {
    refused("411 Length Required", "state the length of the body")
}

fn refused(status: &'static str, why: &str) -> Response {
    (status, "text/plain; charset=utf-8", format!("{why}\n").into_bytes())
}

/// The page itself is told whom to ask.
fn page(asset: Asset) -> Vec<u8> {
    if asset.path != "/" {
        return asset.bytes.to_vec();
    }
    let page = String::from_utf8_lossy(asset.bytes);
    page.replace("name=\"planner\" content=\"wasm\"", "name=\"planner\" content=\"http\"").into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_questions_together_take_no_more_than_the_longest() {
        let bodies = AtomicUsize::new(0);
        let half = Room::take(&bodies, ALL_BODIES / 2 + 1).unwrap();
        assert!(Room::take(&bodies, ALL_BODIES / 2 + 1).is_none());
        let small = Room::take(&bodies, 1000).unwrap();
        drop(half);
        assert!(Room::take(&bodies, ALL_BODIES).is_none());
        drop(small);
        assert!(Room::take(&bodies, ALL_BODIES).is_some());
        assert_eq!(bodies.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn who_sends_a_byte_now_and_then_is_not_waited_for() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let slow = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, _) = listener.accept().unwrap();
        let begun = Instant::now();
        let sender = std::thread::spawn(move || {
            while (&slow).write_all(b"a").is_ok() && begun.elapsed() < Duration::from_secs(20) {
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let head = Request::read(&mut Until::from_now(&stream, Duration::from_millis(200)));
        assert_eq!(head.map(drop), Err(Bad::Gone));
        assert!(begun.elapsed() < Duration::from_secs(10));
        drop(stream);
        sender.join().unwrap();
    }
}
