//! Conservation of packets: what went into each link and switch is what came out, was lost or is queued.

use railnet_core::{Component, Port};
use railnet_topology::Vertex;

use super::observer::{Amount, Observer};
use super::violation::Violation;
use crate::network::Network;
use crate::testing::World;

/// Compares the ledgers of ports with the counters and queues of the network. At the end nothing may be under way.
pub(super) fn check(world: &World<Observer>, is_over: bool) -> Result<(), Violation> {
    let network = &world.network;
    check_counters(network)?;
    for switch in 0..network.fabric.switches.len() as u32 {
        check_switch(network, switch, is_over)?;
    }
    for host in 0..network.host_count() {
        check_host(network, host, is_over)?;
    }
    Ok(())
}

/// The sender of a channel, and its port.
fn sender(network: &Network<Observer>, channel: u32) -> (Component, Port) {
    (network.component(network.fabric.channels[channel as usize].from), network.fabric.port_of(channel))
}

fn check_counters(network: &Network<Observer>) -> Result<(), Violation> {
    for channel in 0..network.fabric.channels.len() as u32 {
        let (component, port) = sender(network, channel);
        let books = network.sink.port(component, port);
        let counted = &network.fabric.channels[channel as usize].counters;
        let sent = books.started.plus(books.pauses);
        // What comes in by a port is dropped there, which is the end of the other direction.
        let back = network.fabric.channels[channel as usize].reverse;
        let (far, far_port) = sender(network, back);
        let emitted = [
            sent.packets,
            sent.bytes,
            books.lost.packets + books.pauses_lost.packets + books.damaged,
            network.sink.port(far, far_port).dropped.packets,
            books.marked,
        ];
        let found = [counted.packets, counted.bytes, counted.losses, counted.drops, counted.marks];
        if emitted != found {
            let what = format!(
                "{component} {port}: events and counters differ (packets, bytes, losses, drops, marks)"
            );
            return Err(Violation::new(what).expected(format!("{emitted:?}")).found(format!("{found:?}")));
        }
    }
    Ok(())
}

/// What came to a vertex by its links, or is on its way there.
fn towards(network: &Network<Observer>, vertex: Vertex) -> Result<Amount, Violation> {
    let mut sum = Amount::default();
    for channel in (0..network.fabric.channels.len() as u32)
        .filter(|channel| network.fabric.channels[*channel as usize].to == vertex)
    {
        let (component, port) = sender(network, channel);
        let books = network.sink.port(component, port);
        let arrives = books.started.minus(books.lost).ok_or_else(|| {
            Violation::new(format!("{component} {port} lost more than it sent")).found(format!("{books:?}"))
        })?;
        sum = sum.plus(arrives);
    }
    Ok(sum)
}

fn check_switch(network: &Network<Observer>, switch: u32, is_over: bool) -> Result<(), Violation> {
    let came = towards(network, Vertex::Switch(switch))?;
    let (packets, bytes) = network.fabric.queued_in(switch);
    let mut gone = Amount { packets, bytes };
    for &egress in &network.fabric.switches[switch as usize].ports {
        let (component, port) = sender(network, egress);
        let books = network.sink.port(component, port);
        gone = gone.plus(books.started).plus(books.dropped);
    }
    let on_the_way = came.minus(gone);
    if on_the_way.is_none() || is_over && on_the_way != Some(Amount::default()) {
        let what = format!("switch {switch}: what came in is not what went out, was dropped or is held");
        return Err(Violation::new(what).expected(format!("{came:?}")).found(format!("{gone:?}")));
    }
    Ok(())
}

fn check_host(network: &Network<Observer>, host: u32, is_over: bool) -> Result<(), Violation> {
    let came = towards(network, Vertex::Host(host))?.packets;
    let counters = network.endpoints.hosts[host as usize].nic.counters();
    if counters.received > came || is_over && counters.received != came {
        let what = format!("host {host}: its NIC has not received what was sent to it");
        return Err(Violation::new(what).expected(came).found(counters.received));
    }
    let (component, port) = sender(network, network.endpoints.hosts[host as usize].egress);
    let left = network.sink.port(component, port).started.packets;
    if left != counters.sent {
        let what = format!("host {host}: what its NIC sent is not what left by its port");
        return Err(Violation::new(what).expected(counters.sent).found(left));
    }
    Ok(())
}
