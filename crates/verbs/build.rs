//! Links the shared library under its name, with the symbol versions of rdma-core.

fn main() {
    let folder = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it");
    println!("cargo::rerun-if-changed=rdma-core.map");
    if std::env::var("CARGO_CFG_TARGET_ARCH").as_deref() == Ok("x86_64") {
        // rustc has a version script of its own, without names. GNU's linker takes no second one; rust-lld, which rustc
        // uses on this target, does.
        println!("cargo::rustc-cdylib-link-arg=-Wl,--version-script={folder}/rdma-core.map");
        println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libibverbs.so.1");
    }
}
