//! Collectives, sends and receives: checked, then made at once, started, or put into the group of this thread.
#![expect(unsafe_code, reason = "the program vouches for the memory of a call")]

use std::ffi::c_int;
use std::sync::Arc;

use railnet_coll::{Call, Collective, check_call};
use railnet_core::{DataType, Rank};
use railnet_live::communicator::{Error, Operation, Transfer, TransferDirection};

use crate::codes::DATA_TYPES;
use crate::communicator::{Entry, on};
use crate::failure::Failure;
use crate::group;
use crate::handle::Handle;
use crate::pointer::{Out, Source, Target};
use crate::request;

/// A collective as a program asks for it.
pub(crate) struct Asked {
    pub(crate) collective: Collective,
    pub(crate) input: Source,
    pub(crate) output: Target,
    pub(crate) count: usize,
    pub(crate) dtype: c_int,
    /// The reduction, where there is one.
    pub(crate) op: Option<c_int>,
    pub(crate) root: c_int,
}

/// What can be started.
#[derive(Debug)]
pub(crate) enum Work {
    Call { call: Call, input: *const u8, output: *mut u8 },
    Transfer { transfer: Transfer, data: *mut u8 },
}

/// A data type of the engine's.
pub(crate) fn data_type(number: c_int) -> Result<DataType, Failure> {
    let found = usize::try_from(number).ok().and_then(|number| DATA_TYPES.get(number));
    found.map(|(_, dtype)| *dtype).ok_or_else(|| {
        Failure::argument(format!("datatype is {number}: types are 0 to {}", DATA_TYPES.len() - 1))
    })
}

/// A barrier has no memory, no type and no root.
pub(crate) fn barrier(comm: Handle, request: &Out<Handle>) -> Result<(), Failure> {
    group::grouped(|| {
        on(comm, |entry| {
            entry.check_open()?;
            let nowhere = std::ptr::NonNull::<u64>::dangling().as_ptr().cast::<u8>();
            let call = Call::new(Collective::Barrier, 0);
            submit(entry, Work::Call { call, input: nowhere, output: nowhere }, request)
        })
    })
}

pub(crate) fn collective(comm: Handle, asked: &Asked, request: &Out<Handle>) -> Result<(), Failure> {
    group::grouped(|| {
        on(comm, |entry| {
            let work = asked.check(entry)?;
            submit(entry, work, request)
        })
    })
}

impl Asked {
    fn check(&self, entry: &Entry) -> Result<Work, Failure> {
        entry.check_open()?;
        let (rank, ranks) = (Rank(entry.inner.rank() as u32), entry.inner.size() as u32);
        let dtype = data_type(self.dtype)?;
        let root = if self.collective.has_root() { entry.rank("root", self.root)? as u32 } else { 0 };
        let mut call = Call { dtype, root: Rank(root), ..Call::new(self.collective, self.count as u64) };
        if let Some(op) = self.op {
            call.op = entry.reduction(op, dtype)?;
        }
        check_call(&call, ranks).map_err(Error::from)?;
        let bytes = |count: u64| dtype.bytes(count).0 as usize;
        let (gives, gets) = (bytes(call.input_count(rank, ranks)), bytes(call.output_count(rank, ranks)));
        let mut input = self.input.address("sendbuff", gives)?;
        let mut output = self.output.address("recvbuff", gets)?;
        call.in_place =
            gives + gets > 0 && call.is_in_place_at(rank, ranks, (self.input.start(), self.output.start()));
        match call.in_place {
            // Where a rank only gives or only gets, both are the buffer that it has.
            true if gives == 0 => input = output.cast_const(),
            true if gets == 0 => output = input.cast_mut(),
            true => {}
            false => apart((input.addr(), gives), (output.addr(), gets))?,
        }
        Ok(Work::Call { call, input, output })
    }
}

/// Buffers that are not in place have no byte in common.
fn apart((input, gives): (usize, usize), (output, gets): (usize, usize)) -> Result<(), Failure> {
    let is_apart = input + gives <= output || output + gets <= input;
    if gives == 0 || gets == 0 || is_apart {
        return Ok(());
    }
    Err(Failure::argument(
        "sendbuff and recvbuff overlap: they have no byte in common, or lie in place as railnet.h says for this call",
    ))
}

pub(crate) fn send(
    comm: Handle,
    data: Source,
    count: usize,
    dtype: c_int,
    peer: c_int,
    request: &Out<Handle>,
) -> Result<(), Failure> {
    let address = |bytes: usize| data.address("sendbuff", bytes).map(<*const u8>::cast_mut);
    transfer(comm, TransferDirection::Send, (count, dtype), peer, address, request)
}

