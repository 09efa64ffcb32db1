//! `railnet knobs`: which of NCCL's variables mean something here.

use std::io::Write;

use railnet_coll::variables::{DECLARATIONS, markdown};

use crate::Outcome;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Print the page docs/knobs.md
    #[arg(long)]
    markdown: bool,
}

pub(crate) fn run(arguments: &Arguments, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    if arguments.markdown {
        write!(out, "{}", markdown())?;
        return Ok(Outcome::Done);
    }
    for one in DECLARATIONS {
        let plain = |text: &str| text.replace('`', "");
        let places: Vec<_> = one.places.iter().map(|place| place.name()).collect();
        let places = if places.is_empty() { "nowhere yet".to_owned() } else { places.join(", ") };
        writeln!(out, "{:<27} {} (default {}; {places})", one.name, plain(one.values), one.default)?;
        writeln!(out, "{:<27} {}", "", plain(one.text))?;
    }
    Ok(Outcome::Done)
}
