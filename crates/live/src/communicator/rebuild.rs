//! Ranks that are left after a failure agree on who has failed, and continue: MPI ULFM's revoke, agree and shrink.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use railnet_core::{Rank, Span};

use super::{Communicator, Error};
use crate::agreement::mesh::{self, Mesh};
use crate::agreement::{Config as AgreementConfig, Decision, Outcome};
use crate::control::Absence;
use crate::engine::Engine;
use crate::rendezvous::{Config, job_number};

/// Heartbeat timeouts that an agreement takes beyond the time in which ranks enter: leaders may fail one after the other.
const ROUNDS: u32 = 4;

/// What the ranks that are left have agreed on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Agreed {
    /// The bitwise AND of the flags of all that answered.
    pub flags: u64,
    /// The ranks that have failed, in ascending order: the same on every rank.
    pub failed: Vec<usize>,
}

/// The ranks that agree, which change with each decision.
struct Membership {
    /// Which agreement it is.
    lineage: String,
    /// Ranks of the old world.
    worlds: Vec<u32>,
    /// This rank among them.
    rank: u32,
    /// Those that are known to have failed.
    failed: Vec<u32>,
}

impl Communicator {
    /// Makes all calls of all ranks fail, now and later, but for [`Communicator::agree`] and [`Communicator::shrink`]: what a rank does
    /// that has seen a failure of which the others may not know (`MPI_Comm_revoke`).
    pub fn revoke(&self) {
        self.abort();
    }

    /// Agrees with all ranks that are left on the bitwise AND of their flags, and on who has failed (`MPI_Comm_agree`). It works after
    /// failures and after [`Communicator::revoke`], and changes nothing. Every rank that is left calls it.
    pub fn agree(&self, flags: u64) -> Result<Agreed, Error> {
        let membership = self.membership(&[]);
        let Decision { failed, flags } = self.settle(&membership, flags, &[])?;
        Ok(Agreed { flags, failed: failed.into_iter().map(|rank| rank as usize).collect() })
    }

    /// A communicator of the ranks that are left (`MPI_Comm_shrink`). Every one of them calls it.
    ///
    /// ```no_run
    /// # use railnet_live::Communicator;
    /// # use railnet_core::ReduceOp;
    /// # let mut world = Communicator::from_env()?;
    /// # let mut data = [0.0_f32];
    /// if world.all_reduce_in_place(&mut data, ReduceOp::Sum).is_err() {
    ///     world.revoke();
    ///     world = world.shrink()?;
    /// }
    /// # Ok::<(), railnet_live::communicator::Error>(())
    /// ```
    pub fn shrink(&self) -> Result<Self, Error> {
        self.rebuild_without(&[])
    }

    /// The same, and without these ranks, whether they answer or not. The ranks that are left first agree on one set of failed ranks: the
    /// union of what all of them know and give here. Only a quorum of them continues ([`super::Options::quorum`]), so that the two sides of a
    /// partitioned network never both do; where more ranks fail meanwhile, those that are left agree again. Nothing of the old
    /// communicator is used any more.
    pub fn rebuild_without(&self, lost: &[usize]) -> Result<Self, Error> {
        if lost.contains(&self.rank()) {
            return Err(Error::LeftOut { rank: self.rank() });
        }
        let (config, options) = self.process.origin();
        let mut membership = self.membership(lost);
        let mut abandoned = Vec::new();
        loop {
            let decision = self.settle(&membership, u64::MAX, &abandoned)?;
            membership.exclude(&decision);
            let worlds = &membership.worlds;
            let next = self.process.with(|engine| {
                let listener = engine.conduits().kept_listener()?;
                Ok::<_, std::io::Error>((engine.conduits().next_meeting(worlds)?, listener))
            });
            let ((meeting, door), listener) = next.map_err(crate::ReachError::from)?;
            let job = format!("{} of {worlds:?}", membership.lineage);
            let attempt = Config {
                rank: Rank(membership.rank),
                world_size: worlds.len() as u32,
                rendezvous: meeting,
                job: job.clone(),
                is_port_held: false,
                ..config.clone()
            };
            let error = match Self::meet_at(door, &attempt, options, Some(&listener)) {
                Ok(communicator) => return Ok(communicator),
                Err(error) => error,
            };
            // As many times as ranks can fail.
            let failed = error.failed_peers().filter(|ranks| !ranks.contains(&membership.rank));
            let Some(failed) = failed.filter(|_| abandoned.len() < self.size()) else { return Err(error) };
            self.log.info(|| format!("agreeing again, because ranks could not meet: {error}"));
            abandoned.push(job_number(&job));
            membership.failed = failed;
            // As a rank does for which the rendezvous succeeded, and that finds out with its first call.
            membership.lineage = lineage(&job, 0, 0);
        }
    }

