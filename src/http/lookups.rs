//! nsqlookupd's HTTP for a whole cluster: /lookup, /topics, /channels, /nodes and /listlookup, answered by any node of it.
//!
//! The leaders are in the node's view of the metadata. Only the cores of a topic's leaders know its channels: this node asks the others
//! over HTTP, all at once (`/channels?here=true`), and waits [`ASK_LIMIT`] at most. For a leader that does not answer it uses the
//! channels of its own replicas. So creation and deletion of a channel cost the metadata store nothing. An answer that lacks a silent
//! node's channel keeps no client from its messages: clients connect to the producers.

use super::Node;
use super::cluster::hub;
use super::routes::{Failure, Query};
use super::statistics::join_all;
use super::topics::not_found;
use crate::base::{NodeId, PartitionId};
use crate::discovery::{self, NSQ_VERSION};
use crate::metadata::lookup::{self, Access, TopicLookup};
use crate::metadata::view::View;
use hyper::StatusCode;
use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// Time that another node has to tell its channels.
const ASK_LIMIT: Duration = Duration::from_millis(500);
/// Other nodes that are asked at a time.
const ASKING_MAX: usize = 32;
/// Age at which other nodes' channels are requested anew.
const KEEP: Duration = Duration::from_secs(1);
/// Topics whose channels are kept.
const KEPT_MAX: usize = 1000;
const ANSWER_LIMIT: Duration = Duration::from_secs(3);

const PATHS: [&str; 5] = ["/lookup", "/topics", "/channels", "/nodes", "/listlookup"];

pub fn is_lookup(path: &str) -> bool {
    PATHS.contains(&path)
}

/// Topic and partition of a question.
type LookupKey = (String, Option<u16>);

/// Channels of other nodes from their last answers, and the permits to ask.
pub struct Channels {
    kept: RefCell<HashMap<LookupKey, (Instant, BTreeSet<String>)>>,
    asking: Semaphore,
    /// Permit for one look over all partitions at a time: the thread that looks renews the node's lease in between.
    looking: Semaphore,
}

impl Default for Channels {
    fn default() -> Self {
        Channels { kept: RefCell::default(), asking: Semaphore::new(ASKING_MAX), looking: Semaphore::new(1) }
    }
}

impl Channels {
    fn kept(&self, asked: &LookupKey) -> Option<BTreeSet<String>> {
        self.kept.borrow().get(asked).filter(|(at, _)| at.elapsed() < KEEP).map(|(_, channels)| channels.clone())
    }

    fn keep(&self, asked: LookupKey, channels: &BTreeSet<String>) {
        let mut kept = self.kept.borrow_mut();
        if kept.len() >= KEPT_MAX {
            kept.retain(|_, (at, _)| at.elapsed() < KEEP);
        }
        if kept.len() < KEPT_MAX {
            kept.insert(asked, (Instant::now(), channels.clone()));
        }
    }
}

pub async fn answer(node: &Node, path: &str, query: Result<Query, Failure>) -> Result<String, Failure> {
    let query = query?;
    match path {
        "/lookup" => lookup(node, &query).await,
        "/channels" => channels(node, &query).await,
        "/topics" => {
            let has_meta = has_meta(&query);
            look_over_all(node, move |view| lookup::topics(view, has_meta).to_string()).await
        }
        "/nodes" => look_over_all(node, |view| lookup::nodes(view, NSQ_VERSION).to_string()).await,
        _ => look_over_all(node, |view| lookup::lookups(view).to_string()).await,
    }
}

async fn lookup(node: &Node, query: &Query) -> Result<String, Failure> {
    let asked = asked(query)?;
    let access = Access::of(query.get("access").unwrap_or_default())
        .ok_or_else(|| Failure::new(StatusCode::BAD_REQUEST, "INVALID_ACCESS_MODE: access is r or w"))?;
    let (found, me) = find(node, &asked, access).await?;
    let found = found.ok_or_else(not_found)?;
    let channels = collect(node, asked, &found, me).await;
    Ok(found.json(&channels, has_meta(query)).to_string())
}

/// `here=true`: of the partitions that this node leads. An unknown topic has none.
async fn channels(node: &Node, query: &Query) -> Result<String, Failure> {
    let asked = asked(query)?;
    let channels = if query.get("here") == Some("true") {
        hub(node)?;
        of_this_node(node, &asked, true)
    } else {
        match find(node, &asked, Access::Read).await? {
            (Some(found), me) => collect(node, asked, &found, me).await,
            (None, _) => BTreeSet::new(),
        }
    };
    Ok(serde_json::json!({ "channels": channels }).to_string())
}

