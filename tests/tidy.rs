//! Reads the repository's own text: imports against the table of modules, file and line lengths, banned words, dead files.
//!
//! Every rule is a function from a made-up source to complaints, and is seen to fire below. The table of modules stands in
//! docs/architecture.md, and nowhere else.

#[path = "tidy/fields.rs"]
mod fields;
#[path = "tidy/glommio.rs"]
mod glommio;
#[path = "tidy/links.rs"]
mod links;
#[path = "tidy/mutants.rs"]
mod mutants;
#[path = "tidy/names.rs"]
mod names;
#[path = "tidy/source.rs"]
mod source;

use source::{Token, absolute, code_of, paths, tokens, without_tests};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

const FILE_LINES_MAX: usize = 700;
const LINE_CHARS_MAX: usize = 140;

#[derive(Debug, PartialEq, Eq)]
struct Row {
    pure: bool,
    modules: BTreeSet<String>,
    crates: BTreeSet<String>,
}

type Modules = BTreeMap<String, Row>;

/// The rows `| module | pure or IO | modules | crates | sentence |` of the page.
fn parse_modules(page: &str) -> Modules {
    let words = |cell: &str| cell.split_whitespace().map(String::from).collect();
    let rows = page.lines().filter_map(|line| {
        let cells: Vec<&str> = line.strip_prefix('|')?.split('|').map(str::trim).collect();
        let [name, kind @ ("pure" | "IO"), modules, crates, sentence, ..] = cells[..] else { return None };
        assert!(!sentence.is_empty(), "module {name} has no sentence");
        Some((name.to_string(), Row { pure: kind == "pure", modules: words(modules), crates: words(crates) }))
    });
    rows.collect()
}

// ---- the rules

/// Every path of the source's own code (not of its tests), absolute.
fn absolute_paths(module: &[String], source: &str) -> Vec<Vec<String>> {
    paths(&without_tests(&code_of(source))).iter().map(|path| absolute(path, module)).collect()
}

/// Modules and crates that every module names.
#[derive(Default)]
struct Imports {
    modules: BTreeMap<String, BTreeSet<String>>,
    crates: BTreeMap<String, BTreeSet<String>>,
}

impl Imports {
    fn add(&mut self, module: &[String], source: &str, known: &BTreeSet<String>) {
        let name = &module[0];
        for path in absolute_paths(module, source) {
            match (path[0].as_str(), path.get(1)) {
                ("crate", Some(other)) if other != name => {
                    self.modules.entry(name.clone()).or_default().insert(other.clone());
                }
                (krate, _) if known.contains(krate) => {
                    self.crates.entry(name.clone()).or_default().insert(krate.to_string());
                }
                _ => {}
            }
        }
    }

    /// Permissions of the table that nothing uses.
    fn unused(&self, table: &Modules) -> Vec<String> {
        let mut complaints = Vec::new();
        for (name, row) in table {
            let none = BTreeSet::new();
            let of = |named: &BTreeMap<String, BTreeSet<String>>| named.get(name).unwrap_or(&none).clone();
            let modules = row.modules.difference(&of(&self.modules)).cloned().collect::<Vec<_>>();
            complaints.extend(modules.iter().map(|other| format!("module `{name}` may import module `{other}`, and does not")));
            let crates = row.crates.difference(&of(&self.crates)).cloned().collect::<Vec<_>>();
            complaints.extend(crates.iter().map(|other| format!("module `{name}` may name crate `{other}`, and does not")));
        }
        complaints
    }
}

/// Modules that import each other, each circle once: `a -> b -> a`.
fn circles(table: &Modules) -> Vec<String> {
    fn walk<'t>(table: &'t Modules, path: &mut Vec<&'t str>, done: &mut BTreeSet<&'t str>, found: &mut Vec<String>) {
        let last = *path.last().expect("it began somewhere");
        for other in table.get(last).into_iter().flat_map(|row| &row.modules) {
            if let Some(at) = path.iter().position(|name| name == other) {
                found.push(format!("modules import each other: {} -> {other}", path[at..].join(" -> ")));
            } else if !done.contains(other.as_str()) {
                path.push(other);
                walk(table, path, done, found);
                path.pop();
            }
        }
        done.insert(last);
    }
    let (mut done, mut found) = (BTreeSet::new(), Vec::new());
    for name in table.keys() {
        if !done.contains(name.as_str()) {
            walk(table, &mut vec![name], &mut done, &mut found);
        }
    }
    found
}