pub(crate) fn receive(
    comm: Handle,
    data: Target,
    count: usize,
    dtype: c_int,
    peer: c_int,
    request: &Out<Handle>,
) -> Result<(), Failure> {
    let address = |bytes: usize| data.address("recvbuff", bytes);
    transfer(comm, TransferDirection::Receive, (count, dtype), peer, address, request)
}

fn transfer(
    comm: Handle,
    direction: TransferDirection,
    (count, dtype): (usize, c_int),
    peer: c_int,
    address: impl FnOnce(usize) -> Result<*mut u8, Failure>,
    request: &Out<Handle>,
) -> Result<(), Failure> {
    group::grouped(|| {
        on(comm, |entry| {
            entry.check_open()?;
            let (dtype, peer) = (data_type(dtype)?, entry.rank("peer", peer)?);
            let data = address(size(count, dtype)?)?;
            let transfer = Transfer { direction, peer, tag: 0, dtype, count: count as u64 };
            submit(entry, Work::Transfer { transfer, data }, request)
        })
    })
}

/// Bytes of so many elements.
pub(crate) fn size(count: usize, dtype: DataType) -> Result<usize, Failure> {
    let bytes = count.checked_mul(dtype.size()).filter(|bytes| isize::try_from(*bytes).is_ok());
    let wrong = || Failure::argument(format!("count is {count}: so many elements of {dtype} fit no memory"));
    bytes.ok_or_else(wrong)
}

/// Makes a call and waits for it, starts it where the program wants a request, or leaves it to the group of this thread.
fn submit(entry: &Arc<Entry>, work: Work, request: &Out<Handle>) -> Result<(), Failure> {
    if !request.is_none() {
        request.set("request", Handle::NONE)?;
    }
    if group::is_open() {
        group::add(entry, work, request.again());
        return Ok(());
    }
    match &work {
        Work::Call { call, input, output } if request.is_none() => {
            // SAFETY: the program says that the buffers are as long as the call, and waits.
            unsafe { entry.inner.run_raw(call, *input, *output, &mut || true) }?;
            Ok(())
        }
        _ => {
            let operation = start(entry, &work)?;
            if request.is_none() {
                operation.wait(None, &mut || true)?;
                return Ok(());
            }
            request.set("request", request::insert(entry, operation))
        }
    }
}

/// Starts it. The program leaves the memory alone until it has waited.
pub(crate) fn start(entry: &Entry, work: &Work) -> Result<Operation, Failure> {
    // SAFETY: the program says that its memory is as long as the call, until it has waited for the request or the call has returned.
    let started = unsafe {
        match work {
            Work::Call { call, input, output } => entry.inner.start_raw(call, *input, *output, ()),
            Work::Transfer { transfer, data } => entry.inner.start_transfer_raw(*transfer, *data, ()),
        }
    };
    started.map_err(|error| match error {
        Error::ToItself { rank } => Failure::usage(format!(
            "rank {rank} sends to itself or receives from itself: put the send and its receive into one group"
        )),
        error => error.into(),
    })
}

/// Copies what a rank sends to itself, each send with its receive, in order.
pub(crate) fn copy_own(entry: &Entry, own: &[&Work]) -> Result<(), Failure> {
    let side = |wanted: TransferDirection| {
        own.iter().filter_map(move |work| match work {
            Work::Transfer { transfer, data } if transfer.direction == wanted => Some((*transfer, *data)),
            _ => None,
        })
    };
    let rank = entry.inner.rank();
    let (sends, receives) = (side(TransferDirection::Send), side(TransferDirection::Receive));
    let (sent, received) = (sends.clone().count(), receives.clone().count());
    if sent != received {
        return Err(Failure::usage(format!(
            "rank {rank} sends to itself {sent} times and receives from itself {received} times in this group: each send needs its receive"
        )));
    }
    for ((send, from), (receive, into)) in sends.zip(receives) {
        let bytes = send.dtype.bytes(send.count);
        if bytes != receive.dtype.bytes(receive.count) {
            let (gets, needs) = (receive.dtype.bytes(receive.count), bytes);
            return Err(Failure::argument(format!(
                "rank {rank} receives {gets} from itself and sends {needs}: they have to be equal"
            )));
        }
        // SAFETY: the program says that both are so long; they may overlap.
        unsafe { std::ptr::copy(from, into, bytes.0 as usize) };
    }
    Ok(())
}
