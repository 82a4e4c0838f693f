//! Freezes the bytes on disk: a hash over many generated encodings of each structure, and small binary fixtures that must
//! still decode. A drift fails here; a wanted change of a format needs a new version and new figures.
//!
//! `GOLDEN_WRITE=1 cargo test --test golden` writes the fixtures anew.

use ringmq::base::*;
use ringmq::format::batch::{Batch, BatchBuilder, CopyOf, Stamp};
use ringmq::format::cursor::{CursorImage, Handed, Interval};
use ringmq::format::files::{Bad, COMMIT_MAGIC, CommitRecord, FileHeader, NodeHeader, RawPosition, SEGMENT_MAGIC};
use ringmq::format::journal::*;
use ringmq::format::meta::{NodeMeta, TopicMeta};
use ringmq::format::producer::{BatchPlace, Producer};
use ringmq::format::segment_table::{SegmentTable, TABLE_AT};
use ringmq::format::snapshot::Snapshot;
use ringmq::format::{files::SegmentMeta, journal::JournalIdentity, snapshot::Doubt};
use ringmq::format::{
    producer::Sequence,
    tail::{EpochEnd, Tail},
};
use ringmq::journal::replay::{parse_slot, slot_block};
use ringmq::journal::ring::{Record, Ring};
use ringmq::log::memory::BatchMemory;
use ringmq::log::recovery::scan::commit_record;
use ringmq::log::{BodyLimits, NativeBatch};
use std::path::PathBuf;
use zerocopy::{FromBytes, IntoBytes};

fn position(rng: &mut Rng) -> Position {
    Position { offset: rng.below(1 << 50) as i64, count: rng.below(1 << 40) as i64, log_id: LogId(1 + rng.below(1 << 53)) }
}

fn body(rng: &mut Rng, max: u64) -> Vec<u8> {
    (0..rng.below(max)).map(|_| rng.next_u64() as u8).collect()
}

fn batch(rng: &mut Rng) -> Batch {
    let (topic_id, partition) = (TopicId(rng.bytes_16()), PartitionId(rng.below(1024) as u16));
    let (from, epoch, prev_crc) = (position(rng), Epoch(rng.next_u64()), rng.next_u64() as u32);
    if rng.chance(0.2) {
        let n = 1 + rng.below(50);
        let to = Position {
            offset: from.offset + 128 + rng.below(9999) as i64,
            count: from.count + n as i64,
            log_id: LogId(from.log_id.0 + n),
        };
        return Batch::lost(topic_id, partition, epoch, from, to, prev_crc).expect("there is room");
    }
    let (mut builder, now) = (BatchBuilder::default(), rng.below(1 << 62) as i64);
    for _ in 0..1 + rng.below(5) {
        builder.push(now + rng.below(1 << 30) as i64, &body(rng, 200));
    }
    builder.seal(Stamp { topic_id, partition, epoch, at: from, prev_crc })
}

/// A batch with messages that have a due time.
fn due_batch(rng: &mut Rng) -> Batch {
    let (mut builder, now) = (BatchBuilder::default(), rng.below(1 << 62) as i64);
    for n in 0..2 + rng.below(5) {
        let due = (n == 0 || rng.chance(0.5)).then(|| now + rng.below(1 << 50) as i64);
        builder.push_due(now + rng.below(1 << 30) as i64, due, &body(rng, 200));
    }
    let (topic_id, partition) = (TopicId(rng.bytes_16()), PartitionId(rng.below(1024) as u16));
    let (at, epoch, prev_crc) = (position(rng), Epoch(rng.next_u64()), rng.next_u64() as u32);
    builder.seal(Stamp { topic_id, partition, epoch, at, prev_crc })
}

