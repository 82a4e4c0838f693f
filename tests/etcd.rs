//! The client of etcd against real members: the traps that are the client's to know (../shared/reference/etcd.md has them all with what
//! was seen; docs/decisions/etcd.md those that count for the gateway).

mod node;

use bytes::Bytes;
use node::cluster::Proxy;
use node::etcd::{FAST, Member, members};
use node::pki::Pki;
use ringmq::base::NodeId;
use ringmq::etcd::{Endpoint, Etcd, Options, Store, User, WatchEnd};
use ringmq::metadata::keys::{Key, Layout};
use ringmq::metadata::record::{ClusterRecord, encode};
use ringmq::metadata::request::{Answer, Change, Compare, Failure, KeyValue, Listing, Op, Outcome, Request, Txn};
use ringmq::metadata::view::{View, ViewError};
use socket2::{Domain, Socket, Type};
use std::cell::RefCell;
use std::net::{SocketAddr, TcpStream};
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::task::LocalSet;

const PREFIX: &str = "/ringmq/test/";

fn on_a_thread(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    LocalSet::new().block_on(&runtime, async {
        tokio::time::timeout(Duration::from_secs(90), test).await.expect("it ends");
    });
}

fn client(urls: &[String]) -> Rc<Etcd> {
    let endpoints = urls.iter().map(|url| Endpoint::parse(url).expect("a URL")).collect();
    Rc::new(Etcd::new(Options { endpoints, tls: None, user: None, prefix: PREFIX.into() }))
}

fn key(name: &str) -> Bytes {
    Bytes::from(format!("{PREFIX}{name}"))
}

fn put(name: &str, value: impl Into<Bytes>) -> Request {
    let op = Op::Put { key: key(name), value: value.into(), lease: None };
    Request::Txn(Txn { then: vec![op], ..Txn::default() })
}

fn revision(outcome: Outcome) -> u64 {
    match outcome {
        Ok(Answer::Txn { succeeded: true, revision, .. }) => revision,
        other => panic!("a write: {other:?}"),
    }
}

async fn list(etcd: &Etcd) -> Listing {
    match etcd.carry(Request::List).await {
        Ok(Answer::Listed(listing)) => listing,
        other => panic!("a listing: {other:?}"),
    }
}

/// Changes that a watch has told so far, and its end.
#[derive(Clone, Default)]
struct WatchLog(Rc<RefCell<(Vec<Change>, Vec<WatchEnd>)>>);