/// `module` is the path of the file's module, its row first; `known` are the crates of Cargo.toml.
fn check_imports(module: &[String], source: &str, modules: &Modules, known: &BTreeSet<String>) -> Vec<String> {
    let name = &module[0];
    let Some(row) = modules.get(name) else {
        return vec![format!("module `{name}` is not in the table of docs/architecture.md")];
    };
    let mut complaints = BTreeSet::new();
    for path in absolute_paths(module, source) {
        let second = path.get(1).map(String::as_str).unwrap_or_default();
        match path[0].as_str() {
            "crate" if second != name && modules.contains_key(second) && !row.modules.contains(second) => {
                complaints.insert(format!("module `{name}` must not import module `{second}` ({})", path.join("::")));
            }
            krate if known.contains(krate) && !row.crates.contains(krate) => {
                complaints.insert(format!("module `{name}` must not name crate `{krate}` ({})", path.join("::")));
            }
            "std" | "core" if row.pure && ["fs", "net", "thread", "env", "process", "os"].contains(&second) => {
                complaints.insert(format!("pure module `{name}` must not name {}", path.join("::")));
            }
            _ => {}
        }
    }
    if row.pure {
        for token in tokens(&without_tests(&code_of(source))) {
            if let Token::Word(word) = token
                && ["async", "Instant", "SystemTime", "glommio", "tokio", "io_uring", "libc", "rand"].contains(&word.as_str())
            {
                complaints.insert(format!("pure module `{name}` must not name `{word}`"));
            }
        }
    }
    complaints.into_iter().collect()
}

fn check_text(source: &str) -> Vec<String> {
    let mut complaints = Vec::new();
    let code = code_of(source);
    // A file's own tests do not count: they say nothing about how many concepts it has.
    let lines = without_tests(&code).lines().count();
    if lines > FILE_LINES_MAX {
        complaints
            .push(format!("{lines} lines without its tests, {FILE_LINES_MAX} are allowed: there are probably two concepts"));
    }
    for (number, line) in source.lines().enumerate() {
        let chars = line.chars().count();
        if chars > LINE_CHARS_MAX {
            complaints.push(format!("line {}: {chars} characters, {LINE_CHARS_MAX} are allowed", number + 1));
        }
    }
    for (number, line) in code.lines().enumerate() {
        for (banned, instead) in [
            ("todo!", "finish it, or leave it out"),
            ("unimplemented!", "finish it, or leave it out"),
            ("dbg!", "use tracing, or remove it"),
        ] {
            let found =
                line.match_indices(banned).any(|(at, _)| !line[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_'));
            if found {
                complaints.push(format!("line {}: `{banned}`: {instead}", number + 1));
            }
        }
    }
    complaints
}

/// The files that `root` reaches through `mod name;`, itself included, among `files`; with those of tests, or without.
fn reached(root: &Path, files: &BTreeMap<PathBuf, String>, with_tests: bool) -> BTreeSet<PathBuf> {
    let mut seen = BTreeSet::new();
    let mut left = vec![(root.to_path_buf(), root.parent().expect("a file has a folder").to_path_buf())];
    while let Some((path, folder)) = left.pop() {
        let Some(source) = files.get(&path) else { continue };
        let parent = path.parent().expect("a file has a folder").to_path_buf();
        if !seen.insert(path) {
            continue;
        }
        let code = code_of(source);
        // `#[path = "..."]` counts from the file's own folder; the text is looked at, since the code has no strings.
        let named = source.lines().filter_map(|line| line.trim().strip_prefix("#[path = \"")?.strip_suffix("\"]"));
        left.extend(named.map(|name| (parent.join(name), parent.join(name).with_extension(""))));
        let tokens = tokens(&if with_tests { code } else { without_tests(&code) });
        for window in tokens.windows(3) {
            let [Token::Word(word), Token::Word(name), Token::Mark(';')] = window else { continue };
            if word == "mod" {
                let below = folder.join(name);
                left.push((below.with_extension("rs"), below.clone()));
                left.push((below.join("mod.rs"), below));
            }
        }
    }
    seen
}

// ---- the repository

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn rust_files(below: &str) -> BTreeMap<PathBuf, String> {
    let mut files = BTreeMap::new();
    let mut folders = vec![PathBuf::from(below)];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = fs::read_dir(root().join(&folder)) else { continue };
        for entry in entries {
            let name = entry.expect("a readable folder").file_name();
            let path = folder.join(name);
            if root().join(&path).is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                files.insert(path.clone(), fs::read_to_string(root().join(&path)).expect("readable UTF-8"));
            }
        }
    }
    files
}

