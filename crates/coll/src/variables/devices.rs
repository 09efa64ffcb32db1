//! Lists of devices: `NCCL_IB_HCA` and `NCCL_SOCKET_IFNAME`.

/// Which devices are used, by name: `mlx5` for all that begin so, `=mlx5_0,mlx5_1` for these, `^mlx5_4` for all others.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceList {
    is_exclusion: bool,
    is_exact: bool,
    /// Names, each with its port where one was given.
    names: Vec<(String, Option<u32>)>,
}

impl DeviceList {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let (is_exclusion, rest) = text.strip_prefix('^').map_or((false, text), |rest| (true, rest));
        let (is_exact, rest) = rest.strip_prefix('=').map_or((false, rest), |rest| (true, rest));
        let names = rest.split(',').map(name).collect::<Result<_, _>>()?;
        Ok(Self { is_exclusion, is_exact, names })
    }

    /// Whether a device with one port is used.
    pub fn allows(&self, device: &str) -> bool {
        let is_named = self.names.iter().any(|(name, port)| {
            let fits = if self.is_exact { device == name } else { device.starts_with(name.as_str()) };
            fits && port.is_none_or(|port| port == 1)
        });
        is_named != self.is_exclusion
    }
}

/// A name and its port; what NCCL 2.30 takes after it (rail and plane) is read and left alone.
fn name(text: &str) -> Result<(String, Option<u32>), String> {
    let mut parts = text.trim().split(':');
    let name = parts.next().unwrap_or_default();
    if name.is_empty() {
        return Err("a name is missing: write it like mlx5_0,mlx5_1".to_owned());
    }
    let mut numbers = parts.map(str::parse::<u32>);
    let port = numbers.next().transpose().map_err(|_| format!("the port in \"{text}\" is not a number"))?;
    if numbers.any(|number| number.is_err()) {
        return Err(format!("\"{text}\" is not of the form name:port:rail:plane"));
    }
    Ok((name.to_owned(), port))
}
