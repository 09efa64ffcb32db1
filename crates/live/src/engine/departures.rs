//! Why ranks leave. A rank whose call has failed because of others says so before its program learns of the failure. If it leaves
//! then, ranks that wait for it in another communicator name those others: they may be in no communicator with the rank that died.

use std::collections::BTreeMap;

use railnet_coll::machine::{Departure, Failure};
use railnet_core::Rank;

use super::context::Context;
use super::notices::cut;
use crate::message::fields::{Reader, put_ranks, put_text};
use crate::message::{Malformed, NOTICE_MAX};

/// Culprits that are named.
const CULPRITS: usize = 64;

/// A failure of a rank that others caused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Reason {
    /// The ranks of the world that caused it, in ascending order.
    culprits: Vec<u32>,
    /// The failure in words, with ranks of the world.
    text: String,
}

impl Reason {
    /// That of a failure in a communicator of these ranks of the world; none where this rank is to blame, or nobody is known to be.
    fn new(failure: &Failure, members: &[u32], own: u32) -> Option<Self> {
        let world = |rank: Rank| members.get(rank.0 as usize).copied();
        let inside = failure.culprits().into_iter().filter_map(world);
        let mut culprits: Vec<u32> = inside.chain(failure.outsiders().iter().copied()).collect();
        culprits.sort_unstable();
        culprits.dedup();
        culprits.truncate(CULPRITS);
        if culprits.is_empty() || culprits.contains(&own) {
            return None;
        }
        let text = match failure {
            Failure::Departed { departure, .. } => departure.cause.clone(),
            other => other.renumbered(&|rank| world(rank).map_or(rank, Rank)).to_string(),
        };
        Some(Self { culprits, text })
    }

    pub(crate) fn write(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put_ranks(&mut out, &self.culprits);
        put_text(&mut out, cut(&self.text));
        out
    }

    pub(crate) fn read(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(bytes);
        let culprits = reader.list("ranks", |reader| reader.number("rank"))?;
        let text = reader.text("failure", NOTICE_MAX)?;
        reader.finish()?;
        Ok(Self { culprits, text })
    }

    /// For a communicator of these ranks of the world.
    pub(super) fn departure(&self, members: &[u32]) -> Departure {
        let index = |world: &u32| members.iter().position(|member| member == world);
        Departure {
            ranks: self.culprits.iter().filter_map(index).map(|index| Rank(index as u32)).collect(),
            outsiders: self.culprits.iter().copied().filter(|world| index(world).is_none()).collect(),
            cause: self.text.clone(),
        }
    }
}

/// Failures that ranks have told each other.
#[derive(Debug, Default)]
pub(super) struct Departures {
    /// What this rank has told the others.
    told: Option<Reason>,
    /// What the others have told, by their ranks in the world.
    heard: BTreeMap<u32, Reason>,
    /// Why rank 0 is gone, where it is. It passes on what ranks tell each other: of those that leave after it nothing is heard.
    hub: Option<Reason>,
}

impl Departures {
    /// This rank's program is about to learn of a failure: what the others are to hear, where they have not.
    pub(super) fn failed(&mut self, failure: &Failure, members: &[u32], own: u32) -> Option<Vec<u8>> {
        let reason = Reason::new(failure, members, own)?;
        if self.told.as_ref().is_some_and(|told| told.culprits == reason.culprits) {
            return None;
        }
        let body = reason.write();
        self.told = Some(reason);
        Some(body)
    }

    /// This rank goes on after the failure. Whether the others are to hear that.
    #[inline]
    pub(super) fn continues(&mut self) -> bool {
        self.told.take().is_some()
    }

    /// What another rank has told.
    pub(super) fn hear(&mut self, rank: u32, body: &[u8]) {
        // Nonsense from a rank that has proved who it is says as little as nothing.
        match Reason::read(body) {
            Ok(reason) if !reason.culprits.is_empty() => _ = self.heard.insert(rank, reason),
            _ => _ = self.heard.remove(&rank),
        }
    }

    /// Whether a call of a rank has failed because of others, and it has made none since.
    pub(super) fn has_told(&self, rank: u32) -> bool {
        self.heard.contains_key(&rank)
    }

    /// Why a rank has left, as far as it has told, or could have. Nobody leaves because of itself: it is lost.
    pub(super) fn of(&self, rank: u32) -> Option<&Reason> {
        self.heard.get(&rank).or(self.hub.as_ref()).filter(|reason| reason.culprits != [rank])
    }

