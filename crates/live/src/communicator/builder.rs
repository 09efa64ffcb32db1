//! Configuring a communicator of all ranks in code, with the launcher's variables as defaults.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use railnet_core::Rank;

use super::{Communicator, Error, Options};
use crate::agreement::Quorum;
use crate::authentication::Authentication;
use crate::conduit::Conduit;
use crate::launch::{Launch, RendezvousAddress, WORLD_SIZE_MAX};
use crate::log::Level;
use crate::rdma::RoceOptions;
use crate::rendezvous::{Config, ConfigError};
use crate::secret::Secret;

/// Configures and connects the communicator of all ranks: made by [`Communicator::builder`].
///
/// What is not set here comes from the variables of the launcher and of Railnet, and then from their defaults. All ranks need the
/// same timeout, conduit, authentication, quorum, secret and job.
///
/// ```
/// use std::time::Duration;
/// use railnet_live::{Communicator, Conduit};
///
/// // Under a launcher these are its ranks; started by hand it is one rank alone.
/// let world = Communicator::builder().timeout(Duration::from_secs(30)).conduit(Conduit::Tcp).connect()?;
/// world.barrier()?;
/// # Ok::<(), railnet_live::communicator::Error>(())
/// ```
///
/// Without a launcher, a program says itself which rank it is and where rank 0 listens:
///
/// ```
/// use railnet_live::Communicator;
/// use railnet_live::launch::free_port;
///
/// let port = free_port()?;
/// let world = std::thread::scope(|scope| {
///     let rank = |rank| Communicator::builder().rank(rank, 2).rendezvous("127.0.0.1", port).job("pair").connect();
///     let other = scope.spawn(move || rank(1).map(|world| world.rank()));
///     let own = rank(0)?;
///     assert_eq!((own.rank(), own.size()), (0, 2));
///     drop(own);
///     other.join().expect("it does not panic")
/// })?;
/// assert_eq!(world, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
#[must_use = "nothing happens before `connect`"]
pub struct CommunicatorBuilder {
    rank: Option<(usize, usize)>,
    rendezvous: Option<RendezvousAddress>,
    job: Option<String>,
    secret: Option<Secret>,
    bind: Option<IpAddr>,
    host_group: Option<String>,
    rendezvous_timeout: Option<Duration>,
    timeout: Option<Duration>,
    quorum: Option<Quorum>,
    conduit: Option<Conduit>,
    authentication: Option<Authentication>,
    roce: Option<RoceOptions>,
    log: Option<Level>,
    call_trace: Option<PathBuf>,
}

impl CommunicatorBuilder {
    /// This process is rank `rank` of `size`, whatever the launcher says.
    pub fn rank(mut self, rank: usize, size: usize) -> Self {
        self.rank = Some((rank, size));
        self
    }

    /// Rank 0 listens at this host and port (`RAILNET_RENDEZVOUS`).
    pub fn rendezvous(mut self, host: &str, port: u16) -> Self {
        self.rendezvous = Some(RendezvousAddress::new(host, port));
        self
    }

    /// The name of the job, which tells its ranks from those of others at the same address (`RAILNET_JOB`).
    pub fn job(mut self, name: &str) -> Self {
        self.job = Some(name.to_owned());
        self
    }

    /// The secret that authenticates the ranks (`RAILNET_SECRET`).
    pub fn secret(mut self, secret: Secret) -> Self {
        self.secret = Some(secret);
        self
    }

    /// The address that this rank listens on (`RAILNET_BIND`).
    pub fn bind(mut self, address: IpAddr) -> Self {
        self.bind = Some(address);
        self
    }

    /// The host group: ranks of different groups never use shared memory (`RAILNET_HOST_GROUP`).
    pub fn host_group(mut self, name: &str) -> Self {
        self.host_group = Some(name.to_owned());
        self
    }

    /// How long ranks wait for each other at the rendezvous; otherwise as long as the timeout (`RAILNET_RENDEZVOUS_LIMIT`).
    pub fn rendezvous_timeout(mut self, timeout: Duration) -> Self {
        self.rendezvous_timeout = Some(timeout);
        self
    }

    /// The timeout of a call without progress (`RAILNET_TIMEOUT`).
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// How many ranks have to survive a failure (`RAILNET_QUORUM`).
    pub fn quorum(mut self, quorum: Quorum) -> Self {
        self.quorum = Some(quorum);
        self
    }

    /// The conduit between all ranks (`RAILNET_CONDUIT`).
    pub fn conduit(mut self, conduit: Conduit) -> Self {
        self.conduit = Some(conduit);
        self
    }

    /// Which packets and slices are authenticated (`RAILNET_AUTHENTICATION`).
    pub fn authentication(mut self, authentication: Authentication) -> Self {
        self.authentication = Some(authentication);
        self
    }

    /// The NIC of this rank, where the conduit is RoCE.
    pub fn roce(mut self, roce: RoceOptions) -> Self {
        self.roce = Some(roce);
        self
    }

    /// The log level on standard error (`RAILNET_DEBUG`).
    pub fn log(mut self, level: Level) -> Self {
        self.log = Some(level);
        self
    }

    /// The file of the call trace, to which each rank adds `.rank` and its number (`RAILNET_RECORD`).
    pub fn call_trace(mut self, path: impl Into<PathBuf>) -> Self {
        self.call_trace = Some(path.into());
        self
    }

    /// Meets all other ranks.
    pub fn connect(self) -> Result<Communicator, Error> {
        let launch = self.launch()?;
        let mut config = Config::from_env(&launch)?;
        let mut options = Options::from_env()?;
        config.limit = self.rendezvous_timeout.or(self.timeout).unwrap_or(config.limit);
        config.secret = self.secret.unwrap_or(config.secret);
        config.bind = self.bind.or(config.bind);
        config.host_group = self.host_group.or(config.host_group);
        options.limit = self.timeout.unwrap_or(options.limit);
        options.quorum = self.quorum.unwrap_or(options.quorum);
        options.conduit = self.conduit.or(options.conduit);
        options.authentication = self.authentication.unwrap_or(options.authentication);
        options.roce = self.roce.unwrap_or(options.roce);
        options.log = self.log.unwrap_or(options.log);
        options.record = self.call_trace.or(options.record);
        Communicator::meet(&config, &options)
    }

    /// The identity of this rank, and where it meets the others.
    fn launch(&self) -> Result<Launch, Error> {
        let Some((rank, size)) = self.rank else {
            let mut launch = Launch::from_env()?;
            launch.rendezvous = self.rendezvous.clone().or(launch.rendezvous);
            launch.job = self.job.clone().unwrap_or(launch.job);
            return Ok(launch);
        };
        if rank >= size || size > WORLD_SIZE_MAX as usize {
            let need =
                format!("a rank below the number of ranks is needed, which is {WORLD_SIZE_MAX} at most");
            let text = format!("{rank} of {size}");
            return Err(ConfigError { name: "CommunicatorBuilder::rank", text, need: need.into() }.into());
        }
        let (rank, size) = (Rank(rank as u32), size as u32);
        let job = || self.job.clone().unwrap_or_default();
        match &self.rendezvous {
            Some(address) => Ok(Launch::told(rank, size, address.clone(), job())),
            // Where the others are, the variables have to say.
            None => {
                let launch = Launch::from_env()?;
                let job = self.job.clone().unwrap_or_else(|| launch.job.clone());
                Ok(Launch { rank, world_size: size, job, ..launch })
            }
        }
    }
}
