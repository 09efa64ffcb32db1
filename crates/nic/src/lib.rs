//! One RDMA NIC as a value.
