//! One HTTP request, as far as a page needs any: a request line, six headers, a body of a stated length.

use std::io::Read;

/// The longest head. Browsers send less than 2 KiB.
const LONGEST_HEAD: usize = 16 << 10;

/// The longest body: all slices of a model's files, and the question before them.
pub(super) const LONGEST_BODY: usize = 98 << 20;

/// A request without its body.
#[derive(Debug, PartialEq)]
pub(super) struct Request {
    pub(super) method: String,
    pub(super) path: String,
    pub(super) host: String,
    pub(super) origin: Option<String>,
    pub(super) token: Option<String>,
    length: Option<usize>,
    /// What of the body came with the head.
    begun: Vec<u8>,
}

/// Why there is no request.
#[derive(Debug, PartialEq)]
pub(super) enum Bad {
    /// The other side went away, or kept silent.
    Gone,
    /// Nobody says how long its body is.
    NoLength,
    /// It is not HTTP/1.1 as browsers speak it.
    Request(&'static str),
}

impl Request {
    pub(super) fn read(stream: &mut impl Read) -> Result<Self, Bad> {
        let mut bytes = Vec::new();
        let mut buffer = [0; 4096];
        let end = loop {
            match bytes.windows(4).position(|four| four == b"\r\n\r\n") {
                Some(end) if end <= LONGEST_HEAD => break end,
                None if bytes.len() <= LONGEST_HEAD => {}
                _ => return Err(Bad::Request("the head is too long")),
            }
            match stream.read(&mut buffer) {
                Ok(0) | Err(_) => return Err(Bad::Gone),
                Ok(count) => bytes.extend_from_slice(&buffer[..count]),
            }
        };
        let begun = bytes.split_off(end + 4);
        let head = std::str::from_utf8(&bytes[..end]).map_err(|_| Bad::Request("the head is no text"))?;
        Self::parse(head, begun)
    }

    fn parse(head: &str, begun: Vec<u8>) -> Result<Self, Bad> {
        let mut lines = head.split("\r\n");
        let first: Vec<&str> = lines.next().unwrap_or_default().split(' ').collect();
        let [method, target, "HTTP/1.1"] = first[..] else { return Err(Bad::Request("HTTP/1.1 was expected")) };
        let mut request = Self {
            method: method.to_owned(),
            path: target.split(['?', '#']).next().unwrap_or_default().to_owned(),
            host: String::new(),
            origin: None,
            token: None,
            length: None,
            begun,
        };
        let mut hosts = 0;
        for line in lines {
            let (name, value) = line.split_once(':').ok_or(Bad::Request("a header without a colon"))?;
            let value = value.trim();
            match name.to_ascii_lowercase().as_str() {
                "host" => {
                    hosts += 1;
                    value.clone_into(&mut request.host);
                }
                "origin" => request.origin = Some(value.to_owned()),
                "x-cacheplan-token" => request.token = Some(value.to_owned()),
                "content-length" if request.length.is_none() => {
                    let digits = value.bytes().all(|byte| byte.is_ascii_digit());
                    let length = value.parse().ok().filter(|_| digits);
                    request.length = Some(length.ok_or(Bad::Request("the length is no number"))?);
                }
                "content-length" => return Err(Bad::Request("the length is stated twice")),
                "transfer-encoding" => return Err(Bad::NoLength),
                _ => {}
            }
        }
        if hosts == 1 { Ok(request) } else { Err(Bad::Request("one Host was expected")) }
    }

    /// The length that it states for its body.
    pub(super) fn length(&self) -> Result<usize, Bad> {
        let length = self.length.ok_or(Bad::NoLength)?;
        if length > LONGEST_BODY { Err(Bad::Request("a question so long is not read")) } else { Ok(length) }
    }

    /// The body. Room for it grows as it comes, whatever length was stated.
    pub(super) fn body(&self, stream: &mut impl Read) -> Result<Vec<u8>, Bad> {
        let length = self.length()?;
        let mut body = self.begun.clone();
        let rest = length.checked_sub(body.len()).ok_or(Bad::Request("the body is longer than it says"))?;
        stream.take(rest as u64).read_to_end(&mut body).map_err(|_| Bad::Gone)?;
        if body.len() == length { Ok(body) } else { Err(Bad::Gone) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn read(mut text: &[u8]) -> Result<(Request, Result<Vec<u8>, Bad>), Bad> {
        let request = Request::read(&mut text)?;
        let body = request.body(&mut text);
        Ok((request, body))
    }

    #[test]
    fn a_request_has_its_headers_and_its_body() {
        let text = "POST /ask?x HTTP/1.1\r\nHost: localhost:1\r\nORIGIN: http://a\r\nX-Cacheplan-Token: t\r\nContent-Length: 3\r\n\r\nabc";
        let (request, body) = read(text.as_bytes()).unwrap();
        assert_eq!(
            (request.method.as_str(), request.path.as_str(), request.host.as_str()),
            ("POST", "/ask", "localhost:1")
        );
        assert_eq!((request.origin.as_deref(), request.token.as_deref()), (Some("http://a"), Some("t")));
        assert_eq!(body, Ok(b"abc".to_vec()));
    }

    #[rstest]
    #[case::no_host("GET / HTTP/1.1\r\n\r\n", "one Host was expected")]
    #[case::two_hosts("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", "one Host was expected")]
    #[case::older("GET / HTTP/1.0\r\nHost: a\r\n\r\n", "HTTP/1.1 was expected")]
    #[case::two_lengths(
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        "the length is stated twice"
    )]
    #[case::signed("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +1\r\n\r\n", "the length is no number")]
    #[case::no_colon("GET / HTTP/1.1\r\nHost\r\n\r\n", "a header without a colon")]
    fn what_browsers_do_not_send_is_refused(#[case] text: &str, #[case] why: &'static str) {
        assert_eq!(read(text.as_bytes()).unwrap_err(), Bad::Request(why));
    }

    #[test]
    fn who_states_no_length_is_asked_for_it() {
        let chunked = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
        assert_eq!(read(chunked.as_bytes()).unwrap_err(), Bad::NoLength);
        assert_eq!(read(b"POST / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap().1, Err(Bad::NoLength));
    }

    #[rstest]
    #[case("99999999999", Bad::Request("a question so long is not read"))]
    #[case("1", Bad::Request("the body is longer than it says"))]
    #[case("5", Bad::Gone)]
    fn bodies_have_the_length_that_they_state(#[case] length: &str, #[case] expected: Bad) {
        let text = format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\nabc");
        assert_eq!(read(text.as_bytes()).unwrap().1, Err(expected));
    }

    #[rstest]
    #[case(LONGEST_HEAD - 50, true)]
    #[case(LONGEST_HEAD + 50, false)]
    #[case(20_000, false)]
    fn a_head_has_at_most_16_kib(#[case] length: usize, #[case] read: bool) {
        let start = "GET / HTTP/1.1\r\nHost: a\r\nX: ";
        let text = format!("{start}{}\r\n\r\n", "x".repeat(length - start.len()));
        let expected = if read { Ok(()) } else { Err(Bad::Request("the head is too long")) };
        assert_eq!(Request::read(&mut text.as_bytes()).map(drop), expected);
    }

    #[test]
    fn a_head_without_end_is_not_read_on() {
        assert_eq!(Request::read(&mut std::io::repeat(b'a')), Err(Bad::Request("the head is too long")));
        assert_eq!(Request::read(&mut &b"GET /"[..]), Err(Bad::Gone));
    }
}
