//! What texts name is there: the tests of docs/promise.md, and the flags that messages of the program tell an operator of.

use super::source::{code_of, not_code, tests_in};
use super::{CRATES, fail_on, root, rust_files};
use ringmq::config::{IGNORED, TABLE};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

// ---- tests

/// Texts that can be named: sources by their path, with the content of their strings.
struct Sources {
    files: Vec<(PathBuf, String)>,
}

impl Sources {
    fn of_the_repository() -> Sources {
        let mut files: Vec<(PathBuf, String)> = ["src", "tests", "crates"].into_iter().flat_map(rust_files).collect();
        for entry in fs::read_dir(root().join("tests/clients")).expect("it is there") {
            let path = entry.expect("a readable folder").path();
            if path.extension().is_some_and(|e| e == "py") {
                files.push((PathBuf::from("tests/clients"), fs::read_to_string(&path).expect("readable UTF-8")));
            }
        }
        Sources { files }
    }

    /// A function, or a checker, which begins what it says with its name.
    fn has(&self, name: &str, below: &str) -> bool {
        let marks = ["fn ", "def ", "\""].map(|mark| format!("{mark}{name}"));
        let ends = |rest: &str| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_');
        let mut files = self.files.iter().filter(|(path, _)| path.to_string_lossy().starts_with(below));
        files.any(|(_, text)| {
            marks.iter().any(|mark| text.match_indices(mark.as_str()).any(|(at, _)| ends(&text[at + mark.len()..])))
        })
    }

    /// Beginning of the paths of a module's files: of the longest part of `module` that is a file or folder.
    fn place(&self, module: &str) -> Option<String> {
        let is_there = |p: &String| {
            [format!("{p}.rs"), format!("{p}/mod.rs")].iter().any(|f| self.files.iter().any(|(n, _)| n == Path::new(f)))
        };
        let below = |(folder, whole): (&str, Option<&str>)| match whole {
            Some(whole) if module == whole => Some(format!("{folder}/lib")),
            Some(whole) => Some(format!("{folder}/{}", module.strip_prefix(whole)?.strip_prefix("::")?.replace("::", "/"))),
            None => Some(format!("{folder}/{}", module.replace("::", "/"))),
        };
        CRATES.into_iter().filter_map(below).find(is_there)
    }

    /// The names in a cell of tests ([`cells`]).
    fn check(&self, cell: &str, complaints: &mut Vec<String>) {
        for part in cell.split(';') {
            // The module that the names behind it are of. Those behind a file may be checkers, which stand elsewhere.
            let (mut below, mut waits) = (String::new(), None);
            for name in part.split('`').skip(1).step_by(2).filter(|name| !name.starts_with("ringmq ")) {
                if name.contains('/') {
                    let is_there = root().join(name).exists();
                    complaints.extend((!is_there).then(|| format!("{name} is not there")));
                } else if let Some(module) = self.place(name).filter(|_| name.contains("::")) {
                    // Several modules may share the names behind them: they are then looked for in the first one's room.
                    below = if waits.is_some() { String::new() } else { module };
                    waits = Some(name);
                } else if let Some((module, test)) = name.rsplit_once("::") {
                    // `tests` may stand in the file of its module.
                    let place = self.place(module).or_else(|| self.place(module.strip_suffix("::tests")?));
                    let is_there = place.is_some_and(|place| self.has(test, &place));
                    complaints.extend((!is_there).then(|| format!("{name} is not there")));
                } else {
                    waits = None;
                    complaints.extend((!self.has(name, &below)).then(|| format!("{name} is not there, below `{below}`")));
                }
            }
            complaints.extend(waits.map(|module| format!("{module} is a whole module: name its tests")));
        }
    }
}

/// The last cells of a page's tables, and the parts of its lines behind `*Tests:*`.
fn cells(page: &str) -> impl Iterator<Item = &str> {
    let rows = page.lines().filter(|line| line.starts_with('|') && !line.starts_with("|--"));
    let cells = rows.filter_map(|row| row.trim_end_matches(['|', ' ']).rsplit(" | ").next());
    cells.chain(page.lines().filter_map(|line| Some(line.split_once("*Tests:*")?.1)))
}

