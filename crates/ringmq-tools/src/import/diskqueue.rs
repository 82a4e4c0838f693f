//! The files of one queue of nsqd, read as go-diskqueue 1.1 reads them. Nothing is written.
//!
//! ```text
//! NAME.diskqueue.meta.dat    depth \n read file,read position \n write file,write position
//! NAME.diskqueue.000000.dat  records: length (4 bytes, big-endian), message
//! message                    time (8), attempts (2), id (16), body
//! ```
//! After a SIGKILL the metadata is older than the files. Records behind the write position are read too, as nsqd does; an outdated read
//! position repeats records.

use super::ImportError;
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// Bytes of a message before its body.
const MESSAGE_HEAD: usize = 8 + 2 + 16;

/// nsqd's own bound is a setting that no file records; a length beyond this is no length.
const MESSAGE_MAX: usize = 1 << 30;

/// Part of the source that is not imported.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOut {
    /// File and place in it.
    pub what: String,
    pub bytes: u64,
    pub why: String,
}

impl std::fmt::Display for LeftOut {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let size = if self.bytes > 0 { format!(" ({})", crate::text::bytes(self.bytes)) } else { String::new() };
        write!(f, "{}{size}: {}", self.what, self.why)
    }
}

/// Position of the next record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct RecordPlace {
    pub file: u64,
    pub at: u64,
}

/// A message as nsqd stored it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Deliveries before nsqd stopped.
    pub attempts: u16,
    pub body: Vec<u8>,
    /// Place behind the message.
    pub behind: RecordPlace,
}

/// The files with the waiting records of a queue.
#[derive(Debug)]
pub struct Queue {
    files: Vec<Part>,
    /// Messages that are there and are not read, known before anything is read.
    pub notes: Vec<LeftOut>,
}

#[derive(Debug)]
struct Part {
    number: u64,
    path: PathBuf,
    len: u64,
    /// Bytes before it are consumed.
    from: u64,
}

/// Metadata of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Meta {
    read: RecordPlace,
    write: RecordPlace,
}

impl Queue {
    /// Looks for the files; a queue without any is empty.
    pub fn open(folder: &Path, name: &str) -> Result<Queue, ImportError> {
        let mut files = data_files(folder, name)?;
        let mut notes = vec![];
        let meta_name = format!("{name}.diskqueue.meta.dat");
        let meta = match fs::read_to_string(folder.join(&meta_name)) {
            Ok(text) => parse_meta(&text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(source) => return Err(ImportError::Read { path: folder.join(&meta_name), source }),
        };
        match meta {
            Some(meta) => {
                let leave_out =
                    |part: &Part, why: &str| LeftOut { what: file_name(&part.path), bytes: part.len, why: why.into() };
                files.retain(|part| {
                    if part.number < meta.read.file {
                        notes.push(leave_out(part, "the file's messages were consumed"));
                    } else if part.number > meta.write.file {
                        notes.push(leave_out(
                            part,
                            "the file lies behind the last file that the metadata names: nsqd would not read it either",
                        ));
                    }
                    (meta.read.file..=meta.write.file).contains(&part.number)
                });
                if let Some(first) = files.first_mut().filter(|part| part.number == meta.read.file) {
                    first.from = meta.read.at;
                }
                let last = files.last().filter(|part| part.number == meta.write.file).map_or(0, |part| part.len);
                if meta.write.at > last {
                    let what = format!("{name}.diskqueue.{:06}.dat", meta.write.file);
                    let why = format!("the metadata says {} bytes, and the file has {last}", meta.write.at);
                    notes.push(LeftOut { what, bytes: meta.write.at - last, why });
                }
            }
            None if files.is_empty() => {}
            // nsqd would overwrite them.
            None => notes.push(LeftOut {
                what: meta_name,
                bytes: 0,
                why: "the metadata is missing or not readable: every message of the queue's files is taken, consumed ones too"
                    .into(),
            }),
        }
        Ok(Queue { files, notes })
    }

    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|part| part.len.saturating_sub(part.from)).sum()
    }

    /// Reads from `from` on; `None`: from where nsqd would go on.
    pub fn read(self, from: Option<RecordPlace>) -> Records {
        let from = from.unwrap_or_default();
        let mut files = self.files;
        files.retain(|part| part.number >= from.file);
        if let Some(first) = files.first_mut().filter(|part| part.number == from.file) {
            first.from = first.from.max(from.at);
        }
        files.reverse();
        Records { files, open: None, left_out: self.notes }
    }
}

/// The records of a queue, in order. Unreadable ones are left out, and named in the end.
pub struct Records {
    /// The next one is last.
    files: Vec<Part>,
    open: Option<Open>,
    left_out: Vec<LeftOut>,
}

struct Open {
    part: Part,
    reader: BufReader<File>,
    at: u64,
}

