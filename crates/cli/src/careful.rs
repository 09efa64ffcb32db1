//! Keys and variables that have no effect on a run, and what formulas are known to differ from packets in: told on the screen and in
//! the JSON.

use std::collections::BTreeMap;

use railnet_job::parallel::Scope;
use railnet_job::run::analytic::Caveat;
use railnet_sim::{Fidelity, Inert, JobResult, JobsOutcome, WhyInert};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Keys of one reason that are named on a line; the JSON has all.
const NAMED: usize = 8;

/// A line for each reason, but for variables that are not read: [`crate::environment`] has named them, and where they come from.
pub(crate) fn lines(inert: &[Inert]) -> Vec<String> {
    let mut by_reason: BTreeMap<String, (WhyInert, Vec<&str>)> = BTreeMap::new();
    for one in inert.iter().filter(|one| one.why != WhyInert::NotRead) {
        // Variables are known by their own names.
        let name = one.key.strip_prefix("env.").unwrap_or(&one.key);
        by_reason.entry(one.why.to_string()).or_insert((one.why, Vec::new())).1.push(name);
    }
    by_reason
        .into_values()
        .map(|(why, keys)| {
            let more = keys.len().saturating_sub(NAMED);
            let mut names = keys.iter().take(NAMED).copied().collect::<Vec<_>>().join(", ");
            if more > 0 {
                names = format!("{names} and {more} more");
            }
            format!("{names} {} {why}", if keys.len() == 1 { "has" } else { "have" })
        })
        .collect()
}

/// The same for programs.
pub(crate) fn object(inert: &[Inert]) -> Value {
    inert.iter().map(|one| json!({ "key": one.key, "why": one.why.to_string() })).collect()
}

/// Why packets may differ from formulas, for one kind of traffic.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Notice {
    scope: String,
    what: String,
    why: String,
}

impl Notice {
    fn line(&self) -> String {
        format!("{} traffic: {}", self.scope.replace('_', " "), self.why)
    }
}

/// What is known to differ.
pub(crate) fn notices(found: &[(Scope, Caveat)]) -> Vec<Notice> {
    let notice = |(scope, caveat): &(Scope, Caveat)| Notice {
        scope: scope.name().replace(' ', "_"),
        what: caveat.name().to_owned(),
        why: caveat.to_string(),
    };
    found.iter().map(notice).collect()
}

/// A line for each kind of traffic of which packets may differ from formulas.
pub(crate) fn caveats(found: &[(Scope, Caveat)]) -> impl Iterator<Item = String> {
    notices(found).into_iter().map(|notice| notice.line())
}

/// The same for programs.
pub(crate) fn caveats_object(found: &[Notice]) -> Value {
    let object = |Notice { scope, what, why }: &Notice| json!({ "scope": scope, "what": what, "why": why });
    found.iter().map(object).collect()
}

/// Why packets may differ from formulas for a job that is not alone: links that several use are computed for each by itself.
fn not_alone(outcome: &JobsOutcome) -> Option<Notice> {
    let is_one = outcome.jobs.len() > 1 && outcome.fidelity == Fidelity::Analytic;
    is_one.then(|| Notice {
        scope: "all".to_owned(),
        what: "other_jobs".to_owned(),
        why: "each job is computed as if it had the fabric to itself; use `--fidelity packet`".to_owned(),
    })
}

/// What is known to differ for one job of a run.
pub(crate) fn notices_of_job(outcome: &JobsOutcome, job: &JobResult) -> Vec<Notice> {
    notices(&job.first.caveats).into_iter().chain(not_alone(outcome)).collect()
}

/// A line for each notice of all jobs of a run, each once.
pub(crate) fn caveats_of_jobs(outcome: &JobsOutcome) -> Vec<String> {
    let all = outcome.jobs.iter().flat_map(|job| notices_of_job(outcome, job));
    let mut lines: Vec<String> = Vec::new();
    for line in all.map(|notice| notice.line()) {
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    lines
}

/// Notices of several runs, each once, with how many of them have it where not all have; the first run's words stand for all.
pub(crate) fn caveats_of_all<'a>(runs: impl Iterator<Item = &'a [Notice]>) -> Vec<String> {
    // With the number of runs that have it and the last of them: jobs of one run may have the same.
    let (mut found, mut all) = (Vec::<(&Notice, usize, usize)>::new(), 0);
    for run in runs {
        all += 1;
        for notice in run {
            match found.iter_mut().find(|(one, ..)| (&one.scope, &one.what) == (&notice.scope, &notice.what))
            {
                Some((_, count, last)) if *last < all => (*count, *last) = (*count + 1, all),
                Some(_) => {}
                None => found.push((notice, 1, all)),
            }
        }
    }
    let words = |(notice, count, _): (&Notice, usize, usize)| {
        let line = notice.line();
        if count == all { line } else { format!("{line} ({count} of {all} runs)") }
    };
    found.into_iter().map(words).collect()
}

/// The headline where all values of a key give one result.
pub(crate) fn no_difference(key: &str, values: usize, why: Option<WhyInert>) -> String {
    match why {
        Some(why) => format!("{key} has {why}"),
        None => format!("{key} makes no difference here: its {values} values give the same result"),
    }
}
