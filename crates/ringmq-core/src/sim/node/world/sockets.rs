//! The sockets of clients: they connect, write, take sent bytes, and close.

use super::*;

impl World<'_> {
    pub(super) fn closed(&mut self, conn: u64) {
        let s = self.sockets.remove(&conn).expect("closed once");
        self.book.hung_up(conn);
        self.step(s.core.expect("it does not move"), Event::Closed { conn: ConnId(conn) });
    }

    /// The node reads a client's arrived bytes, split anywhere.
    pub(super) fn read(&mut self, conn: u64, all: bool) -> bool {
        let Some(s) = self.sockets.get_mut(&conn) else { return false };
        let Some(core) = s.core.filter(|_| !s.inbox.is_empty() && !s.is_closing) else { return false };
        // Bytes under way when the socket was paused still come.
        if s.is_paused && (all || !self.rng.chance(0.1)) {
            return false;
        }
        let n = if all { s.inbox.len() } else { 1 + self.rng.below(s.inbox.len() as u64) as usize };
        let Some(mut lent) = s.lent.take() else {
            let bytes: Vec<u8> = s.inbox.drain(..n).collect();
            self.step(core, Event::Bytes { conn: ConnId(conn), bytes: &bytes });
            return true;
        };
        let n = lent.take(&mut s.inbox, n);
        // it comes back when all is there, and sometimes before
        if lent.wanted > 0 && !n.is_multiple_of(3) {
            s.lent = Some(lent);
        } else {
            self.outcome.in_place += 1;
            self.step(core, Event::Received { conn: ConnId(conn), lent });
        }
        true
    }

    /// The client takes a piece of its output.
    pub(super) fn take(&mut self, conn: u64) -> bool {
        let Some(s) = self.sockets.get_mut(&conn) else { return false };
        let Some(core) = s.core.filter(|_| !self.has_crashed) else { return false };
        let Some(bytes) = s.wire.pop_front() else {
            if s.is_closing {
                self.closed(conn);
            }
            return !self.sockets.contains_key(&conn);
        };
        s.client.receive(self.book, &bytes);
        let first = self.rng.below(bytes.len() as u64 + 1) as usize;
        for bytes in [first, bytes.len() - first].into_iter().filter(|&n| n > 0) {
            self.step(core, Event::Sent { conn: ConnId(conn), bytes });
        }
        true
    }

    pub(super) fn hang_up(&mut self, conn: u64) {
        let s = self.sockets.get_mut(&conn).expect("known");
        s.has_hung_up = true;
        if s.core.is_some() {
            self.closed(conn);
        }
    }

    pub(super) fn connect(&mut self, role: Role) -> u64 {
        self.next_conn += 1;
        let conn = self.next_conn;
        let core = self.add_socket(AnyClient::Nsq(Client::new(conn, role, Reach::alone(self.topics))));
        self.step(core, Event::Opened { conn: ConnId(conn), peer: Peer("test:1".into()) });
        conn
    }

    /// Adds the newest client's socket, on the core where the client connects.
    pub(super) fn add_socket(&mut self, client: AnyClient) -> usize {
        let core = self.rng.below(self.shards.len() as u64) as usize;
        let (inbox, wire) = (vec![], VecDeque::new());
        let (is_paused, is_closing, has_hung_up) = (false, false, false);
        let socket = Socket { core: Some(core), inbox, lent: None, wire, is_paused, is_closing, has_hung_up, client };
        self.sockets.insert(self.next_conn, socket);
        core
    }

    pub(super) fn write(&mut self, conn: u64) {
        let s = self.sockets.get_mut(&conn).expect("known");
        s.inbox.append(s.client.out());
    }
}
