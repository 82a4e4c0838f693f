//! Dependencies of each package of the workspace, as cargo says: the core does no IO, and a client drags no node along.

use std::process::Command;

/// The packages that `package` is built from, without those of its tests.
fn built_from(package: &str) -> Vec<String> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let args = ["tree", "--package", package, "--edges", "normal,build", "--prefix", "none", "--format", "{p}", "--locked"];
    let out = Command::new(cargo).args(args).current_dir(env!("CARGO_MANIFEST_DIR")).output().expect("cargo runs");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let text = String::from_utf8(out.stdout).expect("UTF-8");
    text.lines().filter_map(|line| Some(line.split(' ').next()?.to_owned())).collect()
}

fn assert_without(package: &str, others: &[&str]) {
    let packages = built_from(package);
    assert!(packages.len() > 10, "{packages:?}");
    let found: Vec<_> = others.iter().filter(|other| packages.iter().any(|p| p == *other)).collect();
    assert!(found.is_empty(), "{package} is built from {found:?}");
}

#[test]
fn a_program_that_uses_the_client_compiles_no_node() {
    assert_without("ringmq-client", &["glommio", "io-uring", "hyper", "ringmq", "ringmq-core", "clap"]);
}

#[test]
fn the_tools_need_no_node() {
    assert_without("ringmq-tools", &["glommio", "io-uring", "ringmq"]);
}

#[test]
fn the_core_and_the_protocols_are_built_from_nothing_that_does_io() {
    for package in ["ringmq-core", "ringmq-protocol"] {
        assert_without(package, &["glommio", "io-uring", "hyper", "tokio", "mio", "rtrb"]);
    }
}

#[test]
fn the_node_is_built_from_what_it_says() {
    let packages = built_from("ringmq");
    for package in ["glommio", "io-uring", "hyper", "ringmq-core", "ringmq-protocol"] {
        assert!(packages.iter().any(|p| p == package), "{package}");
    }
    assert!(!packages.iter().any(|p| p == "ringmq-sim"));
}
