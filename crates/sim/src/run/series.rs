//! What happens over time: queues, rates and pauses of links, and what connections get through.

use railnet_core::event::Sink;
use railnet_core::{Psn, Span, Time};
use railnet_fabric::{ChannelSample, Network};

use super::RunError;
use super::runner::Runner;

/// More rows than are kept, which would take half a gigabyte, and more samples than are taken.
const ROWS_MAX: usize = 10_000_000;

/// What was seen at regular moments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Series {
    /// From one moment to the next.
    pub interval: Span,
    /// Links on which something happened, moment by moment.
    pub links: Vec<LinkSample>,
    /// Connections that got on, moment by moment.
    pub connections: Vec<ConnectionSample>,
}

/// One direction of a link in the interval that ends at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkSample {
    /// The end of the interval.
    pub time: Time,
    /// Which, by its place in [`super::Outcome::links`].
    pub link: u32,
    /// Bytes that wait in front of it at that moment.
    pub queue: u64,
    /// Bytes that went over it in the interval.
    pub bytes: u64,
    /// How long it was held back in the interval.
    pub paused: Span,
}

/// One direction of a connection in the interval that ends at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionSample {
    /// The end of the interval.
    pub time: Time,
    /// The sender.
    pub source: u32,
    /// The receiver.
    pub target: u32,
    /// The DSCP, which tells connections between the same hosts apart.
    pub dscp: u8,
    /// Payload that arrived in order in the interval, in full packets.
    pub bytes: u64,
}

/// Takes samples.
pub(super) struct Sampler {
    series: Series,
    /// When to sample next; never again once all flows have finished.
    pub(super) next: Time,
    /// Looks so far, and the most of them and of rows.
    samples: usize,
    most: usize,
    /// What every channel was like the last time.
    before: Vec<ChannelSample>,
    /// What every queue pair expected the last time, by host and in the order of its connections.
    expected: Vec<Vec<(u32, Psn)>>,
}

impl Sampler {
    pub(super) fn new(interval: Span, hosts: usize) -> Self {
        let series = Series { interval, links: Vec::new(), connections: Vec::new() };
        let next = Time::ZERO + interval;
        let expected = vec![Vec::new(); hosts];
        Self { series, next, samples: 0, most: ROWS_MAX, before: Vec::new(), expected }
    }

    pub(super) fn finish(self) -> Series {
        self.series
    }

    /// Looks at everything, and keeps what has changed; once more later where the run goes on.
    pub(super) fn sample<S: Sink>(
        &mut self,
        network: &mut Network<S>,
        runner: &Runner,
        goes_on: bool,
    ) -> Result<(), RunError> {
        self.sample_links(network);
        self.sample_connections(network, runner);
        self.next = if goes_on { self.next + self.series.interval } else { Time::NEVER };
        self.samples += 1;
        match self.samples.max(self.series.links.len() + self.series.connections.len()) > self.most {
            true => Err(RunError::Samples { rows: self.most, interval: self.series.interval }),
            false => Ok(()),
        }
    }

    fn sample_links<S: Sink>(&mut self, network: &Network<S>) {
        let Self { before, series, next: time, .. } = self;
        for (link, now) in network.samples().enumerate() {
            if before.len() <= link {
                before.push(ChannelSample::default());
            }
            let last = std::mem::replace(&mut before[link], now);
            // A link that changed its rate in the middle of a packet may seem to have gone back.
            let bytes = now.bytes.saturating_sub(last.bytes);
            let paused_ps = now.paused_ps.saturating_sub(last.paused_ps);
            if bytes > 0 || now.queued > 0 || paused_ps > 0 {
                let paused = Span::from_ps(paused_ps);
                series.links.push(LinkSample {
                    time: *time,
                    link: link as u32,
                    queue: now.queued,
                    bytes,
                    paused,
                });
            }
        }
    }

    fn sample_connections<S: Sink>(&mut self, network: &mut Network<S>, runner: &Runner) {
        let time = self.next;
        for (target, list) in self.expected.iter_mut().enumerate() {
            let target = target as u32;
            for (source, dscp, own) in runner.peers(target) {
                let (nic, _) = network.nic(target);
                let Ok(info) = nic.query_qp(own) else { continue };
                // Connections are only ever added; one that is new began with 0.
                let key = own.value();
                let place = list.partition_point(|(other, _)| *other < key);
                if list.get(place).is_none_or(|(other, _)| *other != key) {
                    list.insert(place, (key, Psn::new(0)));
                }
                let last = std::mem::replace(&mut list[place].1, info.receive_psn);
                let packets = info.receive_psn.minus(last.value()).value();
                if packets > 0 {
                    let bytes = u64::from(packets) * u64::from(info.mtu.bytes());
                    self.series.connections.push(ConnectionSample { time, source, target, dscp, bytes });
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use railnet_core::event::NoSink;

    use super::super::Run;
    use super::*;
    use crate::scenario::Scenario;

    #[test]
    fn there_is_an_end_to_what_is_kept() {
        let text = "sample = \"1us\"\n[fabric]\ntopology = { kind = \"single-switch\", hosts = 2 }\n\
                    [[traffic]]\nkind = \"flow\"\nfrom = 0\nto = 1\nbytes = \"1MB\"\n";
        let finished = |most: usize| {
            let mut run = Run::new(&Scenario::parse(text).unwrap(), NoSink).unwrap();
            run.sampler.as_mut().unwrap().most = most;
            run.finish()
        };
        assert!(finished(1_000).is_ok());
        let error = finished(100).err().unwrap();
        assert_eq!(error, RunError::Samples { rows: 100, interval: Span::from_us(1) });
        assert!(error.to_string().contains("give a larger `sample`"), "{error}");
    }
}
