//! The header against the library: what it declares is there, with the same numbers, and compiles everywhere.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::process::Command;

use crate::installed::{Installed, home};
use railnet_capi::UNIQUE_ID_BYTES;
use railnet_capi::codes::{Code, DATA_TYPES, REDUCTIONS, RESULTS, VERSION};

fn header() -> String {
    fs::read_to_string(home().join("include/railnet.h")).unwrap()
}

/// The header without its comments.
fn declarations() -> String {
    let header = header();
    let (mut text, mut rest) = (String::new(), &header[..]);
    while let Some((before, after)) = rest.split_once("/*") {
        text += before;
        rest = after.split_once("*/").expect("a comment ends").1;
    }
    text + rest
}

/// The names of all enumerators.
fn enumerators() -> Vec<String> {
    let text = declarations();
    let enums = text.split("typedef enum {").skip(1).map(|one| one.split_once('}').unwrap().0.to_owned());
    let names = enums.flat_map(|body| {
        let names = body.split(',').map(|one| one.split('=').next().unwrap().trim().to_owned());
        names.collect::<Vec<_>>()
    });
    names.collect()
}

/// The names of all functions.
fn functions() -> BTreeSet<String> {
    let text = declarations();
    let names = text.split("railnetResult_t ").chain(text.split("const char *")).filter_map(|after| {
        let (name, _) = after.split_once('(')?;
        (name.starts_with("railnet") && !name.contains(char::is_whitespace)).then(|| name.to_owned())
    });
    names.collect()
}

/// What each number of the header is by the Rust code; names that mean the same as others are told by those.
fn wanted() -> BTreeMap<String, i64> {
    const SAME: [(&str, &str); 5] = [
        ("railnetChar", "railnetInt8"),
        ("railnetInt", "railnetInt32"),
        ("railnetHalf", "railnetFloat16"),
        ("railnetFloat", "railnetFloat32"),
        ("railnetDouble", "railnetFloat64"),
    ];
    let mut all: BTreeMap<String, i64> =
        Code::ALL.iter().map(|code| (code.name().to_owned(), *code as i64)).collect();
    let types = (0..).zip(DATA_TYPES).map(|(number, (name, _))| (name.to_owned(), number));
    let reductions = (0..).zip(REDUCTIONS).map(|(number, (name, _))| (name.to_owned(), number));
    all.extend(types.chain(reductions));
    for (name, same) in SAME {
        all.insert(name.to_owned(), all[same]);
    }
    all.insert("railnetNumResults".to_owned(), RESULTS.into());
    all.insert("railnetNumTypes".to_owned(), DATA_TYPES.len() as i64);
    all.insert("railnetNumOps".to_owned(), REDUCTIONS.len() as i64);
    all.insert("railnetMaxRedOp".to_owned(), i32::MAX.into());
    all
}

#[test]
fn every_number_is_that_of_the_rust_code() {
    let installed = Installed::new("numbers");
    let mut names = enumerators();
    assert_eq!(names.iter().cloned().collect::<BTreeSet<_>>(), wanted().into_keys().collect());
    names.extend(["RAILNET_VERSION_CODE", "RAILNET_UNIQUE_ID_BYTES"].map(str::to_owned));
    names.extend(["sizeof(railnetUniqueId)", "sizeof(railnetWaitSignalDesc_t)"].map(str::to_owned));
    let lines = names.iter().map(|name| format!("    printf(\"{name} %ld\\n\", (long)({name}));\n"));
    let lines: String = lines.collect();
    let source = installed.prefix.join("numbers.c");
    fs::write(
        &source,
        format!("#include <railnet.h>\n#include <stdio.h>\nint main(void) {{\n{lines}    return 0;\n}}\n"),
    )
    .unwrap();
    let program = installed.compile(source.to_str().unwrap());
    let output = installed.command(&program).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let found = text.lines().map(|line| {
        let (name, number) = line.rsplit_once(' ').unwrap();
        (name.to_owned(), number.parse().unwrap())
    });
    let mut wanted = wanted();
    wanted.insert("RAILNET_VERSION_CODE".to_owned(), VERSION.into());
    for name in ["RAILNET_UNIQUE_ID_BYTES", "sizeof(railnetUniqueId)"] {
        wanted.insert(name.to_owned(), UNIQUE_ID_BYTES as i64);
    }
    wanted.insert("sizeof(railnetWaitSignalDesc_t)".to_owned(), 8);
    assert_eq!(found.collect::<BTreeMap<String, i64>>(), wanted);
}

