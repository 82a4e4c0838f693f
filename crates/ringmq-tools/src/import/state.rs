//! Progress of an import, in a file that outlives it: a second run goes on where the first one was killed.
//!
//! The file is written before anything is done that must not be done twice otherwise, and after each few batches. Batches that were sent
//! since are sent again, unchanged and under the same sequences, so the node stores none of them twice.

use super::ImportError;
use super::diskqueue::{LeftOut, RecordPlace};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

const VERSION: u32 = 1;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImportState {
    version: u32,
    /// Target of the messages, as the operator named it.
    pub target: String,
    /// The nsqd's metadata file as it was; another one says that the nsqd has run since.
    stamp: String,
    pub topics: Vec<Topic>,
    pub is_done: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Topic {
    pub name: String,
    pub is_paused: bool,
    /// Id under which the node knows this import in the topic.
    pub producer_id: u64,
    /// Number of the next message under that id.
    pub next_sequence: u64,
    pub channels: Vec<Channel>,
    /// The channels' own backlogs, then the topic's.
    pub sections: Vec<Section>,
    pub step: TopicStage,
}

/// Progress of a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum TopicStage {
    Nothing,
    /// The state has the pauses that were on the node before.
    Noted,
    /// Topic and channels are there, and paused where that is needed.
    Prepared,
    /// Every message is stored.
    Published,
    /// Every channel has its own messages, and no others.
    Finished,
    Done,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Channel {
    pub name: String,
    /// The topic stays paused: it was paused in the nsqd, or here before the import.
    pub stays_paused: bool,
}

/// A queue of nsqd on its way into the topic's log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Section {
    /// `None`: the topic's own backlog, which goes to every channel.
    pub channel: Option<String>,
    /// Position of the next record; `None`: nothing was read.
    pub from: Option<RecordPlace>,
    pub messages: u64,
    pub body_bytes: u64,
    /// Messages that nsqd had delivered before.
    pub delivered_before: u64,
    /// First and last log id of each stretch that is stored.
    pub stretches: Vec<(u64, u64)>,
    pub left_out: Vec<LeftOut>,
    pub is_done: bool,
}

impl Section {
    pub fn new(channel: Option<String>) -> Section {
        Section {
            channel,
            from: None,
            messages: 0,
            body_bytes: 0,
            delivered_before: 0,
            stretches: vec![],
            left_out: vec![],
            is_done: false,
        }
    }

    /// Messages `first ..= last` are stored; they stand behind all others of the section.
    pub fn stored(&mut self, first: u64, last: u64) {
        match self.stretches.last_mut() {
            Some(stretch) if stretch.1 + 1 == first => stretch.1 = last,
            _ => self.stretches.push((first, last)),
        }
    }
}

impl Topic {
    /// Stretches that are other channels' alone, ascending, joined where they touch.
    pub fn foreign_to(&self, channel: &str) -> Vec<(u64, u64)> {
        let foreign = self.sections.iter().filter(|s| s.channel.as_deref().is_some_and(|own| own != channel));
        let mut all: Vec<(u64, u64)> = foreign.flat_map(|section| section.stretches.iter().copied()).collect();
        all.sort_unstable();
        all.dedup_by(|next, kept| {
            let touches = next.0 <= kept.1 + 1;
            if touches {
                kept.1 = kept.1.max(next.1);
            }
            touches
        });
        all
    }

    /// Whether some channel has messages of its own while another channel must not get them.
    pub fn needs_pause(&self) -> bool {
        self.channels.len() > 1 && self.sections.iter().any(|s| s.channel.is_some())
    }
}

/// The file.
pub struct StateFile {
    path: PathBuf,
    pub state: ImportState,
}

