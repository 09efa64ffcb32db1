//! NCCL's variables from where people set them: a scenario, a file, the environment.

use std::path::Path;

use railnet_coll::variables::{Place, Source, Variables};

use crate::{Usage, input, report};

/// Reads all sources, and tells of names that do nothing in this command, once each.
pub(crate) fn variables(
    place: Place,
    scenario: Vec<(String, String)>,
    file: Option<&Path>,
    options: Vec<(String, String)>,
) -> anyhow::Result<Variables> {
    let from_file = match file {
        Some(path) => {
            let name = path.display();
            let text = input::text(path)?;
            Variables::parse_file(&text).map_err(|error| Usage(format!("{name}: {error}")))?
        }
        None => Vec::new(),
    };
    // A name or value that is not text cannot be one of NCCL's.
    let environment = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect();
    let sources = [
        (Source::Scenario, scenario),
        (Source::File, from_file),
        (Source::Environment, environment),
        (Source::Option, options),
    ];
    let variables = Variables::merge(sources).map_err(|error| Usage(error.to_string()))?;
    for line in variables.without_effect(place) {
        report(&format!("note: {line}"));
    }
    Ok(variables)
}
