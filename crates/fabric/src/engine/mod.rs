//! In which order events are run, and where: calendar, epochs, lookahead, partitions.
//!
//! What an event does is the model's. Only [`binning`], [`transmit`] and [`prefetch`] know of ports: they decide in which
//! order the ports of a switch run, and what they will need.

pub(crate) mod arrivals;
pub(crate) mod binning;
pub(crate) mod calendar;
pub(crate) mod colouring;
pub(crate) mod epoch;
pub(crate) mod event;
pub(crate) mod event_buffer;
pub(crate) mod groups;
pub(crate) mod lookahead;
pub(crate) mod partition;
pub(crate) mod prefetch;
pub(crate) mod ready;
pub(crate) mod run;
pub(crate) mod scheduler;
pub(crate) mod transmit;
