//! The communication manager of an adapter, and the identifiers that its events are for.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

use libc::c_int;
use railnet_live::memory::application::ApplicationMemory;
use railnet_live::roce::{ConnectionManagement, Driver};
use railnet_nic::cm::{CmError, ConnectionId, Event, Manager};
use railnet_wire::mad::ServiceId;

use super::event::What;
use super::identifier::Identifier;
use crate::adapter::Adapter;
use crate::errors;

/// Connection management of an adapter.
pub(crate) struct Management {
    transport: ConnectionManagement,
    identifiers: BTreeMap<ConnectionId, Arc<Identifier>>,
    listeners: BTreeMap<u64, Listener>,
}

/// The identifier that hears of requests for a service.
struct Listener {
    /// The adapter owns its management.
    adapter: Weak<Adapter>,
    identifier: Arc<Identifier>,
}

/// The number of a refusal to keep a service for this process.
pub(super) fn of_claim(error: &io::Error) -> c_int {
    match error.kind() {
        io::ErrorKind::AddrInUse => libc::EADDRINUSE,
        _ => errors::of_io(error),
    }
}

/// The number of a manager's refusal.
pub(super) fn of_manager(error: CmError) -> c_int {
    match error {
        CmError::InUse => libc::EADDRINUSE,
        CmError::Exhausted => libc::ENOMEM,
        CmError::Unknown => libc::ENOTCONN,
        CmError::State | CmError::PrivateData(_) => libc::EINVAL,
    }
}

impl Management {
    pub(crate) fn open(driver: &mut Driver<ApplicationMemory>, guid: u64) -> Result<Self, c_int> {
        let transport =
            ConnectionManagement::open(driver, guid).map_err(|error| errors::of_driver(&error))?;
        Ok(Self { transport, identifiers: BTreeMap::new(), listeners: BTreeMap::new() })
    }

    pub(super) fn manager(&mut self) -> &mut Manager {
        self.transport.manager()
    }

    /// Events of a connection go to this identifier from now on.
    pub(super) fn adopt(&mut self, connection: ConnectionId, identifier: &Arc<Identifier>) {
        self.identifiers.insert(connection, identifier.clone());
        identifier.inner().connection = Some(connection);
    }

    /// An identifier is about to end.
    pub(super) fn release(&mut self, driver: &Driver<ApplicationMemory>, connection: ConnectionId) {
        self.identifiers.remove(&connection);
        self.manager().forget(driver.now(), connection);
    }

    /// Requests for a service go to this identifier.
    pub(super) fn listen(
        &mut self,
        driver: &mut Driver<ApplicationMemory>,
        adapter: &Arc<Adapter>,
        service: ServiceId,
        identifier: &Arc<Identifier>,
    ) -> Result<(), c_int> {
        self.manager().listen(driver.now(), service).map_err(of_manager)?;
        if let Err(error) = driver.listen(service) {
            self.unlisten(driver, service, true);
            return Err(of_claim(&error));
        }
        let listener = Listener { adapter: Arc::downgrade(adapter), identifier: identifier.clone() };
        self.listeners.insert(service.0, listener);
        Ok(())
    }

    /// Gives up a service that is kept for this process; it may be one that is listened on.
    pub(super) fn unlisten(
        &mut self,
        driver: &mut Driver<ApplicationMemory>,
        service: ServiceId,
        is_listening: bool,
    ) {
        driver.unlisten(service);
        if is_listening {
            self.manager().unlisten(driver.now(), service);
            self.listeners.remove(&service.0);
        }
    }

    /// The process ends: its peers are told as far as one message does.
    pub(crate) fn leave(&mut self, driver: &mut Driver<ApplicationMemory>) {
        for connection in std::mem::take(&mut self.identifiers).into_keys() {
            self.manager().forget(driver.now(), connection);
        }
        self.transport.progress(driver);
    }

    /// Does what is due, and pushes events; tells whether there was anything.
    pub(crate) fn progress(&mut self, driver: &mut Driver<ApplicationMemory>) -> bool {
        let mut active = self.transport.progress(driver);
        while let Some(event) = self.manager().poll_event() {
            active = true;
            match &event {
                Event::Requested { connection, service, .. }
                | Event::Resolving { connection, service, .. } => {
                    let connection = *connection;
                    if !self.announce(connection, *service, event) {
                        self.release(driver, connection);
                    }
                }
                _ => {
                    if let Some(identifier) = self.identifiers.get(&event.connection()) {
                        identifier.push(What::Happened(event));
                    }
                }
            }
        }
        // Refusals from above leave at once.
        self.transport.progress(driver) || active
    }

    /// Tells a listener of a request; false where none can take it.
    fn announce(&mut self, connection: ConnectionId, service: ServiceId, event: Event) -> bool {
        let Some(listener) = self.listeners.get(&service.0) else { return false };
        let asks_datagram = matches!(event, Event::Resolving { .. });
        if listener.identifier.is_datagram() != asks_datagram || !listener.identifier.has_room() {
            return false;
        }
        let Some(adapter) = listener.adapter.upgrade() else { return false };
        let Some(new) = Identifier::for_request(&listener.identifier, &adapter, &event) else {
            return false;
        };
        let listener = listener.identifier.clone();
        self.adopt(connection, &new);
        listener.push(What::Requested(new, event));
        true
    }

    pub(crate) fn next_timeout(&self, driver: &Driver<ApplicationMemory>) -> Option<Duration> {
        self.transport.next_timeout(driver)
    }
}
