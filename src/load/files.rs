//! The files of a run's results: each is opened before the load begins, so that a path that cannot be written to costs no run.

use super::options::{Mode, Outputs};
use super::{LoadError, file_error};
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};

#[derive(Debug)]
pub struct Output {
    path: PathBuf,
    file: File,
    /// True for a file that was created here and has no content; it is removed when dropped.
    is_empty: bool,
}

/// Output files of a run.
#[derive(Debug)]
pub struct Files {
    pub json: Option<Output>,
    pub hgrm: Option<Output>,
    /// Publish latencies, in mode both.
    pub hgrm_publish: Option<Output>,
    pub report: Option<Output>,
}

impl Files {
    pub fn open(outputs: &Outputs, mode: Mode) -> Result<Files, LoadError> {
        let open = |path: Option<&Path>| path.map(Output::open).transpose();
        let beside = outputs.hgrm.as_ref().filter(|_| mode == Mode::Both).map(|path| {
            let mut beside = path.clone().into_os_string();
            beside.push(".publish");
            PathBuf::from(beside)
        });
        Ok(Files {
            json: open(outputs.json.as_deref())?,
            hgrm: open(outputs.hgrm.as_deref())?,
            hgrm_publish: open(beside.as_deref())?,
            report: open(outputs.report.as_deref())?,
        })
    }
}

impl Output {
    /// Opens an output file; its old content stays until there is a result.
    pub fn open(path: &Path) -> Result<Output, LoadError> {
        let made = OpenOptions::new().write(true).create_new(true).open(path);
        let (file, is_empty) = match made {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                (OpenOptions::new().write(true).create(true).truncate(false).open(path), false)
            }
            made => (made, true),
        };
        Ok(Output { file: file.map_err(|e| file_error(path, e))?, path: path.to_owned(), is_empty })
    }

    pub fn write(mut self, text: &str) -> Result<(), LoadError> {
        self.replace(text).map_err(|e| file_error(&self.path, e))
    }

    fn replace(&mut self, text: &str) -> io::Result<()> {
        self.is_empty = false;
        // a pipe or a device has no length
        if self.file.metadata()?.is_file() {
            self.file.set_len(0)?;
        }
        self.file.write_all(text.as_bytes())
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if self.is_empty {
            // an empty file more is no reason to say anything beside what went wrong
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_fails_leaves_the_files_as_they_were() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        fs::write(at("old"), "as it was").expect("writable");
        let outputs = |report: &str| Outputs {
            json: Some(at("old")),
            hgrm: Some(at("new")),
            report: Some(at(report)),
            ..Outputs::default()
        };
        let read = |name: &str| fs::read_to_string(at(name)).ok();
        let error = Files::open(&outputs("no/such"), Mode::Both).expect_err("there is no such folder").to_string();
        assert!(error.contains("no/such: No such file"), "{error}");
        assert_eq!((read("old").as_deref(), read("new"), read("new.publish")), (Some("as it was"), None, None));
        let files = Files::open(&outputs("page"), Mode::Both).expect("they can be");
        assert!(read("new").is_some() && read("new.publish").is_some() && read("page").is_some());
        files.json.expect("asked for").write("new").expect("writable");
        files.hgrm.expect("asked for").write("some").expect("writable");
        drop((files.hgrm_publish, files.report));
        assert_eq!((read("old").as_deref(), read("new").as_deref()), (Some("new"), Some("some")));
        assert_eq!((read("new.publish"), read("page")), (None, None));
        assert!(Files::open(&outputs("page"), Mode::Produce).expect("they can be").hgrm_publish.is_none());
    }
}