    /// All ranks, with those that are known to have failed and those that the program names.
    fn membership(&self, lost: &[usize]) -> Membership {
        let gone = self.process.with(Engine::gone);
        let absent = self.process.control().absent();
        let is_silent = |world: &u32| {
            absent.iter().any(|(rank, absence)| rank.0 == *world && matches!(absence, Absence::Silent))
        };
        let failed = (0..self.size() as u32).filter(|rank| {
            let world = &self.members[*rank as usize];
            lost.contains(&(*rank as usize)) || gone.contains(world) || is_silent(world)
        });
        let count = self.agreements.fetch_add(1, Ordering::Relaxed);
        Membership {
            lineage: lineage(&self.process.origin().0.job, self.name, count),
            worlds: self.members.to_vec(),
            rank: self.rank.0,
            failed: failed.filter(|rank| *rank != self.rank.0).collect(),
        }
    }

    /// Agrees with those that are left.
    fn settle(&self, membership: &Membership, flags: u64, abandoned: &[u64]) -> Result<Decision, Error> {
        let began = Instant::now();
        let (config, options) = self.process.origin();
        let next = self.process.with(|engine| {
            let conduits = engine.conduits();
            Ok::<_, std::io::Error>((conduits.kept_listener()?, conduits.kept_addresses(&membership.worlds)))
        });
        let (listener, addresses) = next.map_err(crate::ReachError::from)?;
        let size = membership.worlds.len() as u32;
        let agreement = AgreementConfig {
            rank: membership.rank,
            size,
            quorum: options.quorum,
            enter_timeout: span(options.limit),
            silence_timeout: span(config.silence),
            timeout: span(options.limit + config.silence * ROUNDS),
        };
        let mut instance = railnet_core::Fold::new();
        membership.lineage.bytes().for_each(|byte| instance.push(u64::from(byte)));
        let mesh = Mesh {
            instance: instance.finish_wide(),
            secret: &config.secret,
            listener: &listener,
            addresses: &addresses,
            heartbeat_timeout: config.silence,
            abandoned,
        };
        let outcome =
            mesh::agree(&mesh, agreement, &membership.failed, flags).map_err(crate::ReachError::from)?;
        self.log.info(|| format!("agreement among {size} ranks: {outcome:?} after {:.1?}", began.elapsed()));
        match outcome {
            Outcome::Agreed(decision) => Ok(decision),
            Outcome::Excluded(_) => Err(Error::Excluded { rank: membership.rank as usize }),
            Outcome::NoQuorum(answered) => Err(Error::NoQuorum {
                answered: indices(answered),
                size: size as usize,
                quorum: options.quorum,
            }),
            Outcome::TimedOut(answered) => {
                let answered = indices(answered);
                Err(Error::NoAgreement { answered, size: size as usize, waited: began.elapsed() })
            }
        }
    }
}

impl Membership {
    fn exclude(&mut self, decision: &Decision) {
        let own = self.worlds[self.rank as usize];
        let mut rank = 0..;
        self.worlds.retain(|_| !rank.next().is_some_and(|rank| decision.failed.contains(&rank)));
        let place = self.worlds.iter().position(|world| *world == own);
        self.rank = place.expect("a rank that agreed is not excluded") as u32;
    }
}

/// The name of an agreement: the same on all ranks that enter it, and no other's.
fn lineage(job: &str, name: u64, count: u64) -> String {
    format!("{job} {name:x} #{count}")
}

/// Ranks as the program knows them.
fn indices(ranks: BTreeSet<u32>) -> Vec<usize> {
    ranks.into_iter().map(|rank| rank as usize).collect()
}

fn span(duration: Duration) -> Span {
    Span::from_ns(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX / 1000))
}
