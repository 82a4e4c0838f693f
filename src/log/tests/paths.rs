//! The ways of one publish, with a disk that works.

use super::*;

#[test]
fn an_append_is_acknowledged_when_its_journal_write_is_done() {
    let mut rig = Rig::new(options());
    let p = rig.create("t");
    let first = rig.append(p, &[b"one", b"two"]).unwrap();
    let second = rig.append(p, &[b"three"]).unwrap();
    assert!(first < second && rig.store.has_batches());
    rig.turn_end();
    assert!(!rig.store.has_batches());
    assert!(matches!(rig.store.fetch(p, 0, &mut rig.io), Fetch::End));
    assert_eq!(rig.disk.pending.len(), 1, "one journal write for the turn");
    rig.complete(0);
    let end = rig.store.durable_end(p);
    assert_eq!(rig.notices, [Notice::Durable { p, end, tickets_upto: second }]);
    assert_eq!(rig.read_all(p), [&b"one"[..], b"two", b"three"]);
    assert_eq!(rig.redo().len(), 1);
}
