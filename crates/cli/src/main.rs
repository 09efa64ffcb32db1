//! The `railnet` command.
fn main() {}
