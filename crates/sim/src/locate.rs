//! Where things are written in the text of a scenario.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Where the value of a key such as `traffic.0.to` is written. Of a key that is not there, its table.
pub(crate) fn key(text: &str, path: &str) -> Option<Range<usize>> {
    let document = DeTable::parse(text).ok()?;
    let mut parts = path.split('.');
    let mut found = member(document.get_ref(), parts.next()?)?;
    for part in parts {
        let next = match found.get_ref() {
            DeValue::Table(table) => member(table, part),
            DeValue::Array(list) => part.parse::<usize>().ok().and_then(|index| list.get(index)),
            _ => None,
        };
        match next {
            Some(next) => found = next,
            None => break,
        }
    }
    Some(found.span())
}

fn member<'a, 'i>(table: &'a DeTable<'i>, name: &str) -> Option<&'a Spanned<DeValue<'i>>> {
    table.iter().find(|(key, _)| key.get_ref() == name).map(|(_, value)| value)
}

/// The value that a message is about, where the reader of TOML knows only its table: the one without which `reread` has another
/// complaint.
pub(crate) fn culprit(
    text: &str,
    span: &Range<usize>,
    message: &str,
    reread: impl Fn(toml::Table) -> Option<String>,
) -> Option<Range<usize>> {
    if message.starts_with("missing") || message.starts_with("unknown") {
        return None;
    }
    let whole: toml::Table = text.parse().ok()?;
    if reread(whole.clone()).as_deref() != Some(message) {
        return None;
    }
    let document = DeTable::parse(text).ok()?;
    let mut tables = Vec::new();
    for (key, value) in document.get_ref() {
        tables_at(value, span, vec![key.get_ref().to_string()], &mut tables);
    }
    tables
        .into_iter()
        .flat_map(|(path, table)| table.iter().map(move |entry| (path.clone(), entry)))
        .find_map(|(path, (key, value))| {
            // Without what says of which kind a table is, nothing of it can be read.
            if key.get_ref() == "kind" {
                return None;
            }
            let mut without = whole.clone();
            remove(&mut without, &path, key.get_ref())?;
            (reread(without).as_deref() != Some(message)).then(|| value.span())
        })
}

/// The tables that are written at `span`, each with its path.
fn tables_at<'a, 'i>(
    value: &'a Spanned<DeValue<'i>>,
    span: &Range<usize>,
    path: Vec<String>,
    found: &mut Vec<(Vec<String>, &'a DeTable<'i>)>,
) {
    let inside = |name: String| path.iter().cloned().chain([name]).collect::<Vec<_>>();
    match value.get_ref() {
        DeValue::Table(table) => {
            for (key, value) in table {
                tables_at(value, span, inside(key.get_ref().to_string()), found);
            }
            if value.span() == *span {
                found.push((path, table));
            }
        }
        DeValue::Array(list) => {
            for (index, value) in list.iter().enumerate() {
                tables_at(value, span, inside(index.to_string()), found);
            }
        }
        _ => {}
    }
}

fn remove(table: &mut toml::Table, path: &[String], key: &str) -> Option<toml::Value> {
    let Some((first, rest)) = path.split_first() else { return table.remove(key) };
    let mut place = table.get_mut(first)?;
    for part in rest {
        place = match place {
            toml::Value::Table(table) => table.get_mut(part)?,
            toml::Value::Array(list) => list.get_mut(part.parse::<usize>().ok()?)?,
            _ => return None,
        };
    }
    place.as_table_mut()?.remove(key)
}

/// The part of `span` that a message is about. Of what has a `kind`, the reader of TOML knows only where it begins and
/// ends; the message quotes what it does not like, so that is looked for.
pub(crate) fn narrowed(text: &str, span: Range<usize>, message: &str) -> Range<usize> {
    let Some(part) = text.get(span.start..whole_end(text, &span)) else { return span };
    // A missing key is missing from all of it.
    if message.starts_with("missing") {
        return span;
    }
    // What would be right comes after what is wrong, and may be written elsewhere.
    let complaint = message.split("expected").next().unwrap_or(message);
    let found = quoted(complaint)
        .filter_map(|word| Some((word.len(), find(part, word)?)))
        .max_by_key(|(length, _)| *length);
    match found {
        Some((length, at)) => span.start + at..span.start + at + length,
        None => span,
    }
}

