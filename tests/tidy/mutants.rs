//! The lines that tests/mutants breaks stand where its list says.

use std::fs;
use std::path::Path;

/// Complaints about a list, whose files `read` gives.
fn complaints(list: &str, read: &dyn Fn(&str) -> Option<String>) -> Vec<String> {
    let list: toml::Table = list.parse().expect("list.toml is TOML");
    let text = |table: &toml::Value, key: &str| table.get(key).and_then(|v| v.as_str()).unwrap_or_default().to_owned();
    let tables = |value: Option<&toml::Value>| value.and_then(|v| v.as_array()).cloned().unwrap_or_default();
    let mut wrong = vec![];
    for mutant in tables(list.get("mutant")) {
        let edits = tables(mutant.get("edit"));
        if edits.is_empty() || tables(mutant.get("checks")).is_empty() && text(&mutant, "test").is_empty() {
            wrong.push(format!("{}: no edit, or no check that must notice it", text(&mutant, "name")));
        }
        for edit in edits {
            let (file, before) = (text(&edit, "file"), text(&edit, "before"));
            let count = read(&file).map_or(0, |source| source.matches(&before).count());
            if count != 1 {
                wrong.push(format!("{}: its line stands {count} times in {file}", text(&mutant, "name")));
            }
            if !text(&edit, "after").contains("MUTANT") {
                wrong.push(format!("{}: it cannot be turned on", text(&mutant, "name")));
            }
        }
    }
    wrong
}

#[test]
fn the_line_of_each_mutant_stands_once() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let list = fs::read_to_string(root.join("tests/mutants/list.toml")).expect("it is there");
    let wrong = complaints(&list, &|file| fs::read_to_string(root.join(file)).ok());
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn the_rule_fires() {
    let read = |file: &str| (file == "a.rs").then(|| "x = 1;\ny = 2;\ny = 2;\n".to_owned());
    let list = |edit: &str| format!("[[mutant]]\nname = \"m\"\nchecks = [\"c\"]\n{edit}");
    let edit = |file: &str, before: &str, after: &str| {
        list(&format!("[[mutant.edit]]\nfile = \"{file}\"\nbefore = \"{before}\"\nafter = \"{after}\"\n"))
    };
    assert_eq!(complaints(&edit("a.rs", "x = 1", "x = MUTANT"), &read), [""; 0]);
    for wrong in [edit("a.rs", "y = 2", "MUTANT"), edit("b.rs", "x = 1", "MUTANT"), edit("a.rs", "x = 1", "x = 2"), list("")] {
        assert_eq!(complaints(&wrong, &read).len(), 1, "{wrong}");
    }
}