impl Records {
    /// The next message. `None` at the end.
    pub fn read(&mut self) -> Result<Option<Record>, ImportError> {
        loop {
            if self.open.is_none() {
                let Some(part) = self.files.pop() else { return Ok(None) };
                let unreadable = |source| ImportError::Read { path: part.path.clone(), source };
                let mut file = File::open(&part.path).map_err(unreadable)?;
                file.seek(SeekFrom::Start(part.from)).map_err(unreadable)?;
                self.open = Some(Open { reader: BufReader::with_capacity(1 << 20, file), at: part.from, part });
            }
            let open = self.open.as_mut().expect("it was just opened");
            match open.record()? {
                ReadRecord::Record(record) => return Ok(Some(record)),
                ReadRecord::End => self.open = None,
                // As nsqd does: where the next message begins in this file is not known.
                ReadRecord::Bad(why) => {
                    let what = format!("{} from byte {} on", file_name(&open.part.path), open.at);
                    self.left_out.push(LeftOut { what, bytes: open.part.len - open.at, why });
                    self.open = None;
                }
            }
        }
    }

    /// Messages that were left out so far.
    pub fn left_out(self) -> Vec<LeftOut> {
        self.left_out
    }
}

enum ReadRecord {
    Record(Record),
    End,
    Bad(String),
}

impl Open {
    fn record(&mut self) -> Result<ReadRecord, ImportError> {
        let left = self.part.len.saturating_sub(self.at);
        if left == 0 {
            return Ok(ReadRecord::End);
        }
        if left < 4 {
            return Ok(ReadRecord::Bad(format!("the last record ends after {left} bytes")));
        }
        let path = self.part.path.clone();
        let unreadable = |source| ImportError::Read { path: path.clone(), source };
        let mut len = [0; 4];
        self.reader.read_exact(&mut len).map_err(unreadable)?;
        let len = u32::from_be_bytes(len) as usize;
        if !(MESSAGE_HEAD..=MESSAGE_MAX).contains(&len) {
            return Ok(ReadRecord::Bad(format!("{len} is not a possible length of a message: the file is damaged from here on")));
        }
        if left < 4 + len as u64 {
            return Ok(ReadRecord::Bad(format!("a record of {len} bytes is truncated after {}", left - 4)));
        }
        let mut bytes = vec![0; len];
        self.reader.read_exact(&mut bytes).map_err(unreadable)?;
        self.at += 4 + len as u64;
        let attempts = u16::from_be_bytes([bytes[8], bytes[9]]);
        let body = bytes.split_off(MESSAGE_HEAD);
        Ok(ReadRecord::Record(Record { attempts, body, behind: RecordPlace { file: self.part.number, at: self.at } }))
    }
}

/// The queue's data files in the order of their numbers.
fn data_files(folder: &Path, name: &str) -> Result<Vec<Part>, ImportError> {
    let unreadable = |source| ImportError::Read { path: folder.to_path_buf(), source };
    let mut files = vec![];
    for entry in fs::read_dir(folder).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        let file = entry.file_name();
        let number = file.to_str().and_then(|file| file.strip_prefix(name)?.strip_prefix(".diskqueue.")?.strip_suffix(".dat"));
        // Six digits or more, as `%06d` writes them.
        let Some(number) = number.filter(|n| n.len() >= 6 && n.bytes().all(|b| b.is_ascii_digit())) else { continue };
        let Ok(number) = number.parse() else { continue };
        let len = entry.metadata().map_err(unreadable)?.len();
        files.push(Part { number, path: entry.path(), len, from: 0 });
    }
    files.sort_by_key(|part| part.number);
    Ok(files)
}