impl StateFile {
    /// The state of an earlier run, or a new one.
    pub fn open(path: &Path, target: &str, stamp: &str) -> Result<StateFile, ImportError> {
        let failed = |source| ImportError::State { path: path.to_path_buf(), source };
        let state = match fs::read(path) {
            Ok(bytes) => {
                let invalid = |e: serde_json::Error| failed(io::Error::new(io::ErrorKind::InvalidData, e));
                let state: ImportState = serde_json::from_slice(&bytes).map_err(invalid)?;
                if state.version != VERSION {
                    let why = format!(
                        "version {}: another release of ringmq wrote this file; continue with that release",
                        state.version
                    );
                    return Err(failed(io::Error::new(io::ErrorKind::InvalidData, why)));
                }
                if state.target != target {
                    let (path, was) = (path.to_path_buf(), state.target);
                    return Err(ImportError::OtherTarget { path, was, is: target.into() });
                }
                if state.stamp != stamp {
                    return Err(ImportError::Changed { path: path.to_path_buf() });
                }
                state
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                ImportState { version: VERSION, target: target.into(), stamp: stamp.into(), topics: vec![], is_done: false }
            }
            Err(error) => return Err(failed(error)),
        };
        Ok(StateFile { path: path.to_path_buf(), state })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes the file anew, durably, as a whole or not at all.
    pub fn save(&self) -> Result<(), ImportError> {
        let write = || {
            let bytes = serde_json::to_vec_pretty(&self.state)?;
            let new = self.path.with_extension("json.new");
            let mut file = File::create(&new)?;
            file.write_all(&bytes)?;
            file.sync_all()?;
            fs::rename(&new, &self.path)?;
            let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
            File::open(folder)?.sync_all()
        };
        write().map_err(|source| ImportError::State { path: self.path.clone(), source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The channel and its stretches.
    type Sample<'a> = (Option<&'a str>, &'a [(u64, u64)]);

    fn topic(sections: Vec<Sample<'_>>) -> Topic {
        let channel = |name: &str| Channel { name: name.into(), stays_paused: false };
        let section = |(channel, stretches): Sample<'_>| Section {
            stretches: stretches.to_vec(),
            ..Section::new(channel.map(String::from))
        };
        Topic {
            name: "t".into(),
            is_paused: false,
            producer_id: 1,
            next_sequence: 0,
            channels: ["a", "b", "c"].map(channel).into(),
            sections: sections.into_iter().map(section).collect(),
            step: TopicStage::Nothing,
        }
    }

    #[test]
    fn what_is_foreign_is_what_other_channels_alone_have() {
        let t = topic(vec![(Some("a"), &[(1, 10)]), (Some("b"), &[(11, 20), (25, 30)]), (None, &[(31, 40)])]);
        assert_eq!(t.foreign_to("a"), [(11, 20), (25, 30)]);
        assert_eq!(t.foreign_to("b"), [(1, 10)]);
        assert_eq!(t.foreign_to("c"), [(1, 20), (25, 30)]);
        assert!(t.needs_pause() && !topic(vec![(None, &[])]).needs_pause());
    }

    #[test]
    fn stretches_grow() {
        let mut section = Section::new(None);
        [(1, 5), (6, 6), (9, 12), (13, 20)].into_iter().for_each(|(first, last)| section.stored(first, last));
        assert_eq!(section.stretches, [(1, 6), (9, 20)]);
    }

    #[test]
    fn a_state_comes_back_for_its_own_target_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("s.json");
        let mut saved = StateFile::open(&path, "x", "1").expect("a new one");
        saved.state.topics.push(topic(vec![(None, &[(1, 2)])]));
        saved.save().expect("writable");
        assert_eq!(StateFile::open(&path, "x", "1").expect("readable").state, saved.state);
        assert!(matches!(StateFile::open(&path, "y", "1"), Err(ImportError::OtherTarget { .. })));
        assert!(matches!(StateFile::open(&path, "x", "2"), Err(ImportError::Changed { .. })));
        fs::write(&path, b"{").expect("writable");
        assert!(matches!(StateFile::open(&path, "x", "1"), Err(ImportError::State { .. })));
    }
}
