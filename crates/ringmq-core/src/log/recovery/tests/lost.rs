//! Journals that are gone: the refusal, and what the startup without them costs.

use super::*;

/// A startup without a journal refuses, names the journal and the way on, and changes nothing. With the loss accepted it goes on without
/// the journal: partitions that wrote there are reported and suspect, and never assign an offset or id twice.
#[test]
fn a_journal_that_is_gone_is_refused_until_its_loss_is_accepted() {
    let (mut orphans, mut lost_any) = (0, 0);
    for seed in 0..60 {
        let (mut disk, mut model, _, mut rng) = grown(seed);
        let core = rng.below(2) as u16;
        let path = format!("journal/{core}");
        let older = disk.contents_of(&path).to_vec();
        let stopped = recover(&mut disk, &options(2, 1)).expect("it is whole");
        let mut engine = Engine::new(disk, stopped, SEGMENT_BYTES);
        life(&mut engine, &mut model, &mut rng, 60).expect("no fault was asked for");
        let mut disk = engine.disk;
        let whole = disk.contents_of(&path).to_vec();
        match seed % 3 {
            0 => disk.lose(&path, None),
            1 => disk.scribble(&path, 0, &vec![0; whole.len()]),
            _ => disk.scribble(&path, 0, &older),
        }
        let before: Vec<(String, Vec<u8>)> = disk.paths().map(|p| (p.into(), disk.contents_of(p).to_vec())).collect();
        let generation = engine.generation;
        for accept_lost_journal in [0, generation - 1, generation + 1] {
            let error = recover(&mut disk, &RecoverOptions { accept_lost_journal, ..options(2, 9) }).expect_err("it is gone");
            let says = error.to_string();
            let hint = format!("--accept-lost-journal={generation}:");
            assert!(says.starts_with(&format!("{path}: it is ")) && says.contains(&hint), "{says}");
        }
        let after: Vec<(String, Vec<u8>)> = disk.paths().map(|p| (p.into(), disk.contents_of(p).to_vec())).collect();
        assert!(before == after, "seed {seed}: a refused start changes nothing");
        if seed % 2 == 0 {
            disk.scribble(&path, 0, &whole);
            let found = recover(&mut disk, &options(2, 9)).expect("it was put back");
            assert_eq!(check(&disk, &found, &mut model, false), 0, "seed {seed}");
            continue;
        }
        let ends: BTreeMap<_, _> =
            model.acked.iter().filter_map(|(k, b)| b.last().map(|b| (*k, b.0 + b.1.len() as i64))).collect();
        let ids: BTreeMap<_, _> = engine.parts.iter().map(|p| ((p.dir.topic_id, p.dir.partition.0), p.end.log_id)).collect();
        let accept = RecoverOptions { accept_lost_journal: generation, ..options(1 + seed as u16 % 3, 9) };
        for round in 0.. {
            disk.faults.crash_after = (round < 3).then(|| rng.below(100));
            let Ok(found) = recover(&mut disk, &accept) else {
                if rng.chance(0.5) {
                    disk.crash()
                } else {
                    disk.kill()
                }
                continue;
            };
            disk.faults.crash_after = None;
            assert!(
                round < 3 || found.report.has_damage() && found.report.findings.iter().any(|f| f.file == FileId::Journal(core))
            );
            model.topics.retain(|id| found.topics.iter().any(|t| t.id == *id));
            for p in &found.partitions {
                let key = (p.dir.topic_id, p.dir.partition.0);
                let is_orphan = p.topic.core_of(p.dir.partition, 2).0 == core;
                orphans += is_orphan as u32;
                assert_eq!(p.damage.doubt().is_suspect(), is_orphan, "seed {seed}: {:?}", p.dir);
                assert!(p.end.offset >= ends.get(&key).copied().unwrap_or(0), "seed {seed}: an offset may come again");
                assert!(ids.get(&key).is_none_or(|&id| p.end.log_id >= id), "seed {seed}: an id may come again");
            }
            // The log goes on behind the loss.
            for batches in model.acked.values_mut() {
                batches.dedup_by_key(|b| b.0);
            }
            lost_any += (check_what_is_left(&disk, &found, &model) > 0) as u32;
            assert!(recover(&mut disk, &options(2, 9)).is_ok_and(|again| !again.report.has_damage()), "it is settled");
            break;
        }
    }
    assert!(orphans > 20 && lost_any > 5, "{orphans} {lost_any}");
}

