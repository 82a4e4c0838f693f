//! The plain way: pwrite and fdatasync, or pread, on O_DIRECT, by threads that are pinned to one CPU.
//!
//! Depth n is n threads on that one CPU, each with one durable write at a time. Apart from their competition for the CPU this is the
//! most that blocking calls reach on this CPU and disk; depth 1 is the reference figure.

use super::samples::{Samples, Stream};
use super::{JOURNAL_BYTES, MeasureError, SEQUENTIAL_BYTES, STEP_BYTES, chance_bytes};
use crate::base::FileId;
use crate::disk::blocking::AlignedBuffer;
use crate::disk::files;
use crate::runtime::StopHandle;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock};
use std::thread;
use std::time::{Duration, Instant};

pub struct Raw {
    folder: PathBuf,
    cpu: usize,
    /// Bytes to write; smaller writes take a part of them.
    block: AlignedBuffer,
    stop: StopHandle,
}

/// The plain ways of going through a file from its beginning, 1 MiB at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pass {
    /// Space that was allocated and never written, as a segment's is: with an fdatasync per MiB.
    WriteNew,
    /// Overwrites used space, with an fdatasync per MiB.
    WriteSynced,
    /// The same with one fdatasync at the end.
    Write,
    Read,
}

impl Raw {
    /// `folder` is a scratch folder. Writes the file over which the durable writes go.
    pub fn start(folder: &Path, cpu: usize, stop: StopHandle) -> Result<Raw, MeasureError> {
        let mut block = AlignedBuffer::zeroed(STEP_BYTES);
        block.copy_from_slice(&chance_bytes(STEP_BYTES));
        let raw = Raw { folder: folder.to_owned(), cpu, block, stop };
        let journal = FileId::Journal(0);
        files::allocate(folder, &journal, JOURNAL_BYTES, None).map_err(MeasureError::Disk)?;
        let path = raw.path(&journal);
        let fill = || {
            let file = open(&path)?;
            for at in (0..JOURNAL_BYTES).step_by(STEP_BYTES) {
                if raw.stop.is_requested() {
                    return Ok(());
                }
                file.write_all_at(&raw.block, at)?;
            }
            file.sync_all()
        };
        fill().map_err(|e| failed(&path, "write", e))?;
        raw.stop_asked()?;
        Ok(raw)
    }

    fn path(&self, file: &FileId) -> PathBuf {
        crate::disk::paths::path_of(&self.folder, file)
    }

    fn sequential(&self) -> PathBuf {
        self.folder.join("sequential")
    }

    pub fn stop_asked(&self) -> Result<(), MeasureError> {
        if self.stop.is_requested() { Err(MeasureError::Interrupted) } else { Ok(()) }
    }

