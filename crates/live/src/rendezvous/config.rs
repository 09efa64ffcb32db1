//! What a rank knows before it meets the others.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use railnet_core::{Rank, Span};

use super::Reminders;
use crate::launch::{Launch, Launcher, RendezvousAddress, Variables, variable};
use crate::{Level, Secret};

/// How long ranks wait for each other, unless told otherwise. Programs that load from a shared disk take their time.
const LIMIT: Duration = Duration::from_mins(5);
/// After how long without a sign of life a rank is reported as silent, unless told otherwise.
const SILENCE: Duration = Duration::from_secs(10);

/// What a rank knows before it meets the others.
#[derive(Clone, Debug)]
pub struct Config {
    /// Its number.
    pub rank: Rank,
    /// How many there are.
    pub world_size: u32,
    /// Where they meet.
    pub rendezvous: Option<RendezvousAddress>,
    /// What tells this job from others.
    pub job: String,
    /// What started it, for errors.
    pub launcher: Launcher,
    /// The secret they share, if any.
    pub secret: Secret,
    /// How long they wait for each other.
    pub limit: Duration,
    /// When and to whom a rank that waits says whom it waits for.
    pub reminders: Reminders,
    /// After how long without a sign of life a rank is reported as silent.
    pub silence: Duration,
    /// The host group; without one, the host's name.
    pub host_group: Option<String>,
    /// The address that this rank listens on; without one, that which leads to the meeting, or all where no single one is known.
    pub bind: Option<IpAddr>,
    /// Whether a launcher holds the port for rank 0.
    pub is_port_held: bool,
}

/// What is wrong with the variables that say how to meet.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{name} is {text:?}: {need}")]
pub struct ConfigError {
    /// The variable.
    pub name: &'static str,
    /// What it holds.
    pub text: String,
    /// What it should.
    pub need: Cow<'static, str>,
}

impl Config {
    /// Of a rank that was started so, with the defaults.
    pub fn new(launch: &Launch) -> Self {
        Self {
            rank: launch.rank,
            world_size: launch.world_size,
            rendezvous: launch.rendezvous.clone(),
            job: launch.job.clone(),
            launcher: launch.launcher,
            secret: Secret::default(),
            limit: LIMIT,
            reminders: Reminders::logged(Level::Warn, launch.rank.0),
            silence: SILENCE,
            host_group: launch.host_group.clone(),
            bind: None,
            is_port_held: launch.launcher == Launcher::Railnet,
        }
    }

    /// Where this rank listens: at the loopback address where all ranks meet there.
    pub(crate) fn listen(&self) -> Option<IpAddr> {
        let host = self.rendezvous.as_ref()?.hosts.first()?;
        let address = if host == "localhost" { Some(Ipv4Addr::LOCALHOST.into()) } else { host.parse().ok() };
        address.filter(IpAddr::is_loopback).map(|_| Ipv4Addr::LOCALHOST.into())
    }

    /// With what the environment says besides: `RAILNET_SECRET`, `RAILNET_TIMEOUT` and, before that, `RAILNET_RENDEZVOUS_LIMIT`,
    /// `RAILNET_SILENCE`, `RAILNET_BIND`, `RAILNET_DEBUG`.
    pub fn from_env(launch: &Launch) -> Result<Self, ConfigError> {
        Self::from_variables(launch, &variable)
    }

    /// The same from any source of variables.
    pub fn from_variables(launch: &Launch, variables: Variables<'_>) -> Result<Self, ConfigError> {
        let mut config = Self::new(launch);
        let variables = |name: &str| variables(name).filter(|value| !value.is_empty());
        if let Some(secret) = variables("RAILNET_SECRET") {
            config.secret = Secret::new(secret.as_bytes());
        }
        config.reminders = Reminders::from_variables(&variables, launch.rank.0);
        // The later one wins.
        for name in ["RAILNET_TIMEOUT", "RAILNET_RENDEZVOUS_LIMIT", "RAILNET_SILENCE"] {
            if let Some(text) = variables(name) {
                let need = "a time such as 30s or 500ms is needed";
                let place = if name == "RAILNET_SILENCE" { &mut config.silence } else { &mut config.limit };
                *place = duration(&text).ok_or(ConfigError { name, text, need: need.into() })?;
            }
        }
        if let Some(text) = variables("RAILNET_BIND") {
            let need = "an address of this host is needed, such as 10.0.0.1";
            let wrong = |_| ConfigError { name: "RAILNET_BIND", text: text.clone(), need: need.into() };
            config.bind = Some(text.parse().map_err(wrong)?);
        }
        Ok(config)
    }
}

/// A length of time that is not nothing, with its unit: `30s`.
pub(crate) fn duration(text: &str) -> Option<Duration> {
    let span: Span = text.parse().ok()?;
    let nanoseconds = span.as_ps() / 1000;
    (nanoseconds > 0).then(|| Duration::from_nanos(nanoseconds))
}