#[test]
fn the_tests_that_documents_name_are_there() {
    let (named, mut complaints) = (Sources::of_the_repository(), Vec::new());
    for (document, rows_min) in [("docs/promise.md", 30), ("docs/rules.md", 15)] {
        let page = fs::read_to_string(root().join(document)).expect("it is there");
        assert!(cells(&page).count() > rows_min, "the tests of {document} were not found");
        cells(&page).for_each(|cell| named.check(cell, &mut complaints));
    }
    fail_on(complaints);
}

#[test]
fn a_name_of_nothing_is_found() {
    let named = Sources {
        files: vec![
            ("src/log/batch.rs".into(), "fn a_test() {} mod tests { fn inner() {} }".into()),
            ("src/sim/check.rs".into(), "assert!(x, \"a_checker: {y}\")".into()),
            ("tests/sim.rs".into(), "fn whole() {}".into()),
        ],
    };
    for (cell, wanted) in [
        ("`tests/tidy.rs`: `a_checker`, `whole`; `log::batch`: `a_test`", 0),
        ("`log::batch::tests::inner`; `log::batch::a_test` (in words)", 0),
        ("`ringmq inspect --compare` of what is left", 0),
        ("`tests/no_such_file.rs`", 1),
        ("`tests/tidy.rs`: `a_check`", 1),
        ("`log::batch`: `whole`", 1),
        ("`log::batch`", 1),
        ("`log::batch`; `whole`", 1),
        ("`log::none`: `a_test`", 1),
        ("`..._test`", 1),
    ] {
        let mut complaints = Vec::new();
        named.check(cell, &mut complaints);
        assert_eq!(complaints.len(), wanted, "{cell}: {complaints:?}");
    }
}

// ---- log lines

/// The parts of the log lines that a page quotes below "Log lines", or in a row `| log | ...`, and that no source has. `...`, numbers and
/// single capitals stand for anything.
fn unknown_lines(page: &str, sources: &str) -> Vec<String> {
    let section = page.split("\n## Log lines\n").nth(1).unwrap_or_default();
    let section = section.split("\n## ").next().unwrap_or_default();
    let cells = section.lines().filter_map(|line| line.strip_prefix("| ")?.split_once(" | ")).map(|(cell, _)| cell);
    let cells = cells.chain(page.lines().filter_map(|line| line.strip_prefix("| log | ")));
    let mut unknown = Vec::new();
    for line in cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)) {
        let is_any = |word: &&str| word.len() == 1 && word.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit());
        let words: Vec<&str> = line.split("...").flat_map(|part| part.split(' ').chain(["N"])).collect();
        let parts = words.split(is_any).map(|words| words.join(" "));
        let parts = parts.map(|part| part.trim_matches([' ', ':', ',']).to_owned()).filter(|part| !part.is_empty());
        unknown.extend(parts.filter(|part| !sources.contains(part.as_str())));
    }
    unknown
}

#[test]
fn the_log_lines_that_documents_quote_are_there() {
    let sources: String = ["src", "crates"].into_iter().flat_map(rust_files).map(|(_, text)| joined(&text)).collect();
    let mut complaints = Vec::new();
    for document in ["docs/operating.md", "docs/cluster-failures.md", "docs/cluster-file.md"] {
        let page = fs::read_to_string(root().join(document)).expect("it is there");
        assert!(page.contains("\n## Log lines\n"), "{document} has no log lines");
        let unknown = unknown_lines(&page, &sources);
        complaints.extend(unknown.into_iter().map(|part| format!("{document}: no source says `{part}`")));
    }
    fail_on(complaints);
}

/// The text of a source with its strings' continued lines put together.
fn joined(source: &str) -> String {
    let mut parts = source.split("\\\n");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + part.trim_start())
}

#[test]
fn a_log_line_of_nobody_is_found() {
    let rows = "| line | meaning |\n|---|---|\n| `disk ... is full: wait`, `core 3 ended` | `other` |";
    let page = &format!("# A\n`gone`\n| log | `core 7 ended`, soon |\n## Log lines\n\n{rows}\n## B\n| `gone` | |");
    let source = "warn!(\"disk {} is \\\n     full: wait\"); warn!(\"core {core} ended\")";
    assert_eq!(unknown_lines(page, &joined(source)), Vec::<String>::new());
    assert_eq!(unknown_lines(page, "disk is full: wait"), ["core", "ended", "core", "ended"]);
}

