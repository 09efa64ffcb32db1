//! The `railnet` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    railnet_cli::main()
}
