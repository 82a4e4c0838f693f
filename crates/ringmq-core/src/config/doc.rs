//! docs/settings.md, generated from the table; a test fails when the file differs from this text.

use super::{IGNORED, TABLE};
use std::fmt::Write;

/// The whole text of docs/settings.md.
pub fn settings_md() -> String {
    let mut out = String::from(
        "# Settings\n\n\
         Generated from the table in crates/ringmq-core/src/config/table.rs by `UPDATE_DOCS=1 cargo test --test tidy`; do not edit.\n\n\
         A setting is a flag (`--name=value`, `--name value`, `-name value`) or a key of the TOML file that `--config` names\n\
         (`-` or `_` in the name); flags win. Sizes are bytes, or carry KiB, MiB, GiB or TiB. Durations carry their unit as in Go\n\
         (`250ms`, `1m30s`), or in days and weeks (`1d`, `2w`); a plain integer in the file is milliseconds. A node\n\
         takes a new value when it starts. SIGHUP reads `log-level`, the TLS files and the cluster file again.\n",
    );
    let mut group = "";
    for row in TABLE {
        if row.group != group {
            group = row.group;
            let _ = write!(out, "\n## {group}\n\n| setting | default (bounds) | meaning |\n|---|---|---|\n");
        }
        let bounds = if row.is_number() { format!(" ({})", row.range()) } else { String::new() };
        let _ = writeln!(out, "| `{}` | {}{bounds} | {}. |", row.name, row.show_default(), row.about);
    }
    out.push_str(
        "\n## Per topic\n\n\
         Only in the file. A topic without a value of its own has the node's value.\n\n\
         ```toml\n[topics.orders]\nretention = \"1w\"        # or retention_ms = 604800000\nretention_bytes = \"10GiB\"\n```\n\n\
         ## Settings without effect\n\n\
         Flags and keys of nsqd, some of older or patched versions. The node accepts them and names them in the log.\n\n\
         | setting | why |\n|---|---|\n",
    );
    for same in IGNORED.chunk_by(|a, b| a.1 == b.1) {
        let names: Vec<String> = same.iter().map(|(name, _)| format!("`{name}`")).collect();
        let _ = writeln!(out, "| {} | {}. |", names.join(", "), same[0].1);
    }
    out
}