/// Where what a span stands for ends: of a `[header]`, the table below it.
fn whole_end(text: &str, span: &Range<usize>) -> usize {
    let is_header = text.get(span.clone()).is_some_and(|part| part.starts_with('[') && part.ends_with(']'));
    let starts_line =
        text.get(..span.start).is_some_and(|before| before.is_empty() || before.ends_with('\n'));
    if !is_header || !starts_line {
        return span.end;
    }
    text.get(span.end..).and_then(|after| after.find("\n[")).map_or(text.len(), |length| span.end + length)
}

/// What a message has between quotes or backticks.
fn quoted(message: &str) -> impl Iterator<Item = &str> {
    let mut rest = message;
    std::iter::from_fn(move || {
        let open = rest.find(['"', '`'])?;
        let mark = rest[open..].chars().next()?;
        let inside = &rest[open + 1..];
        let close = inside.find(mark)?;
        rest = &inside[close + 1..];
        Some(&inside[..close])
    })
    .filter(|word| !word.is_empty())
}

/// Where a word stands by itself.
fn find(text: &str, word: &str) -> Option<usize> {
    let is_part = |letter: char| letter.is_alphanumeric() || letter == '_' || letter == '-';
    text.match_indices(word).map(|(at, _)| at).find(|&at| {
        let before = text[..at].chars().next_back();
        let after = text[at + word.len()..].chars().next();
        !before.is_some_and(is_part) && !after.is_some_and(is_part)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str =
        "seed = 1\n[fabric]\nlink = { rate = \"0Gbps\" }\n[[traffic]]\nkind = \"flow\"\nto = 9\n";

    #[test]
    fn keys_are_found_in_tables_lists_and_inline_tables() {
        let at = |path| &TEXT[key(TEXT, path).unwrap()];
        assert_eq!(at("seed"), "1");
        assert_eq!(at("fabric.link.rate"), "\"0Gbps\"");
        assert_eq!(at("fabric.link.delay"), "{ rate = \"0Gbps\" }");
        assert_eq!(at("traffic.0.to"), "9");
        assert_eq!(key(TEXT, "nic.mtu"), None);
    }

    #[test]
    fn the_value_of_a_table_is_found_that_a_message_is_about() {
        #[derive(serde::Deserialize)]
        #[serde(tag = "kind", rename_all = "lowercase")]
        #[allow(dead_code, reason = "only read")]
        enum One {
            Flow { from: String, to: u32 },
        }
        let text = "[[traffic]]\nkind = \"flow\"\nfrom = \"-5\"\nto = -5\n";
        let reread = |table: toml::Table| {
            table["traffic"][0].clone().try_into::<One>().err().map(|error| error.message().to_owned())
        };
        let message = reread(text.parse().unwrap()).unwrap();
        let found = culprit(text, &(0..11), &message, reread).unwrap();
        assert_eq!((&text[found.clone()], found.start), ("-5", text.rfind("-5").unwrap()));
        assert_eq!(culprit(text, &(0..11), "missing field `x`", reread), None);
    }

    #[test]
    fn a_message_is_narrowed_to_the_word_it_quotes() {
        let text = "topology = { kind = \"fat-tree\", kk = 4 }";
        let whole = 11..text.len();
        let part = |message| &text[narrowed(text, whole.clone(), message)];
        assert_eq!(part("unknown field `kk`, expected `k` or `kind`"), "kk");
        assert_eq!(part("unknown variant `fat-tree`, expected one of `k`"), "fat-tree");
        assert_eq!(part("missing field `k`"), &text[whole.clone()]);
        let text = "[[traffic]]\nfrom = 1\ntoo = 2\n[nic]\ntoo = 3\n";
        assert_eq!(narrowed(text, 0..11, "unknown field `too`, expected `to`"), 21..24);
    }
}
