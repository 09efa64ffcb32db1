//! `railnet rdma env`: the lines that put the library in front of the loader's path.

use std::io::Write;

use super::directory::{self, NCCL_GIN_TYPE, ROOT_VARIABLE};
use super::exec;
use super::options::Options;
use crate::Outcome;

const EXAMPLES: &str = "\
Examples:
  eval \"$(railnet rdma env)\"; ibv_devinfo; rping -s
  eval \"$(railnet rdma env --drop 0.01 --pcap run.pcapng)\"
  railnet rdma env --for docker >> Dockerfile
  railnet rdma env --for pod
  railnet rdma env --for github";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    /// What the lines are for
    #[arg(long = "for", value_name = "WHAT", value_enum, default_value_t = Place::Shell)]
    place: Place,
    #[command(flatten)]
    options: Options,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Place {
    /// A POSIX shell on this host
    Shell,
    /// A Dockerfile; its build context holds the command and its libraries
    Docker,
    /// A container of a Kubernetes pod, in an image made that way
    Pod,
    /// A job of GitHub Actions, after the build of Railnet
    Github,
}

pub(super) fn run(arguments: &Arguments, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    let (variables, settings) = arguments.options.variables()?;
    match arguments.place {
        Place::Shell => {
            let directory = exec::prepare(&settings)?;
            for (name, value) in &variables {
                writeln!(out, "export {name}={}", quoted(value))?;
            }
            let root = directory.root();
            writeln!(out, "export {ROOT_VARIABLE}={}", quoted(&root.to_string_lossy()))?;
            let (name, value) = NCCL_GIN_TYPE;
            writeln!(out, "export {name}=\"${{{name}:-{value}}}\"")?;
            for (name, path) in directory.search_paths() {
                writeln!(out, "export {name}={}\"${{{name}:+:${name}}}\"", quoted(&path.to_string_lossy()))?;
            }
        }
        Place::Docker => {
            directory::libraries()?;
            writeln!(out, "COPY railnet librailnet_verbs.so librailnet_sysfs.so /opt/railnet/")?;
            for (name, value) in &variables {
                writeln!(out, "ENV {name}={}", double_quoted(value))?;
            }
            writeln!(out, "ENTRYPOINT [\"/opt/railnet/railnet\", \"rdma\", \"exec\", \"--\"]")?;
        }
        Place::Pod => {
            writeln!(out, "command: [\"/opt/railnet/railnet\", \"rdma\", \"exec\", \"--\"]")?;
            writeln!(out, "args: [\"ib_write_bw\"]        # the program, and its arguments")?;
            if !variables.is_empty() {
                writeln!(out, "env:")?;
            }
            for (name, value) in &variables {
                writeln!(out, "- {{ name: {name}, value: {} }}", double_quoted(value))?;
            }
        }
        Place::Github => {
            writeln!(out, "- run: |")?;
            for (name, value) in &variables {
                writeln!(out, "    echo {} >> \"$GITHUB_ENV\"", quoted(&format!("{name}={value}")))?;
            }
            writeln!(out, "    target/release/railnet rdma exec -- ibv_devinfo")?;
            writeln!(out, "    target/release/railnet rdma exec -- ./my_rdma_test")?;
        }
    }
    Ok(Outcome::Done)
}

/// A word for a POSIX shell.
fn quoted(text: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "/._-=,:".contains(letter);
    match !text.is_empty() && text.chars().all(is_plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

/// A string of a Dockerfile or of YAML.
fn double_quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', r"\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_a_shell_are_quoted() {
        assert_eq!(quoted("/tmp/a-1"), "/tmp/a-1");
        assert_eq!(quoted("it's $HOME"), r"'it'\''s $HOME'");
    }
}
