//! As much of HTTP/1.1 as a page on this machine needs.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Bytes of a request's head, and of its body.
const HEAD_MAX: u64 = 16 << 10;
const BODY_MAX: usize = 64 << 10;
/// Requests that are answered at the same time.
const AT_ONCE: usize = 32;
/// How long a browser may take to send a whole request, and to take a whole answer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
const ANSWER_TIMEOUT: Duration = Duration::from_mins(2);

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
    let open = OpenRequests::default();
    std::thread::scope(|scope| {
        for stream in listener.incoming() {
            let Ok(stream) = stream else { continue };
            let Some(slot) = open.admit(stream) else { continue };
            // Without a thread for it the request is dropped, and its slot is free again.
            let _ = std::thread::Builder::new().spawn_scoped(scope, move || {
                // A browser that goes away in the middle is no news.
                let _ = converse(&slot, address, answer);
            });
        }
    });
}

/// By number in the order of their arrival, with whether the request has come in full.
type Slots = BTreeMap<u64, (Arc<TcpStream>, bool)>;

/// Connections that have a slot.
#[derive(Default)]
struct OpenRequests {
    /// The number of the next one, and those that are open.
    slots: Mutex<(u64, Slots)>,
}

impl OpenRequests {
    /// A slot for a connection. Where none is free, the oldest connection whose request has not come in full loses its own: half-sent
    /// requests do not lock others out.
    fn admit(&self, stream: TcpStream) -> Option<Slot<'_>> {
        let mut guard = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let (next, slots) = &mut *guard;
        if slots.len() >= AT_ONCE {
            let oldest = slots.iter().find(|(_, (_, is_read))| !is_read).map(|(number, _)| *number)?;
            let (evicted, _) = slots.remove(&oldest).expect("it was found above");
            // A peer that is gone already needs no shutdown.
            let _ = evicted.shutdown(Shutdown::Both);
        }
        let (number, stream) = (*next, Arc::new(stream));
        *next += 1;
        slots.insert(number, (Arc::clone(&stream), false));
        Some(Slot { open: self, number, stream })
    }
}

/// A slot: free again when it is dropped.
struct Slot<'a> {
    open: &'a OpenRequests,
    number: u64,
    stream: Arc<TcpStream>,
}

impl Slot<'_> {
    /// The request is here: from now on nothing takes the slot away.
    fn is_read(&self) {
        let mut guard = self.open.slots.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, is_read)) = guard.1.get_mut(&self.number) {
            *is_read = true;
        }
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        self.open.slots.lock().unwrap_or_else(PoisonError::into_inner).1.remove(&self.number);
    }
}

/// A stream with a deadline for all that is read or written.
struct Timed<'a> {
    stream: &'a TcpStream,
    deadline: Instant,
}

impl Timed<'_> {
    fn left(&self) -> io::Result<Option<Duration>> {
        match self.deadline.saturating_duration_since(Instant::now()) {
            Duration::ZERO => Err(io::ErrorKind::TimedOut.into()),
            left => Ok(Some(left)),
        }
    }
}

impl Read for Timed<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(bytes)
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

fn converse(slot: &Slot<'_>, address: SocketAddr, answer: &impl Fn(&Request) -> Response) -> io::Result<()> {
    let stream = &*slot.stream;
    stream.set_nodelay(true)?;
    let request = read(Timed { stream, deadline: Instant::now() + REQUEST_TIMEOUT });
    slot.is_read();
    let response = match request {
        Ok(request) if !is_for_us(&request.host, address) => {
            Response::error(421, "this server answers to its own name only")
        }
        Ok(request) if request.origin.as_deref().is_some_and(|origin| !is_ours(origin, &request.host)) => {
            Response::error(403, "this server answers its own page only")
        }
        // What a damaged file makes of one request ends neither the server nor its slot.
        Ok(request) => catch_unwind(AssertUnwindSafe(|| answer(&request)))
            .unwrap_or_else(|_| Response::error(500, "this cannot be answered: the run file is damaged")),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => Response::error(400, &error.to_string()),
        Err(error) => return Err(error),
    };
    write(Timed { stream, deadline: Instant::now() + ANSWER_TIMEOUT }, &response)
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

fn read(stream: Timed<'_>) -> io::Result<Request> {
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

fn write(mut stream: Timed<'_>, response: &Response) -> io::Result<()> {
    let reason = match response.status {
        200 => "OK",
        400 => "Bad Request",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        409 => "Conflict",
        421 => "Misdirected Request",
        500 => "Internal Server Error",
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

    fn ask(address: SocketAddr, path: &str) -> String {
        let mut stream = TcpStream::connect(address).expect("it listens");
        write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n").expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers");
        answer
    }

    /// A server that panics at `/panic`. It ends with the process of the test.
    fn server() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("it is bound");
        std::thread::spawn(move || {
            serve(&listener, address, &|request: &Request| {
                assert_ne!(request.path, "/panic", "the test wants this");
                Response::new("text/plain", "here")
            });
        });
        address
    }

    #[test]
    fn half_sent_requests_do_not_lock_others_out() {
        let address = server();
        let half: Vec<TcpStream> = (0..AT_ONCE + 8)
            .map(|_| {
                let mut stream = TcpStream::connect(address).expect("it listens");
                stream.write_all(b"GET / HTTP/1.1\r\nHo").expect("it is open");
                stream
            })
            .collect();
        assert!(ask(address, "/").starts_with("HTTP/1.1 200"));
        drop(half);
    }

    #[test]
    fn a_panic_is_an_answer_and_gives_its_slot_back() {
        let address = server();
        for _ in 0..=AT_ONCE {
            assert!(ask(address, "/panic").starts_with("HTTP/1.1 500"));
        }
        assert!(ask(address, "/").starts_with("HTTP/1.1 200"));
    }
}
