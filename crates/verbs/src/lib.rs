//! `libibverbs.so.1` and `librdmacm.so.1` over the NIC of `railnet-nic` on UDP sockets: unmodified RDMA programs run with no
//! hardware, no kernel module and no privilege.
//!
//! The crate is thin: it turns C into calls of [`railnet_live::roce::Driver`], and holds no protocol. One shared object
//! stands under all the names that programs load, so both libraries of a process have one state.
//!
//! | module | what it is |
//! | --- | --- |
//! | `abi` | the C structures of `infiniband/verbs.h` |
//! | `export` | the symbols, with the versions of rdma-core |
//! | `context` | devices, one for each address, and opening them |
//! | `adapter` | the NIC of an address, its lock, its progress thread |
//! | `fork` | what the child of a fork gets of it: nothing |
//! | `object` | pointers of C as references |
//! | `channel` | descriptors that become readable with events |
//! | `memory`, `buffer`, `completion`, `receive`, `queue_pair`, `post`, `address` | the verbs, by object |
//! | `cma` | connection management: `librdmacm` |
//! | `rsocket` | stream sockets over connections |
//! | `names` | enumerations in words |
//! | `storm` | random programs of C calls, which test all of it |
#![cfg(target_arch = "x86_64")]
#![allow(
    clippy::wildcard_imports,
    clippy::struct_field_names,
    reason = "the names of the C interface are unmistakable, and not ours to choose"
)]

mod abi;
mod adapter;
mod address;
mod buffer;
mod channel;
mod cma;
mod completion;
mod context;
mod errors;
mod export;
mod fork;
mod memory;
mod names;
mod object;
mod post;
mod queue_pair;
mod receive;
mod rsocket;
pub mod storm;
