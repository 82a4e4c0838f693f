//! Output of `inspect`, an item for each finding: a line of text for people, or an object of JSON on a line of its own for programs.
//!
//! An object has `kind` (`found`, `damage`, `newer`, `difference`, `warning`, `verdict`), `text` (the words of the line), and
//! where there is one `file` (below the data path) and `byte` (position in it); the values that the words tell stand beside
//! them under names of their own.

use crate::base::{FileId, Position};
use crate::format::journal::RecordKind;
use crate::log::recovery::scan::BatchFound;
use serde_json::{Map, Value, json};
use std::fmt::Display;
use std::io::{self, Write};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    #[default]
    Text,
    Json,
}

pub(super) struct Report<'a> {
    out: &'a mut dyn Write,
    format: Format,
}

impl<'a> Report<'a> {
    pub fn new(out: &'a mut dyn Write, format: Format) -> Self {
        Report { out, format }
    }

    /// Reports a finding: words, and the values in them.
    pub fn found(&mut self, file: Option<&FileId>, text: impl Display, values: Value) -> io::Result<()> {
        let line = match file {
            Some(file) => format!("{file}: {text}"),
            None => text.to_string(),
        };
        self.item("found", file, None, &text, line, values)
    }

    pub fn damage(&mut self, file: &FileId, byte: u64, text: impl Display) -> io::Result<()> {
        let line = format!("{file}: DAMAGE at byte {byte}: {text}");
        self.item("damage", Some(file), Some(byte), &text, line, Value::Null)
    }

    pub fn newer(&mut self, file: &FileId, byte: u64, text: impl Display) -> io::Result<()> {
        let line = format!("{file}: NEWER at byte {byte}: {text}");
        self.item("newer", Some(file), Some(byte), &text, line, Value::Null)
    }

    /// A line that concerns no single file. `kind` is one of those in the module's header.
    pub fn note(&mut self, kind: &'static str, text: impl Display, values: Value) -> io::Result<()> {
        self.item(kind, None, None, &text, text.to_string(), values)
    }

    fn item(
        &mut self,
        kind: &'static str,
        file: Option<&FileId>,
        byte: Option<u64>,
        text: &impl Display,
        line: String,
        values: Value,
    ) -> io::Result<()> {
        if self.format == Format::Text {
            return writeln!(self.out, "{line}");
        }
        let mut object = Map::new();
        object.insert("kind".into(), kind.into());
        if let Some(file) = file {
            object.insert("file".into(), file.to_string().into());
        }
        if let Some(byte) = byte {
            object.insert("byte".into(), byte.into());
        }
        object.insert("text".into(), text.to_string().trim_start().into());
        if let Value::Object(values) = values {
            object.extend(values);
        }
        writeln!(self.out, "{}", Value::Object(object))
    }
}

/// A position in words.
pub(super) fn place(p: Position) -> String {
    let messages = if p.count == 1 { "message" } else { "messages" };
    format!("offset {} ({} {messages} before it)", p.offset, p.count)
}

/// A position in JSON.
pub(super) fn position(p: Position) -> Value {
    json!({ "offset": p.offset, "count": p.count, "log_id": p.log_id.0 })
}

pub(super) fn record_words(kind: RecordKind) -> &'static str {
    match kind {
        RecordKind::Batch => "batch",
        RecordKind::DirectBatch => "direct batch",
        RecordKind::Cursor => "cursor",
        RecordKind::Finished => "finished messages",
        RecordKind::ChannelDelete => "channel delete",
        RecordKind::Truncate => "truncate",
        RecordKind::Start => "retention start",
        RecordKind::TopicCreate => "topic create",
        RecordKind::TopicDelete => "topic delete",
        RecordKind::PartitionDelete => "partition delete",
        RecordKind::CollectStart => "collect start",
        RecordKind::Epoch => "promised epoch",
        RecordKind::Committed => "committed end",
        RecordKind::Restart => "log restart",
        RecordKind::Producers => "producers",
        RecordKind::LossAccepted => "loss_accepted",
        RecordKind::Doubt => "suspect",
        RecordKind::ChannelsLost => "channels lost",
    }
}

/// Words for bytes that are not the batch that belongs there.
pub(super) fn batch_words(found: BatchFound) -> &'static str {
    match found {
        BatchFound::Whole => "a whole batch",
        BatchFound::BodyBad => "a batch whose body is damaged",
        BatchFound::Breaks => "a batch that does not continue the log",
        BatchFound::Zeros => "zeros",
        BatchFound::Garbage => "bytes that are no batch",
        BatchFound::Unknown => "a batch of a newer version",
    }
}