fn parse_meta(text: &str) -> Option<Meta> {
    let mut lines = text.lines();
    let _depth: i64 = lines.next()?.trim().parse().ok()?;
    let mut place = || {
        let (file, at) = lines.next()?.split_once(',')?;
        Some(RecordPlace { file: file.trim().parse().ok()?, at: at.trim().parse().ok()? })
    };
    Some(Meta { read: place()?, write: place()? })
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(attempts: u16, body: &[u8]) -> Vec<u8> {
        let mut bytes = ((MESSAGE_HEAD + body.len()) as u32).to_be_bytes().to_vec();
        bytes.extend_from_slice(&[0; 8]);
        bytes.extend_from_slice(&attempts.to_be_bytes());
        bytes.extend_from_slice(b"0123456789abcdef");
        bytes.extend_from_slice(body);
        bytes
    }

    struct Folder(tempfile::TempDir);

    impl Folder {
        fn new(meta: Option<&str>, files: &[(u64, Vec<u8>)]) -> Folder {
            let folder = tempfile::tempdir().expect("a folder");
            if let Some(meta) = meta {
                fs::write(folder.path().join("t.diskqueue.meta.dat"), meta).expect("written");
            }
            for (number, bytes) in files {
                fs::write(folder.path().join(format!("t.diskqueue.{number:06}.dat")), bytes).expect("written");
            }
            Folder(folder)
        }

        /// Bodies from a place on, the end of each, and the reasons for omissions.
        fn read(&self, from: Option<RecordPlace>) -> (Vec<(String, RecordPlace)>, Vec<LeftOut>) {
            let mut records = Queue::open(self.0.path(), "t").expect("readable").read(from);
            let mut bodies = vec![];
            while let Some(record) = records.read().expect("readable") {
                bodies.push((String::from_utf8(record.body).expect("text"), record.behind));
            }
            (bodies, records.left_out())
        }

        fn bodies(&self, from: Option<RecordPlace>) -> Vec<String> {
            self.read(from).0.into_iter().map(|(body, _)| body).collect()
        }
    }

    fn all(bodies: &[&str]) -> Vec<u8> {
        bodies.iter().flat_map(|body| record(0, body.as_bytes())).collect()
    }

    #[test]
    fn it_goes_on_where_nsqd_would() {
        let folder =
            Folder::new(Some("3\n1,31\n2,31\n"), &[(0, all(&["x"])), (1, all(&["a", "b"])), (2, all(&["c"])), (3, all(&["y"]))]);
        let (got, left_out) = folder.read(None);
        let place = |file, at| RecordPlace { file, at };
        assert_eq!(got, [("b".to_owned(), place(1, 62)), ("c".to_owned(), place(2, 31))]);
        let names: Vec<&str> = left_out.iter().map(|l| l.what.as_str()).collect();
        assert_eq!(names, ["t.diskqueue.000000.dat", "t.diskqueue.000003.dat"]);
        // Resumed behind each of them.
        assert_eq!(folder.bodies(Some(place(1, 62))), ["c"]);
        assert!(folder.bodies(Some(place(2, 31))).is_empty());
    }

    #[test]
    fn what_the_metadata_does_not_know_yet_is_read() {
        let folder = Folder::new(Some("1\n0,0\n0,31\n"), &[(0, all(&["a", "b", "c"]))]);
        assert_eq!(folder.bodies(None), ["a", "b", "c"]);
    }

    #[test]
    fn a_queue_without_metadata_is_taken_whole_and_named() {
        let folder = Folder::new(None, &[(4, all(&["a"]))]);
        let (got, left_out) = folder.read(None);
        assert!(got.len() == 1 && left_out[0].why.contains("missing"), "{left_out:?}");
        assert_eq!(Folder::new(None, &[]).read(None), (vec![], vec![]));
        assert_eq!(Folder::new(Some("x\n"), &[(0, all(&["a"]))]).bodies(None), ["a"]);
    }

    #[test]
    fn a_bad_file_costs_its_rest_alone() {
        let mut bad = all(&["a", "b"]);
        bad[31..35].copy_from_slice(&7u32.to_be_bytes());
        let folder = Folder::new(Some("3\n0,0\n1,31\n"), &[(0, bad.clone()), (1, all(&["c"]))]);
        let (got, left_out) = folder.read(None);
        assert_eq!(got.iter().map(|(body, _)| body.as_str()).collect::<Vec<_>>(), ["a", "c"]);
        assert_eq!((left_out[0].what.as_str(), left_out[0].bytes), ("t.diskqueue.000000.dat from byte 31 on", 31));
        // A length that leads behind the end of the file.
        bad[31..35].copy_from_slice(&70u32.to_be_bytes());
        assert_eq!(Folder::new(Some("3\n0,0\n1,31\n"), &[(0, bad), (1, all(&["c"]))]).bodies(None), ["a", "c"]);
    }

    #[test]
    fn a_truncated_last_record_is_named() {
        for keep in [32, 34, 35, 50, 61] {
            let mut bytes = all(&["a", "b"]);
            bytes.truncate(keep);
            let folder = Folder::new(Some("2\n0,0\n0,62\n"), &[(0, bytes)]);
            let (got, left_out) = folder.read(None);
            assert_eq!(got.len(), 1, "{keep}");
            assert_eq!(left_out.len(), 2, "the metadata knew more, and a record is cut: {left_out:?}");
        }
    }

    #[test]
    fn names_that_begin_alike_are_kept_apart() {
        let folder = Folder::new(Some("1\n0,0\n0,31\n"), &[(0, all(&["a"]))]);
        for other in ["t:c.diskqueue.000000.dat", "t2.diskqueue.000000.dat", "t.diskqueue.000001.dat.bad", "t.diskqueue.1.dat"] {
            fs::write(folder.0.path().join(other), all(&["other"])).expect("written");
        }
        assert_eq!(folder.bodies(None), ["a"]);
    }

    proptest::proptest! {
        #[test]
        fn no_file_panics(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..200), meta in "[0-9,\n-]{0,20}") {
            let folder = Folder::new(Some(&meta), &[(0, bytes)]);
            if let Ok(queue) = Queue::open(folder.0.path(), "t") {
                let mut records = queue.read(None);
                while let Some(record) = records.read().expect("readable") {
                    proptest::prop_assert!(record.behind.at <= 200);
                }
            }
        }
    }
}
