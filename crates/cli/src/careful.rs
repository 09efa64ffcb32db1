//! Keys and variables that have no effect on a run, and what formulas are known to differ from packets in: told on the screen and in
//! the JSON.

use std::collections::BTreeMap;

use railnet_job::parallel::Scope;
use railnet_job::run::analytic::Caveat;
use railnet_sim::{Inert, WhyInert};
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

/// A line for each kind of traffic of which packets may differ from formulas.
pub(crate) fn caveats(found: &[(Scope, Caveat)]) -> impl Iterator<Item = String> {
    found.iter().map(|(scope, caveat)| format!("{} traffic: {caveat}", scope.name()))
}

/// The same for programs.
pub(crate) fn caveats_object(found: &[(Scope, Caveat)]) -> Value {
    let object = |(scope, caveat): &(Scope, Caveat)| {
        let scope = scope.name().replace(' ', "_");
        json!({ "scope": scope, "what": caveat.name(), "why": caveat.to_string() })
    };
    found.iter().map(object).collect()
}

/// Notices of several runs, each once, with how many of them have it where not all have; the first run's words stand for all.
pub(crate) fn caveats_of_all<'a>(runs: impl Iterator<Item = &'a [(Scope, Caveat)]>) -> Vec<String> {
    let (mut found, mut all) = (Vec::<(Scope, &str, String, usize)>::new(), 0);
    for run in runs {
        all += 1;
        for ((scope, caveat), line) in run.iter().zip(caveats(run)) {
            match found.iter_mut().find(|one| (one.0, one.1) == (*scope, caveat.name())) {
                Some(one) => one.3 += 1,
                None => found.push((*scope, caveat.name(), line, 1)),
            }
        }
    }
    let words = |(_, _, line, count): (Scope, &str, String, usize)| {
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
