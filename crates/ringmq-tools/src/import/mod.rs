//! `ringmq import`: the backlogs of a stopped nsqd into the topics and channels of a node.
//!
//! In nsqd a topic and each of its channels has a queue of its own. Here a channel is a cursor over the topic's one log. So the queues of
//! a topic become stretches of its log, one behind the other, and each channel is told which stretches are finished for it:
//!
//! ```text
//!            | queue of a | queue of b | queue of the topic |
//! channel a    waits        finished     waits
//! channel b    finished     waits        waits
//! ```
//! Channels are paused meanwhile, so that none gets another's messages before that is said (`POST /channel/finish`). A message that
//! waited in two channels is stored twice, and each channel gets its own.
//!
//! Steps of a topic: prepare (topic, channels, pause), publish, finish, go on (unpause). Each can be done again: `state`.

pub mod command;
pub mod diskqueue;
mod node;
mod progress;
mod publish;
mod source;
pub mod startup;
mod state;
pub mod summary;

use crate::http::{Http, HttpError, escaped};
use progress::Progress;
use ringmq_client::Client;
use serde_json::Value;
use source::{Source, TopicMetadata};
use state::{Channel, Section, StateFile, Topic, TopicStage};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use summary::Summary;

#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    #[error("{} is in use{holder}: stop the nsqd that runs on it, or the other import", path.display())]
    InUse { path: PathBuf, holder: String },
    #[error("{} has no nsqd.dat: name the folder that nsqd's --data-path names", path.display())]
    NoMetadata { path: PathBuf },
    #[error("{}: {source}: without nsqd's list of topics and channels nothing can be imported", path.display())]
    BadMetadata { path: PathBuf, source: serde_json::Error },
    #[error("{}: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{}: {source}; correct this file, or name another one with --state", path.display())]
    State { path: PathBuf, source: std::io::Error },
    #[error("{} belongs to an import into {was}, not {is}: finish that import, or name another file with --state", path.display())]
    OtherTarget { path: PathBuf, was: String, is: String },
    #[error(
        "the nsqd has run since the import of {} began: remove that file to import everything that waits now \
         (messages that the earlier run stored are stored again)",
        path.display()
    )]
    Changed { path: PathBuf },
    #[error("the node on {} does not serve: {why}", path.display())]
    Node { path: PathBuf, why: String },
    #[error(transparent)]
    Http(#[from] HttpError),
    #[error("topic {topic}: {source}")]
    Publish { topic: String, source: ringmq_client::Error },
    #[error("{address}: {source}")]
    Client { address: String, source: ringmq_client::Error },
    #[error(
        "topic {topic}: a message of {len} bytes, and the node takes {max}: start it with a larger --max-msg-size, or leave such \
         messages out with --skip-too-large"
    )]
    TooLarge { topic: String, len: usize, max: usize },
    #[error(
        "topic {topic}: the import was interrupted too long ago, and the node has forgotten its progress: at most {upto} messages may be \
         stored already. Run the command again with --accept-duplicates"
    )]
    Forgotten { topic: String, upto: u64 },
    #[error(
        "{} has {free} bytes free, and the import needs {needed}, since nsqd's files stay: make room, or import into a data path on \
         another disk with `ringmq import`",
        path.display()
    )]
    NoRoom { path: PathBuf, needed: u64, free: u64 },
    #[error("stopped by a signal: run the same command again to go on")]
    Interrupted,
}

/// Options of an import.
#[derive(Clone, Debug)]
pub struct Options {
    pub source: PathBuf,
    pub state: PathBuf,
    /// Only these topics; empty: all.
    pub topics: Vec<String>,
    pub skip_too_large: bool,
    pub accept_duplicates: bool,
    /// Reads and counts, and changes nothing.
    pub dry_run: bool,
}

/// A node that the messages go to.
pub struct Target {
    pub client: Client,
    pub http: Http,
    /// Longest body that the node takes.
    pub message_max: usize,
}

/// Counts of messages to import.
struct Plan {
    topics: Vec<(Topic, u64)>,
    summary: Summary,
}

