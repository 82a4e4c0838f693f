//! Findings of `verify` and `doctor`: a line for each check, as a table or as JSON.

use super::report::table;
use serde_json::{Value, json};

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// True when an operator has to do something.
    pub is_bad: bool,
    /// Subject of the finding: `orders/3`, `node a`, `etcd http://...`.
    pub about: String,
    pub found: String,
    /// Remedy; empty where nothing is to be done.
    pub remedy: String,
}

impl Finding {
    pub fn good(about: impl Into<String>, found: impl Into<String>) -> Finding {
        Finding { is_bad: false, about: about.into(), found: found.into(), remedy: String::new() }
    }

    pub fn bad(about: impl Into<String>, found: impl Into<String>, remedy: impl Into<String>) -> Finding {
        Finding { is_bad: true, about: about.into(), found: found.into(), remedy: remedy.into() }
    }
}

pub fn is_well(findings: &[Finding]) -> bool {
    !findings.iter().any(|finding| finding.is_bad)
}

pub fn text(findings: &[Finding]) -> String {
    let row = |f: &Finding| {
        let state = if f.is_bad { "BAD" } else { "ok" };
        vec![state.to_owned(), f.about.clone(), f.found.clone(), f.remedy.clone()]
    };
    table(&["state", "what", "found", "remedy"], findings.iter().map(row))
}

pub fn json(findings: &[Finding]) -> Value {
    let row = |f: &Finding| json!({ "is_bad": f.is_bad, "about": f.about, "found": f.found, "remedy": f.remedy });
    json!({ "is_well": is_well(findings), "findings": findings.iter().map(row).collect::<Vec<_>>() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_bad_finding_is_enough() {
        let findings = [Finding::good("node a", "answers"), Finding::bad("t/0", "behind", "wait")];
        assert!(is_well(&findings[..1]) && !is_well(&findings));
        assert_eq!(text(&findings), "state  what    found    remedy\nok     node a  answers\nBAD    t/0     behind   wait\n");
        assert_eq!(json(&findings)["is_well"], false);
        assert_eq!(json(&findings)["findings"][1]["remedy"], "wait");
    }
}