fn cursor(rng: &mut Rng) -> CursorImage {
    let confirmed = position(rng);
    let mut at = confirmed.log_id.0;
    let intervals = (0..rng.below(4)).map(|_| {
        at += 2 + rng.below(9);
        let start = LogId(at);
        at += 1 + rng.below(9);
        Interval { start, end: Position { log_id: LogId(at), ..position(rng) } }
    });
    let intervals = intervals.collect();
    let name = ChannelName::new(&"channel-of-some-length"[..1 + rng.below(21) as usize]).expect("it is valid");
    let (paused, ordered) = (rng.chance(0.5), rng.chance(0.5));
    let (epoch, generation) = (Epoch(rng.next_u64()), rng.next_u64());
    CursorImage { name, paused, ordered, first: false, epoch, generation, confirmed, intervals, handed: vec![] }
}

/// The topic's first channel.
fn first_cursor(rng: &mut Rng) -> Vec<u8> {
    let mut bytes = vec![];
    CursorImage { first: true, ..cursor(rng) }.encode(&mut bytes);
    bytes
}

/// A cursor of a channel that had delivered some before a clean stop.
fn stopped_cursor(rng: &mut Rng) -> Vec<u8> {
    let mut at = 1;
    let handed = (0..1 + rng.below(5)).map(|_| {
        let (start, num) = (at + rng.below(9), 1 + rng.below(9) as u32);
        at = start + num as u64;
        let due_unix_ns = if rng.chance(0.5) { rng.below(1 << 60) as i64 } else { 0 };
        Handed { start: LogId(start), num, attempts: rng.next_u64() as u16, due_unix_ns, wait_s: (due_unix_ns % 65_536) as u16 }
    });
    let handed = handed.collect();
    let mut bytes = vec![];
    CursorImage { handed, ..cursor(rng) }.encode(&mut bytes);
    bytes
}

/// Copies of messages for one channel each.
fn batch_of_copies(rng: &mut Rng) -> Batch {
    let (mut builder, now) = (BatchBuilder::default(), rng.below(1 << 60) as i64);
    for _ in 0..1 + rng.below(5) {
        let channel = &"channel-of-some-length"[..1 + rng.below(21) as usize];
        let (log_id, unix_ns) = (LogId(1 + rng.below(1 << 53)), rng.below(1 << 60) as i64);
        let copy_of = CopyOf { log_id, unix_ns, attempts: rng.next_u64() as u16, channel };
        builder.push_copy(now, now + rng.below(1 << 40) as i64, copy_of, &body(rng, 200));
    }
    let (topic_id, partition) = (TopicId(rng.bytes_16()), PartitionId(rng.below(1024) as u16));
    let (at, epoch, prev_crc) = (position(rng), Epoch(rng.next_u64()), rng.next_u64() as u32);
    builder.seal(Stamp { topic_id, partition, epoch, at, prev_crc })
}

fn snapshot(rng: &mut Rng) -> Snapshot {
    let start = position(rng);
    let end = Position { offset: start.offset + rng.below(1 << 30) as i64, ..position(rng) };
    Snapshot {
        topic_id: TopicId(rng.bytes_16()),
        partition: PartitionId(rng.below(1024) as u16),
        sequence: rng.next_u64(),
        applied: rng.next_u64(),
        epoch: Epoch(rng.next_u64()),
        start,
        end,
        committed: end,
        collect_start: position(rng),
        chain_crc: rng.next_u64() as u32,
        segment_base: rng.below(1 << 50) as i64,
        doubt: if rng.chance(0.5) { Doubt::Lost } else { Doubt::None },
        unix_ns: 0,
        channels: (0..rng.below(4)).map(|_| cursor(rng)).collect(),
        producers: vec![],
        promised: Epoch(0),
        epochs: vec![],
        vouched: None,
        channels_lost: 0,
    }
}

