//! The functions of `railnet.h`, which says what they do.
#![expect(unsafe_code, reason = "symbols of a C library")]
#![allow(non_snake_case, reason = "the names are those of the header")]

use std::ffi::{c_char, c_int, c_void};

use railnet_coll::Collective;

use crate::codes::{Code, VERSION};
use crate::failure::guarded;
use crate::handle::Handle;
use crate::operation::{Asked, data_type};
use crate::pointer::{In, Out, Source, Target};
use crate::unique_id::UniqueId;
use crate::window::{Put, WaitSignalDesc};
use crate::{communicator, failure, group, operation, request, window};

/// Functions that return a code; what is between braces may fail, and even panic.
macro_rules! exports {
    ($(fn $name:ident($($argument:ident: $type:ty),*) $body:block)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name($($argument: $type),*) -> Code {
            guarded(stringify!($name), || $body)
        }
    )*};
}

/// Collectives, all of which end with a communicator and a request. Where one has no root, it is none.
macro_rules! collectives {
    ($($name:ident = $collective:ident($($argument:ident: $type:ty),*) op $op:expr, root $root:expr;)*) => {exports! {$(
        fn $name(
            sendbuff: Source,
            recvbuff: Target,
            count: usize,
            datatype: c_int
            $(, $argument: $type)*,
            comm: Handle,
            request: Out<Handle>
        ) {
            let collective = Collective::$collective;
            let (input, output, dtype, op, root) = (sendbuff, recvbuff, datatype, $op, $root);
            operation::collective(comm, &Asked { collective, input, output, count, dtype, op, root }, &request)
        }
    )*}};
}

collectives! {
    railnetAllReduce = AllReduce(op: c_int) op Some(op), root 0;
    railnetBroadcast = Broadcast(root: c_int) op None, root root;
    railnetReduce = Reduce(op: c_int, root: c_int) op Some(op), root root;
    railnetAllGather = AllGather() op None, root 0;
    railnetReduceScatter = ReduceScatter(op: c_int) op Some(op), root 0;
    railnetAllToAll = AllToAll() op None, root 0;
    railnetGather = Gather(root: c_int) op None, root root;
    railnetScatter = Scatter(root: c_int) op None, root root;
}

