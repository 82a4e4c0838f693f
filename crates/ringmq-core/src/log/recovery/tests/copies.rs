//! Data in two files: damage of one, of both, and of one at each point of a startup that crashes.

use super::*;
use crate::format::meta::{NodeMeta, TopicMeta};

/// Damage to a file that is one block.
#[derive(Clone, Copy, Debug)]
enum Rot {
    Flip(u64),
    Zeroed,
    Cut,
    Gone,
}

fn rots() -> impl Iterator<Item = Rot> {
    let flips = (0..64).step_by(5).map(Rot::Flip);
    flips.chain([Rot::Zeroed, Rot::Cut, Rot::Gone])
}

fn apply(disk: &mut SimDisk, path: &str, rot: Rot) {
    match rot {
        Rot::Flip(at) => disk.flip(path, at, at as u32),
        Rot::Zeroed => disk.scribble(path, 0, &[0; BLOCK]),
        Rot::Cut => disk.cut(path, 0),
        Rot::Gone => disk.lose(path, None),
    }
}

/// A node with several topics whose creation no journal has any more.
fn settled(seed: u64) -> (SimDisk, Model) {
    let (mut disk, mut model, _, _) = (seed..).map(grown).find(|g| g.1.topics.len() > 1).expect("some seed has topics");
    let found = recover(&mut disk, &options(2, 3)).expect("it is whole");
    check(&disk, &found, &mut model, false);
    (disk, model)
}

fn tells_of(report: &Report, path: &str, severity: Severity) -> bool {
    report.findings.iter().any(|f| f.file.to_string() == path && f.severity == severity)
}

fn paths(disk: &SimDisk, ends: &str) -> Vec<String> {
    disk.paths().filter(|path| path.contains(ends)).map(String::from).collect()
}

#[test]
fn one_file_of_two_is_told_of_and_written_again_from_the_other() {
    let (disk, model) = settled(1);
    for path in paths(&disk, ".meta.") {
        for rot in rots() {
            let (mut disk, mut model, whole) = (disk.clone(), model.clone(), disk.contents_of(&path).to_vec());
            let node = NodeMeta::decode(disk.contents_of("node.meta.0")).expect("it holds").node_id;
            apply(&mut disk, &path, rot);
            let found = recover(&mut disk, &options(2, 4)).unwrap_or_else(|e| panic!("{path} {rot:?}: {e}"));
            let what = format!("{path} {rot:?}: {:?}", found.report);
            assert!(tells_of(&found.report, &path, Severity::Mended) && !found.report.has_damage(), "{what}");
            assert_eq!((check(&disk, &found, &mut model, false), found.node_id), (0, node), "{what}");
            if path.contains("topic") {
                assert_eq!(disk.contents_of(&path), &whole, "{what}: it is written again");
            }
            let again = recover(&mut disk, &options(2, 5)).expect("it goes on");
            assert!(!again.report.findings.iter().any(|f| f.severity > Severity::Repaired), "{what}: {:?}", again.report);
        }
    }
}

#[test]
fn a_node_meta_that_is_gone_is_refused_until_its_loss_is_accepted() {
    let (disk, model) = settled(2);
    let before = NodeMeta::decode(disk.contents_of("node.meta.0")).expect("it holds");
    for (one, other) in
        [(Rot::Zeroed, Rot::Gone), (Rot::Flip(40), Rot::Flip(20)), (Rot::Gone, Rot::Gone), (Rot::Cut, Rot::Flip(9))]
    {
        let (mut disk, mut model) = (disk.clone(), model.clone());
        apply(&mut disk, "node.meta.0", one);
        apply(&mut disk, "node.meta.1", other);
        let files: Vec<(String, Vec<u8>)> = disk.paths().map(|p| (p.to_owned(), disk.contents_of(p).to_vec())).collect();
        for accept_lost_journal in [0, before.generation - 1, before.generation + 1] {
            let error = recover(&mut disk, &RecoverOptions { accept_lost_journal, ..options(2, 9) }).expect_err("it is gone");
            let text = error.to_string();
            assert!(matches!(error, RecoverError::LostNode { .. }), "{text}");
            assert!(text.contains(&format!("--accept-lost-journal={}", before.generation)), "{text}");
            let is_same = |(path, bytes): &(String, Vec<u8>)| disk.contents_of(path) == &bytes[..];
            assert!(files.iter().all(is_same) && disk.paths().count() == files.len(), "nothing is changed");
        }
        let accept = RecoverOptions { accept_lost_journal: before.generation, ..options(2, 9) };
        let found = recover(&mut disk, &accept).expect("the loss is accepted");
        assert!(tells_of(&found.report, "node.meta.0", Severity::Damage), "{:?}", found.report);
        assert!(found.node_id != before.node_id && found.generation > before.generation + 1, "{found:?}");
        assert_eq!(check(&disk, &found, &mut model, false), 0);
    }
}

/// A topic keeps its id by its files, and is set aside when there are none.
#[test]
fn a_topic_whose_files_are_both_gone_is_loud() {
    let (disk, model) = settled(3);
    let metas = paths(&disk, "topic.meta.0");
    let mut rebuilt = 0;
    for first in metas {
        let second = first.replace("meta.0", "meta.1");
        for (one, other) in [(Rot::Flip(30), Rot::Zeroed), (Rot::Zeroed, Rot::Flip(30)), (Rot::Flip(9), Rot::Flip(30))] {
            let (mut disk, mut model) = (disk.clone(), model.clone());
            let id = TopicMeta::decode(disk.contents_of(&first)).expect("it holds").info.id;
            apply(&mut disk, &first, one);
            apply(&mut disk, &second, other);
            let found = recover(&mut disk, &options(2, 4)).expect("it goes on");
            assert!(tells_of(&found.report, &first, Severity::Damage), "{first}: {:?}", found.report);
            if found.topics.iter().any(|t| t.id == id) {
                assert_eq!(check(&disk, &found, &mut model, true), 0, "{first}: its messages are there");
                rebuilt += 1;
            }
        }
    }
    assert!(rebuilt > 0);
}

#[test]
fn no_crash_of_a_start_leaves_the_node_in_one_file() {
    for seed in 0..3 {
        let (disk, model, _, _) = grown(seed);
        for crash_after in (0..).step_by(3) {
            let (mut disk, mut model) = (disk.clone(), model.clone());
            disk.faults.crash_after = Some(crash_after);
            let ended = recover(&mut disk, &options(1 + seed as u16 % 3, seed)).is_ok();
            disk.crash();
            let path = format!("node.meta.{}", crash_after % 2);
            if disk.paths().any(|p| p == path) {
                apply(&mut disk, &path, [Rot::Flip(16), Rot::Zeroed, Rot::Gone][crash_after as usize / 2 % 3]);
            }
            let found = recover(&mut disk, &options(2, 7)).unwrap_or_else(|e| panic!("seed {seed}, after {crash_after}: {e}"));
            let what = format!("seed {seed}, after {crash_after}: {:?}", found.report);
            assert!(!found.report.has_damage(), "{what}");
            assert_eq!(check(&disk, &found, &mut model, false), 0, "{what}");
            if ended {
                break;
            }
        }
    }
}
