//! `railnet view`: shows a run in a browser, from a server on this machine that nobody else can reach.

mod answers;
mod http;
mod infiniband;
mod layers;
mod packet;
mod page;
mod rerun;

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use railnet_formats::run_file::RunFile;

use crate::files::Output;
use crate::interrupt::Interrupt;
use crate::{Outcome, Usage, input, live_record};
use answers::Shown;

pub(crate) use page::report;

const EXAMPLES: &str = "\
Examples:
  railnet sim scenarios/incast.toml --record incast.rail
  railnet view incast.rail
  railnet view incast.rail --port 8080
  railnet view incast.rail --report incast.html
  railnet sim scenarios/life-of-a-job-racks.toml --view
  RAILNET_RECORD=calls torchrun train.py && railnet view calls

The page is served on this machine only, and loads nothing from anywhere else. docs/page.md says what it shows.";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// The run file, as `railnet sim SCENARIO --record FILE` writes it; or what `RAILNET_RECORD` was for ranks of another launcher
    file: PathBuf,
    /// Write the page with this run in it, and those beside it: one file that opens from disk, without a network. Nothing is served
    #[arg(long, value_name = "FILE.html", conflicts_with_all = ["port", "bind"])]
    report: Option<PathBuf>,
    /// Overwrite the report where there is one
    #[arg(long, requires = "report")]
    force: bool,
    #[command(flatten)]
    place: Place,
}

/// Where the page is served.
#[derive(clap::Args)]
pub(crate) struct Place {
    /// The port; any free one with 0
    #[arg(long, default_value_t = 0)]
    port: u16,
    /// The address of this machine to listen at; 0.0.0.0 lets others look too, and run the scenario again
    #[arg(long, value_name = "ADDRESS", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    bind: IpAddr,
}

impl Default for Place {
    fn default() -> Self {
        Self { port: 0, bind: IpAddr::V4(Ipv4Addr::LOCALHOST) }
    }
}

pub(crate) fn run(arguments: &Arguments, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    let report = Output::claim_given(arguments.report.as_deref(), arguments.force)?;
    let run = read(&arguments.file)?;
    if let Some(output) = report {
        let name = output.name().display().to_string();
        let page = whole_page(&run).ok_or_else(|| {
            Usage(format!("{}: the run file is damaged: record the run again", arguments.file.display()))
        })?;
        output.write(|file| file.write_all(page.as_bytes()))?;
        writeln!(out, "  {:<12}{name}   opens in any browser", "Report")?;
        return Ok(Outcome::Done);
    }
    serve(run, &arguments.place, out)?;
    Ok(Outcome::Done)
}

/// The page of a run that was read from a file; nothing where its tables do not fit each other, as those of a damaged file.
fn whole_page(run: &RunFile) -> Option<String> {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let page = catch_unwind(AssertUnwindSafe(|| page::report(run)));
    std::panic::set_hook(hook);
    page.ok()
}

/// The run of a run file, or of the files that ranks wrote.
fn read(path: &Path) -> Result<RunFile, Usage> {
    if let Some(run) = live_record::of_files(path) {
        return Ok(run);
    }
    let bytes = input::bytes(path)?;
    RunFile::parse(&bytes).map_err(|error| Usage(format!("{}: {error}", path.display())))
}

/// Serves a run until somebody ends the program.
pub(crate) fn serve(run: RunFile, place: &Place, out: &mut dyn Write) -> anyhow::Result<()> {
    let wanted = SocketAddr::new(place.bind, place.port);
    let listener = TcpListener::bind(wanted).with_context(|| format!("cannot listen at {wanted}"))?;
    let address = listener.local_addr()?;
    writeln!(out, "  {:<12}http://{address}/   Ctrl-C ends it", "Look at")?;
    out.flush()?;
    Interrupt::ends_program()?;
    let shown = Shown::new(run);
    http::serve(&listener, address, &move |request: &http::Request| shown.answer(request));
    Ok(())
}
