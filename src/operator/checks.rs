//! `ringmq cluster init`, `verify` and `doctor`: gathers their data, and prints the findings.

use super::ask::Asker;
use super::finding::{self, Finding};
use super::{OperatorError, ask, check_exists, check_topic, doctor, verify};
use crate::base::NodeId;
use crate::config::Settings;
use crate::coordinator::store;
use crate::metadata::keys::Key;
use crate::metadata::record::{ClusterRecord, MemberRecord, encode};
use crate::metadata::request::{Compare, Op, Txn};
use crate::metadata::view::View;
use std::collections::BTreeMap;
use std::io::Write;
use std::time::{Instant, SystemTime};

/// Words of the command line that are carried out here.
pub const WORDS: [&str; 3] = ["init", "verify", "doctor"];

/// Makes the cluster's id, once. Whether it is new. `random`: the id.
pub fn init(settings: &Settings, random: [u8; 16], is_json: bool, out: &mut dyn Write) -> Result<bool, OperatorError> {
    let (layout, _) = list(settings)?;
    let key = layout.key(&Key::Id);
    let put = Op::Put { key: key.clone(), value: encode(&ClusterRecord { id: random }), lease: None };
    let txn = Txn { compares: vec![Compare::CreateRevision { key, is: 0 }], then: vec![put], otherwise: vec![] };
    let is_new = store::write(settings, txn)?;
    let (_, view) = list(settings)?;
    let id = NodeId(view.cluster_id().unwrap_or(random));
    let (name, nodes, topics) = (&settings.cluster_name, view.members().count(), view.topics().count());
    if is_json {
        writeln!(
            out,
            "{}",
            serde_json::json!({ "cluster": name, "id": id.to_string(), "is_new": is_new, "nodes": nodes, "topics": topics })
        )?;
    } else if is_new {
        writeln!(out, "cluster {name} is created: id {id}. Start its nodes with these --etcd-endpoints and this --cluster-name")?;
    } else {
        writeln!(out, "cluster {name} exists: id {id}, {nodes} nodes, {topics} topics. Nothing is changed")?;
    }
    Ok(is_new)
}

/// Whether nothing bad was found.
pub fn verify(
    settings: &Settings,
    asker: &Asker,
    topic: Option<&str>,
    is_json: bool,
    out: &mut dyn Write,
) -> Result<bool, OperatorError> {
    let (_, before) = list(settings)?;
    check_exists(settings, &before)?;
    check_topic(&before, topic)?;
    let nodes: Vec<(NodeId, MemberRecord)> = before.members().map(|(id, e)| (id, e.value.clone())).collect();
    let rounds = store::on_a_loop(rounds(&before, &nodes, asker, topic));
    let (_, view) = list(settings)?;
    print(&verify::check(&before, &view, topic, &rounds), is_json, out)
}

/// Whether nothing bad was found.
pub fn doctor(settings: &Settings, asker: &Asker, is_json: bool, out: &mut dyn Write) -> Result<bool, OperatorError> {
    let mut seen = doctor::ClusterHealth { members: store::health(settings)?, ..Default::default() };
    seen.space = store::space(settings)?;
    let (began, mut missing) = (Instant::now(), None);
    match list(settings) {
        Ok((_, view)) => {
            missing = check_exists(settings, &view).err();
            seen.read = Some(Ok(began.elapsed()));
            let members: Vec<(NodeId, MemberRecord)> = view.members().map(|(id, e)| (id, e.value.clone())).collect();
            seen.nodes = store::on_a_loop(async {
                let mut nodes = vec![];
                for (id, member) in &members {
                    nodes.push(look_at(asker, member, view.session(*id).is_some()).await);
                }
                nodes
            });
        }
        Err(OperatorError::Coordinator(error)) => seen.read = Some(Err(error.to_string())),
        Err(error) => return Err(error),
    }
    let mut findings = doctor::findings(&seen);
    findings.extend(missing.map(|missing| Finding::bad(format!("cluster {}", settings.cluster_name), missing.to_string(), "")));
    print(&findings, is_json, out)
}

fn print(findings: &[Finding], is_json: bool, out: &mut dyn Write) -> Result<bool, OperatorError> {
    match is_json {
        true => writeln!(out, "{}", finding::json(findings))?,
        false => out.write_all(finding::text(findings).as_bytes())?,
    }
    Ok(finding::is_well(findings))
}

fn list(settings: &Settings) -> Result<(crate::metadata::keys::Layout, View), OperatorError> {
    if !settings.has_etcd() {
        return Err(OperatorError::NoEtcd);
    }
    let (layout, listing) = store::list(settings)?;
    let mut view = View::new(layout.clone(), 0);
    view.replace(listing, None)?;
    Ok((layout, view))
}

async fn rounds(view: &View, nodes: &[(NodeId, MemberRecord)], asker: &Asker, topic: Option<&str>) -> verify::Rounds {
    let topic = topic.map_or_else(String::new, |topic| format!("&topic={}", topic.replace('#', "%23")));
    let path = format!("/stats?format=json&include_clients=false{topic}");
    let mut told: BTreeMap<NodeId, Result<Vec<verify::Replicas>, String>> = BTreeMap::new();
    for _ in 0..3 {
        for (id, member) in nodes {
            let so_far = told.entry(*id).or_insert(Ok(vec![]));
            let Ok(replicas) = so_far else { continue };
            let answer = match (&member.http_address, view.session(*id)) {
                (_, None) => Err("the node is away".to_owned()),
                (None, _) => Err("the node has no HTTP address in the metadata".to_owned()),
                (Some(address), Some(_)) => asker.get(address, &path).await.and_then(ask::HttpResponse::good),
            };
            match answer.and_then(|body| serde_json::from_str(&body).map_err(|error| error.to_string())) {
                Ok(stats) => replicas.push(verify::replicas(&stats)),
                Err(why) => *so_far = Err(why),
            }
        }
    }
    let three = |rounds: Vec<verify::Replicas>| {
        <[verify::Replicas; 3]>::try_from(rounds).map_err(|_| "the node was not asked".to_owned())
    };
    verify::Rounds { nodes: told.into_iter().map(|(id, told)| (id, told.and_then(three))).collect() }
}

async fn look_at(asker: &Asker, member: &MemberRecord, is_there: bool) -> doctor::Node {
    let mut node = doctor::Node { name: member.name.clone(), version: member.version.clone(), is_there, ..Default::default() };
    if !is_there {
        return node;
    }
    let peer = Some(&member.peer_address);
    let addresses = [("peer", peer), ("tcp", member.tcp_address.as_ref()), ("native", member.native_address.as_ref())];
    // A port that the kernel chose is not told to the others.
    let told = addresses.into_iter().filter_map(|(what, address)| Some((what, address.filter(|own| !own.ends_with(":0"))?)));
    for (what, address) in told {
        if let Err(why) = ask::reach(address).await {
            node.unreachable.push((format!("{what} {address}"), why));
        }
    }
    let Some(http) = &member.http_address else { return node };
    match asker.get(http, "/ping").await {
        Err(why) => node.unreachable.push((format!("http {http}"), why)),
        Ok(answer) => {
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64);
            node.clock_seconds = answer.date.as_deref().and_then(doctor::unix_seconds).map(|seconds| seconds - now);
            node.ping = Some(answer.body.trim().to_owned());
        }
    }
    for setting in doctor::AGREED {
        if let Ok(answer) = asker.get(http, &format!("/config/{setting}")).await
            && let Ok(value) = answer.good()
        {
            node.settings.insert(setting, value);
        }
    }
    node
}
