//! From the rows of files to servers.

use railnet_core::{Rate, Span, nearest};
use toml::Spanned;

use super::compute::Compute;
use super::file::{BridgeRow, GpuRow, MachineRow, NicRow, RackRow, RoleName};
use super::{Catalogue, CatalogueError};
use crate::host::{DeviceId, DeviceKind, Host, HostLinkKind};

/// The most levels that a PCIe switch shows.
const LEVELS_MAX: u8 = 2;

fn wrong<T>(message: String, at: &Spanned<T>) -> CatalogueError {
    CatalogueError { message, span: Some(at.span()), meant: None }
}

impl Catalogue {
    fn gpu_row(&self, name: &str) -> Option<&GpuRow> {
        self.gpus.iter().find(|row| row.name.get_ref() == name)
    }

    fn nic_row(&self, name: &str) -> Option<&NicRow> {
        self.nics.iter().find(|row| row.name.get_ref() == name)
    }

    fn check_gpu(&self, name: &Spanned<String>) -> Result<(), CatalogueError> {
        let known: Vec<&str> = self.gpus.iter().map(|row| row.name.get_ref().as_str()).collect();
        Self::check_name("GPU", name, &known)
    }

    fn check_nic(&self, name: &Spanned<String>) -> Result<(), CatalogueError> {
        let known: Vec<&str> = self.nics.iter().map(|row| row.name.get_ref().as_str()).collect();
        Self::check_name("NIC", name, &known)
    }

    fn check_name(what: &str, name: &Spanned<String>, known: &[&str]) -> Result<(), CatalogueError> {
        if known.contains(&name.get_ref().as_str()) {
            return Ok(());
        }
        let message = format!("no {what} is called \"{}\": one of {}", name.get_ref(), known.join(", "));
        let meant = nearest(name.get_ref(), known).map(str::to_owned);
        Err(CatalogueError { meant, ..wrong(message, name) })
    }
}

impl MachineRow {
    /// Whether all that it names is there, and it is a server.
    pub(super) fn check(&self, catalogue: &Catalogue) -> Result<(), CatalogueError> {
        if let Some(gpu) = &self.gpu {
            catalogue.check_gpu(gpu)?;
        } else if self.bridge.iter().any(|row| row.gpus > 0) {
            return Err(wrong(format!("{} has GPUs: say which, in `gpu`", self.name.get_ref()), &self.name));
        }
        for row in &self.bridge {
            if *row.numa.get_ref() as usize >= self.sockets.len() {
                let message = format!("there are NUMA nodes 0 to {}", self.sockets.len().saturating_sub(1));
                return Err(wrong(message, &row.numa));
            }
            if let Some(levels) = &row.switch
                && !(1..=LEVELS_MAX).contains(levels.get_ref())
            {
                return Err(wrong(format!("a PCIe switch shows 1 to {LEVELS_MAX} levels"), levels));
            }
            for port in &row.nics {
                catalogue.check_nic(&port.nic)?;
            }
        }
        self.build(catalogue).check().map_err(|error| wrong(error.to_string(), &self.name))
    }

    pub(super) fn build(&self, catalogue: &Catalogue) -> Host {
        let mut host = Host::new(self.name.get_ref());
        let cpus = self.add_cpus(&mut host);
        let nvswitch = self
            .nvswitch
            .map(|row| host.add("NVSwitch", DeviceKind::NvSwitch { chips: row.chips, reduces: row.reduces }));
        let gpu = self.gpu.as_ref().and_then(|name| catalogue.gpu_row(name.get_ref()));
        let mut builder = Builder { host, catalogue, gpu, nvswitch, gpus: 0, drives: 0 };
        for (number, row) in self.bridge.iter().enumerate() {
            builder.add_bridge(row, number as u8, cpus[*row.numa.get_ref() as usize]);
        }
        builder.host
    }

    /// The NUMA nodes, each joined to each. What NCCL expects between them is all that is known of those links.
    fn add_cpus(&self, host: &mut Host) -> Vec<DeviceId> {
        let processor = self.processor.processor();
        let nodes = self.sockets.iter().enumerate();
        let cpus: Vec<_> = nodes
            .map(|(id, socket)| host.add(format!("CPU{id}"), DeviceKind::Cpu { socket: *socket, processor }))
            .collect();
        let rate = processor.socket_bandwidth();
        for (id, cpu) in cpus.iter().enumerate() {
            for other in &cpus[id + 1..] {
                host.join(*cpu, *other, HostLinkKind::Socket, rate, rate);
            }
        }
        cpus
    }
}

/// A server that is being put together.
struct Builder<'a> {
    host: Host,
    catalogue: &'a Catalogue,
    gpu: Option<&'a GpuRow>,
    nvswitch: Option<DeviceId>,
    gpus: u32,
    drives: u32,
}

