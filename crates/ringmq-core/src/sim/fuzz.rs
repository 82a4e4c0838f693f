//! Entry points for fuzzers of what is read from disk: any bytes, no panic, and nothing believed that its bounds forbid.
//!
//! Each also tries the bytes again with their checksums made right, so that a fuzzer gets behind them. Driven by the
//! targets in `fuzz/` and, with random and mutated bytes, by `tests/fuzz.rs`.

use super::disk::SimDisk;
use crate::base::{BLOCK, CoreId, LogId, PartitionId, TopicId};
use crate::format::batch::{BATCH_BODY_MAX, BATCH_HEADER_LEN, BATCH_MAGIC, Batch, BatchHeader, Messages};
use crate::format::cursor::CursorImage;
use crate::format::files::{COMMIT_MAGIC, CommitRecord, FileHeader, SEGMENT_MAGIC, SNAPSHOT_MAGIC, SnapshotHeader};
use crate::format::journal::{FactsHeader, RECORD_HEADER_LEN, RecordHeader, Records, WRITE_MAGIC, WriteHeader};
use crate::format::meta::{NodeMeta, TopicMeta};
use crate::format::segment_table::{self, SegmentTable, TABLE_AT, TABLE_MAGIC, TABLE_MAX};
use crate::format::snapshot::{SNAPSHOT_LEN_MAX, Snapshot};
use crate::journal::replay::parse_slot;
use crate::log::native::{BodyLimits, verify_body};
use crate::log::recovery::{JOURNAL_BYTES_MIN, RecoverOptions, recover};
use bytes::Bytes;
use zerocopy::FromBytes;

fn seal(bytes: &mut [u8], magic: [u8; 4], end: usize) {
    if let Some(covered) = bytes.get(8..end) {
        let crc = crc32fast::hash(covered);
        bytes[..4].copy_from_slice(&magic);
        bytes[4..8].copy_from_slice(&crc.to_le_bytes());
    }
}

/// A batch, header and body.
pub fn batch(bytes: &[u8]) {
    let try_it = |bytes: &[u8]| {
        let Ok((h, _)) = BatchHeader::read_from_prefix(bytes) else { return };
        let (topic, partition) = (TopicId(h.topic_id), PartitionId(h.partition.get()));
        if let Ok(batch) = Batch::parse(&Bytes::copy_from_slice(bytes), topic, partition) {
            assert!(batch.header.end().offset > batch.header.start().offset);
            assert!(batch.header.body_len.get() as usize <= BATCH_BODY_MAX);
            let messages = batch.messages().map(|m| m.body.len() + m.ext.len()).sum::<usize>();
            assert!(batch.header.is_lost() || messages <= batch.bytes.len());
        }
    };
    try_it(bytes);
    let mut sealed = bytes.to_vec();
    if sealed.len() >= BATCH_HEADER_LEN {
        let body = sealed.len() - BATCH_HEADER_LEN;
        let crc = crc32fast::hash(&sealed[BATCH_HEADER_LEN..]);
        sealed[96..100].copy_from_slice(&(body as u32).to_le_bytes());
        sealed[100..104].copy_from_slice(&crc.to_le_bytes());
        sealed[108..110].copy_from_slice(&1u16.to_le_bytes());
        seal(&mut sealed, BATCH_MAGIC, BATCH_HEADER_LEN);
        try_it(&sealed);
    }
}

/// The body of a batch as a native client sends it. The first byte is how many messages it announces.
pub fn body(bytes: &[u8]) {
    let Some((&announced, body)) = bytes.split_first() else { return };
    let limits = BodyLimits { message_bytes_max: 1000, body_bytes_max: 5000 };
    let walk = || Messages::resume(body, LogId(1), 0);
    for num in [announced as u32, walk().count() as u32] {
        let Ok(info) = verify_body(body, num, crc32fast::hash(body), &limits) else { continue };
        let mut walked = walk();
        let found: Vec<usize> = walked.by_ref().map(|m| m.body.len()).collect();
        assert_eq!((found.len(), walked.rest_len()), (num as usize, 0), "what is stored can be read");
        assert!(found.iter().sum::<usize>() == info.message_bytes && body.len() <= limits.body_bytes_max);
    }
}

/// File headers and their tables, commit records, metas.
pub fn headers(bytes: &[u8]) {
    let try_it = |bytes: &[u8]| {
        if let Ok((h, _)) = FileHeader::read_from_prefix(bytes) {
            let (topic, partition) = (TopicId(h.topic_id), PartitionId(h.partition.get()));
            let _ = FileHeader::parse(bytes, SEGMENT_MAGIC, topic, partition, h.base.offset.get());
            let _ = FileHeader::parse(bytes, COMMIT_MAGIC, topic, partition, h.base.offset.get());
            table(bytes, topic, partition, h.base.offset.get());
        }
        if let Ok((r, _)) = CommitRecord::read_from_prefix(bytes) {
            let _ = r.is_valid(TopicId([1; 16]), PartitionId(1));
        }
        let _ = (NodeMeta::decode(bytes), TopicMeta::decode(bytes), parse_slot(bytes, 0, 0, 1 << 20));
    };
    try_it(bytes);
    for (magic, len) in [(SEGMENT_MAGIC, 96), (*b"RQT1", 192), (*b"RQN1", 64), (*b"RQK1", 128)] {
        let mut sealed = bytes.to_vec();
        if sealed.len() >= len {
            sealed[8..10].copy_from_slice(&1u16.to_le_bytes());
            seal(&mut sealed, magic, len);
            try_it(&sealed);
        }
    }
}

