//! `railnet rdma exec`: becomes the program, with the library in front of the loader's path.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use railnet_live::roce::{Settings, devices};

use super::directory::{Directory, NCCL_GIN_TYPE, ROOT_VARIABLE};
use super::options::Options;
use crate::{Outcome, Usage, report};

const EXAMPLES: &str = "\
Examples:
  railnet rdma exec -- ib_write_bw                             one shell
  railnet rdma exec -- ib_write_bw 127.0.0.1                   another
  railnet rdma exec --drop 0.01 --seed 7 -- ./my_rdma_test     one packet in a hundred is lost
  railnet rdma exec --pcap run.pcapng -- rping -c -a 127.0.0.1 -C 10
  railnet rdma exec --address 10.0.0.7 --mtu 1024 -- ibv_devinfo

The program finds a device for each address of this host. Its packets are RoCEv2 on UDP port
4791, which all processes of this user share. Options are variables for the program and what it
starts; railnet rdma env prints them. The exit status is the program's; 2 for wrong usage, 127 if
the program is not there.
Programs that are linked statically or bring their own libibverbs (RPATH), and setuid programs,
do not load this one.";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES, override_usage = "railnet rdma exec [OPTIONS] -- PROGRAM [ARGUMENTS]...")]
pub(super) struct Arguments {
    #[command(flatten)]
    options: Options,
    /// The program and its arguments
    #[arg(value_name = "PROGRAM", required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    program: Vec<OsString>,
}

pub(super) fn run(arguments: &Arguments) -> anyhow::Result<Outcome> {
    let Some((program, rest)) = arguments.program.split_first() else { return Ok(Outcome::Exit(2)) };
    if program.as_encoded_bytes().starts_with(b"-") {
        let option = program.display();
        return Err(
            Usage(format!("railnet rdma exec has no option {option}; the program comes after --")).into()
        );
    }
    let (variables, settings) = arguments.options.variables()?;
    let directory = prepare(&settings)?;
    let mut command = Command::new(program);
    command.args(rest).envs(variables).env(ROOT_VARIABLE, directory.root());
    let (name, value) = NCCL_GIN_TYPE;
    if std::env::var_os(name).is_none() {
        command.env(name, value);
    }
    for (name, path) in directory.search_paths() {
        command.env(name, in_front(&path, std::env::var_os(name)));
    }
    let error = command.exec();
    report(&format!("error: cannot run {}: {error}", program.display()));
    Ok(Outcome::Exit(if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 }))
}

/// The directory for the devices that these settings come to.
pub(super) fn prepare(settings: &Settings) -> anyhow::Result<Directory> {
    let devices = devices(settings).map_err(|error| Usage(error.to_string()))?;
    Directory::prepare(&devices)
}

/// A search path with another in front of it; once, however often programs start each other.
fn in_front(path: &Path, value: Option<OsString>) -> OsString {
    let Some(value) = value.filter(|value| !value.is_empty()) else { return path.into() };
    if std::env::split_paths(&value).next().is_some_and(|first| first == path) {
        return value;
    }
    [path.as_os_str(), OsStr::new(":"), &value].into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_goes_in_front_once() {
        let path = Path::new("/a");
        assert_eq!(in_front(path, None), "/a");
        assert_eq!(in_front(path, Some("".into())), "/a");
        assert_eq!(in_front(path, Some("/b:/c".into())), "/a:/b:/c");
        assert_eq!(in_front(path, Some("/a:/b".into())), "/a:/b");
    }
}
