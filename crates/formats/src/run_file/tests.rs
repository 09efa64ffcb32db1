//! What is written is read again, and what is left out is what matters least.

use super::*;

fn table() -> Table {
    let mut table = Table::new("operations", schema::OPERATIONS);
    for number in 0..1_000_u64 {
        let (begun, long) = (number * 100, if number == 500 { 90 } else { 10 });
        table.push([number % 4, 1, 2, number, begun, begun, begun + long, 1 << 40, 65_535, 3, 0, 1, 7, 0]);
    }
    table
}

#[test]
fn a_file_is_read_as_it_was_written() {
    let meta = serde_json::json!({ "name": "a \u{2192} b", "duration": 5 });
    let tables = vec![table(), Table::of_bytes("heap", vec![1, 2, 3])];
    let other =
        RunFile { meta: serde_json::json!({ "name": "b" }), tables: vec![table()], others: Vec::new() };
    let file = RunFile { meta, tables, others: vec![other] };
    let mut bytes = Vec::new();
    file.write(&mut bytes).unwrap();
    assert_eq!(RunFile::parse(&bytes), Ok(file));
    assert_eq!(RunFile::parse(b"{}"), Err(RunFileError::NotOne));
    for length in 8..bytes.len() {
        assert!(RunFile::parse(&bytes[..length]).is_err(), "cut to {length}");
    }
    for place in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[place] ^= 0x41;
        // Whatever it is taken for, nothing falls over.
        let _ = RunFile::parse(&damaged);
    }
}

#[test]
fn a_window_has_what_touches_it() {
    let query = Query { from: 1_005, to: 1_200, ..Query::all() };
    let (rows, total) = select(&table(), &query, 1);
    assert_eq!((rows, total), (vec![10, 11, 12], 3));
    let query = Query { equal: vec![("rank".to_owned(), 3)], ..query };
    assert_eq!(select(&table(), &query, 1).0, [11]);
}

#[test]
fn of_many_the_longest_are_kept() {
    let query = Query { most: 40, ..Query::all() };
    let (rows, total) = select(&table(), &query, 1);
    assert_eq!(total, 1_000);
    assert!(rows.len() <= 44 && rows.contains(&500), "{rows:?}");
}

#[test]
fn rows_that_no_bytes_vouch_for_are_refused() {
    let header = br#"{"table":"load","rows":1152921504606846976,"columns":[]}"#;
    let mut block = (header.len() as u32).to_le_bytes().to_vec();
    block.extend_from_slice(header);
    assert!(matches!(Table::parse(&block), Err(BlockError::Header(_))));
    let mut bytes = BEGIN.to_vec();
    bytes.extend_from_slice(&8_u64.to_le_bytes());
    bytes.extend_from_slice(b"[1]     ");
    bytes.extend_from_slice(END);
    assert!(matches!(RunFile::parse(&bytes), Err(RunFileError::Meta(_))));
}