fn asked(query: &Query) -> Result<LookupKey, Failure> {
    let bad = |message: &'static str| Failure::new(StatusCode::BAD_REQUEST, message);
    let topic = query.get("topic").filter(|topic| !topic.is_empty()).ok_or_else(|| bad("MISSING_ARG_TOPIC"))?;
    let partition = match query.get("partition") {
        None | Some("" | "*") => None,
        Some(number) => Some(number.parse().map_err(|_| bad("INVALID_ARG_PARTITION: partition is a number, or * for all"))?),
    };
    Ok((topic.to_owned(), partition))
}

fn has_meta(query: &Query) -> bool {
    let value = query.get("metainfo").or_else(|| query.get("metaInfo"));
    !matches!(value, None | Some("" | "false" | "0"))
}

async fn find(node: &Node, asked: &LookupKey, access: Access) -> Result<(Option<TopicLookup>, NodeId), Failure> {
    let (topic, partition) = asked.clone();
    look(node, move |view, me| (TopicLookup::of(view, &topic, partition, access, NSQ_VERSION), me)).await
}

async fn look<T: Send + 'static>(node: &Node, look: impl FnOnce(&View, NodeId) -> T + Send + 'static) -> Result<T, Failure> {
    let answer = hub(node)?.look(move |agent| look(agent.view(), agent.me()));
    let no_answer = || {
        Failure::new(StatusCode::INTERNAL_SERVER_ERROR, "NO_ANSWER: the coordinator did not answer in time: repeat the request")
    };
    timeout(ANSWER_LIMIT, answer).await.ok().flatten().ok_or_else(no_answer)
}

async fn look_over_all(node: &Node, at: impl FnOnce(&View) -> String + Send + 'static) -> Result<String, Failure> {
    let _turn = node.channels.looking.acquire().await;
    look(node, move |view, _| at(view)).await
}

/// Channels of the topic, from all nodes that lead a partition of it.
async fn collect(node: &Node, asked: LookupKey, found: &TopicLookup, me: NodeId) -> BTreeSet<String> {
    let mut channels = of_this_node(node, &asked, true);
    let others: Vec<&String> = found.http_addresses().iter().filter(|(id, _)| **id != me).map(|(_, address)| address).collect();
    if others.is_empty() {
        return channels;
    }
    if let Some(mut kept) = node.channels.kept(&asked) {
        channels.append(&mut kept);
        return channels;
    }
    let answers = join_all(others.into_iter().map(|address| timeout(ASK_LIMIT, ask(node, address, &asked)))).await;
    let is_silent = answers.iter().any(|answer| !matches!(answer, Ok(Some(_))));
    answers.into_iter().flatten().flatten().for_each(|told| channels.extend(told));
    if is_silent {
        channels.append(&mut of_this_node(node, &asked, false));
    }
    node.channels.keep(asked, &channels);
    channels
}

/// The same, and an error where one of these nodes does not answer, or a partition has no leader that could.
pub async fn all_channels(node: &Node, topic: &str) -> Result<BTreeSet<String>, Failure> {
    let asked = (topic.to_owned(), None);
    let (found, me) = find(node, &asked, Access::Read).await?;
    let found = found.ok_or_else(not_found)?;
    let unknown =
        |why: String| Failure::new(StatusCode::SERVICE_UNAVAILABLE, format!("CHANNELS_UNKNOWN: {why}: repeat the request"));
    if !found.is_led() {
        return Err(unknown("a partition of the topic has no leader, and only leaders know the channels".into()));
    }
    let mut channels = of_this_node(node, &asked, true);
    for (_, address) in found.http_addresses().iter().filter(|(id, _)| **id != me) {
        let told = timeout(ASK_LIMIT, ask(node, address, &asked)).await.ok().flatten();
        channels
            .extend(told.ok_or_else(|| unknown(format!("the node at {address} did not answer with its channels over HTTP")))?);
    }
    Ok(channels)
}

fn of_this_node(node: &Node, (topic, partition): &LookupKey, is_served: bool) -> BTreeSet<String> {
    let discovery = node.link.discovery();
    discovery.map(|d| d.channels(topic, partition.map(PartitionId), is_served)).unwrap_or_default()
}

async fn ask(node: &Node, address: &str, (topic, partition): &LookupKey) -> Option<Vec<String>> {
    let _permit = node.channels.asking.acquire().await;
    let partition = partition.map_or_else(String::new, |number| format!("&partition={number}"));
    let path = format!("{}{partition}&here=true", discovery::asking(topic));
    match discovery::channels_of(address, &path, ASK_LIMIT).await {
        Ok(channels) => Some(channels),
        Err(error) => {
            tracing::debug!(node = address, topic, %error, "another node did not answer with its channels of a topic");
            None
        }
    }
}
