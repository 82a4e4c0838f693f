//! Keeps two processes out of one data path: the lock of the path itself, and the locks of single files.
//!
//! flock belongs to the open file description, not to the process: a killed process's lock lasts until its last descriptor is closed and
//! its last request in flight has ended. That makes it a fence; and it is why taking a lock over waits some seconds instead of failing
//! at once.

use super::paths;
use std::fmt;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Time that a restart waits for a killed process to be gone.
pub const DATA_LOCK_WAIT: Duration = Duration::from_secs(10);

/// Time that a file waits for the last requests of a killed process.
pub const FILE_LOCK_WAIT: Duration = Duration::from_secs(5);

/// A killed process's requests in flight mostly end within milliseconds.
pub const LOCK_RETRY: Duration = Duration::from_millis(2);

#[derive(Debug, thiserror::Error)]
pub enum LockError {
    #[error("{path} is in use by {holder}: stop that process, or give this one another --data-path")]
    InUse { path: PathBuf, holder: String },
    #[error("{path} is not a folder: --data-path names the folder that holds the journal and the topics")]
    NotAFolder { path: PathBuf },
    #[error("{path}: {call} failed: {source}; the data path must exist or be creatable, and be writable")]
    Io { path: PathBuf, call: &'static str, source: io::Error },
}

/// Takes the lock if it is free.
pub fn try_flock(fd: RawFd) -> io::Result<bool> {
    flock(fd, libc::LOCK_EX)
}

fn flock(fd: RawFd, how: libc::c_int) -> io::Result<bool> {
    loop {
        // SAFETY: flock has no memory effects; a bad descriptor is an error.
        if unsafe { libc::flock(fd, how | libc::LOCK_NB) } == 0 {
            return Ok(true);
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EWOULDBLOCK) => return Ok(false),
            Some(libc::EINTR) => {}
            _ => return Err(error),
        }
    }
}

/// Takes the lock, waiting up to `wait` for another holder. Blocks the thread.
pub fn flock_within(fd: RawFd, wait: Duration) -> io::Result<bool> {
    let deadline = Instant::now() + wait;
    loop {
        if try_flock(fd)? {
            return Ok(true);
        }
        if Instant::now() >= deadline {
            return Ok(false);
        }
        std::thread::sleep(LOCK_RETRY);
    }
}

/// The process that has the data path, if one does. Reads only, and takes nothing away: a lock that is shared is
/// asked for and let go at once, and a node that starts in that very moment waits ([`DATA_LOCK_WAIT`]).
pub fn owner(data: &Path) -> io::Result<Option<LockHolder>> {
    let mut file = match File::open(data.join(paths::LOCK)) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e),
    };
    if flock(file.as_raw_fd(), libc::LOCK_SH)? {
        return Ok(None); // it is let go with the file
    }
    Ok(Some(holder_in(&mut file)))
}

/// Process that holds the lock of a data path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LockHolder {
    /// Pid that the process wrote into the lock file; `?` where it could not.
    pub pid: String,
    /// Name of the local process with that pid; `None` when there is none (a process of another container).
    name: Option<String>,
}

impl fmt::Display for LockHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => write!(f, "pid {} ({name})", self.pid),
            None => write!(f, "pid {}", self.pid),
        }
    }
}

fn holder_in(file: &mut File) -> LockHolder {
    let mut pid = String::new();
    let _ = file.rewind().and_then(|()| file.read_to_string(&mut pid));
    let pid = if pid.trim().is_empty() { "?".to_owned() } else { pid.trim().to_owned() };
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok();
    LockHolder { pid, name: name.map(|name| name.trim().to_owned()) }
}

/// The data path is ours while this lives.
#[derive(Debug)]
pub struct DataLock {
    _file: File,
}

impl DataLock {
    /// Locks a data path that exists already. `None`: there is no data path, and none is created.
    pub fn acquire_made(data: &Path, wait: Duration) -> Result<Option<DataLock>, LockError> {
        if data.join(paths::LOCK).exists() { Self::acquire(data, wait).map(Some) } else { Ok(None) }
    }

    /// Makes the data path if it is not there, locks it and waits for the journals of a process that is just dying.
    pub fn acquire(data: &Path, wait: Duration) -> Result<DataLock, LockError> {
        let failed = |path: &Path, call| {
            let path = path.to_owned();
            move |source| LockError::Io { path, call, source }
        };
        // A file stands in the way: in place of the data path, or of a folder above it.
        if let Some(path) = data.ancestors().find(|path| path.exists()).filter(|path| !path.is_dir()) {
            return Err(LockError::NotAFolder { path: path.to_owned() });
        }
        create_data(data).map_err(failed(data, "mkdir"))?;
        let path = data.join(paths::LOCK);
        let mut file =
            File::options().read(true).write(true).create(true).truncate(false).open(&path).map_err(failed(&path, "open"))?;
        let is_free = try_flock(file.as_raw_fd()).map_err(failed(&path, "flock"))?;
        if !is_free {
            let holder = holder_in(&mut file);
            tracing::warn!(
                "{} is in use by {holder}: waiting up to {} s for that process to end",
                data.display(),
                wait.as_secs()
            );
        }
        if !is_free && !flock_within(file.as_raw_fd(), wait).map_err(failed(&path, "flock"))? {
            return Err(LockError::InUse { path: data.to_owned(), holder: holder_in(&mut file).to_string() });
        }
        // only for another process's message: the lock holds also if the write fails
        let _ = file.set_len(0).and_then(|()| file.rewind()).and_then(|()| writeln!(file, "{}", std::process::id()));
        wait_for_journals(data, wait)?;
        Ok(DataLock { _file: file })
    }
}

