//! Decision tables as data: findings x expectation -> one action. The code looks actions up. A test proves that every combination of
//! findings matches exactly one row, and that the table in the doc comment is the same.

use std::fmt::Debug;

/// A finding with few values, all of which a table must answer.
pub trait Finding: Copy + PartialEq + Debug + 'static {
    const ALL: &'static [Self];
}

impl Finding for () {
    const ALL: &'static [()] = &[()];
}

/// Declares a finding: an enum and the list of its values.
#[macro_export]
macro_rules! finding {
    ($(#[$doc:meta])* $name:ident { $($(#[$value_doc:meta])* $value:ident),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum $name { $($(#[$value_doc])* $value),+ }
        impl $crate::format::decision::Finding for $name {
            const ALL: &'static [Self] = &[$($name::$value),+];
        }
    };
}
pub use finding;

/// Row of a decision table: it matches when each finding is among the listed ones; an empty list stands for any.
#[derive(Debug)]
pub struct Row<A: 'static, B: 'static, C: 'static, T> {
    pub a: &'static [A],
    pub b: &'static [B],
    pub c: &'static [C],
    pub then: T,
    pub why: &'static str,
}

impl<A: Finding, B: Finding, C: Finding, T> Row<A, B, C, T> {
    fn matches(&self, a: A, b: B, c: C) -> bool {
        (self.a.is_empty() || self.a.contains(&a))
            && (self.b.is_empty() || self.b.contains(&b))
            && (self.c.is_empty() || self.c.contains(&c))
    }
}

/// The row for these findings.
pub fn decide<A: Finding, B: Finding, C: Finding, T>(
    table: &'static [Row<A, B, C, T>],
    a: A,
    b: B,
    c: C,
) -> &'static Row<A, B, C, T> {
    table.iter().find(|row| row.matches(a, b, c)).expect("a table answers every combination: its test proves it")
}

/// The rows as lines of a markdown table.
pub fn render<A: Finding, B: Finding, C: Finding, T: Debug>(table: &'static [Row<A, B, C, T>]) -> Vec<String> {
    fn cell<F: Finding>(findings: &[F]) -> Option<String> {
        if F::ALL.len() == 1 {
            return None;
        }
        let names: Vec<_> = findings.iter().map(|f| format!("{f:?}")).collect();
        Some(if names.is_empty() { "any".into() } else { names.join(", ") })
    }
    let row = |row: &Row<A, B, C, T>| {
        let cells: Vec<_> = [cell(row.a), cell(row.b), cell(row.c)].into_iter().flatten().collect();
        format!("| {} | {:?} | {} |", cells.join(" | "), row.then, row.why)
    };
    table.iter().map(row).collect()
}

/// Panics unless every combination matches exactly one row, every row is matched, and `source`, the text of the file
/// that holds the table, shows every row in a doc comment. For tests.
pub fn check<A: Finding, B: Finding, C: Finding, T: Debug>(table: &'static [Row<A, B, C, T>], source: &str) {
    let mut used = vec![false; table.len()];
    for &a in A::ALL {
        for &b in B::ALL {
            for &c in C::ALL {
                let rows: Vec<_> = (0..table.len()).filter(|&i| table[i].matches(a, b, c)).collect();
                assert_eq!(rows.len(), 1, "{a:?} {b:?} {c:?} matches rows {rows:?}");
                used[rows[0]] = true;
            }
        }
    }
    assert!(used.iter().all(|&u| u), "a row that nothing matches: {used:?}");
    for line in render(table) {
        assert!(source.contains(&format!("/// {line}")), "the doc comment lacks\n/// {line}");
    }
}
