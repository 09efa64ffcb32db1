//! The files of a run, claimed before it begins.

use std::io::Write;
use std::path::Path;

use railnet_formats::perfetto;
use railnet_formats::run_file::RunFile;
use railnet_sim::{Fidelity, Scenario};
use serde::Serialize;

use super::Arguments;
use crate::files::{Output, Tables};
use crate::view;

pub(super) struct Outputs {
    pub(super) json: Option<Json>,
    pub(super) tables: Option<Tables>,
    pub(super) pcap: Option<Output>,
    record: Option<Output>,
    report: Option<Output>,
    trace: Option<Output>,
    is_viewed: bool,
}

/// Where JSON goes.
pub(super) enum Json {
    Standard,
    File(Output),
}

impl Outputs {
    /// Claims what the command line asks for.
    pub(super) fn claim(arguments: &Arguments, scenario: &Scenario) -> anyhow::Result<Self> {
        let claim = |path: Option<&Path>| Output::claim_given(path, arguments.force);
        let json = match arguments.json.as_deref() {
            Some(path) if path.as_os_str() == "-" => Some(Json::Standard),
            path => claim(path)?.map(Json::File),
        };
        let tables = match &arguments.csv {
            Some(directory) => {
                Some(Tables::claim(directory, &tables_of(arguments, scenario), arguments.force)?)
            }
            None => None,
        };
        let [record, report, trace] = arguments.record.paths();
        Ok(Self {
            json,
            tables,
            pcap: claim(arguments.capture.path())?,
            record: claim(record)?,
            report: claim(report)?,
            trace: claim(trace)?,
            is_viewed: arguments.record.is_viewed(),
        })
    }

    /// Writes what was recorded, and shows it.
    pub(super) fn deliver(self, run: RunFile, out: &mut dyn Write, is_quiet: bool) -> anyhow::Result<()> {
        let mut say = |what: &str, name: &Path, how: &str| match is_quiet {
            true => Ok(()),
            false => writeln!(out, "  {what:<12}{}   {how}", name.display()),
        };
        if let Some(output) = self.record {
            let name = output.name().to_owned();
            output.write(|file| run.write(file))?;
            say("Record", &name, &format!("railnet view {}", name.display()))?;
        }
        if let Some(output) = self.report {
            let name = output.name().to_owned();
            output.write(|file| file.write_all(view::report(&run).as_bytes()))?;
            say("Report", &name, "opens in any browser")?;
        }
        if let Some(output) = self.trace {
            let name = output.name().to_owned();
            output.write(|file| perfetto::write(&run, file))?;
            say("Trace", &name, "opens in ui.perfetto.dev")?;
        }
        if self.is_viewed {
            out.flush()?;
            view::serve(run, &view::Place::default(), out)?;
        }
        Ok(())
    }
}

/// The tables that a run writes.
fn tables_of(arguments: &Arguments, scenario: &Scenario) -> Vec<&'static str> {
    if !arguments.sweep.is_empty() {
        return vec!["sweep.csv"];
    }
    let has_packets = !scenario.has_jobs() || scenario.fidelity == Fidelity::Packet;
    let groups: [(bool, &[&str]); 3] = [
        (scenario.has_jobs(), &["steps.csv", "said.csv"]),
        (has_packets, &["flows.csv", "links.csv"]),
        (has_packets && scenario.sample.is_some(), &["series.csv", "connections.csv"]),
    ];
    groups.iter().filter(|(is_written, _)| *is_written).flat_map(|(_, names)| names.iter().copied()).collect()
}

impl Json {
    pub(super) fn write(self, out: &mut dyn Write, value: &impl Serialize) -> anyhow::Result<()> {
        match self {
            Self::Standard => Ok(json_to(out, value)?),
            Self::File(output) => output.write(|file| json_to(file, value)),
        }
    }
}

fn json_to(out: &mut dyn Write, value: &impl Serialize) -> std::io::Result<()> {
    serde_json::to_writer(&mut *out, value)?;
    writeln!(out)
}
