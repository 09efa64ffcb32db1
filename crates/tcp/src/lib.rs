//! TCP, sans I/O: a connection is a value that is given segments, data and the time, and gives segments, data and deadlines.
//!
//! The driver calls one of [`Connection::write`], [`Connection::read`], [`Connection::receive`], [`Connection::handle_timeout`], then takes
//! segments from [`Connection::poll_transmit`] until there is none, and waits until [`Connection::poll_timeout`] or the next input. It
//! puts addresses around segments and hands on the ECN bits of the IP header in both directions.
//!
//! What is here: opening and closing (RFC 9293), the retransmission timer (RFC 6298), slow start and congestion avoidance behind
//! [`control::CongestionControl`] (Reno: RFC 5681; Cubic: RFC 9438; DCTCP: RFC 8257), loss recovery from selective acknowledgements (RFC
//! 6675), window scaling and timestamps (RFC 7323), delayed acknowledgements and Nagle (RFC 1122), zero-window probes, ECN (RFC 3168).
//! Not here: urgent data (bytes are taken as the rest), Fast Open, RACK and tail loss probes, path MTU discovery, keep-alives.
//!
//! ```
//! use railnet_core::{Span, Time};
//! use railnet_tcp::{Config, Connection, Segment};
//!
//! let mut now = Time::ZERO;
//! let mut client = Connection::connect(Config::new(1), 7);
//! let mut server = Connection::listen(Config::new(2), 8);
//! client.write(b"hello");
//! for _ in 0..10 {
//!     while let Some(segment) = client.poll_transmit(now) {
//!         server.receive(now, &segment);
//!     }
//!     while let Some(segment) = server.poll_transmit(now) {
//!         client.receive(now, &segment);
//!     }
//!     now += Span::from_us(10);
//! }
//! let mut data = [0; 16];
//! assert_eq!(server.read(&mut data), 5);
//! assert_eq!(&data[..5], b"hello");
//! ```
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

mod config;
mod connection;
pub mod control;
mod ranges;
mod receiver;
mod reduction;
mod round_trip;

mod sender;
mod state;
pub mod testing;

pub use config::Config;
pub use connection::Connection;
pub use state::{Counters, Failure, Segment, State, TimeoutReason};
