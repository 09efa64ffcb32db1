//! Small jobs for tests.

use railnet_sim::{JobsOutcome, Scenario, run_jobs};

/// Two servers on rails, and a model whose steps are short and whose gradients take longer than its backward pass.
pub(crate) const SMALL: &str = "
[cluster]
server = \"dgx-h100\"
nodes = 2
[fabric.link]
rate = \"400Gbps\"
delay = \"500ns\"
[model]
name = \"gpt-400m\"
layers = 4
";

/// What comes of a job.
pub(crate) fn run(text: &str) -> JobsOutcome {
    let scenario = Scenario::parse(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    run_jobs(&scenario).unwrap_or_else(|error| panic!("{error}\n{text}"))
}
