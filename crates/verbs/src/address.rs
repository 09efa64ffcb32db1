//! Address handles.

use std::sync::Arc;

use libc::c_int;
use railnet_nic::AddressHandle;
use railnet_wire::Gid;

use crate::abi::*;
use crate::adapter::Adapter;
use crate::errors::{guard, null, of_verb, status};
use crate::memory::Domain;
use crate::object;
use crate::queue_pair::path_of;

/// An address handle.
#[repr(C)]
pub(crate) struct Handle {
    pub(crate) c: ibv_ah,
    adapter: Arc<Adapter>,
    pub(crate) handle: AddressHandle,
}

fn make(pd: *mut ibv_pd, attr: &ibv_ah_attr) -> Result<*mut ibv_ah, c_int> {
    let domain = object::of::<Domain, _>(pd)?;
    let path = path_of(attr)?;
    let mut state = domain.adapter.state();
    if path.target.is_ipv4() != domain.adapter.device.address.is_ipv4() {
        return Err(libc::EINVAL);
    }
    let handle = state.driver.nic_mut().create_ah(domain.domain, path).map_err(|error| of_verb(&error))?;
    let c = ibv_ah { context: object::read(pd)?.context, pd, handle: 0 };
    Ok(object::publish(Box::new(Handle { c, adapter: domain.adapter.clone(), handle })))
}

pub(crate) extern "C" fn create(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    guard(std::ptr::null_mut(), || object::read(attr).and_then(|attr| make(pd, attr)).unwrap_or_else(null))
}

/// The way back to who sent a datagram: from the GRH in front of it, which holds an IPv4 header in its second half where the
/// datagram came over IPv4.
fn of_completion(wc: *const ibv_wc, grh: *const ibv_grh) -> Result<ibv_ah_attr, c_int> {
    const IPV4_HEADER_AT: usize = 20;
    let wc = object::read(wc)?;
    if wc.wc_flags & IBV_WC_GRH == 0 {
        return Err(libc::EINVAL);
    }
    let area = object::read(grh.cast::<[u8; size_of::<ibv_grh>()]>())?;
    let mut attr: ibv_ah_attr = object::zeroed();
    attr.is_global = 1;
    attr.port_num = 1;
    let grh = &mut attr.grh;
    if area[0] >> 4 == 6 {
        let first = u32::from_be_bytes([area[0], area[1], area[2], area[3]]);
        (grh.flow_label, grh.traffic_class) = (first & 0xf_ffff, (first >> 20) as u8);
    } else {
        grh.traffic_class = area[IPV4_HEADER_AT + 1];
    }
    (grh.hop_limit, grh.dgid.raw) = (0xff, Gid::from_grh(area).0);
    Ok(attr)
}

pub(crate) extern "C" fn init_from_wc(
    _context: *mut ibv_context,
    _port: u8,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    attr: *mut ibv_ah_attr,
) -> c_int {
    guard(libc::EIO, || {
        status((|| {
            *object::write(attr)? = of_completion(wc, grh)?;
            Ok(())
        })())
    })
}

pub(crate) extern "C" fn create_from_wc(
    pd: *mut ibv_pd,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    _port: u8,
) -> *mut ibv_ah {
    guard(std::ptr::null_mut(), || {
        of_completion(wc, grh).and_then(|attr| make(pd, &attr)).unwrap_or_else(null)
    })
}

pub(crate) extern "C" fn destroy(ah: *mut ibv_ah) -> c_int {
    guard(libc::EIO, || {
        status((|| {
            let handle = object::of::<Handle, _>(ah)?;
            {
                let mut state = handle.adapter.state();
                state.driver.nic_mut().destroy_ah(handle.handle).map_err(|error| of_verb(&error))?;
            }
            object::retire::<Handle, _>(ah);
            Ok(())
        })())
    })
}