#[test]
fn the_library_exports_the_functions_of_the_header_and_nothing_else() {
    let installed = Installed::new("symbols");
    let declared = functions();
    assert!(declared.len() > 40 && declared.contains("railnetGetLastError"), "{declared:?}");
    // A program that takes the address of each is linked.
    let mut table = String::new();
    for name in &declared {
        writeln!(table, "    (void (*)(void)){name},").unwrap();
    }
    let source = installed.prefix.join("symbols.c");
    let text = format!(
        "#include <railnet.h>\n#include <stdio.h>\nstatic void (*all[])(void) = {{\n{table}}};\n\
         int main(void) {{\n    int version;\n    return !all[0] || railnetGetVersion(&version) || version != RAILNET_VERSION_CODE;\n}}\n"
    );
    fs::write(&source, text).unwrap();
    let program = installed.compile(source.to_str().unwrap());
    // It asks for the library by the name that has the major version, not by that of the linker.
    fs::remove_file(installed.prefix.join("lib/librailnet.so")).unwrap();
    let output = installed.command(&program).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let library = installed.prefix.join("lib/librailnet.so.0");
    let Ok(output) = Command::new("nm").args(["-D", "--defined-only"]).arg(library).output() else {
        eprintln!("LEFT OUT: nm (binutils) is needed to list symbols");
        return;
    };
    let text = String::from_utf8(output.stdout).unwrap();
    let exported: BTreeSet<String> =
        text.lines().filter_map(|line| line.split_whitespace().nth(2)).map(str::to_owned).collect();
    assert_eq!(exported, declared);
}

#[test]
fn the_header_compiles_in_c_and_cpp() {
    let header = home().join("include/railnet.h");
    for (compiler, language, standard) in [
        ("cc", "c", "-std=c99"),
        ("cc", "c", "-std=c11"),
        ("c++", "c++", "-std=c++11"),
        ("c++", "c++", "-std=c++20"),
    ] {
        let mut command = Command::new(compiler);
        command.args(["-x", language, standard, "-Wall", "-Wextra", "-pedantic", "-Werror", "-fsyntax-only"]);
        let Ok(output) = command.arg(&header).output() else {
            eprintln!("LEFT OUT: {compiler} is needed to compile the header");
            continue;
        };
        assert!(output.status.success(), "{standard}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn pkg_config_knows_where_it_is_installed() {
    let installed = Installed::new("a place & more");
    let text = fs::read_to_string(installed.prefix.join("lib/pkgconfig/railnet.pc")).unwrap();
    let prefix = installed.prefix.display();
    let version = env!("CARGO_PKG_VERSION");
    for line in [
        format!("prefix={prefix}"),
        format!("libdir={prefix}/lib"),
        format!("Version: {version}"),
        "Cflags: -I${includedir}".to_owned(),
        "Libs: -L${libdir} -lrailnet".to_owned(),
    ] {
        assert!(text.lines().any(|one| one == line), "{line:?} is not in\n{text}");
    }
    let full = fs::read_link(installed.prefix.join("lib/librailnet.so.0")).unwrap();
    assert_eq!(full.to_str().unwrap(), format!("librailnet.so.{version}"));
}

#[test]
fn packages_are_made_below_a_destination() {
    let installed = Installed::new("destination");
    let (root, library) = (installed.prefix.join("root"), installed.prefix.join("lib/librailnet.so.0"));
    let mut install = Command::new(home().join("install"));
    install.args(["--prefix", "/usr", "--libdir", "/usr/lib64", "--destdir"]).arg(&root);
    let output = install.arg("--library").arg(library).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(root.join("usr/include/railnet.h").exists() && root.join("usr/lib64/librailnet.so").exists());
    let text = fs::read_to_string(root.join("usr/lib64/pkgconfig/railnet.pc")).unwrap();
    assert!(text.contains("prefix=/usr\n") && text.contains("libdir=/usr/lib64\n"), "{text}");
    let mut wrong = Command::new(home().join("install"));
    let output =
        wrong.args(["--library", "/nowhere/librailnet.so", "--destdir"]).arg(&root).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "error: there is no /nowhere/librailnet.so\n");
}
