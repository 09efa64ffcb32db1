//! Binding, resolving, listening.

use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use libc::{c_int, sockaddr};

use super::endpoint::complete;
use super::event::What;
use super::identifier::{self, CmId, Phase};
use super::{call, device, socket_address};
use crate::abi::*;
use crate::adapter::State;

/// Ports that are chosen for those who do not ask for one: as Linux does.
const EPHEMERAL_FIRST: u16 = 32768;
const EPHEMERAL_COUNT: u16 = 28232;

/// Requests that may wait for the application.
const BACKLOG_MAX: u32 = 1024;

/// A number that cannot be guessed.
pub(super) fn random() -> u64 {
    RandomState::new().hash_one(0)
}

/// Ephemeral ports, each once, from a random one on.
fn ephemeral_ports() -> impl Iterator<Item = u16> {
    let first = (random() % u64::from(EPHEMERAL_COUNT)) as u16;
    (0..EPHEMERAL_COUNT).map(move |step| EPHEMERAL_FIRST + (first + step) % EPHEMERAL_COUNT)
}

pub(crate) extern "C" fn bind_addr(id: *mut rdma_cm_id, address: *mut sockaddr) -> c_int {
    call(|| bind(id, socket_address::parse(address)?))
}

/// Binds to an address of this host. Its port is kept from others, in all processes, unless addresses may be reused.
pub(crate) fn bind(id: *mut rdma_cm_id, address: SocketAddr) -> Result<(), c_int> {
    let shared = &CmId::of(id)?.shared;
    let options = {
        let inner = shared.inner();
        if inner.phase != Phase::Idle {
            return Err(libc::EINVAL);
        }
        inner.options
    };
    let adapters = identifier::adapters_of(address.ip(), options.only_family)?;
    let reserve = |port| identifier::reserve(&adapters, shared.service(port)).map(|()| port);
    let (port, is_reserved) = match address.port() {
        0 => {
            let mut tried = ephemeral_ports().map(reserve);
            let free = tried.find(|outcome| !matches!(outcome, Err(libc::EADDRINUSE)));
            (free.unwrap_or(Err(libc::EADDRNOTAVAIL))?, true)
        }
        port if options.reuses_address => (port, false),
        port => (reserve(port)?, true),
    };
    {
        let mut inner = shared.inner();
        (inner.phase, inner.adapters, inner.is_reserved) = (Phase::Bound, adapters, is_reserved);
        inner.local = Some(SocketAddr::new(address.ip(), port));
    }
    CmId::show_address(id)
}

pub(crate) extern "C" fn resolve_addr(
    id: *mut rdma_cm_id,
    source: *mut sockaddr,
    target: *mut sockaddr,
    _timeout_ms: c_int,
) -> c_int {
    call(|| {
        resolve(id, socket_address::maybe(source)?, socket_address::parse(target)?)?;
        complete(id)
    })
}

/// Finds the device that leads to a peer. The application learns it by an event.
pub(crate) fn resolve(
    id: *mut rdma_cm_id,
    source: Option<SocketAddr>,
    target: SocketAddr,
) -> Result<(), c_int> {
    let shared = CmId::of(id)?.shared.clone();
    let bound = {
        let inner = shared.inner();
        match inner.phase {
            Phase::Idle => source,
            // A source besides the address that it is bound to changes nothing, as in Linux.
            Phase::Bound => inner.local,
            _ => return Err(libc::EINVAL),
        }
    };
    if bound.is_some_and(|bound| bound.is_ipv4() != target.is_ipv4() && !bound.ip().is_unspecified()) {
        return Err(libc::EINVAL);
    }
    let target = socket_address::peer(target);
    let specific = bound.map(|bound| bound.ip()).filter(|ip| !ip.is_unspecified());
    if let Some(ip) = specific {
        // An address that is not this host's is the caller's mistake, and known at once.
        device::of(ip)?;
    }
    let port = bound.map_or(0, |bound| bound.port());
    let port = if port == 0 { ephemeral_ports().next().unwrap_or(EPHEMERAL_FIRST) } else { port };
    let outcome = find(specific, target.ip()).and_then(|ip| {
        let adapter = device::of(ip)?.adapter()?;
        let released = {
            let mut inner = shared.inner();
            let others = std::mem::replace(&mut inner.adapters, vec![adapter.clone()]);
            (inner.local, inner.peer) = (Some(SocketAddr::new(ip, port)), Some(target));
            inner.phase = Phase::AddressResolved;
            if inner.is_reserved { others } else { Vec::new() }
        };
        // An identifier that was bound to all addresses keeps its port of one only.
        for other in released.iter().filter(|other| !Arc::ptr_eq(other, &adapter)) {
            other.state().driver.unlisten(shared.service(port));
        }
        Ok(())
    });
    match outcome {
        Ok(()) => {
            CmId::show_address(id)?;
            shared.push(What::AddressResolved);
        }
        Err(number) => shared.push(What::AddressError(number)),
    }
    Ok(())
}

/// The address to send from.
fn find(bound: Option<IpAddr>, target: IpAddr) -> Result<IpAddr, c_int> {
    match bound {
        Some(ip) => Ok(ip),
        None => socket_address::source_for(target),
    }
}

pub(crate) extern "C" fn resolve_route(id: *mut rdma_cm_id, _timeout_ms: c_int) -> c_int {
    call(|| {
        let shared = CmId::of(id)?.shared.clone();
        {
            let mut inner = shared.inner();
            if inner.phase != Phase::AddressResolved {
                return Err(libc::EINVAL);
            }
            inner.phase = Phase::RouteResolved;
        }
        CmId::show_route(id)?;
        shared.push(What::RouteResolved);
        complete(id)
    })
}

pub(crate) extern "C" fn listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int {
    call(|| {
        let shared = CmId::of(id)?.shared.clone();
        if shared.inner().phase == Phase::Idle {
            bind(id, SocketAddr::new(std::net::Ipv4Addr::UNSPECIFIED.into(), 0))?;
        }
        let (adapters, local) = {
            let mut inner = shared.inner();
            let local = inner.local.filter(|_| inner.phase == Phase::Bound).ok_or(libc::EINVAL)?;
            inner.backlog =
                u32::try_from(backlog).ok().filter(|n| (1..BACKLOG_MAX).contains(n)).unwrap_or(BACKLOG_MAX);
            (inner.adapters.clone(), local)
        };
        let service = shared.service(local.port());
        if adapters.is_empty() {
            // Bound to a loopback address that is no device's.
            return Err(libc::ENODEV);
        }
        for (index, adapter) in adapters.iter().enumerate() {
            let mut state = adapter.state();
            let State { driver, management, .. } = &mut *state;
            let outcome = management.listen(driver, adapter, service, &shared);
            drop(state);
            if let Err(number) = outcome {
                for listening in &adapters[..index] {
                    let mut state = listening.state();
                    let State { driver, management, .. } = &mut *state;
                    management.unlisten(driver, service, true);
                }
                shared.inner().is_reserved = false;
                return Err(number);
            }
        }
        let mut inner = shared.inner();
        (inner.phase, inner.is_reserved) = (Phase::Listening, false);
        Ok(())
    })
}
