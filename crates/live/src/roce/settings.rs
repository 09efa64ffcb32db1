//! How the RDMA devices of a process are made, as environment variables say it. `railnet rdma exec` has an option for each.

use std::fmt::Display;
use std::net::IpAddr;
use std::path::PathBuf;

use railnet_core::Rate;
use railnet_nic::Mtu;

use super::Faults;

/// How the NICs of a process are made.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What happens to packets on their way out.
    pub faults: Faults,
    /// A capture of this process's packets.
    pub capture: Option<PathBuf>,
    /// The addresses that become devices, in this order; all of the host without it.
    pub addresses: Option<Vec<IpAddr>>,
    /// The largest path MTU of a port.
    pub mtu: Option<Mtu>,
    /// The rate of a port: packets are paced to it.
    pub rate: Option<Rate>,
    /// DCQCN. A rate turns it on, too: it has the rate limiter.
    pub dcqcn: bool,
    /// Behave as Linux Soft-RoCE does.
    pub rxe: bool,
    /// Payload goes through shared memory between processes of one host and user, where nothing is in the way.
    pub shared_memory: bool,
    /// Write what is opened to standard error.
    pub log: bool,
}

impl Settings {
    /// Variable of [`Settings::faults`].
    pub const FAULTS: &str = "RAILNET_FAULTS";
    /// Variable of [`Settings::capture`].
    pub const CAPTURE: &str = "RAILNET_PCAP";
    /// Variable of [`Settings::addresses`], separated by commas.
    pub const ADDRESSES: &str = "RAILNET_RDMA_ADDRESSES";
    /// Variable of [`Settings::mtu`].
    pub const MTU: &str = "RAILNET_RDMA_MTU";
    /// Variable of [`Settings::rate`].
    pub const RATE: &str = "RAILNET_RDMA_RATE";
    /// Variable of [`Settings::dcqcn`]: `none` or `dcqcn`.
    pub const CONTROL: &str = "RAILNET_RDMA_CONTROL";
    /// Variable of [`Settings::rxe`]: `specification` or `rxe`.
    pub const PROFILE: &str = "RAILNET_RDMA_PROFILE";
    /// Variable of [`Settings::log`]: `error` or `info`.
    pub const LOG: &str = "RAILNET_RDMA_LOG";

    /// Variable of [`Settings::shared_memory`]: `auto` or `off`.
    pub const SHARED_MEMORY: &str = "RAILNET_RDMA_SHARED_MEMORY";

    /// The variable that keeps payload from shared memory, if one does.
    pub fn against_shared_memory(&self) -> Option<&'static str> {
        let reasons = [
            (!self.shared_memory, Self::SHARED_MEMORY),
            (!self.faults.is_none(), Self::FAULTS),
            (self.capture.is_some(), Self::CAPTURE),
            (self.rate.is_some(), Self::RATE),
            (self.dcqcn, Self::CONTROL),
            (self.rxe, Self::PROFILE),
        ];
        reasons.into_iter().find(|(is_set, _)| *is_set).map(|(_, name)| name)
    }

    /// From the environment of this process.
    pub fn from_env() -> Result<Self, String> {
        Self::read(|name| std::env::var(name).ok())
    }

    /// From variables that `value` looks up. One that cannot be read is an error that names it.
    pub fn read(value: impl Fn(&str) -> Option<String>) -> Result<Self, String> {
        let text = |name: &str| value(name).filter(|text| !text.is_empty());
        let wrong = |name: &str, why: &dyn Display| format!("{name}: {why}");
        let faults = match text(Self::FAULTS) {
            Some(value) => value.parse().map_err(|why| wrong(Self::FAULTS, &why))?,
            None => Faults::NONE,
        };
        let address = |one: &str| -> Result<IpAddr, String> {
            let one = one.trim();
            one.parse().map_err(|_| wrong(Self::ADDRESSES, &format!("{one:?} is not an IP address")))
        };
        let addresses = text(Self::ADDRESSES).map(|value| value.split(',').map(address).collect());
        let mtu = text(Self::MTU).map(|value| {
            let mtu = value.parse().ok().and_then(Mtu::from_bytes);
            mtu.ok_or_else(|| wrong(Self::MTU, &format!("{value:?}: 256, 512, 1024, 2048 or 4096 is needed")))
        });
        let rate = text(Self::RATE).map(|value| value.parse().map_err(|why| wrong(Self::RATE, &why)));
        let choice = |name: &str, [first, second]: [&str; 2]| match text(name) {
            None => Ok(None),
            Some(value) if value == first => Ok(Some(false)),
            Some(value) if value == second => Ok(Some(true)),
            Some(value) => Err(wrong(name, &format!("{value:?}: {first} or {second} is needed"))),
        };
        let rate: Option<Rate> = rate.transpose()?;
        Ok(Self {
            faults,
            capture: text(Self::CAPTURE).map(PathBuf::from),
            addresses: addresses.transpose()?,
            mtu: mtu.transpose()?,
            rate,
            dcqcn: choice(Self::CONTROL, ["none", "dcqcn"])?.unwrap_or(false) || rate.is_some(),
            rxe: choice(Self::PROFILE, ["specification", "rxe"])?.unwrap_or(false),
            shared_memory: !choice(Self::SHARED_MEMORY, ["auto", "off"])?.unwrap_or(false),
            log: choice(Self::LOG, ["error", "info"])?.unwrap_or(false),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(name: &str, value: &str) -> Result<Settings, String> {
        Settings::read(|asked| (asked == name).then(|| value.to_owned()))
    }

    #[test]
    fn nothing_set_is_a_plain_nic() {
        let settings = Settings::read(|_| None).unwrap();
        assert!(settings.faults.is_none() && settings.addresses.is_none());
        assert!(!settings.dcqcn && !settings.rxe && !settings.log);
    }

    #[test]
    fn what_has_to_be_seen_goes_over_sockets() {
        assert_eq!(Settings::read(|_| None).unwrap().against_shared_memory(), None);
        for (name, value) in [
            (Settings::SHARED_MEMORY, "off"),
            (Settings::FAULTS, "drop=0.1"),
            (Settings::CAPTURE, "run.pcapng"),
            (Settings::RATE, "10Gbps"),
            (Settings::CONTROL, "dcqcn"),
            (Settings::PROFILE, "rxe"),
        ] {
            assert_eq!(read(name, value).unwrap().against_shared_memory(), Some(name));
        }
    }

    #[test]
    fn values_are_read() {
        assert_eq!(read(Settings::MTU, "2048").unwrap().mtu, Some(Mtu::Mtu2048));
        assert!(read(Settings::RATE, "10Gbps").unwrap().dcqcn, "a rate limit is DCQCN's");
        let addresses = read(Settings::ADDRESSES, "10.0.0.7, ::1").unwrap().addresses.unwrap();
        assert_eq!(addresses, ["10.0.0.7".parse::<IpAddr>().unwrap(), "::1".parse().unwrap()]);
    }

    #[test]
    fn a_wrong_value_names_its_variable() {
        for (name, value) in [
            (Settings::FAULTS, "drop"),
            (Settings::ADDRESSES, "10.0.0"),
            (Settings::MTU, "1500"),
            (Settings::RATE, "fast"),
            (Settings::CONTROL, "swift"),
            (Settings::PROFILE, "mlx5"),
            (Settings::SHARED_MEMORY, "on"),
            (Settings::LOG, "loud"),
        ] {
            let error = read(name, value).unwrap_err();
            assert!(error.starts_with(name), "{error}");
        }
    }
}