/// Counts the waiting messages; `target` may be missing for a dry run.
fn plan(options: &Options, source: &Source) -> Result<Plan, ImportError> {
    let mut summary = Summary::new(&options.source);
    summary.left_out = source.orphans()?;
    let mut topics = vec![];
    let wanted = |name: &str| options.topics.is_empty() || options.topics.iter().any(|only| only == name);
    for topic in source.metadata().topics.iter().flatten().filter(|topic| wanted(&topic.name)) {
        topics.push(plan_topic(source, topic)?);
    }
    for name in &options.topics {
        if !topics.iter().any(|(topic, _): &(Topic, u64)| topic.name == *name) {
            summary.notes.push(format!("nsqd.dat names no topic {name}"));
        }
    }
    Ok(Plan { topics, summary })
}

fn plan_topic(source: &Source, topic: &TopicMetadata) -> Result<(Topic, u64), ImportError> {
    let mut bytes = source.queue(&topic.name, None)?.bytes();
    let (mut channels, mut sections) = (vec![], vec![]);
    for channel in topic.channels.iter().flatten() {
        channels.push(Channel { name: channel.name.clone(), stays_paused: channel.paused });
        let queue = source.queue(&topic.name, Some(&channel.name))?;
        if queue.bytes() > 0 || !queue.notes.is_empty() {
            bytes += queue.bytes();
            sections.push(Section::new(Some(channel.name.clone())));
        }
    }
    // Younger than what its channels have.
    sections.push(Section::new(None));
    let topic = Topic {
        name: topic.name.clone(),
        is_paused: topic.paused,
        producer_id: random_id(),
        next_sequence: 0,
        channels,
        sections,
        step: TopicStage::Nothing,
    };
    Ok((topic, bytes))
}

/// Name of a node's data path in the state of an import.
fn name_of(into: &Path, source: &Path) -> String {
    let whole = |path: &Path| std::fs::canonicalize(path).ok();
    match (whole(into), whole(source)) {
        (Some(into), Some(source)) if into == source => "this data path".into(),
        _ => into.display().to_string(),
    }
}

/// An id that no other producer has.
pub(crate) fn random_id() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    // Keyed by the system's own source of chance.
    std::collections::hash_map::RandomState::new().build_hasher().finish().max(1)
}

/// Imports, or goes on with an import.
pub async fn run(
    options: &Options,
    source: &Source,
    target: &Target,
    name: &str,
    mut progress: Progress,
) -> Result<Summary, ImportError> {
    let Plan { topics, mut summary } = plan(options, source)?;
    let mut saved = StateFile::open(&options.state, name, &source.stamp()?)?;
    if saved.state.is_done {
        let file = options.state.display();
        summary
            .notes
            .push(format!("an earlier run has imported everything, and nothing was done now; to import again, remove {file}"));
    }
    summary.target = name.to_owned();
    summary.state = saved.path().to_path_buf();
    progress.set_total(topics.iter().map(|(_, bytes)| bytes).sum());
    for (topic, bytes) in topics {
        let at = match saved.state.topics.iter().position(|known| known.name == topic.name) {
            Some(at) => at,
            None => {
                saved.state.topics.push(topic);
                saved.state.topics.len() - 1
            }
        };
        if saved.state.topics[at].step == TopicStage::Done {
            progress.skip(bytes);
            continue;
        }
        import_topic(options, source, target, &mut saved, at, &mut progress).await?;
    }
    progress.end();
    saved.state.is_done = true;
    saved.save()?;
    summary.take(&saved.state);
    Ok(summary)
}