/// A journal whose end is gone goes on with what is left. Where writes that are redone may have stood there, its partitions are
/// suspect and tell of it; else nothing was lost.
#[test]
fn a_journal_that_was_truncated_marks_its_partitions() {
    let (mut marked, mut harmless) = (0, 0);
    for seed in 0..60 {
        let (disk, mut model, _, mut rng) = grown(seed);
        let mut disk = disk;
        let whole = recover(&mut disk, &options(2, 1)).expect("it is whole");
        let mut engine = Engine::new(disk, whole, SEGMENT_BYTES);
        let turns = if seed % 4 == 0 { 0 } else { 60 };
        life(&mut engine, &mut model, &mut rng, turns).expect("no fault was asked for");
        let core = rng.below(2) as u16;
        let (path, ends) = (format!("journal/{core}"), engine.journals[core as usize].writes.iter().map(|w| w.1 + w.2).max());
        let mut disk = engine.disk;
        let len = disk.len_of(&path);
        // Not all of it: then it may be put back.
        let cut = (1 + rng.below(len / BLOCK as u64 - 1)) * BLOCK as u64;
        disk.cut(&path, cut as usize);
        let found = recover(&mut disk, &options(2, 9)).expect("it goes on");
        let what = format!("seed {seed}, cut at {cut}, {ends:?}: {:?}", found.report);
        assert!(found.report.findings.iter().any(|f| f.file.to_string() == path), "{what}");
        let has_damage = found.report.has_damage();
        assert!(has_damage || ends.is_none_or(|end| end <= cut), "{what}");
        // Where writes are known to have been complete and none is left that names what they touched, that may be any partition.
        let is_unnamed = found.report.findings.iter().any(|f| f.what.contains("unknown partitions"));
        for p in &found.partitions {
            let is_marked = has_damage && (is_unnamed || p.topic.core_of(p.dir.partition, 2).0 == core);
            assert_eq!(
                (p.damage.doubt().is_suspect(), p.damage.channels_lost() > 0),
                (is_marked, is_marked),
                "{what}: {:?}",
                p.dir
            );
            marked += is_marked as u32;
        }
        if !has_damage {
            assert_eq!(check(&disk, &found, &mut model, false), 0, "{what}");
            harmless += 1;
        }
        let again = recover(&mut disk, &options(2, 9)).expect("it goes on");
        assert!(again.report.findings.is_empty(), "{what}: it is settled: {:?}", again.report);
        assert!(
            again
                .partitions
                .iter()
                .zip(&found.partitions)
                .all(|(a, b)| a.damage.doubt() == b.damage.doubt() && a.damage.channels_lost() == b.damage.channels_lost())
        );
    }
    assert!(marked > 20 && harmless > 5, "{marked} {harmless}");
}

/// Batches that are gone; panics at one that was not acknowledged.
fn check_what_is_left(disk: &SimDisk, recovered: &Recovered, model: &Model) -> usize {
    let mut lost = 0;
    for p in &recovered.partitions {
        let acked = model.acked.get(&(p.dir.topic_id, p.dir.partition.0)).cloned().unwrap_or_default();
        let log = log_of(disk, p).expect("the log is whole");
        let first = p.files.segments.first().map_or(0, |m| m.base.offset);
        // Of a batch that was not synced in its segment the header alone may have come through the crash.
        assert!(
            p.damage.doubt().is_suspect() || log.iter().all(|(_, batch)| batch.is_some()),
            "a damaged body that nothing reports"
        );
        let kept: Vec<_> = log.iter().filter_map(|(h, batch)| Some((h, batch.as_ref()?))).filter(|(h, _)| !h.is_lost()).collect();
        for (h, batch) in &kept {
            let expected = acked.iter().find(|(at, _)| *at == h.offset.get()).expect("invented a batch");
            assert_eq!(batch.bytes, expected.1);
        }
        lost += acked.iter().filter(|(at, _)| *at >= first).count() - kept.len();
    }
    lost
}

/// Crashes are put at each operation of a startup, with the number of cores changing: a crash there never leads to a false refusal, and
/// a journal that is taken away after it is refused or costs nothing.
#[test]
fn no_crash_of_a_start_confuses_a_missing_journal_with_one_that_was_not_begun() {
    let (mut refused, mut harmless) = (0, 0);
    for seed in 0..3 {
        for (cores_before, cores) in [(1, 3), (3, 1), (2, 2)] {
            for crash_after in 0.. {
                let mut rng = Rng::new(seed);
                let mut disk = SimDisk::new(seed);
                let mut model = Model::default();
                let first = recover(&mut disk, &options(cores_before, seed)).expect("an empty disk recovers");
                let mut engine = Engine::new(disk, first, SEGMENT_BYTES);
                life(&mut engine, &mut model, &mut rng, 25).expect("no fault was asked for");
                let mut disk = engine.disk;
                disk.faults.crash_after = Some(crash_after);
                let ended = recover(&mut disk, &options(cores, seed)).is_ok();
                disk.faults.crash_after = None;
                if crash_after % 2 == 0 {
                    disk.crash()
                } else {
                    disk.kill()
                }
                let gone = rng.below(cores.max(cores_before) as u64);
                if crash_after % 4 > 1 {
                    disk.lose(&format!("journal/{gone}"), None);
                }
                match recover(&mut disk, &options(1 + rng.below(3) as u16, seed)) {
                    Ok(found) => {
                        let what = format!("seed {seed}, {cores_before} to {cores}, crash after {crash_after}");
                        assert!(!found.report.has_damage(), "{what}: {:?}", found.report);
                        assert_eq!(check(&disk, &found, &mut model, false), 0, "{what}");
                        harmless += (crash_after % 4 > 1) as u32;
                    }
                    Err(error) => {
                        assert!(matches!(error, RecoverError::LostJournals { .. }) && crash_after % 4 > 1, "{error}");
                        refused += 1;
                    }
                }
                if ended {
                    break;
                }
            }
        }
    }
    assert!(refused > 50 && harmless > 20, "{refused} {harmless}");
}

#[test]
fn a_node_meta_of_an_older_build_names_no_journals() {
    let (mut disk, _, _, _) = grown(1);
    for path in ["node.meta.0", "node.meta.1"] {
        let meta = crate::format::meta::NodeMeta::decode(disk.contents_of(path)).expect("both hold");
        assert_eq!(meta.journals, 2);
        let older = crate::format::meta::NodeMeta { journals: 0, ..meta };
        disk.scribble(path, 0, &older.encode());
    }
    disk.lose("journal/1", None);
    assert!(recover(&mut disk, &options(2, 1)).is_ok(), "not known, so not checked");
    disk.lose("journal/1", None);
    assert!(recover(&mut disk, &options(2, 1)).is_err(), "known from the first startup on");
}
