//! What may be named of glommio 0.9.0, and where: each name was looked at for the traps of docs/decisions/glommio.md.

use super::source::{Token, code_of, paths, tokens, without_tests};
use super::{fail_on, reached, rust_files};
use std::collections::BTreeSet;
use std::path::Path;

/// Files and what each names of glommio. Its streams, channels, `rename`, `remove` and time limits stand nowhere.
const NAMES: &[(&str, &[&str])] = &[
    ("src/disk/open_files.rs", &["io::DmaFile", "io::OpenOptions", "spawn_local", "timer::sleep"]),
    ("src/disk/ring_ops.rs", &["io::DmaFile"]),
    ("src/disk/shard_disk.rs", &["io::DmaFile", "spawn_local", "executor", "GlommioError"]),
    ("src/doctor/measure/node_path.rs", &["ExecutorJoinHandle"]),
    ("src/ring/wake.rs", &["io::BufferedFile"]),
    ("src/runtime/cores.rs", &["ExecutorJoinHandle", "LocalExecutorBuilder", "Placement", "PoolPlacement"]),
    ("src/runtime/turn.rs", &["spawn_local"]),
];

/// Words that stand in no code on an executor, by folder, and why.
const BANNED: &[(&str, &[&str], &str)] = &[
    (
        "src/disk src/ring src/runtime src/doctor/measure",
        &["yield_now", "yield_if_needed", "need_preempt"],
        "a task that yields stays runnable, and the reactor never has its turn: await a real event",
    ),
    (
        "src/disk src/ring src/runtime/turn.rs",
        &["select", "race", "timeout", "cancel"],
        "a future of a read or write that is dropped goes on in the kernel: let it end",
    ),
];

fn check(path: &str, source: &str) -> BTreeSet<String> {
    let code = without_tests(&code_of(source));
    let allowed = NAMES.iter().find(|(file, _)| *file == path).map_or(&[][..], |(_, names)| names);
    let mut complaints = BTreeSet::new();
    for named in paths(&code).iter().filter(|named| named[0] == "glommio").map(|named| named[1..].join("::")) {
        if !allowed.contains(&named.as_str()) {
            complaints
                .insert(format!("glommio::{named} is not one of the names that this file may have (tests/tidy/glommio.rs)"));
        }
    }
    let words: Vec<String> =
        tokens(&code).into_iter().filter_map(|t| if let Token::Word(w) = t { Some(w) } else { None }).collect();
    for (places, banned, why) in BANNED {
        let is_here = places.split(' ').any(|place| path.starts_with(place));
        for word in words.iter().filter(|word| is_here && banned.contains(&word.as_str())) {
            complaints.insert(format!("`{word}`: {why}"));
        }
    }
    let count = |word: &str| words.iter().filter(|w| *w == word).count();
    // of calls, not of the name in a `use`
    let made = tokens(&code).windows(2).filter(|w| *w == [Token::Word("spawn_local".into()), Token::Mark('(')]).count();
    if path.starts_with("src/disk") && made != count("detach") {
        complaints.insert("a task of the disk that is not detached ends with its handle, and its write goes on".into());
    }
    if tokens(&code).windows(2).any(|w| *w == [Token::Word("spin_before_park".into()), Token::Mark('(')]) {
        complaints.insert("an executor that spins keeps the kernel's workers, for whom it waits, from its CPU".into());
    }
    let opens = count("dma_open") + code.matches("DmaFile::open").count() + code.matches("DmaFile::create").count();
    let may_open = match path {
        "src/disk/shard_disk.rs" | "src/disk/open_files.rs" => 1,
        _ => 0,
    };
    if path.starts_with("src/") && opens > may_open {
        complaints.insert(format!("{opens} places open files for O_DIRECT, {may_open} may: the probe file comes first"));
    }
    complaints
}

#[test]
fn glommio_is_named_where_its_traps_are_known() {
    let files = rust_files("src");
    let alive = reached(Path::new("src/lib.rs"), &files, false);
    let mut complaints = Vec::new();
    for path in &alive {
        let name = path.display().to_string();
        complaints.extend(check(&name, &files[path]).into_iter().map(|c| format!("{name}: {c}")));
    }
    for (file, _) in NAMES {
        if !alive.contains(Path::new(file)) {
            complaints.push(format!("{file} of tests/tidy/glommio.rs is not there"));
        }
    }
    fail_on(complaints);
}

#[test]
fn a_way_into_a_trap_is_found() {
    for (path, source) in [
        ("src/net/engine.rs", "use glommio::net::TcpStream;"),
        ("src/mesh/mod.rs", "use glommio::channels::channel_mesh::MeshBuilder;"),
        ("src/disk/files.rs", "use glommio::io::remove;"),
        ("src/disk/open_files.rs", "use glommio::timer::Timer;"),
        ("src/runtime/node.rs", "fn f() { glommio::LocalExecutor::default() }"),
        ("src/runtime/turn.rs", "async fn f() { executor().yield_now().await }"),
        ("src/runtime/cores.rs", "fn f(builder: LocalExecutorBuilder) { builder.spin_before_park(spin) }"),
        ("src/disk/shard_disk.rs", "async fn f() { select(write, timer).await }"),
        ("src/disk/shard_disk.rs", "fn f() { let task = glommio::spawn_local(async move {}); }"),
        ("src/disk/shard_disk.rs", "fn f() { DmaFile::open(probe); DmaFile::open(other); }"),
        ("src/disk/ring_ops.rs", "fn f(options: OpenOptions) { options.dma_open(path) }"),
    ] {
        assert_eq!(check(path, source).len(), 1, "{path}: {source}: {:?}", check(path, source));
    }
    let tests = "#[cfg(test)] mod tests { use glommio::net; } // glommio::net";
    let detached = "use glommio::spawn_local; fn f() { spawn_local(async {}).detach(); }";
    for (path, source) in [("src/net/engine.rs", tests), ("src/disk/shard_disk.rs", detached)] {
        assert_eq!(check(path, source), BTreeSet::new(), "{source}");
    }
}