    /// Durable writes by `depth` threads; each thread writes at least once.
    pub fn durable(&self, bytes: usize, depth: usize, time: Duration) -> Result<Samples, MeasureError> {
        let path = self.path(&FileId::Journal(0));
        let gate = RwLock::new(true);
        let lanes = thread::scope(|scope| {
            // held until all are there, so that they begin together
            let mut goes = gate.write().unwrap_or_else(PoisonError::into_inner);
            let mut threads = vec![];
            let mut lanes = vec![];
            for lane in 0..depth {
                let (path, gate) = (&path, &gate);
                let run = move || self.lane(path, gate, Lane { bytes, lane, depth }, time);
                match thread::Builder::new().name(format!("raw-{lane}")).spawn_scoped(scope, run) {
                    Ok(thread) => threads.push(thread),
                    Err(e) => {
                        *goes = false; // those that were started end at once
                        lanes.push(Err(e));
                        break;
                    }
                }
            }
            drop(goes);
            lanes.extend(threads.into_iter().map(|t| t.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))));
            lanes
        });
        self.stop_asked()?;
        let done: Vec<Done> = lanes.into_iter().collect::<Result<_, _>>().map_err(|e| failed(&path, "durable write", e))?;
        let begun = done.iter().map(|lane| lane.begun).min();
        let ended = done.iter().map(|lane| lane.ended).max();
        let time = ended.zip(begun).map_or(Duration::ZERO, |(ended, begun)| ended - begun);
        Ok(Samples { ns: done.into_iter().flat_map(|lane| lane.ns).collect(), time })
    }

    fn lane(&self, path: &Path, gate: &RwLock<bool>, lane: Lane, time: Duration) -> Result<Done, io::Error> {
        pin(self.cpu)?;
        let (file, block, mut ns) = (open(path)?, &self.block[..lane.bytes], vec![]);
        let goes = *gate.read().unwrap_or_else(PoisonError::into_inner);
        let begun = Instant::now();
        let places = lane.places().take(if goes { usize::MAX } else { 0 });
        for at in places {
            let issued = Instant::now();
            file.write_all_at(block, at)?;
            file.sync_data()?;
            ns.push(issued.elapsed().as_nanos() as u64);
            if begun.elapsed() >= time || self.stop.is_requested() {
                break;
            }
        }
        Ok(Done { begun, ended: Instant::now(), ns })
    }

    /// Goes through the file, again and again; [`Pass::WriteNew`] makes the file anew and ends with it. The other passes use the bytes
    /// that it wrote.
    pub fn pass(&self, pass: Pass, time: Duration) -> Result<Stream, MeasureError> {
        let path = self.sequential();
        let run = || thread::scope(|scope| scope.spawn(|| self.go_through(&path, pass, time)).join());
        let done = run().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        self.stop_asked()?;
        done.map_err(|e| failed(&path, if pass == Pass::Read { "sequential read" } else { "sequential write" }, e))
    }

    fn go_through(&self, path: &Path, pass: Pass, time: Duration) -> Result<Stream, io::Error> {
        pin(self.cpu)?;
        if pass == Pass::WriteNew {
            self.make_anew(path)?;
        }
        let file = open(path)?;
        let mut into = AlignedBuffer::zeroed(STEP_BYTES);
        let steps = file.metadata()?.len() / STEP_BYTES as u64;
        if steps == 0 {
            return Err(io::Error::other("nothing was written before"));
        }
        let mut stream = Stream::default();
        let begun = Instant::now();
        for step in (0..steps).cycle() {
            let at = step * STEP_BYTES as u64;
            match pass {
                Pass::Read => file.read_exact_at(&mut into, at)?,
                Pass::Write => file.write_all_at(&self.block, at)?,
                Pass::WriteNew | Pass::WriteSynced => {
                    file.write_all_at(&self.block, at)?;
                    file.sync_data()?;
                }
            }
            stream.bytes += STEP_BYTES as u64;
            let is_whole = pass == Pass::WriteNew && step + 1 == steps;
            if is_whole || begun.elapsed() >= time || self.stop.is_requested() {
                break;
            }
        }
        if pass == Pass::Write {
            file.sync_data()?;
        }
        stream.time = begun.elapsed();
        if pass == Pass::WriteNew {
            // the rest is removed: the other passes would find it unwritten
            file.set_len(stream.bytes)?;
        }
        Ok(stream)
    }

    fn make_anew(&self, path: &Path) -> Result<(), io::Error> {
        let file = File::options().write(true).create(true).truncate(true).open(path)?;
        file.sync_all()?; // the space of the last one is free again
        files::fallocate(&file, SEQUENTIAL_BYTES)?;
        file.sync_all()
    }
}

/// Results of one thread.
struct Done {
    begun: Instant,
    ended: Instant,
    ns: Vec<u64>,
}

#[derive(Clone, Copy)]
struct Lane {
    bytes: usize,
    lane: usize,
    depth: usize,
}

impl Lane {
    /// Places of the file, each lane its own, one after the other.
    fn places(self) -> impl Iterator<Item = u64> {
        let slots = JOURNAL_BYTES / self.bytes as u64;
        (self.lane as u64..).step_by(self.depth).map(move |i| i % slots * self.bytes as u64)
    }
}

fn open(path: &Path) -> io::Result<File> {
    File::options().read(true).write(true).custom_flags(libc::O_DIRECT | libc::O_CLOEXEC).open(path)
}

fn failed(path: &Path, call: &'static str, source: io::Error) -> MeasureError {
    MeasureError::Io { path: path.to_owned(), call, source }
}

/// Pins this thread.
fn pin(cpu: usize) -> io::Result<()> {
    if cpu >= libc::CPU_SETSIZE as usize {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    // SAFETY: an all-zero set is valid, and the CPU's number is below its size.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        match libc::sched_setaffinity(0, size_of_val(&set), &set) {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_never_share_a_place_at_a_time() {
        for (bytes, depth) in [(4096, 64), (1 << 20, 64), (1 << 20, 1)] {
            let lanes: Vec<Vec<u64>> = (0..depth).map(|lane| Lane { bytes, lane, depth }.places().take(200).collect()).collect();
            for turn in 0..200 {
                let mut places: Vec<u64> = lanes.iter().map(|lane| lane[turn]).collect();
                assert!(places.iter().all(|at| at + bytes as u64 <= JOURNAL_BYTES));
                places.sort_unstable();
                places.dedup();
                assert_eq!(places.len(), depth, "{bytes} {depth}");
            }
        }
    }
}
