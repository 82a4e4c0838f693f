//! `ringmq cluster move`, `drain` and the like: the same requests as a node's HTTP takes, written to etcd by this command itself.

use super::ask::Asker;
use crate::agent::plans::Planner;
use crate::agent::{Admin, AdminError, TRIES_MAX};
use crate::base::{NodeId, TopicId, TopicName};
use crate::config::Settings;
use crate::coordinator::CoordinatorError;
use crate::coordinator::store;
use crate::metadata::view::{View, ViewError};
use std::io::{self, Write};
use std::time::Duration;

/// Pause between two looks at a node that is being drained.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Looks without a change after which replicas that no other node can take end the wait.
const LOOKS_MAX: u32 = 10;
/// Partitions that a refusal names.
const NAMED_MAX: usize = 10;

#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    #[error("--etcd-endpoints is missing: give the endpoints of the cluster's etcd")]
    NoEtcd,
    #[error("{word} needs --{flag}")]
    Missing { word: &'static str, flag: &'static str },
    #[error("{0} is no name of a topic")]
    BadTopic(String),
    #[error("topic {name} is not expanded: {why}")]
    NotExpanded { name: TopicName, why: String },
    #[error(
        "node {node} keeps {count} replicas that no other node can take: {named}. Add a node, or lower the replicas of the topics"
    )]
    Kept { node: String, count: usize, named: String },
    #[error(transparent)]
    Coordinator(#[from] CoordinatorError),
    #[error(transparent)]
    View(#[from] ViewError),
    #[error(transparent)]
    NoCluster(#[from] super::NoCluster),
    #[error(transparent)]
    Admin(#[from] AdminError),
    #[error("cannot print: {0}")]
    Print(#[from] io::Error),
}

/// Words of the command line that change something.
pub const WORDS: [&str; 6] = ["expand", "move", "rebalance", "drain", "undrain", "remove"];

/// Arguments that the command line gives beside the word.
#[derive(Clone, Debug, Default)]
pub struct Names {
    pub topic: Option<String>,
    /// Number of partitions that the topic is to have (expand).
    pub partitions: Option<u16>,
    pub partition: Option<u16>,
    pub from: Option<String>,
    pub to: Option<String>,
    pub node: Option<String>,
    /// Wait until the node is empty (drain).
    pub waits: bool,
}

impl Names {
    fn topic(&self, word: &'static str) -> Result<TopicName, ChangeError> {
        let topic = self.topic.clone().ok_or(ChangeError::Missing { word, flag: "topic" })?;
        TopicName::new(&topic).map_err(|_| ChangeError::BadTopic(topic))
    }

    /// Fails where a flag that the word needs is missing or wrong.
    pub fn check(&self, word: &'static str) -> Result<(), ChangeError> {
        match word {
            "expand" => self.expansion().map(drop),
            _ => self.admin(word).map(drop),
        }
    }

    /// Topic of `expand`, and the partitions that it is to have.
    fn expansion(&self) -> Result<(TopicName, u16), ChangeError> {
        let name = self.topic("expand")?;
        Ok((name, self.partitions.ok_or(ChangeError::Missing { word: "expand", flag: "partitions" })?))
    }

    fn admin(&self, word: &'static str) -> Result<Admin, ChangeError> {
        let need = |value: &Option<String>, flag| {
            value.clone().filter(|text| !text.is_empty()).ok_or(ChangeError::Missing { word, flag })
        };
        Ok(match word {
            "move" => {
                let name = self.topic(word)?;
                let partition = self.partition.ok_or(ChangeError::Missing { word, flag: "partition" })?;
                let to = need(&self.to, "to")?;
                match &self.from {
                    Some(from) => Admin::MoveReplica { name, partition, from: from.clone(), to },
                    None => Admin::MoveLeader { name, partition, to },
                }
            }
            "rebalance" => Admin::Rebalance,
            "drain" => Admin::Drain { node: need(&self.node, "node")? },
            "undrain" => Admin::Undrain { node: need(&self.node, "node")? },
            _ => Admin::RemoveNode { node: need(&self.node, "node")? },
        })
    }
}

pub fn run(
    settings: &Settings,
    asker: &Asker,
    word: &'static str,
    names: &Names,
    out: &mut dyn Write,
) -> Result<(), ChangeError> {
    if !settings.has_etcd() {
        return Err(ChangeError::NoEtcd);
    }
    if word == "expand" {
        return expand(settings, asker, names, out);
    }
    let admin = names.admin(word)?;
    carry(settings, &admin)?;
    writeln!(out, "{}", admin.done())?;
    match &admin {
        Admin::Drain { node } if names.waits => wait_until_empty(settings, node, out),
        _ => Ok(()),
    }
}

/// Adds partitions to a topic, through the first node that answers: new partitions begin with the topic's channels, which nodes know
/// and etcd does not.
fn expand(settings: &Settings, asker: &Asker, names: &Names, out: &mut dyn Write) -> Result<(), ChangeError> {
    let (name, partitions) = names.expansion()?;
    let path = format!("/topic/partition/expand?topic={}&partition_num={partitions}", name.replace('#', "%23"));
    let view = view(settings)?;
    if view.topic(&name).is_none() {
        return Err(AdminError::NoTopic(name).into());
    }
    let live = view.nodes().filter_map(|(id, _)| view.member(id)?.value.http_address.clone());
    let mut last = "no node is alive".to_owned();
    for address in live {
        match store::on_a_loop(asker.post(&address, &path)) {
            Ok(answer) if answer.status == 200 => {
                writeln!(out, "topic {name} has {partitions} partitions")?;
                return Ok(());
            }
            Ok(answer) => last = format!("{address} answers {}: {}", answer.status, message(&answer.body)),
            Err(error) => last = format!("{address}: {error}"),
        }
    }
    Err(ChangeError::NotExpanded { name, why: last })
}

/// Text of a node's refusal.
fn message(body: &str) -> String {
    let json: Option<serde_json::Value> = serde_json::from_str(body).ok();
    json.and_then(|json| json["message"].as_str().map(String::from)).unwrap_or_else(|| body.to_owned())
}

fn view(settings: &Settings) -> Result<View, ChangeError> {
    let (layout, listing) = store::list(settings)?;
    let mut view = View::new(layout, 0);
    view.replace(listing, None)?;
    super::check_exists(settings, &view)?;
    Ok(view)
}

/// Carries out a change. Each attempt begins with the present content of etcd.
fn carry(settings: &Settings, admin: &Admin) -> Result<(), ChangeError> {
    for attempt in 0..TRIES_MAX {
        let view = view(settings)?;
        // None of these creates a topic, and the writer's session is not used.
        let fresh = TopicId([0; 16]);
        let planner = Planner { view: &view, replicas: 0, partitions: 0, session: 0, fresh, down: Default::default() };
        let txns = match planner.txns(admin) {
            Err(error) if attempt > 0 && admin.is_done_by(&error) => return Ok(()),
            txns => txns?,
        };
        let is_last = *admin != Admin::Rebalance || txns.is_empty();
        if txns.into_iter().try_fold(true, |is_done, txn| Ok::<_, CoordinatorError>(is_done && store::write(settings, txn)?))?
            && is_last
        {
            return Ok(());
        }
    }
    match admin {
        // The rest is moved by the next call, or by the controller.
        Admin::Rebalance => Ok(()),
        _ => Err(AdminError::Busy.into()),
    }
}

fn wait_until_empty(settings: &Settings, node: &str, out: &mut dyn Write) -> Result<(), ChangeError> {
    let (mut said, mut looks) = (None, 0);
    loop {
        let view = view(settings)?;
        let is_it = |id: &NodeId, name: &str| name == node || id.to_string() == node;
        let Some(id) = view.members().find(|(id, e)| is_it(id, &e.value.name)).map(|(id, _)| id) else {
            return Err(AdminError::NoNode(node.into()).into());
        };
        let led = |at: &(TopicId, u16)| {
            let leader = view.partition(at.0, at.1).and_then(|e| e.value.leader);
            leader.is_some_and(|l| l.node == id)
        };
        let (replicas, leads) = (view.topic_replicas_of(id).count(), view.topic_replicas_of(id).filter(led).count());
        if replicas == 0 {
            writeln!(out, "node {node} is empty: stop it, then `ringmq cluster remove --node={node}`")?;
            return Ok(());
        }
        looks += 1;
        if said.replace((replicas, leads)) != Some((replicas, leads)) {
            writeln!(out, "node {node} has {replicas} replicas left and leads {leads} partitions")?;
            looks = 0;
        }
        let kept = kept(&view, id);
        if looks >= LOOKS_MAX && kept.len() == replicas {
            let named = kept[..kept.len().min(NAMED_MAX)].join(", ");
            return Err(ChangeError::Kept { node: node.into(), count: replicas, named });
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Partitions whose replica at the node no other node can take.
fn kept(view: &View, id: NodeId) -> Vec<String> {
    let is_stuck = |at: &(TopicId, u16)| {
        let is_there = |node: &NodeId| view.partition(at.0, at.1).is_some_and(|e| e.value.replicas.contains(node));
        !view.nodes().any(|(node, _)| !view.is_draining(node) && !is_there(&node))
    };
    let name = |at: (TopicId, u16)| Some(format!("{}/{}", view.topic_by_id(at.0)?.value.info.name, at.1));
    view.topic_replicas_of(id).filter(is_stuck).filter_map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_says_which_flags_it_needs() {
        let text = |word, names: &Names| names.admin(word).unwrap_err().to_string();
        assert_eq!(text("drain", &Names::default()), "drain needs --node");
        assert_eq!(text("drain", &Names { node: Some(String::new()), ..Names::default() }), "drain needs --node");
        let mut names = Names { topic: Some("t".into()), to: Some("b".into()), ..Names::default() };
        assert_eq!(text("move", &names), "move needs --partition");
        names.partition = Some(3);
        let leader = Admin::MoveLeader { name: TopicName::new("t").unwrap(), partition: 3, to: "b".into() };
        assert_eq!(names.admin("move").unwrap(), leader);
        names.from = Some("a".into());
        assert!(matches!(names.admin("move"), Ok(Admin::MoveReplica { .. })));
        names.topic = Some("a b".into());
        assert_eq!(text("move", &names), "a b is no name of a topic");
    }
}