/// Snapshot of one replica of several: its promised epoch, its epochs, and the begin of its damage.
fn snapshot_with_epochs(rng: &mut Rng) -> Snapshot {
    let start = Position { offset: 0, ..position(rng) };
    let (mut offset, mut epoch) = (0, 0);
    let epochs = (0..rng.below(5)).map(|_| {
        offset += 128 + rng.below(9999) as i64;
        epoch += 1 + rng.below(1 << 40);
        EpochEnd { epoch: Epoch(epoch), end: Position { offset, ..position(rng) }, chain_crc: rng.next_u64() as u32 }
    });
    let epochs: Vec<EpochEnd> = epochs.collect();
    let end = Position { offset: offset + 200 + rng.below(1 << 30) as i64, ..position(rng) };
    let (at, chain_crc) = (Position { offset: rng.below(200) as i64, ..position(rng) }, rng.next_u64() as u32);
    let vouched = rng.chance(0.3).then_some(Tail { at, chain_crc, epoch: Epoch(epoch) });
    let (epoch, promised) = (Epoch(epoch + 1), Epoch(epoch + rng.below(99)));
    Snapshot { start, end, committed: position(rng), epoch, promised, epochs, vouched, ..snapshot(rng) }
}

/// Snapshot with idempotent producers, in the order of their last batches.
fn snapshot_with_producers(rng: &mut Rng) -> Snapshot {
    let mut offset = 0;
    let producers = (0..1 + rng.below(4)).map(|i| {
        let places: Vec<BatchPlace> = (0..1 + rng.below(5))
            .map(|_| {
                offset += 128 + rng.below(9999) as i64;
                BatchPlace { at: Position { offset, ..position(rng) }, num: 1 + rng.below(1000) as u32 }
            })
            .collect();
        let id = ProducerId::new(rng.next_u64() | 1).expect("it is odd");
        Producer::new(id, 5000 + rng.below(1 << 40), i as i64, &places).expect("it can be")
    });
    let producers = producers.collect();
    let start = Position { offset: 0, ..position(rng) };
    let end = Position { offset: offset + 1 + rng.below(1 << 30) as i64, ..position(rng) };
    Snapshot { start, end, committed: end, unix_ns: rng.below(1 << 62) as i64, producers, ..snapshot(rng) }
}

/// A batch as a native client sent it, in the name of an idempotent producer.
fn native_batch(rng: &mut Rng) -> Batch {
    let mut builder = BatchBuilder::default();
    for _ in 0..1 + rng.below(5) {
        builder.push(0, &body(rng, 200));
    }
    let num = builder.num();
    let (topic_id, partition) = (TopicId(rng.bytes_16()), PartitionId(rng.below(1024) as u16));
    let stamp = Stamp { topic_id, partition, epoch: Epoch(rng.next_u64()), at: position(rng), prev_crc: rng.next_u64() as u32 };
    let bytes = builder.seal(stamp).bytes.to_vec();
    let crc = u32::from_le_bytes(bytes[100..104].try_into().expect("four bytes"));
    let sequence = Sequence { producer: ProducerId::new(rng.next_u64() | 1).expect("it is odd"), first: rng.below(1 << 60) };
    let limits = BodyLimits { message_bytes_max: 1000, body_bytes_max: 10_000 };
    let native = NativeBatch::verify(bytes, num, crc, Some(sequence), &limits).expect("a builder's body holds");
    native.seal(stamp, rng.below(1 << 62) as i64)
}

fn topic(rng: &mut Rng) -> TopicMeta {
    let name = TopicName::new(&"a.topic_name-0"[..1 + rng.below(13) as usize]).expect("it is valid");
    let info = TopicInfo { name, id: TopicId(rng.bytes_16()), partitions: 1 + rng.below(1024) as u16 };
    TopicMeta { info, created_unix_ns: rng.below(1 << 62) as i64 }
}

fn checkpoint(rng: &mut Rng) -> Vec<u8> {
    slot_block(Checkpoint {
        magic: CHECKPOINT_MAGIC,
        crc: 0.into(),
        version: 1.into(),
        core: (rng.below(64) as u16).into(),
        reserved_32: 0.into(),
        journal_id: rng.bytes_16(),
        generation: rng.next_u64().into(),
        slot_sequence: rng.next_u64().into(),
        position: (RING_START + 4096 * rng.below(16)).into(),
        lap: rng.next_u64().into(),
        sequence: rng.next_u64().into(),
        durable: rng.next_u64().into(),
        file_len: (1u64 << 20).into(),
        limit: 0.into(),
        reserved: [0; 32],
    })
}