/// The crates whose modules the table lists: the folder of each one's sources, and the module that it is as a whole.
const CRATES: [(&str, Option<&str>); 4] = [
    ("src", None),
    ("crates/ringmq-protocol/src", None),
    ("crates/ringmq-core/src", None),
    ("crates/ringmq-client/src", Some("client")),
];

/// The files of all modules without those of tests: path, module path, text.
fn module_files() -> Vec<(PathBuf, Vec<String>, String)> {
    let mut out = Vec::new();
    for (folder, whole) in CRATES {
        let files = rust_files(folder);
        for path in reached(&Path::new(folder).join("lib.rs"), &files, false) {
            let module = module_of(&path, folder, whole);
            if module != ["lib"] {
                let source = files[&path].clone();
                out.push((path, module, source));
            }
        }
    }
    out
}

/// `src/log/store.rs` is `[log, store]`, `src/log/mod.rs` is `[log]`. In a crate that is one module, its name comes first.
fn module_of(path: &Path, folder: &str, whole: Option<&str>) -> Vec<String> {
    let parts = path.strip_prefix(folder).expect("it is below its folder").with_extension("");
    let mut module: Vec<String> = whole.map(String::from).into_iter().collect();
    module.extend(parts.components().map(|c| c.as_os_str().to_string_lossy().into_owned()));
    if module.len() > 1 && module.last().is_some_and(|last| last == "mod" || whole.is_some() && last == "lib") {
        module.pop();
    }
    module
}

fn crates() -> BTreeSet<String> {
    let manifest: toml::Table =
        fs::read_to_string(root().join("Cargo.toml")).expect("it is there").parse().expect("cargo read it too");
    let workspace = manifest["workspace"]["dependencies"].as_table().into_iter();
    let node = ["dependencies", "dev-dependencies"].into_iter().filter_map(|section| manifest.get(section)?.as_table());
    let names = workspace.chain(node).flat_map(|table| table.keys().map(|name| name.replace('-', "_")));
    names.filter(|name| !["ringmq_client", "ringmq_core", "ringmq_protocol"].contains(&name.as_str())).collect()
}

fn modules() -> Modules {
    let page = fs::read_to_string(root().join("docs/architecture.md")).expect("docs/architecture.md has the table of modules");
    let modules = parse_modules(&page);
    assert!(modules.len() > 10, "the table of modules was not found in docs/architecture.md");
    modules
}

fn fail_on(complaints: Vec<String>) {
    assert!(complaints.is_empty(), "\n{}\n", complaints.join("\n"));
}

#[test]
fn imports_follow_the_table_of_modules() {
    let (modules, known) = (modules(), crates());
    let mut complaints = Vec::new();
    for (path, module, source) in module_files() {
        let found = check_imports(&module, &source, &modules, &known);
        complaints.extend(found.into_iter().map(|c| format!("{}: {c}", path.display())));
    }
    fail_on(complaints);
}

#[test]
fn every_permission_is_used_every_row_has_a_folder_and_no_modules_import_each_other() {
    let (modules, known) = (modules(), crates());
    let files = module_files();
    let mut named = Imports::default();
    for (_, module, source) in &files {
        named.add(module, source, &known);
    }
    let mut complaints = named.unused(&modules);
    complaints.extend(circles(&modules));
    let has_files = |name: &String| files.iter().any(|(_, module, _)| module.first() == Some(name));
    complaints.extend(modules.keys().filter(|name| !has_files(name)).map(|name| format!("module `{name}` has no files")));
    fail_on(complaints);
}

#[test]
fn the_table_of_modules_agrees_with_itself_and_the_manifest() {
    let (modules, known) = (modules(), crates());
    let mut complaints = Vec::new();
    for (name, row) in &modules {
        let strangers = row.modules.iter().filter(|other| !modules.contains_key(*other));
        complaints.extend(strangers.map(|other| format!("module {name} may import {other}, which is no module")));
        complaints
            .extend(row.crates.difference(&known).map(|other| format!("module {name}: crate {other} is not in Cargo.toml")));
        if row.pure {
            let carried = row.modules.iter().filter(|other| modules.get(*other).is_some_and(|other| !other.pure));
            complaints.extend(carried.map(|other| format!("pure module {name} may import {other}, which does IO")));
        }
    }
    fail_on(complaints);
}

