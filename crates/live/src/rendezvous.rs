//! Ranks meet over TCP at rank 0.
//!
//! Every rank calls [`meet`] with what the others shall know of it, and gets a [`Control`] that knows everybody. Rank 0
//! checks version, number of ranks, duplicates and the secret. What is wrong ends in the same error on every rank, and
//! ranks that do not come are listed in it when the time is up, and named before that ([`Reminders`]). Strangers on the port are counted and change nothing.
//! A secret is proved by both sides and never sent.

mod caller;
mod config;
mod hub;
mod reminders;

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use crate::ReachError;
use crate::control::{Control, Resources};
use crate::host;
use crate::launch::RendezvousAddress;
use crate::message::{BLOB_MAX, Hello, Member, NAME_MAX, Trouble};
use reminders::LIMIT_HINT;

pub(crate) use config::duration;
pub use config::{Config, ConfigError};
pub use reminders::Reminders;

/// How much longer than its limit a rank waits for rank 0 to say what is wrong.
pub(crate) const SLACK: Duration = Duration::from_secs(2);

/// Why ranks did not meet.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MeetError {
    /// What rank 0 found, the same on every rank.
    #[error("{}", .0.text)]
    Trouble(Trouble),
    /// The launcher does not say where rank 0 is.
    #[error("{launcher} does not say where rank 0 is: set RAILNET_RENDEZVOUS=host:port on every rank")]
    Nowhere {
        /// Which launcher.
        launcher: String,
    },
    /// Nobody answers there.
    #[error(
        "rank {rank} found nobody at {meeting} in {waited:.1?}: {last}; is rank 0 running there? ({LIMIT_HINT})"
    )]
    Unreachable {
        /// Who tried.
        rank: u32,
        /// Where.
        meeting: RendezvousAddress,
        /// How long.
        waited: Duration,
        /// What came of the last attempt.
        last: String,
    },
    /// Rank 0 was there, and then it was not.
    #[error("rank 0 at {meeting} is gone: {cause}")]
    HubGone {
        /// Where.
        meeting: RendezvousAddress,
        /// What was seen of it.
        cause: String,
    },
    /// Rank 0 cannot listen.
    #[error("rank 0 cannot listen at {address}: {cause}")]
    Listen {
        /// Where.
        address: String,
        /// Why.
        cause: String,
    },
    /// A blob that is too long.
    #[error("{0} bytes are too many to meet with: {BLOB_MAX} is the limit")]
    BlobTooLong(usize),
    /// The system refuses something.
    #[error("cannot meet: {0}")]
    Io(#[from] std::io::Error),
}

const PREPARED: &str = "ranks that have met were prepared";

/// The door at which ranks meet.
#[derive(Debug)]
pub(crate) enum Door {
    /// Rank 0 opens it. Whoever else is there is in the wrong place, and ranks that call there are told so at once.
    New,
    /// Rank 0 has kept it open since the ranks met before; others have no listener. It was never closed, so that it is
    /// nobody else's: another meeting there is one more of rank 0's own, and ranks that call try again after it. A process whose door
    /// refuses connections has ended.
    Kept(Option<Kept>),
}

/// The listener of rank 0, and where the others listen, by rank.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(crate) listener: TcpListener,
    pub(crate) addresses: Vec<Vec<SocketAddr>>,
}

/// Makes the blob of a rank once it is known at which of its own addresses the others reach it: that of its connection with rank 0.
/// `None` where there is no single one. What cannot be had ends the meeting on every rank, with this trouble.
pub(crate) type Prepare<'a> = &'a mut dyn FnMut(Option<IpAddr>) -> Result<Vec<u8>, Trouble>;

/// Meets all other ranks. Every rank gets everybody's blob; [`Control::members`] has them.
pub fn meet(config: &Config, blob: &[u8]) -> Result<Control, MeetError> {
    if blob.len() > BLOB_MAX {
        return Err(MeetError::BlobTooLong(blob.len()));
    }
    meet_at(Door::New, config, &mut |_| Ok(blob.to_vec()))
}

/// The same at a certain door, with a blob that depends on the address.
pub(crate) fn meet_at(door: Door, config: &Config, prepare: Prepare<'_>) -> Result<Control, MeetError> {
    let mut resources = None;
    let prepare: Prepare<'_> = &mut |local| {
        let had = Resources::new().map_err(|error| ReachError::from(error).trouble(config.rank.0))?;
        resources = Some(had);
        prepare(local)
    };
    let deadline = Instant::now() + config.limit;
    let hello = introduction(config)?;
    if config.world_size == 1 {
        let blob = prepare(Some(Ipv4Addr::LOCALHOST.into())).map_err(MeetError::Trouble)?;
        let resources = resources.expect(PREPARED);
        return Ok(Control::alone(resources, member(&hello, &blob), config.silence));
    }
    let Some(meeting) = &config.rendezvous else {
        return Err(MeetError::Nowhere { launcher: config.launcher.to_string() });
    };
    let control = if config.rank.0 == 0 {
        let (connections, members) = hub::meet(door, config, meeting, &hello, prepare, deadline)?;
        Control::hub(resources.expect(PREPARED), connections, members, config.silence)?
    } else {
        let (connection, members) = caller::meet(&door, config, meeting, hello, prepare, deadline)?;
        Control::leaf(resources.expect(PREPARED), config.rank, connection, members, config.silence)?
    };
    Ok(control)
}

/// How this rank introduces itself.
fn introduction(config: &Config) -> Result<Hello, MeetError> {
    let host = host::host_name();
    let group = config.host_group.clone().unwrap_or_else(|| host.clone());
    Ok(Hello {
        rank: config.rank.0,
        world_size: config.world_size,
        job: job_number(&config.job),
        nonce: crate::secret::random()?,
        limit_ms: millis(config.limit),
        pid: std::process::id(),
        host: cut(&host),
        group: cut(&group),
    })
}

/// A job as greetings have it.
pub(crate) fn job_number(job: &str) -> u64 {
    let mut fold = railnet_core::Fold::new();
    job.bytes().for_each(|byte| fold.push(u64::from(byte)));
    fold.finish_wide() as u64
}

fn member(hello: &Hello, blob: &[u8]) -> Member {
    Member { pid: hello.pid, host: hello.host.clone(), group: hello.group.clone(), blob: blob.to_vec() }
}

/// As much of a name as fits.
fn cut(name: &str) -> String {
    name.chars().take(NAME_MAX / 4).collect()
}

/// A length of time as messages have it.
pub(crate) fn millis(span: Duration) -> u32 {
    u32::try_from(span.as_millis()).unwrap_or(u32::MAX)
}

/// `rank 3`, `ranks 0, 2 and 5`, `ranks 1, 2, 3, … (40 in all)`.
pub(crate) fn named(ranks: &[u32]) -> String {
    const SHOWN: usize = 12;
    let texts: Vec<String> = ranks.iter().take(SHOWN).map(u32::to_string).collect();
    match texts.split_last() {
        None => "no rank".to_owned(),
        Some((only, [])) => format!("rank {only}"),
        Some(_) if ranks.len() > SHOWN => format!("ranks {}, … ({} in all)", texts.join(", "), ranks.len()),
        Some((last, others)) => format!("ranks {} and {last}", others.join(", ")),
    }
}

/// `is` or `are`.
pub(crate) fn verb(ranks: &[u32]) -> &'static str {
    if ranks.len() == 1 { "is" } else { "are" }
}
