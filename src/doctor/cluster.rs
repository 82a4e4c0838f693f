//! The cluster file: whether it holds together, may follow the one in force, and names this node.

use super::Finding;
use crate::config::Settings;
use crate::coordinator::Coordinator;

const NAME: &str = "cluster-file";

/// A line when the node is one of several, or was.
pub fn check(settings: &Settings) -> Option<Finding> {
    match Coordinator::open(settings) {
        Ok(None) => None,
        Ok(Some(coordinator)) => {
            let file = coordinator.file();
            let (path, name, version) = (&settings.cluster_file, file.name(coordinator.me()), file.version);
            let (nodes, topics) = (file.nodes.len(), file.topics.len());
            let found = format!("{path}: version {version}, this node is {name} of {nodes}, {topics} topics");
            if let [damage, ..] = coordinator.damage() {
                return Some(Finding::warn(NAME, format!("{found}; {damage}"), "the device may be failing: look at dmesg"));
            }
            Some(match file.resting() {
                resting if resting.is_empty() => Finding::ok(NAME, found),
                resting => Finding::warn(NAME, format!("{found}; {}", resting.join("; ")), "these partitions take no publish"),
            })
        }
        Err(error) => Some(Finding::fail(NAME, error.to_string(), "correct this: the node does not start with it")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coordinator::node_id;
    use crate::doctor::Level;

    #[test]
    fn the_file_must_hold_and_name_this_node() {
        let folder = tempfile::tempdir_in(".").unwrap();
        let (data, path) = (folder.path().join("data"), folder.path().join("cluster.toml"));
        let text = |path: &std::path::Path| path.to_str().unwrap().to_owned();
        let settings = Settings { data_path: text(&data), cluster_file: text(&path), ..Settings::default() };
        let check = || check(&settings).unwrap();
        let fails = |part: &str| {
            let finding = check();
            assert!(finding.level == Level::Fail && finding.found.contains(part), "{finding}");
        };
        fails("cluster.toml: No such file");
        std::fs::write(&path, "version = 1").unwrap();
        fails("line 1: missing field `cluster_id`");
        let write = |id: &str, more: &str| {
            let node = format!("[[node]]\nname = \"a\"\nid = \"{id}\"\npeer_address = \"127.0.0.1:4170\"\n");
            std::fs::write(&path, format!("cluster_id = \"{}\"\nversion = 1\n{node}{more}", "5".repeat(32))).unwrap();
        };
        write(&"7".repeat(32), "");
        fails("has no node id yet: `ringmq node-id");
        let (id, is_new) = node_id(&data, 3).unwrap();
        assert!(is_new && node_id(&data, 4).unwrap() == (id, false), "the id stays");
        fails(&format!("names no node with the id of {}, which is {id}", data.display()));
        write(&id.to_string(), "");
        let finding = check();
        assert!(finding.level == Level::Ok && finding.found.contains("this node is a of 1, 0 topics"), "{finding}");
        let topic = format!("[[topic]]\nname = \"t\"\nid = \"{}\"\npartitions = 1\n", "6".repeat(32));
        let partition = "[[topic.partition]]\nnumber = 0\nreplicas = [\"a\"]\nisr = [\"a\"]\nepoch = 1\n";
        write(&id.to_string(), &format!("{topic}{partition}"));
        let finding = check();
        assert!(finding.level == Level::Warn && finding.found.contains("partition 0 of topic t: nobody leads"), "{finding}");
        assert!(super::check(&Settings { cluster_file: String::new(), ..settings.clone() }).is_none(), "alone");
    }
}
