//! Links and paths in the documents: each names something that exists.

use super::{fail_on, root};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};

/// Folders of the repository whose paths documents name.
const FOLDERS: &[&str] = &["src", "crates", "tests", "benches", "docs", "schema", "examples", "fuzz"];

/// The documents, with their text.
fn documents() -> Vec<(PathBuf, String)> {
    let mut paths = vec![PathBuf::from("README.md"), PathBuf::from("tuning.md"), PathBuf::from("schema/README.md")];
    for folder in ["docs", "docs/decisions"] {
        let entries = fs::read_dir(root().join(folder)).expect("it is there");
        let names = entries.map(|entry| Path::new(folder).join(entry.expect("a readable folder").file_name()));
        paths.extend(names.filter(|path| path.extension().is_some_and(|e| e == "md")));
    }
    paths.into_iter().map(|path| (path.clone(), fs::read_to_string(root().join(path)).expect("readable UTF-8"))).collect()
}

/// The targets of `[text](target)`, without those on the web.
fn links(text: &str) -> Vec<&str> {
    let targets = text.match_indices("](").filter_map(|(at, mark)| text[at + mark.len()..].split_once(')'));
    targets.map(|(target, _)| target).filter(|target| !target.starts_with("http")).collect()
}

/// The anchors of a page's headings, as GitHub makes them.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = text.lines().filter(|line| line.starts_with('#')).map(|line| line.trim_start_matches('#').trim());
    let anchor = |heading: &str| {
        let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.collect::<String>().to_lowercase().replace(' ', "-")
    };
    headings.map(anchor).collect()
}

/// The paths below [`FOLDERS`] that a text names. A path with a placeholder (`src/<name>`, `tests/net*.rs`) names nothing.
fn paths(text: &str) -> BTreeSet<&str> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "/._-*<>".contains(c);
    let words = text.split(|c: char| !is_part(c)).map(|word| word.trim_end_matches(['.', '-']));
    let is_path = |word: &&str| word.split_once('/').is_some_and(|(first, _)| FOLDERS.contains(&first));
    words.filter(is_path).filter(|word| !word.contains(['*', '<', '>'])).collect()
}

/// `a/../b` as `b`.
fn normal(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => _ = out.pop(),
            Component::CurDir => {}
            other => out.push(other),
        }
    }
    out
}

/// Complaints about a document; `read` gives the text of a path, or an empty text for a folder.
fn check(document: &Path, text: &str, read: &dyn Fn(&Path) -> Option<String>) -> Vec<String> {
    let folder = document.parent().unwrap_or(Path::new(""));
    let mut complaints = Vec::new();
    for link in links(text) {
        let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
        let target = if path.is_empty() { document.to_owned() } else { normal(&folder.join(path)) };
        match read(&target) {
            None => complaints.push(format!("{}: the link {link} leads nowhere", document.display())),
            Some(page) if !anchor.is_empty() && !anchors(&page).contains(anchor) => {
                complaints.push(format!("{}: {} has no heading #{anchor}", document.display(), target.display()));
            }
            Some(_) => {}
        }
    }
    // Links are relative to the document, paths to the repository.
    let of_links: BTreeSet<&str> = links(text).into_iter().flat_map(paths).collect();
    for path in paths(text).difference(&of_links) {
        if read(Path::new(path)).is_none() {
            complaints.push(format!("{}: {path} does not exist", document.display()));
        }
    }
    complaints
}

#[test]
fn links_and_paths_of_documents_lead_somewhere() {
    let read = |path: &Path| {
        let path = root().join(path);
        if path.is_dir() { Some(String::new()) } else { Some(String::from_utf8_lossy(&fs::read(path).ok()?).into_owned()) }
    };
    let documents = documents();
    assert!(documents.len() > 15, "the documents were not found");
    fail_on(documents.iter().flat_map(|(path, text)| check(path, text, &read)).collect());
}

#[test]
fn a_link_that_leads_nowhere_is_found() {
    let read = |path: &Path| match path.to_str()? {
        "docs/a.md" | "tuning.md" => Some("# Top\n## The `Rust` client (new)\n".to_owned()),
        "src/log" | "tests/tidy.rs" => Some(String::new()),
        _ => None,
    };
    for (text, wanted) in [
        ("[x](a.md) [y](../tuning.md#the-rust-client-new) [z](#top) [w](https://a.b/c.md)", 0),
        ("see src/log, `tests/tidy.rs`. And src/log/<name>.rs, tests/net*.rs", 0),
        ("[x](b.md)", 1),
        ("[x](a.md#bottom)", 1),
        ("see src/gone/mod.rs.", 1),
        ("| `tests/gone.rs`: `a_test` |", 1),
    ] {
        let text = format!("# Top\n{text}");
        let found = check(Path::new("docs/a.md"), &text, &|path| match path == Path::new("docs/a.md") {
            true => Some(text.clone() + "\n# Bottomless"),
            false => read(path),
        });
        assert_eq!(found.len(), wanted, "{text}: {found:?}");
    }
}