impl WatchLog {
    /// Goes on from the last revision heard, as a node does, until the watch says that this cannot be.
    fn follow(etcd: &Rc<Etcd>, from: u64) -> WatchLog {
        let (heard, etcd) = (WatchLog::default(), etcd.clone());
        let (all, shared) = (heard.0.clone(), heard.0.clone());
        tokio::task::spawn_local(async move {
            let mut next = from;
            loop {
                let end = etcd.follow(next, &mut |changes| shared.borrow_mut().0.extend(changes)).await;
                next = all.borrow().0.last().map_or(next, |change| place(change) + 1);
                all.borrow_mut().1.push(end.clone());
                if matches!(end, WatchEnd::Compacted { .. }) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        heard
    }

    async fn has(&self, revision: u64) {
        while !self.0.borrow().0.iter().any(|change| place(change) >= revision) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn ended(&self) -> WatchEnd {
        while self.0.borrow().1.is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        self.0.borrow().1[0].clone()
    }

    fn places(&self) -> Vec<u64> {
        self.0.borrow().0.iter().map(place).collect()
    }
}

fn place(change: &Change) -> u64 {
    match change {
        Change::Put(kv) => kv.mod_revision,
        Change::Deleted { mod_revision, .. } => *mod_revision,
    }
}

/// Traps 11, 13, 16, 19: effects of requests, and refusals.
#[test]
fn transactions_and_leases_are_carried() {
    let member = Member::start(&FAST);
    on_a_thread(async {
        let etcd = client(&[member.url()]);
        let Ok(Answer::Granted { lease, ttl }) = etcd.carry(Request::Grant { ttl: Duration::from_millis(1500) }).await else {
            panic!("a lease");
        };
        assert!(ttl >= Duration::from_secs(2), "it is never shorter than asked: {ttl:?}");
        let own = |value: &'static str| Op::Put { key: key("node/a"), value: value.into(), lease: Some(lease) };
        let create = Txn {
            compares: vec![Compare::CreateRevision { key: key("node/a"), is: 0 }],
            then: vec![own("1"), Op::Get { key: key("nothing") }],
            otherwise: vec![Op::Get { key: key("node/a") }],
        };
        let made = etcd.carry(Request::Txn(create.clone())).await.expect("it is answered");
        let Answer::Txn { succeeded: true, reads, revision: created } = made else { panic!("{made:?}") };
        assert_eq!(reads, [None]);
        let again = etcd.carry(Request::Txn(create)).await.expect("it is answered");
        let Answer::Txn { succeeded: false, reads, .. } = again else { panic!("{again:?}") };
        let found = reads[0].clone().expect("it is there");
        assert_eq!((found.create_revision, found.lease, &found.value[..]), (created, Some(lease), &b"1"[..]));
        let swap = |is: u64| Txn {
            compares: vec![Compare::ModRevision { key: key("node/a"), is }],
            then: vec![own("2")],
            ..Txn::default()
        };
        let by = |outcome: Outcome| matches!(outcome, Ok(Answer::Txn { succeeded: true, .. }));
        assert!(by(etcd.carry(Request::Txn(swap(created))).await) && !by(etcd.carry(Request::Txn(swap(created))).await));

        let renewed = etcd.carry(Request::Renew { lease }).await;
        assert!(matches!(renewed, Ok(Answer::Renewed { ttl: Some(left) }) if left == ttl), "{renewed:?}");
        assert_eq!(etcd.carry(Request::Revoke { lease }).await, Ok(Answer::Revoked));
        assert_eq!(etcd.carry(Request::Revoke { lease }).await, Ok(Answer::Revoked), "it was gone");
        assert_eq!(etcd.carry(Request::Renew { lease }).await, Ok(Answer::Renewed { ttl: None }), "expired is no error");
        assert!(list(&etcd).await.entries.is_empty(), "its key went with it");

        let lost = Txn { then: vec![own("3")], ..Txn::default() };
        assert!(matches!(etcd.carry(Request::Txn(lost)).await, Err(Failure::Refused(why)) if why.contains("lease not found")));
        let many = (0..129).map(|n| Op::Put { key: key(&format!("{n}")), value: Bytes::new(), lease: None }).collect();
        let many = Txn { then: many, ..Txn::default() };
        assert!(
            matches!(etcd.carry(Request::Txn(many)).await, Err(Failure::Refused(why)) if why.contains("too many operations"))
        );
        assert!(
            matches!(etcd.carry(put("big", vec![0; 1_700_000])).await, Err(Failure::Refused(why)) if why.contains("too large"))
        );
        assert!(list(&etcd).await.entries.is_empty(), "nothing of what was refused is there");
        let health = etcd.health().await;
        let version = health[0].version.clone().expect("it tells its version");
        assert!(version.starts_with("3.") && health[0].alarms.is_empty(), "{version}");
    });
}

/// Traps 1 and 4: a member that is dead, and nobody at all.
#[test]
fn a_dead_member_is_left_and_nobody_is_no_refusal() {
    let (member, mut dead) = (Member::start(&FAST), Member::start(&FAST));
    on_a_thread(async {
        let etcd = client(&[dead.url(), member.url()]);
        revision(etcd.carry(put("a", "of the other")).await);
        dead.kill();
        // The connection that was kept may be found dead; nothing after that.
        let first = etcd.carry(put("a", "1")).await;
        assert!(!matches!(first, Err(Failure::Refused(_) | Failure::Unreached(_))), "somebody is there: {first:?}");
        for n in 0..50 {
            revision(etcd.carry(put("a", n.to_string())).await);
        }
        let nobody = client(&[dead.url(), dead.url()]);
        assert!(matches!(nobody.carry(put("a", "x")).await, Err(Failure::Unreached(why)) if why.contains("cannot connect")));
        assert!(matches!(nobody.follow(1, &mut |_| {}).await, WatchEnd::Lost(_)));
    });
}

/// A port where nobody answers, not even with a refusal: its queue of connections is full.
fn swallowing() -> (SocketAddr, Socket, Vec<TcpStream>) {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).expect("a port is free");
    socket.listen(0).expect("it listens");
    let address = socket.local_addr().expect("it is bound").as_socket().expect("it is one of IP");
    let mut waiting = vec![];
    while let Ok(stream) = TcpStream::connect_timeout(&address, Duration::from_millis(300)) {
        waiting.push(stream);
    }
    (address, socket, waiting)
}

/// Trap 4: a host that answers no SYN.
#[test]
fn a_host_that_swallows_connections_is_left_in_time() {
    let member = Member::start(&FAST);
    let (hole, ..) = &swallowing();
    let hole = format!("http://{hole}");
    on_a_thread(async {
        let etcd = client(&[hole.clone(), member.url()]);
        let began = Instant::now();
        // A request that was not sent is tried at another endpoint: this is no refusal, and it has one outcome.
        let outcome = etcd.carry(put("a", "1")).await;
        assert!(!matches!(outcome, Err(Failure::Unknown(_))), "it was never sent to anybody who is silent: {outcome:?}");
        while !matches!(etcd.carry(put("a", "2")).await, Ok(Answer::Txn { succeeded: true, .. })) {}
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
        let nobody = client(std::slice::from_ref(&hole));
        let alone = tokio::time::timeout(Duration::from_secs(20), nobody.carry(put("a", "x"))).await.expect("every wait ends");
        assert!(matches!(&alone, Err(Failure::Unreached(why)) if why.contains("cannot connect in time")), "{alone:?}");
    });
}

/// Trap 6, as far as other tests do not meet it: codes that say little, and what they mean for a request.
#[test]
fn what_etcd_says_of_a_request_is_told_apart() {
    let member = Member::start(&FAST);
    on_a_thread(async {
        let etcd = client(&[member.url()]);
        let twice = || Op::Put { key: key("a"), value: "1".into(), lease: None };
        let twice = Request::Txn(Txn { then: vec![twice(), twice()], ..Txn::default() });
        assert!(matches!(etcd.carry(twice).await, Err(Failure::Refused(why)) if why.contains("duplicate key")));
        // A revision that is not there yet is waited for; one that is gone is told. Both have the code of an answer that is too long.
        let last = revision(etcd.carry(put("a", "1")).await);
        let ahead = WatchLog::follow(&etcd, last + 3);
        for n in 0..3 {
            revision(etcd.carry(put("a", n.to_string())).await);
        }
        ahead.has(last + 3).await;
        assert_eq!(ahead.places(), [last + 3]);
        assert!(member.post("/v3/kv/compaction", &format!(r#"{{"revision":"{}"}}"#, last + 2)).contains("200 OK"));
        assert_eq!(WatchLog::follow(&etcd, last).ended().await, WatchEnd::Compacted { revision: last + 2 });
    });
}

/// Trap 10: a watch may tell of a write before its own answer comes, or behind it. The view takes both and never goes back.
#[test]
fn an_answer_and_the_watch_meet_in_one_view() {
    let member = Member::start(&FAST);
    on_a_thread(async {
        let etcd = client(&[member.url()]);
        let layout = || Layout::new("test").expect("a name");
        let cluster = encode(&ClusterRecord { id: [1; 16] });
        let first = revision(etcd.carry(put("id", cluster)).await);
        let view = Rc::new(RefCell::new(View::new(layout(), 0)));
        let listing = list(&etcd).await;
        view.borrow_mut().replace(listing, None).expect("the first listing is believed");
        let (watch, watched) = (etcd.clone(), view.clone());
        let order = Rc::new(RefCell::new(vec![]));
        let of_watch = order.clone();
        tokio::task::spawn_local(async move {
            let told = &mut |changes: Vec<Change>| {
                of_watch.borrow_mut().extend(changes.iter().map(|change| ("watch", place(change))));
                drop(watched.borrow_mut().watched(changes));
            };
            watch.follow(first + 1, told).await
        });
        let drain = Key::Drain(NodeId([7; 16]));
        let seen = || view.borrow().mod_revision(&drain).unwrap_or(0);
        let mut last = 0;
        for n in 0..300u64 {
            let op = Op::Put { key: layout().key(&drain), value: format!(r#"{{"v":1,"n":{n}}}"#).into(), lease: None };
            let (Op::Put { key, value, .. }, before) = (op.clone(), seen()) else { unreachable!("it is one") };
            last = revision(etcd.carry(Request::Txn(Txn { then: vec![op], ..Txn::default() })).await);
            order.borrow_mut().push(("answer", last));
            let kv = KeyValue { key, value, create_revision: first + 1, mod_revision: last, lease: None };
            drop(view.borrow_mut().learn(Change::Put(kv)));
            assert!(before < last && seen() == last, "the view is at {} behind revision {last}", seen());
        }
        while !order.borrow().contains(&("watch", last)) {
            assert_eq!(seen(), last, "what the watch repeats takes nothing back");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let order = order.borrow();
        let at = |who: &str, revision: u64| order.iter().position(|told| *told == (who, revision)).expect("both told it");
        let earlier = (first + 1..=last).filter(|revision| at("watch", *revision) < at("answer", *revision)).count();
        println!("the watch was earlier than the answer in {earlier} of {} writes", last - first);
    });
}

/// Traps 21 and 23: a long way to catch up, over connections that end again and again. No revision comes in parts, none twice, none is
/// missed, and what a header says of the newest revision makes the watch skip nothing.
#[test]
fn a_watch_that_catches_up_over_broken_connections_gets_each_revision_whole_and_once() {
    let member = Member::start(&FAST);
    let link = Proxy::to(member.client());
    on_a_thread(async {
        let (etcd, writer) = (client(&[format!("http://{}", link.address)]), client(&[member.url()]));
        let begin = revision(writer.carry(put("begin", "")).await);
        let write = async |round: usize| {
            let op = |n: usize| Op::Put { key: key(&format!("many/{n:03}")), value: vec![b'x'; 4000].into(), lease: None };
            let then = (0..if round.is_multiple_of(10) { 128 } else { 1 }).map(op).collect();
            revision(writer.carry(Request::Txn(Txn { then, ..Txn::default() })).await)
        };
        for round in 0..300 {
            write(round).await;
        }
        let pieces = Rc::new(RefCell::new(Vec::<Vec<u64>>::new()));
        let (watch, heard) = (etcd.clone(), pieces.clone());
        tokio::task::spawn_local(async move {
            loop {
                let next = heard.borrow().last().and_then(|piece| piece.last()).map_or(begin + 1, |last| last + 1);
                watch.follow(next, &mut |changes| heard.borrow_mut().push(changes.iter().map(place).collect())).await;
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
        let mut last = 0;
        for round in 300..400 {
            last = write(round).await;
            if round.is_multiple_of(7) {
                link.drop_connections();
            }
        }
        while pieces.borrow().last().and_then(|piece| piece.last().copied()) != Some(last) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let mut expected = vec![];
        for (round, revision) in (begin + 1..=last).enumerate() {
            expected.extend(std::iter::repeat_n(revision, if round.is_multiple_of(10) { 128 } else { 1 }));
        }
        let pieces = pieces.borrow();
        assert_eq!(pieces.concat(), expected, "each change once, in order");
        let is_cut = |pair: &[Vec<u64>]| pair[0].last() == pair[1].first();
        assert!(!pieces.windows(2).any(is_cut), "a revision comes whole");
    });
}

/// Trap 24: a watch that is read slowly is parked by etcd, until a compaction ends it. It is never taken for one that heard everything.
#[test]
fn a_watch_that_is_held_up_goes_on_or_says_what_it_missed() {
    let member = Member::start(&FAST);
    let link = Proxy::to(member.client());
    on_a_thread(async {
        let (etcd, writer) = (client(&[format!("http://{}", link.address)]), client(&[member.url()]));
        let begin = revision(writer.carry(put("begin", "")).await);
        let heard = WatchLog::follow(&etcd, begin + 1);
        heard.has(revision(writer.carry(put("a", "heard")).await)).await;
        for is_compacted in [false, true] {
            link.hold();
            let mut last = 0;
            for _ in 0..400 {
                last = revision(writer.carry(put("a", vec![b'x'; 50_000])).await);
            }
            if is_compacted {
                assert!(member.post("/v3/kv/compaction", &format!(r#"{{"revision":"{last}"}}"#)).contains("200 OK"));
            }
            link.heal();
            let is_over = || heard.0.borrow().1.iter().any(|end| matches!(end, WatchEnd::Compacted { .. }));
            let has_all = || heard.places().last() == Some(&last);
            while !(has_all() || is_compacted && is_over()) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            let places = heard.places();
            let told = *places.last().expect("events");
            assert_eq!(places, (begin + 1..=told).collect::<Vec<_>>(), "each once, in order, up to its end");
            println!("compacted: {is_compacted}, heard {told} of {last}, over: {}", is_over());
        }
        assert_eq!(list(&etcd).await.entries.len(), 2, "a listing has what was missed");
    });
}

/// Trap 3: over HTTP/1.1 no ping is punished, and a connection and a watch that are idle live on. `ETCD_IDLE_SECONDS=60` is a longer look.
#[test]
fn what_is_idle_lives_on() {
    let seconds = std::env::var("ETCD_IDLE_SECONDS").map_or(1, |text| text.parse().expect("ETCD_IDLE_SECONDS is a number"));
    let member = Member::start(&FAST);
    on_a_thread(async {
        let etcd = client(&[member.url()]);
        let begin = revision(etcd.carry(put("begin", "")).await);
        let heard = WatchLog::follow(&etcd, begin + 1);
        heard.has(revision(etcd.carry(put("a", "1")).await)).await;
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        heard.has(revision(etcd.carry(put("a", "2")).await)).await;
        assert_eq!(heard.places(), [begin + 1, begin + 2]);
        assert!(heard.0.borrow().1.is_empty(), "it never ended: {:?}", heard.0.borrow().1);
    });
}

/// Traps 2 and 21: a member that is silent takes its watch with it, and the next one goes on from the last event.
#[test]
fn a_silent_member_is_left_with_its_watch_and_no_event_is_lost() {
    let all = members(3, &FAST);
    let (first, second) = (Proxy::to(all[0].client()), Proxy::to(all[1].client()));
    on_a_thread(async {
        let etcd = client(&[format!("http://{}", first.address), format!("http://{}", second.address)]);
        let writer = client(&[all[2].url()]);
        let from = revision(writer.carry(put("begin", "")).await) + 1;
        let heard = WatchLog::follow(&etcd, from);
        let last = revision(writer.carry(put("a", "1")).await);
        heard.has(last).await;
        first.hold();
        for n in 0..20 {
            revision(writer.carry(put("a", n.to_string())).await);
        }
        // The next request, a renewal, notices it.
        let silent = etcd.carry(put("b", "1")).await;
        assert!(matches!(silent, Err(Failure::Unknown(_))), "it was sent: {silent:?}");
        let last = revision(etcd.carry(put("b", "2")).await);
        heard.has(last).await;
        for _ in 0..5 {
            second.drop_connections();
            let last = revision(writer.carry(put("a", "x")).await);
            heard.has(last).await;
        }
        first.heal();
        let places = heard.places();
        let last = *places.last().expect("events");
        assert_eq!(places, (from..=last).collect::<Vec<_>>(), "each once, in order");
    });
}

/// Traps 5, 8 and 9: without a quorum nothing is said to be refused that may still come.
#[test]
fn without_a_quorum_a_write_is_unknown_and_may_come_later() {
    let mut all = members(3, &FAST);
    let urls: Vec<String> = all.iter().map(Member::url).collect();
    on_a_thread(async {
        let etcd = client(&urls[..1]);
        let seen = revision(etcd.carry(put("a", "before")).await);
        let heard = WatchLog::follow(&etcd, seen);
        heard.has(seen).await;
        all[1].pause();
        all[2].pause();
        let outcome = etcd.carry(put("a", "late")).await;
        // A member that knows already that it has no leader takes nothing.
        assert!(outcome.is_err(), "{outcome:?}");
        assert!(matches!(heard.ended().await, WatchEnd::Lost(_)), "its watch is no watch");
        all[1].resume();
        all[2].resume();
        let after = loop {
            if let Ok(Answer::Listed(listing)) = etcd.carry(Request::List).await {
                break listing;
            }
        };
        let now = after.entries[0].mod_revision;
        // Another compare-and-swap of the key settles it, whatever became of it.
        let swap = |is: u64| Txn {
            compares: vec![Compare::ModRevision { key: key("a"), is }],
            then: vec![Op::Put { key: key("a"), value: "settled".into(), lease: None }],
            otherwise: vec![Op::Get { key: key("a") }],
        };
        let mut is = now;
        while let Ok(Answer::Txn { succeeded: false, reads, .. }) = etcd.carry(Request::Txn(swap(is))).await {
            is = reads[0].as_ref().expect("it is there").mod_revision;
        }
        assert_eq!(&list(&etcd).await.entries[0].value[..], b"settled");
        // The election takes what is in flight along; the next ones are taken.
        let etcd = client(&urls);
        all[0].kill();
        while etcd.carry(put("a", "x")).await.is_err() {}
        revision(etcd.carry(put("a", "y")).await);
    });
}

/// Trap 8, with one member: it sleeps, and writes what was given up when it wakes.
#[test]
fn a_write_that_was_given_up_is_unknown_and_comes() {
    let member = Member::start(&FAST);
    on_a_thread(async {
        let etcd = client(&[member.url()]);
        revision(etcd.carry(put("a", "1")).await);
        member.pause();
        let outcome = etcd.carry(put("a", "late")).await;
        member.resume();
        assert!(matches!(outcome, Err(Failure::Unknown(_))), "{outcome:?}");
        revision(etcd.carry(put("b", "2")).await);
        assert_eq!(list(&etcd).await.entries.len(), 2);
    });
}

/// Trap 7: the gateway has no limit of 4 MiB for answers, and the watch takes a message of any length.
#[test]
fn long_listings_and_messages_come_whole() {
    let member = Member::start(&FAST);
    on_a_thread(async {
        let etcd = client(&[member.url()]);
        for n in 0..8 {
            revision(etcd.carry(put(&format!("big/{n}"), vec![b'x'; 1 << 20])).await);
        }
        let listing = list(&etcd).await;
        assert_eq!(listing.entries.iter().map(|kv| kv.value.len()).sum::<usize>(), 8 << 20);
        for n in 0..12_000 / 128 + 1 {
            let key = |i: usize| key(&format!("many/{:05}", n * 128 + i));
            let then = (0..128).map(|i| Op::Put { key: key(i), value: "v".into(), lease: None }).collect();
            revision(etcd.carry(Request::Txn(Txn { then, ..Txn::default() })).await);
        }
        let whole = list(&etcd).await;
        assert_eq!(whole.entries.len(), 8 + (12_000 / 128 + 1) * 128, "more than a page");
        assert!(whole.entries.is_sorted_by(|a, b| a.key < b.key), "and each once");
        // Catching up from the beginning is one message of all that.
        let heard = WatchLog::follow(&etcd, 1);
        heard.has(whole.revision).await;
        assert_eq!(heard.places().len(), whole.entries.len());
    });
}

/// Trap 22: the revision from which a watch would go on is gone.
#[test]
fn a_compaction_is_told() {
    let member = Member::start(&FAST);
    on_a_thread(async {
        let etcd = client(&[member.url()]);
        let mut last = 0;
        for n in 0..10 {
            last = revision(etcd.carry(put("a", n.to_string())).await);
        }
        let answer = member.post("/v3/kv/compaction", &format!(r#"{{"revision":"{last}"}}"#));
        assert!(answer.contains("200 OK"), "{answer}");
        let heard = WatchLog::follow(&etcd, 2);
        assert_eq!(heard.ended().await, WatchEnd::Compacted { revision: last });
        assert!(heard.places().is_empty());
        let next = WatchLog::follow(&etcd, list(&etcd).await.revision + 1);
        next.has(revision(etcd.carry(put("a", "again")).await)).await;
    });
}

/// Trap 25: it looks the same, and its revision went back.
#[test]
fn a_wiped_store_is_not_believed() {
    let mut member = Member::start(&FAST);
    on_a_thread(async {
        let etcd = client(&[member.url()]);
        for n in 0..5 {
            revision(etcd.carry(put("a", n.to_string())).await);
        }
        let before = list(&etcd).await;
        let mut view = View::new(Layout::new("test").expect("a name"), 0);
        view.replace(before.clone(), None).expect("the first listing is believed");
        member.wipe();
        let after = loop {
            if let Ok(Answer::Listed(listing)) = etcd.carry(Request::List).await {
                break listing;
            }
        };
        let wanted = ViewError::WentBack { seen: before.revision, found: after.revision };
        assert_eq!(view.replace(after, None), Err(wanted));
    });
}

/// Trap 26: a full store takes no write and no lease; renewals go on, and the alarm is told.
#[test]
fn a_full_store_refuses_and_says_so() {
    let flags: Vec<&str> = FAST.into_iter().chain(["--quota-backend-bytes=2000000"]).collect();
    let member = Member::start(&flags);
    on_a_thread(async {
        let etcd = client(&[member.url()]);
        let Ok(Answer::Granted { lease, .. }) = etcd.carry(Request::Grant { ttl: Duration::from_secs(60) }).await else {
            panic!("a lease");
        };
        let full = loop {
            if let Err(failure) = etcd.carry(put("a", vec![b'x'; 500_000])).await {
                break failure;
            }
        };
        assert!(matches!(&full, Failure::Refused(why) if why.contains("space exceeded")), "{full:?}");
        assert!(matches!(etcd.carry(Request::Grant { ttl: Duration::from_secs(60) }).await, Err(Failure::Refused(_))));
        assert!(matches!(etcd.carry(Request::Renew { lease }).await, Ok(Answer::Renewed { ttl: Some(_) })));
        assert_eq!(etcd.health().await[0].alarms, ["NOSPACE"]);
    });
}

/// Trap 30: a token that is no longer known is fetched anew, for a watch, too.
#[test]
fn a_user_stays_logged_in_across_a_restart_of_etcd() {
    let mut member = Member::start(&FAST);
    member.enable_users("ringmq", "secret");
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("cargo's folder for tests is writable");
    let [good, bad] = ["good", "bad"].map(|name| folder.path().join(name));
    std::fs::write(&good, "secret\n").expect("it is writable");
    std::fs::write(&bad, "wrong").expect("it is writable");
    let as_user = |password_file: &std::path::Path| {
        let endpoints = vec![Endpoint::parse(&member.url()).expect("a URL")];
        let user = Some(User { name: "ringmq".into(), password_file: password_file.into() });
        Rc::new(Etcd::new(Options { endpoints, tls: None, user, prefix: PREFIX.into() }))
    };
    let (etcd, stranger) = (as_user(&good), as_user(&bad));
    let nobody = client(&[member.url()]);
    on_a_thread(async {
        let first = revision(etcd.carry(put("a", "1")).await);
        let heard = WatchLog::follow(&etcd, first);
        heard.has(first).await;
        assert!(matches!(stranger.carry(put("a", "2")).await, Err(Failure::Refused(why)) if why.contains("cannot log in")));
        assert!(matches!(nobody.carry(put("a", "2")).await, Err(Failure::Refused(_))));
        member.restart();
        let last = loop {
            if let Ok(Answer::Txn { revision, .. }) = etcd.carry(put("a", "3")).await {
                break revision;
            }
        };
        heard.has(last).await;
        assert_eq!(heard.places(), [first, last]);
        // The password changes in etcd, then in the file.
        member.change_password("ringmq", "other");
        let refused = etcd.carry(put("a", "4")).await;
        assert!(matches!(&refused, Err(Failure::Refused(why)) if why.contains("cannot log in")), "{refused:?}");
        std::fs::write(&good, "other\n").expect("it is writable");
        let again = revision(etcd.carry(put("a", "5")).await);
        heard.has(again).await;
        assert_eq!(heard.places(), [first, last, again]);
        std::fs::remove_file(&bad).expect("it is there");
        let unread = stranger.carry(put("a", "6")).await;
        assert!(matches!(&unread, Err(Failure::Refused(why)) if why.contains("--etcd-password-file=")), "{unread:?}");
    });
}

#[test]
fn etcd_with_client_certificates_is_spoken_to() {
    let pki = Pki::new();
    let [certificate, key_file, ca] = pki.peer("etcd", &["127.0.0.1", "localhost"]);
    let flags = [format!("--cert-file={certificate}"), format!("--key-file={key_file}"), format!("--trusted-ca-file={ca}")];
    let flags: Vec<&str> = FAST.into_iter().chain(flags.iter().map(String::as_str)).chain(["--client-cert-auth"]).collect();
    let member = Member::start_with_tls(&flags);
    let [own, own_key, ca] = pki.peer("node", &["node"]);
    let with = |cert: String, key: String| {
        let settings = ringmq::config::Settings {
            etcd_tls_ca: ca.clone(),
            etcd_tls_cert: cert,
            etcd_tls_key: key,
            ..ringmq::config::Settings::default()
        };
        let tls = Some(ringmq::tls::etcd_client(&settings).expect("the files hold"));
        let endpoints = vec![Endpoint::parse(&member.url()).expect("a URL")];
        Etcd::new(Options { endpoints, tls, user: None, prefix: PREFIX.into() })
    };
    let (etcd, stranger) = (with(own, own_key), with(String::new(), String::new()));
    on_a_thread(async {
        while etcd.carry(put("a", "1")).await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(list(&etcd).await.entries.len(), 1);
        assert!(stranger.carry(put("a", "2")).await.is_err(), "it shows no certificate");
    });
}
