//! As much of HTTP/1.1 as a page on this machine needs.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Bytes of a request's head, and of its body.
const HEAD_MAX: u64 = 16 << 10;
const BODY_MAX: usize = 64 << 10;
/// Requests that are answered at the same time.
const AT_ONCE: usize = 32;
/// How long a browser may take to send a request, or to take an answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// What a browser asks for.
#[derive(Debug, Default)]
pub(super) struct Request {
    pub(super) method: String,
    pub(super) path: String,
    /// What stands behind the question mark, taken apart.
    query: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
    host: String,
    origin: Option<String>,
}

impl Request {
    /// A value of the query.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.query.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// All names and values of the query.
    pub(super) fn query(&self) -> &[(String, String)] {
        &self.query
    }
}

/// What it gets.
pub(super) struct Response {
    pub(super) status: u16,
    pub(super) kind: &'static str,
    pub(super) body: Vec<u8>,
}

impl Response {
    pub(super) fn new(kind: &'static str, body: impl Into<Vec<u8>>) -> Self {
        Self { status: 200, kind, body: body.into() }
    }

    pub(super) fn json(value: &serde_json::Value) -> Self {
        Self::new("application/json", value.to_string())
    }

    /// What is wrong, in words.
    pub(super) fn error(status: u16, message: &str) -> Self {
        Self { status, ..Self::json(&serde_json::json!({ "error": message })) }
    }
}

/// Answers requests until the program ends.
pub(super) fn serve(
    listener: &TcpListener,
    address: SocketAddr,
    answer: &(impl Fn(&Request) -> Response + Sync),
) {
    let busy = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for stream in listener.incoming() {
            let Ok(stream) = stream else { continue };
            if busy.fetch_add(1, Ordering::Relaxed) >= AT_ONCE {
                busy.fetch_sub(1, Ordering::Relaxed);
                continue;
            }
            let busy = &busy;
            scope.spawn(move || {
                // A browser that goes away in the middle is no news.
                let _ = converse(&stream, address, answer);
                busy.fetch_sub(1, Ordering::Relaxed);
            });
        }
    });
}

fn converse(
    stream: &TcpStream,
    address: SocketAddr,
    answer: &impl Fn(&Request) -> Response,
) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.set_nodelay(true)?;
    let response = match read(stream) {
        Ok(request) if !is_for_us(&request.host, address) => {
            Response::error(421, "this server answers to its own name only")
        }
        Ok(request) if request.origin.as_deref().is_some_and(|origin| !is_ours(origin, &request.host)) => {
            Response::error(403, "this server answers its own page only")
        }
        Ok(request) => answer(&request),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => Response::error(400, &error.to_string()),
        Err(error) => return Err(error),
    };
    write(stream, &response)
}

/// Whether the name that a browser asked for is one of this server: a page from elsewhere could otherwise give its own name to
/// this address, and read what is here.
fn is_for_us(host: &str, address: SocketAddr) -> bool {
    let name = host.strip_suffix(&format!(":{}", address.port())).unwrap_or(host);
    let is_number = name.trim_matches(['[', ']']).parse::<std::net::IpAddr>().is_ok();
    name == "localhost" || is_number
}

fn is_ours(origin: &str, host: &str) -> bool {
    origin.strip_prefix("http://") == Some(host)
}

fn bad(message: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message)
}

fn read(stream: &TcpStream) -> io::Result<Request> {
    let mut reader = BufReader::new(stream);
    let mut head = reader.by_ref().take(HEAD_MAX);
    let mut line = String::new();
    head.read_line(&mut line)?;
    let mut words = line.split_ascii_whitespace();
    let (Some(method), Some(target), Some(version)) = (words.next(), words.next(), words.next()) else {
        return Err(bad("not a request"));
    };
    if !version.starts_with("HTTP/1.") {
        return Err(bad("not HTTP/1.1"));
    }
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let pair = |pair: &str| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        (name.to_owned(), value.to_owned())
    };
    let mut request = Request {
        method: method.to_owned(),
        path: path.to_owned(),
        query: query.split('&').filter(|part| !part.is_empty()).map(pair).collect(),
        ..Request::default()
    };
    let mut length = 0;
    loop {
        line.clear();
        if head.read_line(&mut line)? == 0 {
            return Err(bad("the head of the request is too long, or ends too early"));
        }
        let text = line.trim_end();
        if text.is_empty() {
            break;
        }
        let (name, value) = text.split_once(':').ok_or_else(|| bad("a header without a colon"))?;
        match name.to_ascii_lowercase().as_str() {
            "host" => value.trim().clone_into(&mut request.host),
            "origin" => request.origin = Some(value.trim().to_owned()),
            "content-length" => {
                length = value.trim().parse().map_err(|_| bad("content-length is no number"))?;
            }
            _ => {}
        }
    }
    if length > BODY_MAX {
        return Err(bad("the request is too long"));
    }
    request.body.resize(length, 0);
    reader.read_exact(&mut request.body)?;
    Ok(request)
}

fn write(mut stream: &TcpStream, response: &Response) -> io::Result<()> {
    let reason = match response.status {
        200 => "OK",
        400 => "Bad Request",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        409 => "Conflict",
        421 => "Misdirected Request",
        _ => "Error",
    };
    let head = format!(
        "HTTP/1.1 {} {reason}\r\nContent-Type: {}\r\nContent-Length: {}\r\nCache-Control: no-store\r\nConnection: close\r\n\
         Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src \
         'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\nX-Content-Type-Options: nosniff\r\nReferrer-Policy: \
         no-referrer\r\n\r\n",
        response.status,
        response.kind,
        response.body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(&response.body)?;
    stream.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_from_elsewhere_is_told_nothing() {
        let address = "127.0.0.1:8080".parse().unwrap();
        for host in ["localhost:8080", "127.0.0.1:8080", "[::1]:8080", "192.168.1.2:8080"] {
            assert!(is_for_us(host, address), "{host}");
        }
        for host in ["evil.example:8080", "", "localhost.evil.example", "127.0.0.1.evil.example:8080"] {
            assert!(!is_for_us(host, address), "{host}");
        }
        assert!(is_ours("http://localhost:8080", "localhost:8080"));
        assert!(!is_ours("http://evil.example", "localhost:8080"));
        assert!(!is_ours("null", "localhost:8080"));
    }
}
