//! Ephemeral topics: a startup removes them, and each goes with its last channel.

use super::*;

impl World<'_> {
    /// Removes ephemeral topics before a client connects: their channels did not outlive the restart.
    pub(super) fn start_removes_ephemeral_topics(&mut self) {
        if self.plan.ephemeral == 0.0 || self.plan.faults.write_error > 0.0 {
            return;
        }
        self.drain_all();
        self.ask_what_is_left();
        let left: Vec<String> = self.left.drain(..).filter(|l| l.starts_with("ephemeral_topics_go")).collect();
        assert!(left.is_empty(), "a startup removes them: {left:?}");
        (0..EPHEMERAL_TOPICS).for_each(|topic| self.book.passing_is_gone(topic));
    }

    /// Every ephemeral topic can be used, and is removed with its last channel.
    pub(super) fn ephemeral_topics_go(&mut self) {
        if self.plan.ephemeral == 0.0 {
            return;
        }
        let passing: Vec<u64> =
            self.sockets.iter().filter(|(_, s)| s.client.nsq().is_some_and(Client::is_passing)).map(|(conn, _)| *conn).collect();
        passing.into_iter().for_each(|conn| self.hang_up(conn));
        self.drain_all();
        for topic in 0..EPHEMERAL_TOPICS {
            let conn = self.connect(Role::Passing);
            if let AnyClient::Nsq(client) = &mut self.sockets.get_mut(&conn).expect("just made").client {
                client.pass(self.book, topic, true);
            }
            self.drain_all();
            self.pass_time(1000);
            self.drain_all();
            let is_faulty = self.plan.faults.write_error > 0.0 || self.shards.iter().any(|s| s.read_only().is_some());
            let passed = self.sockets.get(&conn).and_then(|s| s.client.nsq()).map(|c| c.passed);
            assert!(is_faulty || passed.is_some_and(|n| n > 0), "ephemeral_topics_go: nothing came: {passed:?}");
            if passed.is_some() {
                self.hang_up(conn);
            }
            self.drain_all();
        }
    }
}
