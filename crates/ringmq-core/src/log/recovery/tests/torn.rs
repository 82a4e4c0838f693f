//! Value of a journal's newest writes when one of them does not hold: torn, or lost.

use super::*;
use crate::format::journal::{WRITE_MAGIC, WriteHeader};
use crate::format::snapshot::Doubt;
use crate::format::snapshot::Snapshot;
use zerocopy::{FromBytes, IntoBytes};

/// Batches of two blocks, each with a journal write of its own: where they end, and where the writes stand.
fn written(seed: u64, writes: usize) -> (Engine, Vec<i64>, Vec<u64>) {
    let mut disk = SimDisk::new(seed);
    let first = recover(&mut disk, &options(1, seed)).expect("an empty disk recovers");
    let mut engine = Engine::new(disk, first, SEGMENT_BYTES);
    let info = TopicInfo { name: TopicName::new("t").expect("it is valid"), id: TopicId([7; 16]), partitions: 1 };
    engine.create_topic(info).expect("no fault was asked for");
    engine.admit(0, 40_000).expect("no fault was asked for");
    let mut ends = vec![];
    for n in 0..writes as u8 {
        let batch = engine.make_batch(0, &[vec![n; 5000]]);
        let fact = engine.batch_fact(0, &batch);
        engine.write(0, &[fact]).expect("no fault was asked for");
        ends.push(batch.header.end().offset);
    }
    let places = engine.journals[0].writes.iter().map(|w| w.1).collect::<Vec<u64>>();
    let behind = places.len() - writes;
    (engine, ends, places[behind..].to_vec())
}

/// Makes a write say that so many fewer were durable when it was issued, as one does that goes beside others.
fn issue_beside(disk: &mut SimDisk, at: u64, fewer: u64) {
    let bytes = disk.contents_of("journal/0");
    let (mut head, _) = WriteHeader::read_from_prefix(&bytes[at as usize..]).expect("it is there");
    assert_eq!(head.magic, WRITE_MAGIC);
    let len = WriteHeader::head_len(head.directory.get() as usize, head.previous.get() as usize);
    let mut whole = bytes[at as usize..at as usize + len].to_vec();
    head.durable = (head.durable.get() - fewer).into();
    whole[..size_of::<WriteHeader>()].copy_from_slice(head.as_bytes());
    let crc = crc32fast::hash(&whole[8..]);
    whole[4..8].copy_from_slice(&crc.to_le_bytes());
    disk.scribble("journal/0", at, &whole);
}

/// Blocks of a write that holds only a channel: the facts, and their copy.
#[test]
fn a_channel_outlives_either_block_of_the_write_that_says_so() {
    for (is_last, lost) in [(false, 0), (true, 0), (false, 1), (true, 1)] {
        for is_zeros in [false, true] {
            let (mut engine, ..) = written(1, 2);
            let at = engine.journals[0].position;
            let facts = engine.confirm(0, "late", &[])[..1].to_vec();
            engine.write(0, &facts).expect("no fault was asked for");
            if !is_last {
                let more = engine.confirm(0, "later", &[]);
                engine.write(0, &more).expect("no fault was asked for");
            }
            let mut disk = engine.disk;
            let block = if is_zeros { vec![0; BLOCK] } else { vec![0x5a; 100] };
            disk.scribble("journal/0", at + lost * BLOCK as u64, &block);
            let what = format!("last: {is_last}, block {lost}, zeros: {is_zeros}");
            let found = recover(&mut disk, &options(1, 3)).expect("it goes on");
            let p = &found.partitions[0];
            assert!(p.channels.iter().any(|c| c.name.as_str() == "late"), "{what}: {:?}", found.report);
            assert_eq!(p.damage.channels_lost(), 0, "{what}: {:?}", found.report);
            assert!(found.report.findings.iter().any(|f| f.file.to_string() == "journal/0"), "{what}");
            assert!(
                !found.report.has_damage() && !p.damage.doubt().is_suspect(),
                "{what}: it held nothing else: {:?}",
                found.report
            );
            let mut disk = disk.clone();
            drop(found);
            let again = recover(&mut disk, &options(1, 4)).expect("it is whole");
            assert!(again.partitions[0].channels.iter().any(|c| c.name.as_str() == "late"), "{what}: it stays");
        }
    }
}

