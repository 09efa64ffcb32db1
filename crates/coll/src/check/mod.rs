//! A proof that a schedule does what its call asks for.
//!
//! [`check`] lets all workers of all ranks go as far as they can, with contents that are symbols: every element of every
//! input carries a word of its rank, and its place. In the end every element of every output must hold exactly the words
//! that belong there, each once. On the way nothing may be used before it was written, chunks must fit their slots,
//! senders and receivers must agree about lengths, and two workers of a rank must not touch the same memory unordered.
//! Since connections block, one run decides whether any run can get stuck.
//!
//! ```
//! use railnet_coll::check::check;
//! use railnet_coll::{Algorithm, Call, Choice, Collective, Protocol, Wiring, build};
//!
//! let call = Call::new(Collective::AllReduce, 1000);
//! let choice = Choice::new(Algorithm::Ring, Protocol::Simple);
//! let report = check(&build(&call, &choice, &Wiring::flat(8)).unwrap()).unwrap();
//! assert_eq!(report.steps, 8 * 15);
//! ```

mod error;
mod explain;
mod hazard;
mod links;
mod meaning;
mod memory;
mod run;
mod stuck;
#[cfg(test)]
mod tests;
mod traffic;

pub use error::{Awaited, CheckError, Fault, StepId, Target, Waiting, Wrong};
pub use run::{Done, Inferred};

use crate::call::Collective;
use crate::schedule::Schedule;
use hazard::Hazards;
use meaning::Words;
use run::{Run, Suspect};

/// What a proof went through.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Report {
    /// Steps of all workers of all ranks.
    pub steps: u64,
    /// Chunks that were sent.
    pub chunks: u64,
    /// Connections that were used, in one direction each.
    pub connections: u64,
    /// Elements that each rank sent.
    pub sent: Vec<u64>,
    /// Whether it was proved that workers of a rank do not race. Very large schedules are not examined for that.
    pub is_free_of_races: bool,
}

/// Proves that a schedule does what its call asks for.
pub fn check(schedule: &Schedule) -> Result<Report, CheckError> {
    sensible(schedule)?;
    let run = Run::new(schedule, Words::random(&schedule.call, schedule.ranks));
    prove(run.map_err(|error| *error)?).map(|(report, _)| report)
}

/// Proves a schedule, and tells in which order and round its steps were done.
pub fn trace(schedule: &Schedule) -> Result<(Report, Vec<Done>), CheckError> {
    let report = check(schedule)?;
    let mut run = Run::new(schedule, Words::alike(schedule.ranks)).map_err(|error| *error)?;
    run.logged();
    run.go().map_err(|error| *error)?;
    Ok((report, run.log))
}

/// Proves a schedule whose steps do not say which of them are final, and may read their input by way of any buffer; and
/// tells what is so. Steps come in the order in which they were done.
pub fn infer(schedule: &Schedule) -> Result<Vec<Inferred>, CheckError> {
    sensible(schedule)?;
    let run = Run::new(schedule, Words::distinct(&schedule.call, schedule.ranks));
    let mut run = run.map_err(|error| *error)?;
    run.inferred = Some(Vec::new());
    prove(run).map(|(_, run)| run.inferred.unwrap_or_default())
}

/// Whether the call makes sense, and can be counted.
fn sensible(schedule: &Schedule) -> Result<(), CheckError> {
    meaning::sensible(&schedule.call, schedule.ranks)?;
    if run::elements(schedule).is_none() {
        return Err(CheckError::TooLarge { reason: "more elements than can be counted".into() });
    }
    Ok(())
}

fn prove(mut run: Run<'_>) -> Result<(Report, Run<'_>), CheckError> {
    let schedule = run.schedule;
    let is_free_of_races;
    (run.hazards, is_free_of_races) = Hazards::new(&run);
    if let Err(error) = run.go() {
        return Err(match run.suspect {
            Some(suspect) => explain::explain(schedule, suspect, None, *error),
            None => *error,
        });
    }
    if !run.is_over() {
        return Err(stuck::reason(&run));
    }
    if let Some(error) = stuck::left_over(&run) {
        return Err(error);
    }
    if let Some((rank, element, wanted)) = run.wrong_output() {
        let error = CheckError::Output { rank, element, place: None, wrong: Wrong::Unknown };
        return Err(explain::explain(schedule, Suspect::Output { rank, element }, Some(wanted), error));
    }
    if schedule.call.collective == Collective::Barrier {
        run.barrier().map_err(|error| *error)?;
    }
    let report = Report {
        steps: run.steps,
        chunks: run.chunks,
        connections: run.links.all.len() as u64,
        sent: run.sent.clone(),
        is_free_of_races,
    };
    Ok((report, run))
}