// ---- flags

/// Flags of other programs, and `--name` for any flag.
const FOREIGN: &[&str] = &["security-opt", "release", "version", "help", "test", "name"];

/// Flags that `.long(` and its like of a command name.
fn declared(source: &str) -> BTreeSet<String> {
    let makers = ["long(\"", "number(\"", "of_change(\""];
    let found = makers.iter().flat_map(|maker| source.match_indices(maker).map(|(at, maker)| &source[at + maker.len()..]));
    found.filter_map(|rest| Some(rest.split_once('"')?.0.to_owned())).collect()
}

/// The flags that the strings of a source name, without those of its tests.
fn flags_in(source: &str) -> BTreeSet<String> {
    let tests = tests_in(&code_of(source));
    let strings =
        not_code(source).into_iter().filter(|(place, is_string)| *is_string && !tests.iter().any(|t| t.contains(&place.start)));
    let mut found = BTreeSet::new();
    for text in strings.map(|(place, _)| &source[place]) {
        for (at, _) in text.match_indices("--") {
            let is_begun = !text[..at].ends_with(|c: char| c.is_alphanumeric() || c == '-');
            let name: String = text[at + 2..].chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '-').collect();
            if is_begun && name.starts_with(|c: char| c.is_ascii_alphabetic()) {
                found.insert(name.trim_end_matches('-').to_owned());
            }
        }
    }
    found
}

fn of_command(command: &clap::Command, into: &mut BTreeSet<String>) {
    into.extend(command.get_arguments().filter(|arg| !arg.is_hide_set()).filter_map(|arg| arg.get_long()).map(String::from));
    command.get_subcommands().for_each(|command| of_command(command, into));
}

#[test]
fn a_flag_that_the_program_tells_of_is_there() {
    let files: std::collections::BTreeMap<PathBuf, String> = ["src", "crates"]
        .into_iter()
        .flat_map(rust_files)
        .filter(|(path, _)| !path.starts_with("crates/ringmq-lookupd"))
        .collect();
    let mut known: BTreeSet<String> = FOREIGN.iter().map(|name| name.to_string()).collect();
    known.extend(TABLE.iter().map(|row| row.name.to_string()).chain(IGNORED.iter().map(|(name, _)| name.to_string())));
    of_command(&ringmq::config::flags::add_flags(clap::Command::new("serve")), &mut known);
    of_command(&ringmq::load::command(), &mut known);
    ringmq_tools::commands().iter().for_each(|command| of_command(command, &mut known));
    for path in ["src/main.rs", "crates/ringmq-sim/src/main.rs"] {
        let found = declared(&files[Path::new(path)]);
        assert!(found.len() > 5, "{path}: its flags were not found");
        known.extend(found);
    }
    let mut complaints = Vec::new();
    for (path, source) in &files {
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        // Whole files of tests, and a page whose style sheet has names that look like flags.
        let is_other = stem == "tests" || stem.ends_with("_tests") || path.components().any(|part| part.as_os_str() == "tests");
        if is_other || ["src/load/html.rs", "src/load/plot.rs"].iter().any(|page| path == Path::new(page)) {
            continue;
        }
        let unknown = flags_in(source).into_iter().filter(|name| !known.contains(name));
        complaints.extend(unknown.map(|name| format!("{}: --{name} is no flag", path.display())));
    }
    fail_on(complaints);
}

#[test]
fn a_flag_that_is_not_there_is_found() {
    let found = |source: &str| flags_in(source).into_iter().collect::<Vec<_>>().join(" ");
    assert_eq!(found("warn!(\"longer than --stall-log-ms: x\")"), "stall-log-ms");
    assert_eq!(found("f(\"use --shards={cpus}, or `--a-b`\", r#\"--raw\"#)"), "a-b raw shards");
    assert_eq!(found("// --comment\nf(\"a--b -- --- x\", '-')\n#[cfg(test)]\nmod tests { const X: &str = \"--gone\"; }"), "");
    assert_eq!(declared("Arg::new(\"x\").long(\"by\").arg(number(\"seeds\", 1))"), ["by", "seeds"].map(String::from).into());
}
