//! A few lines of text in two files of the data path, so that no block holds both.
//!
//! Each file ends with one line that has the crc of all before it, and is replaced as a whole. An invalid one is ignored and written
//! again with the next text. A missing file beside a valid one comes from a crash during the first write.

use super::CoordinatorError;
use super::copy::write_beside;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

const SEAL: &str = "crc32 ";

/// The two files.
#[derive(Clone, Debug)]
pub struct Twice {
    pub paths: [PathBuf; 2],
}

/// A damaged file, and a description of the damage.
pub type Damaged = (PathBuf, String);

impl Twice {
    /// `name`, and a copy of it beside.
    pub fn new(data: &Path, name: &str) -> Twice {
        Twice { paths: [data.join(name), data.join(format!("{name}.copy"))] }
    }

    pub fn exists(&self) -> bool {
        self.paths.iter().any(|path| path.exists())
    }

    /// Contents of the files, at most two. The log names each one that is damaged. An error: all that are there are damaged.
    pub fn read<T>(&self, parse: impl Fn(&str) -> Option<T>) -> Result<Vec<T>, Damaged> {
        let (mut kept, mut damage) = (vec![], vec![]);
        for path in &self.paths {
            match std::fs::read(path) {
                Err(e) if e.kind() == ErrorKind::NotFound => {}
                Err(e) => damage.push((path, e.to_string())),
                Ok(bytes) => match std::str::from_utf8(&bytes).ok().and_then(opened).and_then(&parse) {
                    Some(value) => kept.push(value),
                    None => damage.push((path, "the checksum does not match".into())),
                },
            }
        }
        for (path, what) in &damage {
            let use_around = if kept.is_empty() { "" } else { ": the other copy is used, and the damaged one is written again" };
            tracing::error!("{} is damaged ({what}){use_around}", path.display());
        }
        match damage.into_iter().next() {
            Some((path, what)) if kept.is_empty() => Err((path.clone(), what)),
            _ => Ok(kept),
        }
    }

    /// Durable when done.
    pub fn write(&self, text: &str) -> Result<(), CoordinatorError> {
        let text = sealed(text);
        let write =
            |path: &PathBuf| write_beside(path, &text).map_err(|source| CoordinatorError::Copy { path: path.clone(), source });
        self.paths.iter().try_for_each(write)
    }
}

fn sealed(text: &str) -> String {
    format!("{text}{SEAL}{:08x}\n", crc32fast::hash(text.as_bytes()))
}

/// The text under an intact last line.
fn opened(text: &str) -> Option<&str> {
    let (all, crc) = text.rsplit_once(SEAL)?;
    (crc == format!("{:08x}\n", crc32fast::hash(all.as_bytes()))).then_some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: &str = "some.file";

    fn read(twice: &Twice) -> Result<Vec<String>, Damaged> {
        twice.read(|text| Some(text.to_owned()))
    }

    #[test]
    fn either_file_may_be_damaged_anywhere_and_both_together_are_an_error() {
        let data = tempfile::tempdir().unwrap();
        let twice = Twice::new(data.path(), NAME);
        assert!(!twice.exists() && read(&twice).unwrap().is_empty());
        twice.write("one\ntwo\n").unwrap();
        assert_eq!(read(&twice).unwrap(), ["one\ntwo\n"; 2]);
        let whole = std::fs::read(&twice.paths[0]).unwrap();
        for (path, at) in twice.paths.iter().flat_map(|path| (0..whole.len()).map(move |at| (path, at))) {
            let (mut flipped, mut zeroed) = (whole.clone(), whole.clone());
            flipped[at] ^= 1 << (at % 8);
            zeroed[at..].fill(0);
            for bad in [flipped, zeroed, whole[..at].to_vec()] {
                std::fs::write(path, bad).unwrap();
                assert_eq!(read(&twice).unwrap(), ["one\ntwo\n"], "{} at {at}", path.display());
            }
            std::fs::write(path, &whole).unwrap();
        }
        std::fs::remove_file(&twice.paths[1]).unwrap();
        assert!(twice.exists() && read(&twice).unwrap().len() == 1, "a crash before the second one");
        std::fs::write(&twice.paths[0], "").unwrap();
        assert_eq!(read(&twice).unwrap_err().0, twice.paths[0]);
        twice.write("three\n").unwrap();
        assert_eq!(read(&twice).unwrap(), ["three\n"; 2]);
    }
}
