//! What environment variables say about the NIC. `railnet rdma exec` has an option for each.

use std::net::IpAddr;
use std::path::PathBuf;

use railnet_core::Rate;
use railnet_live::roce::Faults;
use railnet_nic::Mtu;

/// How the NICs of this process are made.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// What happens to packets on their way out (`RAILNET_FAULTS`).
    pub(crate) faults: Faults,
    /// A capture of this process's packets (`RAILNET_PCAP`); the name is followed by the process's number.
    pub(crate) capture: Option<PathBuf>,
    /// The addresses that become devices, in this order (`RAILNET_RDMA_ADDRESSES`); all of the host without it.
    pub(crate) addresses: Option<Vec<IpAddr>>,
    /// The largest path MTU of a port (`RAILNET_RDMA_MTU`).
    pub(crate) mtu: Option<Mtu>,
    /// The rate of a port (`RAILNET_RDMA_RATE`): packets are paced to it.
    pub(crate) rate: Option<Rate>,
    /// DCQCN (`RAILNET_RDMA_CONTROL=dcqcn`). A rate turns it on, too: it has the rate limiter.
    pub(crate) dcqcn: bool,
    /// Behave as Linux Soft-RoCE does (`RAILNET_RDMA_PROFILE=rxe`).
    pub(crate) rxe: bool,
    /// Write what happens to standard error (`RAILNET_RDMA_LOG=info`).
    pub(crate) log: bool,
}

impl Settings {
    /// From the environment. A value that cannot be read is an error that names its variable.
    pub(crate) fn from_env() -> Result<Self, String> {
        let text = |name: &str| std::env::var(name).ok().filter(|text| !text.is_empty());
        let wrong = |name: &str, why: &dyn std::fmt::Display| format!("{name}: {why}");
        let faults = match text("RAILNET_FAULTS") {
            Some(value) => value.parse().map_err(|why| wrong("RAILNET_FAULTS", &why))?,
            None => Faults::NONE,
        };
        let addresses = match text("RAILNET_RDMA_ADDRESSES") {
            Some(value) => Some(
                value
                    .split(',')
                    .map(|one| one.trim().parse().map_err(|why| wrong("RAILNET_RDMA_ADDRESSES", &why)))
                    .collect::<Result<_, _>>()?,
            ),
            None => None,
        };
        let mtu = match text("RAILNET_RDMA_MTU") {
            Some(value) => {
                let mtu = value.parse().ok().and_then(Mtu::from_bytes);
                Some(mtu.ok_or_else(|| wrong("RAILNET_RDMA_MTU", &"256, 512, 1024, 2048 or 4096 is needed"))?)
            }
            None => None,
        };
        let rate = match text("RAILNET_RDMA_RATE") {
            Some(value) => Some(value.parse::<Rate>().map_err(|why| wrong("RAILNET_RDMA_RATE", &why))?),
            None => None,
        };
        let dcqcn = match text("RAILNET_RDMA_CONTROL").as_deref() {
            None | Some("none") => rate.is_some(),
            Some("dcqcn") => true,
            Some(_) => return Err(wrong("RAILNET_RDMA_CONTROL", &"none or dcqcn is needed")),
        };
        let rxe = match text("RAILNET_RDMA_PROFILE").as_deref() {
            None | Some("specification") => false,
            Some("rxe") => true,
            Some(_) => return Err(wrong("RAILNET_RDMA_PROFILE", &"specification or rxe is needed")),
        };
        let log = match text("RAILNET_RDMA_LOG").as_deref() {
            None | Some("error") => false,
            Some("info") => true,
            Some(_) => return Err(wrong("RAILNET_RDMA_LOG", &"error or info is needed")),
        };
        let capture = text("RAILNET_PCAP").map(PathBuf::from);
        Ok(Self { faults, capture, addresses, mtu, rate, dcqcn, rxe, log })
    }
}

/// An error on standard error, where a program that knows only numbers would keep it from its user.
#[expect(clippy::print_stderr, reason = "a library behind a C interface has no other way to say a sentence")]
pub(crate) fn complain(text: &str) {
    eprintln!("railnet: {text}");
}