/// Two writes, as the ring packs them: the second repeats the first one's directory.
fn journal(rng: &mut Rng) -> Vec<u8> {
    let identity =
        JournalIdentity { journal_id: rng.bytes_16(), generation: 1 + rng.below(99), file_len: 1 << 20, slot_sequence: 2 };
    let mut ring = Ring::new(CoreId(rng.below(64) as u16), identity);
    let mut out = vec![];
    for _ in 0..2 {
        for slot in 0..1 + rng.below(3) as u32 {
            let (topic_id, sequence, epoch) = (TopicId(rng.bytes_16()), rng.next_u64(), rng.below(9));
            let (kind, payload) = match rng.below(4) {
                0 => (RecordKind::Batch, batch(rng).bytes.to_vec()),
                1 => (RecordKind::DirectBatch, batch(rng).bytes[..128].to_vec()),
                2 => (RecordKind::TopicCreate, topic(rng).header().as_bytes().to_vec()),
                _ => {
                    let mut payload = vec![];
                    cursor(rng).encode(&mut payload);
                    ([RecordKind::Cursor, RecordKind::Finished, RecordKind::ChannelDelete][rng.below(3) as usize], payload)
                }
            };
            let header = RecordHeader::new(kind, topic_id, slot as u16, sequence, epoch, &payload);
            ring.queue(Record { header, payload: payload.into(), slot, end: position(rng), note: () });
        }
        if let Some((sequence, DiskOp::Write { parts, .. })) = ring.pack(|_, _| {}) {
            out.extend(parts.concat());
            ring.wrote(sequence);
            let notes = ring.next_durable().unwrap();
            ring.recycle(notes);
        }
    }
    out
}

/// The records of a partition with several replicas.
fn replica_records(rng: &mut Rng) -> Vec<u8> {
    let identity = JournalIdentity { journal_id: rng.bytes_16(), generation: 1, file_len: 1 << 20, slot_sequence: 2 };
    let mut ring = Ring::new(CoreId(3), identity);
    for kind in [RecordKind::Epoch, RecordKind::Truncate, RecordKind::Committed, RecordKind::Restart] {
        let mut payload = zerocopy::IntoBytes::as_bytes(&RawPosition::from(position(rng))).to_vec();
        match kind {
            RecordKind::Epoch => payload = rng.next_u64().to_le_bytes().to_vec(),
            RecordKind::Truncate | RecordKind::Restart => {
                payload.extend_from_slice(&(rng.next_u64() & 0xffff_ffff).to_le_bytes())
            }
            _ => {}
        }
        let (topic_id, sequence, epoch) = (TopicId(rng.bytes_16()), rng.next_u64(), rng.below(9));
        let header = RecordHeader::new(kind, topic_id, 7, sequence, epoch, &payload);
        ring.queue(Record { header, payload: payload.into(), slot: 0, end: position(rng), note: () });
    }
    let Some((_, DiskOp::Write { parts, .. })) = ring.pack(|_, _| {}) else { panic!("records are queued") };
    parts.concat()
}

/// A replica becomes suspect, and is so no longer.
fn doubt_records(rng: &mut Rng) -> Vec<u8> {
    let identity = JournalIdentity { journal_id: rng.bytes_16(), generation: 1, file_len: 1 << 20, slot_sequence: 2 };
    let mut ring = Ring::new(CoreId(3), identity);
    for is_suspect in [1u64, 0] {
        let payload = is_suspect.to_le_bytes().to_vec();
        let (topic_id, sequence, epoch) = (TopicId(rng.bytes_16()), rng.next_u64(), rng.below(9));
        let header = RecordHeader::new(RecordKind::Doubt, topic_id, 7, sequence, epoch, &payload);
        ring.queue(Record { header, payload: payload.into(), slot: 0, end: position(rng), note: () });
    }
    let Some((_, DiskOp::Write { parts, .. })) = ring.pack(|_, _| {}) else { panic!("records are queued") };
    parts.concat()
}

