//! The import at the startup of a node on the data path of an nsqd: a node in nsqd's place serves nsqd's backlog.
//!
//! The node does not serve before the import has ended, so no client sees a part of it. A startup that was interrupted, or killed, goes on
//! with the import at the next one. An import that cannot be done refuses the startup.

use super::command::into_own;
use super::node::OwnNode;
use super::progress::Progress;
use super::source::{Source, stamp_of};
use super::state::{ImportState, StateFile};
use super::summary::Summary;
use super::{ImportError, Options, default_state, name_of, plan};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Whether the data path holds a backlog of an nsqd that was not imported, or not to its end.
pub fn is_pending(data_path: &Path) -> Result<bool, ImportError> {
    let file = data_path.join("nsqd.dat");
    if !file.exists() {
        return Ok(false);
    }
    let name = name_of(data_path, data_path);
    Ok(!StateFile::open(&default_state(data_path), &name, &stamp_of(&file)?)?.state.is_done)
}

/// Imports the backlog in the data path into the same data path. `flags`: of `serve`, for the import's own node. `say` gets the progress.
pub fn import(
    data_path: &Path,
    flags: &[String],
    say: fn(&str),
    is_stopped: impl Fn() -> bool + Clone + 'static,
) -> Result<Summary, ImportError> {
    let options = Options {
        source: data_path.to_path_buf(),
        state: default_state(data_path),
        topics: vec![],
        skip_too_large: false,
        accept_duplicates: false,
        dry_run: false,
    };
    crate::block_on(async {
        let source = Source::open(data_path)?;
        let mut saved = StateFile::open(&options.state, &name_of(data_path, data_path), &source.stamp()?)?;
        let planned = plan(&options, &source)?;
        if planned.topics.is_empty() {
            saved.state.is_done = true;
            saved.save()?;
            return Ok(planned.summary);
        }
        let all = planned.topics.iter().map(|(_, bytes)| bytes).sum::<u64>();
        check_room(data_path, all.saturating_sub(stored(&saved.state)))?;
        let node = OwnNode::start(data_path, flags, &is_stopped).await?;
        into_own(node, data_path, &options, &source, Progress::of_log(say, Box::new(is_stopped))).await
    })
}

/// Bytes of nsqd's files whose messages are stored.
fn stored(state: &ImportState) -> u64 {
    let sections = state.topics.iter().flat_map(|topic| &topic.sections);
    sections.map(|section| section.body_bytes + 30 * section.messages).sum()
}

fn check_room(data_path: &Path, needed: u64) -> Result<(), ImportError> {
    let path = CString::new(data_path.as_os_str().as_bytes()).unwrap_or_default();
    // SAFETY: all zeros is a valid value of this plain C struct, the path ends with a zero, the call fills the struct.
    let (found, failed) = unsafe {
        let mut found: libc::statvfs = std::mem::zeroed();
        let failed = libc::statvfs(path.as_ptr(), &mut found);
        (found, failed)
    };
    if failed != 0 {
        let source = std::io::Error::last_os_error();
        return Err(ImportError::Read { path: data_path.to_path_buf(), source });
    }
    let free = found.f_bavail * found.f_frsize;
    if free < needed {
        return Err(ImportError::NoRoom { path: data_path.to_path_buf(), needed, free });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backlog_is_pending_until_it_was_imported_and_again_when_an_nsqd_has_run() {
        let folder = tempfile::tempdir().expect("a folder");
        let data = folder.path();
        assert!(!is_pending(data).expect("readable"), "no nsqd was here");
        std::fs::write(data.join("nsqd.dat"), "{\"topics\": [], \"version\": \"1.3.0\"}").expect("writable");
        assert!(is_pending(data).expect("readable"));
        import(data, &[], |_| {}, || false).expect("nothing is to be done");
        assert!(!is_pending(data).expect("readable"));
        std::fs::write(data.join("nsqd.dat"), "{\"topics\": null,  \"version\": \"1.3.0\"}").expect("writable");
        assert!(matches!(is_pending(data), Err(ImportError::Changed { .. })));
    }

    #[test]
    fn a_disk_without_room_is_told_before_anything_is_copied() {
        let folder = tempfile::tempdir().expect("a folder");
        check_room(folder.path(), 1).expect("there is a byte");
        assert!(matches!(check_room(folder.path(), u64::MAX), Err(ImportError::NoRoom { .. })));
    }
}
