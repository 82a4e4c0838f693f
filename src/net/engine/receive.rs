//! Input of connections: where its bytes go, and when they are asked for.

use super::*;

impl Net {
    /// The next bytes of the connection go into this memory; `Received` gives it back, unless the connection ends before. One at a
    /// time. On a connection that is closing it is dropped.
    ///
    /// Panics when the memory has no room for the wanted bytes.
    pub fn receive_into(&mut self, conn: ConnId, lent: Lent) {
        let Some(c) = self.conns.get_mut(conn) else { return };
        if !matches!(c.phase, Phase::Open | Phase::HalfClosed) {
            return;
        }
        c.lend(lent);
        match c.receive {
            Receive::Armed => {
                c.receive = Receive::Cancelling;
                push_cancel(&mut self.ring.borrow_mut(), user_data(OpKind::Receive, conn));
            }
            Receive::Starved => c.receive = Receive::Off,
            Receive::Off | Receive::Cancelling => {}
        }
        self.todo.push(conn);
    }

    pub(super) fn received(&mut self, c: Completion, buffer: Option<u16>, each: &mut dyn FnMut(NetEvent<'_>)) -> usize {
        let Some((OpKind::Receive, conn)) = of_user_data(c.user_data) else {
            unreachable!("only receives have buffers: {:#x}", c.user_data)
        };
        let conn = ConnId(conn);
        let entry = self.conns.get_mut(conn).expect("a connection stays until its operations are done");
        let mut events = 0;
        if entry.is_receiving_lent() {
            let lent = entry.received_lent(c.result);
            if !matches!(entry.phase, Phase::Open | Phase::HalfClosed) {
                entry.drop_lent();
            } else if let Some(lent) = lent {
                entry.unanswered = true;
                events = 1;
                each(NetEvent::Received { conn, lent });
            }
        } else if c.result > 0 {
            let buffer = buffer.expect("received bytes are in a buffer");
            let mut bytes = self.buffers.bytes(buffer, c.result as usize);
            match &mut entry.phase {
                Phase::Open | Phase::HalfClosed => {
                    entry.unanswered = true;
                    if let Some(lent) = entry.put_lent(&mut bytes) {
                        events += 1;
                        each(NetEvent::Received { conn, lent });
                    }
                    if !bytes.is_empty() {
                        events += 1;
                        each(NetEvent::Bytes { conn, bytes });
                    }
                }
                Phase::Moving(moving) => moving.unread.extend_from_slice(bytes),
                Phase::Closing | Phase::Draining => {}
            }
        }
        if cqueue::more(c.flags) {
            return events;
        }
        entry.receive = Receive::Off;
        match -c.result {
            0 => entry.ended = true,
            libc::ENOBUFS => {
                entry.receive = Receive::Starved;
                self.starved.push_back(conn);
            }
            // cancelled by us, or the kernel ended it without an end of the stream: settle arms it again where wanted
            ..0 | libc::ECANCELED | libc::EINTR | libc::EAGAIN => {}
            _ => {
                entry.ended = true;
                entry.broken = true;
            }
        }
        let list = if entry.is_single() { &mut self.later } else { &mut self.todo };
        list.push(conn);
        events
    }

    /// Arms or cancels the receive.
    pub(super) fn receive_if(&mut self, conn: ConnId, wanted: impl Fn(&Conn) -> bool) {
        let Some(c) = self.conns.get_mut(conn) else { return };
        match (wanted(c), c.receive) {
            (true, Receive::Off) if !c.ended => {
                c.receive = Receive::Armed;
                if !c.push_single(&mut self.ring.borrow_mut(), GROUP) {
                    let entry = opcode::RecvMulti::new(types::Fd(c.fd.as_raw_fd()), GROUP).build();
                    // SAFETY: the entry points to nothing; the buffers of the group outlive the ring's operations.
                    unsafe { self.ring.borrow_mut().push(entry.user_data(user_data(OpKind::Receive, conn))) };
                }
            }
            (false, Receive::Armed) => {
                c.receive = Receive::Cancelling;
                push_cancel(&mut self.ring.borrow_mut(), user_data(OpKind::Receive, conn));
            }
            (false, Receive::Starved) => c.receive = Receive::Off,
            _ => {}
        }
    }
}
