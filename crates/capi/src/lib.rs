//! `railnet.h` and `librailnet.so`: communicators, collectives, point to point and windows for programs in C, in NCCL's shape.
//!
//! The crate is thin: it turns C into calls of [`railnet_live::Communicator`]. It adds what C needs and Rust has of itself: handles that are
//! checked, pointers that may be `NULL`, numbers that may name nothing, and a message for each failure. Nothing that a program
//! passes, short of a pointer to memory that is not there, does more than make a call fail. `include/railnet.h` says what each
//! function does.
//!
//! | module | what it is |
//! | --- | --- |
//! | `export` | the functions of the header |
//! | `codes` | result codes, data types and reductions, by number |
//! | `pointer`, `handle` | what C passes: pointers, and handles with a generation |
//! | `failure` | codes and messages; panics end there |
//! | `communicator`, `unique_id`, `process` | making communicators and giving them back, each in its process |
//! | `operation`, `group`, `request` | collectives, sends and receives: at once, together, started |
//! | `window` | one-sided memory |

pub mod codes;
mod communicator;
mod export;
mod failure;
mod group;
mod handle;
mod operation;
mod pointer;
mod process;
mod request;
mod unique_id;
mod window;

pub use unique_id::UNIQUE_ID_BYTES;
