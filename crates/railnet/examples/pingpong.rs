//! What `ibv_rc_pingpong` does: one process serves, the other sends 1,000 messages of 4 KiB back and forth with it.
//!
//! ```text
//! pingpong 127.0.0.1:18515           the server: waits for a client at this TCP port
//! pingpong 127.0.0.1:18515 client    the client
//! ```
#![allow(clippy::print_stdout, reason = "an example talks")]

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use railnet::verbs::{Access, Device, Status, Work};

const BYTES: usize = 4096;
const ROUNDS: u64 = 1000;
const LIMIT: Duration = Duration::from_secs(10);

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let address: SocketAddr = arguments.first().ok_or("usage: pingpong ADDRESS:PORT [client]")?.parse()?;
    let is_client = arguments.len() > 1;

    let device = Device::open(SocketAddr::new(address.ip(), 0))?;
    let domain = device.protection_domain();
    let region = domain.register(2 * BYTES, Access::LOCAL_WRITE)?;
    let queue = device.completion_queue(16)?;
    let queue_pair = domain.queue_pair(&queue)?;
    let (outgoing, incoming) = (region.slice(0, BYTES), region.slice(BYTES, BYTES));
    queue_pair.post_receive(1, incoming)?;

    // Each tells the other its address, queue pair number and first PSN, over TCP.
    let mut stream =
        if is_client { TcpStream::connect(address)? } else { TcpListener::bind(address)?.accept()?.0 };
    writeln!(stream, "{}", queue_pair.endpoint())?;
    let mut line = String::new();
    BufReader::new(&stream).read_line(&mut line)?;
    queue_pair.connect(&line.parse()?)?;

    let began = Instant::now();
    let (mut sent, mut received) = (0, 0);
    if is_client {
        queue_pair.post(Work::send(outgoing).id(2))?;
        sent = 1;
    }
    while received < ROUNDS {
        let completions = queue.wait(LIMIT)?;
        assert!(!completions.is_empty(), "no message for {LIMIT:?}");
        for completion in completions {
            assert_eq!(completion.status, Status::Success, "work request {}", completion.work);
            if completion.work == 1 {
                received += 1;
                queue_pair.post_receive(1, incoming)?;
                if sent < ROUNDS {
                    queue_pair.post(Work::send(outgoing).id(2))?;
                    sent += 1;
                }
            }
        }
    }
    // The last message is acknowledged before this NIC ends.
    while !queue.wait(Duration::from_millis(200))?.is_empty() {}
    println!(
        "{received} messages of {BYTES} bytes each way, {:.1?} each",
        began.elapsed() / (2 * ROUNDS as u32)
    );
    Ok(())
}