async fn import_topic(
    options: &Options,
    source: &Source,
    target: &Target,
    saved: &mut StateFile,
    at: usize,
    progress: &mut Progress,
) -> Result<(), ImportError> {
    if saved.state.topics[at].step < TopicStage::Prepared {
        prepare(target, saved, at).await?;
    }
    if saved.state.topics[at].step == TopicStage::Prepared {
        publish::sections(options, source, target, saved, at, progress).await?;
        saved.state.topics[at].step = TopicStage::Published;
        saved.save()?;
    }
    if saved.state.topics[at].step == TopicStage::Published {
        let topic = &saved.state.topics[at];
        for channel in &topic.channels {
            for (first, last) in topic.foreign_to(&channel.name) {
                let query = query_of(&topic.name, &channel.name);
                target.http.post(&format!("/channel/finish{query}&partition=0&first={first}&last={last}")).await?;
            }
        }
        saved.state.topics[at].step = TopicStage::Finished;
        saved.save()?;
    }
    let topic = &saved.state.topics[at];
    if topic.is_paused {
        pause_topic(target, topic).await?;
    }
    for channel in topic.channels.iter() {
        let path = if channel.stays_paused { "pause" } else { "unpause" };
        if channel.stays_paused || topic.needs_pause() {
            target.http.post(&format!("/channel/{path}{}", query_of(&topic.name, &channel.name))).await?;
        }
    }
    saved.state.topics[at].step = TopicStage::Done;
    saved.save()
}

fn query_of(topic: &str, channel: &str) -> String {
    format!("?topic={}&channel={}", escaped(topic), escaped(channel))
}

/// Makes topic and channels, paused where one would get another's messages.
async fn prepare(target: &Target, saved: &mut StateFile, at: usize) -> Result<(), ImportError> {
    if saved.state.topics[at].step == TopicStage::Nothing {
        let paused = paused_channels(target, &saved.state.topics[at].name).await?;
        let topic = &mut saved.state.topics[at];
        for channel in &mut topic.channels {
            channel.stays_paused |= paused.get(&channel.name).copied().unwrap_or(false);
        }
        // A continued run must not take this run's pauses for the operator's.
        topic.step = TopicStage::Noted;
        saved.save()?;
    }
    let topic = &saved.state.topics[at];
    target.http.post(&format!("/topic/create?topic={}", escaped(&topic.name))).await?;
    for channel in &topic.channels {
        let query = query_of(&topic.name, &channel.name);
        target.http.post(&format!("/channel/create{query}")).await?;
        if topic.needs_pause() {
            target.http.post(&format!("/channel/pause{query}")).await?;
        }
    }
    saved.state.topics[at].step = TopicStage::Prepared;
    saved.save()
}

/// The channels that the topic has on the node, and whether each is paused.
async fn paused_channels(target: &Target, topic: &str) -> Result<HashMap<String, bool>, ImportError> {
    let stats =
        target.http.get(&format!("/stats?format=json&topic={}&include_clients=false&include_mem=false", escaped(topic))).await?;
    let channels = stats["topics"].as_array().into_iter().flatten().flat_map(|topic| topic["channels"].as_array()).flatten();
    let of = |channel: &Value| Some((channel["channel_name"].as_str()?.to_owned(), channel["paused"].as_bool()?));
    Ok(channels.filter_map(of).collect())
}

async fn pause_topic(target: &Target, topic: &Topic) -> Result<(), ImportError> {
    match target.http.post(&format!("/topic/pause?topic={}", escaped(&topic.name))).await {
        Err(error) if error.status() != Some(404) => Err(error.into()),
        // A node that does not pause topics: the summary says so.
        _ => Ok(()),
    }
}

/// Reads the source, and returns the summary of an import without importing.
pub fn dry_run(options: &Options, source: &Source) -> Result<Summary, ImportError> {
    let Plan { topics, mut summary } = plan(options, source)?;
    let mut counted = vec![];
    for (mut topic, _) in topics {
        for section in &mut topic.sections {
            let mut records = source.queue(&topic.name, section.channel.as_deref())?.read(None);
            while let Some(record) = records.read()? {
                section.messages += 1;
                section.body_bytes += record.body.len() as u64;
                section.delivered_before += (record.attempts > 0) as u64;
            }
            section.left_out = records.left_out();
        }
        counted.push(topic);
    }
    summary.is_dry = true;
    summary.take_topics(&counted);
    Ok(summary)
}

/// The state file of an import from this data path, where none is named.
pub fn default_state(source: &Path) -> PathBuf {
    source.join("ringmq-import.json")
}