/// The table behind a file header, as it is and with a checksum and a length that hold.
fn table(bytes: &[u8], topic: TopicId, partition: PartitionId, base: i64) {
    let try_it = |bytes: &[u8]| {
        let Ok(table) = SegmentTable::parse(bytes, topic, partition, base) else { return };
        let segments = table.segments();
        assert!((1..=TABLE_MAX).contains(&segments.len()) && segments.iter().all(|m| m.base.offset < base && m.base.is_sane()));
        let mut again = vec![0; BLOCK];
        table.encode(&mut again, topic, partition, base);
        assert_eq!(SegmentTable::parse(&again, topic, partition, base).as_ref(), Ok(&table));
    };
    try_it(bytes);
    if bytes.len() >= BLOCK {
        let mut sealed = bytes[..BLOCK].to_vec();
        let space = &mut sealed[TABLE_AT..];
        let count = space[8] as u32 % (TABLE_MAX as u32 + 2);
        space[..4].copy_from_slice(&TABLE_MAGIC);
        space[8..12].copy_from_slice(&count.to_le_bytes());
        let crc = segment_table::crc_of(space, topic, partition, base);
        space[4..8].copy_from_slice(&crc.to_le_bytes());
        try_it(&sealed);
    }
}

/// Snapshots and cursors.
pub fn snapshot(bytes: &[u8]) {
    let try_it = |bytes: &[u8]| {
        if let Ok(len) = Snapshot::len_of(bytes) {
            assert!(len <= SNAPSHOT_LEN_MAX);
        }
        let Ok((h, _)) = SnapshotHeader::read_from_prefix(bytes) else { return };
        if let Ok(s) = Snapshot::decode(bytes, TopicId(h.topic_id), PartitionId(h.partition.get())) {
            assert_eq!(Snapshot::decode(&s.encode(), s.topic_id, s.partition).as_ref(), Ok(&s));
        }
    };
    try_it(bytes);
    if let Ok((cursor, taken)) = CursorImage::decode(bytes) {
        assert!(taken <= bytes.len() && cursor.encoded_len() == taken);
    }
    let mut sealed = bytes.to_vec();
    if sealed.len() >= size_of::<SnapshotHeader>() {
        let len = sealed.len();
        sealed[8..10].copy_from_slice(&1u16.to_le_bytes());
        sealed[12..16].copy_from_slice(&(len as u32).to_le_bytes());
        seal(&mut sealed, SNAPSHOT_MAGIC, len);
        try_it(&sealed);
    }
}

/// Decodes one journal write and its records.
pub fn journal_write(bytes: &[u8]) {
    let try_it = |bytes: &[u8]| {
        if let Ok(head) = FactsHeader::parse(bytes, bytes.len()) {
            Records::of_facts(&head, bytes).for_each(drop);
        }
        let Ok((h, _)) = WriteHeader::read_from_prefix(bytes) else { return };
        if let Ok(head) = WriteHeader::parse(bytes, &h.journal_id, CoreId(h.core.get()), bytes.len()) {
            assert!(head.records_at <= bytes.len());
            for (_, header, payload) in Records::new(&head, bytes).flatten() {
                assert_eq!(header.len.get() as usize, RECORD_HEADER_LEN + payload.len());
                let _ = CursorImage::decode(payload);
                let _ = TopicMeta::decode(payload);
            }
        }
    };
    try_it(bytes);
    let mut sealed = bytes.to_vec();
    if sealed.len() >= size_of::<WriteHeader>() + RECORD_HEADER_LEN {
        let (n, m) = (sealed[80] % 4, sealed[84] % 4);
        let len = sealed.len() - sealed.len() % BLOCK;
        sealed[8..10].copy_from_slice(&1u16.to_le_bytes());
        sealed[12..16].copy_from_slice(&(len as u32).to_le_bytes());
        sealed[80..88].copy_from_slice(&[n, 0, 0, 0, m, 0, 0, 0]);
        let head_len = WriteHeader::head_len(n as usize, m as usize);
        if let Some((record, _)) = sealed.get(head_len..).and_then(|r| RecordHeader::read_from_prefix(r).ok()) {
            let end = (head_len + record.len.get() as usize).min(sealed.len());
            let payload = sealed.get(head_len + RECORD_HEADER_LEN..end).unwrap_or(&[]);
            let crc = record.crc_of(payload);
            sealed[head_len..head_len + 4].copy_from_slice(&crc.to_le_bytes());
        }
        seal(&mut sealed, WRITE_MAGIC, head_len);
        try_it(&sealed);
    }
}

/// A whole data path whose journal and files hold these bytes. It recovers, or says which file it does not know.
pub fn data_path(bytes: &[u8]) {
    let mut disk = SimDisk::new(1);
    let options = RecoverOptions {
        cores: 1,
        journal_bytes: JOURNAL_BYTES_MIN,
        segment_bytes: 1 << 16,
        now_unix_ns: 1,
        producers: Default::default(),
        seed: 1,
        accept_lost_journal: 0,
        is_clustered: false,
    };
    let (which, bytes) = bytes.split_first().map_or((0, bytes), |(w, rest)| (*w, rest));
    let mut padded = bytes.to_vec();
    padded.resize(padded.len().next_multiple_of(BLOCK).max(BLOCK), 0);
    let paths =
        ["journal/0", "node.meta.0", "topics/t/topic.meta.0", "topics/t/0/state.0", "topics/t/0/00000000000000000000.segment"];
    for (i, path) in paths.iter().enumerate() {
        if which & (1 << i) != 0 {
            disk.scribble(path, 0, &padded);
        }
    }
    for _ in 0..2 {
        let _ = recover(&mut disk, &options);
    }
}