/// Makes the data path and sees to it that it is found after a power loss, with all that is acknowledged in it.
fn create_data(data: &Path) -> io::Result<()> {
    let is_there = |folder: &Path| folder.as_os_str().is_empty() || folder.exists();
    let made = data.ancestors().take_while(|folder| !is_there(folder)).count();
    std::fs::create_dir_all(data)?;
    // each new entry is in the folder above; an existing data path was synced by its creator
    for folder in data.ancestors().skip(1).take(made) {
        super::files::sync_folder(if folder.as_os_str().is_empty() { Path::new(".") } else { folder })?;
    }
    Ok(())
}

/// Requests in flight of a killed process hold its journals' locks after its descriptors are closed.
fn wait_for_journals(data: &Path, wait: Duration) -> Result<(), LockError> {
    let folder = data.join(paths::JOURNALS);
    let failed = |path: &Path, call, source| LockError::Io { path: path.to_owned(), call, source };
    let entries = match std::fs::read_dir(&folder) {
        Ok(entries) => entries,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(failed(&folder, "readdir", e)),
    };
    for entry in entries {
        let path = entry.map_err(|e| failed(&folder, "readdir", e))?.path();
        if !path.is_file() {
            continue;
        }
        let file = File::options().read(true).write(true).open(&path).map_err(|e| failed(&path, "open", e))?;
        if !flock_within(file.as_raw_fd(), wait).map_err(|e| failed(&path, "flock", e))? {
            let holder = "a process that was killed, whose writes do not end (look at dmesg)".into();
            return Err(LockError::InUse { path, holder });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_lock_names_the_first_and_a_released_one_is_free() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("a/b");
        let first = DataLock::acquire(&data, Duration::ZERO).unwrap();
        let refused = DataLock::acquire(&data, Duration::from_millis(30)).unwrap_err();
        assert!(refused.to_string().contains(&format!("in use by pid {}", std::process::id())), "{refused}");
        drop(first);
        DataLock::acquire(&data, Duration::ZERO).unwrap();
    }

    #[test]
    fn who_looks_for_the_owner_takes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(owner(dir.path()).unwrap(), None);
        assert_eq!(dir.path().read_dir().unwrap().count(), 0, "nothing was made");
        let lock = DataLock::acquire(dir.path(), Duration::ZERO).unwrap();
        let me = format!("pid {} (", std::process::id());
        assert!(owner(dir.path()).unwrap().is_some_and(|holder| holder.to_string().starts_with(&me)));
        assert!(DataLock::acquire(dir.path(), Duration::ZERO).is_err(), "it is still held");
        drop(lock);
        assert_eq!(owner(dir.path()).unwrap(), None);
        DataLock::acquire(dir.path(), Duration::ZERO).unwrap();
    }

    #[test]
    fn a_data_path_that_is_no_folder_is_called_so() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        File::create(&file).unwrap();
        for data in [Path::new("/dev/null"), &file, &file.join("below/it")] {
            let error = DataLock::acquire(data, Duration::ZERO).unwrap_err().to_string();
            assert!(error.contains(" is not a folder: --data-path names"), "{error}");
        }
    }

    #[test]
    fn a_data_path_is_made_wherever_it_is() {
        let dir = tempfile::tempdir_in(".").unwrap();
        let name = Path::new(dir.path().file_name().unwrap());
        for data in [name.to_owned(), name.join("a"), name.join("b/c/d"), dir.path().join("e/f"), "/".into()] {
            create_data(&data).unwrap();
            create_data(&data).unwrap();
            assert!(data.is_dir());
        }
    }

    #[test]
    fn a_journal_that_is_still_written_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("journal")).unwrap();
        let journal = File::create(dir.path().join("journal/0")).unwrap();
        assert!(try_flock(journal.as_raw_fd()).unwrap());
        assert!(DataLock::acquire(dir.path(), Duration::from_millis(30)).is_err());
        let release = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            drop(journal);
        });
        DataLock::acquire(dir.path(), Duration::from_secs(5)).unwrap();
        release.join().unwrap();
    }

    const HOLD: &str = "RINGMQ_TEST_HOLD_LOCK";

    /// Not a test of its own: the process that the next one starts.
    #[test]
    fn holds_the_lock_in_another_process() {
        let Ok(data) = std::env::var(HOLD) else { return };
        let _lock = DataLock::acquire(Path::new(&data), Duration::ZERO).unwrap();
        println!("locked");
        std::thread::sleep(Duration::from_secs(60));
    }

    #[test]
    fn a_killed_process_gives_its_lock_to_the_next_one_within_moments() {
        use std::io::BufRead as _;
        let dir = tempfile::tempdir().unwrap();
        let mut holder = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "disk::lock::tests::holds_the_lock_in_another_process", "--nocapture"])
            .env(HOLD, dir.path())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let said = io::BufReader::new(holder.stdout.take().unwrap());
        assert!(said.lines().any(|line| line.unwrap().contains("locked")));
        let refused = DataLock::acquire(dir.path(), Duration::ZERO).unwrap_err();
        assert!(refused.to_string().contains(&format!("in use by pid {}", holder.id())), "{refused}");
        holder.kill().unwrap();
        DataLock::acquire(dir.path(), DATA_LOCK_WAIT).unwrap();
        holder.wait().unwrap();
    }
}