/// The replica of a partition moves to another node.
fn departure(rng: &mut Rng) -> Vec<u8> {
    let identity = JournalIdentity { journal_id: rng.bytes_16(), generation: 1, file_len: 1 << 20, slot_sequence: 2 };
    let mut ring = Ring::new(CoreId(3), identity);
    let (topic_id, sequence, epoch) = (TopicId(rng.bytes_16()), rng.next_u64(), rng.below(9));
    let header = RecordHeader::new(RecordKind::PartitionDelete, topic_id, 7, sequence, epoch, &[]);
    ring.queue(Record { header, payload: vec![].into(), slot: 0, end: position(rng), note: () });
    let Some((_, DiskOp::Write { parts, .. })) = ring.pack(|_, _| {}) else { panic!("a record is queued") };
    parts.concat()
}

fn files(rng: &mut Rng) -> Vec<u8> {
    let dir =
        PartitionDir { topic: TopicName::new("t").expect("valid"), topic_id: TopicId(rng.bytes_16()), partition: PartitionId(3) };
    let mut out = vec![];
    for magic in [SEGMENT_MAGIC, COMMIT_MAGIC] {
        let (base, epoch, now) = (position(rng), Epoch(rng.next_u64()), rng.below(1 << 62) as i64);
        let header = FileHeader::new(magic, dir.topic_id, dir.partition, base, rng.next_u64() as u32, epoch, now);
        // As it was before there were tables, and is where there is nothing to name.
        out.extend(header.block(&SegmentTable::default()));
    }
    out.extend_from_slice(commit_record(&batch(rng).header, &dir).as_bytes());
    out
}

/// The header of a segment that has others before it: of these as many as fit are named.
fn header_with_table(rng: &mut Rng) -> (FileHeader, SegmentTable) {
    let mut offset = 0;
    let before = (0..1 + rng.below(200)).map(|_| {
        offset += 1 + rng.below(1 << 40) as i64;
        SegmentMeta { base: Position { offset, ..position(rng) }, prev_crc: rng.next_u64() as u32 }
    });
    let before: Vec<SegmentMeta> = before.collect();
    let base = Position { offset: offset + 1 + rng.below(1 << 40) as i64, ..position(rng) };
    let (topic_id, partition, chain) = (TopicId(rng.bytes_16()), PartitionId(rng.below(1024) as u16), rng.next_u64() as u32);
    let (epoch, now) = (Epoch(rng.next_u64()), rng.below(1 << 62) as i64);
    let magic = if rng.chance(0.5) { SEGMENT_MAGIC } else { COMMIT_MAGIC };
    (FileHeader::new(magic, topic_id, partition, base, chain, epoch, now), SegmentTable::of(before.into_iter()))
}

fn block_with_table(rng: &mut Rng) -> Vec<u8> {
    let (header, table) = header_with_table(rng);
    header.block(&table)
}

fn node(rng: &mut Rng) -> Vec<u8> {
    NodeMeta { node_id: rng.bytes_16(), sequence: rng.next_u64(), generation: rng.next_u64(), journals: 0, cluster_version: 0 }
        .encode()
}

fn node_with_journals(rng: &mut Rng) -> Vec<u8> {
    let (node_id, sequence, generation) = (rng.bytes_16(), rng.next_u64(), rng.next_u64());
    let (journals, cluster_version) = (rng.below(1025) as u16, rng.next_u64());
    NodeMeta { node_id, sequence, generation, journals, cluster_version }.encode()
}

