//! Taking connections from the listeners: a multishot accept that is armed again, and backs off when the system is out of
//! descriptors.

use super::*;

impl Net {
    pub(super) fn accepted(&mut self, c: Completion, listener: usize, each: &mut dyn FnMut(NetEvent<'_>)) -> usize {
        if !cqueue::more(c.flags) {
            self.listeners[listener].accept = Accept::Off;
            if !self.accepting {
                self.listeners[listener].listener = None;
            }
        }
        if c.result < 0 {
            self.accept_failed(-c.result);
            return 0;
        }
        // SAFETY: the kernel has just made this descriptor for us.
        let fd = unsafe { OwnedFd::from_raw_fd(c.result) };
        if !self.accepting {
            return 0;
        }
        let Ok(peer) = listen::peer(&fd) else { return 0 }; // gone already
        let Some(conn) = self.conns.open(fd) else {
            tracing::warn!("a connection from {} was refused: this core has {CONNECTIONS_MAX} connections", peer.0);
            return 0;
        };
        self.open += 1;
        self.todo.push(conn);
        each(NetEvent::Opened { conn, peer, listener });
        1
    }

    fn accept_failed(&mut self, errno: i32) {
        // these concern one connection, which is gone
        if matches!(errno, libc::ECONNABORTED | libc::EINTR | libc::EAGAIN | libc::EPROTO | libc::ECANCELED | libc::EPERM) {
            return;
        }
        let now = Instant::now();
        self.accept_retry_at = Some(now + ACCEPT_RETRY);
        if self.accept_logged_at.is_some_and(|at| now.duration_since(at) < ACCEPT_LOG) {
            return;
        }
        self.accept_logged_at = Some(now);
        let cause = io::Error::from_raw_os_error(errno);
        let remedy = match errno {
            libc::EMFILE => "raise the limit of open files (ulimit -n, LimitNOFILE=) or lower --max-connections",
            libc::ENFILE => "the whole system is out of open files: raise sysctl fs.file-max",
            _ => "the node tries again every 100 ms",
        };
        tracing::warn!("new connections cannot be accepted ({cause}) with {} open on this core: {remedy}", self.open);
    }

    pub(super) fn arm_accept(&mut self) {
        let is_off = |l: &Listening| l.accept == Accept::Off && l.listener.is_some();
        if !self.accepting || !self.listeners.iter().any(is_off) {
            return;
        }
        if let Some(at) = self.accept_retry_at {
            if Instant::now() < at {
                return;
            }
            self.accept_retry_at = None;
        }
        for (i, l) in self.listeners.iter_mut().enumerate().filter(|(_, l)| is_off(l)) {
            let Some(listener) = &l.listener else { continue };
            l.accept = Accept::Armed;
            let entry = opcode::AcceptMulti::new(types::Fd(listener.as_raw_fd())).flags(libc::SOCK_CLOEXEC).build();
            // SAFETY: the entry points to nothing.
            unsafe { self.ring.borrow_mut().push(entry.user_data(user_data(OpKind::Accept, ConnId(i as u64)))) };
        }
    }
}