exports! {
    fn railnetGetVersion(version: Out<c_int>) {
        version.set("version", VERSION)
    }

    fn railnetGetUniqueId(uniqueId: Out<UniqueId>) {
        uniqueId.check("uniqueId")?;
        uniqueId.set("uniqueId", UniqueId::fresh()?)
    }

    fn railnetCommInitRank(comm: Out<Handle>, nranks: c_int, commId: UniqueId, rank: c_int) {
        communicator::from_id(&comm, nranks, &commId, rank)
    }

    fn railnetCommInitFromEnv(comm: Out<Handle>) {
        communicator::from_env(&comm)
    }

    fn railnetCommSplit(comm: Handle, color: c_int, key: c_int, newcomm: Out<Handle>) {
        communicator::split(comm, color, key, &newcomm)
    }

    fn railnetCommShrink(
        comm: Handle,
        excludeRanksList: In<c_int>,
        excludeRanksCount: c_int,
        newcomm: Out<Handle>
    ) {
        communicator::shrink(comm, &excludeRanksList, excludeRanksCount, &newcomm)
    }

    fn railnetCommRevoke(comm: Handle) {
        communicator::revoke(comm)
    }

    fn railnetCommFinalize(comm: Handle) {
        communicator::finalize(comm)
    }

    fn railnetCommDestroy(comm: Handle) {
        communicator::destroy(comm)
    }

    fn railnetCommAbort(comm: Handle) {
        communicator::abort(comm)
    }

    fn railnetCommGetAsyncError(comm: Handle, asyncError: Out<c_int>) {
        communicator::async_error(comm, &asyncError)
    }

    fn railnetCommCount(comm: Handle, count: Out<c_int>) {
        communicator::count(comm, &count)
    }

    fn railnetCommUserRank(comm: Handle, rank: Out<c_int>) {
        communicator::user_rank(comm, &rank)
    }

    fn railnetCommSetTimeout(comm: Handle, milliseconds: u64) {
        communicator::set_timeout(comm, milliseconds)
    }

    fn railnetRedOpCreatePreMulSum(op: Out<c_int>, scalar: Source, datatype: c_int, comm: Handle) {
        let dtype = data_type(datatype)?;
        communicator::create_reduction(comm, &op, dtype, scalar.bytes("scalar", dtype.size())?)
    }

    fn railnetRedOpDestroy(op: c_int, comm: Handle) {
        communicator::destroy_reduction(comm, op)
    }

    fn railnetBarrier(comm: Handle, request: Out<Handle>) {
        operation::barrier(comm, &request)
    }

    fn railnetSend(
        sendbuff: Source,
        count: usize,
        datatype: c_int,
        peer: c_int,
        comm: Handle,
        request: Out<Handle>
    ) {
        operation::send(comm, sendbuff, count, datatype, peer, &request)
    }

    fn railnetRecv(
        recvbuff: Target,
        count: usize,
        datatype: c_int,
        peer: c_int,
        comm: Handle,
        request: Out<Handle>
    ) {
        operation::receive(comm, recvbuff, count, datatype, peer, &request)
    }

    fn railnetGroupStart() {
        group::begin();
        Ok(())
    }

    fn railnetGroupEnd() {
        group::end()
    }

    fn railnetWait(request: Out<Handle>) {
        request::wait(&request)
    }

    fn railnetWaitAll(count: c_int, requests: Out<Handle>) {
        request::wait_all(count, &requests)
    }

    fn railnetTest(request: Out<Handle>, done: Out<c_int>) {
        request::test(&request, &done)
    }

    fn railnetCommWindowRegister(comm: Handle, buff: Target, size: usize, win: Out<Handle>) {
        window::register(comm, buff, size, &win)
    }

    fn railnetCommWindowDeregister(comm: Handle, win: Handle) {
        window::deregister(comm, win)
    }

    fn railnetWinGetUserPtr(comm: Handle, win: Handle, ptr: Out<*mut c_void>) {
        window::start(comm, win, &ptr)
    }

    fn railnetPut(
        localbuff: Source,
        count: usize,
        datatype: c_int,
        peer: c_int,
        peerWin: Handle,
        peerWinOffset: usize,
        comm: Handle
    ) {
        let (data, dtype, offset) = (localbuff, datatype, peerWinOffset);
        window::put(comm, peerWin, &Put { data, count, dtype, peer, offset, signals: false })
    }

    fn railnetPutSignal(
        localbuff: Source,
        count: usize,
        datatype: c_int,
        peer: c_int,
        peerWin: Handle,
        peerWinOffset: usize,
        comm: Handle
    ) {
        let (data, dtype, offset) = (localbuff, datatype, peerWinOffset);
        window::put(comm, peerWin, &Put { data, count, dtype, peer, offset, signals: true })
    }

    fn railnetGet(
        localbuff: Target,
        count: usize,
        datatype: c_int,
        peer: c_int,
        peerWin: Handle,
        peerWinOffset: usize,
        comm: Handle
    ) {
        window::get(comm, peerWin, localbuff, (count, datatype), peer, peerWinOffset)
    }

    fn railnetSignal(peer: c_int, peerWin: Handle, comm: Handle) {
        window::signal(comm, peerWin, peer)
    }

    fn railnetWaitSignal(nDesc: c_int, signalDescs: In<WaitSignalDesc>, win: Handle, comm: Handle) {
        window::wait_signal(comm, win, nDesc, &signalDescs)
    }

    fn railnetSignalCount(peer: c_int, win: Handle, comm: Handle, count: Out<u64>) {
        window::signals(comm, win, peer, &count)
    }

    fn railnetFlush(win: Handle, comm: Handle) {
        window::flush(comm, win)
    }
}

#[unsafe(no_mangle)]
extern "C" fn railnetGetErrorString(result: c_int) -> *const c_char {
    Code::text(result).as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn railnetGetLastError(comm: Handle) -> *const c_char {
    failure::last(communicator::find(comm).as_deref())
}
