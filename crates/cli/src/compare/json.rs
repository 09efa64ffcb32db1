//! The same for programs. `docs/planning.md` says what the fields mean.

use serde_json::{Map, Value as Json, json};

use super::Ran;
use super::differs::Difference;
use super::figures::Value;
use crate::careful;

pub(super) fn object(
    differences: &[Difference],
    without_effect: &[String],
    titles: &[&str],
    ran: &[Ran],
    lesson: Option<&str>,
) -> Json {
    let by_name = |of: &dyn Fn(usize) -> Json| -> Map<String, Json> {
        ran.iter().enumerate().map(|(number, one)| (one.name.clone(), of(number))).collect()
    };
    let differs: Map<String, Json> = differences
        .iter()
        .map(|one| {
            let value = |number: usize| one.values[number].as_ref().map(|(text, _)| text.clone()).into();
            (one.key.clone(), by_name(&value).into())
        })
        .collect();
    let parts: Vec<Json> = titles
        .iter()
        .enumerate()
        .map(|(part, title)| {
            let rows = |number: usize| -> Json {
                let Some(figures) = &ran[number].parts[part] else { return Json::Null };
                let mut rows: Map<String, Json> = figures
                    .rows
                    .iter()
                    .map(|row| {
                        let value = match &row.value {
                            Value::Number(_, number) => (*number).into(),
                            Value::Name(name) => name.clone().into(),
                        };
                        (row.key.clone(), value)
                    })
                    .collect();
                rows.insert("digest".to_owned(), figures.digest.clone().into());
                rows.insert("caveats".to_owned(), careful::caveats_object(&figures.caveats));
                rows.into()
            };
            json!({ "title": title, "outcome": by_name(&rows) })
        })
        .collect();
    let names: Vec<&str> = ran.iter().map(|one| one.name.as_str()).collect();
    json!({
        "compared": names,
        "partial": ran.iter().any(|one| !one.is_whole()),
        "without_effect": without_effect,
        "differs": differs,
        "parts": parts,
        "lesson": lesson,
    })
}
