//! Which data between ranks is authenticated.

use std::fmt;
use std::str::FromStr;

use crate::secret::Secret;

/// Which packets and slices carry message authentication codes (MACs). It takes a secret.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Authentication {
    /// Those between hosts. Inside a host other users are kept out by addresses, ports and credentials.
    #[default]
    Auto,
    /// All but shared memory.
    Always,
    /// None.
    Off,
}

impl Authentication {
    pub(crate) const ALL: [Self; 3] = [Self::Auto, Self::Always, Self::Off];

    /// Whether data between two ranks is authenticated, which are on one host or not.
    pub(crate) fn covers(self, secret: &Secret, is_one_host: bool) -> bool {
        secret.is_given()
            && match self {
                Self::Auto => !is_one_host,
                Self::Always => true,
                Self::Off => false,
            }
    }

    /// The log message of a rank.
    pub(crate) fn describe(self, secret: &Secret) -> &'static str {
        match self {
            _ if !secret.is_given() => "not authenticated: there is no secret (RAILNET_SECRET)",
            Self::Auto => "authenticated (SipHash-2-4, 128 bits) between hosts, not inside a host",
            Self::Always => "authenticated (SipHash-2-4, 128 bits)",
            Self::Off => "not authenticated (RAILNET_AUTHENTICATION=off)",
        }
    }
}

impl fmt::Display for Authentication {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Always => "always",
            Self::Off => "off",
        })
    }
}

impl FromStr for Authentication {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        Self::ALL.into_iter().find(|one| one.to_string() == text).ok_or(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_secret_nothing_is_covered_and_inside_a_host_only_what_was_asked_for() {
        let (none, some) = (Secret::default(), Secret::new(b"apple"));
        for mode in Authentication::ALL {
            assert_eq!(mode.to_string().parse(), Ok(mode));
            assert!(!mode.covers(&none, false));
            assert_eq!(mode.covers(&some, true), mode == Authentication::Always);
            assert_eq!(mode.covers(&some, false), mode != Authentication::Off);
        }
        assert_eq!("maybe".parse::<Authentication>(), Err(()));
    }
}
