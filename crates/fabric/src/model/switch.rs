//! A switch: egress ports over one shared buffer.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use railnet_core::{Random, Time};

use crate::model::buffer::SharedBuffer;
use crate::model::config::SwitchConfig;
use crate::model::routing::PathSelection;

/// One switch.
#[derive(Debug)]
pub(crate) struct Switch {
    /// The channel of each egress port.
    pub(crate) ports: Vec<u32>,
    pub(crate) buffer: SharedBuffer,
    pub(crate) paths: PathSelection,
    /// (ingress port, priority) pairs whose sender got XOFF and no XON yet.
    pub(crate) xoff_count: u32,
    /// The ready list: ports that have more to transmit when they are free, where the switch is an LP.
    pub(crate) ready_list: Vec<u32>,
    /// The same while they transmit in the order of time: when, and which.
    pub(crate) ready_heap: BinaryHeap<Reverse<(Time, u32)>>,
    /// Whether they do.
    pub(crate) uses_ready_heap: bool,
}

impl Switch {
    /// A switch with these ports, whose links need so many bytes of headroom for each lossless priority.
    pub(crate) fn new(config: &SwitchConfig, ports: Vec<u32>, headroom: u64, random: Random) -> Self {
        Self {
            buffer: SharedBuffer::new(config, ports.len(), headroom),
            paths: PathSelection::new(config, random),
            ports,
            xoff_count: 0,
            ready_list: Vec::new(),
            ready_heap: BinaryHeap::new(),
            uses_ready_heap: false,
        }
    }

    /// Whether its ports have to transmit in the order of time, because a sender waits for XON, or do.
    #[inline]
    pub(crate) fn needs_order(&self) -> bool {
        self.xoff_count > 0 || self.uses_ready_heap
    }
}
