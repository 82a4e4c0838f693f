//! How many fields of one struct code outside of it may touch. Many of them are several machines that nobody has named yet.

use super::source::{code_of, without_tests};
use super::{fail_on, module_files};
use std::collections::BTreeMap;

/// Public fields of a struct, `pub(super)` and the like included.
const PUBLIC_FIELDS_MAX: usize = 20;

/// Structs that have more: how many they may have, which only falls, and why.
const MANY_FIELDS: [(&str, usize, &str); 9] = [
    ("codec::nsq::limits::Limits", 25, "settings"),
    ("format::files::SnapshotHeader", 23, "a header, byte for byte"),
    ("load::options::Options", 28, "options of a command"),
    ("shard::engine::Engine", 24, "the machines of a core, each with private state"),
    ("sim::cluster::RunOutcome", 26, "figures of a run"),
    ("sim::cluster::plan::Faults", 35, "faults of a plan"),
    ("sim::cluster::world::World", 21, "the parts of a simulated cluster; still to be grouped"),
    ("sim::node::RunOutcome", 23, "figures of a run"),
    ("sim::node::Plan", 21, "faults of a plan"),
];

/// The structs of a file, each with the number of its public fields.
fn public_fields(source: &str) -> Vec<(String, usize)> {
    let code = without_tests(&code_of(source));
    let mut found: Vec<(String, usize)> = vec![];
    let mut open: Option<usize> = None;
    for line in code.lines() {
        let text = line.trim_start();
        let indent = line.len() - text.len();
        let words: Vec<&str> = text.split([' ', '<', '(', ')', '{']).filter(|w| !w.is_empty()).collect();
        match open {
            Some(outer) if indent == outer && text.starts_with('}') => open = None,
            Some(outer) if indent == outer + 4 && words.first() == Some(&"pub") => {
                found.last_mut().expect("a struct is open").1 += 1;
            }
            Some(_) => {}
            None => {
                let name = words.iter().position(|w| *w == "struct").filter(|at| *at < 4).and_then(|at| words.get(at + 1));
                if let Some(name) = name.filter(|_| text.trim_end().ends_with('{')) {
                    found.push((name.to_string(), 0));
                    open = Some(indent);
                }
            }
        }
    }
    found
}

/// Complaints about these counts.
fn check(counts: &BTreeMap<String, usize>, many: &[(&str, usize, &str)]) -> Vec<String> {
    let mut complaints = Vec::new();
    for (name, &count) in counts {
        let max = many.iter().find(|(n, ..)| n == name).map_or(PUBLIC_FIELDS_MAX, |(_, max, _)| *max);
        if count > max {
            complaints
                .push(format!("`{name}`: {count} public fields, {max} are allowed: there are probably several machines in it"));
        }
    }
    let gone = many.iter().filter(|(name, ..)| !counts.contains_key(*name));
    complaints.extend(gone.map(|(name, ..)| format!("`{name}` is in MANY_FIELDS, and nowhere else")));
    complaints
}

#[test]
fn structs_own_their_fields() {
    let mut counts = BTreeMap::new();
    for (_, module, source) in module_files() {
        for (name, count) in public_fields(&source) {
            let name = format!("{}::{name}", module.join("::"));
            let known = counts.entry(name).or_insert(0);
            *known = count.max(*known);
        }
    }
    fail_on(check(&counts, &MANY_FIELDS));
}

#[test]
fn public_fields_are_counted() {
    let source = "
pub struct A<'a> {
    /// pub nothing: u8,
    pub one: u8,
    two: Vec<&'a str>,
    pub(super) three: fn(u8) -> u8,
}
struct B;
pub(crate) struct C(pub u8);
impl A<'_> {
    pub fn no_field() {}
}
mod inner {
    struct D {
        pub four: u8,
    }
}
";
    let named = |name: &str, count| (name.to_string(), count);
    assert_eq!(public_fields(source), [named("A", 2), named("D", 1)]);
    let counts = BTreeMap::from([named("few", 20), named("many", 21), named("fell", 30), named("rose", 32)]);
    let found = check(&counts, &[("fell", 31, "a list"), ("rose", 31, "a list"), ("gone", 40, "a list")]);
    assert_eq!(found.len(), 3, "{found:?}");
    for (complaint, name) in found.iter().zip(["many", "rose", "gone"]) {
        assert!(complaint.contains(name), "{complaint}");
    }
}