    /// Rank 0 is lost, and the control channel with it.
    pub(super) fn lose_hub(&mut self, cause: &str) {
        let reason = || Reason { culprits: vec![0], text: format!("rank 0 is lost: {cause}") };
        self.hub = Some(self.heard.get(&0).cloned().unwrap_or_else(reason));
    }

    /// The failure of a call whose limit is over when nobody can be asked any more.
    pub(super) fn unanswered(&self, context: &Context) -> Option<Failure> {
        let departure = self.hub.as_ref()?.departure(&context.members);
        let (call, awaited) = context.awaited()?;
        let text = format!(
            "{call} stands still, waits for {awaited} and cannot ask: rank 0 of the job, by way of which ranks tell each other, is \
             gone: {}",
            departure.cause
        );
        let Departure { ranks, outsiders, .. } = departure;
        Some(Failure::Told { by: context.machine.rank(), ranks, outsiders, text })
    }

    /// Ends what waits for a rank of the world that is gone; where the rank has not told why, for this cause.
    pub(super) fn end(&self, context: &mut Context, world: u32, cause: &str) {
        let Some(rank) = context.rank_of(world) else { return };
        match self.of(world) {
            Some(reason) => context.machine.departed(rank, reason.departure(&context.members)),
            None => context.machine.lost(rank, cause),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lost(rank: u32) -> Failure {
        Failure::Lost { rank: Rank(rank), cause: "its connection was closed".to_owned(), during: None }
    }

    #[test]
    fn a_failure_names_the_same_ranks_in_every_communicator() {
        let mut own = Departures::default();
        // Rank 3 of the world, in a communicator of ranks 0, 1 and 3.
        let body = own.failed(&lost(1), &[0, 1, 3], 3).unwrap();
        // Once is enough.
        assert_eq!(own.failed(&lost(1), &[0, 1, 3], 3), None);
        let mut other = Departures::default();
        other.hear(3, &body);
        let reason = other.of(3).unwrap();
        let departure = reason.departure(&[0, 3]);
        assert_eq!((&departure.ranks[..], &departure.outsiders[..]), (&[][..], &[1][..]));
        let departure = reason.departure(&[3, 1]);
        assert_eq!((&departure.ranks[..], &departure.outsiders[..]), (&[Rank(1)][..], &[][..]));
        // Who leaves because of that passes the first reason on.
        let failure = Failure::Departed { rank: Rank(1), departure: reason.departure(&[0, 3]), during: None };
        assert_eq!(other.failed(&failure, &[0, 3], 0).unwrap(), body);
        assert_eq!(
            failure.to_string(),
            "rank 1 left after a failure in another communicator because of rank 1 of the job: \
             rank 1 is lost: its connection was closed"
        );
    }

    #[test]
    fn a_rank_that_goes_on_withdraws_what_it_has_told() {
        let mut own = Departures::default();
        assert!(!own.continues());
        let body = own.failed(&lost(0), &[0, 1], 1).unwrap();
        let mut other = Departures::default();
        other.hear(1, &body);
        assert!(own.continues() && !own.continues());
        other.hear(1, &[]);
        assert!(other.of(1).is_none());
        // A second failure is told again.
        assert!(own.failed(&lost(0), &[0, 1], 1).is_some());
    }

    #[test]
    fn where_rank_0_is_gone_its_reason_stands_for_those_that_cannot_be_heard() {
        let mut other = Departures::default();
        other.lose_hub("its connection was closed");
        assert_eq!(other.of(2).unwrap().departure(&[2, 3]).outsiders, [0]);
        // It had left because of rank 1.
        let mut hub = Departures::default();
        let body = hub.failed(&lost(1), &[0, 1], 0).unwrap();
        let mut other = Departures::default();
        other.hear(0, &body);
        other.lose_hub("its connection was closed");
        assert_eq!(other.of(2).unwrap().departure(&[2, 3]).outsiders, [1]);
    }

    #[test]
    fn who_is_to_blame_itself_blames_nobody() {
        let mut own = Departures::default();
        assert_eq!(own.failed(&lost(1), &[0, 3], 3), None);
        assert_eq!(own.failed(&Failure::Aborted { by: Rank(0) }, &[0, 3], 3), None);
    }

    #[test]
    fn damaged_reasons_are_refused() {
        let bytes = Reason { culprits: vec![1, 5], text: "lost".to_owned() }.write();
        assert!(Reason::read(&bytes).is_ok());
        for length in 0..bytes.len() {
            assert!(Reason::read(&bytes[..length]).is_err(), "cut after {length} bytes");
        }
    }
}
