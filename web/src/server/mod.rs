//! The page from this machine, to this machine: plain HTTP on the loopback address, nothing kept open.
//!
//! Other web sites can send requests to it too, and other users of the machine. So it answers only where the `Host` is its
//! own, refuses any other `Origin`, and asks for the token that the address ends with before it reads a question.

mod request;

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use self::request::{Bad, Request};
use crate::{Asset, Desk, Opener, Place};

/// Connections at a time; a browser opens six.
const MOST_CONNECTIONS: usize = 32;

/// How long a connection may keep silent.
const PATIENCE: Duration = Duration::from_secs(10);

/// What browsers are told of every file. The page asks nobody but this server.
const HEADERS: &str = "Connection: close\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n\
    Referrer-Policy: no-referrer\r\nCross-Origin-Resource-Policy: same-origin\r\n\
    Cross-Origin-Opener-Policy: same-origin\r\n\
    Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; \
    connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n";

/// The page of a desk that reads this machine's disk.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    answering: Arc<Answering>,
}

#[derive(Debug)]
struct Answering {
    desk: Desk,
    port: u16,
    token: String,
    connections: AtomicUsize,
}

impl Server {
    /// Takes a port of the loopback address, any free one for 0.
    ///
    /// # Errors
    /// A port that is taken, or a system without random numbers.
    pub fn open(port: u16, places: Vec<Place>, opener: Opener) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
        let port = listener.local_addr()?.port();
        let mut random = [0; 16];
        getrandom::fill(&mut random).map_err(io::Error::other)?;
        let token = random.iter().map(|byte| format!("{byte:02x}")).collect();
        let (desk, connections) = (Desk::with_disk(places, opener), AtomicUsize::new(0));
        Ok(Self { listener, answering: Arc::new(Answering { desk, port, token, connections }) })
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

/// A status line, what the body is, and the body.
type Response = (&'static str, &'static str, Vec<u8>);

impl Answering {
    fn serve(&self, mut stream: &TcpStream) {
        let patient = stream.set_read_timeout(Some(PATIENCE)).and(stream.set_write_timeout(Some(PATIENCE)));
        let Ok(()) = patient else { return };
        let (status, media_type, body) = match Request::read(&mut stream) {
            Ok(request) => self.respond(&request, &mut stream),
            Err(Bad::Gone) => return,
            Err(Bad::Request(why)) => refused("400 Bad Request", why),
        };
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {media_type}\r\nContent-Length: {}\r\n{HEADERS}\r\n",
            body.len()
        );
        let sent = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&body));
        if sent.is_ok() && stream.shutdown(Shutdown::Write).is_ok() {
            // What was sent and not read would make the system throw the answer away.
            let _ = io::copy(&mut stream.take(1 << 20), &mut io::sink());
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
            ("POST", "/ask") => match request.body(stream) {
                Ok(question) => ("200 OK", "application/json", self.desk.answer(&question).into_bytes()),
                Err(Bad::Request(why)) => refused("413 Content Too Large", why),
                Err(Bad::Gone) => refused("400 Bad Request", "the question is shorter than it says"),
            },
            _ => refused("405 Method Not Allowed", "GET a file, or POST a question to /ask"),
        }
    }

    /// Compared in full, so that the time it takes tells nothing.
    fn knows(&self, token: Option<&str>) -> bool {
        let token = token.unwrap_or_default().as_bytes();
        let differing = self.token.bytes().zip(token).fold(0, |differing, (own, theirs)| differing | (own ^ theirs));
        token.len() == self.token.len() && differing == 0
    }
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
