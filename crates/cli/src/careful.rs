//! Keys and variables that have no effect on a run, and what formulas are known to differ from packets in: told on the screen and in
//! the JSON.

use std::collections::BTreeMap;

use railnet_job::parallel::Scope;
use railnet_job::run::analytic::Caveat;
use railnet_sim::{Inert, WhyInert};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Keys of one reason that are named on a line; the JSON has all.
const NAMED: usize = 8;

/// A line for each reason.
pub(crate) fn lines(inert: &[Inert]) -> Vec<String> {
    let mut by_reason: BTreeMap<String, (WhyInert, Vec<&str>)> = BTreeMap::new();
    for one in inert {
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
pub(crate) fn caveats_object(found: &[(Scope, Caveat)]) -> Value {
    notices(found)
        .iter()
        .map(|Notice { scope, what, why }| json!({ "scope": scope, "what": what, "why": why }))
        .collect()
}

/// Notices of several runs, each once, with how many of them have it where not all have; the first run's words stand for all.
pub(crate) fn caveats_of_all<'a>(runs: impl Iterator<Item = &'a [Notice]>) -> Vec<String> {
    let (mut found, mut all) = (Vec::<(&Notice, usize)>::new(), 0);
    for run in runs {
        all += 1;
        for notice in run {
            match found.iter_mut().find(|(one, _)| (&one.scope, &one.what) == (&notice.scope, &notice.what)) {
                Some((_, count)) => *count += 1,
                None => found.push((notice, 1)),
            }
        }
    }
    let words = |(notice, count): (&Notice, usize)| {
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