#[test]
fn files_are_short_and_finished() {
    let mut complaints = Vec::new();
    let is_ours = |(_, source): &(PathBuf, String)| !source.contains("// @generated");
    for (path, source) in ["src", "tests", "benches", "crates"].into_iter().flat_map(rust_files).filter(is_ours) {
        complaints.extend(check_text(&source).into_iter().map(|c| format!("{}: {c}", path.display())));
    }
    fail_on(complaints);
}

/// `replica_log!` adds both.
#[test]
fn each_log_line_of_a_replica_has_its_topic_and_partition() {
    let is_replica = |(_, module, _): &(PathBuf, Vec<String>, String)| module.first().is_some_and(|name| name == "replica");
    let files: Vec<_> = module_files().into_iter().filter(is_replica).collect();
    assert!(files.len() > 5);
    let lines = files.iter().flat_map(|(path, _, source)| source.lines().map(move |line| (path, line)));
    let is_bare = |line: &str| line.contains("tracing::") && !(line.contains("topic = %") && line.contains("partition = %"));
    fail_on(lines.filter(|(_, line)| is_bare(line)).map(|(path, line)| format!("{}: {line}", path.display())).collect());
}

#[test]
fn no_file_is_dead() {
    let mut complaints = Vec::new();
    for folder in ["src", "tests", "benches", "crates"] {
        let files = rust_files(folder);
        let is_root = |path: &&PathBuf| match folder {
            "crates" => {
                let is_example = path.parent().is_some_and(|folder| folder.ends_with("examples"));
                is_example || path.ends_with("src/lib.rs") || path.ends_with("src/main.rs")
            }
            "src" => ["src/lib.rs", "src/main.rs"].iter().any(|root| path.ends_with(root)) || path.starts_with("src/bin"),
            _ => path.components().count() == 2 || path.ends_with("main.rs"),
        };
        let alive: BTreeSet<PathBuf> = files.keys().filter(is_root).flat_map(|root| reached(root, &files, true)).collect();
        complaints
            .extend(files.keys().filter(|path| !alive.contains(*path)).map(|p| format!("{}: no mod reaches it", p.display())));
    }
    fail_on(complaints);
}

#[test]
fn settings_md_is_current() {
    let path = root().join("docs/settings.md");
    let wanted = ringmq::config::doc::settings_md();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&path, &wanted).expect("docs/ is writable");
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    assert!(found == wanted, "docs/settings.md is not what the table says: UPDATE_DOCS=1 cargo test --test tidy");
}

// ---- each rule is seen to fire

fn made_up() -> (Modules, BTreeSet<String>) {
    let page = "| module | kind | modules | crates | what it is |\n|---|---|---|---|---|\n\
                | base | pure | | bytes | Names. |\n| log | pure | base | bytes | Logs. |\n| disk | IO | base | glommio | Writes. |\n";
    (parse_modules(page), ["bytes", "glommio", "tokio", "serde"].map(String::from).into())
}

fn imports(module: &str, source: &str) -> Vec<String> {
    let (modules, known) = made_up();
    check_imports(&module.split('/').map(String::from).collect::<Vec<_>>(), source, &modules, &known)
}

#[test]
fn a_wrong_import_is_found_however_it_is_written() {
    for source in [
        "use crate::disk::File;",
        "use crate::{base::Ids, disk::File};",
        "use crate::{base, disk};",
        "pub(super) use crate::disk as d;",
        "use super::super::disk::File;",
        "fn f() { crate::disk::open() }",
        "fn f(x: Vec<crate::disk::File>) {}",
        "fn f() { super::super::disk::open() }",
        "use glommio::Task;",
        "use ::glommio::Task;",
        "use serde::{self, Serialize};",
        "#[derive(serde::Serialize)] struct S;",
        "use std::fs;",
        "use std::{collections::BTreeMap, fs::File};",
        "fn f() { std::thread::sleep(d) }",
        "use std::time::{Duration, Instant};",
        "fn f() -> std::time::SystemTime {}",
        "async fn f() {}",
        "fn f() { let x = async { 1 }; }",
        "use rand::Rng;",
        "#[cfg(test)] mod tests { use std::fs; } use std::net::TcpStream;",
        "const QUOTE: char = '\"'; use std::fs; const END: char = '\"';",
    ] {
        assert!(!imports("log/store", source).is_empty(), "not found: {source}");
    }
}

