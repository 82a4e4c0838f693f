//! The end of a ring: nothing is freed while the kernel may still write it.

use super::*;

impl Net {
    /// Cancels everything and waits (blocking, two seconds at most) until the kernel has let go of it, then closes all
    /// sockets. No events are told. Also done by drop. True when the kernel has let go; else the memory is left to it.
    pub fn shutdown(&mut self) -> bool {
        if self.is_shut_down {
            return true;
        }
        self.accepting = false;
        let cancel_all = opcode::AsyncCancel2::new(types::CancelBuilder::any()).build();
        // SAFETY: the entry points to nothing.
        unsafe { self.ring.borrow_mut().push(cancel_all.user_data(user_data(OpKind::Control, NO_CONN))) };
        let end = Instant::now() + Duration::from_secs(2);
        let mut done = Vec::new();
        while self.is_anything_in_flight() {
            if Instant::now() > end || self.ring.borrow_mut().enter_and_wait(Duration::from_millis(50)).is_err() {
                tracing::error!("socket operations did not end in two seconds: their memory is left to the kernel");
                return false;
            }
            self.ring.borrow_mut().take(&mut done, COMPLETIONS_MAX);
            done.drain(..).for_each(|c| self.reap(c));
        }
        *self.conns = Conns::new();
        self.listeners.clear();
        self.open = 0;
        self.news.clear();
        self.is_shut_down = true;
        true
    }

    fn is_anything_in_flight(&mut self) -> bool {
        self.listeners.iter().any(|l| l.accept != Accept::Off)
            || self.timer.is_armed()
            || self.ring.borrow_mut().is_listening()
            || self.dials.is_connecting()
            || self.conns.iter_mut().any(|c| c.is_receiving() || c.is_sending())
    }

    fn reap(&mut self, c: Completion) {
        let is_last = !cqueue::more(c.flags);
        match of_user_data(c.user_data) {
            Some((OpKind::Accept, listener)) => {
                if c.result >= 0 {
                    // SAFETY: the kernel has just made this descriptor for us.
                    drop(unsafe { OwnedFd::from_raw_fd(c.result) });
                }
                if is_last {
                    self.listeners[listener as usize].accept = Accept::Off;
                }
            }
            Some((OpKind::Timer, _)) => self.timer.fired(),
            Some((OpKind::Connect, dial)) => self.reap_connect(dial),
            Some((OpKind::Wake, _)) => self.ring.borrow_mut().heard(),
            Some((OpKind::Receive, conn)) if is_last => {
                if let Some(c) = self.conns.get_mut(ConnId(conn)) {
                    c.receive = Receive::Off;
                }
            }
            Some((OpKind::Send, conn)) => {
                if let Some(c) = self.conns.get_mut(ConnId(conn)) {
                    c.drop_output();
                }
            }
            _ => {}
        }
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        if self.shutdown() {
            // SAFETY: dropped here only, and nothing of them is with the kernel any more.
            unsafe {
                ManuallyDrop::drop(&mut self.conns);
                ManuallyDrop::drop(&mut self.timer);
                ManuallyDrop::drop(&mut self.dials);
                ManuallyDrop::drop(&mut self.buffers);
            }
        }
    }
}
