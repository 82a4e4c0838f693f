//! Generates the code of each schema, and notes the hashes by which `cargo test --test golden_native` knows stale code.

use std::path::Path;
use std::process::Command;

const SCHEMAS: [(&str, &str); 2] = [
    ("schema/native.fbs", "crates/ringmq-protocol/src/codec/native/generated.rs"),
    ("schema/peer.fbs", "crates/ringmq-protocol/src/codec/peer/generated.rs"),
];

fn main() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folder = std::env::temp_dir().join(format!("generate-{}", std::process::id()));
    let mut hashes = String::new();
    for (schema, generated) in SCHEMAS {
        let status = Command::new(flatc_fork::flatc())
            .args(["--rust", "-o"])
            .arg(&folder)
            .arg(root.join(schema))
            .status()
            .expect("flatc runs");
        assert!(status.success(), "flatc refused {schema}");
        let name = Path::new(schema).file_stem().expect("a schema has a name").to_string_lossy();
        let made = folder.join(format!("{name}_generated.rs"));
        std::fs::copy(&made, root.join(generated)).expect("the generated code can be written");
        for file in [schema, generated] {
            let bytes = std::fs::read(root.join(file)).expect("it was just written");
            hashes += &format!("{:08x} {file}\n", crc32fast::hash(&bytes));
        }
    }
    std::fs::write(root.join("schema/hashes"), hashes).expect("schema/hashes can be written");
    std::fs::remove_dir_all(&folder).expect("the temporary folder can be removed");
}