/// The copy of a write that is torn tells of a truncation, and the batches that it left went with the write: nothing is missing.
#[test]
fn a_truncation_whose_write_is_torn_leaves_no_hole() {
    let (mut engine, ends, _) = written(1, 2);
    let id = engine.parts[0].dir.topic_id;
    let at = engine.journals[0].position;
    let batches = [1, 2].map(|n| engine.make_batch(0, &[vec![n; 3000]]));
    let mut facts: Vec<_> = batches.iter().map(|batch| engine.batch_fact(0, batch)).collect();
    let kept = &batches[0].header;
    let mut cut = crate::format::files::RawPosition::from(kept.end()).as_bytes().to_vec();
    cut.extend([kept.header_crc.get(), 0].map(u32::to_le_bytes).concat());
    facts.push((RecordKind::Truncate, Some(0), cut.into(), id));
    engine.write(0, &facts).expect("no fault was asked for");
    let mut disk = engine.disk;
    disk.scribble("journal/0", at, &[0; BLOCK]);
    let found = recover(&mut disk, &options(1, 3)).expect("it goes on");
    assert!(!found.report.has_damage(), "{:?}", found.report);
    assert_eq!(found.partitions[0].end.offset, ends[1]);
}

/// Loss of both blocks of a write that was complete once: a new channel begins at the oldest message.
#[test]
fn a_write_that_is_lost_with_its_copy_may_have_had_channels() {
    let (mut engine, ..) = written(1, 2);
    let at = engine.journals[0].position;
    for channel in ["late", "later"] {
        let facts = engine.confirm(0, channel, &[])[..1].to_vec();
        engine.write(0, &facts).expect("no fault was asked for");
    }
    let mut disk = engine.disk;
    disk.scribble("journal/0", at, &vec![0; 2 * BLOCK]);
    let found = recover(&mut disk, &options(1, 3)).expect("it goes on");
    assert!(found.partitions[0].damage.channels_lost() > 0 && found.report.has_damage(), "{:?}", found.report);
}

/// Recovers twice: found damage stays marked.
fn found(mut disk: SimDisk) -> (Doubt, i64, bool) {
    let first = recover(&mut disk, &options(1, 3)).expect("it goes on");
    let again = recover(&mut disk, &options(1, 4)).expect("it goes on");
    let (p, q) = (&first.partitions[0], &again.partitions[0]);
    assert_eq!((p.damage.doubt(), p.end), (q.damage.doubt(), q.end), "{:?}", first.report);
    let slot = Snapshot::file(&p.dir, q.snapshot_sequence).to_string();
    let kept = Snapshot::decode(disk.contents_of(&slot), p.dir.topic_id, p.dir.partition).expect("it holds");
    assert_eq!(kept.doubt, p.damage.doubt());
    (p.damage.doubt(), p.end.offset, first.report.has_damage())
}

#[test]
fn a_hole_that_nothing_says_was_complete_is_torn_and_any_other_one_a_loss() {
    let (engine, ends, places) = written(1, 4);
    let rotten = |disk: &mut SimDisk, write: usize| disk.scribble("journal/0", places[write] + 4096, &[0x5a; 512]);
    assert_eq!(found(engine.disk.clone()), (Doubt::None, ends[3], false));

    let mut disk = engine.disk.clone();
    rotten(&mut disk, 3);
    assert_eq!(found(disk), (Doubt::Torn, ends[2], false), "the last write, of which nothing more is known");

    let mut disk = engine.disk.clone();
    rotten(&mut disk, 2);
    assert_eq!(found(disk), (Doubt::Lost, ends[3], true), "the write behind it was issued when it was complete");

    let mut disk = engine.disk.clone();
    issue_beside(&mut disk, places[3], 1);
    rotten(&mut disk, 2);
    assert_eq!(found(disk), (Doubt::Torn, ends[1], false), "the write behind it was issued beside it");

    let mut disk = engine.disk.clone();
    issue_beside(&mut disk, places[2], 1);
    issue_beside(&mut disk, places[3], 1);
    rotten(&mut disk, 1);
    assert_eq!(found(disk), (Doubt::Lost, ends[3], true), "the one after the next was issued when it was complete");

    let mut disk = engine.disk.clone();
    rotten(&mut disk, 1);
    rotten(&mut disk, 3);
    assert_eq!(found(disk), (Doubt::Lost, ends[2], true), "a torn tail takes nothing back");
}
