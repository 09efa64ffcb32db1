//! Tables of a job: its steps, and what was said in the first.

use railnet_sim::{JobsOutcome, SaidResult};

use super::json::what;
use crate::files::Tables;

/// Writes `steps.csv` and `said.csv`.
pub(super) fn write(tables: &mut Tables, outcome: &JobsOutcome) -> anyhow::Result<()> {
    tables.write("steps.csv", |out| {
        writeln!(out, "job,step,time_us")?;
        for job in &outcome.jobs {
            for (number, step) in job.steps.iter().enumerate() {
                writeln!(out, "{},{},{:.6}", job.placed.resolved.name, number + 1, step.as_us_f64())?;
            }
        }
        Ok(())
    })?;
    tables.write("said.csv", |out| {
        writeln!(
            out,
            "job,scope,what,ranks,count,largest_bytes,bytes,median_us,p99_us,max_us,algorithm,protocol,channels"
        )?;
        for job in &outcome.jobs {
            for SaidResult { said, ranks, how, .. } in &job.first.said {
                let how = how.map_or_else(
                    || ",,".to_owned(),
                    |how| format!("{},{},{}", how.algorithm, how.protocol, how.channels),
                );
                writeln!(
                    out,
                    "{},{},{},{ranks},{},{},{},{:.6},{:.6},{:.6},{how}",
                    job.placed.resolved.name,
                    said.scope.name(),
                    what(said.what),
                    said.count,
                    said.largest.as_u64(),
                    said.bytes.as_u64(),
                    said.median.as_us_f64(),
                    said.late.as_us_f64(),
                    said.longest.as_us_f64()
                )?;
            }
        }
        Ok(())
    })
}