#[test]
fn what_is_allowed_is_let_through() {
    for (module, source) in [
        ("log/store", "use crate::base::{Ids, disk_like}; use super::batch; use bytes::Bytes; use std::time::Duration;"),
        ("log/store", "// use std::fs;\n/* use /* glommio */ std::net; */ const S: &str = \"std::fs::read\";"),
        ("log/store", "const R: &str = r#\"use \"std::fs\"\"#; fn f<'a>(x: &'a str) -> char { '\\'' }"),
        ("log/store", "#[cfg(test)]\nmod tests { use crate::disk; use std::fs; fn f() { if x { y } } }"),
        ("log/store", "#[cfg(test)]\nmod tests;"),
        ("log/store", "use super::{disk, tokio_like};"),
        ("disk/ring", "use glommio::Task; use std::fs; use crate::base; async fn f() {}"),
    ] {
        assert_eq!(imports(module, source), Vec::<String>::new(), "{source}");
    }
    assert_eq!(imports("attic", ""), ["module `attic` is not in the table of docs/architecture.md"]);
}

#[test]
fn a_permission_that_nobody_uses_is_found() {
    let (table, known) = made_up();
    let mut named = Imports::default();
    named.add(&["log".into(), "store".into()], "use crate::base::Ids; #[cfg(test)] mod tests { use bytes::Bytes; }", &known);
    named.add(&["base".into()], "fn f(b: bytes::Bytes) {}", &known);
    named.add(&["disk".into()], "use {crate::base, glommio::Task};", &known);
    assert_eq!(named.unused(&table), ["module `log` may name crate `bytes`, and does not"]);
}

#[test]
fn a_circle_is_found() {
    let row =
        |modules: &str| Row { pure: true, modules: modules.split_whitespace().map(String::from).collect(), crates: [].into() };
    let table = |rows: &[(&str, &str)]| rows.iter().map(|(name, modules)| (name.to_string(), row(modules))).collect::<Modules>();
    assert_eq!(circles(&table(&[("a", ""), ("b", "a"), ("c", "a b")])), Vec::<String>::new());
    let found = circles(&table(&[("a", "b"), ("b", "c"), ("c", "b"), ("d", "a")]));
    assert_eq!(found, ["modules import each other: b -> c -> b"]);
}

#[test]
fn long_files_long_lines_and_unfinished_code_are_found() {
    let complaints = |source: &str| check_text(source).len();
    assert_eq!(complaints(&"let x = 1;\n".repeat(FILE_LINES_MAX)), 0);
    assert_eq!(complaints(&"let x = 1;\n".repeat(FILE_LINES_MAX + 1)), 1);
    let tests = format!("#[cfg(test)]\nmod tests {{\n{}}}\n", "let x = 1;\n".repeat(FILE_LINES_MAX));
    assert_eq!(complaints(&tests), 0);
    assert_eq!(complaints(&"ä".repeat(LINE_CHARS_MAX)), 0);
    assert_eq!(complaints(&"ä".repeat(LINE_CHARS_MAX + 1)), 1);
    // Written apart, so that this file does not complain about itself.
    for name in ["todo", "unimplemented", "dbg"] {
        assert_eq!(complaints(&format!("fn f() {{ {name}!() }}")), 1, "{name}");
        assert_eq!(complaints(&format!("fn f() {{ my_{name}!() }} // {name}!")), 0, "{name}");
    }
}

#[test]
fn a_dead_file_is_found() {
    let files: BTreeMap<PathBuf, String> = [
        ("src/lib.rs", "pub mod a;\nmod b;\n// mod c;\n#[path = \"a/far.rs\"]\nmod near;"),
        ("src/a/far.rs", ""),
        ("src/a/mod.rs", "mod deep;"),
        ("src/a/deep.rs", ""),
        ("src/b.rs", "#[cfg(test)]\nmod tests;"),
        ("src/b/tests.rs", ""),
        ("src/c.rs", ""),
    ]
    .map(|(path, source)| (PathBuf::from(path), source.to_string()))
    .into();
    let alive = reached(Path::new("src/lib.rs"), &files, true);
    assert!(!reached(Path::new("src/lib.rs"), &files, false).contains(Path::new("src/b/tests.rs")));
    let dead: Vec<_> = files.keys().filter(|path| !alive.contains(*path)).collect();
    assert_eq!(dead, [Path::new("src/c.rs")]);
}

#[test]
fn a_table_is_read() {
    let (modules, _) = made_up();
    assert_eq!(modules.len(), 3);
    assert!(modules["log"].pure && modules["log"].modules.contains("base") && !modules["disk"].pure);
}
