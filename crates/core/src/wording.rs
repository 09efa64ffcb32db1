//! What the reader of TOML complains about, in words of those who write the file: its own are Rust's.

/// A message of the reader without the names of Rust's types: `expected a whole number, 0 or more, and this is the text "x"`.
pub fn without_types(message: &str) -> String {
    let complaint = ["invalid type: ", "invalid value: "].iter().find_map(|kind| message.strip_prefix(kind));
    let Some((found, expected)) = complaint.and_then(|rest| rest.split_once(", expected ")) else {
        return message.to_owned();
    };
    format!("expected {}, and this is {}", wanted(expected.trim_end(), found), given(found))
}

/// The value that is there.
fn given(found: &str) -> String {
    let plain = |quoted: &str| quoted.split('`').nth(1).unwrap_or(quoted).to_owned();
    match found {
        found if found.starts_with("string ") => format!("the text {}", &found["string ".len()..]),
        found if found.starts_with("integer ") => plain(found),
        found if found.starts_with("floating point ") => plain(found),
        found if found.starts_with("boolean ") => plain(found),
        "sequence" => "a list".to_owned(),
        "map" => "a table".to_owned(),
        found => found.to_owned(),
    }
}

/// The value that belongs there.
fn wanted(expected: &str, found: &str) -> String {
    let most = match expected {
        "u8" => Some("255"),
        "u16" => Some("65,535"),
        "u32" => Some("4,294,967,295"),
        _ => None,
    };
    let is_too_much = found.starts_with("integer `") && !found.contains('-');
    match (expected, most) {
        ("u8" | "u16" | "u32", Some(most)) if is_too_much => format!("a whole number from 0 to {most}"),
        ("u8" | "u16" | "u32" | "u64" | "u128" | "usize", _) => "a whole number, 0 or more".to_owned(),
        ("i8" | "i16" | "i32" | "i64" | "i128" | "isize", _) => "a whole number".to_owned(),
        ("f32" | "f64", _) => "a number".to_owned(),
        ("a boolean", _) => "true or false".to_owned(),
        ("a string" | "string", _) => "a text in quotes".to_owned(),
        ("a sequence", _) => "a list".to_owned(),
        ("a map", _) => "a table".to_owned(),
        (expected, _) if expected.starts_with("struct ") => "a table".to_owned(),
        (expected, _) if expected.contains("tagged enum ") => "a table with a `kind`".to_owned(),
        (expected, _) => expected.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_message_names_a_type_of_rust() {
        let cases = [
            (
                "invalid value: integer `-1`, expected u64",
                "expected a whole number, 0 or more, and this is -1",
            ),
            (
                "invalid type: string \"x\", expected u32",
                "expected a whole number, 0 or more, and this is the text \"x\"",
            ),
            (
                "invalid value: integer `300`, expected u8",
                "expected a whole number from 0 to 255, and this is 300",
            ),
            (
                "invalid type: integer `5` as i128, expected a string",
                "expected a text in quotes, and this is 5",
            ),
            ("invalid type: floating point `1.5`, expected i64", "expected a whole number, and this is 1.5"),
            ("invalid type: boolean `true`, expected f64", "expected a number, and this is true"),
            ("invalid type: sequence, expected a boolean", "expected true or false, and this is a list"),
            (
                "invalid type: map, expected a host: its number",
                "expected a host: its number, and this is a table",
            ),
            ("invalid type: integer `1`, expected struct LinkSection", "expected a table, and this is 1"),
            ("unknown field `a`, expected `b`", "unknown field `a`, expected `b`"),
        ];
        for (message, plain) in cases {
            assert_eq!(without_types(message), plain);
        }
    }
}
