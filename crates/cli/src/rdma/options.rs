//! Options of the software NIC: each is a variable that the library reads.

use std::path::PathBuf;

use railnet_core::Span;
use railnet_live::roce::{Faults, Settings};

use crate::{Usage, files};

#[derive(clap::Args)]
pub(super) struct Options {
    /// Addresses that become devices, in this order; all of the host without it
    #[arg(long = "address", value_name = "IP,…", help_heading = "Devices")]
    addresses: Option<String>,
    /// The largest path MTU of a port: 256, 512, 1024, 2048 or 4096
    #[arg(long, value_name = "BYTES", help_heading = "Devices")]
    mtu: Option<String>,
    /// Pace packets to this rate (10Gbps); turns DCQCN on, whose rate limiter it is
    #[arg(long, value_name = "RATE", help_heading = "Devices")]
    rate: Option<String>,
    /// Congestion control: none or dcqcn
    #[arg(long, value_name = "NAME", help_heading = "Devices")]
    control: Option<String>,
    /// Habits of the NIC: specification, or rxe for those of Linux Soft-RoCE
    #[arg(long, value_name = "NAME", help_heading = "Devices")]
    profile: Option<String>,
    /// Payload through shared memory between processes of this host: auto, or off
    #[arg(long, value_name = "WHEN", help_heading = "Devices")]
    shared_memory: Option<String>,
    /// Lose this share of the packets on their way out (0.01)
    #[arg(long, value_name = "SHARE", value_parser = railnet_live::roce::share, help_heading = "Faults")]
    drop: Option<u32>,
    /// Send this share twice
    #[arg(long, value_name = "SHARE", value_parser = railnet_live::roce::share, help_heading = "Faults")]
    duplicate: Option<u32>,
    /// Let up to eight later packets overtake this share
    #[arg(long, value_name = "SHARE", value_parser = railnet_live::roce::share, help_heading = "Faults")]
    reorder: Option<u32>,
    /// Hold this share back for --hold
    #[arg(long, value_name = "SHARE", value_parser = railnet_live::roce::share, help_heading = "Faults")]
    delay: Option<u32>,
    /// Flip a bit in this share
    #[arg(long, value_name = "SHARE", value_parser = railnet_live::roce::share, help_heading = "Faults")]
    corrupt: Option<u32>,
    /// How long a delayed packet is held (200us)
    #[arg(long, value_name = "TIME", requires = "delay", help_heading = "Faults")]
    hold: Option<Span>,
    /// The seed of the faults
    #[arg(long, value_name = "N", help_heading = "Faults")]
    seed: Option<u64>,
    /// Capture the packets of the program, for Wireshark; a second process of it writes beside the file, with its number
    #[arg(long, value_name = "FILE", help_heading = "Outputs")]
    pcap: Option<PathBuf>,
    /// Replace a capture that is there
    #[arg(long, requires = "pcap", help_heading = "Outputs")]
    force: bool,
    /// What the library writes to standard error: error, or info
    #[arg(long, value_name = "LEVEL", help_heading = "Outputs")]
    log: Option<String>,
}

impl Options {
    /// The variables that these options set, and the settings that they come to with the environment's.
    pub(super) fn variables(&self) -> anyhow::Result<(Vec<(&'static str, String)>, Settings)> {
        let mut variables = Vec::new();
        let plain = [
            (Settings::ADDRESSES, &self.addresses),
            (Settings::MTU, &self.mtu),
            (Settings::RATE, &self.rate),
            (Settings::CONTROL, &self.control),
            (Settings::PROFILE, &self.profile),
            (Settings::SHARED_MEMORY, &self.shared_memory),
            (Settings::LOG, &self.log),
        ];
        variables.extend(plain.into_iter().filter_map(|(name, value)| Some((name, value.clone()?))));
        if let Some(faults) = self.faults()? {
            variables.push((Settings::FAULTS, faults.to_string()));
        }
        if let Some(name) = &self.pcap {
            let path = files::check(name, self.force)?;
            if self.force {
                files::remove(&path)?;
            }
            variables.push((Settings::CAPTURE, path.display().to_string()));
        }
        let value = |name: &str| {
            let given = variables.iter().find(|(own, _)| *own == name).map(|(_, value)| value.clone());
            given.or_else(|| std::env::var(name).ok())
        };
        let settings = Settings::read(value).map_err(Usage)?;
        Ok((variables, settings))
    }

    /// The environment's faults with those of the options; `None` where no option says anything.
    fn faults(&self) -> anyhow::Result<Option<Faults>> {
        let shares = [self.drop, self.duplicate, self.reorder, self.delay, self.corrupt];
        if shares.iter().all(Option::is_none) && self.seed.is_none() {
            return Ok(None);
        }
        let mut faults = match std::env::var(Settings::FAULTS) {
            Ok(text) => text.parse().map_err(|why| Usage(format!("{}: {why}", Settings::FAULTS)))?,
            Err(_) => Faults::NONE,
        };
        let Faults { drop, duplicate, reorder, delay, corrupt, hold, seed } = &mut faults;
        for (own, given) in [drop, duplicate, reorder, delay, corrupt].into_iter().zip(shares) {
            *own = given.unwrap_or(*own);
        }
        *hold = self.hold.unwrap_or(*hold);
        *seed = self.seed.unwrap_or(*seed);
        if faults.is_none() && self.seed.is_some() {
            return Err(Usage("--seed has no effect without a fault: --drop 0.01 is one".to_owned()).into());
        }
        Ok(Some(faults))
    }
}
