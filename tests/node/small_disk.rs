//! A small file system of its own: an ext4 image on a loop device, for what only a full or a failing disk shows.
//!
//! It is mounted in a mount namespace of the calling thread, so nobody else sees it and it goes with the process even
//! when that is killed. A node must be started by the same thread. Without root it fails and says what is needed.

use super::Node;
use std::ffi::CString;
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Loop devices may all be in use for a while: by tests that run at the same time.
const MOUNT_LIMIT: Duration = Duration::from_secs(120);
/// Longest time for which the kernel may keep files of a killed process open.
const UNMOUNT_LIMIT: Duration = Duration::from_secs(20);

pub struct SmallDisk {
    image: PathBuf,
    at: PathBuf,
    is_mounted: bool,
    /// Removed last.
    _folder: tempfile::TempDir,
}

impl SmallDisk {
    pub fn new(bytes: u64) -> SmallDisk {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("cargo's folder for tests is writable");
        let at = folder.path().join("mounted");
        fs::create_dir(&at).expect("the folder is writable");
        Self::mounted_at(bytes, at, folder)
    }

    /// Disk on an existing folder.
    pub fn new_at(bytes: u64, at: &Path) -> SmallDisk {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("cargo's folder for tests is writable");
        Self::mounted_at(bytes, at.to_owned(), folder)
    }

    fn mounted_at(bytes: u64, at: PathBuf, folder: tempfile::TempDir) -> SmallDisk {
        enter_own_namespace();
        let image = folder.path().join("image");
        File::create(&image).and_then(|file| file.set_len(bytes)).expect("the folder is writable");
        let mkfs = ["-q", "-F", "-m", "0", "-b", "4096"].map(std::ffi::OsStr::new);
        run("mkfs.ext4", &[&mkfs[..], &[image.as_os_str()]].concat())
            .unwrap_or_else(|error| panic!("this test needs mkfs.ext4 (Debian: e2fsprogs): {error}"));
        let mut disk = SmallDisk { image, at, is_mounted: false, _folder: folder };
        disk.mount();
        disk
    }

    pub fn mount(&mut self) {
        assert!(!self.is_mounted);
        let began = Instant::now();
        let arguments = ["-o".as_ref(), "loop".as_ref(), self.image.as_os_str(), self.at.as_os_str()];
        while let Err(error) = run("mount", &arguments) {
            let why = "this test needs root (CAP_SYS_ADMIN) and a free loop device (/dev/loop*) to mount an ext4 image";
            assert!(began.elapsed() < MOUNT_LIMIT, "{why}: {error}");
            std::thread::sleep(Duration::from_millis(500));
        }
        self.is_mounted = true;
    }

    /// Unmounts the disk, of which no file may be open.
    pub fn unmount(&mut self) -> Result<(), String> {
        let began = Instant::now();
        while let Err(error) = run("umount", &[self.at.as_os_str()]) {
            if began.elapsed() > UNMOUNT_LIMIT {
                return Err(error);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        self.is_mounted = false;
        Ok(())
    }

    pub fn path(&self) -> &Path {
        &self.at
    }

    /// Free bytes for files.
    pub fn free_bytes(&self) -> u64 {
        let path = CString::new(self.at.as_os_str().as_bytes()).expect("a path holds no zero byte");
        // SAFETY: all zeros is a valid value of this plain C struct, the path ends with a zero, the call fills the struct.
        unsafe {
            let mut found: libc::statfs = std::mem::zeroed();
            assert_eq!(libc::statfs(path.as_ptr(), &mut found), 0, "{}", std::io::Error::last_os_error());
            found.f_bavail * found.f_bsize.unsigned_abs()
        }
    }

    /// A file that takes `bytes`, or all that is left down to the last block. Removing it gives them back.
    pub fn filler(&self, name: &str, bytes: u64) -> PathBuf {
        let path = self.at.join(name);
        let mut file = File::create(&path).expect("a name costs no space in a folder that has few");
        let mut left = bytes;
        let mut piece = 256 * 1024;
        while left > 0 {
            let len = left.min(piece) as usize;
            match file.write(&vec![0xf1; len]).and_then(|written| file.sync_data().map(|()| written)) {
                Ok(written) => left -= written as u64,
                Err(error) if error.kind() == ErrorKind::StorageFull && piece > 1024 => piece /= 2,
                Err(error) if error.kind() == ErrorKind::StorageFull => break,
                Err(error) => panic!("{}: {error}", path.display()),
            }
        }
        path
    }

    /// Makes every read and write of the disk fail with EIO, as of a device that is gone. Ends with an unmount.
    pub fn fail(&self) {
        const EXT4_IOC_SHUTDOWN: libc::c_ulong = 0x8004_587d;
        const NO_LOG_FLUSH: u32 = 2;
        let root = File::open(&self.at).expect("it is mounted");
        let how = NO_LOG_FLUSH;
        // SAFETY: the call reads one u32, which lives as long as the call.
        let done = unsafe { libc::ioctl(root.as_raw_fd(), EXT4_IOC_SHUTDOWN as _, &how) };
        assert_eq!(done, 0, "this test needs a kernel whose ext4 knows EXT4_IOC_SHUTDOWN: {}", std::io::Error::last_os_error());
    }

    /// A node whose data path is on this disk and its log is not.
    pub fn node(&self, flags: &[&str]) -> Node {
        Node::start_at(Some(self.at.join("data")), flags)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        if self.is_mounted
            && let Err(error) = self.unmount()
        {
            eprintln!("{error}; it is unmounted when it is free");
            let _ = run("umount", &["-l".as_ref(), self.at.as_os_str()]);
        }
    }
}

fn run(program: &str, arguments: &[&std::ffi::OsStr]) -> Result<(), String> {
    let output = Command::new(program).args(arguments).output().map_err(|error| format!("{program}: {error}"))?;
    let text = String::from_utf8_lossy(&output.stderr).trim().to_string();
    if output.status.success() { Ok(()) } else { Err(format!("{program}: {} {text}", output.status)) }
}

/// Once per thread: only the thread and its child processes then see its mounts.
fn enter_own_namespace() {
    thread_local!(static IS_DONE: std::cell::Cell<bool> = const { std::cell::Cell::new(false) });
    if IS_DONE.replace(true) {
        return;
    }
    let why = "this test needs root (CAP_SYS_ADMIN) to mount an ext4 image in a mount namespace of its own";
    // SAFETY: the strings are static; the calls change nothing but this thread's view of the mounts.
    unsafe {
        assert_eq!(libc::unshare(libc::CLONE_NEWNS), 0, "{why}: {}", std::io::Error::last_os_error());
        let flags = libc::MS_REC | libc::MS_PRIVATE;
        let private = libc::mount(c"none".as_ptr(), c"/".as_ptr(), std::ptr::null(), flags, std::ptr::null());
        assert_eq!(private, 0, "{why}: {}", std::io::Error::last_os_error());
    }
}
