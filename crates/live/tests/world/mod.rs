//! Ranks in threads of one process, which meet over real sockets and share memory as processes do.

use std::thread;
use std::time::Duration;

use railnet_core::Rank;
use railnet_live::communicator::Options;
use railnet_live::launch::{Launch, Launcher, RendezvousAddress, free_port};
use railnet_live::rendezvous::Config;
use railnet_live::{Communicator, Conduit};

/// Longer than anything takes that goes well.
pub(crate) const LONG: Duration = Duration::from_mins(1);

/// How each of so many ranks meets the others, at a port that was free a moment ago.
pub(crate) fn configs(world_size: u32) -> Vec<Config> {
    let port = free_port().unwrap();
    let config = |rank| {
        let launch = Launch {
            launcher: Launcher::Torchrun,
            rank: Rank(rank),
            world_size,
            rendezvous: Some(RendezvousAddress::new("127.0.0.1", port)),
            job: "test".to_owned(),
            ..Launch::alone()
        };
        Config { limit: LONG, ..Config::new(&launch) }
    };
    (0..world_size).map(config).collect()
}

/// Lets every rank join and then do something, each in a thread of its own.
pub(crate) fn world<T: Send>(
    ranks: u32,
    conduit: Conduit,
    limit: Duration,
    work: impl Fn(Communicator) -> T + Sync,
) -> Vec<T> {
    world_with(ranks, &Options { limit, conduit: Some(conduit), ..Options::default() }, work)
}

/// The same with these options.
pub(crate) fn world_with<T: Send>(
    ranks: u32,
    options: &Options,
    work: impl Fn(Communicator) -> T + Sync,
) -> Vec<T> {
    world_of(&configs(ranks), options, work)
}

/// The same of these ranks.
pub(crate) fn world_of<T: Send>(
    configs: &[Config],
    options: &Options,
    work: impl Fn(Communicator) -> T + Sync,
) -> Vec<T> {
    thread::scope(|scope| {
        let start = |config: &Config| {
            let (config, options, work) = (config.clone(), options.clone(), &work);
            scope.spawn(move || work(Communicator::meet(&config, &options).unwrap()))
        };
        let ranks: Vec<_> = configs.iter().map(start).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}
