//! Summary of an import: its counts, and its omissions.

use super::diskqueue::LeftOut;
use super::state::{ImportState, Topic};
use crate::text::{Table, bytes, grouped};
use serde::Serialize;
use std::path::{Path, PathBuf};

#[derive(Debug, Serialize)]
pub struct Summary {
    pub source: PathBuf,
    pub target: String,
    pub state: PathBuf,
    pub is_dry: bool,
    pub messages: u64,
    pub body_bytes: u64,
    pub queues: Vec<Line>,
    /// Differences to nsqd after the import.
    pub notes: Vec<String>,
    pub left_out: Vec<LeftOut>,
}

/// A queue of nsqd.
#[derive(Debug, Serialize)]
pub struct Line {
    pub topic: String,
    /// `None`: the topic's own, for every channel.
    pub channel: Option<String>,
    pub messages: u64,
    pub body_bytes: u64,
}

impl Summary {
    pub fn new(source: &Path) -> Summary {
        Summary {
            source: source.to_path_buf(),
            target: String::new(),
            state: PathBuf::new(),
            is_dry: false,
            messages: 0,
            body_bytes: 0,
            queues: vec![],
            notes: vec![],
            left_out: vec![],
        }
    }

    pub(super) fn take(&mut self, state: &ImportState) {
        self.take_topics(&state.topics);
    }

    pub(super) fn take_topics(&mut self, topics: &[Topic]) {
        let mut delivered = 0;
        for topic in topics {
            for section in &topic.sections {
                self.messages += section.messages;
                self.body_bytes += section.body_bytes;
                delivered += section.delivered_before;
                self.left_out.extend(section.left_out.iter().cloned());
                let (channel, topic) = (section.channel.clone(), topic.name.clone());
                self.queues.push(Line { topic, channel, messages: section.messages, body_bytes: section.body_bytes });
            }
            if topic.is_paused {
                self.notes.push(format!(
                    "topic {} was paused in the nsqd: check with `ringmq topic list` that the topic is paused here, since not every \
                     release can pause topics",
                    topic.name
                ));
            }
            let paused = topic.channels.iter().filter(|channel| channel.stays_paused).map(|channel| channel.name.as_str());
            let paused: Vec<&str> = paused.collect();
            if !paused.is_empty() {
                self.notes.push(format!("topic {}: paused, as before: {}", topic.name, paused.join(", ")));
            }
        }
        if delivered > 0 {
            self.notes.push(format!(
                "{} messages had been delivered before: their attempts are counted from 1 again",
                grouped(delivered)
            ));
        }
        if self.messages > 0 {
            self.notes.push(
                "messages have new ids and the time of the import; a message that waited in two channels is stored twice".into(),
            );
            self.notes
                .push("nsqd wrote deferred messages without their delay when it stopped: they are delivered at once".into());
        }
    }

    /// Whether messages are missing that nsqd would perhaps have delivered.
    pub fn is_partial(&self) -> bool {
        self.left_out.iter().any(|left_out| left_out.bytes > 0)
    }

    pub fn text(&self) -> String {
        let (verb, target) =
            if self.is_dry { ("would import", String::new()) } else { ("imported", format!(" into {}", self.target)) };
        let mut text = format!(
            "{verb} {} messages ({}) from {}{target}\n\n",
            grouped(self.messages),
            bytes(self.body_bytes),
            self.source.display()
        );
        let mut table = Table::new(&["topic", "channel", "messages", "size"]);
        for line in &self.queues {
            let channel = line.channel.as_deref().unwrap_or("(every channel)");
            table.row(&[&line.topic, channel, &grouped(line.messages), &bytes(line.body_bytes)]);
        }
        text += &table.text(&[2, 3]);
        for note in &self.notes {
            text += &format!("note: {note}\n");
        }
        for left_out in &self.left_out {
            text += &format!("left out: {left_out}\n");
        }
        if self.is_dry {
            text += "nothing was changed: this was a dry run\n";
        } else {
            text += &format!("the nsqd's files are as they were; {} says that they were imported\n", self.state.display());
        }
        text
    }
}