/// FNV-1a over 300 encodings, each with its length.
fn hash(seed: u64, mut encode: impl FnMut(&mut Rng) -> Vec<u8>) -> u64 {
    let (mut rng, mut h) = (Rng::new(seed), 0xcbf2_9ce4_8422_2325u64);
    for _ in 0..300 {
        let bytes = encode(&mut rng);
        for b in (bytes.len() as u64).to_le_bytes().into_iter().chain(bytes) {
            h = (h ^ b as u64).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
    h
}

#[test]
fn encodings_do_not_drift() {
    let found = [
        ("batch", hash(1, |r| batch(r).bytes.to_vec())),
        ("snapshot", hash(2, |r| snapshot(r).encode())),
        ("first cursor", hash(10, first_cursor)),
        ("topic.meta", hash(3, |r| topic(r).encode())),
        ("node.meta", hash(4, node)),
        ("node.meta, journals", hash(8, node_with_journals)),
        ("checkpoint", hash(5, checkpoint)),
        ("journal", hash(6, journal)),
        ("files", hash(7, files)),
        ("snapshot with producers", hash(8, |r| snapshot_with_producers(r).encode())),
        ("native batch", hash(9, |r| native_batch(r).bytes.to_vec())),
        ("snapshot with epochs", hash(11, |r| snapshot_with_epochs(r).encode())),
        ("replica records", hash(12, replica_records)),
        ("header with table", hash(13, block_with_table)),
        ("doubt records", hash(14, doubt_records)),
        ("batch with due times", hash(15, |r| due_batch(r).bytes.to_vec())),
        ("batch of copies", hash(16, |r| batch_of_copies(r).bytes.to_vec())),
        ("cursor after a stop", hash(17, stopped_cursor)),
        ("departure", hash(18, departure)),
    ];
    let frozen = [
        ("batch", 0x4120_8241_3c56_8ff3),
        ("snapshot", 0xba4d_a6ec_2c09_a65d),
        ("first cursor", 0xa7dd_af67_3c2b_16b9),
        ("topic.meta", 0x068e_6b24_b4ab_07a5),
        ("node.meta", 0x97d7_346c_8504_7568),
        ("node.meta, journals", 0x77a9_2857_17ea_9056),
        ("checkpoint", 0x6916_a410_5a7b_cda2),
        ("journal", 0xfb26_82b2_16fc_cef5),
        ("files", 0x5412_2038_c07e_9c88),
        ("snapshot with producers", 0xb305_d327_15d0_f54d),
        ("native batch", 0x3e57_39ad_310f_73eb),
        ("snapshot with epochs", 0xcde8_f358_84eb_2a74),
        ("replica records", 0xd21e_e024_6bf8_010b),
        ("header with table", 0xbe42_7176_c790_8ffb),
        ("doubt records", 0x3e48_ab57_900c_4f0a),
        ("batch with due times", 0x5372_f213_7b0b_ae7b),
        ("batch of copies", 0x0ac5_e49c_bc1a_e168),
        ("cursor after a stop", 0xbf3f_1b5c_ef28_6d5d),
        ("departure", 0x3769_82cf_8afb_8a6b),
    ];
    assert!(found == frozen, "bytes on disk have changed:\n{found:#018x?}\nfrozen:\n{frozen:#018x?}");
}

/// The fixture's bytes, and that the encoder still makes them.
fn fixture(name: &str, encoded: &[u8]) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var_os("GOLDEN_WRITE").is_some() {
        std::fs::write(&path, encoded).expect("the fixture can be written");
    }
    let bytes = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    assert!(bytes == encoded, "{name}: the encoder makes other bytes than the fixture");
    bytes
}

#[test]
fn fixtures_still_decode() {
    let mut rng = Rng::new(99);
    let b = std::iter::repeat_with(|| batch(&mut rng)).find(|b| !b.header.is_lost()).expect("most are whole");
    let bytes = fixture("batch.bin", &b.bytes);
    let (topic_id, partition) = (TopicId(b.header.topic_id), PartitionId(b.header.partition.get()));
    assert_eq!(Batch::parse(&bytes.into(), topic_id, partition).expect("it holds").header, b.header);

    let b = due_batch(&mut Rng::new(98));
    let bytes = fixture("batch-due.bin", &b.bytes);
    let (topic_id, partition) = (TopicId(b.header.topic_id), PartitionId(b.header.partition.get()));
    let found = Batch::parse(&bytes.into(), topic_id, partition).expect("it holds");
    assert_eq!((found.header, found.header.has_due()), (b.header, true));
    assert!(found.messages().eq(b.messages()));

    let s = std::iter::repeat_with(|| snapshot(&mut rng)).find(|s| s.channels.len() > 1).expect("some have channels");
    let bytes = fixture("snapshot.bin", &s.encode()[..s.encoded_len()]);
    assert_eq!(Snapshot::decode(&bytes, s.topic_id, s.partition).expect("it holds"), s);

    // Of a generator of its own, so that the fixtures of before stay as they are.
    let s = snapshot_with_producers(&mut Rng::new(100));
    let bytes = fixture("snapshot-producers.bin", &s.encode()[..s.encoded_len()]);
    assert_eq!(Snapshot::decode(&bytes, s.topic_id, s.partition).expect("it holds"), s);

    let mut of_replicas = Rng::new(101);
    let wanted = |s: &Snapshot| s.vouched.is_some() && s.epochs.len() > 1;
    let s = std::iter::repeat_with(|| snapshot_with_epochs(&mut of_replicas)).find(wanted).expect("some have all");
    let bytes = fixture("snapshot-epochs.bin", &s.encode()[..s.encoded_len()]);
    assert_eq!(Snapshot::decode(&bytes, s.topic_id, s.partition).expect("it holds"), s);

    files_still_decode();

    let bytes = fixture("journal-replica.bin", &replica_records(&mut Rng::new(102)));
    let journal_id: [u8; 16] = bytes[16..32].try_into().expect("16 bytes");
    let head = WriteHeader::parse(&bytes, &journal_id, CoreId(3), bytes.len()).expect("it holds");
    let kinds: Vec<u16> = Records::new(&head, &bytes).map(|r| r.expect("it holds").0 as u16).collect();
    assert_eq!(kinds, [11, 6, 12, 13]);

    let bytes = fixture("journal-doubt.bin", &doubt_records(&mut Rng::new(103)));
    let journal_id: [u8; 16] = bytes[16..32].try_into().expect("16 bytes");
    let head = WriteHeader::parse(&bytes, &journal_id, CoreId(3), bytes.len()).expect("it holds");
    let kinds: Vec<u16> = Records::new(&head, &bytes).map(|r| r.expect("it holds").0 as u16).collect();
    assert_eq!(kinds, [16, 16]);

    let t = topic(&mut rng);
    let bytes = fixture("topic.meta.bin", t.header().as_bytes());
    assert_eq!(TopicMeta::decode(&bytes).expect("it holds"), t);

    let bytes = fixture("journal.bin", &journal(&mut rng));
    let journal_id: [u8; 16] = bytes[16..32].try_into().expect("16 bytes");
    let core = CoreId(u16::from_le_bytes([bytes[10], bytes[11]]));
    let head = WriteHeader::parse(&bytes, &journal_id, core, bytes.len()).expect("it holds");
    assert_eq!(Records::new(&head, &bytes).flatten().count(), head.header.records.get() as usize);
    let second = &bytes[head.header.len.get() as usize..];
    assert_eq!(WriteHeader::parse(second, &journal_id, core, second.len()).expect("it holds").previous, head.directory);
}

/// Structures at fixed places of files still decode: a segment's header, a record of a commit log, a slot of node.meta, one of a journal.
fn files_still_decode() {
    let mut rng = Rng::new(103);
    let (topic_id, partition) = (TopicId(rng.bytes_16()), PartitionId(rng.below(1024) as u16));
    let (base, chain, epoch) = (position(&mut rng), rng.next_u64() as u32, Epoch(rng.next_u64()));
    let header = FileHeader::new(SEGMENT_MAGIC, topic_id, partition, base, chain, epoch, rng.below(1 << 62) as i64);
    let bytes = fixture("segment-header.bin", header.as_bytes());
    let found = FileHeader::parse(&bytes, SEGMENT_MAGIC, topic_id, partition, base.offset).expect("it holds");
    assert_eq!(found.as_bytes(), header.as_bytes());
    // A segment without a table, as builds before it wrote all.
    let mut block = bytes.clone();
    block.resize(BLOCK, 0);
    assert_eq!(block, header.block(&SegmentTable::default()));
    assert_eq!(SegmentTable::parse(&block, topic_id, partition, base.offset), Err(Bad::Zero));

    let mut of_tables = Rng::new(104);
    let few = |(h, t): &(FileHeader, SegmentTable)| h.magic == SEGMENT_MAGIC && (3..9).contains(&t.segments().len());
    let (header, table) = std::iter::repeat_with(|| header_with_table(&mut of_tables)).find(few).expect("some have few");
    let (topic_id, partition, base) =
        (TopicId(header.topic_id), PartitionId(header.partition.get()), Position::from(header.base));
    let bytes = fixture("segment-table.bin", &header.block(&table));
    let found = FileHeader::parse(&bytes, SEGMENT_MAGIC, topic_id, partition, base.offset).expect("it holds");
    assert_eq!(found.as_bytes(), header.as_bytes());
    assert_eq!(SegmentTable::parse(&bytes, topic_id, partition, base.offset).as_ref(), Ok(&table));
    // A build before the table reads the header and nothing else of the block.
    assert!(bytes[..TABLE_AT] == *header.as_bytes());

    let b = std::iter::repeat_with(|| batch(&mut rng)).find(|b| !b.header.is_lost()).expect("most are whole");
    let (topic_id, partition) = (TopicId(b.header.topic_id), PartitionId(b.header.partition.get()));
    let dir = PartitionDir { topic: TopicName::new("t").expect("valid"), topic_id, partition };
    let record = commit_record(&b.header, &dir);
    let bytes = fixture("commit-record.bin", record.as_bytes());
    let found = CommitRecord::read_from_bytes(&bytes).expect("it is as long as a record");
    assert!(found.is_valid(topic_id, partition) && !found.is_valid(topic_id, PartitionId(partition.0 ^ 1)));
    assert_eq!(found.as_bytes(), record.as_bytes());

    let meta = NodeMeta {
        node_id: rng.bytes_16(),
        sequence: rng.next_u64(),
        generation: rng.next_u64(),
        journals: 12,
        cluster_version: 77,
    };
    let bytes = fixture("node.meta.bin", &meta.encode()[..size_of::<NodeHeader>()]);
    assert_eq!(NodeMeta::decode(&bytes).expect("it holds"), meta);

    let mut slots = std::iter::repeat_with(|| Checkpoint::read_from_prefix(&checkpoint(&mut rng)).expect("it is that long").0);
    let slot = slots.find(|c| c.durable.get() >= c.sequence.get()).expect("half of them can be");
    let bytes = fixture("checkpoint.bin", slot.as_bytes());
    let found = parse_slot(&bytes, slot.core.get(), slot.slot_sequence.get() % 2, 1 << 20).expect("it holds");
    assert_eq!(found.as_bytes(), slot.as_bytes());
}

/// Small batches of a core stand behind each other in memory; that changes nothing of their bytes, then or later.
#[test]
fn batches_that_share_memory_are_as_those_that_do_not() {
    let (mut alone, mut shared, mut memory) = (BatchBuilder::default(), BatchBuilder::default(), BatchMemory::default());
    let stamp =
        || Stamp { topic_id: TopicId([7; 16]), partition: PartitionId(1), epoch: Epoch(1), at: Position::START, prev_crc: 0 };
    let mut kept = vec![];
    for n in 0..400usize {
        // around the length from which on a batch has memory of its own, and around what a piece has left
        let len = [0, 100, 3000, 8051, 8052, 8053, 20_000][n % 7];
        for builder in [&mut alone, &mut shared] {
            builder.reserve(len);
            builder.push(5, &vec![n as u8; len]);
        }
        kept.push((alone.seal(stamp()).bytes, shared.seal_in(stamp(), |bytes| memory.keep(bytes)).bytes));
    }
    assert!(kept.iter().all(|(alone, shared)| alone == shared));
}