impl Builder<'_> {
    fn add_bridge(&mut self, row: &BridgeRow, number: u8, cpu: DeviceId) {
        let (parent, bridge) = match &row.switch {
            Some(levels) => {
                let kind = DeviceKind::PciSwitch { two_levels: *levels.get_ref() > 1 };
                let switch = self.host.add(format!("PCI{number}"), kind);
                let above = self.gpu.map_or(4, |gpu| gpu.pcie);
                self.host.join_pcie(cpu, switch, above, 16, Some(number));
                (switch, None)
            }
            None => (cpu, Some(number)),
        };
        for _ in 0..row.gpus {
            let Some(row) = self.gpu else { break };
            let gpu = self.host.add(format!("GPU{}", self.gpus), row.device());
            self.gpus += 1;
            self.host.join_pcie(parent, gpu, row.pcie, 16, bridge);
            if let Some(nvswitch) = self.nvswitch {
                row.join_nvlinks(&mut self.host, gpu, nvswitch);
            }
        }
        for port in &row.nics {
            let Some(nic) = self.catalogue.nic_row(port.nic.get_ref()) else { continue };
            let device = self.host.add(port.name.clone(), nic.device(port.role));
            self.host.join_pcie(parent, device, nic.pcie, 16, bridge);
        }
        for _ in 0..row.drives {
            let drive = self.host.add(format!("nvme{}", self.drives), DeviceKind::Nvme);
            self.drives += 1;
            self.host.join_pcie(parent, drive, 4, 4, bridge);
        }
    }
}

impl RackRow {
    pub(super) fn check(&self, catalogue: &Catalogue) -> Result<(), CatalogueError> {
        catalogue.check_gpu(&self.gpu)?;
        catalogue.check_nic(&self.nic)?;
        self.build(catalogue).check().map_err(|error| wrong(error.to_string(), &self.name))
    }

    pub(super) fn build(&self, catalogue: &Catalogue) -> Host {
        let mut host = Host::new(self.name.get_ref());
        let nvswitch = host.add("NVSwitch", DeviceKind::NvSwitch { chips: self.nvswitches, reduces: true });
        let processor = self.processor.processor();
        let (gpu_row, nic_row) =
            (catalogue.gpu_row(self.gpu.get_ref()), catalogue.nic_row(self.nic.get_ref()));
        let mut gpus = 0;
        for tray in 0..self.trays {
            let cpus: Vec<_> = (0..self.packages)
                .map(|package| {
                    let socket = tray * self.packages + package;
                    host.add(format!("CPU{socket}"), DeviceKind::Cpu { socket, processor })
                })
                .collect();
            for (id, cpu) in cpus.iter().enumerate() {
                let rate = processor.socket_bandwidth();
                for other in &cpus[id + 1..] {
                    host.join(*cpu, *other, HostLinkKind::Socket, rate, rate);
                }
                for row in (0..self.gpus).filter_map(|_| gpu_row) {
                    let gpu = host.add(format!("GPU{gpus}"), row.device());
                    gpus += 1;
                    host.join(*cpu, gpu, HostLinkKind::C2c, self.c2c.effective.0, self.c2c.nominal.0);
                    row.join_nvlinks(&mut host, gpu, nvswitch);
                }
                for (nic, row) in (0..self.nics).filter_map(|nic| Some((nic, nic_row?))) {
                    let name = format!("tray{tray}.mlx5_{}", id as u8 * self.nics + nic);
                    let device = host.add(name, row.device(RoleName::Compute));
                    host.join_pcie(*cpu, device, row.pcie, 16, Some(nic));
                }
            }
        }
        host
    }
}

/// Whole tenths of a TFLOP/s, as data sheets have them.
fn flops(teraflops: f64) -> u64 {
    (teraflops * 10.0).round() as u64 * 100_000_000_000
}

impl GpuRow {
    pub(super) fn device(&self) -> DeviceKind {
        DeviceKind::Gpu {
            model: self.name.get_ref().clone(),
            memory: self.memory.0,
            memory_bandwidth: self.bandwidth.nominal.0,
            compute_capability: self.compute_capability,
            compute: Some(Compute {
                multiprocessors: self.multiprocessors,
                half: flops(self.half.nominal),
                half_best: flops(self.half.best),
                half_sustained: flops(self.half.sustained),
                eight: self.eight.map(flops),
                single: flops(self.single),
                attention_forward: flops(self.attention.forward),
                attention_backward: flops(self.attention.backward),
                memory_percent: self.bandwidth.percent,
            }),
        }
    }

    fn join_nvlinks(&self, host: &mut Host, gpu: DeviceId, nvswitch: DeviceId) {
        let Some(row) = self.nvlink else { return };
        let all = |rate: Rate| Rate::from_bps(rate.as_bps() * u64::from(row.links));
        let kind = HostLinkKind::NvLink { links: row.links };
        host.join(gpu, nvswitch, kind, all(row.effective.0), all(row.nominal.0));
    }
}

impl NicRow {
    fn device(&self, role: RoleName) -> DeviceKind {
        DeviceKind::Nic { rate: self.rate.0, role: role.role(), gpudirect: true, latency: Span::ZERO }
    }
}
